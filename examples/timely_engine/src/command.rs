//! What the controller says ([`Command`]) and what workers answer ([`Reply`]).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use seriatim::channel::{Commanded, Effect, Reconcile};

/// What every worker carries out, in the same order as every other worker.
///
/// Timely's workers number their dataflows, so they have to create the same ones in the same order. That all else has one
/// order, too, makes the answers the same everywhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Builds a dataflow. Nothing flows until its time advances.
    CreateDataflow { id: u64, plan: Plan },
    /// Everything before `time` is there: edges of earlier times go in.
    AdvanceTo { id: u64, time: u64 },
    /// Nobody asks for anything before `time` any more: earlier times become one.
    AllowCompaction { id: u64, time: u64 },
    /// What the dataflow holds as of `time`: answered under `nonce`, once that is known.
    Peek { id: u64, time: u64, nonce: u64 },
    /// Closes a dataflow's inputs. It goes when what is under way has arrived.
    DropDataflow { id: u64 },
    /// How the worker has numbered its dataflows so far.
    Fingerprint { nonce: u64 },
    /// Carried and noted, nothing else: to measure the channel.
    Echo {
        nonce: u64,
        /// Bytes of its own that each worker writes then, as if the body had been so long.
        sweep: usize,
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// When each echo came since the last report, and the processor time that was used so far.
    Report { nonce: u64 },
    /// Ends every worker.
    Shutdown,
}

/// What is left of commands: dataflows as far as they have come, and what is asked and not answered.
impl Commanded for Command {
    /// A dataflow's identifier, or a question's nonce.
    type Id = u64;
    type Key = &'static str;

    fn effect(&self) -> Effect<u64, &'static str> {
        match *self {
            Command::CreateDataflow { id, .. } => Effect::Creates(id),
            Command::AdvanceTo { id, .. } => Effect::Updates(id, "time"),
            Command::AllowCompaction { id, .. } => Effect::Updates(id, "since"),
            Command::DropDataflow { id } => Effect::Drops(id),
            Command::Peek { nonce, .. } => Effect::Asks(nonce),
            Command::Fingerprint { .. }
            | Command::Echo { .. }
            | Command::Report { .. }
            | Command::Shutdown => Effect::Passes,
        }
    }

    fn needs(&self) -> impl Iterator<Item = u64> {
        if let Command::Peek { id, .. } = *self { Some(id) } else { None }.into_iter()
    }

    /// A dataflow's time and what may be forgotten of it never go back.
    fn merge(&mut self, later: Self) {
        match (&mut *self, later) {
            (Command::AdvanceTo { time, .. }, Command::AdvanceTo { time: later, .. })
            | (Command::AllowCompaction { time, .. }, Command::AllowCompaction { time: later, .. }) => {
                *time = later.max(*time);
            }
            (_, later) => *self = later,
        }
    }
}

/// A dataflow that computes the same can go on, if it has neither come nor forgotten more than it is to.
impl Reconcile for Command {
    fn carry_over(&self, new: &Self) -> Option<Vec<Self>> {
        let is_kept = match (self, new) {
            (Command::CreateDataflow { plan: had, .. }, Command::CreateDataflow { plan, .. }) => {
                return (had == plan).then(Vec::new);
            }
            (Command::AdvanceTo { time: had, .. }, Command::AdvanceTo { time, .. })
            | (Command::AllowCompaction { time: had, .. }, Command::AllowCompaction { time, .. }) => {
                had <= time
            }
            _ => false,
        };
        is_kept.then(|| vec![new.clone()])
    }
}

/// What a dataflow computes over an edge list: a text file with `source target time` in each line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Plan {
    /// For each source, how many of its edges have a target that is divisible by `divisor`: rows `[source]`.
    FilterCount { edges: PathBuf, divisor: u64 },
    /// Edges joined with edges where one's target is the other's source: rows `[source, target]`.
    TwoHops { edges: PathBuf },
    /// What can be reached from a node, itself included: rows `[node]`.
    Reach { edges: PathBuf, from: u64 },
}

impl Plan {
    /// The file that it reads.
    pub(crate) fn edges(&self) -> &PathBuf {
        match self {
            Plan::FilterCount { edges, .. } | Plan::TwoHops { edges } | Plan::Reach { edges, .. } => edges,
        }
    }

    /// The same, to be changed.
    pub(crate) fn edges_mut(&mut self) -> &mut PathBuf {
        match self {
            Plan::FilterCount { edges, .. } | Plan::TwoHops { edges } | Plan::Reach { edges, .. } => edges,
        }
    }
}

/// A record of a result.
pub(crate) type Row = Vec<u64>;

/// What a worker, or its process, tells the controller: one JSON object a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The first line of a process.
    Process { process: usize, pid: u32 },
    /// A worker hears what is sent from now on.
    Ready { worker: usize },
    /// It has what a new controller asked for first, and is that one's.
    Reconciled { worker: usize, incarnation: u64, changes: Changes },
    /// Its part of what was peeked at: each row and how often it is there.
    Rows { nonce: u64, worker: usize, rows: Vec<(Row, i64)> },
    /// The numbering so far, after so many commands that were carried out.
    Fingerprint { nonce: u64, worker: usize, fingerprint: u64, commands: u64 },
    /// See [`Command::Report`].
    Report { nonce: u64, worker: usize, report: Report },
    /// A command could not be carried out. Every worker finds the same unless its machine differs.
    Refused { nonce: Option<u64>, worker: usize, why: String },
    /// The process ends because of this.
    Failed { process: usize, why: String },
    /// The process ends as it should. Whoever has the sequencer says what that did.
    Done { process: usize, sequencer: Option<Ordered> },
}

/// What became of dataflows when a new controller came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Changes {
    /// Those that go on as they were.
    pub(crate) kept: u64,
    /// Those that were built.
    pub(crate) created: u64,
    /// Those that nobody wants any more, or not as they were.
    pub(crate) dropped: u64,
}

/// What a worker measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Nonce of each echo, and when it came (monotonic clock, in nanoseconds).
    pub(crate) echoes: Vec<(u64, u64)>,
    /// Processor time of the worker's thread, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Processor time of all threads of its process, in nanoseconds.
    pub(crate) process_cpu_ns: u64,
}

/// What a sequencer did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ordered {
    /// Commands that it ordered.
    pub(crate) commands: u64,
    /// Processor time of its turns, in nanoseconds.
    pub(crate) cpu_ns: u64,
}
