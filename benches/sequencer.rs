//! What processor time does a command take of the sequencer, by the size of payloads and by the number of workers?
//!
//! Bursts of 16 commands, one ticket each, are queued while the sequencer stands still; then it takes one turn; then each
//! worker receives them. Measured is the processor time of the turns, freeing included: the mean of many, the least of
//! three times. `in sight`: by one producer, so the burst becomes one run; `taking turns`: by two, so that each command is
//! a run of its own. Before each burst comes a small command in a turn of its own, which is not measured: large payloads
//! take long to write, and what others on the machine did to the caches meanwhile is not the sequencer's work.
//!
//! A look at the clock can take longer than a turn. So before each turn the clock is looked at twice in a row, and what
//! lies between is taken off, in the same way: the mean, the least. By how much that differs between the three times is what the
//! clock cannot tell: what is less is printed as `<` that, and a ratio to it is none.
//!
//! `alone`: all on one thread, and of each payload one word is written. `apart`: who writes every byte, and the workers,
//! are on another core.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use seriatim::affinity;
use seriatim::shared::thread_cpu_ns;
use seriatim::{Config, DigestOf, Event, Producer, Region, Sequencer, Worker};

const BURST: usize = 16;
const SIZES: [(&str, usize); 6] = [
    ("16 B", 16),
    ("256 B", 256),
    ("4 KiB", 4096),
    ("64 KiB", 1 << 16),
    ("1 MiB", 1 << 20),
    ("16 MiB", 16 << 20),
];
const WORKERS: [u64; 3] = [1, 4, 16];
/// Bursts at most; a lane's cells are freed eight times by these.
const BURSTS: usize = 512;
/// Bursts at least.
const FEW: usize = 4;
/// Bytes at most that are written at a time.
const WRITTEN: usize = 1 << 30;
const TIMES: usize = 3;
/// Size of a payload at most in a check: larger lanes take long to map.
const CHECKED: usize = 1 << 20;
/// Bursts of small commands before what is measured: each page of cells, tickets and order has been touched then.
const WARM_UP: usize = 560;

fn main() {
    // Without it this is a check: a burst of each, of which a word is written, in lanes that are mapped soon.
    let measured = std::env::args().any(|arg| arg == "--bench");
    println!("processor time of the sequencer, ns for a command, in bursts of {BURST}");
    if !measured {
        println!("of one burst each, up to 1 MiB: a check, whose figures say nothing");
    }
    let mut clock = (f64::MAX, 0.0_f64);
    for (how, apart) in [("alone", false), ("apart", true)] {
        for (what, producers) in [("in sight", 1), ("taking turns", 2)] {
            let row = |(_, size): (_, usize)| {
                let size = if measured { size } else { size.min(CHECKED) };
                WORKERS.map(|workers| Shape { producers, workers, size, apart }.measure(measured))
            };
            let rows = SIZES.map(row);
            print(&format!("{how}, {what}"), &rows);
            let looks = rows.iter().flatten().map(|cost| cost.look);
            clock = looks.fold(clock, |(low, high), ns| (low.min(ns), high.max(ns)));
        }
    }
    println!("\ntaken off for the clock: {:.0} to {:.0} ns a turn", clock.0, clock.1);
}

/// What a command takes of the sequencer, in nanoseconds.
#[derive(Clone, Copy)]
struct Cost {
    ns: f64,
    /// Less than that the clock cannot tell.
    least: f64,
    /// What a look at the clock took, which is taken off.
    look: f64,
}

impl Cost {
    /// Of so many bursts, each time.
    fn of(times: &[Spent], bursts: usize) -> Cost {
        let range = |of: fn(&Spent) -> u64| {
            let all = || times.iter().map(of);
            (all().min().unwrap_or(0) as f64, all().max().unwrap_or(0) as f64)
        };
        let ((turns, _), (look, longest)) = (range(|spent| spent.turns), range(|spent| spent.looks));
        let commands = (bursts * BURST) as f64;
        // It counts in nanoseconds.
        let least = ((longest - look) / commands).max(1.0 / BURST as f64);
        Cost { ns: (turns - look) / commands, least, look: look / bursts as f64 }
    }

    fn is_told(self) -> bool {
        self.ns > self.least
    }

    fn text(self) -> String {
        if self.is_told() { format!("{:.1}", self.ns) } else { format!("<{:.1}", self.least.max(0.1)) }
    }

    /// How many times as much as another, where both are told.
    fn by(self, other: Cost) -> Option<f64> {
        (self.is_told() && other.is_told()).then(|| self.ns / other.ns)
    }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |ratio| format!("{ratio:.2}x"))
}

fn print(title: &str, rows: &[[Cost; WORKERS.len()]; SIZES.len()]) {
    println!("\n{title:<24}{}", WORKERS.map(|n| format!("{n:>12} w")).concat());
    for ((name, _), row) in SIZES.iter().zip(rows) {
        let cells = row.map(|cost| format!("{:>7} {:>6}", cost.text(), times(cost.by(rows[0][0]))));
        println!("{name:>24}{}", cells.concat());
    }
    let spread = |costs: Vec<Cost>| {
        let order = |a: &Cost, b: &Cost| a.ns.total_cmp(&b.ns);
        let (low, high) =
            (*costs.iter().min_by(|a, b| order(a, b))?, *costs.iter().max_by(|a, b| order(a, b))?);
        high.by(low)
    };
    // None where one of them is not told.
    let largest = |spreads: Vec<Option<f64>>| {
        spreads.into_iter().collect::<Option<Vec<_>>>().map(|all| all.into_iter().fold(0.0, f64::max))
    };
    let sizes =
        largest((0..WORKERS.len()).map(|n| spread(rows.iter().map(|row| row[n]).collect())).collect());
    let workers = largest(rows.iter().map(|row| spread(row.to_vec())).collect());
    println!("{:>24} by size {}, by workers {}", "largest by smallest:", times(sizes), times(workers));
}

