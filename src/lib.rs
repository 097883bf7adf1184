//! One after another, in order: every worker of a host gets the same commands in the same order, through one
//! mapped file, from any process.
//!
//! ```text
//!  producers, each in its own lane              one sequencer                 workers, each at its own pace
//!
//!  "a"  ▮▮▮▮▮▮  one ticket: "6 more of a" ─┐                              ┌─▶ "red"    index 40, 41, 42, …
//!  "b"  ▮▮      one ticket: "2 more of b" ─┼─▶ run 40..46 of a, 46..48 of b ─┼─▶ "green"  index 40, 41, 42, …
//!  "c"  ▮       one ticket: "1 more of c" ─┘                              └─▶ "blue"   index 40, 41, 42, …
//! ```
//!
//! A producer writes a command once, into its own part of the file; workers read it there, in place. In between,
//! one sequencer gives out places in the order, without ever looking at a command. Nobody copies, no queue grows,
//! and whoever is held up is told by whom.
//!
//! # Create, attach, run
//!
//! ```
//! use seriatim::{Config, Event, Producer, Region, Sequencer, SequencerConfig, Worker};
//!
//! // Create: a file of its own size, completely or not at all. Others attach by its path.
//! let path = std::env::temp_dir().join(format!("orders-{}", std::process::id()));
//! let region = Region::create(&path, &Config::new().producers(2).workers(4).lane_bytes(1 << 16))?;
//!
//! // Run: one thread of one process fixes the order.
//! let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
//!
//! // Attach: any process that may write the file, under a name. Here, another thread.
//! let working = std::thread::spawn({
//!     let mut worker = Worker::join(&Region::attach(&path)?, "red")?;
//!     move || {
//!         let mut seen = Vec::new();
//!         loop {
//!             match worker.recv() {
//!                 Ok(Event::Command(command)) => seen.push((command.seq, command.payload.to_vec())),
//!                 Ok(Event::Closed { .. }) => return Ok((seen, worker.digest())),
//!                 Ok(_) => {} // somebody came or went
//!                 Err(error) => return Err(error),
//!             }
//!         }
//!     }
//! });
//! let mut producer = Producer::attach(&Region::attach(&path)?, "controller")?;
//! assert_eq!(producer.submit(0, b"create table")?, 0);
//! assert_eq!(producer.submit_batch(&[(1, b"insert"), (1, b"insert")])?, 1..3);
//!
//! // The end has its place, too: after all that was submitted.
//! sequencer.close()?;
//! let (seen, digest) = working.join().unwrap()?;
//! assert_eq!(seen.len(), 3);
//! println!("the same everywhere: {digest}");
//! Region::remove(&path).unwrap_err(); // "controller" is attached yet
//! drop(producer);
//! Region::remove(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which type does what
//!
//! | type | what it is |
//! | --- | --- |
//! | [`Config`] | how large a region's parts are, where they lie, and who may open it |
//! | [`Region`] | the mapped file, open in this process: [`create`](Region::create), [`attach`](Region::attach), [`anonymous`](Region::anonymous), [`remove`](Region::remove), [`snapshot`](Region::snapshot) |
//! | [`Sequencer`] | fixes the order; one per region. [`spawn`](Sequencer::spawn) gives it a thread, or call [`open`](Sequencer::open) and [`poll`](Sequencer::poll) |
//! | [`Producer`] | submits: [`submit`](Producer::submit) waits for room, [`try_submit`](Producer::try_submit) never waits, [`claim`](Producer::claim) lends the room to be written in place, [`submit_parts`](Producer::submit_parts) divides a command among workers, [`submit_to`](Producer::submit_to) is for one |
//! | [`Worker`] | receives everything that is for it, at the same index as everyone else, and gates: what it has not passed stays |
//! | [`Observer`] | watches without gating: copies, and says exactly how many commands it missed |
//! | [`journal`] | the order on disk: writing it, waiting until a command is durable, reading it back, coming late from it, following it as a standby |
//! | [`channel`] | commands of a type of one's own; controllers that supersede each other |
//! | [`Event`] | what has an index: a [`Command`], or a worker or producer that came, a worker that left, an end, a new sequencer |
//! | [`Digest`] | one number for all commands before an index |
//! | [`Agreement`] | whether workers made the same of the same commands, by what they [report](Worker::report) |
//! | [`Snapshot`], [`inspect`] | a region at a glance / a file as it lies there, also a damaged one |
//!
//! # What is promised
//!
//! - Indexes ([`Seq`]) are dense; every worker has the same command at the same index.
//! - One producer's commands keep their order, and their per-producer indexes are dense.
//! - If A's submit returned before B's began, A's command comes first, in whatever processes they were.
//! - A submit that returned is in the order once; one that failed is not in it.
//! - No queue grows. [`SubmitError::Full`] comes at once or at a deadline and names who is behind ([`HeldBy`]).
//!
//! # Waiting
//!
//! Everyone who waits does it in one of three ways ([`Wait`]), each for itself:
//!
//! - [`Wait::Park`], the default: spins for a moment, yields for another, then sleeps on a futex in the region. An
//!   idle party costs no processor time but a look each 100 ms. While nobody sleeps, nobody makes a system call to
//!   wake; it costs a fence a batch to find out.
//! - [`Wait::Yield`]: a busy core, which it shares. For ends that must be quick where there are few cores.
//! - [`Wait::Spin`]: the lowest latency, and a core for each party that spins. With more spinning parties than
//!   cores everything slows down by orders of magnitude.
//!
//! While there are fewer CPUs than parties and sequencer, workers of the sequencer's process that run dry make its turns
//! ([`Assist`]).
//!
//! A worker that submits through a [`Producer`] of its own must not *wait* for room: it may be the one who gates.
//! It uses [`try_submit`](Producer::try_submit) and goes on receiving (`examples/embed.rs`). For the same reason
//! attaching to a region whose sequencer is polled by hand takes another thread.
//!
//! # Who dies
//!
//! Each party holds a lock in the kernel that falls with it, however it ends, and not before: a stopped process is
//! waited for and named, never taken for dead.
//!
//! - A **producer** that dies leaves no hole: each command that it submitted is delivered, a half-written one is not
//!   there. Who attaches under its name goes on at [`next_index`](Producer::next_index), see [`Attached`].
//! - A **worker** that dies gates for some 20 ms more; then its [`Event::Left`] is in the order. Who joins under its
//!   name is a newcomer, with the digest of all that came before; what it has missed it gets from the journal, if there is
//!   one ([`Worker::join_from`]).
//! - The **sequencer**'s death stops the order, and loses nothing. A standby ([`Sequencer::wait_to_open`]) or the next
//!   [`Sequencer::open`] goes on at the next index. A standby looks when the process that served ends, and each
//!   100 ms in any case, and takes over at the first look that finds the lock free.
//! - A machine that starts anew leaves regions that are refused ([`AttachError::OtherBoot`]); what is to outlive it takes
//!   a [`journal`], whose gate stays when it dies, until the next one goes on where it was.
//!
//! A forked child neither keeps its parent's locks nor releases anything of its parent's: a handle that is used there
//! is an error, that of an observer as well. What it writes into a [`Claim`] of its parent's stays in the child.
//!
//! # Digests
//!
//! Each worker folds every command into one number: producer, per-producer index, kind, length, whom it is for, and a
//! digest of the payload that its producer took; those that are for others, too, whose payloads it does not read. [`Command::digest`] is that of all before it. Equal digests at an equal index mean
//! the same history; newcomers start from the order's own digest, so theirs are equal, too. It guards against
//! mistakes and damage, not against an adversary. A region can do with less: [`DigestOf`].
//!
//! # Agreement, and barriers
//!
//! That all saw the same commands does not say that they made the same of them. A worker can say what it made of them:
//! it [reports](Worker::report) a fingerprint of its state after an index, and [`Region::agreement`] says up to which index
//! all have reported the same, or at which they began to differ, and who. That costs some stores a report, and nothing
//! where nobody reports. A region can also be made so that it is [stopped](OnDivergence) when they differ: all workers
//! end at one index, or in lockstep before any of them acts on what follows. [`Region::wait_applied`] waits until all have passed an index, and names who has not.
//!
//! # Whom to trust
//!
//! A party of another process maps the file read-only and only its own pages writable, so a wild store in a worker
//! faults in that worker. Every number read from a region is checked before it is used. A process that may write the
//! file *can* destroy it, though: give the file a [`mode`](Config::mode) and [`group`](Config::group) accordingly.
//!
//! Linux only, on machines with pages of 4 KiB.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

