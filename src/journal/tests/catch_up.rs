//! Workers that come late: what they are handed, from the journal and then live, is what one got that was there from the
//! start, whatever happens meanwhile.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use seriatim_ring::incarnations::{HELLO, Hello, INITIALIZED};
use tempfile::TempDir;

use super::*;
use crate::error::AttachError;
use crate::journal::{
    CatchUp, CatchUpError, Journal, JournalOptions, OnFailure, ReplayError, Retention, prune,
};
use crate::poison::OnDivergence;
use crate::region::snapshot::State;
use crate::{
    AttachOptions, Config, Digest, Event, JoinOptions, Producer, ProducerRole, Region, Sequenced, Sequencer,
    SequencerConfig, SequencerHandle, Worker, WorkerError,
};

const LONG: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + LONG
}

/// A region, what serves it, and its journal, written when a test says so.
struct Place {
    region: Region,
    _sequencer: SequencerHandle,
    disk: MemoryDisk,
    journal: Option<Journal>,
}

fn options() -> JournalOptions {
    JournalOptions::new().segment_bytes(8 << 10).timeout(LONG)
}

fn join_options() -> JoinOptions {
    JoinOptions::new().timeout(LONG)
}

/// Lanes so small that what all have passed is soon gone.
fn small() -> Config {
    Config::new().lane_cells(16).lane_bytes(8 << 10).order_slots(64).producers(4).workers(6).ranks(2)
}

impl Place {
    fn new(config: &Config) -> Place {
        Self::with(config, &options())
    }

    fn with(config: &Config, options: &JournalOptions) -> Place {
        let region = Region::anonymous(config).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let disk = MemoryDisk::default();
        let journal = Journal::open_on(Arc::new(disk.clone()), &region, dir(), options).unwrap();
        Place { region, _sequencer: sequencer, disk, journal: Some(journal) }
    }

    /// Has the journal write all that is there.
    fn drain(&mut self) {
        while self.journal.as_mut().is_some_and(|journal| journal.poll().unwrap() > 0) {}
    }

    fn attach(&self, name: &str, role: ProducerRole) -> Producer {
        let options = AttachOptions::new().role(role).timeout(LONG);
        Producer::attach_with(&self.region, name, &options).unwrap()
    }

    fn producer(&self, name: &str) -> Producer {
        self.attach(name, ProducerRole::Injector)
    }

    fn open(&self, name: &str, from: Seq, options: &JoinOptions) -> Result<CatchUp, CatchUpError> {
        CatchUp::open_on(Arc::new(self.disk.clone()), &self.region, name, dir(), from, options)
    }

    /// Joins as [`Worker::join_from`] does.
    fn join_from(
        &self,
        name: &str,
        from: Seq,
        options: &JoinOptions,
        mut handle: impl FnMut(Event<'_>),
    ) -> Result<Worker, CatchUpError> {
        let mut history = self.open(name, from, options)?;
        while !history.is_near() {
            history.poll_batch(7, &mut handle)?;
        }
        history.join(handle)
    }
}

/// What somebody was handed at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    seq: u64,
    /// Of all that it says, each byte of it.
    content: u64,
}

fn seen(event: &Event<'_>) -> Seen {
    let content = match event {
        Event::Command(command) => {
            let crate::Command { seq, producer, index, kind, payload, part, address, digest } = *command;
            let body = [payload_digest(payload), part.map_or(0, payload_digest), u64::from(part.is_some())];
            let told = [seq.get(), producer, index, kind.into(), address.code().into(), digest.0];
            let words: Vec<u8> = told.iter().chain(&body).flat_map(|word| word.to_le_bytes()).collect();
            payload_digest(&words)
        }
        other => payload_digest(format!("{other:?}").as_bytes()),
    };
    Seen { seq: event.seq().get(), content }
}

/// All that is there for a worker.
fn take(worker: &mut Worker, into: &mut Vec<Seen>) {
    while let Some(event) = worker.poll().unwrap() {
        into.push(seen(&event));
    }
}

/// That one was handed exactly what another was from an index on, as far as it has come.
fn same_from(from: Seq, late: &[Seen], early: &[Seen], to: Seq) {
    let within = |seen: &&Seen| seen.seq >= from.get() && seen.seq < to.get();
    let expected: Vec<_> = early.iter().filter(within).copied().collect();
    assert!(!expected.is_empty());
    let differs = late.iter().zip(&expected).find(|(late, early)| late != early);
    assert_eq!(differs, None, "from {from}");
    assert_eq!(late.len(), expected.len(), "from {from}");
}

fn sequenced(producer: &mut Producer, index: u64) -> Seq {
    match producer.wait_sequenced(index).unwrap() {
        Sequenced::At(seq) => seq,
        other => panic!("{other:?}"),
    }
}

fn submit(producer: &mut Producer, payload: &[u8]) -> Seq {
    let index = producer.submit(3, payload).unwrap();
    sequenced(producer, index)
}

/// That one who could not stay gates no more.
fn await_leave(region: &Region, name: &str) {
    let until = soon();
    while region.snapshot().workers.iter().any(|w| w.party.name == name && w.party.attached) {
        assert!(Instant::now() < until, "{name} stays");
        std::thread::yield_now();
    }
}

/// Opens an incarnation; its number.
fn hello(region: &Region, controller: &mut Producer, nonce: u64) -> u64 {
    region.make_writable("a controller", &[crate::region::layout::Part::Channel]).unwrap();
    let number = region.map().incarnations().claim(controller.lane(), nonce).unwrap();
    let words = Hello { number, nonce }.encode();
    let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    controller.submit_reserved(HELLO, &payload, None).unwrap();
    number
}

