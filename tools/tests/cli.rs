//! Every command of the tool: what it prints, how it ends, and what it leaves behind.

mod common;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::{Value, json};

// ---- the command line -------------------------------------------------------------------------------------

const COMMANDS: [&str; 14] = [
    "run", "bench", "create", "remove", "sequence", "submit", "worker", "tail", "stat", "errors", "verify",
    "inspect", "journal", "replay",
];

#[test]
fn help_shows_every_command_and_how_to_begin() {
    let help = run(&["--help"]).with(0).out;
    for word in COMMANDS.into_iter().chain(["Examples:"]) {
        assert!(help.contains(word), "{word} is not in {help}");
    }
    assert!(!help.contains("party"), "{help}");
}

#[test]
fn every_command_has_help() {
    for command in COMMANDS {
        let help = run(&[command, "--help"]).with(0).out;
        assert!(help.contains("Usage:"), "{help}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    run(&[]).with(2);
    run(&["no-such-command"]).with(2);
    run(&["run", "--producers", "0"]).with(2);
    run(&["run", "--wait", "never"]).with(2);
    run(&["run", "--lane-bytes", "12x"]).with(2);
    run(&["create"]).with(2);
    run(&["create", "/dev/shm/x", "--mode", "9"]).with(2);
}

#[test]
fn the_command_for_children_is_not_for_others() {
    let args = ["party", "--parent", "1", "--job", "{}", "--part", "{}"];
    run(&args).with(2).saying(&["for `seriatim run` itself"]);
}

// ---- run --------------------------------------------------------------------------------------------------

/// Runs the main job and checks all that its report says.
fn main_job(command: &mut Command, commands: u64, bytes: u64, producers: usize, workers: usize) -> Value {
    let report = Running::start(command.stdin(Stdio::null())).end().with(0).json();
    assert_eq!(report["agree"], true, "{report}");
    assert_eq!(report["input"]["commands"], commands);
    assert_eq!(report["input"]["bytes"], bytes);
    let rows = |name: &str| report[name].as_array().unwrap().clone();
    let sum = |name: &str| rows("producers").iter().map(|row| row[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(rows("producers").len(), producers);
    assert_eq!((sum("commands"), sum("bytes")), (commands, bytes));
    assert_eq!(rows("workers").len(), workers);
    let digests: HashSet<String> = rows("workers").iter().map(|row| row["digest"].to_string()).collect();
    assert_eq!(digests.len(), 1, "{report}");
    for row in rows("workers") {
        assert_eq!((&row["commands"], &row["bytes"]), (&json!(commands), &json!(bytes)));
        assert_eq!(row["next"], report["order"]["next"]);
    }
    report
}

#[test]
fn the_main_job_agrees_in_every_shape() {
    let folder = scratch();
    let path = input(&folder);
    let text = fs::read(&path).unwrap();
    let path = path.to_str().unwrap();
    let repeat: u64 = if long() || !cfg!(debug_assertions) { 200 } else { 4 };
    let commands = text.split_inclusive(|&byte| byte == b'\n').count() as u64 * repeat;
    let bytes = (text.len() - text.iter().filter(|&&byte| byte == b'\n').count()) as u64 * repeat;
    let repeat = repeat.to_string();
    let largest = text.split(|&byte| byte == b'\n').map(<[u8]>::len).max().unwrap();
    let lanes = (2 * largest.next_multiple_of(64)).next_power_of_two().to_string();
    let shapes: &[(usize, usize, &[&str])] = &[
        (4, 4, &[]),
        (4, 1, &[]),
        (4, 8, &[]),
        (1, 4, &[]),
        (8, 4, &[]),
        (2, 4, &["--as", "threads"]),
        (2, 4, &["--slots", "64"]),
        (2, 4, &["--batch", "1"]),
        (2, 4, &["--lane-bytes", &lanes]),
    ];
    for (producers, workers, more) in shapes {
        let (p, w) = (producers.to_string(), workers.to_string());
        let args = [&["run", path, "--json", "--repeat", &repeat, "--producers", &p, "--workers", &w], *more]
            .concat();
        main_job(&mut seriatim(&args), commands, bytes, *producers, *workers);
    }
}

#[test]
fn the_main_job_agrees_with_the_smallest_of_everything() {
    let folder = scratch();
    let text = lines(500, 11);
    let path = file(folder.path(), "input", &text);
    let sizes = ["--lane-bytes", "64K", "--lane-cells", "2", "--slots", "2"];
    for kind in ["processes", "threads"] {
        let args = [&["run", &path, "--json", "--as", kind][..], &sizes].concat();
        main_job(&mut seriatim(&args), 500, text.len() as u64 - 500, 2, 4);
    }
}

#[test]
fn the_main_job_agrees_on_one_core() {
    let folder = scratch();
    let path = folder.path().join("input");
    let text = lines(1_000, 7);
    fs::write(&path, &text).unwrap();
    if Command::new("taskset").args(["-c", "0", "true"]).status().is_ok_and(|status| status.success()) {
        let mut command = Command::new("taskset");
        command.args(["-c", "0", env!("CARGO_BIN_EXE_seriatim"), "run", path.to_str().unwrap(), "--json"]);
        main_job(&mut command, 1_000, text.len() as u64 - 1_000, 2, 4);
    } else {
        println!("skipped: there is no taskset, or CPU 0 is not ours");
    }
}

#[test]
fn run_reports_the_promised_json_and_nothing_else() {
    let report =
        run_with(&["run", "--json", "--producers", "1", "--workers", "1"], b"a\n\nbc").with(0).json();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&report),
        "agree bytes_per_second commands_per_second input latency_ns order producers seconds workers"
    );
    assert_eq!(report["input"], json!({"path": "-", "commands": 3, "bytes": 3}));
    assert_eq!(report["producers"], json!([{"name": "p0", "commands": 3, "bytes": 3}]));
    assert_eq!(keys(&report["workers"][0]), "bytes commands digest name next");
    assert_eq!(keys(&report["order"]), "cpu_ns_per_command next runs");
    assert_eq!(keys(&report["latency_ns"]), "max p50 p99 p99_9");
    let digest = report["workers"][0]["digest"].as_str().unwrap();
    assert!([16, 32].contains(&digest.len()) && digest.chars().all(|c| c.is_ascii_hexdigit()), "{digest}");
    assert!(report["order"]["cpu_ns_per_command"].as_f64().unwrap() > 0.0);
    assert!(report["latency_ns"]["max"].as_u64() >= report["latency_ns"]["p50"].as_u64());
}

#[test]
fn run_prints_a_table_for_people() {
    let ended = run_with(&["run", "-", "--repeat", "3"], b"one\ntwo\n\nfour\n").with(0);
    let text = &ended.out;
    assert!(ended.err.is_empty(), "{ended:?}");
    assert!(text.contains("input    -: 12 commands, 30 bytes"), "{text}");
    for name in ["p0", "p1", "w0", "w1", "w2", "w3", "WORKER", "DIGEST", "latency  p50"] {
        assert!(text.contains(name), "no {name} in {text}");
    }
    assert!(text.ends_with("all agree: 4 workers received all 12 commands once, in one order\n"), "{text}");
}

#[test]
fn run_takes_an_input_without_commands() {
    let report = run(&["run", "/dev/null", "--json"]).with(0).json();
    assert_eq!(report["input"]["commands"], 0);
    assert_eq!(report["agree"], true);
}

#[test]
fn run_refuses_lanes_in_which_the_largest_line_has_no_room() {
    let mut input = vec![b'x'; 5_000];
    input.extend_from_slice(b"\nsmall\n");
    let args = ["run", "-", "--lane-bytes", "4096", "--spill-bytes", "0"];
    run_with(&args, &input).with(2).saying(&["4096", "2048", "line 1", "5000", "16384"]);
    run_with(&["run", "-", "--lane-bytes", "16384", "--spill-bytes", "0"], &input).with(0);
    let report = run_with(&["run", "-", "--lane-bytes", "4096", "--json"], &input).with(0).json();
    assert_eq!(report["agree"], true, "it lies beside its lane");
}

#[test]
fn run_makes_lanes_in_which_the_largest_line_has_room() {
    let mut input = vec![b'x'; 3_000_000];
    input.extend_from_slice(b"\nsmall\n");
    let report = run_with(&["run", "-", "--json", "--workers", "1"], &input).with(0).json();
    assert_eq!(report["input"], json!({"path": "-", "commands": 2, "bytes": 3_000_005}));
}

#[test]
fn run_names_a_cpu_that_is_not_ours() {
    run(&["run", "/dev/null", "--pin", "9999"]).with(2).saying(&["9999"]);
    run(&["run", "/dev/null", "--pin", "some"]).with(2);
}

#[test]
fn run_pins_to_the_cpus_it_is_told() {
    let allowed = fs::read_to_string("/proc/self/status").unwrap();
    let list = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let cpu = list.split(['-', ',']).next().unwrap();
    for kind in ["processes", "threads"] {
        let text = run_with(&["run", "-", "--pin", cpu, "--as", kind], b"a\n").with(0).out;
        assert!(text.contains("pinned to CPUs "), "{text}");
    }
}

#[test]
fn run_names_a_file_that_it_cannot_read() {
    run(&["run", "/no/such/file"]).with(2).saying(&["/no/such/file", "No such file"]);
    run(&["run", "/"]).with(2).saying(&["Is a directory"]);
}

/// A run that goes on until it is stopped, and its children; commands are on their way.
fn endless_run(more: &[&str]) -> (Running, Vec<u32>) {
    let args = ["run", "-", "--repeat", "1000000000", "--json"];
    let mut run = Running::start(seriatim(&[&args, more].concat()).stdin(Stdio::piped()));
    run.feed(&lines(200, 3));
    run.close_input();
    let pid = run.pid();
    eventually("all children are there", || children(pid).len() == 6);
    eventually("commands are in the order", || region_of(pid).is_some_and(|region| going(&region)));
    let found = children(pid);
    (run, found)
}

/// The private region of a run, as others can see it.
fn region_of(run: u32) -> Option<String> {
    let open = fs::read_dir(format!("/proc/{run}/fd")).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut regions =
        open.filter(|path| fs::read_link(path).is_ok_and(|to| to.starts_with("/memfd:seriatim (deleted)")));
    Some(regions.next()?.to_str()?.into())
}

fn going(region: &str) -> bool {
    let ended = run(&["stat", region, "--json"]);
    ended.code == Some(0) && ended.json()["next"].as_u64() > Some(1_000)
}

#[test]
fn children_end_with_a_run_that_is_killed() {
    let (mut run, children) = endless_run(&[]);
    run.signal(Signal::SIGKILL);
    run.end();
    eventually("all children end", || !children.iter().any(|&child| runs(child)));
}

#[test]
fn children_end_with_a_run_that_is_interrupted() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (mut run, children) = endless_run(&[]);
        run.signal(signal);
        run.end().with(2).saying(&["interrupted"]);
        assert!(!children.iter().any(|&child| runs(child)));
    }
}

