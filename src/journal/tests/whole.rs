//! A region, its journal, and what is read back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::memory_disk::{Failure, Fault, MemoryDisk};
use super::*;
use crate::journal::{DurableError, Journal, JournalOptions, OnFailure, SyncPolicy};
use crate::{
    Address, ApplyError, AttachOptions, Config, Event, HeldBy, JoinOptions, Producer, ProducerRole, Region,
    Sequenced, Sequencer, SequencerConfig, SequencerHandle, SubmitError, WaitError, Worker, wait,
};

const LONG: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + LONG
}

fn options() -> JournalOptions {
    JournalOptions::new().segment_bytes(16 << 10).timeout(LONG)
}

fn serve(config: &Config) -> (Region, SequencerHandle) {
    let region = Region::anonymous(config).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    (region, sequencer)
}

fn small() -> Config {
    Config::new().lane_cells(8).lane_bytes(8 << 10).workers(4)
}

fn journal(disk: &MemoryDisk, region: &Region, options: &JournalOptions) -> Journal {
    Journal::open_on(Arc::new(disk.clone()), region, dir(), options).unwrap()
}

fn replay(disk: &MemoryDisk) -> Replay {
    Replay::open_on(Arc::new(disk.clone()), dir(), true).unwrap()
}

/// Writes all that is published.
fn drain(journal: &mut Journal) {
    while journal.poll().unwrap() > 0 {}
}

fn submit(producer: &mut Producer, payload: &[u8]) -> Seq {
    let index = producer.submit(0, payload).unwrap();
    match producer.wait_sequenced(index).unwrap() {
        Sequenced::At(seq) => seq,
        other => panic!("{other:?}"),
    }
}

/// What is in a journal: payloads of commands, by index.
fn commands(disk: &MemoryDisk) -> Vec<(u64, Vec<u8>)> {
    let mut replay = replay(disk);
    let mut all = Vec::new();
    while let Some(record) = replay.next().unwrap() {
        if record.producer != 0 {
            all.push((record.seq.get(), record.payload.to_vec()));
        }
    }
    all
}

/// Every kind of command, of every length that takes another way, is read back as it was, with the workers' digest.
#[test]
fn what_is_read_back_is_what_the_workers_got() {
    let config = Config::new().ranks(2).lane_bytes(1 << 20);
    let (region, _sequencer) = serve(&config);
    let disk = MemoryDisk::default();
    let join = |name| Worker::join_with(&region, name, &JoinOptions::new().timeout(LONG));
    let mut worker = join("w").unwrap();
    let mut journal = journal(&disk, &region, &options());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut sent = Vec::new();
    for len in [0, 1, 39, 40, 41, 1_023, 1_024, 1_025, 5_000, 100_000, 7] {
        let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        producer.submit(len as u16, &payload).unwrap();
        sent.push(payload);
    }
    let index = producer.submit_to(1, 9, b"for one").unwrap();
    producer.wait_sequenced(index).unwrap();
    sent.push(b"for one".to_vec());
    drain(&mut journal);
    while worker.poll().unwrap().is_some() {}
    assert_eq!(journal.next(), worker.next());
    journal.close().unwrap();
    let mut replay = replay(&disk);
    let (mut at, mut events, mut addresses) = (0, 0, Vec::new());
    while let Some(record) = replay.next().unwrap() {
        match record.event() {
            Some(event) => {
                assert!(matches!(
                    event,
                    Event::Joined(_) | Event::Opened { .. } | Event::ProducerAttached { .. }
                ));
                events += 1;
            }
            None => {
                assert_eq!((record.payload, record.index), (&sent[at][..], at as u64));
                addresses.push(record.address);
                at += 1;
            }
        }
    }
    assert_eq!(at, sent.len());
    // That the journal came is in it; that the worker did is what lies before, or there as well.
    assert!(events >= 2, "{events}");
    assert_eq!(addresses.iter().filter(|&&address| address == Address::rank(1)).count(), 1);
    assert_eq!((replay.digest(), replay.position()), (worker.digest(), worker.next()));
    assert!(audit(&disk).is_sound());
    assert!(disk.segments().len() > 1);
}

/// A payload that does not lie in its lane is there like any other, also one longer than what is read at once, and with
/// parts; and when the journal that has it staged cannot write it at first.
#[test]
fn what_does_not_lie_in_its_lane_is_whole() {
    let (region, _sequencer) = serve(&Config::new().lane_bytes(8 << 10).ranks(2));
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let sent: Vec<Vec<u8>> =
        [100_000, 10, 3 << 20, 5_001].map(|len| (0..len).map(|i| (i * 7 + len) as u8).collect()).into();
    for payload in &sent {
        producer.submit(5, payload).unwrap();
    }
    let parts = [vec![1; 50_000], vec![2; 70_001]];
    let index = producer.submit_parts(6, b"what all get", &parts).unwrap();
    producer.wait_sequenced(index).unwrap();
    let from = disk.state().calls;
    disk.state().fault = Some(Fault { from, count: 1, how: Failure::Error(libc::EIO) });
    assert!(journal.poll().is_err());
    drain(&mut journal);
    assert_eq!(journal.mended(), 1);
    let snapshot = region.snapshot();
    assert_eq!(snapshot.next, journal.durable());
    // Its bytes are no copies: the spills are given back when it has let go.
    drop(journal);
    let found = commands(&disk);
    assert_eq!(found.len(), 5);
    for ((_, found), sent) in found.iter().zip(&sent) {
        assert!(found == sent, "{} bytes", sent.len());
    }
    for part in &parts {
        assert!(found[4].1.windows(part.len()).any(|window| window == part));
    }
    let audit = audit(&disk);
    assert!(audit.is_sound() && audit.digest == snapshot.workers[0].digest.unwrap(), "{audit:?}");
    // Each bit of them counts.
    let disk = disk.copy();
    let name = disk.segments().into_iter().max_by_key(|name| disk.len(name)).unwrap();
    for bit in [8_000_003, 8 * 2_000_000 + 1] {
        disk.flip(&name, bit);
        assert!(!super::audit(&disk).is_sound());
        disk.flip(&name, bit);
    }
}

