//! The order ring: one publisher's runs, followed by any number of readers.
//!
//! ```text
//! slot   commit: run number + 1, stored last │ first index │ lane, count, next ticket │ first cell     32 bytes
//!
//! publish   1. commit = 0   2. release fence   3. words   4. commit = number + 1 (release)
//! read      commit == number + 1 (acquire)? then the words. A gate keeps the slot from being rewritten.
//! observe   the same without a gate: words, acquire fence, commit again: still the same?
//! ```
//!
//! **The commit word of a run is the one and only point at which its commands happen.** The notification and
//! the descriptor arrive in one cache line.

use crate::seq::Seq;
use crate::sync::{AtomicU64, Ordering, fence};

/// Most cells of a run.
pub const MAX_RUN: u32 = (1 << 22) - 1;
const LANE_SHIFT: u32 = 54;
const COUNT_SHIFT: u32 = 32;

/// One descriptor of the ring.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct Slot {
    commit: AtomicU64,
    first: AtomicU64,
    what: AtomicU64,
    cell: AtomicU64,
}

impl Slot {
    /// A slot that holds no run; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Slot { commit: zero(), first: zero(), what: zero(), cell: zero() }
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 32 && align_of::<Slot>() == 32);

/// Consecutive cells of one lane with consecutive places in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The run's own number, dense from 0.
    pub number: u64,
    /// Index of its first command.
    pub first: Seq,
    /// The lane that its cells lie in.
    pub lane: u16,
    /// How many commands: at least 1, at most [`MAX_RUN`].
    pub count: u32,
    /// Number of its first cell in the lane.
    pub cell: u64,
    /// The low half of the position of the first ticket that is not in this run or an earlier one.
    pub ticket: u32,
}

impl Run {
    /// Index of the first command after it.
    #[inline]
    #[must_use]
    pub fn end(&self) -> Seq {
        self.first.plus(u64::from(self.count))
    }
}

/// What a reader without a gate found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The run is not there yet.
    Pending,
    /// The run, whole.
    Here(Run),
    /// The slot has been used again.
    Lapped,
}

/// The ring, on borrowed slots. Their number is a power of two, at least 2.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    slots: &'a [Slot],
}

impl<'a> Order<'a> {
    /// The ring over `slots`, whose number must be a power of two.
    #[inline]
    #[must_use]
    pub fn new(slots: &'a [Slot]) -> Self {
        debug_assert!(slots.len().is_power_of_two());
        Order { slots }
    }

    /// How many runs it holds.
    #[inline]
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    #[inline]
    fn slot(&self, number: u64) -> &'a Slot {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    /// Publishes a run. Only the sequencer calls this, with dense numbers, and only when every gate has passed
    /// the run that was in the slot.
    #[inline]
    pub fn publish(&self, run: &Run) {
        let slot = self.slot(run.number);
        // ORDERING [K1]: Release; for a successor: the slot loses its run only after `released` and control have
        // what the run did.
        slot.commit.store(0, Ordering::Release);
        // ORDERING [R2]: pairs with the acquire fence in `observe`. An observer that reads one of the new words
        // finds at its second look that the old commit word is gone.
        fence(Ordering::Release);
        crash_point!("order.invalidated");
        slot.first.store(run.first.get(), Ordering::Relaxed);
        let what =
            u64::from(run.lane) << LANE_SHIFT | u64::from(run.count) << COUNT_SHIFT | u64::from(run.ticket);
        slot.what.store(what, Ordering::Relaxed);
        slot.cell.store(run.cell, Ordering::Relaxed);
        crash_point!("order.words");
        // ORDERING [R1]: Release; pairs with the Acquire in `read` and `observe`. Whoever sees the commit word
        // sees the descriptor and, through T1, the cells and payloads of the run.
        slot.commit.store(run.number.wrapping_add(1), Ordering::Release);
        crash_point!("order.committed");
    }

    /// The run with this number, if it is published. For readers whose gate keeps it in the ring, and for the
    /// sequencer.
    #[inline]
    pub fn read(&self, number: u64) -> Look {
        let slot = self.slot(number);
        // ORDERING [R1]: Acquire; pairs with the Release in `publish`.
        let commit = slot.commit.load(Ordering::Acquire);
        if commit == number.wrapping_add(1) {
            return Look::Here(Self::words(slot, number));
        }
        // An older run, or 0 while the slot is being rewritten, is not there yet.
        if commit != 0 && (commit.wrapping_sub(number) as i64) > 1 { Look::Lapped } else { Look::Pending }
    }

