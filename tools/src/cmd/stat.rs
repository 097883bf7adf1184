//! `seriatim stat`: who is attached to a region, and where each of them is.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use seriatim::journal::{JournalStatus, SyncPolicy};
use seriatim::{
    Agreement, Behind, Diverged, ErrorCode, HeldBy, OnDivergence, PartyStatus, ProducerStatus, Region,
    Reported, Snapshot, WorkerPolicy, WorkerStatus,
};

use crate::Outcome;
use crate::open;
use crate::output::{self, Align, PartyReport, Report, Table, many};
use crate::signal::Stop;

const EXAMPLES: &str = "\
Examples:
  seriatim stat /dev/shm/orders
  seriatim stat /dev/shm/orders --watch
  seriatim stat /dev/shm/orders --json | jq .gate

Rates need two looks, so only --watch has them. A party is `alive` as long as the kernel keeps its lock, be it
running or stopped, and `suspect` if it lives, has something to do and has not moved for a second. STUCK is for how
long a worker has had something to do and has not moved, as the sequencer saw it; FULL for how long a producer has
found no room. CPU is where a party's process (its first thread) ran last. `held up by` names who keeps others waiting,
if anybody waits; `gate` and GATES name the one that is farthest behind, for which the others' room waits, whether or not
anybody does. `reports` compares what workers report of their state, if any of them does: the highest index that all
of these have reported in the same way, or the lowest that is to be seen at which they differ, after the one before it at
which they did not. `when workers differ` is what the region was made for: `poisoned` says that all were stopped, at which
index, and why; `awaited` names those whose reports others wait for. `takeovers` counts who began to serve after the first
one, in this region and in those from whose journal it was restored; who was there before that has no PID.";

/// Show the order's position, and who is attached and where.
///
/// Only reads, and needs no more than the right to do so; works whether or not anybody serves the region.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The region
    path: PathBuf,
    /// Look again every second, until SIGTERM or SIGINT
    #[arg(long)]
    watch: bool,
    /// Print JSON, one line for each look
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let region = open::to_look(&self.path)?;
        let mut last = StatReport::new(&self.path.display().to_string(), &region);
        region.check()?;
        output::print(&last, self.json)?;
        if !self.watch {
            return Ok(Outcome::Done);
        }
        let stop = Stop::install()?;
        let mut looked = Instant::now();
        while !stop.asked_within(Duration::from_secs(1)) {
            let mut report = StatReport::new(&last.path, &region);
            region.check()?;
            report.rate_since(&last, looked.elapsed());
            looked = Instant::now();
            if output::on_terminal() && !self.json {
                print!("\x1b[H\x1b[2J"); // Home, and clear below: the new look replaces the old one.
            } else if !self.json {
                println!();
            }
            output::print(&report, self.json)?;
            last = report;
        }
        Ok(Outcome::Done)
    }
}

#[derive(Debug, Serialize)]
struct StatReport {
    path: String,
    state: String,
    epoch: u64,
    /// How often a sequencer followed another one.
    takeovers: u64,
    next: u64,
    /// Indexes a second, when there was an earlier look.
    rate: Option<f64>,
    runs: u64,
    /// What digests cover: `payload`, `header` or `off`.
    digest_of: String,
    anchor: AnchorReport,
    tickets_waiting: u64,
    /// The worker that has come least far: nothing that it has not passed is free for anybody.
    gate: Option<String>,
    /// Who or what holds others up, if anything does.
    held_by: Option<Culprit>,
    /// Parties that live; of these, who is suspect; parties that are gone and whose place is not taken yet.
    living: usize,
    suspect: usize,
    gone: usize,
    /// Workers that died without leaving, so far.
    workers_died: u64,
    /// Commands that were refused because they had been submitted before.
    duplicates: u64,
    /// `here`, `unlinked` or `replaced`.
    file: String,
    /// Different errors in the region's error log; `seriatim errors` shows them.
    errors: usize,
    last_error: Option<String>,
    sequencer: Option<PartyReport>,
    /// What the workers' reports come to, if any of them reports.
    agreement: Option<AgreementReport>,
    /// What becomes of the region when they differ: `report`, `poison` or `lockstep`.
    on_divergence: String,
    /// That it was ended for good, for they do.
    poison: Option<PoisonReport>,
    /// Workers whose reports others wait for.
    awaited: Vec<AwaitedRow>,
    /// Why the parties of its process make turns for it, if they do.
    helped: Option<HelpedReport>,
    /// How far its order is on disk, if a journal gates it.
    journal: Option<JournalReport>,
    producers: Vec<ProducerRow>,
    workers: Vec<WorkerRow>,
}

