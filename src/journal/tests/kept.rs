//! Snapshots, bookmarks and pruning: what they promise, on a disk that loses power and fails, and on a real one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use super::memory_disk::{Choice, Failure, Fault, MemoryDisk, Op, image};
use super::power::{choices, is_told, moments};
use super::*;
use crate::Digest;
use crate::journal::bookmark::{self, Bookmark, BookmarkError};
use crate::journal::disk::{DiskFile, Guard, LockOf, Node, View};
use crate::journal::format::{HEADER_BYTES, Header};
use crate::journal::retention::{Holder, PruneError, Pruned, Pruner, Pruning, Retention, prune_some};
use crate::journal::snapshots::{Snapshot, SnapshotError, SnapshotWriter, Snapshots};
use crate::journal::{ReplayError, kept};

const SEGMENT: u64 = 4 << 10;

fn journal(count: u64) -> MemoryDisk {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, SEGMENT).unwrap();
    write(&disk, &mut writer, count, 6, true);
    drop(writer);
    disk
}

fn on(disk: &MemoryDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

fn seq(offset: u64) -> Seq {
    Seq::new(FIRST + offset)
}

fn digest(at: Seq) -> Digest {
    Digest(digest_at(at.get()))
}

fn state(at: Seq) -> Vec<u8> {
    (0..at.get() * 7 % 1_500).map(|i| (i * 31 + at.get()) as u8).collect()
}

fn snapshots(disk: &MemoryDisk) -> Snapshots {
    Snapshots::open_on(on(disk), dir()).unwrap()
}

fn store(disk: &MemoryDisk, at: Seq) -> Result<Snapshot, SnapshotError> {
    Snapshots::open_on(on(disk), dir())?.store(at, digest(at), &state(at))
}

/// Puts some files into a directory, and syncs nothing.
fn fill(disk: &MemoryDisk, writer: &SnapshotWriter, at: Seq) -> io::Result<()> {
    disk.make_new_dir(&writer.dir().join("sub"))?;
    disk.make_new_dir(&writer.dir().join("empty"))?;
    for name in ["one", "sub/two", "sub/none"] {
        let file = disk.create(&writer.dir().join(name))?;
        let bytes = if name == "sub/none" { Vec::new() } else { [name.as_bytes(), &state(at)].concat() };
        crate::journal::writer::write_all(&*file, &mut [io::IoSlice::new(&bytes)], 0)?;
    }
    Ok(())
}

fn store_directory(disk: &MemoryDisk, at: Seq) -> Result<Snapshot, SnapshotError> {
    let writer = Snapshots::open_on(on(disk), dir())?.begin(at, digest(at))?;
    let filled = fill(disk, &writer, at);
    filled.map_err(|source| kept::io_error(writer.dir(), "fill", source))?;
    writer.commit()
}

fn bookmark(disk: &MemoryDisk, name: &str) -> Result<Bookmark, BookmarkError> {
    Bookmark::open_on(on(disk), dir(), name)
}

fn keep(disk: &MemoryDisk, name: &str, next: Seq) -> Result<(), BookmarkError> {
    bookmark(disk, name)?.keep(next, digest(next))
}

fn prune(disk: &MemoryDisk, retention: Retention) -> Result<Pruned, PruneError> {
    Pruning::of(on(disk), dir(), &retention).run()
}

fn would_prune(disk: &MemoryDisk, retention: Retention) -> Result<Pruned, PruneError> {
    Pruning { is_dry: true, ..Pruning::of(on(disk), dir(), &retention) }.run()
}

/// All but the last segment is to go.
fn all() -> Retention {
    Retention::new().keep_bytes(0)
}

fn first(disk: &MemoryDisk) -> Seq {
    kept::first_index(disk, dir()).unwrap()
}

/// That all that the journal has is what belongs there, from its first index to an end.
fn holds(disk: &MemoryDisk, end: Seq) {
    let first = first(disk);
    let mut replay = Replay::open_on(on(disk), dir(), true).unwrap();
    let mut at = first.get();
    assert_eq!(replay.digest(), digest(first));
    while let Some(found) = replay.next().unwrap() {
        assert_eq!((found.seq.get(), found.payload), (at, &record(at).1[..]));
        at += 1;
    }
    assert_eq!((at, replay.digest().0), (end.get(), digest_at(end.get())));
    let audit = audit(disk);
    assert!(audit.is_sound(), "{audit:?}");
}

#[test]
fn a_snapshot_and_the_tail_are_the_whole() {
    let disk = journal(60);
    assert!(snapshots(&disk).latest().unwrap().is_none());
    for at in [seq(60), seq(0), seq(17)] {
        let stored = store(&disk, at).unwrap();
        assert_eq!((stored.seq(), stored.digest(), stored.is_directory()), (at, digest(at), false));
        let found = snapshots(&disk).get(at).unwrap();
        assert_eq!((found.read().unwrap(), found.bytes()), (state(at), state(at).len() as u64));
        found.verify().unwrap();
        let mut tail = found.tail().unwrap();
        let next = tail.next().unwrap().map(|record| record.seq);
        assert_eq!(next, (at < seq(60)).then_some(at));
    }
    assert_eq!(snapshots(&disk).list().unwrap(), [seq(0), seq(17), seq(60)]);
    assert_eq!(snapshots(&disk).latest().unwrap().unwrap().seq(), seq(60));
    let stored = store_directory(&disk, seq(33)).unwrap();
    stored.verify().unwrap();
    assert!(stored.is_directory());
    let error = stored.read().unwrap_err();
    assert!(matches!(error, SnapshotError::Directory { .. }), "{error}");
    for name in ["one", "sub/two"] {
        let path = stored.path().join(name);
        let content = disk.content(path.strip_prefix(DIR).unwrap().to_str().unwrap());
        assert_eq!(content, [name.as_bytes(), &state(seq(33))].concat());
    }
    let audit = audit(&disk);
    assert!(audit.is_sound() && audit.snapshots == 4, "{audit:?}");
}

#[test]
fn what_cannot_be_a_snapshot_is_refused_and_nothing_is_left() {
    let disk = journal(60);
    store(&disk, seq(20)).unwrap();
    let before = disk.names();
    let twice = store(&disk, seq(20)).unwrap_err();
    assert!(matches!(twice, SnapshotError::Exists { .. }), "{twice}");
    let text = twice.to_string();
    assert!(text.contains("1020") && text.contains(".snap"), "{text}");
    for at in [Seq::new(FIRST - 1), seq(61), Seq::new(u64::MAX)] {
        let error = snapshots(&disk).store(at, Digest(7), b"state").unwrap_err();
        assert!(error.to_string().contains("which has 1000..1060"), "{error}");
    }
    let error = snapshots(&disk).store(seq(30), Digest(7), b"state").unwrap_err();
    assert!(matches!(error, SnapshotError::OtherHistory { found: Digest(7), .. }), "{error}");
    let error = snapshots(&disk).get(seq(31)).unwrap_err();
    assert!(matches!(error, SnapshotError::NotThere { .. }), "{error}");
    let error = snapshots(&disk).remove(seq(31)).unwrap_err();
    assert!(matches!(error, SnapshotError::NotThere { .. }), "{error}");
    // One that is not committed is gone.
    let writer = snapshots(&disk).begin(seq(31), digest(seq(31))).unwrap();
    fill(&disk, &writer, seq(31)).unwrap();
    assert!(disk.names() != before);
    drop(writer);
    assert_eq!(disk.names(), before);
    let error = Snapshots::open_on(on(&MemoryDisk::default()), dir()).unwrap_err();
    assert!(matches!(error, SnapshotError::Journal(ReplayError::Empty { .. })), "{error}");
}

/// Of several that store for one index one does; the others are told so.
#[test]
fn one_of_several_wins() {
    let disk = journal(30);
    let (one, two) = (snapshots(&disk), snapshots(&disk));
    let first = one.begin(seq(20), digest(seq(20))).unwrap();
    let second = two.begin(seq(20), digest(seq(20))).unwrap();
    fill(&disk, &first, seq(20)).unwrap();
    fill(&disk, &second, seq(20)).unwrap();
    second.commit().unwrap().verify().unwrap();
    let error = first.commit().unwrap_err();
    assert!(matches!(error, SnapshotError::Exists { .. }), "{error}");
    assert_eq!(snapshots(&disk).list().unwrap(), [seq(20)]);
    assert!(!disk.names().iter().any(|name| name.ends_with(".part")), "{:?}", disk.names());
}

/// What somebody left who died is removed, and what somebody is at is not.
#[test]
fn leftovers_go_and_what_is_being_made_stays() {
    let disk = journal(30);
    let writer = snapshots(&disk).begin(seq(20), digest(seq(20))).unwrap();
    fill(&disk, &writer, seq(20)).unwrap();
    store(&disk, seq(21)).unwrap();
    prune(&disk, Retention::new()).unwrap();
    // As if they had died: a copy has no locks.
    let dead = disk.copy();
    dead.create(&dir().join("reader.mark.new")).unwrap();
    dead.create(&dir().join("notes.part")).unwrap();
    writer.commit().unwrap().verify().unwrap();
    let leftovers = would_prune(&dead, Retention::new()).unwrap().leftovers;
    assert_eq!(leftovers.len(), 2, "{leftovers:?}");
    assert_eq!(prune(&dead, Retention::new()).unwrap().leftovers, leftovers);
    assert!(prune(&dead, Retention::new()).unwrap().leftovers.is_empty());
    assert!(dead.names().iter().any(|name| name == "notes.part"));
    assert_eq!(snapshots(&dead).list().unwrap(), [seq(21)]);
}

/// Writes records that are not those of [`record`].
fn write_others(disk: &MemoryDisk, count: u64) {
    let mut writer = open(disk, SEGMENT).unwrap();
    for _ in 0..count {
        let (mut head, bytes) = record(writer.staged_to().next.get());
        head.shape ^= 1 << 32;
        if !writer.fits(&head) {
            writer.commit(None, true).unwrap();
            writer.rotate().unwrap();
        }
        writer.stage(&head, Payload::Here(&bytes));
    }
    writer.commit(None, true).unwrap();
}

/// A loss of power takes what the journal had not synced, but not the snapshot that was made of it: that is never the
/// latest, also when the journal has gone on with other commands.
#[test]
fn a_snapshot_of_commands_that_were_lost_is_passed_over() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 64 << 10).unwrap();
    write(&disk, &mut writer, 20, 5, true);
    store(&disk, seq(18)).unwrap();
    write(&disk, &mut writer, 10, 5, false);
    store(&disk, seq(27)).unwrap();
    keep(&disk, "reader", seq(27)).unwrap();
    let (disk, _) = image(&disk.state().log, Choice::Nothing);
    drop(open(&disk, SEGMENT).unwrap());
    assert_eq!(snapshots(&disk).list().unwrap(), [seq(18), seq(27)]);
    assert_eq!(snapshots(&disk).latest().unwrap().unwrap().seq(), seq(18));
    let error = bookmark(&disk, "reader").unwrap().replay().unwrap_err();
    assert!(matches!(error, BookmarkError::Journal(ReplayError::NotThere { .. })), "{error}");
    assert!(audit(&disk).problems[0].to_string().contains("1027"));
    write_others(&disk, 20);
    assert_eq!(snapshots(&disk).latest().unwrap().unwrap().seq(), seq(18));
    let error = bookmark(&disk, "reader").unwrap().replay().unwrap_err();
    assert!(matches!(error, BookmarkError::OtherHistory { .. }), "{error}");
    let audit = audit(&disk);
    assert_eq!(audit.problems.len(), 2, "{audit:?}");
    assert!(
        audit.problems.iter().all(|problem| problem.to_string().contains("another history")),
        "{audit:?}"
    );
    // It does not count as the newest, and is told.
    let pruned = prune(&disk, Retention::new().keep_snapshots(1)).unwrap();
    assert!(pruned.snapshots.is_empty() && pruned.odd.len() == 1, "{pruned:?}");
    snapshots(&disk).remove(seq(27)).unwrap();
}

