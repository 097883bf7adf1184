//! Sleeping and waking. Nobody here has a time-out: a lost wake-up is a deadlock.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Size, Worker};
use seriatim_loom_tests::{Futex, Outcomes, model};
use seriatim_ring::control::Want;
use seriatim_ring::lane::NoRoom;
use seriatim_ring::sequencer::Orderer;
use seriatim_ring::sync::{AtomicU32, Ordering};
use seriatim_ring::wake::{Bell, FOR_ROOM, FOR_WORK, made_true};
use std::sync::Arc;

const SIZE: Size = Size {
    order_slots: 4,
    tickets: 8,
    producers: 2,
    lane_cells: 2,
    lane_bytes: 64,
    own_cells: 2,
    workers: 1,
};

/// A region with the mechanism that sleeps.
struct Host {
    memory: Memory,
    sequencer: Futex,
    workers: Futex,
    producers: Futex,
}

/// A region in front of one worker; the first lane holds `full` commands that are in the order and not read.
fn host(full: u64) -> (Arc<Host>, Orderer) {
    let memory = Memory::new(SIZE, Origin::default());
    let mut orderer = Orderer::take_over(&memory.shared()).unwrap();
    Worker::join(&memory, &mut orderer, 0).drain();
    orderer.free(&memory.shared());
    let mut producer = Producer::attach(&memory, 1);
    for n in 0..full {
        producer.try_submit(0, 8, n).unwrap();
    }
    assert_eq!(orderer.turn(&memory.shared(), 4).commands, full);
    let futex = Futex::default;
    let host = Host { memory, sequencer: futex(), workers: futex(), producers: futex() };
    (Arc::new(host), orderer)
}

/// Sleeps on a bell unless `is_there` says, after the announcement, that there is no need to.
fn sleep(bell: &Bell, futex: &Futex, level: u32, is_there: impl FnOnce() -> bool, outcomes: &Outcomes) {
    let seen = bell.announce(level);
    if !is_there() {
        futex.wait(bell.word(), seen);
        outcomes.note("slept");
    }
}

/// Wakes who sleeps for what became true.
fn wake(bell: &Bell, futex: &Futex, level: u32) {
    made_true();
    if bell.is_announced(level) {
        bell.ring();
        futex.wake_all();
    }
}

/// Guards W3 (swap and load / fence): the sequencer sleeps, a producer submits.
///
/// Allowed: it sleeps and is woken, or finds the ticket before it sleeps. Forbidden: it sleeps with a ticket in.
#[test]
fn a_ticket_wakes_the_sequencer() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/sequencer", 4, &["ordered"], move |ended| {
        let (host, mut orderer) = host(0);
        let producer = {
            let host = Arc::clone(&host);
            thread::spawn(move || {
                Producer::attach(&host.memory, 1).try_submit(0, 8, 1).unwrap();
                let bell = &host.memory.bells.sequencer;
                if bell.is_announced_since_swap() {
                    bell.ring();
                    host.sequencer.wake_all();
                }
            })
        };
        let s = host.memory.shared();
        while orderer.turn(&s, 1).commands == 0 {
            let level = orderer.sleep_level(&s);
            sleep(&s.bells.sequencer, &host.sequencer, level, || orderer.is_needed(&s, level), &noted);
        }
        ended.note("ordered");
        producer.join().unwrap();
    });
    assert!(outcomes.count("slept") > 0);
}

/// Guards W1: a worker sleeps, the sequencer publishes.
///
/// Allowed: it sleeps and is woken, or finds the run before it sleeps. Forbidden: it sleeps in front of a run.
#[test]
fn a_run_wakes_a_worker() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/worker", 4, &["read"], move |ended| {
        let (host, mut orderer) = host(0);
        Producer::attach(&host.memory, 1).try_submit(0, 8, 1).unwrap();
        let mut worker = Worker::waiting(&host.memory, 0);
        let sequencer = {
            let host = Arc::clone(&host);
            thread::spawn(move || {
                orderer.turn(&host.memory.shared(), 1);
                wake(&host.memory.bells.workers, &host.workers, FOR_WORK);
            })
        };
        while worker.poll().unwrap().is_none() {
            let order = host.memory.order();
            let is_there = || worker.follower.peek(&order).unwrap().is_some();
            sleep(&host.memory.bells.workers, &host.workers, FOR_WORK, is_there, &noted);
        }
        ended.note("read");
        sequencer.join().unwrap();
    });
    assert!(outcomes.count("slept") > 0);
}

