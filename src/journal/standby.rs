//! [`Standby`]: a second journal that follows one which is being written, and can take its place.
//!
//! ```text
//!  source: NNN.seg NNN.seg NNN.seg ◀── a living journal writes
//!                             │ read record by record: checksum, place, digest
//!                             ▼
//!                          staged ──▶ a handler, to keep an engine warm
//!                             │ one write for all that is there
//!                             ▼
//!  own:    NNN.seg NNN.seg NNN.seg    segments, syncs and recovery as of any journal
//! ```
//!
//! **It holds nobody up.** It reads files: the region does not know of it, and on another machine's disk nobody has to.
//! What it has is what the source had written, not what was acknowledged there, so it may be behind that, and, after the
//! source's machine has lost power, ahead: then it has what nobody was told to be durable, and says so.
//!
//! **What it still needs is not pruned.** It keeps a [`Bookmark`] beside its source, at the beginning of the segment there
//! that has what is durable here: whole segments are pruned, and all before one that was begun is on the disk there, too. It
//! stays when the standby ends, and goes when that is promoted. At a source that cannot be written to it does without.
//!
//! **Readers' bookmarks go along** ([`Carry`]), so that who read the source goes on in the standby's directory.
//!
//! **It goes on where its own directory ends.** Whenever it opens its source, at the start and after anything was wrong, the
//! digest there has to be its own. So it does not matter what became of the source meanwhile: rotated, sealed, mended,
//! away for a while, or come back as another history, of which nothing is taken.
//!
//! **Promoting** takes what the source still has, seals, leaves word in the source's directory that it is superseded, and
//! then takes away the word that this one is a standby's: in that order, so that no moment has two directories with which a
//! region can go on.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;

use super::JournalError;
use super::batch::Payload;
use super::bookmark::{Bookmark, BookmarkError};
use super::carry::{self, Carry};
use super::disk::{Disk, Local};
use super::duty::{Duties, Duty, Word, follow, is_same};
use super::error::ReplayError;
use super::format::{Head, Origin, Point};
use super::keeper::{LINGER, SyncPolicy};
use super::replay::{Record, Replay};
use super::segment::{self, Cut, Segment};
use super::world::{SeatOf, World};
use super::writer::{Shelf, Writer, lock};
use crate::Digest;
use crate::crash_point;
use crate::fork;
use crate::name::{Name, NameError};
use crate::region::header::Uuid;

/// How a standby is written.
#[derive(Clone, Debug)]
#[must_use]
pub struct StandbyOptions {
    segment_bytes: u64,
    sync: SyncPolicy,
    adopts: bool,
    name: Option<String>,
    promotes: bool,
}

impl Default for StandbyOptions {
    fn default() -> Self {
        let (segment_bytes, sync) = (64 << 20, SyncPolicy::default());
        StandbyOptions { segment_bytes, sync, adopts: false, name: None, promotes: false }
    }
}

impl StandbyOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many bytes of disk are reserved for a segment; default 64 MiB, at least 4 KiB.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// When what is written is synced; default [`SyncPolicy::Group`].
    pub fn sync(mut self, policy: SyncPolicy) -> Self {
        self.sync = policy;
        self
    }

    /// Whether it goes on in a directory whose journal is no standby's: a copy of the source's, or what was superseded and
    /// comes back; default no. It has to be of the same history, and to have nothing that the source has not: what it had
    /// beyond that would be lost.
    pub fn adopt(mut self, adopts: bool) -> Self {
        self.adopts = adopts;
        self
    }

    /// The name of its bookmark beside its source; by default one that follows from the path of its directory.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Whether it is opened to be [promoted](Standby::promote) at once; default no. What is wrong with its source is then for
    /// that to say, or to bear, and not for [`Standby::open`].
    pub fn promotes(mut self, promotes: bool) -> Self {
        self.promotes = promotes;
        self
    }
}

/// How far a standby is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// The index behind the last one that its source had when it was looked at last; none if that could not be yet.
    pub source_end: Option<Seq>,
    /// The index behind the last one that it has written.
    pub own_end: Seq,
    /// All before this is on its disk, for good.
    pub durable: Seq,
    /// What it cannot do, as it was said last.
    pub failing: Option<String>,
}

impl Lag {
    /// How many indexes it is behind, as far as is known.
    #[must_use]
    pub fn indexes(&self) -> Option<u64> {
        self.source_end.map(|end| end.get().saturating_sub(self.own_end.get()))
    }

    /// How many indexes it has that its source does not have, as far as is known: the source has lost them, or writes them
    /// anew.
    #[must_use]
    pub fn ahead(&self) -> Option<u64> {
        self.source_end.map(|end| self.own_end.get().saturating_sub(end.get()))
    }
}

/// A standby was promoted: its directory is a journal's, with which a region goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Promoted {
    /// Its directory.
    pub dir: PathBuf,
    /// The one that it followed.
    pub followed: PathBuf,
    /// The index at which a region goes on.
    pub next: Seq,
    /// The digest of all before it.
    pub digest: Digest,
    /// How many records it took from its source first.
    pub taken: u64,
    /// Where the source ended, as far as is known.
    pub source_end: Option<Seq>,
    /// The source's directory says that it is superseded: nobody goes on there.
    pub is_fenced: bool,
    /// Why that may not be all that the source had, where it was promoted by force.
    pub trouble: Option<String>,
    /// The source has another history: from some index on each of both has what the other one has not.
    pub has_diverged: bool,
    /// That index, if the source has another history and it is known.
    pub parted_at: Option<Seq>,
    /// Of each bookmark beside the source that is not here as it is there: which, and why.
    pub left: Vec<String>,
}

