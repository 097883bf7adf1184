//! [`Sender`]: one incarnation of the controller.

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::control::ProducerRole;
use seriatim_ring::incarnations::{Fate, HELLO, HIGHEST, Hello, INITIALIZED};

use super::coding::{Coding, CodingError, Postcard};
use super::partition::Partition;
use super::submit_split;
use crate::crash_point;
use crate::error::{AttachError, HeldBy};
use crate::liveness::Role;
use crate::name::Name;
use crate::producer::{AttachOptions, Producer, Sequenced, SubmitError, WaitError};
use crate::region::Region;
use crate::region::file::Vigil;
use crate::region::layout::Part;
use crate::region::snapshot::State;
use crate::wait;

/// How long a sender waits for room before it looks again whether it is superseded.
const LOOKS: Duration = Duration::from_millis(20);

/// An incarnation, as far as the region tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incarnation {
    /// Its number.
    pub number: u64,
    /// What its controller calls it; `None` if that died before it said so, or has ended since.
    pub nonce: Option<u64>,
    /// Its controller's name; `None` as for the nonce.
    pub controller: Option<Name>,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "incarnation {}", self.number)?;
        match (self.nonce, self.controller) {
            (Some(nonce), Some(name)) => write!(f, " (controller {name:?}, nonce {nonce})"),
            _ => Ok(()),
        }
    }
}

/// There is a newer incarnation. Nothing that is sent from now on would be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("incarnation {own} is superseded by {by}")]
#[non_exhaustive]
pub struct Superseded {
    /// The sender's own number.
    pub own: u64,
    /// The newest one.
    pub by: Incarnation,
}

/// An incarnation could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The controller could not attach.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The region's newest number was not counted.
    #[error("damaged region: the newest incarnation is {found}, expected less than {limit}")]
    Damaged {
        /// What the region says.
        found: u64,
        /// What it can be at most.
        limit: u64,
    },
    /// The number was taken, and the hello found no place until the time-out. Whoever was current is superseded as a
    /// sender; what it had sent is heard until the next hello.
    #[error("the hello of incarnation {number} was not sent: {source}")]
    Hello {
        /// The number.
        number: u64,
        /// What kept it.
        source: SubmitError,
    },
}

/// A command was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is a newer incarnation.
    #[error(transparent)]
    Superseded(#[from] Superseded),
    /// The region did not take it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// It could not be encoded.
    #[error("the command (kind {kind}) cannot be encoded: {source}")]
    Coding {
        /// Its kind.
        kind: u16,
        /// What is wrong.
        source: CodingError,
    },
    /// It is not its time.
    #[error("initialization is complete already: the incarnation is in its stage {stage}")]
    Stage {
        /// What the incarnation is doing.
        stage: Stage,
    },
}

/// What became of a command did not become known, or it is heard by nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SequencedError {
    /// It has its place in the order, after a newer incarnation's hello: no worker gets it.
    #[error("command {index} came too late: {source}")]
    Superseded {
        /// Its per-producer index.
        index: u64,
        /// By whom.
        source: Superseded,
    },
    /// It has its place, a newer incarnation has its number, and nobody has passed the command yet: whether there was
    /// a hello before it is not known.
    #[error(
        "command {index} is at index {at}, and whether a newer incarnation (the newest is {newest}) was before it is \
         not known yet: {held}"
    )]
    Undecided {
        /// Its per-producer index.
        index: u64,
        /// Its place.
        at: Seq,
        /// The newest incarnation's number.
        newest: u64,
        /// Who has yet to pass it.
        held: HeldBy,
    },
    /// It was submitted under this name before this incarnation began.
    #[error("command {index} is not of this incarnation, whose first is {first}")]
    Earlier {
        /// Its per-producer index.
        index: u64,
        /// That of this incarnation's hello.
        first: u64,
    },
    /// It had its place so long ago that the region no longer tells which side of a newer incarnation's hello that
    /// was.
    #[error("command {index} was sequenced long ago, before or after {by}")]
    LongAgo {
        /// Its per-producer index.
        index: u64,
        /// The newest incarnation.
        by: Incarnation,
    },
    /// It has no place yet, or there is nobody to give it one.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// What an incarnation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// It says what there is to be.
    Initialization,
    /// It has said it, and goes on from there.
    Computation,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::Initialization => "initialization",
            Stage::Computation => "computation",
        })
    }
}

