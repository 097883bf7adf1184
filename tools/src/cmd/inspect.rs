//! `seriatim inspect`: what a region file is made of, also when nobody serves it or it is damaged.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use seriatim::{Identity, Inspection, PartPlacement, PlacedPart, Section};

use crate::Outcome;
use crate::output::{self, Align, GeometryReport, Report, Table};

/// What every region is made of, apart from huge pages.
const PAGE_BYTES: u64 = 4096;

const EXIT_CODES: &str = "\
Exit code: 0 when nothing is wrong with it, 1 when it is damaged, 2 when it is no region or cannot be read.";

/// Show what a region file is made of: identity, sizes, sections.
///
/// Reads the file and changes nothing; works on a region that nobody serves, and on a damaged one as far as
/// it can be read, saying what is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let report = InspectReport::from(&seriatim::inspect(&self.path)?);
        output::print(&report, self.json)?;
        Ok(if report.problems.is_empty() { Outcome::Done } else { Outcome::Problem })
    }
}

#[derive(Debug, Serialize)]
struct InspectReport {
    path: String,
    bytes: u64,
    resident_bytes: u64,
    /// Of the smallest pages that it lies in.
    page_bytes: u64,
    /// Bytes that lie in huge pages; none if that cannot be told.
    huge_bytes: Option<u64>,
    /// On which NUMA nodes the parts lie; none if that cannot be told.
    placement: Option<Vec<PlacementRow>>,
    /// In octal, as `ls` and `create --mode` have it.
    mode: String,
    uid: u32,
    gid: u32,
    /// What the header says, if it can be believed.
    identity: Option<IdentityReport>,
    sections: Vec<SectionRow>,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct IdentityReport {
    version: u32,
    uuid: String,
    boot_id: String,
    /// Seconds since 1970.
    created: u64,
    first_index: u64,
    /// What digests cover.
    digest_of: String,
    /// What becomes of it when workers differ.
    on_divergence: String,
    geometry: GeometryReport,
}

/// Parts that follow each other, for which the same was asked and which lie on the same nodes.
#[derive(Debug, Serialize)]
struct PlacementRow {
    /// "shared" (all before the lanes), "lanes" or "workers".
    part: &'static str,
    /// Number of the first lane, or slot of the first worker.
    first: u16,
    last: u16,
    /// Of the kernel, in its words.
    asked: String,
    /// What lies where.
    nodes: Vec<NodeBytes>,
}

#[derive(Debug, Serialize)]
struct NodeBytes {
    node: u32,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct SectionRow {
    name: &'static str,
    offset: u64,
    bytes: u64,
    writer: &'static str,
}

impl From<&Inspection> for InspectReport {
    fn from(inspection: &Inspection) -> InspectReport {
        InspectReport {
            path: inspection.path.display().to_string(),
            bytes: inspection.file_bytes,
            resident_bytes: inspection.resident_bytes,
            page_bytes: PAGE_BYTES,
            huge_bytes: inspection.huge_bytes,
            placement: inspection.placement.as_ref().map(|parts| together(parts)),
            mode: format!("{:o}", inspection.mode),
            uid: inspection.owner,
            gid: inspection.group,
            identity: inspection.identity.as_ref().map(IdentityReport::from),
            sections: inspection.sections.iter().map(SectionRow::from).collect(),
            problems: inspection.problems.clone(),
        }
    }
}

impl From<&Identity> for IdentityReport {
    fn from(identity: &Identity) -> IdentityReport {
        IdentityReport {
            version: identity.version,
            uuid: identity.uuid.to_string(),
            boot_id: identity.boot_id.to_string(),
            created: identity.created,
            first_index: identity.first_index,
            digest_of: identity.digest_of.to_string(),
            on_divergence: identity.on_divergence.to_string(),
            geometry: identity.geometry.into(),
        }
    }
}

impl From<&PartPlacement> for PlacementRow {
    fn from(placed: &PartPlacement) -> PlacementRow {
        let (part, number) = match placed.part {
            PlacedPart::Lane(number) => ("lanes", number),
            PlacedPart::Worker(slot) => ("workers", slot),
            _ => ("shared", 0),
        };
        let nodes = placed.nodes.iter().map(|&(node, bytes)| NodeBytes { node, bytes }).collect();
        PlacementRow { part, first: number, last: number, asked: placed.asked.clone(), nodes }
    }
}

impl PlacementRow {
    fn is_like(&self, other: &PlacementRow) -> bool {
        let numbers = |row: &PlacementRow| row.nodes.iter().map(|at| at.node).collect::<Vec<_>>();
        self.asked == other.asked && numbers(self) == numbers(other)
    }

