//! Payloads that are too long for their lane, between real processes: they arrive whole, and the memory that they take
//! comes back, whoever is killed at whatever step.
//!
//! `SERIATIM_LONG=1` sends one of 4 GiB; in a release build, for four processes take the digest of all of it.

mod common;
mod engine;

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Tmpfs, attach, eventually, join, lacks, long, scratch};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seriatim::{
    Attached, Config, Event, JoinOptions, Producer, Region, Sequencer, SequencerConfig, SubmitError,
    Unmapped, Worker, WorkerError, payload_digest,
};

const PART: &str = "SERIATIM_SPILL_PART";
/// More than a sequencer gives back at once.
const LEN: usize = (5 << 20) + 17;
/// Commands that a part submits.
const COMMANDS: u64 = 3;

/// What the processes of a test do. Does nothing as a test.
#[test]
fn part() {
    let Ok(text) = env::var(PART) else { return };
    let [what, path, number] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("bad part {text:?}") };
    let region = Region::attach(path).unwrap();
    match what {
        "submit" => submit(&mut attach(&region, "p"), COMMANDS),
        "send" => send(&region, number.parse().unwrap()),
        "receive" => receive(&region, number),
        "serve" => {
            let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
            while !sequencer.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        "all" => all(&region),
        "cramped" => cramped(&region, number.parse().unwrap()),
        other => panic!("no part {other:?}"),
    }
}

/// A process that plays a part, killed or stopped at a point if there is one.
fn play(what: &str, region: &Region, number: impl ToString, crash: Option<&str>) -> Child {
    let mut command: Command = engine::this_program();
    command.env(PART, format!("{what} {} {}", region.path().display(), number.to_string()));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if let Some(crash) = crash {
        command.env("SERIATIM_CRASH", crash);
    }
    command.spawn().expect("this program can be run")
}

/// The bytes of a command: different ones in every page and for every index.
fn fill(room: &mut [u8], index: u64) {
    let block: Vec<u8> = (0..room.len().min(1 << 20)).map(|at| (at * 31 + at / 4096) as u8).collect();
    for (at, piece) in (0_u64..).zip(room.chunks_mut(1 << 20)) {
        piece.copy_from_slice(&block[..piece.len()]);
        let mark = (at << 16 | index).to_le_bytes();
        let len = piece.len().min(8);
        piece[..len].copy_from_slice(&mark[..len]);
    }
}

fn made(index: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN + index as usize];
    fill(&mut bytes, index);
    bytes
}

/// Submits what is not submitted yet, in both ways.
fn submit(producer: &mut Producer, goal: u64) {
    while producer.next_index() < goal {
        let index = producer.next_index();
        if index.is_multiple_of(2) {
            producer.submit_at(index, 1, &made(index)).unwrap();
        } else {
            let mut claim = producer.claim(1, LEN + index as usize).unwrap();
            fill(&mut claim, index);
            claim.commit().unwrap();
        }
    }
    producer.wait_sequenced(goal - 1).unwrap();
}

/// Everybody in one process: it ends when all is received and given back.
fn all(region: &Region) {
    let sequencer = Sequencer::spawn(region, SequencerConfig::new()).unwrap();
    let mut worker = join(region, "w");
    submit(&mut attach(region, "p"), COMMANDS);
    let mut received = 0;
    while received < COMMANDS {
        if let Event::Command(command) = worker.recv().unwrap() {
            assert!(command.payload == made(command.index));
            received += 1;
        }
    }
    while worker.poll().unwrap().is_some() {}
    eventually("all is given back", || taken(region) == 0);
    sequencer.stop().unwrap();
}

/// What the region takes in memory beyond its sections.
fn taken(region: &Region) -> u64 {
    (fs::metadata(region.path()).unwrap().blocks() * 512).saturating_sub(region.identity().file_bytes)
}

fn region(folder: &tempfile::TempDir) -> Region {
    let config = Config::new().producers(2).workers(4).lane_bytes(1 << 20);
    Region::create(folder.path().join("region"), &config).unwrap()
}

/// What a worker gets until it has had so many commands, or one with the last index that there will be.
fn take(worker: &mut Worker, until: u64) -> Vec<u64> {
    let mut indexes = Vec::new();
    while indexes.last() != Some(&(until - 1)) {
        if let Event::Command(command) = worker.recv().unwrap() {
            assert!(command.payload == made(command.index), "command {}", command.index);
            indexes.push(command.index);
        }
    }
    while worker.poll().unwrap().is_some() {}
    indexes
}

