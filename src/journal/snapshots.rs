//! [`Snapshots`]: what an engine has made of the commands before an index, kept beside its journal.
//!
//! ```text
//! begin    NNN-xxxxxxxx.part/, whose lock says that somebody is at it
//! fill     files/: one file of bytes, or whatever the engine puts there
//! commit   all of it synced, each file's checksum taken ─▶ manifest, synced ─▶ the history checked
//!          ─▶ named NNN.snap ─▶ directory synced
//! remove   NNN.snap named NNN-xxxxxxxx.part ─▶ directory synced ─▶ taken apart
//! ```
//!
//! **Complete or not at all.** A snapshot has its name when all that it consists of is on the disk, and loses it before
//! anything of it does. What has no such name is nobody's when its lock can be had, and removed by who stores next.
//!
//! **Of one history.** A snapshot says the digest of all commands before its index, and so does the journal. Where these
//! differ, the state is of commands that no journal has: a loss of power took them, after a worker had applied them. Such
//! a snapshot is never the latest one, however complete it is.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use seriatim_ring::Seq;

use super::disk::{Disk, Guard, Local, Node};
use super::durable::DurableError;
use super::error::{Damage, ReplayError};
use super::format::{Bad, Fields, Reader};
use super::kept::{self, Cursor, PATIENCE};
use super::replay::Replay;
use super::segment::{self, PIECE};
use super::writer::write_all;
use crate::Digest;
use crate::crash_point;
use crate::fork;
use crate::region::Region;
use crate::region::header::Uuid;

const MAGIC: [u8; 8] = *b"SRTMSNAP";
const VERSION: u32 = 1;
const ORDER_MARK: u32 = 0x0102_0304;
/// The bytes of a manifest before its entries.
const HEADER_BYTES: usize = 88;
/// The longest manifest: of some hundred thousand files.
const LONGEST: u64 = 1 << 30;

/// The end of a snapshot's name; before it stands its index, in 20 digits.
pub(super) const SUFFIX: &str = ".snap";
const MANIFEST: &str = "manifest";
const FILES: &str = "files";
/// The file of a snapshot that is bytes.
const STATE: &str = "state";

/// Something is wrong with a snapshot, or one cannot be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The journal that it belongs to, or a file, cannot be read or written; or the journal does not have the index.
    #[error(transparent)]
    Journal(#[from] ReplayError),
    /// It is not what was stored.
    #[error("{0}")]
    Damaged(Damage),
    /// There is a snapshot of this index; it stays as it is.
    #[error("there is a snapshot at index {seq} already: {}", path.display())]
    Exists {
        /// The index.
        seq: Seq,
        /// Where it lies.
        path: PathBuf,
    },
    /// There is no snapshot of this index.
    #[error("there is no snapshot at index {seq} in {}", dir.display())]
    NotThere {
        /// The journal's directory.
        dir: PathBuf,
        /// The index.
        seq: Seq,
    },
    /// It is one of another region.
    #[error("{} is of region {found}, the journal there of region {expected}", path.display())]
    OtherRegion {
        /// The snapshot, or the directory in which one was to be stored.
        path: PathBuf,
        /// Whose it is.
        found: Uuid,
        /// Whose the journal is.
        expected: Uuid,
    },
    /// It is of commands that this journal does not have: it has others before that index.
    #[error(
        "{} is of another history than the journal: its digest at index {seq} is {found}, the journal's {expected}",
        path.display()
    )]
    OtherHistory {
        /// The snapshot.
        path: PathBuf,
        /// Its index.
        seq: Seq,
        /// Its digest.
        found: Digest,
        /// The journal's.
        expected: Digest,
    },
    /// It did not become known that what it is made of is durable.
    #[error("a snapshot at index {seq} would be ahead of its journal: {source}")]
    NotDurable {
        /// The index.
        seq: Seq,
        /// Why not.
        source: DurableError,
    },
    /// There is something among its files that is neither a file nor a directory, or has a name that is too long.
    #[error("{} cannot be kept in a snapshot: only files and directories can", path.display())]
    Unfit {
        /// What.
        path: PathBuf,
    },
    /// It is a directory, and was asked for its bytes.
    #[error("the snapshot at index {seq} is a directory, {}", path.display())]
    Directory {
        /// Its index.
        seq: Seq,
        /// The directory.
        path: PathBuf,
    },
    /// Somebody else changes what is kept in the directory, and does not come to an end.
    #[error("another process changes what is kept in {}, and does not let go", dir.display())]
    Busy {
        /// The journal's directory.
        dir: PathBuf,
    },
}

