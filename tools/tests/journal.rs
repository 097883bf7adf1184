//! `seriatim journal` and `replay`: what they print, how they end, and what a journal's death costs.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{write_journal as journal, *};
use nix::sys::signal::Signal;
use serde_json::Value;
use seriatim::journal::Replay;
use seriatim::{Producer, Region, Sequenced};
use tempfile::TempDir;

fn submit(region: &str, lines: &str) {
    run_with(&["submit", region, "-"], lines.as_bytes()).with(0);
}

/// Waits until all that is in the order is durable.
fn await_durable(region: &str) {
    eventually("all is durable", || {
        let stat = stat(region);
        stat["journal"]["durable"] == stat["next"]
    });
}

#[test]
fn what_was_submitted_is_replayed() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let dir = path(&disk.path().join("orders"));
    let writing = journal(&region, &dir, &["--segment-bytes", "4K"]);
    let lines: String = (0..200).map(|n| format!("line {n}\n")).collect();
    submit(&region, &lines);
    await_durable(&region);
    let text = run(&["stat", &region]).with(0).out;
    assert!(text.contains("journal: journal pid"), "{text}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let files = fs::read_dir(&dir).unwrap().map(|entry| mode(&entry.unwrap().path())).collect::<Vec<_>>();
    assert!(mode(Path::new(&dir)) == 0o700 && files.iter().all(|&mode| mode == 0o600), "{files:?}");
    // Also while it is being written.
    assert_eq!(run(&["replay", &dir]).with(0).out, lines);
    run(&["journal", "verify", &dir]).with(0);
    let out = writing.stop().with(0).out;
    assert!(out.contains("sealed") && out.contains(&dir), "{out}");
    assert_eq!(run(&["replay", &dir]).with(0).out, lines);
    let some = run(&["replay", &dir, "--from", "50", "--to", "60", "--json"]).with(0).out;
    let rows: Vec<Value> = some.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let indexes: Vec<_> = rows.iter().map(|row| row["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, (50..60).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row["payload"].as_str().unwrap().starts_with("line ")));
    let into = path(&disk.path().join("out"));
    run(&["replay", &dir, "--out", &into]).with(0);
    assert_eq!(fs::read_to_string(&into).unwrap(), lines);
    let found = run(&["journal", "verify", &dir, "--json"]).with(0).json();
    assert!(found["sound"] == true && found["segments"].as_u64().unwrap() > 3, "{found}");
    let found = run(&["journal", "stat", &dir, "--json"]).with(0).json();
    assert_eq!((&found["sealed"], &found["end"]), (&Value::Bool(true), &stat(&region)["next"]));
    assert_eq!(found["digest"], stat(&region)["anchor"]["digest"]);
    sequencer.stop().with(0);
}

#[test]
fn its_gate_stays_and_the_next_one_goes_on() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &["--lane-cells", "16"]);
    let sequencer = sequence(&region);
    let dir = path(disk.path());
    let mut first = journal(&region, &dir, &[]);
    submit(&region, "one\n");
    first.signal(Signal::SIGKILL);
    first.end();
    let attached = Region::attach(&region).unwrap();
    let mut producer = Producer::attach(&attached, "p").unwrap();
    let full = loop {
        if let Err(full) = producer.submit_deadline(0, b"more", Instant::now() + Duration::from_millis(300)) {
            break full.to_string();
        }
    };
    assert!(full.contains("\"journal\""), "{full}");
    let found = stat(&region);
    assert_eq!((&found["journal"]["alive"], &found["gate"]), (&false.into(), &"journal".into()), "{found}");
    run(&["worker", &region, "--name", "journal"]).with(2).saying(&["journal"]);
    let second = journal(&region, &dir, &[]);
    let index = producer.submit(0, b"last").unwrap();
    let Sequenced::At(seq) = producer.wait_sequenced(index).unwrap() else { panic!("it is open") };
    attached.wait_durable(seq, Instant::now() + PATIENCE).unwrap();
    second.stop().with(0);
    let out = run(&["replay", &dir]).with(0).out;
    assert!(out.starts_with("one\nmore\n") && out.ends_with("more\nlast\n"), "{out}");
    // It has held the order up again since it ended; who orders gives it up.
    sequencer.stop();
    let sequencer = Running::start(&mut seriatim(&["sequence", &region, "--without-journal"]));
    eventually("it is given up", || stat(&region)["journal"].is_null());
    sequencer.stop();
}

#[test]
fn one_that_is_to_be_gone_on_without_holds_nothing_up() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &["--lane-cells", "16"]);
    let sequencer = sequence(&region);
    let mut writing = journal(&region, &path(disk.path()), &["--go-on"]);
    let other = worker(&region, "other", &[]);
    await_join(&region, "other");
    writing.signal(Signal::SIGKILL);
    writing.end();
    let lines: String = (0..200).map(|n| format!("{n}\n")).collect();
    submit(&region, &lines);
    assert!(stat(&region)["journal"].is_null());
    sequencer.stop().with(0);
    other.end().with(0);
}

