//! Workers that come late, in processes of their own: from the journal over into the live order while everything runs, at
//! random indexes, some of them killed at each step of that and started again where they were. What each printed is, line by
//! line, what the journal has from its index on, and what one printed that was there from the start.
//!
//! ```text
//! cargo test -p seriatim-tools --features crash-points --test late_join -- --nocapture
//! ```
//!
//! `SERIATIM_LONG=1` makes 200 rounds of it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::doomed::Doomed;
use common::*;
use nix::sys::signal::Signal;
use seriatim::journal::Replay;
use seriatim::{Config, Digest, Region, Seq};
use tempfile::TempDir;

/// Steps at which a late worker is killed, and at which pass.
const STEPS: [&str; 8] = [
    "catch-up.read:1",
    "catch-up.read:700",
    "attach.asked:1",
    "attach.granted:1",
    "join.cursor:1",
    "catch-up.seated:1",
    "catch-up.met:1",
    "poll.released:2",
];

/// So much is left to read before one that is to be killed while it reads.
const ENOUGH: u64 = 2_000;

struct Place {
    _folder: TempDir,
    region: Region,
    path: String,
    disk: TempDir,
    sequencer: Option<Running>,
    journal: Option<Running>,
}

impl Place {
    fn new(config: &Config, journal_args: &[&str]) -> Place {
        let folder = scratch();
        let path = folder.path().join("region");
        let region = Region::create(&path, config).expect("room for a region");
        let (path, disk) = (path.display().to_string(), TempDir::new().unwrap());
        let sequencer = sequence(&path);
        let mut place =
            Place { _folder: folder, region, path, disk, sequencer: Some(sequencer), journal: None };
        place.write(journal_args);
        place
    }

    fn write(&mut self, args: &[&str]) {
        let all = [&["--segment-bytes", "64K"], args].concat();
        self.journal = Some(write_journal(&self.path, &self.dir(), &all));
    }

    fn dir(&self) -> String {
        self.disk.path().join("journal").display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    /// A worker that comes late, and prints into a file.
    fn late(&self, from: u64, out: &Path) -> Command {
        let (dir, from, out) = (self.dir(), from.to_string(), out.display().to_string());
        let place = ["worker", &self.path, "--journal", &dir, "--from", &from, "--out", &out];
        seriatim(&[&place[..], &["--name", "late", "--json"]].concat())
    }

    fn next(&self) -> u64 {
        self.region.snapshot().next.get()
    }

    fn await_more(&self, what: &str) {
        let goal = self.next() + 300;
        eventually(&format!("{what}: the order goes on"), || self.next() > goal);
    }

    /// Everything ends, and all of it is on the disk.
    fn close(&mut self) {
        self.sequencer.take().unwrap().stop().with(0);
        self.journal.take().unwrap().end().with(0);
    }
}

/// What a journal has had, read on before it is pruned.
struct History {
    dir: String,
    /// Of each index: the digest before it, and what is printed of it.
    all: Vec<(Digest, Vec<u8>)>,
    /// The digest of all.
    digest: Option<Digest>,
}

impl History {
    fn of(dir: String) -> History {
        History { dir, all: Vec::new(), digest: None }
    }

    /// The index behind the last one that was read.
    fn end(&self) -> u64 {
        self.all.len() as u64
    }

    /// Takes what was written since.
    fn read_on(&mut self) {
        let mut replay = Replay::open(&self.dir).unwrap().from(Seq::new(self.end())).unwrap();
        while let Some(record) = replay.next().unwrap() {
            assert_eq!(record.seq.get(), self.end());
            let line = if record.is_command() { [record.payload, b"\n"].concat() } else { Vec::new() };
            self.all.push((record.digest, line));
        }
        self.digest = Some(replay.digest());
    }

    /// What is printed of all from an index on, before another.
    fn lines(&self, from: u64, to: u64) -> Vec<u8> {
        let within = &self.all[from as usize..to.min(self.end()) as usize];
        within.iter().flat_map(|(_, line)| line).copied().collect()
    }

