//! [`verify`](Region::verify): walks what is in a region and says what holds and what does not.
//!
//! ```text
//! order      commit words in their slots, each run begins where the one before ends, published lies on one
//! lanes      released <= ordered, no more outstanding than there are cells, runs of a lane follow each other
//! cells      what is held can be read, and payloads, each body and each part, have the digests that their producers took,
//!            if they did; they are for ranks that there are; those beside the lanes lie where their lane says
//! tickets    name lanes that exist, and no more than these have outstanding
//! digests    recomputed from the anchor; each worker's is that of its index, and so is who is current
//! terms      of incarnations that were claimed, or ended where the order goes
//! reports    are for what is in the order, and those for one index are the same
//! ```
//!
//! It reads only, takes every number for what somebody may have damaged, and gates nobody: so what it looks at may
//! be freed under its eyes. A look that found something wrong while the region moved is repeated.

use std::hash::Hasher;

use seriatim_ring::Seq;
use seriatim_ring::control::LIVE;
use seriatim_ring::event::{OWN_CELLS, OWN_LANE};
use seriatim_ring::gate::Past;
use seriatim_ring::incarnations::{Current, HIGHEST, TermState};
use seriatim_ring::lane::Entry;
use seriatim_ring::order::{Follower, Look, Run};
use seriatim_ring::parts::{Address, BadTable, Span};
use seriatim_ring::sequencer::{gate, published};
use seriatim_ring::spill::{Record, Spill};
use seriatim_ring::sync::{AtomicU64, Ordering};
use seriatim_ring::tickets::Ticket;
use twox_hash::XxHash3_64;

use crate::Digest;
use crate::agreement::{Agreement, Reporter};
use crate::config::DigestOf;
use crate::fold::{Fold, own_digest};
use crate::name::Name;
use crate::parts;
use crate::payload::{bytes_of, payload_digest};
use crate::region::Region;
use crate::region::map::Map;
use crate::region::spill;

/// Looks at a region that moves, before it is given up.
const LOOKS: usize = 16;
/// Problems of one kind that are told; more are counted.
const TOLD: usize = 16;

/// What was checked, and what of it does not hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How many of it.
    pub checked: u64,
    /// What does not hold, the first few in words.
    pub problems: Vec<String>,
    /// How much more does not hold.
    pub untold: u64,
}

impl Check {
    fn new(name: &'static str) -> Check {
        Check { name, checked: 0, problems: Vec::new(), untold: 0 }
    }

    fn problem(&mut self, text: String) {
        if self.problems.len() < TOLD { self.problems.push(text) } else { self.untold += 1 }
    }

    /// Notes one more thing that was checked, and what is wrong if it does not hold.
    fn expect(&mut self, holds: bool, text: impl FnOnce() -> String) -> bool {
        self.checked += 1;
        if !holds {
            self.problem(text());
        }
        holds
    }
}

/// What a walk through a region found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Verification {
    /// Where the walk began: the anchor.
    pub from: Seq,
    /// Where it ended: the next index, by the runs that are in the order.
    pub to: Seq,
    /// The digest of all before that, as recomputed; `None` if the order could not be followed.
    pub digest: Option<Digest>,
    /// What was checked.
    pub checks: Vec<Check>,
    /// Somebody frees what is looked at faster than it can be looked at: what seems wrong may not be.
    pub is_moving: bool,
}

impl Verification {
    /// Whether everything holds.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.checks.iter().all(|check| check.problems.is_empty())
    }
}

impl Region {
    /// Walks what is in the region and says what holds and what does not. Needs read rights only, gates nobody,
    /// changes nothing, and works on a region that nobody serves.
    ///
    /// ```
    /// use seriatim::{Config, Producer, Region, Sequencer, SequencerConfig};
    ///
    /// let region = Region::anonymous(&Config::new())?;
    /// let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
    /// let mut producer = Producer::attach(&region, "p")?;
    /// let index = producer.submit(0, b"x")?;
    /// producer.wait_sequenced(index)?;
    /// let found = region.verify();
    /// assert!(found.is_sound(), "{found:?}");
    /// assert_eq!(found.to.get(), 2, "the producer came, and then its command");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn verify(&self) -> Verification {
        let place = || {
            let control = self.map().control();
            (control.anchor.position(), published(control))
        };
        let mut before = place();
        for _ in 0..LOOKS {
            let found = Walk::new(self).walk();
            let after = place();
            if found.is_sound() || before == after {
                return found;
            }
            before = after;
        }
        Verification { is_moving: true, ..Walk::new(self).walk() }
    }
}

