//! The bytes of a segment.
//!
#![doc = include_str!("FORMAT.md")]

use seriatim_ring::Seq;
use seriatim_ring::digest::{Place as DigestPlace, fold_at};
use seriatim_ring::lane::SPILLED;
use seriatim_ring::parts::Address;
use seriatim_ring::spill;

use super::world::World;
use crate::config::{DigestOf, WithoutWorkers};
use crate::poison::OnDivergence;
use crate::region::header::{Identity, Uuid};
use crate::region::layout::Geometry;

/// The first eight bytes of every segment.
pub(super) const MAGIC: [u8; 8] = *b"SRTMJRNL";
/// The format that this build reads and writes.
pub const VERSION: u32 = 1;
const ORDER_MARK: u32 = 0x0102_0304;
const END_MAGIC: [u8; 8] = *b"SRTM.END";

pub(super) const HEADER_BYTES: usize = 192;
pub(super) const HEAD_BYTES: usize = 48;
/// What follows the head of a command whose payload did not lie in its lane: length and digest of that.
const SPILL_BYTES: usize = 16;
/// The longest head of a record, and the most that one must see of anything to know how long it is.
pub(super) const LONGEST_HEAD: usize = HEAD_BYTES + SPILL_BYTES;
pub(super) const MARK_BYTES: usize = 48;
pub(super) const PLACE_BYTES: usize = 40;
pub(super) const FOOTER_BYTES: usize = 72;
/// A place is kept for a record that begins so many bytes behind the one before.
pub(super) const STRIDE: u64 = 64 << 10;
/// Records and marks begin at multiples of this.
pub(super) const ALIGN: u64 = 8;

const RECORD: u32 = u32::from_le_bytes(*b"rec\0");
const MARK: u32 = u32::from_le_bytes(*b"mark");
const END: u32 = u32::from_le_bytes(*b"last");
/// The byte of a record's tag that holds [`Head::flags`].
const FLAGS_SHIFT: u32 = 24;

/// A record of a controller that is not current: nobody is handed it.
pub(crate) const VOID: u8 = 1;
/// A hello that is heard: its controller is current behind it.
pub(crate) const HEARD_HELLO: u8 = 2;

/// An index with what goes with it: the digest of all before it, and who is current there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) next: Seq,
    pub(crate) digest: u64,
    /// The incarnation that is current, 0 if there was none yet.
    pub(crate) incarnation: u64,
    /// The number of its controller.
    pub(crate) controller: u64,
}

impl Point {
    const BYTES: usize = 32;

    /// The one behind a record that stands here.
    #[inline]
    pub(crate) fn after(&self, head: &Head, payload: &[u8], what: DigestOf) -> Point {
        debug_assert!(head.flags & HEARD_HELLO == 0 || payload.len() >= 8);
        let mut after = Point { next: self.next.plus(1), digest: head.fold(self.digest, what), ..*self };
        if head.flags & HEARD_HELLO != 0 && payload.len() >= 8 {
            (after.incarnation, after.controller) = (Reader(payload).word(0), head.producer);
        }
        after
    }
}

/// What a segment is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) field: &'static str,
    pub(super) found: u64,
    pub(super) expected: u64,
}

impl Bad {
    pub(super) fn unless(same: bool, field: &'static str, found: u64, expected: u64) -> Result<(), Bad> {
        if same { Ok(()) } else { Err(Bad { field, found, expected }) }
    }

    pub(super) fn unless_same(field: &'static str, found: u64, expected: u64) -> Result<(), Bad> {
        Bad::unless(found == expected, field, found, expected)
    }
}

/// Whose commands a journal has: of the region, what a reader without it has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The region's number.
    pub uuid: Uuid,
    /// What it is made of.
    pub geometry: Geometry,
    /// What its digests cover.
    pub digest_of: DigestOf,
    /// What becomes of it when workers differ.
    pub on_divergence: OnDivergence,
    /// What happens to commands while nobody works.
    pub without_workers: WithoutWorkers,
    /// The first index of its order.
    pub first_index: Seq,
}

