//! [`Agreement`]: whether the workers made the same of the same commands, and from where on they did not.
//!
//! ```text
//!             index   40   41   42   43   44   45
//! "red"   reports      a    b    c    d    e         agreed up to 42: the last that all who report have reported,
//! "green" reports           b    c    x              before any difference
//! "blue"  reports           b    c    d              diverged at 43, after 42
//! ```
//!
//! The digest says that all saw the same commands. Whether they also *made* the same of them, only they can say: each
//! reports a fingerprint of its state, [of its own choice](crate::Worker::report), and whoever likes compares. What is
//! compared are reports for the same index; an index that one of them has not reported says nothing of that one.

use std::collections::BTreeMap;
use std::fmt;

use seriatim_ring::Seq;
use seriatim_ring::control::LIVE;
use seriatim_ring::reports::Report;
use seriatim_ring::sync::Ordering;

use crate::Digest;
use crate::name::Name;
use crate::region::Region;

/// What the reports of the workers that gate come to: one look, at what each of them [reported](crate::Worker::report)
/// last, up to 255 reports.
///
/// A worker that has not reported since it joined is no part of the comparison, but [named](Self::silent). Of one that
/// has died or left, nothing is looked at any more, as soon as its gate has dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// The highest index that every worker that reports has reported, and all of them in the same way, before
    /// [any difference](Self::divergence). `None` if fewer than two report, if they differ as far back as can be seen,
    /// or if there is no such index among their last reports: they report different ones, or are too far apart.
    pub agreed: Option<Seq>,
    /// The lowest index, of those that can be seen, at which two of them differ.
    pub divergence: Option<Diverged>,
    /// The workers that gate, by slot.
    pub workers: Vec<Reporter>,
}

/// A worker that gates, and how far its reports go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reporter {
    /// Its slot.
    pub slot: u16,
    /// The member's number.
    pub number: u64,
    /// Its name.
    pub name: Name,
    /// Its process, as it says itself.
    pub pid: u32,
    /// The first and the last index of its reports that can be seen; `None` if it has not reported.
    pub reported: Option<(Seq, Seq)>,
}

/// Workers differ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diverged {
    /// The lowest index, of those that can be seen, for which they reported different things.
    pub seq: Seq,
    /// The highest index before it that all of [these](Self::reports) have reported, and in the same way: what makes
    /// them differ happened after it, and at [`seq`](Self::seq) at the latest. For workers that report every index that
    /// is `seq` alone. `None`: no such index can be seen, and they may differ since long ago.
    pub after: Option<Seq>,
    /// What differs.
    pub what: Difference,
    /// All reports for that index, by slot.
    pub reports: Vec<Reported>,
}

/// What differs between workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The digest: they did not see the same commands. That cannot be, unless something is broken.
    Digest,
    /// The fingerprint: they made different things of the same commands.
    Fingerprint,
}

/// What one worker reported for an index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reported {
    /// Its slot.
    pub slot: u16,
    /// The member's number.
    pub number: u64,
    /// Its name.
    pub name: Name,
    /// Its process, as it says itself.
    pub pid: u32,
    /// The digest of all commands up to this one, with it.
    pub digest: Digest,
    /// What the worker made of them.
    pub fingerprint: u64,
}

impl Agreement {
    /// The workers that gate and have not reported since they joined.
    pub fn silent(&self) -> impl Iterator<Item = &Reporter> {
        self.workers.iter().filter(|worker| worker.reported.is_none())
    }

    /// The workers that gate and report.
    pub fn reporting(&self) -> impl Iterator<Item = &Reporter> {
        self.workers.iter().filter(|worker| worker.reported.is_some())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Difference::Digest => "digest",
            Difference::Fingerprint => "fingerprint",
        })
    }
}

