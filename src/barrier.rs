//! Waiting until all workers have applied a command: [`Region::wait_applied`], and the same of a producer and a worker.
//!
//! Who waits looks at the gates, and sleeps between two looks: for 50 µs at first, then longer, for a millisecond at
//! most. Nobody is told that somebody waits, so a worker does nothing for it: no fence, no system call, not a load.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::sequencer::{Standing, published, stand_all};
use seriatim_ring::sync::Ordering;

use crate::assistance::Helper;
use crate::error::HeldBy;
use crate::name::Name;
use crate::poison::OnDivergence;
use crate::region::Region;
use crate::region::file::{RegionLost, Vigil};
use crate::region::snapshot::State;
use crate::wait::{Idle, Wait};

/// The first sleep between two looks.
const SHORT: Duration = Duration::from_micros(50);
/// The longest.
const LONG: Duration = Duration::from_millis(1);
/// How long somebody waits before it looks whether there still is something to wait for, and again.
const VIGIL: Duration = Duration::from_millis(100);

/// A worker that has not passed an index yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Behind {
    /// Its slot.
    pub slot: u16,
    /// Its name.
    pub name: Name,
    /// Its process, as it says itself.
    pub pid: u32,
    /// Where it stands: everything before this is done.
    pub next: Seq,
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Behind { slot, name, pid, next } = self;
        write!(f, "worker {:?} (slot {slot}, pid {pid}) stands at {next}", name.as_str())
    }
}

/// It did not become known that all have applied a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// Not all have until the deadline.
    #[error("index {seq} is not applied by all: {}", why_late(seq, next, behind, by))]
    Late {
        /// The index.
        seq: Seq,
        /// The next index of the order.
        next: Seq,
        /// Who has yet to apply it.
        behind: Vec<Behind>,
        /// Who holds the order up, or that nobody works, if nobody is behind.
        by: Option<HeldBy>,
    },
    /// The worker that waits has not released the index itself, and cannot while it waits: it has not received it, or it
    /// [releases by hand](crate::JoinOptions::release_by_hand) and has not yet.
    #[error(
        "index {seq} cannot be waited for: this worker has itself released only what is before {released}"
    )]
    Own {
        /// The index.
        seq: Seq,
        /// Where this worker stands: everything before this is done.
        released: Seq,
    },
    /// The order closed before it.
    #[error("the order is closed at {next}, index {seq} waits for it to be reopened")]
    Closed {
        /// The index.
        seq: Seq,
        /// The index that the order would go on at.
        next: Seq,
    },
    /// The order was ended for good before it, or in lockstep before anybody was given it: workers differ; see
    /// [`Region::poison`].
    #[error(
        "the order is poisoned at index {at}, nobody applies {seq}: workers differ since index {diverged}"
    )]
    Poisoned {
        /// The index.
        seq: Seq,
        /// The last index of the order.
        at: Seq,
        /// The index at which they began to differ.
        diverged: Seq,
    },
    /// There is no region to go on with.
    #[error(transparent)]
    Lost(#[from] RegionLost),
    /// This process is a forked child of the one that attached or joined.
    #[error("who waits was attached by the parent process, before a fork")]
    Forked,
}

fn why_late(seq: &Seq, next: &Seq, behind: &[Behind], by: &Option<HeldBy>) -> String {
    let mut parts: Vec<_> = behind.iter().map(Behind::to_string).collect();
    if seq >= next {
        parts.insert(0, format!("the order ends at {next}"));
    }
    parts.extend(by.map(|by| by.to_string()));
    parts.join(", ")
}

/// How far the workers are with an index.
enum Progress {
    /// It is not in the order: the next index.
    NotThere(Seq),
    /// These have yet to pass it; none if nobody works, and it is held for the first who will.
    Waiting(Seq, Vec<Behind>),
    /// All that it concerns have passed it.
    Applied,
}