#[test]
fn a_private_region_cannot_be_shortened_and_the_run_goes_on() {
    let (mut run, _) = endless_run(&[]);
    let region = region_of(run.pid()).unwrap();
    let full = fs::metadata(&region).unwrap().len();
    for length in [0, full / 2, full + 1] {
        let error = fs::OpenOptions::new().write(true).open(&region).unwrap().set_len(length).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    }
    let next = || stat(&region)["next"].as_u64().unwrap();
    let before = next();
    eventually("commands go on", || next() > before);
    run.signal(Signal::SIGTERM);
    run.end().with(2);
}

#[test]
fn a_run_fails_when_a_child_dies() {
    let (run, children) = endless_run(&[]);
    // Children are started in order: the workers, then the producers.
    kill(Pid::from_raw(*children.iter().min().unwrap() as i32), Signal::SIGKILL).unwrap();
    run.end().with(1).saying(&["w", "killed by signal 9"]);
    eventually("all children end", || !children.iter().any(|&child| runs(child)));
}

// ---- by hand ----------------------------------------------------------------------------------------------

/// Writes lines into a file of the folder.
fn file(folder: &Path, name: &str, text: &[u8]) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().into()
}

/// The lines of `text` that are also in `of`, in their order.
fn those_of(text: &[u8], of: &[u8]) -> Vec<Vec<u8>> {
    let of: HashSet<&[u8]> = of.split_inclusive(|&byte| byte == b'\n').collect();
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    lines.filter(|line| of.contains(line)).map(<[u8]>::to_vec).collect()
}

