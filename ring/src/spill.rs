//! Spills: payloads that are too long for their lane, and when their room comes back.
//!
//! ```text
//! cell     length u32::MAX, kind, address │ digest of the record │ place in the byte ring │ record      as any cell
//! record   length of the payload │ its digest │ where it begins in the area                             in the cell
//! area     a ring of bytes of the lane alone, with pages only where a spill lies                        the producer
//! slots    the last few spills of the lane: cell, start, end, void                                      the producer
//! freed    how many spills of the lane have been given back                                             the sequencer
//! ```
//!
//! The area is address space: pages are reserved when a spill is claimed, and given back when it is freed, so it can be
//! as long as a file can be. Positions in it only grow, and a spill that would cross its end begins at its start.
//!
//! A spill is claimed, in the next slot, before it gets pages; so whatever a producer leaves behind that dies lies in a
//! slot. The sequencer goes through the slots one after the other and frees a spill
//!
//! - when the cell that names it is released: every gate has passed it;
//! - when it is void: its producer gave it up before it had a ticket;
//! - when its producer is dead, all of that one's tickets are consumed, and its cell is not in the order.
//!
//! It gives the pages back first and then says so; a successor that finds neither said gives them back again, which does
//! no harm, for nobody uses their positions before.

use crate::control::LaneEntry;
use crate::digest::{Place, START, fold_at};
use crate::lane::{BadCell, NoRoom, SPILLED};
use crate::pad::Padded;
use crate::sync::{AtomicU64, Ordering};

/// Spills that a lane can have outstanding. In a model a lane's page lies on a small stack.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 64 };
/// Spills begin at multiples of this: no two share a page.
pub const ALIGN: u64 = 4096;
/// Words of a record.
pub const RECORD_WORDS: usize = 3;
/// Bytes of a record, which is what lies in the cell.
pub const RECORD_BYTES: u32 = RECORD_WORDS as u32 * 8;

/// What a cell says of a payload that does not lie in the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Length of the payload in bytes.
    pub len: u64,
    /// Its digest, as its producer took it.
    pub digest: u64,
    /// Where it begins: a position in the area of its lane.
    pub start: u64,
}

impl Record {
    /// The words that lie in the cell.
    #[inline]
    #[must_use]
    pub fn encode(self) -> [u64; RECORD_WORDS] {
        [self.len, self.digest, self.start]
    }

    /// The record with these words.
    #[inline]
    #[must_use]
    pub fn decode([len, digest, start]: [u64; RECORD_WORDS]) -> Record {
        Record { len, digest, start }
    }

    /// What the cell has for a payload digest, so that the order's digest covers length and content: not where it lies.
    #[inline]
    #[must_use]
    pub fn cell_digest(self) -> u64 {
        fold_at(START, Place::of(self.len, 0), SPILLED.into(), self.digest)
    }

    /// Where in an area of so many bytes it begins, if it can be there.
    ///
    /// # Errors
    /// It cannot: which field, its value, and the highest that it could have.
    pub fn place(self, cell: u64, area: u64) -> Result<u64, BadCell> {
        let bad = |field, found, limit| Err(BadCell { cell, field, found, limit });
        if self.len > max_len(area) || self.len == 0 {
            return bad("length of a spilled payload", self.len, max_len(area));
        }
        let offset = self.start & (area - 1);
        if !self.start.is_multiple_of(ALIGN) || offset + self.len > area {
            return bad("place of a spilled payload", offset, area - self.len);
        }
        Ok(offset)
    }
}

/// The longest payload that spills into an area of so many bytes: half of it, which always fits once all is freed.
#[inline]
#[must_use]
pub const fn max_len(area: u64) -> u64 {
    area / 2
}

/// What a slot has of a spill that was given up: its pages are given back by who did.
const GIVEN_UP: u64 = 1;
/// The same of one that a producer left behind that died: its pages are there yet.
const LEFT_BEHIND: u64 = 2;

/// Where one spill lies, by positions in the area of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// The how-manieth of its lane.
    pub number: u64,
    /// The first byte.
    pub start: u64,
    /// Behind its last page.
    pub end: u64,
}

