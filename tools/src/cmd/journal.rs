//! `seriatim journal`: a region's order on disk; whether it is whole, and what there is of it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;
use seriatim::journal::{
    self, Audit, Duty, Journal, JournalOptions, OnFailure, Replay, ReplayError, SyncPolicy,
};

use super::follow::{FollowArgs, PromoteArgs};
use super::prune::{self, Limits};
use crate::Outcome;
use crate::args::{seconds, size, some, span, sync_policy};
use crate::output::{self, Report, complain, many};
use crate::progress::Progress;
use crate::signal::Stop;
use crate::{log, open};

const EXAMPLES: &str = "\
Examples:
  seriatim journal /dev/shm/orders /var/lib/orders &
  seriatim journal /dev/shm/orders /var/lib/orders --sync 0.1 --segment-bytes 256M
  seriatim journal /dev/shm/orders /var/lib/orders --keep-bytes 10G --keep-for 7d
  seriatim journal verify /var/lib/orders
  seriatim journal stat /var/lib/orders
  seriatim journal prune /var/lib/orders --keep-for 7d --dry-run
  seriatim journal follow /var/lib/orders /mnt/spare/orders &
  seriatim replay /var/lib/orders --from 1000

It prints one line once it writes. It gates: what it has not written stays in the region. When it ends, however it ends,
its gate stays (but with --leave), and the order waits for the next `journal` of that name, which goes on where this one
was; without one, `sequence --without-journal` lets the order go on, and --go-on never has it wait. SIGTERM or SIGINT
makes it write what is there, seal the segment, and end. With a --keep it prunes segments, each time that one is full, a
few at a time; what fails there is in the region's error log. Snapshots stay until `journal prune` removes them.

Exit code: 0 ended by a signal or with the order, 2 could not go on. Of `verify`: 0 when all of it is whole,
snapshots and bookmarks as well, 1 when something is not, 2 when it could not be looked at.";

const VERIFY_EXIT: &str = "\
Exit code: 0 all of it is whole, snapshots and bookmarks as well, 1 something is not, 2 it could not be looked at.";

const STAT_EXIT: &str = "\
It looks at the ends of segments, not at all that is in them: that is for `journal verify`.

Exit code: 0 done, 1 something is damaged or cannot be read, 2 it could not be looked at.";

/// Write a region's order to disk, every command of it, synced before it counts as durable.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    look: Option<Look>,
    #[command(flatten)]
    write: Option<WriteArgs>,
}

/// Looking at a journal, and following one.
#[derive(Debug, Subcommand)]
enum Look {
    /// Check every checksum, every digest, and that nothing is missing
    #[command(after_help = VERIFY_EXIT)]
    Verify(DirArgs),
    /// Say what indexes a journal has, how it ends, what snapshots and bookmarks there are, and for which of them segments
    /// stay; of a standby also how far it is behind
    #[command(after_help = STAT_EXIT)]
    Stat(DirArgs),
    Follow(FollowArgs),
    Promote(PromoteArgs),
    Prune(prune::PruneArgs),
    Forget(prune::ForgetArgs),
}

#[derive(Debug, ClapArgs)]
struct DirArgs {
    /// The journal's directory
    dir: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct WriteArgs {
    /// The region
    path: PathBuf,
    /// The directory to write into; it is made if it is not there
    dir: PathBuf,
    /// Name under which it gates
    #[arg(long, default_value = "journal")]
    name: String,
    /// When to sync what is written: `group`, one sync for all that has come by then; a time in seconds; or `off`, when
    /// the system likes, and then nothing counts as durable
    #[arg(long, value_name = "WHEN", default_value = "group", value_parser = sync_policy)]
    sync: SyncPolicy,
    /// Disk space to reserve for a segment [K, M and G are taken]
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = size)]
    segment_bytes: u64,
    /// Prune: keep at most so many bytes of segments [K, M and G are taken]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    keep_bytes: Option<u64>,
    /// Prune: keep segments that ended at most so long ago [seconds; m, h and d are taken]
    #[arg(long, value_name = "TIME", value_parser = span)]
    keep_for: Option<Duration>,
    /// Prune: keep what follows so many snapshots, the newest; at least 1 [default: 2]
    #[arg(long, value_name = "N", value_parser = some)]
    keep_snapshots: Option<usize>,
    /// Wait so long for the region to be there and served: it may be being restored
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    wait_for: Duration,
    /// Let the order go on without this journal when it cannot write or has died
    #[arg(long)]
    go_on: bool,
    /// At the end give the gate up, so that the order goes on without a journal
    #[arg(long)]
    leave: bool,
    /// Print the reports as JSON, one a line
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        match (self.look, self.write) {
            (Some(Look::Verify(args)), _) => verify(&args),
            (Some(Look::Stat(args)), _) => stat(&args),
            (Some(Look::Prune(args)), _) => prune::prune(&args),
            (Some(Look::Forget(args)), _) => prune::forget(&args),
            (Some(Look::Follow(args)), _) => args.run(),
            (Some(Look::Promote(args)), _) => args.run(),
            (None, Some(args)) => write(&args),
            (None, None) => bail!("a region and a directory are wanted"),
        }
    }
}

