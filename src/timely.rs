//! The glue for a [Timely](timely) program (feature `timely`): a worker of the order in the thread of a Timely worker.
//!
//! It builds no dataflow, so it takes none of the identifiers that Timely's workers have to give out alike, and what it
//! needs of the engine's thread is one call instead of `step_or_park`:
//!
//! ```
//! use std::time::Duration;
//! use seriatim::timely::{Parking, fingerprint};
//! use seriatim::{Config, Event, Notifier, Producer, Region, Sequencer, SequencerConfig, Worker};
//!
//! let region = Region::anonymous(&Config::new().workers(2))?;
//! let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
//! let notifier = std::sync::Arc::new(Notifier::spawn(&region)?); // one for all workers of a process
//! let config = timely::Config::process(2);
//! let engine = timely::execute(config, {
//!     let region = region.clone();
//!     move |timely| {
//!         let mut worker = Worker::join(&region, &format!("worker-{}", timely.index())).unwrap();
//!         let parking = Parking::new(timely, &notifier);
//!         let (mut done, mut open) = (0, true);
//!         while open {
//!             let events = worker.poll_batch(64, |event| match event {
//!                 Event::Command(_) => done += 1, // here the engine builds, advances, drops dataflows
//!                 Event::Closed { .. } => open = false,
//!                 _ => {}
//!             });
//!             if events.unwrap() == 0 {
//!                 parking.step_or_park(timely, &mut worker, None).unwrap();
//!             } else {
//!                 timely.step();
//!             }
//!         }
//!         (done, fingerprint(timely))
//!     }
//! })
//! .unwrap();
//! let mut producer = Producer::attach(&region, "controller")?;
//! producer.submit(0, b"create")?;
//! # let are_in = || region.snapshot().workers.iter().filter(|worker| worker.party.attached).count() == 2;
//! # while !are_in() { std::thread::yield_now() } // or the last to join would get nothing
//! producer.submit(0, b"drop")?;
//! sequencer.close()?;
//! let results: Vec<(u64, u64)> = engine.join().into_iter().map(Result::unwrap).collect();
//! assert_eq!(results[0].1, results[1].1, "they numbered the same things alike");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use crate::notify::{Notifier, Summons};
use crate::wait::LONGEST_SLEEP;
use crate::worker::{Worker, WorkerError};

/// A Timely worker's way to sleep until there is something to do: for it, or in the order.
///
/// While it sleeps it costs a look each 100 ms, in which it also finds out that the region was lost, or that the notifier
/// is gone.
#[derive(Debug)]
pub struct Parking {
    summons: Summons,
}

impl Parking {
    /// For a Timely worker, on its own thread.
    #[must_use]
    pub fn new(timely: &timely::worker::Worker, notifier: &Notifier) -> Parking {
        let activations = timely.activations().borrow().sync();
        // The empty path belongs to no dataflow, and keeps its worker from parking. Who cannot be told is gone.
        Parking { summons: notifier.summons(move || _ = activations.activate(Vec::new())) }
    }

    /// As Timely's `step_or_park`, but also woken when the order goes on: steps if a dataflow is active, else parks until
    /// one is, until the order has something for `worker`, or for `longest` at most. Before it, take what is there
    /// ([`Worker::poll_batch`]): with something there it steps and does not park. Whether dataflows remain.
    ///
    /// # Errors
    /// As [`Summons::arm`](crate::Summons::arm).
    pub fn step_or_park(
        &self,
        timely: &mut timely::worker::Worker,
        worker: &mut Worker,
        longest: Option<Duration>,
    ) -> Result<bool, WorkerError> {
        let is_active = timely.activations().borrow().empty_for() == Some(Duration::ZERO);
        if is_active || !self.summons.arm(worker)? {
            return Ok(timely.step());
        }
        let longest = longest.map_or(LONGEST_SLEEP, |longest| longest.min(LONGEST_SLEEP));
        let remain = timely.step_or_park(Some(longest));
        self.summons.disarm();
        Ok(remain)
    }
}

