//! Measures what a command costs on its way: both channels in one run, round by round in turn, so that whatever else
//! the machine does meets both. What counts is the ratio.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use seriatim::channel::History;

use crate::channel::CommandSender;
use crate::clock;
use crate::cluster::{Cluster, Shape};
use crate::command::{Command, Ordered, Reply, Report};
use crate::process::Kind;

/// Measures latency from the controller to all workers, and processor time for each command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Workers in all.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    workers: Vec<usize>,
    /// Processes that they are in.
    #[arg(long, default_value_t = 1)]
    processes: usize,
    /// Bytes of a command.
    #[arg(long, value_delimiter = ',', default_value = "64,65536,1048576,8388608")]
    sizes: Vec<usize>,
    /// Rounds of each channel; one more comes first and does not count.
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Bytes of its own that the controller writes before each command, and each worker after it: what a large command
    /// does to the caches of all, for small ones.
    #[arg(long, default_value_t = 0)]
    between: usize,
}

/// How commands come.
#[derive(Clone, Copy)]
enum Pace {
    /// One after the other, each when the one before it is long done: for latency.
    Apart,
    /// As fast as the channel takes them.
    AtOnce,
}

/// Runs it.
///
/// # Errors
/// An engine is gone.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    println!("A ratio is worker0 / seriatim. Times are per command, in microseconds of this machine.");
    for &peers in &args.workers {
        for &size in &args.sizes {
            let shape =
                |channel| Shape { channel, processes: args.processes, workers: peers / args.processes };
            let kinds = [Kind::Worker0, Kind::Seriatim];
            let mut engines = Vec::new();
            for kind in kinds {
                engines.push(Engine::start(shape(kind), size)?);
            }
            let body = vec![120; size];
            let (mut by_worker_0, mut sent) = (0, 0);
            // What is to be seen of the caches shows where each command has a turn of its own.
            let paces = [Pace::Apart, Pace::AtOnce];
            for &pace in if args.between == 0 { &paces[..] } else { &paces[..1] } {
                for round in 0..=args.rounds {
                    for engine in &mut engines {
                        let costs = engine.round(&body, pace, &mut vec![0; args.between])?;
                        if round > 0 {
                            engine.seen.add(costs);
                        }
                    }
                }
                let seen: Vec<Costs> =
                    engines.iter_mut().map(|engine| std::mem::take(&mut engine.seen)).collect();
                println!("\n{}", table(peers, args.processes, size, pace, &seen[0], &seen[1]));
                by_worker_0 += seen[0].workers.get(&0).copied().unwrap_or(0);
                sent += seen[0].commands;
            }
            println!("\n{}", idle(&mut engines)?);
            for engine in engines {
                if let Some(Ordered { commands, cpu_ns }) = engine.end()? {
                    // Of all of its commands, at both paces: it tells when it has ended.
                    let (w, s) = (by_worker_0 as f64 / sent as f64, cpu_ns as f64 / commands as f64);
                    println!("{}", line("processor time, who orders", w, s));
                }
            }
        }
    }
    Ok(())
}

struct Engine {
    cluster: Cluster,
    controller: Box<dyn CommandSender>,
    shape: Shape,
    seen: Costs,
}

/// What was measured, in nanoseconds.
#[derive(Default)]
struct Costs {
    /// From before the controller sends to when the last worker has it, for each command.
    latencies: Vec<u64>,
    commands: u64,
    /// From the first command sent to the last one heard by all.
    elapsed: u64,
    /// Processor time of each worker's thread.
    workers: BTreeMap<usize, u64>,
    /// Processor time of all threads of the engine's processes.
    processes: u64,
    /// Processor time of the controller's thread, in sending.
    controller: u64,
}

impl Costs {
    fn add(&mut self, other: Costs) {
        self.latencies.extend(other.latencies);
        self.commands += other.commands;
        self.elapsed += other.elapsed;
        self.processes += other.processes;
        self.controller += other.controller;
        for (worker, cpu) in other.workers {
            *self.workers.entry(worker).or_default() += cpu;
        }
    }
}

impl Engine {
    fn start(shape: Shape, largest: usize) -> Result<Engine> {
        let mut cluster = Cluster::start(shape, 1, largest)?;
        let (controller, _) = cluster.controller(&History::new())?;
        Ok(Engine { cluster, controller, shape, seen: Costs::default() })
    }

    fn reports(&mut self) -> Result<BTreeMap<usize, Report>> {
        let nonce = self.cluster.fresh_nonce();
        self.cluster.send(&mut *self.controller, &Command::Report { nonce })?;
        let answers = self.cluster.answers(nonce)?;
        let report = |reply| {
            if let Reply::Report { worker, report, .. } = reply { Some((worker, report)) } else { None }
        };
        Ok(answers.into_iter().filter_map(report).collect())
    }

