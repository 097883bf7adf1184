//! [`Pacer`]: how a worker keeps step with the others where workers that differ are stopped. Elsewhere there is none,
//! and nothing of this is asked.

use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::control::MemberEntry;
use seriatim_ring::event::Event as Own;
use seriatim_ring::pace::{self, Finding};
use seriatim_ring::reports::{REPORTS, Report};
use seriatim_ring::sequencer::done_with;
use seriatim_ring::sync::Ordering;
use seriatim_ring::wake::FOR_WORK;

use crate::fold::Met;
use crate::liveness::Role;
use crate::poison::OnDivergence;
use crate::region::Region;
use crate::region::file::{RegionLost, Vigil};
use crate::wait;
use crate::worker::{ReportError, WorkerError};

/// How far a worker may be ahead of the slowest. Half of what is kept: whoever reports an index finds the others' reports
/// for it.
const WINDOW: u64 = if REPORTS < 2 { 1 } else { REPORTS as u64 / 2 };
/// How long a worker that is so far ahead sleeps before it looks again. In lockstep it is woken.
const PAUSE: Duration = Duration::from_micros(200);

/// How far ahead of another's last report a worker may be given commands.
pub(crate) fn window(what: OnDivergence) -> Option<u64> {
    match what {
        OnDivergence::Report => None,
        OnDivergence::Poison => Some(WINDOW),
        OnDivergence::Lockstep => Some(1),
    }
}

/// Where a worker stands with its reports, and whether it may go on.
#[derive(Debug)]
pub(crate) struct Pacer {
    slot: u16,
    in_step: bool,
    first: Seq,
    /// Where the worker begins: before that if it comes from the journal.
    begins: Seq,
    /// As its page says: all its reports for indexes before this are made.
    done: Seq,
    /// It is given what comes before this without looking at the others.
    open: Seq,
    /// What it was given and has not reported, in lockstep.
    unreported: Option<Seq>,
    last: Option<Report>,
    /// In lockstep: from here on it is given nothing but the poison.
    end: Option<Seq>,
    /// The poison that it was given, and since where workers differ.
    poisoned: Option<(Seq, Seq)>,
    held: bool,
    /// Slots and generations of those that are dead, although there is nobody to say so in the order.
    dead: Vec<(u16, u64)>,
}

impl Pacer {
    /// For the worker of a slot, before it begins; `None` in a region that leaves differences to who asks.
    pub(crate) fn of(region: &Region, slot: u16, first: Seq) -> Option<Box<Pacer>> {
        let what = region.on_divergence();
        window(what)?;
        region.map().worker_page(slot).pace.begin_at(first.get());
        Some(Box::new(Pacer {
            slot,
            in_step: what == OnDivergence::Lockstep,
            first,
            begins: first,
            done: first,
            open: first,
            unreported: None,
            last: None,
            end: None,
            poisoned: None,
            held: false,
            dead: Vec::new(),
        }))
    }

    /// The worker is given what comes from here on, before the index that others know as its first. In lockstep it is given
    /// that when all others have reported all of it: nobody acts on what follows something that workers differ at.
    pub(crate) fn begin_at(&mut self, begins: Seq) {
        if self.in_step {
            (self.begins, self.open) = (begins, begins);
        }
    }

    /// Whether the worker may be given what is `next`: it asks, so it is done with all before that. Not if it is not there.
    pub(crate) fn may_go_on(
        &mut self,
        region: &Region,
        next: Seq,
        is_there: bool,
    ) -> Result<bool, WorkerError> {
        if let Some((at, diverged)) = self.poisoned {
            return Err(WorkerError::Poisoned { at, diverged });
        }
        if !self.in_step {
            self.finish(region, next);
        }
        self.held = false;
        if is_there && next >= self.begins {
            if let Some(seq) = self.unreported {
                return Err(WorkerError::Unreported { seq });
            }
            self.held = !(next < self.open || self.look(region, next));
        }
        // What comes between this look and the next one has not been asked about.
        Ok(is_there && !self.held)
    }

    /// Whether a look at the others finds that it may go on.
    fn look(&mut self, region: &Region, next: Seq) -> bool {
        if !self.in_step {
            // With nobody else, for as long: somebody may come.
            self.open = self.slowest_other(region).unwrap_or(next).plus(WINDOW);
            return next < self.open;
        }
        if self.is_at_end(region, next) {
            return true;
        }
        if self.slowest_other(region).is_some_and(|other| other < self.done) {
            return false;
        }
        // All have reported it: who differs from another finds that here, if not before.
        if self.last.is_some_and(|last| self.compare(region, &last)) {
            self.end = Some(next);
            return true;
        }
        // Who found something at an index was done with it after that; and some may be gone since.
        self.is_at_end(region, next);
        true
    }

    /// Whether a difference was found before `next`, which then nobody is given any more.
    fn is_at_end(&mut self, region: &Region, next: Seq) -> bool {
        let found = region.map().worker_pages().iter().filter_map(|page| page.pace.found_at()).min();
        if self.end.is_none() && found.is_some_and(|found| next.get() > found) {
            self.end = Some(next);
        }
        self.end.is_some()
    }

    /// How far the slowest of the others is.
    fn slowest_other(&self, region: &Region) -> Option<Seq> {
        let map = region.map();
        let all = map.members().iter().zip(map.worker_pages()).enumerate();
        let lives = |slot: usize, member: &MemberEntry| {
            let generation = member.generation.load(Ordering::Relaxed);
            slot != usize::from(self.slot) && !self.dead.contains(&(slot as u16, generation))
        };
        let others = all.filter(|&(slot, (member, _))| lives(slot, member));
        others.filter_map(|(_, (member, page))| done_with(member, page)).min()
    }

