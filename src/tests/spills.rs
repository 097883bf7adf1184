//! Payloads that are too long for their lane: who gets them, what they take, and when it comes back.

use std::os::unix::fs::{FileExt, MetadataExt};

use seriatim_ring::lane::SPILLED;

use super::*;
use crate::payload::counted;
use crate::region::spill::{PIECE, Swept, Tickets};

/// Lanes in which 2,048 bytes are the most.
fn small() -> Config {
    Config::new().order_slots(64).lane_cells(128).lane_bytes(4096).producers(2).workers(4).ranks(2)
}

/// What the region takes in memory beyond its sections.
fn taken(region: &Region) -> u64 {
    let before = region.identity().file_bytes;
    (region.file().metadata().unwrap().blocks() * 512).saturating_sub(before)
}

impl Desk {
    /// Turns until there is nothing to be given back; what is still taken then.
    fn swept(&mut self) -> u64 {
        let (mut left, mut looks) = (taken(&self.region), 0);
        while looks < 5 {
            self.turn();
            self.sequencer.sleep(Some(Instant::now()), || false);
            looks = if taken(&self.region) == left { looks + 1 } else { 0 };
            left = taken(&self.region);
        }
        left
    }
}

#[test]
fn what_is_too_long_for_a_lane_arrives_whole_in_every_way_there_is() {
    let mut desk = Desk::new(&small());
    let options = |rank| JoinOptions::new().rank(rank).check_payloads(rank == 0);
    let mut workers = [0, 1]
        .map(|rank| desk.attach(|r| Worker::join_with(r, &format!("w{rank}"), &options(rank)).unwrap()));
    let mut none = desk.worker("none");
    let mut producer = desk.producer("p");
    let mut observer = Observer::attach(&desk.region).unwrap();
    let sizes = [2049, 4096, 4097, 10_000, 5 << 20];
    let (shared, parts) = (bytes(3000, 1), [bytes(70_000, 2), bytes(1, 3)]);
    let mut expected = [Vec::new(), Vec::new()];
    for (kind, len) in (0..).zip(sizes) {
        producer.submit(kind, &bytes(len, 0)).unwrap();
        let mut claim = producer.claim(kind, len).unwrap();
        assert_eq!(claim.len(), len);
        claim.copy_from_slice(&bytes(len, 0));
        claim.commit().unwrap();
        producer.submit_to(1, kind, &bytes(len, 0)).unwrap();
        producer.submit_parts(kind, &shared, &parts).unwrap();
        producer.submit(kind, b"short").unwrap();
        let of = |rank: usize| (kind, shared.clone(), Some(parts[rank].clone()));
        let (long, short) = ((kind, bytes(len, 0), None), (kind, b"short".to_vec(), None));
        expected[0].extend([long.clone(), long.clone(), of(0), short.clone()]);
        expected[1].extend([long.clone(), long.clone(), long, of(1), short]);
    }
    desk.turn();
    let found = desk.region.verify();
    assert!(found.is_sound(), "{found:?}");
    let most = desk.region.snapshot().producers[0].spilled;
    assert!(most.count == 20 && most.bytes >= 15 << 20, "{most:?}");
    let got = |worker: &mut Worker| {
        let mut got = Vec::new();
        while let Some(event) = worker.poll().unwrap() {
            if let Event::Command(command) = event {
                got.push((command.kind, command.payload.to_vec(), command.part.map(<[u8]>::to_vec)));
            }
        }
        got
    };
    let mut seen = Vec::new();
    while let Some(observed) = observer.poll().unwrap() {
        match observed {
            Observed::Event(Event::Command(command)) => seen.push(command.payload.to_vec()),
            other => panic!("{other:?}"),
        }
    }
    let all =
        |kind: usize| [vec![bytes(sizes[kind], 0); 3], vec![shared.clone(), b"short".to_vec()]].concat();
    assert_eq!(seen, (0..sizes.len()).flat_map(all).collect::<Vec<_>>());
    for (worker, expected) in workers.iter_mut().zip(expected) {
        assert_eq!(got(worker), expected);
    }
    got(&mut none);
    let all = [workers[0].digest(), workers[1].digest(), none.digest()];
    assert_eq!(all, [all[0]; 3]);
    assert_eq!(desk.swept(), 0, "all pages come back");
    assert_eq!(desk.region.snapshot().producers[0].spilled.count, 0);
    // The next ones use the same room.
    producer.submit(0, &bytes(3000, 7)).unwrap();
    desk.turn();
    assert_eq!(got(&mut workers[0]), [(0, bytes(3000, 7), None)]);
}

