//! What this machine takes: for a line that moves from core to core, and for the work itself, with all lines at hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use seriatim::{Config, Event, Producer, Region, Sequencer, Worker, affinity};

use crate::count::{LINE, Pace, TICKETS};

/// Times of a machine, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// A line that one core wrote comes to another one that waits for it.
    pub(crate) transfer_ns: f64,
    /// A line more in a stream of lines that another core wrote, beside what reading it takes at hand.
    pub(crate) read_ns: f64,
    /// The same for a stream of lines that are written and that another core has read.
    pub(crate) write_ns: f64,
}

/// The mean of the middle half of some times: what disturbs is left out, and a coarse clock is made finer.
pub(crate) fn typical(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = &times[times.len() / 4..times.len() - times.len() / 4];
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

impl Machine {
    /// Measures between two of the allowed CPUs. On a busy machine the times are too long.
    pub(crate) fn measure() -> Result<Machine> {
        let transfer_ns = hand_over_ns()?;
        let (at_hand, moved) = (Work::measure(1, STREAM, Pace::Hand)?, Work::measure_apart(1, STREAM)?);
        let lines = (STREAM / LINE) as f64;
        // Each of them waits a few times, too.
        let more = |moved: f64, at_hand: f64| ((moved - at_hand) / lines).max(0.0);
        let (read_ns, write_ns) = (more(moved.poll, at_hand.poll), more(moved.submit, at_hand.submit));
        Ok(Machine { transfer_ns, read_ns, write_ns })
    }
}

/// Bytes of a payload that is a stream of lines.
const STREAM: usize = 64 << 10;
/// Batches of hand-overs, and hand-overs there and back in each.
const BATCHES: u64 = 1000;
const ROUNDS: u64 = 20;

/// How long one of two waits for a line that the other one writes.
fn hand_over_ns() -> Result<f64> {
    let turn = Turn::default();
    let times = apart(
        || {
            let batch = |at: u64| {
                let begin = Instant::now();
                for n in at * ROUNDS..(at + 1) * ROUNDS {
                    turn.pass(2 * n);
                    turn.wait(2 * n + 2);
                }
                begin.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
            };
            Ok((0..BATCHES).map(batch).collect())
        },
        || {
            for n in 0..BATCHES * ROUNDS {
                turn.wait(2 * n + 1);
                turn.pass(2 * n + 1);
            }
            Ok(())
        },
    )?;
    Ok(typical(times.0))
}

/// Whose turn it is of two: of one if it is even.
#[derive(Default)]
struct Turn(AtomicU64);

impl Turn {
    fn wait(&self, n: u64) {
        let mut looks = 0_u32;
        // Who fails hands over for ever.
        while self.0.load(Ordering::Acquire) < n {
            looks += 1;
            // With one core for two, one must go.
            if looks < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    fn pass(&self, n: u64) {
        self.0.fetch_max(n + 1, Ordering::Release);
    }
}

/// Runs two things at once, on two CPUs if there are two.
fn apart<A: Send, B: Send>(
    one: impl FnOnce() -> Result<A> + Send,
    other: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    let cpus = affinity::allowed();
    let pin = |cpu: Option<&usize>| cpu.copied().map_or(Ok(()), affinity::pin);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| pin(cpus.first()).map_err(Into::into).and_then(|()| one()));
        let other = scope.spawn(|| pin(cpus.last()).map_err(Into::into).and_then(|()| other()));
        let failed = "a thread without panics";
        Ok((one.join().ok().context(failed)??, other.join().ok().context(failed)??))
    })
}

/// The work of each role for one command when all lines are at hand, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) submit: f64,
    pub(crate) sequence: f64,
    /// Every byte is read.
    pub(crate) poll: f64,
}

/// Commands in flight in [`Work::measure`] take so many bytes at most: they stay in a cache.
const AT_HAND: usize = 128 << 10;
/// How often each part is done.
const REPEATS: usize = 2000;
/// Bytes of all that is submitted, at most.
const ALL: usize = 128 << 20;

impl Work {
    /// Measures on this thread alone.
    pub(crate) fn measure(batch: usize, payload: usize, pace: Pace) -> Result<Work> {
        let tickets =
            if pace == Pace::Hand { 1 } else { (AT_HAND / (payload.max(64) * batch)).clamp(1, TICKETS) };
        let (mut head, mut worker) = attach(batch, payload)?;
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..repeats(batch * payload * tickets) {
            let [submit, sequence] = head.send(tickets)?;
            times[0].push(submit);
            times[1].push(sequence);
            times[2].push(take(&mut worker, head.clock_ns)?);
        }
        let [submit, sequence, poll] = times.map(|times| typical(times) / (tickets * batch) as f64);
        Ok(Work { submit, sequence, poll })
    }

