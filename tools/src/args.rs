//! Arguments that several commands share, and the parsers of their values.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use seriatim::journal::SyncPolicy;
use seriatim::{Config, HugePages, Placement};

/// How large the parts of a region are. What is not given is the library's choice.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Sizes {
    /// Run descriptors in the order ring: how far, in runs, the slowest worker may be behind [a power of two; default: 1024]
    #[arg(long, value_name = "N", value_parser = size)]
    pub(crate) slots: Option<u64>,
    /// Commands that one producer may have outstanding [a power of two; default: 4096]
    #[arg(long, value_name = "N", value_parser = size)]
    pub(crate) lane_cells: Option<u64>,
    /// Payload bytes that one producer may have outstanding in its lane; the largest payload there is half of it [a power
    /// of two; K, M and G are taken; default: 4M]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) lane_bytes: Option<u64>,
    /// The same of larger payloads, which get memory of their own while they are needed; the largest command is half of
    /// it, 0 allows none [a power of two; K, M and G are taken; default: 64G]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) spill_bytes: Option<u64>,
}

impl Sizes {
    pub(crate) fn apply(&self, mut config: Config) -> Config {
        if let Some(slots) = self.slots {
            config = config.order_slots(slots);
        }
        if let Some(cells) = self.lane_cells {
            config = config.lane_cells(cells);
        }
        if let Some(bytes) = self.lane_bytes {
            config = config.lane_bytes(bytes);
        }
        if let Some(bytes) = self.spill_bytes {
            config = config.spill_bytes(bytes);
        }
        config
    }
}

/// A number, with K, M or G for its multiples by 1024.
pub(crate) fn size(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        unit => bail!("`{unit}` is no unit: K, M and G are"),
    };
    let number: u64 = digits.parse().with_context(|| format!("`{digits}` is no number"))?;
    number.checked_mul(1 << shift).with_context(|| format!("{text} is too large"))
}

/// How many of something, at least one.
pub(crate) fn some(text: &str) -> Result<usize> {
    let count: usize = text.parse().with_context(|| format!("`{text}` is no number"))?;
    ensure!(count > 0, "{count} is too few, at least 1 is kept");
    Ok(count)
}

/// A time in seconds, which may have a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration> {
    let seconds = text.parse().with_context(|| format!("`{text}` is no number"))?;
    Duration::try_from_secs_f64(seconds).with_context(|| format!("{text} seconds are no time to wait"))
}

/// A time in seconds, or with m, h or d in minutes, hours or days.
pub(crate) fn span(text: &str) -> Result<Duration> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1.0),
        Some((at, 'm')) => (&text[..at], 60.0),
        Some((at, 'h')) => (&text[..at], 3_600.0),
        Some((at, 'd')) => (&text[..at], 86_400.0),
        _ => (text, 1.0),
    };
    let number: f64 =
        number.parse().with_context(|| format!("`{text}` is no time, as 7d, 12h, 30m or 90 are"))?;
    Duration::try_from_secs_f64(number * unit).with_context(|| format!("{text} is no time to keep anything"))
}

/// When what is written is synced.
pub(crate) fn sync_policy(text: &str) -> Result<SyncPolicy> {
    match text {
        "group" => Ok(SyncPolicy::Group),
        "off" => Ok(SyncPolicy::Off),
        time => seconds(time)
            .map(SyncPolicy::Every)
            .with_context(|| format!("`{text}` is neither `group`, `off` nor a time")),
    }
}

/// A time without a move after which one is killed: longer than the sequencer takes to look again, so that nobody is
/// killed for not having been asked.
pub(crate) fn patience(text: &str) -> Result<Duration> {
    const SHORTEST: f64 = 0.1;
    const LONGEST: f64 = 1e9;
    let time = seconds(text)?;
    let is_in_range = (SHORTEST..=LONGEST).contains(&time.as_secs_f64());
    ensure!(is_in_range, "{text} seconds are out of range, from {SHORTEST} to {LONGEST} are possible");
    Ok(time)
}

/// Permission bits in octal.
pub(crate) fn mode(text: &str) -> Result<u32> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let mode = u32::from_str_radix(digits, 8).with_context(|| format!("`{text}` is no octal number"))?;
    ensure!(mode <= 0o777, "{mode:o} is beyond 777");
    Ok(mode)
}

/// Whether to ask for huge pages.
pub(crate) fn huge_pages(text: &str) -> Result<HugePages> {
    match text {
        "try" => Ok(HugePages::Try),
        "require" => Ok(HugePages::Require),
        _ => bail!("`{text}` is neither `try` nor `require`"),
    }
}

