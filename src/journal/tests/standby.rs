//! A standby: whatever becomes of its source, of its own disk, and of itself, it has the source's records, each once.

use super::memory_disk::{Choice, Failure, Fault, MemoryDisk, image};
use super::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::journal::disk::Local;
use crate::journal::segment::{self, Segment};
use crate::journal::{
    Bookmark, BookmarkError, Duty, Journal, JournalOptions, Lag, Promoted, Record, ReplayError, Standby,
    StandbyError, StandbyOptions, SyncPolicy,
};
use crate::{Config, Digest, Producer, Region, Sequenced, Sequencer, SequencerConfig};

const SEGMENT: u64 = 6 << 10;

fn options() -> StandbyOptions {
    StandbyOptions::new().segment_bytes(4 << 10)
}

fn follow_as(
    source: &MemoryDisk,
    own: &MemoryDisk,
    options: &StandbyOptions,
) -> Result<Standby, StandbyError> {
    let on = |disk: &MemoryDisk| Arc::new(disk.clone()) as Arc<dyn Disk>;
    Standby::open_on((on(source), dir()), (on(own), dir()), options)
}

fn follow(source: &MemoryDisk, own: &MemoryDisk) -> Standby {
    follow_as(source, own, &options()).unwrap()
}

fn duty(disk: &MemoryDisk) -> Duty {
    Duty::read(disk, dir()).unwrap()
}

/// Takes all that there is.
fn catch_up(standby: &mut Standby) {
    while standby.poll().unwrap() > 0 {}
}

/// That a standby's disk has what belongs there, up to an index.
fn has_all(own: &MemoryDisk, end: u64) {
    assert_eq!(read_all(own), end);
    let audit = audit(own);
    assert!(audit.is_sound(), "{audit:?}");
}

/// A disk with a journal of so many records.
fn source(count: u64) -> (MemoryDisk, Writer) {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, SEGMENT).unwrap();
    write(&disk, &mut writer, count, 4, true);
    (disk, writer)
}

#[test]
fn what_a_journal_writes_is_followed_record_by_record() {
    for sync in [SyncPolicy::Group, SyncPolicy::Off, SyncPolicy::Every(Duration::ZERO)] {
        let ((source, mut writer), own) = (source(3), MemoryDisk::default());
        let mut standby = follow_as(&source, &own, &options().sync(sync)).unwrap();
        let (mut handed, mut next) = (Vec::new(), FIRST);
        for round in 0..60 {
            write(&source, &mut writer, round % 7, 3, round % 2 == 0);
            while standby
                .poll_with(|record| handed.push((record.seq.get(), record.payload.to_vec())))
                .unwrap()
                > 0
            {}
            for (seq, payload) in handed.drain(..) {
                assert_eq!((seq, payload), (next, record(next).1));
                next += 1;
            }
            let end = writer.written().next.get();
            let lag = standby.lag();
            assert_eq!((next, standby.next().get(), lag.own_end.get()), (end, end, end));
            assert_eq!((lag.source_end.map(Seq::get), lag.indexes()), (Some(end), Some(0)));
            assert_eq!(standby.digest().0, digest_at(end));
            match sync {
                SyncPolicy::Off => assert!(standby.durable() <= standby.next()),
                _ => assert_eq!(standby.durable(), standby.next()),
            }
        }
        assert!(
            own.segments().len() > 3 && own.segments() != source.segments(),
            "it has segments of its own"
        );
        has_all(&own, next);
    }
}

/// Both are killed, ended and started again at random, and the source's segments rotate and are written anew.
#[test]
fn both_come_and_go_and_there_is_one_history() {
    let (mut mended, mut restarts) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let ((source, writer), own) = (source(1), MemoryDisk::default());
        let (mut writer, mut standby) = (Some(writer), Some(follow(&source, &own)));
        let mut next = FIRST;
        for _ in 0..120 {
            match random.below(12) {
                0..5 => {
                    let writer = writer.get_or_insert_with(|| open(&source, SEGMENT).unwrap());
                    write(&source, writer, random.below(9), 1 + random.below(4), random.below(2) == 0);
                }
                // Killed, and gone on with: what it left is written anew.
                5 => mended += u64::from(writer.take().is_some()),
                6 => {
                    if let Some(mut ended) = writer.take() {
                        ended.seal().unwrap();
                    }
                }
                7 => restarts += u64::from(standby.take().is_some()),
                8 => {
                    if let Some(standby) = standby.take() {
                        standby.close().unwrap();
                    }
                }
                _ => {
                    let standby = standby.get_or_insert_with(|| {
                        let standby = follow(&source, &own);
                        // What was not written when it died is handed out again.
                        next = standby.next().get();
                        standby
                    });
                    standby
                        .poll_with(|record| {
                            assert_eq!(record.seq.get(), next);
                            next += 1;
                        })
                        .unwrap();
                }
            }
        }
        drop(standby);
        let mut standby = follow(&source, &own);
        catch_up(&mut standby);
        let end = Replay::open_on(Arc::new(source.clone()), dir(), false).unwrap().end();
        assert_eq!(standby.next(), end, "seed {seed}");
        drop(standby);
        has_all(&own, end.get());
    }
    assert!(mended > 100 && restarts > 100, "{mended} {restarts}");
}

/// Each call on its own disk fails, once or several times; and then the power.
#[test]
fn whatever_its_disk_does_it_has_what_it_said_was_durable() {
    let (source, _writer) = source(60);
    let end = FIRST + 60;
    let stubbornly = |own: &MemoryDisk| {
        let (mut errors, mut calls, mut standby) = (Vec::new(), 0, None);
        while standby.as_ref().is_none_or(|standby: &Standby| standby.durable().get() < end) {
            let result = match &mut standby {
                None => follow_as(&source, own, &options()).map(|opened| standby = Some(opened)),
                Some(standby) => standby.poll().map(drop),
            };
            if let Some(standby) = &standby {
                own.acknowledge(standby.durable().get());
            }
            errors.extend(result.err());
            calls += 1;
            assert!(errors.len() < 100 && calls < 1_000, "it does not come to it: {errors:?}");
        }
        errors
    };
    let calls = {
        let own = MemoryDisk::default();
        assert!(stubbornly(&own).is_empty());
        own.state().calls
    };
    let (mut cases, mut images) = (0, 0);
    for from in 0..calls {
        for (code, count) in [(libc::ENOSPC, 1), (libc::EIO, 3)] {
            let own = MemoryDisk::default();
            own.state().fault = Some(Fault { from, count, how: Failure::Error(code) });
            let errors = stubbornly(&own);
            assert!(errors.iter().all(|error| matches!(error, StandbyError::Own(_))), "{errors:?}");
            cases += u64::from(!errors.is_empty());
            has_all(&own, end);
            let log = own.state().log.clone();
            for at in (0..=log.len()).step_by(9).chain([log.len()]) {
                for choice in [Choice::Nothing, Choice::Random(at as u64)] {
                    let (own, acknowledged) = image(&log[..at], choice);
                    let mut standby = follow(&source, &own);
                    let context = format!("call {from}, error {code}, operation {at}, {choice:?}");
                    assert!(standby.durable().get() >= acknowledged, "{context}");
                    catch_up(&mut standby);
                    drop(standby);
                    has_all(&own, end);
                    images += 1;
                }
            }
        }
    }
    println!("{cases} cases, {images} images");
    assert!(cases > 40 && images > 1_000, "{cases} {images}");
}

