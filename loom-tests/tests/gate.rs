//! Gates: what a worker has read may be overwritten, and its pair is whole.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Size, Worker, payload};
use seriatim_loom_tests::{Traced, model};
use seriatim_ring::Seq;
use seriatim_ring::gate::Snapshot;
use seriatim_ring::lane::NoRoom;
use seriatim_ring::sequencer::Orderer;
use std::sync::Arc;

const SIZE: Size = Size {
    order_slots: 4,
    tickets: 8,
    producers: 1,
    lane_cells: 2,
    lane_bytes: 128,
    own_cells: 2,
    workers: 2,
};

/// A full lane of two commands, in the order, in front of `workers` workers that have begun.
fn full_lane(workers: u16) -> (Arc<Memory>, Orderer) {
    let memory = Arc::new(Memory::new(SIZE, Origin { cell: u64::MAX, ..Origin::default() }));
    let s = memory.shared();
    let mut orderer = Orderer::take_over(&s).unwrap();
    let mut joined: Vec<_> = (0..workers).map(|slot| Worker::join(&memory, &mut orderer, slot)).collect();
    joined.iter_mut().for_each(|worker| drop(worker.drain()));
    orderer.free(&s);
    let mut producer = Producer::attach(&memory, 1);
    for n in 0..2 {
        producer.try_submit(0, 48, n).unwrap();
    }
    assert_eq!(orderer.turn(&s, 2).commands, 2);
    (memory, orderer)
}

/// A worker that reads `count` commands and releases each; it begins where its page's cursor stands.
fn reads(memory: &Memory, slot: u16, workers: u16, count: u64, places: &Traced) {
    let mut me = Worker::at_cursor(memory, slot);
    for n in 0..count {
        let seen = me.poll().unwrap().expect("published");
        assert_eq!((seen.seq, &seen.words), (u64::from(workers) + n, &payload(n, 48)));
        places.read(2 * u64::from(slot) + n);
        me.release();
    }
}

/// Guards G1 (cursor / whole gate) and L1 (`released` / `released`): worker reads, sequencer frees, producer
/// overwrites, all at once, also in the middle of a run.
///
/// Allowed: `Full`, or room for one or two. Forbidden: a write to a cell or its bytes that nothing orders after
/// the worker's read.
#[test]
fn only_what_the_worker_passed_is_overwritten() {
    model("gate/one", 3, &["full", "room"], |outcomes| {
        let (memory, mut orderer) = full_lane(1);
        let places = Arc::new(Traced::new(2));
        let mut producer = Producer::attach(&memory, 1);
        let worker = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || reads(&memory, 0, 1, 2, &places))
        };
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || orderer.free(&memory.shared()))
        };
        let mut taken = 0;
        for _ in 0..2 {
            match producer.reserve(48) {
                Ok(room) => {
                    places.write(taken);
                    taken += 1;
                    producer.fill(&room, 0, &payload(7, 48));
                    outcomes.note("room");
                }
                Err(NoRoom::Full) => outcomes.note("full"),
                Err(damaged) => panic!("{damaged:?}"),
            }
        }
        worker.join().unwrap();
        sequencer.join().unwrap();
    });
}

/// Guards G1 (cursor / position alone): of two workers the sequencer reads the slowest whole and of the other
/// one only where it is.
///
/// Allowed: `Full`, or room for what both have read. Forbidden: a write that nothing orders after either's read.
#[test]
fn the_faster_worker_has_also_read_what_is_freed() {
    model("gate/two", 3, &["full", "room"], |outcomes| {
        let (memory, mut orderer) = full_lane(2);
        let places = Arc::new(Traced::new(4));
        // The first worker has read one command before anything begins.
        reads(&memory, 0, 2, 1, &places);
        let mut producer = Producer::attach(&memory, 1);
        let worker = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || reads(&memory, 1, 2, 2, &places))
        };
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || orderer.free(&memory.shared()))
        };
        match producer.reserve(48) {
            Ok(room) => {
                places.write(0);
                places.write(2);
                producer.fill(&room, 0, &payload(7, 48));
                outcomes.note("room");
            }
            Err(NoRoom::Full) => outcomes.note("full"),
            Err(damaged) => panic!("{damaged:?}"),
        }
        worker.join().unwrap();
        sequencer.join().unwrap();
    });
}

/// Guards G1 (word / word) and G2 (release fence / acquire fence): a position and its values are read whole, or
/// not at all.
///
/// Allowed: any position that was stored, with its values; `None` if two stores came between. Forbidden: a
/// position with a value of another one.
#[test]
fn a_position_and_its_values_are_never_mixed() {
    model("gate/pair", 3, &["moved", "whole"], |outcomes| {
        let pair = Arc::new(Snapshot::<2>::new());
        let owner = {
            let pair = Arc::clone(&pair);
            thread::spawn(move || (1..4).for_each(|n| pair.store(Seq::new(n), [n * 10, n * 100])))
        };
        let mut last = 0;
        for _ in 0..2 {
            match pair.load() {
                None => outcomes.note("moved"),
                Some((at, values)) => {
                    assert_eq!(values, [at.get() * 10, at.get() * 100]);
                    assert!(at.get() >= last, "a position went back");
                    last = at.get();
                    outcomes.note("whole");
                }
            }
        }
        owner.join().unwrap();
    });
}