fn unique_lines(count: usize, mark: &str) -> Vec<u8> {
    (0..count)
        .flat_map(|number| format!("{mark} {number} {}\n", "x".repeat(number % 97)).into_bytes())
        .collect()
}

#[test]
fn a_region_by_hand_has_one_order_for_all_workers() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-bytes", "64K", "--slots", "64"]);
    let sequencer = sequence(&region);
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let start = |name: &str| worker(&region, name, &["--out", &out(name), "--digest"]);
    let mut workers: Vec<Running> = ["w0", "w1", "w2"].map(start).into();

    let texts = [unique_lines(3_000, "first"), unique_lines(4_000, "second")];
    let mut submits = texts.each_ref().map(|text| {
        let mut submit = Running::start(seriatim(&["submit", &region, "-", "--json"]).stdin(Stdio::piped()));
        submit.feed(&text[..text.len() / 2]);
        submit
    });
    // Half of each is on its way, and neither input has ended: a fourth worker joins in the middle.
    workers.push(start("w3"));
    for (submit, text) in submits.iter_mut().zip(&texts) {
        submit.feed(&text[text.len() / 2..]);
    }
    for (submit, count) in submits.into_iter().zip([3_000, 4_000]) {
        let report = submit.end().with(0).json();
        assert_eq!(report["commands"], count);
        assert_eq!((&report["first"], &report["next"]), (&json!(0), &json!(count)));
        assert!(report["seq"].as_u64().unwrap() < stat(&region)["next"].as_u64().unwrap());
    }
    sequencer.stop().with(0);

    let said: Vec<String> = workers.into_iter().map(|worker| worker.end().with(0).err).collect();
    let digests: HashSet<&str> = said.iter().map(|line| line.split_once(": ").unwrap().1).collect();
    assert_eq!(digests.len(), 1, "{said:?}");
    assert!(digests.iter().all(|digest| digest.starts_with("next ")), "{said:?}");
    let outs = ["w0", "w1", "w2", "w3"].map(|name| fs::read(out(name)).unwrap());
    assert_eq!(outs[0].iter().filter(|&&byte| byte == b'\n').count(), 7_000);
    assert!(outs[0] == outs[1] && outs[0] == outs[2], "the first three differ");
    assert!(outs[0].ends_with(&outs[3]), "the fourth is no suffix of them");
    for text in &texts {
        assert!(those_of(&outs[0], text).concat() == *text, "a producer's order was not kept");
    }
}

