//! How fast does one order reach every worker, and how soon?
//!
//! `throughput/PxW/SIZE`: P producers submit as fast as there is room, each of W workers receives everything in one
//! order and reads every byte; an element is a command. `ping/PxW/SIZE`: one command at a time, from before its
//! submit until all W workers have read it. Each party has a thread of its own, also where there are more of them
//! than CPUs; everyone waits by yielding (the channels: as their blocking calls do).
//!
//! Beside Seriatim, on the same harness: `rtrb`, a ring of bytes for each producer, a thread that fixes the order
//! and copies, a ring of bytes for each worker; `crossbeam`, the same with bounded channels and one `Arc` for each
//! command. `base/copy` is what one copy of the payload costs, `base/barrier` what a job without work costs.

mod common;

use std::sync::Arc;
use std::thread;

use common::{Crew, Job, Receive, SIZES, Send, Source, batch, relax};
use criterion::{BenchmarkId, Criterion, Throughput};
use seriatim::{
    AttachOptions, Config, Event, JoinOptions, Producer, Region, Sequencer, SequencerConfig, Wait, Worker,
};

const SHAPES: [(&str, usize, usize); 2] = [("1x1", 1, 1), ("2x4", 2, 4)];

/// Makes the two kinds of ends: producers, workers, payload bytes.
type Ends = fn(usize, usize, usize) -> (Vec<Send>, Vec<Receive>);
const TRANSPORTS: [(&str, Ends); 4] = [
    ("seriatim", |producers, workers, size| seriatim(producers, workers, size, false)),
    ("seriatim assisted", |producers, workers, size| seriatim(producers, workers, size, true)),
    ("rtrb", rtrb),
    ("crossbeam", crossbeam),
];

fn main() {
    let mut criterion = common::criterion();
    for (shape, producers, workers) in SHAPES {
        for (size_name, size) in SIZES {
            let name = format!("throughput/{shape}/{size_name}");
            group(&mut criterion, &name, Job::Throughput, (producers, workers, size));
        }
        group(&mut criterion, &format!("ping/{shape}/32 B"), Job::Ping, (producers, workers, 32));
    }
    bases(&mut criterion);
    criterion.final_summary();
}

fn group(criterion: &mut Criterion, name: &str, job: Job, (producers, workers, size): (usize, usize, usize)) {
    let mut group = criterion.benchmark_group(name);
    if job == Job::Throughput {
        group.throughput(Throughput::Elements(1));
    }
    for (transport, ends) in TRANSPORTS {
        let mut crew = None;
        group.bench_function(transport, |bencher| {
            let crew = crew.get_or_insert_with(|| {
                let (senders, receivers) = ends(producers, workers, size);
                Crew::start(job, size, senders, receivers)
            });
            bencher.iter_custom(|commands| crew.run(commands));
        });
    }
    group.finish();
}

