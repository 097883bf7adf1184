//! Spills in a region's file: pages behind its sections, which come and go with the payloads that lie in them.
//!
//! A producer reserves the pages of a spill and writes them; workers map it when they come to it; the sequencer gives the
//! pages back, a few at a time. Which positions are whose, and when, is in [`seriatim_ring::spill`].

use std::cell::OnceCell;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use seriatim_ring::Seq;
use seriatim_ring::lane::Entry;
use seriatim_ring::spill::{Record, Spill, SpillWriter};
use seriatim_ring::sync::Ordering;

use super::Region;
use super::layout::Layout;
use super::map::{Map, WordMap};
use crate::crash_point;
use crate::fold::{Corrupt, Stopped};
use crate::fork;
use crate::liveness::Role;
use crate::payload;
use crate::producer::SubmitError;
use crate::sys;

/// Bytes that a sequencer gives back at once: what costs it some tens of microseconds.
pub(crate) const PIECE: u64 = 256 << 10;

/// Bytes that are written or copied at once: as long as a producer writes some, nobody else can reserve pages of
/// the file or give any back, the sequencer neither.
const BLOCK: usize = 1 << 16;

/// The payload of a command could not be mapped, for lack of memory or address space. The command is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot map the {bytes} bytes of the command at index {seq}: {}", io::Error::from_raw_os_error(*.errno))]
pub struct Unmapped {
    /// Its index.
    pub seq: Seq,
    /// Length of the payload in bytes.
    pub bytes: u64,
    /// What the kernel said, by its number.
    pub errno: i32,
}

/// Maps a spilled payload for reading, for one whose gate keeps it: what the record says of it, and its words.
pub(crate) fn open(map: &Map, seq: Seq, lane: u16, entry: &Entry) -> Result<(Record, WordMap), Stopped> {
    let (record, range) = find(map, seq, lane, entry)?;
    let words = WordMap::behind(map, range, false).map_err(|e| unmapped(seq, &record, &e))?;
    Ok((record, words))
}

/// Copies a spilled payload, for one whose gate does not keep it: through the kernel, for in a mapping a look at what was
/// given back would make new pages, or end who looks where there is no room for them.
pub(crate) fn copy(map: &Map, seq: Seq, lane: u16, entry: &Entry) -> Result<(Record, Vec<u64>), Stopped> {
    let (record, range) = find(map, seq, lane, entry)?;
    let mut words = Vec::new();
    // What the record says is less than the file has.
    words
        .try_reserve_exact(record.len.div_ceil(8) as usize)
        .map_err(|_| unmapped(seq, &record, &io::Error::from_raw_os_error(libc::ENOMEM)))?;
    read(map, seq, &record, range, |block| {
        words.extend(block.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        }));
    })?;
    Ok((record, words))
}

/// As [`copy`], a block after the other: what the record says of it.
pub(crate) fn copy_blocks(
    map: &Map,
    seq: Seq,
    lane: u16,
    entry: &Entry,
    each: impl FnMut(&[u8]),
) -> Result<Record, Stopped> {
    let (record, range) = find(map, seq, lane, entry)?;
    read(map, seq, &record, range, each)?;
    Ok(record)
}

