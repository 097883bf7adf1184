//! One segment, read: what its header and footer say, its records one after the other, and where it ends if nobody
//! sealed it.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use seriatim_ring::Seq;

use super::disk::{Disk, View};
use super::error::{Damage, ReplayError};
use super::format::{
    self, ALIGN, Bad, FOOTER_BYTES, Footer, HEADER_BYTES, HEARD_HELLO, Head, Header, Item, LONGEST_HEAD,
    MARK_BYTES, PLACE_BYTES, Place, Point, STRIDE,
};
use super::world::World;

/// The end of a segment's file name; before it stands the first index, in 20 digits.
pub(super) const SUFFIX: &str = ".seg";
/// That of one which is not complete yet.
pub(super) const NEW_SUFFIX: &str = ".new";

/// Where the segment that begins with an index lies.
pub(super) fn path_of(dir: &Path, first: Seq, suffix: &str) -> PathBuf {
    dir.join(format!("{:020}{suffix}", first.get()))
}

/// The first index of the segment that has such a name, if one can have it.
pub(super) fn first_of(name: &OsStr, suffix: &str) -> Option<Seq> {
    let digits = name.to_str()?.strip_suffix(suffix).filter(|digits| digits.len() == 20)?;
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    if is_number { digits.parse().ok().map(Seq::new) } else { None }
}

/// The first indexes of a directory's segments, in order.
pub(super) fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<Seq>> {
    list_of(disk, dir, SUFFIX)
}

/// The indexes of all that is named by one, with such an end, in order.
pub(super) fn list_of(disk: &dyn Disk, dir: &Path, suffix: &str) -> io::Result<Vec<Seq>> {
    let names = disk.list(dir)?;
    let mut firsts: Vec<_> = names.iter().filter_map(|name| first_of(name, suffix)).collect();
    firsts.sort_unstable_by_key(|first| first.get());
    Ok(firsts)
}

/// If a segment could not be opened because it is there no more, and none that begins before it is: it was pruned, and
/// this is what the journal begins with now.
pub(super) fn is_pruned(disk: &dyn Disk, dir: &Path, first: Seq, error: &ReplayError) -> Option<Seq> {
    let is_gone = matches!(error, ReplayError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound);
    let now = if is_gone { list(disk, dir).ok()?.first().copied() } else { None };
    now.filter(|&now| now > first)
}

/// What was cut off the end of a journal: what somebody who died there, or a loss of power, left of records that had not
/// been synced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cut {
    /// The segment's file.
    pub path: PathBuf,
    /// Where the first record that is not whole begins.
    pub offset: u64,
    /// Its index: the first one that is not there.
    pub seq: Seq,
    /// How many bytes follow from there on, up to the last one that is not zero.
    pub bytes: u64,
    /// How many records behind it look whole, of those that are not too much to look for. None of them had been acknowledged as durable.
    pub whole: u64,
    /// A journal is writing here just now: this is what it has not finished.
    pub is_live: bool,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { path, offset, seq, bytes, whole, is_live } = self;
        let what = if *is_live { "being written" } else { "torn tail cut" };
        write!(f, "{what}: {}, offset {offset}: {bytes} bytes from index {seq} on", path.display())?;
        if *whole > 0 { write!(f, ", {whole} whole records behind the first among them") } else { Ok(()) }
    }
}

/// What lies behind the last whole record of a segment that is not sealed.
enum Tail {
    /// Zeroes.
    Clean,
    /// What had not been synced, as far as is known.
    Torn(Cut),
    /// Something that says that what is not whole had been synced.
    Synced,
}

/// Where the records end that can be read of a segment without a footer.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    pub(super) end: u64,
    pub(super) after: Point,
    pub(super) places: Vec<Place>,
    pub(super) cut: Option<Cut>,
    /// What is known there of the order.
    pub(super) world: World,
}

/// A segment, open to be read.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// What is known of the order where it begins.
    pub(super) world: World,
    pub(super) footer: Option<Footer>,
    /// Of some of its records, if it is sealed.
    pub(super) places: Vec<Place>,
    seed: u32,
    view: Box<dyn View>,
}

