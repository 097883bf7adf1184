//! [`Fold`]: following the order through the lanes, cell by cell, with the chain digest.

use std::sync::Arc;

use seriatim_ring::Seq;
use seriatim_ring::control::{LaneEntry, ProducerRole};
use seriatim_ring::digest::{Place, fold_at};
use seriatim_ring::event::{self, Event as Own, OWN_LANE, WORDS};
use seriatim_ring::gate::Past;
use seriatim_ring::incarnations::{Current, HELLO, HELLO_BYTES, Hello, INITIALIZED, RESERVED};
use seriatim_ring::lane::{BadCell, Entry, Lane, Owner};
use seriatim_ring::order::{Fault, Follower, Step};
use seriatim_ring::parts::{Address, Span};
use seriatim_ring::sync::{AtomicU64, Ordering};

use crate::config::DigestOf;
use crate::event::Command;
use crate::fork::Alarm;
use crate::parts::{self, View};
use crate::payload::{self, payload_digest};
use crate::region::map::{Map, WordMap, WordsAt};
use crate::region::spill::{self, Unmapped};
use crate::{Digest, crash_point};

/// Something in the order or a lane that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt at index {seq}: {field} is {found}, expected {expected}")]
pub struct Corrupt {
    /// The index at which it was met.
    pub seq: Seq,
    /// Which field.
    pub field: &'static str,
    /// Its value.
    pub found: u64,
    /// What it had to be, or can be at most.
    pub expected: u64,
}

/// What keeps somebody from the next command.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum Stopped {
    /// Something that cannot be.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// Its payload could not be mapped.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
}

/// A command that was met and folded in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) seq: Seq,
    pub(crate) lane: u16,
    pub(crate) entry: Entry,
    pub(crate) owner: Owner,
    /// What it says, if it is one of the sequencer's own, of a kind that this version knows.
    pub(crate) own: Option<Own>,
    /// What it is to who walks here.
    pub(crate) said: Said,
    /// What of its payload is for who walks here.
    pub(crate) view: View,
    /// The digest of all before it.
    pub(crate) before: u64,
}

/// What a command is to who walks over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Something to be handed out.
    Command,
    /// The controller of its lane is current from here on.
    Hello(Hello),
    /// The current controller's initialization ends here.
    Initialized,
    /// It is for others than who walks here.
    Elsewhere,
    /// It comes from a controller that is not current: it has its index, and nobody gets it.
    Void,
}

impl Met {
    /// What is handed out of a user's command.
    pub(crate) fn command<'m>(&self, map: &'m Map, fold: &'m Fold) -> Command<'m> {
        let words = match &fold.opened {
            Some(spill) if self.entry.is_spilled() => spill.words(),
            _ => map.lane(self.lane).payload(&self.entry),
        };
        Command {
            seq: self.seq,
            producer: self.owner.number,
            index: self.owner.index(&self.entry),
            kind: self.entry.kind,
            payload: payload::part(words, self.view.body.range()),
            part: self.view.part.map(|span| payload::part(words, span.range())),
            address: self.entry.address(),
            digest: Digest(self.before),
        }
    }
}

/// Whose commands a lane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// The sequencer's.
    Own,
    /// Those of one who is always heard.
    Always,
    /// The current controller's.
    Current,
    /// Another controller's.
    Not,
    /// Nobody's who could have attached.
    Nobody,
}

/// A producer's command that was found and not gone past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    owner: Owner,
    entry: Entry,
    /// Where its payload begins.
    words: WordsAt,
}

/// A place in the order with the digest of all before it, and what one must know of lanes to go on.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    follower: Follower,
    digest: u64,
    /// Whether commands are folded in; without, the digest stays what it is.
    folds: bool,
    /// Who owns each lane, as of this place in the order.
    owners: Vec<Owner>,
    /// What for, by the code of its role.
    roles: Vec<u64>,
    /// And whether that one is heard here.
    heard: Vec<Heard>,
    /// The controller that is.
    current: Current,
    /// How many ranks the region has, and that of who walks here.
    ranks: u16,
    rank: Option<u16>,
    /// Whether it notes in the region where an incarnation ended.
    notes_ends: bool,
    /// From this index on payloads are read, and not folded alone.
    reads_from: Seq,
    /// The payload that was met last, if it does not lie in its lane: mapped until somebody [closes](Self::close) it.
    opened: Option<Arc<WordMap>>,
}