impl Origin {
    pub(crate) fn of(identity: &Identity) -> Origin {
        Origin {
            uuid: identity.uuid,
            geometry: identity.geometry,
            digest_of: identity.digest_of,
            on_divergence: identity.on_divergence,
            without_workers: identity.without_workers,
            first_index: Seq::new(identity.first_index),
        }
    }
}

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) origin: Origin,
    pub(super) start: Point,
    pub(super) number: u64,
    pub(super) nonce: u64,
    pub(super) reserved: u64,
    pub(super) created: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let (origin, g) = (&self.origin, &self.origin.geometry);
        let mut to = Fields(Vec::with_capacity(HEADER_BYTES));
        to.0.extend(MAGIC);
        to.half(VERSION).half(ORDER_MARK);
        to.0.extend(origin.uuid.0.to_le_bytes());
        to.point(&self.start).word(self.number).word(self.nonce).word(self.reserved).word(self.created);
        for word in
            [g.order_slots, g.lane_cells, g.lane_bytes, g.producers, g.workers, g.ranks, g.spill_bytes]
        {
            to.word(word);
        }
        to.word(origin.digest_of.code()).word(origin.on_divergence.code());
        to.word(u64::from(origin.without_workers == WithoutWorkers::Discard)).word(origin.first_index.get());
        to.half(self.world_bytes() as u32);
        let crc = crc32c::crc32c(&to.0);
        to.half(crc);
        std::array::from_fn(|i| to.0[i])
    }

    /// The header in the first [`HEADER_BYTES`], and the number that the checksums behind it begin with.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Header, u32), Bad> {
        let from = Reader(bytes);
        let same = |field, found: u64, expected: u64| Bad::unless_same(field, found, expected);
        same("magic", from.word(0), u64::from_le_bytes(MAGIC))?;
        same("byte order mark", from.half(12).into(), ORDER_MARK.into())?;
        same("format version", from.half(8).into(), VERSION.into())?;
        let crc = from.half(188);
        same("header checksum", crc32c::crc32c(&bytes[..188]).into(), crc.into())?;
        let known = |field, at: usize, known: bool| Bad::unless(known, field, from.word(at), 0);
        let (digest_of, on_divergence) =
            (DigestOf::of_code(from.word(152)), OnDivergence::of_code(from.word(160)));
        known("what digests cover", 152, digest_of.is_some())?;
        known("what is done when workers differ", 160, on_divergence.is_some())?;
        let geometry = Geometry {
            order_slots: from.word(96),
            lane_cells: from.word(104),
            lane_bytes: from.word(112),
            producers: from.word(120),
            workers: from.word(128),
            ranks: from.word(136),
            spill_bytes: from.word(144),
        };
        let discards = from.word(168) == 1;
        let origin = Origin {
            uuid: Uuid(u128::from(from.word(16)) | u128::from(from.word(24)) << 64),
            geometry,
            digest_of: digest_of.unwrap_or_default(),
            on_divergence: on_divergence.unwrap_or_default(),
            without_workers: if discards { WithoutWorkers::Discard } else { WithoutWorkers::Hold },
            first_index: Seq::new(from.word(176)),
        };
        let header = Header {
            origin,
            start: from.point(32),
            number: from.word(64),
            nonce: from.word(72),
            reserved: from.word(80),
            created: from.word(88),
        };
        same("bytes of the world", from.half(184).into(), header.world_bytes())?;
        Ok((header, crc))
    }

    /// How many bytes the world takes that follows.
    pub(super) fn world_bytes(&self) -> u64 {
        World::bytes(&self.origin.geometry).unwrap_or(u64::MAX)
    }

    /// Where the records begin.
    pub(super) fn records(&self) -> u64 {
        (HEADER_BYTES as u64).saturating_add(self.world_bytes())
    }
}

/// What a record says beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) seq: Seq,
    /// [`VOID`], [`HEARD_HELLO`], or 0.
    pub(crate) flags: u8,
    pub(crate) producer: u64,
    pub(crate) index: u64,
    /// Length, kind and address, as a cell has them.
    pub(crate) shape: u64,
    /// The digest that the cell has: that which the producer took of the payload, or if that was spilled, what follows
    /// from this digest and the length.
    pub(crate) payload: u64,
    /// What was spilled, if something was.
    pub(crate) spilled: Option<Spilled>,
}

/// A payload that did not lie in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spilled {
    /// Its length in bytes.
    pub(crate) len: u64,
    /// The digest that the producer took of it.
    pub(crate) digest: u64,
}

impl Spilled {
    /// What the cell of such a payload has for a digest.
    pub(super) fn cell_digest(&self) -> u64 {
        spill::Record { len: self.len, digest: self.digest, start: 0 }.cell_digest()
    }
}

