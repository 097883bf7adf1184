//! Joining and leaving: what the two sides of the hand-shake see of each other.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Size, Worker, name};
use seriatim_loom_tests::{Traced, model};
use seriatim_ring::Seq;
use seriatim_ring::control::{KEPT_JOURNAL, ProducerRole, Verdict};
use seriatim_ring::parts::Address;
use seriatim_ring::sequencer::{Orderer, Standing, stand_all, standing, start_of};
use seriatim_ring::sync::Ordering;
use std::sync::Arc;

const SIZE: Size = Size {
    order_slots: 8,
    tickets: 8,
    producers: 1,
    lane_cells: 4,
    lane_bytes: 64,
    own_cells: 4,
    workers: 2,
};

/// An index that is not 0, so that what was not handed over shows.
const ORIGIN: Origin = Origin { seq: 40, ticket: 3, cell: 5, byte: 0 };

/// A region with a sequencer, one worker in slot 0 that has begun, and the lane's owner.
fn region() -> (Arc<Memory>, Orderer) {
    let memory = Arc::new(Memory::new(SIZE, ORIGIN));
    let s = memory.shared();
    let mut orderer = Orderer::take_over(&s).unwrap();
    let mut worker = Worker::join(&memory, &mut orderer, 0);
    assert_eq!(orderer.admit(&s, 1, 1, name(7), ProducerRole::Injector), Some(Verdict::Granted));
    worker.drain();
    orderer.free(&s);
    (memory, orderer)
}

fn submit(memory: &Memory, orderer: &mut Orderer, commands: u64) {
    let mut producer = Producer::attach(memory, 1);
    for n in 0..commands {
        producer.try_submit(n as u16, 8, n).unwrap();
    }
    assert_eq!(orderer.turn(&memory.shared(), 8).commands, commands);
}

/// Guards J1 (`request` / `request`) and J5 (`tell` / `requests`): who sees that a party asks sees who it is, and
/// who sees that anybody asks sees who asks.
///
/// Allowed: nothing seen; the request, with its name; the word moved, with its request. Forbidden: a request
/// without a name; a moved word without a request (nobody would look again).
#[test]
fn who_sees_a_request_sees_who_asks() {
    model("join/ask", 5, &["asked", "nobody", "told"], |outcomes| {
        let memory = Arc::new(Memory::new(SIZE, ORIGIN));
        let asker = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let party = &memory.workers[0].party;
                party.name.store(name(9));
                party.ask(memory.bells.requests_word())
            })
        };
        let told = memory.bells.requests() != 0;
        let party = &memory.workers[0].party;
        let asked = party.request() != 0;
        if told {
            assert!(asked, "told of a request that is not there");
            outcomes.note("told");
        }
        if asked {
            assert_eq!(party.name.load(), name(9));
            outcomes.note("asked");
        } else {
            outcomes.note("nobody");
        }
        assert_eq!(asker.join().unwrap(), 1);
    });
}

/// Guards J2 (answer / answer): who reads that it is let in sees what it was granted.
///
/// Allowed: no answer yet; the answer, with start, digest, run and first index. Forbidden: the answer with any
/// of these as they were before.
#[test]
fn who_is_let_in_sees_where_it_starts() {
    model("join/answer", 5, &["granted", "waiting"], |outcomes| {
        let (memory, mut orderer) = region();
        submit(&memory, &mut orderer, 1);
        let (anchor, [digest, current, run]) = memory.control.anchor.load().unwrap();
        let joins_at = orderer.next();
        let generation = memory.workers[1].party.ask(memory.bells.requests_word());
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                orderer.join(&memory.shared(), 1, generation, name(2), Address::ALL).unwrap()
            })
        };
        let member = &memory.members[1];
        match member.answer.get(generation) {
            None => outcomes.note("waiting"),
            Some(verdict) => {
                let (follower, past, first) = start_of(member);
                assert_eq!((verdict, past, first), (Verdict::Granted, [digest, current], joins_at));
                assert_eq!((follower.next(), follower.run()), (anchor, run));
                assert_eq!(member.name.load(), name(2));
                outcomes.note("granted");
            }
        }
        assert_eq!(sequencer.join().unwrap(), joins_at);
    });
}

/// Guards J3 (`begin` / `has_begun`). The page has the cursor of a predecessor, which had read further than where
/// the newcomer starts.
///
/// Allowed: nothing freed beyond the newcomer's start. Forbidden: the predecessor's cursor taken for the
/// newcomer's.
#[test]
fn a_newcomer_gates_where_it_starts_until_it_begins() {
    model("join/begin", 5, &["begun", "not begun"], |outcomes| {
        let (memory, mut orderer) = region();
        let s = memory.shared();
        // The predecessor reads two commands that the first worker has not read, and leaves.
        let mut before = Worker::join(&memory, &mut orderer, 1);
        submit(&memory, &mut orderer, 2);
        before.drain();
        before.leave();
        orderer.drop_gate(&s, 1);
        assert!(orderer.announce(&s));
        let anchor = orderer.anchor();
        let generation = memory.workers[1].party.ask(memory.bells.requests_word());
        orderer.join(&s, 1, generation, name(3), Address::ALL).unwrap();
        // The first worker reads on, less far than the predecessor had: the newcomer is the slowest.
        let mut first = Worker::at_cursor(&memory, 0);
        (0..2).for_each(|_| drop(first.poll().unwrap().unwrap()));
        first.release();
        let newcomer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || Worker::begin(&memory, 1, generation).follower.next())
        };
        orderer.free(&s);
        assert_eq!(orderer.anchor(), anchor, "freed what the newcomer has still to fold");
        let begun = memory.workers[1].party.has_begun(generation);
        outcomes.note(if begun { "begun" } else { "not begun" });
        assert_eq!(newcomer.join().unwrap(), anchor);
    });
}