    /// Whether something is not to be given to the worker although it has come to it.
    pub(crate) fn passes_over(&self, met: &Met) -> bool {
        self.end.is_some_and(|end| met.seq >= end) && !matches!(met.own, Some(Own::Poisoned { .. }))
    }

    /// The worker is given this. Nobody waits for it to report what lies before its own `Joined`.
    pub(crate) fn note(&mut self, met: &Met) {
        if let Some(Own::Poisoned { index, .. }) = met.own {
            self.poisoned = Some((met.seq, Seq::new(index)));
        } else if self.in_step && met.seq >= self.first {
            self.unreported = Some(met.seq);
        }
    }

    /// The worker has passed what another one is given: it is done with it without a report, and is given the next one
    /// only when that other one is.
    #[cold]
    pub(crate) fn passed(&mut self, region: &Region, seq: Seq) {
        if self.in_step {
            self.finish(region, seq.plus(1));
            // The fence that a wake-up has to follow.
            pace::reported();
            wait::wake(&region.map().bells().workers, FOR_WORK);
        }
    }

    /// What is compared cannot be taken back.
    pub(crate) fn may_report(&self, index: u64) -> Result<(), ReportError> {
        match self.last {
            Some(last) if last.index == index => Err(ReportError::Again { seq: Seq::new(index) }),
            _ => Ok(()),
        }
    }

    /// It has made this report.
    pub(crate) fn reported(&mut self, region: &Region, report: Report) {
        (self.last, self.unreported) = (Some(report), None);
        self.finish(region, Seq::new(report.index).plus(1));
        pace::reported();
        self.compare(region, &report);
        if self.in_step {
            // After the fence.
            wait::wake(&region.map().bells().workers, FOR_WORK);
        }
    }

    fn finish(&mut self, region: &Region, next: Seq) {
        if next > self.done {
            self.done = next;
            region.map().worker_page(self.slot).pace.finish(next.get());
        }
    }

    /// Compares a report with what others, and those who were here before, have reported for that index; says so if one of
    /// them differs.
    fn compare(&self, region: &Region, report: &Report) -> bool {
        let map = region.map();
        let own = map.worker_page(self.slot);
        let others = (0..).zip(map.worker_pages()).filter(|&(slot, _)| slot != self.slot);
        let differs = |(slot, page): (u16, _)| {
            let page: &seriatim_ring::control::WorkerPage = page;
            Some((slot, page, pace::differs(report, &page.reports)?))
        };
        let mut different = others.filter_map(differs);
        let Some((slot, page, other)) = different.next() else { return false };
        let after = pace::last_before(report.index, &own.reports, &page.reports);
        let finding = Finding { after, mine: (self.slot, *report), other: (slot, other) };
        own.pace.tell(&finding, map.bells().requests_word());
        wait::wake_sequencer(map.bells(), FOR_WORK);
        true
    }

    /// Notes who of the others has died. The sequencer sees to that, and says so in the order; where there is none, because
    /// the order is closed or poisoned or nobody has taken over, the dead would be waited for.
    fn find_the_dead(&mut self, region: &Region) {
        if region.is_alive(Role::Sequencer) {
            return;
        }
        for (slot, member) in (0..).zip(region.map().members()) {
            let generation = member.generation.load(Ordering::Relaxed);
            let is_known = slot == self.slot || self.dead.contains(&(slot, generation));
            if !is_known && member.is_live() && !region.is_alive(Role::Member { slot, generation }) {
                self.dead.push((slot, generation));
            }
        }
    }

    /// Whether there is something that the worker may not be given yet.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Sleeps until the others may have come on.
    pub(crate) fn sleep(
        &mut self,
        region: &Region,
        next: Seq,
        deadline: Option<Instant>,
        vigil: &mut Vigil,
    ) -> Result<(), RegionLost> {
        if !self.in_step {
            let left = deadline.map_or(PAUSE, |at| at.saturating_duration_since(Instant::now()));
            std::thread::sleep(left.min(PAUSE));
            self.find_the_dead(region);
            return vigil.glance(region);
        }
        let is_open = || {
            let pages = region.map().worker_pages();
            self.slowest_other(region).is_none_or(|other| other >= self.done)
                || pages.iter().any(|page| page.pace.found_at().is_some_and(|found| next.get() > found))
        };
        if wait::sleep(&region.map().bells().workers, FOR_WORK, deadline, is_open) {
            return Ok(());
        }
        self.find_the_dead(region);
        // The deadline may have been near.
        vigil.glance(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::region::layout::Part;

    #[test]
    fn what_was_not_there_when_it_asked_is_not_given() {
        let config = Config::new().workers(2).on_divergence(OnDivergence::Lockstep);
        let region = Region::anonymous(&config).unwrap();
        region.make_writable("a worker", &[Part::Worker(0)]).unwrap();
        let mut pacer = Pacer::of(&region, 0, Seq::ZERO).unwrap();
        // It may come right after.
        assert_eq!(pacer.may_go_on(&region, Seq::ZERO, false), Ok(false));
        assert!(!pacer.is_held(), "nobody is waited for");
        assert_eq!(pacer.may_go_on(&region, Seq::ZERO, true), Ok(true));
    }
}
