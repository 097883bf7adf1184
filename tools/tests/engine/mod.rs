//! An engine of real processes that tests kill and stop as they like, and the check of the stream that its workers
//! received. The processes are the test program itself, told by the environment which part to play.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod part;
pub(crate) mod stream;

use std::collections::HashMap;
use std::env;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seriatim::shared::Stamps;
use seriatim::{Config, Region};
use tempfile::TempDir;

use part::{
    ACKED, CLOSE, CLOSED, END, FINISH, FIRST, GOAL, LEAVE, PACE, PATIENT, PRODUCER, SEEN, SERVING, WORDS,
    WORKER,
};

/// Reached only when something never happens.
const PATIENCE: Duration = Duration::from_secs(120);

/// One process of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// Serves the region; a second one waits until the first is gone.
    Sequencer(usize),
    /// Submits numbered commands up to the goal.
    Producer(usize),
    /// Writes down what it receives.
    Worker(usize),
    /// Attaches as a producer and submits nothing.
    Idler,
}

/// A region and the processes around it.
pub(crate) struct Engine {
    region: Region,
    table: Stamps,
    /// What workers write down, and what the parts complain about.
    records: TempDir,
    folder: TempDir,
    running: HashMap<Who, Child>,
    started: usize,
    /// What this is a test of, for messages.
    what: String,
}

impl Engine {
    /// A small region, in which everything wraps soon.
    pub(crate) fn new(what: String) -> Engine {
        let config = Config::new().order_slots(16).lane_cells(16).lane_bytes(4096).producers(6);
        let config = config.workers(5).ranks(4);
        Self::with(what, &config)
    }

    pub(crate) fn with(what: String, config: &Config) -> Engine {
        let folder = crate::common::scratch();
        let region = Region::create(folder.path().join("region"), config).expect("room for a region");
        Engine {
            region,
            table: Stamps::create(WORDS).expect("room for a table"),
            records: TempDir::new().expect("a folder for the records"),
            folder,
            running: HashMap::new(),
            started: 0,
            what,
        }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Starts a process; `crash` says where it ends.
    pub(crate) fn start(&mut self, who: Who, crash: Option<&str>) {
        let (role, index) = match who {
            Who::Sequencer(i) => ("sequencer", i),
            Who::Producer(i) => ("producer", i),
            Who::Worker(i) => ("worker", i),
            Who::Idler => ("idler", 0),
        };
        let out = self.records.path().join(format!("{role}-{index}-{}", self.started));
        self.started += 1;
        let part = part::Part {
            role: role.into(),
            index,
            region: self.region.path().into(),
            table: self.table.path(),
            out,
        };
        let mut command = part.command();
        if let Some(crash) = crash {
            command.env("SERIATIM_CRASH", crash);
        }
        let complaints = File::options().create(true).append(true).open(self.complaints()).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints);
        let child = command.spawn().expect("the test program starts");
        assert!(self.running.insert(who, child).is_none(), "{who:?} runs already");
    }

    fn complaints(&self) -> PathBuf {
        self.records.path().join("complaints")
    }

    fn pid(&self, who: Who) -> Pid {
        Pid::from_raw(self.running[&who].id() as i32)
    }

    pub(crate) fn signal(&self, who: Who, signal: Signal) {
        kill(self.pid(who), signal).expect("a child can be sent signals");
    }