/// How far the order is on disk.
#[derive(Debug, Serialize)]
struct JournalReport {
    name: String,
    slot: u16,
    pid: u32,
    /// If not, its gate has stayed: the order waits for the next journal.
    alive: bool,
    written: u64,
    /// All before this stays, whatever happens; none if it does not sync.
    durable: Option<u64>,
    /// `group`, `off`, or each so many seconds.
    sync: String,
    syncs: u64,
    /// How long it has not been able to write, in seconds.
    failing_s: Option<f64>,
}

impl From<JournalStatus> for JournalReport {
    fn from(journal: JournalStatus) -> JournalReport {
        JournalReport {
            name: journal.name.to_string(),
            slot: journal.slot,
            pid: journal.pid,
            alive: journal.alive,
            written: journal.written.get(),
            durable: (journal.sync != SyncPolicy::Off).then(|| journal.durable.get()),
            sync: match journal.sync {
                SyncPolicy::Every(time) => format!("every {} s", time.as_secs_f64()),
                SyncPolicy::Off => "off".into(),
                _ => "group".into(),
            },
            syncs: journal.syncs,
            failing_s: journal.failing_for.map(|time| time.as_secs_f64()),
        }
    }
}

/// A process, if one of this region's is known.
fn pid_of(pid: u32) -> String {
    if pid == 0 { "-".into() } else { pid.to_string() }
}

impl JournalReport {
    fn text(&self) -> String {
        let JournalReport { name, pid, written, sync, .. } = self;
        let life = if self.alive { "alive" } else { "gone, and the order waits for the next one" };
        let durable = self.durable.map_or("nothing".into(), |durable| format!("what is before {durable}"));
        let failing =
            self.failing_s.map_or(String::new(), |time| format!(", FAILING for {time:.1} s (see errors)"));
        let pid = pid_of(*pid);
        format!("{name} pid {pid} {life}{failing}, written to {written}, sync {sync}, durable is {durable}")
    }
}

/// That the sequencer is helped.
#[derive(Debug, Serialize)]
struct HelpedReport {
    /// CPUs that its thread may run on, and parties that want them for themselves.
    cpus: u32,
    parties: u32,
    text: String,
}

/// What the workers' reports come to.
#[derive(Debug, Serialize)]
struct AgreementReport {
    /// The highest index that all who report have reported in the same way, before any difference.
    agreed: Option<u64>,
    diverged: Option<DivergedReport>,
    /// Workers that gate and report, and those that do not.
    reporting: Vec<String>,
    silent: Vec<String>,
    text: String,
}

/// That the order was ended because workers differ.
#[derive(Debug, Serialize)]
struct PoisonReport {
    /// Its last index.
    at: u64,
    diverged: DivergedReport,
    text: String,
}

/// A worker whose report others wait for.
#[derive(Debug, Serialize)]
struct AwaitedRow {
    name: String,
    slot: u16,
    pid: u32,
    /// It has reported all before this, or asked for it.
    next: u64,
    text: String,
}

/// Where they differ.
#[derive(Debug, Serialize)]
struct DivergedReport {
    index: u64,
    /// The last index before it at which these did not, if it can be seen.
    after: Option<u64>,
    /// `digest` or `fingerprint`.
    what: String,
    reports: Vec<ReportedRow>,
}

