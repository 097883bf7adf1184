//! Parties that stop before any of their stores.
//!
//! [`stop_everywhere`]: a sequencer, and a successor that stops as well. The parties of [`World`] act one after
//! another, so there is one execution for each place to stop, and all places are tried. That the stores before the
//! stop are there and those after it are not is what a kill does to a process; what a compiler may move across is
//! argued in `seriatim_ring::algorithm`.
//!
//! [`model_of_death`]: any party, while others go on beside it, under every interleaving up to a number of
//! preemptions.

use crate::memory::{Memory, Origin, Size};
use crate::world::{Host, Op, World};
use crate::{Outcomes, explore, report};
use seriatim_ring::sync::{Stopped, prepare, stop_after};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Ends sequencers: each after the given number of its stores, in turn; the last one lives.
#[derive(Debug)]
pub struct Fuses {
    left: Vec<usize>,
    stopped: usize,
}

impl Host for Fuses {
    fn call<R>(&mut self, call: impl FnOnce() -> R) -> Option<R> {
        let Some(&left) = self.left.get(self.stopped) else { return Some(call()) };
        match mortal(left, call) {
            Some((done, left)) => {
                self.left[self.stopped] = left;
                Some(done)
            }
            None => {
                self.stopped += 1;
                None
            }
        }
    }
}

/// Runs `act` on the calling thread, which makes at most `stores` stores in it: what it did and how many were left,
/// or `None` if it was stopped before the next one.
pub fn mortal<R>(stores: usize, act: impl FnOnce() -> R) -> Option<(R, usize)> {
    stop_after(Some(stores));
    let done = catch_unwind(AssertUnwindSafe(act));
    let left = stop_after(None);
    match done {
        Ok(done) => Some((done, left.expect("it did not burn"))),
        Err(stopped) if stopped.is::<Stopped>() => None,
        Err(failed) => resume_unwind(failed),
    }
}

/// Explores `body` for every number of stores after which its victim stops, and once more with a victim that does not
/// stop. `body` says whether it stopped. Prints and checks like [`model`](crate::model).
pub fn model_of_death(
    name: &str,
    preemptions: usize,
    allowed: &[&'static str],
    body: impl Fn(usize, &Outcomes) -> bool + Send + Sync + 'static,
) {
    let begin = Instant::now();
    let (body, outcomes) = (Arc::new(body), Arc::new(Outcomes::default()));
    let (mut executions, mut steps) = (0, 0);
    loop {
        let stops = Arc::new(AtomicBool::new(false));
        let (body, noted, stopped) = (Arc::clone(&body), Arc::clone(&outcomes), Arc::clone(&stops));
        executions += explore(preemptions, move || {
            stopped.fetch_or(body(steps, &noted), Ordering::Relaxed);
        });
        if !stops.load(Ordering::Relaxed) {
            break;
        }
        steps += 1;
    }
    report(&format!("{name} at each of {steps} steps"), executions, preemptions, begin, &outcomes, allowed);
}

/// Plays `script` with sequencers that stop as `stops` says, each replaced at once, and lets all come to rest.
/// Returns how many stopped.
pub fn play(size: Size, origin: Origin, script: &[Op], stops: &[usize]) -> usize {
    let script = script.to_vec();
    let stops = stops.to_vec();
    let result = Arc::new(Mutex::new(0));
    let stopped = Arc::clone(&result);
    let mut builder = loom::model::Builder::new();
    // One thread: nothing branches, but every access counts as a place where it could.
    builder.max_branches = 1_000_000;
    builder.max_permutations = None;
    builder.check(move || {
        prepare();
        let memory = Memory::new(size, origin);
        let mut world = World::new(&memory, size, origin, Fuses { left: stops.clone(), stopped: 0 });
        for &op in &script {
            while !world.has_sequencer() {
                world.step(Op::TakeOver);
            }
            world.step(op);
        }
        world.settle();
        *stopped.lock().expect("nobody panics here") = world.host().stopped;
    });
    *result.lock().expect("nobody panics here")
}

/// Plays `script` once for every place where the first sequencer can stop, and for each of these once for every
/// place where its successor can stop, up to `second` stores after it began. Returns how often.
pub fn stop_everywhere(size: Size, origin: Origin, script: &[Op], second: usize) -> usize {
    let mut plays = 0;
    for first in 0.. {
        plays += 1;
        if play(size, origin, script, &[first]) == 0 {
            break;
        }
        for then in 0..second {
            plays += 1;
            if play(size, origin, script, &[first, then]) < 2 {
                break;
            }
        }
    }
    plays
}
