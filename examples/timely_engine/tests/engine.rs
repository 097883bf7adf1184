//! The engine from outside: whatever its channel and its shape, it computes the same, and nobody hangs when it dies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::{Value, json};

/// After this a program hangs.
const HANGS: Duration = Duration::from_secs(1200);

/// Channel, processes, workers of each.
const ENGINES: [[&str; 3]; 4] =
    [["seriatim", "1", "4"], ["seriatim", "2", "2"], ["worker0", "1", "4"], ["worker0", "2", "2"]];

fn engine(what: &str, [channel, processes, workers]: [&str; 3]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_timely-engine"));
    program.args([what, "--channel", channel, "--processes", processes, "--workers", workers]);
    program
}

/// What a program printed, and how it ended. One that hangs is killed.
fn finish(mut child: Child) -> (Vec<Value>, String, ExitStatus) {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = thread::spawn(move || out.map(std::io::read_to_string).transpose());
    let err = thread::spawn(move || err.map(std::io::read_to_string).transpose());
    let status = ended(&mut child);
    let out = out.join().unwrap().unwrap().unwrap_or_default();
    let err = err.join().unwrap().unwrap().unwrap_or_default();
    (out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), err, status)
}

fn ended(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + HANGS;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it hangs");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn run_all(program: &mut Command) -> Vec<Value> {
    let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (lines, err, status) = finish(child);
    assert!(status.success(), "{status}: {err}\n{lines:?}");
    lines
}

/// Source, target, time.
type Edge = (u64, u64, u64);
type Rows = BTreeMap<Vec<u64>, i64>;

const NODES: u64 = 40;
const TIMES: u64 = 12;

/// An edge list that is not in order of time.
fn edges() -> Vec<Edge> {
    let mut state = 11_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..100).map(|_| (next(NODES), next(NODES), next(TIMES))).collect()
}

fn write_edges(dir: &Path, edges: &[Edge]) -> PathBuf {
    let mut text = String::new();
    for (source, target, time) in edges {
        writeln!(text, "{source} {target} {time}").unwrap();
    }
    let path = dir.join("edges.txt");
    fs::write(&path, text).unwrap();
    path
}

fn filter_count(edges: &[Edge], divisor: u64) -> Rows {
    let mut rows = Rows::new();
    for edge in edges.iter().filter(|edge| edge.1 % divisor == 0) {
        *rows.entry(vec![edge.0]).or_default() += 1;
    }
    rows
}

fn two_hops(edges: &[Edge]) -> Rows {
    let mut rows = Rows::new();
    for first in edges {
        for second in edges.iter().filter(|second| second.0 == first.1) {
            *rows.entry(vec![first.0, second.1]).or_default() += 1;
        }
    }
    rows
}

fn reach(edges: &[Edge], from: u64) -> Rows {
    let (mut seen, mut todo) = (BTreeSet::from([from]), vec![from]);
    while let Some(node) = todo.pop() {
        for edge in edges.iter().filter(|edge| edge.0 == node) {
            if seen.insert(edge.1) {
                todo.push(edge.1);
            }
        }
    }
    seen.into_iter().map(|node| (vec![node], 1)).collect()
}

/// Commands, and what they have to print.
#[derive(Default)]
struct Script {
    text: String,
    expected: Vec<Value>,
}

impl Script {
    fn say(&mut self, command: &Value) {
        writeln!(self.text, "{command}").unwrap();
    }

    fn peek(&mut self, id: u64, time: u64, rows: Rows) {
        let nonce = self.expected.len();
        self.say(&json!({"peek": {"id": id, "time": time, "nonce": nonce}}));
        self.expected.push(json!({"peek": nonce, "rows": Vec::from_iter(rows)}));
    }

    fn peek_refused(&mut self, id: u64, time: u64, why: &str) {
        let nonce = self.expected.len();
        self.say(&json!({"peek": {"id": id, "time": time, "nonce": nonce}}));
        self.expected.push(json!({"peek": nonce, "refused": why}));
    }
}

