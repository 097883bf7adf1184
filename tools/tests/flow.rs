//! Who holds whom up, and who does not: workers and producers that are stopped, regions that are full, calls that
//! must not wait.

mod common;
mod engine;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use engine::{Engine, Random, Who, seed, this_program};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::time::TimeVal;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use serde_json::Value;
use seriatim::{
    Config, Event, Full, HeldBy, JoinOptions, Producer, Region, Sequencer, SequencerConfig, SubmitError,
    Worker, affinity,
};
use tempfile::TempDir;

/// Reached only by what never ends.
const NEVER: Duration = Duration::from_secs(60);

const VARIABLE: &str = "SERIATIM_FLOW_PART";

/// What the processes of these tests do. Does nothing as a test.
#[test]
fn part() {
    engine::part::play();
    let Ok(part) = std::env::var(VARIABLE) else { return };
    let (what, region) = part.split_once(' ').expect("a part and a region");
    let region = Region::attach(region).unwrap();
    match what {
        "claim" => claim_and_stop(&region),
        "try" => try_without_waiting(&region),
        "ping" => ping(),
        other => panic!("no part {other:?}"),
    }
    // Not through the test harness: others may hold its pipes.
    std::process::exit(0);
}

/// This program with a part to play, started by `with`.
fn play(what: &str, region: &str, with: &[&str]) -> Running {
    let this = this_program();
    let (program, args) = (this.get_program().to_owned(), this.get_args().map(ToOwned::to_owned));
    let mut command = match with {
        [] => Command::new(program),
        [wrapper, rest @ ..] => {
            let mut command = Command::new(wrapper);
            command.args(rest).arg(program);
            command
        }
    };
    command.args(args.collect::<Vec<_>>()).env(VARIABLE, format!("{what} {region}"));
    Running::start(command.stdin(Stdio::piped()))
}

fn lines_of(folder: &TempDir, name: &str, count: usize, len: usize) -> String {
    let path = folder.path().join(name).display().to_string();
    let text: String = (0..count).map(|n| format!("{n:0len$}\n")).collect();
    fs::write(&path, text).unwrap();
    path
}

fn row(status: &Value, of: &str, name: &str) -> Value {
    let rows = status[of].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).cloned().unwrap_or_default()
}

// ---- who holds others up is named -------------------------------------------------------------------------

/// Sizes in which one thing runs short before the others, and the length of a line that sees to that.
const SHORT_OF: [(&str, &[&str], usize); 3] = [
    ("order slots", &["--slots", "16", "--lane-cells", "4096"], 8),
    ("lane cells", &["--slots", "4096", "--lane-cells", "64"], 8),
    ("lane bytes", &["--slots", "4096", "--lane-cells", "4096", "--lane-bytes", "64K"], 1000),
];

#[test]
fn who_keeps_the_room_is_named_whatever_is_short_of_it_and_the_flow_resumes() {
    thread::scope(|scope| {
        for (what, sizes, len) in SHORT_OF {
            scope.spawn(move || stall_on(what, sizes, len));
        }
    });
}

