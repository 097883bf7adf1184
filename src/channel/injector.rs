//! [`Injector`]: what counts whoever is the controller.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::coding::{Coding, CodingError, Postcard};
use super::partition::Partition;
use super::submit_split;
use crate::error::AttachError;
use crate::fork;
use crate::producer::{AttachOptions, Producer, SubmitError};
use crate::region::Region;

/// A command was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InjectError {
    /// The region did not take it: there is no room, or the order is closed.
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
}

/// Sends commands that count whoever is the controller: for what a worker has to tell all workers, itself included.
///
/// It never waits: a worker that did could wait for its own gate. When it finds no room it says so
/// ([`SubmitError::Full`]); go on receiving, and try again. Clones share one producer, so what they send has one
/// order.
pub struct Injector<C: ?Sized, K = Postcard> {
    producer: Arc<Mutex<Producer>>,
    number: u64,
    coding: K,
    of: PhantomData<fn(&C)>,
}

impl<C: ?Sized, K: Coding<C>> Injector<C, K> {
    pub(super) fn attach(
        region: &Region,
        coding: K,
        name: &str,
        options: &AttachOptions,
    ) -> Result<Self, AttachError> {
        let producer = Producer::attach_with(region, name, options)?;
        let number = producer.number();
        Ok(Injector { producer: Arc::new(Mutex::new(producer)), number, coding, of: PhantomData })
    }

    /// Sends a command if there is room for it; returns its per-producer index.
    ///
    /// # Errors
    /// [`InjectError`]; nothing was sent then.
    pub fn try_send(&self, command: &C) -> Result<u64, InjectError> {
        let kind = self.coding.kind(command);
        let coding = |source| InjectError::Coding { kind, source };
        let len = self.coding.encoded_len(command).map_err(coding)?;
        let mut producer = self.lock()?;
        let mut room = producer.try_claim(kind, len)?;
        self.coding.encode(command, &mut room).map_err(coding)?;
        Ok(room.commit()?)
    }

    /// As [`try_send`](Self::try_send), to the worker of one rank alone; see
    /// [`Producer::submit_to`](crate::Producer::submit_to).
    ///
    /// # Errors
    /// [`InjectError`]; nothing was sent then.
    pub fn try_send_to(&self, rank: u16, command: &C) -> Result<u64, InjectError> {
        let kind = self.coding.kind(command);
        let coding = |source| InjectError::Coding { kind, source };
        let len = self.coding.encoded_len(command).map_err(coding)?;
        let mut producer = self.lock()?;
        let mut room = producer.claim_to(rank, kind, len, Some(Instant::now()))?;
        self.coding.encode(command, &mut room).map_err(coding)?;
        Ok(room.commit()?)
    }

    /// As [`try_send`](Self::try_send), with a part for each worker if the command splits itself.
    ///
    /// # Errors
    /// [`InjectError`]; nothing was sent then.
    pub fn try_send_parts(&self, command: &C) -> Result<u64, InjectError>
    where
        C: Partition,
        K: Coding<C::Part>,
    {
        let ranks = self.lock()?.some_ranks()?;
        // Without the lock: this is somebody else's code, and may be long.
        let Some((shared, parts)) = command.partition(ranks.into()) else { return self.try_send(command) };
        let kind = Coding::<C>::kind(&self.coding, command);
        let coding = |source| InjectError::Coding { kind, source };
        let mut producer = self.lock()?;
        submit_split(&mut producer, &self.coding, kind, (&shared, &parts), Some(Instant::now()), coding)
    }

    fn lock(&self) -> Result<MutexGuard<'_, Producer>, SubmitError> {
        if fork::is_child() {
            // Whoever holds the lock may not be in this process.
            return Err(SubmitError::Forked);
        }
        // A panic in an encoding leaves nothing half done: its claim was given back.
        Ok(self.producer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its number, which workers see with each of its commands.
    #[must_use]
    pub fn producer(&self) -> u64 {
        self.number
    }
}

impl<C: ?Sized, K: Clone> Clone for Injector<C, K> {
    fn clone(&self) -> Self {
        let Injector { producer, number, coding, .. } = self;
        Injector { producer: Arc::clone(producer), number: *number, coding: coding.clone(), of: PhantomData }
    }
}

impl<C: ?Sized, K> fmt::Debug for Injector<C, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Injector").field("producer", &self.number).finish_non_exhaustive()
    }
}
