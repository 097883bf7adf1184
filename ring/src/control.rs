//! What parties tell each other outside the order: the sequencer's page, and the page of each party.
//!
//! ```text
//! sequencer writes   Control      epoch, state, published, anchor, poison
//!                    LaneEntry    per lane: released, ordered, owner, spills freed, answer to a producer
//!                    MemberEntry  per worker: live or not, where it starts, answer to a worker
//! worker writes      WorkerPage   cursor, request, name, rank, pace, reports
//! producer writes    LanePage     claims, request, name, role, refusals, spills
//! all write          Bells        wake words, "there are requests", "room is wanted"
//! ```
//!
//! **Attach** is a hand-shake. A party that holds the lock of its page writes who it is, then `request` = a new
//! generation, and moves `Bells::requests`. The sequencer answers in its own entry for that page with the same
//! generation and a verdict; what it grants is stored before the answer. It grants nothing twice, and a request
//! whose lock has fallen is not granted at all (that is for the caller to ask, the kernel knows).

use crate::gate::{Cursor, Snapshot};
use crate::lane::Claimed;
use crate::pace::Pace;
use crate::pad::Padded;
use crate::parts::Address;
use crate::reports::{REPORTS, Reports};
use crate::seq::Seq;
use crate::spill::{SLOTS, Spills};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::wake::Bell;

/// Bytes of a party's name, padded with zeroes.
pub const NAME_BYTES: usize = 32;
/// A name as words, as it lies in a region.
pub type NameWords = [u64; NAME_BYTES / 8];

/// A name in a region.
#[repr(C)]
#[derive(Debug)]
pub struct NameCell([AtomicU64; NAME_BYTES / 8]);