fn stall_on(what: &str, sizes: &[&str], len: usize) {
    let folder = scratch();
    let region = create(&folder, "region", &[sizes, &["--producers", "3", "--workers", "4"]].concat());
    let sequencer = sequence(&region);
    let workers = ["w0", "w1", "w2", "stopped"].map(|name| worker(&region, name, &["--out", "/dev/null"]));
    let [w0, w1, w2, mut stopped] = workers;
    let pid = stopped.pid();
    // Enough to be under load as long as it takes, and small batches, so that the order needs slots.
    let file = lines_of(&folder, "lines", 400_000 / len.max(20), len);
    let submit = |name: &str| {
        let endless =
            format!("while cat {file}; do :; done | \"$0\" submit {region} - --name {name} --batch 1");
        let mut shell = Command::new("sh");
        shell.args(["-c", &endless, env!("CARGO_BIN_EXE_seriatim")]).stdin(Stdio::null());
        Running::start(&mut shell)
    };
    let submitters = ["p", "q"].map(submit);
    // Attached beforehand: there is no room in the order for its coming, later.
    let mut producer = attach(&Region::attach(&region).unwrap(), "impatient");
    let next = || stat(&region)["next"].as_u64().unwrap();
    eventually("they are under load", || next() > 1000);

    for blow in [Signal::SIGCONT, Signal::SIGKILL] {
        stopped.signal(Signal::SIGSTOP);
        let since = Instant::now();
        let mut status = Value::Null;
        eventually(&format!("{what}: who holds up is named"), || {
            status = stat(&region);
            status["held_by"]["name"] == "stopped"
        });
        println!("{what}: named after {:?}: {}", since.elapsed(), status["held_by"]["text"]);
        eventually(&format!("{what}: it is suspect, both producers wait, and nothing moves"), || {
            let before = next();
            status = stat(&region);
            let waits = ["p", "q"].iter().all(|name| row(&status, "producers", name)["full_s"].is_f64());
            // It is said once it has been seen to stand for a second.
            let is_said =
                status["last_error"].as_str().is_some_and(|last| last.contains("held the others up"));
            let is_suspect = row(&status, "workers", "stopped")["suspect"] == true;
            is_said && is_suspect && waits && before == status["next"]
        });
        let (by, its) = (&status["held_by"], row(&status, "workers", "stopped"));
        assert_eq!((&by["what"], &by["pid"]), (&"worker".into(), &pid.into()), "{status}");
        assert_eq!((&by["slot"], &by["next"]), (&its["slot"], &its["next"]), "{status}");
        let lag = status["next"].as_u64().unwrap() - its["next"].as_u64().unwrap();
        assert!(lag > 0 && by["lag"] == lag && its["lag"] == lag, "{status}");
        assert!(by["stuck_s"].as_f64() >= Some(1.0) && status["suspect"].as_u64() >= Some(1), "{status}");
        let text = run(&["stat", &region]).with(0).out;
        let said =
            format!("held up by: worker \"stopped\" (slot {}, pid {pid}) is {lag} commands", its["slot"]);
        assert!(
            text.contains(&said) && text.contains("FULL") && !text.contains("0 of them suspect"),
            "{text}"
        );
        // Who gives up waiting is told the same.
        let full = loop {
            let until = Instant::now() + Duration::from_millis(50);
            match producer.submit_deadline(0, &vec![b'x'; len], until) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let SubmitError::Full(Full { by: HeldBy::Worker { name, pid: its_pid, lag: its_lag, .. } }) = full
        else {
            panic!("{what}: {full}");
        };
        assert!(name.to_string() == "stopped" && its_pid == pid && its_lag >= lag, "{what}: {full}");

        let (at, submitted) =
            (next(), |status: &Value| row(status, "producers", "p")["next"].as_u64().unwrap());
        let before = submitted(&stat(&region));
        stopped.signal(blow);
        eventually(&format!("{what}: the flow resumes"), || {
            let status = stat(&region);
            next() > at + 1000 && submitted(&status) > before && status["held_by"]["name"] != "stopped"
        });
    }
    assert_eq!(stat(&region)["workers_died"], 1);
    let ended = sequencer.stop().with(0);
    // On a busy machine others may be named as well. One line at its begin and one at its end; the second time comes
    // too soon to be said again, if at all.
    let said: Vec<&str> = ended.err.lines().filter(|line| line.contains("worker \"stopped\"")).collect();
    assert!((2..=4).contains(&said.len()), "{what}: {said:?}");
    for (line, part) in
        said.iter().zip(["holds the others up", "moves again", "holds the others up", "is gone"])
    {
        let names_it = line.contains("\"stopped\"") && line.contains(&format!("pid {pid}"));
        assert!(names_it && line.contains(part), "{what}: {line}");
    }
    for submit in submitters {
        assert!(submit.end().err.contains("closed"));
    }
    for worker in [w0, w1, w2] {
        worker.end().with(0);
    }
    assert_eq!(stopped.end().code, None);
}

#[test]
fn stat_tells_the_living_the_suspect_and_the_dead_and_what_happened_so_far() {
    let folder = scratch();
    let region = create(&folder, "region", &["--producers", "2", "--workers", "2", "--lane-cells", "64"]);
    let check = |expected: [(&str, u64); 7]| {
        let status = stat(&region);
        for (field, number) in expected {
            assert_eq!(status[field], number, "{field} in {status}");
        }
        status
    };
    check([
        ("epoch", 0),
        ("takeovers", 0),
        ("living", 0),
        ("suspect", 0),
        ("gone", 0),
        ("workers_died", 0),
        ("duplicates", 0),
    ]);
    sequence(&region).signal(Signal::SIGKILL);
    let mut sequencer = sequence(&region);
    let mut dies = worker(&region, "dies", &[]);
    let held = worker(&region, "held", &[]);
    let attached = Region::attach(&region).unwrap();
    let mut producer = attach(&attached, "p");
    for index in [0, 0, 1, 0, 2] {
        let _ = producer.submit_at(index, 0, b"x");
    }
    eventually("all is received", || {
        stat(&region)["workers"].as_array().unwrap().iter().all(|w| w["lag"] == 0)
    });
    let status = check([
        ("epoch", 2),
        ("takeovers", 1),
        ("living", 4),
        ("suspect", 0),
        ("gone", 0),
        ("workers_died", 0),
        ("duplicates", 2),
    ]);
    assert_eq!(
        (&status["held_by"], &row(&status, "producers", "p")["duplicates"]),
        (&Value::Null, &2.into())
    );
    dies.signal(Signal::SIGKILL);
    eventually("its gate falls", || stat(&region)["workers_died"] == 1);
    // Who comes back under its name is told what it had submitted, and what it was refused stays known.
    drop(producer);
    // Another test of this process may be starting a child just now, which has its lock until it runs.
    eventually("its lock falls", || row(&stat(&region), "producers", "p")["alive"] == false);
    let status = check([
        ("epoch", 2),
        ("takeovers", 1),
        ("living", 2),
        ("suspect", 0),
        ("gone", 1),
        ("workers_died", 1),
        ("duplicates", 2),
    ]);
    assert_eq!(row(&status, "producers", "p")["alive"], false);
    let mut producer = attach(&attached, "p");
    assert!(producer.submit_at(1, 0, b"x").is_err());
    // A sequencer that is stopped holds everybody up who submits.
    sequencer.signal(Signal::SIGSTOP);
    eventually("all its threads are stopped", || is_stopped(sequencer.pid()));
    while producer.try_submit(0, b"x").is_ok() {}
    let mut status = Value::Null;
    eventually("it is suspect", || {
        status = stat(&region);
        status["sequencer"]["suspect"] == true
    });
    assert_eq!(
        (&status["held_by"]["what"], &status["held_by"]["pid"]),
        (&"sequencer".into(), &sequencer.pid().into())
    );
    check([
        ("epoch", 2),
        ("takeovers", 1),
        ("living", 3),
        ("suspect", 1),
        ("gone", 0),
        ("workers_died", 1),
        ("duplicates", 3),
    ]);
    let text = run(&["stat", &region]).with(0).out;
    let parts = [
        "epoch 2, 1 takeover,",
        "3 alive, 1 of them suspect, 0 gone",
        "1 worker died, 3 duplicates refused",
        "held up by: the sequencer",
        "gate: held",
    ];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    sequencer.signal(Signal::SIGCONT);
    sequencer.stop().with(0);
    held.end().with(0);
}

/// With the CPU on which it ran last, and to whoever waits for it.
#[test]
fn a_submitter_that_waits_for_room_is_told_for_whom() {
    let cpus = affinity::allowed();
    if !can_run_with(&["taskset", "-c", &cpus[0].to_string()]) {
        return println!("skipped: no taskset");
    }
    for cpu in cpus.iter().take(2) {
        let folder = scratch();
        let region = create(&folder, "region", &["--lane-cells", "64", "--workers", "1"]);
        let mut sequencer = sequence(&region);
        let mut pinned = Command::new("taskset");
        pinned.args([
            "-c",
            &cpu.to_string(),
            env!("CARGO_BIN_EXE_seriatim"),
            "worker",
            &region,
            "--name",
            "held",
        ]);
        let mut held = Running::start(pinned.stdin(Stdio::null()));
        await_join(&region, "held");
        held.signal(Signal::SIGSTOP);
        eventually("all its threads are stopped", || is_stopped(held.pid()));
        let (said, mut submit) = submitter_that_tells(&folder, &region);
        submit.feed("line\n".repeat(200).as_bytes());
        let read = || fs::read_to_string(&said).unwrap();
        eventually("it says that it waits", || read().contains("still waiting for room"));
        let who = format!("worker \"held\" (slot 0, pid {}) is", held.pid());
        assert!(read().contains(&format!("still waiting for room: {who} ")), "{}", read());
        let status = stat(&region);
        let (by, its) = (&status["held_by"], row(&status, "workers", "held"));
        assert_eq!((&by["cpu"], &its["cpu"]), (&(*cpu).into(), &(*cpu).into()), "{status}");
        assert!(by["text"].as_str().unwrap().ends_with(&format!("ran last on CPU {cpu}")), "{status}");
        assert!(status["sequencer"]["cpu"].is_u64(), "{status}");
        let text = run(&["stat", &region]).with(0).out;
        assert!(text.contains(&format!("behind, ran last on CPU {cpu}, has not moved for")), "{text}");
        // Who is gone ran nowhere.
        sequencer.signal(Signal::SIGKILL);
        sequencer.end();
        assert_eq!(stat(&region)["sequencer"]["cpu"], Value::Null);
        let sequencer = sequence(&region);
        held.signal(Signal::SIGCONT);
        submit.end().with(0);
        sequencer.stop().with(0);
        held.end().with(0);
    }
}

/// A submitter that reads its standard input, and the file in which it complains, to be read while it runs.
fn submitter_that_tells(folder: &TempDir, region: &str) -> (PathBuf, Running) {
    let said = folder.path().join("said");
    let submit = seriatim(&["submit", region]);
    let script = format!("exec \"$0\" \"$@\" 2> {}", said.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(submit.get_program()).args(submit.get_args());
    let submit = Running::start(shell.stdin(Stdio::piped()));
    // Until the shell has made it.
    eventually("it runs", || said.exists());
    (said, submit)
}

#[test]
fn nobody_is_killed_at_once() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let refused = run(&["worker", &region, "--kill-after", "0"]);
    assert!(refused.code == Some(2) && refused.err.contains("from 0.1 to 1000000000"), "{refused:?}");
}

// ---- who is stopped and holds nobody up -------------------------------------------------------------------

/// Attaches, submits one command, claims room for another, and stops in the middle of writing it.
fn claim_and_stop(region: &Region) {
    let mut producer = attach(region, "halfway");
    producer.submit(1, b"before").unwrap();
    let mut room = producer.claim(1, 2000).unwrap();
    room[..1000].fill(b'h');
    raise(Signal::SIGSTOP).unwrap();
    room[1000..].fill(b'h');
    room.commit().unwrap();
}

#[test]
fn a_producer_that_is_stopped_while_it_holds_a_claim_holds_up_nobody() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-cells", "64", "--slots", "16"]);
    let sequencer = sequence(&region);
    let mut halfway = play("claim", &region, &[]);
    eventually("it stops", || is_stopped(halfway.pid()));
    // Joined after the stop: what comes must come without it.
    let attached = Region::attach(&region).unwrap();
    let checked = JoinOptions::new().check_payloads(true).timeout(ANSWER);
    let mut worker = Worker::join_with(&attached, "w", &checked).unwrap();
    let mut producer = attach(&attached, "other");
    let (rounds, mut got) = (1000u64, 0);
    for n in 0..rounds {
        producer.submit(2, &n.to_le_bytes()).unwrap();
        while got <= n {
            match worker.recv_deadline(Instant::now() + NEVER).unwrap().expect("it comes without the other") {
                Event::Command(c) if c.kind == 2 => {
                    assert_eq!((c.index, c.payload), (got, &got.to_le_bytes()[..]));
                    got += 1;
                }
                Event::Command(c) => assert_eq!(c.payload, b"before"),
                _ => {}
            }
        }
    }
    while worker.poll().unwrap().is_some() {}
    let status = stat(&region);
    assert_eq!((&status["held_by"], &status["suspect"]), (&Value::Null, &0.into()), "{status}");
    let row = row(&status, "producers", "halfway");
    assert_eq!((&row["alive"], &row["full_s"]), (&true.into(), &Value::Null), "{status}");
    halfway.signal(Signal::SIGCONT);
    loop {
        let event = worker.recv_deadline(Instant::now() + NEVER).unwrap().expect("it goes on");
        if let Event::Command(c) = event {
            assert!((c.kind, c.index) == (1, 1) && c.payload == [b'h'; 2000], "{c:?}");
            break;
        }
    }
    halfway.end().with(0);
    worker.leave();
    sequencer.stop().with(0);
}