#[test]
fn damage_is_named_and_what_lies_before_it_is_printed() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let dir = path(disk.path());
    let writing = journal(&region, &dir, &["--segment-bytes", "4K"]);
    submit(&region, &(0..200).map(|n| format!("line {n}\n")).collect::<String>());
    await_durable(&region);
    writing.stop().with(0);
    sequencer.stop();
    let mut segments: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|segment| segment.extension().is_some_and(|suffix| suffix == "seg"));
    segments.sort();
    let (name, mut bytes) = (path(&segments[1]), fs::read(&segments[1]).unwrap());
    bytes[1_000] ^= 1;
    fs::write(&segments[1], bytes).unwrap();
    let out = run(&["journal", "verify", &dir]).with(1).out;
    assert!(["it does not hold", &name, "offset", "index"].iter().all(|part| out.contains(part)), "{out}");
    let replayed = run(&["replay", &dir]).with(1).saying(&[&name, "offset", "index"]).out;
    assert!(replayed.starts_with("line 0\n") && replayed.lines().count() > 10);
    fs::remove_file(&segments[1]).unwrap();
    run(&["replay", &dir]).with(1).saying(&["is not there"]);
    assert!(run(&["journal", "verify", &dir]).with(1).out.contains("is not there"));
}

#[test]
fn what_cannot_be_said_is_exit_code_2() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &[]);
    let dir = path(disk.path());
    run(&["journal"]).with(2);
    run(&["journal", &region]).with(2);
    run(&["journal", &region, &dir, "--sync", "sometimes"]).with(2);
    run(&["journal", &region, &dir]).with(2).saying(&["has no sequencer"]);
    run(&["journal", "verify", &path(&disk.path().join("nothing"))]).with(2);
    run(&["replay", &path(folder.path())]).with(2).saying(&["no journal"]);
}

/// The tool's journal and a reader in another process, while it is being written.
#[test]
fn a_journal_can_be_read_while_it_is_written() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let dir = path(disk.path());
    let writing = journal(&region, &dir, &["--segment-bytes", "16K", "--sync", "off"]);
    let attached = Region::attach(&region).unwrap();
    let mut producer = Producer::attach(&attached, "p").unwrap();
    let mut seen = 0;
    for _ in 0..50 {
        for n in 0..40_u32 {
            producer.submit(0, &vec![n as u8; (n * 7) as usize]).unwrap();
        }
        let mut replay = Replay::open(&dir).unwrap();
        while replay.next().unwrap().is_some() {}
        assert!(replay.position() == replay.end() && replay.end().get() >= seen);
        seen = replay.end().get();
    }
    writing.stop().with(0);
    sequencer.stop();
}

/// The main job onto the disk: killed with all its children, it goes on where the journal ends, and proves all of it.
#[test]
fn a_run_with_a_journal_goes_on_after_everything_was_killed() {
    let disk = TempDir::new().unwrap();
    let (dir, input) = (path(&disk.path().join("orders")), path(&disk.path().join("input")));
    let (count, repeat) = (200, 400);
    fs::write(&input, lines(count, 7)).unwrap();
    let repeat_text = repeat.to_string();
    for kind in ["processes", "threads"] {
        let args = ["run", &input, "--repeat", &repeat_text, "--workers", "2", "--as", kind];
        let args = [&args[..], &["--journal", &dir, "--segment-bytes", "256K", "--json"]].concat();
        let mut before = 0;
        for round in 0..3 {
            let mut running = Running::start(seriatim(&args).stderr(std::process::Stdio::null()));
            let goal = before + 2_000;
            eventually(&format!("round {round}: it writes"), || end_of(&dir) > goal);
            running.signal(Signal::SIGKILL);
            assert_eq!(running.end().out, "", "it was not over");
            before = end_of(&dir);
        }
        let commands = (count * repeat) as u64;
        let found = run(&args).with(0).json();
        let journal = &found["journal"];
        assert!(found["agree"] == true && found["workers"][0]["commands"] == commands, "{found}");
        assert!(journal["before"].as_u64().unwrap() >= 6_000 && journal["commands"] == commands, "{journal}");
        assert_eq!(found["order"]["next"], journal["next"]);
        // And once more, when there is nothing left to submit.
        let found = run(&args).with(0).json();
        assert!(found["agree"] == true && found["journal"]["before"] == commands, "{found}");
        run(&["journal", "verify", &dir]).with(0);
        // Another input is another history, and that is found.
        fs::write(disk.path().join("other"), lines(count, 8)).unwrap();
        let other = path(&disk.path().join("other"));
        let before = end_of(&dir);
        let refused = |args: &[&str], parts: &[&str]| {
            let ended = run(&[&["run"], args, &["--workers", "2", "--journal", &dir]].concat()).with(2);
            ended.saying(&[&["nothing was submitted", &dir], parts].concat());
            assert_eq!(end_of(&dir), before, "nothing was added");
        };
        refused(&[&other, "--repeat", &repeat_text], &["is not line", "2 producers", "is it the same?"]);
        refused(&[&input, "--repeat", &repeat_text, "--producers", "3"], &["is not line", "3 producers"]);
        refused(
            &[&input, "--repeat", &repeat_text, "--producers", "1"],
            &["\"p1\"", "expected are p0 to p0"],
        );
        refused(&[&input], &["the input has", "is it the same?"]);
        fs::remove_dir_all(&dir).unwrap();
    }
    run(&["run", &input, "--sync", "off"]).with(2);
}

