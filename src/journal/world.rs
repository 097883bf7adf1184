//! [`World`]: what one must know of an order at an index to go on with it, beside what goes with the index.
//!
//! Each segment begins with it, so whoever restores a region reads the last segment alone. It follows from the one before
//! and the records in between, as [`verify`](super::verify()) checks; but for the journal's own seat, which it notes for
//! its gate to be there again.

use std::collections::{BTreeMap, BTreeSet};

use seriatim_ring::control::{CLOSED, FREE, KEPT_JOURNAL, MemberEntry, NameWords, ProducerRole};
use seriatim_ring::event::{Event as Own, OWN_LANE};
use seriatim_ring::incarnations::HELLO;
use seriatim_ring::sequencer::published;
use seriatim_ring::sync::{AtomicU64, Ordering, fence};

use super::format::{Bad, Fields, Head, Reader};
use super::replay::own_words;
use crate::fold::{Fold, Stopped};
use crate::name::Name;
use crate::region::layout::Geometry;
use crate::region::map::Map;

/// The tag of a world's block.
const WORLD: u32 = u32::from_le_bytes(*b"wrld");
/// Its bytes before the lanes, of a lane, and of a slot for a worker.
const FIXED_BYTES: usize = 96;
const LANE_BYTES: usize = 56;
const MEMBER_BYTES: usize = 48;
/// The bit beside a lane's role that says that it is not heard.
const FENCED: u64 = 1 << 16;

/// A lane: whose it is, and how many commands of that one the history has. Lane 0 is the sequencer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneOf {
    /// The owner's number; 0 while the lane has none.
    pub(crate) number: u64,
    /// The per-producer index of its next command.
    pub(crate) next: u64,
    /// The code of its role.
    pub(crate) role: u64,
    /// It queued a ticket that could not be right, and is no longer heard.
    pub(crate) is_fenced: bool,
    pub(crate) name: NameWords,
}

/// A slot for a worker, and who gates from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberOf {
    /// Its number; 0 if the slot is free.
    pub(crate) number: u64,
    /// The code of the address that reaches it alone, or 0.
    pub(crate) address: u64,
    pub(crate) name: NameWords,
}

/// Where the journal that wrote a segment sat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeatOf {
    /// Its slot.
    pub(crate) slot: u16,
    /// What its page says that it is: whether its gate outlives it.
    pub(crate) role: u64,
    pub(crate) name: NameWords,
}

/// How an order stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    #[default]
    Open,
    /// Its end is there; who serves next opens it again.
    Closed,
    /// It was ended for good.
    Poisoned,
}

impl Standing {
    const ALL: [Standing; 3] = [Standing::Open, Standing::Closed, Standing::Poisoned];
}

/// What one must know at an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct World {
    /// The last epoch.
    pub(crate) epoch: u64,
    pub(crate) standing: Standing,
    /// The highest number that a controller said hello with, whether it was heard or not.
    pub(crate) claimed: u64,
    /// Numbers for the next producer and the next worker that come.
    pub(crate) next_producer: u64,
    pub(crate) next_member: u64,
    pub(crate) seat: SeatOf,
    pub(crate) lanes: Vec<LaneOf>,
    pub(crate) members: Vec<MemberOf>,
    /// Which lane a producer's number has, of those that have one.
    by_number: BTreeMap<u64, usize>,
    /// The lane that was looked up last.
    last: usize,
}

impl World {
    /// How many bytes the block of a region takes.
    pub(super) fn bytes(g: &Geometry) -> Option<u64> {
        let lanes = g.producers.checked_add(1)?.checked_mul(LANE_BYTES as u64)?;
        g.workers.checked_mul(MEMBER_BYTES as u64)?.checked_add(lanes)?.checked_add(FIXED_BYTES as u64)
    }

    /// An order without anybody.
    pub(super) fn empty(g: &Geometry) -> World {
        World {
            next_producer: 1,
            next_member: 1,
            lanes: vec![LaneOf::default(); g.producers as usize + 1],
            members: vec![MemberOf::default(); g.workers as usize],
            ..World::default()
        }
    }

