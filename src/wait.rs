//! How parties wait: spin, then yield, then sleep on a futex in the region.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use seriatim_ring::control::Bells;
use seriatim_ring::sync::spin;
use seriatim_ring::wake::{Bell, FOR_WORK, made_true};

use crate::{crash_point, sys};

/// What a party does while it has to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Spin on a pause instruction: the lowest latency, a core of its own for each party, and ruin where parties
    /// share a core: where those of one process spin that have no CPU each, that is logged as a warning, once
    /// ([`Crowd`](crate::affinity::Crowd)).
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

/// Looks with a pause between them before a party yields: for some hundred nanoseconds, which is what it takes to hear
/// from another core, and not much of what a thread that shares this one could do instead.
const PAUSES: u32 = 32;
/// Looks with a yield between them before a party sleeps.
const YIELDS: u32 = 32;
/// A yield that took so long went to a thread that uses its time up, and the next one will.
const SLICE: Duration = Duration::from_millis(1);
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
    /// When the last yield ended.
    yielded: Option<Instant>,
}

impl Idle {
    pub(crate) fn new(wait: Wait) -> Self {
        Idle { wait, looks: 0, yielded: None }
    }

    /// There was something to do: start again.
    pub(crate) fn reset(&mut self) {
        *self = Idle::new(self.wait);
    }

    /// One step of waiting; `true` if it is time to sleep, which is then the caller's to do.
    pub(crate) fn step(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        match self.wait {
            Wait::Spin => spin(),
            _ if self.looks <= PAUSES => spin(),
            Wait::Park if self.looks > PAUSES + YIELDS => return true,
            Wait::Park => self.give_way(),
            Wait::Yield => std::thread::yield_now(),
        }
        false
    }

    /// Yields. Where others use up the time that they are given, a few yields take as long as a thousand, and who sleeps
    /// instead is let in sooner: it has not had its share.
    fn give_way(&mut self) {
        let before = *self.yielded.get_or_insert_with(Instant::now);
        std::thread::yield_now();
        let now = Instant::now();
        self.yielded = Some(now);
        self.note(now - before);
    }

    fn note(&mut self, yielded: Duration) {
        if yielded >= SLICE {
            self.looks = PAUSES + YIELDS;
        }
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    /// There was no need for it.
    Not,
    /// Somebody woke it.
    Woken,
    /// By itself, at the end of its time.
    Out,
}

/// Sleeps on a bell that others sleep on, too, as [`sleep_alone`] does. Who is woken wakes others, before anything
/// else: see [`Waker`].
pub(crate) fn sleep(
    bell: &Bell,
    level: u32,
    deadline: Option<Instant>,
    is_there: impl FnMut() -> bool,
) -> bool {
    let slept = lie_down(bell, level, deadline, is_there);
    if slept == Slept::Woken {
        crash_point!("wake.woken");
        sys::futex_wake(bell.word(), PASSED_ON, bell.marks_before());
    }
    slept != Slept::Out
}

/// Sleeps on a bell unless `is_there` says, after the announcement, that there is no need to. `false` if it slept
/// until the end of its time: a reason to look whether there still is something to wait for.
pub(crate) fn sleep_alone(
    bell: &Bell,
    level: u32,
    deadline: Option<Instant>,
    is_there: impl FnMut() -> bool,
) -> bool {
    lie_down(bell, level, deadline, is_there) != Slept::Out
}

fn lie_down(bell: &Bell, level: u32, deadline: Option<Instant>, mut is_there: impl FnMut() -> bool) -> Slept {
    let seen = bell.announce(level);
    if is_there() {
        return Slept::Not;
    }
    let left = deadline.map_or(LONGEST_SLEEP, |at| at.saturating_duration_since(Instant::now()));
    #[cfg(test)]
    let began = Instant::now();
    let woken = sys::futex_wait(bell.word(), seen.0, seen.mark(), left.min(LONGEST_SLEEP));
    // A machine that stood still has kept the waker from its work as well.
    #[cfg(test)]
    if !woken && left >= LONGEST_SLEEP && is_there() && began.elapsed() < LONGEST_SLEEP * 6 / 5 {
        // It may just be about to: one that lacks a processor between what it made true and the bell.
        let is_rung = || sys::futex_wait(bell.word(), seen.0, seen.mark(), LONGEST_SLEEP);
        LOST.fetch_add(u64::from(!is_rung()), std::sync::atomic::Ordering::Relaxed);
    }
    if woken { Slept::Woken } else { Slept::Out }
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

/// Sleepers on one bell that the sequencer wakes at a time: each costs it some microseconds, and may take its core.
const WOKEN: u32 = 1;
/// Sleepers that one who was woken wakes.
const PASSED_ON: u32 = 2;

/// How the sequencer wakes many without being delayed by it: a few in a turn, each of whom wakes a few more. If one of
/// them dies or stands still before it has done that, the sequencer's next turns go on, be there news or not, until
/// nobody is left; it does not sleep before. If it dies itself, its successor wakes all.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    /// Workers who sleep may be left.
    workers: bool,
    /// Producers who sleep may be left.
    producers: bool,
}

impl Waker {
    /// The order has moved: wakes workers and producers that sleep.
    #[inline]
    pub(crate) fn tell(&mut self, bells: &Bells) {
        made_true();
        self.each(bells, |bell, left| {
            if bell.is_announced(FOR_WORK) {
                bell.ring();
                crash_point!("wake.rung");
                *left = true;
            }
            wake_few(bell, left);
        });
    }