#[test]
fn a_digest_tells_length_and_content_of_what_was_spilled_and_not_where_it_lay() {
    let digest = |what: DigestOf, payload: &[u8], before: usize| {
        let mut desk = Desk::new(&small().digest(what));
        let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
        for _ in 0..before {
            drop(producer.claim(0, 5000).unwrap());
        }
        producer.submit(0, payload).unwrap();
        desk.turn();
        while worker.poll().unwrap().is_some() {}
        worker.digest()
    };
    let (one, mut other) = (bytes(5000, 0), bytes(5000, 0));
    other[4999] ^= 1;
    for (what, tells_content, tells_length) in
        [(DigestOf::Payload, true, true), (DigestOf::Header, false, true), (DigestOf::Off, false, false)]
    {
        let of = |payload: &[u8]| digest(what, payload, 0);
        assert_eq!(of(&one), digest(what, &one, 3), "{what}");
        assert_eq!(of(&one) != of(&other), tells_content, "{what}");
        assert_eq!(of(&one) != of(&one[..4999]), tells_length, "{what}");
    }
}

#[test]
fn pages_are_given_back_when_the_last_gate_has_passed_and_not_before() {
    let mut desk = Desk::new(&small());
    let (mut fast, mut slow) = (desk.worker("fast"), desk.worker("slow"));
    let mut producer = desk.producer("p");
    let len = 3 * PIECE as usize + 1;
    for salt in 0..3 {
        producer.submit(0, &bytes(len, salt)).unwrap();
    }
    desk.turn();
    let each = (len as u64).next_multiple_of(4096);
    assert_eq!(drain(&mut fast).len(), 3);
    assert_eq!(desk.swept(), 3 * each, "one worker has passed");
    let mut salt = 0;
    while let Some(event) = slow.poll().unwrap() {
        let Event::Command(command) = event else { continue };
        assert_eq!(command.payload, bytes(len, salt));
        slow.release();
        salt += 1;
        assert_eq!(desk.swept(), (3 - salt as u64) * each);
    }
    assert_eq!(salt, 3);
    let file = desk.region.file().metadata().unwrap();
    assert!(file.len() > desk.region.identity().file_bytes, "what it was is not shortened");
    Region::attach(desk.region.path()).unwrap();
}

#[test]
fn what_is_not_submitted_takes_nothing_and_holds_up_nobody() {
    let mut desk = Desk::new(&small());
    let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
    for round in 0..200 {
        // More of them than there can be outstanding.
        let mut claim = producer.try_claim(0, 100_000).unwrap();
        claim[99_999] = 1;
        drop(claim);
        assert_eq!(taken(&desk.region), 0, "round {round}");
        desk.sequencer.sleep(Some(Instant::now()), || false);
    }
    producer.submit(0, &bytes(100_000, 1)).unwrap();
    desk.turn();
    assert_eq!(drain(&mut worker), [bytes(100_000, 1)]);
    desk.sequencer.close();
    let refused = [
        producer.submit(0, &bytes(100_000, 1)),
        producer.try_claim(0, 100_000).and_then(Claim::commit),
        producer.submit(0, &vec![0; 20 << 20]),
    ];
    assert!(refused.iter().all(|refused| *refused == Err(SubmitError::Closed)), "{refused:?}");
}

