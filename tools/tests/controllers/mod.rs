//! Controllers and workers as processes of their own, for tests that kill and stop them, and the check of what the
//! workers wrote down. The processes are the test program itself, told by the environment what to do.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use seriatim::channel::{
    Channel, Coding, CodingError, Event, OpenError, Postcard, SendError, Sender, SequencedError, Superseded,
};
use seriatim::{AttachError, AttachOptions, JoinOptions, Region};
use tempfile::TempDir;

use crate::common::{ANSWER, PATIENCE};
use crate::engine::{Random, this_program};

const VARIABLE: &str = "SERIATIM_CONTROLLERS";

/// What controllers send: of which incarnation it is, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) incarnation: u64,
    pub(crate) n: u64,
}

/// Takes its time over some commands, between the sender's look at who is current and its ticket: whoever is stopped
/// there and goes on sends what nobody is to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slow;

impl Coding<Work> for Slow {
    type Decoded<'a> = Work;

    fn encoded_len(&self, work: &Work) -> Result<usize, CodingError> {
        Postcard.encoded_len(work)
    }

    fn encode(&self, work: &Work, room: &mut [u8]) -> Result<(), CodingError> {
        if is_slow(work) {
            thread::sleep(Duration::from_millis(2));
        }
        Postcard.encode(work, room)
    }

    fn decode(&self, kind: u16, bytes: &[u8]) -> Result<Work, CodingError> {
        Postcard.decode(kind, bytes)
    }
}

fn is_slow(work: &Work) -> bool {
    work.n % 8 == 5
}

/// What a process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Opens an incarnation, sends so many commands, and waits until it is superseded.
    Control {
        /// The controller's name.
        name: String,
        /// The incarnation's nonce.
        nonce: u64,
        /// How many commands.
        commands: u64,
    },
    /// Writes down what it receives.
    Work {
        /// The worker's name.
        name: String,
        /// How long it takes for a command, in microseconds.
        micros: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Part {
    job: Job,
    region: PathBuf,
    out: PathBuf,
}

/// A process with a job; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    /// What it writes.
    pub(crate) out: PathBuf,
}

impl Process {
    /// Starts one that writes to `out`; `crash` says where it ends.
    pub(crate) fn start(job: &Job, region: &Path, out: PathBuf, crash: Option<&str>) -> Process {
        let part = Part { job: job.clone(), region: region.into(), out: out.clone() };
        let mut command: Command = this_program();
        command.env(VARIABLE, serde_json::to_string(&part).expect("a job is text"));
        if let Some(crash) = crash {
            command.env("SERIATIM_CRASH", crash);
        }
        let complaints = File::create(out.with_extension("complaints")).expect("room for complaints");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints);
        Process { child: command.spawn().expect("the test program starts"), out }
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, signal).expect("a child can be sent signals");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Whether it has ended by itself; it must not have failed.
    pub(crate) fn has_ended(&mut self) -> bool {
        let Some(status) = self.child.try_wait().expect("a child can be waited for") else { return false };
        assert!(status.success(), "{status}: {}", self.complaints());
        true
    }

    /// Whether it was killed; it must not have ended by itself.
    pub(crate) fn has_been_killed(&mut self) -> bool {
        let Some(status) = self.child.try_wait().expect("a child can be waited for") else { return false };
        assert_eq!(status.signal(), Some(9), "{status}: {}", self.complaints());
        true
    }

    pub(crate) fn complaints(&self) -> String {
        fs::read_to_string(self.out.with_extension("complaints")).unwrap_or_default()
    }

    /// What it has written, in whole lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        lines(&self.out)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One that was killed may have left its last line unfinished.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(String::from).collect()
}

/// Does the job that the environment names, if it names one.
pub(crate) fn play() {
    let Ok(text) = env::var(VARIABLE) else { return };
    let part: Part = serde_json::from_str(&text).expect("a job");
    let region = Region::attach(&part.region).unwrap();
    let out = File::create(&part.out).unwrap();
    match part.job {
        Job::Control { name, nonce, commands } => control(&region, &name, nonce, commands, out),
        Job::Work { name, micros } => work(&region, &name, micros, out),
    }
}

/// A line, at once.
fn say(out: &mut File, line: &str) {
    out.write_all(format!("{line}\n").as_bytes()).expect("room for a line");
}

