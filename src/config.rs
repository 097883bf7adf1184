//! [`Config`]: what a region is made of, and which values it can have.

use std::fmt;
use std::str::FromStr;

use seriatim_ring::lane::max_payload;
use seriatim_ring::{Seq, parts, spill, tickets};

use crate::poison::OnDivergence;
use crate::region::layout::{Geometry, Layout};
use crate::region::placement::Placement;

/// Whether commands wait for the first worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WithoutWorkers {
    /// What is submitted while nobody works is held, and the first worker to join gets it. Producers find the
    /// region full when it is.
    #[default]
    Hold,
    /// What is submitted while nobody works is folded into the digest and dropped.
    Discard,
}

/// Whether a region gets huge pages: fewer entries in the processor's page tables for large regions.
///
/// The file systems in memory that have them are those of kind tmpfs, mounted with `huge=advise`, `within_size` or
/// `always`. hugetlbfs is not one of them: its pages are too large to give each party its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Not asked for. A file system that gives them by itself does so still.
    #[default]
    No,
    /// If they can be had; if not, a warning is logged and the region is made without.
    Try,
    /// All of the region but what is less than one such page, or no region.
    Require,
}

/// What the digests of a region cover.
///
/// ```
/// use seriatim::DigestOf;
///
/// assert_eq!("header".parse(), Ok(DigestOf::Header));
/// assert_eq!(DigestOf::default().to_string(), "payload");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DigestOf {
    /// Producer, per-producer index, kind, length, address and the bytes of each command, of which each producer takes a digest
    /// when it submits. Payloads can be checked against it.
    #[default]
    Payload,
    /// The same without the bytes: which commands came in which order, not what was in them. No submit hashes
    /// anything.
    Header,
    /// Nothing: nobody hashes or folds. Every [`Digest`](crate::Digest) of the region is the same number.
    Off,
}

impl DigestOf {
    const ALL: [DigestOf; 3] = [DigestOf::Payload, DigestOf::Header, DigestOf::Off];

    /// What a region's header has for it.
    pub(crate) fn code(self) -> u64 {
        self as u64
    }

    pub(crate) fn of_code(code: u64) -> Option<DigestOf> {
        Self::ALL.into_iter().find(|what| what.code() == code)
    }
}

impl fmt::Display for DigestOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DigestOf::Payload => "payload",
            DigestOf::Header => "header",
            DigestOf::Off => "off",
        })
    }
}

/// A word that names nothing to digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("digest is {found:?}, expected payload, header or off")]
pub struct UnknownDigest {
    found: String,
}

impl FromStr for DigestOf {
    type Err = UnknownDigest;

    fn from_str(text: &str) -> Result<Self, UnknownDigest> {
        let named = Self::ALL.into_iter().find(|what| what.to_string() == text);
        named.ok_or_else(|| UnknownDigest { found: text.into() })
    }
}

/// How to make a region. Each setter takes a value; what is out of range is refused when the region is made.
///
/// The defaults make a region of 35 MiB: 8 producers with 4,096 commands and 4 MiB outstanding each, 16 workers.
///
/// ```
/// use seriatim::Config;
///
/// let config = Config::new().producers(2).lane_bytes(1 << 20);
/// assert_eq!(config.max_payload(), 1 << 19);
/// assert!(config.region_bytes().unwrap() < 3 << 20);
/// let error = Config::new().lane_cells(1000).region_bytes().unwrap_err();
/// assert!(error.to_string().contains("1000") && error.to_string().contains("1024"));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Config {
    pub(crate) geometry: Geometry,
    pub(crate) mode: u32,
    pub(crate) group: Option<u32>,
    pub(crate) pretouch: bool,
    pub(crate) huge_pages: HugePages,
    pub(crate) placement: Placement,
    pub(crate) without_workers: WithoutWorkers,
    pub(crate) digest: DigestOf,
    pub(crate) on_divergence: OnDivergence,
    pub(crate) first_index: u64,
}

