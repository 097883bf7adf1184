//! A storm of incarnations: controllers as processes, one after the other, each killed at a random moment, now and then
//! stopped instead and continued later, before workers of different speed of which some are killed and started again;
//! then what the workers wrote down is checked.
//!
//! `SERIATIM_LONG=1` makes it a thousand controllers in a row; `SERIATIM_SEED` repeats a run's choices.

mod common;
mod controllers;
mod engine;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use common::{eventually, times};
use controllers::{Job, Process, check, check_told, inside, lines, open};
use engine::{Random, seed};
use nix::sys::signal::Signal;
use seriatim::{Config, Region, Sequencer, SequencerConfig};
use tempfile::TempDir;

/// What the processes of the storm do. Does nothing as a test.
#[test]
fn part() {
    controllers::play();
}

/// Microseconds that each worker takes for a command. The first one is never killed: it has everything.
const WORKERS: [u64; 4] = [0, 20, 100, 300];
const NAMES: usize = 6;

/// What was done to the processes.
#[derive(Debug, Default)]
struct Blows {
    killed: u64,
    stopped: u64,
    workers_killed: u64,
}

struct Storm {
    region: Region,
    random: Random,
    logs: TempDir,
    folder: TempDir,
    workers: Vec<Process>,
    started: u64,
    /// Who was stopped, by the name that it keeps.
    stopped: Vec<(usize, Process)>,
    /// Who was continued, and has to end by itself.
    continued: Vec<(usize, Process)>,
    /// What controllers wrote.
    written: Vec<PathBuf>,
    blows: Blows,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let folder = common::scratch();
        let config = Config::new().order_slots(64).lane_cells(64).lane_bytes(4096).producers(8).workers(6);
        let region = Region::create(folder.path().join("region"), &config).expect("room for a region");
        let logs = TempDir::new().expect("a folder for the logs");
        Storm {
            region,
            random: Random(seed),
            logs,
            folder,
            workers: Vec::new(),
            started: 0,
            stopped: Vec::new(),
            continued: Vec::new(),
            written: Vec::new(),
            blows: Blows::default(),
        }
    }

    fn start(&mut self, what: &str, job: &Job) -> Process {
        let out = self.logs.path().join(format!("{what}-{}", self.started));
        self.started += 1;
        Process::start(job, &self.folder.path().join("region"), out, None)
    }

    fn start_worker(&mut self, worker: usize) -> Process {
        let job = Job::Work { name: format!("w{worker}"), micros: WORKERS[worker] };
        self.start(&format!("w{worker}"), &job)
    }

    /// One more controller, and an end for the one before: it is killed at some moment, or stopped there.
    fn strike(&mut self) {
        let in_use = |name: usize| self.stopped.iter().chain(&self.continued).any(|(used, _)| *used == name);
        let free: Vec<usize> = (0..NAMES).filter(|&name| !in_use(name)).collect();
        let name = free[self.random.below(free.len() as u64) as usize];
        let commands = self.random.below(201);
        let job = Job::Control { name: format!("c{name}"), nonce: self.started, commands };
        let mut controller = self.start("c", &job);
        self.written.push(controller.out.clone());
        if self.random.below(3) > 0 {
            // So that it does not always end before it has begun.
            eventually("it is open, or superseded", || !controller.lines().is_empty());
        }
        thread::sleep(Duration::from_micros(self.random.below(20_000)));
        // One that was superseded by one who went on meanwhile ends by itself.
        if controller.has_ended() {
            return;
        }
        if self.random.below(6) == 0 && free.len() > 2 {
            controller.signal(Signal::SIGSTOP);
            self.stopped.push((name, controller));
            self.blows.stopped += 1;
        } else {
            controller.kill();
            self.blows.killed += 1;
        }
    }

    fn strike_others(&mut self) {
        if self.random.below(8) == 0 {
            let worker = 1 + self.random.below(WORKERS.len() as u64 - 1) as usize;
            self.workers[worker].kill();
            self.workers[worker] = self.start_worker(worker);
            self.blows.workers_killed += 1;
        }
        if !self.stopped.is_empty() && self.random.below(4) == 0 {
            let at = self.random.below(self.stopped.len() as u64) as usize;
            self.go_on(at);
        }
        self.continued.retain_mut(|(_, controller)| !controller.has_ended());
        for worker in &mut self.workers {
            assert!(!worker.has_ended(), "a worker ended");
        }
    }

    fn go_on(&mut self, at: usize) {
        let (name, controller) = self.stopped.remove(at);
        controller.signal(Signal::SIGCONT);
        self.continued.push((name, controller));
    }

    /// Those that were just started again, too: once the order is closed nobody lets them in.
    fn all_have_joined(&self) {
        // The first that each of them receives is that it has joined, or what came before.
        eventually("all workers have joined", || {
            self.workers.iter().all(|worker| !worker.lines().is_empty())
        });
    }

    /// All that were stopped go on, and have to end: one may open an incarnation only now, which ends those before it.
    fn let_all_end(&mut self) {
        while !self.stopped.is_empty() {
            self.go_on(0);
        }
        let until = Instant::now() + common::PATIENCE;
        for last in 0.. {
            self.continued.retain_mut(|(_, controller)| !controller.has_ended());
            if self.continued.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "{:?} do not end", self.continued);
            drop(open(&self.region, "last", last));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn after_its_hello_only_the_newest_incarnation_is_heard_whoever_dies_or_goes_on() {
    let (seed, controllers) = (seed(), times(60, 1_000));
    println!("storm of {controllers} controllers, seed {seed}");
    let mut storm = Storm::new(seed);
    let sequencer = Sequencer::spawn(&storm.region, SequencerConfig::new()).unwrap();
    for worker in 0..WORKERS.len() {
        let started = storm.start_worker(worker);
        storm.workers.push(started);
        // The first one is the first to join.
        eventually("it has joined", || inside(&storm.region) > worker);
    }
    for _ in 0..controllers {
        if sequencer.is_finished() {
            panic!("the sequencer ended: {:?}", sequencer.stop());
        }
        storm.strike();
        storm.strike_others();
    }
    storm.let_all_end();
    storm.all_have_joined();
    sequencer.close().unwrap();
    eventually("all workers end", || storm.workers.iter_mut().all(Process::has_ended));
    let checked = check(&storm.logs, &storm.workers[0].out).unwrap();
    let mut told = 0;
    let mut superseded = 0;
    for path in &storm.written {
        let lines = lines(path);
        told += check_told(&checked, &lines).unwrap();
        if let Some(line) = lines.iter().find(|line| line.starts_with("superseded ")) {
            let numbers: Vec<u64> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
            assert!(lines[0] == format!("opened {}", numbers[0]) && numbers[1] > numbers[0], "{lines:?}");
            superseded += 1;
        }
    }
    let found = storm.region.verify();
    assert!(found.is_sound(), "{found:?}");
    let (incarnations, commands) = (checked.incarnations.len(), checked.commands.values().sum::<u64>());
    println!(
        "{:?}; {incarnations} incarnations, {commands} commands, {} passed over, {} records compared; {superseded} were \
         told that they are superseded, {told} what became of a command",
        storm.blows, checked.superseded, checked.compared,
    );
    let Blows { killed, stopped, .. } = storm.blows;
    // Whoever was stopped and continued ended by itself, and so was told.
    assert!(superseded >= stopped && stopped > 0 && killed > 0 && incarnations > 10 && told > 0);
}
