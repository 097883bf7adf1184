//! [`Event`]: what has an index, as it is handed out.

use std::fmt;

use seriatim_ring::Seq;
use seriatim_ring::control::ProducerRole;
use seriatim_ring::event::Event as Own;
use seriatim_ring::incarnations::Hello;
use seriatim_ring::parts::Address;

use crate::Digest;
use crate::agreement::Difference;
use crate::name::Name;

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
    /// Its bytes, as the producer wrote them. Of a command with parts: what all get of it.
    pub payload: &'a [u8],
    /// Of a command with parts, the one of the worker's rank. `None` for any other, and for an observer.
    pub part: Option<&'a [u8]>,
    /// Whom it is for. A worker gets what is for all and, if it has a rank, what is for that.
    pub address: Address,
    /// The digest of all commands before it. An observer does not fold and has 0 here.
    pub digest: Digest,
}

impl fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Command { seq, producer, index, kind, payload, part, address, digest } = self;
        let shown = |bytes: &[u8]| {
            format!("{} bytes \"{}\"", bytes.len(), bytes[..bytes.len().min(32)].escape_ascii())
        };
        write!(f, "Command {{ {seq:?}, producer {producer} #{index}, kind {kind}, ")?;
        if let Some(rank) = address.as_rank() {
            write!(f, "for rank {rank}, ")?;
        }
        write!(f, "{}", shown(payload))?;
        if let Some(part) = part {
            write!(f, ", part of {}", shown(part))?;
        }
        write!(f, ", digest {digest} }}")
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
    /// Its rank, if it has one: what is submitted to that rank from here on reaches it, or nobody any more.
    pub rank: Option<u16>,
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
        /// What it is for.
        role: ProducerRole,
    },
    /// A controller is heard from here on, and no other: those before it are superseded. For whoever walks the order
    /// with a gate, a hello that comes too late is no event; an observer is shown that as well.
    Incarnation {
        /// The index.
        seq: Seq,
        /// Its number: higher than those of all before it.
        number: u64,
        /// What its controller calls it.
        nonce: u64,
        /// The controller's number as a producer.
        producer: u64,
    },
    /// The current incarnation's initialization is complete.
    Initialized {
        /// The index.
        seq: Seq,
        /// The controller's number as a producer.
        producer: u64,
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
    /// The order is poisoned, for workers differ: nothing comes after this, and nobody can reopen the order. Only where
    /// that is [what is done](crate::OnDivergence) when they do; [`Region::poison`](crate::Region::poison) names them.
    Poisoned {
        /// The index.
        seq: Seq,
        /// The index at which they began to differ.
        diverged: Seq,
        /// The last one before it at which they did not, if it is known.
        after: Option<Seq>,
        /// What differs.
        what: Difference,
        /// The slots of two that do.
        slots: [u16; 2],
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
            | Event::Incarnation { seq, .. }
            | Event::Initialized { seq, .. }
            | Event::ProducerFenced { seq, .. }
            | Event::Opened { seq, .. }
            | Event::Closed { seq, .. }
            | Event::Poisoned { seq, .. }
            | Event::Unknown { seq, .. } => *seq,
        }
    }

    pub(crate) fn of_hello(seq: Seq, producer: u64, hello: Hello) -> Event<'static> {
        let Hello { number, nonce } = hello;
        Event::Incarnation { seq, number, nonce, producer }
    }

    pub(crate) fn of_own(seq: Seq, kind: u16, own: Option<Own>) -> Event<'static> {
        let change = |slot, number, name, address: Address| MemberChange {
            seq,
            name: Name::from_words(name),
            slot,
            number,
            rank: address.as_rank(),
        };
        match own {
            Some(Own::Joined { slot, number, name, address }) => {
                Event::Joined(change(slot, number, name, address))
            }
            Some(Own::Left { slot, number, name, address }) => {
                Event::Left(change(slot, number, name, address))
            }
            Some(Own::Attached { lane, number, name, role, .. }) => {
                Event::ProducerAttached { seq, number, name: Name::from_words(name), lane, role }
            }
            Some(Own::Fenced { lane, number, .. }) => Event::ProducerFenced { seq, number, lane },
            Some(Own::Opened { epoch }) => Event::Opened { seq, epoch },
            Some(Own::Closed { epoch }) => Event::Closed { seq, epoch },
            Some(Own::Poisoned { index, after, of_digests, slots, .. }) => {
                let what = if of_digests { Difference::Digest } else { Difference::Fingerprint };
                Event::Poisoned { seq, diverged: Seq::new(index), after: after.map(Seq::new), what, slots }
            }
            None => Event::Unknown { seq, kind },
        }
    }
}