impl NameCell {
    pub(crate) fn new() -> Self {
        NameCell(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// The words, which are a name only if something else ordered them before.
    #[inline]
    pub fn load(&self) -> NameWords {
        core::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }

    /// Stores a name, to be handed over by a later release.
    #[inline]
    pub fn store(&self, name: NameWords) {
        for (to, from) in self.0.iter().zip(name) {
            to.store(from, Ordering::Relaxed);
        }
    }
}

/// The order takes submits.
pub const OPEN: u32 = 0;
/// No submits from now on; what was submitted is being ordered.
pub const CLOSING: u32 = 1;
/// The end is in the order.
pub const CLOSED: u32 = 2;
/// The last index is used up.
pub const EXHAUSTED: u32 = 3;
/// Workers differ, and the command that says so ends the order for good.
pub const POISONED: u32 = 4;

/// Who sequences.
#[repr(C)]
#[derive(Debug)]
pub struct Reign {
    /// Grows by one at each takeover; 0 before the first.
    pub epoch: AtomicU64,
    /// [`OPEN`], [`CLOSING`], [`CLOSED`], [`EXHAUSTED`] or [`POISONED`].
    pub state: AtomicU32,
    /// Process of the sequencer; a hint for people, the lock is the truth.
    pub pid: AtomicU32,
    /// Start time of that process, in the kernel's ticks since boot.
    pub started: AtomicU64,
    /// Close tickets before this position are void.
    pub void_before: AtomicU64,
    /// Number for the next producer that is new.
    pub next_producer: AtomicU64,
    /// Number for the next worker.
    pub next_member: AtomicU64,
}

impl Reign {
    /// [`OPEN`], [`CLOSING`], [`CLOSED`], [`EXHAUSTED`] or [`POISONED`].
    #[inline]
    pub fn state(&self) -> u32 {
        // ORDERING [C1]: Acquire; pairs with the Release in `Orderer::close` and `take_over`: who sees the order
        // closed finds its end in it.
        self.state.load(Ordering::Acquire)
    }
}

/// How far the order goes: cursors behind the commit words, for joining, waiting and monitoring.
#[repr(C)]
#[derive(Debug)]
pub struct Published {
    /// The next index.
    pub next: AtomicU64,
    /// The next run.
    pub run: AtomicU64,
    /// The next ticket.
    pub consumed: AtomicU64,
}

/// What the sequencer stores outside the order, but for the entries of lanes and members.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// Who sequences.
    pub reign: Padded<Reign>,
    /// How far the order goes.
    pub published: Padded<Published>,
    /// An index with what goes with it (the digest of all before it, and who is current there) and the run that
    /// holds it: where a newcomer starts.
    pub anchor: Padded<Snapshot<3>>,
    /// Whether the sequencer moves. Raises suspicion, proves nothing.
    pub pulse: Padded<Pulse>,
    /// Whether the order ends because workers differ.
    pub poison: Padded<Poison>,
}

/// That workers differ: stored once, after the command that says so.
#[repr(C)]
#[derive(Debug)]
pub struct Poison {
    /// Index of that command, plus 1; 0 as long as there is none.
    pub at: AtomicU64,
    /// The slot in whose page it is said what differs.
    pub finder: AtomicU64,
}

/// Moves while the sequencer lives and runs.
#[repr(C)]
#[derive(Debug)]
pub struct Pulse {
    /// Turns that it has made.
    pub turns: AtomicU64,
    /// When it looked around last, by the monotonic clock in nanoseconds.
    pub looked_ns: AtomicU64,
    /// Not 0: the parties of its process help it. How many CPUs it has in the upper half, in the lower one how many
    /// parties want them.
    pub helped: AtomicU64,
}

impl Control {
    /// A zeroed control page; its values are set by [`start_at`](Self::start_at).
    #[must_use]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Control {
            reign: Padded(Reign {
                epoch: zero(),
                state: AtomicU32::new(OPEN),
                pid: AtomicU32::new(0),
                started: zero(),
                void_before: zero(),
                next_producer: AtomicU64::new(0),
                next_member: zero(),
            }),
            published: Padded(Published { next: zero(), run: zero(), consumed: zero() }),
            anchor: Padded(Snapshot::new()),
            pulse: Padded(Pulse { turns: zero(), looked_ns: zero(), helped: zero() }),
            poison: Padded(Poison { at: zero(), finder: zero() }),
        }
    }

    /// Sets the first index and the first ticket's position of a region that nobody uses yet.
    pub fn start_at(&self, first: Seq, ticket: u64) {
        self.published.next.store(first.get(), Ordering::Relaxed);
        self.published.consumed.store(ticket, Ordering::Relaxed);
        self.reign.void_before.store(ticket, Ordering::Relaxed);
        self.reign.next_producer.store(1, Ordering::Relaxed);
        self.reign.next_member.store(1, Ordering::Relaxed);
        let [digest, current] = crate::gate::BEGINNING;
        self.anchor.store(first, [digest, current, 0]);
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

/// A verdict on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Attached.
    Granted,
    /// A living party has this name.
    NameTaken,
    /// What the slot's former owner left is still in use; try another, or later.
    Busy,
    /// The name is that of a producer with another role.
    OtherRole,
    /// A living worker has this rank, or there is none such.
    RankTaken,
}

impl Verdict {
    const ALL: [Verdict; 5] =
        [Verdict::Granted, Verdict::NameTaken, Verdict::Busy, Verdict::OtherRole, Verdict::RankTaken];
}

/// The sequencer's answer to the request of one generation.
#[repr(C)]
#[derive(Debug)]
pub struct Answer(AtomicU64);

impl Answer {
    fn new() -> Self {
        Answer(AtomicU64::new(0))
    }

    /// Answers the request of `generation`; all that is granted was stored before.
    pub fn give(&self, generation: u64, verdict: Verdict) {
        let code = Verdict::ALL.iter().position(|&v| v == verdict).unwrap_or(0) as u64;
        // ORDERING [J2]: Release; pairs with the Acquire in `get`. Who sees the answer sees what was granted.
        self.0.store(generation << 8 | code, Ordering::Release);
    }

