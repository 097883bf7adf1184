//! [`prune`]: what a journal no longer has to have is removed.
//!
//! ```text
//! snapshots  beyond those that are kept                          names on the disk ─▶ the oldest one goes
//! segments   too old or too many, from the first on, until one   names on the disk ─▶ the first one goes ─▶ and again
//!            that a snapshot or a reader still needs
//! ```
//!
//! **From the first on, one at a time.** What is left has no gap at any moment: a segment goes when the removal of the one
//! before it is on the disk. **By what stays.** Before anything goes, all names that it was decided by are put on the disk:
//! the segment that follows, the snapshot that takes the place of an older one, the bookmark that has gone on. So a loss of
//! power never leaves an older bookmark or no snapshot beside a journal that was pruned by the newer one.
//!
//! **Who writes the journal removes segments, and nothing else**, a few at a time, for the order waits meanwhile: what its
//! [`Pruner`] goes by are names, bookmarks and the manifests of the snapshots that are to be kept, never their files. What is
//! the matter with those that were there when it began it has looked at then, before it held anybody up; those that came
//! later were looked at by who stored them. Old snapshots and leftovers wait for [`prune`], or who stores the next one.
//!
//! The last segment stays, whatever it has: it is where the journal goes on, and what a region is restored from.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use seriatim_ring::Seq;

use super::bookmark::{self, BookmarkError};
use super::disk::{Disk, Guard, Local, Node};
use super::error::ReplayError;
use super::kept::{self, PATIENCE};
use super::replay::Replay;
use super::segment::{self, SUFFIX, path_of};
use super::snapshots::{self, SnapshotError, Snapshots, Unnamed};
use crate::crash_point;
use crate::name::Name;

/// How much of a journal is kept: by default all of it, and the last two snapshots.
///
/// With several limits a segment goes by the first that it meets, but never one that a snapshot which is kept needs, for
/// what follows it, or a [bookmark](super::Bookmark).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Retention {
    keep_bytes: Option<u64>,
    keep_for: Option<Duration>,
    keep_snapshots: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { keep_bytes: None, keep_for: None, keep_snapshots: 2 }
    }
}

impl Retention {
    /// The default: no segment goes.
    pub fn new() -> Self {
        Self::default()
    }

    /// At most so many bytes of segments are kept, that which is being written included with all that is reserved for it.
    pub fn keep_bytes(mut self, bytes: u64) -> Self {
        self.keep_bytes = Some(bytes);
        self
    }

    /// Segments are kept whose last record was written at most so long ago; that is when the next one was begun.
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.keep_for = Some(time);
        self
    }

    /// So many snapshots are kept, the newest; at least 1. Default 2. What is damaged does not count, and stays.
    pub fn keep_snapshots(mut self, count: usize) -> Self {
        self.keep_snapshots = count;
        self
    }
}

/// A journal could not be pruned, or not as far as it was to be. What it has is whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PruneError {
    /// The journal cannot be read, or the file system failed.
    #[error(transparent)]
    Journal(#[from] ReplayError),
    /// A snapshot cannot be looked at or removed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A bookmark cannot be read: what its reader needs is not known, so nothing goes.
    #[error("nothing is pruned: {0}")]
    Bookmark(#[from] BookmarkError),
    /// Somebody else changes what is kept in the directory, and does not come to an end.
    #[error("another process changes what is kept in {}, and does not let go", dir.display())]
    Busy {
        /// The journal's directory.
        dir: PathBuf,
    },
}

/// Who needs what would have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// The snapshot at this index: without what follows it nobody can join from it.
    Snapshot(Seq),
    /// A reader, by its bookmark.
    Bookmark(Name),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Snapshot(seq) => write!(f, "the snapshot at index {seq}"),
            Holder::Bookmark(name) => write!(f, "the bookmark {:?}", name.as_str()),
        }
    }
}

/// What would have gone, and did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// Who needs it.
    pub by: Holder,
    /// The index from which on it needs all.
    pub at: Seq,
    /// How many segments stay for that alone.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { by, at, segments, bytes } = self;
        let (what, stay) = if *segments == 1 { ("segment", "stays") } else { ("segments", "stay") };
        write!(f, "{by} needs index {at} and what follows: {segments} {what}, {bytes} B, {stay} for it")
    }
}

/// A segment that went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrunedSegment {
    /// Its file.
    pub path: PathBuf,
    /// Its first index.
    pub first: Seq,
    /// The index behind its last one.
    pub end: Seq,
    /// How long the file was.
    pub bytes: u64,
}

