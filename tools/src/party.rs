//! What one producer or one worker of `run` does, be it a thread or a process of its own.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use seriatim::journal::{Record, Replay};
use seriatim::shared::Stamps;
use seriatim::{
    AttachOptions, Command, Digest, Event, JoinOptions, Producer, Region, Seq, Wait, Worker, affinity,
};

use crate::input::Lines;
use crate::output::many;
use crate::proof::{self, Tally};

/// With more parties than cores a hand-shake may take a while; a party that died is noticed otherwise.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);

/// Commands that a worker takes at a time before it looks at how far it is behind.
const WORKER_BATCH: usize = 64;

/// Latencies above an hour are counted as an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// What all parties of one `run` have to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Where the region is.
    pub(crate) region: PathBuf,
    /// Where the input is, for parties in other processes.
    pub(crate) input: PathBuf,
    /// Where the submit times are.
    pub(crate) stamps: PathBuf,
    pub(crate) repeat: u64,
    pub(crate) producers: u64,
    /// Commands in one ticket at most.
    pub(crate) batch: usize,
    /// Payload bytes in one ticket at most, as the lane counts them.
    pub(crate) batch_bytes: usize,
    /// Submit times kept for each producer: a power of two, see [`stamp`].
    pub(crate) stamps_each: u64,
    /// By name, since `Wait` is not for serde.
    pub(crate) wait: String,
    /// What was in the order before, if this run goes on with that.
    pub(crate) history: Option<History>,
}

/// The commands that an order has before a run: those in a journal, up to an index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) dir: PathBuf,
    pub(crate) end: u64,
}

impl Job {
    fn wait(&self) -> Result<Wait> {
        self.wait.parse().context("bad job")
    }
}

/// One party's part in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) role: Role,
    /// Its number among those of its role, from 0.
    pub(crate) number: u64,
    pub(crate) cpu: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Producer,
    Worker,
}

impl Part {
    pub(crate) fn name(&self) -> String {
        match self.role {
            Role::Producer => format!("p{}", self.number),
            Role::Worker => format!("w{}", self.number),
        }
    }
}

/// What a party tells the parent, in this order: `Ready`, then one of the others.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Attached; a producer waits for the word to go.
    Ready,
    Produced(ProducerReport),
    Received(WorkerReport),
    Failed(String),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProducerReport {
    pub(crate) name: String,
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct WorkerReport {
    pub(crate) name: String,
    /// One for each producer.
    pub(crate) received: Vec<Tally>,
    pub(crate) next: u64,
    pub(crate) digest: String,
    /// Our own chain over what was read, in the order in which it was read.
    pub(crate) chain: u64,
    /// Commands behind the order, at the end.
    pub(crate) lag: u64,
    /// The most that it ever was, seen between two batches.
    pub(crate) lag_max: u64,
    /// When the last command came, by the clock of the stamps.
    pub(crate) last_ns: u64,
    /// Latencies that occurred and how often.
    pub(crate) latencies: Vec<(u64, u64)>,
    /// What no tally shows: indexes that were not dense, commands of strangers.
    pub(crate) faults: Vec<String>,
}

impl WorkerReport {
    pub(crate) fn commands(&self) -> u64 {
        self.received.iter().map(|tally| tally.commands).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.received.iter().map(|tally| tally.bytes).sum()
    }
}

/// A party's line to the parent.
pub(crate) struct Link {
    pub(crate) say: Box<dyn FnMut(Message) -> Result<()> + Send>,
    pub(crate) go: Receiver<()>,
}

/// All that a party works with.
pub(crate) struct Stage<'a> {
    pub(crate) job: &'a Job,
    pub(crate) part: &'a Part,
    pub(crate) region: &'a Region,
    pub(crate) stamps: &'a Stamps,
    pub(crate) lines: &'a Lines,
}

/// Plays one part to its end.
pub(crate) fn play(stage: &Stage<'_>, link: &mut Link) -> Result<()> {
    if let Some(cpu) = stage.part.cpu {
        affinity::pin(cpu)?;
    }
    match stage.part.role {
        Role::Producer => produce(stage, link),
        Role::Worker => receive(stage, link),
    }
}

/// Where the time of a submit is kept: each producer has a row of its own, used round and round.
///
/// A row is twice as long as a lane has cells. The time is written before there is room for the command, at
/// most half a lane ahead of the last command in the lane, and a command leaves its lane only after all
/// workers have read it and its time; so no time is overwritten that somebody still has to read.
fn stamp(job: &Job, producer: usize, index: u64) -> usize {
    producer * job.stamps_each as usize + (index % job.stamps_each) as usize
}

// ---- producer ---------------------------------------------------------------------------------------------