impl Spill {
    /// Where it lies in an area of so many bytes, a power of two or 0: never outside, whatever a wild producer wrote.
    #[must_use]
    pub fn range(&self, area: u64) -> core::ops::Range<u64> {
        if area == 0 {
            return 0..0;
        }
        let offset = self.start & (area - 1) & !(ALIGN - 1);
        let len = self.end.wrapping_sub(self.start).min(area - offset);
        offset..offset + len
    }
}

/// What a lane's page has of one spill.
#[repr(C)]
#[derive(Debug)]
pub struct Slot {
    cell: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    void: AtomicU64,
}

/// The spills of a lane, on its page.
#[repr(C)]
#[derive(Debug)]
pub struct Spills<const N: usize> {
    claimed: Padded<AtomicU64>,
    slots: [Slot; N],
}

impl<const N: usize> Default for Spills<N> {
    fn default() -> Self {
        // The last one's end is looked up while the next is written.
        const { assert!(N >= 2 && N.is_power_of_two()) };
        let zero = || AtomicU64::new(0);
        let slot = || Slot { cell: zero(), start: zero(), end: zero(), void: zero() };
        Spills { claimed: Padded(zero()), slots: core::array::from_fn(|_| slot()) }
    }
}

impl<const N: usize> Spills<N> {
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize & (N - 1)]
    }

    /// How many the lane has had so far.
    #[inline]
    pub fn claimed(&self) -> u64 {
        // ORDERING [S1]: Acquire; pairs with the Release in `SpillWriter::claim`: its slot is written.
        self.claimed.load(Ordering::Acquire)
    }

    fn spill(&self, number: u64) -> Spill {
        let slot = self.slot(number);
        let (start, end) = (slot.start.load(Ordering::Relaxed), slot.end.load(Ordering::Relaxed));
        Spill { number, start, end }
    }

    /// The spills that are claimed and not freed, with the cells that are to name them; the first where they are more
    /// than there can be.
    ///
    /// # Errors
    /// They are: how many.
    pub fn outstanding(&self, entry: &LaneEntry) -> Result<impl Iterator<Item = (u64, Spill)>, u64> {
        let freed = entry.spills.load(Ordering::Relaxed);
        let count = self.claimed().wrapping_sub(freed);
        if count > N as u64 {
            return Err(count);
        }
        let each = move |n: u64| {
            let number = freed.wrapping_add(n);
            (self.slot(number).cell.load(Ordering::Relaxed), self.spill(number))
        };
        Ok((0..count).map(each))
    }

    /// The next spill that can be given back. `is_orphan` is asked for one whose cell is not in the order: whether its
    /// producer is dead and all that it queued is. For the sequencer.
    pub fn to_free(&self, entry: &LaneEntry, is_orphan: impl FnOnce() -> bool) -> Option<Spill> {
        let number = entry.spills.load(Ordering::Relaxed);
        let outstanding = self.claimed().wrapping_sub(number);
        if outstanding == 0 || outstanding > N as u64 {
            return None;
        }
        let slot = self.slot(number);
        let cell = slot.cell.load(Ordering::Relaxed);
        // These two are the sequencer's own words.
        let (released, ordered) =
            (entry.released.load(Ordering::Relaxed), entry.ordered.load(Ordering::Relaxed));
        // Relaxed: whose it was is who will use its place next, and has not written there since.
        let is_void = slot.void.load(Ordering::Relaxed) != 0;
        let is_free = is_void || is_before(cell, released) || (!is_before(cell, ordered) && is_orphan());
        is_free.then(|| self.spill(number))
    }
}

/// `a` lies before `b` on the circle of positions.
#[inline]
fn is_before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// Says that the pages of a spill are given back: its positions can be used again. For the sequencer.
#[inline]
pub fn freed(entry: &LaneEntry, spill: &Spill) {
    // ORDERING [S2]: Release; pairs with the Acquire in `SpillWriter::claim`: every worker's reads, and the giving back
    // of the pages, come before what is written there next.
    entry.spills.store(spill.number.wrapping_add(1), Ordering::Release);
}

