//! `seriatim run`: the main job. Every line of a file goes through one order to every worker, and the proof
//! of it is printed.
//!
//! Nothing of a run has a name in a file system: the region, the submit times and the shared copy of the
//! input are anonymous files that other processes open through `/proc/PID/fd`. So nothing is left behind, not
//! even when this process and all its children are killed at once; but for the journal, where one is asked for, from which
//! the same run then goes on.

use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{ValueEnum, value_parser};
use serde::Serialize;
use seriatim::journal::{Journal, JournalError, JournalOptions, Replay, ReplayError, SyncPolicy};
use seriatim::shared::Stamps;
use seriatim::{
    Config, Geometry, Region, Sequencer, SequencerConfig, SequencerError, SequencerHandle, SequencerStats,
    Wait, affinity,
};

use crate::Outcome;
use crate::args::{Pin, Sizes, size, sync_policy};
use crate::crew::{Crew, Shared};
use crate::input::Lines;
use crate::log;
use crate::output::{self, Align, Report, Table, bytes, complain, grouped, many, time_ns};
use crate::party::{self, History, Job, Message, Part, ProducerReport, Role, WorkerReport};
use crate::progress::Progress;
use crate::proof::{self, Tally};
use crate::signal::Stop;

/// Commands in one ticket when nobody says otherwise and the lane has room for them.
const DEFAULT_BATCH: u64 = 64;

/// The end has to wait until the slowest worker makes room for it. A worker that died ends the run earlier.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3600);

const EXAMPLES: &str = "\
Examples:
  seriatim run commands.txt                               2 producers, 4 workers, a process each
  seriatim run commands.txt --producers 4 --repeat 200    four producers share 200 copies of the file
  seq 1000000 | seriatim run - --as threads --json        standard input, threads, the report as JSON
  seriatim run commands.txt --journal /var/lib/run        also onto the disk; killed and started again, it goes on

With --journal everything is written into a directory as well, synced, and read back for the proof. If there is a journal
already, the order goes on where that ends: lines that it has are not submitted again, so the input and the number of
producers have to be the same, which is checked first. What is submitted waits for the disk when the region is full.

Exit code: 0 if every worker received every command once, in one order; 1 if not; 2 if it could not run.";

/// Put every line of a file into one order, deliver it to every worker, and prove it.
///
/// Makes a private region, shares the lines out among producers, lets one sequencer order them, and checks
/// that every worker received every line once and in the same order. Nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The commands, one a line; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// How many producers share the lines
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u64).range(1..=1000))]
    producers: u64,
    /// How many workers each receive all lines
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u64).range(1..=1024))]
    workers: u64,
    /// What producers and workers are
    #[arg(long = "as", value_name = "WHAT", value_enum, default_value_t = As::Processes)]
    kind: As,
    /// Submit the whole input N times over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    repeat: u64,
    #[command(flatten)]
    sizes: Sizes,
    /// Commands in one ticket at most [default: 64, fewer when they are large]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    batch: Option<u64>,
    /// How everybody waits: spin, yield or park
    #[arg(long, value_name = "HOW", default_value_t = Wait::Park)]
    wait: Wait,
    /// CPUs for the sequencer, the workers and the producers in turn: numbers like 0,2,4-7, none, or auto (a
    /// CPU each if there are enough)
    #[arg(long, value_name = "CPUS", default_value_t = Pin::Auto)]
    pin: Pin,
    /// Write the order into this directory as well, going on where the journal ends that is there; it is made if it is
    /// not there
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// When to sync the journal: `group`, a time in seconds, or `off`, as `seriatim journal` has it
    #[arg(long, value_name = "WHEN", default_value = "group", value_parser = sync_policy, requires = "journal")]
    sync: SyncPolicy,
    /// Disk space to reserve for a segment of the journal [K, M and G are taken]
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = size, requires = "journal")]
    segment_bytes: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum As {
    Processes,
    Threads,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let lines = Arc::new(Lines::read(&self.file)?);
        let plan = Plan::new(&self, &lines)?;
        let stop = Stop::install()?;
        let mut run = Run::set(&self, &plan, &lines, &stop)?;
        // From here on something has run: what goes wrong is a finding.
        match run.go(plan.commands) {
            Ok(raw) => self.report(&plan, &lines, raw),
            Err(error) if stop.asked() => Err(error),
            Err(error) => {
                complain(format_args!("{}", output::causes(&error)));
                Ok(Outcome::Problem)
            }
        }
    }

    fn report(&self, plan: &Plan, lines: &Lines, raw: Raw) -> Result<Outcome> {
        // After the run, so that it takes no time from it.
        let expected = proof::expected(lines, self.repeat, self.producers as usize);
        let all = [&raw.workers[..], raw.journal.as_slice()].concat();
        let differences = proof::differences(&expected, &all, raw.next);
        let report = RunReport::new(self, plan, &expected, raw, differences)?;
        output::print(&report, self.json)?;
        if report.agree {
            return Ok(Outcome::Done);
        }
        for difference in &report.differences {
            complain(format_args!("{difference}"));
        }
        Ok(Outcome::Problem)
    }
}