    /// The verdict on the request of `generation`, once there is one.
    pub fn get(&self, generation: u64) -> Option<Verdict> {
        // ORDERING [J2]: Acquire; pairs with the Release in `give`.
        let word = self.0.load(Ordering::Acquire);
        (word >> 8 == generation).then(|| Verdict::ALL.get((word & 0xff) as usize).copied()).flatten()
    }

    /// The generation that was answered last.
    pub fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> 8
    }
}

/// What a producer is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProducerRole {
    /// Its commands count whoever else there is.
    #[default]
    Injector,
    /// Its commands count while it is the current [incarnation](crate::incarnations).
    Controller,
}

impl ProducerRole {
    /// What a region has for it.
    #[must_use]
    pub const fn code(self) -> u64 {
        self as u64
    }

    /// The role with this code.
    #[must_use]
    pub const fn of_code(code: u64) -> Option<ProducerRole> {
        match code {
            0 => Some(ProducerRole::Injector),
            1 => Some(ProducerRole::Controller),
            _ => None,
        }
    }
}

/// What the sequencer stores about a lane. Entry 0 is its own lane.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct LaneEntry {
    /// Cells before this are free again.
    pub released: AtomicU64,
    /// Cells before this are in the order.
    pub ordered: AtomicU64,
    /// The owner's number; 0 while the lane never had one.
    pub number: AtomicU64,
    /// The owner's first cell.
    pub base: AtomicU64,
    /// Answer to the request on the lane's page.
    pub answer: Answer,
    /// Not 0: the lane queued a ticket that cannot be right, and is no longer heard.
    pub fenced: AtomicU64,
    /// The request that waits for the tickets before `awaited` to be consumed.
    pub awaiting: AtomicU64,
    /// See `awaiting`.
    pub awaited: AtomicU64,
    /// The owner's name.
    pub name: NameCell,
    /// The owner's [`ProducerRole`], by its code.
    pub role: AtomicU64,
    /// How many [spills](crate::spill) of the lane have been given back.
    pub spills: AtomicU64,
}

impl LaneEntry {
    /// A lane that never had an owner; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        LaneEntry {
            released: zero(),
            ordered: zero(),
            number: zero(),
            base: zero(),
            answer: Answer::new(),
            fenced: zero(),
            awaiting: zero(),
            awaited: zero(),
            name: NameCell::new(),
            role: zero(),
            spills: zero(),
        }
    }
}

impl Default for LaneEntry {
    fn default() -> Self {
        Self::new()
    }
}

/// The slot has no worker, or one that is not known to the others.
pub const FREE: u64 = 0;
/// The worker gates.
pub const LIVE: u64 = 1;
/// The worker no longer gates; that it left is not in the order yet.
pub const GONE: u64 = 2;

/// What the sequencer stores about a worker.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct MemberEntry {
    /// [`FREE`], [`LIVE`] or [`GONE`].
    pub state: AtomicU64,
    /// The member's number, never reused.
    pub number: AtomicU64,
    /// The generation of its request.
    pub generation: AtomicU64,
    /// Index of the command that says that it joined, plus 1; 0 while that is not in the order.
    pub joined: AtomicU64,
    /// Answer to the request on the worker's page.
    pub answer: Answer,
    /// The first index that is delivered to it.
    pub first: AtomicU64,
    /// Where it starts to fold, and what it gates until its cursor moves.
    pub start: AtomicU64,
    /// The digest of all before `start`.
    pub start_digest: AtomicU64,
    /// Who is current at `start`.
    pub start_current: AtomicU64,
    /// The run that holds `start`.
    pub start_run: AtomicU64,
    /// Its name.
    pub name: NameCell,
    /// The slot's former worker, if that it left is not in the order yet although the slot has another one.
    pub former: AtomicU64,
    /// The name of that.
    pub former_name: NameCell,
    /// How long the sequencer saw it stand although it had something to do, in nanoseconds.
    pub stood_ns: AtomicU64,
    /// The code of the [`Address`] that reaches it alone: its rank plus 1, or 0.
    pub address: AtomicU64,
    /// That of `former`.
    pub former_address: AtomicU64,
}

