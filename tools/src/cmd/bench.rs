//! `seriatim bench`: the sequenced broadcast, measured; what each part does is in [`bench`](crate::bench).

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use seriatim::DigestOf;

use crate::args::{seconds, size};
use crate::bench::machine::{self, DISTURBED, Watch};
use crate::bench::{Fault, Job, Latency, Mode, Record, Strategy};
use crate::output::{self, Align, Table, complain, grouped, time_ns};
use crate::{Outcome, child};

/// How often a measurement that others disturbed is taken again.
const REPEATS: usize = 2;

const EXAMPLES: &str = "\
Examples:
  seriatim bench --sizes 32,4K --shapes 1x1,2x4 --ms 300 --rounds 3
  seriatim bench --mode ping --sizes 32 --shapes 2x4 --as threads,processes
  seriatim bench --mode paced:20000 --wait block --sizes 32 --json
  seriatim bench --sizes 64K --digest payload,off --out results.jsonl

Each measurement runs in a process of its own, which is killed if it hangs; rounds are outermost, so that the machine's
moods meet all alike. Every command is checked by every worker, and all workers must have seen one order.
Exit code: 0 if every check held, 1 if one did not or a measurement failed, 2 if it could not run.";

/// Measure: producers submit as fast as there is room, or one at a time, or on a schedule; every worker receives, reads
/// and checks every command.
///
/// Prints a table at the end, or a JSON line for each measurement.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Payload bytes of a command, multiples of 8; K and M are taken
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = payload, default_value = "32,256,4K,64K,1M")]
    sizes: Vec<usize>,
    /// Producers x workers
    #[arg(long, value_name = "PxW", value_delimiter = ',', value_parser = shape, default_value = "1x1,2x1,1x2,2x4,4x8")]
    shapes: Vec<(usize, usize)>,
    /// throughput, ping (one command in flight in all), or paced:RATE (so many commands a second in all)
    #[arg(long, value_name = "MODE", default_value_t = Mode::Throughput)]
    mode: Mode,
    /// How everybody waits: spin, yield, block (the library's park), or default, which is yield
    #[arg(long, value_name = "HOW", default_value = "default")]
    wait: Strategy,
    /// The measured time in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    ms: u64,
    /// Time before that, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300)]
    warmup_ms: u64,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Commands that each producer may have in flight, and runs in the order [default: 2 MiB of payloads, 16 to 4096]
    #[arg(long, value_name = "N", value_parser = slots)]
    slots: Option<u64>,
    /// Workers read the first word of each payload only
    #[arg(long)]
    untouched: bool,
    /// What the parts are: threads, or processes, the sequencer too; assisted: threads that make the sequencer's turns
    #[arg(long = "as", value_name = "WHAT", value_enum, value_delimiter = ',', default_value = "processes")]
    kinds: Vec<As>,
    /// What digests cover: payload, header or off
    #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "payload")]
    digest: Vec<DigestOf>,
    /// Commands in a ticket [default: 16 KiB, 1 to 32 commands; one where latency is measured]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = batch)]
    batch: Vec<usize>,
    /// Append the JSON lines to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Wait for others to leave the machine alone before, and after a measurement that they disturbed, which is then taken
    /// again; so many seconds at most
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    patience: Duration,
    /// How much longer than its time a measurement may take before it is killed, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds)]
    limit: Duration,
    /// Print the JSON lines instead of the table
    #[arg(long)]
    json: bool,
    /// Something to go wrong, for tests
    #[arg(long, hide = true, value_enum)]
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum As {
    Threads,
    Assisted,
    Processes,
}

fn payload(text: &str) -> Result<usize> {
    let bytes = size(text)?;
    ensure!(
        bytes >= 8 && bytes.is_multiple_of(8),
        "{bytes} bytes are no payload: multiples of 8 from 8 on are"
    );
    ensure!(bytes <= 1 << 30, "{bytes} bytes are too large: 1G is the most");
    Ok(bytes as usize)
}

fn shape(text: &str) -> Result<(usize, usize)> {
    let (producers, workers) =
        text.split_once('x').with_context(|| format!("`{text}` is no shape like 2x4"))?;
    let number = |text: &str| text.parse::<usize>().with_context(|| format!("`{text}` is no number"));
    let shape = (number(producers)?, number(workers)?);
    ensure!(
        (1..=1000).contains(&shape.0) && (1..=1024).contains(&shape.1),
        "{text} is no shape: 1 to 1000 producers and 1 to 1024 workers are"
    );
    Ok(shape)
}

fn slots(text: &str) -> Result<u64> {
    let slots = size(text)?;
    let fits = slots.is_power_of_two() && (2..=1 << 18).contains(&slots);
    ensure!(fits, "{slots} are no slots: a power of two from 2 to 262144 is");
    Ok(slots)
}

