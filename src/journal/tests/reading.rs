//! What reading costs, and what it says of what is not there.

use super::memory_disk::{Failure, Fault, MemoryDisk};
use super::*;
use crate::journal::ReplayError;

fn journal(count: u64, segment_bytes: u64) -> MemoryDisk {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, segment_bytes).unwrap();
    write(&disk, &mut writer, count, 10, true);
    disk
}

fn replay(disk: &MemoryDisk) -> Result<Replay, ReplayError> {
    Replay::open_on(Arc::new(disk.clone()), dir(), true)
}

#[test]
fn every_index_can_be_begun_at() {
    let disk = journal(200, 16 << 10);
    assert!(disk.segments().len() > 2);
    for from in FIRST..=FIRST + 200 {
        let mut replay = replay(&disk).unwrap().from(Seq::new(from)).unwrap();
        assert_eq!((replay.position().get(), replay.digest().0), (from, digest_at(from)));
        let first = replay.next().unwrap().map(|record| record.seq.get());
        assert_eq!(first, (from < FIRST + 200).then_some(from));
    }
    for from in [0, FIRST - 1, FIRST + 201, u64::MAX] {
        let error = replay(&disk).unwrap().from(Seq::new(from)).unwrap_err();
        assert!(error.to_string().contains("has 1000..1200"), "{error}");
    }
}

/// Opening reads of the last segment and of the first one's ends, seeking of one more and of that at most a stride.
#[test]
fn opening_and_seeking_do_not_read_what_lies_before() {
    let read = |count: u64, from: Option<u64>| {
        let disk = journal(count, 256 << 10).copy();
        let segments = disk.segments();
        let last = disk.len(segments.last().unwrap());
        let mut replay = replay(&disk).unwrap();
        let opened = disk.reads();
        if let Some(from) = from {
            replay = replay.from(Seq::new(from)).unwrap();
        }
        assert_eq!(replay.position().get(), from.unwrap_or(FIRST));
        let reads = disk.reads();
        (segments.len(), last, opened, (reads.0 - opened.0, reads.1 - opened.1))
    };
    let (few, _, opened, _) = read(5_000, None);
    let (many, last, opened_many, sought) = read(30_000, Some(FIRST + 15_000));
    assert!(few >= 3 && many >= 5 * few, "{few} {many} segments");
    assert!(opened.0 <= 4 && opened_many.0 == opened.0, "{opened:?} {opened_many:?}");
    // What is scanned of the last one is read twice, each record's head and then all of it, and its tail.
    assert!(opened_many.1 <= 3 * last + 4096, "{opened_many:?} of {last}");
    assert!(sought.0 <= 2 && sought.1 < 4 * (64 << 10), "{sought:?}");
}

#[test]
fn a_thousand_segments_are_opened_by_their_last() {
    let disk = journal(20_000, 2 << 10).copy();
    assert!(disk.segments().len() > 1_000, "{}", disk.segments().len());
    let mut replay = replay(&disk).unwrap();
    let (mut count, (mut views, _)) = (0, disk.reads());
    assert!(views <= 4, "{views}");
    while replay.next().unwrap().is_some() {
        count += 1;
        // And one is open at a time.
        assert!(disk.reads().0 <= views + 2);
        views = disk.reads().0;
    }
    assert_eq!(count, 20_000);
}