/// Each call of the source's journal fails, and the standby looks at what is there at each moment: also at what was written
/// and is written again.
#[test]
fn whatever_the_sources_disk_does_it_is_followed() {
    let run = |fault: Option<Fault>, again: Option<u64>| {
        let (source, own) = (MemoryDisk::default(), MemoryDisk::default());
        let mut writer = open(&source, SEGMENT).unwrap();
        let mut standby = follow(&source, &own);
        source.state().calls = 0;
        source.state().fault = fault;
        let (mut failed, mut behind) = (0, 0);
        let look = |standby: &mut Standby| loop {
            match standby.poll() {
                Ok(0) => break,
                Ok(_) => {}
                // To list a directory is a call as well.
                Err(StandbyError::Source(ReplayError::Io { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        };
        while writer.written().next.get() < FIRST + 40 {
            let has_room = writer.staged_to() != writer.written() || stage(&mut writer, 3);
            let written = writer.commit(None, true);
            if written.is_err() && failed == 0 {
                // And once more, while it is written anew.
                let mut state = source.state();
                let next = again.map(|skip| Fault {
                    from: state.calls + skip,
                    count: 1,
                    how: Failure::Error(libc::EIO),
                });
                state.fault = next.or(state.fault);
            }
            failed += u64::from(written.is_err());
            look(&mut standby);
            behind += u64::from(standby.next() > writer.written().next);
            if written.is_ok() && !has_room {
                failed += u64::from(writer.rotate().is_err());
                look(&mut standby);
            }
        }
        source.state().fault = None;
        let (end, calls) = (writer.written().next.get(), source.state().calls);
        look(&mut standby);
        assert_eq!(standby.next().get(), end);
        drop(standby);
        has_all(&own, end);
        (calls, failed, behind)
    };
    let (calls, failed, _) = run(None, None);
    assert_eq!(failed, 0);
    let (mut cases, mut all_behind) = (0, 0);
    for from in 0..calls {
        let again = [None, None].into_iter().chain((2..9).map(Some));
        for ((code, count), again) in [(libc::EIO, 1), (libc::ENOSPC, 4)].into_iter().cycle().zip(again) {
            let (_, failed, behind) = run(Some(Fault { from, count, how: Failure::Error(code) }), again);
            cases += u64::from(failed > 0);
            all_behind += behind;
        }
    }
    println!("{cases} cases, {all_behind} times ahead of what was written anew");
    assert!(cases > 40 && all_behind > 5, "{cases} {all_behind}");
}

#[test]
fn a_source_that_is_away_is_missed_and_gone_on_with() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    let mut standby = follow(&source, &own);
    catch_up(&mut standby);
    source.state().is_gone = true;
    for _ in 0..3 {
        let error = standby.poll().unwrap_err();
        assert!(matches!(error, StandbyError::Source(ReplayError::Io { .. })), "{error}");
        assert!(standby.lag().failing.is_some_and(|said| said.contains(DIR)));
    }
    // It can be started again as well: its own directory says whose order it is.
    drop(standby);
    let mut standby = follow(&source, &own);
    assert!(standby.poll().is_err());
    source.state().is_gone = false;
    write(&source, &mut writer, 5, 2, true);
    catch_up(&mut standby);
    assert_eq!((standby.next().get(), standby.lag().failing), (FIRST + 15, None));
    // But not where nothing is known of it.
    source.state().is_gone = true;
    let error = follow_as(&source, &MemoryDisk::default(), &options()).unwrap_err();
    assert!(matches!(error, StandbyError::Source(_)), "{error}");
}

#[test]
fn what_the_source_no_longer_has_is_named() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    let mut standby = follow(&source, &own);
    catch_up(&mut standby);
    write(&source, &mut writer, 100, 4, true);
    let kept = source.segments().split_off(4);
    let first: u64 = kept[0].trim_end_matches(".seg").parse().unwrap();
    assert!(first > FIRST + 10);
    for name in source.segments().iter().filter(|name| !kept.contains(name)) {
        source.forget(name);
    }
    let refused = |result: Result<(), StandbyError>| {
        let error = result.unwrap_err();
        let names = matches!(error, StandbyError::Pruned { next, first: there, .. }
            if (next.get(), there.get()) == (FIRST + 10, first));
        assert!(names && error.to_string().contains(&format!("begins at index {first}")), "{error}");
    };
    // It may have the file still open that its next records are in, and reads on there.
    let result = loop {
        match standby.poll() {
            Ok(0) => panic!("it does not stop at {}", standby.next()),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let end = standby.next().get();
    assert!(end < first && !matches!(result, StandbyError::OtherHistory { .. }), "{result}");
    drop(standby);
    if end == FIRST + 10 {
        refused(follow_as(&source, &own, &options()).map(drop));
    } else {
        assert!(matches!(follow_as(&source, &own, &options()), Err(StandbyError::Pruned { .. })));
    }
    // A new one begins where the source does now.
    let own = MemoryDisk::default();
    let mut standby = follow(&source, &own);
    catch_up(&mut standby);
    assert_eq!(standby.next(), writer.written().next);
    assert_eq!(Replay::open_on(Arc::new(own.clone()), dir(), false).unwrap().first().get(), first);
    assert!(audit(&own).is_sound());
}

/// A source that came back with less, as after a loss of power, and went on with other commands.
#[test]
fn nothing_is_taken_of_another_history() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    let lost = source.copy();
    let mut standby = follow(&source, &own);
    write(&source, &mut writer, 6, 2, true);
    catch_up(&mut standby);
    assert_eq!(standby.next().get(), FIRST + 16);
    drop((standby, writer));
    // As it was before, and others come.
    let mut writer = open(&lost, SEGMENT).unwrap();
    let error = follow(&lost, &own).poll().unwrap_err();
    let is_behind = matches!(error, StandbyError::Behind { source_end, end, .. }
        if (source_end.get(), end.get()) == (FIRST + 10, FIRST + 16));
    assert!(is_behind, "{error}");
    write_others(&mut writer, 9);
    let error = follow_as(&lost, &own, &options()).unwrap_err();
    let is_other = matches!(error, StandbyError::OtherHistory { seq, expected, .. }
        if (seq.get(), expected.0) == (FIRST + 16, digest_at(FIRST + 16)));
    assert!(is_other && error.to_string().contains("different histories"), "{error}");
    has_all(&own, FIRST + 16);
    // Nor of another region.
    let (source, _writer) = self::source(5);
    let other = MemoryDisk::default();
    let shelf = Shelf::open(Arc::new(other.clone()), dir(), None, Duration::ZERO).unwrap();
    drop(shelf.begin(beginning(), world(), Origin { uuid: Uuid(9), ..origin() }, SEGMENT).unwrap());
    let adopts = options().adopt(true);
    let error = follow_as(&source, &other, &adopts).unwrap_err();
    assert!(matches!(error, StandbyError::OtherRegion { .. }), "{error}");
}

/// Where the source's journal sat, and whether its gate is to stay, is what a region is restored with.
#[test]
fn where_the_journal_sat_is_noted_when_it_changes() {
    let ((source, mut writer), own) = (source(5), MemoryDisk::default());
    let mut standby = follow(&source, &own);
    let last_seat = || {
        let first = *segment::list(&own, dir()).unwrap().last().unwrap();
        Segment::open(&own, dir(), first, false, true).unwrap().world.seat
    };
    let mut seat = writer.seat();
    for (slot, count) in [(1, 5), (0, 0), (1, 3), (0, 40)] {
        seat.slot = slot;
        writer.reseat(seat).unwrap();
        write(&source, &mut writer, count, 2, true);
        catch_up(&mut standby);
        if count > 0 {
            assert_eq!(last_seat(), seat);
        }
    }
    // Also by one that was started again, and has nothing in its segment.
    drop(standby);
    seat.slot = 1;
    writer.reseat(seat).unwrap();
    write(&source, &mut writer, 1, 1, true);
    let mut standby = follow(&source, &own);
    catch_up(&mut standby);
    drop(standby);
    assert_eq!(last_seat(), seat);
    has_all(&own, writer.written().next.get());
}

fn promote(source: &MemoryDisk, own: &MemoryDisk, force: bool) -> Result<Promoted, StandbyError> {
    follow_as(source, own, &options())?.promote(force)
}

#[test]
fn one_that_is_promoted_has_all_and_supersedes_its_source() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    catch_up(&mut follow(&source, &own));
    write(&source, &mut writer, 50, 5, true);
    let error = promote(&source, &own, false).unwrap_err();
    assert!(matches!(error, StandbyError::Alive { .. }), "{error}");
    assert!(matches!(open(&own, SEGMENT), Err(JournalError::Standby { .. })));
    drop(writer);
    let mut handed = 0;
    let promoted = follow(&source, &own).promote_with(false, |_| handed += 1).unwrap();
    assert_eq!((promoted.next.get(), promoted.digest.0), (FIRST + 60, digest_at(FIRST + 60)));
    assert!(
        promoted.taken == 50 && handed == 50 && promoted.is_fenced && promoted.trouble.is_none(),
        "{promoted:?}"
    );
    assert!(!promoted.to_string().contains("LOST"), "{promoted}");
    // One of both goes on.
    let error = open(&source, SEGMENT).unwrap_err();
    assert!(matches!(&error, JournalError::Superseded { next, .. } if next.get() == FIRST + 60), "{error}");
    assert_eq!(duty(&own), Duty::Journal);
    let error = follow_as(&source, &own, &options()).unwrap_err();
    assert!(matches!(error, StandbyError::NotAStandby { .. }), "{error}");
    let mut writer = open(&own, SEGMENT).unwrap();
    write(&own, &mut writer, 7, 2, true);
    // And the other one can become its standby, and take it all back.
    assert!(matches!(follow_as(&own, &source, &options()), Err(StandbyError::NotAStandby { .. })));
    let mut back = follow_as(&own, &source, &options().adopt(true)).unwrap();
    catch_up(&mut back);
    assert_eq!(back.next().get(), FIRST + 67);
    drop(writer);
    assert!(back.promote(false).unwrap().is_fenced);
    assert!(matches!(open(&own, SEGMENT), Err(JournalError::Superseded { .. })));
    recovers(&source, FIRST + 67, SEGMENT);
}

/// By force, beside a journal that lives, or from a source that is gone: and what may be lost is said.
#[test]
fn what_force_may_lose_is_said() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    let mut standby = follow(&source, &own);
    catch_up(&mut standby);
    // As far as it has seen.
    write(&source, &mut writer, 5, 5, true);
    standby.source_look().unwrap();
    source.state().is_gone = true;
    drop(standby);
    let error = promote(&source, &own.copy(), false).unwrap_err();
    assert!(matches!(error, StandbyError::Alive { .. }), "{error}");
    drop(writer);
    let error = promote(&source, &own.copy(), false).unwrap_err();
    assert!(matches!(error, StandbyError::Source(_) | StandbyError::OutOfReach { .. }), "{error}");
    let promoted = promote(&source, &own.copy(), true).unwrap();
    assert!(!promoted.is_fenced && promoted.next.get() == FIRST + 10, "{promoted:?}");
    let said = promoted.to_string();
    assert!(["BY FORCE", "LOST", "not known", "NOT say"].iter().all(|part| said.contains(part)), "{said}");
    // One that has seen more says how much.
    source.state().is_gone = false;
    let own = own.copy();
    let mut standby = follow(&source, &own);
    standby.source_look().unwrap();
    source.state().is_gone = true;
    let promoted = standby.promote(true).unwrap();
    assert_eq!((promoted.next.get(), promoted.source_end.map(Seq::get)), (FIRST + 10, Some(FIRST + 15)));
    assert!(promoted.to_string().contains("5 of what was seen"), "{promoted}");
    // Beside one that lives, what is there is taken, and it cannot be gone on with.
    let ((source, writer), own) = (self::source(10), MemoryDisk::default());
    let promoted = promote(&source, &own, true).unwrap();
    assert!(promoted.next.get() == FIRST + 10 && promoted.is_fenced, "{promoted:?}");
    assert!(promoted.to_string().contains("a journal writes into"), "{promoted}");
    drop(writer);
    assert!(matches!(open(&source, SEGMENT), Err(JournalError::Superseded { .. })));
}

/// A source that lost what it had not synced has nothing that the standby lacks.
#[test]
fn one_that_is_ahead_of_its_source_can_be_promoted() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    let lost = source.copy();
    write(&source, &mut writer, 6, 2, true);
    catch_up(&mut follow(&source, &own));
    let promoted = promote(&lost, &own, false).unwrap();
    assert!(promoted.next.get() == FIRST + 16 && promoted.is_fenced, "{promoted:?}");
}