#[test]
fn what_can_be_outstanding_is_bounded_and_who_holds_it_up_is_named() {
    let config = small().spill_bytes(2 << 20);
    let mut desk = Desk::new(&config);
    let (mut worker, mut producer) = (desk.worker("slow"), desk.producer("p"));
    assert_eq!((producer.max_command(), config.max_command()), (1 << 20, 1 << 20));
    let too_long = SubmitError::TooLarge { len: (1 << 20) + 1, max: 1 << 20 };
    assert_eq!(producer.submit(0, &bytes((1 << 20) + 1, 0)), Err(too_long));
    assert_eq!(producer.try_claim(0, (1 << 20) + 1).map(drop), Err(too_long));
    assert_eq!(
        producer.try_claim(0, usize::MAX).unwrap_err(),
        SubmitError::TooLarge { len: usize::MAX, max: 1 << 20 }
    );
    let batch = producer.submit_batch(&[(0, &bytes(100, 0)), (0, &bytes(2049, 0))]);
    assert_eq!(batch, Err(SubmitError::TooLarge { len: 2049, max: 2048 }));
    let mut accepted = 0;
    let full = loop {
        match producer.try_submit(0, &bytes(1 << 20, accepted)) {
            Ok(_) => accepted += 1,
            Err(error) => break error,
        }
        desk.turn();
    };
    assert_eq!(accepted, 2, "two halves");
    let SubmitError::Full(Full { by: HeldBy::Worker { name, .. } }) = full else { panic!("{full}") };
    assert_eq!(name.as_str(), "slow");
    // Short ones go on.
    producer.submit(0, b"short").unwrap();
    desk.turn();
    let expected = [bytes(1 << 20, 0), bytes(1 << 20, 1), b"short".to_vec()];
    assert_eq!(drain(&mut worker), expected);
    assert_eq!(desk.swept(), 0);
    producer.try_submit(0, &bytes(1 << 20, 0)).unwrap();
    // And not more than there are slots.
    desk.turn();
    drain(&mut worker);
    desk.swept();
    let most = (0..).find(|_| producer.try_submit(0, &bytes(2049, 0)).is_err()).unwrap();
    assert_eq!(most, 64);
}

#[test]
fn a_producer_that_waits_is_given_the_room_of_those_before() {
    let region = Region::anonymous(&small().spill_bytes(2 << 20)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let submitting = thread::spawn(move || {
        for salt in 0..20 {
            producer.submit(0, &bytes(1 << 20, salt)).unwrap();
        }
    });
    let (mut worker, mut salt) = (worker, 0);
    while salt < 20 {
        if let Event::Command(command) = worker.recv().unwrap() {
            assert_eq!(command.payload, bytes(1 << 20, salt));
            salt += 1;
        }
    }
    submitting.join().unwrap();
    sequencer.stop().unwrap();
}

#[test]
fn who_comes_back_finds_what_was_spilled_before() {
    let mut desk = Desk::new(&small());
    let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
    producer.submit(0, &bytes(5000, 0)).unwrap();
    drop(producer);
    desk.turn();
    let mut producer = desk.producer("p");
    producer.submit(0, &bytes(6000, 1)).unwrap();
    let Desk { region, sequencer } = desk;
    drop(sequencer);
    let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
    desk.turn();
    producer.submit(0, &bytes(7000, 2)).unwrap();
    desk.turn();
    assert_eq!(drain(&mut worker), [bytes(5000, 0), bytes(6000, 1), bytes(7000, 2)]);
    assert_eq!(desk.swept(), 0);
    // The lane goes to another name, whose own begin where these ended.
    drop(producer);
    for name in ["a", "b", "c"] {
        let mut producer = desk.producer(name);
        producer.submit(0, &bytes(8000, 3)).unwrap();
        desk.turn();
        assert_eq!(drain(&mut worker), [bytes(8000, 3)]);
        desk.swept();
    }
    assert_eq!(desk.swept(), 0);
}

#[test]
fn damage_to_a_spill_is_named() {
    let mut desk = Desk::new(&small());
    let mut worker =
        desk.attach(|r| Worker::join_with(r, "w", &JoinOptions::new().check_payloads(true)).unwrap());
    let mut producer = desk.producer("p");
    while worker.poll().unwrap().is_some() {}
    producer.submit(0, &bytes(5000, 0)).unwrap();
    desk.turn();
    let layout = *desk.region.map().layout();
    let cell = layout.lane(1).cells;
    let area = layout.spill_area(1).unwrap();
    let file = desk.region.file();
    let words: [u64; 6] = std::array::from_fn(|at| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, cell + at as u64 * 8).unwrap();
        u64::from_le_bytes(word)
    });
    assert_eq!((words[0] as u32, words[3], words[5]), (SPILLED, 5000, 0), "the format");
    let mut said = |at: u64, word: u64| {
        let mut before = [0; 8];
        file.read_exact_at(&mut before, at).unwrap();
        file.write_all_at(&word.to_le_bytes(), at).unwrap();
        let seen = desk.region.verify();
        assert!(!seen.is_sound(), "{at}: {word}");
        let error = worker.poll().map(drop).unwrap_err();
        file.write_all_at(&before, at).unwrap();
        error.to_string()
    };
    let cases = [
        (cell + 24, 5001, "digest of a spill's record"),
        (cell + 32, 7, "digest of a spill's record"),
        (cell + 24, 1 << 40, "length of a spilled payload is 1099511627776, expected 34359738368"),
        (cell + 24, 0, "length of a spilled payload is 0"),
        (cell + 40, 8, "place of a spilled payload"),
        (cell + 40, 4096, "payload digest"),
        (area.start + 4992, 1, "payload digest"),
    ];
    for (at, word, text) in cases {
        let error = said(at, word);
        assert!(error.contains("corrupt at index 2") && error.contains(text), "{error}");
    }
    assert_eq!(drain(&mut worker), [bytes(5000, 0)], "mended");
    let found = desk.region.verify();
    assert!(found.is_sound(), "{found:?}");
}

