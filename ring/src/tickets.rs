//! The ticket queue: the order in which lanes are drained, from many producers to one sequencer.
//!
//! ```text
//! word   63           32 31   28 27      18 17                0
//!        | turn         | flags | lane     | count            |     one ticket: "count more cells of lane"
//!
//!        position p: slot p & mask, turn (p / slots) + 1 in 32 bits; zeroed memory is turn 0, "not yet"
//! ```
//!
//! Enqueueing is a compare-and-swap of the word of the previous turn in the first slot that still has it. **It
//! is both claim and commit**: a producer that dies before it has submitted nothing, after it everything, and
//! there is no moment between. The slot is free to be overwritten because the queue has more words than all
//! lanes have cells: a producer with room in its lane finds that the ticket that was there has been consumed.
//!
//! Where to begin looking is a hint. Each producer has its own; the shared one is stored only by a ticket that
//! ends a cache line, and only ever believed forwards, so that an old value stored by a producer that was
//! stopped for long makes nobody go back.
//!
//! A *close* ticket ends the order: it takes no cells, whoever meets it gets [`Refused::Closed`], and nobody passes it
//! until a later sequencer has declared it void. Nobody skips it either: a producer looks at each slot between
//! its hint and the end, and all hints come from tickets that were enqueued, so none lies behind it.

use crate::sync::{AtomicU64, Ordering, spin};

const COUNT_BITS: u32 = 18;
const LANE_BITS: u32 = 10;
const CLOSE: u64 = 1 << (COUNT_BITS + LANE_BITS);
/// Most cells that one ticket can name.
pub const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;
/// Most lanes that tickets can tell apart.
pub const MAX_LANES: u32 = 1 << LANE_BITS;
/// Tickets of one cache line.
const LINE: u64 = 8;
/// Words for tickets that take no cells (close).
pub const SPARE_WORDS: u64 = 8;

/// What a ticket says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// `count` more cells of `lane` are next.
    Cells {
        /// Index of the lane in the region.
        lane: u16,
        /// How many cells; at least 1, at most half of the lane's.
        count: u32,
    },
    /// Nothing comes after this until a sequencer reopens the order.
    Close,
}

impl Ticket {
    #[inline]
    fn encode(self, turn: u32) -> u64 {
        let what = match self {
            Ticket::Cells { lane, count } => u64::from(lane) << COUNT_BITS | u64::from(count),
            Ticket::Close => CLOSE,
        };
        u64::from(turn) << 32 | what
    }

    #[inline]
    fn decode(word: u64) -> Self {
        if word & CLOSE != 0 {
            return Ticket::Close;
        }
        let lane = (word >> COUNT_BITS) & u64::from(MAX_LANES - 1);
        Ticket::Cells { lane: lane as u16, count: word as u32 & MAX_COUNT }
    }
}

#[inline]
fn turn_of(word: u64) -> u32 {
    (word >> 32) as u32
}

/// A ticket did not go in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The order is closed: a close ticket stands where this one would have gone.
    Closed,
    /// A word of the queue is of an earlier turn than it can be: the region is damaged.
    Damaged {
        /// The position of the ticket that was to come.
        position: u64,
        /// The turn of the word.
        found: u32,
        /// The turn that it has at least.
        expected: u32,
    },
}

pub use Refused::Closed;

/// Looks at a word that seems older than it can be, before it counts as damaged. Stores become visible long before;
/// a model has its own bound.
const STALE_LOOKS: u32 = if cfg!(loom) { u32::MAX } else { 1 << 16 };

/// The queue, on borrowed words. Their number is a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Tickets<'a> {
    hint: &'a AtomicU64,
    words: &'a [AtomicU64],
    /// The number of words as a power of two.
    shift: u32,
}

impl<'a> Tickets<'a> {
    /// The queue over `words`, whose number must be a power of two, with the shared hint.
    #[inline]
    #[must_use]
    pub fn new(hint: &'a AtomicU64, words: &'a [AtomicU64]) -> Self {
        debug_assert!(words.len().is_power_of_two());
        Tickets { hint, words, shift: words.len().trailing_zeros() }
    }

