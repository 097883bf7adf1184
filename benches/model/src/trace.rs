//! From accesses to tallies: hears of every access of the library, knows what lies where in the region, and whose turn it
//! is.
//!
//! One thread plays all parties. [`as_party`] says which one comes next; what is accessed until it returns is that
//! party's, in one call.

use std::cell::RefCell;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};
use seriatim::{Region, inspect};
use seriatim_ring::control::{Bells, Control, LaneEntry, LanePage, Pulse, WorkerPage};
use seriatim_ring::lane::Cell;
use seriatim_ring::sync::{Access, Kind, observe};

use crate::coherence::{Caches, Met};
use crate::count::{LINE, Role, Step, Tally};

/// What a line belongs to, in the words of the region's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    /// What is read when a party comes or goes, and the rest.
    Other,
    /// How far the order goes.
    Published,
    /// Where a newcomer starts.
    Anchor,
    /// The sequencer's count of turns.
    Pulse,
    /// How far a lane is free.
    Released,
    /// What else the sequencer says of a lane.
    Lane,
    /// What the sequencer says of a worker.
    Member,
    /// Runs, written and followed.
    Run,
    /// Runs that the sequencer reads again to free them.
    OldRun,
    /// The hint of the ticket queue.
    Hint,
    /// Tickets.
    Ticket,
    /// Who sleeps, and who asks.
    Bell,
    /// That room is wanted.
    Wanted,
    /// How far a producer claims.
    Claim,
    /// Cells.
    Cell,
    /// Payloads outside of cells.
    Bytes,
    /// A worker's cursor.
    Cursor,
}

impl Area {
    pub(crate) const ALL: [Area; 17] = {
        use Area::*;
        [
            Other, Published, Anchor, Pulse, Released, Lane, Member, Run, OldRun, Hint, Ticket, Bell, Wanted,
            Claim, Cell, Bytes, Cursor,
        ]
    };

    /// The step that a role has to do with it for.
    pub(crate) fn step(self, role: Role) -> Step {
        match (self, role) {
            (
                Area::Anchor | Area::Released | Area::Member | Area::OldRun | Area::Wanted | Area::Cursor,
                _,
            ) => Step::Free,
            (_, Role::Producer) => Step::Submit,
            (_, Role::Sequencer) => Step::Sequence,
            (Area::Bell, Role::Worker) => Step::Free,
            (_, Role::Worker) => Step::Poll,
        }
    }
}

/// Where everything lies: offsets from the region's first byte.
struct Places {
    base: usize,
    control: Range<usize>,
    lane_entries: Range<usize>,
    order: Range<usize>,
    tickets: Range<usize>,
    bells: Range<usize>,
    lanes: Range<usize>,
    lane_stride: usize,
    cells: Range<usize>,
    workers: Range<usize>,
    total: usize,
}

impl Places {
    fn find(region: &Region, lane_cells: usize) -> Result<Places> {
        let inspection = inspect(region.path())?;
        let identity = inspection.identity.context("a region with a header")?;
        let producers = identity.geometry.producers as usize;
        let section = |name| {
            let found = inspection.sections.iter().find(|section| section.name == name);
            let found = found.with_context(|| format!("a section {name}"))?;
            anyhow::Ok(found.offset as usize..(found.offset + found.bytes) as usize)
        };
        let (control, lanes) = (section("control")?, section("lanes")?);
        let entries = control.start + size_of::<Control>();
        let cells = size_of::<LanePage>()..size_of::<LanePage>() + lane_cells * size_of::<Cell>();
        Ok(Places {
            base: base_of(region)?,
            lane_entries: entries..entries + (producers + 1) * size_of::<LaneEntry>(),
            lane_stride: lanes.len() / producers,
            control,
            order: section("order")?,
            tickets: section("tickets")?,
            bells: section("bells")?,
            lanes,
            cells,
            workers: section("workers")?,
            // The file may be longer: spills lie behind.
            total: identity.file_bytes as usize,
        })
    }