fn read(
    map: &Map,
    seq: Seq,
    record: &Record,
    range: Range<u64>,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Stopped> {
    let mut block = vec![0; BLOCK];
    for at in range.clone().step_by(BLOCK) {
        let left = (range.end - at).min(BLOCK as u64) as usize;
        map.file().read_exact_at(&mut block[..left], at).map_err(|e| unmapped(seq, record, &e))?;
        each(&block[..left]);
    }
    Ok(())
}

#[cold]
fn unmapped(seq: Seq, record: &Record, e: &io::Error) -> Stopped {
    let errno = e.raw_os_error().unwrap_or(libc::ENOMEM);
    Unmapped { seq, bytes: record.len, errno }.into()
}

/// Where a spilled payload lies in the file, and what the record says of it.
fn find(map: &Map, seq: Seq, lane: u16, entry: &Entry) -> Result<(Record, Range<u64>), Stopped> {
    let corrupt = |field, found, expected| Stopped::from(Corrupt { seq, field, found, expected });
    let record = map.lane(lane).record(entry);
    let area = map.layout().spill_area(lane);
    let area = area.ok_or_else(|| corrupt("spill in a region without", entry.shape(), 0))?;
    let place = record.place(entry.cell, area.end - area.start);
    let offset = place.map_err(|bad| corrupt(bad.field, bad.found, bad.limit))?;
    if record.cell_digest() != entry.digest {
        return Err(corrupt("digest of a spill's record", entry.digest, record.cell_digest()));
    }
    let range = area.start + offset..area.start + offset + record.len;
    let found = map.file().metadata().map_err(|e| unmapped(seq, &record, &e))?.len();
    if found < range.end {
        // A look at what lies behind the end would end this process.
        return Err(corrupt("length of the file", found, range.end));
    }
    Ok((record, range))
}

/// A spill that is being written, by the producer of its lane; given up if it is dropped before it is [`keep`](Self::keep)t.
#[derive(Debug)]
pub(crate) struct Spilling {
    region: Region,
    lane: u16,
    spill: Spill,
    /// Where it lies in the file.
    at: u64,
    len: u64,
    words: OnceCell<WordMap>,
    is_kept: bool,
}

impl Spilling {
    /// Reserves the pages for a spill of `len` bytes that was claimed.
    ///
    /// # Errors
    /// There are not so many (`None`), or something else.
    pub(crate) fn reserve(
        region: &Region,
        lane: u16,
        spill: Spill,
        len: u64,
    ) -> Result<Self, Option<SubmitError>> {
        let range = range_of(region.map().layout(), lane, &spill);
        let (at, words) = (range.start, OnceCell::new());
        let spilling = Spilling { region: region.clone(), lane, spill, at, len, words, is_kept: false };
        if let Err(error) = sys::reserve(region.file(), range) {
            // Whoever asks how much there is finds what this got of it.
            drop(spilling);
            return Err(match error.raw_os_error() {
                Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT) => None,
                // A limit to the length of files, of the process or the file system, is not a lack of room.
                _ => Some(failed("reserve", &error)),
            });
        }
        crash_point!("spill.reserved");
        Ok(spilling)
    }

    /// Length of the payload in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Writes all of it.
    pub(crate) fn write(&self, payload: &[u8]) -> Result<(), SubmitError> {
        debug_assert!(payload.len() as u64 == self.len);
        // Through the kernel: a page that is written whole need not be cleared and entered first.
        let mut at = self.at;
        for block in payload.chunks(BLOCK) {
            self.region.file().write_all_at(block, at).map_err(|e| failed("write", &e))?;
            at += block.len() as u64;
        }
        crash_point!("spill.written");
        Ok(())
    }

    /// Maps it, to be written in place.
    pub(crate) fn map(&self) -> Result<(), SubmitError> {
        let range = self.at..self.at + self.len;
        let words = WordMap::behind(self.region.map(), range, true).map_err(|e| failed("map", &e))?;
        let _ = self.words.set(words);
        Ok(())
    }

    /// Its bytes, once it is [mapped](Self::map).
    pub(crate) fn bytes(&self) -> &[u8] {
        self.words.get().map_or(&[], |words| payload::read(words.words(), self.len()))
    }

    /// As [`bytes`](Self::bytes), to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        self.words.get_mut().map_or(&mut [], |words| payload::spill_mut(words, len))
    }

    /// Where it ends in the file, if an access to it found a page gone.
    pub(crate) fn hit(&self) -> Option<u64> {
        self.words.get()?.hit()
    }

    /// The record for the cell, with the digest of the payload.
    pub(crate) fn record(&self, digest: u64) -> Record {
        Record { len: self.len, digest, start: self.spill.start }
    }

    /// Its command has a ticket: it is not given up any more.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Spilling {
    fn drop(&mut self) {
        if self.is_kept || fork::is_child() {
            return;
        }
        self.words = OnceCell::new();
        let range = range_of(self.region.map().layout(), self.lane, &self.spill);
        // The sequencer does it again, for one who fails here as for one who dies.
        let _ = sys::give_back(self.region.file(), range);
        SpillWriter::give_up(&self.region.map().lane_page(self.lane).spills, &self.spill);
    }
}

