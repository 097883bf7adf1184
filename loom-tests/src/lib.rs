//! Models of `seriatim-ring` under every interleaving, up to a stated number of preemptions.
//!
//! ```text
//! cargo loom                       all of them; each prints how many executions it explored
//! cargo loom --test lane           one protocol
//! ```
//!
//! The models call the ring as it ships, compiled with loom's atomics. What a model checks:
//!
//! - *Values.* Loom lets a relaxed load return any store that nothing orders before a later one: a missing
//!   acquire shows as a word that should have been there and is not.
//! - *Reads before overwriting.* Loom never lets a load see a store that runs after it, so a worker that reads a
//!   cell too late cannot be caught by a value. `Traced` places are written and read beside the words that they
//!   stand for; loom reports two accesses that nothing orders.
//! - *Lost wake-ups.* A `Futex` sleeps without a time-out: a lost wake-up is a deadlock, which loom reports.
//!
//! `crash` stops a party before any of its stores, see there.
#![cfg(loom)]

pub mod crash;
#[path = "../../ring/tests/whole/memory.rs"]
pub mod memory;
#[path = "../../ring/tests/whole/world.rs"]
pub mod world;

use loom::cell::UnsafeCell;
use loom::sync::Condvar;
use seriatim_ring::sync::{AtomicU32, Ordering, prepare};
use seriatim_ring::wake::Seen;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Most thread switches of one execution: a model that needs more does not end.
pub const MAX_BRANCHES: usize = 4_000;

/// What the executions of a model came to: each outcome with how often it was met.
#[derive(Debug, Default)]
pub struct Outcomes(Mutex<BTreeMap<&'static str, usize>>);

impl Outcomes {
    /// This execution came to that.
    pub fn note(&self, outcome: &'static str) {
        *self.0.lock().expect("nobody panics here").entry(outcome).or_default() += 1;
    }

    /// How often an outcome was met.
    pub fn count(&self, outcome: &str) -> usize {
        self.0.lock().expect("nobody panics here").get(outcome).copied().unwrap_or(0)
    }
}

/// Explores `body` with at most `preemptions` preemptions an execution; how many executions there were.
fn explore(preemptions: usize, body: impl Fn() + Send + Sync + 'static) -> usize {
    let executions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executions);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = MAX_BRANCHES;
    builder.max_permutations = None;
    builder.max_duration = None;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        prepare();
        body();
    });
    executions.load(Ordering::Relaxed)
}

/// Explores `body` with at most `preemptions` preemptions an execution, and prints how many executions there
/// were and what they came to. A model that explored only one, or that never met one of the outcomes that are
/// `allowed`, has checked nothing and fails, and so does one that met another outcome.
pub fn model(
    name: &str,
    preemptions: usize,
    allowed: &[&'static str],
    body: impl Fn(&Outcomes) + Send + Sync + 'static,
) {
    let outcomes = Arc::new(Outcomes::default());
    let noted = Arc::clone(&outcomes);
    let begin = Instant::now();
    let executions = explore(preemptions, move || body(&noted));
    report(name, executions, preemptions, begin, &outcomes, allowed);
}

fn report(
    name: &str,
    executions: usize,
    preemptions: usize,
    begin: Instant,
    outcomes: &Outcomes,
    allowed: &[&'static str],
) {
    let took = begin.elapsed();
    let outcomes = std::mem::take(&mut *outcomes.0.lock().expect("nobody panics here"));
    println!(
        "model {name}: {executions} executions, at most {preemptions} preemptions, {took:.1?}, {outcomes:?}"
    );
    assert!(executions > 1, "model {name} explored {executions} execution");
    let met: Vec<_> = outcomes.into_keys().collect();
    let mut allowed = allowed.to_vec();
    allowed.sort_unstable();
    assert_eq!(met, allowed, "outcomes of model {name}");
}

/// Places without content that loom watches: two accesses to one place, one of them a write, that nothing
/// orders are reported. A model touches them beside the words that they stand for.
#[derive(Debug)]
pub struct Traced(Vec<UnsafeCell<()>>);

// SAFETY: the cells hold nothing, and nobody dereferences the pointers that they give out; what is unsynchronised
// about their use is what loom is asked to find.
unsafe impl Sync for Traced {}

impl Traced {
    /// So many places.
    pub fn new(places: usize) -> Self {
        Traced((0..places).map(|_| UnsafeCell::new(())).collect())
    }

    fn place(&self, n: u64) -> &UnsafeCell<()> {
        &self.0[(n % self.0.len() as u64) as usize]
    }

    /// Writes place `n`, counted around.
    pub fn write(&self, n: u64) {
        self.place(n).with_mut(|_| ());
    }

    /// Reads place `n`, counted around.
    pub fn read(&self, n: u64) {
        self.place(n).with(|_| ());
    }
}

/// A stand-in for the kernel's futex: waits while a word is what was seen, without a time-out.
#[derive(Debug, Default)]
pub struct Futex {
    bucket: loom::sync::Mutex<Bucket>,
    sleepers: Condvar,
}

/// Who sleeps, who came first first: a number of his own, and the mark.
#[derive(Debug, Default)]
struct Bucket {
    queue: Vec<(u32, u32)>,
    number: u32,
}

impl Futex {
    /// Sleeps, unless `word` is no longer what was `seen`, until woken; whether it was.
    pub fn wait(&self, word: &AtomicU32, seen: Seen) -> bool {
        let mut bucket = self.bucket.lock().expect("nobody panics here");
        if word.load(Ordering::Relaxed) != seen.0 {
            return false;
        }
        let me = bucket.number;
        bucket.number += 1;
        bucket.queue.push((me, seen.mark()));
        while bucket.queue.iter().any(|&(number, _)| number == me) {
            bucket = self.sleepers.wait(bucket).expect("nobody panics here");
        }
        true
    }

    /// Wakes at most `count` of those who sleep under one of these `marks`; how many.
    pub fn wake(&self, count: u32, marks: u32) -> u32 {
        let mut bucket = self.bucket.lock().expect("nobody panics here");
        let mut woken = 0;
        bucket.queue.retain(|&(_, mark)| {
            let stays = mark & marks == 0 || woken == count;
            woken += u32::from(!stays);
            stays
        });
        self.sleepers.notify_all();
        woken
    }

    /// Wakes everyone who sleeps.
    pub fn wake_all(&self) {
        self.wake(u32::MAX, u32::MAX);
    }
}
