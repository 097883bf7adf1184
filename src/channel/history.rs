//! [`History`]: what has been commanded, reduced to what still matters.
//!
//! A controller keeps one to bring a new worker, or all of them in a new incarnation, to where it stands. A worker
//! keeps one to know what it has when the next controller comes ([`Reconciler`](super::Reconciler)).
//!
//! ```text
//!  pushed      set a=1   create x@0   create y(x)@4   ask r(y)   set a=2   x to 3   settle r   create z   drop z
//!                  └──────────────────────────────────────────────────┐      │          ╵             ╵
//!  commands()  set a=2   create x@3   create y(x)@4  ◀────────────────┴──────┘      nothing is left of these
//! ```
//!
//! A command says what it does ([`Commanded::effect`]); what that means for the others is decided here:
//!
//! - Of settings, the last of each key is left, [merged](Commanded::merge) with those before.
//! - A thing that was created has its updates in it ([`Commanded::advance`]), and, of what it cannot take in, one
//!   command for each key.
//! - Of a thing that was dropped nothing is left: no creation, no update, no drop, and no open request that needs it.
//!   Unless something that lives *needs* it: then all of it stays, its drop included, until that is dropped, too.
//! - Of a request that was settled nothing is left.
//!
//! What is left has one order, the *canonical* one, so that histories which mean the same are equal:
//!
//! 1. the settings, by key;
//! 2. the things in the order of their creation, each followed by the updates that it could not take in, by key;
//!    before a thing of an id that was used before, the drop of the earlier one, where that has stayed;
//! 3. the open requests, in the order in which they were made;
//! 4. the other drops that have stayed, in the order of the creations.
//!
//! # What is asked of an engine
//!
//! That this order means what the original one did. So:
//!
//! - A setting has the same effect on a thing whether it comes before or after the creation.
//! - Updates of different things, or of one thing under different keys, may change places.
//! - Whoever sends updates sees to it that everything that lives, things and open requests, can still be made on what
//!   it needs *as that is then*: who lets x advance to 5 does so when no living thing and no open request needs x at
//!   4.
//! - A request ends when what it needs is dropped.
//!
//! # What it costs
//!
//! Nothing is left for later: a history is reduced after every command, so that its memory is bounded by what lives
//! (and what that needs), and a command takes time logarithmic in that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) mod toy;

/// A command that says what it does, so that a [`History`] can tell what is left of it.
pub trait Commanded: Sized {
    /// What things and requests are called. Things and requests have names of their own: one of each may share an id.
    type Id: Ord + Clone + fmt::Debug;
    /// What of two settings, or of two updates of one thing, makes the later succeed the earlier: the same key.
    type Key: Ord + Clone;

    /// What it does.
    fn effect(&self) -> Effect<Self::Id, Self::Key>;

    /// The things without which a creation or a request is impossible. Those which no command creates are none of them.
    fn needs(&self) -> impl Iterator<Item = Self::Id> {
        std::iter::empty()
    }

    /// Takes up a later setting or update of the same key, so that this one alone does what both did, one after the
    /// other. Merging a, b and c must come to the same whichever two are merged first. By default the later replaces
    /// the earlier.
    fn merge(&mut self, later: Self) {
        *self = later;
    }

    /// Takes an update into this creation, so that it creates what the two made together; returns what it cannot take
    /// in, an update under the same key. By default that is all of it.
    ///
    /// What was returned once has to be returned again, if the same creation is asked; and two updates of one key
    /// must come to the same whether they are merged first or taken in one after the other.
    fn advance(&mut self, update: Self) -> Option<Self> {
        Some(update)
    }
}

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect<Id, Key> {
    /// It sets what holds for everything, until the next of this key.
    Configures(Key),
    /// It creates a thing, which lives until it is dropped. A command that creates several has one id for all.
    Creates(Id),
    /// It changes a thing.
    Updates(Id, Key),
    /// It drops a thing. The id may be used again.
    Drops(Id),
    /// It asks for something once, and is open until that is settled. A later one of the same id replaces it.
    Asks(Id),
    /// The request is settled: answered, or not wanted any more. One that is not open is none of our business.
    Settles(Id),
    /// It leaves nothing behind.
    Passes,
}

/// A command that cannot be: the history has not changed.
///
/// That depends on settings, creations, updates and drops alone, never on [`History::settle`]; so all who have the same
/// commands refuse the same ones, and an engine can pass over a command that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError<Id: fmt::Debug> {
    /// What it creates lives already.
    #[error("cannot create {id:?}: it was created before, and not dropped since")]
    Lives {
        /// The thing.
        id: Id,
    },
    /// It updates what nobody has created, or what was dropped.
    #[error("cannot update {id:?}: nothing of this id lives, it has to be created first")]
    UpdatesUnknown {
        /// The thing.
        id: Id,
    },
    /// It drops what nobody has created, or what was dropped.
    #[error("cannot drop {id:?}: nothing of this id lives, it has to be created first")]
    DropsUnknown {
        /// The thing.
        id: Id,
    },
    /// It needs what nobody has created, or what was dropped.
    #[error("cannot make {id:?}: it needs {needed:?}, and nothing of this id lives")]
    NeedsUnknown {
        /// The thing or request.
        id: Id,
        /// What it needs.
        needed: Id,
    },
}