/// Where a spill lies in the file.
fn range_of(layout: &Layout, lane: u16, spill: &Spill) -> Range<u64> {
    let area = layout.spill_area(lane).unwrap_or_default();
    let range = spill.range(area.end - area.start);
    area.start + range.start..area.start + range.end
}

#[cold]
fn failed(what: &'static str, e: &io::Error) -> SubmitError {
    SubmitError::Spill { what, errno: e.raw_os_error().unwrap_or(libc::EIO) }
}

/// How far a sequencer is with giving spills back.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    lanes: Vec<Swept>,
    /// Where it goes on: so that no lane waits for another's.
    next: usize,
    /// There are spills that are not given back yet.
    pub(crate) is_waiting: bool,
}

/// What a look at the spills of a region came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Nothing is to be given back.
    Nothing,
    /// A piece of a spill was.
    Piece,
    /// All that was left of a spill: its room can be used again.
    Freed,
}

/// The same of one lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Swept {
    /// Bytes of its next spill that are given back.
    bytes: u64,
    /// The generation of a producer that was found dead, and behind which ticket it can have queued nothing more.
    dead: Option<(u64, u64)>,
    /// A failure was said.
    has_failed: bool,
}

/// What a sequencer knows of tickets.
pub(crate) struct Tickets<F> {
    /// The next one that it takes.
    pub(crate) next: u64,
    /// Behind the last that is queued: what takes as long as there are many.
    pub(crate) tail: F,
}

impl Sweeper {
    /// Gives a piece of the next spill back that can be, of any lane.
    pub(crate) fn sweep(&mut self, region: &Region, tickets: &Tickets<impl Fn() -> u64>) -> Sweep {
        let lanes = region.map().lane_entries().len();
        self.lanes.resize(lanes, Swept::default());
        self.is_waiting = false;
        for _ in 1..lanes {
            self.next = self.next % (lanes - 1) + 1;
            let lane = self.next as u16;
            let (spills, entry) = (&region.map().lane_page(lane).spills, region.map().lane_entry(lane));
            if spills.claimed() == entry.spills.load(Ordering::Relaxed) {
                continue;
            }
            self.is_waiting = true;
            let swept = &mut self.lanes[self.next];
            if let Some(spill) = spills.to_free(entry, || swept.is_orphan(region, lane, tickets)) {
                return swept.give_back(region, lane, &spill);
            }
        }
        Sweep::Nothing
    }
}

impl Swept {
    /// Gives the next piece of a spill back.
    fn give_back(&mut self, region: &Region, lane: u16, spill: &Spill) -> Sweep {
        let mut left = range_of(region.map().layout(), lane, spill);
        left.start = left.end.min(left.start + self.bytes);
        let piece = left.start..left.end.min(left.start + PIECE);
        crash_point!("spill.free");
        if let Err(error) = sys::give_back(region.file(), piece.clone())
            && !std::mem::replace(&mut self.has_failed, true)
        {
            // Its room can be used again; what it takes comes back when it is, or with the file.
            tracing::warn!("{:?}: cannot give the pages of a spill back: {error}", region.path());
        }
        if piece.end < left.end {
            self.bytes += PIECE;
            return Sweep::Piece;
        }
        crash_point!("spill.swept");
        seriatim_ring::spill::freed(region.map().lane_entry(lane), spill);
        self.bytes = 0;
        Sweep::Freed
    }

    /// Whether what the lane's producer did not get into the order never will be.
    pub(crate) fn is_orphan(
        &mut self,
        region: &Region,
        lane: u16,
        tickets: &Tickets<impl Fn() -> u64>,
    ) -> bool {
        // Before the look at the lock: of who asks after it nothing is known.
        let generation = region.map().lane_page(lane).party.request();
        if region.is_alive(Role::Lane(lane)) {
            self.dead = None;
            return false;
        }
        // A successor that came and died in between has queued tickets of its own.
        let same = self.dead.filter(|&(its, _)| its == generation);
        let (_, tail) = *self.dead.insert(same.unwrap_or_else(|| (generation, (tickets.tail)())));
        (tickets.next.wrapping_sub(tail) as i64) >= 0
    }
}
