//! [`Fold`]: following the order through the lanes, cell by cell, with the chain digest.

use seriatim_ring::Seq;
use seriatim_ring::digest::{Place, fold, fold_at};
use seriatim_ring::event::{self, Event as Own, OWN_LANE, WORDS};
use seriatim_ring::lane::{BadCell, Entry, Lane, Owner};
use seriatim_ring::order::{Fault, Follower, Step};
use seriatim_ring::sync::Ordering;

use crate::config::DigestOf;
use crate::event::Command;
use crate::fork::Alarm;
use crate::payload::{self, payload_digest};
use crate::region::map::Map;
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

/// A command that was met and folded in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) seq: Seq,
    pub(crate) lane: u16,
    pub(crate) entry: Entry,
    pub(crate) owner: Owner,
    /// What it says, if it is one of the sequencer's own, of a kind that this version knows.
    pub(crate) own: Option<Own>,
    /// The digest of all before it.
    pub(crate) before: u64,
}

/// A producer's command that was found and not gone past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    lane: u16,
    owner: Owner,
    entry: Entry,
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
}

impl Fold {
    /// Starts where a follower stands. The owners of lanes are what control says now: a lane changes hands only
    /// when all gates have passed its former owner's cells, so what control is ahead of the order concerns no
    /// command that is still to come.
    pub(crate) fn new(map: &Map, what: DigestOf, follower: Follower, digest: u64) -> Self {
        Fold { follower, digest, folds: what != DigestOf::Off, owners: owners(map) }
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
    pub(crate) fn step(&mut self, map: &Map) -> Result<Option<Met>, Corrupt> {
        self.step_as::<false>(map)
    }

    /// As [`step`](Self::step), for one whose gate keeps the command: with `CHECK` its payload must have the digest
    /// that its producer took.
    #[inline]
    pub(crate) fn step_as<const CHECK: bool>(&mut self, map: &Map) -> Result<Option<Met>, Corrupt> {
        let seq = self.follower.next();
        let Some(step) = self.follower.peek(&map.order()).map_err(|fault| out_of_order(seq, fault))? else {
            return Ok(None);
        };
        let Step { lane, cell, .. } = step;
        let Some(owner) = self.owners.get(usize::from(lane)).copied() else {
            let expected = self.owners.len() as u64 - 1;
            return Err(Corrupt { seq, field: "lane", found: lane.into(), expected });
        };
        let entry = map.lane(lane).read(cell).map_err(|bad| bad_cell(seq, bad))?;
        let own = if lane == OWN_LANE { read_own(map, &entry) } else { None };
        if map.is_hit() {
            // What was read is not what was there: who asks next is told.
            return Ok(None);
        }
        if CHECK {
            check_payload(map, seq, lane, &entry)?;
        }
        if let Some(own) = &own {
            self.apply(own);
        }
        let before = self.digest;
        if self.folds {
            self.digest = fold(before, owner.folded(&entry));
        }
        self.follower.advance();
        Ok(Some(Met { seq, lane, entry, owner, own, before }))
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
        each: impl FnMut(Command<'_>),
    ) -> Option<u32> {
        // Asked once a walk, not for every command.
        if self.folds {
            self.walk_as::<true>(map, alarm, most, each)
        } else {
            self.walk_as::<false>(map, alarm, most, each)
        }
    }

    #[inline]
    fn walk_as<const FOLD: bool>(
        &mut self,
        map: &Map,
        alarm: Alarm,
        most: u64,
        mut each: impl FnMut(Command<'_>),
    ) -> Option<u32> {
        let Ok(step) = self.follower.peek(&map.order()) else { return Some(0) };
        let Step { seq, lane, cell } = step?;
        let Some(owner) = self.owners.get(usize::from(lane)).copied() else { return Some(0) };
        if lane == OWN_LANE {
            return Some(0);
        }
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
            let command = Command {
                seq: seq.plus(walk.done.into()),
                producer: owner.number,
                index: entry.cell.wrapping_sub(owner.base),
                kind: entry.kind,
                payload,
                digest: Digest(walk.digest),
            };
            if FOLD {
                walk.digest = fold_at(walk.digest, place, entry.shape(), entry.digest);
                place = place.next();
            }
            walk.done += 1;
            each(command);
        }
        Some(walk.done)
    }

    /// The next command, if it is simply the next of a producer's. What it is not is for [`step_as`](Self::step_as) to
    /// meet.
    #[inline(always)]
    pub(crate) fn plain(&mut self, map: &Map) -> Option<Plain> {
        let Ok(Some(Step { lane, cell, .. })) = self.follower.peek(&map.order()) else { return None };
        let owner = self.owners.get(usize::from(lane)).copied().filter(|_| lane != OWN_LANE)?;
        crash_point!("poll.next");
        Some(Plain { lane, owner, entry: map.lane(lane).read(cell).ok()? })
    }

    /// Folds what [`plain`](Self::plain) found.
    #[inline(always)]
    pub(crate) fn take_plain<'m>(&mut self, map: &'m Map, plain: &Plain) -> Command<'m> {
        let Plain { lane, owner, entry } = plain;
        let folded = owner.folded(entry);
        let command = Command {
            seq: self.follower.next(),
            producer: folded.producer,
            index: folded.index,
            kind: folded.kind,
            payload: payload::read(map.lane(*lane).payload(entry), entry.len as usize),
            digest: Digest(self.digest),
        };
        if self.folds {
            self.digest = fold(self.digest, folded);
        }
        self.follower.advance();
        command
    }

    /// Notes a lane that changes hands by one of the sequencer's commands.
    #[cold]
    fn apply(&mut self, own: &Own) {
        if let Own::Attached { lane, number, base, .. } = *own
            && let Some(owner) = self.owners.get_mut(usize::from(lane))
        {
            *owner = Owner { number, base };
        }
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

/// A cell and its payload, if the cell is whole. Which of both kinds it is, is asked once.
#[inline(always)]
fn read<'m>(lane: &Lane<'m>, cell: u64) -> Option<(Entry, &'m [u8])> {
    if let Some((entry, words, len)) = lane.read_inline(cell) {
        return Some((entry, payload::read(words, len)));
    }
    let entry = lane.read_outside(cell).ok()?;
    Some((entry, payload::read(lane.payload(&entry), entry.len as usize)))
}

fn check_payload(map: &Map, seq: Seq, lane: u16, entry: &Entry) -> Result<(), Corrupt> {
    let found = match lane {
        OWN_LANE => own_digest(map, entry),
        _ => payload_digest(payload::read(map.lane(lane).payload(entry), entry.len as usize)),
    };
    let expected = entry.digest;
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

/// Who owns each lane, as control says.
pub(crate) fn owners(map: &Map) -> Vec<Owner> {
    let owner = |entry: &seriatim_ring::control::LaneEntry| Owner {
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