/// Commands of every kind, of each length that takes another way; what is written and had by whom in between is `each`'s.
fn of_all_kinds(place: &mut Place, rounds: u64, mut each: impl FnMut(&mut Place)) {
    let mut plain = place.producer("plain");
    let mut controllers: Vec<_> =
        (0..2).map(|n| place.attach(&format!("c{n}"), ProducerRole::Controller)).collect();
    for round in 0..rounds {
        let len = [0, 3, 40, 41, 700, 5_000, 90_000][(round % 7) as usize];
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + round) as u8).collect();
        let mut last = plain.submit(round as u16, &bytes).unwrap();
        match round % 5 {
            0 => last = plain.submit_to((round / 5 % 2) as u16, 9, &bytes).unwrap(),
            1 => last = plain.submit_parts(8, b"for both", &[&bytes, &b"the other"[..]]).unwrap(),
            2 => last = plain.submit_parts(8, &bytes, &[b"one", &bytes[..]]).unwrap(),
            _ => {}
        }
        sequenced(&mut plain, last);
        let current = &mut controllers[(round / 3 % 2) as usize];
        if round % 3 == 0 {
            hello(&place.region, current, round);
            let index = current.submit_reserved(INITIALIZED, &[], None).unwrap();
            sequenced(current, index);
        }
        for controller in &mut controllers {
            // That of the one which is superseded is void.
            let index = controller.submit(4, b"by whom?").unwrap();
            sequenced(controller, index);
        }
        each(place);
    }
}

/// Late ones of each rank and of none, at indexes all over the history, are handed what those were who were there from the
/// start: from the journal, and live.
#[test]
fn a_late_worker_is_handed_what_one_from_the_start_was() {
    let mut place = Place::new(&small());
    let region = place.region.clone();
    let ranks = [None, Some(0), Some(1)];
    let with = |rank: Option<u16>| {
        let options = join_options().check_payloads(true);
        rank.map_or(options.clone(), |rank| options.rank(rank))
    };
    let mut early = ranks.map(|rank| {
        let name = format!("early {rank:?}");
        (Worker::join_with(&region, &name, &with(rank)).unwrap(), Vec::new())
    });
    of_all_kinds(&mut place, 40, |place| {
        place.drain();
        early.iter_mut().for_each(|(worker, seen)| take(worker, seen));
    });
    assert!(place.disk.segments().len() > 10);
    let first = early[2].0.first();
    let superseded = early[0].0.superseded();
    assert!(superseded > 20, "{superseded}");
    // Ranks are free again, but for the first, which has none.
    let [mut early, second, third] = early;
    let (second, third) = {
        let ((left, second), (also, third)) = (second, third);
        drop((left, also));
        (second, third)
    };
    let end = early.0.next();
    place.drain();
    for from in [first, first.plus(1), first.plus(57), first.plus(200), end] {
        for (rank, had) in [(Some(0), &second), (Some(1), &third)] {
            let mut late = Vec::new();
            let mut worker =
                place.join_from("late", from, &with(rank), |event| late.push(seen(&event))).unwrap();
            assert_eq!(worker.rank(), rank);
            take(&mut worker, &mut late);
            late.retain(|seen| seen.seq < end.get());
            if from < end {
                same_from(from, &late, had, end);
            }
        }
        let mut late = Vec::new();
        let mut worker = place.join_from("late", from, &with(None), |event| late.push(seen(&event))).unwrap();
        assert!(worker.first() >= from && worker.next() == worker.first());
        of_all_kinds(&mut place, 6, |place| {
            place.drain();
            take(&mut early.0, &mut early.1);
            take(&mut worker, &mut late);
        });
        same_from(from, &late, &early.1, early.0.next());
        let told =
            |worker: &Worker| (worker.next(), worker.digest(), worker.incarnation(), worker.controller());
        assert_eq!(told(&worker), told(&early.0));
        if from == first {
            assert_eq!(worker.superseded(), early.0.superseded());
        }
        assert!(late.iter().filter(|seen| seen.seq >= worker.first().get()).count() > 10);
    }
}

/// Where the journal is ahead of what the region keeps, that is folded and not handed out a second time.
#[test]
fn what_the_ring_has_and_the_journal_had_before_is_handed_out_once() {
    let mut place = Place::new(&small().lane_cells(256).order_slots(512));
    let mut producer = place.producer("p");
    let mut early = Worker::join_with(&place.region, "early", &join_options()).unwrap();
    let mut had = Vec::new();
    for n in 0..100_u64 {
        submit(&mut producer, &n.to_le_bytes());
    }
    place.drain();
    // It gates at its beginning: nothing is let go.
    let mut late = Vec::new();
    let from = early.first();
    let mut history = place.open("late", from, &join_options()).unwrap();
    while history.poll_batch(10, |event| late.push(seen(&event))).unwrap() > 0 {}
    let (next, digest) = (history.next(), history.digest());
    assert!(history.is_near() && place.region.snapshot().anchor < next);
    // What lies between there and its own joining is handed out as it would be to any other: also what lies in no lane.
    submit(&mut producer, &[5; 90_000]);
    let mut worker = history.join(|event| panic!("{event:?} was handed out")).unwrap();
    assert_eq!((worker.first(), worker.next(), worker.digest()), (next, next, digest));
    // Others see it pass what it does not need.
    let slot = usize::from(worker.slot());
    assert_eq!(place.region.snapshot().workers[slot].next, next);
    submit(&mut producer, b"last");
    take(&mut worker, &mut late);
    take(&mut early, &mut had);
    same_from(from, &late, &had, early.next());
}

