//! [`Worker`]: poll, handle, go on; its cursor gates the others.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::event::{Event as Own, OWN_LANE};
use seriatim_ring::parts::Address;
use seriatim_ring::reports::Report;
use seriatim_ring::sequencer::{published, start_of};
use seriatim_ring::sync::Ordering;
use seriatim_ring::wake::{FOR_ROOM, FOR_WORK};

use crate::Digest;
use crate::affinity::Spinning;
use crate::assistance::Helper;
use crate::attach::{OnWorkerPage, Seat, take_seat};
use crate::barrier::{self, ApplyError};
use crate::config::DigestOf;
use crate::crash_point;
use crate::error::AttachError;
use crate::error_log::ErrorCode;
use crate::event::{Command, Event};
use crate::fold::{Corrupt, Fold, Met, Plain, Said, Stopped};
use crate::fork::{self, Alarm};
use crate::journal::{CatchUp, CatchUpError};
use crate::liveness::Role;
use crate::name::Name;
use crate::pacer::Pacer;
use crate::policy::WorkerPolicy;
use crate::region::Region;
use crate::region::file::{RegionLost, Vigil};
use crate::region::layout::Part;
use crate::region::snapshot::State;
use crate::region::spill::Unmapped;
use crate::wait::{self, Idle, Wait};

/// How a worker joins.
#[derive(Clone, Debug)]
#[must_use]
pub struct JoinOptions {
    timeout: Duration,
    wait: Wait,
    release_every: u32,
    by_hand: bool,
    policy: WorkerPolicy,
    pub(crate) check_payloads: bool,
    pub(crate) rank: Option<u16>,
}

impl Default for JoinOptions {
    fn default() -> Self {
        JoinOptions {
            timeout: Duration::from_secs(1),
            wait: Wait::default(),
            release_every: 32,
            by_hand: false,
            policy: WorkerPolicy::Gate,
            check_payloads: false,
            rank: None,
        }
    }
}

impl JoinOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long to wait for the sequencer's answer; default 1 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How to wait for commands; default [`Wait::Park`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// What the sequencer is to do when this worker holds the others up; default [`WorkerPolicy::Gate`].
    pub fn policy(mut self, policy: WorkerPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Whether every payload is checked against the digest that its producer took, before it is delivered; default
    /// no, for it means to read it all. One that has another digest is [`WorkerError::Corrupt`], naming its index. In a
    /// region without such digests ([`DigestOf`]) who asks for this does not get in.
    pub fn check_payloads(mut self, yes: bool) -> Self {
        self.check_payloads = yes;
        self
    }

    /// The worker's rank, below the region's [`Config::ranks`](crate::Config::ranks): it gets what is submitted
    /// [to that rank alone](crate::Producer::submit_to), and its part of commands that have
    /// [a part for each](crate::Producer::submit_parts). One live worker has a rank at a time; who comes after it, under
    /// whatever name, asks for it again.
    ///
    /// Default: none. Such a worker passes over what is for one rank or has parts, as each passes over what is for
    /// another: it has its index, is in the digest, and is no event. It does not get what all have in common of a command
    /// with parts, for that is half a command, and cannot be told from a whole one by its bytes.
    pub fn rank(mut self, rank: u16) -> Self {
        self.rank = Some(rank);
        self
    }

    /// After how many commands the worker says how far it is, at least 1, default 32; it does so in any case
    /// when it runs dry. Fewer free the lanes sooner behind a slow handler, more touch the shared line less.
    pub fn release_every(mut self, commands: u32) -> Self {
        self.release_every = commands.max(1);
        self
    }

    /// The worker says how far it is only when [`Worker::release`] is called: for one that counts a command as done only
    /// when its effects are kept. If such a worker dies alone, the next one gets again what it had not released. Default
    /// no. What is not released keeps its room: one that never releases holds up everybody.
    pub fn release_by_hand(mut self, yes: bool) -> Self {
        self.by_hand = yes;
        self
    }
}

/// A worker cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Something in the order or a lane cannot be. The worker stays where it is.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A payload that does not lie in its lane could not be mapped. The worker stays where it is, and can try again.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    /// The end was delivered, and nobody has reopened the order.
    #[error("the order is closed")]
    Closed,
    /// The poison was delivered: workers differ, and the order has ended for good; see [`Region::poison`].
    #[error("the order is poisoned at index {at}: workers differ since index {diverged}")]
    Poisoned {
        /// Its last index.
        at: Seq,
        /// The index at which they began to differ.
        diverged: Seq,
    },
    /// In [lockstep](crate::OnDivergence::Lockstep): it asks for more before it has reported what it was handed.
    #[error("index {seq} is not reported, and workers of this region keep step: report it first")]
    Unreported {
        /// What it was handed last.
        seq: Seq,
    },
    /// There is no region to go on with.
    #[error(transparent)]
    Lost(#[from] RegionLost),
    /// This process is a forked child of the one that joined: the worker is the parent's.
    #[error("this worker joined in the parent process, before a fork")]
    Forked,
}

