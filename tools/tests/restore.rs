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

use std::collections::HashMap;
use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use nix::sys::signal::Signal;
use seriatim::journal::{Replay, verify};
use seriatim::{Attached, Config, Event, Region, Seq, Sequenced, Worker, payload_digest};
use tempfile::TempDir;

const PART: &str = "SERIATIM_RESTORE_PART";
const PRODUCERS: [&str; 3] = ["p0", "p1", "p2"];
const WORKERS: [&str; 2] = ["w0", "w1"];
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

fn payload(name: &str, index: u64) -> Vec<u8> {
    // Some lie in the cell, some in the lane, some in neither.
    let len = match index % 40 {
        7 => 5_000 + index as usize % 3_000,
        n if n % 4 == 1 => 300,
        _ => 12,
    };
    let mut bytes = format!("{name} {index} ").into_bytes();
    bytes.resize(len.max(bytes.len()), index as u8);
    bytes
}

/// Submits what comes next of its commands, and writes down what was acknowledged as durable: one byte for each.
fn produce(region: &Region, name: &str, file: &Path) {
    let mut acknowledged = File::options().create(true).append(true).open(file).unwrap();
    let before = acknowledged.metadata().unwrap().len();
    let mut producer = attach(region, name);
    let next = producer.next_index();
    assert!(next >= before, "{name}: {before} commands were acknowledged, {next} are there");
    assert_eq!(producer.attached() == Attached::New, next == 0);
    // What is there and was not acknowledged before is now, if it stays.
    let mut known = before;
    loop {
        let index = producer.next_index();
        producer.submit_at(index, 1, &payload(name, index)).unwrap();
        if index % 8 == 7 {
            let Sequenced::At(seq) = producer.wait_sequenced(index).unwrap() else { panic!("open") };
            region.wait_durable(seq, Instant::now() + PATIENCE).unwrap();
            acknowledged.write_all(&vec![b'.'; (index + 1 - known) as usize]).unwrap();
            known = index + 1;
        }
    }
}

/// Writes down what it gets, once that is durable; what it had not when it died is read from the journal.
fn work(region: &Region, name: &str, file: &Path, dir: &Path) {
    let mut worker = join(region, name);
    let mut log = Log::open(file);
    // What it gets begins here; what lies before is in the journal.
    let mut pending: Vec<[u8; LINE]> = Vec::new();
    let mut first = None;
    loop {
        take(&mut worker, &mut pending, &mut first);
        let Some(from) = first else { continue };
        let durable = region.journal().map_or(0, |journal| journal.durable.get());
        if durable < from {
            thread::sleep(Duration::from_micros(200));
            continue;
        }
        log.fill(dir, from);
        let ready = pending.iter().take_while(|line| seq_of(&line[..]) < durable).count();
        for line in pending.drain(..ready) {
            log.append(&line);
        }
    }
}