fn write(args: &WriteArgs) -> Result<Outcome> {
    log::to_standard_error();
    let stop = Stop::install()?;
    let region = open::to_attach_within(&args.path, false, args.wait_for)?;
    let on_failure = if args.go_on { OnFailure::GoOn } else { OnFailure::Hold };
    let mut options = JournalOptions::new()
        .name(&args.name)
        .segment_bytes(args.segment_bytes)
        .sync(args.sync)
        .on_failure(on_failure);
    let WriteArgs { keep_bytes, keep_for, keep_snapshots, .. } = *args;
    let limits = Limits { keep_bytes, keep_for, keep_snapshots };
    if limits.is_any() {
        options = options.retention(limits.retention());
    }
    let mut journal = Journal::open(&region, &args.dir, &options)?;
    if let Some(cut) = journal.cut() {
        complain(format_args!("{cut}"));
    }
    let (region, dir) = (args.path.display().to_string(), args.dir.display().to_string());
    let (pid, next) = (std::process::id(), journal.next().get());
    output::print(&Writing { region, dir: dir.clone(), pid, next }, args.json)?;
    let ended = journal.run(|| stop.asked());
    let next = journal.next().get();
    let sealed = ended.and_then(|()| if args.leave { journal.leave() } else { journal.close() });
    sealed.with_context(|| format!("the journal in {dir} ended before index {next}"))?;
    output::print(&Sealed { sealed: dir, next }, args.json)?;
    Ok(Outcome::Done)
}

#[derive(Debug, Serialize)]
struct Writing {
    region: String,
    dir: String,
    pid: u32,
    /// The index that it writes first.
    next: u64,
}

impl Report for Writing {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Writing { region, dir, pid, next } = self;
        writeln!(out, "writing {region} into {dir} as pid {pid}, from index {next} on")
    }
}

#[derive(Debug, Serialize)]
struct Sealed {
    sealed: String,
    /// The index behind the last one that is there.
    next: u64,
}

impl Report for Sealed {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "sealed {} at index {}", self.sealed, self.next)
    }
}

fn verify(args: &DirArgs) -> Result<Outcome> {
    let segments = Replay::open(&args.dir).map_or(0, |replay| replay.segments() as u64);
    let bar = Progress::new(segments, "segments", args.json);
    let found = journal::verify_with(&args.dir, |done, _| bar.done(done as u64))?;
    bar.clear();
    let report = VerifyReport::new(&args.dir, &found);
    output::print(&report, args.json)?;
    Ok(if report.sound { Outcome::Done } else { Outcome::Problem })
}

#[derive(Debug, Serialize)]
struct VerifyReport {
    dir: String,
    sound: bool,
    segments: usize,
    records: u64,
    first: u64,
    /// The index behind the last record that is right, and the digest of all before it.
    end: u64,
    digest: String,
    snapshots: usize,
    bookmarks: usize,
    problems: Vec<String>,
    /// What is not whole at the end, or is being written.
    tail: Option<String>,
}

impl VerifyReport {
    fn new(dir: &Path, found: &Audit) -> VerifyReport {
        VerifyReport {
            dir: dir.display().to_string(),
            sound: found.is_sound(),
            segments: found.segments,
            records: found.records,
            first: found.first.get(),
            end: found.end.get(),
            digest: found.digest.to_string(),
            snapshots: found.snapshots,
            bookmarks: found.bookmarks,
            problems: found.problems.iter().map(ToString::to_string).collect(),
            tail: found.cut.as_ref().map(ToString::to_string),
        }
    }
}

