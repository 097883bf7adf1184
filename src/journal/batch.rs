//! [`Batch`]: records that are written at once, as they will lie in a segment.
//!
//! A record is complete when it is added: its head and, if that is short, its payload are copied, and its checksum is
//! taken while both are in the cache. What one such record costs is what a journal without syncs costs beside the
//! kernel's own copy, so nothing is kept of it but these bytes: places are noted where one is due, and what the world has
//! to know by stretches of one producer.

use std::io::IoSlice;
use std::sync::Arc;

use super::JournalError;
use super::format::{ALIGN, Head, Place, Point, STRIDE};
use super::world::World;
use crate::config::DigestOf;
use crate::fold::Corrupt;
use crate::payload;
use crate::region::map::{Map, WordMap, WordsAt};

/// Payloads up to this are copied beside their heads: a piece of its own costs the kernel as much as copying so many bytes.
pub(super) const COPIED: usize = 1 << 10;
/// What is written at once, about; the last record may be longer. File systems keep what is written at once in large pieces.
pub(super) const BATCH_BYTES: u64 = 1 << 20;
/// And how much of it is copied: that is in the cache yet when the kernel copies it, beside the lanes that it came from.
pub(super) const BATCH_COPIED: u64 = 512 << 10;
/// And how many records.
const BATCH_RECORDS: usize = 4096;
const PADDING: [u8; ALIGN as usize] = [0; ALIGN as usize];

/// Where the bytes of a payload are until they are written.
#[derive(Clone, Debug)]
pub(super) enum Payload<'a> {
    /// Here: they are copied.
    Here(&'a [u8]),
    /// Elsewhere.
    Lent(Lent),
}

/// Where bytes lie that are written straight from there.
#[derive(Clone, Debug)]
pub(super) enum Lent {
    /// In a region's mapping, where a gate keeps them.
    Words(WordsAt),
    /// In a mapping of their own, kept until they are written, of a region's file, where a gate keeps them.
    Mapped(Arc<WordMap>),
}

impl Lent {
    fn bytes<'a>(&'a self, map: Option<&'a Map>, len: usize) -> &'a [u8] {
        match self {
            Lent::Words(at) => map.map_or(&[][..], |map| payload::read(map.words(*at), len)),
            Lent::Mapped(words) => payload::read(words.words(), len),
        }
    }
}

/// A record whose payload is not copied.
#[derive(Debug)]
struct Loan {
    /// Where its head is among the copied bytes. What follows that there belongs behind its payload.
    at: usize,
    head: Head,
    payload: Lent,
}

impl Loan {
    fn payload<'a>(&'a self, map: Option<&'a Map>) -> &'a [u8] {
        self.payload.bytes(map, self.head.len() as usize)
    }

    fn padding(&self) -> &'static [u8] {
        &PADDING[..self.head.padding()]
    }

    /// Where its payload goes among the copied bytes.
    fn ends(&self) -> usize {
        self.at + self.head.head_bytes()
    }

    /// Whether what it has in a mapping of its own was there when its checksum was taken.
    fn check(&self) -> Result<(), JournalError> {
        let Lent::Mapped(words) = &self.payload else { return Ok(()) };
        let (seq, field, expected) = (self.head.seq, "bytes of a spilled payload", self.head.len());
        words.hit().map_or(Ok(()), |_| Err(Corrupt { seq, field, found: 0, expected }.into()))
    }
}

/// What the world has to know of some records.
#[derive(Debug)]
enum Stretch {
    /// So many of one producer from an index on, of which nothing is read.
    Plain { producer: u64, index: u64, count: u64 },
    /// One that says something, and where its payload is among the copied bytes.
    Said(Head, usize),
}

/// Records that will be written at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// What the checksums begin with.
    seed: u32,
    /// The place of the first record that begins so far behind the first one, or farther, is kept.
    due: u64,
    /// Heads and payloads, in their order, but for what is lent.
    copied: Vec<u8>,
    loans: Vec<Loan>,
    /// With offsets from the first record on.
    places: Vec<Place>,
    stretches: Vec<Stretch>,
    records: usize,
    bytes: u64,
}