/// Where a worker says that it is.
struct Cursor {
    who: String,
    at: Seq,
    past: Past,
}

struct Walk<'a> {
    map: &'a Map,
    digest_of: DigestOf,
    anchor: Seq,
    anchor_past: Past,
    anchor_run: u64,
    cursors: Vec<Cursor>,
    agreement: Agreement,
    terms: Vec<(u16, TermState)>,
    /// The runs from the anchor's to the last that follows.
    runs: Vec<Run>,
}

impl<'a> Walk<'a> {
    fn new(region: &'a Region) -> Walk<'a> {
        let map = region.map();
        let anchor = &map.control().anchor;
        let whole = (0..64).find_map(|_| anchor.load());
        let (at, [digest, current, run]) = whole.unwrap_or((anchor.position(), [0; 3]));
        // Cursors, reports and terms before runs: what a worker has passed is in the order when its cursor is read.
        let (cursors, agreement) = (cursors(map), region.agreement());
        let terms = map.incarnations().terms().collect();
        Walk {
            map,
            digest_of: region.digest_of(),
            anchor: at,
            anchor_past: [digest, current],
            anchor_run: run,
            cursors,
            agreement,
            terms,
            runs: Vec::new(),
        }
    }

    fn walk(mut self) -> Verification {
        let order = self.check_order();
        let lanes = self.check_lanes();
        let cells = self.check_cells();
        let tickets = self.check_tickets();
        let (digests, digest) = self.check_digests();
        let reports = check_reports(&self.agreement, self.end());
        let terms = self.check_terms();
        Verification {
            from: self.anchor,
            to: self.end(),
            digest,
            checks: vec![order, lanes, cells, tickets, digests, terms, reports],
            is_moving: false,
        }
    }

    /// The index after the last run.
    fn end(&self) -> Seq {
        self.runs.last().map_or(self.anchor, Run::end)
    }

    fn cells_of(&self, lane: u16) -> Option<u64> {
        let exists = usize::from(lane) < self.map.lane_entries().len();
        exists.then(|| if lane == OWN_LANE { OWN_CELLS } else { self.map.shared().lane_cells })
    }

    fn check_order(&mut self) -> Check {
        let mut check = Check::new("runs");
        let order = self.map.order();
        for (slot, word) in order.misplaced() {
            check.problem(format!("slot {slot} has the commit word {word}, which belongs to another slot"));
        }
        let end = loop {
            let number = self.anchor_run.wrapping_add(self.runs.len() as u64);
            if self.runs.len() as u64 > order.slots() {
                break number;
            }
            match order.observe(number) {
                Look::Pending => break number,
                Look::Lapped => {
                    check.problem(format!("run {number} is not in its slot, which has a later one"));
                    break number;
                }
                Look::Here(run) => {
                    let wrong = self.wrong_with(&run);
                    if !check
                        .expect(wrong.is_none(), || format!("run {number}: {}", wrong.unwrap_or_default()))
                    {
                        break number;
                    }
                    self.runs.push(run);
                }
            }
        };
        let last = order.last().map_or(0, |last| last.wrapping_add(1));
        if end != last && check.problems.is_empty() {
            check.problem(format!(
                "the last commit word is that of the run before {last}, runs follow up to {end}"
            ));
        }
        self.check_published(&mut check, end);
        check
    }

    /// What is wrong with the next run.
    fn wrong_with(&self, run: &Run) -> Option<String> {
        let Some(cells) = self.cells_of(run.lane) else {
            return Some(format!("lane is {}, of {} lanes", run.lane, self.map.lane_entries().len()));
        };
        let (count, first) = (u64::from(run.count), run.first);
        if count == 0 || count > cells || Seq::MAX.since(first) < count {
            return Some(format!("count is {count}, expected 1 to {cells}"));
        }
        let Some(before) = self.runs.last() else {
            let holds = first <= self.anchor && self.anchor <= run.end();
            return (!holds).then(|| {
                format!("it has {first}..{}, expected the anchor {} in it", run.end(), self.anchor)
            });
        };
        (first != before.end())
            .then(|| format!("first index is {first}, expected {}, where the one before ends", before.end()))
    }

    fn check_published(&self, check: &mut Check, end: u64) {
        let (next, run) = published(self.map.control());
        // It is stored behind the commit words: a sequencer that died in between leaves it behind.
        let ahead = run.wrapping_sub(self.anchor_run);
        let expected = match self.runs.get(usize::try_from(ahead).unwrap_or(usize::MAX)) {
            Some(run) => Some(run.first),
            None => (run == end).then(|| self.end()),
        };
        check.expect(expected == Some(next), || {
            let expected = expected.map_or("a run that is there".into(), |index| format!("index {index}"));
            format!("published says index {next} before run {run}, expected {expected}")
        });
    }

    fn check_lanes(&self) -> Check {
        let mut check = Check::new("lanes");
        for (lane, entry) in self.map.lane_entries().iter().enumerate() {
            let (released, ordered) =
                (entry.released.load(Ordering::Relaxed), entry.ordered.load(Ordering::Relaxed));
            let cells = self.cells_of(lane as u16).unwrap_or(0);
            let outstanding = ordered.wrapping_sub(released);
            check.expect(outstanding <= cells, || {
                format!("lane {lane}: released is {released}, ordered {ordered}, of {cells} cells")
            });
            let mut runs = self.runs.iter().filter(|run| usize::from(run.lane) == lane);
            let Some(first) = runs.next() else { continue };
            let after = |run: &Run| run.cell.wrapping_add(run.count.into());
            let mut last = first;
            for run in runs {
                let (number, cell, expected) = (run.number, run.cell, after(last));
                check.expect(cell == expected, || {
                    format!("lane {lane}: run {number} begins at cell {cell}, expected {expected}")
                });
                last = run;
            }
            // A sequencer that dies after a commit word leaves `ordered` where the run begins.
            let is_last = self.runs.last() == Some(last);
            let holds = ordered == after(last) || (is_last && ordered == last.cell);
            check.expect(holds, || {
                format!(
                    "lane {lane}: ordered is {ordered}, expected {}, the end of its last run",
                    after(last)
                )
            });
        }
        check
    }

    fn check_cells(&self) -> Check {
        let mut check = Check::new("commands");
        for run in &self.runs {
            let released = self.map.lane_entry(run.lane).released.load(Ordering::Relaxed);
            for i in 0..u64::from(run.count) {
                let (cell, seq) = (run.cell.wrapping_add(i), run.first.plus(i));
                // What is released may have been written again.
                if seq < self.anchor || (cell.wrapping_sub(released) as i64) < 0 {
                    continue;
                }
                let wrong = self.wrong_with_cell(run.lane, cell, seq);
                check.expect(wrong.is_none(), || {
                    let (lane, wrong) = (run.lane, wrong.unwrap_or_default());
                    format!("index {seq} (cell {cell} of lane {lane}): {wrong}")
                });
            }
        }
        check
    }

    /// What is wrong with a cell that is held, or with its payload.
    fn wrong_with_cell(&self, lane: u16, cell: u64, seq: Seq) -> Option<String> {
        let map = self.map;
        let entry = match map.lane(lane).read(cell) {
            Ok(entry) => entry,
            Err(bad) => {
                return Some(format!("{} is {}, expected {} at most", bad.field, bad.found, bad.limit));
            }
        };
        let ranks = if lane == OWN_LANE { 0 } else { map.ranks() };
        if !entry.address().is_within(ranks) {
            return Some(format!("address is {}, expected {ranks} at most", entry.address().code()));
        }
        if entry.is_spilled() {
            return self.wrong_with_spill(lane, &entry, seq);
        }
        if entry.address() == Address::PARTS {
            return self.wrong_with_parts(&copied(map.lane(lane).payload(&entry)), parts::in_lane(&entry));
        }
        let found = match (lane, self.digest_of) {
            (OWN_LANE, _) => own_digest(map, &entry),
            (_, DigestOf::Payload) => copied_digest(map.lane(lane).payload(&entry), entry.len as usize),
            // Nobody took one.
            _ => 0,
        };
        let expected = entry.digest;
        (found != expected)
            .then(|| format!("payload digest is {}, expected {}", Digest(found), Digest(expected)))
    }

    fn wrong_with_parts(&self, words: &[u64], payload: Span) -> Option<String> {
        let bytes = bytes_of(words, payload.len as usize);
        let has_digests = self.digest_of == DigestOf::Payload;
        let bad = parts::check_all(words, bytes, payload, self.map.ranks(), has_digests).err()?;
        let BadTable { field, found, expected } = bad;
        Some(format!("{field} is {found}, expected {expected}"))
    }

    fn wrong_with_spill(&self, lane: u16, entry: &Entry, seq: Seq) -> Option<String> {
        if entry.address() == Address::PARTS {
            return match spill::copy(self.map, seq, lane, entry) {
                Ok((record, words)) => self
                    .wrong_with_place(lane, entry, &record)
                    .or_else(|| self.wrong_with_parts(&words, parts::spilled(&record))),
                Err(stopped) => Some(stopped.to_string()),
            };
        }
        let mut hasher = XxHash3_64::new();
        let record = match spill::copy_blocks(self.map, seq, lane, entry, |block| hasher.write(block)) {
            Ok(record) => record,
            Err(stopped) => return Some(stopped.to_string()),
        };
        let found = if self.digest_of == DigestOf::Payload { hasher.finish() } else { 0 };
        let expected = record.digest;
        let differs = || format!("payload digest is {}, expected {}", Digest(found), Digest(expected));
        self.wrong_with_place(lane, entry, &record).or_else(|| (found != expected).then(differs))
    }

    /// What is wrong with where a spill lies: its lane has it elsewhere, or not at all.
    fn wrong_with_place(&self, lane: u16, entry: &Entry, record: &Record) -> Option<String> {
        let its_slot = |&(cell, spill): &(u64, Spill)| {
            cell == entry.cell
                && spill.start == record.start
                && spill.end.wrapping_sub(spill.start) >= record.len
        };
        let has_slot = self.map.lane_page(lane).spills.outstanding(self.map.lane_entry(lane));
        let is_there = has_slot.is_ok_and(|mut slots| slots.any(|slot| its_slot(&slot)));
        (!is_there).then(|| format!("no slot of its lane has its spill at {}", record.start))
    }

    fn check_tickets(&self) -> Check {
        let mut check = Check::new("tickets");
        let tickets = self.map.tickets();
        let mut at = self.first_ticket();
        let mut outstanding: Vec<u64> = self.outstanding();
        for _ in 0..tickets.slots() {
            match tickets.peek(at) {
                None => break,
                Some(Ticket::Cells { lane, count }) => {
                    let cells = self.cells_of(lane).filter(|_| lane != OWN_LANE).unwrap_or(0);
                    let left = outstanding.get(usize::from(lane)).map_or(0, |out| cells.saturating_sub(*out));
                    let holds = count > 0 && u64::from(count) <= left.min((cells / 2).max(1));
                    check.expect(holds, || {
                        format!("ticket {at} names {count} cells of lane {lane}, which can have {left} more")
                    });
                    if let Some(out) = outstanding.get_mut(usize::from(lane)) {
                        *out = out.saturating_add(count.into());
                    }
                }
                Some(_) => check.checked += 1,
            }
            at = at.wrapping_add(1);
        }
        check
    }

    /// The position of the first ticket that is in no run.
    fn first_ticket(&self) -> u64 {
        let consumed = self.map.control().published.consumed.load(Ordering::Relaxed);
        let last = self.map.order().last().map(|number| self.map.order().observe(number));
        let Some(Look::Here(run)) = last else { return consumed };
        let ahead = run.ticket.wrapping_sub(consumed as u32) as i32;
        consumed.wrapping_add(ahead.max(0) as u64)
    }

    /// How many cells of each lane are in the order and not released.
    fn outstanding(&self) -> Vec<u64> {
        let entries = self.map.lane_entries().iter();
        let count = |entry: &seriatim_ring::control::LaneEntry| {
            entry.ordered.load(Ordering::Relaxed).wrapping_sub(entry.released.load(Ordering::Relaxed))
        };
        entries.map(count).collect()
    }

    fn check_digests(&self) -> (Check, Option<Digest>) {
        let mut check = Check::new("digests");
        let start = Follower::new(self.anchor, self.anchor_run);
        let mut fold = Fold::new(self.map, self.digest_of, start, self.anchor_past);
        // Bounded by the runs that were found, whatever they say by now.
        let mut wrong = None;
        let mut cursors: Vec<&Cursor> = self.cursors.iter().collect();
        cursors.sort_by_key(|cursor| cursor.at);
        let mut cursors = cursors.into_iter().peekable();
        loop {
            while let Some(cursor) = cursors.next_if(|cursor| cursor.at <= fold.next()) {
                check_cursor(&mut check, cursor, &fold);
            }
            if fold.next() >= self.end() {
                break;
            }
            match fold.step(self.map) {
                Ok(Some(_)) => check.checked += 1,
                Ok(None) => break,
                Err(stopped) => {
                    wrong = Some(stopped.to_string());
                    break;
                }
            }
        }
        if let Some(wrong) = wrong {
            check.problem(wrong);
            return (check, None);
        }
        for Cursor { who, at, .. } in cursors {
            check.problem(format!("{who} says that it is at index {at}, the order ends at {}", fold.next()));
        }
        (check, Some(Digest(fold.digest())))
    }

    /// The terms of incarnations: none is of a number that nobody claimed, none ended where the order does not go.
    fn check_terms(&self) -> Check {
        let mut check = Check::new("incarnations");
        let all = self.map.incarnations();
        let end = self.end();
        let current = Current::from_word(self.anchor_past[1]);
        let newest = all.newest();
        check.expect(newest <= HIGHEST, || {
            format!("the newest incarnation is {newest}, expected {HIGHEST} at most")
        });
        let lanes = self.map.lane_entries().len();
        check.expect(current.number() <= newest && current.lane().is_none_or(|lane| usize::from(lane) < lanes), || {
            let (number, lane) = (current.number(), current.lane());
            format!("incarnation {number} (lane {lane:?}) is current at the anchor, {newest} are claimed, of {lanes} lanes")
        });
        for &(lane, state) in &self.terms {
            let holds = match state {
                TermState::None => true,
                TermState::Open(number) => number <= newest && number > 0,
                TermState::Ended(at) => at < end,
            };
            check.expect(holds, || {
                format!("the term of lane {lane} is {state:?}; {newest} are claimed, the order ends at {end}")
            });
        }
        check
    }
}

/// What workers say of what they have passed.
fn check_reports(agreement: &Agreement, end: Seq) -> Check {
    let mut check = Check::new("reports");
    for Reporter { name, slot, reported, .. } in agreement.reporting() {
        let last = reported.map_or(end, |(_, last)| last);
        check.expect(last < end, || {
            format!("worker {:?} (slot {slot}) reports index {last}, the order ends at {end}", name.as_str())
        });
    }
    if let Some(diverged) = &agreement.divergence {
        check.problem(format!("workers differ at {diverged}"));
    }
    check
}

fn check_cursor(check: &mut Check, cursor: &Cursor, fold: &Fold) {
    let Cursor { who, at, past } = cursor;
    let (next, [digest, current]) = (fold.next(), fold.past());
    check.expect(*at == next && *past == [digest, current], || {
        if *at < next {
            format!("{who} gates at index {at}, before the anchor")
        } else if past[0] != digest {
            let expected = Digest(digest);
            format!("{who} has the digest {} at index {at}, expected {expected}", Digest(past[0]))
        } else {
            let [found, expected] = [past[1], current].map(|word| Current::from_word(word).number());
            format!("{who} has incarnation {found} current at index {at}, expected {expected}")
        }
    });
}

/// Where the workers that gate say that they are.
fn cursors(map: &Map) -> Vec<Cursor> {
    let mut cursors = Vec::new();
    for (slot, (member, page)) in map.members().iter().zip(map.worker_pages()).enumerate() {
        let generation = member.generation.load(Ordering::Relaxed);
        if member.state.load(Ordering::Relaxed) != LIVE || !page.party.has_begun(generation) {
            continue;
        }
        let who = format!("worker {:?} (slot {slot})", Name::from_words(member.name.load()));
        let whole = (0..64).find_map(|_| page.cursor.load());
        // One that was let in and has not stored its cursor since gates where it starts.
        if let Some((at, past)) = whole.filter(|(at, _)| *at == gate(member, page)) {
            cursors.push(Cursor { who, at, past });
        }
    }
    cursors
}

/// The digest of a payload that no gate of ours keeps: of a copy, by words.
fn copied_digest(words: &[AtomicU64], len: usize) -> u64 {
    payload_digest(bytes_of(&copied(words), len))
}

fn copied(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::os::unix::fs::FileExt;
    use std::thread;

    use seriatim_ring::control::WorkerPage;

    use super::*;
    use crate::region::layout::Layout;
    use crate::{Config, JoinOptions, Producer, Sequencer, Worker};

    /// A region in which commands are held for a worker that has passed some of them, and tickets wait; nobody
    /// is alive in it any more.
    fn left_alone() -> Region {
        let config = Config::new().order_slots(16).lane_cells(16).lane_bytes(1024).producers(2).workers(2);
        let region = Region::anonymous(&config).unwrap();
        let mut sequencer = Sequencer::open(&region).unwrap();
        let attaching = thread::spawn({
            let region = region.clone();
            move || {
                let options = JoinOptions::new().release_every(1);
                let worker = Worker::join_with(&region, "w", &options).unwrap();
                (worker, ["a", "b"].map(|name| Producer::attach(&region, name).unwrap()))
            }
        });
        while !attaching.is_finished() {
            sequencer.poll(16).unwrap();
        }
        let (mut worker, mut producers) = attaching.join().unwrap();
        for len in [3, 60, 40, 70, 0] {
            for producer in &mut producers {
                producer.submit(1, &vec![b'x'; len]).unwrap();
                sequencer.poll(16).unwrap();
            }
        }
        while worker.next() < Seq::new(7) {
            let said = worker.poll().unwrap().map(|event| event.seq().get());
            if let Some(said) = said {
                worker.report(said).unwrap();
            }
        }
        drop(sequencer);
        producers[0].submit(2, b"queued").unwrap();
        worker.fall();
        drop(producers);
        region
    }

    fn problems(region: &Region) -> String {
        let found = region.verify();
        assert!(!found.is_moving);
        found.checks.iter().flat_map(|check| check.problems.clone()).collect::<Vec<_>>().join("\n")
    }

    /// Damages one word and says what is found, then mends it.
    fn damaged(region: &Region, at: impl Fn(&Layout) -> u64, to: impl Fn(u64) -> u64) -> String {
        let at = at(region.map().layout());
        let mut word = [0; 8];
        region.file().read_exact_at(&mut word, at).unwrap();
        let damage = to(u64::from_le_bytes(word)).to_le_bytes();
        region.file().write_all_at(&damage, at).unwrap();
        let found = problems(region);
        region.file().write_all_at(&word, at).unwrap();
        found
    }

    #[test]
    fn what_is_left_alone_is_sound_and_a_successor_finds_the_same() {
        let region = left_alone();
        let found = region.verify();
        assert!(found.is_sound() && !found.is_moving, "{found:?}");
        let counts: Vec<_> = found.checks.iter().map(|check| (check.name, check.checked)).collect();
        assert!(counts.iter().all(|(_, count)| *count > 0), "{counts:?}");
        let mut sequencer = Sequencer::open(&region).unwrap();
        while sequencer.poll(1).unwrap().commands > 0 {
            assert_eq!(problems(&region), "");
        }
    }

    #[test]
    fn what_does_not_hold_is_named() {
        let region = left_alone();
        let slot = |run: u64, word: u64| move |layout: &Layout| layout.order + run * 32 + word * 8;
        let cell = |lane: u16, cell: u64, word: u64| {
            move |layout: &Layout| layout.lane(lane).cells + cell * 64 + word * 8
        };
        // Of the reports from index 0 on the fifth: behind the words that come before slots.
        let report =
            |layout: &Layout| layout.worker(0) + offset_of!(WorkerPage, reports) as u64 + 128 + 4 * 32;
        let last = region.map().order().last().unwrap();
        let cases = [
            (damaged(&region, slot(last, 0), |word| word + 1), "belongs to another slot"),
            (damaged(&region, slot(last, 1), |first| first + 1), "first index is"),
            (damaged(&region, slot(last, 2), |what| what | 0x3ff << 54), "lane is 1023"),
            (damaged(&region, slot(last, 3), |cell| cell + 1), "begins at cell"),
            (damaged(&region, cell(1, 4, 0), |head| head | 1 << 60), "address is 4096, expected 0"),
            (damaged(&region, cell(1, 4, 1), |digest| digest ^ 1), "payload digest is"),
            (damaged(&region, cell(1, 2, 3), |inline| inline ^ 1 << 63), "payload digest is"),
            (damaged(&region, |layout| layout.lane(2).bytes + 64, |bytes| bytes ^ 1), "payload digest is"),
            (damaged(&region, report, |index| index + 100), "worker \"w\" (slot 0) reports index 104"),
        ];
        for (found, expected) in cases {
            assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
        }
        let control = region.map().control();
        let published = control.published.next.load(Ordering::Relaxed);
        control_word(&region, &control.published.next, published + 1, "published says");
        let entry = region.map().lane_entry(1);
        let (released, ordered) =
            (entry.released.load(Ordering::Relaxed), entry.ordered.load(Ordering::Relaxed));
        control_word(&region, &entry.released, ordered + 1, "lane 1: released is");
        control_word(&region, &entry.ordered, released, "lane 1: ordered is");
        let (at, [digest, current, run]) = control.anchor.load().unwrap();
        control.anchor.store(at, [digest ^ 1, current, run]);
        assert!(problems(&region).contains("worker \"w\" (slot 0) has the digest"));
        control.anchor.store(at, [digest, current, run]);
        assert_eq!(problems(&region), "");
    }

    #[test]
    fn a_worker_that_checks_payloads_delivers_none_that_is_wrong() {
        let region = left_alone();
        // The payload of the first cell of lane 1 that is held in the ring of bytes.
        let at = region.map().layout().lane(1).bytes + 64;
        let mut byte = [0];
        region.file().read_exact_at(&mut byte, at).unwrap();
        region.file().write_all_at(&[byte[0] ^ 1], at).unwrap();
        let mut sequencer = Sequencer::open(&region).unwrap();
        let joining = thread::spawn({
            let region = region.clone();
            move || {
                let options = JoinOptions::new().check_payloads(true);
                ["checks", "trusts"].map(|name| {
                    Worker::join_with(&region, name, &options.clone().check_payloads(name == "checks"))
                        .unwrap()
                })
            }
        });
        while !joining.is_finished() {
            sequencer.poll(16).unwrap();
        }
        let [mut checks, mut trusts] = joining.join().unwrap();
        while trusts.poll().unwrap().is_some() {}
        let error = loop {
            match checks.poll() {
                Ok(event) => assert!(event.is_some(), "it did not notice"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("corrupt at index") && error.contains("payload digest"), "{error}");
        assert_eq!(checks.poll().unwrap_err().to_string(), error, "it stays where it is");
        let recorded = &region.errors().records;
        assert!(
            recorded.iter().any(|record| record.who == "checks" && record.what == error && record.count == 2)
        );
    }

    /// Gives a word of the sequencer's another value, says whether that is found, and gives it its own again.
    fn control_word(region: &Region, word: &seriatim_ring::sync::AtomicU64, value: u64, expected: &str) {
        region.map().make_writable(crate::region::layout::Part::Control).unwrap();
        let before = word.load(Ordering::Relaxed);
        word.store(value, Ordering::Relaxed);
        let found = problems(region);
        word.store(before, Ordering::Relaxed);
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    }

    #[test]
    fn a_walk_ends_whatever_the_region_says() {
        let region = left_alone();
        let layout = *region.map().layout();
        let mut random = 7_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 20) % below
        };
        for _ in 0..2_000 {
            let at = layout.control + draw(layout.total - layout.control) / 8 * 8;
            let value = [0, u64::MAX, draw(u64::MAX), draw(300)][draw(4) as usize];
            let _ = damaged(&region, |_| at, |_| value);
        }
        assert_eq!(problems(&region), "");
    }
}