/// Where the region has let go of what comes next, the journal is read on to where it keeps.
#[test]
fn what_the_region_let_go_meanwhile_comes_from_the_journal() {
    let mut place = Place::new(&small());
    let mut producer = place.producer("p");
    let mut early = Worker::join_with(&place.region, "early", &join_options()).unwrap();
    let (mut had, mut late) = (Vec::new(), Vec::new());
    let mut run = |place: &mut Place, early: &mut Worker, had: &mut Vec<Seen>, count: u64| {
        for n in 0..count {
            submit(&mut producer, &n.to_le_bytes());
            place.drain();
            take(early, had);
        }
    };
    run(&mut place, &mut early, &mut had, 100);
    let from = Seq::new(had[5].seq);
    let mut history = place.open("late", from, &join_options()).unwrap();
    history.poll_batch(10, |event| late.push(seen(&event))).unwrap();
    assert!(!history.is_near());
    let stood = history.next();
    run(&mut place, &mut early, &mut had, 300);
    assert!(place.region.snapshot().anchor > stood.plus(200));
    let before = late.len();
    let mut worker = history.join(|event| late.push(seen(&event))).unwrap();
    assert!(late.len() - before > 200);
    assert!(worker.first() > stood.plus(200));
    run(&mut place, &mut early, &mut had, 3);
    take(&mut worker, &mut late);
    same_from(from, &late, &had, early.next());
}

/// Who goes on with what it had before can say what that was: of another history it is told before it is handed anything.
#[test]
fn one_that_goes_on_with_another_history_is_told() {
    let mut place = Place::new(&small());
    let mut producer = place.producer("p");
    let mut early = Worker::join_with(&place.region, "early", &join_options()).unwrap();
    let mut had = Vec::new();
    for (is_written, moves_on) in [(true, false), (false, false), (false, true)] {
        for is_right in [true, false] {
            submit(&mut producer, b"one");
            place.drain();
            if !is_written {
                submit(&mut producer, b"more");
            }
            take(&mut early, &mut had);
            let (from, digest) = (early.next(), early.digest());
            let expected = if is_right { digest } else { Digest(7) };
            let check = |error: CatchUpError| {
                let told = matches!(&error, CatchUpError::OtherHistory { seq, found, expected, .. }
                    if (*seq, *found, *expected) == (from, digest, Digest(7)));
                assert!(told && !is_right, "{error}");
            };
            let history = place.open("late", from, &join_options()).unwrap();
            let history = match history.expecting(expected) {
                Ok(history) => history,
                Err(error) => {
                    check(error);
                    assert!(is_written);
                    continue;
                }
            };
            for _ in 0..if moves_on { 300 } else { 0 } {
                submit(&mut producer, b"meanwhile");
                place.drain();
                take(&mut early, &mut had);
            }
            let mut next = from;
            match history.join(|event| next = event.seq().plus(1)) {
                Ok(worker) => assert!(is_right && worker.first() == next && (next > from) == moves_on),
                Err(error) => {
                    check(error);
                    assert!(!is_written && next == from);
                }
            }
        }
    }
}

/// One that was ahead of the journal when it died goes on where it was: what it had is not handed out again, wherever the
/// two meet.
#[test]
fn who_was_ahead_of_the_journal_goes_on_there() {
    for moves_on in [false, true] {
        let mut place = Place::new(&small().lane_cells(256));
        let mut producer = place.producer("p");
        let mut early = Worker::join_with(&place.region, "early", &join_options()).unwrap();
        let (mut had, mut late) = (Vec::new(), Vec::new());
        for n in 0..50_u64 {
            submit(&mut producer, &n.to_le_bytes());
        }
        take(&mut early, &mut had);
        let (from, digest) = (early.next(), early.digest());
        let history = place.open("late", from, &join_options()).unwrap();
        assert_eq!((history.next(), history.lag()), (from, 0));
        assert!(history.digest() != digest, "the journal is not there yet");
        if moves_on {
            for n in 0..400_u64 {
                submit(&mut producer, &n.to_le_bytes());
                place.drain();
                take(&mut early, &mut had);
            }
            assert!(place.region.snapshot().anchor > from);
        }
        let mut worker = history.join(|event| late.push(seen(&event))).unwrap();
        if !moves_on {
            assert_eq!((worker.first(), worker.digest(), late.len()), (from, digest, 0));
        }
        submit(&mut producer, b"last");
        take(&mut worker, &mut late);
        take(&mut early, &mut had);
        same_from(from, &late, &had, early.next());
        // What nobody has had yet is no place to go on.
        let beyond = early.next().plus(1_000);
        let error = place.open("too late", beyond, &join_options()).unwrap_err();
        let told =
            matches!(&error, CatchUpError::Journal(ReplayError::NotThere { seq, .. }) if *seq == beyond);
        assert!(told && error.to_string().contains(DIR), "{error}");
    }
}

