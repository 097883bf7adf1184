//! What a command costs: instructions of the producer, the sequencer, a worker and the journal, counted by callgrind, which is
//! repeatable to the instruction, where valgrind is installed; compared with those of `benches/instructions.txt`. Size
//! does not matter to the sequencer, nor to a worker before it reads. And no system call: the same work in a process that
//! the kernel would kill for one.
//!
//! The process that is looked at is this test program itself, told by the environment what to do; what is counted is
//! what `counted_submit`, `counted_turn`, `counted_poll` and `counted_journal` call.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use serde::{Deserialize, Serialize};
use seriatim::journal::{Journal, JournalOptions, SyncPolicy};
use seriatim::{Config, Event, Producer, Region, Sequencer, Worker};

const DRIVE: &str = "SERIATIM_DRIVE";
/// Commands of a burst that is looked at for its size.
const COMMANDS: usize = 16;
/// What the process prints that has made no system call.
const DONE: &str = "no system call";

/// What the process does that is looked at: bursts, each queued whole before the sequencer takes its turn, and the turn
/// whole before the workers poll.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Drive<'a> {
    /// Of each payload.
    bytes: usize,
    /// Commands of a ticket.
    batch: usize,
    /// Tickets of a burst.
    tickets: usize,
    /// Bursts for one sequencer. It looks at the clock when it begins, and again after 64 turns: between is what
    /// depends on nothing else, so this is at most 32.
    bursts: usize,
    /// Sequencers, one after the other.
    sequencers: usize,
    workers: u64,
    /// Cells of the lane: when a quarter of them is taken, the sequencer looks at the gates.
    cells: u64,
    digest: &'a str,
    /// Rooms are claimed and not written: payloads of any size cost nothing.
    unwritten: bool,
    /// Workers poll one at a time.
    one_by_one: bool,
    /// A journal without syncs writes all of it.
    journal: bool,
    /// The kernel is to kill it for a system call after the first burst.
    strict: bool,
}

impl Drive<'static> {
    /// One that is looked at for what size, batches or workers do.
    const SHORT: Self = Drive {
        bytes: 32,
        batch: 1,
        tickets: COMMANDS,
        bursts: 2,
        sequencers: 1,
        workers: 1,
        cells: 4096,
        digest: "payload",
        unwritten: false,
        one_by_one: false,
        journal: false,
        strict: false,
    };
    /// One that is long enough for the sequencer to free what was passed as often as it does in the long run.
    const LONG: Self = Drive { tickets: 32, bursts: 32, sequencers: 2, ..Drive::SHORT };

    /// So many commands in one ticket for each burst.
    const fn batched(self, batch: usize) -> Self {
        Drive { batch, tickets: 1, ..self }
    }

    fn commands(&self) -> usize {
        self.batch * self.tickets * self.bursts * self.sequencers
    }
}

// ---- the figures that are committed -----------------------------------------------------------------------

