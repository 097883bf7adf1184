//! From transfers to throughput.
//!
//! ```text
//! time of a party for a command = work + waits·transfer + reads·read + writes·write + copies·copy
//! commands a second             = least of   producers / time(producer)    1 / time(sequencer)    1 / time(worker)
//!                                            cores / time of all together
//!                                            bandwidth / (64 · lines of all)
//!                                            link / (64 · lines of a worker · workers of a socket), if there are several
//! ```
//!
//! A line that all workers wait for at once is served to them one after another: a wait of theirs takes
//! `workers · copy` if that is longer than `transfer`. Where the parties need several sockets, that part of the lines which
//! crosses from one to another takes `far` times as long, and each socket adds its bandwidth. With more parties than cores, one transfer of `cores` finds
//! the line in the cache that its party shares with the other.

use std::fmt;

use crate::count::{Counted, LINE, ROWS, Role, Shape, Step, Tally};
use crate::machine::{Machine, Work};

/// What the times of a party and the machine as a whole are taken to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Premises {
    pub(crate) machine: Machine,
    /// For each further cache that wants a line, or loses it.
    pub(crate) copy_ns: f64,
    /// How many times longer a transfer between sockets takes.
    pub(crate) far: f64,
    /// Cores of a socket.
    pub(crate) socket: usize,
    /// Bytes in a nanosecond that all caches of a socket together move.
    pub(crate) bandwidth: f64,
    /// Bytes in a nanosecond that come to a socket from the others.
    pub(crate) link: f64,
    /// Cores; `None` if there is one for each party.
    pub(crate) cores: Option<usize>,
}

/// Who or what lets no more through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Producers,
    Sequencer,
    Workers,
    Relays,
    Cores,
    Bandwidth,
    Link,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Limit::Producers => "producers",
            Limit::Sequencer => "sequencer",
            Limit::Workers => "workers",
            Limit::Relays => "relays",
            Limit::Cores => "cores",
            Limit::Bandwidth => "bandwidth",
            Limit::Link => "link",
        })
    }
}

/// An expected throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expected {
    /// Commands in a second.
    pub(crate) rate: f64,
    pub(crate) limit: Limit,
}

/// The least of some rates in commands a nanosecond.
fn least(rates: &[(f64, Limit)]) -> Expected {
    let first = (f64::INFINITY, Limit::Cores);
    let (rate, limit) =
        rates.iter().copied().fold(first, |least, one| if one.0 < least.0 { one } else { least });
    Expected { rate: rate * 1e9, limit }
}

impl Premises {
    fn sockets(&self, parties: usize) -> usize {
        self.cores.unwrap_or(parties).min(parties).div_ceil(self.socket).max(1)
    }

    /// How many commands in a nanosecond come to a socket from another one, if so many readers in all sockets each fetch them.
    fn linked(&self, parties: usize, counted: &Counted) -> f64 {
        let (sockets, readers) = (self.sockets(parties), counted.shape.workers);
        let lines = lines_of(counted, Role::Worker) * readers.div_ceil(sockets) as f64;
        if sockets > 1 { self.link / (LINE as f64 * lines) } else { f64::INFINITY }
    }

    /// The same where so many parties work together, on as many sockets as they need.
    pub(crate) fn among(self, parties: usize) -> Premises {
        let sockets = self.sockets(parties) as f64;
        let longer = 1.0 + (self.far - 1.0) * (sockets - 1.0) / sockets;
        let Machine { transfer_ns, read_ns, write_ns } = self.machine;
        let machine = Machine {
            transfer_ns: transfer_ns * longer,
            read_ns: read_ns * longer,
            write_ns: write_ns * longer,
        };
        Premises { machine, copy_ns: self.copy_ns * longer, bandwidth: self.bandwidth * sockets, ..self }
    }

    /// What a party's transfers take for a command.
    fn moving(&self, tally: &Tally, waiting_ns: f64) -> f64 {
        let Machine { read_ns, write_ns, .. } = self.machine;
        tally.waits * waiting_ns
            + tally.reads * read_ns
            + tally.writes * write_ns
            + tally.copies * self.copy_ns
    }

    /// The same of a role.
    pub(crate) fn moving_of(&self, counted: &Counted, role: Role) -> f64 {
        let queue = if role == Role::Worker { counted.shape.workers as f64 * self.copy_ns } else { 0.0 };
        let waiting = self.machine.transfer_ns.max(queue);
        let steps = ROWS.iter().filter(|row| row.0 == role).map(|row| row.1);
        steps.map(|step| self.moving(&counted.tally(role, step), waiting)).sum()
    }