// ---- before -----------------------------------------------------------------------------------------------

/// What follows from the arguments and the input.
struct Plan {
    config: Config,
    /// Sequencer, workers, producers.
    cpus: Vec<Option<usize>>,
    pinning: String,
    commands: u64,
}

impl Plan {
    fn new(args: &Args, lines: &Lines) -> Result<Plan> {
        let (count, repeat) = (lines.len(), args.repeat);
        let commands = count.checked_mul(repeat);
        let commands = commands
            .with_context(|| format!("{count} lines {repeat} times are too many commands to count"))?;
        let sizes = fit(&args.sizes, lines)?;
        // A journal gates as a worker does.
        let gates = args.workers + u64::from(args.journal.is_some());
        let config = sizes.apply(Config::new().producers(args.producers).workers(gates));
        let parties = 1 + args.workers + args.producers;
        let (cpus, pinning) = deal_cpus(&args.pin, parties)?;
        // Said here, for as processes each of them is alone.
        if let Some(crowd) = affinity::Crowd::of(parties as usize).filter(|_| args.wait == Wait::Spin) {
            complain(format_args!("{crowd}"));
        }
        Ok(Plan { config, cpus, pinning, commands })
    }
}

/// The asked sizes, with lanes in which the largest line has room.
fn fit(asked: &Sizes, lines: &Lines) -> Result<Sizes> {
    let largest = lines.iter().map(<[u8]>::len).max().unwrap_or(0);
    let config = asked.apply(Config::new());
    let is_asked_for = asked.lane_bytes.is_some() && largest as u64 <= config.max_command();
    if largest as u64 <= config.max_payload() || is_asked_for {
        return Ok(asked.clone());
    }
    let max = config.max_command();
    let needed = (2 * largest.next_multiple_of(64) as u64).next_power_of_two();
    if let Some(bytes) = asked.lane_bytes {
        let number = lines.iter().position(|line| line.len() == largest).unwrap_or(0) + 1;
        bail!(
            "--lane-bytes {bytes} and --spill-bytes allow commands of up to {max} bytes, but line {number} has {largest}: \
             {needed} would do"
        );
    }
    Ok(Sizes { lane_bytes: Some(needed), ..asked.clone() })
}

/// A CPU or none for each party, and how to say so.
fn deal_cpus(pin: &Pin, parties: u64) -> Result<(Vec<Option<usize>>, String)> {
    let allowed = affinity::allowed();
    let cpus = match pin {
        Pin::Cpus(cpus) => cpus,
        Pin::Auto if allowed.len() as u64 >= parties => &allowed,
        Pin::Auto => {
            let why = format!("not pinned: {parties} parties, {} CPUs", allowed.len());
            return Ok((vec![None; parties as usize], why));
        }
        Pin::None => return Ok((vec![None; parties as usize], "not pinned".into())),
    };
    if let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        bail!("CPU {cpu} is not among those allowed to this process: {}", Pin::Cpus(allowed.clone()));
    }
    let dealt: Vec<_> = cpus.iter().copied().cycle().map(Some).take(parties as usize).collect();
    if let Some(clash) = clash(dealt.iter().copied().flatten()) {
        complain(format_args!("{clash}"));
    }
    Ok((
        dealt,
        format!("pinned to CPUs {}", Pin::Cpus(cpus.iter().copied().take(parties as usize).collect())),
    ))
}

