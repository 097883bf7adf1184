//! Forks: a child that inherits handles must neither use them nor keep its parent's locks alive.
//!
//! The kernel gives a forked child the parent's mappings and descriptors. Two of those matter here. A lock
//! belongs to an open description, so a descriptor that the child inherits would keep the lock of a parent that
//! has died: a handler that runs in the child closes them all. And a handle that is used or dropped in the child
//! would write into pages that are the parent's: every handle asks [`is_child`] first, which reads a word that
//! the kernel wipes in children.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::sys;

/// Locks that a process can hold at once and still have closed in its children; more stay open there, and keep
/// their locks for as long as the child lives.
const LOCKS: usize = 4096;

/// The descriptors that hold locks; 0 is none, for that is never ours.
static HELD: [AtomicI32; LOCKS] = [const { AtomicI32::new(0) }; LOCKS];

/// A word that is [`CALM`] in the process that attached, and 0 in its children.
static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// Nothing is known to be wrong.
const CALM: u64 = 1;
/// Some mapping of this process has lost pages.
const DISTURBED: u64 = 2;

/// Prepares this process for forks; before its first lock is taken.
pub(crate) fn watch() {
    WORD.get_or_init(|| {
        let word = sys::word_wiped_on_fork()?;
        word.store(CALM, Ordering::Relaxed);
        sys::in_forked_children(close_locks).then_some(word)
    });
}

/// Whether forks of this process are noticed: a kernel from 2017 or later.
pub(crate) fn is_watched() -> bool {
    WORD.get().copied().flatten().is_some()
}

/// Has every handle of this process look at what it stands on before it goes on. Async-signal-safe.
pub(crate) fn disturb() {
    if let Some(word) = WORD.get().copied().flatten() {
        let _ = word.compare_exchange(CALM, DISTURBED, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// What a handle looks at before each step: whether it has to ask [`is_child`] and its region first. One look for both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alarm(&'static AtomicU64);

impl Alarm {
    /// That of this process.
    pub(crate) fn of_this_process() -> Alarm {
        static NEVER: AtomicU64 = AtomicU64::new(CALM);
        watch();
        Alarm(WORD.get().copied().flatten().unwrap_or(&NEVER))
    }

    #[inline]
    pub(crate) fn is_raised(self) -> bool {
        // Relaxed: the kernel wipes the word before a child runs; a fault comes before what follows it in its thread.
        self.0.load(Ordering::Relaxed) != CALM
    }
}

/// Whether this process is a forked child of the one that attached: its handles are not its own.
pub(crate) fn is_child() -> bool {
    // Relaxed: the kernel wipes the word before the child runs.
    WORD.get().copied().flatten().is_some_and(|word| word.load(Ordering::Relaxed) == 0)
}

/// Notes a descriptor that holds a lock.
pub(crate) fn note(fd: i32) {
    let free = |held: &&AtomicI32| {
        // Relaxed: the child sees the memory of the thread that forked; what another thread is about to note is
        // a lock that it has not taken yet.
        held.compare_exchange(0, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let _ = HELD.iter().find(free);
}

/// Forgets a descriptor that is about to be closed.
pub(crate) fn forget(fd: i32) {
    let ours = |held: &&AtomicI32| held.compare_exchange(fd, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let _ = HELD.iter().find(ours);
}

/// Runs in every forked child, before anything else of it: system calls only.
extern "C" fn close_locks() {
    for held in &HELD {
        let fd = held.swap(0, Ordering::Relaxed);
        if fd != 0 {
            sys::close(fd);
        }
    }
}
