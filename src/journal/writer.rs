//! [`Writer`]: records into segments.
//!
//! ```text
//! begin    NNN.new: reserved, header, synced ─▶ named NNN.seg ─▶ directory synced
//! commit   records behind the last one, in one write for many; behind a sync a mark that says how far it went;
//!          where small groups are synced, zeroes ahead of the next ones
//! sync     what is written stays: it is acknowledged as durable after that, never before
//! seal     synced; places and footer, cut to length, synced; then the next one begins
//! mend     NNN.new: the records that had been written, read back and checked, with places and footer, synced
//!          ─▶ named NNN.seg, in the place of what failed ─▶ directory synced; then the next one begins
//! ```
//!
//! **One way back.** After any error of the file system the unsealed segment is *mended*: written anew, and sealed; at the
//! start the last one is, for nothing says that the footer of one that was sealed had been synced. A sync that failed may have dropped what it was to keep and says all is well when it
//! is asked again, also in another process; so what such a file has is never believed to be on the disk, only what has
//! been written into another one. What a batch has that failed is not acknowledged, is still staged, and comes next.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::JournalError;
use super::batch::{Batch, COPIED, Payload};
use super::disk::{Disk, DiskFile};
use super::duty::{Duties, Duty};
use super::error::ReplayError;
use super::format::{
    FOOTER_BYTES, Footer, Head, Header, LONGEST_HEAD, MARK_BYTES, Origin, PLACE_BYTES, Place, Point, STRIDE,
    encode_mark,
};
use super::segment::{self, Cut, NEW_SUFFIX, SUFFIX, Segment, path_of};
use super::world::{SeatOf, World};
use crate::crash_point;
use crate::fold::Corrupt;
use crate::region::layout::PAGE;
use crate::region::map::Map;

/// How much is written before the system is told to begin with it.
const PUSHED: u64 = if cfg!(test) { PAGE } else { 4 << 20 };
/// How far ahead of its records a segment is written with zeroes, where each write is synced. What is reserved and was never
/// written is noted as such by the file system, and to note otherwise costs each sync two writes more.
const PREPARED: u64 = if cfg!(test) { 2 * PAGE } else { 512 << 10 };
/// Who syncs so much at once waits for its bytes and not for notes.
pub(super) const LARGE_GROUP: u64 = PREPARED / 16;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The segment that is being written.
#[derive(Debug)]
struct Open {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    header: Header,
    seed: u32,
    /// Where the next record begins.
    at: u64,
    /// Where the first one does.
    begins: u64,
    /// How far it is synced, and the mark that says so.
    synced: u64,
    marked: u64,
    /// How far the system has been told to put it on the disk.
    pushed: u64,
    /// How far it has been written, if only with zeroes.
    prepared: u64,
    /// How long the file is, and whether it became so long after it was made: that has to be synced, too.
    reserved: u64,
    has_grown: bool,
    places: Vec<Place>,
}

impl Open {
    /// Whether a mark comes before the next record.
    fn is_to_be_marked(&self) -> bool {
        self.synced > self.marked
    }

    /// How far behind the beginning of the next record, or farther, a place is to be kept.
    fn next_place(&self) -> u64 {
        let next = self.places.last().map_or(0, |place| place.offset + STRIDE);
        let mark = if self.is_to_be_marked() { MARK_BYTES as u64 } else { 0 };
        next.saturating_sub(self.at + mark)
    }
}

/// What a segment must have room for beside its records, if the last one of them begins before an offset.
fn beside(offset: u64) -> u64 {
    let places = (offset / STRIDE + 2) * PLACE_BYTES as u64;
    MARK_BYTES as u64 + places + FOOTER_BYTES as u64
}

/// Writes records into the segments of a directory.
#[derive(Debug)]
pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    _lock: Box<dyn std::fmt::Debug + Send>,
    origin: Origin,
    segment_bytes: u64,
    open: Option<Open>,
    /// Of the next segment.
    number: u64,
    /// Behind what is staged, what is written, what is durable.
    staged_to: Point,
    written: Point,
    durable: Point,
    /// What is known of the order behind what is written.
    world: World,
    batch: Batch,
    /// The file system failed since the segment was begun.
    is_suspect: bool,
    /// Segments that were written anew.
    mended: u64,
    syncs: u64,
}