/// An order that went on without its journal has lost what lies between: that is said, with both indexes, at once.
#[test]
fn an_order_that_went_on_without_its_journal_is_a_gap() {
    let mut place = Place::with(&small(), &options().on_failure(OnFailure::GoOn));
    let mut producer = place.producer("p");
    let mut early = Worker::join_with(&place.region, "early", &join_options()).unwrap();
    let mut had = Vec::new();
    let mut run = |early: &mut Worker| {
        for n in 0..200_u64 {
            submit(&mut producer, &n.to_le_bytes());
            take(early, &mut had);
        }
    };
    place.journal.take().unwrap().leave().unwrap();
    let end = Replay::open_on(Arc::new(place.disk.clone()), dir(), true).unwrap().end();
    let from = Seq::ZERO;
    let reading = place.open("reading", from, &join_options()).unwrap();
    let mut joining = place.open("joining", from, &join_options()).unwrap();
    while joining.poll_batch(100, |_| {}).unwrap() > 0 {}
    assert!(joining.is_near());
    run(&mut early);
    let is_gap = |error: CatchUpError| {
        let floor = place.region.snapshot().anchor;
        let text = error.to_string();
        let CatchUpError::Gap { end: found, start, .. } = error else { panic!("{text}") };
        assert!(found == end && start > end && start <= floor, "{text}");
        assert!(text.contains(&format!("index {end}")) && text.contains(&start.to_string()), "{text}");
    };
    is_gap(place.open("new", from, &join_options()).unwrap_err());
    let mut reading = reading;
    let error = loop {
        match reading.poll_batch(100, |_| {}) {
            Ok(0) => panic!("it is said"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    is_gap(error);
    // It has been let in, and has left again.
    is_gap(joining.join(|_| {}).unwrap_err());
    await_leave(&place.region, "joining");
    run(&mut early);
    // What the region still has it needs no journal for.
    let next = early.next();
    let worker = place.open("from there", next, &join_options()).unwrap().join(|_| {}).unwrap();
    assert_eq!((worker.first(), worker.digest()), (next, early.digest()));
}

#[test]
fn what_cannot_be_is_said_before_anything_is_handed_out() {
    let mut place = Place::new(&small());
    let mut producer = place.producer("p");
    let first = submit(&mut producer, b"one");
    place.drain();
    let mut other = Place::new(&small());
    other.drain();
    let error =
        CatchUp::open_on(Arc::new(other.disk.clone()), &place.region, "late", dir(), first, &join_options());
    assert!(matches!(error, Err(CatchUpError::OtherRegion { .. })), "{error:?}");
    let error = place.open("late", first, &join_options().rank(2)).unwrap_err();
    assert!(matches!(error, CatchUpError::Attach(AttachError::UnknownRank { .. })), "{error}");
    let _early = Worker::join_with(&place.region, "early", &join_options()).unwrap();
    let error = place.open("early", first, &join_options()).unwrap_err();
    assert!(matches!(error, CatchUpError::Attach(AttachError::NameTaken { .. })), "{error}");
    let error = CatchUp::open(&place.region, "late", "/no/such/place", first, &join_options()).unwrap_err();
    assert!(error.to_string().contains("/no/such/place"), "{error}");
    let unchecked = Place::new(&small().digest(DigestOf::Header));
    let error = unchecked.open("late", Seq::ZERO, &join_options().check_payloads(true)).unwrap_err();
    assert!(matches!(error, CatchUpError::Attach(AttachError::NoPayloadDigests { .. })), "{error}");
}

/// A journal that begins later than its region does not have what came before.
#[test]
fn what_came_before_the_journal_is_not_there() {
    let region = Region::anonymous(&small()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut early = Worker::join_with(&region, "early", &join_options()).unwrap();
    let options = AttachOptions::new().timeout(LONG);
    let mut producer = Producer::attach_with(&region, "p", &options).unwrap();
    for n in 0..100_u64 {
        submit(&mut producer, &n.to_le_bytes());
        take(&mut early, &mut Vec::new());
    }
    let disk = MemoryDisk::default();
    let journal = Journal::open_on(Arc::new(disk.clone()), &region, dir(), &self::options()).unwrap();
    let mut place = Place { region, _sequencer: sequencer, disk, journal: Some(journal) };
    place.drain();
    let first = Replay::open_on(Arc::new(place.disk.clone()), dir(), true).unwrap().first();
    assert!(first > Seq::ZERO);
    let error = place.open("late", Seq::ZERO, &join_options()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CatchUpError::Journal(ReplayError::NotThere { .. })), "{text}");
    assert!(text.contains(&format!("{first}..")), "{text}");
    let mut late = Vec::new();
    let mut worker =
        place.join_from("late", first, &join_options(), |event| late.push(seen(&event))).unwrap();
    take(&mut worker, &mut late);
    assert_eq!(worker.next(), Seq::new(late.last().unwrap().seq + 1));
}

/// What is handed out of the history is checked as what is live would be, and each call says the same.
#[test]
fn a_payload_that_is_not_what_was_sent_is_found_in_the_history() {
    let mut place = Place::new(&small());
    let mut producer = place.producer("p");
    submit(&mut producer, b"before");
    let seq = submit(&mut producer, &[7; 600]);
    let parts = producer.submit_parts(8, &[8; 300], &[[9; 400], [10; 400]]).unwrap();
    let parts = sequenced(&mut producer, parts);
    submit(&mut producer, b"behind");
    place.drain();
    let from = Replay::open_on(Arc::new(place.disk.clone()), dir(), true).unwrap().first();
    // What is wrong has a checksum of its own: it was wrong when it was written.
    let spoil = |byte: u8, seq: Seq| {
        let disk = place.disk.copy();
        let [name] = &disk.segments()[..] else { panic!("one") };
        disk.change(name, |file| {
            let seed = crate::journal::format::Header::decode(file).unwrap().1;
            let at = file.windows(100).position(|window| window.iter().all(|&b| b == byte)).unwrap();
            file[at + 50] ^= 1;
            let heads = (0..at).step_by(8).rev();
            let head = heads.into_iter().find(|&head| {
                &file[head + 4..head + 7] == b"rec" && file[head + 8..head + 16] == seq.get().to_le_bytes()
            });
            let head = head.unwrap();
            let what = crate::journal::format::Head::decode(&file[head..]).unwrap();
            let crc = crc32c::crc32c_append(seed, &file[head + 4..head + what.bytes() as usize]);
            file[head..head + 4].copy_from_slice(&crc.to_le_bytes());
        });
        disk
    };
    let read = |disk: &MemoryDisk, options: &JoinOptions| {
        let disk = Arc::new(disk.clone());
        let mut history = CatchUp::open_on(disk, &place.region, "late", dir(), from, options).unwrap();
        let mut last = None;
        let ended = loop {
            match history.poll_batch(3, |event| last = Some(event.seq())) {
                Ok(0) => break Ok(last),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        if ended.is_err() {
            let again = history.poll_batch(3, |event| panic!("{event:?}")).unwrap_err();
            assert!(matches!(again, CatchUpError::Corrupt { .. }), "{again}");
            assert!(matches!(history.join(|_| {}), Err(CatchUpError::Corrupt { .. })));
        }
        ended
    };
    let checked = join_options().check_payloads(true).rank(0);
    let field = |byte, seq| match read(&spoil(byte, seq), &checked) {
        Err(CatchUpError::Corrupt { corrupt, .. }) => {
            assert_eq!(corrupt.seq, seq);
            corrupt.field
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(field(7, seq), "payload digest");
    assert_eq!(field(8, parts), "digest of the body");
    assert_eq!(field(9, parts), "digest of a part");
    // That of another is not read; and who does not ask for it does not look.
    assert!(read(&spoil(10, parts), &checked).unwrap() > Some(parts));
    assert!(read(&spoil(7, seq), &join_options()).unwrap() > Some(seq));
    assert!(read(&place.disk, &checked).unwrap() > Some(parts));
}

/// The same region, restored from a copy of its journal, that goes on by itself: another history, and both say the same of
/// which region they are.
#[test]
fn a_journal_that_went_another_way_is_found_out() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let journal = |region: &Region, dir: &str| Journal::open(region, path(dir), &options()).unwrap();
    let region = Region::create(path("region"), &small()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut writing = journal(&region, "one");
    let attach = AttachOptions::new().timeout(LONG);
    let mut producer = Producer::attach_with(&region, "p", &attach).unwrap();
    for n in 0..40_u64 {
        submit(&mut producer, &n.to_le_bytes());
        while writing.poll().unwrap() > 0 {}
    }
    drop((producer, writing));
    sequencer.stop().unwrap();
    drop(region);
    std::fs::create_dir(path("two")).unwrap();
    for entry in std::fs::read_dir(path("one")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), path("two").join(entry.file_name())).unwrap();
    }
    std::fs::remove_file(path("region")).unwrap();
    let mut places = Vec::new();
    for (name, dir) in [("region", "one"), ("other", "two")] {
        let restored = Region::restore(path(name), path(dir), &Config::new()).unwrap();
        let region = restored.region;
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut writing = journal(&region, dir);
        let mut producer = Producer::attach_with(&region, "p", &attach).unwrap();
        for n in 0..10_u64 {
            let index = producer.next_index();
            producer.submit_at(index, 3, format!("{name} {n}").as_bytes()).unwrap();
            sequenced(&mut producer, index);
            while writing.poll().unwrap() > 0 {}
        }
        places.push((region, sequencer, writing, producer));
    }
    let error =
        Worker::join_from(&places[0].0, "late", &join_options(), path("two"), Seq::ZERO, |_| {}).unwrap_err();
    let CatchUpError::OtherHistory { found, expected, .. } = &error else { panic!("{error}") };
    assert!(found != expected && error.to_string().contains(&expected.to_string()), "{error}");
    // From its own it goes on, over the restart.
    let (region, _, writing, producer) = &mut places[0];
    let mut late = Vec::new();
    let handle = |event: Event<'_>| late.push(event.seq());
    let mut worker =
        Worker::join_from(region, "late", &join_options(), path("one"), Seq::ZERO, handle).unwrap();
    let last = {
        let index = producer.next_index();
        producer.submit_at(index, 3, b"last").unwrap();
        sequenced(producer, index)
    };
    while writing.poll().unwrap() > 0 {}
    while let Some(event) = worker.poll().unwrap() {
        late.push(event.seq());
    }
    assert!(late.iter().copied().eq((0..=last.get()).map(Seq::new)), "{late:?}");
    drop(worker);
    // And one that has more than there is of it here.
    let (_, _, writing, producer) = &mut places[1];
    for _ in 0..300 {
        let index = producer.next_index();
        producer.submit_at(index, 3, b"more").unwrap();
        sequenced(producer, index);
        while writing.poll().unwrap() > 0 {}
    }
    let error =
        Worker::join_from(&places[0].0, "late", &join_options(), path("two"), Seq::ZERO, |_| {}).unwrap_err();
    assert!(matches!(error, CatchUpError::Ahead { .. }), "{error}");
    await_leave(&places[0].0, "late");
}

/// A handler that takes its time holds nobody up: while it is in the history the order goes on as far as it likes.
#[test]
fn nobody_waits_for_who_reads_the_history() {
    let mut place = Place::new(&small());
    let mut producer = place.producer("p");
    for n in 0..100_u64 {
        submit(&mut producer, &n.to_le_bytes());
        place.drain();
    }
    let is_over = AtomicBool::new(false);
    let published = AtomicU64::new(0);
    let (mut journal, region) = (place.journal.take().unwrap(), place.region.clone());
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let (published, is_over) = (&published, &is_over);
        scope.spawn(move || journal.run(|| is_over.load(Ordering::Relaxed)).unwrap());
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let seq = submit(&mut producer, b"meanwhile");
                published.store(seq.get(), Ordering::Relaxed);
            }
        });
        // For each of so many events as much is published as the region has room for, ten times over.
        let (mut slow, mut last, mut gated) = (20, None, 0);
        let mut handle = |event: Event<'_>, gates: bool| {
            let seq = event.seq();
            assert!(last.is_none_or(|last: Seq| seq == last.plus(1)), "{last:?} {seq}");
            last = Some(seq);
            gated += u64::from(gates);
            if slow > 0 {
                slow -= 1;
                let goal = published.load(Ordering::Relaxed) + 640;
                let until = soon();
                while published.load(Ordering::Relaxed) < goal {
                    assert!(Instant::now() < until, "the order waits for one who reads the history");
                    std::thread::yield_now();
                }
            }
        };
        let mut history = place.open("late", Seq::ZERO, &join_options()).unwrap();
        while !history.is_near() {
            history.poll_batch(64, |event| handle(event, false)).unwrap();
            assert!(!region.snapshot().workers.iter().any(|worker| worker.party.name == "late"));
        }
        let read = history.next();
        let mut worker = history.join(|event| handle(event, true)).unwrap();
        for _ in 0..100 {
            let event = worker.recv_deadline(soon()).unwrap().expect("it comes");
            handle(event, true);
        }
        assert!(slow == 0 && read.get() > 20 * 640, "{read}");
        drop(over);
    });
}

