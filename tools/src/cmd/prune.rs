//! `seriatim journal prune` and `forget`: what a journal no longer has to have, and who still needs what.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use serde::Serialize;
use seriatim::Seq;
use seriatim::journal::{self, Bookmark, Held, Pruned, Retention, SnapshotError, Snapshots};

use crate::Outcome;
use crate::args::{size, some, span};
use crate::output::{self, Report, complain, many};

const EXAMPLES: &str = "\
Examples:
  seriatim journal prune /var/lib/orders --keep-bytes 10G --dry-run
  seriatim journal prune /var/lib/orders --keep-for 7d --keep-snapshots 3
  seriatim journal forget /var/lib/orders billing

Also of a journal that is being written. Whole segments go, from the first on, as soon as they meet one of the limits; the
last one stays. What a snapshot that is kept needs, for what follows it, stays, and what a reader needs that has a bookmark;
who that is is printed. Snapshots go before segments do; one that is damaged, or of another history, stays and is told.

Exit code: 0 done, 1 done but for snapshots that are damaged or of no use, 2 it could not be done: also where a bookmark
cannot be read, and then no segment goes.";

/// Up to where a journal is kept.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(super) struct Limits {
    /// Keep at most so many bytes of segments [K, M and G are taken]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(super) keep_bytes: Option<u64>,
    /// Keep segments that ended at most so long ago [seconds; m, h and d are taken]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(super) keep_for: Option<Duration>,
    /// Keep so many snapshots, the newest; at least 1 [default: 2]
    #[arg(long, value_name = "N", value_parser = some)]
    pub(super) keep_snapshots: Option<usize>,
}

impl Limits {
    pub(super) fn retention(&self) -> Retention {
        let mut retention = Retention::new();
        if let Some(count) = self.keep_snapshots {
            retention = retention.keep_snapshots(count);
        }
        if let Some(bytes) = self.keep_bytes {
            retention = retention.keep_bytes(bytes);
        }
        if let Some(time) = self.keep_for {
            retention = retention.keep_for(time);
        }
        retention
    }

    /// Whether there is one.
    pub(super) fn is_any(&self) -> bool {
        self.keep_bytes.is_some() || self.keep_for.is_some() || self.keep_snapshots.is_some()
    }
}

/// Remove segments that are too old or too many, and snapshots that newer ones take the place of
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(super) struct PruneArgs {
    /// The journal's directory
    dir: PathBuf,
    #[command(flatten)]
    limits: Limits,
    /// Say what would go, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn prune(args: &PruneArgs) -> Result<Outcome> {
    let retention = args.limits.retention();
    let pruned = if args.dry_run {
        journal::would_prune(&args.dir, &retention)?
    } else {
        journal::prune(&args.dir, &retention)?
    };
    let report = PruneReport::new(&args.dir, args.dry_run, &pruned);
    output::print(&report, args.json)?;
    Ok(if report.odd.is_empty() { Outcome::Done } else { Outcome::Problem })
}

#[derive(Debug, Serialize)]
struct PruneReport {
    dir: String,
    /// Nothing was removed: this is what would go.
    dry_run: bool,
    segments: Vec<String>,
    bytes: u64,
    /// Indexes of snapshots that went.
    snapshots: Vec<u64>,
    /// What somebody left who died.
    leftovers: Vec<String>,
    /// The first index that is left, and how many bytes of segments are.
    first: u64,
    bytes_left: u64,
    held: Option<HeldReport>,
    /// Snapshots that are damaged, or of no use beside this journal.
    odd: Vec<String>,
}

#[derive(Debug, Serialize)]
struct HeldReport {
    by: String,
    /// The index from which on it needs all.
    at: u64,
    segments: usize,
    bytes: u64,
}

impl HeldReport {
    fn new(held: &Held) -> HeldReport {
        let Held { by, at, segments, bytes, .. } = *held;
        HeldReport { by: by.to_string(), at: at.get(), segments, bytes }
    }

    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let HeldReport { by, at, segments, bytes } = self;
        let stay = if *segments == 1 { "stays" } else { "stay" };
        let segments = many(*segments, "segment");
        writeln!(out, "{by} needs index {at} and what follows: {segments}, {bytes} B, {stay} for it")
    }
}

