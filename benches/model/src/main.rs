//! The model of scale: how many cache lines move for a command, and what throughput that makes with more workers than
//! there are cores here.
//!
//! ```text
//! cargo transfers ──▶ the real code under `cfg(seriatim_trace)`, on one thread ─▶ simulated caches ─▶ transfers, by shape
//! predict ──▶ transfers × this machine's times (measured, or given) + the work alone (measured) ──▶ commands a second
//!        └──▶ --measure: the same shapes on threads, and how far the prediction was off
//! ```
//!
//! `benches/scale` does one after the other. Counting and predicting are two builds of this program: one that has its
//! accesses traced would be too slow to time, and one that is timed hears of no access.

#[cfg(any(test, seriatim_trace))]
mod coherence;
mod count;
#[cfg(seriatim_trace)]
mod drive;
mod machine;
mod measure;
mod predict;
mod report;
#[cfg(seriatim_trace)]
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use seriatim::Config;

/// Cells of each lane, and bytes: the library's default.
const LANE: (u64, u64) = (4096, 4 << 20);

/// The default region, for so many.
fn region(producers: usize, workers: usize) -> Config {
    let (cells, bytes) = LANE;
    Config::new().producers(producers as u64).workers(workers as u64).lane_cells(cells).lane_bytes(bytes)
}

/// Counts cache lines that move for a command, and predicts throughput from that.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count transfers for each shape; in a build by `cargo transfers` only
    Count(Count),
    /// Predict throughput from what `count --csv` wrote
    Predict(Predict),
}

#[derive(Debug, clap::Args)]
#[cfg_attr(not(seriatim_trace), allow(dead_code, reason = "only a traced build counts"))]
struct Count {
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    producers: Vec<usize>,
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,16,64,256")]
    workers: Vec<usize>,
    /// Commands of a ticket
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    batches: Vec<usize>,
    /// Bytes of a command
    #[arg(long, value_delimiter = ',', default_value = "32,256,4096,65536")]
    payloads: Vec<usize>,
    /// Lines for `predict` instead of a table
    #[arg(long)]
    csv: bool,
    /// Also what the lines belong to
    #[arg(long, conflicts_with = "csv")]
    detail: bool,
}

#[derive(Debug, clap::Args)]
struct Predict {
    /// What `cargo transfers --csv` wrote
    file: PathBuf,
    /// Time for a line to come to a core that waits for it, in nanoseconds [default: measured]
    #[arg(long)]
    transfer_ns: Option<f64>,
    /// Time for one more line of a stream that another core wrote [default: measured]
    #[arg(long)]
    read_ns: Option<f64>,
    /// Time for one more line of a stream that is written and that another core has read [default: measured]
    #[arg(long)]
    write_ns: Option<f64>,
    /// Time for each further cache that wants a line or loses it [default: as --read-ns]
    #[arg(long)]
    copy_ns: Option<f64>,
    /// How many times longer a transfer takes between sockets
    #[arg(long, default_value_t = 2.5)]
    far: f64,
    /// Cores of a socket
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(2..))]
    socket: u64,
    /// Bandwidth of all caches of a socket together, in GB/s [default: eight streams]
    #[arg(long)]
    bandwidth: Option<f64>,
    /// Bandwidth of what comes to a socket from the others, in GB/s
    #[arg(long, default_value_t = 64.0)]
    link: f64,
    /// Also run shapes on this machine, and compare
    #[arg(long)]
    measure: bool,
    /// How often each is run
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long, in milliseconds
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(4..))]
    ms: u64,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Count(count) => count.run(),
        Command::Predict(predict) => predict.run(),
    }
}

impl Count {
    #[cfg(not(seriatim_trace))]
    fn run(self) -> Result<()> {
        anyhow::bail!(
            "this build hears of no access: `cargo transfers` makes one that does, if RUSTFLAGS is not set"
        )
    }

    #[cfg(seriatim_trace)]
    fn run(self) -> Result<()> {
        report::head(self.csv);
        for &workers in &self.workers {
            for &producers in &self.producers {
                for pace in count::Pace::ALL {
                    self.run_rig(producers, workers, pace)?;
                }
            }
        }
        Ok(())
    }

    #[cfg(seriatim_trace)]
    fn run_rig(&self, producers: usize, workers: usize, pace: count::Pace) -> Result<()> {
        ensure!(
            producers >= 1 && workers >= 1 && producers + workers < coherence::PARTIES,
            "{producers}x{workers}: 1 to {} parties can be counted, and each kind is there",
            coherence::PARTIES - 1
        );
        let mut rig = drive::Rig::new(producers, workers, pace)?;
        for &payload in &self.payloads {
            for &batch in &self.batches {
                let (counted, detail) = rig.count(batch, payload)?;
                report::counted(&counted, self.csv);
                if self.detail {
                    report::detail(&detail);
                }
            }
        }
        Ok(())
    }
}

impl Predict {
    fn run(self) -> Result<()> {
        let table = report::read(&self.file)?;
        ensure!(!table.is_empty(), "{:?} has no shapes", self.file);
        let premises = self.premises()?;
        report::premises(&premises);
        report::scale(&premises, &table)?;
        if self.measure {
            report::compare(&premises, &table, self.rounds, Duration::from_millis(self.ms))?;
        }
        Ok(())
    }

    fn premises(&self) -> Result<predict::Premises> {
        let machine = match (self.transfer_ns, self.read_ns, self.write_ns) {
            (Some(transfer_ns), Some(read_ns), Some(write_ns)) => {
                machine::Machine { transfer_ns, read_ns, write_ns }
            }
            _ => {
                let measured = machine::Machine::measure()?;
                machine::Machine {
                    transfer_ns: self.transfer_ns.unwrap_or(measured.transfer_ns),
                    read_ns: self.read_ns.unwrap_or(measured.read_ns),
                    write_ns: self.write_ns.unwrap_or(measured.write_ns),
                }
            }
        };
        Ok(predict::Premises {
            machine,
            copy_ns: self.copy_ns.unwrap_or(machine.read_ns),
            far: self.far,
            socket: self.socket as usize,
            link: self.link,
            bandwidth: self.bandwidth.unwrap_or(8.0 * 64.0 / machine.read_ns.max(0.1)),
            cores: None,
        })
    }
}
