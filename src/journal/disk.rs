//! All that the journal asks of a file system, in one place: so that tests can be the disk.
//!
//! A file is written at offsets that the caller keeps, so a write that failed can be made again. What was written is there
//! after a loss of power when the file was synced after it, and what has a name is there under it when the directory was.

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::region::guard;
use crate::sys;

/// A lock, until it is dropped.
pub(crate) type Guard = Box<dyn Debug + Send>;

/// The locks of a journal's directory: bytes of its file `lock`, so that all end with their process and leave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LockOf {
    /// Who writes the journal.
    Journal,
    /// Who changes what has to stay: removes something, or says that something it is about to need is there.
    Retention,
    /// The reader whose name has this checksum.
    Bookmark(u32),
    /// Who makes the snapshot that has this number until it is complete.
    Snapshot(u32),
}

impl LockOf {
    fn byte(self) -> i64 {
        match self {
            LockOf::Journal => 0,
            LockOf::Retention => 1,
            LockOf::Bookmark(number) => 1 << 32 | i64::from(number),
            LockOf::Snapshot(number) => 2 << 32 | i64::from(number),
        }
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A file of so many bytes.
    File(u64),
    Dir,
    /// A link, a device, and whatever else there may be.
    Other,
}

/// A file system.
pub(crate) trait Disk: Debug + Send + Sync {
    /// Makes a directory with those above it, if it is not there.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes a directory in one that is there; there must not be anything of that name.
    fn make_new_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes one of a directory's locks, until the guard is dropped or its process ends; `None` if another has it.
    fn lock_at(&self, dir: &Path, which: LockOf) -> io::Result<Option<Guard>>;
    /// Whether somebody has one of a directory's locks.
    fn is_locked_at(&self, dir: &Path, which: LockOf) -> bool;
    /// Locks a directory for this journal.
    fn lock(&self, dir: &Path) -> io::Result<Option<Guard>> {
        self.lock_at(dir, LockOf::Journal)
    }
    /// Whether a journal has the directory locked.
    fn is_locked(&self, dir: &Path) -> bool {
        self.is_locked_at(dir, LockOf::Journal)
    }
    /// What is at a path; links are not followed.
    fn node(&self, path: &Path) -> io::Result<Node>;
    /// The names in a directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>>;
    /// A new file; one of that name is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file or a directory another name in the same directory. A file that had it has none any more; a directory
    /// that had it and has something in it is an error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Takes a file's name away.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory that has nothing in it.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// What is in a file, whoever wrote it, stays.
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    /// What names there are in the directory stays.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// A file to be read. `in_place` is for one that is not changed any more.
    fn view(&self, path: &Path, in_place: bool) -> io::Result<Box<dyn View>>;
}

/// A file that is written.
pub(crate) trait DiskFile: Debug + Send {
    /// Makes it so long, of zeroes, with room on the disk for all of it, if the file system can promise that.
    fn reserve(&self, bytes: u64) -> io::Result<()>;
    /// Writes some of these bytes; how many.
    fn write_at(&self, bytes: &[IoSlice<'_>], at: u64) -> io::Result<usize>;
    /// Cuts it, or fills it up with zeroes.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// What was written stays; with `all` also how long the file is now.
    fn sync(&self, all: bool) -> io::Result<()>;
    /// Has the system begin to put what was written there on the disk. That says nothing of whether it stays; an error says
    /// that it may not.
    fn write_back(&self, range: Range<u64>) -> io::Result<()>;
    /// Whether it still has a name: without one it is gone as soon as nobody has it open.
    fn is_named(&self) -> io::Result<bool>;
}

/// A file that is read.
pub(crate) trait View: Debug + Send {
    /// How long it was when it was opened.
    fn bytes(&self) -> u64;
    /// Bytes from an offset on; fewer than that many only at the end of the file.
    fn at(&mut self, offset: u64, len: usize) -> io::Result<&[u8]>;
    /// What is read from now on is what is there from now on.
    fn refresh(&mut self) {}
}

/// Takes one of a directory's locks; who has it is waited for, for so long.
pub(super) fn lock_within(
    disk: &dyn Disk,
    dir: &Path,
    which: LockOf,
    patience: Duration,
) -> io::Result<Option<Guard>> {
    let until = Instant::now() + patience;
    loop {
        match disk.lock_at(dir, which)? {
            None if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
            other => return Ok(other),
        }
    }
}

/// The machine's own.
#[derive(Debug)]
pub(crate) struct Local;

const LOCK: &str = "lock";

/// How files are made: for their owner alone, whatever the umask allows others.
fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

impl Disk for Local {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let parent = match dir.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Ok(()),
        };
        // Each name on the way has to stay, too, not the last one alone.
        self.make_dir(parent)?;
        // What is in it is for who may read the region: by default that is its owner alone.
        match DirBuilder::new().mode(0o700).create(dir) {
            // A file of that name, and no directory.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !dir.is_dir() => {
                Err(io::Error::from_raw_os_error(libc::ENOTDIR))
            }
            Err(error) if !dir.is_dir() => Err(error),
            _ => self.sync_dir(parent),
        }
    }

