//! A journal, and who orders for it, killed and stopped at every step of writing, syncing, sealing, rotating, recovering,
//! and of attaching; then all that was acknowledged as durable is there, once, with its bytes, and the next one goes on.
//!
//! ```text
//! cargo test -p seriatim-tools --features crash-points --test journal_crash -- --nocapture
//! ```

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::doomed::Doomed;
use common::*;
use nix::sys::signal::Signal;
use seriatim::journal::{Audit, Replay, verify};
use seriatim::{
    AttachError, Config, Producer, Region, Sequenced, Sequencer, SequencerConfig, SequencerHandle,
    SubmitError,
};
use tempfile::TempDir;

/// Who meets the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// The first journal of a directory.
    First,
    /// One that takes up what a predecessor left which was killed while it wrote.
    Successor,
    /// The sequencer, when a journal takes up what another one left.
    Sequencer,
}

fn scenes(point: &str) -> &'static [Scene] {
    use Scene::{First, Sequencer, Successor};
    match point.split_once('.').expect("a point is of a group") {
        ("journal", "mending" | "mended") => &[Successor],
        ("journal", _) => &[First, Successor],
        ("attach", step) if step != "resumed" => &[First, Successor],
        ("party", "asked" | "told" | "begun") | ("join", "cursor") => &[First, Successor],
        ("take-up", _) => &[Sequencer],
        _ => &[],
    }
}

fn passes(point: &str) -> &'static [u64] {
    match point {
        "journal.part" | "journal.written" | "journal.synced" | "journal.told" | "journal.released" => {
            &[1, 2, 3, 7]
        }
        "journal.footer" | "journal.cut" | "journal.sealed" => &[1, 2],
        // In recovery, for the first segment, and for one that follows.
        "journal.complete" | "journal.named" | "journal.begun" | "journal.reserved" | "journal.header" => {
            &[1, 2, 3]
        }
        _ => &[1],
    }
}

/// A region with a producer, whose commands say which they are.
struct World {
    _folder: TempDir,
    region: Region,
    path: String,
    disk: TempDir,
    sent: u64,
    context: String,
}

fn payload(n: u64) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(8 + (n * 37 % 300) as usize, n as u8);
    if n.is_multiple_of(16) {
        bytes.resize(1_500, 7);
    }
    bytes
}

impl World {
    fn new(context: String) -> World {
        let folder = scratch();
        let path = folder.path().join("region");
        let config = Config::new().lane_cells(64).lane_bytes(64 << 10);
        let region = Region::create(&path, &config).expect("room for a region");
        let (path, disk) = (path.display().to_string(), TempDir::new().unwrap());
        World { _folder: folder, region, path, disk, sent: 0, context }
    }

    fn serve(&self) -> SequencerHandle {
        Sequencer::spawn(&self.region, SequencerConfig::new()).unwrap()
    }

    fn dir(&self) -> &Path {
        self.disk.path()
    }

    fn journal(&self) -> Command {
        let dir = path(self.dir());
        let mut journal = seriatim(&["journal", &self.path, &dir, "--segment-bytes", "4K"]);
        journal.stderr(Stdio::null());
        journal
    }

    /// Submits until that is so, as far as there is room.
    fn submit_until(&mut self, producer: &mut Producer, mut is_so: impl FnMut(u64) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self.sent) {
            assert!(Instant::now() < until, "{}: it does not come to it", self.context);
            match producer.try_submit(0, &payload(self.sent)) {
                Ok(_) => self.sent += 1,
                Err(SubmitError::Full(_)) => std::thread::sleep(std::time::Duration::from_micros(200)),
                Err(error) => panic!("{}: {error}", self.context),
            }
        }
    }

    /// What was acknowledged so far.
    fn acknowledged(&self) -> u64 {
        self.region.journal().map_or(0, |journal| journal.durable.get())
    }

    /// That a directory as it lies there has all up to an index, whoever died; it may have more.
    fn holds(&self, acknowledged: u64) {
        if acknowledged == 0 {
            return;
        }
        let replay = Replay::open(self.dir()).unwrap_or_else(|error| panic!("{}: {error}", self.context));
        let end = replay.end().get();
        assert!(end >= acknowledged, "{}: {acknowledged} was acknowledged, {end} is there", self.context);
        self.compare(replay);
    }

    /// That what is there is what was sent, each once, in order.
    fn compare(&self, mut replay: Replay) -> u64 {
        let mut next = 0;
        while let Some(record) = replay.next().unwrap_or_else(|error| panic!("{}: {error}", self.context)) {
            if record.producer != 0 {
                assert!(record.payload == payload(next), "{}: command {next} is another one", self.context);
                next += 1;
            }
        }
        next
    }

    /// Has a last journal write all that is there, and looks at everything.
    fn finish(&mut self, producer: &mut Producer) -> Audit {
        let acknowledged = self.acknowledged();
        self.holds(acknowledged);
        let last = Doomed::start(&mut self.journal());
        let until = self.sent + 30;
        self.submit_until(producer, |sent| sent == until);
        let Sequenced::At(seq) = producer.wait_sequenced(self.sent - 1).unwrap() else {
            panic!("it is open")
        };
        let durable = self.region.wait_durable(seq, Instant::now() + PATIENCE);
        durable.unwrap_or_else(|error| panic!("{}: {error}", self.context));
        last.end();
        let audit = verify(self.dir()).unwrap();
        assert!(audit.is_sound(), "{}: {audit:?}", self.context);
        assert!(audit.end > seq);
        assert_eq!(self.compare(Replay::open(self.dir()).unwrap()), self.sent, "{}", self.context);
        // And it is the order's history.
        let snapshot = self.region.snapshot();
        let gate = snapshot.workers.iter().find(|worker| worker.party.name == "journal").expect("it stays");
        assert_eq!((gate.next, gate.digest), (audit.end, Some(audit.digest)), "{}", self.context);
        audit
    }
}