/// Two of these CPUs that are one, or of one core.
fn clash(cpus: impl Iterator<Item = usize>) -> Option<affinity::Clash> {
    let mut before = Vec::new();
    for cpu in cpus {
        if let Some(&other) = before.iter().find(|&&other| affinity::share_a_core(cpu, other)) {
            return Some(affinity::Clash(cpu, other));
        }
        before.push(cpu);
    }
    None
}

/// A copy of the input without a name, and where other processes find it.
fn share(lines: &Lines) -> Result<(File, PathBuf)> {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let mut file = tempfile::tempfile_in(&folder)
        .with_context(|| format!("cannot make a temporary file in {}", folder.display()))?;
    file.write_all(lines.bytes())
        .with_context(|| format!("cannot copy the input into {}", folder.display()))?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok((file, path.into()))
}

// ---- the run ----------------------------------------------------------------------------------------------

/// A run whose parties are all attached and wait for the word.
struct Run<'a> {
    /// Only away while it is listened to.
    crew: Option<Crew>,
    region: Region,
    order: Order,
    journal: Option<Journaling>,
    shared: Shared,
    bar: Progress,
    stop: &'a Stop,
    /// Kept for the children, who have opened it by now or will not any more.
    _input: File,
}

/// How far the order has come.
enum Order {
    Open(SequencerHandle),
    Closing(JoinHandle<Result<SequencerStats, SequencerError>>),
    Closed(SequencerStats),
    Failed,
}

/// What a run measured.
struct Raw {
    producers: Vec<ProducerReport>,
    workers: Vec<WorkerReport>,
    sequencer: SequencerStats,
    next: u64,
    runs: u64,
    /// When the word to go was given, by the clock of the stamps.
    went_ns: u64,
    /// What the journal has, as if it were a worker.
    journal: Option<WorkerReport>,
}

