//! [`Padded`]: a value on cache lines of its own, with a layout that does not hang on a dependency.

use core::ops::Deref;

/// A value alone on its 128 bytes (lines are prefetched in pairs), so that a store to it takes no line from
/// another party.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