fn io_error<'p>(path: &'p Path, what: &'static str) -> impl Fn(io::Error) -> SnapshotError + use<'p> {
    move |source| kept::io_error(path, what, source).into()
}

/// One of a snapshot's files or directories.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// From `files` on.
    name: PathBuf,
    /// Length and checksum; none of a directory.
    file: Option<(u64, u32)>,
}

/// What a snapshot says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Manifest {
    uuid: Uuid,
    seq: Seq,
    digest: Digest,
    incarnation: u64,
    created: u64,
    is_directory: bool,
    entries: Vec<Entry>,
}

impl Manifest {
    fn bytes(&self) -> u64 {
        self.entries
            .iter()
            .filter_map(|entry| entry.file)
            .map(|(bytes, _)| bytes)
            .fold(0, u64::saturating_add)
    }

    fn encode(&self) -> Vec<u8> {
        let mut to = Fields::with_capacity(HEADER_BYTES);
        to.bytes(&MAGIC).half(VERSION).half(ORDER_MARK).bytes(&self.uuid.0.to_le_bytes());
        to.word(self.seq.get()).word(self.digest.0).word(self.incarnation).word(self.created);
        to.word(self.is_directory.into()).word(self.bytes()).word(self.entries.len() as u64);
        for Entry { name, file } in &self.entries {
            let (bytes, crc) = file.unwrap_or_default();
            let name = name.as_os_str().as_bytes();
            let shape = name.len() as u32 | u32::from(file.is_none()) << 16;
            to.word(bytes).half(crc).half(shape).bytes(name);
        }
        to.ended()
    }

    fn decode(bytes: &[u8]) -> Result<Manifest, (u64, Bad)> {
        let at_start = |bad| (0, bad);
        let same = |field, found: u64, expected: u64| Bad::unless_same(field, found, expected);
        let is_long_enough = bytes.len() >= HEADER_BYTES + 4;
        let length =
            Bad::unless(is_long_enough, "bytes of a manifest", bytes.len() as u64, HEADER_BYTES as u64 + 4);
        length.map_err(at_start)?;
        let (covered, crc) = bytes.split_at(bytes.len() - 4);
        let from = Reader(covered);
        same("magic", from.word(0), u64::from_le_bytes(MAGIC)).map_err(at_start)?;
        same("byte order mark", from.half(12).into(), ORDER_MARK.into()).map_err(at_start)?;
        same("format version", from.half(8).into(), VERSION.into()).map_err(at_start)?;
        let sum =
            same("checksum of the manifest", crc32c::crc32c(covered).into(), Reader(crc).half(0).into());
        sum.map_err(|bad| (covered.len() as u64, bad))?;
        let kind = from.word(64);
        Bad::unless(kind <= 1, "what it is", kind, 1).map_err(|bad| (64, bad))?;
        let manifest = Manifest {
            uuid: Uuid(u128::from(from.word(16)) | u128::from(from.word(24)) << 64),
            seq: Seq::new(from.word(32)),
            digest: Digest(from.word(40)),
            incarnation: from.word(48),
            created: from.word(56),
            is_directory: kind == 1,
            entries: decode_entries(&covered[HEADER_BYTES..], from.word(80))
                .map_err(|bad| (HEADER_BYTES as u64, bad))?,
        };
        same("bytes of all files", from.word(72), manifest.bytes()).map_err(|bad| (72, bad))?;
        let is_state = |entry: &Entry| entry.name.as_os_str() == STATE && entry.file.is_some();
        let is_one = manifest.is_directory || matches!(&manifest.entries[..], [entry] if is_state(entry));
        Bad::unless(is_one, "entries of one that is bytes", from.word(80), 1).map_err(|bad| (80, bad))?;
        Ok(manifest)
    }
}

