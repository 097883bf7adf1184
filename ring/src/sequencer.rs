//! The sequencer: takes tickets in turn, publishes runs, frees what every gate has passed.
//!
//! ```text
//! turn      ticket ─▶ ticket of the same lane? together one run ─▶ publish ─▶ ordered[lane]    … at most `budget`
//! settle    published.next, published.run, then published.consumed
//! free      slowest gate ─▶ anchor ─▶ released[lane] for each run that it passed
//! ```
//!
//! It reads ticket words, gates and its own pages; no cell and no payload of a producer. Its work for a run is
//! bounded, whatever the run's commands weigh.
//!
//! The order of its stores is what a takeover stands on; see [`algorithm`](crate::algorithm). In short: a slot is
//! rewritten only when its run is freed and [`settle`](Orderer::settle) has stored what it did to the control
//! page; the anchor moves before the lanes are released behind it.

use crate::control::{
    Bells, CLOSED, Control, FREE, GONE, LIVE, LaneEntry, MemberEntry, NO_JOURNAL, OPEN, POISONED, Verdict,
};
use crate::control::{NameWords, ProducerRole, Reign, WorkerPage};
use crate::event::{self, Event, OWN_LANE};
use crate::gate::Past;
use crate::lane::{BadCell, Lane, LaneWriter};
use crate::order::{Follower, Look, MAX_RUN, Order, Run};
use crate::pace::Finding;
use crate::parts::Address;
use crate::seq::Seq;
use crate::sync::{Ordering, fence};
use crate::tickets::{Ticket, Tickets};
use crate::wake::{FOR_ROOM, FOR_WORK};

/// The memory that a sequencer works on, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// Its own page.
    pub control: &'a Control,
    /// Its entries for the lanes; number 0 is its own lane.
    pub lanes: &'a [LaneEntry],
    /// Its entries for the workers.
    pub members: &'a [MemberEntry],
    /// The workers' pages, as many as `members`.
    pub workers: &'a [WorkerPage],
    /// The order ring.
    pub order: Order<'a>,
    /// The ticket queue.
    pub tickets: Tickets<'a>,
    /// Its own lane.
    pub own: Lane<'a>,
    /// What all parties write.
    pub bells: &'a Bells,
    /// Cells of every producer's lane.
    pub lane_cells: u64,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// No ticket is in.
    Dry,
    /// The budget is used up.
    Budget,
    /// The order ring is full behind the slowest gate, or nobody gates.
    Held,
    /// The next ticket closes the order: call [`Orderer::close`].
    Close,
    /// The next ticket cannot be right: call [`Orderer::reject`].
    Bad {
        /// The lane that it names.
        lane: u16,
        /// The cells that it names.
        count: u32,
        /// How many it could name at most.
        limit: u64,
    },
    /// The run would go beyond [`Seq::MAX`].
    Exhausted,
    /// A worker found that workers differ: call [`Orderer::poison`].
    Poison,
}

/// What a turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Commands that got their place.
    pub commands: u64,
    /// In how many runs.
    pub runs: u32,
    /// Why it ended.
    pub stop: Stop,
}

/// What a takeover finds in the region that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A field has a value that it cannot have.
    Field {
        /// Which one.
        field: &'static str,
        /// Of which run, lane or slot.
        of: u64,
        /// Its value.
        found: u64,
        /// What it can be at most.
        limit: u64,
    },
    /// A cell of the sequencer's own lane.
    Cell(BadCell),
}

/// A sequencer's own state; everything else it needs is in the region.
#[derive(Debug)]
pub struct Orderer {
    next: Seq,
    next_run: u64,
    ticket: u64,
    /// The oldest run that is not freed.
    freed_run: u64,
    /// The anchor: everything before it is freed.
    gate: Seq,
    own: LaneWriter,
    settled: bool,
    /// Lanes have filled up so far that it is worth looking at the gates.
    look_at_gates: bool,
    /// The epoch that is not in the order yet, if it has to be.
    unannounced: Option<u64>,
    /// Workers that differ poison the order.
    heeds: bool,
    /// One of them has been found to: nothing more is ordered but the command that says so.
    found: bool,
}

impl Orderer {
    /// Takes the order up where the region says it stands: at its beginning, or where a predecessor stopped,
    /// at whatever instruction. The caller holds the sequencer's lock.
    pub fn take_over(s: &Shared<'_>) -> Result<Self, Damage> {
        let window = Window::find(s)?;
        crash_point!("takeover.found");
        window.restore_lanes(s)?;
        crash_point!("takeover.lanes");
        let restored =
            |lane: &LaneEntry| (lane.released.load(Ordering::Relaxed), lane.ordered.load(Ordering::Relaxed));
        let (released, ordered) = restored(&s.lanes[usize::from(OWN_LANE)]);
        let own = LaneWriter::resume(&s.own, released, ordered).map_err(Damage::Cell)?;
        crash_point!("takeover.own");
        check_numbers(s)?;
        window.restore_members(s)?;
        crash_point!("takeover.members");
        let reign = &s.control.reign;
        let epoch = reign.epoch.load(Ordering::Relaxed) + 1;
        // A predecessor that is gone does not store: the set that is chosen is whole.
        let (anchor, [digest, current, _]) = s.control.anchor.load().unwrap_or((window.next, [0; 3]));
        let mut taken = Orderer {
            next: window.next,
            next_run: window.next_run,
            ticket: window.ticket,
            freed_run: window.oldest,
            gate: anchor,
            own,
            settled: false,
            look_at_gates: false,
            unannounced: (epoch > 1).then_some(epoch),
            heeds: false,
            found: false,
        };
        taken.settle(s);
        crash_point!("takeover.settled");
        // It may have died between the anchor and the releases.
        taken.release_again(s, anchor, [digest, current]);
        crash_point!("takeover.freed");
        if s.control.poison.at.load(Ordering::Relaxed) != 0 {
            // Nobody goes on after that, and there is no new epoch.
            stop(s);
            return Ok(taken);
        }
        // Relaxed: the two stores that follow hand it over.
        reign.epoch.store(epoch, Ordering::Relaxed);
        crash_point!("takeover.epoch");
        // ORDERING [T2]: Release; pairs with the Acquire in `is_void`: who passes an old close ticket sees all
        // that was restored here, and the new epoch.
        reign.void_before.store(s.tickets.tail(taken.ticket), Ordering::Release);
        crash_point!("takeover.void");
        // ORDERING [C1]: Release; pairs with the Acquire in `Reign::state`.
        reign.state.store(OPEN, Ordering::Release);
        crash_point!("takeover.open");
        Ok(taken)
    }

