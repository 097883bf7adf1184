//! A table and plots of the lines that `seriatim bench --out` wrote, beside those that other programs wrote for the same
//! workload: `compare LINES.jsonl… [--plots FOLDER]`. `benches/compare` runs all and then this.
//!
//! In the table each of our rows has its ratio to the best other, of the same mode, shape and size, and in processes if ours
//! is: the median over the rounds of the ratio within a round, for what a machine does changes from one to the next, and
//! both were measured within seconds. Where commands a second are measured more is better, where times are, less. What ran
//! beside others' work (0.1 cores or more) is left out where a quiet round is there; where none is, on either side, the ratio
//! has a question mark. The spread of the physical reference, if the lines have it, says how steady the machine itself was.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Cores of others' work from which on a measurement counts as disturbed.
const DISTURBED: f64 = 0.1;
/// What our own lines are known by.
const OURS: &str = "seriatim";
/// Width and height of one panel.
const PANEL: (u32, u32) = (760, 360);

#[derive(Debug, Clone, Deserialize)]
struct Record {
    kind: String,
    peer: String,
    producers: usize,
    workers: usize,
    size: u64,
    wait: String,
    touch: bool,
    rate: u64,
    #[serde(default)]
    round: u64,
    #[serde(default)]
    processes: bool,
    ok: bool,
    #[serde(default)]
    foreign_cores: f64,
    commands_per_s: f64,
    latency: Option<Latency>,
}

#[derive(Debug, Clone, Deserialize)]
struct Latency {
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

/// What the machine does without any of the programs: copies, sums, a cache line to and fro.
#[derive(Debug, Clone, Deserialize)]
struct Physical {
    name: String,
    unit: String,
    value: f64,
}

fn main() -> Result<()> {
    let (mut files, mut plots) = (Vec::new(), None);
    let mut args = env::args_os().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--plots" {
            plots = Some(PathBuf::from(args.next().ok_or("--plots needs a folder")?));
        } else {
            files.push(PathBuf::from(arg));
        }
    }
    let mut records = Vec::new();
    for file in &files {
        records.extend(read::<Record>(file)?);
    }
    if records.is_empty() {
        return Err("compare LINES.jsonl… [--plots FOLDER]: there are no results in what was given".into());
    }
    let rows = rows(&records);
    print!("{}", table(&rows));
    let mut references = Vec::new();
    for file in &files {
        references.extend(read::<Physical>(file)?);
    }
    print!("{}", physical_table(&references));
    if let Some(folder) = plots {
        fs::create_dir_all(&folder)?;
        for (name, panels) in
            [("throughput.svg", throughput_panels(&rows)), ("latency.svg", latency_panels(&rows))]
        {
            if !panels.is_empty() {
                let path = folder.join(name);
                draw(&path, &panels)?;
                println!("{}", path.display());
            }
        }
    }
    Ok(())
}

/// The results in a file; lines of another kind are passed over.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

// ---- medians ----------------------------------------------------------------------------------------------

/// What is compared with each other: mode, shape, size, and how much of it workers read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    mode: String,
    shape: (usize, usize),
    size: u64,
}

/// The rounds of one peer in one cell.
#[derive(Debug, Clone)]
struct Row {
    cell: Cell,
    peer: String,
    wait: String,
    /// Rounds that count, and all.
    rounds: (usize, usize),
    /// Of commands a second, or nanoseconds at the middle: median, least, most. None if every round failed.
    values: Option<[f64; 3]>,
    /// Medians of the quantiles, where times were measured: p50, p99, p99.9, max.
    quantiles: Option<[f64; 4]>,
    /// The same of each round that counts.
    by_round: BTreeMap<u64, f64>,
    /// Whether each party is a process.
    processes: bool,
    /// Of ours to the best other.
    ratio: Option<f64>,
    /// Whether both of these had a quiet round.
    is_sure: bool,
    is_best_other: bool,
}

impl Row {
    fn is_ours(&self) -> bool {
        self.peer.starts_with(OURS)
    }

    fn median(&self) -> Option<f64> {
        self.values.map(|[median, ..]| median)
    }

    fn name(&self) -> String {
        format!("{} ({})", self.peer, self.wait)
    }

    /// The median of the ratios within rounds.
    fn ratio_to(&self, other: &Row) -> Option<f64> {
        let ratio = |(round, ours): (&u64, &f64)| other.by_round.get(round).map(|other| ours / other);
        let of_medians = || Some(self.median()? / other.median()?);
        median(&sorted(self.by_round.iter().filter_map(ratio))).or_else(of_medians)
    }

