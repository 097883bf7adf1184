//! Starting, restarting and cleaning up: starts that die half-way or come all at once, places of the dead, clocks that
//! jump or belong to another namespace, pids of another one. Real processes, killed for real.
//!
//! `SERIATIM_LONG=1` runs everything as often as it takes to meet what is rare.

mod common;
mod engine;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use engine::{Engine, Random, Who, seed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use seriatim::{
    AttachError, Config, CreateError, Event, FileState, Region, RemoveError, Sequencer, SequencerConfig,
    SequencerError, Worker, WorkerError,
};
use tempfile::TempDir;

/// What the processes of an engine do. Does nothing as a test.
#[test]
fn part() {
    engine::part::play();
}

/// A worker on a thread that checks that all numbers of all producers come, each once and in order.
struct Checking {
    thread: thread::JoinHandle<Vec<u64>>,
}

impl Checking {
    fn start(region: &Region, name: &str) -> Checking {
        let mut worker = join(region, name);
        Checking { thread: thread::spawn(move || check(&mut worker)) }
    }

    /// How many commands of each producer there were, when the order is closed.
    fn end(self) -> Vec<u64> {
        self.thread.join().expect("all that came was right")
    }
}

fn check(worker: &mut Worker) -> Vec<u64> {
    let mut next_of: Vec<u64> = Vec::new();
    let mut next = worker.first().get();
    loop {
        match worker.recv() {
            Ok(event) => {
                assert_eq!(event.seq().get(), next, "the next index");
                next += 1;
                if let Event::Command(command) = event {
                    let producer = command.producer as usize;
                    next_of.resize(next_of.len().max(producer + 1), 0);
                    assert_eq!(command.index, next_of[producer], "of producer {producer}");
                    assert_eq!(command.payload, command.index.to_le_bytes());
                    next_of[producer] += 1;
                }
                if matches!(event, Event::Closed { .. }) {
                    next_of.retain(|&commands| commands > 0);
                    return next_of;
                }
            }
            Err(WorkerError::Closed) => thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A producer on a thread that submits numbers until it is told to end.
fn submitting(region: &Region, name: &str, end: &'static AtomicBool) -> thread::JoinHandle<u64> {
    let mut producer = attach(region, name);
    thread::spawn(move || {
        while !end.load(Ordering::Relaxed) {
            let next = producer.next_index();
            producer.submit_at(next, 0, &next.to_le_bytes()).expect("it is submitted");
        }
        producer.next_index()
    })
}

// ---- starts -----------------------------------------------------------------------------------------------

#[test]
fn a_start_that_dies_at_any_moment_does_not_keep_the_next_one_out() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-cells", "16K", "--lane-bytes", "64K", "--slots", "16K"]);
    let mut first = sequence(&region);
    let file = folder.path().join("lines").display().to_string();
    let lines: Vec<String> = (0..10_000).map(|n| format!("line {n}")).collect();
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    run(&["submit", &region, &file]).with(0);
    first.signal(Signal::SIGKILL);
    first.end();

    let rounds = times(10, 200);
    let seed = seed();
    println!("{rounds} starts are killed, seed {seed}");
    let mut random = Random(seed);
    for _ in 0..rounds {
        let mut start = Running::start(&mut seriatim(&["sequence", &region]));
        thread::sleep(Duration::from_micros(random.below(50_000)));
        start.signal(Signal::SIGKILL);
        assert_eq!(start.end().code, None);
        let mut next = sequence(&region);
        next.signal(Signal::SIGKILL);
        next.end();
    }
    let last = sequence(&region);
    let reader = worker(&region, "w", &[]);
    last.stop().with(0);
    assert_eq!(reader.end().with(0).out.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn a_start_that_lacks_descriptors_fails_clean_or_serves() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    if !can_run("prlimit", &["--version"]) {
        eprintln!("skipped: there is no prlimit");
        return;
    }
    let (mut failed, mut served) = (0, 0);
    for limit in 3..14 {
        let nofile = format!("--nofile={limit}");
        let args = [&nofile, env!("CARGO_BIN_EXE_seriatim"), "sequence", &region];
        let mut start = Running::start(Command::new("prlimit").args(args).stdin(Stdio::null()));
        // A line, or the end without one.
        if start.line().starts_with("serving ") {
            served += 1;
            start.stop().with(0);
            continue;
        }
        failed += 1;
        let ended = start.end();
        // Below what the dynamic loader needs the program does not even begin.
        assert!(ended.code.is_some_and(|code| [2, 127].contains(&code)), "{limit}: {ended:?}");
        assert!(!ended.err.contains("panicked"), "{limit}: {ended:?}");
        sequence(&region).stop().with(0);
    }
    println!("{failed} starts failed for lack of descriptors, {served} served");
    assert!(failed > 0 && served > 0);
}

/// At which system call of a start it is killed: each in the long form, some in short.
#[test]
fn a_start_that_is_killed_at_any_system_call_leaves_a_region_that_can_be_served() {
    if !can_run("strace", &["-V"]) {
        eprintln!("skipped: there is no strace");
        return;
    }
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    // From one that ends by itself: all that a start calls until it serves, and some more.
    let step = times(12, 1) as usize;
    let (mut killed, mut calls) = (0, 0);
    for call in (20..400).step_by(step) {
        let inject = format!("inject=all:signal=SIGKILL:when={call}");
        let tracing = ["-f", "-qq", "-o", "/dev/null", "-e", &inject];
        let tool = [env!("CARGO_BIN_EXE_seriatim"), "sequence", &region];
        let mut command = Command::new("strace");
        let mut start = Running::start(command.args(tracing).args(tool).stdin(Stdio::null()));
        let line = start.line();
        calls = call;
        if line.starts_with("serving ") {
            // It came so far: its thread may meet the call still, or be told to end.
            start.signal(Signal::SIGTERM);
            start.end();
            break;
        }
        killed += 1;
        start.end();
        sequence(&region).stop().with(0);
    }
    println!("{killed} starts were killed at system calls up to {calls}");
    assert!(killed > 0);
    let last = sequence(&region);
    common::run_with(&["submit", &region], b"a line\n").with(0);
    last.stop().with(0);
}

/// Whether a program is there and does something.
fn can_run(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn of_many_that_start_at_once_one_serves_and_the_others_name_it() {
    static END: AtomicBool = AtomicBool::new(false);
    let folder = scratch();
    let path = folder.path().join("region");
    let region = Region::create(&path, &Config::new()).unwrap();
    symlink(&path, folder.path().join("link")).unwrap();
    let file = fs::metadata(&path).unwrap();
    let mut serving = sequence(path.to_str().unwrap());
    let checking = Checking::start(&region, "checking");
    let submitting = [submitting(&region, "p", &END), submitting(&region, "q", &END)];
    let rounds = times(4, 200);
    let mut refused = 0;
    let over = Over(&END);
    for _ in 0..rounds {
        // All of them come when it has just died.
        serving.signal(Signal::SIGKILL);
        serving.end();
        let whole = path.display().to_string();
        let paths = [&whole, "link", "./region", "region"];
        let starts: Vec<Running> = (0..8)
            .map(|n| seriatim(&["sequence", paths[n % 4]]))
            .map(|mut command| Running::start(command.current_dir(folder.path())))
            .collect();
        let (mut served, mut losers) = (Vec::new(), Vec::new());
        for mut start in starts {
            // Its first line, or the end of its output.
            if start.line().starts_with("serving ") { served.push(start) } else { losers.push(start) }
        }
        assert_eq!((served.len(), losers.len()), (1, 7));
        serving = served.remove(0);
        let pid = format!("pid {}", serving.pid());
        for loser in losers {
            loser.end().with(2).saying(&["has a sequencer already", &pid]);
            refused += 1;
        }
        assert!(region.snapshot().sequencer.unwrap().alive);
        let now = fs::metadata(&path).unwrap();
        assert_eq!((now.ino(), now.len()), (file.ino(), file.len()));
    }
    drop(over);
    let submitted = submitting.map(|thread| thread.join().unwrap());
    serving.stop().with(0);
    assert_eq!(checking.end(), submitted);
    println!("{rounds} rounds of 8 starts, {refused} refused, {submitted:?} commands in order");
}

#[test]
fn a_sequencer_that_is_killed_again_and_again_changes_no_index() {
    const PRODUCERS: usize = 8;
    let (kills, least) = (times(8, 100), times(1_000, 20_000));
    let seed = seed();
    println!("{kills} kills of the sequencer, {least} commands of each of {PRODUCERS} at least, seed {seed}");
    let mut random = Random(seed);
    let config =
        Config::new().order_slots(256).lane_cells(64).lane_bytes(16 << 10).producers(9).workers(5).ranks(4);
    let mut engine = Engine::with(format!("kills of the sequencer, seed {seed}"), &config);
    engine.set_goal(if long() { least } else { u64::MAX });
    engine.start(Who::Sequencer(0), None);
    (0..4).for_each(|i| engine.start(Who::Worker(i), None));
    (0..PRODUCERS).for_each(|i| engine.start(Who::Producer(i), None));
    engine.await_all("everybody is attached", Engine::is_complete);
    for _ in 0..kills {
        let until = Instant::now() + Duration::from_micros(random.below(60_000));
        let epoch = engine.region().snapshot().epoch;
        engine.await_all("some time passes", |_| Instant::now() >= until);
        engine.kill(Who::Sequencer(0));
        engine.start(Who::Sequencer(0), None);
        engine.await_all("the next one serves", |e| e.region().snapshot().epoch > epoch);
    }
    let goal = least.max((0..PRODUCERS).map(|i| engine.acked(i)).max().unwrap());
    engine.set_goal(goal);
    engine.await_all("everything is submitted", |e| e.have_submitted(goal));
    let checked = engine.finish();
    println!(
        "{} commands, {} changes, {} records compared, {} places told",
        checked.commands, checked.changes, checked.compared, checked.told
    );
    assert_eq!((checked.commands_of.len(), checked.joins), (PRODUCERS, 4));
    assert!(checked.commands >= PRODUCERS as u64 * goal && checked.told > 0);
}

#[test]
fn a_standby_says_that_its_region_has_lost_its_name_and_takes_over_all_the_same() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut serving = sequence(&region);
    let mut standby = Running::start(&mut seriatim(&["sequence", &region, "--standby"]));
    assert!(standby.line().starts_with("standing by "));
    let reader = worker(&region, "w", &[]);
    let moved = folder.path().join("moved").display().to_string();
    fs::rename(&region, &moved).unwrap();
    let said = |what: &str| {
        let errors = run(&["errors", &moved, "--json"]).with(0).json()["errors"].clone();
        let errors = errors.as_array().unwrap().clone();
        errors.iter().any(|e| {
            e["code"] == "file" && e["who"] == "standby" && e["what"].as_str().unwrap().contains(what)
        })
    };
    eventually("it is noticed", || said("names no file"));
    create(&folder, "region", &[]);
    eventually("the other file is noticed", || said("names another file"));
    fs::rename(&moved, &region).unwrap();
    eventually("it is back", || {
        let errors = run(&["errors", &region, "--json"]).with(0).json()["errors"].clone();
        errors
            .as_array()
            .unwrap()
            .iter()
            .any(|e| e["who"] == "standby" && e["what"].as_str().unwrap().contains("back"))
    });
    fs::rename(&region, &moved).unwrap();
    serving.signal(Signal::SIGKILL);
    serving.end();
    assert!(standby.line().starts_with("serving "));
    let ended = standby.stop().with(0);
    assert!(ended.err.contains("standby: region unlinked: its path names no file"), "{ended:?}");
    assert!(ended.err.contains("standby: region unlinked: its path names another file"), "{ended:?}");
    reader.end().with(0);
}

// ---- places of the dead -----------------------------------------------------------------------------------

/// Whether a name is attached, and by this process.
fn is_there(region: &Region, name: &str, pid: u32) -> bool {
    let snapshot = region.snapshot();
    let mut parties =
        snapshot.workers.iter().map(|w| &w.party).chain(snapshot.producers.iter().map(|p| &p.party));
    parties.any(|party| party.name == name && party.pid == pid && party.alive && party.attached)
}

#[test]
fn whoever_is_killed_and_comes_back_at_once_finds_a_place() {
    let folder = scratch();
    let path = create(&folder, "region", &["--workers", "8", "--producers", "8"]);
    let region = Region::attach(&path).unwrap();
    let mut serving = sequence(&path);
    let cycles = times(15, 1000);
    for cycle in 0..cycles {
        // One name that comes again and again, and one that comes once.
        for name in ["same".to_string(), format!("name-{cycle}")] {
            let mut sub = Running::start(&mut seriatim(&["worker", &path, "--name", &name]));
            let mut pubs =
                Running::start(seriatim(&["submit", &path, "--name", &name]).stdin(Stdio::piped()));
            pubs.feed(b"x\n");
            let pids = [sub.pid(), pubs.pid()];
            eventually("both are attached", || pids.iter().all(|&pid| is_there(&region, &name, pid)));
            for mut party in [sub, pubs] {
                party.signal(Signal::SIGKILL);
                assert_eq!(party.end().code, None, "it was killed");
            }
        }
    }
    let status = stat(&path);
    assert_eq!((&status["sequencer"]["pid"], &status["epoch"]), (&serving.pid().into(), &1.into()));
    let rows = |what: &str| status[what].as_array().unwrap().len();
    assert!(rows("workers") <= 8 && rows("producers") <= 8, "{status}");
    println!(
        "{cycles} cycles of 2 names, {} workers and {} producers shown",
        rows("workers"),
        rows("producers")
    );

    // Every place can be had, and the next one is refused with the limit and who is there.
    let workers: Vec<Running> = (0..8).map(|n| worker(&path, &format!("w{n}"), &[])).collect();
    let mut producers: Vec<Running> = (0..8)
        .map(|n| {
            let name = format!("p{n}");
            let mut running =
                Running::start(seriatim(&["submit", &path, "--name", &name]).stdin(Stdio::piped()));
            running.feed(b"x\n");
            let pid = running.pid();
            eventually("it is attached", || is_there(&region, &name, pid));
            running
        })
        .collect();
    let mut workers = workers;
    for (what, of) in [("worker", &mut workers), ("producer", &mut producers)] {
        let pids: Vec<String> = of.iter_mut().map(|running| format!("pid {}", running.pid())).collect();
        let mut parts: Vec<&str> = pids.iter().map(String::as_str).collect();
        let limit = format!("all 8 {what}s");
        parts.push(&limit);
        let command = if what == "worker" { "worker" } else { "submit" };
        common::run_with(&[command, &path, "--name", "ninth"], b"x\n").with(2).saying(&parts);
    }
    serving.signal(Signal::SIGKILL);
    serving.end();
}

#[test]
fn whoever_cleans_up_keeps_nobody_from_coming_in() {
    let folder = scratch();
    let path = folder.path().join("region");
    let text = path.display().to_string();
    Region::create(&path, &Config::new().workers(8).producers(8)).unwrap();
    let end = &AtomicBool::new(false);
    let counts = &[const { AtomicU64::new(0) }; 4];
    let count = |at: usize| counts[at].fetch_add(1, Ordering::Relaxed);
    let going = || !end.load(Ordering::Relaxed);
    let soon = || Instant::now() + Duration::from_millis(5);
    let mut random = Random(seed());
    println!("seed {}", random.0);
    let serving = sequence(&text);
    // Whatever happens to the sequencers, the region is in use.
    let stay = join(&Region::attach(&path).unwrap(), "stays");
    thread::scope(|scope| {
        let over = Over(end);
        let staying = scope.spawn(move || {
            let mut stay = stay;
            // Until the end: where nobody gates there may be no room for it.
            let mut until = None;
            while !matches!(stay.recv_deadline(soon()).unwrap(), Some(Event::Closed { .. })) {
                let is_late =
                    !going() && *until.get_or_insert_with(|| Instant::now() + PATIENCE) < Instant::now();
                assert!(!is_late, "no end comes");
            }
        });

        let mut others = Vec::new();
        for n in 0..4 {
            let (path, name) = (&path, format!("comes-{n}"));
            others.push(scope.spawn(move || {
                while going() {
                    let region = Region::attach(path).expect("a region in use can be opened");
                    drop((join(&region, &name), attach(&region, &name)));
                    count(0);
                }
            }));
        }
        for n in 0..2 {
            let (path, text) = (&path, &text);
            others.push(scope.spawn(move || {
                let (name, region) = (format!("dies-{n}"), Region::attach(path).unwrap());
                while going() {
                    let mut dying = Running::start(&mut seriatim(&["worker", text, "--name", &name]));
                    let pid = dying.pid();
                    eventually("it joins or ends", || is_there(&region, &name, pid) || !common::runs(pid));
                    dying.signal(Signal::SIGKILL);
                    let ended = dying.end();
                    // Between two sequencers a busy machine may take longer than the second that it waits.
                    let in_vain = ["no sequencer", "no answer"].iter().any(|why| ended.err.contains(why));
                    assert!(ended.code.is_none() || in_vain, "it did not come in: {ended:?}");
                    count(1);
                }
            }));
            scope.spawn(move || {
                while going() {
                    match Region::remove(path) {
                        Err(RemoveError::InUse { .. }) => count(2),
                        other => panic!("a region in use: {other:?}"),
                    };
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        // Starts of sequencers, too, meet whoever looks whether the region is in use.
        let until = Instant::now() + Duration::from_secs(times(2, 60));
        let mut serving = serving;
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(random.below(100)));
            serving.signal(Signal::SIGKILL);
            serving.end();
            serving = sequence(&text);
            count(3);
        }
        drop(over);
        // Nobody comes any more, to whom it would be refused.
        others.into_iter().for_each(|other| other.join().unwrap());
        serving.stop().with(0);
        staying.join().unwrap();
    });
    let [comings, deaths, cleanings, starts] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("{comings} comings, {deaths} deaths, {cleanings} cleanings, {starts} starts of a sequencer");
    assert!(comings > 0 && deaths > 0 && cleanings > 0 && starts > 0);
    // Nobody is there any more.
    run(&["remove", &text]).with(0);
}

/// How comings and cleanings met.
#[derive(Default)]
struct Met {
    came: AtomicU64,
    too_late: AtomicU64,
    removed: AtomicU64,
    in_use: AtomicU64,
}

impl Met {
    /// Serves and works in a region as long as it takes to look whether it keeps its name.
    fn come(&self, path: &Path, name: &str) {
        let region = match Region::create(path, &Config::new().workers(4).producers(1)) {
            Ok(region) => region,
            Err(CreateError::Exists { .. }) => match Region::attach(path) {
                Ok(region) => region,
                Err(AttachError::NotFound { .. }) => return,
                Err(error) => panic!("{error}"),
            },
            Err(error) => panic!("{error}"),
        };
        let sequencer = match Sequencer::spawn(&region, SequencerConfig::new()) {
            Ok(sequencer) => sequencer,
            Err(SequencerError::Running { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        if region.file_state() != FileState::Here {
            // It was removed between the two, when nobody was there.
            self.too_late.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let worker = join(&region, name);
        assert_eq!(region.file_state(), FileState::Here, "of a region that is served");
        drop(sequencer);
        thread::sleep(Duration::from_micros(200));
        assert_eq!(region.file_state(), FileState::Here, "of a region that somebody is attached to");
        worker.leave();
        self.came.fetch_add(1, Ordering::Relaxed);
    }

    fn clean(&self, path: &Path) {
        match Region::remove(path) {
            Ok(()) => self.removed.fetch_add(1, Ordering::Relaxed),
            Err(RemoveError::InUse { .. }) => self.in_use.fetch_add(1, Ordering::Relaxed),
            Err(RemoveError::Attach(AttachError::NotFound { .. })) => 0,
            Err(error) => panic!("{error}"),
        };
    }
}

#[test]
fn whoever_cleans_up_takes_no_name_from_those_who_have_come_in() {
    let folder = scratch();
    let path = &folder.path().join("region");
    let (met, end) = (&Met::default(), &AtomicBool::new(false));
    thread::scope(|scope| {
        let over = Over(end);
        let threads: Vec<_> = (0..4)
            .map(|n| {
                scope.spawn(move || {
                    let _over = Over(end);
                    while !end.load(Ordering::Relaxed) {
                        if n < 2 { met.come(path, &format!("w{n}")) } else { met.clean(path) }
                    }
                })
            })
            .collect();
        let until = Instant::now() + Duration::from_secs(times(2, 60));
        eventually("they have met", || {
            let counts = [&met.came, &met.removed, &met.in_use];
            let met = counts.iter().all(|count| count.load(Ordering::Relaxed) > 20);
            met && Instant::now() > until || end.load(Ordering::Relaxed)
        });
        drop(over);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let Met { came, too_late, removed, in_use } = met;
    println!("{came:?} came, {too_late:?} too late, {removed:?} removed, {in_use:?} in use");
}

/// Bytes in use on the file system of a folder, and the files in it.
fn residue(folder: &TempDir) -> (u64, BTreeSet<PathBuf>) {
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let used =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().blocks()).sum();
    (used, names)
}

#[test]
fn those_who_die_together_leave_nothing_but_the_region() {
    let folder = scratch();
    let path = create(&folder, "region", &[]);
    let before = residue(&folder);
    let rounds = times(4, 500);
    for round in 0..rounds {
        let serving = sequence(&path);
        let held = worker(&path, "w", &[]);
        let mut submit = Running::start(seriatim(&["submit", &path, "--name", "p"]).stdin(Stdio::piped()));
        submit.feed(b"x\n");
        let standby = Running::start(&mut seriatim(&["sequence", &path, "--standby"]));
        let mut creator =
            Running::start(&mut seriatim(&["create", &folder.path().join("other").display().to_string()]));
        let all = [serving, held, submit, standby];
        if round % 2 == 0 {
            creator.line();
        }
        creator.signal(Signal::SIGKILL);
        creator.end();
        for mut party in all {
            party.signal(Signal::SIGKILL);
            party.end();
        }
        let _ = fs::remove_file(folder.path().join("other"));
        assert_eq!(residue(&folder), before, "round {round}");
    }
    println!("{rounds} times everybody was killed");
    run(&["remove", &path]).with(0);
    assert!(residue(&folder).1.is_empty());
}

// ---- clocks -----------------------------------------------------------------------------------------------

/// A shim that moves the wall clock an hour back and forth each tenth of a second.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long shift(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (t.tv_nsec / 100000000) % 2 ? 3600 : -3600;
}
int clock_gettime(clockid_t clock, struct timespec *t) {
    long result = syscall(SYS_clock_gettime, clock, t);
    if (result == 0 && clock == CLOCK_REALTIME) t->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    long result = syscall(SYS_gettimeofday, t, zone);
    if (result == 0 && t) t->tv_sec += shift();
    return result;
}
time_t time(time_t *to) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (to) *to = t.tv_sec;
    return t.tv_sec;
}
"#;

/// Builds the shim; none where there is no compiler.
fn shim(folder: &TempDir) -> Option<PathBuf> {
    let (source, library) = (folder.path().join("shim.c"), folder.path().join("shim.so"));
    fs::write(&source, SHIM).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
    made.is_ok_and(|status| status.success()).then_some(library)
}

#[test]
fn a_wall_clock_that_jumps_evicts_nobody_and_makes_no_odd_times() {
    let folder = scratch();
    // Not in a folder that may be mounted so that nothing in it can be run.
    let built = TempDir::new().unwrap();
    let Some(shim) = shim(&built) else {
        eprintln!("skipped: there is no C compiler to build the shim with");
        return;
    };
    let jumping = |args: &[&str]| {
        let mut command = seriatim(args);
        command.env("LD_PRELOAD", &shim);
        command
    };
    let region = create(&folder, "region", &["--lane-cells", "64"]);
    let mut serving = Running::start(&mut jumping(&["sequence", &region]));
    assert!(serving.line().starts_with("serving "));
    let timid = ["--kill-after", "600", "--kill-lag", "1"];
    let outs = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    let readers = outs.clone().map(|out| {
        let args = ["worker", &region, "--name", &out[out.len() - 1..], "--out", &out];
        Running::start(&mut jumping(&[&args[..], &timid].concat()))
    });
    ["a", "b"].iter().for_each(|name| common::await_join(&region, name));
    let mut submit = Running::start(jumping(&["submit", &region]).stdin(Stdio::piped()));
    let (mut lines, mut looks) = (0, 0);
    // Through many jumps: at least one of each kind while something is recorded.
    let until = Instant::now() + Duration::from_secs(times(1, 30));
    while Instant::now() < until {
        let text: Vec<u8> = (0..200).flat_map(|n| format!("{}\n", lines + n).into_bytes()).collect();
        submit.feed(&text);
        lines += 200;
        let status = Running::start(&mut jumping(&["stat", &region, "--json"])).end().with(0).json();
        for row in status["workers"].as_array().unwrap() {
            let stuck = row["stuck_s"].as_f64().unwrap();
            assert!((0.0..600.0).contains(&stuck) && row["alive"] == true, "{row}");
        }
        assert!(status["sequencer"]["alive"] == true, "{status}");
        looks += 1;
    }
    submit.end().with(0);
    serving.signal(Signal::SIGKILL);
    serving.end();
    let serving = Running::start(&mut jumping(&["sequence", &region]));
    eventually("the next one serves", || stat(&region)["epoch"] == 2);
    // The take-over was written down an hour from now or an hour ago, by a clock that is as far off: it is seen where
    // it was, in the future or two hours ago, and each is seen as often as the others.
    eventually("the clocks are seen to jump", || {
        let errors = Running::start(&mut jumping(&["errors", &region, "--json"])).end().with(0).json();
        let mut rows = errors["errors"].as_array().unwrap().iter();
        let error = rows.find(|row| row["code"] == "taken-over").expect("it was written down");
        let ago = error["ago"].as_f64();
        assert!(ago.is_none_or(|ago| (0.0..3.0 * 3600.0).contains(&ago)), "{error}");
        // Nothing of this takes near an hour, so that without the shim neither is ever seen.
        ago.is_none_or(|ago| ago >= 3500.0)
    });
    serving.stop().with(0);
    for (reader, out) in readers.into_iter().zip(outs) {
        reader.end().with(0);
        assert_eq!(fs::read_to_string(out).unwrap().lines().count(), lines);
    }
    let job = ["run", &input(&folder), "--json"];
    let report = Running::start(&mut jumping(&job)).end().with(0).json();
    let latency = report["latency_ns"]["max"].as_u64();
    assert!(latency.is_some_and(|ns| ns > 0 && ns < 600_000_000_000), "{report}");
    println!("{lines} lines through a clock that jumps, {looks} looks");
}

fn input(folder: &TempDir) -> String {
    let path = folder.path().join("input");
    fs::write(&path, common::lines(500, 1)).unwrap();
    path.display().to_string()
}

/// The tool in a time namespace of its own.
fn elsewhen(args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-T", "--monotonic", "500000", "--"]);
    command.arg(env!("CARGO_BIN_EXE_seriatim")).args(args).stdin(Stdio::null());
    command
}

#[test]
fn clocks_of_different_namespaces_confuse_nobody() {
    if !can_run("unshare", &["-T", "--monotonic", "500000", "--", "true"]) {
        eprintln!("skipped: no time namespace can be made here");
        return;
    }
    let tool = |there: bool, args: &[&str]| if there { elsewhen(args) } else { seriatim(args) };
    for first in [true, false] {
        let folder = scratch();
        let region = create(&folder, "region", &["--lane-cells", "64", "--workers", "2"]);
        let start = |there: bool| {
            let mut serving = Running::start(&mut tool(there, &["sequence", &region]));
            assert!(serving.line().starts_with("serving "));
            serving
        };
        let look = |there: bool| {
            let status = Running::start(&mut tool(there, &["stat", &region, "--json"])).end().with(0).json();
            let row = status["workers"][0].clone();
            // In the order of the clocks half a million seconds ago, or to come.
            assert!(row.is_null() || (0.0..3600.0).contains(&row["stuck_s"].as_f64().unwrap()), "{status}");
            row
        };
        let mut serving = start(first);
        let timid = ["worker", &region, "--name", "w", "--kill-after", "3600", "--kill-lag", "1"];
        let mut reader = Running::start(&mut tool(first, &timid));
        eventually("it joins", || look(first)["attached"] == true);
        reader.signal(Signal::SIGSTOP);
        common::run_with(&["submit", &region, "--name", "p"], b"1\n2\n3\n").with(0);
        for there in [true, false] {
            eventually("it is seen to be stuck", || look(there)["suspect"] == true);
        }
        serving.signal(Signal::SIGKILL);
        serving.end();
        let mut serving = start(!first);
        for there in [true, false] {
            eventually("it is seen to be stuck again", || look(there)["suspect"] == true);
        }
        reader.signal(Signal::SIGCONT);
        common::run_with(&["submit", &region, "--name", "p"], b"4\n5\n6\n").with(0);
        // Back to the first clock, while all is well.
        serving.signal(Signal::SIGKILL);
        serving.end();
        let serving = start(first);
        common::run_with(&["submit", &region, "--name", "p"], b"7\n").with(0);
        eventually("it catches up", || look(!first)["lag"] == 0);
        serving.stop().with(0);
        assert_eq!(reader.end().with(0).out, "1\n2\n3\n4\n5\n6\n7\n");
    }
}

#[test]
fn a_region_of_another_boot_is_refused_whole_and_can_be_removed() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let serving = sequence(&region);
    common::run_with(&["submit", &region], b"a line\n").with(0);
    serving.stop().with(0);
    let file = fs::OpenOptions::new().read(true).write(true).open(&region).unwrap();
    let mut header = [0; 168];
    file.read_exact_at(&mut header, 0).unwrap();
    header[104] ^= 0xff;
    let digest = seriatim::payload_digest(&header[..160]);
    header[160..].copy_from_slice(&digest.to_le_bytes());
    file.write_all_at(&header, 0).unwrap();
    let before = fs::read(&region).unwrap();
    for command in ["sequence", "worker", "submit", "stat"] {
        run(&[command, &region]).with(2).saying(&["was made in boot", "remove it and create it anew"]);
    }
    assert!(fs::read(&region).unwrap() == before, "it was written to");
    let report: Ended = run(&["inspect", &region]);
    assert_eq!(report.code, Some(1), "{report:?}");
    run(&["remove", &region]).with(0);
    create(&folder, "region", &[]);
    sequence(&region).stop().with(0);
}

// ---- pid namespaces ---------------------------------------------------------------------------------------

/// A pid namespace that ends with whoever made it: with a `/proc` of its own, or with that of the outer one, in which
/// its pids are those of others.
const NAMESPACES: [&[&str]; 2] =
    [&["-mpf", "--kill-child", "--mount-proc", "--"], &["-mpf", "--kill-child", "--"]];

/// Starts the rest of its arguments under the pid that is the first, beside a script that is the namespace's first.
const AS_PID: &str = r#"echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; as=$1; shift
"$@" & [ $! = $as ] && wait $!"#;

/// Does that, beside one who has the pid that comes first: whether that one has lived on is how it ends.
const BESIDE_PID: &str = r#"echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; as=$1; shift
sleep 1000 & [ $! = $as ] || exit 77
"$@"; code=$?; { kill $as; wait $as; } 2> /dev/null; [ $? = 143 ] && exit $code"#;

/// The tool in a namespace, by a script, with a pid that is also that of one outside.
fn in_namespace(namespace: &[&str], script: &str, pid: u32, args: &[&str]) -> Running {
    let mut command = Command::new("unshare");
    command.args(namespace).args(["sh", "-c", script, "sh", &pid.to_string()]);
    Running::start(command.arg(env!("CARGO_BIN_EXE_seriatim")).args(args).stdin(Stdio::null()))
}

/// The namespaces that can be made here, with pids of one's choice.
fn namespaces() -> impl Iterator<Item = &'static [&'static str]> {
    NAMESPACES.into_iter().filter(|namespace| {
        let can = can_run("unshare", &[*namespace, &["sh", "-c", AS_PID, "sh", "1234", "true"]].concat());
        if !can {
            eprintln!("skipped: no pid namespace with pids of one's choice can be made with {namespace:?}");
        }
        can
    })
}

/// A process that nobody is to kill.
struct Bystander(Child);

impl Bystander {
    fn new() -> Bystander {
        let bystander = Bystander(Command::new("sleep").arg("1000").spawn().unwrap());
        // Whoever starts in the same tick of the kernel's clock, and has the same pid elsewhere, cannot be told from it.
        let started = common::start_tick(bystander.0.id());
        eventually("the kernel's clock goes on", || common::ticks_since_boot() > started + 1);
        bystander
    }

    #[track_caller]
    fn check(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the wrong one was killed");
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_sequencer_in_another_pid_namespace_is_alive_until_it_is_dead() {
    for namespace in namespaces() {
        let folder = scratch();
        let region = create(&folder, "region", &[]);
        let mut bystander = Bystander::new();
        let pid = bystander.0.id();
        let mut inside = in_namespace(namespace, AS_PID, pid, &["sequence", &region]);
        assert!(inside.line().starts_with(&format!("serving {region} as pid {pid}")));
        common::run_with(&["submit", &region, "--name", "p"], b"one\n").with(0);
        let alive = || stat(&region)["sequencer"]["alive"] == true;
        assert!(alive());
        // It says who it is as it is called there, and is neither taken for dead nor for who is called so here.
        let its = format!("pid {pid}");
        run(&["sequence", &region]).with(2).saying(&["has a sequencer already", &its]);
        run(&["sequence", &region, "--evict"]).with(2).saying(&["its sequencer was not evicted", &its]);
        bystander.check();
        assert!(alive() && stat(&region)["epoch"] == 1);
        inside.signal(Signal::SIGKILL);
        inside.end();
        eventually("its lock falls", || !alive());
        // The other way round.
        let mut outside = sequence(&region);
        assert_eq!(stat(&region)["epoch"], 2);
        let (pid, its) = (outside.pid(), format!("pid {}", outside.pid()));
        let inner = |args: &[&str]| in_namespace(namespace, BESIDE_PID, pid, args).end().with(2);
        inner(&["sequence", &region]).saying(&["has a sequencer already", &its]);
        inner(&["sequence", &region, "--evict"]).saying(&["its sequencer was not evicted", &its]);
        assert!(alive() && common::runs(pid));
        let mut standby = in_namespace(namespace, AS_PID, pid, &["sequence", &region, "--standby"]);
        assert!(standby.line().starts_with("standing by "));
        outside.signal(Signal::SIGKILL);
        outside.end();
        assert!(standby.line().ends_with("epoch 3"));
        common::run_with(&["submit", &region, "--name", "p"], b"two\n").with(0);
        assert_eq!(stat(&region)["producers"][0]["next"], 2);
    }
}

#[test]
fn a_worker_in_another_pid_namespace_that_is_to_be_killed_is_not_taken_for_another() {
    for namespace in namespaces() {
        let folder = scratch();
        let region = create(&folder, "region", &["--lane-cells", "64"]);
        let serving = sequence(&region);
        let mut bystander = Bystander::new();
        let pid = bystander.0.id();
        let out = folder.path().join("out").display().to_string();
        let args =
            ["worker", &region, "--name", "w", "--kill-after", "0.1", "--kill-lag", "1", "--out", &out];
        let mut inside = in_namespace(namespace, AS_PID, pid, &args);
        common::await_join(&region, "w");
        // Its pid here.
        let script = common::children(inside.pid())[0];
        let outer = Pid::from_raw(common::children(script)[0] as i32);
        kill(outer, Signal::SIGSTOP).unwrap();
        let mut submit = Running::start(seriatim(&["submit", &region]).stdin(Stdio::piped()));
        submit.feed("line\n".repeat(200).as_bytes());
        let mut told = Value::Null;
        eventually("it is said that it was not killed", || {
            let errors = run(&["errors", &region, "--json"]).with(0).json();
            let mut rows = errors["errors"].as_array().unwrap().iter();
            told = rows.find(|row| row["code"] == "killed").cloned().unwrap_or_default();
            !told.is_null()
        });
        let what = told["what"].as_str().unwrap();
        assert!(what.contains("as it had asked for, but") && what.contains(&format!("pid {pid} ")), "{told}");
        bystander.check();
        kill(outer, Signal::SIGCONT).unwrap();
        submit.end().with(0);
        serving.stop().with(0);
        inside.end().with(0);
        assert_eq!(fs::read_to_string(out).unwrap(), "line\n".repeat(200));
    }
}
