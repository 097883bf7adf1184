//! [`Reconciler`]: from what the workers have to what a new incarnation wants, keeping what can be kept.
//!
//! A controller that comes (back) does not know what the workers have. It says what it wants as if they were new, and
//! they find out what of that they have already. Everything they decide follows from *commands*: the old
//! incarnation's and the new one's first ones. What a worker happens to have done by then (answered a request, come
//! further with a thing) plays no part, so that all decide alike.
//!
//! ```text
//!  old history     set a=1   create x@3   create y(x)@3   create v           ask r(y)
//!  new incarnation set a=2   create x@7   create y'(x)@7            create w   ask s(x)
//!
//!  actions         end requests   a=2   drop y, v   keep x   x to 7   create y' (again)   create w   ask s
//! ```
//!
//! A thing is *kept* if the old history has one that lives under this id, the engine can carry it over
//! ([`Reconcile::carry_over`], for the creation and for every update that the creation could not take in), and all
//! that it needs is kept, and was what it needed before. All else is made anew, or dropped. Keeping one thing never
//! stands in the way of keeping another.
//!
//! One thing alone could be kept and is not: what was dropped before the new incarnation, while something needs it. It
//! has no name any more under which anything could be made on it. So what needs it is made anew, too, and so is, if the
//! new incarnation goes the same way, what was then created under its id.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Commanded, History, HistoryError, Serial, Step, Thing};

#[cfg(test)]
mod tests;

/// A command of an engine that can keep, in a new incarnation, what it has made in an old one.
pub trait Reconcile: Commanded {
    /// The commands which make of what this one, of the old incarnation, has brought about what `new` would bring
    /// about in a worker that is new: an empty vector if that is the same, `None` if it cannot be.
    ///
    /// Both are settings of one key, creations of one id, or updates of one thing under one key, as a reduced history
    /// has them: with all in them that they could take in. The commands returned are settings of the key, or updates
    /// of the thing.
    ///
    /// - A creation of the same definition that was let advance less far: `Some`, with an update that lets it advance.
    /// - One that was let advance further, or one of another definition: `None`.
    /// - A setting that can be changed: `Some(vec![new.clone()])`, or nothing in the vector if they are equal.
    ///
    /// It has to depend on the two alone.
    fn carry_over(&self, new: &Self) -> Option<Vec<Self>>;
}