    /// The digest of all before an index.
    fn digest(&self, next: u64) -> Option<Digest> {
        if next == self.end() { self.digest } else { self.all.get(next as usize).map(|(digest, _)| *digest) }
    }
}

/// Where in a history, one that differs for each, late workers began: how many in each quarter, from the oldest on.
#[derive(Debug, Default)]
struct Spread {
    quarters: [u64; 4],
    longest: u64,
}

impl Spread {
    /// Some index from one on before another, by a number that is random.
    fn draw(&mut self, random: u64, first: u64, end: u64) -> u64 {
        let len = end - first;
        let place = ((u128::from(random) * u128::from(len)) >> 64) as u64;
        self.quarters[(place * 4 / len) as usize] += 1;
        self.longest = self.longest.max(len);
        first + place
    }
}

/// Random enough: splitmix64.
fn random(n: u64) -> u64 {
    let mix = |z: u64, shift: u32, by: u64| (z ^ z >> shift).wrapping_mul(by);
    let z = mix((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), 30, 0xbf58_476d_1ce4_e5b9);
    let z = mix(z, 27, 0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// What one printed: from an index on, and before which, if it said so.
struct Printed {
    what: String,
    file: PathBuf,
    from: u64,
    next: Option<u64>,
    digest: Option<String>,
}

/// Lets a late one print until it has joined and gone on for a while, and ends it.
fn lives(place: &Place, from: u64, what: &str) -> Printed {
    let file = place.file(&format!("{what} from {from}"));
    let mut late = Running::start(&mut place.late(from, &file));
    let pid = u64::from(late.pid());
    eventually(&format!("{what}: it joins"), || {
        let workers = &stat(&place.path)["workers"];
        let is_it =
            |row: &serde_json::Value| row["name"] == "late" && row["pid"] == pid && row["attached"] == true;
        let has_ended = late.has_output();
        assert!(!has_ended, "{what}: it has ended");
        workers.as_array().unwrap().iter().any(is_it)
    });
    let before = length(&file);
    eventually(&format!("{what}: it goes on"), || length(&file) > before + 4_000);
    let ended = late.stop().with(0);
    let report: serde_json::Value =
        serde_json::from_str(&ended.err).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    assert_eq!((&report["end"], &report["first"]), (&"signal".into(), &from.into()), "{report}");
    let (next, digest) = (report["next"].as_u64(), report["digest"].as_str().map(String::from));
    Printed { what: what.into(), file, from, next, digest }
}

/// Lets a late one come to a step where it is killed.
fn dies(place: &Place, from: u64, step: &str) -> Printed {
    let file = place.file(&format!("{step} from {from}"));
    Doomed::start_until(&mut place.late(from, &file), step).await_kill(step);
    Printed { what: step.into(), file, from, next: None, digest: None }
}

/// The index behind the last whole line that one printed who was killed: there it goes on.
fn behind(history: &History, printed: &Printed) -> u64 {
    let bytes = fs::read(&printed.file).unwrap_or_default();
    let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
    let is_command = |seq: &u64| !history.all[*seq as usize].1.is_empty();
    let mut from = (printed.from..history.end()).filter(is_command);
    let last = lines.checked_sub(1).map(|last| from.nth(last).unwrap_or_else(|| panic!("{}", printed.what)));
    last.map_or(printed.from, |seq| seq + 1)
}

fn produce(region: &Region, name: &str, is_over: &AtomicBool) {
    let mut producer = attach(region, name);
    let mut n = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        let mut line = format!("{name} {n} ");
        // One in a hundred lies in no lane.
        let len = if n % 100 == 7 { 12_000 } else { n as usize % 120 };
        line.extend(std::iter::repeat_n('x', len));
        producer.submit(0, line.as_bytes()).unwrap();
        n += 1;
    }
}

/// So much of the history is left before each late one: it would grow faster than so many could read it, and those from far
/// back would be the rare ones.
const HISTORY: &str = "2M";

/// From any index of all that the journal has when one comes.
#[test]
fn late_workers_print_what_one_from_the_start_printed() {
    let config = Config::new().lane_cells(64).lane_bytes(16 << 10).producers(4).workers(8);
    let mut place = Place::new(&config, &["--sync", "0.02"]);
    let from_the_start = place.file("early");
    let early = worker(&place.path, "early", &["--out", &from_the_start.display().to_string(), "--json"]);
    let is_over = AtomicBool::new(false);
    let (mut all, mut killed) = (Vec::new(), 0);
    let (mut history, mut spread) = (History::of(place.dir()), Spread::default());
    thread::scope(|scope| {
        let over = Over(&is_over);
        for name in ["p0", "p1"] {
            let (region, is_over) = (&place.region, &is_over);
            scope.spawn(move || produce(region, name, is_over));
        }
        eventually("there is a history", || place.next() > 2 * ENOUGH);
        let rounds = times(24, 200);
        for round in 0..rounds {
            let what = format!("round {round}");
            history.read_on();
            let pruned = run(&["journal", "prune", &place.dir(), "--keep-bytes", HISTORY, "--json"]);
            let (first, end) = (pruned.with(0).json()["first"].as_u64().unwrap(), place.next());
            if round % 3 == 1 {
                let step = STEPS[killed % STEPS.len()];
                let from = spread.draw(random(round), first, end - ENOUGH);
                let printed = dies(&place, from, step);
                killed += 1;
                place.await_more(step);
                history.read_on();
                let again = behind(&history, &printed);
                all.push(printed);
                all.push(lives(&place, again, &format!("{what}, again")));
            } else {
                let from = spread.draw(random(round), first, end);
                all.push(lives(&place, from, &what));
            }
        }
        drop(over);
    });
    place.close();
    history.read_on();
    let report = early.end().with(0);
    let report: serde_json::Value = serde_json::from_str(&report.err).unwrap();
    let (first, next) = (report["first"].as_u64().unwrap(), report["next"].as_u64().unwrap());
    assert!(fs::read(&from_the_start).unwrap() == history.lines(first, next), "the one from the start");
    let mut lines = 0;
    for printed in &all {
        let Printed { what, file, from, next, digest } = printed;
        let found = fs::read(file).unwrap_or_default();
        let expected = history.lines(*from, next.unwrap_or(u64::MAX));
        if let (Some(next), Some(digest)) = (next, digest) {
            assert!(found == expected, "{what} from {from}: {} and {} bytes", found.len(), expected.len());
            assert_eq!(
                history.digest(*next).map(|digest| digest.to_string()).as_ref(),
                Some(digest),
                "{what}"
            );
        } else {
            assert!(expected.starts_with(&found), "{what} from {from}");
        }
        lines += found.iter().filter(|&&byte| byte == b'\n').count();
    }
    println!("{} joins, {killed} killed, {lines} lines, {next} in all, {spread:?}", all.len());
    assert!(killed >= STEPS.len());
    assert!(spread.quarters.iter().all(|&joins| joins >= 3), "{spread:?}");
}

/// One that is stopped while it reads the history holds nobody up; asked to end there it says where it was, and another one
/// goes on with that.
#[test]
fn one_that_stands_still_in_the_history_holds_nobody_up() {
    let config = Config::new().lane_cells(64).lane_bytes(16 << 10).producers(2).workers(4);
    let place = Place::new(&config, &["--sync", "0.02"]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| produce(&place.region, "p0", &is_over));
        eventually("there is a history", || place.next() > 2_000);
        let file = place.file("stopped");
        let mut command = place.late(0, &file);
        let mut late = Running::start(command.env("SERIATIM_CRASH", "catch-up.read:500:stop"));
        let pid = late.pid();
        eventually("it stands still", || is_stopped(pid));
        let goal = place.next() + 5_000;
        eventually("the order goes on", || place.next() > goal);
        late.signal(Signal::SIGTERM);
        late.signal(Signal::SIGCONT);
        let ended = late.end().with(0);
        let report: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
        let next = report["next"].as_u64().unwrap();
        assert!(report["end"] == "signal" && (500..2_000).contains(&next), "{report}");
        let printed = lives(&place, next, "the next one");
        drop(over);
        let mut history = History::of(place.dir());
        eventually("what it printed is written", || {
            history.read_on();
            printed.next <= Some(history.end())
        });
        assert!(fs::read(&file).unwrap() == history.lines(0, next));
        assert!(fs::read(&printed.file).unwrap() == history.lines(next, printed.next.unwrap()));
    });
}