impl Region {
    /// Waits until every worker has applied the command at an index, and says who has not if that takes too long.
    ///
    /// A worker has applied what it has passed: what its handler has returned from, by the time it asks for more (at the
    /// latest when it runs dry, or after [so many](crate::JoinOptions::release_every)), or what it has
    /// [released](crate::Worker::release), if it does that by hand. Those count that gate: one that joins after the index
    /// does not get it, and is not waited for; one that dies or leaves stops counting as soon as its gate has dropped,
    /// which takes a sequencer. Where nobody works, an index counts as applied if those who did work had passed it;
    /// otherwise it is held for who comes next, and that one is waited for. (A region that
    /// [discards](crate::WithoutWorkers::Discard) holds nothing: what nobody works on is soon passed.)
    ///
    /// When this returns, each of them has passed the index, and none can get it again.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use seriatim::{ApplyError, Config, Producer, Region, Sequenced, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let mut worker = Worker::join(&region, "slow")?;
    /// let mut producer = Producer::attach(&region, "p")?;
    /// let index = producer.submit(0, b"install")?;
    /// let Sequenced::At(seq) = producer.wait_sequenced(index)? else { panic!("just now") };
    ///
    /// let soon = Instant::now() + Duration::from_millis(10);
    /// let late = region.wait_applied(seq, soon).unwrap_err();
    /// assert!(matches!(&late, ApplyError::Late { behind, .. } if behind[0].name.as_str() == "slow"), "{late}");
    ///
    /// while worker.poll()?.is_some() {} // and once more, with nothing there: all before is done
    /// region.wait_applied(seq, Instant::now() + Duration::from_secs(60))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ApplyError`]: at the deadline it names who has not, and where each stands.
    pub fn wait_applied(&self, seq: Seq, at: Instant) -> Result<(), ApplyError> {
        wait_applied(self, seq, at, Wait::Park, None)
    }

    fn progress(&self, seq: Seq) -> Progress {
        let map = self.map();
        let (next, _) = published(map.control());
        if seq >= next {
            return Progress::NotThere(next);
        }
        let mut behind = Vec::new();
        let somebody = loop {
            behind.clear();
            let each = |slot: usize, found| {
                let Standing::Before(next) = found else { return };
                behind.push(Behind {
                    slot: slot as u16,
                    name: Name::from_words(map.members()[slot].name.load()),
                    pid: map.worker_pages()[slot].party.pid.load(Ordering::Relaxed) as u32,
                    next,
                });
            };
            if let Some(found) = stand_all(map.control(), map.members(), map.worker_pages(), seq, each) {
                break found;
            }
        };
        // The anchor is where the last of those stood who have gone.
        let is_passed = somebody || map.control().anchor.position() > seq;
        if behind.is_empty() && is_passed { Progress::Applied } else { Progress::Waiting(next, behind) }
    }

    /// Whether workers that keep step have been found to differ before an index: they are given nothing of what follows.
    fn differs_before(&self, seq: Seq) -> bool {
        let mut pages = self.map().worker_pages().iter();
        self.on_divergence() == OnDivergence::Lockstep
            && pages.any(|page| page.pace.found_at().is_some_and(|found| found < seq.get()))
    }

    fn late(&self, seq: Seq, next: Seq, behind: Vec<Behind>) -> ApplyError {
        let by = match behind.is_empty() {
            true if seq >= next => self.order_held_by(),
            true => Some(HeldBy::NoWorker),
            false => None,
        };
        ApplyError::Late { seq, next, behind, by }
    }
}

/// Waits until all have passed an index; `helper` is that of the party that waits.
pub(crate) fn wait_applied(
    region: &Region,
    seq: Seq,
    deadline: Instant,
    how: Wait,
    mut helper: Option<&mut Helper>,
) -> Result<(), ApplyError> {
    region.check()?;
    let (mut idle, mut vigil) = (Idle::new(how), Vigil::default());
    let (mut pause, mut next_look) = (SHORT, Instant::now() + VIGIL);
    loop {
        // State first: what was in the order before it closed is seen after it.
        let poisoned = region.poisoned_at();
        let is_over = matches!(region.state(), State::Closed | State::Exhausted);
        let (next, behind) = match region.progress(seq) {
            // In lockstep, what lies behind a difference is passed by all and given to none: the poison will come.
            Progress::Applied if region.differs_before(seq) => match poisoned {
                Some((at, diverged)) => return Err(ApplyError::Poisoned { seq, at, diverged }),
                None => (published(region.map().control()).0, Vec::new()),
            },
            Progress::Applied => return Ok(()),
            Progress::NotThere(_) if poisoned.is_some() => {
                let (at, diverged) = poisoned.unwrap_or_default();
                return Err(ApplyError::Poisoned { seq, at, diverged });
            }
            Progress::NotThere(next) if is_over => return Err(ApplyError::Closed { seq, next }),
            Progress::NotThere(next) => (next, Vec::new()),
            Progress::Waiting(next, behind) => (next, behind),
        };
        let now = Instant::now();
        if now >= deadline {
            return Err(region.late(seq, next, behind));
        }
        if now >= next_look {
            vigil.look(region)?;
            next_look = now + VIGIL;
        }
        if helper.as_mut().is_some_and(|helper| helper.help(region.assistance())) {
            continue;
        }
        if idle.step() {
            helper.iter().for_each(|helper| helper.hand_back());
            thread::sleep(pause.min(deadline - now));
            pause = (pause * 2).min(LONG);
        }
    }
}