    fn is_better_than(&self, other: &Row) -> bool {
        let (Some(value), Some(than)) = (self.median(), other.median()) else {
            return self.median().is_some();
        };
        if self.quantiles.is_some() { value < than } else { value > than }
    }
}

fn cell_of(record: &Record) -> Cell {
    let rate = if record.rate > 0 { format!(" {}", record.rate) } else { String::new() };
    let touched = if record.touch { "" } else { ", first word" };
    Cell {
        mode: format!("{}{rate}{touched}", record.kind),
        shape: (record.producers, record.workers),
        size: record.size,
    }
}

fn rows(records: &[Record]) -> Vec<Row> {
    let mut groups: BTreeMap<(Cell, bool, &str, &str), Vec<&Record>> = BTreeMap::new();
    for record in records {
        let is_other = !record.peer.starts_with(OURS);
        groups.entry((cell_of(record), is_other, &record.peer, &record.wait)).or_default().push(record);
    }
    let mut rows: Vec<Row> =
        groups.into_iter().map(|((cell, _, peer, wait), rounds)| row(cell, peer, wait, &rounds)).collect();
    let (of_all, of_processes) = (best_others(&rows, false), best_others(&rows, true));
    for row in &mut rows {
        let best = of_processes.get(&row.cell).filter(|_| row.processes).or(of_all.get(&row.cell));
        let Some(other) = best else { continue };
        if row.is_ours() {
            row.ratio = row.ratio_to(other);
            row.is_sure = other.rounds.0 > 0 && row.rounds.0 > 0;
        }
        row.is_best_other = row.name() == other.name();
    }
    rows
}

fn row(cell: Cell, peer: &str, wait: &str, rounds: &[&Record]) -> Row {
    let good: Vec<&Record> = rounds.iter().copied().filter(|record| record.ok).collect();
    let quiet: Vec<&Record> =
        good.iter().copied().filter(|record| record.foreign_cores < DISTURBED).collect();
    let taken = if quiet.is_empty() { &good } else { &quiet };
    let value = |record: &&Record| record.latency.as_ref().map_or(record.commands_per_s, |l| l.p50_ns as f64);
    let values = sorted(taken.iter().map(value));
    let quantile = |pick: fn(&Latency) -> u64| {
        median(&sorted(taken.iter().filter_map(|record| record.latency.as_ref()).map(|l| pick(l) as f64)))
    };
    let quantiles = || {
        Some([
            quantile(|l| l.p50_ns)?,
            quantile(|l| l.p99_ns)?,
            quantile(|l| l.p999_ns)?,
            quantile(|l| l.max_ns)?,
        ])
    };
    let by_round = taken.iter().map(|record| (record.round, value(record))).collect();
    Row {
        cell,
        by_round,
        processes: rounds.iter().any(|record| record.processes),
        peer: peer.into(),
        wait: wait.into(),
        rounds: (quiet.len(), rounds.len()),
        values: median(&values).map(|median| [median, values[0], values[values.len() - 1]]),
        quantiles: quantiles(),
        ratio: None,
        is_sure: false,
        is_best_other: false,
    }
}

/// The best that is not ours, for each cell; of all, or of those whose parties are processes.
fn best_others(rows: &[Row], processes: bool) -> BTreeMap<Cell, Row> {
    let mut best: BTreeMap<Cell, Row> = BTreeMap::new();
    let counts = |row: &&Row| !row.is_ours() && row.median().is_some() && (row.processes || !processes);
    for row in rows.iter().filter(counts) {
        if best.get(&row.cell).is_none_or(|than| row.is_better_than(than)) {
            best.insert(row.cell.clone(), row.clone());
        }
    }
    best
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    Some((sorted[last / 2] + sorted[sorted.len() / 2]) / 2.0)
}

// ---- the table --------------------------------------------------------------------------------------------

