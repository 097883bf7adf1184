//! The bytes of a command, in place: the only cast from the mapping to slices of bytes.
//!
//! Why that is sound although other processes map the same bytes:
//!
//! - **\[B1\]** Room that a lane's writer has reserved belongs to that producer alone until its ticket is in: the
//!   lane is locked by its owner, and the room was released by every gate before (L1).
//!   An observer, which gates nobody, may copy words of it meanwhile; it asks afterwards whether the room had been claimed
//!   again (L2), and throws away what it copied then, whatever that was.
//! - **\[B2\]** A payload that is in the order is written by nobody while a gate lies at or before its index: the
//!   producer's next use of the room needs `released`, which follows the slowest gate. A worker's gate moves
//!   only in a call that needs `&mut Worker`, which ends every borrow of a payload.
//!
//! A process that breaks the protocol and has the lane's pages writable can still change bytes under a reader:
//! that is outside of what can be promised by anyone who shares memory, and costs no more than wrong bytes.

use std::ops::Range;

use seriatim_ring::lane::{INLINE, INLINE_WORDS, Room};
use seriatim_ring::sync::{AtomicU64, wrote};
use twox_hash::XxHash3_64;

use crate::region::map::WordMap;

/// The digest of a payload: XXH3, 64 bits, without a seed; in the widest registers that the processor has.
#[inline]
#[must_use]
pub fn payload_digest(payload: &[u8]) -> u64 {
    XxHash3_64::oneshot(payload)
}

/// Takes the same digest of a payload that comes piece by piece.
#[derive(Default)]
pub(crate) struct PayloadHasher(XxHash3_64);

impl PayloadHasher {
    pub(crate) fn write(&mut self, piece: &[u8]) {
        std::hash::Hasher::write(&mut self.0, piece);
    }

    pub(crate) fn finish(&self) -> u64 {
        std::hash::Hasher::finish(&self.0)
    }
}

/// Copies a payload of at most [`INLINE`] bytes into the words of its cell.
#[inline(always)]
pub(crate) fn write_inline(words: &[AtomicU64; INLINE_WORDS], payload: &[u8]) {
    let to = words.as_ptr().cast::<[u8; INLINE]>().cast_mut();
    // SAFETY: [B1] the words are so many bytes, may be written through a shared reference, and nobody else uses them.
    copy_small(unsafe { &mut *to }, payload);
    wrote(words, payload.len());
}

/// Copies at most [`INLINE`] bytes in a few moves of fixed sizes, which overlap where the length asks for it: for so
/// little a call would take longer than what it does.
#[inline(always)]
fn copy_small(to: &mut [u8; INLINE], from: &[u8]) {
    /// The first and the last `N` bytes; together all, if there are at most twice as many.
    #[inline(always)]
    fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
        let len = from.len();
        to[..N].copy_from_slice(&from[..N]);
        to[len - N..len].copy_from_slice(&from[len - N..]);
    }
    let len = from.len();
    match len {
        33.. => {
            to[..16].copy_from_slice(&sixteen(&from[..16]));
            to[16..32].copy_from_slice(&sixteen(&from[16..32]));
            to[len - 8..len].copy_from_slice(&from[len - 8..]);
        }
        16.. => {
            to[..16].copy_from_slice(&sixteen(&from[..16]));
            to[len - 16..len].copy_from_slice(&sixteen(&from[len - 16..]));
        }
        8.. => ends::<8>(to, from),
        4.. => ends::<4>(to, from),
        2.. => ends::<2>(to, from),
        1 => to[0] = from[0],
        0 => {}
    }
}