impl MemberEntry {
    /// A free slot; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        MemberEntry {
            state: AtomicU64::new(FREE),
            number: zero(),
            generation: zero(),
            joined: zero(),
            answer: Answer::new(),
            first: zero(),
            start: zero(),
            start_digest: zero(),
            start_current: zero(),
            start_run: zero(),
            name: NameCell::new(),
            former: zero(),
            former_name: NameCell::new(),
            stood_ns: zero(),
            address: zero(),
            former_address: zero(),
        }
    }

    /// What reaches the slot's worker alone.
    #[inline]
    pub fn address(&self) -> Address {
        Address::of_code(self.address.load(Ordering::Relaxed) as u16)
    }

    /// Whether the slot's worker gates. For the sequencer, whose own word this is.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.state.load(Ordering::Relaxed) == LIVE
    }
}

impl Default for MemberEntry {
    fn default() -> Self {
        Self::new()
    }
}

/// Who a party is and what it asks for, in its own page.
#[repr(C)]
#[derive(Debug)]
pub struct Party {
    request: AtomicU64,
    left: AtomicU64,
    begun: AtomicU64,
    /// Its process; a hint for people, the lock is the truth.
    pub pid: AtomicU64,
    /// Start time of that process, in the kernel's ticks since boot.
    pub started: AtomicU64,
    /// Its name.
    pub name: NameCell,
    /// A producer's [`ProducerRole`], by its code.
    pub role: AtomicU64,
    /// The code of the [`Address`] that a worker wants for its own: its rank plus 1, or 0.
    pub address: AtomicU64,
}

impl Party {
    /// Nobody yet; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Party {
            request: zero(),
            left: zero(),
            begun: zero(),
            pid: zero(),
            started: zero(),
            name: NameCell::new(),
            role: zero(),
            address: zero(),
        }
    }

    /// Asks to be attached, as who was written before; the caller holds the lock of this page. Returns the
    /// generation of the request.
    pub fn ask(&self, requests: &AtomicU32) -> u64 {
        let generation = self.next_generation();
        // ORDERING [J1]: Release; pairs with the Acquire in `request`. Who sees the request sees name and pid.
        self.request.store(generation, Ordering::Release);
        crash_point!("party.asked");
        tell(requests);
        crash_point!("party.told");
        generation
    }

    /// The generation that asks next.
    pub fn next_generation(&self) -> u64 {
        // 56 bits of it fit beside a verdict: more attaches than a region can see.
        // A damaged one may be the highest there is; 0 is nobody's.
        (self.request.load(Ordering::Relaxed).wrapping_add(1) & (u64::MAX >> 8)).max(1)
    }

    /// The generation that asks, 0 if none ever did.
    pub fn request(&self) -> u64 {
        // ORDERING [J1]: Acquire; pairs with the Release in `ask`.
        self.request.load(Ordering::Acquire)
    }

    /// A worker's cursor in this page is its own from now on.
    pub fn begin(&self, generation: u64) {
        // ORDERING [J3]: Release; pairs with the Acquire in `has_begun`. Who sees that it has begun sees a
        // cursor of this generation.
        self.begun.store(generation, Ordering::Release);
        crash_point!("party.begun");
    }

    /// Whether the cursor in this page is that of `generation`.
    #[inline]
    pub fn has_begun(&self, generation: u64) -> bool {
        // ORDERING [J3]: Acquire; pairs with the Release in `begin`.
        self.begun.load(Ordering::Acquire) == generation
    }

    /// Says that the party of `generation` has left; its last cursor was stored before.
    pub fn leave(&self, generation: u64, requests: &AtomicU32) {
        // ORDERING [J4]: Release; pairs with the Acquire in `has_left`: its last cursor is visible.
        self.left.store(generation, Ordering::Release);
        crash_point!("party.left");
        tell(requests);
    }

    /// Whether the party of `generation` has left.
    pub fn has_left(&self, generation: u64) -> bool {
        // ORDERING [J4]: Acquire; pairs with the Release in `leave`.
        self.left.load(Ordering::Acquire) == generation
    }
}

