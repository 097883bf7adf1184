//! Assistance: where no core can be spared for the sequencer, the workers of its process do its turns.
//!
//! A worker that runs dry takes a turn, if nobody else has one just now, and so sees what is queued without a hand-over
//! to another thread; a producer does while it waits for room. The sequencer's own thread stands by: it looks each
//! [`TICK`] whether somebody has made turns since, and if not it serves as it would alone, until somebody does again. A
//! worker that goes to sleep calls it at once.
//!
//! **Invariant:** a turn is made by who holds the mutex, and nobody waits for it but the sequencer's own thread.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::{Sequencer, SequencerError};
use crate::assistance::Helped;

/// How long the sequencer's thread leaves the turns to others without a look.
const TICK: Duration = Duration::from_millis(1);
/// Runs that one who helps orders in one turn at most.
const BUDGET: usize = 64;

/// A sequencer that others help.
#[derive(Debug)]
pub(crate) struct Shared {
    /// `None` when its thread has ended.
    sequencer: Mutex<Option<Sequencer>>,
    /// What ended it in the hands of one who helped.
    failed: Mutex<Option<SequencerError>>,
    /// Turns that others made.
    turns: AtomicU64,
    /// Its thread leaves the turns to others.
    stands_by: AtomicBool,
    thread: Thread,
}

impl Shared {
    /// Of the calling thread.
    pub(crate) fn new(sequencer: Sequencer) -> Shared {
        Shared {
            sequencer: Mutex::new(Some(sequencer)),
            failed: Mutex::default(),
            turns: AtomicU64::new(0),
            stands_by: AtomicBool::new(false),
            thread: std::thread::current(),
        }
    }

    /// For its own thread, which waits until nobody else makes a turn; `None` if it ended in another's hands.
    pub(crate) fn lock(&self) -> Option<Held<'_>> {
        Held::of(self.sequencer.lock().ok()?)
    }

    /// What ended it in another's hands.
    pub(crate) fn failure(&self) -> SequencerError {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.unwrap_or_else(|| SequencerError::Panicked("in the thread of one who helped it".into()))
    }

    /// Turns that others have made so far.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Leaves the turns to others for a [`TICK`], or until one of them goes to sleep.
    pub(crate) fn stand_by(&self) {
        // One who goes to sleep before it sees this leaves the rest of the tick without anybody, and no more.
        self.stands_by.store(true, Ordering::Relaxed);
        std::thread::park_timeout(TICK);
        self.stands_by.store(false, Ordering::Relaxed);
    }

    /// Nobody helps any more: what is left of it falls here.
    pub(crate) fn end(&self) {
        *self.sequencer.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Helped for Shared {
    /// Makes a turn; whether that ordered anything.
    fn help(&self) -> bool {
        let Some(mut held) = self.sequencer.try_lock().ok().and_then(Held::of) else { return false };
        if held.stats.closed {
            // Its thread is to see that.
            self.thread.unpark();
            return false;
        }
        // One at a time adds, under the mutex.
        self.turns.store(self.turns().wrapping_add(1), Ordering::Relaxed);
        held.stats.assisted_turns += 1;
        match held.poll(BUDGET) {
            Ok(turn) => turn.commands > 0 || turn.closed,
            Err(error) => {
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                *held.0 = None;
                self.thread.unpark();
                false
            }
        }
    }

    fn call(&self) {
        self.thread.unpark();
    }

    /// Its thread is to serve.
    fn hand_back(&self) {
        if self.stands_by.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
    }
}

/// A sequencer that is there, and nobody else's for now.
pub(crate) struct Held<'a>(MutexGuard<'a, Option<Sequencer>>);

impl<'a> Held<'a> {
    fn of(guard: MutexGuard<'a, Option<Sequencer>>) -> Option<Held<'a>> {
        guard.is_some().then_some(Held(guard))
    }
}

impl Deref for Held<'_> {
    type Target = Sequencer;

    fn deref(&self) -> &Sequencer {
        self.0.as_ref().expect("it was there when it was locked")
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Sequencer {
        self.0.as_mut().expect("it was there when it was locked")
    }
}