/// Takes what is there; `first` is the first index that it got.
fn take(worker: &mut Worker, pending: &mut Vec<[u8; LINE]>, first: &mut Option<u64>) {
    let before = worker.next().get();
    while let Some(event) = worker.poll().unwrap() {
        if let Event::Command(command) = event {
            first.get_or_insert(command.seq.get());
            let digest = payload_digest(command.payload);
            pending.push(line(command.seq, command.producer, command.index, command.digest.0, digest));
        }
    }
    if worker.next().get() == before {
        thread::sleep(Duration::from_micros(200));
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

    fn append(&mut self, line: &[u8; LINE]) {
        self.last = Some(seq_of(line));
        self.file.write_all(line).unwrap();
    }

    /// Has the journal's commands up to an index, once.
    fn fill(&mut self, dir: &Path, to: u64) {
        let from = self.last.map_or(0, |last| last + 1);
        if from >= to {
            return;
        }
        let mut replay = Replay::open(dir).unwrap().from(Seq::new(from)).unwrap();
        while let Some(record) = replay.next().unwrap() {
            if record.seq.get() >= to {
                break;
            }
            if record.is_command() {
                let digest = payload_digest(record.payload);
                let line = line(record.seq, record.producer, record.index, record.digest.0, digest);
                self.append(&line);
            }
        }
        // That nothing of what lies between is asked for again.
        self.last = self.last.max(Some(to - 1));
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
        let config = Config::new().lane_cells(32).lane_bytes(4096).producers(4).workers(4);
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
        Served { child: Doomed(child), said }
    }

    fn journal(&self, args: &[&str]) -> Running {
        let (region, dir) = (self.region(), self.dir());
        let all = [&["journal", &region, &dir, "--segment-bytes", "64K"], args].concat();
        let mut journal = Running::start(&mut seriatim(&all));
        let line = journal.line();
        assert!(line.starts_with("writing "), "{line}: {:?}", journal.end());
        journal
    }

    fn play(&self, what: &str, name: &str) -> Doomed {
        let mut command: Command = engine::this_program();
        command.env(PART, format!("{what} {name} {} {}", self.folder.path().display(), self.dir()));
        let complaints = File::options().create(true).append(true).open(self.file("parts")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints);
        Doomed(command.spawn().expect("this program can be run"))
    }

    fn acknowledged(&self) -> u64 {
        PRODUCERS.iter().map(|name| fs::metadata(self.file(name)).map_or(0, |file| file.len())).sum()
    }

    fn logged(&self) -> u64 {
        let lines = |name: &&str| fs::metadata(self.file(name)).map_or(0, |file| file.len() / LINE as u64);
        WORKERS.iter().map(lines).min().unwrap()
    }
}

struct Served {
    child: Doomed,
    said: String,
}

/// A process that does not end by itself.
struct Doomed(Child);

impl Doomed {
    fn kill(mut self, context: &str) {
        assert!(self.0.try_wait().unwrap().is_none(), "{context}: it ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The index at which the tool says that a region goes on.
fn goes_on_at(said: &str) -> u64 {
    let (_, rest) = said.split_once("it goes on at index ").unwrap_or_else(|| panic!("{said:?}"));
    let number = rest.split(' ').next().unwrap().trim_start_matches('#');
    number.parse().unwrap_or_else(|_| panic!("{said:?}"))
}

/// Waits for what the parts of a round have to do, as long as all of them live.
fn await_progress(place: &Place, parts: &mut [Doomed], what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        let is_dead = parts.iter_mut().any(|part| part.0.try_wait().unwrap().is_some());
        let complaints = || fs::read_to_string(place.file("parts")).unwrap_or_default();
        assert!(!is_dead, "{what}: a part ended by itself: {}", complaints());
        assert!(Instant::now() < until, "{what}: it does not come to it: {}", complaints());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn everything_is_killed_and_the_region_lost_and_there_is_one_history() {
    let place = Place::new();
    let rounds = times(20, 100);
    for round in 0..rounds {
        let what = format!("round {round}");
        let served = place.serve();
        if round > 0 {
            let next = goes_on_at(&served.said);
            // Nothing that a worker wrote down, or a producer was told, lies behind it.
            let behind = place.acknowledged();
            assert!(next > behind, "{what}: {next}, {behind} were acknowledged");
        } else {
            assert!(served.said.contains("there is no journal in "), "{}", served.said);
        }
        let mut journal = place.journal(&[]);
        let mut parts: Vec<Doomed> = WORKERS.iter().map(|name| place.play("work", name)).collect();
        parts.extend(PRODUCERS.iter().map(|name| place.play("produce", name)));
        let (sent, logged) = (place.acknowledged(), place.logged());
        let goal = 150 + round * 37 % 400;
        await_progress(&place, &mut parts, &what, || {
            place.acknowledged() >= sent + goal && place.logged() >= logged + goal
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
        fs::remove_file(place.region()).unwrap();
    }
    check_all(&place);
}

/// That the journal is whole, each producer's commands are there once, each that was acknowledged is, and each worker's log
/// is what the journal has.
fn check_all(place: &Place) {
    // Sealed by whoever restores last.
    let region = Region::restore(place.region(), place.dir(), &Config::new()).unwrap();
    let audit = verify(place.dir()).unwrap();
    assert!(audit.is_sound(), "{audit:?}");
    assert_eq!((audit.end, audit.digest), (region.next, region.digest));
    let mut logs: Vec<_> = WORKERS.map(|name| (fs::read(place.file(name)).unwrap(), 0)).to_vec();
    let (mut replay, mut names, mut next) =
        (Replay::open(place.dir()).unwrap(), HashMap::new(), HashMap::new());
    let mut epochs = Vec::new();
    while let Some(record) = replay.next().unwrap() {
        match record.event() {
            Some(Event::ProducerAttached { name, number, .. }) => {
                assert!(names.insert(number, name.to_string()).is_none(), "a number was given twice");
            }
            Some(Event::Opened { epoch, .. }) => epochs.push(epoch),
            _ => {}
        }
        if !record.is_command() {
            continue;
        }
        let index = next.entry(record.producer).or_insert(0);
        assert_eq!(record.index, *index, "of producer {}", record.producer);
        *index += 1;
        assert_eq!(record.payload, payload(&names[&record.producer], record.index));
        let digest = payload_digest(record.payload);
        let expected = line(record.seq, record.producer, record.index, record.digest.0, digest);
        for (log, at) in &mut logs {
            if *at < log.len() / LINE * LINE {
                assert!(log[*at..*at + LINE] == expected, "at index {}", record.seq);
                *at += LINE;
            }
        }
    }
    assert!(logs.iter().all(|(log, at)| log.len() / LINE * LINE == *at), "no log has more than the journal");
    assert_eq!(names.len(), PRODUCERS.len(), "who comes back has its number");
    assert!(epochs.is_sorted() && epochs.windows(2).all(|two| two[0] != two[1]), "{epochs:?}");
    for (number, name) in names {
        let acknowledged = fs::metadata(place.file(&name)).unwrap().len();
        assert!(next[&number] >= acknowledged, "{name}: {acknowledged} of {}", next[&number]);
    }
    println!("{} records, {} epochs", audit.records, epochs.len());
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
            let mut command = place.sequence();
            command.env("SERIATIM_CRASH", format!("{point}:1")).stdout(Stdio::null()).stderr(Stdio::null());
            let mut victim = Doomed(command.spawn().unwrap());
            eventually(&format!("{what}: it is killed"), || victim.0.try_wait().unwrap().is_some());
            let status = victim.0.wait().unwrap();
            assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{what}: {status}");
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
