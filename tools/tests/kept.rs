//! Snapshots, bookmarks and pruning: an engine that keeps them, and a journal that prunes, killed and stopped at every
//! step; then what was said to stay is there, whole and once, and the next one goes on. And what the tool says of them.
//!
//! ```text
//! cargo test -p seriatim-tools --features crash-points --test kept -- --nocapture
//! ```

mod common;

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::doomed::Doomed;
use common::*;
use nix::sys::signal::Signal;
use serde_json::Value;
use seriatim::journal::{Bookmark, Replay, Retention, Snapshot, SnapshotError, Snapshots, prune, verify};
use seriatim::{
    Config, Digest, Producer, Region, Seq, Sequenced, Sequencer, SequencerConfig, SequencerHandle,
    SubmitError, payload_digest,
};
use tempfile::TempDir;

const PART: &str = "SERIATIM_KEPT_PART";
const SEGMENT: &str = "4K";
/// Indexes between two snapshots.
const STRIDE: u64 = 40;

/// What an engine of a test does. Does nothing as a test.
#[test]
fn part() {
    let Ok(folder) = env::var(PART) else { return };
    let place = Place::of(PathBuf::from(folder));
    let region = Region::attach(place.region()).unwrap();
    engine(&place, &region);
}

fn payload(n: u64) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(8 + (n * 37 % 200) as usize, n as u8);
    bytes
}

/// What the engine makes of commands: how many there were, and a number that follows from all of them in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    count: u64,
    sum: u64,
}

impl State {
    fn apply(&mut self, payload: &[u8]) {
        self.count += 1;
        self.sum = (self.sum ^ payload_digest(payload)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn bytes(&self) -> Vec<u8> {
        [self.count.to_le_bytes(), self.sum.to_le_bytes()].concat()
    }

    fn of(bytes: &[u8]) -> State {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(bytes.len(), 16);
        State { count: word(0), sum: word(8) }
    }

    /// That after so many commands of the one producer.
    fn after(count: u64) -> State {
        let mut state = State::default();
        (0..count).for_each(|n| state.apply(&payload(n)));
        state
    }

    fn in_snapshot(snapshot: &Snapshot) -> State {
        snapshot.verify().unwrap();
        let bytes = if snapshot.is_directory() {
            let [a, b] = ["count", "deep/sum"].map(|name| fs::read(snapshot.path().join(name)).unwrap());
            [a, b].concat()
        } else {
            snapshot.read().unwrap()
        };
        State::of(&bytes)
    }
}

/// Follows the journal; keeps a snapshot of what it made of it now and then, says so in its bookmark, prunes what is
/// before, and writes down each of these when it has been told that it is done.
fn engine(place: &Place, region: &Region) {
    let dir = place.dir();
    let snapshots = Snapshots::open(&dir).unwrap().of(region, PATIENCE).unwrap();
    let mut bookmark = Bookmark::open(&dir, "engine").unwrap();
    let mut told = File::options().create(true).append(true).open(place.told()).unwrap();
    let latest = snapshots.latest().unwrap();
    // What it had said that it needs no more is in what it had stored before.
    let begins = latest.as_ref().map(Snapshot::seq);
    assert!(bookmark.next() <= begins, "{:?} {begins:?}", bookmark.next());
    let (mut state, mut at) = match &latest {
        Some(snapshot) => (State::in_snapshot(snapshot), (snapshot.seq(), snapshot.digest())),
        None => {
            let replay = Replay::open(&dir).unwrap();
            (State::default(), (replay.first(), replay.digest()))
        }
    };
    let (mut due, mut lags) = (at.0.plus(STRIDE), at);
    loop {
        let mut replay = Replay::open(&dir).unwrap().from(at.0).unwrap();
        assert_eq!(replay.digest(), at.1);
        while replay.position() < due
            && let Some(record) = replay.next().unwrap()
        {
            if record.is_command() {
                state.apply(record.payload);
            }
        }
        at = (replay.position(), replay.digest());
        if at.0 < due {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let is_directory = (at.0.get() / STRIDE).is_multiple_of(2);
        store(&snapshots, at, state, is_directory);
        writeln!(told, "snapshot {}", at.0).unwrap();
        // It needs more than the snapshot does.
        bookmark.keep(lags.0, lags.1).unwrap();
        writeln!(told, "bookmark {}", lags.0).unwrap();
        lags = at;
        let pruned = prune(&dir, &Retention::new().keep_bytes(0).keep_snapshots(1)).unwrap();
        assert!(pruned.odd.is_empty(), "{pruned:?}");
        writeln!(told, "first {}", pruned.first).unwrap();
        due = at.0.plus(STRIDE);
    }
}

fn store(snapshots: &Snapshots, (seq, digest): (Seq, Digest), state: State, is_directory: bool) {
    if !is_directory {
        snapshots.store(seq, digest, &state.bytes()).unwrap();
        return;
    }
    let writer = snapshots.begin(seq, digest).unwrap();
    fs::create_dir(writer.dir().join("deep")).unwrap();
    fs::write(writer.dir().join("count"), state.count.to_le_bytes()).unwrap();
    fs::write(writer.dir().join("deep/sum"), state.sum.to_le_bytes()).unwrap();
    writer.commit().unwrap();
}

/// Where all of it lies.
struct Place {
    folder: PathBuf,
    _guard: Option<TempDir>,
}

impl Place {
    fn new() -> Place {
        let guard = TempDir::new().unwrap();
        Place { folder: guard.path().into(), _guard: Some(guard) }
    }

    fn of(folder: PathBuf) -> Place {
        Place { folder, _guard: None }
    }

    fn region(&self) -> PathBuf {
        self.folder.join("region")
    }

    fn dir(&self) -> PathBuf {
        self.folder.join("journal")
    }

    fn told(&self) -> PathBuf {
        self.folder.join("told")
    }

    fn engine(&self, crash: Option<&str>) -> Doomed {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "part", "--nocapture"]).env(PART, &self.folder);
        self.start(command, crash)
    }

    fn journal(&self, args: &[&str], crash: Option<&str>) -> Doomed {
        let (region, dir) = (path(&self.region()), path(&self.dir()));
        let command = seriatim(&[&["journal", &region, &dir, "--segment-bytes", SEGMENT], args].concat());
        self.start(command, crash)
    }

    fn start(&self, mut command: Command, crash: Option<&str>) -> Doomed {
        command.envs(crash.map(|crash| ("SERIATIM_CRASH", crash)));
        Doomed::start_into(&mut command, &self.folder.join("parts"))
    }

    /// What was said last of each kind.
    fn last(&self, kind: &str) -> Option<u64> {
        let text = fs::read_to_string(self.told()).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let of_kind = |line: &str| line.strip_prefix(kind).map(|rest| rest.trim().parse().unwrap());
        whole.lines().filter_map(of_kind).next_back()
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir()).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }
}

