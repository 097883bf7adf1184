//! What an operator does when parties die or hang: standbys, evictions, restarts, and what is said about it.

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Running, create, eventually, run, run_with, scratch, sequence, seriatim, stat, worker};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// A standby that has begun to wait.
fn standby(region: &str) -> Running {
    let mut standby = Running::start(&mut seriatim(&["sequence", region, "--standby"]));
    let line = standby.line();
    assert!(line.starts_with(&format!("standing by for {region} ")), "{line}");
    standby
}

/// Waits until a standby serves.
#[track_caller]
fn takes_over(standby: &mut Running, region: &str, epoch: u64) {
    let line = standby.line();
    assert!(line.starts_with(&format!("serving {region} ")), "{line}");
    assert!(line.ends_with(&format!("epoch {epoch}")), "{line}");
}

/// A file of lines that are all different.
fn lines(folder: &TempDir, mark: &str, count: usize) -> (String, Vec<String>) {
    let path = folder.path().join(mark).display().to_string();
    let lines: Vec<String> = (0..count).map(|number| format!("{mark} {number}")).collect();
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    (path, lines)
}

/// Where a worker's end said that it was, and with which digest.
fn place(err: &str) -> &str {
    err.split_once(": ").map_or(err, |(_, place)| place)
}

#[test]
fn a_standby_goes_on_at_the_next_index_with_the_same_digests() {
    let folder = scratch();
    let region = create(&folder, "region", &["--producers", "2", "--workers", "2"]);
    let first = sequence(&region);
    let mut second = standby(&region);
    let outs = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    let workers =
        outs.clone().map(|out| worker(&region, &out[out.len() - 1..], &["--out", &out, "--digest"]));

    let (before, mut all) = lines(&folder, "before", 500);
    run(&["submit", &region, &before]).with(0);
    let next = stat(&region)["next"].as_u64().unwrap();
    let mut first = first;
    first.signal(Signal::SIGKILL);
    takes_over(&mut second, &region, 2);
    let status = stat(&region);
    // One more: that the epoch is new has its own place in the order.
    assert!(status["next"].as_u64().unwrap() >= next, "{status}");
    assert_eq!(status["epoch"], 2);

    let (after, more) = lines(&folder, "after", 500);
    all.extend(more);
    run(&["submit", &region, &after]).with(0);
    second.stop().with(0);
    let ends = workers.map(Running::end);
    assert_eq!(place(&ends[0].err), place(&ends[1].err));
    for out in outs {
        assert_eq!(fs::read_to_string(out).unwrap().lines().collect::<Vec<_>>(), all);
    }
}

#[test]
fn a_standby_ends_when_the_order_is_closed() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let first = sequence(&region);
    let second = standby(&region);
    first.stop().with(0);
    let ended = second.end().with(0);
    assert!(ended.out.is_empty() && ended.err.is_empty(), "{ended:?}");
    assert_eq!(stat(&region)["state"], "closed");
}

#[test]
fn a_standby_ends_when_asked_and_is_no_standby_where_nobody_serves() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut alone = Running::start(&mut seriatim(&["sequence", &region, "--standby"]));
    takes_over(&mut alone, &region, 1);
    standby(&region).stop().with(0);
    assert_eq!(stat(&region)["epoch"], 1);
}