#[test]
fn a_line_is_delivered_before_the_input_ends() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let _sequencer = sequence(&region);
    let worker = worker(&region, "w", &["--count", "2"]);
    let mut submit = Running::start(seriatim(&["submit", &region]).stdin(Stdio::piped()));
    submit.feed(b"one\n\nthree");
    assert_eq!(worker.end().with(0).out, "one\n\n");
    submit.end().with(0);
}

#[test]
fn a_closed_order_ends_its_workers_and_can_be_served_again() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let first = sequence(&region);
    let early = worker(&region, "early", &["--json"]);
    run_with(&["submit", &region, "--name", "p"], b"a\nb\n").with(0);
    let ended = first.stop().with(0);
    assert!(ended.out.starts_with(&format!("closed {region} ")), "{ended:?}");
    let ended = early.end().with(0);
    assert_eq!(ended.out, "a\nb\n");
    let report: Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!((&report["end"], &report["commands"]), (&json!("closed"), &json!(2)));

    run_with(&["submit", &region], b"c\n").with(2).saying(&[&region, "sequencer"]);
    let second = sequence(&region);
    let late = worker(&region, "late", &["--count", "1"]);
    run_with(&["submit", &region, "--name", "p"], b"c\n").with(0);
    assert_eq!(late.end().with(0).out, "c\n");
    second.stop().with(0);
}

#[test]
fn what_comes_after_an_order_was_reopened_is_received_by_who_comes_later() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let first = sequence(&region);
    run_with(&["submit", &region, "--name", "p"], b"a\nb\n").with(0);
    first.stop().with(0);
    let second = sequence(&region);
    run_with(&["submit", &region, "--name", "p"], b"c\nd\n").with(0);
    // The first end lies in the midst of what it gets at once.
    let worker = worker(&region, "w", &[]);
    second.stop().with(0);
    assert_eq!(worker.end().with(0).out, "a\nb\nc\nd\n");
}

#[test]
fn a_worker_leaves_when_asked() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let _sequencer = sequence(&region);
    worker(&region, "w", &[]).stop().with(0);
    eventually("it gates no more", || stat(&region)["gate"] == Value::Null);
}

#[test]
fn one_name_is_one_party() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut sequencer = sequence(&region);
    let pid = sequencer.pid().to_string();
    run(&["sequence", &region]).with(2).saying(&[&region, &pid]);
    let mut holder = worker(&region, "w", &[]);
    let pid = holder.pid().to_string();
    run(&["worker", &region, "--name", "w"]).with(2).saying(&["\"w\"", &pid]);
}

#[test]
fn more_parties_than_the_region_is_made_for_are_refused() {
    let folder = scratch();
    let region = create(&folder, "region", &["--producers", "1", "--workers", "1"]);
    let _sequencer = sequence(&region);
    let _worker = worker(&region, "w", &[]);
    run(&["worker", &region, "--name", "other"]).with(2).saying(&[&region, "1"]);
    let mut holder = Running::start(seriatim(&["submit", &region, "--name", "p"]).stdin(Stdio::piped()));
    holder.feed(b"a\n");
    eventually("the producer is there", || !stat(&region)["producers"].as_array().unwrap().is_empty());
    run_with(&["submit", &region, "--name", "other"], b"b\n").with(2).saying(&[&region, "1"]);
    holder.end().with(0);
}

#[test]
fn a_command_that_is_too_large_is_refused_with_both_numbers() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-bytes", "4096", "--spill-bytes", "0"]);
    let _sequencer = sequence(&region);
    let worker = worker(&region, "w", &["--count", "3"]);
    let mut input = b"one\n".to_vec();
    input.resize(4 + 2_049, b'x');
    input.push(b'\n');
    let ended = run_with(&["submit", &region, "--name", "p"], &input).with(2);
    ended.saying(&["line 2", "2049", "2048", "after 1 command"]);
    input.remove(4);
    let report = run_with(&["submit", &region, "--name", "p", "--json"], &input).with(0).json();
    assert_eq!((&report["first"], &report["next"]), (&json!(1), &json!(3)));
    assert_eq!(worker.end().with(0).out.len(), 4 + 4 + 2_049);
}

#[test]
fn submit_says_so_when_nobody_serves() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    run_with(&["submit", &region], b"a\n").with(2).saying(&[&region, "sequencer"]);
    run(&["worker", &region]).with(2).saying(&[&region, "sequencer"]);
}

