//! [`Sequencer`]: the party that fixes the order. One per region; a duty cycle, or a thread of its own.
//!
//! A turn: settle who asks to come in or has left, order what is queued, wake who sleeps. Between turns and at
//! most every [`HOUSEKEEPING`], it asks the kernel which of the workers that gate are still alive.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering as StdOrdering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::control::{CLOSING, EXHAUSTED, GONE, OPEN, Verdict};
use seriatim_ring::order::Follower;
use seriatim_ring::sequencer::{Damage, Orderer, Shared, Stop, gate};
use seriatim_ring::sync::Ordering;
use seriatim_ring::tickets::{Enqueuer, Ticket};
use seriatim_ring::wake::{FOR_ROOM, FOR_WORK};

use crate::affinity::{self, PinError};
use crate::config::WithoutWorkers;
use crate::crash_point;
use crate::error::{AttachError, HeldBy};
use crate::error_log::ErrorCode;
use crate::fold::Fold;
use crate::fork;
use crate::liveness::{Lock, Role};
use crate::name::Name;
use crate::process::{NotKilled, Process};
use crate::region::Region;
use crate::region::file::{FileState, RegionLost};
use crate::region::layout::Part;
use crate::region::snapshot::State;
use crate::stall::Watch;
use crate::sys;
use crate::wait::{self, Idle, Wait};
use crate::worker::panic_text;

/// How long a worker that died can gate before the kernel is asked about it.
const HOUSEKEEPING: Duration = Duration::from_millis(20);
/// How long a worker can hold the others up before that is said; see [`Sequencer::stall_after`].
const STALL: Duration = Duration::from_secs(1);
/// How often the path of the region is looked at.
const FILE_LOOKS: Duration = Duration::from_secs(1);
/// Turns between two looks at the clock.
const TURNS_A_LOOK: u32 = 64;
/// Runs that a spawned sequencer orders in one turn at most.
const BUDGET: usize = 256;

/// The order could not be taken up, or not gone on with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SequencerError {
    /// Another sequencer serves the region.
    #[error("{path:?} has a sequencer already: pid {pid}")]
    Running {
        /// The region.
        path: PathBuf,
        /// Its process, as it says itself.
        pid: u32,
    },
    /// The one that serves the region was to be evicted, and was not.
    #[error("{path:?} is still served, its sequencer was not evicted: {source}")]
    NotEvicted {
        /// The region.
        path: PathBuf,
        /// What kept it.
        source: NotKilled,
    },
    /// The one that served the region was killed, and the kernel has not ended it yet.
    #[error("{path:?}: pid {pid} was killed but has not ended within {waited:?}")]
    NotEnded {
        /// The region.
        path: PathBuf,
        /// Its process.
        pid: u32,
        /// How long was waited.
        waited: Duration,
    },
    /// The file of the region was shortened: there is nothing to go on with.
    #[error("{path:?}: {source}")]
    Lost {
        /// The region.
        path: PathBuf,
        /// What became of it.
        source: RegionLost,
    },
    /// The region cannot be written.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// What the region says about the order cannot be.
    #[error("{path:?}: damaged: {field} (of {of}) is {found}, expected {limit} at most")]
    Damaged {
        /// The region.
        path: PathBuf,
        /// Which field.
        field: &'static str,
        /// Number of the run, lane or cell that it belongs to.
        of: u64,
        /// Its value.
        found: u64,
        /// What it can be at most.
        limit: u64,
    },
    /// The thread could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The thread could not be started.
    #[error("cannot start the sequencer's thread: {0}")]
    Thread(io::Error),
    /// The thread panicked, with this text.
    #[error("the sequencer's thread panicked: {0}")]
    Panicked(String),
    /// This process is a forked child of the one that opened it: the sequencer is the parent's.
    #[error("this sequencer was opened by the parent process, before a fork")]
    Forked,
    /// The last index is used up; the order is closed.
    #[error("index exhausted: the order ends at {last}")]
    Exhausted {
        /// The index that would have come next.
        last: Seq,
    },
}

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// Commands that got their place, the sequencer's own not counted.
    pub commands: u64,
    /// In how many runs.
    pub runs: u64,
    /// What keeps the next run back, if something does.
    pub held: Option<HeldBy>,
    /// The end is in the order: there is nothing left to do.
    pub closed: bool,
}

