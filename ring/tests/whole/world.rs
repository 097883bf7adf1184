//! All parties of a region in one thread, one call at a time, beside an oracle: a queue for each lane of what was
//! submitted, and one list of what came into the order.
//!
//! After every call of the sequencer the oracle reads the runs that are new and checks them: dense indexes (O1),
//! each command the front of its lane's queue (O2, exactly once). What workers see, and the digests they come
//! to, is then compared with the list, however far behind they are (nothing that is unreleased is overwritten).

use crate::memory::{Memory, Origin, Producer, Seen, Size, Worker, copy, folded, name, payload};
use seriatim_ring::Seq;
use seriatim_ring::control::{NameWords, ProducerRole, Verdict};
use seriatim_ring::digest::{self, Chain};
use seriatim_ring::event::{Event, OWN_LANE};
use seriatim_ring::lane::{NoRoom, Owner};
use seriatim_ring::order::{Look, Run};
use seriatim_ring::parts::Address;
use seriatim_ring::sequencer::{Orderer, Shared, Stop, has_ordered, published};
use seriatim_ring::sync::Ordering;
use seriatim_ring::tickets::{Closed, Enqueuer, Ticket};
use std::collections::VecDeque;

/// One call of one party. Indexes are taken modulo how many there are; what cannot be done now does nothing.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// A producer writes a command of so many bytes (at most what fits).
    Write(u16, u32),
    /// It queues what it has written.
    Commit(u16),
    /// It gives back what it has written.
    Abandon(u16),
    /// It dies, and another one of the same name asks for its lane.
    Reattach(u16),
    /// It dies, and one of another name asks for its lane.
    Rename(u16),
    /// It queues a ticket that cannot be right.
    Wild(u16),
    /// The sequencer makes a turn of at most so many runs.
    Turn(u32),
    /// It frees.
    Free,
    /// It lets in who asks, drops the gates of those who left, and says so.
    House,
    /// Where nobody works, it drops what is in the order.
    Discard,
    /// It dies.
    Crash,
    /// Another one takes over, if there is none.
    TakeOver,
    /// Somebody closes the order; the sequencer reopens it by dying.
    Close,
    /// A worker asks to be let in, and begins when it has been.
    Join(u16),
    /// A worker reads at most so many commands.
    Poll(u16, u32),
    /// It stores its cursor.
    Release(u16),
    /// It leaves.
    Leave(u16),
    /// It dies without a word; the kernel says so.
    Kill(u16),
    /// Somebody who gates nobody looks at the run so many back.
    Observe(u64),
}

/// Runs a call of the sequencer; `None` if it died in it.
pub trait Host {
    /// Runs it.
    fn call<R>(&mut self, call: impl FnOnce() -> R) -> Option<R>;
}

/// A sequencer that dies only between calls.
#[derive(Debug)]
pub struct Steady;

impl Host for Steady {
    fn call<R>(&mut self, call: impl FnOnce() -> R) -> Option<R> {
        Some(call())
    }
}

/// What a producer queued.
#[derive(Debug)]
enum Queued {
    Command { kind: u16, words: Vec<u64>, len: u32 },
    Wild { count: u32 },
}

#[derive(Debug, Default)]
struct LaneOracle {
    written: Vec<Queued>,
    queued: VecDeque<Queued>,
    /// Nobody hears it until it has another owner.
    fenced: bool,
    names: u64,
}

#[derive(Debug)]
enum Seat<'a> {
    Empty,
    Asking(u64),
    Here(Worker<'a>),
}

/// The region, its parties, and the oracle.
#[derive(Debug)]
pub struct World<'a, H> {
    memory: &'a Memory,
    size: Size,
    host: H,
    orderer: Option<Orderer>,
    producers: Vec<Option<Producer<'a>>>,
    asking: Vec<Option<u64>>,
    seats: Vec<Seat<'a>>,
    killed: Vec<bool>,
    lanes: Vec<LaneOracle>,
    // The order, as it is: commands, the digest before each and after the last, owners at the end.
    origin: u64,
    history: Vec<Seen>,
    digests: Vec<Chain>,
    owners: Vec<Owner>,
    next_run: u64,
    members: Vec<u64>,
    seed: u64,
    close_queued: bool,
}

