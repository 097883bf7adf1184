//! How parties wait: spin, then yield, then sleep on a futex in the region.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use seriatim_ring::control::Bells;
use seriatim_ring::sync::spin;
use seriatim_ring::wake::{Bell, FOR_WORK, Seen, made_true};

use crate::{crash_point, sys};

/// What a party does while it has to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Spin on a pause instruction: the lowest latency, a core of its own for each party, and ruin where parties
    /// share a core.
    Spin,
    /// Spin for a moment, then give the core to others between looks: still a busy core, but a shared one.
    Yield,
    /// Spin, then yield, then sleep until woken: no processor time while there is nothing to do. Waking takes a
    /// system call, which nobody makes while nobody sleeps.
    #[default]
    Park,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Wait::Spin => "spin",
            Wait::Yield => "yield",
            Wait::Park => "park",
        })
    }
}

/// A word that names no way to wait.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("wait strategy is {found:?}, expected spin, yield or park")]
pub struct UnknownWait {
    found: String,
}

impl FromStr for Wait {
    type Err = UnknownWait;

    fn from_str(text: &str) -> Result<Self, UnknownWait> {
        [Wait::Spin, Wait::Yield, Wait::Park]
            .into_iter()
            .find(|wait| wait.to_string() == text)
            .ok_or_else(|| UnknownWait { found: text.into() })
    }
}

/// Looks with a pause between them, before a party yields.
const SPINS: u32 = 64;
/// Looks with a yield between them, before a party sleeps.
const YIELDS: u32 = 32;
/// Nobody sleeps longer than this without a look, whatever happened to its waker. In tests so long that a
/// wake-up that was lost shows.
pub(crate) const LONGEST_SLEEP: Duration =
    if cfg!(test) { Duration::from_secs(1) } else { Duration::from_millis(100) };

/// Sleeps that ended by themselves although what they waited for had come: wake-ups that were lost.
#[cfg(test)]
pub(crate) static LOST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// One wait: how far it has come.
#[derive(Debug)]
pub(crate) struct Idle {
    wait: Wait,
    looks: u32,
}

impl Idle {
    pub(crate) fn new(wait: Wait) -> Self {
        Idle { wait, looks: 0 }
    }

    /// There was something to do: start again.
    pub(crate) fn reset(&mut self) {
        self.looks = 0;
    }

    /// One step of waiting; `true` if it is time to sleep, which is then the caller's to do.
    pub(crate) fn step(&mut self) -> bool {
        if self.wait == Wait::Spin || self.looks < SPINS {
            self.looks = self.looks.saturating_add(1);
            spin();
            return false;
        }
        if self.wait == Wait::Yield || self.looks < SPINS + YIELDS {
            self.looks = self.looks.saturating_add(1);
            std::thread::yield_now();
            return false;
        }
        true
    }
}

/// Sleeps on a bell unless `is_there` says, after the announcement, that there is no need to. `false` if it slept
/// until the end of its time: a reason to look whether there still is something to wait for.
pub(crate) fn sleep(
    bell: &Bell,
    level: u32,
    deadline: Option<Instant>,
    mut is_there: impl FnMut() -> bool,
) -> bool {
    let Seen(seen) = bell.announce(level);
    if is_there() {
        return true;
    }
    let left = deadline.map_or(LONGEST_SLEEP, |at| at.saturating_duration_since(Instant::now()));
    let woken = sys::futex_wait(bell.word(), seen, left.min(LONGEST_SLEEP));
    #[cfg(test)]
    if !woken && left >= LONGEST_SLEEP && is_there() {
        LOST.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    woken
}

/// Wakes who waits on a bell for what just became true, if anybody does. Follows [`made_true`].
#[inline]
pub(crate) fn wake(bell: &Bell, level: u32) {
    if bell.is_announced(level) {
        bell.ring();
        crash_point!("wake.rung");
        sys::futex_wake_all(bell.word());
    }
}

/// A ticket, a request or a want is there: wakes the sequencer if it sleeps.
#[inline]
pub(crate) fn wake_sequencer(bells: &Bells, level: u32) {
    made_true();
    wake(&bells.sequencer, level);
}

/// The order has moved: wakes workers and producers that sleep.
#[inline]
pub(crate) fn wake_all(bells: &Bells) {
    made_true();
    wake(&bells.workers, FOR_WORK);
    wake(&bells.producers, FOR_WORK);
}

/// The end of a time-out that begins now; `None` for one so long that the clock cannot name its end.
pub(crate) fn after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Whether a deadline has passed.
pub(crate) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|at| Instant::now() >= at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_strategy_is_named_by_its_word() {
        for wait in [Wait::Spin, Wait::Yield, Wait::Park] {
            assert_eq!(wait.to_string().parse(), Ok(wait));
        }
        let error = "sleep".parse::<Wait>().unwrap_err().to_string();
        assert!(error.contains("sleep") && error.contains("park"));
    }

    #[test]
    fn only_parking_comes_to_sleep() {
        let mut park = Idle::new(Wait::Park);
        assert!((0..SPINS + YIELDS).all(|_| !park.step()) && park.step());
        park.reset();
        assert!(!park.step());
        for wait in [Wait::Spin, Wait::Yield] {
            let mut idle = Idle::new(wait);
            assert!((0..2 * (SPINS + YIELDS)).all(|_| !idle.step()));
        }
    }
}
