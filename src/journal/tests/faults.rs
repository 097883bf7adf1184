//! The file system fails at any call: nothing acknowledged is lost, and whoever asks is told what and why.

use super::memory_disk::{Choice, Failure, Fault, MemoryDisk, image};
use super::*;

const SEGMENT: u64 = 6 << 10;
const COUNT: u64 = 60;

/// Writes records, trying again whatever fails; the errors.
fn write_stubbornly(disk: &MemoryDisk, sync: bool) -> Vec<JournalError> {
    let mut errors = Vec::new();
    let mut writer = loop {
        match open(disk, SEGMENT) {
            Ok(writer) => break writer,
            Err(error) => errors.push(error),
        }
        assert!(errors.len() < 100, "{errors:?}");
    };
    let end = FIRST + COUNT;
    while writer.written().next.get() < end {
        let has_room = if writer.staged_to() == writer.written() {
            let left = end - writer.staged_to().next.get();
            stage(&mut writer, left.min(5))
        } else {
            true
        };
        let mut result = writer.commit(None, sync);
        while !has_room && result.is_ok() && writer.staged_to() == writer.written() {
            result = writer.rotate();
            if result.is_ok() {
                break;
            }
            errors.extend(result.err());
            result = Ok(());
            assert!(errors.len() < 100, "{errors:?}");
        }
        errors.extend(result.err());
        disk.acknowledge(writer.durable().next.get());
        assert!(errors.len() < 100, "{errors:?}");
    }
    while let Err(error) = writer.sync() {
        errors.push(error);
        assert!(errors.len() < 100, "{errors:?}");
    }
    disk.acknowledge(writer.durable().next.get());
    assert_eq!(writer.durable().next.get(), end);
    errors
}

/// How many calls there are to fail.
fn calls(sync: bool) -> u64 {
    let disk = MemoryDisk::default();
    assert!(write_stubbornly(&disk, sync).is_empty());
    disk.state().calls
}

fn check(disk: &MemoryDisk, context: &str) {
    assert!(audit(disk).is_sound(), "{context}");
    assert_eq!(read_all(disk), FIRST + COUNT, "{context}");
    let log = disk.state().log.clone();
    for at in (0..=log.len()).step_by(7).chain([log.len()]) {
        for choice in [Choice::Nothing, Choice::Random(at as u64), Choice::Random(at as u64 + 1)] {
            let (disk, acknowledged) = image(&log[..at], choice);
            let is_sound =
                std::panic::catch_unwind(|| recovers(&disk, acknowledged.max(FIRST), SEGMENT)).is_ok();
            assert!(is_sound, "{context}, operation {at} of {}, {choice:?}", log.len());
        }
    }
}

/// Each call fails once, and also it and the next ones.
#[test]
fn whatever_fails_nothing_acknowledged_is_lost() {
    let mut cases = 0;
    for sync in [true, false] {
        for from in 0..calls(sync) {
            for (code, count) in [(libc::ENOSPC, 1), (libc::EIO, 1), (libc::EIO, 4), (libc::EROFS, 3)] {
                // What was not synced and is gone from memory, too, cannot be had again, but from a lane.
                for drops_pages in [false, true].into_iter().take(1 + usize::from(sync)) {
                    let disk = MemoryDisk::default();
                    {
                        let mut state = disk.state();
                        state.fault = Some(Fault { from, count, how: Failure::Error(code) });
                        state.drops_pages = drops_pages;
                    }
                    let errors = write_stubbornly(&disk, sync);
                    let context = format!("call {from} and {count}, error {code}, {sync} {drops_pages}");
                    check(&disk, &context);
                    let cause = std::io::Error::from_raw_os_error(code).to_string();
                    for error in &errors {
                        let text = error.to_string();
                        assert!(text.contains(DIR) && text.contains(&cause), "{context}: {text}");
                    }
                    cases += u64::from(!errors.is_empty());
                }
            }
        }
    }
    println!("{cases} cases");
    assert!(cases > 200, "{cases}");
}

#[test]
fn a_write_that_does_less_goes_on_where_it_stopped() {
    for from in 0..calls(true) {
        let disk = MemoryDisk::default();
        disk.state().fault = Some(Fault { from, count: 3, how: Failure::Short });
        assert!(write_stubbornly(&disk, true).is_empty());
        check(&disk, &format!("short from {from}"));
    }
}

/// A sync that failed is not believed when it succeeds at once after that.
#[test]
fn a_sync_that_failed_is_not_made_good_by_another() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, SEGMENT).unwrap();
    write(&disk, &mut writer, 4, 2, true);
    stage(&mut writer, 2);
    // The write, then the sync.
    let from = disk.state().calls + 1;
    disk.state().fault = Some(Fault { from, count: 1, how: Failure::Error(libc::EIO) });
    let error = writer.commit(None, true).unwrap_err();
    assert!(matches!(error, JournalError::Io { what: "sync", .. }), "{error}");
    assert_eq!((writer.durable().next.get(), writer.mended()), (FIRST + 4, 0));
    writer.commit(None, true).unwrap();
    assert_eq!((writer.durable().next.get(), writer.mended()), (FIRST + 6, 1));
    disk.acknowledge(FIRST + 6);
    let log = disk.state().log.clone();
    let (image, acknowledged) = image(&log, Choice::Nothing);
    recovers(&image, acknowledged, SEGMENT);
}

/// What was written, not synced, and dropped by the system when a sync failed is missed, not passed over.
#[test]
fn what_the_system_dropped_is_missed() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, SEGMENT).unwrap();
    write(&disk, &mut writer, 4, 2, true);
    write(&disk, &mut writer, 3, 3, false);
    let from = disk.state().calls;
    disk.state().fault = Some(Fault { from, count: 1, how: Failure::Error(libc::EIO) });
    disk.state().drops_pages = true;
    assert!(writer.sync().is_err());
    for _ in 0..3 {
        let error = writer.sync().unwrap_err();
        let is_so = matches!(error, JournalError::Vanished { from, to, .. }
            if from.get() == FIRST + 4 && to.get() == FIRST + 7);
        assert!(is_so, "{error}");
    }
    assert_eq!(writer.durable().next.get(), FIRST + 4);
}

/// A directory that is removed takes its files along: what is written into them is not durable, whatever a sync says.
#[test]
fn a_directory_that_vanishes_is_noticed() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, SEGMENT).unwrap();
    write(&disk, &mut writer, 4, 2, true);
    disk.state().is_gone = true;
    for _ in 0..3 {
        stage(&mut writer, 1);
        let error = writer.commit(None, true).unwrap_err();
        assert!(
            error.to_string().contains(DIR) && error.to_string().contains("not found")
                || error.to_string().contains("No such file"),
            "{error}"
        );
    }
    assert_eq!(writer.durable().next.get(), FIRST + 4);
    // And comes back: all that is staged is written.
    disk.state().is_gone = false;
    writer.commit(None, true).unwrap();
    assert_eq!(writer.durable().next.get(), FIRST + 7);
    drop(writer);
    assert_eq!(read_all(&disk), FIRST + 7);
}
