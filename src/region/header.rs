//! The first page of a region: what it is, and for whom.
//!
//! ```text
//! offset   bytes
//!      0   8      magic "SERIATIM"
//!      8   4      format version
//!     12   4      byte order mark 0x01020304
//!     16   8      header size (4096)
//!     24   40     geometry: order slots, lane cells, lane bytes, producers, workers
//!     64   8      without workers: 0 hold, 1 discard
//!     72   8      first index
//!     80   8      file size
//!     88   16     region uuid
//!    104   16     boot id of the machine that made it
//!    120   8      time of creation, seconds since 1970
//!    128   8      what digests cover: 0 payload, 1 header, 2 nothing
//!    136   8      when workers differ: 0 report, 1 poison, 2 lockstep
//!    144   8      ranks: among how many workers commands can be divided
//!    152   8      spill bytes: of each producer, for payloads that are too long for its lane
//!    160   8      digest (xxh3-64) of all before it
//! ```
//!
//! All numbers are little-endian. The header is written before the file has a name and never again.

use twox_hash::XxHash3_64;

use crate::config::{DigestOf, WithoutWorkers};
use crate::error::HeaderError;
use crate::poison::OnDivergence;
use crate::region::layout::{Geometry, Layout, PAGE};

/// The first eight bytes of every region.
pub const MAGIC: [u8; 8] = *b"SERIATIM";
/// The format that this build reads and writes.
pub const VERSION: u32 = 10;
const ORDER_MARK: u32 = 0x0102_0304;
/// Bytes of the header that carry something.
pub(crate) const HEADER_BYTES: usize = 168;
/// Where its digest lies.
const DIGEST: usize = HEADER_BYTES - 8;

/// What a region's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Format version.
    pub version: u32,
    /// The region's number, drawn at random.
    pub uuid: Uuid,
    /// The boot of the machine in which it was made.
    pub boot_id: Uuid,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// What it is made of.
    pub geometry: Geometry,
    /// What happens to commands while nobody works.
    pub without_workers: WithoutWorkers,
    /// What its digests cover.
    pub digest_of: DigestOf,
    /// What becomes of it when workers differ.
    pub on_divergence: OnDivergence,
    /// The first index of its order.
    pub first_index: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
}

/// A number of 128 bits that names a region or a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uuid(pub u128);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hex = format!("{:032x}", self.0);
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        f.write_str(&parts.join("-"))
    }
}

impl Identity {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let g = &self.geometry;
        let words = [g.order_slots, g.lane_cells, g.lane_bytes, g.producers, g.workers];
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(ORDER_MARK.to_le_bytes());
        bytes.extend(PAGE.to_le_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(u64::from(self.without_workers == WithoutWorkers::Discard).to_le_bytes());
        bytes.extend(self.first_index.to_le_bytes());
        bytes.extend(self.file_bytes.to_le_bytes());
        bytes.extend(self.uuid.0.to_le_bytes());
        bytes.extend(self.boot_id.0.to_le_bytes());
        bytes.extend(self.created.to_le_bytes());
        bytes.extend(self.digest_of.code().to_le_bytes());
        bytes.extend(self.on_divergence.code().to_le_bytes());
        bytes.extend(g.ranks.to_le_bytes());
        bytes.extend(g.spill_bytes.to_le_bytes());
        bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
        std::array::from_fn(|i| bytes[i])
    }

    /// Reads a header, checking in this order: length, magic, byte order, version, digest, geometry.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Identity, Layout), HeaderError> {
        if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
            return Err(HeaderError::NotARegion { found: describe(bytes) });
        }
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u128_at = |at: usize| u128::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let same = |field, found: u64, expected: u64| {
            (found == expected).then_some(()).ok_or(HeaderError::Field { field, found, expected })
        };
        if u32_at(12) == ORDER_MARK.swap_bytes() {
            return Err(HeaderError::ByteOrder { found: u32_at(12), expected: ORDER_MARK });
        }
        same("byte order mark", u32_at(12).into(), ORDER_MARK.into())?;
        let version = u32_at(8);
        if version != VERSION {
            return Err(HeaderError::Version { found: version, supported: VERSION });
        }
        same("header size", u64_at(16), PAGE)?;
        same("header digest", u64_at(DIGEST), XxHash3_64::oneshot(&bytes[..DIGEST]))?;
        let geometry = Geometry {
            order_slots: u64_at(24),
            lane_cells: u64_at(32),
            lane_bytes: u64_at(40),
            producers: u64_at(48),
            workers: u64_at(56),
            ranks: u64_at(144),
            spill_bytes: u64_at(152),
        };
        let layout = geometry.layout()?;
        same("file size", u64_at(80), layout.total)?;
        let digest_of = DigestOf::of_code(u64_at(128)).ok_or(HeaderError::Field {
            field: "what digests cover",
            found: u64_at(128),
            expected: DigestOf::Payload.code(),
        })?;
        let on_divergence = OnDivergence::of_code(u64_at(136)).ok_or(HeaderError::Field {
            field: "what is done when workers differ",
            found: u64_at(136),
            expected: OnDivergence::Report.code(),
        })?;
        let identity = Identity {
            version,
            uuid: Uuid(u128_at(88)),
            boot_id: Uuid(u128_at(104)),
            created: u64_at(120),
            geometry,
            without_workers: if u64_at(64) == 1 { WithoutWorkers::Discard } else { WithoutWorkers::Hold },
            digest_of,
            on_divergence,
            first_index: u64_at(72),
            file_bytes: u64_at(80),
        };
        Ok((identity, layout))
    }
}

/// What a file that is no region seems to be.
fn describe(bytes: &[u8]) -> String {
    match bytes {
        [] => "an empty file".into(),
        [0x7f, b'E', b'L', b'F', ..] => "an ELF file".into(),
        _ if bytes.len() < HEADER_BYTES && bytes.starts_with(&MAGIC) => {
            format!("the first {} bytes of a region", bytes.len())
        }
        _ if bytes.len() < HEADER_BYTES => format!("a file of {} bytes", bytes.len()),
        _ => format!("a file that begins with \"{}\"", bytes[..8].escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn identity() -> Identity {
        let layout = Config::new().ranks(5).layout().unwrap();
        Identity {
            version: VERSION,
            uuid: Uuid(1 << 100 | 7),
            boot_id: Uuid(9),
            created: 11,
            geometry: layout.geometry,
            without_workers: WithoutWorkers::Discard,
            digest_of: DigestOf::Header,
            on_divergence: OnDivergence::Lockstep,
            first_index: 12,
            file_bytes: layout.total,
        }
    }

    #[test]
    fn a_header_survives_its_encoding() {
        assert_eq!(Identity::decode(&identity().encode()).unwrap().0, identity());
    }

    #[test]
    fn every_damaged_bit_is_noticed() {
        let good = identity().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Identity::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named_with_both_numbers() {
        for version in [VERSION - 1, VERSION + 1] {
            let bytes = Identity { version, ..identity() }.encode();
            let error = Identity::decode(&bytes).unwrap_err();
            assert!(matches!(error, HeaderError::Version { found, .. } if found == version), "{error}");
        }
    }

    #[test]
    fn an_unknown_choice_is_named() {
        let cases = [(128, "what digests cover is 3"), (136, "what is done when workers differ is 3")];
        for (at, text) in cases {
            let mut bytes = identity().encode();
            bytes[at] = 3;
            let digest = XxHash3_64::oneshot(&bytes[..DIGEST]).to_le_bytes();
            bytes[DIGEST..].copy_from_slice(&digest);
            let error = Identity::decode(&bytes).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
