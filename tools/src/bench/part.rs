//! One part of a measurement, be it a thread or a process of its own: a producer, a worker, or the sequencer.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use seriatim::{
    AttachOptions, JoinOptions, Producer, Region, Sequencer, SequencerConfig, SequencerHandle, Worker,
};

use super::board::{Board, LOOK};
use super::ends::{Receipt, Sink, Source};
use super::{Fault, Job};
use crate::{Outcome, child, output};

/// With more parts than cores a hand-shake may take a while; a part that died is noticed otherwise.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);

/// Events that a worker takes at a time.
const BATCH: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Part {
    Producer(usize),
    Worker(usize),
    /// In processes; among threads the library's own thread does it.
    Sequencer,
}

impl Part {
    pub(super) fn name(self) -> String {
        match self {
            Part::Producer(number) => format!("p{number}"),
            Part::Worker(number) => format!("w{number}"),
            Part::Sequencer => "sequencer".into(),
        }
    }
}

/// A part's last word.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    Done,
    Received(Receipt),
    Failed(String),
}

/// Plays a part to its end.
pub(super) fn play(job: &Job, part: Part, region: &Region, board: &Board) -> Result<Said> {
    match part {
        Part::Producer(number) => produce(job, number, &part.name(), region, board),
        Part::Worker(number) => receive(job, number, &part.name(), region, board),
        Part::Sequencer => serve(sequence(job, region)?),
    }
}

fn produce(job: &Job, number: usize, name: &str, region: &Region, board: &Board) -> Result<Said> {
    let options = AttachOptions::new().timeout(ATTACH_TIMEOUT).wait(job.wait.of_library());
    let mut producer = Producer::attach_with(region, name, &options)?;
    board.arrive();
    while board.begun_ns().is_none() {
        std::thread::sleep(LOOK);
    }
    let mut source = Source::new(job, board, number);
    while let Some(frames) = source.next() {
        if let [(kind, frame)] = frames {
            producer.submit(*kind, frame)?;
        } else {
            producer.submit_batch(frames)?;
        }
    }
    Ok(Said::Done)
}

fn receive(job: &Job, number: usize, name: &str, region: &Region, board: &Board) -> Result<Said> {
    let options = JoinOptions::new().timeout(ATTACH_TIMEOUT).wait(job.wait.of_library());
    let mut worker = Worker::join_with(region, name, &options.release_every(job.release_every()?))?;
    let mut sink = Sink::new(job, board, number, worker.first())?;
    board.arrive();
    while board.begun_ns().is_none() {
        // Others come, and the order has only so much room for saying so.
        worker.poll_batch(BATCH, |event| sink.take(&event))?;
        std::thread::sleep(LOOK);
    }
    while !sink.is_done() {
        worker.recv_batch(BATCH, None, |event| sink.take(&event))?;
        if job.fault == Some(Fault::Death) && number == 0 {
            die(job)?;
        }
    }
    worker.leave();
    Ok(Said::Received(sink.receipt()))
}

fn die(job: &Job) -> Result<()> {
    if job.processes {
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL)?;
    }
    panic!("it was asked to");
}

/// A sequencer on a thread of its own.
pub(super) fn sequence(job: &Job, region: &Region) -> Result<SequencerHandle> {
    let config = SequencerConfig::new().wait(job.wait.of_library()).assist(job.assisted);
    Sequencer::spawn(region, config).context("cannot start the sequencer")
}

/// Serves until standard input ends.
fn serve(sequencer: SequencerHandle) -> Result<Said> {
    let (tell, ended) = mpsc::channel::<()>();
    std::thread::Builder::new().name("ear of the parent".into()).spawn(move || {
        let _until_here = tell;
        io::stdin().lock().bytes().take_while(Result::is_ok).for_each(drop);
    })?;
    while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
        if sequencer.is_finished() {
            sequencer.stop()?;
            bail!("it ended early");
        }
    }
    sequencer.stop()?;
    Ok(Said::Done)
}

#[derive(Debug, clap::Args)]
pub(crate) struct PartArgs {
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    job: String,
    #[arg(long)]
    part: String,
    #[arg(long)]
    region: PathBuf,
    #[arg(long)]
    board: PathBuf,
}

impl PartArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        child::tie_to(self.parent, "bench")?;
        let said = self.play().unwrap_or_else(|error| Said::Failed(output::causes(&error)));
        let line = serde_json::to_string(&said)?;
        writeln!(io::stdout().lock(), "{line}").context("cannot tell the parent")?;
        Ok(Outcome::Done)
    }

    fn play(&self) -> Result<Said> {
        let job: Job = serde_json::from_str(&self.job).context("bad job")?;
        let part: Part = serde_json::from_str(&self.part).context("bad part")?;
        let region = Region::attach(&self.region)?;
        let board = Board::open(&job, &self.board).context("cannot open the board")?;
        play(&job, part, &region, &board)
    }
}