#[test]
fn a_sequencer_that_is_stopped_is_evicted_only_when_that_is_asked_for() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut stopped = sequence(&region);
    let held = worker(&region, "w", &[]);
    stopped.signal(Signal::SIGSTOP);
    let pid = stopped.pid().to_string();
    run(&["sequence", &region]).with(2).saying(&["has a sequencer already", &pid]);
    assert_eq!(stat(&region)["epoch"], 1);

    let mut next = Running::start(&mut seriatim(&["sequence", &region, "--evict"]));
    takes_over(&mut next, &region, 2);
    assert_eq!(stopped.end().code, None, "it was killed");
    let (file, lines) = lines(&folder, "lines", 100);
    run(&["submit", &region, &file]).with(0);
    next.stop().with(0);
    assert_eq!(held.end().with(0).out.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn who_comes_right_after_a_kill_is_not_refused_for_the_dying() {
    let folder = scratch();
    let region = create(&folder, "region", &["--producers", "2", "--workers", "2"]);
    let mut serving = sequence(&region);
    // Killed and not waited for: the kernel takes its time to end them.
    let kill = |mut dying: Running| {
        dying.signal(Signal::SIGKILL);
        dying
    };
    for round in 2..12 {
        let dying = kill(serving);
        serving = sequence(&region);
        drop(dying);
        assert_eq!(stat(&region)["epoch"], round);
        let dying = kill(worker(&region, "w", &[]));
        let next = worker(&region, "w", &[]);
        drop(dying);
        let mut submit = seriatim(&["submit", &region, "-", "--name", "p"]);
        let mut submitting = Running::start(submit.stdin(Stdio::piped()));
        submitting.feed(b"line\n");
        eventually("it is attached", || stat(&region)["producers"][0]["alive"] == true);
        let dying = kill(submitting);
        run_with(&["submit", &region, "-", "--name", "p"], b"next\n").with(0);
        drop(dying);
        next.stop().with(0);
    }
    serving.stop().with(0);
}

#[test]
fn what_a_worker_has_not_written_goes_to_who_comes_after_it() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let serving = sequence(&region);
    let pipe = folder.path().join("pipe");
    let pipe = pipe.display().to_string();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = seriatim(&["worker", &region, "--name", "w", "--out", &pipe]);
    let mut first = Running::start(&mut command);
    // A reader that does not read: the worker comes to have more than it can write.
    let mut reader = fs::File::open(&pipe).unwrap();
    let (file, lines) = lines(&folder, "a line that is neither short nor very long, number", 20_000);
    let submitting = Running::start(&mut seriatim(&["submit", &region, &file]));
    eventually("it cannot go on", || stat(&region)["workers"][0]["stuck_s"].as_f64() > Some(0.1));
    let mut written = String::new();
    first.signal(Signal::SIGKILL);
    first.end();
    reader.read_to_string(&mut written).unwrap();
    let written = written.matches('\n').count();
    let out = folder.path().join("second").display().to_string();
    let second = Running::start(&mut seriatim(&["worker", &region, "--name", "w", "--out", &out]));
    submitting.end().with(0);
    serving.stop().with(0);
    second.end().with(0);
    let rest = fs::read_to_string(&out).unwrap();
    let rest: Vec<&str> = rest.lines().collect();
    let begin = lines.iter().position(|line| line == rest[0]).unwrap();
    assert_eq!(rest, lines[begin..]);
    assert!(begin <= written, "lines {written} to {begin} reached nobody");
}

#[test]
fn evicting_nobody_is_serving() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut alone = Running::start(&mut seriatim(&["sequence", &region, "--evict"]));
    takes_over(&mut alone, &region, 1);
    let both = run(&["sequence", &region, "--evict", "--standby"]);
    assert_eq!(both.code, Some(2));
    assert!(Path::new(&region).exists());
    eventually("it still serves", || stat(&region)["sequencer"]["alive"] == true);
}

#[test]
fn a_submitter_that_resumes_leaves_out_what_is_in_the_order() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let reader = worker(&region, "w", &[]);
    let (file, lines) = lines(&folder, "lines", 1000);
    let part = folder.path().join("part").display().to_string();
    fs::write(&part, lines[..400].join("\n")).unwrap();

    run(&["submit", &region, &part, "--name", "a"]).with(0);
    let resumed = run(&["submit", &region, &file, "--name", "a", "--resume", "--json"]).with(0).json();
    assert_eq!((&resumed["skipped"], &resumed["commands"]), (&400.into(), &600.into()));
    // Once more there is nothing left to do; with a shorter input it cannot be the same one.
    let again = run(&["submit", &region, &file, "--name", "a", "--resume"]).with(0);
    assert!(again.out.contains("1000 lines were in the order already, 0 commands"), "{again:?}");
    run(&["submit", &region, &part, "--name", "a", "--resume"]).with(2).saying(&["1000", "400 lines"]);
    assert_eq!(run(&["submit", &region, &file, "--resume"]).code, Some(2), "whose lines?");

    sequencer.stop().with(0);
    assert_eq!(reader.end().with(0).out.lines().collect::<Vec<_>>(), lines);
}

