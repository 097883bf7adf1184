//! [`Bookmark`]: how far a reader of a journal is, so that nothing it still needs is pruned.
//!
//! ```text
//! keep     NAME.mark.new ─▶ synced ─▶ named NAME.mark, in the place of what it was ─▶ directory synced
//! ```
//!
//! One process has a name at a time. A bookmark that goes on needs nobody's leave; one that is set for the first time, or
//! back, waits for whoever prunes just now, and then looks whether what it needs is there.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use seriatim_ring::Seq;

use super::disk::{Disk, Guard, Local, LockOf, lock_within};
use super::error::{Damage, ReplayError};
use super::format::{Bad, Fields, Reader};
use super::keeper::LINGER;
use super::kept::{self, PATIENCE};
use super::replay::Replay;
use super::writer::write_all;
use crate::Digest;
use crate::crash_point;
use crate::name::{Name, NameError};
use crate::region::header::Uuid;

const MAGIC: [u8; 8] = *b"SRTMMARK";
const VERSION: u32 = 1;
const ORDER_MARK: u32 = 0x0102_0304;
pub(super) const BYTES: usize = 96;

/// The end of a bookmark's file; before it stands the name of its reader.
const SUFFIX: &str = ".mark";
/// That of one that is not complete yet.
const NEW_SUFFIX: &str = ".mark.new";

/// Something is wrong with a bookmark, or one cannot be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BookmarkError {
    /// The journal that it belongs to, or a file, cannot be read or written; or the journal does not have the index any
    /// more.
    #[error(transparent)]
    Journal(#[from] ReplayError),
    /// Nobody can be called that.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It is not what was written; how far its reader was is not known.
    #[error(
        "{} is damaged at offset {}: {} is {:#x}, expected {:#x}; how far its reader was is not known",
        .0.path.display(), .0.offset, .0.field, .0.found, .0.expected
    )]
    Damaged(Damage),
    /// It is of a reader of another region's journal.
    #[error("{} is of region {found}, the journal there of region {expected}", path.display())]
    OtherRegion {
        /// The bookmark.
        path: PathBuf,
        /// Whose it is.
        found: Uuid,
        /// Whose the journal is.
        expected: Uuid,
    },
    /// Its reader had other commands before that index than this journal has: what it made of them is of no use here.
    #[error(
        "{} is of another history than the journal: its digest at index {seq} is {found}, the journal's {expected}",
        path.display()
    )]
    OtherHistory {
        /// The bookmark.
        path: PathBuf,
        /// Its index.
        seq: Seq,
        /// Its digest.
        found: Digest,
        /// The journal's.
        expected: Digest,
    },
    /// It is ahead of its journal: that was cut or replaced, or lost what was not synced, or the order went on without it.
    #[error(
        "{} needs index {seq}, expected {end} at most: the journal ends there, and does not have what its reader had",
        path.display()
    )]
    Ahead {
        /// The bookmark.
        path: PathBuf,
        /// Its index.
        seq: Seq,
        /// The index behind the journal's last one.
        end: Seq,
    },
    /// Another process reads under that name.
    #[error("another process has the bookmark {name:?} in {}", dir.display())]
    Taken {
        /// The journal's directory.
        dir: PathBuf,
        /// The name.
        name: Name,
    },
    /// Somebody else changes what is kept in the directory, and does not come to an end.
    #[error("another process changes what is kept in {}, and does not let go", dir.display())]
    Busy {
        /// The journal's directory.
        dir: PathBuf,
    },
}

fn io_error<'p>(path: &'p Path, what: &'static str) -> impl Fn(io::Error) -> BookmarkError + use<'p> {
    move |source| kept::io_error(path, what, source).into()
}

/// How far a registered reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Marked {
    /// Its name.
    pub name: Name,
    /// The index that it needs next, and with it all that follow.
    pub next: Seq,
    /// The digest of all before it.
    pub digest: Digest,
    /// Seconds since 1970.
    kept: u64,
    /// A standby brought it from the directory that it follows, and no reader has set it here since.
    is_brought: bool,
}

