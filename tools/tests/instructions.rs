//! What a command costs: instructions of the producer, the sequencer and a worker, counted by callgrind, which is
//! repeatable to the instruction, where valgrind is installed. Size does not matter to the sequencer, nor to a worker
//! before it reads. And no system call: the same work in a process that the kernel would kill for one.
//!
//! The process that is looked at is this test program itself, told by the environment what to do; what is counted is
//! what `counted_submit`, `counted_turn` and `counted_poll` call.

use std::env;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use seriatim::{Config, Event, Producer, Region, Sequencer, Worker};

const DRIVE: &str = "SERIATIM_DRIVE";
/// Bursts that are counted; each is queued whole before the sequencer takes its turn.
const BURSTS: u64 = 2;
/// Commands of a burst.
const COMMANDS: usize = 16;
/// What the process prints that has made no system call.
const DONE: &str = "no system call";

#[test]
fn the_work_of_sequencer_and_worker_is_flat_in_the_size_of_payloads() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    println!("instructions for a command of 32 bytes; in turns of {COMMANDS}");
    println!("  of the         each alone   {COMMANDS} a ticket");
    for (part, flat) in [("submit", false), ("turn", true), ("poll", true)] {
        let [single, batched] = [1, COMMANDS].map(|batch| instructions(part, 32, batch));
        let each = |count: u64| count as f64 / (BURSTS * COMMANDS as u64) as f64;
        println!("  {part:<12} {:>12.1} {:>12.1}", each(single), each(batched));
        assert!(batched <= single, "{part}: a batch costs more than its commands");
        // A payload of more than 40 bytes lies in the bytes of the lane: another place, the same for every size.
        let outside = instructions(part, 64, 1);
        for bytes in [4096, 1 << 20] {
            if flat {
                assert_eq!(instructions(part, bytes, 1), outside, "{part} with payloads of {bytes} bytes");
            }
        }
        if part == "turn" {
            assert_eq!(instructions(part, 0, 1), outside);
            assert_eq!(instructions(part, 1 << 20, COMMANDS), batched);
        }
    }
}

/// Instructions of a part for all bursts, with `batch` commands for a ticket.
fn instructions(part: &str, bytes: usize, batch: usize) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("callgrind");
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind").arg(format!("--toggle-collect=*counted_{part}*")).arg("--quiet");
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    let run = drive_in(valgrind, &format!("{bytes} {batch} {BURSTS} counted"));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report = std::fs::read_to_string(out).unwrap();
    let summary = report.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
    let count = summary.trim().parse().unwrap();
    assert!(count > 0, "nothing was counted");
    count
}

#[test]
fn submit_turn_and_poll_make_no_system_call() {
    for batch in [1, COMMANDS] {
        let run = drive_in(Command::new("env"), &format!("64 {batch} 3 strict"));
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(said.contains(DONE), "{}: {said} {}", run.status, String::from_utf8_lossy(&run.stderr));
        // The first call after the work does what one in the midst of it would have done.
        assert_eq!(run.status.signal(), Some(libc::SIGSYS), "nothing watched for system calls");
    }
}

fn drive_in(mut command: Command, what: &str) -> Output {
    command.arg(env::current_exe().unwrap());
    command.args(["--exact", "drive", "--nocapture", "--test-threads=1"]).env(DRIVE, what).output().unwrap()
}

/// Submits bursts, lets the sequencer take its turns and the worker receive: the process that is looked at. Does nothing
/// as a test.
#[test]
fn drive() {
    let Ok(what) = env::var(DRIVE) else { return };
    let words: Vec<&str> = what.split(' ').collect();
    let (bytes, batch): (usize, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let bursts: u64 = words[2].parse().unwrap();

    // Room for all, so that what is counted is ordering and not the search for room; and pages that are not
    // touched before they are used, for most never are.
    let config = Config::new().producers(1).workers(1).lane_bytes(256 << 20).pretouch(false);
    let region = Region::anonymous(&config).unwrap();
    let mut sequencer = Sequencer::open(&region).unwrap();
    let attaching = std::thread::spawn({
        let region = region.clone();
        move || (Worker::join(&region, "w").unwrap(), Producer::attach(&region, "p").unwrap())
    });
    while !attaching.is_finished() {
        sequencer.poll(16).unwrap();
        std::thread::yield_now();
    }
    let (mut worker, mut producer) = attaching.join().unwrap();
    // A sequencer that has just begun has its first look at the clock and at the living behind it, and the next
    // one many turns ahead: what is counted lies between.
    drop(sequencer);
    let mut sequencer = Sequencer::open(&region).unwrap();
    for _ in 0..4 {
        sequencer.poll(64).unwrap();
    }
    while worker.poll().unwrap().is_some() {}

    let payload = vec![7; bytes];
    let commands = vec![(0, &payload[..]); batch];
    for burst in 0..bursts {
        // The first one touches pages, which takes no system call but is none of the matter.
        if burst == 1 && words[3] == "strict" {
            forbid_system_calls();
        }
        (0..COMMANDS / batch).for_each(|_| counted_submit(&mut producer, &commands));
        assert_eq!(counted_turn(&mut sequencer), COMMANDS as u64);
        assert_eq!(counted_poll(&mut worker), COMMANDS as u64);
    }
    println!("{DONE}");
    std::io::stdout().flush().unwrap();
}

/// From here on the kernel kills this process for any system call but the one that prints.
fn forbid_system_calls() {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
    let machine = TargetArch::try_from(env::consts::ARCH).expect("a machine that can filter system calls");
    let printing = std::iter::once((libc::SYS_write, Vec::new())).collect();
    let filter =
        SeccompFilter::new(printing, SeccompAction::KillProcess, SeccompAction::Allow, machine).unwrap();
    apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

#[inline(never)]
fn counted_submit(producer: &mut Producer, commands: &[(u16, &[u8])]) {
    match commands {
        [(kind, payload)] => drop(producer.try_submit(*kind, payload).unwrap()),
        _ => drop(producer.try_submit_batch(commands).unwrap()),
    }
}

#[inline(never)]
fn counted_turn(sequencer: &mut Sequencer) -> u64 {
    sequencer.poll(64).unwrap().commands
}

/// Receives all that is there, and how many commands that were.
#[inline(never)]
fn counted_poll(worker: &mut Worker) -> u64 {
    let mut received = 0;
    worker.poll_batch(64, |event| received += u64::from(matches!(event, Event::Command(_)))).unwrap();
    received
}
