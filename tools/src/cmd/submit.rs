//! `seriatim submit`: a producer that submits the lines of a file.

use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use seriatim::journal::{DurableError, SyncPolicy};
use seriatim::{FileState, Producer, Region, RegionLost, Seq, Sequenced, SubmitError, WaitError};

use crate::Outcome;
use crate::input::Stream;
use crate::open;
use crate::output::{self, Report, complain, many};
use crate::party::footprint;

/// How long to wait before saying for what.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often to look whether there is a region, and whether what was submitted gets its place, also while the input is
/// silent.
const LOOK: Duration = Duration::from_secs(1);

/// Looks in a row that find a region that nobody serves or can find, before that is the end: a standby may be about to
/// take over.
const UNSERVED_LOOKS: u32 = 2;

/// How long to look then: a region that is lost takes a second to be known as such.
const LONG_LOOK: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  seriatim submit /dev/shm/orders commands.txt
  echo 'set a 1' | seriatim submit /dev/shm/orders --name config
  seriatim submit /dev/shm/orders --to 3 shard.txt    all pass these, the worker of rank 3 gets them
  tail -f log | seriatim submit /dev/shm/orders         submits each line as it comes
  seriatim submit /dev/shm/orders commands.txt --name a --resume
  seriatim submit /dev/shm/orders commands.txt --durable        needs a journal that syncs

With --resume it can be started again after it was killed, with the same name and the same input: it goes on at the
first line that is not in the order. The region remembers how far a name came until its lane is given to another
name, which happens only where there are more names than lanes.

Exit code: 0 when all lines are in the order, and with --durable on the disk; 1 when the order was closed while it ran, 2
when it could not run.";

/// Submit each line of a file as a command.
///
/// A line goes without its line end, an empty line is an empty command. Ends when the last one has its place
/// in the order. Waits for room when the slowest worker is far behind.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// The commands, one a line; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Name of this producer; there is one of a name at a time [default: submit-PID]
    #[arg(long)]
    name: Option<String>,
    /// Leave out the lines that are in the order already: as many as this name has submitted
    #[arg(long, requires = "name")]
    resume: bool,
    /// Commands in one ticket at most; only lines that are there already share one
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// To the worker of this rank alone: all pass the commands' indexes, it gets them. Each is a ticket of its own
    #[arg(long, value_name = "RANK", conflicts_with = "batch")]
    to: Option<u16>,
    /// End only when all lines are on the disk for good, those too that --resume left out; not to be had without a journal
    /// that syncs
    #[arg(long)]
    durable: bool,
    /// Lock the region in memory for as long as this runs, or do not run; `stat` shows it
    #[arg(long)]
    lock: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut input = Stream::open(&self.file)?;
        let region = open::to_attach(&self.path, self.lock)?;
        if self.durable {
            // Before anything is submitted that would then only be in the order.
            ensure_syncing(&region)?;
        }
        let name = self.name.unwrap_or_else(|| format!("submit-{}", std::process::id()));
        let producer = Producer::attach(&region, &name)?;
        let mut report = SubmitReport {
            path: self.path.display().to_string(),
            name,
            number: producer.number(),
            first: producer.next_index(),
            next: producer.next_index(),
            ..SubmitReport::default()
        };
        let limits = Limits {
            commands: producer.max_batch().min(self.batch as usize),
            in_lane: producer.max_payload(),
            payload: producer.max_command(),
            bytes: producer.max_batch_bytes() as usize,
            to: self.to,
        };
        if self.resume {
            report.skipped = skip(&mut input, report.first)?;
        }
        let began = region.snapshot().next;
        let pumped = pump(&mut input, &region, producer, &limits, &mut report);
        match pumped.and_then(|()| if self.durable { keep(&region, began, &mut report) } else { Ok(()) }) {
            Ok(()) => {
                output::print(&report, self.json)?;
                Ok(Outcome::Done)
            }
            Err(error) if was_closed(&error) => {
                output::print(&report, self.json)?;
                complain(format_args!("{}: {}", report.path, output::causes(&error)));
                Ok(Outcome::Problem)
            }
            Err(error) => Err(error.context(format!("after {}", many(report.commands, "command")))),
        }
    }
}

/// Reads over the lines that this name has submitted.
fn skip(input: &mut Stream, submitted: u64) -> Result<u64> {
    while input.lines_read() < submitted {
        let line = input.next().context("cannot read the input")?;
        let has = input.lines_read();
        ensure!(
            line.is_some(),
            "the order has {} of this name, the input {}",
            many(submitted, "command"),
            many(has, "line")
        );
    }
    Ok(submitted)
}

/// What one ticket may carry.
struct Limits {
    /// Commands.
    commands: usize,
    /// Bytes of one of several.
    in_lane: usize,
    /// Bytes of one alone.
    payload: u64,
    /// Bytes of all of them, as a lane counts.
    bytes: usize,
    /// The rank that they are for alone.
    to: Option<u16>,
}