/// What an engine does to go over from the old incarnation to the new one, one after another.
///
/// | action | what the engine does |
/// | --- | --- |
/// | [`EndRequests`](Self::EndRequests) | forgets all open requests of the old incarnation |
/// | [`Reset`](Self::Reset) | the setting goes back to what it is in a worker that is new |
/// | [`Configure`](Self::Configure) | applies the setting |
/// | [`Drop`](Self::Drop) | drops the thing, as for a command that drops it |
/// | [`Keep`](Self::Keep) | nothing; it can take note that answers are for the new incarnation from now on |
/// | [`Create`](Self::Create) | carries the command out |
/// | [`Update`](Self::Update) | carries the command out, on what was kept or created |
/// | [`Ask`](Self::Ask) | carries the command out |
/// | [`LetGo`](Self::LetGo) | carries the command out, which drops what stays for the sake of what needs it |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action<'a, C> {
    /// The requests of the old incarnation end, whichever of them are open at this worker. Always the first action.
    EndRequests,
    /// The new incarnation does not make this setting, or cannot go over to its own from this one.
    Reset(&'a C),
    /// A setting of the new incarnation.
    Configure(&'a C),
    /// What this command of the old incarnation has created is not wanted, or not as it is. What needs other things
    /// comes before these.
    Drop {
        /// The command that created it.
        old: &'a C,
        /// Whether something of this id is created [`again`](Action::Create) by a later action.
        again: bool,
    },
    /// What was created by the old incarnation is what the new one wants, with the [`Update`](Action::Update)s that
    /// follow.
    Keep {
        /// The command that created it.
        old: &'a C,
        /// The one that it stands for from now on.
        new: &'a C,
    },
    /// A creation of the new incarnation.
    Create {
        /// The command.
        new: &'a C,
        /// Whether something of this id was [dropped](Action::Drop) by an earlier action: with that, a recreation.
        again: bool,
    },
    /// An update of the thing before.
    Update(&'a C),
    /// A request of the new incarnation.
    Ask(&'a C),
    /// A drop of the new incarnation, of something that others need: see [`history`](super::history).
    LetGo(&'a C),
}

/// Takes the first commands of an incarnation, up to the end of its initialization; then says what to do.
///
/// ```
/// use seriatim::channel::{Action, Commanded, Effect, History, HistoryError, Reconcile, Reconciler};
///
/// #[derive(Clone, Debug, PartialEq)]
/// enum Command {
///     Create { id: u32, plan: &'static str, on: Option<u32>, since: u64 },
///     AllowCompaction { id: u32, since: u64 },
/// }
/// use Command::*;
///
/// impl Commanded for Command {
///     type Id = u32;
///     type Key = ();
///
///     fn effect(&self) -> Effect<u32, ()> {
///         match *self {
///             Create { id, .. } => Effect::Creates(id),
///             AllowCompaction { id, .. } => Effect::Updates(id, ()),
///         }
///     }
///     fn needs(&self) -> impl Iterator<Item = u32> {
///         if let Create { on, .. } = self { on.iter().copied() } else { None.iter().copied() }
///     }
///     // fn advance: as in the example of `History`
/// #   fn advance(&mut self, update: Self) -> Option<Self> {
/// #       match (self, update) {
/// #           (Create { since, .. }, AllowCompaction { since: later, .. }) => *since = later.max(*since),
/// #           (_, other) => return Some(other),
/// #       }
/// #       None
/// #   }
/// }
///
/// impl Reconcile for Command {
///     fn carry_over(&self, new: &Self) -> Option<Vec<Self>> {
///         let (Create { plan: had, since: from, .. }, Create { id, plan, since, .. }) = (self, new) else {
///             return None;
///         };
///         let further = (from < since).then(|| AllowCompaction { id: *id, since: *since });
///         (had == plan && from <= since).then(|| Vec::from_iter(further))
///     }
/// }
///
/// let old = History::of([
///     Create { id: 1, plan: "read", on: None, since: 3 },
///     Create { id: 2, plan: "count", on: Some(1), since: 3 },
/// ])?;
///
/// // The next controller wants number 1 further on, and another number 2.
/// let mut reconciler = Reconciler::new(old);
/// let read = Create { id: 1, plan: "read", on: None, since: 7 };
/// let sum = Create { id: 2, plan: "sum", on: Some(1), since: 7 };
/// reconciler.push(read.clone())?;
/// reconciler.push(sum.clone())?;
/// let reconciled = reconciler.finish();
///
/// let expected = [
///     Action::EndRequests,
///     Action::Drop { old: &Create { id: 2, plan: "count", on: Some(1), since: 3 }, again: true },
///     Action::Keep { old: &Create { id: 1, plan: "read", on: None, since: 3 }, new: &read },
///     Action::Update(&AllowCompaction { id: 1, since: 7 }),
///     Action::Create { new: &sum, again: true },
/// ];
/// assert_eq!(reconciled.actions(), expected);
///
/// // From here on, this is what is pushed to.
/// let history: History<Command> = reconciled.into_history();
/// assert_eq!(history.commands(), [&read, &sum]);
/// # Ok::<(), HistoryError<u32>>(())
/// ```
#[derive(Clone)]
pub struct Reconciler<C: Commanded> {
    old: History<C>,
    new: History<C>,
}

impl<C: Reconcile> Reconciler<C> {
    /// For a worker that has what this history says, at the beginning of a new incarnation. Its requests play no part.
    #[must_use]
    pub fn new(mut old: History<C>) -> Self {
        old.settle_all();
        Self { old, new: History::new() }
    }

    /// Takes a command of the new incarnation's initialization.
    ///
    /// # Errors
    ///
    /// Those of [`History::push`]; the command is passed over then, by all workers alike.
    pub fn push(&mut self, command: C) -> Result<(), HistoryError<C::Id>> {
        self.new.push(command)
    }

    /// The initialization has ended before it was complete, with the next incarnation: the worker still has what the
    /// old history says.
    #[must_use]
    pub fn abandon(self) -> History<C> {
        self.old
    }

    /// The initialization is complete.
    #[must_use]
    pub fn finish(self) -> Reconciled<C> {
        let Self { old, new } = self;
        let settings = carry_settings(&old, &new);
        let kept = keep(&old, &new);
        Reconciled { old, new, settings, kept }
    }
}

/// What is to be done for a new incarnation.
pub struct Reconciled<C: Commanded> {
    old: History<C>,
    new: History<C>,
    /// For each setting of both: how to go over, or that there is no way.
    settings: BTreeMap<C::Key, Option<Vec<C>>>,
    /// By the new history's serial.
    kept: BTreeMap<Serial, Kept<C>>,
}

/// An old thing that stands for a new one.
struct Kept<C: Commanded> {
    /// Its serial in the old history.
    old: Serial,
    /// What carries the creation over.
    creation: Vec<C>,
    /// What carries updates over that both have.
    updates: BTreeMap<C::Key, Vec<C>>,
}

impl<C: Reconcile> Reconciled<C> {
    /// What to do, one after another: requests end; settings; what is not kept is dropped, in the reverse order of its
    /// creation; then the new history in canonical order, with what is kept in its place. So a thing that is kept is
    /// let advance before what needs it is.
    ///
    /// The same for all workers who had the same commands. Afterwards a worker stands where one that is new would,
    /// after the new commands alone.
    #[must_use]
    pub fn actions(&self) -> Vec<Action<'_, C>> {
        let mut actions = vec![Action::EndRequests];
        self.set(&mut actions);
        let wanted: BTreeSet<_> = self.new.things.values().map(|thing| &thing.id).collect();
        let dropped = self.dropped();
        for thing in dropped.values().rev() {
            actions.push(Action::Drop { old: &thing.created, again: wanted.contains(&thing.id) });
        }
        let dropped: BTreeSet<_> = dropped.values().map(|thing| &thing.id).collect();
        for step in self.new.steps() {
            match step {
                Step::Create(serial, thing) => match self.kept.get(&serial) {
                    Some(kept) => self.keep(kept, thing, &mut actions),
                    None => {
                        actions
                            .push(Action::Create { new: &thing.created, again: dropped.contains(&thing.id) });
                    }
                },
                Step::Update(serial, key, update) => self.update(serial, key, update, &mut actions),
                Step::Ask(command) => actions.push(Action::Ask(command)),
                Step::Drop(command) => actions.push(Action::LetGo(command)),
            }
        }
        actions
    }

    /// The history of the new incarnation, to be gone on with.
    #[must_use]
    pub fn into_history(self) -> History<C> {
        self.new
    }

    fn set<'a>(&'a self, actions: &mut Vec<Action<'a, C>>) {
        // No way from the old setting to the new one, or no new one.
        let stays = |key: &C::Key| self.settings.get(key).is_some_and(Option::is_some);
        let gone = self.old.settings.iter().filter(|(key, _)| !stays(key));
        actions.extend(gone.map(|(_, old)| Action::Reset(old)));
        for (key, new) in &self.new.settings {
            match self.settings.get(key) {
                Some(Some(changes)) => actions.extend(changes.iter().map(Action::Configure)),
                _ => actions.push(Action::Configure(new)),
            }
        }
    }

    /// What lived and is not kept, in the order of its creation.
    fn dropped(&self) -> BTreeMap<Serial, &Thing<C>> {
        let kept: BTreeSet<_> = self.kept.values().map(|kept| kept.old).collect();
        let lived = self.old.things.iter().filter(|(_, thing)| thing.dropped.is_none());
        lived.filter(|(serial, _)| !kept.contains(serial)).map(|(&serial, thing)| (serial, thing)).collect()
    }

    fn keep<'a>(&'a self, kept: &'a Kept<C>, new: &'a Thing<C>, actions: &mut Vec<Action<'a, C>>) {
        // Serials of the old history stay as they were: nothing is pushed to it any more.
        let old = &self.old.things[&kept.old].created;
        actions.push(Action::Keep { old, new: &new.created });
        actions.extend(kept.creation.iter().map(Action::Update));
    }

    fn update<'a>(&'a self, of: Serial, key: &C::Key, new: &'a C, actions: &mut Vec<Action<'a, C>>) {
        match self.kept.get(&of).and_then(|kept| kept.updates.get(key)) {
            Some(changes) => actions.extend(changes.iter().map(Action::Update)),
            None => actions.push(Action::Update(new)),
        }
    }
}

