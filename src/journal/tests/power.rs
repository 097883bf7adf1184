//! The power fails at any moment, and whatever may then be on the disk has all that was acknowledged.

use super::memory_disk::{Choice, Failure, Fault, MemoryDisk, Op, image};
use super::*;

const SEGMENT: u64 = 6 << 10;

/// Moments at which something has changed: after each operation.
pub(super) fn moments(log: &[Op]) -> impl Iterator<Item = usize> + '_ {
    (0..=log.len()).filter(|&at| at == 0 || !is_told(&log[at - 1]))
}

/// Whether nothing changes by it.
pub(super) fn is_told(op: &Op) -> bool {
    matches!(op, Op::Acknowledge(_) | Op::Told(..))
}

pub(super) fn choices(at: usize, random: u64) -> Vec<Choice> {
    let some = [Choice::Nothing, Choice::Everything, Choice::WritesAlone, Choice::NamesAlone];
    some.into_iter().chain((0..random).map(|n| Choice::Random(at as u64 * 1_000 + n))).collect()
}

/// Every image at every moment of what was done; how many.
pub(super) fn all_images_recover(log: &[Op], random: u64, first_segment: u64) -> u64 {
    let mut images = 0;
    for at in moments(log) {
        // An acknowledgement that comes next belongs to this moment: it was made while nothing changed.
        let end = at + log[at..].iter().take_while(|op| is_told(op)).count();
        for choice in choices(at, random) {
            let (disk, acknowledged) = image(&log[..end], choice);
            let is_sound =
                std::panic::catch_unwind(|| recovers(&disk, acknowledged.max(FIRST), first_segment));
            assert!(is_sound.is_ok(), "after operation {at} of {}, {choice:?}", log.len());
            images += 1;
        }
    }
    images
}

fn written(sync: bool, batch: u64, count: u64) -> Vec<Op> {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, SEGMENT).unwrap();
    write(&disk, &mut writer, count, batch, sync);
    drop(writer);
    assert_eq!(read_all(&disk), FIRST + count);
    disk.state().log.clone()
}

#[test]
fn whatever_is_on_the_disk_after_a_power_failure_has_what_was_acknowledged() {
    let mut images = 0;
    for (sync, batch) in [(true, 1), (true, 7), (false, 5)] {
        images += all_images_recover(&written(sync, batch, 90), if cfg!(miri) { 1 } else { 24 }, SEGMENT);
    }
    println!("{images} images");
    assert!(images > 5_000 || cfg!(miri), "{images}");
}

/// The same while somebody takes up what a power failure left, and the power fails again.
#[test]
fn a_power_failure_while_one_recovers_from_another_loses_nothing_either() {
    let log = written(true, 4, 40);
    let mut images = 0;
    for at in moments(&log).step_by(5) {
        for seed in 0..3 {
            let (disk, acknowledged) = image(&log[..at], Choice::Random(seed + at as u64 * 10));
            // What is there now is on the disk.
            let mut again = disk.as_log();
            again.push(Op::Acknowledge(acknowledged.max(FIRST)));
            let before = again.len();
            recovers(&disk, acknowledged.max(FIRST), SEGMENT);
            again.extend(disk.state().log.iter().cloned());
            for end in before..again.len() {
                for seed in 0..8 {
                    let (disk, acknowledged) = image(&again[..end], Choice::Random(seed + end as u64 * 10));
                    recovers(&disk, acknowledged, SEGMENT);
                    images += 1;
                }
            }
        }
    }
    println!("{images} images");
    assert!(images > 2_000, "{images}");
}

/// A process dies at any call, also at one that failed; the next one goes on with what the system still has in memory,
/// synced or not; then the power fails.
#[test]
fn a_death_and_then_a_power_failure_lose_nothing() {
    let mut images = 0;
    for has_failed in [false, true] {
        let mut from = 0;
        loop {
            let disk = MemoryDisk::default();
            let is_dead = die_at(&disk, from);
            if !has_failed {
                // Who died there had not come to call it.
                disk.state().log.retain(|op| !matches!(op, Op::FailedSync(_)));
            }
            let before = disk.state().log.len();
            let end = open(&disk, SEGMENT).unwrap().durable().next.get();
            recovers(&disk, end, SEGMENT);
            disk.acknowledge(end + 3);
            let log = disk.state().log.clone();
            for at in before..=log.len() {
                for choice in choices(at, 1) {
                    let (disk, acknowledged) = image(&log[..at], choice);
                    let is_sound =
                        std::panic::catch_unwind(|| recovers(&disk, acknowledged.max(FIRST), SEGMENT));
                    let context = format!("call {from} ({has_failed}), operation {at} of {}", log.len());
                    assert!(is_sound.is_ok(), "{context}, {choice:?}");
                    images += 1;
                }
            }
            from += 1;
            if !is_dead {
                break;
            }
        }
    }
    println!("{images} images");
    assert!(images > 2_000, "{images}");
}

/// Writes until a call, which fails as all that follow; whether it came to it.
fn die_at(disk: &MemoryDisk, from: u64) -> bool {
    let how = Failure::Error(libc::EIO);
    disk.state().fault = Some(Fault { from, count: u64::MAX, how });
    let write = || -> Result<(), JournalError> {
        let mut writer = open(disk, SEGMENT)?;
        while writer.written().next.get() < FIRST + 16 {
            let has_room = stage(&mut writer, 5);
            writer.commit(None, true)?;
            disk.acknowledge(writer.durable().next.get());
            if !has_room {
                writer.rotate()?;
            }
        }
        Ok(())
    };
    let is_dead = write().is_err();
    disk.state().fault = None;
    is_dead
}

/// That the model would notice: without the sync of a batch, or of the directory, something acknowledged is gone.
#[test]
fn the_model_notices_a_sync_that_is_missing() {
    let log = written(true, 3, 30);
    for is_dropped in [|op: &Op| matches!(op, Op::Sync(_)), |op: &Op| matches!(op, Op::SyncDir(_))] {
        let without: Vec<_> = log.iter().filter(|op| !is_dropped(op)).cloned().collect();
        let (disk, acknowledged) = image(&without, Choice::Nothing);
        let end = open(&disk, SEGMENT).map(|writer| writer.durable().next.get());
        assert!(end.is_err() || end.is_ok_and(|end| end < acknowledged));
    }
}
