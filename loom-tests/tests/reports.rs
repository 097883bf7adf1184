//! Reports: what is read is whole, and what a dead worker left is readable.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::crash::{model_of_death, mortal};
use seriatim_loom_tests::model;
use seriatim_ring::reports::{Report, Reports};
use std::sync::Arc;

/// Words that belong together, and to no other report.
fn report(n: u64) -> Report {
    Report { index: 40 + n, digest: 100 + n, fingerprint: 200 + n, member: 300 + n }
}

fn is_whole(found: &Report) -> bool {
    (0..4).any(|n| *found == report(n))
}

/// Guards A1 (`written` / `recent`): who counts a report sees its words.
///
/// Allowed: nothing yet, or the report, whole. Forbidden: a part of it.
#[test]
fn a_report_that_counts_is_whole() {
    model("reports/whole", 5, &["nothing", "whole"], |outcomes| {
        let reports = Arc::new(Reports::<2>::new());
        let writer = thread::spawn({
            let reports = Arc::clone(&reports);
            move || reports.push(report(0))
        });
        let found: Vec<_> = reports.recent().collect();
        assert!(found.iter().all(is_whole), "{found:?}");
        outcomes.note(if found.is_empty() { "nothing" } else { "whole" });
        writer.join().unwrap();
    });
}

/// Guards A2 (the fences): a worker reports twice, over what somebody reads.
///
/// Allowed: what was there, what came, or nothing where it was overwritten meanwhile. Forbidden: a mix of two.
#[test]
fn a_report_that_is_overwritten_is_left_out() {
    model("reports/overwritten", 3, &["first", "left out", "later"], |outcomes| {
        let reports = Arc::new(Reports::<2>::new());
        reports.push(report(0));
        let writer = thread::spawn({
            let reports = Arc::clone(&reports);
            move || (1..3).for_each(|n| reports.push(report(n)))
        });
        let found: Vec<_> = reports.recent().collect();
        assert!(found.iter().all(is_whole), "{found:?}");
        outcomes.note(match found.first() {
            None => "left out",
            Some(found) if *found == report(0) => "first",
            Some(_) => "later",
        });
        writer.join().unwrap();
    });
}

/// A worker stops before any store of a report, while somebody reads; then its successor in the page reports.
///
/// Forbidden: that anything but whole reports is ever read, that the last whole one is lost, or that the successor's
/// is.
#[test]
fn a_worker_that_dies_in_a_report_leaves_the_last_whole_one() {
    model_of_death("reports/death", 2, &["before", "reported"], |step, outcomes| {
        let reports = Arc::new(Reports::<3>::new());
        (0..2).for_each(|n| reports.push(report(n)));
        let writer = thread::spawn({
            let reports = Arc::clone(&reports);
            move || mortal(step, || reports.push(report(2))).is_none()
        });
        let found: Vec<_> = reports.recent().collect();
        assert!(found.iter().all(is_whole), "{found:?}");
        let died = writer.join().unwrap();
        let left: Vec<_> = reports.recent().collect();
        outcomes.note(match (died, left.as_slice()) {
            (true, [a, b]) if (*a, *b) == (report(0), report(1)) => "before",
            (false, [a, b]) if (*a, *b) == (report(1), report(2)) => "reported",
            other => panic!("{other:?}"),
        });
        reports.push(report(3));
        assert_eq!(reports.recent().last(), Some(report(3)));
        assert!(reports.recent().all(|found| is_whole(&found)));
        died
    });
}
