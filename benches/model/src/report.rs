//! What is printed and read.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::count::{Counted, Pace, Role, Shape};
use crate::machine::{Work, typical};
use crate::measure;
use crate::predict::{Expected, Premises};

/// Prints a line. Who no longer reads wants no more of them.
fn say(line: impl Display) {
    if writeln!(std::io::stdout().lock(), "{line}").is_err() {
        std::process::exit(0);
    }
}

fn named(shape: &Shape) -> String {
    format!("{}x{}", shape.producers, shape.workers)
}

// ---- transfers --------------------------------------------------------------------------------------------

/// The columns of [`counted`].
#[cfg(seriatim_trace)]
pub(crate) fn head(csv: bool) {
    if csv {
        return say(Counted::HEAD);
    }
    say("lines that move to one party for a command: waited for + in a stream + stored");
    let columns: String = crate::count::ROWS.iter().map(|row| format!("  {:^16}", row.2)).collect();
    say(format_args!("{:>9} {:>5} {:>7} {:>4}{columns}", "PxW", "batch", "payload", "pace"));
}

/// A line of the table.
#[cfg(seriatim_trace)]
pub(crate) fn counted(counted: &Counted, csv: bool) {
    if csv {
        return say(counted.line());
    }
    let cell = |row: &crate::count::Tally| {
        let [waits, reads, writes] = [row.waits, row.reads, row.writes].map(short);
        format!("  {:^16}", format!("{waits}+{reads}+{writes}"))
    };
    let cells: String = counted.rows.iter().map(cell).collect();
    let Shape { batch, payload, pace, .. } = counted.shape;
    say(format_args!("{:>9} {batch:>5} {payload:>7} {pace:>4}{cells}", named(&counted.shape)));
}

/// A number in four characters or so.
#[cfg(seriatim_trace)]
fn short(number: f64) -> String {
    match number {
        0.0 => "0".into(),
        _ if number < 9.995 => format!("{number:.3}"),
        _ => format!("{number:.0}"),
    }
}

/// What the lines belong to.
#[cfg(seriatim_trace)]
pub(crate) fn detail(detail: &crate::drive::Detail) {
    for (role, area, tally) in detail.iter().filter(|part| part.2.lines() > 0.0) {
        let (role, area) = (format!("{role:?}"), format!("{area:?}"));
        let [waits, reads, writes, copies] =
            [tally.waits, tally.reads, tally.writes, tally.copies].map(short);
        let lines = format!("{waits:>7} + {reads:>7} + {writes:>7}");
        say(format_args!("    {role:<10} {area:<10} {lines}, others lose {copies} more copies"));
    }
}

/// Reads what `count --csv` wrote.
pub(crate) fn read(file: &Path) -> Result<Vec<Counted>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file:?}"))?;
    let lines = text.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    lines.map(str::parse).collect::<Result<_>>().with_context(|| format!("{file:?}"))
}

// ---- throughput -------------------------------------------------------------------------------------------

/// Batch and payload of the commands that throughput is told of.
const COMMANDS: [(usize, usize); 5] = [(1, 32), (32, 32), (32, 256), (8, 4096), (1, 65536)];
/// Groups that relays are tried for.
const GROUPS: [usize; 2] = [4, 16];

/// What all that follows rests on.
pub(crate) fn premises(premises: &Premises) {
    let Premises { machine, copy_ns, far, socket, bandwidth, link, .. } = premises;
    let [transfer, read, write] = [machine.transfer_ns, machine.read_ns, machine.write_ns];
    say(format_args!(
        "a line that is waited for: {transfer:.0} ns, between sockets {far} times as long; one more of a stream: \
         {read:.1} ns read, {write:.1} ns written;\neach further copy: {copy_ns:.1} ns; a socket: {socket} cores, \
         {bandwidth:.0} GB/s, {link:.0} GB/s from the others"
    ));
}

/// The work alone, for each [`Pace`].
struct Works([Work; 2]);

impl Works {
    fn measure(batch: usize, payload: usize) -> Result<Works> {
        let [hand, bulk] = Pace::ALL.map(|pace| Work::measure(batch, payload, pace));
        Ok(Works([hand?, bulk?]))
    }

    /// Expected for each [`Pace`], if the table has the shape in both.
    fn expected(&self, premises: &Premises, table: &[Counted], shape: Shape) -> Option<[Expected; 2]> {
        let [hand, bulk] = Pace::ALL.map(|pace| find(table, Shape { pace, ..shape }));
        let Works([by_hand, in_bulk]) = self;
        Some([premises.flat(hand?, by_hand), premises.flat(bulk?, in_bulk)])
    }
}

fn find(table: &[Counted], shape: Shape) -> Option<&Counted> {
    table.iter().find(|counted| counted.shape == shape)
}