fn batch(text: &str) -> Result<usize> {
    let batch: usize = text.parse().with_context(|| format!("`{text}` is no number"))?;
    ensure!(batch > 0, "a ticket has one command or more");
    Ok(batch)
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let jobs = self.jobs()?;
        let mut out = Out::open(self.out.as_deref(), self.json)?;
        let bar = progress(jobs.len() as u64 * self.rounds);
        machine::wait_for_quiet(self.patience);
        let mut records = Vec::new();
        for round in 0..self.rounds {
            for job in &jobs {
                bar.set_message(format!("{} {}x{} {} B", job.peer, job.producers, job.workers, job.size));
                let record = Record { round: round as usize, ..self.undisturbed(job) };
                if let Some(error) = &record.error {
                    let (peer, size) = (&record.peer, record.size);
                    let shape = format!("{}x{}", record.producers, record.workers);
                    bar.suspend(|| complain(format_args!("{peer} {shape} {size} B: {error}")));
                }
                out.line(&record)?;
                records.push(record);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        if !self.json {
            print_table(&records).context("cannot write to standard output")?;
        }
        Ok(if records.iter().all(|record| record.ok) { Outcome::Done } else { Outcome::Problem })
    }

    /// What one round measures, in its order.
    fn jobs(&self) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for &(producers, workers) in &self.shapes {
            for &size in &self.sizes {
                for variant in self.variants() {
                    let slots = self.slots.unwrap_or_else(|| Job::default_slots(size));
                    let job = Job {
                        peer: variant.name(),
                        processes: variant.kind == As::Processes,
                        assisted: variant.kind == As::Assisted,
                        producers,
                        workers,
                        size,
                        wait: self.wait,
                        touch: !self.untouched,
                        mode: self.mode,
                        warmup_ms: self.warmup_ms,
                        duration_ms: self.ms,
                        slots,
                        batch: self.batch(variant.batch, size, slots)?,
                        digest: variant.digest.to_string(),
                        fault: self.fault,
                    };
                    job.config()?.region_bytes()?;
                    jobs.push(job);
                }
            }
        }
        Ok(jobs)
    }

    /// How many commands a ticket is to have.
    fn batch(&self, asked: Option<usize>, size: usize, slots: u64) -> Result<usize> {
        let Some(batch) = asked else { return Ok(Job::default_batch(self.mode, size, slots)) };
        let most = Job::max_batch(slots);
        ensure!(
            batch == 1 || self.mode == Mode::Throughput,
            "--batch {batch} is for throughput: with --mode {} each command has its own time",
            self.mode
        );
        ensure!(batch <= most, "--batch {batch} is too large for {slots} slots: {most} is the most");
        Ok(batch)
    }

    /// What is measured beside each other.
    fn variants(&self) -> Vec<Variant> {
        let batches: Vec<Option<usize>> = match &self.batch[..] {
            [] => vec![None],
            asked => asked.iter().copied().map(Some).collect(),
        };
        let mut variants = Vec::new();
        for &kind in &self.kinds {
            for &digest in &self.digest {
                variants.extend(batches.iter().map(|&batch| Variant { kind, digest, batch }));
            }
        }
        variants
    }

    /// A measurement, taken again if others disturbed it and there is patience for that.
    fn undisturbed(&self, job: &Job) -> Record {
        let repeats = if self.patience.is_zero() { 0 } else { REPEATS };
        for _ in 0..repeats {
            let record = self.measure(job);
            if record.foreign_cores < DISTURBED {
                return record;
            }
            machine::wait_for_quiet(self.patience);
        }
        self.measure(job)
    }

    fn measure(&self, job: &Job) -> Record {
        let watch = Watch::start();
        let mut record = match self.in_child(job) {
            Ok(record) => record,
            Err(error) => Record::failed(job, output::causes(&error)),
        };
        if record.error.is_none() {
            record.foreign_cores = watch.foreign_cores(record.cpu_s);
        }
        record
    }

    /// Does a job in a fresh process, which is killed if it hangs.
    fn in_child(&self, job: &Job) -> Result<Record> {
        let mut command = child::again("bench-one");
        command.args(["--job", &serde_json::to_string(job)?]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start it")?;
        let mut stdout = child.stdout.take().context("no pipe from it")?;
        let reader = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).map(|_| text)
        });
        let time = Duration::from_millis(job.warmup_ms + job.duration_ms);
        let deadline = Instant::now() + time + self.limit;
        let status = loop {
            if let Some(status) = child.try_wait().context("cannot wait for it")? {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().context("cannot kill it")?;
                child.wait().context("cannot wait for it")?;
                bail!("it hung, and was killed after {:?}", time + self.limit);
            }
            thread::sleep(Duration::from_millis(5));
        };
        ensure!(status.success(), "it ended with {status}");
        let text =
            reader.join().map_err(|_| anyhow!("its reader panicked"))?.context("cannot read its result")?;
        serde_json::from_str(text.trim()).context("it had no result")
    }
}

/// One way to do the job.
struct Variant {
    kind: As,
    digest: DigestOf,
    /// If it was asked for.
    batch: Option<usize>,
}