    fn area(&self, at: usize, role: Role, kind: Kind) -> Area {
        let again = role == Role::Sequencer && kind == Kind::Read;
        if self.control.contains(&at) {
            return self.area_of_control(at);
        }
        if self.lanes.contains(&at) {
            let inside = (at - self.lanes.start) % self.lane_stride;
            return match inside {
                _ if inside < LINE => Area::Claim,
                _ if self.cells.contains(&inside) => Area::Cell,
                _ if inside >= self.cells.end => Area::Bytes,
                _ => Area::Other,
            };
        }
        let cursor = |at: usize| (at - self.workers.start) % size_of::<WorkerPage>() < 128;
        match at {
            _ if self.order.contains(&at) => {
                if again {
                    Area::OldRun
                } else {
                    Area::Run
                }
            }
            _ if self.tickets.contains(&at) && at < self.tickets.start + 128 => Area::Hint,
            _ if self.tickets.contains(&at) => Area::Ticket,
            _ if self.is_wanted_word(at) => Area::Wanted,
            _ if self.bells.contains(&at) => Area::Bell,
            _ if self.workers.contains(&at) && cursor(at) => Area::Cursor,
            _ if self.workers.contains(&at) => Area::Member,
            _ => Area::Other,
        }
    }

    fn area_of_control(&self, at: usize) -> Area {
        let inside = at - self.control.start;
        if self.lane_entries.contains(&at) {
            let field = (at - self.lane_entries.start) % size_of::<LaneEntry>();
            return if field == offset_of!(LaneEntry, released) { Area::Released } else { Area::Lane };
        }
        match inside {
            _ if at >= self.lane_entries.end => Area::Member,
            _ if inside >= offset_of!(Control, pulse) => Area::Pulse,
            _ if inside >= offset_of!(Control, anchor) => Area::Anchor,
            _ if inside >= offset_of!(Control, published) => Area::Published,
            _ => Area::Other,
        }
    }

    /// The last of the bells' words.
    fn is_wanted_word(&self, at: usize) -> bool {
        at == self.bells.start + size_of::<Bells>() - 128
    }

    /// What the sequencer writes when it looks after all, which happens by the clock.
    fn is_look(&self, at: usize) -> bool {
        at == self.control.start + offset_of!(Control, pulse) + offset_of!(Pulse, looked_ns)
    }
}

/// Where this process maps a region.
fn base_of(region: &Region) -> Result<usize> {
    let inode = std::fs::metadata(region.path())?.ino().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut ours = maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode));
    let first = ours.next().context("a mapping of the region")?;
    let address = first.split('-').next().unwrap_or_default();
    Ok(usize::from_str_radix(address, 16)?)
}

/// Whose turn it is.
#[derive(Clone, Copy)]
struct Turn {
    party: usize,
    role: Role,
}

struct Trace {
    places: Places,
    caches: Caches,
    /// The call in which each line was used last.
    used: Vec<u32>,
    call: u32,
    turn: Option<Turn>,
    /// What the sequencer does in this turn: some of it may turn out to be housekeeping.
    held: Vec<Access>,
    tallies: Vec<Tally>,
    /// Stores and swaps of each role, whether they moved a line or not.
    stores: [u64; 3],
}

