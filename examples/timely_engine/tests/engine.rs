//! The engine from outside: whatever its channel and its shape, it computes the same, and nobody hangs when it dies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
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
    script: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(kind: [&str; 3], file: &Path, options: &[&str]) -> Running {
        let mut program = engine("run", kind);
        program.args(options).args(["--script", "-"]);
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let script = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut running = Running { child, pids: Vec::new(), script, lines };
        running.say(&json!({"create_dataflow": {"id": 1, "plan": {"reach": {"edges": file, "from": 7}}}}));
        running.say(&json!({"advance_to": {"id": 1, "time": 5}}));
        running.say(&json!({"peek": {"id": 1, "time": 4, "nonce": 0}}));
        running.hear("peek");
        running
    }

    fn say(&mut self, line: &Value) {
        writeln!(self.script, "{line}").unwrap();
    }

    /// The next line that has this in it; whoever is started says who it is.
    fn hear(&mut self, what: &str) -> Value {
        for line in &mut self.lines {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            self.pids.extend(line.get("pid").and_then(Value::as_u64));
            if line.get(what).is_some() {
                return line;
            }
        }
        panic!("it ended without {what:?}: {:?}", ended(&mut self.child));
    }

    /// Has no more to say.
    fn finish(self) -> (Vec<Value>, String, ExitStatus) {
        let Running { child, script, mut lines, .. } = self;
        drop(script);
        let rest = thread::spawn(move || {
            lines.by_ref().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect::<Vec<Value>>()
        });
        let (_, err, status) = finish(child);
        (rest.join().unwrap(), err, status)
    }
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
            let Running { child, pids, script: _script, .. } = Running::start(kind, &file, &[]);
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
        let Running { child, pids, script: _script, .. } = Running::start(kind, &file, &[]);
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
fn an_engine_that_died_is_started_again_and_gives_the_right_results() {
    let dir = tempfile::tempdir().unwrap();
    let edges = edges();
    let file = write_edges(dir.path(), &edges);
    let as_of = |time: u64| Vec::from_iter(edges.iter().copied().filter(|edge| edge.2 <= time));
    let rows = |nonce: u64, rows: Rows| json!({"peek": nonce, "rows": Vec::from_iter(rows)});
    for kind in ENGINES.into_iter().filter(|kind| kind[0] == "seriatim") {
        let mut engine = Running::start(kind, &file, &["--restart"]);
        engine.say(&json!({"create_dataflow": {"id": 2, "plan": {"two_hops": {"edges": file}}}}));
        engine.say(
            &json!({"create_dataflow": {"id": 3, "plan": {"filter_count": {"edges": file, "divisor": 3}}}}),
        );
        engine.say(&json!({"drop_dataflow": {"id": 3}}));
        engine.say(&json!({"allow_compaction": {"id": 1, "time": 4}}));
        // Of each process once, and of one that was started again.
        for (round, victim) in (0..).zip([0, engine.pids.len() - 1, 0]) {
            let (pids, died) = (std::mem::take(&mut engine.pids), Instant::now());
            kill(pids[victim]);
            // Sent to the dead or to the living: it is wanted once.
            let late = 40 + round;
            engine.say(&json!({"create_dataflow": {"id": late, "plan": {"two_hops": {"edges": file}}}}));
            engine.say(&json!({"peek": {"id": 1, "time": 4, "nonce": late}}));
            let lost = engine.hear("lost")["lost"].to_string();
            println!("{kind:?}: said after {:?}", died.elapsed());
            assert!(
                lost.contains(&format!("the engine has ended: process {victim} (pid {}", pids[victim])),
                "{lost}"
            );
            // The late one is among them, unless it came when all that was over.
            let changes = engine.hear("reconciled")["reconciled"].clone();
            let expected = [2, 3].map(|created| json!({"kept": 0, "created": created, "dropped": 0}));
            assert!(expected.contains(&changes), "{changes}");
            assert_eq!(engine.hear("peek"), rows(late, reach(&as_of(4), 7)));
            engine.say(&json!({"drop_dataflow": {"id": late}}));
            let now = 6 + round;
            engine.say(&json!({"advance_to": {"id": 1, "time": now}}));
            engine.say(&json!({"advance_to": {"id": 2, "time": now}}));
            engine.say(&json!({"peek": {"id": 1, "time": now - 1, "nonce": 10 + round}}));
            assert_eq!(engine.hear("peek"), rows(10 + round, reach(&as_of(now - 1), 7)));
            engine.say(&json!({"peek": {"id": 2, "time": now - 1, "nonce": 20 + round}}));
            assert_eq!(engine.hear("peek"), rows(20 + round, two_hops(&as_of(now - 1))));
        }
        engine.say(&json!({"peek": {"id": 1, "time": 3, "nonce": 30}}));
        assert_eq!(engine.hear("peek")["refused"], "dataflow 1 is compacted to 4, 3 is asked for");
        let (rest, err, status) = engine.finish();
        assert!(
            status.success() && rest.iter().any(|line| line.get("fingerprint").is_some()),
            "{err}\n{rest:?}"
        );
    }
}

#[test]
fn a_controller_that_comes_again_finds_what_it_wants() {
    let dir = tempfile::tempdir().unwrap();
    let edges = edges();
    let file = write_edges(dir.path(), &edges);
    for kind in ENGINES.into_iter().filter(|kind| kind[0] == "seriatim") {
        let mut engine = Running::start(kind, &file, &[]);
        for (id, kept) in (2..5).zip(1..) {
            engine.say(&json!("reconnect"));
            assert_eq!(
                engine.hear("reconciled")["reconciled"],
                json!({"kept": kept, "created": 0, "dropped": 0})
            );
            engine
                .say(&json!({"create_dataflow": {"id": id, "plan": {"reach": {"edges": file, "from": id}}}}));
            engine.say(&json!({"advance_to": {"id": id, "time": 9}}));
            engine.say(&json!({"peek": {"id": id, "time": 8, "nonce": id}}));
            let expected = reach(&Vec::from_iter(edges.iter().copied().filter(|edge| edge.2 <= 8)), id);
            assert_eq!(engine.hear("peek"), json!({"peek": id, "rows": Vec::from_iter(expected)}));
        }
        let (rest, err, status) = engine.finish();
        assert!(status.success(), "{err}");
        // Nothing was built twice: as many dataflows as were created.
        let fingerprint = rest.iter().find_map(|line| line.get("fingerprint")).expect("it is the last line");
        let mut plain = Running::start(kind, &file, &[]);
        for id in 2..5 {
            plain
                .say(&json!({"create_dataflow": {"id": id, "plan": {"reach": {"edges": file, "from": id}}}}));
        }
        let (rest, ..) = plain.finish();
        assert!(
            rest.iter().any(|line| line.get("fingerprint") == Some(fingerprint)),
            "{fingerprint}, {rest:?}"
        );
    }
}

#[test]
fn when_the_controller_dies_no_process_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let file = write_edges(dir.path(), &edges());
    for kind in ENGINES {
        let Running { mut child, pids, script: _script, .. } = Running::start(kind, &file, &[]);
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