impl Fold {
    /// Starts where a follower stands. The owners of lanes are what control says now: a lane changes hands only
    /// when all gates have passed its former owner's cells, so what control is ahead of the order concerns no
    /// command that is still to come.
    pub(crate) fn new(map: &Map, what: DigestOf, follower: Follower, [digest, current]: Past) -> Self {
        let roles = map.lane_entries().iter().map(|entry| entry.role.load(Ordering::Relaxed)).collect();
        let mut fold = Fold {
            follower,
            digest,
            folds: what != DigestOf::Off,
            owners: owners(map),
            roles,
            heard: Vec::new(),
            current: Current::from_word(current),
            ranks: map.ranks(),
            rank: None,
            notes_ends: false,
            reads_from: Seq::new(u64::MAX),
            opened: None,
        };
        fold.listen();
        fold
    }

    /// As one whose gate keeps what it has not passed: it notes where an incarnation ended.
    pub(crate) fn noting_ends(mut self) -> Self {
        self.notes_ends = true;
        self
    }

    /// As a worker, of a rank if it has one: it gets what is for that from its first index on, and reads it.
    pub(crate) fn of_worker(mut self, rank: Option<u16>, first: Seq) -> Self {
        (self.rank, self.reads_from) = (rank, first);
        self
    }

    /// Payloads are read from this index on.
    pub(crate) fn read_from(&mut self, first: Seq) {
        self.reads_from = first;
    }

    /// Its rank.
    pub(crate) fn rank(&self) -> Option<u16> {
        self.rank
    }

    /// Who is current at the next index.
    pub(crate) fn current(&self) -> Current {
        self.current
    }

    /// The producer that is.
    pub(crate) fn controller(&self) -> Option<u64> {
        let lane = usize::from(self.current.lane()?);
        self.owners.get(lane).map(|owner| owner.number)
    }

    /// What goes with the next index.
    #[inline]
    pub(crate) fn past(&self) -> Past {
        [self.digest, self.current.word()]
    }

    /// Whom to hear from here on.
    #[cold]
    fn listen(&mut self) {
        let heard = |(lane, &role): (u16, &u64)| match ProducerRole::of_code(role) {
            _ if lane == OWN_LANE => Heard::Own,
            Some(ProducerRole::Injector) => Heard::Always,
            Some(ProducerRole::Controller) if self.current.lane() == Some(lane) => Heard::Current,
            Some(ProducerRole::Controller) => Heard::Not,
            None => Heard::Nobody,
        };
        self.heard = (0..).zip(&self.roles).map(heard).collect();
    }

    #[inline]
    pub(crate) fn next(&self) -> Seq {
        self.follower.next()
    }

    #[inline]
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Whether the next command is published, or there is an error to meet.
    pub(crate) fn is_behind(&mut self, map: &Map) -> bool {
        !matches!(self.follower.peek(&map.order()), Ok(None))
    }

    /// Folds the next command, if it is published.
    #[inline]
    pub(crate) fn step(&mut self, map: &Map) -> Result<Option<Met>, Stopped> {
        self.step_as::<false>(map)
    }