    /// The next index.
    #[must_use]
    pub fn next(&self) -> Seq {
        self.next
    }

    /// The number of the next run.
    #[must_use]
    pub fn next_run(&self) -> u64 {
        self.next_run
    }

    /// The position of the next ticket.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// The anchor: all before it is freed.
    #[must_use]
    pub fn anchor(&self) -> Seq {
        self.gate
    }

    /// Whether a ticket waits.
    #[inline]
    #[must_use]
    pub fn has_work(&self, s: &Shared<'_>) -> bool {
        s.tickets.peek(self.ticket).is_some()
    }

    /// Whether the next run would have to wait for a gate.
    #[must_use]
    pub fn is_held(&self, s: &Shared<'_>) -> bool {
        self.next_run.wrapping_sub(self.freed_run) >= s.order.slots()
    }

    /// What a sequencer that has nothing to do sleeps for: also for room if a producer waits for it, or if the
    /// next ticket has to wait for a gate.
    #[must_use]
    pub fn sleep_level(&self, s: &Shared<'_>) -> u32 {
        let room = s.bells.producers.is_announced(FOR_WORK) || self.has_work(s);
        if room { FOR_ROOM } else { FOR_WORK }
    }

    /// The second look of a sequencer that has announced itself at `level`: whether there is something to do
    /// after all. Requests of parties are for the caller to look at.
    ///
    /// What would wake it at its level is looked at, and so is what would have raised the level.
    pub fn is_needed(&mut self, s: &Shared<'_>, level: u32) -> bool {
        let room = || s.bells.producers.is_announced(FOR_WORK);
        s.bells.is_wanted()
            || (self.has_work(s) && !self.is_held(s))
            || if level >= FOR_ROOM { self.free(s) } else { room() }
    }

    /// Orders what is queued, in at most `budget` runs.
    pub fn turn(&mut self, s: &Shared<'_>, budget: u32) -> Turn {
        let (before, mut runs, mut left) = (self.next, 0, budget);
        if self.found {
            return Turn { commands: 0, runs: 0, stop: Stop::Poison };
        }
        let stop = loop {
            if left == 0 {
                break Stop::Budget;
            }
            // Tickets that are passed over count as well: a lane that is not heard can still fill the queue.
            left -= 1;
            match self.order_one(s) {
                Ok(ordered) => runs += u32::from(ordered),
                Err(stop) => break stop,
            }
        };
        self.settle(s);
        if self.look_at_gates {
            self.look_at_gates = false;
            self.free(s);
        }
        Turn { commands: self.next.since(before), runs, stop }
    }

    /// Orders the next run; `false` if a ticket was consumed without one.
    #[inline]
    fn order_one(&mut self, s: &Shared<'_>) -> Result<bool, Stop> {
        let Some(ticket) = s.tickets.peek(self.ticket) else { return Err(Stop::Dry) };
        let Ticket::Cells { lane, count } = ticket else { return self.meet_close(s).map(|()| false) };
        let bad = |limit| Err(Stop::Bad { lane, count, limit });
        let Some(entry) = s.lanes.get(usize::from(lane)).filter(|_| lane != OWN_LANE) else { return bad(0) };
        if entry.fenced.load(Ordering::Relaxed) != 0 {
            self.skip_ticket();
            return Ok(false);
        }
        let left = outstanding_limit(s, entry);
        if count == 0 || u64::from(count) > left.min((s.lane_cells / 2).max(1)) {
            return bad(left);
        }
        if !self.has_slot(s) {
            return Err(Stop::Held);
        }
        // What the lane can have outstanding, or indexes are left: the order ends with the last ticket that fits.
        let most = left.min(Seq::MAX.since(self.next));
        if most < u64::from(count) {
            return Err(Stop::Exhausted);
        }
        let (total, ticket) = self.coalesce(s, lane, count, most);
        self.ticket = ticket;
        self.publish(s, lane, entry, total);
        self.look_at_gates |= left - u64::from(total) <= s.lane_cells * 3 / 4;
        Ok(true)
    }

    /// Adds the tickets of the same lane that follow and are in sight.
    #[inline]
    fn coalesce(&self, s: &Shared<'_>, lane: u16, first: u32, most: u64) -> (u32, u64) {
        let longest = most.min(s.lane_cells / 4).min(u64::from(MAX_RUN)) as u32;
        let mut at = self.ticket.wrapping_add(1);
        if first >= longest {
            return (first, at);
        }
        let (more, tickets) = s.tickets.more_of(at, lane, longest - first);
        at = at.wrapping_add(tickets);
        (first + more, at)
    }

    /// A close ticket that an earlier sequencer queued and that is void is passed over.
    fn meet_close(&mut self, s: &Shared<'_>) -> Result<(), Stop> {
        let void = s.control.reign.void_before.load(Ordering::Relaxed);
        if (self.ticket.wrapping_sub(void) as i64) >= 0 {
            return Err(Stop::Close);
        }
        self.skip_ticket();
        Ok(())
    }

