//! The commands, one file each.

mod bench;
mod create;
mod errors;
mod follow;
mod inspect;
mod journal;
mod prune;
mod remove;
mod replay;
mod run;
mod sequence;
mod stat;
mod submit;
mod tail;
mod verify;
mod worker;

use anyhow::Result;
use clap::Subcommand;

use crate::Outcome;

/// What `seriatim` can be told to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Args),
    Bench(bench::Args),
    Create(create::Args),
    Remove(remove::Args),
    Sequence(sequence::Args),
    Submit(submit::Args),
    Worker(worker::Args),
    Tail(tail::Args),
    Stat(stat::Args),
    Inspect(inspect::Args),
    Errors(errors::Args),
    Verify(verify::Args),
    Journal(journal::Args),
    Replay(replay::Args),
    /// One producer or worker of `run`, in a process of its own.
    #[command(hide = true)]
    Party(crate::crew::PartyArgs),
    /// One measurement of `bench`.
    #[command(hide = true)]
    BenchOne(crate::bench::OneArgs),
    /// One part of a measurement, in a process of its own.
    #[command(hide = true)]
    BenchPart(crate::bench::PartArgs),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Run(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Create(args) => args.run(),
            Self::Remove(args) => args.run(),
            Self::Sequence(args) => args.run(),
            Self::Submit(args) => args.run(),
            Self::Worker(args) => args.run(),
            Self::Tail(args) => args.run(),
            Self::Stat(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Errors(args) => args.run(),
            Self::Verify(args) => args.run(),
            Self::Journal(args) => args.run(),
            Self::Replay(args) => args.run(),
            Self::Party(args) => args.run(),
            Self::BenchOne(args) => args.run(),
            Self::BenchPart(args) => args.run(),
        }
    }
}
