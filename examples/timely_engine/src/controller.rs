//! A controller that remembers what it has commanded: so it can come again, and an engine that has died can be started
//! again and be brought to where it was.

use anyhow::{Context, Result};
use serde_json::json;
use seriatim::channel::{Commanded, Effect, History};

use crate::channel::CommandSender;
use crate::cluster::{Cluster, Shape};
use crate::command::{Command, Reply};
use crate::script::say;

/// A controller and its engine.
pub(crate) struct Controller {
    pub(crate) cluster: Cluster,
    sender: Option<Box<dyn CommandSender>>,
    history: History<Command>,
    restarts: bool,
}

impl Controller {
    /// Starts an engine; `restarts` says whether it is to be started again when it has died.
    ///
    /// # Errors
    /// It did not come up, and why.
    pub(crate) fn start(shape: Shape, restarts: bool) -> Result<Controller> {
        let mut cluster = Cluster::start(shape, 1, 0)?;
        let history = History::new();
        let (sender, _) = cluster.controller(&history)?;
        let controller = Controller { cluster, sender: Some(sender), history, restarts };
        controller.say_where()?;
        Ok(controller)
    }

    fn say_where(&self) -> Result<()> {
        self.cluster.whereabouts().try_for_each(|place| say(&serde_json::to_value(place)?))
    }

    /// Sends a command. What it leaves is remembered before, so that it is not lost with an engine that dies of it.
    ///
    /// # Errors
    /// It could not be sent; or the engine has died, and is not started again.
    pub(crate) fn send(&mut self, command: &Command) -> Result<()> {
        // What cannot be is for the workers to refuse, which all do alike.
        let _ = match command.effect() {
            Effect::Passes => Ok(()),
            _ => self.history.push(command.clone()),
        };
        let sent = self.cluster.send(&mut **self.sender.as_mut().context("there is a controller")?, command);
        sent.or_else(|error| self.restart_after(error))
    }

    /// Sends a question, and waits for each worker's answer. One that dies is asked again, as all that is open.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(crate) fn ask(&mut self, command: &Command, nonce: u64) -> Result<Vec<Reply>> {
        self.send(command)?;
        let answers = loop {
            match self.cluster.answers(nonce) {
                Ok(answers) => break answers,
                Err(error) => self.restart_after(error)?,
            }
        };
        self.history.settle(&nonce);
        Ok(answers)
    }

    /// Looks after the engine while there is nothing to say.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub(crate) fn look(&mut self) -> Result<()> {
        self.cluster.check().or_else(|error| self.restart_after(error))
    }

    /// Goes, and comes again as a new controller would: the engine keeps what it has of what that one wants.
    ///
    /// # Errors
    /// The engine has died, or its channel knows of no controllers that come later.
    pub(crate) fn reconnect(&mut self) -> Result<()> {
        // There is one of its name.
        self.sender = None;
        let (sender, changes) = self.cluster.controller(&self.history)?;
        self.sender = Some(sender);
        say(&json!({ "reconciled": changes }))
    }

    /// Starts the engine again if it has died and is to be; else that was the error.
    fn restart_after(&mut self, error: anyhow::Error) -> Result<()> {
        if !self.restarts || !self.cluster.has_lost_one()? {
            return Err(error);
        }
        say(&json!({ "lost": format!("{error:#}") }))?;
        self.cluster.restart()?;
        self.say_where()?;
        self.reconnect()
    }

    /// The engine and the end of the channel, for questions that nobody has to remember.
    pub(crate) fn parts(&mut self) -> Result<(&mut Cluster, &mut dyn CommandSender)> {
        Ok((&mut self.cluster, &mut **self.sender.as_mut().context("there is a controller")?))
    }
}