impl fmt::Display for Diverged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index {} (", self.seq)?;
        match self.after {
            Some(after) => write!(f, "the same at {after}")?,
            None => f.write_str("nothing the same before it can be seen")?,
        }
        for (n, report) in self.reports.iter().enumerate() {
            let Reported { name, slot, pid, digest, fingerprint, .. } = report;
            let value = match self.what {
                Difference::Digest => *digest,
                Difference::Fingerprint => Digest(*fingerprint),
            };
            let before = if n == 0 { format!("): {} ", self.what) } else { ", ".into() };
            write!(f, "{before}{value} of worker {:?} (slot {slot}, pid {pid})", name.as_str())?;
        }
        Ok(())
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reporting = self.reporting();
        match (&self.divergence, self.agreed, reporting.next(), reporting.next()) {
            (Some(diverged), ..) => write!(f, "DIVERGED at {diverged}")?,
            (None, Some(seq), ..) => write!(f, "agreed up to index {seq}")?,
            (.., None, _) => return f.write_str("nobody reports"),
            (.., Some(only), None) => write!(f, "worker {:?} alone reports", only.name.as_str())?,
            _ => f.write_str("no index that all have reported can be seen")?,
        }
        for (n, worker) in self.silent().enumerate() {
            f.write_str(if n == 0 { "; not reporting: " } else { ", " })?;
            write!(f, "worker {:?} (slot {}, pid {})", worker.name.as_str(), worker.slot, worker.pid)?;
        }
        Ok(())
    }
}

impl Region {
    /// Compares what the workers that gate have [reported](crate::Worker::report). Needs read rights only, gates nobody,
    /// changes nothing, and works on a region that nobody serves.
    ///
    /// It sees the last 255 reports of each: who compares less often than that may find a difference late, and then
    /// not know where it began.
    ///
    /// ```
    /// use seriatim::{Config, Event, Producer, Region, Seq, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let mut workers = [Worker::join(&region, "red")?, Worker::join(&region, "green")?];
    /// let mut producer = Producer::attach(&region, "p")?;
    /// producer.submit_batch(&[(0, b"2"), (0, b"3"), (0, b"4")])?;
    /// for worker in &mut workers {
    ///     let mut sum = 0;
    ///     while sum < 9 {
    ///         if let Event::Command(command) = worker.recv()? {
    ///             sum += u64::from(command.payload[0] - b'0');
    ///         }
    ///         worker.report(sum)?; // of the state after this index
    ///     }
    /// }
    /// let last = Seq::new(workers[0].next().get() - 1);
    /// assert_eq!((region.agreement().agreed, region.agreement().divergence), (Some(last), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        let slots = 0..self.geometry().workers as u16;
        compare(slots.filter_map(|slot| self.heard_from(slot)).collect())
    }

    /// What the worker of a slot reported, if it gates and is the same before and after.
    fn heard_from(&self, slot: u16) -> Option<Heard> {
        let (member, page) = (&self.map().members()[usize::from(slot)], self.map().worker_page(slot));
        let number = || {
            let is_live = member.state.load(Ordering::Relaxed) == LIVE;
            is_live.then(|| member.number.load(Ordering::Relaxed))
        };
        let before = number()?;
        let mut reports = BTreeMap::new();
        for Report { index, digest, fingerprint, .. } in page.reports.recent().filter(|r| r.member == before)
        {
            // Of two for one index the later counts.
            reports.insert(Seq::new(index), (Digest(digest), fingerprint));
        }
        let ends = reports.keys().next().copied().zip(reports.keys().next_back().copied());
        let who = Reporter {
            slot,
            number: before,
            name: Name::from_words(member.name.load()),
            pid: page.party.pid.load(Ordering::Relaxed) as u32,
            reported: ends,
        };
        (number() == Some(before)).then_some(Heard { who, reports })
    }
}

/// A worker and what it reported, by index.
#[derive(Clone, Debug)]
struct Heard {
    who: Reporter,
    reports: BTreeMap<Seq, (Digest, u64)>,
}

impl Heard {
    fn at(&self, seq: Seq) -> Option<Reported> {
        let &(digest, fingerprint) = self.reports.get(&seq)?;
        let Reporter { slot, number, name, pid, .. } = self.who;
        Some(Reported { slot, number, name, pid, digest, fingerprint })
    }
}