/// How a directory's journal ends.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) point: Point,
    /// What was cut off there.
    pub(super) cut: Option<Cut>,
    /// What is known of the order there.
    pub(super) world: World,
}

/// A directory that is locked, and whose journal, if it has one, is sealed.
#[derive(Debug)]
pub(super) struct Shelf {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    lock: Box<dyn std::fmt::Debug + Send>,
    origin: Option<Origin>,
    /// Of the next segment.
    number: u64,
    pub(super) ending: Option<Ending>,
}

pub(super) fn io_error<'p>(
    path: &'p Path,
    what: &'static str,
) -> impl Fn(io::Error) -> JournalError + use<'p> {
    move |source| JournalError::Io { path: path.into(), what, source }
}

/// Locks a directory. Who has it locked may be dying, and is waited for, for so long; `None` if it has it still.
pub(super) fn lock(
    disk: &dyn Disk,
    dir: &Path,
    linger: Duration,
) -> Result<Option<Box<dyn std::fmt::Debug + Send>>, JournalError> {
    let until = Instant::now() + linger;
    loop {
        match disk.lock(dir).map_err(io_error(dir, "lock"))? {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            locked => return Ok(locked),
        }
    }
}

/// Who has a directory locked, as far as that says it.
fn busy(disk: &dyn Disk, dir: &Path) -> JournalError {
    let dir = dir.to_path_buf();
    match Duties::read(disk, &dir).map(|duties| duties.follows) {
        Ok(Some(word)) => JournalError::Followed { dir, followed: word.path },
        _ => JournalError::Busy { dir },
    }
}

impl Shelf {
    /// Locks a directory, makes it if it is not there, and seals what a predecessor left. Who has it locked may be dying,
    /// and is waited for, for so long.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        origin: Option<Origin>,
        linger: Duration,
    ) -> Result<Shelf, JournalError> {
        let shelf = Self::lock(disk, dir, origin, linger)?;
        Duty::check(&*shelf.disk, dir)?;
        shelf.recovered()
    }

    /// Locks a directory, whatever it is [for](Duty), and looks at nothing in it yet.
    pub(super) fn lock(
        disk: Arc<dyn Disk>,
        dir: &Path,
        origin: Option<Origin>,
        linger: Duration,
    ) -> Result<Shelf, JournalError> {
        disk.make_dir(dir).map_err(io_error(dir, "make directory"))?;
        let lock = lock(&*disk, dir, linger)?.ok_or_else(|| busy(&*disk, dir))?;
        Ok(Shelf { disk, dir: dir.into(), lock, origin, number: 0, ending: None })
    }

    /// Seals what a predecessor left.
    pub(super) fn recovered(mut self) -> Result<Shelf, JournalError> {
        self.recover()?;
        Ok(self)
    }

    /// Whose journal it is, if that is known.
    pub(super) fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    fn recover(&mut self) -> Result<(), JournalError> {
        let (disk, dir) = (&*self.disk, &self.dir);
        for name in disk.list(dir).map_err(io_error(dir, "look into"))? {
            if segment::first_of(&name, NEW_SUFFIX).is_some() {
                let path = dir.join(name);
                disk.remove(&path).map_err(io_error(&path, "remove"))?;
            }
        }
        let firsts = segment::list(disk, dir).map_err(io_error(dir, "look into"))?;
        let Some(&last) = firsts.last() else { return Ok(()) };
        let mut segment = Segment::open(disk, dir, last, false, true)?;
        let header = segment.header;
        let found = header.origin.uuid;
        let expected = self.origin.get_or_insert(header.origin).uuid;
        if found != expected {
            return Err(JournalError::OtherRegion { dir: dir.clone(), found, expected });
        }
        let ending = match segment.footer {
            Some(footer) => {
                let world = segment.world_at(footer.end)?;
                // Who wrote the footer may have died before its sync, or after one that failed; and others follow now.
                let places = std::mem::take(&mut segment.places);
                rewrite(disk, dir, &mut segment, footer.end, &footer.after, &places)?;
                Ending { point: footer.after, cut: None, world }
            }
            None => {
                let scan = segment.scan(false)?;
                if scan.after.next != header.start.next {
                    rewrite(disk, dir, &mut segment, scan.end, &scan.after, &scan.places)?;
                }
                Ending { point: scan.after, cut: scan.cut, world: scan.world }
            }
        };
        self.number = follower_of(&header, &ending.point);
        self.ending = Some(ending);
        Ok(())
    }

    /// Begins to write at a point: that at which its journal ends, if it has one.
    pub(super) fn begin(
        self,
        at: Point,
        world: World,
        origin: Origin,
        segment_bytes: u64,
    ) -> Result<Writer, JournalError> {
        let Shelf { disk, dir, lock, number, .. } = self;
        let mut writer = Writer {
            disk,
            dir,
            _lock: lock,
            origin,
            segment_bytes: segment_bytes.max(MIN_SEGMENT),
            open: None,
            number,
            staged_to: at,
            written: at,
            durable: at,
            world,
            batch: Batch::default(),
            is_suspect: false,
            mended: 0,
            syncs: 0,
        };
        writer.ready()?;
        Ok(writer)
    }
}

