//! `seriatim journal follow` and `promote`: a standby of a journal, and its taking the place of that.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use seriatim::journal::{Lag, Promoted, Standby, StandbyError, StandbyOptions, SyncPolicy};

use crate::Outcome;
use crate::args::{seconds, size, sync_policy};
use crate::log;
use crate::output::{self, Report, complain};
use crate::progress::Progress;
use crate::signal::Stop;

const FOLLOW_EXAMPLES: &str = "\
Examples:
  seriatim journal follow /var/lib/orders /mnt/spare/orders &
  seriatim journal follow /net/host-a/orders /var/lib/orders --sync 0.1 --every 10 --json
  seriatim journal promote /mnt/spare/orders         when the first one is gone

It prints one line once it follows, and then how far it is, when that has changed. It holds nobody up, and nobody waits
for it: what it has not got when the source is lost is lost. A source that is away, or is being mended, is waited for, which
is said once. After a restart it goes on where it was. SIGTERM or SIGINT makes it write what it has, seal the segment, and
end.

It keeps a bookmark in the source's directory: pruning there leaves what it still needs, also while it does not run, until
it is promoted or `journal forget SOURCE NAME` says that it does not come back; `journal stat SOURCE` shows it. In a
directory that cannot be written to it keeps none, which is said once. The bookmarks of readers go along into its own
directory, about once a second, each when what comes before it is on the disk there.

It ends when all is taken and the source's directory says that another standby took its place: follow that one then. With
--adopt it refuses a directory that has something which the source has not: that would be lost.

Exit code: 0 ended by a signal, 1 the source is of another history, no longer has what comes next, has less than what is to
be adopted, or was superseded by another standby, 2 could not go on.";

/// Follow a journal into another directory: a standby, which can take its place
#[derive(Debug, clap::Args)]
#[command(after_help = FOLLOW_EXAMPLES)]
pub(crate) struct FollowArgs {
    /// The directory of the journal to follow
    source: PathBuf,
    /// The directory to write into; it is made if it is not there
    dir: PathBuf,
    /// When to sync what is written: `group`, with each write; a time in seconds; or `off`, when the system likes
    #[arg(long, value_name = "WHEN", default_value = "group", value_parser = sync_policy)]
    sync: SyncPolicy,
    /// Disk space to reserve for a segment [K, M and G are taken]
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = size)]
    segment_bytes: u64,
    /// Say how far it is at most so often
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    every: Duration,
    /// Go on in a directory whose journal is no standby's: a copy of the source, or one that was superseded by it. The
    /// source has to have all that it has
    #[arg(long)]
    adopt: bool,
    /// Name of its bookmark in the source's directory [default: standby-, a number for the path of DIR, and its name]
    #[arg(long)]
    name: Option<String>,
    /// Print the reports as JSON, one a line
    #[arg(long)]
    json: bool,
}

impl FollowArgs {
    pub(crate) fn run(&self) -> Result<Outcome> {
        log::to_standard_error();
        let stop = Stop::install()?;
        let mut options =
            StandbyOptions::new().segment_bytes(self.segment_bytes).sync(self.sync).adopt(self.adopt);
        if let Some(name) = &self.name {
            options = options.name(name);
        }
        let mut standby = match Standby::open(&self.source, &self.dir, &options) {
            Err(error) => return refused(error),
            Ok(standby) => standby,
        };
        if let Some(cut) = standby.cut() {
            complain(format_args!("{cut}"));
        }
        let (source, dir) = (standby.source().display().to_string(), self.dir.display().to_string());
        let (pid, next) = (std::process::id(), standby.next().get());
        let bookmark = standby.bookmark().map(Into::into);
        output::print(&Following { source, dir: dir.clone(), pid, next, bookmark }, self.json)?;
        let mut teller = Teller::new(self, standby.lag());
        let ended = standby.run(|lag| teller.tell(lag) || stop.asked());
        teller.said?;
        let next = standby.next().get();
        if let Err(error) = ended {
            complain(format_args!("the standby in {dir} ended before index {next}"));
            return refused(error);
        }
        standby.close().with_context(|| format!("the standby in {dir} ended before index {next}"))?;
        output::print(&Sealed { sealed: dir, next }, self.json)?;
        Ok(Outcome::Done)
    }
}