fn compare(heard: Vec<Heard>) -> Agreement {
    let what = |(n, heard): (usize, &Heard)| -> Vec<_> {
        heard.reports.iter().map(|(&seq, &(digest, fingerprint))| (seq, n, digest.0, fingerprint)).collect()
    };
    // All that was said, by index: looked at once each, however many workers there are.
    let mut said: Vec<_> = heard.iter().enumerate().flat_map(what).collect();
    said.sort_unstable();
    let reporting = heard.iter().filter(|heard| !heard.reports.is_empty()).count();
    let (mut agreed, mut divergence) = (None, None);
    for same in said.chunk_by(|one, other| one.0 == other.0) {
        let (seq, _, digest, fingerprint) = same[0];
        if same.iter().any(|one| (one.2, one.3) != (digest, fingerprint)) {
            divergence = difference_at(&heard, seq);
            break;
        }
        if reporting > 1 && same.len() == reporting {
            agreed = Some(seq);
        }
    }
    Agreement { agreed, divergence, workers: heard.into_iter().map(|heard| heard.who).collect() }
}

/// How those differ who reported this index, if they do; before it, nobody does.
fn difference_at(heard: &[Heard], seq: Seq) -> Option<Diverged> {
    let reports: Vec<_> = heard.iter().filter_map(|heard| heard.at(seq)).collect();
    let what = match reports.split_first()? {
        (first, rest) if rest.iter().any(|other| other.digest != first.digest) => Difference::Digest,
        (first, rest) if rest.iter().any(|other| other.fingerprint != first.fingerprint) => {
            Difference::Fingerprint
        }
        _ => return None,
    };
    let mut these = heard.iter().filter(|heard| heard.reports.contains_key(&seq));
    let first = these.next()?;
    let others: Vec<_> = these.collect();
    let by_all = |seq: &&Seq| others.iter().all(|other| other.reports.contains_key(seq));
    let after = first.reports.range(..seq).map(|(seq, _)| seq).rfind(by_all).copied();
    Some(Diverged { seq, after, what, reports })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn heard(slot: u16, reports: &[(u64, u64)]) -> Heard {
        let reports: BTreeMap<_, _> =
            reports.iter().map(|&(seq, print)| (Seq::new(seq), (Digest(seq * 7), print))).collect();
        let ends = reports.keys().next().copied().zip(reports.keys().next_back().copied());
        let name = Name::new(&format!("w{slot}")).unwrap();
        Heard { who: Reporter { slot, number: 10, name, pid: 5, reported: ends }, reports }
    }

    /// What is agreed; where they differ, and after what.
    fn found(heard: &[Heard]) -> (Option<u64>, Option<(u64, Option<u64>)>) {
        let Agreement { agreed, divergence, .. } = compare(heard.to_vec());
        (agreed.map(Seq::get), divergence.map(|at| (at.seq.get(), at.after.map(Seq::get))))
    }

    #[test]
    fn what_all_who_report_have_reported_is_agreed() {
        let dense = heard(0, &[(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
        let rare = heard(1, &[(2, 2), (4, 4)]);
        let silent = heard(2, &[]);
        assert_eq!(found(&[]), (None, None));
        assert_eq!(found(&[silent.clone(), dense.clone()]), (None, None), "one alone says nothing");
        assert_eq!(found(&[dense.clone(), rare.clone(), silent.clone()]), (Some(4), None));
        assert_eq!(found(&[dense.clone(), rare.clone(), heard(3, &[(2, 2)])]), (Some(2), None));
        assert_eq!(found(&[dense.clone(), rare, heard(3, &[(1, 1)])]), (None, None), "none of all three");
        assert_eq!(found(&[dense, heard(1, &[(6, 6), (7, 7)])]), (None, None), "too far apart");
    }

    #[test]
    fn a_difference_is_told_with_the_last_place_where_there_was_none() {
        let dense = heard(0, &[(1, 1), (2, 2), (3, 3), (4, 4)]);
        assert_eq!(
            found(&[dense.clone(), heard(1, &[(1, 1), (2, 2), (3, 9), (4, 9)])]),
            (Some(2), Some((3, Some(2))))
        );
        // One that does not report what it has skipped is found at the next index that it does report.
        assert_eq!(
            found(&[dense.clone(), heard(1, &[(1, 1), (2, 2), (4, 9)])]),
            (Some(2), Some((4, Some(2))))
        );
        // What goes before is not seen any more.
        assert_eq!(found(&[dense.clone(), heard(1, &[(3, 9), (4, 9)])]), (None, Some((3, None))));
        // Two differ at an index that the third has not reported; where all three agree is before that.
        let third = heard(2, &[(1, 1), (4, 4)]);
        let second = heard(1, &[(1, 1), (2, 2), (3, 9)]);
        assert_eq!(found(&[dense.clone(), second, third]), (Some(1), Some((3, Some(2)))));
        // They agree again: that is told by the reports, and changes nothing about the past.
        assert_eq!(found(&[dense, heard(1, &[(2, 8), (3, 3), (4, 4)])]), (None, Some((2, None))));
    }

    #[test]
    fn a_difference_names_everybody_with_what_they_said() {
        let (red, green) = (heard(0, &[(6, 1), (7, 0xab)]), heard(1, &[(6, 1), (7, 0xcd)]));
        let mut broken = green.clone();
        let text = |heard: &[Heard]| compare(heard.to_vec()).to_string();
        assert_eq!(
            text(&[red.clone(), green.clone(), heard(2, &[])]),
            "DIVERGED at index 7 (the same at 6): fingerprint 00000000000000ab of worker \"w0\" (slot 0, pid 5), \
             00000000000000cd of worker \"w1\" (slot 1, pid 5); not reporting: worker \"w2\" (slot 2, pid 5)"
        );
        broken.reports.insert(Seq::new(6), (Digest(1), 1));
        let found = compare(vec![red.clone(), broken]).divergence.unwrap();
        assert_eq!((found.seq, found.what), (Seq::new(6), Difference::Digest));
        assert!(found.to_string().contains("digest 000000000000002a of worker \"w0\""), "{found}");
        assert_eq!(text(&[red.clone(), red.clone()]), "agreed up to index 7");
        assert_eq!(text(&[heard(2, &[])]), "nobody reports");
        assert!(
            text(&[heard(2, &[]), red.clone()]).starts_with("worker \"w0\" alone reports; not reporting")
        );
        assert_eq!(text(&[red, heard(1, &[(9, 9)])]), "no index that all have reported can be seen");
    }

    proptest! {
        /// Against the definition, index by index.
        #[test]
        fn what_is_found_is_what_is_defined(
            said in prop::collection::vec(prop::collection::btree_map(0..24_u64, 0..3_u64, 0..24), 0..5),
            same in 0..24_u64,
        ) {
            // Before `same` all say the same, so that they also agree somewhere.
            let said: Vec<Vec<(u64, u64)>> = said
                .into_iter()
                .map(|said| said.into_iter().map(|(at, n)| (at, if at < same { 0 } else { n })).collect())
                .collect();
            let all: Vec<_> = said.iter().enumerate().map(|(slot, said)| heard(slot as u16, said)).collect();
            let at = |seq: u64| -> Vec<u64> {
                said.iter().flat_map(|said| said.iter().filter(|s| s.0 == seq).map(|s| s.1)).collect()
            };
            let differ = (0..24).find(|&seq| at(seq).iter().collect::<BTreeSet<_>>().len() > 1);
            let reporting = said.iter().filter(|said| !said.is_empty()).count();
            let is_agreed = |&seq: &u64| reporting > 1 && at(seq).len() == reporting && differ.is_none_or(|d| seq < d);
            let agreed = (0..24).rfind(is_agreed);
            let at_all = |seq: u64, d: u64| {
                let said_at = |seq| move |said: &&Vec<(u64, u64)>| said.iter().any(|s| s.0 == seq);
                said.iter().filter(said_at(d)).all(|said| said_at(seq)(&said))
            };
            let after = |d: u64| (0..d).rev().find(|&seq| at_all(seq, d));
            prop_assert_eq!(found(&all), (agreed, differ.map(|d| (d, after(d)))));
        }
    }
}
