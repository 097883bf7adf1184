//! [`Receiver`]: a worker that gets typed commands.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::time::Instant;

use seriatim_ring::Seq;

use super::coding::{Coding, Miscoded, Postcard};
use super::partition::Partition;
use crate::error::AttachError;
use crate::journal::CatchUpError;
use crate::region::Region;
use crate::worker::{JoinOptions, Worker, WorkerError};

/// What a worker is told, each at the same index as every other worker.
#[derive(Debug)]
pub enum Event<'a, C: ?Sized, K = Postcard> {
    /// A controller is current from here on; nothing of an earlier incarnation follows.
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
    /// The current controller has said what there is to be.
    Initialized {
        /// The index.
        seq: Seq,
        /// The controller's number as a producer.
        producer: u64,
    },
    /// A command, of the current controller or of an injector.
    Command(Command<'a, C, K>),
    /// Somebody came or went, or the order ends: see there.
    World(crate::Event<'a>),
}

impl<C: ?Sized, K> Event<'_, C, K> {
    /// Its place in the order.
    #[must_use]
    pub fn seq(&self) -> Seq {
        match self {
            Event::Incarnation { seq, .. } | Event::Initialized { seq, .. } => *seq,
            Event::Command(command) => command.seq(),
            Event::World(event) => event.seq(),
        }
    }
}

/// A command, in place in its producer's lane, not decoded yet.
pub struct Command<'a, C: ?Sized, K = Postcard> {
    raw: crate::Command<'a>,
    coding: &'a K,
    of: PhantomData<fn(&C)>,
}

impl<'a, C: ?Sized, K: Coding<C>> Command<'a, C, K> {
    /// The command; of one that was split what all get of it.
    ///
    /// # Errors
    /// [`Miscoded`], which names its index, producer and kind.
    pub fn decode(&self) -> Result<<K as Coding<C>>::Decoded<'a>, Miscoded> {
        let crate::Command { seq, producer, kind, payload, .. } = self.raw;
        Coding::<C>::decode(self.coding, kind, payload).map_err(|source| Miscoded {
            seq,
            producer,
            kind,
            source,
        })
    }

    /// The part of this worker's rank, if the command was split.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_part(&self) -> Result<Option<<K as Coding<C::Part>>::Decoded<'a>>, Miscoded>
    where
        C: Partition,
        K: Coding<C::Part>,
    {
        let crate::Command { seq, producer, kind, part, .. } = self.raw;
        let decode = |part| Coding::<C::Part>::decode(self.coding, kind, part);
        part.map(decode).transpose().map_err(|source| Miscoded { seq, producer, kind, source })
    }
}

impl<'a, C: ?Sized, K> Command<'a, C, K> {
    /// Its place in the order.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.raw.seq
    }

    /// What its sender calls it.
    #[must_use]
    pub fn kind(&self) -> u16 {
        self.raw.kind
    }

    /// As it lies there, with its bytes, its producer, and the digest of all before it.
    #[must_use]
    pub fn raw(&self) -> crate::Command<'a> {
        self.raw
    }
}

impl<C: ?Sized, K> fmt::Debug for Command<'_, C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.raw, f)
    }
}

/// A [`Worker`] that gets commands of type `C`: those of the current controller and of injectors, and none of a
/// controller that was superseded.
pub struct Receiver<C: ?Sized, K = Postcard> {
    worker: Worker,
    coding: K,
    of: PhantomData<fn(&C)>,
}

impl<C: ?Sized, K: Coding<C>> Receiver<C, K> {
    pub(super) fn join(
        region: &Region,
        coding: K,
        name: &str,
        options: &JoinOptions,
    ) -> Result<Self, AttachError> {
        Ok(Receiver { worker: Worker::join_with(region, name, options)?, coding, of: PhantomData })
    }

    pub(super) fn join_from(
        region: &Region,
        coding: K,
        name: &str,
        options: &JoinOptions,
        (dir, from): (&Path, Seq),
        mut handle: impl FnMut(Event<'_, C, K>),
    ) -> Result<Self, CatchUpError> {
        let worker =
            Worker::join_from(region, name, options, dir, from, |event| handle(typed(event, &coding)))?;
        Ok(Receiver { worker, coding, of: PhantomData })
    }

    /// The next event, if there is one; never waits.
    ///
    /// # Errors
    /// As [`Worker::poll`].
    pub fn poll(&mut self) -> Result<Option<Event<'_, C, K>>, WorkerError> {
        Ok(self.worker.poll()?.map(|event| typed(event, &self.coding)))
    }

    /// The next event, waiting for it as long as it takes.
    ///
    /// # Errors
    /// As [`Worker::recv`].
    pub fn recv(&mut self) -> Result<Event<'_, C, K>, WorkerError> {
        Ok(typed(self.worker.recv()?, &self.coding))
    }

    /// The next event, or `None` if there is none until the deadline.
    ///
    /// # Errors
    /// As [`Worker::recv`].
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Event<'_, C, K>>, WorkerError> {
        Ok(self.worker.recv_deadline(deadline)?.map(|event| typed(event, &self.coding)))
    }
}

impl<C: ?Sized, K> Receiver<C, K> {
    /// The number of the incarnation that is current for what comes next, 0 if there was none yet. A newcomer knows it
    /// without having been handed its hello.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.worker.incarnation()
    }

    /// The number as a producer of the controller that is current for what comes next, as its commands have it;
    /// `None` if there was none, or its lane has another owner by now. Who has another number is an injector.
    #[must_use]
    pub fn controller(&self) -> Option<u64> {
        self.worker.controller()
    }

    /// The worker that it is.
    #[must_use]
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The same, to release by hand, or to receive without types.
    pub fn worker_mut(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// Leaves the order, as [`Worker::leave`].
    pub fn leave(self) {}
}

impl<C: ?Sized, K> fmt::Debug for Receiver<C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("worker", &self.worker).finish_non_exhaustive()
    }
}

fn typed<'a, C: ?Sized, K>(event: crate::Event<'a>, coding: &'a K) -> Event<'a, C, K> {
    match event {
        crate::Event::Command(raw) => Event::Command(Command { raw, coding, of: PhantomData }),
        crate::Event::Incarnation { seq, number, nonce, producer } => {
            Event::Incarnation { seq, number, nonce, producer }
        }
        crate::Event::Initialized { seq, producer } => Event::Initialized { seq, producer },
        other => Event::World(other),
    }
}