impl Default for Party {
    fn default() -> Self {
        Self::new()
    }
}

/// Moves a word that says "look at the pages".
pub(crate) fn tell(requests: &AtomicU32) {
    // ORDERING [J5]: Release; pairs with the Acquire in `Bells::requests`: the request is visible to whoever
    // sees the word moved.
    requests.fetch_add(1, Ordering::Release);
}

/// A worker's pages.
#[repr(C)]
// In a model it is no page, but lies on small stacks.
#[cfg_attr(not(loom), repr(align(4096)))]
#[derive(Debug, Default)]
pub struct WorkerPage {
    /// The next index that it will look at, and what goes with it.
    pub cursor: Cursor,
    /// Who it is.
    pub party: Padded<Party>,
    /// What is to be done when it holds the others up; its own choice, made before it begins.
    pub policy: Padded<Policy>,
    /// How far it is with its reports, where workers that differ are stopped.
    pub pace: Padded<Pace>,
    /// What it says of itself.
    pub reports: Reports<REPORTS>,
    /// What it says of the disk, if it is a journal.
    pub journal: Padded<JournalWords>,
}

/// The worker is no journal.
pub const NO_JOURNAL: u64 = 0;
/// It is one whose gate falls with it, as any worker's.
pub const PASSING_JOURNAL: u64 = 1;
/// It is one whose gate stays when it dies, until another one takes it up, or who orders gives it up.
pub const KEPT_JOURNAL: u64 = 2;

/// What a journal says of the disk.
#[repr(C)]
#[derive(Debug)]
pub struct JournalWords {
    /// [`NO_JOURNAL`], [`PASSING_JOURNAL`] or [`KEPT_JOURNAL`]: stored before the request, by whoever asks for this page.
    pub role: AtomicU64,
    /// All before this index is on the disk, for good.
    pub durable: AtomicU64,
    /// All before this index is written.
    pub written: AtomicU64,
    /// When what is written is synced, as the journal's options encode it.
    pub sync: AtomicU64,
    /// Since when it cannot write, by the monotonic clock in nanoseconds; 0 is not at all.
    pub failing_ns: AtomicU64,
    /// How often it has synced.
    pub syncs: AtomicU64,
    /// Its directory has all from this index on; [`UNKNOWN_SINCE`] until it says so.
    pub since: AtomicU64,
}

/// A journal has not said yet what it has.
pub const UNKNOWN_SINCE: u64 = u64::MAX;

impl JournalWords {
    /// Whether the gate of this page's journal outlives it.
    #[inline]
    pub fn is_kept(&self) -> bool {
        // Relaxed: `request` hands it over (J1), and who is live has asked.
        self.role.load(Ordering::Relaxed) == KEPT_JOURNAL
    }
}

impl Default for JournalWords {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        JournalWords {
            role: zero(),
            durable: zero(),
            written: zero(),
            sync: zero(),
            failing_ns: zero(),
            syncs: zero(),
            since: zero(),
        }
    }
}

/// When a worker is to be killed: if it is so far behind and has not moved for so long. A time of 0 is never.
#[repr(C)]
#[derive(Debug)]
pub struct Policy {
    /// How many commands.
    pub lag: AtomicU64,
    /// How long, in nanoseconds.
    pub time_ns: AtomicU64,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { lag: AtomicU64::new(0), time_ns: AtomicU64::new(0) }
    }
}

/// The first page of a lane.
#[repr(C)]
#[cfg_attr(not(loom), repr(align(4096)))]
#[derive(Debug, Default)]
pub struct LanePage {
    /// How far the producer may have written.
    pub claimed: Padded<Claimed>,
    /// Who it is.
    pub party: Padded<Party>,
    /// What it was refused.
    pub refused: Padded<Refused>,
    /// Its payloads that are too long for the lane.
    pub spills: Spills<SLOTS>,
}

