//! The chain digest: one history, one number.
//!
//! `h[n + 1] = fold(h[n], command n)`, where a command counts with its producer number, its per-producer
//! index, its kind, its length, whom it is for, and the digest that its producer took of the payload. Two parties with equal
//! digests at an equal index have seen the same commands in the same order.
//!
//! The mixing step is the folded multiply of wyhash and rapidhash (Wang Yi, Nicolas De Carli; public domain): the two
//! halves of a 64 x 64 bit product, added without carry. One of them takes a whole command, whose fields are first
//! spread over the two factors: the payload's digest is mixed already, the others count with odd multipliers, so that
//! the place grows by one addition from a command to the next of its producer. It is a checksum against mistakes and
//! damage, not against an adversary.

use crate::parts::Address;

/// A digest of all commands before an index.
pub type Chain = u64;

/// The digest before the first command.
pub const START: Chain = 0x7365_7269_6174_696d;

const SHAPE: u64 = 0xe703_7ed1_a0b4_28db;
const PRODUCER: u64 = 0x8ebc_6af0_9c88_c6e3;
const INDEX: u64 = 0x5899_65cc_7537_4cc3;

#[inline]
fn multiply_fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// What the digest takes of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folded {
    /// The producer's number, never reused in a region.
    pub producer: u64,
    /// The command's place among its producer's, from 0.
    pub index: u64,
    /// Length of the payload in bytes.
    pub len: u32,
    /// The user's kind.
    pub kind: u16,
    /// Whom it is for.
    pub address: Address,
    /// Digest of the payload, taken by its producer.
    pub payload: u64,
}

/// What the digest takes of where a command stands: whose it is, and which of its producer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u64);

impl Place {
    /// Of a producer's command `index`.
    #[inline]
    #[must_use]
    pub fn of(producer: u64, index: u64) -> Place {
        Place(producer.wrapping_mul(PRODUCER).wrapping_add(index.wrapping_mul(INDEX)))
    }

    /// Of the same producer's next command.
    #[inline]
    #[must_use]
    pub fn next(self) -> Place {
        Place(self.0.wrapping_add(INDEX))
    }
}

/// The digest after one more command.
#[inline]
#[must_use]
pub fn fold(before: Chain, command: Folded) -> Chain {
    let address = u64::from(command.address.code());
    let shape = u64::from(command.len) | u64::from(command.kind) << 32 | address << 48;
    fold_at(before, Place::of(command.producer, command.index), shape, command.payload)
}

/// The same, for who knows the place already and has length, kind and address as a cell has them: the length in bits
/// 0-31, the kind in bits 32-47, the address in bits 48-63.
#[inline]
#[must_use]
pub fn fold_at(before: Chain, place: Place, shape: u64, payload: u64) -> Chain {
    let body = payload ^ shape.wrapping_mul(SHAPE);
    // `before` enters both factors, so that a zero factor does not forget it.
    multiply_fold(before ^ body, before.rotate_left(32) ^ place.0)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    const ONE: Folded = Folded { producer: 1, index: 2, len: 3, kind: 4, address: Address::ALL, payload: 5 };

    #[test]
    fn every_field_counts() {
        let h = fold(START, ONE);
        let others = [
            fold(START ^ 1, ONE),
            fold(START, Folded { producer: 2, ..ONE }),
            fold(START, Folded { index: 3, ..ONE }),
            fold(START, Folded { len: 4, ..ONE }),
            fold(START, Folded { kind: 5, ..ONE }),
            fold(START, Folded { address: Address::rank(0), ..ONE }),
            fold(START, Folded { address: Address::PARTS, ..ONE }),
            fold(START, Folded { payload: 6, ..ONE }),
        ];
        assert!(others.iter().all(|&other| other != h));
    }

    /// Commands that differ in one bit of one field, and their neighbours, all have digests of their own: what is spread
    /// over a factor by multiplication alone does not fall together for the fields that occur.
    #[test]
    fn commands_that_differ_a_little_differ() {
        let mut seen = std::collections::HashSet::new();
        let fields = (0..16).flat_map(|producer| (0..64).map(move |index| (producer, index)));
        for (producer, index) in fields {
            for (len, kind, payload) in
                [(0, 0, 0), (1, 0, 0), (0, 1, 0), (32, 0, 0), (0, 0, 1), (0, 0, 1 << 63)]
            {
                let one = Folded { producer, index, len, kind, address: Address::ALL, payload };
                assert!(seen.insert(fold(START, one)));
                assert!(seen.insert(fold(START, Folded { address: Address::rank(0), ..one })));
            }
        }
        // Numbers and indexes are counted up from 0: the highest bits of neither occur.
        for bit in 0..56 {
            let one = 1 << bit;
            assert!(seen.insert(fold(START ^ one, ONE)));
            assert!(seen.insert(fold(START, Folded { producer: 1 ^ one, ..ONE })));
            assert!(seen.insert(fold(START, Folded { index: 2 ^ one, ..ONE })));
            assert!(seen.insert(fold(START, Folded { payload: 5 ^ one, ..ONE })));
        }
    }

    #[test]
    fn the_next_place_is_that_of_the_next_index() {
        for index in [0, 1, 4095, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(Place::of(7, index).next(), Place::of(7, index.wrapping_add(1)));
        }
    }

    #[test]
    fn order_counts() {
        let two = Folded { index: 3, ..ONE };
        assert_ne!(fold(fold(START, ONE), two), fold(fold(START, two), ONE));
    }

    #[test]
    fn the_format_is_fixed() {
        // Regions and journals outlive a build: a changed constant is a changed format.
        assert_eq!(fold(START, ONE), 13_665_835_789_581_965_274);
    }
}
