//! Assistance: where no core can be spared for the sequencer, the workers of its process do its turns.
//!
//! A worker that runs dry takes a turn, if nobody else has one just now, and so sees what is queued without a hand-over
//! to another thread; a producer does while it waits for room. The sequencer's own thread stands by: it looks each
//! [`TICK`] whether somebody has made turns since, and if not it serves as it would alone, until somebody does again. A
//! worker that goes to sleep calls it at once. Whether they are to help at all, it decides anew whenever somebody comes
//! or goes.
//!
//! **Invariant:** a turn is made by who holds the mutex, and nobody waits for it but the sequencer's own thread, to whom
//! all others give way.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::{Sequencer, SequencerError};
use crate::assistance::Helped;
use crate::region::Region;
use crate::sys;

/// How long the sequencer's thread leaves the turns to others without a look.
const TICK: Duration = Duration::from_millis(1);
/// Runs that one who helps orders in one turn at most.
const BUDGET: usize = 64;

/// When the parties of its process make turns for a sequencer; see [`SequencerConfig::assist`](super::SequencerConfig::assist).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Assist {
    /// While there is no CPU to spare for the sequencer: fewer than parties and sequencer ([`Load`]). Never if it is
    /// pinned to one.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl From<bool> for Assist {
    fn from(yes: bool) -> Assist {
        if yes { Assist::On } else { Assist::Off }
    }
}

impl Assist {
    /// Whether they are to help under this load, `threads` of them being of this process.
    pub(super) fn applies(self, load: Load, threads: usize) -> bool {
        match self {
            Assist::Auto => threads > 0 && load.parties >= load.cpus,
            Assist::On => true,
            Assist::Off => false,
        }
    }
}

/// How many CPUs a sequencer's thread may run on, and how many parties may want them for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// CPUs that the sequencer's thread may run on.
    pub cpus: u32,
    /// Threads of its process that use workers or producers of its [`Region`] (as they were seen last: one that attached
    /// them, or waited with them), and workers of other processes that may run on one of these CPUs.
    pub parties: u32,
}

impl Load {
    /// For the calling thread; `threads` are those of its process.
    fn of(region: &Region, threads: usize) -> Load {
        // It cannot fail for the thread itself; then nobody helps.
        let mine = sys::affinity_of(0).unwrap_or([u64::MAX; sys::CPU_WORDS]);
        let this = std::process::id();
        let members = region.map().members().iter().zip(region.map().worker_pages());
        let pids = members
            .filter(|(member, _)| member.is_live())
            .map(|(_, page)| page.party.pid.load(Relaxed) as u32);
        // One in another pid namespace is not found, or another one is.
        let masks = pids.filter(|&pid| pid != this).filter_map(|pid| sys::affinity_of(pid).ok());
        let others = masks.filter(|its| its.iter().zip(mine).any(|(its, mine)| its & mine != 0));
        Load {
            cpus: mine.iter().map(|word| word.count_ones()).sum(),
            parties: (threads + others.count()) as u32,
        }
    }

    /// As it stands in the region: never 0.
    fn to_word(self) -> u64 {
        u64::from(self.cpus.max(1)) << 32 | u64::from(self.parties)
    }

    /// Of a word in the region; `None` if there is none.
    pub(crate) fn from_word(word: u64) -> Option<Load> {
        (word != 0).then_some(Load { cpus: (word >> 32) as u32, parties: word as u32 })
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |n: u32, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
        let (cpus, parties) = (count(self.cpus, "CPU", "CPUs"), count(self.parties, "party", "parties"));
        write!(f, "{cpus} allowed, {parties}")
    }
}

/// Whether others help just now, for the sequencer's own thread.
#[derive(Debug)]
pub(super) struct Decision {
    assist: Assist,
    helped: bool,
    /// What had changed when it was made.
    seen: Option<(u32, u32)>,
}

impl Decision {
    pub(super) fn new(assist: Assist) -> Decision {
        Decision { assist, helped: false, seen: None }
    }

    /// Makes it anew if somebody has come or gone since; whether others help.
    #[inline]
    pub(super) fn renew(&mut self, shared: &Arc<Shared>, sequencer: &Sequencer) -> bool {
        let seen = Some((sequencer.changes, sequencer.region.assistance().moves()));
        if self.assist != Assist::Off && self.seen != seen {
            self.seen = seen;
            self.make(shared, &sequencer.region);
        }
        self.helped
    }