/// One that is slower than the order gets in all the same, and is then waited for like any other.
#[test]
fn who_comes_no_nearer_gets_in() {
    let mut place = Place::new(&small());
    let mut producer = place.producer("p");
    for n in 0..20_u64 {
        submit(&mut producer, &n.to_le_bytes());
        place.drain();
    }
    let mut history = place.open("late", Seq::ZERO, &join_options()).unwrap();
    let (mut next, mut polls) = (Seq::ZERO, 0);
    while !history.is_near() {
        let at = history.poll_batch(1, |event| next = event.seq().plus(1)).unwrap();
        assert_eq!(at, 1);
        polls += 1;
        assert!(polls < 100_000);
        // Two for each that it reads.
        for _ in 0..2 {
            submit(&mut producer, b"more");
            place.drain();
        }
    }
    assert!(history.lag() > 100 && polls > 100, "{} {polls}", history.lag());
    let worker = history.join(|event| {
        assert_eq!(event.seq(), next);
        next = next.plus(1);
    });
    assert_eq!(worker.unwrap().first(), next);
}

/// Says that it is over when it is dropped, also by a test that fails: a scope waits for its threads.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Where workers keep step, one that comes late steps in at its own `Joined`. What it has had before it may report, and one
/// that made something else of the history is found out there.
#[test]
fn in_lockstep_it_steps_in_at_its_own_joining() {
    for is_wrong in [false, true] {
        let config = small().on_divergence(OnDivergence::Lockstep).lane_cells(256).order_slots(512);
        let mut place = Place::new(&config);
        let mut producer = place.producer("p");
        let mut early = Worker::join_with(&place.region, "early", &join_options()).unwrap();
        let mut sum = 0;
        // What it makes of an event: something that follows from all of the history.
        let apply = |sum: &mut u64, event: &Event<'_>| {
            let of = |command: &crate::Command<'_>| u64::from(command.payload[0]);
            let more = if let Event::Command(command) = event { of(command) } else { 0 };
            *sum = sum.wrapping_mul(3).wrapping_add(more);
        };
        let first = early.first();
        let mut step = |early: &mut Worker| {
            while let Some(event) = early.poll().unwrap() {
                apply(&mut sum, &event);
                early.report(sum).unwrap();
            }
        };
        for n in 0..100_u8 {
            submit(&mut producer, &[n]);
            place.drain();
            step(&mut early);
        }
        let mut own = 0;
        let mut history = place.open("late", first, &join_options()).unwrap();
        for _ in 0..5 {
            history.poll_batch(16, |event| apply(&mut own, &event)).unwrap();
        }
        own += u64::from(is_wrong);
        while history.poll_batch(16, |event| apply(&mut own, &event)).unwrap() > 0 {}
        // These lie before its own joining, and the other one has not reported them yet: the journal may have them, it is
        // not given them.
        for n in 0..5_u8 {
            submit(&mut producer, &[n]);
            place.drain();
        }
        let common = history.next();
        assert!(common <= early.next());
        assert_eq!(history.poll_batch(16, |event| panic!("{event:?}")).unwrap(), 0);
        while !history.is_near() {
            assert_eq!(history.poll_batch(16, |event| panic!("{event:?}")).unwrap(), 0);
        }
        let mut late = history.join(|event| panic!("{event:?}")).unwrap();
        let begins = late.first();
        assert_eq!(begins, common);
        assert!(late.poll().unwrap().is_none());
        step(&mut early);
        // Nobody is given its joining before the journal is there.
        place.drain();
        assert!(matches!(late.report(own), Err(crate::ReportError::NothingYet { .. })));
        let mut events = 0;
        let joined = loop {
            let Some(event) = late.poll().unwrap() else { panic!("it gets its own joining") };
            events += 1;
            apply(&mut own, &event);
            if let Event::Joined(change) = event
                && change.name.as_str() == "late"
            {
                break change.seq;
            }
            // Nobody has to report what comes before it; it does so for some.
            if events == 3 {
                late.report(own).unwrap();
                if is_wrong {
                    break begins.plus(2);
                }
            }
        };
        if is_wrong {
            let until = soon();
            while place.region.poison().is_none() {
                assert!(Instant::now() < until);
                place.drain();
                std::thread::yield_now();
            }
            // It has said something else than the other one: it is given nothing that comes after that.
            let next = late.poll().unwrap();
            assert!(matches!(next, Some(Event::Poisoned { .. })), "{next:?}");
            let poison = place.region.poison().unwrap();
            assert!(poison.to_string().contains("late") && poison.diverged.seq == joined, "{poison}");
            continue;
        }
        assert!(begins.plus(4) < joined && events == joined.since(begins) + 1, "{begins} {joined}");
        // From here on it does.
        submit(&mut producer, &[77]);
        assert!(matches!(late.poll(), Err(WorkerError::Unreported { seq }) if seq == joined));
        late.report(own).unwrap();
        for n in 0..20_u8 {
            let seq = submit(&mut producer, &[n]);
            place.drain();
            let until = soon();
            while late.next() <= seq || early.next() <= seq {
                assert!(Instant::now() < until);
                step(&mut early);
                while let Some(event) = late.poll().unwrap() {
                    apply(&mut own, &event);
                    late.report(own).unwrap();
                }
            }
        }
        assert!(place.region.poison().is_none() && late.digest() == early.digest());
    }
}

