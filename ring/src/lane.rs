//! A lane: one producer's ring of cells and ring of bytes.
//!
//! ```text
//! cell   length, kind, address │ payload digest │ place in the byte ring │ payload, if at most 40 bytes      64 bytes
//!
//! cells      released            queued        head
//!               ├─ in the order ────┼─ claimed ───┤              free room: up to released + cells
//! bytes        tail                              head            a payload is contiguous, at a multiple of 64
//! ```
//!
//! The producer alone writes; workers and observers read. Both rings are addressed by positions that only grow.
//! A payload that would cross the end of the byte ring begins at its start; its cell says where, so there are
//! no pad records, and a payload of up to half the ring always fits once the lane is released. Every cell holds
//! the byte position at its time, also when its payload lies inside it, so the first unreleased cell says where
//! the free bytes end, and nothing has to be walked.
//!
//! Before it writes into a cell or a byte the producer stores how far it claims (`Claimed`): an observer, which
//! gates nobody, copies first and then asks whether what it copied had been claimed again.

use crate::digest::{self, Chain, Folded, fold_at};
use crate::parts::Address;
use crate::spill::{RECORD_BYTES, Record};
use crate::sync::{AtomicU64, Ordering, fence};

/// Bytes of payload that fit into a cell.
pub const INLINE: usize = 40;
/// The same in words.
pub const INLINE_WORDS: usize = INLINE / 8;
/// The length that a cell has for a payload that does not lie in the lane, see [`spill`](crate::spill).
pub const SPILLED: u32 = u32::MAX;
/// Where a cell's first word has the kind.
const KIND: u64 = 0xffff << 32;
/// Payloads in the byte ring begin at multiples of this.
pub const ALIGN: u64 = 64;

/// One command's place in its lane.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Cell {
    /// Length in bits 0-31, kind in bits 32-47, [`Address`] in bits 48-63.
    head: AtomicU64,
    digest: AtomicU64,
    place: AtomicU64,
    inline: [AtomicU64; INLINE_WORDS],
}

impl Cell {
    /// Where the payload lies in a cell, in bytes from its start.
    pub const INLINE_OFFSET: usize = 24;

    /// An empty cell; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Cell { head: zero(), digest: zero(), place: zero(), inline: core::array::from_fn(|_| zero()) }
    }
}

impl Default for Cell {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Cell>() == 64 && core::mem::offset_of!(Cell, inline) == Cell::INLINE_OFFSET);

/// How far a producer may have written: stored before the writing, never moved back.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Claimed {
    cells: AtomicU64,
    bytes: AtomicU64,
}

impl Claimed {
    /// Sets where the cells and the bytes of a lane begin that nobody uses yet; `byte` is a multiple of
    /// [`ALIGN`].
    pub fn start_at(&self, cell: u64, byte: u64) {
        self.cells.store(cell, Ordering::Relaxed);
        self.bytes.store(byte, Ordering::Relaxed);
    }
}

/// Where a payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the cell itself.
    Cell,
    /// In the byte ring, from this offset.
    Bytes(usize),
}

/// A cell's content, checked: the payload lies inside the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the cell.
    pub cell: u64,
    /// Length in bytes of what the lane has of the payload: all of it, or the record of one that
    /// [does not lie here](Self::is_spilled).
    pub len: u32,
    /// The user's kind.
    pub kind: u16,
    /// Digest of the payload, as its producer took it.
    pub digest: u64,
    /// Where that lies.
    pub place: Place,
    head: u64,
    position: u64,
}

impl Entry {
    /// Whom it is for.
    #[inline]
    #[must_use]
    pub fn address(&self) -> Address {
        Address::of_code((self.head >> 48) as u16)
    }

    /// Whether the payload lies elsewhere, as the [record](Lane::record) in the cell says.
    #[inline]
    #[must_use]
    pub fn is_spilled(&self) -> bool {
        self.head as u32 == SPILLED
    }

    /// Length, kind and address as the cell has them: what the chain digest takes.
    #[inline]
    #[must_use]
    pub fn shape(&self) -> u64 {
        self.head
    }
}

/// What a cell says of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Length of the payload in bytes, or [`SPILLED`].
    pub len: u32,
    /// The user's kind.
    pub kind: u16,
    /// Whom it is for.
    pub address: Address,
    /// Digest of the payload.
    pub digest: u64,
}

