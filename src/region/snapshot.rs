//! [`Snapshot`]: all that can be seen of a region at a glance, without touching it.

use std::fmt;
use std::time::Duration;

use seriatim_ring::Seq;
use seriatim_ring::control::{self, CLOSED, CLOSING, EXHAUSTED, LaneEntry, LanePage, POISONED, Party};
use seriatim_ring::event::{OWN_CELLS, OWN_LANE};
use seriatim_ring::sequencer::{gate, published};
use seriatim_ring::sync::{AtomicU64, Ordering};

use super::Region;
use super::file::FileState;
use crate::Digest;
use crate::agreement::Agreement;
use crate::barrier::Behind;
use crate::error::HeldBy;
use crate::error_log::ErrorLog;
use crate::liveness::Role;
use crate::name::Name;
use crate::poison::Poisoned;
use crate::policy::WorkerPolicy;
use crate::process::Process;
use crate::sequencer::Load;
use crate::sys;

/// Whether the order takes submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It does.
    Open,
    /// No longer; what was submitted is being ordered.
    Closing,
    /// The end is in the order.
    Closed,
    /// The last index is used up.
    Exhausted,
    /// It was ended for good, for workers differ.
    Poisoned,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Open => "open",
            State::Closing => "closing",
            State::Closed => "closed",
            State::Exhausted => "exhausted",
            State::Poisoned => "poisoned",
        })
    }
}

/// Who a party is.
#[derive(Clone, Debug)]
pub struct PartyStatus {
    /// Its name; empty for a sequencer.
    pub name: String,
    /// Its process, as it says itself.
    pub pid: u32,
    /// Whether its lock is held: it lives, though it may be stopped.
    pub alive: bool,
    /// Whether the sequencer counts it in.
    pub attached: bool,
    /// It lives, has something to do, and has not moved for a second: it may be stopped, slow or stuck. That is
    /// not a death, and nothing is taken from it.
    pub suspect: bool,
    /// Whether it has the region locked in memory; `None` if it is dead, or the kernel does not tell.
    pub locked: Option<bool>,
    /// The CPU on which its process's first thread ran last, by the kernel's number; `None` if it is dead, or the
    /// kernel does not tell.
    pub cpu: Option<u64>,
}

/// A producer's lane.
#[derive(Clone, Debug)]
pub struct ProducerStatus {
    /// Index of its lane.
    pub slot: u16,
    /// The producer's number.
    pub number: u64,
    /// Who it is.
    pub party: PartyStatus,
    /// Per-producer index of its next command to be ordered.
    pub next: u64,
    /// Per-producer index before which its room is free again.
    pub released: u64,
    /// It queued a ticket that could not be right and is no longer heard.
    pub fenced: bool,
    /// For how long it has found no room: it waits for some, or was refused and has submitted nothing since. `None`
    /// if it has found some, is gone, or has nothing outstanding.
    pub full_for: Option<Duration>,
    /// How many commands it wanted to submit that it had submitted before
    /// ([`SubmitError::Duplicate`](crate::SubmitError::Duplicate)).
    pub duplicates: u64,
    /// What it has outstanding of payloads that are too long for its lane.
    pub spilled: Spilled,
}

/// What a lane has outstanding beside it: claimed, and not given back yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    /// How many payloads.
    pub count: u64,
    /// The bytes of the pages that are reserved for them.
    pub bytes: u64,
}

/// A worker.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// Its slot.
    pub slot: u16,
    /// The member's number.
    pub number: u64,
    /// Its rank, if it has one.
    pub rank: Option<u16>,
    /// Who it is.
    pub party: PartyStatus,
    /// Its cursor: everything before it is done.
    pub next: Seq,
    /// How many published commands it has not passed.
    pub lag: u64,
    /// The digest of all before its cursor; `None` if it moved too fast to be read whole.
    pub digest: Option<Digest>,
    /// For how long it has had something to do and has not moved, as the sequencer saw it; 0 while it moves, has
    /// nothing to do, or nobody looks.
    pub stuck_for: Duration,
    /// What is to be done when it holds the others up.
    pub policy: WorkerPolicy,
    /// It is the slowest: what it has not passed is not free for anybody.
    pub gating: bool,
}