/// A worker cannot report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// It has not been handed anything yet that it could say something of.
    #[error("nothing to report: this worker has not had its first event, at index {first}")]
    NothingYet {
        /// The first index that is delivered to it.
        first: Seq,
    },
    /// It has reported that index, and in this region what was reported has been [compared](crate::OnDivergence).
    #[error("index {seq} is reported already, and in this region that counts")]
    Again {
        /// The index.
        seq: Seq,
    },
    /// There is no region to go on with.
    #[error(transparent)]
    Lost(#[from] RegionLost),
    /// This process is a forked child of the one that joined: the worker is the parent's.
    #[error("this worker joined in the parent process, before a fork")]
    Forked,
}

/// One who gets every command, at the same index as everyone else.
///
/// Payloads are lent in place and end with the next call:
///
/// ```compile_fail,E0499
/// # fn two(worker: &mut seriatim::Worker) -> Result<(), Box<dyn std::error::Error>> {
/// let first = worker.poll()?;
/// let second = worker.poll()?; // may free what `first` borrows
/// println!("{first:?}");
/// # Ok(())
/// # }
/// ```
///
/// Nor can one outlive its worker:
///
/// ```compile_fail,E0505
/// # fn late(mut worker: seriatim::Worker) -> Result<(), Box<dyn std::error::Error>> {
/// let event = worker.recv()?;
/// drop(worker);
/// println!("{event:?}");
/// # Ok(())
/// # }
/// ```
///
/// A worker that does not poll gates the order: producers will find the region full, and are told its name.
///
/// Where workers that differ [are stopped](crate::OnDivergence), it waits for slower ones at some distance, in lockstep
/// after each event, which it then has to [report](Self::report) before it asks for more: a call that hands out several
/// hands out one, and [`run`](Self::run), which reports nothing, is not for such a region. While it waits it is as if
/// nothing more were there; [`Region::awaited`] names whom it waits for.
/// Dropping it leaves the order, like [`leave`](Self::leave).
#[derive(Debug)]
pub struct Worker {
    region: Region,
    alarm: Alarm,
    seat: Seat,
    name: Name,
    number: u64,
    fold: Fold,
    first: Seq,
    wait: Wait,
    release_every: u64,
    by_hand: bool,
    /// The cursor as stored.
    released: Seq,
    /// Commands since then that it does not get.
    void_since: u64,
    superseded: u64,
    closed: bool,
    check_payloads: bool,
    vigil: Vigil,
    helper: Helper,
    /// Before this it takes the long way for each: a newcomer's past, what comes after a payload that was mapped by itself,
    /// and everything where workers keep step.
    walks_from: Seq,
    /// Where workers that differ are stopped.
    pacer: Option<Box<Pacer>>,
    _spinning: Option<Spinning>,
}

impl Worker {
    /// Joins under a name. The first worker of a region starts at its anchor, and so gets all that is held; a
    /// later one starts at the index of its own [`Event::Joined`]; what lies before it can have from the journal, if there
    /// is one, with [`join_from`](Self::join_from). Otherwise that is the business of those who were there: if one of them dies that was behind, and no other was as far back, nobody gets what it has not had.
    ///
    /// # Errors
    /// A living worker has the name, all slots are taken, the region is read-only, or no sequencer answers
    /// within a second.
    pub fn join(region: &Region, name: &str) -> Result<Worker, AttachError> {
        Self::join_with(region, name, &JoinOptions::new())
    }

    /// As [`join`](Self::join), with options.
    ///
    /// # Errors
    /// As [`join`](Self::join); a living worker has the rank, or the region has none such.
    pub fn join_with(region: &Region, name: &str, options: &JoinOptions) -> Result<Worker, AttachError> {
        let name = Name::new(name)?;
        Self::may_join(region, options)?;
        // Before it gates: it may take a while.
        region.enter_all();
        region.enter(&[Part::Channel], []);
        let seat =
            take_seat::<OnWorkerPage>(region, name, Address::of_worker(options.rank), options.timeout)?;
        let map = region.map();
        // Those of its pages that it has not written yet, too.
        region.enter(&[Part::Worker(seat.index)], []);
        let member = &map.members()[usize::from(seat.index)];
        let (follower, past, first) = start_of(member);
        let page = map.worker_page(seat.index);
        page.cursor.store(follower.next(), past);
        options.policy.store(&page.policy);
        let pacer = Pacer::of(region, seat.index, first);
        crash_point!("join.cursor");
        page.party.begin(seat.generation);
        Ok(Worker {
            alarm: Alarm::of_this_process(),
            released: follower.next(),
            fold: Fold::new(map, region.digest_of(), follower, past)
                .noting_ends()
                .of_worker(options.rank, first),
            number: member.number.load(Ordering::Relaxed),
            first,
            wait: options.wait,
            release_every: if options.by_hand { u64::MAX } else { options.release_every.into() },
            by_hand: options.by_hand,
            void_since: 0,
            superseded: 0,
            closed: false,
            check_payloads: options.check_payloads,
            vigil: Vigil::default(),
            helper: Helper::new(region.assistance()),
            walks_from: walks_from(first, &pacer),
            pacer,
            _spinning: Spinning::of(options.wait),
            region: region.clone(),
            seat,
            name,
        })
    }

