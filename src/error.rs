//! What can go wrong while regions are made, opened and joined: an enum for each operation, with the facts.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use seriatim_ring::control::ProducerRole;

use crate::config::{ConfigError, DigestOf};
use crate::name::{Name, NameError};
use crate::poison::Poisoned;
use crate::region::snapshot::State;
use crate::text::many;

/// A region could not be made. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A value of the configuration is out of range.
    #[error("configuration of {path:?}: {source}")]
    Config {
        /// The region's path.
        path: PathBuf,
        /// Which value.
        source: ConfigError,
    },
    /// There is a file of this name already.
    #[error("{path:?} exists already")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The file system has not enough room.
    #[error("no space for {path:?}: {wanted} bytes wanted, {free} bytes free")]
    NoSpace {
        /// The path.
        path: PathBuf,
        /// Bytes that the region would have.
        wanted: u64,
        /// Bytes that the file system had left.
        free: u64,
    },
    /// The rights of the directory do not allow it.
    #[error("no right to make {path:?}: its directory has owner uid {owner}, mode {mode:04o}")]
    Rights {
        /// The path.
        path: PathBuf,
        /// User id of the directory's owner.
        owner: u32,
        /// The directory's permission bits.
        mode: u32,
    },
    /// The pages of the machine, or of the file system, are larger than the format's.
    #[error("{path:?}: its pages have {found} bytes, regions need {expected}")]
    PageSize {
        /// The path.
        path: PathBuf,
        /// What the machine has.
        found: u64,
        /// What the format has.
        expected: u64,
    },
    /// Huge pages are required and cannot be had.
    #[error(transparent)]
    HugePages(#[from] NoHugePages),
    /// Its memory cannot lie where it was asked to.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A system call failed.
    #[error("cannot {what} {path:?}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// A region did not get the huge pages that were asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no huge pages for {path:?}: {wanted} bytes wanted in pages of {size}, {found} had: {why}")]
#[non_exhaustive]
pub struct NoHugePages {
    /// The region's path.
    pub path: PathBuf,
    /// Size of a huge page in bytes.
    pub size: u64,
    /// Bytes that were to lie in huge pages.
    pub wanted: u64,
    /// Bytes that would have.
    pub found: u64,
    /// What is missing, as far as that is known.
    pub why: &'static str,
}

/// The memory of a region cannot lie on the NUMA nodes that were asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// There is no such node, or this process may not use it.
    #[error(
        "no NUMA node {node} for {path:?}: the machine has {}, this process may use {}",
        nodes(exist),
        nodes(usable)
    )]
    NoNode {
        /// The region's path.
        path: PathBuf,
        /// The node that was asked for.
        node: u32,
        /// Those that have memory; none if the kernel knows of no nodes.
        exist: Vec<u32>,
        /// Of these, those that this process may take memory from.
        usable: Vec<u32>,
    },
    /// The node has not enough room.
    #[error("no space for {path:?} on NUMA node {node}: {wanted} bytes wanted, {free} bytes free")]
    NoSpace {
        /// The region's path.
        path: PathBuf,
        /// The node.
        node: u32,
        /// Bytes that would lie there.
        wanted: u64,
        /// Bytes that can be had there.
        free: u64,
    },
    /// The file does not lie in memory, where alone the kernel can be asked for places.
    #[error("cannot place {path:?} on NUMA nodes: its file system is no tmpfs")]
    NotInMemory {
        /// The region's path.
        path: PathBuf,
    },
    /// The kernel does not let this process ask.
    #[error(
        "cannot place {path:?} on NUMA nodes: mbind: {source} (containers forbid it without CAP_SYS_NICE, kernels \
         without NUMA do not have it)"
    )]
    Refused {
        /// The region's path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

fn nodes(nodes: &[u32]) -> String {
    let nodes: Vec<_> = nodes.iter().map(u32::to_string).collect();
    if nodes.is_empty() { "none".into() } else { nodes.join(", ") }
}

/// A region could not be locked in memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The process may not lock so much.
    #[error(
        "cannot lock {path:?} in memory: {wanted} bytes wanted, RLIMIT_MEMLOCK is {limit} bytes, {locked} of them \
         in use"
    )]
    Limit {
        /// The region's path.
        path: PathBuf,
        /// Bytes of the region.
        wanted: u64,
        /// Bytes that the process may lock.
        limit: u64,
        /// Bytes that it has locked.
        locked: u64,
    },
    /// The system call failed.
    #[error("cannot lock {path:?} in memory: {source}")]
    Io {
        /// The region's path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// A header that is not that of a usable region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// It is something else.
    #[error(
        "not a Seriatim region: found {found}, expected the magic \"SERIATIM\" and a header of 4096 bytes"
    )]
    NotARegion {
        /// What it seems to be.
        found: String,
    },
    /// It is a region of another format.
    #[error(
        "region of format version {found}, this build reads version {supported}; use the tool that made it"
    )]
    Version {
        /// The file's version.
        found: u32,
        /// This build's version.
        supported: u32,
    },
    /// It was made on a machine that stores the bytes of its numbers the other way round.
    #[error(
        "region of a machine with the other byte order: its mark is {found:#010x}, expected {expected:#010x}; use it \
         on a machine like the one that made it"
    )]
    ByteOrder {
        /// The file's mark, as this machine reads it.
        found: u32,
        /// What it is where this build can use the region.
        expected: u32,
    },
    /// A field has a value that it cannot have.
    #[error("damaged header: {field} is {found}, expected {expected}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The value that it must have.
        expected: u64,
    },
    /// A number of the geometry is out of range.
    #[error("damaged header: {0}")]
    Geometry(#[from] ConfigError),
}

