//! The chain digest: one history, one number.
//!
//! `h[n + 1] = fold(h[n], command n)`, where a command counts with its producer number, its per-producer
//! index, its kind, its length and the digest that its producer took of the payload. Two parties with equal
//! digests at an equal index have seen the same commands in the same order.
//!
//! The mixing step is the folded multiply of wyhash (Wang Yi, public domain): the two halves of a 64 x 64 bit
//! product, added without carry. It is a checksum against mistakes and damage, not against an adversary.

/// A digest of all commands before an index.
pub type Chain = u64;

/// The digest before the first command.
pub const START: Chain = 0x7365_7269_6174_696d;

const K0: u64 = 0xa076_1d64_78bd_642f;
const K1: u64 = 0xe703_7ed1_a0b4_28db;
const K2: u64 = 0x8ebc_6af0_9c88_c6e3;
const K3: u64 = 0x5899_65cc_7537_4cc3;
const K4: u64 = 0x1d8e_4e27_c47d_124f;

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
    /// Digest of the payload, taken by its producer.
    pub payload: u64,
}

/// The digest after one more command.
#[inline]
#[must_use]
pub fn fold(before: Chain, command: Folded) -> Chain {
    let shape = u64::from(command.len) | u64::from(command.kind) << 32;
    let body = multiply_fold(command.payload ^ K0, shape ^ K1);
    let place = multiply_fold(command.producer ^ K2, command.index ^ K3);
    // `before` enters both factors, so that a zero factor does not forget it.
    multiply_fold(before ^ body ^ K4, before.rotate_left(32) ^ place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Folded = Folded { producer: 1, index: 2, len: 3, kind: 4, payload: 5 };

    #[test]
    fn every_field_counts() {
        let h = fold(START, ONE);
        let others = [
            fold(START ^ 1, ONE),
            fold(START, Folded { producer: 2, ..ONE }),
            fold(START, Folded { index: 3, ..ONE }),
            fold(START, Folded { len: 4, ..ONE }),
            fold(START, Folded { kind: 5, ..ONE }),
            fold(START, Folded { payload: 6, ..ONE }),
        ];
        assert!(others.iter().all(|&other| other != h));
    }

    #[test]
    fn order_counts() {
        let two = Folded { index: 3, ..ONE };
        assert_ne!(fold(fold(START, ONE), two), fold(fold(START, two), ONE));
    }

    #[test]
    fn the_format_is_fixed() {
        // Regions and journals outlive a build: a changed constant is a changed format.
        assert_eq!(fold(START, ONE), 993_383_266_880_784_013);
    }
}