/// Commands with parts are there with their table and all parts, and their digests are checked.
#[test]
fn a_command_with_parts_is_whole() {
    let (region, _sequencer) = serve(&Config::new().ranks(2));
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let parts: [&[u8]; 2] = [b"left", b"a longer right part"];
    let index = producer.submit_parts(3, b"what all get", &parts).unwrap();
    producer.wait_sequenced(index).unwrap();
    drain(&mut journal);
    drop(journal);
    let [(_, payload)] = &commands(&disk)[..] else { panic!("one") };
    for part in [&b"what all get"[..], parts[0], parts[1]] {
        assert!(payload.windows(part.len()).any(|window| window == part));
    }
    assert!(audit(&disk).is_sound());
}

/// Payloads that did not lie in their lanes, of any length, to all, to one and in parts: whole, in sealed segments and in
/// those that are not, and with the workers' digest.
#[test]
fn what_was_spilled_is_there_whole() {
    for what in [DigestOf::Payload, DigestOf::Header] {
        let config =
            Config::new().lane_cells(64).lane_bytes(4096).spill_bytes(64 << 20).ranks(2).digest(what);
        let (region, _sequencer) = serve(&config);
        let disk = MemoryDisk::default();
        let mut worker = Worker::join_with(&region, "w", &JoinOptions::new().timeout(LONG)).unwrap();
        let mut journal = journal(&disk, &region, &options());
        let mut producer = Producer::attach(&region, "p").unwrap();
        let mut sent: Vec<Vec<u8>> = Vec::new();
        for len in [3 << 10, 7, 4096, 65_537, 1 << 20, (1 << 20) + 1, 20 << 20, 3_000] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len + (i >> 8)) as u8).collect();
            let index = producer.submit(1, &payload).unwrap();
            producer.wait_sequenced(index).unwrap();
            sent.push(payload);
            drain(&mut journal);
            while worker.poll().unwrap().is_some() {}
        }
        let parts = [vec![1; 5_000], vec![2; 2_000_000]];
        let (all, one) = (vec![3; 3_000], vec![4; 10_000]);
        producer.submit_to(1, 9, &one).unwrap();
        let index = producer.submit_parts(2, &all, &parts).unwrap();
        producer.wait_sequenced(index).unwrap();
        drain(&mut journal);
        while worker.poll().unwrap().is_some() {}
        assert_eq!(journal.next(), worker.next());
        // Once as who died left it, once sealed.
        for seals in [false, true] {
            if seals {
                journal.seal().unwrap();
            }
            // Checking, and looking where it ends, takes the memory of a piece, not of a record.
            disk.state().longest_read = 0;
            assert!(audit(&disk).is_sound());
            assert!(disk.state().longest_read <= crate::journal::segment::PIECE);
            let mut replay = replay(&disk);
            let mut commands = Vec::new();
            while let Some(record) = replay.next().unwrap() {
                if record.producer == 0 {
                    continue;
                }
                if what == DigestOf::Payload && record.address != Address::PARTS {
                    assert_eq!(record.payload_digest, payload_digest(record.payload));
                }
                commands.push((record.kind, record.payload.to_vec()));
            }
            assert_eq!((replay.digest(), replay.position()), (worker.digest(), worker.next()));
            let (parted, commands) = commands.split_last().unwrap();
            assert!(parted.0 == 2 && parted.1.ends_with(&parts[1]) && parted.1.len() > 2_008_000);
            let (to_one, commands) = commands.split_last().unwrap();
            assert_eq!(to_one, &(9, one.clone()));
            assert!(commands.iter().map(|(_, payload)| payload).eq(&sent));
            assert!(audit(&disk).is_sound());
        }
        assert!(disk.segments().len() > 3);
    }
}

/// A segment that has no room for a command is sealed, and the same call writes the command into the next one: who is told
/// that nothing was written may sleep, or end.
#[test]
fn what_needs_another_segment_is_written_at_once() {
    let (region, _sequencer) = serve(&Config::new());
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let mut producer = Producer::attach(&region, "p").unwrap();
    drain(&mut journal);
    for _ in 0..5 {
        let seq = submit(&mut producer, &[1; 10_000]);
        assert!(journal.poll().unwrap() > 0);
        assert!(journal.durable() > seq);
    }
    assert!(disk.segments().len() > 3);
}

/// A bit of a payload that was spilled, of its length or of its digest is not what it was.
#[test]
fn a_bit_of_what_was_spilled_is_missed() {
    let config = Config::new().lane_cells(64).lane_bytes(4096);
    let (region, _sequencer) = serve(&config);
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options().segment_bytes(8 << 20));
    let mut producer = Producer::attach(&region, "p").unwrap();
    let seq = submit(&mut producer, &vec![7; 3 << 20]);
    drain(&mut journal);
    journal.close().unwrap();
    let [name] = &disk.segments()[..] else { panic!("one") };
    let bytes = disk.content(name);
    let begins = bytes.windows(64).position(|window| window.iter().all(|&byte| byte == 7)).unwrap();
    let words = [begins - 16, begins - 8, begins - 24, begins, begins + (1 << 20), begins + (3 << 20) - 1];
    for at in words {
        disk.flip(name, at as u64 * 8 + 3);
        let audit = audit(&disk);
        let damage = audit.problems[0].damage().unwrap();
        assert_eq!(damage.seq, seq, "{damage}");
        disk.flip(name, at as u64 * 8 + 3);
    }
    // What a checksum over what was wrong would not notice.
    for at in words {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let head = begins - 64;
        let crc = crc32c::crc32c_append(seed(&bytes), &changed[head + 4..begins + (3 << 20)]);
        changed[head..head + 4].copy_from_slice(&crc.to_le_bytes());
        disk.change(name, |file| *file = changed);
        let audit = audit(&disk);
        assert!(!audit.is_sound() && audit.problems[0].damage().unwrap().seq <= seq.plus(1), "{audit:?}");
    }
}

