//! A region from its journal: [`Region::restore`].
//!
//! ```text
//! journal locked, its end sealed ─▶ a region file without a name: the geometry, whose lanes they are, who gated,
//! the numbers that were given, and the order empty at the journal's end ─▶ an outdated file of that name removed
//! ─▶ named
//! ```
//!
//! **What goes on is the history, not the region.** Index, digest, who is current, how many commands of each producer there
//! are, and which numbers were given: all of it follows from the records, and the last segment's [world](World) has what is
//! before it. Who gated is gone, and the sequencer says so in the order, as if it had found them dead. The lanes are empty:
//! what was submitted and is not in the journal has to be submitted again, and its producer is told from where on.
//!
//! **The journal's own gate is there again** where it was to outlive its process: the order waits for a journal to take it
//! up, before anybody can pass what no journal has.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use seriatim_ring::Seq;
use seriatim_ring::control::{CLOSED, GONE, LIVE, Party, Verdict};
use seriatim_ring::event::OWN_LANE;
use seriatim_ring::gate::Past;
use seriatim_ring::incarnations::Current;
use seriatim_ring::order::Follower;
use seriatim_ring::sync::{AtomicU64, Ordering};

use super::disk::Local;
use super::duty::Duty;
use super::error::{JournalError, ReplayError};
use super::format::{Origin, Point};
use super::keeper::{LINGER, SyncPolicy};
use super::kept;
use super::replay::Replay;
use super::segment::Cut;
use super::world::{LaneOf, MemberOf, SeatOf, Standing, World};
use super::writer::{Ending, Shelf};
use crate::config::Config;
use crate::crash_point;
use crate::error::{AttachError, CreateError, RemoveError};
use crate::fold::Fold;
use crate::liveness::Role;
use crate::region::Region;
use crate::region::header::Uuid;
use crate::region::map::Map;
use crate::{Digest, sys};

/// A region was restored.
#[derive(Debug)]
#[non_exhaustive]
pub struct Restored {
    /// It, open.
    pub region: Region,
    /// The index at which it goes on: that behind the journal's last one.
    pub next: Seq,
    /// The digest of all before it.
    pub digest: Digest,
    /// What was not whole at the journal's end and is cut off.
    pub cut: Option<Cut>,
    /// The outdated region that it replaced, if there was one.
    pub replaced: Option<Outdated>,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Restored { region, next, digest, cut, replaced } = self;
        write!(f, "restored {}", region.path().display())?;
        if let Some(outdated) = replaced {
            write!(f, " in the place of {outdated}")?;
        }
        write!(f, ": it goes on at index {next} with digest {digest}")?;
        cut.as_ref().map_or(Ok(()), |cut| write!(f, "; {cut}"))
    }
}

/// A region that cannot be gone on with, or is behind what its journal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outdated {
    /// The next index of its order, as it says.
    pub next: Seq,
    /// It is of another boot of the machine.
    pub is_of_other_boot: bool,
}

impl fmt::Display for Outdated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let boot = if self.is_of_other_boot { " of another boot" } else { "" };
        write!(f, "one{boot} that ended at index {}", self.next)
    }
}

/// A region could not be restored. What was there is as it was, but for a journal's torn tail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The journal cannot be read, another process writes it, or the file system failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What is at the path is no region that can be looked at.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The region could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The region at the path is outdated, and could not be removed: somebody is attached to it, for one.
    #[error("cannot replace an outdated region: {0}")]
    Remove(#[from] RemoveError),
    /// The region at the path is another one.
    #[error("{path:?} is region {found}, the journal in {} is that of region {expected}", dir.display())]
    OtherRegion {
        /// The region's path.
        path: PathBuf,
        /// The journal's directory.
        dir: PathBuf,
        /// The number of the region that is there.
        found: Uuid,
        /// That of the journal's.
        expected: Uuid,
    },
    /// The region at the path is as far as the journal, or farther: it can be gone on with, and is not thrown away.
    #[error(
        "{path:?} is at index {next} and the journal in {} ends at {end}: it is ahead of its journal or as far, \
         and is left as it is",
        dir.display()
    )]
    NotBehind {
        /// The region's path.
        path: PathBuf,
        /// The journal's directory.
        dir: PathBuf,
        /// The next index of the region's order.
        next: Seq,
        /// The index behind the journal's last one.
        end: Seq,
    },
    /// The region at the path is ahead, and what lies between is in neither: no journal can go on there.
    #[error(
        "{path:?} is ahead of its journal: that in {} ends at index {end}, and the region no longer has what is before \
         {start}; it is left as it is",
        dir.display()
    )]
    Ahead {
        /// The region's path.
        path: PathBuf,
        /// The journal's directory.
        dir: PathBuf,
        /// The first index that the region still has.
        start: Seq,
        /// The index behind the journal's last one.
        end: Seq,
    },
    /// The region and the journal have different histories.
    #[error(
        "{path:?} has another history than the journal in {}: its digest at index {seq} is {found}, the journal's \
         {expected}",
        dir.display()
    )]
    OtherHistory {
        /// The region's path.
        path: PathBuf,
        /// The journal's directory.
        dir: PathBuf,
        /// The index.
        seq: Seq,
        /// The region's digest.
        found: Digest,
        /// The journal's.
        expected: Digest,
    },
    /// The order was ended for good, for workers differed: nothing comes after that.
    #[error("the order in {} was ended for good before index {end}, for workers differed", dir.display())]
    Poisoned {
        /// The journal's directory.
        dir: PathBuf,
        /// The index behind the journal's last one.
        end: Seq,
    },
    /// There is no journal in the directory, and no region at the path.
    #[error("there is neither a region at {path:?} nor a journal in {}", dir.display())]
    Nothing {
        /// The region's path.
        path: PathBuf,
        /// The journal's directory.
        dir: PathBuf,
    },
}

