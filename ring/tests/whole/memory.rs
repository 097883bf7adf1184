//! A region's memory on the heap, and the parties that the ring has no type for: a producer's handle and a
//! worker's. Both do what an embedder does, over the algorithms as shipped. The models build on the same file.

use seriatim_ring::Seq;
use seriatim_ring::control::{
    Bells, Control, LaneEntry, LanePage, MemberEntry, NameWords, ProducerRole, Verdict, WorkerPage,
};
use seriatim_ring::digest::{self, Chain, Folded};
use seriatim_ring::event::{Event, OWN_LANE, WORDS};
use seriatim_ring::incarnations::{Current, HELLO, Hello, Incarnations, Term};
use seriatim_ring::lane::{Cell, Entry, INLINE, Lane, LaneWriter, NoRoom, Owner, Room, Shape};
use seriatim_ring::order::{Fault, Follower, Look, Order, Slot};
use seriatim_ring::pad::Padded;
use seriatim_ring::parts::Address;
use seriatim_ring::sequencer::{Orderer, Shared, start_of};
use seriatim_ring::sync::{AtomicU64, Ordering};
use seriatim_ring::tickets::{Enqueuer, Refused, Ticket, Tickets};

/// How much of everything. All but `producers` and `workers` are powers of two.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Runs that the order ring holds, at least 2.
    pub order_slots: usize,
    /// Words of the ticket queue.
    pub tickets: usize,
    /// Lanes besides the sequencer's.
    pub producers: usize,
    /// Cells of each of them.
    pub lane_cells: usize,
    /// Bytes of each of them.
    pub lane_bytes: usize,
    /// Cells of the sequencer's lane; it has 64 bytes for each.
    pub own_cells: usize,
    /// Slots for workers.
    pub workers: usize,
}

/// Where positions begin.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// The first index.
    pub seq: u64,
    /// Position of the first ticket.
    pub ticket: u64,
    /// Number of the first cell of every lane.
    pub cell: u64,
    /// Position of the first byte of every lane, a multiple of 64.
    pub byte: u64,
}

/// A region's memory.
#[derive(Debug)]
pub struct Memory {
    /// The sequencer's page.
    pub control: Control,
    /// Its entries for the lanes.
    pub lanes: Vec<LaneEntry>,
    /// Its entries for the workers.
    pub members: Vec<MemberEntry>,
    /// The workers' pages.
    pub workers: Vec<WorkerPage>,
    /// What all write.
    pub bells: Bells,
    /// The lanes' first pages.
    pub pages: Vec<LanePage>,
    claimed: Padded<AtomicU64>,
    terms: Vec<Term>,
    slots: Vec<Slot>,
    hint: AtomicU64,
    tickets: Vec<AtomicU64>,
    cells: Vec<Vec<Cell>>,
    bytes: Vec<Vec<AtomicU64>>,
    lane_cells: u64,
}

fn many<T>(n: usize, make: impl Fn() -> T) -> Vec<T> {
    (0..n).map(|_| make()).collect()
}

impl Memory {
    /// A region that nobody uses yet.
    pub fn new(size: Size, origin: Origin) -> Self {
        let lanes = size.producers + 1;
        let cells = |lane| if lane == 0 { size.own_cells } else { size.lane_cells };
        let words = |lane| if lane == 0 { size.own_cells * 8 } else { size.lane_bytes / 8 };
        let memory = Memory {
            control: Control::new(),
            lanes: many(lanes, LaneEntry::new),
            members: many(size.workers, MemberEntry::new),
            workers: many(size.workers, WorkerPage::default),
            bells: Bells::new(),
            pages: many(lanes, LanePage::default),
            claimed: Padded(AtomicU64::new(0)),
            terms: many(lanes, Term::default),
            slots: many(size.order_slots, Slot::new),
            hint: AtomicU64::new(0),
            tickets: many(size.tickets, || AtomicU64::new(0)),
            cells: (0..lanes).map(|lane| many(cells(lane), Cell::new)).collect(),
            bytes: (0..lanes).map(|lane| many(words(lane), || AtomicU64::new(0))).collect(),
            lane_cells: size.lane_cells as u64,
        };
        memory.control.start_at(Seq::new(origin.seq), origin.ticket);
        memory.queue().start_at(origin.ticket);
        for (page, entry) in memory.pages.iter().zip(&memory.lanes) {
            page.claimed.start_at(origin.cell, origin.byte);
            entry.released.store(origin.cell, Ordering::Relaxed);
            entry.ordered.store(origin.cell, Ordering::Relaxed);
        }
        memory
    }

