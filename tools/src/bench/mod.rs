//! The sequenced broadcast, measured: P producers submit commands, one order is fixed, each of W workers receives every
//! command in that order, reads its payload and checks it.
//!
//! ```text
//!  bench ──▶ bench-one, a fresh process for each measurement: region, board, the word to begin and to end
//!                ├──▶ sequencer ┐
//!                ├──▶ workers   ├ bench-part, a process each; or a thread each
//!                └──▶ producers ┘
//! ```
//!
//! **Command.** A header of 32 bytes, little-endian: `seq` u64 (per-producer index from 0), `index` u64 (0 here: the
//! order has it), `sent_ns` u64, `producer` u32, `flags` u32 (bit 0: the producer's last). Then `size` bytes in words
//! of 64 bits: word 0 is the tag `(producer << 48) | seq`, word i is `i * 0x9e3779b97f4a7c15`.
//!
//! **Worker.** Adds up the words of each payload and compares the sum (or word 0 alone, untouched); wants each index of
//! the order and each `seq` of a producer once, in turn; folds the order hash
//! `h = (rotl(h, 5) ^ tag) * 0x517cc1b727220a95`. It ends with the last flag of the last producer.
//!
//! **Time.** All meet, run for `warmup_ms`, then for `duration_ms`; then the end is asked for, and each producer's next
//! command is its last. A worker's time is from its first command after the warm-up to the last flag; the slowest
//! worker's rate is the result. *Ping*: one command in flight, producers in turn, from before its submit to the last
//! worker's check. *Paced*: on a schedule, from the time that was due to the last worker's check.

mod board;
mod ends;
pub(crate) mod machine;
mod measure;
mod part;

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use seriatim::{Config, DigestOf, Wait};

pub(crate) use measure::OneArgs;
pub(crate) use part::PartArgs;

/// Bytes before a payload where latency is measured. Of the fields that the definition gives a command, whose it is, which
/// of its producer's and at which index are the order's own, and whether it is the last goes with its kind; what is left
/// is the time, which is 0 where throughput is.
const STAMP: usize = 8;
/// Bytes of a lane at most, if two tickets' commands fit.
const LANE: u64 = 4 << 20;
/// In a command's kind, beside the producer's number from bit 1 on: its last one.
const LAST: u16 = 1;

/// What one measurement asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) peer: String,
    pub(crate) processes: bool,
    /// Whether workers and producers make the sequencer's turns.
    pub(crate) assisted: bool,
    pub(crate) producers: usize,
    pub(crate) workers: usize,
    /// Payload bytes of a command.
    pub(crate) size: usize,
    pub(crate) wait: Strategy,
    /// Whether workers read whole payloads.
    pub(crate) touch: bool,
    pub(crate) mode: Mode,
    pub(crate) warmup_ms: u64,
    pub(crate) duration_ms: u64,
    /// Commands in flight at most, for each producer; and runs in the order.
    pub(crate) slots: u64,
    /// Commands in one ticket.
    pub(crate) batch: usize,
    /// By name, since `DigestOf` is not for serde.
    pub(crate) digest: String,
    pub(crate) fault: Option<Fault>,
}

/// Something to go wrong on purpose, for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// The first producer writes a wrong last byte into a payload.
    Payload,
    /// The first producer leaves one of its numbers out.
    Gap,
    /// The first producer does not come to its last command.
    Hang,
    /// The first worker dies.
    Death,
}

impl Job {
    /// How many commands may be in flight for a payload of this size: 2 MiB, but 16 to 4,096 commands.
    pub(crate) fn default_slots(size: usize) -> u64 {
        ((2 << 20) / size as u64).clamp(16, 4096).next_power_of_two()
    }

    /// How many commands a ticket has by default: 16 KiB, but 1 to 32, and never more than a quarter of what may be in
    /// flight. Where time is measured command by command: one.
    pub(crate) fn default_batch(mode: Mode, size: usize, slots: u64) -> usize {
        if mode != Mode::Throughput {
            return 1;
        }
        ((16 << 10) / size).clamp(1, 32).min(Self::max_batch(slots))
    }

    /// Most commands of a ticket that a lane of [`config`](Self::config) takes in any case.
    pub(crate) fn max_batch(slots: u64) -> usize {
        (slots / 4).max(1) as usize
    }

