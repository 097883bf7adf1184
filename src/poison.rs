//! [`OnDivergence`]: what becomes of a region whose workers differ; [`Poisoned`]: that it was stopped, and why.
//!
//! ```text
//! worker      report for i; another one's report for i is not the same ─▶ what it found, in its own page
//! sequencer   looks for that before it frees anything ─▶ the poison, as the order's last command ─▶ ends
//! workers     everything before the poison, the poison, and then an error for ever
//!             in lockstep: nothing after i but the poison
//! ```

use std::fmt;
use std::str::FromStr;

use seriatim_ring::Seq;
use seriatim_ring::event::OWN_CELLS;
use seriatim_ring::pace::Finding;
use seriatim_ring::reports::Report;
use seriatim_ring::sequencer::{done_with, published};
use seriatim_ring::sync::Ordering;

use crate::Digest;
use crate::agreement::{Difference, Diverged, Reported};
use crate::barrier::Behind;
use crate::name::Name;
use crate::pacer::window;
use crate::region::Region;
use crate::region::layout::Geometry;
use crate::region::snapshot::State;

/// What becomes of a region whose workers [report](crate::Worker::report) different things for one index. Part of the
/// region, for all have to keep to it: who compares, who stops, and who takes over from a sequencer that died.
///
/// ```
/// use seriatim::OnDivergence;
///
/// assert_eq!("lockstep".parse(), Ok(OnDivergence::Lockstep));
/// assert_eq!(OnDivergence::default().to_string(), "report");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDivergence {
    /// Nothing: whoever asks is told ([`Region::agreement`]).
    #[default]
    Report,
    /// The order is poisoned: [`Event::Poisoned`](crate::Event::Poisoned) is its last command, at one index for all and
    /// at most [so many](Geometry::stops_within) behind the difference. Nothing is ordered after it, nobody gets in, and
    /// submits are refused.
    ///
    /// So that no report is lost before it was compared, no worker is given a command that lies 128 or more ahead of what
    /// the slowest worker has asked for. Who does not report is waited for there, and not compared.
    Poison,
    /// As [`Poison`](Self::Poison); and no worker is given a command before all workers have reported the one before it,
    /// so that nobody acts on anything behind a difference. Every worker has to report every event. Each command takes
    /// as long as the slowest worker, and a way there and back between all of them.
    Lockstep,
}

impl OnDivergence {
    const ALL: [OnDivergence; 3] = [OnDivergence::Report, OnDivergence::Poison, OnDivergence::Lockstep];

    /// What a region's header has for it.
    pub(crate) fn code(self) -> u64 {
        self as u64
    }

    pub(crate) fn of_code(code: u64) -> Option<OnDivergence> {
        Self::ALL.into_iter().find(|what| what.code() == code)
    }
}

impl fmt::Display for OnDivergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            OnDivergence::Report => "report",
            OnDivergence::Poison => "poison",
            OnDivergence::Lockstep => "lockstep",
        })
    }
}

/// A word that names nothing to do when workers differ.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("on divergence is {found:?}, expected report, poison or lockstep")]
pub struct UnknownOnDivergence {
    found: String,
}

impl FromStr for OnDivergence {
    type Err = UnknownOnDivergence;

    fn from_str(text: &str) -> Result<Self, UnknownOnDivergence> {
        let named = Self::ALL.into_iter().find(|what| what.to_string() == text);
        named.ok_or_else(|| UnknownOnDivergence { found: text.into() })
    }
}

/// The order was ended for good, for workers differ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Poisoned {
    /// Index of the poison, the last of the order.
    pub at: Seq,
    /// Where they began to differ, and what the two said of whom one found it. Of several differences that had been found
    /// by then the first.
    pub diverged: Diverged,
}

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "POISONED at index {}: workers differ since {}", self.at, self.diverged)
    }
}

impl Geometry {
    /// How many commands behind the index at which workers begin to differ a worker can be given at most, before the
    /// poison, where that [stops](OnDivergence::Poison) them: as many as all lanes have cells, that of the sequencer with
    /// its 64 included. The poison's index is one more behind it at most. In lockstep it is none, wherever the poison is.
    ///
    /// For who finds a difference at an index has not passed the one after it, so that is not freed; and before the
    /// sequencer frees more it looks, and then orders nothing but the poison.
    #[must_use]
    pub fn stops_within(&self) -> u64 {
        self.producers * self.lane_cells + OWN_CELLS
    }
}

impl Region {
    /// What becomes of it when workers differ.
    #[must_use]
    pub fn on_divergence(&self) -> OnDivergence {
        self.identity().on_divergence
    }