#[test]
fn a_reader_goes_on_where_it_was() {
    let disk = journal(60);
    let mut reader = bookmark(&disk, "a/b %2f").unwrap();
    assert_eq!((reader.next(), reader.replay().unwrap().position()), (None, seq(0)));
    reader.keep(seq(10), digest(seq(10))).unwrap();
    let error = bookmark(&disk, "a/b %2f").unwrap_err();
    assert!(matches!(error, BookmarkError::Taken { .. }), "{error}");
    reader.keep(seq(40), digest(seq(40))).unwrap();
    drop(reader);
    let reader = bookmark(&disk, "a/b %2f").unwrap();
    assert_eq!((reader.next(), reader.digest()), (Some(seq(40)), Some(digest(seq(40)))));
    assert_eq!(reader.replay().unwrap().position(), seq(40));
    keep(&disk, "..", seq(60)).unwrap();
    let all = bookmark::list(&disk, dir(), origin().uuid).unwrap();
    let all: Vec<_> = all.into_iter().map(|marked| marked.unwrap()).collect();
    let names: Vec<_> = all.iter().map(|marked| (marked.name.as_str(), marked.next)).collect();
    assert_eq!(names, [("..", seq(60)), ("a/b %2f", seq(40))]);
    assert_eq!(audit(&disk).bookmarks, 2);
    reader.remove().unwrap();
    assert!(!disk.names().iter().any(|name| name.starts_with('a')), "{:?}", disk.names());
    let error = bookmark(&disk, &"long".repeat(10)).unwrap_err();
    assert!(matches!(error, BookmarkError::Name(_)), "{error}");
    let error = bookmark(&disk, "").unwrap_err();
    assert!(matches!(error, BookmarkError::Name(_)), "{error}");
}

