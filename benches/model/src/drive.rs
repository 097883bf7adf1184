//! The real code, played by one thread: producers, sequencer and workers in turn.

use anyhow::{Context, Result};
use seriatim::{Event, Producer, Region, Sequencer, Worker};

use crate::count::{Counted, Pace, ROWS, Role, Shape, TICKETS, Tally};
use crate::machine::submit;
use crate::trace::{self, Area, as_party};
use crate::{LANE, region};

/// A run's commands and more.
const LIMIT: usize = 4096;

/// All parties of a region, attached.
pub(crate) struct Rig {
    sequencer: Sequencer,
    producers: Vec<Producer>,
    workers: Vec<Worker>,
    pace: Pace,
    /// What a worker does with each event.
    handler: fn(Event<'_>),
}

/// A shape's transfers in full: by role and area, for one command and one party.
pub(crate) type Detail = Vec<(Role, Area, Tally)>;

impl Rig {
    /// Attaches everybody and begins to count, with caches as after a long time: every ticket, run and cell has been used
    /// once.
    pub(crate) fn new(producers: usize, workers: usize, pace: Pace) -> Result<Rig> {
        let region = Region::anonymous(&region(producers, workers))?;
        let mut sequencer = Sequencer::open(&region)?;
        // Attaching is a hand-shake, so it takes a second thread.
        let attaching = std::thread::spawn({
            let region = region.clone();
            move || attach(&region, producers, workers)
        });
        while !attaching.is_finished() {
            sequencer.poll(LIMIT)?;
            std::thread::yield_now();
        }
        let (producers, mut workers) = attaching.join().ok().context("a thread without panics")??;
        sequencer.poll(LIMIT)?;
        catch_up(&mut workers)?;
        trace::begin(&region, LANE.0 as usize)?;
        let mut rig = Rig { sequencer, producers, workers, pace, handler: read };
        let tickets = (rig.producers.len() * LANE.0 as usize + 8).next_power_of_two();
        rig.play(1, 32, tickets.max(4096))?;
        Ok(rig)
    }

    /// Counts for commands of `payload` bytes, `batch` a ticket.
    pub(crate) fn count(&mut self, batch: usize, payload: usize) -> Result<(Counted, Detail)> {
        let lap = self.lap(payload).next_multiple_of(batch);
        self.play(batch, payload, lap * self.producers.len())?;
        trace::take_tallies();
        let commands = self.play(batch, payload, lap * self.producers.len())? as f64;
        // Each command has one producer, and all workers.
        let parties = |role| if role == Role::Worker { self.workers.len() } else { 1 } as f64;
        let detail: Detail = trace::take_tallies()
            .into_iter()
            .map(|(role, area, tally)| (role, area, tally.over(commands * parties(role))))
            .collect();
        let shape = Shape {
            producers: self.producers.len(),
            workers: self.workers.len(),
            batch,
            payload,
            pace: self.pace,
        };
        Ok((Counted { shape, rows: sums(&detail) }, detail))
    }

    /// Commands after which a producer writes the same lines again.
    fn lap(&self, payload: usize) -> usize {
        let (cells, bytes) = LANE;
        if payload <= 40 {
            cells as usize
        } else {
            (cells as usize).min(bytes as usize / payload.next_multiple_of(64))
        }
    }

    /// Submits, orders and delivers at least so many commands; how many.
    fn play(&mut self, batch: usize, payload: usize, commands: usize) -> Result<usize> {
        let bytes = vec![7; payload];
        let batch = vec![(0, &bytes[..]); batch];
        let tickets = match self.pace {
            Pace::Hand => 1,
            // A quarter of the lane: beyond that nobody is in a hurry.
            Pace::Bulk => (self.lap(payload) / 4 / batch.len()).clamp(1, TICKETS),
        };
        let mut played = 0;
        while played < commands {
            for n in 0..self.producers.len() {
                for _ in 0..tickets {
                    as_party(1 + n, Role::Producer, || submit(&mut self.producers[n], &batch))?;
                }
                if self.pace == Pace::Hand {
                    self.pass_on()?;
                }
            }
            if self.pace == Pace::Bulk {
                self.pass_on()?;
            }
            played += batch.len() * tickets * self.producers.len();
        }
        Ok(played)
    }

