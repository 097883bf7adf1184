//! What is counted: transfers of cache lines, by shape, party and step.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

/// Who works with whom on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) producers: usize,
    pub(crate) workers: usize,
    /// Commands of a ticket.
    pub(crate) batch: usize,
    /// Bytes of a command.
    pub(crate) payload: usize,
    pub(crate) pace: Pace,
}

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Tickets that a producer has in the queue at most when there is always work.
pub(crate) const TICKETS: usize = 16;

/// How the parties take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Each ticket is met by a sequencer that waits for it, each run by workers that wait: the most that can move.
    Hand,
    /// There is always work: each producer has up to [`TICKETS`] in the queue when the sequencer comes, and the workers come
    /// when all of them are ordered.
    Bulk,
}

impl Pace {
    pub(crate) const ALL: [Pace; 2] = [Pace::Hand, Pace::Bulk];
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(if *self == Pace::Hand { "hand" } else { "bulk" })
    }
}

/// The kinds of parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Producer,
    Sequencer,
    Worker,
}

/// What a party does for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A producer: claim, fill, ticket.
    Submit,
    /// The sequencer: ticket to run.
    Sequence,
    /// A worker: run, cells, payload.
    Poll,
    /// All: what says how far the workers are, and what is free.
    Free,
}

/// A step of a role, as the table has them.
pub(crate) const ROWS: [(Role, Step, &str); 6] = [
    (Role::Producer, Step::Submit, "submit"),
    (Role::Sequencer, Step::Sequence, "sequence"),
    (Role::Worker, Step::Poll, "poll"),
    (Role::Producer, Step::Free, "free: producer"),
    (Role::Sequencer, Step::Free, "free: sequencer"),
    (Role::Worker, Step::Free, "free: worker"),
];

/// Lines that moved to one party, by how they hold it up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Loads and swaps that missed: the party waits. These are its critical path.
    pub(crate) waits: f64,
    /// Loads that missed on a line after one that was used in the same call: a prefetcher fetches it in time or nearly so.
    pub(crate) reads: f64,
    /// Stores that missed: the store buffer takes them, and is emptied by the next swap or fence.
    pub(crate) writes: f64,
    /// Copies that others lost for this party, beyond the first of each line.
    pub(crate) copies: f64,
}

impl Tally {
    /// All lines that moved.
    pub(crate) fn lines(&self) -> f64 {
        self.waits + self.reads + self.writes
    }

    #[cfg(any(test, seriatim_trace))]
    pub(crate) fn add(&mut self, other: &Tally) {
        self.waits += other.waits;
        self.reads += other.reads;
        self.writes += other.writes;
        self.copies += other.copies;
    }

    #[cfg(any(test, seriatim_trace))]
    pub(crate) fn over(self, n: f64) -> Tally {
        Tally {
            waits: self.waits / n,
            reads: self.reads / n,
            writes: self.writes / n,
            copies: self.copies / n,
        }
    }
}

/// One shape's transfers for one command: of the producer that submits it, of the sequencer, of one worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counted {
    pub(crate) shape: Shape,
    /// In the order of [`ROWS`].
    pub(crate) rows: [Tally; ROWS.len()],
}

impl Counted {
    /// What one party moves for a command in a step.
    pub(crate) fn tally(&self, role: Role, step: Step) -> Tally {
        let at = ROWS.iter().position(|row| (row.0, row.1) == (role, step));
        at.map_or(Tally::default(), |at| self.rows[at])
    }

    #[cfg(seriatim_trace)]
    /// The first line of the file that [`line`](Self::line) and `parse` write and read.
    pub(crate) const HEAD: &str = "producers,workers,batch,payload,pace,\
        (waits,reads,writes,copies) of submit,sequence,poll,free:producer,free:sequencer,free:worker";

    #[cfg(any(test, seriatim_trace))]
    pub(crate) fn line(&self) -> String {
        let Shape { producers, workers, batch, payload, pace } = self.shape;
        let numbers = self.rows.iter().flat_map(|t| [t.waits, t.reads, t.writes, t.copies]);
        let numbers: String = numbers.map(|number| format!(",{number:.5}")).collect();
        format!("{producers},{workers},{batch},{payload},{pace}{numbers}")
    }
}

impl FromStr for Counted {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Counted> {
        let fields: Vec<&str> = line.split(',').collect();
        ensure!(fields.len() == 5 + 4 * ROWS.len(), "`{line}` has {} fields", fields.len());
        let whole = |at: usize| fields[at].parse::<usize>().with_context(|| format!("`{}`", fields[at]));
        let number = |at: usize| fields[at].parse::<f64>().with_context(|| format!("`{}`", fields[at]));
        let Some(pace) = Pace::ALL.into_iter().find(|pace| pace.to_string() == fields[4]) else {
            bail!("`{}` is no pace", fields[4]);
        };
        let shape =
            Shape { producers: whole(0)?, workers: whole(1)?, batch: whole(2)?, payload: whole(3)?, pace };
        let mut rows = [Tally::default(); ROWS.len()];
        for (row, at) in rows.iter_mut().zip((5..).step_by(4)) {
            let [waits, reads, writes, copies] =
                [number(at)?, number(at + 1)?, number(at + 2)?, number(at + 3)?];
            *row = Tally { waits, reads, writes, copies };
        }
        Ok(Counted { shape, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let shape = Shape { producers: 2, workers: 256, batch: 32, payload: 65536, pace: Pace::Bulk };
        let mut rows = [Tally { waits: 0.5, reads: 2.0, writes: 1.25, copies: 255.0 }; ROWS.len()];
        rows[3].add(&rows[3].over(4.0));
        let counted = Counted { shape, rows };
        assert_eq!(counted.line().parse::<Counted>().unwrap(), counted);
        assert_eq!(counted.tally(Role::Producer, Step::Free).lines(), 1.25 * 3.75);
        assert!("1,2,3".parse::<Counted>().is_err());
        assert!(counted.line().replace("bulk", "soon").parse::<Counted>().is_err());
    }
}
