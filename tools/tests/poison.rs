//! Workers in processes of their own that differ are stopped, at one index, whoever is killed meanwhile; and everybody who
//! comes is told.
//!
//! The processes are the tool, and this test program itself, told by the environment what to do.

mod common;

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Ended, Running, attach, create, join, run, run_with, seriatim, stat, worker};
use seriatim::{Event, Region, Seq, Sequenced, WorkerError};

const PART: &str = "SERIATIM_POISON_PART";
/// What is submitted, each with its number as its payload; and that of the one which a wrong worker skips.
const COMMANDS: u64 = 100;
const WRONG: u64 = 57;

/// What the processes do. Does nothing as a test.
#[test]
fn part() {
    let Ok(part) = env::var(PART) else { return };
    let [name, path] = part.split(' ').collect::<Vec<_>>()[..] else { panic!("no part {part:?}") };
    engine(name, Path::new(path));
}

/// Receives and reports once it is told to, and says when it has had all, until it is stopped or the order ends.
fn engine(name: &str, path: &Path) {
    let mut worker = join(&Region::attach(path).unwrap(), name);
    println!("joined.");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let (mut state, mut acted, mut left) = (0, 0, COMMANDS);
    loop {
        match worker.recv() {
            Ok(Event::Poisoned { .. }) => continue,
            Ok(event) => {
                acted = event.seq().get();
                if let Event::Command(command) = event {
                    left -= 1;
                    let is_skipped = name.starts_with("wrong") && command.payload == WRONG.to_le_bytes();
                    state += if is_skipped { 0 } else { command.index + 1 };
                }
                worker.report(state).unwrap();
                if left == 0 {
                    println!("done {acted}.");
                    left = u64::MAX;
                }
            }
            Err(WorkerError::Poisoned { at, diverged }) => {
                println!("stopped {at} {diverged} {acted}.");
                // Who reads the reports finds them while it is there.
                std::io::stdin().read_line(&mut String::new()).unwrap();
                return;
            }
            Err(WorkerError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a process says that begins so: the numbers behind it. The test harness says things, too.
fn said(process: &mut Running, expected: &str) -> Vec<u64> {
    loop {
        let line = process.line();
        assert!(process.has_output() || common::runs(process.pid()), "it ended before {expected:?}");
        if let Some((_, rest)) = line.split_once(expected) {
            let words = rest.split(' ').map(|word| word.trim_end_matches('.'));
            return words.filter_map(|word| word.parse().ok()).collect();
        }
    }
}

fn fused(command: &mut Command, crash: Option<&str>) -> Running {
    crash.map(|crash| command.env("SERIATIM_CRASH", crash));
    Running::start(command.stdin(Stdio::piped()))
}

/// One region with its processes.
struct Scene {
    folder: tempfile::TempDir,
    path: String,
    region: Region,
    engines: Vec<Running>,
    /// Index of the command that is skipped.
    wrong: u64,
}

impl Scene {
    /// Everything is submitted, and nobody has begun.
    fn new(policy: &str, names: &[&str], victim: Option<(&str, &str)>) -> Scene {
        let folder = common::scratch();
        let path = create(&folder, "region", &["--on-divergence", policy, "--lane-cells", "128"]);
        let region = Region::attach(&path).unwrap();
        let sequencer = common::sequence(&path);
        let start = |name: &&str| {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "part", "--nocapture"]).env(PART, format!("{name} {path}"));
            let crash = victim.filter(|(victim, _)| victim == name).map(|(_, crash)| crash);
            fused(&mut command, crash)
        };
        let mut engines: Vec<_> = names.iter().map(start).collect();
        engines.iter_mut().for_each(|engine| _ = said(engine, "joined"));
        let mut producer = attach(&region, "p");
        (0..COMMANDS).for_each(|n| _ = producer.submit(0, &n.to_le_bytes()).unwrap());
        let Sequenced::At(wrong) = producer.wait_sequenced(WRONG).unwrap() else { panic!("just now") };
        producer.wait_sequenced(COMMANDS - 1).unwrap();
        // The next one begins before the workers do.
        drop(sequencer);
        Scene { folder, path, region, engines, wrong: wrong.get() }
    }

    fn sequence(&self, crash: Option<&str>) -> Running {
        fused(&mut seriatim(&["sequence", &self.path]), crash)
    }

    fn go(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.feed(b"go\n"));
    }

    /// All were stopped at one index, within the bound, and whoever asks is told.
    fn check(&mut self, policy: &str, what: &str) {
        let stopped: Vec<_> = self.engines.iter_mut().map(|engine| said(engine, "stopped ")).collect();
        let &[at, diverged, acted] = &stopped[0][..] else { panic!("{what}: {stopped:?}") };
        assert!(stopped.iter().all(|one| *one == stopped[0]), "{what}: {stopped:?}");
        assert_eq!(diverged, self.wrong, "{what}");
        assert_eq!(acted, if policy == "lockstep" { self.wrong } else { at - 1 }, "{what}: {stopped:?}");
        assert!(at - diverged <= self.region.geometry().stops_within() + 1, "{what}: {stopped:?}");
        let ended = run(&["sequence", &self.path]).with(1);
        let text = format!(
            "POISONED at index {at}: workers differ since index {diverged} (the same at {}",
            diverged - 1
        );
        ended.saying(&[&text, "\"wrong\""]);
        let found = stat(&self.path);
        assert_eq!((&found["state"], &found["next"]), (&"poisoned".into(), &(at + 1).into()), "{what}");
        assert_eq!(
            (&found["poison"]["at"], &found["poison"]["diverged"]["index"]),
            (&at.into(), &diverged.into())
        );
        assert_eq!(self.region.poison().unwrap().at, Seq::new(at));
    }
}

fn has_points() -> bool {
    if !cfg!(feature = "crash-points") {
        println!("skipped: this build has no crash points");
    }
    cfg!(feature = "crash-points")
}

#[test]
fn processes_that_differ_are_stopped_and_everybody_is_told() {
    for policy in ["poison", "lockstep"] {
        let mut scene = Scene::new(policy, &["red", "wrong", "blue"], None);
        let mut sequencer = scene.sequence(None);
        said(&mut sequencer, "serving");
        let path = scene.path.clone();
        let looked = run(&["stat", &path]).with(0).out;
        assert!(looked.contains(&format!("when workers differ: {policy}\n")) && !looked.contains("POISONED"));
        scene.go();
        let text = |ended: Ended| ended.saying(&["POISONED at index", "worker \"wrong\""]);
        text(sequencer.end().with(1));
        scene.check(policy, policy);
        let told = "poisoned at index";
        assert!(run(&["stat", &path]).with(0).out.contains("\nPOISONED at index"));
        assert!(run(&["errors", &path]).with(0).out.contains("the order is poisoned"));
        assert!(run(&["inspect", &path]).with(0).out.contains(&format!("when workers differ: {policy}\n")));
        text(run(&["worker", &path]).with(2));
        text(run_with(&["submit", &path], b"more\n").with(2));
        let seen = run(&["tail", &path, "--from-start"]);
        assert!(seen.code != Some(0) || seen.err.contains(told) || seen.err.is_empty(), "{seen:?}");
        let text = run(&["stat", &path]).with(0).out;
        assert!(!text.contains("held up by") && !text.contains("awaited"), "{text}");
    }
}

#[test]
fn whenever_the_sequencer_is_killed_the_poison_comes_once() {
    if !has_points() {
        return;
    }
    let at_once = ["poison.found", "poison.noted", "poison.stopped"].map(|point| (point.to_string(), None));
    let steps = ["event.written", "order.words", "order.committed", "publish.ordered", "settle.next"];
    let steps = steps.into_iter().chain(["settle.consumed", "event.ordered", "ticket.in"]);
    let steps = steps.map(|point| (format!("poison.found>{point}:1"), None));
    // The successor dies as well: of one whose predecessor had the poison in the order, and of one before that.
    let again = ["takeover.found", "takeover.event", "takeover.members", "takeover.freed", "poison.stopped"];
    let again = again.map(|second| ("poison.found>order.committed:1".to_string(), Some(second)));
    let before = ["takeover.open", "poison.found", "poison.noted"];
    let before = before.map(|second| ("poison.found>order.words:1".to_string(), Some(second)));
    let all = at_once.into_iter().chain(steps).chain(again).chain(before);
    for ((first, second), policy) in all.zip(["poison", "lockstep"].into_iter().cycle()) {
        let what = format!("{policy}, killed at {first}, then at {second:?}");
        let mut scene = Scene::new(policy, &["red", "wrong"], None);
        let mut sequencer = scene.sequence(Some(&first));
        said(&mut sequencer, "serving");
        scene.go();
        assert_eq!(sequencer.end().code, None, "{what}: it was killed");
        if second.is_some() {
            assert_eq!(scene.sequence(second).end().code, None, "{what}: it was killed");
        }
        // One who only has to tell, or who has yet to order it.
        scene.sequence(None).end().with(1).saying(&["POISONED at index"]);
        scene.check(policy, &what);
    }
}

#[test]
fn a_worker_that_is_killed_poisons_by_what_it_had_told_and_keeps_nobody() {
    if !has_points() {
        return;
    }
    // The one that differs is the last to report, and so the one that finds it.
    for (policy, point, poisons) in [
        ("poison", "pace.found", true),
        ("poison", "pace.described", false),
        ("lockstep", "pace.done:30", false),
        ("poison", "pace.done:30", false),
    ] {
        let what = format!("{policy}, killed at {point}");
        let mut scene = Scene::new(policy, &["red", "wrong"], Some(("wrong", point)));
        let mut sequencer = scene.sequence(None);
        said(&mut sequencer, "serving");
        scene.engines[0].feed(b"go\n");
        if policy == "poison" {
            // It is never so far behind that the other one waits.
            common::eventually("all is reported", || {
                let workers = scene.region.agreement().workers;
                let red = workers.iter().find(|worker| worker.name.as_str() == "red").unwrap();
                red.reported.is_some_and(|(_, last)| last.get() > scene.wrong)
            });
        }
        let mut wrong = scene.engines.pop().unwrap();
        wrong.feed(b"go\n");
        assert_eq!(wrong.end().code, None, "{what}: it was killed");
        if !poisons {
            said(&mut scene.engines[0], "done ");
            assert_eq!(scene.region.poison(), None, "{what}");
            sequencer.stop().with(0);
            continue;
        }
        sequencer.end().with(1).saying(&["POISONED at index"]);
        let stopped = said(&mut scene.engines[0], "stopped ");
        assert_eq!(stopped[1], scene.wrong, "{what}");
        run(&["sequence", &scene.path]).with(1).saying(&["POISONED at index", "\"wrong\""]);
        assert!(scene.folder.path().exists());
    }
}

#[test]
fn the_tools_workers_keep_step_and_who_is_awaited_is_named() {
    let folder = common::scratch();
    let path = create(&folder, "region", &["--on-divergence", "lockstep"]);
    let sequencer = common::sequence(&path);
    let _workers = ["a", "b"].map(|name| {
        let out = folder.path().join(name).display().to_string();
        worker(&path, name, &["--out", &out])
    });
    run_with(&["submit", &path], b"1\n2\n3\n").with(0);
    let region = Region::attach(&path).unwrap();
    let last = stat(&path)["next"].as_u64().unwrap() - 1;
    common::eventually("all is printed", || stat(&path)["agreement"]["agreed"] == last);
    // One that joins and reports nothing.
    let idle = join(&region, "idle");
    run_with(&["submit", &path], b"4\n5\n").with(0);
    common::eventually("somebody waits", || !stat(&path)["awaited"].as_array().unwrap().is_empty());
    let found = stat(&path);
    assert_eq!(found["awaited"].as_array().unwrap().len(), 1);
    assert_eq!((&found["awaited"][0]["name"], &found["on_divergence"]), (&"idle".into(), &"lockstep".into()));
    let text = run(&["stat", &path]).with(0).out;
    assert!(text.contains("\nawaited, for their reports: worker \"idle\""), "{text}");
    idle.leave();
    let last = |region: &Region| Seq::new(region.snapshot().next.get() - 1);
    common::eventually("they go on", || region.agreement().agreed == Some(last(&region)));
    sequencer.stop().with(0);
}