impl Shape {
    #[inline]
    fn store(self, cell: &Cell) {
        // Relaxed: the ticket (T1) hands these words over.
        let head = u64::from(self.len) | u64::from(self.kind) << 32 | u64::from(self.address.code()) << 48;
        cell.head.store(head, Ordering::Relaxed);
        cell.digest.store(self.digest, Ordering::Relaxed);
        crash_point!("lane.filled");
    }
}

/// A cell that cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCell {
    /// Number of the cell.
    pub cell: u64,
    /// Which field.
    pub field: &'static str,
    /// Its value.
    pub found: u64,
    /// The highest value that it could have (for a place: a multiple of 64 up to it).
    pub limit: u64,
}

/// A lane's memory, borrowed. The numbers of cells and of words are powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    claimed: &'a Claimed,
    cells: &'a [Cell],
    words: &'a [AtomicU64],
}

impl<'a> Lane<'a> {
    /// The lane over this memory; `words` is the ring of bytes.
    #[inline]
    #[must_use]
    pub fn new(claimed: &'a Claimed, cells: &'a [Cell], words: &'a [AtomicU64]) -> Self {
        debug_assert!(cells.len().is_power_of_two() && words.len().is_power_of_two());
        Lane { claimed, cells, words }
    }

    /// How many cells it has.
    #[inline]
    #[must_use]
    pub fn cells(&self) -> u64 {
        self.cells.len() as u64
    }

    /// How many bytes its ring of bytes has.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// The longest payload: half of the byte ring, and whatever fits into a cell.
    #[inline]
    #[must_use]
    pub fn max_payload(&self) -> u64 {
        max_payload(self.bytes())
    }