    /// What the sequencer works on.
    pub fn shared(&self) -> Shared<'_> {
        Shared {
            control: &self.control,
            lanes: &self.lanes,
            members: &self.members,
            workers: &self.workers,
            order: self.order(),
            tickets: self.queue(),
            own: self.lane(OWN_LANE),
            bells: &self.bells,
            lane_cells: self.lane_cells,
        }
    }

    /// The numbers of incarnations and the lanes' terms.
    pub fn incarnations(&self) -> Incarnations<'_> {
        Incarnations::new(&self.claimed, &self.terms)
    }

    /// Gives a lane to a controller of this number, with nobody else about.
    pub fn appoint(&self, lane: u16, number: u64) {
        let entry = &self.lanes[usize::from(lane)];
        entry.number.store(number, Ordering::Relaxed);
        entry.role.store(ProducerRole::Controller.code(), Ordering::Relaxed);
    }

    /// Whether a lane is a controller's, as the sequencer's entry says.
    pub fn is_controlled(&self, lane: u16) -> bool {
        self.lanes[usize::from(lane)].role.load(Ordering::Relaxed) == ProducerRole::Controller.code()
    }

    /// The order ring.
    pub fn order(&self) -> Order<'_> {
        Order::new(&self.slots)
    }

    /// The ticket queue.
    pub fn queue(&self) -> Tickets<'_> {
        Tickets::new(&self.hint, &self.tickets)
    }

    /// A lane.
    pub fn lane(&self, lane: u16) -> Lane<'_> {
        let at = usize::from(lane);
        Lane::new(&self.pages[at].claimed, &self.cells[at], &self.bytes[at])
    }

    /// Who owns a lane, as the sequencer's entry says.
    pub fn owner(&self, lane: u16) -> Owner {
        let entry = &self.lanes[usize::from(lane)];
        Owner { number: entry.number.load(Ordering::Relaxed), base: entry.base.load(Ordering::Relaxed) }
    }
}

/// A name that is a number.
pub fn name(n: u64) -> NameWords {
    [n, 0, 0, 0]
}

/// A payload of `len` bytes that follows from `seed`, as words.
pub fn payload(seed: u64, len: u32) -> Vec<u64> {
    (0..u64::from(len.div_ceil(8))).map(|i| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i).collect()
}

/// The digest that the parties here take of a payload.
pub fn digest_of(words: &[u64]) -> u64 {
    words.iter().fold(0, |h, w| (h ^ w).wrapping_mul(0x0100_0000_01b3).rotate_left(17))
}

/// One producer's handle on its lane.
#[derive(Debug)]
pub struct Producer<'a> {
    memory: &'a Memory,
    number: u16,
    /// Its state of the lane.
    pub writer: LaneWriter,
    /// Its place in the queue.
    pub enqueuer: Enqueuer,
}

impl<'a> Producer<'a> {
    /// Takes lane `number` up where the sequencer's entry says that it stands.
    pub fn attach(memory: &'a Memory, number: u16) -> Self {
        let entry = &memory.lanes[usize::from(number)];
        let ordered = entry.ordered.load(Ordering::Relaxed);
        // ORDERING [L1]: Acquire; as in `LaneWriter::reserve`: what is free from the start may be overwritten.
        let released = entry.released.load(Ordering::Acquire);
        let writer = LaneWriter::resume(&memory.lane(number), released, ordered);
        let enqueuer = Enqueuer::new(memory.control.published.consumed.load(Ordering::Relaxed));
        Producer { memory, number, writer: writer.expect("a whole lane"), enqueuer }
    }

    /// Room for a payload.
    pub fn reserve(&mut self, len: u32) -> Result<Room, NoRoom> {
        let released = &self.memory.lanes[usize::from(self.number)].released;
        self.writer.reserve(&self.memory.lane(self.number), released, len)
    }

