//! An engine in one process: accounts in shards, one pinned thread for each shard, and one order for all.
//!
//! Run it with `cargo run --example embed`. A client submits transfers. Every worker sees each of them, at the
//! same index; the one whose shard holds the account to be debited decides, and tells the others by a command of
//! its own. So workers submit, too, and nobody talks to anybody but through the order. In the end all digests
//! are equal and no money was made or lost.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use std::{str, thread};

use seriatim::{Command, Config, Event, Producer, Region, Sequencer, SequencerConfig, SubmitError, Worker};
use seriatim::{Digest, Seq, affinity};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SHARDS: usize = 4;
const ACCOUNTS: usize = 64;
const TRANSFERS: usize = 20_000;
const OPENING: i64 = 1_000;

/// `from to amount`, by the client: debit if there is enough.
const TRANSFER: u16 = 1;
/// `to amount`, by the shard that debited, or refused with amount 0: credit.
const CREDIT: u16 = 2;

/// One shard's state, and what it has to tell the others.
struct Shard {
    id: usize,
    balances: HashMap<usize, i64>,
    outbox: VecDeque<String>,
    settled: usize,
}

impl Shard {
    fn new(id: usize) -> Shard {
        let balances = (0..ACCOUNTS).filter(|a| a % SHARDS == id).map(|a| (a, OPENING)).collect();
        Shard { id, balances, outbox: VecDeque::new(), settled: 0 }
    }

    /// Applies a command: every worker is here for every command, in the same order.
    fn apply(&mut self, command: &Command<'_>) -> Result<()> {
        let mut words = Vec::new();
        for word in str::from_utf8(command.payload)?.split(' ') {
            words.push(word.parse::<usize>()?);
        }
        match (command.kind, &words[..]) {
            (TRANSFER, &[from, to, amount]) => {
                if let Some(balance) = self.balances.get_mut(&from) {
                    let amount = if *balance >= amount as i64 { amount } else { 0 };
                    *balance -= amount as i64;
                    self.outbox.push_back(format!("{to} {amount}"));
                }
            }
            (CREDIT, &[to, amount]) => {
                self.settled += 1;
                self.balances.entry(to).and_modify(|balance| *balance += amount as i64);
            }
            _ => return Err(format!("{command:?} is no command of ours").into()),
        }
        Ok(())
    }

    /// Submits what there is room for. A worker must not wait for room: it might be the one who gates.
    fn speak(&mut self, producer: &mut Producer) -> Result<()> {
        while let Some(credit) = self.outbox.front() {
            match producer.try_submit(CREDIT, credit.as_bytes()) {
                Ok(_) => self.outbox.pop_front(),
                Err(SubmitError::Full(_)) => break,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(())
    }

    /// The shard's thread: applies and speaks until the order is closed.
    fn run(mut self, mut worker: Worker, mut producer: Producer, settled: &Sender<()>) -> Result<Report> {
        let cpus = affinity::allowed();
        // One CPU is for the sequencer. Too few CPUs: leave it to the kernel.
        if cpus.len() > SHARDS {
            affinity::pin(cpus[self.id + 1])?;
        }
        let (mut closed, mut told, mut outcome) = (false, false, Ok(()));
        while !closed {
            // Not for long while there is something left to say.
            let patience = Duration::from_millis(if self.outbox.is_empty() { 100 } else { 1 });
            worker.recv_batch(64, Some(Instant::now() + patience), |event| match event {
                Event::Command(command) if outcome.is_ok() => outcome = self.apply(&command),
                Event::Closed { .. } => closed = true,
                _ => {}
            })?;
            std::mem::replace(&mut outcome, Ok(()))?;
            self.speak(&mut producer)?;
            if self.settled == TRANSFERS && !told {
                settled.send(())?;
                told = true;
            }
        }
        Ok((worker.next(), worker.digest(), self.balances.values().sum()))
    }
}

/// Where a worker ended: index, digest, money in its shard.
type Report = (Seq, Digest, i64);

fn main() -> Result<()> {
    let config = Config::new().producers(1 + SHARDS as u64).workers(SHARDS as u64).lane_bytes(1 << 16);
    let region = Region::anonymous(&config)?;
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;

    let (settled, all_settled) = channel();
    let mut threads = Vec::new();
    for id in 0..SHARDS {
        let worker = Worker::join(&region, &format!("shard-{id}"))?;
        let producer = Producer::attach(&region, &format!("shard-{id}"))?;
        let settled = settled.clone();
        threads.push(thread::spawn(move || {
            let report = Shard::new(id).run(worker, producer, &settled);
            // A shard that failed is not waited for.
            report.inspect_err(|_| settled.send(()).unwrap_or_default())
        }));
    }

    let mut client = Producer::attach(&region, "client")?;
    for n in 0..TRANSFERS {
        let (from, to) = (n * 7 % ACCOUNTS, n * 13 % ACCOUNTS);
        client.submit(TRANSFER, format!("{from} {to} {}", n % 500).as_bytes())?;
    }
    all_settled.iter().take(SHARDS).for_each(drop);
    // Everyone has heard everything: the digests at the end are those of one index.
    sequencer.close()?;

    let mut reports = Vec::new();
    for thread in threads {
        reports.push(thread.join().expect("no panic")?);
    }
    for (id, (next, digest, money)) in reports.iter().enumerate() {
        println!("shard {id}: next index {next}, digest {digest}, holds {money}");
    }
    let agree = reports.windows(2).all(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1));
    let money: i64 = reports.iter().map(|report| report.2).sum();
    assert!(agree && money == ACCOUNTS as i64 * OPENING, "the shards do not agree");
    println!("all {SHARDS} shards agree on {TRANSFERS} transfers; {money} in all, as at the start");
    Ok(())
}