/// Expected throughput for all shapes of the table, with a core for each party.
pub(crate) fn scale(premises: &Premises, table: &[Counted]) -> Result<()> {
    for (batch, payload) in COMMANDS {
        let works = Works::measure(batch, payload)?;
        let Works([hand, bulk]) = &works;
        let [of_bulk, of_hand] =
            [bulk, hand].map(|w| format!("{:.1} + {:.1} + {:.1} ns", w.submit, w.sequence, w.poll));
        say(format_args!(
            "\n{payload} B, {batch} a ticket. Work of producer, sequencer, worker: {of_bulk}; hand to hand {of_hand}\n"
        ));
        say(format_args!(
            "{:>9} {:>10} {:<9} {:>10} {:<9} {:>8} {:>8} {:>8}  with so many relays",
            "PxW", "by hand", "limit", "in bulk", "limit", "producer", "sequenc.", "worker"
        ));
        let shapes = table.iter().map(|counted| counted.shape);
        for shape in shapes.filter(|s| (s.batch, s.payload, s.pace) == (batch, payload, Pace::Bulk)) {
            if let Some(line) = scale_line(premises, table, shape, &works) {
                say(line);
            }
        }
    }
    Ok(())
}

/// What to expect of a shape; nanoseconds that each party's transfers take in bulk.
fn scale_line(premises: &Premises, table: &[Counted], shape: Shape, works: &Works) -> Option<String> {
    let [hand, bulk] = works.expected(premises, table, shape)?;
    let counted = find(table, shape)?;
    let all = premises.among(shape.producers + shape.workers + 1);
    let [p, s, w] = [Role::Producer, Role::Sequencer, Role::Worker].map(|role| all.moving_of(counted, role));
    let relays = GROUPS.iter().filter_map(|&groups| {
        let Expected { rate, limit } = relayed(premises, table, shape, groups, &works.0[1])?;
        Some(format!("  {groups}: {} {limit}", a_second(rate)))
    });
    Some(format!(
        "{:>9} {:>10} {:<9} {:>10} {:<9} {p:>8.1} {s:>8.1} {w:>8.1}{}",
        named(&shape),
        a_second(hand.rate),
        hand.limit,
        a_second(bulk.rate),
        bulk.limit,
        relays.collect::<String>()
    ))
}

/// Expected with a relay for each group, if the table has what it takes.
fn relayed(
    premises: &Premises,
    table: &[Counted],
    shape: Shape,
    groups: usize,
    work: &Work,
) -> Option<Expected> {
    let top = find(table, Shape { workers: groups, ..shape })?;
    let group = find(table, Shape { producers: 1, workers: shape.workers / groups, ..shape })?;
    Some(premises.relayed(top, group, work))
}

fn a_second(rate: f64) -> String {
    if rate >= 1e6 { format!("{:.2} M/s", rate / 1e6) } else { format!("{:.1} k/s", rate / 1e3) }
}

/// Shapes that are run here: producers and workers.
const SHAPES: [(usize, usize); 4] = [(1, 1), (1, 2), (2, 1), (2, 4)];
/// Batch and payload of their commands.
const MEASURED: [(usize, usize); 3] = [(32, 32), (8, 4096), (1, 65536)];

/// Predicted and measured, here.
pub(crate) fn compare(premises: &Premises, table: &[Counted], rounds: usize, time: Duration) -> Result<()> {
    let cpus = seriatim::affinity::allowed().len();
    let here = Premises { cores: Some(cpus), ..*premises };
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    say(format_args!(
        "\npredicted for the {cpus} CPUs here, and measured ({rounds} rounds; load of the minute before: {load})\n"
    ));
    say(format_args!(
        "{:>9} {:>7} {:>10} {:>10} {:<9} {:>10} {:>10} {:>10} {:>9}",
        "PxW", "payload", "by hand", "in bulk", "limit", "measured", "least", "most", "bulk/that"
    ));
    for (batch, payload) in MEASURED {
        let works = Works::measure(batch, payload)?;
        for (producers, workers) in SHAPES {
            let shape = Shape { producers, workers, batch, payload, pace: Pace::Bulk };
            let Some([hand, bulk]) = works.expected(&here, table, shape) else { continue };
            let rates: Result<Vec<f64>> = (0..rounds).map(|_| measure::rate(&shape, time)).collect();
            let rates = rates?;
            let (least, most) = rates.iter().fold((f64::MAX, 0.0_f64), |(l, m), &r| (l.min(r), m.max(r)));
            let measured = typical(rates);
            let [least, most, found] = [least, most, measured].map(a_second);
            let (hand, in_bulk) = (a_second(hand.rate), a_second(bulk.rate));
            let (name, limit, ratio) = (named(&shape), bulk.limit, bulk.rate / measured);
            say(format_args!(
                "{name:>9} {payload:>7} {hand:>10} {in_bulk:>10} {limit:<9} {found:>10} {least:>10} {most:>10} {ratio:>9.2}"
            ));
        }
    }
    Ok(())
}
