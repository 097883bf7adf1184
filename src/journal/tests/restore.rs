//! A region from its journal: what goes on, what is gone, and what is left alone.

use std::os::unix::fs::FileExt;

use seriatim_ring::incarnations::{HELLO, Hello};
use tempfile::TempDir;

use super::*;
use crate::journal::{Journal, JournalOptions, OnFailure, RestoreError, Restored};
use crate::name::Name;
use crate::region::header::Identity;
use crate::region::snapshot::State;
use crate::{
    AttachOptions, Attached, Config, Event, JoinOptions, Producer, ProducerRole, Region, Sequenced,
    Sequencer, SequencerConfig, SequencerHandle, Worker,
};

const LONG: Duration = Duration::from_secs(60);

/// A region, what serves it, and where its journal goes.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: TempDir::new().unwrap() }
    }

    fn region(&self) -> std::path::PathBuf {
        self.folder.path().join("region")
    }

    fn dir(&self) -> std::path::PathBuf {
        self.folder.path().join("journal")
    }

    fn create(&self, config: &Config) -> (Region, SequencerHandle, Journal) {
        let region = Region::create(self.region(), config).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let journal = self.journal(&region);
        (region, sequencer, journal)
    }

    fn options(&self) -> JournalOptions {
        JournalOptions::new().segment_bytes(16 << 10).timeout(LONG)
    }

    fn journal(&self, region: &Region) -> Journal {
        Journal::open(region, self.dir(), &self.options()).unwrap()
    }

    fn restore(&self) -> Result<Restored, RestoreError> {
        Region::restore(self.region(), self.dir(), &Config::new())
    }

    /// The region is lost, and restored.
    fn come_back(&self) -> Restored {
        std::fs::remove_file(self.region()).unwrap();
        self.restore().unwrap()
    }

    fn audit(&self) -> Audit {
        crate::journal::verify(self.dir()).unwrap()
    }
}

fn small() -> Config {
    Config::new().lane_cells(16).lane_bytes(4 << 10).producers(3).workers(4).ranks(2)
}

fn attach(region: &Region, name: &str) -> Producer {
    Producer::attach_with(region, name, &AttachOptions::new().timeout(LONG)).unwrap()
}

fn control(region: &Region, name: &str) -> Producer {
    let options = AttachOptions::new().role(ProducerRole::Controller).timeout(LONG);
    Producer::attach_with(region, name, &options).unwrap()
}

/// Opens an incarnation; its number.
fn hello(region: &Region, controller: &mut Producer, nonce: u64) -> u64 {
    let number = region.map().incarnations().claim(controller.lane(), nonce).unwrap();
    let words = Hello { number, nonce }.encode();
    let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    controller.submit_reserved(HELLO, &payload, None).unwrap();
    number
}

fn join(region: &Region, name: &str) -> Worker {
    Worker::join_with(region, name, &JoinOptions::new().timeout(LONG)).unwrap()
}

fn submit(producer: &mut Producer, payload: &[u8]) -> Seq {
    let index = producer.submit(0, payload).unwrap();
    match producer.wait_sequenced(index).unwrap() {
        Sequenced::At(seq) => seq,
        other => panic!("{other:?}"),
    }
}

fn drain(journal: &mut Journal) {
    while journal.poll().unwrap() > 0 {}
}

/// What a worker finds next, up to a user's command.
fn events(worker: &mut Worker) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(event) = worker.poll().unwrap() {
        all.push(match event {
            Event::Command(command) => {
                format!("{}:{}", command.index, String::from_utf8_lossy(command.payload))
            }
            Event::Left(member) => format!("left {}", member.name),
            Event::Joined(member) => format!("joined {}", member.name),
            Event::Opened { epoch, .. } => format!("opened {epoch}"),
            other => format!("{other:?}"),
        });
    }
    all
}