/// A bookmark that cannot be read is no bookmark that says nothing: nothing goes.
#[test]
fn a_damaged_bookmark_is_named_and_holds_everything() {
    let disk = journal(60);
    keep(&disk, "reader", seq(30)).unwrap();
    let whole = disk.content("reader.mark");
    for len in [0, 1, whole.len() - 1, whole.len() + 1] {
        disk.change("reader.mark", |file| file.resize(len, 0));
        let error = bookmark(&disk, "reader").unwrap_err().to_string();
        assert!(error.contains("reader.mark") && error.contains("bytes of a bookmark"), "{error}");
        let error = prune(&disk, all()).unwrap_err();
        assert!(matches!(error, PruneError::Bookmark(_)), "{error}");
        assert!(error.to_string().contains("reader.mark"), "{error}");
        disk.change("reader.mark", |file| *file = whole.clone());
    }
    assert_eq!(first(&disk), seq(0));
    // That of another region, and of another reader.
    disk.change("reader.mark", |file| {
        file[16] ^= 1;
        let (covered, crc) = file.split_at_mut(92);
        crc.copy_from_slice(&crc32c::crc32c(covered).to_le_bytes());
    });
    let error = bookmark(&disk, "reader").unwrap_err();
    assert!(matches!(error, BookmarkError::OtherRegion { .. }), "{error}");
    disk.change("reader.mark", |file| *file = whole.clone());
    disk.rename(&dir().join("reader.mark"), &dir().join("other.mark")).unwrap();
    let error = bookmark(&disk, "other").unwrap_err().to_string();
    assert!(error.contains("name"), "{error}");
}

#[test]
fn segments_go_by_size_from_the_first_on() {
    let disk = journal(120);
    let (segments, whole) = (disk.segments(), disk.copy());
    let sizes: Vec<u64> = segments.iter().map(|name| disk.len(name)).collect();
    let total: u64 = sizes.iter().sum();
    assert!(segments.len() > 8, "{segments:?}");
    assert!(prune(&disk, Retention::new()).unwrap().segments.is_empty());
    assert!(prune(&disk, Retention::new().keep_bytes(total)).unwrap().segments.is_empty());
    let retention = Retention::new().keep_bytes(total - sizes[0] - 1);
    let planned = would_prune(&disk, retention).unwrap();
    assert_eq!(disk.segments(), segments);
    let pruned = prune(&disk, retention).unwrap();
    assert_eq!(pruned.segments, planned.segments);
    assert_eq!((pruned.segments.len(), pruned.first), (2, first(&disk)));
    assert_eq!(pruned.bytes_left, total - sizes[0] - sizes[1]);
    assert!(pruned.held.is_none() && disk.segments() == segments[2..]);
    holds(&disk, seq(120));
    // The last one stays, whatever is asked for.
    let pruned = prune(&disk, all()).unwrap();
    assert_eq!((disk.segments().len(), pruned.first), (1, first(&disk)));
    holds(&disk, seq(120));
    let mut writer = open(&disk, SEGMENT).unwrap();
    write(&disk, &mut writer, 10, 5, true);
    drop(writer);
    holds(&disk, seq(130));
    // A few at a time.
    Pruning { most: 3, ..Pruning::of(on(&whole), dir(), &all()) }.run().unwrap();
    assert_eq!(whole.segments(), segments[3..]);
}

#[test]
fn segments_go_by_age() {
    let disk = journal(120);
    let segments = disk.segments();
    // Their ages in seconds, by when the next one was begun.
    for (n, name) in segments.iter().enumerate() {
        disk.change(name, |file| {
            let (mut header, _) = Header::decode(&file[..HEADER_BYTES]).unwrap();
            header.created = kept::now() - 1_000 * (segments.len() - n) as u64;
            file[..HEADER_BYTES].copy_from_slice(&header.encode());
        });
    }
    let retention = |seconds| Retention::new().keep_for(Duration::from_secs(seconds));
    let oldest = 1_000 * (segments.len() as u64 - 1);
    assert!(prune(&disk, retention(oldest + 100)).unwrap().segments.is_empty());
    assert_eq!(prune(&disk, retention(oldest - 100)).unwrap().segments.len(), 1);
    assert_eq!(prune(&disk, retention(oldest - 3_100)).unwrap().segments.len(), 3);
    // A clock that was set back makes nothing old.
    assert!(prune(&disk, Retention::new().keep_for(Duration::MAX)).unwrap().segments.is_empty());
    prune(&disk, retention(10)).unwrap();
    assert_eq!(disk.segments(), segments[segments.len() - 1..]);
}

#[test]
fn what_a_reader_or_a_snapshot_needs_stays_and_who_needs_it_is_named() {
    let disk = journal(200);
    let segments = disk.segments();
    keep(&disk, "slow", seq(50)).unwrap();
    keep(&disk, "fast", seq(150)).unwrap();
    store(&disk, seq(100)).unwrap();
    let needs =
        |at: Seq| segments.iter().filter(|name| name[..20].parse::<u64>().unwrap() <= at.get()).count() - 1;
    for (holder, at, release) in [
        (Holder::Bookmark(crate::Name::new("slow").unwrap()), seq(50), "slow"),
        (Holder::Snapshot(seq(100)), seq(100), ""),
        (Holder::Bookmark(crate::Name::new("fast").unwrap()), seq(150), "fast"),
    ] {
        let held = prune(&disk, all()).unwrap().held.expect("somebody needs it");
        assert_eq!((held.by, held.at), (holder, at));
        assert_eq!(disk.segments(), segments[needs(at)..], "{holder}");
        assert_eq!(held.segments, disk.segments().len() - 1);
        assert!(held.to_string().contains(&at.to_string()), "{held}");
        holds(&disk, seq(200));
        if release.is_empty() {
            snapshots(&disk).remove(at).unwrap();
        } else {
            bookmark(&disk, release).unwrap().remove().unwrap();
        }
    }
    assert!(prune(&disk, all()).unwrap().held.is_none());
    // What is gone cannot be asked for again.
    let error = keep(&disk, "slow", seq(50)).unwrap_err();
    assert!(matches!(error, BookmarkError::Journal(ReplayError::Pruned { .. })), "{error}");
    let mut reader = bookmark(&disk, "slow").unwrap();
    reader.keep(seq(200), digest(seq(200))).unwrap();
    let error = reader.keep(seq(50), digest(seq(50))).unwrap_err();
    assert!(error.to_string().contains("pruned") && reader.next() == Some(seq(200)), "{error}");
    let error = store(&disk, seq(50)).unwrap_err();
    assert!(error.to_string().contains("1050"), "{error}");
}

