//! What may happen to a region's file while it is in use: it loses its name, another file gets it, it is shortened.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use super::Region;
use crate::error_log::ErrorCode;
use crate::liveness::Role;
use crate::wait::LONGEST_SLEEP;

/// What has become of the file of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileState {
    /// It is where it was.
    Here,
    /// Its path names no file any more: who is attached goes on, and nobody new finds it.
    Unlinked,
    /// Its path names another file now: who is attached goes on, and who comes finds the other one.
    Replaced,
    /// It was shortened: what lay behind its end is gone for everybody.
    Truncated {
        /// Bytes that it has now.
        found: u64,
    },
}

impl fmt::Display for FileState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileState::Here => f.pad("here"),
            FileState::Unlinked => f.pad("unlinked"),
            FileState::Replaced => f.pad("replaced"),
            FileState::Truncated { .. } => f.pad("truncated"),
        }
    }
}

/// There is no region to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionLost {
    /// Its file was shortened.
    #[error("region truncated: mapped {mapped} bytes, the file has {found} now")]
    Truncated {
        /// Bytes that are mapped.
        mapped: u64,
        /// Bytes that the file has now.
        found: u64,
    },
    /// Nobody serves it, and nobody can find it to serve it: who waits would wait for ever.
    #[error("region {file}: nobody serves it, and its path no longer leads to it")]
    Unserved {
        /// What became of its file.
        file: FileState,
    },
}

/// Looks in a row that find a region unserved, before who waits is told: a standby may be about to take over.
const UNSERVED_LOOKS: u32 = 10;

/// What one who waits in vain looks at now and then: whether there is a region to wait for.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    unserved: u32,
    /// When it looked last, for who waits in shorter steps.
    looked: Option<Instant>,
}

impl Vigil {
    /// To be called when a sleep of up to 100 ms ended without a wake-up.
    pub(crate) fn look(&mut self, region: &Region) -> Result<(), RegionLost> {
        let file = region.file_state();
        region.check_length(file)?;
        if file == FileState::Here || region.is_alive(Role::Sequencer) {
            self.unserved = 0;
            return Ok(());
        }
        self.unserved += 1;
        if self.unserved < UNSERVED_LOOKS { Ok(()) } else { Err(RegionLost::Unserved { file }) }
    }

    /// [Looks](Self::look), unless it has done so within 100 ms.
    pub(crate) fn glance(&mut self, region: &Region) -> Result<(), RegionLost> {
        let now = Instant::now();
        if self.looked.is_some_and(|looked| now - looked < LONGEST_SLEEP) {
            return Ok(());
        }
        self.looked = Some(now);
        self.look(region)
    }
}

/// What one who serves, or would, looks at now and then: it says once what became of the file.
#[derive(Debug)]
pub(crate) struct FileWatch {
    /// As said last.
    said: FileState,
}

impl FileWatch {
    pub(crate) fn new() -> FileWatch {
        FileWatch { said: FileState::Here }
    }

    /// Says what became of the file since the last look, through `tracing` and in the error log, as `who`.
    pub(crate) fn look(&mut self, region: &Region, who: &str) -> Result<(), RegionLost> {
        region.check()?;
        let file = region.file_state();
        if std::mem::replace(&mut self.said, file) == file {
            return Ok(());
        }
        let what = match file {
            FileState::Unlinked => "region unlinked: its path names no file, who is attached goes on",
            FileState::Replaced => "region unlinked: its path names another file, who is attached goes on",
            _ => "region is back under its path",
        };
        tracing::warn!("{:?}: {who}: {what}", region.path());
        region.record(ErrorCode::File, who, what, region.map().bytes());
        Ok(())
    }
}

