//! Whatever bit of a journal is not what was written, `verify` finds it, and says where.

use super::memory_disk::MemoryDisk;
use super::*;
use crate::journal::Problem;

/// What `verify` says of a flip: the file, and the indexes that it names.
fn found(disk: &MemoryDisk) -> Vec<(String, u64)> {
    let audit = audit(disk);
    assert!(!audit.is_sound());
    let name = |path: &Path| path.strip_prefix(DIR).unwrap().to_str().unwrap().to_string();
    // What is cut off its end is what a bookmark may need.
    let is_ahead =
        |problem: &&Problem| audit.cut.is_some() && problem.to_string().contains(".mark needs index");
    let problems = audit.problems.iter().filter(|problem| !is_ahead(problem));
    let damages = problems.map(|problem| problem.damage().expect("a damage"));
    let cuts = audit.cut.iter().map(|cut| (name(&cut.path), cut.seq.get()));
    damages.map(|damage| (name(&damage.path), damage.seq.get())).chain(cuts).collect()
}

/// The index to which a byte belongs: in a segment that of the record that has it, or if none has, any of the segment's;
/// in a snapshot its index. A bookmark that is damaged has none.
fn owner(disk: &MemoryDisk, name: &str, byte: u64) -> std::ops::RangeInclusive<u64> {
    if name.ends_with(".mark") {
        return 0..=0;
    }
    let first: u64 = name[..20].parse().unwrap();
    if !name.ends_with(".seg") {
        return first..=first;
    }
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

/// Snapshots and bookmarks beside it, which are as long as the rest.
fn keep_some(disk: &MemoryDisk, end: u64) {
    use crate::journal::{bookmark::Bookmark, snapshots::Snapshots};
    let disk = || Arc::new(disk.clone());
    let at = |n| (Seq::new(FIRST + n), crate::Digest(digest_at(FIRST + n)));
    let snapshots = Snapshots::open_on(disk(), dir()).unwrap();
    let (seq, digest) = at(end / 4);
    snapshots.store(seq, digest, &[9; 40_000]).unwrap();
    let (seq, digest) = at(end / 2);
    let writer = snapshots.begin(seq, digest).unwrap();
    for n in 0..30_u8 {
        let file = disk().create(&writer.dir().join(format!("file {n}"))).unwrap();
        let bytes = vec![n; 1_000];
        crate::journal::writer::write_all(&*file, &mut [std::io::IoSlice::new(&bytes)], 0).unwrap();
    }
    writer.commit().unwrap();
    for (name, n) in [("one", 0), ("two", end / 3), ("three", end)] {
        let (next, digest) = at(n);
        Bookmark::open_on(disk(), dir(), name).unwrap().keep(next, digest).unwrap();
    }
}

/// Of what is small, too, each byte.
#[test]
fn every_byte_of_a_manifest_and_a_bookmark_is_looked_at() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 16 << 10).unwrap();
    write(&disk, &mut writer, 30, 6, true);
    drop(writer);
    keep_some(&disk, 30);
    let mut flips = 0;
    for name in disk.paths().iter().filter(|name| name.ends_with(".mark") || name.ends_with("manifest")) {
        for byte in 0..disk.len(name) {
            let bit = byte * 8 + byte % 8;
            disk.flip(name, bit);
            let found = found(&disk);
            let expected = owner(&disk, name, byte);
            let is_named = |(file, seq): &(String, u64)| file == name && expected.contains(seq);
            assert!(found.iter().any(is_named), "{name}, byte {byte}: {expected:?}, found {found:?}");
            disk.flip(name, bit);
            flips += 1;
        }
    }
    assert!(flips > 800, "{flips}");
    assert!(audit(&disk).is_sound());
}

#[test]
fn two_thousand_flipped_bits_are_all_found() {
    let disk = MemoryDisk::default();
    let mut writer = open(&disk, 16 << 10).unwrap();
    write(&disk, &mut writer, 400, 6, true);
    drop(writer);
    keep_some(&disk, 400);
    let sound = audit(&disk);
    assert!(sound.is_sound() && sound.snapshots == 2 && sound.bookmarks == 3, "{sound:?}");
    let files = disk.paths();
    assert!(files.len() > 4 + 2 + 3 + 3, "{files:?}");
    let sizes: Vec<u64> = files.iter().map(|name| disk.len(name) * 8).collect();
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
        let name = &files[which];
        let expected = owner(&disk, name, bit / 8);
        disk.flip(name, bit);
        let found = found(&disk);
        let is_named = |(file, seq): &(String, u64)| file == name && expected.contains(seq);
        assert!(found.iter().any(is_named), "{name}, byte {}: {expected:?}, found {found:?}", bit / 8);
        disk.flip(name, bit);
    }
    assert!(audit(&disk).is_sound());
}