/// A journal that is written meanwhile is read on: all of it, in place of what it was when it was opened, and of the segment
/// that is being written only what is new.
#[test]
fn what_is_written_meanwhile_is_read_on_without_reading_anything_again() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 32 << 10).unwrap();
    let mut replay = replay(&disk).unwrap();
    assert!(!replay.refresh().unwrap() && replay.next().unwrap().is_none());
    let (mut read, mut rotated, mut bytes) = (0, 0, 0);
    for step in 1..=200 {
        let segments = disk.segments().len();
        write(&disk, &mut writer, 7, 7, step % 3 == 0);
        let before = disk.reads().1;
        assert!(replay.refresh().unwrap());
        bytes += disk.reads().1 - before;
        assert!(!replay.refresh().unwrap());
        assert_eq!(replay.end().get(), FIRST + step * 7);
        // Now and then it lags behind, over more than one segment.
        if step % 40 < 20 {
            while let Some(found) = replay.next().unwrap() {
                let (head, payload) = record(FIRST + read);
                assert_eq!((found.seq, found.payload), (head.seq, &payload[..]));
                read += 1;
            }
        }
        rotated += u64::from(disk.segments().len() > segments);
    }
    while replay.next().unwrap().is_some() {
        read += 1;
    }
    assert!(rotated >= 5, "{rotated}");
    assert_eq!((read, replay.digest().0), (1_400, digest_at(FIRST + 1_400)));
    // Each time the beginning of a segment, and the bytes that are new: head and all of it.
    let all: u64 = disk.segments().iter().map(|name| disk.len(name)).sum();
    assert!(bytes < 3 * all + 400 * begins() as u64 * 4, "{bytes} of {all}");
    writer.seal().unwrap();
    assert!(!replay.refresh().unwrap() && replay.next().unwrap().is_none() && !replay.is_open_ended());
}

/// Also after its writer died in the middle of a record, and the next one went on there; with an empty segment, too, that
/// is replaced by another.
#[test]
fn what_a_successor_writes_is_read_on() {
    let disk = MemoryDisk::default();
    let mut replay = None::<Replay>;
    let mut end = FIRST;
    for life in 0..12 {
        let mut writer = open(&disk, 8 << 10).unwrap();
        write(&disk, &mut writer, [0, 3, 50][life % 3], 3, true);
        end += [0, 3, 50][life % 3];
        let fresh = || self::replay(&disk).unwrap();
        let replay = replay.get_or_insert_with(fresh);
        replay.refresh().unwrap();
        assert_eq!(replay.end().get(), end);
        while replay.next().unwrap().is_some() {}
        assert_eq!((replay.position().get(), replay.digest().0), (end, digest_at(end)));
    }
}

/// Who reads what is being written can be ahead of what is: whole records of a batch whose sync failed are written anew
/// behind the segment that had them.
#[test]
fn what_was_read_before_a_sync_failed_is_not_read_again_and_nothing_is_damaged() {
    for before in [0, 5] {
        for skip in 0..3 {
            let disk = MemoryDisk::default();
            let mut writer = open(&disk, 16 << 10).unwrap();
            write(&disk, &mut writer, before, 5, true);
            let mut replay = replay(&disk).unwrap();
            stage(&mut writer, 3);
            let from = disk.state().calls + skip;
            disk.state().fault = Some(Fault { from, count: 1, how: Failure::Error(libc::EIO) });
            let failed = writer.commit(None, true).is_err();
            disk.state().fault = None;
            replay.refresh().unwrap();
            let mut read = FIRST;
            let mut read_on = |replay: &mut Replay| {
                while let Some(found) = replay.next().unwrap() {
                    assert_eq!(found.seq.get(), read);
                    read += 1;
                }
                read
            };
            let ahead = read_on(&mut replay);
            writer.commit(None, true).unwrap();
            write(&disk, &mut writer, 4, 4, true);
            replay.refresh().unwrap();
            assert_eq!(read_on(&mut replay), FIRST + before + 3 + 4, "{before} {skip} {failed} {ahead}");
            assert_eq!(replay.digest().0, digest_at(FIRST + before + 7));
            assert!(audit(&disk).is_sound());
        }
    }
}