    /// What to expect where everybody follows the one sequencer.
    pub(crate) fn flat(&self, counted: &Counted, work: &Work) -> Expected {
        let Shape { producers, workers, .. } = counted.shape;
        let cores = self.cores.filter(|&cores| cores < producers + workers + 1).map(|cores| cores as f64);
        let apart = cores.map_or(1.0, |cores| (cores - 1.0) / cores);
        let all = self.among(producers + workers + 1);
        let time = |role, work: f64| work + apart * all.moving_of(counted, role);
        let (p, s) = (time(Role::Producer, work.submit), time(Role::Sequencer, work.sequence));
        let w = time(Role::Worker, work.poll);
        least(&[
            (producers as f64 / p, Limit::Producers),
            (1.0 / s, Limit::Sequencer),
            (1.0 / w, Limit::Workers),
            (all.bandwidth / (LINE as f64 * lines(counted)), Limit::Bandwidth),
            (self.linked(producers + workers + 1, counted), Limit::Link),
            (cores.map_or(f64::INFINITY, |cores| cores / (p + s + w * workers as f64)), Limit::Cores),
        ])
    }

    /// What to expect with a relay for each group of workers: it follows the order and copies every command into a region of
    /// its group, whose sequencer it is. `top` has the relays for workers, `group` a group's workers. A group is in a socket;
    /// the relays may be in several.
    pub(crate) fn relayed(&self, top: &Counted, group: &Counted, work: &Work) -> Expected {
        let (groups, each) = (top.shape.workers, group.shape.workers);
        let parties = top.shape.producers + 1 + groups * (1 + each);
        let all = self.among(parties);
        // It has no ticket to put in or to wait for.
        let stores = |role, step| self.moving(&Tally { waits: 0.0, ..group.tally(role, step) }, 0.0);
        let relay = all.moving_of(top, Role::Worker)
            + (work.poll + work.submit + work.sequence)
            + stores(Role::Producer, Step::Submit)
            + stores(Role::Sequencer, Step::Sequence)
            + self.moving(&group.tally(Role::Sequencer, Step::Free), self.machine.transfer_ns);
        let moved = lines(top) + groups as f64 * lines(group);
        least(&[
            (
                top.shape.producers as f64 / (work.submit + all.moving_of(top, Role::Producer)),
                Limit::Producers,
            ),
            (1.0 / (work.sequence + all.moving_of(top, Role::Sequencer)), Limit::Sequencer),
            (1.0 / relay, Limit::Relays),
            (1.0 / (work.poll + self.moving_of(group, Role::Worker)), Limit::Workers),
            (all.bandwidth / (LINE as f64 * moved), Limit::Bandwidth),
            (self.linked(parties, top), Limit::Link),
        ])
    }
}

/// Lines that one party of a role moves for a command.
fn lines_of(counted: &Counted, role: Role) -> f64 {
    let rows = ROWS.iter().zip(&counted.rows);
    rows.filter(|(row, _)| row.0 == role).map(|(_, tally)| tally.lines()).sum()
}

