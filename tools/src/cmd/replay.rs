//! `seriatim replay`: what a journal has, from any index on.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::Serialize;
use seriatim::Seq;
use seriatim::journal::{Record, Replay, ReplayError};

use crate::Outcome;
use crate::output::{self, complain};
use crate::progress::Progress;

/// After how many indexes the bar moves.
const EACH: u64 = 256;

const EXAMPLES: &str = "\
Examples:
  seriatim replay /var/lib/orders
  seriatim replay /var/lib/orders --from 1000 --to 2000 --json | jq .payload

Also of a journal that is being written: up to where it was at the start.

Exit code: 0 done, 1 a record is damaged or missing, or was pruned while this read (what lies before it has been printed, and
which index is first now is said), 2 could not begin: also where --from is not there, or behind --to.";

/// Print what a journal has: each command that was handed to workers, and a line end. With --json everything that has an
/// index, with all that is known of it, one object a line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The journal's directory
    dir: PathBuf,
    /// The first index [default: the first that is there]
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// The index before which to end [default: behind the last that is there]
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    /// Where to print, replacing what is there; - is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Print each record as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        if let Some((from, to)) = self.from.zip(self.to) {
            ensure!(from <= to, "--from {from} is behind --to {to}: nothing lies between");
        }
        let mut replay = Replay::open(&self.dir)?;
        if let Some(cut) = replay.cut() {
            complain(format_args!("{cut}"));
        }
        if let Some(from) = self.from {
            replay = replay.from(Seq::new(from))?;
        }
        let to = self.to.unwrap_or(u64::MAX);
        let first = replay.position();
        ensure!(
            first.get() <= to,
            "--to {to} is before index {first}, the first one that is in {}",
            self.dir.display()
        );
        let mut out = output::sink(&self.out)?;
        let (from, end) = (replay.position().get(), replay.end().get().min(to));
        // What is printed where a person watches says itself how far it is.
        let is_printed = self.out.as_path() == Path::new("-");
        let bar = Progress::new(end.saturating_sub(from), "indexes", is_printed);
        while replay.position().get() < to {
            match replay.next() {
                Ok(Some(record)) => {
                    if record.seq.get() % EACH == 0 {
                        bar.done(record.seq.get() - from);
                    }
                    self.print(&mut out, &record)?;
                }
                Ok(None) => break,
                Err(
                    error @ (ReplayError::Damaged(_)
                    | ReplayError::Missing { .. }
                    | ReplayError::Pruned { .. }),
                ) => {
                    out.flush()?;
                    bar.clear();
                    complain(format_args!("{error}"));
                    return Ok(Outcome::Problem);
                }
                Err(error) => return Err(error.into()),
            }
        }
        out.flush()?;
        Ok(Outcome::Done)
    }

    fn print(&self, out: &mut impl Write, record: &Record<'_>) -> Result<()> {
        if self.json {
            // Into a buffer first: serde_json's errors hide a closed pipe.
            writeln!(out, "{}", serde_json::to_string(&Row::new(record))?)?;
        } else if record.is_command() {
            out.write_all(record.payload)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

#[derive(Debug, Serialize)]
struct Row {
    index: u64,
    /// Number of the producer; 0 is the sequencer.
    producer: u64,
    producer_index: u64,
    kind: u16,
    /// `all`, `parts`, or a rank.
    address: String,
    /// Of all before it.
    digest: String,
    payload_digest: String,
    bytes: usize,
    /// The payload if it is text; if not, `hex`.
    payload: Option<String>,
    hex: Option<String>,
    /// What it says, if it is one of the sequencer's own.
    event: Option<String>,
    /// It came from a superseded controller, and was handed to nobody.
    void: bool,
}

impl Row {
    fn new(record: &Record<'_>) -> Row {
        let event = record.event().map(|event| format!("{event:?}"));
        let text = str::from_utf8(record.payload).ok().filter(|_| event.is_none());
        let hex = || record.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        let address = match (record.address, record.address.as_rank()) {
            (_, Some(rank)) => rank.to_string(),
            (seriatim::Address::PARTS, None) => "parts".into(),
            _ => "all".into(),
        };
        Row {
            index: record.seq.get(),
            producer: record.producer,
            producer_index: record.index,
            kind: record.kind,
            address,
            digest: record.digest.to_string(),
            payload_digest: format!("{:016x}", record.payload_digest),
            bytes: record.payload.len(),
            payload: text.map(Into::into),
            hex: if text.is_none() { Some(hex()) } else { None },
            event,
            void: record.is_void,
        }
    }
}