    /// Orders and delivers all that is there, and looks once more.
    fn pass_on(&mut self) -> Result<()> {
        while as_party(0, Role::Sequencer, || self.sequencer.poll(256))?.commands > 0 {}
        let first = 1 + self.producers.len();
        for (n, worker) in self.workers.iter_mut().enumerate() {
            while as_party(first + n, Role::Worker, || worker.poll_batch(LIMIT, self.handler))? > 0 {}
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        trace::end();
    }
}

fn attach(region: &Region, producers: usize, workers: usize) -> Result<(Vec<Producer>, Vec<Worker>)> {
    let mut joined = Vec::new();
    for n in 0..workers {
        joined.push(Worker::join(region, &format!("w{n}"))?);
        // The order has only so much room for saying who came.
        catch_up(&mut joined)?;
    }
    let mut attached = Vec::new();
    for n in 0..producers {
        attached.push(Producer::attach(region, &format!("p{n}"))?);
        catch_up(&mut joined)?;
    }
    Ok((attached, joined))
}

fn catch_up(workers: &mut [Worker]) -> Result<()> {
    for worker in workers {
        while worker.poll_batch(LIMIT, |_| ())? > 0 {}
    }
    Ok(())
}

fn read(event: Event<'_>) {
    if let Event::Command(command) = event {
        trace::reads(command.payload);
    }
}

fn sums(detail: &Detail) -> [Tally; ROWS.len()] {
    ROWS.map(|(role, step, _)| {
        let mut sum = Tally::default();
        let parts = detail.iter().filter(|part| part.0 == role && part.1.step(role) == step);
        parts.for_each(|part| sum.add(&part.2));
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::Step;

    fn count(
        producers: usize,
        workers: usize,
        pace: Pace,
        batch: usize,
        payload: usize,
    ) -> (Counted, Detail) {
        Rig::new(producers, workers, pace).unwrap().count(batch, payload).unwrap()
    }

    #[test]
    fn a_batch_of_small_commands_moves_its_cells_and_little_else() {
        for pace in Pace::ALL {
            let (counted, _) = count(1, 1, pace, 32, 32);
            let lines = |role, step| counted.tally(role, step).lines();
            // A cell is a line, there and back; a ticket and a run are for all 32.
            assert!((1.0..1.05).contains(&lines(Role::Producer, Step::Submit)), "{counted:?}");
            assert!((0.001..0.1).contains(&lines(Role::Sequencer, Step::Sequence)), "{counted:?}");
            assert!((1.0..1.07).contains(&lines(Role::Worker, Step::Poll)), "{counted:?}");
            let waits: f64 = counted.rows.iter().map(|row| row.waits).sum();
            assert!(waits < 0.15, "{counted:?}");
            let free = [Role::Producer, Role::Sequencer, Role::Worker].map(|role| lines(role, Step::Free));
            assert!(free.iter().all(|lines| *lines < 0.005), "{counted:?}");
        }
    }

    #[test]
    fn a_worker_stores_nothing_for_a_command() {
        let mut rig = Rig::new(1, 2, Pace::Bulk).unwrap();
        rig.play(32, 32, 4096).unwrap();
        trace::take_stores(Role::Worker);
        let commands = rig.play(32, 32, 4096).unwrap() * rig.workers.len();
        // A position, a digest and who is current, on one line, after 32 of them.
        let stores = trace::take_stores(Role::Worker) as f64 / commands as f64;
        assert!((1.0 / 32.0..=3.0 / 32.0).contains(&stores), "{stores} stores for a command");
        let (counted, _) = rig.count(1, 32).unwrap();
        assert_eq!(counted.tally(Role::Worker, Step::Poll).writes, 0.0);
    }

    #[test]
    fn the_sequencer_moves_the_same_for_every_payload() {
        let of = |payload| {
            let (counted, detail) = count(2, 2, Pace::Hand, 8, payload);
            let payloads = [Area::Claim, Area::Cell, Area::Bytes];
            let touched = detail.iter().any(|part| {
                part.0 == Role::Sequencer && payloads.contains(&part.1) && part.2 != Tally::default()
            });
            assert!(!touched, "it read a command: {detail:?}");
            counted.tally(Role::Sequencer, Step::Sequence)
        };
        let small = of(32);
        for payload in [256, 4096, 65536] {
            let large = of(payload);
            // A lane that is full of bytes sooner is freed more often, and its producer then takes the line of its entry:
            // after half of a lane, which is four tickets of 64 KiB commands.
            let more = large.lines() - small.lines();
            assert!(
                (large.waits - small.waits).abs() < 0.01 && more <= 0.26 / 8.0,
                "{payload} {small:?} {large:?}"
            );
        }
    }

    #[test]
    fn more_workers_are_more_gates_and_more_copies_and_nothing_else() {
        let of = |workers| count(1, workers, Pace::Hand, 8, 32).0;
        let (few, many) = (of(4), of(16));
        let gates = |counted: &Counted| counted.tally(Role::Sequencer, Step::Free).waits;
        assert!((gates(&many) / gates(&few) - 4.0).abs() < 0.4, "{} {}", gates(&few), gates(&many));
        let copies = |counted: &Counted| counted.tally(Role::Producer, Step::Submit).copies;
        assert_eq!((copies(&few), copies(&many)), (3.0, 15.0));
        for (role, step) in [(Role::Producer, Step::Submit), (Role::Worker, Step::Poll)] {
            let [few, many] = [&few, &many].map(|counted| counted.tally(role, step).lines());
            assert!((many / few - 1.0).abs() < 0.02, "{role:?} {few} {many}");
        }
    }

    #[test]
    fn a_word_beside_anothers_would_be_seen() {
        let mut rig = Rig::new(1, 2, Pace::Hand).unwrap();
        let (clean, _) = rig.count(8, 32).unwrap();
        // Both workers count what they had, and the words share a line with how far the order goes.
        rig.handler = |event| {
            read(event);
            trace::stores(trace::beside_published());
        };
        let (shared, detail) = rig.count(8, 32).unwrap();
        let lines = |counted: &Counted, role, step| counted.tally(role, step).lines();
        let worker = [&clean, &shared].map(|counted| lines(counted, Role::Worker, Step::Poll));
        let sequencer = [&clean, &shared].map(|counted| lines(counted, Role::Sequencer, Step::Sequence));
        // Each ticket of 8 commands takes the line three times.
        assert!(
            worker[1] - worker[0] > 0.12 && sequencer[1] - sequencer[0] > 0.12,
            "{worker:?} {sequencer:?}"
        );
        let blamed = |role| {
            detail.iter().any(|part| part.0 == role && part.1 == Area::Published && part.2.lines() > 0.1)
        };
        assert!(blamed(Role::Worker) && blamed(Role::Sequencer), "{detail:?}");
    }

    #[test]
    fn a_count_is_the_same_again() {
        let [one, other] = [(), ()].map(|()| count(2, 2, Pace::Bulk, 1, 256).0);
        assert_eq!(one, other);
    }
}