/// What was spent on some turns, and on as many looks at the clock.
#[derive(Clone, Copy, Default)]
struct Spent {
    turns: u64,
    looks: u64,
}

#[derive(Clone, Copy)]
struct Shape {
    producers: usize,
    workers: u64,
    size: usize,
    /// Others are on another core, and write every byte.
    apart: bool,
}

impl Shape {
    fn measure(self, measured: bool) -> Cost {
        // For all sizes the same lanes, but in a check: room for two bursts of the largest.
        let largest = if measured { SIZES[SIZES.len() - 1].1 } else { self.size.max(4096) };
        let lane_bytes = (2 * BURST * largest / self.producers) as u64;
        let bursts = if self.apart { (WRITTEN / (BURST * self.size)).clamp(FEW, BURSTS) } else { BURSTS };
        let (times, bursts) = if measured { (TIMES, bursts) } else { (1, 1) };
        let mut spent = vec![Spent::default(); times];
        let account = |burst: usize, turn: Spent| {
            if let Some(burst) = burst.checked_sub(WARM_UP) {
                let all = &mut spent[burst / bursts];
                (all.turns, all.looks) = (all.turns + turn.turns, all.looks + turn.looks);
            }
        };
        let all = WARM_UP + times * bursts;
        let parties = self.attach(lane_bytes, measured);
        if self.apart {
            apart(parties, all, account)
        } else {
            alone(parties, all, account)
        }
        Cost::of(&spent, bursts)
    }

    /// Attaching is a hand-shake, so it takes a second thread, once.
    fn attach(self, lane_bytes: u64, measured: bool) -> (Sequencer, Others) {
        let config = Config::new().producers(self.producers as u64 + 1).workers(self.workers);
        let config = config.lane_bytes(lane_bytes).digest(DigestOf::Header);
        let region = Region::anonymous(&config).expect("memory for a region");
        let mut sequencer = Sequencer::open(&region).expect("the only sequencer");
        let attaching = thread::spawn(move || {
            let join = |n| Worker::join(&region, &format!("w{n}")).expect("a place");
            let attach = |n| Producer::attach(&region, &format!("p{n}")).expect("a lane");
            let (workers, producers) =
                ((0..self.workers).map(join).collect(), (0..=self.producers).map(attach).collect());
            Others { producers, workers, payload: vec![7; self.size], written: self.apart && measured }
        });
        while !attaching.is_finished() {
            sequencer.poll(16).expect("an open order");
            thread::yield_now();
        }
        (sequencer, attaching.join().expect("no panic"))
    }
}

fn alone(
    (mut sequencer, mut others): (Sequencer, Others),
    bursts: usize,
    mut account: impl FnMut(usize, Spent),
) {
    for burst in 0..bursts {
        others.queue(burst);
        account(burst, turn(&mut sequencer));
        others.receive();
    }
}

fn apart(
    (mut sequencer, mut others): (Sequencer, Others),
    bursts: usize,
    mut account: impl FnMut(usize, Spent) + Send,
) {
    let cpus = affinity::allowed();
    // Where it is not possible they share one.
    let pin = |n: usize| cpus.get(n).is_some_and(|cpu| affinity::pin(*cpu).is_ok());
    // Whose turn it is: even, theirs; odd, the sequencer's.
    let step = AtomicUsize::new(0);
    let wait_for = |mine| {
        while step.load(Ordering::Acquire) != mine {
            // Not to leave the core, and the caches, to somebody else.
            if cpus.len() > 1 { std::hint::spin_loop() } else { thread::yield_now() }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for burst in 0..bursts {
                wait_for(2 * burst);
                others.receive();
                others.queue(burst);
                step.store(2 * burst + 1, Ordering::Release);
            }
        });
        scope.spawn(|| {
            pin(0);
            for burst in 0..bursts {
                wait_for(2 * burst + 1);
                account(burst, turn(&mut sequencer));
                step.store(2 * burst + 2, Ordering::Release);
            }
        });
    });
}

/// The turn that orders a burst, after one that orders what comes before it: its time with the clock, and the clock's.
fn turn(sequencer: &mut Sequencer) -> Spent {
    let _ = thread_cpu_ns();
    assert_eq!(sequencer.poll(1).expect("an open order").commands, 1);
    let look = thread_cpu_ns();
    let before = thread_cpu_ns();
    let turn = sequencer.poll(256).expect("an open order");
    let after = thread_cpu_ns();
    assert_eq!(turn.commands, BURST as u64);
    Spent { turns: after - before, looks: before - look }
}

/// Everybody but the sequencer.
struct Others {
    /// The last one's command comes before a burst.
    producers: Vec<Producer>,
    workers: Vec<Worker>,
    payload: Vec<u8>,
    written: bool,
}

impl Others {
    fn queue(&mut self, burst: usize) {
        let (first, producers) = self.producers.split_last_mut().expect("two at least");
        first.try_submit(0, &[7; 8]).expect("room");
        let len = if burst < WARM_UP { 8 } else { self.payload.len() };
        let (count, written) = (producers.len(), if self.written { len } else { 8 });
        for n in 0..BURST {
            let mut claim = producers[n % count].try_claim(0, len).expect("room");
            claim[..written].copy_from_slice(&self.payload[..written]);
            claim.commit().expect("an open order");
        }
    }

    fn receive(&mut self) {
        for worker in &mut self.workers {
            let take = |event: Event<'_>| {
                if let Event::Command(command) = event {
                    assert_eq!(command.payload[0], 7);
                }
            };
            while worker.poll_batch(BURST, take).expect("a whole order") > 0 {}
        }
    }
}