/// What was closed and opened again in the history does not end a worker that comes later; what is closed is handed out to
/// its end, and there is nothing to join.
#[test]
fn the_end_of_an_order_is_part_of_its_history() {
    let region = Region::anonymous(&small()).unwrap();
    let disk = MemoryDisk::default();
    let spawn = || Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let sequencer = spawn();
    let mut journal = Journal::open_on(Arc::new(disk.clone()), &region, dir(), &options()).unwrap();
    sequencer.close().unwrap();
    while journal.poll().unwrap() > 0 {}
    let mut place = Place { region: region.clone(), _sequencer: spawn(), disk, journal: Some(journal) };
    let options = join_options().timeout(Duration::from_millis(50));
    let mut producer = place.producer("p");
    // So much that the region has neither the end nor that it was opened again.
    for n in 0..100_u64 {
        submit(&mut producer, &n.to_le_bytes());
        place.drain();
    }
    assert!(region.snapshot().anchor > Seq::new(50));
    let mut closed = 0;
    let note =
        |event: Event<'_>, closed: &mut u64| *closed += u64::from(matches!(event, Event::Closed { .. }));
    let mut worker =
        place.join_from("late", Seq::ZERO, &join_options(), |event| note(event, &mut closed)).unwrap();
    // Who orders goes, and the order is open: somebody may come and go on.
    let Place { _sequencer: sequencer, disk, journal, .. } = place;
    sequencer.stop().unwrap();
    while worker.recv_deadline(Instant::now()).unwrap().is_some() {}
    let mut place = Place { region: region.clone(), _sequencer: spawn(), disk, journal };
    let seq = submit(&mut producer, b"one");
    loop {
        let event = worker.recv().unwrap();
        let is_last = event.seq() == seq;
        note(event, &mut closed);
        if is_last {
            break;
        }
    }
    assert_eq!(closed, 1);
    drop(worker);
    place.drain();
    let Place { _sequencer: sequencer, .. } = place;
    sequencer.close().unwrap();
    while place.journal.as_mut().unwrap().poll().unwrap() > 0 {}
    let disk: Arc<dyn Disk> = Arc::new(place.disk.clone());
    let mut history = CatchUp::open_on(disk, &region, "late", dir(), Seq::ZERO, &options).unwrap();
    while history.poll_batch(10, |event| note(event, &mut closed)).unwrap() > 0 {}
    assert_eq!(closed, 3);
    let error = history.join(|_| {}).unwrap_err();
    let told = matches!(&error, CatchUpError::Attach(AttachError::NoSequencer { state: State::Closed, .. }));
    assert!(told, "{error}");
}

