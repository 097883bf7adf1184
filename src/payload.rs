//! The bytes of a command, in place: the only cast from the mapping to slices of bytes.
//!
//! Why that is sound although other processes map the same bytes:
//!
//! - **\[B1\]** Room that a lane's writer has reserved belongs to that producer alone until its ticket is in: the
//!   lane is locked by its owner, and the room was released by every gate before (L1).
//! - **\[B2\]** A payload that is in the order is written by nobody while a gate lies at or before its index: the
//!   producer's next use of the room needs `released`, which follows the slowest gate. A worker's gate moves
//!   only in a call that needs `&mut Worker`, which ends every borrow of a payload.
//!
//! A process that breaks the protocol and has the lane's pages writable can still change bytes under a reader:
//! that is outside of what can be promised by anyone who shares memory, and costs no more than wrong bytes.

use seriatim_ring::lane::{Entry, Room};
use xxhash_rust::xxh3::xxh3_64;

use crate::region::map::Map;

/// The digest of a payload: XXH3, 64 bits, without a seed.
#[inline]
#[must_use]
pub fn payload_digest(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// Copies a payload into the room that was reserved for it; the lengths are equal.
#[inline]
pub(crate) fn write(map: &Map, lane: u16, room: &Room, payload: &[u8]) {
    assert!(payload.len() == room.len as usize);
    let to = map.payload(lane, room.cell, room.place).as_ptr();
    // SAFETY: [B1] the room is `room.len` bytes inside the lane and nobody else uses it; the source is ordinary
    // memory of this process or a part of the region that is not this room.
    unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) };
}

/// The reserved room itself, to be written in place. It holds what an earlier command left there.
#[inline]
pub(crate) fn room_mut<'a>(map: &'a Map, lane: u16, room: &'a mut Room) -> &'a mut [u8] {
    let start = map.payload(lane, room.cell, room.place).as_ptr();
    // SAFETY: [B1] the room is `room.len` bytes inside the lane and nobody else uses it; the exclusive borrow of
    // the `Room` lets no second slice of it exist.
    unsafe { std::slice::from_raw_parts_mut(start, room.len as usize) }
}

/// The reserved room, to be read back.
#[inline]
pub(crate) fn room<'a>(map: &'a Map, lane: u16, room: &'a Room) -> &'a [u8] {
    let start = map.payload(lane, room.cell, room.place).as_ptr();
    // SAFETY: [B1] as in `room_mut`; the shared borrow of the `Room` lets no exclusive slice of it exist.
    unsafe { std::slice::from_raw_parts(start, room.len as usize) }
}

/// The payload of an entry that a gate keeps.
#[inline]
pub(crate) fn read<'a>(map: &'a Map, lane: u16, entry: &Entry) -> &'a [u8] {
    let start = map.payload(lane, entry.cell, entry.place).as_ptr();
    // SAFETY: [B2] `Lane::read` checked that the payload lies inside the lane; the caller's gate keeps it, and
    // the caller hands the slice out for no longer than that.
    unsafe { std::slice::from_raw_parts(start, entry.len as usize) }
}

/// The first `len` bytes of copied words.
pub(crate) fn bytes_of(words: &[u64], len: usize) -> &[u8] {
    assert!(len <= size_of_val(words));
    // SAFETY: the words are initialized, at least `len` bytes, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_a_fixed_format() {
        assert_eq!(payload_digest(b""), 0x2d06_8005_38d3_94c2);
        assert_ne!(payload_digest(&[0; 257]), payload_digest(&[0; 258]));
    }
}