    /// Whether the order was ended because workers differ, where, and who. Needs read rights only. It stays so.
    ///
    /// ```
    /// use seriatim::{Config, Event, OnDivergence, Producer, Region, Sequencer, SequencerConfig, Worker, WorkerError};
    ///
    /// let region = Region::anonymous(&Config::new().on_divergence(OnDivergence::Poison))?;
    /// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let workers = ["right", "wrong"].map(|name| Worker::join(&region, name).unwrap());
    /// let mut producer = Producer::attach(&region, "p")?;
    /// producer.submit_batch(&[(1, b"a"), (2, b"b"), (3, b"c")])?;
    /// let threads = workers.map(|mut worker| {
    ///     std::thread::spawn(move || {
    ///         let (is_wrong, mut sum, mut stopped) = (worker.name() == "wrong", 0, None);
    ///         loop {
    ///             match worker.recv() {
    ///                 Ok(Event::Command(command)) if is_wrong && command.kind == 2 => {} // a mistake
    ///                 Ok(Event::Command(command)) => sum += u64::from(command.kind),
    ///                 Ok(Event::Poisoned { seq, diverged, .. }) => stopped = Some((seq, diverged)),
    ///                 Ok(_) => {}
    ///                 Err(WorkerError::Poisoned { .. }) => return stopped.unwrap(),
    ///                 Err(error) => panic!("{error}"),
    ///             }
    ///             worker.report(sum).unwrap();
    ///         }
    ///     })
    /// });
    /// let [right, wrong] = threads.map(|thread| thread.join().unwrap());
    /// assert_eq!(right, wrong); // both stopped at one index
    /// let poison = region.poison().expect("they differ");
    /// assert_eq!((poison.at, poison.diverged.seq), right);
    /// assert!(producer.submit(0, b"more").unwrap_err().to_string().contains("poisoned"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn poison(&self) -> Option<Poisoned> {
        let (at, finding) = self.found_poison()?;
        Some(Poisoned { at, diverged: self.described(&finding) })
    }

    /// Where it was stopped, and since where workers differ; zeroes if the region is damaged.
    pub(crate) fn poisoned_at(&self) -> Option<(Seq, Seq)> {
        if self.state() != State::Poisoned {
            return None;
        }
        let found = self.found_poison().map(|(at, finding)| (at, Seq::new(finding.index())));
        Some(found.unwrap_or_default())
    }

    fn found_poison(&self) -> Option<(Seq, Finding)> {
        if self.state() != State::Poisoned {
            return None;
        }
        let poison = &self.map().control().poison;
        let at = poison.at.load(Ordering::Relaxed).checked_sub(1)?;
        let finder = usize::try_from(poison.finder.load(Ordering::Relaxed)).ok()?;
        let finding = self.map().worker_pages().get(finder)?.pace.found()?;
        Some((Seq::new(at), finding))
    }

    fn described(&self, finding: &Finding) -> Diverged {
        let mut reports = [finding.mine, finding.other].map(|(slot, report)| self.reported(slot, &report));
        reports.sort_by_key(|report| report.slot);
        Diverged {
            seq: Seq::new(finding.index()),
            after: finding.after.map(Seq::new),
            what: if finding.is_of_digests() { Difference::Digest } else { Difference::Fingerprint },
            reports: reports.into(),
        }
    }

    /// A report with whose it is, as far as that one is still known.
    fn reported(&self, slot: u16, report: &Report) -> Reported {
        let &Report { digest, fingerprint, member: number, .. } = report;
        let member = self.map().members().get(usize::from(slot));
        let member = member.filter(|member| member.number.load(Ordering::Relaxed) == number);
        let pid = |_| self.map().worker_page(slot).party.pid.load(Ordering::Relaxed) as u32;
        let name = member.map_or(Name::cut(""), |member| Name::from_words(member.name.load()));
        Reported { slot, number, name, pid: member.map_or(0, pid), digest: Digest(digest), fingerprint }
    }

    /// The workers that others wait for, where workers that differ [are stopped](OnDivergence): in lockstep those that
    /// have yet to report what others have, while there is more to do; each with the index after its last report, or that
    /// it has asked for. Empty where nobody waits in this way.
    #[must_use]
    pub fn awaited(&self) -> Vec<Behind> {
        let Some(window) = window(self.on_divergence()) else { return Vec::new() };
        let (map, mut all) = (self.map(), Vec::new());
        for (slot, (member, page)) in map.members().iter().zip(map.worker_pages()).enumerate() {
            let Some(next) = done_with(member, page) else { continue };
            all.push(Behind {
                slot: slot as u16,
                name: Name::from_words(member.name.load()),
                pid: page.party.pid.load(Ordering::Relaxed) as u32,
                next,
            });
        }
        let farthest = all.iter().map(|worker| worker.next).max().unwrap_or_default();
        let is_more = published(map.control()).0 > farthest && self.state() != State::Poisoned;
        all.retain(|worker| is_more && farthest.since(worker.next) >= window);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_named_by_its_word_and_kept_by_its_code() {
        for what in OnDivergence::ALL {
            assert_eq!(what.to_string().parse(), Ok(what));
            assert_eq!(OnDivergence::of_code(what.code()), Some(what));
        }
        assert_eq!(OnDivergence::of_code(3), None);
        let error = "stop".parse::<OnDivergence>().unwrap_err().to_string();
        assert!(error.contains("stop") && error.contains("lockstep"));
    }
}
