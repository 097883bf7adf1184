//! How a party comes in: lock a page of its own, write who it is, ask, wait for the sequencer's answer.
//!
//! The page is chosen by the party, the name is settled by the sequencer: that way two parties of one name are
//! impossible without any lock that a stopped process could hold against the others. The page's lock itself
//! says who lives; see [`liveness`](crate::liveness).

use std::time::{Duration, Instant};

use seriatim_ring::control::{Answer, NO_JOURNAL, Party, ProducerRole, Verdict};
use seriatim_ring::parts::Address;
use seriatim_ring::sync::Ordering;
use seriatim_ring::wake::FOR_WORK;

use crate::crash_point;
use crate::error::{AttachError, HeldBy};
use crate::liveness::{Lock, Role};
use crate::name::Name;
use crate::process::Process;
use crate::region::Region;
use crate::region::snapshot::State;
use crate::wait::{self, Idle, Wait};

/// A party's place in the region.
#[derive(Debug)]
pub(crate) struct Seat {
    /// The index of its page: a lane or a worker slot.
    pub(crate) index: u16,
    /// The generation that the sequencer granted.
    pub(crate) generation: u64,
    /// Falls with the party.
    pub(crate) _lock: Lock,
}

/// What one kind of party has for pages.
pub(crate) trait Kind {
    /// Producer or worker, for messages.
    const WHAT: &'static str;
    /// The indexes of its pages.
    fn indexes(region: &Region) -> std::ops::RangeInclusive<u16>;
    /// The lock of a page.
    fn role(index: u16) -> Role;
    /// What it holds besides, to be told from its predecessor.
    fn generation_role(index: u16, generation: u64) -> Option<Role>;
    /// Who writes the page.
    fn party(region: &Region, index: u16) -> &Party;
    /// Where the sequencer answers.
    fn answer(region: &Region, index: u16) -> &Answer;
    /// The name that the place belongs to, if it belongs to one.
    fn owner(region: &Region, index: u16) -> Option<Name>;
    /// What it asks for beside a place and a name.
    type Wish: Copy;
    /// Writes that, into the page that it has locked.
    fn wish(region: &Region, index: u16, wish: Self::Wish);
    /// Whether who has what is wished for lives, as far as is known.
    fn is_held(_: &Region, _: u16, _: Self::Wish) -> bool {
        true
    }
    /// Whether a place whose owner died is not to be had by others: a journal's gate outlives it.
    fn is_kept(_: &Region, _: u16) -> bool {
        false
    }
    /// Whether it takes up what is kept under its own name.
    const TAKES_UP: bool = false;
    /// The sequencer does not grant that.
    fn refused(region: &Region, name: Name, index: u16, wish: Self::Wish) -> AttachError;
}

/// Producers sit on lanes.
pub(crate) struct OnLane;

impl Kind for OnLane {
    const WHAT: &'static str = "producer";

    fn indexes(region: &Region) -> std::ops::RangeInclusive<u16> {
        1..=region.geometry().producers as u16
    }

    fn role(index: u16) -> Role {
        Role::Lane(index)
    }

    fn generation_role(_: u16, _: u64) -> Option<Role> {
        // It gates nobody, so nobody asks whether a predecessor has died.
        None
    }

    fn party(region: &Region, index: u16) -> &Party {
        &region.map().lane_page(index).party
    }

    fn answer(region: &Region, index: u16) -> &Answer {
        &region.map().lane_entry(index).answer
    }

    fn owner(region: &Region, index: u16) -> Option<Name> {
        let entry = region.map().lane_entry(index);
        (entry.number.load(Ordering::Relaxed) > 0).then(|| Name::from_words(entry.name.load()))
    }

    type Wish = ProducerRole;

    fn wish(region: &Region, index: u16, role: ProducerRole) {
        Self::party(region, index).role.store(role.code(), Ordering::Relaxed);
    }

