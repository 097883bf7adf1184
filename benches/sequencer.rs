//! What processor time does a command take of the sequencer, by the size of payloads and by the number of workers?
//!
//! Bursts of 8 commands, one ticket each, are queued while the sequencer stands still; then it takes one turn; then each
//! worker receives them. Measured is the processor time of the turns, freeing included, less what the clock takes: the
//! mean of many, the least of three times. `in sight`: by one producer, so the burst becomes one run; `taking turns`: by
//! two, so that each command is a run of its own. Before each burst comes a small command in a turn of its own, which is
//! not measured: large payloads take long to write, and what others on the machine did to the caches meanwhile is not
//! the sequencer's work.
//!
//! `alone`: all on one thread, and of each payload one word is written. `apart`: who writes every byte, and the workers,
//! are on another core.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use seriatim::affinity;
use seriatim::shared::thread_cpu_ns;
use seriatim::{Config, DigestOf, Event, Producer, Region, Sequencer, Worker};

const BURST: usize = 8;
const SIZES: [(&str, usize); 6] = [
    ("16 B", 16),
    ("256 B", 256),
    ("4 KiB", 4096),
    ("64 KiB", 1 << 16),
    ("1 MiB", 1 << 20),
    ("16 MiB", 16 << 20),
];
const WORKERS: [u64; 3] = [1, 4, 16];
/// Bursts at most; with those of 8 a lane's cells are freed four times.
const BURSTS: usize = 512;
/// Bytes at most that are written at a time.
const WRITTEN: usize = 1 << 30;
const TIMES: usize = 3;
/// Bursts of small commands before what is measured: each page of cells, tickets and order has been touched then.
const WARM_UP: usize = 1100;

fn main() {
    // Without it this is a check: a few bursts of each.
    let measured = std::env::args().any(|arg| arg == "--bench");
    let clock = clock_ns();
    println!(
        "processor time of the sequencer, ns for a command, in bursts of {BURST}; taken off for the clock: {clock:.0} ns"
    );
    for (how, apart) in [("alone", false), ("apart", true)] {
        for (what, producers) in [("in sight", 1), ("taking turns", 2)] {
            let row = |(_, size)| {
                WORKERS.map(|workers| {
                    Shape { producers, workers, size, apart }.measure(measured) - clock / BURST as f64
                })
            };
            print(&format!("{how}, {what}"), &SIZES.map(row));
        }
    }
}

fn print(title: &str, rows: &[[f64; WORKERS.len()]; SIZES.len()]) {
    println!("\n{title:<24}{}", WORKERS.map(|n| format!("{n:>12} w")).concat());
    for ((name, _), row) in SIZES.iter().zip(rows) {
        println!("{name:>24}{}", row.map(|ns| format!("{ns:>7.1} {:>5.2}x", ns / rows[0][0])).concat());
    }
    let spread = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, 0.0), |(low, high), ns| (ns.min(low), ns.max(high)));
        high / low
    };
    let sizes = (0..WORKERS.len()).map(|n| spread(&mut rows.iter().map(|row| row[n]))).fold(0.0, f64::max);
    let workers = rows.iter().map(|row| spread(&mut row.iter().copied())).fold(0.0, f64::max);
    println!("{:>24} by size {sizes:.2}x, by workers {workers:.2}x", "largest by smallest:");
}

/// What two looks at the clock take, one right after the other.
fn clock_ns() -> f64 {
    let looks = 10_000;
    let look = |_| {
        let before = thread_cpu_ns();
        thread_cpu_ns() - before
    };
    let once = || (0..looks).map(look).sum::<u64>() as f64 / f64::from(looks);
    (0..TIMES).map(|_| once()).fold(f64::MAX, f64::min)
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
    /// The time of the sequencer for a command, with the clock.
    fn measure(self, measured: bool) -> f64 {
        // For all sizes the same lanes, but in a check: room for two bursts of the largest.
        let largest = if measured { SIZES[SIZES.len() - 1].1 } else { self.size.max(4096) };
        let lane_bytes = (2 * BURST * largest / self.producers) as u64;
        let bursts = if self.apart { (WRITTEN / (BURST * self.size)).clamp(8, BURSTS) } else { BURSTS };
        let (times, bursts) = if measured { (TIMES, bursts) } else { (1, 2) };
        let mut spent = vec![0; times];
        let account = |burst: usize, ns| {
            if let Some(burst) = burst.checked_sub(WARM_UP) {
                spent[burst / bursts] += ns;
            }
        };
        let all = WARM_UP + times * bursts;
        let parties = self.attach(lane_bytes);
        if self.apart {
            apart(parties, all, account)
        } else {
            alone(parties, all, account)
        }
        let least = spent.into_iter().min().expect("once at least");
        least as f64 / (bursts * BURST) as f64
    }

    /// Attaching is a hand-shake, so it takes a second thread, once.
    fn attach(self, lane_bytes: u64) -> (Sequencer, Others) {
        let config = Config::new().producers(self.producers as u64 + 1).workers(self.workers);
        let config = config.lane_bytes(lane_bytes).digest(DigestOf::Header);
        let region = Region::anonymous(&config).expect("memory for a region");
        let mut sequencer = Sequencer::open(&region).expect("the only sequencer");
        let attaching = thread::spawn(move || {
            let join = |n| Worker::join(&region, &format!("w{n}")).expect("a place");
            let attach = |n| Producer::attach(&region, &format!("p{n}")).expect("a lane");
            let (workers, producers) =
                ((0..self.workers).map(join).collect(), (0..=self.producers).map(attach).collect());
            Others { producers, workers, payload: vec![7; self.size], written: self.apart }
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
    mut account: impl FnMut(usize, u64),
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
    mut account: impl FnMut(usize, u64) + Send,
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

/// The time of the turn that orders a burst, with the clock; after one that orders what comes before it.
fn turn(sequencer: &mut Sequencer) -> u64 {
    let _ = thread_cpu_ns();
    assert_eq!(sequencer.poll(1).expect("an open order").commands, 1);
    let before = thread_cpu_ns();
    let turn = sequencer.poll(256).expect("an open order");
    let spent = thread_cpu_ns() - before;
    assert_eq!(turn.commands, BURST as u64);
    spent
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
