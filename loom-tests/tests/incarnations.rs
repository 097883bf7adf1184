//! Incarnations: what a claim hands over, and what a controller can conclude about its commands.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::crash::{model_of_death, mortal};
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Seen, Size, Worker};
use seriatim_loom_tests::model;
use seriatim_ring::Seq;
use seriatim_ring::incarnations::{Current, Fate, HELLO, Hello};
use seriatim_ring::sequencer::{Orderer, has_ordered};
use seriatim_ring::sync::Ordering;
use std::sync::Arc;

const SIZE: Size = Size {
    order_slots: 8,
    tickets: 16,
    producers: 2,
    lane_cells: 4,
    lane_bytes: 64,
    own_cells: 2,
    workers: 2,
};

/// The lanes of the older and of the newer controller.
const OLD: u16 = 1;
const NEW: u16 = 2;

/// A region with two controllers' lanes, and with so many workers that have begun.
fn region(workers: u16) -> (Arc<Memory>, Orderer) {
    let memory = Arc::new(Memory::new(SIZE, Origin { seq: 40, ..Origin::default() }));
    let mut orderer = Orderer::take_over(&memory.shared()).unwrap();
    memory.appoint(OLD, 1);
    memory.appoint(NEW, 2);
    (0..workers).for_each(|slot| drop(Worker::join(&memory, &mut orderer, slot).drain()));
    (memory, orderer)
}

/// Claims the next number for the owner of a lane and says hello.
fn open(memory: &Memory, lane: u16, nonce: u64) -> u64 {
    let number = memory.incarnations().claim(lane, nonce).unwrap();
    say_hello(memory, lane, number);
    number
}

fn say_hello(memory: &Memory, lane: u16, number: u64) {
    let mut producer = Producer::attach(memory, lane);
    producer.put(HELLO, &Hello { number, nonce: 0 }.encode(), 16).unwrap();
    producer.commit().unwrap();
}

/// Whether a hello is among what was seen, before a command of the old controller.
fn place(seen: &[Seen], is_it: impl Fn(&Seen) -> bool) -> Option<u64> {
    seen.iter().find(|seen| is_it(seen)).map(|seen| seen.seq)
}

/// Guards I1 (a term's word / its word) and I2 (fence / fence): who finds a number in a term sees its nonce. The
/// claimer had claimed in the same lane before.
///
/// Allowed: nothing found; the first or the second claim with its own nonce. Forbidden: a number with the nonce of
/// the other one.
#[test]
fn who_sees_a_claim_sees_its_nonce() {
    model("incarnations/claimant", 4, &["first", "neither", "second"], |outcomes| {
        let (memory, _orderer) = region(0);
        let claimer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let all = memory.incarnations();
                (all.claim(OLD, 100).unwrap(), all.claim(OLD, 200).unwrap())
            })
        };
        let all = memory.incarnations();
        match (all.claimant(1), all.claimant(2)) {
            (_, Some(found)) => {
                assert_eq!(found, (OLD, 200));
                outcomes.note("second");
            }
            (Some(found), None) => {
                assert_eq!(found, (OLD, 100));
                outcomes.note("first");
            }
            (None, None) => outcomes.note("neither"),
        }
        assert_eq!(claimer.join().unwrap(), (1, 2));
    });
}

/// Two claims at once: each has a number of its own, and none is left out.
#[test]
fn numbers_are_dense_and_nobodys_twice() {
    model("incarnations/numbers", 4, &["first is lower", "second is lower"], |outcomes| {
        let (memory, _orderer) = region(0);
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.incarnations().claim(NEW, 0).unwrap())
        };
        let mine = memory.incarnations().claim(OLD, 0).unwrap();
        let other = other.join().unwrap();
        assert_eq!((mine.min(other), mine.max(other)), (1, 2));
        assert_eq!(memory.incarnations().newest(), 2);
        outcomes.note(if mine < other { "first is lower" } else { "second is lower" });
    });
}