impl Report for VerifyReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let VerifyReport { dir, segments, records, first, end, digest, .. } = self;
        writeln!(
            out,
            "{dir}: indexes {first}..{end}, digest {digest}, {} in {}",
            many(*records, "record"),
            many(*segments, "segment")
        )?;
        let (snapshots, bookmarks) = (many(self.snapshots, "snapshot"), many(self.bookmarks, "bookmark"));
        writeln!(out, "beside it {snapshots} and {bookmarks}")?;
        for problem in &self.problems {
            writeln!(out, "problem: {problem}")?;
        }
        if let Some(tail) = &self.tail {
            writeln!(out, "{tail}")?;
        }
        writeln!(out, "{}", if self.sound { "all of it holds" } else { "it does not hold" })
    }
}

fn stat(args: &DirArgs) -> Result<Outcome> {
    let replay = match Replay::open(&args.dir) {
        Err(error @ ReplayError::Damaged(_)) => {
            complain(format_args!("{error}"));
            return Ok(Outcome::Problem);
        }
        opened => opened?,
    };
    let (end, beside) = (replay.end(), prune::Beside::of(&args.dir)?);
    let (standby_of, source_end, superseded_by) = match Duty::of(&args.dir)? {
        // A source that cannot be looked at is no reason not to say the rest.
        Duty::Standby { source } => {
            let source_end = Replay::open(&source).ok().map(|replay| replay.end().get());
            (Some(source.display().to_string()), source_end, None)
        }
        Duty::Superseded { by, .. } => (None, None, Some(by.display().to_string())),
        _ => (None, None, None),
    };
    let report = StatReport {
        standby_of,
        source_end,
        superseded_by,
        dir: args.dir.display().to_string(),
        region: replay.origin().uuid.to_string(),
        segments: replay.segments(),
        first: replay.first().get(),
        end: end.get(),
        sealed: !replay.is_open_ended(),
        tail: replay.cut().map(ToString::to_string),
        digest_of: replay.origin().digest_of.to_string(),
        digest: replay.end_digest().to_string(),
        beside,
    };
    output::print(&report, args.json)?;
    Ok(if report.beside.is_sound() { Outcome::Done } else { Outcome::Problem })
}

#[derive(Debug, Serialize)]
struct StatReport {
    dir: String,
    /// The number of the region whose order it is.
    region: String,
    segments: usize,
    first: u64,
    /// The index behind the last one, and the digest of all before it.
    end: u64,
    digest: String,
    digest_of: String,
    /// Whether its last segment is sealed; if not, a journal writes there, or died.
    sealed: bool,
    /// What is not whole at its end, or is being written.
    tail: Option<String>,
    /// The directory that it follows as a standby, and where that ends, if it can be looked at.
    standby_of: Option<String>,
    source_end: Option<u64>,
    /// The directory of the standby that took its place.
    superseded_by: Option<String>,
    #[serde(flatten)]
    beside: prune::Beside,
}

impl Report for StatReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let StatReport { dir, region, segments, first, end, digest, digest_of, sealed, .. } = self;
        writeln!(out, "{dir}: the order of region {region}")?;
        writeln!(out, "indexes: {first}..{end} in {}", many(*segments, "segment"))?;
        writeln!(out, "digest: {digest}, of: {digest_of}")?;
        writeln!(out, "its last segment is {}", if *sealed { "sealed" } else { "open" })?;
        match (&self.standby_of, self.source_end) {
            (Some(source), Some(there)) if there < *end => {
                let ahead = many(end - there, "index");
                writeln!(out, "standby of {source}, {ahead} ahead of it, which ends at {there}")?;
            }
            (Some(source), Some(there)) => {
                writeln!(out, "standby of {source}, {} behind it", many(there - end, "index"))?;
            }
            (Some(source), None) => writeln!(out, "standby of {source}, which cannot be looked at")?,
            (None, _) => {}
        }
        if let Some(by) = &self.superseded_by {
            writeln!(out, "superseded by {by}")?;
        }
        self.tail.iter().try_for_each(|tail| writeln!(out, "{tail}"))?;
        self.beside.text(out)
    }
}