/// Guards J2 (answer / answer) and J3 (`begin` / `has_begun`) where a journal takes up the gate of one that died, which had
/// read further than all that is freed.
///
/// Allowed: no answer yet, and nothing freed; the answer, and all from the anchor on is there to be read. Forbidden: the
/// dead one's cursor or its start taken for the successor's, so that something is freed which that one has yet to fold.
#[test]
fn who_takes_a_gate_up_finds_all_that_it_kept() {
    model("join/take up", 5, &["taken up", "waiting", "freed"], |outcomes| {
        let (memory, mut orderer) = region();
        let s = memory.shared();
        let mut dead = Worker::join(&memory, &mut orderer, 1);
        memory.workers[1].journal.role.store(KEPT_JOURNAL, Ordering::Relaxed);
        let mut other = Worker::at_cursor(&memory, 0);
        let mut all_read = |orderer: &mut Orderer, commands| {
            submit(&memory, orderer, commands);
            dead.drain();
            other.drain();
        };
        all_read(&mut orderer, 1);
        orderer.free(&s);
        all_read(&mut orderer, 2);
        let anchor = orderer.anchor();
        let generation = memory.workers[1].party.ask(memory.bells.requests_word());
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let s = memory.shared();
                assert_eq!(orderer.take_up(&s, 1, generation), Some(anchor));
                orderer.free(&s);
                orderer.anchor()
            })
        };
        let answer = memory.members[1].answer.get(generation);
        let read = answer.map(|_| {
            let mut successor = Worker::begin(&memory, 1, generation);
            assert_eq!(successor.follower.next(), anchor);
            successor.drain().len()
        });
        let freed = sequencer.join().unwrap().since(anchor);
        match read {
            Some(read) => {
                assert_eq!(read, 2);
                outcomes.note(if freed > 0 { "freed" } else { "taken up" });
            }
            None => {
                assert_eq!(freed, 0, "freed before its successor began");
                outcomes.note("waiting");
            }
        }
    });
}

/// Guards J4 (`leave` / `has_left`) and J5: who sees that a worker left sees how far it had read.
///
/// Allowed: still there; gone, and all that it had read is freed. Forbidden: gone with an older cursor, so that
/// the next one would be given commands again that were done with.
#[test]
fn what_a_worker_read_before_it_left_counts() {
    model("join/leave", 5, &["gone", "still there", "told"], |outcomes| {
        let (memory, mut orderer) = region();
        let s = memory.shared();
        submit(&memory, &mut orderer, 1);
        let (generation, asked) = (memory.workers[0].party.request(), memory.bells.requests());
        let worker = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let mut me = Worker::at_cursor(&memory, 0);
                me.poll().unwrap().unwrap();
                me.leave();
            })
        };
        let told = memory.bells.requests() != asked;
        let left = memory.workers[0].party.has_left(generation);
        if told {
            assert!(left, "told of a leave that is not there");
            outcomes.note("told");
        }
        if left {
            assert_eq!(memory.workers[0].cursor.position(), orderer.next());
            orderer.drop_gate(&s, 0);
            assert_eq!(orderer.anchor(), orderer.next());
            outcomes.note("gone");
        } else {
            outcomes.note("still there");
        }
        worker.join().unwrap();
    });
}

/// Guards J6 (`state` / `standing`). All have died or left, one of them without what it was given; who comes begins
/// there, in the place of one who had begun further on.
///
/// Allowed: nobody there yet; somebody who has the index before it. Forbidden: the newcomer with its predecessor's
/// first index, so that nobody waits for it.
#[test]
fn who_begins_where_others_ended_is_waited_for() {
    model("join/standing", 5, &["behind", "nobody"], |outcomes| {
        let (memory, mut orderer) = region();
        let s = memory.shared();
        let held = orderer.anchor();
        let mut before = Worker::join(&memory, &mut orderer, 1);
        submit(&memory, &mut orderer, 1);
        before.drain();
        before.leave();
        orderer.drop_gate(&s, 1);
        assert!(orderer.announce(&s));
        // Without having passed what the other one had.
        orderer.drop_gate(&s, 0);
        assert!(orderer.announce(&s));
        assert_eq!(orderer.anchor(), held);
        let generation = memory.workers[1].party.ask(memory.bells.requests_word());
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                orderer.join(&memory.shared(), 1, generation, name(2), Address::ALL).unwrap()
            })
        };
        match standing(&memory.members[1], &memory.workers[1], held) {
            Standing::Nobody => outcomes.note("nobody"),
            Standing::Before(at) => {
                assert_eq!(at, held);
                outcomes.note("behind");
            }
            Standing::Past => panic!("it is yet to get {held}"),
        }
        assert_eq!(sequencer.join().unwrap(), held);
    });
}

