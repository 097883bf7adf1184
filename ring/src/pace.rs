//! Pace: how far a worker is with its reports, and the difference that it found; for regions that are poisoned when
//! workers differ.
//!
//! ```text
//! worker    report for i ─▶ done = i + 1 ─▶ fence ─▶ others' reports for i: not the same? ─▶ what it found
//! others    given i + 1 only when everybody is done with i + 1 - window
//! ```
//!
//! Of two who report the same index, whoever does it later finds the other's report, for nobody is so far ahead that
//! it is no longer kept; of two who do it at once, at least one does. So a difference is found at the index where it
//! begins, by one of those who differ, before that one is given anything more.

use crate::control::tell;
use crate::reports::{Report, Reports};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Two reports for one index that are not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The highest index before it that both have reported, and in the same way, if that is still to be seen.
    pub after: Option<u64>,
    /// Slot and report of the worker that found it.
    pub mine: (u16, Report),
    /// Slot and report of the other one, for the same index.
    pub other: (u16, Report),
}

impl Finding {
    /// The index.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.mine.1.index
    }

    /// Whether the digests differ; if not, the fingerprints do.
    #[must_use]
    pub fn is_of_digests(&self) -> bool {
        self.mine.1.digest != self.other.1.digest
    }
}

/// How far a worker is, in its own page.
#[repr(C)]
#[derive(Debug)]
pub struct Pace {
    done: AtomicU64,
    /// The index of what it found, plus 1; 0 as long as it has found nothing. Written once.
    found: AtomicU64,
    words: [AtomicU64; 8],
}

impl Pace {
    /// Nothing done, nothing found; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Pace { done: zero(), found: zero(), words: core::array::from_fn(|_| zero()) }
    }

    /// Where a worker begins. Before it [begins](crate::control::Party::begin), which hands it over.
    pub fn begin_at(&self, first: u64) {
        self.done.store(first, Ordering::Relaxed);
    }

    /// The worker has made all its reports for indexes before `next`.
    pub fn finish(&self, next: u64) {
        // ORDERING [D1]: Release; pairs with the Acquire in `done`: who sees it done with an index sees its report.
        self.done.store(next, Ordering::Release);
        crash_point!("pace.done");
    }

    /// The worker has made all its reports for indexes before this.
    #[must_use]
    pub fn done(&self) -> u64 {
        // ORDERING [D1]: Acquire; pairs with the Release in `finish`.
        self.done.load(Ordering::Acquire)
    }

    /// Says what it found, and that there is something to look at. The first time counts.
    pub fn tell(&self, finding: &Finding, requests: &AtomicU32) {
        let Finding { after, mine: (slot, mine), other: (other_slot, other) } = *finding;
        // Relaxed: only this party writes it.
        if self.found.load(Ordering::Relaxed) != 0 {
            return;
        }
        let slots = u64::from(slot) | u64::from(other_slot) << 16;
        let after = after.map_or(0, |after| after + 1);
        let Report { index, digest, fingerprint, member } = mine;
        let words =
            [slots, after, member, digest, fingerprint, other.member, other.digest, other.fingerprint];
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        crash_point!("pace.described");
        // ORDERING [D3]: Release; pairs with the Acquire in `found`: who sees that there is something sees what.
        self.found.store(index + 1, Ordering::Release);
        crash_point!("pace.found");
        tell(requests);
    }

    /// The index of what it found.
    #[inline]
    #[must_use]
    pub fn found_at(&self) -> Option<u64> {
        // ORDERING [D3]: Acquire; pairs with the Release in `tell`.
        self.found.load(Ordering::Acquire).checked_sub(1)
    }

    /// What it found.
    #[must_use]
    pub fn found(&self) -> Option<Finding> {
        let index = self.found_at()?;
        let [slots, after, member, digest, fingerprint, others, its_digest, its_fingerprint] =
            core::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        let mine = Report { index, digest, fingerprint, member };
        let other = Report { index, digest: its_digest, fingerprint: its_fingerprint, member: others };
        let after = after.checked_sub(1);
        Some(Finding { after, mine: (slots as u16, mine), other: ((slots >> 16) as u16, other) })
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}

/// Between one's own report for an index and the look at others' for it. Also step 2 of one who wakes others.
#[inline]
pub fn reported() {
    // ORDERING [D2]: SeqCst; pairs with itself in another worker. Store buffering: of two who report one index, at least
    // one sees the report of the other.
    fence(Ordering::SeqCst);
}

/// The report of another one for the same index, if it is kept and says something else.
#[must_use]
pub fn differs<const N: usize>(mine: &Report, others: &Reports<N>) -> Option<Report> {
    let other = others.at(mine.index)?;
    (other.digest != mine.digest || other.fingerprint != mine.fingerprint).then_some(other)
}

/// The highest index before one that both have reported; what they said there was the same, or they would have been
/// found to differ then.
#[must_use]
pub fn last_before<const N: usize>(index: u64, one: &Reports<N>, other: &Reports<N>) -> Option<u64> {
    let both = |report: &Report| report.index < index && other.at(report.index).is_some();
    one.recent().filter(both).map(|report| report.index).last()
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Pace>() == 80);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn report(index: u64, fingerprint: u64) -> Report {
        Report { index, digest: index * 10, fingerprint, member: 3 }
    }

    #[test]
    fn what_is_found_is_told_whole_and_once() {
        let (pace, requests) = (Pace::new(), AtomicU32::new(0));
        assert_eq!((pace.found(), pace.found_at()), (None, None));
        let other = Report { member: 9, ..report(0, 2) };
        let first = Finding { after: None, mine: (1023, report(0, 1)), other: (7, other) };
        pace.tell(&first, &requests);
        pace.tell(&Finding { after: Some(4), mine: (1, report(5, 1)), other: (2, report(5, 2)) }, &requests);
        assert_eq!((pace.found(), pace.found_at()), (Some(first), Some(0)));
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        assert!(!first.is_of_digests());
    }

    #[test]
    fn reports_for_one_index_are_compared_and_the_last_common_one_is_found() {
        let [red, green] = [Reports::<8>::new(), Reports::<8>::new()];
        for index in [3, 4, 6, 9] {
            red.push(report(index, index));
        }
        for index in [2, 4, 5] {
            green.push(report(index, index));
        }
        assert_eq!(differs(&report(4, 4), &green), None);
        assert_eq!(differs(&report(6, 4), &green), None, "that one is not reported");
        assert_eq!(differs(&report(4, 5), &green), Some(report(4, 4)));
        assert_eq!(differs(&Report { digest: 1, ..report(5, 5) }, &green), Some(report(5, 5)));
        assert_eq!(last_before(9, &red, &green), Some(4));
        assert_eq!(last_before(4, &red, &green), None);
    }
}