    pub(super) fn encode(&self, seed: u32) -> Vec<u8> {
        let mut to = Fields::with_capacity(
            FIXED_BYTES + self.lanes.len() * LANE_BYTES + self.members.len() * MEMBER_BYTES,
        );
        to.half(0).half(WORLD);
        to.word(self.epoch).word(self.standing as u64).word(self.claimed);
        to.word(self.next_producer).word(self.next_member);
        to.word(u64::from(self.seat.slot) | self.seat.role << 16).words(&self.seat.name).word(0);
        for lane in &self.lanes {
            let role = lane.role | if lane.is_fenced { FENCED } else { 0 };
            to.word(lane.number).word(lane.next).word(role).words(&lane.name);
        }
        for member in &self.members {
            to.word(member.number).word(member.address).words(&member.name);
        }
        to.sealed(seed)
    }

    /// The world in these bytes, which are as many as the geometry asks for.
    pub(super) fn decode(bytes: &[u8], g: &Geometry, seed: u32) -> Result<World, Bad> {
        let expected = World::bytes(g).unwrap_or(u64::MAX);
        Bad::unless_same("bytes of the world", bytes.len() as u64, expected)?;
        let from = Reader(bytes);
        let crc = crc32c::crc32c_append(seed, &bytes[4..]);
        Bad::unless_same("checksum of the world", crc.into(), from.half(0).into())?;
        Bad::unless_same("tag of the world", from.half(4).into(), WORLD.into())?;
        Bad::unless_same("reserved field", from.word(88), 0)?;
        let standing = Standing::ALL.get(from.word(16) as usize).copied();
        Bad::unless(standing.is_some(), "standing", from.word(16), 0)?;
        let name = |at: usize| std::array::from_fn(|i| from.word(at + 8 * i));
        let lanes = (0..=g.producers as usize).map(|lane| {
            let at = FIXED_BYTES + lane * LANE_BYTES;
            let role = from.word(at + 16);
            LaneOf {
                number: from.word(at),
                next: from.word(at + 8),
                role: role & !FENCED,
                is_fenced: role & FENCED != 0,
                name: name(at + 24),
            }
        });
        let lanes: Vec<_> = lanes.collect();
        let members = (0..g.workers as usize).map(|slot| {
            let at = FIXED_BYTES + lanes.len() * LANE_BYTES + slot * MEMBER_BYTES;
            MemberOf { number: from.word(at), address: from.word(at + 8), name: name(at + 16) }
        });
        let mut world = World {
            epoch: from.word(8),
            standing: standing.unwrap_or_default(),
            claimed: from.word(24),
            next_producer: from.word(32),
            next_member: from.word(40),
            seat: SeatOf { slot: from.word(48) as u16, role: from.word(48) >> 16, name: name(56) },
            members: members.collect(),
            lanes,
            ..World::default()
        };
        world.look_up();
        Ok(world)
    }

    /// To be called when lanes got other owners.
    pub(super) fn look_up(&mut self) {
        let lanes = self.lanes.iter().enumerate();
        self.by_number = lanes.filter(|(_, l)| l.number != 0).map(|(i, l)| (l.number, i)).collect();
    }

    /// Whether what a record says besides its head is asked for.
    pub(super) fn reads(head: &Head) -> bool {
        (head.producer == 0 || head.kind() == HELLO) && head.len() <= SHORT
    }

    /// Goes past a record. Its payload is that of one which is [read](Self::reads), or empty. Tells when its index is not
    /// the next one of its producer, who must have attached.
    pub(super) fn pass(&mut self, head: &Head, payload: &[u8]) -> Result<(), Bad> {
        if head.producer == 0 {
            let own = own_words(payload).and_then(|words| Own::decode(head.kind(), &words));
            if let Some(own) = own {
                self.apply(&own);
            }
        }
        if head.kind() == HELLO && payload.len() >= 8 && self.is_controller(head.producer) {
            self.claimed = self.claimed.max(Reader(payload).word(0));
        }
        self.pass_many(head.producer, head.index, 1)
    }

