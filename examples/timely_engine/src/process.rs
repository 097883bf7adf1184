//! An engine process: its part of the Timely cluster, and how it ends when something else does.

use std::panic::{self, PanicHookInfo};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use seriatim::{Notifier, Region, Sequencer, SequencerConfig};
use timely::worker::Worker;
use timely::{CommunicationConfig, WorkerConfig};

use crate::channel::CommandChannel;
use crate::channel::ordered::Ordered;
use crate::channel::worker0::{Door, Worker0, listen};
use crate::command::{self, Reply};
use crate::engine;
use crate::replies::Replies;

/// Which channel an engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Seriatim,
    Worker0,
}

/// One process of an engine.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProcessArgs {
    /// Where region and sockets are.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    #[arg(long)]
    pub(crate) channel: Kind,
    /// Its number.
    #[arg(long)]
    pub(crate) process: usize,
    /// How often the engine was started before.
    #[arg(long)]
    pub(crate) run: u32,
    /// Workers of each process.
    #[arg(long)]
    pub(crate) workers: usize,
    /// Where each process listens for the others, if there are others.
    #[arg(long, value_delimiter = ',')]
    pub(crate) addresses: Vec<String>,
}

/// The file that all workers and producers attach to.
pub(crate) fn region_in(dir: &Path) -> PathBuf {
    dir.join("region")
}

/// The controller's socket, for replies.
pub(crate) fn replies_in(dir: &Path) -> PathBuf {
    dir.join("replies.sock")
}

/// A process' socket, for commands.
pub(crate) fn commands_in(dir: &Path, process: usize) -> PathBuf {
    dir.join(format!("commands-{process}.sock"))
}

/// Runs a process until it is shut down. Whatever else ends it is told to the controller first.
pub(crate) fn run(args: &ProcessArgs) -> Result<()> {
    let replies = Replies::connect(&args.dir)?;
    replies.send(&Reply::Process { process: args.process, pid: std::process::id() });
    end_at_any_panic(args.process, replies.clone());
    let outcome = match args.channel {
        Kind::Seriatim => with_seriatim(args, &replies),
        Kind::Worker0 => with_worker0(args, &replies),
    };
    let process = args.process;
    match outcome {
        Ok(sequencer) => replies.send(&Reply::Done { process, sequencer }),
        Err(error) => fail(process, &replies, format!("{error:#}")),
    }
    Ok(())
}

fn with_seriatim(args: &ProcessArgs, replies: &Replies) -> Result<Option<command::Ordered>> {
    let region = Region::attach(region_in(&args.dir))?;
    // Any process could have it. Where it is, workers can help it when processors are few.
    let config = SequencerConfig::new().measure_cpu(true);
    let sequencer = (args.process == 0).then(|| Sequencer::spawn(&region, config)).transpose()?;
    let (notifier, run) = (Arc::new(Notifier::spawn(&region)?), args.run);
    run_workers(args, replies, move |timely| Ordered::join(&region, timely, &notifier, run))?;
    let stats = sequencer.map(|sequencer| sequencer.close()).transpose()?;
    Ok(stats.map(|stats| command::Ordered { commands: stats.commands, cpu_ns: stats.cpu_ns }))
}

fn with_worker0(args: &ProcessArgs, replies: &Replies) -> Result<Option<command::Ordered>> {
    let doors: Vec<Door> = (0..args.workers).map(|_| Door::default()).collect();
    listen(&commands_in(&args.dir, args.process), doors.clone())?;
    let first = args.process * args.workers;
    run_workers(args, replies, move |timely| Ok(Worker0::build(timely, &doors[timely.index() - first])))?;
    Ok(None)
}

/// Runs this process' workers, each with its end of the channel, until all have been shut down.
fn run_workers<C: CommandChannel + 'static>(
    args: &ProcessArgs,
    replies: &Replies,
    join: impl Fn(&mut Worker) -> Result<C> + Send + Sync + 'static,
) -> Result<()> {
    let &ProcessArgs { process, workers: threads, ref addresses, .. } = args;
    let communication = if addresses.len() > 1 {
        let addresses = addresses.clone();
        CommunicationConfig::Cluster { threads, process, addresses, report: false, zerocopy: false }
    } else {
        CommunicationConfig::Process(threads)
    };
    let config = timely::Config { communication, worker: WorkerConfig::default() };
    let replies = replies.clone();
    let guards = timely::execute(config, move |timely| {
        let ran = join(timely).and_then(|mut channel| engine::run(timely, &mut channel, &replies));
        if let Err(error) = ran {
            // The others would wait for this worker's part for ever.
            fail(process, &replies, format!("worker {}: {error:#}", timely.index()));
        }
    });
    // A panic has ended the process before it gets here.
    guards
        .map_err(|error| anyhow!(error))?
        .join()
        .into_iter()
        .try_for_each(|ended| ended.map_err(|error| anyhow!(error)))
}

/// Tells the controller, and ends the process.
fn fail(process: usize, replies: &Replies, why: String) -> ! {
    eprintln!("engine process {process}: {why}");
    replies.send(&Reply::Failed { process, why });
    exit(3);
}

/// A process without one of its threads is no use to anybody and would keep all others waiting, so any panic ends it.
/// When a process dies, this is also how the others get to know: Timely's threads for its connection panic.
fn end_at_any_panic(process: usize, replies: Replies) {
    panic::set_hook(Box::new(move |info| fail(process, &replies, reason(info))));
}

fn reason(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
    let thread = std::thread::current();
    // timely:recv-1 and timely:send-1 serve process 1.
    let peer = thread.name().and_then(|name| name.strip_prefix("timely:")?.split_once('-'));
    match peer {
        Some((_, peer)) if said.starts_with("timely communication error") => {
            format!("lost its connection to engine process {peer} ({said})")
        }
        _ => format!("{said} ({:?})", info.location()),
    }
}
