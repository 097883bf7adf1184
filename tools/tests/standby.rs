//! A standby beside a region under load: everything but it is killed, again and again, and it takes over each time; and it
//! is killed itself at each step of following and of being promoted.
//!
//! ```text
//! cargo test -p seriatim-tools --features crash-points --test standby -- --nocapture
//! ```
//!
//! `SERIATIM_LONG=1` makes more rounds of it.

mod common;
mod engine;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::doomed::Doomed;
use common::told::{acknowledged, is_all_there, payload, produce};
use common::*;
use nix::sys::signal::Signal;
use seriatim::journal::{Bookmark, Duty, Journal, JournalOptions, Replay, verify};
use seriatim::{Config, Producer, Region, Seq, Sequencer, SequencerConfig};
use tempfile::TempDir;

const PART: &str = "SERIATIM_STANDBY_PART";
const PRODUCERS: [&str; 2] = ["p0", "p1"];

/// What the producers of a test do. Does nothing as a test.
#[test]
fn part() {
    let Ok(text) = env::var(PART) else { return };
    let [name, region, file] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("bad part {text:?}") };
    produce(&Region::attach(region).unwrap(), name, Path::new(file));
}

/// A standby that follows.
fn follow(source: &str, dir: &str, args: &[&str]) -> Running {
    let all = [&["journal", "follow", source, dir, "--segment-bytes", "64K", "--every", "0"], args].concat();
    let mut running = Running::start(seriatim(&all).stderr(Stdio::null()));
    let line = running.line();
    assert!(line.starts_with("following ") || line.starts_with('{'), "{line}: {:?}", running.end());
    running
}

/// Where all of it is.
struct Place {
    folder: TempDir,
    disk: TempDir,
}

