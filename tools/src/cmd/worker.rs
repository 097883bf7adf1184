//! `seriatim worker`: a worker that prints what it receives.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use seriatim::journal::{Bookmark, CatchUp, DurableError, Replay};
use seriatim::{
    Digest, DigestOf, Event, JoinOptions, OnDivergence, Region, Seq, State, Worker, WorkerError,
    WorkerPolicy, payload_digest,
};

use crate::Outcome;
use crate::args::{patience, seconds};
use crate::open;
use crate::output::{self, Report, Sink, complain};
use crate::signal::Stop;

/// Events that are taken at a time.
const BATCH: usize = 256;

/// How it ends when the order does.
const CLOSED: &str = "closed";

/// How it ends where workers differ, and are stopped.
const POISONED: &str = "poisoned";

/// How often a worker without work looks whether it is asked to stop.
const TICK: Duration = Duration::from_millis(250);

/// How often a bookmark is set: each time takes some syncs.
const MARKS: Duration = Duration::from_millis(100);

/// How often it is looked whether a journal that does not sync has written: it does at once, and wakes nobody for that.
const WRITES: Duration = Duration::from_millis(1);

/// How long the disk is waited for at the end, to set the last one.
const LAST_MARK: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  seriatim worker /dev/shm/orders
  seriatim worker /dev/shm/orders --name audit --out audit.txt --digest
  seriatim worker /dev/shm/orders --count 10
  seriatim worker /dev/shm/orders --out audit.txt --report
  seriatim worker /dev/shm/orders --journal /var/lib/orders --from 1000
  seriatim worker /dev/shm/orders --journal /var/lib/orders --name audit --resume --out audit.txt

It gates: while it is attached and does not read, the order waits for it. To watch without that, use `tail`. With --journal
it prints what came before first, and nobody waits for that; it joins when little is left. With --resume it also goes on
where the one of that name before it was, however that ended: nothing is missing then, and after a kill some of what had
been printed comes again. What it prints may not be in the journal for good yet: after a loss of power the order may go on
without that, and it is in --out all the same.
SIGTERM or SIGINT makes it leave.

Exit code: 0 when the order was closed, after --count commands, or by a signal, 1 when workers differ and the region is
made so that this ends it (`create --on-divergence`), 2 when it could not run or go on.";