/// Without its journal an order goes on, and who comes later is told what is missing; what ends in the history ends it.
#[test]
fn a_late_worker_says_why_it_does_not_come() {
    let config = Config::new().lane_cells(16).lane_bytes(4096).producers(2).workers(4);
    let mut place = Place::new(&config, &["--go-on"]);
    let mut producer = attach(&place.region, "p");
    let (path, dir) = (place.path.clone(), place.dir());
    let early = worker(&path, "early", &["--out", "/dev/null"]);
    let mut submit = |count: u64| {
        for n in 0..count {
            producer.submit(0, format!("line {n}").as_bytes()).unwrap();
        }
        producer.wait_sequenced(producer.next_index() - 1).unwrap();
    };
    submit(100);
    let late = run(&["worker", &path, "--journal", &dir, "--count", "10", "--json"]).with(0);
    let lines: Vec<_> = (0..10).map(|n| format!("line {n}\n")).collect();
    assert_eq!(late.out, lines.concat());
    run(&["worker", &path, "--journal", &dir, "--from", "99999"]).with(2).saying(&["99999", &dir]);
    run(&["worker", &path, "--from", "5"]).with(2);
    place.journal.take().unwrap().stop().with(0);
    let end = Replay::open(&dir).unwrap().end();
    submit(300);
    eventually("the region lets go of what all have passed", || place.region.snapshot().anchor > end);
    let late = run(&["worker", &path, "--journal", &dir]).with(2);
    late.saying(&[&dir, &format!("ends at index {end}"), "no longer has what is before"]);
    drop(producer);
    place.sequencer.take().unwrap().stop().with(0);
    early.end().with(0);
}

