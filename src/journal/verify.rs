//! Whether a journal is whole: every checksum, every digest, that each segment goes on where the one before it ends, and
//! that snapshots and bookmarks are of its history.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use seriatim_ring::Seq;
use seriatim_ring::event;
use seriatim_ring::parts::{Address, Span, Table, table_bytes};

use super::bookmark::{self, BookmarkError, Marked};
use super::disk::{Disk, Local};
use super::error::{Damage, ReplayError};
use super::format::{Bad, HEADER_BYTES, Origin, Point};
use super::kept;
use super::replay::own_words;
use super::segment::{self, Cut, Found, PIECE, Segment, differs};
use super::snapshots::{Snapshot, SnapshotError, Snapshots};
use super::world::World;
use crate::Digest;
use crate::config::DigestOf;
use crate::payload::{PayloadHasher, payload_digest};

/// What was found when all of a journal was looked at.
#[derive(Debug)]
#[non_exhaustive]
pub struct Audit {
    /// Segments that are there.
    pub segments: usize,
    /// Records that were looked at and are right.
    pub records: u64,
    /// The first index.
    pub first: Seq,
    /// The index behind the last record that is right.
    pub end: Seq,
    /// The digest of all before `end`.
    pub digest: Digest,
    /// Snapshots that were looked at, every byte of them.
    pub snapshots: usize,
    /// Bookmarks.
    pub bookmarks: usize,
    /// What does not hold: of each segment, snapshot and bookmark the first thing.
    pub problems: Vec<Problem>,
    /// What is not whole at the end.
    pub cut: Option<Cut>,
}

impl Audit {
    /// Whether all of it holds. A journal whose end is being written just now does.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.cut.as_ref().is_none_or(|cut| cut.is_live)
    }
}

/// Something of a journal that does not hold.
#[derive(Debug)]
pub struct Problem(Wrong);

#[derive(Debug)]
enum Wrong {
    Journal(ReplayError),
    Snapshot(SnapshotError),
    Bookmark(BookmarkError),
}

impl Problem {
    /// The damage, if it is one of a file's bytes. That of a bookmark is at no index.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        match &self.0 {
            Wrong::Journal(ReplayError::Damaged(damage))
            | Wrong::Snapshot(SnapshotError::Damaged(damage))
            | Wrong::Bookmark(BookmarkError::Damaged(damage)) => Some(damage),
            _ => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Wrong::Journal(error) => error.fmt(f),
            Wrong::Snapshot(error) => error.fmt(f),
            Wrong::Bookmark(error) => error.fmt(f),
        }
    }
}

/// Looks at all of the journal in a directory, payloads and their digests included, and at its snapshots and bookmarks.
/// Reads it piece by piece, not in place: what a disk cannot read is told. What is pruned meanwhile is left out.
///
/// # Errors
/// There is no journal, or the directory cannot be read.
pub fn verify(dir: impl AsRef<Path>) -> Result<Audit, ReplayError> {
    verify_with(dir, |_, _| {})
}

/// As [`verify`], and tells after each segment how many have been looked at, and how many there are.
///
/// # Errors
/// As [`verify`].
pub fn verify_with(dir: impl AsRef<Path>, each: impl FnMut(usize, usize)) -> Result<Audit, ReplayError> {
    verify_each(&(Arc::new(Local) as Arc<dyn Disk>), dir.as_ref(), each)
}

