//! Processes that do not end by themselves: a test kills them, or they kill themselves at a step.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::eventually;

/// Such a process, which does not outlive its test.
pub(crate) struct Doomed {
    child: Child,
    /// Where it says what is the matter.
    complaints: Option<PathBuf>,
}

impl Doomed {
    /// Starts it; what it prints is lost.
    pub(crate) fn start(command: &mut Command) -> Doomed {
        Self::of(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts"))
    }

    /// Starts it; what it prints on standard error goes behind what a file has.
    pub(crate) fn start_into(command: &mut Command, complaints: &Path) -> Doomed {
        let file = File::options().create(true).append(true).open(complaints).expect("a file of its own");
        let mut doomed = Self::start(command.stderr(file));
        doomed.complaints = Some(complaints.into());
        doomed
    }

    /// Starts it, to kill itself at a step (`point:pass`), or to stop there.
    pub(crate) fn start_until(command: &mut Command, step: &str) -> Doomed {
        Self::start(command.env("SERIATIM_CRASH", step).stderr(Stdio::null()))
    }

    /// One that was started in another way.
    pub(crate) fn of(child: Child) -> Doomed {
        Doomed { child, complaints: None }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("a signal can be sent");
    }

    /// What all those said that share its file.
    fn complaints(&self) -> String {
        self.complaints.as_ref().map_or(String::new(), |file| fs::read_to_string(file).unwrap_or_default())
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// That it still runs.
    #[track_caller]
    pub(crate) fn lives(&mut self, context: &str) {
        let ended = self.ended();
        assert_eq!(ended, None, "{context}: it ended by itself: {}", self.complaints());
    }

    /// Whether it has been killed: nothing else ends it.
    #[track_caller]
    pub(crate) fn has_been_killed(&mut self) -> bool {
        self.is_killed("")
    }

    #[track_caller]
    fn is_killed(&mut self, context: &str) -> bool {
        let Some(status) = self.ended() else { return false };
        let killed = Some(Signal::SIGKILL as i32);
        assert_eq!(status.signal(), killed, "{context}: it ended by itself: {status}: {}", self.complaints());
        true
    }

    /// Waits until it has been killed.
    #[track_caller]
    pub(crate) fn await_kill(&mut self, context: &str) {
        eventually(context, || self.is_killed(context));
    }

    /// Kills it.
    #[track_caller]
    pub(crate) fn kill(mut self, context: &str) {
        self.lives(context);
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Asks it to end, which it does.
    #[track_caller]
    pub(crate) fn end(mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.child.wait().expect("a child can be waited for").success(), "{}", self.complaints());
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