impl Region {
    /// Looks at what has become of the region's file.
    #[must_use]
    pub fn file_state(&self) -> FileState {
        // What cannot be looked at is taken to be as it was: nobody is told of a loss on an error.
        let Ok(ours) = self.file().metadata() else { return FileState::Here };
        if ours.len() < self.map().bytes() || self.map().is_hit() {
            return FileState::Truncated { found: ours.len() };
        }
        // Behind /proc/<pid>/fd is what never had another name.
        if self.path().starts_with("/proc") {
            return FileState::Here;
        }
        match self.path().metadata() {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => FileState::Here,
            Ok(_) => FileState::Replaced,
            Err(error) if error.kind() == io::ErrorKind::NotFound => FileState::Unlinked,
            Err(_) => FileState::Here,
        }
    }

    fn check_length(&self, file: FileState) -> Result<(), RegionLost> {
        match file {
            FileState::Truncated { found } => {
                Err(RegionLost::Truncated { mapped: self.map().bytes(), found })
            }
            _ => Ok(()),
        }
    }

    /// That a payload beside the lanes is gone, which no look at the sections shows.
    pub(crate) fn shortened(&self, mapped: u64) -> RegionLost {
        let found = self.file().metadata().map_or(0, |file| file.len());
        RegionLost::Truncated { mapped, found }
    }

    /// Whether the region is whole: its file was not shortened.
    ///
    /// # Errors
    /// [`RegionLost::Truncated`].
    pub fn check(&self) -> Result<(), RegionLost> {
        self.check_length(self.file_state())
    }

    /// As [`check`](Self::check), but asks the kernel only if an access to this region has faulted: for handles that
    /// learn that one has, in whatever region.
    pub(crate) fn check_if_hit(&self) -> Result<(), RegionLost> {
        if self.map().is_hit() { self.check() } else { Ok(()) }
    }

    /// Guards this process against a shortened file: an access to what is gone finds zeroes instead of ending the
    /// process by SIGBUS, and the handles of the region return [`RegionLost::Truncated`] from their next call on.
    /// A payload that is read at that very moment may read as zeroes, too. Workers that
    /// [check payloads](crate::JoinOptions::check_payloads) hand out none that was gone when they checked it; but they
    /// lend it in place, so one that goes after the check reads as zeroes to the handler that has it, and the worker's
    /// next call is the error. Who must not act on that copies the payload first, and then asks [`check`](Self::check).
    ///
    /// It installs a handler for SIGBUS, at the first call in a process. The handler claims only what faults inside
    /// of guarded regions, and passes everything else on to the handler that was there before. For all clones of
    /// this region; not for memory of other libraries.
    ///
    /// ```
    /// use seriatim::{Config, Region, RegionLost};
    ///
    /// let path = std::env::temp_dir().join(format!("shortened-{}", std::process::id()));
    /// let region = Region::create(&path, &Config::new())?;
    /// region.guard()?;
    /// std::fs::OpenOptions::new().write(true).open(&path)?.set_len(0)?;
    /// let _ = region.snapshot(); // finds zeroes, and lives
    /// assert!(matches!(region.check(), Err(RegionLost::Truncated { found: 0, .. })));
    /// std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The handler cannot be installed, or 1024 regions are guarded.
    pub fn guard(&self) -> io::Result<()> {
        self.map().guard()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Config;

    #[test]
    fn what_became_of_the_file_is_said_once() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("region"), folder.path().join("moved"));
        let region = Region::create(&path, &Config::new()).unwrap();
        let mut watch = FileWatch::new();
        let mut look = || (0..3).for_each(|_| watch.look(&region, "who").unwrap());
        let said = || -> Vec<(u64, bool)> {
            let errors = region.errors().records;
            assert!(errors.iter().all(|error| error.code == ErrorCode::File && error.who == "who"));
            errors.iter().map(|error| (error.count, error.what.contains("names no file"))).collect()
        };
        look();
        assert_eq!(said(), [], "all is well");
        fs::rename(&path, &moved).unwrap();
        look();
        assert_eq!(said(), [(1, true)]);
        fs::rename(&moved, &path).unwrap();
        look();
        assert_eq!(said(), [(1, true), (1, false)], "it is back");
        fs::rename(&path, &moved).unwrap();
        look();
        assert_eq!(said(), [(1, false), (2, true)], "it is lost again");
    }
}