impl From<ReplayError> for RestoreError {
    fn from(error: ReplayError) -> Self {
        RestoreError::Journal(error.into())
    }
}

/// How a region stands to a journal.
enum Fit {
    /// There is none.
    Missing,
    /// It can be gone on with.
    Fits(Region),
    /// It is to be replaced.
    Outdated(Outdated),
}

impl Region {
    /// Makes a region at `path` that goes on where the journal in `dir` ends, completely or not at all: the same region to
    /// whoever comes back, with its number, its order's next index and digest, and the current incarnation. Of `config`
    /// rights, memory and placement are taken; the rest is the journal's.
    ///
    /// A producer that attaches under its name is told how many of its commands the journal has
    /// ([`Attached::Resumed`](crate::Attached)), and submits again what comes after. No number is used again. Workers that
    /// gated have left. If its journal's gate was to [stay](super::OnFailure::Hold), the order waits for a
    /// [`Journal`](super::Journal) of that name and that directory to take it up.
    ///
    /// An outdated region at the path, of another boot of the machine or behind the journal, is replaced, if nobody is
    /// attached to it. One that is as far as the journal, or ahead, is not.
    ///
    /// # Errors
    /// [`RestoreError`]: nothing is there then that was not there before.
    pub fn restore(
        path: impl AsRef<Path>,
        dir: impl AsRef<Path>,
        config: &Config,
    ) -> Result<Restored, RestoreError> {
        let (path, dir) = (absolute(path.as_ref()), dir.as_ref());
        Duty::check(&Local, dir)?;
        // First, for somebody may be writing it.
        let replay = Replay::open(dir)?;
        let (outdated, next) = match fit(&path, dir, &replay)? {
            Fit::Missing => (None, replay.end()),
            Fit::Outdated(outdated) => (Some(outdated), replay.end()),
            Fit::Fits(region) => {
                let (next, end) = (region.snapshot().next, replay.end());
                return Err(RestoreError::NotBehind { path, dir: dir.into(), next, end });
            }
        };
        drop(replay);
        let mut restored = restore(&path, dir, config, outdated)?;
        debug_assert!(restored.next >= next);
        restored.replaced = outdated;
        Ok(restored)
    }