impl Place {
    fn file(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    fn dir(&self, number: u64) -> String {
        path(&self.file(&format!("journal-{number}")))
    }

    fn region(&self, round: u64) -> String {
        path(&self.folder.path().join(format!("region-{round}")))
    }

    fn acknowledged(&self) -> u64 {
        PRODUCERS.iter().map(|name| acknowledged(&self.file(name))).sum()
    }

    fn produce(&self, name: &str, region: &str) -> Doomed {
        let mut command: Command = engine::this_program();
        command.env(PART, format!("{name} {region} {}", path(&self.file(name))));
        Doomed::start_into(&mut command, &self.file("parts"))
    }
}

#[test]
fn everything_but_the_standby_is_killed_and_it_takes_over() {
    let place = Place { folder: scratch(), disk: TempDir::new().unwrap() };
    let config = Config::new().lane_cells(32).lane_bytes(4096).producers(4).workers(4);
    drop(Region::create(place.region(0), &config).unwrap());
    let (mut primary, mut spare, mut dirs) = (place.dir(0), place.dir(1), 2);
    let rounds = times(7, 30);
    for round in 0..rounds {
        let (region, what) = (place.region(round), format!("round {round}"));
        let mut serving = Running::start(&mut seriatim(&["sequence", &region, "--journal", &primary]));
        assert!(serving.line().starts_with("serving "), "{what}: {:?}", serving.end());
        let mut journal = write_journal(&region, &primary, &["--segment-bytes", "32K"]);
        // What was superseded comes back as a standby.
        let adopts: &[&str] = if fs::exists(&spare).unwrap() { &["--adopt"] } else { &[] };
        let mut standby = follow(&primary, &spare, adopts);
        let mut producers: Vec<_> = PRODUCERS.iter().map(|name| place.produce(name, &region)).collect();
        let (before, goal) = (place.acknowledged(), 200 + round * 37 % 300);
        eventually(&what, || {
            producers.iter_mut().for_each(|producer| producer.lives(&what));
            place.acknowledged() >= before + goal && end_of(&spare) > before
        });
        // Not always in the same order.
        if round % 2 == 0 {
            journal.signal(Signal::SIGKILL);
            serving.signal(Signal::SIGKILL);
            drop(producers);
        } else {
            drop(producers);
            serving.signal(Signal::SIGKILL);
            journal.signal(Signal::SIGKILL);
        }
        serving.end();
        journal.end();
        fs::remove_file(&region).unwrap();
        let promoted = if round % 3 == 2 {
            // The first one's disk is lost as well, when the standby has seen all of it.
            eventually("it has caught up", || end_of(&spare) == end_of(&primary));
            let end = end_of(&primary);
            fs::remove_dir_all(&primary).unwrap();
            standby.signal(Signal::SIGTERM);
            let ended = standby.end().with(0);
            assert!(ended.out.contains(&format!("sealed {spare} at index {end}")), "{ended:?}");
            run(&["journal", "promote", &spare]).with(2).saying(&["by force"]);
            let promoted = run(&["journal", "promote", &spare, "--force", "--json"]).with(1).json();
            assert!(promoted["fenced"] == false && promoted["next"] == end, "{promoted}");
            promoted
        } else {
            standby.stop().with(0);
            let text = run(&["sequence", &region, "--journal", &spare]).with(2);
            text.saying(&["is a standby of", "promote"]);
            let promoted = run(&["journal", "promote", &spare, "--json"]).with(0).json();
            assert!(promoted["fenced"] == true && promoted["next"] == end_of(&primary), "{promoted}");
            // Nobody goes on in the first one.
            run(&["sequence", &region, "--journal", &primary]).with(2).saying(&["superseded", &spare]);
            assert_same(&primary, &spare);
            promoted
        };
        let audit = verify(&spare).unwrap();
        assert!(audit.is_sound(), "{what}: {audit:?}");
        assert_eq!(promoted["digest"], audit.digest.to_string());
        (primary, spare) = if fs::exists(&primary).unwrap() {
            (spare, primary)
        } else {
            dirs += 1;
            (spare, place.dir(dirs))
        };
    }
    is_all_there(&primary, &PRODUCERS, place.disk.path(), |_| {});
}

/// That two directories have the same records, in segments of their own.
fn assert_same(one: &str, other: &str) {
    let (mut one, mut other) = (Replay::open(one).unwrap(), Replay::open(other).unwrap());
    loop {
        let (a, b) = (one.next().unwrap(), other.next().unwrap());
        assert!(a == b, "{a:?} and {b:?}");
        if a.is_none() {
            return;
        }
    }
}

// ---- killed at each step ----------------------------------------------------------------------------------

/// A journal of so many commands, that nobody writes any more.
fn written(dir: &Path, commands: u64) {
    let region = Region::anonymous(&Config::new().lane_cells(1024)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let options = JournalOptions::new().segment_bytes(16 << 10).timeout(ANSWER);
    let mut journal = Journal::open(&region, dir, &options).unwrap();
    let mut producer = Producer::attach(&region, "p0").unwrap();
    for index in 0..commands {
        producer.submit(1, &payload("p0", index)).unwrap();
        if index % 16 == 15 {
            while journal.poll().unwrap() > 0 {}
        }
    }
    producer.wait_sequenced(commands - 1).unwrap();
    while journal.poll().unwrap() > 0 {}
    // As one that was killed leaves it.
    drop(journal);
    sequencer.stop().unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Who meets the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// The first standby of a directory.
    First,
    /// One that goes on where another one was killed.
    Successor,
    /// Who promotes what was killed.
    Promotion,
}

fn scenes(point: &str) -> &'static [Scene] {
    use Scene::{First, Promotion, Successor};
    match point.split_once('.').expect("a point is of a group") {
        ("journal", "told" | "released") => &[],
        ("journal", "mending" | "mended") => &[Successor, Promotion],
        // What is taken at once is not small.
        ("journal", "prepared") => &[],
        ("journal", _) => &[First, Successor, Promotion],
        ("standby", _) => &[First, Successor],
        ("bookmark", "removed" | "forgotten") => &[Promotion],
        ("bookmark", _) => &[First, Successor, Promotion],
        ("promote", _) => &[Promotion],
        _ => &[],
    }
}

fn passes(point: &str, scene: Scene) -> &'static [u64] {
    match point {
        // It takes the rest into one segment, in one batch.
        _ if scene == Scene::Promotion => &[1],
        "journal.part" | "journal.written" | "journal.synced" | "standby.staged" => &[1, 2, 7],
        "journal.footer" | "journal.cut" | "journal.sealed" => &[1, 3],
        "journal.complete" | "journal.named" | "journal.begun" => &[1, 2, 3, 5],
        "journal.reserved" | "journal.header" => &[1, 2, 4],
        _ => &[1],
    }
}

