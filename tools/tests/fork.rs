//! A forked child neither keeps its parent alive nor releases anything of its parent's.
//!
//! The forking process is this test program itself, told by the environment what to do, for a fork takes all of
//! a process's handles with it.

mod common;

use std::cell::Cell;
use std::env;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio, exit};
use std::thread;
use std::time::{Duration, Instant};

use common::Running;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use seriatim::channel::{Bytes, Channel, InjectError, SendError, SequencedError};
use seriatim::{
    ApplyError, Config, Event, FileState, JoinOptions, Observer, ObserverError, Region, ReportError,
    Sequencer, SequencerConfig, SequencerError, SubmitError, WaitError, Worker, WorkerError,
};

const PART: &str = "SERIATIM_FORK_PART";

fn run(part: &str) {
    Running::start(&mut playing(part)).end().with(0);
}

/// This program, to play a part.
fn playing(part: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "part", "--nocapture"]).env(PART, part).stdin(Stdio::null());
    command
}

#[test]
fn handles_are_of_no_use_in_a_child_and_stay_whole_in_the_parent() {
    run("handles");
    let folder = common::scratch();
    run(&format!("handles {}", folder.path().join("region").display()));
}

#[test]
fn a_batch_that_forks_while_it_is_read_is_submitted_by_the_parent_alone() {
    run("batch");
}

#[test]
fn a_child_keeps_no_lock_of_a_parent_that_was_killed() {
    let folder = common::scratch();
    let path = folder.path().join("region");
    let region = Region::create(&path, &Config::new()).unwrap();
    let mut parent = Running::start(&mut playing(&format!("die {}", path.display())));
    // The grandchildren hold the pipe as well, so what is read is a line, not the end.
    let children = loop {
        let line = parent.line();
        if let Some(children) = line.strip_prefix("children ") {
            break children.to_string();
        }
        assert!(parent.has_output() || common::runs(parent.pid()), "it ended too early");
    };
    let children = Orphans(children.split(' ').map(|pid| Pid::from_raw(pid.parse().unwrap())).collect());
    // Kills it and waits for its end.
    drop(parent);

    // Its places are free while its children live, as soon as these have run for the first time.
    common::eventually("its children let go of its locks", || Sequencer::open(&region).is_ok());
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    common::join(&region, "w");
    common::attach(&region, "p");
    for (child, most) in children.0.iter().zip([0, 1]) {
        let open = std::fs::read_dir(format!("/proc/{child}/fd")).unwrap();
        let names = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        let locks = names.filter(|name| *name == path).count();
        // A program that was started has none; what was forked without exec has the region's own descriptor, which
        // holds no lock.
        assert!(locks <= most, "child {child} has the region open {locks} times");
    }
}

/// Processes that outlive the one that started them; they end with the test.
struct Orphans(Vec<Pid>);

impl Drop for Orphans {
    fn drop(&mut self) {
        for &child in &self.0 {
            let _ = kill(child, Signal::SIGKILL);
        }
    }
}

/// What the processes that fork do. Does nothing as a test.
#[test]
fn part() {
    match env::var(PART).ok().as_deref() {
        Some("handles") => use_handles(&Region::anonymous(&Config::new()).unwrap()),
        Some("batch") => fork_in_a_batch(),
        Some(other) => match other.split_once(' ').unwrap() {
            ("handles", path) => {
                use_handles(&Region::create(path, &Config::new()).unwrap());
                assert_eq!(Region::attach(path).unwrap().file_state(), FileState::Here);
            }
            ("die", path) => fork_and_wait(path),
            _ => panic!("no part {other:?}"),
        },
        None => {}
    }
}