fn produce(stage: &Stage<'_>, link: &mut Link) -> Result<()> {
    let Stage { job, part, lines, .. } = *stage;
    let name = part.name();
    let options = AttachOptions::default().timeout(ATTACH_TIMEOUT).wait(job.wait()?);
    let mut producer = Producer::attach_with(stage.region, &name, &options)?;
    (link.say)(Message::Ready)?;
    link.go.recv().context("the run ended before it began")?;

    let total = lines.len() * job.repeat;
    let mut report = ProducerReport { name, commands: 0, bytes: 0 };
    let mut batch = Vec::with_capacity(job.batch);
    let mut number = goes_on_at(stage, producer.next_index(), total)?;
    while number < total {
        number = fill(&mut batch, job, lines, number..total);
        let submitted = submit(&mut producer, &batch, stage)?;
        report.commands += batch.len() as u64;
        report.bytes += batch.iter().map(|(_, line)| line.len() as u64).sum::<u64>();
        if number >= total {
            producer.wait_sequenced(submitted.end - 1)?;
        }
    }
    (link.say)(Message::Produced(report))
}

/// The line with which a producer goes on of whose commands so many are in the order.
fn goes_on_at(stage: &Stage<'_>, done: u64, total: u64) -> Result<u64> {
    let Stage { job, part, .. } = *stage;
    check_share(part.number, done, total, job.producers)?;
    Ok(part.number + done * job.producers)
}

/// That there are so many commands for a producer.
fn check_share(producer: u64, done: u64, total: u64, producers: u64) -> Result<()> {
    let share = total.saturating_sub(producer).div_ceil(producers);
    ensure!(
        done <= share,
        "the journal has {} of p{producer}, the input has {share} for it: is it the same?",
        many(done, "command")
    );
    Ok(())
}

/// Fills a batch with this producer's next lines, as many as one ticket may carry; returns the line after
/// them.
fn fill<'a>(batch: &mut Vec<(u16, &'a [u8])>, job: &Job, lines: &'a Lines, numbers: Range<u64>) -> u64 {
    batch.clear();
    let mut bytes = 0;
    for number in numbers.clone().step_by(job.producers as usize) {
        let line = lines.repeated(number);
        bytes += footprint(line);
        if batch.len() == job.batch || (bytes > job.batch_bytes && !batch.is_empty()) {
            return number;
        }
        batch.push((0, line));
    }
    numbers.end
}

/// One ticket; its time is taken just before and counts for each of its commands.
fn submit(producer: &mut Producer, batch: &[(u16, &[u8])], stage: &Stage<'_>) -> Result<Range<u64>> {
    let first = producer.next_index();
    let now = Stamps::now();
    for index in first..first + batch.len() as u64 {
        stage.stamps.set(stamp(stage.job, stage.part.number as usize, index), now);
    }
    Ok(match *batch {
        [(kind, payload)] => {
            let index = producer.submit(kind, payload)?;
            index..index + 1
        }
        _ => producer.submit_batch(batch)?,
    })
}

/// Bytes that a payload takes in a lane: none when it fits its cell, whole cache lines otherwise.
pub(crate) fn footprint(payload: &[u8]) -> usize {
    const CELL_PAYLOAD: usize = 40;
    if payload.len() <= CELL_PAYLOAD { 0 } else { payload.len().next_multiple_of(64) }
}

// ---- worker -----------------------------------------------------------------------------------------------

fn receive(stage: &Stage<'_>, link: &mut Link) -> Result<()> {
    let name = stage.part.name();
    let options = JoinOptions::default().timeout(ATTACH_TIMEOUT).wait(stage.job.wait()?);
    let mut worker = Worker::join_with(stage.region, &name, &options)?;
    (link.say)(Message::Ready)?;

    let mut receipt = Receipt::new(stage.job, stage.stamps)?;
    if let Some(history) = &stage.job.history {
        receipt.recall(&history.dir, history.end)?;
    }
    while !receipt.closed {
        worker.recv_batch(WORKER_BATCH, None, |event| receipt.take(&event))?;
        receipt.lag_max = receipt.lag_max.max(worker.lag());
    }
    let report = receipt.report(name, &worker);
    worker.leave();
    (link.say)(Message::Received(report))
}

/// What a journal has, folded as a worker folds what it receives; the index behind that.
pub(crate) fn recall(job: &Job, stamps: &Stamps, dir: &Path) -> Result<WorkerReport> {
    let mut receipt = Receipt::new(job, stamps)?;
    let (next, digest) = receipt.recall(dir, u64::MAX)?;
    Ok(WorkerReport {
        name: "the journal".into(),
        received: receipt.received,
        next,
        digest: digest.to_string(),
        chain: receipt.chain,
        faults: receipt.faults,
        ..WorkerReport::default()
    })
}

/// That all commands that a journal has are of an input that so many producers share: each of one of them, in its turn, and
/// the same.
pub(crate) fn is_of(dir: &Path, lines: &Lines, repeat: u64, producers: u64) -> Result<()> {
    let mut replay = Replay::open(dir)?;
    let (mut numbers, total) = (vec![None; producers as usize], lines.len() * repeat);
    while let Some(record) = replay.next()? {
        let Record { seq, producer, index, payload, .. } = record;
        if let Some(Event::ProducerAttached { number, name, .. }) = record.event() {
            let ours = producer_of(name.as_str()).and_then(|producer| numbers.get_mut(producer));
            let ours = ours.with_context(|| {
                format!("index {seq} is of the producer {name:?}, expected are p0 to p{}", producers - 1)
            })?;
            *ours = Some(number);
        } else if record.is_command() {
            let known = numbers.iter().position(|&number| number == Some(producer));
            let ours = known.with_context(|| {
                format!(
                    "index {seq} is of producer number {producer}, which nothing before calls p0 to p{}: is it a journal of \
                     `run`?",
                    producers - 1
                )
            })?;
            check_share(ours as u64, index + 1, total, producers)?;
            let line = ours as u64 + index * producers;
            ensure!(
                lines.repeated(line) == payload,
                "index {seq} is not line {} of the input, of {producers} producers: is it the same?",
                line % lines.len() + 1
            );
        }
    }
    Ok(())
}