#[test]
fn tail_watches_and_holds_up_nobody() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-cells", "64", "--slots", "16"]);
    let sequencer = sequence(&region);
    let worker = worker(&region, "w", &["--out", "/dev/null"]);
    let mut tail = Running::start(&mut seriatim(&["tail", &region]));
    // The observer says nothing of its coming: submit until it has seen something.
    eventually("the observer sees a command", || {
        run_with(&["submit", &region, "--name", "p"], b"hello\n").with(0);
        tail.has_output()
    });
    tail.signal(Signal::SIGSTOP);
    let many = unique_lines(5_000, "many");
    run_with(&["submit", &region, "--name", "p"], &many).with(0);
    tail.signal(Signal::SIGCONT);
    sequencer.stop().with(0);
    worker.end().with(0);
    let ended = tail.end().with(0);
    assert!(ended.err.lines().all(|line| line.starts_with("seriatim: missed ")), "{ended:?}");
    assert!(!ended.err.is_empty(), "5,000 commands went through 64 cells while it was stopped");
    let sent: HashSet<&str> = std::str::from_utf8(&many).unwrap().lines().collect();
    assert!(ended.out.lines().all(|line| line == "hello" || sent.contains(line)), "a mixed payload");
}

#[test]
fn tail_ends_after_so_many_commands() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let _sequencer = sequence(&region);
    let _worker = worker(&region, "w", &["--out", "/dev/null"]);
    let mut tail = Running::start(&mut seriatim(&["tail", &region, "--count", "2"]));
    let pid = tail.pid();
    eventually("it has seen two", || {
        run_with(&["submit", &region, "--name", "p"], b"x\n").with(0);
        !runs(pid)
    });
    assert_eq!(tail.end().with(0).out, "x\nx\n");
}

#[test]
fn what_is_for_one_rank_reaches_that_worker_and_all_pass_it() {
    let folder = scratch();
    let region = create(&folder, "region", &["--ranks", "2"]);
    let sequencer = sequence(&region);
    let start = |name: &str, args: &[&str]| worker(&region, name, args);
    let workers = [start("w0", &["--rank", "0"]), start("w1", &["--rank", "1"]), start("none", &[])];
    let rank_of = |name: &str| {
        let report = stat(&region);
        let rows = report["workers"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()["rank"].clone()
    };
    assert_eq!(["w0", "w1", "none"].map(rank_of), [json!(0), json!(1), Value::Null]);
    run(&["worker", &region, "--name", "other", "--rank", "1"]).with(2).saying(&["rank 1", "\"w1\""]);
    run(&["worker", &region, "--rank", "2"]).with(2).saying(&["no rank 2", "0 to 1"]);
    run_with(&["submit", &region, "--to", "1"], b"mine\nalso mine\n").with(0);
    run_with(&["submit", &region], b"all of us\n").with(0);
    run_with(&["submit", &region, "--to", "2"], b"x\n").with(2).saying(&["rank 2", "0 to 1"]);
    sequencer.stop().with(0);
    let out = workers.map(|worker| worker.end().with(0).out);
    assert_eq!(out, ["all of us\n", "mine\nalso mine\nall of us\n", "all of us\n"]);
}

// ---- looking ----------------------------------------------------------------------------------------------

#[test]
fn create_reports_what_it_made_and_remove_removes_it() {
    let folder = scratch();
    let path = folder.path().join("region").to_str().unwrap().to_string();
    let args = ["create", &path, "--json", "--slots", "64", "--lane-cells", "128", "--lane-bytes", "64K"];
    let report =
        run(&[&args[..], &["--producers", "3", "--workers", "5", "--ranks", "2", "--mode", "640"]].concat())
            .with(0)
            .json();
    let geometry = json!({"slots": 64, "lane_cells": 128, "lane_bytes": 65_536, "producers": 3, "workers": 5, "ranks": 2, "spill_bytes": 68_719_476_736_u64});
    assert_eq!(report["geometry"], geometry);
    assert_eq!((&report["digest_of"], &report["on_divergence"]), (&json!("payload"), &json!("report")));
    let file = fs::metadata(&path).unwrap();
    assert_eq!(report["bytes"], file.len());
    assert_eq!(file.permissions().mode() & 0o777, 0o640);
    run(&["create", &path]).with(2).saying(&[&path]);
    let before = fs::metadata(&path).unwrap();
    assert_eq!(before.modified().unwrap(), file.modified().unwrap());
    assert_eq!(run(&["remove", &path]).with(0).out, format!("removed {path}\n"));
    assert!(!Path::new(&path).exists());
    run(&["remove", &path]).with(2).saying(&[&path, "not found"]);
}

#[test]
fn create_refuses_values_out_of_range_with_the_range() {
    let folder = scratch();
    let path = folder.path().join("region").to_str().unwrap().to_string();
    for (option, value) in [
        ("--slots", "3"),
        ("--slots", "1"),
        ("--lane-cells", "1000"),
        ("--lane-bytes", "64"),
        ("--producers", "0"),
        ("--producers", "1001"),
        ("--workers", "5000"),
        ("--ranks", "17"),
    ] {
        run(&["create", &path, option, value]).with(2).saying(&[value]);
        assert!(!Path::new(&path).exists());
    }
    run(&["create", &path, "--group", "no such group"]).with(2);
}

#[test]
fn a_region_in_use_is_not_removed() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut sequencer = sequence(&region);
    let pid = sequencer.pid().to_string();
    run(&["remove", &region]).with(2).saying(&[&region, &pid]);
    assert!(Path::new(&region).exists());
    sequencer.stop().with(0);
    run(&["remove", &region]).with(0);
}