/// What a producer was refused, for whoever looks on.
#[repr(C)]
#[derive(Debug)]
pub struct Refused {
    /// Since when it finds no room, by the monotonic clock in nanoseconds; 0 is not at all.
    pub full_ns: AtomicU64,
    /// The cell that it finds no room for: once that is in the order, `full_ns` says nothing more.
    pub full_at: AtomicU64,
    /// Commands that it had submitted before and wanted to submit again.
    pub duplicates: AtomicU64,
}

impl Default for Refused {
    fn default() -> Self {
        Refused { full_ns: AtomicU64::new(0), full_at: AtomicU64::new(0), duplicates: AtomicU64::new(0) }
    }
}

/// What all parties write.
#[repr(C)]
#[derive(Debug)]
pub struct Bells {
    /// The sequencer sleeps on this.
    pub sequencer: Bell,
    /// Workers and observers sleep on this.
    pub workers: Bell,
    /// Producers sleep on this, and parties that attach.
    pub producers: Bell,
    /// Who waits until a command is on the disk sleeps on this.
    pub durable: Bell,
    requests: Padded<AtomicU32>,
    wanted: Padded<AtomicU32>,
}

impl Bells {
    /// Nobody sleeps, nobody asks; what zeroed memory reads as.
    #[must_use]
    pub fn new() -> Self {
        Bells {
            sequencer: Bell::new(),
            workers: Bell::new(),
            producers: Bell::new(),
            durable: Bell::new(),
            requests: Padded(AtomicU32::new(0)),
            wanted: Padded(AtomicU32::new(0)),
        }
    }

    /// The word that parties move when they ask or leave.
    #[inline]
    pub fn requests_word(&self) -> &AtomicU32 {
        &self.requests
    }

    /// A number that moves when a party asks or leaves.
    #[inline]
    pub fn requests(&self) -> u32 {
        // ORDERING [J5]: Acquire; pairs with the Release in `tell`.
        self.requests.load(Ordering::Acquire)
    }

    /// Asks the sequencer to look at the gates: there is no room, or soon there will not be.
    #[inline]
    pub fn want_room(&self, want: Want) {
        // Relaxed: a hint; a producer that sleeps announces itself at its bell as well.
        if self.wanted.load(Ordering::Relaxed) < want as u32 {
            self.wanted.store(want as u32, Ordering::Relaxed);
        }
    }

    /// Whether a producer wants room, and did not when that was last taken.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// What a producer has wanted since the last time.
    #[inline]
    pub fn take_wanted(&self) -> Option<Want> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == 0 {
            return None;
        }
        self.wanted.store(0, Ordering::Relaxed);
        Some(if wanted == Want::Soon as u32 { Want::Soon } else { Want::Now })
    }
}

/// How much a producer wants room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// It has some left.
    Soon = 1,
    /// It found none.
    Now = 2,
}

impl Default for Bells {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<LaneEntry>() == 128 && size_of::<MemberEntry>() == 256);
    assert!(size_of::<WorkerPage>() == 3 * 4096 && size_of::<LanePage>() == 4096);
    assert!(size_of::<Padded<Party>>() == 128);
    assert!(size_of::<Control>() == 5 * 128 && size_of::<Bells>() == 10 * 128);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_request_is_followed_by_one_that_can_be_answered() {
        for damaged in [u64::MAX, u64::MAX >> 8, (u64::MAX >> 8) - 1, 0] {
            let (party, requests) = (Party::new(), AtomicU32::new(0));
            party.request.store(damaged, Ordering::Relaxed);
            let generation = party.ask(&requests);
            assert!(generation > 0 && generation == party.request());
            let answer = Answer::new();
            answer.give(generation, Verdict::Busy);
            assert_eq!(answer.get(generation), Some(Verdict::Busy));
        }
    }
}