#[test]
fn old_snapshots_go_and_damaged_ones_do_not_count() {
    let disk = journal(100);
    for n in 1..6 {
        store(&disk, seq(n * 15)).unwrap();
    }
    let kept = |disk: &MemoryDisk| snapshots(disk).list().unwrap();
    let keep = |count| Retention::new().keep_snapshots(count);
    assert!(prune(&disk, keep(5)).unwrap().snapshots.is_empty());
    assert_eq!(would_prune(&disk, keep(4)).unwrap().snapshots, [seq(15)]);
    assert_eq!(prune(&disk, keep(4)).unwrap().snapshots, [seq(15)]);
    // The newest two are damaged: with bytes that do not fit, and without its manifest.
    let file = |at: Seq, name| format!("{:020}.snap/{name}", at.get());
    disk.change(&file(seq(75), "files/state"), |file| file.truncate(file.len() - 1));
    disk.forget(&file(seq(60), "manifest"));
    let error = snapshots(&disk).latest().unwrap_err();
    assert!(matches!(&error, SnapshotError::Damaged(damage) if damage.seq == seq(75)), "{error}");
    let error = snapshots(&disk).get(seq(60)).unwrap_err();
    assert!(error.to_string().contains("manifest"), "{error}");
    let pruned = prune(&disk, keep(0));
    let pruned = pruned.unwrap();
    assert_eq!((pruned.snapshots, kept(&disk)), (vec![seq(30)], vec![seq(45), seq(60), seq(75)]));
    assert_eq!(pruned.odd.len(), 2, "{:?}", pruned.odd);
    snapshots(&disk).remove(seq(60)).unwrap();
    snapshots(&disk).remove(seq(75)).unwrap();
    assert_eq!(snapshots(&disk).latest().unwrap().unwrap().seq(), seq(45));
}

/// A disk on which the first segments are pruned while somebody looks.
#[derive(Debug)]
struct Racing {
    inner: MemoryDisk,
    /// How often the first segment goes before it is read.
    left: Mutex<u64>,
    /// What is done before that.
    meanwhile: fn(&MemoryDisk),
}

impl Racing {
    /// Whether anybody can change what has to stay.
    fn is_free(&self) -> bool {
        self.inner.lock_at(dir(), LockOf::Retention).unwrap().is_some()
    }
}