    /// As [`join_with`](Self::join_with), with what came before: hands the history from an index on, as the journal in a
    /// directory has it, to `handle`, and goes over into the live order. What comes next there is the worker's to poll,
    /// [`first`](Self::first) on: nothing is missing between the two, and nothing there twice.
    ///
    /// While it reads the journal it gates nobody. For more than that, like stopping in between, there is
    /// [`CatchUp`](crate::journal::CatchUp).
    ///
    /// ```
    /// use seriatim::journal::{Journal, JournalOptions};
    /// use seriatim::{Config, Event, JoinOptions, Producer, Region, Seq, Sequencer, SequencerConfig, Worker};
    ///
    /// # let dir = std::env::temp_dir().join(format!("join-from-{}", std::process::id()));
    /// let region = Region::anonymous(&Config::new().lane_cells(4))?;
    /// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let mut journal = Journal::open(&region, &dir, &JournalOptions::new())?;
    /// let mut producer = Producer::attach(&region, "p")?;
    /// for n in 0..100_u64 {
    ///     let index = producer.submit(0, &n.to_le_bytes())?;
    ///     producer.wait_sequenced(index)?;
    ///     while journal.poll()? > 0 {} // then it may be gone from the region
    /// }
    /// let (mut sum, mut next) = (0, Seq::ZERO);
    /// let mut apply = |event: Event<'_>| {
    ///     next = event.seq().plus(1); // what a restarted worker would go on with
    ///     if let Event::Command(command) = event {
    ///         sum += u64::from_le_bytes(command.payload.try_into().unwrap());
    ///     }
    /// };
    /// let options = JoinOptions::new();
    /// let mut worker = Worker::join_from(&region, "late", &options, &dir, Seq::ZERO, &mut apply)?;
    /// while let Some(event) = worker.poll()? {
    ///     apply(event); // from here on it is one of the others
    /// }
    /// assert_eq!((sum, next), (99 * 100 / 2, worker.next()));
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CatchUpError`](crate::journal::CatchUpError): what was handed out until then stays so.
    pub fn join_from(
        region: &Region,
        name: &str,
        options: &JoinOptions,
        dir: impl AsRef<Path>,
        from: Seq,
        mut handle: impl FnMut(Event<'_>),
    ) -> Result<Worker, CatchUpError> {
        let mut history = CatchUp::open(region, name, dir, from, options)?;
        while !history.is_near() {
            history.poll_batch(HISTORY, &mut handle)?;
        }
        history.join(handle)
    }

    /// Whether somebody can join with these options; what all workers write is writable after that.
    pub(crate) fn may_join(region: &Region, options: &JoinOptions) -> Result<(), AttachError> {
        let ranks = region.geometry().ranks;
        if let Some(rank) = options.rank.filter(|&rank| u64::from(rank) >= ranks) {
            return Err(AttachError::UnknownRank { path: region.path().into(), rank, ranks });
        }
        let digest_of = region.digest_of();
        if options.check_payloads && digest_of != DigestOf::Payload {
            return Err(AttachError::NoPayloadDigests { path: region.path().into(), digest_of });
        }
        region.make_writable("a worker", &[Part::Bells, Part::Channel])
    }

    /// Takes over what who read the history knows of its end.
    pub(crate) fn knows(&mut self, superseded: u64, is_closed: bool) {
        (self.superseded, self.closed) = (superseded, is_closed);
    }

    /// Folds what lies before an index, and hands out nothing of it; whether so much is there.
    pub(crate) fn fold_to(&mut self, to: Seq) -> Result<bool, WorkerError> {
        while self.next() < to {
            let step = self.fold.step(self.region.map());
            let Some(met) = step.map_err(|stopped| self.why_stopped(stopped))? else { return Ok(false) };
            if met.lane == OWN_LANE {
                self.note_end(&met);
            }
        }
        Ok(true)
    }

    /// What comes next is the first that it hands out. What lies before was had from the journal, which has it for whoever
    /// comes after: also one that releases by hand has released that.
    pub(crate) fn begin_here(&mut self) {
        self.first = self.next();
        self.fold.read_from(self.first);
        self.walks_from = walks_from(self.first, &self.pacer);
        if let Some(pacer) = &mut self.pacer {
            pacer.begin_at(self.first);
        }
        self.release();
    }

    /// The name that it joined under.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The member's number, never reused in a region.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its rank, if it joined with one.
    #[must_use]
    pub fn rank(&self) -> Option<u16> {
        self.fold.rank()
    }

    /// The first index that is delivered to it.
    #[must_use]
    pub fn first(&self) -> Seq {
        self.first
    }

    /// The index that comes next. Before the first delivery it may lie before [`first`](Self::first).
    #[must_use]
    pub fn next(&self) -> Seq {
        self.fold.next()
    }

    /// The digest of all commands before [`next`](Self::next): equal for all who are at that index, and what it
    /// covers is the region's [`DigestOf`].
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(self.fold.digest())
    }

    /// The number of the incarnation that is current at [`next`](Self::next), 0 if there was none yet: also for a
    /// newcomer, who has not met its hello.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.fold.current().number()
    }

    /// The number as a producer of that incarnation's controller; `None` if there was none, or its lane has another owner
    /// by now.
    #[must_use]
    pub fn controller(&self) -> Option<u64> {
        self.fold.controller()
    }

    /// How many commands of superseded controllers it has passed over, their late hellos included. They have their
    /// indexes, and are in the digest.
    #[must_use]
    pub fn superseded(&self) -> u64 {
        self.superseded
    }

    /// How many commands are published that it has not had yet.
    #[must_use]
    pub fn lag(&self) -> u64 {
        published(self.region.map().control()).0.since(self.next())
    }

    /// The next event, if there is one; never waits. The one before is done with: its room may be freed.
    ///
    /// # Errors
    /// [`WorkerError::Corrupt`].
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Event<'_>>, WorkerError> {
        if let Some(plain) = self.plain() {
            return Ok(Some(Event::Command(self.fold.take_plain(self.region.map(), &plain))));
        }
        let met = match self.take()? {
            None if self.help() => self.take()?,
            other => other,
        };
        Ok(met.map(|met| self.event(&met)))
    }

    /// The next event, waiting for it as long as it takes.
    ///
    /// # Errors
    /// [`WorkerError::Closed`] after the end was delivered; [`WorkerError::Corrupt`].
    pub fn recv(&mut self) -> Result<Event<'_>, WorkerError> {
        if let Some(plain) = self.plain() {
            return Ok(Event::Command(self.fold.take_plain(self.region.map(), &plain)));
        }
        loop {
            // Without a deadline it comes back with an event or an error.
            if let Some(met) = self.await_one(None)? {
                return Ok(self.event(&met));
            }
        }
    }

    /// The next event, or `None` if there is none until the deadline.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Event<'_>>, WorkerError> {
        if let Some(plain) = self.plain() {
            return Ok(Some(Event::Command(self.fold.take_plain(self.region.map(), &plain))));
        }
        Ok(self.await_one(Some(deadline))?.map(|met| self.event(&met)))
    }

    /// Hands the events that are there, at most `limit`, to `handle`; how many. Never waits.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), if there was nothing before it.
    pub fn poll_batch(&mut self, limit: usize, handle: impl FnMut(Event<'_>)) -> Result<usize, WorkerError> {
        // Asked once a batch, not for every command.
        if self.check_payloads {
            self.poll_batch_as::<true>(limit, handle)
        } else {
            self.poll_batch_as::<false>(limit, handle)
        }
    }

    #[inline]
    fn poll_batch_as<const CHECK: bool>(
        &mut self,
        limit: usize,
        mut handle: impl FnMut(Event<'_>),
    ) -> Result<usize, WorkerError> {
        let mut done = 0;
        while done < limit {
            if !CHECK && self.may_walk() {
                match self.walk(limit - done, &mut handle) {
                    Some(0) => {}
                    Some(walked) => {
                        done += walked as usize;
                        continue;
                    }
                    None => {
                        self.run_dry();
                        if self.help() {
                            continue;
                        }
                        break;
                    }
                }
            }
            match self.take_as::<CHECK>() {
                Ok(Some(met)) => handle(self.event(&met)),
                Err(error) if done == 0 => return Err(error),
                Ok(None) if self.help() => continue,
                // What comes before an error is delivered; the next call meets the error again.
                Ok(None) | Err(_) => break,
            }
            done += 1;
        }
        Ok(done)
    }

    /// Hands out what is simply the next of a producer's commands, at most `limit`; how many, or `None` if nothing is
    /// published. What takes more than that, the next [`take_as`](Self::take_as) does.
    #[inline(always)]
    fn walk(&mut self, limit: usize, handle: &mut impl FnMut(Event<'_>)) -> Option<u32> {
        let most = (self.release_every - self.next().since(self.released)).min(limit as u64);
        let handle = |command: Command<'_>| handle(Event::Command(command));
        self.fold.walk(self.region.map(), self.alarm, most, handle)
    }

    /// The next command, if there is nothing else to see to. What takes more than that, [`take`](Self::take) does.
    #[inline(always)]
    fn plain(&mut self) -> Option<Plain> {
        if self.check_payloads || !self.may_walk() {
            return None;
        }
        // Asked again after the cell was read: it may have been gone by then.
        self.fold.plain(self.region.map()).filter(|_| !self.alarm.is_raised())
    }

    /// Whether there is nothing to ask first, and no newcomer's past to fold; says how far the worker is if it is time.
    #[inline(always)]
    fn may_walk(&mut self) -> bool {
        if self.alarm.is_raised() || self.next() < self.walks_from {
            return false;
        }
        if self.next().since(self.released) >= self.release_every {
            self.release();
        }
        true
    }

    /// As [`poll_batch`](Self::poll_batch), waiting for the first event, until the deadline if there is one.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_batch(
        &mut self,
        limit: usize,
        deadline: Option<Instant>,
        mut handle: impl FnMut(Event<'_>),
    ) -> Result<usize, WorkerError> {
        if limit == 0 {
            return Ok(0);
        }
        let there = self.poll_batch(limit, &mut handle)?;
        if there > 0 {
            return Ok(there);
        }
        let Some(met) = self.await_one(deadline)? else { return Ok(0) };
        handle(self.event(&met));
        // An error comes after the first event, which was delivered: the next call meets it again.
        Ok(1 + self.poll_batch(limit.saturating_sub(1), handle).unwrap_or(0))
    }

    /// Hands every event to `handle` until the order is closed, and leaves. What `handle` has returned from is released,
    /// also by a worker that does so by hand. If `handle` panics, the region's error
    /// log has the panic's text, the worker leaves, and the panic goes on.
    ///
    /// ```
    /// use seriatim::{Config, Event, Producer, Region, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let worker = Worker::join(&region, "fragile")?;
    /// Producer::attach(&region, "p")?.submit(0, b"no number")?;
    /// let thread = std::thread::spawn(move || {
    ///     worker.run(|event| {
    ///         if let Event::Command(command) = event {
    ///             let _: u64 = str::from_utf8(command.payload).unwrap().parse().expect("a number");
    ///         }
    ///     })
    /// });
    /// assert!(thread.join().is_err());
    /// let error = &region.errors().records[0];
    /// assert!(error.who == "fragile" && error.what.starts_with("panicked: a number"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WorkerError::Corrupt`].
    pub fn run(mut self, mut handle: impl FnMut(Event<'_>)) -> Result<(), WorkerError> {
        loop {
            let event = match self.recv() {
                Ok(event) => event,
                Err(WorkerError::Closed) => return Ok(()),
                Err(error) => return Err(error),
            };
            let is_end = matches!(event, Event::Closed { .. });
            // What the handler left half done is the business of whoever catches the panic: it goes on.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handle(event))) {
                self.record_panic(&format!("panicked: {}", panic_text(&*panic)));
                drop(self);
                resume_unwind(panic);
            }
            if self.by_hand {
                self.release();
            }
            if is_end {
                return Ok(());
            }
        }
    }