    #[inline]
    fn cell(&self, number: u64) -> &'a Cell {
        &self.cells[self.slot_index(number)]
    }

    /// Which slot of the ring cell `number` lies in.
    #[inline]
    #[must_use]
    pub fn slot_index(&self, number: u64) -> usize {
        number as usize & (self.cells.len() - 1)
    }

    #[inline]
    fn offset(&self, position: u64) -> u64 {
        position & (self.bytes() - 1)
    }

    /// Reads cell `number` and checks that what it says lies inside the lane. For workers, whose gate keeps
    /// the cell: a producer that runs wild can still change it after it was ordered, hence the check.
    #[inline]
    pub fn read(&self, number: u64) -> Result<Entry, BadCell> {
        match self.read_inline(number) {
            Some((entry, ..)) => Ok(entry),
            None => self.read_outside(number),
        }
    }

    /// As [`read`](Self::read), if the command is for all and its payload lies inside the cell, with the words that begin
    /// with it and its length, which is at most theirs.
    #[inline(always)]
    #[must_use]
    pub fn read_inline(&self, number: u64) -> Option<(Entry, &'a [AtomicU64; INLINE_WORDS], usize)> {
        // Relaxed: the run's commit word (R1) or the ticket (T1) has ordered these words before us.
        let cell = self.cell(number);
        let head = cell.head.load(Ordering::Relaxed);
        let digest = cell.digest.load(Ordering::Relaxed);
        // Length and address at once: neither may be more.
        let bytes = head & !KIND;
        if bytes > INLINE as u64 {
            return None;
        }
        let (len, kind, place) = (bytes as u32, (head >> 32) as u16, Place::Cell);
        let entry = Entry { cell: number, len, kind, digest, place, head, position: 0 };
        Some((entry, &cell.inline, bytes as usize))
    }

    /// As [`read`](Self::read), after [`read_inline`](Self::read_inline) found that the payload does not lie inside its
    /// cell, or the command is not for all, or the cell not right. What addresses there are is for the caller to know.
    #[inline]
    pub fn read_outside(&self, number: u64) -> Result<Entry, BadCell> {
        // Relaxed: as in `read_inline`.
        let cell = self.cell(number);
        let head = cell.head.load(Ordering::Relaxed);
        let digest = cell.digest.load(Ordering::Relaxed);
        let position = cell.place.load(Ordering::Relaxed);
        let (len, kind) = (head as u32, (head >> 32) as u16);
        let bad = |field, found, limit| Err(BadCell { cell: number, field, found, limit });
        let in_cell = |len| Ok(Entry { cell: number, len, kind, digest, place: Place::Cell, head, position });
        if len as usize <= INLINE {
            return in_cell(len);
        }
        if len == SPILLED {
            return in_cell(RECORD_BYTES);
        }
        let offset = self.offset(position);
        if u64::from(len) > self.max_payload() {
            return bad("length", u64::from(len), self.max_payload());
        }
        if !position.is_multiple_of(ALIGN) || offset + u64::from(len) > self.bytes() {
            return bad("place", offset, self.bytes() - u64::from(len));
        }
        let place = Place::Bytes(offset as usize);
        Ok(Entry { cell: number, len, kind, digest, place, head, position })
    }

    /// What a cell says of a payload that [does not lie in the lane](Entry::is_spilled).
    #[must_use]
    pub fn record(&self, entry: &Entry) -> Record {
        let words = &self.cell(entry.cell).inline;
        // Relaxed: as in `read_inline`.
        Record::decode(core::array::from_fn(|at| words[at].load(Ordering::Relaxed)))
    }

    /// The words that begin with an entry's payload; what comes behind its length does not belong to it.
    #[inline]
    #[must_use]
    pub fn payload(&self, entry: &Entry) -> &'a [AtomicU64] {
        match entry.place {
            // All of them: whoever reads asks for the length again, and knows the number of these.
            Place::Cell => &self.cell(entry.cell).inline,
            Place::Bytes(_) => self.payload_words(entry.cell, entry.place, entry.len),
        }
    }

    /// The words of the room for a payload; the last one may have bytes that do not belong to it.
    #[inline]
    #[must_use]
    pub fn room(&self, room: &Room) -> &'a [AtomicU64] {
        self.payload_words(room.cell, room.place, room.len)
    }

    #[inline]
    fn payload_words(&self, cell: u64, place: Place, len: u32) -> &'a [AtomicU64] {
        let words = (len as usize).div_ceil(8);
        match place {
            Place::Cell => &self.cell(cell).inline[..words],
            Place::Bytes(offset) => &self.words[offset / 8..offset / 8 + words],
        }
    }

    /// Copies a payload word by word, for readers that race with its producer, and for the models. `into` has
    /// at least as many words as the payload.
    pub fn copy(&self, entry: &Entry, into: &mut [u64]) {
        let words = self.payload_words(entry.cell, entry.place, entry.len);
        for (to, from) in into.iter_mut().zip(words) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Writes a payload word by word, for the sequencer's own commands, and for the models.
    pub fn write(&self, room: &Room, payload: &[u64]) {
        let words = self.room(room);
        for (to, from) in words.iter().zip(payload) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Whether what was copied of an entry, or of a cell that turned out bad, was still whole after the copy.
    /// An observer delivers nothing for which this is false.
    #[inline]
    pub fn still_there(&self, cell: u64, entry: Option<&Entry>) -> bool {
        // ORDERING [L2]: pairs with the release fence in `LaneWriter::reserve`. Who copied a word of a later
        // command sees here that its room had been claimed.
        fence(Ordering::Acquire);
        let cells = self.claimed.cells.load(Ordering::Relaxed);
        let bytes = self.claimed.bytes.load(Ordering::Relaxed);
        let in_bytes = |e: &Entry| e.place == Place::Cell || bytes.wrapping_sub(e.position) <= self.bytes();
        cells.wrapping_sub(cell) <= self.cells() && entry.is_none_or(in_bytes)
    }

    /// The first cell that nobody has claimed again yet, for an observer that fell behind.
    pub fn first_whole(&self) -> u64 {
        self.claimed.cells.load(Ordering::Relaxed).wrapping_sub(self.cells())
    }
}

/// The longest payload of a lane with so many bytes: half of them, whatever fits into a cell, and no more than a
/// cell's length can say.
#[inline]
#[must_use]
pub const fn max_payload(lane_bytes: u64) -> u64 {
    let half = lane_bytes / 2;
    if half >= SPILLED as u64 {
        SPILLED as u64 - 1
    } else if half > INLINE as u64 {
        half
    } else {
        INLINE as u64
    }
}

/// Room for one command, reserved and not yet queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Number of the cell.
    pub cell: u64,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Where the payload goes.
    pub place: Place,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// What is outstanding fills the lane; it comes back when the slowest gate passes.
    Full,
    /// `released` went back or beyond what was queued: the region is damaged.
    Damaged {
        /// What `released` says.
        found: u64,
        /// What it said before.
        low: u64,
        /// The first cell that is not queued.
        high: u64,
    },
}

