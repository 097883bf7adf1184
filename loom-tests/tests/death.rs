//! A party stops before any of its stores while others go on beside it, and another takes its place. Nothing that was
//! submitted is lost or comes twice, indexes are dense, and whoever comes later has the same digest.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::Traced;
use seriatim_loom_tests::crash::{model_of_death, mortal};
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Seen, Size, Worker, name, payload};
use seriatim_ring::control::{ProducerRole, Verdict};
use seriatim_ring::event::{Event, OWN_LANE};
use seriatim_ring::sequencer::{Orderer, Shared};
use seriatim_ring::sync::Ordering;
use std::sync::Arc;

const SIZE: Size = Size {
    order_slots: 2,
    tickets: 8,
    producers: 2,
    lane_cells: 1,
    lane_bytes: 64,
    own_cells: 4,
    workers: 3,
};

const ORIGIN: Origin = Origin { seq: (1 << 32) - 2, ticket: u64::MAX, cell: u64::MAX, byte: 0 };

/// The seed of command `n` of a lane, and its kind.
fn seed(lane: u16, n: u64) -> u64 {
    u64::from(lane) * 10 + n
}

/// A place for each cell of each lane.
fn places(size: Size) -> Traced {
    Traced::new((size.producers + 1) * size.lane_cells.max(size.own_cells))
}

fn place(memory: &Memory, lane: u16, cell: u64) -> u64 {
    let most = memory.lane(OWN_LANE).cells().max(memory.lane(1).cells());
    u64::from(lane) * most + cell % memory.lane(lane).cells()
}

/// Submits command `n` of a lane if there is room.
fn submit(memory: &Memory, producer: &mut Producer<'_>, lane: u16, n: u64, places: &Traced) -> bool {
    if !producer.has_room(40).unwrap() {
        return false;
    }
    places.write(place(memory, lane, producer.writer.head()));
    producer.put(seed(lane, n) as u16, &payload(seed(lane, n), 40), 40).unwrap();
    producer.commit().unwrap();
    true
}

/// Polls at most so many commands, and says how far it is.
fn receive(memory: &Memory, worker: &mut Worker<'_>, most: usize, places: &Traced) -> Vec<Seen> {
    let mut seen = Vec::new();
    while let Some(command) = (seen.len() < most).then(|| worker.poll().unwrap()).flatten() {
        places.read(place(memory, command.lane, command.cell));
        seen.push(command);
    }
    worker.release();
    seen
}

/// Lets all that is queued come into the order, with nobody else about.
fn rest(s: &Shared<'_>, orderer: &mut Orderer, worker: &mut Worker<'_>) -> Vec<Seen> {
    let mut seen = Vec::new();
    loop {
        orderer.free(s);
        let commands = orderer.turn(s, 4).commands;
        let new = worker.drain();
        if commands == 0 && new.is_empty() && !orderer.has_work(s) {
            orderer.free(s);
            return seen;
        }
        seen.extend(new);
    }
}

/// Indexes are dense, and each lane has its commands from 0 on, so many of them.
fn check(seen: &[Seen], lanes: &[u64]) {
    let mut next = vec![0; lanes.len()];
    for (i, command) in seen.iter().enumerate() {
        assert_eq!(command.seq, seen[0].seq + i as u64, "a gap");
        if command.lane != OWN_LANE {
            let n = &mut next[usize::from(command.lane) - 1];
            let seed = seed(command.lane, *n);
            assert_eq!((u64::from(command.kind), &command.words), (seed, &payload(seed, 40)));
            *n += 1;
        }
    }
    assert_eq!(next, lanes, "commands of each lane");
}

/// A newcomer starts from the digest of the order's anchor, and comes to the same as who was there all the time.
fn check_newcomer(memory: &Memory, orderer: &mut Orderer, slot: u16, old: &mut Worker<'_>) {
    let mut new = Worker::join(memory, orderer, slot);
    new.drain();
    old.drain();
    assert_eq!((new.follower.next(), new.digest), (old.follower.next(), old.digest), "digests");
    orderer.free(&memory.shared());
    let (at, [digest, ..]) = memory.control.anchor.load().unwrap();
    assert_eq!((at, digest), (old.follower.next(), old.digest), "the anchor");
    for lane in &memory.lanes {
        assert_eq!(lane.released.load(Ordering::Relaxed), lane.ordered.load(Ordering::Relaxed));
    }
}