    fn refused(region: &Region, name: Name, lane: u16, wanted: ProducerRole) -> AttachError {
        let code = region.map().lane_entry(lane).role.load(Ordering::Relaxed);
        let found = ProducerRole::of_code(code).unwrap_or_default();
        AttachError::OtherRole { path: region.path().into(), name, found, wanted }
    }
}

/// Workers sit on worker pages.
pub(crate) struct OnWorkerPage;

impl Kind for OnWorkerPage {
    const WHAT: &'static str = "worker";

    fn indexes(region: &Region) -> std::ops::RangeInclusive<u16> {
        0..=region.geometry().workers as u16 - 1
    }

    fn role(index: u16) -> Role {
        Role::Worker(index)
    }

    fn generation_role(slot: u16, generation: u64) -> Option<Role> {
        Some(Role::Member { slot, generation })
    }

    fn party(region: &Region, index: u16) -> &Party {
        &region.map().worker_page(index).party
    }

    fn answer(region: &Region, index: u16) -> &Answer {
        &region.map().members()[usize::from(index)].answer
    }

    fn owner(region: &Region, index: u16) -> Option<Name> {
        let member = &region.map().members()[usize::from(index)];
        (member.number.load(Ordering::Relaxed) > 0).then(|| Name::from_words(member.name.load()))
    }

    /// What is to reach it alone.
    type Wish = Address;

    fn wish(region: &Region, index: u16, address: Address) {
        Self::party(region, index).address.store(address.code().into(), Ordering::Relaxed);
        // What a journal that sat here before said.
        region.map().worker_page(index).journal.role.store(NO_JOURNAL, Ordering::Relaxed);
    }

    fn is_kept(region: &Region, index: u16) -> bool {
        let member = &region.map().members()[usize::from(index)];
        member.is_live() && region.map().worker_page(index).journal.is_kept()
    }

    fn is_held(region: &Region, index: u16, wanted: Address) -> bool {
        Process::of(Self::party(region, holder_of_rank(region, index, wanted))).lives()
    }

    fn refused(region: &Region, _: Name, index: u16, wanted: Address) -> AttachError {
        let (path, rank) = (region.path().into(), wanted.as_rank().unwrap_or_default());
        let party = Self::party(region, holder_of_rank(region, index, wanted));
        let (holder, pid) = (Name::from_words(party.name.load()), Process::of(party).pid);
        AttachError::RankTaken { path, rank, holder, pid }
    }
}

/// The slot of the worker that has the rank which the one at `index` wants; that one itself if there is none any more.
fn holder_of_rank(region: &Region, index: u16, wanted: Address) -> u16 {
    let has = |slot: &u16| {
        let member = &region.map().members()[usize::from(*slot)];
        *slot != index && member.is_live() && member.address() == wanted
    };
    OnWorkerPage::indexes(region).find(has).unwrap_or(index)
}

/// How long the lock of one who seems to be dying is waited for, and one who has locked a place and does not ask for it.
const LINGER: Duration = Duration::from_millis(100);