impl Disk for Racing {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.make_dir(dir)
    }
    fn make_new_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.make_new_dir(path)
    }
    fn lock_at(&self, dir: &Path, which: LockOf) -> io::Result<Option<Guard>> {
        self.inner.lock_at(dir, which)
    }
    fn is_locked_at(&self, dir: &Path, which: LockOf) -> bool {
        self.inner.is_locked_at(dir, which)
    }
    fn node(&self, path: &Path) -> io::Result<Node> {
        self.inner.node(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.inner.list(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.inner.create(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        assert!(path.parent() == Some(dir()) || self.is_free(), "nobody waits for {}", path.display());
        self.inner.remove(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        assert!(self.is_free(), "nobody waits for {}", path.display());
        self.inner.remove_dir(path)
    }
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_file(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
    fn view(&self, path: &Path, in_place: bool) -> io::Result<Box<dyn View>> {
        let mut left = self.left.lock().unwrap();
        let first = self.inner.segments()[0].clone();
        if *left > 0 && path.ends_with(&first) {
            *left -= 1;
            (self.meanwhile)(&self.inner);
            // Unless it is gone already.
            self.inner.forget(&first);
        }
        self.inner.view(path, in_place)
    }
}

/// Who opens a journal that is pruned meanwhile does not notice; who reads what is pruned is told.
#[test]
fn a_reader_beside_a_prune_is_told_what_is_first_now() {
    let disk = journal(120);
    let racing = |disk: &MemoryDisk, left, meanwhile| -> Arc<dyn Disk> {
        Arc::new(Racing { inner: disk.copy(), left: Mutex::new(left), meanwhile })
    };
    let replay = Replay::open_on(racing(&disk, 4, |_| {}), dir(), true).unwrap();
    assert!(replay.first() > seq(0));
    let audit = verify_on(&racing(&disk, 4, |_| {}), dir()).unwrap();
    assert!(audit.is_sound() && audit.first > seq(0), "{audit:?}");
    // Also when a snapshot goes that was there, and a reader goes on.
    let kept = disk.copy();
    store(&kept, seq(10)).unwrap();
    keep(&kept, "reader", seq(5)).unwrap();
    let go_on = |disk: &MemoryDisk| {
        keep(disk, "reader", seq(100)).unwrap();
        store(disk, seq(110)).unwrap();
        prune(disk, all().keep_snapshots(1)).unwrap();
    };
    let audit = verify_on(&racing(&kept, 1, go_on), dir()).unwrap();
    assert!(audit.is_sound() && audit.first > seq(90), "{audit:?}");
    let mut replay = Replay::open_on(on(&disk), dir(), true).unwrap();
    prune(&disk, all()).unwrap();
    let now = first(&disk);
    let error = loop {
        match replay.next() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a silent end"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReplayError::Pruned { first, .. } if first == now), "{error}");
    let error = Replay::open_on(on(&disk), dir(), true).unwrap().from(seq(3)).unwrap_err();
    assert!(matches!(error, ReplayError::NotThere { .. }), "{error}");
}

/// Who holds the lock is waited for, and a journal that prunes does not wait.
#[test]
fn who_prunes_waits_for_others() {
    let disk = journal(120);
    let pruner = Pruner::new(&on(&disk), dir(), all());
    let lock = disk.lock_at(dir(), LockOf::Retention).unwrap();
    let error = prune(&disk, all()).unwrap_err();
    assert!(matches!(error, PruneError::Busy { .. }), "{error}");
    prune_some(&on(&disk), dir(), &pruner).unwrap();
    assert_eq!(first(&disk), seq(0));
    // Looking needs no lock.
    assert!(!would_prune(&disk, all()).unwrap().segments.is_empty());
    drop(lock);
    prune_some(&on(&disk), dir(), &pruner).unwrap();
    assert!(first(&disk) > seq(0));
}

/// What one does with a directory: each step is made until it succeeds, and told before and after.
fn keep_and_prune(disk: &MemoryDisk) -> Vec<String> {
    let mut errors = Vec::new();
    let again = |errors: &mut Vec<String>, result: Result<(), String>| {
        errors.extend(result.err());
        assert!(errors.len() < 200, "{:?}", errors.last());
    };
    let stored = |errors: &mut Vec<String>, at: Seq, is_directory: bool| loop {
        let result = if is_directory { store_directory(disk, at) } else { store(disk, at) };
        match result {
            Ok(_) | Err(SnapshotError::Exists { .. }) => break disk.tell("snapshot", at.get()),
            Err(error) => again(errors, Err(error.to_string())),
        }
    };
    let kept = |errors: &mut Vec<String>, at: Seq| loop {
        match keep(disk, "reader", at) {
            Ok(()) => break disk.tell("bookmark", at.get()),
            Err(error) => again(errors, Err(error.to_string())),
        }
    };
    let pruned = |errors: &mut Vec<String>, until: Seq, old: &[u64]| {
        disk.tell("first", until.get());
        old.iter().for_each(|&at| disk.tell("old", FIRST + at));
        loop {
            match prune(disk, all().keep_snapshots(1)) {
                Ok(pruned) => break disk.tell("pruned", pruned.first.get()),
                Err(error) => again(errors, Err(error.to_string())),
            }
        }
    };
    stored(&mut errors, seq(10), false);
    kept(&mut errors, seq(14));
    stored(&mut errors, seq(30), true);
    pruned(&mut errors, seq(14), &[10]);
    kept(&mut errors, seq(41));
    stored(&mut errors, seq(44), false);
    pruned(&mut errors, seq(41), &[30]);
    errors
}

/// Whether a disk has what was told.
fn has_what_was_told(disk: &MemoryDisk, log: &[Op], end: Seq) {
    let (mut stored, mut marked, mut least, mut most) = (BTreeSet::new(), None, FIRST, FIRST);
    for op in log {
        match op {
            Op::Told(what, at) if what == "snapshot" => drop(stored.insert(*at)),
            Op::Told(what, at) if what == "old" => drop(stored.remove(at)),
            Op::Told(what, at) if what == "bookmark" => marked = Some(*at),
            Op::Told(what, at) if what == "pruned" => least = *at,
            Op::Told(what, at) if what == "first" => most = *at,
            _ => {}
        }
    }
    let of = snapshots(disk);
    let listed = of.list().unwrap();
    for &at in &listed {
        // Never a half one.
        let snapshot = of.get(at).unwrap();
        snapshot.verify().unwrap();
        assert!(snapshot.is_directory() || snapshot.read().unwrap() == state(at));
        assert!(snapshot.tail().is_ok(), "{at}");
    }
    assert!(stored.iter().all(|at| listed.contains(&Seq::new(*at))), "{stored:?} {listed:?}");
    let latest = of.latest().unwrap().map(|snapshot| snapshot.seq().get());
    assert!(latest >= stored.last().copied(), "{latest:?} {stored:?}");
    let reader = bookmark(disk, "reader").unwrap();
    assert!(reader.next().map(Seq::get) >= marked, "{:?} {marked:?}", reader.next());
    reader.replay().unwrap();
    drop(reader);
    let first = first(disk).get();
    assert!((least..=most).contains(&first), "{first} is the first, {least}..={most}");
    holds(disk, end);
}

/// The same, and whoever comes next goes on.
fn goes_on(disk: &MemoryDisk, log: &[Op], end: Seq) {
    has_what_was_told(disk, log, end);
    let mut writer = open(disk, SEGMENT).unwrap();
    write(disk, &mut writer, 3, 2, true);
    drop(writer);
    store(disk, end).unwrap();
    keep(disk, "reader", end).unwrap();
    prune(disk, all().keep_snapshots(1)).unwrap();
    assert_eq!(snapshots(disk).list().unwrap(), [end]);
    assert_eq!(disk.segments().len(), 1);
    let odd = |name: &String| name.ends_with(".part") || name.ends_with(".new");
    assert!(!disk.names().iter().any(odd), "{:?}", disk.names());
    holds(disk, end.plus(3));
}

const COUNT: u64 = 60;

#[test]
fn a_power_failure_leaves_what_was_told() {
    let disk = journal(COUNT);
    let begins = disk.state().log.len();
    assert!(keep_and_prune(&disk).is_empty());
    assert!(first(&disk) > seq(20), "it pruned");
    let log = disk.state().log.clone();
    let mut images = 0;
    for at in moments(&log).filter(|&at| at >= begins) {
        let end = at + log[at..].iter().take_while(|op| is_told(op)).count();
        for choice in choices(at, if cfg!(miri) { 1 } else { 12 }) {
            let (disk, _) = image(&log[..end], choice);
            let is_sound = std::panic::catch_unwind(|| goes_on(&disk, &log[..end], seq(COUNT))).is_ok();
            assert!(is_sound, "after operation {at} of {}, {:?}, {choice:?}", log.len(), log[..at].last());
            images += 1;
        }
    }
    println!("{images} images");
    assert!(images > 1_000 || cfg!(miri), "{images}");
}

/// A process dies at any call; what it left is gone on with; then the power fails.
#[test]
fn a_death_at_any_call_leaves_what_was_told() {
    let (mut from, mut images, begun) = (0, 0, journal(COUNT));
    loop {
        let disk = alive_again(&begun);
        let calls = disk.state().calls;
        let how = Failure::Error(libc::EIO);
        disk.state().fault = Some(Fault { from: calls + from, count: u64::MAX, how });
        let is_dead = std::panic::catch_unwind(|| keep_and_prune(&disk)).is_err();
        disk.state().fault = None;
        // Its locks have died with it.
        let dead = disk.copy();
        let mut log = dead.as_log();
        log.extend(disk.state().log.iter().filter(|op| matches!(op, Op::Told(..))).cloned());
        goes_on(&dead, &log, seq(COUNT));
        // And of the successor, at a moment of what it does, with what the dead one had not synced.
        let disk = alive_again(&disk);
        let before = disk.state().log.len();
        goes_on(&disk, &log, seq(COUNT));
        let whole = disk.state().log.clone();
        for at in (before..whole.len()).step_by(3) {
            let (disk, _) = image(&whole[..at], Choice::Random(at as u64 + from));
            assert!(audit(&disk).is_sound(), "call {from}, operation {at}: {:?}", audit(&disk));
            images += 1;
        }
        from += 1;
        if !is_dead {
            break;
        }
    }
    println!("{from} calls, {images} images");
    assert!(from > 100 && images > 1_000, "{from} {images}");
}

/// The same disk, whose locks nobody has.
fn alive_again(disk: &MemoryDisk) -> MemoryDisk {
    let copy = disk.copy();
    copy.state().log = disk.state().log.clone();
    copy
}

/// Each call fails once, or several times in a row.
#[test]
fn whatever_fails_what_was_told_is_there() {
    let begun = journal(COUNT);
    let calls = {
        let disk = alive_again(&begun);
        let before = disk.state().calls;
        assert!(keep_and_prune(&disk).is_empty());
        disk.state().calls - before
    };
    let mut cases = 0;
    for from in 0..calls {
        for (code, count) in [(libc::ENOSPC, 1), (libc::EIO, 3), (libc::EROFS, 2)] {
            let disk = alive_again(&begun);
            let before = disk.state().calls;
            disk.state().fault = Some(Fault { from: before + from, count, how: Failure::Error(code) });
            let errors = keep_and_prune(&disk);
            disk.state().fault = None;
            let context = format!("call {from} and {count}, error {code}: {errors:?}");
            let cause = io::Error::from_raw_os_error(code).to_string();
            for error in &errors {
                assert!(error.contains(DIR) && error.contains(&cause), "{context}");
            }
            let log = disk.state().log.clone();
            for choice in [Choice::Everything, Choice::Nothing, Choice::Random(from)] {
                let (disk, _) = image(&log, choice);
                let is_sound = std::panic::catch_unwind(|| goes_on(&disk, &log, seq(COUNT))).is_ok();
                assert!(is_sound, "{context}, {choice:?}");
            }
            cases += u64::from(!errors.is_empty());
        }
    }
    println!("{calls} calls, {cases} cases");
    assert!(cases > 300, "{cases}");
}

/// Takes back the last sync of the directory: as if who made it had been killed just before.
fn unsync(disk: &MemoryDisk) {
    let mut state = disk.state();
    let last = state.log.iter().rposition(|op| matches!(op, Op::SyncDir(0))).unwrap();
    state.log.remove(last);
}

/// What a prune goes by stays, also if nobody else has seen to that: whoever did may have been killed before.
#[test]
fn what_a_prune_goes_by_stays() {
    type Step = fn(&MemoryDisk);
    let steps: [(&str, Step); 4] = [
        ("a bookmark goes on", |disk| {
            keep(disk, "reader", seq(10)).unwrap();
            keep(disk, "reader", seq(50)).unwrap();
            unsync(disk);
        }),
        ("a bookmark is removed", |disk| {
            keep(disk, "reader", seq(10)).unwrap();
            bookmark(disk, "reader").unwrap().remove().unwrap();
            unsync(disk);
        }),
        ("a newer snapshot", |disk| {
            store(disk, seq(10)).unwrap();
            disk.tell("snapshot", FIRST + 10);
            store(disk, seq(50)).unwrap();
            unsync(disk);
        }),
        ("a newer segment", |disk| {
            let mut writer = open(disk, SEGMENT).unwrap();
            writer.rotate().unwrap();
            unsync(disk);
        }),
    ];
    for (what, step) in steps {
        let disk = journal(COUNT);
        step(&disk);
        prune(&disk, all().keep_snapshots(1)).unwrap();
        let log = disk.state().log.clone();
        for at in 0..=log.len() {
            for choice in choices(at, 8) {
                let (disk, acknowledged) = image(&log[..at], choice);
                let context = format!("{what}, operation {at} of {}, {choice:?}", log.len());
                if disk.segments().is_empty() {
                    assert_eq!(acknowledged, 0, "{context}");
                    continue;
                }
                let ends = open(&disk, SEGMENT).unwrap().durable().next.get();
                assert!(ends >= acknowledged, "{context}");
                let audit = audit(&disk);
                assert!(audit.is_sound(), "{context}: {audit:?}");
                if log[..at].iter().any(|op| matches!(op, Op::Told(..))) {
                    assert!(snapshots(&disk).latest().unwrap().is_some(), "{context}");
                }
            }
        }
    }
}

/// The same on a real disk: what is stored, in a directory or as bytes, what cannot be, and who has a name.
#[test]
fn a_real_directory_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("journal");
    let shelf =
        Shelf::open(Arc::new(crate::journal::disk::Local), &dir, Some(origin()), Duration::ZERO).unwrap();
    let mut writer = shelf.begin(beginning(), world(), origin(), SEGMENT).unwrap();
    while writer.written().next < seq(COUNT) {
        let has_room = stage(&mut writer, 5);
        writer.commit(None, true).unwrap();
        if !has_room {
            writer.rotate().unwrap();
        }
    }
    let of = Snapshots::open(&dir).unwrap();
    of.store(seq(10), digest(seq(10)), b"some bytes").unwrap();
    assert_eq!(of.store(seq(5), digest(seq(5)), b"").unwrap().read().unwrap(), b"");
    of.remove(seq(5)).unwrap();
    let checkpoint = of.begin(seq(40), digest(seq(40))).unwrap();
    std::fs::create_dir_all(checkpoint.dir().join("deep/er")).unwrap();
    std::fs::write(checkpoint.dir().join("deep/er/one"), vec![7; 3 << 20]).unwrap();
    std::fs::write(checkpoint.dir().join("two"), b"").unwrap();
    checkpoint.commit().unwrap();
    let latest = Snapshots::open(&dir).unwrap().latest().unwrap().unwrap();
    latest.verify().unwrap();
    assert_eq!(std::fs::read(latest.path().join("deep/er/one")).unwrap(), vec![7; 3 << 20]);
    assert_eq!(of.get(seq(10)).unwrap().read().unwrap(), b"some bytes");
    let linked = of.begin(seq(41), digest(seq(41))).unwrap();
    std::os::unix::fs::symlink("/etc", linked.dir().join("link")).unwrap();
    let error = linked.commit().unwrap_err();
    assert!(matches!(&error, SnapshotError::Unfit { path } if path.ends_with("files/link")), "{error}");
    assert!(std::fs::exists("/etc/hostname").unwrap() || std::fs::exists("/etc/passwd").unwrap());
    let mut reader = Bookmark::open(&dir, "a/reader").unwrap();
    reader.keep(seq(20), digest(seq(20))).unwrap();
    let error = Bookmark::open(&dir, "a/reader").unwrap_err();
    assert!(matches!(error, BookmarkError::Taken { .. }), "{error}");
    let error = Bookmark::forget(&dir, "a/reader").unwrap_err();
    assert!(matches!(error, BookmarkError::Taken { .. }), "{error}");
    let pruned = crate::journal::prune(&dir, &all().keep_snapshots(1)).unwrap();
    assert_eq!((pruned.snapshots, pruned.held.unwrap().at), (vec![seq(10)], seq(20)));
    drop(reader);
    assert_eq!(Bookmark::list(&dir).unwrap().len(), 1);
    assert!(Bookmark::forget(&dir, "a/reader").unwrap() && !Bookmark::forget(&dir, "a/reader").unwrap());
    let pruned = crate::journal::prune(&dir, &all()).unwrap();
    assert_eq!(pruned.held.unwrap().by, Holder::Snapshot(seq(40)));
    // What belongs to others stays, too.
    std::fs::write(dir.join("notes"), b"mine").unwrap();
    crate::journal::prune(&dir, &all()).unwrap();
    assert!(dir.join("notes").exists());
    // One that is not as it was stored.
    let at: PathBuf = latest.path().join("deep/er/one");
    let mut bytes = std::fs::read(&at).unwrap();
    bytes[2 << 20] ^= 1;
    std::fs::write(&at, bytes).unwrap();
    let error = latest.verify().unwrap_err();
    assert!(error.to_string().contains("deep/er/one"), "{error}");
    let audit = crate::journal::verify(&dir).unwrap();
    assert_eq!(audit.problems.len(), 1, "{audit:?}");
    std::fs::write(latest.path().join("stray"), b"").unwrap();
    std::fs::write(at, vec![7; 3 << 20]).unwrap();
    assert!(latest.verify().unwrap_err().to_string().contains("stray"));
}

fn submit(producer: &mut crate::Producer, payload: &[u8]) -> Seq {
    let index = producer.submit(0, payload).unwrap();
    match producer.wait_sequenced(index).unwrap() {
        crate::Sequenced::At(seq) => seq,
        other => panic!("{other:?}"),
    }
}

/// A worker is ahead of the disk: what it stores waits for that, or is refused.
#[test]
fn a_worker_stores_what_is_durable() {
    use crate::journal::{Journal, JournalOptions, SyncPolicy};
    let region = crate::Region::anonymous(&crate::Config::new()).unwrap();
    let _sequencer = crate::Sequencer::spawn(&region, crate::SequencerConfig::new()).unwrap();
    let (disk, long) = (MemoryDisk::default(), Duration::from_secs(60));
    let options = JournalOptions::new().timeout(long);
    let mut journal = Journal::open_on(on(&disk), &region, dir(), &options).unwrap();
    let mut worker = crate::Worker::join(&region, "w").unwrap();
    let mut producer = crate::Producer::attach(&region, "p").unwrap();
    let mut take = |worker: &mut crate::Worker| {
        let seq = submit(&mut producer, b"one");
        while worker.next() <= seq {
            worker.poll().unwrap();
        }
        (worker.next(), worker.digest())
    };
    let (at, digest) = take(&mut worker);
    // The journal has not even written it.
    let error = snapshots(&disk).store(at, digest, b"state").unwrap_err();
    assert!(matches!(error, SnapshotError::Journal(ReplayError::NotThere { .. })), "{error}");
    let soon = snapshots(&disk).of(&region, Duration::from_millis(1)).unwrap();
    let error = soon.store(at, digest, b"state").unwrap_err();
    assert!(matches!(error, SnapshotError::NotDurable { .. }), "{error}");
    assert!(error.to_string().contains("ahead of its journal"), "{error}");
    let patient = snapshots(&disk).of(&region, long).unwrap();
    let stored = std::thread::scope(|scope| {
        let storing = scope.spawn(|| patient.store(at, digest, b"state").map(|stored| stored.seq()));
        while !storing.is_finished() {
            journal.poll().unwrap();
            std::thread::yield_now();
        }
        storing.join().unwrap()
    });
    assert_eq!((stored.unwrap(), journal.durable() >= at), (at, true));
    // What does not sync acknowledges nothing.
    drop(journal);
    let options = options.sync(SyncPolicy::Off);
    let mut journal = Journal::open_on(on(&disk), &region, dir(), &options).unwrap();
    let (at, digest) = take(&mut worker);
    while journal.poll().unwrap() > 0 {}
    let error = patient.store(at, digest, b"state").unwrap_err();
    assert!(error.to_string().contains("does not sync"), "{error}");
    snapshots(&disk).store(at, digest, b"state").unwrap();
    let other = crate::Region::anonymous(&crate::Config::new()).unwrap();
    let error = snapshots(&disk).of(&other, long).unwrap_err();
    assert!(matches!(error, SnapshotError::OtherRegion { .. }), "{error}");
}

/// A journal prunes by itself; what stands in the way is said once, and stops nothing.
#[test]
fn a_journal_prunes_when_a_segment_is_full() {
    use crate::journal::{Journal, JournalOptions};
    let region = crate::Region::anonymous(&crate::Config::new().lane_cells(64)).unwrap();
    let _sequencer = crate::Sequencer::spawn(&region, crate::SequencerConfig::new()).unwrap();
    let disk = MemoryDisk::default();
    let options = JournalOptions::new().segment_bytes(SEGMENT).timeout(Duration::from_secs(60));
    let options = options.retention(Retention::new().keep_bytes(3 * SEGMENT));
    let mut journal = Journal::open_on(on(&disk), &region, dir(), &options).unwrap();
    let mut producer = crate::Producer::attach(&region, "p").unwrap();
    let mut write = |count| {
        for _ in 0..count {
            submit(&mut producer, &[7; 500]);
            while journal.poll().unwrap() > 0 {}
        }
    };
    write(60);
    let kept = disk.segments().len();
    assert!((2..=3).contains(&kept) && first(&disk) > Seq::ZERO, "{:?}", disk.segments());
    // Nobody knows what this reader needs.
    disk.create(&dir().join("reader.mark")).unwrap();
    write(60);
    assert!(disk.segments().len() > kept + 3, "{:?}", disk.segments());
    let errors = region.errors().records;
    let said: Vec<_> = errors.iter().filter(|record| record.what.contains("cannot prune")).collect();
    assert!(said.len() == 1 && said[0].count == 1 && said[0].code == crate::ErrorCode::Journal, "{errors:?}");
    assert!(region.journal().unwrap().failing_for.is_none());
    // It is let go, and all of it goes, a few at a time.
    disk.remove(&dir().join("reader.mark")).unwrap();
    write(60);
    assert!(disk.segments().len() <= 3, "{:?}", disk.segments());
    drop(journal);
    assert!(audit(&disk).is_sound());
}

/// A disk with snapshots of so many files at 120 and 180, a journal that is far beyond them, and a leftover.
fn with_snapshots(files: usize) -> (MemoryDisk, PathBuf) {
    let disk = journal(300);
    for at in [seq(120), seq(180)] {
        let writer = snapshots(&disk).begin(at, digest(at)).unwrap();
        for n in 0..files {
            disk.create(&writer.dir().join(n.to_string())).unwrap();
        }
        writer.commit().unwrap();
    }
    let leftover = dir().join(format!("{FIRST:020}-00000007.part"));
    disk.make_new_dir(&leftover).unwrap();
    (disk, leftover)
}

/// Who writes the journal looks at no snapshot's files and removes none, and only some segments at a time; and beyond the
/// snapshots that are kept none holds a segment.
#[test]
fn a_journal_that_prunes_does_little_at_a_time() {
    let calls = [1, 40].map(|files| {
        let (disk, leftover) = with_snapshots(files);
        let pruner = Pruner::new(&on(&disk), dir(), all().keep_snapshots(1));
        let mut calls = Vec::new();
        loop {
            let (before, called) = (disk.segments().len(), disk.state().calls);
            prune_some(&on(&disk), dir(), &pruner).unwrap();
            calls.push(disk.state().calls - called);
            match before - disk.segments().len() {
                0 => break,
                gone => assert!(gone <= 4, "{gone} at once"),
            }
        }
        let first = first(&disk);
        assert!(calls.len() > 2 && first > seq(120) && first <= seq(180), "{calls:?}, from {first} on");
        assert_eq!(snapshots(&disk).list().unwrap(), [seq(120), seq(180)]);
        assert!(disk.node(&leftover).is_ok());
        // Who is asked to prune removes what is left.
        let pruned = prune(&disk, all().keep_snapshots(1)).unwrap();
        assert!(pruned.leftovers == [leftover] && pruned.odd.len() == 1, "{pruned:?}");
        calls
    });
    assert_eq!(calls[0], calls[1], "however many files a snapshot has");
}

/// A snapshot that nobody can join from takes no other's place: neither one of another history nor one that lacks something.
#[test]
fn a_journal_that_prunes_counts_no_snapshot_that_is_of_no_use() {
    let (disk, _) = with_snapshots(1);
    disk.remove(&dir().join(format!("{:020}.snap/files/0", seq(180).get()))).unwrap();
    let pruner = Pruner::new(&on(&disk), dir(), all().keep_snapshots(1));
    let prune = || {
        for _ in 0..20 {
            prune_some(&on(&disk), dir(), &pruner).unwrap();
        }
        first(&disk)
    };
    assert!(prune() <= seq(120), "{}", first(&disk));
    // One that comes later counts.
    store(&disk, seq(220)).unwrap();
    assert!(prune() > seq(180) && first(&disk) <= seq(220), "{}", first(&disk));
    // Or says nothing of itself.
    store(&disk, seq(280)).unwrap();
    disk.remove(&dir().join(format!("{:020}.snap/manifest", seq(280).get()))).unwrap();
    assert!(prune() <= seq(220), "{}", first(&disk));
}

/// Nobody waits for who takes a snapshot apart.
#[test]
fn a_snapshot_is_taken_apart_when_the_lock_is_let_go() {
    let (disk, _) = with_snapshots(3);
    let racing: Arc<dyn Disk> =
        Arc::new(Racing { inner: disk.clone(), left: Mutex::new(0), meanwhile: |_| {} });
    let pruned = Pruning::of(racing.clone(), dir(), &Retention::new().keep_snapshots(1)).run().unwrap();
    assert_eq!(pruned.snapshots, [seq(120)]);
    Snapshots::open_on(racing, dir()).unwrap().remove(seq(180)).unwrap();
    assert!(snapshots(&disk).list().unwrap().is_empty());
    assert!(!disk.list(dir()).unwrap().iter().any(|name| name.to_str().unwrap().ends_with(".part")));
}

/// What had no room is removed again, whatever it was: of a bookmark, of what says what a directory is for, and of a segment
/// that is written anew.
#[test]
fn what_had_no_room_leaves_nothing() {
    type Step = fn(&MemoryDisk) -> bool;
    let steps: [(&str, Step); 3] = [
        ("bookmark", |disk| keep(disk, "reader", seq(7)).is_ok()),
        ("duty", |disk| {
            let duty = crate::journal::Duty::Standby { source: PathBuf::from("/elsewhere") };
            duty.write(disk, dir(), origin().uuid, 0).is_ok()
        }),
        // That it mends what its predecessor left.
        ("segment", |disk| open(disk, SEGMENT).is_ok()),
    ];
    for (what, step) in steps {
        let set = journal(30).copy();
        assert!(step(&set), "{what}");
        let (calls, mut failed, mut left) = (set.state().calls, 0, 0);
        for from in 0..calls {
            for code in [libc::ENOSPC, libc::EIO] {
                let disk = journal(30).copy();
                disk.state().fault = Some(Fault { from, count: 1, how: Failure::Error(code) });
                failed += u64::from(!step(&disk));
                let new = disk.names().into_iter().find(|name| name.ends_with(".new"));
                assert_eq!(new, None, "{what}: error {code} at call {from}");
                left += 1;
                // And it comes to it.
                assert!(step(&disk), "{what}");
            }
        }
        assert!(failed > 4 && left > failed / 2, "{what}: {failed} of {left}");
    }
}

/// A bookmark that is ahead of its journal is told with both indexes: that was cut or replaced. At the end it is where it
/// belongs, and what a journal that lives lacks is still to come.
#[test]
fn a_bookmark_that_is_ahead_of_its_journal_is_told() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, SEGMENT).unwrap();
    write(&disk, &mut writer, 10, 3, true);
    let mut bookmark = Bookmark::open_on(Arc::new(disk.clone()), dir(), "reader").unwrap();
    for (at, is_ahead) in [(9, false), (10, false), (11, true), (900, true)] {
        bookmark.keep(Seq::new(FIRST + at), Digest(digest_at(FIRST + at))).unwrap();
        assert!(audit(&disk).is_sound(), "{at}");
        let dead = disk.copy();
        let audit = audit(&dead);
        assert_eq!((audit.problems.len(), audit.bookmarks), (usize::from(is_ahead), 1), "{at}: {audit:?}");
        if let [problem] = &audit.problems[..] {
            let text = problem.to_string();
            let both = [FIRST + at, FIRST + 10].map(|index| text.contains(&index.to_string()));
            assert!(text.contains("reader.mark needs index") && both == [true, true], "{text}");
        }
    }
}
