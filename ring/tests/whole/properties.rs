//! Random calls of all parties against the oracle of [`crate::world`], with rings so small that everything wraps,
//! and positions that begin just below where they wrap.

use crate::memory::{Memory, Origin, Size};
use crate::world::{Op, Steady, World};
use proptest::prelude::*;

fn size() -> impl Strategy<Value = Size> {
    let power = |low: u32, high: u32| (low..=high).prop_map(|n| 1usize << n);
    let rings = (power(1, 3), power(1, 3), prop_oneof![Just(64usize), Just(128), Just(256), Just(1024)]);
    (rings, 1usize..=3, 1usize..=3, power(1, 3)).prop_map(
        |((order_slots, lane_cells, lane_bytes), producers, workers, own_cells)| Size {
            order_slots,
            tickets: (lane_cells * producers + 8).next_power_of_two(),
            producers,
            lane_cells,
            lane_bytes,
            own_cells,
            workers,
        },
    )
}

fn origin() -> impl Strategy<Value = Origin> {
    let below = |top: u64| (0..24u64).prop_map(move |n| top.wrapping_sub(n));
    let position = || prop_oneof![Just(0u64), below(1 << 32), below(0)].boxed();
    // An index has one bit less, and the end of all indexes is not what is tested here.
    let seq = prop_oneof![Just(0u64), below(1 << 32), below((1 << 63) - 100_000)];
    (seq, position(), position(), position()).prop_map(|(seq, ticket, cell, byte)| Origin {
        seq,
        ticket,
        cell,
        byte: byte & !63,
    })
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => prop::sample::select(vec![0u32, 1, 8, 39, 40, 41, 63, 64, 65, 127, 128]),
        1 => 0u32..140,
        1 => Just(u32::MAX),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let who = 0u16..4;
    prop_oneof![
        8 => (who.clone(), length()).prop_map(|(p, len)| Op::Write(p, len)),
        8 => who.clone().prop_map(Op::Commit),
        1 => who.clone().prop_map(Op::Abandon),
        1 => who.clone().prop_map(Op::Reattach),
        1 => who.clone().prop_map(Op::Rename),
        1 => who.clone().prop_map(Op::Wild),
        8 => (0u32..5).prop_map(Op::Turn),
        3 => Just(Op::Free),
        5 => Just(Op::House),
        1 => Just(Op::Discard),
        2 => Just(Op::Crash),
        5 => Just(Op::TakeOver),
        1 => Just(Op::Close),
        4 => who.clone().prop_map(Op::Join),
        8 => (who.clone(), 0u32..6).prop_map(|(w, n)| Op::Poll(w, n)),
        5 => who.clone().prop_map(Op::Release),
        1 => who.clone().prop_map(Op::Leave),
        1 => who.prop_map(Op::Kill),
        3 => (0u64..6).prop_map(Op::Observe),
    ]
}

/// What most runs begin with: a sequencer, a worker, and all producers.
fn begin(producers: usize) -> Vec<Op> {
    let mut ops = vec![Op::TakeOver, Op::Join(0), Op::House];
    for p in 0..producers as u16 {
        ops.extend([Op::Reattach(p), Op::House, Op::Poll(0, 9), Op::Release(0), Op::Free]);
    }
    ops
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 400 } else { 2000 }, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// O1, O2, exactly once across takeovers, equal digests, nothing unreleased overwritten.
    #[test]
    fn any_calls_in_any_order_keep_the_promises(
        size in size(),
        origin in origin(),
        at_once in any::<bool>(),
        ops in prop::collection::vec(op(), 1..250),
    ) {
        let memory = Memory::new(size, origin);
        let mut world = World::new(&memory, size, origin, Steady);
        if at_once {
            begin(size.producers).into_iter().for_each(|op| world.step(op));
        }
        ops.into_iter().for_each(|op| world.step(op));
        world.settle();
    }
}