    /// Wakes a few of those who are left.
    pub(crate) fn go_on(&mut self, bells: &Bells) {
        self.each(bells, wake_few);
    }

    #[inline(always)]
    fn each(&mut self, bells: &Bells, act: impl Fn(&Bell, &mut bool)) {
        act(&bells.workers, &mut self.workers);
        act(&bells.producers, &mut self.producers);
    }

    /// Whether somebody may be left.
    pub(crate) fn is_busy(&self) -> bool {
        self.workers || self.producers
    }
}

/// Wakes a few of those who are `left`, if anybody may be.
#[inline(always)]
fn wake_few(bell: &Bell, left: &mut bool) {
    if *left {
        *left = sys::futex_wake(bell.word(), WOKEN, bell.marks_before()) >= WOKEN;
    }
}

/// Wakes all who sleep on a bell, whether or not they have announced themselves.
pub(crate) fn wake_all(bell: &Bell) {
    bell.ring();
    sys::futex_wake_all(bell.word());
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

    /// So many threads sleep on a bell, each in this way, and `wake` has all of them woken.
    fn with_sleepers(bell: &Bell, count: usize, sleep: fn(&Bell) -> bool, wake: impl FnOnce()) {
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let lie_down = move |tell: std::sync::mpsc::Sender<u32>| {
                tell.send(sys::thread_id()).unwrap();
                sleep(bell)
            };
            let sleepers: Vec<_> =
                (0..count).map(|_| tell.clone()).map(|tell| scope.spawn(move || lie_down(tell))).collect();
            told.iter().take(count).for_each(await_sleep);
            wake();
            let woken = sleepers.into_iter().map(|sleeper| sleeper.join().unwrap());
            assert_eq!(
                woken.filter(|&woken| woken).count(),
                count,
                "the others slept to the end of their time"
            );
        });
    }

    /// Until a thread sleeps on a futex.
    fn await_sleep(thread: u32) {
        let call = format!("/proc/self/task/{thread}/syscall");
        let futex = format!("{} ", libc::SYS_futex);
        while !std::fs::read_to_string(&call).unwrap().starts_with(&futex) {
            std::thread::yield_now();
        }
    }

    fn hands_on(bell: &Bell) -> bool {
        sleep(bell, FOR_WORK, None, || false)
    }

    fn does_not(bell: &Bell) -> bool {
        sleep_alone(bell, FOR_WORK, None, || false)
    }

    #[test]
    fn one_who_is_woken_wakes_all_others() {
        let bells = Bells::new();
        with_sleepers(&bells.workers, 9, hands_on, || Waker::default().tell(&bells));
    }

    #[test]
    fn the_waker_wakes_one_at_a_time_until_nobody_is_left() {
        let (bells, mut waker) = (Bells::new(), Waker::default());
        with_sleepers(&bells.producers, 4, does_not, || {
            waker.tell(&bells);
            let more = (0..100).take_while(|_| {
                waker.go_on(&bells);
                waker.is_busy()
            });
            assert_eq!(more.count(), 3);
        });
    }

    #[test]
    fn who_shares_its_core_with_one_who_uses_it_up_sleeps_at_once() {
        let mut idle = Idle::new(Wait::Park);
        (0..PAUSES).for_each(|_| assert!(!idle.step()));
        idle.note(SLICE - Duration::from_nanos(1));
        assert_eq!(idle.looks, PAUSES);
        idle.note(SLICE);
        assert!(idle.step());
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