/// How many commands two producers get through to two workers in a while, all of them threads.
struct Pair {
    submitted: [AtomicU64; 2],
    /// Producers that have not ended.
    submitting: AtomicU64,
    over: AtomicBool,
}

impl Pair {
    /// Runs the two until `body` has ended; it is given a way to ask how many commands there were in a time.
    fn run(region: &Region, body: impl FnOnce(&dyn Fn(Duration) -> u64)) {
        let pair = Pair {
            submitted: [0, 0].map(AtomicU64::new),
            submitting: AtomicU64::new(2),
            over: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            for (me, count) in pair.submitted.iter().enumerate() {
                let mut producer = attach(region, &format!("other{me}"));
                let mut worker = join(region, &format!("w{me}"));
                let (over, submitting) = (&pair.over, &pair.submitting);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let until = Instant::now() + Duration::from_millis(100);
                        let submitted = producer.submit_deadline(0, &[0; 32], until).is_ok();
                        count.fetch_add(submitted.into(), Ordering::Relaxed);
                    }
                    if producer.next_index() > 0 {
                        producer.wait_sequenced(producer.next_index() - 1).unwrap();
                    }
                    submitting.fetch_sub(1, Ordering::Release);
                });
                scope.spawn(move || {
                    // What is left at the end would keep its end out of the order.
                    while submitting.load(Ordering::Acquire) > 0 || worker.lag() > 0 {
                        let until = Instant::now() + Duration::from_millis(100);
                        worker.recv_batch(64, Some(until), |_| {}).unwrap();
                    }
                });
            }
            let all = || pair.submitted.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
            let _over = Over(&pair.over);
            body(&|time| {
                let before = all();
                thread::sleep(time);
                all() - before
            });
        });
    }
}