/// A producer's own state of its lane.
#[derive(Clone, Debug)]
pub struct LaneWriter {
    /// Cells before this are free again, as far as this producer knows.
    released: u64,
    /// Cells before this have their tickets in.
    queued: u64,
    /// The next cell.
    head: u64,
    /// The same three for the bytes.
    bytes_tail: u64,
    bytes_queued: u64,
    bytes_head: u64,
    claimed_cells: u64,
    claimed_bytes: u64,
}

/// `a` lies after `b` on the circle of positions.
#[inline]
fn is_after(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) > 0
}

impl LaneWriter {
    /// Takes the lane up where its cells `released..queued` are outstanding: fresh, or left by a predecessor
    /// that is proven dead and whose tickets are all consumed.
    pub fn resume(lane: &Lane<'_>, released: u64, queued: u64) -> Result<Self, BadCell> {
        let outstanding = queued.wrapping_sub(released);
        if outstanding > lane.cells() {
            return Err(BadCell { cell: queued, field: "released", found: released, limit: queued });
        }
        // The predecessor may have written up to what it claimed: not going back keeps observers right.
        let claimed = lane.claimed.cells.load(Ordering::Relaxed);
        let claimed_cells = if is_after(claimed, queued) { claimed } else { queued };
        let bytes = lane.claimed.bytes.load(Ordering::Relaxed);
        let bytes_head = bytes.wrapping_add(ALIGN - 1) & !(ALIGN - 1);
        let bytes_tail =
            if outstanding == 0 { bytes_head } else { lane.cell(released).place.load(Ordering::Relaxed) };
        if bytes_head.wrapping_sub(bytes_tail) > lane.bytes() {
            return Err(BadCell { cell: released, field: "place", found: bytes_tail, limit: bytes_head });
        }
        Ok(LaneWriter {
            released,
            queued,
            head: queued,
            bytes_tail,
            bytes_queued: bytes_head,
            bytes_head,
            claimed_cells,
            claimed_bytes: bytes,
        })
    }

    /// Number of the next cell.
    #[inline]
    #[must_use]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Number of the first cell whose ticket is not in.
    #[inline]
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Cells before this are free again, as far as this producer knows.
    #[inline]
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// How many commands are reserved and not queued.
    #[inline]
    #[must_use]
    pub fn reserved(&self) -> u32 {
        self.head.wrapping_sub(self.queued) as u32
    }

    /// Reserves room for a payload of `len` bytes, at most [`Lane::max_payload`]. `released` is the word in
    /// which the sequencer says how far the lane is free; it is read only when what is known does not suffice.
    #[inline(always)]
    pub fn reserve(&mut self, lane: &Lane<'_>, released: &AtomicU64, len: u32) -> Result<Room, NoRoom> {
        debug_assert!(u64::from(len) <= lane.max_payload());
        let (cell, place, position) = if len as usize <= INLINE {
            (self.reserve_inline(lane, released, 1)?, Place::Cell, self.bytes_head)
        } else {
            let start = match self.find_bytes(lane, len) {
                Some(start) => start,
                None => self.look_for_bytes(lane, released, len)?,
            };
            let cell = self.head;
            self.head = cell.wrapping_add(1);
            self.bytes_head = start.wrapping_add(padded(len));
            self.claim(lane, self.head, self.bytes_head);
            crash_point!("lane.claimed");
            (cell, Place::Bytes(lane.offset(start) as usize), start)
        };
        lane.cell(cell).place.store(position, Ordering::Relaxed);
        crash_point!("lane.placed");
        Ok(Room { cell, len, place })
    }

    /// Reserves the next `count` cells, for payloads that lie inside them: the number of the first one. One claim serves
    /// all. Each is written by [`put_inline`](Self::put_inline).
    #[inline(always)]
    pub fn reserve_inline(
        &mut self,
        lane: &Lane<'_>,
        released: &AtomicU64,
        count: u32,
    ) -> Result<u64, NoRoom> {
        let (first, end) = (self.head, self.head.wrapping_add(u64::from(count)));
        if end.wrapping_sub(self.released) > lane.cells() {
            self.look_for_cells(lane, released, end)?;
        }
        self.head = end;
        self.claim_cells(lane, end);
        crash_point!("lane.claimed");
        Ok(first)
    }

