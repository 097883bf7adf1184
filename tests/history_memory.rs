//! The memory of a history is bounded by what lives, however many commands came.
//!
//! A program of its own, whose allocator counts, with one test, so that nobody else is counted. `SERIATIM_LONG=1`, or a
//! build with optimizations, takes ten million commands, others one.

use peak_alloc::PeakAlloc;
use seriatim::channel::{Commanded, Effect, History};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const THINGS: u64 = 1_000;
const REQUESTS: u64 = 100;

#[expect(dead_code, reason = "what nobody reads takes memory, too")]
enum Command {
    Set(u64, String),
    Create { id: u64, plan: String, since: u64 },
    Advance { id: u64, since: u64 },
    Note { id: u64, text: String },
    Drop(u64),
    Ask { id: u64, of: u64 },
    Settle(u64),
}

impl Commanded for Command {
    type Id = u64;
    type Key = u64;

    fn effect(&self) -> Effect<u64, u64> {
        match *self {
            Self::Set(key, _) => Effect::Configures(key),
            Self::Create { id, .. } => Effect::Creates(id),
            Self::Advance { id, .. } => Effect::Updates(id, 0),
            Self::Note { id, .. } => Effect::Updates(id, 1),
            Self::Drop(id) => Effect::Drops(id),
            Self::Ask { id, .. } => Effect::Asks(id),
            Self::Settle(id) => Effect::Settles(id),
        }
    }

    /// Each thing needs the one before it, in groups of ten.
    fn needs(&self) -> impl Iterator<Item = u64> {
        let needed = match *self {
            Self::Create { id, .. } => (id % 10 != 0).then(|| id - 1),
            Self::Ask { of, .. } => Some(of),
            _ => None,
        };
        needed.into_iter()
    }

    fn advance(&mut self, update: Self) -> Option<Self> {
        match (self, update) {
            (Self::Create { since, .. }, Self::Advance { since: later, .. }) => *since = later,
            (_, other) => return Some(other),
        }
        None
    }
}

/// Numbers that repeat in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A text that takes memory, as long whenever it is made.
fn text(n: u64) -> String {
    format!("{n:0100}")
}

/// Adds some commands, and says how many.
fn command(history: &mut History<Command>, dice: &mut Dice, n: u64) -> u64 {
    let id = dice.below(THINGS);
    let some = match dice.below(16) {
        0 => vec![Command::Set(id % 10, text(n))],
        1..6 => vec![Command::Ask { id: n % REQUESTS, of: id }],
        6 | 7 => vec![Command::Settle(n % REQUESTS)],
        8..12 => vec![Command::Note { id, text: text(n) }],
        // Half of the things are there for good. Of the others, the first of a group again and again, while some are on
        // it; or all of a group, the first one first.
        12 if id < THINGS / 2 => group(id - id % 10, if id.is_multiple_of(2) { 1 } else { 10 }, n),
        _ => vec![Command::Advance { id, since: n }],
    };
    let count = some.len() as u64;
    some.into_iter().for_each(|command| history.push(command).unwrap());
    count
}

/// Drops the first of a group and creates them again.
fn group(first: u64, count: u64, n: u64) -> Vec<Command> {
    let ids = first..first + count;
    let drops = ids.clone().map(Command::Drop);
    drops.chain(ids.map(|id| Command::Create { id, plan: text(id), since: n })).collect()
}

#[test]
fn memory_is_bounded_by_what_lives() {
    let long = std::env::var_os("SERIATIM_LONG").is_some_and(|value| value != "0") || !cfg!(debug_assertions);
    let commands = if long { 10_000_000 } else { 1_000_000 };
    let before = ALLOCATOR.current_usage();

    // As much as there can be at once: each thing with a note, each group with one that was dropped and stays.
    let mut full = History::new();
    (0..10).for_each(|key| full.push(Command::Set(key, text(key))).unwrap());
    (0..THINGS / 10).flat_map(|n| group_of_ten(n * 10)).for_each(|command| full.push(command).unwrap());
    (0..REQUESTS).for_each(|id| full.push(Command::Ask { id, of: id }).unwrap());
    let bound = ALLOCATOR.current_usage() - before;
    let most = full.len();
    drop(full);

    let mut history = History::new();
    for id in 0..THINGS {
        history.push(Command::Create { id, plan: text(id), since: 0 }).unwrap();
    }
    ALLOCATOR.reset_peak_usage();
    let (mut dice, mut count) = (Dice(1), 0);
    while count < commands {
        count += command(&mut history, &mut dice, count);
        if count.is_multiple_of(1_000) {
            assert!(history.len() <= most, "{} commands are left, expected at most {most}", history.len());
        }
    }
    let peak = ALLOCATOR.peak_usage() - before;
    println!("{count} commands: {} left, peak {peak} bytes; {bound} bytes for {most} at rest", history.len());
    assert!(peak <= bound, "{peak} bytes, expected at most {bound}");
}

/// Creates ten, with a note for each, of which the first is dropped, stays, and is created again.
fn group_of_ten(first: u64) -> impl Iterator<Item = Command> {
    let create = |id| Command::Create { id, plan: text(id), since: 0 };
    let each = move |id| [create(id), Command::Note { id, text: text(id) }];
    let again = [Command::Drop(first)].into_iter().chain(each(first));
    (first..first + 10).flat_map(each).chain(again)
}