/// What the figures are of: a part, and how it is driven.
const FIGURES: [(&str, &str, Drive<'static>); 11] = [
    ("submit, one at a time", "submit", Drive::LONG),
    ("submit, 32 a batch", "submit", Drive::LONG.batched(32)),
    ("submit, 32 of 256 bytes a batch", "submit", Drive { bytes: 256, ..Drive::LONG.batched(32) }),
    ("sequence, one ticket a turn", "turn", Drive { tickets: 1, sequencers: 64, ..Drive::LONG }),
    ("sequence, 32 tickets a turn", "turn", Drive::LONG),
    ("sequence, one ticket of 32 a turn", "turn", Drive::LONG.batched(32)),
    ("sequence, 32 tickets of 32 a turn", "turn", Drive { batch: 32, bursts: 2, ..Drive::LONG }),
    ("worker, polling one at a time", "poll", Drive { one_by_one: true, ..Drive::LONG.batched(32) }),
    ("worker, polling 32 at a time", "poll", Drive::LONG.batched(32)),
    ("journal", "journal", Drive { journal: true, batch: 32, bursts: 2, ..Drive::LONG }),
    (
        "journal, 256 bytes",
        "journal",
        Drive { bytes: 256, journal: true, batch: 32, bursts: 2, ..Drive::LONG },
    ),
];
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/instructions.txt");
/// Set to write the file anew.
const RENEW: &str = "SERIATIM_RENEW";
/// More than a figure may grow.
const GROWN: f64 = 1.05;

#[test]
fn no_figure_has_grown_by_more_than_a_twentieth() {
    if !has_valgrind() {
        return println!("skipped: valgrind is not installed");
    }
    if cfg!(any(debug_assertions, feature = "crash-points")) {
        return println!("skipped: the figures are those of a release build without crash points");
    }
    let (with, found) = (built_with(), figures());
    let table = render(&with, &found);
    println!("{table}");
    if env::var_os(RENEW).is_some() {
        return fs::write(FILE, table).unwrap();
    }
    let committed = fs::read_to_string(FILE).unwrap();
    let committed_with = committed.lines().find_map(|line| line.strip_prefix(WITH)).unwrap();
    if committed_with != with {
        return println!("not compared: committed are those of {committed_with}");
    }
    let grown = compare(&found, &committed);
    assert!(grown.is_empty(), "more instructions for a command:\n{}", grown.join("\n"));
}

/// What a figure that was not committed is told from one that was by, and a fall from a growth.
#[test]
fn a_figure_that_has_grown_is_named_with_both_numbers() {
    let committed = render("", &[("a", [100.0, 10.0]), ("b", [1.0, 1.0])]);
    assert!(compare(&[("a", [104.9, 10.4]), ("b", [0.5, 1.0])], &committed).is_empty());
    let grown = compare(&[("a", [106.0, 10.0]), ("c", [1.0, 1.0])], &committed);
    assert_eq!(grown.len(), 2);
    assert_eq!(grown[0], "a, digest payload: 106.00, committed 100.00");
    assert_eq!(grown[1], "c: not committed");
}

const WITH: &str = "# with ";
const DIGESTS: [&str; 2] = ["payload", "off"];

/// What the counts depend on beside the source: hot paths are compiled by this, and digest and copies choose theirs by
/// the processor.
fn built_with() -> String {
    let version = Command::new("rustc").arg("--version").output().unwrap().stdout;
    #[cfg(target_arch = "x86_64")]
    let vectors = if is_x86_feature_detected!("avx2") { "AVX2" } else { "SSE2" };
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = "its vectors";
    format!("{}, {} with {vectors}", String::from_utf8_lossy(&version).trim(), env::consts::ARCH)
}

/// A command's instructions with each digest.
fn figures() -> Vec<(&'static str, [f64; 2])> {
    let count = |part, drive: Drive<'static>| instructions(part, drive) as f64 / drive.commands() as f64;
    let both = |(name, part, drive)| (name, DIGESTS.map(|digest| count(part, Drive { digest, ..drive })));
    FIGURES.map(both).into()
}

fn render(with: &str, figures: &[(&str, [f64; 2])]) -> String {
    let mut table = String::from(
        "# Instructions for a command, of 32 bytes where nothing else is said; written by `benches/instructions --renew`\n",
    );
    writeln!(table, "{WITH}{with}").unwrap();
    writeln!(table, "{:<36} {:>10} {:>10}", "# digest", DIGESTS[0], DIGESTS[1]).unwrap();
    for (name, [payload, off]) in figures {
        writeln!(table, "{name:<36} {payload:>10.2} {off:>10.2}").unwrap();
    }
    table
}

/// Says of each figure that is larger than the committed one what it was; prints what has become so much smaller that
/// the file is to be written anew.
fn compare(found: &[(&str, [f64; 2])], committed: &str) -> Vec<String> {
    let mut grown = Vec::new();
    for (name, now) in found {
        let Some(row) = committed.lines().find_map(|line| line.strip_prefix(name)) else {
            grown.push(format!("{name}: not committed"));
            continue;
        };
        let before = row.split_whitespace().map(|number| number.parse::<f64>().unwrap());
        for ((digest, now), before) in DIGESTS.iter().zip(now).zip(before) {
            let both = format!("{name}, digest {digest}: {now:.2}, committed {before:.2}");
            if *now > before * GROWN {
                grown.push(both);
            } else if *now * GROWN < before {
                println!("less than before, so `benches/instructions --renew`: {both}");
            }
        }
    }
    grown
}

// ---- what they do not depend on ---------------------------------------------------------------------------

#[test]
fn the_work_of_sequencer_and_worker_is_flat_in_the_size_of_payloads() {
    if !has_valgrind() {
        return println!("skipped: valgrind is not installed");
    }
    for part in ["turn", "poll"] {
        let of =
            |bytes| instructions(part, Drive { bytes, unwritten: true, digest: "header", ..Drive::SHORT });
        // A payload of more than 40 bytes lies in the bytes of the lane: another place, the same for every size.
        let outside = of(64);
        for bytes in [4096, 1 << 20, 16 << 20] {
            assert_eq!(of(bytes), outside, "{part} with payloads of {bytes} bytes");
        }
        let batch = |bytes| instructions(part, Drive { bytes, ..Drive::SHORT.batched(COMMANDS) });
        let batched = batch(64);
        assert!(batched <= outside, "{part}: a batch costs more than its commands");
        assert_eq!(batch(1 << 20), batched, "{part} with batches of large payloads");
        if part == "turn" {
            assert_eq!(of(0), outside);
            assert_eq!(batch(32), batched);
        }
    }
}

#[test]
fn a_turn_for_a_burst_costs_sixteen_workers_at_most_half_more_than_one() {
    if !has_valgrind() {
        return println!("skipped: valgrind is not installed");
    }
    if cfg!(any(debug_assertions, feature = "crash-points")) {
        return println!("skipped: the bound is that of a release build without crash points");
    }
    // With few cells the gates are looked at in every turn, which is all that workers cost the sequencer.
    for cells in [4096, 64] {
        let of = |workers| instructions("turn", Drive { workers, cells, ..Drive::LONG });
        let (one, sixteen) = (of(1), of(16));
        let said =
            format!("lanes of {cells} cells: {one} instructions with one worker, {sixteen} with sixteen");
        println!("{said}");
        assert!(sixteen * 2 <= one * 3, "{said}");
    }
}

fn has_valgrind() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok()
}

