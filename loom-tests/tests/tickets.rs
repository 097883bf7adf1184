//! The ticket queue: two producers and the sequencer, over the wrap, with a stale hint, and its end.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::memory::{Memory, Origin, Producer, Size};
use seriatim_loom_tests::{Outcomes, Traced, model};
use seriatim_ring::control::LaneEntry;
use seriatim_ring::sequencer::{Orderer, has_ordered};
use seriatim_ring::sync::{AtomicU64, Ordering};
use seriatim_ring::tickets::{Closed, Enqueuer, Refused, Ticket, Tickets};
use std::sync::Arc;

/// A queue on its own.
struct Queue {
    hint: AtomicU64,
    words: Vec<AtomicU64>,
    void: AtomicU64,
    /// How far the queue is consumed, as lanes tell producers.
    released: AtomicU64,
    places: Traced,
}

impl Queue {
    fn new(slots: usize, start: u64) -> Arc<Self> {
        let queue = Queue {
            hint: AtomicU64::new(0),
            words: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            void: AtomicU64::new(start),
            released: AtomicU64::new(start),
            places: Traced::new(8),
        };
        queue.tickets().start_at(start);
        Arc::new(queue)
    }

    fn tickets(&self) -> Tickets<'_> {
        Tickets::new(&self.hint, &self.words)
    }

    fn enqueue(&self, me: &mut Enqueuer, lane: u16, count: u32) -> Result<u64, Refused> {
        me.enqueue(&self.tickets(), Ticket::Cells { lane, count }, &self.void)
    }

    /// What a producer does: fills its place, then queues it. Lane and count say which place that is.
    fn submit(&self, me: &mut Enqueuer, lane: u16, count: u32) -> Result<u64, Refused> {
        self.places.write(u64::from(lane) * 4 + u64::from(count));
        self.enqueue(me, lane, count)
    }

    /// What the sequencer does at `at`.
    fn take(&self, at: u64) -> Option<(u16, u32)> {
        match self.tickets().peek(at)? {
            Ticket::Close => None,
            Ticket::Cells { lane, count } => {
                self.places.read(u64::from(lane) * 4 + u64::from(count));
                Some((lane, count))
            }
        }
    }
}

/// Takes what is there at `from + taken.len()`.
fn take_one(queue: &Queue, from: u64, taken: &mut Vec<(u16, u32)>) {
    if let Some(ticket) = queue.take(from.wrapping_add(taken.len() as u64)) {
        taken.push(ticket);
        // ORDERING [L1]: Release; stands for the release of the lane's cells.
        queue.released.store(from.wrapping_add(taken.len() as u64), Ordering::Release);
    }
}

/// Takes tickets from `from` on, all that are there after the producers have ended, and checks that each lane's
/// come in their order.
fn take_all(queue: &Queue, from: u64, mut taken: Vec<(u16, u32)>) -> Vec<(u16, u32)> {
    let mut before = usize::MAX;
    while taken.len() != before {
        before = taken.len();
        take_one(queue, from, &mut taken);
    }
    for lane in 0..2 {
        let counts: Vec<_> = taken.iter().filter(|t| t.0 == lane).map(|t| t.1).collect();
        assert!(counts.is_sorted_by(|a, b| a < b), "lane {lane} out of order: {taken:?}");
    }
    taken
}

fn note_order(outcomes: &Outcomes, taken: &[(u16, u32)]) {
    outcomes.note(if taken[0].0 == 0 { "first lane first" } else { "second lane first" });
}

/// Guards T1 (swap / load). Two producers queue two tickets and one, over the end of the ring of words and over
/// the wrap of positions.
///
/// Allowed: every order of the two lanes. Forbidden: a ticket lost or seen twice, two producers at one position,
/// a lane's tickets out of order, a ticket whose cells are not there.
#[test]
fn tickets_come_once_and_in_their_producers_order() {
    model("tickets/two", 3, &["first lane first", "second lane first"], |outcomes| {
        let start = u64::MAX - 1;
        let queue = Queue::new(4, start);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.submit(&mut Enqueuer::new(start), 1, 1).unwrap())
        };
        let mine = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut me = Enqueuer::new(start);
                [1, 2].map(|count| queue.submit(&mut me, 0, count).unwrap())
            })
        };
        let mut taken = Vec::new();
        (0..3).for_each(|_| take_one(&queue, start, &mut taken));
        let (other, mine) = (other.join().unwrap(), mine.join().unwrap());
        let taken = take_all(&queue, start, taken);
        assert_eq!(taken.len(), 3);
        note_order(outcomes, &taken);
        assert_eq!(taken[other.wrapping_sub(start) as usize], (1, 1));
        for (at, count) in mine.into_iter().zip([1, 2]) {
            assert_eq!(taken[at.wrapping_sub(start) as usize], (0, count));
        }
    });
}

