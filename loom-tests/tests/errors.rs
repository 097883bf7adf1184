//! The error log: what is readable is whole, and one error has one slot.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::model;
use seriatim_ring::errors::{ErrorLog, ErrorSlot, Found, Report};
use seriatim_ring::pad::Padded;
use seriatim_ring::sync::AtomicU64;
use std::sync::Arc;

const SAID: Report = Report { code: 1, pid: 2, detail: 3, who: [4, 5, 6, 7], what: [8] };

struct Memory {
    lost: Padded<AtomicU64>,
    slots: Vec<ErrorSlot>,
}

impl Memory {
    fn new(slots: usize) -> Arc<Memory> {
        let slots = (0..slots).map(|_| ErrorSlot::new()).collect();
        Arc::new(Memory { lost: Padded(AtomicU64::new(0)), slots })
    }

    fn log(&self) -> ErrorLog<'_> {
        ErrorLog::new(&self.lost, &self.slots)
    }
}

/// Guards E1 (`ready` / `read`): one records while another reads.
///
/// Allowed: nothing yet, unreadable, or the error, whole. Forbidden: a part of it.
#[test]
fn what_is_readable_is_whole() {
    model("errors/read", 3, &["nothing", "unreadable", "whole"], |outcomes| {
        let memory = Memory::new(1);
        let other = thread::spawn({
            let memory = Arc::clone(&memory);
            move || assert!(memory.log().record(9, &SAID, 10))
        });
        for found in memory.log().read() {
            match found {
                Found::Empty => outcomes.note("nothing"),
                Found::Unreadable => outcomes.note("unreadable"),
                Found::Error(report, times) => {
                    assert_eq!((report, times.first), (SAID, 10));
                    outcomes.note("whole");
                }
            }
        }
        other.join().unwrap();
    });
}

/// Two record the same error, which both begin to look for at the second of two slots.
///
/// Allowed: one slot with both. Forbidden: the error in two slots, or one that is not counted.
#[test]
fn one_error_has_one_slot() {
    model("errors/two", 1, &["one"], |outcomes| {
        let memory = Memory::new(2);
        let other = thread::spawn({
            let memory = Arc::clone(&memory);
            move || assert!(memory.log().record(9, &SAID, 10))
        });
        assert!(memory.log().record(9, &SAID, 10));
        other.join().unwrap();
        let errors: Vec<_> = memory.log().read().filter(|found| *found != Found::Empty).collect();
        assert!(matches!(errors[..], [Found::Error(SAID, times)] if times.count == 2), "{errors:?}");
        outcomes.note("one");
    });
}