    fn make_new_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn lock_at(&self, dir: &Path, which: LockOf) -> io::Result<Option<Guard>> {
        let file = new_file().truncate(false).open(dir.join(LOCK))?;
        Ok(if sys::try_lock(&file, which.byte())? { Some(Box::new(file)) } else { None })
    }

    fn is_locked_at(&self, dir: &Path, which: LockOf) -> bool {
        File::open(dir.join(LOCK)).and_then(|file| sys::is_locked(&file, which.byte())).unwrap_or(false)
    }

    fn node(&self, path: &Path) -> io::Result<Node> {
        let found = fs::symlink_metadata(path)?;
        Ok(match found.file_type() {
            kind if kind.is_file() => Node::File(found.len()),
            kind if kind.is_dir() => Node::Dir,
            _ => Node::Other,
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = new_file().truncate(true).open(path)?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn view(&self, path: &Path, in_place: bool) -> io::Result<Box<dyn View>> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        if in_place && let Some(mapped) = Mapped::of(&file, bytes) {
            return Ok(Box::new(mapped));
        }
        Ok(Box::new(Window { file, bytes, held: Vec::new(), from: u64::MAX }))
    }
}

impl DiskFile for File {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        match sys::reserve(self, 0..bytes) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => File::set_len(self, bytes),
            other => other,
        }
    }

    fn write_at(&self, bytes: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        sys::write_at(self, bytes, at)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        File::set_len(self, bytes)
    }

    fn sync(&self, all: bool) -> io::Result<()> {
        if all { self.sync_all() } else { self.sync_data() }
    }

    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        sys::write_back(self, range)
    }

    fn is_named(&self) -> io::Result<bool> {
        Ok(self.metadata()?.nlink() > 0)
    }
}

/// In place. A page that cannot be read, or that somebody has cut off, is zeroes from then on, and an error.
#[derive(Debug)]
struct Mapped {
    /// Dropped before the mapping.
    guard: guard::Guard,
    map: memmap2::Mmap,
}

impl Mapped {
    /// `None` where it cannot be mapped, or not be guarded: then it is read piece by piece.
    fn of(file: &File, bytes: u64) -> Option<Mapped> {
        let map = (bytes > 0).then(|| sys::map_unchanging(file))?.ok()?;
        let guard = guard::Guard::new(map.as_ptr(), map.len()).ok()?;
        Some(Mapped { guard, map })
    }
}

impl View for Mapped {
    fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    fn at(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        if self.guard.is_hit() {
            return Err(io::Error::other("a page of it could not be read in place, or was cut off"));
        }
        Ok(part(&self.map, offset, len))
    }
}

/// Those of so many bytes that are there.
pub(super) fn part(bytes: &[u8], offset: u64, len: usize) -> &[u8] {
    let from = usize::try_from(offset).map_or(bytes.len(), |at| at.min(bytes.len()));
    &bytes[from..from.saturating_add(len).min(bytes.len())]
}

/// A piece at a time, in memory of one's own: of a file that may be changed by who has it open, and for who has to live
/// with a disk that cannot read it, which to a mapping is a signal.
#[derive(Debug)]
struct Window {
    file: File,
    bytes: u64,
    held: Vec<u8>,
    from: u64,
}

/// How much is read at once by who goes on where it was.
const PIECE: usize = 1 << 20;
/// And by who jumps: headers and footers.
const FIRST: usize = 4 << 10;

impl Window {
    fn fill(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let left = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let goes_on = offset >= self.from && offset <= self.from + self.held.len() as u64;
        let piece = if goes_on { PIECE } else { FIRST };
        // What was held is no longer, whatever happens.
        self.from = offset;
        self.held.clear();
        self.held.resize(len.max(piece).min(left), 0);
        let mut done = 0;
        while done < self.held.len() {
            match self.file.read_at(&mut self.held[done..], offset + done as u64) {
                // Cut meanwhile.
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.held.clear();
                    return Err(error);
                }
            }
        }
        self.held.truncate(done);
        Ok(())
    }
}

impl View for Window {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn at(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let end = offset.saturating_add(len as u64).min(self.bytes);
        if offset < self.from || end > self.from + self.held.len() as u64 {
            self.fill(offset, len)?;
        }
        Ok(part(&self.held, offset - self.from, len))
    }

    fn refresh(&mut self) {
        self.held.clear();
    }
}
