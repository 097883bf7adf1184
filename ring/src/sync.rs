//! The atomics facade: the only file that names `core::` or `loom::` atomics.
//!
//! The switch is `cfg(loom)` alone, so that the code that the models explore is the code that ships. A third backend,
//! `cfg(seriatim_trace)`, is the first one that also tells who looks on of each access: for counting cache lines.

#[cfg(not(any(loom, seriatim_trace)))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub use core::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(all(seriatim_trace, not(loom)))]
pub use traced::{Access, AtomicU32, AtomicU64, Kind, observe};
#[cfg(loom)]
pub use watched::{AtomicU32, AtomicU64, Stopped, prepare, stop_after};

/// One turn of a spin loop: a pause hint, or under loom a yield, without which a model would not end.
#[inline]
pub fn spin() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Says that the first `bytes` of these words were written by other means than the words: heard by who looks on where
/// accesses are traced, nothing elsewhere.
#[inline(always)]
pub fn wrote(words: &[AtomicU64], bytes: usize) {
    #[cfg(all(seriatim_trace, not(loom)))]
    traced::tell(words.as_ptr() as usize, bytes, Kind::Write);
    #[cfg(not(all(seriatim_trace, not(loom))))]
    let _ = (words, bytes);
}

/// The processor's atomics, whose accesses somebody hears of.
#[cfg(all(seriatim_trace, not(loom)))]
mod traced {
    use super::Ordering;
    use std::cell::Cell;

    /// What an access does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// It reads.
        Read,
        /// It writes.
        Write,
        /// It reads and writes at once, and waits for the stores before it.
        Swap,
    }

    /// An access to shared memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access {
        /// Where it begins.
        pub address: usize,
        /// How many bytes, at least 1.
        pub bytes: usize,
        /// What it does.
        pub kind: Kind,
    }

    std::thread_local! {
        static OBSERVER: Cell<Option<fn(Access)>> = const { Cell::new(None) };
    }

    /// Has `observer` hear of every access that the calling thread makes from now on, before it is made; `None`: nobody.
    pub fn observe(observer: Option<fn(Access)>) {
        OBSERVER.set(observer);
    }

    #[inline]
    pub(super) fn tell(address: usize, bytes: usize, kind: Kind) {
        // A thread that ends has lost its observer.
        if let Ok(Some(observer)) = OBSERVER.try_with(Cell::get)
            && bytes > 0
        {
            observer(Access { address, bytes, kind });
        }
    }

    macro_rules! traced {
        ($name:ident, $int:ty) => {
            /// As in `core`, heard of.
            #[repr(transparent)]
            #[derive(Debug, Default)]
            pub struct $name(core::sync::atomic::$name);

            impl $name {
                /// As in `core`.
                pub const fn new(value: $int) -> Self {
                    $name(core::sync::atomic::$name::new(value))
                }

                /// As in `core`.
                pub const fn as_ptr(&self) -> *mut $int {
                    self.0.as_ptr()
                }

                fn tell(&self, kind: Kind) {
                    tell(self.as_ptr() as usize, size_of::<$int>(), kind);
                }

                /// As in `core`.
                #[inline]
                pub fn load(&self, order: Ordering) -> $int {
                    self.tell(Kind::Read);
                    self.0.load(order)
                }

                /// As in `core`.
                #[inline]
                pub fn store(&self, value: $int, order: Ordering) {
                    self.tell(Kind::Write);
                    self.0.store(value, order);
                }

                /// As in `core`.
                #[inline]
                pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                    self.tell(Kind::Swap);
                    self.0.fetch_add(value, order)
                }

                /// As in `core`.
                #[inline]
                pub fn compare_exchange(
                    &self,
                    seen: $int,
                    new: $int,
                    order: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.tell(Kind::Swap);
                    self.0.compare_exchange(seen, new, order, failure)
                }
            }
        };
    }

    traced!(AtomicU32, u32);
    traced!(AtomicU64, u64);
}

/// Loom's atomics, with two things that the models need and loom lacks.
///
/// *No hidden race.* Loom tries a store before an earlier load of another thread only if that load was the last
/// access to the atomic. A thread that loads a word and then stores it (every compare-and-swap here) hides
/// everybody else's loads behind its own, and the interleavings that matter most are never tried. So each
/// thread's loads are also accesses to a shadow that only other threads' stores touch.
///
/// *Death.* [`stop_after`] ends the calling thread before one of its stores, as a kill would.
#[cfg(loom)]
mod watched {
    use super::Ordering;
    use loom::thread::ThreadId;
    use std::cell::{Cell, RefCell};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::vec::Vec;

