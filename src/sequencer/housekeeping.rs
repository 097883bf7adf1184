//! What a sequencer does between runs: frees, lets in who asks, drops the gates of those who left or died, sleeps.

use std::time::{Duration, Instant};

use seriatim_ring::control::{GONE, MemberEntry, ProducerRole, Verdict, Want};
use seriatim_ring::order::Follower;
use seriatim_ring::parts::Address;
use seriatim_ring::sequencer::{Shared, gate};
use seriatim_ring::sync::Ordering;
use seriatim_ring::wake::{FOR_ROOM, FOR_WORK};

use super::{Sequencer, SequencerError, lost};
use crate::error_log::ErrorCode;
use crate::fold::Fold;
use crate::fork;
use crate::liveness::Role;
use crate::name::Name;
use crate::region::Region;
use crate::region::spill::{Sweep, Tickets};
use crate::sys;
use crate::wait;

/// How long a worker that died can gate before the kernel is asked about it.
const HOUSEKEEPING: Duration = Duration::from_millis(20);
/// How often the path of the region is looked at.
const FILE_LOOKS: Duration = Duration::from_secs(1);
/// Glances for a turn where nothing is to be done.
const GLANCES: u32 = 16;
/// Turns between two looks at the clock.
const TURNS_A_LOOK: u32 = 64;

impl Sequencer {
    /// Whether this process may go on, and the region's file is as it was; says once what became of it.
    #[cold]
    pub(super) fn check_file(&mut self) -> Result<(), SequencerError> {
        if fork::is_child() {
            return Err(SequencerError::Forked);
        }
        if !std::mem::take(&mut self.look_at_file) && self.region.check_if_hit().is_ok() {
            // What faulted was another region.
            return Ok(());
        }
        self.file.look(&self.region, "sequencer").map_err(|source| lost(&self.region, source))
    }

    /// Frees what can be freed for producers who want room.
    #[inline(never)]
    pub(super) fn meet_wants(&mut self) -> bool {
        if self.region.map().bells().take_wanted() == Some(Want::Now) {
            self.watch.press();
        }
        self.free()
    }

    /// Frees what every gate has passed, or what is to be dropped.
    pub(crate) fn free(&mut self) -> bool {
        self.orderer.free(self.parts.shared()) || self.discard()
    }

    /// Where nobody works and what is submitted is dropped: folds it and frees it.
    pub(super) fn discard(&mut self) -> bool {
        let map = self.region.map();
        let s = map.shared();
        if self.discarding.is_none() || s.members.iter().any(MemberEntry::is_live) {
            return false;
        }
        let mut fold = self.discarding.take().filter(|f| f.next() >= self.orderer.anchor());
        let fold = fold.get_or_insert_with(|| self.fold_from_anchor());
        while let Ok(Some(_)) = fold.step(map) {}
        let (to, past) = (fold.next(), fold.past());
        self.discarding = Some(fold.clone());
        self.orderer.discard(&s, to, past)
    }

    pub(super) fn fold_from_anchor(&self) -> Fold {
        let control = self.region.map().control();
        // Only the sequencer moves the anchor: what it reads is whole.
        let (at, [digest, current, run]) = control.anchor.load().unwrap_or((self.orderer.next(), [0; 3]));
        let follower = Follower::new(at, run);
        Fold::new(self.region.map(), self.region.digest_of(), follower, [digest, current]).noting_ends()
    }

    /// Lets in who asks, drops the gates of those who left or died, says so in the order. Cheap while nobody
    /// asked and nothing is open; `now` asks the kernel about the living at once.
    #[inline]
    pub(super) fn keep_house(&mut self, now: bool) -> bool {
        let nothing_new = !self.unsettled && self.region.map().bells().requests() == self.seen_requests;
        if nothing_new && !now && self.turns_to_look > 0 {
            self.turns_to_look -= 1;
            return false;
        }
        self.look_after_all(now)
    }

    /// Gives a piece of what is no longer needed of the spills back; whether room became free.
    fn sweep(&mut self) -> bool {
        let Sequencer { sweeper, orderer, region, parts, .. } = self;
        let next = orderer.ticket();
        let sweep = sweeper.sweep(region, &Tickets { next, tail: || parts.shared().tickets.tail(next) });
        self.is_sweeping = sweep != Sweep::Nothing;
        sweep == Sweep::Freed
    }

