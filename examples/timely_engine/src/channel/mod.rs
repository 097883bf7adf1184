//! What the engine needs of a command channel, and the two that it has.
//!
//! This trait is all that lies between the engine and its channel: an engine that has one like it is moved to Seriatim
//! by writing what is in [`ordered`], 130 lines, and nothing else changes.

pub(crate) mod ordered;
pub(crate) mod worker0;

use anyhow::Result;
use timely::worker::Worker;

use crate::command::Command;

/// A worker's end of the channel.
pub(crate) trait CommandChannel {
    /// The next that is there, the same after the same at every worker; never waits.
    ///
    /// # Errors
    /// The channel is broken: nothing more comes.
    fn next(&mut self) -> Result<Option<Heard>>;

    /// Lets Timely work, or, if there is nothing to do, sleeps until there is, in a dataflow or in the channel.
    fn step_or_park(&mut self, timely: &mut Worker) -> Result<()>;
}

/// What comes through the channel.
#[derive(Debug)]
pub(crate) enum Heard {
    Command(Command),
    /// A controller comes, with the incarnation of this number: what it wants the engine to have is said first.
    Incarnation(u64),
    /// That was all of it.
    Initialized,
    /// A worker is gone, named so. Its part of every dataflow is gone with it.
    Lost(String),
}

/// A producer's end of the channel.
pub(crate) trait CommandSender: Send {
    /// Sends a command after those sent before. Waits for room, but not for ever.
    ///
    /// # Errors
    /// It could not be sent, and why.
    fn send(&mut self, command: &Command) -> Result<()>;
}