    /// Goes past so many records of one producer, from an index on, of which none is [read](Self::reads).
    pub(super) fn pass_many(&mut self, producer: u64, index: u64, count: u64) -> Result<(), Bad> {
        let lane = self.lane_of(producer).and_then(|lane| self.lanes.get_mut(lane));
        let none = Bad { field: "number of a producer that has no lane", found: producer, expected: 0 };
        let expected = std::mem::replace(&mut lane.ok_or(none)?.next, index.wrapping_add(count));
        Bad::unless_same("per-producer index", index, expected)
    }

    fn is_controller(&mut self, producer: u64) -> bool {
        let lane = self.lane_of(producer).and_then(|lane| self.lanes.get(lane));
        lane.is_some_and(|lane| lane.role == ProducerRole::Controller.code())
    }

    fn lane_of(&mut self, number: u64) -> Option<usize> {
        if number == 0 {
            return Some(usize::from(OWN_LANE));
        }
        if self.lanes.get(self.last).is_none_or(|lane| lane.number != number) {
            self.last = *self.by_number.get(&number)?;
        }
        Some(self.last)
    }

    fn apply(&mut self, own: &Own) {
        match *own {
            Own::Joined { slot, number, name, address } => {
                if let Some(member) = self.members.get_mut(usize::from(slot)) {
                    *member = MemberOf { number, address: address.code().into(), name };
                }
                self.next_member = self.next_member.max(number.saturating_add(1));
            }
            Own::Left { slot, number, .. } => {
                let slot = self.members.get_mut(usize::from(slot));
                if let Some(member) = slot.filter(|member| member.number == number) {
                    *member = MemberOf::default();
                }
            }
            Own::Attached { lane, number, name, role, .. } => {
                if let Some(lane) = self.lanes.get_mut(usize::from(lane)) {
                    *lane = LaneOf { number, next: 0, role: role.code(), is_fenced: false, name };
                }
                self.next_producer = self.next_producer.max(number.saturating_add(1));
                self.look_up();
            }
            Own::Fenced { lane, number, .. } => {
                let lane = self.lanes.get_mut(usize::from(lane));
                if let Some(lane) = lane.filter(|lane| lane.number == number) {
                    lane.is_fenced = true;
                }
            }
            Own::Opened { epoch } => (self.epoch, self.standing) = (epoch, Standing::Open),
            Own::Closed { epoch } => (self.epoch, self.standing) = (epoch, Standing::Closed),
            Own::Poisoned { .. } => self.standing = Standing::Poisoned,
        }
    }

    /// Whether this is the same as another one, wherever their journals sat; else what of it is not.
    pub(super) fn agrees(&self, expected: &World) -> Result<(), Bad> {
        let words = |world: &World| {
            [world.epoch, world.standing as u64, world.claimed, world.next_producer, world.next_member]
        };
        let fields = ["epoch", "standing", "claimed incarnation", "next producer", "next member"];
        for (field, (found, expected)) in fields.into_iter().zip(words(self).into_iter().zip(words(expected)))
        {
            Bad::unless_same(field, found, expected)?;
        }
        let lane = self.lanes.iter().zip(&expected.lanes).position(|(a, b)| a != b);
        Bad::unless(lane.is_none(), "lane that is not as it was", lane.unwrap_or(0) as u64, 0)?;
        let slot = self.members.iter().zip(&expected.members).position(|(a, b)| a != b);
        Bad::unless(slot.is_none(), "slot that is not as it was", slot.unwrap_or(0) as u64, 0)
    }

