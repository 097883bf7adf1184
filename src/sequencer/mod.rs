//! [`Sequencer`]: the party that fixes the order. One per region; a duty cycle, or a thread of its own.
//!
//! A turn: settle who asks to come in or has left, order what is queued, wake who sleeps. What is not the order is
//! in `housekeeping`, the thread around it in `thread`.

mod assist;
mod housekeeping;
mod thread;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::control::{CLOSING, EXHAUSTED, OPEN};
use seriatim_ring::sequencer::{Damage, Orderer, Stop};
use seriatim_ring::sync::Ordering;
use seriatim_ring::tickets::{Enqueuer, Ticket};
use seriatim_ring::wake::FOR_WORK;

pub use assist::{Assist, Load};
pub use thread::{SequencerConfig, SequencerHandle};

use crate::affinity::PinError;
use crate::config::WithoutWorkers;
use crate::crash_point;
use crate::error::{AttachError, HeldBy};
use crate::error_log::ErrorCode;
use crate::fold::Fold;
use crate::fork::{self, Alarm};
use crate::liveness::{Lock, Role};
use crate::name::Name;
use crate::poison::{OnDivergence, Poisoned};
use crate::process::{NotKilled, Process};
use crate::region::Region;
use crate::region::file::{FileWatch, RegionLost};
use crate::region::layout::Part;
use crate::region::map::SequencerParts;
use crate::region::snapshot::State;
use crate::region::spill::Sweeper;
use crate::stall::Watch;
use crate::sys;
use crate::text::many;
use crate::wait::{self, Waker};

/// How long a worker can hold the others up before that is said; see [`Sequencer::stall_after`].
const STALL: Duration = Duration::from_secs(1);
/// How long a lock that is held is tried, before the one that is named has it. In another pid namespace nobody is found
/// alive.
const LINGER: Duration = Duration::from_millis(200);
/// The same where the kernel is ending that one, for which it may lack a processor.
const ENDING: Duration = Duration::from_secs(5);

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
    /// The order was ended for good: workers differ. Nobody can go on with it.
    #[error("{path:?}: {poison}")]
    Poisoned {
        /// The region.
        path: PathBuf,
        /// Where, and who.
        poison: Poisoned,
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
    /// Of these, those that others made; see [`SequencerConfig::assist`].
    pub assisted_turns: u64,
    /// Turns that found work.
    pub working_turns: u64,
    /// Processor time of the turns that found work, in nanoseconds, if it was to be measured; else 0.
    pub cpu_ns: u64,
    /// The end is in the order.
    pub closed: bool,
}

/// What a sequencer writes.
const PARTS: [Part; 5] = [Part::Control, Part::Order, Part::Bells, Part::Tickets, Part::Lane(0)];

/// The party that fixes the order.
///
/// It is found alive by its lock, so two are never possible. Dropping it leaves the order as it is: the next
/// one goes on at the next index.
///
/// It takes tickets in the order in which they were queued, whatever its budget. So from the moment in which a command is
/// submitted, a worker gets at most as many commands of each other lane before it as a lane has cells
/// ([`Config::lane_cells`](crate::Config::lane_cells)), however much is submitted meanwhile.
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
    parts: SequencerParts,
    alarm: Alarm,
    orderer: Orderer,
    _lock: Lock,
    stats: SequencerStats,
    measure_cpu: bool,
    /// The requests that were looked at.
    seen_requests: u32,
    /// A request waits for something, or a member's coming or going is not in the order yet.
    unsettled: bool,
    /// Moves when somebody may have come or gone, and once a second.
    changes: u32,
    /// The next ticket waits for a gate.
    stuck: bool,
    turns_to_look: u32,
    glances: u32,
    next_look: Instant,
    /// The anchor when sleepers were woken last.
    told: Seq,
    waker: Waker,
    /// Folds what nobody works on, where that is to be dropped.
    discarding: Option<Fold>,
    watch: Watch,
    file: FileWatch,
    look_at_file: bool,
    next_look_at_file: Instant,
    /// The gate of a journal that died is dropped, as any other.
    without_journal: bool,
    sweeper: Sweeper,
    /// There may be more to give back at once.
    is_sweeping: bool,
}

impl Sequencer {
    /// Takes the region's order up: at its beginning, or where an earlier sequencer ended, however it ended.
    ///
    /// # Errors
    /// Another one is alive, who is then named; the region is read-only; or it is damaged.
    pub fn open(region: &Region) -> Result<Sequencer, SequencerError> {
        match Self::lock_or_holder(region)? {
            Ok(lock) => Self::take_over(region, lock),
            Err(Process { pid, .. }) => Err(SequencerError::Running { path: region.path().into(), pid }),
        }
    }

