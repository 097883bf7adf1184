//! Regions as they are left behind, and everything that reads one tried on a damaged one: what the test of damage
//! (`corruption.rs`) and the fuzz target (`fuzz/`) share.
//!
//! Whatever was damaged, each try ends in success or in an error. A worker that checks payloads delivers none that
//! nobody submitted; where the damage is confined to the lanes, none but the one that was submitted at its index.
#![allow(dead_code, reason = "the test and the fuzz target each use some of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use seriatim::{
    AttachOptions, Command, Config, Digest, Event, JoinOptions, Observed, Observer, Producer, Region,
    Sequencer, SequencerConfig, SequencerError, WithoutWorkers, Worker, inspect,
};

/// What was really submitted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Every payload that a producer wrote.
    written: BTreeSet<Vec<u8>>,
    /// Every part of a command.
    parts: BTreeSet<Vec<u8>>,
    /// What is in the order, as far as a worker has seen it: the digest before it, its kind, its payload.
    placed: BTreeMap<u64, (Digest, u16, Vec<u8>)>,
}

/// A region as it was left.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) known: Known,
    /// Commands are held for a worker that lags, so a newcomer gets them.
    pub(crate) holds: bool,
}

fn config() -> Config {
    Config::new().order_slots(8).lane_cells(8).lane_bytes(1024).producers(3).workers(3).ranks(2)
}