/// With a producer stopped in the middle of a submit, and with the same one idle, in turn; prints the ratio. For a
/// ratio that means something: on an idle machine, `SERIATIM_LONG=1`, a release build, features crash-points.
#[test]
fn others_go_on_as_before_when_a_producer_stops_in_the_middle_of_a_submit() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    // Without crash points in this build: only in the middle of a claim.
    let points: &[&str] = if cfg!(feature = "crash-points") {
        &["lane.claimed", "submit.payload", "ticket.in", "submit.queued"]
    } else {
        &["claim"]
    };
    let (rounds, time) =
        if long() { (10, Duration::from_millis(500)) } else { (1, Duration::from_millis(40)) };
    Pair::run(&Region::attach(&region).unwrap(), |count| {
        count(Duration::from_millis(100));
        let mut sent = 0;
        for point in points {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                let mut halfway = if *point == "claim" {
                    play("claim", &region, &[])
                } else {
                    let mut submit = seriatim(&["submit", &region, "--name", "halfway", "--batch", "1"]);
                    submit.env("SERIATIM_CRASH", format!("{point}:3:stop"));
                    let mut submit = Running::start(submit.stdin(Stdio::piped()));
                    // Too long for a cell: only what is written into the bytes of a lane passes all the points.
                    submit.feed(format!("{0:a<100}\n{0:b<100}\n{0:c<100}\n", "").as_bytes());
                    submit
                };
                eventually("it stops", || is_stopped(halfway.pid()));
                with.push(count(time));
                eventually("the others go on", || count(Duration::from_millis(1)) > 0);
                assert!(is_stopped(halfway.pid()));
                halfway.signal(Signal::SIGCONT);
                sent += if *point == "claim" { 2 } else { 3 };
                eventually("it goes on and is idle", || {
                    row(&stat(&region), "producers", "halfway")["next"] == sent
                });
                without.push(count(time));
                halfway.end().with(0);
            }
            let sum = |counts: &[u64]| counts.iter().sum::<u64>() as f64;
            let ratio = sum(&with) / sum(&without);
            println!("stopped at {point}: {ratio:.3} of the commands ({with:?} with, {without:?} without)");
        }
    });
    sequencer.stop().with(0);
}

// ---- calls that must not wait -----------------------------------------------------------------------------

const TRIES: u64 = 1000;

/// What a call cost: a call that waits gives its processor away, or uses it for as long as it waits.
struct Cost {
    /// As a clock on the wall has it, which a busy machine makes as long as it likes.
    time: Duration,
    /// Processor time.
    work: Duration,
    /// How often it gave its processor away.
    slept: i64,
}

impl Cost {
    /// What this thread has cost so far.
    fn so_far() -> (Duration, i64) {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
        (clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into(), usage.voluntary_context_switches())
    }

    fn of(call: &mut dyn FnMut()) -> Cost {
        let (started, (work, slept)) = (Instant::now(), Cost::so_far());
        call();
        let (time, (work_then, slept_then)) = (started.elapsed(), Cost::so_far());
        Cost { time, work: work_then - work, slept: slept_then - slept }
    }
}