/// A sequencer stops in its turn, which frees what was read, reuses slots of the order and orders two lanes; its
/// successor goes on at once. Meanwhile a producer submits, into a cell that is free only once it was released, and a
/// worker reads.
///
/// Allowed: every order of the lanes, and `Full` while the cell is in use. Forbidden: a command lost, doubled or
/// mixed; a gap; a cell written that nothing orders after its last reading; another digest.
#[test]
fn a_sequencer_that_dies_in_its_turn_is_replaced() {
    let allowed = ["died", "lived", "cell in use", "cell used again"];
    let size = Size { producers: 3, ..SIZE };
    model_of_death("death/sequencer", 1, &allowed, move |step, outcomes| {
        let memory = Arc::new(Memory::new(size, ORIGIN));
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        let mut worker = Worker::join(&memory, &mut orderer, 0);
        let places = Arc::new(places(size));
        let mut seen = receive(&memory, &mut worker, 1, &places);
        orderer.free(&s);
        // The first lane's only cell is in the order and not read; the others' are queued, one more than the order
        // has room for before the worker has read.
        assert!(submit(&memory, &mut Producer::attach(&memory, 1), 1, 0, &places));
        orderer.turn(&s, 1);
        for lane in [2, 3] {
            assert!(submit(&memory, &mut Producer::attach(&memory, lane), lane, 0, &places));
        }
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let s = memory.shared();
                let done = mortal(step, || {
                    orderer.free(&s);
                    orderer.turn(&s, 2);
                    orderer
                });
                let died = done.is_none();
                let mut orderer =
                    done.map_or_else(|| Orderer::take_over(&s).unwrap(), |(orderer, _)| orderer);
                orderer.free(&s);
                orderer.turn(&s, 2);
                (orderer, died)
            })
        };
        let producer = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || submit(&memory, &mut Producer::attach(&memory, 1), 1, 1, &places))
        };
        seen.extend(receive(&memory, &mut worker, 2, &places));
        let (mut orderer, died) = sequencer.join().unwrap();
        let again = producer.join().unwrap();
        outcomes.note(if died { "died" } else { "lived" });
        outcomes.note(if again { "cell used again" } else { "cell in use" });
        seen.extend(rest(&s, &mut orderer, &mut worker));
        check(&seen, &[1 + u64::from(again), 1, 1]);
        check_newcomer(&memory, &mut orderer, 1, &mut worker);
        died
    });
}

/// Lets the owner of a lane in that asked, as soon as all that its predecessor submitted is in the order.
fn let_in<'a>(memory: &'a Memory, orderer: &mut Orderer, lane: u16) -> Producer<'a> {
    let s = memory.shared();
    let party = &memory.pages[usize::from(lane)].party;
    party.name.store(name(lane.into()));
    let generation = party.ask(memory.bells.requests_word());
    loop {
        match orderer.admit(&s, lane, generation, party.name.load(), ProducerRole::Injector) {
            Some(verdict) => {
                assert_eq!(verdict, Verdict::Granted);
                return Producer::attach(memory, lane);
            }
            None => drop(orderer.turn(&s, 1)),
        }
    }
}

/// A producer stops in its submit, and another one of its name goes on. Meanwhile another producer submits, the
/// sequencer orders and a worker reads.
///
/// The successor submits what is not in the order, and one more. Forbidden: that its predecessor's command is lost or
/// comes twice, that anything of a half-written one is seen, or that anybody waits for it.
#[test]
fn a_producer_that_dies_in_its_submit_is_resumed() {
    let size = Size { order_slots: 8, lane_cells: 2, ..SIZE };
    let allowed = ["died before", "died after", "lived"];
    model_of_death("death/producer", 2, &allowed, move |step, outcomes| {
        let memory = Arc::new(Memory::new(size, ORIGIN));
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        let mut worker = Worker::join(&memory, &mut orderer, 0);
        let places = Arc::new(places(size));
        let_in(&memory, &mut orderer, 1);
        let mut seen = worker.drain();
        let victim = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || {
                let mut producer = Producer::attach(&memory, 1);
                mortal(step, || assert!(submit(&memory, &mut producer, 1, 0, &places))).is_none()
            })
        };
        let other = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || assert!(submit(&memory, &mut Producer::attach(&memory, 2), 2, 0, &places)))
        };
        orderer.turn(&s, 1);
        seen.extend(receive(&memory, &mut worker, 1, &places));
        let died = victim.join().unwrap();
        let mut successor = let_in(&memory, &mut orderer, 1);
        let (entry, owner) = (&memory.lanes[1], memory.owner(1));
        let next = entry.ordered.load(Ordering::Relaxed).wrapping_sub(owner.base);
        outcomes.note(match (died, next) {
            (true, 0) => "died before",
            (true, 1) => "died after",
            (false, 1) => "lived",
            _ => panic!("{next} commands are in the order, died: {died}"),
        });
        for n in next..2 {
            while !submit(&memory, &mut successor, 1, n, &places) {
                seen.extend(rest(&s, &mut orderer, &mut worker));
            }
        }
        other.join().unwrap();
        seen.extend(rest(&s, &mut orderer, &mut worker));
        check(&seen, &[2, 1]);
        check_newcomer(&memory, &mut orderer, 1, &mut worker);
        died
    });
}

