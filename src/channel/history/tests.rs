//! What a history is for: the engine that gets what is left of it stands where one stands that got everything.

use proptest::prelude::*;

use super::toy::{Cmd, Engine, dice, go_on};
use super::{Commanded, Effect, History, HistoryError};

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn history(commands: &[Cmd]) -> History<Cmd> {
    History::of(commands.iter().cloned()).unwrap()
}

fn create(id: u8, on: &[u8], since: u64) -> Cmd {
    Cmd::Create { id, plan: 0, on: on.to_vec(), since }
}

#[track_caller]
fn reduces(commands: &[Cmd], to: &[Cmd]) {
    let history = history(commands);
    assert_eq!(history.commands(), to.iter().collect::<Vec<_>>());
    assert_eq!(history.len(), to.len());
    assert_eq!(history.is_empty(), to.is_empty());
}

#[test]
fn nothing_is_left_of_nothing() {
    reduces(&[], &[]);
    reduces(&[Cmd::Tick, Cmd::Settle { id: 1 }], &[]);
}

#[test]
fn the_last_setting_of_a_key_is_left_before_the_things() {
    let set = |key, value| Cmd::Set { key, value };
    reduces(
        &[create(1, &[], 0), set(2, 5), set(1, 1), set(2, 6), set(1, 3)],
        &[set(1, 3), set(2, 6), create(1, &[], 0)],
    );
}

#[test]
fn what_a_creation_cannot_take_in_follows_it_merged() {
    let paint = |id, brush, colours| Cmd::Paint { id, brush, colours };
    reduces(
        &[
            create(2, &[], 0),
            create(1, &[], 0),
            paint(2, 1, 1),
            paint(2, 0, 1),
            Cmd::Advance { id: 2, since: 4 },
            paint(2, 1, 4),
        ],
        &[create(2, &[], 4), paint(2, 0, 1), paint(2, 1, 5), create(1, &[], 0)],
    );
}

#[test]
fn what_was_dropped_is_gone_with_all_that_was_about_it() {
    reduces(
        &[
            create(1, &[], 0),
            create(2, &[], 0),
            Cmd::Paint { id: 1, brush: 0, colours: 1 },
            Cmd::Ask { id: 9, of: 1, at: 3 },
            Cmd::Drop { id: 1 },
        ],
        &[create(2, &[], 0)],
    );
}

#[test]
fn what_was_dropped_stays_while_something_needs_it() {
    let chain = [
        create(1, &[], 0),
        create(2, &[1], 0),
        create(3, &[2], 0),
        Cmd::Ask { id: 9, of: 3, at: 3 },
        Cmd::Drop { id: 2 },
        Cmd::Drop { id: 1 },
    ];
    let stays = [&chain[0], &chain[1], &chain[2], &chain[3], &Cmd::Drop { id: 1 }, &Cmd::Drop { id: 2 }];
    let mut history = history(&chain);
    assert_eq!(history.commands(), stays);
    history.push(Cmd::Drop { id: 3 }).unwrap();
    assert!(history.is_empty(), "{history:?}");
    assert!(history.things.is_empty() && history.living.is_empty() && history.open.is_empty());
}

#[test]
fn an_id_is_used_again_after_the_drop_of_what_had_it() {
    let commands = [
        create(1, &[], 0),
        create(2, &[1], 5),
        Cmd::Drop { id: 1 },
        create(1, &[], 7),
        create(3, &[1, 2], 8),
        create(4, &[], 0),
    ];
    reduces(&commands, &commands);
    let without = [&commands[..], &[Cmd::Drop { id: 2 }, Cmd::Drop { id: 3 }]].concat();
    reduces(&without, &[create(1, &[], 7), create(4, &[], 0)]);
}

#[test]
fn a_request_is_left_until_it_is_settled_or_asked_again() {
    let ask = |id, at| Cmd::Ask { id, of: 1, at };
    let mut history =
        history(&[create(1, &[], 0), ask(8, 1), ask(7, 2), ask(9, 4), ask(8, 3), Cmd::Settle { id: 9 }]);
    assert_eq!(history.commands(), [&create(1, &[], 0), &ask(7, 2), &ask(8, 3)]);
    assert!(history.settle(&7));
    assert!(!history.settle(&7));
    assert_eq!(history.commands(), [&create(1, &[], 0), &ask(8, 3)]);
    history.settle_all();
    assert_eq!(history.commands(), [&create(1, &[], 0)]);
    assert!(!history.settle(&8));
    history.push(Cmd::Drop { id: 1 }).unwrap();
    assert!(history.is_empty());
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let before = history(&[create(1, &[], 0), create(2, &[], 0), Cmd::Drop { id: 2 }]);
    let refused = [
        (create(1, &[], 4), HistoryError::Lives { id: 1 }),
        (Cmd::Advance { id: 2, since: 9 }, HistoryError::UpdatesUnknown { id: 2 }),
        (Cmd::Drop { id: 3 }, HistoryError::DropsUnknown { id: 3 }),
        (create(4, &[1, 2], 4), HistoryError::NeedsUnknown { id: 4, needed: 2 }),
        (create(4, &[4], 4), HistoryError::NeedsUnknown { id: 4, needed: 4 }),
        (Cmd::Ask { id: 5, of: 2, at: 4 }, HistoryError::NeedsUnknown { id: 5, needed: 2 }),
    ];
    let mut after = before.clone();
    for (command, error) in refused {
        assert_eq!(after.check(&command), Err(error.clone()));
        assert_eq!(after.push(command), Err(error));
    }
    assert_eq!(after, before);
    assert_eq!(
        HistoryError::NeedsUnknown { id: 4, needed: 2 }.to_string(),
        "cannot make 4: it needs 2, and nothing of this id lives"
    );
}