/// Takes a place under a name.
pub(crate) fn take_seat<K: Kind>(
    region: &Region,
    name: Name,
    wish: K::Wish,
    timeout: Duration,
) -> Result<Seat, AttachError> {
    let deadline = wait::after(timeout);
    let (linger, overdue) = (wait::after(timeout.min(LINGER)), wait::after(LINGER));
    let mut idle = Idle::new(Wait::Park);
    let mut was_busy = false;
    loop {
        if let Some(poison) = region.poison() {
            return Err(AttachError::Poisoned { path: region.path().into(), poison });
        }
        for index in candidates::<K>(region, name, wait::is_over(overdue)) {
            if !K::TAKES_UP && K::is_kept(region, index) {
                // It is that of a journal which died, and another journal's to take up.
                return Err(name_taken::<K>(region, name));
            }
            region.make_writable(K::WHAT, &[part_of::<K>(index)])?;
            let lock = lock::<K>(region, index).map_err(AttachError::io(region.path(), "lock"))?;
            let Some(lock) = lock else {
                // Somebody sits there, or was faster; if it has this name, the search ends here.
                let patience = match holder::<K>(region, index, name) {
                    Holder::Other => None,
                    Holder::Living => return Err(name_taken::<K>(region, name)),
                    Holder::Leaving => Some(deadline),
                    Holder::Dying => Some(linger),
                };
                if patience.is_some_and(wait::is_over) {
                    return Err(name_taken::<K>(region, name));
                }
                continue;
            };
            crash_point!("attach.locked");
            let generation = ask::<K>(region, index, name, wish);
            crash_point!("attach.asked");
            match await_answer::<K>(region, index, generation, deadline) {
                Some(Verdict::Granted) => {
                    crash_point!("attach.granted");
                    return Ok(Seat { index, generation, _lock: lock });
                }
                Some(Verdict::NameTaken) => return Err(name_taken::<K>(region, name)),
                Some(Verdict::Busy) => was_busy = true,
                // Its lock may outlive it for a moment.
                Some(Verdict::RankTaken) if !wait::is_over(linger) && !K::is_held(region, index, wish) => {
                    was_busy = true;
                }
                Some(Verdict::OtherRole | Verdict::RankTaken) => {
                    return Err(K::refused(region, name, index, wish));
                }
                None if region.check().is_err() => return Err(lost(region)),
                None if region.state() == State::Poisoned => continue,
                None if was_busy => break,
                None => return Err(no_answer(region, timeout)),
            }
        }
        if wait::is_over(deadline) {
            return Err(full::<K>(region, timeout));
        }
        if idle.step() {
            // What keeps the places busy is not announced anywhere: look again soon.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn part_of<K: Kind>(index: u16) -> crate::region::layout::Part {
    match K::role(index) {
        Role::Worker(slot) => crate::region::layout::Part::Worker(slot),
        _ => crate::region::layout::Part::Lane(index),
    }
}

/// Locks a place, for the generation that asks next.
fn lock<K: Kind>(region: &Region, index: u16) -> std::io::Result<Option<Lock>> {
    let Some(lock) = Lock::take(region.file(), K::role(index))? else { return Ok(None) };
    let role = K::generation_role(index, K::party(region, index).next_generation());
    let taken = role.map_or(Ok(true), |role| lock.take_also(role))?;
    Ok(taken.then_some(lock))
}

/// Places to try: that of the same name alone if there is one, else those that never had an owner, and only if there
/// are none, those whose owner is gone. One that never had an owner may be locked by another who asks for it: it is
/// waited for until that one is `overdue`, for whoever comes back under its name is to find its place.
fn candidates<K: Kind>(region: &Region, name: Name, overdue: bool) -> Vec<u16> {
    let own = K::indexes(region).find(|&i| K::owner(region, i) == Some(name));
    if let Some(index) = own {
        return vec![index];
    }
    let kept = |&i: &u16| K::is_kept(region, i);
    let (fresh, used): (Vec<u16>, Vec<u16>) =
        K::indexes(region).partition(|&i| K::owner(region, i).is_none());
    let places = if fresh.is_empty() || overdue { [fresh, used].concat() } else { fresh };
    places.into_iter().filter(|i| !kept(i) && !region.is_alive(K::role(*i))).collect()
}

/// Who holds the lock of a place.
enum Holder {
    /// One of another name.
    Other,
    /// One of this name that has let go: only a child that its process was starting then has the lock, until it runs. Or
    /// one that the kernel is ending, however long that takes where processors are short.
    Leaving,
    /// One of this name.
    Living,
    /// One of this name that is dead, with such a child; or in another pid namespace.
    Dying,
}

fn holder<K: Kind>(region: &Region, index: u16, name: Name) -> Holder {
    let party = K::party(region, index);
    if K::owner(region, index) != Some(name) || party.name.load() != name.words() {
        return Holder::Other;
    }
    match party.request() {
        generation if party.has_left(generation) => Holder::Leaving,
        _ if Process::of(party).lives() => Holder::Living,
        _ if Process::of(party).is_ending() => Holder::Leaving,
        _ => Holder::Dying,
    }
}

/// Whether a living party has a name, as far as can be said without asking for it: for who begins with something long before
/// it asks.
pub(crate) fn check_name<K: Kind>(region: &Region, name: Name) -> Result<(), AttachError> {
    let own = K::indexes(region).find(|&i| K::owner(region, i) == Some(name));
    let lives = |i| region.is_alive(K::role(i)) && matches!(holder::<K>(region, i, name), Holder::Living);
    if own.is_some_and(lives) { Err(name_taken::<K>(region, name)) } else { Ok(()) }
}

fn name_taken<K: Kind>(region: &Region, name: Name) -> AttachError {
    let holder = K::indexes(region).find(|&i| K::owner(region, i) == Some(name));
    let pid = holder.map_or(0, |i| K::party(region, i).pid.load(Ordering::Relaxed) as u32);
    AttachError::NameTaken { path: region.path().into(), what: K::WHAT, name, pid }
}

/// Writes who asks and asks.
fn ask<K: Kind>(region: &Region, index: u16, name: Name, wish: K::Wish) -> u64 {
    let (party, bells) = (K::party(region, index), region.map().bells());
    party.name.store(name.words());
    K::wish(region, index, wish);
    let Process { pid, started } = Process::this();
    party.pid.store(pid.into(), Ordering::Relaxed);
    party.started.store(started, Ordering::Relaxed);
    crash_point!("attach.written");
    let generation = party.ask(bells.requests_word());
    wait::wake_sequencer(bells, FOR_WORK);
    generation
}

fn await_answer<K: Kind>(
    region: &Region,
    index: u16,
    generation: u64,
    deadline: Option<Instant>,
) -> Option<Verdict> {
    let mut idle = Idle::new(Wait::Park);
    let answer = K::answer(region, index);
    loop {
        let verdict = answer.get(generation);
        if verdict.is_some() {
            return verdict;
        }
        if wait::is_over(deadline) || region.state() == State::Poisoned {
            return None;
        }
        if idle.step() {
            let bell = &region.map().bells().producers;
            let woken = wait::sleep(bell, FOR_WORK, deadline, || answer.get(generation).is_some());
            if !woken && region.check().is_err() {
                return None;
            }
        }
    }
}

/// The file was shortened.
fn lost(region: &Region) -> AttachError {
    let (expected, found) = (region.map().bytes(), region.file().metadata().map_or(0, |file| file.len()));
    AttachError::Length { path: region.path().into(), found, expected }
}

fn no_answer(region: &Region, waited: Duration) -> AttachError {
    let path = region.path().into();
    match region.order_held_by() {
        Some(HeldBy::NoSequencer) => AttachError::NoSequencer { path, state: region.state(), waited },
        held => {
            let pid = region.sequencer_pid();
            let held = held.unwrap_or(HeldBy::Sequencer { pid });
            AttachError::TimedOut { path, pid, waited, held }
        }
    }
}

/// Every place is taken, or what its former owner left is not passed yet.
fn full<K: Kind>(region: &Region, waited: Duration) -> AttachError {
    if !region.is_alive(Role::Sequencer) {
        return no_answer(region, waited);
    }
    let living: Vec<_> = K::indexes(region).filter(|&i| region.is_alive(K::role(i))).collect();
    let limit = K::indexes(region).count() as u64;
    if (living.len() as u64) < limit {
        let (path, pid) = (region.path().into(), region.sequencer_pid());
        return AttachError::TimedOut { path, pid, waited, held: region.held_by_worker() };
    }
    let holder = |i: u16| {
        let party = K::party(region, i);
        (Name::from_words(party.name.load()), party.pid.load(Ordering::Relaxed) as u32)
    };
    let holders = living.into_iter().map(holder).collect();
    AttachError::Full { path: region.path().into(), what: K::WHAT, limit, holders }
}
