//! # Seriatim
//!
//! One after another, in order: every worker of a host gets the same commands in the same order, through one
//! mapped file, from any process.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod affinity;
mod attach;
mod config;
mod error;
mod fold;
mod liveness;
mod name;
mod observer;
mod payload;
mod producer;
mod region;
mod sequencer;
pub mod shared;
mod sys;
mod wait;
mod worker;

use std::fmt;

pub use config::{Config, ConfigError, Geometry, WithoutWorkers};
pub use error::{AttachError, CreateError, HeaderError, HeldBy, RemoveError};
pub use fold::Corrupt;
pub use name::{Name, NameError};
pub use observer::{Observed, Observer};
pub use payload::payload_digest;
pub use producer::{AttachOptions, Attached, Claim, Full, Producer, Sequenced, SubmitError, WaitError};
pub use region::Region;
pub use region::header::{Identity, MAGIC, Uuid, VERSION};
pub use region::inspect::{Inspection, inspect};
pub use region::layout::Section;
pub use region::snapshot::{PartyStatus, ProducerStatus, Snapshot, State, WorkerStatus};
pub use sequencer::{Sequencer, SequencerConfig, SequencerError, SequencerHandle, SequencerStats, Turn};
pub use seriatim_ring::Seq;
pub use wait::{UnknownWait, Wait};
pub use worker::{Command, Event, JoinOptions, MemberChange, Worker, WorkerError};

/// The digest of all commands before an index: equal digests at an equal index mean the same history.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(pub u64);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