/// A payload of `len` bytes that no other number has.
fn payload(number: u64, len: usize) -> Vec<u8> {
    let word = |i: usize| (number << 8 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

/// Regions as they are left: new, closed, with everybody killed in the middle of work.
pub(crate) fn images(folder: &Path) -> Vec<Image> {
    let path = folder.join("new");
    drop(Region::create(&path, &config()).unwrap());
    let mut images = vec![Image { bytes: copy_of(&path), known: Known::default(), holds: false }];
    images.push(discarding(&folder.join("discarding")));
    for life in 0..4 {
        images.extend(live(life, &folder.join(format!("life-{life}"))));
    }
    images
}

fn discarding(path: &Path) -> Image {
    let region = Region::create(path, &config().without_workers(WithoutWorkers::Discard)).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut producer = Producer::attach(&region, "p0").unwrap();
    let mut known = Known::default();
    for n in 0..40 {
        let bytes = payload(n, 60);
        producer.submit(n as u16, &bytes).unwrap();
        known.written.insert(bytes);
    }
    Image { bytes: copy_of(path), known, holds: false }
}

/// The file as it was at one moment. A sequencer is about: what it stores while the file is read must not be there in
/// part, for no death leaves that. Words that only grow and are the same twice were there together.
fn copy_of(path: &Path) -> Vec<u8> {
    let mut last = fs::read(path).unwrap();
    loop {
        let next = fs::read(path).unwrap();
        if next == last {
            return last;
        }
        last = next;
    }
}

/// Two producers and two workers at work, copied now and then and at the end.
fn live(life: usize, path: &Path) -> Vec<Image> {
    let region = Region::create(path, &config()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let [mut w0, mut w1] =
        [0, 1].map(|r| Worker::join_with(&region, &format!("w{r}"), &JoinOptions::new().rank(r)).unwrap());
    let mut p0 = Producer::attach(&region, "p0").unwrap();
    let mut p1 = Producer::attach(&region, "p1").unwrap();
    let mut known = Known::default();
    let mut images = Vec::new();
    let copy = |known: &Known, holds| Image { bytes: copy_of(path), known: known.clone(), holds };
    // In one life a worker lags, so that much is held; payloads are small enough for three rounds.
    let (longest, lags) = if life == 3 { (100, true) } else { (250, false) };
    for n in 0..40 + life {
        let bytes = payload((life * 100 + n) as u64, n * 37 % longest);
        let half = &bytes[..bytes.len() / 2];
        p0.submit(1, &bytes).unwrap();
        p1.submit_batch(&[(2, half), (3, b"x")]).unwrap();
        p1.wait_sequenced(p1.next_index() - 1).unwrap();
        known.written.extend([bytes.clone(), half.to_vec(), b"x".to_vec()]);
        if n % 4 == 1 {
            // What is for one rank, and what has parts; so short that all fits for as long as nobody passes it.
            let (third, parts) = (&bytes[..bytes.len() / 3], [&half[..half.len().min(30)], b"part"]);
            p0.submit_to(n as u16 / 4 % 2, 6, third).unwrap();
            p0.submit_parts(7, b"shared", &parts).unwrap();
            p0.wait_sequenced(p0.next_index() - 1).unwrap();
            known.written.extend([third.to_vec(), b"shared".to_vec()]);
            known.parts.extend(parts.map(<[u8]>::to_vec));
        }
        while let Some(event) = w0.poll().unwrap() {
            if let Event::Command(Command { seq, digest, kind, payload, .. }) = event {
                known.placed.insert(seq.get(), (digest, kind, payload.to_vec()));
            }
        }
        let waits = if lags { n % 3 != 0 } else { life == 2 && n >= 39 };
        while !waits && w1.poll().unwrap().is_some() {}
        if n % 9 == 0 || (lags && n % 6 == 2) {
            images.push(copy(&known, waits));
        }
    }
    while w1.poll().unwrap().is_some() {}
    let mut room = p1.claim(4, 100).unwrap();
    room.fill(7);
    images.push(copy(&known, false));
    drop(room);
    drop((w0, p0));
    if life == 1 {
        sequencer.stop().unwrap();
        let bytes = b"nobody has ordered this".to_vec();
        p1.submit(5, &bytes).unwrap();
        known.written.insert(bytes);
    } else {
        sequencer.close().unwrap();
    }
    images.push(copy(&known, false));
    images
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The region could not be attached to.
    Refused,
    /// It could not be sequenced.
    Unsequenced,
    /// It was served, and closed.
    Closed,
    /// Somebody met damage later, or it was stuck.
    Later,
}

/// A file, what is known of it, and how it is treated.
pub(crate) struct Trial<'a> {
    pub(crate) path: &'a Path,
    pub(crate) known: &'a Known,
    /// Nothing but the lanes is damaged.
    pub(crate) only_lanes: bool,
    /// Whether the file may be shortened.
    pub(crate) guard: bool,
    /// For answers that may never come.
    pub(crate) soon: Duration,
    /// A number below the given one.
    pub(crate) choose: &'a mut dyn FnMut(u64) -> u64,
    /// Called between two steps, and may damage the file.
    pub(crate) strike: &'a mut dyn FnMut(),
    /// Payloads that were delivered and are right.
    pub(crate) right: u64,
}

impl Trial<'_> {
    /// Attaches, and looks at what is there without serving it.
    pub(crate) fn attach(&mut self) -> Option<Region> {
        if let Ok(inspection) = inspect(self.path) {
            let _ = format!("{inspection:?}");
        }
        let reader = Region::attach_read_only(self.path).ok();
        let region = Region::attach(self.path).ok()?;
        if self.guard {
            for region in reader.iter().chain([&region]) {
                region.guard().expect("few regions are guarded");
            }
        }
        (self.strike)();
        if let Some(reader) = &reader {
            look(reader);
        }
        watch(&mut Observer::attach(&region).ok());
        Some(region)
    }

    /// Sequences by hand, for a few turns.
    pub(crate) fn sequence(&mut self, region: &Region) -> End {
        let mut bystander = Observer::attach(region).ok();
        let mut sequencer = match Sequencer::open(region) {
            Ok(sequencer) => sequencer,
            Err(error) => return told(&error, End::Unsequenced),
        };
        for _ in 0..4 {
            (self.strike)();
            watch(&mut bystander);
            if let Err(error) = sequencer.poll(4) {
                return told(&error, End::Later);
            }
        }
        sequencer.close();
        match sequencer.poll(4) {
            Ok(turn) if turn.closed => End::Closed,
            Ok(_) => End::Later,
            Err(error) => told(&error, End::Later),
        }
    }

    /// Serves it, with a producer, a worker and somebody who looks on.
    pub(crate) fn serve(&mut self, region: &Region) -> End {
        let mut bystander = Observer::attach(region).ok();
        let sequencer = match Sequencer::spawn(region, SequencerConfig::new().close_timeout(self.soon)) {
            Ok(sequencer) => sequencer,
            Err(error) => return told(&error, End::Unsequenced),
        };
        self.work(region);
        watch(&mut bystander);
        look(region);
        (self.strike)();
        match sequencer.close() {
            Ok(stats) if stats.closed => End::Closed,
            Ok(_) => End::Later,
            Err(error) => told(&error, End::Later),
        }
    }

    /// Joins, attaches, submits, receives, each for a moment at most.
    fn work(&mut self, region: &Region) {
        let mut written = BTreeSet::new();
        // What the tool does, most of the time.
        let checks = (self.choose)(8) != 0;
        let mut options = JoinOptions::new().timeout(self.soon).check_payloads(checks);
        if let rank @ 0..2 = (self.choose)(3) {
            options = options.rank(rank as u16);
        }
        let mut worker = Worker::join_with(region, &format!("w{}", (self.choose)(4)), &options).ok();
        let options = AttachOptions::new().timeout(self.soon);
        let mut producer = Producer::attach_with(region, &format!("p{}", (self.choose)(4)), &options).ok();
        let mut kind_was_wrong = false;
        let mut receive = |trial: &mut Self, written: &BTreeSet<Vec<u8>>| {
            (trial.strike)();
            for _ in 0..200 {
                match worker.as_mut().map(Worker::poll) {
                    Some(Ok(Some(Event::Command(command)))) if checks => {
                        trial.compare(written, &command, &mut kind_was_wrong);
                    }
                    Some(Ok(Some(_))) => {}
                    Some(Err(error)) => return drop(error.to_string()),
                    Some(Ok(None)) | None => return,
                }
            }
        };
        receive(self, &written);
        if let Some(producer) = &mut producer {
            for n in 0..12 {
                let bytes = payload(1000 + n, (self.choose)(257) as usize);
                let third = &bytes[..bytes.len() / 3];
                written.extend([bytes.clone(), third.to_vec(), b"y".to_vec()]);
                let _ = producer.try_submit(n as u16, &bytes).map_err(|error| error.to_string());
                (self.strike)();
                let _ = producer.try_submit_batch(&[(n as u16, third), (n as u16, b"y")]);
                let _ = producer.try_submit_to((self.choose)(3) as u16, n as u16, third);
                let _ = producer.try_submit_parts(n as u16, third, &[b"part".as_slice(), b""]);
                receive(self, &written);
            }
            written.insert(b"z".to_vec());
            let _ = producer.submit_deadline(9, b"z", Instant::now() + self.soon);
            receive(self, &written);
            if let Some(last) = producer.next_index().checked_sub(1) {
                let _ = producer.wait_sequenced_deadline(last, Instant::now() + self.soon);
            }
        }
        receive(self, &written);
    }

    /// A payload that a worker delivered which checks them is not silently wrong.
    fn compare(&mut self, written: &BTreeSet<Vec<u8>>, command: &Command<'_>, kind_was_wrong: &mut bool) {
        let Command { seq, payload, kind, digest, part, .. } = *command;
        let is_known = self.known.written.contains(payload) || written.contains(payload);
        let is_part = |part: &[u8]| part.is_empty() || part == b"part" || self.known.parts.contains(part);
        assert!(part.is_none_or(is_part), "nobody submitted the part that was delivered at {seq}: {part:?}");
        assert!(is_known, "nobody submitted what was delivered at {seq}: {payload:?}");
        if let Some((before, placed_kind, placed)) =
            self.known.placed.get(&seq.get()).filter(|_| self.only_lanes)
        {
            assert!(payload == placed, "delivered at {seq}: {payload:?}, submitted: {placed:?}");
            // A kind is not in the digest of the payload, but in that of the order.
            assert!(
                !*kind_was_wrong || digest != *before,
                "a damaged kind before {seq} has the right digest"
            );
            *kind_was_wrong |= kind != *placed_kind;
        }
        self.right += 1;
    }
}

/// What `stat`, `verify` and `errors` print.
fn look(region: &Region) {
    let snapshot = region.snapshot();
    let held = snapshot.held_by.map(|held| held.to_string());
    let errors: Vec<String> = region.errors().records.iter().map(ToString::to_string).collect();
    let _ = (snapshot.living(), held, errors, format!("{snapshot:?}"));
    let found = region.verify();
    let _ = (found.is_sound(), format!("{found:?}"));
}

/// Reads all that an observer is given.
fn watch(observer: &mut Option<Observer>) {
    for _ in 0..100 {
        match observer.as_mut().map(Observer::poll) {
            Some(Ok(Some(Observed::Event(event)))) => drop(format!("{event:?}")),
            Some(Ok(Some(Observed::Missed { from, to }))) => assert!(from <= to, "missed {from} to {to}"),
            Some(Err(error)) => return drop(error.to_string()),
            Some(Ok(None)) | None => return,
        }
    }
}

/// An error is an end, if it is no panic.
fn told(error: &SequencerError, end: End) -> End {
    assert!(!matches!(error, SequencerError::Panicked(_)), "{error}");
    let _ = error.to_string();
    end
}