/// What the checksums of a segment begin with.
fn seed(bytes: &[u8]) -> u32 {
    crate::journal::format::Header::decode(bytes).unwrap().1
}

/// What a superseded controller sent is there, marked; and who is current goes with each index.
#[test]
fn what_nobody_was_handed_is_there_and_says_so() {
    let (region, _sequencer) = serve(&Config::new());
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let attach = |name: &str| {
        let options = AttachOptions::new().role(ProducerRole::Controller);
        Producer::attach_with(&region, name, &options).unwrap()
    };
    let (mut former, mut current) = (attach("former"), attach("current"));
    // Without a hello it is not current.
    let index = former.submit(0, b"unheard").unwrap();
    former.wait_sequenced(index).unwrap();
    let index = current.submit(0, b"unheard, too").unwrap();
    current.wait_sequenced(index).unwrap();
    drain(&mut journal);
    drop(journal);
    let mut replay = replay(&disk);
    let mut voids = 0;
    while let Some(record) = replay.next().unwrap() {
        voids += u64::from(record.is_void);
        assert_eq!(record.is_void, record.producer != 0);
    }
    assert_eq!((voids, replay.incarnation()), (2, 0));
}

#[test]
fn durable_is_waited_for_and_said() {
    let (region, _sequencer) = serve(&Config::new());
    let now = || Instant::now() + Duration::from_millis(1);
    assert!(matches!(region.wait_durable(Seq::ZERO, now()), Err(DurableError::NoJournal { .. })));
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let seq = submit(&mut producer, b"one");
    let late = region.wait_durable(seq, now()).unwrap_err();
    let text = late.to_string();
    assert!(matches!(late, DurableError::Late { .. }) && text.contains("\"journal\""), "{text}");
    let waiting = std::thread::spawn({
        let region = region.clone();
        move || region.wait_durable(seq, soon())
    });
    drain(&mut journal);
    waiting.join().unwrap().unwrap();
    assert!(journal.durable() > seq);
    let status = region.journal().unwrap();
    assert!(status.alive && status.durable > seq && status.failing_for.is_none(), "{status}");
    assert_eq!(status.sync, SyncPolicy::Group);
}

/// A journal applies nothing: who waits for the workers waits neither for it nor for its disk.
#[test]
fn applied_is_what_workers_have_passed() {
    let (region, _sequencer) = serve(&small());
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let seq = submit(&mut producer, b"alone with a journal");
    drain(&mut journal);
    let now = Instant::now;
    let alone = region.wait_applied(seq, now()).unwrap_err();
    assert!(matches!(alone, ApplyError::Late { by: Some(HeldBy::NoWorker), .. }), "{alone}");
    let mut worker = Worker::join(&region, "w").unwrap();
    let seq = submit(&mut producer, b"with a worker");
    let late = region.wait_applied(seq, now()).unwrap_err();
    assert!(late.to_string().contains("\"w\"") && !late.to_string().contains("journal"), "{late}");
    while worker.poll().unwrap().is_some() {}
    assert!(journal.durable() <= seq);
    region.wait_applied(seq, now()).unwrap();
}

/// Each producer waits for each of its commands, and finds it on the disk. Nobody sleeps to the end of its time.
#[test]
fn producers_wait_for_what_they_submitted_and_are_woken() {
    const PRODUCERS: u64 = 16;
    const EACH: u64 = if cfg!(miri) { 2 } else { 60 };
    let lost = wait::LOST.load(Ordering::Relaxed);
    for sync in [SyncPolicy::Group, SyncPolicy::Every(Duration::from_millis(1))] {
        let (region, _sequencer) = serve(&small().producers(PRODUCERS).lane_bytes(4 << 10));
        let disk = MemoryDisk::default();
        let mut journal = journal(&disk, &region, &options().sync(sync));
        let is_over = AtomicBool::new(false);
        let (acknowledged, syncs) = thread::scope(|scope| {
            let (is_over, journal) = (&is_over, &mut journal);
            let writing = scope.spawn(move || {
                journal.run(|| is_over.load(Ordering::Relaxed)).unwrap();
                journal.syncs()
            });
            let producers: Vec<_> = (0..PRODUCERS)
                .map(|n| {
                    let (region, disk) = (&region, &disk);
                    scope.spawn(move || {
                        let options = AttachOptions::new().timeout(LONG);
                        let mut producer = Producer::attach_with(region, &format!("p{n}"), &options).unwrap();
                        let wait = |i: u64| {
                            let index = producer.submit(0, &i.to_le_bytes()).unwrap();
                            let place = producer.wait_durable(index, soon()).unwrap();
                            let synced = region.journal().unwrap().durable;
                            assert!(!matches!(place, Sequenced::At(seq) if seq >= synced));
                            place
                        };
                        let places: Vec<_> = (0..EACH).map(wait).collect();
                        // What is acknowledged can be read, by anybody.
                        let end = replay(disk).end();
                        assert!(
                            places.iter().all(|place| !matches!(place, Sequenced::At(seq) if *seq >= end))
                        );
                        places.len() as u64
                    })
                })
                .collect();
            let acknowledged: u64 = producers.into_iter().map(|thread| thread.join().unwrap()).sum();
            is_over.store(true, Ordering::Relaxed);
            (acknowledged, writing.join().unwrap())
        });
        assert_eq!((acknowledged, commands(&disk).len() as u64), (PRODUCERS * EACH, PRODUCERS * EACH));
        println!("{acknowledged} commands, {syncs} syncs");
    }
    assert_eq!(wait::LOST.load(Ordering::Relaxed), lost, "a wake-up was lost");
}

