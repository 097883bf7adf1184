//! [`Notifier`]: wakes workers whose threads wait elsewhere than in the region: in a scheduler, an event loop, a poll.
//!
//! Such a worker says that it waits ([`Summons::arm`]) and then waits wherever its thread does. The notifier is a thread that
//! sleeps in the region for all of them in its process, gates nobody, and calls what each gave it to be woken by. While
//! nobody waits it does not sleep in the region, so that the sequencer has nobody to wake.
//!
//! **Why no wake-up is lost.** A worker enters the index that it waits for under a mutex, and looks at the order once
//! more after that. The notifier announces itself on the workers' bell, and looks at what is entered, under the mutex, after
//! that.
//!
//! - If it looks after the worker entered: it finds the entry. What was published before that look wakes the worker, and
//!   whoever publishes later finds the announcement (`W1`), rings, and the notifier looks again.
//! - If it looked before: what was published by then is handed over by the mutex, so the worker's second look finds it;
//!   what is published later rings the bell, and the notifier looks again, which is the first case.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use seriatim_ring::Seq;
use seriatim_ring::sequencer::published;
use seriatim_ring::wake::FOR_WORK;

use crate::error::AttachError;
use crate::fork;
use crate::region::Region;
use crate::region::layout::Part;
use crate::wait;
use crate::worker::{Worker, WorkerError};

/// How a thread is woken.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// A worker that waits for an index.
struct Entry {
    id: u64,
    at: Seq,
    wake: Wake,
}

#[derive(Default)]
struct Entries {
    waiting: Vec<Entry>,
    ended: bool,
}

/// What the notifier and those it wakes share.
struct Desk {
    region: Region,
    entries: Mutex<Entries>,
    changed: Condvar,
    next_id: AtomicU64,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Nothing that can panic is done under it.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How to wake those whose index is published; they wait no longer.
    fn take_due(&self) -> Vec<Wake> {
        let mut entries = self.lock();
        let (next, _) = published(self.region.map().control());
        entries.waiting.extract_if(.., |entry| entry.at < next).map(|entry| entry.wake).collect()
    }

    /// Whether the notifier has something to do.
    fn is_needed(&self) -> bool {
        let entries = self.lock();
        let (next, _) = published(self.region.map().control());
        entries.ended || entries.waiting.iter().any(|entry| entry.at < next)
    }

    fn serve(&self) {
        loop {
            {
                let entries = self.lock();
                if entries.ended {
                    return;
                }
                if entries.waiting.is_empty() {
                    // Bounded, as all waits are.
                    drop(self.changed.wait_timeout(entries, wait::LONGEST_SLEEP));
                    continue;
                }
            }
            self.take_due().iter().for_each(call);
            let bell = &self.region.map().bells().workers;
            wait::sleep(bell, FOR_WORK, None, || self.is_needed());
        }
    }
}

/// One that panics costs the others nothing.
fn call(wake: &Wake) {
    if catch_unwind(AssertUnwindSafe(|| wake())).is_err() {
        tracing::error!("what was to wake a worker panicked");
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("region", &self.region).finish_non_exhaustive()
    }
}