#[test]
fn a_torn_tail_is_cut_and_told() {
    let disk = journal(20, 64 << 10).copy();
    let name = disk.segments().pop().unwrap();
    let whole = replay(&disk).unwrap();
    assert!(whole.cut().is_none() && whole.is_open_ended());
    // The last record, which nothing behind it says was synced, loses its last byte.
    let (head, bytes) = record(FIRST + 19);
    assert!(!bytes.is_empty());
    let mut last = 0;
    disk.change(&name, |file| {
        last = file.iter().rposition(|&byte| byte != 0).unwrap();
        file[last] ^= 1;
    });
    let mut torn = replay(&disk).unwrap();
    let cut = torn.cut().unwrap().clone();
    assert_eq!((cut.seq, torn.end().get(), cut.whole), (head.seq, FIRST + 19, 0));
    assert!(cut.offset < last as u64 && cut.offset + cut.bytes == last as u64 + 1, "{cut:?}");
    assert!(cut.to_string().contains(&name) && cut.to_string().contains("1019"), "{cut}");
    let mut count = 0;
    while torn.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 19);
    assert!(!audit(&disk).is_sound());
    // Who goes on there writes that index, and nothing is torn any more.
    recovers(&disk, FIRST + 19, 64 << 10);
}

#[test]
fn what_was_synced_once_and_is_damaged_is_no_torn_tail() {
    let disk = journal(20, 64 << 10).copy();
    let name = disk.segments().pop().unwrap();
    // In the first record of all.
    disk.change(&name, |file| file[begins() + 16] ^= 1);
    let error = replay(&disk).unwrap_err();
    assert!(matches!(&error, ReplayError::Damaged(damage) if damage.seq.get() == FIRST), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&name) && text.contains(&format!("offset {}", begins())) && text.contains("index 1000"),
        "{text}"
    );
    assert!(matches!(open(&disk, 64 << 10), Err(JournalError::Unreadable(_))));
}

/// A file that somebody made shorter is no journal that ends there.
#[test]
fn a_last_segment_that_was_cut_short_is_told() {
    for is_sealed in [false, true] {
        let disk = MemoryDisk::default();
        let mut writer = open(&disk, 64 << 10).unwrap();
        write(&disk, &mut writer, 20, 4, true);
        if is_sealed {
            writer.seal().unwrap();
        }
        drop(writer);
        let name = disk.segments().pop().unwrap();
        for len in begins()..begins() + 1_000 {
            let disk = disk.copy();
            disk.change(&name, |file| file.truncate(len));
            assert!(!audit(&disk).is_sound(), "{len} bytes");
            // But for what is as long as if it had been cut for a footer: that is told as a torn tail.
            let is_told = match replay(&disk) {
                Err(error) => matches!(error, ReplayError::Damaged(_)),
                Ok(replay) => replay.cut().is_some(),
            };
            assert!(is_told, "{len} bytes");
        }
    }
}

/// What is whole and does not belong there is damage, too: it is looked at once.
#[test]
fn a_whole_record_in_another_ones_place_is_told() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 64 << 10).unwrap();
    let first = world().lanes[1].next;
    for index in first..first + 6 {
        let shape = 40;
        let payload = payload_digest(&[7; 40]);
        let seq = writer.staged_to().next;
        let head = Head { seq, flags: 0, producer: 1, index, shape, spilled: None, payload };
        writer.stage(&head, Payload::Here(&[7; 40]));
        if seq.get() % 2 == 1 {
            writer.commit(None, true).unwrap();
        }
    }
    drop(writer);
    let name = disk.segments().pop().unwrap();
    // The second one lies where the first one was.
    let (at, bytes) = (begins(), 48 + 40);
    disk.change(&name, |file| file.copy_within(at + bytes..at + 2 * bytes, at));
    let error = replay(&disk).unwrap_err();
    assert!(
        matches!(&error, ReplayError::Damaged(damage) if damage.seq.get() == FIRST && damage.field == "index"),
        "{error}"
    );
    assert!(!audit(&disk).is_sound());
    assert!(matches!(open(&disk, 64 << 10), Err(JournalError::Unreadable(_))));
}

