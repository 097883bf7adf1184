//! [`Seq`]: a place in the one order.

use core::fmt;

/// A command's place in the total order: dense, from the region's first index up, never reused.
///
/// The highest index is [`Seq::MAX`], 2^63 - 1, for cursors keep one bit beside it; at a hundred million
/// commands a second it is reached after 2,900 years, and the sequencer then stops with an error instead of
/// wrapping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(u64);

impl Seq {
    /// The first index of an ordinary region.
    pub const ZERO: Seq = Seq(0);
    /// No command gets this index or a higher one.
    pub const MAX: Seq = Seq((1 << 63) - 1);

    /// The place with this number.
    #[inline]
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Seq(number)
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The place `n` further on.
    #[inline]
    #[must_use]
    pub const fn plus(self, n: u64) -> Self {
        Seq(self.0.wrapping_add(n))
    }

    /// How many commands lie from `earlier` (included) to here (not included); 0 if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Seq) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_never_wraps() {
        assert_eq!(Seq::new(9).since(Seq::new(4)), 5);
        assert_eq!(Seq::new(4).since(Seq::new(9)), 0);
        assert_eq!(Seq::new(u64::MAX - 1).plus(1).since(Seq::new(u64::MAX - 1)), 1);
    }
}