    fn record_panic(&self, what: &str) {
        self.region.record(ErrorCode::Panicked, self.name(), what, self.next().get());
    }

    /// Leaves the order: its gate falls at once, and the others learn it at one index.
    pub fn leave(self) {}

    #[cfg(test)]
    pub(crate) fn slot(&self) -> u16 {
        self.seat.index
    }

    /// Falls silent without a word, as in a process that is killed.
    #[cfg(test)]
    pub(crate) fn fall(self) {
        let mut this = std::mem::ManuallyDrop::new(self);
        this.seat._lock = crate::liveness::Lock::fallen();
    }

    /// The next event that is to be delivered; all before it are done with.
    #[inline]
    fn take(&mut self) -> Result<Option<Met>, WorkerError> {
        if self.check_payloads { self.take_as::<true>() } else { self.take_as::<false>() }
    }

    #[inline]
    fn take_as<const CHECK: bool>(&mut self) -> Result<Option<Met>, WorkerError> {
        if self.alarm.is_raised() {
            self.check()?;
        }
        if self.fold.close() {
            self.walks_from = walks_from(self.first, &self.pacer);
        }
        loop {
            if self.next().since(self.released) >= self.release_every {
                self.release();
            }
            crash_point!("poll.next");
            if self.pacer.is_some() && !self.keeps_step()? {
                self.run_dry();
                return Ok(None);
            }
            let step = self.fold.step_as::<CHECK>(self.region.map());
            let Some(met) = step.map_err(|stopped| self.why_stopped(stopped))? else {
                self.run_dry();
                return Ok(None);
            };
            if met.lane == OWN_LANE {
                self.note_end(&met);
            }
            if matches!(met.said, Said::Void | Said::Elsewhere) {
                self.pass_over(&met);
                continue;
            }
            if met.entry.is_spilled() {
                // The next call comes by here, to unmap it.
                self.walks_from = Seq::new(u64::MAX);
            }
            // Before its first index a newcomer only folds.
            if met.seq >= self.first && (self.pacer.is_none() || !self.passes_over(&met)) {
                return Ok(Some(met));
            }
        }
    }