/// Who promotes dies at each call, on either disk, and then the power fails on both: at most one of them can be gone on with,
/// and what was promoted has all.
#[test]
fn no_moment_has_two_that_can_be_gone_on_with() {
    let set = || {
        let ((source, writer), own) = (source(30), MemoryDisk::default());
        mark(&source, "reader", FIRST + 20);
        drop((follow(&source, &own), writer));
        for disk in [&source, &own] {
            disk.state().calls = 0;
        }
        (source, own)
    };
    let (source, own) = set();
    promote(&source, &own, false).unwrap();
    let calls = [source.state().calls, own.state().calls];
    let (mut images, mut halves, mut promoted) = (0, 0, 0);
    for (which, calls) in (0..).zip(calls) {
        for from in 0..=calls {
            let (source, own) = set();
            let how = Failure::Error(libc::EIO);
            let dying = [&source, &own][which];
            dying.state().fault = Some(Fault { from, count: u64::MAX, how });
            // The bookmark goes when all that matters is done, and may stay: to remove it and to sync that are two calls.
            let beside = if which == 0 { 2 } else { 0 };
            let is_done = from >= calls - beside;
            assert_eq!(promote(&source, &own, false).is_ok(), is_done, "disk {which}, call {from}");
            let logs = [source.state().log.clone(), own.state().log.clone()];
            for seed in 0..16 {
                let choice = [Choice::Nothing, Choice::Everything][seed as usize % 2];
                let choice = if seed < 2 { choice } else { Choice::Random(seed + from * 100) };
                let ((source, _), (own, _)) = (image(&logs[0], choice), image(&logs[1], choice));
                let context = format!("disk {which}, call {from}, {choice:?}");
                let is_superseded = || matches!(duty(&source), Duty::Superseded { .. });
                if duty(&own) == Duty::Journal {
                    promoted += 1;
                    assert_eq!(named(&own), [("reader".into(), FIRST + 20)], "{context}: before it counts");
                } else {
                    halves += u64::from(is_superseded());
                    // It is promoted again, and has all then.
                    assert_eq!(promote(&source, &own, false).unwrap().next.get(), FIRST + 30, "{context}");
                }
                assert!(is_superseded(), "{context}");
                has_all(&own, FIRST + 30);
                assert_eq!(named(&own), [("reader".into(), FIRST + 20)], "{context}");
                images += 1;
            }
        }
    }
    println!("{images} images, {halves} where none can be gone on with, {promoted} of one that is promoted");
    assert!(images > 300 && halves > 20 && promoted > 10, "{images} {halves} {promoted}");
}

/// A bookmark whose name could not be synced while it followed is there for good before the promotion counts.
#[test]
fn what_could_not_be_synced_is_before_it_counts() {
    let set = || {
        let ((source, writer), own) = (source(30), MemoryDisk::default());
        mark(&source, "reader", FIRST + 20);
        drop(writer);
        let standby = follow(&source, &own);
        own.state().calls = 0;
        (source, own, standby)
    };
    let run = |mut standby: Standby| {
        let _ = standby.poll();
        standby.promote(false)
    };
    let (_, own, standby) = set();
    run(standby).unwrap();
    let calls = own.state().calls;
    let (mut again, mut promoted) = (0, 0);
    for from in 0..calls {
        let (source, own, standby) = set();
        own.state().fault = Some(Fault { from, count: 1, how: Failure::Error(libc::EIO) });
        if run(standby).is_err() {
            again += 1;
            if duty(&own) != Duty::Journal {
                promote(&source, &own, false).unwrap();
            }
        }
        let log = own.state().log.clone();
        for at in log.len().saturating_sub(12)..=log.len() {
            for seed in 0..24 {
                let (own, _) = image(&log[..at], Choice::Random(seed));
                if duty(&own) == Duty::Journal && !own.segments().is_empty() {
                    promoted += 1;
                    let context = format!("call {from}, operation {at}, seed {seed}");
                    assert_eq!(named(&own), [("reader".into(), FIRST + 20)], "{context}");
                }
            }
        }
    }
    println!("{again} times again, {promoted} images of one that is promoted");
    assert!(again > 5 && promoted > 100, "{again} {promoted}");
}

