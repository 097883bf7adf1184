//! One measurement, in this process, which does nothing else: parts as threads or as processes of their own.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use seriatim::{Region, SequencerHandle};

use super::board::Board;
use super::ends::Receipt;
use super::part::{self, Part, Said};
use super::{Job, Latency, Record, machine};
use crate::{Outcome, child, output};

/// How often a waiting parent looks after what nobody tells it of.
const TICK: Duration = Duration::from_millis(50);

/// `bench-one`: does one job and prints its record.
#[derive(Debug, clap::Args)]
pub(crate) struct OneArgs {
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    job: String,
}

impl OneArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        child::tie_to(self.parent, "bench")?;
        let job: Job = serde_json::from_str(&self.job).context("bad job")?;
        let record = match measure(&job) {
            Ok(record) => record,
            Err(error) => Record::failed(&job, output::causes(&error)),
        };
        let line = serde_json::to_string(&record)?;
        writeln!(io::stdout().lock(), "{line}").context("cannot tell the parent")?;
        // Threads that a failure left behind end with the process.
        Ok(Outcome::Done)
    }
}

fn measure(job: &Job) -> Result<Record> {
    let region = Region::anonymous(&job.config()?).context("cannot make a region")?;
    let board = Arc::new(Board::create(job).context("cannot make the board")?);
    let mut crew = Crew::new();
    // Workers first, so that none is a newcomer to a command.
    let workers = (0..job.workers).map(Part::Worker);
    let parts: Vec<Part> = workers.chain((0..job.producers).map(Part::Producer)).collect();
    if job.processes {
        crew.start_process(job, Part::Sequencer, region.path(), &board)?;
        parts.iter().try_for_each(|part| crew.start_process(job, *part, region.path(), &board))?;
    } else {
        crew.sequencer = Some(part::sequence(job, &region)?);
        parts.iter().try_for_each(|part| crew.start_thread(job, *part, &region, &board))?;
    }
    drive(job, &board, &mut crew)?;
    let receipts = crew.dismiss()?;
    Ok(evaluate(job, board.produced(), &receipts))
}

/// Waits for all parts, gives the word to begin, lets them run, asks for the end, hears them all.
fn drive(job: &Job, board: &Board, crew: &mut Crew) -> Result<()> {
    while board.arrived() < job.parties() {
        crew.listen(Duration::from_micros(200))?;
    }
    board.begin();
    crew.listen(Duration::from_millis(job.warmup_ms))?;
    board.measure();
    crew.listen(Duration::from_millis(job.duration_ms))?;
    board.end();
    crew.hear_all()
}

// ---- the parts --------------------------------------------------------------------------------------------

/// The parts of one measurement. Dropping it kills the children that are still there.
struct Crew {
    members: Vec<Member>,
    receipts: Vec<Receipt>,
    /// A member's last word; none if it ended without one.
    heard: Receiver<(usize, Option<Said>)>,
    tell: Sender<(usize, Option<Said>)>,
    /// Among threads.
    sequencer: Option<SequencerHandle>,
}

struct Member {
    part: Part,
    /// None for a thread.
    child: Option<Child>,
    done: bool,
}

impl Crew {
    fn new() -> Crew {
        let (tell, heard) = mpsc::channel();
        Crew { members: Vec::new(), receipts: Vec::new(), heard, tell, sequencer: None }
    }

    fn start_thread(&mut self, job: &Job, part: Part, region: &Region, board: &Arc<Board>) -> Result<()> {
        let (member, tell) = (self.members.len(), self.tell.clone());
        let (job, region, board) = (job.clone(), region.clone(), Arc::clone(board));
        thread::Builder::new().name(part.name()).spawn(move || {
            let played = catch_unwind(AssertUnwindSafe(|| part::play(&job, part, &region, &board)));
            let said = played.ok().map(|said| said.unwrap_or_else(|e| Said::Failed(output::causes(&e))));
            // Nobody hears it when the measurement has failed already.
            let _ = tell.send((member, said));
        })?;
        self.members.push(Member { part, child: None, done: false });
        Ok(())
    }