/// Tries to submit and to poll beside one who is stopped between claim and commit; says how long each took.
fn try_without_waiting(region: &Region) {
    let mut worker = join(region, "tries");
    let mut producer = attach(region, "tries");
    let (mut submitted, mut received) = (0, 0);
    let mut full = [0; 2];
    let mut costs: [Vec<Cost>; 3] = Default::default();
    let timed = |costs: &mut Vec<Cost>, call: &mut dyn FnMut()| costs.push(Cost::of(call));
    let until = Instant::now() + PATIENCE;
    let mut round = 0;
    while round < TRIES || submitted == 0 || received < submitted || full.contains(&0) {
        assert!(Instant::now() < until, "{submitted} submitted, {received} received, {full:?} times full");
        // In turn: while it only submits it keeps the room itself, until there is none; then it only receives.
        let is_filling = round % 200 < 100 && (round < TRIES || full.contains(&0));
        if is_filling {
            timed(&mut costs[0], &mut || match producer.try_submit(2, &[2; 100]) {
                Ok(_) => submitted += 1,
                Err(SubmitError::Full(_)) => full[0] += 1,
                Err(error) => panic!("{error}"),
            });
            timed(&mut costs[1], &mut || match producer.try_claim(2, 100) {
                Ok(claim) => drop(claim),
                Err(SubmitError::Full(_)) => full[1] += 1,
                Err(error) => panic!("{error}"),
            });
        } else {
            timed(&mut costs[2], &mut || {
                if let Some(Event::Command(command)) = worker.poll().unwrap() {
                    received += u64::from(command.kind == 2);
                }
            });
        }
        round += 1;
        if round % 100 == 0 {
            // The others, who may have no other core.
            thread::sleep(Duration::from_millis(1));
        }
    }
    for (what, costs) in ["try_submit", "try_claim", "poll"].iter().zip(&mut costs) {
        let sorted = |of: fn(&Cost) -> Duration| {
            let mut times: Vec<Duration> = costs.iter().map(of).collect();
            times.sort_unstable();
            times
        };
        let (times, works) = (sorted(|cost| cost.time), sorted(|cost| cost.work));
        let over =
            |times: &[Duration]| times.iter().filter(|time| **time >= Duration::from_millis(1)).count();
        let (calls, longest, most) = (times.len(), times[times.len() - 1], works[works.len() - 1]);
        println!(
            "{what}: {calls} calls, median {:?}, longest {longest:?}, {} over 1 ms; processor time {:?}, most \
             {most:?}, {} over 1 ms",
            times[calls / 2],
            over(&times),
            works[calls / 2],
            over(&works),
        );
        let slept = costs.iter().filter(|cost| cost.slept > 0).count();
        assert_eq!(slept, 0, "{what} gave its processor away");
        // The kernel's own work for others counts as the thread's that it interrupts.
        assert!(
            over(&works) * 100 <= calls && most < Duration::from_secs(1),
            "{what} waited without sleeping"
        );
        assert!(longest < NEVER, "{what} waited");
    }
    println!("{submitted} submitted and received, {full:?} times full");
}

/// Whether a program can be started by another one.
fn can_run_with(wrapper: &[&str]) -> bool {
    Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").status().is_ok_and(|status| status.success())
}

/// Everybody is started by `everybody`, who tries by `caller` as well.
fn nobody_waits(everybody: &[&str], caller: &[&str]) {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-cells", "64", "--slots", "16"]);
    let mut command = match everybody {
        [] => seriatim(&["sequence", &region]),
        [wrapper, rest @ ..] => {
            let mut command = Command::new(wrapper);
            command.args(rest).arg(env!("CARGO_BIN_EXE_seriatim")).args(["sequence", &region]);
            command
        }
    };
    let mut sequencer = Running::start(&mut command);
    assert!(sequencer.line().starts_with("serving"));
    // Stays until the end, which finds no room where a worker that has left kept it and nobody else works.
    let stays = worker(&region, "stays", &["--out", "/dev/null"]);
    let mut halfway = play("claim", &region, everybody);
    eventually("it stops", || is_stopped(halfway.pid()));
    let ended = play("try", &region, &[everybody, caller].concat()).end();
    print!("{}", ended.out);
    assert!(ended.code == Some(0) && ended.out.contains("poll: "), "{ended:?}");
    halfway.signal(Signal::SIGCONT);
    halfway.end().with(0);
    sequencer.stop().with(0);
    stays.end().with(0);
}

#[test]
fn calls_that_must_not_wait_do_not_wait_for_one_that_is_stopped_between_claim_and_commit() {
    nobody_waits(&[], &[]);
}

#[test]
fn nor_do_they_on_one_core_with_priority_over_all_others() {
    let one_core = ["taskset", "-c", "0"];
    let real_time = ["chrt", "-f", "10"];
    if !can_run_with(&one_core) {
        return println!("skipped: no taskset, or CPU 0 is not ours");
    }
    nobody_waits(&one_core, &[]);
    if can_run_with(&real_time) {
        nobody_waits(&one_core, &real_time);
    } else {
        println!("skipped: no chrt, or no right to real-time priorities");
    }
}

// ---- full regions -----------------------------------------------------------------------------------------