impl Head {
    /// Length of the payload in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.spilled.map_or(u64::from(self.shape as u32), |spilled| spilled.len)
    }

    /// The digest that the producer took of the payload.
    pub(crate) fn content(&self) -> u64 {
        self.spilled.map_or(self.payload, |spilled| spilled.digest)
    }

    /// How many bytes of the record lie before the payload.
    pub(super) fn head_bytes(&self) -> usize {
        HEAD_BYTES + if self.spilled.is_some() { SPILL_BYTES } else { 0 }
    }

    /// How many bytes the record takes.
    pub(super) fn bytes(&self) -> u64 {
        // A length that cannot be is more than any file has.
        (self.len().saturating_add(self.head_bytes() as u64 + ALIGN - 1)) & !(ALIGN - 1)
    }

    /// How many zeroes follow the payload.
    pub(super) fn padding(&self) -> usize {
        (self.bytes() - self.head_bytes() as u64 - self.len()) as usize
    }

    pub(crate) fn kind(&self) -> u16 {
        (self.shape >> 32) as u16
    }

    pub(crate) fn address(&self) -> Address {
        Address::of_code((self.shape >> 48) as u16)
    }

    /// The digest after this, as the order takes it.
    pub(crate) fn fold(&self, before: u64, what: DigestOf) -> u64 {
        match what {
            DigestOf::Off => before,
            _ => fold_at(before, DigestPlace::of(self.producer, self.index), self.shape, self.payload),
        }
    }

    /// Adds the record's bytes before its payload, the checksum as a zero.
    #[inline]
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let tag = u64::from(RECORD | u32::from(self.flags) << FLAGS_SHIFT) << 32;
        let head = [tag, self.seq.get(), self.producer, self.index, self.shape, self.payload];
        to.extend_from_slice(head.map(u64::to_le_bytes).as_flattened());
        if let Some(Spilled { len, digest }) = self.spilled {
            to.extend_from_slice([len, digest].map(u64::to_le_bytes).as_flattened());
        }
    }

    /// The head in these bytes, if all of it is there.
    pub(super) fn decode(bytes: &[u8]) -> Result<Head, Bad> {
        let is_whole = |needed: usize| {
            let (there, needed) = (bytes.len() as u64, needed as u64);
            Bad::unless(there >= needed, "bytes of a record", there, needed)
        };
        is_whole(HEAD_BYTES)?;
        let from = Reader(bytes);
        let spilled = if from.word(32) as u32 == SPILLED {
            is_whole(LONGEST_HEAD)?;
            Some(Spilled { len: from.word(48), digest: from.word(56) })
        } else {
            None
        };
        Ok(Head {
            seq: Seq::new(from.word(8)),
            flags: bytes[7],
            producer: from.word(16),
            index: from.word(24),
            shape: from.word(32),
            payload: from.word(40),
            spilled,
        })
    }
}

/// What stands at a place among the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Record(Head),
    Mark(Point, u64),
}

impl Item {
    /// How many bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Item::Record(head) => head.bytes(),
            Item::Mark(..) => MARK_BYTES as u64,
        }
    }

    /// What the first bytes of an item say that it is, unchecked: how many more are needed is told by its length.
    /// There are at least [`LONGEST_HEAD`], or as many as are left.
    pub(super) fn peek(bytes: &[u8]) -> Result<Item, Bad> {
        let there = bytes.len() as u64;
        Bad::unless(bytes.len() >= HEAD_BYTES, "bytes of a record", there, HEAD_BYTES as u64)?;
        let tag = Reader(bytes).half(4);
        if tag == MARK {
            return Ok(Item::Mark(Reader(bytes).point(8), Reader(bytes).word(40)));
        }
        let plain = tag & !(u32::from(VOID | HEARD_HELLO) << FLAGS_SHIFT);
        Bad::unless(plain == RECORD, "record's tag", tag.into(), RECORD.into())?;
        Head::decode(bytes).map(Item::Record)
    }

    /// How many of its last bytes have to be zero.
    pub(super) fn padding(&self) -> usize {
        match self {
            Item::Record(head) => head.padding(),
            Item::Mark(..) => 0,
        }
    }
}

/// The bytes of a mark.
pub(super) fn encode_mark(point: &Point, synced: u64, seed: u32) -> [u8; MARK_BYTES] {
    let mut to = Fields(Vec::with_capacity(MARK_BYTES));
    to.half(0).half(MARK).point(point).word(synced);
    let crc = crc32c::crc32c_append(seed, &to.0[4..]);
    to.0[..4].copy_from_slice(&crc.to_le_bytes());
    std::array::from_fn(|i| to.0[i])
}

/// Where a record lies, for who seeks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) point: Point,
    pub(super) offset: u64,
}

/// What a sealed segment ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    /// Where the records end.
    pub(super) end: u64,
    pub(super) after: Point,
    pub(super) places: u64,
    places_crc: u32,
}