/// Guards J7 (`next_member` / `stand_all`). While somebody looks who has an index before it, the only one who has dies; one
/// comes in its stead, into a slot that may have been looked at, and then another one, who begins behind the index.
///
/// Allowed: somebody who has the index before it; nobody there; somebody let in meanwhile. Forbidden: nobody who has it
/// before it, and somebody there, who began behind it.
#[test]
fn who_is_let_in_into_a_slot_that_was_looked_at_is_not_missed() {
    model("join/crowd", 3, &["anew", "behind", "nobody"], |outcomes| {
        let memory = Arc::new(Memory::new(Size { workers: 3, ..SIZE }, ORIGIN));
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        drop(Worker::join(&memory, &mut orderer, 1));
        let index = orderer.anchor();
        let requests = memory.bells.requests_word();
        let [first, second] = [0, 2].map(|slot: usize| memory.workers[slot].party.ask(requests));
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let s = memory.shared();
                orderer.drop_gate(&s, 1);
                assert_eq!(orderer.join(&s, 0, first, name(2), Address::ALL), Some(index));
                assert!(orderer.join(&s, 2, second, name(3), Address::ALL).unwrap() > index);
            })
        };
        let mut behind = 0;
        let count = |_, found| behind += u32::from(matches!(found, Standing::Before(_)));
        match stand_all(&memory.control, &memory.members, &memory.workers, index, count) {
            None => outcomes.note("anew"),
            Some(true) => {
                assert!(behind > 0, "one who is let in has {index} before it");
                outcomes.note("behind");
            }
            Some(false) => outcomes.note("nobody"),
        }
        sequencer.join().unwrap();
    });
}

/// The hand-shake with everything going on: a worker reads, a producer submits, the sequencer lets a newcomer in,
/// orders and frees. Guards G1, J2, J3, R1, T1 and L1 together.
///
/// Allowed: the newcomer is let in or not yet, and reads as far as it gets. Forbidden: a digest of the newcomer
/// that is not the other worker's at the same index; a first index that is not that of its own joining; a cell
/// overwritten before both have read it.
#[test]
fn a_newcomer_comes_to_the_same_digests() {
    model("join/whole", 1, &["not yet", "same digest"], |outcomes| {
        let memory = Arc::new(Memory::new(Size { lane_cells: 2, ..SIZE }, ORIGIN));
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        let mut old = Worker::join(&memory, &mut orderer, 0);
        orderer.admit(&s, 1, 1, name(7), ProducerRole::Injector).unwrap();
        old.drain();
        submit(&memory, &mut orderer, 2);
        let places = Arc::new(Traced::new(4));
        let mut producer = Producer::attach(&memory, 1);
        let generation = memory.workers[1].party.ask(memory.bells.requests_word());
        let follow = |mut me: Worker<'_>, slot: u64, places: &Traced| {
            let mut digests = Vec::new();
            while let Some(seen) = me.poll().unwrap() {
                if seen.lane == 1 {
                    places.read(slot * 2 + (seen.cell - ORIGIN.cell) % 2);
                }
                digests.push((Seq::new(seen.seq), me.digest));
                me.release();
            }
            digests
        };
        let worker = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || follow(Worker::at_cursor(&memory, 0), 0, &places))
        };
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let s = memory.shared();
                let first = orderer.join(&s, 1, generation, name(2), Address::ALL).unwrap();
                orderer.turn(&s, 1);
                orderer.free(&s);
                first
            })
        };
        let submitter = {
            let (memory, places) = (Arc::clone(&memory), Arc::clone(&places));
            thread::spawn(move || {
                let released = &memory.lanes[1].released;
                if let Ok(room) = producer.writer.reserve(&memory.lane(1), released, 8) {
                    places.write(0);
                    places.write(2);
                    let lane = memory.lane(1);
                    lane.write(&room, &[3]);
                    producer.writer.fill(&lane, &room, 3, seriatim_loom_tests::memory::digest_of(&[3]));
                }
            })
        };
        let granted = memory.members[1].answer.get(generation).is_some();
        let (mut mine, mut first) = (Vec::new(), None);
        if granted {
            let me = Worker::begin(&memory, 1, generation);
            first = Some(me.first);
            mine = follow(me, 1, &places);
        }
        let (others, joined) = (worker.join().unwrap(), sequencer.join().unwrap());
        submitter.join().unwrap();
        assert!(first.is_none_or(|first| first == joined));
        let same = mine.iter().filter(|at| others.contains(at)).count();
        let both = mine.iter().filter(|at| others.iter().any(|other| other.0 == at.0)).count();
        assert_eq!(same, both, "{mine:?} {others:?}");
        outcomes.note(if same > 0 { "same digest" } else { "not yet" });
        assert_eq!(memory.lanes[0].fenced.load(Ordering::Relaxed), 0);
    });
}