/// More than what is taken at once.
#[test]
fn one_that_is_far_behind_is_promoted_with_all() {
    let (source, own) = (MemoryDisk::default(), MemoryDisk::default());
    let mut writer = open(&source, 256 << 10).unwrap();
    write(&source, &mut writer, 9_000, 500, false);
    drop(writer);
    let standby = follow_as(&source, &own, &options().segment_bytes(256 << 10)).unwrap();
    let promoted = standby.promote(false).unwrap();
    assert_eq!((promoted.next.get(), promoted.taken), (FIRST + 9_000, 9_000));
}

/// A source that is behind is waited for, and gone on with when the same records have come again.
#[test]
fn one_that_runs_waits_for_a_source_that_is_behind() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    let lost = source.copy();
    write(&source, &mut writer, 6, 2, true);
    catch_up(&mut follow(&source, &own));
    let mut standby = follow(&lost, &own);
    let (mut asked, mut again) = (0, None);
    let stop = |lag: &Lag| {
        asked += 1;
        if asked == 3 {
            assert!(lag.failing.as_ref().is_some_and(|said| said.contains("ends at index")), "{lag:?}");
            let writer = again.get_or_insert_with(|| open(&lost, SEGMENT).unwrap());
            write(&lost, writer, 20, 2, true);
        }
        lag.failing.is_none() && lag.own_end.get() == FIRST + 30
    };
    standby.run(stop).unwrap();
    drop(standby);
    has_all(&own, FIRST + 30);
}

/// Beside a region's journal that writes all the while, and whose disk is away in between.
#[test]
fn a_region_is_followed_while_it_is_written() {
    let region = Region::anonymous(&Config::new().lane_cells(16).lane_bytes(8 << 10).workers(2)).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let (source, own) = (MemoryDisk::default(), MemoryDisk::default());
    let options_of_journal = JournalOptions::new().segment_bytes(16 << 10).timeout(Duration::from_secs(60));
    let mut journal =
        Journal::open_on(Arc::new(source.clone()), &region, dir(), &options_of_journal).unwrap();
    let (mut standby, handed) = (follow(&source, &own), AtomicU64::new(0));
    let (is_over, is_missed) = (AtomicBool::new(false), AtomicBool::new(false));
    let over = || is_over.load(Ordering::Relaxed);
    let end = std::thread::scope(|scope| {
        let writing = scope.spawn(move || journal.run(over).map(|()| journal));
        let following = scope.spawn(|| {
            let each = |record: &Record<'_>| {
                assert_eq!(record.seq.get(), handed.fetch_add(1, Ordering::Relaxed));
            };
            let stop = |lag: &Lag| {
                is_missed.fetch_or(lag.failing.is_some(), Ordering::Relaxed);
                over()
            };
            standby.run_with(stop, each).map(|()| standby)
        });
        let mut producer = Producer::attach(&region, "p").unwrap();
        let durable = |producer: &mut Producer, index| {
            let Sequenced::At(seq) = producer.wait_sequenced(index).unwrap() else { panic!("just now") };
            region.wait_durable(seq, Instant::now() + Duration::from_secs(60)).unwrap();
            seq
        };
        for n in 0..1_500_u32 {
            let len = if n % 50 == 7 { 20_000 } else { n as usize % 600 };
            let index = producer.submit(0, &vec![n as u8; len]).unwrap();
            let is_missed =
                || region.journal().unwrap().failing_for.is_some() && is_missed.load(Ordering::Relaxed);
            if n == 500 {
                durable(&mut producer, index);
                source.state().is_gone = true;
            } else if n == 510 {
                // What has been submitted since waits, and both of them miss the disk.
                while !is_missed() {
                    assert!(!following.is_finished(), "it is tried again");
                    std::thread::yield_now();
                }
                source.state().is_gone = false;
            }
        }
        let seq = durable(&mut producer, 1_499);
        while handed.load(Ordering::Relaxed) <= seq.get() {
            assert!(!following.is_finished(), "it follows");
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
        let end = writing.join().unwrap().unwrap().next();
        following.join().unwrap().unwrap().close().unwrap();
        end
    });
    let read = |disk: &MemoryDisk| Replay::open_on(Arc::new(disk.clone()), dir(), false).unwrap();
    let (mut one, mut other) = (read(&source), read(&own));
    while let Some(record) = other.next().unwrap() {
        assert_eq!(Some(record), one.next().unwrap());
    }
    assert!(other.position() > Seq::new(1_500) && other.position() <= end);
    assert!(audit(&own).is_sound());
}

/// What says what a directory is for is believed as it was written alone.
#[test]
fn each_flipped_bit_of_a_duty_is_found() {
    let ((source, writer), own) = (source(3), MemoryDisk::default());
    drop((follow(&source, &own), writer));
    promote(&source, &own, false).unwrap();
    for bit in 0..source.len("superseded") * 8 {
        let source = source.copy();
        source.flip("superseded", bit);
        let error = open(&source, SEGMENT).unwrap_err();
        assert!(matches!(&error, JournalError::Unreadable(ReplayError::Damaged(_))), "bit {bit}: {error}");
        assert!(error.to_string().contains("superseded"), "{error}");
    }
}

/// Three directories of one file system: the first one has a journal of ten records.
fn three() -> (tempfile::TempDir, [PathBuf; 3]) {
    let temp = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| temp.path().join(name));
    let mut writer = open_at(&dirs[0]).unwrap();
    stage(&mut writer, 10);
    writer.commit(None, true).unwrap();
    (temp, dirs)
}

fn open_at(dir: &Path) -> Result<Writer, JournalError> {
    let shelf = Shelf::open(Arc::new(Local), dir, Some(origin()), Duration::ZERO)?;
    let (at, world) = match &shelf.ending {
        Some(ending) => (ending.point, ending.world.clone()),
        None => (beginning(), world()),
    };
    shelf.begin(at, world, origin(), SEGMENT)
}

fn follow_at(source: &Path, dir: &Path) -> Standby {
    let mut standby = Standby::open(source, dir, &options()).unwrap();
    catch_up(&mut standby);
    standby
}

/// How many of them a region can go on with.
fn primaries(dirs: &[PathBuf]) -> usize {
    dirs.iter().filter(|dir| open_at(dir).is_ok()).count()
}

/// Of two standbys of one journal the first one is promoted; the second one is told who that was.
#[test]
fn of_two_standbys_one_is_promoted() {
    let (_temp, [a, b, c]) = three();
    let followers = [follow_at(&a, &b), follow_at(&a, &c)];
    let [first, mut second] = followers;
    first.promote(false).unwrap();
    let superseded = Duty::of(&a).unwrap();
    let is_by_b = |error: &StandbyError| match error {
        StandbyError::Superseded { followed, dir, by, next } => {
            (followed, dir, by, next.get()) == (&a, &c, &b, FIRST + 10)
        }
        _ => false,
    };
    let error = second.poll().unwrap_err();
    assert!(is_by_b(&error), "{error}");
    let error = second.run(|_| false).unwrap_err();
    assert!(is_by_b(&error), "{error}");
    let error = second.promote(false).unwrap_err();
    assert!(is_by_b(&error), "{error}");
    assert_eq!(primaries(&[a.clone(), b.clone(), c.clone()]), 1);
    // It can follow the one that goes on, or be promoted by force: then it says what it took that for.
    drop(follow_at(&b, &c));
    let promoted = Standby::open(&a, &c, &options()).unwrap().promote(true).unwrap();
    let said = promoted.to_string();
    assert!(said.contains("BY FORCE") && said.contains(&b.display().to_string()), "{said}");
    assert!(promoted.is_fenced, "{promoted:?}");
    assert_eq!(Duty::of(&a).unwrap(), superseded, "what was said first stays");
}