impl Footer {
    /// Places and footer, as they follow the records.
    pub(super) fn encode(end: u64, after: &Point, places: &[Place], seed: u32) -> Vec<u8> {
        let mut to = Fields(Vec::with_capacity(places.len() * PLACE_BYTES + FOOTER_BYTES));
        for Place { point, offset } in places {
            to.point(point).word(*offset);
        }
        let places_crc = crc32c::crc32c_append(seed, &to.0);
        let at = to.0.len();
        to.half(0).half(END).word(end).point(after).word(places.len() as u64).half(places_crc).half(0);
        to.0.extend(END_MAGIC);
        let crc = crc32c::crc32c_append(seed, &to.0[at + 4..]);
        to.0[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        to.0
    }

    /// The footer in the last [`FOOTER_BYTES`] of a segment of that length; `None` if it is not sealed.
    pub(super) fn decode(bytes: &[u8], file_bytes: u64, seed: u32) -> Result<Option<Footer>, Bad> {
        let from = Reader(bytes);
        if bytes.len() < FOOTER_BYTES || bytes[64..72] != END_MAGIC {
            return Ok(None);
        }
        Bad::unless_same("footer's tag", from.half(4).into(), END.into())?;
        let crc = crc32c::crc32c_append(seed, &bytes[4..FOOTER_BYTES]);
        Bad::unless_same("footer checksum", crc.into(), from.half(0).into())?;
        Bad::unless_same("reserved field", from.half(60).into(), 0)?;
        let (end, places, places_crc) = (from.word(8), from.word(48), from.half(56));
        let expected = places.checked_mul(PLACE_BYTES as u64).and_then(|bytes| bytes.checked_add(end));
        let expected = expected.and_then(|bytes| bytes.checked_add(FOOTER_BYTES as u64)).unwrap_or(0);
        Bad::unless_same("length of the file", file_bytes, expected)?;
        Bad::unless(end >= HEADER_BYTES as u64, "end of the records", end, HEADER_BYTES as u64)?;
        Ok(Some(Footer { end, after: from.point(16), places, places_crc }))
    }

    /// How many bytes its places take; they begin where the records end.
    pub(super) fn places_bytes(&self) -> usize {
        self.places as usize * PLACE_BYTES
    }

    /// The places, checked.
    pub(super) fn decode_places(&self, bytes: &[u8], seed: u32) -> Result<Vec<Place>, Bad> {
        let crc = crc32c::crc32c_append(seed, bytes);
        Bad::unless_same("checksum of the places", crc.into(), self.places_crc.into())?;
        let place =
            |bytes: &[u8]| Place { point: Reader(bytes).point(0), offset: Reader(bytes).word(Point::BYTES) };
        Ok(bytes.chunks_exact(PLACE_BYTES).map(place).collect())
    }
}

/// Fields one after the other.
pub(super) struct Fields(Vec<u8>);

impl Fields {
    pub(super) fn with_capacity(bytes: usize) -> Fields {
        Fields(Vec::with_capacity(bytes))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    /// The bytes, and behind them the checksum of all of them.
    pub(super) fn ended(mut self) -> Vec<u8> {
        let crc = crc32c::crc32c(&self.0);
        self.half(crc);
        self.0
    }

    pub(super) fn words(&mut self, words: &[u64]) -> &mut Self {
        self.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self
    }

    /// The bytes, with the checksum of all behind it in the first half word.
    pub(super) fn sealed(mut self, seed: u32) -> Vec<u8> {
        let crc = crc32c::crc32c_append(seed, &self.0[4..]);
        self.0[..4].copy_from_slice(&crc.to_le_bytes());
        self.0
    }

    pub(super) fn half(&mut self, half: u32) -> &mut Self {
        self.0.extend(half.to_le_bytes());
        self
    }

    pub(super) fn word(&mut self, word: u64) -> &mut Self {
        self.0.extend(word.to_le_bytes());
        self
    }

    fn point(&mut self, point: &Point) -> &mut Self {
        self.word(point.next.get()).word(point.digest).word(point.incarnation).word(point.controller)
    }
}

/// Fields at their offsets; the bytes are as many as the caller has seen to.
#[derive(Clone, Copy)]
pub(super) struct Reader<'b>(pub(super) &'b [u8]);

impl Reader<'_> {
    pub(super) fn half(self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|i| self.0[at + i]))
    }

    pub(super) fn word(self, at: usize) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|i| self.0[at + i]))
    }

    fn point(self, at: usize) -> Point {
        let [next, digest, incarnation, controller] = std::array::from_fn(|i| self.word(at + 8 * i));
        Point { next: Seq::new(next), digest, incarnation, controller }
    }
}

/// Whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // By words first: tails of many megabytes are looked at.
    let (words, rest) = bytes.as_chunks::<32>();
    words.iter().all(|chunk| chunk == &[0; 32]) && rest.iter().all(|&byte| byte == 0)
}