#[test]
fn what_goes_on_is_the_same_region() {
    let place = Place::new();
    let (region, sequencer, mut journal) = place.create(&small().first_index(100));
    let mut worker = join(&region, "w");
    let (mut p, mut q) = (attach(&region, "p"), attach(&region, "q"));
    let mut log = Vec::new();
    for i in 0..40 {
        submit(&mut p, format!("p{i}").as_bytes());
        if i % 3 == 0 {
            submit(&mut q, format!("q{i}").as_bytes());
        }
        drain(&mut journal);
        log.extend(events(&mut worker));
    }
    let big = vec![7; 100_000];
    submit(&mut q, &big);
    drain(&mut journal);
    // This is in the order, and in no journal.
    submit(&mut p, b"lost");
    let (uuid, digest, next) = (region.uuid(), journal.written_digest(), journal.next());
    let numbers = (p.number(), q.number(), worker.number());
    drop((p, q, worker, journal));
    sequencer.stop().unwrap();
    drop(region);

    let restored = place.come_back();
    assert_eq!((restored.next, restored.digest.0), (next, digest));
    let region = restored.region;
    assert_eq!((region.uuid(), region.geometry()), (uuid, small().layout().unwrap().geometry));
    assert!(region.verify().is_sound(), "{:?}", region.verify());
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    // The order waits for the journal, and names it.
    let waiting = region.journal().unwrap();
    assert!(!waiting.alive && waiting.durable == next, "{waiting}");
    let mut journal = place.journal(&region);
    let mut worker = join(&region, "w");
    let (mut p, mut q) = (attach(&region, "p"), attach(&region, "q"));
    assert_eq!(p.attached(), Attached::Resumed { next: 40 });
    assert_eq!(q.attached(), Attached::Resumed { next: 15 });
    assert_eq!((p.number(), q.number()), (numbers.0, numbers.1));
    assert!(worker.number() > numbers.2);
    submit(&mut p, b"again");
    let mut third = attach(&region, "third");
    assert!(third.number() > numbers.0.max(numbers.1) && third.attached() == Attached::New);
    submit(&mut third, b"third");
    submit(&mut q, &big);
    drain(&mut journal);
    let found = events(&mut worker);
    assert!(found.contains(&"40:again".into()) && found.contains(&"0:third".into()), "{found:?}");
    assert_eq!((worker.next(), worker.digest().0), (journal.next(), journal.written_digest()));
    journal.close().unwrap();
    sequencer.close().unwrap();
    // One history: those who gated have left, there is one epoch more, and no index of a producer is missing.
    let audit = place.audit();
    assert!(audit.is_sound(), "{audit:?}");
    let mut replay = Replay::open(place.dir()).unwrap();
    let mut said = Vec::new();
    while let Some(record) = replay.next().unwrap() {
        match record.event() {
            Some(Event::Left(member)) => said.push(format!("left {} {}", member.name, member.number)),
            Some(Event::Opened { epoch, .. }) => said.push(format!("opened {epoch}")),
            _ => {}
        }
    }
    assert_eq!(said, ["opened 2".to_string(), format!("left w {}", numbers.2)]);
}

/// Again and again, each time from a journal that has the one before as well.
#[test]
fn it_can_be_lost_any_number_of_times() {
    let place = Place::new();
    let (mut region, mut sequencer, mut journal) = place.create(&small());
    let mut sent = 0;
    for round in 0..6 {
        let mut worker = join(&region, "w");
        let mut p = attach(&region, "p");
        assert_eq!(p.next_index(), sent);
        for _ in 0..30 {
            submit(&mut p, format!("{sent}").as_bytes());
            sent += 1;
            drain(&mut journal);
            events(&mut worker);
        }
        let (next, digest) = (worker.next(), worker.digest());
        drain(&mut journal);
        assert_eq!(journal.next(), next);
        drop((p, worker, journal));
        // Closed or not.
        if round % 2 == 0 {
            sequencer.close().unwrap();
        } else {
            sequencer.stop().unwrap();
        }
        drop(region);
        let restored = place.come_back();
        assert_eq!((restored.next, restored.digest), (next, digest));
        region = restored.region;
        sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        assert_eq!(region.snapshot().epoch, round + 2);
        journal = place.journal(&region);
    }
    assert!(place.audit().is_sound());
}

#[test]
fn who_is_current_stays_so_and_numbers_are_not_given_again() {
    let place = Place::new();
    let (region, sequencer, mut journal) = place.create(&small());
    let mut worker = join(&region, "w");
    let (mut old, mut new) = (control(&region, "old"), control(&region, "new"));
    assert_eq!(hello(&region, &mut old, 1), 1);
    assert_eq!(hello(&region, &mut new, 1), 2);
    submit(&mut new, b"heard");
    drain(&mut journal);
    events(&mut worker);
    drop((old, new, worker, journal));
    sequencer.stop().unwrap();
    drop(region);
    let region = place.come_back().region;
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut journal = place.journal(&region);
    let mut worker = join(&region, "w");
    let (mut old, mut new) = (control(&region, "old"), control(&region, "new"));
    submit(&mut old, b"void");
    submit(&mut new, b"heard again");
    let found = events(&mut worker);
    assert!(found.iter().any(|event| event.ends_with("heard again")), "{found:?}");
    assert!(!found.iter().any(|event| event.ends_with("void")), "{found:?}");
    assert_eq!(hello(&region, &mut old, 1), 3);
    submit(&mut old, b"now heard");
    assert!(events(&mut worker).iter().any(|event| event.ends_with("now heard")));
    drain(&mut journal);
    assert!(place.audit().is_sound());
}