    /// The run with this number, for a reader that gates nobody.
    #[inline]
    pub fn observe(&self, number: u64) -> Look {
        let found = self.read(number);
        if let Look::Here(_) = found {
            // ORDERING [R2]: pairs with the release fence in `publish`.
            fence(Ordering::Acquire);
            if self.slot(number).commit.load(Ordering::Relaxed) != number.wrapping_add(1) {
                return Look::Lapped;
            }
        }
        found
    }

    /// The number of the last run that is published, found from the ring alone: the largest commit word that
    /// belongs in its slot.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        let belongs = |(at, slot): (usize, &Slot)| {
            // Relaxed: only the number; who wants the run reads it with `read`.
            let number = slot.commit.load(Ordering::Relaxed).checked_sub(1)?;
            (number & (self.slots() - 1) == at as u64).then_some(number)
        };
        self.slots.iter().enumerate().filter_map(belongs).max()
    }

    /// The slots whose commit word belongs elsewhere, with that word: where nothing is damaged, none.
    pub fn misplaced(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let mask = self.slots() - 1;
        // Relaxed: words that are looked at alone.
        let words = self.slots.iter().map(|slot| slot.commit.load(Ordering::Relaxed));
        (0..).zip(words).filter(move |(at, word)| *word != 0 && (word - 1) & mask != *at)
    }

    #[inline]
    fn words(slot: &Slot, number: u64) -> Run {
        let what = slot.what.load(Ordering::Relaxed);
        Run {
            number,
            first: Seq::new(slot.first.load(Ordering::Relaxed)),
            lane: (what >> LANE_SHIFT) as u16,
            count: (what >> COUNT_SHIFT) as u32 & MAX_RUN,
            cell: slot.cell.load(Ordering::Relaxed),
            ticket: what as u32,
        }
    }
}

/// The next command of a [`Follower`]: its index, and where its cell lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its place in the order.
    pub seq: Seq,
    /// The lane of its cell.
    pub lane: u16,
    /// The number of its cell in the lane.
    pub cell: u64,
}

/// What a follower met that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The slot of the next run holds a later one, although this reader gates.
    Lapped {
        /// The run that was looked for.
        run: u64,
    },
    /// The next run does not begin (or, at the start, lie) where it must.
    Gap {
        /// The run.
        run: u64,
        /// The index that was to come.
        expected: Seq,
        /// The first index of the run.
        found: Seq,
        /// Its count of commands.
        count: u32,
    },
}

/// A gating reader's place in the order.
#[derive(Clone, Debug)]
pub struct Follower {
    next: Seq,
    next_run: u64,
    /// Cells of the current run that are left: lane, next cell, how many.
    lane: u16,
    cell: u64,
    left: u32,
    inside: bool,
}

impl Follower {
    /// Starts at index `next`, which lies in run `run` or is its end, or begins the run after it if it is
    /// unpublished yet.
    #[must_use]
    pub fn new(next: Seq, run: u64) -> Self {
        Follower { next, next_run: run, lane: 0, cell: 0, left: 0, inside: false }
    }