    /// Writes a reserved cell with a payload of at most [`INLINE`] bytes inside: what [`reserve`](Self::reserve) for one
    /// cell, [`Lane::write`] and [`fill`](Self::fill) do, without a place that could be elsewhere. `payload` writes the
    /// payload into the cell's words.
    #[inline(always)]
    pub fn put_inline(
        &self,
        lane: &Lane<'_>,
        number: u64,
        shape: Shape,
        payload: impl FnOnce(&[AtomicU64; INLINE_WORDS]),
    ) {
        debug_assert!(shape.len as usize <= INLINE || shape.len == SPILLED);
        debug_assert!(is_after(self.head, number));
        let cell = lane.cell(number);
        cell.place.store(self.bytes_head, Ordering::Relaxed);
        crash_point!("lane.placed");
        payload(&cell.inline);
        shape.store(cell);
    }

    #[cold]
    fn look_for_cells(&mut self, lane: &Lane<'_>, released: &AtomicU64, end: u64) -> Result<(), NoRoom> {
        self.refresh(lane, released)?;
        if end.wrapping_sub(self.released) > lane.cells() { Err(NoRoom::Full) } else { Ok(()) }
    }

    #[cold]
    fn look_for_bytes(&mut self, lane: &Lane<'_>, released: &AtomicU64, len: u32) -> Result<u64, NoRoom> {
        self.refresh(lane, released)?;
        self.find_bytes(lane, len).ok_or(NoRoom::Full)
    }

    /// Whether [`reserve`](Self::reserve) would find room.
    pub fn has_room(&mut self, lane: &Lane<'_>, released: &AtomicU64, len: u32) -> Result<bool, NoRoom> {
        if self.has_place(lane, len) {
            return Ok(true);
        }
        self.refresh(lane, released)?;
        Ok(self.has_place(lane, len))
    }

    fn has_place(&self, lane: &Lane<'_>, len: u32) -> bool {
        if len as usize <= INLINE { self.has_cell(lane) } else { self.find_bytes(lane, len).is_some() }
    }

    /// Whether half of the bytes are taken by what is not released: time to ask for more, before there is none.
    #[inline]
    pub fn is_short_of_bytes(&mut self, lane: &Lane<'_>, released: &AtomicU64) -> bool {
        // What is known may be old.
        self.has_half_the_bytes(lane) && self.is_still_short(lane, released)
    }

    #[inline]
    fn has_half_the_bytes(&self, lane: &Lane<'_>) -> bool {
        self.bytes_head.wrapping_sub(self.bytes_tail) > lane.bytes() / 2
    }

    #[cold]
    fn is_still_short(&mut self, lane: &Lane<'_>, released: &AtomicU64) -> bool {
        // Damage shows when room is reserved.
        self.refresh(lane, released).is_ok() && self.has_half_the_bytes(lane)
    }

    #[inline]
    fn has_cell(&self, lane: &Lane<'_>) -> bool {
        self.head.wrapping_sub(self.released) < lane.cells()
    }

    /// Where a payload of `len` bytes begins that does not lie in its cell, if there is a cell and room for it.
    #[inline]
    fn find_bytes(&self, lane: &Lane<'_>, len: u32) -> Option<u64> {
        let start = start_after(lane, self.bytes_head, padded(len));
        let fits = start.wrapping_add(padded(len)).wrapping_sub(self.bytes_tail) <= lane.bytes();
        (fits && self.has_cell(lane)).then_some(start)
    }

    /// Whether there is room for payloads of these lengths together: before the first of them is copied, for who would
    /// have to copy it again when the last finds none. If so, one claim serves all of them; each is reserved by itself.
    pub fn has_room_for(
        &mut self,
        lane: &Lane<'_>,
        released: &AtomicU64,
        lens: impl ExactSizeIterator<Item = u32>,
    ) -> Result<bool, NoRoom> {
        let end = self.head.wrapping_add(lens.len() as u64);
        let bytes_end = lens
            .filter(|&len| len as usize > INLINE)
            .fold(self.bytes_head, |at, len| start_after(lane, at, padded(len)).wrapping_add(padded(len)));
        let fits = |me: &Self| {
            end.wrapping_sub(me.released) <= lane.cells()
                && bytes_end.wrapping_sub(me.bytes_tail) <= lane.bytes()
        };
        if !fits(self) {
            self.refresh(lane, released)?;
        }
        let has_room = fits(self);
        if has_room {
            self.claim(lane, end, bytes_end);
        }
        Ok(has_room)
    }