    /// The lock, or who has it. That one locks first and says then who it is, whoever removes a region has the lock
    /// without a word, and one that was killed keeps it until the kernel has ended it: so while the one that is named does
    /// not live, it is tried for a moment.
    fn lock_or_holder(region: &Region) -> Result<Result<Lock, Process>, SequencerError> {
        let (deadline, ended) = (wait::after(LINGER), wait::after(ENDING));
        loop {
            if let Some(lock) = Self::lock(region)? {
                return Ok(Ok(lock));
            }
            let holder = region.sequencer_process();
            let deadline = if holder.is_ending() { ended } else { deadline };
            if holder.lives() || wait::is_over(deadline) {
                return Ok(Err(holder));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As [`open`](Self::open), but waits while another one serves: a standby. It takes over when that one's lock
    /// falls, which is when its process has ended however it ended, and for no other reason.
    ///
    /// `stop` is asked every 100 ms while it waits. `None` if that said so, or if the one that served has closed
    /// the order: whoever closed it does not want it to go on. If the file loses its name or another one gets it,
    /// that is said once (in one line through `tracing`, and in the region's error log), and it waits on: for those
    /// who are attached.
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
        let (mut waited, mut file) = (false, FileWatch::new());
        loop {
            match Self::lock(region)? {
                // Closed before its lock fell, so no later look can find it open.
                Some(_) if waited && region.state() == State::Closed => return Ok(None),
                Some(lock) => {
                    let mut sequencer = Self::take_over(region, lock)?;
                    // What was said need not be said again.
                    sequencer.file = file;
                    return Ok(Some(sequencer));
                }
                None if stop() => return Ok(None),
                None => region.sequencer_process().await_end(wait::LONGEST_SLEEP),
            }
            file.look(region, "standby").map_err(|source| lost(region, source))?;
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
        let holder = match Self::lock_or_holder(region)? {
            Ok(lock) => return Self::take_over(region, lock),
            Err(holder) => holder,
        };
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
        region.make_writable("a sequencer", &PARTS)?;
        let lock = Lock::take(region.file(), Role::Sequencer);
        Ok(lock.map_err(AttachError::io(region.path(), "lock"))?)
    }

    fn take_over(region: &Region, lock: Lock) -> Result<Sequencer, SequencerError> {
        crash_point!("sequence.locked");
        let discards = region.identity().without_workers == WithoutWorkers::Discard;
        if discards {
            // What nobody works on it walks itself, and so it ends the terms of incarnations.
            region.make_writable("a sequencer", &[Part::Channel])?;
        }
        region.enter(&PARTS, region.map().layout().read_by_sequencer(discards));
        region.check().map_err(|source| lost(region, source))?;
        let reign = &region.map().control().reign;
        let Process { pid, started } = Process::this();
        reign.pid.store(pid, Ordering::Relaxed);
        reign.started.store(started, Ordering::Relaxed);
        region.map().control().pulse.helped.store(0, Ordering::Relaxed);
        crash_point!("sequence.named");
        let mut orderer =
            Orderer::take_over(&region.map().shared()).map_err(|damage| damaged(region, damage))?;
        if region.state() == State::Poisoned {
            // Its predecessor may have died before it told anybody.
            close_queue(region, orderer.ticket());
            for bell in [&region.map().bells().workers, &region.map().bells().producers] {
                wait::wake_all(bell);
            }
            return Err(poisoned(region));
        }
        if region.on_divergence() != OnDivergence::Report {
            orderer.heed_findings(&region.map().shared());
        }
        let epoch = reign.epoch.load(Ordering::Relaxed);
        let mut sequencer = Sequencer {
            alarm: Alarm::of_this_process(),
            orderer,
            _lock: lock,
            stats: SequencerStats { epoch, ..SequencerStats::default() },
            measure_cpu: false,
            without_journal: false,
            seen_requests: 0,
            unsettled: true,
            changes: 0,
            stuck: false,
            turns_to_look: 0,
            glances: 0,
            next_look: Instant::now(),
            told: Seq::ZERO,
            waker: Waker::default(),
            discarding: None,
            watch: Watch::new(STALL),
            file: FileWatch::new(),
            look_at_file: true,
            sweeper: Sweeper::default(),
            is_sweeping: false,
            next_look_at_file: Instant::now(),
            parts: SequencerParts::of(region),
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
            wait::wake_all(bell);
        }
        Ok(sequencer)
    }

    /// Measures the processor time of turns that find work.
    pub fn measure_cpu(&mut self, yes: bool) {
        self.measure_cpu = yes;
    }

    /// Whether the gate of a journal that died is dropped, as that of any worker, although it was to
    /// [stay](crate::journal::OnFailure::Hold): the order then goes on without it. Default no.
    pub fn without_journal(&mut self, yes: bool) {
        self.without_journal = yes;
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
    /// waits. Once the order is closed it does nothing more: only a successor can go on after the end.
    ///
    /// # Errors
    /// The last index is used up.
    pub fn poll(&mut self, budget: usize) -> Result<Turn, SequencerError> {
        if self.stats.closed {
            // Those who sleep are to hear of the end.
            self.waker.go_on(self.region.map().bells());
            return Ok(Turn { commands: 0, runs: 0, held: None, closed: true });
        }
        if self.alarm.is_raised() || self.look_at_file {
            self.check_file()?;
        }
        let measured = self.measure_cpu && self.orderer.has_work(self.parts.shared());
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

    #[inline(always)]
    fn turn(&mut self, budget: usize) -> Result<Turn, SequencerError> {
        self.region.map().control().pulse.turns.store(self.stats.turns + 1, Ordering::Relaxed);
        let mut news = self.keep_house(false);
        let bells = self.region.map().bells();
        if bells.is_wanted() || bells.producers.is_announced(FOR_WORK) {
            news |= self.meet_wants();
        }
        let budget = u32::try_from(budget).unwrap_or(u32::MAX);
        let ordered = self.orderer.turn(self.parts.shared(), budget);
        news |= ordered.commands > 0;
        let mut turn =
            Turn { commands: ordered.commands, runs: ordered.runs.into(), held: None, closed: false };
        self.stuck = match ordered.stop {
            Stop::Dry | Stop::Budget => false,
            Stop::Held => {
                news |= self.free();
                self.orderer.is_held(self.parts.shared())
            }
            Stop::Bad { lane, count, limit } => {
                let rejected = self.orderer.reject(self.parts.shared(), lane, count).is_some();
                if rejected {
                    tell_bad_ticket(&self.region, lane, count, limit);
                }
                news |= rejected;
                !rejected
            }
            Stop::Close => {
                turn.closed = self.orderer.close(self.parts.shared()).is_some();
                !turn.closed
            }
            Stop::Poison => !self.end_poisoned()?,
            Stop::Exhausted => {
                self.refuse_submits(EXHAUSTED);
                self.tell(true);
                return Err(SequencerError::Exhausted { last: self.orderer.next() });
            }
        };
        if self.stuck {
            self.watch.press();
            turn.held = Some(self.region.held_by_worker());
        }
        self.stats.closed |= turn.closed;
        self.tell(news || turn.closed);
        Ok(turn)
    }

    /// Wakes who sleeps, if there is news or room was freed since the last time.
    fn tell(&mut self, news: bool) {
        if news || self.orderer.anchor() != self.told {
            self.told = self.orderer.anchor();
            self.waker.tell(self.region.map().bells());
        } else if self.waker.is_busy() {
            self.waker.go_on(self.region.map().bells());
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
        let before = reign.state.load(Ordering::Relaxed);
        if before == OPEN || (before, state) == (CLOSING, EXHAUSTED) {
            // ORDERING [C1]: Release; pairs with the Acquire in `Region::state`.
            reign.state.store(state, Ordering::Release);
            crash_point!("close.closing");
            close_queue(&self.region, self.orderer.ticket());
        }
    }

    /// Ends the order for good, if there is room for the command that says so; whether there was.
    #[cold]
    fn end_poisoned(&mut self) -> Result<bool, SequencerError> {
        if self.region.state() == State::Poisoned {
            return Err(poisoned(&self.region));
        }
        let Some((at, finding)) = self.orderer.poison(self.parts.shared()) else { return Ok(false) };
        close_queue(&self.region, self.orderer.ticket());
        self.tell(true);
        let index = finding.index();
        let what = format!("workers differ since index {index}, the order is poisoned");
        self.region.record(ErrorCode::Poisoned, "sequencer", &what, at.get());
        Err(poisoned(&self.region))
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // Its lock falls next, or when a child that is being started runs: whoever comes waits for that, as it would not
        // for one who lives.
        self.region.map().control().reign.started.store(0, Ordering::Relaxed);
        if self.waker.is_busy() {
            // Nobody goes on waking after this.
            wait::wake_all(&self.region.map().bells().workers);
            wait::wake_all(&self.region.map().bells().producers);
        }
    }
}

fn tell_bad_ticket(region: &Region, lane: u16, count: u32, limit: u64) {
    let entry = region.map().lane_entries().get(usize::from(lane));
    let name = entry.map(|entry| Name::from_words(entry.name.load()).to_string()).unwrap_or_default();
    tracing::warn!(
        "lane {lane} of producer {name:?} queued a ticket for {}, {limit} are possible; it is no longer heard",
        many(count, "command")
    );
    let what = "queued a ticket that cannot be right, its lane is no longer heard";
    region.record(ErrorCode::BadTicket, &name, what, count.into());
}

/// Nobody passes from here on, until somebody takes over who makes it void.
fn close_queue(region: &Region, from: u64) {
    let (map, mut enqueuer) = (region.map(), Enqueuer::new(from));
    // It fails only where another close ticket stands, which serves as well.
    let _ = enqueuer.enqueue(&map.tickets(), Ticket::Close, &map.control().reign.void_before);
}

fn poisoned(region: &Region) -> SequencerError {
    match region.poison() {
        Some(poison) => SequencerError::Poisoned { path: region.path().into(), poison },
        None => SequencerError::Damaged {
            path: region.path().into(),
            field: "what poisoned it",
            of: region.map().control().poison.finder.load(Ordering::Relaxed),
            found: 0,
            limit: 0,
        },
    }
}

fn lost(region: &Region, source: RegionLost) -> SequencerError {
    SequencerError::Lost { path: region.path().into(), source }
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