/// Whoever reads the source, and needs little more of it.
const READER: &str = "reader";

/// The bookmarks of a directory: whose, and at which index.
fn marks(dir: &str) -> Vec<(String, u64)> {
    let marks = Bookmark::list(dir).unwrap().into_iter().map(|mark| mark.unwrap());
    marks.map(|mark| (mark.name.to_string(), mark.next.get())).collect()
}

fn readers(dir: &str) -> Vec<String> {
    marks(dir).into_iter().map(|(name, _)| name).collect()
}

fn dies(source: &Path, point: &str, pass: u64, scene: Scene) {
    let (context, folder) = (format!("{point}:{pass} in {scene:?}"), TempDir::new().unwrap());
    let (from, dir) = (folder.path().join("source"), folder.path().join("dir"));
    copy(source, &from);
    let (from, dir) = (path(&from), path(&dir));
    let following = ["journal", "follow", &from, &dir, "--segment-bytes", "4K"];
    let start = |args: &[&str], crash: &str| Doomed::start_until(&mut seriatim(args), crash);
    if scene != Scene::First {
        // It leaves a segment with records, that nobody has sealed.
        start(&following, "journal.written:9").await_kill(&context);
    }
    let crash = format!("{point}:{pass}");
    if scene == Scene::Promotion {
        start(&["journal", "promote", &dir], &crash).await_kill(&context);
        // At most one of both can be gone on with.
        let duties = [Duty::of(&from).unwrap(), Duty::of(&dir).unwrap()];
        let is_promoted = duties[1] == Duty::Journal;
        assert!(!is_promoted || matches!(duties[0], Duty::Superseded { .. }), "{context}: {duties:?}");
        assert_eq!(is_promoted, point == "promote.done", "{context}");
    } else {
        start(&following, &crash).await_kill(&context);
        let standby = follow(&from, &dir, &[]);
        eventually(&context, || end_of(&dir) == end_of(&from));
        standby.stop().with(0);
    }
    if Duty::of(&dir).unwrap() != Duty::Journal {
        run(&["journal", "promote", &dir]).with(0);
    }
    assert_same(&from, &dir);
    let audit = verify(&dir).unwrap();
    assert!(audit.is_sound(), "{context}: {audit:?}");
    assert_eq!(readers(&from), [READER], "{context}: its own bookmark went");
    assert_eq!(marks(&dir), marks(&from), "{context}: the reader's came along");
    let restored = Region::restore(folder.path().join("region"), &dir, &Config::new()).unwrap();
    assert_eq!((restored.next, restored.digest), (audit.end, audit.digest), "{context}");
    assert!(Region::restore(folder.path().join("other"), &from, &Config::new()).is_err(), "{context}");
}

#[test]
fn a_standby_that_dies_at_any_step_goes_on_and_is_promoted_whole_or_not_at_all() {
    let only = env::var("SERIATIM_CRASH_ONLY").unwrap_or_default();
    let disk = TempDir::new().unwrap();
    let source = disk.path().join("source");
    written(&source, 300);
    // So late that who is killed on the way does not have what is before.
    let replay = Replay::open(&source).unwrap();
    let late = Seq::new(replay.end().get() - 3);
    let digest = replay.from(late).unwrap().digest();
    Bookmark::open(&source, READER).unwrap().keep(late, digest).unwrap();
    let (mut runs, mut points) = (0, 0);
    for point in seriatim::crash::points().into_iter().filter(|point| point.starts_with(&only)) {
        points += u64::from(!scenes(point).is_empty());
        for &scene in scenes(point) {
            for &pass in passes(point, scene) {
                dies(&source, point, pass, scene);
                runs += 1;
            }
        }
    }
    println!("{points} points, {runs} runs");
    assert!(points > 15 || !only.is_empty(), "{points}");
}