#[test]
fn what_a_producer_waits_for_in_vain_is_told() {
    let (region, sequencer) = serve(&small());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let index = producer.submit(0, b"keep me").unwrap();
    let now = Instant::now;
    let before = producer.wait_durable(index + 1, soon()).unwrap_err();
    assert!(matches!(before, DurableError::NotSequenced(WaitError::NotSubmitted { .. })), "{before}");
    let Sequenced::At(seq) = producer.wait_sequenced(index).unwrap() else { panic!("just now") };
    assert!(matches!(producer.wait_durable(index, soon()), Err(DurableError::NoJournal { .. })));
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let late = producer.wait_durable(index, now()).unwrap_err();
    assert!(matches!(late, DurableError::Late { seq: at, .. } if at == seq), "{late}");
    assert!(producer.find_durable(index).unwrap().is_none() && producer.find_durable(index + 1).is_err());
    drain(&mut journal);
    assert_eq!(producer.find_durable(index).unwrap(), Some(Sequenced::At(seq)));
    assert_eq!(producer.wait_durable(index, soon()).unwrap(), Sequenced::At(seq));
    // So long ago that the order no longer says where it is: all that is written by now is durable then.
    for _ in 0..40 {
        submit(&mut producer, &[0; 100]);
        drain(&mut journal);
    }
    let last = producer.submit(0, b"last").unwrap();
    producer.wait_sequenced(last).unwrap();
    drain(&mut journal);
    for known in [index, last] {
        producer.wait_durable(known, soon()).unwrap();
    }
    // Who waits when the journal leaves does not wait on.
    let waiting = producer.submit(0, b"nobody writes this").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| producer.wait_durable(waiting, soon()));
        journal.seal().unwrap();
        journal.leave().unwrap();
        match waiting.join().unwrap() {
            // It was sealed with what had come by then.
            Ok(_) | Err(DurableError::NoJournal { .. }) => {}
            other => panic!("{other:?}"),
        }
    });
    sequencer.stop().unwrap();
    let never = producer.submit(0, b"nobody orders this").unwrap();
    let late = producer.wait_durable(never, now()).unwrap_err();
    assert!(matches!(late, DurableError::NotSequenced(WaitError::Late { .. })), "{late}");
}

/// What went by before there was a journal is in none, however durable what came after is.
#[test]
fn what_was_there_before_the_journal_is_not_durable() {
    let (region, _sequencer) = serve(&small().order_slots(8));
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut early = Vec::new();
    for n in 0..40_u8 {
        early.push(submit(&mut producer, &[n]));
        while worker.poll().unwrap().is_some() {}
    }
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    drain(&mut journal);
    let since = replay(&disk).first();
    assert!(since > early[0] && region.journal().unwrap().since == Some(since));
    let refused = region.wait_durable(early[0], soon()).unwrap_err();
    assert!(matches!(refused, DurableError::Before { since: at, .. } if at == since), "{refused}");
    let refused = producer.wait_durable(0, soon()).unwrap_err();
    assert!(matches!(refused, DurableError::LongAgo { index: 0, since: at } if at == since), "{refused}");
    // Whoever attached when it was there knows that all of his comes after.
    let mut later = Producer::attach(&region, "later").unwrap();
    for _ in 0..40 {
        submit(&mut later, b"later");
        drain(&mut journal);
        while worker.poll().unwrap().is_some() {}
    }
    submit(&mut later, b"last");
    drain(&mut journal);
    assert_eq!(later.wait_durable(0, soon()).unwrap(), Sequenced::LongAgo);
    // It is the same for the next journal of that directory.
    drop(journal);
    let journal = Journal::open_on(Arc::new(disk.clone()), &region, dir(), &options()).unwrap();
    assert!(region.wait_durable(early[0], soon()).is_err() && region.journal().unwrap().since == Some(since));
    drop(journal);
}

/// Of two journals the one that syncs is asked, wherever the other one is.
#[test]
fn one_that_does_not_sync_is_not_asked_if_another_one_does() {
    let (region, _sequencer) = serve(&small());
    let (disk, other) = (MemoryDisk::default(), MemoryDisk::default());
    let mut one = journal(&disk, &region, &options().name("one"));
    let mut two = journal(&other, &region, &options().name("two").sync(SyncPolicy::Off));
    let mut producer = Producer::attach(&region, "p").unwrap();
    let seq = submit(&mut producer, b"both write this");
    drain(&mut two);
    two.seal().unwrap();
    let late = region.wait_durable(seq, Instant::now()).unwrap_err();
    assert!(matches!(&late, DurableError::Late { journal, .. } if journal.name.as_str() == "one"), "{late}");
    drain(&mut one);
    region.wait_durable(seq, soon()).unwrap();
}

/// A disk that was slow once has nobody wait for long, whoever else was expected.
#[test]
fn a_group_is_not_waited_for_as_long_as_a_disk_that_stood_still() {
    let (region, _sequencer) = serve(&small());
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    drain(&mut journal);
    journal.expect(8, LONG * 60);
    let mut producer = Producer::attach(&region, "p").unwrap();
    let seq = submit(&mut producer, b"alone");
    // Two hours, without a limit.
    while journal.poll().unwrap() == 0 {}
    region.wait_durable(seq, Instant::now()).unwrap();
}

#[test]
fn a_journal_that_does_not_sync_acknowledges_nothing() {
    let (region, _sequencer) = serve(&Config::new());
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options().sync(SyncPolicy::Off));
    let seq = submit(&mut Producer::attach(&region, "p").unwrap(), b"one");
    drain(&mut journal);
    assert!(journal.next() > seq && journal.durable() <= seq);
    assert!(matches!(region.wait_durable(seq, soon()), Err(DurableError::NotSynced { .. })));
}