#[test]
fn a_long_chain_is_let_go_without_a_deep_stack() {
    #[derive(Debug)]
    struct Link(u32, bool);
    impl Commanded for Link {
        type Id = u32;
        type Key = ();
        fn effect(&self) -> Effect<u32, ()> {
            if self.1 { Effect::Creates(self.0) } else { Effect::Drops(self.0) }
        }
        fn needs(&self) -> impl Iterator<Item = u32> {
            self.0.checked_sub(1).into_iter()
        }
    }
    const LINKS: u32 = 100_000;
    let mut history = History::of((0..LINKS).map(|n| Link(n, true))).unwrap();
    for n in 0..LINKS {
        assert_eq!(history.things.len(), LINKS as usize);
        history.push(Link(n, false)).unwrap();
    }
    assert!(history.is_empty());
}

/// Whether two neighbours may change places, as the module's documentation has it.
fn commute(a: &Cmd, b: &Cmd) -> bool {
    use Effect::{Asks, Configures, Creates, Drops, Passes, Settles, Updates};
    let apart = |command: &Cmd, id: u8| command.needs().all(|need| need != id);
    match (a.effect(), b.effect()) {
        (Passes, _) | (_, Passes) => true,
        (Configures(a), Configures(b)) => a != b,
        (Configures(_), _) | (_, Configures(_)) => true,
        (Settles(a), Settles(b)) => a != b,
        (Settles(a), Asks(b)) | (Asks(a), Settles(b)) => a != b,
        (Settles(_), _) | (_, Settles(_)) => true,
        // Their order is a part of what they mean.
        (Creates(_), Creates(_)) | (Asks(_), Asks(_)) => false,
        (Updates(a, k), Updates(b, l)) => (a, k) != (b, l),
        // Who updates sees to it that what needs the thing does not mind.
        (Updates(..), Asks(_)) | (Asks(_), Updates(..)) => true,
        (Updates(a, _), Creates(b)) | (Creates(b), Updates(a, _)) => a != b,
        (Asks(_), Creates(id) | Drops(id)) | (Creates(id) | Drops(id), Asks(_)) => {
            apart(a, id) && apart(b, id)
        }
        (Creates(a_id) | Updates(a_id, _) | Drops(a_id), Creates(b_id) | Updates(b_id, _) | Drops(b_id)) => {
            a_id != b_id && apart(a, b_id) && apart(b, a_id)
        }
    }
}

/// The same commands with neighbours that changed places.
fn interleave(mut commands: Vec<Cmd>, swaps: &[usize]) -> Vec<Cmd> {
    for swap in swaps {
        if commands.len() >= 2 {
            let at = swap % (commands.len() - 1);
            if commute(&commands[at], &commands[at + 1]) {
                commands.swap(at, at + 1);
            }
        }
    }
    commands
}

proptest! {
    #![proptest_config(cases(if cfg!(debug_assertions) { 600 } else { 5_000 }))]

    #[test]
    fn what_is_left_means_what_all_meant(dice in dice(80)) {
        let commands = go_on(&[], &dice);
        let history = history(&commands);
        prop_assert_eq!(Engine::after(history.commands()).view(), Engine::after(&commands).view());
    }

    #[test]
    fn what_is_left_is_left_again(dice in dice(80)) {
        let history = history(&go_on(&[], &dice));
        let again = History::of(history.commands().into_iter().cloned()).unwrap();
        prop_assert_eq!(again.commands(), history.commands());
        prop_assert_eq!(again.len(), history.len());
    }

    #[test]
    fn interleavings_that_mean_the_same_are_equal(
        dice in dice(60),
        swaps in prop::collection::vec(any::<usize>(), 0..400),
    ) {
        let commands = go_on(&[], &dice);
        let others = interleave(commands.clone(), &swaps);
        prop_assert_eq!(history(&commands), history(&others));
    }

    /// At any point, no more is left than what the engine itself still has.
    #[test]
    fn no_more_is_left_than_lives(dice in dice(200)) {
        let mut history = History::new();
        let mut engine = Engine::default();
        for command in go_on(&[], &dice) {
            engine.carry_out(&command);
            history.push(command).unwrap();
            prop_assert_eq!(history.len(), history.commands().len());
            prop_assert_eq!(history.len(), engine.commands_needed());
        }
    }
}