/// What a sequencer has done since it took over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequencerStats {
    /// Its epoch: how often a sequencer took over this region, the first time included.
    pub epoch: u64,
    /// Commands that it ordered, its own not counted.
    pub commands: u64,
    /// Runs that it published for them.
    pub runs: u64,
    /// Turns that it made.
    pub turns: u64,
    /// Turns that found work.
    pub working_turns: u64,
    /// Processor time of the turns that found work, in nanoseconds, if it was to be measured; else 0.
    pub cpu_ns: u64,
    /// The end is in the order.
    pub closed: bool,
}

/// How a sequencer's own thread works.
#[derive(Clone, Debug)]
#[must_use]
pub struct SequencerConfig {
    core: Option<usize>,
    wait: Wait,
    measure_cpu: bool,
    close_timeout: Duration,
    stall_after: Duration,
}

impl Default for SequencerConfig {
    fn default() -> Self {
        SequencerConfig {
            core: None,
            wait: Wait::default(),
            measure_cpu: false,
            close_timeout: Duration::from_secs(5),
            stall_after: STALL,
        }
    }
}

impl SequencerConfig {
    /// The defaults: not pinned, parks when idle.
    pub fn new() -> Self {
        Self::default()
    }

    /// Pins the thread to a CPU, by the kernel's number.
    pub fn core(mut self, cpu: usize) -> Self {
        self.core = Some(cpu);
        self
    }

    /// How to wait for work; default [`Wait::Park`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Measures the processor time of turns that find work: two system calls for each of them. Default no.
    pub fn measure_cpu(mut self, yes: bool) -> Self {
        self.measure_cpu = yes;
        self
    }

    /// See [`Sequencer::stall_after`].
    pub fn stall_after(mut self, time: Duration) -> Self {
        self.stall_after = time;
        self
    }

    /// How long [`SequencerHandle::close`] waits for workers that keep the end out of the order; default 5 s.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }
}

/// The party that fixes the order.
///
/// It is found alive by its lock, so two are never possible. Dropping it leaves the order as it is: the next
/// one goes on at the next index.
///
/// ```
/// use seriatim::{Config, Event, Producer, Region, Sequencer, Worker};
///
/// let region = Region::anonymous(&Config::new())?;
/// let mut sequencer = Sequencer::open(&region)?;
/// // Attaching is a hand-shake with the sequencer, so whoever runs it by hand attaches from another thread.
/// let attach = std::thread::spawn({
///     let region = region.clone();
///     move || Worker::join(&region, "w").and_then(|w| Ok((w, Producer::attach(&region, "p")?)))
/// });
/// while !attach.is_finished() {
///     sequencer.poll(16)?;
/// }
/// let (mut worker, mut producer) = attach.join().unwrap()?;
/// producer.submit(0, b"hello")?;
/// while sequencer.poll(16)?.commands == 0 {}
/// while let Some(event) = worker.poll()? {
///     if let Event::Command(command) = event {
///         assert_eq!(command.payload, b"hello");
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Sequencer {
    region: Region,
    orderer: Orderer,
    _lock: Lock,
    stats: SequencerStats,
    measure_cpu: bool,
    /// The requests that were looked at.
    seen_requests: u32,
    /// A request waits for something, or a member's coming or going is not in the order yet.
    unsettled: bool,
    /// The next ticket waits for a gate.
    stuck: bool,
    turns_to_look: u32,
    next_look: Instant,
    /// The anchor when sleepers were woken last.
    told: Seq,
    /// Folds what nobody works on, where that is to be dropped.
    discarding: Option<Fold>,
    watch: Watch,
    /// What became of the file, as said last.
    file: FileState,
    look_at_file: bool,
    next_look_at_file: Instant,
}