fn decode_entries(bytes: &[u8], count: u64) -> Result<Vec<Entry>, Bad> {
    let (mut from, mut entries) = (Cursor(bytes), Vec::new());
    while !from.0.is_empty() {
        let entry = decode_entry(&mut from);
        entries.push(entry.ok_or(Bad { field: "entry", found: entries.len() as u64, expected: count })?);
    }
    Bad::unless_same("entries", entries.len() as u64, count)?;
    Ok(entries)
}

/// An entry; none if it is not whole, or its name leads anywhere but below.
fn decode_entry(from: &mut Cursor<'_>) -> Option<Entry> {
    let (bytes, crc, shape) = (from.word()?, from.half()?, from.half()?);
    let name = PathBuf::from(OsStr::from_bytes(from.bytes((shape & 0xffff) as usize)?));
    let leads_below = name.components().all(|part| matches!(part, Component::Normal(_)));
    let file = if shape >> 16 == 0 { Some((bytes, crc)) } else { None };
    (leads_below && name.components().next().is_some()).then_some(Entry { name, file })
}

/// The snapshots beside a journal: what an engine has made of all commands before an index. Who joins takes the
/// [latest](Self::latest) one and what the journal has [from there on](Snapshot::tail).
///
/// ```
/// use std::time::Duration;
/// use seriatim::journal::{Bookmark, Journal, JournalOptions, Snapshots};
/// use seriatim::{Config, Producer, Region, Sequencer, SequencerConfig, Worker};
///
/// let dir = std::env::temp_dir().join(format!("snapshots-{}", std::process::id()));
/// let region = Region::anonymous(&Config::new())?;
/// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
/// let mut journal = Journal::open(&region, &dir, &JournalOptions::new())?;
/// let mut worker = Worker::join(&region, "w")?;
/// let mut producer = Producer::attach(&region, "p")?;
/// let index = producer.submit(0, b"first")?;
/// producer.wait_sequenced(index)?;
/// let mut state = Vec::new(); // what this engine makes of commands
/// while let Some(event) = worker.poll()? {
///     if let seriatim::Event::Command(command) = event {
///         state.extend_from_slice(command.payload);
///     }
/// }
/// while journal.poll()? > 0 {} // or in a process of its own
/// let snapshots = Snapshots::open(&dir)?.of(&region, Duration::from_secs(60))?;
/// snapshots.store(worker.next(), worker.digest(), &state)?;
///
/// // Somebody who joins, perhaps years later. The bookmark keeps what it needs from being pruned.
/// let latest = Snapshots::open(&dir)?.latest()?.expect("there is one");
/// Bookmark::open(&dir, "w")?.keep(latest.seq(), latest.digest())?;
/// assert_eq!(latest.read()?, b"first");
/// let mut tail = latest.tail()?;
/// while let Some(record) = tail.next()? {
///     println!("{} {:?}", record.seq, record.payload);
/// }
/// # journal.leave()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A directory, as of an embedded database's checkpoint, is [begun](Self::begin), filled, and committed. Each process that
/// has the same state may store it: of one index one snapshot is kept, the others are told so.
#[derive(Clone, Debug)]
pub struct Snapshots {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    uuid: Uuid,
    region: Option<(Region, Duration)>,
}

impl Snapshots {
    /// Those beside the journal in a directory.
    ///
    /// # Errors
    /// There is no journal, or it cannot be read.
    pub fn open(dir: impl AsRef<Path>) -> Result<Snapshots, SnapshotError> {
        Self::open_on(Arc::new(Local), dir.as_ref())
    }

    pub(super) fn open_on(disk: Arc<dyn Disk>, dir: &Path) -> Result<Snapshots, SnapshotError> {
        #[cfg(feature = "crash-points")]
        crate::crash::arm();
        fork::watch();
        let uuid = kept::identity(&*disk, dir)?.origin.uuid;
        Ok(Self::with_uuid(disk, dir, uuid))
    }