    /// As [`step`](Self::step), for one whose gate keeps the command: with `CHECK` its payload must have the digest
    /// that its producer took.
    #[inline]
    pub(crate) fn step_as<const CHECK: bool>(&mut self, map: &Map) -> Result<Option<Met>, Stopped> {
        let seq = self.follower.next();
        let Some(step) = self.follower.peek(&map.order()).map_err(|fault| out_of_order(seq, fault))? else {
            return Ok(None);
        };
        let Step { lane, cell, .. } = step;
        let Some(owner) = self.owners.get(usize::from(lane)).copied() else {
            let expected = self.owners.len() as u64 - 1;
            return Err(Corrupt { seq, field: "lane", found: lane.into(), expected }.into());
        };
        let entry = map.lane(lane).read(cell).map_err(|bad| bad_cell(seq, bad))?;
        let own = if lane == OWN_LANE { read_own(map, &entry) } else { None };
        if map.is_hit() {
            // What was read is not what was there: who asks next is told.
            return Ok(None);
        }
        let said = self.hear(map, seq, lane, &entry)?;
        let view = match said {
            Said::Void | Said::Elsewhere => View::default(),
            _ if entry.is_spilled() => self.open_spill::<CHECK>(map, seq, lane, &entry)?,
            _ if entry.address() == Address::PARTS => {
                self.open_parts::<CHECK>(map.lane(lane).payload(&entry), seq, parts::in_lane(&entry))?
            }
            _ if CHECK => check_payload(map, seq, lane, &entry)?,
            _ => View::whole(parts::in_lane(&entry)),
        };
        if let Said::Hello(hello) = said {
            self.meet(map, seq, lane, hello);
        }
        if let Some(own) = &own {
            self.apply(own);
        }
        let before = self.digest;
        if self.folds {
            self.digest = owner.fold(before, &entry);
        }
        self.follower.advance();
        Ok(Some(Met { seq, lane, entry, owner, own, said, view, before }))
    }