/// What a sealed segment ends with; `None` if it is not sealed. What is wrong there is told with its offset.
type Ending = Result<Option<(Footer, Vec<Place>)>, (u64, Bad)>;

fn read_ending(view: &mut dyn View, seed: u32) -> io::Result<Ending> {
    let file_bytes = view.bytes();
    let at = file_bytes.saturating_sub(FOOTER_BYTES as u64);
    let footer = match Footer::decode(view.at(at, FOOTER_BYTES)?, file_bytes, seed) {
        Ok(Some(footer)) => footer,
        Ok(None) => return Ok(Ok(None)),
        Err(bad) => return Ok(Err((at, bad))),
    };
    let bytes = view.at(footer.end, footer.places_bytes())?;
    let places = footer.decode_places(bytes, seed).map(|places| Some((footer, places)));
    Ok(places.map_err(|bad| (footer.end, bad)))
}

/// How a record was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) head: Head,
    /// Where it begins.
    pub(super) offset: u64,
    /// The point at which it stands, and the one behind it.
    pub(super) at: Point,
    pub(super) after: Point,
}

impl Found {
    /// Where its payload begins.
    fn payload_at(&self) -> u64 {
        self.offset + self.head.head_bytes() as u64
    }

    /// Where it ends.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.head.bytes()
    }
}

/// How many bytes are looked at for records that turn out not to be there, by the bytes of a tail.
const TAIL_EFFORT: u64 = 4;

/// What is looked at in one go of something long.
pub(super) const PIECE: usize = 1 << 20;

