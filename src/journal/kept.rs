//! What snapshots, bookmarks and pruning share: whose journal a directory has, what is left of who died, and the order
//! in which names appear and vanish.
//!
//! Everything here gets its name when it is complete and synced, in one step, and loses it in one step before it is taken
//! apart. Whoever removes something first has all names that it looked at put on the disk: what it found to be needed no
//! more is so after a loss of power, too.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim_ring::Seq;

use super::disk::{Disk, Guard, LockOf, Node, lock_within};
use super::error::{Damage, ReplayError};
use super::format::{Bad, HEADER_BYTES, Header, Reader};
use super::segment::{self, SUFFIX, path_of};

/// How long somebody else who changes what is kept is waited for: each does for the time of a few syncs, and takes apart what
/// it removed when it has let go.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How often something is looked at again that was pruned while it was looked at.
pub(super) const LOOKS: usize = 1_000;

/// The end of the name of what is being made, or taken apart; before it stand an index, and the number of a lock that is
/// held meanwhile.
const UNFINISHED: &str = ".part";

pub(super) fn io_error(path: &Path, what: &'static str, source: io::Error) -> ReplayError {
    ReplayError::Io { path: path.into(), what, source }
}

/// What a segment's header says; looks at nothing else of it.
pub(super) fn header_of(disk: &dyn Disk, dir: &Path, first: Seq) -> Result<Header, ReplayError> {
    let path = path_of(dir, first, SUFFIX);
    let failed = |source| io_error(&path, "read", source);
    let mut view = disk.view(&path, false).map_err(failed)?;
    let bytes = view.at(0, HEADER_BYTES).map_err(failed)?;
    let whole = Bad::unless_same("bytes of a header", bytes.len() as u64, HEADER_BYTES as u64);
    let header = whole.and_then(|()| Header::decode(bytes)).map(|(header, _)| header);
    header.map_err(|Bad { field, found, expected }| {
        ReplayError::Damaged(Damage { path: path.clone(), offset: 0, seq: first, field, found, expected })
    })
}

/// The header of a journal's last segment: whose journal it is.
pub(super) fn identity(disk: &dyn Disk, dir: &Path) -> Result<Header, ReplayError> {
    let mut looks = 0;
    loop {
        let firsts = segment::list(disk, dir).map_err(|source| io_error(dir, "look into", source))?;
        let Some(&last) = firsts.last() else { return Err(ReplayError::Empty { dir: dir.into() }) };
        match header_of(disk, dir, last) {
            Err(error) if looks < LOOKS && segment::is_pruned(disk, dir, last, &error).is_some() => {
                looks += 1
            }
            other => return other,
        }
    }
}

/// The first index that a journal has.
pub(super) fn first_index(disk: &dyn Disk, dir: &Path) -> Result<Seq, ReplayError> {
    let firsts = segment::list(disk, dir).map_err(|source| io_error(dir, "look into", source))?;
    firsts.first().copied().ok_or_else(|| ReplayError::Empty { dir: dir.into() })
}

/// Keeps everybody else from changing what has to stay; `None` if somebody does not let go.
pub(super) fn hold_retention(
    disk: &dyn Disk,
    dir: &Path,
    patience: Duration,
) -> Result<Option<Guard>, ReplayError> {
    lock_within(disk, dir, LockOf::Retention, patience).map_err(|source| io_error(dir, "lock", source))
}

/// Where something that belongs to an index lies until it has its name, or while it is taken apart, and the lock that
/// says that somebody is at it.
pub(super) fn unfinished(disk: &dyn Disk, dir: &Path, at: Seq) -> Result<(PathBuf, Guard), ReplayError> {
    loop {
        let number = number();
        let lock = disk.lock_at(dir, LockOf::Snapshot(number));
        if let Some(lock) = lock.map_err(|source| io_error(dir, "lock", source))? {
            return Ok((dir.join(format!("{:020}-{number:08x}{UNFINISHED}", at.get())), lock));
        }
    }
}

/// The number of the lock of something unfinished, by its name.
fn number_of(name: &OsStr) -> Option<u32> {
    let (index, number) = name.to_str()?.strip_suffix(UNFINISHED)?.split_once('-')?;
    let is_index = index.len() == 20 && index.bytes().all(|digit| digit.is_ascii_digit());
    let is_number =
        number.len() == 8 && number.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if is_index && is_number { u32::from_str_radix(number, 16).ok() } else { None }
}

/// Removes what those left who died while they made or removed something; what that was. With `is_dry` it is only named.
pub(super) fn sweep(disk: &dyn Disk, dir: &Path, is_dry: bool) -> Result<Vec<PathBuf>, ReplayError> {
    let mut swept = Vec::new();
    for name in disk.list(dir).map_err(|source| io_error(dir, "look into", source))? {
        let Some(number) = number_of(&name) else { continue };
        let (path, which) = (dir.join(name), LockOf::Snapshot(number));
        if is_dry {
            swept.extend((!disk.is_locked_at(dir, which)).then_some(path));
            continue;
        }
        let lock = disk.lock_at(dir, which).map_err(|source| io_error(dir, "lock", source))?;
        // Who has it lives, and is not done.
        let Some(_lock) = lock else { continue };
        if let Err(error) = remove_all(disk, &path) {
            // Somebody who was at it has just finished.
            if error.kind() == io::ErrorKind::NotFound {
                continue;
            }
            return Err(io_error(&path, "remove", error));
        }
        swept.push(path);
    }
    Ok(swept)
}

/// Removes a directory with all that is in it.
pub(super) fn remove_all(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if disk.node(path)? != Node::Dir {
        return disk.remove(path);
    }
    for name in disk.list(path)? {
        remove_all(disk, &path.join(name))?;
    }
    disk.remove_dir(path)
}

/// All that is below a directory, by its path from there: what is in a directory comes after it.
pub(super) fn walk(disk: &dyn Disk, root: &Path) -> Result<Vec<(PathBuf, Node)>, (PathBuf, io::Error)> {
    let (mut found, mut dirs) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = dirs.pop() {
        let path = root.join(&dir);
        let mut names = disk.list(&path).map_err(|error| (path.clone(), error))?;
        names.sort_unstable();
        for name in names {
            let below = dir.join(name);
            let path = root.join(&below);
            let node = disk.node(&path).map_err(|error| (path.clone(), error))?;
            if node == Node::Dir {
                dirs.push(below.clone());
            }
            found.push((below, node));
        }
    }
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// A number that hardly anybody else draws.
fn number() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) as u32
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// That time; the latest there is for one that no clock shows.
pub(super) fn time(seconds: u64) -> SystemTime {
    const LAST: u64 = i64::MAX as u64 / 2;
    UNIX_EPOCH + Duration::from_secs(seconds.min(LAST))
}

/// Fields as they come, of bytes that may be fewer.
pub(super) struct Cursor<'b>(pub(super) &'b [u8]);

impl<'b> Cursor<'b> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn word(&mut self) -> Option<u64> {
        self.bytes(8).map(|bytes| Reader(bytes).word(0))
    }

    pub(super) fn half(&mut self) -> Option<u32> {
        self.bytes(4).map(|bytes| Reader(bytes).half(0))
    }
}