/// Instructions of a part in all bursts.
fn instructions(part: &str, drive: Drive<'_>) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("callgrind");
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind").arg(format!("--toggle-collect=*counted_{part}*")).arg("--quiet");
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    let run = drive_in(valgrind, &drive);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report = fs::read_to_string(out).unwrap();
    let summary = report.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
    let count = summary.trim().parse().unwrap();
    assert!(count > 0, "nothing was counted");
    count
}

#[test]
fn submit_turn_and_poll_make_no_system_call() {
    let strict = Drive { bytes: 64, bursts: 3, strict: true, ..Drive::SHORT };
    for drive in [strict, strict.batched(COMMANDS)] {
        let run = drive_in(Command::new("env"), &drive);
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(said.contains(DONE), "{}: {said} {}", run.status, String::from_utf8_lossy(&run.stderr));
        // The first call after the work does what one in the midst of it would have done.
        assert_eq!(run.status.signal(), Some(libc::SIGSYS), "nothing watched for system calls");
    }
}

// ---- the process that is looked at ------------------------------------------------------------------------

fn drive_in(mut command: Command, drive: &Drive<'_>) -> Output {
    command.arg(env::current_exe().unwrap());
    command.args(["--exact", "drive", "--nocapture", "--test-threads=1"]);
    command.env(DRIVE, serde_json::to_string(drive).unwrap()).output().unwrap()
}

