//! This program started again by itself, for one part of its work, and tied to the one that started it.

use std::os::unix::process::{CommandExt, parent_id};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::{prctl, signal};

/// This program again, with one of the commands that it has for itself. To be started on the main thread: the kernel ties
/// a child to the thread that started it.
pub(crate) fn again(command: &str) -> Command {
    // The very program that runs, even if its file has been replaced or removed since.
    let mut child = Command::new("/proc/self/exe");
    child.arg0("seriatim").arg(command).args(["--parent", &std::process::id().to_string()]);
    // An interrupt from the terminal is for the parent, which then ends its children.
    child.process_group(0);
    child
}

/// Has the kernel kill this process when `parent`, which started it as its own `whose`, dies.
pub(crate) fn tie_to(parent: u32, whose: &str) -> Result<()> {
    prctl::set_pdeathsig(signal::Signal::SIGKILL).context("cannot tie this process to its parent")?;
    // Had the parent died before that line, no signal would come.
    ensure!(parent_id() == parent, "this command is for `seriatim {whose}` itself");
    Ok(())
}