    /// How many words it has.
    #[inline]
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.words.len() as u64
    }

    #[inline]
    fn word(&self, position: u64) -> &'a AtomicU64 {
        &self.words[position as usize & (self.words.len() - 1)]
    }

    /// The turn that the slot of `position` has before its ticket is in.
    #[inline]
    fn turn_before(&self, position: u64) -> u32 {
        (position >> self.shift) as u32
    }

    /// The ticket at `position`, if it is in. The sequencer calls this with its next position.
    #[inline]
    pub fn peek(&self, position: u64) -> Option<Ticket> {
        // ORDERING [T1]: Acquire; pairs with the Release of the swap in `enqueue`. Whoever sees the ticket sees
        // its cells and their payloads, and hands that on with the run that it publishes.
        let word = self.word(position).load(Ordering::Acquire);
        (turn_of(word) == self.turn_before(position).wrapping_add(1)).then(|| Ticket::decode(word))
    }

    /// How many cells the tickets from `position` on name that are in, are of `lane`, and together name at most `most`;
    /// and how many tickets these are.
    #[inline]
    #[must_use]
    pub fn more_of(&self, position: u64, lane: u16, most: u32) -> (u32, u64) {
        // No more than the field holds: else the word of another lane could seem to be one of so many cells.
        let most = most.min(MAX_COUNT);
        let (mut left, mut tickets) = (u64::from(most), 0);
        // To the end of the queue and once more from its start, where the next turn begins.
        for _ in 0..2 {
            let at = position.wrapping_add(tickets);
            // A ticket for no cells: what a word is more than that is its cells, if it is of this turn and lane.
            let none = Ticket::Cells { lane, count: 0 }.encode(self.turn_before(at).wrapping_add(1));
            let words = &self.words[at as usize & (self.words.len() - 1)..];
            for word in words {
                // ORDERING [T1]: Acquire; as in `peek`.
                let cells = word.load(Ordering::Acquire).wrapping_sub(none);
                if cells == 0 || cells > left {
                    return (most - left as u32, tickets);
                }
                left -= cells;
                tickets += 1;
            }
        }
        (most - left as u32, tickets)
    }

    /// The first position from `from` on where no ticket is in; at most a queue further on.
    #[must_use]
    pub fn tail(&self, from: u64) -> u64 {
        let queued = (0..self.slots()).take_while(|&n| self.peek(from.wrapping_add(n)).is_some()).count();
        from.wrapping_add(queued as u64)
    }

    /// Makes the slots of an empty queue look as if `position` were the next one: for regions that begin at
    /// another position than 0. Nobody else may use the queue yet.
    pub fn start_at(&self, position: u64) {
        for n in 0..self.slots() {
            let at = position.wrapping_add(n);
            self.word(at).store(u64::from(self.turn_before(at)) << 32, Ordering::Relaxed);
        }
        self.hint.store(position, Ordering::Relaxed);
    }
}

/// A producer's place in the queue: where it will look first.
#[derive(Clone, Copy, Debug)]
pub struct Enqueuer {
    next: u64,
}

impl Enqueuer {
    /// Starts at a position that is consumed or in: not behind the end of the queue.
    #[must_use]
    pub fn new(position: u64) -> Self {
        Enqueuer { next: position }
    }

    /// Where it will look first.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Puts a ticket in and returns its position: the moment in which its commands are submitted.
    ///
    /// Lock-free: it starts again only when another ticket went in. `void_before` is read when a close ticket
    /// is met: close tickets before that position no longer count. The caller has room in its lane for what
    /// the ticket names, or the queue may not have any.
    #[inline]
    pub fn enqueue(
        &mut self,
        queue: &Tickets<'_>,
        ticket: Ticket,
        void_before: &AtomicU64,
    ) -> Result<u64, Refused> {
        let (at, before) = (self.next, queue.turn_before(self.next));
        let word = queue.word(at);
        // Relaxed: nothing is read on the strength of this word; the swap checks it again.
        let seen = word.load(Ordering::Relaxed);
        if turn_of(seen) == before && swap(word, seen, ticket.encode(before.wrapping_add(1))) {
            return Ok(self.went_in(queue, ticket, at));
        }
        self.enqueue_further_on(queue, ticket, void_before)
    }