/// Submits bursts, lets the sequencer take its turns and the workers receive: the process that is looked at. Does
/// nothing as a test.
#[test]
fn drive() {
    let Ok(drive) = env::var(DRIVE) else { return };
    let drive: Drive<'_> = serde_json::from_str(&drive).unwrap();
    // Room for the bytes of all, so that what is counted is ordering and not the search for room; and pages that are
    // not touched before they are used, for most never are.
    let seats = drive.workers + u64::from(drive.journal);
    let config = Config::new().producers(1).workers(seats).digest(drive.digest.parse().unwrap());
    let config = config.lane_cells(drive.cells).lane_bytes(1 << 30).pretouch(false);
    let region = Region::anonymous(&config).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (mut producer, mut workers, mut journal) =
        attach(&region, drive.workers, drive.journal.then_some(dir.path()));

    let payload = vec![7; drive.bytes];
    let commands = vec![(0, &payload[..]); drive.batch];
    let all = (drive.batch * drive.tickets) as u64;
    // It outlives the last burst: letting go of its lock is a system call.
    let mut serving = None;
    for _ in 0..drive.sequencers {
        drop(serving.take());
        let sequencer = serving.insert(settled(&region, &mut workers));
        for burst in 0..drive.bursts {
            // The first one touches pages, which takes no system call but is none of the matter.
            if burst == 1 && drive.strict {
                forbid_system_calls();
            }
            if drive.unwritten {
                (0..drive.tickets).for_each(|_| claim(&mut producer, drive.bytes));
            } else {
                counted_submit(&mut producer, &commands, drive.tickets);
            }
            assert_eq!(counted_turn(sequencer), all);
            for worker in &mut workers {
                assert_eq!(counted_poll(worker, drive.one_by_one), all);
            }
            if let Some(journal) = &mut journal {
                assert!(counted_journal(journal) >= all);
            }
        }
    }
    println!("{DONE}");
    std::io::stdout().flush().unwrap();
}

fn attach(region: &Region, workers: u64, journal: Option<&Path>) -> (Producer, Vec<Worker>, Option<Journal>) {
    let mut sequencer = Sequencer::open(region).unwrap();
    let attaching = std::thread::spawn({
        let (region, journal) = (region.clone(), journal.map(Path::to_owned));
        move || {
            let options = JournalOptions::new().sync(SyncPolicy::Off);
            let journal = journal.map(|dir| Journal::open(&region, dir, &options).unwrap());
            let workers = (0..workers).map(|n| Worker::join(&region, &format!("w{n}")).unwrap()).collect();
            (Producer::attach(&region, "p").unwrap(), workers, journal)
        }
    });
    while !attaching.is_finished() {
        sequencer.poll(16).unwrap();
        std::thread::yield_now();
    }
    attaching.join().unwrap()
}

/// A sequencer that has had its first look at the clock and at the living behind it, and has the next one many turns
/// ahead: what is counted lies between.
fn settled(region: &Region, workers: &mut [Worker]) -> Sequencer {
    let mut sequencer = Sequencer::open(region).unwrap();
    for _ in 0..4 {
        sequencer.poll(64).unwrap();
    }
    for worker in workers {
        while worker.poll().unwrap().is_some() {}
    }
    sequencer
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

/// Queues a command whose bytes nobody has written.
fn claim(producer: &mut Producer, bytes: usize) {
    producer.claim(0, bytes).unwrap().commit().unwrap();
}

#[inline(never)]
fn counted_submit(producer: &mut Producer, commands: &[(u16, &[u8])], times: usize) {
    for _ in 0..times {
        match commands {
            [(kind, payload)] => _ = producer.submit(*kind, payload).unwrap(),
            _ => _ = producer.submit_batch(commands).unwrap(),
        }
    }
}

#[inline(never)]
fn counted_turn(sequencer: &mut Sequencer) -> u64 {
    sequencer.poll(64).unwrap().commands
}

/// Receives all that is there, and how many commands that were.
#[inline(never)]
fn counted_poll(worker: &mut Worker, one_by_one: bool) -> u64 {
    let mut received = 0;
    let mut take = |event: Event<'_>| received += u64::from(matches!(event, Event::Command(_)));
    if one_by_one {
        while let Some(event) = worker.poll().unwrap() {
            take(event);
        }
    } else {
        while worker.poll_batch(32, &mut take).unwrap() > 0 {}
    }
    received
}

/// Writes all that is there, and how many records that were.
#[inline(never)]
fn counted_journal(journal: &mut Journal) -> u64 {
    let mut written = 0;
    loop {
        match journal.poll().unwrap() {
            0 => return written,
            more => written += more,
        }
    }
}