    /// Whether it may be given what is next.
    #[cold]
    fn keeps_step(&mut self) -> Result<bool, WorkerError> {
        let Worker { region, fold, pacer, .. } = self;
        let (next, is_there) = (fold.next(), fold.is_behind(region.map()));
        pacer.as_mut().map_or(Ok(true), |pacer| pacer.may_go_on(region, next, is_there))
    }

    /// Whether it is not given what it has come to, for the order ends before that. Otherwise notes that it is.
    #[cold]
    fn passes_over(&mut self, met: &Met) -> bool {
        let Some(pacer) = &mut self.pacer else { return false };
        if !pacer.passes_over(met) {
            pacer.note(met);
            return false;
        }
        // Also by hand: of this there is nothing to keep, and the poison needs the room.
        self.release();
        true
    }

    /// Notes a command that it does not get: of a superseded controller, or for another worker.
    #[inline]
    fn pass_over(&mut self, met: &Met) {
        self.void_since += 1;
        self.superseded += u64::from(met.said == Said::Void);
        if met.said == Said::Elsewhere
            && let Some(pacer) = &mut self.pacer
        {
            pacer.passed(&self.region, met.seq);
        }
    }

    /// Says how far it is, before there is nothing more to do.
    #[inline]
    fn run_dry(&mut self) {
        // Before its first index a newcomer has nothing to keep, and of what nobody gets there is nothing to keep.
        let kept =
            self.by_hand && self.next() > self.first && self.next().since(self.released) > self.void_since;
        if self.next() != self.released && !kept {
            self.release();
        }
    }