    /// Some commands of a size, and what they cost.
    fn round(&mut self, body: &[u8], pace: Pace, between: &mut [u8]) -> Result<Costs> {
        // Long enough for the slower one to be done; not so many that a round takes seconds.
        let (count, gap) = match body.len() {
            0..4096 => (200, Duration::from_micros(500)),
            4096..262_144 => (100, Duration::from_millis(1)),
            _ => (30, Duration::from_millis(10)),
        };
        let before = self.reports()?;
        let (mut sent, mut controller) = (Vec::new(), 0);
        for nonce in 0..count {
            std::hint::black_box(&mut *between).fill(nonce as u8);
            let command = Command::Echo { nonce, sweep: between.len(), body: body.to_owned() };
            let (at, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
            self.cluster.send(&mut *self.controller, &command)?;
            controller += clock::thread_cpu_ns() - cpu;
            sent.push(at);
            if let Pace::Apart = pace {
                thread::sleep(gap);
            }
        }
        let after = self.reports()?;
        self.costs(&before, &after, &sent, controller)
    }

    fn costs(
        &self,
        before: &BTreeMap<usize, Report>,
        after: &BTreeMap<usize, Report>,
        sent: &[u64],
        controller: u64,
    ) -> Result<Costs> {
        let mut costs = Costs { commands: sent.len() as u64, controller, ..Costs::default() };
        let mut heard = vec![0; sent.len()];
        for (worker, report) in after {
            for &(nonce, at) in &report.echoes {
                let last = heard.get_mut(nonce as usize).context("an echo of another round")?;
                *last = at.max(*last);
            }
            let earlier = before.get(worker).context("a worker did not report")?;
            costs.workers.insert(*worker, report.cpu_ns - earlier.cpu_ns);
        }
        // Each worker tells of its whole process; the last one to look has seen what the others have used.
        let process = |reports: &BTreeMap<usize, Report>, first: usize| {
            let of_its = reports.range(first..first + self.shape.workers);
            of_its.map(|(_, report)| report.process_cpu_ns).max().unwrap_or(0)
        };
        for first in (0..self.shape.peers()).step_by(self.shape.workers) {
            costs.processes += process(after, first) - process(before, first);
        }
        costs.latencies = heard.iter().zip(sent).map(|(heard, sent)| heard.saturating_sub(*sent)).collect();
        let (first, last) = (sent.first().copied().unwrap_or(0), heard.iter().copied().max().unwrap_or(0));
        costs.elapsed = last.saturating_sub(first);
        Ok(costs)
    }

    fn end(mut self) -> Result<Option<Ordered>> {
        self.cluster.shut_down(&mut *self.controller)
    }
}

fn table(
    peers: usize,
    processes: usize,
    size: usize,
    pace: Pace,
    worker0: &Costs,
    seriatim: &Costs,
) -> String {
    let mut text = String::new();
    let how = match pace {
        Pace::Apart => "one at a time",
        Pace::AtOnce => "as fast as it takes them",
    };
    let mut row = |what: &str, of: &dyn Fn(&Costs) -> f64| {
        // Nothing to write to a string can fail.
        let _ = writeln!(text, "{}", line(what, of(worker0), of(seriatim)));
    };
    let each = |costs: &Costs, ns: u64| ns as f64 / costs.commands as f64;
    let all = |costs: &Costs| costs.workers.values().sum::<u64>();
    match pace {
        Pace::Apart => {
            row("latency to all workers, median", &|costs| percentile(&costs.latencies, 50));
            row("latency to all workers, 99 %", &|costs| percentile(&costs.latencies, 99));
        }
        Pace::AtOnce => row("time until all have it", &|costs| each(costs, costs.elapsed)),
    }
    row("processor time, worker 0", &|costs| each(costs, costs.workers.get(&0).copied().unwrap_or(0)));
    row("processor time, each other worker", &|costs| {
        let others = all(costs) - costs.workers.get(&0).copied().unwrap_or(0);
        each(costs, others) / (costs.workers.len() as f64 - 1.0)
    });
    row("processor time, other threads", &|costs| each(costs, costs.processes.saturating_sub(all(costs))));
    row("processor time, engine in all", &|costs| each(costs, costs.processes));
    row("processor time, controller's send", &|costs| each(costs, costs.controller));
    let title = format!("{peers} workers in {processes} process(es), {size} bytes, {how}");
    format!("{title}\n{:<34} {:>12} {:>12} {:>8}\n{}", "", "worker0", "seriatim", "ratio", text.trim_end())
}

/// What takes so many nanoseconds with either channel.
fn line(what: &str, worker0: f64, seriatim: f64) -> String {
    format!("{what:<34} {:>12} {:>12} {:>8.2}", micros(worker0), micros(seriatim), worker0 / seriatim)
}

/// What engines use while nobody says anything: workers that wait as they should use next to nothing.
fn idle(engines: &mut [Engine]) -> Result<String> {
    let befores = engines.iter_mut().map(Engine::reports).collect::<Result<Vec<_>>>()?;
    thread::sleep(Duration::from_secs(1));
    let afters = engines.iter_mut().map(Engine::reports).collect::<Result<Vec<_>>>()?;
    let mut used = Vec::new();
    for (engine, (before, after)) in engines.iter().zip(befores.iter().zip(&afters)) {
        used.push(micros(engine.costs(before, after, &[], 0)?.processes as f64));
    }
    Ok(format!("{:<34} {:>12} {:>12}", "an idle second, engine in all", used[0], used[1]))
}

fn percentile(values: &[u64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0) as f64
}

fn micros(ns: f64) -> String {
    format!("{:.2}", ns / 1000.0)
}