    /// As [`enqueue`](Self::enqueue), when somebody else's ticket was there first.
    #[inline(never)]
    fn enqueue_further_on(
        &mut self,
        queue: &Tickets<'_>,
        ticket: Ticket,
        void_before: &AtomicU64,
    ) -> Result<u64, Refused> {
        let (mut at, mut stale) = (self.next, 0);
        loop {
            let before = queue.turn_before(at);
            let word = queue.word(at);
            // Relaxed: as in `enqueue`.
            let seen = word.load(Ordering::Relaxed);
            let ahead = turn_of(seen).wrapping_sub(before) as i32;
            if ahead == 0 {
                if swap(word, seen, ticket.encode(before.wrapping_add(1))) {
                    return Ok(self.went_in(queue, ticket, at));
                }
            } else if ahead > 0 {
                // Taken: in this turn, or in one so many turns on.
                let there = at.wrapping_add((ahead as u64 - 1) * queue.slots());
                if Ticket::decode(seen) == Ticket::Close && !is_void(there, void_before) {
                    return Err(Closed);
                }
                at = skip_to_hint(queue, there.wrapping_add(1));
            } else {
                // A relaxed load may be older than what this producer saw before: look again, but not for ever,
                // for the place to begin at came from the region.
                stale += 1;
                if stale > STALE_LOOKS {
                    return Err(Refused::Damaged { position: at, found: turn_of(seen), expected: before });
                }
                spin();
            }
        }
    }

    #[inline]
    fn went_in(&mut self, queue: &Tickets<'_>, ticket: Ticket, at: u64) -> u64 {
        crash_point!("ticket.in");
        self.next = at.wrapping_add(1);
        // Never behind a close ticket: the hint must not lead anyone past it.
        if self.next.is_multiple_of(LINE) && ticket != Ticket::Close {
            queue.hint.store(self.next, Ordering::Relaxed);
            crash_point!("ticket.hint");
        }
        at
    }
}