    /// What it was at the place of a reader whose gate keeps what follows. The region's control pages may be ahead of
    /// that place: what is in the order from there on is looked through, and taken back.
    pub(super) fn at(map: &Map, fold: &Fold) -> Result<World, Stopped> {
        let mut world = World::empty(&map.layout().geometry);
        let reign = &map.control().reign;
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        world.epoch = load(&reign.epoch);
        let is_closed = reign.state() == CLOSED;
        let lanes: Vec<_> = map
            .lane_entries()
            .iter()
            .map(|entry| {
                let (base, ordered) = (load(&entry.base), load(&entry.ordered));
                let lane = LaneOf {
                    number: load(&entry.number),
                    next: ordered.wrapping_sub(base),
                    role: load(&entry.role),
                    is_fenced: load(&entry.fenced) != 0,
                    name: entry.name.load(),
                };
                (base, lane)
            })
            .collect();
        let mut members = members_now(map.members());
        // ORDERING [K1]: Acquire; pairs with the Release fence in `Orderer::append`: what control says of an event, that
        // event is in the order.
        fence(Ordering::Acquire);
        let seen = Seen::behind(map, fold)?;
        (world.next_producer, world.next_member) = (load(&reign.next_producer), load(&reign.next_member));
        world.claimed = map.incarnations().newest();
        world.standing = if is_closed && !seen.has_closed { Standing::Closed } else { Standing::Open };
        for (number, (to, (base, mut lane))) in world.lanes.iter_mut().zip(lanes).enumerate() {
            let number = number as u16;
            if seen.attached.contains(&number) {
                continue;
            }
            if let Some(first) = seen.first_cells.get(&number) {
                lane.next = first.wrapping_sub(base);
            }
            lane.is_fenced &= !seen.fenced.contains(&number);
            *to = lane;
        }
        members.extend(&seen.left);
        members.retain(|(_, member)| !seen.joined.contains(&member.number));
        for (slot, member) in members {
            if let Some(to) = world.members.get_mut(usize::from(slot)) {
                *to = member;
            }
        }
        world.look_up();
        Ok(world)
    }

    /// Says where its journal sits.
    pub(super) fn seat(&mut self, slot: u16, role: u64, name: Name) {
        self.seat = SeatOf { slot, role, name: name.words() };
    }

    /// The seat of its journal, if the gate of that is to be there whoever dies.
    pub(crate) fn kept_seat(&self) -> Option<SeatOf> {
        (self.seat.role == KEPT_JOURNAL).then_some(self.seat)
    }
}

/// Payloads that say something of the world are not longer.
pub(super) const SHORT: u64 = 64;

/// What the order has from a place on.
#[derive(Default)]
struct Seen {
    first_cells: BTreeMap<u16, u64>,
    attached: BTreeSet<u16>,
    fenced: BTreeSet<u16>,
    joined: BTreeSet<u64>,
    left: Vec<(u16, MemberOf)>,
    has_closed: bool,
}

impl Seen {
    fn behind(map: &Map, fold: &Fold) -> Result<Seen, Stopped> {
        let (end, _) = published(map.control());
        let (mut fold, mut seen) = (fold.clone(), Seen::default());
        while fold.next() < end
            && let Some(met) = fold.step(map)?
        {
            seen.first_cells.entry(met.lane).or_insert(met.entry.cell);
            match met.own {
                Some(Own::Joined { number, .. }) => drop(seen.joined.insert(number)),
                Some(Own::Left { slot, number, name, address }) => {
                    seen.left.push((slot, MemberOf { number, address: address.code().into(), name }));
                }
                Some(Own::Attached { lane, .. }) => drop(seen.attached.insert(lane)),
                Some(Own::Fenced { lane, .. }) => drop(seen.fenced.insert(lane)),
                Some(Own::Closed { .. }) => seen.has_closed = true,
                _ => {}
            }
        }
        Ok(seen)
    }
}

/// Who has joined, as the order says, and has not left, as control says; by slot. Two looks that find the same found nobody
/// half written.
fn members_now(entries: &[MemberEntry]) -> Vec<(u16, MemberOf)> {
    let look = || -> Vec<(u16, MemberOf)> {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let mut members = Vec::new();
        for (slot, entry) in (0..).zip(entries) {
            let former = load(&entry.former);
            if former != 0 {
                let (name, address) = (entry.former_name.load(), load(&entry.former_address));
                members.push((slot, MemberOf { number: former, address, name }));
            }
            if load(&entry.state) != FREE && load(&entry.joined) != 0 {
                let (number, address, name) = (load(&entry.number), load(&entry.address), entry.name.load());
                members.push((slot, MemberOf { number, address, name }));
            }
        }
        members
    };
    let mut last = look();
    loop {
        let again = look();
        if again == last {
            return again;
        }
        last = again;
    }
}