    fn skip_ticket(&mut self) {
        self.ticket = self.ticket.wrapping_add(1);
        self.settled = false;
    }

    /// Publishes the next run and stores what it did to its lane.
    #[inline]
    fn publish(&mut self, s: &Shared<'_>, lane: u16, entry: &LaneEntry, count: u32) {
        // Relaxed: only the sequencer writes it.
        let cell = entry.ordered.load(Ordering::Relaxed);
        let run =
            Run { number: self.next_run, first: self.next, lane, count, cell, ticket: self.ticket as u32 };
        s.order.publish(&run);
        // ORDERING [O1]: Release; pairs with the Acquire in `has_ordered`: who sees its cell ordered finds the
        // run in the ring, or a later one in its slot.
        entry.ordered.store(cell.wrapping_add(u64::from(count)), Ordering::Release);
        crash_point!("publish.ordered");
        self.next = run.end();
        self.next_run = self.next_run.wrapping_add(1);
        self.settled = false;
    }

    /// Stores how far the order goes. Before anything is freed: a successor must not meet a ticket whose cells
    /// have been reused.
    #[inline]
    pub fn settle(&mut self, s: &Shared<'_>) {
        if self.settled {
            return;
        }
        self.settled = true;
        let published = &s.control.published;
        published.run.store(self.next_run, Ordering::Relaxed);
        crash_point!("settle.run");
        // ORDERING [P1]: Release; pairs with the Acquire in `published`: who sees an index published finds its
        // run in the ring.
        published.next.store(self.next.get(), Ordering::Release);
        crash_point!("settle.next");
        // ORDERING [K1]: Release; for a successor: no ticket counts as consumed whose run is not in the ring.
        published.consumed.store(self.ticket, Ordering::Release);
        crash_point!("settle.consumed");
    }

    /// Whether the order ring has a slot, freeing if it seems to have none.
    #[inline]
    fn has_slot(&mut self, s: &Shared<'_>) -> bool {
        !self.is_held(s) || (self.free(s) && !self.is_held(s) && !self.found)
    }

    /// Frees what the slowest gate has passed; whether that was anything. Without a gate nothing is freed.
    pub fn free(&mut self, s: &Shared<'_>) -> bool {
        match slowest_gate(s, self.next) {
            Some((at, past)) => {
                // After the gates were read: who has passed what it found a difference at had said so before.
                self.look_for_findings(s);
                self.release(s, at, past) > 0
            }
            None => false,
        }
    }

    /// Frees up to an index that the caller has folded to itself, in a region that nobody gates and that
    /// discards what nobody waits for.
    pub fn discard(&mut self, s: &Shared<'_>, to: Seq, past: Past) -> bool {
        !s.members.iter().any(MemberEntry::is_live) && self.release(s, to, past) > 0
    }

    /// Moves the anchor to `to`, unless it is there, and releases the cells before it; how many commands that
    /// frees.
    fn release(&mut self, s: &Shared<'_>, to: Seq, past: Past) -> u64 {
        let freed = to.since(self.gate);
        if freed > 0 {
            self.settle(s);
            self.release_again(s, to, past);
        }
        freed
    }

    /// Stores anchor and releases for everything between the oldest run and `to`; doing it twice is harmless.
    fn release_again(&mut self, s: &Shared<'_>, to: Seq, [digest, current]: Past) {
        let end = self.run_of(s, to);
        // The anchor moves first: a newcomer of a later epoch must find what the anchor promises.
        s.control.anchor.store(to, [digest, current, end]);
        crash_point!("free.anchor");
        for number in self.freed_run..=end {
            // The run that holds `to` may be partly passed; the next run is not there.
            let Look::Here(run) = s.order.read(number) else { break };
            let passed = to.since(run.first).min(u64::from(run.count));
            if let Some(entry) = s.lanes.get(usize::from(run.lane)) {
                release_lane(entry, run.cell.wrapping_add(passed));
                crash_point!("free.released");
            }
        }
        self.freed_run = end;
        self.gate = to;
    }

    /// The run that holds index `to`, or the next run.
    fn run_of(&self, s: &Shared<'_>, to: Seq) -> u64 {
        let mut number = self.freed_run;
        while number != self.next_run {
            match s.order.read(number) {
                Look::Here(run) if run.end() <= to => number = number.wrapping_add(1),
                _ => break,
            }
        }
        number
    }

    /// Whether one of the sequencer's own commands would find room now.
    fn can_append(&mut self, s: &Shared<'_>) -> bool {
        let entry = &s.lanes[usize::from(OWN_LANE)];
        // Not only a cell: what a predecessor had reserved when it died takes bytes until the lane is released.
        let room = |me: &mut Self| me.own.has_room(&s.own, &entry.released, event::BYTES) == Ok(true);
        if !room(self) {
            self.free(s);
        }
        room(self) && self.has_slot(s) && self.next < Seq::MAX
    }

    /// Puts one of the sequencer's own commands into the order, if there is room. What it does to the control
    /// page is stored after it.
    pub fn append(&mut self, s: &Shared<'_>, event: &Event) -> Option<Seq> {
        if !self.can_append(s) {
            return None;
        }
        let entry = &s.lanes[usize::from(OWN_LANE)];
        let (kind, words) = event.encode();
        let room = self.own.reserve(&s.own, &entry.released, event::BYTES).ok()?;
        s.own.write(&room, &words);
        self.own.fill(&s.own, &room, kind, event::digest(&words));
        self.own.commit();
        crash_point!("event.written");
        let seq = self.next;
        self.publish(s, OWN_LANE, entry, 1);
        self.settle(s);
        // ORDERING [K1]: for a successor: what the event does to the control page is stored after it is in the
        // order.
        fence(Ordering::Release);
        crash_point!("event.ordered");
        Some(seq)
    }