#[test]
fn submitters_that_wait_for_room_end_when_the_order_closes() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-cells", "64", "--producers", "4", "--workers", "1"]);
    let sequencer = sequence(&region);
    let mut held = worker(&region, "held", &[]);
    held.signal(Signal::SIGSTOP);
    let file = lines_of(&folder, "lines", 1000, 8);
    let submitters = ["a", "b", "c", "d"].map(|name| {
        Running::start(&mut seriatim(&["submit", &region, &file, "--name", name, "--batch", "4"]))
    });
    eventually("all four wait", || {
        let status = stat(&region);
        let rows = status["producers"].as_array().unwrap();
        rows.iter().filter(|row| row["full_s"].is_f64()).count() == 4
    });
    let started = Instant::now();
    let closing = thread::spawn(move || sequencer.stop());
    for submit in submitters {
        assert!(submit.end().with(1).err.contains("closed"));
    }
    println!("all four have ended {:?} after SIGTERM", started.elapsed());
    // The end finds room only if the worker takes it: else it says who does not.
    held.signal(Signal::SIGCONT);
    closing.join().unwrap();
    held.end().with(0);
}

#[test]
fn a_close_that_a_worker_keeps_out_names_that_worker() {
    let folder = scratch();
    let region = create(&folder, "region", &["--slots", "4", "--producers", "1", "--workers", "1"]);
    let sequencer = sequence(&region);
    let mut held = worker(&region, "held", &[]);
    held.signal(Signal::SIGSTOP);
    let mut producer = attach(&Region::attach(&region).unwrap(), "p");
    while producer.submit_deadline(0, b"x", Instant::now() + Duration::from_millis(20)).is_ok() {}
    let pid = held.pid().to_string();
    let ended = sequencer.stop().with(1);
    let line = ended.err.lines().last().unwrap();
    assert!(line.contains("left open") && line.contains("\"held\"") && line.contains(&pid), "{line}");
}

#[test]
fn a_worker_that_submits_into_a_full_region_gets_its_time_out_and_goes_on() {
    let config = Config::new().order_slots(4).lane_cells(4).lane_bytes(128).producers(2).workers(1);
    let region = Region::anonymous(&config).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut worker = join(&region, "w");
    let mut own = attach(&region, "of the worker");
    let mut other = attach(&region, "other");
    let time = Duration::from_millis(100);
    let fill = |producer: &mut Producer| {
        while producer.submit_deadline(0, b"x", Instant::now() + Duration::from_millis(20)).is_ok() {}
    };
    fill(&mut other);
    fill(&mut own);
    let (mut timed_out, mut mine) = (0, 0);
    let mut submitted = own.next_index();
    while mine < submitted || timed_out == 0 {
        let event = worker.recv_deadline(Instant::now() + NEVER).unwrap().expect("no hang");
        let Event::Command(command) = event else { continue };
        mine += u64::from(command.producer == own.number());
        // The handler: what it holds itself keeps the room.
        let until = Instant::now() + time;
        match own.submit_deadline(0, b"from the handler", until) {
            Ok(_) => submitted += u64::from(submitted < 20),
            Err(SubmitError::Full(Full { by })) => {
                assert!(Instant::now() >= until, "the time-out was cut short");
                assert!(matches!(by, HeldBy::Worker { name, .. } if name.to_string() == "w"), "{by}");
                timed_out += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!("{timed_out} time-outs in the handler, {mine} own commands received");
    sequencer.stop().unwrap();
}

#[test]
fn a_submitter_whose_lines_get_no_place_says_so_while_it_has_room_and_ends_when_the_region_is_lost() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut sequencer = sequence(&region);
    let mut submit = Running::start(seriatim(&["submit", &region]).stdin(Stdio::piped()));
    submit.feed(b"one\n");
    eventually("it is in the order", || stat(&region)["producers"][0]["next"] == 1);
    sequencer.signal(Signal::SIGKILL);
    sequencer.end();
    // Its input stays open and is silent from now on.
    submit.feed(b"two\nthree\n");
    let pid = submit.pid();
    eventually("both are in", || stat(&region)["tickets_waiting"].as_u64().unwrap() > 0);
    fs::remove_file(&region).unwrap();
    eventually("it ends by itself", || !runs(pid));
    let ended = submit.end().with(2);
    assert!(ended.err.contains("region unlinked") && ended.err.contains("after 3 commands"), "{ended:?}");
}

/// Also where all that was submitted has its place, and where only half a line has come.
#[test]
fn a_submitter_whose_input_is_silent_ends_when_the_region_is_lost() {
    for (input, acknowledged) in [("", 0), ("one\n", 1), ("one\nhalf a line", 1)] {
        for keep in [|_| 0, |mapped: u64| mapped / 2] {
            let folder = scratch();
            let region = create(&folder, "region", &[]);
            let sequencer = sequence(&region);
            let mut submit = silent_submitter(&region, input, acknowledged);
            let mapped = fs::metadata(&region).unwrap().len();
            let cut = keep(mapped);
            fs::File::options().write(true).open(&region).unwrap().set_len(cut).unwrap();
            let pid = submit.pid();
            eventually("it ends by itself", || !runs(pid));
            let said = format!("region truncated: mapped {mapped} bytes, the file has {cut} now");
            let plural = if acknowledged == 1 { "" } else { "s" };
            submit.end().with(2).saying(&[&said, &format!("after {acknowledged} command{plural}: ")]);
            assert!(sequencer.end().with(2).err.contains("region truncated"));
        }
    }
}

/// Whoever is attached goes on while somebody serves.
#[test]
fn a_submitter_whose_input_is_silent_ends_when_nobody_can_come_to_serve() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut sequencer = sequence(&region);
    let mut submit = silent_submitter(&region, "one\n", 1);
    let attached = Region::attach(&region).unwrap();
    fs::remove_file(&region).unwrap();
    // For the looks at which it is not to end.
    thread::sleep(Duration::from_secs(3));
    submit.feed(b"two\n");
    eventually("it goes on", || attached.snapshot().producers[0].next == 2);
    sequencer.signal(Signal::SIGKILL);
    sequencer.end();
    let pid = submit.pid();
    eventually("it ends by itself", || !runs(pid));
    submit.end().with(2).saying(&["region unlinked: nobody serves it", "after 2 commands"]);
}

/// A submitter with an input that stays open, with what it has been told in the order.
fn silent_submitter(region: &str, input: &str, acknowledged: u64) -> Running {
    let mut submit = Running::start(seriatim(&["submit", region]).stdin(Stdio::piped()));
    submit.feed(input.as_bytes());
    eventually("it is attached, and heard", || {
        let row = &stat(region)["producers"][0];
        row["alive"] == true && row["next"] == acknowledged
    });
    // Not for the test to pass, but for it to look at this: that it has seen that everything has its place, as nobody
    // else can see.
    thread::sleep(Duration::from_secs(2));
    submit
}

#[test]
fn a_line_that_had_no_room_in_a_ticket_waits_for_no_further_line() {
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-bytes", "4K"]);
    let sequencer = sequence(&region);
    // Up to half of the lane's bytes go into a ticket, so the third is read and held back.
    let lines: Vec<String> = ["a", "b", "c"].map(|letter| letter.repeat(900)).into();
    let mut submit = Running::start(seriatim(&["submit", &region]).stdin(Stdio::piped()));
    submit.feed((lines.join("\n") + "\n").as_bytes());
    eventually("all are in the order", || stat(&region)["producers"][0]["next"] == 3);
    submit.end().with(0);
    sequencer.stop().with(0);
}

#[test]
fn a_submitter_says_that_nobody_serves_and_goes_on_when_somebody_does() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut sequencer = sequence(&region);
    let (said, mut submit) = submitter_that_tells(&folder, &region);
    submit.feed(b"one\n");
    eventually("it is in the order", || stat(&region)["producers"][0]["next"] == 1);
    sequencer.signal(Signal::SIGKILL);
    sequencer.end();
    submit.feed(b"two\n");
    eventually("it says so", || {
        fs::read_to_string(&said).unwrap().contains("waiting for the order: no sequencer")
    });
    let sequencer = sequence(&region);
    submit.feed(b"three\n");
    submit.end().with(0);
    assert_eq!(stat(&region)["producers"][0]["next"], 3);
    sequencer.stop().with(0);
}