/// Each plan at several times, forwards, with compaction behind, and a second one that is built when others are far.
fn script(file: &Path, edges: &[Edge]) -> Script {
    let mut script = Script::default();
    let create = |script: &mut Script, id: u64, plan: Value| {
        script.say(&json!({"create_dataflow": {"id": id, "plan": plan}}));
    };
    create(&mut script, 1, json!({"filter_count": {"edges": file, "divisor": 3}}));
    create(&mut script, 2, json!({"two_hops": {"edges": file}}));
    create(&mut script, 3, json!({"reach": {"edges": file, "from": 7}}));
    let as_of = |time: u64| Vec::from_iter(edges.iter().copied().filter(|edge| edge.2 <= time));
    for now in (3..=TIMES).step_by(3) {
        for id in 1..=3 {
            script.say(&json!({"advance_to": {"id": id, "time": now}}));
        }
        // The earliest one is what was compacted to in the round before.
        for time in [now - 1, now - 2, now.saturating_sub(4)] {
            script.peek(1, time, filter_count(&as_of(time), 3));
            script.peek(2, time, two_hops(&as_of(time)));
            script.peek(3, time, reach(&as_of(time), 7));
        }
        for id in 1..=3 {
            script.say(&json!({"allow_compaction": {"id": id, "time": now - 1}}));
        }
        let why = format!("dataflow 2 is compacted to {}, {} is asked for", now - 1, now - 2);
        script.peek_refused(2, now - 2, &why);
        script.peek(3, now - 1, reach(&as_of(now - 1), 7));
    }
    script.say(&json!({"drop_dataflow": {"id": 2}}));
    script.peek_refused(2, TIMES, "there is no dataflow 2");
    create(&mut script, 2, json!({"reach": {"edges": file, "from": 0}}));
    script.say(&json!({"advance_to": {"id": 2, "time": 5}}));
    script.peek(2, 4, reach(&as_of(4), 0));
    script
}

#[test]
fn a_script_gives_what_is_in_the_file_through_both_channels_in_both_shapes() {
    let dir = tempfile::tempdir().unwrap();
    let edges = edges();
    let file = write_edges(dir.path(), &edges);
    let Script { text, expected } = script(&file, &edges);
    let path = dir.path().join("script.ndjson");
    fs::write(&path, text).unwrap();
    for kind in ENGINES {
        let lines = run_all(engine("run", kind).arg("--script").arg(&path));
        let peeked: Vec<&Value> = lines.iter().filter(|line| line.get("peek").is_some()).collect();
        assert_eq!(peeked, expected.iter().collect::<Vec<_>>(), "{kind:?}");
        assert!(lines.iter().any(|line| line.get("fingerprint").is_some()), "{kind:?}: {lines:?}");
    }
}

#[test]
fn the_script_that_comes_with_the_engine_runs() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("script.ndjson");
    let peeked = ENGINES.map(|kind| {
        let mut lines = run_all(engine("run", kind).arg("--script").arg(&script));
        lines.retain(|line| line.get("peek").is_some() || line.get("refused").is_some());
        lines
    });
    assert!(peeked[0].len() > 5, "{peeked:?}");
    assert!(peeked.iter().all(|lines| *lines == peeked[0]), "{peeked:?}");
}

/// That all fingerprints are equal the engine sees to itself; here, that they are what so many dataflows make.
#[test]
fn dataflows_that_come_and_go_from_three_producers_leave_all_workers_alike() {
    let commands = if std::env::var_os("SERIATIM_LONG").is_some() { 10_000 } else { 1_000 };
    let dir = tempfile::tempdir().unwrap();
    let file = write_edges(dir.path(), &edges()[..20]);
    let fingerprints = ENGINES.map(|kind| {
        let mut program = engine("churn", kind);
        program.args(["--commands", &commands.to_string(), "--producers", "3", "--edges"]).arg(&file);
        let lines = run_all(&mut program);
        assert!(lines[0]["commands"].as_u64().unwrap() >= commands, "{kind:?}: {lines:?}");
        lines[0]["fingerprint"].clone()
    });
    // The other channel has a dataflow of its own.
    assert_eq!(fingerprints[0], fingerprints[1]);
    assert_eq!(fingerprints[2], fingerprints[3]);
}

