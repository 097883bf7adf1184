//! The controller's side: starts an engine's processes, talks to them, and finds out when one is gone.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command as Program, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use seriatim::channel::History;
use seriatim::{Config, Region};
use tempfile::TempDir;

use crate::channel::{CommandSender, ordered, worker0};
use crate::command::{Changes, Command, Ordered, Reply};
use crate::process::{Kind, commands_in, region_in, replies_in};

/// How long an answer can take, unless there is more to do before it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long processes have to notice that another one is gone.
const TO_NOTICE: Duration = Duration::from_secs(10);
/// Bytes of a lane, unless commands need more.
const LANE: u64 = 4 << 20;
/// How often to look whether they still run.
const LOOKS: Duration = Duration::from_millis(50);

/// What an engine is made of.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Shape {
    /// What commands go through.
    #[arg(long, value_enum, default_value = "seriatim")]
    pub(crate) channel: Kind,
    /// Processes, on this machine.
    #[arg(long, default_value_t = 1)]
    pub(crate) processes: usize,
    /// Workers of each process.
    #[arg(long, default_value_t = 4)]
    pub(crate) workers: usize,
}

impl Shape {
    /// Workers of all processes.
    pub(crate) fn peers(&self) -> usize {
        self.processes * self.workers
    }
}

/// What the controller hears.
#[derive(Debug)]
enum Event {
    Reply(Reply),
    /// A process' connection ended.
    Gone,
}

/// Killed when it is dropped.
struct Process {
    child: Child,
    /// What it said when it gave up.
    said: Option<String>,
    done: bool,
}

/// Where a process can be found.
#[derive(Debug, Serialize)]
pub(crate) struct Whereabouts {
    process: usize,
    pid: u32,
    workers: std::ops::Range<usize>,
}

/// An engine that runs.
pub(crate) struct Cluster {
    shape: Shape,
    processes: Vec<Process>,
    events: mpsc::Receiver<Event>,
    /// What workers refused that nobody waits for: worker and reason.
    pub(crate) refused: Vec<(usize, String)>,
    /// What the sequencer did, once it has ended.
    pub(crate) sequencer: Option<Ordered>,
    region: Option<Region>,
    /// How often it was started before.
    run: u32,
    /// Controllers that came for this run.
    controllers: u32,
    nonce: u64,
    /// How long an answer can take.
    pub(crate) patience: Duration,
    dir: TempDir,
}