/// Guards W1 three times over, and the level [`FOR_ROOM`]: a producer sleeps for room, the sequencer sleeps for
/// the producer's sake, a worker moves on.
///
/// Allowed: all ways in which all three end. Forbidden: a cursor that moved and a producer that sleeps.
#[test]
fn a_cursor_wakes_the_sequencer_and_that_wakes_a_producer() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/room", 2, &["room"], move |ended| {
        let (host, mut orderer) = host(2);
        let mut producer = Producer::attach(&host.memory, 1);
        let worker = {
            let host = Arc::clone(&host);
            thread::spawn(move || {
                let mut me = Worker::at_cursor(&host.memory, 0);
                me.poll().unwrap().unwrap();
                me.release();
                wake(&host.memory.bells.sequencer, &host.sequencer, FOR_ROOM);
            })
        };
        let sequencer = {
            let (host, noted) = (Arc::clone(&host), Arc::clone(&noted));
            thread::spawn(move || {
                let s = host.memory.shared();
                let before = orderer.anchor();
                while orderer.anchor() == before {
                    if s.bells.take_wanted().is_some() || s.bells.producers.is_announced(FOR_WORK) {
                        orderer.free(&s);
                    }
                    if orderer.anchor() == before {
                        let level = orderer.sleep_level(&s);
                        let is_there = || orderer.is_needed(&s, level);
                        sleep(&s.bells.sequencer, &host.sequencer, level, is_there, &noted);
                    }
                }
                wake(&s.bells.producers, &host.producers, FOR_WORK);
            })
        };
        let bells = &host.memory.bells;
        while let Err(full) = producer.reserve(8) {
            assert_eq!(full, NoRoom::Full);
            let is_there = || {
                bells.want_room(Want::Now);
                wake(&bells.sequencer, &host.sequencer, FOR_WORK);
                // The attempt itself looks again.
                producer.reserve(8).map(|_| producer.writer.abandon()).is_ok()
            };
            sleep(&bells.producers, &host.producers, FOR_WORK, is_there, &noted);
        }
        ended.note("room");
        worker.join().unwrap();
        sequencer.join().unwrap();
    });
    assert!(outcomes.count("slept") > 0);
}

/// Guards the second look for wants: a producer that does not wait found no room and says so, while the sequencer
/// lies down behind a gate that has moved already.
///
/// Allowed: the sequencer frees, before or after a sleep. Forbidden: it sleeps on a want.
#[test]
fn a_want_wakes_the_sequencer() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/want", 4, &["freed"], move |ended| {
        let (host, mut orderer) = host(2);
        Worker::at_cursor(&host.memory, 0).drain();
        let producer = {
            let host = Arc::clone(&host);
            thread::spawn(move || {
                host.memory.bells.want_room(Want::Now);
                wake(&host.memory.bells.sequencer, &host.sequencer, FOR_WORK);
            })
        };
        let s = host.memory.shared();
        while !(s.bells.take_wanted().is_some() && orderer.free(&s)) {
            let level = orderer.sleep_level(&s);
            sleep(&s.bells.sequencer, &host.sequencer, level, || orderer.is_needed(&s, level), &noted);
        }
        ended.note("freed");
        producer.join().unwrap();
    });
    assert!(outcomes.count("slept") > 0);
}

/// Guards the second look at [`FOR_ROOM`]: the sequencer lies down for one producer's sake (who sleeps for room
/// that does not come) while another producer submits.
///
/// Allowed: it finds the ticket before it sleeps, or is woken. Forbidden: it sleeps for room with a ticket in.
#[test]
fn a_sequencer_that_sleeps_for_room_is_woken_by_a_ticket() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/room and work", 4, &["ordered"], move |ended| {
        let (host, mut orderer) = host(2);
        let _ = host.memory.bells.producers.announce(FOR_WORK);
        let other = {
            let host = Arc::clone(&host);
            thread::spawn(move || {
                Producer::attach(&host.memory, 2).try_submit(0, 8, 1).unwrap();
                wake(&host.memory.bells.sequencer, &host.sequencer, FOR_WORK);
            })
        };
        let s = host.memory.shared();
        while orderer.turn(&s, 1).commands == 0 {
            let level = orderer.sleep_level(&s);
            assert_eq!(level, FOR_ROOM);
            sleep(&s.bells.sequencer, &host.sequencer, level, || orderer.is_needed(&s, level), &noted);
        }
        ended.note("ordered");
        other.join().unwrap();
    });
    assert!(outcomes.count("slept") > 0);
}

/// A word that becomes true, with what its waiters sleep on.
struct Event {
    bell: Bell,
    futex: Futex,
    count: AtomicU32,
}

impl Event {
    fn new() -> Arc<Self> {
        Arc::new(Event { bell: Bell::new(), futex: Futex::default(), count: AtomicU32::new(0) })
    }

    fn is(&self, count: u32) -> bool {
        self.count.load(Ordering::Relaxed) >= count
    }

    fn wait(&self, count: u32, outcomes: &Outcomes) {
        while !self.is(count) {
            sleep(&self.bell, &self.futex, FOR_WORK, || self.is(count), outcomes);
        }
    }

    fn raise(&self, count: u32) {
        self.count.store(count, Ordering::Relaxed);
        wake(&self.bell, &self.futex, FOR_WORK);
    }
}