    /// Measures with the worker on another CPU, one ticket at a time, in turns: all that one writes comes to the other.
    fn measure_apart(batch: usize, payload: usize) -> Result<Work> {
        let (mut head, mut worker) = attach(batch, payload)?;
        let (turn, repeats, clock_ns) = (Turn::default(), repeats(batch * payload), head.clock_ns);
        let rounds = 0..repeats as u64;
        let (sent, poll) = apart(
            || {
                let sent = rounds.clone().map(|n| {
                    turn.wait(2 * n);
                    let times = head.send(1);
                    turn.pass(if times.is_ok() { 2 * n } else { u64::MAX - 1 });
                    times
                });
                sent.collect::<Result<Vec<_>>>()
            },
            || {
                let taken = rounds.clone().map(|n| {
                    turn.wait(2 * n + 1);
                    let time = take(&mut worker, clock_ns);
                    turn.pass(if time.is_ok() { 2 * n + 1 } else { u64::MAX - 1 });
                    time
                });
                taken.collect::<Result<Vec<_>>>()
            },
        )?;
        let each = |times: Vec<f64>| typical(times) / batch as f64;
        let (submit, sequence) = sent.into_iter().map(|[submit, sequence]| (submit, sequence)).unzip();
        Ok(Work { submit: each(submit), sequence: each(sequence), poll: each(poll) })
    }
}

fn repeats(bytes: usize) -> usize {
    REPEATS.min(ALL / bytes)
}

/// Who submits and who sequences, on one thread.
struct Head {
    producer: Producer,
    sequencer: Sequencer,
    batch: usize,
    payload: Vec<u8>,
    /// How long it takes to look at the clock.
    clock_ns: f64,
}

impl Head {
    /// Submits tickets and has a turn; how long each took.
    fn send(&mut self, tickets: usize) -> Result<[f64; 2]> {
        let commands = vec![(0, &self.payload[..]); self.batch];
        let begin = Instant::now();
        for _ in 0..tickets {
            submit(&mut self.producer, &commands)?;
        }
        let submitted = Instant::now();
        self.sequencer.poll(256)?;
        let ordered = Instant::now();
        let time = |from: Instant, to: Instant| ((to - from).as_nanos() as f64 - self.clock_ns).max(0.0);
        Ok([time(begin, submitted), time(submitted, ordered)])
    }
}

/// Submits commands with one ticket.
pub(crate) fn submit(producer: &mut Producer, commands: &[(u16, &[u8])]) -> Result<()> {
    match commands {
        [(kind, payload)] => producer.try_submit(*kind, payload).map(|_| ())?,
        _ => producer.try_submit_batch(commands).map(|_| ())?,
    }
    Ok(())
}

/// Receives all that is there, and reads every byte; how long that took.
fn take(worker: &mut Worker, clock_ns: f64) -> Result<f64> {
    let (mut sums, begin) = (0_u64, Instant::now());
    worker.poll_batch(usize::MAX, |event| sums = sums.wrapping_add(sum(event)))?;
    let time = (begin.elapsed().as_nanos() as f64 - clock_ns).max(0.0);
    std::hint::black_box(sums);
    Ok(time)
}

/// What a handler does here: it reads every byte.
pub(crate) fn sum(event: Event<'_>) -> u64 {
    let Event::Command(command) = event else { return 0 };
    command.payload.as_chunks::<8>().0.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Attaches one of each to a region that fits into a cache if the commands do.
fn attach(batch: usize, payload: usize) -> Result<(Head, Worker)> {
    let lane = (2 * AT_HAND.max(payload * batch)).next_power_of_two() as u64;
    let config = Config::new().producers(1).workers(1).lane_cells(2048).lane_bytes(lane);
    let region = Region::anonymous(&config)?;
    let mut sequencer = Sequencer::open(&region)?;
    // A hand-shake, so it takes a second thread.
    let attaching = std::thread::spawn({
        let region = region.clone();
        move || anyhow::Ok((Producer::attach(&region, "p")?, Worker::join(&region, "w")?))
    });
    while !attaching.is_finished() {
        sequencer.poll(16)?;
        std::thread::yield_now();
    }
    let (producer, mut worker) = attaching.join().ok().context("a thread without panics")??;
    while worker.poll()?.is_some() {}
    let clock_ns = typical((0..999).map(|_| Instant::now().elapsed().as_nanos() as f64).collect());
    Ok((Head { producer, sequencer, batch, payload: vec![7; payload], clock_ns }, worker))
}