fn use_handles(region: &Region) {
    const COMMANDS: u64 = 100_000;
    let region = region.clone();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let by_hand = JoinOptions::new().timeout(common::ANSWER).release_by_hand(true);
    let mut worker = Worker::join_with(&region, "w", &by_hand).unwrap();
    let mut producer = common::attach(&region, "p");
    common::attach(&region, "first").submit(0, b"lent across the fork").unwrap();
    while !matches!(worker.recv().unwrap(), Event::Command(_)) {}
    let cursor = || region.snapshot().workers[0].next;
    let before = cursor();
    let mut claiming = common::attach(&region, "claiming");
    let mut claim = claiming.claim(0, 5).unwrap();
    claim.copy_from_slice(b"mine!");
    let mut observer = Observer::attach(&region).unwrap();
    let channel = Channel::<[u8], Bytes>::with(&region, Bytes);
    let mut controller = channel.open("controller", 0).unwrap();
    let injector = channel.inject("injector").unwrap();
    let mut driven = Sequencer::open(&Region::anonymous(&Config::new()).unwrap()).unwrap();
    // SAFETY: the child touches nothing that another thread of the parent could have been in the middle of but
    // the allocator, which the C library keeps usable across forks.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // In its own memory, which it finds empty, and the parent does not find.
            let was_empty = claim[..] == [0; 5];
            claim.copy_from_slice(b"yours");
            let is_its_own = was_empty && claim[..] == *b"yours";
            let committed = claim.commit();
            let soon = Instant::now() + Duration::from_millis(1);
            let forked = matches!(producer.try_submit(0, b"x"), Err(SubmitError::Forked))
                && matches!(producer.submit(0, b"x"), Err(SubmitError::Forked))
                && matches!(producer.wait_sequenced(0), Err(WaitError::Forked))
                && is_its_own
                && matches!(committed, Err(SubmitError::Forked))
                && matches!(observer.poll(), Err(ObserverError::Forked))
                && matches!(observer.recv_deadline(soon), Err(ObserverError::Forked))
                && matches!(controller.send(b"x"), Err(SendError::Submit(SubmitError::Forked)))
                && matches!(controller.wait_sequenced(0), Err(SequencedError::Wait(WaitError::Forked)))
                && matches!(injector.try_send(b"x"), Err(InjectError::Submit(SubmitError::Forked)))
                && matches!(worker.poll(), Err(WorkerError::Forked))
                && matches!(worker.recv(), Err(WorkerError::Forked))
                && matches!(worker.report(7), Err(ReportError::Forked))
                && matches!(worker.wait_applied(before, Instant::now()), Err(ApplyError::Forked))
                && matches!(producer.wait_applied(before, Instant::now()), Err(ApplyError::Forked))
                && region.agreement().workers[0].reported.is_none()
                && {
                    worker.release();
                    cursor() == before
                }
                && matches!(driven.poll(16), Err(SequencerError::Forked))
                && matches!(sequencer.close(), Err(SequencerError::Forked));
            drop((producer, worker, claiming, observer, controller, injector, driven, region));
            exit(i32::from(!forked));
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0), "the child's handles");
            assert_eq!(claim[..], *b"mine!", "the child wrote into the parent's lane");
            drop(claim);
            assert_eq!(cursor(), before);
            observer.poll().unwrap();
            driven.poll(16).unwrap();
            let submitting = thread::spawn(move || {
                for n in 0..COMMANDS {
                    producer.submit_at(n, 0, &n.to_le_bytes()).unwrap();
                }
            });
            for n in 0..COMMANDS {
                let payload = loop {
                    if let Event::Command(command) = worker.recv().unwrap() {
                        break command.payload.to_vec();
                    }
                };
                worker.release();
                assert_eq!(payload, n.to_le_bytes());
            }
            submitting.join().unwrap();
            assert!(Sequencer::open(&region).is_err(), "the sequencer's lock was lost");
            assert!(Worker::join(&region, "w").is_err(), "the worker's lock was lost");
            sequencer.close().unwrap();
        }
    }
}

/// A payload that forks when it is asked for its bytes, once. In the child it has others, and has them only when the
/// parent is done.
struct Forks {
    forked: Cell<Option<ForkResult>>,
    bytes: &'static [u8],
    others: &'static [u8],
    done: io::PipeReader,
}

impl Forks {
    fn is_child(&self) -> bool {
        matches!(self.forked.get(), Some(ForkResult::Child))
    }
}

impl AsRef<[u8]> for Forks {
    fn as_ref(&self) -> &[u8] {
        if self.forked.get().is_none() {
            // SAFETY: as in `use_handles`.
            self.forked.set(Some(unsafe { fork() }.unwrap()));
            if self.is_child() {
                (&self.done).read_exact(&mut [0]).unwrap();
            }
        }
        if self.is_child() { self.others } else { self.bytes }
    }
}

fn fork_in_a_batch() {
    let region = Region::anonymous(&Config::new()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let (mut worker, mut producer) = (common::join(&region, "w"), common::attach(&region, "p"));
    // One that lies in its cell, and one that does not.
    for (bytes, others) in [(&[1][..], &[3][..]), (&[2; 100][..], &[4; 100][..])] {
        let (done, mut tell) = io::pipe().unwrap();
        let batch = [(0, Forks { forked: Cell::new(None), bytes, others, done })];
        let submitted = producer.try_submit_batch(&batch);
        match batch[0].1.forked.get() {
            Some(ForkResult::Parent { child }) => {
                submitted.unwrap();
                tell.write_all(&[0]).unwrap();
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0), "the child's batch");
                loop {
                    if let Event::Command(command) = worker.recv().unwrap() {
                        break assert_eq!(command.payload, bytes, "the child wrote into it");
                    }
                }
            }
            _ => exit(i32::from(submitted != Err(SubmitError::Forked))),
        }
    }
    sequencer.stop().unwrap();
    assert_eq!(worker.poll(), Ok(None));
}

/// Attaches as everything, forks and starts a program, and waits to be killed.
#[expect(clippy::zombie_processes, reason = "its children are to outlive it")]
fn fork_and_wait(path: &str) {
    let region = Region::attach(path).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let _worker = common::join(&region, "w");
    let _producer = common::attach(&region, "p");
    let program = Command::new("sleep").arg("1000").spawn().unwrap();
    // SAFETY: as in `use_handles`; the child only sleeps.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => loop {
            thread::park();
        },
        ForkResult::Parent { child } => {
            println!("children {} {child}", program.id());
            loop {
                thread::park();
            }
        }
    }
}