/// A thread that wakes the workers of its process which wait elsewhere than in the region. One serves any number of them.
///
/// ```
/// use std::time::Duration;
/// use seriatim::{Config, Event, Notifier, Producer, Region, Sequencer, SequencerConfig, Worker};
///
/// let region = Region::anonymous(&Config::new())?;
/// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
/// let notifier = Notifier::spawn(&region)?;
/// let mut worker = Worker::join(&region, "w")?;
/// let mut producer = Producer::attach(&region, "p")?;
///
/// // This thread waits in `park`; another one could wait in `epoll_wait`, and be woken through an eventfd.
/// let this = std::thread::current();
/// let summons = notifier.summons(move || this.unpark());
/// producer.submit(0, b"wake up")?;
/// let mut got = Vec::new();
/// while got.is_empty() {
///     let events = worker.poll_batch(64, |event| {
///         if let Event::Command(command) = event {
///             got.extend_from_slice(command.payload);
///         }
///     })?;
///     // With nothing there, and nothing come just now, it may wait.
///     if events == 0 && summons.arm(&mut worker)? {
///         std::thread::park_timeout(Duration::from_millis(100));
///     }
/// }
/// assert_eq!(got, b"wake up");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Notifier {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Notifier {
    /// Starts the thread. It ends when this is dropped.
    ///
    /// # Errors
    /// The region is read-only, or the thread cannot be started.
    pub fn spawn(region: &Region) -> Result<Notifier, AttachError> {
        region.make_writable("a notifier", &[Part::Bells])?;
        let desk = Arc::new(Desk {
            region: region.clone(),
            entries: Mutex::default(),
            changed: Condvar::new(),
            next_id: AtomicU64::new(0),
        });
        let thread = std::thread::Builder::new().name("seriatim-notify".into()).spawn({
            let desk = Arc::clone(&desk);
            move || desk.serve()
        });
        let thread = thread.map_err(AttachError::io(region.path(), "start a thread for"))?;
        Ok(Notifier { desk, thread: Some(thread) })
    }

    /// A place with it for one worker. `wake` is called on the notifier's thread, which it must not hold up: it unparks
    /// a thread, writes to an eventfd, activates a scheduler.
    #[must_use]
    pub fn summons(&self, wake: impl Fn() + Send + Sync + 'static) -> Summons {
        // Relaxed: a count, and nothing that it would hand over.
        let id = self.desk.next_id.fetch_add(1, Ordering::Relaxed);
        Summons { desk: Arc::clone(&self.desk), id, wake: Arc::new(wake) }
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if fork::is_child() {
            // The thread is not here.
            std::mem::forget(thread);
            return;
        }
        self.desk.lock().ended = true;
        self.desk.changed.notify_all();
        wait::wake_all(&self.desk.region.map().bells().workers);
        // It catches what others' code panics at; what it could panic at itself concerns nobody any more.
        let _ = thread.join();
    }
}

/// One worker's place with a [`Notifier`].
pub struct Summons {
    desk: Arc<Desk>,
    id: u64,
    wake: Wake,
}

impl Summons {
    /// Asks to be woken once for what comes next to a worker of the notifier's region; `false` if it is there already:
    /// then the worker polls again (and may be woken all the same, for nothing). After the end it waits for a sequencer
    /// that goes on.
    ///
    /// The wait that follows is to be bounded, by 100 ms or so, and then asked for anew: the notifier may be gone, and
    /// this looks whether the region is.
    ///
    /// # Errors
    /// [`WorkerError::Lost`]; [`WorkerError::Forked`] in a child of the process that made it.
    pub fn arm(&self, worker: &mut Worker) -> Result<bool, WorkerError> {
        if fork::is_child() {
            return Err(WorkerError::Forked);
        }
        let at = worker.next();
        {
            let mut entries = self.desk.lock();
            entries.waiting.retain(|entry| entry.id != self.id);
            entries.waiting.push(Entry { id: self.id, at, wake: Arc::clone(&self.wake) });
            if entries.waiting.len() == 1 {
                self.desk.changed.notify_one();
            }
        }
        let waits = worker.goes_elsewhere();
        if !matches!(waits, Ok(true)) {
            self.disarm();
        }
        waits
    }

    /// Need not be woken any more.
    pub fn disarm(&self) {
        // In a forked child another thread may have had the mutex when it was copied.
        if !fork::is_child() {
            self.desk.lock().waiting.retain(|entry| entry.id != self.id);
        }
    }
}

impl Drop for Summons {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl fmt::Debug for Summons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summons").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Config, Event, Producer, Sequencer, SequencerConfig};

    /// Longer than anything takes, and short enough that a wake-up that was lost ends the test.
    const NEVER: Duration = Duration::from_secs(60);

    /// Receives commands until it has so many, waiting in `park`; how often nobody woke it in time. It yields so often before
    /// it says that it waits: what comes meanwhile, others can have received who wait again by then.
    fn receive(worker: &mut Worker, summons: &Summons, commands: u64, yields: u32) -> u64 {
        let (mut got, mut lost) = (0, 0);
        while got < commands {
            let one = |event: Event<'_>| got += u64::from(matches!(event, Event::Command(_)));
            if worker.poll_batch(1, one).unwrap() > 0 {
                continue;
            }
            (0..yields).for_each(|_| std::thread::yield_now());
            if summons.arm(worker).unwrap() {
                let began = std::time::Instant::now();
                std::thread::park_timeout(NEVER);
                lost += u64::from(began.elapsed() >= NEVER);
            }
        }
        lost
    }

