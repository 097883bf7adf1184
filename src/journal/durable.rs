//! Who waits until a command is on the disk: [`Region::wait_durable`], and the same of a producer's own.
//!
//! Who waits sleeps on a bell of its own kind, at once, for a disk takes longer than any spinning is worth. The journal rings
//! it when it has synced, and wakes all at once: each would take longer to hand that on than the journal takes for it.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::control::{NO_JOURNAL, UNKNOWN_SINCE};
use seriatim_ring::sync::{AtomicU64, Ordering};
use seriatim_ring::wake::FOR_WORK;

use super::keeper::SyncPolicy;
use crate::liveness::Role;
use crate::name::Name;
use crate::producer::WaitError;
use crate::region::Region;
use crate::region::file::{RegionLost, Vigil};
use crate::{sys, wait};

/// How long who cannot be woken sleeps between two looks.
const PAUSE: Duration = Duration::from_micros(500);

/// What a region says of its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalStatus {
    /// Its slot among the workers.
    pub slot: u16,
    /// Its name.
    pub name: Name,
    /// Its process, as it says itself.
    pub pid: u32,
    /// Whether it lives. If not, its gate has stayed: the order waits for a journal that takes it up.
    pub alive: bool,
    /// All before this index is on the disk, for good, from [`since`](Self::since) on.
    pub durable: Seq,
    /// All before this is written.
    pub written: Seq,
    /// The first index that its directory has; `None` as long as it has not said so.
    pub since: Option<Seq>,
    /// When what is written is synced.
    pub sync: SyncPolicy,
    /// How often it has synced.
    pub syncs: u64,
    /// Since when it has not been able to write; the error log says why.
    pub failing_for: Option<Duration>,
}

impl fmt::Display for JournalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JournalStatus { slot, name, pid, durable, written, .. } = self;
        write!(f, "journal {:?} (slot {slot}, pid {pid}", name.as_str())?;
        if !self.alive {
            f.write_str(", gone")?;
        }
        write!(f, ") has written what is before {written}, and made durable what is before {durable}")?;
        match self.failing_for {
            Some(time) => write!(f, "; it has not been able to write for {time:.1?}"),
            None => Ok(()),
        }
    }
}

