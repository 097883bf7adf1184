//! `seriatim errors`: what went wrong in a region, as those who met it wrote it down.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::Serialize;
use seriatim::{ErrorLog, ErrorRecord};

use crate::Outcome;
use crate::open;
use crate::output::{self, Align, Report, Table};

const EXAMPLES: &str = "\
Examples:
  seriatim errors /dev/shm/orders
  seriatim errors /dev/shm/orders --json | jq '.errors[] | select(.code == \"panicked\")'

WHO is whom it concerns, and BY the process that wrote it down: of a stall that is the sequencer's. AGO is since the last
time, by the clock of whoever wrote it down; none if that was ahead of this one. N is a number that belongs to the error,
of the last time: an index, an epoch, how far a worker was behind.

Exit code: 0 whatever is in it, 2 when it cannot be read.";

/// Show what went wrong in a region: whom it concerned, how often, when.
///
/// Only reads, and works whether or not anybody serves the region or is alive.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let region = open::to_look(&self.path)?;
        let report = ErrorsReport::new(self.path.display().to_string(), &region.errors());
        region.check()?;
        output::print(&report, self.json)?;
        Ok(Outcome::Done)
    }
}

#[derive(Debug, Serialize)]
struct ErrorsReport {
    path: String,
    /// Those that came last at the end.
    errors: Vec<ErrorRow>,
    /// Errors that came when there was no room for more.
    lost: u64,
    /// Errors whose writer died before they were whole.
    unreadable: u64,
}

#[derive(Debug, Serialize)]
struct ErrorRow {
    code: String,
    who: String,
    what: String,
    count: u64,
    /// Seconds since 1970.
    first: f64,
    last: f64,
    /// Seconds since the last time; none if that is still to come by our clock, which says nothing then.
    ago: Option<f64>,
    pid: u32,
    detail: u64,
}

impl ErrorsReport {
    fn new(path: String, log: &ErrorLog) -> ErrorsReport {
        let errors = log.records.iter().map(ErrorRow::from).collect();
        ErrorsReport { path, errors, lost: log.lost, unreadable: log.unreadable }
    }
}

impl From<&ErrorRecord> for ErrorRow {
    fn from(record: &ErrorRecord) -> ErrorRow {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0.0, |age| age.as_secs_f64());
        ErrorRow {
            code: record.code.to_string(),
            who: record.who.clone(),
            what: record.what.clone(),
            count: record.count,
            first: seconds(record.first),
            last: seconds(record.last),
            ago: record.last.elapsed().ok().map(|age| age.as_secs_f64()),
            pid: record.pid,
            detail: record.detail,
        }
    }
}

impl Report for ErrorsReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.errors.is_empty() {
            writeln!(out, "{}: no errors", self.path)?;
        } else {
            self.table().write(out)?;
        }
        if self.lost > 0 {
            writeln!(out, "{} more had no room", self.lost)?;
        }
        if self.unreadable > 0 {
            writeln!(out, "{} unreadable: whoever wrote them died before they were whole", self.unreadable)?;
        }
        Ok(())
    }
}

impl ErrorsReport {
    fn table(&self) -> Table<7> {
        let mut table = Table::new([
            ("ERROR", Align::Left),
            ("WHO", Align::Left),
            ("COUNT", Align::Right),
            ("AGO", Align::Right),
            ("BY", Align::Right),
            ("N", Align::Right),
            ("WHAT", Align::Left),
        ]);
        for row in &self.errors {
            table.row([
                row.code.clone(),
                row.who.clone(),
                row.count.to_string(),
                row.ago.map_or("-".into(), |ago| format!("{ago:.0} s")),
                row.pid.to_string(),
                row.detail.to_string(),
                row.what.clone(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use seriatim::{Config, Region};

    use super::*;

    #[test]
    fn an_error_of_a_time_to_come_has_no_age() {
        let region = Region::anonymous(&Config::new()).unwrap();
        region.record_error("who", "what", 7);
        let mut log = region.errors();
        let hour = Duration::from_secs(3600);
        for (last, has_age) in [(SystemTime::now() - hour, true), (SystemTime::now() + hour, false)] {
            log.records[0].last = last;
            let report = ErrorsReport::new("region".into(), &log);
            let json = serde_json::to_value(&report).unwrap();
            assert_eq!(json["errors"][0]["ago"].as_f64().map(|ago| ago >= 3600.0), has_age.then_some(true));
            let mut text = Vec::new();
            report.text(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            let row = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(row.starts_with("user who 1 ") && row.contains("1 - ") != has_age, "{text}");
        }
    }
}