/// What was removed, or would be.
#[derive(Debug)]
#[non_exhaustive]
pub struct Pruned {
    /// Segments, from the first on.
    pub segments: Vec<PrunedSegment>,
    /// Indexes of snapshots.
    pub snapshots: Vec<Seq>,
    /// What somebody left who died while he stored a snapshot, set a bookmark, or removed something.
    pub leftovers: Vec<PathBuf>,
    /// The first index that is there now.
    pub first: Seq,
    /// How many bytes of segments are left.
    pub bytes_left: u64,
    /// Who needs more than the limits ask for.
    pub held: Option<Held>,
    /// Snapshots that stay because they are damaged, or are of no use beside this journal. Those that are damaged are
    /// taken to need what their names say.
    pub odd: Vec<SnapshotError>,
}

/// Removes from a journal's directory what does not have to be there; also while the journal is being written, and beside
/// others who do.
///
/// # Errors
/// [`PruneError`]; what was removed until then is.
pub fn prune(dir: impl AsRef<Path>, retention: &Retention) -> Result<Pruned, PruneError> {
    let disk = Arc::new(Local);
    Pruning { patience: PATIENCE, ..Pruning::of(disk, dir.as_ref(), retention) }.run()
}

/// What [`prune`] would remove just now.
///
/// # Errors
/// As [`prune`].
pub fn would_prune(dir: impl AsRef<Path>, retention: &Retention) -> Result<Pruned, PruneError> {
    let disk = Arc::new(Local);
    Pruning { patience: PATIENCE, is_dry: true, ..Pruning::of(disk, dir.as_ref(), retention) }.run()
}

/// How many segments at most go in one go of who writes the journal: the order waits meanwhile.
const SOME: usize = 4;

/// What a journal that prunes by itself goes by.
#[derive(Debug)]
pub(super) struct Pruner {
    retention: Retention,
    /// Snapshots that were there when it began and that nobody can join from, as far as is known: they do not count.
    suspects: Vec<Seq>,
}

impl Pruner {
    /// Looks at all snapshots that are there; that can take a while.
    pub(super) fn new(disk: &Arc<dyn Disk>, dir: &Path, retention: Retention) -> Pruner {
        let names = segment::list_of(&**disk, dir, snapshots::SUFFIX).unwrap_or_default();
        let all = Retention { keep_snapshots: usize::MAX, ..retention };
        let looked = Snapshots::open_on(disk.clone(), dir).map_err(PruneError::from);
        let looked = looked.and_then(|snapshots| Pruning::of(disk.clone(), dir, &all).look(&snapshots));
        let sound = looked.map(|looked| looked.kept).unwrap_or_default();
        let suspects = names.into_iter().filter(|seq| !sound.contains(seq)).collect();
        Pruner { retention, suspects }
    }
}

/// Removes some segments, waiting for nobody, and not for long.
pub(super) fn prune_some(disk: &Arc<dyn Disk>, dir: &Path, pruner: &Pruner) -> Result<(), PruneError> {
    let pruning = Pruning { most: SOME, ..Pruning::of(disk.clone(), dir, &pruner.retention) };
    match pruning.run_some(&pruner.suspects) {
        Err(PruneError::Busy { .. }) => Ok(()),
        other => other,
    }
}

/// Who needs a journal from an index on.
type Need = (Seq, Holder);

/// One go.
pub(super) struct Pruning<'r> {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) retention: &'r Retention,
    pub(super) is_dry: bool,
    /// How many segments at most.
    pub(super) most: usize,
    pub(super) patience: Duration,
}

/// What is known of snapshots.
#[derive(Default)]
struct Looked {
    /// Those that can be joined from and stay.
    kept: Vec<Seq>,
    /// Those that need nothing of what is there.
    idle: Vec<Seq>,
    /// Those that are to go, oldest first.
    old: Vec<Seq>,
    odd: Vec<SnapshotError>,
}

