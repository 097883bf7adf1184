//! The order ring with a worker that gates it, and with observers that gate nobody.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Size, copy, payload};
use seriatim_loom_tests::{Traced, model};
use seriatim_ring::control::{CLOSED, Control, LaneEntry, OPEN};
use seriatim_ring::event::OWN_LANE;
use seriatim_ring::gate::Cursor;
use seriatim_ring::lane::{Lane, LaneWriter};
use seriatim_ring::order::{Follower, Look, Order, Run, Slot};
use seriatim_ring::sequencer::{Orderer, has_ordered, published};
use seriatim_ring::sync::{AtomicU64, Ordering};
use seriatim_ring::tickets::{Enqueuer, Ticket};
use seriatim_ring::{Seq, digest};
use std::sync::Arc;

const SIZE: Size = Size {
    order_slots: 2,
    tickets: 4,
    producers: 1,
    lane_cells: 2,
    lane_bytes: 64,
    own_cells: 2,
    workers: 0,
};

/// Run `n`: one command of a lane, cell, and ticket that follow from `n`.
fn run(n: u64) -> Run {
    let first = Seq::new(n + (1 << 32) - 1);
    Run { number: n, first, lane: n as u16 + 1, count: 1, cell: n * 10, ticket: n as u32 * 100 }
}

/// Guards R1 (commit word / commit word) and G1 (cursor / position): a ring of two slots, three runs, one worker
/// that gates.
///
/// Allowed: the worker sees each run pending or whole. Forbidden: words of another run; a slot rewritten while,
/// or with nothing that orders it after, the worker read it.
#[test]
fn a_gating_worker_is_never_lapped() {
    model("order/worker", 4, &["held", "pending", "published", "whole"], |outcomes| {
        let slots: Arc<Vec<Slot>> = Arc::new((0..2).map(|_| Slot::new()).collect());
        let (cursor, places) = (Arc::new(Cursor::default()), Arc::new(Traced::new(2)));
        cursor.store(run(0).first, [0; 2]);
        let worker = {
            let (slots, cursor, places) = (Arc::clone(&slots), Arc::clone(&cursor), Arc::clone(&places));
            thread::spawn(move || {
                let order = Order::new(&slots);
                let mut me = Follower::new(run(0).first, 0);
                let mut seen = 0;
                for _ in 0..3 {
                    let Some(step) = me.peek(&order).unwrap() else { continue };
                    let it = run(seen);
                    assert_eq!((step.seq, step.lane, step.cell), (it.first, it.lane, it.cell));
                    places.read(seen);
                    me.advance();
                    seen += 1;
                    cursor.store(me.next(), [seen, 0]);
                }
                seen
            })
        };
        let order = Order::new(&slots);
        for n in 0..3 {
            let gate = cursor.position().since(run(0).first);
            if n - gate < 2 {
                places.write(n);
                order.publish(&run(n));
                outcomes.note("published");
            } else {
                outcomes.note("held");
                break;
            }
        }
        outcomes.note(if worker.join().unwrap() > 0 { "whole" } else { "pending" });
    });
}

/// Guards R2 (release fence / acquire fence) and R1: an observer of a ring of two slots, with no gate.
///
/// Allowed: pending, lapped, or the whole run. Forbidden: a mix of two runs.
#[test]
fn an_observer_never_sees_a_mix_of_two_runs() {
    model("order/observer", 3, &["lapped", "pending", "whole"], |outcomes| {
        let slots: Arc<Vec<Slot>> = Arc::new((0..2).map(|_| Slot::new()).collect());
        let order = Order::new(&slots);
        order.publish(&run(0));
        let publisher = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || (1..4).for_each(|n| Order::new(&slots).publish(&run(n))))
        };
        for n in [0, 1] {
            match order.observe(n) {
                Look::Here(it) => {
                    assert_eq!(it, run(n));
                    outcomes.note("whole");
                }
                Look::Pending => outcomes.note("pending"),
                Look::Lapped => outcomes.note("lapped"),
            }
        }
        publisher.join().unwrap();
        assert_eq!(order.last(), Some(3));
    });
}

fn write(lane: &Lane<'_>, producer: &mut LaneWriter, free: &AtomicU64, n: u64, len: u32) {
    let room = producer.reserve(lane, free, len).unwrap();
    lane.write(&room, &payload(n, len));
    producer.fill(lane, &room, n as u16, n);
    producer.commit();
}

/// Guards L2 (release fence / acquire fence): an observer copies a cell and its payload while the producer, to
/// whom everything was released, writes the next commands over them.
///
/// Allowed: the whole command, or "no longer there". Forbidden: a command that is said to be there and is not
/// whole, be it a word of the cell or of the payload.
#[test]
fn an_observer_never_delivers_a_mixed_payload() {
    for (name, len, preemptions) in [("order/observed cell", 8, 5), ("order/observed bytes", 48, 3)] {
        model(name, preemptions, &["gone", "whole"], move |outcomes| {
            let memory = Arc::new(Memory::new(
                Size { lane_cells: 2, lane_bytes: 128, ..SIZE },
                Origin { cell: u64::MAX, byte: 64u64.wrapping_neg(), ..Origin::default() },
            ));
            let lane = memory.lane(1);
            let mut producer = Producer::attach(&memory, 1).writer;
            let free = AtomicU64::new(u64::MAX);
            write(&lane, &mut producer, &free, 0, len);
            let writer = {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    let (lane, free) = (memory.lane(1), AtomicU64::new(u64::MAX));
                    for n in 1..3 {
                        // All before it is released.
                        free.store(u64::MAX.wrapping_add(n), Ordering::Relaxed);
                        write(&lane, &mut producer, &free, n, len);
                    }
                })
            };
            match lane.read(u64::MAX) {
                Err(_) => assert!(!lane.still_there(u64::MAX, None), "a bad cell that is still there"),
                Ok(entry) => {
                    let words = copy(&lane, &entry);
                    if lane.still_there(u64::MAX, Some(&entry)) {
                        assert_eq!((entry.kind, entry.digest, entry.len), (0, 0, len));
                        assert_eq!(words, payload(0, len));
                        outcomes.note("whole");
                    } else {
                        outcomes.note("gone");
                    }
                }
            }
            writer.join().unwrap();
        });
    }
}