/// What is known of the order where a journal begins.
fn first_world(place: &Place) -> World {
    let disk = crate::journal::disk::Local;
    let first = crate::journal::segment::list(&disk, &place.dir()).unwrap()[0];
    crate::journal::segment::Segment::open(&disk, &place.dir(), first, false, true).unwrap().world
}

/// A journal whose gate falls with it has none after it either; and one that begins in the middle of an order knows who was
/// there.
#[test]
fn a_journal_that_begins_in_the_middle_knows_who_was_there() {
    let place = Place::new();
    let region = Region::create(place.region(), &small()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let (mut first, mut second) = (join(&region, "first"), join(&region, "second"));
    let (mut p, mut q) = (attach(&region, "p"), attach(&region, "q"));
    for i in 0..50 {
        submit(&mut p, &[i]);
        submit(&mut q, &[i]);
        events(&mut first);
        if i < 45 {
            events(&mut second);
        }
    }
    // Between the anchor and where the order is, somebody leaves, comes, and gets a lane.
    drop(first);
    let third = join(&region, "third");
    let mut late = attach(&region, "late");
    submit(&mut late, b"1");
    let options = place.options().on_failure(OnFailure::GoOn);
    let mut journal = Journal::open(&region, place.dir(), &options).unwrap();
    let start = journal.next();
    let world = first_world(&place);
    let names =
        |names: Vec<Name>| -> Vec<String> { names.iter().map(|name| name.as_str().to_string()).collect() };
    let members = world.members.iter().filter(|member| member.number != 0);
    let members = names(members.map(|member| Name::from_words(member.name)).collect());
    assert_eq!(members, ["first", "second"], "at {start}");
    let lanes: Vec<_> = world.lanes.iter().skip(1).filter(|lane| lane.number != 0).collect();
    assert_eq!(names(lanes.iter().map(|lane| Name::from_words(lane.name)).collect()), ["p", "q"]);
    // All before it is the sequencer's or of these two.
    assert_eq!(world.lanes.iter().map(|lane| lane.next).sum::<u64>(), start.get());
    events(&mut second);
    drain(&mut journal);
    submit(&mut p, b"more");
    drain(&mut journal);
    let (next, digest) = (journal.next(), journal.written_digest());
    drop((third, late, second, p, q, journal));
    sequencer.stop().unwrap();
    drop(region);
    let audit = place.audit();
    assert!(audit.is_sound(), "{audit:?}");
    let restored = place.come_back();
    assert_eq!((restored.next, restored.digest.0), (next, digest));
    let region = restored.region;
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    assert_eq!(region.journal(), None);
    let expected = [("p", 51), ("q", 50), ("late", 1)];
    for (name, next) in expected {
        assert_eq!(attach(&region, name).attached(), Attached::Resumed { next }, "{name}");
    }
    let mut worker = join(&region, "w");
    let found = events(&mut worker);
    for name in ["second", "third", "journal"] {
        assert!(found.contains(&format!("left {name}")), "{name}: {found:?}");
    }
    assert!(!found.contains(&"left first".into()), "{found:?}");
}

/// Whatever is there that can be gone on with is not thrown away.
#[test]
fn what_is_not_outdated_is_left_alone() {
    let place = Place::new();
    let (region, sequencer, mut journal) = place.create(&small());
    let (mut worker, mut p) = (join(&region, "w"), attach(&region, "p"));
    submit(&mut p, b"1");
    drain(&mut journal);
    // It lives.
    let error = place.restore().unwrap_err();
    assert!(matches!(error, RestoreError::NotBehind { .. }), "{error}");
    let open = || Region::attach_or_restore(place.region(), place.dir(), &Config::new());
    let (same, restored) = open().unwrap();
    assert!(restored.is_none() && same.uuid() == region.uuid());
    // Ahead of its journal, whose gate stands.
    drop(journal);
    submit(&mut p, b"2");
    events(&mut worker);
    assert!(open().unwrap().1.is_none());
    assert!(matches!(place.restore().unwrap_err(), RestoreError::NotBehind { next, end, .. } if next > end));
    drop((worker, p));
    sequencer.stop().unwrap();
    assert!(open().unwrap().1.is_none());
    // The journal was given up, and what it lacks is gone.
    let config = SequencerConfig::new().without_journal(true);
    let sequencer = Sequencer::spawn(&region, config).unwrap();
    let (mut worker, mut p) = (join(&region, "w"), attach(&region, "p"));
    for i in 0..200 {
        submit(&mut p, &[i]);
        events(&mut worker);
    }
    let error = open().unwrap_err();
    assert!(matches!(error, RestoreError::Ahead { start, end, .. } if start > end), "{error}");
    drop((worker, p));
    sequencer.stop().unwrap();
    drop((region, same));
    assert!(matches!(open().unwrap_err(), RestoreError::Ahead { .. }));
    // Another region.
    std::fs::remove_file(place.region()).unwrap();
    drop(Region::create(place.region(), &small()).unwrap());
    assert!(matches!(open().unwrap_err(), RestoreError::OtherRegion { .. }));
    // No region at all, and no journal.
    std::fs::remove_file(place.region()).unwrap();
    let other = place.folder.path().join("nothing");
    let error = Region::attach_or_restore(place.region(), &other, &Config::new()).unwrap_err();
    assert!(matches!(error, RestoreError::Nothing { .. }) && !other.exists(), "{error}");
}

/// A region of another boot, or one that is behind, is replaced; but not under somebody who is attached.
#[test]
fn what_is_outdated_is_replaced_if_nobody_is_attached() {
    let place = Place::new();
    let (region, sequencer, mut journal) = place.create(&small());
    let mut p = attach(&region, "p");
    submit(&mut p, b"1");
    drain(&mut journal);
    sequencer.stop().unwrap();
    drop((p, journal));
    let copy = place.folder.path().join("copy");
    std::fs::copy(place.region(), &copy).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut journal = place.journal(&region);
    let mut p = attach(&region, "p");
    submit(&mut p, b"2");
    drain(&mut journal);
    let next = journal.next();
    sequencer.stop().unwrap();
    drop((p, journal, region));
    // What it was some time ago, in the place of what it is.
    std::fs::rename(&copy, place.region()).unwrap();
    let behind = Region::attach(place.region()).unwrap();
    let sequencer = Sequencer::spawn(&behind, SequencerConfig::new()).unwrap();
    let error = place.restore().unwrap_err();
    assert!(matches!(error, RestoreError::Remove(_)) && error.to_string().contains("in use"), "{error}");
    sequencer.stop().unwrap();
    drop(behind);
    let restored = place.restore().unwrap();
    assert!(restored.next == next && restored.replaced.unwrap().next < next, "{restored}");
    // The same one in another boot.
    let mut identity: Identity = *restored.region.identity();
    drop(restored);
    identity.boot_id = Uuid(1);
    let file = std::fs::File::options().write(true).open(place.region()).unwrap();
    file.write_all_at(&identity.encode(), 0).unwrap();
    let restored = place.restore().unwrap();
    assert!(restored.next == next && restored.replaced.unwrap().is_of_other_boot, "{restored}");
    assert_eq!(restored.region.state(), State::Open);
}

/// A journal that died before it had written that it came: its gate is there again, and that it came is said now.
#[test]
fn a_journal_that_had_written_nothing_has_its_gate_again() {
    let place = Place::new();
    let (region, sequencer, journal) = place.create(&small().first_index(7));
    assert_eq!(journal.next().get(), 7);
    drop(journal);
    sequencer.stop().unwrap();
    drop(region);
    let restored = place.come_back();
    assert_eq!(restored.next.get(), 7);
    let region = restored.region;
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    assert!(region.journal().is_some_and(|journal| !journal.alive));
    // Nobody passes what it has not got.
    let (mut worker, mut p) = (join(&region, "w"), attach(&region, "p"));
    let mut sent = 0;
    while p.try_submit(0, b"x").is_ok() {
        sent += 1;
        events(&mut worker);
        assert!(sent < 1_000);
    }
    let mut journal = place.journal(&region);
    // There is room when both have passed some; the sequencer may not have ordered all of it yet.
    let last = loop {
        drain(&mut journal);
        events(&mut worker);
        match p.try_submit(0, b"there is room") {
            Ok(index) => break index,
            Err(_) => std::thread::yield_now(),
        }
    };
    p.wait_sequenced(last).unwrap();
    drain(&mut journal);
    drop(journal);
    let mut replay = Replay::open(place.dir()).unwrap();
    let (mut joined, mut commands) = (Vec::new(), 0);
    while let Some(record) = replay.next().unwrap() {
        match record.event() {
            Some(Event::Joined(member)) => joined.push(member.name.to_string()),
            _ => commands += u64::from(record.is_command()),
        }
    }
    joined.sort();
    assert_eq!((commands, joined), (sent + 1, vec!["journal".to_string(), "w".to_string()]));
    assert!(place.audit().is_sound());
}

/// What a segment says of the order where it begins is what the one before it leads to; a checksum does not make it so.
#[test]
fn a_world_that_does_not_follow_is_found() {
    let place = Place::new();
    let (region, _sequencer, mut journal) = place.create(&small());
    let mut p = attach(&region, "p");
    for _ in 0..20 {
        submit(&mut p, &[1; 2_000]);
        drain(&mut journal);
    }
    journal.leave().unwrap();
    assert!(place.audit().is_sound());
    let names = std::fs::read_dir(place.dir()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<_> = names.filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
    names.sort();
    let bytes = std::fs::read(&names[1]).unwrap();
    let (header, seed) = crate::journal::format::Header::decode(&bytes).unwrap();
    let world = crate::journal::format::HEADER_BYTES..header.records() as usize;
    let lanes = 96;
    // Epoch, standing, claimed, next producer, next member, the count of the producer's commands, a slot's number.
    for at in [8, 16, 24, 32, 40, lanes + 56 + 8, lanes + 4 * 56 + 48] {
        let mut changed = bytes.clone();
        changed[world.start + at] ^= 1;
        let crc = crc32c::crc32c_append(seed, &changed[world.start + 4..world.end]);
        changed[world.start..world.start + 4].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&names[1], &changed).unwrap();
        let audit = place.audit();
        let damage = audit.problems.first().and_then(|problem| problem.damage());
        let damage = damage.unwrap_or_else(|| panic!("{at}: {audit:?}"));
        assert_eq!((&damage.path, damage.offset), (&names[1], world.start as u64), "{at}: {damage}");
    }
    std::fs::write(&names[1], &bytes).unwrap();
    assert!(place.audit().is_sound());
}

/// An order that was ended for good is not begun again.
#[test]
fn a_poisoned_order_stays_so() {
    let place = Place::new();
    let (region, sequencer, mut journal) = place.create(&small().on_divergence(OnDivergence::Poison));
    let mut workers = [join(&region, "a"), join(&region, "b")];
    let mut p = attach(&region, "p");
    submit(&mut p, b"1");
    // They make different things of it.
    for (fingerprint, worker) in (0..).zip(&mut workers) {
        while let Ok(Some(event)) = worker.poll() {
            if matches!(event, Event::Command(_)) {
                worker.report(fingerprint).unwrap();
                break;
            }
            worker.report(7).unwrap();
        }
    }
    let until = std::time::Instant::now() + LONG;
    while region.state() != State::Poisoned {
        assert!(std::time::Instant::now() < until);
        for worker in &mut workers {
            let _ = worker.poll();
        }
        drain(&mut journal);
    }
    drain(&mut journal);
    drop((workers, p, journal));
    let _ = sequencer.stop();
    drop(region);
    std::fs::remove_file(place.region()).unwrap();
    let error = place.restore().unwrap_err();
    assert!(matches!(error, RestoreError::Poisoned { .. }), "{error}");
    assert!(!place.region().exists());
}

/// A region that is as far as the journal, by another way: a copy that somebody went on with.
#[test]
fn another_history_is_told_and_left_alone() {
    let place = Place::new();
    let (region, sequencer, mut journal) = place.create(&small());
    let mut p = attach(&region, "p");
    submit(&mut p, b"1");
    drain(&mut journal);
    sequencer.stop().unwrap();
    drop((p, journal));
    let copy = place.folder.path().join("copy");
    std::fs::copy(place.region(), &copy).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut journal = place.journal(&region);
    let mut p = attach(&region, "p");
    submit(&mut p, b"2");
    drain(&mut journal);
    sequencer.stop().unwrap();
    drop((p, journal, region));
    std::fs::rename(&copy, place.region()).unwrap();
    let region = Region::attach(place.region()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut p = attach(&region, "p");
    for _ in 0..5 {
        submit(&mut p, b"another");
    }
    sequencer.stop().unwrap();
    drop((p, region));
    let error = place.restore().unwrap_err();
    assert!(matches!(error, RestoreError::OtherHistory { .. }), "{error}");
    let error = Region::attach_or_restore(place.region(), place.dir(), &Config::new()).unwrap_err();
    assert!(matches!(error, RestoreError::OtherHistory { .. }), "{error}");
    Region::attach(place.region()).unwrap();
}
