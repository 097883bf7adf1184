//! `seriatim sequence`: the sequencer of a region, in the foreground.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use seriatim::journal::{Replay, ReplayError, RestoreError};
use seriatim::{Config, Region, Sequencer, SequencerConfig, SequencerError, SequencerStats, Wait};

use crate::Outcome;
use crate::args::{group, mode, seconds};
use crate::log;
use crate::open;
use crate::output::{self, Report, complain, many};
use crate::signal::Stop;

const EXAMPLES: &str = "\
Examples:
  seriatim sequence /dev/shm/orders &
  seriatim sequence /dev/shm/orders --core 3 --wait spin
  seriatim sequence /dev/shm/orders --standby &
  seriatim sequence /dev/shm/orders --journal /var/lib/orders &

It prints one line once it serves. An order that was closed is opened again, at the next index. With --standby it prints
one before, when it begins to wait: it takes over when the process that serves has ended, however it ended, and ends itself
when that one has closed the order. SIGTERM or SIGINT closes the order: workers receive the end after all that came before,
producers are told at once. A second signal ends it without that: the next `sequence` goes on where it stopped.

With --journal a region that is missing, of another boot of the machine, or behind its journal is restored from that first,
and it says on standard error where the order goes on. A region that fits is served as it is. The journal itself is written
by `seriatim journal`, which goes on in the same directory; after a restart the order waits for it.

Exit code: 0 when closed, 1 when the end could not be put into the order, or when workers differ and the region is made
so that this ends it for good (`create --on-divergence`), 2 when it could not run.";

/// Serve a region: put what its producers submit into one order.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// CPU to pin the sequencer to, by the kernel's number
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// How it waits when there is nothing to do: spin, yield or park
    #[arg(long, value_name = "HOW", default_value_t = Wait::Park)]
    wait: Wait,
    /// Wait while another one serves the region, and take over when it has ended
    #[arg(long)]
    standby: bool,
    /// Kill the process that serves the region, if one does, and take over when it has ended
    #[arg(long, conflicts_with = "standby")]
    evict: bool,
    /// Say so on standard error when a worker has held the others up for so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    stall: Duration,
    /// Give a journal up that has died: the order goes on without it, though it was to wait for the next one
    #[arg(long)]
    without_journal: bool,
    /// Restore the region from the journal in this directory if it is not there, or outdated and nobody is attached to it
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Permission bits of a region that is restored, in octal, whatever the umask [default: 600]
    #[arg(long, value_name = "OCTAL", value_parser = mode, requires = "journal")]
    mode: Option<u32>,
    /// Group that owns a region that is restored, by name or number
    #[arg(long, value_name = "GROUP", value_parser = group, requires = "journal")]
    group: Option<u32>,
    /// Lock the region in memory for as long as this runs, or do not run; `stat` shows it
    #[arg(long)]
    lock: bool,
    /// Print the reports as JSON, one a line
    #[arg(long)]
    json: bool,
}