/// What a region looks like at a glance. Each number was read once; they are not of one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Whether the order takes submits.
    pub state: State,
    /// How often a sequencer has taken over, the first time included.
    pub epoch: u64,
    /// The next index.
    pub next: Seq,
    /// How many runs the order has.
    pub runs: u64,
    /// Everything before this is free.
    pub anchor: Seq,
    /// The digest of all before the anchor.
    pub anchor_digest: Option<Digest>,
    /// Tickets that are in and not taken.
    pub tickets_waiting: u64,
    /// The sequencer, if there ever was one.
    pub sequencer: Option<PartyStatus>,
    /// The parties of its process make turns for the sequencer, if it lives, for there is this load on its CPUs; see
    /// [`SequencerConfig::assist`](crate::SequencerConfig::assist).
    pub helped: Option<Load>,
    /// Producers, dead or alive, that own a lane.
    pub producers: Vec<ProducerStatus>,
    /// Workers that gate or are alive.
    pub workers: Vec<WorkerStatus>,
    /// Who or what holds others up, if anything does: the order as a whole, or producers that find no room.
    pub held_by: Option<HeldBy>,
    /// What the workers' reports come to.
    pub agreement: Agreement,
    /// That it was ended because they differ.
    pub poison: Option<Poisoned>,
    /// The workers whose reports others wait for; see [`Region::awaited`].
    pub awaited: Vec<Behind>,
    /// What became of the region's file.
    pub file: FileState,
    /// What went wrong so far.
    pub errors: ErrorLog,
}

/// Who has not moved for so long, although there is something to do, is suspect.
const SUSPECT: Duration = Duration::from_secs(1);

impl Snapshot {
    /// The slowest worker, as the one who holds up whoever waits for room, or that there is none.
    #[must_use]
    pub fn gate(&self) -> HeldBy {
        let Some(worker) = self.workers.iter().find(|worker| worker.gating) else { return HeldBy::NoWorker };
        let WorkerStatus { slot, lag, party, .. } = worker;
        HeldBy::Worker { slot: *slot, name: Name::cut(&party.name), pid: party.pid, lag: *lag }
    }

    /// Everybody who is alive, as text.
    #[must_use]
    pub fn living(&self) -> Vec<String> {
        let named = |what: &str, p: &PartyStatus| {
            p.alive
                .then(|| if p.name.is_empty() { what.into() } else { format!("{what} {:?}", p.name) })
                .map(|text: String| format!("{text} (pid {})", p.pid))
        };
        let sequencer = self.sequencer.iter().filter_map(|p| named("sequencer", p));
        let producers = self.producers.iter().filter_map(|p| named("producer", &p.party));
        let workers = self.workers.iter().filter_map(|w| named("worker", &w.party));
        sequencer.chain(producers).chain(workers).collect()
    }
}

impl Region {
    /// Reads what can be seen of the region: needs read rights only, gates nobody, changes nothing.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let map = self.map();
        let control = map.control();
        let (next, runs) = published(control);
        let anchor = read_pair(|| control.anchor.load());
        let consumed = control.published.consumed.load(Ordering::Relaxed);
        let epoch = control.reign.epoch.load(Ordering::Relaxed);
        let tickets_waiting = map.tickets().tail(consumed).wrapping_sub(consumed);
        let has_tickets = tickets_waiting > 0;
        let producers: Vec<_> = (1..=self.geometry().producers as u16)
            .filter_map(|lane| self.producer_status(lane, has_tickets))
            .collect();
        let sequencer = (epoch > 0).then(|| self.sequencer_status(has_tickets));
        let is_late = sequencer.as_ref().is_some_and(|party| party.suspect);
        let is_full = producers.iter().any(|producer| producer.full_for.is_some());
        // Nobody serves an order that is closed, and nobody minds. What has not come into one that is poisoned never will.
        let (state, poison) = (self.state(), self.poison());
        let is_over = matches!(state, State::Closed | State::Exhausted);
        let is_held = has_tickets || is_full || !is_over;
        Snapshot {
            state,
            epoch,
            next,
            runs,
            anchor: anchor.map_or(control.anchor.position(), |(at, _)| at),
            anchor_digest: anchor.map(|(_, [digest, ..])| Digest(digest)),
            tickets_waiting,
            helped: sequencer.as_ref().filter(|party| party.alive).and_then(|_| self.helped()),
            sequencer,
            producers,
            workers: self.worker_statuses(next),
            held_by: self.held_by(is_late, is_full).filter(|_| is_held && state != State::Poisoned),
            agreement: self.agreement(),
            poison,
            awaited: self.awaited(),
            file: self.file_state(),
            errors: self.errors(),
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.map().control().reign.state() {
            CLOSING => State::Closing,
            CLOSED => State::Closed,
            EXHAUSTED => State::Exhausted,
            POISONED => State::Poisoned,
            _ => State::Open,
        }
    }