/// The number of the segment that follows one which ends at a point. One that has nothing is replaced by it, for both
/// begin at the same index.
fn follower_of(header: &Header, end: &Point) -> u64 {
    header.number + u64::from(end.next != header.start.next)
}

/// The smallest segment: it has room for a few records.
pub(super) const MIN_SEGMENT: u64 = 4 << 10;

/// Writes a segment anew, up to an offset, and seals it.
fn rewrite(
    disk: &dyn Disk,
    dir: &Path,
    old: &mut Segment,
    end: u64,
    after: &Point,
    places: &[Place],
) -> Result<(), JournalError> {
    let first = old.header.start.next;
    let (new, path) = (path_of(dir, first, NEW_SUFFIX), path_of(dir, first, SUFFIX));
    let file = disk.create(&new).map_err(io_error(&new, "create"))?;
    let footer = Footer::encode(end, after, places, old.seed());
    let copied = copy_into(&*file, old, end, &footer, &new);
    let published = copied.and_then(|()| publish(disk, dir, &*file, &new, &path));
    if published.is_err() {
        // Its room is wanted; if this fails as well, who begins next does it.
        let _ = disk.remove(&new);
    }
    published
}

/// What a segment has up to an offset, and a footer behind that.
fn copy_into(
    file: &dyn DiskFile,
    old: &mut Segment,
    end: u64,
    footer: &[u8],
    new: &Path,
) -> Result<(), JournalError> {
    file.reserve(end + footer.len() as u64).map_err(io_error(new, "reserve"))?;
    crash_point!("journal.mending");
    let mut at = 0;
    old.copy(0, end, |bytes| {
        write_all(file, &mut [IoSlice::new(bytes)], at).map_err(io_error(new, "write"))?;
        at += bytes.len() as u64;
        Ok::<_, JournalError>(())
    })?;
    write_all(file, &mut [IoSlice::new(footer)], end).map_err(io_error(new, "write"))?;
    crash_point!("journal.mended");
    Ok(())
}

/// Gives a file that is complete its name, for good.
pub(super) fn publish(
    disk: &dyn Disk,
    dir: &Path,
    file: &dyn DiskFile,
    new: &Path,
    path: &Path,
) -> Result<(), JournalError> {
    file.sync(true).map_err(io_error(new, "sync"))?;
    crash_point!("journal.complete");
    disk.rename(new, path).map_err(io_error(path, "name"))?;
    crash_point!("journal.named");
    disk.sync_dir(dir).map_err(io_error(dir, "sync directory"))?;
    crash_point!("journal.begun");
    Ok(())
}