/// One incarnation of the controller: sends commands until a newer one has its number.
///
/// Dropping it ends nothing: what it has sent is heard, and it stays current until somebody opens the next one.
pub struct Sender<C: ?Sized, K = Postcard> {
    producer: Producer,
    region: Region,
    coding: K,
    number: u64,
    nonce: u64,
    /// Per-producer index of its hello.
    hello: u64,
    stage: Stage,
    of: PhantomData<fn(&C)>,
}

impl<C: ?Sized, K: Coding<C>> Sender<C, K> {
    pub(super) fn open(
        region: &Region,
        coding: K,
        name: &str,
        nonce: u64,
        options: &AttachOptions,
    ) -> Result<Self, OpenError> {
        let options = options.clone().role(ProducerRole::Controller);
        let deadline = wait::after(options.patience());
        // Before a number is taken: nobody is superseded for one who does not get in.
        region.make_writable("a controller", &[Part::Channel])?;
        let mut producer = Producer::attach_with(region, name, &options)?;
        region.enter(&[Part::Channel], []);
        let all = region.map().incarnations();
        let damaged = |found| OpenError::Damaged { found, limit: HIGHEST };
        let number = all.claim(producer.lane(), nonce).map_err(damaged)?;
        let [first, second] = Hello { number, nonce }.encode().map(u64::to_le_bytes);
        let hello = [first, second].concat();
        let said = producer.submit_reserved(HELLO, &hello, deadline);
        let hello = said.map_err(|source| OpenError::Hello { number, source })?;
        crash_point!("open.said");
        let (region, stage) = (region.clone(), Stage::Initialization);
        Ok(Sender { producer, region, coding, number, nonce, hello, stage, of: PhantomData })
    }

    /// Sends a command, waiting for room as long as it takes; returns its per-producer index. One that returned is in
    /// the order once, and is heard unless a newer incarnation's hello came before it:
    /// [`wait_sequenced`](Self::wait_sequenced) tells.
    ///
    /// # Errors
    /// [`SendError`], but never [`SubmitError::Full`]; nothing was sent then.
    pub fn send(&mut self, command: &C) -> Result<u64, SendError> {
        self.send_until(command, None)
    }

    /// As [`send`](Self::send), waiting for room until the deadline.
    ///
    /// # Errors
    /// [`SendError`]; nothing was sent then.
    pub fn send_deadline(&mut self, command: &C, at: Instant) -> Result<u64, SendError> {
        self.send_until(command, Some(at))
    }

    /// As [`send`](Self::send), without waiting for anybody.
    ///
    /// # Errors
    /// [`SendError`]; nothing was sent then.
    pub fn try_send(&mut self, command: &C) -> Result<u64, SendError> {
        self.send_until(command, Some(Instant::now()))
    }

    fn send_until(&mut self, command: &C, deadline: Option<Instant>) -> Result<u64, SendError> {
        let kind = self.coding.kind(command);
        let coding = |source| SendError::Coding { kind, source };
        self.check_current()?;
        let len = self.coding.encoded_len(command).map_err(coding)?;
        self.waiting(deadline, |me, until| {
            let mut room = me.producer.claim_deadline(kind, len, until)?;
            me.coding.encode(command, &mut room).map_err(coding)?;
            Ok(room.commit()?)
        })
    }

    /// As [`send`](Self::send), to the worker of one rank alone: all pass its index, one gets it. See
    /// [`Producer::submit_to`].
    ///
    /// # Errors
    /// As [`send`](Self::send); [`SubmitError::UnknownRank`], [`SubmitError::NoRanks`].
    pub fn send_to(&mut self, rank: u16, command: &C) -> Result<u64, SendError> {
        self.send_to_until(rank, command, None)
    }