#[test]
fn stat_shows_who_is_there_and_where() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let report = stat(&region);
    assert_eq!((&report["sequencer"], &report["next"]), (&Value::Null, &json!(0)));

    let mut sequencer = sequence(&region);
    let mut worker = worker(&region, "audit", &[]);
    let mut submit = Running::start(seriatim(&["submit", &region, "--name", "p"]).stdin(Stdio::piped()));
    submit.feed(b"a\nb\nc\n");
    eventually("three commands are in the order", || stat(&region)["producers"][0]["next"] == 3);
    let report = stat(&region);
    assert_eq!(report["sequencer"]["pid"], sequencer.pid());
    assert_eq!(report["sequencer"]["alive"], true);
    let producer = &report["producers"][0];
    assert_eq!((&producer["name"], &producer["pid"]), (&json!("p"), &json!(submit.pid())));
    let row = &report["workers"][0];
    assert_eq!((&row["name"], &row["pid"]), (&json!("audit"), &json!(worker.pid())));
    assert_eq!((&row["alive"], &row["gating"], &row["rate"]), (&json!(true), &json!(true), &Value::Null));
    eventually("the worker has caught up", || stat(&region)["workers"][0]["lag"] == 0);
    assert_eq!((&report["gate"], &report["held_by"]), (&json!("audit"), &Value::Null));

    worker.signal(Signal::SIGSTOP);
    submit.feed(b"d\n");
    eventually("the stopped worker is behind", || stat(&region)["workers"][0]["lag"] == 1);
    let text = run(&["stat", &region]).with(0).out;
    for part in ["gate: audit", "PRODUCER", "WORKER", &format!("pid {} alive", sequencer.pid())] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    worker.signal(Signal::SIGCONT);
    submit.end().with(0);
    sequencer.stop().with(0);
    worker.end().with(0);
    let report = stat(&region);
    assert_eq!(report["state"], "closed");
    let alive = |party: &Value| party["alive"] == true;
    assert!(!alive(&report["sequencer"]) && !alive(&report["producers"][0]), "{report}");
    assert!(!report["workers"].as_array().unwrap().iter().any(alive), "{report}");
}

#[test]
fn stat_watches_until_it_is_told_to_stop() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut watch = Running::start(&mut seriatim(&["stat", &region, "--watch", "--json"]));
    let first: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(first["rate"], Value::Null);
    let second: Value = serde_json::from_str(&watch.line()).unwrap();
    assert_eq!(second["rate"], 0.0);
    watch.stop().with(0);
}

#[test]
fn inspect_shows_the_sections_of_a_region_that_nobody_serves() {
    let folder = scratch();
    let region = create(&folder, "region", &["--mode", "600"]);
    let report = run(&["inspect", &region, "--json"]).with(0).json();
    assert_eq!(report["mode"], "600");
    assert_eq!(report["bytes"], fs::metadata(&region).unwrap().len());
    let sections = report["sections"].as_array().unwrap();
    assert!(sections.len() >= 7, "{report}");
    let mut end = 0;
    for section in sections {
        let offset = section["offset"].as_u64().unwrap();
        assert!(offset >= end && offset.is_multiple_of(4096), "{report}");
        end = offset + section["bytes"].as_u64().unwrap();
    }
    assert!(end <= report["bytes"].as_u64().unwrap());
    let text = run(&["inspect", &region]).with(0).out;
    assert!(text.contains("SECTION") && text.contains("header"), "{text}");
}