    /// Gives all back that is no longer needed of the spills, until the deadline.
    #[cold]
    pub(super) fn give_back_all(&mut self, deadline: Option<Instant>) {
        self.free();
        while !wait::is_over(deadline) {
            self.sweep();
            if !self.is_sweeping {
                break;
            }
        }
    }

    #[inline(never)]
    fn look_after_all(&mut self, now: bool) -> bool {
        // Beside other work it is found out every 20 ms whether there is something, and then gone on with.
        let goes_on = now || (self.is_sweeping && self.turns_to_look == 0);
        let due = self.is_look_due(now);
        let freed = (goes_on || due) && self.sweep();
        self.look_after_parties(due) || freed
    }

    fn look_after_parties(&mut self, due: bool) -> bool {
        if due {
            self.watch.look(&self.region, sys::monotonic_ns());
        }
        let requests = self.region.map().bells().requests();
        if requests == self.seen_requests && !self.unsettled && !due {
            return false;
        }
        self.changes = self.changes.wrapping_add(u32::from(requests != self.seen_requests || self.unsettled));
        self.seen_requests = requests;
        self.unsettled = false;
        let region = self.region.clone();
        let s = region.map().shared();
        let before = self.orderer.next();
        let mut news = false;
        for slot in 0..s.members.len() as u16 {
            news |= self.settle_worker(&region, &s, slot, due);
        }
        if self.orderer.look_for_findings(&s) {
            // Nobody comes any more, and what there is to say is the next thing that is said.
            return true;
        }
        self.orderer.announce(&s);
        for slot in 0..s.members.len() as u16 {
            news |= self.settle_join(&region, &s, slot);
        }
        for lane in 1..s.lanes.len() as u16 {
            news |= self.settle_producer(&region, &s, lane);
        }
        self.unsettled |= s.members.iter().any(|m| {
            let joined = m.joined.load(Ordering::Relaxed) != 0;
            m.state.load(Ordering::Relaxed) == GONE || (m.is_live() && !joined)
        });
        news |= self.orderer.next() != before;
        self.changes = self.changes.wrapping_add(news.into());
        news
    }

    fn is_look_due(&mut self, now: bool) -> bool {
        if !now && self.turns_to_look > 0 {
            self.turns_to_look -= 1;
            return false;
        }
        self.turns_to_look = TURNS_A_LOOK;
        let clock = Instant::now();
        let due = clock >= self.next_look;
        if due {
            self.next_look = clock + HOUSEKEEPING;
            self.look_at_file |= clock >= self.next_look_at_file;
        }
        if self.look_at_file {
            self.next_look_at_file = clock + FILE_LOOKS;
            // The CPUs that it may run on may be others by now.
            self.changes = self.changes.wrapping_add(1);
        }
        due
    }

    /// Drops the gate of a worker that left, was replaced in its slot, or is dead.
    fn settle_worker(&mut self, region: &Region, s: &Shared<'_>, slot: u16, ask_kernel: bool) -> bool {
        let (member, party) = (&s.members[usize::from(slot)], &s.workers[usize::from(slot)].party);
        if !member.is_live() {
            return false;
        }
        let generation = member.generation.load(Ordering::Relaxed);
        // Only who holds the slot's lock asks there: another generation proves that the former one is gone.
        let is_kept = s.workers[usize::from(slot)].journal.is_kept() && !self.without_journal;
        let gone = party.has_left(generation)
            || (!is_kept && party.request() != generation)
            || (!is_kept && ask_kernel && !region.is_alive(Role::Member { slot, generation }));
        if gone {
            if !party.has_left(generation) {
                let (name, page) = (Name::from_words(member.name.load()), &s.workers[usize::from(slot)]);
                let what = "died without leaving, its gate was dropped";
                region.record(ErrorCode::WorkerDied, name.as_str(), what, gate(member, page).get());
            }
            self.orderer.drop_gate(s, slot);
        }
        gone
    }

