//! What does a submit cost its producer?
//!
//! `submit/single`: a copy, a digest and a ticket for each command. `submit/batch`: one ticket for 32 commands of
//! 32 B, for 4 of 4 KiB. `submit/claim`: written in place (here: the first word alone, the rest is there already), so
//! of the payload only the digest is left. `submit_base` is copy and digest alone: the parts that no submit can do
//! without. Sequencer and worker are driven by hand on the same thread between the measured parts, and there is
//! always room.

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{ByHand, SIZES, Source};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use seriatim::Producer;

fn main() {
    let mut criterion = common::criterion();
    submits(&mut criterion);
    bases(&mut criterion);
    criterion.final_summary();
}

fn submits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("submit");
    for (name, size) in SIZES {
        group.throughput(Throughput::Elements(1));
        bench(&mut group, "single", name, size, 1, |producer, source| {
            producer.try_submit(0, source.payload()).expect("room");
        });
        bench(&mut group, "claim", name, size, 1, |producer, source| {
            let mut claim = producer.try_claim(0, size).expect("room");
            claim[..8].copy_from_slice(&source.payload()[..8]);
            claim.commit().expect("an open order");
        });
        let each = common::batch(size);
        if each > 1 {
            bench(&mut group, "batch", name, size, each as u64, |producer, source| {
                producer.try_submit_batch(&source.batch(each)[..each]).expect("room");
            });
        }
    }
    group.finish();
}

/// Measures `submit`, which submits `each` commands at a time.
fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    what: &str,
    name: &str,
    size: usize,
    each: u64,
    submit: impl Fn(&mut Producer, &mut Source),
) {
    let mut rig = None;
    group.bench_function(BenchmarkId::new(what, name), |bencher| {
        let rig = rig.get_or_insert_with(|| ByHand::new(1, size));
        bencher.iter_custom(|commands| {
            let mut took = Duration::ZERO;
            // Whole batches, in proportion to what was asked for.
            let mut left = commands.next_multiple_of(each);
            let submitted = left;
            while left > 0 {
                let round = left.min(rig.round().next_multiple_of(each));
                rig.make_room();
                took += rig.with(0, |producer, source| {
                    let begin = Instant::now();
                    (0..round / each).for_each(|_| submit(producer, source));
                    begin.elapsed()
                });
                rig.order();
                rig.drain();
                left -= round;
            }
            took.mul_f64(commands as f64 / submitted as f64)
        });
    });
}

fn bases(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("submit_base");
    for (name, size) in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        // As a lane is: much larger than the payload, and written round and round.
        let mut lane = vec![0u8; 4 << 20];
        let mut source = Source::new(0, size);
        let mut at = 0;
        group.bench_function(BenchmarkId::new("copy", name), |bencher| {
            bencher.iter(|| {
                lane[at..at + size].copy_from_slice(source.payload());
                black_box(&mut lane);
                at = (at + size) & (lane.len() - 1);
            });
        });
        group.bench_function(BenchmarkId::new("digest", name), |bencher| {
            bencher.iter(|| seriatim::payload_digest(black_box(source.payload())));
        });
    }
    group.finish();
}
