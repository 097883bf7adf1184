//! Everything dies, the region is gone, and all goes on from the journal: with real processes, killed together, again and
//! again, and killed at each step of restoring.
//!
//! ```text
//! cargo test -p seriatim-tools --features crash-points --test restore -- --nocapture
//! ```
//!
//! `SERIATIM_LONG=1` makes 100 rounds of it.

mod common;
mod engine;

use std::collections::VecDeque;
use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::doomed::Doomed;
use common::told::{acknowledged, is_all_there, payload, produce};
use common::*;
use nix::sys::signal::Signal;
use seriatim::journal::{Bookmark, Replay, verify};
use seriatim::{Attached, Config, Event, JoinOptions, Region, Seq, Sequenced, Worker, payload_digest};
use tempfile::TempDir;

const PART: &str = "SERIATIM_RESTORE_PART";
const PRODUCERS: [&str; 3] = ["p0", "p1", "p2"];
/// Workers of this program.
const WORKERS: [&str; 2] = ["w0", "w1"];
/// Workers of the tool.
const PRINTERS: [&str; 2] = ["t0", "t1"];
/// Bytes of a line in a worker's log: index, producer, per-producer index, digest before it, digest of the payload.
const LINE: usize = 40;

/// What the processes of a test do. Does nothing as a test.
#[test]
fn part() {
    let Ok(text) = env::var(PART) else { return };
    let [what, name, folder, dir] = text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("bad part {text:?}")
    };
    let region = Region::attach(Path::new(folder).join("region")).unwrap();
    let file = Path::new(dir).parent().unwrap().join(name);
    match what {
        "produce" => produce(&region, name, &file),
        "work" => work(&region, name, &file, Path::new(dir)),
        other => panic!("no part {other:?}"),
    }
}