/// The name of the only bookmark in a directory.
fn bookmark_of(dir: &str) -> String {
    let found = run(&["journal", "stat", dir, "--json"]).with(0).json();
    assert_eq!(found["bookmarks"].as_array().unwrap().len(), 1, "{found}");
    found["bookmarks"][0]["name"].as_str().unwrap().into()
}

/// What an operator does by hand, and what is refused.
#[test]
fn the_tool_follows_promotes_and_says_how_far_it_is() {
    let (folder, disk) = (scratch(), TempDir::new().unwrap());
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let (orders, spare) = (path(&disk.path().join("orders")), path(&disk.path().join("spare")));
    run(&["journal", "follow", &orders, &spare]).with(2).saying(&[&orders]);
    let mut journal = write_journal(&region, &orders, &[]);
    run_with(&["submit", &region, "-", "--durable"], b"one\ntwo\n").with(0);
    run(&["journal", "follow", &orders, &orders]).with(2).saying(&["cannot follow itself"]);
    let standby = follow(&orders, &spare, &["--json"]);
    let name = bookmark_of(&orders);
    assert!(name.starts_with("standby-") && name.ends_with("-spare"), "{name}");
    run(&["journal", "forget", &orders, &name]).with(2).saying(&["another process has the bookmark", &name]);
    run(&["journal", "follow", &orders, &spare]).with(2).saying(&["a standby of", &spare, "end it first"]);
    eventually("it has caught up", || end_of(&spare) == end_of(&orders));
    let found = run(&["journal", "stat", &spare, "--json"]).with(0).json();
    assert_eq!((&found["standby_of"], &found["source_end"]), (&orders.clone().into(), &found["end"]));
    let text = run(&["journal", "stat", &spare]).with(0).out;
    assert!(text.contains(&format!("standby of {orders}, 0 indexes behind it")), "{text}");
    run(&["journal", &region, &spare, "--name", "other"]).with(2);
    run(&["journal", "promote", &spare]).with(2).saying(&[
        "a standby of",
        &spare,
        "journal follow",
        "SIGTERM",
    ]);
    let said = standby.stop().with(0).out;
    let last = said.lines().rfind(|line| line.contains("source_end")).unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert!(last["behind"] == 0 && last["next"] == last["source_end"], "{last}");
    run(&["journal", "promote", &spare]).with(1).saying(&["a journal writes into", &orders]);
    run(&["journal", "promote", &orders]).with(2).saying(&["is no standby's"]);
    run_with(&["submit", &region, "-", "--durable"], b"three\n").with(0);
    journal.signal(Signal::SIGKILL);
    journal.end();
    let promoted = run(&["journal", "promote", &spare]).with(0).out;
    assert!(promoted.contains("promoted ") && promoted.contains("of them taken just now"), "{promoted}");
    assert_eq!(run(&["replay", &spare]).with(0).out, "one\ntwo\nthree\n");
    run(&["journal", &region, &orders]).with(2).saying(&["superseded", &spare]);
    let text = run(&["journal", "stat", &orders]).with(0).out;
    assert!(text.contains(&format!("superseded by {spare}")) && !text.contains("bookmark \""), "{text}");
    run(&["journal", "follow", &orders, &spare]).with(2).saying(&["no standby's", "--adopt"]);
    sequencer.stop();
    // The same region goes on elsewhere.
    let again = path(&folder.path().join("again"));
    let mut serving = Running::start(&mut seriatim(&["sequence", &again, "--journal", &spare]));
    assert!(serving.line().starts_with("serving "));
    let journal = write_journal(&again, &spare, &[]);
    run_with(&["submit", &again, "-", "--durable"], b"four\n").with(0);
    assert_eq!(run(&["replay", &spare]).with(0).out, "one\ntwo\nthree\nfour\n");
    journal.stop().with(0);
    serving.stop().with(0);
}

