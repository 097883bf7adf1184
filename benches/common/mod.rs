//! The harness of the benches: payloads that prove themselves, a region driven by hand, and a crew of threads.
#![allow(dead_code, reason = "each bench uses its part of it")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use criterion::Criterion;
use seriatim::{Config, Event, Producer, Region, Sequencer, SubmitError, Worker};

/// The payload sizes of all benches: in a cell, a page, and large.
pub(crate) const SIZES: [(&str, usize); 3] = [("32 B", 32), ("4 KiB", 4096), ("64 KiB", 65_536)];

/// Short measurements: what they are for is seen within a second each.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .sample_size(10)
        .configure_from_args()
}

// ---- payloads ---------------------------------------------------------------------------------------------

/// What one producer submits: word 0 is `producer << 48 | index`, the others never change.
///
/// There are twice as many buffers as a batch has commands, and word 0 is written that far ahead: whoever reads a
/// payload does not wait for the store of its first word.
pub(crate) struct Source {
    payloads: Vec<Vec<u8>>,
    producer: u64,
    next: u64,
}

/// Most commands of a batch.
pub(crate) const BATCH: usize = 32;

/// Commands that go at once where a transport can do that: about 16 KiB of them.
pub(crate) fn batch(size: usize) -> usize {
    (16_384 / size).clamp(1, BATCH)
}

