//! A lane: what a producer hands over, and what it gets back.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Size, copy, payload};
use seriatim_loom_tests::{Traced, model};
use seriatim_ring::lane::NoRoom;
use seriatim_ring::order::Look;
use seriatim_ring::sequencer::Orderer;
use seriatim_ring::sync::{Ordering, spin};
use std::sync::Arc;

const SIZE: Size = Size {
    order_slots: 2,
    tickets: 8,
    producers: 1,
    lane_cells: 4,
    lane_bytes: 128,
    own_cells: 2,
    workers: 1,
};

/// Guards T1 (ticket swap / ticket load) and R1 (commit word / commit word): a payload in the cell and one in
/// the byte ring go from the producer through ticket and run to a reader that shares nothing else with it.
///
/// Allowed: the reader finds the run pending, or the run with both commands as written. Forbidden: a run whose
/// cells, payloads or digests are not all there; a descriptor that is not whole.
#[test]
fn a_payload_is_handed_over_through_ticket_and_run() {
    model("lane/hand-over", 5, &["pending", "whole"], |outcomes| {
        let memory = Arc::new(Memory::new(SIZE, Origin { cell: 3, byte: 64, ..Origin::default() }));
        let written = Arc::new(Traced::new(2));
        let mut orderer = Orderer::take_over(&memory.shared()).unwrap();
        let producer = {
            let (memory, written) = (Arc::clone(&memory), Arc::clone(&written));
            thread::spawn(move || {
                let mut me = Producer::attach(&memory, 1);
                for (n, len) in [(0, 8), (1, 48)] {
                    me.put(n as u16, &payload(n, len), len).unwrap();
                    written.write(n);
                }
                me.commit().unwrap();
            })
        };
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || orderer.turn(&memory.shared(), 1))
        };
        let (order, lane) = (memory.order(), memory.lane(1));
        match order.read(0) {
            Look::Pending => outcomes.note("pending"),
            Look::Lapped => panic!("lapped"),
            Look::Here(run) => {
                assert_eq!((run.lane, run.count, run.cell, run.first.get(), run.ticket), (1, 2, 3, 0, 1));
                for (n, len) in [(0, 8), (1, 48)] {
                    let entry = lane.read(run.cell + n).unwrap();
                    assert_eq!((u64::from(entry.kind), entry.len), (n, len));
                    assert_eq!(copy(&lane, &entry), payload(n, len));
                    written.read(n);
                }
                outcomes.note("whole");
            }
        }
        producer.join().unwrap();
        sequencer.join().unwrap();
    });
}

/// Guards T1 (ticket swap / ticket load) where tickets are gathered: what a run has from a second ticket is as whole as
/// what it has from the first.
///
/// Allowed: the reader finds the run pending, or with one command, or with both. Forbidden: a cell or payload of it that
/// is not all there.
#[test]
fn what_is_gathered_from_several_tickets_is_handed_over() {
    const WIDE: Size = Size { lane_cells: 8, tickets: 16, ..SIZE };
    model("lane/gathered", 4, &["pending", "one", "both"], |outcomes| {
        let memory = Arc::new(Memory::new(WIDE, Origin::default()));
        let written = Arc::new(Traced::new(2));
        let mut orderer = Orderer::take_over(&memory.shared()).unwrap();
        let producer = {
            let (memory, written) = (Arc::clone(&memory), Arc::clone(&written));
            thread::spawn(move || {
                let mut me = Producer::attach(&memory, 1);
                for n in 0..2 {
                    me.put(n as u16, &payload(n, 8), 8).unwrap();
                    written.write(n);
                    me.commit().unwrap();
                }
            })
        };
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || orderer.turn(&memory.shared(), 1))
        };
        let (order, lane) = (memory.order(), memory.lane(1));
        match order.read(0) {
            Look::Pending => outcomes.note("pending"),
            Look::Lapped => panic!("lapped"),
            Look::Here(run) => {
                for n in 0..u64::from(run.count) {
                    let entry = lane.read(run.cell + n).unwrap();
                    assert_eq!((u64::from(entry.kind), entry.len), (n, 8));
                    assert_eq!(copy(&lane, &entry), payload(n, 8));
                    written.read(n);
                }
                outcomes.note(if run.count == 1 { "one" } else { "both" });
            }
        }
        producer.join().unwrap();
        sequencer.join().unwrap();
    });
}

/// Guards L1 (`released` / `released`): what the sequencer, here also the only reader, has read may be
/// overwritten, and nothing else. Two cells, bytes for two payloads; the third command reuses the first one's.
///
/// Allowed: `Full` until the first run is released. Forbidden: a write into a cell or bytes that nothing orders
/// after the read of what was there.
#[test]
fn what_is_released_is_reused() {
    let size = Size { lane_cells: 2, ..SIZE };
    model("lane/reuse", 3, &["reused"], move |outcomes| {
        let memory = Arc::new(Memory::new(size, Origin { cell: u64::MAX, byte: 64, ..Origin::default() }));
        let places = Arc::new(Traced::new(2));
        let producer = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || {
                let mut me = Producer::attach(&memory, 1);
                for n in 0..3 {
                    let room = loop {
                        match me.reserve(48) {
                            Ok(room) => break room,
                            Err(NoRoom::Full) => spin(),
                            Err(damaged) => panic!("{damaged:?}"),
                        }
                    };
                    places.write(n);
                    me.fill(&room, 0, &payload(n, 48));
                    me.commit().unwrap();
                }
            })
        };
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        let mut next = 0;
        while next < 3 {
            if orderer.turn(&s, 1).commands == 0 {
                spin();
            }
            while next < orderer.next().get() {
                let lane = memory.lane(1);
                let entry = lane.read(u64::MAX.wrapping_add(next)).unwrap();
                assert_eq!(copy(&lane, &entry), payload(next, 48));
                places.read(next);
                next += 1;
            }
            // In a region without workers the sequencer frees what it has read itself.
            orderer.discard(&s, orderer.next(), [0; 2]);
        }
        producer.join().unwrap();
        assert_eq!(memory.lanes[1].released.load(Ordering::Relaxed), 2);
        outcomes.note("reused");
    });
}