/// An engine that has answered, and waits for more.
struct Running {
    child: Child,
    pids: Vec<u64>,
    /// While this is there the script has not ended.
    _script: std::process::ChildStdin,
}

fn running(kind: [&str; 3], file: &Path) -> Running {
    let mut program = engine("run", kind);
    program.args(["--script", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = program.spawn().unwrap();
    let mut script = child.stdin.take().unwrap();
    let commands = [
        json!({"create_dataflow": {"id": 1, "plan": {"reach": {"edges": file, "from": 7}}}}),
        json!({"advance_to": {"id": 1, "time": 5}}),
        json!({"peek": {"id": 1, "time": 4, "nonce": 0}}),
    ];
    for command in commands {
        writeln!(script, "{command}").unwrap();
    }
    let mut pids = Vec::new();
    let out = child.stdout.take().unwrap();
    for line in BufReader::new(out).lines() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        pids.extend(line.get("pid").and_then(Value::as_u64));
        if line.get("peek").is_some() {
            return Running { child, pids, _script: script };
        }
    }
    panic!("{kind:?} ended before it had answered: {:?}", finish(child));
}

fn kill(pid: u64) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn when_a_process_dies_the_others_and_the_controller_say_which() {
    let dir = tempfile::tempdir().unwrap();
    let file = write_edges(dir.path(), &edges());
    for kind in ENGINES.into_iter().filter(|kind| kind[1] == "2") {
        for (victim, other) in [(0, 1), (1, 0)] {
            let Running { child, pids, _script } = running(kind, &file);
            kill(pids[victim]);
            let (_, err, status) = finish(child);
            assert_eq!(status.code(), Some(1), "{kind:?}, {victim}: {err}");
            let error = err.lines().last().unwrap_or_default();
            let died = format!("error: the engine has ended: process {victim} (pid {}", pids[victim]);
            assert!(error.starts_with(&died), "{kind:?}, {victim}: {err}");
            let noticed = format!("lost its connection to engine process {victim} ");
            assert!(error.contains("(SIGKILL)") && error.contains(&noticed), "{kind:?}, {victim}: {err}");
            // It was not killed for having noticed nothing.
            assert!(
                error.contains(&format!("process {other} ")) && error.contains("exit status: 3"),
                "{err}"
            );
            assert!(!error.contains("was killed"), "{kind:?}, {victim}: {err}");
        }
    }
}

#[test]
fn when_the_only_process_dies_the_controller_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = write_edges(dir.path(), &edges());
    for kind in ENGINES.into_iter().filter(|kind| kind[1] == "1") {
        let Running { child, pids, _script } = running(kind, &file);
        kill(pids[0]);
        let (_, err, status) = finish(child);
        assert_eq!(status.code(), Some(1), "{kind:?}: {err}");
        assert!(
            err.contains(&format!("process 0 (pid {}, workers 0..4) ended with signal: 9", pids[0])),
            "{err}"
        );
    }
}

#[test]
fn when_the_controller_dies_no_process_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let file = write_edges(dir.path(), &edges());
    for kind in ENGINES {
        let Running { mut child, pids, _script } = running(kind, &file);
        child.kill().unwrap();
        ended(&mut child);
        let deadline = Instant::now() + HANGS;
        while pids.iter().any(|pid| is_running(*pid)) {
            assert!(Instant::now() < deadline, "{kind:?}: {pids:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Neither gone nor waiting to be reaped by whoever has it now.
fn is_running(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