    /// Lets a worker in that asks.
    fn settle_join(&mut self, region: &Region, s: &Shared<'_>, slot: u16) -> bool {
        let (member, party) = (&s.members[usize::from(slot)], &s.workers[usize::from(slot)].party);
        let generation = party.request();
        if generation == 0 || generation == member.answer.generation() || !region.is_alive(Role::Worker(slot))
        {
            return false;
        }
        let name = party.name.load();
        if member.is_live() && s.workers[usize::from(slot)].journal.is_kept() {
            // It has the lock of the slot: the one before is dead.
            return self.orderer.take_up(s, slot, generation).is_some();
        }
        let taken = |other: u16| other != slot && s.members[usize::from(other)].is_live();
        let twin = (0..s.members.len() as u16)
            .find(|&other| taken(other) && s.members[usize::from(other)].name.load() == name);
        if let Some(twin) = twin {
            let its = s.members[usize::from(twin)].generation.load(Ordering::Relaxed);
            let alive = region.is_alive(Role::Member { slot: twin, generation: its });
            member.answer.give(generation, if alive { Verdict::NameTaken } else { Verdict::Busy });
            return true;
        }
        // Who comes after all others died gets what they have not had; beside one who lives it would not, so the
        // kernel is asked now.
        for other in (0..s.members.len() as u16).filter(|&other| other != slot) {
            self.settle_worker(region, s, other, true);
        }
        let Some(address) = address_to_be_had(region, s, slot, party.address.load(Ordering::Relaxed)) else {
            member.answer.give(generation, Verdict::RankTaken);
            return true;
        };
        if !self.has_said_who_had(s, address) {
            self.unsettled = true;
            return false;
        }
        // What nobody worked on is not for the first to come, where it is to be dropped.
        self.discard();
        if !member.is_live() {
            // Whoever looks before the watch does must not find its predecessor's time there.
            member.stood_ns.store(0, Ordering::Relaxed);
        }
        let joined = !member.is_live() && self.orderer.join(s, slot, generation, name, address).is_some();
        self.unsettled |= !joined;
        joined
    }

    /// Says that those have left who had a rank before: so that in the order too there is one of it at a time. Where nobody
    /// gates there may be no room for that until somebody is let in.
    fn has_said_who_had(&mut self, s: &Shared<'_>, address: Address) -> bool {
        let is_unsaid = || {
            let gone = s.members.iter().filter(|m| m.state.load(Ordering::Relaxed) == GONE);
            gone.into_iter().any(|m| m.address() == address)
        };
        if address == Address::ALL || !is_unsaid() {
            return true;
        }
        self.orderer.announce(s);
        !is_unsaid() || !s.members.iter().any(MemberEntry::is_live)
    }

    /// Gives a lane to a producer that asks for it.
    fn settle_producer(&mut self, region: &Region, s: &Shared<'_>, lane: u16) -> bool {
        let (entry, party) = (&s.lanes[usize::from(lane)], &region.map().lane_page(lane).party);
        let generation = party.request();
        if generation == 0 || generation == entry.answer.generation() || !region.is_alive(Role::Lane(lane)) {
            return false;
        }
        let name = party.name.load();
        let owns = |other: u16| {
            let entry = &s.lanes[usize::from(other)];
            entry.number.load(Ordering::Relaxed) > 0 && entry.name.load() == name
        };
        if let Some(twin) = (1..s.lanes.len() as u16).find(|&other| other != lane && owns(other)) {
            let alive = region.is_alive(Role::Lane(twin));
            // If it is dead, its lane is the one to ask for: the newcomer looks again.
            entry.answer.give(generation, if alive { Verdict::NameTaken } else { Verdict::Busy });
            return true;
        }
        // Its owner may come back: not while there are lanes that never had one.
        let is_used = entry.number.load(Ordering::Relaxed) > 0 && entry.name.load() != name;
        if is_used && (1..s.lanes.len() as u16).any(|lane| is_to_be_had(region, s, lane)) {
            entry.answer.give(generation, Verdict::Busy);
            return true;
        }
        let Some(role) = ProducerRole::of_code(party.role.load(Ordering::Relaxed)) else {
            // Of no build that could have opened this region.
            entry.answer.give(generation, Verdict::OtherRole);
            return true;
        };
        let settled = self.orderer.admit(s, lane, generation, name, role).is_some();
        self.unsettled |= !settled;
        settled
    }

