//! [`Assistance`]: where the parties of a process find a sequencer that wants their help, and it finds out how many they
//! are; how help is given, the sequencer knows.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// One who can be helped.
pub(crate) trait Helped: fmt::Debug + Send + Sync {
    /// Does some of its work, unless somebody else does; whether that brought anything.
    fn help(&self) -> bool;
    /// One who helped goes to sleep.
    fn hand_back(&self);
}

/// Who of this process is to be helped in a region, and who could help.
#[derive(Debug, Default)]
pub(crate) struct Assistance {
    /// Moves when another one is helped, or nobody any more.
    version: AtomicU32,
    helped: Mutex<Option<Arc<dyn Helped>>>,
    /// Moves when a party comes, or is used on another thread.
    moves: AtomicU32,
    /// Of each party, which thread used it last, or 0 if it leaves; gone with the party.
    parties: Mutex<Vec<Weak<AtomicUsize>>>,
}

impl Assistance {
    /// From now on this one is helped.
    pub(crate) fn set(&self, helped: Arc<dyn Helped>) {
        *lock(&self.helped) = Some(helped);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// From now on this one is helped no more; if another one is, that one still is.
    pub(crate) fn clear(&self, former: &Arc<impl Helped>) {
        let mut helped = lock(&self.helped);
        // The address, for one type can have several tables of methods.
        if helped.as_ref().is_some_and(|helped| std::ptr::addr_eq(Arc::as_ptr(helped), Arc::as_ptr(former))) {
            *helped = None;
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// How often parties have come or moved.
    #[inline]
    pub(crate) fn moves(&self) -> u32 {
        self.moves.load(Ordering::Relaxed)
    }

    /// On how many threads of this process there are parties.
    pub(crate) fn threads(&self) -> usize {
        let parties = lock(&self.parties);
        let threads = parties.iter().filter_map(|party| Some(party.upgrade()?.load(Ordering::Relaxed)));
        let mut threads: Vec<_> = threads.filter(|&thread| thread != 0).collect();
        threads.sort_unstable();
        threads.dedup();
        threads.len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that no other living thread has.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// A party's own knowledge of whom it can help.
#[derive(Debug)]
pub(crate) struct Helper {
    version: u32,
    helped: Option<Arc<dyn Helped>>,
    thread: Arc<AtomicUsize>,
}

impl Helper {
    /// For a party that has just come, on this thread.
    pub(crate) fn new(assistance: &Assistance) -> Helper {
        let thread = Arc::new(AtomicUsize::new(this_thread()));
        let mut parties = lock(&assistance.parties);
        parties.retain(|party| party.strong_count() > 0);
        parties.push(Arc::downgrade(&thread));
        drop(parties);
        assistance.moves.fetch_add(1, Ordering::Relaxed);
        Helper { version: 0, helped: None, thread }
    }

    /// Does some of the work of who wants help, if somebody does; whether that brought anything.
    #[inline]
    pub(crate) fn help(&mut self, assistance: &Assistance) -> bool {
        let here = this_thread();
        if self.thread.load(Ordering::Relaxed) != here {
            self.thread.store(here, Ordering::Relaxed);
            assistance.moves.fetch_add(1, Ordering::Relaxed);
        }
        let version = assistance.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.helped = lock(&assistance.helped).clone();
        }
        self.helped.as_ref().is_some_and(|helped| helped.help())
    }

    /// To be called before leaving, so that who learns of that does not count the party.
    pub(crate) fn leave(&self) {
        self.thread.store(0, Ordering::Relaxed);
    }

    /// To be called before sleeping.
    pub(crate) fn hand_back(&self) {
        if let Some(helped) = &self.helped {
            helped.hand_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nobody;

    impl Helped for Nobody {
        fn help(&self) -> bool {
            true
        }

        fn hand_back(&self) {}
    }

    #[test]
    fn who_ends_does_not_take_the_help_from_its_successor() {
        let (assistance, former, successor) = (Assistance::default(), Arc::new(Nobody), Arc::new(Nobody));
        let mut helper = Helper::new(&assistance);
        assert!(!helper.help(&assistance));
        assistance.set(Arc::clone(&former) as _);
        assert!(helper.help(&assistance));
        assistance.set(Arc::clone(&successor) as _);
        assistance.clear(&former);
        assert!(helper.help(&assistance));
        assistance.clear(&successor);
        assert!(!helper.help(&assistance));
    }

    #[test]
    fn parties_of_one_thread_count_once_and_those_that_are_gone_do_not() {
        let assistance = Assistance::default();
        let mut parties = [(); 3].map(|()| Helper::new(&assistance));
        assert_eq!(assistance.threads(), 1);
        let moves = assistance.moves();
        std::thread::scope(|scope| {
            let (assistance, moved) = (&assistance, &mut parties[0]);
            let count = |helper: &mut Helper| {
                helper.help(assistance);
                assistance.threads()
            };
            let moved = scope.spawn(move || count(moved));
            assert_eq!(moved.join().unwrap(), 2);
        });
        assert_ne!(assistance.moves(), moves);
        let moved = parties.into_iter().next().unwrap();
        assert_eq!(assistance.threads(), 1, "the others are gone");
        moved.leave();
        assert_eq!(assistance.threads(), 0);
    }
}