/// A value that a [`Config`] cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It must be a power of two in a range.
    #[error("{field} is {found}, expected a power of two from {low} to {high} (next: {next})")]
    PowerOfTwo {
        /// Which value.
        field: &'static str,
        /// What it is.
        found: u64,
        /// The lowest that is allowed.
        low: u64,
        /// The highest that is allowed.
        high: u64,
        /// The next that is allowed.
        next: u64,
    },
    /// Bytes of spills must be 0, for none, or a power of two in a range.
    #[error(
        "spill bytes is {found}, expected 0, for none, or a power of two from {low} to {high} (next: {next})"
    )]
    SpillBytes {
        /// What it is.
        found: u64,
        /// The lowest that is allowed beside 0.
        low: u64,
        /// The highest that is allowed.
        high: u64,
        /// The next that is allowed.
        next: u64,
    },
    /// It is out of range.
    #[error("{field} is {found}, expected {low} to {high}")]
    Range {
        /// Which value.
        field: &'static str,
        /// What it is.
        found: u64,
        /// The lowest that is allowed.
        low: u64,
        /// The highest that is allowed.
        high: u64,
    },
    /// Together the values make a region of more bytes than a file can have.
    #[error(
        "{producers} lanes of {lane_cells} cells and {lane_bytes} bytes make a region of 2^62 bytes or more"
    )]
    TooLarge {
        /// Producers.
        producers: u64,
        /// Cells of each lane.
        lane_cells: u64,
        /// Bytes of each lane.
        lane_bytes: u64,
    },
}

impl Default for Config {
    fn default() -> Self {
        Config {
            geometry: Geometry {
                order_slots: 1024,
                lane_cells: 4096,
                lane_bytes: 4 << 20,
                producers: 8,
                workers: 16,
                ranks: 0,
                spill_bytes: 64 << 30,
            },
            mode: 0o600,
            group: None,
            pretouch: true,
            huge_pages: HugePages::No,
            placement: Placement::first_touch(),
            without_workers: WithoutWorkers::Hold,
            digest: DigestOf::Payload,
            on_divergence: OnDivergence::Report,
            first_index: 0,
        }
    }
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Run descriptors of the order ring: a power of two from 2 to 2^24, default 1,024. A run holds one ticket
    /// or more, so this bounds how many submits can be in the order and not yet seen by the slowest worker.
    pub fn order_slots(mut self, slots: u64) -> Self {
        self.geometry.order_slots = slots;
        self
    }

    /// Cells of each lane: a power of two from 2 to 2^18, default 4,096.
    pub fn lane_cells(mut self, cells: u64) -> Self {
        self.geometry.lane_cells = cells;
        self
    }

    /// Bytes of each lane for payloads over 40 bytes: a power of two from 128 to 2^40, default 4 MiB. A payload
    /// can be half of it, if it has less than 4 GiB; what is longer is [spilled](Self::spill_bytes).
    pub fn lane_bytes(mut self, bytes: u64) -> Self {
        self.geometry.lane_bytes = bytes;
        self
    }

    /// How many bytes each producer can have outstanding of payloads that are too long for its lane: a power of two from
    /// 2 MiB to 2^48, default 64 GiB, or 0 for no such payloads. One of them can have half of it.
    ///
    /// They lie behind the region's pages in the same file, which is address space: pages are reserved when such a
    /// command is submitted, as many as it needs, and given back when the last worker has passed it. So this is how far
    /// they can grow, not what they take. It counts against the longest file that a file system allows, which on tmpfs
    /// is no matter, and is 16 TiB on ext4.
    pub fn spill_bytes(mut self, bytes: u64) -> Self {
        self.geometry.spill_bytes = bytes;
        self
    }

    /// How many producers can be attached at once: 1 to 1,000, default 8.
    pub fn producers(mut self, producers: u64) -> Self {
        self.geometry.producers = producers;
        self
    }

    /// How many workers can be attached at once: 1 to 1,024, default 16.
    pub fn workers(mut self, workers: u64) -> Self {
        self.geometry.workers = workers;
        self
    }