    /// Whether this process may use the worker, and the region is whole.
    #[cold]
    fn check(&self) -> Result<(), WorkerError> {
        if fork::is_child() {
            return Err(WorkerError::Forked);
        }
        self.region.check_if_hit()?;
        self.fold.hit().map_or(Ok(()), |end| Err(self.region.shortened(end).into()))
    }

    /// What is damaged because the file was shortened is not the fault of who wrote it.
    #[cold]
    fn why_stopped(&self, stopped: Stopped) -> WorkerError {
        if let Err(lost) = self.region.check() {
            return lost.into();
        }
        let corrupt = match stopped {
            Stopped::Corrupt(corrupt) => corrupt,
            Stopped::Unmapped(unmapped) => return unmapped.into(),
        };
        self.region.record(ErrorCode::Corrupt, self.name(), &corrupt.to_string(), corrupt.seq.get());
        corrupt.into()
    }

    /// Notes whether one of the sequencer's commands ends the order.
    #[cold]
    fn note_end(&mut self, met: &Met) {
        match met.own {
            Some(Own::Closed { .. }) => self.closed = true,
            Some(Own::Opened { .. }) => self.closed = false,
            _ => {}
        }
    }

    #[inline]
    fn event(&self, met: &Met) -> Event<'_> {
        let producer = met.owner.number;
        match met.said {
            _ if met.lane == OWN_LANE => Event::of_own(met.seq, met.entry.kind, met.own),
            Said::Hello(hello) => Event::of_hello(met.seq, producer, hello),
            Said::Initialized => Event::Initialized { seq: met.seq, producer },
            Said::Command | Said::Elsewhere | Said::Void => {
                Event::Command(met.command(self.region.map(), &self.fold))
            }
        }
    }

    /// Says that everything that was delivered is done with: its room can be used again. Happens by itself, unless the
    /// worker joined to do so [by hand](JoinOptions::release_by_hand).
    ///
    /// ```
    /// use seriatim::{Config, Event, JoinOptions, Producer, Region, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let mut worker = Worker::join_with(&region, "w", &JoinOptions::new().release_by_hand(true))?;
    /// Producer::attach(&region, "p")?.submit(0, b"keep me")?;
    /// let mut kept = Vec::new();
    /// while kept.is_empty() {
    ///     worker.poll_batch(64, |event| {
    ///         if let Event::Command(command) = event {
    ///             kept.extend_from_slice(command.payload); // a file that is synced would do
    ///         }
    ///     })?;
    /// }
    /// worker.release(); // from here on nobody needs to give it to us again
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn release(&mut self) {
        if self.alarm.is_raised() && fork::is_child() {
            // What is lent is the parent's to give back.
            return;
        }
        let map = self.region.map();
        self.released = self.fold.next();
        self.void_since = 0;
        map.worker_page(self.seat.index).cursor.store(self.released, self.fold.past());
        crash_point!("poll.released");
        wait::wake_sequencer(map.bells(), FOR_ROOM);
    }

    /// Says what it made of all up to the event that it was handed last, with it: for [`Region::agreement`], which
    /// compares the workers. Returns the index that this is for, that of the event.
    ///
    /// The fingerprint is a number of the caller's choice that follows from its state, and is the same wherever the state
    /// is: a hash of it, a count, a checksum that goes along. What is no part of it is what workers need not have in
    /// common, like their names, clocks, or addresses; of one who joined later, what it began without; and of workers with
    /// [ranks](JoinOptions::rank), what is for one of them alone.
    ///
    /// Only reports for the same index are compared, so workers should report at indexes that follow from the order
    /// alone: after every event, at every hundredth index, after commands of a kind. Who reports every index is told
    /// exactly at which a difference began. The calls that hand out a single event do for that; where a batch ends is not
    /// the same index everywhere, for commands of superseded controllers have indexes and are no events. Of a second
    /// report for the same index the later one counts. The last 255 reports are kept, until the worker leaves.
    ///
    /// A few stores to this worker's own pages: no fence that costs, no system call. It says nothing about what is
    /// [released](Self::release).
    ///
    /// ```
    /// use seriatim::{Config, Event, Producer, Region, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let mut workers = ["counts", "skips"].map(|name| Worker::join(&region, name).unwrap());
    /// let mut producer = Producer::attach(&region, "p")?;
    /// producer.submit_batch(&[(1, b"a"), (2, b"b"), (1, b"c")])?;
    /// let mut skipped = None;
    /// for worker in &mut workers {
    ///     let (mut commands, mut count) = (0, 0);
    ///     while commands < 3 {
    ///         if let Event::Command(command) = worker.recv()? {
    ///             commands += 1;
    ///             count += u64::from(command.kind);
    ///             if command.kind == 2 {
    ///                 skipped = Some(command.seq);
    ///             }
    ///         }
    ///         if worker.name() == "skips" && count == 3 {
    ///             count = 1; // a mistake
    ///         }
    ///         worker.report(count)?;
    ///     }
    /// }
    /// let found = region.agreement().divergence.expect("they differ");
    /// assert_eq!(Some(found.seq), skipped);
    /// assert!(found.to_string().contains("\"skips\""), "{found}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Where workers that differ [are stopped](crate::OnDivergence) a report is compared at once with those of the others
    /// for that index, and there is one for an index.
    ///
    /// # Errors
    /// [`ReportError::NothingYet`] before its first event; [`ReportError::Again`]; there is no region any more.
    pub fn report(&mut self, fingerprint: u64) -> Result<Seq, ReportError> {
        if self.alarm.is_raised() {
            if fork::is_child() {
                return Err(ReportError::Forked);
            }
            self.region.check_if_hit()?;
        }
        let (next, first) = (self.next(), self.first);
        if next <= first {
            return Err(ReportError::NothingYet { first });
        }
        let index = next.get() - 1;
        let report = Report { index, digest: self.fold.digest(), fingerprint, member: self.number };
        if let Some(pacer) = &self.pacer {
            pacer.may_report(index)?;
        }
        self.region.map().worker_page(self.seat.index).reports.push(report);
        if let Some(pacer) = &mut self.pacer {
            pacer.reported(&self.region, report);
        }
        Ok(Seq::new(index))
    }

    /// Waits until every worker has applied the command at an index, this one included; as [`Region::wait_applied`], in
    /// this worker's [way](JoinOptions::wait). It has to have received that index, or have joined after it, and releases
    /// what it was handed before it waits: so all workers can wait for the same index, and none goes on before all have
    /// come to it.
    ///
    /// One that [releases by hand](JoinOptions::release_by_hand) has to have done so: this does not say for it that its
    /// effects are kept. While it waits it receives nothing, so the order can go on for as long only as its lanes have
    /// room.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use seriatim::{Config, Event, Producer, Region, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let workers = ["red", "green"].map(|name| Worker::join(&region, name).unwrap());
    /// Producer::attach(&region, "p")?.submit(0, b"switch to version 2")?;
    /// let threads = workers.map(|mut worker| {
    ///     std::thread::spawn(move || loop {
    ///         if let Event::Command(command) = worker.recv().unwrap() {
    ///             let seq = command.seq; // prepared here, not switched yet
    ///             return worker.wait_applied(seq, Instant::now() + Duration::from_secs(60)); // all are prepared
    ///         }
    ///     })
    /// });
    /// for thread in threads {
    ///     thread.join().unwrap()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ApplyError::Own`], at once, if this worker itself is what would be waited for; otherwise as
    /// [`Region::wait_applied`].
    pub fn wait_applied(&mut self, seq: Seq, at: Instant) -> Result<(), ApplyError> {
        if fork::is_child() {
            return Err(ApplyError::Forked);
        }
        if !self.by_hand && self.next() != self.released {
            self.release();
        }
        if seq >= self.first && self.released <= seq {
            return Err(ApplyError::Own { seq, released: self.released });
        }
        barrier::wait_applied(&self.region, seq, at, self.wait, Some(&mut self.helper))
    }

    fn await_one(&mut self, deadline: Option<Instant>) -> Result<Option<Met>, WorkerError> {
        let mut idle = Idle::new(self.wait);
        loop {
            if let Some(met) = self.take()? {
                return Ok(Some(met));
            }
            if self.help() {
                continue;
            }
            if self.is_ended() {
                return Err(WorkerError::Closed);
            }
            if wait::is_over(deadline) {
                return Ok(None);
            }
            if idle.step() {
                self.helper.hand_back();
                let Worker { region, fold, vigil, pacer, .. } = self;
                if let Some(pacer) = pacer.as_mut().filter(|pacer| pacer.is_held()) {
                    pacer.sleep(region, fold.next(), deadline, vigil)?;
                    continue;
                }
                let is_there = || fold.is_behind(region.map()) || region.state() == State::Exhausted;
                if !wait::sleep(&region.map().bells().workers, FOR_WORK, deadline, is_there) {
                    vigil.look(region)?;
                }
            }
        }
    }

    /// Before its thread waits elsewhere: nobody is to wait for it here. Whether it is to wait, or there is something
    /// already. Looks after the region now and then, for where it waits nobody does.
    pub(crate) fn goes_elsewhere(&mut self) -> Result<bool, WorkerError> {
        if self.alarm.is_raised() {
            self.check()?;
        }
        self.vigil.glance(&self.region)?;
        if let Some(pacer) = self.pacer.as_mut().filter(|pacer| pacer.is_held()) {
            // Nobody wakes it there when the others have come on.
            self.helper.hand_back();
            let soon = Some(Instant::now() + Duration::from_millis(1));
            pacer.sleep(&self.region, self.fold.next(), soon, &mut self.vigil)?;
            return Ok(false);
        }
        if self.fold.is_behind(self.region.map()) {
            return Ok(false);
        }
        self.run_dry();
        self.helper.hand_back();
        Ok(true)
    }

    /// Makes a turn for the sequencer of this process, if it wants that; whether there may be something now.
    fn help(&mut self) -> bool {
        self.helper.help(self.region.assistance())
    }

    /// Whether the end was delivered, or there are no more indexes, and nobody is there to go on after it.
    fn is_ended(&mut self) -> bool {
        // State first: what was published before it said so is seen after it.
        if self.region.state() == State::Exhausted {
            return !self.fold.is_behind(self.region.map());
        }
        // Before the end is delivered nobody is asked: this is looked at whenever there is nothing to do.
        let reopened = || self.region.state() != State::Closed && self.region.is_alive(Role::Sequencer);
        self.closed && !reopened()
    }
}

/// Indexes of the history that are read at a time.
const HISTORY: usize = 256;

/// From where on a worker need not take the long way.
fn walks_from(first: Seq, pacer: &Option<Box<Pacer>>) -> Seq {
    if pacer.is_some() { Seq::new(u64::MAX) } else { first }
}

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

impl Drop for Worker {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        if std::thread::panicking() {
            self.record_panic("its thread panicked");
        }
        // What was delivered last counts as done: its borrow has ended.
        if !self.by_hand {
            self.release();
        }
        crash_point!("leave.released");
        self.helper.leave();
        let (map, bells) = (self.region.map(), self.region.map().bells());
        map.worker_page(self.seat.index).party.leave(self.seat.generation, bells.requests_word());
        wait::wake_sequencer(bells, FOR_WORK);
        crash_point!("leave.told");
    }
}