/// Writes down what it gets, once that is durable: from where its predecessor was, out of the journal and then live.
fn work(region: &Region, name: &str, file: &Path, dir: &Path) {
    let (mut log, mut pending) = (Log::open(file), VecDeque::new());
    let options = JoinOptions::new().timeout(ANSWER);
    let from = Seq::new(log.next());
    let history = Worker::join_from(region, name, &options, dir, from, |event| note(event, &mut pending));
    let mut worker = history.unwrap();
    loop {
        let taken = worker.poll_batch(64, |event| note(event, &mut pending)).unwrap();
        let durable = region.journal().map_or(0, |journal| journal.durable.get());
        while let Some(line) = pending.front()
            && seq_of(line) < durable
        {
            log.append(line);
            pending.pop_front();
        }
        if taken == 0 {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn note(event: Event<'_>, into: &mut VecDeque<[u8; LINE]>) {
    if let Event::Command(command) = event {
        let digest = payload_digest(command.payload);
        into.push_back(line(command.seq, command.producer, command.index, command.digest.0, digest));
    }
}

fn line(seq: Seq, producer: u64, index: u64, before: u64, digest: u64) -> [u8; LINE] {
    let words = [seq.get(), producer, index, before, digest];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.try_into().unwrap()
}

fn seq_of(line: &[u8]) -> u64 {
    u64::from_le_bytes(line[..8].try_into().unwrap())
}

/// A worker's log, which survives it.
struct Log {
    file: File,
    /// The index of its last line.
    last: Option<u64>,
}

impl Log {
    fn open(path: &Path) -> Log {
        let mut file = File::options().create(true).append(true).read(true).open(path).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        let whole = bytes.len() / LINE * LINE;
        // It may have died in the middle of a line.
        file.set_len(whole as u64).unwrap();
        Log { file, last: bytes[..whole].chunks(LINE).last().map(seq_of) }
    }

    /// Where its next worker goes on.
    fn next(&self) -> u64 {
        self.last.map_or(0, |last| last + 1)
    }

    fn append(&mut self, line: &[u8; LINE]) {
        self.last = Some(seq_of(line));
        self.file.write_all(line).unwrap();
    }
}

/// Where all of it is.
struct Place {
    folder: TempDir,
    disk: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: scratch(), disk: TempDir::new().unwrap() };
        let config = Config::new().lane_cells(32).lane_bytes(4096).producers(4).workers(6);
        drop(Region::create(place.region(), &config).unwrap());
        place
    }

    fn region(&self) -> String {
        self.folder.path().join("region").display().to_string()
    }

    fn dir(&self) -> String {
        self.disk.path().join("journal").display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    fn sequence(&self) -> Command {
        seriatim(&["sequence", &self.region(), "--journal", &self.dir()])
    }

    /// Serves, restored if need be; with what it says of that.
    fn serve(&self) -> Served {
        let complaints = self.file("complaints");
        let stderr = File::create(&complaints).unwrap();
        let mut child = self.sequence().stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut line = Vec::new();
        let stdout = child.stdout.as_mut().unwrap();
        let mut byte = [0];
        while stdout.read(&mut byte).unwrap() > 0 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        let said = fs::read_to_string(complaints).unwrap();
        assert!(line.starts_with(b"serving "), "{said}");
        Served { child: Doomed::of(child), said }
    }

    fn journal(&self, args: &[&str]) -> Running {
        write_journal(&self.region(), &self.dir(), &[&["--segment-bytes", "64K"], args].concat())
    }

    fn play(&self, what: &str, name: &str) -> Doomed {
        let mut command: Command = engine::this_program();
        command.env(PART, format!("{what} {name} {} {}", self.folder.path().display(), self.dir()));
        Doomed::start_into(&mut command, &self.file("parts"))
    }

    /// The tool's worker, which goes on by its bookmark.
    fn print(&self, name: &str) -> Doomed {
        let (region, dir, out) = (self.region(), self.dir(), path(&self.file(name)));
        let args = ["worker", &region, "--journal", &dir, "--resume", "--name", name, "--out", &out];
        Doomed::start_into(&mut seriatim(&args), &self.file("parts"))
    }

    fn acknowledged(&self) -> u64 {
        PRODUCERS.iter().map(|name| acknowledged(&self.file(name))).sum()
    }

    fn logged(&self) -> u64 {
        let lines = |name: &&str| length(&self.file(name)) / LINE as u64;
        WORKERS.iter().map(lines).min().unwrap()
    }

    /// Up to where one of the tool's workers has printed for good.
    fn marked(&self, name: &str) -> Option<u64> {
        let marks = Bookmark::list(self.dir()).ok()?.into_iter().map(Result::unwrap);
        marks.filter(|mark| mark.name.as_str() == name).map(|mark| mark.next.get()).next()
    }
}

struct Served {
    child: Doomed,
    said: String,
}

/// What one of the tool's workers prints in a round.
struct Printed {
    name: &'static str,
    /// The round, for messages.
    what: String,
    /// Where it goes on, by its bookmark, and behind how many bytes of its file: the whole lines there.
    from: u64,
    begin: usize,
    /// What it printed there.
    bytes: Vec<u8>,
    /// Where the order went on without what it may have printed of what came behind.
    next: u64,
}

impl Printed {
    fn begin(place: &Place, name: &'static str, what: &str) -> Printed {
        let before = fs::read(place.file(name)).unwrap_or_default();
        let begin = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let from = place.marked(name).unwrap_or(0);
        Printed { name, what: what.into(), from, begin, bytes: Vec::new(), next: 0 }
    }

    fn end(&mut self, place: &Place) {
        self.bytes = fs::read(place.file(self.name)).unwrap().split_off(self.begin);
    }

    /// That it printed what the history has, line by line, as far as that goes; up to where it did.
    fn check(&self, history: &[(u64, Vec<u8>)]) -> u64 {
        let Printed { name, what, from, next, .. } = self;
        let mut found = &self.bytes[..];
        for (seq, line) in history.iter().filter(|(seq, _)| (from..next).contains(&seq)) {
            if found.len() < line.len() {
                // It was killed here, in the middle of a line perhaps.
                assert!(line.starts_with(found), "{what}: {name}, at index {seq}");
                return *seq;
            }
            assert!(found.starts_with(line), "{what}: {name}, at index {seq}");
            found = &found[line.len()..];
        }
        *next
    }
}

/// The index at which the tool says that a region goes on.
fn goes_on_at(said: &str) -> u64 {
    let (_, rest) = said.split_once("it goes on at index ").unwrap_or_else(|| panic!("{said:?}"));
    let number = rest.split(' ').next().unwrap().trim_start_matches('#');
    number.parse().unwrap_or_else(|_| panic!("{said:?}"))
}

/// Waits for what the parts of a round have to do, as long as all of them live.
fn await_progress(parts: &mut [Doomed], what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || {
        parts.iter_mut().for_each(|part| part.lives(what));
        is_so()
    });
}

/// Workers come back as anybody's would: of this program by [`Worker::join_from`], the tool's by their bookmarks.
#[test]
fn everything_is_killed_and_the_region_lost_and_there_is_one_history() {
    let place = Place::new();
    let rounds = times(20, 100);
    let mut printed: Vec<Printed> = Vec::new();
    for round in 0..rounds {
        let what = format!("round {round}");
        let served = place.serve();
        if round > 0 {
            let next = goes_on_at(&served.said);
            // Nothing that a worker wrote down, or a producer was told, lies behind it.
            let behind = place.acknowledged();
            assert!(next > behind, "{what}: {next}, {behind} were acknowledged");
            printed.iter_mut().rev().take(PRINTERS.len()).for_each(|printed| printed.next = next);
        } else {
            assert!(served.said.contains("there is no journal in "), "{}", served.said);
        }
        let mut journal = place.journal(&[]);
        let mut parts: Vec<Doomed> = WORKERS.iter().map(|name| place.play("work", name)).collect();
        printed.extend(PRINTERS.map(|name| Printed::begin(&place, name, &what)));
        parts.extend(PRINTERS.iter().map(|name| place.print(name)));
        parts.extend(PRODUCERS.iter().map(|name| place.play("produce", name)));
        let (sent, logged) = (place.acknowledged(), place.logged());
        let marked = PRINTERS.map(|name| place.marked(name));
        let goal = 150 + round * 37 % 400;
        await_progress(&mut parts, &what, || {
            place.acknowledged() >= sent + goal
                && place.logged() >= logged + goal
                && PRINTERS.iter().zip(marked).all(|(name, before)| place.marked(name) > before)
        });
        // Not always in the same order, and without a pause.
        if round % 2 == 0 {
            journal.signal(Signal::SIGKILL);
            served.child.kill(&what);
        } else {
            parts.rotate_left((round % 5) as usize);
            parts.pop().unwrap().kill(&what);
            served.child.kill(&what);
            journal.signal(Signal::SIGKILL);
        }
        parts.into_iter().for_each(|part| part.kill(&what));
        journal.end();
        printed.iter_mut().rev().take(PRINTERS.len()).for_each(|printed| printed.end(&place));
        fs::remove_file(place.region()).unwrap();
    }
    check_all(&place, printed);
}

/// That the journal is whole, each producer's commands are there once, each that was acknowledged is, and what each worker
/// has is what the journal has.
fn check_all(place: &Place, mut printed: Vec<Printed>) {
    // Sealed by whoever restores last.
    let region = Region::restore(place.region(), place.dir(), &Config::new()).unwrap();
    let mut logs: Vec<_> = WORKERS.map(|name| (fs::read(place.file(name)).unwrap(), 0)).to_vec();
    let mut history = Vec::new();
    let audit = is_all_there(&place.dir(), &PRODUCERS, place.disk.path(), |record| {
        if !record.is_command() {
            return;
        }
        history.push((record.seq.get(), [record.payload, b"\n"].concat()));
        let digest = payload_digest(record.payload);
        let expected = line(record.seq, record.producer, record.index, record.digest.0, digest);
        for (log, at) in &mut logs {
            if *at < log.len() / LINE * LINE {
                assert!(log[*at..*at + LINE] == expected, "at index {}", record.seq);
                *at += LINE;
            }
        }
    });
    assert_eq!((audit.end, audit.digest), (region.next, region.digest));
    assert!(logs.iter().all(|(log, at)| log.len() / LINE * LINE == *at), "no log has more than the journal");
    printed.iter_mut().rev().take(PRINTERS.len()).for_each(|printed| printed.next = audit.end.get());
    for name in PRINTERS {
        let (mut to, mut again) = (0, 0);
        for printed in printed.iter().filter(|printed| printed.name == name) {
            let Printed { what, from, next, .. } = printed;
            assert!(*from <= to && from <= next, "{what}: {name} printed up to {to}, and went on at {from}");
            again += to - from;
            to = printed.check(&history);
        }
        println!("{name}: printed up to {to}, {again} indexes of these more than once");
    }
}

/// A place whose journal has some commands and was killed, as was all else.
fn killed(sync: &str, commands: u64) -> Place {
    let place = Place::new();
    let served = place.serve();
    let mut journal = place.journal(&["--sync", sync]);
    let region = Region::attach(place.region()).unwrap();
    let mut producer = attach(&region, "p0");
    for index in 0..commands {
        producer.submit(1, &payload("p0", index)).unwrap();
    }
    let Sequenced::At(seq) = producer.wait_sequenced(commands - 1).unwrap() else { panic!("open") };
    eventually("it is written", || region.journal().is_some_and(|journal| journal.written > seq));
    drop(producer);
    journal.signal(Signal::SIGKILL);
    journal.end();
    served.child.kill("it serves");
    place
}

/// What is not whole at the end is cut, the tool says so, and the producer submits it again.
#[test]
fn a_torn_tail_is_cut_and_said_and_submitted_again() {
    let place = killed("off", 30);
    fs::remove_file(place.region()).unwrap();
    let last = Replay::open(place.dir()).unwrap();
    let end = last.end();
    drop(last);
    // The last record, in the middle.
    let segment = fs::read_dir(place.dir()).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|e| e == "seg")).max().unwrap();
    let bytes = fs::read(&segment).unwrap();
    let last = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    File::options()
        .write(true)
        .open(&segment)
        .unwrap()
        .write_all_at(&[bytes[last] ^ 1], last as u64)
        .unwrap();
    let served = place.serve();
    assert!(served.said.contains("torn tail cut"), "{}", served.said);
    let next = goes_on_at(&served.said);
    assert!(next < end.get(), "{next} {end}");
    let journal = place.journal(&[]);
    let region = Region::attach(place.region()).unwrap();
    let mut producer = attach(&region, "p0");
    let Attached::Resumed { next } = producer.attached() else { panic!("it was there before") };
    assert_eq!(next, 29);
    for index in next..40 {
        producer.submit_at(index, 1, &payload("p0", index)).unwrap();
    }
    let Sequenced::At(seq) = producer.wait_sequenced(39).unwrap() else { panic!("open") };
    region.wait_durable(seq, Instant::now() + PATIENCE).unwrap();
    journal.stop().with(0);
    let mut replay = Replay::open(place.dir()).unwrap();
    let mut index = 0;
    while let Some(record) = replay.next().unwrap() {
        if record.is_command() {
            assert_eq!((record.index, record.payload), (index, &payload("p0", index)[..]));
            index += 1;
        }
    }
    assert_eq!(index, 40);
}