    /// What to do before sleeping: look at the gates and at the living. Whether there was news.
    fn before_sleep(&mut self) -> bool {
        let news = self.keep_house(true) | self.free() | (self.orderer.is_to_poison() && !self.stuck);
        self.tell(news);
        news
    }

    /// Sleeps until there is a ticket, a request, (if somebody waits for room) a gate that moved, `is_asked`, or
    /// the deadline.
    pub(crate) fn sleep(&mut self, deadline: Option<Instant>, is_asked: impl Fn() -> bool) {
        if self.stats.closed || self.before_sleep() || self.is_sweeping || self.waker.is_busy() {
            return;
        }
        let region = self.region.clone();
        let s = region.map().shared();
        // What waits to be said in the order, like a ticket that is stuck, waits for gates; and so do spills.
        let waits = self.stuck || self.unsettled || self.sweeper.is_waiting;
        let level = if waits { FOR_ROOM } else { self.orderer.sleep_level(&s) };
        let bell = &s.bells.sequencer;
        wait::sleep_alone(bell, level, deadline, || is_asked() || self.is_needed(&s, level));
    }

    /// Whether a turn would find nothing to do, as far as a glance shows: a fraction of what a turn costs those who make
    /// one whenever they run dry. Every so often it says no, for what only a turn sees.
    #[inline]
    pub(super) fn is_idle(&mut self) -> bool {
        self.glances = self.glances.wrapping_add(1);
        let s = self.parts.shared();
        let asked = s.bells.is_wanted()
            || s.bells.requests() != self.seen_requests
            || s.bells.producers.is_announced(FOR_WORK);
        let busy = self.stuck
            || self.unsettled
            || self.is_sweeping
            || self.waker.is_busy()
            || self.orderer.has_work(s);
        !asked && !busy && !self.glances.is_multiple_of(GLANCES)
    }

    /// The second look before a sleep: whether there is something to do after all.
    fn is_needed(&mut self, s: &Shared<'_>, level: u32) -> bool {
        if s.bells.requests() != self.seen_requests {
            return true;
        }
        if self.stuck {
            // A ticket that is stuck is no work until a gate moves.
            return s.bells.is_wanted() || self.free();
        }
        self.orderer.is_needed(s, level)
    }

    /// Puts its next look at the living off, as a clock that goes slower would; 0 is now.
    #[cfg(test)]
    pub(crate) fn put_off_look(&mut self, time: Duration) {
        self.next_look = Instant::now() + time;
    }

    /// Whether it would sleep now.
    #[cfg(test)]
    pub(crate) fn would_sleep(&mut self) -> bool {
        let region = self.region.clone();
        !self.is_needed(&region.map().shared(), FOR_ROOM)
    }
}

/// The address that a worker asks for as its own, by its code: of no rank, or of one that no other live worker has. Those
/// that died do not gate any more.
fn address_to_be_had(region: &Region, s: &Shared<'_>, slot: u16, code: u64) -> Option<Address> {
    let address = Address::of_code(u16::try_from(code).ok()?);
    let others = (0..).zip(s.members).filter(|&(other, member)| other != slot && member.is_live());
    let is_taken = address != Address::ALL && others.into_iter().any(|(_, m)| m.address() == address);
    // Whoever joins asks for none beyond the ranks of its region.
    let is_one = address != Address::PARTS && address.is_within(region.ranks());
    (is_one && !is_taken).then_some(address)
}

/// Whether a lane never had an owner and is free, or asked for. One that is locked without a request is that of somebody
/// who does not get to it.
fn is_to_be_had(region: &Region, s: &Shared<'_>, lane: u16) -> bool {
    let entry = &s.lanes[usize::from(lane)];
    let asked = region.map().lane_page(lane).party.request() != entry.answer.generation();
    entry.number.load(Ordering::Relaxed) == 0 && (asked || !region.is_alive(Role::Lane(lane)))
}
