//! [`Observer`]: looks on, gates nobody, copies what it reads and says exactly what it missed.

use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::control::ProducerRole;
use seriatim_ring::event::{Event as Own, OWN_LANE, WORDS};
use seriatim_ring::incarnations::{HELLO, Hello, INITIALIZED};
use seriatim_ring::lane::{Entry, Owner};
use seriatim_ring::order::{Look, Run};
use seriatim_ring::parts::{Address, Span};
use seriatim_ring::sequencer::published;
use seriatim_ring::sync::Ordering;
use seriatim_ring::wake::FOR_WORK;

use crate::Digest;
use crate::error::AttachError;
use crate::event::{Command, Event};
use crate::fold::{Corrupt, Stopped, check_address, owners};
use crate::fork::{self, Alarm};
use crate::parts;
use crate::payload::bytes_of;
use crate::region::Region;
use crate::region::file::RegionLost;
use crate::region::layout::Part;
use crate::region::map::Map;
use crate::region::spill::{self, Unmapped};
use crate::wait::{self, Idle, Wait};

/// How long an observer that may not write, and so cannot be woken, sleeps between looks.
const UNHEARD: Duration = Duration::from_millis(10);

/// What an observer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed<'a> {
    /// An event, copied: valid until the next call. Its digest is 0, for an observer does not fold.
    Event(Event<'a>),
    /// These were overwritten before they could be copied: from `from` to before `to`.
    Missed {
        /// The first index that was missed.
        from: Seq,
        /// The first index that was not.
        to: Seq,
    },
}

/// An observer cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObserverError {
    /// Something in the order or a lane cannot be. The observer stays where it is.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A payload that does not lie in its lane could not be copied, for lack of memory. The observer stays where it is.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    /// The region's file was shortened.
    #[error(transparent)]
    Lost(#[from] RegionLost),
    /// This process is a forked child of the one that attached: the observer is the parent's. A child that is to look
    /// on does so after an `exec`, as whoever else takes part.
    #[error("this observer was attached by the parent process, before a fork")]
    Forked,
}

/// One who looks on: needs read rights only, gates nobody, and is told exactly which commands it missed.
///
/// What it delivers is never a mix of two commands: it copies first and then makes sure that nobody had begun to
/// write there. One that was lapped goes on at the newest command, so what it missed may include the end
/// ([`Event::Closed`]): whoever waits for that also asks [`Region::snapshot`]. It shows what is in the order, not what
/// counts: it does not pass over the commands of superseded controllers ([`Event::Incarnation`]), for it may have missed
/// what superseded them. Of a command with parts it shows what all get of it.
///
/// ```
/// use seriatim::{Config, Event, Observed, Observer, Producer, Region, Sequencer, SequencerConfig};
///
/// let region = Region::anonymous(&Config::new())?;
/// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
/// let mut producer = Producer::attach(&region, "p")?;
/// let mut observer = Observer::attach(&region)?;
/// let index = producer.submit(3, b"seen")?;
/// producer.wait_sequenced(index)?;
/// let Some(Observed::Event(Event::Command(seen))) = observer.poll()? else { panic!("nothing there") };
/// assert_eq!((seen.kind, seen.payload), (3, &b"seen"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Observer {
    region: Region,
    alarm: Alarm,
    next: Seq,
    next_run: u64,
    /// What is left of the run that is being copied.
    run: Option<Run>,
    owners: Vec<Owner>,
    copy: Vec<u64>,
    missed: u64,
}

/// What was found at the next place.
enum Found {
    Nothing,
    Command { seq: Seq, owner: Owner, entry: Entry, body: Span },
    Own { seq: Seq, kind: u16, own: Option<Own> },
    Hello { seq: Seq, producer: u64, hello: Hello },
    Initialized { seq: Seq, producer: u64 },
    Missed { from: Seq, to: Seq },
}

impl From<Stopped> for ObserverError {
    fn from(stopped: Stopped) -> ObserverError {
        match stopped {
            Stopped::Corrupt(corrupt) => corrupt.into(),
            Stopped::Unmapped(unmapped) => unmapped.into(),
        }
    }
}

impl Observer {
    /// Starts at the next index that is published. Works on a region that is opened read-only.
    ///
    /// # Errors
    /// [`AttachError::Io`] if a region that is opened for writing cannot be made writable where one announces its sleep.
    pub fn attach(region: &Region) -> Result<Observer, AttachError> {
        // Sleeping needs an announcement; a read-only observer yields instead.
        if region.is_writable() {
            region.make_writable("an observer", &[Part::Bells])?;
        }
        let map = region.map();
        // In a damaged region what the cursor says is all there is; following it meets the damage.
        let (next, run) = newest(map).unwrap_or_else(|| published(map.control()));
        Ok(Observer {
            alarm: Alarm::of_this_process(),
            next,
            next_run: run,
            run: None,
            owners: owners(map),
            copy: Vec::new(),
            missed: 0,
            region: region.clone(),
        })
    }

    /// The index that it looks for next.
    #[must_use]
    pub fn next(&self) -> Seq {
        self.next
    }