    fn which(&self) -> String {
        let PlacementRow { part, first, last, .. } = self;
        match (*part, first == last) {
            ("shared", _) => "all before the lanes".into(),
            (_, true) => format!("{part} {first}"),
            (_, false) => format!("{part} {first} to {last}"),
        }
    }

    /// The nodes, with the bytes on each if there are several.
    fn places(&self) -> String {
        match &self.nodes[..] {
            [] => "?".into(),
            [one] => one.node.to_string(),
            several => {
                let places: Vec<_> =
                    several.iter().map(|at| format!("{} ({} bytes)", at.node, at.bytes)).collect();
                places.join(", ")
            }
        }
    }
}

fn together(parts: &[PartPlacement]) -> Vec<PlacementRow> {
    let mut rows: Vec<PlacementRow> = Vec::new();
    for next in parts.iter().map(PlacementRow::from) {
        match rows.last_mut() {
            Some(row) if row.part == next.part && row.is_like(&next) => {
                row.last = next.last;
                row.nodes.iter_mut().zip(next.nodes).for_each(|(sum, more)| sum.bytes += more.bytes);
            }
            _ => rows.push(next),
        }
    }
    rows
}

impl From<&Section> for SectionRow {
    fn from(section: &Section) -> SectionRow {
        SectionRow {
            name: section.name,
            offset: section.offset,
            bytes: section.bytes,
            writer: section.writer,
        }
    }
}

impl Report for InspectReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let InspectReport { path, bytes, resident_bytes, mode, uid, gid, .. } = self;
        writeln!(out, "{path}: {bytes} bytes, {resident_bytes} in memory, mode {mode}, owner {uid}:{gid}")?;
        match self.huge_bytes {
            Some(0) => writeln!(out, "in pages of {PAGE_BYTES} bytes")?,
            Some(huge) => writeln!(out, "in pages of {PAGE_BYTES} bytes, and huge ones: {huge} bytes of it")?,
            None => {}
        }
        let rows = self.placement.as_deref().unwrap_or_default();
        match rows {
            [first, rest @ ..] if first.nodes.len() == 1 && rest.iter().all(|row| row.is_like(first)) => {
                writeln!(out, "on NUMA node {}, asked for: {}", first.places(), first.asked)?;
            }
            _ => rows.iter().try_for_each(|row| {
                writeln!(out, "{}: on NUMA node {}, asked for: {}", row.which(), row.places(), row.asked)
            })?,
        }
        if let Some(identity) = &self.identity {
            writeln!(out, "region {}, format version {}", identity.uuid, identity.version)?;
            writeln!(out, "made at {} (Unix time) in boot {}", identity.created, identity.boot_id)?;
            let IdentityReport { geometry, first_index, digest_of, on_divergence, .. } = identity;
            writeln!(out, "{geometry}, first index {first_index}, digest of: {digest_of}")?;
            writeln!(out, "when workers differ: {on_divergence}")?;
        }
        if !self.sections.is_empty() {
            writeln!(out)?;
            self.section_table().write(out)?;
        }
        for problem in &self.problems {
            writeln!(out, "problem: {problem}")?;
        }
        Ok(())
    }
}

impl InspectReport {
    fn section_table(&self) -> Table<4> {
        let mut table = Table::new([
            ("SECTION", Align::Left),
            ("OFFSET", Align::Right),
            ("BYTES", Align::Right),
            ("WRITTEN BY", Align::Left),
        ]);
        for row in &self.sections {
            table.row([row.name.into(), row.offset.to_string(), row.bytes.to_string(), row.writer.into()]);
        }
        table
    }
}