fn word(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Source {
    pub(crate) fn new(producer: usize, size: usize) -> Source {
        let bytes = || (0..size as u64 / 8).flat_map(|i| word(i).to_le_bytes()).collect();
        let payloads: Vec<_> = (0..2 * batch(size)).map(|_| bytes()).collect();
        let mut source = Source { payloads, producer: (producer as u64) << 48, next: 0 };
        (0..batch(size) as u64).for_each(|index| source.mark(index));
        source
    }

    /// The next payload.
    #[inline]
    pub(crate) fn payload(&mut self) -> &[u8] {
        let at = self.take(1);
        &self.payloads[at]
    }

    /// The next `count` payloads, at most a batch, with their kind: the rest of the array is empty.
    #[inline]
    pub(crate) fn batch(&mut self, count: usize) -> [(u16, &[u8]); BATCH] {
        let (at, mask) = (self.take(count), self.payloads.len() - 1);
        std::array::from_fn(|i| (0, if i < count { &self.payloads[(at + i) & mask][..] } else { &[][..] }))
    }

    /// Where the next `count` payloads begin; marks as many that come a batch later.
    #[inline]
    fn take(&mut self, count: usize) -> usize {
        let (first, ahead) = (self.next, self.payloads.len() as u64 / 2);
        self.next += count as u64;
        (first + ahead..self.next + ahead).for_each(|index| self.mark(index));
        first as usize & (self.payloads.len() - 1)
    }

    #[inline]
    fn mark(&mut self, index: u64) {
        let at = index as usize & (self.payloads.len() - 1);
        self.payloads[at][..8].copy_from_slice(&(self.producer | index).to_le_bytes());
    }
}

/// What one worker received: reads every byte, and checks each producer's order and the contents.
pub(crate) struct Receipt {
    next: Vec<u64>,
    expected: u64,
    /// Depends on all that was received, and on the order.
    pub(crate) hash: u64,
}

impl Receipt {
    pub(crate) fn new(producers: usize, size: usize) -> Receipt {
        let expected = (1..size as u64 / 8).map(word).fold(0, u64::wrapping_add);
        Receipt { next: (0..producers as u64).map(|p| p << 48).collect(), expected, hash: 0 }
    }

    #[inline]
    pub(crate) fn take(&mut self, payload: &[u8]) {
        let (words, _) = payload.as_chunks::<8>();
        let tag = u64::from_le_bytes(words[0]);
        let sum = words[1..].iter().map(|w| u64::from_le_bytes(*w)).fold(0, u64::wrapping_add);
        let next = &mut self.next[(tag >> 48) as usize];
        assert!(tag == *next && sum == self.expected, "not what was submitted next");
        *next += 1;
        self.hash = (self.hash.rotate_left(5) ^ tag).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

// ---- a region on one thread -------------------------------------------------------------------------------

/// A region whose parties are all driven by hand, on the thread that measures: nobody waits for anybody, so the
/// numbers are those of the work alone.
pub(crate) struct ByHand {
    pub(crate) sequencer: Sequencer,
    pub(crate) producers: Vec<Producer>,
    sources: Vec<Source>,
    worker: Worker,
    receipt: Receipt,
    received: u64,
    size: usize,
}

impl ByHand {
    pub(crate) fn new(producers: usize, size: usize) -> ByHand {
        let config = Config::new().producers(producers as u64).workers(1);
        let region = Region::anonymous(&config).expect("memory for a region");
        let mut sequencer = Sequencer::open(&region).expect("the only sequencer");
        // Attaching is a hand-shake, so it takes a second thread, once.
        let attaching = thread::spawn(move || {
            let worker = Worker::join(&region, "w").expect("a place");
            let attach = |p| Producer::attach(&region, &format!("p{p}")).expect("a lane");
            (worker, (0..producers).map(attach).collect())
        });
        while !attaching.is_finished() {
            sequencer.poll(16).expect("an open order");
            thread::yield_now();
        }
        let (worker, attached) = attaching.join().expect("no panic");
        let mut this = ByHand {
            sequencer,
            producers: attached,
            sources: (0..producers).map(|p| Source::new(p, size)).collect(),
            worker,
            receipt: Receipt::new(producers, size),
            received: 0,
            size,
        };
        this.check();
        this
    }

    /// It works before it is measured; and every byte of the lanes has been written once by a whole payload, which
    /// a claim that writes its tag alone relies on.
    fn check(&mut self) {
        let count = 5 * self.round() * self.producers.len() as u64;
        for n in 0..count {
            self.make_room();
            let producer = n as usize % self.producers.len();
            self.with(producer, |producer, source| producer.try_submit(0, source.payload()).expect("room"));
            self.order();
            self.drain();
        }
        assert_eq!(self.received, count);
    }

    /// How many commands of one producer are outstanding at most: a quarter of its lane.
    pub(crate) fn round(&self) -> u64 {
        let bytes = if self.size > 40 { (4 << 20) / self.size } else { 4096 };
        (bytes / 4).min(1024) as u64
    }

    pub(crate) fn with<T>(
        &mut self,
        producer: usize,
        submit: impl FnOnce(&mut Producer, &mut Source) -> T,
    ) -> T {
        submit(&mut self.producers[producer], &mut self.sources[producer])
    }

    /// Orders all that is queued; returns how long that took.
    pub(crate) fn order(&mut self) -> Duration {
        let begin = Instant::now();
        while self.sequencer.poll(256).expect("an open order").commands > 0 {}
        begin.elapsed()
    }

    /// The worker takes all that is ordered; returns how long that took.
    pub(crate) fn drain(&mut self) -> Duration {
        let begin = Instant::now();
        while let Some(event) = self.worker.poll().expect("a whole order") {
            if let Event::Command(command) = event {
                self.receipt.take(command.payload);
                self.received += 1;
            }
        }
        begin.elapsed()
    }

    /// Half of every lane is free, and its producer knows it; returns how long the sequencer took to free it.
    pub(crate) fn make_room(&mut self) -> Duration {
        let mut took = Duration::ZERO;
        for producer in &mut self.producers {
            let half = producer.max_payload();
            while let Err(why) = producer.try_claim(0, half).map(drop) {
                assert!(matches!(why, SubmitError::Full(_)), "{why}");
                let begin = Instant::now();
                self.sequencer.poll(1).expect("an open order");
                took += begin.elapsed();
            }
        }
        took
    }
}

// ---- a crew of threads ------------------------------------------------------------------------------------

/// Submits so many commands.
pub(crate) type Send = Box<dyn FnMut(&mut Source, u64) + std::marker::Send>;
/// Receives so many.
pub(crate) type Receive = Box<dyn FnMut(&mut Receipt, u64) + std::marker::Send>;

/// What a crew does with a number of commands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// As fast as it goes.
    Throughput,
    /// One at a time: the next is submitted when all workers have the one before.
    Ping,
}

/// Producers and workers on threads of their own, started once and released by a barrier for each measurement.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    workers: usize,
}

struct Shared {
    barrier: Barrier,
    /// Commands of the next job; 0 ends the crew.
    commands: AtomicU64,
    /// Commands that workers received in this job, for pings.
    received: AtomicU64,
    /// What the workers have seen.
    hashes: Vec<AtomicU64>,
}

impl Crew {
    /// Starts the threads, and runs a small job for a check.
    pub(crate) fn start(job: Job, size: usize, senders: Vec<Send>, receivers: Vec<Receive>) -> Crew {
        let (producers, workers) = (senders.len(), receivers.len());
        let shared = Arc::new(Shared {
            barrier: Barrier::new(producers + workers + 1),
            commands: AtomicU64::new(0),
            received: AtomicU64::new(0),
            hashes: (0..workers).map(|_| AtomicU64::new(0)).collect(),
        });
        let mut threads = Vec::new();
        for (number, mut send) in senders.into_iter().enumerate() {
            let (shared, mut source) = (Arc::clone(&shared), Source::new(number, size));
            threads.push(thread::spawn(move || {
                while let Some(commands) = shared.next_job() {
                    let mine = (number as u64..commands).step_by(producers);
                    match job {
                        Job::Throughput => send(&mut source, mine.count() as u64),
                        Job::Ping => mine.for_each(|n| {
                            shared.await_received(n * workers as u64);
                            send(&mut source, 1);
                        }),
                    }
                    shared.barrier.wait();
                }
            }));
        }
        for (number, mut receive) in receivers.into_iter().enumerate() {
            let (shared, mut receipt) = (Arc::clone(&shared), Receipt::new(producers, size));
            threads.push(thread::spawn(move || {
                while let Some(commands) = shared.next_job() {
                    match job {
                        Job::Throughput => receive(&mut receipt, commands),
                        Job::Ping => (0..commands).for_each(|_| {
                            receive(&mut receipt, 1);
                            shared.received.fetch_add(1, Ordering::Release);
                        }),
                    }
                    shared.hashes[number].store(receipt.hash, Ordering::Relaxed);
                    shared.barrier.wait();
                }
            }));
        }
        let mut crew = Crew { shared, threads, workers };
        crew.run(1000);
        crew
    }

    /// How long it takes until every worker has received `commands` commands, in one order.
    pub(crate) fn run(&mut self, commands: u64) -> Duration {
        self.shared.commands.store(commands, Ordering::Relaxed);
        self.shared.received.store(0, Ordering::Relaxed);
        self.shared.barrier.wait();
        let begin = Instant::now();
        self.shared.barrier.wait();
        let took = begin.elapsed();
        let hashes: Vec<_> = self.shared.hashes.iter().map(|hash| hash.load(Ordering::Relaxed)).collect();
        assert!(hashes.iter().all(|&hash| hash == hashes[0]), "{} workers, several orders", self.workers);
        took
    }
}

impl Shared {
    fn next_job(&self) -> Option<u64> {
        self.barrier.wait();
        Some(self.commands.load(Ordering::Relaxed)).filter(|&commands| commands > 0)
    }

    fn await_received(&self, count: u64) {
        let mut looks = 0;
        while self.received.load(Ordering::Acquire) < count {
            relax(&mut looks);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        if thread::panicking() {
            // The threads may wait for one that is gone; the process ends anyway.
            return;
        }
        self.shared.commands.store(0, Ordering::Relaxed);
        self.shared.barrier.wait();
        for thread in self.threads.drain(..) {
            thread.join().expect("a crew without panics");
        }
    }
}

/// One step of waiting as everyone here waits: some pauses, then the core is left to others.
#[inline]
pub(crate) fn relax(looks: &mut u32) {
    *looks += 1;
    if *looks < 64 { std::hint::spin_loop() } else { thread::yield_now() }
}
