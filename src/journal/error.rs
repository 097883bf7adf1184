//! What goes wrong with a journal.

use std::fmt;
use std::io;
use std::path::PathBuf;

use seriatim_ring::Seq;

use crate::error::AttachError;
use crate::fold::{Corrupt, Stopped};
use crate::region::file::RegionLost;
use crate::region::header::Uuid;
use crate::region::spill::Unmapped;

/// Something in a segment that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The segment's file.
    pub path: PathBuf,
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    /// The index that cannot be read because of it, or at which it was met.
    pub seq: Seq,
    /// Which field.
    pub field: &'static str,
    /// Its value.
    pub found: u64,
    /// What it had to be.
    pub expected: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { path, offset, seq, field, found, expected } = self;
        let path = path.display();
        write!(
            f,
            "{path} is damaged at offset {offset}, index {seq}: {field} is {found:#x}, expected {expected:#x}"
        )
    }
}

/// A journal cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file system failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was to be done with it.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The directory is a standby's, and another one than it follows took its place: by force, for that is not the standby's
    /// to give.
    #[error(
        "{} is a standby of {}, and was superseded by {}: at most one of them is to be gone on with; if that is {}, \
         have this one follow it (`seriatim journal follow --adopt`)",
        dir.display(), followed.display(), by.display(), by.display()
    )]
    TwoDuties {
        /// The directory.
        dir: PathBuf,
        /// The one that it follows.
        followed: PathBuf,
        /// The one that took its place.
        by: PathBuf,
    },
    /// There is no segment in the directory.
    #[error("no journal in {}", dir.display())]
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// A record or what belongs to it is not what was written, and it is no torn tail.
    #[error("{0}")]
    Damaged(Damage),
    /// A segment does not go on where the one before it ends: one is missing, or of another history.
    #[error(
        "{} begins at index {found}, but the segment before it ends at {expected}: what is between is not there",
        path.display()
    )]
    Missing {
        /// The segment's file.
        path: PathBuf,
        /// Its first index.
        found: Seq,
        /// That it had to have.
        expected: Seq,
    },
    /// The segment that has the index was removed while it was read: nobody had said that it is needed.
    #[error("index {seq} was pruned from {}, which begins at index {first} now", dir.display())]
    Pruned {
        /// The directory.
        dir: PathBuf,
        /// The index.
        seq: Seq,
        /// The first index that is there.
        first: Seq,
    },
    /// The index is not in the journal.
    #[error("index {seq} is not in {}, which has {first}..{end}", dir.display())]
    NotThere {
        /// The directory.
        dir: PathBuf,
        /// The index.
        seq: Seq,
        /// The first index that is there.
        first: Seq,
        /// The index behind the last one.
        end: Seq,
    },
}

/// A journal cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system failed. Nothing is acknowledged as durable until the segment has been written anew; the next call
    /// tries that.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was to be done with it.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// What is in the directory cannot be gone on with.
    #[error(transparent)]
    Unreadable(#[from] ReplayError),
    /// Another journal writes there.
    #[error("another journal writes into {}: end it first", dir.display())]
    Busy {
        /// The directory.
        dir: PathBuf,
    },
    /// A standby follows another directory into it just now, or is being promoted.
    #[error(
        "a standby of {} writes into {}: end it first, that is the `seriatim journal follow` into there (SIGTERM)",
        followed.display(), dir.display()
    )]
    Followed {
        /// The directory.
        dir: PathBuf,
        /// The one that the standby follows.
        followed: PathBuf,
    },
    /// The directory has the journal of another region.
    #[error("{} has the journal of region {found}, this one is {expected}", dir.display())]
    OtherRegion {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: Uuid,
        /// Whose it had to be.
        expected: Uuid,
    },
    /// The directory is a standby's, which follows another one and has not been promoted.
    #[error(
        "{} is a standby of {}: promote it first (`seriatim journal promote`), when nobody writes there any more",
        dir.display(), followed.display()
    )]
    Standby {
        /// The directory.
        dir: PathBuf,
        /// The one that it follows.
        followed: PathBuf,
    },
    /// A standby of the directory was promoted, and goes on.
    #[error(
        "{} was superseded at index {next} by {}: go on there; or have this one follow that (`seriatim journal follow \
         --adopt`)",
        dir.display(), by.display()
    )]
    Superseded {
        /// The directory.
        dir: PathBuf,
        /// The one that goes on.
        by: PathBuf,
        /// The index at which it does.
        next: Seq,
    },
    /// What lies between the journal's end and what the region still has is in neither.
    #[error(
        "{} ends at index {end}, but the region no longer has what is before {start}: \
         that went by while no journal was there",
        dir.display()
    )]
    Gap {
        /// The directory.
        dir: PathBuf,
        /// The index behind the last one of the journal.
        end: Seq,
        /// The first one that can be had.
        start: Seq,
    },
    /// There is no journal in the directory, but the one whose gate is to be taken up has written.
    #[error(
        "there is no journal in {}, but the one before wrote what is before index {before}: go on in its directory, or \
         give its gate up (`sequence --without-journal`)",
        dir.display()
    )]
    Elsewhere {
        /// The directory.
        dir: PathBuf,
        /// All before this was written, in another one.
        before: Seq,
    },
    /// The journal has more than the region, or another digest for the same index.
    #[error(
        "{} has another history than the region: at index {seq} its digest is {found:016x}, that of the region {expected:016x}",
        dir.display()
    )]
    OtherHistory {
        /// The directory.
        dir: PathBuf,
        /// The index.
        seq: Seq,
        /// The journal's digest.
        found: u64,
        /// The region's.
        expected: u64,
    },
    /// After an error, what had been written but not synced could not be read back.
    #[error("{} no longer has the records {from}..{to}, which were written but not synced", path.display())]
    Vanished {
        /// The segment's file.
        path: PathBuf,
        /// The first of them.
        from: Seq,
        /// The index behind the last one.
        to: Seq,
    },
    /// Something in the order or a lane cannot be.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A payload that does not lie in its lane could not be mapped, for lack of memory or address space. Trying again may
    /// help.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    /// It cannot gate the region.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// There is no region to go on with.
    #[error(transparent)]
    Lost(#[from] RegionLost),
    /// This process is a forked child of the one that opened the journal.
    #[error("this journal was opened in the parent process, before a fork")]
    Forked,
}

impl From<Stopped> for JournalError {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Corrupt(corrupt) => corrupt.into(),
            Stopped::Unmapped(unmapped) => unmapped.into(),
        }
    }
}