fn table(rows: &[Row]) -> String {
    let titles = [
        "MODE",
        "SHAPE",
        "BYTES",
        "PEER",
        "WAIT",
        "QUIET",
        "MEDIAN",
        "MIN",
        "MAX",
        "P99",
        "OURS / BEST OTHER",
    ];
    let mut lines = vec![titles.map(String::from)];
    for row in rows {
        let Cell { mode, shape: (producers, workers), size } = &row.cell;
        let show =
            |value: f64| if row.quantiles.is_some() { time(value) } else { format!("{}/s", number(value)) };
        let values = row.values.map_or(["failed".into(), "-".into(), "-".into()], |values| values.map(show));
        let [median, min, max] = values;
        let p99 = row.quantiles.map_or("-".into(), |[_, p99, ..]| time(p99));
        let compared = match row.ratio {
            Some(ratio) if row.is_sure => format!("{ratio:.2}"),
            Some(ratio) => format!("{ratio:.2} ?"),
            None if row.is_best_other => "best other".into(),
            None => String::new(),
        };
        let (shape, quiet) =
            (format!("{producers}x{workers}"), format!("{} of {}", row.rounds.0, row.rounds.1));
        let (peer, wait) = (row.peer.clone(), row.wait.clone());
        lines.push([
            mode.clone(),
            shape,
            size.to_string(),
            peer,
            wait,
            quiet,
            median,
            min,
            max,
            p99,
            compared,
        ]);
    }
    let widths: [usize; 11] =
        std::array::from_fn(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0));
    let padded = |line: &[String; 11]| {
        let cells: Vec<String> =
            line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    lines.iter().map(padded).collect()
}

/// Median, least and most of each reference; nothing of none.
fn physical_table(references: &[Physical]) -> String {
    let mut groups: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for Physical { name, unit, value } in references {
        groups.entry((name, unit)).or_default().push(*value);
    }
    let line = |((name, unit), values): ((&str, &str), Vec<f64>)| {
        let values = sorted(values.into_iter());
        let median = median(&values).unwrap_or(0.0);
        format!("{name}: {median:.2} {unit} ({:.2} to {:.2})\n", values[0], values[values.len() - 1])
    };
    let lines: String = groups.into_iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\nthe machine itself:\n{lines}") }
}

fn number(value: f64) -> String {
    match value {
        v if v >= 1e7 => format!("{:.1}M", v / 1e6),
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

fn time(ns: f64) -> String {
    match ns {
        v if v >= 1e9 => format!("{:.2} s", v / 1e9),
        v if v >= 1e6 => format!("{:.2} ms", v / 1e6),
        v if v >= 1e3 => format!("{:.2} µs", v / 1e3),
        v => format!("{v:.0} ns"),
    }
}

fn bytes(size: f64) -> String {
    match size {
        s if s >= 1_048_576.0 => format!("{:.0} MiB", s / 1_048_576.0),
        s if s >= 1024.0 => format!("{:.0} KiB", s / 1024.0),
        s => format!("{s:.0} B"),
    }
}

// ---- the plots --------------------------------------------------------------------------------------------

/// The points of a line.
type Points = Vec<(f64, f64)>;

/// One set of axes, with a line for each peer.
struct Panel {
    title: String,
    x_title: &'static str,
    y_title: &'static str,
    /// How a place on the x axis is called.
    x_name: fn(&f64) -> String,
    y_name: fn(&f64) -> String,
    /// Whether the x axis is logarithmic.
    x_is_log: bool,
    lines: Vec<(String, Points)>,
}

/// Throughput over payload size, a panel for each mode and shape.
fn throughput_panels(rows: &[Row]) -> Vec<Panel> {
    let mut panels: BTreeMap<(String, (usize, usize)), BTreeMap<String, Points>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.quantiles.is_none()) {
        let Some(median) = row.median().filter(|median| *median > 0.0) else { continue };
        let panel = panels.entry((row.cell.mode.clone(), row.cell.shape)).or_default();
        panel.entry(row.name()).or_default().push((row.cell.size as f64, median));
    }
    let panel = |((mode, (producers, workers)), lines): ((String, _), BTreeMap<_, _>)| Panel {
        title: format!("{mode}, {producers}x{workers}"),
        x_title: "payload",
        y_title: "commands/s",
        x_name: |size| bytes(*size),
        y_name: |rate| number(*rate),
        x_is_log: true,
        lines: lines.into_iter().collect(),
    };
    panels.into_iter().map(panel).collect()
}

/// Quantiles of the latency, a panel for each mode, shape and size.
fn latency_panels(rows: &[Row]) -> Vec<Panel> {
    let mut panels: BTreeMap<&Cell, Vec<(String, Points)>> = BTreeMap::new();
    for row in rows {
        let Some(quantiles) = row.quantiles else { continue };
        let points = (0..).map(f64::from).zip(quantiles.map(|ns| ns.max(1.0))).collect();
        panels.entry(&row.cell).or_default().push((row.name(), points));
    }
    let panel = |(cell, lines): (&Cell, _)| Panel {
        title: format!("{}, {}x{}, {}", cell.mode, cell.shape.0, cell.shape.1, bytes(cell.size as f64)),
        x_title: "quantile",
        y_title: "latency",
        x_name: |at| {
            let names = ["50 %", "99 %", "99.9 %", "max"];
            let is_whole = (at - at.round()).abs() < 0.01;
            names.get(at.round() as usize).filter(|_| is_whole).map_or(String::new(), |name| (*name).into())
        },
        y_name: |ns| time(*ns),
        x_is_log: false,
        lines,
    };
    panels.into_iter().map(panel).collect()
}

/// Draws the panels below each other.
fn draw(path: &Path, panels: &[Panel]) -> Result<()> {
    let area = SVGBackend::new(path, (PANEL.0, PANEL.1 * panels.len() as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, panel) in area.split_evenly((panels.len(), 1)).iter().zip(panels) {
        let points = || panel.lines.iter().flat_map(|(_, points)| points);
        let (left, right) = span(points().map(|point| point.0));
        let (low, high) = span(points().map(|point| point.1));
        let y = (low / 1.5..high * 1.5).log_scale();
        if panel.x_is_log {
            lines(part, panel, (left / 1.2..right * 1.2).log_scale(), y)?;
        } else {
            lines(part, panel, left - 0.2..right + 0.2, y)?;
        }
    }
    area.present()?;
    Ok(())
}

fn span(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max))
}