/// A producer's own state of its spills.
#[derive(Clone, Debug)]
pub struct SpillWriter {
    next: u64,
    head: u64,
    /// So many were given back when it looked last.
    freed: u64,
}

impl SpillWriter {
    /// Takes the spills of a lane up, fresh or left by a predecessor that is dead and whose tickets are all consumed: what
    /// is not in the order then never will be, and is void.
    pub fn resume<const N: usize>(spills: &Spills<N>, entry: &LaneEntry) -> SpillWriter {
        let next = spills.claimed.load(Ordering::Relaxed);
        let ordered = entry.ordered.load(Ordering::Relaxed);
        if let Ok(all) = spills.outstanding(entry) {
            for (_, spill) in all.filter(|&(cell, _)| !is_before(cell, ordered)) {
                let void = &spills.slot(spill.number).void;
                if void.load(Ordering::Relaxed) == 0 {
                    void.store(LEFT_BEHIND, Ordering::Relaxed);
                }
            }
        }
        let last = spills.spill(next.wrapping_sub(1)).end;
        let freed = entry.spills.load(Ordering::Relaxed);
        SpillWriter { next, head: last.wrapping_add(ALIGN - 1) & !(ALIGN - 1), freed }
    }

    /// Notes how many are freed, before room is looked for: what moves after that [has moved](Self::has_moved).
    #[inline]
    pub fn look(&mut self, entry: &LaneEntry) {
        // Relaxed: `claim` asks for itself, and what moved in between is seen to have moved.
        self.freed = entry.spills.load(Ordering::Relaxed);
    }

    /// Whether spills were freed since room was looked for.
    #[inline]
    #[must_use]
    pub fn has_moved(&self, entry: &LaneEntry) -> bool {
        // Relaxed: who looks again finds what that hands over.
        entry.spills.load(Ordering::Relaxed) != self.freed
    }

    /// Claims room for the payload of the command in `cell`, of at most [`max_len`] bytes, in an area of `area`, a power
    /// of two; `entry` is that of the lane. Pages are for the caller to get, afterwards.
    pub fn claim<const N: usize>(
        &mut self,
        spills: &Spills<N>,
        entry: &LaneEntry,
        area: u64,
        cell: u64,
        len: u64,
    ) -> Result<Spill, NoRoom> {
        debug_assert!(area.is_power_of_two() && len <= max_len(area));
        // ORDERING [S2]: Acquire; pairs with the Release in `freed`.
        let freed = entry.spills.load(Ordering::Acquire);
        let outstanding = self.next.wrapping_sub(freed);
        if outstanding > N as u64 {
            return Err(NoRoom::Damaged {
                found: freed,
                low: self.next.saturating_sub(N as u64),
                high: self.next,
            });
        }
        let tail = if outstanding == 0 { self.head } else { spills.spill(freed).start };
        let (bytes, left) = (len.next_multiple_of(ALIGN), area - (self.head & (area - 1)));
        let start = if bytes > left { self.head.wrapping_add(left) } else { self.head };
        let end = start.wrapping_add(bytes);
        if outstanding == N as u64 || end.wrapping_sub(tail) > area {
            return Err(NoRoom::Full);
        }
        let slot = spills.slot(self.next);
        for (word, value) in [(&slot.cell, cell), (&slot.start, start), (&slot.end, end), (&slot.void, 0)] {
            word.store(value, Ordering::Relaxed);
        }
        let spill = Spill { number: self.next, start, end };
        self.next = self.next.wrapping_add(1);
        self.head = end;
        // ORDERING [S1]: Release; pairs with the Acquire in `Spills::claimed`.
        spills.claimed.store(self.next, Ordering::Release);
        crash_point!("spill.claimed");
        Ok(spill)
    }

