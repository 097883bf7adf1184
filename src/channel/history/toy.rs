//! An engine for tests: it has settings and things, is asked for something at a time, and fails a test that orders what
//! it cannot do.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use proptest::prelude::*;

use super::super::{Action, Commanded, Effect, Reconcile};

/// A setting that cannot be changed, only made anew.
const RIGID: u8 = 0;
/// Few ids, so that they are used again and again.
const IDS: u8 = 7;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cmd {
    Set {
        key: u8,
        value: u8,
    },
    Create {
        id: u8,
        plan: u8,
        on: Vec<u8>,
        since: u64,
    },
    /// Taken in by a creation.
    Advance {
        id: u8,
        since: u64,
    },
    /// Not taken in; merged with others of the same brush.
    Paint {
        id: u8,
        brush: u8,
        colours: u8,
    },
    Drop {
        id: u8,
    },
    Ask {
        id: u8,
        of: u8,
        at: u64,
    },
    Settle {
        id: u8,
    },
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Setting(u8),
    Since,
    Brush(u8),
}

impl Commanded for Cmd {
    type Id = u8;
    type Key = Key;

    fn effect(&self) -> Effect<u8, Key> {
        match *self {
            Cmd::Set { key, .. } => Effect::Configures(Key::Setting(key)),
            Cmd::Create { id, .. } => Effect::Creates(id),
            Cmd::Advance { id, .. } => Effect::Updates(id, Key::Since),
            Cmd::Paint { id, brush, .. } => Effect::Updates(id, Key::Brush(brush)),
            Cmd::Drop { id } => Effect::Drops(id),
            Cmd::Ask { id, .. } => Effect::Asks(id),
            Cmd::Settle { id } => Effect::Settles(id),
            Cmd::Tick => Effect::Passes,
        }
    }

    fn needs(&self) -> impl Iterator<Item = u8> {
        let needs = match self {
            Cmd::Create { on, .. } => on.as_slice(),
            Cmd::Ask { of, .. } => std::slice::from_ref(of),
            _ => &[],
        };
        needs.iter().copied()
    }

    fn merge(&mut self, later: Self) {
        match (self, later) {
            (Cmd::Paint { colours, .. }, Cmd::Paint { colours: more, .. }) => *colours |= more,
            (earlier, later) => *earlier = later,
        }
    }

    fn advance(&mut self, update: Self) -> Option<Self> {
        match (self, update) {
            (Cmd::Create { since, .. }, Cmd::Advance { since: later, .. }) => {
                *since = later;
                None
            }
            (_, other) => Some(other),
        }
    }
}

impl Reconcile for Cmd {
    fn carry_over(&self, new: &Self) -> Option<Vec<Self>> {
        let changed = Vec::from_iter((self != new).then(|| new.clone()));
        match (self, new) {
            (Cmd::Set { key: RIGID, .. }, Cmd::Set { .. }) => changed.is_empty().then_some(changed),
            (Cmd::Set { .. }, Cmd::Set { .. }) => Some(changed),
            (Cmd::Create { plan, since, .. }, Cmd::Create { id, plan: wanted, since: later, .. }) => {
                let further = (since < later).then_some(Cmd::Advance { id: *id, since: *later });
                (plan == wanted && since <= later).then(|| Vec::from_iter(further))
            }
            (Cmd::Paint { colours, .. }, Cmd::Paint { colours: wanted, .. }) => {
                (colours & !wanted == 0).then_some(changed)
            }
            (old, new) => panic!("{old:?} cannot become {new:?}"),
        }
    }
}

/// The state of a worker.
#[derive(Clone, Default)]
pub(crate) struct Engine {
    settings: BTreeMap<u8, u8>,
    /// All that was made and is used, by its number.
    pub(crate) made: BTreeMap<u64, Made>,
    pub(crate) names: BTreeMap<u8, u64>,
    requests: BTreeMap<u8, (u64, u64)>,
    next: u64,
}

#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) id: u8,
    pub(crate) plan: u8,
    pub(crate) since: u64,
    pub(crate) paint: BTreeMap<u8, u8>,
    pub(crate) needs: BTreeSet<u64>,
    pub(crate) dropped: bool,
    /// How often it was made or changed.
    pub(crate) touched: u64,
}