    /// Those beside the journal of a region.
    pub(super) fn with_uuid(disk: Arc<dyn Disk>, dir: &Path, uuid: Uuid) -> Snapshots {
        Snapshots { disk, dir: dir.into(), uuid, region: None }
    }

    /// Has each snapshot wait, at most for so long, until all commands that are in it are [durable](Region::wait_durable):
    /// a worker is often ahead of the disk. Without this a snapshot is refused only if the journal does not have them at
    /// all, and one that was stored just before a loss of power may turn out to be [ahead](Self::latest) of it.
    ///
    /// # Errors
    /// The journal is that of another region.
    pub fn of(mut self, region: &Region, patience: Duration) -> Result<Snapshots, SnapshotError> {
        let (found, expected) = (region.uuid(), self.uuid);
        if found != expected {
            return Err(SnapshotError::OtherRegion { path: self.dir, found, expected });
        }
        self.region = Some((region.clone(), patience));
        Ok(self)
    }

    /// The indexes of all that are there, in order, whether they can be read or not.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Vec<Seq>, SnapshotError> {
        segment::list_of(&*self.disk, &self.dir, SUFFIX).map_err(io_error(&self.dir, "look into"))
    }

    /// That of an index. What it consists of is there, but its bytes have not been looked at: [`Snapshot::read`] and
    /// [`Snapshot::verify`] do.
    ///
    /// # Errors
    /// There is none, it is damaged, of another region, or cannot be read.
    pub fn get(&self, seq: Seq) -> Result<Snapshot, SnapshotError> {
        let path = self.path_of(seq);
        self.look_at(seq, &path).map_err(|error| match self.disk.node(&path) {
            // Or removed meanwhile.
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {
                SnapshotError::NotThere { dir: self.dir.clone(), seq }
            }
            _ => error,
        })
    }

    fn look_at(&self, seq: Seq, path: &Path) -> Result<Snapshot, SnapshotError> {
        let (manifest, path) = (self.manifest(seq, path)?, path.to_path_buf());
        let (found, expected) = (manifest.uuid, self.uuid);
        if found != expected {
            return Err(SnapshotError::OtherRegion { path, found, expected });
        }
        let snapshot = Snapshot { disk: self.disk.clone(), dir: self.dir.clone(), path, manifest };
        snapshot.is_there()?;
        Ok(snapshot)
    }

    /// The newest one that belongs to the journal as it is: the journal goes on at its index, with its digest. One that
    /// does not is passed over, with a warning: after a loss of power it may be ahead, or of commands that were lost.
    ///
    /// # Errors
    /// The newest one is damaged: an older one can be had with [`list`](Self::list) and [`get`](Self::get). Or the journal
    /// cannot be read.
    pub fn latest(&self) -> Result<Option<Snapshot>, SnapshotError> {
        for seq in self.list()?.into_iter().rev() {
            let found = self.get(seq).and_then(|snapshot| snapshot.tail().map(|_| snapshot));
            match found {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(
                    error @ (SnapshotError::OtherHistory { .. }
                    | SnapshotError::NotThere { .. }
                    | SnapshotError::Journal(
                        ReplayError::NotThere { .. } | ReplayError::Pruned { .. },
                    )),
                ) => tracing::warn!("passed over a snapshot: {error}"),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Stores what was made of all commands before an index; the digest is that of all these, as
    /// [`Worker::digest`](crate::Worker::digest) says. When it returns it stays, whatever happens.
    ///
    /// # Errors
    /// There is one at that index, or the journal does not have that index with that digest; the file system failed. Nothing
    /// is there then that was not there before; but if the last sync of all failed it may be, and who stores it again is
    /// told that it [exists](SnapshotError::Exists) when it stays.
    pub fn store(&self, at: Seq, digest: Digest, state: &[u8]) -> Result<Snapshot, SnapshotError> {
        let writer = self.begin_as(at, digest, false)?;
        let path = writer.files.join(STATE);
        let file = self.disk.create(&path).map_err(io_error(&path, "create"))?;
        file.reserve(state.len() as u64).map_err(io_error(&path, "reserve"))?;
        write_all(&*file, &mut [IoSlice::new(state)], 0).map_err(io_error(&path, "write"))?;
        crash_point!("store.written");
        writer.commit()
    }

    /// Begins a snapshot that is a directory: it is filled, and then [committed](SnapshotWriter::commit).
    ///
    /// # Errors
    /// There is one at that index, or the file system failed.
    pub fn begin(&self, at: Seq, digest: Digest) -> Result<SnapshotWriter, SnapshotError> {
        self.begin_as(at, digest, true)
    }

    fn begin_as(
        &self,
        seq: Seq,
        digest: Digest,
        is_directory: bool,
    ) -> Result<SnapshotWriter, SnapshotError> {
        let (disk, dir) = (&*self.disk, &self.dir);
        kept::sweep(disk, dir, false)?;
        if disk.node(&self.path_of(seq)).is_ok() {
            return Err(self.exists(seq));
        }
        let (path, lock) = kept::unfinished(disk, dir, seq)?;
        let files = path.join(FILES);
        disk.make_new_dir(&path).map_err(io_error(&path, "make directory"))?;
        let manifest = Manifest {
            uuid: self.uuid,
            seq,
            digest,
            incarnation: 0,
            created: kept::now(),
            is_directory,
            entries: Vec::new(),
        };
        let writer = SnapshotWriter { of: self.clone(), path, files, manifest, _lock: lock };
        disk.make_new_dir(&writer.files).map_err(io_error(&writer.files, "make directory"))?;
        crash_point!("store.begun");
        Ok(writer)
    }

    /// Removes that of an index, whether it can be read or not.
    ///
    /// # Errors
    /// There is none, or the file system failed.
    pub fn remove(&self, seq: Seq) -> Result<(), SnapshotError> {
        // Who prunes goes by what is there.
        let lock = kept::hold_retention(&*self.disk, &self.dir, PATIENCE)?;
        let lock = lock.ok_or_else(|| SnapshotError::Busy { dir: self.dir.clone() })?;
        let unnamed = self.unname(seq)?;
        drop(lock);
        unnamed.remove()
    }

    /// Takes its name from one, for good, for who has the lock: it is no snapshot then, and is to be taken apart when the
    /// lock is let go.
    pub(super) fn unname(&self, seq: Seq) -> Result<Unnamed, SnapshotError> {
        let (disk, dir, path) = (&*self.disk, &self.dir, self.path_of(seq));
        let (new, lock) = kept::unfinished(disk, dir, seq)?;
        match disk.rename(&path, &new) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SnapshotError::NotThere { dir: dir.clone(), seq });
            }
            other => other.map_err(io_error(&path, "rename"))?,
        }
        crash_point!("store.unnamed");
        // Or its name could come back without what it had.
        disk.sync_dir(dir).map_err(io_error(dir, "sync directory"))?;
        crash_point!("store.gone");
        Ok(Unnamed { disk: self.disk.clone(), path: new, _lock: lock })
    }

    /// Whether what the one of an index says of itself is whole, and of this region; nothing else of it is looked at.
    pub(super) fn has_manifest(&self, seq: Seq) -> Result<bool, SnapshotError> {
        match self.manifest(seq, &self.path_of(seq)) {
            Ok(manifest) => Ok(manifest.uuid == self.uuid),
            Err(SnapshotError::Damaged(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whose journal it is.
    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }

    pub(super) fn path_of(&self, seq: Seq) -> PathBuf {
        segment::path_of(&self.dir, seq, SUFFIX)
    }

    /// That there is one: then it stays, too.
    fn exists(&self, seq: Seq) -> SnapshotError {
        match self.disk.sync_dir(&self.dir) {
            Ok(()) => SnapshotError::Exists { seq, path: self.path_of(seq) },
            Err(error) => io_error(&self.dir, "sync directory")(error),
        }
    }

    fn manifest(&self, seq: Seq, path: &Path) -> Result<Manifest, SnapshotError> {
        let at = path.join(MANIFEST);
        let damaged = |(offset, bad): (u64, Bad)| damage(&at, seq, offset, bad);
        let mut view = match self.disk.view(&at, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged((0, Bad { field: "presence", found: 0, expected: 1 })));
            }
            other => other.map_err(io_error(&at, "read"))?,
        };
        let len = view.bytes();
        let fits = Bad::unless(len <= LONGEST, "bytes of a manifest", len, LONGEST);
        fits.map_err(|bad| damaged((0, bad)))?;
        let bytes = view.at(0, len as usize).map_err(io_error(&at, "read"))?;
        let manifest = Manifest::decode(bytes).map_err(damaged)?;
        let same = Bad::unless_same("index", manifest.seq.get(), seq.get());
        same.map_err(|bad| damaged((32, bad)))?;
        Ok(manifest)
    }

    /// What the journal says of an index; an error if it does not have it, or another digest.
    fn incarnation_at(&self, path: &Path, seq: Seq, digest: Digest) -> Result<u64, SnapshotError> {
        let replay = tail(&self.disk, &self.dir, path, seq, digest)?;
        Ok(replay.incarnation())
    }

    fn wait(&self, seq: Seq) -> Result<(), SnapshotError> {
        let Some((region, patience)) = &self.region else { return Ok(()) };
        // The first one of all has nothing before it.
        let before = seq.get().checked_sub(1).filter(|_| seq.get() > region.identity().first_index);
        let Some(last) = before.map(Seq::new) else { return Ok(()) };
        let waited = region.wait_durable(last, Instant::now() + *patience);
        waited.map_err(|source| SnapshotError::NotDurable { seq, source })
    }
}