#[test]
fn with_a_time_it_syncs_when_that_has_passed() {
    let (region, _sequencer) = serve(&Config::new());
    let disk = MemoryDisk::default();
    let mut never = journal(&disk, &region, &options().sync(SyncPolicy::Every(LONG)));
    let mut producer = Producer::attach(&region, "p").unwrap();
    let seq = submit(&mut producer, b"one");
    drain(&mut never);
    assert!(never.next() > seq && never.durable() <= seq && never.syncs() == 0);
    // What is written and not synced is let go: or the lanes would have to hold a minute of commands.
    assert!(region.snapshot().workers.iter().all(|worker| worker.next > seq));
    never.sync().unwrap();
    assert!(never.durable() > seq);
    drop(never);
    let always = options().sync(SyncPolicy::Every(Duration::ZERO));
    let mut always = journal(&disk, &region, &always);
    let seq = submit(&mut producer, b"two");
    drain(&mut always);
    // The time has passed at the latest when it looks again.
    always.poll().unwrap();
    assert!(always.durable() > seq);
}

/// One sync serves all that is there.
#[test]
fn one_sync_serves_all_who_wait() {
    let (region, _sequencer) = serve(&Config::new());
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options().segment_bytes(1 << 20));
    let mut producers: Vec<_> =
        (0..8).map(|n| Producer::attach(&region, &format!("p{n}")).unwrap()).collect();
    drain(&mut journal);
    let before = journal.syncs();
    let last = producers.iter_mut().map(|producer| submit(producer, b"one")).max().unwrap();
    drain(&mut journal);
    assert!(journal.durable() > last);
    assert_eq!(journal.syncs() - before, 1);
}

