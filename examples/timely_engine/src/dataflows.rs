//! The dataflows that an engine builds, and the indexes that it answers from. Nothing in here knows about the channel.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::vec::{Filter, Map};
use timely::dataflow::operators::{
    Concat, ConnectLoop, Enter, Input, Leave, LoopVariable, Operator, Probe, ToStream,
};
use timely::dataflow::{InputHandle, ProbeHandle, Scope, StreamVec};
use timely::worker::Worker;

use crate::command::{Plan, Row};

/// Source, target, and since when it is there.
type Edge = (u64, u64, u64);

/// A row that is there so many times more from a time on. The message that carries it may have an earlier time, never a
/// later one, so all updates up to a time have come once the probe has passed it.
type Update = (Row, u64, i64);

/// One dataflow, as its worker holds it.
pub(crate) struct Dataflow {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Edge>>>,
    /// This worker's share of the file that is not in yet, by time.
    waiting: VecDeque<Edge>,
    probe: ProbeHandle<u64>,
    index: Rc<RefCell<Index>>,
}

impl Dataflow {
    /// Builds it. Every worker has to, whatever else goes wrong: the dataflow and its channels get the next numbers,
    /// which have to be the same everywhere.
    pub(crate) fn build(timely: &mut Worker, plan: &Plan, share: Vec<Edge>) -> Dataflow {
        let (mut input, probe) = (InputHandle::new(), ProbeHandle::new());
        let index = Rc::new(RefCell::new(Index::default()));
        timely.dataflow(|scope: Scope<'_, u64>| {
            let edges = scope.input_from(&mut input);
            let updates = match *plan {
                Plan::FilterCount { divisor, .. } => filter_count(edges, divisor),
                Plan::TwoHops { .. } => two_hops(edges),
                Plan::Reach { from, .. } => reach(scope, edges, from),
            };
            arrange(updates, Rc::clone(&index)).probe_with(&probe);
        });
        let mut waiting = share;
        waiting.sort_unstable_by_key(|&(_, _, since)| since);
        Dataflow { input, waiting: waiting.into(), probe, index }
    }

    /// Gives it all edges of times before this one. Time does not go back.
    pub(crate) fn advance_to(&mut self, time: u64) {
        while let Some(&edge) = self.waiting.front().filter(|&&(_, _, since)| since < time) {
            self.waiting.pop_front();
            self.input.advance_to((*self.input.time()).max(edge.2));
            self.input.send(edge);
        }
        self.input.advance_to((*self.input.time()).max(time));
    }

    /// Whether everything up to and including a time has been computed.
    pub(crate) fn has_passed(&self, time: u64) -> bool {
        !self.probe.less_equal(&time)
    }

    /// This worker's part of the result as of a time.
    pub(crate) fn rows(&self, time: u64) -> Vec<(Row, i64)> {
        self.index.borrow().as_of(time)
    }

    /// Times before this one become this one.
    pub(crate) fn compact(&self, since: u64) {
        self.index.borrow_mut().compact(since);
    }
}

/// Edges whose target the divisor divides, one row for each.
fn filter_count(edges: StreamVec<'_, u64, Edge>, divisor: u64) -> StreamVec<'_, u64, Update> {
    let divided = move |edge: &Edge| edge.1.checked_rem(divisor) == Some(0);
    edges.filter(divided).map(|(source, _, since)| (vec![source], since, 1))
}

/// A join of the edges with themselves, in which each side is kept by the node where they meet.
fn two_hops(edges: StreamVec<'_, u64, Edge>) -> StreamVec<'_, u64, Update> {
    let by_target = Exchange::new(|edge: &Edge| edge.1);
    let by_source = Exchange::new(|edge: &Edge| edge.0);
    let joined = edges.clone().binary(edges, by_target, by_source, "TwoHops", |_, _| {
        let mut arriving = HashMap::<u64, Vec<(u64, u64)>>::new();
        let mut leaving = HashMap::<u64, Vec<(u64, u64)>>::new();
        move |left, right, output| {
            left.for_each(|time, edges| {
                let mut session = output.session(&time);
                for (source, middle, since) in edges.drain(..) {
                    for &(target, since_right) in leaving.get(&middle).into_iter().flatten() {
                        session.give((vec![source, target], since.max(since_right), 1));
                    }
                    arriving.entry(middle).or_default().push((source, since));
                }
            });
            right.for_each(|time, edges| {
                let mut session = output.session(&time);
                for (middle, target, since) in edges.drain(..) {
                    for &(source, since_left) in arriving.get(&middle).into_iter().flatten() {
                        session.give((vec![source, target], since.max(since_left), 1));
                    }
                    leaving.entry(middle).or_default().push((target, since));
                }
            });
        }
    });
    joined.container::<Vec<_>>()
}

/// Goes around from node to node until nothing gets earlier: each node has the time since when it can be reached.
fn reach<'scope>(
    scope: Scope<'scope, u64>,
    edges: StreamVec<'scope, u64, Edge>,
    from: u64,
) -> StreamVec<'scope, u64, Update> {
    scope.iterative::<u64, _, _>(|inner| {
        let is_first = inner.index() == 0;
        let start = is_first.then_some((from, 0)).to_stream(inner).container::<Vec<_>>();
        let (back, reached) = inner.loop_variable(1);
        let reached = reached.concat(start);
        let (edges_by, nodes_by) =
            (Exchange::new(|edge: &Edge| edge.0), Exchange::new(|node: &(u64, u64)| node.0));
        let changes = edges.enter(inner).binary(reached, edges_by, nodes_by, "Reach", |_, _| {
            let mut targets = HashMap::<u64, Vec<(u64, u64)>>::new();
            let mut earliest = HashMap::<u64, u64>::new();
            move |edges, nodes, output| {
                edges.for_each(|time, edges| {
                    let mut session = output.session(&time);
                    for (source, target, since) in edges.drain(..) {
                        if let Some(&at) = earliest.get(&source) {
                            session.give(Step::Next(target, since.max(at)));
                        }
                        targets.entry(source).or_default().push((target, since));
                    }
                });
                nodes.for_each(|time, nodes| {
                    let mut session = output.session(&time);
                    for (node, at) in nodes.drain(..) {
                        let before = earliest.get(&node).copied();
                        if before.is_some_and(|before| before <= at) {
                            continue;
                        }
                        earliest.insert(node, at);
                        session.give(Step::Reached(node, at, 1));
                        if let Some(before) = before {
                            session.give(Step::Reached(node, before, -1));
                        }
                        for &(target, since) in targets.get(&node).into_iter().flatten() {
                            session.give(Step::Next(target, since.max(at)));
                        }
                    }
                });
            }
        });
        let changes = changes.container::<Vec<_>>();
        changes.clone().flat_map(Step::next).connect_loop(back);
        changes.flat_map(Step::reached).leave(scope)
    })
}