#[test]
fn a_producer_that_is_killed_at_any_step_of_it_leaves_nothing_and_what_it_submitted_arrives() {
    // And how many are submitted by then; of three the second is written in place.
    let points = [
        ("spill.claimed:1", 0),
        ("spill.claimed:2", 1),
        ("spill.reserved:1", 0),
        ("spill.reserved:3", 2),
        ("spill.written:1", 0),
        ("spill.written:2", 2),
        ("lane.claimed:2", 1),
        ("lane.filled:1", 0),
        ("ticket.in:1", 1),
        ("ticket.in:2", 2),
        ("submit.queued:1", 1),
        ("submit.done:2", 2),
    ];
    for (crash, whole) in points {
        let folder = scratch();
        let region = region(&folder);
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut worker = join(&region, "w");
        let ended = play("submit", &region, 0, Some(crash)).wait().unwrap();
        assert_eq!(ended.signal(), Some(9), "{crash}: {ended}");
        if whole > 0 {
            assert_eq!(take(&mut worker, whole), (0..whole).collect::<Vec<_>>(), "{crash}");
        }
        // Nobody comes after it.
        eventually(&format!("{crash} takes nothing"), || {
            while worker.poll().unwrap().is_some() {}
            taken(&region) == 0
        });
        let mut producer = attach(&region, "p");
        let expected = if whole > 0 { Attached::Resumed { next: whole } } else { Attached::New };
        assert_eq!(producer.attached(), expected, "{crash}");
        submit(&mut producer, COMMANDS);
        assert_eq!(take(&mut worker, COMMANDS), (whole..COMMANDS).collect::<Vec<_>>(), "{crash}");
        eventually("the rest is given back", || taken(&region) == 0);
        sequencer.stop().unwrap();
    }
}

#[test]
fn a_producer_that_stands_still_in_it_holds_up_nobody() {
    for point in ["spill.claimed", "spill.reserved", "spill.written", "ticket.in"] {
        let folder = scratch();
        let region = region(&folder);
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut worker = join(&region, "w");
        let mut standing = play("submit", &region, 0, Some(&format!("{point}:1:stop")));
        let pid = Pid::from_raw(standing.id() as i32);
        eventually("it stands", || common::is_stopped(standing.id()));
        let mut other = attach(&region, "other");
        submit(&mut other, COMMANDS);
        let mut seen = 0;
        while seen < COMMANDS {
            if let Event::Command(command) = worker.recv().unwrap() {
                seen += u64::from(command.producer == other.number());
            }
        }
        kill(pid, Signal::SIGCONT).unwrap();
        let mut left = COMMANDS - u64::from(point == "ticket.in");
        while left > 0 {
            if let Event::Command(command) = worker.recv().unwrap() {
                assert!(command.payload == made(command.index));
                left -= 1;
            }
        }
        assert!(standing.wait().unwrap().success());
        while worker.poll().unwrap().is_some() {}
        eventually("all is given back", || taken(&region) == 0);
        sequencer.stop().unwrap();
    }
}

#[test]
fn a_sequencer_that_is_killed_while_it_gives_back_is_gone_on_for() {
    for crash in ["spill.free:1", "spill.free:3", "spill.swept:1", "spill.swept:2", "free.released:5"] {
        let folder = scratch();
        let region = region(&folder);
        let mut serving = play("serve", &region, 0, Some(crash));
        let mut worker = join(&region, "w");
        let mut producer = attach(&region, "p");
        submit(&mut producer, COMMANDS);
        assert_eq!(take(&mut worker, COMMANDS), [0, 1, 2]);
        let ended = serving.wait().unwrap();
        assert_eq!(ended.signal(), Some(9), "{crash}: {ended}");
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        eventually(&format!("{crash}: all is given back"), || taken(&region) == 0);
        submit(&mut producer, 2 * COMMANDS);
        assert_eq!(take(&mut worker, 2 * COMMANDS), [3, 4, 5]);
        eventually("all is given back again", || taken(&region) == 0);
        let found = region.verify();
        assert!(found.is_sound(), "{crash}: {found:?}");
        sequencer.stop().unwrap();
    }
}

