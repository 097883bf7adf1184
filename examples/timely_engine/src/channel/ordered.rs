//! The channel through Seriatim: every worker reads the commands where their producer wrote them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use seriatim::channel::{Channel, Event, InjectError, Injector, Receiver, Sender};
use seriatim::timely::Parking;
use seriatim::{AttachOptions, JoinOptions, Notifier, Region, SubmitError};
use timely::worker::Worker;

use super::{CommandChannel, CommandSender, Heard};
use crate::command::Command;

/// How long to wait for the sequencer's process to come up, and for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// A worker's end: a worker of the order in the Timely worker's thread.
pub(crate) struct Ordered {
    receiver: Receiver<Command>,
    parking: Parking,
}

impl Ordered {
    /// Joins. One notifier is enough for all workers of a process.
    pub(crate) fn join(region: &Region, timely: &Worker, notifier: &Notifier) -> Result<Ordered> {
        let name = format!("worker-{}", timely.index());
        let receiver = Channel::attach(region).join_with(&name, &JoinOptions::new().timeout(PATIENCE))?;
        Ok(Ordered { receiver, parking: Parking::new(timely, notifier) })
    }
}

impl CommandChannel for Ordered {
    fn next(&mut self) -> Result<Option<Heard>> {
        while let Some(event) = self.receiver.poll()? {
            match event {
                Event::Command(command) => return Ok(Some(Heard::Command(command.decode()?))),
                Event::World(seriatim::Event::Left(who)) => {
                    return Ok(Some(Heard::Lost(who.name.to_string())));
                }
                Event::World(seriatim::Event::Closed { .. }) => {
                    bail!("the order was closed before the engine")
                }
                // Somebody came, or a controller says hello: this engine has one, and begins with nothing.
                Event::World(_) | Event::Incarnation { .. } | Event::Initialized { .. } => {}
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
    /// Opens an incarnation that begins with nothing.
    pub(crate) fn open(region: &Region) -> Result<Controller> {
        let options = AttachOptions::new().timeout(PATIENCE);
        let nonce = std::process::id().into();
        let mut sender = Channel::attach(region).open_with("controller", nonce, &options)?;
        sender.initialization_complete()?;
        Ok(Controller(sender))
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