    /// Kills a process and forgets it.
    pub(crate) fn kill(&mut self, who: Who) {
        let mut child = self.running.remove(&who).expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    pub(crate) fn runs(&self, who: Who) -> bool {
        self.running.contains_key(&who)
    }

    /// Whether a process was killed at its crash point; then it is forgotten.
    pub(crate) fn has_crashed(&mut self, who: Who) -> bool {
        let Some(status) = self.ended(who) else { return false };
        if status.signal() != Some(Signal::SIGKILL as i32) {
            self.fail(&format!("{who:?} ended by itself: {status}"));
        }
        self.running.remove(&who);
        true
    }

    /// Whether a process is stopped.
    pub(crate) fn is_stopped(&self, who: Who) -> bool {
        crate::common::is_stopped(self.pid(who).as_raw() as u32)
    }

    /// Whether all of those sleep.
    pub(crate) fn are_asleep(&self, those: impl Fn(Who) -> bool) -> bool {
        let mut these = self.running.keys().filter(|who| those(**who));
        these.all(|&who| crate::common::is_asleep(self.pid(who).as_raw() as u32))
    }

    fn ended(&mut self, who: Who) -> Option<ExitStatus> {
        self.running.get_mut(&who)?.try_wait().expect("a child can be waited for")
    }

    /// Waits for something that has to happen, while every process but `victim` has to go on.
    pub(crate) fn await_all(&mut self, what: &str, happened: impl FnMut(&mut Self) -> bool) {
        self.await_but(None, what, happened);
    }

    pub(crate) fn await_but(
        &mut self,
        victim: Option<Who>,
        what: &str,
        mut happened: impl FnMut(&mut Self) -> bool,
    ) {
        let started = Instant::now();
        while !happened(self) {
            self.check_others(victim, what);
            if started.elapsed() > PATIENCE {
                self.fail(&format!("never happened: {what}"));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Nobody but the victim ends by itself, and the workers agree.
    pub(crate) fn check_others(&mut self, victim: Option<Who>, meanwhile: &str) {
        // Whoever died in the middle of a report, what is read is what somebody reported.
        if let Some(diverged) = self.region.agreement().divergence {
            self.fail(&format!("workers differ at {diverged}, while waiting until {meanwhile}"));
        }
        let others: Vec<Who> = self.running.keys().copied().filter(|&who| Some(who) != victim).collect();
        for who in others {
            if let Some(status) = self.ended(who).filter(|status| !status.success()) {
                self.fail(&format!("{who:?} ended: {status}, while waiting until {meanwhile}"));
            }
        }
    }

    /// Ends the test with all that is known.
    pub(crate) fn fail(&self, why: &str) -> ! {
        let complaints = fs::read_to_string(self.complaints()).unwrap_or_default();
        let kept: Vec<u64> = (0..8).map(|i| self.acked(i)).collect();
        let seen: Vec<u64> = (0..8).map(|i| self.table.get(SEEN + i)).collect();
        panic!(
            "{}: {why}\nsubmitted {kept:?}, seen {seen:?}\n{:#?}\n{complaints}",
            self.what,
            self.region.snapshot()
        );
    }

    /// How many commands each producer submits.
    pub(crate) fn set_goal(&self, commands: u64) {
        (GOAL..GOAL + 16).for_each(|at| self.table.set(at, commands));
    }

    pub(crate) fn goal(&self) -> u64 {
        self.table.get(GOAL)
    }

    pub(crate) fn set_goal_of(&self, producer: usize, commands: u64) {
        self.table.set(GOAL + producer, commands);
    }

    pub(crate) fn set_pace(&self, micros: u64) {
        self.table.set(PACE, micros);
    }

    /// Has workers wait as long as it takes: they come to sleep, and cannot be asked to leave.
    pub(crate) fn be_patient(&self) {
        self.table.set(PATIENT, 1);
    }

    /// Per-producer index before which every submit has returned.
    pub(crate) fn acked(&self, producer: usize) -> u64 {
        self.table.get(ACKED + producer)
    }

    /// The first index that is delivered to a worker that is attached.
    pub(crate) fn first(&self, worker: usize) -> u64 {
        self.table.get(FIRST + worker)
    }

    /// The index that a worker expects next.
    pub(crate) fn seen(&self, worker: usize) -> u64 {
        self.table.get(SEEN + worker)
    }

    /// Whether the workers that are attached have on record all that any of them has passed and that is not free: so
    /// nothing is missing if all of them die, whose gate falls last. For processes that stand still.
    pub(crate) fn is_on_record(&self) -> bool {
        let snapshot = self.region.snapshot();
        let is_worker = |who: &&Who| matches!(who, Who::Worker(_));
        // One that is about to join may be let in when it is dead already.
        if !self.running.keys().filter(is_worker).all(|&who| self.is_attached(who)) {
            return false;
        }
        let mut workers: Vec<(u64, u64)> = Vec::new();
        for who in self.running.keys() {
            if let Who::Worker(i) = who {
                workers.push((self.first(*i), self.seen(*i)));
            }
        }
        workers.sort_unstable();
        let anchor = snapshot.anchor.get();
        let recorded =
            workers.iter().fold(anchor, |to, &(first, seen)| if first <= to { to.max(seen) } else { to });
        snapshot.workers.iter().all(|worker| worker.next.get() <= recorded)
    }

    /// A worker that died has no claim to what it has seen: whoever takes its place begins anew.
    pub(crate) fn forget_seen(&self, worker: usize) {
        self.table.set(SEEN + worker, 0);
    }

    /// The epoch of the sequencer that served last.
    pub(crate) fn serving(&self) -> u64 {
        self.table.get(SERVING)
    }

    pub(crate) fn ask_to_leave(&self, worker: usize, yes: bool) {
        self.table.set(LEAVE + worker, yes.into());
    }

    pub(crate) fn ask_to_close(&self) {
        self.table.set(CLOSE, 1);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.table.get(CLOSED) != 0
    }

    /// Whether everybody who runs is attached.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.running.keys().all(|&who| self.is_attached(who))
    }

    /// Whether a process that runs is attached; sequencers and idlers do not say so.
    pub(crate) fn is_attached(&self, who: Who) -> bool {
        match who {
            Who::Producer(i) => self.table.get(PRODUCER + i) == self.pid(who).as_raw() as u64,
            Who::Worker(i) => self.table.get(WORKER + i) == self.pid(who).as_raw() as u64,
            _ => true,
        }
    }

    /// Whether all producers that run have reached a goal.
    pub(crate) fn have_submitted(&self, goal: u64) -> bool {
        self.running.keys().all(|who| !matches!(who, Who::Producer(i) if self.acked(*i) < goal))
    }

    /// Closes the order, lets everyone end, and checks the stream; how many commands it has.
    pub(crate) fn finish(mut self) -> stream::Checked {
        self.await_all("everybody is attached", Self::is_complete);
        self.table.set(END, 1);
        self.ask_to_close();
        self.await_all("the order closes", |me| me.is_closed());
        self.table.set(FINISH, 1);
        self.await_all("everybody ends", |me| {
            let left: Vec<Who> = me.running.keys().copied().collect();
            for who in left {
                if me.ended(who).is_some_and(|status| status.success()) {
                    me.running.remove(&who);
                }
            }
            me.running.is_empty()
        });
        let checked = stream::check(self.records.path(), &self.region);
        let checked = checked.unwrap_or_else(|wrong| self.fail(&wrong));
        for (&producer, &commands) in &checked.commands_of {
            let returned = self.acked(producer);
            if commands < returned {
                self.fail(&format!("p{producer}: {returned} submits returned, {commands} commands came"));
            }
        }
        checked
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A test program's own command, with a part to play.
pub(crate) fn this_program() -> Command {
    let mut command = Command::new(env::current_exe().expect("a running program has a path"));
    command.args(["--exact", "part", "--nocapture", "--test-threads", "1"]);
    command
}

/// Numbers that look random and repeat with their seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The seed of this run: `SERIATIM_SEED` repeats one.
pub(crate) fn seed() -> u64 {
    let given = env::var("SERIATIM_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |age| age.as_nanos() as u64 % 1_000_000_007)
    })
}