    /// Folds commands of one producer and hands out each, up to `most` of them, as far as the current run and whole
    /// cells go; how many, or `None` if nothing is published. What else ends it is for [`step_as`](Self::step_as) to
    /// meet.
    #[inline]
    pub(crate) fn walk(
        &mut self,
        map: &Map,
        alarm: Alarm,
        most: u64,
        mut each: impl FnMut(Command<'_>),
    ) -> Option<u32> {
        self.walk_entries::<{ usize::MAX }>(map, alarm, most, |_, command| each(command))
    }

    /// As [`walk`](Self::walk), as far as no payload is longer than `LONGEST`; with what their cells say.
    #[inline]
    pub(crate) fn walk_entries<const LONGEST: usize>(
        &mut self,
        map: &Map,
        alarm: Alarm,
        most: u64,
        each: impl FnMut(&Entry, Command<'_>),
    ) -> Option<u32> {
        let Ok(step) = self.follower.peek(&map.order()) else { return Some(0) };
        let step = step?;
        // Asked once a walk, not for every command: a lane has one owner.
        let heard = self.heard.get(usize::from(step.lane));
        Some(match (heard, self.folds) {
            (Some(Heard::Always), true) => self.walk_as::<true, false, LONGEST>(map, step, alarm, most, each),
            (Some(Heard::Always), false) => {
                self.walk_as::<false, false, LONGEST>(map, step, alarm, most, each)
            }
            (Some(Heard::Current), true) => self.walk_as::<true, true, LONGEST>(map, step, alarm, most, each),
            (Some(Heard::Current), false) => {
                self.walk_as::<false, true, LONGEST>(map, step, alarm, most, each)
            }
            _ => 0,
        })
    }

    /// With `TELLS` the lane may have commands that tell something of its controller.
    #[inline]
    fn walk_as<const FOLD: bool, const TELLS: bool, const LONGEST: usize>(
        &mut self,
        map: &Map,
        Step { seq, lane, cell }: Step,
        alarm: Alarm,
        most: u64,
        mut each: impl FnMut(&Entry, Command<'_>),
    ) -> u32 {
        let Some(owner) = self.owners.get(usize::from(lane)).copied() else { return 0 };
        let lane = map.lane(lane);
        let most = most.min(self.follower.left().into()) as u32;
        let mut place = Place::of(owner.number, cell.wrapping_sub(owner.base));
        let mut walk = Walk { digest: self.digest, done: 0, fold: self };
        while walk.done < most {
            crash_point!("poll.next");
            let Some((entry, payload)) = read(&lane, cell.wrapping_add(walk.done.into())) else { break };
            if alarm.is_raised() {
                // This may be a child that was forked by who was handed the one before, or the bytes may be gone.
                break;
            }
            if TELLS && entry.kind >= RESERVED || payload.len() > LONGEST {
                break;
            }
            let command = Command {
                seq: seq.plus(walk.done.into()),
                producer: owner.number,
                index: entry.cell.wrapping_sub(owner.base),
                kind: entry.kind,
                payload,
                part: None,
                address: Address::ALL,
                digest: Digest(walk.digest),
            };
            if FOLD {
                walk.digest = fold_at(walk.digest, place, entry.shape(), entry.digest);
                place = place.next();
            }
            walk.done += 1;
            each(&entry, command);
        }
        walk.done
    }

    /// The next command, if it is simply the next of a producer's. What it is not is for [`step_as`](Self::step_as) to
    /// meet.
    #[inline(always)]
    pub(crate) fn plain(&mut self, map: &Map) -> Option<Plain> {
        let Ok(Some(Step { lane, cell, .. })) = self.follower.peek(&map.order()) else { return None };
        let heard = *self.heard.get(usize::from(lane))?;
        if !matches!(heard, Heard::Always | Heard::Current) {
            return None;
        }
        let owner = self.owners.get(usize::from(lane)).copied()?;
        crash_point!("poll.next");
        let (entry, words) = find(&map.lane(lane), cell)?;
        let is_plain = heard == Heard::Always || entry.kind < RESERVED;
        is_plain.then(|| Plain { owner, entry, words: map.place_of(words) })
    }

    /// Folds what [`plain`](Self::plain) found.
    #[inline(always)]
    pub(crate) fn take_plain<'m>(&mut self, map: &'m Map, plain: &Plain) -> Command<'m> {
        let Plain { owner, entry, words } = plain;
        let command = Command {
            seq: self.follower.next(),
            producer: owner.number,
            index: owner.index(entry),
            kind: entry.kind,
            part: None,
            address: Address::ALL,
            payload: payload::read(map.words(*words), entry.len as usize),
            digest: Digest(self.digest),
        };
        if self.folds {
            self.digest = owner.fold(self.digest, entry);
        }
        self.follower.advance();
        command
    }

    /// Notes a lane that changes hands by one of the sequencer's commands.
    #[cold]
    fn apply(&mut self, own: &Own) {
        let Own::Attached { lane, number, base, role, .. } = *own else { return };
        let at = usize::from(lane);
        if let (Some(owner), Some(its)) = (self.owners.get_mut(at), self.roles.get_mut(at)) {
            *owner = Owner { number, base };
            *its = role.code();
            if self.current.lane() == Some(lane) {
                // Who was current is gone.
                self.current = self.current.without_lane();
            }
            self.listen();
        }
    }

    /// What a command is at this place.
    #[inline]
    fn hear(&self, map: &Map, seq: Seq, lane: u16, entry: &Entry) -> Result<Said, Corrupt> {
        match (self.heard[usize::from(lane)], entry.kind) {
            (Heard::Own, _) => for_all(seq, entry).map(|()| Said::Command),
            (Heard::Always, _) => self.reach(seq, entry),
            (Heard::Nobody, _) => {
                let (found, expected) = (self.roles[usize::from(lane)], ProducerRole::Controller.code());
                Err(Corrupt { seq, field: "role of a lane's owner", found, expected })
            }
            (_, HELLO) => {
                for_all(seq, entry)?;
                let hello = read_hello(map, seq, lane, entry)?;
                if hello.number > self.current.number() {
                    return Ok(Said::Hello(hello));
                }
                if self.notes_ends {
                    // It was superseded before it began: its own term ends here.
                    map.incarnations().end(Current::new(hello.number, lane), seq);
                }
                Ok(Said::Void)
            }
            (Heard::Not, _) => Ok(Said::Void),
            (Heard::Current, INITIALIZED) => for_all(seq, entry).map(|()| Said::Initialized),
            (Heard::Current, _) => self.reach(seq, entry),
        }
    }

    /// Whether a command that is heard is for who walks here. One without a rank gets what is whole and for all: the body
    /// alone of a command with parts is half a command.
    #[inline]
    fn reach(&self, seq: Seq, entry: &Entry) -> Result<Said, Corrupt> {
        let address = entry.address();
        if address == Address::ALL {
            return Ok(Said::Command);
        }
        check_address(seq, entry, self.ranks)?;
        let is_reached =
            self.rank.is_some() && (address == Address::PARTS || address == Address::of_worker(self.rank));
        Ok(if is_reached { Said::Command } else { Said::Elsewhere })
    }

    /// What is for who walks here of a command with parts.
    #[cold]
    fn open_parts<const CHECK: bool>(
        &self,
        words: &[AtomicU64],
        seq: Seq,
        payload: Span,
    ) -> Result<View, Corrupt> {
        let corrupt = |bad| parts::corrupt(seq, bad);
        let view = parts::view(words, payload, self.ranks, self.rank).map_err(corrupt)?;
        if CHECK {
            parts::check(words, payload, self.ranks, view).map_err(corrupt)?;
        }
        Ok(view)
    }

    /// Maps a payload that does not lie in its lane, if payloads are read here, and says what of it is for who walks here.
    #[cold]
    fn open_spill<const CHECK: bool>(
        &mut self,
        map: &Map,
        seq: Seq,
        lane: u16,
        entry: &Entry,
    ) -> Result<View, Stopped> {
        if seq < self.reads_from {
            return Ok(View::default());
        }
        let (record, opened) = spill::open(map, seq, lane, entry)?;
        let payload = parts::spilled(&record);
        let view = if entry.address() == Address::PARTS {
            self.open_parts::<CHECK>(opened.words(), seq, payload)?
        } else {
            if CHECK {
                let found = payload_digest(payload::read(opened.words(), record.len as usize));
                same_digest(seq, found, record.digest)?;
            }
            View::whole(payload)
        };
        if opened.hit().is_some() {
            // What was read is not what was there.
            let (found, expected) = (0, record.len);
            return Err(Corrupt { seq, field: "bytes of a spilled payload", found, expected }.into());
        }
        self.opened = Some(Arc::new(opened));
        Ok(view)
    }

    /// Unmaps the payload that was met last, if it does not lie in its lane; whether it does not.
    #[inline]
    pub(crate) fn close(&mut self) -> bool {
        self.opened.is_some() && self.opened.take().is_some()
    }

    /// Where the payload that was met last ends in the file, if an access to it found a page gone.
    pub(crate) fn hit(&self) -> Option<u64> {
        self.opened.as_ref()?.hit()
    }

    /// From a hello on its controller is current.
    #[cold]
    fn meet(&mut self, map: &Map, seq: Seq, lane: u16, hello: Hello) {
        if self.notes_ends {
            map.incarnations().end(self.current, seq);
        }
        self.current = self.current.after(hello.number, lane);
        self.listen();
    }
}

/// A walk in progress: what it has done is done, also if who was handed the last one panics.
struct Walk<'f> {
    fold: &'f mut Fold,
    digest: u64,
    done: u32,
}