impl<'a> Run<'a> {
    fn set(args: &Args, plan: &Plan, lines: &Arc<Lines>, stop: &'a Stop) -> Result<Run<'a>> {
        if let Some(dir) = &args.journal {
            check_journal(args, lines, dir)?;
        }
        let (region, history) = make(args, plan)?;
        let (input, input_path) = share(lines)?;
        let job = Job { history, ..job(args, &region, input_path) };
        let stamps = Stamps::create((job.stamps_each * args.producers) as usize)
            .context("cannot make the table of submit times")?;
        let sequencer = Sequencer::spawn(&region, sequencer_config(args, plan));
        let order = Order::Open(sequencer.context("cannot start the sequencer")?);
        let journal = args.journal.as_ref().map(|dir| Journaling::start(args, &region, dir)).transpose()?;
        let shared = Shared {
            job: Arc::new(Job { stamps: stamps.path(), ..job }),
            region: region.clone(),
            stamps: Arc::new(stamps),
            lines: Arc::clone(lines),
        };
        // The bar begins with the first command.
        let bar = Progress::new(0, "", false);
        let crew = Some(Crew::new(shared.clone()));
        let mut run = Run { crew, region, order, journal, shared, bar, stop, _input: input };
        // Workers first: each then sees every producer come and every command.
        let (workers, producers) = plan.cpus[1..].split_at(args.workers as usize);
        run.start(Role::Worker, workers, args.kind)?;
        run.start(Role::Producer, producers, args.kind)?;
        Ok(run)
    }

    /// Starts all parties of a role and waits until they are attached.
    fn start(&mut self, role: Role, cpus: &[Option<usize>], kind: As) -> Result<()> {
        for (number, &cpu) in (0..).zip(cpus) {
            self.crew()?.start(Part { role, number, cpu }, kind == As::Processes)?;
        }
        self.hear(role).map(drop)
    }

    /// Gives the word to go, and waits until everything has come through.
    fn go(&mut self, commands: u64) -> Result<Raw> {
        self.bar = Progress::new(commands, "in order", false);
        let went_ns = Stamps::now();
        self.crew()?.go()?;
        let produced = self.hear(Role::Producer)?;
        self.close();
        let received = self.hear(Role::Worker)?;
        let sequencer = self.closed()?;
        let journal = self.journaled()?;
        self.bar.clear();
        if let Some(crew) = self.crew.take() {
            crew.dismiss()?;
        }
        let end = self.region.snapshot();
        Ok(Raw {
            journal,
            producers: produced.into_iter().filter_map(produced_report).collect(),
            workers: received.into_iter().filter_map(received_report).collect(),
            sequencer,
            next: end.next.get(),
            runs: end.runs,
            went_ns,
        })
    }

    fn crew(&mut self) -> Result<&mut Crew> {
        self.crew.as_mut().context("the run is over")
    }

    fn hear(&mut self, role: Role) -> Result<Vec<Message>> {
        let mut crew = self.crew.take().context("the run is over")?;
        let heard = crew.hear(role, || self.tick());
        self.crew = Some(crew);
        heard
    }

    /// Asks for the end of the order. It goes through the order as everything does, and may have to wait for
    /// workers: hence a thread, while we keep an eye on them.
    fn close(&mut self) {
        self.order = match mem::replace(&mut self.order, Order::Failed) {
            Order::Open(sequencer) => Order::Closing(thread::spawn(move || sequencer.close())),
            order => order,
        };
    }

    /// Waits until the end is in the order.
    fn closed(&mut self) -> Result<SequencerStats> {
        loop {
            self.tick()?;
            if let Order::Closed(stats) = self.order {
                return Ok(stats);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until all of it is on the disk, and reads it back.
    fn journaled(&mut self) -> Result<Option<WorkerReport>> {
        let Some(mut journal) = self.journal.take() else { return Ok(None) };
        while !journal.has_ended()? {
            ensure!(!self.stop.asked(), "interrupted before the end");
            thread::sleep(Duration::from_millis(1));
        }
        let dir = &journal.dir;
        let found = party::recall(&self.shared.job, &self.shared.stamps, dir);
        Ok(Some(found.with_context(|| format!("cannot read {} back", dir.display()))?))
    }

    /// What a waiting parent looks after.
    fn tick(&mut self) -> Result<()> {
        ensure!(!self.stop.asked(), "interrupted before the end");
        if let Some(journal) = &mut self.journal
            && journal.has_ended()?
        {
            // With the order, and perhaps before we know of its end.
            ensure!(!matches!(self.order, Order::Open(_)), "the journal ended early");
        }
        self.order = match mem::replace(&mut self.order, Order::Failed) {
            Order::Open(sequencer) if sequencer.is_finished() => {
                sequencer.stop().context("the sequencer failed")?;
                bail!("the sequencer ended early");
            }
            Order::Closing(thread) if thread.is_finished() => {
                let stats = thread.join().map_err(|_| anyhow!("the sequencer panicked"))?;
                let stats = stats.context("the sequencer failed")?;
                ensure!(stats.closed, "the end had no room in the order");
                Order::Closed(stats)
            }
            order => order,
        };
        if !self.bar.is_hidden() {
            self.bar.done(self.region.snapshot().next.get());
        }
        Ok(())
    }
}

/// A region without a name, which goes on where a journal ends, if there is one; and what that has.
fn make(args: &Args, plan: &Plan) -> Result<(Region, Option<History>)> {
    let anonymous = || Region::anonymous(&plan.config).context("cannot make a region");
    let Some(dir) = &args.journal else { return Ok((anonymous()?, None)) };
    if !has_journal(dir)? {
        return Ok((anonymous()?, None));
    }
    let restored = Region::restore_anonymous(dir, &plan.config)?;
    complain(format_args!("{restored}"));
    let Geometry { producers, workers, .. } = restored.region.geometry();
    let (gates, dir) = (args.workers + 1, std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
    ensure!(
        args.producers <= producers && gates <= workers,
        "the region of the journal in {} has room for {producers} producers and {} workers beside the journal",
        dir.display(),
        workers - 1
    );
    Ok((restored.region, Some(History { dir, end: restored.next.get() })))
}

/// That what a journal has is of this input, and of so many producers: before anything is added to it.
fn check_journal(args: &Args, lines: &Lines, dir: &Path) -> Result<()> {
    if !has_journal(dir)? {
        return Ok(());
    }
    let found = party::is_of(dir, lines, args.repeat, args.producers);
    found
        .with_context(|| format!("nothing was submitted: cannot go on with the journal in {}", dir.display()))
}

fn has_journal(dir: &Path) -> Result<bool> {
    match Replay::open(dir) {
        Ok(_) => Ok(true),
        Err(ReplayError::Empty { .. }) => Ok(false),
        Err(ReplayError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The journal of a run, on a thread of its own.
struct Journaling {
    dir: PathBuf,
    thread: Option<JoinHandle<Result<(), JournalError>>>,
    stop: Arc<AtomicBool>,
}

impl Journaling {
    fn start(args: &Args, region: &Region, dir: &Path) -> Result<Journaling> {
        // What it meets and tries again is said while that lasts.
        log::to_standard_error();
        // One whose gate has stayed is taken up under its name.
        let name = region.journal().map_or("journal".into(), |journal| journal.name.to_string());
        let options = JournalOptions::new().name(&name).sync(args.sync).segment_bytes(args.segment_bytes);
        let mut journal = Journal::open(region, dir, &options)?;
        if let Some(cut) = journal.cut() {
            complain(format_args!("{cut}"));
        }
        let (stop, dir) = (Arc::new(AtomicBool::new(false)), dir.to_path_buf());
        let asked = Arc::clone(&stop);
        let work = move || {
            // Relaxed: a flag that nothing else is read through.
            journal.run(|| asked.load(Ordering::Relaxed))?;
            journal.close()
        };
        let thread = thread::Builder::new().name("journal".into()).spawn(work);
        Ok(Journaling { dir, thread: Some(thread.context("cannot start the journal")?), stop })
    }

    /// Whether it has written everything and sealed.
    fn has_ended(&mut self) -> Result<bool> {
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            let ended = thread.join().map_err(|_| anyhow!("the journal panicked"))?;
            ended.context("the journal failed")?;
        }
        Ok(self.thread.is_none())
    }
}

impl Drop for Journaling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The run has failed already, and says why.
            let _ = thread.join();
        }
    }
}

/// The job as all parties get it, but for the place of the stamps.
fn job(args: &Args, region: &Region, input: PathBuf) -> Job {
    let Geometry { lane_cells, lane_bytes, .. } = region.geometry();
    Job {
        region: region.path().to_path_buf(),
        input,
        stamps: PathBuf::new(),
        repeat: args.repeat,
        producers: args.producers,
        batch: args.batch.unwrap_or(DEFAULT_BATCH).min(lane_cells / 2).max(1) as usize,
        // Half a lane is the limit of a ticket. By default it is a quarter, so that a producer can fill one
        // while another is on its way. A single command may always be as large as half a lane.
        batch_bytes: (lane_bytes / if args.batch.is_some() { 2 } else { 4 }) as usize,
        stamps_each: 2 * lane_cells,
        wait: args.wait.to_string(),
        history: None,
    }
}

fn sequencer_config(args: &Args, plan: &Plan) -> SequencerConfig {
    let config = SequencerConfig::default().wait(args.wait).measure_cpu(true).close_timeout(CLOSE_TIMEOUT);
    let config = config.assist(is_assisted(args, plan));
    match plan.cpus[0] {
        Some(cpu) => config.core(cpu),
        None => config,
    }
}

/// Whether the parties make turns for the sequencer: where they are of its process and it has no CPU of its own.
fn is_assisted(args: &Args, plan: &Plan) -> bool {
    args.kind == As::Threads && plan.cpus[0].is_none()
}

fn produced_report(message: Message) -> Option<ProducerReport> {
    if let Message::Produced(report) = message { Some(report) } else { None }
}

fn received_report(message: Message) -> Option<WorkerReport> {
    if let Message::Received(report) = message { Some(report) } else { None }
}

// ---- after ------------------------------------------------------------------------------------------------

#[derive(Debug, Serialize)]
struct RunReport {
    input: InputReport,
    producers: Vec<ProducerRow>,
    workers: Vec<WorkerRow>,
    order: OrderReport,
    agree: bool,
    seconds: f64,
    commands_per_second: f64,
    bytes_per_second: f64,
    latency_ns: LatencyReport,
    /// What the journal has, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<JournalReport>,
    #[serde(skip)]
    differences: Vec<String>,
    #[serde(skip)]
    how: String,
}

#[derive(Debug, Serialize)]
struct InputReport {
    path: String,
    commands: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct ProducerRow {
    name: String,
    commands: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct WorkerRow {
    name: String,
    commands: u64,
    bytes: u64,
    next: u64,
    digest: String,
    #[serde(skip)]
    lag: u64,
    #[serde(skip)]
    lag_max: u64,
}

#[derive(Debug, Serialize)]
struct OrderReport {
    next: u64,
    runs: u64,
    cpu_ns_per_command: f64,
}

#[derive(Debug, Serialize)]
struct JournalReport {
    dir: String,
    /// Commands that it had before this run, and that it has now.
    before: u64,
    commands: u64,
    /// The index behind the last one, and the digest of all before it.
    next: u64,
    digest: String,
}

impl JournalReport {
    fn new(dir: &Path, found: &WorkerReport, submitted: u64) -> JournalReport {
        JournalReport {
            dir: dir.display().to_string(),
            before: found.commands().saturating_sub(submitted),
            commands: found.commands(),
            next: found.next,
            digest: found.digest.clone(),
        }
    }
}

#[derive(Debug, Serialize)]
struct LatencyReport {
    p50: u64,
    p99: u64,
    p99_9: u64,
    max: u64,
}

impl RunReport {
    fn new(
        args: &Args,
        plan: &Plan,
        expected: &[Tally],
        raw: Raw,
        differences: Vec<String>,
    ) -> Result<RunReport> {
        let input = InputReport {
            path: args.file.display().to_string(),
            commands: plan.commands,
            bytes: expected.iter().map(|tally| tally.bytes).sum(),
        };
        let last_ns = raw.workers.iter().map(|worker| worker.last_ns).max().unwrap_or(0);
        let seconds = last_ns.saturating_sub(raw.went_ns) as f64 / 1e9;
        let per = |amount: u64, by: f64| if by > 0.0 { amount as f64 / by } else { 0.0 };
        let latencies = party::merge(&raw.workers)?;
        // What a journal had before was not submitted now.
        let submitted: u64 = raw.producers.iter().map(|producer| producer.commands).sum();
        let bytes = raw.producers.iter().map(|producer| producer.bytes).sum();
        let journal = args.journal.as_ref().zip(raw.journal.as_ref());
        let journal = journal.map(|(dir, found)| JournalReport::new(dir, found, submitted));
        Ok(RunReport {
            journal,
            order: OrderReport {
                next: raw.next,
                runs: raw.runs,
                cpu_ns_per_command: per(raw.sequencer.cpu_ns, submitted as f64),
            },
            agree: differences.is_empty(),
            seconds,
            commands_per_second: per(submitted, seconds),
            bytes_per_second: per(bytes, seconds),
            latency_ns: LatencyReport {
                p50: latencies.value_at_quantile(0.5),
                p99: latencies.value_at_quantile(0.99),
                p99_9: latencies.value_at_quantile(0.999),
                max: latencies.max(),
            },
            input,
            producers: raw.producers.into_iter().map(ProducerRow::from).collect(),
            workers: raw.workers.iter().map(WorkerRow::from).collect(),
            differences,
            how: how(args, plan),
        })
    }
}

/// What a reader has to know to compare two runs.
fn how(args: &Args, plan: &Plan) -> String {
    let kind = match args.kind {
        As::Processes => "processes",
        As::Threads => "threads",
    };
    let assisted = if is_assisted(args, plan) { ", workers make turns for the sequencer" } else { "" };
    format!(
        "{} and {} as {kind}, wait {}, {}{assisted}",
        many(args.producers, "producer"),
        many(args.workers, "worker"),
        args.wait,
        plan.pinning
    )
}

impl From<ProducerReport> for ProducerRow {
    fn from(report: ProducerReport) -> ProducerRow {
        ProducerRow { name: report.name, commands: report.commands, bytes: report.bytes }
    }
}

impl From<&WorkerReport> for WorkerRow {
    fn from(report: &WorkerReport) -> WorkerRow {
        WorkerRow {
            name: report.name.clone(),
            commands: report.commands(),
            bytes: report.bytes(),
            next: report.next,
            digest: report.digest.clone(),
            lag: report.lag,
            lag_max: report.lag_max,
        }
    }
}

impl Report for RunReport {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let RunReport { input, order, latency_ns, .. } = self;
        writeln!(
            out,
            "input    {}: {} commands, {} bytes",
            input.path,
            grouped(input.commands),
            grouped(input.bytes)
        )?;
        writeln!(out, "by       {}", self.how)?;
        writeln!(out)?;
        self.producer_table().write(out)?;
        writeln!(out)?;
        self.worker_table().write(out)?;
        writeln!(out)?;
        let cpu = order.cpu_ns_per_command;
        let runs = grouped(order.runs);
        writeln!(
            out,
            "order    next {}, {runs} runs, {cpu:.1} ns of the sequencer's CPU a command",
            order.next
        )?;
        let rate = grouped(self.commands_per_second as u64);
        let volume = bytes(self.bytes_per_second);
        writeln!(out, "speed    {:.3} s, {rate} commands/s, {volume}/s submitted", self.seconds)?;
        let [p50, p99, p99_9, max] =
            [latency_ns.p50, latency_ns.p99, latency_ns.p99_9, latency_ns.max].map(time_ns);
        writeln!(out, "latency  p50 {p50}, p99 {p99}, p99.9 {p99_9}, max {max}, submit to received")?;
        if let Some(JournalReport { dir, before, commands, next, .. }) = &self.journal {
            let (before, commands) = (grouped(*before), grouped(*commands));
            writeln!(
                out,
                "journal  {dir}: {commands} commands, {before} of them before this run, next {next}"
            )?;
        }
        writeln!(out)?;
        let workers = many(self.workers.len(), "worker");
        if self.agree {
            let commands = grouped(input.commands);
            writeln!(out, "all agree: {workers} received all {commands} commands once, in one order")
        } else {
            writeln!(out, "NOT in agreement: {}", many(self.differences.len(), "difference"))
        }
    }
}

impl RunReport {
    fn producer_table(&self) -> Table<3> {
        let mut table =
            Table::new([("PRODUCER", Align::Left), ("COMMANDS", Align::Right), ("BYTES", Align::Right)]);
        for row in &self.producers {
            table.row([row.name.clone(), row.commands.to_string(), row.bytes.to_string()]);
        }
        table
    }

    fn worker_table(&self) -> Table<7> {
        let mut table = Table::new([
            ("WORKER", Align::Left),
            ("COMMANDS", Align::Right),
            ("BYTES", Align::Right),
            ("NEXT", Align::Right),
            ("DIGEST", Align::Left),
            ("LAG", Align::Right),
            ("LAG MAX", Align::Right),
        ]);
        for row in &self.workers {
            let numbers = [row.commands, row.bytes, row.next].map(|number| number.to_string());
            let [commands, bytes, next] = numbers;
            let (lag, lag_max) = (row.lag.to_string(), row.lag_max.to_string());
            table.row([row.name.clone(), commands, bytes, next, row.digest.clone(), lag, lag_max]);
        }
        table
    }
}