    /// Writes a command into its room.
    pub fn fill(&self, room: &Room, kind: u16, words: &[u64]) {
        let lane = self.memory.lane(self.number);
        lane.write(room, words);
        self.writer.fill_to(address_of(kind), &lane, room, kind, digest_of(words));
    }

    /// Reserves room for a command and writes it, each size as the library does.
    pub fn put(&mut self, kind: u16, words: &[u64], len: u32) -> Result<(), NoRoom> {
        if len as usize > INLINE {
            let room = self.reserve(len)?;
            self.fill(&room, kind, words);
            return Ok(());
        }
        let released = &self.memory.lanes[usize::from(self.number)].released;
        let shape = Shape { len, kind, address: address_of(kind), digest: digest_of(words) };
        let lane = self.memory.lane(self.number);
        let cell = self.writer.reserve_inline(&lane, released, 1)?;
        self.writer.put_inline(&lane, cell, shape, |inline| {
            for (to, from) in inline.iter().zip(words) {
                to.store(*from, Ordering::Relaxed);
            }
        });
        Ok(())
    }

    /// Whether there is room for a payload.
    pub fn has_room(&mut self, len: u32) -> Result<bool, NoRoom> {
        let released = &self.memory.lanes[usize::from(self.number)].released;
        self.writer.has_room(&self.memory.lane(self.number), released, len)
    }

    /// Queues one ticket for all that is filled; its position.
    pub fn commit(&mut self) -> Result<u64, Refused> {
        let ticket = Ticket::Cells { lane: self.number, count: self.writer.reserved() };
        let void = &self.memory.control.reign.void_before;
        let at = self.enqueuer.enqueue(&self.memory.queue(), ticket, void)?;
        self.writer.commit();
        Ok(at)
    }

    /// Submits one command if there is room.
    pub fn try_submit(&mut self, kind: u16, len: u32, seed: u64) -> Result<(), NoRoom> {
        self.put(kind, &payload(seed, len), len)?;
        self.commit().expect("the order is open");
        Ok(())
    }
}

/// A command as a worker saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its place in the order.
    pub seq: u64,
    /// Its lane.
    pub lane: u16,
    /// Its cell.
    pub cell: u64,
    /// Its kind.
    pub kind: u16,
    /// Its length.
    pub len: u32,
    /// Its payload.
    pub words: Vec<u64>,
}

/// One worker's handle.
#[derive(Debug)]
pub struct Worker<'a> {
    memory: &'a Memory,
    page: &'a WorkerPage,
    generation: u64,
    /// Its place in the order.
    pub follower: Follower,
    /// The digest of all before that.
    pub digest: Chain,
    /// Who is current there.
    pub current: Current,
    /// The first index that is for it.
    pub first: Seq,
    owners: Vec<Owner>,
}

impl<'a> Worker<'a> {
    /// Asks, is let in and begins, with nobody else about.
    pub fn join(memory: &'a Memory, orderer: &mut Orderer, slot: u16) -> Self {
        let party = &memory.workers[usize::from(slot)].party;
        party.name.store(name(100 + u64::from(slot)));
        let generation = party.ask(memory.bells.requests_word());
        orderer
            .join(&memory.shared(), slot, generation, party.name.load(), Address::ALL)
            .expect("room to say so");
        assert_eq!(memory.members[usize::from(slot)].answer.get(generation), Some(Verdict::Granted));
        Worker::begin(memory, slot, generation)
    }

    /// Begins after the answer to the request of `generation` on page `slot` was read.
    pub fn begin(memory: &'a Memory, slot: u16, generation: u64) -> Self {
        let (follower, [digest, current], first) = start_of(&memory.members[usize::from(slot)]);
        let owners = (0..memory.lanes.len()).map(|lane| memory.owner(lane as u16)).collect();
        let page = &memory.workers[usize::from(slot)];
        let current = Current::from_word(current);
        let worker = Worker { memory, page, generation, follower, digest, current, first, owners };
        worker.release();
        page.party.begin(generation);
        worker
    }

    /// Goes on in slot `slot` where the cursor in its page stands, at the beginning of a run.
    pub fn at_cursor(memory: &'a Memory, slot: u16) -> Self {
        let at = memory.workers[usize::from(slot)].cursor.position();
        let run = (0..).find(|&n| matches!(memory.order().read(n), Look::Here(run) if run.first == at));
        Self::go_on(memory, slot, run.expect("a run begins there"))
    }