impl Drop for Walk<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.fold.digest = self.digest;
        self.fold.follower.advance_by(self.done);
    }
}

/// A cell and its payload, if the cell is whole and for all, and the payload in the lane. Which of both kinds it is, is asked once.
#[inline(always)]
fn read<'m>(lane: &Lane<'m>, cell: u64) -> Option<(Entry, &'m [u8])> {
    if let Some((entry, words, len)) = lane.read_inline(cell) {
        return Some((entry, payload::read(words, len)));
    }
    let (entry, words) = find_outside(lane, cell)?;
    Some((entry, payload::read(words, entry.len as usize)))
}

/// As [`read`], with the words that begin with the payload.
#[inline(always)]
fn find<'m>(lane: &Lane<'m>, cell: u64) -> Option<(Entry, &'m [AtomicU64])> {
    match lane.read_inline(cell) {
        Some((entry, words, _)) => Some((entry, words)),
        None => find_outside(lane, cell),
    }
}

#[inline]
fn find_outside<'m>(lane: &Lane<'m>, cell: u64) -> Option<(Entry, &'m [AtomicU64])> {
    let is_plain = |entry: &Entry| entry.address() == Address::ALL && !entry.is_spilled();
    let entry = lane.read_outside(cell).ok().filter(is_plain)?;
    Some((entry, lane.payload(&entry)))
}

