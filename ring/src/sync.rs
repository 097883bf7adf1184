//! The atomics facade: the only file that names `core::` or `loom::` atomics.
//!
//! The switch is `cfg(loom)` alone, so that the code that the models explore is the code that ships.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// One turn of a spin loop: a pause hint, or under loom a yield, without which a model would not end.
#[inline]
pub fn spin() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