/// Submits everything and waits until the last command is in the order.
fn pump(
    input: &mut Stream,
    region: &Region,
    mut producer: Producer,
    limits: &Limits,
    report: &mut SubmitReport,
) -> Result<()> {
    let mut batch = Batch::default();
    let mut unheard = Unheard::new(region, report.first);
    loop {
        // What was held back waits for no further line.
        while batch.held_back.is_none() && !input.stirs_within(LOOK) {
            unheard.look(&mut producer)?;
        }
        let more = batch.gather(input, limits);
        batch.submit(&mut producer, limits.to, report)?; // What was good before a bad line as well.
        if !more? {
            break;
        }
        unheard.look(&mut producer)?;
    }
    if report.next > report.first {
        report.seq = place(&mut producer, report.next - 1)?;
    }
    Ok(())
}

/// Looks, while lines come or are waited for, whether there is a region to submit to, and whether the lines before get
/// their place: whoever submits into a region that nobody serves finds room for long.
struct Unheard<'a> {
    region: &'a Region,
    /// Looks in a row that found nobody who serves, in a region that its path does not lead to.
    unserved: u32,
    /// The first index that is not known to have its place.
    next: u64,
    /// The last index that was submitted at the last look, and when that was.
    asked: Option<(u64, Instant)>,
    looked: Instant,
}