/// Who reads with a bookmark goes on in the directory that was promoted: no line is there twice, and none is missing; also if
/// all that was there before is gone.
#[test]
fn a_reader_goes_on_in_the_directory_that_was_promoted() {
    for is_gone in [false, true] {
        let (folder, disk) = (scratch(), TempDir::new().unwrap());
        let [orders, spare, out] = ["orders", "spare", "out"].map(|name| path(&disk.path().join(name)));
        let (region, again) = (create(&folder, "region", &[]), path(&folder.path().join("again")));
        let submit = |region: &str, lines: std::ops::Range<u64>| {
            let lines: String = lines.map(|n| format!("{n}\n")).collect();
            run_with(&["submit", region, "-", "--durable"], lines.as_bytes()).with(0);
        };
        let read = |region: &str, dir: &str, last: u64| {
            let resume = ["worker", region, "--journal", dir, "--name", "audit", "--resume", "--out", &out];
            let running = Running::start(&mut seriatim(&resume));
            let printed = || fs::read_to_string(&out).unwrap_or_default();
            eventually("all of it is printed", || printed().ends_with(&format!("{last}\n")));
            running
        };
        let mut sequencer = sequence(&region);
        let mut journal = write_journal(&region, &orders, &[]);
        submit(&region, 0..300);
        read(&region, &orders, 299).stop().with(0);
        let standby = follow(&orders, &spare, &[]);
        submit(&region, 300..400);
        eventually("it has caught up", || end_of(&spare) == end_of(&orders));
        if is_gone {
            // While it follows.
            eventually("the bookmark has come along", || readers(&spare) == ["audit"]);
        }
        for running in [&mut journal, &mut sequencer] {
            running.signal(Signal::SIGKILL);
        }
        journal.end();
        sequencer.end();
        if is_gone {
            fs::remove_dir_all(&orders).unwrap();
        }
        standby.stop().with(0);
        let args = ["journal", "promote", &spare, "--force"];
        let promoted = run(&args[..if is_gone { 4 } else { 3 }]).with(i32::from(is_gone)).out;
        assert!(!promoted.contains("NOT go along"), "{promoted}");
        assert_eq!(readers(&spare), ["audit"]);
        let mut serving = Running::start(&mut seriatim(&["sequence", &again, "--journal", &spare]));
        assert!(serving.line().starts_with("serving "));
        let journal = write_journal(&again, &spare, &[]);
        read(&again, &spare, 399).stop().with(0);
        submit(&again, 400..500);
        read(&again, &spare, 499).stop().with(0);
        let printed = fs::read_to_string(&out).unwrap();
        let expected: String = (0..500).map(|n| format!("{n}\n")).collect();
        assert_eq!(printed, expected, "is gone: {is_gone}");
        journal.stop().with(0);
        serving.stop().with(0);
    }
}

