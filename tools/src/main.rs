//! `seriatim`: one order for the commands of many processes, through one mapped file.
//!
//! This file parses the command line, dispatches, and turns the outcome into an exit code. Each command has
//! a file in [`cmd`].
#![forbid(unsafe_code)]

mod args;
mod bench;
mod child;
mod cmd;
mod crew;
mod input;
mod log;
mod open;
mod output;
mod party;
mod progress;
mod proof;
mod signal;

use std::process::ExitCode;

use clap::Parser;

use crate::cmd::Command;

/// How a command ended when nothing kept it from running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All is well: exit code 0.
    Done,
    /// It ran and found something wrong, which it has already reported: exit code 1.
    Problem,
}

const EXAMPLES: &str = "\
Examples:
  seriatim run commands.txt                        one identical order for 4 workers, with the proof
  seriatim create /dev/shm/orders                  the same by hand: a region,
  seriatim sequence /dev/shm/orders &              its sequencer,
  seriatim worker /dev/shm/orders &                a worker that prints what it receives,
  seriatim submit /dev/shm/orders commands.txt     a producer,
  seriatim stat /dev/shm/orders                    and a look at all of them

Exit code: 0 done, 1 found a problem, 2 could not run.";

/// Puts the commands of many processes into one order and hands each of them to every worker, through one
/// mapped file.
///
/// A command is a line of bytes. Producers submit them, one sequencer orders them, and every worker receives
/// all of them in the same order.
#[derive(Debug, Parser)]
#[command(name = "seriatim", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command.run() {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Problem) => ExitCode::from(1),
        // Whoever reads us has seen enough: that is how `seriatim tail … | head` ends.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(format_args!("{}", output::causes(&error)));
            ExitCode::from(2)
        }
    }
}