fn attach(region: &Region) -> Producer {
    loop {
        match Producer::attach(region, "p") {
            Ok(producer) => return producer,
            Err(AttachError::TimedOut { .. } | AttachError::NoSequencer { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A journal is killed or stopped at its point; how many records the directory has at the end.
fn journal_dies(point: &str, pass: u64, scene: Scene, stops: bool) -> u64 {
    let context = format!("{point}:{pass} in {scene:?}, stops {stops}");
    let mut world = World::new(context);
    let _sequencer = world.serve();
    let mut producer = attach(&world.region);
    if scene == Scene::Successor {
        let mut first = Doomed::start_until(&mut world.journal(), "journal.written:5");
        world.submit_until(&mut producer, |_| first.has_been_killed());
        world.holds(world.acknowledged());
    }
    let crash = format!("{point}:{pass}{}", if stops { ":stop" } else { "" });
    let mut victim = Doomed::start_until(&mut world.journal(), &crash);
    if stops {
        let pid = victim.pid();
        world.submit_until(&mut producer, |_| is_stopped(pid));
        world.holds(world.acknowledged());
        victim.signal(Signal::SIGCONT);
        // It goes on, and is ended like any other.
        let region = world.region.clone();
        let target = world.acknowledged() + 20;
        world.submit_until(&mut producer, |_| {
            region.journal().is_some_and(|journal| journal.durable.get() > target)
        });
        victim.end();
    } else {
        world.submit_until(&mut producer, |_| victim.has_been_killed());
    }
    world.finish(&mut producer).records
}

/// The sequencer is killed while it has a journal take up another one's gate.
fn sequencer_dies(point: &str) -> u64 {
    let mut world = World::new(point.into());
    let mut serving = Doomed::start_until(&mut seriatim(&["sequence", &world.path]), &format!("{point}:1"));
    let mut producer = attach(&world.region);
    let mut first = Doomed::start_until(&mut world.journal(), "journal.written:5");
    world.submit_until(&mut producer, |_| first.has_been_killed());
    let second = Doomed::start(&mut world.journal());
    eventually("the sequencer is killed", || serving.has_been_killed());
    let _sequencer = world.serve();
    let (region, target) = (world.region.clone(), world.acknowledged() + 20);
    world.submit_until(&mut producer, |_| {
        region.journal().is_some_and(|journal| journal.durable.get() > target)
    });
    second.end();
    world.finish(&mut producer).records
}

#[test]
fn whoever_dies_at_any_step_of_a_journal_nothing_acknowledged_is_lost() {
    let only = std::env::var("SERIATIM_CRASH_ONLY").unwrap_or_default();
    let (mut runs, mut records, mut points) = (0, 0, 0);
    for point in seriatim::crash::points().into_iter().filter(|point| point.starts_with(&only)) {
        points += u64::from(!scenes(point).is_empty());
        for &scene in scenes(point) {
            if scene == Scene::Sequencer {
                records += sequencer_dies(point);
                runs += 1;
                continue;
            }
            for &pass in passes(point) {
                for stops in [false, true] {
                    records += journal_dies(point, pass, scene, stops);
                    runs += 1;
                }
            }
        }
    }
    println!("{points} points, {runs} runs, {records} records checked");
    assert!(points > 20 || !only.is_empty(), "{points}");
}