#[cfg(test)]
pub(super) fn verify_on(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Audit, ReplayError> {
    verify_each(disk, dir, |_, _| {})
}

fn verify_each(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    mut each: impl FnMut(usize, usize),
) -> Result<Audit, ReplayError> {
    let is_live = disk.is_locked(dir);
    // Before the segments: what is stored while they are looked at may be of more than these have.
    let beside = Beside::look(disk, dir)?;
    let failed = |source| ReplayError::Io { path: dir.into(), what: "look into", source };
    let firsts = segment::list(&**disk, dir).map_err(failed)?;
    let Some((&first, &last)) = firsts.first().zip(firsts.last()) else {
        return Err(ReplayError::Empty { dir: dir.into() });
    };
    let audit = Audit {
        segments: firsts.len(),
        records: 0,
        first,
        end: first,
        digest: Digest(0),
        snapshots: 0,
        bookmarks: 0,
        problems: Vec::new(),
        cut: None,
    };
    let mut looking = Looking { audit, before: None, is_live, points: beside.points() };
    for (at, &seq) in firsts.iter().enumerate() {
        if let Err(problem) = looking.at_segment(&**disk, dir, seq, seq == last) {
            // The next one is looked at by itself.
            looking.before = None;
            if segment::is_pruned(&**disk, dir, seq, &problem).is_some() {
                looking.audit.segments -= 1;
                looking.audit.first = firsts.get(at + 1).copied().unwrap_or(seq);
            } else {
                looking.audit.problems.push(Problem(Wrong::Journal(problem)));
            }
        }
        each(at + 1, firsts.len());
    }
    beside.check(&**disk, dir, is_live, looking.points, &mut looking.audit);
    Ok(looking.audit)
}

/// What is kept beside the segments.
struct Beside {
    /// None if there is no segment whose header is whole.
    of: Option<Snapshots>,
    snapshots: Vec<(Seq, Result<Snapshot, SnapshotError>)>,
    bookmarks: Vec<Result<Marked, BookmarkError>>,
}

/// The digests of a journal at some indexes, where these were met.
type Points = BTreeMap<Seq, Option<Digest>>;

impl Beside {
    fn look(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Beside, ReplayError> {
        let failed = |source| ReplayError::Io { path: dir.into(), what: "look into", source };
        let firsts = segment::list(&**disk, dir).map_err(failed)?;
        let (mut snapshots, mut bookmarks) = (Vec::new(), Vec::new());
        // Whose journal it is says any segment whose header is whole. Without one there is nothing to compare with.
        let header = firsts.iter().rev().find_map(|&first| kept::header_of(&**disk, dir, first).ok());
        let of = header.map(|header| Snapshots::with_uuid(disk.clone(), dir, header.origin.uuid));
        if let Some(of) = &of {
            let seqs = segment::list_of(&**disk, dir, super::snapshots::SUFFIX).map_err(failed)?;
            snapshots.extend(seqs.into_iter().map(|seq| (seq, of.get(seq))));
            bookmarks = bookmark::list(&**disk, dir, of.uuid())?;
        }
        Ok(Beside { of, snapshots, bookmarks })
    }

    /// The indexes at which digests are wanted.
    fn points(&self) -> Points {
        let snapshots = self.snapshots.iter().map(|(seq, _)| *seq);
        let bookmarks = self.bookmarks.iter().flatten().map(|marked| marked.next);
        snapshots.chain(bookmarks).map(|seq| (seq, None)).collect()
    }

    fn check(self, disk: &dyn Disk, dir: &Path, is_live: bool, points: Points, audit: &mut Audit) {
        let Some(of) = &self.of else { return };
        // Where a segment is damaged, what lies behind is not known.
        let (first, end, is_whole) = (audit.first, audit.end, audit.problems.is_empty());
        let not_there = |seq| ReplayError::NotThere { dir: dir.into(), seq, first, end };
        let at = |seq: Seq| points.get(&seq).copied().flatten();
        for (seq, snapshot) in self.snapshots {
            let checked = snapshot.and_then(|snapshot| {
                snapshot.verify()?;
                match at(seq) {
                    Some(digest) => snapshot.is_of(digest),
                    None if is_whole => Err(not_there(seq).into()),
                    None => Ok(()),
                }
            });
            // What was removed meanwhile is left out.
            if checked.is_err() && matches!(of.get(seq), Err(SnapshotError::NotThere { .. })) {
                continue;
            }
            audit.snapshots += 1;
            audit.problems.extend(checked.err().map(|error| Problem(Wrong::Snapshot(error))));
        }
        for marked in self.bookmarks {
            let checked = marked.and_then(|marked| match at(marked.next) {
                Some(digest) => marked.is_of(dir, digest),
                None if !is_whole || !marked.is_still(disk, dir, of.uuid()) => Ok(()),
                None if marked.next < first => Err(not_there(marked.next).into()),
                // What a journal that lives lacks it still writes: the order went on without it for a while.
                None if marked.next > end && !is_live => Err(marked.ahead(dir, end)),
                None => Ok(()),
            });
            audit.bookmarks += 1;
            audit.problems.extend(checked.err().map(|error| Problem(Wrong::Bookmark(error))));
        }
    }
}

/// How a segment ends: its point, its number, whose it is, and what is known of the order there.
struct Before {
    at: Point,
    number: u64,
    origin: Origin,
    world: World,
}

struct Looking {
    audit: Audit,
    /// How the segment before ends.
    before: Option<Before>,
    is_live: bool,
    points: Points,
}

impl Looking {
    fn at_segment(
        &mut self,
        disk: &dyn Disk,
        dir: &Path,
        first: Seq,
        is_last: bool,
    ) -> Result<(), ReplayError> {
        let mut segment = Segment::open(disk, dir, first, false, is_last)?;
        let header = segment.header;
        if let Some(Before { at, number, origin, world }) = self.before.take() {
            if header.start.next != at.next {
                let (path, found, expected) = (segment.path, header.start.next, at.next);
                return Err(ReplayError::Missing { path, found, expected });
            }
            let same = differs(&header.start, &at)
                .and_then(|()| Bad::unless_same("number", header.number, number + 1))
                .and_then(|()| Bad::unless_same("origin", u64::from(header.origin != origin), 0));
            same.map_err(|bad| segment.damage(0, first, bad))?;
            let same = segment.world.agrees(&world);
            same.map_err(|bad| segment.damage(HEADER_BYTES as u64, first, bad))?;
        }
        let end = match segment.footer {
            Some(footer) => footer.end,
            None if is_last => {
                let scan = segment.scan(self.is_live)?;
                self.audit.cut = scan.cut;
                scan.end
            }
            None => {
                let bad = Bad { field: "footer, of a segment that others follow,", found: 0, expected: 1 };
                return Err(segment.damage(0, first, bad));
            }
        };
        let places = std::mem::take(&mut segment.places);
        self.walk(&mut segment, end, &places)
    }

    /// Keeps the digest at a point, if it is wanted.
    fn note(&mut self, at: &Point) {
        if !self.points.is_empty()
            && let Some(digest) = self.points.get_mut(&at.next)
        {
            *digest = Some(Digest(at.digest));
        }
    }

    fn walk(
        &mut self,
        segment: &mut Segment,
        end: u64,
        places: &[super::format::Place],
    ) -> Result<(), ReplayError> {
        let (mut offset, mut at) = segment.beginning();
        let mut places = places.iter().peekable();
        let (origin, mut world) = (segment.header.origin, segment.world.clone());
        self.note(&at);
        while let Some(found) = segment.next(offset, at, end)? {
            let right = check_payload(segment, &found, &origin)?;
            right.map_err(|bad| segment.damage(found.offset, found.head.seq, bad))?;
            let passed = segment.pass(&found, &mut world)?;
            passed.map_err(|bad| segment.damage(found.offset, found.head.seq, bad))?;
            if let Some(place) = places.next_if(|place| place.offset <= found.offset) {
                let same = Bad::unless_same("offset of a place", place.offset, found.offset)
                    .and_then(|()| differs(&place.point, &found.at));
                same.map_err(|bad| segment.damage(end, found.head.seq, bad))?;
            }
            offset = found.end();
            at = found.after;
            self.audit.records += 1;
            (self.audit.end, self.audit.digest) = (at.next, Digest(at.digest));
            self.note(&at);
        }
        if let Some(footer) = segment.footer {
            let same = differs(&footer.after, &at)
                .and_then(|()| Bad::unless_same("places", places.count() as u64, 0));
            same.map_err(|bad| segment.damage(footer.end, at.next, bad))?;
        }
        self.before = Some(Before { at, number: segment.header.number, origin, world });
        Ok(())
    }
}

/// Whether a payload is the one of which its producer took the digest.
fn check_payload(
    segment: &mut Segment,
    found: &Found,
    origin: &Origin,
) -> Result<Result<(), Bad>, ReplayError> {
    let head = &found.head;
    if let Some(spilled) = &head.spilled {
        let same = Bad::unless_same("digest of a spill's record", head.payload, spilled.cell_digest());
        if same.is_err() {
            return Ok(same);
        }
    }
    if origin.digest_of != DigestOf::Payload {
        return Ok(Ok(()));
    }
    if head.producer == 0 {
        let (len, words) = (head.len(), own_words(segment.payload(found)?));
        let words =
            words.ok_or(Bad { field: "length of an event", found: len, expected: event::BYTES.into() });
        let same = words
            .and_then(|words| Bad::unless_same("digest of an event", event::digest(&words), head.payload));
        return Ok(same);
    }
    if head.address() == Address::PARTS {
        return check_parts(segment, found, origin.geometry.ranks as u16);
    }
    let digest = digest_of(segment, found, 0, head.len())?;
    Ok(Bad::unless_same("payload digest", digest, head.content()))
}

/// The digest of a part of a payload, which need not fit memory.
fn digest_of(segment: &mut Segment, found: &Found, mut from: u64, len: u64) -> Result<u64, ReplayError> {
    if len <= PIECE as u64 {
        return Ok(payload_digest(segment.part(found, from, len as usize)?));
    }
    let (mut hasher, end) = (PayloadHasher::default(), from + len);
    while from < end {
        let piece = (end - from).min(PIECE as u64);
        hasher.write(segment.part(found, from, piece as usize)?);
        from += piece;
    }
    Ok(hasher.finish())
}

fn check_parts(segment: &mut Segment, found: &Found, ranks: u16) -> Result<Result<(), Bad>, ReplayError> {
    let len = found.head.len();
    let table = segment.part(found, 0, (table_bytes(ranks.into()) as u64).min(len) as usize)?.to_vec();
    let word = |at: usize| {
        let word = table.get(at * 8..at * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        word.map_or(0, u64::from_le_bytes)
    };
    let of_table = |bad: seriatim_ring::parts::BadTable| Bad {
        field: bad.field,
        found: bad.found,
        expected: bad.expected,
    };
    let mut spans = Vec::new();
    let each = |rank: Option<u16>, span: Span| spans.push((rank, span));
    let read = Table::read(word, len, ranks).and_then(|table| table.each(each));
    if let Err(bad) = read {
        return Ok(Err(of_table(bad)));
    }
    for (rank, span) in spans {
        let field = if rank.is_some() { "digest of a part" } else { "digest of the body" };
        let range = span.range();
        let digest = digest_of(segment, found, range.start as u64, (range.end - range.start) as u64)?;
        let same = Bad::unless_same(field, digest, span.digest);
        if same.is_err() {
            return Ok(same);
        }
    }
    Ok(Bad::unless_same("digest of a table of parts", payload_digest(&table), found.head.content()))
}