impl Marked {
    /// When it was set.
    #[must_use]
    pub fn kept(&self) -> SystemTime {
        kept::time(self.kept)
    }

    /// As a standby has it of the directory that it follows.
    pub(super) fn brought(self) -> Marked {
        Marked { is_brought: true, ..self }
    }

    pub(super) fn is_brought(&self) -> bool {
        self.is_brought
    }

    /// Whether it is of the history that has this digest at its index.
    pub(super) fn is_of(&self, dir: &Path, expected: Digest) -> Result<(), BookmarkError> {
        let (path, seq, found) = (path_of(dir, self.name, SUFFIX), self.next, self.digest);
        if found == expected {
            Ok(())
        } else {
            Err(BookmarkError::OtherHistory { path, seq, found, expected })
        }
    }

    /// That it is ahead of its journal, which ends there.
    pub(super) fn ahead(&self, dir: &Path, end: Seq) -> BookmarkError {
        BookmarkError::Ahead { path: path_of(dir, self.name, SUFFIX), seq: self.next, end }
    }

    /// Whether its reader has not gone on, or was forgotten, since.
    pub(super) fn is_still(&self, disk: &dyn Disk, dir: &Path, uuid: Uuid) -> bool {
        read(disk, dir, self.name, uuid).ok().flatten() == Some(*self)
    }

    fn encode(&self, uuid: Uuid) -> Vec<u8> {
        let mut to = Fields::with_capacity(BYTES);
        to.bytes(&MAGIC).half(VERSION).half(ORDER_MARK).bytes(&uuid.0.to_le_bytes());
        to.words(&self.name.words()).word(self.next.get()).word(self.digest.0).word(self.kept);
        to.half(self.is_brought.into());
        to.ended()
    }

    fn decode(bytes: &[u8], name: Name) -> Result<(Marked, Uuid), Bad> {
        let same = |field, found: u64, expected: u64| Bad::unless_same(field, found, expected);
        same("bytes of a bookmark", bytes.len() as u64, BYTES as u64)?;
        let from = Reader(bytes);
        same("magic", from.word(0), u64::from_le_bytes(MAGIC))?;
        same("byte order mark", from.half(12).into(), ORDER_MARK.into())?;
        same("format version", from.half(8).into(), VERSION.into())?;
        let crc = crc32c::crc32c(&bytes[..BYTES - 4]);
        same("checksum", crc.into(), from.half(BYTES - 4).into())?;
        let flags = from.half(88);
        Bad::unless(flags <= 1, "flags", flags.into(), 1)?;
        let found = Name::from_words(std::array::from_fn(|i| from.word(32 + 8 * i)));
        Bad::unless(found == name, "name", found.words()[0], name.words()[0])?;
        let uuid = Uuid(u128::from(from.word(16)) | u128::from(from.word(24)) << 64);
        let (next, digest, kept) = (Seq::new(from.word(64)), Digest(from.word(72)), from.word(80));
        Ok((Marked { name, next, digest, kept, is_brought: flags == 1 }, uuid))
    }
}

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} needs index {} and what follows", self.name.as_str(), self.next)
    }
}

/// A registered reader's place in a journal. What is from there on is not [pruned](super::prune), whether the reader lives
/// or not; one that was restarted goes on there. Of a reader that does not come back it has to be
/// [forgotten](Self::forget).
///
/// ```no_run
/// use seriatim::journal::Bookmark;
///
/// let mut bookmark = Bookmark::open("/var/lib/orders", "billing")?;
/// let mut replay = bookmark.replay()?;
/// while let Some(record) = replay.next()? {
///     println!("{:?}", record.payload); // done with, in a place that survives this process
///     if record.seq.get() % 1_000 == 999 {
///         bookmark.keep(replay.position(), replay.digest())?;
///     }
/// }
/// bookmark.keep(replay.position(), replay.digest())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Bookmark {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    name: Name,
    uuid: Uuid,
    marked: Option<Marked>,
    _lock: Guard,
}