    std::thread_local! {
        /// All threads of an execution run on one thread of the system: who is to stop, and before which store.
        static FUSE: Cell<Option<(ThreadId, usize)>> = const { Cell::new(None) };
        /// The shadows of this execution, and how many are in use.
        static SHADOWS: RefCell<(Vec<Shadow>, usize)> = const { RefCell::new((Vec::new(), 0)) };
    }

    type Shadow = Arc<loom::sync::atomic::AtomicU32>;
    /// Beyond this many pairs of an atomic and a thread that loads it, pairs share a shadow: that costs
    /// executions, and hides nothing.
    const MOST_SHADOWS: usize = 192;

    /// To be called first in each execution, before any thread is spawned: what the threads share must be
    /// there before them.
    pub fn prepare() {
        FUSE.set(None);
        let shadow = |_| Arc::new(loom::sync::atomic::AtomicU32::new(0));
        SHADOWS.set(((0..MOST_SHADOWS).map(shadow).collect(), 0));
    }

    fn take_shadow() -> Shadow {
        SHADOWS.with_borrow_mut(|(shadows, used)| {
            *used += 1;
            Arc::clone(&shadows[*used % MOST_SHADOWS])
        })
    }

    /// What a thread that [`stop_after`] stopped unwinds with.
    #[derive(Clone, Copy, Debug)]
    pub struct Stopped;

    /// Lets the calling thread make `stores` more stores, then stops it before the next by unwinding with
    /// [`Stopped`]; `None` takes that back. Concerns one thread of an execution at a time. Returns how many were
    /// left of what was allowed before.
    pub fn stop_after(stores: Option<usize>) -> Option<usize> {
        FUSE.replace(stores.map(|left| (loom::thread::current().id(), left))).map(|(_, left)| left)
    }

    fn burn() {
        let Some((thread, left)) = FUSE.get() else { return };
        if thread != loom::thread::current().id() {
            return;
        }
        if left == 0 {
            FUSE.set(None);
            std::panic::resume_unwind(std::boxed::Box::new(Stopped));
        }
        FUSE.set(Some((thread, left - 1)));
    }

    #[derive(Debug)]
    struct Reader {
        thread: ThreadId,
        /// It has loaded since the last store.
        fresh: bool,
        shadow: Shadow,
    }

    #[derive(Debug, Default)]
    struct Readers(Mutex<Vec<Reader>>);

    impl Readers {
        /// A load is about to come.
        fn load(&self) {
            let me = loom::thread::current().id();
            let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at = readers.iter().position(|r| r.thread == me).unwrap_or_else(|| {
                readers.push(Reader { thread: me, fresh: false, shadow: take_shadow() });
                readers.len() - 1
            });
            readers[at].fresh = true;
            let shadow = Arc::clone(&readers[at].shadow);
            drop(readers);
            shadow.load(Ordering::Relaxed);
        }

        /// A store is about to come.
        fn store(&self) {
            burn();
            let me = loom::thread::current().id();
            let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let hidden = readers.iter().any(|r| r.fresh && r.thread == me);
            let mut touched = Vec::new();
            for reader in readers.iter_mut() {
                if reader.fresh && hidden && reader.thread != me {
                    touched.push(Arc::clone(&reader.shadow));
                }
                reader.fresh = false;
            }
            drop(readers);
            touched.iter().for_each(|shadow| shadow.store(0, Ordering::Relaxed));
        }
    }

    macro_rules! watched {
        ($name:ident, $int:ty) => {
            /// As in `core`, explored by loom.
            #[derive(Debug, Default)]
            pub struct $name {
                word: loom::sync::atomic::$name,
                readers: Readers,
            }

            impl $name {
                /// As in `core`.
                pub fn new(value: $int) -> Self {
                    $name { word: loom::sync::atomic::$name::new(value), readers: Readers::default() }
                }

                /// As in `core`.
                pub fn load(&self, order: Ordering) -> $int {
                    self.readers.load();
                    self.word.load(order)
                }

                /// As in `core`.
                pub fn store(&self, value: $int, order: Ordering) {
                    self.readers.store();
                    self.word.store(value, order);
                }

                /// As in `core`.
                pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                    self.readers.store();
                    self.word.fetch_add(value, order)
                }

                /// As in `core`.
                pub fn compare_exchange(
                    &self,
                    seen: $int,
                    new: $int,
                    order: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.readers.store();
                    self.word.compare_exchange(seen, new, order, failure)
                }
            }
        };
    }

    watched!(AtomicU32, u32);
    watched!(AtomicU64, u64);
}