    #[cold]
    fn make(&mut self, shared: &Arc<Shared>, region: &Region) {
        let assistance = region.assistance();
        let threads = assistance.threads();
        let load = Load::of(region, threads);
        let helped = self.assist.applies(load, threads);
        region.map().control().pulse.helped.store(if helped { load.to_word() } else { 0 }, Relaxed);
        if helped == self.helped {
            return;
        }
        self.helped = helped;
        if helped {
            assistance.set(Arc::clone(shared) as _);
            tracing::info!("the sequencer is helped by the workers of its process ({load})");
        } else {
            assistance.clear(shared);
            tracing::info!("the sequencer serves alone ({load})");
        }
    }
}

/// A sequencer that others can help.
#[derive(Debug)]
pub(crate) struct Shared {
    /// `None` when its thread has ended.
    sequencer: Mutex<Option<Sequencer>>,
    /// Its own thread waits for it: others give way. A mutex alone has those first who never stop trying.
    wanted: AtomicBool,
    /// What ended it in the hands of one who helped.
    failed: Mutex<Option<SequencerError>>,
    /// Turns that others made.
    turns: AtomicU64,
    /// Its thread leaves the turns to others.
    stands_by: AtomicBool,
    thread: Thread,
}

impl Shared {
    /// Of the calling thread.
    pub(crate) fn new(sequencer: Sequencer) -> Shared {
        Shared {
            sequencer: Mutex::new(Some(sequencer)),
            wanted: AtomicBool::new(false),
            failed: Mutex::default(),
            turns: AtomicU64::new(0),
            stands_by: AtomicBool::new(false),
            thread: std::thread::current(),
        }
    }

    /// For its own thread, which waits until nobody else makes a turn; `None` if it ended in another's hands.
    pub(crate) fn lock(&self) -> Option<Held<'_>> {
        self.wanted.store(true, Relaxed);
        let guard = self.sequencer.lock();
        self.wanted.store(false, Relaxed);
        Held::of(guard.ok()?)
    }

    /// What ended it in another's hands.
    pub(crate) fn failure(&self) -> SequencerError {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.unwrap_or_else(|| SequencerError::Panicked("in the thread of one who helped it".into()))
    }

    /// Turns that others have made so far.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Relaxed)
    }

    /// Leaves the turns to others for a [`TICK`], or until one of them goes to sleep.
    pub(crate) fn stand_by(&self) {
        // One who goes to sleep before it sees this leaves the rest of the tick without anybody, and no more.
        self.stands_by.store(true, Relaxed);
        std::thread::park_timeout(TICK);
        self.stands_by.store(false, Relaxed);
    }

    /// Nobody helps any more: what is left of it falls here.
    pub(crate) fn end(&self) {
        *self.sequencer.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Helped for Shared {
    /// Makes a turn, if there is something to do; whether that ordered anything.
    fn help(&self) -> bool {
        if self.wanted.load(Relaxed) {
            return false;
        }
        let Some(mut held) = self.sequencer.try_lock().ok().and_then(Held::of) else { return false };
        if held.stats.closed {
            // Its thread is to see that.
            self.thread.unpark();
            return false;
        }
        // One at a time adds, under the mutex.
        self.turns.store(self.turns().wrapping_add(1), Relaxed);
        if held.is_idle() {
            return false;
        }
        held.stats.assisted_turns += 1;
        match held.poll(BUDGET) {
            Ok(turn) => turn.commands > 0 || turn.closed,
            Err(error) => {
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                *held.0 = None;
                self.thread.unpark();
                false
            }
        }
    }

    /// Its thread is to serve.
    fn hand_back(&self) {
        if self.stands_by.load(Relaxed) {
            self.thread.unpark();
        }
    }
}

/// A sequencer that is there, and nobody else's for now.
pub(crate) struct Held<'a>(MutexGuard<'a, Option<Sequencer>>);

impl<'a> Held<'a> {
    fn of(guard: MutexGuard<'a, Option<Sequencer>>) -> Option<Held<'a>> {
        guard.is_some().then_some(Held(guard))
    }
}

impl Deref for Held<'_> {
    type Target = Sequencer;

    fn deref(&self) -> &Sequencer {
        self.0.as_ref().expect("it was there when it was locked")
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Sequencer {
        self.0.as_mut().expect("it was there when it was locked")
    }
}

#[cfg(test)]
mod tests {
    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;
    use crate::assistance::Helper;
    use crate::{Config, Producer};

