//! The sequencer dies before any of its stores. Whatever it was doing, its successor finds everything once: no
//! command lost or doubled, no gap, no lane that stays full, members and owners as the order says.
#![cfg(loom)]

use seriatim_loom_tests::crash::stop_everywhere;
use seriatim_loom_tests::memory::{Origin, Size};
use seriatim_loom_tests::world::Op;
use std::time::Instant;

const SIZE: Size = Size {
    order_slots: 2,
    tickets: 16,
    producers: 2,
    lane_cells: 2,
    lane_bytes: 128,
    own_cells: 2,
    workers: 2,
};

const ORIGIN: Origin = Origin { seq: (1 << 32) - 2, ticket: u64::MAX - 1, cell: u64::MAX, byte: 0 };

/// Stores of a successor before which it is stopped as well: its takeover and the first run after it.
const SECOND: usize = 24;

fn model(name: &str, size: Size, script: &[Op], second: usize) {
    let begin = Instant::now();
    let plays = stop_everywhere(size, ORIGIN, script, second);
    println!("model crash/{name}: {plays} executions, {:.1?}", begin.elapsed());
    assert!(plays > 50, "model {name} stopped the sequencer {plays} times");
}

/// A sequencer, a worker that reads and releases, and `producers` producers.
fn begin(producers: u16) -> Vec<Op> {
    let mut ops = vec![Op::Join(0), Op::House];
    for p in 0..producers {
        ops.extend([Op::Reattach(p), Op::House, Op::Poll(0, 9), Op::Release(0), Op::Free]);
    }
    ops
}

/// Orders runs of two lanes while an order ring of two slots is full most of the time, frees in the middle, and
/// reuses cells, slots and tickets.
#[test]
fn ordering_and_freeing() {
    let mut script = begin(2);
    for _ in 0..2 {
        script.extend([Op::Write(0, 65), Op::Commit(0), Op::Write(1, 41), Op::Commit(1), Op::Write(0, 8)]);
        script.extend([Op::Turn(3), Op::Poll(0, 1), Op::Commit(0), Op::Release(0), Op::Turn(3), Op::Free]);
        script.extend([Op::Poll(0, 9), Op::Release(0)]);
    }
    model("order", SIZE, &script, SECOND);
}

/// Tickets of one lane become one run, which a gate passes in its middle.
#[test]
fn runs_of_several_tickets() {
    let size = Size { lane_cells: 16, lane_bytes: 1024, tickets: 64, order_slots: 4, ..SIZE };
    let mut script = begin(1);
    for _ in 0..2 {
        for _ in 0..4 {
            script.extend([Op::Write(0, 8), Op::Write(0, 41), Op::Commit(0)]);
        }
        script.extend([
            Op::Turn(9),
            Op::Poll(0, 3),
            Op::Release(0),
            Op::Free,
            Op::Poll(0, 9),
            Op::Release(0),
        ]);
    }
    model("runs", size, &script, SECOND);
}

/// Cells are freed and written again, and a newcomer starts from the anchor before anything else is freed.
#[test]
fn a_newcomer_finds_what_the_anchor_promises() {
    let mut script = begin(1);
    script.extend([
        Op::Write(0, 8),
        Op::Commit(0),
        Op::Turn(1),
        Op::Write(0, 65),
        Op::Commit(0),
        Op::Turn(1),
    ]);
    script.extend([
        Op::Poll(0, 9),
        Op::Release(0),
        Op::Free,
        Op::Write(0, 8),
        Op::Commit(0),
        Op::Write(0, 41),
    ]);
    script.extend([Op::Commit(0), Op::Join(1), Op::House, Op::Poll(1, 9), Op::Turn(2), Op::Poll(1, 9)]);
    model("newcomer", Size { order_slots: 8, ..SIZE }, &script, SECOND);
}

/// Workers join, leave and die; a second one starts from the anchor while the first is in the middle of a run.
#[test]
fn members_come_and_go() {
    let mut script = begin(1);
    script.extend([Op::Write(0, 8), Op::Commit(0), Op::Turn(1), Op::Join(1), Op::House, Op::Poll(0, 1)]);
    script.extend([
        Op::Release(0),
        Op::House,
        Op::Poll(1, 9),
        Op::Release(1),
        Op::Poll(0, 9),
        Op::Release(0),
    ]);
    script.extend([Op::House, Op::Leave(1), Op::House, Op::Write(0, 8), Op::Commit(0), Op::Turn(1)]);
    script.extend([Op::Kill(0), Op::House, Op::Join(1), Op::House, Op::Join(0), Op::House, Op::Poll(1, 9)]);
    model("members", Size { order_slots: 4, ..SIZE }, &script, SECOND);
}

/// All workers die in front of a full order ring: there is no room to say so before another one is let in, into a
/// slot of one of them.
#[test]
fn all_workers_die_in_front_of_a_full_ring() {
    let mut script = begin(1);
    script.extend([Op::Write(0, 8), Op::Commit(0), Op::Write(0, 8), Op::Commit(0), Op::Turn(9), Op::Kill(0)]);
    script.extend([Op::House, Op::Join(0), Op::House, Op::Kill(0), Op::House, Op::Join(0), Op::House]);
    model("no worker", Size { workers: 1, ..SIZE }, &script, SECOND);
}

/// The same where what nobody reads is dropped: there may be room to say that one left before another comes.
#[test]
fn all_workers_die_and_what_they_left_is_dropped() {
    let mut script = begin(1);
    script.extend([Op::Write(0, 8), Op::Commit(0), Op::Write(0, 8), Op::Commit(0), Op::Turn(9), Op::Kill(0)]);
    script.extend([Op::House, Op::Join(0), Op::House, Op::Discard, Op::House, Op::Kill(0), Op::House]);
    script.extend([Op::Discard, Op::House, Op::Join(0), Op::House]);
    model("dropped", Size { workers: 1, ..SIZE }, &script, SECOND);
}

/// Lanes get other owners, or the same one again; a wild producer is fenced off and let in anew.
#[test]
fn owners_come_and_go() {
    let mut script = begin(1);
    script.extend([Op::Write(0, 8), Op::Commit(0), Op::Reattach(0), Op::House, Op::Turn(1), Op::House]);
    script.extend([Op::Poll(0, 9), Op::Release(0), Op::Rename(0), Op::House, Op::Poll(0, 9), Op::Release(0)]);
    script.extend([Op::House, Op::Write(0, 8), Op::Commit(0), Op::Wild(0), Op::Turn(2), Op::Poll(0, 9)]);
    script.extend([Op::Release(0), Op::Turn(2), Op::Reattach(0), Op::House, Op::Poll(0, 9), Op::Release(0)]);
    script.extend([Op::House, Op::Write(0, 8), Op::Commit(0), Op::Turn(1)]);
    model("owners", SIZE, &script, SECOND);
}

/// The order is closed, and reopened by the next sequencer.
#[test]
fn closing_and_reopening() {
    let mut script = begin(1);
    script.extend([Op::Write(0, 8), Op::Commit(0), Op::Close, Op::Write(0, 8), Op::Turn(1), Op::Poll(0, 9)]);
    script.extend([Op::Release(0), Op::Turn(1), Op::Commit(0), Op::Crash, Op::Write(0, 8), Op::Commit(0)]);
    script.extend([Op::Turn(1), Op::Poll(0, 9), Op::Release(0)]);
    model("close", SIZE, &script, SECOND);
}
