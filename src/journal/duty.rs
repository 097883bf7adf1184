//! [`Duty`]: what a directory with a journal is for, where that is not to be written by a region's journal.
//!
//! A standby's directory has a file `standby`, with the directory that it follows. Promoting takes it away, after the
//! directory that was followed has got a file `superseded`, with the one that goes on. Whoever has either is written by no
//! region's journal, and no region is restored from it: of two directories with one history there is at each moment at
//! most one with which a region can go on.
//!
//! Which standby that was is said by its path and by a number, drawn when it became one: a directory of another machine, or
//! one that has taken its place since, can have the same path.
//!
//! Both at once are those of a standby that was superseded and became the standby of the one that superseded it, and died
//! before the second file was gone; or, if they name two directories, of a standby whose own standby was promoted by force.
//! The latter is an error: nobody goes on there, and nobody follows into it but who says so.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use seriatim_ring::Seq;

use super::disk::{Disk, DiskFile, Local};
use super::error::{Damage, JournalError, ReplayError};
use super::format::{Bad, Fields, Reader};
use super::writer::{io_error, nonce, publish, write_all};
use crate::Digest;
use crate::region::header::Uuid;

const STANDBY: &str = "standby";
const SUPERSEDED: &str = "superseded";
/// One of both that is being made: between these stands a number of its own, of 16 digits. By force two processes may write
/// at once.
const NEW: [&str; 2] = ["duty-", ".new"];
const DUTY: u32 = u32::from_le_bytes(*b"duty");
/// The bytes before the path.
const FIXED: usize = 56;
/// No path is longer.
const LONGEST: u64 = 1 << 16;

/// What a directory is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Duty {
    /// A region's journal is written there, or nothing is there yet.
    #[default]
    Journal,
    /// A [`Standby`](super::Standby) follows another directory into it, and has not been promoted.
    Standby {
        /// The directory that is followed.
        source: PathBuf,
    },
    /// A standby of it was promoted, and goes on.
    Superseded {
        /// The standby's directory.
        by: PathBuf,
        /// The index at which that goes on.
        next: Seq,
        /// The digest of all before it.
        digest: Digest,
    },
}

impl Duty {
    /// What a directory is for. One that is not there is for a journal.
    ///
    /// # Errors
    /// The file that says it is damaged, it is both a standby and superseded by another directory than it follows, or the
    /// file system failed.
    pub fn of(dir: impl AsRef<Path>) -> Result<Duty, ReplayError> {
        Self::read(&Local, dir.as_ref())
    }

    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Duty, ReplayError> {
        match Duties::read(disk, dir)? {
            Duties { follows: None, superseded: None } => Ok(Duty::Journal),
            Duties { follows: None, superseded: Some(Word { next, digest, path: by, .. }) } => {
                Ok(Duty::Superseded { by, next, digest })
            }
            Duties { follows: Some(word), superseded: Some(by) } if !is_same(&word.path, &by.path) => {
                Err(ReplayError::TwoDuties { dir: dir.into(), followed: word.path, by: by.path })
            }
            Duties { follows: Some(word), .. } => Ok(Duty::Standby { source: word.path }),
        }
    }

    /// That a region's journal may be written there, and a region restored from there.
    pub(super) fn check(disk: &dyn Disk, dir: &Path) -> Result<(), JournalError> {
        let dir = dir.to_path_buf();
        match Self::read(disk, &dir)? {
            Duty::Journal => Ok(()),
            Duty::Standby { source: followed } => Err(JournalError::Standby { dir, followed }),
            Duty::Superseded { by, next, .. } => Err(JournalError::Superseded { dir, by, next }),
        }
    }

    /// Says, for good, what a directory is for from now on. Who dies meanwhile leaves it as it was, or with both files, and
    /// then it is a standby's. One that was superseded does not become a journal's: it follows the other one first.
    /// `number` is that of the standby that is spoken of.
    pub(super) fn write(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        uuid: Uuid,
        number: u64,
    ) -> Result<(), JournalError> {
        match self {
            Duty::Journal => {
                if let Some(Word { next, path: by, .. }) = Duties::read(disk, dir)?.superseded {
                    return Err(JournalError::Superseded { dir: dir.into(), by, next });
                }
                forget(disk, dir, STANDBY)
            }
            Duty::Standby { source } => follow(disk, dir, uuid, number, (source, 0)),
            Duty::Superseded { by, next, digest } => {
                let word = Word { next: *next, digest: *digest, number, path: by.clone() };
                keep(disk, dir, SUPERSEDED, &word.encode(uuid))
            }
        }
    }
}

/// Says, for good, that a directory is a standby's of that number, and which one it follows: that one's number, too, if it is
/// a standby's itself.
pub(super) fn follow(
    disk: &dyn Disk,
    dir: &Path,
    uuid: Uuid,
    number: u64,
    (source, its): (&Path, u64),
) -> Result<(), JournalError> {
    let word = Word { next: Seq::new(its), digest: Digest(0), number, path: source.into() };
    keep(disk, dir, STANDBY, &word.encode(uuid))?;
    forget(disk, dir, SUPERSEDED)
}