/// The whole job with kills all the way: sequencers with standbys behind them, a worker, a submitter.
#[test]
fn every_line_arrives_once_everywhere_whoever_is_killed() {
    const LINES: usize = 20_000;
    let folder = scratch();
    // Small lanes: everybody waits for everybody now and then.
    let sizes = ["--producers", "2", "--workers", "4", "--lane-cells", "256"];
    let region = create(&folder, "region", &sizes);
    let mut serving = sequence(&region);
    let mut next = standby(&region);
    let out = |name: &str| folder.path().join(name).display().to_string();
    let join = |name: &str| worker(&region, name, &["--out", &out(name), "--digest"]);
    let [a, b, mut victim] = ["a", "b", "victim"].map(join);
    let (sent, files): (Vec<_>, Vec<_>) = ["x", "y"]
        .map(|name| {
            let (file, all) = lines(&folder, name, LINES);
            (all, file)
        })
        .into_iter()
        .unzip();
    let submit = |at: usize, name: &str| {
        let args = ["submit", &region, &files[at], "--name", name, "--resume", "--batch", "4", "--json"];
        Running::start(&mut seriatim(&args))
    };
    let mut x = submit(0, "x");
    let y = submit(1, "y");

    let ordered = || stat(&region)["next"].as_u64().unwrap();
    let mut restarts = 0;
    for kill in 0..5 {
        let goal = (kill + 1) * LINES as u64 * 2 / 7;
        eventually("the order goes on", || ordered() >= goal);
        serving.signal(Signal::SIGKILL);
        takes_over(&mut next, &region, kill + 2);
        serving = std::mem::replace(&mut next, standby(&region));
        // What moves may move too fast to be looked at (2), but it holds.
        let verified = run(&["verify", &region]);
        assert!(matches!(verified.code, Some(0 | 2)), "{verified:?}");
        match kill {
            1 => victim.signal(Signal::SIGKILL),
            0 | 3 => {
                x.signal(Signal::SIGKILL);
                // Joined before the next one comes: of a name there is one at a time.
                x.end();
                x = submit(0, "x");
                restarts += 1;
            }
            _ => {}
        }
    }
    let done = [x, y].map(|submit| submit.end().with(0).json());
    println!("5 sequencers, 1 worker, {restarts} submitters killed; the rest of x: {}", done[0]);
    assert_eq!(done[1]["commands"], LINES);
    serving.stop().with(0);
    next.end().with(0);

    let ends = [a.end().with(0), b.end().with(0)];
    assert_eq!(place(&ends[0].err), place(&ends[1].err));
    let text = fs::read_to_string(out("a")).unwrap();
    assert!(text == fs::read_to_string(out("b")).unwrap(), "the outputs differ");
    for (mark, sent) in ["x", "y"].iter().zip(sent) {
        let got: Vec<&str> = text.lines().filter(|line| line.starts_with(mark)).collect();
        assert!(got == sent, "{} lines of {mark}", got.len());
    }
    assert_eq!(text.lines().count(), 2 * LINES);
}

/// A worker's row in `stat`.
fn row(region: &str, name: &str) -> Value {
    let status = stat(region);
    let rows = status["workers"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).cloned().unwrap_or_default()
}

/// The errors of a kind, as `errors` shows them.
fn errors(region: &str, code: &str) -> Vec<Value> {
    let report = run(&["errors", region, "--json"]).with(0).json();
    let errors = report["errors"].as_array().unwrap();
    errors.iter().filter(|error| error["code"] == code).cloned().collect()
}

#[test]
fn a_worker_that_is_stopped_is_named_and_waited_for() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-cells", "64", "--workers", "2"]);
    // To be read while it runs.
    let said = folder.path().join("said");
    let sequence = seriatim(&["sequence", &region, "--stall", "0.3"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" 2> {}", said.display())]);
    let sequencer = Running::start(shell.arg(sequence.get_program()).args(sequence.get_args()));
    eventually("it serves", || stat(&region)["sequencer"]["alive"] == true);
    let other = worker(&region, "other", &[]);
    let mut stopped = worker(&region, "stopped", &[]);
    let pid = stopped.pid();
    stopped.signal(Signal::SIGSTOP);
    let (file, lines) = lines(&folder, "lines", 2000);
    let submit = Running::start(&mut seriatim(&["submit", &region, &file]));

    eventually("it is named", || errors(&region, "stalled").iter().any(|error| error["who"] == "stopped"));
    eventually("it is suspect", || row(&region, "stopped")["suspect"] == true);
    let stuck = row(&region, "stopped");
    assert!(stuck["stuck_s"].as_f64().unwrap() >= 1.0 && stuck["lag"].as_u64().unwrap() > 0, "{stuck}");
    assert_eq!(
        (&stuck["alive"], &stuck["gating"], &stuck["policy"]),
        (&true.into(), &true.into(), &"gate".into())
    );
    let status = stat(&region);
    assert_eq!((&status["gate"], &status["sequencer"]["suspect"]), (&"stopped".into(), &false.into()));

    stopped.signal(Signal::SIGCONT);
    submit.end().with(0);
    // On a busy machine the other one may be named as well.
    let read = || fs::read_to_string(&said).unwrap();
    let of_it = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.contains("worker \"stopped\"")).map(String::from).collect()
    };
    eventually("it is seen to move again", || of_it(&read()).len() > 1);
    sequencer.stop().with(0);
    let said = of_it(&read());
    assert_eq!(said.len(), 2, "{said:?}");
    for (line, part) in said.iter().zip(["holds the others up", "moves again"]) {
        assert!(line.contains(&format!("pid {pid}")) && line.contains(part), "{line}");
    }
    for worker in [other, stopped] {
        assert_eq!(worker.end().with(0).out.lines().collect::<Vec<_>>(), lines);
    }
}

