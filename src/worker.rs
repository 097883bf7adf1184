//! [`Worker`]: poll, handle, go on; its cursor gates the others.

use std::fmt;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::event::Event as Own;
use seriatim_ring::sequencer::{published, start_of};
use seriatim_ring::wake::{FOR_ROOM, FOR_WORK};

use crate::Digest;
use crate::attach::{OnWorkerPage, Seat, take_seat};
use crate::crash_point;
use crate::error::AttachError;
use crate::fold::{Corrupt, Fold, Met};
use crate::fork;
use crate::liveness::Role;
use crate::name::Name;
use crate::payload;
use crate::region::Region;
use crate::region::layout::Part;
use crate::region::snapshot::State;
use crate::wait::{self, Idle, Wait};

/// How a worker joins.
#[derive(Clone, Debug)]
#[must_use]
pub struct JoinOptions {
    timeout: Duration,
    wait: Wait,
    release_every: u32,
}

impl Default for JoinOptions {
    fn default() -> Self {
        JoinOptions { timeout: Duration::from_secs(1), wait: Wait::default(), release_every: 32 }
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

    /// After how many commands the worker says how far it is, at least 1, default 32; it does so in any case
    /// when it runs dry. Fewer free the lanes sooner behind a slow handler, more touch the shared line less.
    pub fn release_every(mut self, commands: u32) -> Self {
        self.release_every = commands.max(1);
        self
    }
}

/// A user's command, in place in its producer's lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// Its place in the one order.
    pub seq: Seq,
    /// Number of its producer, never reused in a region.
    pub producer: u64,
    /// Its place among its producer's commands, from 0.
    pub index: u64,
    /// What its producer calls it.
    pub kind: u16,
    /// Its bytes, as the producer wrote them.
    pub payload: &'a [u8],
    /// The digest of all commands before it. An observer does not fold and has 0 here.
    pub digest: Digest,
}

impl fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Command { seq, producer, index, kind, payload, digest } = self;
        let shown = &payload[..payload.len().min(32)];
        write!(f, "Command {{ {seq:?}, producer {producer} #{index}, kind {kind}, {} bytes ", payload.len())?;
        write!(f, "\"{}\", digest {digest} }}", shown.escape_ascii())
    }
}

/// A worker that came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// The index at which all workers learn it.
    pub seq: Seq,
    /// Its name.
    pub name: Name,
    /// Its slot.
    pub slot: u16,
    /// The member's number, never reused in a region.
    pub number: u64,
}

/// What has an index: a command, or a change of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A user's command.
    Command(Command<'a>),
    /// A worker joined. Each worker's own is the first event that it gets, unless it was the first to come.
    Joined(MemberChange),
    /// A worker left or died.
    Left(MemberChange),
    /// A producer attached that was not here before.
    ProducerAttached {
        /// The index.
        seq: Seq,
        /// The producer's number.
        number: u64,
        /// Its name.
        name: Name,
        /// Its lane.
        lane: u16,
    },
    /// A producer's lane is no longer heard, after a ticket that could not be right.
    ProducerFenced {
        /// The index.
        seq: Seq,
        /// The producer's number.
        number: u64,
        /// Its lane.
        lane: u16,
    },
    /// Another sequencer took over, or reopened the order.
    Opened {
        /// The index.
        seq: Seq,
        /// Its epoch.
        epoch: u64,
    },
    /// The order is closed: nothing comes after this, unless a sequencer reopens it.
    Closed {
        /// The index.
        seq: Seq,
        /// The epoch that ends.
        epoch: u64,
    },
    /// A change that a later version of this library knows.
    Unknown {
        /// The index.
        seq: Seq,
        /// Its kind.
        kind: u16,
    },
}

impl Event<'_> {
    /// Its place in the order.
    #[must_use]
    pub fn seq(&self) -> Seq {
        match self {
            Event::Command(command) => command.seq,
            Event::Joined(change) | Event::Left(change) => change.seq,
            Event::ProducerAttached { seq, .. }
            | Event::ProducerFenced { seq, .. }
            | Event::Opened { seq, .. }
            | Event::Closed { seq, .. }
            | Event::Unknown { seq, .. } => *seq,
        }
    }

    pub(crate) fn of_own(seq: Seq, kind: u16, own: Option<Own>) -> Event<'static> {
        let change = |slot, number, name| MemberChange { seq, name: Name::from_words(name), slot, number };
        match own {
            Some(Own::Joined { slot, number, name }) => Event::Joined(change(slot, number, name)),
            Some(Own::Left { slot, number, name }) => Event::Left(change(slot, number, name)),
            Some(Own::Attached { lane, number, name, .. }) => {
                Event::ProducerAttached { seq, number, name: Name::from_words(name), lane }
            }
            Some(Own::Fenced { lane, number, .. }) => Event::ProducerFenced { seq, number, lane },
            Some(Own::Opened { epoch }) => Event::Opened { seq, epoch },
            Some(Own::Closed { epoch }) => Event::Closed { seq, epoch },
            None => Event::Unknown { seq, kind },
        }
    }
}

/// A worker cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Something in the order or a lane cannot be. The worker stays where it is.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The end was delivered, and nobody has reopened the order.
    #[error("the order is closed")]
    Closed,
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
/// A worker that does not poll gates the order: producers will find the region full, and are told its name.
/// Dropping it leaves the order, like [`leave`](Self::leave).
#[derive(Debug)]
pub struct Worker {
    region: Region,
    seat: Seat,
    name: Name,
    fold: Fold,
    first: Seq,
    wait: Wait,
    release_every: u64,
    /// The cursor as stored.
    released: Seq,
    closed: bool,
}

