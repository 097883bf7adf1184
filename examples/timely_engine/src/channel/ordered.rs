//! The channel through Seriatim: every worker reads the commands where their producer wrote them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use seriatim::channel::{Channel, Event, History, InjectError, Injector, Receiver, Sender};
use seriatim::timely::Parking;
use seriatim::{AttachOptions, JoinOptions, Notifier, Region, SubmitError};
use timely::worker::Worker;

use super::{CommandChannel, CommandSender, Heard};
use crate::command::Command;

/// How long to wait for the sequencer's process to come up, and for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// A worker's end: a worker of the order in the Timely worker's thread.
///
/// An engine that is started again comes to an order in which there still may be what its former run was told, more of
/// it for one worker than for another. So it hears nothing before a controller that came for this run: the upper half
/// of a controller's nonce says for which.
pub(crate) struct Ordered {
    receiver: Receiver<Command>,
    parking: Parking,
    run: u32,
    /// A controller has come for this run.
    is_heard: bool,
}

/// What a controller that comes for a run says hello with; each of a run has another `number`.
pub(crate) fn nonce(run: u32, number: u32) -> u64 {
    u64::from(run) << 32 | u64::from(number)
}

impl Ordered {
    /// Joins. One notifier is enough for all workers of a process.
    pub(crate) fn join(region: &Region, timely: &Worker, notifier: &Notifier, run: u32) -> Result<Ordered> {
        let name = format!("worker-{}@{run}", timely.index());
        let receiver = Channel::attach(region).join_with(&name, &JoinOptions::new().timeout(PATIENCE))?;
        Ok(Ordered { receiver, parking: Parking::new(timely, notifier), run, is_heard: false })
    }
}

impl CommandChannel for Ordered {
    fn next(&mut self) -> Result<Option<Heard>> {
        while let Some(event) = self.receiver.poll()? {
            match event {
                Event::Incarnation { nonce, number, .. } => {
                    self.is_heard = nonce >> 32 == u64::from(self.run);
                    if self.is_heard {
                        return Ok(Some(Heard::Incarnation(number)));
                    }
                }
                Event::World(seriatim::Event::Closed { .. }) => {
                    bail!("the order was closed before the engine")
                }
                Event::World(seriatim::Event::Left(who)) => {
                    // Those of the former run left, too.
                    if let Some((name, run)) = who.name.to_string().split_once('@')
                        && run == self.run.to_string()
                    {
                        return Ok(Some(Heard::Lost(name.to_owned())));
                    }
                }
                _ if !self.is_heard => {}
                Event::Command(command) => return Ok(Some(Heard::Command(command.decode()?))),
                Event::Initialized { .. } => return Ok(Some(Heard::Initialized)),
                // Somebody came.
                Event::World(_) => {}
            }
        }
        Ok(None)
    }

    fn step_or_park(&mut self, timely: &mut Worker) -> Result<()> {
        self.parking.step_or_park(timely, self.receiver.worker_mut(), None)?;
        Ok(())
    }
}

/// The controller's end.
pub(crate) struct Controller(Sender<Command>);

impl Controller {
    /// Opens an incarnation that begins with what the engine is to have.
    pub(crate) fn open(region: &Region, nonce: u64, history: &History<Command>) -> Result<Controller> {
        let options = AttachOptions::new().timeout(PATIENCE);
        let mut controller = Controller(Channel::attach(region).open_with("controller", nonce, &options)?);
        history.commands().into_iter().try_for_each(|command| controller.send(command))?;
        controller.0.initialization_complete()?;
        Ok(controller)
    }

    /// The number of its incarnation.
    pub(crate) fn incarnation(&self) -> u64 {
        self.0.number()
    }
}

impl CommandSender for Controller {
    fn send(&mut self, command: &Command) -> Result<()> {
        self.0.send_deadline(command, Instant::now() + PATIENCE)?;
        Ok(())
    }
}

/// The end of whoever else has something to say.
pub(crate) struct Other(Injector<Command>);

impl Other {
    /// Attaches under a name of its own.
    pub(crate) fn attach(region: &Region, name: &str) -> Result<Other> {
        let options = AttachOptions::new().timeout(PATIENCE);
        Ok(Other(Channel::attach(region).inject_with(name, &options)?))
    }
}

impl CommandSender for Other {
    fn send(&mut self, command: &Command) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.0.try_send(command) {
                // An injector never waits, for a worker must not. This one is no worker's.
                Err(InjectError::Submit(SubmitError::Full(_))) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                outcome => return outcome.map(drop).context("an injector's command"),
            }
        }
    }
}
