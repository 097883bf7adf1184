//! Gates: what one party stores of its position for others, whole or not at all.
//!
//! ```text
//!            word = index << 1 | which                 values[0]      values[1]
//! store      1. release fence   2. values[!which]      3. word, flipped (release)
//! load       1. word (acquire)  2. values[which]       3. acquire fence  4. word again: the same?
//! ```
//!
//! A [`Snapshot`] holds a position and the values that belong to it (the digest of all before it) twice, with
//! one word that chooses: a writer that dies between two words leaves the older set whole. A worker's cursor
//! is a snapshot, and so is the sequencer's anchor. What goes with both ([`Past`]) follows from the commands before
//! that position, and is the same for everyone.

use crate::pad::Padded;
use crate::seq::Seq;
use crate::sync::{AtomicU64, Ordering, fence};

/// A position with `N` values, written by one party and read by any.
#[repr(C)]
#[derive(Debug)]
pub struct Snapshot<const N: usize> {
    word: AtomicU64,
    values: [[AtomicU64; N]; 2],
}

impl<const N: usize> Snapshot<N> {
    /// A snapshot of position 0 with zeroes; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        let zeroes = || core::array::from_fn(|_| AtomicU64::new(0));
        Snapshot { word: AtomicU64::new(0), values: [zeroes(), zeroes()] }
    }

    /// Stores a position and its values. Only the owner calls this.
    #[inline]
    pub fn store(&self, at: Seq, values: [u64; N]) {
        // Relaxed: only this party writes the word.
        let which = (self.word.load(Ordering::Relaxed) & 1) ^ 1;
        // ORDERING [G2]: pairs with the acquire fence in `load`. Whoever reads one of the new values also sees
        // the word that had stopped choosing this set, and notices at its second look.
        fence(Ordering::Release);
        for (place, value) in self.values[which as usize].iter().zip(values) {
            place.store(value, Ordering::Relaxed);
        }
        crash_point!("snapshot.values");
        // ORDERING [G1]: Release; pairs with the Acquire in `position` and `load`. Whoever sees the position
        // sees its values, and all that the owner read before it is done.
        self.word.store(at.get() << 1 | which, Ordering::Release);
        crash_point!("snapshot.word");
    }

    /// The position alone.
    #[inline]
    pub fn position(&self) -> Seq {
        // ORDERING [G1]: Acquire; pairs with the Release in `store`. What the owner read before it stored
        // this position may be overwritten by whoever sees it.
        Seq::new(self.word.load(Ordering::Acquire) >> 1)
    }

    /// The position and its values, or `None` if the owner stored twice meanwhile: then try again.
    #[inline]
    pub fn load(&self) -> Option<(Seq, [u64; N])> {
        // ORDERING [G1]: Acquire; pairs with the Release in `store`: the values of this position are visible.
        let word = self.word.load(Ordering::Acquire);
        let values = core::array::from_fn(|i| self.values[(word & 1) as usize][i].load(Ordering::Relaxed));
        // ORDERING [G2]: pairs with the release fence in `store`.
        fence(Ordering::Acquire);
        (self.word.load(Ordering::Relaxed) == word).then(|| (Seq::new(word >> 1), values))
    }
}

impl<const N: usize> Default for Snapshot<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// What goes with a position: the digest of all commands before it, and who is
/// [current](crate::incarnations::Current) there.
pub type Past = [u64; 2];

/// Before the first command.
pub const BEGINNING: Past = [crate::digest::START, crate::incarnations::Current::NOBODY.word()];

/// A worker's cursor: the next index that it will look at, and what goes with it.
pub type Cursor = Padded<Snapshot<2>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_with_its_values() {
        let s = Snapshot::<2>::new();
        assert_eq!(s.load(), Some((Seq::ZERO, [0, 0])));
        for n in 1..5 {
            s.store(Seq::new(n), [n * 10, n * 100]);
            assert_eq!(s.load(), Some((Seq::new(n), [n * 10, n * 100])));
            assert_eq!(s.position(), Seq::new(n));
        }
        s.store(Seq::MAX, [7, 8]);
        assert_eq!(s.load(), Some((Seq::MAX, [7, 8])));
    }
}
