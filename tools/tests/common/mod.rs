//! What the tests of the tool share: scratch space, the binary, children that do not outlive their test.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod doomed;
pub(crate) mod told;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use seriatim::journal::Replay;
use seriatim::{AttachOptions, JoinOptions, Producer, Region, Worker};
use tempfile::TempDir;

/// Long enough for the slowest machine: reached only when something never happens.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// For attaching where the machine is busy, or others are killed and started all the time.
pub(crate) const ANSWER: Duration = Duration::from_secs(60);

/// Whether to run the long form of tests that have one.
pub(crate) fn long() -> bool {
    std::env::var_os("SERIATIM_LONG").is_some_and(|value| value != "0")
}

/// How often: in short, and in the long form.
pub(crate) fn times(short: u64, in_full: u64) -> u64 {
    if long() { in_full } else { short }
}

/// A folder for regions, in memory where there is such a place.
pub(crate) fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made =
        if memory.is_dir() { TempDir::with_prefix_in("seriatim-test-", memory) } else { TempDir::new() };
    made.expect("a scratch folder")
}

/// The tool with these arguments.
pub(crate) fn seriatim(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    command.args(args).stdin(Stdio::null());
    command
}

/// How a finished command ended and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    /// The report, which must be all of standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Checks the exit code.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Ended {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Checks that standard error is one line of ours with all of these in it.
    #[track_caller]
    pub(crate) fn saying(self, parts: &[&str]) -> Ended {
        assert!(self.err.starts_with("seriatim: ") && self.err.lines().count() == 1, "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "no `{part}` in {self:?}");
        }
        self
    }
}

/// Runs the tool to its end.
pub(crate) fn run(args: &[&str]) -> Ended {
    Running::start(&mut seriatim(args)).end()
}

/// Runs the tool to its end with something on standard input.
pub(crate) fn run_with(args: &[&str], input: &[u8]) -> Ended {
    let mut child = Running::start(seriatim(args).stdin(Stdio::piped()));
    child.feed(input);
    child.end()
}