/// What one of the two files says.
#[derive(Clone, Debug)]
pub(super) struct Word {
    /// The index at which another one goes on, the digest there. Of a standby the former is the number of what it follows, if
    /// that was a standby's when it began to.
    pub(super) next: Seq,
    digest: Digest,
    /// Of the standby, which is this one or the one that goes on.
    pub(super) number: u64,
    /// The directory that is followed, or goes on.
    pub(super) path: PathBuf,
}

/// What the two files of a directory say.
pub(super) struct Duties {
    /// Which directory it follows.
    pub(super) follows: Option<Word>,
    /// Which one goes on.
    pub(super) superseded: Option<Word>,
}

impl Duties {
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Duties, ReplayError> {
        Ok(Duties {
            follows: read(disk, &dir.join(STANDBY))?,
            superseded: read(disk, &dir.join(SUPERSEDED))?,
        })
    }

    /// The number of this standby, drawn now if it has none yet.
    pub(super) fn number(&self) -> u64 {
        self.follows.as_ref().map_or_else(nonce, |word| word.number)
    }
}

impl Word {
    fn encode(&self, uuid: Uuid) -> Vec<u8> {
        let path = self.path.as_os_str().as_bytes();
        let mut to = Fields::with_capacity(FIXED + path.len());
        to.half(0).half(DUTY).words(&[uuid.0 as u64, (uuid.0 >> 64) as u64]);
        to.word(self.next.get()).word(self.digest.0).word(path.len() as u64).word(self.number);
        to.bytes(path);
        to.sealed(0)
    }
}

fn decode(bytes: &[u8]) -> Result<Word, Bad> {
    Bad::unless(bytes.len() >= FIXED, "bytes of a duty", bytes.len() as u64, FIXED as u64)?;
    let from = Reader(bytes);
    Bad::unless_same("tag of a duty", from.half(4).into(), DUTY.into())?;
    Bad::unless_same("checksum of a duty", crc32c::crc32c(&bytes[4..]).into(), from.half(0).into())?;
    Bad::unless_same("bytes of a path", from.word(40), (bytes.len() - FIXED) as u64)?;
    let path = OsString::from_vec(bytes[FIXED..].to_vec());
    let (next, digest, number) = (Seq::new(from.word(24)), Digest(from.word(32)), from.word(48));
    Ok(Word { next, digest, number, path: path.into() })
}

fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Word>, ReplayError> {
    let failed = |source| ReplayError::Io { path: path.into(), what: "read", source };
    let mut view = match disk.view(path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // It is the directory that is none.
        Err(source) if source.kind() == io::ErrorKind::NotADirectory => {
            let path = path.parent().unwrap_or(path).into();
            return Err(ReplayError::Io { path, what: "look into", source });
        }
        view => view.map_err(failed)?,
    };
    let len = view.bytes().min(FIXED as u64 + LONGEST) as usize;
    let decoded = decode(view.at(0, len).map_err(failed)?);
    let damage = |Bad { field, found, expected }| {
        let (path, seq) = (path.to_path_buf(), Seq::new(0));
        ReplayError::Damaged(Damage { path, offset: 0, seq, field, found, expected })
    };
    decoded.map(Some).map_err(damage)
}

fn keep(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), JournalError> {
    sweep(disk, dir);
    loop {
        let (new, path) = (dir.join(format!("{}{:016x}{}", NEW[0], nonce(), NEW[1])), dir.join(name));
        let file = disk.create(&new).map_err(io_error(&new, "create"))?;
        let written = write_all(&*file, &mut [IoSlice::new(bytes)], 0).map_err(io_error(&new, "write"));
        match written.and_then(|()| publish(disk, dir, &*file, &new, &path)) {
            Ok(()) => return Ok(()),
            // Another process took it for one that was left, which each does once.
            Err(JournalError::Io { source, what: "name", .. }) if is_swept(&source, &*file) => {}
            Err(error) => {
                // Its room is wanted; if this fails as well, who says it next does it.
                let _ = disk.remove(&new);
                return Err(error);
            }
        }
    }
}

fn is_swept(error: &io::Error, file: &dyn DiskFile) -> bool {
    error.kind() == io::ErrorKind::NotFound && file.is_named().is_ok_and(|is_named| !is_named)
}

/// Removes what those left who died while they said what the directory is for. Who is at it just now makes it anew.
fn sweep(disk: &dyn Disk, dir: &Path) {
    let is_new = |name: &OsString| {
        let number = name.to_str().and_then(|name| name.strip_prefix(NEW[0])?.strip_suffix(NEW[1]));
        number.is_some_and(|number| number.len() == 16 && number.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    for name in disk.list(dir).unwrap_or_default().into_iter().filter(is_new) {
        // It is in nobody's way: who says it next does it.
        let _ = disk.remove(&dir.join(name));
    }
}

fn forget(disk: &dyn Disk, dir: &Path, name: &str) -> Result<(), JournalError> {
    let path = dir.join(name);
    match disk.remove(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed.map_err(io_error(&path, "remove"))?,
    }
    disk.sync_dir(dir).map_err(io_error(dir, "sync directory"))
}

/// Whether two paths are of one directory.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| -> io::Result<PathBuf> { path.canonicalize() };
    one == other || canonical(one).ok().zip(canonical(other).ok()).is_some_and(|(a, b)| a == b)
}