/// Lines that all parties move for a command.
fn lines(counted: &Counted) -> f64 {
    let workers = counted.shape.workers as f64 * lines_of(counted, Role::Worker);
    lines_of(counted, Role::Producer) + lines_of(counted, Role::Sequencer) + workers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::Pace;

    const WORK: Work = Work { submit: 10.0, sequence: 2.0, poll: 5.0 };

    fn premises() -> Premises {
        let machine = Machine { transfer_ns: 100.0, read_ns: 4.0, write_ns: 4.0 };
        Premises {
            machine,
            copy_ns: 2.0,
            far: 3.0,
            socket: 1000,
            bandwidth: 1000.0,
            link: 1000.0,
            cores: None,
        }
    }

    /// A ticket and a run of `batch` commands that each have a line: what the code would count if it were so simple.
    fn counted(producers: usize, workers: usize, batch: usize) -> Counted {
        let each = 1.0 / batch as f64;
        let copies = (workers - 1) as f64;
        let rows = [
            Tally { waits: each, writes: 1.0, copies, reads: 0.0 },
            Tally { waits: each, writes: each, copies: copies * each, reads: 0.0 },
            Tally { waits: each, reads: 1.0, ..Tally::default() },
            Tally::default(),
            Tally { waits: workers as f64 / 1024.0, ..Tally::default() },
            Tally::default(),
        ];
        let shape = Shape { producers, workers, batch, payload: 32, pace: Pace::Bulk };
        Counted { shape, rows }
    }

    fn near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} instead of {expected}");
    }

    #[test]
    fn the_slowest_party_decides() {
        let one = premises().flat(&counted(1, 1, 1), &WORK);
        near(one.rate, 1e9 / (10.0 + 100.0 + 4.0));
        assert_eq!(one.limit, Limit::Producers);
        // Two producers submit twice as fast, and then the workers are the slowest.
        let two = premises().flat(&counted(2, 1, 1), &WORK);
        near(two.rate, 1e9 / (5.0 + 100.0 + 4.0));
        assert_eq!(two.limit, Limit::Workers);
    }

    #[test]
    fn more_workers_cost_from_where_their_queue_is_longer_than_a_transfer() {
        let waiting = |workers| premises().moving_of(&counted(8, workers, 1), Role::Worker);
        assert_eq!(waiting(50), waiting(1));
        near(waiting(100) - waiting(50), 100.0);
        // Who stores what they have pays for each of them from the beginning.
        let storing = |workers| premises().moving_of(&counted(8, workers, 1), Role::Producer);
        near(storing(50) - storing(1), 98.0);
    }

    #[test]
    fn where_cores_are_few_all_the_work_is_shared_among_them() {
        let few = Premises { cores: Some(2), ..premises() };
        let expected = few.flat(&counted(1, 8, 32), &WORK);
        let (each, gates) = (100.0 / 32.0, 800.0 / 1024.0);
        let all = 10.0
            + 2.0
            + 8.0 * 5.0
            + 0.5 * (each + 4.0 + 14.0 + each + 4.0 / 32.0 + 14.0 / 32.0 + gates + 8.0 * (each + 4.0));
        near(expected.rate, 2e9 / all);
        assert_eq!(expected.limit, Limit::Cores);
        let enough = Premises { cores: Some(10), ..premises() };
        assert_eq!(enough.flat(&counted(1, 8, 32), &WORK), premises().flat(&counted(1, 8, 32), &WORK));
    }

    #[test]
    fn bytes_are_bounded_by_the_bandwidth() {
        let slow = Premises { bandwidth: 1.0, ..premises() };
        let counted = counted(1, 8, 32);
        let expected = slow.flat(&counted, &WORK);
        assert_eq!(expected.limit, Limit::Bandwidth);
        near(expected.rate, 1e9 / (LINE as f64 * lines(&counted)));
    }

    #[test]
    fn lines_between_sockets_take_longer_and_sockets_have_their_own_bandwidth() {
        let two = Premises { socket: 9, ..premises() };
        assert_eq!(two.flat(&counted(1, 7, 1), &WORK), premises().flat(&counted(1, 7, 1), &WORK));
        // Half of the lines come from the other socket, and take three times as long.
        let all = two.among(18);
        assert_eq!((all.machine.transfer_ns, all.copy_ns, all.bandwidth), (200.0, 4.0, 2000.0));
        let few = Premises { cores: Some(2), ..two };
        assert_eq!(few.among(18).machine.transfer_ns, 100.0);
    }

    #[test]
    fn a_relay_in_each_socket_has_a_command_cross_the_link_once() {
        let narrow = Premises { socket: 9, link: 1.0, ..premises() };
        let flat = narrow.flat(&counted(1, 16, 32), &WORK);
        assert_eq!(flat.limit, Limit::Link);
        // Eight workers of a socket each fetch the command's line, and one of 32 of its run.
        near(flat.rate, 1e9 / (64.0 * 8.0 * (1.0 + 1.0 / 32.0)));
        assert!(narrow.relayed(&counted(1, 2, 32), &counted(1, 8, 32), &WORK).rate > 5.0 * flat.rate);
    }

    #[test]
    fn relays_help_where_many_workers_wait_for_one_line() {
        let gain = |workers: usize| {
            let relayed = premises().relayed(&counted(8, 16, 1), &counted(1, workers / 16, 1), &WORK);
            relayed.rate / premises().flat(&counted(8, workers, 1), &WORK).rate
        };
        // A command comes later by way of a relay, and no faster as long as few wait.
        assert!(gain(16) <= 1.0 && gain(256) > 1.5, "{} {}", gain(16), gain(256));
    }
}