impl PruneReport {
    fn new(dir: &Path, dry_run: bool, pruned: &Pruned) -> PruneReport {
        let held = pruned.held.as_ref().map(HeldReport::new);
        PruneReport {
            dir: dir.display().to_string(),
            dry_run,
            segments: pruned.segments.iter().map(|segment| segment.path.display().to_string()).collect(),
            bytes: pruned.segments.iter().map(|segment| segment.bytes).sum(),
            snapshots: pruned.snapshots.iter().map(|seq| seq.get()).collect(),
            leftovers: pruned.leftovers.iter().map(|path| path.display().to_string()).collect(),
            first: pruned.first.get(),
            bytes_left: pruned.bytes_left,
            held,
            odd: pruned.odd.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Report for PruneReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let PruneReport { dir, segments, bytes, snapshots, first, bytes_left, .. } = self;
        let (went, is) = if self.dry_run { ("would go", "would be") } else { ("went", "is") };
        writeln!(
            out,
            "{dir}: {} {went}, {bytes} B, and {}",
            many(segments.len(), "segment"),
            many(snapshots.len(), "snapshot")
        )?;
        for leftover in &self.leftovers {
            writeln!(out, "left by somebody who died, {went}: {leftover}")?;
        }
        writeln!(out, "the first index {is} {first}, {bytes_left} B of segments left")?;
        self.held.iter().try_for_each(|held| held.text(out))?;
        self.odd.iter().try_for_each(|odd| writeln!(out, "left alone: {odd}"))
    }
}

const FORGET_EXAMPLES: &str = "\
Examples:
  seriatim journal forget /var/lib/orders billing
  seriatim journal forget /var/lib/orders --snapshot 5000

Exit code: 0 done, 1 there is no such bookmark or snapshot, 2 it could not be done.";

/// Remove the bookmark of a reader that does not come back, or a snapshot: nothing is kept for it any more
#[derive(Debug, ClapArgs)]
#[command(after_help = FORGET_EXAMPLES)]
pub(super) struct ForgetArgs {
    /// The journal's directory
    dir: PathBuf,
    /// The reader's name
    #[arg(required_unless_present = "snapshot", conflicts_with = "snapshot")]
    name: Option<String>,
    /// The index of a snapshot
    #[arg(long, value_name = "N")]
    snapshot: Option<u64>,
}

pub(super) fn forget(args: &ForgetArgs) -> Result<Outcome> {
    match (&args.name, args.snapshot) {
        (Some(name), _) => {
            if !Bookmark::forget(&args.dir, name)? {
                complain(format_args!("there is no bookmark {name:?} in {}", args.dir.display()));
                return Ok(Outcome::Problem);
            }
        }
        (None, Some(at)) => match Snapshots::open(&args.dir)?.remove(Seq::new(at)) {
            Err(error @ SnapshotError::NotThere { .. }) => {
                complain(format_args!("{error}"));
                return Ok(Outcome::Problem);
            }
            removed => removed?,
        },
        (None, None) => bail!("the name of a reader or the index of a snapshot is wanted"),
    }
    Ok(Outcome::Done)
}

/// What lies beside a journal's segments.
#[derive(Debug, Default, Serialize)]
pub(super) struct Beside {
    snapshots: Vec<SnapshotRow>,
    bookmarks: Vec<BookmarkRow>,
    /// Snapshots and bookmarks that cannot be read, and what else keeps it from being known what can be pruned.
    unreadable: Vec<String>,
    /// Who needs the most of those segments that could be pruned, if the two newest snapshots are kept.
    held: Option<HeldReport>,
}

#[derive(Debug, Serialize)]
struct SnapshotRow {
    /// The first index that is not in it, and the digest of all before.
    index: u64,
    digest: String,
    directory: bool,
    bytes: u64,
    path: String,
}

#[derive(Debug, Serialize)]
struct BookmarkRow {
    name: String,
    /// The index that its reader needs next.
    next: u64,
}

impl Beside {
    pub(super) fn of(dir: &Path) -> Result<Beside> {
        let (snapshots, mut beside) = (Snapshots::open(dir)?, Beside::default());
        for seq in snapshots.list()? {
            match snapshots.get(seq) {
                Ok(found) => beside.snapshots.push(SnapshotRow {
                    index: seq.get(),
                    digest: found.digest().to_string(),
                    directory: found.is_directory(),
                    bytes: found.bytes(),
                    path: found.path().display().to_string(),
                }),
                Err(error) => beside.unreadable.push(error.to_string()),
            }
        }
        for marked in Bookmark::list(dir)? {
            match marked {
                Ok(marked) => beside
                    .bookmarks
                    .push(BookmarkRow { name: marked.name.to_string(), next: marked.next.get() }),
                Err(error) => beside.unreadable.push(error.to_string()),
            }
        }
        // As if nothing but that had to stay. What cannot be read, and so holds all, is told above.
        if beside.is_sound() {
            match journal::would_prune(dir, &Retention::new().keep_bytes(0)) {
                Ok(pruned) => beside.held = pruned.held.as_ref().map(HeldReport::new),
                Err(error) => beside.unreadable.push(error.to_string()),
            }
        }
        Ok(beside)
    }

    /// Whether something cannot be read.
    pub(super) fn is_sound(&self) -> bool {
        self.unreadable.is_empty()
    }

    pub(super) fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for SnapshotRow { index, bytes, path, .. } in &self.snapshots {
            writeln!(out, "snapshot at index {index}: {bytes} B, {path}")?;
        }
        for BookmarkRow { name, next } in &self.bookmarks {
            writeln!(out, "bookmark {name:?} at index {next}")?;
        }
        match &self.held {
            Some(held) => held.text(out)?,
            None if self.is_sound() => writeln!(out, "no segment stays for a snapshot or a bookmark alone")?,
            // A bookmark that cannot be read may need all of it.
            None => writeln!(out, "what can be pruned is not known")?,
        }
        self.unreadable.iter().try_for_each(|what| writeln!(out, "unreadable: {what}"))
    }
}