/// Fills a region until it finds no room; who is named.
fn fill(producer: &mut Producer) -> HeldBy {
    loop {
        match producer.submit_deadline(0, b"more", Instant::now() + Duration::from_millis(200)) {
            Ok(_) => {}
            Err(SubmitError::Full(full)) => return full.by,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Its gate outlives a journal, whoever else works; it is named; the next journal goes on where it was.
#[test]
fn the_gate_of_a_journal_that_died_stays_until_another_takes_it_up() {
    let (region, _sequencer) = serve(&small());
    let disk = MemoryDisk::default();
    let mut first = journal(&disk, &region, &options());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    submit(&mut producer, b"one");
    drain(&mut first);
    let number = region.journal().unwrap().slot;
    drop(first);
    let by = std::thread::scope(|scope| {
        scope.spawn(|| {
            while worker.recv_deadline(Instant::now() + Duration::from_secs(2)).unwrap().is_some() {}
        });
        fill(&mut producer)
    });
    assert!(matches!(by, HeldBy::Worker { name, .. } if name.as_str() == "journal"), "{by}");
    let status = region.journal().unwrap();
    assert!(!status.alive && status.slot == number, "{status}");
    // Nobody else gets its place, or its name.
    let error = Worker::join(&region, "journal").unwrap_err();
    assert!(error.to_string().contains("journal"), "{error}");
    let others: Vec<_> = (0..2).map(|n| Worker::join(&region, &format!("w{n}")).unwrap()).collect();
    assert!(Worker::join(&region, "one too many").is_err());
    drop(others);
    let mut second = journal(&disk, &region, &options());
    assert_eq!(region.journal().unwrap().slot, number);
    drain(&mut second);
    // There is room again.
    while worker.poll().unwrap().is_some() {}
    let seq = submit(&mut producer, b"last");
    drain(&mut second);
    assert!(second.durable() > seq);
    assert_eq!(commands(&disk).last().unwrap(), &(seq.get(), b"last".to_vec()));
    second.leave().unwrap();
    assert!(audit(&disk).is_sound());
    assert!(region.journal().is_none());
}

/// What is durable lies in one directory: who takes the gate up in another one, which has nothing, is told.
#[test]
fn a_gate_is_not_taken_up_in_an_empty_directory() {
    let (region, _sequencer) = serve(&small());
    let (disk, empty) = (MemoryDisk::default(), MemoryDisk::default());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut first = journal(&disk, &region, &options());
    let seq = submit(&mut producer, b"one");
    drain(&mut first);
    drop(first);
    let error = Journal::open_on(Arc::new(empty.clone()), &region, dir(), &options()).unwrap_err();
    assert!(matches!(error, JournalError::Elsewhere { before, .. } if before > seq), "{error}");
    assert!(region.journal().is_some_and(|journal| !journal.alive), "its gate stays");
    drain(&mut journal(&disk, &region, &options()));
    assert!(audit(&disk).is_sound());
}

/// The same when it is taken up several times, and each of them dies at once.
#[test]
fn a_gate_that_is_taken_up_and_left_again_loses_nothing() {
    let (region, _sequencer) = serve(&small());
    let disk = MemoryDisk::default();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut sent = Vec::new();
    for round in 0..10_u8 {
        let mut journal = journal(&disk, &region, &options());
        for n in 0..3 {
            submit(&mut producer, &[round, n]);
            sent.push(vec![round, n]);
        }
        if round % 3 != 0 {
            drain(&mut journal);
        }
    }
    let mut last = journal(&disk, &region, &options());
    drain(&mut last);
    let found: Vec<_> = commands(&disk).into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(found, sent);
    assert!(audit(&disk).is_sound());
}

#[test]
fn who_orders_can_give_a_journal_up() {
    let region = Region::anonymous(&small()).unwrap();
    let disk = MemoryDisk::default();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    drop(journal(&disk, &region, &options()));
    sequencer.stop().unwrap();
    assert!(region.journal().is_some_and(|journal| !journal.alive));
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new().without_journal(true)).unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    for _ in 0..100 {
        submit(&mut producer, b"on");
        while worker.poll().unwrap().is_some() {}
    }
    assert!(region.journal().is_none());
    // What went by since is not there: the journal that comes now cannot go on.
    let error = Journal::open_on(Arc::new(disk.clone()), &region, dir(), &options()).unwrap_err();
    assert!(matches!(error, JournalError::Gap { .. }), "{error}");
    assert!(region.journal().is_none(), "one that could not go on holds nothing up");
}

#[test]
fn a_journal_that_leaves_holds_nothing_up() {
    let (region, _sequencer) = serve(&small());
    let disk = MemoryDisk::default();
    journal(&disk, &region, &options()).leave().unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    for _ in 0..100 {
        submit(&mut producer, b"on");
        while worker.poll().unwrap().is_some() {}
    }
    assert!(region.journal().is_none());
}

/// A disk that fails holds the order; when it is well again all is there.
#[test]
fn a_disk_that_fails_holds_the_order_and_says_so() {
    let (region, _sequencer) = serve(&small());
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let from = disk.state().calls;
    disk.state().fault = Some(Fault { from, count: u64::MAX, how: Failure::Error(libc::ENOSPC) });
    let mut sent = 0;
    let by = loop {
        match producer.submit_deadline(0, &[sent; 9], Instant::now() + Duration::from_millis(100)) {
            Ok(_) => sent += 1,
            Err(SubmitError::Full(full)) => break full.by,
            Err(error) => panic!("{error}"),
        }
        let _ = journal.poll();
    };
    assert!(matches!(by, HeldBy::Worker { name, .. } if name.as_str() == "journal"), "{by}");
    let error = journal.poll().unwrap_err().to_string();
    let cause = std::io::Error::from_raw_os_error(libc::ENOSPC).to_string();
    assert!(error.contains(DIR) && error.contains(&cause), "{error}");
    assert!(region.journal().unwrap().failing_for.is_some());
    let errors = region.errors();
    let said = errors.records.iter().find(|record| record.code == crate::ErrorCode::Journal);
    let said = said.expect("it is in the error log");
    assert!(said.who == "journal" && said.count < 10, "{said:?}");
    disk.state().fault = None;
    drain(&mut journal);
    assert!(region.journal().unwrap().failing_for.is_none());
    let found: Vec<_> = commands(&disk).into_iter().map(|(_, payload)| payload[0]).collect();
    assert_eq!(found, (0..sent).collect::<Vec<_>>());
    assert!(audit(&disk).is_sound());
}

/// Or the order goes on without it, if that is what was asked for.
#[test]
fn a_disk_that_fails_is_gone_on_without() {
    let (region, _sequencer) = serve(&small());
    let disk = MemoryDisk::default();
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut journal = journal(&disk, &region, &options().on_failure(OnFailure::GoOn));
    let mut producer = Producer::attach(&region, "p").unwrap();
    let from = disk.state().calls;
    disk.state().fault = Some(Fault { from, count: u64::MAX, how: Failure::Error(libc::EIO) });
    submit(&mut producer, b"one");
    assert!(journal.poll().is_err());
    for _ in 0..100 {
        submit(&mut producer, b"on");
        while worker.poll().unwrap().is_some() {}
    }
    assert!(region.journal().is_none());
    let said = region.errors().records.iter().any(|record| record.what.contains("goes on without"));
    assert!(said, "{:?}", region.errors());
}

/// It reports nothing, and holds nobody up where all keep step.
#[test]
fn workers_that_keep_step_do_not_wait_for_a_journal() {
    for what in [OnDivergence::Poison, OnDivergence::Lockstep] {
        let (region, _sequencer) = serve(&Config::new().on_divergence(what));
        let disk = MemoryDisk::default();
        let mut journal = journal(&disk, &region, &options());
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| journal.run(|| is_over.load(std::sync::atomic::Ordering::Relaxed)).unwrap());
            let mut worker = Worker::join(&region, "w").unwrap();
            let mut producer = Producer::attach(&region, "p").unwrap();
            for _ in 0..300 {
                let seq = submit(&mut producer, b"step");
                loop {
                    let at = worker.recv_deadline(soon()).unwrap().expect("it comes").seq();
                    worker.report(at.get()).unwrap();
                    if at == seq {
                        break;
                    }
                }
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(commands(&disk).len(), 300);
    }
}

/// `run` ends with the order, sealed.
#[test]
fn it_ends_when_the_order_is_closed() {
    let (region, sequencer) = serve(&Config::new());
    let disk = MemoryDisk::default();
    let mut running = journal(&disk, &region, &options());
    let running = std::thread::spawn(move || running.run(|| false).and_then(|()| running.close()));
    submit(&mut Producer::attach(&region, "p").unwrap(), b"one");
    sequencer.close().unwrap();
    running.join().unwrap().unwrap();
    let mut replay = replay(&disk);
    assert!(!replay.is_open_ended());
    let mut last = None;
    while let Some(record) = replay.next().unwrap() {
        last = record.event();
    }
    assert!(matches!(last, Some(Event::Closed { .. })), "{last:?}");
}

#[test]
fn the_journal_of_another_region_is_left_alone() {
    let (region, _sequencer) = serve(&Config::new());
    let (other, _other) = serve(&Config::new());
    let disk = MemoryDisk::default();
    drop(journal(&disk, &region, &options()));
    let error = Journal::open_on(Arc::new(disk.clone()), &other, dir(), &options()).unwrap_err();
    assert!(matches!(error, JournalError::OtherRegion { .. }), "{error}");
    assert!(other.journal().is_none());
}

/// The same on a real disk, with real syncs.
/// Somebody cuts a segment that is being read in place: an error that names it, and no signal.
#[test]
fn a_segment_that_is_cut_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (region, _sequencer) = serve(&small());
    let mut journal = Journal::open(&region, dir.path(), &options().segment_bytes(256 << 10)).unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    for _ in 0..100 {
        submit(&mut producer, &[7; 1000]);
        drain(&mut journal);
    }
    journal.leave().unwrap();
    let mut replay = Replay::open(dir.path()).unwrap();
    assert!(replay.segments() == 1 && !replay.is_open_ended());
    assert!(replay.next().unwrap().is_some());
    let mut files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_segment = |path: &std::path::PathBuf| path.extension().is_some_and(|suffix| suffix == "seg");
    let segment = files.find(is_segment).unwrap();
    std::fs::File::options().write(true).open(&segment).unwrap().set_len(8 << 10).unwrap();
    let error = loop {
        match replay.next() {
            Ok(record) => assert!(record.is_some(), "the end"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, crate::journal::ReplayError::Io { path, .. } if *path == segment), "{error}");
}

#[test]
fn a_real_directory_does() {
    let dir = tempfile::tempdir().unwrap();
    let (region, _sequencer) = serve(&Config::new());
    let at = dir.path().join("deep/journal");
    let mut journal = Journal::open(&region, &at, &options()).unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut last = Seq::ZERO;
    for n in 0..200_u32 {
        last = submit(&mut producer, &vec![n as u8; (n * 29 % 3_000) as usize]);
        if n % 10 == 0 {
            drain(&mut journal);
        }
    }
    drain(&mut journal);
    region.wait_durable(last, soon()).unwrap();
    assert!(matches!(Journal::open(&region, &at, &options()), Err(JournalError::Busy { .. })));
    let mut count = 0;
    // Also while it is being written.
    let mut replay = Replay::open(&at).unwrap();
    assert!(replay.segments() > 3);
    while let Some(record) = replay.next().unwrap() {
        count += u64::from(record.producer != 0);
    }
    assert_eq!((count, replay.end()), (200, journal.durable()));
    assert!(crate::journal::verify(&at).unwrap().is_sound());
    drop(journal);
    let mut again = Journal::open(&region, &at, &options()).unwrap();
    let last = submit(&mut producer, b"again");
    drain(&mut again);
    again.close().unwrap();
    let audit = crate::journal::verify(&at).unwrap();
    assert!(audit.is_sound() && audit.end > last, "{audit:?}");
}

/// Of one whose place is no longer known it becomes known that it is durable, however much comes after it all the while.
#[test]
fn what_is_long_ago_is_found_under_load() {
    let (region, _sequencer) = serve(&small().order_slots(8));
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let mut early = Producer::attach(&region, "early").unwrap();
    let mut others = Producer::attach(&region, "others").unwrap();
    let index = early.submit(0, b"keep me").unwrap();
    early.wait_sequenced(index).unwrap();
    let found = (0..200).find_map(|_| {
        drain(&mut journal);
        // There is always one that is not written yet.
        submit(&mut others, b"more");
        if early.wait_sequenced(index).unwrap() == Sequenced::LongAgo {
            early.find_durable(index).unwrap()
        } else {
            None
        }
    });
    assert_eq!(found, Some(Sequenced::LongAgo));
}

/// Who waits while a journal begins is not told that what came before it is durable.
#[test]
fn a_journal_that_begins_does_not_have_what_came_before() {
    let (region, _sequencer) = serve(&small().order_slots(8));
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    for n in 0..40_u8 {
        submit(&mut producer, &[n]);
        while worker.poll().unwrap().is_some() {}
    }
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    // As it is from when it is let in until it has its first segment.
    let slot = usize::from(region.journal().unwrap().slot);
    let words = &region.map().worker_pages()[slot].journal;
    let since = words.since.swap(seriatim_ring::control::UNKNOWN_SINCE, Ordering::Relaxed);
    words.durable.store(0, Ordering::Relaxed);
    let found = thread::scope(|scope| {
        let waiting = scope.spawn(|| producer.wait_durable(0, soon()));
        thread::sleep(Duration::from_millis(50));
        words.since.store(since, Ordering::Relaxed);
        drain(&mut journal);
        submit(&mut Producer::attach(&region, "q").unwrap(), b"more");
        drain(&mut journal);
        waiting.join().unwrap()
    });
    assert!(matches!(found, Err(DurableError::LongAgo { index: 0, .. })), "{found:?}");
}

/// What was pruned was durable all the same, also for a journal that takes up what its predecessor left.
#[test]
fn what_was_pruned_was_durable() {
    let (region, _sequencer) = serve(&small());
    let disk = MemoryDisk::default();
    let retention = crate::journal::Retention::new().keep_bytes(1);
    let options = options().segment_bytes(4 << 10).retention(retention);
    let mut journal = journal(&disk, &region, &options);
    let mut producer = Producer::attach(&region, "p").unwrap();
    let early = submit(&mut producer, b"early");
    for _ in 0..40 {
        submit(&mut producer, &[7; 500]);
        drain(&mut journal);
    }
    assert!(replay(&disk).first() > early);
    region.wait_durable(early, soon()).unwrap();
    drop(journal);
    let _journal = super::whole::journal(&disk, &region, &options);
    region.wait_durable(early, soon()).unwrap();
}

/// Of two journals the one that has an index is asked, however far the other one is.
#[test]
fn one_that_began_later_is_not_asked_for_what_came_before() {
    let (region, _sequencer) = serve(&small().order_slots(8));
    let (disk, other) = (MemoryDisk::default(), MemoryDisk::default());
    let mut one = journal(&disk, &region, &options().name("one"));
    let mut producer = Producer::attach(&region, "p").unwrap();
    let early = submit(&mut producer, b"one has this");
    drain(&mut one);
    for _ in 0..40 {
        submit(&mut producer, b"and this");
        drain(&mut one);
    }
    region.wait_durable(early, soon()).unwrap();
    let end = early.plus(3);
    region.wait_durable_from(early, end, soon()).unwrap();
    let mut two = journal(&other, &region, &options().name("two"));
    submit(&mut producer, b"both");
    drain(&mut two);
    region.wait_durable(early, soon()).unwrap();
}

/// That what came last is durable says nothing of what came while there was no journal.
#[test]
fn all_of_several_are_durable_or_not() {
    let (region, _sequencer) = serve(&small().order_slots(8));
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let first = submit(&mut producer, b"nobody wrote this");
    for _ in 0..40 {
        submit(&mut producer, b"nor this");
        while worker.poll().unwrap().is_some() {}
    }
    let mut journal = journal(&MemoryDisk::default(), &region, &options());
    let last = submit(&mut producer, b"this is");
    drain(&mut journal);
    region.wait_durable(last, soon()).unwrap();
    let refused = region.wait_durable_from(first, last, soon()).unwrap_err();
    assert!(matches!(refused, DurableError::Before { seq, .. } if seq == first), "{refused}");
}

/// What is gone when it is copied, or when its checksum is taken, is zeroes: no journal has them for a payload.
#[test]
fn what_is_cut_off_while_it_is_read_is_not_written() {
    for len in [500, 2_000] {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(folder.path().join("region"), &small().producers(1)).unwrap();
        region.guard().unwrap();
        let serving = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let disk = MemoryDisk::default();
        let mut journal = journal(&disk, &region, &options());
        let mut producer = Producer::attach(&region, "p").unwrap();
        drain(&mut journal);
        let end = journal.next();
        assert_eq!(submit(&mut producer, &vec![7; len]), end);
        drop(serving);
        let bytes = region.map().layout().lane(1).bytes;
        region.file().set_len(bytes).unwrap();
        let error = journal.poll().unwrap_err();
        assert!(matches!(error, JournalError::Lost(_)), "{error}");
        assert_eq!(commands(&disk), [], "{len}");
        journal.close().unwrap_err();
        assert_eq!(commands(&disk), [], "{len}");
    }
}

/// A producer that runs wild keeps nobody's commands before it from the disk.
#[test]
fn what_comes_before_something_that_cannot_be_is_written() {
    use std::os::unix::fs::FileExt;
    let (region, _sequencer) = serve(&small().producers(2));
    let disk = MemoryDisk::default();
    let mut journal = journal(&disk, &region, &options());
    let (mut good, mut wild) =
        (Producer::attach(&region, "good").unwrap(), Producer::attach(&region, "wild").unwrap());
    drain(&mut journal);
    let before = submit(&mut good, b"before");
    let bad = submit(&mut wild, &[1; 100]);
    submit(&mut good, b"after");
    // Longer than any payload of its lane.
    let cell = region.map().layout().lane(2).cells;
    region.file().write_all_at(&0x7fff_ffff_u64.to_le_bytes(), cell).unwrap();
    let error = (0..3).find_map(|_| journal.poll().err()).unwrap();
    assert!(matches!(&error, JournalError::Corrupt(corrupt) if corrupt.seq == bad), "{error}");
    assert_eq!((journal.next(), journal.durable()), (bad, bad));
    assert_eq!(commands(&disk), [(before.get(), b"before".to_vec())]);
}

/// Whatever a producer writes into its cells after it has submitted them: no panic, and what is written is sound.
#[test]
fn garbage_in_cells_is_an_error_or_a_record() {
    use std::os::unix::fs::FileExt;
    let (mut errors, mut written) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let what = [DigestOf::Payload, DigestOf::Off, DigestOf::Header][random.below(3) as usize];
        let config = small().producers(2).ranks(2).digest(what);
        let (region, _sequencer) = serve(&config);
        let disk = MemoryDisk::default();
        let segment = [1, 5 << 10, 16 << 10, 1 << 20][random.below(4) as usize];
        let mut journal = journal(&disk, &region, &options().segment_bytes(segment));
        let role = [ProducerRole::Injector, ProducerRole::Controller][random.below(2) as usize];
        let mut good = Producer::attach(&region, "good").unwrap();
        let mut wild = Producer::attach_with(&region, "wild", &AttachOptions::new().role(role)).unwrap();
        drain(&mut journal);
        for _ in 0..6 {
            let len = [0, 1, 8, 16, 40, 41, 64, 65, 1_023, 1_024, 1_025][random.below(11) as usize];
            submit(if random.below(2) == 0 { &mut good } else { &mut wild }, &vec![9; len]);
        }
        for slot in 0..6 {
            let cell = region.map().layout().lane(2).cells + 64 * slot;
            let len =
                [0, 7, 8, 16, 40, 41, 64, 65, 1_024, 1_025, u64::from(SPILLED)][random.below(11) as usize];
            let kind = [0, 0xff00, 0xff01, 0xffff][random.below(4) as usize];
            let address = [0, 0, 1, 2, 3, 0xffff][random.below(6) as usize];
            let head = len | kind << 32 | address << 48;
            let at = cell + 8 * random.below(5);
            let word = if at == cell { head } else { random.next() << random.below(60) };
            region.file().write_all_at(&word.to_le_bytes(), at).unwrap();
        }
        let end = loop {
            match journal.poll() {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error),
            }
        };
        errors += u64::from(end.is_some());
        let next = journal.next();
        let closed = journal.close();
        assert!(closed.is_ok(), "{closed:?}");
        written += next.get();
        assert_eq!(replay(&disk).end(), next, "seed {seed}");
        let audit = audit(&disk);
        for problem in &audit.problems {
            let text = problem.to_string();
            assert!(
                text.contains("payload digest") || text.contains("parts") || text.contains("address"),
                "seed {seed}: {text}; {end:?}"
            );
        }
    }
    println!("{errors} errors, {written} written");
}
