//! Whether workers in processes of their own made the same of the same commands, as seen from outside; and what of the
//! reports of one that was killed can be read.
//!
//! The processes are the tool, and this test program itself, told by the environment what to do.

mod common;

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Running, create, eventually, join, run, run_with, sequence, stat, worker};
use seriatim::{Event, Region, Seq, Worker};

const PART: &str = "SERIATIM_AGREEMENT_PART";
/// What the lines of the test are.
const LINES: u64 = 60;

/// This program, to play a part.
fn playing(part: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "part", "--nocapture"]).env(PART, part).stdin(Stdio::piped());
    command
}

/// What the processes do. Does nothing as a test.
#[test]
fn part() {
    let Ok(part) = env::var(PART) else { return };
    match part.split(' ').collect::<Vec<_>>()[..] {
        ["engine", name, path, wrong] => engine(name, Path::new(path), wrong),
        ["reports", path] => receive_and_report(Path::new(path)),
        _ => panic!("no part {part:?}"),
    }
}

/// An engine: it numbers what it makes, and reports all that it has made. A wrong one makes none of the `wrong` line.
fn engine(name: &str, path: &Path, wrong: &str) {
    let mut worker = join(&Region::attach(path).unwrap(), name);
    println!("joined");
    let (mut made, mut state, mut left) = (0_u64, 0_u64, LINES);
    while left > 0 {
        let event = worker.recv().unwrap();
        if let Event::Command(command) = &event {
            left -= 1;
            if command.payload != wrong.as_bytes() {
                made += 1;
                state = command.payload.iter().fold(state ^ made, |s, &b| s.wrapping_mul(31) ^ u64::from(b));
            }
        }
        worker.report(state).unwrap();
    }
    println!("done");
    // It is looked at while it lives.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn lines() -> Vec<u8> {
    (0..LINES).flat_map(|n| format!("line-{n}\n").into_bytes()).collect()
}

/// The next line of a process that is not the test harness's.
fn said(process: &mut Running, expected: &str) {
    while !process.line().contains(expected) {
        assert!(process.has_output() || common::runs(process.pid()), "it ended before it said {expected:?}");
    }
}

#[test]
fn processes_that_differ_are_named_with_the_index_where_that_began() {
    for wrong in ["", "line-37"] {
        let folder = common::scratch();
        let region = create(&folder, "region", &[]);
        let _sequencer = sequence(&region);
        let mut engines: Vec<_> = [("red", ""), ("green", wrong), ("blue", "")]
            .map(|(name, wrong)| Running::start(&mut playing(&format!("engine {name} {region} {wrong}"))))
            .into();
        engines.iter_mut().for_each(|engine| said(engine, "joined"));
        run_with(&["submit", &region], &lines()).with(0);
        engines.iter_mut().for_each(|engine| said(engine, "done"));
        let agreement = &stat(&region)["agreement"];
        let text = run(&["stat", &region]).with(0).out;
        let text = text.lines().find(|line| line.starts_with("reports: ")).expect("a line about reports");
        // Three workers and a producer came, then the lines.
        let last = stat(&region)["next"].as_u64().unwrap() - 1;
        let at = last - (LINES - 1) + 37;
        assert_eq!(agreement["reporting"].as_array().unwrap().len(), 3);
        if wrong.is_empty() {
            assert_eq!((&agreement["agreed"], &agreement["diverged"]), (&last.into(), &().into()));
            assert_eq!(text, format!("reports: agreed up to index {last}"));
            run(&["verify", &region]).with(0);
            continue;
        }
        let diverged = &agreement["diverged"];
        assert_eq!((&diverged["index"], &diverged["after"]), (&at.into(), &(at - 1).into()), "{agreement}");
        assert_eq!((&agreement["agreed"], &diverged["what"]), (&(at - 1).into(), &"fingerprint".into()));
        let rows = diverged["reports"].as_array().unwrap();
        let print_of = |name: &str| &rows.iter().find(|row| row["name"] == name).unwrap()["fingerprint"];
        assert!(print_of("red") == print_of("blue") && print_of("red") != print_of("green"), "{agreement}");
        assert!(
            text.starts_with(&format!("reports: DIVERGED at index {at} (the same at {})", at - 1)),
            "{text}"
        );
        let green = engines[1].pid();
        assert!(text.contains("worker \"green\"") && text.contains(&format!("pid {green})")), "{text}");
        let verified = run(&["verify", &region]).with(1);
        assert!(verified.out.contains(&format!("workers differ at index {at}")), "{verified:?}");
    }
}

#[test]
fn what_the_tools_workers_print_is_compared_and_who_does_not_report_is_named() {
    let folder = common::scratch();
    let region = create(&folder, "region", &[]);
    let _sequencer = sequence(&region);
    let _workers = ["a", "b", "c"].map(|name| {
        let out = folder.path().join(name).display().to_string();
        let report: &[&str] = if name == "c" { &[] } else { &["--report"] };
        worker(&region, name, &[&["--out", &out], report].concat())
    });
    assert!(!run(&["stat", &region]).out.contains("DIVERGED"));
    run_with(&["submit", &region], &lines()).with(0);
    let last = stat(&region)["next"].as_u64().unwrap() - 1;
    eventually("both have reported the last index", || stat(&region)["agreement"]["agreed"] == last);
    let agreement = &stat(&region)["agreement"];
    assert_eq!((&agreement["silent"], &agreement["diverged"]), (&vec!["c"].into(), &().into()));
    assert!(agreement["text"].as_str().unwrap().contains("; not reporting: worker \"c\""), "{agreement}");
    let [a, b] = ["a", "b"].map(|name| fs::read(folder.path().join(name)).unwrap());
    assert!(a == b && a == lines());
}

// ---- killed while it reports ---------------------------------------------------------------------------------

/// Receives what is there once it is told to, and reports each index.
fn receive_and_report(path: &Path) {
    let mut worker: Worker = join(&Region::attach(path).unwrap(), "w");
    println!("joined at {}.", worker.first());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    while let Some(seq) = worker.poll().unwrap().map(|event| event.seq().get()) {
        worker.report(seq * 3).unwrap();
    }
}

#[test]
fn of_a_worker_that_was_killed_while_it_reported_the_last_whole_report_can_be_read() {
    if !cfg!(feature = "crash-points") {
        return println!("skipped: this build has no crash points");
    }
    // A report is four words and the count, and a point behind each.
    let points = (1..=12).map(|pass| (format!("report.word:{pass}"), (pass - 1) / 4));
    let points = points.chain((1..=3).map(|pass| (format!("report.written:{pass}"), pass)));
    for (point, whole) in points {
        let folder = common::scratch();
        let path = create(&folder, "region", &[]);
        let sequencer = sequence(&path);
        let mut victim = Running::start(playing(&format!("reports {path}")).env("SERIATIM_CRASH", &point));
        said(&mut victim, "joined at 0.");
        run_with(&["submit", &path], &lines()).with(0);
        // With nobody who drops its gate: what it left is looked at.
        sequencer.stop().with(0);
        victim.feed(b"now\n");
        assert_eq!(victim.end().code, None, "{point}: it was killed");
        let region = Region::attach_read_only(&path).unwrap();
        let found = region.agreement();
        let reported = found.workers[0].reported;
        assert_eq!(reported, (whole > 0).then(|| (Seq::ZERO, Seq::new(whole - 1))), "{point}");
        assert_eq!(found.divergence, None);
        assert!(region.verify().is_sound(), "{point}");
    }
}
