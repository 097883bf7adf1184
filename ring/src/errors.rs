//! The error log: what went wrong and how often, kept where everybody can read it, also after all have died.
//!
//! ```text
//! log    lost │ slot │ slot │ …
//! slot   key │ ready │ code, pid │ count │ first │ last │ detail │ who │ what
//! ```
//!
//! Its size is fixed, and an error that comes again costs no room: a slot belongs to one *key*, a hash of all that
//! tells errors apart. A recorder looks for its key, from the slot that the key names on; it takes the first slot
//! without a key by a swap. Any party may record, and may die while it does.
//!
//! Who and what follow from the key, so whoever finds its key writes the same words, and need not know whether
//! the one who took the slot lived to write them: at worst an error stays unreadable until it comes again.

use crate::control::{NameCell, NameWords};
use crate::pad::Padded;
use crate::sync::{AtomicU64, Ordering};

/// Words of what happened.
pub const TEXT_WORDS: usize = if cfg!(loom) { 1 } else { 20 };
/// What happened, as text in words, padded with zeroes.
pub type TextWords = [u64; TEXT_WORDS];

/// One error, however often it came.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct ErrorSlot {
    key: AtomicU64,
    ready: AtomicU64,
    code: AtomicU64,
    count: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
    pid: AtomicU64,
    detail: AtomicU64,
    who: NameCell,
    what: [AtomicU64; TEXT_WORDS],
}

/// What is recorded of an error, and what is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What kind of error it is.
    pub code: u64,
    /// Process that met it, the last time.
    pub pid: u64,
    /// A number that belongs to it, of the last time.
    pub detail: u64,
    /// Whom it concerns.
    pub who: NameWords,
    /// What happened.
    pub what: TextWords,
}

/// How often and when an error came. Times are the recorders'; the unit is theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How often.
    pub count: u64,
    /// The first time.
    pub first: u64,
    /// The last time.
    pub last: u64,
}

/// What a slot holds.
#[allow(clippy::large_enum_variant, reason = "there is no allocation here, and it is read for people")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Empty,
    /// An error whose recorder has not written it yet, or died before it did.
    Unreadable,
    /// An error.
    Error(Report, Times),
}

impl ErrorSlot {
    /// An empty slot; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        ErrorSlot {
            key: zero(),
            ready: zero(),
            code: zero(),
            count: zero(),
            first: zero(),
            last: zero(),
            pid: zero(),
            detail: zero(),
            who: NameCell::new(),
            what: core::array::from_fn(|_| zero()),
        }
    }

    /// Takes the slot for a key, or finds that it has it already.
    fn take(&self, key: u64) -> bool {
        let found = self.key.load(Ordering::Relaxed);
        if found != 0 {
            return found == key;
        }
        // Relaxed: the key hands nothing over, `ready` does.
        match self.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(found) => found == key,
        }
    }

    fn write(&self, report: &Report, now: u64) {
        // Relaxed: numbers that stand alone; of two who write at once either one is right.
        self.pid.store(report.pid, Ordering::Relaxed);
        self.detail.store(report.detail, Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.ready.load(Ordering::Relaxed) != 0 {
            return;
        }
        self.code.store(report.code, Ordering::Relaxed);
        self.first.store(now, Ordering::Relaxed);
        self.who.store(report.who);
        for (to, from) in self.what.iter().zip(report.what) {
            to.store(from, Ordering::Relaxed);
        }
        // ORDERING [E1]: Release; pairs with the Acquire in `read`: who finds it ready finds it whole.
        self.ready.store(1, Ordering::Release);
    }

    /// What the slot holds.
    pub fn read(&self) -> Found {
        if self.key.load(Ordering::Relaxed) == 0 {
            return Found::Empty;
        }
        // ORDERING [E1]: Acquire; pairs with the Release in `write`.
        if self.ready.load(Ordering::Acquire) == 0 {
            return Found::Unreadable;
        }
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let report = Report {
            code: word(&self.code),
            pid: word(&self.pid),
            detail: word(&self.detail),
            who: self.who.load(),
            what: core::array::from_fn(|i| word(&self.what[i])),
        };
        Found::Error(
            report,
            Times { count: word(&self.count), first: word(&self.first), last: word(&self.last) },
        )
    }
}

impl Default for ErrorSlot {
    fn default() -> Self {
        Self::new()
    }
}

/// The log, on borrowed slots.
#[derive(Clone, Copy, Debug)]
pub struct ErrorLog<'a> {
    lost: &'a Padded<AtomicU64>,
    slots: &'a [ErrorSlot],
}

impl<'a> ErrorLog<'a> {
    /// The log over this memory.
    #[must_use]
    pub fn new(lost: &'a Padded<AtomicU64>, slots: &'a [ErrorSlot]) -> Self {
        ErrorLog { lost, slots }
    }

    /// Records an error under a key that all its comings share and no other error has; whether there was room.
    pub fn record(&self, key: u64, report: &Report, now: u64) -> bool {
        let key = key.max(1);
        let len = self.slots.len();
        let start = (key % len.max(1) as u64) as usize;
        let slot = self.slots[start..].iter().chain(&self.slots[..start]).find(|slot| slot.take(key));
        match slot {
            Some(slot) => slot.write(report, now),
            // Relaxed: a count for people.
            None => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
        slot.is_some()
    }

    /// What its slots hold.
    pub fn read(&self) -> impl Iterator<Item = Found> + use<'a> {
        self.slots.iter().map(ErrorSlot::read)
    }

    /// How many errors found no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ErrorSlot>() == 256);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn report(text: u64) -> Report {
        Report { code: 1, pid: 2, detail: text, who: [3; 4], what: [text; TEXT_WORDS] }
    }

    #[test]
    fn what_comes_again_is_counted_and_what_finds_no_room_as_well() {
        let (lost, slots) = (Padded::default(), [ErrorSlot::new(), ErrorSlot::new()]);
        let log = ErrorLog::new(&lost, &slots);
        assert!(log.read().all(|found| found == Found::Empty));
        // All three begin their search at the same slot.
        assert!(
            log.record(3, &report(3), 10) && log.record(5, &report(5), 20) && log.record(3, &report(3), 30)
        );
        assert!(!log.record(7, &report(7), 40));
        assert_eq!(log.lost(), 1);
        let found: Vec<_> = log.read().collect();
        assert!(found.contains(&Found::Error(report(3), Times { count: 2, first: 10, last: 30 })));
        assert!(found.contains(&Found::Error(report(5), Times { count: 1, first: 20, last: 20 })));
    }

    #[test]
    fn an_error_whose_recorder_died_is_readable_when_it_comes_again() {
        let (lost, slots) = (Padded::default(), [ErrorSlot::new(), ErrorSlot::new()]);
        let log = ErrorLog::new(&lost, &slots);
        assert!(slots[1].take(9));
        assert!(log.read().any(|found| found == Found::Unreadable));
        log.record(9, &report(9), 50);
        assert!(
            matches!(slots[1].read(), Found::Error(whole, Times { first: 50, .. }) if whole == report(9))
        );
    }
}
