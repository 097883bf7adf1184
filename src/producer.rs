//! [`Producer`]: claim room, fill it, queue the ticket.

use std::cell::{Cell, OnceCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::control::{LaneEntry, ProducerRole, Want};
use seriatim_ring::incarnations::RESERVED;
use seriatim_ring::lane::{ALIGN, INLINE, Lane, LaneWriter, NoRoom, Place, Room, SPILLED, Shape};
use seriatim_ring::order::Look;
use seriatim_ring::parts::{
    self, Address, Extent, Span, entry as table_entry, head as table_head, table_bytes,
};
use seriatim_ring::sequencer::{has_ordered, published};
use seriatim_ring::spill::{self, SpillWriter};
use seriatim_ring::sync::Ordering;
use seriatim_ring::tickets::{Enqueuer, Refused, Ticket};
use seriatim_ring::wake::FOR_WORK;

use crate::affinity::Spinning;
use crate::assistance::Helper;
use crate::attach::{OnLane, Seat, take_seat};
use crate::barrier::{self, ApplyError};
use crate::config::DigestOf;
use crate::crash_point;
use crate::error::{AttachError, HeldBy};
use crate::fork::{self, Alarm};
use crate::journal::DurableError;
use crate::liveness::Role;
use crate::name::Name;
use crate::payload::{self, payload_digest};
use crate::region::Region;
use crate::region::file::{RegionLost, Vigil};
use crate::region::layout::Part;
use crate::region::map::{Map, ProducerParts};
use crate::region::snapshot::State;
use crate::region::spill::Spilling;
use crate::sys;
use crate::wait::{self, Idle, Wait};

/// How a producer is attached.
#[derive(Clone, Debug)]
#[must_use]
pub struct AttachOptions {
    timeout: Duration,
    wait: Wait,
    role: ProducerRole,
}

impl Default for AttachOptions {
    fn default() -> Self {
        AttachOptions { timeout: Duration::from_secs(1), wait: Wait::default(), role: ProducerRole::Injector }
    }
}

impl AttachOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long to wait for the sequencer's answer; default 1 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What the producer is for. A controller says hello before it is heard, which the channel does.
    pub(crate) fn role(mut self, role: ProducerRole) -> Self {
        self.role = role;
        self
    }

    /// How long it waits for an answer.
    pub(crate) fn patience(&self) -> Duration {
        self.timeout
    }

    /// How to wait for room and for the order; default [`Wait::Park`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }
}

/// Whether a name has been here before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attached {
    /// No: its first command has index 0.
    New,
    /// Yes: everything before `next` is in the order, and nothing else that it submitted.
    Resumed {
        /// The per-producer index that its next command gets.
        next: u64,
    },
}

/// The region had no room for a command, now or until the deadline. Nothing was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room: {by}")]
pub struct Full {
    /// Who holds things up.
    pub by: HeldBy,
}

/// No room, before anybody has asked who holds things up.
const UNNAMED: Full = Full { by: HeldBy::NoSequencer };

/// A command was not submitted. Nothing of it is in the region, and the next one gets its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// There is no room.
    #[error(transparent)]
    Full(#[from] Full),
    /// The payload is longer than the region takes: in a [batch](Producer::try_submit_batch) than lies in a lane, in one
    /// [with parts](Producer::submit_parts) than 4 GiB.
    #[error("payload of {len} bytes, {max} are allowed")]
    TooLarge {
        /// Its length in bytes.
        len: usize,
        /// The longest that is allowed.
        max: usize,
    },
    /// The payload is too long for the lane, and there is not the room for it where the region lies.
    #[error(
        "no room for a payload of {wanted} bytes beside the lanes, {free} bytes are free where the region lies"
    )]
    NoSpace {
        /// Its length in bytes.
        wanted: u64,
        /// Bytes that can be had there.
        free: u64,
    },
    /// The payload is too long for the lane, and its room beside the lanes cannot be used.
    #[error("cannot {what} the room of a payload beside the lanes: {}", std::io::Error::from_raw_os_error(*.errno))]
    Spill {
        /// What could not be done.
        what: &'static str,
        /// What the kernel said, by its number.
        errno: i32,
    },
    /// The kind is one of Seriatim's own.
    #[error("kind {kind:#06x} is reserved, kinds below {RESERVED:#06x} are allowed")]
    ReservedKind {
        /// The kind.
        kind: u16,
    },
    /// The region was created without [ranks](crate::Config::ranks): no command is for one worker, or has parts.
    #[error("this region was created without ranks: no command in it is for one worker or has parts")]
    NoRanks,
    /// There is no such rank.
    #[error("rank {rank} does not exist in this region: its ranks are 0 to {}", .ranks - 1)]
    UnknownRank {
        /// The rank.
        rank: u16,
        /// How many ranks the region has.
        ranks: u16,
    },
    /// There is not a part for each rank, and nothing else.
    #[error("a command of {parts} parts, expected {ranks}, one for each rank of the region")]
    WrongParts {
        /// How many parts there are.
        parts: usize,
        /// How many ranks the region has.
        ranks: u16,
    },
    /// The batch is more than one ticket can name.
    #[error(
        "batch of {commands} commands and {bytes} bytes of lane, {max_commands} and {max_bytes} are allowed"
    )]
    BatchTooLarge {
        /// Its commands.
        commands: usize,
        /// Bytes of the lane that its payloads take: those over 40 bytes, each rounded up to 64.
        bytes: u64,
        /// Most commands of a batch.
        max_commands: usize,
        /// Most bytes of a batch.
        max_bytes: u64,
    },
    /// The batch has no commands.
    #[error("batch without commands")]
    EmptyBatch,
    /// The order is closed.
    #[error("the order is closed")]
    Closed,
    /// The order was ended for good: workers differ; see [`Region::poison`].
    #[error("the order is poisoned at index {at}: workers differ since index {diverged}")]
    Poisoned {
        /// Its last index.
        at: Seq,
        /// The index at which they began to differ.
        diverged: Seq,
    },
    /// There is no region to submit to.
    #[error(transparent)]
    Lost(#[from] RegionLost),
    /// This process is a forked child of the one that attached: the producer is the parent's.
    #[error("this producer was attached by the parent process, before a fork")]
    Forked,
    /// [`Producer::submit_at`]: the index is taken, by the same command if the producer numbers its own.
    #[error("index {index} is submitted already, the next is {next}")]
    Duplicate {
        /// The index that was given.
        index: u64,
        /// The index that the next submit gets.
        next: u64,
    },
    /// [`Producer::submit_at`]: there are indexes before it that were not submitted.
    #[error("index {index} would leave a gap, the next is {next}")]
    Gap {
        /// The index that was given.
        index: u64,
        /// The index that the next submit gets.
        next: u64,
    },
    /// The sequencer found a ticket of this lane that could not be right, and hears it no more: attach again.
    #[error("the lane of this producer is fenced off after a damaged ticket")]
    Fenced,
    /// The region says that more of the lane is free than ever was used.
    #[error("damaged region: released is {found}, expected {low} to {high}")]
    Damaged {
        /// What it says.
        found: u64,
        /// What it said before.
        low: u64,
        /// What was submitted.
        high: u64,
    },
    /// The region's ticket queue cannot be as it is.
    #[error("damaged region: the turn of ticket {position} is {found}, expected {expected} at least")]
    DamagedTickets {
        /// Position of the ticket that was to come.
        position: u64,
        /// The turn that is there.
        found: u32,
        /// The turn that it has at least.
        expected: u32,
    },
}

/// Where a command has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequenced {
    /// At this index.
    At(Seq),
    /// It is in the order, so long ago that the region no longer says where.
    LongAgo,
}

/// A command's place did not become known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// This producer has not submitted it.
    #[error("index {index} is not submitted, the next is {next}")]
    NotSubmitted {
        /// The index that was asked for.
        index: u64,
        /// The index that the next submit gets.
        next: u64,
    },
    /// It has no place until the deadline.
    #[error("index {index} is not in the order: {by}")]
    Late {
        /// The index that was asked for.
        index: u64,
        /// Who holds things up.
        by: HeldBy,
    },
    /// The order closed before it; it gets its place when a sequencer reopens the region.
    #[error("the order is closed, index {index} waits for it to be reopened")]
    Closed {
        /// The index that was asked for.
        index: u64,
    },
    /// The order was ended for good before it: workers differ; see [`Region::poison`].
    #[error("the order is poisoned at index {at}, before {index}: workers differ since index {diverged}")]
    Poisoned {
        /// The index that was asked for.
        index: u64,
        /// The last index of the order.
        at: Seq,
        /// The index at which they began to differ.
        diverged: Seq,
    },
    /// The lane is no longer heard.
    #[error("the lane of this producer is fenced off after a damaged ticket")]
    Fenced,
    /// There is no region in which it could get its place.
    #[error(transparent)]
    Lost(#[from] RegionLost),
    /// This process is a forked child of the one that attached: the producer is the parent's.
    #[error("this producer was attached by the parent process, before a fork")]
    Forked,
}