impl<'a, H: Host> World<'a, H> {
    /// The region with nobody in it.
    pub fn new(memory: &'a Memory, size: Size, origin: Origin, host: H) -> Self {
        let lanes = size.producers + 1;
        World {
            memory,
            size,
            host,
            orderer: None,
            producers: (0..lanes).map(|_| None).collect(),
            asking: vec![None; lanes],
            seats: (0..size.workers).map(|_| Seat::Empty).collect(),
            killed: vec![false; size.workers],
            lanes: (0..lanes).map(|_| LaneOracle::default()).collect(),
            origin: origin.seq,
            history: Vec::new(),
            digests: vec![digest::START],
            owners: vec![Owner::default(); lanes],
            next_run: 0,
            members: Vec::new(),
            seed: 0,
            close_queued: false,
        }
    }

    /// How many commands are in the order.
    pub fn ordered(&self) -> usize {
        self.history.len()
    }

    /// Whether a sequencer lives.
    pub fn has_sequencer(&self) -> bool {
        self.orderer.is_some()
    }

    /// The host, to look at or to change.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// Does one thing.
    pub fn step(&mut self, op: Op) {
        let lane = |p: u16| 1 + usize::from(p) % self.size.producers;
        let slot = |w: u16| usize::from(w) % self.size.workers;
        match op {
            Op::Write(p, len) => self.write(lane(p), len),
            Op::Commit(p) => self.commit(lane(p)),
            Op::Abandon(p) => self.abandon(lane(p)),
            Op::Reattach(p) => self.ask_for_lane(lane(p), false),
            Op::Rename(p) => self.ask_for_lane(lane(p), true),
            Op::Wild(p) => self.wild(lane(p)),
            Op::Turn(budget) => self.turn(budget),
            Op::Free => drop(self.sequence(|orderer, s| orderer.free(s))),
            Op::House => self.keep_house(),
            Op::Discard => self.discard(),
            Op::Crash => self.orderer = None,
            Op::TakeOver => self.take_over(),
            Op::Close => self.close(),
            Op::Join(w) => self.join(slot(w)),
            Op::Poll(w, most) => self.poll(slot(w), most),
            Op::Release(w) => self.release(slot(w)),
            Op::Leave(w) => self.leave(slot(w), false),
            Op::Kill(w) => self.leave(slot(w), true),
            Op::Observe(back) => self.observe(back),
        }
    }

    // Producers.

    fn write(&mut self, lane: usize, len: u32) {
        let limit = (self.size.lane_cells as u32 / 2).max(1);
        let Some(producer) = &mut self.producers[lane] else { return };
        if producer.writer.reserved() >= limit {
            return;
        }
        let len = len.min(self.memory.lane(lane as u16).max_payload() as u32);
        let (kind, words) = (self.seed as u16 + 1, payload(self.seed + 1, len));
        match producer.put(kind, &words, len) {
            Ok(()) => self.seed += 1,
            Err(NoRoom::Full) => return,
            Err(damaged) => panic!("{damaged:?}"),
        }
        self.lanes[lane].written.push(Queued::Command { kind, words, len });
    }

    fn commit(&mut self, lane: usize) {
        let Some(producer) = &mut self.producers[lane] else { return };
        if producer.writer.reserved() == 0 {
            return;
        }
        let oracle = &mut self.lanes[lane];
        match producer.commit() {
            Ok(_) => {
                let written = oracle.written.drain(..);
                oracle.queued.extend(written);
            }
            Err(refused) => {
                assert_eq!(refused, Closed);
                assert!(self.close_queued, "closed by nobody");
                producer.writer.abandon();
                oracle.written.clear();
            }
        }
    }

    fn abandon(&mut self, lane: usize) {
        if let Some(producer) = &mut self.producers[lane] {
            producer.writer.abandon();
            self.lanes[lane].written.clear();
        }
    }

    fn wild(&mut self, lane: usize) {
        let Some(producer) = &mut self.producers[lane] else { return };
        // One of a wild producer's tickets at a time: the queue has room for the lanes' cells and a few more.
        if self.lanes[lane].fenced || self.lanes[lane].queued.iter().any(|q| matches!(q, Queued::Wild { .. }))
        {
            return;
        }
        let count = self.size.lane_cells as u32 + 1;
        let ticket = Ticket::Cells { lane: lane as u16, count };
        let void = &self.memory.control.reign.void_before;
        if producer.enqueuer.enqueue(&self.memory.queue(), ticket, void).is_ok() {
            self.lanes[lane].queued.push_back(Queued::Wild { count });
        }
        // Whoever is as wild as that is not asked to write sensible commands after it.
        self.producers[lane] = None;
        self.lanes[lane].written.clear();
    }

