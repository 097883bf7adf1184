//! The engine: carries out commands, one like the other at every worker. It does not know its channel.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use seriatim::channel::{Action, Commanded, Effect, History, HistoryError, Reconciler};
use seriatim::timely::fingerprint;
use timely::worker::Worker;

use crate::channel::{CommandChannel, Heard};
use crate::clock;
use crate::command::{Changes, Command, Plan, Reply, Report};
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
                Heard::Command(command) => engine.hear(timely, command),
                Heard::Incarnation(number) => engine.begin(number),
                Heard::Initialized => engine.reconcile(timely),
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

/// What a worker knows of what it was told. Everything of it follows from commands, so it is the same at every worker.
enum Known {
    /// The controller of this incarnation is saying what it wants; what the worker has is in there, too.
    First(u64, Reconciler<Command>),
    /// What the worker has.
    All(History<Command>),
}

struct Engine<'a> {
    worker: usize,
    replies: &'a Replies,
    installed: BTreeMap<u64, Installed>,
    known: Known,
    /// Nonces of what was answered, or refused.
    settled: Vec<u64>,
    commands: u64,
    echoes: Vec<(u64, u64)>,
}

impl<'a> Engine<'a> {
    fn new(timely: &Worker, replies: &'a Replies) -> Self {
        Engine {
            worker: timely.index(),
            replies,
            installed: BTreeMap::new(),
            known: Known::All(History::new()),
            settled: Vec::new(),
            commands: 0,
            echoes: Vec::new(),
        }
    }

    /// A controller comes.
    fn begin(&mut self, incarnation: u64) {
        let has = match self.take_known() {
            Known::All(history) => history,
            // The one before did not get to the end of what it wanted.
            Known::First(_, reconciler) => reconciler.abandon(),
        };
        self.known = Known::First(incarnation, Reconciler::new(has));
    }

    fn take_known(&mut self) -> Known {
        std::mem::replace(&mut self.known, Known::All(History::new()))
    }

    /// That controller has said what it wants: what the worker has of it stays.
    fn reconcile(&mut self, timely: &mut Worker) {
        let (incarnation, reconciler) = match self.take_known() {
            Known::First(incarnation, reconciler) => (incarnation, reconciler),
            all @ Known::All(_) => return self.known = all,
        };
        let (reconciled, mut changes) = (reconciler.finish(), Changes::default());
        for action in reconciled.actions() {
            match action {
                Action::EndRequests => self.installed.values_mut().for_each(|it| it.peeks.clear()),
                Action::Keep { .. } => changes.kept += 1,
                Action::Drop { old, .. } => {
                    changes.dropped += 1;
                    if let Effect::Creates(id) = old.effect() {
                        self.carry_out(timely, Command::DropDataflow { id });
                    }
                }
                Action::Create { new, .. } => {
                    changes.created += 1;
                    self.carry_out(timely, new.clone());
                }
                Action::Update(command) | Action::Ask(command) | Action::LetGo(command) => {
                    self.carry_out(timely, command.clone());
                }
                // This engine has no settings.
                Action::Reset(_) | Action::Configure(_) => {}
            }
        }
        self.known = Known::All(reconciled.into_history());
        self.replies.send(&Reply::Reconciled { worker: self.worker, incarnation, changes });
    }

    fn hear(&mut self, timely: &mut Worker, command: Command) {
        let known = match (command.effect(), &mut self.known) {
            (Effect::Passes, _) => Ok(true),
            (_, Known::All(history)) => history.push(command.clone()).map(|()| true),
            // Not now: when all is known that is wanted.
            (_, Known::First(_, reconciler)) => reconciler.push(command.clone()).map(|()| false),
        };
        match known {
            Ok(true) => self.carry_out(timely, command),
            Ok(false) => {}
            Err(error) => self.refuse(nonce_of(&command), in_words(&error)),
        }
        // After it: a question is told how many came before it.
        self.commands += 1;
    }

    fn carry_out(&mut self, timely: &mut Worker, command: Command) {
        let nonce = nonce_of(&command);
        if let Err(error) = self.try_carry_out(timely, command) {
            self.settled.extend(nonce);
            self.refuse(nonce, format!("{error:#}"));
        }
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
            Command::Echo { nonce, sweep, body } => {
                self.echoes.push((nonce, clock::monotonic_ns()));
                drop((body, std::hint::black_box(vec![1_u8; sweep])));
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

    /// What only this worker may meet, a file that it cannot read, must not keep it from building what the others build.
    fn create(&mut self, timely: &mut Worker, id: u64, plan: &Plan) -> Result<()> {
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
        let Engine { worker, replies, ref mut installed, ref mut settled, .. } = *self;
        for Installed { dataflow, since, peeks } in installed.values_mut() {
            for (time, nonce) in peeks.extract_if(.., |&mut (time, _)| dataflow.has_passed(time)) {
                replies.send(&Reply::Rows { nonce, worker, rows: dataflow.rows(time) });
                settled.push(nonce);
            }
            let asked = peeks.iter().map(|&(time, _)| time).min();
            dataflow.compact(asked.map_or(*since, |time| time.min(*since)));
        }
        if let Known::All(history) = &mut self.known {
            self.settled.drain(..).for_each(|nonce| {
                history.settle(&nonce);
            });
        }
    }
}

fn nonce_of(command: &Command) -> Option<u64> {
    if let Command::Peek { nonce, .. } = *command { Some(nonce) } else { None }
}

/// Why a command cannot be.
fn in_words(error: &HistoryError<u64>) -> String {
    match error {
        HistoryError::Lives { id } => format!("there is a dataflow {id} already"),
        HistoryError::UpdatesUnknown { id }
        | HistoryError::DropsUnknown { id }
        | HistoryError::NeedsUnknown { needed: id, .. } => format!("there is no dataflow {id}"),
        other => other.to_string(),
    }
}