impl fmt::Display for Promoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Promoted { dir, followed, next, digest, taken, .. } = self;
        let followed = followed.display();
        write!(f, "promoted {}: it goes on at index {next} with digest {digest}", dir.display())?;
        if *taken > 0 {
            write!(f, ", {taken} of them taken just now")?;
        }
        if let Some(trouble) = &self.trouble {
            write!(f, "; BY FORCE: {trouble}; ")?;
            if self.has_diverged {
                self.say_where_they_part(f)?;
            } else {
                write!(f, "what {followed} had from index {next} on is LOST here")?;
            }
            match self.source_end {
                _ if self.has_diverged => {}
                Some(end) => {
                    let lost = end.get().saturating_sub(next.get());
                    write!(
                        f,
                        ", and may have been acknowledged there: {lost} of what was seen, {followed} \
                               ended at {end} then"
                    )?;
                }
                None => write!(f, ", and may have been acknowledged there: how much that is is not known")?,
            }
        }
        if !self.is_fenced {
            write!(
                f,
                "; {followed} does NOT say that it is superseded: see to it that nobody goes on there"
            )?;
        }
        self.left.iter().try_for_each(|left| write!(f, "; a bookmark did NOT go along: {left}"))
    }
}

impl Promoted {
    /// What each of both has alone.
    fn say_where_they_part(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Promoted { dir, followed, next, .. } = self;
        let (dir, followed) = (dir.display(), followed.display());
        let Some((at, end)) = self.parted_at.zip(self.source_end) else {
            return write!(
                f,
                "where the histories of {followed} and {dir} part is not known: what {followed} alone had is LOST here, and \
                 may have been acknowledged there"
            );
        };
        write!(
            f,
            "the histories part at index {at}: {at}..{end} of {followed} is LOST here, and may have been acknowledged \
             there; {at}..{next} is in {dir} alone"
        )
    }
}

/// A standby cannot follow, or not be promoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StandbyError {
    /// The source cannot be read. That may pass: the next call tries again.
    #[error("cannot follow: {0}")]
    Source(#[source] ReplayError),
    /// The standby's own journal cannot be written.
    #[error(transparent)]
    Own(#[from] JournalError),
    /// The source's directory and the standby's are one.
    #[error("{} cannot follow itself", dir.display())]
    Itself {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory has a journal that is no standby's: one that was promoted, for one.
    #[error(
        "{} has a journal that is no standby's (was it promoted?): follow into another directory, or say that this one is \
         to become a standby's (`follow --adopt`)",
        dir.display()
    )]
    NotAStandby {
        /// The directory.
        dir: PathBuf,
    },
    /// There is no standby in the directory that could be promoted.
    #[error("{} is no standby's: nothing in it says what it follows", dir.display())]
    NoStandby {
        /// The directory.
        dir: PathBuf,
    },
    /// The source has the journal of another region.
    #[error(
        "{} has the journal of region {found}, {} follows region {expected}",
        followed.display(), dir.display()
    )]
    OtherRegion {
        /// The source's directory.
        followed: PathBuf,
        /// The standby's.
        dir: PathBuf,
        /// Whose the source is.
        found: Uuid,
        /// Whose it had to be.
        expected: Uuid,
    },
    /// The source and the standby have different histories. After a loss of power the source went on with other commands
    /// than those that the standby had got of it, or the standby was promoted and went on by itself.
    #[error(
        "{} and {} have different histories: the digest before index {seq} is {found} there, {expected} here",
        followed.display(), dir.display()
    )]
    OtherHistory {
        /// The source's directory.
        followed: PathBuf,
        /// The standby's.
        dir: PathBuf,
        /// The index at which the standby ends.
        seq: Seq,
        /// The source's digest.
        found: Digest,
        /// The standby's.
        expected: Digest,
    },
    /// The source ends before the standby: it was written anew after an error, and the same comes again, which the next
    /// call sees; or it has lost what was not synced with a loss of power.
    #[error(
        "{} ends at index {source_end}, {} has what comes before {end}: it waits for the source to be as far",
        followed.display(), dir.display()
    )]
    Behind {
        /// The source's directory.
        followed: PathBuf,
        /// The standby's.
        dir: PathBuf,
        /// The index behind the last one of the source.
        source_end: Seq,
        /// The index behind the last one of the standby.
        end: Seq,
    },
    /// The directory was to become a standby's, and has what the source has not: it would be dropped, or be in the way.
    #[error(
        "{} ends at index {end}, expected {expected} at most: what it has from there on is not in {}, and would be lost; keep \
         it, and follow into an empty directory",
        dir.display(), followed.display()
    )]
    Ahead {
        /// The source's directory.
        followed: PathBuf,
        /// The one that was to become a standby's.
        dir: PathBuf,
        /// The index behind its last one.
        end: Seq,
        /// The index at which the source took its place; or the one behind the last one of the source.
        expected: Seq,
    },
    /// The source no longer has what comes next.
    #[error(
        "{} begins at index {first} now, {} ends at {next}: {next}..{first} was pruned there; follow into an empty \
         directory, or into a copy of the source (`follow --adopt`); promoted by force, {} goes on without it",
        followed.display(), dir.display(), dir.display()
    )]
    Pruned {
        /// The source's directory.
        followed: PathBuf,
        /// The standby's.
        dir: PathBuf,
        /// The index that is wanted next.
        next: Seq,
        /// The first one that is there.
        first: Seq,
    },
    /// Another standby of the source was promoted, and goes on: nothing more comes from the source.
    #[error(
        "{} was superseded at index {next} by {}: have {} follow that; or, if that one is not gone on with, promote {} by \
         force",
        followed.display(), by.display(), dir.display(), dir.display()
    )]
    Superseded {
        /// The source's directory.
        followed: PathBuf,
        /// The standby's.
        dir: PathBuf,
        /// The one that goes on.
        by: PathBuf,
        /// The index at which it does.
        next: Seq,
    },
    /// The source is a standby itself, so what it follows would not be told that it is superseded.
    #[error(
        "{} is itself a standby, of {}, which would not be told that {} takes its place: promote {}; or, if nobody goes on \
         in {}, promote {} by force",
        followed.display(), first.display(), dir.display(), followed.display(), first.display(), dir.display()
    )]
    Chained {
        /// The source's directory.
        followed: PathBuf,
        /// The standby's.
        dir: PathBuf,
        /// The one that the source follows.
        first: PathBuf,
    },
    /// A living journal writes the source: it is not superseded but by force.
    #[error("a journal writes into {}: end it first, or promote {} by force", followed.display(), dir.display())]
    Alive {
        /// The source's directory.
        followed: PathBuf,
        /// The standby's.
        dir: PathBuf,
    },
    /// The source cannot be looked at or told that it is superseded, so that nothing is known of who writes there.
    #[error(
        "{} is out of reach, so whether a journal writes there, or how far it came, is not known (if you know that nobody \
         does, promote {} by force): {why}",
        followed.display(), dir.display()
    )]
    OutOfReach {
        /// The source's directory.
        followed: PathBuf,
        /// The standby's.
        dir: PathBuf,
        /// What failed.
        #[source]
        why: Box<JournalError>,
    },
    /// No bookmark can be called that.
    #[error(transparent)]
    Name(#[from] NameError),
    /// This process is a forked child of the one that opened the standby.
    #[error("this standby was opened in the parent process, before a fork")]
    Forked,
}