/// Opens an incarnation; who had the name may be dying yet.
pub(crate) fn open(region: &Region, name: &str, nonce: u64) -> Sender<Work, Slow> {
    let options = AttachOptions::new().timeout(ANSWER);
    let until = Instant::now() + ANSWER;
    loop {
        match Channel::with(region, Slow).open_with(name, nonce, &options) {
            Ok(sender) => return sender,
            Err(OpenError::Attach(AttachError::NameTaken { .. })) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

fn control(region: &Region, name: &str, nonce: u64, commands: u64, mut out: File) {
    let mut sender = open(region, name, nonce);
    say(&mut out, &format!("opened {}", sender.number()));
    let superseded = send_all(&mut sender, nonce, commands, &mut out);
    let Superseded { own, by, .. } = superseded.unwrap_or_else(|| await_the_next(&mut sender));
    say(&mut out, &format!("superseded {own} {}", by.number));
}

fn send_all(
    sender: &mut Sender<Work, Slow>,
    nonce: u64,
    commands: u64,
    out: &mut File,
) -> Option<Superseded> {
    let mut random = Random(nonce);
    let incarnation = sender.number();
    for n in 0..commands {
        let work = Work { incarnation, n };
        let index = match sender.send(&work) {
            Ok(index) => index,
            Err(SendError::Superseded(superseded)) => return Some(superseded),
            Err(error) => panic!("{error}"),
        };
        if n == commands / 4 {
            match sender.initialization_complete() {
                Ok(_) => {}
                Err(SendError::Superseded(superseded)) => return Some(superseded),
                Err(error) => panic!("{error}"),
            }
        }
        if is_slow(&work) || random.below(8) == 0 {
            let what = match sender.wait_sequenced_deadline(index, Instant::now() + ANSWER) {
                Ok(_) => "heard",
                Err(SequencedError::Superseded { .. }) => "void",
                Err(SequencedError::LongAgo { .. }) => "unknown",
                Err(error) => panic!("{error}"),
            };
            say(out, &format!("{what} {incarnation} {n}"));
        }
        if random.below(4) == 0 {
            thread::sleep(Duration::from_micros(random.below(300)));
        }
    }
    None
}

fn await_the_next(sender: &mut Sender<Work, Slow>) -> Superseded {
    let until = Instant::now() + PATIENCE;
    while sender.check_current().is_ok() {
        assert!(Instant::now() < until, "nobody came");
        thread::sleep(Duration::from_millis(2));
    }
    match sender.send(&Work { incarnation: sender.number(), n: u64::MAX }) {
        Err(SendError::Superseded(superseded)) => superseded,
        other => panic!("{other:?}, where it is superseded"),
    }
}

fn work(region: &Region, name: &str, micros: u64, mut out: File) {
    let channel = Channel::<Work>::attach(region);
    let options = JoinOptions::new().timeout(ANSWER).release_every(8);
    let until = Instant::now() + ANSWER;
    let mut receiver = loop {
        match channel.join_with(name, &options) {
            Ok(receiver) => break receiver,
            Err(AttachError::NameTaken { .. }) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{name}: {error}"),
        }
    };
    // Each line at once, so that a killed worker has written all that it passed.
    loop {
        let line = match receiver.recv().unwrap() {
            Event::Incarnation { seq, number, nonce, .. } => format!("{seq} hello {number} {nonce}"),
            Event::Initialized { seq, .. } => format!("{seq} initialized"),
            Event::Command(command) => {
                let Work { incarnation, n } = command.decode().unwrap();
                thread::sleep(Duration::from_micros(micros));
                format!("{} command {incarnation} {n}", command.seq())
            }
            Event::World(seriatim::Event::Closed { seq, .. }) => format!("{seq} closed"),
            Event::World(event) => format!("{} world", event.seq()),
        };
        let is_end = line.ends_with("closed");
        say(&mut out, &format!("{line}, current {}", receiver.incarnation()));
        if is_end {
            let worker = receiver.worker();
            say(&mut out, &format!("end {} {} {}", worker.next(), worker.digest(), worker.superseded()));
            return;
        }
    }
}

/// How many workers have been let in: one that has only asked may be let in after the next.
pub(crate) fn inside(region: &Region) -> usize {
    region.snapshot().workers.iter().filter(|worker| worker.party.attached).count()
}

/// What the workers' logs come to.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// What has an index, as all who had it wrote it.
    pub(crate) order: BTreeMap<u64, String>,
    /// The incarnations that were current, in turn.
    pub(crate) incarnations: Vec<u64>,
    /// How many commands of each of them came.
    pub(crate) commands: BTreeMap<u64, u64>,
    /// How often two logs had the same index.
    pub(crate) compared: u64,
    /// Commands that the first worker passed over.
    pub(crate) superseded: u64,
}

/// Checks the logs of all workers, of which `whole` has everything; what is wrong otherwise.
pub(crate) fn check(logs: &TempDir, whole: &Path) -> Result<Checked, String> {
    let mut checked = Checked::default();
    let mut ends: Vec<String> = Vec::new();
    for entry in fs::read_dir(logs.path()).expect("the logs are there") {
        let path = entry.expect("the logs are there").path();
        let is_log = path.extension().is_none_or(|end| end != "complaints");
        if !is_log || !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('w')) {
            continue;
        }
        for line in lines(&path) {
            if let Some(end) = line.strip_prefix("end ") {
                // What each passed over depends on where it began.
                let (place, superseded) = end.rsplit_once(' ').ok_or("a short end")?;
                ends.push(place.to_owned());
                if path == whole {
                    checked.superseded = superseded.parse().map_err(|_| "no number")?;
                }
                continue;
            }
            let (seq, what) = line.split_once(' ').ok_or_else(|| format!("{line:?}"))?;
            let seq = seq.parse().map_err(|_| format!("{line:?}"))?;
            if let Some(other) = checked.order.insert(seq, what.to_owned()) {
                checked.compared += 1;
                if other != what {
                    return Err(format!("index {seq} is {what:?} for {path:?}, others had {other:?}"));
                }
            }
        }
    }
    if ends.windows(2).any(|pair| pair[0] != pair[1]) || ends.is_empty() {
        return Err(format!("the workers end at {ends:?}"));
    }
    let first: Vec<String> = lines(whole);
    if first.len() != checked.order.len() + 1 {
        let has = |seq: &u64| first.iter().any(|line| line.split(' ').next() == Some(&seq.to_string()));
        let missing: Vec<_> = checked.order.iter().filter(|(seq, _)| !has(seq)).take(8).collect();
        let lines = checked.order.len() + 1;
        return Err(format!("{whole:?} has {} lines of {lines}; without {missing:?}", first.len()));
    }
    follow(&mut checked)?;
    Ok(checked)
}

/// Only the newest incarnation is heard at any index, and each from its first command on, without a gap.
fn follow(checked: &mut Checked) -> Result<(), String> {
    let (mut current, mut next) = (0, 0);
    for (seq, line) in &checked.order {
        let (what, says) = line.split_once(", current ").ok_or_else(|| format!("index {seq}: {line:?}"))?;
        let words: Vec<&str> = what.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(u64::MAX);
        match words[0] {
            "hello" => {
                if number(1) <= current {
                    return Err(format!("index {seq}: incarnation {} after {current}", number(1)));
                }
                (current, next) = (number(1), 0);
                checked.incarnations.push(current);
            }
            "command" => {
                if (number(1), number(2)) != (current, next) {
                    return Err(format!("index {seq}: {what}, while command {next} of {current} is next"));
                }
                next += 1;
                checked.commands.insert(current, next);
            }
            _ => {}
        }
        if says.parse() != Ok(current) {
            return Err(format!("index {seq}: a worker says that {says} is current, and {current} is"));
        }
    }
    Ok(())
}

/// Whether what a controller was told of its commands is what came; how often it was told.
pub(crate) fn check_told(checked: &Checked, controller: &[String]) -> Result<u64, String> {
    let mut told = 0;
    for line in controller {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(u64::MAX);
        let came = checked.commands.get(&number(1)).is_some_and(|&count| number(2) < count);
        match words[0] {
            "heard" if !came => return Err(format!("{line}: and nobody had it")),
            "void" if came => return Err(format!("{line}: and it came")),
            "heard" | "void" => told += 1,
            _ => {}
        }
    }
    Ok(told)
}