use seriatim_ring::crash_point;

pub mod affinity;
mod agreement;
mod assistance;
mod attach;
mod barrier;
pub mod channel;
mod config;
#[cfg(feature = "crash-points")]
pub mod crash;
mod error;
mod error_log;
mod event;
mod fold;
mod fork;
pub mod journal;
mod liveness;
mod name;
mod notify;
mod observer;
mod pacer;
mod parts;
mod payload;
mod poison;
mod policy;
mod process;
mod producer;
mod region;
mod sequencer;
pub mod shared;
mod stall;
mod sys;
#[cfg(test)]
mod tests;
mod text;
#[cfg(feature = "timely")]
pub mod timely;
mod verify;
mod wait;
mod worker;

use std::fmt;

pub use agreement::{Agreement, Difference, Diverged, Reported, Reporter};
pub use barrier::{ApplyError, Behind};
pub use config::{Config, ConfigError, DigestOf, HugePages, UnknownDigest, WithoutWorkers};
pub use error::{
    AttachError, CreateError, HeaderError, HeldBy, LockError, NoHugePages, PlacementError, RemoveError,
};
pub use error_log::{ErrorCode, ErrorLog, ErrorRecord};
pub use event::{Command, Event, MemberChange};
pub use fold::Corrupt;
pub use name::{Name, NameError};
pub use notify::{Notifier, Summons};
pub use observer::{Observed, Observer, ObserverError};
pub use payload::payload_digest;
pub use poison::{OnDivergence, Poisoned, UnknownOnDivergence};
pub use policy::WorkerPolicy;
pub use process::NotKilled;
pub use producer::{AttachOptions, Attached, Claim, Full, Producer, Sequenced, SubmitError, WaitError};
pub use region::Region;
pub use region::file::{FileState, RegionLost};
pub use region::header::{Identity, MAGIC, Uuid, VERSION};
pub use region::inspect::{Inspection, inspect};
pub use region::layout::{Geometry, Section};
pub use region::placement::{PartPlacement, PlacedPart, Placement};
pub use region::snapshot::{PartyStatus, ProducerStatus, Snapshot, Spilled, State, WorkerStatus};
pub use region::spill::Unmapped;
pub use sequencer::{
    Assist, Load, Sequencer, SequencerConfig, SequencerError, SequencerHandle, SequencerStats, Turn,
};
pub use seriatim_ring::Seq;
pub use seriatim_ring::control::ProducerRole;
pub use seriatim_ring::parts::Address;
pub use verify::{Check, Verification};
pub use wait::{UnknownWait, Wait};
pub use worker::{JoinOptions, ReportError, Worker, WorkerError};

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

/// The code in README.md, compiled and run like that of the documentation.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
struct ReadmeDoctests;