    /// Goes on in slot `slot` where the cursor in its page stands, at the end of what is published.
    pub fn waiting(memory: &'a Memory, slot: u16) -> Self {
        Self::go_on(memory, slot, memory.control.published.run.load(Ordering::Relaxed))
    }

    fn go_on(memory: &'a Memory, slot: u16, run: u64) -> Self {
        let page = &memory.workers[usize::from(slot)];
        let (at, [digest, current]) = page.cursor.load().expect("nobody stores it");
        let follower = Follower::new(at, run);
        let owners = (0..memory.lanes.len()).map(|lane| memory.owner(lane as u16)).collect();
        let generation = page.party.request();
        let current = Current::from_word(current);
        Worker { memory, page, generation, follower, digest, current, first: at, owners }
    }

    /// The next command, copied and folded, if it is published; the cursor is not moved.
    pub fn poll(&mut self) -> Result<Option<Seen>, Fault> {
        let Some(step) = self.follower.peek(&self.memory.order())? else { return Ok(None) };
        let lane = self.memory.lane(step.lane);
        let entry = lane.read(step.cell).expect("a whole cell");
        let words = copy(&lane, &entry);
        self.digest = digest::fold(self.digest, self.owners[usize::from(step.lane)].folded(&entry));
        if step.lane == OWN_LANE {
            self.apply(entry.kind, &words);
        } else {
            assert_eq!(
                digest_of(&words),
                entry.digest,
                "payload of cell {} of lane {}",
                step.cell,
                step.lane
            );
            self.meet(&entry, &words, step.lane, step.seq);
        }
        self.follower.advance();
        let Entry { cell, kind, len, .. } = entry;
        Ok(Some(Seen { seq: step.seq.get(), lane: step.lane, cell, kind, len, words }))
    }

    /// Notes a controller's hello, as the library does.
    fn meet(&mut self, entry: &Entry, words: &[u64], lane: u16, at: Seq) {
        if entry.kind == HELLO && self.memory.is_controlled(lane) {
            let hello = Hello::decode(words.try_into().expect("a hello's words"));
            let after = self.current.after(hello.number, lane);
            if after != self.current {
                self.memory.incarnations().end(self.current, at);
                self.current = after;
            }
        }
    }

    fn apply(&mut self, kind: u16, words: &[u64]) {
        let words: [u64; WORDS] = words.try_into().expect("an event's words");
        if let Some(Event::Attached { lane, number, base, .. }) = Event::decode(kind, &words) {
            self.owners[usize::from(lane)] = Owner { number, base };
        }
    }

    /// Polls until nothing is published, and stores the cursor.
    pub fn drain(&mut self) -> Vec<Seen> {
        let all = core::iter::from_fn(|| self.poll().expect("a whole order")).collect();
        self.release();
        all
    }

    /// Stores the cursor.
    pub fn release(&self) {
        self.page.cursor.store(self.follower.next(), [self.digest, self.current.word()]);
    }

    /// Leaves.
    pub fn leave(self) {
        self.release();
        self.page.party.leave(self.generation, self.memory.bells.requests_word());
    }
}

/// A payload, copied.
pub fn copy(lane: &Lane<'_>, entry: &Entry) -> Vec<u64> {
    let mut words = vec![0; entry.len.div_ceil(8) as usize];
    lane.copy(entry, &mut words);
    words
}

/// Whom the ordinary commands of a kind are for: to the order and the lanes it makes no difference.
pub fn address_of(kind: u16) -> Address {
    match kind % 4 {
        2 => Address::rank(kind % 7),
        3 => Address::PARTS,
        _ => Address::ALL,
    }
}

/// What the digest takes of an ordinary command.
pub fn folded(owner: Owner, seen: &Seen) -> Folded {
    Folded {
        producer: owner.number,
        index: seen.cell.wrapping_sub(owner.base),
        len: seen.len,
        kind: seen.kind,
        address: if owner.number == 0 { Address::ALL } else { address_of(seen.kind) },
        payload: digest_of(&seen.words),
    }
}