thread_local! {
    static TRACE: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

/// Bytes of a party's cache: what a core of a server has for itself.
pub(crate) const CACHE: usize = 1 << 20;

/// Begins to follow what this thread does in a region, with empty caches.
pub(crate) fn begin(region: &Region, lane_cells: usize) -> Result<()> {
    let places = Places::find(region, lane_cells)?;
    let lines = places.total.div_ceil(LINE);
    let trace = Trace {
        caches: Caches::new(lines, CACHE / LINE),
        used: vec![0; lines],
        call: 0,
        turn: None,
        held: Vec::new(),
        tallies: vec![Tally::default(); 3 * Area::ALL.len()],
        stores: [0; 3],
        places,
    };
    TRACE.set(Some(trace));
    observe(Some(hear));
    Ok(())
}

/// No longer follows anything.
pub(crate) fn end() {
    observe(None);
    TRACE.set(None);
}

fn with<T>(what: impl FnOnce(&mut Trace) -> T) -> T {
    TRACE.with_borrow_mut(|trace| what(trace.as_mut().expect("a trace that has begun")))
}

fn hear(access: Access) {
    with(|trace| match trace.turn {
        Some(Turn { role: Role::Sequencer, .. }) => trace.held.push(access),
        Some(turn) => trace.take(turn, access),
        None => {}
    });
}

/// The party whose turn it is reads memory by itself, as a handler of commands does.
pub(crate) fn reads(bytes: &[u8]) {
    if !bytes.is_empty() {
        hear(Access { address: bytes.as_ptr() as usize, bytes: bytes.len(), kind: Kind::Read });
    }
}

/// The party whose turn it is stores a word of the region, by itself.
#[cfg(test)]
pub(crate) fn stores(offset: usize) {
    let base = with(|trace| trace.places.base);
    hear(Access { address: base + offset, bytes: 8, kind: Kind::Write });
}

/// A word on the line of what is published that nobody uses.
#[cfg(test)]
pub(crate) fn beside_published() -> usize {
    with(|trace| trace.places.control.start + offset_of!(Control, published) + LINE - 8)
}

/// Makes one call as a party.
pub(crate) fn as_party<T>(party: usize, role: Role, call: impl FnOnce() -> T) -> T {
    let turn = Turn { party, role };
    with(|trace| {
        trace.turn = Some(turn);
        trace.call += 1;
    });
    let result = call();
    with(|trace| {
        trace.settle(turn);
        trace.turn = None;
    });
    result
}

/// What moved since the last time, by role and area.
pub(crate) fn take_tallies() -> Vec<(Role, Area, Tally)> {
    let tallies =
        with(|trace| std::mem::replace(&mut trace.tallies, vec![Tally::default(); 3 * Area::ALL.len()]));
    let roles = [Role::Producer, Role::Sequencer, Role::Worker];
    let places = roles.into_iter().flat_map(|role| Area::ALL.map(|area| (role, area)));
    places.zip(tallies).map(|((role, area), tally)| (role, area, tally)).collect()
}

/// Stores and swaps of a role in the region since the last time.
#[cfg(test)]
pub(crate) fn take_stores(role: Role) -> u64 {
    with(|trace| std::mem::take(&mut trace.stores[role as usize]))
}

impl Trace {
    /// Takes what the sequencer did, but for a look after all that fell into this turn: that comes every 20 ms, which is
    /// not a number of commands. It lies before the question for wanted room.
    fn settle(&mut self, turn: Turn) {
        let held = std::mem::take(&mut self.held);
        let looked =
            held.iter().any(|access| access.kind == Kind::Write && self.places.is_look(self.at(access)));
        let asks = |access: &Access| self.places.is_wanted_word(self.at(access));
        let begin = if looked { held.iter().position(asks).unwrap_or(0) } else { 0 };
        held[begin..].iter().for_each(|access| self.take(turn, *access));
        self.held = held;
        self.held.clear();
    }

    fn at(&self, access: &Access) -> usize {
        access.address.wrapping_sub(self.places.base)
    }

    fn take(&mut self, turn: Turn, access: Access) {
        let at = self.at(&access);
        if at >= self.places.total {
            // Memory of its own.
            return;
        }
        self.stores[turn.role as usize] += u64::from(access.kind != Kind::Read);
        let mut tally = Tally::default();
        for line in at / LINE..=(at + access.bytes - 1) / LINE {
            let follows = line > 0 && self.used[line - 1] == self.call;
            self.used[line] = self.call;
            if let Met::Moved { lost } = self.caches.access(turn.party, line, access.kind != Kind::Read) {
                match access.kind {
                    Kind::Write => tally.writes += 1.0,
                    Kind::Read if follows => tally.reads += 1.0,
                    Kind::Read | Kind::Swap => tally.waits += 1.0,
                }
                tally.copies += lost.saturating_sub(1) as f64;
            }
        }
        if tally != Tally::default() {
            let area = self.places.area(at, turn.role, access.kind);
            self.tallies[turn.role as usize * Area::ALL.len() + area as usize].add(&tally);
        }
    }
}