    /// As [`send_to`](Self::send_to), waiting for room until the deadline.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn send_to_deadline(&mut self, rank: u16, command: &C, at: Instant) -> Result<u64, SendError> {
        self.send_to_until(rank, command, Some(at))
    }

    /// As [`send_to`](Self::send_to), without waiting for anybody.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn try_send_to(&mut self, rank: u16, command: &C) -> Result<u64, SendError> {
        self.send_to_until(rank, command, Some(Instant::now()))
    }

    fn send_to_until(&mut self, rank: u16, command: &C, deadline: Option<Instant>) -> Result<u64, SendError> {
        let kind = self.coding.kind(command);
        let coding = |source| SendError::Coding { kind, source };
        self.check_current()?;
        let len = self.coding.encoded_len(command).map_err(coding)?;
        self.waiting(deadline, |me, until| {
            let mut room = me.producer.claim_to(rank, kind, len, Some(until))?;
            me.coding.encode(command, &mut room).map_err(coding)?;
            Ok(room.commit()?)
        })
    }

    /// As [`send`](Self::send), with a part for each worker if the command splits itself ([`Partition`]); at one index.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`SubmitError::WrongParts`], [`SubmitError::NoRanks`].
    pub fn send_parts(&mut self, command: &C) -> Result<u64, SendError>
    where
        C: Partition,
        K: Coding<C::Part>,
    {
        self.send_parts_until(command, None)
    }

    /// As [`send_parts`](Self::send_parts), waiting for room until the deadline.
    ///
    /// # Errors
    /// As [`send_parts`](Self::send_parts).
    pub fn send_parts_deadline(&mut self, command: &C, at: Instant) -> Result<u64, SendError>
    where
        C: Partition,
        K: Coding<C::Part>,
    {
        self.send_parts_until(command, Some(at))
    }

    /// As [`send_parts`](Self::send_parts), without waiting for anybody.
    ///
    /// # Errors
    /// As [`send_parts`](Self::send_parts).
    pub fn try_send_parts(&mut self, command: &C) -> Result<u64, SendError>
    where
        C: Partition,
        K: Coding<C::Part>,
    {
        self.send_parts_until(command, Some(Instant::now()))
    }

    fn send_parts_until(&mut self, command: &C, deadline: Option<Instant>) -> Result<u64, SendError>
    where
        C: Partition,
        K: Coding<C::Part>,
    {
        let ranks = self.producer.some_ranks()?;
        let Some((shared, parts)) = command.partition(ranks.into()) else {
            return self.send_until(command, deadline);
        };
        let kind = Coding::<C>::kind(&self.coding, command);
        let coding = |source| SendError::Coding { kind, source };
        self.check_current()?;
        self.waiting(deadline, |me, until| {
            submit_split(&mut me.producer, &me.coding, kind, (&shared, &parts), Some(until), coding)
        })
    }

    /// Says that all that is to be was said: what workers have and the incarnation did not mention can go.
    ///
    /// # Errors
    /// [`SendError::Stage`] if it was said before; else as [`send`](Self::send).
    pub fn initialization_complete(&mut self) -> Result<u64, SendError> {
        if self.stage != Stage::Initialization {
            return Err(SendError::Stage { stage: self.stage });
        }
        self.check_current()?;
        let index = self
            .waiting(None, |me, until| Ok(me.producer.submit_reserved(INITIALIZED, &[], Some(until))?))?;
        self.stage = Stage::Computation;
        Ok(index)
    }

    /// Repeats an attempt that waits for room, looking in between whether it still makes sense.
    fn waiting<T>(
        &mut self,
        deadline: Option<Instant>,
        mut attempt: impl FnMut(&mut Self, Instant) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        loop {
            let until = Instant::now() + LOOKS;
            let until = deadline.map_or(until, |at| at.min(until));
            match attempt(self, until) {
                Err(SendError::Submit(SubmitError::Full(_))) if !wait::is_over(deadline) => {
                    self.check_current()?;
                }
                other => return other,
            }
        }
    }
}

impl<C: ?Sized, K> Sender<C, K> {
    /// The incarnation's number: higher than those of all that were opened before.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What it was called when it was opened.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// What it is doing.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The producer that it is: its number, its next index.
    #[must_use]
    pub fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Whether there is no newer incarnation, as far as can be seen now.
    ///
    /// # Errors
    /// There is one.
    #[inline]
    pub fn check_current(&self) -> Result<(), Superseded> {
        check_current(&self.region, self.number)
    }