/// Guards T1 and the reuse of words (turns). Two words; each producer has room for one ticket at a time, so the
/// second turn overwrites the first. The shared hint is a turn behind, one producer's own hint is two turns
/// behind.
///
/// Allowed: every order. Forbidden: a ticket overwritten before it is taken, lost, or seen twice; a producer
/// that never ends.
#[test]
fn a_word_is_used_again_after_its_ticket_is_taken() {
    model("tickets/turns", 3, &["first turn", "no room", "second turn"], |outcomes| {
        let start = 4;
        let queue = Queue::new(2, start);
        queue.hint.store(2, Ordering::Relaxed);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.submit(&mut Enqueuer::new(0), 1, 1).unwrap())
        };
        let mine = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut me = Enqueuer::new(start);
                let at = queue.submit(&mut me, 0, 1).unwrap();
                // ORDERING [L1]: Acquire; stands for the look at how far the lane is released.
                let room = queue.released.load(Ordering::Acquire) > at;
                room.then(|| queue.submit(&mut me, 0, 2).unwrap())
            })
        };
        let mut taken = Vec::new();
        (0..2).for_each(|_| take_one(&queue, start, &mut taken));
        let (other, mine) = (other.join().unwrap(), mine.join().unwrap());
        let taken = take_all(&queue, start, taken);
        assert_eq!(taken[(other - start) as usize], (1, 1));
        match mine {
            None => outcomes.note("no room"),
            Some(at) => {
                assert_eq!(taken[(at - start) as usize], (0, 2));
                outcomes.note(if at == start + 2 { "second turn" } else { "first turn" });
            }
        }
        assert_eq!(taken.len() as u64, 2 + u64::from(mine.is_some()));
    });
}

/// A ticket that ends a cache line moves the shared hint; another producer may see it, or not, or an older one.
///
/// Allowed: the hint is behind, or at the end. Forbidden: a hint that leads past a free position (a hole).
#[test]
fn a_hint_makes_no_hole() {
    model("tickets/hint", 5, &["first lane first", "second lane first"], |outcomes| {
        // Positions 7 to 9: the first ends a line.
        let start = 7;
        let queue = Queue::new(4, start);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut me = Enqueuer::new(start);
                [1, 2].map(|count| queue.submit(&mut me, 1, count).unwrap())
            })
        };
        let mine = queue.submit(&mut Enqueuer::new(start), 0, 1).unwrap();
        let mut all = other.join().unwrap().to_vec();
        all.push(mine);
        all.sort_unstable();
        assert_eq!(all, [7, 8, 9]);
        note_order(outcomes, &take_all(&queue, start, Vec::new()));
        assert_eq!(queue.hint.load(Ordering::Relaxed), 8);
    });
}

/// The end of the order is a ticket that nobody passes.
///
/// Allowed: a producer is before the close ticket and in, or gets `Closed`. Forbidden: a ticket behind it; one
/// that is in although `Closed` was said.
#[test]
fn nobody_passes_a_close_ticket() {
    model("tickets/close", 5, &["closed", "in"], |outcomes| {
        let start = 3;
        let queue = Queue::new(4, start);
        let producers = [0, 1].map(|lane| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.submit(&mut Enqueuer::new(start), lane, 1))
        });
        let end = Enqueuer::new(start).enqueue(&queue.tickets(), Ticket::Close, &queue.void).unwrap();
        let mut submitted = 0;
        for producer in producers {
            match producer.join().unwrap() {
                Ok(at) => {
                    assert!(at < end, "ticket at {at}, the end at {end}");
                    submitted += 1;
                    outcomes.note("in");
                }
                Err(refused) => {
                    assert_eq!(refused, Closed);
                    outcomes.note("closed");
                }
            }
        }
        assert_eq!(end, start + submitted);
        assert_eq!(queue.tickets().peek(end), Some(Ticket::Close));
        assert_eq!(queue.tickets().peek(end + 1), None);
    });
}

/// Guards T2 (`void_before` / `void_before`): a sequencer takes over after the end and reopens; a producer that
/// passes the old close ticket sees what the takeover restored, here that its earlier command, whose run the
/// predecessor published before it died, is in the order, and the new epoch.
///
/// Allowed: still `Closed`, or passed and all restored. Forbidden: passed, and the earlier command not known to
/// be ordered, or the old epoch.
#[test]
fn who_passes_a_void_close_ticket_sees_the_order_restored() {
    const SIZE: Size = Size {
        order_slots: 2,
        tickets: 4,
        producers: 1,
        lane_cells: 4,
        lane_bytes: 64,
        own_cells: 2,
        workers: 0,
    };
    model("tickets/void", 5, &["closed", "passed"], |outcomes| {
        let memory = Arc::new(Memory::new(SIZE, Origin::default()));
        let s = memory.shared();
        let mut first = Orderer::take_over(&s).unwrap();
        let mut producer = Producer::attach(&memory, 1);
        producer.try_submit(0, 8, 1).unwrap();
        let void = &memory.control.reign.void_before;
        Enqueuer::new(0).enqueue(&memory.queue(), Ticket::Close, void).unwrap();
        first.turn(&s, 1);
        // It died right after the commit word.
        let entry: &LaneEntry = &memory.lanes[1];
        entry.ordered.store(0, Ordering::Relaxed);
        let successor = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || Orderer::take_over(&memory.shared()).map(drop).unwrap())
        };
        let room = producer.reserve(8).unwrap();
        producer.fill(&room, 0, &[2]);
        match producer.commit() {
            Err(refused) => {
                assert_eq!(refused, Closed);
                outcomes.note("closed");
            }
            Ok(at) => {
                assert_eq!(at, 2);
                assert!(has_ordered(entry, 0));
                assert_eq!(memory.control.reign.epoch.load(Ordering::Relaxed), 2);
                outcomes.note("passed");
            }
        }
        successor.join().unwrap();
    });
}