impl Segment {
    /// Opens the segment that begins with an index. A sealed one is read in place, if that is asked for. The last one of
    /// a journal may be half sealed, and then counts as not sealed: what its footer says is found by a scan as well.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        first: Seq,
        in_place: bool,
        is_last: bool,
    ) -> Result<Segment, ReplayError> {
        let path = path_of(dir, first, SUFFIX);
        let failed = |source| ReplayError::Io { path: path.clone(), what: "read", source };
        let bad = |offset, Bad { field, found, expected }| {
            ReplayError::Damaged(Damage { path: path.clone(), offset, seq: first, field, found, expected })
        };
        let mut view = disk.view(&path, false).map_err(failed)?;
        let bytes = view.at(0, HEADER_BYTES).map_err(failed)?;
        Bad::unless_same("bytes of a header", bytes.len() as u64, HEADER_BYTES as u64)
            .map_err(|e| bad(0, e))?;
        let (header, seed) = Header::decode(bytes).map_err(|e| bad(0, e))?;
        Bad::unless_same("first index", header.start.next.get(), first.get()).map_err(|e| bad(32, e))?;
        let world = view.at(HEADER_BYTES as u64, header.world_bytes() as usize).map_err(failed)?;
        let world =
            World::decode(world, &header.origin.geometry, seed).map_err(|e| bad(HEADER_BYTES as u64, e))?;
        let (footer, places) = match read_ending(&mut *view, seed).map_err(failed)? {
            Ok(Some((footer, places))) => (Some(footer), places),
            Ok(None) => (None, Vec::new()),
            Err(_) if is_last => (None, Vec::new()),
            Err((offset, wrong)) => return Err(bad(offset, wrong)),
        };
        if footer.is_some() && in_place {
            view = disk.view(&path, true).map_err(failed)?;
        }
        Ok(Segment { path, header, world, footer, places, seed, view })
    }

    /// What the checksums of its records begin with.
    pub(super) fn seed(&self) -> u32 {
        self.seed
    }

    /// Where its records begin.
    pub(super) fn beginning(&self) -> (u64, Point) {
        (self.header.records(), self.header.start)
    }

    pub(super) fn damage(&self, offset: u64, seq: Seq, Bad { field, found, expected }: Bad) -> ReplayError {
        ReplayError::Damaged(Damage { path: self.path.clone(), offset, seq, field, found, expected })
    }

    fn failed(&self, source: io::Error) -> ReplayError {
        ReplayError::Io { path: self.path.clone(), what: "read", source }
    }

    /// What begins at an offset, all its bytes checked; `Ok(Err)` if it is not right.
    fn item(&mut self, offset: u64, end: u64) -> io::Result<Result<Item, Bad>> {
        let left = end.saturating_sub(offset);
        let head = self.view.at(offset, left.min(LONGEST_HEAD as u64) as usize)?;
        let item = match Item::peek(head) {
            Ok(item) => item,
            Err(bad) => return Ok(Err(bad)),
        };
        if item.bytes() > left {
            return Ok(Bad::unless_same("bytes of a record", left, item.bytes()).map(|()| item));
        }
        Ok(self.check(&item, offset)?.map(|()| item))
    }

    /// Checks all bytes of what begins at an offset: piece by piece, for a record can be longer than memory.
    fn check(&mut self, item: &Item, offset: u64) -> io::Result<Result<(), Bad>> {
        let (end, mut at) = (offset + item.bytes(), offset);
        let (mut crc, mut said, mut is_zero) = (self.seed, 0, true);
        while at < end {
            let bytes = self.view.at(at, (end - at).min(PIECE as u64) as usize)?;
            if bytes.is_empty() {
                return Ok(Bad::unless_same("bytes of a record", at - offset, item.bytes()));
            }
            let mut covered = bytes;
            if at == offset {
                let (checksum, rest) = bytes.split_at(4.min(bytes.len()));
                said = checksum.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
                covered = rest;
            }
            crc = crc32c::crc32c_append(crc, covered);
            at += bytes.len() as u64;
            if at == end {
                // No piece is shorter than what is padded: the last one begins before.
                is_zero = bytes.iter().rev().take(item.padding()).all(|&byte| byte == 0);
            }
        }
        // What could not be read is not damage.
        self.view.at(end, 0)?;
        let checked = Bad::unless_same("checksum", crc.into(), said.into());
        Ok(checked.and_then(|()| Bad::unless(is_zero, "padding", 1, 0)))
    }

    /// Bytes of a record's payload, from an offset in it on.
    pub(super) fn part(&mut self, found: &Found, from: u64, len: usize) -> Result<&[u8], ReplayError> {
        let (at, path) = (found.payload_at() + from, &self.path);
        let failed = |source| ReplayError::Io { path: path.clone(), what: "read", source };
        let bytes = self.view.at(at, len).map_err(failed)?;
        if bytes.len() == len { Ok(bytes) } else { Err(failed(io::ErrorKind::UnexpectedEof.into())) }
    }

    /// The record that comes next at a point, marks passed over; `None` at `end`. What is wrong there is told with its
    /// offset.
    pub(super) fn step(
        &mut self,
        mut offset: u64,
        at: Point,
        end: u64,
    ) -> io::Result<Result<Option<Found>, (u64, Bad)>> {
        let what = self.header.origin.digest_of;
        while offset < end {
            let item = match self.item(offset, end)? {
                Ok(found) => found,
                Err(bad) => return Ok(Err((offset, bad))),
            };
            let wrong = match item {
                Item::Record(head) => {
                    let same = Bad::unless_same("index", head.seq.get(), at.next.get());
                    match same {
                        Ok(()) => {
                            let is_hello = head.flags & HEARD_HELLO != 0 && head.len() >= 8;
                            let first = if is_hello { 8 } else { 0 };
                            let payload = self.view.at(offset + head.head_bytes() as u64, first)?;
                            let after = at.after(&head, payload, what);
                            return Ok(Ok(Some(Found { head, offset, at, after })));
                        }
                        Err(bad) => bad,
                    }
                }
                Item::Mark(point, _) => {
                    offset += item.bytes();
                    let Err(bad) = differs(&point, &at) else { continue };
                    offset -= item.bytes();
                    bad
                }
            };
            return Ok(Err((offset, wrong)));
        }
        Ok(Ok(None))
    }

    /// As [`step`](Self::step), for a segment of which all up to `end` is to be there.
    pub(super) fn next(&mut self, offset: u64, at: Point, end: u64) -> Result<Option<Found>, ReplayError> {
        match self.step(offset, at, end) {
            Ok(Ok(found)) => Ok(found),
            Ok(Err((offset, bad))) => Err(self.damage(offset, at.next, bad)),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// The bytes of a record that was found.
    pub(super) fn payload(&mut self, found: &Found) -> Result<&[u8], ReplayError> {
        // Its bytes were there when it was found.
        self.part(found, 0, found.head.len() as usize)
    }

    /// Goes past a record with what is known of the order; `Ok(Err)` if it does not go on there.
    pub(super) fn pass(&mut self, found: &Found, world: &mut World) -> Result<Result<(), Bad>, ReplayError> {
        let len = if World::reads(&found.head) { found.head.len() as usize } else { 0 };
        let payload = self.part(found, 0, len)?;
        Ok(world.pass(&found.head, payload))
    }

    /// What is known of the order at the end of a sealed segment.
    pub(super) fn world_at(&mut self, end: u64) -> Result<World, ReplayError> {
        let ((mut offset, mut at), mut world) = (self.beginning(), self.world.clone());
        while let Some(found) = self.next(offset, at, end)? {
            // What does not go on is for `verify` to tell: the order is what it is.
            let _ = self.pass(&found, &mut world)?;
            (offset, at) = (found.end(), found.after);
        }
        Ok(world)
    }

    /// All bytes between two offsets, in pieces.
    pub(super) fn copy(
        &mut self,
        from: u64,
        to: u64,
        mut each: impl FnMut(&[u8]) -> Result<(), super::JournalError>,
    ) -> Result<(), super::JournalError> {
        let mut at = from;
        while at < to {
            let len = (to - at).min(PIECE as u64) as usize;
            let bytes = match self.view.at(at, len) {
                Ok(bytes) if bytes.len() == len => bytes,
                Ok(_) => return Err(self.failed(io::ErrorKind::UnexpectedEof.into()).into()),
                Err(source) => return Err(self.failed(source).into()),
            };
            each(bytes)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Walks a segment that is not sealed, to where it ends. A tail that is not whole is cut off, unless it had been
    /// synced once: then it is damage.
    pub(super) fn scan(&mut self, is_live: bool) -> Result<Scan, ReplayError> {
        let (end, after) = self.beginning();
        let mut scan = Scan { end, after, places: Vec::new(), cut: None, world: self.world.clone() };
        self.scan_on(&mut scan, is_live, false)?;
        Ok(scan)
    }

    /// Walks on from where a scan of this segment has ended. Where nothing is yet, what lies behind that is not looked at if
    /// it is to be `brief`.
    pub(super) fn scan_on(&mut self, scan: &mut Scan, is_live: bool, brief: bool) -> Result<(), ReplayError> {
        let file_bytes = self.view.bytes();
        let mut next_place = scan.places.last().map_or(scan.end, |place| place.offset + STRIDE);
        scan.cut = loop {
            let (offset, at) = (scan.end, scan.after);
            match self.step(offset, at, file_bytes).map_err(|source| self.failed(source))? {
                Ok(Some(found)) => {
                    if found.offset >= next_place {
                        scan.places.push(Place { point: found.at, offset: found.offset });
                        next_place = found.offset + STRIDE;
                    }
                    let _ = self.pass(&found, &mut scan.world)?;
                    (scan.end, scan.after) = (found.end(), found.after);
                }
                Ok(None) => {
                    scan.end = file_bytes;
                    break None;
                }
                Err((end, bad)) => {
                    // Marks before it are whole.
                    scan.end = end;
                    if brief && self.is_blank(end)? {
                        break None;
                    }
                    match self.tail(end, at.next, is_live)? {
                        Tail::Clean => break None,
                        Tail::Torn(cut) => break Some(cut),
                        Tail::Synced if self.goes_on(end, at)? => {}
                        Tail::Synced => return Err(self.damage(end, at.next, bad)),
                    }
                }
            }
        };
        // It is cut when it is sealed alone, all records synced by then, to have room for its footer and no more.
        let sealed = scan.end + (scan.places.len() * PLACE_BYTES + FOOTER_BYTES) as u64;
        let is_long_enough = file_bytes >= self.header.reserved || file_bytes == sealed;
        Bad::unless(is_long_enough, "length of the file", file_bytes, self.header.reserved)
            .map_err(|bad| self.damage(scan.end, scan.after.next, bad))
    }

    /// Whether no record begins at an offset, not even a torn one.
    fn is_blank(&mut self, offset: u64) -> Result<bool, ReplayError> {
        match self.view.at(offset, LONGEST_HEAD) {
            Ok(head) => Ok(format::is_zero(head)),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// Whether what belongs there is there now: who writes here may have gone on since it was read.
    fn goes_on(&mut self, offset: u64, at: Point) -> Result<bool, ReplayError> {
        self.view.refresh();
        match self.step(offset, at, self.view.bytes()) {
            Ok(Ok(_)) => Ok(true),
            // A mark at least: whoever looks again looks further on.
            Ok(Err((end, _))) => Ok(end > offset),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// What lies behind the last whole record.
    fn tail(&mut self, from: u64, seq: Seq, is_live: bool) -> Result<Tail, ReplayError> {
        let Some(last) = self.last_byte(from)? else { return Ok(Tail::Clean) };
        let (mut at, mut whole, bytes) = (from, 0, last + 1 - from);
        // Payloads can have what looks like heads of long records at each word. Marks are found whatever they have.
        let mut effort = TAIL_EFFORT.saturating_mul(bytes);
        while at <= last {
            let (cost, found) = match self.item_for(effort, at) {
                Ok(found) => found,
                Err(source) => return Err(self.failed(source)),
            };
            match found {
                Some(Item::Mark(_, synced)) if synced > from => return Ok(Tail::Synced),
                Some(item) => {
                    whole += u64::from(matches!(item, Item::Record(head) if head.seq >= seq));
                    at += item.bytes();
                }
                None => {
                    effort = effort.saturating_sub(cost);
                    at += ALIGN;
                }
            }
        }
        Ok(Tail::Torn(Cut { path: self.path.clone(), offset: from, seq, bytes, whole, is_live }))
    }

    /// What is whole at an offset, if no more than so many bytes have to be looked at for that; how many these were.
    fn item_for(&mut self, effort: u64, offset: u64) -> io::Result<(u64, Option<Item>)> {
        let (end, head) = (self.view.bytes(), self.view.at(offset, LONGEST_HEAD)?);
        let bytes = Item::peek(head).map_or(u64::MAX, |item| item.bytes());
        if bytes > end.saturating_sub(offset) || bytes > effort.max(MARK_BYTES as u64) {
            return Ok((0, None));
        }
        Ok((bytes, self.item(offset, end)?.ok()))
    }

    /// The last byte from an offset on that is not zero.
    fn last_byte(&mut self, from: u64) -> Result<Option<u64>, ReplayError> {
        const LOOK: usize = 64 << 10;
        let (mut at, mut last) = (from, None);
        while at < self.view.bytes() {
            let bytes = match self.view.at(at, LOOK) {
                Ok(bytes) if !bytes.is_empty() => bytes,
                // Cut meanwhile, by one who seals it.
                Ok(_) => break,
                Err(source) => return Err(self.failed(source)),
            };
            if !format::is_zero(bytes) {
                last = bytes.iter().rposition(|&byte| byte != 0).map(|place| at + place as u64);
            }
            at += bytes.len() as u64;
        }
        Ok(last)
    }
}

/// Whether two points are not the same one.
pub(super) fn differs(found: &Point, expected: &Point) -> Result<(), Bad> {
    Bad::unless_same("index", found.next.get(), expected.next.get())?;
    Bad::unless_same("digest", found.digest, expected.digest)?;
    Bad::unless_same("incarnation", found.incarnation, expected.incarnation)?;
    Bad::unless_same("controller", found.controller, expected.controller)
}