#[derive(Debug, Serialize)]
struct ReportedRow {
    name: String,
    slot: u16,
    number: u64,
    pid: u32,
    digest: String,
    fingerprint: String,
}

/// Who holds others up.
#[derive(Debug, Serialize)]
struct Culprit {
    /// `worker`, `sequencer`, `no worker` or `no sequencer`.
    what: &'static str,
    name: Option<String>,
    slot: Option<u16>,
    pid: Option<u32>,
    /// The CPU on which it ran last.
    cpu: Option<u64>,
    /// Where it is, and how many commands that is behind.
    next: Option<u64>,
    lag: Option<u64>,
    /// How long it has not moved, in seconds.
    stuck_s: Option<f64>,
    text: String,
}

#[derive(Debug, Serialize)]
struct AnchorReport {
    index: u64,
    /// None if it moved too fast to be read whole.
    digest: Option<String>,
}

#[derive(Debug, Serialize)]
struct ProducerRow {
    #[serde(flatten)]
    party: PartyReport,
    slot: u16,
    number: u64,
    next: u64,
    released: u64,
    fenced: bool,
    /// How long it has found no room, in seconds, if it finds none.
    full_s: Option<f64>,
    /// Commands that it had submitted before, and that were refused.
    duplicates: u64,
    /// Payloads beside its lane that are outstanding, and the bytes that they take.
    spills: u64,
    spilled_bytes: u64,
    rate: Option<f64>,
}

#[derive(Debug, Serialize)]
struct WorkerRow {
    #[serde(flatten)]
    party: PartyReport,
    slot: u16,
    number: u64,
    /// None if it has none.
    rank: Option<u16>,
    next: u64,
    lag: u64,
    digest: Option<String>,
    /// How long it has not moved although it has something to do, in seconds.
    stuck_s: f64,
    /// `gate`, or when it is to be killed.
    policy: String,
    gating: bool,
    rate: Option<f64>,
}

impl StatReport {
    fn new(path: &str, region: &Region) -> StatReport {
        let snapshot = &region.snapshot();
        let slowest = snapshot.workers.iter().find(|worker| worker.gating);
        StatReport {
            path: path.to_string(),
            state: snapshot.state.to_string(),
            epoch: snapshot.epoch,
            takeovers: snapshot.epoch.saturating_sub(1),
            next: snapshot.next.get(),
            rate: None,
            runs: snapshot.runs,
            digest_of: region.digest_of().to_string(),
            anchor: AnchorReport {
                index: snapshot.anchor.get(),
                digest: snapshot.anchor_digest.map(|digest| digest.to_string()),
            },
            tickets_waiting: snapshot.tickets_waiting,
            gate: slowest.map(|worker| worker.party.name.clone()),
            held_by: snapshot.held_by.map(|by| Culprit::new(&by, snapshot)),
            living: parties(snapshot).filter(|party| party.alive).count(),
            suspect: parties(snapshot).filter(|party| party.suspect).count(),
            gone: parties(snapshot).filter(|party| !party.alive).count(),
            workers_died: deaths(snapshot),
            duplicates: snapshot.producers.iter().map(|producer| producer.duplicates).sum(),
            file: snapshot.file.to_string(),
            errors: snapshot.errors.records.len(),
            last_error: snapshot.errors.records.last().map(ToString::to_string),
            sequencer: snapshot.sequencer.as_ref().map(PartyReport::from),
            agreement: AgreementReport::new(&snapshot.agreement),
            on_divergence: region.on_divergence().to_string(),
            poison: snapshot.poison.as_ref().map(|poison| PoisonReport {
                at: poison.at.get(),
                diverged: DivergedReport::from(&poison.diverged),
                text: poison.to_string(),
            }),
            awaited: snapshot.awaited.iter().map(AwaitedRow::from).collect(),
            helped: snapshot.helped.map(|load| HelpedReport {
                cpus: load.cpus,
                parties: load.parties,
                text: format!("the workers of its process ({load})"),
            }),
            journal: region.journal().map(JournalReport::from),
            producers: snapshot.producers.iter().map(ProducerRow::from).collect(),
            workers: snapshot.workers.iter().map(WorkerRow::from).collect(),
        }
    }

