//! What the controller says ([`Command`]) and what workers answer ([`Reply`]).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// When each echo came since the last report, and the processor time that was used so far.
    Report { nonce: u64 },
    /// Ends every worker.
    Shutdown,
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