impl From<ReplayError> for StandbyError {
    fn from(error: ReplayError) -> Self {
        StandbyError::Source(error)
    }
}

impl StandbyError {
    /// Whether it is the source that is not as it has to be, and may be again.
    fn is_of_source(&self) -> bool {
        matches!(self, StandbyError::Source(_) | StandbyError::Behind { .. })
    }

    /// Whether trying again may help.
    fn may_pass(&self) -> bool {
        let own = matches!(self, StandbyError::Own(JournalError::Io { .. } | JournalError::Unreadable(_)));
        own || self.is_of_source()
    }
}

/// The journal that is followed.
#[derive(Debug)]
struct Source {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// It, open at where the standby is.
    replay: Option<Replay>,
    /// Where it ended when it was looked at last.
    end: Option<Seq>,
}

/// Follows the journal in a directory into another one, and can take its place.
///
/// ```
/// use seriatim::journal::{Journal, JournalOptions, Standby, StandbyOptions};
/// use seriatim::{Config, Producer, Region, Sequencer, SequencerConfig};
///
/// # let temp = std::env::temp_dir().join(format!("standby-{}", std::process::id()));
/// # let (orders, spare, path) = (temp.join("orders"), temp.join("spare"), temp.join("region"));
/// let region = Region::anonymous(&Config::new())?;
/// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
/// let mut journal = Journal::open(&region, &orders, &JournalOptions::new())?;
/// let mut producer = Producer::attach(&region, "p")?;
/// let index = producer.submit(0, b"keep me")?;
/// producer.wait_sequenced(index)?;
/// while journal.poll()? > 0 {}
///
/// let mut standby = Standby::open(&orders, &spare, &StandbyOptions::new())?;
/// while standby.poll()? > 0 {} // or `run` on a thread, or `seriatim journal follow`
/// assert_eq!(standby.lag().indexes(), Some(0));
///
/// // The primary is gone: the standby takes its place.
/// drop((journal, producer, sequencer, region));
/// let promoted = standby.promote(false)?;
/// let restored = Region::restore(&path, &spare, &Config::new())?;
/// assert_eq!((restored.next, restored.digest), (promoted.next, promoted.digest));
/// assert!(Region::restore(&path, &orders, &Config::new()).is_err()); // it was superseded
/// # std::fs::remove_dir_all(&temp)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// When it is dropped, its directory is as if its process had been killed: it goes on from there.
#[derive(Debug)]
pub struct Standby {
    source: Source,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    origin: Origin,
    /// Tells it from others of the same path.
    number: u64,
    writer: Writer,
    sync: SyncPolicy,
    last_sync: Instant,
    cut: Option<Cut>,
    failing: Option<String>,
    mark: Mark,
    carry: Carry,
    /// What the source has is taken whoever superseded it.
    is_promoted: bool,
}

impl Standby {
    /// Follows the journal in `source` into `dir`: from its first index on if there is nothing there yet, otherwise from
    /// where a standby ended there before. A source that cannot be read yet is waited for then, by [`run`](Self::run).
    ///
    /// # Errors
    /// Another process writes into `dir`; it has a journal that is no standby's; the source is of another region or another
    /// history, no longer has what comes next, or cannot be read and there is nothing in `dir` yet; or the file system
    /// failed.
    pub fn open(
        source: impl AsRef<Path>,
        dir: impl AsRef<Path>,
        options: &StandbyOptions,
    ) -> Result<Standby, StandbyError> {
        let (source, dir) = (absolute(source.as_ref()), absolute(dir.as_ref()));
        if is_same(&source, &dir) {
            return Err(StandbyError::Itself { dir });
        }
        Self::open_on((Arc::new(Local), &source), (Arc::new(Local), &dir), options)
    }