/// What Timely's workers have to number alike: how many dataflows one has made and how many identifiers it has given to
/// channels and operators, in one number. Workers that carried out the same commands have the same, and one that built
/// something else or in another order does not.
#[must_use]
pub fn fingerprint(timely: &timely::worker::Worker) -> u64 {
    (timely.next_dataflow_index() as u64) << 40 ^ timely.peek_identifier() as u64
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use timely::container::CapacityContainerBuilder;
    use timely::dataflow::InputHandle;
    use timely::dataflow::operators::{Input, Inspect, Probe};

    use super::*;
    use crate::{Config, Event, Producer, Region, Sequencer, SequencerConfig};

    const WORKERS: usize = 3;

    /// How an engine idles.
    #[derive(Clone, Copy)]
    enum With {
        Nothing,
        IdleDataflows,
    }

    /// A dataflow that stays while its input does.
    fn open_dataflow(
        timely: &mut timely::worker::Worker,
    ) -> InputHandle<u64, CapacityContainerBuilder<Vec<u64>>> {
        timely.dataflow(|scope| {
            let mut input = InputHandle::new();
            scope.input_from(&mut input).container::<Vec<_>>().inspect(|_| {}).probe();
            input
        })
    }

    /// What an engine was seen to do.
    struct Seen {
        /// Sleeps that ended by themselves although something was there.
        lost_wakes: u64,
        /// How long each command took to all workers, sorted.
        waits: Vec<Duration>,
        /// Of a processor, each worker's thread while there is nothing to do.
        idle: Vec<f64>,
    }

    /// Commands come after random gaps, so that each finds the workers at another step on their way to sleep; and then
    /// none for a while.
    fn seen(with: With, commands: u64) -> Seen {
        let region = Region::anonymous(&Config::new().workers(WORKERS as u64)).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let notifier = Arc::new(Notifier::spawn(&region).unwrap());
        let (lost, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let threads = Arc::new(Mutex::new(Vec::new()));
        let engine = timely::execute(timely::Config::process(WORKERS), {
            let (region, lost, done) = (region.clone(), Arc::clone(&lost), Arc::clone(&done));
            let threads = Arc::clone(&threads);
            move |timely| {
                threads.lock().unwrap().push(fs::read_link("/proc/thread-self").unwrap());
                let _input = match with {
                    With::Nothing => None,
                    With::IdleDataflows => Some(open_dataflow(timely)),
                };
                let mut worker = Worker::join(&region, &format!("w{}", timely.index())).unwrap();
                let parking = Parking::new(timely, &notifier);
                let mut open = true;
                while open {
                    let events = worker.poll_batch(1, |event| match event {
                        Event::Command(_) => _ = done.fetch_add(1, Ordering::Relaxed),
                        Event::Closed { .. } => open = false,
                        _ => {}
                    });
                    if events.unwrap() > 0 {
                        continue;
                    }
                    let began = Instant::now();
                    parking.step_or_park(timely, &mut worker, None).unwrap();
                    let slept = began.elapsed();
                    // A machine that stood still has kept the waker from its work as well.
                    let whole = slept >= LONGEST_SLEEP && slept < LONGEST_SLEEP * 6 / 5;
                    let is_late = whole && worker.lag() > 0;
                    lost.fetch_add(is_late.into(), Ordering::Relaxed);
                }
            }
        })
        .unwrap();
        while region.snapshot().workers.iter().filter(|worker| worker.party.attached).count() < WORKERS {
            std::thread::yield_now();
        }
        let mut producer = Producer::attach(&region, "p").unwrap();
        let (mut state, mut waits) = (7_u64, Vec::new());
        for n in 0..commands {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let until = Instant::now() + Duration::from_nanos((state >> 33) % 200_000);
            while Instant::now() < until {
                std::thread::yield_now();
            }
            let submitted = Instant::now();
            producer.submit(0, &n.to_le_bytes()).unwrap();
            while done.load(Ordering::Relaxed) < (n + 1) * WORKERS as u64 {
                std::thread::yield_now();
            }
            waits.push(submitted.elapsed());
        }
        waits.sort();
        let idle = least_idle(&threads.lock().unwrap());
        sequencer.close().unwrap();
        engine.join().into_iter().for_each(|ended| ended.unwrap());
        Seen { lost_wakes: lost.load(Ordering::Relaxed), waits, idle }
    }

    /// What of a processor each thread takes while it has nothing to do: in the first of some whiles in which that is
    /// little, or the last, for what stops a whole machine is counted as the time of those whom it stopped.
    fn least_idle(threads: &[PathBuf]) -> Vec<f64> {
        let used = |thread: &PathBuf| {
            let stat = fs::read_to_string(Path::new("/proc").join(thread).join("schedstat")).unwrap();
            stat.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let a_while = || {
            let (before, began) = (threads.iter().map(used).collect::<Vec<_>>(), Instant::now());
            std::thread::sleep(Duration::from_millis(500));
            let nanos = began.elapsed().as_nanos() as f64;
            threads
                .iter()
                .zip(before)
                .map(|(thread, before)| (used(thread) - before) as f64 / nanos)
                .collect()
        };
        let mut idle: Vec<f64> = a_while();
        for _ in 1..10 {
            if idle.iter().all(|share| *share < LITTLE) {
                break;
            }
            idle = a_while();
        }
        idle
    }

    /// Of a processor, for a worker that has nothing to do.
    const LITTLE: f64 = 0.01;

    #[test]
    fn a_timely_worker_that_parks_is_woken_for_each_command_and_costs_next_to_nothing() {
        let commands = if std::env::var_os("SERIATIM_LONG").is_some() { 10_000 } else { 1000 };
        for (with, what) in [(With::Nothing, "without a dataflow"), (With::IdleDataflows, "with an idle one")]
        {
            let Seen { lost_wakes, waits, idle } = seen(with, commands);
            let at = |share: usize| waits[(waits.len() - 1) * share / 100];
            let percent: Vec<_> = idle.iter().map(|share| format!("{:.2} %", share * 100.0)).collect();
            println!(
                "{what}: after {commands} gaps a command is at all workers in {:?} (half), {:?} (99 of 100), {:?} \
                 (all); idle, each takes {percent:?} of a processor",
                at(50),
                at(99),
                at(100),
            );
            assert_eq!(lost_wakes, 0, "{what}");
            assert!(idle.len() == WORKERS && idle.iter().all(|share| *share < LITTLE), "{what}: {percent:?}");
        }
    }

    #[test]
    fn who_numbers_its_dataflows_differently_has_another_fingerprint() {
        let fingerprints = |odd: bool| {
            let engine = timely::execute(timely::Config::process(2), move |timely| {
                let before = fingerprint(timely);
                drop(open_dataflow(timely));
                if odd && timely.index() == 1 {
                    timely.new_identifier();
                }
                assert_ne!(before, fingerprint(timely));
                fingerprint(timely)
            });
            engine.unwrap().join().into_iter().map(Result::unwrap).collect::<Vec<_>>()
        };
        let alike = fingerprints(false);
        assert_eq!(alike[0], alike[1]);
        let differ = fingerprints(true);
        assert_ne!(differ[0], differ[1]);
    }
}