impl Sequencer {
    /// Takes the region's order up: at its beginning, or where an earlier sequencer ended, however it ended.
    ///
    /// # Errors
    /// Another one is alive, who is then named; the region is read-only; or it is damaged.
    pub fn open(region: &Region) -> Result<Sequencer, SequencerError> {
        match Self::lock(region)? {
            Some(lock) => Self::take_over(region, lock),
            None => Err(SequencerError::Running { path: region.path().into(), pid: region.sequencer_pid() }),
        }
    }

    /// As [`open`](Self::open), but waits while another one serves: a standby. It takes over when that one's lock
    /// falls, which is when its process has ended however it ended, and for no other reason.
    ///
    /// `stop` is asked every 100 ms while it waits. `None` if that said so, or if the one that served has closed
    /// the order: whoever closed it does not want it to go on.
    ///
    /// ```
    /// use seriatim::{Config, Region, Sequencer, SequencerConfig};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let serving = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let standby = std::thread::spawn({
    ///     let region = region.clone();
    ///     move || Sequencer::wait_to_open(&region, || false)
    /// });
    /// serving.stop()?; // a death would do as well
    /// let standby = standby.join().unwrap()?.expect("the order is open");
    /// assert_eq!(standby.stats().epoch, 2);
    /// standby.start(SequencerConfig::new())?.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open), but never [`SequencerError::Running`].
    pub fn wait_to_open(
        region: &Region,
        mut stop: impl FnMut() -> bool,
    ) -> Result<Option<Sequencer>, SequencerError> {
        let mut waited = false;
        loop {
            match Self::lock(region)? {
                // Closed before its lock fell, so no later look can find it open.
                Some(_) if waited && region.state() == State::Closed => return Ok(None),
                Some(lock) => return Self::take_over(region, lock).map(Some),
                None if stop() => return Ok(None),
                None => region.sequencer_process().await_end(wait::LONGEST_SLEEP),
            }
            waited = true;
        }
    }

    /// As [`open`](Self::open), but kills the process that serves the region, if one does, and waits for its lock
    /// to fall, for `timeout` at most. For one that is stopped or hangs: all that it ordered stays.
    ///
    /// The process is killed through a pidfd, if its start time is the one that it left in the region: never
    /// another one that has got its pid. The lock is not taken from the living in any case.
    ///
    /// # Errors
    /// As [`open`](Self::open); with [`SequencerError::Running`] if a standby was faster;
    /// [`SequencerError::NotEvicted`] if nobody was killed, [`SequencerError::NotEnded`] at the time-out.
    pub fn evict(region: &Region, timeout: Duration) -> Result<Sequencer, SequencerError> {
        let deadline = wait::after(timeout);
        let holder = region.sequencer_process();
        let mut killed = false;
        loop {
            if let Some(lock) = Self::lock(region)? {
                return Self::take_over(region, lock);
            }
            let path = || region.path().to_path_buf();
            if killed && region.sequencer_process() != holder {
                return Err(SequencerError::Running { path: path(), pid: region.sequencer_pid() });
            }
            if !killed {
                holder.kill().map_err(|source| SequencerError::NotEvicted { path: path(), source })?;
                tracing::warn!(pid = holder.pid, path = %region.path().display(), "evicted the sequencer");
                killed = true;
            } else if wait::is_over(deadline) {
                return Err(SequencerError::NotEnded { path: path(), pid: holder.pid, waited: timeout });
            }
            holder.await_end(wait::LONGEST_SLEEP);
        }
    }

    /// Makes the sequencer's parts writable and takes its lock; `None` if another one has it.
    fn lock(region: &Region) -> Result<Option<Lock>, SequencerError> {
        use Part::{Bells, Control, Lane, Order, Tickets};
        region.make_writable("a sequencer", &[Control, Order, Bells, Tickets, Lane(0)])?;
        let lock = Lock::take(region.file(), Role::Sequencer);
        Ok(lock.map_err(AttachError::io(region.path(), "lock"))?)
    }