fn damage(path: &Path, seq: Seq, offset: u64, Bad { field, found, expected }: Bad) -> SnapshotError {
    SnapshotError::Damaged(Damage { path: path.into(), offset, seq, field, found, expected })
}

/// The journal from an index on, where it has this digest.
fn tail(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    path: &Path,
    seq: Seq,
    digest: Digest,
) -> Result<Replay, SnapshotError> {
    let replay = Replay::open_on(disk.clone(), dir, true)?.from(seq)?;
    let expected = replay.digest();
    if digest != expected {
        return Err(SnapshotError::OtherHistory { path: path.into(), seq, found: digest, expected });
    }
    Ok(replay)
}

/// What was a snapshot. Whoever stores the next one, or prunes, removes it if this one does not.
#[must_use]
pub(super) struct Unnamed {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Somebody is at it.
    _lock: Guard,
}

impl Unnamed {
    /// Removes all that it has.
    pub(super) fn remove(self) -> Result<(), SnapshotError> {
        kept::remove_all(&*self.disk, &self.path).map_err(io_error(&self.path, "remove"))?;
        crash_point!("store.removed");
        Ok(())
    }
}

/// A snapshot that is being made. Dropped without [`commit`](Self::commit) it is gone.
#[derive(Debug)]
#[must_use]
pub struct SnapshotWriter {
    of: Snapshots,
    /// Where it lies until it has its name.
    path: PathBuf,
    files: PathBuf,
    manifest: Manifest,
    _lock: Guard,
}