#[test]
fn a_worker_that_asked_for_it_is_killed_and_only_its_end_opens_the_gate() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-cells", "64", "--workers", "2"]);
    let sequencer = sequence(&region);
    let other = worker(&region, "other", &[]);
    let mut stopped = worker(&region, "stopped", &["--kill-after", "0.2", "--kill-lag", "10"]);
    assert_eq!(row(&region, "stopped")["policy"], "kill after 200ms at 10");
    stopped.signal(Signal::SIGSTOP);
    let (file, lines) = lines(&folder, "lines", 2000);
    run(&["submit", &region, &file]).with(0);
    assert_eq!(stopped.end().code, None, "it was killed");
    assert_eq!(errors(&region, "killed")[0]["who"], "stopped");
    assert_eq!(errors(&region, "worker-died")[0]["who"], "stopped");
    assert!(sequencer.stop().with(0).err.contains("killed"));
    assert_eq!(other.end().with(0).out.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn a_sequencer_that_is_stopped_is_suspect_and_the_errors_of_a_region_outlive_everybody() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let none = run(&["errors", &region]).with(0);
    assert_eq!(none.out, format!("{region}: no errors\n"));
    let mut first = sequence(&region);
    let mut producer = Running::start(seriatim(&["submit", &region]).stdin(std::process::Stdio::piped()));
    producer.feed(b"one\n");
    eventually("it is attached", || {
        stat(&region)["producers"].as_array().is_some_and(|rows| !rows.is_empty())
    });
    first.signal(Signal::SIGSTOP);
    // A signal takes a moment to stop all threads: the first of these may still get their place.
    eventually("it is suspect", || {
        producer.feed(b"two\n");
        stat(&region)["sequencer"]["suspect"] == true
    });
    first.signal(Signal::SIGKILL);
    first.end();
    let mut second = sequence(&region);
    second.signal(Signal::SIGKILL);
    second.end();
    drop(producer);

    let taken = errors(&region, "taken-over");
    assert_eq!(
        (taken.len(), &taken[0]["detail"], &taken[0]["count"]),
        (1, &2.into(), &1.into()),
        "{taken:?}"
    );
    let status = stat(&region);
    assert_eq!((&status["errors"], &status["sequencer"]["suspect"]), (&1.into(), &false.into()));
    assert!(run(&["errors", &region]).with(0).out.contains("took over from a former one"));
}

#[test]
fn verify_says_what_holds_and_what_does_not() {
    use std::os::unix::fs::FileExt;
    let folder = scratch();
    let region =
        create(&folder, "region", &["--producers", "1", "--lane-cells", "64", "--lane-bytes", "64K"]);
    let none = run(&["verify", &region, "--json"]).with(0).json();
    assert_eq!((&none["sound"], &none["to"]), (&true.into(), &0.into()));
    let mut sequencer = sequence(&region);
    let (file, _) = lines(&folder, "lines", 50);
    run(&["submit", &region, &file, "--name", "p"]).with(0);
    // Nobody works: all of it is held. Whether or not somebody serves does not matter.
    run(&["verify", &region]).with(0);
    sequencer.signal(Signal::SIGKILL);
    sequencer.end();
    let found = run(&["verify", &region, "--json"]).with(0).json();
    assert_eq!((&found["from"], &found["to"]), (&0.into(), &51.into()));
    let commands =
        found["checks"].as_array().unwrap().iter().find(|check| check["name"] == "commands").unwrap();
    assert_eq!(commands["checked"], 51);

    // A byte of the command at index 8, in its cell.
    let sections = run(&["inspect", &region, "--json"]).with(0).json()["sections"].clone();
    let lanes = sections.as_array().unwrap().iter().find(|section| section["name"] == "lanes").unwrap();
    let at = lanes["offset"].as_u64().unwrap() + 4096 + 7 * 64 + 24;
    let damage = fs::OpenOptions::new().write(true).open(&region).unwrap();
    damage.write_all_at(b"L", at).unwrap();
    let text = run(&["verify", &region]).with(1).out;
    assert!(text.contains("problem: index 8 (cell 7 of lane 1): payload digest is"), "{text}");

    let _sequencer = sequence(&region);
    let worker = run(&["worker", &region, "--name", "w"]).with(2).saying(&["corrupt at index 8", "payload"]);
    assert_eq!(worker.out.lines().count(), 7);
    assert_eq!(errors(&region, "corrupt")[0]["detail"], 8);
    damage.set_len(8192).unwrap();
    let short = run(&["verify", &region]).with(1).out;
    assert!(short.contains("problem: ") && short.contains("8192"), "{short}");
    run(&["verify", &file]).with(2);
}