/// An order that is closed is printed to its end.
#[test]
fn what_is_closed_is_printed_to_its_end() {
    let mut place = Place::new(&Config::new(), &[]);
    let mut producer = attach(&place.region, "p");
    let early = worker(&place.path, "early", &["--json"]);
    for n in 0..500 {
        producer.submit(0, format!("line {n}").as_bytes()).unwrap();
    }
    drop(producer);
    place.close();
    let early = early.end().with(0);
    let dir = place.dir();
    let late = run(&["worker", &place.path, "--journal", &dir, "--json"]).with(0);
    assert_eq!(late.out, early.out);
    let of =
        |text: &str, field: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()[field].clone();
    for field in ["next", "digest", "commands", "end"] {
        assert_eq!(of(&late.err, field), of(&early.err, field), "{field}");
    }
    assert_eq!(of(&late.err, "end"), "closed");
}

/// One that keeps a bookmark goes on where the one of its name was: behind one that was asked to end with nothing printed
/// twice, behind one that was killed with nothing missing.
#[test]
fn one_with_a_bookmark_goes_on_where_the_one_before_it_was() {
    let mut place = Place::new(&Config::new(), &[]);
    let (path, dir, file) = (place.path.clone(), place.dir(), place.file("resumed"));
    let out = file.display().to_string();
    let resume = ["worker", &path, "--journal", &dir, "--name", "audit", "--resume", "--out", &out];
    let submit = |lines: std::ops::Range<u64>| {
        let lines: String = lines.map(|n| format!("{n}\n")).collect();
        run_with(&["submit", &path, "-", "--durable"], lines.as_bytes()).with(0);
    };
    let printed = || -> Vec<u64> {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let live = |last: u64| {
        let running = Running::start(&mut seriatim(&resume));
        eventually("all of it is printed", || printed().last() == Some(&last));
        running
    };
    submit(0..300);
    live(299).stop().with(0);
    submit(300..600);
    let mut killed = live(599);
    assert_eq!(printed(), (0..600).collect::<Vec<_>>());
    killed.signal(Signal::SIGKILL);
    killed.end();
    submit(600..900);
    live(899).stop().with(0);
    let again = printed().split_off(600);
    assert!((300..=600).contains(&again[0]), "{}", again[0]);
    assert_eq!(again, (again[0]..900).collect::<Vec<_>>());
    let stat = run(&["journal", "stat", &dir]).with(0).out;
    assert!(stat.contains("audit"), "{stat}");
    // Without its bookmark nothing says where what is printed ends.
    let other = ["worker", &path, "--journal", &dir, "--name", "other", "--resume", "--out", &out];
    run(&other).with(2).saying(&[&out, "no bookmark of \"other\"", "--from"]);
    // What it is to begin with is for its first start alone, and that is said.
    let again = Running::start(&mut seriatim(&[&resume[..], &["--from", "5"]].concat()));
    submit(900..901);
    eventually("it goes on", || printed().last() == Some(&900));
    again.stop().with(0).saying(&["--from 5 is for the first start", "\"audit\"", "bookmark"]);
    assert_eq!(printed().iter().filter(|&&n| n < 5).count(), 5, "it did not begin anew");
    // It is one at a time, and nobody goes on under a name that is not said.
    let held = live(900);
    await_join(&path, "audit");
    run(&resume).with(2);
    held.stop().with(0);
    run(&["worker", &path, "--journal", &dir, "--resume"]).with(2);
    place.close();
}

/// One that is killed before anything is known to be durable, or in the middle of a line, goes on with whole lines.
#[test]
fn one_that_was_killed_early_or_within_a_line_goes_on() {
    let mut place = Place::new(&Config::new(), &["--sync", "600"]);
    let (path, dir, file) = (place.path.clone(), place.dir(), place.file("resumed"));
    let out = file.display().to_string();
    let resume = ["worker", &path, "--journal", &dir, "--name", "audit", "--resume", "--out", &out];
    let submit = |lines: std::ops::Range<u64>| {
        let lines: String = lines.map(|n| format!("{n}\n")).collect();
        run_with(&["submit", &path, "-"], lines.as_bytes()).with(0);
    };
    let printed = || -> Vec<u64> {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    submit(0..300);
    let mut running = Running::start(&mut seriatim(&resume));
    eventually("all of it is printed", || printed().last() == Some(&299));
    running.signal(Signal::SIGKILL);
    running.end();
    // Where one begins that begins late is not on the disk yet: that is no place for a bookmark.
    let (recent, late) = (place.file("recent"), ["--name", "recent", "--from", "200"]);
    let into = recent.display().to_string();
    let mut running =
        Running::start(&mut seriatim(&[&resume[..4], &late, &["--resume", "--out", &into]].concat()));
    eventually("it prints", || fs::read(&recent).is_ok_and(|bytes| !bytes.is_empty()));
    let stat = run(&["journal", "stat", &dir]).with(0).out;
    assert!(stat.contains("audit") && !stat.contains("recent"), "{stat}");
    running.signal(Signal::SIGKILL);
    running.end();
    // As who is killed while he writes leaves it.
    let whole = fs::read(&file).unwrap();
    fs::write(&file, [&whole[..], b"29"].concat()).unwrap();
    submit(300..301);
    let running = Running::start(&mut seriatim(&resume));
    eventually("all of it is printed", || printed().last() == Some(&300));
    running.stop().with(0);
    let all: Vec<u64> = (0..300).chain(0..301).collect();
    assert_eq!(printed(), all);
    place.close();
}

/// A worker that waits does so for its region and for the journal beside it, and says which of them did not come.
#[test]
fn one_that_waits_does_so_for_the_journal_as_well() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = folder.path().join("region").display().to_string();
    let dir = disk.path().join("journal").display().to_string();
    let args = ["worker", &region, "--journal", &dir, "--name", "w", "--resume", "--out"];
    let out = disk.path().join("out").display().to_string();
    let with = |time: &str| run(&[&args[..], &[&out, "--wait-for", time]].concat()).with(2);
    with("0.1").saying(&[&region]);
    run(&["create", &region]).with(0);
    let serving = sequence(&region);
    for time in ["0", "0.1"] {
        with(time).saying(&["there is a region", &region, "no journal"]);
    }
    let waiting = Running::start(&mut seriatim(&[&args[..], &[&out, "--wait-for", "300"]].concat()));
    let mut writing = Running::start(&mut seriatim(&["journal", &region, &dir]));
    assert!(writing.line().starts_with("writing "));
    await_join(&region, "w");
    waiting.stop().with(0);
    writing.stop().with(0);
    serving.stop();
}
