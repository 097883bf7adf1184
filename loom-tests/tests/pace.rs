//! Workers that differ: of two reports for one index at least one is found to differ, what was found is whole, and the
//! poison comes once, whenever sequencers die.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::crash::mortal;
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Size, Worker, name};
use seriatim_loom_tests::model;
use seriatim_ring::control::{POISONED, ProducerRole};
use seriatim_ring::event::{Event, OWN_LANE, WORDS};
use seriatim_ring::order::Look;
use seriatim_ring::pace::{Finding, Pace, differs, reported};
use seriatim_ring::reports::{Report, Reports};
use seriatim_ring::sequencer::{Orderer, Stop};
use seriatim_ring::sync::{AtomicU32, Ordering, prepare};
use std::sync::{Arc, Mutex};

fn report(index: u64, fingerprint: u64, member: u64) -> Report {
    Report { index, digest: index * 10, fingerprint, member }
}

/// Guards D2 (the fences in `reported`): two workers report different things for one index at the same time.
///
/// Allowed: that either finds the other's, or both do. Forbidden: that none does.
#[test]
fn of_two_who_differ_at_least_one_finds_it() {
    model("pace/both", 5, &["one", "both"], |outcomes| {
        let all = Arc::new([Reports::<2>::new(), Reports::<2>::new()]);
        let look = |all: &[Reports<2>; 2], me: usize| {
            let mine = report(40, me as u64, 1 + me as u64);
            all[me].push(mine);
            reported();
            differs(&mine, &all[1 - me]).is_some()
        };
        let other = thread::spawn({
            let all = Arc::clone(&all);
            move || look(&all, 1)
        });
        let found = [look(&all, 0), other.join().unwrap()];
        match found.into_iter().filter(|&found| found).count() {
            0 => panic!("nobody found it"),
            1 => outcomes.note("one"),
            _ => outcomes.note("both"),
        }
    });
}

/// Guards D1 (`done` / `done`): who is done with an index has reported it, as who waits for that sees.
///
/// Allowed: not done; done, with the report. Forbidden: done without it.
#[test]
fn who_is_done_with_an_index_is_seen_to_have_reported_it() {
    model("pace/done", 5, &["not yet", "done"], |outcomes| {
        let page = Arc::new((Reports::<2>::new(), Pace::new()));
        let worker = thread::spawn({
            let page = Arc::clone(&page);
            move || {
                page.0.push(report(40, 7, 1));
                page.1.finish(41);
            }
        });
        if page.1.done() > 40 {
            assert_eq!(page.0.at(40), Some(report(40, 7, 1)));
            outcomes.note("done");
        } else {
            outcomes.note("not yet");
        }
        worker.join().unwrap();
    });
}

fn finding() -> Finding {
    Finding { after: Some(39), mine: (1, report(40, 5, 8)), other: (0, report(40, 6, 7)) }
}

/// Guards D3 (`found` / `found`), and that it is not written twice.
///
/// Allowed: nothing found; what was found first, whole. Forbidden: a part of it, or of what came later.
#[test]
fn what_was_found_is_read_whole() {
    model("pace/found", 5, &["nothing", "found"], |outcomes| {
        let page = Arc::new((Pace::new(), AtomicU32::new(0)));
        let worker = thread::spawn({
            let page = Arc::clone(&page);
            move || {
                page.0.tell(&finding(), &page.1);
                page.0.tell(&Finding { mine: (3, report(50, 1, 1)), ..finding() }, &page.1);
            }
        });
        match page.0.found() {
            Some(found) => {
                assert_eq!(found, finding());
                outcomes.note("found");
            }
            None => outcomes.note("nothing"),
        }
        worker.join().unwrap();
    });
}

const SIZE: Size = Size {
    order_slots: 2,
    tickets: 16,
    producers: 1,
    lane_cells: 2,
    lane_bytes: 128,
    own_cells: 2,
    workers: 2,
};

const ORIGIN: Origin = Origin { seq: 38, ticket: u64::MAX - 1, cell: u64::MAX, byte: 0 };

/// The sequencer works until the poison is in the order, or the fuse ends it.
fn poison(memory: &Memory, fuse: usize) -> bool {
    let s = memory.shared();
    let serve = || {
        let mut orderer = Orderer::take_over(&s).expect("a region that is whole");
        if s.control.reign.state() == POISONED {
            return;
        }
        orderer.heed_findings(&s);
        for _ in 0..4 {
            let turn = orderer.turn(&s, 8);
            assert_eq!((turn.commands, turn.stop), (0, Stop::Poison), "nothing else is ordered");
            if orderer.poison(&s).is_some() {
                return;
            }
            orderer.free(&s);
        }
        panic!("there is room");
    };
    mortal(fuse, serve).is_none()
}

/// A worker has found something; two sequencers in a row die after so many of their stores, and a third one lives. Whether
/// they died.
fn die_and_succeed(first: usize, then: usize) -> [bool; 2] {
    let died = Arc::new(Mutex::new([false; 2]));
    let noted = Arc::clone(&died);
    let mut builder = loom::model::Builder::new();
    // One thread: nothing branches, but every access counts as a place where it could.
    builder.max_branches = 1_000_000;
    builder.check(move || {
        prepare();
        let memory = Memory::new(SIZE, ORIGIN);
        let s = memory.shared();
        let mut orderer = Orderer::take_over(&s).unwrap();
        let mut worker = Worker::join(&memory, &mut orderer, 0);
        orderer.admit(&s, 1, 1, name(7), ProducerRole::Injector).unwrap();
        worker.drain();
        orderer.free(&s);
        let mut producer = Producer::attach(&memory, 1);
        producer.try_submit(3, 8, 1).unwrap();
        let end = orderer.next();
        drop(orderer);
        memory.workers[1].pace.tell(&finding(), memory.bells.requests_word());
        *noted.lock().expect("nobody panics here") = [poison(&memory, first), poison(&memory, then)];
        assert!(!poison(&memory, usize::MAX));
        let told = (s.control.reign.state(), s.control.poison.at.load(Ordering::Relaxed));
        assert_eq!(told, (POISONED, end.get() + 1));
        assert_eq!(s.control.poison.finder.load(Ordering::Relaxed), 1);
        assert_eq!(s.control.published.next.load(Ordering::Relaxed), end.get() + 1);
        let Look::Here(run) = s.order.read(s.order.last().unwrap()) else { panic!("the last run") };
        assert_eq!((run.first, run.lane, run.count), (end, OWN_LANE, 1));
        let (entry, mut words) = (s.own.read(run.cell).unwrap(), [0; WORDS]);
        s.own.copy(&entry, &mut words);
        assert_eq!(Event::decode(entry.kind, &words), Some(Event::of_finding(&finding())));
    });
    *died.lock().expect("nobody panics here")
}

/// Sequencers die before any of their stores, and so do their successors.
///
/// Forbidden: that the poison is not there in the end, or twice, or that anything was ordered before it although there
/// is something to order.
#[test]
fn the_poison_comes_once_whenever_sequencers_die() {
    let mut plays = 0;
    for first in 0.. {
        let mut died = [true; 2];
        for then in 0.. {
            plays += 1;
            died = die_and_succeed(first, then);
            if !died[1] {
                break;
            }
        }
        if !died[0] {
            break;
        }
    }
    println!("model pace/poison: {plays} executions");
    assert!(plays > 50, "sequencers died {plays} times");
}