/// Writes all of several pieces at an offset.
pub(super) fn write_all(file: &dyn DiskFile, mut pieces: &mut [IoSlice<'_>], mut at: u64) -> io::Result<()> {
    IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        match file.write_at(pieces, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut pieces, written);
                crash_point!("journal.part");
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Writer {
    /// Behind all that is staged.
    pub(super) fn staged_to(&self) -> &Point {
        &self.staged_to
    }

    /// Behind all that is written.
    pub(super) fn written(&self) -> &Point {
        &self.written
    }

    /// Behind all that is known to stay.
    pub(super) fn durable(&self) -> &Point {
        &self.durable
    }

    /// Where it writes.
    pub(super) fn shelf(&self) -> (&Arc<dyn Disk>, &Path) {
        (&self.disk, &self.dir)
    }

    /// How many segments were written anew since it began.
    pub(super) fn mended(&self) -> u64 {
        self.mended
    }

    /// How often it has synced what had been written.
    pub(super) fn syncs(&self) -> u64 {
        self.syncs
    }

    /// Whether one more record belongs into what is written at once.
    pub(super) fn has_room(&self) -> bool {
        self.batch.left() > 0
    }

    /// Whether a record fits into the segment. One that has none yet takes any, and becomes as long as it must.
    pub(super) fn fits(&self, head: &Head) -> bool {
        let Some(open) = &self.open else { return true };
        let at = open.at + self.batch.bytes();
        at == open.begins || at + head.bytes() + beside(at) <= open.header.reserved
    }

    /// How many records that are copied surely fit into both, whatever their lengths.
    pub(super) fn fit_surely(&self) -> u64 {
        const LONGEST: u64 = (LONGEST_HEAD + COPIED) as u64;
        let Some(open) = &self.open else { return 0 };
        let (at, left) = (open.at + self.batch.bytes(), self.batch.left());
        let in_segment = open.header.reserved.saturating_sub(at + beside(at + left));
        left.div_ceil(LONGEST).min(in_segment / LONGEST).min(self.batch.records_left())
    }

    /// Takes a record, the next one, to be written with others.
    #[inline(always)]
    pub(super) fn stage(&mut self, head: &Head, payload: Payload<'_>) {
        let at = self.staged_to;
        debug_assert_eq!(at.next, head.seq);
        if self.batch.is_empty() {
            self.begin_batch();
        }
        let bytes = if let Payload::Here(bytes) = payload { bytes } else { &[][..] };
        self.staged_to = at.after(head, bytes, self.origin.digest_of);
        self.batch.add(&at, head, payload);
    }

    /// Says to the batch where it will lie.
    #[cold]
    fn begin_batch(&mut self) {
        // Without a segment there will be another one, and what is staged by then is sealed anew.
        let (seed, due) = self.open.as_ref().map_or((0, 0), |open| (open.seed, open.next_place()));
        self.batch.is_for(seed, due, self.written, self.origin.digest_of);
    }

    /// Writes all that is staged; with `sync` it is durable after that. After an error it is still staged.
    pub(super) fn commit(&mut self, map: Option<&Map>, sync: bool) -> Result<(), JournalError> {
        self.ready()?;
        if self.batch.is_empty() {
            return if sync { self.sync() } else { Ok(()) };
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let mark = open.is_to_be_marked().then(|| encode_mark(&self.written, open.synced, open.seed));
        let mark = mark.as_ref().map_or(&[][..], |mark| mark);
        let end = open.at + mark.len() as u64 + self.batch.bytes();
        if end > open.reserved {
            open.has_grown = true;
            if let Err(error) = open.file.reserve(end) {
                self.is_suspect = true;
                return Err(io_error(&open.path, "reserve")(error));
            }
            open.reserved = end;
        }
        self.batch.seal_loans(map)?;
        if map.is_some_and(Map::is_hit) {
            // Somebody cut the region while it was read: some of these bytes may be zeroes that never were there.
            let (seq, field, expected) = (self.written.next, "bytes of the region", self.batch.bytes());
            return Err(Corrupt { seq, field, found: 0, expected }.into());
        }
        let mut pieces = self.batch.pieces(mark, map);
        let result = write_all(&*open.file, &mut pieces, open.at);
        drop(pieces);
        crash_point!("journal.written");
        if let Err(error) = result {
            self.is_suspect = true;
            return Err(io_error(&open.path, "write")(error));
        }
        if sync {
            // Before anything counts as written: what fails here is written again, from where it is now.
            let is_small = self.batch.bytes() <= LARGE_GROUP && open.synced == open.at;
            let prepared = if is_small { prepare(open, end) } else { Ok(()) };
            let result = prepared.and_then(|()| sync_file(open));
            self.syncs += 1;
            if let Err(error) = result {
                self.is_suspect = true;
                return Err(error);
            }
        }
        if !mark.is_empty() {
            open.marked = open.synced;
        }
        self.batch.take(open.at + mark.len() as u64, &mut open.places, &mut self.world);
        open.at = end;
        self.written = self.staged_to;
        if sync {
            open.synced = end;
            self.durable = self.written;
        }
        Ok(())
    }

    /// Has the system begin with what is written and not synced, each time that there is enough of it: else the disk stands
    /// still until a sync, and then everybody waits for the disk.
    pub(super) fn push(&mut self) -> Result<(), JournalError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        // The last page is still being filled.
        let to = open.at & !(PAGE - 1);
        if to < open.pushed + PUSHED {
            return Ok(());
        }
        let pushed = open.file.write_back(open.pushed..to);
        open.pushed = to;
        if pushed.is_err() {
            self.is_suspect = true;
        }
        pushed.map_err(io_error(&open.path, "write back"))
    }

    /// How many records are staged.
    pub(super) fn staged(&self) -> usize {
        self.batch.records()
    }

    /// All that is written is durable after this.
    pub(super) fn sync(&mut self) -> Result<(), JournalError> {
        self.ready()?;
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.synced < open.at {
            let result = sync_file(open);
            self.syncs += 1;
            if let Err(error) = result {
                self.is_suspect = true;
                return Err(error);
            }
            open.synced = open.at;
        }
        self.durable = self.written;
        Ok(())
    }

    /// Seals the segment, and begins the next one. Nothing is staged.
    pub(super) fn rotate(&mut self) -> Result<(), JournalError> {
        self.seal()?;
        self.ready()
    }

    /// Seals the segment, also one that has nothing: after that all that is written is durable.
    pub(super) fn seal(&mut self) -> Result<(), JournalError> {
        debug_assert!(self.batch.is_empty());
        self.ready()?;
        // A footer vouches for all before it: that has to be there first.
        self.sync()?;
        let Some(open) = self.open.as_ref().filter(|open| open.at > open.begins) else {
            return Ok(());
        };
        let sealed = seal_file(open, &self.written);
        self.syncs += 1;
        if let Err(error) = sealed {
            self.is_suspect = true;
            return Err(error);
        }
        self.durable = self.written;
        self.number = follower_of(&open.header, &self.written);
        self.open = None;
        Ok(())
    }

    /// Whether the segment says that its journal sits there.
    pub(super) fn is_seated(&self, seat: &SeatOf) -> bool {
        self.world.seat == *seat
    }

    #[cfg(test)]
    pub(super) fn seat(&self) -> SeatOf {
        self.world.seat
    }

    /// Notes where the journal sits whose records come next; a new segment says it, if that is news. Nothing is staged.
    pub(super) fn reseat(&mut self, seat: SeatOf) -> Result<(), JournalError> {
        if self.world.seat == seat {
            return Ok(());
        }
        self.seal()?;
        if let Some(open) = self.open.take() {
            // It has nothing: the new one begins at the same index, and takes its name.
            self.number = open.header.number;
        }
        self.world.seat = seat;
        self.ready()
    }

    /// Sees to it that there is a segment to write into, whatever came before.
    fn ready(&mut self) -> Result<(), JournalError> {
        if self.is_suspect {
            self.mend()?;
        }
        if self.open.is_none() {
            self.open = Some(self.begin_segment()?);
            self.begin_batch();
        }
        Ok(())
    }

    /// Writes what had been written of the segment once more, into another file.
    fn mend(&mut self) -> Result<(), JournalError> {
        if let Some(open) = &self.open {
            self.number = open.header.number;
            if open.at > open.begins {
                let mut old = Segment::open(&*self.disk, &self.dir, open.header.start.next, false, true)?;
                read_back(&mut old, open, &self.written)?;
                rewrite(&*self.disk, &self.dir, &mut old, open.at, &self.written, &open.places)?;
                self.number += 1;
            }
        }
        self.open = None;
        self.durable = self.written;
        self.is_suspect = false;
        self.mended += 1;
        Ok(())
    }

    fn begin_segment(&self) -> Result<Open, JournalError> {
        let (disk, dir) = (&*self.disk, &self.dir);
        let header = Header {
            origin: self.origin,
            start: self.written,
            number: self.number,
            nonce: nonce(),
            reserved: self.segment_bytes,
            created: now(),
        };
        let bytes = header.encode();
        let (_, seed) = Header::decode(&bytes).unwrap_or((header, 0));
        let beginning = [&bytes[..], &self.world.encode(seed)].concat();
        let reserved = header.reserved.max(beginning.len() as u64);
        let first = header.start.next;
        let (new, path) = (path_of(dir, first, NEW_SUFFIX), path_of(dir, first, SUFFIX));
        let file = disk.create(&new).map_err(io_error(&new, "create"))?;
        let made = make_segment(disk, dir, &*file, reserved, &beginning, &new, &path);
        if made.is_err() {
            // Its room is wanted; if this fails as well, who begins next does it.
            let _ = disk.remove(&new);
        }
        made?;
        let begins = beginning.len() as u64;
        Ok(Open {
            file,
            path,
            header,
            seed,
            at: begins,
            begins,
            synced: begins,
            marked: begins,
            pushed: 0,
            prepared: begins,
            reserved,
            has_grown: false,
            places: Vec::new(),
        })
    }
}

fn make_segment(
    disk: &dyn Disk,
    dir: &Path,
    file: &dyn DiskFile,
    reserved: u64,
    beginning: &[u8],
    new: &Path,
    path: &Path,
) -> Result<(), JournalError> {
    file.reserve(reserved).map_err(io_error(new, "reserve"))?;
    crash_point!("journal.reserved");
    write_all(file, &mut [IoSlice::new(beginning)], 0).map_err(io_error(new, "write"))?;
    crash_point!("journal.header");
    publish(disk, dir, file, new, path)
}

/// Whether all that had been written of a segment can be read.
fn read_back(old: &mut Segment, open: &Open, written: &Point) -> Result<(), JournalError> {
    let (mut offset, mut at) = old.beginning();
    let vanished =
        |from: &Point| JournalError::Vanished { path: open.path.clone(), from: from.next, to: written.next };
    loop {
        match old.next(offset, at, open.at) {
            Ok(Some(found)) => {
                offset = found.end();
                at = found.after;
            }
            Ok(None) if at == *written => return Ok(()),
            Ok(None) | Err(ReplayError::Damaged(_)) => return Err(vanished(&at)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Writes zeroes behind records that end at an offset, before too little is left of those from the last time; to be synced
/// with these records, so that there is nothing else to be written here which could come before it.
fn prepare(open: &mut Open, end: u64) -> Result<(), JournalError> {
    if open.prepared >= (end + PREPARED / 4).min(open.reserved) {
        return Ok(());
    }
    let from = open.prepared.max(end);
    let to = (from + PREPARED).min(open.reserved);
    let piece = |at: u64| IoSlice::new(&ZEROES[..(to - at).min(ZEROES.len() as u64) as usize]);
    let mut pieces: Vec<_> = (from..to).step_by(ZEROES.len()).map(piece).collect();
    open.prepared = match write_all(&*open.file, &mut pieces, from) {
        // Where a file system reserves nothing: records may fit all the same.
        Err(error) if is_full(&error) => open.reserved,
        result => result.map(|()| to).map_err(io_error(&open.path, "prepare"))?,
    };
    crash_point!("journal.prepared");
    Ok(())
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn sync_file(open: &Open) -> Result<(), JournalError> {
    open.file.sync(open.has_grown).map_err(io_error(&open.path, "sync"))?;
    // What nobody can find any more is not there after the next start.
    let is_named = open.file.is_named().map_err(io_error(&open.path, "look at"))?;
    if !is_named {
        return Err(io_error(&open.path, "find")(io::ErrorKind::NotFound.into()));
    }
    crash_point!("journal.synced");
    Ok(())
}

fn seal_file(open: &Open, after: &Point) -> Result<(), JournalError> {
    let footer = Footer::encode(open.at, after, &open.places, open.seed);
    let failed = |what| io_error(&open.path, what);
    write_all(&*open.file, &mut [IoSlice::new(&footer)], open.at).map_err(failed("seal"))?;
    crash_point!("journal.footer");
    open.file.set_len(open.at + footer.len() as u64).map_err(failed("cut"))?;
    crash_point!("journal.cut");
    open.file.sync(true).map_err(failed("sync"))?;
    crash_point!("journal.sealed");
    let is_named = open.file.is_named().map_err(failed("look at"))?;
    if is_named { Ok(()) } else { Err(failed("find")(io::ErrorKind::NotFound.into())) }
}

/// A number that no other segment has had, as far as a clock and addresses go.
pub(super) fn nonce() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(now())
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
