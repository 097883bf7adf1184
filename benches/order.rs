//! What does a command cost the sequencer, and what a worker?
//!
//! `order/in_sight/N`: one producer, N commands a ticket; tickets of one lane that are in sight become one run.
//! `order/taking_turns/N`: two producers whose tickets alternate, so that each ticket is a run of its own.
//! `order/size/…`: as `taking_turns/1`, by the size of the payload, which the sequencer never reads; but on one
//! thread the producers' copies drive its tickets out of the nearest cache. Measured are the sequencer's turns:
//! ordering, waking nobody, and freeing. `deliver/…` is a worker's part: finding, checking and folding each command,
//! and here adding up its words. Everything is driven by hand on one thread.

mod common;

use std::time::Duration;

use common::{ByHand, SIZES};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Throughput};

fn main() {
    let mut criterion = common::criterion();
    let mut group = criterion.benchmark_group("order");
    group.throughput(Throughput::Elements(1));
    for batch in [1, 4, 32] {
        bench(&mut group, BenchmarkId::new("in_sight", batch), Part::Sequencer, 1, batch, 32);
        bench(&mut group, BenchmarkId::new("taking_turns", batch), Part::Sequencer, 2, batch, 32);
    }
    for (name, size) in SIZES {
        bench(&mut group, BenchmarkId::new("size", name), Part::Sequencer, 2, 1, size);
    }
    group.finish();
    let mut group = criterion.benchmark_group("deliver");
    group.throughput(Throughput::Elements(1));
    for (name, size) in SIZES {
        bench(&mut group, BenchmarkId::from_parameter(name), Part::Worker, 1, 1, size);
    }
    group.finish();
    criterion.final_summary();
}

/// Whose part of the way is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Sequencer,
    Worker,
}

/// Measures a part for commands of `size` bytes, `batch` a ticket, by so many producers in turn.
fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    part: Part,
    producers: usize,
    batch: u64,
    size: usize,
) {
    let mut rig = None;
    group.bench_function(id, |bencher| {
        let rig = rig.get_or_insert_with(|| ByHand::new(producers, size));
        bencher.iter_custom(|commands| {
            let (mut ordering, mut delivering) = (Duration::ZERO, Duration::ZERO);
            let mut left = commands.next_multiple_of(batch);
            let submitted = left;
            while left > 0 {
                // The order ring has room for this many runs.
                let round = left.min(rig.round().min(512).next_multiple_of(batch));
                ordering += rig.make_room();
                for n in 0..round / batch {
                    rig.with(n as usize % producers, |producer, source| {
                        let commands = &source.batch(batch as usize)[..batch as usize];
                        producer.try_submit_batch(commands).expect("room");
                    });
                }
                ordering += rig.order();
                delivering += rig.drain();
                left -= round;
            }
            let took = if part == Part::Sequencer { ordering } else { delivering };
            took.mul_f64(commands as f64 / submitted as f64)
        });
    });
}