/// Sixteen bytes, to be stored at once, but loaded as two words: a small payload has often just been written word by word,
/// and what still waits in the store buffer is handed to a load of the same width, while a wider one waits until all
/// stores before it are done, those to cells that another processor has included.
#[inline(always)]
fn sixteen(from: &[u8]) -> [u8; 16] {
    let from: &[u8; 16] = from.first_chunk().expect("sixteen bytes");
    #[cfg(target_arch = "x86_64")]
    {
        let both: std::arch::x86_64::__m128i;
        // SAFETY: SSE2 is part of x86-64; reads the sixteen bytes that are borrowed, and changes nothing.
        unsafe {
            std::arch::asm!(
                "movq {both}, qword ptr [{from}]",
                "movhps {both}, qword ptr [{from} + 8]",
                from = in(reg) from.as_ptr(),
                both = out(xmm_reg) both,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        // SAFETY: plain bits of the same size.
        unsafe { std::mem::transmute(both) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    *from
}

/// Copies a payload into the words of the room that was reserved for it.
#[inline]
pub(crate) fn write(room: &[AtomicU64], payload: &[u8]) {
    assert!(payload.len() <= size_of_val(room));
    let to = room.as_ptr().cast::<u8>().cast_mut();
    // SAFETY: [B1] the words are at least as many bytes, may be written through a shared reference, and nobody else
    // uses them; the source is ordinary memory of this process or a part of the region that is not this room.
    unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), to, payload.len()) };
    wrote(room, payload.len());
}

/// The reserved room itself, to be written in place. It holds what an earlier command left there.
#[inline]
pub(crate) fn room_mut<'a>(words: &'a [AtomicU64], room: &'a mut Room) -> &'a mut [u8] {
    let len = room.len as usize;
    assert!(len <= size_of_val(words));
    let start = words.as_ptr().cast::<u8>().cast_mut();
    // SAFETY: [B1] the words are at least `len` bytes, may be written through a shared reference, and nobody else
    // uses them; the exclusive borrow of the `Room` lets no second slice of it exist.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// The first `len` bytes of words that were mapped for the spill that this producer writes.
pub(crate) fn spill_mut(map: &mut WordMap, len: usize) -> &mut [u8] {
    let words = map.words();
    assert!(len <= size_of_val(words));
    let start = words.as_ptr().cast::<u8>().cast_mut();
    // SAFETY: [B1] the words are at least `len` bytes, mapped writable, and nobody else uses them before the command has
    // its ticket; the exclusive borrow of the mapping lets no second slice of it exist.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// The first `len` bytes of words that nobody writes: a payload that a gate keeps [B2], or a room that is its owner's
/// alone [B1].
#[inline]
pub(crate) fn read(words: &[AtomicU64], len: usize) -> &[u8] {
    assert!(len <= size_of_val(words));
    #[cfg(test)]
    counted::add(len);
    // SAFETY: [B1, B2] the words are at least `len` bytes, and the caller hands the slice out for no longer than they
    // stay as they are.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), len) }
}

/// Bytes of the same words from one on, which is at a multiple of 8.
pub(crate) fn part(words: &[AtomicU64], range: Range<usize>) -> &[u8] {
    debug_assert!(range.start.is_multiple_of(8));
    read(&words[range.start / 8..], range.len())
}

/// How many bytes of a mapping this thread was handed: for tests that show who reads what.
#[cfg(test)]
pub(crate) mod counted {
    use std::cell::Cell;

    thread_local!(static BYTES: Cell<u64> = const { Cell::new(0) });

    pub(super) fn add(len: usize) {
        BYTES.with(|bytes| bytes.set(bytes.get() + len as u64));
    }

    /// So far.
    pub(crate) fn bytes() -> u64 {
        BYTES.with(Cell::get)
    }
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
    fn small_payloads_are_copied_whole_and_nothing_beside_them() {
        let from: [u8; INLINE] = std::array::from_fn(|at| at as u8 + 1);
        for len in 0..=INLINE {
            let mut to = [0xee; INLINE];
            copy_small(&mut to, &from[..len]);
            assert_eq!(to[..len], from[..len]);
            assert!(to[len..].iter().all(|&byte| byte == 0xee), "{len}: {to:?}");
        }
    }

    #[test]
    fn the_digest_is_a_fixed_format() {
        // As another implementation has it, at a length of each of the algorithm's ways.
        let known: [(usize, u64); 9] = [
            (0, 0x2d06_8005_38d3_94c2),
            (8, 0x6053_9db6_3047_1163),
            (40, 0x5fe7_8a29_955d_b15a),
            (200, 0x746c_d002_5327_bf5b),
            (240, 0x6455_6dc6_b462_a6cf),
            (241, 0x8bea_dd3a_8874_fe17),
            (1000, 0x6c4f_14bd_97bd_9e82),
            (4096, 0xd742_8746_842b_e37e),
            (65_536, 0x5d03_b43b_14c7_5500),
        ];
        for (len, digest) in known {
            let payload: Vec<u8> = (0..len).map(|i| (i * 7 + 3) as u8).collect();
            assert_eq!(payload_digest(&payload), digest, "{len} bytes");
        }
        assert_ne!(payload_digest(&[0; 257]), payload_digest(&[0; 258]));
    }
}