    /// How many commands it missed so far.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// What comes next, if there is something; never waits.
    ///
    /// # Errors
    /// [`ObserverError::Corrupt`] for something in the order that cannot be; the region is lost, or is the parent's.
    pub fn poll(&mut self) -> Result<Option<Observed<'_>>, ObserverError> {
        self.may_go_on()?;
        let found = self.find()?;
        Ok(match found {
            Found::Nothing => None,
            Found::Missed { from, to } => Some(Observed::Missed { from, to }),
            Found::Own { seq, kind, own } => Some(Observed::Event(Event::of_own(seq, kind, own))),
            Found::Hello { seq, producer, hello } => {
                Some(Observed::Event(Event::of_hello(seq, producer, hello)))
            }
            Found::Initialized { seq, producer } => {
                Some(Observed::Event(Event::Initialized { seq, producer }))
            }
            Found::Command { seq, owner, entry, body } => Some(Observed::Event(Event::Command(Command {
                seq,
                producer: owner.number,
                index: entry.cell.wrapping_sub(owner.base),
                kind: entry.kind,
                payload: &bytes_of(&self.copy, body.range().end)[body.range()],
                part: None,
                address: entry.address(),
                digest: Digest(0),
            }))),
        })
    }

    /// What comes next, waiting for it until the deadline.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Option<Observed<'_>>, ObserverError> {
        // Before it announces its sleep: the bells are the parent's.
        self.may_go_on()?;
        let mut idle = Idle::new(Wait::Park);
        while self.run.is_none() && !self.is_published() && !wait::is_over(Some(deadline)) {
            if !idle.step() {
                continue;
            }
            if self.region.is_writable() {
                let bell = &self.region.map().bells().workers;
                if !wait::sleep(bell, FOR_WORK, Some(deadline), || self.is_published()) {
                    self.region.check()?;
                }
            } else {
                // It cannot announce itself, so nobody wakes it.
                let left = deadline.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(UNHEARD));
                self.region.check()?;
            }
        }
        self.poll()
    }

    /// Whether this process may use the observer, and the region is whole as far as is known.
    #[inline(always)]
    fn may_go_on(&self) -> Result<(), ObserverError> {
        if self.alarm.is_raised() { self.check() } else { Ok(()) }
    }

    #[cold]
    fn check(&self) -> Result<(), ObserverError> {
        if fork::is_child() { Err(ObserverError::Forked) } else { Ok(self.region.check_if_hit()?) }
    }

    fn is_published(&self) -> bool {
        self.region.map().order().observe(self.next_run) != Look::Pending
    }

    fn find(&mut self) -> Result<Found, Stopped> {
        let run = match self.run {
            Some(run) => run,
            None => match self.region.map().order().observe(self.next_run) {
                Look::Pending => return Ok(Found::Nothing),
                Look::Lapped => return Ok(self.catch_up()?),
                Look::Here(run) => run,
            },
        };
        if run.first != self.next || usize::from(run.lane) >= self.owners.len() || run.count == 0 {
            let (found, expected) = (run.first.get(), self.next.get());
            let field = "first index of the next run";
            return Err(Corrupt { seq: self.next, field, found, expected }.into());
        }
        self.next_run = run.number.wrapping_add(1);
        self.copy_first(&run)
    }

    /// Copies the first command of what is left of a run.
    fn copy_first(&mut self, run: &Run) -> Result<Found, Stopped> {
        let read = self.region.map().lane(run.lane).read(run.cell).map_err(|bad| Corrupt {
            seq: run.first,
            field: bad.field,
            found: bad.found,
            expected: bad.limit,
        });
        if read.as_ref().is_ok_and(Entry::is_spilled) && !self.was_there(run, read.as_ref().ok()) {
            // What is gone already need not be copied, which would take its time.
            return Ok(self.miss_first(run));
        }
        let copied = read.map_err(Stopped::from).and_then(|entry| Ok((entry, self.copy(run, &entry)?)));
        if !self.was_there(run, read.as_ref().ok()) {
            return Ok(self.miss_first(run));
        }
        let (entry, payload) = copied?;
        if run.lane != OWN_LANE
            && (entry.cell.wrapping_sub(self.owners[usize::from(run.lane)].base) as i64) < 0
        {
            // Of a former owner of the lane, whom this observer never met.
            return Ok(self.miss(run, 1));
        }
        // What is said to all is for all.
        check_address(run.first, &entry, if run.lane == OWN_LANE { 0 } else { self.region.ranks() })?;
        let body = match entry.address() {
            Address::PARTS => parts::body(&self.copy, payload, self.region.ranks())
                .map_err(|bad| parts::corrupt(run.first, bad))?,
            _ => payload,
        };
        self.skip(run, 1);
        Ok(self.found(run, entry, body))
    }

    /// Copies a payload: what it is.
    fn copy(&mut self, run: &Run, entry: &Entry) -> Result<Span, Stopped> {
        let map = self.region.map();
        if entry.is_spilled() {
            self.copy = Vec::new();
            let (record, words) = spill::copy(map, run.first, run.lane, entry)?;
            self.copy = words;
            return Ok(parts::spilled(&record));
        }
        if self.copy.len() as u64 * 8 > map.lane(run.lane).max_payload().next_multiple_of(8) {
            // That was one that lay beside its lane, and can be of any size.
            self.copy = Vec::new();
        }
        self.copy.resize((entry.len as usize).div_ceil(8), 0);
        map.lane(run.lane).copy(entry, &mut self.copy);
        Ok(parts::in_lane(entry))
    }

    /// Whether what was copied was still what it was after the copy.
    fn was_there(&self, run: &Run, entry: Option<&Entry>) -> bool {
        let map = self.region.map();
        // Acquire: what lies beside the lane may read as zeroes once it is released, for its pages are given back after
        // that (S2); who met such a page was told so by the kernel that gave it, and sees the release here.
        let released = || map.lane_entry(run.lane).released.load(Ordering::Acquire);
        map.lane(run.lane).still_there(run.cell, entry)
            && !entry
                .is_some_and(|entry| entry.is_spilled() && (run.cell.wrapping_sub(released()) as i64) < 0)
    }

    fn found(&mut self, run: &Run, entry: Entry, body: Span) -> Found {
        let owner = self.owners[usize::from(run.lane)];
        let (seq, producer) = (run.first, owner.number);
        match (run.lane, entry.kind) {
            (OWN_LANE, _) => {}
            // A worker stops at a hello of another length.
            (lane, HELLO) if self.is_controlled(lane) && self.copy.len() == 2 => {
                let hello = Hello::decode([self.copy[0], self.copy[1]]);
                return Found::Hello { seq, producer, hello };
            }
            (lane, INITIALIZED) if self.is_controlled(lane) => return Found::Initialized { seq, producer },
            _ => return Found::Command { seq, owner, entry, body },
        }
        let words: [u64; WORDS] = std::array::from_fn(|i| self.copy.get(i).copied().unwrap_or(0));
        let own = Own::decode(entry.kind, &words);
        if let Some(Own::Attached { lane, number, base, .. }) = own
            && let Some(owner) = self.owners.get_mut(usize::from(lane))
        {
            *owner = Owner { number, base };
        }
        Found::Own { seq: run.first, kind: entry.kind, own }
    }

    fn is_controlled(&self, lane: u16) -> bool {
        let role = self.region.map().lane_entry(lane).role.load(Ordering::Relaxed);
        role == ProducerRole::Controller.code()
    }

    /// Goes past `count` commands of a run.
    fn skip(&mut self, run: &Run, count: u64) {
        let left = run.count - count as u32;
        let rest =
            Run { first: run.first.plus(count), cell: run.cell.wrapping_add(count), count: left, ..*run };
        self.next = rest.first;
        self.run = (left > 0).then_some(rest);
    }

    /// Misses the first command of a run, with those of it that are gone as well.
    fn miss_first(&mut self, run: &Run) -> Found {
        // All that was claimed again of this run is gone; its last payloads may be too, which the next
        // look finds out.
        // Before the run, where only bytes were claimed again.
        let gone = self.region.map().lane(run.lane).first_whole().wrapping_sub(run.cell) as i64;
        self.miss(run, gone.clamp(1, run.count.into()) as u64)
    }

    fn miss(&mut self, run: &Run, count: u64) -> Found {
        self.skip(run, count);
        self.missed += count;
        self.owners = owners(self.region.map());
        Found::Missed { from: run.first, to: self.next }
    }

    /// The next run is gone: goes on at the newest.
    fn catch_up(&mut self) -> Result<Found, Corrupt> {
        let (from, map) = (self.next, self.region.map());
        let lost = || {
            let (expected, run) = (self.next_run, published(map.control()).1);
            Corrupt { seq: from, field: "published run", found: run, expected }
        };
        let (next, run) = newest(map).ok_or_else(lost)?;
        self.next = next.max(from);
        self.next_run = run;
        self.owners = owners(self.region.map());
        self.missed += self.next.since(from);
        Ok(Found::Missed { from, to: self.next })
    }
}

/// Looks for the newest run before the region counts as damaged: each failure takes a sequencer that came round
/// the whole ring between two loads.
const LOOKS: usize = 256;

/// The next index and the number of the run that will hold it; `None` in a region whose order has no last run.
fn newest(map: &Map) -> Option<(Seq, u64)> {
    let order = map.order();
    let end_of = |number: u64| match order.observe(number) {
        Look::Here(last) => Some((last.end(), number.wrapping_add(1))),
        Look::Lapped | Look::Pending => None,
    };
    (0..LOOKS).find_map(|_| {
        let (next, run) = published(map.control());
        // The cursor moves once a turn, and a turn can come round the ring, with a pause of any length in it: then
        // the ring itself says what its last run is.
        let last = || order.last();
        run.checked_sub(1)
            .and_then(end_of)
            .or_else(|| last().and_then(end_of))
            .or_else(|| (run == 0 && last().is_none()).then_some((next, 0)))
    })
}