    /// A region in which each producer can have `slots` commands in flight at most. Its lane is the power of two that
    /// these take, or the next lower one: less than `slots` commands if need be, but never much more memory than they
    /// need. Nor more than [`LANE`], if that takes two tickets' commands: a lane that stays in the processor's cache is worth more
    /// than one that is long.
    pub(crate) fn config(&self) -> Result<Config> {
        let each = self.lane_bytes_each();
        let all = each.checked_mul(self.slots).context("so many commands of this size have no room")?;
        let lower = 1 << all.ilog2();
        let two = (2 * each).checked_mul(self.batch as u64).context("so large a batch has no room")?;
        let lane_bytes = lower.min(LANE).max(two.next_power_of_two());
        Ok(Config::new()
            .producers(self.producers as u64)
            .workers(self.workers as u64)
            .lane_cells(self.slots)
            .order_slots(self.slots)
            .lane_bytes(lane_bytes)
            .digest(self.digest.parse::<DigestOf>().context("bad job")?))
    }

    /// Bytes of the lane that a command takes, where it does not lie in its cell.
    fn lane_bytes_each(&self) -> u64 {
        (self.stamp() + self.size).next_multiple_of(64) as u64
    }

    /// After how many commands a worker says how far it is: not more than a part of what may be in flight, or producers
    /// would wait for it.
    fn release_every(&self) -> Result<u32> {
        let in_flight = (self.config()?.max_payload() * 2 / self.lane_bytes_each()).min(self.slots);
        Ok((in_flight / 8).clamp(1, 32) as u32)
    }

    /// Bytes before each payload.
    fn stamp(&self) -> usize {
        if self.is_latency() { STAMP } else { 0 }
    }

    fn is_latency(&self) -> bool {
        self.mode != Mode::Throughput
    }

    /// How many parts meet at the start.
    fn parties(&self) -> usize {
        self.producers + self.workers
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// As fast as there is room.
    Throughput,
    /// One command in flight in all.
    Ping,
    /// So many commands a second from all producers together.
    Paced(u64),
}

impl Mode {
    fn kind(self) -> &'static str {
        match self {
            Mode::Throughput => "throughput",
            Mode::Ping => "ping",
            Mode::Paced(_) => "paced",
        }
    }
}

impl FromStr for Mode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Mode> {
        match (text, text.strip_prefix("paced:")) {
            ("throughput", _) => Ok(Mode::Throughput),
            ("ping", _) => Ok(Mode::Ping),
            (_, Some(rate)) => {
                let rate: u64 = rate.parse().with_context(|| format!("`{rate}` is no number"))?;
                ensure!(
                    (1..=1_000_000_000).contains(&rate),
                    "{rate} a second is no rate: 1 to 1000000000 are"
                );
                Ok(Mode::Paced(rate))
            }
            _ => bail!("`{text}` is neither `throughput`, `ping` nor `paced:RATE`"),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Paced(rate) => write!(f, "paced:{rate}"),
            mode => f.write_str(mode.kind()),
        }
    }
}

/// How everybody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Strategy {
    Spin,
    Yield,
    /// What the library calls park.
    Block,
}

impl Strategy {
    /// Our own choice where nobody makes one: what few cores for many parties want.
    pub(crate) const DEFAULT: Strategy = Strategy::Yield;

    fn of_library(self) -> Wait {
        match self {
            Strategy::Spin => Wait::Spin,
            Strategy::Yield => Wait::Yield,
            Strategy::Block => Wait::Park,
        }
    }
}

impl FromStr for Strategy {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Strategy> {
        match text {
            "default" => Ok(Strategy::DEFAULT),
            "spin" => Ok(Strategy::Spin),
            "yield" => Ok(Strategy::Yield),
            "block" => Ok(Strategy::Block),
            _ => bail!("`{text}` is neither `spin`, `yield`, `block` nor `default`"),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Strategy::Spin => "spin",
            Strategy::Yield => "yield",
            Strategy::Block => "block",
        })
    }
}

