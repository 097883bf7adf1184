//! `seriatim tail`: an observer that prints what goes by.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use seriatim::{Event, FileState, Observed, Observer, Region, Snapshot, State};

use crate::Outcome;
use crate::open;
use crate::output::{complain, many};
use crate::signal::Stop;

/// How often an observer with nothing to see looks whether it is asked to stop.
const TICK: Duration = Duration::from_millis(250);

const EXAMPLES: &str = "\
Examples:
  seriatim tail /dev/shm/orders
  seriatim tail /dev/shm/orders --count 10";

/// Watch the order go by, without holding it up: print each command and a line end.
///
/// Needs no more than the right to read the region. What was overwritten before it could be read is reported
/// on standard error, by its indexes. Ends when the order is closed, after --count commands, or on SIGTERM or
/// SIGINT.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// End after N commands
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let stop = Stop::install()?;
        let region = open::to_look(&self.path)?;
        let mut observer = Observer::attach(&region)?;
        let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
        let mut left = self.count.unwrap_or(u64::MAX);
        let mut forlorn = 0;
        while left > 0 && !stop.asked() {
            let seen = match see(observer.poll()?, &mut out)? {
                Seen::Nothing => {
                    out.flush()?;
                    see(observer.recv_deadline(Instant::now() + TICK)?, &mut out)?
                }
                seen => seen,
            };
            match seen {
                Seen::Command => left -= 1,
                Seen::Nothing if is_over(&region, &observer) => break,
                Seen::Nothing if is_forlorn(&region) => {
                    forlorn += 1;
                    ensure!(forlorn < FORLORN, "region {}: nobody serves it any more", region.file_state());
                }
                Seen::End => break,
                Seen::Nothing | Seen::Other => {}
            }
        }
        out.flush()?;
        Ok(Outcome::Done)
    }
}

/// Ticks for which nobody serves a region that nobody can find before it is given up: a standby may take over.
const FORLORN: u32 = 5;

/// Whether nobody serves the region and its path no longer leads to it.
fn is_forlorn(region: &Region) -> bool {
    let alive = |snapshot: Snapshot| snapshot.sequencer.is_some_and(|party| party.alive);
    region.file_state() != FileState::Here && !alive(region.snapshot())
}

/// Whether the order is closed and there is nothing left to see: the end may be among what was missed.
fn is_over(region: &Region, observer: &Observer) -> bool {
    let snapshot = region.snapshot();
    matches!(snapshot.state, State::Closed | State::Poisoned) && observer.next() >= snapshot.next
}

enum Seen {
    Nothing,
    Command,
    End,
    Other,
}

fn see(observed: Option<Observed<'_>>, out: &mut impl Write) -> Result<Seen> {
    Ok(match observed {
        None => Seen::Nothing,
        Some(Observed::Event(Event::Command(command))) => {
            out.write_all(command.payload)?;
            out.write_all(b"\n")?;
            Seen::Command
        }
        Some(Observed::Event(Event::Closed { .. })) => Seen::End,
        Some(Observed::Event(Event::Poisoned { seq, diverged, .. })) => {
            out.flush()?;
            complain(format_args!("poisoned at index {seq}: workers differ since index {diverged}"));
            Seen::End
        }
        Some(Observed::Missed { from, to }) => {
            // In its place among the commands when both go to one terminal.
            out.flush()?;
            let missed = many(to.get().wrapping_sub(from.get()), "command");
            complain(format_args!("missed {missed}, {from}..{to}"));
            Seen::Other
        }
        Some(_) => Seen::Other,
    })
}
