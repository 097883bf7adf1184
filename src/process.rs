//! Other processes, by what the kernel says of them: a pid alone is no identity.
//!
//! A pid may belong to another process by the time that it is used. So a party leaves its start time beside its
//! pid, and nothing is done to a process before both agree. The pidfd is opened between two looks at the start
//! time: if both find the one that is meant, the descriptor is of that one, and stays so.
//!
//! A pid is of a pid namespace, and `/proc` may be of another one: then nobody says when he started, and nobody is
//! looked for. One of another namespace whose pid is taken here, too, has another start time than who has it here.

use std::fmt;
use std::fs::File;
use std::io;
use std::time::Duration;

use seriatim_ring::control::Party;
use seriatim_ring::sync::Ordering;

use crate::sys;

/// A process as it said itself who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its pid.
    pub(crate) pid: u32,
    /// When it started, in the kernel's ticks since boot.
    pub(crate) started: u64,
}

/// Why a process was not killed. Nothing was done to anybody.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotKilled {
    /// There is no process of this pid, where this process looks.
    Gone {
        /// The pid.
        pid: u32,
    },
    /// The pid belongs to another process now.
    Other {
        /// The pid.
        pid: u32,
        /// When the one that is meant started, in ticks since boot.
        expected: u64,
        /// When the one started that has the pid now.
        found: u64,
    },
    /// It did not leave its start time beside its pid: it is in another pid namespace, and the pid is another's here,
    /// or it was about to leave.
    Unknown {
        /// The pid.
        pid: u32,
    },
    /// `/proc` tells of another pid namespace than the one in which this process is: whose pid it is cannot be told.
    Unseen {
        /// The pid.
        pid: u32,
    },
    /// It is the process that was to kill it.
    Itself {
        /// The pid.
        pid: u32,
    },
    /// The system refused.
    Refused {
        /// The pid.
        pid: u32,
        /// Its answer.
        source: io::Error,
    },
}

impl fmt::Display for NotKilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotKilled::Gone { pid } => write!(f, "there is no process {pid} here"),
            NotKilled::Other { pid, expected, found } => {
                write!(f, "pid {pid} is another process now: it started at tick {found}, not at {expected}")
            }
            NotKilled::Unknown { pid } => {
                write!(f, "it left pid {pid} without a start time, as one does in another pid namespace")
            }
            NotKilled::Unseen { pid } => {
                write!(f, "whose pid {pid} is cannot be told here: /proc is of another pid namespace")
            }
            NotKilled::Itself { pid } => write!(f, "pid {pid} is this process"),
            NotKilled::Refused { pid, source } => write!(f, "cannot kill pid {pid}: {source}"),
        }
    }
}

impl std::error::Error for NotKilled {}

impl Process {
    /// This process.
    pub(crate) fn this() -> Process {
        let pid = std::process::id();
        let started = sys::sees_its_namespace().then(|| sys::start_time_of(pid)).flatten();
        Process { pid, started: started.unwrap_or(0) }
    }

    /// The process of a party, as it says itself.
    pub(crate) fn of(party: &Party) -> Process {
        let pid = party.pid.load(Ordering::Relaxed) as u32;
        Process { pid, started: party.started.load(Ordering::Relaxed) }
    }

    /// Whether it is a process of this pid namespace, and there.
    pub(crate) fn is_there(self) -> bool {
        self.check().is_ok()
    }

    /// Whether it is there, and is not about to end.
    pub(crate) fn lives(self) -> bool {
        self.is_there() && sys::is_ending(self.pid) == Some(false)
    }

    /// Whether it is there, and is about to end: what it holds falls soon, how soon is up to the kernel.
    pub(crate) fn is_ending(self) -> bool {
        self.is_there() && sys::is_ending(self.pid) == Some(true)
    }

    /// The CPU on which its first thread ran last; `None` if it is not there.
    pub(crate) fn last_cpu(self) -> Option<u64> {
        // Another one may get its pid between the two looks: then the number is another's, once.
        self.is_there().then(|| sys::last_cpu_of(self.pid)).flatten()
    }

    fn check(self) -> Result<(), NotKilled> {
        let Process { pid, started: expected } = self;
        if !sys::sees_its_namespace() {
            return Err(NotKilled::Unseen { pid });
        }
        match sys::start_time_of(pid) {
            // 0 is what one left that did not know.
            _ if expected == 0 => Err(NotKilled::Unknown { pid }),
            Some(found) if found == expected => Ok(()),
            Some(found) => Err(NotKilled::Other { pid, expected, found }),
            None => Err(NotKilled::Gone { pid }),
        }
    }

    /// A descriptor of exactly this process.
    fn open(self) -> Result<File, NotKilled> {
        let pid = self.pid;
        self.check()?;
        let file = sys::open_process(pid).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => NotKilled::Gone { pid },
            _ => NotKilled::Refused { pid, source },
        })?;
        self.check()?;
        Ok(file)
    }

    /// Kills it, be it stopped or not. It may take the kernel a while to end it: only its lock says when.
    pub(crate) fn kill(self) -> Result<(), NotKilled> {
        let pid = self.pid;
        if pid == std::process::id() {
            return Err(NotKilled::Itself { pid });
        }
        let process = self.open()?;
        sys::kill_process(&process).map_err(|source| NotKilled::Refused { pid, source })
    }

    /// Sleeps until it ends, or for `longest`; less where the kernel does not tell its end. Any return is a
    /// reason to look again, and no more than that.
    pub(crate) fn await_end(self, longest: Duration) {
        /// Between two looks where nothing wakes.
        const BLIND: Duration = Duration::from_millis(10);
        /// After its end: its lock falls before that is told, but may have a new holder.
        const AFTER: Duration = Duration::from_millis(1);
        let ended = self.open().ok().and_then(|process| sys::await_process(&process, longest).ok());
        match ended {
            Some(false) => {}
            Some(true) => std::thread::sleep(AFTER.min(longest)),
            None => std::thread::sleep(BLIND.min(longest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A child that waits for the end of its input.
    fn child() -> (Child, Process) {
        let mut command = Command::new("cat");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let started = sys::start_time_of(child.id()).unwrap();
        let process = Process { pid: child.id(), started };
        (child, process)
    }

    #[test]
    fn the_one_that_is_meant_is_killed() {
        let (mut child, process) = child();
        process.kill().unwrap();
        process.await_end(Duration::from_secs(60));
        assert!(!child.wait().unwrap().success());
        assert!(matches!(process.kill(), Err(NotKilled::Gone { .. } | NotKilled::Other { .. })));
    }

    #[test]
    fn another_with_its_pid_is_left_alone() {
        let (mut child, process) = child();
        let another = Process { started: process.started + 1, ..process }.kill().unwrap_err();
        assert!(matches!(another, NotKilled::Other { found, .. } if found == process.started), "{another}");
        let unknown = Process { started: 0, ..process }.kill().unwrap_err();
        assert!(matches!(unknown, NotKilled::Unknown { .. }), "{unknown}");
        // It ends by itself, at the end of its input.
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_process_does_not_kill_itself() {
        assert!(matches!(Process::this().kill(), Err(NotKilled::Itself { .. })));
    }
}