/// Guards P1 (`published.next` / `published`) and O1 (`ordered` / `has_ordered`): who learns from a cursor that
/// something is in the order finds its run in the ring.
///
/// Allowed: nothing known yet; known, and its run found or its slot used again. Forbidden: known, and the run
/// not there.
#[test]
fn what_is_said_to_be_ordered_is_in_the_ring() {
    model("order/cursors", 5, &["not ordered", "ordered", "published", "unpublished"], |outcomes| {
        let memory = Arc::new(Memory::new(SIZE, Origin::default()));
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        Producer::attach(&memory, 1).try_submit(0, 8, 1).unwrap();
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || orderer.turn(&memory.shared(), 1))
        };
        let waiter = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let known = has_ordered(&memory.lanes[1], 0);
                assert!(!known || memory.order().observe(0) != Look::Pending);
                known
            })
        };
        let (next, run) = published(&memory.control);
        if next > Seq::ZERO {
            assert_eq!((next, run), (Seq::new(1), 1));
            assert_ne!(memory.order().observe(run - 1), Look::Pending);
            outcomes.note("published");
        } else {
            outcomes.note("unpublished");
        }
        outcomes.note(if waiter.join().unwrap() { "ordered" } else { "not ordered" });
        sequencer.join().unwrap();
    });
}

/// Guards O1 on the side of a takeover: what the successor says to be ordered was published by its predecessor,
/// whom the reader may never have heard of.
///
/// Allowed and forbidden as above.
#[test]
fn what_a_successor_says_to_be_ordered_is_in_the_ring() {
    model("order/restored", 5, &["not ordered", "ordered"], |outcomes| {
        let memory = Arc::new(Memory::new(SIZE, Origin::default()));
        let s = memory.shared();
        let mut first = Orderer::take_over(&s).unwrap();
        Producer::attach(&memory, 1).try_submit(0, 8, 1).unwrap();
        // A thread that reader and successor share nothing with but the region; the lock orders it before the
        // successor, and nothing orders it before the reader.
        let successor = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                first.turn(&memory.shared(), 1);
                // It died right after the commit word.
                memory.lanes[1].ordered.store(0, Ordering::Relaxed);
                Orderer::take_over(&memory.shared()).map(drop).unwrap();
            })
        };
        let entry: &LaneEntry = &memory.lanes[1];
        let known = has_ordered(entry, 0);
        assert!(!known || memory.order().observe(0) != Look::Pending);
        outcomes.note(if known { "ordered" } else { "not ordered" });
        successor.join().unwrap();
    });
}

/// Guards C1 (`state` / `state`): who reads that the order is closed finds its end in it.
///
/// Allowed: open; closed, and the end in the ring. Forbidden: closed without an end.
#[test]
fn a_closed_order_has_its_end() {
    model("order/closed", 5, &["closed", "open"], |outcomes| {
        let memory = Arc::new(Memory::new(SIZE, Origin::default()));
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        let void = &memory.control.reign.void_before;
        Enqueuer::new(0).enqueue(&memory.queue(), Ticket::Close, void).unwrap();
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || orderer.close(&memory.shared()).unwrap())
        };
        let control: &Control = &memory.control;
        if control.reign.state() == CLOSED {
            let Look::Here(run) = memory.order().observe(0) else { panic!("closed without an end") };
            assert_eq!((run.lane, run.count), (OWN_LANE, 1));
            outcomes.note("closed");
        } else {
            outcomes.note("open");
        }
        assert_eq!(sequencer.join().unwrap(), Seq::ZERO);
        assert_eq!(control.anchor.load().unwrap().1[0], digest::START);
    });
}

/// Guards C1 on the side of a takeover: who reads that the order is open again finds the new epoch.
///
/// Allowed: still closed; open, in the new epoch. Forbidden: open again in the old one.
#[test]
fn an_order_that_is_open_again_has_a_new_epoch() {
    model("order/reopened", 5, &["closed", "open again"], |outcomes| {
        let memory = Arc::new(Memory::new(SIZE, Origin::default()));
        let s = memory.shared();
        let mut first = Orderer::take_over(&s).unwrap();
        let reign = &memory.control.reign;
        Enqueuer::new(0).enqueue(&memory.queue(), Ticket::Close, &reign.void_before).unwrap();
        first.close(&s).unwrap();
        let successor = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || Orderer::take_over(&memory.shared()).map(drop).unwrap())
        };
        if reign.state() == OPEN {
            assert_eq!(reign.epoch.load(Ordering::Relaxed), 2);
            outcomes.note("open again");
        } else {
            outcomes.note("closed");
        }
        successor.join().unwrap();
    });
}