/// How to go over from each setting of both histories to the new one.
fn carry_settings<C: Reconcile>(old: &History<C>, new: &History<C>) -> BTreeMap<C::Key, Option<Vec<C>>> {
    let both = new.settings.iter().filter_map(|(key, new)| Some((key, old.settings.get(key)?, new)));
    both.map(|(key, old, new)| (key.clone(), old.carry_over(new))).collect()
}

/// What of the old history stands for something of the new one.
fn keep<C: Reconcile>(old: &History<C>, new: &History<C>) -> BTreeMap<Serial, Kept<C>> {
    let mut kept = BTreeMap::new();
    let mut seen = BTreeSet::new();
    // In the order of creation: what a thing needs is decided before it.
    for (&serial, thing) in &new.things {
        // A later thing of the same id comes after the drop of the earlier one, so what is there is not for it.
        let first = seen.insert(&thing.id);
        let candidate = old.living.get(&thing.id).filter(|_| first);
        if let Some(found) = candidate.and_then(|&candidate| carry_thing(old, candidate, thing, &kept)) {
            kept.insert(serial, found);
        }
    }
    kept
}

/// Whether an old thing can stand for a new one, and what that takes.
fn carry_thing<C: Reconcile>(
    history: &History<C>,
    serial: Serial,
    new: &Thing<C>,
    kept: &BTreeMap<Serial, Kept<C>>,
) -> Option<Kept<C>> {
    let old = &history.things[&serial];
    let needs: Option<BTreeSet<_>> = new.needs.iter().map(|need| Some(kept.get(need)?.old)).collect();
    if needs? != old.needs || old.updates.keys().any(|key| !new.updates.contains_key(key)) {
        return None; // what it needs is not what it had, or an update would have to be taken back
    }
    let creation = old.created.carry_over(&new.created)?;
    let carry = |(key, old): (&C::Key, &C)| Some((key.clone(), old.carry_over(&new.updates[key])?));
    let updates = old.updates.iter().map(carry).collect::<Option<_>>()?;
    Some(Kept { old: serial, creation, updates })
}