/// A child that is killed when its test ends early.
pub(crate) struct Running {
    child: Option<Child>,
    stdin: Option<ChildStdin>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool starts");
        let stdin = child.stdin.take();
        Running { child: Some(child), stdin }
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("not ended yet")
    }

    pub(crate) fn pid(&mut self) -> u32 {
        self.child().id()
    }

    /// Writes to its standard input and leaves that open.
    pub(crate) fn feed(&mut self, input: &[u8]) {
        let stdin = self.stdin.as_mut().expect("standard input is a pipe");
        // It may end before it has read everything, if that is what the test is about.
        let _ = stdin.write_all(input).and_then(|()| stdin.flush());
    }

    /// Waits for its next line on standard output, or the end of it. Byte by byte, so that the rest stays for `end`.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let until = Instant::now() + PATIENCE;
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            assert!(
                self.has_output_within(left),
                "it says nothing after {:?}",
                String::from_utf8_lossy(&line)
            );
            let stdout = self.child().stdout.as_mut().expect("standard output is a pipe");
            if stdout.read(&mut byte).expect("it can be read") == 0 || byte[0] == b'\n' {
                return String::from_utf8(line).expect("text");
            }
            line.push(byte[0]);
        }
    }

    /// Whether standard output has something to read, or has ended.
    pub(crate) fn has_output(&mut self) -> bool {
        self.has_output_within(Duration::ZERO)
    }

    fn has_output_within(&mut self, time: Duration) -> bool {
        let stdout = self.child().stdout.as_ref().expect("standard output is a pipe");
        let mut ends = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        poll(&mut ends, time).expect("a pipe can be polled") > 0
    }

    /// Ends its standard input.
    pub(crate) fn close_input(&mut self) {
        drop(self.stdin.take());
    }

    /// Closes our end of its standard output.
    pub(crate) fn deafen(&mut self) {
        drop(self.child().stdout.take());
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("a signal can be sent");
    }

    /// Closes its standard input and waits for its end; kills it when that does not come.
    pub(crate) fn end(mut self) -> Ended {
        drop(self.stdin.take());
        let child = self.child.take().expect("not ended yet");
        let pid = Pid::from_raw(child.id() as i32);
        let (ended, end) = mpsc::channel::<()>();
        let watchdog = thread::spawn(move || {
            if end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        });
        let output = child.wait_with_output().expect("it ends");
        drop(ended);
        watchdog.join().expect("the watchdog ends");
        output.into()
    }

    /// Waits for its end, as [`end`](Self::end); with the processor time that it took. For one that says little: what
    /// it says is read afterwards.
    #[expect(clippy::zombie_processes, reason = "wait4 waits for it, and says what it took")]
    pub(crate) fn end_with_cost(mut self) -> (Ended, Duration) {
        drop(self.stdin.take());
        let mut child = self.child.take().expect("not ended yet");
        let until = Instant::now() + PATIENCE;
        let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
        let pid = child.id() as i32;
        // SAFETY: both have room for what the call writes, and the child is waited for here alone.
        while unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) } != pid {
            if Instant::now() > until {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: plain numbers, all zeroes before the call wrote some.
        let usage = unsafe { usage.assume_init() };
        let time = |time: libc::timeval| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        child.stdout.take().expect("a pipe").read_to_end(&mut stdout).expect("it can be read");
        child.stderr.take().expect("a pipe").read_to_end(&mut stderr).expect("it can be read");
        let output = Output { status: ExitStatus::from_raw(status), stdout, stderr };
        (output.into(), time(usage.ru_utime) + time(usage.ru_stime))
    }

    /// Asks it to stop and waits for its end.
    pub(crate) fn stop(mut self) -> Ended {
        self.signal(Signal::SIGTERM);
        self.end()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A new region with these further arguments.
pub(crate) fn create(folder: &TempDir, name: &str, args: &[&str]) -> String {
    let path = folder.path().join(name).display().to_string();
    run(&[&["create", &path], args].concat()).with(0);
    path
}

/// A sequencer that serves.
pub(crate) fn sequence(region: &str) -> Running {
    let mut sequencer = Running::start(&mut seriatim(&["sequence", region]));
    let line = sequencer.line();
    if !line.starts_with(&format!("serving {region} ")) {
        panic!("{line}: {:?}", sequencer.end());
    }
    sequencer
}

/// A journal that writes.
pub(crate) fn write_journal(region: &str, dir: &str, args: &[&str]) -> Running {
    let mut journal = Running::start(&mut seriatim(&[&["journal", region, dir], args].concat()));
    let line = journal.line();
    assert!(line.starts_with("writing "), "{line}: {:?}", journal.end());
    journal
}

/// Where a journal ends, if there is one.
pub(crate) fn end_of(dir: &str) -> u64 {
    Replay::open(dir).map_or(0, |replay| replay.end().get())
}

/// How long a file is; nothing if it is not there.
pub(crate) fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |file| file.len())
}

/// A path as an argument.
pub(crate) fn path(at: &Path) -> String {
    at.display().to_string()
}

/// A worker that has joined.
pub(crate) fn worker(region: &str, name: &str, args: &[&str]) -> Running {
    let worker = Running::start(&mut seriatim(&[&["worker", region, "--name", name], args].concat()));
    await_join(region, name);
    worker
}

/// Waits until a worker has joined: one that only asks to is in `stat` as well.
pub(crate) fn await_join(region: &str, name: &str) {
    eventually(&format!("{name} joins"), || {
        let workers = &stat(region)["workers"];
        workers.as_array().unwrap().iter().any(|row| row["name"] == name && row["attached"] == true)
    });
}

pub(crate) fn stat(region: &str) -> Value {
    run(&["stat", region, "--json"]).with(0).json()
}

/// Waits for something that has to happen.
#[track_caller]
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < PATIENCE, "never happened: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Tells threads that it is over when it is dropped, also by a test that fails: a scope waits for them.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn join(region: &Region, name: &str) -> Worker {
    Worker::join_with(region, name, &JoinOptions::new().timeout(ANSWER)).expect("there is a place")
}

pub(crate) fn attach(region: &Region, name: &str) -> Producer {
    Producer::attach_with(region, name, &AttachOptions::new().timeout(ANSWER)).expect("there is a place")
}