/// Where the memory of a region lies.
pub(crate) fn placement(text: &str) -> Result<Placement> {
    match text {
        "local" => Ok(Placement::first_touch()),
        "interleave" => Ok(Placement::interleave()),
        number => node(number).map(Placement::on).with_context(|| {
            format!("`{text}` is neither `local`, `interleave` nor the number of a NUMA node")
        }),
    }
}

/// The number of a NUMA node.
pub(crate) fn node(text: &str) -> Result<u32> {
    text.parse().with_context(|| format!("`{text}` is no number of a NUMA node"))
}

/// A group by its name or number.
pub(crate) fn group(text: &str) -> Result<u32> {
    if let Ok(gid) = text.parse() {
        return Ok(gid);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => bail!("there is no group `{text}`"),
        Err(error) => Err(error).with_context(|| format!("cannot look up group `{text}`")),
    }
}

/// Which CPUs the parties of `run` are pinned to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pin {
    /// One CPU each when there are enough of them, none otherwise.
    Auto,
    /// No pinning.
    None,
    /// Dealt out in turn.
    Cpus(Vec<usize>),
}

impl FromStr for Pin {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Pin> {
        match text {
            "auto" => Ok(Pin::Auto),
            "none" => Ok(Pin::None),
            list => Ok(Pin::Cpus(cpus(list)?)),
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pin::Auto => f.write_str("auto"),
            Pin::None => f.write_str("none"),
            Pin::Cpus(cpus) => {
                let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
                f.write_str(&cpus.join(","))
            }
        }
    }
}

/// CPU numbers as the kernel writes them: `0,2,4-7`.
fn cpus(list: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.parse::<u16>()
                .map(usize::from)
                .with_context(|| format!("`{list}` is neither `auto`, `none` nor CPU numbers like 0,2,4-7"))
        };
        let (first, last) = (number(first)?, number(last)?);
        ensure!(first <= last, "`{part}` counts backwards");
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_units() {
        assert_eq!(size("4096").unwrap(), 4096);
        assert_eq!(size("64K").unwrap(), 65_536);
        assert_eq!(size("1GiB").unwrap(), 1 << 30);
        assert!(size("M").is_err());
        assert!(size("12x").is_err());
        assert!(size("-1").is_err());
        assert!(size("17179869184G").is_err());
    }

    #[test]
    fn one_is_kept_at_least() {
        assert_eq!(some("1").unwrap(), 1);
        assert!(["0", "-1", "x", ""].iter().all(|text| some(text).is_err()));
        assert!(some("0").unwrap_err().to_string().contains("at least 1"));
    }

    #[test]
    fn times_are_in_seconds() {
        assert_eq!(seconds("0.25").unwrap(), Duration::from_millis(250));
        assert!(["-1", "NaN", "1e300", "soon"].iter().all(|text| seconds(text).is_err()));
    }

    #[test]
    fn spans_take_units() {
        assert_eq!(span("90").unwrap(), Duration::from_secs(90));
        assert_eq!(span("1.5h").unwrap(), Duration::from_secs(5_400));
        assert_eq!(span("7d").unwrap(), Duration::from_secs(7 * 86_400));
        assert!(["", "d", "-1d", "1w", "NaN", "1e300d"].iter().all(|text| span(text).is_err()));
    }

    #[test]
    fn nobody_is_killed_at_once() {
        assert_eq!(patience("0.1").unwrap(), Duration::from_millis(100));
        for text in ["0", "0.09", "1000000001"] {
            let error = patience(text).unwrap_err().to_string();
            assert!([text, "0.1", "1000000000"].iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("660").unwrap(), 0o660);
        assert!(mode("888").is_err());
        assert!(mode("7777").is_err());
    }

    #[test]
    fn pins_are_lists_with_ranges() {
        assert_eq!("0,2,4-6".parse::<Pin>().unwrap(), Pin::Cpus(vec![0, 2, 4, 5, 6]));
        assert_eq!("none".parse::<Pin>().unwrap(), Pin::None);
        assert!("some".parse::<Pin>().is_err());
        assert!("3-1".parse::<Pin>().is_err());
        assert!("".parse::<Pin>().is_err());
    }

    #[test]
    fn groups_go_by_name_or_number() {
        assert_eq!(group("1234").unwrap(), 1234);
        assert_eq!(group("root").unwrap(), 0);
        assert!(group("no such group").is_err());
    }
}