/// A standby that has the path of one that was promoted, as on another machine, is another one all the same.
#[test]
fn of_two_standbys_of_one_path_one_is_promoted() {
    let (_temp, [a, b, c]) = three();
    drop((follow_at(&a, &b), follow_at(&a, &c)));
    Standby::resume(&b, &options()).unwrap().promote(false).unwrap();
    let moved = b.with_extension("of-another-machine");
    std::fs::rename(&b, &moved).unwrap();
    std::fs::rename(&c, &b).unwrap();
    let error = Standby::resume(&b, &options()).unwrap().promote(false).unwrap_err();
    assert!(matches!(&error, StandbyError::Superseded { next, .. } if next.get() == FIRST + 10), "{error}");
    assert_eq!(primaries(&[a, b, moved]), 1);
}

/// A standby of a standby takes nobody's place; by force it does, and then the one between takes none.
#[test]
fn a_standby_of_a_standby_is_promoted_by_force_alone() {
    let (_temp, dirs) = three();
    let [a, b, c] = &dirs;
    drop((follow_at(a, b), follow_at(b, c)));
    let promote = |dir: &Path, force| Standby::resume(dir, &options())?.promote(force);
    let error = promote(c, false).unwrap_err();
    let is_named = matches!(&error, StandbyError::Chained { followed, dir, first }
        if (followed, dir, first) == (b, c, a));
    assert!(is_named, "{error}");
    assert_eq!((primaries(&dirs), Duty::of(b).unwrap()), (1, Duty::Standby { source: a.clone() }));
    let promoted = promote(c, true).unwrap();
    assert!(promoted.is_fenced && promoted.to_string().contains("itself a standby"), "{promoted}");
    for force in [false, true] {
        let error = promote(b, force).unwrap_err();
        let both = [a, c].iter().all(|dir| error.to_string().contains(&dir.display().to_string()));
        assert!(both, "{error}");
    }
    assert!(matches!(Standby::open(a, b, &options()), Err(StandbyError::Own(_))));
    assert!(matches!(Duty::of(b), Err(ReplayError::TwoDuties { .. })));
    // One that was opened before that does not take the word away, either.
    let journal = Duty::Journal.write(&Local, b, origin().uuid, 0);
    assert!(matches!(journal, Err(JournalError::Superseded { .. })), "{journal:?}");
    // Who says so has it follow the one that goes on.
    drop(Standby::open(c, b, &options().adopt(true)).unwrap());
    assert_eq!(Duty::of(b).unwrap(), Duty::Standby { source: c.clone() });
}

/// A source that is a standby itself of another one, to which this one's path leads by now, or on another machine, is no
/// reason to take it for the first: that other one can still be gone on with.
#[test]
fn a_source_that_follows_another_one_of_the_same_path_is_not_the_first() {
    let ((source, writer), between, own) = (source(10), MemoryDisk::default(), MemoryDisk::default());
    catch_up(&mut follow(&source, &between));
    catch_up(&mut follow(&between, &own));
    drop(writer);
    let error = promote(&between, &own, false).unwrap_err();
    assert!(matches!(error, StandbyError::Chained { .. }), "{error}");
    assert_eq!((duty(&source), duty(&own)), (Duty::Journal, Duty::Standby { source: dir().into() }));
}

/// Two that follow each other, for the first died while it was promoted: one of them is promoted, without force.
#[test]
fn of_two_that_follow_each_other_one_is_promoted() {
    let (_temp, [a, b, _]) = three();
    let standby = follow_at(&a, &b);
    let word = std::fs::read(b.join("standby")).unwrap();
    standby.promote(false).unwrap();
    std::fs::write(b.join("standby"), word).unwrap();
    drop(Standby::open(&b, &a, &options().adopt(true)).unwrap());
    Standby::resume(&b, &options()).unwrap().promote(false).unwrap();
    assert_eq!((primaries(&[a.clone(), b.clone()]), Duty::of(&b).unwrap()), (1, Duty::Journal));
    // The other one follows it, and can take its place in turn.
    Standby::resume(&a, &options()).unwrap().promote(false).unwrap();
    assert_eq!((primaries(&[a.clone(), b]), Duty::of(&a).unwrap()), (1, Duty::Journal));
}

/// One that was superseded and is to follow, and died when it had said half of it, goes on, and can be promoted.
#[test]
fn who_dies_between_both_files_goes_on() {
    let (_temp, [a, b, _]) = three();
    follow_at(&a, &b).promote(false).unwrap();
    let superseded = a.join("superseded");
    let bytes = std::fs::read(&superseded).unwrap();
    drop(Standby::open(&b, &a, &options().adopt(true)).unwrap());
    assert!(!superseded.exists());
    std::fs::write(&superseded, bytes).unwrap();
    assert_eq!(Duty::of(&a).unwrap(), Duty::Standby { source: b.clone() });
    let standby = Standby::open(&b, &a, &options()).unwrap();
    assert!(!superseded.exists());
    standby.promote(false).unwrap();
    assert_eq!(primaries(&[a, b]), 1);
}

/// By force two processes may say at once that a directory is superseded: each time one of both is what it says, whole.
#[test]
fn of_two_that_take_a_place_at_once_either_is_named() {
    let (_temp, [a, b, c]) = three();
    let write = |by: &PathBuf, next: u64| {
        let duty = Duty::Superseded { by: by.clone(), next: Seq::new(next), digest: Digest(next) };
        duty.write(&Local, &a, origin().uuid, next)
    };
    // What one left that died.
    std::fs::write(a.join("duty-00000000000000ff.new"), "half").unwrap();
    write(&b, 1).unwrap();
    let (is_over, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writing = [(&b, 1), (&c, 2)]
            .map(|(by, next)| scope.spawn(move || (0..300).try_for_each(|_| write(by, next))));
        let looking = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let Duty::Superseded { by, next, .. } = Duty::of(&a).unwrap() else { panic!("it says so") };
                assert!((&by, next.get()) == (&b, 1) || (&by, next.get()) == (&c, 2), "{by:?} {next}");
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        let written = writing.map(|writing| writing.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
        looking.join().unwrap();
        assert!(written.iter().all(Result::is_ok), "{written:?}");
    });
    assert!(looks.into_inner() > 100);
    let names = std::fs::read_dir(&a).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_str().unwrap().starts_with("duty")).count(), 0);
}

/// Two words of one directory, by two paths of it, are of one.
#[test]
fn a_directory_is_the_same_by_another_path() {
    let (temp, [a, b, _]) = three();
    follow_at(&a, &b).promote(false).unwrap();
    let superseded = std::fs::read(a.join("superseded")).unwrap();
    let link = temp.path().join("link");
    std::os::unix::fs::symlink(&b, &link).unwrap();
    drop(Standby::open(&link, &a, &options().adopt(true)).unwrap());
    // It died before this was gone.
    std::fs::write(a.join("superseded"), superseded).unwrap();
    assert_eq!(Duty::of(&a).unwrap(), Duty::Standby { source: link });
    Standby::resume(&a, &options()).unwrap().promote(false).unwrap();
    assert_eq!(primaries(&[a, b]), 1);
}

// ---- what is adopted --------------------------------------------------------------------------------------

/// So many records that are not those of [`write`], from where a writer is on.
fn write_others(writer: &mut Writer, count: u64) {
    for _ in 0..count {
        let (mut head, mut bytes) = record(writer.staged_to().next.get());
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        head.spilled = None;
        (head.shape, head.payload) = (bytes.len() as u64, payload_digest(&bytes));
        if !writer.fits(&head) {
            writer.rotate().unwrap();
        }
        writer.stage(&head, Payload::Here(&bytes));
        writer.commit(None, true).unwrap();
    }
}

/// Two directories after a promotion by force: the old one goes on to index 16, the new one was promoted at 10 and has so
/// many other records since.
fn torn(others: u64) -> (MemoryDisk, MemoryDisk) {
    let ((old, mut writer), new) = (source(10), MemoryDisk::default());
    catch_up(&mut follow(&old, &new));
    let standby = follow(&old, &new);
    // What it does not see any more.
    old.state().is_gone = true;
    let promoted = standby.promote(true).unwrap();
    assert_eq!(promoted.next.get(), FIRST + 10);
    old.state().is_gone = false;
    write(&old, &mut writer, 6, 2, true);
    drop(writer);
    if others > 0 {
        write_others(&mut open(&new, SEGMENT).unwrap(), others);
    }
    (old, new)
}