/// A standby that was promoted by force took the place of a journal that had more: that is not adopted and lost.
#[test]
fn what_it_alone_has_is_not_adopted_and_lost() {
    let disk = TempDir::new().unwrap();
    let [orders, spare, other] = ["orders", "spare", "other"].map(|name| path(&disk.path().join(name)));
    let region = Region::anonymous(&Config::new().lane_cells(1024)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut journal = Journal::open(&region, &orders, &JournalOptions::new().timeout(ANSWER)).unwrap();
    let mut producer = Producer::attach(&region, "p0").unwrap();
    let mut write = |count: u64| {
        for _ in 0..count {
            producer.submit(1, b"more").unwrap();
        }
        producer.wait_sequenced(producer.next_index() - 1).unwrap();
        while journal.poll().unwrap() > 0 {}
    };
    write(20);
    let standby = follow(&orders, &spare, &[]);
    eventually("it has caught up", || end_of(&spare) == end_of(&orders));
    standby.stop().with(0);
    write(15);
    drop(journal);
    drop(producer);
    sequencer.stop().unwrap();
    let (had, has) = (end_of(&spare), end_of(&orders));
    assert!(has >= had + 15);
    let nowhere = path(&disk.path().join("nowhere"));
    run(&["journal", "promote", &spare, "--source", &nowhere, "--force"]).with(1);
    let text = run(&["journal", "follow", &spare, &orders, "--adopt"]).with(1);
    text.saying(&[&orders, &format!("ends at index {has}"), &format!("expected {had} at most")]);
    assert_eq!(Duty::of(&orders).unwrap(), Duty::Journal);
    assert_eq!(end_of(&orders), has);
    // Nor has it gone if the one that it follows is not to be seen.
    run(&["journal", "follow", &nowhere, &orders, "--adopt"]).with(2);
    assert_eq!(Duty::of(&orders).unwrap(), Duty::Journal);
    // An empty directory can follow; what the old bookmark held goes with it.
    follow(&spare, &other, &[]).stop().with(0);
    run(&["journal", "forget", &orders, &bookmark_of(&orders)]).with(0);
    run(&["journal", "promote", &other, "--json"]).with(0);
}

/// A source in which nothing can be written is followed without a bookmark, and that is said once.
#[test]
fn a_source_that_cannot_be_written_is_followed_without_a_bookmark() {
    let disk = TempDir::new().unwrap();
    let [orders, spare] = ["orders", "spare"].map(|name| disk.path().join(name));
    written(&orders, 100);
    // Nobody can lock what is a directory: also not who may write everywhere.
    fs::remove_file(orders.join("lock")).unwrap();
    fs::create_dir(orders.join("lock")).unwrap();
    let (orders, spare) = (path(&orders), path(&spare));
    let mut standby = Running::start(&mut seriatim(&["journal", "follow", &orders, &spare, "--every", "0"]));
    let line = standby.line();
    assert!(line.starts_with("following ") && line.ends_with("without a bookmark there"), "{line}");
    eventually("it has caught up", || end_of(&spare) == end_of(&orders));
    let ended = standby.stop().with(0);
    ended.saying(&["no bookmark \"standby-", &orders, "does not wait for this standby"]);
    assert!(Bookmark::list(&orders).unwrap().is_empty());
}

/// What its bookmark held was given up: it says so, and with what it is promoted by force.
#[test]
fn one_that_pruning_has_overtaken_says_so() {
    let disk = TempDir::new().unwrap();
    let [orders, spare] = ["orders", "spare"].map(|name| disk.path().join(name));
    written(&orders, 300);
    let (orders, spare) = (path(&orders), path(&spare));
    let following = ["journal", "follow", &orders, &spare, "--segment-bytes", "4K"];
    let mut dying = Doomed::start(seriatim(&following).env("SERIATIM_CRASH", "journal.written:2"));
    dying.await_kill("it has begun");
    let pruned = run(&["journal", "prune", &orders, "--keep-bytes", "0", "--json"]).with(0).json();
    assert!(pruned["held"]["by"].as_str().unwrap().contains("standby-"), "{pruned}");
    assert_eq!(pruned["first"], 0, "it still needs that");
    run(&["journal", "forget", &orders, &bookmark_of(&orders)]).with(0);
    run(&["journal", "prune", &orders, "--keep-bytes", "0"]).with(0);
    let first = Replay::open(&orders).unwrap().first();
    for refused in [&following[..], &["journal", "promote", &spare]] {
        run(refused).with(1).saying(&[
            &format!("begins at index {first} now"),
            "was pruned there",
            "by force",
        ]);
    }
    let end = end_of(&spare);
    let promoted = run(&["journal", "promote", &spare, "--force", "--json"]).with(1).json();
    assert!(promoted["next"] == end && promoted["fenced"] == true, "{promoted}");
    assert!(promoted["trouble"].as_str().unwrap().contains("was pruned there"), "{promoted}");
}
