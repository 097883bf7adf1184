//! The error log of a region: what went wrong, whom it concerned, how often, when first and when last.
//!
//! Every party may record, and everybody who may read the region can read it, also when all who wrote it are dead.
//! It has a fixed size, and an error that comes again only counts.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim_ring::errors::{Found, Report, TEXT_WORDS, TextWords, Times};
use twox_hash::XxHash3_64;

use crate::name::{Name, cut};
use crate::region::Region;
use crate::region::layout::Part;

/// Bytes of what happened.
const TEXT_BYTES: usize = TEXT_WORDS * 8;

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorCode {
    /// Something that only the user knows; see [`Region::record_error`].
    User,
    /// A sequencer took over from one that had not closed the order; the detail is its epoch.
    TakenOver,
    /// A producer queued a ticket that cannot be right; the detail is the count of commands in it.
    BadTicket,
    /// A worker died without leaving, and its gate was dropped; the detail is where it gated.
    WorkerDied,
    /// A worker held the others up; the detail is how many commands it was behind.
    Stalled,
    /// A worker was killed, or was to be, as it had asked for in this case; the detail is how far it was behind.
    Killed,
    /// A worker met something that cannot be; the detail is the index.
    Corrupt,
    /// A worker's thread panicked; the detail is the index of the next event.
    Panicked,
    /// The file of the region lost its name or its end; the detail is its length in bytes.
    File,
    /// Workers differ, and the order was ended for good; the detail is the index of its last command.
    Poisoned,
    /// A journal could not write, or went on without what it could not write, or could not prune; the detail is the index
    /// from which on.
    Journal,
    /// What a later version of this library records, or damage.
    Unknown,
}

impl ErrorCode {
    const ALL: [ErrorCode; 11] = [
        ErrorCode::User,
        ErrorCode::TakenOver,
        ErrorCode::BadTicket,
        ErrorCode::WorkerDied,
        ErrorCode::Stalled,
        ErrorCode::Killed,
        ErrorCode::Corrupt,
        ErrorCode::Panicked,
        ErrorCode::File,
        ErrorCode::Poisoned,
        ErrorCode::Journal,
    ];

    fn number(self) -> u64 {
        Self::ALL.iter().position(|&code| code == self).map_or(0, |at| at as u64 + 1)
    }

    fn of_number(number: u64) -> ErrorCode {
        let at = number.checked_sub(1).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| Self::ALL.get(at)).copied().unwrap_or(ErrorCode::Unknown)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ErrorCode::User => "user",
            ErrorCode::TakenOver => "taken-over",
            ErrorCode::BadTicket => "bad-ticket",
            ErrorCode::WorkerDied => "worker-died",
            ErrorCode::Stalled => "stalled",
            ErrorCode::Killed => "killed",
            ErrorCode::Corrupt => "corrupt",
            ErrorCode::Panicked => "panicked",
            ErrorCode::File => "file",
            ErrorCode::Poisoned => "poisoned",
            ErrorCode::Journal => "journal",
            ErrorCode::Unknown => "unknown",
        })
    }
}

/// An error as the region remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorRecord {
    /// What kind of error.
    pub code: ErrorCode,
    /// Whom it concerns: the name of a producer or worker, or `sequencer`.
    pub who: String,
    /// What happened.
    pub what: String,
    /// How often.
    pub count: u64,
    /// When it came first, by the clock of whoever recorded it.
    pub first: SystemTime,
    /// When it came last.
    pub last: SystemTime,
    /// The process that recorded it last.
    pub pid: u32,
    /// The number that belongs to it, of the last time; see [`ErrorCode`].
    pub detail: u64,
}

impl fmt::Display for ErrorRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.who, self.what, self.detail)
    }
}

/// All that a region's error log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorLog {
    /// The errors, those that came last at the end.
    pub records: Vec<ErrorRecord>,
    /// Errors that came when the log was full.
    pub lost: u64,
    /// Errors whose recorder died while it wrote them down.
    pub unreadable: u64,
}

impl Region {
    /// Reads the error log. Works on a region that nobody serves and with the right to read it.
    #[must_use]
    pub fn errors(&self) -> ErrorLog {
        let slots = self.map().error_log();
        let mut log = ErrorLog { lost: slots.lost(), ..ErrorLog::default() };
        for found in slots.read() {
            match found {
                Found::Empty => {}
                Found::Unreadable => log.unreadable += 1,
                Found::Error(report, times) => log.records.push(readable(&report, &times)),
            }
        }
        log.records.sort_by_key(|record| record.last);
        log
    }