#[test]
fn when_everybody_is_killed_who_comes_next_gets_what_was_not_passed_and_the_rest_comes_back() {
    let points = [
        "spill.claimed:1",
        "spill.claimed:3",
        "spill.reserved:2",
        "spill.written:1",
        "lane.filled:4",
        "ticket.in:2",
        "submit.queued:3",
        "publish.ordered:4",
        "spill.free:1",
        "spill.free:9",
        "spill.swept:1",
        "spill.swept:3",
    ];
    for crash in points {
        let folder = scratch();
        let region = region(&folder);
        let ended = play("all", &region, 0, Some(crash)).wait().unwrap();
        assert_eq!(ended.signal(), Some(9), "{crash}: {ended}");
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut worker = join(&region, "w");
        let mut producer = attach(&region, "p");
        let next = producer.next_index();
        submit(&mut producer, COMMANDS + 1);
        let got = take(&mut worker, COMMANDS + 1);
        let expected: Vec<u64> = (got[0]..=COMMANDS).collect();
        assert!(got == expected && got[0] <= next, "{crash}: {got:?}, {next} were submitted");
        eventually(&format!("{crash}: all is given back"), || taken(&region) == 0);
        let found = region.verify();
        assert!(found.is_sound(), "{crash}: {found:?}");
        sequencer.stop().unwrap();
    }
}

#[test]
fn what_there_is_no_room_for_is_refused_with_both_sizes_and_leaves_nothing() {
    let Some(small) = Tmpfs::mount("size=64m") else { return };
    let config = Config::new().producers(1).workers(1).lane_bytes(1 << 20);
    let region = Region::create(small.path("region"), &config).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut worker = join(&region, "w");
    let mut producer = attach(&region, "p");
    let used = small.used();
    let large = vec![7; 100 << 20];
    let wanted = large.len() as u64;
    for _ in 0..3 {
        // At once too: what was refused before takes no room, also before a sequencer has seen that.
        for refused in [
            producer.submit(0, &large),
            producer.claim(0, large.len()).map(|_| 0),
            producer.try_submit(0, &large),
            producer.try_claim(0, large.len()).map(|_| 0),
        ] {
            let Err(error @ SubmitError::NoSpace { .. }) = refused else { panic!("{refused:?}") };
            let free = (64 << 20) - used.0;
            assert_eq!(error, SubmitError::NoSpace { wanted, free });
            assert!(
                [wanted, free].iter().all(|size| error.to_string().contains(&size.to_string())),
                "{error}"
            );
            assert_eq!(small.used(), used, "something was left behind");
        }
    }
    // As long as it is the payloads before that take the room, it is waited for.
    let part = vec![8; 40 << 20];
    producer.submit(0, &part).unwrap();
    let full = producer.try_submit(0, &part);
    assert!(matches!(full, Err(SubmitError::Full(_))), "{full:?}");
    assert_eq!(region.snapshot().producers[0].spilled.count, 1, "who waits takes what there is from others");
    let soon = Instant::now() + Duration::from_millis(20);
    let full = producer.submit_deadline(0, &part, soon);
    assert!(matches!(full, Err(SubmitError::Full(_))), "{full:?}");
    let submitting = thread::spawn(move || producer.submit(0, &part));
    let mut seen = 0;
    while seen < 2 {
        if let Event::Command(command) = worker.recv().unwrap() {
            assert!(command.payload.len() == 40 << 20 && command.payload.iter().all(|&byte| byte == 8));
            seen += 1;
        }
    }
    submitting.join().unwrap().unwrap();
    while worker.poll().unwrap().is_some() {}
    eventually("all is given back", || small.used() == used);
    sequencer.stop().unwrap();
}

#[test]
fn a_limit_to_the_length_of_files_is_an_error_and_no_signal() {
    let folder = scratch();
    let region = region(&folder);
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let path = region.path().display().to_string();
    let input = folder.path().join("line");
    fs::write(&input, vec![b'x'; LEN]).unwrap();
    let mut command = Command::new("sh");
    let script = "ulimit -f 8192 && exec \"$0\" submit \"$1\" \"$2\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_seriatim"), &path]).arg(&input);
    let said = command.output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(2), "{text}");
    assert!(text.contains("reserve") && text.contains("File too large"), "{text}");
    assert_eq!(taken(&region), 0);
    sequencer.stop().unwrap();
}