#[test]
fn a_region_has_the_digest_that_was_asked_for_and_says_which() {
    let folder = scratch();
    let digest_of = |region: &str| {
        let inspected = run(&["inspect", region, "--json"]).with(0).json();
        let of = stat(region)["digest_of"].clone();
        assert_eq!(inspected["identity"]["digest_of"], of);
        let (text, line) =
            (run(&["stat", region]).with(0).out, format!("digest of: {}", of.as_str().unwrap()));
        assert!(text.contains(&line), "{text}");
        assert!(run(&["inspect", region]).with(0).out.contains(&line));
        of
    };
    assert_eq!(digest_of(&create(&folder, "default", &[])), "payload");
    for what in ["payload", "header", "off"] {
        let region = create(&folder, what, &["--digest", what]);
        assert_eq!(digest_of(&region), what);
        // A worker checks payloads where it can, and elsewhere comes in all the same.
        let sequencer = sequence(&region);
        let two = ["one", "two"].map(|name| worker(&region, name, &["--count", "1", "--digest", "--json"]));
        run_with(&["submit", &region], b"something").with(0);
        let ends = two.map(|worker| worker.end().with(0));
        let digests = ends.each_ref().map(|end| {
            let said: Value = serde_json::from_str(&end.err).unwrap();
            said["digest"].as_str().unwrap().to_owned()
        });
        assert_eq!(digests[0], digests[1]);
        assert_eq!(run(&["verify", &region, "--json"]).with(0).json()["sound"], true);
        sequencer.stop().with(0);
    }
    run(&["create", "/dev/shm/x", "--digest", "sha"]).with(2);
}

#[test]
fn inspect_shows_what_is_left_of_a_damaged_region() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let full = fs::metadata(&region).unwrap().len();
    fs::OpenOptions::new().write(true).open(&region).unwrap().set_len(full / 2).unwrap();
    let report = run(&["inspect", &region, "--json"]).with(1).json();
    let problems = report["problems"].to_string();
    assert!(problems.contains(&full.to_string()), "{problems}");
    assert!(problems.contains(&(full / 2).to_string()), "{problems}");
    assert!(run(&["inspect", &region]).with(1).out.contains("problem: "));
}

// ---- bad input --------------------------------------------------------------------------------------------

/// Every command that takes a region, each with nothing to read.
fn each_command(path: &str) -> Vec<Ended> {
    let commands = ["remove", "sequence", "submit", "worker", "tail", "stat", "errors", "verify", "inspect"];
    commands.map(|command| run(&[command, path])).into()
}

fn refused_untouched(path: &Path, parts: &[&str]) {
    let before = fs::read(path).unwrap();
    let text = path.to_str().unwrap();
    for ended in each_command(text) {
        ended.with(2).saying(&[&[text], parts].concat());
    }
    run(&["create", text]).with(2).saying(&[text]);
    assert!(fs::read(path).unwrap() == before, "{text} was touched");
}

#[test]
fn what_is_no_region_is_refused() {
    let folder = scratch();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("text"), "no region, but longer than a header may be\n".repeat(1_000)).unwrap();
    fs::copy("/proc/self/exe", at("elf")).unwrap();
    fs::write(at("empty"), "").unwrap();
    // Of another kind, with all that a region has but the magic.
    let mut other = fs::read(create(&folder, "region", &["--producers", "1", "--lane-bytes", "4K"])).unwrap();
    other[..8].copy_from_slice(b"SERIAL-2");
    fs::write(at("other"), other).unwrap();
    for name in ["text", "elf", "empty", "other"] {
        refused_untouched(&at(name), &["not a Seriatim region"]);
    }
}

#[test]
fn a_folder_a_missing_path_and_one_under_a_file_are_refused() {
    let folder = scratch();
    let path = folder.path().to_str().unwrap();
    let file = file(folder.path(), "file", b"");
    for path in
        [path.to_string(), format!("{path}/missing"), format!("{path}/no/folder"), format!("{file}/x")]
    {
        for ended in each_command(&path) {
            ended.with(2).saying(&[&path]);
        }
    }
    run(&["create", path]).with(2).saying(&[path]);
    run(&["create", &format!("{path}/no/folder")]).with(2).saying(&["no/folder"]);
}

#[test]
fn a_header_that_is_cut_or_of_another_version_is_refused() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let bytes = fs::read(&region).unwrap();
    for length in [1, 7, 8, 151] {
        let cut = folder.path().join(format!("cut-{length}"));
        fs::write(&cut, &bytes[..length]).unwrap();
        refused_untouched(&cut, &[&format!("{length} bytes"), "4096 bytes"]);
    }
    // What is the same in every version: the magic in the first eight bytes, the version in the four after
    // it.
    let ours =
        run(&["inspect", &region, "--json"]).with(0).json()["identity"]["version"].as_u64().unwrap() as u32;
    for version in [ours - 1, ours + 1, 901] {
        let mut other = bytes.clone();
        other[8..12].copy_from_slice(&version.to_le_bytes());
        let path = folder.path().join(format!("version-{version}"));
        fs::write(&path, &other).unwrap();
        let numbers = [format!("format version {version}, "), format!("reads version {ours};")];
        refused_untouched(&path, &[&numbers[0], &numbers[1], "use the tool that made it"]);
    }
}

#[test]
fn a_region_of_the_other_byte_order_is_refused_as_that() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut bytes = fs::read(&region).unwrap();
    // As another machine writes them: its version lies there the other way round as well.
    bytes[8..12].reverse();
    bytes[12..16].reverse();
    let path = folder.path().join("swapped");
    fs::write(&path, &bytes).unwrap();
    refused_untouched(&path, &["the other byte order", "0x04030201", "expected 0x01020304"]);
    // What is neither the one nor the other is damage.
    bytes[12] = 9;
    fs::write(&path, &bytes).unwrap();
    run(&["stat", path.to_str().unwrap()])
        .with(2)
        .saying(&["damaged header: byte order mark is", "expected 16909060"]);
}