    fn sequencer_status(&self, has_work: bool) -> PartyStatus {
        let alive = self.is_alive(Role::Sequencer);
        let looked = self.map().control().pulse.looked_ns.load(Ordering::Relaxed);
        // A time that is still to come is that of another clock, and says nothing for it.
        let is_late = age(looked).is_none_or(|age| age >= SUSPECT);
        let suspect = alive && has_work && is_late;
        let process = self.sequencer_process();
        let locked = if alive { self.is_locked_by(process) } else { None };
        PartyStatus {
            name: String::new(),
            pid: self.sequencer_pid(),
            alive,
            attached: alive,
            suspect,
            locked,
            cpu: if alive { process.last_cpu() } else { None },
        }
    }

    fn helped(&self) -> Option<Load> {
        Load::from_word(self.map().control().pulse.helped.load(Ordering::Relaxed))
    }

    pub(crate) fn sequencer_pid(&self) -> u32 {
        self.map().control().reign.pid.load(Ordering::Relaxed)
    }

    /// Whether all that are left have let go, or are ending: then it is a matter of time until they are gone. A child that
    /// is being started has its parent's locks until it runs.
    pub(crate) fn is_being_left(&self) -> bool {
        let map = self.map();
        let leaves = |role: Role, party: &Party| {
            !self.is_alive(role) || party.has_left(party.request()) || Process::of(party).is_ending()
        };
        let sequencer = self.sequencer_process();
        (!self.is_alive(Role::Sequencer) || sequencer.started == 0 || sequencer.is_ending())
            && (1..=self.geometry().producers as u16)
                .all(|lane| leaves(Role::Lane(lane), &map.lane_page(lane).party))
            && (0..self.geometry().workers as u16)
                .all(|slot| leaves(Role::Worker(slot), &map.worker_page(slot).party))
    }

    /// The sequencer's process, as it says itself.
    pub(crate) fn sequencer_process(&self) -> Process {
        let reign = &self.map().control().reign;
        Process { pid: self.sequencer_pid(), started: reign.started.load(Ordering::Relaxed) }
    }

    fn party_status(&self, party: &Party, name: Name, role: Role, attached: bool) -> PartyStatus {
        let process = Process::of(party);
        let pid = process.pid;
        let alive = self.is_alive(role);
        let locked = if alive { self.is_locked_by(process) } else { None };
        let cpu = if alive { process.last_cpu() } else { None };
        PartyStatus { name: name.to_string(), pid, alive, attached, suspect: false, locked, cpu }
    }

    fn producer_status(&self, lane: u16, has_tickets: bool) -> Option<ProducerStatus> {
        let entry = self.map().lane_entry(lane);
        let number = entry.number.load(Ordering::Relaxed);
        let base = entry.base.load(Ordering::Relaxed);
        let from_base = |cell: &AtomicU64| cell.load(Ordering::Relaxed).wrapping_sub(base);
        let page = self.map().lane_page(lane);
        let full_ns = page.refused.full_ns.load(Ordering::Relaxed);
        (number > 0).then(|| {
            let name = Name::from_words(entry.name.load());
            let party = self.party_status(&page.party, name, Role::Lane(lane), true);
            let (next, freed) = (from_base(&entry.ordered), from_base(&entry.released));
            // What has nothing outstanding has all the room there is, whatever it found when it last looked.
            let is_waiting = (from_base(&page.refused.full_at).wrapping_sub(next) as i64) >= 0;
            let is_full = full_ns > 0 && is_waiting && party.alive && (next != freed || has_tickets);
            ProducerStatus {
                slot: lane,
                number,
                party,
                next,
                // What a former owner of the lane had outstanding lies before the base.
                released: (freed as i64).max(0) as u64,
                fenced: entry.fenced.load(Ordering::Relaxed) != 0,
                full_for: is_full.then(|| age(full_ns).unwrap_or_default()),
                duplicates: page.refused.duplicates.load(Ordering::Relaxed),
                spilled: spilled(page, entry, self.geometry().spill_bytes),
            }
        })
    }

