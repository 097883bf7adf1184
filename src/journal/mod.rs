//! The order on disk: what a region's journal writes, and reading it back.
//!
//! A journal is a directory of *segments*, each named by the first index that it has, `00000000000000001000.seg`. The last
//! one is being written, the others are sealed. Every index is there: commands with their whole payloads, also those for
//! one rank or with parts, those of superseded controllers, and the sequencer's own.
//!
//! A [`Journal`] writes it: a reader that gates the region, in whatever process, as `seriatim journal` does.
//! [`Region::wait_durable`](crate::Region::wait_durable) waits until a command is on the disk. [`Replay`] reads it from any
//! index on, [`verify`] checks all of it; a [`CatchUp`] reads it and goes over into the live order. A [`Standby`] follows it
//! into another directory, and can take its place.
//!
//! Beside the segments an engine keeps [`Snapshots`] of its state, and readers their [`Bookmark`]s. [`prune`] removes what
//! is older than the [`Retention`] asks for and none of these still needs.
//!
//! # What is on the disk
//!
#![doc = include_str!("FORMAT.md")]

mod batch;
mod bookmark;
mod carry;
mod catch_up;
mod disk;
mod durable;
mod duty;
mod error;
mod format;
mod keeper;
mod kept;
mod replay;
mod restore;
mod retention;
mod seat;
mod segment;
mod snapshots;
mod standby;
#[cfg(test)]
mod tests;
mod verify;
mod world;
mod writer;

pub use bookmark::{Bookmark, BookmarkError, Marked};
pub use catch_up::{CatchUp, CatchUpError};
pub use durable::{DurableError, JournalStatus};
pub use duty::Duty;
pub use error::{Damage, JournalError, ReplayError};
pub use format::{Origin, VERSION};
pub use keeper::{Journal, JournalOptions, OnFailure, SyncPolicy};
pub use replay::{Record, Replay};
pub use restore::{Outdated, RestoreError, Restored};
pub use retention::{Held, Holder, PruneError, Pruned, PrunedSegment, Retention, prune, would_prune};
pub use segment::Cut;
pub use snapshots::{Snapshot, SnapshotError, SnapshotWriter, Snapshots};
pub use standby::{Lag, Promoted, Standby, StandbyError, StandbyOptions};
pub use verify::{Audit, Problem, verify, verify_with};