#[test]
fn a_damaged_header_is_refused_by_all_but_inspect() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut bytes = fs::read(&region).unwrap();
    bytes[24] ^= 0xff;
    fs::write(&region, &bytes).unwrap();
    for command in ["remove", "sequence", "submit", "worker", "tail", "stat"] {
        run(&[command, &region]).with(2).saying(&[&region, "damaged header", "expected"]);
    }
    let report = run(&["inspect", &region, "--json"]).with(1).json();
    assert_eq!((&report["identity"], &report["bytes"]), (&Value::Null, &json!(bytes.len())));
    assert!(report["problems"][0].as_str().unwrap().contains("damaged header"), "{report}");
}

#[test]
fn a_region_that_lost_its_end_is_refused_by_all_but_inspect() {
    let folder = scratch();
    for length in [168, 4_095, 4_096, 8_191, 1 << 20] {
        let region = create(&folder, &length.to_string(), &[]);
        let full = fs::metadata(&region).unwrap().len();
        fs::OpenOptions::new().write(true).open(&region).unwrap().set_len(length).unwrap();
        for command in ["remove", "sequence", "submit", "worker", "tail", "stat"] {
            run(&[command, &region]).with(2).saying(&[&region, &full.to_string(), &length.to_string()]);
        }
        let report = run(&["inspect", &region, "--json"]).with(1).json();
        let problems = report["problems"].to_string();
        assert!(problems.contains(&full.to_string()) && problems.contains(&length.to_string()), "{report}");
        assert_eq!(fs::metadata(&region).unwrap().len(), length);
        fs::remove_file(&region).unwrap();
    }
}

#[test]
fn a_region_without_rights_is_refused() {
    let folder = scratch();
    let region = create(&folder, "region", &["--mode", "000"]);
    if Uid::effective().is_root() {
        // Root may read everything: ask as somebody else.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let setpriv = |command: &str| {
            let mut as_nobody = Command::new("setpriv");
            as_nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            as_nobody.args([env!("CARGO_BIN_EXE_seriatim"), command, &region]).stdin(Stdio::null());
            as_nobody.output().map(Ended::from)
        };
        match setpriv("stat") {
            Ok(ended) if ended.err.starts_with("seriatim: ") => {}
            other => return println!("skipped: cannot run the tool as nobody: {other:?}"),
        }
        for command in ["remove", "sequence", "submit", "worker", "tail", "stat", "inspect"] {
            setpriv(command).unwrap().with(2).saying(&[&region, "no right"]);
        }
    } else {
        for ended in each_command(&region) {
            ended.with(2).saying(&[&region, "no right"]);
        }
    }
    assert!(Path::new(&region).exists());
}

// ---- closed pipes -----------------------------------------------------------------------------------------

#[test]
fn a_closed_pipe_is_a_quiet_success() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    for args in
        [&["inspect", &region][..], &["stat", &region], &["stat", &region, "--json"], &["run", "/dev/null"]]
    {
        let mut child = Running::start(&mut seriatim(args));
        child.deafen();
        let ended = child.end().with(0);
        assert!(ended.err.is_empty(), "{args:?}: {ended:?}");
    }
}

#[test]
fn a_worker_leaves_when_its_reader_goes() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let _sequencer = sequence(&region);
    let mut deaf = worker(&region, "w", &[]);
    deaf.deafen();
    run_with(&["submit", &region], b"a\n").with(0);
    let ended = deaf.end().with(0);
    assert!(ended.err.is_empty(), "{ended:?}");
    eventually("it gates no more", || stat(&region)["gate"] == Value::Null);
}

#[test]
fn a_full_disk_is_named_with_the_file_and_the_worker_leaves() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let _sequencer = sequence(&region);
    let full = Running::start(&mut seriatim(&["worker", &region, "--name", "w", "--out", "/dev/full"]));
    await_join(&region, "w");
    run_with(&["submit", &region], b"a\n").with(0);
    full.end().with(2).saying(&["/dev/full", "No space left"]);
    eventually("it gates no more", || stat(&region)["gate"] == Value::Null);
}

#[test]
fn tail_ends_when_nobody_serves_a_region_that_has_lost_its_name() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut sequencer = sequence(&region);
    let mut tail = Running::start(&mut seriatim(&["tail", &region]));
    eventually("it looks", || {
        run_with(&["submit", &region, "--name", "p"], b"a\n").with(0);
        tail.has_output()
    });
    fs::remove_file(&region).unwrap();
    sequencer.signal(Signal::SIGKILL);
    tail.end().with(2).saying(&["unlinked", "nobody serves it"]);
}
