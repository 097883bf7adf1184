//! `seriatim remove`: a region that nobody is attached to, and nothing else.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use seriatim::Region;

use crate::Outcome;
use crate::output::{self, Report};

/// Remove a region.
///
/// Refuses to remove a file that is no region, and a region that somebody is attached to.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        Region::remove(&self.path)?;
        output::print(&RemoveReport { removed: self.path.display().to_string() }, self.json)?;
        Ok(Outcome::Done)
    }
}

#[derive(Debug, Serialize)]
struct RemoveReport {
    removed: String,
}

impl Report for RemoveReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "removed {}", self.removed)
    }
}