    /// Fills in the rates, from an earlier look at the same parties.
    fn rate_since(&mut self, last: &StatReport, time: Duration) {
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / time.as_secs_f64();
        self.rate = Some(rate(self.next, last.next));
        for row in &mut self.producers {
            let then = last.producers.iter().find(|then| then.number == row.number);
            row.rate = then.map(|then| rate(row.next, then.next));
        }
        for row in &mut self.workers {
            let then = last.workers.iter().find(|then| then.number == row.number);
            row.rate = then.map(|then| rate(row.next, then.next));
        }
    }
}

fn parties(snapshot: &Snapshot) -> impl Iterator<Item = &PartyStatus> {
    let producers = snapshot.producers.iter().map(|producer| &producer.party);
    snapshot.sequencer.iter().chain(producers).chain(snapshot.workers.iter().map(|worker| &worker.party))
}

fn deaths(snapshot: &Snapshot) -> u64 {
    let deaths = snapshot.errors.records.iter().filter(|record| record.code == ErrorCode::WorkerDied);
    deaths.map(|record| record.count).sum()
}

impl AgreementReport {
    fn new(found: &Agreement) -> Option<AgreementReport> {
        let reporting: Vec<_> = found.reporting().map(|worker| worker.name.to_string()).collect();
        (!reporting.is_empty()).then(|| AgreementReport {
            agreed: found.agreed.map(|seq| seq.get()),
            diverged: found.divergence.as_ref().map(DivergedReport::from),
            reporting,
            silent: found.silent().map(|worker| worker.name.to_string()).collect(),
            text: found.to_string(),
        })
    }
}

impl From<&Behind> for AwaitedRow {
    fn from(behind: &Behind) -> AwaitedRow {
        AwaitedRow {
            name: behind.name.to_string(),
            slot: behind.slot,
            pid: behind.pid,
            next: behind.next.get(),
            text: behind.to_string(),
        }
    }
}

impl From<&Diverged> for DivergedReport {
    fn from(found: &Diverged) -> DivergedReport {
        DivergedReport {
            index: found.seq.get(),
            after: found.after.map(|seq| seq.get()),
            what: found.what.to_string(),
            reports: found.reports.iter().map(ReportedRow::from).collect(),
        }
    }
}

impl From<&Reported> for ReportedRow {
    fn from(said: &Reported) -> ReportedRow {
        ReportedRow {
            name: said.name.to_string(),
            slot: said.slot,
            number: said.number,
            pid: said.pid,
            digest: said.digest.to_string(),
            // As the digest: a number of 64 bits is more than some programs that read JSON can hold.
            fingerprint: format!("{:016x}", said.fingerprint),
        }
    }
}

impl Culprit {
    fn new(by: &HeldBy, snapshot: &Snapshot) -> Culprit {
        let mut culprit = Culprit {
            what: "no worker",
            name: None,
            slot: None,
            pid: None,
            cpu: None,
            next: None,
            lag: None,
            stuck_s: None,
            text: by.to_string(),
        };
        match by {
            HeldBy::Worker { slot, name, pid, lag } => {
                culprit.what = "worker";
                (culprit.name, culprit.slot) = (Some(name.to_string()), Some(*slot));
                (culprit.pid, culprit.lag) = (Some(*pid), Some(*lag));
                if let Some(status) = snapshot.workers.iter().find(|worker| worker.slot == *slot) {
                    culprit.cpu = status.party.cpu;
                    culprit.next = Some(status.next.get());
                    culprit.stuck_s = Some(status.stuck_for.as_secs_f64());
                }
            }
            HeldBy::Sequencer { pid } => {
                (culprit.what, culprit.pid) = ("sequencer", Some(*pid));
                culprit.cpu = snapshot.sequencer.as_ref().and_then(|party| party.cpu);
            }
            HeldBy::NoSequencer => culprit.what = "no sequencer",
            _ => {}
        }
        if let Some(cpu) = culprit.cpu {
            culprit.text += &format!(", ran last on CPU {cpu}");
        }
        culprit
    }
}