impl Worker {
    /// Joins under a name. The first worker of a region starts at its anchor, and so gets all that is held; a
    /// later one starts at the index of its own [`Event::Joined`].
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
    /// As [`join`](Self::join).
    pub fn join_with(region: &Region, name: &str, options: &JoinOptions) -> Result<Worker, AttachError> {
        let name = Name::new(name)?;
        region.make_writable("a worker", &[Part::Bells])?;
        let seat = take_seat::<OnWorkerPage>(region, name, options.timeout)?;
        let map = region.map();
        let (follower, digest, first) = start_of(&map.members()[usize::from(seat.index)]);
        let page = map.worker_page(seat.index);
        page.cursor.store(follower.next(), [digest]);
        crash_point!("join.cursor");
        page.party.begin(seat.generation);
        Ok(Worker {
            released: follower.next(),
            fold: Fold::new(map, follower, digest),
            first,
            wait: options.wait,
            release_every: options.release_every.into(),
            closed: false,
            region: region.clone(),
            seat,
            name,
        })
    }

    /// The name that it joined under.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
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

    /// The digest of all commands before [`next`](Self::next): equal for all who are at that index.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(self.fold.digest())
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
        Ok(self.take()?.map(|met| self.event(&met)))
    }

    /// The next event, waiting for it as long as it takes.
    ///
    /// # Errors
    /// [`WorkerError::Closed`] after the end was delivered; [`WorkerError::Corrupt`].
    pub fn recv(&mut self) -> Result<Event<'_>, WorkerError> {
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
        Ok(self.await_one(Some(deadline))?.map(|met| self.event(&met)))
    }

    /// Hands the events that are there, at most `limit`, to `handle`; how many. Never waits.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), if there was nothing before it.
    pub fn poll_batch(
        &mut self,
        limit: usize,
        mut handle: impl FnMut(Event<'_>),
    ) -> Result<usize, WorkerError> {
        let mut done = 0;
        while done < limit {
            match self.take() {
                Ok(Some(met)) => handle(self.event(&met)),
                Err(error) if done == 0 => return Err(error),
                // What comes before an error is delivered; the next call meets the error again.
                Ok(None) | Err(_) => break,
            }
            done += 1;
        }
        Ok(done)
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
        let Some(met) = self.await_one(deadline)? else { return Ok(0) };
        handle(self.event(&met));
        // An error comes after the first event, which was delivered: the next call meets it again.
        Ok(1 + self.poll_batch(limit.saturating_sub(1), handle).unwrap_or(0))
    }

    /// Leaves the order: its gate falls at once, and the others learn it at one index.
    pub fn leave(self) {}

    /// Falls silent without a word, as in a process that is killed.
    #[cfg(test)]
    pub(crate) fn fall(self) {
        let mut this = std::mem::ManuallyDrop::new(self);
        this.seat._lock = crate::liveness::Lock::fallen();
    }

    /// The next event that is to be delivered; all before it are done with.
    #[inline]
    fn take(&mut self) -> Result<Option<Met>, WorkerError> {
        if fork::is_child() {
            return Err(WorkerError::Forked);
        }
        loop {
            if self.next().since(self.released) >= self.release_every {
                self.release();
            }
            crash_point!("poll.next");
            let Some(met) = self.fold.step(self.region.map())? else {
                if self.next() != self.released {
                    self.release();
                }
                return Ok(None);
            };
            match met.own {
                Some(Own::Closed { .. }) => self.closed = true,
                Some(Own::Opened { .. }) => self.closed = false,
                _ => {}
            }
            // Before its first index a newcomer only folds.
            if met.seq >= self.first {
                return Ok(Some(met));
            }
        }
    }

    #[inline]
    fn event(&self, met: &Met) -> Event<'_> {
        if met.lane == seriatim_ring::event::OWN_LANE {
            return Event::of_own(met.seq, met.entry.kind, met.own);
        }
        Event::Command(Command {
            seq: met.seq,
            producer: met.owner.number,
            index: met.entry.cell.wrapping_sub(met.owner.base),
            kind: met.entry.kind,
            payload: payload::read(self.region.map(), met.lane, &met.entry),
            digest: Digest(met.before),
        })
    }

    /// Stores the cursor: everything before the next event is done with.
    #[inline]
    fn release(&mut self) {
        let map = self.region.map();
        self.released = self.fold.next();
        map.worker_page(self.seat.index).cursor.store(self.released, [self.fold.digest()]);
        crash_point!("poll.released");
        wait::wake_sequencer(map.bells(), FOR_ROOM);
    }

    fn await_one(&mut self, deadline: Option<Instant>) -> Result<Option<Met>, WorkerError> {
        let mut idle = Idle::new(self.wait);
        loop {
            if let Some(met) = self.take()? {
                return Ok(Some(met));
            }
            if self.is_ended() {
                return Err(WorkerError::Closed);
            }
            if wait::is_over(deadline) {
                return Ok(None);
            }
            if idle.step() {
                let Worker { region, fold, .. } = self;
                let is_there = || fold.is_behind(region.map());
                wait::sleep(&region.map().bells().workers, FOR_WORK, deadline, is_there);
            }
        }
    }

    /// Whether the end was delivered and nobody is there to go on after it.
    fn is_ended(&self) -> bool {
        let reopened = self.region.state() != State::Closed && self.region.is_alive(Role::Sequencer);
        self.closed && !reopened
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // What was delivered last counts as done: its borrow has ended.
        self.release();
        crash_point!("leave.released");
        let (map, bells) = (self.region.map(), self.region.map().bells());
        map.worker_page(self.seat.index).party.leave(self.seat.generation, bells.requests_word());
        wait::wake_sequencer(bells, FOR_WORK);
        crash_point!("leave.told");
    }
}