/// The place of a creation or request among all those of a history.
pub(super) type Serial = u64;

/// What has been commanded, reduced to what still matters. See the [module](self) for what is left, and in which order.
///
/// ```
/// use seriatim::channel::{Commanded, Effect, History, HistoryError};
///
/// #[derive(Clone, Debug, PartialEq)]
/// enum Command {
///     Workers(usize),
///     CreateIndex { id: u32, on: Option<u32>, since: u64 },
///     AllowCompaction { id: u32, since: u64 },
///     Drop { id: u32 },
///     Peek { uuid: u32, id: u32 },
///     CancelPeek { uuid: u32 },
/// }
/// use Command::*;
///
/// impl Commanded for Command {
///     type Id = u32;
///     type Key = &'static str;
///
///     fn effect(&self) -> Effect<u32, &'static str> {
///         match *self {
///             Workers(_) => Effect::Configures("workers"),
///             CreateIndex { id, .. } => Effect::Creates(id),
///             AllowCompaction { id, .. } => Effect::Updates(id, "since"),
///             Drop { id } => Effect::Drops(id),
///             Peek { uuid, .. } => Effect::Asks(uuid),
///             CancelPeek { uuid } => Effect::Settles(uuid),
///         }
///     }
///
///     fn needs(&self) -> impl Iterator<Item = u32> {
///         match *self {
///             CreateIndex { on, .. } => on.into_iter(),
///             Peek { id, .. } => Some(id).into_iter(),
///             _ => None.into_iter(),
///         }
///     }
///
///     // An index that is made anew is made as of where the old one stood.
///     fn advance(&mut self, update: Self) -> Option<Self> {
///         match (self, update) {
///             (CreateIndex { since, .. }, AllowCompaction { since: later, .. }) => {
///                 *since = later.max(*since);
///                 None
///             }
///             (_, other) => Some(other),
///         }
///     }
/// }
///
/// let mut history = History::new();
/// history.push(Workers(2))?;
/// history.push(CreateIndex { id: 1, on: None, since: 0 })?;
/// history.push(CreateIndex { id: 2, on: Some(1), since: 8 })?;
/// history.push(CreateIndex { id: 3, on: None, since: 0 })?;
/// history.push(Peek { uuid: 77, id: 2 })?;
/// history.push(AllowCompaction { id: 1, since: 5 })?;
/// history.push(AllowCompaction { id: 1, since: 7 })?;
/// history.push(Drop { id: 3 })?;
/// history.push(CancelPeek { uuid: 77 })?;
/// history.push(Workers(4))?;
///
/// let reduced = [
///     &Workers(4),
///     &CreateIndex { id: 1, on: None, since: 7 },
///     &CreateIndex { id: 2, on: Some(1), since: 8 },
/// ];
/// assert_eq!(history.commands(), reduced);
///
/// assert_eq!(history.push(Drop { id: 3 }), Err(HistoryError::DropsUnknown { id: 3 }));
/// # Ok::<(), HistoryError<u32>>(())
/// ```
#[derive(Clone)]
pub struct History<C: Commanded> {
    pub(super) settings: BTreeMap<C::Key, C>,
    /// Those that live, and those that were dropped and are needed by such.
    pub(super) things: BTreeMap<Serial, Thing<C>>,
    pub(super) living: BTreeMap<C::Id, Serial>,
    requests: BTreeMap<Serial, Request<C>>,
    open: BTreeMap<C::Id, Serial>,
    next: Serial,
}

/// What was created.
#[derive(Clone)]
pub(super) struct Thing<C: Commanded> {
    pub(super) id: C::Id,
    /// The command that creates it, with all updates that it could take in.
    pub(super) created: C,
    /// The others.
    pub(super) updates: BTreeMap<C::Key, C>,
    pub(super) needs: BTreeSet<Serial>,
    /// How many things need it.
    needed_by: usize,
    /// The open requests that need it.
    asked_by: BTreeSet<Serial>,
    /// The command that dropped it, while something needs it.
    pub(super) dropped: Option<C>,
}

#[derive(Clone)]
struct Request<C: Commanded> {
    id: C::Id,
    command: C,
    needs: BTreeSet<Serial>,
}

