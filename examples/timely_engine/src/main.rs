//! A small compute engine on a Timely cluster, with Seriatim as its command channel, or, to compare, with a channel made
//! of what Timely has. See README.md.
//!
//! | module | what is in it |
//! | --- | --- |
//! | [`command`] | what the controller says and workers answer |
//! | [`channel`] | what an engine needs of a command channel, and the two that it can have |
//! | [`engine`] | a worker: carries out commands |
//! | [`dataflows`] | what it builds in Timely, and answers from |
//! | [`process`] | a process of workers, and how it ends |
//! | [`cluster`] | the controller's side of all that |
//! | [`controller`] | one that remembers, so that an engine can be started again |
//! | [`script`], [`churn`], [`mod@bench`] | what a controller can do with it |

mod bench;
mod channel;
mod churn;
mod clock;
mod cluster;
mod command;
mod controller;
mod dataflows;
mod engine;
mod process;
mod replies;
mod script;

use std::process::ExitCode;

use clap::Parser;

/// A small compute engine on Timely Dataflow.
#[derive(Debug, Parser)]
enum Cli {
    /// Runs a script against an engine, and prints what it peeks at as JSON lines.
    Run(script::RunArgs),
    /// Creates and drops dataflows from several producers, and compares all workers' fingerprints.
    Churn(churn::ChurnArgs),
    /// Measures both channels, and prints tables.
    Bench(bench::BenchArgs),
    /// A process of an engine; the others start it.
    #[command(hide = true)]
    Process(process::ProcessArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse() {
        Cli::Run(args) => script::run(&args),
        Cli::Churn(args) => churn::run(&args),
        Cli::Bench(args) => bench::run(&args),
        Cli::Process(args) => process::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
