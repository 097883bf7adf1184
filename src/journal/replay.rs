//! [`Replay`]: the records of a journal, from any index on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use seriatim_ring::Seq;
use seriatim_ring::event::{Event as Own, WORDS};
use seriatim_ring::incarnations::INITIALIZED;
use seriatim_ring::parts::Address;

use super::disk::{Disk, Local};
use super::error::ReplayError;
use super::format::{Bad, HEARD_HELLO, Head, Origin, Point, VOID};
use super::kept::LOOKS;
use super::segment::{self, Cut, Found, Scan, Segment, differs, path_of};
use super::world::SeatOf;
use crate::Digest;
use crate::event::Event;

/// A command or an event of the sequencer's, as the journal has it: every index is there, also what was for others, or for
/// nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Its place in the one order.
    pub seq: Seq,
    /// Number of its producer; 0 is the sequencer, whose records are [events](Self::event).
    pub producer: u64,
    /// Its place among its producer's.
    pub index: u64,
    /// What its producer calls it.
    pub kind: u16,
    /// Whom it was for.
    pub address: Address,
    /// All its bytes: of a command with parts the table, the body and all parts. Those of a sealed segment lie in place;
    /// of one that is not they are read into memory.
    pub payload: &'a [u8],
    /// The digest that the producer took of the payload; 0 in a region without such digests.
    pub payload_digest: u64,
    /// The digest of all before it.
    pub digest: Digest,
    /// It came from a controller that was not current: no worker was handed it.
    pub is_void: bool,
    /// It is a hello that was heard: its controller is current from here on.
    pub is_hello: bool,
}

impl Record<'_> {
    /// Whether it is a user's command that was handed out: to whom its [address](Self::address) says.
    #[must_use]
    pub fn is_command(&self) -> bool {
        self.producer != 0 && !self.is_void && !self.is_hello && self.kind != INITIALIZED
    }

    /// What it says, if it is one of the sequencer's own.
    #[must_use]
    pub fn event(&self) -> Option<Event<'static>> {
        if self.producer != 0 {
            return None;
        }
        let own = own_words(self.payload).and_then(|words| Own::decode(self.kind, &words));
        Some(Event::of_own(self.seq, self.kind, own))
    }
}

/// The words of one of the sequencer's own commands.
pub(super) fn own_words(payload: &[u8]) -> Option<[u64; WORDS]> {
    let (words, rest) = payload.as_chunks::<8>();
    let is_so_long = words.len() == WORDS && rest.is_empty();
    is_so_long.then(|| std::array::from_fn(|i| u64::from_le_bytes(words[i])))
}

/// The records of a journal, one after the other, from an index on. A journal that is being written can be read, too: up
/// to where it was when it was opened, or [looked at again](Self::refresh).
///
/// Sealed segments are read in place, under the same [guard](crate::Region::guard) against SIGBUS as regions: a page that the
/// disk cannot read is [`ReplayError::Io`]. Where there can be no guard they are read piece by piece. Opening looks at the
/// last one alone, and seeking at the one that it leads to. Memory does not grow with what is read.
///
/// ```no_run
/// use seriatim::{Seq, journal::Replay};
///
/// let mut replay = Replay::open("/var/lib/orders")?.from(Seq::new(1_000))?;
/// if let Some(cut) = replay.cut() {
///     eprintln!("{cut}");
/// }
/// while let Some(record) = replay.next()? {
///     println!("{} {:?}", record.seq, record.payload);
/// }
/// println!("the same as everywhere: {}", replay.digest());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Replay {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// The first indexes of the segments.
    firsts: Vec<Seq>,
    /// How the last segment ends, which nobody may have sealed.
    last: Last,
    origin: Origin,
    in_place: bool,
    /// Which segment is open.
    which: usize,
    segment: Segment,
    /// Where its records end.
    end: u64,
    offset: u64,
    at: Point,
}

#[derive(Debug)]
struct Last {
    nonce: u64,
    /// Where its records end.
    offset: u64,
    after: Point,
    /// If it is not sealed.
    scan: Option<Scan>,
}

