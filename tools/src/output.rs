//! What the commands report, rendered as text for people or as JSON for programs.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use seriatim::{Geometry, PartyStatus};

/// A report: its fields are the JSON, `text` is what a person reads.
pub(crate) trait Report: Serialize {
    fn text(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// Prints a report on standard output, JSON as one line.
pub(crate) fn print(report: &impl Report, json: bool) -> Result<()> {
    render(&mut BufWriter::new(io::stdout().lock()), report, json).context("cannot write to standard output")
}

/// Prints a report on standard error, for commands whose standard output carries payloads.
pub(crate) fn print_aside(report: &impl Report, json: bool) -> Result<()> {
    render(&mut BufWriter::new(io::stderr().lock()), report, json)
}

fn render(out: &mut dyn Write, report: &impl Report, json: bool) -> Result<()> {
    if json {
        // Into a buffer first: serde_json's errors hide the closed pipe that `is_closed_pipe` looks for.
        writeln!(out, "{}", serde_json::to_string(report)?)?;
    } else {
        report.text(out)?;
    }
    Ok(out.flush()?)
}

/// What is printed into.
pub(crate) type Sink = BufWriter<Box<dyn Write>>;

/// Where what was asked for is written: a new file, or standard output for `-`.
pub(crate) fn sink(path: &Path) -> Result<Sink> {
    let out: Box<dyn Write> = if path == Path::new("-") {
        Box::new(io::stdout().lock())
    } else {
        Box::new(File::create(path).with_context(|| format!("cannot make {}", path.display()))?)
    };
    Ok(BufWriter::with_capacity(1 << 16, out))
}

/// As [`sink`], behind what the file has, or behind the last line of that which `is_cut` and whole; and the file, to have that
/// stay. Of standard output nobody can say so.
pub(crate) fn sink_behind(path: &Path, is_cut: bool) -> Result<(Sink, File)> {
    ensure!(path != Path::new("-"), "what is to go on where it was needs a file to print into: --out FILE");
    let file = File::options().read(true).append(true).create(true).open(path);
    let file = file.with_context(|| format!("cannot make {}", path.display()))?;
    let found = file.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
    // Of one that has nothing it is not known whether its name stays: it was made just now, or by one that died then.
    if found.is_file() && found.len() == 0 {
        sync_name(path).with_context(|| format!("cannot sync the directory of {}", path.display()))?;
    }
    if is_cut {
        let whole = whole_lines(&file).with_context(|| format!("cannot read {}", path.display()))?;
        file.set_len(whole).with_context(|| format!("cannot cut {}", path.display()))?;
    }
    let kept = file.try_clone()?;
    Ok((BufWriter::with_capacity(1 << 16, Box::new(file)), kept))
}

/// Has a file's name stay: after a loss of power it is there, and so is what was synced of it.
fn sync_name(path: &Path) -> io::Result<()> {
    let path = path.canonicalize()?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// How many bytes of a file its whole lines are.
fn whole_lines(file: &File) -> io::Result<u64> {
    let (mut end, mut piece) = (file.metadata()?.len(), vec![0; 1 << 16]);
    while end > 0 {
        let from = end.saturating_sub(piece.len() as u64);
        let bytes = &mut piece[..(end - from) as usize];
        file.read_exact_at(bytes, from)?;
        if let Some(at) = bytes.iter().rposition(|&byte| byte == b'\n') {
            return Ok(from + at as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}

/// One line on standard error.
pub(crate) fn complain(what: fmt::Arguments<'_>) {
    // A standard error that cannot be written leaves nobody to tell.
    let _ = writeln!(io::stderr(), "seriatim: {what}");
}

/// An error and its causes, each said once: ours leave them to this, the library's name them themselves.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// So many of something, in words: "1 index", "2 indexes".
pub(crate) fn many(count: impl TryInto<u64>, one: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        count if one.ends_with('x') => format!("{count} {one}es"),
        count => format!("{count} {one}s"),
    }
}

/// Whether the reader of our output has gone away.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether a person watches standard output.
pub(crate) fn on_terminal() -> bool {
    io::stdout().is_terminal()
}

// ---- pieces of text ---------------------------------------------------------------------------------------

/// 1234567 as 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the decimal unit that leaves one to three digits before the point.
pub(crate) fn bytes(bytes: f64) -> String {
    scaled(bytes, 1000.0, &["B", "kB", "MB", "GB", "TB"])
}

/// Nanoseconds in the unit that leaves one to three digits before the point.
pub(crate) fn time_ns(ns: u64) -> String {
    scaled(ns as f64, 1000.0, &["ns", "µs", "ms", "s"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let places = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.places$} {}", units[unit])
}

/// Which edge of its column a cell keeps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Columns as wide as their widest cell.
pub(crate) struct Table<const N: usize> {
    align: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(columns: [(&str, Align); N]) -> Table<N> {
        Table {
            align: columns.map(|(_, align)| align),
            rows: vec![columns.map(|(title, _)| title.to_string())],
        }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &self.rows {
            let cells = row.iter().zip(widths).zip(self.align).map(|((cell, width), align)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

// ---- pieces of reports ------------------------------------------------------------------------------------

/// The sizes that a region was made with.
#[derive(Debug, Serialize)]
pub(crate) struct GeometryReport {
    pub(crate) slots: u64,
    pub(crate) lane_cells: u64,
    pub(crate) lane_bytes: u64,
    pub(crate) producers: u64,
    pub(crate) workers: u64,
    pub(crate) ranks: u64,
    pub(crate) spill_bytes: u64,
}

impl From<Geometry> for GeometryReport {
    fn from(geometry: Geometry) -> GeometryReport {
        GeometryReport {
            slots: geometry.order_slots,
            lane_cells: geometry.lane_cells,
            lane_bytes: geometry.lane_bytes,
            producers: geometry.producers,
            workers: geometry.workers,
            ranks: geometry.ranks,
            spill_bytes: geometry.spill_bytes,
        }
    }
}

impl fmt::Display for GeometryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GeometryReport { slots, lane_cells, lane_bytes, producers, workers, ranks, spill_bytes } = self;
        write!(
            f,
            "{slots} slots, {producers} lanes of {lane_cells} cells and {lane_bytes} bytes, {workers} workers"
        )?;
        if *ranks > 0 {
            write!(f, ", {ranks} ranks")?;
        }
        match spill_bytes {
            0 => f.write_str(", no spills"),
            bytes => write!(f, ", spills of up to {} bytes", bytes / 2),
        }
    }
}

/// Who holds a role, and whether the kernel still knows it.
#[derive(Debug, Serialize)]
pub(crate) struct PartyReport {
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// Its lock is held: it runs, or is stopped.
    pub(crate) alive: bool,
    /// The sequencer counts it in.
    pub(crate) attached: bool,
    /// It has something to do and has not moved for a second.
    pub(crate) suspect: bool,
    /// It has the region locked in memory; none if it is gone or the kernel does not tell.
    pub(crate) locked: Option<bool>,
    /// The CPU on which its process ran last, likewise.
    pub(crate) cpu: Option<u64>,
}

impl PartyReport {
    pub(crate) fn cpu(&self) -> String {
        self.cpu.map_or("-".into(), |cpu| cpu.to_string())
    }

    pub(crate) fn life(&self) -> &'static str {
        match self {
            PartyReport { alive: false, .. } => "gone",
            PartyReport { suspect: true, .. } => "suspect",
            _ => "alive",
        }
    }
}

impl From<&PartyStatus> for PartyReport {
    fn from(party: &PartyStatus) -> PartyReport {
        PartyReport {
            name: party.name.clone(),
            pid: party.pid,
            alive: party.alive,
            attached: party.attached,
            suspect: party.suspect,
            locked: party.locked,
            cpu: party.cpu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }

    #[test]
    fn each_cause_is_said_once() {
        let cause = anyhow::anyhow!("no room");
        let told = cause.context("cannot write: no room").context("cannot go on");
        assert_eq!(causes(&told), "cannot go on: cannot write: no room");
    }

    #[test]
    fn units_follow_the_value() {
        assert_eq!(time_ns(0), "0 ns");
        assert_eq!(time_ns(1_500), "1.5 µs");
        assert_eq!(time_ns(250_000_000), "250 ms");
        assert_eq!(bytes(4_194_304.0), "4.2 MB");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([("NAME", Align::Left), ("N", Align::Right)]);
        table.row(["a".into(), "10".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "NAME   N\na     10\n");
    }
}
