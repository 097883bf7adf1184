//! A sequencer on a thread of its own: [`SequencerConfig`], [`SequencerHandle`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::assist::{Assist, Decision, Shared};
use super::{STALL, Sequencer, SequencerError, SequencerStats, Turn};
use crate::affinity::{self, Spinning};
use crate::fork;
use crate::region::Region;
use crate::wait::{self, Idle, Wait};
use crate::worker::panic_text;

/// Runs that a spawned sequencer orders in one turn at most.
const BUDGET: usize = 256;

/// How a sequencer's own thread works.
#[derive(Clone, Debug)]
#[must_use]
pub struct SequencerConfig {
    core: Option<usize>,
    wait: Wait,
    measure_cpu: bool,
    close_timeout: Duration,
    stall_after: Duration,
    assist: Assist,
    without_journal: bool,
}

impl Default for SequencerConfig {
    fn default() -> Self {
        SequencerConfig {
            core: None,
            wait: Wait::default(),
            measure_cpu: false,
            close_timeout: Duration::from_secs(5),
            stall_after: STALL,
            assist: Assist::Auto,
            without_journal: false,
        }
    }
}

impl SequencerConfig {
    /// The defaults: not pinned, parks when idle.
    pub fn new() -> Self {
        Self::default()
    }

    /// Pins the thread, and no other, to a CPU, by the kernel's number.
    pub fn core(mut self, cpu: usize) -> Self {
        self.core = Some(cpu);
        self
    }

    /// How to wait for work; default [`Wait::Park`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Measures the processor time of turns that find work: two system calls for each of them. Default no.
    pub fn measure_cpu(mut self, yes: bool) -> Self {
        self.measure_cpu = yes;
        self
    }

    /// Whether workers of this process that run dry, and producers that wait for room, make turns for it, so that a
    /// command need not be handed over to another thread first. For few cores: with a core of its own a sequencer is
    /// faster alone. A handler that takes long delays the order by a millisecond at most. Who helps is on clones of the
    /// [`Region`] that the sequencer has. Default [`Assist::Auto`]; `true` and `false` are [`Assist::On`] and
    /// [`Assist::Off`]. While they help, [`Snapshot::helped`](crate::Snapshot::helped) says so, and the log when it
    /// begins and ends.
    ///
    /// ```
    /// use seriatim::{Assist, SequencerConfig};
    ///
    /// let chosen = SequencerConfig::new(); // by what there is at any time
    /// let always = SequencerConfig::new().assist(true);
    /// let never = SequencerConfig::new().assist(Assist::Off);
    /// ```
    pub fn assist(mut self, assist: impl Into<Assist>) -> Self {
        self.assist = assist.into();
        self
    }

    /// What is left to be chosen: one who was given a CPU has one to spare.
    fn assist_here(&self) -> Assist {
        if self.assist == Assist::Auto && self.core.is_some() { Assist::Off } else { self.assist }
    }

    /// See [`Sequencer::without_journal`].
    pub fn without_journal(mut self, yes: bool) -> Self {
        self.without_journal = yes;
        self
    }

    /// See [`Sequencer::stall_after`].
    pub fn stall_after(mut self, time: Duration) -> Self {
        self.stall_after = time;
        self
    }

    /// How long [`SequencerHandle::close`] waits for workers that keep the end out of the order; default 5 s.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }
}

impl Sequencer {
    /// Sequences on a thread of its own.
    ///
    /// # Errors
    /// As [`open`](Self::open); or the thread cannot be started, or not be pinned.
    pub fn spawn(region: &Region, config: SequencerConfig) -> Result<SequencerHandle, SequencerError> {
        Sequencer::open(region)?.start(config)
    }