fn bases(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("base");
    for (name, size) in SIZES {
        let mut lane = vec![0u8; lane_bytes(size)];
        let (mut source, mut at) = (Source::new(0, size), 0);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("copy", name), |bencher| {
            bencher.iter(|| {
                lane[at..at + size].copy_from_slice(source.payload());
                std::hint::black_box(&mut lane);
                at = (at + size) & (lane.len() - 1);
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    let mut crew = None;
    group.bench_function("barrier", |bencher| {
        let crew = crew.get_or_insert_with(|| {
            Crew::start(Job::Throughput, 32, vec![Box::new(|_, _| {})], vec![Box::new(|_, _| {})])
        });
        bencher.iter_custom(|jobs| (0..jobs).map(|_| crew.run(1)).sum());
    });
    group.finish();
}

/// Bytes that each producer can have outstanding, for all transports alike: 2 MiB of payload, or 4,096 commands.
fn lane_bytes(size: usize) -> usize {
    (4096 * size).min(2 << 20)
}

/// Calls `submit` with batch after batch until `commands` are done.
fn in_batches(commands: u64, most: usize, mut submit: impl FnMut(usize)) {
    let mut left = commands;
    while left > 0 {
        let count = left.min(most as u64) as usize;
        submit(count);
        left -= count as u64;
    }
}

// ---- Seriatim ---------------------------------------------------------------------------------------------

fn seriatim(producers: usize, workers: usize, size: usize, assist: bool) -> (Vec<Send>, Vec<Receive>) {
    let config = Config::new()
        .producers(producers as u64)
        .workers(workers as u64)
        .lane_bytes(lane_bytes(size).next_power_of_two() as u64);
    let region = Region::anonymous(&config).expect("memory for a region");
    let sequencer =
        Sequencer::spawn(&region, SequencerConfig::new().wait(Wait::Yield).assist(assist)).expect("a thread");
    // It serves until the last of the crew is gone.
    let sequencer = Arc::new(sequencer);
    let receivers = (0..workers).map(|w| {
        let options = JoinOptions::new().wait(Wait::Yield);
        let mut worker = Worker::join_with(&region, &format!("w{w}"), &options).expect("a place");
        let receive: Receive = Box::new(move |receipt, commands| {
            let mut left = commands;
            while left > 0 {
                let handle = |event: Event<'_>| {
                    if let Event::Command(command) = event {
                        receipt.take(command.payload);
                        left -= 1;
                    }
                };
                worker.recv_batch(256, None, handle).expect("a whole order");
            }
            // What was lent last is done with: nothing is left to gate.
            while worker.poll().expect("a whole order").is_some() {}
        });
        receive
    });
    let receivers = receivers.collect();
    let senders = (0..producers).map(|p| {
        let options = AttachOptions::new().wait(Wait::Yield);
        let mut producer = Producer::attach_with(&region, &format!("p{p}"), &options).expect("a lane");
        let serving = Arc::clone(&sequencer);
        let send: Send = Box::new(move |source, commands| {
            assert!(!serving.is_finished());
            in_batches(commands, batch(size), |count| {
                producer.submit_batch(&source.batch(count)[..count]).expect("an open order");
            });
        });
        send
    });
    (senders.collect(), receivers)
}

// ---- rings of bytes ---------------------------------------------------------------------------------------

fn rtrb(producers: usize, workers: usize, size: usize) -> (Vec<Send>, Vec<Receive>) {
    let ring = || rtrb::RingBuffer::<u8>::new(lane_bytes(size));
    let (to_order, mut from_producers): (Vec<_>, Vec<_>) = (0..producers).map(|_| ring()).unzip();
    let (mut to_workers, from_order): (Vec<_>, Vec<_>) = (0..workers).map(|_| ring()).unzip();
    thread::spawn(move || {
        let mut looks = 0;
        while !from_producers.iter().all(rtrb::Consumer::is_abandoned) {
            let mut news = false;
            for from in &mut from_producers {
                let room = to_workers.iter().map(rtrb::Producer::slots).min().unwrap_or(0);
                let whole = from.slots().min(room) / size * size;
                let Ok(chunk) = from.read_chunk(whole) else { continue };
                let (first, second) = chunk.as_slices();
                for to in &mut to_workers {
                    to.push_entire_slice(first).expect("room");
                    to.push_entire_slice(second).expect("room");
                }
                chunk.commit_all();
                news |= whole > 0;
            }
            if news { looks = 0 } else { relax(&mut looks) }
        }
    });
    let senders = to_order.into_iter().map(|mut to| {
        let send: Send = Box::new(move |source, commands| {
            in_batches(commands, 1, |_| {
                let (payload, mut looks) = (source.payload(), 0);
                while to.push_entire_slice(payload).is_err() {
                    relax(&mut looks);
                }
            });
        });
        send
    });
    let receivers = from_order.into_iter().map(|mut from| {
        let receive: Receive = Box::new(move |receipt, commands| {
            let (mut left, mut looks) = (commands, 0);
            while left > 0 {
                let there = (from.slots() / size).min(left as usize);
                let Ok(chunk) = from.read_chunk(there * size) else { continue };
                // The ring is a multiple of the payloads, so none of them wraps.
                let (first, second) = chunk.as_slices();
                first.chunks_exact(size).chain(second.chunks_exact(size)).for_each(|p| receipt.take(p));
                chunk.commit_all();
                left -= there as u64;
                if there > 0 { looks = 0 } else { relax(&mut looks) }
            }
        });
        receive
    });
    (senders.collect(), receivers.collect())
}

// ---- channels ---------------------------------------------------------------------------------------------

fn crossbeam(producers: usize, workers: usize, size: usize) -> (Vec<Send>, Vec<Receive>) {
    let outstanding = lane_bytes(size) / size;
    let channel = || crossbeam_channel::bounded::<Arc<[u8]>>(outstanding);
    let (to_order, from_producers) = channel();
    let (to_workers, from_order): (Vec<_>, Vec<_>) = (0..workers).map(|_| channel()).unzip();
    thread::spawn(move || {
        // Ends when the last producer is gone.
        for payload in from_producers {
            let delivered = to_workers.iter().all(|to| to.send(Arc::clone(&payload)).is_ok());
            if !delivered {
                return;
            }
        }
    });
    let senders = (0..producers).map(|_| {
        let to = to_order.clone();
        let send: Send = Box::new(move |source, commands| {
            in_batches(commands, 1, |_| to.send(Arc::from(source.payload())).expect("an open channel"));
        });
        send
    });
    let receivers = from_order.into_iter().map(|from| {
        let receive: Receive = Box::new(move |receipt, commands| {
            (0..commands).for_each(|_| receipt.take(&from.recv().expect("an open channel")));
        });
        receive
    });
    (senders.collect(), receivers.collect())
}
