//! After reconciling, a worker stands where one stands that is new; and it has kept what it could.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::History;
use super::super::history::toy::{Cmd, Dice, Engine, Made, dice, go_on};
use super::{Action, Reconciled, Reconciler};

fn history(commands: &[Cmd]) -> History<Cmd> {
    History::of(commands.iter().cloned()).unwrap()
}

fn reconcile(old: History<Cmd>, new: &[Cmd]) -> Reconciled<Cmd> {
    let mut reconciler = Reconciler::new(old);
    new.iter().for_each(|command| reconciler.push(command.clone()).unwrap());
    reconciler.finish()
}

fn create(id: u8, on: &[u8], since: u64) -> Cmd {
    Cmd::Create { id, plan: 0, on: on.to_vec(), since }
}

fn advance(id: u8, since: u64) -> Cmd {
    Cmd::Advance { id, since }
}

#[track_caller]
fn goes_over(old: &[Cmd], new: &[Cmd], by: &[Action<'_, Cmd>]) {
    assert_eq!(reconcile(history(old), new).actions(), by);
}

#[test]
fn a_worker_without_a_history_does_as_it_is_told() {
    let new = [Cmd::Set { key: 1, value: 2 }, create(1, &[], 3), Cmd::Ask { id: 4, of: 1, at: 3 }];
    goes_over(
        &[],
        &new,
        &[
            Action::EndRequests,
            Action::Configure(&new[0]),
            Action::Create { new: &new[1], again: false },
            Action::Ask(&new[2]),
        ],
    );
}

#[test]
fn what_has_not_advanced_too_far_is_kept_and_let_advance() {
    goes_over(
        &[create(1, &[], 3), create(2, &[], 5), create(3, &[], 4)],
        &[create(3, &[], 4), create(2, &[], 4), create(1, &[], 4)],
        &[
            Action::EndRequests,
            Action::Drop { old: &create(2, &[], 5), again: true },
            Action::Keep { old: &create(3, &[], 4), new: &create(3, &[], 4) },
            Action::Create { new: &create(2, &[], 4), again: true },
            Action::Keep { old: &create(1, &[], 3), new: &create(1, &[], 4) },
            Action::Update(&advance(1, 4)),
        ],
    );
}

#[test]
fn what_needs_something_that_is_made_anew_is_made_anew() {
    let old = [create(1, &[], 3), create(2, &[1], 3), create(3, &[2], 3), create(4, &[], 3)];
    let mut new = old.clone();
    new[0] = Cmd::Create { id: 1, plan: 9, on: vec![], since: 3 };
    goes_over(
        &old,
        &new,
        &[
            Action::EndRequests,
            Action::Drop { old: &old[2], again: true },
            Action::Drop { old: &old[1], again: true },
            Action::Drop { old: &old[0], again: true },
            Action::Create { new: &new[0], again: true },
            Action::Create { new: &new[1], again: true },
            Action::Create { new: &new[2], again: true },
            Action::Keep { old: &old[3], new: &new[3] },
        ],
    );
}

#[test]
fn an_update_that_would_have_to_be_taken_back_is_a_reason_to_make_a_thing_anew() {
    let paint = |id, colours| Cmd::Paint { id, brush: 0, colours };
    let old = [
        create(1, &[], 0),
        create(2, &[], 0),
        create(3, &[], 0),
        create(4, &[], 0),
        paint(1, 1),
        paint(2, 1),
    ];
    let old = [&old[..], &[paint(3, 3)]].concat();
    let new = [
        create(1, &[], 0),
        create(2, &[], 0),
        create(3, &[], 0),
        create(4, &[], 0),
        paint(2, 3),
        paint(3, 1),
    ];
    let new = [&new[..], &[paint(4, 7)]].concat();
    goes_over(
        &old,
        &new,
        &[
            Action::EndRequests,
            Action::Drop { old: &old[2], again: true },
            Action::Drop { old: &old[0], again: true },
            Action::Create { new: &new[0], again: true },
            Action::Keep { old: &old[1], new: &new[1] },
            Action::Update(&paint(2, 3)),
            Action::Create { new: &new[2], again: true },
            Action::Update(&paint(3, 1)),
            Action::Keep { old: &old[3], new: &new[3] },
            Action::Update(&paint(4, 7)),
        ],
    );
}

#[test]
fn settings_that_nobody_makes_any_more_are_reset() {
    let set = |key, value| Cmd::Set { key, value };
    goes_over(
        &[set(0, 1), set(1, 1), set(2, 1), set(3, 1)],
        &[set(0, 2), set(1, 1), set(2, 2), set(4, 1)],
        &[
            Action::EndRequests,
            Action::Reset(&set(0, 1)), // key 0 cannot be changed, only made anew
            Action::Reset(&set(3, 1)),
            Action::Configure(&set(0, 2)),
            Action::Configure(&set(2, 2)),
            Action::Configure(&set(4, 1)),
        ],
    );
}

#[test]
fn what_was_dropped_and_is_needed_yet_is_not_kept() {
    let on_dropped = [create(1, &[], 0), create(2, &[1], 0), Cmd::Drop { id: 1 }];
    let drop = Cmd::Drop { id: 1 };
    goes_over(
        &on_dropped,
        &on_dropped,
        &[
            Action::EndRequests,
            Action::Drop { old: &on_dropped[1], again: true },
            Action::Create { new: &on_dropped[0], again: false },
            Action::Create { new: &on_dropped[1], again: true },
            Action::LetGo(&drop),
        ],
    );
    // But what lives can be kept to be dropped, and to make room for the next of its id.
    let next = create(1, &[], 5);
    goes_over(
        &on_dropped[..2],
        &[&on_dropped[..], std::slice::from_ref(&next)].concat(),
        &[
            Action::EndRequests,
            Action::Keep { old: &on_dropped[0], new: &on_dropped[0] },
            Action::Keep { old: &on_dropped[1], new: &on_dropped[1] },
            Action::LetGo(&drop),
            Action::Create { new: &next, again: false },
        ],
    );
}

#[test]
fn an_initialization_that_did_not_end_has_changed_nothing() {
    let old = history(&[create(1, &[], 3), Cmd::Ask { id: 4, of: 1, at: 3 }]);
    let mut reconciler = Reconciler::new(old);
    reconciler.push(create(2, &[], 0)).unwrap();
    assert!(reconciler.push(create(2, &[], 0)).is_err());
    assert_eq!(reconciler.abandon().commands(), [&create(1, &[], 3)]);
}

/// A worker with what it has and what it knows.
struct Worker {
    engine: Engine,
    history: History<Cmd>,
}

impl Worker {
    fn after(commands: &[Cmd]) -> Self {
        Self { engine: Engine::after(commands), history: history(commands) }
    }

    /// One that has answered some requests, of which no command told.
    fn that_answered(commands: &[Cmd], odd: u8) -> Self {
        let mut worker = Self::after(&[]);
        for (n, command) in commands.iter().enumerate() {
            worker.engine.carry_out(command);
            worker.history.push(command.clone()).unwrap();
            if let Cmd::Ask { id, .. } = command
                && n % 2 == usize::from(odd)
            {
                worker.engine.carry_out(&Cmd::Settle { id: *id });
                worker.history.settle(id);
            }
        }
        worker
    }
}

/// The commands of an old incarnation, and those of a new one that wants somewhat else: what was at some other point
/// of the old one, before it ended or after, and then more.
fn two_incarnations(all: &[Dice], cut: usize, other: usize, more: &[Dice]) -> (Vec<Cmd>, Vec<Cmd>) {
    let mut old = go_on(&[], all);
    let mut new: Vec<Cmd> =
        history(&old[..other % (old.len() + 1)]).commands().into_iter().cloned().collect();
    new.extend(go_on(&new, more));
    old.truncate(cut % (old.len() + 1));
    (old, new)
}

/// What of a new worker's things an old worker could have kept, by id, told from their states. Of those alone whose id
/// nothing has that was dropped and is needed yet, and that need only such.
fn could_keep(old: &Engine, new: &Engine) -> BTreeSet<u8> {
    let dropped: BTreeSet<_> = new.made.values().filter(|made| made.dropped).map(|made| made.id).collect();
    let mut kept = BTreeMap::new();
    for (number, wanted) in &new.made {
        let had = old.names.get(&wanted.id).filter(|_| !dropped.contains(&wanted.id));
        let needs: Option<BTreeSet<_>> = wanted.needs.iter().map(|need| kept.get(need).copied()).collect();
        if let Some(had) = had
            && serves(&old.made[had], wanted)
            && needs.is_some_and(|needs| needs == old.made[had].needs)
        {
            kept.insert(*number, *had);
        }
    }
    kept.keys().map(|number| new.made[number].id).collect()
}

fn serves(had: &Made, wanted: &Made) -> bool {
    let paint =
        |brush: &u8, colours: &u8| wanted.paint.get(brush).is_some_and(|wanted| colours & !wanted == 0);
    had.plan == wanted.plan && had.since <= wanted.since && had.paint.iter().all(|(b, c)| paint(b, c))
}

/// Carries actions out, and looks whether what is kept is left alone.
fn carry_out(engine: &mut Engine, actions: &[Action<'_, Cmd>]) -> BTreeSet<u8> {
    let before = engine.clone();
    let mut updates: BTreeMap<u8, u64> = BTreeMap::new();
    let mut kept = BTreeSet::new();
    for action in actions {
        engine.act(action);
        match action {
            Action::Update(Cmd::Advance { id, .. } | Cmd::Paint { id, .. }) => {
                *updates.entry(*id).or_default() += 1
            }
            Action::Keep { new: Cmd::Create { id, .. }, .. } => {
                kept.insert(*id);
            }
            _ => {}
        }
    }
    for id in &kept {
        let number = before.names[id];
        if let Some(made) = engine.made.get(&number) {
            let more = made.touched - before.made[&number].touched;
            assert!(more <= updates.get(id).copied().unwrap_or(0), "{id} was touched {more} times");
        }
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 1_000 } else { 10_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn who_has_reconciled_stands_where_a_new_one_stands(
        all in dice(70), cut in any::<usize>(), other in any::<usize>(), more in dice(12),
    ) {
        let (old, new) = two_incarnations(&all, cut, other, &more);
        let fresh = Engine::after(&new);
        let reduced: Vec<Cmd> = history(&old).commands().into_iter().cloned().collect();
        let workers = [
            Worker::after(&old),
            Worker::that_answered(&old, 0),
            Worker::that_answered(&old, 1),
            Worker::after(&reduced),
        ];
        let possible = could_keep(&workers[0].engine, &fresh);
        let first = reconcile(history(&old), &new);
        for Worker { mut engine, history } in workers {
            let reconciled = reconcile(history, &new);
            let actions = reconciled.actions();
            prop_assert_eq!(&actions, &first.actions());
            let kept = carry_out(&mut engine, &actions);
            prop_assert_eq!(engine.view(), fresh.view());
            prop_assert!(possible.is_subset(&kept), "kept {kept:?} of {possible:?}: {old:?} {new:?} {actions:?}");
            prop_assert_eq!(reconciled.into_history(), self::history(&new));
        }
    }

    /// Who gets the same again leaves alone what it has, but what stands on something that was dropped.
    #[test]
    fn who_has_what_is_wanted_does_nothing(all in dice(70)) {
        let commands = go_on(&[], &all);
        let mut worker = Worker::after(&commands);
        let before = worker.engine.clone();
        let possible = could_keep(&before, &before);
        let dropped = before.made.values().any(|made| made.dropped);
        prop_assert!(dropped || possible == before.names.keys().copied().collect());
        let kept = carry_out(&mut worker.engine, &reconcile(worker.history, &commands).actions());
        prop_assert!(possible.is_subset(&kept), "kept {kept:?} of {possible:?}: {commands:?}");
        for number in possible.iter().map(|id| &before.names[id]) {
            prop_assert_eq!(worker.engine.made[number].touched, before.made[number].touched);
        }
    }
}