    /// Goes on on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started, or not be pinned.
    pub fn start(self, config: SequencerConfig) -> Result<SequencerHandle, SequencerError> {
        let mut sequencer = self;
        let region = sequencer.region.clone();
        sequencer.measure_cpu = config.measure_cpu;
        sequencer.without_journal = config.without_journal;
        sequencer.watch.stall_after(config.stall_after);
        let asked = Arc::new(AtomicU8::new(RUN));
        let (pinned, is_pinned) = mpsc::channel();
        let thread = std::thread::Builder::new().name(affinity::SEQUENCER_THREAD.into()).spawn({
            let asked = Arc::clone(&asked);
            move || {
                let pin = config.core.map_or(Ok(()), affinity::pin);
                let failed = pin.is_err();
                // The spawning thread waits for this and cannot be gone.
                let _ = pinned.send(pin);
                if failed { Ok(sequencer.stats) } else { serve(sequencer, &config, &asked) }
            }
        });
        let thread = thread.map_err(SequencerError::Thread)?;
        let handle = SequencerHandle { region, asked, thread: Some(thread) };
        // A thread that ended without a word panicked: joining says how.
        let told = loop {
            // Bounded, as all waits are: not even here is a wake-up that gets lost one for good.
            match is_pinned.recv_timeout(wait::LONGEST_SLEEP) {
                Err(RecvTimeoutError::Timeout) => {}
                other => break other,
            }
        };
        match told {
            Ok(Ok(())) => Ok(handle),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(handle.stop().err().unwrap_or(SequencerError::Panicked("at its start".into()))),
        }
    }
}

/// A sequencer's own thread at work, until it is asked to end.
fn serve(
    sequencer: Sequencer,
    config: &SequencerConfig,
    asked: &AtomicU8,
) -> Result<SequencerStats, SequencerError> {
    let region = sequencer.region.clone();
    let shared = Arc::new(Shared::new(sequencer));
    let _end = End { region: &region, shared: &shared };
    let _spinning = Spinning::of(config.wait);
    Service {
        shared: &shared,
        config,
        asked,
        decision: Decision::new(config.assist_here()),
        idle: Idle::new(config.wait),
        duty: Duty::default(),
        seen: 0,
    }
    .run()
}

/// Lets go of a sequencer, also when its thread panics.
struct End<'a> {
    region: &'a Region,
    shared: &'a Arc<Shared>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        // If it ended in another's hands, a successor may be helped by now.
        self.region.assistance().clear(self.shared);
        self.shared.end();
    }
}

struct Service<'a> {
    shared: &'a Arc<Shared>,
    config: &'a SequencerConfig,
    asked: &'a AtomicU8,
    decision: Decision,
    idle: Idle,
    duty: Duty,
    /// Turns that others had made when it looked last.
    seen: u64,
}

impl Service<'_> {
    fn run(&mut self) -> Result<SequencerStats, SequencerError> {
        loop {
            let mut sequencer = self.shared.lock().ok_or_else(|| self.shared.failure())?;
            let found = loop {
                let turn = sequencer.poll(BUDGET)?;
                if self.duty.is_over(&mut sequencer, &turn, self.config, self.asked) {
                    return Ok(sequencer.stats);
                }
                if self.decision.renew(self.shared, &sequencer) {
                    break turn.commands > 0;
                }
                // Nobody else wants it: it is kept.
                if turn.commands > 0 {
                    self.idle.reset();
                } else if self.idle.step() {
                    self.duty.sleep(&mut sequencer, self.asked);
                }
            };
            drop(sequencer);
            self.leave_to_others(found)?;
        }
    }

    /// Waits without it, but for sleeping, when nobody helps.
    fn leave_to_others(&mut self, found: bool) -> Result<(), SequencerError> {
        if found {
            self.idle.reset();
        } else if self.shared.turns() != self.seen {
            self.shared.stand_by();
            self.seen = self.shared.turns();
            self.idle.reset();
        } else if self.idle.step() {
            let mut sequencer = self.shared.lock().ok_or_else(|| self.shared.failure())?;
            self.duty.sleep(&mut sequencer, self.asked);
        }
        Ok(())
    }
}

/// What a sequencer's thread was asked, and how far that has come.
#[derive(Debug, Default)]
struct Duty {
    closing: bool,
    give_up: Option<Instant>,
}

impl Duty {
    /// Does what is asked; whether the thread is to end.
    fn is_over(
        &mut self,
        sequencer: &mut Sequencer,
        turn: &Turn,
        config: &SequencerConfig,
        asked: &AtomicU8,
    ) -> bool {
        match asked.load(Ordering::Acquire) {
            STOP => return true,
            CLOSE if !self.closing => {
                (self.closing, self.give_up) = (true, wait::after(config.close_timeout));
                sequencer.close();
            }
            _ => {}
        }
        // It may have been closed in another's turn.
        let is_closed = turn.closed || (self.closing && sequencer.stats.closed);
        if is_closed {
            // After this one there may never be another.
            sequencer.give_back_all(self.give_up);
        }
        is_closed || wait::is_over(self.give_up)
    }