/// What was superseded has more than who took its place: it is not adopted, whoever is ahead now, and keeps all.
#[test]
fn what_the_source_has_not_is_not_given_up() {
    let adopts = options().adopt(true);
    for (others, is_told) in [(0, false), (3, false), (3, true), (9, true), (0, true)] {
        let (old, new) = torn(others);
        if is_told {
            let (by, next) = (dir().to_path_buf(), Seq::new(FIRST + 10));
            let digest = Digest(digest_at(FIRST + 10));
            Duty::Superseded { by, next, digest }.write(&old, dir(), origin().uuid, 0).unwrap();
        }
        let (duty_before, names) = (duty(&old), old.segments());
        let error = follow_as(&new, &old, &adopts).unwrap_err();
        // By what it was told; else by what there is.
        let most = if is_told { FIRST + 10 } else { FIRST + 10 + others };
        let is_named = matches!(&error, StandbyError::Ahead { end, expected, .. }
            if (end.get(), expected.get()) == (FIRST + 16, most));
        assert!(is_named, "{others} {is_told}: {error}");
        let both = [FIRST + 16, most].iter().all(|index| error.to_string().contains(&index.to_string()));
        assert!(both, "{error}");
        assert_eq!((duty(&old), old.segments()), (duty_before, names), "nothing was changed");
        has_all(&old, FIRST + 16);
    }
    // Nor one of which that cannot be seen.
    let (old, new) = torn(3);
    new.state().is_gone = true;
    let error = follow_as(&new, &old, &adopts).unwrap_err();
    assert!(matches!(error, StandbyError::Source(_)), "{error}");
    assert_eq!(duty(&old), Duty::Journal);
    // What has less or the same becomes a standby.
    let ((old, writer), new) = (source(10), MemoryDisk::default());
    drop((follow(&old, &new), writer));
    promote(&old, &new, false).unwrap();
    write(&new, &mut open(&new, SEGMENT).unwrap(), 3, 1, true);
    let mut back = follow_as(&new, &old, &adopts).unwrap();
    catch_up(&mut back);
    assert_eq!((back.next().get(), back.lag().ahead()), (FIRST + 13, Some(0)));
}

/// One that is ahead of its source does not say that it is behind.
#[test]
fn one_that_is_ahead_says_so() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    let lost = source.copy();
    write(&source, &mut writer, 6, 2, true);
    catch_up(&mut follow(&source, &own));
    let mut standby = follow(&lost, &own);
    assert!(standby.poll().is_err());
    assert_eq!((standby.lag().ahead(), standby.lag().indexes()), (Some(6), Some(0)));
}

/// By force beside another history: at which index they part is said, whoever is ahead.
#[test]
fn where_two_histories_part_is_said() {
    for others in [3, 9] {
        let ((source, mut writer), own) = (source(10), MemoryDisk::default());
        let lost = source.copy();
        write(&source, &mut writer, 6, 2, true);
        catch_up(&mut follow(&source, &own));
        drop(writer);
        write_others(&mut open(&lost, SEGMENT).unwrap(), others);
        let to_promote = options().promotes(true);
        let promote = |force| follow_as(&lost, &own.copy(), &to_promote)?.promote(force);
        let error = promote(false).unwrap_err();
        let is_told = matches!(error, StandbyError::OtherHistory { .. } | StandbyError::Behind { .. });
        assert!(is_told, "{error}");
        let promoted = promote(true).unwrap();
        assert!(promoted.has_diverged, "{promoted:?}");
        assert_eq!(promoted.parted_at.map(Seq::get), Some(FIRST + 10));
        let said = promoted.to_string();
        let (at, end, next) = (FIRST + 10, FIRST + 10 + others, FIRST + 16);
        for part in [
            "BY FORCE",
            &format!("part at index {at}"),
            &format!("{at}..{end} of"),
            &format!("{at}..{next} is in"),
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!said.contains("of what was seen"), "{said}");
    }
    // Where nothing can be compared any more, that is said.
    let ((source, writer), own) = (source(10), MemoryDisk::default());
    catch_up(&mut follow(&source, &own));
    let lost = source.copy();
    drop(writer);
    write_others(&mut open(&lost, SEGMENT).unwrap(), 40);
    for name in &lost.segments()[..2] {
        lost.forget(name);
    }
    write(&source, &mut open(&source, SEGMENT).unwrap(), 50, 2, true);
    catch_up(&mut follow(&source, &own));
    let promoted = follow_as(&lost, &own, &options().promotes(true)).unwrap().promote(true).unwrap();
    assert!(promoted.has_diverged && promoted.parted_at.is_none(), "{promoted:?}");
    assert!(promoted.to_string().contains("part is not known"), "{promoted}");
}

/// Pruning has overtaken it: it is promoted by force alone, and what is missing is said.
#[test]
fn one_that_was_overtaken_is_promoted_by_force_alone() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    catch_up(&mut follow(&source, &own));
    write(&source, &mut writer, 60, 3, true);
    drop(writer);
    for name in &source.segments()[..3] {
        source.forget(name);
    }
    let first = Replay::open_on(Arc::new(source.clone()), dir(), false).unwrap().first();
    let to_promote = options().promotes(true);
    let error = follow_as(&source, &own, &to_promote).unwrap().promote(false).unwrap_err();
    let is_named = matches!(&error, StandbyError::Pruned { next, first: there, .. }
        if (next.get(), *there) == (FIRST + 10, first));
    assert!(is_named && error.to_string().contains("was pruned there"), "{error}");
    let promoted = follow_as(&source, &own, &to_promote).unwrap().promote(true).unwrap();
    assert!(promoted.is_fenced && promoted.next.get() == FIRST + 10, "{promoted:?}");
    assert!(promoted.to_string().contains("60 of what was seen"), "{promoted}");
}

/// It was superseded, began to follow who took its place, and was killed before it had forgotten that; then the other one
/// is lost: it is a standby's, and by force it is promoted.
#[test]
fn one_that_is_said_to_be_superseded_yet_is_promoted_by_force() {
    let ((source, writer), own) = (source(10), MemoryDisk::default());
    catch_up(&mut follow(&source, &own));
    drop(writer);
    let standby = Duty::Standby { source: dir().into() };
    standby.write(&own, dir(), origin().uuid, 7).unwrap();
    let next = Seq::new(FIRST + 10);
    let by = Duty::Superseded { by: dir().into(), next, digest: Digest(digest_at(next.get())) };
    by.write(&own, dir(), origin().uuid, 8).unwrap();
    assert_eq!(duty(&own), standby);
    let lost = MemoryDisk::default();
    let to_promote = options().promotes(true);
    assert!(follow_as(&lost, &own.copy(), &to_promote).and_then(|standby| standby.promote(false)).is_err());
    let promoted = follow_as(&lost, &own, &to_promote).unwrap().promote(true).unwrap();
    assert!(promoted.next == next && promoted.trouble.is_some(), "{promoted:?}");
    assert_eq!(duty(&own), Duty::Journal);
}

// ---- its bookmark -----------------------------------------------------------------------------------------

fn marks(disk: &MemoryDisk) -> Vec<u64> {
    let found = crate::journal::bookmark::list(disk, dir(), origin().uuid).unwrap();
    found.into_iter().map(|marked| marked.unwrap().next.get()).collect()
}

fn prune_all(disk: &MemoryDisk) {
    let all = crate::journal::Retention::new().keep_bytes(0);
    crate::journal::retention::Pruning::of(Arc::new(disk.clone()), dir(), &all).run().unwrap();
}