impl Bookmark {
    /// That of a reader. Nothing is kept for one that is new before it says where it [is](Self::keep).
    ///
    /// # Errors
    /// There is no journal; another process reads under that name; the bookmark is damaged, or of another region.
    pub fn open(dir: impl AsRef<Path>, name: &str) -> Result<Bookmark, BookmarkError> {
        Self::open_on(Arc::new(Local), dir.as_ref(), name)
    }

    pub(super) fn open_on(disk: Arc<dyn Disk>, dir: &Path, name: &str) -> Result<Bookmark, BookmarkError> {
        #[cfg(feature = "crash-points")]
        crate::crash::arm();
        let (name, uuid) = (Name::new(name)?, kept::identity(&*disk, dir)?.origin.uuid);
        let lock = take(&*disk, dir, name)?;
        let marked = read(&*disk, dir, name, uuid)?;
        Ok(Bookmark { disk, dir: dir.into(), name, uuid, marked, _lock: lock })
    }

    /// Its reader's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The index that its reader needs next; `None` if it has never said.
    #[must_use]
    pub fn next(&self) -> Option<Seq> {
        self.marked.map(|marked| marked.next)
    }

    /// The digest of all before [`next`](Self::next).
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.marked.map(|marked| marked.digest)
    }

    /// The journal from there on; from its beginning if its reader has never said where it is.
    ///
    /// # Errors
    /// The journal no longer has what is needed, or other commands before it; or it cannot be read.
    pub fn replay(&self) -> Result<Replay, BookmarkError> {
        let replay = Replay::open_on(self.disk.clone(), &self.dir, true)?;
        let Some(marked) = self.marked else { return Ok(replay) };
        let replay = replay.from(marked.next)?;
        marked.is_of(&self.dir, replay.digest())?;
        Ok(replay)
    }

    /// Says what is needed next; the digest is that of all before it. When it returns it stays, whatever happens, and
    /// nothing from there on is pruned.
    ///
    /// # Errors
    /// The journal no longer has that index, which is possible when it is the first that is said, or goes back; the file
    /// system failed. What was kept before is kept then, or this is.
    pub fn keep(&mut self, next: Seq, digest: Digest) -> Result<(), BookmarkError> {
        self.set(Marked { name: self.name, next, digest, kept: kept::now(), is_brought: false })
    }

    fn set(&mut self, marked: Marked) -> Result<(), BookmarkError> {
        let (disk, dir, next) = (&*self.disk, &*self.dir, marked.next);
        let goes_on = self.marked.is_some_and(|marked| marked.next <= next);
        let _lock = if goes_on { None } else { Some(self.hold(next)?) };
        let (new, path) = (path_of(dir, self.name, NEW_SUFFIX), path_of(dir, self.name, SUFFIX));
        if let Err(error) = self.write(&marked, &new, &path) {
            // Its room is wanted; if this fails as well, whoever sets or prunes next does it.
            let _ = disk.remove(&new);
            return Err(error);
        }
        // Whoever prunes from now on goes by this, whether it is known to stay or not.
        self.marked = Some(marked);
        crash_point!("bookmark.named");
        disk.sync_dir(dir).map_err(io_error(dir, "sync directory"))?;
        crash_point!("bookmark.kept");
        Ok(())
    }

    /// Writes it, and gives it its name.
    fn write(&self, marked: &Marked, new: &Path, path: &Path) -> Result<(), BookmarkError> {
        let file = self.disk.create(new).map_err(io_error(new, "create"))?;
        write_all(&*file, &mut [IoSlice::new(&marked.encode(self.uuid))], 0)
            .map_err(io_error(new, "write"))?;
        crash_point!("bookmark.written");
        file.sync(true).map_err(io_error(new, "sync"))?;
        crash_point!("bookmark.synced");
        self.disk.rename(new, path).map_err(io_error(path, "name"))
    }

    /// Whoever prunes waits; and the index is there.
    fn hold(&self, next: Seq) -> Result<Guard, BookmarkError> {
        let (disk, dir) = (&*self.disk, &self.dir);
        let lock = kept::hold_retention(disk, dir, PATIENCE)?;
        let lock = lock.ok_or_else(|| BookmarkError::Busy { dir: dir.clone() })?;
        let first = kept::first_index(disk, dir)?;
        if next < first {
            return Err(ReplayError::Pruned { dir: dir.clone(), seq: next, first }.into());
        }
        Ok(lock)
    }

    /// Removes it: nothing is kept for this reader any more.
    ///
    /// # Errors
    /// The file system failed.
    pub fn remove(self) -> Result<(), BookmarkError> {
        remove(&*self.disk, &self.dir, self.name).map(|_| ())
    }

    /// Removes the bookmark of a reader that does not come back, whether it can be read or not; whether there was one.
    ///
    /// # Errors
    /// A process reads under that name; the file system failed.
    pub fn forget(dir: impl AsRef<Path>, name: &str) -> Result<bool, BookmarkError> {
        let (disk, dir, name) = (&Local, dir.as_ref(), Name::new(name)?);
        #[cfg(feature = "crash-points")]
        crate::crash::arm();
        kept::identity(disk, dir)?;
        let _lock = take(disk, dir, name)?;
        remove(disk, dir, name)
    }

    /// All readers that have said where they are, by name. Those whose bookmarks cannot be read are errors.
    ///
    /// # Errors
    /// There is no journal, or the directory cannot be read.
    pub fn list(dir: impl AsRef<Path>) -> Result<Vec<Result<Marked, BookmarkError>>, ReplayError> {
        let (disk, dir) = (&Local, dir.as_ref());
        let uuid = kept::identity(disk, dir)?.origin.uuid;
        list(disk, dir, uuid)
    }
}