impl HeaderError {
    /// Whether it is a region of this build's kind that is damaged, rather than something that another one made.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, HeaderError::Field { .. } | HeaderError::Geometry(_))
    }
}

/// A region could not be opened, or a party not attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such file.
    #[error("{path:?} not found")]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The file's rights do not allow it.
    #[error("no right to {what} {path:?}: owner uid {owner}, mode {mode:04o}")]
    Rights {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// User id of the file's owner (of its directory's, if the file cannot be looked at).
        owner: u32,
        /// The file's permission bits.
        mode: u32,
    },
    /// It is no regular file.
    #[error("{path:?} is {found}, expected a regular file")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// Its header is not that of a region that can be used.
    #[error("{path:?}: {source}")]
    Header {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        source: HeaderError,
    },
    /// It is shorter or longer than its header says.
    #[error("{path:?}: truncated or extended: the file has {found} bytes, expected {expected}")]
    Length {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// The length that its header asks for.
        expected: u64,
    },
    /// The machine was started anew since the region was made: those who used it are gone, and what they had
    /// written may be missing.
    #[error(
        "{path:?} was made in boot {found} of the machine, this is boot {expected}; remove it and create it anew"
    )]
    OtherBoot {
        /// The path.
        path: PathBuf,
        /// The region's boot id.
        found: String,
        /// This boot's id.
        expected: String,
    },
    /// The region is opened read-only, and parties write.
    #[error("{path:?} is opened read-only: {what} needs write access; owner uid {owner}, mode {mode:04o}")]
    ReadOnly {
        /// The path.
        path: PathBuf,
        /// What was to be attached.
        what: &'static str,
        /// User id of the file's owner.
        owner: u32,
        /// The file's permission bits.
        mode: u32,
    },
    /// The name cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A living party has this name.
    #[error("{path:?}: {what} {name:?} is attached already, by pid {pid}")]
    NameTaken {
        /// The path.
        path: PathBuf,
        /// Producer or worker.
        what: &'static str,
        /// The name.
        name: Name,
        /// The process that has it, as it says itself.
        pid: u32,
    },
    /// The name is that of a producer with another role: who is a controller stays one.
    #[error("{path:?}: producer {name:?} is {}, and was to attach as {}", role_name(*.found), role_name(*.wanted))]
    OtherRole {
        /// The path.
        path: PathBuf,
        /// The name.
        name: Name,
        /// The role of who had it first.
        found: ProducerRole,
        /// The role that was asked for.
        wanted: ProducerRole,
    },
    /// There is no such rank.
    #[error("{path:?} has no rank {rank}: {}", ranks_of(*.ranks))]
    UnknownRank {
        /// The path.
        path: PathBuf,
        /// The rank that was asked for.
        rank: u16,
        /// How many ranks the region has.
        ranks: u64,
    },
    /// A living worker has this rank.
    #[error("{path:?}: rank {rank} is that of worker {holder:?} (pid {pid}), which is attached")]
    RankTaken {
        /// The path.
        path: PathBuf,
        /// The rank.
        rank: u16,
        /// The name of the worker that has it.
        holder: Name,
        /// Its process, as it says itself.
        pid: u32,
    },
    /// Payloads were to be checked that nobody takes a digest of.
    #[error("{path:?} has no digests of payloads to check: its digest is {digest_of}, expected payload")]
    NoPayloadDigests {
        /// The path.
        path: PathBuf,
        /// What its digests cover.
        digest_of: DigestOf,
    },
    /// The order was ended for good: workers differ.
    #[error("{path:?}: {poison}")]
    Poisoned {
        /// The path.
        path: PathBuf,
        /// Where, and who.
        poison: Poisoned,
    },
    /// All places are taken.
    #[error("all {limit} {what}s of {path:?} are attached: {}", list(holders))]
    Full {
        /// The path.
        path: PathBuf,
        /// Producer or worker.
        what: &'static str,
        /// How many the region was made for.
        limit: u64,
        /// Who has them: names and pids.
        holders: Vec<(Name, u32)>,
    },
    /// No sequencer answered, and none is there. One that was closed needs another one as well, who opens it again.
    #[error("{path:?} has no sequencer, and its order is {state} (waited {waited:?})")]
    NoSequencer {
        /// The path.
        path: PathBuf,
        /// What the last sequencer left.
        state: State,
        /// How long was waited.
        waited: Duration,
    },
    /// The sequencer is there but could not answer in time.
    #[error("{path:?}: no answer from the sequencer (pid {pid}) within {waited:?}: {held}")]
    TimedOut {
        /// The path.
        path: PathBuf,
        /// Its process.
        pid: u32,
        /// How long was waited.
        waited: Duration,
        /// Who holds things up.
        held: HeldBy,
    },
    /// What the region says about the party's place cannot be.
    #[error("{path:?}: damaged: {field} is {found}, expected {limit} at most")]
    Damaged {
        /// The path.
        path: PathBuf,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it can be at most.
        limit: u64,
    },
    /// A system call failed.
    #[error("cannot {what} {path:?}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