impl SnapshotWriter {
    /// The directory to fill, which is empty: with files and directories, nothing else.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.files
    }

    /// All that is in the directory becomes the snapshot. When this returns it stays, whatever happens.
    ///
    /// # Errors
    /// As [`Snapshots::store`].
    pub fn commit(mut self) -> Result<Snapshot, SnapshotError> {
        let of = self.of.clone();
        let (disk, dir, seq) = (&*of.disk, &*of.dir, self.manifest.seq);
        self.manifest.entries = seal(disk, &self.files, seq)?;
        crash_point!("store.files");
        of.wait(seq)?;
        let named = of.path_of(seq);
        self.manifest.incarnation = of.incarnation_at(&named, seq, self.manifest.digest)?;
        self.write_manifest()?;
        crash_point!("store.manifest");
        disk.sync_dir(&self.path).map_err(io_error(&self.path, "sync directory"))?;
        crash_point!("store.complete");
        // Nobody prunes what it needs between this look and its name.
        let lock = kept::hold_retention(disk, dir, PATIENCE)?;
        let _lock = lock.ok_or_else(|| SnapshotError::Busy { dir: dir.into() })?;
        let first = kept::first_index(disk, dir)?;
        if first > seq {
            return Err(ReplayError::Pruned { dir: dir.into(), seq, first }.into());
        }
        if disk.node(&named).is_ok() {
            return Err(of.exists(seq));
        }
        disk.rename(&self.path, &named).map_err(io_error(&named, "name"))?;
        crash_point!("store.named");
        disk.sync_dir(dir).map_err(io_error(dir, "sync directory"))?;
        crash_point!("store.stored");
        let (disk, manifest) = (of.disk.clone(), self.manifest.clone());
        Ok(Snapshot { disk, dir: dir.into(), path: named, manifest })
    }

    fn write_manifest(&self) -> Result<(), SnapshotError> {
        let (disk, path) = (&self.of.disk, self.path.join(MANIFEST));
        let file = disk.create(&path).map_err(io_error(&path, "create"))?;
        write_all(&*file, &mut [IoSlice::new(&self.manifest.encode())], 0)
            .map_err(io_error(&path, "write"))?;
        file.sync(true).map_err(io_error(&path, "sync"))
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        // A child that inherited it leaves its parent's alone. One that was committed has another name. What cannot be
        // removed is by who stores next.
        if !fork::is_child() {
            let _ = kept::remove_all(&*self.of.disk, &self.path);
        }
    }
}