    #[test]
    fn whoever_waits_elsewhere_is_woken_for_each_command() {
        const COMMANDS: u64 = 2000;
        let region = Region::anonymous(&Config::new().workers(4)).unwrap();
        let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let notifier = Notifier::spawn(&region).unwrap();
        let mut producer = Producer::attach(&region, "p").unwrap();
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (notifier, seen, region) = (&notifier, &seen, &region);
            let workers = (0..3).map(|n| {
                let mut worker = Worker::join(region, &format!("w{n}")).unwrap();
                scope.spawn(move || {
                    let this = std::thread::current();
                    let summons = notifier.summons(move || this.unpark());
                    (0..COMMANDS).for_each(|_| {
                        assert_eq!(receive(&mut worker, &summons, 1, 20 * n), 0, "a wake-up was lost");
                        seen.fetch_add(1, Ordering::Relaxed);
                    });
                })
            });
            let workers: Vec<_> = workers.collect();
            for n in 0..COMMANDS {
                producer.submit(0, &n.to_le_bytes()).unwrap();
                // Most come when all of them wait.
                while n % 8 != 0 && seen.load(Ordering::Relaxed) < 3 * (n + 1) {
                    assert!(!workers.iter().any(|worker| worker.is_finished() && n + 1 < COMMANDS));
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(notifier.desk.lock().waiting.len(), 0);
    }

    #[test]
    fn what_is_there_already_is_not_waited_for_and_who_is_not_armed_is_not_called() {
        let region = Region::anonymous(&Config::new()).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let notifier = Notifier::spawn(&region).unwrap();
        let mut worker = Worker::join(&region, "w").unwrap();
        let mut producer = Producer::attach(&region, "p").unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let summons = notifier.summons({
            let calls = Arc::clone(&calls);
            move || _ = calls.fetch_add(1, Ordering::Relaxed)
        });
        producer.submit(0, b"").unwrap();
        producer.wait_sequenced(0).unwrap();
        assert!(!notifier.summons(|| {}).arm(&mut worker).unwrap(), "it is there");
        while worker.poll().unwrap().is_some() {}
        assert!(summons.arm(&mut worker).unwrap());
        summons.disarm();
        producer.submit(0, b"").unwrap();
        producer.wait_sequenced(1).unwrap();
        while worker.poll().unwrap().is_some() {}
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        assert!(summons.arm(&mut worker).unwrap());
        sequencer.close().unwrap();
        // The end is in the order, too.
        while calls.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        while worker.poll().unwrap().is_some() {}
        assert!(summons.arm(&mut worker).unwrap(), "somebody can go on after the end");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn one_that_panics_keeps_nobody_else_from_being_woken() {
        let region = Region::anonymous(&Config::new()).unwrap();
        let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let notifier = Notifier::spawn(&region).unwrap();
        let mut workers = ["a", "b"].map(|name| Worker::join(&region, name).unwrap());
        let mut producer = Producer::attach(&region, "p").unwrap();
        let bad = notifier.summons(|| panic!("as told"));
        let this = std::thread::current();
        let good = notifier.summons(move || this.unpark());
        for index in 0..3 {
            for worker in &mut workers {
                while worker.poll().unwrap().is_some() {}
            }
            assert!(bad.arm(&mut workers[0]).unwrap() && good.arm(&mut workers[1]).unwrap());
            producer.submit(0, b"").unwrap();
            assert_eq!(receive(&mut workers[1], &good, 1, 0), 0, "command {index}");
        }
    }

    #[test]
    fn who_waits_elsewhere_is_told_that_the_region_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        let region = Region::create(&path, &Config::new()).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let notifier = Notifier::spawn(&region).unwrap();
        let mut worker = Worker::join(&region, "w").unwrap();
        let summons = notifier.summons(|| {});
        std::fs::remove_file(&path).unwrap();
        drop(sequencer);
        let lost = loop {
            while worker.poll().unwrap().is_some() {}
            match summons.arm(&mut worker) {
                Ok(_) => std::thread::yield_now(),
                Err(lost) => break lost,
            }
        };
        assert!(matches!(lost, WorkerError::Lost(_)), "{lost}");
    }
}