/// What is wrong with the history is a finding; the rest kept it from running.
fn refused(error: StandbyError) -> Result<Outcome> {
    match error {
        StandbyError::OtherHistory { .. }
        | StandbyError::Ahead { .. }
        | StandbyError::Pruned { .. }
        | StandbyError::Superseded { .. }
        | StandbyError::Chained { .. }
        | StandbyError::Alive { .. } => {
            complain(format_args!("{error}"));
            Ok(Outcome::Problem)
        }
        error => Err(error.into()),
    }
}

/// Says how far a standby is.
struct Teller {
    every: Duration,
    json: bool,
    last: Lag,
    told: Option<Instant>,
    /// While it catches up with what was there.
    bar: Progress,
    said: Result<()>,
}

impl Teller {
    fn new(args: &FollowArgs, last: Lag) -> Teller {
        let behind = last.indexes().unwrap_or(0);
        let bar = Progress::new(behind, "indexes", args.json);
        Teller { every: args.every, json: args.json, last, told: None, bar, said: Ok(()) }
    }

    /// Says it if it is time to; whether that could not be said.
    fn tell(&mut self, lag: &Lag) -> bool {
        match lag.indexes() {
            Some(0) | None => self.bar.clear(),
            Some(behind) => self.bar.left(behind),
        }
        let is_time = self.told.is_none_or(|told| told.elapsed() >= self.every);
        if is_time && (self.told.is_none() || *lag != self.last) {
            self.said = self.bar.aside(|| output::print(&LagReport::new(lag), self.json));
            (self.last, self.told) = (lag.clone(), Some(Instant::now()));
        }
        self.said.is_err()
    }
}

#[derive(Debug, Serialize)]
struct Following {
    source: String,
    dir: String,
    pid: u32,
    /// The index that it writes first.
    next: u64,
    /// The name of its bookmark in the source's directory; none if it could not be set.
    bookmark: Option<String>,
}