/// It did not become known that a command is durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurableError {
    /// It was not until the deadline.
    #[error("index {seq} is not durable: {journal}")]
    Late {
        /// The index.
        seq: Seq,
        /// How far the journal is.
        journal: Box<JournalStatus>,
    },
    /// There is no journal that would make it so.
    #[error("index {seq} is not made durable: no journal gates this region")]
    NoJournal {
        /// The index.
        seq: Seq,
    },
    /// It was in the order before the journal's directory began, or is so old that this was pruned.
    #[error("index {seq} is not known to be durable: the journal has what is from index {since} on")]
    Before {
        /// The index.
        seq: Seq,
        /// The first one that the journal's directory has.
        since: Seq,
    },
    /// A producer's command of which the region no longer says where it is: it may be from before the journal's directory
    /// began.
    #[error(
        "command {index} is not known to be durable: it was in the order long ago, and the journal has what is from index \
         {since} on"
    )]
    LongAgo {
        /// Its per-producer index.
        index: u64,
        /// The first index that the journal's directory has.
        since: Seq,
    },
    /// The journal does not say when something is: [`SyncPolicy::Off`].
    #[error("index {seq} is not known to be durable: the journal does not sync")]
    NotSynced {
        /// The index.
        seq: Seq,
    },
    /// It has no place in the order, and will not get one, or had none until the deadline.
    #[error(transparent)]
    NotSequenced(#[from] WaitError),
    /// There is no region to go on with.
    #[error(transparent)]
    Lost(#[from] RegionLost),
}

impl Region {
    /// What the region says of its journal, if one gates it: also of one that died and whose gate has stayed.
    #[must_use]
    pub fn journal(&self) -> Option<JournalStatus> {
        let (members, pages) = (self.map().members(), self.map().worker_pages());
        let all = (0..).zip(members.iter().zip(pages));
        let journals = all.filter(|(_, (member, page))| {
            member.is_live() && page.journal.role.load(Ordering::Relaxed) != NO_JOURNAL
        });
        let status = journals.map(|(slot, (member, page))| {
            let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
            let words = &page.journal;
            let failing = Some(load(&words.failing_ns)).filter(|&ns| ns > 0);
            JournalStatus {
                slot,
                name: Name::from_words(member.name.load()),
                pid: load(&page.party.pid) as u32,
                alive: self.is_alive(Role::Worker(slot)),
                durable: Seq::new(load(&words.durable)),
                written: Seq::new(load(&words.written)),
                since: Some(load(&words.since)).filter(|&since| since != UNKNOWN_SINCE).map(Seq::new),
                sync: SyncPolicy::of_code(load(&words.sync)),
                syncs: load(&words.syncs),
                failing_for: failing.map(|ns| Duration::from_nanos(sys::monotonic_ns().saturating_sub(ns))),
            }
        });
        // One that does not sync says nothing of what is durable, if there is another.
        status.max_by_key(|status| (status.sync != SyncPolicy::Off, status.durable.get()))
    }

    /// Waits until the command at an index is on the disk, for good: written by the [journal](crate::journal::Journal)
    /// and synced, so that it is there after any death and any loss of power. A producer waits for its own commands with
    /// [`Producer::wait_durable`](crate::Producer::wait_durable).
    ///
    /// Three cursors of a region are before an index in turn: *published*, it is in the order and each worker gets it;
    /// *durable*, it is on the disk; [*applied*](Self::wait_applied), all workers have passed it. The last two are in no
    /// order to each other: a worker does not wait for the disk.
    ///
    /// # Errors
    /// [`DurableError::Late`] at the deadline; at once if no journal gates the region, or it does not sync.
    pub fn wait_durable(&self, seq: Seq, at: Instant) -> Result<(), DurableError> {
        self.wait_durable_from(seq, seq, at)
    }

    /// Waits until all from an index to another one is on the disk, for good, by one journal. That the last one is says nothing
    /// of the first: the order may have gone on without a journal between them.
    ///
    /// # Errors
    /// As [`wait_durable`](Self::wait_durable); [`DurableError::Before`] if the journal does not have the first one.
    pub fn wait_durable_from(&self, first: Seq, seq: Seq, at: Instant) -> Result<(), DurableError> {
        self.check()?;
        let mut vigil = Vigil::default();
        let is_there = || self.durable_from(first).is_ok_and(|durable| durable > seq);
        loop {
            if self.durable_from(first)? > seq {
                return Ok(());
            }
            if Instant::now() >= at {
                return Err(self.not_durable(seq));
            }
            if !self.sleep_for_disk(at, is_there) {
                vigil.glance(self)?;
            }
        }
    }

    /// The index before which all from one on is durable, by the journal that has come farthest of those that have that one.
    pub(crate) fn durable_from(&self, seq: Seq) -> Result<Seq, DurableError> {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (members, pages) = (self.map().members(), self.map().worker_pages());
        let journals = members.iter().zip(pages).filter(|(member, page)| {
            // What was a journal's once is looked at first: most pages never were, and all have a member's entry.
            load(&page.journal.role) != NO_JOURNAL && member.is_live()
        });
        let (mut found, mut earliest, mut is_there) = (None::<u64>, None::<u64>, false);
        for (_, page) in journals {
            let words = &page.journal;
            is_there = true;
            if SyncPolicy::of_code(load(&words.sync)) == SyncPolicy::Off {
                continue;
            }
            // Relaxed, in any order: of what is durable and since when it counts, neither says something without the other.
            let (durable, since) = (load(&words.durable), load(&words.since));
            // Nothing is, as long as the journal has not said what it has.
            let (durable, since) = if since == UNKNOWN_SINCE { (0, 0) } else { (durable, since) };
            if since <= seq.get() {
                found = found.max(Some(durable));
            } else {
                earliest = Some(earliest.map_or(since, |earliest| earliest.min(since)));
            }
        }
        match (found, earliest) {
            (Some(durable), _) => Ok(Seq::new(durable)),
            (None, Some(since)) => Err(DurableError::Before { seq, since: Seq::new(since) }),
            (None, None) if is_there => Err(DurableError::NotSynced { seq }),
            (None, None) => Err(DurableError::NoJournal { seq }),
        }
    }

    /// Whether an index is known to be durable. That it will not become it, nobody is woken for.
    pub(crate) fn is_durable(&self, seq: Seq) -> bool {
        self.durable_from(seq).is_ok_and(|durable| durable > seq)
    }

    /// Why it is not, past the deadline.
    pub(crate) fn not_durable(&self, seq: Seq) -> DurableError {
        let late = |journal| DurableError::Late { seq, journal: Box::new(journal) };
        self.journal().map_or(DurableError::NoJournal { seq }, late)
    }

    /// Sleeps until the journal has synced, or `is_there`, but not for long. `false` if nobody woke it: a reason to look
    /// whether there still is something to wait for.
    pub(crate) fn sleep_for_disk(&self, until: Instant, is_there: impl FnMut() -> bool) -> bool {
        if self.can_announce() {
            return wait::sleep_alone(&self.map().bells().durable, FOR_WORK, Some(until), is_there);
        }
        thread::sleep(PAUSE.min(until.saturating_duration_since(Instant::now())));
        false
    }
}