    fn start_process(&mut self, job: &Job, part: Part, region: &Path, board: &Board) -> Result<()> {
        let mut command = child::again("bench-part");
        command.args(["--job", &serde_json::to_string(job)?, "--part", &serde_json::to_string(&part)?]);
        command.arg("--region").arg(region).arg("--board").arg(board.path());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start {}", part.name()))?;
        let stdout = child.stdout.take().context("no pipe from a child")?;
        let (member, tell) = (self.members.len(), self.tell.clone());
        self.members.push(Member { part, child: Some(child), done: false });
        thread::Builder::new().name(format!("ear of {}", part.name())).spawn(move || {
            let _ = tell.send((member, last_word(stdout)));
        })?;
        Ok(())
    }

    /// Listens for a time.
    fn listen(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.hear(left.min(TICK))?;
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Listens until all but the sequencer have said their last word.
    fn hear_all(&mut self) -> Result<()> {
        while self.members.iter().any(|member| !member.done && member.part != Part::Sequencer) {
            self.hear(TICK)?;
        }
        Ok(())
    }

    fn hear(&mut self, time: Duration) -> Result<()> {
        if self.sequencer.as_ref().is_some_and(SequencerHandle::is_finished) {
            let ended = self.sequencer.take().map(SequencerHandle::stop);
            ended.transpose().context("the sequencer failed")?;
            bail!("the sequencer ended early");
        }
        let (member, said) = match self.heard.recv_timeout(time) {
            Ok(heard) => heard,
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
        };
        let member = &mut self.members[member];
        match said {
            Some(Said::Done) => {}
            Some(Said::Received(receipt)) => self.receipts.push(receipt),
            Some(Said::Failed(why)) => bail!("{}: {why}", member.part.name()),
            None => return Err(member.obituary()),
        }
        member.done = true;
        Ok(())
    }

    /// Ends the sequencer, and waits for the children, so that their time counts.
    fn dismiss(mut self) -> Result<Vec<Receipt>> {
        if let Some(sequencer) = self.sequencer.take() {
            sequencer.stop().context("the sequencer failed")?;
        }
        for member in &mut self.members {
            if let Some(child) = &mut member.child {
                drop(child.stdin.take());
                let status = child.wait().context("cannot wait for a child")?;
                ensure!(status.success(), "{} ended with {status}", member.part.name());
            }
        }
        Ok(std::mem::take(&mut self.receipts))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|member| member.child.as_mut()) {
            // Errors mean that it has ended: what we want.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Member {
    /// How a part ended that said nothing.
    fn obituary(&mut self) -> anyhow::Error {
        let name = self.part.name();
        match &mut self.child {
            None => anyhow!("{name} (a thread) panicked"),
            Some(child) => match child.wait() {
                Ok(status) => anyhow!("{name} (pid {}) ended early with {status}", child.id()),
                Err(error) => anyhow!("{name} (pid {}) ended early: {error}", child.id()),
            },
        }
    }
}

fn last_word(mut from: ChildStdout) -> Option<Said> {
    let mut text = String::new();
    from.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.lines().last()?).ok()
}

// ---- the result -------------------------------------------------------------------------------------------

/// Applies the checks that take all workers, and makes a result of what they saw.
fn evaluate(job: &Job, produced: u64, receipts: &[Receipt]) -> Record {
    let error = wrong_with(job, produced, receipts);
    let mut record = Record { ok: error.is_none(), error, cpu_s: machine::cpu_seconds(), ..Record::of(job) };
    record.order_hash = format!("{:016x}", receipts.first().map_or(0, |receipt| receipt.hash));
    let rates = receipts.iter().map(|receipt| {
        let elapsed_s = receipt.finish_ns.saturating_sub(receipt.start_ns) as f64 / 1e9;
        let commands = receipt.count - receipt.warmup_count;
        (commands as f64 / elapsed_s.max(1e-9), commands, elapsed_s)
    });
    if let Some(slowest) = rates.min_by(|a, b| a.0.total_cmp(&b.0)) {
        (record.commands_per_s, record.commands, record.elapsed_s) = slowest;
    }
    record.payload_gb_per_s = record.commands_per_s * job.size as f64 / 1e9;
    if job.is_latency() {
        record.latency = latency(receipts);
    }
    record
}

fn wrong_with(job: &Job, produced: u64, receipts: &[Receipt]) -> Option<String> {
    let mut workers: Vec<usize> = receipts.iter().map(|receipt| receipt.worker).collect();
    workers.sort_unstable();
    if !workers.iter().copied().eq(0..job.workers) {
        return Some(format!("reports came from workers {workers:?} of {}", job.workers));
    }
    for Receipt { worker, errors, first_error, .. } in receipts {
        if let Some(first) = first_error {
            return Some(format!("worker {worker} saw {errors} errors, the first: {first}"));
        }
    }
    for Receipt { worker, count, .. } in receipts {
        if *count != produced {
            return Some(format!("worker {worker} received {count} commands of {produced}"));
        }
    }
    let hash = receipts.first()?.hash;
    let other = receipts.iter().find(|receipt| receipt.hash != hash)?;
    let (first, worker) = (receipts[0].worker, other.worker);
    Some(format!("workers {first} and {worker} saw different orders: {hash:016x} and {:016x}", other.hash))
}

fn latency(receipts: &[Receipt]) -> Option<Latency> {
    let mut all = Histogram::<u64>::new(3).ok()?;
    for (value, count) in receipts.iter().flat_map(|receipt| &receipt.latencies) {
        all.record_n(*value, *count).ok()?;
    }
    Some(Latency {
        samples: all.len(),
        mean_ns: all.mean(),
        p50_ns: all.value_at_quantile(0.5),
        p99_ns: all.value_at_quantile(0.99),
        p999_ns: all.value_at_quantile(0.999),
        max_ns: all.max(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Mode;
    use super::super::tests::job;
    use super::*;

    fn receipt(worker: usize) -> Receipt {
        Receipt {
            worker,
            count: 1000,
            hash: 7,
            errors: 0,
            first_error: None,
            warmup_count: 200,
            start_ns: 1_000_000_000,
            finish_ns: 1_500_000_000,
            latencies: vec![(1000, 99), (5000, 1)],
        }
    }

    fn error_of(receipts: &[Receipt]) -> String {
        let record = evaluate(&Job { workers: 2, ..job() }, 1000, receipts);
        assert_eq!(record.ok, record.error.is_none());
        record.error.unwrap_or_default()
    }

    #[test]
    fn workers_that_agree_are_ok() {
        assert_eq!(error_of(&[receipt(1), receipt(0)]), "");
    }

    #[test]
    fn each_kind_of_disagreement_is_told() {
        assert!(error_of(&[receipt(0)]).contains("from workers [0] of 2"));
        let bad = Receipt { errors: 3, first_error: Some("index 9".into()), ..receipt(1) };
        assert!(error_of(&[receipt(0), bad]).contains("worker 1 saw 3 errors, the first: index 9"));
        let short = Receipt { count: 999, ..receipt(1) };
        assert!(error_of(&[receipt(0), short]).contains("worker 1 received 999 commands of 1000"));
        let other = Receipt { hash: 8, ..receipt(1) };
        assert!(error_of(&[receipt(0), other]).contains("different orders"));
    }

    #[test]
    fn the_slowest_worker_is_the_result() {
        let slow = Receipt { finish_ns: 2_000_000_000, ..receipt(1) };
        let record = evaluate(&Job { workers: 2, ..job() }, 1000, &[receipt(0), slow]);
        assert_eq!((record.commands, record.elapsed_s, record.commands_per_s), (800, 1.0, 800.0));
        assert_eq!(
            (record.payload_gb_per_s, record.order_hash.as_str()),
            (800.0 * 64.0 / 1e9, "0000000000000007")
        );
        assert!(record.latency.is_none());
    }

    #[test]
    fn the_latencies_of_all_workers_are_one() {
        let job = Job { workers: 2, mode: Mode::Ping, ..job() };
        let latency = evaluate(&job, 1000, &[receipt(0), receipt(1)]).latency.unwrap();
        assert_eq!((latency.samples, latency.p50_ns), (200, 1000));
        assert!((5000..5010).contains(&latency.max_ns), "{latency:?}");
        assert_eq!(latency.mean_ns.round(), 1040.0);
    }
}