/// All that can be told of a worker's state from outside.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct View {
    settings: BTreeMap<u8, u8>,
    /// By name, everything that it is, also of that on which it is, in one number.
    named: BTreeMap<u8, u64>,
    requests: BTreeMap<u8, (u64, u64)>,
    all: Vec<u64>,
}

impl Engine {
    pub(crate) fn after<'a>(commands: impl IntoIterator<Item = &'a Cmd>) -> Self {
        let mut engine = Self::default();
        commands.into_iter().for_each(|command| engine.carry_out(command));
        engine
    }

    pub(crate) fn carry_out(&mut self, command: &Cmd) {
        match command {
            Cmd::Set { key, value } => drop(self.settings.insert(*key, *value)),
            Cmd::Create { id, plan, on, since } => self.create(*id, *plan, on, *since),
            Cmd::Advance { id, since } => {
                let made = self.named(*id);
                assert!(made.since <= *since, "{id} goes back from {} to {since}", made.since);
                (made.since, made.touched) = (*since, made.touched + 1);
            }
            Cmd::Paint { id, brush, colours } => {
                let made = self.named(*id);
                *made.paint.entry(*brush).or_default() |= colours;
                made.touched += 1;
            }
            Cmd::Drop { id } => self.drop_named(*id),
            Cmd::Ask { id, of, at } => {
                let made = self.named(*of);
                assert!(made.since <= *at, "{of} is at {}, asked at {at}", made.since);
                self.requests.insert(*id, (self.names[of], *at));
            }
            Cmd::Settle { id } => drop(self.requests.remove(id)),
            Cmd::Tick => {}
        }
    }

    /// Carries an action of a new incarnation out.
    pub(crate) fn act(&mut self, action: &Action<'_, Cmd>) {
        match action {
            Action::EndRequests => self.requests.clear(),
            Action::Reset(Cmd::Set { key, .. }) => {
                self.settings.remove(key).expect("a setting that is not made");
            }
            Action::Drop { old: Cmd::Create { id, .. }, .. } => {
                let made = self.names[id];
                let user = self.users(made).next();
                assert!(user.is_none(), "{id} is dropped before what needs it");
                self.drop_named(*id);
            }
            Action::Keep { new: Cmd::Create { id, .. }, .. } => drop(self.named(*id)),
            Action::Configure(command @ Cmd::Set { key, .. }) => {
                assert!(*key != RIGID || !self.settings.contains_key(key), "{command:?} without a reset");
                self.carry_out(command);
            }
            Action::Create { new: command @ Cmd::Create { .. }, .. }
            | Action::Update(command @ (Cmd::Advance { .. } | Cmd::Paint { .. }))
            | Action::Ask(command @ Cmd::Ask { .. })
            | Action::LetGo(command @ Cmd::Drop { .. }) => self.carry_out(command),
            other => panic!("{other:?} is not what it says"),
        }
    }

    fn named(&mut self, id: u8) -> &mut Made {
        let number = self.names.get(&id).unwrap_or_else(|| panic!("nothing is called {id}"));
        self.made.get_mut(number).unwrap()
    }

    fn create(&mut self, id: u8, plan: u8, on: &[u8], since: u64) {
        for needed in on {
            let needed_since = self.named(*needed).since;
            assert!(needed_since <= since, "{needed} is at {needed_since}, needed by {id} at {since}");
        }
        let needs = on.iter().map(|needed| self.names[needed]).collect();
        let made = Made { id, plan, since, paint: BTreeMap::new(), needs, dropped: false, touched: 1 };
        assert!(self.names.insert(id, self.next).is_none(), "{id} is made twice");
        self.made.insert(self.next, made);
        self.next += 1;
    }

    fn users(&self, number: u64) -> impl Iterator<Item = &Made> {
        self.made.values().filter(move |made| made.needs.contains(&number))
    }

    fn drop_named(&mut self, id: u8) {
        self.named(id).dropped = true;
        let number = self.names.remove(&id).unwrap();
        self.requests.retain(|_, (of, _)| *of != number);
        self.free();
    }

    /// Frees what was dropped and has no users, those that need others first.
    fn free(&mut self) {
        let numbers: Vec<_> = self.made.keys().rev().copied().collect();
        for number in numbers {
            if self.made[&number].dropped && self.users(number).next().is_none() {
                self.made.remove(&number);
            }
        }
    }

    /// How many commands it takes to make this state.
    pub(crate) fn commands_needed(&self) -> usize {
        let of = |made: &Made| 1 + made.paint.len() + usize::from(made.dropped);
        self.settings.len() + self.made.values().map(of).sum::<usize>() + self.requests.len()
    }

    /// How far a thing can be let advance: what is on it and who asks it want it no further.
    fn limit(&self, number: u64) -> u64 {
        let asked = self.requests.values().filter(|(of, _)| *of == number).map(|&(_, at)| at);
        self.users(number).map(|user| user.since).chain(asked).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn view(&self) -> View {
        let mut marks = BTreeMap::new();
        // What a thing needs has a smaller number.
        for (number, made) in &self.made {
            let mut hasher = DefaultHasher::new();
            (made.id, made.plan, made.since, &made.paint, made.dropped).hash(&mut hasher);
            let mut needs: Vec<u64> = made.needs.iter().map(|need| marks[need]).collect();
            needs.sort_unstable();
            needs.hash(&mut hasher);
            marks.insert(*number, hasher.finish());
        }
        let mut all: Vec<_> = marks.values().copied().collect();
        all.sort_unstable();
        View {
            settings: self.settings.clone(),
            named: self.names.iter().map(|(id, number)| (*id, marks[number])).collect(),
            requests: self.requests.iter().map(|(id, (of, at))| (*id, (marks[of], *at))).collect(),
            all,
        }
    }

    /// A command that can be carried out in this state.
    fn choose(&self, dice: Dice) -> Cmd {
        let [what, a, b, c, d] = dice;
        let pick = |die: u8| self.names.iter().nth(usize::from(die) % self.names.len().max(1));
        let value = d % 4;
        match (what % 20, pick(a)) {
            (0..3, _) => Cmd::Set { key: a % 4, value },
            (3, _) => Cmd::Tick,
            (4..6, _) => Cmd::Settle { id: a % IDS },
            (6..11, Some((&id, &number))) => {
                let since = self.made[&number].since;
                Cmd::Advance { id, since: (since + u64::from(value)).min(self.limit(number)) }
            }
            (11..13, Some((&id, _))) => Cmd::Paint { id, brush: b % 2, colours: 1 << (c % 3) },
            (13..15, Some((&id, _))) => Cmd::Drop { id },
            (15..17, Some((&of, number))) => {
                Cmd::Ask { id: b % IDS, of, at: self.made[number].since + u64::from(value) }
            }
            _ => self.choose_creation(a % IDS, [pick(b), pick(c)], value),
        }
    }

    fn choose_creation(&self, id: u8, picked: [Option<(&u8, &u64)>; 2], value: u8) -> Cmd {
        if self.names.contains_key(&id) {
            return Cmd::Drop { id };
        }
        let on: BTreeMap<u8, u64> = picked.iter().flatten().map(|(id, number)| (**id, **number)).collect();
        let on: BTreeMap<u8, u64> = on.into_iter().skip(usize::from(value % 3)).collect();
        let least = on.values().map(|number| self.made[number].since).max().unwrap_or(0);
        Cmd::Create { id, plan: id / 3, on: on.into_keys().collect(), since: least + u64::from(value % 2) }
    }
}

pub(crate) type Dice = [u8; 5];

/// What commands are made of, so that a shorter list makes fewer commands.
pub(crate) fn dice(most: usize) -> impl Strategy<Value = Vec<Dice>> {
    prop::collection::vec(any::<Dice>(), 0..most)
}

/// Commands that can be carried out one after another, after those.
pub(crate) fn go_on<'a>(before: impl IntoIterator<Item = &'a Cmd>, dice: &[Dice]) -> Vec<Cmd> {
    let mut engine = Engine::after(before);
    let choose = |dice: &Dice| {
        let command = engine.choose(*dice);
        engine.carry_out(&command);
        command
    };
    dice.iter().map(choose).collect()
}