/// The source prunes all it can, all the while, and the standby is nowhere overtaken: not while it is away, either.
#[test]
fn what_a_standby_still_needs_is_not_pruned() {
    for sync in [SyncPolicy::Group, SyncPolicy::Off, SyncPolicy::Every(Duration::from_secs(3600))] {
        let ((source, mut writer), own) = (source(3), MemoryDisk::default());
        let options = options().sync(sync);
        let mut standby = follow_as(&source, &own, &options).unwrap();
        assert_eq!((marks(&source), standby.bookmark().is_some()), (vec![FIRST], true));
        for round in 0..30 {
            write(&source, &mut writer, 9, 3, true);
            prune_all(&source);
            if round % 4 == 3 {
                // It is away for a while.
                standby.close().unwrap();
                write(&source, &mut writer, 30, 3, true);
                prune_all(&source);
                standby = follow_as(&source, &own, &options).unwrap();
            }
            catch_up(&mut standby);
            let (mark, durable) = (marks(&source)[0], standby.durable().get());
            assert!(mark <= durable, "{mark} is needed, {durable} is durable");
        }
        // It lets go of what it has.
        let first = Replay::open_on(Arc::new(source.clone()), dir(), false).unwrap().first().get();
        assert!(
            marks(&source)[0] > FIRST + 100 && first > FIRST + 50,
            "{sync:?}: {first} {:?}",
            marks(&source)
        );
        assert!(audit(&source).is_sound());
        let end = writer.written().next.get();
        drop((standby, writer));
        let promoted = promote(&source, &own, false).unwrap();
        assert_eq!((promoted.next.get(), marks(&source)), (end, Vec::new()));
        has_all(&own, end);
    }
}