impl Batch {
    pub(super) fn records(&self) -> usize {
        self.records
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// How many bytes its records take in a segment.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many more of its bytes are asked for.
    pub(super) fn left(&self) -> u64 {
        let copied = BATCH_COPIED.saturating_sub(self.copied.len() as u64);
        if self.records < BATCH_RECORDS { BATCH_BYTES.saturating_sub(self.bytes).min(copied) } else { 0 }
    }

    /// And how many records.
    pub(super) fn records_left(&self) -> u64 {
        (BATCH_RECORDS - self.records.min(BATCH_RECORDS)) as u64
    }

    /// Adds a record, which stands at a point.
    #[inline(always)]
    pub(super) fn add(&mut self, at: &Point, head: &Head, payload: Payload<'_>) {
        if self.bytes >= self.due {
            self.note_place(at);
        }
        let from = self.copied.len();
        let is_said = World::reads(head) && matches!(payload, Payload::Here(_));
        self.note_stretch(head, is_said.then_some(from + head.head_bytes()));
        head.encode(&mut self.copied);
        match payload {
            Payload::Here(bytes) => {
                self.copied.extend_from_slice(bytes);
                self.copied.resize(from + head.bytes() as usize, 0);
                seal(&mut self.copied[from..], self.seed);
            }
            Payload::Lent(payload) => self.loans.push(Loan { at: from, head: *head, payload }),
        }
        self.records += 1;
        self.bytes += head.bytes();
    }

    #[cold]
    fn note_place(&mut self, at: &Point) {
        self.places.push(Place { point: *at, offset: self.bytes });
        self.due = self.bytes + STRIDE;
    }

    #[inline]
    fn note_stretch(&mut self, head: &Head, said: Option<usize>) {
        if let Some(at) = said {
            return self.stretches.push(Stretch::Said(*head, at));
        }
        match self.stretches.last_mut() {
            Some(Stretch::Plain { producer, index, count })
                if *producer == head.producer && index.wrapping_add(*count) == head.index =>
            {
                *count += 1;
            }
            _ => {
                let (producer, index) = (head.producer, head.index);
                self.stretches.push(Stretch::Plain { producer, index, count: 1 });
            }
        }
    }

    /// Says which segment it is for: what checksums begin with there, and how far behind the first record the next place is
    /// due. What it has already stands from `start` on, and is sealed anew.
    pub(super) fn is_for(&mut self, seed: u32, due: u64, start: Point, what: DigestOf) {
        (self.seed, self.due) = (seed, due);
        if self.is_empty() {
            return;
        }
        let (mut copied, mut point, mut at) = (std::mem::take(&mut self.copied), start, 0);
        let records = std::mem::take(&mut self.records);
        self.places.clear();
        self.bytes = 0;
        let mut loans = self.loans.iter().peekable();
        let mut places = Vec::new();
        for _ in 0..records {
            let Ok(head) = Head::decode(&copied[at..]) else { break };
            if self.bytes >= self.due {
                places.push(Place { point, offset: self.bytes });
                self.due = self.bytes + STRIDE;
            }
            let is_lent = loans.next_if(|loan| loan.at == at).is_some();
            let end = at + if is_lent { head.head_bytes() } else { head.bytes() as usize };
            if !is_lent {
                seal(&mut copied[at..end], seed);
            }
            point = point.after(&head, &copied[at + head.head_bytes()..end], what);
            self.bytes += head.bytes();
            at = end;
        }
        (self.copied, self.places, self.records) = (copied, places, records);
    }

    /// Completes what is lent; to be called before [`pieces`](Self::pieces).
    pub(super) fn seal_loans(&mut self, map: Option<&Map>) -> Result<(), JournalError> {
        for loan in &self.loans {
            let head = &mut self.copied[loan.at..loan.ends()];
            let crc = crc32c::crc32c_append(self.seed, &head[4..]);
            let crc = crc32c::crc32c_append(crc, loan.payload(map));
            let crc = crc32c::crc32c_append(crc, loan.padding());
            head[..4].copy_from_slice(&crc.to_le_bytes());
        }
        self.loans.iter().try_for_each(Loan::check)
    }

    /// All its bytes, behind others: what is copied in pieces as long as can be, what is lent where it lies.
    pub(super) fn pieces<'a>(&'a self, before: &'a [u8], map: Option<&'a Map>) -> Vec<IoSlice<'a>> {
        let mut pieces = vec![IoSlice::new(before)];
        let mut from = 0;
        for loan in &self.loans {
            pieces.push(IoSlice::new(&self.copied[from..loan.ends()]));
            pieces.push(IoSlice::new(loan.payload(map)));
            pieces.push(IoSlice::new(loan.padding()));
            from = loan.ends();
        }
        pieces.push(IoSlice::new(&self.copied[from..]));
        pieces
    }

    /// Takes what is written out of it: the places, its first record being at an offset, and past what the world goes.
    pub(super) fn take(&mut self, offset: u64, places: &mut Vec<Place>, world: &mut World) {
        let placed = |place: Place| Place { offset: offset + place.offset, ..place };
        places.extend(self.places.drain(..).map(placed));
        for stretch in self.stretches.drain(..) {
            // What does not go on is for `verify` to tell: the order is what it is.
            let _ = match stretch {
                Stretch::Plain { producer, index, count } => world.pass_many(producer, index, count),
                Stretch::Said(head, at) => world.pass(&head, &self.copied[at..at + head.len() as usize]),
            };
        }
        self.copied.clear();
        self.loans.clear();
        (self.records, self.bytes) = (0, 0);
    }
}

/// Stores the checksum of a record, all of whose bytes these are.
#[inline]
fn seal(record: &mut [u8], seed: u32) {
    let crc = crc32c::crc32c_append(seed, &record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}
