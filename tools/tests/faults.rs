//! In the steady state no party takes a page fault: all of what it uses is in its page tables since it attached.
//!
//! Faults are counted by the kernel, for each thread, from the first command on and several times round every ring. A
//! part is played by this test program itself, told by the environment which; what is not the region (code, stacks,
//! heap) is entered before the count begins.

mod common;

use std::env;
use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

use common::*;
use nix::sys::resource::{UsageWho, getrusage};
use seriatim::{Config, Event, Geometry, Region, Sequencer, SequencerConfig, SequencerHandle};

const PART: &str = "SERIATIM_FAULTS_PART";

const SMALL: &[u8] = &[7; 32];
const LARGE: &[u8] = &[9; 64 << 10];
const COMMANDS: u64 = 100_000 + 2_000;
/// One command in so many is a large one.
const LARGE_EACH: u64 = 51;

/// Rings of several pages each, more than one fault enters, and so small that they are gone round often: a run has a
/// quarter of a lane at most, and the queue of tickets has fewer than twice as many words as there are cells.
fn config() -> Config {
    Config::new().producers(64).workers(2).order_slots(512).lane_cells(256).lane_bytes(256 << 10)
}

fn payload(index: u64) -> &'static [u8] {
    if index.is_multiple_of(LARGE_EACH) { LARGE } else { SMALL }
}

#[test]
fn threads_take_no_page_fault_in_the_steady_state() {
    let folder = scratch();
    let path = folder.path().join("region");
    let region = Region::create(&path, &config()).unwrap();
    takes_none(&mut [playing(&format!("all {}", path.display()))], &region);
}

#[test]
fn processes_take_no_page_fault_in_the_steady_state() {
    let folder = scratch();
    let path = folder.path().join("region");
    let region = Region::create(&path, &config()).unwrap();
    let parts = ["sequencer", "worker", "producer"];
    takes_none(&mut parts.map(|part| playing(&format!("{part} {}", path.display()))), &region);
}

/// Starts these processes one after the other, ends the first one last, and looks at what they counted.
fn takes_none(commands: &mut [Command], region: &Region) {
    let mut parts: Vec<Running> = Vec::new();
    for command in commands {
        let mut part = Running::start(command);
        said(&mut part, "ready");
        parts.push(part);
    }
    let mut counts = String::new();
    for part in parts.iter_mut().rev() {
        // Who has something to wait for is told that the others are done.
        part.feed(b"\n");
        counts += &said(part, "faults");
    }
    parts.into_iter().rev().for_each(|part| drop(part.end().with(0)));
    println!("page faults:{counts}");
    assert_eq!(counts, " producer 0 worker 0 sequencer 0");

    let Geometry { lane_cells, lane_bytes, order_slots, producers, .. } = region.geometry();
    let (runs, bytes) = (COMMANDS / (lane_cells / 4), COMMANDS / LARGE_EACH * LARGE.len() as u64);
    let rounds = [runs / order_slots, COMMANDS / (2 * producers * lane_cells), bytes / lane_bytes];
    assert!(rounds.iter().all(|&rounds| rounds >= 3), "too few rounds of order, tickets, bytes: {rounds:?}");
}

/// What follows a word at the beginning of a line that has to come.
#[track_caller]
fn said(part: &mut Running, word: &str) -> String {
    loop {
        let line = part.line();
        if let Some(rest) = line.strip_prefix(word) {
            return rest.to_string();
        }
        assert!(part.has_output() || runs(part.pid()), "it ended before it was {word}: {line}");
    }
}

/// This program, to play a part.
fn playing(part: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "part", "--nocapture"]).env(PART, part).stdin(Stdio::piped());
    command
}

#[test]
fn part() {
    let Ok(told) = env::var(PART) else { return };
    let (part, path) = told.split_once(' ').unwrap();
    let region = Region::attach(path).unwrap();
    let ready = || {
        enter_all_else();
        // A line of its own, after what the test harness has begun.
        println!("\nready");
    };
    match part {
        "sequencer" => {
            let (sequencer, before) = serve(&region, ready);
            io::stdin().read_line(&mut String::new()).unwrap();
            println!("faults sequencer {}", faults_of_sequencer() - before);
            sequencer.stop().unwrap();
        }
        "worker" => println!("faults worker {}", work(&region, ready)),
        "producer" => println!("faults producer {}", produce(&region, ready)),
        _ => all(&region),
    }
}

/// All parties as threads of one process.
fn all(region: &Region) {
    let (attached, go) = (Barrier::new(3), Barrier::new(3));
    let wait = || {
        attached.wait();
        go.wait();
    };
    let (sequencer, _) = serve(region, || ());
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(region, wait));
        let producer = scope.spawn(|| produce(region, wait));
        attached.wait();
        enter_all_else();
        println!("\nready");
        let before = faults_of_sequencer();
        go.wait();
        let (producer, worker) = (producer.join().unwrap(), worker.join().unwrap());
        let sequencer = faults_of_sequencer() - before;
        println!("faults producer {producer} worker {worker} sequencer {sequencer}");
    });
    sequencer.stop().unwrap();
}

fn serve(region: &Region, ready: impl FnOnce()) -> (SequencerHandle, u64) {
    let sequencer = Sequencer::spawn(region, SequencerConfig::new()).unwrap();
    ready();
    (sequencer, faults_of_sequencer())
}

/// Submits all commands; the page faults that this thread took for it.
fn produce(region: &Region, ready: impl FnOnce()) -> u64 {
    let mut producer = attach(region, "p");
    ready();
    let before = faults();
    for index in 0..COMMANDS {
        assert_eq!(producer.submit(0, payload(index)), Ok(index));
    }
    producer.wait_sequenced(COMMANDS - 1).unwrap();
    faults() - before
}

/// Receives all commands, reads every byte and reports each; the page faults that this thread took for it.
fn work(region: &Region, ready: impl FnOnce()) -> u64 {
    let mut worker = join(region, "w");
    ready();
    let before = faults();
    let mut next = 0;
    while next < COMMANDS {
        if let Event::Command(command) = worker.recv().unwrap() {
            assert!(command.index == next && command.payload == payload(next), "command {next}");
            next += 1;
            worker.report(next).unwrap();
        }
    }
    faults() - before
}

/// Page faults that this thread has taken.
fn faults() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    (usage.minor_page_faults() + usage.major_page_faults()) as u64
}

/// Page faults that the thread of the sequencer in this process has taken.
fn faults_of_sequencer() -> u64 {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let mut named = threads.filter(|path| fs::read_to_string(path.join("comm")).unwrap() == "seriatim-seq\n");
    let thread = named.next().expect("the sequencer's thread goes by this name");
    let stat = fs::read_to_string(thread.join("stat")).unwrap();
    // After the name in brackets come state (3), …, minor faults (10), …, major faults (12).
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let number = |field: usize| fields[field - 3].parse::<u64>().unwrap();
    number(10) + number(12)
}

/// Enters all that this process maps and that is not shared, so that only the region can fault.
fn enter_all_else() {
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (addresses, rest) = line.split_once(' ').unwrap();
        let (start, end) = addresses.split_once('-').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        let how = match rest.as_bytes() {
            [b'r', b'w', _, b'p', ..] => libc::MADV_POPULATE_WRITE,
            [b'r', _, _, b'p', ..] => libc::MADV_POPULATE_READ,
            _ => continue,
        };
        let (start, end) = (address(start), address(end));
        // SAFETY: it changes nothing but what is in the page tables. What cannot be entered ([vvar]) takes no faults
        // either, or the test would fail.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, how) };
    }
}