    /// Reads how far the lane is free.
    ///
    /// # Errors
    /// [`NoRoom::Damaged`].
    pub fn refresh(&mut self, lane: &Lane<'_>, released: &AtomicU64) -> Result<(), NoRoom> {
        // ORDERING [L1]: Acquire; pairs with the Release in `release_lane`. Every worker's reads of the
        // cells and bytes that are free now came before, so they may be overwritten.
        let found = released.load(Ordering::Acquire);
        if found.wrapping_sub(self.released) > self.queued.wrapping_sub(self.released) {
            return Err(NoRoom::Damaged { found, low: self.released, high: self.queued });
        }
        self.released = found;
        self.bytes_tail = if found == self.head {
            self.bytes_head
        } else {
            // Relaxed: this producer's own store.
            lane.cell(found).place.load(Ordering::Relaxed)
        };
        Ok(())
    }

    /// Says how far this producer may write from now on.
    #[inline]
    fn claim(&mut self, lane: &Lane<'_>, cells_end: u64, bytes_end: u64) {
        if is_after(bytes_end, self.claimed_bytes) {
            self.claimed_bytes = bytes_end;
            lane.claimed.bytes.store(bytes_end, Ordering::Relaxed);
        }
        self.claim_cells(lane, cells_end);
    }

    /// As [`claim`](Self::claim), where no bytes are claimed.
    #[inline]
    fn claim_cells(&mut self, lane: &Lane<'_>, end: u64) {
        if is_after(end, self.claimed_cells) {
            self.claimed_cells = end;
            lane.claimed.cells.store(end, Ordering::Relaxed);
        }
        // ORDERING [L2]: pairs with the acquire fence in `Lane::still_there`. Whoever reads a word that is
        // written after this also sees the claim.
        fence(Ordering::Release);
    }

    /// Writes a cell whose payload is in place.
    #[inline]
    pub fn fill(&self, lane: &Lane<'_>, room: &Room, kind: u16, digest: u64) {
        self.fill_to(Address::ALL, lane, room, kind, digest);
    }

    /// As [`fill`](Self::fill), for whom the command is.
    #[inline]
    pub fn fill_to(&self, address: Address, lane: &Lane<'_>, room: &Room, kind: u16, digest: u64) {
        Shape { len: room.len, kind, address, digest }.store(lane.cell(room.cell));
    }

    /// What was reserved has its ticket in.
    #[inline]
    pub fn commit(&mut self) {
        self.queued = self.head;
        self.bytes_queued = self.bytes_head;
    }

    /// Gives back what was reserved and has no ticket.
    #[inline]
    pub fn abandon(&mut self) {
        self.head = self.queued;
        // With nothing queued outstanding the free bytes may have been counted from the start of what is given
        // back here, beyond the bytes that a payload left out which would have wrapped: no position goes back
        // behind that, or more than a ring of bytes would be claimed.
        if is_after(self.bytes_tail, self.bytes_queued) {
            self.bytes_queued = self.bytes_tail;
        }
        self.bytes_head = self.bytes_queued;
    }
}

/// Where a payload of so many bytes, a multiple of [`ALIGN`], begins behind `at`: there, or at the start of the ring if it
/// would wrap.
#[inline]
fn start_after(lane: &Lane<'_>, at: u64, len: u64) -> u64 {
    let left = lane.bytes() - lane.offset(at);
    if len > left { at.wrapping_add(left) } else { at }
}

#[inline]
fn padded(len: u32) -> u64 {
    u64::from(len).next_multiple_of(ALIGN)
}

/// A producer's number and the cell from which its per-producer index counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Never reused in a region; 0 is the sequencer itself.
    pub number: u64,
    /// Its first cell.
    pub base: u64,
}

impl Owner {
    /// The place of an entry among its producer's commands.
    #[inline]
    #[must_use]
    pub fn index(&self, entry: &Entry) -> u64 {
        entry.cell.wrapping_sub(self.base)
    }

    /// The chain digest after an entry.
    #[inline]
    #[must_use]
    pub fn fold(&self, before: Chain, entry: &Entry) -> Chain {
        fold_at(before, digest::Place::of(self.number, self.index(entry)), entry.head, entry.digest)
    }

    /// What the chain digest takes of an entry.
    #[inline]
    #[must_use]
    pub fn folded(&self, entry: &Entry) -> Folded {
        Folded {
            producer: self.number,
            index: self.index(entry),
            len: entry.shape() as u32,
            kind: entry.kind,
            address: entry.address(),
            payload: entry.digest,
        }
    }
}
