//! [`Watch`]: a worker that lives and does not move is named, and never taken for dead.
//!
//! The sequencer looks each 20 to 100 ms where every gate stands. A worker that has something to do and stands
//! where it stood is *stuck*, since its last move; that is kept in control for whoever looks at the region. If it
//! is the slowest, somebody waits for room, and it takes longer than a threshold, the worker *stalls* the order:
//! that is said once, and once more when it is over. Only a worker that has asked for it is killed for that.

use std::time::Duration;

use seriatim_ring::Seq;
use seriatim_ring::control::{MemberEntry, WorkerPage};
use seriatim_ring::sequencer::{gate, published};
use seriatim_ring::sync::Ordering;

use crate::error_log::ErrorCode;
use crate::name::Name;
use crate::policy::WorkerPolicy;
use crate::process::{NotKilled, Process};
use crate::region::Region;
use crate::text::many;

/// A worker that stalls again is not named again before so many times the threshold have passed.
const QUIET: u64 = 10;

/// The longest time between two looks that counts against a worker. What is more was spent with the sequencer
/// itself at a standstill (stopped, frozen, without a core): then the worker may have been, too.
const LOOK_NS: u64 = 100_000_000;

/// What the sequencer remembers of the workers' moves.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    after_ns: u64,
    members: Vec<Progress>,
    /// Somebody found no room since the last look.
    pressed: bool,
    /// When that was last so.
    pressed_ns: Option<u64>,
    stall: Option<Stall>,
    /// When the last look was.
    looked_ns: Option<u64>,
}

/// Where one worker stood.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The member's number; 0 is none.
    number: u64,
    at: Seq,
    since_ns: u64,
    /// How long it was seen to stand there.
    stood_ns: u64,
    lag: u64,
    /// Its stalls are not said before this.
    quiet_until_ns: u64,
    /// It was to be killed, whether or not that was possible.
    doomed: bool,
    /// Its cursor cannot be right, which was said.
    wild: bool,
}

/// A stall that was said.
#[derive(Clone, Copy, Debug)]
struct Stall {
    slot: usize,
    since_ns: u64,
    of: Stuck,
}

/// A worker that does not move, for messages.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    number: u64,
    name: Name,
    process: Process,
    at: Seq,
}

impl Watch {
    pub(crate) fn new(after: Duration) -> Watch {
        let mut watch = Watch::default();
        watch.stall_after(after);
        watch
    }

    pub(crate) fn stall_after(&mut self, time: Duration) {
        self.after_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Somebody found no room.
    pub(crate) fn press(&mut self) {
        self.pressed = true;
    }

    /// Looks at all workers; `now_ns` is the monotonic clock.
    pub(crate) fn look(&mut self, region: &Region, now_ns: u64) {
        let map = region.map();
        map.control().pulse.looked_ns.store(now_ns, Ordering::Relaxed);
        if std::mem::take(&mut self.pressed) {
            self.pressed_ns = Some(now_ns);
        }
        let next = published(map.control()).0;
        let passed_ns =
            self.looked_ns.replace(now_ns).map_or(0, |last| now_ns.saturating_sub(last).min(LOOK_NS));
        self.members.resize(map.members().len(), Progress::default());
        let pages = map.members().iter().zip(map.worker_pages());
        for (progress, (member, page)) in self.members.iter_mut().zip(pages) {
            progress.update(member, page, next, now_ns, passed_ns);
            if progress.at > next && !std::mem::replace(&mut progress.wild, true) {
                tell_wild(region, &Stuck::of(member, page), next);
            }
            if progress.should_die(member, page) {
                progress.doomed = true;
                kill(region, &Stuck::of(member, page), progress.lag);
            }
        }
        self.end_stall(now_ns);
        self.begin_stall(region, now_ns);
    }

    /// Says that a stall is over.
    fn end_stall(&mut self, now_ns: u64) {
        let Some(Stall { slot, since_ns, of }) = self.stall else { return };
        let progress = self.members[slot];
        let is_there = progress.number == of.number;
        if is_there && progress.at == of.at && progress.lag > 0 {
            return;
        }
        let how = if is_there { "moves again" } else { "is gone" };
        let took = Duration::from_nanos(now_ns.saturating_sub(since_ns)).as_secs_f64();
        tracing::warn!("worker {:?} (slot {slot}, pid {}) {how} after {took:.1} s", of.name, of.process.pid);
        self.stall = None;
        if is_there {
            let quiet_ns = self.after_ns.saturating_mul(QUIET);
            self.members[slot].quiet_until_ns = now_ns.saturating_add(quiet_ns);
        }
    }

    /// Says that the slowest worker keeps others waiting, if it does and that was not said.
    fn begin_stall(&mut self, region: &Region, now_ns: u64) {
        let live = self.members.iter().enumerate().filter(|(_, progress)| progress.number > 0);
        let Some((slot, slowest)) = live.min_by_key(|(_, progress)| progress.at) else { return };
        let waited_for = slowest.lag > 0 && self.pressed_ns.is_some_and(|at| at > slowest.since_ns);
        let is_long = slowest.stood_ns >= self.after_ns;
        if !waited_for || !is_long || self.stall.is_some() || now_ns < slowest.quiet_until_ns {
            return;
        }
        let map = region.map();
        let of = Stuck::of(&map.members()[slot], map.worker_page(slot as u16));
        let (lag, since_ns) = (slowest.lag, slowest.since_ns);
        let took = Duration::from_nanos(now_ns.saturating_sub(since_ns)).as_secs_f64();
        let behind = many(lag, "command");
        tracing::warn!(
            "worker {:?} (slot {slot}, pid {}) holds the others up: it is {behind} behind, at index {}, and \
             has not moved for {took:.1} s",
            of.name,
            of.process.pid,
            of.at
        );
        region.record(ErrorCode::Stalled, of.name.as_str(), "held the others up", lag);
        self.stall = Some(Stall { slot, since_ns, of });
    }
}

impl Progress {
    /// Notes where the worker stands, `passed_ns` after the look before.
    fn update(&mut self, member: &MemberEntry, page: &WorkerPage, next: Seq, now_ns: u64, passed_ns: u64) {
        if !member.is_live() {
            *self = Progress::default();
            member.stood_ns.store(0, Ordering::Relaxed);
            return;
        }
        let (number, at) = (member.number.load(Ordering::Relaxed), gate(member, page));
        // A cursor that claims more than there is has nothing to do, as far as it can be believed.
        let lag = if at < next { next.since(at) } else { 0 };
        if lag == 0 || number != self.number || at != self.at {
            let quiet_until_ns = if number == self.number { self.quiet_until_ns } else { 0 };
            let wild = self.wild && number == self.number;
            *self = Progress { number, at, since_ns: now_ns, quiet_until_ns, wild, ..Progress::default() };
        } else {
            self.stood_ns = self.stood_ns.saturating_add(passed_ns);
        }
        self.lag = lag;
        member.stood_ns.store(self.stood_ns, Ordering::Relaxed);
    }