/// Has all that is in a directory stay, and says what it is.
fn seal(disk: &dyn Disk, files: &Path, seq: Seq) -> Result<Vec<Entry>, SnapshotError> {
    let walked = kept::walk(disk, files).map_err(|(path, error)| io_error(&path, "look into")(error))?;
    let mut entries = Vec::with_capacity(walked.len());
    for (name, node) in walked {
        let path = files.join(&name);
        let is_short = name.as_os_str().len() <= usize::from(u16::MAX);
        let file = match node {
            _ if !is_short => return Err(SnapshotError::Unfit { path }),
            Node::Other => return Err(SnapshotError::Unfit { path }),
            Node::Dir => {
                disk.sync_dir(&path).map_err(io_error(&path, "sync directory"))?;
                None
            }
            Node::File(bytes) => {
                disk.sync_file(&path).map_err(io_error(&path, "sync"))?;
                Some((bytes, checksum(disk, &path, seq, bytes)?))
            }
        };
        entries.push(Entry { name, file });
    }
    disk.sync_dir(files).map_err(io_error(files, "sync directory"))?;
    Ok(entries)
}

/// The checksum of a file, which has to have so many bytes.
fn checksum(disk: &dyn Disk, path: &Path, seq: Seq, bytes: u64) -> Result<u32, SnapshotError> {
    let mut view = disk.view(path, false).map_err(io_error(path, "read"))?;
    let same = Bad::unless_same("bytes of a file", view.bytes(), bytes);
    same.map_err(|bad| damage(path, seq, 0, bad))?;
    let (mut crc, mut at) = (0, 0);
    while at < bytes {
        let piece = view.at(at, (bytes - at).min(PIECE as u64) as usize).map_err(io_error(path, "read"))?;
        if piece.is_empty() {
            return Err(io_error(path, "read")(io::ErrorKind::UnexpectedEof.into()));
        }
        crc = crc32c::crc32c_append(crc, piece);
        at += piece.len() as u64;
    }
    Ok(crc)
}

/// A snapshot that is there, complete.
#[derive(Clone, Debug)]
pub struct Snapshot {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    path: PathBuf,
    manifest: Manifest,
}