impl From<&ProducerStatus> for ProducerRow {
    fn from(status: &ProducerStatus) -> ProducerRow {
        ProducerRow {
            party: PartyReport::from(&status.party),
            slot: status.slot,
            number: status.number,
            next: status.next,
            released: status.released,
            fenced: status.fenced,
            full_s: status.full_for.map(|time| time.as_secs_f64()),
            duplicates: status.duplicates,
            spills: status.spilled.count,
            spilled_bytes: status.spilled.bytes,
            rate: None,
        }
    }
}

impl From<&WorkerStatus> for WorkerRow {
    fn from(status: &WorkerStatus) -> WorkerRow {
        WorkerRow {
            party: PartyReport::from(&status.party),
            slot: status.slot,
            number: status.number,
            rank: status.rank,
            next: status.next.get(),
            lag: status.lag,
            digest: status.digest.map(|digest| digest.to_string()),
            stuck_s: status.stuck_for.as_secs_f64(),
            policy: policy(status.policy),
            gating: status.gating,
            rate: None,
        }
    }
}

impl Report for StatReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let sequencer = match &self.sequencer {
            Some(party) => format!("sequencer pid {} {}", party.pid, party.life()),
            None => "no sequencer yet".into(),
        };
        let (epoch, takeovers) = (self.epoch, many(self.takeovers, "takeover"));
        writeln!(out, "{}: {}, epoch {epoch}, {takeovers}, {sequencer}", self.path, self.state)?;
        if let Some(helped) = &self.helped {
            writeln!(out, "the sequencer is helped by {}", helped.text)?;
        }
        let StatReport { living, suspect, gone, workers_died, duplicates, .. } = self;
        writeln!(out, "parties: {living} alive, {suspect} of them suspect, {gone} gone")?;
        let (died, refused) = (many(*workers_died, "worker"), many(*duplicates, "duplicate"));
        writeln!(out, "so far: {died} died, {refused} refused")?;
        let rate = self.rate.map_or(String::new(), |rate| format!(" ({rate:.0}/s)"));
        let (runs, waiting) = (many(self.runs, "run"), many(self.tickets_waiting, "ticket"));
        writeln!(out, "order: next {}{rate}, {runs}, {waiting} waiting", self.next)?;
        writeln!(out, "anchor: {} digest {}", self.anchor.index, digest(self.anchor.digest.as_ref()))?;
        writeln!(out, "digest of: {}", self.digest_of)?;
        writeln!(out, "gate: {}", self.gate.as_deref().unwrap_or("no worker"))?;
        if let Some(journal) = &self.journal {
            writeln!(out, "journal: {}", journal.text())?;
        }
        if let Some(agreement) = &self.agreement {
            writeln!(out, "reports: {}", agreement.text)?;
        }
        if self.on_divergence != OnDivergence::Report.to_string() {
            writeln!(out, "when workers differ: {}", self.on_divergence)?;
        }
        if let Some(poison) = &self.poison {
            writeln!(out, "{}", poison.text)?;
        }
        if !self.awaited.is_empty() {
            let awaited: Vec<_> = self.awaited.iter().map(|row| row.text.as_str()).collect();
            writeln!(out, "awaited, for their reports: {}", awaited.join(", "))?;
        }
        let sum = |of: fn(&ProducerRow) -> u64| self.producers.iter().map(of).sum::<u64>();
        let (spills, bytes) = (sum(|row| row.spills), sum(|row| row.spilled_bytes));
        if spills > 0 {
            writeln!(out, "beside the lanes: {}, {bytes} bytes", many(spills, "payload"))?;
        }
        let locked = self.locked_by();
        if !locked.is_empty() {
            writeln!(out, "locked in memory by: {}", locked.join(", "))?;
        }
        if let Some(by) = &self.held_by {
            match by.stuck_s {
                Some(stuck_s) => writeln!(out, "held up by: {}, has not moved for {stuck_s:.1} s", by.text)?,
                None => writeln!(out, "held up by: {}", by.text)?,
            }
        }
        if self.file != "here" {
            writeln!(out, "file: {}, who comes does not find this region", self.file)?;
        }
        if let Some(last) = &self.last_error {
            writeln!(out, "errors: {}, the last: {last}", self.errors)?;
        }
        if !self.producers.is_empty() {
            writeln!(out)?;
            self.producer_table().write(out)?;
        }
        if !self.workers.is_empty() {
            writeln!(out)?;
            self.worker_table().write(out)?;
        }
        Ok(())
    }
}