#[test]
fn a_file_that_was_shortened_to_its_sections_is_named_and_ends_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(folder.path().join("region"), &small()).unwrap();
    let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
    let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
    producer.submit(0, &bytes(5000, 0)).unwrap();
    desk.turn();
    let sections = desk.region.identity().file_bytes;
    desk.region.file().set_len(sections).unwrap();
    let error = loop {
        match worker.poll() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("nothing is there"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("length of the file") && error.contains(&sections.to_string()), "{error}");
    assert!(!desk.region.verify().is_sound());
}

#[test]
fn who_looks_at_what_is_given_back_makes_no_pages_of_it() {
    let mut desk = Desk::new(&small());
    let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
    let mut observer = Observer::attach(&desk.region).unwrap();
    let mut early = Observer::attach(&desk.region).unwrap();
    producer.submit(0, &bytes(1 << 20, 0)).unwrap();
    producer.submit_parts(0, &bytes(1 << 20, 1), &[b"a", b"b"]).unwrap();
    desk.turn();
    let Some(Observed::Event(_)) = early.poll().unwrap() else { panic!("it is there") };
    assert!(desk.region.verify().is_sound());
    drain(&mut worker);
    assert_eq!(desk.swept(), 0);
    while let Some(observed) = observer.poll().unwrap() {
        assert!(matches!(observed, Observed::Missed { .. }), "{observed:?}");
    }
    assert_eq!(observer.missed(), 2);
    assert_eq!(taken(&desk.region), 0, "it was looked at");
}

#[test]
fn nobody_holds_the_file_up_for_longer_than_a_small_piece_takes() {
    let written = || {
        let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        text.lines().find_map(|line| line.strip_prefix("syscw: "))?.parse::<u64>().ok()
    };
    let mut desk = Desk::new(&small());
    let mut producer = desk.producer("p");
    // The kernel lets one write a file or give its pages back at a time, and the sequencer is to give some back.
    let Some(before) = written() else { return println!("skipped: no accounts of input and output") };
    producer.submit(0, &bytes(8 << 20, 0)).unwrap();
    assert!(written().unwrap() - before >= 8 << 4, "{} calls", written().unwrap() - before);
}

#[test]
fn a_lane_of_the_dead_is_not_swept_before_its_last_owners_tickets_are_consumed() {
    let mut desk = Desk::new(&small());
    let producer = desk.producer("p");
    let mut swept = Swept::default();
    let party = &desk.region.map().lane_page(1).party;
    let bells = desk.region.map().bells();
    // It came, queued two, and died: all while the look at it went on.
    let mut is_orphan =
        |next, tail: &dyn Fn() -> u64| swept.is_orphan(&desk.region, 1, &Tickets { next, tail });
    assert!(!is_orphan(3, &|| 3), "its producer lives");
    drop(producer);
    let successor = || {
        party.ask(bells.requests_word());
        3
    };
    assert!(is_orphan(3, &successor), "the first has queued nothing more");
    assert!(!is_orphan(3, &|| 5), "the second has");
    assert!(!is_orphan(4, &|| panic!("it is asked once, for it takes as long as there are tickets")));
    assert!(is_orphan(5, &|| panic!("again")));
}