/// A handler that panics after the gate was taken holds nobody up.
#[test]
fn a_handler_that_panics_leaves() {
    let mut place = Place::new(&small());
    let mut producer = place.producer("p");
    let history = place.open("late", Seq::ZERO, &join_options()).unwrap();
    for n in 0..100_u64 {
        submit(&mut producer, &n.to_le_bytes());
        place.drain();
    }
    let region = place.region.clone();
    let panicked = std::thread::spawn(move || history.join(|_| panic!("on purpose")).map(drop)).join();
    assert!(panicked.is_err());
    for n in 0..100_u64 {
        submit(&mut producer, &n.to_le_bytes());
        place.drain();
    }
    await_leave(&region, "late");
}

/// What one from the start was handed, by index; grows at its end while others look, and is let go of as the journal is.
#[derive(Default)]
struct Log(Mutex<VecDeque<Seen>>);

impl Log {
    fn add(&self, some: &mut Vec<Seen>) {
        self.0.lock().unwrap().extend(some.drain(..));
    }

    /// The index behind its last one.
    fn end(&self) -> Seq {
        self.0.lock().unwrap().back().map_or(Seq::ZERO, |seen| Seq::new(seen.seq + 1))
    }

    /// Nobody asks for what comes before an index any more.
    fn let_go(&self, first: Seq) {
        let mut all = self.0.lock().unwrap();
        let gone = all.partition_point(|seen| seen.seq < first.get());
        all.drain(..gone);
    }

    /// What lies between two indexes.
    fn between(&self, from: Seq, to: Seq) -> Vec<Seen> {
        let all = self.0.lock().unwrap();
        let place = |seq: Seq| all.partition_point(|seen| seen.seq < seq.get());
        all.range(place(from)..place(to)).copied().collect()
    }
}

/// Where in a history, one that differs for each join, they began.
#[derive(Debug, Default)]
struct Spread {
    /// How many in each quarter, from the oldest on.
    quarters: [u64; 4],
    /// Indexes that there were to choose from: in the shortest history, in the longest, and in all together.
    shortest: Option<u64>,
    longest: u64,
    all: u64,
}

impl Spread {
    /// Any index of those from one on before another.
    fn draw(&mut self, random: &mut Random, first: Seq, end: Seq) -> Seq {
        let len = end.since(first);
        let place = random.below(len);
        self.quarters[(place * 4 / len) as usize] += 1;
        self.shortest = Some(self.shortest.map_or(len, |shortest| shortest.min(len)));
        (self.longest, self.all) = (self.longest.max(len), self.all + len);
        first.plus(place)
    }
}