/// Who restores is killed at each step: there is no region then, the outdated one, or a whole one, and who comes next goes
/// on.
#[test]
fn whoever_dies_while_a_region_is_restored_leaves_none_or_a_whole_one() {
    let points = [
        "journal.mending",
        "journal.part",
        "journal.mended",
        "journal.complete",
        "journal.named",
        "journal.begun",
        "restore.sealed",
        "create.reserved",
        "create.formatted",
        "create.header",
        "restore.filled",
        "restore.removed",
        "create.named",
    ];
    let mut runs = 0;
    for point in points {
        for is_outdated in [false, true] {
            // Where an outdated region was left, the journal's end was sealed before.
            if (point == "restore.removed" && !is_outdated) || (point.starts_with("journal.") && is_outdated)
            {
                continue;
            }
            let what = format!("{point}, outdated {is_outdated}");
            let place = killed("group", 20);
            let end = Replay::open(place.dir()).unwrap().end();
            fs::remove_file(place.region()).unwrap();
            let mut uuid = None;
            if is_outdated {
                // As it was at its beginning.
                let old = Region::restore(place.region(), place.dir(), &Config::new()).unwrap();
                uuid = Some(old.region.uuid());
                drop(old);
                make_outdated(&place);
            }
            Doomed::start_until(&mut place.sequence(), &format!("{point}:1")).await_kill(&what);
            let names: Vec<_> =
                fs::read_dir(place.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert!(names.len() <= 1, "{what}: {names:?}");
            match Region::attach(place.region()) {
                Ok(region) => {
                    let (next, found) = (region.snapshot().next, region.verify());
                    assert!(next == end && found.is_sound(), "{what}: {next} {found:?}");
                    assert_eq!(point, "create.named");
                }
                Err(_) => assert!(names.is_empty() || is_outdated, "{what}"),
            }
            let served = place.serve();
            assert_eq!(served.said.is_empty(), point == "create.named", "{what}: {}", served.said);
            let journal = place.journal(&[]);
            let region = Region::attach(place.region()).unwrap();
            assert!(uuid.is_none_or(|uuid| uuid == region.uuid()), "{what}");
            let mut producer = attach(&region, "p0");
            assert_eq!(producer.attached(), Attached::Resumed { next: 20 }, "{what}");
            producer.submit(1, &payload("p0", 20)).unwrap();
            producer.wait_sequenced(20).unwrap();
            journal.stop().with(0);
            assert!(verify(place.dir()).unwrap().is_sound(), "{what}");
            runs += 1;
        }
    }
    println!("{} points, {runs} runs", points.len());
}

/// Makes a region one of another boot of the machine.
fn make_outdated(place: &Place) {
    let file = File::options().read(true).write(true).open(place.region()).unwrap();
    let mut header = vec![0; 168];
    file.read_exact_at(&mut header, 0).unwrap();
    header[104] ^= 1;
    let digest = payload_digest(&header[..160]).to_le_bytes();
    header[160..].copy_from_slice(&digest);
    file.write_all_at(&header, 0).unwrap();
}