    /// Consumes a ticket that cannot be right; its lane is heard no more. `None` while there is no room to say
    /// so in the order. The caller logs it.
    pub fn reject(&mut self, s: &Shared<'_>, lane: u16, count: u32) -> Option<()> {
        let known = s.lanes.get(usize::from(lane)).filter(|_| lane != OWN_LANE);
        if let Some(entry) = known {
            if !self.can_append(s) {
                return None;
            }
            self.skip_ticket();
            let number = entry.number.load(Ordering::Relaxed);
            self.append(s, &Event::Fenced { lane, number, count: count.into() });
            entry.fenced.store(1, Ordering::Relaxed);
            crash_point!("reject.fenced");
        } else {
            self.skip_ticket();
            self.settle(s);
            crash_point!("skip.settled");
        }
        Some(())
    }

    /// Consumes the close ticket and ends the order; the index of the end, or `None` while there is no room.
    pub fn close(&mut self, s: &Shared<'_>) -> Option<Seq> {
        if !self.can_append(s) {
            return None;
        }
        self.skip_ticket();
        let epoch = s.control.reign.epoch.load(Ordering::Relaxed);
        let end = self.append(s, &Event::Closed { epoch });
        // ORDERING [C1]: Release; see `take_over`.
        s.control.reign.state.store(CLOSED, Ordering::Release);
        crash_point!("close.closed");
        end
    }

    /// From here on a difference that a worker has found poisons the order; whether there is one.
    ///
    /// Before anything is freed, it is looked for. A worker that finds one at an index stands at most one behind that
    /// index then, and moves its cursor on after it has told. So when the command that says it gets its place, no more
    /// lies between the index and that place than all lanes have cells.
    pub fn heed_findings(&mut self, s: &Shared<'_>) -> bool {
        self.heeds = true;
        self.look_for_findings(s)
    }

    /// Looks whether a worker has found a difference, where that poisons the order; whether one has.
    pub fn look_for_findings(&mut self, s: &Shared<'_>) -> bool {
        self.found |= self.heeds && s.workers.iter().any(|page| page.pace.found_at().is_some());
        self.found
    }

    /// Whether a difference was found that is not in the order yet.
    #[must_use]
    pub fn is_to_poison(&self) -> bool {
        self.found
    }

    /// Says in the order that workers differ, which ends it for good: its index, and what was found at the lowest index.
    /// `None` while there is no room.
    pub fn poison(&mut self, s: &Shared<'_>) -> Option<(Seq, Finding)> {
        if !self.can_append(s) {
            return None;
        }
        let found = |(slot, page): (usize, &WorkerPage)| Some((page.pace.found()?, slot));
        crash_point!("poison.found");
        let lowest = s.workers.iter().enumerate().filter_map(found).min_by_key(|(found, _)| found.index());
        let (finding, finder) = lowest?;
        let at = self.append(s, &Event::of_finding(&finding))?;
        note_poison(s, at, finder as u64);
        stop(s);
        Some((at, finding))
    }

    /// Says in the order that this sequencer took over, and which members came and went, as far as there is
    /// room; whether anything was said.
    pub fn announce(&mut self, s: &Shared<'_>) -> bool {
        let before = self.next;
        if let Some(epoch) = self.unannounced {
            if self.append(s, &Event::Opened { epoch }).is_none() {
                return false;
            }
            self.unannounced = None;
        }
        for (slot, member) in s.members.iter().enumerate() {
            self.announce_member(s, slot as u16, member);
        }
        self.next != before
    }

    fn announce_member(&mut self, s: &Shared<'_>, slot: u16, member: &MemberEntry) {
        let former = member.former.load(Ordering::Relaxed);
        if former != 0 {
            let name = member.former_name.load();
            let address = Address::of_code(member.former_address.load(Ordering::Relaxed) as u16);
            if self.append(s, &Event::Left { slot, number: former, name, address }).is_none() {
                return;
            }
            member.former.store(0, Ordering::Relaxed);
            crash_point!("announce.former");
        }
        let (number, name) = (member.number.load(Ordering::Relaxed), member.name.load());
        let (state, address) = (member.state.load(Ordering::Relaxed), member.address());
        let known = member.joined.load(Ordering::Relaxed) != 0;
        if state == LIVE && !known {
            if let Some(seq) = self.append(s, &Event::Joined { slot, number, name, address }) {
                member.joined.store(seq.get() + 1, Ordering::Relaxed);
                crash_point!("announce.joined");
            }
        } else if state == GONE
            && (!known || self.append(s, &Event::Left { slot, number, name, address }).is_some())
        {
            member.state.store(FREE, Ordering::Relaxed);
            crash_point!("announce.left");
        }
    }