    /// Among how many workers commands can be divided: 0 to [`workers`](Self::workers), default 0. A worker that joins
    /// with a *rank* below this ([`JoinOptions::rank`](crate::JoinOptions::rank)) gets what is submitted
    /// [to it alone](crate::Producer::submit_to), and its part of commands that have
    /// [a part for each](crate::Producer::submit_parts). In a region without ranks there are no such commands.
    pub fn ranks(mut self, ranks: u64) -> Self {
        self.geometry.ranks = ranks;
        self
    }

    /// Permission bits of the file, applied exactly, whatever the umask; default 0600.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Group of the file, by number.
    pub fn group(mut self, gid: u32) -> Self {
        self.group = Some(gid);
        self
    }

    /// Whether the creator touches every page, so that nobody else is charged for it and no page is missing
    /// later; default yes. Pages are reserved in any case.
    pub fn pretouch(mut self, yes: bool) -> Self {
        self.pretouch = yes;
        self
    }

    /// Whether to ask for huge pages; default [`HugePages::No`]. Pages are touched then in any case.
    pub fn huge_pages(mut self, what: HugePages) -> Self {
        self.huge_pages = what;
        self
    }

    /// On which NUMA nodes its memory lies; default [`Placement::first_touch`]: where the creator runs.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// What happens to commands while nobody works; default [`WithoutWorkers::Hold`].
    pub fn without_workers(mut self, what: WithoutWorkers) -> Self {
        self.without_workers = what;
        self
    }

    /// What digests cover; default [`DigestOf::Payload`]. Less is faster, and proves less.
    pub fn digest(mut self, what: DigestOf) -> Self {
        self.digest = what;
        self
    }

    /// What becomes of the region when workers report different things; default [`OnDivergence::Report`].
    pub fn on_divergence(mut self, what: OnDivergence) -> Self {
        self.on_divergence = what;
        self
    }

    /// The first index of the order, default 0: for tests, and for an order that goes on from elsewhere.
    pub fn first_index(mut self, index: u64) -> Self {
        self.first_index = index;
        self
    }

    /// The longest payload in bytes that lies in a lane: half of a lane's bytes, 40 in any case, and less than 4 GiB.
    #[must_use]
    pub fn max_payload(&self) -> u64 {
        max_payload(self.geometry.lane_bytes)
    }

    /// The longest payload of a command in bytes, wherever it lies.
    #[must_use]
    pub fn max_command(&self) -> u64 {
        self.geometry.max_command()
    }

    /// The size of the region in bytes.
    ///
    /// # Errors
    /// The first value that is out of range.
    pub fn region_bytes(&self) -> Result<u64, ConfigError> {
        self.layout().map(|layout| layout.total)
    }

    /// Rights, memory and placement of this one, and all else as it was.
    pub(crate) fn as_of(&self, origin: &crate::journal::Origin) -> Config {
        let crate::journal::Origin {
            geometry, digest_of, on_divergence, without_workers, first_index, ..
        } = *origin;
        let first_index = first_index.get();
        Config { geometry, digest: digest_of, on_divergence, without_workers, first_index, ..self.clone() }
    }

    pub(crate) fn layout(&self) -> Result<Layout, ConfigError> {
        let range = |field, found, low, high| {
            let ok = (low..=high).contains(&found);
            ok.then_some(()).ok_or(ConfigError::Range { field, found, low, high })
        };
        range("mode", self.mode.into(), 0, 0o7777)?;
        range("first index", self.first_index, 0, Seq::MAX.get())?;
        self.placement.check(self.geometry.producers, self.geometry.workers)?;
        self.geometry.layout()
    }
}

impl Geometry {
    /// The longest payload of a command in bytes, wherever it lies.
    pub(crate) fn max_command(&self) -> u64 {
        max_payload(self.lane_bytes).max(spill::max_len(self.spill_bytes))
    }