    fn ask_for_lane(&mut self, lane: usize, rename: bool) {
        self.producers[lane] = None;
        self.lanes[lane].written.clear();
        let oracle = &mut self.lanes[lane];
        oracle.names += u64::from(rename);
        let party = &self.memory.pages[lane].party;
        party.name.store(name(lane as u64 * 1000 + oracle.names));
        self.asking[lane] = Some(party.ask(self.memory.bells.requests_word()));
    }

    // The sequencer.

    /// A call of the sequencer, after which the oracle looks at what is new.
    fn sequence<R>(&mut self, call: impl FnOnce(&mut Orderer, &Shared<'_>) -> R) -> Option<R> {
        let mut orderer = self.orderer.take()?;
        let s = self.memory.shared();
        let done = self.host.call(|| call(&mut orderer, &s));
        if done.is_some() {
            self.orderer = Some(orderer);
        }
        self.look();
        done
    }

    fn take_over(&mut self) {
        if self.orderer.is_some() {
            return;
        }
        let s = self.memory.shared();
        let Some(taken) = self.host.call(|| Orderer::take_over(&s)) else { return };
        let taken = taken.expect("a region that is whole");
        self.look();
        assert_eq!(taken.next().get() - self.origin, self.history.len() as u64);
        assert_eq!(taken.next_run(), self.next_run);
        self.close_queued = false;
        self.orderer = Some(taken);
    }

    fn turn(&mut self, budget: u32) {
        let Some(turn) = self.sequence(|orderer, s| orderer.turn(s, budget)) else { return };
        match turn.stop {
            Stop::Bad { lane, count, .. } => drop(self.sequence(|orderer, s| orderer.reject(s, lane, count))),
            Stop::Close => drop(self.sequence(|orderer, s| orderer.close(s))),
            Stop::Exhausted => panic!("the order ended"),
            Stop::Poison => panic!("nobody found anything"),
            Stop::Dry | Stop::Budget | Stop::Held => {}
        }
        if let Some(orderer) = &self.orderer {
            let (next, run) = published(&self.memory.control);
            assert_eq!((next, run), (orderer.next(), orderer.next_run()));
        }
    }

    fn keep_house(&mut self) {
        for slot in 0..self.size.workers {
            let (member, page) = (&self.memory.members[slot], &self.memory.workers[slot]);
            let generation = member.generation.load(Ordering::Relaxed);
            // A later request comes from who holds the page's lock now: the former holder is dead.
            let gone = page.party.has_left(generation) || page.party.request() != generation;
            if member.is_live() && (gone || self.killed[slot]) {
                self.sequence(|orderer, s| orderer.drop_gate(s, slot as u16));
            }
        }
        self.sequence(|orderer, s| orderer.announce(s));
        for slot in 0..self.size.workers {
            let (member, page) = (&self.memory.members[slot], &self.memory.workers[slot]);
            let asked = page.party.request();
            if asked != 0 && !member.is_live() && member.answer.generation() != asked && !self.killed[slot] {
                let name = page.party.name.load();
                self.sequence(|orderer, s| orderer.join(s, slot as u16, asked, name, Address::ALL));
            }
        }
        for lane in 1..self.memory.lanes.len() {
            let (entry, party) = (&self.memory.lanes[lane], &self.memory.pages[lane].party);
            let asked = party.request();
            if asked != 0 && entry.answer.generation() != asked {
                let name = party.name.load();
                self.sequence(|orderer, s| orderer.admit(s, lane as u16, asked, name, role_of(name)));
            }
        }
        for lane in 1..self.memory.lanes.len() {
            self.attach(lane);
        }
        for slot in 0..self.size.workers {
            self.begin(slot);
        }
    }

    /// A producer reads the answer to its request.
    fn attach(&mut self, lane: usize) {
        let Some(generation) = self.asking[lane] else { return };
        match self.memory.lanes[lane].answer.get(generation) {
            Some(Verdict::Granted) => {}
            Some(_) => {
                self.asking[lane] = None;
                return;
            }
            None => return,
        }
        self.asking[lane] = None;
        let oracle = &self.lanes[lane];
        assert!(oracle.queued.is_empty(), "let in before its predecessor's tickets were consumed");
        assert!(!oracle.fenced);
        let producer = Producer::attach(self.memory, lane as u16);
        assert_eq!(self.memory.owner(lane as u16), self.owners[lane], "what the order says of lane {lane}");
        let role = role_of(self.memory.lanes[lane].name.load());
        assert_eq!(self.memory.is_controlled(lane as u16), role == ProducerRole::Controller);
        self.producers[lane] = Some(producer);
    }

    fn discard(&mut self) {
        let to = Seq::new(self.origin).plus(self.history.len() as u64);
        let past = [self.digests.last().copied().unwrap_or_default(), 0];
        self.sequence(|orderer, s| orderer.discard(s, to, past));
    }

    fn close(&mut self) {
        let void = &self.memory.control.reign.void_before;
        let mut closer = Enqueuer::new(self.memory.control.published.consumed.load(Ordering::Relaxed));
        if closer.enqueue(&self.memory.queue(), Ticket::Close, void).is_ok() {
            self.close_queued = true;
        }
    }

    // Workers.

    fn join(&mut self, slot: usize) {
        if matches!(self.seats[slot], Seat::Empty) {
            let party = &self.memory.workers[slot].party;
            party.name.store(name(100 + slot as u64));
            self.seats[slot] = Seat::Asking(party.ask(self.memory.bells.requests_word()));
            self.killed[slot] = false;
        }
    }

    fn begin(&mut self, slot: usize) {
        let Seat::Asking(generation) = self.seats[slot] else { return };
        if self.memory.members[slot].answer.get(generation) == Some(Verdict::Granted) {
            let worker = Worker::begin(self.memory, slot as u16, generation);
            assert!(worker.first >= worker.follower.next());
            let at = (worker.follower.next().get() - self.origin) as usize;
            assert_eq!(worker.digest, self.digests[at], "digest that a newcomer starts from");
            self.seats[slot] = Seat::Here(worker);
        }
    }

    fn poll(&mut self, slot: usize, most: u32) {
        let Seat::Here(worker) = &mut self.seats[slot] else { return };
        for _ in 0..most {
            let Some(seen) = worker.poll().expect("a gating worker is not lapped") else { return };
            let at = (seen.seq - self.origin) as usize;
            assert_eq!(seen, self.history[at], "what worker {slot} saw");
            assert_eq!(worker.digest, self.digests[at + 1], "digest of worker {slot} after {at}");
        }
    }

    fn release(&mut self, slot: usize) {
        if let Seat::Here(worker) = &self.seats[slot] {
            worker.release();
        }
    }

    fn leave(&mut self, slot: usize, kill: bool) {
        match std::mem::replace(&mut self.seats[slot], Seat::Empty) {
            Seat::Here(worker) if !kill => worker.leave(),
            Seat::Empty => {}
            _ => self.killed[slot] = true,
        }
    }

    fn observe(&mut self, back: u64) {
        let Some(number) = self.next_run.checked_sub(1 + back) else { return };
        let Look::Here(run) = self.memory.order().observe(number) else { return };
        let lane = self.memory.lane(run.lane);
        for i in 0..u64::from(run.count) {
            let cell = run.cell.wrapping_add(i);
            let entry = lane.read(cell);
            let words = entry.as_ref().map(|entry| copy(&lane, entry)).unwrap_or_default();
            if lane.still_there(cell, entry.as_ref().ok()) {
                let seen = &self.history[(run.first.get() + i - self.origin) as usize];
                let entry = entry.expect("a whole cell");
                assert_eq!(
                    (cell, entry.kind, entry.len, &words),
                    (seen.cell, seen.kind, seen.len, &seen.words)
                );
            }
        }
    }

    // The oracle.

    /// Takes the runs that are new.
    fn look(&mut self) {
        while let Look::Here(run) = self.memory.order().read(self.next_run) {
            assert_eq!(run.first.get() - self.origin, self.history.len() as u64, "a gap in the order");
            for i in 0..u64::from(run.count) {
                self.take(&run, run.cell.wrapping_add(i));
            }
            self.next_run += 1;
        }
    }

    fn take(&mut self, run: &Run, cell: u64) {
        let lane = self.memory.lane(run.lane);
        let entry = lane.read(cell).expect("a whole cell");
        let words = copy(&lane, &entry);
        let seq = self.origin + self.history.len() as u64;
        let seen = Seen { seq, lane: run.lane, cell, kind: entry.kind, len: entry.len, words };
        let mut fold = folded(self.owners[usize::from(run.lane)], &seen);
        if run.lane == OWN_LANE {
            fold.payload = entry.digest;
            self.apply(&seen);
        } else {
            match self.lanes[usize::from(run.lane)].queued.pop_front() {
                Some(Queued::Command { kind, words, len }) => {
                    assert_eq!((seen.kind, seen.len, &seen.words), (kind, len, &words), "at {seq}");
                }
                other => panic!("in the order at {seq}: {seen:?}, queued: {other:?}"),
            }
        }
        let last = self.digests[self.history.len()];
        self.digests.push(digest::fold(last, fold));
        self.history.push(seen);
    }

    fn apply(&mut self, seen: &Seen) {
        let words = seen.words.as_slice().try_into().expect("an event's words");
        match Event::decode(seen.kind, words).expect("an event") {
            Event::Joined { number, .. } => {
                assert!(!self.members.contains(&number), "member {number} joined twice");
                self.members.push(number);
            }
            Event::Left { number, .. } => {
                let at = self.members.iter().position(|&m| m == number);
                self.members.remove(at.expect("who left had joined"));
            }
            Event::Attached { lane, number, base, name, role } => {
                assert_eq!(role, role_of(name));
                let owner = &mut self.owners[usize::from(lane)];
                assert!(number > owner.number, "a producer's number was used again");
                *owner = Owner { number, base };
                self.lanes[usize::from(lane)].fenced = false;
            }
            Event::Fenced { lane, count, .. } => {
                let oracle = &mut self.lanes[usize::from(lane)];
                let Some(Queued::Wild { count: queued }) = oracle.queued.pop_front() else {
                    panic!("{seen:?}")
                };
                assert_eq!(u64::from(queued), count);
                oracle.queued.clear();
                oracle.fenced = true;
            }
            Event::Opened { .. } | Event::Closed { .. } | Event::Poisoned { .. } => {}
        }
    }

    /// Lets everything come to rest, with a sequencer and a worker, and checks that nothing was lost: all that
    /// was queued is in the order, everybody has read it, and every lane is released.
    pub fn settle(&mut self) {
        let mut before = None;
        for _ in 0..1000 {
            self.take_over();
            self.join(0);
            self.keep_house();
            self.turn(64);
            for slot in 0..self.size.workers {
                self.poll(slot, u32::MAX);
                self.release(slot);
            }
            self.sequence(|orderer, s| orderer.free(s));
            let busy = self.lanes.iter().any(|lane| !lane.queued.is_empty())
                || self.asking.iter().any(Option::is_some)
                || self.seats.iter().any(|seat| matches!(seat, Seat::Asking(_)))
                || self.orderer.as_ref().is_none_or(|o| o.has_work(&self.memory.shared()));
            let now = Some((self.history.len(), self.orderer.is_some()));
            if !busy && before == now {
                return self.check_rest();
            }
            before = now;
        }
        panic!("it does not come to rest: {:?} {:?} {:?}", self.lanes, self.asking, self.seats);
    }

    fn check_rest(&mut self) {
        let orderer = self.orderer.as_ref().expect("a sequencer");
        assert_eq!(orderer.anchor(), orderer.next());
        for (lane, entry) in self.memory.lanes.iter().enumerate() {
            let (released, ordered) =
                (entry.released.load(Ordering::Relaxed), entry.ordered.load(Ordering::Relaxed));
            assert_eq!(released, ordered, "lane {lane} is not released");
            assert!(!has_ordered(entry, ordered) && has_ordered(entry, ordered.wrapping_sub(1)));
        }
        let live = self.memory.members.iter().filter(|m| m.is_live());
        let mut live: Vec<_> = live.map(|m| m.number.load(Ordering::Relaxed)).collect();
        live.sort_unstable();
        self.members.sort_unstable();
        assert_eq!(self.members, live, "who joined, as the order says and as it is");
        let (at, [digest, ..]) = self.memory.control.anchor.load().expect("nobody stores it");
        assert_eq!((at.get() - self.origin) as usize, self.history.len());
        assert_eq!(digest, self.digests[self.history.len()]);
    }
}

/// What a producer of this name is for.
fn role_of(name: NameWords) -> ProducerRole {
    if name[0].is_multiple_of(2) { ProducerRole::Controller } else { ProducerRole::Injector }
}