/// Guards W1 with two sleepers on one bell: the waker withdraws both announcements and wakes both.
///
/// Allowed: each sleeps or finds the event. Forbidden: one is woken and the other sleeps on.
#[test]
fn one_waker_wakes_two_sleepers() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/two sleepers", 3, &["all awake"], move |ended| {
        let event = Event::new();
        let sleepers = [0, 1].map(|_| {
            let (event, noted) = (Arc::clone(&event), Arc::clone(&noted));
            thread::spawn(move || event.wait(1, &noted))
        });
        event.raise(1);
        sleepers.into_iter().for_each(|s| s.join().unwrap());
        ended.note("all awake");
    });
    assert!(outcomes.count("slept") > 0);
}

/// Guards W2 (`ring` / `announce`): a sleeper that saw the word moved announces itself again, for the next event,
/// after the withdrawal of its first announcement.
///
/// Allowed: it sleeps up to twice and is woken each time. Forbidden: the old withdrawal takes the new
/// announcement back, and the second event wakes nobody.
#[test]
fn an_old_withdrawal_does_not_take_a_new_announcement_back() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/again", 3, &["awake"], move |ended| {
        let event = Event::new();
        let waker = {
            let event = Arc::clone(&event);
            thread::spawn(move || (1..3).for_each(|count| event.raise(count)))
        };
        event.wait(1, &noted);
        event.wait(2, &noted);
        ended.note("awake");
        waker.join().unwrap();
    });
    assert!(outcomes.count("slept") > 0);
}

/// Two wakers of one sleeper: one of them may withdraw an announcement for the other's event.
///
/// Allowed: one or both ring. Forbidden: the sleeper sleeps when both events are there.
#[test]
fn two_wakers_do_not_hide_each_other() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/two wakers", 3, &["awake"], move |ended| {
        let events = [Event::new(), Event::new()];
        let (bell, futex) = (Arc::new(Bell::new()), Arc::new(Futex::default()));
        let wakers = events.clone().map(|event| {
            let (bell, futex) = (Arc::clone(&bell), Arc::clone(&futex));
            thread::spawn(move || {
                event.count.store(1, Ordering::Relaxed);
                wake(&bell, &futex, FOR_WORK);
            })
        });
        for event in &events {
            while !event.is(1) {
                sleep(&bell, &futex, FOR_WORK, || event.is(1), &noted);
            }
        }
        ended.note("awake");
        wakers.into_iter().for_each(|w| w.join().unwrap());
    });
    assert!(outcomes.count("slept") > 0);
}

impl Event {
    /// As [`wait`](Self::wait), where few are woken: who is woken wakes another one first, unless it `dies` before.
    fn wait_in_line(&self, count: u32, dies: impl Fn() -> bool, outcomes: &Outcomes) {
        while !self.is(count) {
            let seen = self.bell.announce(FOR_WORK);
            if !self.is(count) && self.futex.wait(self.bell.word(), seen) {
                outcomes.note("slept");
                if dies() {
                    return;
                }
                self.futex.wake(1, self.bell.marks_before());
            }
        }
    }

    /// As [`raise`](Self::raise), but wakes one alone; whether there was one.
    fn raise_for_one(&self, count: u32) -> bool {
        self.count.store(count, Ordering::Relaxed);
        made_true();
        if self.bell.is_announced(FOR_WORK) {
            self.bell.ring();
        }
        self.wake_one()
    }

    fn wake_one(&self) -> bool {
        self.futex.wake(1, self.bell.marks_before()) > 0
    }
}

/// Guards the handing on of a wake-up: the waker wakes one and does nothing more.
///
/// Allowed: each sleeps or finds the event. Forbidden: somebody sleeps on, for instance because only those are woken who
/// lay down before some other ring.
#[test]
fn who_is_woken_wakes_the_next() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/in line", 2, &["all awake"], move |ended| {
        let event = Event::new();
        let sleepers = [0, 1].map(|_| {
            let (event, noted) = (Arc::clone(&event), Arc::clone(&noted));
            thread::spawn(move || (1..3).for_each(|count| event.wait_in_line(count, || false, &noted)))
        });
        (1..3).for_each(|count| _ = event.raise_for_one(count));
        sleepers.into_iter().for_each(|s| s.join().unwrap());
        ended.note("all awake");
    });
    assert!(outcomes.count("slept") > 0);
}

/// Guards the waker's going on: who is woken first dies before it wakes the next.
///
/// Allowed: the others sleep or find the event. Forbidden: one sleeps on although the waker has gone on until nobody
/// was left.
#[test]
fn who_dies_when_it_is_woken_leaves_nobody_asleep() {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    model("wake/broken line", 2, &["all awake"], move |ended| {
        let (event, deaths) = (Event::new(), Arc::new(AtomicU32::new(0)));
        let sleepers = [0, 1, 2].map(|_| {
            let (event, deaths, noted) = (Arc::clone(&event), Arc::clone(&deaths), Arc::clone(&noted));
            let dies = move || deaths.fetch_add(1, Ordering::Relaxed) == 0;
            thread::spawn(move || event.wait_in_line(1, dies, &noted))
        });
        let mut may_be_left = event.raise_for_one(1);
        while may_be_left {
            may_be_left = event.wake_one();
        }
        sleepers.into_iter().for_each(|s| s.join().unwrap());
        ended.note("all awake");
    });
    assert!(outcomes.count("slept") > 0);
}
