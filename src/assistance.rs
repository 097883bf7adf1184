//! [`Assistance`]: where the parties of a process find a sequencer that wants their help; how it is given, the sequencer
//! knows.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One who can be helped.
pub(crate) trait Helped: fmt::Debug + Send + Sync {
    /// Does some of its work, unless somebody else does; whether that brought anything.
    fn help(&self) -> bool;
    /// Has it look at once.
    fn call(&self);
    /// One who helped goes to sleep.
    fn hand_back(&self);
}

/// Who of this process is to be helped in a region.
#[derive(Debug, Default)]
pub(crate) struct Assistance {
    /// Moves when that changes.
    version: AtomicU32,
    helped: Mutex<Option<Arc<dyn Helped>>>,
}

impl Assistance {
    /// From now on this one is helped, or nobody.
    pub(crate) fn set(&self, helped: Option<Arc<dyn Helped>>) {
        *self.helped.lock().unwrap_or_else(PoisonError::into_inner) = helped;
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Has who is helped look at once.
    pub(crate) fn call(&self) {
        if let Some(helped) = self.get() {
            helped.call();
        }
    }

    fn get(&self) -> Option<Arc<dyn Helped>> {
        self.helped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A party's own knowledge of whom it can help.
#[derive(Debug, Default)]
pub(crate) struct Helper {
    version: u32,
    helped: Option<Arc<dyn Helped>>,
}

impl Helper {
    /// Does some of the work of who wants help, if somebody does; whether that brought anything.
    #[inline]
    pub(crate) fn help(&mut self, assistance: &Assistance) -> bool {
        let version = assistance.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.helped = assistance.get();
        }
        self.helped.as_ref().is_some_and(|helped| helped.help())
    }

    /// To be called before sleeping.
    pub(crate) fn hand_back(&self) {
        if let Some(helped) = &self.helped {
            helped.hand_back();
        }
    }
}
