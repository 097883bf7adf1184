//! Whatever bit of a journal is not what was written, `verify` finds it, and says where.

use super::memory_disk::MemoryDisk;
use super::*;

/// What `verify` says of a flip: the file, and the indexes that it names.
fn found(disk: &MemoryDisk) -> Vec<(String, u64)> {
    let audit = audit(disk);
    assert!(!audit.is_sound());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    let damages = audit.problems.iter().map(|problem| problem.damage().expect("a damage"));
    let cuts = audit.cut.iter().map(|cut| (name(&cut.path), cut.seq.get()));
    damages.map(|damage| (name(&damage.path), damage.seq.get())).chain(cuts).collect()
}

/// The index to which a byte of a segment belongs: of the record that has it, or if none has, any of the segment's.
fn owner(disk: &MemoryDisk, name: &str, byte: u64) -> std::ops::RangeInclusive<u64> {
    let first: u64 = name.trim_end_matches(".seg").parse().unwrap();
    let mut segment =
        crate::journal::segment::Segment::open(disk, dir(), Seq::new(first), false, true).unwrap();
    let end = segment.footer.map(|footer| footer.end);
    let end = end.unwrap_or_else(|| segment.scan(false).unwrap().end);
    let (mut offset, mut at) = segment.beginning();
    while let Some(found) = segment.next(offset, at, end).unwrap() {
        let next = found.end();
        if byte < offset {
            break;
        }
        // Between the one before and this: a mark.
        if (offset..next).contains(&byte) {
            return found.head.seq.get()..=found.head.seq.get();
        }
        (offset, at) = (next, found.after);
    }
    first..=at.next.get()
}

#[test]
fn two_thousand_flipped_bits_are_all_found() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 16 << 10).unwrap();
    write(&disk, &mut writer, 400, 6, true);
    drop(writer);
    assert!(audit(&disk).is_sound());
    let segments = disk.segments();
    assert!(segments.len() > 4);
    let sizes: Vec<u64> = segments.iter().map(|name| disk.len(name) * 8).collect();
    let mut random = Random::new(11);
    let flips = if cfg!(miri) { 10 } else { 2_000 };
    for _ in 0..flips {
        let mut bit = random.below(sizes.iter().sum());
        let which = sizes
            .iter()
            .position(|&bits| {
                let is_here = bit < bits;
                bit -= if is_here { 0 } else { bits };
                is_here
            })
            .unwrap();
        let name = &segments[which];
        let expected = owner(&disk, name, bit / 8);
        disk.flip(name, bit);
        let found = found(&disk);
        let is_named = |(file, seq): &(String, u64)| file == name && expected.contains(seq);
        assert!(found.iter().any(is_named), "{name}, byte {}: {expected:?}, found {found:?}", bit / 8);
        disk.flip(name, bit);
    }
    assert!(audit(&disk).is_sound());
}
