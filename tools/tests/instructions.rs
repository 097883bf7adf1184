//! Size does not matter to the sequencer: it executes the same instructions for a burst of 1 MiB commands as
//! for one of 64-byte commands, and fewer for each command the more of them a ticket holds.
//!
//! Counted by callgrind, which is repeatable to the instruction, where valgrind is installed. The counted
//! process is this test program itself, told by the environment what to do; what is counted is what
//! `counted_turn` calls.

use std::env;
use std::process::Command;

use seriatim::{Config, Producer, Region, Sequencer, Worker};

const DRIVE: &str = "SERIATIM_DRIVE";
/// Bursts that are counted; each is queued whole before the sequencer takes its turn.
const BURSTS: u64 = 2;
/// Commands of a burst.
const COMMANDS: usize = 16;

#[test]
fn the_sequencers_work_is_flat_in_the_size_of_payloads() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return;
    }
    let small = instructions(64, 1);
    for bytes in [0, 4096, 1 << 20] {
        assert_eq!(instructions(bytes, 1), small, "payloads of {bytes} bytes, instructions for a burst");
    }
    let batched = instructions(64, COMMANDS);
    assert_eq!(instructions(1 << 20, COMMANDS), batched);
    let each = |count: u64| count as f64 / (BURSTS * COMMANDS as u64) as f64;
    println!("instructions of the sequencer for a command, in turns of {COMMANDS}");
    println!("  a ticket for each   {:.1}", each(small));
    println!("  {COMMANDS} for a ticket     {:.1}", each(batched));
    assert!(batched < small);
}

/// Instructions of the sequencer's turns for all bursts, with `batch` commands for a ticket.
fn instructions(bytes: usize, batch: usize) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("callgrind");
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted_turn*", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe().unwrap())
        .args(["--exact", "drive", "--test-threads=1"])
        .env(DRIVE, format!("{bytes} {batch}"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report = std::fs::read_to_string(out).unwrap();
    let summary = report.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
    let count = summary.trim().parse().unwrap();
    assert!(count > 0, "nothing was counted");
    count
}

/// Submits bursts and lets the sequencer take its turns; the counted process. Does nothing as a test.
#[test]
fn drive() {
    let Ok(what) = env::var(DRIVE) else { return };
    let (bytes, batch) = what.split_once(' ').unwrap();
    let (bytes, batch): (usize, usize) = (bytes.parse().unwrap(), batch.parse().unwrap());

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
    let mut received = 0;
    for _ in 0..BURSTS {
        for _ in 0..COMMANDS / batch {
            producer.try_submit_batch(&commands).unwrap();
        }
        assert_eq!(counted_turn(&mut sequencer), COMMANDS as u64);
        while let Some(event) = worker.poll().unwrap() {
            received += u64::from(matches!(event, seriatim::Event::Command(_)));
        }
    }
    assert_eq!(received, BURSTS * COMMANDS as u64);
}

#[inline(never)]
fn counted_turn(sequencer: &mut Sequencer) -> u64 {
    sequencer.poll(64).unwrap().commands
}