    fn worker_statuses(&self, next: Seq) -> Vec<WorkerStatus> {
        let slowest = self.slowest_worker().map(|(slot, _)| slot);
        let watched = self.is_alive(Role::Sequencer);
        (0..self.geometry().workers as u16)
            .filter_map(|slot| {
                let (member, page) = (&self.map().members()[usize::from(slot)], self.map().worker_page(slot));
                let attached = member.state.load(Ordering::Relaxed) == control::LIVE;
                let name = if attached { member.name.load() } else { page.party.name.load() };
                let mut party =
                    self.party_status(&page.party, Name::from_words(name), Role::Worker(slot), attached);
                let cursor = if attached { gate(member, page) } else { next };
                let digest = read_pair(|| page.cursor.load()).filter(|(at, _)| *at == cursor);
                let digest = digest.map(|(_, [digest, _])| Digest(digest));
                let (number, gating) = (member.number.load(Ordering::Relaxed), slowest == Some(slot));
                let lag = next.since(cursor);
                // As the sequencer saw it, not by the clock: a pause of the sequencer counts against nobody.
                let stood = Duration::from_nanos(member.stood_ns.load(Ordering::Relaxed));
                let stuck_for = if attached && watched && lag > 0 { stood } else { Duration::ZERO };
                party.suspect = party.alive && stuck_for >= SUSPECT;
                (attached || party.alive).then_some(WorkerStatus {
                    slot,
                    number,
                    rank: if attached { member.address().as_rank() } else { None },
                    party,
                    next: cursor,
                    lag,
                    digest,
                    stuck_for,
                    policy: WorkerPolicy::load(&page.policy),
                    gating,
                })
            })
            .collect()
    }

    /// The live worker that has come least far.
    fn slowest_worker(&self) -> Option<(u16, Seq)> {
        let map = self.map();
        let gates = map.members().iter().zip(map.worker_pages()).enumerate();
        gates
            .filter(|(_, (member, _))| member.state.load(Ordering::Relaxed) == control::LIVE)
            .map(|(slot, (member, page))| (slot as u16, gate(member, page)))
            .min_by_key(|&(_, at)| at)
    }

    /// The slowest worker as a culprit, or that there is none.
    pub(crate) fn held_by_worker(&self) -> HeldBy {
        let Some((slot, at)) = self.slowest_worker() else { return HeldBy::NoWorker };
        let party = &self.map().worker_page(slot).party;
        HeldBy::Worker {
            slot,
            name: Name::from_words(self.map().members()[usize::from(slot)].name.load()),
            pid: party.pid.load(Ordering::Relaxed) as u32,
            lag: published(self.map().control()).0.since(at),
        }
    }

    /// Who holds others up: the order as a whole, or those who find no room.
    fn held_by(&self, is_late: bool, is_full: bool) -> Option<HeldBy> {
        let sequencer = || HeldBy::Sequencer { pid: self.sequencer_pid() };
        match self.order_held_by() {
            Some(by) => Some(by),
            None if is_full => Some(match self.held_by_worker() {
                // Everything is passed: the sequencer has yet to order more, or to free it.
                HeldBy::Worker { lag: 0, .. } => sequencer(),
                by => by,
            }),
            None => is_late.then(sequencer),
        }
    }

    /// What holds the order as a whole back: no sequencer, or an order ring or a lane of the sequencer that is
    /// full behind the slowest gate.
    pub(crate) fn order_held_by(&self) -> Option<HeldBy> {
        if !self.is_alive(Role::Sequencer) {
            return Some(HeldBy::NoSequencer);
        }
        let control = self.map().control();
        let oldest = read_pair(|| control.anchor.load()).map(|(_, [.., run])| run)?;
        let own = self.map().lane_entry(OWN_LANE);
        let own_cells =
            own.ordered.load(Ordering::Relaxed).wrapping_sub(own.released.load(Ordering::Relaxed));
        let full = published(control).1.wrapping_sub(oldest) >= self.geometry().order_slots
            || own_cells >= OWN_CELLS;
        full.then(|| self.held_by_worker())
    }
}

/// How long ago a time of the monotonic clock was; `None` if it is still to come.
fn age(at_ns: u64) -> Option<Duration> {
    sys::monotonic_ns().checked_sub(at_ns).map(Duration::from_nanos)
}

/// Reads a pair that may move meanwhile.
fn read_pair<T>(mut load: impl FnMut() -> Option<T>) -> Option<T> {
    (0..64).find_map(|_| load())
}

fn spilled(page: &LanePage, entry: &LaneEntry, area: u64) -> Spilled {
    // More than there can be are damage, of which `verify` tells.
    let Ok(spills) = page.spills.outstanding(entry) else { return Spilled::default() };
    spills.fold(Spilled::default(), |Spilled { count, bytes }, (_, spill)| {
        let range = spill.range(area);
        Spilled { count: count + 1, bytes: bytes + range.end - range.start }
    })
}