    /// Follows again what the standby in a directory followed.
    ///
    /// # Errors
    /// There is none; or as [`open`](Self::open).
    pub fn resume(dir: impl AsRef<Path>, options: &StandbyOptions) -> Result<Standby, StandbyError> {
        let dir = dir.as_ref();
        match Duty::of(dir).map_err(JournalError::from)? {
            Duty::Standby { source } => Self::open(source, dir, options),
            _ if !dir.exists() => {
                let source = io::Error::from_raw_os_error(libc::ENOENT);
                Err(JournalError::Io { path: dir.into(), what: "look into", source }.into())
            }
            _ => Err(StandbyError::NoStandby { dir: dir.into() }),
        }
    }

    pub(super) fn open_on(
        (source_disk, source): (Arc<dyn Disk>, &Path),
        (disk, dir): (Arc<dyn Disk>, &Path),
        options: &StandbyOptions,
    ) -> Result<Standby, StandbyError> {
        #[cfg(feature = "crash-points")]
        crate::crash::arm();
        fork::watch();
        let shelf = Shelf::lock(disk.clone(), dir, None, LINGER)?;
        let duties = Duties::read(&*disk, dir).map_err(JournalError::from)?;
        if !options.adopts {
            // Both a standby's and superseded is what has to be decided first.
            Duty::read(&*disk, dir).map_err(JournalError::from)?;
        }
        if duties.follows.is_none() && !options.adopts && has_journal(&*disk, dir)? {
            return Err(StandbyError::NotAStandby { dir: dir.into() });
        }
        let name = match &options.name {
            Some(name) => Name::new(name)?,
            None => name_for(dir),
        };
        let shelf = shelf.recovered()?;
        let cut = shelf.ending.as_ref().and_then(|ending| ending.cut.clone());
        let (at, world, origin) = match (&shelf.ending, shelf.origin()) {
            (Some(ending), Some(origin)) => (ending.point, ending.world.clone(), *origin),
            _ => beginning(&*source_disk, source)?,
        };
        let mut source = Source { disk: source_disk, dir: source.into(), replay: None, end: None };
        let opened = source.open(&at, &origin, dir);
        // One that is promoted has written nothing since that was looked at.
        let is_looked_at = duties.follows.is_some() && options.promotes && !options.adopts;
        let becomes_one = duties.follows.is_none() || duties.superseded.is_some();
        if shelf.ending.is_some() && becomes_one && !is_looked_at {
            // It becomes a standby's now: what it alone has is looked for while it still says what it was.
            adoptable(opened, duties.superseded.as_ref().map(|word| word.next))?;
            carry::hand_over((&source.disk, &source.dir), (&disk, dir), name, origin.uuid)?;
        } else if let Err(error) = opened
            && !error.is_of_source()
            && !options.promotes
        {
            return Err(error);
        }
        let number = duties.number();
        if duties.follows.as_ref().map(|word| &word.path) != Some(&source.dir) || duties.superseded.is_some()
        {
            follow(&*disk, dir, origin.uuid, number, (&source.dir, source.number()))?;
        }
        crash_point!("standby.named");
        let writer = shelf.begin(at, world, origin, options.segment_bytes)?;
        let carry = Carry::new(name, origin.uuid);
        let mut mark = Mark { name, bookmark: None, wanted: None, due: None, said: None };
        if !options.promotes {
            // What comes next is not to be pruned while it has not come.
            mark.set(&source, writer.durable());
        }
        let (sync, last_sync, dir) = (options.sync, Instant::now(), dir.into());
        Ok(Standby {
            mark,
            carry,
            source,
            disk,
            dir,
            origin,
            number,
            writer,
            sync,
            last_sync,
            cut,
            failing: None,
            is_promoted: false,
        })
    }

    /// The directory that it follows.
    #[must_use]
    pub fn source(&self) -> &Path {
        &self.source.dir
    }

    /// The index that is written next.
    #[must_use]
    pub fn next(&self) -> Seq {
        self.writer.written().next
    }