    fn sleep(&self, sequencer: &mut Sequencer, asked: &AtomicU8) {
        // Once closing, only the order counts: what keeps it back is a gate.
        let seen = if self.closing { CLOSE } else { RUN };
        sequencer.sleep(self.give_up, || asked.load(Ordering::Acquire) != seen);
    }
}

const RUN: u8 = 0;
const STOP: u8 = 1;
const CLOSE: u8 = 2;

/// A sequencer's own thread. Dropping it stops the thread, without closing the order.
#[derive(Debug)]
pub struct SequencerHandle {
    region: Region,
    asked: Arc<AtomicU8>,
    thread: Option<JoinHandle<Result<SequencerStats, SequencerError>>>,
}

impl SequencerHandle {
    /// Closes the order and joins the thread: workers get [`Event::Closed`](crate::Event::Closed) after all that
    /// was submitted, waiting producers get `Closed` at once. If workers keep the end out of the order for
    /// longer than the close time-out, `closed` in the result is false, and the next sequencer orders the rest.
    ///
    /// # Errors
    /// What ended the thread before.
    pub fn close(mut self) -> Result<SequencerStats, SequencerError> {
        self.end(CLOSE)
    }

    /// Stops and joins the thread, leaving the order open for the next sequencer.
    ///
    /// # Errors
    /// What ended the thread before.
    pub fn stop(mut self) -> Result<SequencerStats, SequencerError> {
        self.end(STOP)
    }

    /// Whether the thread has ended by itself, on an error.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn end(&mut self, how: u8) -> Result<SequencerStats, SequencerError> {
        let Some(thread) = self.thread.take() else { return Ok(SequencerStats::default()) };
        if fork::is_child() {
            // The thread is not here; what is known of it is not to be waited for.
            std::mem::forget(thread);
            return Err(SequencerError::Forked);
        }
        self.asked.store(how, Ordering::Release);
        // It may be about to sleep: ring whether or not it has announced itself. Who reads the word before it
        // moves does not sleep, who reads it after sees what is asked.
        thread.thread().unpark();
        wait::wake_all(&self.region.map().bells().sequencer);
        thread.join().unwrap_or_else(|panic| Err(SequencerError::Panicked(panic_text(&*panic).into())))
    }
}

impl Drop for SequencerHandle {
    fn drop(&mut self) {
        // Whoever drops it does not want to know; who does calls `stop`.
        let _ = self.end(STOP);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;
    use crate::Config;
    use crate::assistance::Helper;

    /// Somebody's log that panics.
    struct Panics;

    impl Subscriber for Panics {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &Event<'_>) {
            panic!("no room for a log");
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn who_ended_in_anothers_hands_does_not_take_the_help_from_its_successor() {
        let region = Region::anonymous(&Config::new()).unwrap();
        let shared = || Arc::new(Shared::new(Sequencer::open(&region).unwrap()));
        let former = shared();
        region.assistance().set(Arc::clone(&former) as _);
        let end = End { region: &region, shared: &former };
        former.end();
        let successor = shared();
        region.assistance().set(Arc::clone(&successor) as _);
        drop(end);
        Helper::new(region.assistance()).help(region.assistance());
        assert_eq!(successor.turns(), 1);
    }

    #[test]
    fn a_panic_of_the_thread_lets_the_next_one_serve() {
        for assist in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let region = Region::create(folder.path().join("region"), &Config::new()).unwrap();
            let sequencer = Sequencer::open(&region).unwrap();
            // Its first turn has something to say: the file is gone.
            drop(folder);
            let (config, asked) = (SequencerConfig::new().assist(assist), AtomicU8::new(RUN));
            let serve = || serve(sequencer, &config, &asked);
            let ended = catch_unwind(AssertUnwindSafe(|| tracing::subscriber::with_default(Panics, serve)));
            assert!(ended.is_err());
            assert!(Sequencer::open(&region).is_ok(), "assist: {assist}");
        }
    }
}