    fn should_die(&self, member: &MemberEntry, page: &WorkerPage) -> bool {
        if self.lag == 0 || self.doomed || !page.party.has_begun(member.generation.load(Ordering::Relaxed)) {
            return false;
        }
        match WorkerPolicy::load(&page.policy) {
            WorkerPolicy::Gate => false,
            WorkerPolicy::KillAfter { lag, time } => {
                self.lag >= lag && u128::from(self.stood_ns) >= time.as_nanos()
            }
        }
    }
}

impl Stuck {
    fn of(member: &MemberEntry, page: &WorkerPage) -> Stuck {
        let pid = page.party.pid.load(Ordering::Relaxed) as u32;
        Stuck {
            number: member.number.load(Ordering::Relaxed),
            name: Name::from_words(member.name.load()),
            process: Process { pid, started: page.party.started.load(Ordering::Relaxed) },
            at: gate(member, page),
        }
    }
}

/// Says that a worker's cursor lies where it cannot be: nothing is freed on its word, and so nothing at all.
fn tell_wild(region: &Region, who: &Stuck, next: Seq) {
    let Stuck { name, process, at, .. } = who;
    let what = format!("its cursor is {at}, expected {next} at most; nothing is freed until it has left");
    tracing::warn!("worker {name:?} (pid {}): {what}", process.pid);
    region.record(ErrorCode::Corrupt, name.as_str(), &what, at.get());
}

/// Kills a worker that asked for it. Its gate stays until its lock falls, as that of any other.
fn kill(region: &Region, who: &Stuck, lag: u64) {
    let Stuck { name, process, .. } = who;
    let what = match process.kill() {
        Ok(()) => "killed for holding the others up, as it had asked for".into(),
        // It has ended by itself: its lock falls.
        Err(NotKilled::Gone { .. }) => return,
        Err(why) => format!("to be killed as it had asked for, but {why}"),
    };
    tracing::warn!("worker {name:?} (pid {}), {} behind: {what}", process.pid, many(lag, "command"));
    region.record(ErrorCode::Killed, name.as_str(), &what, lag);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{Config, JoinOptions, Producer, Sequencer, Worker};

    const SECOND: u64 = 1_000_000_000;

    /// A region with a worker that has had nothing yet, and a command for it.
    fn stuck(policy: WorkerPolicy) -> (Region, Sequencer, Worker) {
        let region = Region::anonymous(&Config::new().workers(2)).unwrap();
        let mut sequencer = Sequencer::open(&region).unwrap();
        let attaching = thread::spawn({
            let region = region.clone();
            move || {
                let worker = Worker::join_with(&region, "w", &JoinOptions::new().policy(policy)).unwrap();
                Producer::attach(&region, "p").unwrap().submit(0, b"x").unwrap();
                worker
            }
        });
        while sequencer.poll(16).unwrap().commands == 0 {}
        (region, sequencer, attaching.join().unwrap())
    }

    /// Looks as often as a sequencer does, from one second to another.
    fn look(watch: &mut Watch, region: &Region, seconds: std::ops::RangeInclusive<u64>) {
        let (from, to) = (seconds.start() * SECOND, seconds.end() * SECOND);
        (from..=to).step_by(LOOK_NS as usize).for_each(|now_ns| watch.look(region, now_ns));
    }

    fn count(region: &Region, code: ErrorCode) -> u64 {
        region.errors().records.iter().filter(|record| record.code == code).map(|record| record.count).sum()
    }

    #[test]
    fn a_stall_is_said_once_when_somebody_waits_for_long_enough() {
        let (region, _sequencer, mut worker) = stuck(WorkerPolicy::Gate);
        let mut watch = Watch::new(Duration::from_secs(1));
        look(&mut watch, &region, 1..=10);
        assert_eq!(count(&region, ErrorCode::Stalled), 0, "nobody waits for it");
        watch.press();
        look(&mut watch, &region, 11..=20);
        assert_eq!(count(&region, ErrorCode::Stalled), 1);
        assert!(watch.stall.is_some());
        while worker.poll().unwrap().is_some() {}
        watch.look(&region, 21 * SECOND);
        assert!(watch.stall.is_none());
        assert_eq!(count(&region, ErrorCode::Stalled), 1);
        assert_eq!(watch.members[0].quiet_until_ns, 31 * SECOND);
    }

    #[test]
    fn time_in_which_the_sequencer_stood_still_counts_against_nobody() {
        let policy = WorkerPolicy::KillAfter { lag: 1, time: Duration::from_secs(5) };
        let (region, _sequencer, _worker) = stuck(policy);
        let mut watch = Watch::new(Duration::from_secs(1));
        watch.press();
        for hour in 1..10 {
            watch.look(&region, hour * 3600 * SECOND);
        }
        assert_eq!(count(&region, ErrorCode::Killed) + count(&region, ErrorCode::Stalled), 0);
        let worker = &region.snapshot().workers[0];
        let stood = Duration::from_nanos(8 * LOOK_NS);
        assert_eq!((worker.stuck_for, worker.party.suspect), (stood, false), "nor is it suspect");
    }

    #[test]
    fn a_stall_ends_with_its_worker_and_the_next_one_is_named_at_once() {
        let (region, mut sequencer, worker) = stuck(WorkerPolicy::Gate);
        let other = thread::spawn({
            let region = region.clone();
            move || Worker::join(&region, "other").unwrap()
        });
        while !other.is_finished() {
            sequencer.poll(16).unwrap();
        }
        let _other = other.join().unwrap();
        let mut watch = Watch::new(Duration::from_secs(1));
        watch.press();
        look(&mut watch, &region, 1..=3);
        watch.press();
        watch.look(&region, 3 * SECOND);
        assert_eq!(watch.stall.map(|stall| stall.slot), Some(0));
        drop(worker);
        sequencer.poll(16).unwrap();
        watch.look(&region, 4 * SECOND);
        assert_eq!(watch.stall.map(|stall| stall.slot), Some(1));
        assert_eq!(count(&region, ErrorCode::Stalled), 2);
    }

    #[test]
    fn who_asked_for_it_is_killed_when_both_bounds_are_passed_but_never_this_process() {
        let policy = WorkerPolicy::KillAfter { lag: 1, time: Duration::from_secs(5) };
        let (region, _sequencer, _worker) = stuck(policy);
        assert_eq!(region.snapshot().workers[0].policy, policy);
        let mut watch = Watch::new(Duration::from_secs(1));
        look(&mut watch, &region, 1..=5);
        assert_eq!(count(&region, ErrorCode::Killed), 0, "too early");
        look(&mut watch, &region, 6..=7);
        assert_eq!(count(&region, ErrorCode::Killed), 1);
        let killed = &region.errors().records[0];
        assert!(killed.what.contains("is this process"), "{killed}");
        assert!(region.snapshot().workers[0].party.alive);
    }

    #[test]
    fn a_cursor_that_cannot_be_is_named_once() {
        let (region, _sequencer, worker) = stuck(WorkerPolicy::Gate);
        region.map().worker_page(0).cursor.store(Seq::new(1 << 40), [0; 2]);
        let mut watch = Watch::new(Duration::from_secs(1));
        (1..5).for_each(|n| watch.look(&region, n * SECOND));
        let errors = region.errors();
        let wild: Vec<_> = errors.records.iter().filter(|e| e.code == ErrorCode::Corrupt).collect();
        assert_eq!((wild.len(), wild[0].count, wild[0].detail), (1, 1, 1 << 40), "{errors:?}");
        assert!(wild[0].who == worker.name() && wild[0].what.contains("expected 3 at most"), "{errors:?}");
    }

    #[test]
    fn a_worker_whose_thread_panics_is_recorded() {
        let (region, _sequencer, worker) = stuck(WorkerPolicy::Gate);
        let panicked = thread::spawn(move || {
            let _worker = worker;
            panic!("for a test");
        });
        assert!(panicked.join().is_err());
        assert_eq!(region.errors().records[0].what, "its thread panicked");
    }
}