/// A payload can look like the heads of very long records, at each of its words: what lies behind a torn one is not
/// summed up for each of them.
#[test]
fn a_torn_tail_full_of_heads_costs_no_more_than_its_length() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 4 << 20).unwrap();
    let bytes: Vec<u8> = [[0, 0, 0x10, 0], *b"rec\0"].concat().repeat(256 << 10);
    let (shape, payload) = (bytes.len() as u64, payload_digest(&bytes));
    let (seq, index) = (Seq::new(FIRST), world().lanes[1].next);
    let head = Head { seq, flags: 0, producer: 1, index, shape, spilled: None, payload };
    writer.stage(&head, Payload::Here(&bytes));
    writer.commit(None, false).unwrap();
    drop(writer);
    let name = disk.segments().pop().unwrap();
    disk.change(&name, |file| file[begins() + 16] ^= 1);
    let before = disk.reads().1;
    let replay = replay(&disk).unwrap();
    assert_eq!(replay.cut().map(|cut| (cut.seq.get(), cut.whole)), Some((FIRST, 0)));
    let read = disk.reads().1 - before;
    assert!(read < 100 * disk.len(&name), "{read} bytes were read of {}", disk.len(&name));
}

/// Only what a journal has made itself is removed.
#[test]
fn what_belongs_to_others_stays() {
    let disk = journal(20, 64 << 10);
    for name in ["notes.new", "00000000000000000007.new"] {
        disk.create(&dir().join(name)).unwrap();
    }
    drop(open(&disk, 64 << 10).unwrap());
    let names = disk.list(dir()).unwrap();
    assert!(names.iter().any(|name| name == "notes.new"), "{names:?}");
    assert!(!names.iter().any(|name| name == "00000000000000000007.new"), "{names:?}");
}

#[test]
fn a_segment_that_is_missing_is_named_and_nothing_is_passed_over() {
    let disk = journal(200, 16 << 10).copy();
    let gone = disk.segments()[1].clone();
    disk.forget(&gone);
    let mut replay = replay(&disk).unwrap();
    let error = loop {
        match replay.next() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a silent end"),
            Err(error) => break error,
        }
    };
    let begins = gone.trim_end_matches(".seg").parse::<u64>().unwrap();
    assert!(matches!(error, ReplayError::Missing { expected, .. } if expected.get() == begins), "{error}");
    let audit = audit(&disk);
    assert!(audit.problems.len() == 1 && audit.problems[0].to_string().contains("is not there"), "{audit:?}");
}

#[test]
fn two_journals_in_one_directory_are_refused_and_so_is_another_regions() {
    let disk = MemoryDisk::default();
    let writer = open(&disk, 64 << 10).unwrap();
    assert!(matches!(open(&disk, 64 << 10), Err(JournalError::Busy { .. })));
    drop(writer);
    let other = Origin { uuid: Uuid(9), ..origin() };
    let error = Shelf::open(Arc::new(disk.clone()), dir(), Some(other), Duration::ZERO).unwrap_err();
    assert!(matches!(error, JournalError::OtherRegion { .. }), "{error}");
}

#[test]
fn there_is_no_journal_where_there_is_none() {
    assert!(matches!(replay(&MemoryDisk::default()), Err(ReplayError::Empty { .. })));
}

/// A record longer than a segment has one of its own.
#[test]
fn a_record_longer_than_a_segment_fits() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 4 << 10).unwrap();
    for seq in FIRST..FIRST + 4 {
        let bytes = vec![seq as u8; if seq % 2 == 0 { 10 } else { 100_000 }];
        let shape = bytes.len() as u64;
        let head = Head {
            seq: Seq::new(seq),
            flags: 0,
            producer: 1,
            index: world().lanes[1].next + seq - FIRST,
            shape,
            spilled: None,
            payload: payload_digest(&bytes),
        };
        if !writer.fits(&head) {
            writer.commit(None, true).unwrap();
            writer.rotate().unwrap();
        }
        assert!(writer.fits(&head));
        writer.stage(&head, Payload::Here(&bytes));
    }
    writer.commit(None, true).unwrap();
    writer.seal().unwrap();
    drop(writer);
    let audit = audit(&disk);
    assert!(audit.is_sound() && audit.records == 4 && audit.segments == 4, "{audit:?}");
}