    /// Lets a worker in that asked with `generation`; its predecessor in the slot no longer gates. `None` while
    /// there is no room for the commands that say so.
    ///
    /// Where nobody gates there may never be room before somebody is let in: then it is let in at once, and what
    /// there is to say is said by [`announce`](Self::announce) when there is room.
    ///
    /// The first one gets everything that is held, from the anchor on. A later one gets what follows the
    /// command that says that it joined, and folds what lies between the anchor and that by itself.
    ///
    /// That no other live worker has its `address`, if that is of a rank, is for the caller to know.
    pub fn join(
        &mut self,
        s: &Shared<'_>,
        slot: u16,
        generation: u64,
        name: NameWords,
        address: Address,
    ) -> Option<Seq> {
        let member = &s.members[usize::from(slot)];
        let alone = !s.members.iter().any(MemberEntry::is_live);
        if alone {
            make_way(member);
        } else {
            self.announce_member(s, slot, member);
            let settled =
                member.state.load(Ordering::Relaxed) == FREE && member.former.load(Ordering::Relaxed) == 0;
            if !settled || !self.can_append(s) {
                return None;
            }
        }
        let (anchor, [digest, current, run]) = s.control.anchor.load()?;
        let number = take_number(&s.control.reign.next_member);
        member.number.store(number, Ordering::Relaxed);
        crash_point!("join.numbered");
        member.generation.store(generation, Ordering::Relaxed);
        member.start.store(anchor.get(), Ordering::Relaxed);
        member.start_digest.store(digest, Ordering::Relaxed);
        member.start_current.store(current, Ordering::Relaxed);
        member.start_run.store(run, Ordering::Relaxed);
        member.joined.store(0, Ordering::Relaxed);
        member.name.store(name);
        member.address.store(address.code().into(), Ordering::Relaxed);
        crash_point!("join.described");
        // From here on it gates, at the anchor until it begins.
        // ORDERING [J6]: Release; pairs with the Acquire in `standing`: who sees that it is live sees its generation.
        // K1 as well, for a successor: a member that is live has a start.
        member.state.store(LIVE, Ordering::Release);
        crash_point!("join.live");
        self.announce_member(s, slot, member);
        let joined = member.joined.load(Ordering::Relaxed).checked_sub(1).filter(|_| !alone);
        let first = joined.map_or(anchor, Seq::new);
        member.first.store(first.get(), Ordering::Relaxed);
        crash_point!("join.first");
        member.answer.give(generation, Verdict::Granted);
        Some(first)
    }

    /// Has who asked with `generation` go on in the place of a journal whose gate stayed when it died: the same member,
    /// which gates at the anchor until it begins. Nothing is freed in between, and nothing is said in the order.
    pub fn take_up(&mut self, s: &Shared<'_>, slot: u16, generation: u64) -> Option<Seq> {
        let member = &s.members[usize::from(slot)];
        let (anchor, [digest, current, run]) = s.control.anchor.load()?;
        // The one that died has passed the anchor: where it began no longer counts.
        member.start.store(anchor.get(), Ordering::Relaxed);
        member.start_digest.store(digest, Ordering::Relaxed);
        member.start_current.store(current, Ordering::Relaxed);
        member.start_run.store(run, Ordering::Relaxed);
        member.first.store(anchor.get(), Ordering::Relaxed);
        crash_point!("take-up.described");
        // ORDERING [K1]: Release; for a successor: from here on it gates at the anchor, which is described.
        member.generation.store(generation, Ordering::Release);
        crash_point!("take-up.gates");
        member.answer.give(generation, Verdict::Granted);
        Some(anchor)
    }

    /// Drops the gate of a worker that has left or is proven dead, at once; that it left is said by
    /// [`announce`](Self::announce) when there is room.
    pub fn drop_gate(&mut self, s: &Shared<'_>, slot: u16) {
        let member = &s.members[usize::from(slot)];
        if member.is_live() {
            // What it passed last still counts, above all if it was the only one.
            self.free(s);
            crash_point!("drop.freed");
            member.state.store(GONE, Ordering::Relaxed);
            crash_point!("drop.gone");
        }
    }

    /// Gives a lane to a producer that asked with `generation` and holds the lane's lock: the same name goes on
    /// where its predecessor's tickets end, if it has the same role; a new name gets a lane of which everything is
    /// released. `None` while tickets from before the request are queued, or there is no room to say so.
    pub fn admit(
        &mut self,
        s: &Shared<'_>,
        lane: u16,
        generation: u64,
        name: NameWords,
        role: ProducerRole,
    ) -> Option<Verdict> {
        let entry = &s.lanes[usize::from(lane)];
        if entry.awaiting.load(Ordering::Relaxed) != generation {
            entry.awaited.store(s.tickets.tail(self.ticket), Ordering::Relaxed);
            crash_point!("admit.awaited");
            // ORDERING [K1]: Release; for a successor: who awaits something knows what.
            entry.awaiting.store(generation, Ordering::Release);
            crash_point!("admit.awaiting");
        }
        if (self.ticket.wrapping_sub(entry.awaited.load(Ordering::Relaxed)) as i64) < 0 {
            return None;
        }
        let same = entry.number.load(Ordering::Relaxed) != 0 && entry.name.load() == name;
        let verdict = if same && entry.role.load(Ordering::Relaxed) != role.code() {
            Verdict::OtherRole
        } else if same && entry.fenced.load(Ordering::Relaxed) == 0 {
            Verdict::Granted
        } else {
            self.hand_over(s, lane, entry, name, role)?
        };
        crash_point!("admit.decided");
        entry.answer.give(generation, verdict);
        Some(verdict)
    }

    fn hand_over(
        &mut self,
        s: &Shared<'_>,
        lane: u16,
        entry: &LaneEntry,
        name: NameWords,
        role: ProducerRole,
    ) -> Option<Verdict> {
        let base = entry.ordered.load(Ordering::Relaxed);
        if entry.released.load(Ordering::Relaxed) != base {
            self.free(s);
            if entry.released.load(Ordering::Relaxed) != base {
                return Some(Verdict::Busy);
            }
        }
        let number = s.control.reign.next_producer.load(Ordering::Relaxed);
        self.append(s, &Event::Attached { lane, number, base, name, role })?;
        own_lane(s, entry, number, base, name, role);
        Some(Verdict::Granted)
    }
}

/// Where the poison is, for those who do not walk the order.
fn note_poison(s: &Shared<'_>, at: Seq, finder: u64) {
    let poison = &s.control.poison;
    poison.finder.store(finder, Ordering::Relaxed);
    poison.at.store(at.get() + 1, Ordering::Relaxed);
    crash_point!("poison.noted");
}