fn lines<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
    x: impl AsRangedCoord<CoordDescType = X, Value = f64>,
    y: impl AsRangedCoord<CoordDescType = Y, Value = f64>,
) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .right_y_label_area_size(10)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc(panel.x_title)
        .y_desc(panel.y_title)
        .x_label_formatter(&panel.x_name)
        .y_label_formatter(&panel.y_name)
        .draw()?;
    for (at, (name, points)) in panel.lines.iter().enumerate() {
        let width = if name.starts_with(OURS) { 3 } else { 1 };
        let style = Palette99::pick(at).stroke_width(width);
        chart.draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?.label(name).legend(
            move |(x, y)| PathElement::new([(x, y), (x + 18, y)], Palette99::pick(at).stroke_width(width)),
        );
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::LowerLeft)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(peer: &str, size: u64, per_s: f64, foreign: f64, ok: bool) -> String {
        format!(
            r#"{{"kind":"throughput","peer":"{peer}","processes":false,"producers":2,"workers":4,"size":{size},
            "wait":"yield","touch":true,"rate":0,"slots":4096,"warmup_ms":150,"duration_ms":300,"round":0,
            "ok":{ok},"error":null,"commands":7412345,"elapsed_s":0.3004,"commands_per_s":{per_s},
            "payload_gb_per_s":0.7896,"cpu_s":0.93,"foreign_cores":{foreign},
            "order_hash":"5a0c6b1e22f4d713","latency":null}}"#
        )
        .replace('\n', "")
    }

    fn ping(peer: &str, p50: u64) -> String {
        let latency = format!(
            r#"{{"samples":9,"mean_ns":1.5,"p50_ns":{p50},"p99_ns":{},"p999_ns":{},"max_ns":{}}}"#,
            p50 * 2,
            p50 * 3,
            p50 * 4
        );
        line(peer, 32, 10.0, 0.0, true)
            .replace("throughput", "ping")
            .replace("null}", &format!("{latency}}}"))
    }

    fn rows_of(lines: &[String]) -> Vec<Row> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        fs::write(&path, format!("{}\n{{\"kind\":\"physical\"}}\n", lines.join("\n"))).unwrap();
        let records: Vec<Record> = read(&path).unwrap();
        assert_eq!(records.len(), lines.len());
        rows(&records)
    }

    fn row_of<'a>(rows: &'a [Row], peer: &str) -> &'a Row {
        rows.iter().find(|row| row.peer == peer).unwrap()
    }

    fn in_round(line: &str, round: usize) -> String {
        line.replace(r#""round":0"#, &format!(r#""round":{round}"#))
    }

    fn in_processes(line: &str) -> String {
        line.replace(r#""processes":false"#, r#""processes":true"#)
    }

    /// Whatever the machine does from one to the next: by the medians this would be 2.
    #[test]
    fn the_ratio_is_the_median_of_those_within_a_round() {
        let rates =
            [("seriatim-threads", [3e6, 8e6, 4e6]), ("rtrb", [2e6, 2e6, 8e6]), ("bus", [1e6, 1e6, 1e6])];
        let each = |(peer, rates): (&str, [f64; 3])| {
            (0..3).map(|round| in_round(&line(peer, 32, rates[round], 0.0, true), round)).collect::<Vec<_>>()
        };
        let lines: Vec<String> = rates.into_iter().flat_map(each).collect();
        let rows = rows_of(&lines);
        assert_eq!(row_of(&rows, "seriatim-threads").ratio, Some(1.5));
        assert!(row_of(&rows, "rtrb").is_best_other && !row_of(&rows, "bus").is_best_other);
        let table = table(&rows);
        assert!(
            table.contains("1.50") && table.contains("best other") && table.contains("3 of 3"),
            "{table}"
        );
    }

    #[test]
    fn what_runs_as_processes_is_compared_with_what_does() {
        let ours = |peer| line(peer, 32, 6e6, 0.0, true);
        let mut lines = vec![ours("seriatim-threads"), in_processes(&ours("seriatim-procs"))];
        let others = [line("rtrb", 32, 3e6, 0.0, true), line("bus", 32, 2e6, 0.0, true)];
        lines.extend(others);
        let ratios = |lines: &[String]| {
            let rows = rows_of(lines);
            ["seriatim-threads", "seriatim-procs"].map(|peer| row_of(&rows, peer).ratio.unwrap())
        };
        // Where there is no other such.
        assert_eq!(ratios(&lines), [2.0, 2.0]);
        lines.extend(["aeron", "timely"].map(|peer| in_processes(&line(peer, 32, 1e6, 0.0, true))));
        assert_eq!(ratios(&lines), [2.0, 6.0]);
    }

    #[test]
    fn of_times_the_least_is_the_best() {
        let rows = rows_of(&[ping("seriatim-procs", 3000), ping("rtrb", 2000), ping("bus", 9000)]);
        assert_eq!(row_of(&rows, "seriatim-procs").ratio, Some(1.5));
        assert!(row_of(&rows, "rtrb").is_best_other);
        assert!(table(&rows).contains("3.00 µs"));
    }

    #[test]
    fn what_was_disturbed_or_failed_does_not_count() {
        let lines = [
            line("rtrb", 32, 5e6, 0.5, true),
            line("rtrb", 32, 2e6, 0.0, true),
            line("rtrb", 32, 7e6, 0.0, false),
            line("bus", 32, 4e6, 0.5, true),
            line("timely", 32, 9e6, 0.0, false),
        ];
        let rows = rows_of(&lines);
        assert_eq!((row_of(&rows, "rtrb").median(), row_of(&rows, "rtrb").rounds), (Some(2e6), (1, 3)));
        // Nothing but what was disturbed is better than nothing, and says so.
        assert_eq!((row_of(&rows, "bus").median(), row_of(&rows, "bus").rounds), (Some(4e6), (0, 1)));
        assert!(row_of(&rows, "timely").median().is_none() && table(&rows).contains("failed"));
    }

    #[test]
    fn a_ratio_is_in_doubt_unless_both_sides_had_a_quiet_round() {
        let told = |ours: f64, other: f64| {
            let lines = [line("seriatim-procs", 32, 3e6, ours, true), line("rtrb", 32, 2e6, other, true)];
            table(&rows_of(&lines)).contains("1.50 ?")
        };
        assert_eq!(
            [told(0.0, 0.0), told(0.5, 0.0), told(0.0, 0.5), told(0.5, 0.5)],
            [false, true, true, true]
        );
    }

    #[test]
    fn the_machine_itself_is_shown_with_its_spread() {
        let reference = |value| Physical { name: "a line".into(), unit: "ns".into(), value };
        let text = physical_table(&[reference(310.0), reference(25.0), reference(300.0)]);
        assert!(text.contains("a line: 300.00 ns (25.00 to 310.00)"), "{text}");
        assert_eq!(physical_table(&[]), "");
    }

    #[test]
    fn plots_name_every_peer_and_size() {
        let folder = tempfile::tempdir().unwrap();
        let mut lines: Vec<String> = [32, 4096, 1 << 20]
            .into_iter()
            .flat_map(|size| {
                ["seriatim-procs", "rtrb"].map(|peer| line(peer, size, 1e9 / size as f64, 0.0, true))
            })
            .collect();
        lines.push(ping("seriatim-procs", 3000));
        let rows = rows_of(&lines);
        for (name, panels, words) in [
            (
                "throughput.svg",
                throughput_panels(&rows),
                vec!["seriatim-procs (yield)", "rtrb (yield)", "commands/s", "2x4"],
            ),
            (
                "latency.svg",
                latency_panels(&rows),
                vec!["seriatim-procs (yield)", "99.9 %", "max", "ping, 2x4, 32 B"],
            ),
        ] {
            let path = folder.path().join(name);
            draw(&path, &panels).unwrap();
            let svg = fs::read_to_string(path).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("<polyline"), "{svg}");
            words.iter().for_each(|word| assert!(svg.contains(word), "no {word} in {svg}"));
        }
    }
}