impl Report for Following {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Following { source, dir, pid, next, bookmark } = self;
        write!(out, "following {source} into {dir} as pid {pid}, from index {next} on")?;
        match bookmark {
            Some(name) => writeln!(out, ", with the bookmark {name:?} there"),
            None => writeln!(out, ", without a bookmark there"),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct LagReport {
    /// The index behind the last one that the source had; none if it could not be looked at.
    source_end: Option<u64>,
    /// The index that comes next here, and before which all is on the disk for good.
    next: u64,
    durable: u64,
    /// How many indexes it is behind, or has that the source has not.
    behind: Option<u64>,
    ahead: Option<u64>,
    /// What it cannot do.
    failing: Option<String>,
}

impl LagReport {
    pub(crate) fn new(lag: &Lag) -> LagReport {
        LagReport {
            source_end: lag.source_end.map(|end| end.get()),
            next: lag.own_end.get(),
            durable: lag.durable.get(),
            behind: lag.indexes(),
            ahead: lag.ahead(),
            failing: lag.failing.clone(),
        }
    }
}

impl Report for LagReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let LagReport { source_end, next, durable, behind, ahead, failing } = self;
        match (source_end, behind) {
            (Some(end), _) if ahead.is_some_and(|ahead| ahead > 0) => {
                let ahead = ahead.unwrap_or(0);
                write!(out, "{ahead} ahead: {next}, and the source ends at {end}; durable is {durable}")?;
            }
            (Some(end), Some(behind)) => {
                write!(out, "{behind} behind: {next} of {end}, durable is {durable}")?
            }
            _ => write!(out, "at {next}, durable is {durable}; how far the source is, is not known")?,
        }
        writeln!(out, "{}", if failing.is_some() { " (it cannot follow just now)" } else { "" })
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

const PROMOTE_EXAMPLES: &str = "\
Examples:
  seriatim journal promote /mnt/spare/orders
  seriatim journal promote /mnt/spare/orders --force            the source's disk is gone
  seriatim sequence /dev/shm/orders --journal /mnt/spare/orders &
  seriatim journal /dev/shm/orders /mnt/spare/orders &

End the `follow` that writes there first (SIGTERM). It takes what the source still has, seals, and marks the source's
directory as superseded: no journal goes on there, and no region is restored from it. The bookmarks of the source's readers
have gone along before: `worker --resume` goes on in the new directory; one that could not is named. That is all it can
do: whoever serves the old region, and is attached to it, has to be ended by you, and its file removed, before the new one
is served.
Afterwards the old directory can become the standby of the new one (`follow NEW OLD --adopt`).

Snapshots do not go along: they stay in the source's directory, where `journal stat` lists them.

It refuses while a journal writes the source, when another standby took the source's place already, when the source is
itself a standby (promote that one), when it is of another history or pruning there has overtaken the standby, and when the
source cannot be read or marked. With --force it goes on all the same, and says what may be lost, and where two histories
part if that can be seen; that only one of all directories is gone on with is then for you to see to.

Exit code: 0 promoted, and nothing that the source had is missing; 1 promoted by force, or without one of the source's
bookmarks, or refused because a journal writes the source, because the source was superseded, is a standby, is of another
history, or no longer has what comes next; 2 not promoted, also where the source cannot be read or a `follow` still writes
into the standby's directory.";

/// Make a standby's directory one that a region goes on with, in the place of what it followed
#[derive(Debug, clap::Args)]
#[command(after_help = PROMOTE_EXAMPLES)]
pub(crate) struct PromoteArgs {
    /// The standby's directory
    dir: PathBuf,
    /// The directory that it follows, if that lies elsewhere now [default: where it was]
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Also while a journal writes the source, or when that is no primary, has another history or less than is wanted, or
    /// cannot be read or marked as superseded
    #[arg(long)]
    force: bool,
    /// Name of its bookmark in the source's directory, which is removed: that of `follow --name`. Without it that one is
    /// taken for a reader's, goes along, and holds segments until `journal forget`
    #[arg(long)]
    name: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl PromoteArgs {
    pub(crate) fn run(&self) -> Result<Outcome> {
        log::to_standard_error();
        match self.promote() {
            Ok(promoted) => {
                let report = PromoteReport::new(&promoted);
                output::print(&report, self.json)?;
                Ok(if promoted.trouble.is_some() || !promoted.left.is_empty() {
                    Outcome::Problem
                } else {
                    Outcome::Done
                })
            }
            Err(error) => refused(error),
        }
    }

    fn promote(&self) -> Result<Promoted, StandbyError> {
        // For what is still to be taken: the segment is sealed at once.
        let mut options = StandbyOptions::new().segment_bytes(4 << 20).promotes(true);
        if let Some(name) = &self.name {
            options = options.name(name);
        }
        let standby = match &self.source {
            Some(source) => Standby::open(source, &self.dir, &options)?,
            None => Standby::resume(&self.dir, &options)?,
        };
        standby.promote(self.force)
    }
}

#[derive(Debug, Serialize)]
struct PromoteReport {
    promoted: String,
    followed: String,
    /// The index at which a region goes on, and the digest of all before it.
    next: u64,
    digest: String,
    /// Records that it took from the source first.
    taken: u64,
    source_end: Option<u64>,
    /// The source's directory says that it is superseded.
    fenced: bool,
    /// Why it may lack something.
    trouble: Option<String>,
    /// The source has another history, and the index from which on, if it is known.
    diverged: bool,
    parted_at: Option<u64>,
    /// Of each bookmark of the source that did not go along: which, and why.
    left: Vec<String>,
    #[serde(skip)]
    text: String,
}

impl PromoteReport {
    fn new(promoted: &Promoted) -> PromoteReport {
        PromoteReport {
            promoted: promoted.dir.display().to_string(),
            followed: promoted.followed.display().to_string(),
            next: promoted.next.get(),
            digest: promoted.digest.to_string(),
            taken: promoted.taken,
            source_end: promoted.source_end.map(|end| end.get()),
            fenced: promoted.is_fenced,
            trouble: promoted.trouble.clone(),
            diverged: promoted.has_diverged,
            parted_at: promoted.parted_at.map(|at| at.get()),
            left: promoted.left.clone(),
            text: promoted.to_string(),
        }
    }
}

impl Report for PromoteReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.text)
    }
}