/// Puts a ticket in the place of one of the turn before; whether nobody was faster.
#[inline]
fn swap(word: &AtomicU64, seen: u64, mine: u64) -> bool {
    // ORDERING [T1]: Release; pairs with the Acquire in `peek`. The cells and payloads are written before. Neither
    // acquire nor an ordering for the failure is needed: nothing is read here.
    // ORDERING [W3]: SeqCst, which is more; pairs with the fence in `announce`, see `is_announced_since_swap`.
    word.compare_exchange(seen, mine, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Jumps to the shared hint if that is further on, by less than a queue.
#[inline]
fn skip_to_hint(queue: &Tickets<'_>, at: u64) -> u64 {
    let hint = queue.hint.load(Ordering::Relaxed);
    // Whoever stored the hint had its ticket in before it, so at most the words that separate two tickets can
    // lie between; a damaged hint far away is not followed.
    if (1..queue.slots()).contains(&hint.wrapping_sub(at)) && was_taken(queue, hint.wrapping_sub(1)) {
        hint
    } else {
        at
    }
}

/// Whether the ticket of `position` is in: a hint behind the end of the queue is damage.
#[inline]
fn was_taken(queue: &Tickets<'_>, position: u64) -> bool {
    let turn = turn_of(queue.word(position).load(Ordering::Relaxed));
    (turn.wrapping_sub(queue.turn_before(position)) as i32) > 0
}

fn is_void(position: u64, void_before: &AtomicU64) -> bool {
    // ORDERING [T2]: Acquire; pairs with the Release in `Orderer::take_over`. Who passes a void close ticket
    // sees the region reopened.
    (position.wrapping_sub(void_before.load(Ordering::Acquire)) as i64) < 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    fn cells(lane: u16, count: u32) -> Ticket {
        Ticket::Cells { lane, count }
    }

    #[test]
    fn tickets_come_out_in_the_order_of_their_swaps_over_many_turns() {
        for (slots, start) in [(1, 0), (2, 0), (8, 5), (4, (1 << 34) - 3), (2, u64::MAX - 5)] {
            let (hint, words, never) = (AtomicU64::new(0), words(slots), AtomicU64::new(start));
            let queue = Tickets::new(&hint, &words);
            queue.start_at(start);
            let (mut a, mut b) = (Enqueuer::new(start), Enqueuer::new(start));
            for n in 0..40u64 {
                let at = start.wrapping_add(n);
                assert_eq!(queue.peek(at), None);
                let ticket = cells(n as u16 % 7, n as u32 + 1);
                let who = if n % 3 == 0 { &mut a } else { &mut b };
                assert_eq!(who.enqueue(&queue, ticket, &never), Ok(at));
                assert_eq!(queue.peek(at), Some(ticket));
                assert_eq!(queue.tail(at), at.wrapping_add(1));
            }
        }
    }

    #[test]
    fn more_of_a_lane_ends_where_something_else_begins() {
        for start in [0, 5, 6, 7, (1 << 34) - 3, u64::MAX - 1] {
            let (hint, words, void) = (AtomicU64::new(0), words(8), AtomicU64::new(start));
            let queue = Tickets::new(&hint, &words);
            queue.start_at(start);
            let mut enqueuer = Enqueuer::new(start);
            let mut put = |ticket| enqueuer.enqueue(&queue, ticket, &void).map(drop);
            assert_eq!(queue.more_of(start, 2, 100), (0, 0));
            for ticket in
                [cells(2, 3), cells(2, 4), cells(2, MAX_COUNT), cells(3, 1), cells(2, 1), cells(2, 0)]
            {
                put(ticket).unwrap();
            }
            assert_eq!(queue.more_of(start, 2, 100), (7, 2));
            assert_eq!(queue.more_of(start, 2, 7), (7, 2));
            assert_eq!(queue.more_of(start, 2, 6), (3, 1));
            assert_eq!(queue.more_of(start, 2, u32::MAX), (7, 2));
            assert_eq!(queue.more_of(start, 1, u32::MAX), (0, 0));
            assert_eq!(queue.more_of(start.wrapping_add(4), 2, 100), (1, 1));
            put(Ticket::Close).unwrap();
            assert_eq!(queue.more_of(start.wrapping_add(6), 2, 100), (0, 0));
        }
        let (hint, words, void) = (AtomicU64::new(0), words(4), AtomicU64::new(0));
        let queue = Tickets::new(&hint, &words);
        let mut enqueuer = Enqueuer::new(0);
        for _ in 0..4 {
            enqueuer.enqueue(&queue, cells(1, 1), &void).unwrap();
        }
        assert_eq!(queue.more_of(0, 1, 100), (4, 4));
        assert_eq!(queue.more_of(2, 1, 100), (2, 2));
    }

    #[test]
    fn a_producer_that_slept_for_many_turns_jumps() {
        let (hint, words, never) = (AtomicU64::new(0), words(4), AtomicU64::new(0));
        let queue = Tickets::new(&hint, &words);
        let mut busy = Enqueuer::new(0);
        for _ in 0..1003 {
            busy.enqueue(&queue, cells(1, 1), &never).unwrap();
        }
        hint.store(0, Ordering::Relaxed);
        assert_eq!(Enqueuer::new(0).enqueue(&queue, cells(2, 1), &never), Ok(1003));
    }

    #[test]
    fn a_damaged_hint_is_not_followed() {
        for damaged in [2, 5, 1000, u64::MAX, u64::MAX / 2] {
            let (hint, words, never) = (AtomicU64::new(0), words(8), AtomicU64::new(0));
            let queue = Tickets::new(&hint, &words);
            Enqueuer::new(0).enqueue(&queue, cells(1, 1), &never).unwrap();
            hint.store(damaged, Ordering::Relaxed);
            assert_eq!(Enqueuer::new(0).enqueue(&queue, cells(1, 1), &never), Ok(1));
        }
    }

    #[test]
    fn nobody_passes_a_close_ticket_until_it_is_void() {
        let (hint, words, void) = (AtomicU64::new(0), words(4), AtomicU64::new(0));
        let queue = Tickets::new(&hint, &words);
        let (mut a, mut b) = (Enqueuer::new(0), Enqueuer::new(0));
        a.enqueue(&queue, cells(1, 1), &void).unwrap();
        assert_eq!(b.enqueue(&queue, Ticket::Close, &void), Ok(1));
        assert_eq!(a.enqueue(&queue, cells(1, 1), &void), Err(Closed));
        assert_eq!(Enqueuer::new(0).enqueue(&queue, cells(2, 1), &void), Err(Closed));
        assert_eq!(queue.peek(1), Some(Ticket::Close));
        void.store(2, Ordering::Relaxed);
        assert_eq!(a.enqueue(&queue, cells(1, 3), &void), Ok(2));
        assert_eq!(Enqueuer::new(0).enqueue(&queue, cells(2, 1), &void), Ok(3));
    }

    #[test]
    fn the_largest_fields_survive() {
        let ticket = cells(MAX_LANES as u16 - 1, MAX_COUNT);
        assert_eq!(Ticket::decode(ticket.encode(u32::MAX)), ticket);
        assert_eq!(turn_of(ticket.encode(u32::MAX)), u32::MAX);
    }

    #[test]
    fn a_place_to_begin_that_nobody_came_to_is_damage() {
        let (words, hint, void) = (words(4), AtomicU64::new(0), AtomicU64::new(0));
        let queue = Tickets::new(&hint, &words);
        let refused = Enqueuer::new(40).enqueue(&queue, cells(1, 1), &void);
        assert_eq!(refused, Err(Refused::Damaged { position: 40, found: 0, expected: 10 }));
    }
}
