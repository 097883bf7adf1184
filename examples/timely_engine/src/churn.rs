//! Dataflows that come and go, from several producers at once: what has to leave every worker with the same numbering.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::json;
use seriatim::channel::History;

use crate::channel::CommandSender;
use crate::cluster::{Cluster, Shape};
use crate::command::{Command, Plan};
use crate::script::agreed_fingerprint;

/// How often to ask before it is said that something is missing.
const QUESTIONS: usize = 1000;
/// How long a dataflow can take to be built everywhere, on a busy machine: the first answer comes after all of them.
const EACH: Duration = Duration::from_millis(100);

/// Creates and drops dataflows from several producers, then compares all workers' fingerprints.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ChurnArgs {
    #[command(flatten)]
    shape: Shape,
    /// Commands in all.
    #[arg(long, default_value_t = 10_000)]
    commands: usize,
    /// Producers: the controller, and others.
    #[arg(long, default_value_t = 3)]
    producers: usize,
    /// An edge list.
    #[arg(long)]
    edges: PathBuf,
}

/// Runs it.
///
/// # Errors
/// Workers differ, or the engine is gone.
pub(crate) fn run(args: &ChurnArgs) -> Result<()> {
    let mut cluster = Cluster::start(args.shape, args.producers, 0)?;
    cluster.patience += EACH * u32::try_from(args.commands)?;
    let edges = std::path::absolute(&args.edges)?;
    let (controller, _) = cluster.controller(&History::new())?;
    let others = (1..args.producers).map(|number| cluster.sender(number));
    let senders: Vec<_> = std::iter::once(Ok(controller)).chain(others).collect::<Result<_>>()?;
    // Half of them create, half drop.
    let dataflows = args.commands / 2;
    let share = |number: usize| (number..dataflows).step_by(args.producers);
    let sent: Result<Vec<_>> = thread::scope(|scope| {
        let start = |(number, sender)| {
            let edges = &edges;
            scope.spawn(move || come_and_go(sender, share(number), edges))
        };
        let threads: Vec<_> = senders.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a producer panicked"))?).collect()
    });
    let mut senders = match sent {
        Ok(senders) => senders,
        Err(error) => return Err(cluster.check().err().unwrap_or(error)),
    };
    let expected = 2 * dataflows as u64;
    for asked in 0..QUESTIONS as u64 {
        // Only one of the channels has a question behind what others had sent before it. It counts as a command, too.
        let (fingerprint, commands) = agreed_fingerprint(&mut cluster, &mut *senders[0])?;
        if commands - asked == expected {
            if let Some((worker, why)) = cluster.refused.first() {
                bail!("worker {worker} refused: {why}");
            }
            println!(
                "{}",
                json!({ "fingerprint": format!("{fingerprint:016x}"), "commands": commands, "asked": asked + 1 })
            );
            cluster.shut_down(&mut *senders[0])?;
            return Ok(());
        }
    }
    bail!("not all of {expected} commands have come")
}

/// A producer's part: each dataflow is dropped a little after it was created, with others in between.
fn come_and_go(
    mut sender: Box<dyn CommandSender>,
    dataflows: impl Iterator<Item = usize>,
    edges: &Path,
) -> Result<Box<dyn CommandSender>> {
    let mut created = std::collections::VecDeque::new();
    for n in dataflows {
        let (id, edges) = (n as u64, edges.to_owned());
        let plan = match n % 3 {
            0 => Plan::FilterCount { edges, divisor: 2 },
            1 => Plan::TwoHops { edges },
            _ => Plan::Reach { edges, from: 0 },
        };
        sender.send(&Command::CreateDataflow { id, plan })?;
        created.push_back(id);
        if created.len() > 4 {
            let id = created.pop_front().unwrap_or(id);
            sender.send(&Command::DropDataflow { id })?;
        }
    }
    for id in created {
        sender.send(&Command::DropDataflow { id })?;
    }
    Ok(sender)
}