impl Last {
    /// How a segment ends, which may have been scanned up to somewhere.
    fn of(segment: &mut Segment, scanned: Option<Scan>, is_live: bool) -> Result<Last, ReplayError> {
        let nonce = segment.header.nonce;
        if let Some(footer) = segment.footer {
            return Ok(Last { nonce, offset: footer.end, after: footer.after, scan: None });
        }
        let scan = match scanned {
            // What a living journal has not come to is for a look at the whole.
            Some(mut scan) => segment.scan_on(&mut scan, is_live, is_live).map(|()| scan)?,
            None => segment.scan(is_live)?,
        };
        Ok(Last { nonce, offset: scan.end, after: scan.after, scan: Some(scan) })
    }
}

impl Replay {
    /// Opens the journal in a directory, at its first record.
    ///
    /// # Errors
    /// There is none, its last segment is damaged, or the file system failed.
    pub fn open(dir: impl AsRef<Path>) -> Result<Replay, ReplayError> {
        Self::open_on(Arc::new(Local), dir.as_ref(), true)
    }

    pub(super) fn open_on(disk: Arc<dyn Disk>, dir: &Path, in_place: bool) -> Result<Replay, ReplayError> {
        // What it begins with may be pruned between two looks.
        for _ in 0..LOOKS {
            match Self::look(disk.clone(), dir, in_place) {
                Err(ReplayError::Pruned { .. }) => {}
                other => return other,
            }
        }
        Self::look(disk, dir, in_place)
    }

    fn look(disk: Arc<dyn Disk>, dir: &Path, in_place: bool) -> Result<Replay, ReplayError> {
        let failed = |source| ReplayError::Io { path: dir.into(), what: "look into", source };
        // Before what is there is looked at: a journal that begins meanwhile leaves it as it is.
        let is_live = disk.is_locked(dir);
        let firsts = segment::list(&*disk, dir).map_err(failed)?;
        let Some(which) = firsts.len().checked_sub(1) else {
            return Err(ReplayError::Empty { dir: dir.into() });
        };
        let mut segment = open_segment(&*disk, dir, firsts[which], in_place, true)?;
        let last = Last::of(&mut segment, None, is_live)?;
        let (offset, at) = segment.beginning();
        let (origin, end) = (segment.header.origin, last.offset);
        let mut replay =
            Replay { disk, dir: dir.into(), firsts, last, origin, in_place, which, segment, end, offset, at };
        replay.enter(0)?;
        Ok(replay)
    }

    /// Goes to an index; the end of the journal is one, too. Of what lies before it at most 64 KiB are read.
    ///
    /// # Errors
    /// The index is not there, or the segment that has it is damaged.
    pub fn from(mut self, seq: Seq) -> Result<Replay, ReplayError> {
        let (first, end) = (self.first(), self.end());
        if seq < first || seq > end {
            return Err(ReplayError::NotThere { dir: self.dir, seq, first, end });
        }
        let which = self.firsts.partition_point(|&first| first <= seq) - 1;
        self.enter(which)?;
        let places = match &self.last.scan {
            Some(scan) if which + 1 == self.firsts.len() => &scan.places,
            _ => &self.segment.places,
        };
        let before = places.partition_point(|place| place.point.next <= seq);
        if let Some(place) = before.checked_sub(1).map(|at| places[at]) {
            (self.offset, self.at) = (place.offset, place.point);
        }
        while self.at.next < seq && self.step()?.is_some() {}
        Ok(self)
    }