/// The result of one measurement: a JSON line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// `throughput`, `ping` or `paced`.
    pub(crate) kind: String,
    pub(crate) peer: String,
    /// Whether the parts were processes.
    pub(crate) processes: bool,
    pub(crate) producers: usize,
    pub(crate) workers: usize,
    pub(crate) size: usize,
    pub(crate) wait: Strategy,
    pub(crate) touch: bool,
    /// What was asked for, paced; else 0.
    pub(crate) rate: u64,
    pub(crate) slots: u64,
    pub(crate) warmup_ms: u64,
    pub(crate) duration_ms: u64,
    pub(crate) round: usize,
    /// Every check held.
    pub(crate) ok: bool,
    pub(crate) error: Option<String>,
    /// Of the slowest worker, in the measured time.
    pub(crate) commands: u64,
    pub(crate) elapsed_s: f64,
    pub(crate) commands_per_s: f64,
    /// What each worker sees.
    pub(crate) payload_gb_per_s: f64,
    /// User and system time of all parts, setup and warm-up included.
    pub(crate) cpu_s: f64,
    /// What everything else on the machine took meanwhile, in cores.
    pub(crate) foreign_cores: f64,
    pub(crate) order_hash: String,
    pub(crate) latency: Option<Latency>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) samples: u64,
    pub(crate) mean_ns: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
}

impl Record {
    /// Of a job that has not been done.
    pub(crate) fn of(job: &Job) -> Record {
        Record {
            kind: job.mode.kind().into(),
            peer: job.peer.clone(),
            processes: job.processes,
            producers: job.producers,
            workers: job.workers,
            size: job.size,
            wait: job.wait,
            touch: job.touch,
            rate: if let Mode::Paced(rate) = job.mode { rate } else { 0 },
            slots: job.slots,
            warmup_ms: job.warmup_ms,
            duration_ms: job.duration_ms,
            round: 0,
            ok: false,
            error: None,
            commands: 0,
            elapsed_s: 0.0,
            commands_per_s: 0.0,
            payload_gb_per_s: 0.0,
            cpu_s: 0.0,
            foreign_cores: 0.0,
            order_hash: String::new(),
            latency: None,
        }
    }

    /// Of a job that failed.
    pub(crate) fn failed(job: &Job, error: String) -> Record {
        Record { error: Some(error), ..Record::of(job) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn job() -> Job {
        Job {
            peer: "seriatim".into(),
            processes: false,
            assisted: false,
            producers: 2,
            workers: 1,
            size: 64,
            wait: Strategy::Yield,
            touch: true,
            mode: Mode::Throughput,
            warmup_ms: 0,
            duration_ms: 0,
            slots: 16,
            batch: 1,
            digest: "payload".into(),
            fault: None,
        }
    }

    #[test]
    fn slots_are_two_mib_within_16_and_4096() {
        let sizes =
            [(8, 4096), (512, 4096), (1024, 2048), (4096, 512), (5000, 512), (1 << 20, 16), (1 << 24, 16)];
        for (size, slots) in sizes {
            assert_eq!(Job::default_slots(size), slots, "{size}");
        }
    }

    #[test]
    fn batches_are_16_kib_and_at_most_32_commands() {
        let of = |size| Job::default_batch(Mode::Throughput, size, Job::default_slots(size));
        assert_eq!([8, 512, 1024, 4096, 65536, 1 << 20].map(of), [32, 32, 16, 4, 1, 1]);
        assert_eq!(Job::default_batch(Mode::Throughput, 8, 16), 4);
        assert_eq!(Job::default_batch(Mode::Ping, 8, 4096), 1);
    }

    #[test]
    fn every_size_and_number_of_slots_has_a_region_that_takes_its_batches() {
        for size in [8, 16, 32, 256, 1000 * 8, 4096, 65536, 1 << 20] {
            for slots in [2, 4, 16, 512, 4096] {
                for mode in [Mode::Throughput, Mode::Ping] {
                    let job = Job { size, slots, mode, batch: Job::max_batch(slots), ..job() };
                    let config = job.config().unwrap();
                    assert!(config.max_payload() >= (job.stamp() + size) as u64, "{size} {slots}");
                    config.region_bytes().unwrap();
                    // Half of the lane is what a batch can take.
                    let (batch, each) = (job.batch as u64, job.lane_bytes_each());
                    assert!(batch == 1 || batch * each <= config.max_payload(), "{size} {slots}");
                    assert!((1..=32).contains(&job.release_every().unwrap()), "{size} {slots}");
                }
            }
        }
    }

    #[test]
    fn modes_and_strategies_survive_their_names() {
        for mode in [Mode::Throughput, Mode::Ping, Mode::Paced(20_000)] {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
        }
        for wait in [Strategy::Spin, Strategy::Yield, Strategy::Block] {
            assert_eq!(wait.to_string().parse::<Strategy>().unwrap(), wait);
        }
        for bad in ["paced", "paced:", "paced:0", "paced:x", "pong"] {
            assert!(bad.parse::<Mode>().is_err(), "{bad}");
        }
    }
}
