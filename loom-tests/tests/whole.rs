//! The whole protocol, small: two producers, a sequencer, a worker.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Size, Worker, digest_of, payload};
use seriatim_loom_tests::{Traced, model};
use seriatim_ring::sequencer::Orderer;
use std::sync::Arc;

const SIZE: Size = Size {
    order_slots: 2,
    tickets: 4,
    producers: 2,
    lane_cells: 1,
    lane_bytes: 64,
    own_cells: 2,
    workers: 1,
};

/// A submit of command `n` of a lane into its only cell, if that is free.
fn submit(producer: &mut Producer<'_>, lane: u16, n: u64, places: &Traced) -> bool {
    let seed = u64::from(lane) * 10 + n;
    if !producer.has_room(40).unwrap() {
        return false;
    }
    places.write(lane.into());
    producer.put(seed as u16, &payload(seed, 40), 40).unwrap();
    producer.commit().unwrap();
    true
}

/// Guards T1, R1, G1 and L1 together. Lanes of one cell and an order ring of two runs, so that cell, ticket word
/// and slot are all used again; positions begin just below where they wrap.
///
/// Allowed: every order of the lanes; `Full` while the cell is in use. Forbidden: a command lost, doubled, mixed
/// or out of its producer's order; a gap; a cell written that nothing orders after its last reading.
#[test]
fn two_producers_one_order() {
    model("whole", 2, &["cell in use", "cell used again", "one read", "two read"], |outcomes| {
        let origin = Origin { seq: (1 << 32) - 1, ticket: u64::MAX, cell: u64::MAX, byte: 0 };
        let memory = Arc::new(Memory::new(SIZE, origin));
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        let mut worker = Worker::join(&memory, &mut orderer, 0);
        worker.drain();
        orderer.free(&s);
        let places = Arc::new(Traced::new(3));
        // The first producer's cell is full and in the order.
        assert!(submit(&mut Producer::attach(&memory, 1), 1, 0, &places));
        orderer.turn(&s, 1);
        let one = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || u64::from(submit(&mut Producer::attach(&memory, 1), 1, 1, &places)))
        };
        let other = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || {
                assert!(submit(&mut Producer::attach(&memory, 2), 2, 0, &places));
            })
        };
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let s = memory.shared();
                orderer.free(&s);
                orderer.turn(&s, 2);
                orderer
            })
        };
        let mut seen = Vec::new();
        for _ in 0..2 {
            if let Some(command) = worker.poll().unwrap() {
                places.read(command.lane.into());
                seen.push(command);
                worker.release();
            }
        }
        outcomes.note(["none read", "one read", "two read"][seen.len()]);
        let again = one.join().unwrap();
        other.join().unwrap();
        let mut orderer = sequencer.join().unwrap();
        // The rest, with nobody else about.
        while orderer.has_work(&s) {
            orderer.turn(&s, 1);
            seen.extend(worker.drain());
        }
        seen.extend(worker.drain());
        assert_eq!(seen.len() as u64, 2 + again);
        let mut next = [0; 3];
        for (i, command) in seen.iter().enumerate() {
            let n = &mut next[usize::from(command.lane)];
            let seed = u64::from(command.lane) * 10 + *n;
            assert_eq!(command.seq, (1 << 32) + i as u64);
            assert_eq!((u64::from(command.kind), &command.words), (seed, &payload(seed, 40)));
            assert_eq!(digest_of(&command.words), digest_of(&payload(seed, 40)));
            *n += 1;
        }
        outcomes.note(if again == 1 { "cell used again" } else { "cell in use" });
    });
}