    /// Submits without a look at who is current, as one that stood still after it.
    #[cfg(test)]
    pub(crate) fn blindly(&mut self) -> &mut Producer {
        &mut self.producer
    }

    /// Waits until the command with this per-producer index has its place, with no newer incarnation's hello before
    /// it: so that every worker gets it. Says where that is.
    ///
    /// If there is a newer incarnation by then, that is known as soon as the first worker has passed the command; it
    /// is looked for each millisecond.
    ///
    /// # Errors
    /// [`SequencedError::Superseded`] if no worker gets it; or what keeps it from its place.
    pub fn wait_sequenced(&mut self, index: u64) -> Result<Sequenced, SequencedError> {
        self.wait_until(index, None)
    }

    /// As [`wait_sequenced`](Self::wait_sequenced), until the deadline.
    ///
    /// # Errors
    /// As there; past the deadline it names who holds things up.
    pub fn wait_sequenced_deadline(&mut self, index: u64, at: Instant) -> Result<Sequenced, SequencedError> {
        self.wait_until(index, Some(at))
    }

    fn wait_until(&mut self, index: u64, deadline: Option<Instant>) -> Result<Sequenced, SequencedError> {
        if index < self.hello {
            return Err(SequencedError::Earlier { index, first: self.hello });
        }
        let place = match deadline {
            Some(at) => self.producer.wait_sequenced_deadline(index, at)?,
            None => self.producer.wait_sequenced(index)?,
        };
        let Err(superseded) = self.check_current() else { return Ok(place) };
        let by = superseded.by;
        let at = match place {
            Sequenced::At(at) => at,
            // Where it was, only its term tells: if that is open, there was no hello before what is freed.
            Sequenced::LongAgo => Seq::MAX,
        };
        let mut vigil = Vigil::default();
        loop {
            match self.fate(at) {
                Fate::Heard => return Ok(place),
                Fate::Void | Fate::NotOurs { .. } if place == Sequenced::LongAgo => {
                    return Err(SequencedError::LongAgo { index, by });
                }
                Fate::Void => return Err(SequencedError::Superseded { index, source: superseded }),
                Fate::NotOurs { .. } => return Err(SequencedError::LongAgo { index, by }),
                Fate::Open => {}
            }
            // After the end nobody passes anything any more.
            let is_closed = matches!(self.region.state(), State::Closed | State::Poisoned);
            let is_ended = is_closed && !self.region.is_alive(Role::Sequencer);
            if wait::is_over(deadline) || is_ended {
                let held = self.region.order_held_by().unwrap_or_else(|| self.region.held_by_worker());
                return Err(SequencedError::Undecided { index, at, newest: by.number, held });
            }
            vigil.glance(&self.region).map_err(WaitError::Lost)?;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What became of a command that was found in the order, at this index or long ago.
    fn fate(&self, at: Seq) -> Fate {
        let map = self.region.map();
        let passed = || {
            // What is freed was passed by somebody.
            let cursors = map.worker_pages().iter().map(|page| page.cursor.position());
            at == Seq::MAX
                || map.control().anchor.position() > at
                || cursors.into_iter().any(|next| next > at)
        };
        map.incarnations().fate(self.producer.lane(), self.number, at, passed)
    }
}

/// One load before each command.
#[inline]
fn check_current(region: &Region, own: u64) -> Result<(), Superseded> {
    let newest = region.map().incarnations().newest();
    if newest == own { Ok(()) } else { Err(superseded(region, own, newest)) }
}

#[cold]
fn superseded(region: &Region, own: u64, newest: u64) -> Superseded {
    let map = region.map();
    let claimant = map.incarnations().claimant(newest);
    let controller = claimant.map(|(lane, _)| Name::from_words(map.lane_entry(lane).name.load()));
    let by = Incarnation { number: newest, nonce: claimant.map(|(_, nonce)| nonce), controller };
    Superseded { own, by }
}

impl<C: ?Sized, K> fmt::Debug for Sender<C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sender { producer, number, nonce, stage, .. } = self;
        let mut fields = f.debug_struct("Sender");
        fields
            .field("number", number)
            .field("nonce", nonce)
            .field("stage", stage)
            .field("producer", producer);
        fields.finish_non_exhaustive()
    }
}