/// The order ends with its last command, which is the poison.
fn stop(s: &Shared<'_>) {
    // ORDERING [C1]: Release; see `take_over`. Who sees it poisoned finds where.
    s.control.reign.state.store(POISONED, Ordering::Release);
    crash_point!("poison.stopped");
}

/// Another worker may have the slot of one that is gone before that is said.
fn make_way(member: &MemberEntry) {
    if member.state.load(Ordering::Relaxed) != GONE {
        return;
    }
    if member.joined.load(Ordering::Relaxed) != 0 {
        // Nothing was left to say of the one before it when its own joining was said.
        member.former_name.store(member.name.load());
        member.former_address.store(member.address.load(Ordering::Relaxed), Ordering::Relaxed);
        // ORDERING [K1]: Release; for a successor: who is kept here has a name.
        member.former.store(member.number.load(Ordering::Relaxed), Ordering::Release);
        crash_point!("way.kept");
    }
    // ORDERING [K1]: Release; for a successor: who was in a free slot is kept above, or need not be.
    member.state.store(FREE, Ordering::Release);
    crash_point!("way.free");
}

/// The lane belongs to the producer from here on.
fn own_lane(s: &Shared<'_>, entry: &LaneEntry, number: u64, base: u64, name: NameWords, role: ProducerRole) {
    let next = &s.control.reign.next_producer;
    next.store(next.load(Ordering::Relaxed).max(number + 1), Ordering::Relaxed);
    crash_point!("owner.next");
    entry.number.store(number, Ordering::Relaxed);
    crash_point!("owner.number");
    entry.base.store(base, Ordering::Relaxed);
    crash_point!("owner.base");
    entry.fenced.store(0, Ordering::Relaxed);
    entry.role.store(role.code(), Ordering::Relaxed);
    entry.name.store(name);
    crash_point!("owner.named");
}

fn take_number(next: &crate::sync::AtomicU64) -> u64 {
    let number = next.load(Ordering::Relaxed);
    // ORDERING [J7]: Release; pairs with the Acquire in `stand_all`.
    next.store(number + 1, Ordering::Release);
    number
}

/// How many more cells of the lane can be outstanding.
#[inline]
fn outstanding_limit(s: &Shared<'_>, entry: &LaneEntry) -> u64 {
    let released = entry.released.load(Ordering::Relaxed);
    s.lane_cells.saturating_sub(entry.ordered.load(Ordering::Relaxed).wrapping_sub(released))
}

/// `released` never goes back.
#[inline]
fn release_lane(entry: &LaneEntry, to: u64) {
    if (to.wrapping_sub(entry.released.load(Ordering::Relaxed)) as i64) > 0 {
        // ORDERING [L1]: Release; pairs with the Acquire in `LaneWriter::refresh`. Through the gates (G1) the
        // reads of every worker come before whatever the producer writes into the room.
        entry.released.store(to, Ordering::Release);
    }
}

/// Where a live worker gates: at its cursor once it has begun, before that where it starts.
#[inline]
#[must_use]
pub fn gate(member: &MemberEntry, page: &WorkerPage) -> Seq {
    let start = Seq::new(member.start.load(Ordering::Relaxed));
    let begun = page.party.has_begun(member.generation.load(Ordering::Relaxed));
    if begun { page.cursor.position().max(start) } else { start }
}

/// Where a worker stands to an index, for who waits until all that it concerns have passed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No worker gates in this slot. A journal applies nothing.
    Nobody,
    /// It has passed the index, or began behind it.
    Past,
    /// It has the index before it, and is here.
    Before(Seq),
}

/// The generation of a slot's worker, if it gates.
fn live_generation(member: &MemberEntry) -> Option<u64> {
    // ORDERING [J6]: Acquire; pairs with the Release in `join`: the generation is that of who is live, and the answer to
    // that one says that `first` is its own.
    let is_live = member.state.load(Ordering::Acquire) == LIVE;
    is_live.then(|| member.generation.load(Ordering::Relaxed))
}

/// Where the worker of a slot stands to an index. One that is being let in has it before it until it is known where it
/// begins.
#[must_use]
pub fn standing(member: &MemberEntry, page: &WorkerPage, index: Seq) -> Standing {
    let Some(generation) = live_generation(member) else { return Standing::Nobody };
    // Relaxed: who asked for the slot wrote it before (J5).
    if page.journal.role.load(Ordering::Relaxed) != NO_JOURNAL {
        return Standing::Nobody;
    }
    let is_in = member.answer.get(generation) == Some(Verdict::Granted);
    if is_in && Seq::new(member.first.load(Ordering::Relaxed)) > index {
        return Standing::Past;
    }
    let at = gate(member, page);
    if at > index { Standing::Past } else { Standing::Before(at) }
}

/// Where all workers stand to an index, told slot by slot to `each`; whether anybody gates. `None` if one was let in
/// meanwhile: then it may have come into a slot that had been looked at, before another one that was found to have begun
/// behind the index, and this is to be asked anew.
pub fn stand_all(
    control: &Control,
    members: &[MemberEntry],
    workers: &[WorkerPage],
    index: Seq,
    mut each: impl FnMut(usize, Standing),
) -> Option<bool> {
    // ORDERING [J7]: Acquire; pairs with the Release in `take_number`. Who was let in before the last number was given is
    // found in its slot.
    let before = control.reign.next_member.load(Ordering::Acquire);
    let mut somebody = false;
    for (slot, (member, page)) in members.iter().zip(workers).enumerate() {
        let found = standing(member, page, index);
        somebody |= found != Standing::Nobody;
        each(slot, found);
    }
    // Relaxed: whoever was found live had its number before that (J6).
    (control.reign.next_member.load(Ordering::Relaxed) == before).then_some(somebody)
}

