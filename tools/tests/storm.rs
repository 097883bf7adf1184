//! A storm: producers, workers, a sequencer and its standby, any of them killed or stopped at random moments and
//! started again at once, now and then all workers or everybody at one moment; then the stream is checked.
//!
//! `SERIATIM_STORM_SECONDS` sets how long (default 30), `SERIATIM_SEED` repeats a run's choices.

mod common;
mod engine;

use std::thread;
use std::time::{Duration, Instant};

use engine::stream::KINDS;
use engine::{Engine, Random, Who, seed};
use nix::sys::signal::Signal;
use seriatim::{Config, Region, Sequencer, SequencerConfig};

/// What the processes of the storm do. Does nothing as a test.
#[test]
fn part() {
    engine::part::play();
}

/// However long a storm is, its commands are such as can be submitted.
#[test]
fn every_kind_of_command_is_one_for_users() {
    let region = Region::anonymous(&Config::new().producers(1).workers(1)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut producer = common::attach(&region, "p");
    for index in KINDS - 2..KINDS + 2 {
        let (kind, payload) = engine::stream::payload(0, index);
        producer.submit(kind, &payload).unwrap();
    }
    assert!(producer.submit(KINDS as u16, b"").is_err());
    sequencer.stop().unwrap();
}

const PRODUCERS: usize = 4;
const WORKERS: usize = 4;
const SEQUENCERS: usize = 2;

/// What was done to the processes.
#[derive(Debug, Default)]
struct Blows {
    sequencers_killed: u64,
    producers_killed: u64,
    workers_killed: u64,
    stopped: u64,
    /// Moments in which all workers died, and everybody.
    all_workers: u64,
    everybody: u64,
}

impl Blows {
    fn killed(&self) -> u64 {
        self.sequencers_killed + self.producers_killed + self.workers_killed
    }
}

struct Storm {
    engine: Engine,
    random: Random,
    /// Who stands still, and until when.
    stopped: Vec<(Who, Instant)>,
    blows: Blows,
}

impl Storm {
    fn everybody() -> Vec<Who> {
        let sequencers = (0..SEQUENCERS).map(Who::Sequencer);
        let workers = (0..WORKERS).map(Who::Worker);
        sequencers.chain(workers).chain((0..PRODUCERS).map(Who::Producer)).collect()
    }

    fn strike(&mut self) {
        let everybody = Self::everybody();
        if self.random.below(25) == 0 {
            let with_them_all = self.random.below(2) == 0;
            return self.kill_all_workers(with_them_all);
        }
        let who = everybody[self.random.below(everybody.len() as u64) as usize];
        if self.random.below(3) == 0 {
            self.stop(who);
        } else {
            self.kill(who);
        }
    }

    /// Kills a process, stopped or not, and starts it again.
    fn kill(&mut self, who: Who) {
        if let Who::Worker(worker) = who
            && !self.is_covered(worker)
        {
            return;
        }
        self.stopped.retain(|(stopped, _)| *stopped != who);
        self.engine.kill(who);
        self.engine.start(who, None);
        match who {
            Who::Sequencer(_) => self.blows.sequencers_killed += 1,
            Who::Worker(_) => self.blows.workers_killed += 1,
            _ => self.blows.producers_killed += 1,
        }
    }

    /// Kills all workers, or everybody, at one moment, and starts them again. Who serves stands still meanwhile, so
    /// that it finds all of them dead at once. Does nothing where a newcomer is further than what is on record: what
    /// lies before its first index would be received by nobody.
    fn kill_all_workers(&mut self, with_them_all: bool) {
        let are_workers = |who: &Who| matches!(who, Who::Worker(_));
        let everybody = Self::everybody();
        let still: Vec<Who> =
            everybody.iter().copied().filter(|who| !matches!(who, Who::Producer(_))).collect();
        still.iter().for_each(|&who| self.engine.signal(who, Signal::SIGSTOP));
        self.engine.await_all("they stand still", |e| still.iter().all(|&who| e.is_stopped(who)));
        if self.engine.is_on_record() {
            let dead: Vec<Who> =
                everybody.iter().copied().filter(|who| with_them_all || are_workers(who)).collect();
            dead.iter().for_each(|&who| self.engine.kill(who));
            (0..WORKERS).for_each(|worker| self.engine.forget_seen(worker));
            dead.iter().for_each(|&who| self.engine.start(who, None));
            self.stopped.retain(|(who, _)| !dead.contains(who));
            *(if with_them_all { &mut self.blows.everybody } else { &mut self.blows.all_workers }) += 1;
        }
        // Who was stopped for longer stays so.
        let others = still.iter().filter(|who| !self.stopped.iter().any(|(stopped, _)| stopped == *who));
        others.for_each(|&who| self.engine.signal(who, Signal::SIGCONT));
    }

    /// Whether another worker has joined and gets all that this one has not had: what none but the dead would have
    /// received cannot be checked.
    fn is_covered(&self, worker: usize) -> bool {
        let mut others = (0..WORKERS).filter(|&other| other != worker);
        let seen = self.engine.seen(worker);
        others.any(|other| self.engine.is_attached(Who::Worker(other)) && self.engine.first(other) <= seen)
    }

    fn stop(&mut self, who: Who) {
        if self.stopped.iter().any(|(stopped, _)| *stopped == who) {
            return;
        }
        self.engine.signal(who, Signal::SIGSTOP);
        let pause = Duration::from_millis(1 + self.random.below(150));
        self.stopped.push((who, Instant::now() + pause));
        self.blows.stopped += 1;
    }

    /// Lets those go on whose time has come, or all.
    fn let_go_on(&mut self, all: bool) {
        let (engine, now) = (&self.engine, Instant::now());
        self.stopped.retain(|(who, until)| {
            let over = all || now >= *until;
            if over {
                engine.signal(*who, Signal::SIGCONT);
            }
            !over
        });
    }
}

fn seconds() -> u64 {
    let given = std::env::var("SERIATIM_STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    given.unwrap_or(30)
}

#[test]
fn a_storm_of_deaths_loses_nothing_and_repeats_nothing() {
    let seed = seed();
    println!("storm of {} s, seed {seed}", seconds());
    let config =
        Config::new().order_slots(64).lane_cells(64).lane_bytes(16 << 10).producers(8).workers(8).ranks(4);
    let engine = Engine::with(format!("storm, seed {seed}"), &config);
    // Enough to be busy, and no more than can be kept on record.
    engine.set_pace(500);
    engine.set_goal(u64::MAX);
    let mut storm = Storm { engine, random: Random(seed), stopped: Vec::new(), blows: Blows::default() };
    Storm::everybody().into_iter().for_each(|who| storm.engine.start(who, None));
    storm.engine.await_all("everybody is attached", Engine::is_complete);
    let until = Instant::now() + Duration::from_secs(seconds());
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(storm.random.below(40)));
        storm.let_go_on(false);
        storm.strike();
        storm.engine.check_others(None, "the storm is over");
    }
    storm.let_go_on(true);
    let Storm { mut engine, blows, .. } = storm;
    // Everybody is alive from here on: all that was submitted arrives, and more can be.
    let goals: Vec<u64> = (0..PRODUCERS).map(|i| engine.acked(i) + 100).collect();
    engine.set_pace(0);
    goals.iter().enumerate().for_each(|(i, &goal)| engine.set_goal_of(i, goal));
    engine.await_all("everything is submitted", |e| (0..PRODUCERS).all(|i| e.acked(i) >= goals[i]));
    let epochs = engine.serving();
    let checked = engine.finish();
    println!(
        "{} kills survived ({} of sequencers, {} of producers, {} of workers), all workers at once {} times, \
         everybody {} times, {} stops; {epochs} epochs, {} joins; {} commands checked, {} changes, {} records compared, \
         {} places told",
        blows.killed(),
        blows.sequencers_killed,
        blows.producers_killed,
        blows.workers_killed,
        blows.all_workers,
        blows.everybody,
        blows.stopped,
        checked.joins,
        checked.commands,
        checked.changes,
        checked.compared,
        checked.told,
    );
    assert_eq!(checked.commands_of.len(), PRODUCERS);
    assert!(blows.killed() > 0 && checked.commands > 0 && checked.told > 0);
}