/// One who submits commands: attached under a name, with a lane of its own.
///
/// Everything that a submit returned for is delivered to every worker, in the order of the submits. One thread
/// uses a producer at a time: it can be sent, not shared.
///
/// ```compile_fail,E0277
/// fn share<T: Sync>() {}
/// share::<seriatim::Producer>();
/// ```
///
/// ```
/// use seriatim::{Config, Producer, Region, Sequenced, Sequencer, SequencerConfig, Seq};
///
/// let region = Region::anonymous(&Config::new().producers(1))?;
/// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
/// let mut producer = Producer::attach(&region, "controller")?;
/// let index = producer.submit(7, b"create dataflow")?;
/// // The command that says that this producer attached came first.
/// assert_eq!(producer.wait_sequenced(index)?, Sequenced::At(Seq::new(1)));
/// let mut room = producer.claim(7, 5)?;
/// room.copy_from_slice(b"peek!");
/// assert_eq!(room.commit()?, index + 1);
/// sequencer.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Producer {
    region: Region,
    parts: ProducerParts,
    alarm: Alarm,
    seat: Seat,
    name: Name,
    writer: LaneWriter,
    spills: SpillWriter,
    /// Room that it lacks may come back beside the lane as well.
    wants_beside: bool,
    enqueuer: Enqueuer,
    /// Most commands of a batch.
    most_cells: usize,
    base: u64,
    number: u64,
    attached: Attached,
    /// The first cell that it fills itself, and an index that all of these come after.
    first_cell: u64,
    attached_at: Seq,
    /// A cell whose place was no longer known, and an index that it and all before it come at or before.
    long_ago: Option<(u64, Seq)>,
    wait: Wait,
    /// The sequencer's turns when it was last asked for: if they move, it lives.
    turns: u64,
    vigil: Vigil,
    helper: Helper,
    /// The command that the lane's page says there is no room for.
    full_at: Option<u64>,
    digests: Digests,
    _spinning: Option<Spinning>,
    not_sync: PhantomData<Cell<()>>,
}

/// Where a command is in the order, as far as is known.
#[derive(Clone, Copy, Debug)]
struct Whereabouts {
    what: Sequenced,
    /// It comes at or behind the one, at or before the other.
    first: Seq,
    last: Seq,
}

impl Producer {
    /// Attaches under a name: the lane of that name if there is one whose owner is gone, else a new one.
    ///
    /// # Errors
    /// A living producer has the name, all lanes are taken, the region is read-only or damaged, or no sequencer
    /// answers within a second.
    pub fn attach(region: &Region, name: &str) -> Result<Producer, AttachError> {
        Self::attach_with(region, name, &AttachOptions::new())
    }

    /// As [`attach`](Self::attach), with a time-out and a way to wait.
    pub fn attach_with(
        region: &Region,
        name: &str,
        options: &AttachOptions,
    ) -> Result<Producer, AttachError> {
        let name = Name::new(name)?;
        region.make_writable("a producer", &[Part::Bells, Part::Tickets])?;
        let seat = take_seat::<OnLane>(region, name, options.role, options.timeout)?;
        let map = region.map();
        let written = [Part::Bells, Part::Tickets, Part::Lane(seat.index)];
        region.enter(&written, map.layout().read_by_producer());
        let entry = map.lane_entry(seat.index);
        let ordered = entry.ordered.load(Ordering::Relaxed);
        let released = entry.released.load(Ordering::Acquire);
        let writer = LaneWriter::resume(&map.lane(seat.index), released, ordered).map_err(|bad| {
            let path = region.path().into();
            AttachError::Damaged { path, field: bad.field, found: bad.found, limit: bad.limit }
        })?;
        crash_point!("attach.resumed");
        let base = entry.base.load(Ordering::Relaxed);
        let next = ordered.wrapping_sub(base);
        let refused = &map.lane_page(seat.index).refused;
        refused.full_ns.store(0, Ordering::Relaxed);
        if next == 0 {
            refused.duplicates.store(0, Ordering::Relaxed);
        }
        Ok(Producer {
            alarm: Alarm::of_this_process(),
            first_cell: ordered,
            attached_at: published(map.control()).0,
            long_ago: None,
            writer,
            spills: SpillWriter::resume(&map.lane_page(seat.index).spills, entry),
            wants_beside: false,
            enqueuer: Enqueuer::new(map.control().published.consumed.load(Ordering::Acquire)),
            most_cells: (region.geometry().lane_cells / 2).max(1) as usize,
            base,
            number: entry.number.load(Ordering::Relaxed),
            attached: if next == 0 { Attached::New } else { Attached::Resumed { next } },
            wait: options.wait,
            turns: 0,
            vigil: Vigil::default(),
            helper: Helper::new(region.assistance()),
            full_at: None,
            digests: Digests(region.digest_of() == DigestOf::Payload),
            _spinning: Spinning::of(options.wait),
            region: region.clone(),
            parts: ProducerParts::of(region, seat.index),
            seat,
            name,
            not_sync: PhantomData,
        })
    }

    /// Whether this name has submitted before.
    #[must_use]
    pub fn attached(&self) -> Attached {
        self.attached
    }

    /// The producer's number, never reused in this region: what workers see in [`Command`](crate::Command).
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The name that it is attached under.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// The per-producer index that the next submit gets.
    #[must_use]
    pub fn next_index(&self) -> u64 {
        self.writer.queued().wrapping_sub(self.base)
    }

    /// Among how many workers a command can be divided: as many parts has one that is, and ranks are numbers below this.
    /// 0 in a region [without](crate::Config::ranks).
    #[must_use]
    pub fn ranks(&self) -> u16 {
        self.region.ranks()
    }