    /// Goes on into what has been written since it was opened, or refreshed last: whether there is more than there was.
    /// Of a segment that was being written then, what comes after is looked at, and nothing again.
    ///
    /// What it finds may not be synced yet, and so be gone after a loss of power.
    ///
    /// # Errors
    /// As [`open`](Self::open); it then is where it was, and can be asked again.
    pub fn refresh(&mut self) -> Result<bool, ReplayError> {
        let failed = |source| ReplayError::Io { path: self.dir.clone(), what: "look into", source };
        let is_live = self.disk.is_locked(&self.dir);
        let here = self.firsts[self.which];
        let was_last = self.firsts[self.firsts.len() - 1];
        let mut firsts = segment::list(&*self.disk, &self.dir).map_err(failed)?;
        if !firsts.contains(&here) {
            // Whoever has a file open reads on in it when its name is gone.
            firsts.push(here);
            firsts.sort_unstable();
        }
        let last_first = firsts[firsts.len() - 1];
        if last_first == was_last && self.last.scan.is_none() {
            return Ok(false);
        }
        let mut segment = self.open_segment(last_first, true)?;
        let is_known = last_first == was_last && self.last.nonce == segment.header.nonce;
        let scanned = if is_known { self.last.scan.clone() } else { None };
        let last = Last::of(&mut segment, scanned, is_live)?;
        let now = if here == last_first {
            Some((segment, last.offset))
        } else if here == was_last {
            let sealed = self.open_segment(here, false)?;
            let end = sealed_end(&sealed)?;
            Some((sealed, end))
        } else {
            None
        };
        if let Some((now, end)) = now {
            if self.is_beyond(&now, end) {
                return self.begin_anew();
            }
            self.go_on_in(now, end)?;
        }
        let had = std::mem::replace(&mut self.last, last).after.next;
        self.which = firsts.partition_point(|&first| first < here);
        self.firsts = firsts;
        Ok(self.end() > had)
    }

    fn open_segment(&self, first: Seq, is_last: bool) -> Result<Segment, ReplayError> {
        open_segment(&*self.disk, &self.dir, first, self.in_place, is_last)
    }

    /// Whether it has read more than a segment has now: records of a batch whose write or sync failed, which is written anew,
    /// into the next segment, and until then nowhere.
    fn is_beyond(&self, now: &Segment, end: u64) -> bool {
        let (_, start) = now.beginning();
        let is_another = now.header.nonce != self.segment.header.nonce;
        if is_another { self.at.next > start.next } else { end < self.offset }
    }

    /// Goes on where it is, in the journal as it is now, when that has come so far again.
    fn begin_anew(&mut self) -> Result<bool, ReplayError> {
        let now = Self::open_on(self.disk.clone(), &self.dir, self.in_place)?;
        if now.end() < self.at.next {
            return Ok(false);
        }
        let (had, now) = (self.end(), now.from(self.at.next)?);
        differs(&now.at, &self.at).map_err(|bad| now.segment.damage(now.offset, self.at.next, bad))?;
        *self = now;
        Ok(self.end() > had)
    }

    /// Goes on in a segment as it is now, at the place where it is.
    fn go_on_in(&mut self, segment: Segment, end: u64) -> Result<(), ReplayError> {
        if segment.header.nonce != self.segment.header.nonce {
            // One that had nothing was replaced by another that begins at the same index.
            let (offset, at) = segment.beginning();
            differs(&at, &self.at).map_err(|bad| segment.damage(0, self.at.next, bad))?;
            self.offset = offset;
        }
        (self.segment, self.end) = (segment, end);
        Ok(())
    }

    /// The first index that is there.
    #[must_use]
    pub fn first(&self) -> Seq {
        self.firsts[0]
    }

    /// The index behind the last one that is there.
    #[must_use]
    pub fn end(&self) -> Seq {
        self.last.after.next
    }

    /// The digest of all before [`end`](Self::end).
    #[must_use]
    pub fn end_digest(&self) -> Digest {
        Digest(self.last.after.digest)
    }

    /// The index that comes next.
    #[must_use]
    pub fn position(&self) -> Seq {
        self.at.next
    }