    fn take_over(region: &Region, lock: Lock) -> Result<Sequencer, SequencerError> {
        crash_point!("sequence.locked");
        let lost = |source| SequencerError::Lost { path: region.path().into(), source };
        region.check().map_err(lost)?;
        let reign = &region.map().control().reign;
        let Process { pid, started } = Process::this();
        reign.pid.store(pid, Ordering::Relaxed);
        reign.started.store(started, Ordering::Relaxed);
        crash_point!("sequence.named");
        let orderer = Orderer::take_over(&region.map().shared()).map_err(|damage| damaged(region, damage))?;
        let epoch = reign.epoch.load(Ordering::Relaxed);
        let mut sequencer = Sequencer {
            orderer,
            _lock: lock,
            stats: SequencerStats { epoch, ..SequencerStats::default() },
            measure_cpu: false,
            seen_requests: 0,
            unsettled: true,
            stuck: false,
            turns_to_look: 0,
            next_look: Instant::now(),
            told: Seq::ZERO,
            discarding: None,
            watch: Watch::new(STALL),
            file: FileState::Here,
            look_at_file: true,
            next_look_at_file: Instant::now(),
            region: region.clone(),
        };
        if region.identity().without_workers == WithoutWorkers::Discard {
            sequencer.discarding = Some(sequencer.fold_from_anchor());
        }
        if epoch > 1 {
            region.record(ErrorCode::TakenOver, "sequencer", "took over from a former one", epoch);
        }
        crash_point!("sequence.taken");
        // Whoever slept through the change of sequencers looks again.
        for bell in [&region.map().bells().workers, &region.map().bells().producers] {
            bell.ring();
            sys::futex_wake_all(bell.word());
        }
        Ok(sequencer)
    }

    /// Measures the processor time of turns that find work.
    pub fn measure_cpu(&mut self, yes: bool) {
        self.measure_cpu = yes;
    }