fn list(holders: &[(Name, u32)]) -> String {
    let parts: Vec<_> = holders.iter().map(|(name, pid)| format!("{name} (pid {pid})")).collect();
    parts.join(", ")
}

impl AttachError {
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> AttachError {
        move |source| AttachError::Io { path: path.into(), what, source }
    }
}

/// A region could not be removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// It is no region that can be opened: nothing is removed.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Parties are attached: nothing is removed.
    #[error("{path:?} is in use by {}", parties.join(", "))]
    InUse {
        /// The path.
        path: PathBuf,
        /// Who is attached.
        parties: Vec<String>,
    },
    /// The rights do not allow it: of a directory with the sticky bit, only its owner and that of the file remove it.
    #[error(
        "no right to remove {path:?}: owner uid {owner}, mode {mode:04o}; its directory has owner uid \
         {directory_owner}, mode {directory_mode:04o}"
    )]
    Rights {
        /// The path.
        path: PathBuf,
        /// User id of the file's owner.
        owner: u32,
        /// The file's permission bits.
        mode: u32,
        /// User id of the directory's owner.
        directory_owner: u32,
        /// The directory's permission bits.
        directory_mode: u32,
    },
    /// A system call failed.
    #[error("cannot remove {path:?}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// What ranks a region has.
fn ranks_of(ranks: u64) -> String {
    match ranks {
        0 => "it was created without ranks (Config::ranks)".into(),
        ranks => format!("its ranks are 0 to {}", ranks - 1),
    }
}

fn role_name(role: ProducerRole) -> &'static str {
    match role {
        ProducerRole::Injector => "an injector",
        ProducerRole::Controller => "a controller",
    }
}

/// Who holds things up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeldBy {
    /// The slowest worker, which gates.
    Worker {
        /// Its slot.
        slot: u16,
        /// Its name.
        name: Name,
        /// Its process, as it says itself.
        pid: u32,
        /// How many published commands it has not passed.
        lag: u64,
    },
    /// Nobody works, and the region holds commands for the first who will.
    NoWorker,
    /// Nobody sequences.
    NoSequencer,
    /// The sequencer has not come to it yet.
    Sequencer {
        /// Its process, as it says itself.
        pid: u32,
    },
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeldBy::Worker { slot, name, pid, lag } => {
                write!(f, "worker {name:?} (slot {slot}, pid {pid}) is {} behind", many(*lag, "command"))
            }
            HeldBy::NoWorker => f.write_str("no worker"),
            HeldBy::NoSequencer => f.write_str("no sequencer"),
            HeldBy::Sequencer { pid } => write!(f, "the sequencer (pid {pid}) is busy, or does not run"),
        }
    }
}