#[test]
fn submitted_durably_is_on_the_disk_when_it_ends() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &[]);
    let dir = path(disk.path());
    // Both wait for a region that nobody serves yet.
    let mut writing = Running::start(&mut seriatim(&["journal", &region, &dir, "--wait-for", "300"]));
    let waiting = Running::start(&mut seriatim(&["worker", &region, "--name", "w", "--wait-for", "300"]));
    let durably =
        |text: &str| run_with(&["submit", &region, "-", "--name", "p", "--durable"], text.as_bytes());
    durably("a\n").with(2).saying(&["no journal", "seriatim journal"]);
    let sequencer = sequence(&region);
    assert!(writing.line().starts_with("writing "));
    await_join(&region, "w");
    for round in 0..20 {
        let ended = durably(&format!("{round}\n")).with(0);
        assert!(ended.out.contains("all of them durable"), "{ended:?}");
        // It may be killed at once: nothing is lost.
        assert_eq!(run(&["replay", &dir]).with(0).out.lines().count(), round + 1);
    }
    // Also what was submitted before.
    run_with(&["submit", &region, "-", "--name", "p", "--durable", "--resume"], "0\n".repeat(20).as_bytes())
        .with(0);
    writing.stop().with(0);
    let writing = journal(&region, &dir, &["--sync", "off"]);
    durably("a\n").with(2).saying(&["does not sync"]);
    writing.stop().with(0);
    waiting.stop().with(0);
    sequencer.stop();
    // For a region that never comes it is not waited for ever.
    let nothing = path(&folder.path().join("nothing"));
    run(&["worker", &nothing, "--wait-for", "0.1"]).with(2).saying(&[&nothing]);
    run(&["create", &nothing, "--spill-bytes", "5"]).with(2).saying(&["expected 0, for none, or"]);
}

/// Who reads while it is pruned is told which index is gone, and which one is first now; what was read until then is there.
#[test]
fn what_is_pruned_under_a_replay_is_named() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let dir = path(disk.path());
    let writing = journal(&region, &dir, &["--segment-bytes", "16K"]);
    let lines: String = (0..600).map(|n| format!("{n:01023}\n")).collect();
    submit(&region, &lines);
    await_durable(&region);
    writing.stop().with(0);
    sequencer.stop();
    // It comes as far as a pipe that nobody reads takes it.
    let mut reading = Running::start(&mut seriatim(&["replay", &dir]));
    eventually("it has begun", || reading.has_output());
    run(&["journal", "prune", &dir, "--keep-bytes", "0"]).with(0);
    let first = Replay::open(&dir).unwrap().first();
    let ended = reading.end().with(1);
    assert!(!ended.out.is_empty() && lines.starts_with(&ended.out), "{} bytes", ended.out.len());
    ended.saying(&["was pruned from", &dir, &format!("begins at index {first} now")]);
    // What nobody can begin with is another thing.
    run(&["replay", &dir, "--from", "1"]).with(2).saying(&["index 1 is not in", &dir, &first.to_string()]);
    run(&["replay", &dir, "--to", "1"]).with(2).saying(&["--to 1", &first.to_string()]);
    run(&["replay", &dir, "--from", "10", "--to", "5"]).with(2).saying(&["--from 10", "--to 5"]);
    run(&["replay", &dir, "--from", &first.to_string(), "--to", &first.to_string()]).with(0);
    let text = run(&["journal", "stat", &dir]).with(0).out;
    assert!(text.contains("in 1 segment\n") && text.contains("no segment stays for"), "{text}");
    let text = run(&["journal", "verify", &dir]).with(0).out;
    assert!(text.contains("in 1 segment\n") && text.contains("0 snapshots and 0 bookmarks"), "{text}");
    let ended = run(&["journal", &region, &dir, "--keep-snapshots", "0"]).with(2);
    assert!(ended.err.contains("at least 1"), "{ended:?}");
}