impl Snapshot {
    /// Its index: that of the first command that is not in it.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.manifest.seq
    }

    /// The digest of all commands that are in it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.manifest.digest
    }

    /// The incarnation that is current at its index, 0 if there was none yet.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.manifest.incarnation
    }

    /// When it was made, to the second.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        kept::time(self.manifest.created)
    }

    /// How many bytes all its files have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.manifest.bytes()
    }

    /// Whether it is a directory, and not bytes.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.manifest.is_directory
    }

    /// Where its state lies: the directory as it was filled, or the file that has the bytes. It is not to be changed;
    /// a database that writes where it opens is given a copy.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let files = self.path.join(FILES);
        if self.manifest.is_directory { files } else { files.join(STATE) }
    }

    /// Its bytes, checked.
    ///
    /// # Errors
    /// They are not what was stored, cannot be read, or it is a directory.
    pub fn read(&self) -> Result<Vec<u8>, SnapshotError> {
        let (path, seq) = (self.path(), self.seq());
        if self.manifest.is_directory {
            return Err(SnapshotError::Directory { seq, path });
        }
        let (bytes, crc) = self.manifest.entries.iter().find_map(|entry| entry.file).unwrap_or_default();
        let mut view = self.disk.view(&path, false).map_err(io_error(&path, "read"))?;
        let same = Bad::unless_same("bytes of a file", view.bytes(), bytes);
        same.map_err(|bad| damage(&path, seq, 0, bad))?;
        let state = view.at(0, bytes as usize).map_err(io_error(&path, "read"))?;
        let same = Bad::unless_same("checksum of a file", crc32c::crc32c(state).into(), crc.into());
        same.map_err(|bad| damage(&path, seq, 0, bad))?;
        Ok(state.to_vec())
    }

    /// The journal from its index on: what has to be applied to it. Where the journal begins behind that, or has other
    /// commands before it, is an error.
    ///
    /// # Errors
    /// As said, or the journal cannot be read.
    pub fn tail(&self) -> Result<Replay, SnapshotError> {
        tail(&self.disk, &self.dir, &self.path, self.seq(), self.digest())
    }

    /// Looks at every byte of it, and that there is nothing else among its files.
    ///
    /// # Errors
    /// What is not as it was stored; the first of it.
    pub fn verify(&self) -> Result<(), SnapshotError> {
        let (disk, seq, files) = (&*self.disk, self.seq(), self.path.join(FILES));
        self.is_there()?;
        for Entry { name, file } in &self.manifest.entries {
            let Some((bytes, crc)) = *file else { continue };
            let path = files.join(name);
            let found = checksum(disk, &path, seq, bytes)?;
            let same = Bad::unless_same("checksum of a file", found.into(), crc.into());
            same.map_err(|bad| damage(&path, seq, 0, bad))?;
        }
        let walk =
            |root: &Path| kept::walk(disk, root).map_err(|(path, error)| io_error(&path, "look into")(error));
        let known: HashSet<_> = self.manifest.entries.iter().map(|entry| &entry.name).collect();
        let stray = walk(&files)?.into_iter().map(|(name, _)| name).find(|name| !known.contains(name));
        let beside = disk.list(&self.path).map_err(io_error(&self.path, "look into"))?;
        let beside = beside.into_iter().find(|name| name != MANIFEST && name != FILES);
        match stray.map(|name| files.join(name)).or(beside.map(|name| self.path.join(name))) {
            Some(path) => Err(damage(&path, seq, 0, Bad { field: "presence", found: 1, expected: 0 })),
            None => Ok(()),
        }
    }

    /// Whether all that it consists of is there, with its length.
    fn is_there(&self) -> Result<(), SnapshotError> {
        for Entry { name, file } in &self.manifest.entries {
            let path = self.path.join(FILES).join(name);
            let wrong = |bad| damage(&path, self.seq(), 0, bad);
            let absent = Bad { field: "presence", found: 0, expected: 1 };
            match (self.disk.node(&path), *file) {
                (Ok(Node::File(found)), Some((bytes, _))) => {
                    Bad::unless_same("bytes of a file", found, bytes).map_err(wrong)?;
                }
                (Ok(Node::Dir), None) => {}
                (Err(error), _) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error(&path, "look at")(error));
                }
                _ => return Err(wrong(absent)),
            }
        }
        Ok(())
    }

    /// Whether it is of the history that has this digest at its index.
    pub(super) fn is_of(&self, expected: Digest) -> Result<(), SnapshotError> {
        let (path, seq, found) = (self.path.clone(), self.seq(), self.digest());
        if found == expected {
            Ok(())
        } else {
            Err(SnapshotError::OtherHistory { path, seq, found, expected })
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_directory() { "directory" } else { "bytes" };
        write!(f, "snapshot at index {}, digest {}: {what}, {} B", self.seq(), self.digest(), self.bytes())
    }
}
