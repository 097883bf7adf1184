//! The command channel: commands of a type of one's own, from the controller that is current and from the workers
//! themselves, to every worker, at one index.
//!
//! ```text
//! controller, incarnation 7   Sender    hello(7) ─ initialization … ─ complete ─ commands … ─┐
//! controller, incarnation 6   Sender    commands … ─ Superseded { by: 7 }                   ─┼─▶ one order ─▶ Receivers
//! a worker's own              Injector  what it tells all of them, also itself              ─┘
//! ```
//!
//! There is one controller at a time, whatever became of those before it: killed, stopped and continued an hour
//! later, or cut off and unaware of it. A [`Sender`] opens an *incarnation*: it takes the next number, and says
//! hello. At the index of its hello every [`Receiver`] is told of it ([`Event::Incarnation`]), and from there on none
//! of them is handed a command of an earlier incarnation, wherever that was when it was sent. Whoever sends for a
//! superseded incarnation is told so, by which one.
//!
//! An [`Injector`] is for what is not the controller's: its commands count whoever that is.
//!
//! ```
//! use seriatim::channel::{Channel, Event};
//! use seriatim::{Config, Region, Sequencer, SequencerConfig};
//!
//! #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
//! enum Plan {
//!     CreateDataflow { id: u64, source: String },
//!     AllowCompaction { id: u64, to: u64 },
//! }
//!
//! let region = Region::anonymous(&Config::new())?;
//! let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
//! let channel = Channel::<Plan>::attach(&region);
//! let mut receiver = channel.join("worker-0")?;
//!
//! let mut old = channel.open("controller-a", 1)?;
//! old.send(&Plan::AllowCompaction { id: 1, to: 10 })?;
//!
//! // Another one takes over. It begins by saying what there is to be.
//! let mut sender = channel.open("controller-b", 2)?;
//! sender.send(&Plan::CreateDataflow { id: 1, source: "orders".into() })?;
//! sender.initialization_complete()?;
//! let index = sender.send(&Plan::AllowCompaction { id: 1, to: 20 })?;
//! sender.wait_sequenced(index)?;
//! let error = old.send(&Plan::AllowCompaction { id: 1, to: 30 }).unwrap_err();
//! assert!(error.to_string().contains("incarnation 1 is superseded by incarnation 2"));
//!
//! sequencer.close()?;
//! let (mut incarnation, mut compactions) = (0, Vec::new());
//! loop {
//!     match receiver.recv()? {
//!         Event::Incarnation { number, .. } => incarnation = number,
//!         Event::Initialized { .. } => assert_eq!(incarnation, 2), // what it did not mention is to go
//!         Event::Command(command) => match command.decode()? {
//!             Plan::AllowCompaction { to, .. } => compactions.push((incarnation, to)),
//!             Plan::CreateDataflow { .. } => {}
//!         },
//!         Event::World(seriatim::Event::Closed { .. }) => break,
//!         Event::World(_) => {} // somebody came or went
//!     }
//! }
//! assert_eq!(compactions, [(1, 10), (2, 20)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A command can also be for one worker alone ([`Sender::send_to`]), or have a part for each ([`Partition`]): still at one
//! index for all, and each reads what is its own.
//!
//! How commands become bytes is a [`Coding`]: serde and postcard unless one says otherwise. What they mean is for the
//! engine to say ([`Commanded`]): then a [`History`] keeps what is left of them, and a [`Reconciler`] says how a worker goes
//! over from one incarnation to the next.

mod coding;
pub mod history;
mod injector;
mod partition;
mod receiver;
pub mod reconcile;
mod sender;

use std::marker::PhantomData;
use std::path::Path;
use std::time::Instant;

pub use coding::{Bytes, Coding, CodingError, Miscoded, Postcard};
pub use history::{Commanded, Effect, History, HistoryError};
pub use injector::{InjectError, Injector};
pub use partition::Partition;
pub use receiver::{Command, Event, Receiver};
pub use reconcile::{Action, Reconcile, Reconciled, Reconciler};
pub use sender::{Incarnation, OpenError, SendError, Sender, SequencedError, Stage, Superseded};

use seriatim_ring::Seq;

use crate::error::AttachError;
use crate::journal::CatchUpError;
use crate::producer::{AttachOptions, Producer, SubmitError};
use crate::region::Region;
use crate::worker::JoinOptions;

/// A region through which commands of type `C` go, made into bytes and back by `K`.
///
/// All who use one region have to mean the same type and the same coding: a region does not know what its bytes are.
#[derive(Debug)]
pub struct Channel<C: ?Sized, K = Postcard> {
    region: Region,
    coding: K,
    of: PhantomData<fn(&C)>,
}

impl<C: ?Sized> Channel<C> {
    /// A channel with the coding [`Postcard`].
    #[must_use]
    pub fn attach(region: &Region) -> Self {
        Channel { region: region.clone(), coding: Postcard, of: PhantomData }
    }
}

impl<C: ?Sized, K: Coding<C> + Clone> Channel<C, K> {
    /// A channel with a coding of one's own.
    #[must_use]
    pub fn with(region: &Region, coding: K) -> Self {
        Channel { region: region.clone(), coding, of: PhantomData }
    }