/// A worker stops while it reads, says how far it is, or leaves; then its gate falls and one comes who starts from the
/// anchor. Meanwhile a producer submits, the sequencer frees and orders, and another worker reads.
///
/// Forbidden: what the dead one had not passed is freed before its gate falls; its gate holds anything up after that;
/// a digest from a cursor that it had half stored; that it left twice, or not at all.
#[test]
fn a_worker_that_dies_gates_nobody() {
    let size = Size { order_slots: 8, ..SIZE };
    let allowed = ["died", "left", "cell in use", "cell used again"];
    model_of_death("death/worker", 2, &allowed, move |step, outcomes| {
        let memory = Arc::new(Memory::new(size, ORIGIN));
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        let mut survivor = Worker::join(&memory, &mut orderer, 1);
        let mut leaver = Worker::join(&memory, &mut orderer, 0);
        let number = memory.members[0].number.load(Ordering::Relaxed);
        let places = Arc::new(places(size));
        leaver.drain();
        let mut seen = survivor.drain();
        orderer.free(&s);
        for lane in [1, 2] {
            assert!(submit(&memory, &mut Producer::attach(&memory, lane), lane, 0, &places));
            orderer.turn(&s, 1);
        }
        seen.extend(receive(&memory, &mut survivor, 2, &places));
        let victim = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || {
                let mut worker = Worker::at_cursor(&memory, 0);
                let life = || {
                    receive(&memory, &mut worker, 1, &places);
                    receive(&memory, &mut worker, 1, &places);
                    worker.leave();
                };
                mortal(step, life).is_none()
            })
        };
        let producer = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || submit(&memory, &mut Producer::attach(&memory, 1), 1, 1, &places))
        };
        orderer.free(&s);
        orderer.turn(&s, 1);
        seen.extend(receive(&memory, &mut survivor, 1, &places));
        let died = victim.join().unwrap();
        let has_left = memory.workers[0].party.has_left(memory.members[0].generation.load(Ordering::Relaxed));
        assert!(died || has_left);
        outcomes.note(if died { "died" } else { "left" });
        // The kernel says that it is dead, or it said itself that it left.
        orderer.drop_gate(&s, 0);
        let mut newcomer = Worker::join(&memory, &mut orderer, 2);
        let again = producer.join().unwrap();
        outcomes.note(if again { "cell used again" } else { "cell in use" });
        orderer.announce(&s);
        newcomer.drain();
        seen.extend(rest(&s, &mut orderer, &mut survivor));
        newcomer.drain();
        assert_eq!((newcomer.follower.next(), newcomer.digest), (survivor.follower.next(), survivor.digest));
        orderer.free(&s);
        assert_eq!(orderer.anchor(), survivor.follower.next(), "somebody gates who is dead");
        check(&seen, &[1 + u64::from(again), 1]);
        assert_eq!(seen.iter().filter(|seen| leaves(seen, number)).count(), 1);
        died
    });
}

fn leaves(seen: &Seen, member: u64) -> bool {
    let words = seen.words.as_slice().try_into().ok().filter(|_| seen.lane == OWN_LANE);
    let event = words.and_then(|words| Event::decode(seen.kind, words));
    matches!(event, Some(Event::Left { number, .. }) if number == member)
}