/// Which of ours has a name.
fn producer_of(name: &str) -> Option<usize> {
    name.strip_prefix('p').and_then(|digits| digits.parse().ok())
}

/// What a worker folds while it receives.
struct Receipt<'a> {
    job: &'a Job,
    stamps: &'a Stamps,
    /// Which of our producers has which number in the order: told by the order itself, before its commands.
    numbers: Vec<Option<u64>>,
    received: Vec<Tally>,
    chain: u64,
    latencies: Histogram<u64>,
    last_ns: u64,
    lag_max: u64,
    faults: Vec<String>,
    closed: bool,
}

impl<'a> Receipt<'a> {
    fn new(job: &'a Job, stamps: &'a Stamps) -> Result<Receipt<'a>> {
        Ok(Receipt {
            job,
            stamps,
            numbers: vec![None; job.producers as usize],
            received: vec![Tally::default(); job.producers as usize],
            chain: 0,
            latencies: Histogram::new_with_bounds(1, LONGEST_NS, 3)?,
            last_ns: 0,
            lag_max: 0,
            faults: Vec::new(),
            closed: false,
        })
    }

    fn report(self, name: String, worker: &Worker) -> WorkerReport {
        let latencies = self.latencies.iter_recorded();
        WorkerReport {
            name,
            received: self.received,
            next: worker.next().get(),
            digest: worker.digest().to_string(),
            chain: self.chain,
            lag: worker.lag(),
            lag_max: self.lag_max,
            last_ns: self.last_ns,
            latencies: latencies.map(|at| (at.value_iterated_to(), at.count_at_value())).collect(),
            faults: self.faults,
        }
    }

    fn take(&mut self, event: &Event<'_>) {
        match *event {
            Event::Command(ref command) => self.command(command),
            Event::ProducerAttached { number, name, .. } => {
                match producer_of(name.as_str()).and_then(|producer| self.numbers.get_mut(producer)) {
                    Some(known) => *known = Some(number),
                    None => self.fault(format!("a producer `{name}` that is not of this run")),
                }
            }
            Event::Closed { .. } => self.closed = true,
            _ => {}
        }
    }

    /// Takes what a journal has before an index; where that ends, and the digest of all before.
    fn recall(&mut self, dir: &Path, end: u64) -> Result<(u64, Digest)> {
        let mut replay = Replay::open(dir)?;
        while replay.position().get() < end {
            let Some(record) = replay.next()? else { break };
            match record.event() {
                Some(Event::Closed { .. }) => {} // It was opened again.
                Some(event) => self.take(&event),
                None if record.is_command() => {
                    let Record { seq, producer, index, payload, .. } = record;
                    self.note(seq, producer, index, payload);
                }
                None => {}
            }
        }
        Ok((replay.position().get(), replay.digest()))
    }

    /// Folds a command; whose it is, if that is known.
    fn note(&mut self, seq: Seq, number: u64, index: u64, payload: &[u8]) -> Option<usize> {
        let Some(producer) = self.numbers.iter().position(|&known| known == Some(number)) else {
            self.fault(format!("index {seq} is of unknown producer {number}"));
            return None;
        };
        let hash = proof::hash(payload);
        let want = self.received[producer].commands;
        if index != want {
            self.fault(format!("index {seq} is command {index} of p{producer} instead of {want}"));
        }
        self.received[producer].add(payload.len(), hash);
        self.chain = proof::link(self.chain, hash as u64 ^ number);
        Some(producer)
    }

    fn command(&mut self, command: &Command<'_>) {
        let now = Stamps::now();
        let noted = self.note(command.seq, command.producer, command.index, command.payload);
        let Some(producer) = noted else { return };
        let sent = self.stamps.get(stamp(self.job, producer, command.index));
        self.latencies.saturating_record(now.saturating_sub(sent).max(1));
        self.last_ns = now;
    }

    /// Keeps the first few: one fault tends to bring many.
    fn fault(&mut self, fault: String) {
        if self.faults.len() < 5 {
            self.faults.push(fault);
        }
    }
}

/// The latencies of all workers together.
pub(crate) fn merge(workers: &[WorkerReport]) -> Result<Histogram<u64>> {
    let mut all = Histogram::new_with_bounds(1, LONGEST_NS, 3)?;
    for (value, count) in workers.iter().flat_map(|worker| &worker.latencies) {
        if all.record_n(*value, *count).is_err() {
            bail!("a latency of {value} ns cannot be counted");
        }
    }
    Ok(all)
}