/// How far the worker of a slot is with its reports: it has made those for all indexes before this, or does not get
/// them. One that is being let in is where it will start, until it is known what is its first. `None` if nobody gates.
#[must_use]
pub fn done_with(member: &MemberEntry, page: &WorkerPage) -> Option<Seq> {
    let generation = live_generation(member)?;
    let is_in = member.answer.get(generation) == Some(Verdict::Granted);
    let first = if is_in { &member.first } else { &member.start }.load(Ordering::Relaxed);
    let done = if page.party.has_begun(generation) { page.pace.done() } else { first };
    Some(Seq::new(done.max(first)))
}

/// The position of the slowest gate and what goes with it, at or before every gate; `None` if nobody gates, or if a cursor
/// moved so fast that it could not be read whole, or claims more than was published (`next`): then nothing is
/// freed for now.
fn slowest_gate(s: &Shared<'_>, next: Seq) -> Option<(Seq, Past)> {
    let mut slowest: Option<(Seq, Past)> = None;
    for (member, page) in s.members.iter().zip(s.workers) {
        if !member.is_live() || slowest.is_some_and(|(at, _)| at <= gate(member, page)) {
            continue;
        }
        let (at, past) = gate_with_past(member, page)?;
        if at > next {
            return None;
        }
        // Read whole, it may have moved past the one that was slowest so far.
        if slowest.is_none_or(|(so_far, _)| at < so_far) {
            slowest = Some((at, past));
        }
    }
    slowest
}

fn gate_with_past(member: &MemberEntry, page: &WorkerPage) -> Option<(Seq, Past)> {
    let start = Seq::new(member.start.load(Ordering::Relaxed));
    if page.party.has_begun(member.generation.load(Ordering::Relaxed)) {
        let (at, past) = (0..READS).find_map(|_| page.cursor.load())?;
        if at >= start {
            return Some((at, past));
        }
    }
    Some((start, past_of(member)))
}

/// How often a pair that moves is read before it is left for the next turn.
const READS: usize = if cfg!(loom) { 2 } else { 16 };

/// The runs that are still in the ring, from the oldest that is whole to the last.
struct Window {
    oldest: u64,
    next_run: u64,
    next: Seq,
    ticket: u64,
}

impl Window {
    fn find(s: &Shared<'_>) -> Result<Self, Damage> {
        let published = &s.control.published;
        let consumed = published.consumed.load(Ordering::Relaxed);
        let Some(last) = s.order.last() else {
            let next = Seq::new(published.next.load(Ordering::Relaxed));
            return Ok(Window { oldest: 0, next_run: 0, next, ticket: consumed });
        };
        let damage = |field, found, limit| Damage::Field { field, of: last, found, limit };
        // A commit word that changes now was not written by a sequencer: this one holds the lock.
        let Look::Here(end) = s.order.read(last) else { return Err(damage("commit word", 0, last + 1)) };
        if end.end() > Seq::MAX || end.count == 0 {
            return Err(damage("index after the last run", end.end().get(), Seq::MAX.get()));
        }
        let mut oldest = end;
        while let Some(before) = oldest.number.checked_sub(1).filter(|n| last - n < s.order.slots()) {
            match s.order.read(before) {
                Look::Here(run) if run.end() == oldest.first && run.count > 0 => oldest = run,
                _ => break,
            }
        }
        // The low half of the next ticket's position; what was consumed without a run may be further on.
        let ahead = end.ticket.wrapping_sub(consumed as u32) as i32;
        let ticket = consumed.wrapping_add(ahead.max(0) as u64);
        Ok(Window { oldest: oldest.number, next_run: last + 1, next: end.end(), ticket })
    }

    fn runs<'a>(&self, s: &'a Shared<'a>) -> impl Iterator<Item = Run> + use<'a> {
        let here = |number| match s.order.read(number) {
            Look::Here(run) => Some(run),
            _ => None,
        };
        (self.oldest..self.next_run).map_while(here)
    }

    /// A lane's next cell is the end of its last run in the window, or what control says if it has none.
    fn restore_lanes(&self, s: &Shared<'_>) -> Result<(), Damage> {
        for run in self.runs(s) {
            let Some(entry) = s.lanes.get(usize::from(run.lane)) else {
                let limit = s.lanes.len() as u64 - 1;
                return Err(Damage::Field { field: "lane", of: run.number, found: run.lane.into(), limit });
            };
            let end = run.cell.wrapping_add(u64::from(run.count));
            if (end.wrapping_sub(entry.ordered.load(Ordering::Relaxed)) as i64) > 0 {
                // ORDERING [O1]: Release; see `Orderer::publish`. Its predecessor's run is in the ring.
                entry.ordered.store(end, Ordering::Release);
                crash_point!("takeover.lane");
            }
        }
        for (lane, entry) in s.lanes.iter().enumerate() {
            let (released, ordered) =
                (entry.released.load(Ordering::Relaxed), entry.ordered.load(Ordering::Relaxed));
            let limit = if lane == usize::from(OWN_LANE) { s.own.cells() } else { s.lane_cells };
            if ordered.wrapping_sub(released) > limit {
                let found = ordered.wrapping_sub(released);
                return Err(Damage::Field {
                    field: "cells outstanding in lane",
                    of: lane as u64,
                    found,
                    limit,
                });
            }
        }
        Ok(())
    }