/// Receives and submits with less address space than a payload takes, and then with enough.
fn cramped(region: &Region, len: usize) {
    let mut worker = join(region, "cramped");
    let mut producer = attach(region, "p");
    while worker.poll().unwrap().is_some() {}
    producer.submit(7, &vec![9; len]).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, size() + (len / 2) as u64, hard).unwrap();
    // In vain, and as often as it tries.
    for _ in 0..2 {
        let refused = worker.recv().map(drop);
        let Err(WorkerError::Unmapped(Unmapped { bytes, .. })) = refused else { panic!("{refused:?}") };
        assert_eq!(bytes, len as u64);
        let claimed = producer.try_claim(7, len).map(drop);
        let Err(SubmitError::Spill { what: "map", .. }) = claimed else { panic!("{claimed:?}") };
    }
    eventually("what was claimed is given back", || taken(region) == (len as u64).next_multiple_of(4096));
    producer.submit(7, b"short").unwrap();
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    for expected in [&vec![9; len][..], b"short"] {
        let Event::Command(command) = worker.recv().unwrap() else { panic!("no command") };
        assert!(command.payload == expected);
    }
    assert!(worker.poll().unwrap().is_none());
    eventually("all is given back", || taken(region) == 0);
}

/// Bytes of address space that this process has.
fn size() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn who_has_no_address_space_for_it_stays_where_it_is_and_goes_on_later() {
    let folder = scratch();
    let region = region(&folder);
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let said = play("cramped", &region, 256 << 20, None).wait_with_output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    sequencer.stop().unwrap();
}

// ---- one that is larger than a lane could ever be ---------------------------------------------------------

/// Submits one command and says its digest.
fn send(region: &Region, len: usize) {
    let mut producer = attach(region, "sender");
    let mut claim = producer.claim(7, len).unwrap();
    fill(&mut claim, 0);
    let digest = payload_digest(&claim);
    let index = claim.commit().unwrap();
    producer.wait_sequenced(index).unwrap();
    println!("\nsent {len} {digest:x}");
}

/// Receives one command and says its digest; then what this process has in memory of the region, when it has passed it.
fn receive(region: &Region, name: &str) {
    let options = JoinOptions::new().timeout(common::ANSWER).check_payloads(true);
    let mut worker = Worker::join_with(region, name, &options).unwrap();
    loop {
        match worker.recv() {
            Ok(Event::Command(command)) if command.kind == 7 => {
                println!("\ngot {} {:x}", command.payload.len(), payload_digest(command.payload));
            }
            // The end, for which what came before is unmapped.
            Ok(Event::Command(_)) => break,
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
    println!("\nshared {}", shared());
}

/// Bytes of shared memory that are in this process's page tables.
fn shared() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn one_of_4_gib_arrives_in_four_processes_and_all_it_took_comes_back() {
    let len: u64 = if long() { 4 << 30 } else { 64 << 20 };
    let folder = scratch();
    if let Some(why) = lacks(folder.path(), len + (1 << 30)) {
        return println!("skipped: {why}");
    }
    let region = region(&folder);
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let workers: Vec<Child> = (0..4).map(|n| play("receive", &region, format!("w{n}"), None)).collect();
    eventually("all have joined", || {
        region.snapshot().workers.iter().filter(|w| w.party.attached).count() == 4
    });
    let before = available(folder.path());
    let started = Instant::now();
    let sent = play("send", &region, len, None).wait_with_output().unwrap();
    assert!(sent.status.success());
    let sent = String::from_utf8(sent.stdout).unwrap();
    let digest = sent.lines().find_map(|line| line.strip_prefix(&format!("sent {len} "))).expect("a digest");
    let mut producer = attach(&region, "p");
    let next = producer.submit(1, b"the end").unwrap();
    producer.wait_sequenced(next).unwrap();
    let got = format!("got {len} {digest}");
    for worker in workers {
        let said = worker.wait_with_output().unwrap();
        let text = String::from_utf8(said.stdout).unwrap();
        assert!(said.status.success() && text.lines().any(|line| line == got), "{text}");
        let shared: u64 = text.lines().find_map(|l| l.strip_prefix("shared ")).unwrap().parse().unwrap();
        assert!(shared <= region.identity().file_bytes, "{shared} bytes are mapped yet");
    }
    eventually("its pages come back", || taken(&region) == 0);
    // Of the file system, which others use as well.
    eventually("its room comes back", || available(folder.path()) + (len / 2) > before);
    println!("{len} bytes to 4 processes and back in {:.1} s", started.elapsed().as_secs_f64());
    assert_eq!(region.snapshot().producers.iter().map(|p| p.spilled.count).sum::<u64>(), 0);
    sequencer.close().unwrap();
}

/// Bytes that can be had on a file system.
fn available(folder: &std::path::Path) -> u64 {
    let said = Command::new("df").args(["-B1", "--output=avail"]).arg(folder).output().unwrap();
    String::from_utf8(said.stdout).unwrap().lines().nth(1).unwrap().trim().parse().unwrap()
}