/// What comes out of a turn of the loop.
#[derive(Clone, Copy)]
enum Step {
    /// A node is to be looked at, reached at a time.
    Next(u64, u64),
    /// A node is reached from a time on, or, with -1, was not.
    Reached(u64, u64, i64),
}

impl Step {
    fn next(self) -> Option<(u64, u64)> {
        if let Step::Next(node, at) = self { Some((node, at)) } else { None }
    }

    fn reached(self) -> Option<Update> {
        if let Step::Reached(node, at, diff) = self { Some((vec![node], at, diff)) } else { None }
    }
}

/// Brings each row to the worker that answers for it, and keeps it there.
fn arrange<'scope>(
    updates: StreamVec<'scope, u64, Update>,
    index: Rc<RefCell<Index>>,
) -> StreamVec<'scope, u64, ()> {
    let by_row = Exchange::new(|(row, _, _): &Update| place(row));
    updates.unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(by_row, "Arrange", |_, _| {
        move |input, _| {
            input.for_each(|_, updates| {
                let mut index = index.borrow_mut();
                updates.drain(..).for_each(|update| index.insert(update));
            });
        }
    })
}

/// Which worker has a row, modulo their number. The same in every process.
fn place(row: &[u64]) -> u64 {
    let mix = |hash: u64, value: &u64| (hash ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    row.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// A worker's part of a result: for each row, how often it is there more or less from which time on.
#[derive(Default)]
struct Index {
    rows: BTreeMap<Row, BTreeMap<u64, i64>>,
    since: u64,
}

impl Index {
    fn insert(&mut self, (row, time, diff): Update) {
        *self.rows.entry(row).or_default().entry(time.max(self.since)).or_default() += diff;
    }

    fn as_of(&self, time: u64) -> Vec<(Row, i64)> {
        let count = |times: &BTreeMap<u64, i64>| times.range(..=time).map(|(_, diff)| diff).sum::<i64>();
        let rows = self.rows.iter().map(|(row, times)| (row.clone(), count(times)));
        rows.filter(|&(_, count)| count != 0).collect()
    }

    fn compact(&mut self, since: u64) {
        self.since = self.since.max(since);
        self.rows.retain(|_, times| {
            let later = times.split_off(&(self.since + 1));
            let sum = times.values().sum();
            *times = later;
            if sum != 0 {
                times.insert(self.since, sum);
            }
            !times.is_empty()
        });
    }
}

/// A worker's share of an edge list: every `peers`th line.
pub(crate) fn read_share(path: &Path, index: usize, peers: usize) -> Result<Vec<Edge>> {
    let text = fs::read_to_string(path).with_context(|| format!("edge list {}", path.display()))?;
    let lines = text.lines().enumerate().skip(index).step_by(peers);
    lines
        .map(|(n, line)| parse(line).with_context(|| format!("{}, line {}", path.display(), n + 1)))
        .collect()
}

fn parse(line: &str) -> Result<Edge> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next().context("expected source, target and time")?.parse().context("no number");
    Ok((next()?, next()?, next()?))
}