    /// As [`restore`](Self::restore), as a region [without a name](Self::anonymous): there is none to be replaced.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore_anonymous(dir: impl AsRef<Path>, config: &Config) -> Result<Restored, RestoreError> {
        let dir = dir.as_ref();
        Duty::check(&Local, dir)?;
        // Locked until the region is there, as below.
        let shelf = Shelf::open(Arc::new(Local), dir, None, LINGER)?;
        let (ending, origin) = goes_on(&shelf, dir)?;
        let (at, world) = (ending.point, &ending.world);
        let since = kept::first_index(&Local, dir)?;
        let fill = |map: &Map| fill(map, &at, world, since);
        let region = Region::unnamed(&config.as_of(origin), Some(origin.uuid), fill)?;
        let (next, digest, cut) = (at.next, Digest(at.digest), ending.cut.clone());
        Ok(Restored { region, next, digest, cut, replaced: None })
    }

    /// Opens the region at `path`, or [restores](Self::restore) it first if it is missing or outdated: what a sequencer
    /// does that starts after everything has died. Where there is no journal yet, the region is opened as it is.
    ///
    /// # Errors
    /// [`RestoreError`]: also where the region does not fit the journal, and is left as it is.
    pub fn attach_or_restore(
        path: impl AsRef<Path>,
        dir: impl AsRef<Path>,
        config: &Config,
    ) -> Result<(Region, Option<Restored>), RestoreError> {
        let (path, dir) = (absolute(path.as_ref()), dir.as_ref());
        Duty::check(&Local, dir)?;
        let replay = match Replay::open(dir) {
            Ok(replay) => replay,
            Err(error) if is_nothing(&error) => {
                return match Region::attach(&path) {
                    Ok(region) => Ok((region, None)),
                    Err(AttachError::NotFound { .. }) => Err(RestoreError::Nothing { path, dir: dir.into() }),
                    Err(error) => Err(error.into()),
                };
            }
            Err(error) => return Err(error.into()),
        };
        let outdated = match fit(&path, dir, &replay)? {
            Fit::Fits(region) => return Ok((region, None)),
            Fit::Missing => None,
            Fit::Outdated(outdated) => Some(outdated),
        };
        drop(replay);
        let restored = restore(&path, dir, config, outdated)?;
        Ok((restored.region.clone(), Some(restored)))
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

fn is_nothing(error: &ReplayError) -> bool {
    match error {
        ReplayError::Empty { .. } => true,
        ReplayError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// How the region at a path stands to a journal.
fn fit(path: &Path, dir: &Path, replay: &Replay) -> Result<Fit, RestoreError> {
    let region = match Region::open_any(path, true) {
        Ok(region) => region,
        Err(AttachError::NotFound { .. }) => return Ok(Fit::Missing),
        Err(error) => return Err(error.into()),
    };
    let (path, dir) = (path.to_path_buf(), dir.to_path_buf());
    let (found, expected) = (region.uuid(), replay.origin().uuid);
    if found != expected {
        return Err(RestoreError::OtherRegion { path, dir, found, expected });
    }
    let (next, end) = (region.snapshot().next, replay.end());
    let boot =
        sys::kernel_uuid("boot_id").map(Uuid).map_err(AttachError::io(&path, "learn the boot id for"))?;
    let is_of_other_boot = region.identity().boot_id != boot;
    if is_of_other_boot || next < end {
        return Ok(Fit::Outdated(Outdated { next, is_of_other_boot }));
    }
    if region.journal().is_some_and(|journal| journal.alive) {
        // That one has looked, and goes on meanwhile.
        return Ok(Fit::Fits(region));
    }
    let Some((start, past)) = anchor(region.map()) else { return Ok(Fit::Fits(region)) };
    if start > end {
        return Err(RestoreError::Ahead { path, dir, start, end });
    }
    match digest_at(&region, start, past, end) {
        Some(found) if found != replay.end_digest() => {
            Err(RestoreError::OtherHistory { path, dir, seq: end, found, expected: replay.end_digest() })
        }
        _ => Ok(Fit::Fits(region)),
    }
}

/// Where a region's anchor is, with what goes with it; none if it moves too fast.
fn anchor(map: &Map) -> Option<(Seq, [u64; 3])> {
    (0..16).find_map(|_| map.control().anchor.load())
}

/// The digest of a region's order before an index that it still has, if nobody can overwrite what lies there.
fn digest_at(region: &Region, start: Seq, [digest, current, run]: [u64; 3], end: Seq) -> Option<Digest> {
    if region.is_alive(Role::Sequencer) {
        return None;
    }
    let past: Past = [digest, current];
    let mut fold = Fold::new(region.map(), region.digest_of(), Follower::new(start, run), past);
    while fold.next() < end && fold.step(region.map()).ok()?.is_some() {}
    (fold.next() == end).then_some(Digest(fold.digest()))
}

/// Makes the region, and replaces an outdated one.
fn restore(
    path: &Path,
    dir: &Path,
    config: &Config,
    outdated: Option<Outdated>,
) -> Result<Restored, RestoreError> {
    #[cfg(feature = "crash-points")]
    crate::crash::arm();
    // Locked until the region is there: no journal begins meanwhile, and nobody else restores.
    let shelf = Shelf::open(Arc::new(Local), dir, None, LINGER)?;
    let (ending, origin) = goes_on(&shelf, dir)?;
    crash_point!("restore.sealed");
    let (at, world) = (ending.point, &ending.world);
    let since = kept::first_index(&Local, dir)?;
    let fill = |map: &Map| fill(map, &at, world, since);
    let new = Region::prepare(path, &config.as_of(origin), Some(origin.uuid), fill)?;
    crash_point!("restore.filled");
    if outdated.is_some() {
        Region::remove(path)?;
        crash_point!("restore.removed");
    }
    let region = new.publish()?;
    let (next, digest, cut) = (at.next, Digest(at.digest), ending.cut.clone());
    Ok(Restored { region, next, digest, cut, replaced: outdated })
}

/// How a journal ends, if a region can go on there.
fn goes_on<'s>(shelf: &'s Shelf, dir: &Path) -> Result<(&'s Ending, &'s Origin), RestoreError> {
    let (Some(ending), Some(origin)) = (&shelf.ending, shelf.origin()) else {
        return Err(ReplayError::Empty { dir: dir.into() }.into());
    };
    if ending.world.standing == Standing::Poisoned {
        return Err(RestoreError::Poisoned { dir: dir.into(), end: ending.point.next });
    }
    Ok((ending, origin))
}

/// Writes what a region begins with that goes on at a point.
fn fill(map: &Map, at: &Point, world: &World, since: Seq) {
    let (control, current) = (map.control(), current(at, world));
    let relaxed = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
    control.start_at(at.next, 0);
    control.anchor.store(at.next, [at.digest, current.word(), 0]);
    relaxed(&control.reign.epoch, world.epoch);
    relaxed(&control.reign.next_producer, world.next_producer);
    relaxed(&control.reign.next_member, world.next_member);
    if world.standing == Standing::Closed {
        control.reign.state.store(CLOSED, Ordering::Relaxed);
    }
    map.incarnations().start_at(world.claimed);
    for (lane, of) in (0..).zip(&world.lanes) {
        fill_lane(map, lane, of);
    }
    let kept = world.kept_seat();
    for (slot, member) in (0..).zip(&world.members) {
        fill_member(map, slot, member, kept.as_ref().filter(|seat| seat.slot == slot), at, current);
    }
    if let Some(seat) = kept {
        relaxed(&map.worker_page(seat.slot).journal.since, since.get());
    }
}

/// Who is current: by its lane, which it has as long as nobody else got it.
fn current(at: &Point, world: &World) -> Current {
    let has_it = |&(_, lane): &(u16, &LaneOf)| lane.number == at.controller && at.controller != 0;
    let lane = (0..).zip(&world.lanes).find(has_it);
    lane.map_or(Current::new(at.incarnation, OWN_LANE), |(lane, _)| Current::new(at.incarnation, lane))
}

/// An empty lane, whose cells are numbered as its owner's commands are.
fn fill_lane(map: &Map, lane: u16, of: &LaneOf) {
    let entry = map.lane_entry(lane);
    entry.number.store(of.number, Ordering::Relaxed);
    entry.released.store(of.next, Ordering::Relaxed);
    entry.ordered.store(of.next, Ordering::Relaxed);
    entry.role.store(of.role, Ordering::Relaxed);
    entry.fenced.store(of.is_fenced.into(), Ordering::Relaxed);
    entry.name.store(of.name);
    map.lane_page(lane).claimed.start_at(of.next, 0);
}

/// Who gated is gone, and that has to be said; but for the journal, if its gate is to stay.
fn fill_member(map: &Map, slot: u16, member: &MemberOf, kept: Option<&SeatOf>, at: &Point, current: Current) {
    let entry = &map.members()[usize::from(slot)];
    let relaxed = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
    let is_journal = kept.is_some_and(|seat| seat.name == member.name);
    if member.number != 0 && (kept.is_none() || is_journal) {
        relaxed(&entry.number, member.number);
        relaxed(&entry.address, member.address);
        // Some index before: that it joined is in the order.
        relaxed(&entry.joined, at.next.get());
        entry.name.store(member.name);
        relaxed(&entry.state, GONE);
    } else if member.number != 0 {
        // The journal had the slot already, which the order does not say yet.
        relaxed(&entry.former, member.number);
        relaxed(&entry.former_address, member.address);
        entry.former_name.store(member.name);
    }
    let Some(seat) = kept else { return };
    if !is_journal {
        let next = &map.control().reign.next_member;
        relaxed(&entry.number, next.load(Ordering::Relaxed));
        relaxed(next, next.load(Ordering::Relaxed) + 1);
        relaxed(&entry.joined, 0);
        entry.name.store(seat.name);
    }
    let page = map.worker_page(slot);
    let generation = ask_as(&page.party, seat, map);
    relaxed(&entry.generation, generation);
    relaxed(&entry.first, at.next.get());
    relaxed(&entry.start, at.next.get());
    relaxed(&entry.start_digest, at.digest);
    relaxed(&entry.start_current, current.word());
    entry.answer.give(generation, Verdict::Granted);
    relaxed(&page.journal.role, seat.role);
    relaxed(&page.journal.durable, at.next.get());
    relaxed(&page.journal.written, at.next.get());
    relaxed(&page.journal.sync, SyncPolicy::default().code());
    relaxed(&entry.state, LIVE);
}

/// The page of one who asked, was let in, and is dead.
fn ask_as(party: &Party, seat: &SeatOf, map: &Map) -> u64 {
    party.name.store(seat.name);
    party.ask(map.bells().requests_word())
}