/// Sets a bookmark as one that was brought, in the place of what was there, complete and for good, or not at all.
///
/// # Errors
/// A reader has the name here just now, who is not waited for, or has set it meanwhile; or as [`Bookmark::keep`].
pub(super) fn bring(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    had: Option<Marked>,
    marked: Marked,
    uuid: Uuid,
) -> Result<(), BookmarkError> {
    let name = marked.name;
    let lock = take_now(&**disk, dir, name)?;
    if read(&**disk, dir, name, uuid)? != had {
        return Err(BookmarkError::Taken { dir: dir.into(), name });
    }
    let mut bookmark = Bookmark { disk: disk.clone(), dir: dir.into(), name, uuid, marked: had, _lock: lock };
    bookmark.set(marked.brought())
}

/// Removes a bookmark that was brought, if it still is one; a reader that has its name keeps it.
pub(super) fn take_back(
    disk: &dyn Disk,
    dir: &Path,
    marked: Marked,
    uuid: Uuid,
) -> Result<(), BookmarkError> {
    let _lock = match take_now(disk, dir, marked.name) {
        Err(BookmarkError::Taken { .. }) => return Ok(()),
        lock => lock?,
    };
    match read(disk, dir, marked.name, uuid)? {
        Some(now) if now.is_brought => remove(disk, dir, marked.name).map(drop),
        _ => Ok(()),
    }
}

type Found = Vec<Result<Marked, BookmarkError>>;

/// All bookmarks of a directory. One that is removed meanwhile is left out.
pub(super) fn list(disk: &dyn Disk, dir: &Path, uuid: Uuid) -> Result<Found, ReplayError> {
    let mut files = disk.list(dir).map_err(|source| kept::io_error(dir, "look into", source))?;
    files.sort_unstable();
    let names = files.iter().filter_map(|file| name_of(file, SUFFIX));
    Ok(names.filter_map(|name| read(disk, dir, name, uuid).transpose()).collect())
}