/// Ends with exit code 2, not by a signal, and says what happened.
#[track_caller]
fn says(ended: &common::Ended, parts: &[&str]) {
    assert_eq!(ended.code, Some(2), "{ended:?}");
    for part in parts {
        assert!(ended.err.contains(part), "no `{part}` in {ended:?}");
    }
}

#[test]
fn a_region_that_loses_its_name_goes_on_for_those_who_are_there() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let out = folder.path().join("out").display().to_string();
    let reader = worker(&region, "w", &["--out", &out]);
    let mut producer =
        Running::start(seriatim(&["submit", &region, "--name", "p"]).stdin(std::process::Stdio::piped()));
    producer.feed(b"before\n");
    eventually("it is attached", || {
        stat(&region)["producers"].as_array().is_some_and(|rows| !rows.is_empty())
    });
    let moved = folder.path().join("moved").display().to_string();
    fs::rename(&region, &moved).unwrap();
    run(&["worker", &region]).with(2).saying(&["not found"]);
    eventually("it is noticed", || !errors(&moved, "file").is_empty());
    assert!(errors(&moved, "file")[0]["what"].as_str().unwrap().contains("unlinked"));
    // Enough to see all go on, or a million.
    let count = if common::long() { 1_000_000 } else { 10_000 };
    let (_, more) = lines(&folder, "more", count);
    producer.feed((more.join("\n") + "\n").as_bytes());
    producer.end().with(0);
    let ended = sequencer.stop().with(0);
    assert_eq!(ended.err.matches("region unlinked").count(), 1, "{ended:?}");
    reader.end().with(0);
    let got = fs::read_to_string(out).unwrap();
    assert!(got.lines().skip(1).eq(more.iter()), "{} lines of {count}", got.lines().count());
    println!("{count} commands in order after the region had lost its name");
}

#[test]
fn who_waits_for_a_region_that_nobody_can_serve_any_more_is_told() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut sequencer = sequence(&region);
    let reader = worker(&region, "w", &[]);
    sequencer.signal(Signal::SIGKILL);
    sequencer.end();
    fs::remove_file(&region).unwrap();
    create(&folder, "region", &[]);
    says(&reader.end(), &["region replaced"]);
    // The new one is another region.
    assert_eq!(stat(&region)["epoch"], 0);
}

#[test]
fn nobody_dies_by_a_signal_when_a_region_is_truncated() {
    for share in [0, 2] {
        let folder = scratch();
        let region = create(&folder, "region", &["--lane-cells", "64", "--workers", "2"]);
        let sequencer = sequence(&region);
        let standby = standby(&region);
        let busy = worker(&region, "busy", &[]);
        let mut slow = worker(&region, "slow", &[]);
        let (file, _) = lines(&folder, "lines", 20_000);
        let mut tail = Running::start(&mut seriatim(&["tail", &region]));
        eventually("tail watches", || {
            common::run_with(&["submit", &region], b"one\n").with(0);
            tail.has_output()
        });
        slow.signal(Signal::SIGSTOP);
        let submit = Running::start(&mut seriatim(&["submit", &region, &file]));
        eventually("the submitter waits", || row(&region, "slow")["lag"].as_u64() >= Some(64));

        let bytes = fs::metadata(&region).unwrap().len();
        let left = bytes * share / 4;
        fs::OpenOptions::new().write(true).open(&region).unwrap().set_len(left).unwrap();
        slow.signal(Signal::SIGCONT);
        let sizes = [format!("{bytes}"), format!("{left}")];
        let parts = ["truncated", &sizes[0], &sizes[1]];
        for party in [sequencer, standby, busy, slow, submit] {
            says(&party.end(), &parts);
        }
        says(&tail.end(), &["region truncated", &sizes[0], &sizes[1]]);
        assert_eq!(run(&["inspect", &region]).code, Some(if share == 0 { 2 } else { 1 }));
    }
}