    /// The longest payload in bytes that lies in the lane, and so the longest of a [batch](Self::submit_batch).
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.region.max_payload()
    }

    /// The longest payload of a command in bytes. One that is too long for the lane is *spilled*: it gets pages of its own
    /// beside the lanes, which are reserved when it is submitted or claimed and given back when the last worker has passed
    /// it. That takes some system calls, and copying it as any; workers map it when they come to it.
    ///
    /// ```
    /// use seriatim::{Config, Event, Producer, Region, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new().lane_bytes(1 << 12))?;
    /// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let worker = Worker::join(&region, "w")?;
    /// let mut producer = Producer::attach(&region, "p")?;
    /// assert_eq!((producer.max_payload(), producer.max_command()), (2048, 32 << 30));
    /// producer.submit(1, &vec![7; 10 << 20])?;
    /// sequencer.close()?;
    /// worker.run(|event| {
    ///     if let Event::Command(command) = event {
    ///         assert!(command.payload.len() == 10 << 20 && command.payload.iter().all(|&byte| byte == 7));
    ///     }
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn max_command(&self) -> u64 {
        self.region.max_command()
    }

    /// Most commands of a batch: half of the lane's cells.
    #[must_use]
    pub fn max_batch(&self) -> usize {
        self.most_cells
    }

    /// Most bytes of the lane that the payloads of a batch can take: half of them. A payload of up to 40 bytes
    /// takes none, a longer one its length rounded up to 64.
    #[must_use]
    pub fn max_batch_bytes(&self) -> u64 {
        self.region.geometry().lane_bytes / 2
    }

    /// Submits a command if there is room for it, without waiting for anybody; returns its per-producer index.
    ///
    /// # Errors
    /// [`SubmitError`]; in each case nothing was submitted.
    pub fn try_submit(&mut self, kind: u16, payload: &[u8]) -> Result<u64, SubmitError> {
        match self.submit_plain(kind, payload) {
            Some(index) => Ok(index),
            None => self.attempt(Address::ALL, kind, payload).map_err(|error| self.name_culprit(error)),
        }
    }

    /// Submits a command, waiting for room as long as it takes. Not for a thread that has a [`Worker`](crate::Worker)
    /// as well: that one's gate may be what keeps the room, and would for ever. Such a thread tries, and polls its
    /// worker when there is no room.
    ///
    /// # Errors
    /// As [`try_submit`](Self::try_submit), but never [`SubmitError::Full`].
    pub fn submit(&mut self, kind: u16, payload: &[u8]) -> Result<u64, SubmitError> {
        match self.submit_plain(kind, payload) {
            Some(index) => Ok(index),
            None => self.waiting(None, |me| me.attempt(Address::ALL, kind, payload)),
        }
    }

    /// Submits a command, waiting for room until the deadline.
    ///
    /// # Errors
    /// As [`try_submit`](Self::try_submit).
    pub fn submit_deadline(&mut self, kind: u16, payload: &[u8], at: Instant) -> Result<u64, SubmitError> {
        match self.submit_plain(kind, payload) {
            Some(index) => Ok(index),
            None => self.waiting(Some(at), |me| me.attempt(Address::ALL, kind, payload)),
        }
    }

    /// Submits the command that the caller counts as its `index`th, waiting for room as long as it takes: for
    /// producers that repeat themselves after a restart and must not be heard twice.
    ///
    /// ```
    /// use seriatim::{Config, Producer, Region, Sequencer, SequencerConfig, SubmitError};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let mut producer = Producer::attach(&region, "p")?;
    /// producer.submit_at(0, 0, b"first")?;
    /// assert_eq!(producer.submit_at(0, 0, b"first"), Err(SubmitError::Duplicate { index: 0, next: 1 }));
    /// assert_eq!(producer.submit_at(5, 0, b"sixth"), Err(SubmitError::Gap { index: 5, next: 1 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SubmitError::Duplicate`] if `index` lies before [`next_index`](Self::next_index), [`SubmitError::Gap`]
    /// if it lies beyond; else as [`submit`](Self::submit).
    pub fn submit_at(&mut self, index: u64, kind: u16, payload: &[u8]) -> Result<(), SubmitError> {
        self.check_index(index)?;
        self.submit(kind, payload).map(drop)
    }

    fn check_index(&self, index: u64) -> Result<(), SubmitError> {
        let next = self.next_index();
        match index.cmp(&next) {
            std::cmp::Ordering::Less => {
                let refused = &self.region.map().lane_page(self.seat.index).refused;
                // This producer alone counts.
                let before = refused.duplicates.load(Ordering::Relaxed);
                refused.duplicates.store(before.wrapping_add(1), Ordering::Relaxed);
                Err(SubmitError::Duplicate { index, next })
            }
            std::cmp::Ordering::Greater => Err(SubmitError::Gap { index, next }),
            std::cmp::Ordering::Equal => Ok(()),
        }
    }

    /// Submits a command to the worker of one rank alone, if there is room: all workers pass its index, and that one gets
    /// it and reads it. If no worker has that rank there, nobody does: a newcomer gets what follows its own
    /// [`Joined`](crate::Event::Joined), unless it is the only one.
    ///
    /// # Errors
    /// [`SubmitError::UnknownRank`], [`SubmitError::NoRanks`]; else as [`try_submit`](Self::try_submit).
    pub fn try_submit_to(&mut self, rank: u16, kind: u16, payload: &[u8]) -> Result<u64, SubmitError> {
        let address = self.address_of(rank)?;
        self.attempt(address, kind, payload).map_err(|error| self.name_culprit(error))
    }

    /// As [`try_submit_to`](Self::try_submit_to), waiting for room as long as it takes.
    ///
    /// ```
    /// use seriatim::{Config, Event, JoinOptions, Producer, Region, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new().ranks(2))?;
    /// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let workers = [0, 1].map(|rank| {
    ///     Worker::join_with(&region, &format!("w{rank}"), &JoinOptions::new().rank(rank)).unwrap()
    /// });
    /// let mut producer = Producer::attach(&region, "p")?;
    /// producer.submit(1, b"for both")?;
    /// producer.submit_to(1, 2, b"for the second")?;
    /// sequencer.close()?;
    /// let got = workers.map(|worker| {
    ///     let mut kinds = Vec::new();
    ///     worker.run(|event| if let Event::Command(command) = event { kinds.push(command.kind) }).unwrap();
    ///     kinds
    /// });
    /// assert_eq!(got, [vec![1], vec![1, 2]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SubmitError::UnknownRank`], [`SubmitError::NoRanks`]; else as [`submit`](Self::submit).
    pub fn submit_to(&mut self, rank: u16, kind: u16, payload: &[u8]) -> Result<u64, SubmitError> {
        let address = self.address_of(rank)?;
        self.waiting(None, |me| me.attempt(address, kind, payload))
    }

    /// As [`try_submit_to`](Self::try_submit_to), waiting for room until the deadline.
    ///
    /// # Errors
    /// As there.
    pub fn submit_to_deadline(
        &mut self,
        rank: u16,
        kind: u16,
        payload: &[u8],
        at: Instant,
    ) -> Result<u64, SubmitError> {
        let address = self.address_of(rank)?;
        self.waiting(Some(at), |me| me.attempt(address, kind, payload))
    }

    /// As [`submit_to`](Self::submit_to), for what the caller counts as its `index`th command.
    ///
    /// # Errors
    /// As [`submit_at`](Self::submit_at) and [`submit_to`](Self::submit_to).
    pub fn submit_to_at(
        &mut self,
        index: u64,
        rank: u16,
        kind: u16,
        payload: &[u8],
    ) -> Result<(), SubmitError> {
        self.check_index(index)?;
        self.submit_to(rank, kind, payload).map(drop)
    }

    /// Submits one command with what all workers share of it and a part for each rank, if there is room: one index, at
    /// which each worker that has a rank gets `shared` as [`payload`](crate::Command::payload) and the part of its rank as
    /// [`part`](crate::Command::part), and reads nothing of the others'.
    ///
    /// Each byte is copied once, into the lane, where shared and parts lie one after the other at multiples of 64,
    /// behind a table of 24 bytes and 16 for each rank. All of that is one payload, of the length that
    /// [`max_command`](Self::max_command) allows, and less than 4 GiB.
    ///
    /// # Errors
    /// [`SubmitError::WrongParts`] unless there are as many parts as the region has [ranks](Self::ranks),
    /// [`SubmitError::NoRanks`] if it has none; else as [`try_submit`](Self::try_submit).
    ///
    /// # Panics
    /// If a part has another length when it is asked for its bytes again. Nothing is submitted then.
    pub fn try_submit_parts<P: AsRef<[u8]>>(
        &mut self,
        kind: u16,
        shared: &[u8],
        parts: &[P],
    ) -> Result<u64, SubmitError> {
        self.submit_slices(kind, shared, parts, Some(Instant::now()))
    }

    /// As [`try_submit_parts`](Self::try_submit_parts), waiting for room as long as it takes.
    ///
    /// ```
    /// use seriatim::{Config, Event, JoinOptions, Producer, Region, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new().ranks(2))?;
    /// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let workers = [0, 1].map(|rank| {
    ///     Worker::join_with(&region, &format!("w{rank}"), &JoinOptions::new().rank(rank)).unwrap()
    /// });
    /// let mut producer = Producer::attach(&region, "p")?;
    /// producer.submit_parts(7, b"load into t", &[&b"rows 0 to 9"[..], b"rows 10 and up"])?;
    /// assert!(producer.submit_parts(7, b"", &[b"for whom?"]).is_err());
    /// sequencer.close()?;
    /// let parts = workers.map(|worker| {
    ///     let mut got = Vec::new();
    ///     worker.run(|event| {
    ///         if let Event::Command(command) = event {
    ///             assert_eq!(command.payload, b"load into t");
    ///             got.extend(command.part.map(<[u8]>::to_vec));
    ///         }
    ///     }).unwrap();
    ///     got
    /// });
    /// assert_eq!(parts, [[b"rows 0 to 9".to_vec()], [b"rows 10 and up".to_vec()]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`try_submit_parts`](Self::try_submit_parts), but never [`SubmitError::Full`].
    ///
    /// # Panics
    /// As [`try_submit_parts`](Self::try_submit_parts).
    pub fn submit_parts<P: AsRef<[u8]>>(
        &mut self,
        kind: u16,
        shared: &[u8],
        parts: &[P],
    ) -> Result<u64, SubmitError> {
        self.submit_slices(kind, shared, parts, None)
    }

    /// As [`try_submit_parts`](Self::try_submit_parts), waiting for room until the deadline.
    ///
    /// # Errors
    /// As [`try_submit_parts`](Self::try_submit_parts).
    ///
    /// # Panics
    /// As [`try_submit_parts`](Self::try_submit_parts).
    pub fn submit_parts_deadline<P: AsRef<[u8]>>(
        &mut self,
        kind: u16,
        shared: &[u8],
        parts: &[P],
        at: Instant,
    ) -> Result<u64, SubmitError> {
        self.submit_slices(kind, shared, parts, Some(at))
    }

    /// As [`submit_parts`](Self::submit_parts), for what the caller counts as its `index`th command.
    ///
    /// # Errors
    /// As [`submit_at`](Self::submit_at) and [`submit_parts`](Self::submit_parts).
    ///
    /// # Panics
    /// As [`try_submit_parts`](Self::try_submit_parts).
    pub fn submit_parts_at<P: AsRef<[u8]>>(
        &mut self,
        index: u64,
        kind: u16,
        shared: &[u8],
        parts: &[P],
    ) -> Result<(), SubmitError> {
        self.check_index(index)?;
        self.submit_parts(kind, shared, parts).map(drop)
    }

    fn submit_slices<P: AsRef<[u8]>>(
        &mut self,
        kind: u16,
        shared: &[u8],
        parts: &[P],
        deadline: Option<Instant>,
    ) -> Result<u64, SubmitError> {
        let bytes = |which: Option<usize>| which.map_or(shared, |rank| parts[rank].as_ref());
        self.submit_laid(
            kind,
            parts.len(),
            |which| bytes(which).len(),
            deadline,
            |which, claim, range| {
                // First: whoever is asked for its bytes may fork, and the room is the parent's then.
                let bytes = bytes(which);
                claim[range].copy_from_slice(bytes);
                Ok(())
            },
        )
    }

    /// Submits a command with parts, waiting for room until the deadline if there is one. What all get is `None`, the
    /// others are the parts: of each `len` says how long it is, and then `write` writes it into that range of the claim.
    pub(crate) fn submit_laid<E: From<SubmitError>>(
        &mut self,
        kind: u16,
        parts: usize,
        len: impl Fn(Option<usize>) -> usize,
        deadline: Option<Instant>,
        mut write: impl FnMut(Option<usize>, &mut Claim<'_>, Range<usize>) -> Result<(), E>,
    ) -> Result<u64, E> {
        check_kind(kind)?;
        let ranks = self.some_ranks()?;
        if parts != usize::from(ranks) {
            return Err(SubmitError::WrongParts { parts, ranks }.into());
        }
        let each = || std::iter::once(None).chain((0..parts).map(Some));
        let mut extent = Extent::of_table(parts);
        for which in each() {
            extent.add(len(which));
        }
        let bytes = usize::try_from(extent.bytes()).unwrap_or(usize::MAX);
        if extent.bytes() > parts::MAX_LEN {
            let max = self.max_command().min(parts::MAX_LEN) as usize;
            return Err(SubmitError::TooLarge { len: bytes, max }.into());
        }
        let digests = self.digests;
        let mut claim = self.claim_for(Address::PARTS, kind, bytes, deadline)?;
        claim.covered = table_bytes(parts);
        let mut extent = Extent::of_table(parts);
        for which in each() {
            let len = len(which);
            let offset = extent.add(len) as usize;
            let range = offset..offset.saturating_add(len);
            assert!(range.end <= bytes, "part {which:?} has {len} bytes, more than when it was asked before");
            write(which, &mut claim, range.clone())?;
            let digest = digests.of(&claim[range]);
            let span = Span { offset: offset as u64, len: len as u64, digest };
            match which {
                None => put_words(&mut claim, 0, table_head(ranks, span)),
                Some(part) => {
                    let (at, words) = table_entry(part, span);
                    put_words(&mut claim, at, words);
                }
            }
        }
        assert_eq!(extent.bytes(), bytes as u64, "parts are shorter than when they were asked before");
        Ok(claim.commit()?)
    }

    /// How many ranks there are, if there are any.
    pub(crate) fn some_ranks(&self) -> Result<u16, SubmitError> {
        match self.ranks() {
            0 => Err(SubmitError::NoRanks),
            ranks => Ok(ranks),
        }
    }

    /// The address of a rank that there is.
    fn address_of(&self, rank: u16) -> Result<Address, SubmitError> {
        let ranks = self.some_ranks()?;
        if rank < ranks { Ok(Address::rank(rank)) } else { Err(SubmitError::UnknownRank { rank, ranks }) }
    }

    /// Submits commands, each a kind and a payload, with one ticket, all or none, if there is room: they get consecutive
    /// places in the order. Returns their per-producer indexes.
    ///
    /// # Errors
    /// [`SubmitError`]; in each case none was submitted.
    pub fn try_submit_batch<P: AsRef<[u8]>>(
        &mut self,
        commands: &[(u16, P)],
    ) -> Result<Range<u64>, SubmitError> {
        self.attempt_batch(commands, &mut false).map_err(|error| self.name_culprit(error))
    }

    /// As [`try_submit_batch`](Self::try_submit_batch), waiting for room as long as it takes.
    ///
    /// # Errors
    /// [`SubmitError`], but never [`SubmitError::Full`].
    pub fn submit_batch<P: AsRef<[u8]>>(&mut self, commands: &[(u16, P)]) -> Result<Range<u64>, SubmitError> {
        let mut is_checked = false;
        self.waiting(None, |me| me.attempt_batch(commands, &mut is_checked))
    }

    /// As [`try_submit_batch`](Self::try_submit_batch), waiting for room until the deadline.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit_batch_deadline<P: AsRef<[u8]>>(
        &mut self,
        commands: &[(u16, P)],
        at: Instant,
    ) -> Result<Range<u64>, SubmitError> {
        let mut is_checked = false;
        self.waiting(Some(at), |me| me.attempt_batch(commands, &mut is_checked))
    }

    /// Reserves room for a payload of `len` bytes, to be written in place, if there is any: in the lane, or
    /// [beside it](Self::max_command).
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn try_claim(&mut self, kind: u16, len: usize) -> Result<Claim<'_>, SubmitError> {
        check_kind(kind)?;
        let claimed = self.attempt_claim(len).map_err(|error| self.name_culprit(error))?;
        Ok(Claim::new(self, claimed, kind, Address::ALL))
    }

    /// As [`try_claim`](Self::try_claim), waiting for room as long as it takes.
    ///
    /// # Errors
    /// [`SubmitError`], but never [`SubmitError::Full`].
    pub fn claim(&mut self, kind: u16, len: usize) -> Result<Claim<'_>, SubmitError> {
        self.claim_for(Address::ALL, kind, len, None)
    }

    /// As [`try_claim`](Self::try_claim), waiting for room until the deadline.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn claim_deadline(&mut self, kind: u16, len: usize, at: Instant) -> Result<Claim<'_>, SubmitError> {
        self.claim_for(Address::ALL, kind, len, Some(at))
    }

    /// As [`claim_deadline`](Self::claim_deadline), for the worker of one rank.
    pub(crate) fn claim_to(
        &mut self,
        rank: u16,
        kind: u16,
        len: usize,
        deadline: Option<Instant>,
    ) -> Result<Claim<'_>, SubmitError> {
        let address = self.address_of(rank)?;
        self.claim_for(address, kind, len, deadline)
    }

    fn claim_for(
        &mut self,
        address: Address,
        kind: u16,
        len: usize,
        deadline: Option<Instant>,
    ) -> Result<Claim<'_>, SubmitError> {
        check_kind(kind)?;
        let claimed = self.waiting(deadline, |me| me.attempt_claim(len))?;
        Ok(Claim::new(self, claimed, kind, address))
    }

    /// Submits a command whose payload lies in its cell, if nothing stands against that; else nothing has happened, and
    /// [`attempt`](Self::attempt) finds out what it is.
    #[inline(always)]
    fn submit_plain(&mut self, kind: u16, payload: &[u8]) -> Option<u64> {
        if self.alarm.is_raised() || payload.len() > INLINE || kind >= RESERVED {
            return None;
        }
        let Producer { parts, writer, digests, .. } = self;
        let cell = writer.reserve_inline(parts.lane(), &parts.entry().released, 1).ok()?;
        put_inline(writer, parts.lane(), cell, *digests, Address::ALL, kind, payload);
        if self.enqueue(1).is_err() {
            self.writer.abandon();
            return None;
        }
        Some(cell.wrapping_sub(self.base))
    }

    /// One attempt to submit a command.
    #[inline(never)]
    fn attempt(&mut self, address: Address, kind: u16, payload: &[u8]) -> Result<u64, SubmitError> {
        check_kind(kind)?;
        self.attempt_any(address, kind, payload)
    }

    /// As [`attempt`](Self::attempt), with a kind of Seriatim's own as well.
    fn attempt_any(&mut self, address: Address, kind: u16, payload: &[u8]) -> Result<u64, SubmitError> {
        self.may_go_on()?;
        if payload.len() as u64 > self.parts.lane().max_payload() {
            return self.attempt_spilled(address, kind, payload);
        }
        self.put::<true>(address, kind, payload)?;
        self.queue().map(|range| range.start)
    }

    /// One attempt to submit commands with one ticket. Whoever makes several says if it `is_checked` that they can find
    /// room at all: that asks each for its bytes.
    fn attempt_batch<P: AsRef<[u8]>>(
        &mut self,
        commands: &[(u16, P)],
        is_checked: &mut bool,
    ) -> Result<Range<u64>, SubmitError> {
        self.may_go_on()?;
        if commands.is_empty() || commands.len() > self.most_cells {
            return Err(self.bad_batch(commands));
        }
        // With nothing for the bytes of the lane only their number counts.
        let undo = Undo(self);
        let Producer { parts, writer, digests, .. } = &mut *undo.0;
        let (count, digests) = (commands.len() as u32, *digests);
        let first = match writer.reserve_inline(parts.lane(), &parts.entry().released, count) {
            Ok(cell) => cell,
            Err(why) => {
                // What never finds room is not to be tried again.
                if !std::mem::replace(is_checked, true) {
                    undo.0.check_batch(commands)?;
                }
                undo.0.may_go_on()?;
                return Err(undo.0.no_room(why));
            }
        };
        for (cell, (kind, payload)) in (0..).map(|n| first.wrapping_add(n)).zip(commands) {
            let payload = payload.as_ref();
            // Whoever was asked for its bytes may have forked.
            undo.0.may_go_on()?;
            check_kind(*kind)?;
            if payload.len() > INLINE {
                undo.0.writer.abandon();
                return undo.0.attempt_batch_outside(commands);
            }
            let lane = undo.0.parts.lane();
            put_inline(&undo.0.writer, lane, cell, digests, Address::ALL, *kind, payload);
        }
        undo.0.queue()
    }

    /// As [`attempt_batch`](Self::attempt_batch), where payloads go into the bytes of the lane: all anew.
    #[inline(never)]
    fn attempt_batch_outside<P: AsRef<[u8]>>(
        &mut self,
        commands: &[(u16, P)],
    ) -> Result<Range<u64>, SubmitError> {
        let (max, max_bytes) = (self.max_payload(), self.max_batch_bytes());
        let (mut is_fine, mut bytes) = (true, 0);
        let lens = commands.iter().map(|(kind, payload)| {
            let len = payload.as_ref().len();
            is_fine &= *kind < RESERVED && len <= max;
            bytes += len as u64 + ALIGN;
            len as u32
        });
        let Producer { parts, writer, .. } = self;
        let has_room = writer.has_room_for(parts.lane(), &parts.entry().released, lens);
        if !is_fine || bytes > max_bytes {
            // It says what is wrong, or that it only seemed so.
            self.check_batch(commands)?;
        }
        self.may_go_on()?;
        match has_room {
            Ok(true) => {}
            Ok(false) => return Err(self.no_room(NoRoom::Full)),
            Err(why) => return Err(self.no_room(why)),
        }
        for (kind, payload) in commands {
            let payload = payload.as_ref();
            // As in `attempt_batch`.
            self.may_go_on()?;
            check_kind(*kind)?;
            self.put::<false>(Address::ALL, *kind, payload)?;
        }
        ask_if_short(&self.parts, &mut self.writer);
        self.queue()
    }

    /// Reserves room for a command and writes it, on top of what is reserved already. On failure nothing is reserved. If it
    /// `ASKS`, the sequencer is asked for more bytes in time.
    #[inline(always)]
    fn put<const ASKS: bool>(
        &mut self,
        address: Address,
        kind: u16,
        payload: &[u8],
    ) -> Result<(), SubmitError> {
        let Producer { parts, writer, digests, .. } = self;
        let (lane, released) = (parts.lane(), &parts.entry().released);
        if payload.len() <= INLINE {
            let cell = match writer.reserve_inline(lane, released, 1) {
                Ok(cell) => cell,
                Err(why) => return Err(self.no_room(why)),
            };
            put_inline(writer, lane, cell, *digests, address, kind, payload);
            return Ok(());
        }
        if payload.len() as u64 > lane.max_payload() {
            // Those of a batch lie in the lane.
            let (len, max) = (payload.len(), self.max_payload());
            self.writer.abandon();
            return Err(SubmitError::TooLarge { len, max });
        }
        let room = match writer.reserve(lane, released, payload.len() as u32) {
            Ok(room) => room,
            Err(why) => return Err(self.no_room(why)),
        };
        if ASKS {
            ask_if_short(parts, writer);
        }
        payload::write(lane.room(&room), payload);
        crash_point!("submit.payload");
        writer.fill_to(address, lane, &room, kind, digests.of(payload));
        Ok(())
    }

    /// As [`attempt`](Self::attempt), for a payload that is too long for the lane.
    #[cold]
    fn attempt_spilled(&mut self, address: Address, kind: u16, payload: &[u8]) -> Result<u64, SubmitError> {
        let (spilling, cell, ahead) = self.attempt_spill(payload.len())?;
        spilling.write(payload)?;
        let digest = self.digests.of(payload);
        self.submit_spilled(spilling, cell, ahead, address, kind, digest)
    }

    /// One attempt to get room beside the lane: it, the cell that is to name it, and the writer that has that reserved.
    #[cold]
    fn attempt_spill(&mut self, len: usize) -> Result<(Spilling, u64, LaneWriter), SubmitError> {
        let (map, lane) = (self.region.map(), self.seat.index);
        let Some(area) = map.layout().spill_area(lane).map(|area| area.end - area.start) else {
            return Err(self.too_large(len));
        };
        if len as u64 > spill::max_len(area) {
            return Err(self.too_large(len));
        }
        let (slots, entry) = (&map.lane_page(lane).spills, self.parts.entry());
        self.spills.look(entry);
        let has_no_pages = self.spills.has_no_pages(slots);
        // Not tried then, for that would take all there is from others meanwhile.
        if sys::most_bytes_free(self.region.file()).is_some_and(|most| most < len as u64) {
            return Err(self.no_space(has_no_pages, len));
        }
        // The cell first: whoever waits for one has claimed nothing else.
        let reserved = self.writer.reserve_inline(self.parts.lane(), &entry.released, 1).and_then(|cell| {
            let spill = self.spills.claim(slots, entry, area, cell, len as u64)?;
            Ok((cell, spill))
        });
        let (cell, spill) = match reserved {
            Ok(reserved) => reserved,
            Err(why) => return Err(self.no_room_beside(why)),
        };
        let ahead = self.writer.clone();
        self.writer.abandon();
        match Spilling::reserve(&self.region, lane, spill, len as u64) {
            Ok(spilling) => Ok((spilling, cell, ahead)),
            Err(Some(failed)) => Err(failed),
            Err(None) => Err(self.no_space(has_no_pages, len)),
        }
    }

    /// What a lack of pages means. Some come back when the payloads before this one are passed, unless these have none.
    #[cold]
    fn no_space(&mut self, has_no_pages: bool, len: usize) -> SubmitError {
        if !has_no_pages {
            return self.no_room_beside(NoRoom::Full);
        }
        let free = sys::bytes_free(self.region.file()).unwrap_or(0);
        SubmitError::NoSpace { wanted: len as u64, free }
    }

    /// As [`no_room`](Self::no_room), where the lane may well have some: so that what became free there before is not
    /// taken for what is waited for.
    #[cold]
    fn no_room_beside(&mut self, why: NoRoom) -> SubmitError {
        self.writer.abandon();
        let seen = self.writer.refresh(self.parts.lane(), &self.parts.entry().released);
        let error = self.no_room(seen.err().unwrap_or(why));
        self.wants_beside = true;
        error
    }

    /// Submits a command whose payload lies beside the lane.
    fn submit_spilled(
        &mut self,
        spilling: Spilling,
        cell: u64,
        ahead: LaneWriter,
        address: Address,
        kind: u16,
        digest: u64,
    ) -> Result<u64, SubmitError> {
        if let Some(end) = spilling.hit() {
            // What was written is not there.
            return Err(self.region.shortened(end).into());
        }
        let record = spilling.record(digest);
        self.writer = ahead;
        let shape = Shape { len: SPILLED, kind, address, digest: record.cell_digest() };
        self.writer.put_inline(self.parts.lane(), cell, shape, |words| {
            words.iter().zip(record.encode()).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        });
        let index = self.queue()?.start;
        spilling.keep();
        Ok(index)
    }

    /// One attempt to reserve room, for a claim.
    fn attempt_claim(&mut self, len: usize) -> Result<Claimed, SubmitError> {
        self.may_go_on()?;
        if len as u64 > self.parts.lane().max_payload() {
            let (spilling, cell, ahead) = self.attempt_spill(len)?;
            spilling.map()?;
            return Ok(Claimed { place: Where::Beside(spilling, cell), ahead });
        }
        match reserve(&self.parts, &mut self.writer, len) {
            Ok(room) => {
                let ahead = self.writer.clone();
                self.writer.abandon();
                Ok(Claimed { place: Where::InLane(room), ahead })
            }
            Err(why) => Err(self.no_room(why)),
        }
    }

    /// Submits a command of a kind of Seriatim's own, waiting for room, until the deadline if there is one.
    pub(crate) fn submit_reserved(
        &mut self,
        kind: u16,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<u64, SubmitError> {
        self.waiting(deadline, |me| me.attempt_any(Address::ALL, kind, payload))
    }

    /// The index of its lane.
    pub(crate) fn lane(&self) -> u16 {
        self.seat.index
    }

    /// Whether this process may use the producer.
    #[inline(always)]
    fn may_go_on(&self) -> Result<(), SubmitError> {
        if self.alarm.is_raised() { self.check() } else { Ok(()) }
    }

    /// Queues one ticket for what was put: the moment in which it is submitted.
    #[inline(always)]
    fn queue(&mut self) -> Result<Range<u64>, SubmitError> {
        let (first, count) = (self.next_index(), self.writer.reserved());
        match self.enqueue(count) {
            Ok(()) => Ok(first..first + u64::from(count)),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// As [`queue`](Self::queue), for the `count` commands that are reserved; on failure they stay that.
    #[inline(always)]
    fn enqueue(&mut self, count: u32) -> Result<(), Refused> {
        let ticket = Ticket::Cells { lane: self.seat.index, count };
        let void_before = &self.parts.control().reign.void_before;
        self.enqueuer.enqueue(self.parts.tickets(), ticket, void_before)?;
        self.writer.commit();
        crash_point!("submit.queued");
        wait::wake_sequencer_since_swap(self.parts.bells());
        crash_point!("submit.done");
        Ok(())
    }

    #[cold]
    fn too_large(&mut self, len: usize) -> SubmitError {
        self.writer.abandon();
        SubmitError::TooLarge { len, max: usize::try_from(self.max_command()).unwrap_or(usize::MAX) }
    }

    #[cold]
    fn refused(&mut self, refused: Refused) -> SubmitError {
        self.writer.abandon();
        match refused {
            Refused::Closed => self.closed(),
            Refused::Damaged { position, found, expected } => {
                self.why_damaged(SubmitError::DamagedTickets { position, found, expected })
            }
        }
    }

    /// Why nothing more is taken.
    fn closed(&self) -> SubmitError {
        let poisoned = self.region.poisoned_at();
        poisoned.map_or(SubmitError::Closed, |(at, diverged)| SubmitError::Poisoned { at, diverged })
    }

    #[cold]
    fn bad_batch<P: AsRef<[u8]>>(&self, commands: &[(u16, P)]) -> SubmitError {
        self.check_batch(commands).err().unwrap_or(SubmitError::EmptyBatch)
    }

    fn check_batch<P: AsRef<[u8]>>(&self, commands: &[(u16, P)]) -> Result<(), SubmitError> {
        commands.iter().try_for_each(|(kind, _)| check_kind(*kind))?;
        let (max, mut bytes) = (self.max_payload(), 0);
        for len in commands.iter().map(|(_, payload)| payload.as_ref().len()) {
            if len > max {
                return Err(SubmitError::TooLarge { len, max });
            }
            if len > INLINE {
                bytes += (len as u64).next_multiple_of(ALIGN);
            }
        }
        let (max_commands, max_bytes) = (self.max_batch(), self.max_batch_bytes());
        match commands.len() {
            0 => Err(SubmitError::EmptyBatch),
            // One command always fits, also where rounding takes it over half of a small lane.
            1 => Ok(()),
            n if n > max_commands || bytes > max_bytes => {
                Err(SubmitError::BatchTooLarge { commands: n, bytes, max_commands, max_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Whether this process may use the producer, and the region is whole.
    #[cold]
    fn check(&self) -> Result<(), SubmitError> {
        if fork::is_child() { Err(SubmitError::Forked) } else { Ok(self.region.check_if_hit()?) }
    }

    /// What a lack of room means, with the culprit yet to be found. Asks the sequencer to look at the gates.
    #[cold]
    fn no_room(&mut self, why: NoRoom) -> SubmitError {
        self.writer.abandon();
        self.wants_beside = false;
        if let NoRoom::Damaged { found, low, high } = why {
            return self.why_damaged(SubmitError::Damaged { found, low, high });
        }
        if self.region.state() != State::Open {
            return self.closed();
        }
        if self.entry().fenced.load(Ordering::Relaxed) != 0 {
            return SubmitError::Fenced;
        }
        let bells = self.region.map().bells();
        bells.want_room(Want::Now);
        wait::wake_sequencer(bells, FOR_WORK);
        SubmitError::Full(UNNAMED)
    }

    /// What is damaged because the file was shortened is not the fault of who wrote it.
    #[cold]
    fn why_damaged(&self, damage: SubmitError) -> SubmitError {
        self.region.check().map_or_else(SubmitError::Lost, |()| damage)
    }

    /// Says in the region that this producer finds no room for its next command, and since when, if it does not say
    /// so yet. It need not be taken back where that costs time: it is void once that command is in the order.
    #[cold]
    fn found_no_room(&mut self) {
        let next = self.writer.queued();
        if self.full_at.replace(next) != Some(next) {
            let refused = &self.region.map().lane_page(self.seat.index).refused;
            refused.full_at.store(next, Ordering::Relaxed);
            refused.full_ns.store(sys::monotonic_ns().max(1), Ordering::Relaxed);
        }
    }

    /// Takes that back.
    #[cold]
    fn found_room(&mut self) {
        self.full_at = None;
        self.region.map().lane_page(self.seat.index).refused.full_ns.store(0, Ordering::Relaxed);
    }

    /// Finds the culprit for a lack of room that is about to be told. That may take a system call, so it is not
    /// done at every attempt of one who waits.
    #[cold]
    fn name_culprit(&mut self, error: SubmitError) -> SubmitError {
        match error {
            SubmitError::Full(_) => {
                self.found_no_room();
                SubmitError::Full(Full { by: self.held_by() })
            }
            other => other,
        }
    }

    fn entry(&self) -> &LaneEntry {
        self.parts.entry()
    }

    /// Who keeps this producer's commands from being passed.
    fn held_by(&mut self) -> HeldBy {
        // A sequencer that makes turns is alive: the kernel need not be asked.
        let turns = self.region.map().control().pulse.turns.load(Ordering::Relaxed);
        let moved = std::mem::replace(&mut self.turns, turns) != turns;
        if !moved && !self.region.is_alive(Role::Sequencer) {
            return HeldBy::NoSequencer;
        }
        let entry = self.entry();
        let ordered = entry.ordered.load(Ordering::Relaxed) != entry.released.load(Ordering::Relaxed);
        match self.region.held_by_worker() {
            // Everything is passed: the sequencer has yet to free it.
            HeldBy::Worker { lag: 0, .. } => self.order_held_by(),
            by if ordered => by,
            _ => self.order_held_by(),
        }
    }

    /// Repeats an attempt while it finds no room.
    fn waiting<T>(
        &mut self,
        deadline: Option<Instant>,
        mut attempt: impl FnMut(&mut Self) -> Result<T, SubmitError>,
    ) -> Result<T, SubmitError> {
        let mut idle = Idle::new(self.wait);
        let mut was_full = false;
        loop {
            let full = match attempt(self) {
                Err(full @ SubmitError::Full(_)) => full,
                other => {
                    if was_full {
                        self.found_room();
                    }
                    return other;
                }
            };
            self.found_no_room();
            was_full = true;
            if wait::is_over(deadline) {
                return Err(self.name_culprit(full));
            }
            if self.helper.help(self.region.assistance()) {
                continue;
            }
            if idle.step() {
                self.helper.hand_back();
                let bell = &self.region.map().bells().producers;
                if !wait::sleep(bell, FOR_WORK, deadline, || self.should_look_again()) {
                    self.vigil.look(&self.region)?;
                }
            }
        }
    }

    /// Whether room came while this producer lay down; asks the sequencer, which may sleep, to look at the
    /// gates.
    fn should_look_again(&self) -> bool {
        let bells = self.region.map().bells();
        bells.want_room(Want::Now);
        wait::wake_sequencer(bells, FOR_WORK);
        let entry = self.entry();
        let released = entry.released.load(Ordering::Acquire);
        let has_moved =
            released != self.writer.released() || (self.wants_beside && self.spills.has_moved(entry));
        has_moved || self.region.state() != State::Open
    }

    /// Whether it would sleep now, while it waits for room.
    #[cfg(test)]
    pub(crate) fn would_sleep(&self) -> bool {
        !self.should_look_again()
    }

    /// Waits until the command with this per-producer index has its place, and says where that is.
    ///
    /// # Errors
    /// It was not submitted, the order closed, or the lane is fenced off.
    pub fn wait_sequenced(&mut self, index: u64) -> Result<Sequenced, WaitError> {
        self.wait_until(index, None)
    }

    /// As [`wait_sequenced`](Self::wait_sequenced), until the deadline.
    ///
    /// # Errors
    /// [`WaitError`]; past the deadline it names who holds things up.
    pub fn wait_sequenced_deadline(&mut self, index: u64, at: Instant) -> Result<Sequenced, WaitError> {
        self.wait_until(index, Some(at))
    }

    fn wait_until(&mut self, index: u64, deadline: Option<Instant>) -> Result<Sequenced, WaitError> {
        if fork::is_child() {
            return Err(WaitError::Forked);
        }
        self.region.check()?;
        let cell = self.cell_of(index)?;
        let mut idle = Idle::new(self.wait);
        while !has_ordered(self.entry(), cell) {
            self.can_be_ordered(index, cell)?;
            if wait::is_over(deadline) {
                return Err(WaitError::Late { index, by: self.order_held_by() });
            }
            if self.helper.help(self.region.assistance()) {
                continue;
            }
            if idle.step() {
                self.helper.hand_back();
                let bell = &self.region.map().bells().producers;
                let is_there = || has_ordered(self.entry(), cell) || self.is_ended();
                if !wait::sleep(bell, FOR_WORK, deadline, is_there) {
                    self.vigil.look(&self.region)?;
                }
            }
        }
        Ok(self.place_of(cell))
    }

    /// Where a command lies in the lane.
    fn cell_of(&self, index: u64) -> Result<u64, WaitError> {
        let next = self.next_index();
        if index < next {
            Ok(self.base.wrapping_add(index))
        } else {
            Err(WaitError::NotSubmitted { index, next })
        }
    }

    /// Where a command that has its place stands in the order.
    fn place_of(&self, cell: u64) -> Sequenced {
        find_place(self.region.map(), self.seat.index, cell).map_or(Sequenced::LongAgo, Sequenced::At)
    }

    /// Whether a command that has no place yet may still get one.
    fn can_be_ordered(&self, index: u64, cell: u64) -> Result<(), WaitError> {
        if self.entry().fenced.load(Ordering::Relaxed) != 0 {
            return Err(WaitError::Fenced);
        }
        if self.is_ended() && !has_ordered(self.entry(), cell) {
            let poisoned = self.region.poisoned_at();
            let poisoned = poisoned.map(|(at, diverged)| WaitError::Poisoned { index, at, diverged });
            return Err(poisoned.unwrap_or(WaitError::Closed { index }));
        }
        Ok(())
    }

    /// Waits until a command of this producer is in the order *and* on the disk, for good; its place. As
    /// [`wait_sequenced`](Self::wait_sequenced) and then [`Region::wait_durable`], but in one sleep and not two.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use seriatim::journal::{Journal, JournalOptions};
    /// use seriatim::{Config, Producer, Region, Sequencer, SequencerConfig};
    ///
    /// let dir = std::env::temp_dir().join(format!("durable-{}", std::process::id()));
    /// let region = Region::anonymous(&Config::new())?;
    /// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let mut journal = Journal::open(&region, &dir, &JournalOptions::new())?;
    /// let writing = std::thread::spawn(move || journal.run(|| false).and_then(|()| journal.leave()));
    /// let mut producer = Producer::attach(&region, "teller")?;
    /// let index = producer.submit(0, b"pay 5 to Ann")?;
    /// producer.wait_durable(index, Instant::now() + Duration::from_secs(60))?;
    /// sequencer.close()?;
    /// writing.join().unwrap()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DurableError::NotSequenced`]; otherwise as [`Region::wait_durable`].
    pub fn wait_durable(&mut self, index: u64, at: Instant) -> Result<Sequenced, DurableError> {
        let cell = self.cell_to_wait_for(index)?;
        let (mut idle, mut place) = (Idle::new(self.wait), None);
        loop {
            if let Some(found) = self.look_for_durable(index, cell, &mut place)? {
                return Ok(found);
            }
            if wait::is_over(Some(at)) {
                let late = || WaitError::Late { index, by: self.order_held_by() }.into();
                return Err(place.map_or_else(late, |Whereabouts { last, .. }| self.region.not_durable(last)));
            }
            if self.helper.help(self.region.assistance()) {
                continue;
            }
            // A disk takes longer than what yields are for.
            if self.wait == Wait::Park || idle.step() {
                self.helper.hand_back();
                if !self.region.sleep_for_disk(at, || self.is_kept(cell, place)) {
                    self.vigil.glance(&self.region)?;
                }
            }
        }
    }

    /// The place of a command of this producer if it is in the order and on the disk, for good; never waits. For a thread that
    /// has more to do than to [wait](Self::wait_durable) for one: many producers, for one.
    ///
    /// # Errors
    /// As [`wait_durable`](Self::wait_durable), but for those that say that it is late.
    pub fn find_durable(&mut self, index: u64) -> Result<Option<Sequenced>, DurableError> {
        let cell = self.cell_to_wait_for(index)?;
        let found = self.look_for_durable(index, cell, &mut None)?;
        if found.is_none() {
            self.vigil.glance(&self.region)?;
        }
        Ok(found)
    }

    fn cell_to_wait_for(&self, index: u64) -> Result<u64, WaitError> {
        if self.alarm.is_raised() {
            if fork::is_child() {
                return Err(WaitError::Forked);
            }
            self.region.check_if_hit()?;
        }
        self.cell_of(index)
    }

    /// The place of a command that is durable. What is known of one that is in the order is kept.
    fn look_for_durable(
        &mut self,
        index: u64,
        cell: u64,
        place: &mut Option<Whereabouts>,
    ) -> Result<Option<Sequenced>, DurableError> {
        if place.is_none() && has_ordered(self.entry(), cell) {
            *place = Some(self.durable_place(cell));
        }
        let Some(Whereabouts { what, first, last }) = *place else {
            self.can_be_ordered(index, cell)?;
            return Ok(None);
        };
        // What the journal has is asked together with how far it is: another one may have begun meanwhile.
        let durable = self.region.durable_from(first).map_err(|error| match error {
            DurableError::Before { since, .. } if what == Sequenced::LongAgo => {
                DurableError::LongAgo { index, since }
            }
            other => other,
        })?;
        Ok((durable > last).then_some(what))
    }

    /// Whether a command is on the disk, whose place may be known.
    fn is_kept(&self, cell: u64, place: Option<Whereabouts>) -> bool {
        let is_durable = |seq| self.region.is_durable(seq);
        match place {
            Some(Whereabouts { first, last, .. }) => {
                self.region.durable_from(first).is_ok_and(|durable| durable > last)
            }
            None if !has_ordered(self.entry(), cell) => false,
            None => find_place(self.region.map(), self.seat.index, cell).is_none_or(is_durable),
        }
    }

    /// A command's place, and what has to be durable for that: of one whose place is no longer known, for all have passed it,
    /// all from where it may be at the earliest to the last one that was published when that was found.
    fn durable_place(&mut self, cell: u64) -> Whereabouts {
        let what = self.place_of(cell);
        if let Sequenced::At(seq) = what {
            return Whereabouts { what, first: seq, last: seq };
        }
        let is_own = (cell.wrapping_sub(self.first_cell) as i64) >= 0;
        let first = if is_own { self.attached_at } else { Seq::new(self.region.identity().first_index) };
        // Kept: who asks anew each time would never find all durable that is published under load.
        let known = self.long_ago.filter(|(at, _)| at.wrapping_sub(cell) as i64 >= 0);
        let last = || Seq::new(published(self.region.map().control()).0.get().saturating_sub(1));
        let (_, last) = *self.long_ago.insert(known.unwrap_or_else(|| (cell, last())));
        Whereabouts { what, first, last }
    }

    /// Waits until every worker has applied the command at an index of the order; as [`Region::wait_applied`], in this
    /// producer's [way](AttachOptions::wait), and helping a sequencer that wants it.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use seriatim::{Config, Producer, Region, Sequenced, Sequencer, SequencerConfig, Worker};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let worker = Worker::join(&region, "w")?;
    /// let working = std::thread::spawn(move || worker.run(|_| ()));
    /// let mut producer = Producer::attach(&region, "controller")?;
    /// let index = producer.submit(7, b"drop table")?;
    /// if let Sequenced::At(seq) = producer.wait_sequenced(index)? {
    ///     producer.wait_applied(seq, Instant::now() + Duration::from_secs(60))?; // gone, everywhere
    /// } // else it was passed by all so long ago that the region no longer says where it is
    /// sequencer.close()?;
    /// working.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ApplyError`]: at the deadline it names who has not, and where each stands.
    pub fn wait_applied(&mut self, seq: Seq, at: Instant) -> Result<(), ApplyError> {
        if fork::is_child() {
            return Err(ApplyError::Forked);
        }
        barrier::wait_applied(&self.region, seq, at, self.wait, Some(&mut self.helper))
    }

    /// Whether nothing more gets its place until a sequencer reopens the order.
    fn is_ended(&self) -> bool {
        matches!(self.region.state(), State::Closed | State::Exhausted | State::Poisoned)
    }

    fn order_held_by(&self) -> HeldBy {
        self.region.order_held_by().unwrap_or(HeldBy::Sequencer { pid: self.region.sequencer_pid() })
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if !fork::is_child() {
            self.helper.leave();
            // Its lock falls next, or when a child that is being started runs: whoever comes knows to wait for that.
            let map = self.region.map();
            map.lane_page(self.seat.index).party.leave(self.seat.generation, map.bells().requests_word());
        }
    }
}

/// Whether a kind is not one of Seriatim's own.
#[inline(always)]
fn check_kind(kind: u16) -> Result<(), SubmitError> {
    if kind < RESERVED { Ok(()) } else { Err(SubmitError::ReservedKind { kind }) }
}

/// A batch in progress: what has no ticket in the end is given back, also if a payload panics when it is asked for its
/// bytes.
struct Undo<'p>(&'p mut Producer);

impl Drop for Undo<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.writer.abandon();
    }
}

/// Whether the region has digests of payloads.
#[derive(Clone, Copy, Debug)]
struct Digests(bool);

impl Digests {
    /// What a cell says of its payload: its digest, or 0 in a region without.
    #[inline(always)]
    fn of(self, payload: &[u8]) -> u64 {
        if self.0 { payload_digest(payload) } else { 0 }
    }
}

/// Writes a command whose payload lies in its cell, which is reserved.
#[inline(always)]
fn put_inline(
    writer: &LaneWriter,
    lane: &Lane<'_>,
    cell: u64,
    digests: Digests,
    address: Address,
    kind: u16,
    payload: &[u8],
) {
    let shape = Shape { len: payload.len() as u32, kind, address, digest: digests.of(payload) };
    writer.put_inline(lane, cell, shape, |words| payload::write_inline(words, payload));
    crash_point!("submit.payload");
}

/// Writes words of a table into the room for it.
fn put_words<const N: usize>(room: &mut [u8], at: usize, words: [u64; N]) {
    for (bytes, word) in room[at..].chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Reserves room for a payload, and asks for more before there is none.
#[inline(always)]
fn reserve(parts: &ProducerParts, writer: &mut LaneWriter, len: usize) -> Result<Room, NoRoom> {
    let (lane, released) = (parts.lane(), &parts.entry().released);
    let room = writer.reserve(lane, released, len as u32)?;
    if room.place != Place::Cell {
        ask_if_short(parts, writer);
    }
    Ok(room)
}

/// Asks for more bytes before there are none: the sequencer sees cells fill up, but not bytes.
#[inline(always)]
fn ask_if_short(parts: &ProducerParts, writer: &mut LaneWriter) {
    if writer.is_short_of_bytes(parts.lane(), &parts.entry().released) {
        parts.bells().want_room(Want::Soon);
    }
}

/// Looks for an ordered cell's run in the ring, from the last run back.
fn find_place(map: &Map, lane: u16, cell: u64) -> Option<Seq> {
    let order = map.order();
    // What was just ordered may lie beyond what is published: a turn publishes its cursor once, and may come round the
    // whole ring before.
    let published = published(map.control()).1;
    let end = match order.observe(published) {
        Look::Lapped => order.last().map_or(published, |last| last + 1),
        _ => (published..).find(|&n| !matches!(order.observe(n), Look::Here(_))).unwrap_or(published),
    };
    for number in (end.saturating_sub(order.slots())..end).rev() {
        let run = match order.observe(number) {
            Look::Here(run) => run,
            Look::Pending => continue,
            Look::Lapped => return None,
        };
        let inside = cell.wrapping_sub(run.cell);
        if run.lane == lane && inside < u64::from(run.count) {
            return Some(run.first.plus(inside));
        }
        if run.lane == lane && (inside as i64) > 0 {
            return None;
        }
    }
    None
}

/// Room in the lane for one command, to be written in place: a slice of exactly the bytes that were asked for,
/// with whatever an earlier command left there.
///
/// Dropping it gives the room back; nothing is submitted.
///
/// In a forked child a claim that its parent holds is of no use: what the child writes into it stays in the child,
/// what it reads are zeroes at first, and [`commit`](Self::commit) is an error. That holds for what is asked for
/// after the fork; a slice that was taken before it is of the lane, which is the parent's, and is not to be used in
/// the child.
#[derive(Debug)]
#[must_use = "a claim that is dropped submits nothing"]
pub struct Claim<'a> {
    producer: &'a mut Producer,
    claimed: Claimed,
    kind: u16,
    address: Address,
    /// How many of its bytes its digest covers.
    covered: usize,
    /// What a forked child of its owner gets instead of the room.
    aside: OnceCell<Box<[u8]>>,
}

/// Room that is reserved for one command.
#[derive(Debug)]
struct Claimed {
    place: Where,
    /// The producer's writer with the room reserved: it becomes the producer's own when the command is submitted.
    ahead: LaneWriter,
}

/// Where that lies.
#[derive(Debug)]
enum Where {
    InLane(Room),
    /// In pages of its own, and with the number of the cell that is to name it.
    Beside(Spilling, u64),
}

impl Claimed {
    fn len(&self) -> usize {
        match &self.place {
            Where::InLane(room) => room.len as usize,
            Where::Beside(spilling, _) => spilling.len(),
        }
    }
}

impl<'a> Claim<'a> {
    fn new(producer: &'a mut Producer, claimed: Claimed, kind: u16, address: Address) -> Claim<'a> {
        let covered = claimed.len();
        Claim { producer, claimed, kind, address, covered, aside: OnceCell::new() }
    }
}

impl Claim<'_> {
    /// Submits the command and returns its per-producer index.
    ///
    /// # Errors
    /// [`SubmitError::Closed`], [`SubmitError::Lost`], [`SubmitError::Forked`]; nothing is submitted then.
    pub fn commit(self) -> Result<u64, SubmitError> {
        // It may have been made before a fork.
        self.producer.may_go_on()?;
        let digest = self.producer.digests.of(&self[..self.covered]);
        let Claim { producer, claimed: Claimed { place, ahead }, kind, address, .. } = self;
        let room = match place {
            Where::InLane(room) => room,
            Where::Beside(spilling, cell) => {
                return producer.submit_spilled(spilling, cell, ahead, address, kind, digest);
            }
        };
        producer.writer = ahead;
        producer.writer.fill_to(address, producer.parts.lane(), &room, kind, digest);
        producer.queue().map(|range| range.start)
    }
}

impl Claim<'_> {
    /// Whether the room is that of the parent process, who goes on writing it.
    #[inline(always)]
    fn is_inherited(&self) -> bool {
        self.producer.alarm.is_raised() && fork::is_child()
    }

    #[cold]
    fn aside(&self) -> &[u8] {
        self.aside.get_or_init(|| vec![0; self.claimed.len()].into_boxed_slice())
    }
}

impl Deref for Claim<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.is_inherited() {
            return self.aside();
        }
        match &self.claimed.place {
            Where::InLane(room) => payload::read(self.producer.parts.lane().room(room), room.len as usize),
            Where::Beside(spilling, _) => spilling.bytes(),
        }
    }
}

impl DerefMut for Claim<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.is_inherited() {
            self.aside();
            return self.aside.get_mut().map_or(&mut [], |aside| &mut aside[..]);
        }
        match &mut self.claimed.place {
            Where::InLane(room) => payload::room_mut(self.producer.parts.lane().room(room), room),
            Where::Beside(spilling, _) => spilling.bytes_mut(),
        }
    }
}