impl Unheard<'_> {
    fn new(region: &Region, first: u64) -> Unheard<'_> {
        Unheard { region, unserved: 0, next: first, asked: None, looked: Instant::now() }
    }

    /// Looks if it is time to.
    ///
    /// # Errors
    /// Nothing that was or will be submitted can get its place any more.
    fn look(&mut self, producer: &mut Producer) -> Result<()> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.look_at_region()?;
        if producer.next_index() == self.next {
            return Ok(());
        }
        let (index, since) = *self.asked.get_or_insert((producer.next_index() - 1, self.looked));
        let has_waited = since.elapsed() >= PATIENCE;
        let until = if has_waited { Instant::now() + LONG_LOOK } else { Instant::now() };
        match producer.wait_sequenced_deadline(index, until) {
            Ok(_) => (self.next, self.asked) = (index + 1, None),
            Err(WaitError::Late { by, .. }) if has_waited => {
                complain(format_args!("still waiting for the order: {by}"));
                self.asked = None;
            }
            Err(WaitError::Late { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// As everybody does who waits: a region without its end is lost, one without its name only when nobody serves it.
    fn look_at_region(&mut self) -> Result<(), RegionLost> {
        self.region.check()?;
        let file = self.region.file_state();
        let is_served = || self.region.snapshot().sequencer.is_some_and(|party| party.alive);
        self.unserved = if file == FileState::Here || is_served() { 0 } else { self.unserved + 1 };
        if self.unserved < UNSERVED_LOOKS { Ok(()) } else { Err(RegionLost::Unserved { file }) }
    }
}

/// Waits until a command is in the order, saying now and then what it waits for.
fn place(producer: &mut Producer, index: u64) -> Result<Option<u64>> {
    loop {
        match producer.wait_sequenced_deadline(index, Instant::now() + PATIENCE) {
            Ok(Sequenced::At(seq)) => return Ok(Some(seq.get())),
            Ok(_) => return Ok(None),
            Err(WaitError::Late { by, .. }) => complain(format_args!("still waiting for the order: {by}")),
            Err(error) => return Err(error.into()),
        }
    }
}

/// That a journal says when something is on the disk.
fn ensure_syncing(region: &Region) -> Result<()> {
    let journal = region.journal().context(
        "--durable: no journal gates this region, so nothing is made durable: `seriatim journal REGION DIR` writes one",
    )?;
    ensure!(journal.sync != SyncPolicy::Off, "--durable: the journal of this region does not sync");
    Ok(())
}

/// Waits until all that this name has submitted is on the disk, saying now and then what it waits for. What it submits now
/// comes at or behind an index.
fn keep(region: &Region, began: Seq, report: &mut SubmitReport) -> Result<()> {
    // Nothing says where lines are that were there long ago.
    let first = if report.skipped > 0 { Seq::new(region.first_index()) } else { began };
    if report.next > 0 {
        // Where the last one is may be long forgotten; it is somewhere before here.
        let end = region.snapshot().next.get();
        let seq = Seq::new(report.seq.unwrap_or(end - 1));
        loop {
            match region.wait_durable_from(first, seq, Instant::now() + PATIENCE) {
                Err(DurableError::Late { journal, .. }) => {
                    complain(format_args!("still waiting for the disk: {journal}"));
                }
                Err(DurableError::Before { since, .. }) => bail!(
                    "--durable: nothing says that all lines are on the disk, those which were in the order before included: \
                     they may begin at index {first}, the journal has what is from index {since} on{}",
                    if report.skipped > 0 {
                        "; what is submitted without --resume can be durable"
                    } else {
                        ""
                    }
                ),
                waited => break waited?,
            }
        }
    }
    report.durable = true;
    Ok(())
}

/// Submits a ticket when there is room.
fn submit(producer: &mut Producer, to: Option<u16>, batch: &[(u16, &[u8])]) -> Result<Range<u64>> {
    let first = producer.next_index();
    if to.is_none()
        && let &[(kind, line)] = batch
        && line.len() > producer.max_payload()
    {
        return when_there_is_room(|at| producer.submit_deadline(kind, line, at))
            .map(|index| index..index + 1);
    }
    let Some(rank) = to else {
        return when_there_is_room(|at| producer.submit_batch_deadline(batch, at));
    };
    for &(kind, line) in batch {
        when_there_is_room(|at| producer.submit_to_deadline(rank, kind, line, at))?;
    }
    Ok(first..producer.next_index())
}

/// Repeats an attempt until there is room, saying now and then what it waits for.
fn when_there_is_room<T>(mut attempt: impl FnMut(Instant) -> Result<T, SubmitError>) -> Result<T> {
    loop {
        match attempt(Instant::now() + PATIENCE) {
            Err(SubmitError::Full(full)) => complain(format_args!("still waiting for room: {}", full.by)),
            other => return Ok(other?),
        }
    }
}

/// The lines of one ticket.
#[derive(Default)]
struct Batch {
    lines: Vec<Vec<u8>>,
    bytes: usize,
    /// A line that had no room in the ticket before, as showed only when it had been read.
    held_back: Option<Vec<u8>>,
}

impl Batch {
    /// Takes the lines of the next ticket in, waiting for none but the first; false at the end of the input.
    fn gather(&mut self, input: &mut Stream, limits: &Limits) -> Result<bool> {
        if let Some(line) = self.held_back.take() {
            let is_alone = line.len() > limits.in_lane;
            self.push(line);
            if is_alone {
                return Ok(true);
            }
        }
        while self.lines.is_empty() || (self.lines.len() < limits.commands && input.in_sight()) {
            let Some(line) = input.next().context("cannot read the input")? else { return Ok(false) };
            let (len, max) = (line.len(), limits.payload);
            ensure!(
                len as u64 <= max,
                "line {} has {len} bytes, a command of this region up to {max}",
                input.lines_read()
            );
            // What does not lie in the lane is a ticket by itself.
            let is_alone = len > limits.in_lane;
            if !self.lines.is_empty() && (is_alone || self.bytes + footprint(&line) > limits.bytes) {
                self.held_back = Some(line);
                break;
            }
            self.push(line);
            if is_alone {
                break;
            }
        }
        Ok(true)
    }

    fn push(&mut self, line: Vec<u8>) {
        self.bytes += footprint(&line);
        self.lines.push(line);
    }

    /// Submits all lines and forgets them.
    fn submit(&mut self, producer: &mut Producer, to: Option<u16>, report: &mut SubmitReport) -> Result<()> {
        let commands: Vec<(u16, &[u8])> = self.lines.iter().map(|line| (0, line.as_slice())).collect();
        if commands.is_empty() {
            return Ok(());
        }
        report.next = submit(producer, to, &commands)?.end;
        report.commands += commands.len() as u64;
        report.bytes += commands.iter().map(|(_, line)| line.len() as u64).sum::<u64>();
        self.lines.clear();
        self.bytes = 0;
        Ok(())
    }
}

fn was_closed(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(SubmitError::Closed))
        || matches!(error.downcast_ref(), Some(WaitError::Closed { .. }))
}

#[derive(Debug, Default, Serialize)]
struct SubmitReport {
    path: String,
    name: String,
    /// The producer's number in the order, as workers see it.
    number: u64,
    /// Lines that were in the order already.
    skipped: u64,
    commands: u64,
    bytes: u64,
    /// They are its commands `first..next`, by its own count.
    first: u64,
    next: u64,
    /// Where the last command is in the order, if that is still known.
    seq: Option<u64>,
    /// It waited until all of them were on the disk.
    durable: bool,
}

impl Report for SubmitReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let SubmitReport { name, commands, bytes, first, next, .. } = self;
        write!(out, "{name}: ")?;
        if self.skipped > 0 {
            let were = if self.skipped == 1 { "was" } else { "were" };
            write!(out, "{} {were} in the order already, ", many(self.skipped, "line"))?;
        }
        write!(out, "{} ({bytes} bytes), its own {first}..{next}", many(*commands, "command"))?;
        if let Some(seq) = self.seq {
            write!(out, ", the last at index {seq} of the order")?;
        }
        writeln!(out, "{}", if self.durable { ", all of them durable" } else { "" })
    }
}
