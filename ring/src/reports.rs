//! Reports: what a worker says of itself at an index, the last few of them, for whoever compares workers.
//!
//! ```text
//! written │ slot │ slot │ …       report n lies in slot n % N; those before `written` are whole, but for the oldest
//! slot      index │ digest │ fingerprint │ member
//!
//! push     1. release fence       2. the slot of report `written`   3. written + 1 (release)
//! recent   1. written (acquire)   2. a slot                         3. acquire fence   4. written again: still kept?
//! ```
//!
//! One word says how many there have been, and it only grows: from one worker of a page to the next, too. So a report
//! that is being overwritten needs no mark: it is the one that lies N before `written`, and nobody takes that for a
//! report. A writer that dies in the middle leaves the same, and all others whole. What a former worker of the page
//! reported has another member's number.

use crate::pad::Padded;
use crate::sync::{AtomicU64, Ordering, fence};

/// Slots for reports in a worker's page. In a model it has next to none: models of reports have their own.
pub const REPORTS: usize = if cfg!(loom) { 1 } else { 256 };

/// What a worker says of itself at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The index.
    pub index: u64,
    /// The digest of all commands up to this one, with it.
    pub digest: u64,
    /// What the worker made of them, in its own terms.
    pub fingerprint: u64,
    /// The worker's number. Nobody has 0: a slot that was never written holds no report.
    pub member: u64,
}

#[repr(C, align(32))]
#[derive(Debug)]
struct Slot([AtomicU64; 4]);

impl Slot {
    fn store(&self, report: Report) {
        let Report { index, digest, fingerprint, member } = report;
        for (place, word) in self.0.iter().zip([index, digest, fingerprint, member]) {
            place.store(word, Ordering::Relaxed);
            crash_point!("report.word");
        }
    }

    fn load(&self) -> Report {
        let [index, digest, fingerprint, member] =
            core::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        Report { index, digest, fingerprint, member }
    }
}

/// A worker's reports: the last `N - 1` of them, written by it and read by any.
#[repr(C)]
#[derive(Debug)]
pub struct Reports<const N: usize> {
    written: Padded<AtomicU64>,
    slots: [Slot; N],
}

impl<const N: usize> Reports<N> {
    /// No reports; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        const { assert!(N > 0) };
        let slot = || Slot(core::array::from_fn(|_| AtomicU64::new(0)));
        Reports { written: Padded(AtomicU64::new(0)), slots: core::array::from_fn(|_| slot()) }
    }

    /// How many of the last reports can be read.
    pub const KEPT: usize = N - 1;

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % N as u64) as usize]
    }

    /// Adds a report; the oldest goes. Only the owner of the page calls this.
    pub fn push(&self, report: Report) {
        // Relaxed: only this party writes it; a predecessor's is handed over by the fall of its lock.
        let number = self.written.load(Ordering::Relaxed);
        // ORDERING [A2]: pairs with the acquire fence in `recent`. Whoever reads one of the new words also sees that
        // so many were written, by which the report that they replace is no longer kept.
        fence(Ordering::Release);
        self.slot(number).store(report);
        // ORDERING [A1]: Release; pairs with the Acquire in `recent`: whoever counts the report sees its words.
        self.written.store(number.wrapping_add(1), Ordering::Release);
        crash_point!("report.written");
    }

    /// The reports that are kept, oldest first. One that is overwritten meanwhile is left out.
    pub fn recent(&self) -> impl Iterator<Item = Report> + '_ {
        let written = self.written();
        let kept = (1..N as u64).rev().map(move |age| written.wrapping_sub(age));
        kept.filter_map(|number| self.whole(number)).filter(|report| report.member != 0)
    }

    /// The report for an index, if it is kept. Of a page whose reports are for indexes that grow.
    pub fn at(&self, index: u64) -> Option<Report> {
        let written = self.written();
        let kept = |age: u64| self.whole(written.wrapping_sub(age)).filter(|report| report.member != 0);
        let newest = (1..N as u64).find_map(kept)?;
        // Of one who reports each index it lies so far back, and of nobody farther.
        let back = newest.index.checked_sub(index)?.saturating_add(1).min(Self::KEPT as u64);
        let mut found = (1..=back).rev().filter_map(kept).take_while(|report| report.index <= index);
        found.find(|report| report.index == index)
    }

    /// How many there have been.
    #[inline]
    fn written(&self) -> u64 {
        // ORDERING [A1]: Acquire; pairs with the Release in `push`: the words of all reports before are visible.
        self.written.load(Ordering::Acquire)
    }

    /// A report that was kept when somebody looked, if it still is.
    fn whole(&self, number: u64) -> Option<Report> {
        let report = self.slot(number).load();
        // ORDERING [A2]: pairs with the release fence in `push`.
        fence(Ordering::Acquire);
        let written = self.written.load(Ordering::Relaxed);
        (written.wrapping_sub(number) < N as u64).then_some(report)
    }
}

impl<const N: usize> Default for Reports<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 32);

#[cfg(all(test, not(loom)))]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn report(index: u64, member: u64) -> Report {
        Report { index, digest: index * 10, fingerprint: index * 100, member }
    }

    fn recent<const N: usize>(reports: &Reports<N>) -> Vec<Report> {
        reports.recent().collect()
    }

    #[test]
    fn the_last_ones_are_kept_oldest_first() {
        let reports = Reports::<4>::new();
        assert_eq!(recent(&reports), []);
        for n in 0..20 {
            reports.push(report(n, 7));
            let first = (n + 1).saturating_sub(3);
            assert_eq!(recent(&reports), (first..=n).map(|n| report(n, 7)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_count_goes_on_from_one_worker_to_the_next_and_around() {
        let reports = Reports::<4>::new();
        reports.written.store(u64::MAX - 1, Ordering::Relaxed);
        reports.push(report(5, 1));
        reports.push(report(9, 2));
        reports.push(report(9, 2));
        assert_eq!(recent(&reports), [report(5, 1), report(9, 2), report(9, 2)]);
        assert_eq!(reports.written.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_report_is_found_by_its_index() {
        for steps in [&[1, 2, 3, 4, 5, 6, 7][..], &[3, 30, 31, 40, 90], &[5], &[]] {
            let reports = Reports::<6>::new();
            steps.iter().for_each(|&n| reports.push(report(n, 2)));
            for n in 0..100 {
                let kept = &steps[steps.len().saturating_sub(5)..];
                assert_eq!(reports.at(n), kept.contains(&n).then(|| report(n, 2)), "{n} of {steps:?}");
            }
        }
    }

    #[test]
    fn the_smallest_ring_keeps_nothing_and_the_next_one_the_last() {
        let (none, one) = (Reports::<1>::new(), Reports::<2>::new());
        for n in 0..3 {
            none.push(report(n, 1));
            one.push(report(n, 1));
            assert_eq!((recent(&none), recent(&one)), (Vec::new(), Vec::from([report(n, 1)])));
        }
    }

    #[test]
    fn whatever_the_count_is_damaged_to_nothing_is_made_up() {
        let reports = Reports::<4>::new();
        (0..4).for_each(|n| reports.push(report(n, 1)));
        for damaged in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63] {
            reports.written.store(damaged, Ordering::Relaxed);
            assert!(reports.recent().count() <= 3);
            reports.push(report(8, 1));
            assert_eq!(reports.recent().last(), Some(report(8, 1)));
        }
    }
}