    /// Applies the events in the window again, for the predecessor may have died between one and what it did
    /// for it; then forgets the members that were never told that they joined.
    fn restore_members(&self, s: &Shared<'_>) -> Result<(), Damage> {
        // Cells that are released may have been written again, by an event that never came into the order; what
        // was in them was applied before they were released.
        let released = s.lanes[usize::from(OWN_LANE)].released.load(Ordering::Relaxed);
        let kept = |run: &Run, i: u64| (run.cell.wrapping_add(i).wrapping_sub(released) as i64) >= 0;
        for run in self.runs(s).filter(|run| run.lane == OWN_LANE) {
            for i in (0..u64::from(run.count)).filter(|&i| kept(&run, i)) {
                let entry = s.own.read(run.cell.wrapping_add(i)).map_err(Damage::Cell)?;
                if entry.address() != Address::ALL {
                    let (cell, found) = (entry.cell, entry.address().code().into());
                    return Err(Damage::Cell(BadCell { cell, field: "address", found, limit: 0 }));
                }
                let mut words = [0; event::WORDS];
                s.own.copy(&entry, &mut words);
                if let Some(event) = Event::decode(entry.kind, &words) {
                    check_number(run.number, &event)?;
                    apply(s, &event, run.first.plus(i));
                    crash_point!("takeover.event");
                }
            }
        }
        for member in s.members {
            let number = member.number.load(Ordering::Relaxed);
            if member.state.load(Ordering::Relaxed) == GONE && member.former.load(Ordering::Relaxed) == number
            {
                // It died while it made way.
                make_way(member);
            }
        }
        for member in s.members.iter().filter(|m| m.is_live()) {
            if member.answer.generation() != member.generation.load(Ordering::Relaxed) {
                // It still asks, and is let in anew; if the order says that it joined, also that it left.
                member.state.store(GONE, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Numbers of parties and epochs are counted up from 1: what is beyond this was not counted.
const HIGHEST_NUMBER: u64 = 1 << 56;

/// Whether what the sequencer counts on can have been counted.
fn check_numbers(s: &Shared<'_>) -> Result<(), Damage> {
    let Reign { epoch, next_producer, next_member, .. } = &*s.control.reign;
    for (field, number) in
        [("epoch", epoch), ("next producer number", next_producer), ("next member number", next_member)]
    {
        within(field, 0, number.load(Ordering::Relaxed))?;
    }
    Ok(())
}

fn within(field: &'static str, of: u64, found: u64) -> Result<(), Damage> {
    let limit = HIGHEST_NUMBER;
    if found > limit { Err(Damage::Field { field, of, found, limit }) } else { Ok(()) }
}

/// Whether an event of run `run` has a number that can have been given.
fn check_number(run: u64, event: &Event) -> Result<(), Damage> {
    match *event {
        Event::Joined { number, .. } | Event::Left { number, .. } => within("member number", run, number),
        Event::Attached { number, .. } => within("producer number", run, number),
        Event::Fenced { .. } | Event::Opened { .. } | Event::Closed { .. } | Event::Poisoned { .. } => Ok(()),
    }
}

/// Applies an event that is in the order to the control page; twice is the same as once.
fn apply(s: &Shared<'_>, event: &Event, at: Seq) {
    match *event {
        Event::Joined { slot, number, .. } => {
            if let Some(member) = member_numbered(s, slot, number) {
                member.joined.store(at.get() + 1, Ordering::Relaxed);
            }
        }
        Event::Left { slot, number, .. } => {
            if let Some(member) = member_numbered(s, slot, number) {
                member.state.store(FREE, Ordering::Relaxed);
            }
            if let Some(member) = s.members.get(usize::from(slot))
                && member.former.load(Ordering::Relaxed) == number
            {
                member.former.store(0, Ordering::Relaxed);
            }
        }
        Event::Attached { lane, number, base, name, role } => {
            if let Some(entry) = s.lanes.get(usize::from(lane))
                && entry.number.load(Ordering::Relaxed) <= number
            {
                own_lane(s, entry, number, base, name, role);
            }
        }
        Event::Fenced { lane, number, .. } => {
            if let Some(entry) = s.lanes.get(usize::from(lane))
                && entry.number.load(Ordering::Relaxed) == number
            {
                entry.fenced.store(1, Ordering::Relaxed);
            }
        }
        Event::Poisoned { slots: [finder, _], .. } => note_poison(s, at, finder.into()),
        Event::Opened { .. } | Event::Closed { .. } => {}
    }
}

fn member_numbered<'a>(s: &Shared<'a>, slot: u16, number: u64) -> Option<&'a MemberEntry> {
    s.members.get(usize::from(slot)).filter(|m| m.number.load(Ordering::Relaxed) == number)
}

/// Whether cell `cell` of the lane is in the order.
#[must_use]
pub fn has_ordered(entry: &LaneEntry, cell: u64) -> bool {
    // ORDERING [O1]: Acquire; pairs with the Release in `Orderer::publish`.
    (entry.ordered.load(Ordering::Acquire).wrapping_sub(cell) as i64) > 0
}

/// The next index and the next run, as published.
#[must_use]
pub fn published(control: &Control) -> (Seq, u64) {
    // ORDERING [P1]: Acquire; pairs with the Release in `settle`. The run number is at least that of the index.
    let next = Seq::new(control.published.next.load(Ordering::Acquire));
    (next, control.published.run.load(Ordering::Relaxed))
}

/// Where a worker that was let in begins: a follower at its start, what goes with that, and the first
/// index that is for it. Its answer has been read.
#[must_use]
pub fn start_of(member: &MemberEntry) -> (Follower, Past, Seq) {
    let start = Seq::new(member.start.load(Ordering::Relaxed));
    let follower = Follower::new(start, member.start_run.load(Ordering::Relaxed));
    let first = Seq::new(member.first.load(Ordering::Relaxed));
    (follower, past_of(member), first)
}

fn past_of(member: &MemberEntry) -> Past {
    [&member.start_digest, &member.start_current].map(|word| word.load(Ordering::Relaxed))
}