    /// How long a worker can hold the others up before that is said (in one line through `tracing`, and in the
    /// region's error log); default 1 s.
    pub fn stall_after(&mut self, time: Duration) {
        self.watch.stall_after(time);
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> SequencerStats {
        self.stats
    }

    /// The next index.
    #[must_use]
    pub fn next(&self) -> Seq {
        self.orderer.next()
    }

    /// One turn: lets in who asks, orders what is queued in at most `budget` runs, wakes who sleeps. Never
    /// waits.
    ///
    /// # Errors
    /// The last index is used up.
    pub fn poll(&mut self, budget: usize) -> Result<Turn, SequencerError> {
        if fork::is_disturbed() || self.look_at_file {
            self.check_file()?;
        }
        let measured = self.measure_cpu && self.orderer.has_work(&self.region.map().shared());
        let before = if measured { sys::thread_cpu_ns() } else { 0 };
        let turn = self.turn(budget)?;
        self.stats.turns += 1;
        self.stats.commands += turn.commands;
        self.stats.runs += turn.runs;
        self.stats.working_turns += u64::from(turn.commands > 0);
        if measured {
            self.stats.cpu_ns += sys::thread_cpu_ns() - before;
        }
        Ok(turn)
    }

    /// Whether this process may go on, and the region's file is as it was; says once what became of it.
    #[cold]
    fn check_file(&mut self) -> Result<(), SequencerError> {
        if fork::is_child() {
            return Err(SequencerError::Forked);
        }
        if !std::mem::take(&mut self.look_at_file) && self.region.check_if_hit().is_ok() {
            // What faulted was another region.
            return Ok(());
        }
        let path = || self.region.path().to_path_buf();
        self.region.check().map_err(|source| SequencerError::Lost { path: path(), source })?;
        let file = self.region.file_state();
        if std::mem::replace(&mut self.file, file) == file {
            return Ok(());
        }
        let what = match file {
            FileState::Unlinked => "region unlinked: its path names no file, who is attached goes on",
            FileState::Replaced => "region unlinked: its path names another file, who is attached goes on",
            _ => "region is back under its path",
        };
        tracing::warn!("{:?}: {what}", self.region.path());
        self.region.record(ErrorCode::File, "sequencer", what, self.region.map().bytes());
        Ok(())
    }

    fn turn(&mut self, budget: usize) -> Result<Turn, SequencerError> {
        self.region.map().control().pulse.turns.store(self.stats.turns + 1, Ordering::Relaxed);
        let mut news = self.keep_house(false);
        let bells = self.region.map().bells();
        let wanted = bells.take_wanted();
        self.watch.press(wanted);
        if wanted || bells.producers.is_announced(FOR_WORK) {
            news |= self.free();
        }
        let budget = u32::try_from(budget).unwrap_or(u32::MAX);
        let region = self.region.clone();
        let s = region.map().shared();
        let ordered = self.orderer.turn(&s, budget);
        news |= ordered.commands > 0;
        let mut turn =
            Turn { commands: ordered.commands, runs: ordered.runs.into(), held: None, closed: false };
        self.stuck = match ordered.stop {
            Stop::Dry | Stop::Budget => false,
            Stop::Held => {
                news |= self.free();
                self.orderer.is_held(&s)
            }
            Stop::Bad { lane, count, limit } => {
                let rejected = self.orderer.reject(&s, lane, count).is_some();
                if rejected {
                    tell_bad_ticket(&region, lane, count, limit);
                }
                news |= rejected;
                !rejected
            }
            Stop::Close => {
                turn.closed = self.orderer.close(&s).is_some();
                !turn.closed
            }
            Stop::Exhausted => {
                self.refuse_submits(EXHAUSTED);
                self.tell(true);
                return Err(SequencerError::Exhausted { last: self.orderer.next() });
            }
        };
        self.watch.press(self.stuck);
        if self.stuck {
            turn.held = Some(region.held_by_worker());
        }
        self.stats.closed |= turn.closed;
        self.tell(news || turn.closed);
        Ok(turn)
    }

    /// Wakes who sleeps, if there is news or room was freed since the last time.
    fn tell(&mut self, news: bool) {
        if news || self.orderer.anchor() != self.told {
            self.told = self.orderer.anchor();
            wait::wake_all(self.region.map().bells());
        }
    }

    /// Refuses submits from now on, and puts the end into the order after all that was submitted: go on with
    /// [`poll`](Self::poll) until it says that the order is closed. What then still is not in the order (for
    /// gates that do not move) is kept for the next sequencer.
    pub fn close(&mut self) {
        if fork::is_child() {
            return;
        }
        self.refuse_submits(CLOSING);
        self.tell(true);
    }

    fn refuse_submits(&mut self, state: u32) {
        let map = self.region.map();
        let reign = &map.control().reign;
        if reign.state.load(Ordering::Relaxed) == OPEN {
            // ORDERING [C1]: Release; pairs with the Acquire in `Region::state`.
            reign.state.store(state, Ordering::Release);
            crash_point!("close.closing");
            let mut enqueuer = Enqueuer::new(self.orderer.ticket());
            // It fails only where another close ticket stands, which serves as well.
            let _ = enqueuer.enqueue(&map.tickets(), Ticket::Close, &reign.void_before);
        }
    }

    /// Frees what every gate has passed, or what is to be dropped.
    fn free(&mut self) -> bool {
        let region = self.region.clone();
        let s = region.map().shared();
        self.orderer.free(&s) || self.discard(&s)
    }

    /// Where nobody works and what is submitted is dropped: folds it and frees it.
    fn discard(&mut self, s: &Shared<'_>) -> bool {
        if self.discarding.is_none() || s.members.iter().any(seriatim_ring::control::MemberEntry::is_live) {
            return false;
        }
        let mut fold = self.discarding.take().filter(|f| f.next() >= self.orderer.anchor());
        let fold = fold.get_or_insert_with(|| self.fold_from_anchor());
        let map = self.region.map();
        while let Ok(Some(_)) = fold.step(map) {}
        let (to, digest) = (fold.next(), fold.digest());
        self.discarding = Some(fold.clone());
        self.orderer.discard(s, to, digest)
    }

    fn fold_from_anchor(&self) -> Fold {
        let control = self.region.map().control();
        // Only the sequencer moves the anchor: what it reads is whole.
        let (at, [digest, run]) = control.anchor.load().unwrap_or((self.orderer.next(), [0, 0]));
        Fold::new(self.region.map(), Follower::new(at, run), digest)
    }

    /// Lets in who asks, drops the gates of those who left or died, says so in the order. Cheap while nobody
    /// asked and nothing is open; `now` asks the kernel about the living at once.
    fn keep_house(&mut self, now: bool) -> bool {
        let due = self.is_look_due(now);
        if due {
            let region = self.region.clone();
            self.watch.look(&region, sys::monotonic_ns());
        }
        let requests = self.region.map().bells().requests();
        if requests == self.seen_requests && !self.unsettled && !due {
            return false;
        }
        self.seen_requests = requests;
        self.unsettled = false;
        let region = self.region.clone();
        let s = region.map().shared();
        let before = self.orderer.next();
        let mut news = false;
        for slot in 0..s.members.len() as u16 {
            news |= self.settle_worker(&region, &s, slot, due);
        }
        self.orderer.announce(&s);
        for slot in 0..s.members.len() as u16 {
            news |= self.settle_join(&region, &s, slot);
        }
        for lane in 1..s.lanes.len() as u16 {
            news |= self.settle_producer(&region, &s, lane);
        }
        self.unsettled |= s.members.iter().any(|m| {
            let joined = m.joined.load(Ordering::Relaxed) != 0;
            m.state.load(Ordering::Relaxed) == GONE || (m.is_live() && !joined)
        });
        news || self.orderer.next() != before
    }

    fn is_look_due(&mut self, now: bool) -> bool {
        if !now && self.turns_to_look > 0 {
            self.turns_to_look -= 1;
            return false;
        }
        self.turns_to_look = TURNS_A_LOOK;
        let clock = Instant::now();
        let due = clock >= self.next_look;
        if due {
            self.next_look = clock + HOUSEKEEPING;
            self.look_at_file |= clock >= self.next_look_at_file;
        }
        if self.look_at_file {
            self.next_look_at_file = clock + FILE_LOOKS;
        }
        due
    }

    /// Drops the gate of a worker that left, was replaced in its slot, or is dead.
    fn settle_worker(&mut self, region: &Region, s: &Shared<'_>, slot: u16, ask_kernel: bool) -> bool {
        let (member, party) = (&s.members[usize::from(slot)], &s.workers[usize::from(slot)].party);
        if !member.is_live() {
            return false;
        }
        let generation = member.generation.load(Ordering::Relaxed);
        // Only who holds the slot's lock asks there: another generation proves that the former one is gone.
        let gone = party.has_left(generation)
            || party.request() != generation
            || (ask_kernel && !region.is_alive(Role::Worker(slot)));
        if gone {
            if !party.has_left(generation) {
                let (name, page) = (Name::from_words(member.name.load()), &s.workers[usize::from(slot)]);
                let what = "died without leaving, its gate was dropped";
                region.record(ErrorCode::WorkerDied, name.as_str(), what, gate(member, page).get());
            }
            self.orderer.drop_gate(s, slot);
        }
        gone
    }

    /// Lets a worker in that asks.
    fn settle_join(&mut self, region: &Region, s: &Shared<'_>, slot: u16) -> bool {
        let (member, party) = (&s.members[usize::from(slot)], &s.workers[usize::from(slot)].party);
        let generation = party.request();
        if generation == 0 || generation == member.answer.generation() || !region.is_alive(Role::Worker(slot))
        {
            return false;
        }
        let name = party.name.load();
        let taken = |other: u16| other != slot && s.members[usize::from(other)].is_live();
        let twin = (0..s.members.len() as u16)
            .find(|&other| taken(other) && s.members[usize::from(other)].name.load() == name);
        if let Some(twin) = twin {
            let alive = region.is_alive(Role::Worker(twin));
            member.answer.give(generation, if alive { Verdict::NameTaken } else { Verdict::Busy });
            return true;
        }
        // What nobody worked on is not for the first to come, where it is to be dropped.
        self.discard(s);
        let joined = !member.is_live() && self.orderer.join(s, slot, generation, name).is_some();
        self.unsettled |= !joined;
        joined
    }

    /// Gives a lane to a producer that asks for it.
    fn settle_producer(&mut self, region: &Region, s: &Shared<'_>, lane: u16) -> bool {
        let (entry, party) = (&s.lanes[usize::from(lane)], &region.map().lane_page(lane).party);
        let generation = party.request();
        if generation == 0 || generation == entry.answer.generation() || !region.is_alive(Role::Lane(lane)) {
            return false;
        }
        let name = party.name.load();
        let owns = |other: u16| {
            let entry = &s.lanes[usize::from(other)];
            entry.number.load(Ordering::Relaxed) > 0 && entry.name.load() == name
        };
        if let Some(twin) = (1..s.lanes.len() as u16).find(|&other| other != lane && owns(other)) {
            let alive = region.is_alive(Role::Lane(twin));
            // If it is dead, its lane is the one to ask for: the newcomer looks again.
            entry.answer.give(generation, if alive { Verdict::NameTaken } else { Verdict::Busy });
            return true;
        }
        let settled = self.orderer.admit(s, lane, generation, name).is_some();
        self.unsettled |= !settled;
        settled
    }

    /// What to do before sleeping: look at the gates and at the living. Whether there was news.
    fn before_sleep(&mut self) -> bool {
        let news = self.keep_house(true) | self.free();
        self.tell(news);
        news
    }

    /// Sleeps until there is a ticket, a request, (if somebody waits for room) a gate that moved, `is_asked`, or
    /// the deadline.
    fn sleep(&mut self, deadline: Option<Instant>, is_asked: impl Fn() -> bool) {
        if self.before_sleep() {
            return;
        }
        let region = self.region.clone();
        let s = region.map().shared();
        // What waits to be said in the order, like a ticket that is stuck, waits for gates.
        let waits = self.stuck || self.unsettled;
        let level = if waits { FOR_ROOM } else { self.orderer.sleep_level(&s) };
        let bell = &s.bells.sequencer;
        wait::sleep(bell, level, deadline, || is_asked() || self.is_needed(&s, level));
    }

    /// The second look before a sleep: whether there is something to do after all.
    fn is_needed(&mut self, s: &Shared<'_>, level: u32) -> bool {
        if s.bells.requests() != self.seen_requests {
            return true;
        }
        if self.stuck {
            // A ticket that is stuck is no work until a gate moves.
            return s.bells.is_wanted() || self.free();
        }
        self.orderer.is_needed(s, level)
    }

    /// Whether it would sleep now.
    #[cfg(test)]
    pub(crate) fn would_sleep(&mut self) -> bool {
        let region = self.region.clone();
        !self.is_needed(&region.map().shared(), FOR_ROOM)
    }

    /// Sequences on a thread of its own.
    ///
    /// # Errors
    /// As [`open`](Self::open); or the thread cannot be started, or not be pinned.
    pub fn spawn(region: &Region, config: SequencerConfig) -> Result<SequencerHandle, SequencerError> {
        Sequencer::open(region)?.start(config)
    }

    /// Goes on on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started, or not be pinned.
    pub fn start(self, config: SequencerConfig) -> Result<SequencerHandle, SequencerError> {
        let mut sequencer = self;
        let region = sequencer.region.clone();
        sequencer.measure_cpu = config.measure_cpu;
        sequencer.watch.stall_after(config.stall_after);
        let asked = Arc::new(AtomicU8::new(RUN));
        let (pinned, is_pinned) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("seriatim-seq".into()).spawn({
            let asked = Arc::clone(&asked);
            move || {
                let pin = config.core.map_or(Ok(()), affinity::pin);
                let failed = pin.is_err();
                // The spawning thread waits for this and cannot be gone.
                let _ = pinned.send(pin);
                if failed { Ok(sequencer.stats) } else { sequencer.run(&config, &asked) }
            }
        });
        let thread = thread.map_err(SequencerError::Thread)?;
        let handle = SequencerHandle { region, asked, thread: Some(thread) };
        // A thread that ended without a word panicked: joining says how.
        match is_pinned.recv() {
            Ok(Ok(())) => Ok(handle),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(handle.stop().err().unwrap_or(SequencerError::Panicked("at its start".into()))),
        }
    }

    fn run(&mut self, config: &SequencerConfig, asked: &AtomicU8) -> Result<SequencerStats, SequencerError> {
        let mut idle = Idle::new(config.wait);
        let (mut closing, mut give_up) = (false, None);
        loop {
            let turn = self.poll(BUDGET)?;
            match asked.load(StdOrdering::Acquire) {
                STOP => return Ok(self.stats),
                CLOSE if !closing => {
                    (closing, give_up) = (true, wait::after(config.close_timeout));
                    self.close();
                }
                _ => {}
            }
            if turn.closed || wait::is_over(give_up) {
                return Ok(self.stats);
            }
            if turn.commands > 0 {
                idle.reset();
            } else if idle.step() {
                // Once closing, only the order counts: what keeps it back is a gate.
                let seen = if closing { CLOSE } else { RUN };
                self.sleep(give_up, || asked.load(StdOrdering::Acquire) != seen);
            }
        }
    }
}

fn tell_bad_ticket(region: &Region, lane: u16, count: u32, limit: u64) {
    let entry = region.map().lane_entries().get(usize::from(lane));
    let name = entry.map(|entry| Name::from_words(entry.name.load()).to_string()).unwrap_or_default();
    tracing::warn!(
        "lane {lane} of producer {name:?} queued a ticket for {count} commands, {limit} are possible; it is no \
         longer heard"
    );
    let what = "queued a ticket that cannot be right, its lane is no longer heard";
    region.record(ErrorCode::BadTicket, &name, what, count.into());
}

fn damaged(region: &Region, damage: Damage) -> SequencerError {
    let path = region.path().into();
    match damage {
        Damage::Field { field, of, found, limit } => {
            SequencerError::Damaged { path, field, of, found, limit }
        }
        Damage::Cell(bad) => SequencerError::Damaged {
            path,
            field: bad.field,
            of: bad.cell,
            found: bad.found,
            limit: bad.limit,
        },
    }
}

const RUN: u8 = 0;
const STOP: u8 = 1;
const CLOSE: u8 = 2;

/// A sequencer's own thread. Dropping it stops the thread, without closing the order.
#[derive(Debug)]
pub struct SequencerHandle {
    region: Region,
    asked: Arc<AtomicU8>,
    thread: Option<JoinHandle<Result<SequencerStats, SequencerError>>>,
}

impl SequencerHandle {
    /// Closes the order and joins the thread: workers get [`Event::Closed`](crate::Event::Closed) after all that
    /// was submitted, waiting producers get `Closed` at once. If workers keep the end out of the order for
    /// longer than the close time-out, `closed` in the result is false, and the next sequencer orders the rest.
    ///
    /// # Errors
    /// What ended the thread before.
    pub fn close(mut self) -> Result<SequencerStats, SequencerError> {
        self.end(CLOSE)
    }

    /// Stops and joins the thread, leaving the order open for the next sequencer.
    ///
    /// # Errors
    /// What ended the thread before.
    pub fn stop(mut self) -> Result<SequencerStats, SequencerError> {
        self.end(STOP)
    }

    /// Whether the thread has ended by itself, on an error.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn end(&mut self, how: u8) -> Result<SequencerStats, SequencerError> {
        let Some(thread) = self.thread.take() else { return Ok(SequencerStats::default()) };
        if fork::is_child() {
            // The thread is not here; what is known of it is not to be waited for.
            std::mem::forget(thread);
            return Err(SequencerError::Forked);
        }
        self.asked.store(how, StdOrdering::Release);
        // It may be about to sleep: ring whether or not it has announced itself. Who reads the word before it
        // moves does not sleep, who reads it after sees what is asked.
        let bell = &self.region.map().bells().sequencer;
        bell.ring();
        sys::futex_wake_all(bell.word());
        thread.join().unwrap_or_else(|panic| Err(SequencerError::Panicked(panic_text(&*panic).into())))
    }
}

impl Drop for SequencerHandle {
    fn drop(&mut self) {
        // Whoever drops it does not want to know; who does calls `stop`.
        let _ = self.end(STOP);
    }
}