impl StatReport {
    /// Who has it locked in memory.
    fn locked_by(&self) -> Vec<&str> {
        let sequencer = self.sequencer.iter().map(|party| ("sequencer", party));
        let producers = self.producers.iter().map(|row| (row.party.name.as_str(), &row.party));
        let workers = self.workers.iter().map(|row| (row.party.name.as_str(), &row.party));
        let parties = sequencer.chain(producers).chain(workers);
        parties.filter(|(_, party)| party.locked == Some(true)).map(|(name, _)| name).collect()
    }

    fn producer_table(&self) -> Table<9> {
        let mut table = Table::new([
            ("PRODUCER", Align::Left),
            ("NUMBER", Align::Right),
            ("PID", Align::Right),
            ("CPU", Align::Right),
            ("LIFE", Align::Left),
            ("NEXT", Align::Right),
            ("RELEASED", Align::Right),
            ("RATE", Align::Right),
            ("FULL", Align::Right),
        ]);
        for row in &self.producers {
            table.row([
                row.party.name.clone(),
                row.number.to_string(),
                pid_of(row.party.pid),
                row.party.cpu(),
                if row.fenced { "fenced" } else { row.party.life() }.to_string(),
                row.next.to_string(),
                row.released.to_string(),
                rate(row.rate),
                row.full_s.map_or("-".into(), |time| format!("{time:.1} s")),
            ]);
        }
        table
    }

    fn worker_table(&self) -> Table<12> {
        let mut table = Table::new([
            ("WORKER", Align::Left),
            ("NUMBER", Align::Right),
            ("RANK", Align::Right),
            ("PID", Align::Right),
            ("CPU", Align::Right),
            ("LIFE", Align::Left),
            ("NEXT", Align::Right),
            ("LAG", Align::Right),
            ("RATE", Align::Right),
            ("STUCK", Align::Right),
            ("DIGEST", Align::Left),
            ("GATES", Align::Left),
        ]);
        for row in &self.workers {
            table.row([
                row.party.name.clone(),
                row.number.to_string(),
                row.rank.map_or("-".into(), |rank| rank.to_string()),
                pid_of(row.party.pid),
                row.party.cpu(),
                row.party.life().to_string(),
                row.next.to_string(),
                row.lag.to_string(),
                rate(row.rate),
                if row.stuck_s > 0.0 { format!("{:.1} s", row.stuck_s) } else { "-".into() },
                digest(row.digest.as_ref()),
                if row.gating { "yes" } else { "no" }.to_string(),
            ]);
        }
        table
    }
}

fn policy(policy: WorkerPolicy) -> String {
    match policy {
        WorkerPolicy::KillAfter { lag, time } => format!("kill after {time:?} at {lag}"),
        _ => "gate".into(),
    }
}

fn digest(digest: Option<&String>) -> String {
    digest.cloned().unwrap_or_else(|| "-".into())
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".into(), |rate| format!("{rate:.0}/s"))
}