    /// Keeps what is said.
    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Vec<String>>>);

    impl Visit for Said {
        fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }

    impl Subscriber for Said {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().ends_with("::assist")
        }

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn each_change_is_said_once() {
        let region = Region::anonymous(&Config::new()).unwrap();
        let shared = Arc::new(Shared::new(Sequencer::open(&region).unwrap()));
        let (said, mut decision) = (Said::default(), Decision::new(Assist::Auto));
        let mut decide = || decision.renew(&shared, &shared.lock().unwrap());
        let one_cpu = || {
            sys::set_affinity(&[crate::affinity::allowed()[0]]).unwrap();
            tracing::subscriber::with_default(said.clone(), || {
                assert!(!decide());
                let helper = Helper::new(region.assistance());
                assert!(decide() && decide());
                drop(Helper::new(region.assistance()));
                assert!(decide());
                helper.leave();
                // Somebody has left.
                drop((helper, Helper::new(region.assistance())));
                assert!(!decide());
            });
        };
        std::thread::scope(|scope| scope.spawn(one_cpu).join().unwrap());
        let helped = "the sequencer is helped by the workers of its process (1 CPU allowed, 1 party)";
        let alone = "the sequencer serves alone (1 CPU allowed, 0 parties)";
        assert_eq!(*said.0.lock().unwrap(), [helped, alone]);
    }

    #[test]
    fn who_helps_gives_way_to_the_sequencers_own_thread() {
        const HELPERS: u64 = 4;
        const ROUNDS: u64 = 50;
        let region = Region::anonymous(&Config::new()).unwrap();
        let shared = Shared::new(Sequencer::open(&region).unwrap());
        let over = AtomicBool::new(false);
        let turns = std::thread::scope(|scope| {
            for _ in 0..HELPERS {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        shared.help();
                    }
                });
            }
            let mut turns = 0;
            for _ in 0..ROUNDS {
                let before = shared.turns();
                while shared.turns() == before {
                    std::thread::yield_now();
                }
                // As it is when the thread has asked for it and is held up then.
                shared.wanted.store(true, std::sync::atomic::Ordering::SeqCst);
                let before = shared.turns();
                std::thread::yield_now();
                let held = shared.lock();
                turns += shared.turns() - before;
                drop(held);
            }
            over.store(true, Relaxed);
            turns
        });
        println!("{turns} turns by {HELPERS} helpers in {ROUNDS} rounds");
        // Each may have looked just before.
        assert!(turns <= HELPERS * ROUNDS, "{turns} turns");
    }

    #[test]
    fn who_helps_makes_a_bounded_turn() {
        let region = Region::anonymous(&Config::new().producers(2)).unwrap();
        let shared = Shared::new(Sequencer::open(&region).unwrap());
        let mut producers = std::thread::scope(|scope| {
            let attach = |name| Producer::attach(&region, name).unwrap();
            let attaching = scope.spawn(move || [attach("one"), attach("other")]);
            while !attaching.is_finished() {
                shared.help();
                std::thread::yield_now();
            }
            attaching.join().unwrap()
        });
        for _ in 0..BUDGET {
            // Each in a run of its own.
            for producer in &mut producers {
                producer.try_submit(0, b"x").unwrap();
            }
        }
        assert!(shared.help());
        assert_eq!(shared.lock().unwrap().stats.runs, BUDGET as u64);
        assert!(shared.help());
        assert_eq!(shared.lock().unwrap().stats.runs, 2 * BUDGET as u64);
        assert!(!shared.help());
    }

    #[test]
    fn others_help_where_there_is_no_cpu_to_spare() {
        let load = |cpus, parties| Load { cpus, parties };
        for (load, threads, applies) in
            [(load(2, 1), 1, false), (load(2, 2), 1, true), (load(2, 9), 0, false), (load(1, 1), 1, true)]
        {
            assert_eq!(Assist::Auto.applies(load, threads), applies, "{load:?}");
            assert!(Assist::On.applies(load, threads) && !Assist::Off.applies(load, threads));
            assert_eq!(Load::from_word(load.to_word()), Some(load));
        }
        assert_eq!(load(1, 5).to_string(), "1 CPU allowed, 5 parties");
    }
}