/// How long the kernel may take to end a process that was killed.
const EVICTION: Duration = Duration::from_secs(30);

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        log::to_standard_error();
        let stop = Stop::install()?;
        let region = match self.region() {
            Err(error) if is_poisoned(&error) => {
                complain(format_args!("{error}"));
                return Ok(Outcome::Problem);
            }
            region => region?,
        };
        let mut config = SequencerConfig::default()
            .wait(self.wait)
            .stall_after(self.stall)
            .without_journal(self.without_journal);
        if let Some(core) = self.core {
            config = config.core(core);
        }
        let sequencer = match self.open(&region, &stop) {
            Err(error) if is_poisoned(&error) => {
                complain(format_args!("{error}"));
                return Ok(Outcome::Problem);
            }
            opened => opened?,
        };
        let Some(sequencer) = sequencer else { return Ok(Outcome::Done) };
        let sequencer = sequencer.start(config)?;
        let path = self.path.display().to_string();
        let serving =
            Serving { serving: path.clone(), pid: std::process::id(), epoch: region.snapshot().epoch };
        output::print(&serving, self.json)?;
        while !stop.asked_within(Duration::from_millis(250)) {
            if sequencer.is_finished() {
                if let Some(poison) = region.poison() {
                    complain(format_args!("{path}: {poison}"));
                    return Ok(Outcome::Problem);
                }
                let ended = sequencer.stop().err().map_or_else(|| anyhow!("it ended by itself"), Into::into);
                return Err(ended).with_context(|| format!("the sequencer of {path} ended"));
            }
        }
        let stats = match sequencer.close() {
            Err(error @ SequencerError::Poisoned { .. }) => {
                complain(format_args!("{error}"));
                return Ok(Outcome::Problem);
            }
            closed => closed?,
        };
        let snapshot = region.snapshot();
        if !stats.closed {
            let by = snapshot.gate();
            complain(format_args!("{path} was left open, the end had no room in the order: {by}"));
            return Ok(Outcome::Problem);
        }
        output::print(&Closed::new(path, snapshot.next.get(), &stats), self.json)?;
        Ok(Outcome::Done)
    }

    /// Opens the region, restored from its journal first if that is asked for and there is need.
    fn region(&self) -> Result<Region> {
        let Some(dir) = &self.journal else { return open::to_attach(&self.path, self.lock) };
        let mut config = Config::new();
        if let Some(mode) = self.mode {
            config = config.mode(mode);
        }
        if let Some(group) = self.group {
            config = config.group(group);
        }
        let (region, restored) = Region::attach_or_restore(&self.path, dir, &config)?;
        if let Some(restored) = restored {
            complain(format_args!("{restored}"));
        } else if is_without_journal(dir) {
            complain(format_args!(
                "there is no journal in {} yet: nothing could be restored from it",
                dir.display()
            ));
        }
        open::for_use(region, self.lock)
    }

    /// Takes the order up, in the way that was asked for; none if there is nothing to take up any more.
    fn open(&self, region: &Region, stop: &Stop) -> Result<Option<Sequencer>> {
        if self.evict {
            let evicted = Sequencer::evict(region, EVICTION)?;
            return Ok(Some(evicted));
        }
        if !self.standby {
            return Ok(Some(Sequencer::open(region)?));
        }
        let mut said = Ok(());
        let mut is_first = true;
        let opened = Sequencer::wait_to_open(region, || {
            if std::mem::take(&mut is_first) {
                said = output::print(&StandingBy::new(&self.path, region), self.json);
            }
            said.is_err() || stop.asked()
        })?;
        said?;
        Ok(opened)
    }
}

fn is_poisoned(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(SequencerError::Poisoned { .. }))
        || matches!(error.downcast_ref(), Some(RestoreError::Poisoned { .. }))
}

#[derive(Debug, Serialize)]
struct StandingBy {
    standing_by: String,
    pid: u32,
    /// Process of the one that serves.
    behind: u32,
}

impl StandingBy {
    fn new(path: &Path, region: &Region) -> StandingBy {
        let behind = region.snapshot().sequencer.map_or(0, |party| party.pid);
        StandingBy { standing_by: path.display().to_string(), pid: std::process::id(), behind }
    }
}

impl Report for StandingBy {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let StandingBy { standing_by, pid, behind } = self;
        writeln!(out, "standing by for {standing_by} as pid {pid}, behind pid {behind}")
    }
}

#[derive(Debug, Serialize)]
struct Serving {
    serving: String,
    pid: u32,
    epoch: u64,
}

impl Report for Serving {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "serving {} as pid {}, epoch {}", self.serving, self.pid, self.epoch)
    }
}

#[derive(Debug, Serialize)]
struct Closed {
    closed: String,
    next: u64,
    commands: u64,
    runs: u64,
}

impl Closed {
    fn new(closed: String, next: u64, stats: &SequencerStats) -> Closed {
        Closed { closed, next, commands: stats.commands, runs: stats.runs }
    }
}

impl Report for Closed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Closed { closed, next, commands, runs } = self;
        let (commands, runs) = (many(*commands, "command"), many(*runs, "run"));
        writeln!(out, "closed {closed} at index {next}: {commands} in {runs} by this sequencer")
    }
}

/// Whether a directory has no journal, or is not there. One that cannot be read has one.
fn is_without_journal(dir: &Path) -> bool {
    match Replay::open(dir) {
        Err(ReplayError::Empty { .. }) => true,
        Err(ReplayError::Io { source, .. }) => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}