/// Join as a worker, print each command and a line end.
///
/// Ends when the order is closed, after --count commands, or on SIGTERM or SIGINT, and leaves in each case.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// Name of this worker; there is one of a name at a time [default: worker-PID]
    #[arg(long)]
    name: Option<String>,
    /// Its rank: it gets what is submitted to that alone (`submit --to`), and its part of commands that have one for each
    /// rank, printed behind what all get. There is one of a rank at a time; without one it passes over all these
    #[arg(long, value_name = "N")]
    rank: Option<u16>,
    /// Begin with what the journal in this directory has, and go over into the live order: nothing is missing or there twice
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// With --journal, the first index; one who had all before it goes on there [default: the journal's first]. With
    /// --resume it is for the first start: once there is a bookmark, that says where to go on
    #[arg(long, value_name = "N", requires = "journal")]
    from: Option<u64>,
    /// Keep a bookmark of --name beside the journal, go on there if there is one, and print behind what --out has, which has
    /// to be a file. Pruning the journal waits for it until `journal forget`
    #[arg(long, requires_all = ["journal", "name"])]
    resume: bool,
    /// Where to print, replacing what is there; - is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// At the end, say on standard error where it was in the order and the digest of all before
    #[arg(long)]
    digest: bool,
    /// End after N commands
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Let the sequencer kill this worker when it has not moved for so many seconds although there is something to
    /// do, at least 0.1: what it held up goes on when its process has ended. Without this it is waited for
    #[arg(long, value_name = "SECONDS", value_parser = patience)]
    kill_after: Option<Duration>,
    /// With --kill-after, only if it is at least so many commands behind
    #[arg(long, value_name = "N", default_value_t = 1, requires = "kill_after")]
    kill_lag: u64,
    /// Wait so long for the region to be there and served, for it may be being restored; and with --journal for a journal
    /// in that directory
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    wait_for: Duration,
    /// Lock the region in memory for as long as this runs, or do not run; `stat` shows it
    #[arg(long)]
    lock: bool,
    /// Do not check payloads against the digests that their producers took, if the region has them
    #[arg(long)]
    unchecked: bool,
    /// Report a fingerprint of the command that was printed last, for each index: `stat` compares it with those of others
    /// who do this. In a region whose workers keep step (`create --on-divergence lockstep`) each does in any case
    #[arg(long)]
    report: bool,
    /// The same as --digest, as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let stop = Stop::install()?;
        let region = match &self.journal {
            Some(dir) => open::to_attach_beside(&self.path, dir, self.lock, self.wait_for)?,
            None => open::to_attach_within(&self.path, self.lock, self.wait_for)?,
        };
        let name = self.name.clone().unwrap_or_else(|| format!("worker-{}", std::process::id()));
        let (out, mut mark) = self.sink(&name)?;
        let policy = match self.kill_after {
            Some(time) => WorkerPolicy::KillAfter { lag: self.kill_lag, time },
            None => WorkerPolicy::Gate,
        };
        let check = !self.unchecked && region.digest_of() == DigestOf::Payload;
        // What is not written yet is not done with: whoever comes after a worker that was killed is to get it again.
        let mut options = JoinOptions::new().policy(policy).check_payloads(check).release_by_hand(true);
        if let Some(rank) = self.rank {
            options = options.rank(rank);
        }
        let mut stage = match self.begin(&region, &name, &options, mark.as_mut())? {
            Some(history) => Stage::of_history(history),
            None => Stage::of_worker(Worker::join_with(&region, &name, &options)?),
        };
        let mut printer = Printer {
            out,
            to: self.out.display().to_string(),
            left: self.count.unwrap_or(u64::MAX),
            reports: self.report || region.on_divergence() == OnDivergence::Lockstep,
            printed: None,
            commands: 0,
            bytes: 0,
            end: None,
        };
        let end = stage.print(&mut printer, mark.as_mut(), &region, &stop);
        let report = WorkerReport {
            name,
            first: stage.first.get(),
            next: stage.next.get(),
            digest: stage.digest.to_string(),
            commands: printer.commands,
            bytes: printer.bytes,
            end: end.as_ref().copied().unwrap_or("failed"),
        };
        drop(stage);
        if self.digest || self.json {
            output::print_aside(&report, self.json)?;
        }
        if let (POISONED, Some(poison)) = (end?, region.poison()) {
            complain(format_args!("{poison}"));
            return Ok(Outcome::Problem);
        }
        Ok(Outcome::Done)
    }
}

impl Args {
    /// Where it prints, and how far the one of its name was, if it goes on there.
    fn sink(&self, name: &str) -> Result<(Sink, Option<Mark>)> {
        let Some(dir) = self.journal.as_ref().filter(|_| self.resume) else {
            return Ok((output::sink(&self.out)?, None));
        };
        // The name first: another one may be printing there.
        let bookmark = Bookmark::open(dir, name)?;
        if let (Some(next), Some(from)) = (bookmark.next(), self.from)
            && next.get() != from
        {
            complain(format_args!(
                "--from {from} is for the first start: {name:?} goes on at its bookmark, at index {next}"
            ));
        }
        // What was printed behind the bookmark comes again, so half a line of it need not stay.
        let (out, file) = output::sink_behind(&self.out, bookmark.next().is_some())?;
        let is_new = bookmark.next().is_none() && self.from.is_none();
        ensure!(
            !is_new || file.metadata()?.len() == 0,
            "{} has something already, but there is no bookmark of {name:?} in {} to say where that ends: say --from, or \
             print into another file",
            self.out.display(),
            dir.display()
        );
        Ok((out, Some(Mark { bookmark, file, due: Instant::now(), printed: None })))
    }

    /// The history, if it is to begin with that.
    fn begin(
        &self,
        region: &Region,
        name: &str,
        options: &JoinOptions,
        mark: Option<&mut Mark>,
    ) -> Result<Option<CatchUp>> {
        let Some(dir) = &self.journal else { return Ok(None) };
        let marked = mark.as_ref().and_then(|mark| mark.bookmark.next().zip(mark.bookmark.digest()));
        if let Some((next, digest)) = marked {
            return Ok(Some(CatchUp::open(region, name, dir, next, options)?.expecting(digest)?));
        }
        let replay = Replay::open(dir)?;
        let from = self.from.map_or(replay.first(), Seq::new);
        let history = CatchUp::open(region, name, dir, from, options)?;
        // Before anything is printed: who is killed then has said where it began. What is not on the disk soon may be another
        // history's after a loss of power: then --from has to say it again.
        let is_kept = from == replay.first() || is_durable(region, from, Instant::now() + LAST_MARK);
        if let Some(mark) = mark.filter(|_| is_kept && from <= replay.end()) {
            mark.set(from, replay.from(from)?.digest())?;
        }
        Ok(Some(history))
    }
}