impl Cluster {
    /// Starts the processes, and returns when each worker hears what is sent. The `largest` command has so many bytes.
    ///
    /// # Errors
    /// It did not come up, and why.
    pub(crate) fn start(shape: Shape, producers: usize, largest: usize) -> Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("seriatim-engine-").tempdir_in(fast_dir())?;
        let region = match shape.channel {
            Kind::Seriatim => {
                // Half of a lane is for the largest command, whose encoding is a little longer.
                let lane = (2 * (largest as u64 + 64)).next_power_of_two().max(LANE);
                let config = Config::new().producers(producers as u64).workers(shape.peers() as u64);
                let config = config.lane_bytes(lane);
                Some(Region::create(region_in(dir.path()), &config)?)
            }
            Kind::Worker0 => None,
        };
        let mut cluster = Cluster {
            shape,
            processes: Vec::new(),
            events: mpsc::channel().1,
            refused: Vec::new(),
            sequencer: None,
            region,
            run: 0,
            controllers: 0,
            nonce: 1 << 32,
            patience: PATIENCE,
            dir,
        };
        cluster.spawn_all()?;
        Ok(cluster)
    }

    /// Starts it again, after it has ended: its workers have nothing, and hear a controller that comes from now on.
    ///
    /// # Errors
    /// It did not come up, and why.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.processes.clear();
        (self.run, self.controllers) = (self.run + 1, 0);
        std::fs::remove_file(replies_in(self.dir.path()))?;
        self.spawn_all()
    }

    fn spawn_all(&mut self) -> Result<()> {
        self.events = hear(&replies_in(self.dir.path()), self.shape.processes)?;
        let addresses = addresses(self.shape.processes)?;
        for process in 0..self.shape.processes {
            let child = self.spawn(process, &addresses)?;
            self.processes.push(Process { child, said: None, done: false });
        }
        self.gather(|reply| matches!(reply, Reply::Ready { .. }), self.shape.peers())?;
        Ok(())
    }

    fn spawn(&self, process: usize, addresses: &str) -> Result<Child> {
        let channel =
            clap::ValueEnum::to_possible_value(&self.shape.channel).context("a channel has a name")?;
        let mut program = Program::new(std::env::current_exe()?);
        program.arg("process").arg("--dir").arg(self.dir.path());
        program.args(["--channel", channel.get_name(), "--addresses", addresses]);
        program.args(["--process", &process.to_string(), "--workers", &self.shape.workers.to_string()]);
        program.args(["--run", &self.run.to_string()]);
        // Timely says there how it connects.
        Ok(program.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
    }

    /// A controller's end of the channel, once all workers have what its `history` says; and what that took. There is
    /// one at a time.
    ///
    /// # Errors
    /// A process is gone; workers did not do the same; or the channel knows of no controllers that come later.
    pub(crate) fn controller(
        &mut self,
        history: &History<Command>,
    ) -> Result<(Box<dyn CommandSender>, Changes)> {
        self.controllers += 1;
        let Some(region) = &self.region else {
            if self.controllers > 1 || self.run > 0 {
                bail!("worker 0's channel knows of no controllers that come later");
            }
            return Ok((self.sender(0)?, Changes::default()));
        };
        let nonce = ordered::nonce(self.run, self.controllers);
        let controller = ordered::Controller::open(region, nonce, history)?;
        let own = controller.incarnation();
        let is_own =
            |reply: &Reply| matches!(reply, Reply::Reconciled { incarnation, .. } if *incarnation == own);
        let replies = self.gather(is_own, self.shape.peers())?;
        let mut changes = BTreeSet::new();
        for reply in &replies {
            if let Reply::Reconciled { changes: made, .. } = reply {
                changes.insert(*made);
            }
        }
        match changes.pop_first() {
            Some(same) if changes.is_empty() => Ok((Box::new(controller), same)),
            _ => bail!("workers did not reconcile alike: {replies:?}"),
        }
    }

    /// A producer's end of the channel, besides the controller.
    pub(crate) fn sender(&self, number: usize) -> Result<Box<dyn CommandSender>> {
        let (dir, workers) = (self.dir.path(), self.shape.workers);
        Ok(match &self.region {
            Some(region) => Box::new(ordered::Other::attach(region, &format!("injector-{number}"))?),
            None => {
                let worker = number % self.shape.peers();
                let path = commands_in(dir, worker / workers);
                Box::new(worker0::Producer::connect(&path, number as u64, (worker % workers) as u64)?)
            }
        })
    }

    /// A number that no other question has, and no script: those have less than 2^32.
    pub(crate) fn fresh_nonce(&mut self) -> u64 {
        self.nonce += 1;
        self.nonce
    }

    /// Where its processes are.
    pub(crate) fn whereabouts(&self) -> impl Iterator<Item = Whereabouts> {
        let workers = self.shape.workers;
        self.processes.iter().enumerate().map(move |(process, Process { child, .. })| Whereabouts {
            process,
            pid: child.id(),
            workers: process * workers..(process + 1) * workers,
        })
    }

    /// Waits until each worker has answered under a nonce.
    ///
    /// # Errors
    /// A process is gone, or one has not answered for a long time.
    pub(crate) fn answers(&mut self, nonce: u64) -> Result<Vec<Reply>> {
        let peers = self.shape.peers();
        let is_ours = |reply: &Reply| match *reply {
            Reply::Rows { nonce: of, .. }
            | Reply::Fingerprint { nonce: of, .. }
            | Reply::Report { nonce: of, .. } => of == nonce,
            Reply::Refused { nonce: of, .. } => of == Some(nonce),
            _ => false,
        };
        self.gather(is_ours, peers)
    }

    /// Waits for so many replies of a kind, and sees to all others.
    fn gather(&mut self, is_wanted: impl Fn(&Reply) -> bool, count: usize) -> Result<Vec<Reply>> {
        let (mut gathered, deadline) = (Vec::new(), Instant::now() + self.patience);
        while gathered.len() < count {
            match self.events.recv_timeout(LOOKS) {
                Ok(Event::Reply(reply)) if is_wanted(&reply) => gathered.push(reply),
                Ok(Event::Reply(Reply::Failed { process, why })) => {
                    self.processes[process].said = Some(why);
                    return Err(self.post_mortem());
                }
                Ok(Event::Reply(reply)) => self.note(reply),
                Ok(Event::Gone) => return Err(self.post_mortem()),
                Err(_) if self.has_lost_one()? => return Err(self.post_mortem()),
                Err(_) if Instant::now() > deadline => {
                    bail!(
                        "{} of {count} answers within {:?}; these came: {gathered:?}",
                        gathered.len(),
                        self.patience
                    );
                }
                Err(_) => {}
            }
        }
        Ok(gathered)
    }

    fn note(&mut self, reply: Reply) {
        match reply {
            Reply::Refused { nonce: None, worker, why } => self.refused.push((worker, why)),
            Reply::Done { process, sequencer } => {
                self.processes[process].done = true;
                self.sequencer = self.sequencer.or(sequencer);
            }
            _ => {}
        }
    }

    /// Whether a process has ended that was not to.
    pub(crate) fn has_lost_one(&mut self) -> Result<bool> {
        for process in &mut self.processes {
            if process.child.try_wait()?.is_some() && !process.done {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a process is gone, without waiting.
    ///
    /// # Errors
    /// One is.
    pub(crate) fn check(&mut self) -> Result<()> {
        if self.has_lost_one()? { Err(self.post_mortem()) } else { Ok(()) }
    }

    /// Sends, and finds out about the engine if that fails.
    ///
    /// # Errors
    /// It could not be sent, or a process is gone.
    pub(crate) fn send(&mut self, sender: &mut dyn CommandSender, command: &Command) -> Result<()> {
        let sent = sender.send(command);
        sent.map_err(|error| if self.has_lost_one().unwrap_or(false) { self.post_mortem() } else { error })
    }

    /// One process is gone, so none of the others can go on. Gives them time to notice, and says what became of each:
    /// who just died comes first.
    fn post_mortem(&mut self) -> anyhow::Error {
        let deadline = Instant::now() + TO_NOTICE;
        while Instant::now() < deadline && self.processes.iter_mut().any(Process::runs) {
            if let Ok(Event::Reply(Reply::Failed { process, why })) = self.events.recv_timeout(LOOKS) {
                self.processes[process].said = Some(why);
            }
        }
        while let Ok(event) = self.events.recv_timeout(LOOKS) {
            if let Event::Reply(Reply::Failed { process, why }) = event {
                self.processes[process].said.get_or_insert(why);
            }
        }
        let workers = self.shape.workers;
        let mut ended: Vec<(bool, String)> = Vec::new();
        for (number, process) in self.processes.iter_mut().enumerate() {
            let range = number * workers..(number + 1) * workers;
            let pid = process.child.id();
            let fate = process.fate();
            ended.push((
                process.said.is_some(),
                format!("process {number} (pid {pid}, workers {range:?}) {fate}"),
            ));
        }
        ended.sort();
        let ended: Vec<String> = ended.into_iter().map(|(_, fate)| fate).collect();
        anyhow!("the engine has ended: {}", ended.join("; "))
    }

    /// Ends all workers, and waits for their processes.
    ///
    /// # Errors
    /// One did not end as it should.
    pub(crate) fn shut_down(&mut self, sender: &mut dyn CommandSender) -> Result<Option<Ordered>> {
        self.send(sender, &Command::Shutdown)?;
        let done = self.gather(|reply| matches!(reply, Reply::Done { .. }), self.shape.processes)?;
        done.into_iter().for_each(|reply| self.note(reply));
        for process in &mut self.processes {
            let status = process.child.wait()?;
            if !status.success() {
                bail!("an engine process ended with {status}");
            }
        }
        Ok(self.sequencer)
    }
}

impl Process {
    fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What became of it, in words. One that still runs did not notice, and is killed.
    fn fate(&mut self) -> String {
        let said = self.said.as_ref().map(|said| format!("and said: {said}")).unwrap_or_default();
        match self.child.try_wait() {
            Ok(Some(status)) => format!("ended with {status} {said}").trim_end().to_owned(),
            _ => {
                let _ = self.child.kill();
                format!("did not end by itself within {TO_NOTICE:?}, and was killed {said}")
                    .trim_end()
                    .to_owned()
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended is not there to be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// In memory, if there is such a place.
fn fast_dir() -> std::path::PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.into() } else { std::env::temp_dir() }
}

/// Free ports for Timely to connect by, if there is more than one process.
fn addresses(processes: usize) -> Result<String> {
    if processes == 1 {
        return Ok(String::new());
    }
    // All at once, or two would be given the same.
    let listeners: Vec<TcpListener> =
        (0..processes).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    Ok(addresses.collect::<Result<Vec<_>>>()?.join(","))
}

/// Takes in so many processes, and hands on what they say.
fn hear(path: &Path, processes: usize) -> Result<mpsc::Receiver<Event>> {
    let listener = UnixListener::bind(path).with_context(|| path.display().to_string())?;
    let (sender, events) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(processes).flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || hear_one(stream, &sender));
        }
    });
    Ok(events)
}

fn hear_one(stream: UnixStream, events: &mpsc::Sender<Event>) {
    let mut done = false;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(reply) => {
                done |= matches!(reply, Reply::Done { .. });
                // Who does not listen any more has ended.
                let _ = events.send(Event::Reply(reply));
            }
            Err(error) => eprintln!("no reply: {line:?}: {error}"),
        }
    }
    if !done {
        let _ = events.send(Event::Gone);
    }
}