    /// The index that comes next.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Seq {
        self.next
    }

    /// The run that holds the next index, or will.
    #[inline]
    #[must_use]
    pub fn run(&self) -> u64 {
        if self.left > 0 { self.next_run.wrapping_sub(1) } else { self.next_run }
    }

    /// The next command, if it is published. Until [`advance`](Self::advance) it stays the next.
    #[inline]
    pub fn peek(&mut self, order: &Order<'_>) -> Result<Option<Step>, Fault> {
        let is_there = self.left > 0 || self.open(order)?;
        Ok(is_there.then_some(Step { seq: self.next, lane: self.lane, cell: self.cell }))
    }

    /// How many commands can be gone past without another look at the ring: from the one that
    /// [`peek`](Self::peek) showed to the end of its run.
    #[inline]
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Goes past the command that [`peek`](Self::peek) showed.
    #[inline]
    pub fn advance(&mut self) {
        self.advance_by(1);
    }

    /// Goes past so many commands, at most those that are [`left`](Self::left).
    #[inline]
    pub fn advance_by(&mut self, commands: u32) {
        debug_assert!(self.left >= commands);
        self.next = self.next.plus(u64::from(commands));
        self.cell = self.cell.wrapping_add(u64::from(commands));
        self.left -= commands;
    }

    /// Opens the next run.
    fn open(&mut self, order: &Order<'_>) -> Result<bool, Fault> {
        let run = match order.read(self.next_run) {
            Look::Pending => return Ok(false),
            Look::Lapped => return Err(Fault::Lapped { run: self.next_run }),
            Look::Here(run) => run,
        };
        let gap = Fault::Gap { run: run.number, expected: self.next, found: run.first, count: run.count };
        // At the start the index may lie inside the run; later runs begin where the one before ended.
        let skip = self.next.get().wrapping_sub(run.first.get());
        let longest = if self.inside { 0 } else { u64::from(run.count) };
        if skip > longest || run.count == 0 {
            return Err(gap);
        }
        self.inside = true;
        self.next_run = run.number.wrapping_add(1);
        self.lane = run.lane;
        self.cell = run.cell.wrapping_add(skip);
        self.left = run.count - skip as u32;
        if self.left == 0 { self.open(order) } else { Ok(true) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn slots(n: usize) -> Vec<Slot> {
        (0..n).map(|_| Slot::new()).collect()
    }

    fn run(number: u64, first: u64, count: u32) -> Run {
        Run { number, first: Seq::new(first), lane: 5, count, cell: 100 + first, ticket: 7 }
    }

    #[test]
    fn a_run_is_there_after_its_commit_word_and_until_its_slot_is_used_again() {
        let memory = slots(2);
        let order = Order::new(&memory);
        assert_eq!(order.last(), None);
        for n in 0..6 {
            assert_eq!(order.read(n), Look::Pending);
            let it = run(n, n * 3, 3);
            order.publish(&it);
            assert_eq!(order.read(n), Look::Here(it));
            assert_eq!(order.observe(n), Look::Here(it));
            assert_eq!(order.last(), Some(n));
        }
        assert_eq!(order.read(3), Look::Lapped);
        assert_eq!(order.observe(0), Look::Lapped);
    }

    #[test]
    fn the_largest_fields_survive() {
        let memory = slots(2);
        let order = Order::new(&memory);
        let it = Run {
            number: 1 << 40 | 1,
            first: Seq::MAX,
            lane: 1023,
            count: MAX_RUN,
            cell: u64::MAX,
            ticket: u32::MAX,
        };
        order.publish(&it);
        assert_eq!(order.read(it.number), Look::Here(it));
    }

    #[test]
    fn a_follower_starts_inside_a_run_or_at_its_end() {
        let memory = slots(4);
        let order = Order::new(&memory);
        order.publish(&run(0, 0, 3));
        order.publish(&run(1, 3, 2));
        for start in 0..=3 {
            let mut f = Follower::new(Seq::new(start), 0);
            for n in start..5 {
                let step = f.peek(&order).unwrap().unwrap();
                assert_eq!(step, Step { seq: Seq::new(n), lane: 5, cell: 100 + n });
                assert_eq!(f.run(), u64::from(n >= 3));
                f.advance();
            }
            assert_eq!(f.peek(&order), Ok(None));
            assert_eq!((f.run(), f.next()), (2, Seq::new(5)));
        }
    }

    #[test]
    fn a_follower_says_what_does_not_fit() {
        let memory = slots(2);
        let order = Order::new(&memory);
        order.publish(&run(0, 0, 3));
        order.publish(&run(1, 4, 3));
        let mut f = Follower::new(Seq::ZERO, 0);
        for _ in 0..3 {
            f.peek(&order).unwrap().unwrap();
            f.advance();
        }
        let gap = Fault::Gap { run: 1, expected: Seq::new(3), found: Seq::new(4), count: 3 };
        assert_eq!(f.peek(&order), Err(gap));
        order.publish(&run(3, 8, 1));
        assert_eq!(f.peek(&order), Err(Fault::Lapped { run: 1 }));
    }
}
