//! Runs a script: one command in each line, as JSON; what is asked is answered in lines of JSON. A line `"reconnect"` has
//! the controller go and come again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;

use crate::channel::CommandSender;
use crate::cluster::{Cluster, Shape};
use crate::command::{Command, Reply, Row};
use crate::controller::Controller;

/// How often to look after the engine while nobody says anything.
const LOOKS: Duration = Duration::from_millis(100);

/// Runs a script against an engine of its own.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    shape: Shape,
    /// Commands, one JSON object a line; `-` for standard input. Files in it are relative to its folder.
    #[arg(long)]
    script: PathBuf,
    /// If a process dies, starts the engine again, and brings it to where it was.
    #[arg(long)]
    restart: bool,
}

/// A line of a script.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Reconnect,
    #[serde(untagged)]
    Command(Command),
}

/// Runs it.
///
/// # Errors
/// A command is none, or the engine is gone.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let mut controller = Controller::start(args.shape, args.restart)?;
    let lines = read_lines(&args.script)?;
    let folder = args.script.parent().unwrap_or(Path::new(""));
    loop {
        let line = match lines.recv_timeout(LOOKS) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                controller.look()?;
                continue;
            }
        };
        if line.trim().is_empty() {
            continue;
        }
        match parse(&line, folder).with_context(|| line.clone())? {
            Line::Reconnect => controller.reconnect()?,
            Line::Command(command @ Command::Peek { nonce, .. }) => {
                say(&peeked(nonce, controller.ask(&command, nonce)?))?;
            }
            Line::Command(command) => controller.send(&command)?,
        }
    }
    let (cluster, sender) = controller.parts()?;
    let (fingerprint, commands) = agreed_fingerprint(cluster, sender)?;
    for why in refused_by_all(cluster, args.shape.peers())? {
        say(&json!({ "refused": why }))?;
    }
    say(&json!({ "fingerprint": format!("{fingerprint:016x}"), "commands": commands }))?;
    cluster.shut_down(sender)?;
    Ok(())
}

/// A line at once, for whoever reads along.
pub(crate) fn say(value: &serde_json::Value) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// Reads on a thread of its own, so that the engine's end is noticed while the script waits.
fn read_lines(path: &Path) -> Result<mpsc::Receiver<io::Result<String>>> {
    let (sender, lines) = mpsc::channel();
    let reader: Box<dyn BufRead + Send> = if path == Path::new("-") {
        Box::new(BufReader::new(io::stdin()))
    } else {
        Box::new(BufReader::new(File::open(path).with_context(|| path.display().to_string())?))
    };
    std::thread::spawn(move || reader.lines().try_for_each(|line| sender.send(line)));
    Ok(lines)
}

fn parse(line: &str, folder: &Path) -> Result<Line> {
    let mut line = serde_json::from_str(line)?;
    if let Line::Command(Command::CreateDataflow { plan, .. }) = &mut line {
        let edges = folder.join(plan.edges());
        *plan.edges_mut() = std::path::absolute(edges)?;
    }
    Ok(line)
}

/// All workers' parts as one result; or why there is none.
fn peeked(nonce: u64, replies: Vec<Reply>) -> serde_json::Value {
    let mut rows = BTreeMap::<Row, i64>::new();
    for reply in replies {
        match reply {
            Reply::Rows { rows: part, .. } => {
                part.into_iter().for_each(|(row, count)| *rows.entry(row).or_default() += count);
            }
            Reply::Refused { why, .. } => return json!({ "peek": nonce, "refused": why }),
            _ => {}
        }
    }
    json!({ "peek": nonce, "rows": Vec::from_iter(rows) })
}

/// The fingerprint of every worker at one place of the order, and how many commands they had carried out there.
///
/// # Errors
/// They differ.
pub(crate) fn agreed_fingerprint(
    cluster: &mut Cluster,
    sender: &mut dyn CommandSender,
) -> Result<(u64, u64)> {
    let nonce = cluster.fresh_nonce();
    cluster.send(sender, &Command::Fingerprint { nonce })?;
    let answers = cluster.answers(nonce)?;
    let mut found = BTreeMap::<(u64, u64), Vec<usize>>::new();
    for answer in answers {
        if let Reply::Fingerprint { worker, fingerprint, commands, .. } = answer {
            found.entry((fingerprint, commands)).or_default().push(worker);
        }
    }
    match found.first_key_value() {
        Some((&same, _)) if found.len() == 1 => Ok(same),
        _ => bail!("workers differ: (fingerprint, commands) and who has it: {found:?}"),
    }
}

/// What was refused, once each.
///
/// # Errors
/// Some refused what others did not.
fn refused_by_all(cluster: &Cluster, peers: usize) -> Result<BTreeSet<String>> {
    let mut by = BTreeMap::<&str, BTreeSet<usize>>::new();
    for (worker, why) in &cluster.refused {
        by.entry(why).or_default().insert(*worker);
    }
    if let Some((why, workers)) = by.iter().find(|(_, workers)| workers.len() < peers) {
        bail!("only workers {workers:?} of {peers} refused: {why}");
    }
    Ok(by.into_keys().map(str::to_owned).collect())
}
