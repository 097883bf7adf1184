//! `seriatim create`: a new region, completely or not at all.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use seriatim::{Config, DigestOf, HugePages, OnDivergence, Placement, Region};

use crate::Outcome;
use crate::args::{Sizes, group, huge_pages, mode, node, placement};
use crate::log;
use crate::output::{self, GeometryReport, Report};

const EXAMPLES: &str = "\
Examples:
  seriatim create /dev/shm/orders
  seriatim create /dev/shm/orders --lane-bytes 64M --producers 2 --mode 660 --group engine
  seriatim create /dev/shm/orders --on-divergence poison
  seriatim create /dev/shm/orders --numa 0 --numa-lanes 0,1 --numa-workers 0,0,1,1";

/// Create a region.
///
/// All its memory is taken at once, so that nothing can run out of it later: if there is not enough, nothing
/// is made. Put it on a file system in memory, like /dev/shm.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The file to make; there must be none of that name
    path: PathBuf,
    #[command(flatten)]
    sizes: Sizes,
    /// How many producers may be attached at a time [default: 8]
    #[arg(long, value_name = "N")]
    producers: Option<u64>,
    /// How many workers may be attached at a time, a journal among them [default: 16]
    #[arg(long, value_name = "N")]
    workers: Option<u64>,
    /// Among how many workers commands can be divided: their ranks are 0 to N-1 (`worker --rank`, `submit --to`);
    /// at most as many as there are `--workers`
    /// [default: 0]
    #[arg(long, value_name = "N")]
    ranks: Option<u64>,
    /// Permission bits, in octal, whatever the umask [default: 600]
    #[arg(long, value_name = "OCTAL", value_parser = mode)]
    mode: Option<u32>,
    /// Group that owns the file, by name or number
    #[arg(long, value_name = "GROUP", value_parser = group)]
    group: Option<u32>,
    /// Ask for huge pages: `try` says so if there are none, `require` makes nothing then
    #[arg(long, value_name = "HOW", value_parser = huge_pages)]
    huge_pages: Option<HugePages>,
    /// Where its memory lies: `local` (on the node that this command runs on), `interleave` (page by page on all nodes),
    /// or the number of a NUMA node
    #[arg(long, value_name = "WHERE", value_parser = placement, default_value = "local")]
    numa: Placement,
    /// Nodes of the lanes instead, in turn: the first node for lane 1 and so on, beginning anew after the last
    #[arg(long, value_name = "NODE,…", value_parser = node, value_delimiter = ',')]
    numa_lanes: Vec<u32>,
    /// Nodes of the workers' pages instead, in turn
    #[arg(long, value_name = "NODE,…", value_parser = node, value_delimiter = ',')]
    numa_workers: Vec<u32>,
    /// What digests cover: payload, header (no bytes of payloads) or off. Less is faster and proves less
    #[arg(long, value_name = "WHAT", default_value_t = DigestOf::Payload)]
    digest: DigestOf,
    /// What becomes of the region when workers report different things: report (`stat` shows it), poison (all workers are
    /// stopped at one index), or lockstep (and none is given a command before all have reported the one before)
    #[arg(long, value_name = "WHAT", default_value_t = OnDivergence::Report)]
    on_divergence: OnDivergence,
    /// First index of the order: to go on from elsewhere, or for tests
    #[arg(long, value_name = "INDEX")]
    first_index: Option<u64>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        log::to_standard_error();
        let placement = self.numa.lanes(self.numa_lanes).workers(self.numa_workers);
        let config = self.sizes.apply(Config::new()).digest(self.digest).placement(placement);
        let mut config = config.on_divergence(self.on_divergence);
        if let Some(producers) = self.producers {
            config = config.producers(producers);
        }
        if let Some(workers) = self.workers {
            config = config.workers(workers);
        }
        if let Some(ranks) = self.ranks {
            config = config.ranks(ranks);
        }
        if let Some(mode) = self.mode {
            config = config.mode(mode);
        }
        if let Some(group) = self.group {
            config = config.group(group);
        }
        if let Some(huge_pages) = self.huge_pages {
            config = config.huge_pages(huge_pages);
        }
        if let Some(index) = self.first_index {
            config = config.first_index(index);
        }
        let region = Region::create(&self.path, &config)?;
        let report = CreateReport {
            path: self.path.display().to_string(),
            uuid: region.uuid().to_string(),
            bytes: config.region_bytes()?,
            geometry: region.geometry().into(),
            digest_of: region.digest_of().to_string(),
            on_divergence: region.on_divergence().to_string(),
        };
        output::print(&report, self.json)?;
        Ok(Outcome::Done)
    }
}

#[derive(Debug, Serialize)]
struct CreateReport {
    path: String,
    uuid: String,
    bytes: u64,
    geometry: GeometryReport,
    digest_of: String,
    on_divergence: String,
}

impl Report for CreateReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let CreateReport { path, bytes, geometry, digest_of, on_divergence, .. } = self;
        writeln!(
            out,
            "{path}: {bytes} bytes; {geometry}; digest of {digest_of}; when workers differ: {on_divergence}"
        )
    }
}