/// A command of the canonical order after the settings, and what it is about.
pub(super) enum Step<'a, C: Commanded> {
    Create(Serial, &'a Thing<C>),
    Update(Serial, &'a C::Key, &'a C),
    Ask(&'a C),
    Drop(&'a C),
}

impl<'a, C: Commanded> Step<'a, C> {
    fn command(&self) -> &'a C {
        match self {
            Step::Create(_, thing) => &thing.created,
            Step::Update(_, _, command) | Step::Ask(command) | Step::Drop(command) => command,
        }
    }
}

impl<C: Commanded> Thing<C> {
    /// Takes an update in, or keeps what is left of it.
    fn take(&mut self, key: C::Key, update: C) {
        let update = match self.updates.remove(&key) {
            Some(mut earlier) => {
                earlier.merge(update);
                earlier
            }
            None => update,
        };
        if let Some(rest) = self.created.advance(update) {
            self.updates.insert(key, rest);
        }
    }
}

impl<C: Commanded> History<C> {
    /// One without any commands.
    #[must_use]
    pub fn new() -> Self {
        Self {
            settings: BTreeMap::new(),
            things: BTreeMap::new(),
            living: BTreeMap::new(),
            requests: BTreeMap::new(),
            open: BTreeMap::new(),
            next: 0,
        }
    }

    /// That of some commands.
    ///
    /// # Errors
    ///
    /// The first that cannot be.
    pub fn of(commands: impl IntoIterator<Item = C>) -> Result<Self, HistoryError<C::Id>> {
        let mut history = Self::new();
        commands.into_iter().try_for_each(|command| history.push(command))?;
        Ok(history)
    }

    /// Adds a command.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check). The history has not changed then, and the command is gone.
    pub fn push(&mut self, command: C) -> Result<(), HistoryError<C::Id>> {
        let effect = command.effect();
        let needs = self.examine(&command, &effect)?;
        match effect {
            Effect::Configures(key) => self.configure(key, command),
            Effect::Creates(id) => self.create(id, needs, command),
            Effect::Updates(id, key) => self.update(&id, key, command),
            Effect::Drops(id) => self.end(&id, command),
            Effect::Asks(id) => self.ask(id, needs, command),
            Effect::Settles(id) => {
                self.settle(&id);
            }
            Effect::Passes => {}
        }
        Ok(())
    }

    /// Whether a command can be. Who sends it asks before, with a history of what was sent.
    ///
    /// # Errors
    ///
    /// A creation of what lives; an update or a drop of what does not live; a need that does not live.
    pub fn check(&self, command: &C) -> Result<(), HistoryError<C::Id>> {
        self.examine(command, &command.effect()).map(drop)
    }

    /// Forgets a request, for who learns of an answer otherwise than by a command. Says whether it was open.
    pub fn settle(&mut self, id: &C::Id) -> bool {
        let Some(request) = self.open.remove(id).and_then(|serial| self.take_request(serial)) else {
            return false;
        };
        debug_assert!(request.id == *id);
        true
    }

    /// Forgets all requests. Who cannot know which of them others have answered says so to have what they have.
    pub fn settle_all(&mut self) {
        self.open.clear();
        self.requests.clear();
        self.things.values_mut().for_each(|thing| thing.asked_by.clear());
    }

    /// What is left of all commands, in canonical order.
    ///
    /// A worker that is new and gets these stands where one that got all of them stands. A history of these equals this
    /// one.
    #[must_use]
    pub fn commands(&self) -> Vec<&C> {
        let steps = self.steps();
        self.settings.values().chain(steps.iter().map(Step::command)).collect()
    }

    /// How many commands are left. Counts them.
    #[must_use]
    pub fn len(&self) -> usize {
        let of_thing = |thing: &Thing<C>| 1 + thing.updates.len() + usize::from(thing.dropped.is_some());
        self.settings.len() + self.things.values().map(of_thing).sum::<usize>() + self.requests.len()
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.things.is_empty() && self.requests.is_empty()
    }

    /// Refuses what cannot be, and finds what it needs.
    fn examine(
        &self,
        command: &C,
        effect: &Effect<C::Id, C::Key>,
    ) -> Result<BTreeSet<Serial>, HistoryError<C::Id>> {
        match effect {
            Effect::Creates(id) if self.living.contains_key(id) => {
                Err(HistoryError::Lives { id: id.clone() })
            }
            Effect::Creates(id) | Effect::Asks(id) => self.find_needs(id, command),
            Effect::Updates(id, _) if !self.living.contains_key(id) => {
                Err(HistoryError::UpdatesUnknown { id: id.clone() })
            }
            Effect::Drops(id) if !self.living.contains_key(id) => {
                Err(HistoryError::DropsUnknown { id: id.clone() })
            }
            _ => Ok(BTreeSet::new()),
        }
    }

    fn find_needs(&self, id: &C::Id, command: &C) -> Result<BTreeSet<Serial>, HistoryError<C::Id>> {
        let find = |needed: C::Id| match self.living.get(&needed) {
            Some(&serial) => Ok(serial),
            None => Err(HistoryError::NeedsUnknown { id: id.clone(), needed }),
        };
        command.needs().map(find).collect()
    }

    fn configure(&mut self, key: C::Key, command: C) {
        match self.settings.get_mut(&key) {
            Some(earlier) => earlier.merge(command),
            None => {
                self.settings.insert(key, command);
            }
        }
    }

    fn create(&mut self, id: C::Id, needs: BTreeSet<Serial>, created: C) {
        let serial = self.take_serial();
        for needed in &needs {
            self.thing(*needed).needed_by += 1;
        }
        self.living.insert(id.clone(), serial);
        let thing = Thing {
            id,
            created,
            updates: BTreeMap::new(),
            needs,
            needed_by: 0,
            asked_by: BTreeSet::new(),
            dropped: None,
        };
        self.things.insert(serial, thing);
    }

    fn update(&mut self, id: &C::Id, key: C::Key, update: C) {
        if let Some(&serial) = self.living.get(id) {
            self.thing(serial).take(key, update);
        }
    }

    fn end(&mut self, id: &C::Id, command: C) {
        let Some(serial) = self.living.remove(id) else { return };
        let thing = self.thing(serial);
        thing.dropped = Some(command);
        for request in std::mem::take(&mut thing.asked_by) {
            if let Some(request) = self.take_request(request) {
                self.open.remove(&request.id);
            }
        }
        self.sweep(serial);
    }

    /// Removes a thing if it was dropped and nothing needs it, and then what was left for its sake alone.
    fn sweep(&mut self, first: Serial) {
        let mut suspects = vec![first]; // a list and no recursion: chains can be long
        while let Some(serial) = suspects.pop() {
            let thing = self.thing(serial);
            if thing.dropped.is_none() || thing.needed_by > 0 {
                continue;
            }
            for needed in std::mem::take(&mut thing.needs) {
                let needed_by = &mut self.thing(needed).needed_by;
                *needed_by -= 1;
                // The last who needs it makes it a suspect, so each becomes one once.
                if *needed_by == 0 {
                    suspects.push(needed);
                }
            }
            self.things.remove(&serial);
        }
    }

    fn ask(&mut self, id: C::Id, needs: BTreeSet<Serial>, command: C) {
        self.settle(&id);
        let serial = self.take_serial();
        for needed in &needs {
            self.thing(*needed).asked_by.insert(serial);
        }
        self.open.insert(id.clone(), serial);
        self.requests.insert(serial, Request { id, command, needs });
    }

    fn take_request(&mut self, serial: Serial) -> Option<Request<C>> {
        let request = self.requests.remove(&serial)?;
        for needed in &request.needs {
            // What it needs is there: a thing that is dropped takes its requests along.
            self.thing(*needed).asked_by.remove(&serial);
        }
        Some(request)
    }

    fn take_serial(&mut self) -> Serial {
        let serial = self.next;
        self.next += 1;
        serial
    }

    /// One that is there: serials are those of `living`, or of what something that is there needs.
    fn thing(&mut self, serial: Serial) -> &mut Thing<C> {
        self.things.get_mut(&serial).expect("what lives or is needed is there")
    }

    /// What is left beside the settings, in canonical order.
    pub(super) fn steps(&self) -> Vec<Step<'_, C>> {
        let mut steps = Vec::with_capacity(self.things.len() + self.requests.len());
        let mut dropped = BTreeMap::new();
        for (&serial, thing) in &self.things {
            if let Some((_, earlier)) = dropped.remove(&thing.id) {
                steps.push(Step::Drop(earlier));
            }
            steps.push(Step::Create(serial, thing));
            steps.extend(thing.updates.iter().map(|(key, update)| Step::Update(serial, key, update)));
            if let Some(command) = &thing.dropped {
                dropped.insert(&thing.id, (serial, command));
            }
        }
        steps.extend(self.requests.values().map(|request| Step::Ask(&request.command)));
        let in_order: BTreeMap<_, _> = dropped.into_values().collect();
        steps.extend(in_order.into_values().map(Step::Drop));
        steps
    }
}

impl<C: Commanded> Default for History<C> {
    fn default() -> Self {
        Self::new()
    }
}

/// The same commands are left of both.
impl<C: Commanded + PartialEq> PartialEq for History<C> {
    fn eq(&self, other: &Self) -> bool {
        self.commands() == other.commands()
    }
}

impl<C: Commanded + Eq> Eq for History<C> {}

/// The commands that are left.
impl<C: Commanded + fmt::Debug> fmt::Debug for History<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.commands()).finish()
    }
}