    /// The digest of all before [`position`](Self::position).
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(self.at.digest)
    }

    /// Where the segment begins that it is in: all before that is on the disk for good, for a segment is begun when the one
    /// before it is sealed.
    pub(super) fn segment_start(&self) -> Point {
        self.segment.header.start
    }

    /// The incarnation that is current at [`position`](Self::position), 0 if there was none yet.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.at.incarnation
    }

    /// How many segments there are.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.firsts.len()
    }

    /// Whose commands they are.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether nobody has sealed the last segment: a journal writes there, or died there.
    #[must_use]
    pub fn is_open_ended(&self) -> bool {
        self.last.scan.is_some()
    }

    /// What was cut off the end, if it was not whole.
    #[must_use]
    pub fn cut(&self) -> Option<&Cut> {
        self.last.scan.as_ref().and_then(|scan| scan.cut.as_ref())
    }

    /// The next record, if there is one. Its checksum and its place in the history have been checked.
    ///
    /// # Errors
    /// It is damaged, a segment is missing or was pruned since it was opened, or the file system failed. The next call
    /// meets the same again.
    #[expect(clippy::should_implement_trait, reason = "what it hands out ends with the next call")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReplayError> {
        let Some(found) = self.step()? else { return Ok(None) };
        match self.segment.payload(&found) {
            Ok(payload) => Ok(Some(record(&found, payload))),
            Err(error) => {
                (self.offset, self.at) = (found.offset, found.at);
                Err(error)
            }
        }
    }

    /// As [`next`](Self::next), with its head as it is written, and where the journal sat that wrote it.
    pub(super) fn next_whole(&mut self) -> Result<Option<(Head, SeatOf, Record<'_>)>, ReplayError> {
        let Some(found) = self.step()? else { return Ok(None) };
        let seat = self.segment.world.seat;
        let payload = self.segment.payload(&found)?;
        Ok(Some((found.head, seat, record(&found, payload))))
    }

    fn step(&mut self) -> Result<Option<Found>, ReplayError> {
        loop {
            if let Some(found) = self.segment.next(self.offset, self.at, self.end)? {
                self.offset = found.end();
                self.at = found.after;
                return Ok(Some(found));
            }
            // The last one may have been sealed since it was scanned: then it has more than was to be read.
            if let Some(footer) = self.segment.footer.filter(|footer| footer.end == self.end) {
                let same = differs(&footer.after, &self.at);
                same.map_err(|bad| self.segment.damage(footer.end, self.at.next, bad))?;
            }
            if self.which + 1 == self.firsts.len() {
                return Ok(None);
            }
            let (before, number) = (self.at, self.segment.header.number);
            self.enter(self.which + 1)?;
            self.follows(&before, number)?;
        }
    }

    /// Opens a segment, at its beginning.
    fn enter(&mut self, which: usize) -> Result<(), ReplayError> {
        let is_last = which + 1 == self.firsts.len();
        if which != self.which {
            self.segment = self.open_segment(self.firsts[which], is_last)?;
            self.which = which;
        }
        (self.offset, self.at) = self.segment.beginning();
        self.end = if is_last { self.last.offset } else { sealed_end(&self.segment)? };
        Ok(())
    }

    /// Whether the segment that was entered is the one that comes next.
    fn follows(&self, before: &Point, number: u64) -> Result<(), ReplayError> {
        let header = &self.segment.header;
        if header.start.next != before.next || header.origin.uuid != self.origin.uuid {
            let path = path_of(&self.dir, header.start.next, segment::SUFFIX);
            return Err(ReplayError::Missing { path, found: header.start.next, expected: before.next });
        }
        let same = differs(&header.start, before);
        let same = same
            .and_then(|()| Bad::unless_same("number", header.number, number + 1))
            .and_then(|()| Bad::unless_same("origin", u64::from(header.origin != self.origin), 0));
        same.map_err(|bad| self.segment.damage(0, before.next, bad))
    }
}

/// Where the records of a segment end that others follow.
fn sealed_end(segment: &Segment) -> Result<u64, ReplayError> {
    let field = "footer, of a segment that others follow,";
    let unsealed = || segment.damage(0, segment.header.start.next, Bad { field, found: 0, expected: 1 });
    segment.footer.map(|footer| footer.end).ok_or_else(unsealed)
}

/// Opens a segment that was there; tells if it was pruned since.
fn open_segment(
    disk: &dyn Disk,
    dir: &Path,
    first: Seq,
    in_place: bool,
    is_last: bool,
) -> Result<Segment, ReplayError> {
    Segment::open(disk, dir, first, in_place, is_last).map_err(|error| {
        match segment::is_pruned(disk, dir, first, &error) {
            Some(now) => ReplayError::Pruned { dir: dir.into(), seq: first, first: now },
            None => error,
        }
    })
}

fn record<'a>(found: &Found, payload: &'a [u8]) -> Record<'a> {
    let head = &found.head;
    Record {
        seq: head.seq,
        producer: head.producer,
        index: head.index,
        kind: head.kind(),
        address: head.address(),
        payload,
        payload_digest: head.content(),
        digest: Digest(found.at.digest),
        is_void: head.flags & VOID != 0,
        is_hello: head.flags & HEARD_HELLO != 0,
    }
}