/// Guards that a number which is still the newest proves something: through T1, R1 and O1. The old controller finds
/// its command in the order and looks at the numbers then, while the new one claims and says hello.
///
/// Allowed: heard or not known yet; both with any order of hello and command that the look fits. Forbidden: "heard"
/// about a command that a newer hello came before.
#[test]
fn what_is_heard_has_no_newer_hello_before_it() {
    let allowed = ["heard, hello later", "newer, hello earlier", "newer, hello later", "not ordered"];
    model("incarnations/newest", 3, &allowed, |outcomes| {
        let (memory, mut orderer) = region(1);
        assert_eq!(open(&memory, OLD, 0), 1);
        orderer.turn(&memory.shared(), 8);
        let mut old = Producer::attach(&memory, OLD);
        let cell = memory.lanes[usize::from(OLD)].ordered.load(Ordering::Relaxed);
        let new = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || drop(open(&memory, NEW, 0)))
        };
        let sequencer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                orderer.turn(&memory.shared(), 1);
                orderer.turn(&memory.shared(), 2);
                orderer
            })
        };
        old.try_submit(0, 8, 7).unwrap();
        let ordered = has_ordered(&memory.lanes[usize::from(OLD)], cell);
        let heard = ordered.then(|| memory.incarnations().newest() == 1);
        new.join().unwrap();
        let mut orderer = sequencer.join().unwrap();
        orderer.turn(&memory.shared(), 8);
        let seen = Worker::at_cursor(&memory, 0).drain();
        let hello = place(&seen, |seen| (seen.lane, seen.kind) == (NEW, HELLO)).expect("it was said");
        let command = place(&seen, |seen| (seen.lane, seen.kind) == (OLD, 0)).expect("it was sent");
        match heard {
            Some(true) => {
                assert!(command < hello, "heard at {command}, behind the hello at {hello}");
                outcomes.note("heard, hello later");
            }
            Some(false) if hello < command => outcomes.note("newer, hello earlier"),
            Some(false) => outcomes.note("newer, hello later"),
            None => outcomes.note("not ordered"),
        }
    });
}

/// Guards that who asks after its command is not told that it is heard when it is not: a worker ends the term before
/// its gate (G1) passes the hello. Both orders of hello and command are in the order already.
///
/// Allowed: not known yet, or what is true. Forbidden: the other thing.
#[test]
fn who_has_passed_a_command_has_ended_the_term() {
    for late in [false, true] {
        let (name, allowed) = if late {
            ("incarnations/late", ["open", "void"])
        } else {
            ("incarnations/early", ["heard", "open"])
        };
        model(name, 2, &allowed, move |outcomes| {
            let (memory, mut orderer) = region(2);
            assert_eq!(open(&memory, OLD, 0), 1);
            let send = || Producer::attach(&memory, OLD).try_submit(0, 8, 7).unwrap();
            orderer.turn(&memory.shared(), 8);
            if !late {
                send();
                orderer.turn(&memory.shared(), 8);
            }
            assert_eq!(open(&memory, NEW, 0), 2);
            orderer.turn(&memory.shared(), 8);
            if late {
                send();
                orderer.turn(&memory.shared(), 8);
            }
            let at = Seq::new(if late { orderer.next().get() - 1 } else { orderer.next().get() - 2 });
            let workers = [0, 1].map(|slot| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    let mut me = Worker::at_cursor(&memory, slot);
                    while me.poll().unwrap().is_some() {
                        me.release();
                    }
                    me.current
                })
            });
            let passed = || memory.workers.iter().any(|page| page.cursor.position() > at);
            match memory.incarnations().fate(OLD, 1, at, passed) {
                Fate::Heard => outcomes.note("heard"),
                Fate::Void => outcomes.note("void"),
                Fate::Open => outcomes.note("open"),
                other => panic!("{other:?}"),
            }
            for worker in workers {
                assert_eq!(worker.join().unwrap(), Current::new(2, NEW));
            }
        });
    }
}

/// A controller stops before any of its stores, between nothing and its hello's ticket, while the next one opens.
///
/// Allowed: the dead one is current, or never was. Forbidden: that the next one is not, in the end; that a worker that
/// has all and one that starts at the anchor differ.
#[test]
fn a_controller_that_dies_at_any_step_is_followed_by_the_next() {
    let allowed =
        ["it said hello, after its successor", "it said hello, and was followed", "it said nothing"];
    model_of_death("incarnations/death", 1, &allowed, |stores, outcomes| {
        let (memory, mut orderer) = region(1);
        let next = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || open(&memory, NEW, 2))
        };
        let died = mortal(stores, || open(&memory, OLD, 1)).is_none();
        let number = next.join().unwrap();
        orderer.turn(&memory.shared(), 8);
        let mut worker = Worker::at_cursor(&memory, 0);
        let seen = worker.drain();
        let hello = |lane| place(&seen, |seen| (seen.lane, seen.kind) == (lane, HELLO));
        // One more, as a successor of the one that died, of the same name.
        let (first, second) = (hello(OLD), hello(NEW).expect("it lives"));
        let highest =
            if number == 1 && first.is_some() { Current::new(2, OLD) } else { Current::new(number, NEW) };
        assert_eq!(worker.current, highest);
        assert!(memory.incarnations().newest() >= number);
        orderer.free(&memory.shared());
        let third = open(&memory, OLD, 3);
        assert!(third > number && third > highest.number());
        orderer.turn(&memory.shared(), 8);
        let newcomer = Worker::join(&memory, &mut orderer, 1).current;
        assert_eq!(newcomer, highest, "as of the anchor");
        worker.drain();
        assert_eq!(worker.current, Current::new(third, OLD));
        outcomes.note(match first {
            None => "it said nothing",
            Some(first) if first < second => "it said hello, and was followed",
            Some(_) => "it said hello, after its successor",
        });
        died
    });
}
