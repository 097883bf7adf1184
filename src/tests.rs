//! The library as a whole, in one process: every party through its public face, on real mapped files.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::liveness::{Lock, Role};
use crate::region::layout::Part;
use crate::*;

mod access;
mod agreement;
mod assistance;
mod digests;
mod ends;
mod flood;
mod gates;
mod impossible;
#[cfg(feature = "serde")]
mod incarnations;
mod observers;
mod oracle;
mod parts;
mod poison;
mod seats;
mod spills;
mod stalls;
mod submitting;
mod waking;

/// A region and its sequencer, turned by hand.
struct Desk {
    region: Region,
    sequencer: Sequencer,
}

impl Desk {
    fn new(config: &Config) -> Desk {
        let region = Region::anonymous(config).unwrap();
        let sequencer = Sequencer::open(&region).unwrap();
        Desk { region, sequencer }
    }

    /// Runs an attach, which needs the sequencer's answer, on another thread while the sequencer turns.
    fn attach<T: Send>(&mut self, attach: impl FnOnce(&Region) -> T + Send) -> T {
        let region = self.region.clone();
        thread::scope(|scope| {
            let attaching = scope.spawn(move || attach(&region));
            while !attaching.is_finished() {
                self.sequencer.poll(16).unwrap();
                thread::yield_now();
            }
            attaching.join().unwrap()
        })
    }

    fn producer(&mut self, name: &str) -> Producer {
        self.attach(|region| Producer::attach(region, name)).unwrap()
    }

    fn worker(&mut self, name: &str) -> Worker {
        self.attach(|region| Worker::join(region, name)).unwrap()
    }

    /// Turns until nothing is left to order.
    fn turn(&mut self) {
        while self.sequencer.poll(16).unwrap().commands > 0 {}
    }
}

fn tiny() -> Config {
    // Attaching takes a place in the order: with fewer slots idle workers would keep newcomers out.
    Config::new().order_slots(8).lane_cells(2).lane_bytes(128).producers(2).workers(3)
}

/// Everything that a worker has to give, as payloads.
fn drain(worker: &mut Worker) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while let Some(event) = worker.poll().unwrap() {
        if let Event::Command(command) = event {
            payloads.push(command.payload.to_vec());
        }
    }
    payloads
}

fn bytes(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + salt * 13) as u8).collect()
}

/// Whether to run the long forms.
fn long() -> bool {
    std::env::var_os("SERIATIM_LONG").is_some_and(|value| value != "0")
}

/// Reached only by what never ends.
const NEVER: Duration = Duration::from_secs(60);

/// Tells threads that it is over when it is dropped, also by a test that fails: a scope waits for them.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A region with more runs behind it than its ring holds.
fn well_used() -> Desk {
    let mut desk = Desk::new(&Config::new().order_slots(8).lane_cells(8).lane_bytes(512));
    use_well(&mut desk);
    desk
}

fn use_well(desk: &mut Desk) {
    let (mut producer, mut worker) = (desk.producer("p"), desk.worker("w"));
    for n in 0..20 {
        producer.submit(n, b"x").unwrap();
        desk.turn();
        drain(&mut worker);
        desk.sequencer.poll(1).unwrap();
    }
}