/// Without a place for a bookmark it follows all the same, and without the disk's power no bookmark is ahead of its journal.
#[test]
fn a_bookmark_that_cannot_be_set_holds_nobody_up() {
    let run = |fault: Option<Fault>| {
        let ((source, mut writer), own) = (source(3), MemoryDisk::default());
        (source.state().calls, source.state().fault) = (0, fault);
        let mut standby = loop {
            match follow_as(&source, &own, &options()) {
                Ok(standby) => break standby,
                Err(StandbyError::Source(_)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        let calls = source.state().calls;
        source.state().fault = None;
        // It takes what is not synced there yet.
        for _ in 0..12 {
            write(&source, &mut writer, 3, 1, false);
            catch_up(&mut standby);
        }
        assert_eq!(standby.next(), writer.written().next);
        let names = source.names();
        assert!(names.iter().all(|name| !name.ends_with(".new")), "{names:?}");
        (calls, standby.bookmark().is_none(), source.state().log.clone())
    };
    let (calls, _, log) = run(None);
    let mut without = 0;
    for from in 0..calls {
        let how = Failure::Error(libc::ENOSPC);
        without += u64::from(run(Some(Fault { from, count: 1, how })).1);
    }
    assert!(without > 2, "{without} of {calls}");
    for at in 0..=log.len() {
        for choice in [Choice::Nothing, Choice::Random(at as u64)] {
            let (source, _) = image(&log[..at], choice);
            if !source.segments().is_empty() {
                let audit = audit(&source);
                assert!(audit.problems.is_empty(), "{at}: {audit:?}");
                let is_ahead = marks(&source).iter().any(|&mark| mark > audit.end.get());
                assert!(!is_ahead, "{at}: {:?}, {audit:?}", marks(&source));
            }
        }
    }
}

// ---- the bookmarks of readers ------------------------------------------------------------------------------

/// Says that a reader needs an index next.
fn mark(disk: &MemoryDisk, name: &str, next: u64) {
    mark_with(disk, name, next, digest_at(next));
}

fn mark_with(disk: &MemoryDisk, name: &str, next: u64, digest: u64) {
    let mut bookmark = Bookmark::open_on(Arc::new(disk.clone()), dir(), name).unwrap();
    bookmark.keep(Seq::new(next), Digest(digest)).unwrap();
}

fn forget(disk: &MemoryDisk, name: &str) {
    Bookmark::open_on(Arc::new(disk.clone()), dir(), name).unwrap().remove().unwrap();
}

/// All bookmarks of a directory, each of which is whole, but a standby's own.
fn named(disk: &MemoryDisk) -> Vec<(String, u64)> {
    let found = crate::journal::bookmark::list(disk, dir(), origin().uuid).unwrap();
    let all = found.into_iter().map(|marked| marked.unwrap());
    let is_own = |name: &str| name.starts_with("standby-") && name.ends_with("-journal");
    let readers = all.filter(|marked| !is_own(marked.name.as_str()));
    readers.map(|marked| (marked.name.to_string(), marked.next.get())).collect()
}

fn is(found: &[(String, u64)], expected: &[(&str, u64)]) -> bool {
    found.iter().map(|(name, at)| (&**name, *at)).eq(expected.iter().map(|&(name, at)| (name, FIRST + at)))
}

/// Looks at what is there anew, as one that was restarted.
fn again(source: &MemoryDisk, own: &MemoryDisk) -> Vec<(String, u64)> {
    catch_up(&mut follow(source, own));
    // What had come in its first call was not durable before that.
    follow(source, own).close().unwrap();
    named(own)
}

#[test]
fn readers_bookmarks_go_along() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    // The last one is another standby's, which will follow this one.
    for (name, at) in [("a", 4), ("early", 30), ("far", 900), ("gone", 2), ("standby-1-spare", 10)] {
        mark(&source, name, FIRST + at);
    }
    mark_with(&source, "other", FIRST + 5, 77);
    let found = again(&source, &own);
    assert!(is(&found, &[("a", 4), ("gone", 2), ("standby-1-spare", 10)]), "{found:?}");
    forget(&source, "standby-1-spare");
    // They go on and back, are forgotten, and become durable here.
    mark(&source, "a", FIRST + 35);
    forget(&source, "gone");
    write(&source, &mut writer, 40, 3, true);
    let found = again(&source, &own);
    assert!(is(&found, &[("a", 35), ("early", 30)]), "{found:?}");
    mark(&source, "a", FIRST + 26);
    // Who reads here itself is somebody else.
    for (name, at) in [("own", 3), ("same", 40)] {
        mark(&own, name, FIRST + at);
    }
    mark(&source, "same", FIRST + 45);
    let all = [("a", 26), ("early", 30), ("own", 3), ("same", 40)];
    let found = again(&source, &own);
    assert!(is(&found, &all), "{found:?}");
    assert!(audit(&own).is_sound());
    // What they need stays here as well.
    forget(&own, "own");
    prune_all(&own);
    let first = Replay::open_on(Arc::new(own.clone()), dir(), false).unwrap().first().get();
    assert!((FIRST + 1..=FIRST + 26).contains(&first), "{first}");
    drop(writer);
    mark(&source, "a", FIRST + 48);
    mark_with(&source, "other", FIRST + 33, 77);
    let promoted = promote(&source, &own, false).unwrap();
    assert!(is(&named(&own), &[("a", 48), ("early", 30), ("same", 40)]), "{:?}", named(&own));
    let left = [("far", "1900"), ("other", "another history"), ("same", "a reader set there")];
    let are_named = promoted.left.iter().zip(left);
    assert!(
        are_named.clone().all(|(left, (name, why))| left.contains(name) && left.contains(why)),
        "{promoted}"
    );
    assert!(promoted.left.len() == 3 && promoted.to_string().contains("NOT go along: \"far\""), "{promoted}");
    // The reader goes on here.
    let reader = Bookmark::open_on(Arc::new(own.clone()), dir(), "a").unwrap();
    assert_eq!(reader.replay().unwrap().position().get(), FIRST + 48);
}

/// A source that is gone has its readers' bookmarks here, as they were when it was followed; one that cannot be read is told.
#[test]
fn bookmarks_are_here_when_the_source_is_gone() {
    let ((source, mut writer), own) = (source(10), MemoryDisk::default());
    mark(&source, "a", FIRST + 7);
    mark(&source, "b", FIRST + 3);
    assert!(is(&again(&source, &own), &[("a", 7), ("b", 3)]));
    write(&source, &mut writer, 5, 1, true);
    mark(&source, "a", FIRST + 12);
    drop(writer);
    // Which of them is damaged, and whether any is gone, is not known.
    let damaged = source.copy();
    damaged.flip("a.mark", 80);
    forget(&damaged, "b");
    let own_of_damaged = own.copy();
    let promoted = promote(&damaged, &own_of_damaged, false).unwrap();
    assert!(promoted.left.len() == 1 && promoted.left[0].contains("a.mark is damaged"), "{promoted:?}");
    assert!(is(&named(&own_of_damaged), &[("a", 7), ("b", 3)]));
    // A disk that is not mounted has nothing, and has forgotten nobody; nor has another history.
    for nothing in [MemoryDisk::default(), parted(&source)] {
        let own = own.copy();
        let standby = follow_as(&nothing, &own, &options().promotes(true)).unwrap();
        let promoted = standby.promote(true).unwrap();
        assert!(promoted.trouble.is_some() && promoted.left.is_empty(), "{promoted:?}");
        assert!(is(&named(&own), &[("a", 7), ("b", 3)]), "{:?}", named(&own));
    }
    // Of one whose segments are damaged they come along all the same.
    let (broken, own_of_broken) = (source.copy(), own.copy());
    mark(&broken, "c", FIRST + 9);
    for name in broken.list(dir()).unwrap().iter().filter_map(|name| name.to_str()) {
        if name.ends_with(".seg") {
            broken.flip(name, 8 * 20);
        }
    }
    let standby = follow_as(&broken, &own_of_broken, &options().promotes(true)).unwrap();
    assert!(standby.promote(true).unwrap().trouble.is_some());
    assert!(is(&named(&own_of_broken), &[("a", 7), ("b", 3), ("c", 9)]), "{:?}", named(&own_of_broken));
    // Nor has one that is emptied while it is followed.
    let (emptied, own_of_emptied) = (source.copy(), own.copy());
    let standby = follow(&emptied, &own_of_emptied);
    for name in emptied.list(dir()).unwrap() {
        emptied.remove(&dir().join(name)).unwrap();
    }
    standby.close().unwrap();
    assert!(is(&named(&own_of_emptied), &[("a", 7), ("b", 3)]), "{:?}", named(&own_of_emptied));
    source.state().is_gone = true;
    let promoted = promote(&source, &own, true).unwrap();
    assert!(promoted.trouble.is_some() && promoted.left.is_empty(), "{promoted:?}");
    assert!(is(&named(&own), &[("a", 7), ("b", 3)]));
    recovers(&own, FIRST + 10, SEGMENT);
}

/// The journal of another history of the same region, without a reader.
fn parted(source: &MemoryDisk) -> MemoryDisk {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, SEGMENT).unwrap();
    write_others(&mut writer, length(source) + 5);
    disk
}

/// How many records a journal has.
fn length(disk: &MemoryDisk) -> u64 {
    Replay::open_on(Arc::new(disk.clone()), dir(), false).unwrap().end().get() - FIRST
}

/// A stretch of the standby's own that is damaged keeps neither the other readers nor the promotion.
#[test]
fn one_reader_whose_stretch_is_damaged_here_stays_behind_alone() {
    let ((source, writer), own) = (source(80), MemoryDisk::default());
    catch_up(&mut follow(&source, &own));
    drop(writer);
    mark(&source, "a", FIRST + 6);
    mark(&source, "b", FIRST + 75);
    own.flip(&format!("{FIRST:020}.seg"), begins() as u64 * 8 + 100);
    for force in [false, true] {
        let own = own.copy();
        let promoted = promote(&source.copy(), &own, force).unwrap();
        assert!(promoted.left.len() == 1 && promoted.left[0].contains("a\" needs"), "{:?}", promoted.left);
        assert!(is(&named(&own), &[("b", 75)]), "{:?}", named(&own));
    }
}

/// What a reader sets while it is looked whether the source's fits is the reader's.
#[test]
fn a_bookmark_that_a_reader_has_set_meanwhile_is_not_overwritten() {
    let (own, writer) = source(10);
    let list = || crate::journal::bookmark::list(&own, dir(), origin().uuid).unwrap();
    mark(&own, "a", FIRST + 3);
    let had = *list()[0].as_ref().unwrap();
    mark(&own, "a", FIRST + 5);
    let disk = Arc::new(own.clone()) as Arc<dyn Disk>;
    let bring = |before| crate::journal::bookmark::bring(&disk, dir(), before, had, origin().uuid);
    for error in [bring(None), bring(Some(had))] {
        assert!(matches!(error, Err(BookmarkError::Taken { .. })), "{error:?}");
    }
    assert!(is(&named(&own), &[("a", 5)]) && list().iter().flatten().all(|marked| !marked.is_brought()));
    drop(writer);
}

/// Who was superseded and follows has the readers that it had before: from now on they are where the source says.
#[test]
fn readers_go_along_to_and_fro() {
    let ((one, writer), other) = (source(10), MemoryDisk::default());
    for (name, at) in [("a", 4), ("alone", 2), ("b", 5)] {
        mark(&one, name, FIRST + at);
    }
    drop((follow(&one, &other), writer));
    promote(&one, &other, false).unwrap();
    let mut writer = open(&other, SEGMENT).unwrap();
    write(&other, &mut writer, 10, 3, true);
    mark(&other, "a", FIRST + 16);
    forget(&other, "alone");
    drop(follow_as(&other, &one, &options().adopt(true)).unwrap());
    // A power failure: what it was handed is told from what it has itself.
    let log = one.state().log.clone();
    let (one, _) = image(&log, Choice::Nothing);
    assert!(is(&again(&other, &one), &[("a", 16), ("alone", 2), ("b", 5)]), "{:?}", named(&one));
    forget(&other, "b");
    assert!(is(&again(&other, &one), &[("a", 16), ("alone", 2)]), "{:?}", named(&one));
}

/// The power fails at any moment while a standby follows, its readers go on and are forgotten, and its disk fails: no
/// bookmark is half there, ahead of its journal, or of another history.
#[test]
fn no_loss_of_power_leaves_a_bookmark_that_does_not_fit() {
    let run = |fault: Option<Fault>| {
        let ((source, mut writer), own) = (source(3), MemoryDisk::default());
        own.state().fault = fault;
        for round in 1..12 {
            let end = writer.written().next.get();
            mark(&source, "a", end);
            if round % 3 == 0 {
                forget(&source, "b");
            } else {
                mark(&source, "b", end - 2);
            }
            write(&source, &mut writer, 4, 2, true);
            // Also what is written here and not synced.
            let sync = if round % 2 == 0 { SyncPolicy::Off } else { SyncPolicy::Group };
            if let Ok(mut standby) = follow_as(&source, &own, &options().sync(sync)) {
                while standby.poll().is_ok_and(|taken| taken > 0) {}
                let _ = standby.close();
            }
        }
        own.state().fault = None;
        assert!(is(&again(&source, &own), &[("a", 43), ("b", 41)]), "{:?}", named(&own));
        let state = own.state();
        (state.calls, state.log.clone())
    };
    let (calls, _) = run(None);
    let (mut images, mut with) = (0, 0);
    for from in (0..calls).step_by(7) {
        let (_, log) = run(Some(Fault { from, count: 1 + from % 3, how: Failure::Error(libc::EIO) }));
        for at in (0..=log.len()).step_by(11) {
            for choice in [Choice::Nothing, Choice::Random(from * 1_000 + at as u64)] {
                let (own, _) = image(&log[..at], choice);
                if own.segments().is_empty() {
                    continue;
                }
                let (audit, found) = (audit(&own), named(&own));
                let context = format!("call {from}, operation {at}, {choice:?}: {found:?}, {audit:?}");
                assert!(audit.problems.is_empty(), "{context}");
                assert!(found.iter().all(|(_, next)| *next <= audit.end.get()), "{context}");
                with += found.len();
                images += 1;
            }
        }
    }
    println!("{images} images, {with} bookmarks in them");
    assert!(images > 1_000 && with > 500, "{images} {with}");
}