    /// Checks each number and lays the region out.
    pub(crate) fn layout(&self) -> Result<Layout, ConfigError> {
        power_of_two("order slots", self.order_slots, 2, 1 << 24)?;
        power_of_two("lane cells", self.lane_cells, 2, 1 << 18)?;
        power_of_two("lane bytes", self.lane_bytes, 128, 1 << 40)?;
        if self.spill_bytes != 0 {
            power_of_two("spill bytes", self.spill_bytes, 2 << 20, 1 << 48).map_err(or_none)?;
        }
        let numbers = [
            ("producers", self.producers, 1, 1000),
            ("workers", self.workers, 1, 1024),
            ("ranks", self.ranks, 0, self.workers),
        ];
        for (field, found, low, high) in numbers {
            if !(low..=high).contains(&found) {
                return Err(ConfigError::Range { field, found, low, high });
            }
        }
        const { assert!(parts::MAX_RANKS > 1024) };
        const { assert!(tickets::MAX_LANES > 1000 && tickets::MAX_COUNT >= 1 << 17) };
        Layout::new(*self).ok_or(ConfigError::TooLarge {
            producers: self.producers,
            lane_cells: self.lane_cells,
            lane_bytes: self.lane_bytes,
        })
    }
}

/// For what can be 0 as well.
fn or_none(error: ConfigError) -> ConfigError {
    match error {
        ConfigError::PowerOfTwo { found, low, high, next, .. } => {
            ConfigError::SpillBytes { found, low, high, next }
        }
        error => error,
    }
}

fn power_of_two(field: &'static str, found: u64, low: u64, high: u64) -> Result<(), ConfigError> {
    if found.is_power_of_two() && (low..=high).contains(&found) {
        return Ok(());
    }
    let next = found.checked_next_power_of_two().unwrap_or(high).clamp(low, high);
    Err(ConfigError::PowerOfTwo { field, found, low, high, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named_with_its_value_and_the_range() {
        let cases = [
            (Config::new().order_slots(0), "order slots is 0", "2 to 16777216"),
            (Config::new().order_slots(1 << 25), "33554432", "next: 16777216"),
            (Config::new().lane_cells(1 << 63), "9223372036854775808", "262144"),
            (Config::new().lane_bytes(u64::MAX), "18446744073709551615", "1099511627776"),
            (
                Config::new().spill_bytes(1 << 20),
                "spill bytes is 1048576, expected 0, for none, or",
                "next: 2097152",
            ),
            (Config::new().spill_bytes(3 << 40), "spill bytes is 3298534883328", "next: 4398046511104"),
            (Config::new().producers(1001), "producers is 1001", "1 to 1000"),
            (Config::new().workers(0), "workers is 0", "1 to 1024"),
            (Config::new().workers(3).ranks(4), "ranks is 4", "0 to 3"),
            (Config::new().mode(0o10000), "mode is 4096", "0 to 4095"),
            (
                Config::new().producers(2).placement(Placement::on(0).lanes([0; 3])),
                "nodes of lanes is 3",
                "0 to 2",
            ),
            (Config::new().workers(1).placement(Placement::on(0).workers([0; 2])), "workers is 2", "0 to 1"),
            (Config::new().first_index(1 << 63), "first index is 9223372036854775808", "9223372036854775807"),
        ];
        for (config, found, expected) in cases {
            let message = config.region_bytes().unwrap_err().to_string();
            assert!(message.contains(found) && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn the_default_has_the_size_that_is_documented() {
        let bytes = Config::new().region_bytes().unwrap();
        assert!((34 << 20..=35 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_payload_is_half_a_lane_and_less_than_4_gib() {
        assert_eq!(Config::new().lane_bytes(1 << 32).max_payload(), 1 << 31);
        for shift in 33..=40 {
            assert_eq!(Config::new().lane_bytes(1 << shift).max_payload(), u64::from(u32::MAX) - 1);
        }
        assert_eq!(Config::new().max_command(), 32 << 30);
        assert_eq!(Config::new().spill_bytes(0).max_command(), 2 << 20);
    }

    #[test]
    fn the_largest_values_together_do_not_overflow() {
        let config = Config::new().producers(1000).lane_bytes(1 << 40).lane_cells(1 << 18).workers(1024);
        assert!(config.spill_bytes(1 << 48).region_bytes().is_ok());
    }
}
