//! The journal on a disk that is a test: what is on it at any moment, whatever fails.

mod catch_up;
mod faults;
mod flips;
mod kept;
mod memory_disk;
mod power;
mod reading;
mod restore;
mod standby;
#[cfg(feature = "serde")]
mod typed;
mod whole;
mod writing;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use seriatim_ring::Seq;
use seriatim_ring::digest::START;
use seriatim_ring::lane::SPILLED;

use super::batch::Payload;
use super::disk::Disk;
use super::format::{Head, Origin, Point, Spilled};
use super::replay::Replay;
use super::verify::verify_on;
use super::world::{LaneOf, World};
use super::writer::{Shelf, Writer};
use super::{Audit, JournalError};
use crate::config::{DigestOf, WithoutWorkers};
use crate::payload::payload_digest;
use crate::poison::OnDivergence;
use crate::region::header::Uuid;
use crate::region::layout::Geometry;
use memory_disk::MemoryDisk;

/// The index at which these journals begin: not 0, so that an index is no count.
const FIRST: u64 = 1_000;
const DIR: &str = "/journal";

fn dir() -> &'static Path {
    Path::new(DIR)
}

fn origin() -> Origin {
    let geometry = Geometry {
        order_slots: 2,
        lane_cells: 4,
        lane_bytes: 128,
        producers: 3,
        workers: 2,
        ranks: 0,
        spill_bytes: 1 << 30,
    };
    Origin {
        uuid: Uuid(7 << 100 | 5),
        geometry,
        digest_of: DigestOf::Payload,
        on_divergence: OnDivergence::Report,
        without_workers: WithoutWorkers::Hold,
        first_index: Seq::new(FIRST),
    }
}

fn beginning() -> Point {
    Point { next: Seq::new(FIRST), digest: START, incarnation: 0, controller: 0 }
}

/// What is known of the order there: three producers, each with as many commands as belongs to it.
fn world() -> World {
    let mut world = World::empty(&origin().geometry);
    let lanes = world.lanes.iter_mut().enumerate().skip(1);
    lanes.for_each(|(lane, of)| *of = LaneOf { number: lane as u64, ..LaneOf::default() });
    for seq in FIRST..FIRST + 3 {
        let (head, _) = record(seq);
        world.lanes[head.producer as usize].next = head.index;
    }
    world.look_up();
    world
}

/// Where the records of these journals begin.
fn begins() -> usize {
    super::format::HEADER_BYTES + World::bytes(&origin().geometry).unwrap() as usize
}

/// Random numbers enough for tests: xorshift.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The record that belongs at an index, which follows from it.
fn record(seq: u64) -> (Head, Vec<u8>) {
    let mut random = Random::new(seq);
    let len = match random.below(20) {
        _ if seq % 155 == 7 => 7_000 + random.below(3_000),
        _ if seq % 31 == 7 => 1 + random.below(3_000),
        0 => 1_100 + random.below(2_000),
        1..4 => random.below(600),
        _ => random.below(60),
    };
    let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    let digest = payload_digest(&bytes);
    // Some did not lie in their lane; one in five of those is longer than the segments of most tests.
    let spilled = (seq % 31 == 7).then_some(Spilled { len, digest });
    let head = Head {
        seq: Seq::new(seq),
        flags: 0,
        producer: 1 + seq % 3,
        index: seq / 3,
        shape: spilled.map_or(len, |_| SPILLED.into()) | (seq % 7) << 32,
        payload: spilled.map_or(digest, |spilled| spilled.cell_digest()),
        spilled,
    };
    (head, bytes)
}

fn open(disk: &MemoryDisk, segment_bytes: u64) -> Result<Writer, JournalError> {
    let shelf = Shelf::open(Arc::new(disk.clone()), dir(), Some(origin()), Duration::ZERO)?;
    let begun = shelf.ending.as_ref().map(|ending| (ending.point, ending.world.clone()));
    let (at, world) = begun.unwrap_or_else(|| (beginning(), world()));
    shelf.begin(at, world, origin(), segment_bytes)
}

/// Stages the next records, up to `count` or what the segment has room for; whether it has room for one more.
fn stage(writer: &mut Writer, count: u64) -> bool {
    for _ in 0..count {
        let (head, bytes) = record(writer.staged_to().next.get());
        if !writer.fits(&head) {
            return false;
        }
        writer.stage(&head, Payload::Here(&bytes));
    }
    true
}

/// Writes so many records, in batches of up to `batch`, each synced if that is wanted.
fn write(disk: &MemoryDisk, writer: &mut Writer, count: u64, batch: u64, sync: bool) {
    let end = writer.staged_to().next.get() + count;
    while writer.written().next.get() < end {
        let left = end - writer.staged_to().next.get();
        let has_room = stage(writer, left.min(batch));
        writer.commit(None, sync).unwrap();
        if !has_room {
            writer.rotate().unwrap();
        }
        disk.acknowledge(writer.durable().next.get());
    }
}

/// That all that a journal has from its first index on is what belongs there; the index behind its end.
fn read_all(disk: &MemoryDisk) -> u64 {
    let mut replay = Replay::open_on(Arc::new(disk.clone()), dir(), true).unwrap();
    let mut at = FIRST;
    while let Some(found) = replay.next().unwrap() {
        let (head, bytes) = record(at);
        assert_eq!((found.seq.get(), found.producer, found.index), (at, head.producer, head.index));
        assert_eq!((found.kind, found.payload), (head.kind(), &bytes[..]));
        at += 1;
    }
    assert_eq!(replay.position(), replay.end());
    assert_eq!((replay.end().get(), replay.digest().0), (at, digest_at(at)));
    at
}

/// The digest of all before an index.
fn digest_at(seq: u64) -> u64 {
    (FIRST..seq).fold(START, |before, at| record(at).0.fold(before, DigestOf::Payload))
}

fn audit(disk: &MemoryDisk) -> Audit {
    verify_on(&(Arc::new(disk.clone()) as Arc<dyn Disk>), dir()).unwrap()
}

/// That a journal opens, has all up to an index that was acknowledged, and goes on.
fn recovers(disk: &MemoryDisk, acknowledged: u64, segment_bytes: u64) {
    let mut writer = open(disk, segment_bytes).unwrap();
    let end = writer.durable().next.get();
    assert!(end >= acknowledged, "{acknowledged} was acknowledged, {end} is the end");
    write(disk, &mut writer, 3, 2, true);
    drop(writer);
    let audit = audit(disk);
    assert!(audit.is_sound(), "{audit:?}");
    assert_eq!((audit.first.get(), audit.end.get()), (FIRST, end + 3));
    assert_eq!(read_all(disk), end + 3);
}