/// A region with a producer, whose commands say which they are.
struct World {
    place: Place,
    region: Region,
    producer: Producer,
    sent: u64,
    context: String,
    _sequencer: SequencerHandle,
}

impl World {
    fn new(context: String) -> World {
        let place = Place::new();
        let config = Config::new().lane_cells(64).lane_bytes(64 << 10);
        let region = Region::create(place.region(), &config).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let producer = attach(&region, "p");
        World { place, region, producer, sent: 0, context, _sequencer: sequencer }
    }

    /// Submits until that is so, as far as there is room.
    fn submit_until(&mut self, mut is_so: impl FnMut(&Place) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(&self.place) {
            let said = || fs::read_to_string(self.place.folder.join("parts")).unwrap_or_default();
            assert!(Instant::now() < until, "{}: it does not come to it: {}", self.context, said());
            match self.producer.try_submit(0, &payload(self.sent)) {
                Ok(_) => self.sent += 1,
                Err(SubmitError::Full(_)) => {}
                Err(error) => panic!("{}: {error}", self.context),
            }
            // As fast as a disk, so that what there is stays few.
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    fn durable(&self) -> u64 {
        self.region.journal().map_or(0, |journal| journal.durable.get())
    }

    /// That the directory, as it lies there, has all that was told, whoever died or stands.
    fn holds(&self, durable: u64) {
        let (context, place) = (&self.context, &self.place);
        let of = Snapshots::open(place.dir()).unwrap();
        let seqs = of.list().unwrap();
        for &seq in &seqs {
            let snapshot = of.get(seq).unwrap_or_else(|error| panic!("{context}: {error}"));
            let state = State::in_snapshot(&snapshot);
            assert_eq!(state, State::after(state.count), "{context}: at {seq}");
            self.check_tail(snapshot.tail().unwrap(), state.count);
        }
        let latest = seqs.last().map(|seq| seq.get());
        assert!(latest >= place.last("snapshot"), "{context}: {latest:?} {:?}", place.last("snapshot"));
        let marks = Bookmark::list(place.dir()).unwrap();
        let mark = marks.into_iter().map(|mark| mark.unwrap()).find(|mark| mark.name.as_str() == "engine");
        let marked = mark.map(|mark| mark.next.get());
        assert!(marked >= place.last("bookmark"), "{context}: {marked:?} {:?}", place.last("bookmark"));
        let replay = Replay::open(place.dir()).unwrap();
        let (first, end) = (replay.first().get(), replay.end().get());
        assert!(first >= place.last("first").unwrap_or(0), "{context}: {first} {:?}", place.last("first"));
        assert!(
            marked.is_none_or(|at| first <= at) && latest.is_none_or(|at| first <= at),
            "{context}: {first}"
        );
        assert!(end >= durable, "{context}: {durable} was acknowledged, {end} is there");
        let audit = verify(place.dir()).unwrap();
        assert!(audit.problems.is_empty(), "{context}: {audit:?}");
    }

    /// That commands follow each other, from one on; how many there are then.
    fn check_tail(&self, mut replay: Replay, mut next: u64) -> u64 {
        while let Some(record) = replay.next().unwrap_or_else(|error| panic!("{}: {error}", self.context)) {
            if record.is_command() {
                assert!(record.payload == payload(next), "{}: command {next} is another one", self.context);
                next += 1;
            }
        }
        next
    }

    /// Has an engine and a journal go on, and looks at everything.
    fn finish(mut self) -> u64 {
        self.holds(self.durable());
        let dead = self.region.journal().is_none_or(|journal| !journal.alive);
        let journal = dead.then(|| self.place.journal(&[], None));
        let before = self.place.last("first").unwrap_or(0);
        let engine = self.place.engine(None);
        self.submit_until(|place| place.last("first").unwrap_or(0) > before + STRIDE);
        drop(engine);
        let Sequenced::At(seq) = self.producer.wait_sequenced(self.sent - 1).unwrap() else {
            panic!("it is open")
        };
        let durable = self.region.wait_durable(seq, Instant::now() + PATIENCE);
        durable.unwrap_or_else(|error| panic!("{}: {error}", self.context));
        self.holds(seq.get() + 1);
        let latest = Snapshots::open(self.place.dir()).unwrap().latest().unwrap().unwrap();
        let count = State::in_snapshot(&latest).count;
        assert_eq!(self.check_tail(latest.tail().unwrap(), count), self.sent, "{}", self.context);
        // What the dead left is gone with the next that is stored.
        prune(self.place.dir(), &Retention::new()).unwrap();
        let names = self.place.names();
        let is_left = |name: &String| name.ends_with(".part") || name.ends_with(".mark.new");
        assert!(!names.iter().any(is_left), "{}: {names:?}", self.context);
        drop(journal);
        count
    }
}

/// An engine is killed or stopped at its point; up to where the last snapshot goes then.
fn engine_dies(point: &str, pass: u64, stops: bool) -> u64 {
    let mut world = World::new(format!("{point}:{pass}, stops {stops}"));
    let _journal = world.place.journal(&[], None);
    world.submit_until(|place| place.dir().exists() && Replay::open(place.dir()).is_ok());
    let crash = format!("{point}:{pass}{}", if stops { ":stop" } else { "" });
    let mut victim = world.place.engine(Some(&crash));
    if stops {
        let pid = victim.pid();
        world.submit_until(|_| is_stopped(pid));
        world.holds(world.durable());
        // Who stores meanwhile removes what the dead left, and not what this one is at.
        drop(Snapshots::open(world.place.dir()).unwrap().begin(Seq::new(1), Digest(0)).unwrap());
        victim.signal(Signal::SIGCONT);
        let before = world.place.last("snapshot").unwrap_or(0);
        world.submit_until(|place| {
            assert!(!victim.has_been_killed());
            place.last("snapshot").unwrap_or(0) > before
        });
        victim.signal(Signal::SIGKILL);
        eventually("it is killed", || victim.has_been_killed());
    } else {
        world.submit_until(|_| victim.has_been_killed());
    }
    world.finish()
}

/// A journal that prunes is killed at its point.
fn journal_dies(point: &str, pass: u64) -> u64 {
    let mut world = World::new(format!("{point}:{pass} in a journal"));
    let mut victim = world.place.journal(&["--keep-bytes", "12K"], Some(&format!("{point}:{pass}")));
    world.submit_until(|_| victim.has_been_killed());
    // The next one prunes as well.
    let before = Replay::open(world.place.dir()).unwrap().first();
    let next = world.place.journal(&["--keep-bytes", "12K"], None);
    world.submit_until(|place| Replay::open(place.dir()).unwrap().first() > before.plus(20));
    drop(next);
    world.holds(world.durable());
    let audit = verify(world.place.dir()).unwrap();
    assert!(audit.segments <= 6, "{audit:?}");
    let mut replay = Replay::open(world.place.dir()).unwrap();
    // The first command that is there, and then each in turn.
    let mut next = None;
    while let Some(record) = replay.next().unwrap() {
        if record.is_command() {
            assert_eq!(record.payload, payload(next.unwrap_or(record.index)), "{}", world.context);
            next = Some(record.index + 1);
        }
    }
    next.unwrap()
}

/// The steps at which an engine passes each time, and those that need what went before.
fn passes(point: &str) -> &'static [u64] {
    match point {
        "prune.synced" | "prune.removed" => &[1, 2, 4],
        // A kind of snapshot each.
        _ => &[1, 2],
    }
}

#[test]
fn whoever_dies_at_any_step_of_keeping_and_pruning_what_was_told_is_there() {
    let only = env::var("SERIATIM_CRASH_ONLY").unwrap_or_default();
    let (mut runs, mut points, mut last) = (0, 0, 0);
    for point in seriatim::crash::points().into_iter().filter(|point| point.starts_with(&only)) {
        let is_kept = ["store.", "bookmark.", "prune."].iter().any(|group| point.starts_with(group));
        // A bookmark is removed in a test of its own.
        if !is_kept || ["bookmark.removed", "bookmark.forgotten"].contains(&point) {
            continue;
        }
        points += 1;
        for &pass in passes(point) {
            for stops in [false, true] {
                last += engine_dies(point, pass, stops);
                runs += 1;
            }
        }
        if point.starts_with("prune.") && point != "prune.snapshots" {
            for pass in [1, 3] {
                last += journal_dies(point, pass);
                runs += 1;
            }
        }
    }
    println!("{points} points, {runs} runs, {last} commands in their last snapshots");
    assert!(points > 15 || !only.is_empty(), "{points}");
}

/// A directory with some commands, a snapshot and a bookmark.
fn written() -> (World, u64) {
    let mut world = World::new("written".into());
    let journal = world.place.journal(&[], None);
    world.submit_until(|place| place.dir().exists() && Replay::open(place.dir()).is_ok());
    for n in 0..300 {
        world.producer.submit(0, &payload(n)).unwrap();
    }
    let Sequenced::At(seq) = world.producer.wait_sequenced(world.producer.next_index() - 1).unwrap() else {
        panic!("it is open")
    };
    world.region.wait_durable(seq, Instant::now() + PATIENCE).unwrap();
    drop(journal);
    let dir = world.place.dir();
    let replay = Replay::open(&dir).unwrap().from(Seq::new(200)).unwrap();
    Snapshots::open(&dir).unwrap().store(Seq::new(200), replay.digest(), b"state").unwrap();
    let replay = Replay::open(&dir).unwrap().from(Seq::new(90)).unwrap();
    Bookmark::open(&dir, "slow/one").unwrap().keep(Seq::new(90), replay.digest()).unwrap();
    (world, seq.get() + 1)
}

#[test]
fn a_bookmark_is_forgotten_or_not() {
    for point in ["bookmark.removed", "bookmark.forgotten"] {
        let (world, _) = written();
        let dir = world.place.dir().display().to_string();
        let mut command = seriatim(&["journal", "forget", &dir, "slow/one"]);
        Doomed::start_until(&mut command, &format!("{point}:1")).await_kill(point);
        assert!(verify(&dir).unwrap().problems.is_empty());
        assert!(Bookmark::list(&dir).unwrap().is_empty());
        run(&["journal", "forget", &dir, "slow/one"]).with(1).saying(&["no bookmark"]);
    }
}

#[test]
fn the_tool_prunes_and_says_who_needs_what() {
    let (world, end) = written();
    let dir = world.place.dir().display().to_string();
    let found = run(&["journal", "stat", &dir, "--json"]).with(0).json();
    assert_eq!((&found["first"], &found["end"]), (&0.into(), &end.into()));
    assert_eq!(found["snapshots"][0]["index"], 200);
    assert_eq!(
        (&found["bookmarks"][0]["name"], &found["bookmarks"][0]["next"]),
        (&"slow/one".into(), &90.into())
    );
    let text = run(&["journal", "stat", &dir]).with(0).out;
    assert!(
        text.contains("snapshot at index 200") && text.contains("bookmark \"slow/one\" at index 90"),
        "{text}"
    );
    let held = &found["held"];
    assert_eq!((&held["by"], &held["at"]), (&"the bookmark \"slow/one\"".into(), &90.into()), "{found}");
    assert!(held["segments"].as_u64().unwrap() > 0 && text.contains("\"slow/one\" needs index 90"), "{text}");
    let text = run(&["journal", "verify", &dir]).with(0).out;
    assert!(text.contains("beside it 1 snapshot and 1 bookmark\n"), "{text}");
    let names = world.place.names();
    let prune = |args: &[&str]| run(&[&["journal", "prune", &dir, "--json"], args].concat());
    let planned = prune(&["--keep-bytes", "0", "--dry-run"]).with(0).json();
    assert_eq!(world.place.names(), names);
    assert_eq!(
        (&planned["held"]["by"], &planned["held"]["at"]),
        (&"the bookmark \"slow/one\"".into(), &90.into())
    );
    let pruned = prune(&["--keep-bytes", "0"]).with(0).json();
    assert_eq!(pruned["segments"], planned["segments"]);
    let first = pruned["first"].as_u64().unwrap();
    assert!(first > 0 && first <= 90, "{pruned}");
    assert!(prune(&["--keep-for", "1d"]).with(0).json()["segments"] == Value::Array(Vec::new()));
    run(&["replay", &dir, "--from", "0"]).with(2).saying(&["is not in"]);
    run(&["journal", "forget", &dir, "slow/one"]).with(0);
    let pruned = prune(&["--keep-bytes", "0"]).with(0).json();
    assert_eq!(pruned["held"]["by"], "the snapshot at index 200");
    run(&["journal", "verify", &dir]).with(0);
    run(&["journal", "forget", &dir, "--snapshot", "200"]).with(0);
    run(&["journal", "forget", &dir, "--snapshot", "200"]).with(1).saying(&["no snapshot at index 200"]);
    let text = run(&["journal", "prune", &dir, "--keep-bytes", "0"]).with(0).out;
    assert!(text.contains("the first index is"), "{text}");
    assert_eq!(world.place.names().iter().filter(|name| name.ends_with(".seg")).count(), 1);
    for bad in [
        &["--keep-bytes", "x"][..],
        &["--keep-for", "soon"],
        &["--keep-snapshots", "-1"],
        &["--keep-snapshots", "0"],
    ] {
        prune(bad).with(2);
    }
    run(&["journal", "prune", &world.place.folder.display().to_string()]).with(2).saying(&["no journal"]);
    run(&["journal", "forget", &dir]).with(2);
}

/// What is damaged is told by `verify` and `stat`, and a prune that does not know what a reader needs removes nothing.
#[test]
fn damage_beside_the_segments_is_named() {
    let (world, end) = written();
    let dir = world.place.dir();
    let text = dir.display().to_string();
    for (file, code) in [("slow%2fone.mark", 2), ("00000000000000000200.snap/files/state", 0)] {
        let path = dir.join(file);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        let found = run(&["journal", "verify", &text]).with(1).out;
        assert!(found.contains(file) && found.contains("it does not hold"), "{found}");
        let names = world.place.names().len();
        run(&["journal", "prune", &text, "--keep-bytes", "0"]).with(code);
        assert!(code == 0 || world.place.names().len() == names);
        fs::write(&path, whole).unwrap();
    }
    // Of a journal that was cut or replaced.
    let mut ahead = Bookmark::open(&dir, "ahead").unwrap();
    ahead.keep(Seq::new(end + 3), Digest::default()).unwrap();
    let found = run(&["journal", "verify", &text]).with(1).out;
    let needs = format!("ahead.mark needs index {}, expected {end} at most", end + 3);
    assert!(found.contains(&needs), "{found}");
    ahead.remove().unwrap();
    run(&["journal", "verify", &text]).with(0);
    let manifest = dir.join("00000000000000000200.snap/manifest");
    fs::write(&manifest, b"none").unwrap();
    run(&["journal", "stat", &text]).with(1);
    run(&["journal", "prune", &text]).with(1);
    let error = Snapshots::open(&dir).unwrap().latest().unwrap_err();
    assert!(matches!(error, SnapshotError::Damaged(_)), "{error}");
}