    /// Records an error in the region: whom it concerns, in up to 32 bytes, and what happened, in up to 160; the
    /// rest is cut off. The same again only counts, with `detail` of the last time. Says whether it was recorded:
    /// there is room for 63 different ones, in a region that this process may write.
    ///
    /// ```
    /// use seriatim::{Config, Region};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// for number in [7, 9] {
    ///     assert!(region.record_error("loader", "a file could not be read", number));
    /// }
    /// let errors = region.errors().records;
    /// assert_eq!((errors.len(), errors[0].count, errors[0].detail), (1, 2, 9));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_error(&self, who: &str, what: &str, detail: u64) -> bool {
        self.record(ErrorCode::User, who, what, detail)
    }

    /// Records an error, if the region can be written: nobody fails for not being able to say why.
    pub(crate) fn record(&self, code: ErrorCode, who: &str, what: &str, detail: u64) -> bool {
        // Only who has something to record has this part writable.
        if self.make_writable("an error", &[Part::Errors]).is_err() {
            return false;
        }
        let report = Report {
            code: code.number(),
            pid: std::process::id().into(),
            detail,
            who: Name::cut(who).words(),
            what: text_words(what),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos() as u64);
        self.map().error_log().record(key(&report), &report, now)
    }
}

/// A number that all comings of an error share and no other error has, but by a chance of one in 2^58.
fn key(report: &Report) -> u64 {
    let words = [report.code].into_iter().chain(report.who).chain(report.what);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    XxHash3_64::oneshot(&bytes)
}

fn text_words(text: &str) -> TextWords {
    let mut bytes = [0; TEXT_BYTES];
    let cut = cut(text, TEXT_BYTES);
    bytes[..cut.len()].copy_from_slice(cut.as_bytes());
    std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|i| bytes[word * 8 + i])))
}

/// A text from a region, where anything may stand.
fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).replace(char::is_control, " ")
}

fn readable(report: &Report, times: &Times) -> ErrorRecord {
    let time = |ns| UNIX_EPOCH + Duration::from_nanos(ns);
    ErrorRecord {
        code: ErrorCode::of_number(report.code),
        who: text(&report.who),
        what: text(&report.what),
        count: times.count,
        first: time(times.first),
        last: time(times.last),
        pid: report.pid as u32,
        detail: report.detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn texts_are_cut_between_characters() {
        let region = Region::anonymous(&Config::new()).unwrap();
        let long = "ż".repeat(200);
        assert!(region.record_error(&long, &format!("a{long}"), 1));
        let record = &region.errors().records[0];
        assert_eq!((record.who.len(), record.what.len()), (32, 159));
        assert_eq!(record.code, ErrorCode::User);
        assert!(record.first <= record.last && record.last <= SystemTime::now());
    }

    #[test]
    fn the_log_is_bounded_and_says_what_it_lost() {
        let region = Region::anonymous(&Config::new()).unwrap();
        let recorded = (0..100).filter(|n| region.record_error("x", &format!("error {n}"), 0)).count();
        let log = region.errors();
        assert_eq!((recorded, log.records.len(), log.lost, log.unreadable), (63, 63, 37, 0));
    }

    #[test]
    fn what_a_region_says_is_shown_whatever_it_is() {
        assert_eq!(text(&[u64::from_le_bytes(*b"a\n\xff\0\0\0\0\0")]), "a \u{fffd}");
        assert_eq!(text(&[u64::MAX; 2]).chars().count(), 16);
        assert_eq!(ErrorCode::of_number(u64::MAX), ErrorCode::Unknown);
        assert_eq!(ErrorCode::of_number(0), ErrorCode::Unknown);
    }

    #[test]
    fn a_region_that_is_read_only_can_be_read_and_not_recorded_in() {
        let region = Region::anonymous(&Config::new()).unwrap();
        region.record_error("x", "y", 0);
        let reader = Region::attach_read_only(region.path()).unwrap();
        assert!(!reader.record_error("x", "z", 0));
        assert_eq!(reader.errors().records.len(), 1);
    }
}
