//! Threads: bounded by count, every waiter yields, every command is checked.

use crate::memory::{Memory, Origin, Producer, Size, Worker, name, payload};
use seriatim_ring::Seq;
use seriatim_ring::control::{ProducerRole, Verdict, Want};
use seriatim_ring::event::OWN_LANE;
use seriatim_ring::lane::NoRoom;
use seriatim_ring::order::Look;
use seriatim_ring::parts::Address;
use seriatim_ring::sequencer::{Orderer, Stop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const SIZE: Size = Size {
    order_slots: 8,
    tickets: 64,
    producers: 3,
    lane_cells: 16,
    lane_bytes: 512,
    own_cells: 8,
    workers: 3,
};

const EACH: u64 = if cfg!(miri) { 40 } else { 20_000 };

/// Length of a producer's command `n`.
fn length(n: u64) -> u32 {
    [0, 1, 8, 39, 40, 41, 64, 65, 200, 256][n as usize % 10]
}

fn seed(lane: u16, n: u64) -> u64 {
    u64::from(lane) << 32 | n
}

/// A producer that submits `EACH` commands in batches of up to four.
fn produce(memory: &Memory, lane: u16) {
    let mut me = Producer::attach(memory, lane);
    let mut n = 0;
    while n < EACH {
        match me.put(n as u16, &payload(seed(lane, n), length(n)), length(n)) {
            Ok(()) => {
                n += 1;
                if me.writer.reserved() <= (n % 4) as u32 && n < EACH {
                    continue;
                }
                me.commit().unwrap();
            }
            Err(NoRoom::Full) if me.writer.reserved() > 0 => drop(me.commit().unwrap()),
            Err(NoRoom::Full) => {
                memory.bells.want_room(Want::Now);
                thread::yield_now();
            }
            Err(damaged) => panic!("{damaged:?}"),
        }
    }
}

/// A worker that reads until it has seen every command of every lane that comes after its first index; returns
/// where it ended, and some digests on the way.
fn work(mut me: Worker<'_>, from_start: bool) -> (Seq, u64) {
    let mut next = [None; SIZE.producers + 1];
    if from_start {
        next = [Some(0); SIZE.producers + 1];
    }
    let done = |next: &[Option<u64>]| next[1..].iter().all(|n| *n == Some(EACH));
    while !done(&next) {
        let Some(seen) = me.poll().unwrap() else {
            me.release();
            thread::yield_now();
            continue;
        };
        if seen.lane != OWN_LANE {
            let place = &mut next[usize::from(seen.lane)];
            // A newcomer meets a lane in its middle.
            let n = place.unwrap_or_else(|| (0..EACH).find(|&n| matches(&seen, n)).expect("one of them"));
            assert!(matches(&seen, n), "lane {} at {n}: {seen:?}", seen.lane);
            *place = Some(n + 1);
        }
        if seen.seq % 7 == 0 {
            me.release();
        }
    }
    me.release();
    (me.follower.next(), me.digest)
}

fn matches(seen: &crate::memory::Seen, n: u64) -> bool {
    seen.kind == n as u16 && seen.len == length(n) && seen.words == payload(seed(seen.lane, n), seen.len)
}

/// Copies what it can and checks that nothing is a mix.
fn observe(memory: &Memory, stop: &AtomicBool) -> u64 {
    let (order, mut number, mut whole) = (memory.order(), 0, 0);
    while !stop.load(Ordering::Relaxed) {
        match order.observe(number) {
            Look::Pending => thread::yield_now(),
            Look::Lapped => number = memory.control.published.run.load(Ordering::Relaxed).saturating_sub(2),
            Look::Here(run) => {
                let lane = memory.lane(run.lane);
                for i in 0..u64::from(run.count) {
                    let cell = run.cell.wrapping_add(i);
                    let Ok(entry) = lane.read(cell) else {
                        assert!(!lane.still_there(cell, None));
                        continue;
                    };
                    let words = crate::memory::copy(&lane, &entry);
                    if lane.still_there(cell, Some(&entry)) && run.lane != OWN_LANE {
                        assert_eq!(crate::memory::digest_of(&words), entry.digest, "{run:?} {entry:?}");
                        whole += 1;
                    }
                }
                number += 1;
            }
        }
    }
    whole
}

#[test]
fn threads_agree_on_every_command() {
    let origin =
        Origin { seq: (1 << 32) - 3, ticket: u64::MAX - 5, cell: u64::MAX - 7, byte: 256u64.wrapping_neg() };
    let memory = Memory::new(SIZE, origin);
    let s = memory.shared();
    let mut orderer = Orderer::take_over(&s).unwrap();
    let mut first = Worker::join(&memory, &mut orderer, 0);
    let second = Worker::join(&memory, &mut orderer, 1);
    for lane in 1..=SIZE.producers as u16 {
        assert_eq!(
            orderer.admit(&s, lane, 1, name(lane.into()), ProducerRole::Injector),
            Some(Verdict::Granted)
        );
        first.drain();
    }
    let (stop, dry) = (AtomicBool::new(false), AtomicBool::new(false));
    let ends = thread::scope(|scope| {
        let sequencer = scope.spawn(|| {
            let mut dead = 0;
            while !dry.load(Ordering::Relaxed) {
                let s = memory.shared();
                let turn = orderer.turn(&s, 3);
                if s.bells.take_wanted().is_some() || turn.stop == Stop::Held {
                    orderer.free(&s);
                }
                if turn.commands == 0 {
                    thread::yield_now();
                }
                // It dies between two turns, now and then.
                if orderer.next_run() % 1024 == 7 && dead < 50 {
                    dead += 1;
                    orderer = Orderer::take_over(&s).unwrap();
                }
                let (party, member) = (&memory.workers[2].party, &memory.members[2]);
                if party.request() != member.answer.generation() {
                    orderer.join(&s, 2, party.request(), party.name.load(), Address::ALL);
                }
                orderer.announce(&s);
            }
        });
        let producers: Vec<_> = (1..=SIZE.producers as u16)
            .map(|lane| {
                scope.spawn({
                    let memory = &memory;
                    move || produce(memory, lane)
                })
            })
            .collect();
        let observer = scope.spawn(|| observe(&memory, &stop));
        let workers = [
            scope.spawn(move || work(first, true)),
            scope.spawn(move || work(second, true)),
            scope.spawn(|| {
                let party = &memory.workers[2].party;
                party.name.store(name(102));
                let generation = party.ask(memory.bells.requests_word());
                while memory.members[2].answer.get(generation).is_none() {
                    thread::yield_now();
                }
                work(Worker::begin(&memory, 2, generation), false)
            }),
        ];
        let ends = workers.map(|worker| worker.join().unwrap());
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        observer.join().unwrap();
        dry.store(true, Ordering::Relaxed);
        sequencer.join().unwrap();
        ends
    });
    assert!(ends.iter().all(|end| end.0.get() - origin.seq >= EACH * SIZE.producers as u64));
    for pair in ends.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].1 == pair[1].1, "{ends:?}");
    }
}
