//! The board: where the parts of a measurement meet, learn of its phases, and count together.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use seriatim::shared::Stamps;

use super::{Job, Mode, Strategy};

/// Words between counters that different parties write, so that they share no line.
const LINE: usize = 16;

const READY: usize = 0;
/// When it began; 0 before.
const BEGUN: usize = LINE;
const PHASE: usize = 2 * LINE;
const ACKED: usize = 3 * LINE;
const PRODUCED: usize = 4 * LINE;

const MEASURING: u64 = 1;
const ENDING: u64 = 2;

/// What waits for a turn looks again after so long, whatever happened to its waker.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Looks at things that nobody wakes anybody for.
pub(super) const LOOK: Duration = Duration::from_micros(100);

pub(super) struct Board {
    words: Stamps,
    producers: usize,
    workers: u64,
    /// How many workers have received a command, for each that may be in flight: a power of two.
    counters: usize,
    wakes: bool,
}

impl Board {
    pub(super) fn create(job: &Job) -> io::Result<Board> {
        Ok(Board::new(job, Stamps::create(counters_at(job) + counters(job))?))
    }

    pub(super) fn open(job: &Job, path: &Path) -> io::Result<Board> {
        Ok(Board::new(job, Stamps::open(path)?))
    }

    fn new(job: &Job, words: Stamps) -> Board {
        Board {
            words,
            producers: job.producers,
            workers: job.workers as u64,
            counters: counters(job),
            wakes: job.mode == Mode::Ping && job.wait == Strategy::Block,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.words.path()
    }

    /// One more part is set up.
    pub(super) fn arrive(&self) {
        self.words.add(READY, 1);
    }

    pub(super) fn arrived(&self) -> usize {
        self.words.seen(READY) as usize
    }

    pub(super) fn begin(&self) {
        self.words.tell(BEGUN, Stamps::now());
    }

    /// When it began, by the clock of the stamps.
    pub(super) fn begun_ns(&self) -> Option<u64> {
        Some(self.words.seen(BEGUN)).filter(|&at| at > 0)
    }

    /// The warm-up is over.
    pub(super) fn measure(&self) {
        self.words.tell(PHASE, MEASURING);
    }

    /// Asks for the end.
    pub(super) fn end(&self) {
        self.words.tell(PHASE, ENDING);
        self.words.wake(ACKED);
    }

    pub(super) fn is_measuring(&self) -> bool {
        // Relaxed: nothing is read through it.
        self.words.get(PHASE) >= MEASURING
    }

    pub(super) fn is_ending(&self) -> bool {
        self.words.get(PHASE) == ENDING
    }

    /// How many commands a producer submitted in all.
    pub(super) fn set_produced(&self, producer: usize, commands: u64) {
        self.words.tell(PRODUCED + producer * LINE, commands);
    }

    pub(super) fn produced(&self) -> u64 {
        (0..self.producers).map(|producer| self.words.seen(PRODUCED + producer * LINE)).sum()
    }

    /// One more worker has received command `n`; whether it was the last to do so.
    ///
    /// A counter is used again for a command so much later that no worker can be there before all have passed this one.
    pub(super) fn received(&self, n: u64) -> bool {
        let at = PRODUCED + self.producers * LINE + (n as usize & (self.counters - 1));
        let is_last = self.words.add(at, 1) + 1 == self.workers;
        if is_last {
            self.words.tell(at, 0);
        }
        is_last
    }

    /// All have received one more command.
    pub(super) fn ack(&self) {
        self.words.add(ACKED, 1);
        if self.wakes {
            self.words.wake(ACKED);
        }
    }

    pub(super) fn acked(&self) -> u64 {
        self.words.seen(ACKED)
    }

    /// Sleeps until more than `seen` are received by all, or for a moment.
    pub(super) fn await_ack(&self, seen: u64) {
        self.words.sleep(ACKED, seen, LONGEST_SLEEP);
    }
}

fn counters_at(job: &Job) -> usize {
    PRODUCED + job.producers * LINE
}

/// A command is counted by a worker while its cell is held; there are so many cells.
fn counters(job: &Job) -> usize {
    if job.is_latency() { (job.producers * job.slots as usize).next_power_of_two() } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;

    #[test]
    fn the_last_worker_to_receive_is_told_so_again_and_again() {
        let job = Job { workers: 3, mode: Mode::Ping, producers: 1, slots: 2, ..job() };
        let board = Board::create(&job).unwrap();
        let other = Board::open(&job, &board.path()).unwrap();
        for n in 0..10 {
            assert_eq!([&board, &other, &board].map(|board| board.received(n)), [false, false, true], "{n}");
        }
    }

    #[test]
    fn the_counters_are_behind_everything_else() {
        let job = Job { producers: 5, mode: Mode::Ping, ..job() };
        let board = Board::create(&job).unwrap();
        (0..5).for_each(|producer| board.set_produced(producer, 1));
        board.received(0);
        assert_eq!((board.produced(), board.acked(), board.arrived()), (5, 0, 0));
    }
}