/// How far it is, for whoever comes after it.
struct Mark {
    bookmark: Bookmark,
    /// What it prints into.
    file: File,
    /// What comes before is printed; it is set when that is durable, too, for the order may go on before it otherwise.
    printed: Option<(Seq, Digest)>,
    /// When it is set next.
    due: Instant,
}

impl Mark {
    /// What comes before is printed: says so if it is time.
    fn printed(&mut self, region: &Region, next: Seq, digest: Digest) -> Result<()> {
        if Instant::now() < self.due {
            return Ok(());
        }
        self.due = Instant::now() + MARKS;
        let (next, digest) = *self.printed.get_or_insert((next, digest));
        if is_durable(region, next, Instant::now()) {
            self.printed = None;
            self.set(next, digest)?;
        }
        Ok(())
    }

    /// As [`printed`](Self::printed), at the end: the disk is waited for.
    fn end(&mut self, region: &Region, next: Seq, digest: Digest) -> Result<()> {
        if is_durable(region, next, Instant::now() + LAST_MARK) { self.set(next, digest) } else { Ok(()) }
    }

    fn set(&mut self, next: Seq, digest: Digest) -> Result<()> {
        if self.bookmark.next() != Some(next) {
            // A loss of power leaves no bookmark that is ahead of what is printed.
            self.file.sync_data().context("cannot sync what is printed")?;
            self.bookmark.keep(next, digest)?;
        }
        Ok(())
    }
}

/// Whether all before an index is on the disk, or nobody would say so; where nothing is synced, whether it is written. Of a
/// region that is lost nobody knows.
fn is_durable(region: &Region, next: Seq, until: Instant) -> bool {
    let last = Seq::new(next.get().saturating_sub(1));
    loop {
        match region.wait_durable(last, until) {
            Err(DurableError::Late { .. } | DurableError::Lost(_)) => return false,
            Err(DurableError::NotSynced { .. })
                if region.journal().is_some_and(|journal| journal.written < next) =>
            {
                if Instant::now() >= until {
                    return false;
                }
                thread::sleep(WRITES);
            }
            _ => return true,
        }
    }
}

/// What is printed next, and how far it was.
struct Stage {
    history: Option<CatchUp>,
    worker: Option<Worker>,
    first: Seq,
    next: Seq,
    digest: Digest,
}

impl Stage {
    fn of_history(history: CatchUp) -> Stage {
        let (first, digest) = (history.next(), history.digest());
        Stage { history: Some(history), worker: None, first, next: first, digest }
    }

    fn of_worker(worker: Worker) -> Stage {
        let (first, next, digest) = (worker.first(), worker.next(), worker.digest());
        Stage { history: None, worker: Some(worker), first, next, digest }
    }

    /// Prints until there is a reason to end, and says which.
    fn print(
        &mut self,
        printer: &mut Printer,
        mut mark: Option<&mut Mark>,
        region: &Region,
        stop: &Stop,
    ) -> Result<&'static str> {
        let end = self.print_all(printer, &mut mark, region, stop)?;
        // All of it is printed: what failed has come back above.
        mark.map_or(Ok(()), |mark| mark.end(region, self.next, self.digest))?;
        Ok(end)
    }

    fn print_all(
        &mut self,
        printer: &mut Printer,
        mark: &mut Option<&mut Mark>,
        region: &Region,
        stop: &Stop,
    ) -> Result<&'static str> {
        if let Some(mut history) = self.history.take() {
            let over = printer.print_history(&mut history, mark, region, stop);
            (self.next, self.digest) = (history.next(), history.digest());
            if let Some(reason) = over? {
                return Ok(reason);
            }
            self.worker = Some(history.join(|event| printer.take(event))?);
            printer.flush()?;
            printer.printed = None;
        }
        let Some(worker) = &mut self.worker else { return Ok("failed") };
        let end = printer.print(worker, mark, region, stop);
        (self.next, self.digest) = (worker.next(), worker.digest());
        end
    }
}

struct Printer {
    out: Sink,
    /// What that is, for messages.
    to: String,
    /// Commands still to print.
    left: u64,
    /// Whether it reports what it printed.
    reports: bool,
    /// Fingerprint of what it printed for the index that it has had last, if that is not reported yet.
    printed: Option<u64>,
    commands: u64,
    bytes: u64,
    /// Why it is over.
    end: Option<Result<&'static str>>,
}