/// How often each of the two ways into the ring was taken.
#[derive(Debug, Default)]
struct Ways {
    /// The journal was read on to where the ring begins.
    behind: u64,
    /// The ring was folded to where the journal had been read.
    ahead: u64,
    handed_live: u64,
    handed_before: u64,
}

/// One of many joins: from an index, until so many events were handed out live. What it was handed.
fn one_join(
    region: &Region,
    path: &Path,
    name: &str,
    from: Seq,
    ways: &mut Ways,
) -> (Vec<Seen>, Seq, Digest) {
    let mut had = Vec::new();
    let mut history = CatchUp::open(region, name, path, from, &join_options()).unwrap();
    while !history.is_near() {
        history.poll_batch(64, |event| had.push(seen(&event))).unwrap();
    }
    let stood = history.next();
    let mut worker = history.join(|event| had.push(seen(&event))).unwrap();
    if worker.first() > stood {
        ways.behind += 1;
    } else {
        ways.ahead += 1;
    }
    ways.handed_before += had.len() as u64;
    let mut live = 0;
    while live < 100 {
        let batch = worker.recv_batch(32, Some(soon()), |event| had.push(seen(&event))).unwrap();
        assert!(batch > 0, "nothing more comes");
        live += batch;
    }
    ways.handed_live += live as u64;
    (had, worker.next(), worker.digest())
}

/// So many bytes of segments are left of the history before each of many joins: it would grow faster than so many could read
/// it, and those from far back would be the rare ones.
const HISTORY: u64 = 1 << 20;

/// Under full load, 200 joins at random indexes of all that there is: each is handed all from there on, each byte of it, once.
#[test]
fn two_hundred_joins_under_full_load_miss_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("journal");
    let config = small().lane_cells(64).lane_bytes(16 << 10).order_slots(256);
    let region = Region::anonymous(&config).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let sync = crate::journal::SyncPolicy::Every(Duration::from_millis(20));
    let mut journal = Journal::open(&region, &path, &options().segment_bytes(64 << 10).sync(sync)).unwrap();
    let mut early = Worker::join_with(&region, "early", &join_options()).unwrap();
    let begins = early.first();
    let (log, is_over) = (Log::default(), AtomicBool::new(false));
    let (mut ways, mut spread) = (Ways::default(), Spread::default());
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let (log, is_over, region) = (&log, &is_over, &region);
        let is_over = || is_over.load(Ordering::Relaxed);
        scope.spawn(move || journal.run(is_over).unwrap());
        scope.spawn(move || {
            let mut some = Vec::new();
            while !is_over() {
                let until = Instant::now() + Duration::from_millis(10);
                early.recv_batch(256, Some(until), |event| some.push(seen(&event))).unwrap();
                log.add(&mut some);
            }
        });
        for name in ["p", "q"] {
            scope.spawn(move || {
                let options = AttachOptions::new().timeout(LONG);
                let mut producer = Producer::attach_with(region, name, &options).unwrap();
                let mut random = Random::new(name.len() as u64 + u64::from(name == "p"));
                while !is_over() {
                    let len = if random.below(50) == 0 { 2_000 } else { random.below(80) };
                    let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                    producer.submit(random.below(9) as u16, &bytes).unwrap();
                }
            });
        }
        // There is a history before the first one looks for its place in it.
        let until = soon();
        while region.snapshot().next.since(begins) < 2_000 {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        let mut random = Random::new(19);
        for n in 0..200 {
            let left = prune(&path, &Retention::new().keep_bytes(HISTORY)).unwrap();
            let first = left.first.max(begins);
            log.let_go(first);
            let from = spread.draw(&mut random, first, region.snapshot().next);
            let name = format!("late {}", n % 3);
            let (had, next, digest) = one_join(region, &path, &name, from, &mut ways);
            // The one from the start has come so far, and has the same.
            let until = soon();
            while log.end() < next {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
            let expected = log.between(from, next);
            assert!(had.iter().map(|seen| seen.seq).eq(from.get()..next.get()), "join {n} from {from}");
            let differs = had.iter().zip(&expected).position(|(had, expected)| had != expected);
            assert_eq!((had.len(), differs), (expected.len(), None), "join {n} from {from}");
            assert!(digest != Digest(0));
        }
        drop(over);
    });
    println!("{ways:?}, {spread:?}, {} in all", region.snapshot().next);
    assert!(ways.behind >= 5 && ways.ahead >= 5, "{ways:?}");
    // Fifty each are expected.
    assert!(spread.quarters.iter().all(|&joins| joins >= 20), "{spread:?}");
    sequencer.stop().unwrap();
    let audit = crate::journal::verify(&path).unwrap();
    assert!(audit.is_sound(), "{audit:?}");
}

/// A read that fails is said, and the next call begins where it was: no record is passed over.
#[test]
fn a_read_that_fails_passes_nothing_over() {
    let mut place = Place::new(&small());
    let mut producer = place.producer("p");
    for n in 0..20_u8 {
        submit(&mut producer, &[n; 300]);
        submit(&mut producer, &[n; 20_000]);
        place.drain();
    }
    let mut failed = 0;
    for read in 0..150 {
        let mut history = place.open("late", Seq::ZERO, &join_options().check_payloads(true)).unwrap();
        let mut next = Seq::ZERO;
        place.disk.state().fails_read = Some(read);
        loop {
            let handle = |event: Event<'_>| {
                assert_eq!(event.seq(), next);
                next = next.plus(1);
            };
            match history.poll_batch(5, handle) {
                Ok(0) => break,
                Ok(_) => {}
                Err(CatchUpError::Journal(ReplayError::Io { .. })) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(next, place.region.snapshot().next);
    }
    assert!(failed == 150, "{failed}");
}