/// What is said to all is for all.
fn for_all(seq: Seq, entry: &Entry) -> Result<(), Corrupt> {
    check_address(seq, entry, 0)
}

/// Whether there can be such an address in a region of so many ranks.
pub(crate) fn check_address(seq: Seq, entry: &Entry, ranks: u16) -> Result<(), Corrupt> {
    let (address, expected) = (entry.address(), ranks.into());
    let bad = || Corrupt { seq, field: "address", found: address.code().into(), expected };
    address.is_within(ranks).then_some(()).ok_or_else(bad)
}

fn check_payload(map: &Map, seq: Seq, lane: u16, entry: &Entry) -> Result<View, Corrupt> {
    let found = match lane {
        OWN_LANE => own_digest(map, entry),
        _ => payload_digest(payload::read(map.lane(lane).payload(entry), entry.len as usize)),
    };
    same_digest(seq, found, entry.digest).map(|()| View::whole(parts::in_lane(entry)))
}

fn same_digest(seq: Seq, found: u64, expected: u64) -> Result<(), Corrupt> {
    (found == expected).then_some(()).ok_or(Corrupt { seq, field: "payload digest", found, expected })
}

/// The payload digest of one of the sequencer's own commands.
pub(crate) fn own_digest(map: &Map, entry: &Entry) -> u64 {
    let mut words = [0; WORDS];
    map.lane(OWN_LANE).copy(entry, &mut words);
    event::digest(&words)
}

/// Reads one of the sequencer's own commands; `None` for a kind that this version does not know.
#[cold]
fn read_own(map: &Map, entry: &Entry) -> Option<Own> {
    let mut words = [0; WORDS];
    map.lane(OWN_LANE).copy(entry, &mut words);
    Own::decode(entry.kind, &words)
}

/// Reads a controller's hello, whose number must have been claimed.
#[cold]
pub(crate) fn read_hello(map: &Map, seq: Seq, lane: u16, entry: &Entry) -> Result<Hello, Corrupt> {
    if entry.len != HELLO_BYTES {
        let (found, expected) = (entry.len.into(), HELLO_BYTES.into());
        return Err(Corrupt { seq, field: "length of a hello", found, expected });
    }
    let mut words = [0; 2];
    map.lane(lane).copy(entry, &mut words);
    let hello = Hello::decode(words);
    // Its claim came before its ticket.
    let expected = map.incarnations().newest();
    if hello.number == 0 || hello.number > expected {
        return Err(Corrupt { seq, field: "number of an incarnation", found: hello.number, expected });
    }
    Ok(hello)
}

/// Who owns each lane, as control says.
pub(crate) fn owners(map: &Map) -> Vec<Owner> {
    let owner = |entry: &LaneEntry| Owner {
        number: entry.number.load(Ordering::Relaxed),
        base: entry.base.load(Ordering::Relaxed),
    };
    map.lane_entries().iter().map(owner).collect()
}

#[cold]
fn bad_cell(seq: Seq, bad: BadCell) -> Corrupt {
    Corrupt { seq, field: bad.field, found: bad.found, expected: bad.limit }
}

#[cold]
fn out_of_order(seq: Seq, fault: Fault) -> Corrupt {
    match fault {
        Fault::Lapped { run } => Corrupt { seq, field: "run in its slot", found: u64::MAX, expected: run },
        Fault::Gap { expected, found, .. } => Corrupt {
            seq,
            field: "first index of the next run",
            found: found.get(),
            expected: expected.get(),
        },
    }
}
