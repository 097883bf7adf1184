//! The proof of `run`: what each worker received, against what the input says that it had to.
//!
//! Nobody keeps the commands. Each party folds what it sees into one [`Tally`] per producer, and the parent
//! folds the input in the same way; equal tallies mean that
//!
//! - every command arrived once: the number, the bytes and an order-independent sum of 128-bit hashes agree;
//! - each producer's commands kept their order: a chain over them agrees, and their indexes were dense.
//!
//! That all workers saw one order is said twice: by the digest that the library folds, and by a chain of our
//! own over the hashes in the order of receipt, which trusts nothing but what was read.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::input::Lines;
use crate::output::many;
use crate::party::WorkerReport;

/// A multiplier that spreads every bit upwards (the golden ratio in 64 bits).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hash of one payload.
pub(crate) fn hash(payload: &[u8]) -> u128 {
    XxHash3_128::oneshot(payload)
}

/// `chain` continued by one more value: depends on all values and their order.
pub(crate) fn link(chain: u64, value: u64) -> u64 {
    let mixed = (chain ^ value).wrapping_mul(SPREAD);
    (mixed ^ (mixed >> 29)).wrapping_add(1)
}

/// The commands of one producer, folded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
    /// Sums of the halves of the payloads' hashes: the same for the same payloads in any order.
    sums: [u64; 2],
    /// A chain over the payloads' hashes: the same for the same payloads in the same order only.
    chain: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, len: usize, hash: u128) {
        let halves = [hash as u64, (hash >> 64) as u64];
        self.commands += 1;
        self.bytes += len as u64;
        self.sums[0] = self.sums[0].wrapping_add(halves[0]);
        self.sums[1] = self.sums[1].wrapping_add(halves[1]);
        self.chain = link(self.chain, halves[0]);
    }
}

/// What each producer is to submit: line `i` of the repeated input is the business of producer `i %
/// producers`.
pub(crate) fn expected(lines: &Lines, repeat: u64, producers: usize) -> Vec<Tally> {
    let hashes: Vec<(usize, u128)> = lines.iter().map(|line| (line.len(), hash(line))).collect();
    let mut tallies = vec![Tally::default(); producers];
    let mut turn = 0;
    for _ in 0..repeat {
        for &(len, hash) in &hashes {
            tallies[turn].add(len, hash);
            turn = (turn + 1) % producers;
        }
    }
    tallies
}

/// Everything in which the workers differ from the input, from the order, or from one another; nothing when
/// all agree.
pub(crate) fn differences(expected: &[Tally], workers: &[WorkerReport], next: u64) -> Vec<String> {
    let mut found: Vec<String> = workers
        .iter()
        .flat_map(|worker| against_input(expected, worker).chain(against_order(worker, next)))
        .collect();
    if let Some((first, others)) = workers.split_first() {
        found.extend(others.iter().flat_map(|other| against_each_other(first, other)));
    }
    found
}

fn against_input<'a>(expected: &'a [Tally], worker: &'a WorkerReport) -> impl Iterator<Item = String> + 'a {
    let name = &worker.name;
    let gaps = worker.faults.iter().map(move |fault| format!("{name}: {fault}"));
    let tallies = expected.iter().zip(&worker.received).enumerate().filter(|(_, (want, got))| want != got);
    gaps.chain(tallies.map(move |(producer, (want, got))| {
        let what = if (want.commands, want.bytes) != (got.commands, got.bytes) {
            format!(
                "{} ({}) instead of {} ({})",
                many(got.commands, "command"),
                many(got.bytes, "byte"),
                want.commands,
                many(want.bytes, "byte")
            )
        } else if want.sums != got.sums {
            "other payloads than the input's".into()
        } else {
            "the input's payloads in another order".into()
        };
        format!("{name} received from p{producer} {what}")
    }))
}

fn against_order(worker: &WorkerReport, next: u64) -> Option<String> {
    (worker.next != next)
        .then(|| format!("{} ended at index {}, the order ends at {next}", worker.name, worker.next))
}

fn against_each_other(first: &WorkerReport, other: &WorkerReport) -> Option<String> {
    let differs = if first.next != other.next {
        return None; // One of them differs from the order, which is said already.
    } else if first.digest != other.digest {
        format!("digest {} and {}", first.digest, other.digest)
    } else if first.chain != other.chain {
        format!("the same digest {} for different commands", first.digest)
    } else {
        return None;
    };
    Some(format!("{} and {} differ before index {}: {differs}", first.name, other.name, first.next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str, received: Vec<Tally>) -> WorkerReport {
        WorkerReport { name: name.into(), received, next: 9, digest: "aa".into(), ..WorkerReport::default() }
    }

    fn two_producers() -> Vec<Tally> {
        expected(&Lines::new(b"a\nb\n\nccc\na".to_vec()), 3, 2)
    }

    #[test]
    fn the_input_is_dealt_out_in_turn() {
        let tallies = two_producers();
        assert_eq!(tallies.iter().map(|t| t.commands).collect::<Vec<_>>(), [8, 7]);
        assert_eq!(tallies.iter().map(|t| t.bytes).sum::<u64>(), 18);
    }

    #[test]
    fn equal_tallies_agree() {
        let workers = [worker("w0", two_producers()), worker("w1", two_producers())];
        assert!(differences(&two_producers(), &workers, 9).is_empty());
    }

    #[test]
    fn a_change_of_order_is_found() {
        let (mut one, mut other) = (Tally::default(), Tally::default());
        for text in ["a", "b"] {
            one.add(1, hash(text.as_bytes()));
        }
        for text in ["b", "a"] {
            other.add(1, hash(text.as_bytes()));
        }
        let found = differences(&[one], &[worker("w0", vec![other])], 9);
        assert_eq!(found, ["w0 received from p0 the input's payloads in another order"]);
    }

    #[test]
    fn a_missing_command_is_found() {
        let mut short = two_producers();
        short[1] = expected(&Lines::new(b"a\nb".to_vec()), 1, 2).remove(1);
        let found = differences(&two_producers(), &[worker("w3", short)], 9);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("w3 received from p1 1 command (1 byte) instead of 7"), "{found:?}");
    }

    #[test]
    fn another_payload_is_found() {
        let (mut one, mut other) = (Tally::default(), Tally::default());
        one.add(1, hash(b"a"));
        other.add(1, hash(b"x"));
        let found = differences(&[one], &[worker("w0", vec![other])], 9);
        assert_eq!(found, ["w0 received from p0 other payloads than the input's"]);
    }

    #[test]
    fn workers_that_differ_are_named() {
        let mut other = worker("w1", two_producers());
        other.digest = "bb".into();
        let found = differences(&two_producers(), &[worker("w0", two_producers()), other], 9);
        assert_eq!(found, ["w0 and w1 differ before index 9: digest aa and bb"]);
    }

    #[test]
    fn a_worker_that_stopped_early_is_named() {
        let mut other = worker("w1", two_producers());
        other.next = 7;
        let found = differences(&two_producers(), &[worker("w0", two_producers()), other], 9);
        assert_eq!(found, ["w1 ended at index 7, the order ends at 9"]);
    }
}