/// A file system in memory, gone with its guard.
pub(crate) struct Tmpfs(TempDir);

impl Tmpfs {
    pub(crate) fn mount(options: &str) -> Option<Tmpfs> {
        let folder = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(folder.path()).stderr(Stdio::null());
        let mounted = mount.status().is_ok_and(|status| status.success());
        if !mounted {
            println!("skipped: only who may mount can make a file system with {options}");
        }
        mounted.then_some(Tmpfs(folder))
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Changes its options.
    pub(crate) fn remount(&self, options: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{options}")]).arg(self.0.path());
        assert!(mount.status().unwrap().success(), "cannot remount with {options}");
    }

    /// Bytes in use, and names.
    pub(crate) fn used(&self) -> (u64, usize) {
        let mut df = Command::new("df");
        let said = df.args(["-B1", "--output=used"]).arg(self.0.path()).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let used = said.lines().nth(1).unwrap().trim().parse().unwrap();
        (used, fs::read_dir(self.0.path()).unwrap().count())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Why a folder has no room for so many bytes, if it has not.
pub(crate) fn lacks(folder: &Path, bytes: u64) -> Option<String> {
    let said = Command::new("df").args(["-B1", "--output=avail"]).arg(folder).output().unwrap();
    let free: u64 = String::from_utf8(said.stdout).unwrap().lines().nth(1)?.trim().parse().unwrap();
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let memory = memory.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    (free.min(memory) < bytes).then(|| format!("{bytes} bytes wanted, {free} free there, {memory} in memory"))
}

/// The children of a process, by what the kernel says.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc is there");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| parent_of(pid) == Some(parent)).collect()
}

/// Whether a process runs: one that nobody has waited for does not.
pub(crate) fn runs(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| fields[0] != "Z" && fields[0] != "X")
}

/// Whether a process is stopped; its other threads may take a moment longer.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| fields[0] == "T")
}

/// Whether every thread of a process sleeps.
pub(crate) fn is_asleep(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stats = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    stats.filter_map(|stat| fields_of(&stat)).all(|fields| fields[0] == "S")
}

/// CPU time that a process has used, in clock ticks.
pub(crate) fn cpu_ticks(pid: u32) -> u64 {
    let fields = stat_fields(pid).expect("it runs");
    let number = |field: usize| fields[field - 3].parse::<u64>().expect("a number");
    number(14) + number(15)
}

/// When a process started, in clock ticks since the machine did.
pub(crate) fn start_tick(pid: u32) -> u64 {
    stat_fields(pid).expect("it runs")[22 - 3].parse().expect("a number")
}

/// Clock ticks since the machine started.
pub(crate) fn ticks_since_boot() -> u64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("/proc is there");
    let seconds: f64 = uptime.split(' ').next().and_then(|text| text.parse().ok()).expect("a number");
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().expect("a number");
    (seconds * per_second as f64) as u64
}

fn parent_of(pid: u32) -> Option<u32> {
    stat_fields(pid)?[1].parse().ok()
}

/// The fields of `/proc/PID/stat` from the third on, which is the first after the name in parentheses.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    fields_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn fields_of(stat: &str) -> Option<Vec<String>> {
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(String::from).collect())
}

/// Lines to submit: some empty, most small, some of up to 20 kB, all different but the empty ones.
pub(crate) fn lines(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut text = Vec::new();
    for number in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = (state >> 33) as usize;
        let len = match random % 16 {
            0 => 0,
            1..12 => 8 + random / 16 % 56,
            12..15 => 64 + random / 16 % 1000,
            _ => 64 + random / 16 % 20_000,
        };
        if len > 0 {
            let mark = format!("{seed}:{number}:");
            text.extend_from_slice(mark.as_bytes());
            text.resize(text.len() + len.saturating_sub(mark.len()), b'a' + (number % 26) as u8);
        }
        text.push(b'\n');
    }
    text
}

/// The input of the main job: the command trace where it is, lines of the same kind otherwise.
pub(crate) fn input(folder: &TempDir) -> PathBuf {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/plans.ndjson");
    if trace.is_file() {
        return trace;
    }
    let path = folder.path().join("input");
    fs::write(&path, lines(2_500, 1)).expect("room for the input");
    path
}
