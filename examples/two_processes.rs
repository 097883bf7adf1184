//! Two processes, one region file: the parent orders and submits, its child works.
//!
//! Run it with `cargo run --example two_processes`. The program starts itself once more as the worker; what the
//! two share is the path of a file, nothing else. Both fold the digest of what they know, and compare.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, process};

use seriatim::{Config, Event, Producer, Region, Sequencer, SequencerConfig, SubmitError, Worker};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const COMMANDS: u64 = 100_000;
/// What the commands are, for those who handle them.
const ADD: u16 = 1;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().collect();
    match args.get(1..) {
        Some([role, path]) if role == "worker" => work(Path::new(path)),
        _ => lead(),
    }
}

/// The parent: makes the region, sequences it on a thread, and submits.
fn lead() -> Result<()> {
    let file = RegionFile::in_memory();
    let region = Region::create(&file.0, &Config::new().producers(1).workers(2))?;
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;

    let mut child = Started::again(&["worker".as_ref(), file.0.as_ref()])?;
    // From its first word on the child gates, and misses nothing.
    println!("child  {}", child.line()?);

    // A worker in this process sees the very same order.
    let mut here = Worker::join(&region, "parent")?;
    let mut producer = Producer::attach(&region, "controller")?;
    for n in 0..COMMANDS {
        // Whoever submits and works on one thread must not wait for room, which its own gate may keep: it works.
        while let Err(error) = producer.try_submit(ADD, &n.to_le_bytes()) {
            let SubmitError::Full(_) = error else { return Err(error.into()) };
            while here.poll()?.is_some() {}
            std::thread::yield_now();
        }
    }
    // The end comes after all that was submitted.
    let closing = std::thread::spawn(move || sequencer.close());
    while here.recv().is_ok() {}
    let stats = closing.join().expect("no panic")?;

    let said = child.line()?;
    println!("child  {said}");
    println!("parent {}", summary(&here, None));
    println!("order  {} commands in {} runs", stats.commands, stats.runs);
    let agree = said.ends_with(&here.digest().to_string());
    assert!(agree && child.0.wait()?.success(), "two processes saw different orders");
    println!("both processes agree");
    Ok(())
}

/// The child: attaches to the file, and works until the order is closed.
fn work(path: &Path) -> Result<()> {
    let region = Region::attach(path)?;
    let mut worker = Worker::join(&region, "child")?;
    println!("pid {} joins at index {}", process::id(), worker.first());
    let mut sum = 0;
    loop {
        // The payload is read in place, in the mapped file; nobody copied it.
        match worker.recv()? {
            Event::Command(c) if c.kind == ADD => sum += u64::from_le_bytes(c.payload.try_into()?),
            Event::Closed { .. } => break,
            _ => {}
        }
    }
    println!("{}", summary(&worker, Some(sum)));
    Ok(())
}

fn summary(worker: &Worker, sum: Option<u64>) -> String {
    let sum = sum.map_or(String::new(), |sum| format!("sum {sum}, "));
    format!("pid {}: {sum}next index {}, digest {}", process::id(), worker.next(), worker.digest())
}

/// This program once more, with its output in a pipe. It does not outlive us.
struct Started(Child, BufReader<process::ChildStdout>);

impl Started {
    fn again(args: &[&std::ffi::OsStr]) -> Result<Started> {
        let mut child = Command::new(env::current_exe()?).args(args).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("no pipe")?;
        Ok(Started(child, BufReader::new(output)))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.1.read_line(&mut line)?;
        if line.is_empty() { Err("the child ended early".into()) } else { Ok(line.trim_end().into()) }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It has ended already, unless something went wrong here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A path in memory if the machine has such a place, and no file there in the end.
struct RegionFile(PathBuf);

impl RegionFile {
    fn in_memory() -> RegionFile {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() { shm.into() } else { env::temp_dir() };
        RegionFile(dir.join(format!("seriatim-two-processes-{}", process::id())))
    }
}

impl Drop for RegionFile {
    fn drop(&mut self) {
        // Best effort; who is attached keeps the memory until it ends.
        let _ = fs::remove_file(&self.0);
    }
}