    /// Opens the next incarnation under a controller's name, with a nonce that says what one likes (who it is, or a
    /// time): attaches, takes a number, and says hello. Whatever was current is superseded.
    ///
    /// A name is a lane of the region, so restarts of one controller best have one name. A name that was an injector's
    /// is refused.
    ///
    /// # Errors
    /// [`OpenError`]. Unless it is of the hello, no number was taken, and nothing changed for whoever is current.
    pub fn open(&self, name: &str, nonce: u64) -> Result<Sender<C, K>, OpenError> {
        self.open_with(name, nonce, &AttachOptions::new())
    }

    /// As [`open`](Self::open), with a time-out and a way to wait.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        &self,
        name: &str,
        nonce: u64,
        options: &AttachOptions,
    ) -> Result<Sender<C, K>, OpenError> {
        Sender::open(&self.region, self.coding.clone(), name, nonce, options)
    }

    /// Joins as a worker under a name.
    ///
    /// # Errors
    /// As [`Worker::join`](crate::Worker::join).
    pub fn join(&self, name: &str) -> Result<Receiver<C, K>, AttachError> {
        self.join_with(name, &JoinOptions::new())
    }

    /// As [`join`](Self::join), with options.
    ///
    /// # Errors
    /// As [`Worker::join`](crate::Worker::join).
    pub fn join_with(&self, name: &str, options: &JoinOptions) -> Result<Receiver<C, K>, AttachError> {
        Receiver::join(&self.region, self.coding.clone(), name, options)
    }

    /// Joins as a worker that comes late: is handed what the region's journal, in a directory, has from an index on, and then
    /// goes over into the live order, as [`Worker::join_from`](crate::Worker::join_from). What the handler gets and what the
    /// receiver gets after that is what one got that was there from the start: the incarnations, each at its index, and
    /// nothing of a controller that was superseded by then.
    ///
    /// ```
    /// use seriatim::channel::{Channel, Event};
    /// use seriatim::journal::{Journal, JournalOptions};
    /// use seriatim::{Config, JoinOptions, Region, Seq, Sequencer, SequencerConfig};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// # let dir = std::env::temp_dir().join(format!("seriatim-doc-{}-receiver", std::process::id()));
    /// let mut journal = Journal::open(&region, &dir, &JournalOptions::new())?;
    /// let channel = Channel::<u64>::attach(&region);
    /// for nonce in 1..=2 {
    ///     let mut sender = channel.open("controller", nonce)?;
    ///     sender.initialization_complete()?;
    ///     let index = sender.send(&(10 * nonce))?;
    ///     sender.wait_sequenced(index)?;
    /// }
    /// while journal.poll()? > 0 {}
    /// let (mut seen, mut current) = (Vec::new(), 0);
    /// let mut apply = |event: Event<'_, u64>| match event {
    ///     Event::Incarnation { number, .. } => current = number,
    ///     Event::Command(command) => seen.push((current, command.decode().expect("a number"))),
    ///     _ => {}
    /// };
    /// let options = JoinOptions::new();
    /// let mut receiver = channel.join_from("late", &options, &dir, Seq::ZERO, &mut apply)?;
    /// while let Some(event) = receiver.poll()? {
    ///     apply(event); // from here on it is one of the others
    /// }
    /// assert_eq!(seen, [(1, 10), (2, 20)]);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CatchUpError`]: what was handed out until then stays so.
    pub fn join_from(
        &self,
        name: &str,
        options: &JoinOptions,
        dir: impl AsRef<Path>,
        from: Seq,
        handle: impl FnMut(Event<'_, C, K>),
    ) -> Result<Receiver<C, K>, CatchUpError> {
        Receiver::join_from(&self.region, self.coding.clone(), name, options, (dir.as_ref(), from), handle)
    }

    /// Attaches a producer whose commands count whoever is the controller: for what a worker has to tell all of them.
    /// A name that was a controller's is refused.
    ///
    /// # Errors
    /// As [`Producer::attach`](crate::Producer::attach).
    pub fn inject(&self, name: &str) -> Result<Injector<C, K>, AttachError> {
        self.inject_with(name, &AttachOptions::new())
    }

    /// As [`inject`](Self::inject), with a time-out.
    ///
    /// # Errors
    /// As [`Producer::attach`](crate::Producer::attach).
    pub fn inject_with(&self, name: &str, options: &AttachOptions) -> Result<Injector<C, K>, AttachError> {
        Injector::attach(&self.region, self.coding.clone(), name, options)
    }
}

/// Encodes what a command was split into, in place, and submits it as one.
fn submit_split<C, K, E>(
    producer: &mut Producer,
    coding: &K,
    kind: u16,
    (shared, parts): (&C, &[C::Part]),
    deadline: Option<Instant>,
    coding_error: impl Fn(CodingError) -> E,
) -> Result<u64, E>
where
    C: Partition,
    K: Coding<C> + Coding<C::Part>,
    E: From<SubmitError>,
{
    let shared_len = coding.encoded_len(shared).map_err(&coding_error)?;
    let lens: Result<Vec<usize>, CodingError> = parts.iter().map(|part| coding.encoded_len(part)).collect();
    let lens = lens.map_err(&coding_error)?;
    let len = |which: Option<usize>| which.map_or(shared_len, |rank| lens[rank]);
    producer.submit_laid(kind, parts.len(), len, deadline, |which, claim, range| {
        let room = &mut claim[range];
        let written = match which {
            None => coding.encode(shared, room),
            Some(rank) => coding.encode(&parts[rank], room),
        };
        written.map_err(&coding_error)
    })
}
