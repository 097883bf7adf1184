//! The engine: carries out commands, one like the other at every worker. It does not know its channel.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use seriatim::timely::fingerprint;
use timely::worker::Worker;

use crate::channel::{CommandChannel, Heard};
use crate::clock;
use crate::command::{Command, Plan, Reply, Report};
use crate::dataflows::{Dataflow, read_share};
use crate::replies::Replies;

/// After so many commands Timely gets its turn.
const AT_ONCE: usize = 64;

/// Runs a worker until it is shut down.
///
/// # Errors
/// The channel is broken, or a worker is gone.
pub(crate) fn run(timely: &mut Worker, channel: &mut impl CommandChannel, replies: &Replies) -> Result<()> {
    let mut engine = Engine::new(timely, replies);
    replies.send(&Reply::Ready { worker: timely.index() });
    loop {
        let mut heard = 0;
        while heard < AT_ONCE
            && let Some(what) = channel.next()?
        {
            match what {
                Heard::Command(Command::Shutdown) => return Ok(()),
                Heard::Command(command) => engine.carry_out(timely, command),
                Heard::Lost(who) => bail!("{who} is gone: nothing is complete without its part"),
            }
            heard += 1;
        }
        engine.answer();
        if heard > 0 {
            timely.step();
        } else {
            channel.step_or_park(timely)?;
        }
    }
}

/// A dataflow under its identifier, and what is asked of it.
struct Installed {
    dataflow: Dataflow,
    /// Nobody may ask for anything before this.
    since: u64,
    /// Time and nonce of what is not answered.
    peeks: Vec<(u64, u64)>,
}

struct Engine<'a> {
    worker: usize,
    replies: &'a Replies,
    installed: BTreeMap<u64, Installed>,
    commands: u64,
    echoes: Vec<(u64, u64)>,
}

impl<'a> Engine<'a> {
    fn new(timely: &Worker, replies: &'a Replies) -> Self {
        let (worker, installed, echoes) = (timely.index(), BTreeMap::new(), Vec::new());
        Engine { worker, replies, installed, commands: 0, echoes }
    }

    fn carry_out(&mut self, timely: &mut Worker, command: Command) {
        let nonce = if let Command::Peek { nonce, .. } = command { Some(nonce) } else { None };
        if let Err(error) = self.try_carry_out(timely, command) {
            self.refuse(nonce, format!("{error:#}"));
        }
        self.commands += 1;
    }

    fn refuse(&self, nonce: Option<u64>, why: String) {
        self.replies.send(&Reply::Refused { nonce, worker: self.worker, why });
    }

    fn try_carry_out(&mut self, timely: &mut Worker, command: Command) -> Result<()> {
        let worker = self.worker;
        match command {
            Command::CreateDataflow { id, plan } => self.create(timely, id, &plan)?,
            Command::AdvanceTo { id, time } => self.find(id)?.dataflow.advance_to(time),
            Command::AllowCompaction { id, time } => {
                let installed = self.find(id)?;
                installed.since = installed.since.max(time);
            }
            Command::Peek { id, time, nonce } => {
                let installed = self.find(id)?;
                if time < installed.since {
                    bail!("dataflow {id} is compacted to {}, {time} is asked for", installed.since);
                }
                installed.peeks.push((time, nonce));
            }
            Command::DropDataflow { id } => self.drop_dataflow(id)?,
            Command::Fingerprint { nonce } => {
                let (fingerprint, commands) = (fingerprint(timely), self.commands);
                self.replies.send(&Reply::Fingerprint { nonce, worker, fingerprint, commands });
            }
            Command::Echo { nonce, body } => {
                self.echoes.push((nonce, clock::monotonic_ns()));
                drop(body);
            }
            Command::Report { nonce } => {
                let report = Report {
                    echoes: std::mem::take(&mut self.echoes),
                    cpu_ns: clock::thread_cpu_ns(),
                    process_cpu_ns: clock::process_cpu_ns(),
                };
                self.replies.send(&Reply::Report { nonce, worker, report });
            }
            Command::Shutdown => {}
        }
        Ok(())
    }

    fn find(&mut self, id: u64) -> Result<&mut Installed> {
        let Some(installed) = self.installed.get_mut(&id) else { bail!("there is no dataflow {id}") };
        Ok(installed)
    }

    /// Refuses what every worker refuses, before anything is built. What only this worker may meet, a file that it
    /// cannot read, must not keep it from building what the others build.
    fn create(&mut self, timely: &mut Worker, id: u64, plan: &Plan) -> Result<()> {
        if self.installed.contains_key(&id) {
            bail!("there is a dataflow {id} already");
        }
        let read = read_share(plan.edges(), timely.index(), timely.peers());
        let (share, outcome) = match read {
            Ok(share) => (share, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        let dataflow = Dataflow::build(timely, plan, share);
        self.installed.insert(id, Installed { dataflow, since: 0, peeks: Vec::new() });
        outcome
    }

    /// Drops its input, so that it ends by itself when what is under way has arrived, at all workers.
    fn drop_dataflow(&mut self, id: u64) -> Result<()> {
        let Some(installed) = self.installed.remove(&id) else { bail!("there is no dataflow {id}") };
        for (_, nonce) in installed.peeks {
            self.refuse(Some(nonce), format!("dataflow {id} was dropped before this was known"));
        }
        Ok(())
    }

    /// Answers what is known by now, and forgets what nobody may ask for any more.
    fn answer(&mut self) {
        let Engine { worker, replies, ref mut installed, .. } = *self;
        for Installed { dataflow, since, peeks } in installed.values_mut() {
            for (time, nonce) in peeks.extract_if(.., |&mut (time, _)| dataflow.has_passed(time)) {
                replies.send(&Reply::Rows { nonce, worker, rows: dataflow.rows(time) });
            }
            let asked = peeks.iter().map(|&(time, _)| time).min();
            dataflow.compact(asked.map_or(*since, |time| time.min(*since)));
        }
    }
}