// ---- positions that age -----------------------------------------------------------------------------------

/// Sixteen producers in the smallest of everything, each stopped and let go on at random every millisecond.
#[test]
fn nothing_is_overwritten_or_lost_by_producers_that_stop_at_any_moment() {
    const PRODUCERS: usize = 16;
    let (commands, rounds) = if long() { (70_000, 3) } else { (250, 1) };
    let mut random = Random(seed());
    println!("seed {}", random.0);
    let (mut stops, mut checked) = (0, 0);
    for (slots, cells) in [(2, 2), (4, 2), (2, 4)].into_iter().cycle().take(3 * rounds) {
        let config = Config::new().order_slots(slots).lane_cells(cells).lane_bytes(1 << 14);
        let config = config.producers(PRODUCERS as u64).workers(2).ranks(2);
        let mut engine = Engine::with(format!("{slots} slots, {cells} cells, seed {}", random.0), &config);
        engine.set_goal(0);
        engine.start(Who::Sequencer(0), None);
        (0..2).for_each(|i| engine.start(Who::Worker(i), None));
        (0..PRODUCERS).for_each(|i| engine.start(Who::Producer(i), None));
        engine.await_all("everybody is attached", Engine::is_complete);
        engine.set_goal(commands);
        let mut stopped = [false; PRODUCERS];
        let started = Instant::now();
        while !engine.have_submitted(commands) {
            let who = random.below(PRODUCERS as u64) as usize;
            let signal = if stopped[who] { Signal::SIGCONT } else { Signal::SIGSTOP };
            engine.signal(Who::Producer(who), signal);
            stopped[who] = !stopped[who];
            stops += u64::from(stopped[who]);
            thread::sleep(Duration::from_millis(1));
            engine.check_others(None, "everything is submitted");
            assert!(started.elapsed() < 10 * NEVER * if long() { 10 } else { 1 }, "it does not end");
        }
        for who in (0..PRODUCERS).filter(|&who| stopped[who]) {
            engine.signal(Who::Producer(who), Signal::SIGCONT);
        }
        let done = engine.finish();
        assert_eq!(done.commands, commands * PRODUCERS as u64);
        checked += done.commands;
    }
    println!("{checked} commands checked, {stops} stops");
    assert!(stops > 0);
}

// ---- wake-ups that are none -------------------------------------------------------------------------------