#[test]
fn who_waits_for_room_sleeps_until_there_is_some() {
    let mut desk = Desk::new(&small().spill_bytes(2 << 20));
    let (mut worker, mut producer) = (desk.worker("slow"), desk.producer("p"));
    drain(&mut worker);
    producer.submit(0, b"short").unwrap();
    for salt in 0..2 {
        producer.submit(0, &bytes(1 << 20, salt)).unwrap();
    }
    desk.turn();
    let mut step = |desk: &mut Desk| {
        worker.poll().unwrap().expect("a command");
        worker.release();
        desk.sequencer.free();
    };
    step(&mut desk);
    let full = producer.try_submit(0, &bytes(1 << 20, 2));
    assert!(matches!(full, Err(SubmitError::Full(_))), "{full:?}");
    assert!(producer.would_sleep(), "the short one is passed, which is no room for a long one");
    step(&mut desk);
    assert!(!producer.would_sleep(), "something was released");
    let full = producer.try_submit(0, &bytes(1 << 20, 2));
    assert!(matches!(full, Err(SubmitError::Full(_))), "its pages are not given back: {full:?}");
    assert!(producer.would_sleep());
    desk.swept();
    assert!(!producer.would_sleep(), "its pages are given back");
    producer.try_submit(0, &bytes(1 << 20, 2)).unwrap();
}

#[test]
fn what_is_passed_is_given_back_before_a_sequencer_ends_that_closes() {
    let region = Region::anonymous(&small()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let index = producer.submit(0, &bytes(64 << 20, 0)).unwrap();
    producer.wait_sequenced(index).unwrap();
    drain(&mut worker);
    sequencer.close().unwrap();
    assert_eq!(taken(&region), 0);
}

#[test]
fn a_claim_whose_pages_are_gone_when_they_are_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(folder.path().join("region"), &small()).unwrap();
    region.guard().unwrap();
    let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
    let mut producer = desk.producer("p");
    let mut claim = producer.try_claim(0, 5000).unwrap();
    let sections = desk.region.identity().file_bytes;
    desk.region.file().set_len(sections).unwrap();
    claim.fill(7);
    let refused = claim.commit().unwrap_err();
    assert!(
        matches!(refused, SubmitError::Lost(RegionLost::Truncated { found, .. }) if found == sections),
        "{refused}"
    );
    assert_eq!(producer.next_index(), 0);
}

#[test]
fn a_newcomer_reads_nothing_of_what_came_before_it() {
    let mut desk = Desk::new(&small());
    let (mut slow, mut producer) = (desk.worker("slow"), desk.producer("p"));
    producer.submit(0, &bytes(1 << 20, 0)).unwrap();
    desk.turn();
    let options = JoinOptions::new().check_payloads(true);
    let mut new = desk.attach(|region| Worker::join_with(region, "new", &options)).unwrap();
    producer.submit(0, &bytes(5000, 1)).unwrap();
    desk.turn();
    let before = counted::bytes();
    assert_eq!(drain(&mut new), [bytes(5000, 1)]);
    assert!(counted::bytes() - before < 1 << 20, "{}", counted::bytes() - before);
    assert_eq!(drain(&mut slow).len(), 2);
    assert_eq!(new.digest(), slow.digest());
}

#[test]
fn more_than_there_is_memory_is_refused_at_once_where_nothing_else_is_an_end() {
    let region = Region::anonymous(&small().spill_bytes(1 << 48)).unwrap();
    let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
    let mut producer = desk.producer("p");
    let wanted = 1 << 46;
    let refused = producer.claim(0, wanted).map(drop).unwrap_err();
    let SubmitError::NoSpace { wanted: found, free } = refused else { panic!("{refused}") };
    assert!(found == wanted as u64 && free < found && free > 1 << 20, "{refused}");
    assert_eq!(taken(&desk.region), 0);
    let huge = Config::new().lane_bytes(1 << 40).producers(900);
    let error = Region::anonymous(&huge).unwrap_err();
    assert!(matches!(error, CreateError::NoSpace { wanted, free, .. } if wanted > free), "{error}");
}