impl<'r> Pruning<'r> {
    pub(super) fn of(disk: Arc<dyn Disk>, dir: &Path, retention: &'r Retention) -> Pruning<'r> {
        Pruning {
            disk,
            dir: dir.into(),
            retention,
            is_dry: false,
            most: usize::MAX,
            patience: Duration::ZERO,
        }
    }

    pub(super) fn run(&self) -> Result<Pruned, PruneError> {
        #[cfg(feature = "crash-points")]
        crate::crash::arm();
        let (disk, dir) = (&*self.disk, &*self.dir);
        let snapshots = Snapshots::open_on(self.disk.clone(), dir)?;
        let mut leftovers = kept::sweep(disk, dir, self.is_dry)?;
        leftovers.extend(bookmark::sweep(disk, dir, self.is_dry)?);
        let looked = self.remove_snapshots(&snapshots)?;
        let firsts = segment::list(disk, dir).map_err(|source| kept::io_error(dir, "look into", source))?;
        let first = firsts.first().copied().unwrap_or_default();
        let mut pruned = Pruned {
            segments: Vec::new(),
            snapshots: Vec::new(),
            leftovers,
            first,
            bytes_left: 0,
            held: None,
            odd: Vec::new(),
        };
        self.remove_segments(&snapshots, &looked, &firsts, &mut pruned)?;
        (pruned.snapshots, pruned.odd) = (looked.old, looked.odd);
        Ok(pruned)
    }

    /// Removes segments alone, and looks at no snapshot's files.
    fn run_some(&self, suspects: &[Seq]) -> Result<(), PruneError> {
        #[cfg(feature = "crash-points")]
        crate::crash::arm();
        let (disk, dir) = (&*self.disk, &*self.dir);
        let firsts = segment::list(disk, dir).map_err(|source| kept::io_error(dir, "look into", source))?;
        let sizes = match self.retention.keep_bytes {
            Some(_) => firsts.iter().map(|&first| self.bytes(first)).collect::<Result<Vec<_>, _>>()?,
            None => Vec::new(),
        };
        let goes = self.beyond(&firsts, &sizes)?;
        if goes > 0 {
            let snapshots = Snapshots::open_on(self.disk.clone(), dir)?;
            let _lock = self.hold()?;
            let looked = self.look_at_manifests(&snapshots, suspects, firsts[0])?;
            let need = self.first_need(&snapshots, &looked)?.map(|(seq, _)| seq);
            for at in (0..goes).take_while(|at| need.is_none_or(|seq| seq >= firsts[at + 1])) {
                self.remove(&path_of(dir, firsts[at], SUFFIX))?;
            }
        }
        // Also what was removed before by one that failed then.
        self.sync()?;
        crash_point!("prune.done");
        Ok(())
    }

    /// Which snapshots need nothing, as far as their names and what they say of themselves go. In doubt one is needed, and
    /// counts for none.
    fn look_at_manifests(
        &self,
        snapshots: &Snapshots,
        suspects: &[Seq],
        first: Seq,
    ) -> Result<Looked, PruneError> {
        let (mut looked, mut left) = (Looked::default(), self.retention.keep_snapshots.max(1));
        for seq in snapshots.list()?.into_iter().rev() {
            if left == 0 {
                looked.old.push(seq);
            } else if seq < first {
                looked.idle.push(seq);
            } else if !suspects.contains(&seq) && snapshots.has_manifest(seq)? {
                looked.kept.push(seq);
                left -= 1;
            }
        }
        Ok(looked)
    }

    /// Keeps others from changing what has to stay; who only looks keeps nobody.
    fn hold(&self) -> Result<Option<Guard>, PruneError> {
        if self.is_dry {
            return Ok(None);
        }
        let lock = kept::hold_retention(&*self.disk, &self.dir, self.patience)?;
        lock.map(Some).ok_or_else(|| PruneError::Busy { dir: self.dir.clone() })
    }

    /// All names that are there stay.
    fn sync(&self) -> Result<(), PruneError> {
        let synced = self.disk.sync_dir(&self.dir);
        synced.map_err(|source| kept::io_error(&self.dir, "sync directory", source).into())
    }

    fn remove_snapshots(&self, snapshots: &Snapshots) -> Result<Looked, PruneError> {
        let lock = self.hold()?;
        let looked = self.look(snapshots)?;
        if !self.is_dry && !looked.old.is_empty() {
            self.sync()?;
            crash_point!("prune.snapshots");
            let mut unnamed = Vec::new();
            let renamed = looked.old.iter().try_for_each(|&seq| {
                unnamed.push(snapshots.unname(seq)?);
                Ok::<_, SnapshotError>(())
            });
            // Taking them apart takes as long as they have files, and nobody has to wait for that.
            drop(lock);
            unnamed.into_iter().try_for_each(Unnamed::remove)?;
            renamed?;
        }
        Ok(looked)
    }

    /// Which snapshots there are, newest first: those that can be joined from are counted.
    fn look(&self, snapshots: &Snapshots) -> Result<Looked, PruneError> {
        let mut looked = Looked::default();
        let seqs = snapshots.list()?;
        if seqs.is_empty() {
            return Ok(looked);
        }
        let mut replay = Replay::open_on(self.disk.clone(), &self.dir, false)?;
        let mut left = self.retention.keep_snapshots.max(1);
        for seq in seqs.into_iter().rev() {
            let snapshot = match snapshots.get(seq) {
                Ok(snapshot) => snapshot,
                Err(SnapshotError::NotThere { .. }) => continue,
                Err(error @ (SnapshotError::Damaged(_) | SnapshotError::OtherRegion { .. })) => {
                    looked.odd.push(error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let (dir, first, end) = (self.dir.clone(), replay.first(), replay.end());
            let fits = if seq < first || seq > end {
                Err(ReplayError::NotThere { dir, seq, first, end }.into())
            } else {
                replay = replay.from(seq)?;
                snapshot.is_of(replay.digest())
            };
            match fits {
                Ok(()) if left > 0 => {
                    looked.kept.push(seq);
                    left -= 1;
                }
                Ok(()) => looked.old.push(seq),
                Err(error) => {
                    looked.idle.push(seq);
                    looked.odd.push(error);
                }
            }
        }
        looked.old.reverse();
        Ok(looked)
    }

    fn remove_segments(
        &self,
        snapshots: &Snapshots,
        looked: &Looked,
        firsts: &[Seq],
        pruned: &mut Pruned,
    ) -> Result<(), PruneError> {
        let sizes = firsts.iter().map(|&first| self.bytes(first)).collect::<Result<Vec<_>, _>>()?;
        let goes = self.beyond(firsts, &sizes)?;
        pruned.bytes_left = sizes.iter().sum();
        for at in 0..goes.min(self.most) {
            let (first, end, bytes) = (firsts[at], firsts[at + 1], sizes[at]);
            let _lock = self.hold()?;
            let need = self.first_need(snapshots, looked)?;
            if let Some((at_index, by)) = need.filter(|&(seq, _)| seq < end) {
                let (segments, bytes) = (goes - at, sizes[at..goes].iter().sum());
                pruned.held = Some(Held { by, at: at_index, segments, bytes });
                break;
            }
            let path = path_of(&self.dir, first, SUFFIX);
            let is_ours = self.is_dry || self.remove(&path)?;
            pruned.bytes_left -= bytes;
            pruned.first = end;
            if is_ours {
                pruned.segments.push(PrunedSegment { path, first, end, bytes });
            }
        }
        if !self.is_dry {
            // Also what was removed before by one that failed then.
            self.sync()?;
            crash_point!("prune.done");
        }
        Ok(())
    }

    /// Removes a segment, if nobody else was faster.
    fn remove(&self, path: &Path) -> Result<bool, PruneError> {
        // Also that the one before it is gone.
        self.sync()?;
        crash_point!("prune.synced");
        match self.disk.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(|source| kept::io_error(path, "remove", source))?,
        }
        crash_point!("prune.removed");
        Ok(true)
    }

    /// How long a segment's file is; nothing if it is gone.
    fn bytes(&self, first: Seq) -> Result<u64, PruneError> {
        let path = path_of(&self.dir, first, SUFFIX);
        match self.disk.node(&path) {
            Ok(Node::File(bytes)) => Ok(bytes),
            Ok(_) => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(kept::io_error(&path, "look at", error).into()),
        }
    }

    /// How many segments, from the first on, are beyond what is to be kept. The last one never is.
    fn beyond(&self, firsts: &[Seq], sizes: &[u64]) -> Result<usize, PruneError> {
        let (mut goes, most) = (0, firsts.len().saturating_sub(1).min(self.most));
        if let Some(bytes) = self.retention.keep_bytes {
            let mut left: u64 = sizes.iter().sum();
            while goes < most && left > bytes {
                left -= sizes[goes];
                goes += 1;
            }
        }
        if let Some(time) = self.retention.keep_for {
            let oldest = kept::now().saturating_sub(time.as_secs());
            while goes < most && self.ended(firsts[goes + 1])? < oldest {
                goes += 1;
            }
        }
        Ok(goes)
    }

    /// When the segment before one ended.
    fn ended(&self, next: Seq) -> Result<u64, PruneError> {
        match kept::header_of(&*self.disk, &self.dir, next) {
            // That one is gone itself.
            Err(error) if segment::is_pruned(&*self.disk, &self.dir, next, &error).is_some() => Ok(0),
            other => Ok(other?.created),
        }
    }

    /// The first index that anybody needs, with all that follow.
    fn first_need(&self, snapshots: &Snapshots, looked: &Looked) -> Result<Option<Need>, PruneError> {
        let needs = |seq: &Seq| !looked.idle.contains(seq) && !looked.old.contains(seq);
        let mut all: Vec<Need> = Vec::new();
        all.extend(snapshots.list()?.into_iter().filter(needs).map(|seq| (seq, Holder::Snapshot(seq))));
        for marked in bookmark::list(&*self.disk, &self.dir, snapshots.uuid())? {
            let marked = marked?;
            all.push((marked.next, Holder::Bookmark(marked.name)));
        }
        Ok(all.into_iter().min_by_key(|(seq, _)| *seq))
    }
}
