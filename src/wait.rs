//! How parties wait: spin, then yield, then sleep on a futex in the region.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;
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

/// Looks with a yield between them before a party sleeps, after those that the back-off makes: it pauses for 1, 2,
/// 4 … 64 instructions, then yields a few times.
const YIELDS: u32 = 28;
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
    backoff: Backoff,
    yields: u32,
}

impl Idle {
    pub(crate) fn new(wait: Wait) -> Self {
        Idle { wait, backoff: Backoff::new(), yields: 0 }
    }

    /// There was something to do: start again.
    pub(crate) fn reset(&mut self) {
        self.backoff.reset();
        self.yields = 0;
    }

    /// One step of waiting; `true` if it is time to sleep, which is then the caller's to do.
    pub(crate) fn step(&mut self) -> bool {
        match self.wait {
            // Not the back-off's spinning: it looks ever more seldom, up to a microsecond late.
            Wait::Spin => spin(),
            Wait::Yield => self.backoff.snooze(),
            Wait::Park if !self.backoff.is_completed() => self.backoff.snooze(),
            Wait::Park if self.yields < YIELDS => {
                self.yields += 1;
                std::thread::yield_now();
            }
            Wait::Park => return true,
        }
        false
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
        ring(bell);
    }
}

fn ring(bell: &Bell) {
    bell.ring();
    crash_point!("wake.rung");
    sys::futex_wake_all(bell.word());
}

/// A ticket, a request or a want is there: wakes the sequencer if it sleeps.
#[inline]
pub(crate) fn wake_sequencer(bells: &Bells, level: u32) {
    made_true();
    wake(&bells.sequencer, level);
}

/// A ticket has just gone in: wakes the sequencer if it sleeps.
#[inline]
pub(crate) fn wake_sequencer_since_swap(bells: &Bells) {
    if bells.sequencer.is_announced_since_swap() {
        ring(&bells.sequencer);
    }
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
        let looks = (0..1000).take_while(|_| !park.step()).count();
        assert!((YIELDS as usize + 1..1000).contains(&looks) && park.step());
        park.reset();
        assert!(!park.step());
        for wait in [Wait::Spin, Wait::Yield] {
            let mut idle = Idle::new(wait);
            assert!((0..1000).all(|_| !idle.step()));
        }
    }
}
