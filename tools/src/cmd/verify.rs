//! `seriatim verify`: whether what is in a region holds together.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use seriatim::{AttachError, Region, Verification};

use crate::Outcome;
use crate::open;
use crate::output::{self, Align, Report, Table};

const EXAMPLES: &str = "\
Examples:
  seriatim verify /dev/shm/orders
  seriatim verify /dev/shm/orders --json | jq -r '.checks[].problems[]'

Exit code: 0 when everything holds, 1 when something does not, 2 when it could not be looked at: no region, or one
whose commands are freed faster than they can be looked at.";

/// Check everything that is in a region: runs, lanes, commands and their payloads, tickets, digests.
///
/// Only reads, and works whether or not anybody serves the region. What all workers have passed is no longer
/// there and is not looked at.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let path = self.path.display().to_string();
        let report = match Region::attach_read_only(&self.path) {
            Ok(region) => look(path, &open::guarded(region)?),
            Err(error) if is_damage(&error) => VerifyReport::unopened(path, error.to_string()),
            Err(error) => return Err(error.into()),
        };
        anyhow::ensure!(
            !report.is_moving,
            "{}: its commands are freed faster than they can be looked at; try again when less is submitted",
            report.path
        );
        output::print(&report, self.json)?;
        Ok(if report.sound { Outcome::Done } else { Outcome::Problem })
    }
}

fn look(path: String, region: &Region) -> VerifyReport {
    let found = region.verify();
    match region.check() {
        Ok(()) => VerifyReport::new(path, &found),
        Err(lost) => VerifyReport::unopened(path, lost.to_string()),
    }
}

/// Whether it is a region that does not hold together, rather than none.
fn is_damage(error: &AttachError) -> bool {
    match error {
        AttachError::Header { source, .. } => source.is_damage(),
        AttachError::Length { .. } => true,
        _ => false,
    }
}

#[derive(Debug, Serialize)]
struct VerifyReport {
    path: String,
    sound: bool,
    /// Indexes that were looked at.
    from: u64,
    to: u64,
    /// The digest of all before `to`, as recomputed.
    digest: Option<String>,
    checks: Vec<CheckRow>,
    #[serde(skip)]
    is_moving: bool,
}

#[derive(Debug, Serialize)]
struct CheckRow {
    name: &'static str,
    checked: u64,
    problems: Vec<String>,
    /// More that does not hold.
    untold: u64,
}

impl VerifyReport {
    fn new(path: String, found: &Verification) -> VerifyReport {
        let row = |check: &seriatim::Check| CheckRow {
            name: check.name,
            checked: check.checked,
            problems: check.problems.clone(),
            untold: check.untold,
        };
        VerifyReport {
            path,
            sound: found.is_sound(),
            from: found.from.get(),
            to: found.to.get(),
            digest: found.digest.map(|digest| digest.to_string()),
            checks: found.checks.iter().map(row).collect(),
            is_moving: found.is_moving,
        }
    }

    /// Of a region that is too damaged to be opened.
    fn unopened(path: String, problem: String) -> VerifyReport {
        let header = CheckRow { name: "header", checked: 1, problems: vec![problem], untold: 0 };
        VerifyReport {
            path,
            sound: false,
            from: 0,
            to: 0,
            digest: None,
            checks: vec![header],
            is_moving: false,
        }
    }
}

impl Report for VerifyReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let digest = self.digest.as_deref().unwrap_or("unknown");
        writeln!(out, "{}: indexes {}..{}, digest {digest}", self.path, self.from, self.to)?;
        let columns = [("CHECKED", Align::Left), ("COUNT", Align::Right), ("PROBLEMS", Align::Right)];
        let mut table = Table::new(columns);
        for row in &self.checks {
            let problems = row.problems.len() as u64 + row.untold;
            table.row([row.name.into(), row.checked.to_string(), problems.to_string()]);
        }
        table.write(out)?;
        for problem in self.checks.iter().flat_map(|row| &row.problems) {
            writeln!(out, "problem: {problem}")?;
        }
        writeln!(out, "{}", if self.sound { "all of it holds" } else { "it does not hold" })
    }
}