/// Each party runs with every other futex call returning at once, done or not: waits end early, wake-ups are lost.
#[test]
fn futex_calls_that_return_early_or_do_nothing_change_nothing() {
    let folder = scratch();
    let trace = |of: &str| folder.path().join(format!("trace-{of}"));
    let injected = |of: &str, args: &[&str]| {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", "trace=futex", "-e", "inject=futex:retval=0:when=1+2", "-o"]);
        command.arg(trace(of)).arg(env!("CARGO_BIN_EXE_seriatim")).args(args).stdin(Stdio::null());
        command
    };
    if !injected("", &["--version"]).output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: no strace, or it may not trace");
    }
    let region = create(&folder, "region", &["--lane-cells", "16", "--slots", "8", "--workers", "2"]);
    let mut sequencer = Running::start(&mut injected("sequencer", &["sequence", &region]));
    assert!(sequencer.line().starts_with("serving"));
    let outs = ["x", "y"].map(|name| folder.path().join(name).display().to_string());
    let workers = outs.clone().map(|out| {
        let name = Path::new(&out).file_name().unwrap().to_str().unwrap();
        let worker = Running::start(&mut injected(
            name,
            &["worker", &region, "--name", name, "--out", &out, "--digest"],
        ));
        eventually("it joins", || row(&stat(&region), "workers", name)["attached"] == true);
        worker
    });
    let count = if long() { 20_000 } else { 300 };
    let mut submit = injected("producer", &["submit", &region, "--batch", "3"]);
    let mut submit = Running::start(submit.stdin(Stdio::piped()));
    let sent: Vec<String> = (0..count).map(|n| format!("line {n}")).collect();
    // With pauses in which everybody comes to sleep.
    for lines in sent.chunks(sent.len() / 10) {
        submit.feed((lines.join("\n") + "\n").as_bytes());
        thread::sleep(Duration::from_millis(20));
    }
    submit.end().with(0);
    let pid = children(sequencer.pid())[0];
    kill(Pid::from_raw(pid as i32), Signal::SIGTERM).unwrap();
    sequencer.end().with(0);
    let ends = workers.map(|worker| worker.end().with(0).err);
    // Everybody had calls that did nothing.
    for of in ["sequencer", "x", "y", "producer"] {
        let trace = fs::read_to_string(trace(of)).unwrap();
        let (calls, injected) = (trace.matches("futex(").count(), trace.matches("(INJECTED)").count());
        println!("{of}: {injected} of {calls} futex calls did nothing");
        assert!(injected > 0, "{of}: {trace}");
    }
    let place = |end: &str| end.split_once(": ").map(|(_, place)| place.to_string());
    assert_eq!(place(&ends[0]), place(&ends[1]));
    for out in outs {
        let got = fs::read_to_string(out).unwrap();
        assert!(
            got.lines().eq(sent.iter().map(String::as_str)),
            "{} lines of {}",
            got.lines().count(),
            sent.len()
        );
    }
}

// ---- more threads than cores ------------------------------------------------------------------------------

/// Ping-pong between two producers and two workers, in one process: how long a round takes, how often the processor
/// goes from one to another meanwhile, and how much of it that takes.
fn ping() {
    let rounds = if long() { 100_000 } else { 1_000u64 };
    let region = Region::anonymous(&Config::new().producers(2).workers(2)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut parties: Vec<_> = (0..2u16)
        .map(|me| {
            let worker = join(&region, &format!("w{me}"));
            (me, worker, attach(&region, &format!("p{me}")))
        })
        .collect();
    let cost = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let micros = |time: TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
        let switches = usage.voluntary_context_switches() + usage.involuntary_context_switches();
        [switches, micros(usage.user_time()) + micros(usage.system_time())]
    };
    let (started, before) = (Instant::now(), cost());
    thread::scope(|scope| {
        for (me, worker, producer) in &mut parties {
            scope.spawn(move || {
                let mut heard = 0;
                if *me == 0 {
                    producer.submit(0, b"").unwrap();
                }
                while heard < rounds {
                    let Event::Command(command) = worker.recv().unwrap() else { continue };
                    if command.kind != *me {
                        heard += 1;
                        producer.submit(*me, b"").unwrap();
                    }
                }
            });
        }
    });
    let (time, after) = (started.elapsed(), cost());
    let [switches, micros] = [0, 1].map(|of| (after[of] - before[of]) as f64 / rounds as f64);
    println!("\n{rounds} rounds in {time:?}, {:?} each", time / rounds as u32);
    println!("a round: {switches} switches {micros} us");
    drop(parties);
    sequencer.stop().unwrap();
}

#[test]
fn ping_pong_on_one_core_goes_on() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut rounds = Vec::new();
    for with in [&[][..], &["taskset", "-c", "0"]] {
        if !with.is_empty() && !can_run_with(with) {
            println!("skipped: no taskset, or CPU 0 is not ours");
            continue;
        }
        let ended = play("ping", &region, with).end().with(0);
        let said = ended.out.lines().find(|line| line.contains("rounds in")).map(String::from);
        println!("{with:?}: {}", said.unwrap_or_else(|| panic!("{ended:?}")));
        let round = ended.out.lines().find_map(|line| line.strip_prefix("a round: ")).unwrap();
        println!("{with:?}: a round takes {round} of processor time");
        let words: Vec<&str> = round.split(' ').collect();
        rounds.push([words[0], words[2]].map(|word| word.parse::<f64>().unwrap()));
    }
    // Not in time, which is the machine's: who waits gives way, instead of using up what it is given, and not again and
    // again.
    if let [all, one] = rounds[..] {
        assert!(one[0] < 20.0 * (all[0] + 1.0), "{one:?} on one core, {all:?} on all");
        assert!(one[1] < 20.0 * all[1] && one[1] < 2000.0, "{one:?} on one core, {all:?} on all");
    }
}