    /// The digest of all before [`next`](Self::next).
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(self.writer.written().digest)
    }

    /// All before this is on its disk, for good; with [`SyncPolicy::Off`] as of the last segment that was sealed.
    #[must_use]
    pub fn durable(&self) -> Seq {
        self.writer.durable().next
    }

    /// The name of its bookmark beside its source, if it could be set there.
    #[must_use]
    pub fn bookmark(&self) -> Option<&str> {
        self.mark.bookmark.as_ref().map(Bookmark::name)
    }

    /// What was cut off the end of what a predecessor left.
    #[must_use]
    pub fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// How far it is, as of the last look.
    #[must_use]
    pub fn lag(&self) -> Lag {
        Lag {
            source_end: self.source.end,
            own_end: self.next(),
            durable: self.durable(),
            failing: self.failing.clone(),
        }
    }

    /// Takes what its source has, at most about a mebibyte, writes it, and syncs it if it is time; how many records were
    /// written.
    ///
    /// # Errors
    /// [`StandbyError`]: nothing is lost then, and the next call tries again. [`StandbyError::Superseded`] comes when all is
    /// taken that the source has.
    pub fn poll(&mut self) -> Result<u64, StandbyError> {
        self.poll_with(|_| {})
    }

    /// As [`poll`](Self::poll), and hands each record out, once and in order: also those that are for others or for
    /// nobody. It is handed out before it is written here. So whoever keeps what he makes of it beyond this process
    /// has to wait for [`durable`](Self::durable); and what lies before the [index](Self::next) at which this one began is
    /// read with [`Replay`] from its directory.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_with(&mut self, mut each: impl FnMut(&Record<'_>)) -> Result<u64, StandbyError> {
        if fork::is_child() {
            return Err(StandbyError::Forked);
        }
        let before = self.next();
        let taken = self.take(&mut each);
        // What came before something that is wrong does not wait.
        match self.keep().and(taken) {
            Ok(()) => self.succeed(),
            Err(error) => return Err(self.fail(error)),
        }
        Ok(self.next().since(before))
    }

    /// Takes what the source has, as far as there is room. Where there is nothing to take, somebody else may go on.
    fn take(&mut self, each: &mut dyn FnMut(&Record<'_>)) -> Result<(), StandbyError> {
        let before = self.writer.staged_to().next;
        let taken = self.take_what_is_there(each);
        if self.is_promoted || self.writer.staged_to().next != before {
            return taken;
        }
        match self.source.goes_on(&self.dir, self.number) {
            Err(error @ StandbyError::Superseded { .. }) => Err(error),
            looked => taken.and(looked),
        }
    }

    fn take_what_is_there(&mut self, each: &mut dyn FnMut(&Record<'_>)) -> Result<(), StandbyError> {
        let is_new = self.source.look(self.writer.staged_to(), &self.origin, &self.dir)?;
        match self.stage(each) {
            // Who writes there may have replaced what was open: it is looked at anew before that is called damage.
            Err(StandbyError::Source(_)) if !is_new => {
                self.source.open(self.writer.staged_to(), &self.origin, &self.dir)?;
                self.stage(each)
            }
            staged => staged,
        }
    }

    fn stage(&mut self, each: &mut dyn FnMut(&Record<'_>)) -> Result<(), StandbyError> {
        let (is_grouped, writer) = (self.sync == SyncPolicy::Group, &mut self.writer);
        let Some(replay) = &mut self.source.replay else { return Ok(()) };
        while writer.has_room() {
            let Some((head, seat, record)) = replay.next_whole()? else { break };
            let has_written = make_room(writer, &head, seat, is_grouped)?;
            writer.stage(&head, Payload::Here(record.payload));
            crash_point!("standby.staged");
            each(&record);
            if has_written {
                break;
            }
        }
        Ok(())
    }

    /// Writes what is staged, and syncs it if it is time.
    fn keep(&mut self) -> Result<(), StandbyError> {
        if self.writer.staged_to() != self.writer.written() {
            self.writer.commit(None, self.sync == SyncPolicy::Group)?;
        }
        if let SyncPolicy::Every(time) = self.sync
            && self.writer.durable() != self.writer.written()
            && self.last_sync.elapsed() >= time
        {
            self.writer.sync()?;
            self.last_sync = Instant::now();
        }
        Ok(())
    }

    fn succeed(&mut self) {
        if !self.is_promoted {
            self.mark.set(&self.source, self.writer.durable());
            let (source, own) = ((&self.source.disk, &*self.source.dir), (&self.disk, &*self.dir));
            self.carry.follow(source, own, self.writer.durable().next);
        }
        if self.failing.take().is_some() {
            tracing::warn!("{}: follows again, from index {} on", self.dir.display(), self.next());
        }
    }

    /// Says what is wrong, once as long as it is the same.
    fn fail(&mut self, error: StandbyError) -> StandbyError {
        if !matches!(error, StandbyError::Own(_)) {
            // Whatever it is: it is looked at anew, and compared.
            self.source.replay = None;
            (self.mark.bookmark, self.mark.wanted) = (None, None);
        }
        let text = error.to_string();
        if error.may_pass() && self.failing.as_ref() != Some(&text) {
            tracing::warn!("{text}");
        }
        self.failing = Some(text);
        error
    }

    /// Follows until `stop`, which is told how far it is, says so: asked at least each 100 ms. What fails is tried again as
    /// long as that makes sense. [`close`](Self::close) or [`promote`](Self::promote) comes next.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), where trying again does not help.
    pub fn run(&mut self, stop: impl FnMut(&Lag) -> bool) -> Result<(), StandbyError> {
        self.run_with(stop, |_| {})
    }

    /// As [`run`](Self::run), and hands each record out as [`poll_with`](Self::poll_with) does.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with(
        &mut self,
        mut stop: impl FnMut(&Lag) -> bool,
        mut each: impl FnMut(&Record<'_>),
    ) -> Result<(), StandbyError> {
        let mut pause = SHORTEST;
        loop {
            let is_asked = stop(&self.lag());
            match self.poll_with(&mut each) {
                Ok(_) if is_asked => return Ok(()),
                Ok(0) => {
                    thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST);
                }
                Ok(_) => pause = SHORTEST,
                Err(error) if is_asked && error.is_of_source() => return Ok(()),
                Err(error) if is_asked || !error.may_pass() => return Err(error),
                Err(_) => thread::sleep(LONGEST),
            }
        }
    }

    /// Writes out and seals. The next one goes on from there.
    ///
    /// # Errors
    /// The file system failed: its directory is then as one that was killed leaves it.
    pub fn close(mut self) -> Result<(), StandbyError> {
        if fork::is_child() {
            return Err(StandbyError::Forked);
        }
        self.keep()?;
        self.writer.seal()?;
        if self.failing.is_none() {
            let (source, own) = ((&self.source.disk, &*self.source.dir), (&self.disk, &*self.dir));
            self.carry.look(source, own, self.writer.durable().next);
        }
        Ok(())
    }

    /// Takes its source's place: takes all that this still has, seals, says in the source's directory that it is superseded,
    /// and makes its own one that a region goes on with: `Region::restore(path, dir)`, `seriatim sequence REGION --journal DIR`.
    ///
    /// That is the same region, with its number, next index and digest. Whoever still serves the old one, or is attached to
    /// it, has to be ended *by the operator*, and its file removed: nobody there asks a directory. What is promised is that
    /// no journal goes on in the source's directory and no region is restored from it, so nothing more becomes durable
    /// there; and where its journal held the order, that soon stands still.
    ///
    /// By force it does so also if a journal still writes the source, or that cannot be read or written: then
    /// [`Promoted::trouble`] says why, and nobody but the operator knows what the source has beyond it, and that nobody
    /// goes on there. Of a source that has another history, [`Promoted::parted_at`] says from which index on.
    ///
    /// The bookmarks of the source's readers are brought along before it says so, as they are there by then: who reads goes on
    /// here. Which could not be, and why, [`Promoted::left`] says. By force, from a source that cannot be read, those are here
    /// that came along while it was followed.
    ///
    /// Where the source's directory is no journal's, but superseded by another one or a standby itself, this takes force, too:
    /// another directory may be gone on with then, which is not told of this one. What a source says of who superseded it
    /// stays as it is.
    ///
    /// # Errors
    /// Without force, [`StandbyError::Alive`], [`StandbyError::Superseded`], [`StandbyError::Chained`] and
    /// [`StandbyError::OutOfReach`], and whatever [`poll`](Self::poll) says; its own directory cannot be written, or was
    /// superseded itself. It is a standby's then as before.
    pub fn promote(self, force: bool) -> Result<Promoted, StandbyError> {
        self.promote_with(force, |_| {})
    }

    /// As [`promote`](Self::promote), and hands each record out that it still takes.
    ///
    /// # Errors
    /// As [`promote`](Self::promote).
    pub fn promote_with(
        mut self,
        force: bool,
        each: impl FnMut(&Record<'_>),
    ) -> Result<Promoted, StandbyError> {
        if fork::is_child() {
            return Err(StandbyError::Forked);
        }
        let (before, mut trouble) = (self.next(), None);
        self.is_promoted = true;
        // Kept until all is done: no journal begins there meanwhile.
        let locked = lock(&*self.source.disk, &self.source.dir, LINGER);
        let locked = locked.map_err(|why| self.out_of_reach(why)).and_then(|locked| {
            locked.ok_or_else(|| StandbyError::Alive {
                followed: self.source.dir.clone(),
                dir: self.dir.clone(),
            })
        });
        let locked = bear(locked, force, &mut trouble)?;
        // Only now: who superseded it held that lock.
        let goes_on = self.source.goes_on(&self.dir, self.number);
        let is_taken = matches!(goes_on, Err(StandbyError::Superseded { .. }));
        bear(goes_on.and_then(|()| self.source.is_first(&self.dir, self.number)), force, &mut trouble)?;
        let drained = match self.drain(locked.is_none(), each) {
            Err(error @ StandbyError::Behind { .. }) => match self.has_all() {
                // It has lost what it had not synced: all that is left of it is here.
                Ok(true) => Ok(()),
                has_all => has_all.and(Err(error)),
            },
            drained => drained,
        };
        let is_other = matches!(drained, Err(StandbyError::OtherRegion { .. }));
        let has_diverged =
            matches!(drained, Err(StandbyError::Behind { .. } | StandbyError::OtherHistory { .. }));
        let is_whole = drained.is_ok();
        bear(drained, force, &mut trouble)?;
        crash_point!("promote.taken");
        self.writer.seal()?;
        crash_point!("promote.sealed");
        let (next, digest) = (self.next(), self.digest());
        let left = if is_other { Vec::new() } else { self.bring_bookmarks(is_whole, force, &mut trouble)? };
        crash_point!("promote.marked");
        let duty = Duty::Superseded { by: self.dir.clone(), next, digest };
        let is_fenced = is_taken
            || !is_other && {
                let written = duty.write(&*self.source.disk, &self.source.dir, self.origin.uuid, self.number);
                bear(written.map_err(|why| self.out_of_reach(why)), force, &mut trouble)?.is_some()
            };
        crash_point!("promote.fenced");
        self.mark.remove(&self.source);
        Duty::Journal.write(&*self.disk, &self.dir, self.origin.uuid, self.number)?;
        crash_point!("promote.done");
        Ok(Promoted {
            dir: self.dir.clone(),
            followed: self.source.dir.clone(),
            next,
            digest,
            taken: next.since(before),
            source_end: self.source.end,
            is_fenced,
            trouble,
            has_diverged,
            parted_at: if has_diverged { self.parting() } else { None },
            left,
        })
    }

    /// Readers go on here: their bookmarks are here for good before anybody is told so. By force, those are that came along
    /// before.
    fn bring_bookmarks(
        &mut self,
        is_whole: bool,
        force: bool,
        trouble: &mut Option<String>,
    ) -> Result<Vec<String>, StandbyError> {
        let (source, own) = ((&self.source.disk, &*self.source.dir), (&self.disk, &*self.dir));
        let left = self.carry.finish(source, own, self.writer.durable().next, is_whole);
        Ok(bear(left, force, trouble)?.unwrap_or_default())
    }

    /// The index from which on its source has another history, as far as both can be read.
    fn parting(&self) -> Option<Seq> {
        let source = Replay::open_on(self.source.disk.clone(), &self.source.dir, false);
        let own = Replay::open_on(self.disk.clone(), &self.dir, false);
        parting(own.ok()?, source.ok()?).ok().flatten()
    }

    /// Whether a source that ends before this has the same history up to there.
    fn has_all(&self) -> Result<bool, StandbyError> {
        let source = Replay::open_on(self.source.disk.clone(), &self.source.dir, false)?;
        let own = Replay::open_on(self.disk.clone(), &self.dir, false).map_err(JournalError::from)?;
        if source.end() < own.first() || source.end() > own.end() {
            return Ok(false);
        }
        let own = own.from(source.end()).map_err(JournalError::from)?;
        Ok(own.digest() == source.end_digest())
    }

    fn out_of_reach(&self, why: JournalError) -> StandbyError {
        StandbyError::OutOfReach {
            followed: self.source.dir.clone(),
            dir: self.dir.clone(),
            why: Box::new(why),
        }
    }

    /// Looks at the source, and takes nothing.
    #[cfg(test)]
    pub(super) fn source_look(&mut self) -> Result<(), StandbyError> {
        self.source.look(self.writer.staged_to(), &self.origin, &self.dir).map(drop)
    }

    /// Takes all that the source has; of one that somebody writes, what it has now.
    fn drain(&mut self, is_alive: bool, mut each: impl FnMut(&Record<'_>)) -> Result<(), StandbyError> {
        self.source.replay = None;
        let mut left = self.poll_with(&mut each)?;
        let end = self.source.end;
        while left > 0 && (!is_alive || end.is_some_and(|end| self.next() < end)) {
            left = self.poll_with(&mut each)?;
        }
        Ok(())
    }
}

/// The first sleep when there is nothing to take.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest, and how long what failed is left alone.
const LONGEST: Duration = Duration::from_millis(50);

/// How long a bookmark is left alone that could not be set.
const AGAIN: Duration = Duration::from_secs(10);

/// Its bookmark beside its source.
#[derive(Debug)]
struct Mark {
    name: Name,
    bookmark: Option<Bookmark>,
    /// Where it is to be set when all before is durable: the beginning of a segment of the source, for what comes before that
    /// is on the disk there, too, and a loss of power there leaves no bookmark that is ahead of its journal.
    wanted: Option<Point>,
    /// When it is tried again.
    due: Option<Instant>,
    /// Why it could not be set, as it was said last.
    said: Option<String>,
}

impl Mark {
    /// Sets it, if its source has begun another segment and what comes before that is durable. Where that cannot be, it is
    /// said once, and the standby goes on without.
    fn set(&mut self, source: &Source, durable: &Point) {
        let Some(replay) = &source.replay else { return };
        let wanted = *self.wanted.get_or_insert(replay.segment_start());
        if durable.next < wanted.next {
            return;
        }
        self.wanted = None;
        let (next, digest) = (wanted.next, Digest(wanted.digest));
        let is_set = |bookmark: &Bookmark| bookmark.next() == Some(next) && bookmark.digest() == Some(digest);
        let is_early = self.due.is_some_and(|due| Instant::now() < due);
        if is_early || self.bookmark.as_ref().is_some_and(is_set) {
            return;
        }
        match self.keep(source, next, digest) {
            Ok(()) => (self.due, self.said) = (None, None),
            Err(error) => {
                (self.bookmark, self.due) = (None, Some(Instant::now() + AGAIN));
                self.say(source, error);
            }
        }
    }

    fn keep(&mut self, source: &Source, next: Seq, digest: Digest) -> Result<(), BookmarkError> {
        let mut bookmark = match self.bookmark.take() {
            Some(bookmark) => bookmark,
            None => self.open(source)?,
        };
        bookmark.keep(next, digest)?;
        self.bookmark = Some(bookmark);
        Ok(())
    }

    fn open(&self, source: &Source) -> Result<Bookmark, BookmarkError> {
        Bookmark::open_on(source.disk.clone(), &source.dir, self.name.as_str())
    }

    /// Takes it away: nothing more is needed there. Whoever forgets it by hand does the same.
    fn remove(&mut self, source: &Source) {
        let opened = self.bookmark.take().map_or_else(|| self.open(source), Ok);
        // A source that cannot be looked at is told of anyhow.
        if let Ok(bookmark) = opened
            && bookmark.next().is_some()
            && let Err(error) = bookmark.remove()
        {
            tracing::warn!(
                "{error}; `seriatim journal forget {} {}` does it",
                source.dir.display(),
                self.name.as_str()
            );
        }
    }

    fn say(&mut self, source: &Source, error: BookmarkError) {
        let text = error.to_string();
        if self.said.as_ref() != Some(&text) {
            tracing::warn!(
                "no bookmark {:?} is kept in {}, so pruning there does not wait for this standby: {text}",
                self.name.as_str(),
                source.dir.display()
            );
            self.said = Some(text);
        }
    }
}

/// The name of the bookmark of a standby in a directory: that of the directory, and what its whole path comes to.
fn name_for(dir: &Path) -> Name {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.into());
    let path = crc32c::crc32c(dir.as_os_str().as_encoded_bytes());
    let mut stem = String::new();
    for c in dir.file_name().unwrap_or_default().to_string_lossy().chars().filter(|c| !c.is_control()) {
        if stem.len() + c.len_utf8() > STEM {
            break;
        }
        stem.push(c);
    }
    Name::cut(&format!("standby-{path:08x}-{stem}"))
}

/// How much of a directory's name there is room for.
const STEM: usize = 15;

/// Whether a directory that is no standby's can become one: its source has all that it has. Until that is known it stays what it is.
fn adoptable(opened: Result<(), StandbyError>, superseded: Option<Seq>) -> Result<(), StandbyError> {
    match opened {
        Err(StandbyError::Behind { followed, dir, source_end, end }) => {
            let expected = superseded.map_or(source_end, |next| next.min(source_end));
            Err(StandbyError::Ahead { followed, dir, end, expected })
        }
        Err(StandbyError::OtherHistory { followed, dir, seq: end, found, expected }) => match superseded {
            Some(expected) if end > expected => Err(StandbyError::Ahead { followed, dir, end, expected }),
            _ => Err(StandbyError::OtherHistory { followed, dir, seq: end, found, expected }),
        },
        opened => opened,
    }
}

/// The index from which on two journals of one region differ: all before it is the same, in what both have. `None` if they
/// differ where the later one of both begins, so that it lies before that.
fn parting(mut one: Replay, mut other: Replay) -> Result<Option<Seq>, ReplayError> {
    let mut low = one.first().max(other.first()).get();
    let mut high = one.end().min(other.end()).get();
    if low > high {
        return Ok(None);
    }
    let mut at = low;
    let mut is_same_somewhere = false;
    loop {
        (one, other) = (one.from(Seq::new(at))?, other.from(Seq::new(at))?);
        // A digest is that of all before: once they differ they do from there on.
        match (one.digest() == other.digest(), is_same_somewhere) {
            (true, _) => (low, is_same_somewhere) = (at, true),
            (false, true) => high = at - 1,
            (false, false) => return Ok(None),
        }
        if low == high {
            return Ok(Some(Seq::new(low)));
        }
        at = low + (high - low).div_ceil(2);
    }
}

/// By force, what is wrong with the source is noted and borne.
fn bear<T>(
    result: Result<T, StandbyError>,
    force: bool,
    trouble: &mut Option<String>,
) -> Result<Option<T>, StandbyError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ StandbyError::Own(_)) => Err(error),
        Err(error) if force => {
            trouble.get_or_insert(borne(&error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What is wrong, without the advice to do what is being done.
fn borne(error: &StandbyError) -> String {
    match error {
        StandbyError::Alive { followed, .. } => format!("a journal writes into {}", followed.display()),
        StandbyError::OutOfReach { followed, why, .. } => format!(
            "{} is out of reach, so whether a journal writes there, or how far it came, is not known: {why}",
            followed.display()
        ),
        error => error.to_string(),
    }
}

/// Sees to it that a record can be staged, in a segment that says where its journal sat; whether what was staged had to be
/// written for that.
fn make_room(writer: &mut Writer, head: &Head, seat: SeatOf, sync: bool) -> Result<bool, JournalError> {
    if writer.is_seated(&seat) && writer.fits(head) {
        return Ok(false);
    }
    writer.commit(None, sync)?;
    writer.reseat(seat)?;
    if !writer.fits(head) {
        writer.rotate()?;
    }
    Ok(true)
}

impl Source {
    /// Sees to it that the source is open at a point, and looks at what has been written there since; whether it was opened
    /// anew.
    fn look(&mut self, at: &Point, origin: &Origin, dir: &Path) -> Result<bool, StandbyError> {
        if let Some(replay) = &mut self.replay
            && replay.position() == at.next
            && (replay.position() < replay.end() || replay.refresh().is_ok())
        {
            self.end = Some(replay.end());
            return Ok(false);
        }
        self.open(at, origin, dir).map(|()| true)
    }

    /// That nobody but the standby took the source's place.
    fn goes_on(&self, dir: &Path, number: u64) -> Result<(), StandbyError> {
        match Duties::read(&*self.disk, &self.dir)?.superseded {
            // Another one can have the same path, on another machine or by now.
            Some(Word { next, path: by, number: of, .. }) if of != number || !is_same(&by, dir) => {
                Err(StandbyError::Superseded { followed: self.dir.clone(), dir: dir.into(), by, next })
            }
            _ => Ok(()),
        }
    }

    /// Its number, if it is a standby's itself, as far as can be seen.
    fn number(&self) -> u64 {
        let word = Duties::read(&*self.disk, &self.dir).ok().and_then(|duties| duties.follows);
        word.map_or(0, |word| word.number)
    }

    /// That the source follows nobody but the standby, which was one already when that began.
    fn is_first(&self, dir: &Path, number: u64) -> Result<(), StandbyError> {
        match Duties::read(&*self.disk, &self.dir)?.follows {
            // Another one can have the same path, on another machine or by now.
            Some(Word { path: first, next: of, .. }) if of.get() != number || !is_same(&first, dir) => {
                Err(StandbyError::Chained { followed: self.dir.clone(), dir: dir.into(), first })
            }
            _ => Ok(()),
        }
    }

    /// Opens the source at a point, at which it has to have the same history.
    fn open(&mut self, at: &Point, origin: &Origin, dir: &Path) -> Result<(), StandbyError> {
        self.replay = None;
        // Not in place: the disk may be another machine's.
        let replay = Replay::open_on(self.disk.clone(), &self.dir, false)?;
        let (followed, dir) = (self.dir.clone(), dir.to_path_buf());
        let (found, expected) = (replay.origin().uuid, origin.uuid);
        if found != expected {
            return Err(StandbyError::OtherRegion { followed, dir, found, expected });
        }
        let (first, end, next) = (replay.first(), replay.end(), at.next);
        self.end = Some(end);
        if next < first {
            return Err(StandbyError::Pruned { followed, dir, next, first });
        }
        if next > end {
            return Err(StandbyError::Behind { followed, dir, source_end: end, end: next });
        }
        let replay = replay.from(next)?;
        let (found, expected) = (replay.digest(), Digest(at.digest));
        if found != expected {
            return Err(StandbyError::OtherHistory { followed, dir, seq: next, found, expected });
        }
        self.replay = Some(replay);
        Ok(())
    }
}

/// Where a source begins, what is known there of the order, and whose it is.
fn beginning(disk: &dyn Disk, dir: &Path) -> Result<(Point, World, Origin), StandbyError> {
    let failed = |source| ReplayError::Io { path: dir.into(), what: "look into", source };
    let firsts = segment::list(disk, dir).map_err(failed)?;
    let Some(&first) = firsts.first() else {
        return Err(ReplayError::Empty { dir: dir.into() }.into());
    };
    let segment = Segment::open(disk, dir, first, false, firsts.len() == 1)?;
    Ok((segment.header.start, segment.world, segment.header.origin))
}

fn has_journal(disk: &dyn Disk, dir: &Path) -> Result<bool, JournalError> {
    let failed = |source| JournalError::Io { path: dir.into(), what: "look into", source };
    Ok(!segment::list(disk, dir).map_err(failed)?.is_empty())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}