impl Variant {
    fn name(&self) -> String {
        let kind = match self.kind {
            As::Threads => "threads",
            As::Assisted => "assisted",
            As::Processes => "procs",
        };
        let batch = self.batch.map_or(String::new(), |batch| format!("-batch{batch}"));
        let digest = match self.digest {
            DigestOf::Payload => String::new(),
            other => format!("-digest-{other}"),
        };
        format!("seriatim-{kind}{batch}{digest}")
    }
}

/// Where the lines go.
struct Out {
    file: Option<File>,
    path: String,
    json: bool,
}

impl Out {
    fn open(path: Option<&Path>, json: bool) -> Result<Out> {
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.with_context(|| format!("cannot open {}", path.display()))
        };
        let shown = path.map_or(String::new(), |path| path.display().to_string());
        Ok(Out { file: path.map(open).transpose()?, path: shown, json })
    }

    fn line(&mut self, record: &Record) -> Result<()> {
        let line = serde_json::to_string(record)?;
        if let Some(file) = &mut self.file {
            writeln!(file, "{line}").with_context(|| format!("cannot write {}", self.path))?;
        }
        if self.json {
            writeln!(io::stdout().lock(), "{line}").context("cannot write to standard output")?;
        }
        Ok(())
    }
}

fn progress(measurements: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(measurements);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos} of {len}, {eta} left: {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

// ---- the table --------------------------------------------------------------------------------------------

fn print_table(records: &[Record]) -> io::Result<()> {
    let is_throughput = records.iter().all(|record| record.latency.is_none());
    let numbers = match is_throughput {
        true => ["COMMANDS/S", "MIN", "MAX", "GB/S"],
        false => ["P50", "P99", "P99.9", "MAX"],
    };
    let left = ["PEER", "WAIT", "SHAPE"].map(|title| (title, Align::Left));
    let [a, b, c, d] = numbers.map(|title| (title, Align::Right));
    let mut table =
        Table::new([left[0], left[1], left[2], ("BYTES", Align::Right), a, b, c, d, ("QUIET", Align::Right)]);
    let mut seen: Vec<(&str, usize, usize, usize)> = Vec::new();
    for record in records {
        let cell = cell_of(record);
        if !seen.contains(&cell) {
            seen.push(cell);
            let same: Vec<&Record> = records.iter().filter(|other| cell_of(other) == cell).collect();
            table.row(row(record, &same));
        }
    }
    let mut out = io::stdout().lock();
    table.write(&mut out)?;
    writeln!(out)?;
    writeln!(
        out,
        "Medians over the rounds that were quiet: others used less than {DISTURBED} cores. If none was, over all."
    )
}

fn cell_of(record: &Record) -> (&str, usize, usize, usize) {
    (&record.peer, record.producers, record.workers, record.size)
}

/// The rounds of one cell, in one row.
fn row(record: &Record, rounds: &[&Record]) -> [String; 9] {
    let good: Vec<&Record> = rounds.iter().copied().filter(|record| record.ok).collect();
    let quiet: Vec<&Record> =
        good.iter().copied().filter(|record| record.foreign_cores < DISTURBED).collect();
    let told = format!("{} of {}", quiet.len(), rounds.len());
    let taken = if quiet.is_empty() { &good } else { &quiet };
    let numbers = match taken.iter().all(|record| record.latency.is_none()) {
        _ if taken.is_empty() => ["failed", "-", "-", "-"].map(String::from),
        true => {
            let rates = sorted(taken.iter().map(|record| record.commands_per_s));
            let gb = sorted(taken.iter().map(|record| record.payload_gb_per_s));
            let rate = |rate: f64| grouped(rate as u64);
            [
                rate(median(&rates)),
                rate(rates[0]),
                rate(rates[rates.len() - 1]),
                format!("{:.3}", median(&gb)),
            ]
        }
        false => {
            let of = |pick: fn(&Latency) -> u64| {
                let values =
                    taken.iter().filter_map(|record| record.latency.as_ref()).map(|l| pick(l) as f64);
                time_ns(median(&sorted(values)) as u64)
            };
            [of(|l| l.p50_ns), of(|l| l.p99_ns), of(|l| l.p999_ns), of(|l| l.max_ns)]
        }
    };
    let [a, b, c, d] = numbers;
    let shape = format!("{}x{}", record.producers, record.workers);
    [record.peer.clone(), record.wait.to_string(), shape, record.size.to_string(), a, b, c, d, told]
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Of sorted values; 0 of none.
fn median(sorted: &[f64]) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    (sorted[last / 2] + sorted[sorted.len() / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!([&[][..], &[3.0], &[1.0, 2.0], &[1.0, 2.0, 9.0]].map(median), [0.0, 3.0, 1.5, 2.0]);
    }

    #[test]
    fn variants_have_names_of_their_own() {
        let name = |kind, digest, batch| Variant { kind, digest, batch }.name();
        assert_eq!(name(As::Threads, DigestOf::Payload, None), "seriatim-threads");
        assert_eq!(name(As::Processes, DigestOf::Off, Some(1)), "seriatim-procs-batch1-digest-off");
    }
}