    /// Whether nothing that is outstanding has pages, as of the last [look](Self::look): whoever finds no room then waits
    /// for none of these.
    pub fn has_no_pages<const N: usize>(&self, spills: &Spills<N>) -> bool {
        let outstanding = self.next.wrapping_sub(self.freed).min(N as u64);
        let void = |n| spills.slot(self.freed.wrapping_add(n)).void.load(Ordering::Relaxed);
        (0..outstanding).all(|n| void(n) == GIVEN_UP)
    }

    /// Gives a spill up that has no ticket and will not have one, and no pages any more; nobody writes there.
    pub fn give_up<const N: usize>(spills: &Spills<N>, spill: &Spill) {
        spills.slot(spill.number).void.store(GIVEN_UP, Ordering::Relaxed);
        crash_point!("spill.void");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const AREA: u64 = 16 * ALIGN;

    fn fresh() -> (Spills<4>, LaneEntry, SpillWriter) {
        let (spills, entry) = (Spills::default(), LaneEntry::new());
        let writer = SpillWriter::resume(&spills, &entry);
        (spills, entry, writer)
    }

    fn next(spills: &Spills<4>, entry: &LaneEntry) -> Option<Spill> {
        spills.to_free(entry, || false)
    }

    #[test]
    fn a_record_survives_its_words_and_is_checked() {
        let record = Record { len: 5 * ALIGN + 1, digest: 7, start: AREA + 3 * ALIGN };
        assert_eq!(Record::decode(record.encode()), record);
        assert_eq!(record.place(1, AREA), Ok(3 * ALIGN));
        let others = [Record { len: 1, ..record }, Record { digest: 8, ..record }];
        assert!(others.iter().all(|other| other.cell_digest() != record.cell_digest()));
        assert_eq!(Record { start: 0, ..record }.cell_digest(), record.cell_digest(), "wherever it lies");
        let bad = |record: Record| record.place(1, AREA).unwrap_err();
        let limit = AREA / 2;
        for (len, found) in [(0, 0), (limit + 1, limit + 1), (u64::MAX, u64::MAX)] {
            let expected = BadCell { cell: 1, field: "length of a spilled payload", found, limit };
            assert_eq!(bad(Record { len, ..record }), expected);
        }
        for start in [1, 15 * ALIGN, !(ALIGN - 1), u64::MAX] {
            assert_eq!(bad(Record { start, ..record }).field, "place of a spilled payload", "{start}");
        }
    }

    #[test]
    fn spills_lie_one_after_the_other_and_none_crosses_the_end() {
        let (spills, entry, mut writer) = fresh();
        let mut at = [0; 4];
        for (cell, place) in (10..).zip(&mut at) {
            *place = writer.claim(&spills, &entry, AREA, cell, 3 * ALIGN - 5).unwrap().start;
        }
        assert_eq!(at, [0, 3 * ALIGN, 6 * ALIGN, 9 * ALIGN]);
        assert_eq!(writer.claim(&spills, &entry, AREA, 14, 1), Err(NoRoom::Full), "slots");
        entry.ordered.store(14, Ordering::Relaxed);
        entry.released.store(12, Ordering::Relaxed);
        for _ in 0..2 {
            freed(&entry, &next(&spills, &entry).unwrap());
        }
        assert_eq!(next(&spills, &entry), None, "cell 12 is not released");
        // Twelve pages are used up to here, four are left, and six are free at the start.
        assert_eq!(writer.claim(&spills, &entry, AREA, 14, 7 * ALIGN), Err(NoRoom::Full), "bytes");
        let wrapped = writer.claim(&spills, &entry, AREA, 14, 6 * ALIGN).unwrap();
        assert_eq!((wrapped.start, wrapped.range(AREA)), (AREA, 0..6 * ALIGN));
    }

    #[test]
    fn half_an_area_always_fits_where_nothing_is_outstanding() {
        let (spills, entry, mut writer) = fresh();
        for round in 0..64 {
            let len = if round % 3 == 0 { ALIGN } else { max_len(AREA) };
            let spill = writer.claim(&spills, &entry, AREA, round, len).unwrap();
            entry.ordered.store(round + 1, Ordering::Relaxed);
            entry.released.store(round + 1, Ordering::Relaxed);
            assert_eq!(next(&spills, &entry), Some(spill));
            freed(&entry, &spill);
        }
    }

    #[test]
    fn what_was_given_up_is_freed_and_nothing_that_is_written() {
        let (spills, entry, mut writer) = fresh();
        let [first, second] = [0, 0].map(|cell| writer.claim(&spills, &entry, AREA, cell, ALIGN).unwrap());
        assert_eq!(next(&spills, &entry), None, "it is being written");
        SpillWriter::give_up(&spills, &first);
        freed(&entry, &next(&spills, &entry).unwrap());
        assert_eq!(next(&spills, &entry), None, "the same cell, of which there is another spill");
        assert_eq!(spills.to_free(&entry, || true), Some(second), "its producer is dead");
        entry.ordered.store(1, Ordering::Relaxed);
        assert_eq!(spills.to_free(&entry, || true), None, "it is in the order, whoever is dead");
    }

    #[test]
    fn what_was_given_up_has_no_pages_and_what_was_left_behind_has() {
        let (spills, entry, mut writer) = fresh();
        assert!(writer.has_no_pages(&spills));
        let first = writer.claim(&spills, &entry, AREA, 0, ALIGN).unwrap();
        assert!(!writer.has_no_pages(&spills), "it is written");
        SpillWriter::give_up(&spills, &first);
        assert!(writer.has_no_pages(&spills));
        let second = writer.claim(&spills, &entry, AREA, 0, ALIGN).unwrap();
        let mut successor = SpillWriter::resume(&spills, &entry);
        assert!(!successor.has_no_pages(&spills), "those of the second");
        for expected in [first, second] {
            assert!(!successor.has_no_pages(&spills) && !successor.has_moved(&entry));
            let found = next(&spills, &entry).unwrap();
            assert_eq!(found, expected);
            freed(&entry, &found);
            assert!(successor.has_moved(&entry), "since it looked");
            successor.look(&entry);
        }
        assert!(successor.has_no_pages(&spills) && !successor.has_moved(&entry));
    }

    #[test]
    fn a_successor_gives_up_what_never_had_a_ticket_and_goes_on_behind_it() {
        let (spills, entry, mut writer) = fresh();
        let kept = writer.claim(&spills, &entry, AREA, 0, ALIGN).unwrap();
        let lost = writer.claim(&spills, &entry, AREA, 1, ALIGN).unwrap();
        entry.ordered.store(1, Ordering::Relaxed);
        let mut successor = SpillWriter::resume(&spills, &entry);
        let its = successor.claim(&spills, &entry, AREA, 1, ALIGN).unwrap();
        assert_eq!((its.number, its.start), (2, 2 * ALIGN));
        assert_eq!(next(&spills, &entry), None, "what is in the order is kept");
        entry.released.store(1, Ordering::Relaxed);
        for expected in [kept, lost] {
            let found = next(&spills, &entry).unwrap();
            assert_eq!(found, expected);
            freed(&entry, &found);
        }
        assert_eq!(next(&spills, &entry), None, "its own is being written");
    }

    #[test]
    fn numbers_that_cannot_be_are_not_followed() {
        let (spills, entry, mut writer) = fresh();
        spills.claimed.store(5, Ordering::Relaxed);
        assert_eq!(spills.outstanding(&entry).err(), Some(5));
        assert_eq!(spills.to_free(&entry, || true), None);
        entry.spills.store(9, Ordering::Relaxed);
        let claimed = writer.claim(&spills, &entry, AREA, 0, 1);
        assert_eq!(claimed, Err(NoRoom::Damaged { found: 9, low: 0, high: 0 }));
        for (start, end) in [(7 * ALIGN + 9, u64::MAX), (u64::MAX, 3), (0, 1 << 60)] {
            let range = Spill { number: 0, start, end }.range(AREA);
            assert!(range.start.is_multiple_of(ALIGN) && range.end <= AREA, "{range:?}");
            assert!(Spill { number: 0, start, end }.range(0).is_empty());
        }
    }
}