impl Printer {
    /// Prints the history, until it is time to join; a reason to end before that.
    fn print_history(
        &mut self,
        history: &mut CatchUp,
        mark: &mut Option<&mut Mark>,
        region: &Region,
        stop: &Stop,
    ) -> Result<Option<&'static str>> {
        while self.left > 0 && !history.is_near() {
            history.poll_batch(self.limit(BATCH), |event| self.take(event))?;
            match self.end.take() {
                Some(Err(error)) => return Err(error),
                // Behind an end the order may have been opened again.
                end => self.end = end,
            }
            self.flush()?;
            mark.as_mut().map_or(Ok(()), |mark| mark.printed(region, history.next(), history.digest()))?;
            if stop.asked() {
                return Ok(Some("signal"));
            }
        }
        let end = self.end.take().transpose()?.or((self.left == 0).then_some("count"));
        // Whoever opened it again says so in the order, behind what was read.
        Ok(end.filter(|&end| end != CLOSED || region.snapshot().state == State::Closed))
    }

    fn flush(&mut self) -> Result<()> {
        self.out.flush().with_context(|| format!("cannot write {}", self.to))
    }

    /// Never more than is left: what is polled counts as received.
    fn limit(&self, most: usize) -> usize {
        most.min(usize::try_from(self.left).unwrap_or(most))
    }

    /// Prints until there is a reason to end, and says which.
    fn print(
        &mut self,
        worker: &mut Worker,
        mark: &mut Option<&mut Mark>,
        region: &Region,
        stop: &Stop,
    ) -> Result<&'static str> {
        let mut reason = if self.left == 0 { Some(Ok("count")) } else { None };
        while reason.is_none() {
            // A report is for one index.
            let limit = self.limit(if self.reports { 1 } else { BATCH });
            if worker.poll_batch(limit, |event| self.take(event))? == 0 {
                match worker.recv_deadline(Instant::now() + TICK) {
                    Ok(event) => event.into_iter().for_each(|event| self.take(event)),
                    // Without the event that says so: there are no more indexes.
                    Err(WorkerError::Closed) => self.end = self.end.take().or(Some(Ok(CLOSED))),
                    Err(error) => return Err(error.into()),
                }
            }
            reason = self.end.take().or_else(|| stop.asked().then_some(Ok("signal")));
            if !matches!(reason, Some(Err(_))) {
                self.flush()?;
                if let Some(printed) = self.printed.take().filter(|_| self.reports) {
                    worker.report(printed)?;
                }
                worker.release();
                mark.as_mut().map_or(Ok(()), |mark| mark.printed(region, worker.next(), worker.digest()))?;
            }
        }
        reason.unwrap_or(Ok("count"))
    }

    fn take(&mut self, event: Event<'_>) {
        self.printed = Some(match event {
            // Of one with parts, what all get.
            Event::Command(command) => payload_digest(command.payload),
            _ => 0,
        });
        match event {
            // A batch cannot be left in its middle: after a failed write the rest is dropped.
            Event::Command(command) if self.end.is_none() => {
                self.commands += 1;
                self.left -= 1;
                let written = [command.payload, command.part.unwrap_or_default(), b"\n"]
                    .into_iter()
                    .try_for_each(|bytes| self.out.write_all(bytes));
                self.bytes += (command.payload.len() + command.part.map_or(0, <[u8]>::len)) as u64;
                if let Err(error) = written {
                    let what = format!("cannot write {}", self.to);
                    self.end = Some(Err(anyhow::Error::new(error).context(what)));
                } else if self.left == 0 {
                    self.end = Some(Ok("count"));
                }
            }
            Event::Closed { .. } if self.end.is_none() => self.end = Some(Ok(CLOSED)),
            Event::Poisoned { .. } if self.end.is_none() => self.end = Some(Ok(POISONED)),
            // It was reopened already: what comes now is to be printed, too.
            Event::Opened { .. } if matches!(self.end, Some(Ok(CLOSED))) => self.end = None,
            _ => {}
        }
    }
}

#[derive(Debug, Serialize)]
struct WorkerReport {
    name: String,
    first: u64,
    next: u64,
    digest: String,
    commands: u64,
    bytes: u64,
    /// `closed`, `count`, `signal`, `poisoned` or `failed`.
    end: &'static str,
}

impl Report for WorkerReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}: next {} digest {} ({})", self.name, self.next, self.digest, self.end)
    }
}
