//! Sleeping and waking: the protocol, not the system call.
//!
//! ```text
//! sleeper   1. seen = word   2. announce   3. SeqCst fence   4. look again: nothing?   5. wait(word == seen)
//! waker     1. make it true  2. SeqCst fence                 3. announced? no: done, no system call
//!                                                               yes: withdraw it, move the word, wake who waits
//! ```
//!
//! Steps 2-4 of the one and 1-3 of the other are the store-buffering litmus test: with both fences, either the
//! sleeper sees what was made true or the waker sees the announcement. A waker withdraws the announcement of
//! all sleepers at once and then moves the word, so whoever announced before it finds the word moved and does
//! not sleep; whoever announces after it reads the new word first and stands announced. A sleeper that dies
//! leaves one announcement, which costs one system call. A waker that dies between two steps leaves sleepers
//! whose wait ends by itself: every wait has a bound.
//!
//! *Many sleepers* on one bell need not all be woken by the waker itself, whose time that would take: it may wake a
//! few, each of whom wakes a few more before it does anything else, and go on where that chain breaks. So that this comes
//! to an end, each lies down under a [mark](Seen::mark), and only [marks from before](Bell::marks_before) the last ring
//! are woken: not those who have looked since and lain down again.

use crate::pad::Padded;
use crate::sync::{AtomicU32, Ordering, fence};

/// Nobody sleeps.
pub const NOBODY: u32 = 0;
/// The sleeper waits for new work.
pub const FOR_WORK: u32 = 1;
/// The sleeper waits for new work or for room (a sequencer that is held back by gates).
pub const FOR_ROOM: u32 = 2;

/// What one kind of party sleeps on. The two words lie on different lines: wakers look at the announcement
/// once a batch, the word moves only when somebody sleeps.
#[repr(C)]
#[derive(Debug)]
pub struct Bell {
    announced: Padded<AtomicU32>,
    word: Padded<AtomicU32>,
}

/// The word that a sleeper saw before it announced itself.
#[derive(Clone, Copy, Debug)]
#[must_use = "a sleeper waits only while the word is what it saw"]
pub struct Seen(pub u32);

impl Seen {
    /// What the sleeper lies down under: a set of one, for the mechanism that sleeps.
    #[inline]
    #[must_use]
    pub fn mark(self) -> u32 {
        1 << (self.0 % 32)
    }
}

impl Bell {
    /// A bell that nobody waits for; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        Bell { announced: Padded(AtomicU32::new(NOBODY)), word: Padded(AtomicU32::new(0)) }
    }

    /// The word to wait on, for the mechanism that sleeps.
    #[inline]
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// Steps 1-3 of a sleeper. It then looks once more for what it waits for, and only if there is nothing
    /// waits while the word is what was seen.
    #[inline]
    pub fn announce(&self, level: u32) -> Seen {
        // ORDERING [W2]: Acquire; pairs with the Release in `ring`. Who reads a moved word announces after the
        // withdrawal that came before the move, so its own announcement stands.
        let seen = Seen(self.word.load(Ordering::Acquire));
        self.announced.store(level, Ordering::Relaxed);
        // ORDERING [W1]: SeqCst; pairs with the fence in `made_true`. Store buffering: of the announcement and
        // the event, at least one is seen by the other side.
        fence(Ordering::SeqCst);
        seen
    }

    /// Whether somebody waits for what just became true: `level` or less. The caller has passed
    /// [`made_true`] since.
    #[inline]
    pub fn is_announced(&self, level: u32) -> bool {
        self.announced.load(Ordering::Relaxed) >= level
    }

    /// Whether somebody waits for a ticket that the caller has just [put in](crate::tickets::Enqueuer::enqueue): step 2 of
    /// a waker whose event is a sequentially consistent swap, which needs no fence beside it.
    #[inline]
    pub fn is_announced_since_swap(&self) -> bool {
        // ORDERING [W3]: SeqCst; pairs, with the SeqCst swap before it, with the fence in `announce`. Of the announcement
        // and the ticket, at least one is seen by the other side. Loom knows no order of such accesses, only of fences.
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        self.announced.load(Ordering::SeqCst) >= FOR_WORK
    }

    /// The marks of all who may have lain down before the last ring. One in 32 of those who slept through more rings is
    /// not among them, but is after the next ring.
    #[inline]
    #[must_use]
    pub fn marks_before(&self) -> u32 {
        // Relaxed: who rang sees its own move, and the kernel's queue, like any lock, has who was woken see it, too.
        !Seen(self.word.load(Ordering::Relaxed)).mark()
    }

    /// Step 3 of a waker: withdraws the announcement and moves the word. The caller then wakes those who wait, or sees
    /// to it that they are woken.
    #[inline]
    pub fn ring(&self) {
        self.announced.store(NOBODY, Ordering::Relaxed);
        // ORDERING [W2]: Release; pairs with the Acquire in `announce`: who sees the word moved announces after
        // the withdrawal.
        self.word.fetch_add(1, Ordering::Release);
    }
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

/// Step 2 of a waker: between making something true and asking who waits for it. One fence serves all bells.
#[inline]
pub fn made_true() {
    // ORDERING [W1]: SeqCst; pairs with the fence in `announce`.
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_rung_once() {
        let bell = Bell::new();
        made_true();
        assert!(!bell.is_announced(FOR_WORK));
        let Seen(seen) = bell.announce(FOR_WORK);
        assert!(bell.is_announced(FOR_WORK) && !bell.is_announced(FOR_ROOM));
        bell.ring();
        assert!(!bell.is_announced(FOR_WORK));
        assert_ne!(bell.word().load(Ordering::Relaxed), seen);
    }

    #[test]
    fn only_who_lay_down_before_the_last_ring_is_to_be_woken() {
        let bell = Bell::new();
        bell.word.store(u32::MAX - 40, Ordering::Relaxed);
        for _ in 0..80 {
            let before = bell.announce(FOR_WORK);
            assert_eq!(bell.marks_before() & before.mark(), 0, "nobody has rung");
            bell.ring();
            let after = bell.announce(FOR_WORK);
            assert_ne!(bell.marks_before() & before.mark(), 0);
            assert_eq!(bell.marks_before() & after.mark(), 0);
        }
    }
}
