//! Where what is written goes.

use std::collections::BTreeMap;
use std::ops::Range;

use super::memory_disk::{Failure, Fault, MemoryDisk, Op};
use super::*;
use crate::journal::batch::BATCH_COPIED;
use crate::journal::format::STRIDE;
use crate::journal::segment::Segment;
use crate::journal::writer::LARGE_GROUP;

/// What is staged when a segment has to be written anew comes next, in another one: with its checksums and its places.
#[test]
fn a_large_batch_that_failed_is_sealed_anew_for_the_next_segment() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 1 << 20).unwrap();
    write(&disk, &mut writer, 40, 8, true);
    let first = writer.written().next;
    while writer.has_room() {
        assert!(stage(&mut writer, 1));
    }
    let from = disk.state().calls;
    disk.state().fault = Some(Fault { from, count: 1, how: Failure::Error(libc::EIO) });
    assert!(writer.commit(None, true).is_err());
    writer.commit(None, true).unwrap();
    assert_eq!(writer.mended(), 1);
    let end = writer.durable().next.get();
    writer.seal().unwrap();
    let next = Segment::open(&disk, dir(), first, false, true).unwrap();
    let (begins, _) = next.beginning();
    let offsets: Vec<_> = next.places.iter().map(|place| place.offset).collect();
    assert!(offsets.len() as u64 > BATCH_COPIED / STRIDE - 2, "{offsets:?}");
    assert_eq!((offsets[0], next.header.start.next), (begins, first));
    assert!(offsets.windows(2).all(|two| two[1] - two[0] >= STRIDE), "{offsets:?}");
    drop(writer);
    let audit = audit(&disk);
    assert!(audit.is_sound(), "{audit:?}");
    assert_eq!(read_all(&disk), end);
}

/// Small groups that are synced find the place for them written and synced; and no write goes to where another one that is
/// not synced may still be on its way.
#[test]
fn the_place_for_small_groups_is_prepared() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 64 << 10).unwrap();
    write(&disk, &mut writer, 600, 2, true);
    let (mut prepared, mut pending) = (BTreeMap::<usize, u64>::new(), Vec::<(usize, Range<u64>)>::new());
    let (mut found, mut beyond, mut larger) = (0, 0, 0);
    for op in &disk.state().log {
        match op {
            Op::Write(file, at, bytes) => {
                let range = *at..at + bytes.len() as u64;
                let overlaps = |(other, its): &(usize, Range<u64>)| {
                    other == file && its.start < range.end && range.start < its.end
                };
                assert!(!pending.iter().any(overlaps), "{file}: {range:?} while {pending:?}");
                if bytes.iter().any(|&byte| byte != 0) {
                    let is_there = prepared.get(file).is_some_and(|&to| range.end <= to);
                    larger += u64::from(bytes.len() as u64 > LARGE_GROUP);
                    (found, beyond) = (found + u64::from(is_there), beyond + u64::from(!is_there));
                }
                pending.push((*file, range));
            }
            Op::Sync(file) => {
                let its = |(other, range): (usize, Range<u64>)| (other == *file).then_some(range.end);
                let end = pending.drain(..).filter_map(its).max();
                let to = prepared.entry(*file).or_default();
                *to = (*to).max(end.unwrap_or(0));
            }
            _ => {}
        }
    }
    println!(
        "{found} found their place prepared, {beyond} not, {larger} are larger; {} files",
        prepared.len()
    );
    // The first of a segment, what is larger and who comes behind that, and footers.
    assert!(found > 200 && beyond <= 2 * larger + 3 * prepared.len() as u64);
}

/// Zeroes for which there is no room are no reason to keep records back that have it.
#[test]
fn what_cannot_be_prepared_for_lack_of_room_is_written_all_the_same() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 64 << 10).unwrap();
    stage(&mut writer, 1);
    // The write, then the zeroes.
    let from = disk.state().calls + 1;
    disk.state().fault = Some(Fault { from, count: 1, how: Failure::Error(libc::ENOSPC) });
    writer.commit(None, true).unwrap();
    assert_eq!((writer.durable().next.get(), writer.mended()), (FIRST + 1, 0));
    write(&disk, &mut writer, 40, 2, true);
    drop(writer);
    assert_eq!(read_all(&disk), FIRST + 41);
    // Any other failure is one.
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 64 << 10).unwrap();
    stage(&mut writer, 1);
    let from = disk.state().calls + 1;
    disk.state().fault = Some(Fault { from, count: 1, how: Failure::Error(libc::EIO) });
    let error = writer.commit(None, true).unwrap_err();
    assert!(matches!(error, JournalError::Io { what: "prepare", .. }), "{error}");
    writer.commit(None, true).unwrap();
    assert_eq!(writer.mended(), 1);
}