fn lock_of(name: Name) -> LockOf {
    LockOf::Bookmark(crc32c::crc32c(name.as_str().as_bytes()))
}

/// Takes the name of a reader. Who has it may be dying, and is waited for.
fn take(disk: &dyn Disk, dir: &Path, name: Name) -> Result<Guard, BookmarkError> {
    let lock = lock_within(disk, dir, lock_of(name), LINGER).map_err(io_error(dir, "lock"))?;
    lock.ok_or_else(|| BookmarkError::Taken { dir: dir.into(), name })
}

/// Takes the name of a reader, and waits for nobody.
fn take_now(disk: &dyn Disk, dir: &Path, name: Name) -> Result<Guard, BookmarkError> {
    let lock = disk.lock_at(dir, lock_of(name)).map_err(io_error(dir, "lock"))?;
    lock.ok_or_else(|| BookmarkError::Taken { dir: dir.into(), name })
}

/// What a reader's bookmark says, if it has one.
fn read(disk: &dyn Disk, dir: &Path, name: Name, expected: Uuid) -> Result<Option<Marked>, BookmarkError> {
    let path = path_of(dir, name, SUFFIX);
    let mut view = match disk.view(&path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error(&path, "read"))?,
    };
    // One byte more than there is to be.
    let bytes = view.at(0, BYTES + 1).map_err(io_error(&path, "read"))?;
    let (marked, found) = Marked::decode(bytes, name).map_err(|Bad { field, found, expected }| {
        let (offset, seq) = (0, Seq::ZERO);
        BookmarkError::Damaged(Damage { path: path.clone(), offset, seq, field, found, expected })
    })?;
    if found == expected {
        Ok(Some(marked))
    } else {
        Err(BookmarkError::OtherRegion { path, found, expected })
    }
}

fn remove(disk: &dyn Disk, dir: &Path, name: Name) -> Result<bool, BookmarkError> {
    let path = path_of(dir, name, SUFFIX);
    match disk.remove(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(io_error(&path, "remove"))?,
    }
    crash_point!("bookmark.removed");
    disk.sync_dir(dir).map_err(io_error(dir, "sync directory"))?;
    crash_point!("bookmark.forgotten");
    Ok(true)
}

/// Where the bookmark of a reader lies. What a file cannot be called is written as `%` and its code.
fn path_of(dir: &Path, name: Name, suffix: &str) -> PathBuf {
    dir.join(name.as_str().replace('%', "%25").replace('/', "%2f") + suffix)
}

/// Whose bookmark has such a file, if one can have it.
fn name_of(file: &OsStr, suffix: &str) -> Option<Name> {
    let escaped = file.to_str()?.strip_suffix(suffix)?;
    let name = Name::new(&escaped.replace("%2f", "/").replace("%25", "%")).ok()?;
    let is_escaped = path_of(Path::new(""), name, suffix).as_os_str() == file;
    is_escaped.then_some(name)
}

/// Removes what those left who died while they said where they are.
pub(super) fn sweep(disk: &dyn Disk, dir: &Path, is_dry: bool) -> Result<Vec<PathBuf>, BookmarkError> {
    let mut swept = Vec::new();
    for file in disk.list(dir).map_err(io_error(dir, "look into"))? {
        let Some(name) = name_of(&file, NEW_SUFFIX) else { continue };
        let (path, which) = (dir.join(file), lock_of(name));
        if is_dry {
            swept.extend((!disk.is_locked_at(dir, which)).then_some(path));
            continue;
        }
        let lock = disk.lock_at(dir, which).map_err(io_error(dir, "lock"))?;
        // Who has it lives, and is at it.
        let Some(_lock) = lock else { continue };
        match disk.remove(&path) {
            // Just given its name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => {
                other.map_err(io_error(&path, "remove"))?;
                swept.push(path);
            }
        }
    }
    Ok(swept)
}
