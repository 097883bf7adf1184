//! Offsets and sizes of a region's sections, from its geometry alone.
//!
//! ```text
//! header     identity, geometry                                   the creator, once
//! control    Control, LaneEntry per lane, MemberEntry per worker  the sequencer
//! order      Slot per run                                         the sequencer
//! tickets    hint (a line of its own), words                      all producers
//! bells      Bells                                                all
//! channel    claimed (a line of its own), Term per lane           controllers and workers
//! errors     lost (a slot of its own), ErrorSlot per error         all
//! own lane   LanePage, cells, bytes                               the sequencer
//! lanes      per producer: LanePage, cells, bytes                 that producer
//! workers    per worker: WorkerPage                               that worker
//! ```
//!
//! Every section begins on a page, so that a process can have its own pages writable and no others.

use std::ops::Range;

use seriatim_ring::control::{Control, LaneEntry, LanePage, MemberEntry, WorkerPage};
use seriatim_ring::errors::ErrorSlot;
use seriatim_ring::event::{OWN_BYTES, OWN_CELLS};
use seriatim_ring::incarnations::Term;
use seriatim_ring::lane::Cell;
use seriatim_ring::order::Slot;
use seriatim_ring::pad::Padded;
use seriatim_ring::sync::AtomicU64;
use seriatim_ring::tickets::SPARE_WORDS;

/// Sections are aligned to this; machines with larger pages are refused at creation.
pub(crate) const PAGE: u64 = 4096;
/// The ticket words begin this far behind the hint.
pub(crate) const HINT_BYTES: u64 = 128;
/// Areas for spills begin at a multiple of this, so that huge pages fit them.
const SPILLS_ALIGN: u64 = 2 << 20;
/// Different errors that a region remembers: with the count of those that it does not, four pages.
pub(crate) const ERROR_SLOTS: u64 = 63;

/// The numbers that fix a region's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Run descriptors of the order ring.
    pub order_slots: u64,
    /// Cells of each producer's lane: how many of its commands can be outstanding.
    pub lane_cells: u64,
    /// Bytes of each producer's lane, for payloads over 40 bytes.
    pub lane_bytes: u64,
    /// How many producers can be attached.
    pub producers: u64,
    /// How many workers can be attached.
    pub workers: u64,
    /// Among how many of them commands can be divided: their ranks are the numbers below this.
    pub ranks: u64,
    /// Bytes of each producer's area for payloads that are too long for its lane: address space, not memory.
    pub spill_bytes: u64,
}

/// Where everything lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) geometry: Geometry,
    pub(crate) ticket_words: u64,
    pub(crate) control: u64,
    pub(crate) lane_entries: u64,
    pub(crate) member_entries: u64,
    pub(crate) order: u64,
    pub(crate) tickets: u64,
    pub(crate) bells: u64,
    pub(crate) channel: u64,
    pub(crate) errors: u64,
    pub(crate) own_lane: u64,
    pub(crate) lanes: u64,
    pub(crate) lane_stride: u64,
    pub(crate) workers: u64,
    pub(crate) total: u64,
    /// Where the areas for spills begin. They are no part of the mapping, and the file is as long as the last that was
    /// used.
    pub(crate) spills: u64,
}

/// A part of the region that has one kind of writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Control,
    Order,
    Tickets,
    Bells,
    Channel,
    Errors,
    Lane(u16),
    Worker(u16),
}

/// Where the parts of one lane lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneLayout {
    pub(crate) page: u64,
    pub(crate) cells: u64,
    pub(crate) cell_count: u64,
    pub(crate) bytes: u64,
    pub(crate) byte_count: u64,
}

impl LaneLayout {
    fn new(at: u64, cell_count: u64, byte_count: u64) -> Self {
        let cells = at + size::<LanePage>();
        let bytes = pages(cells + cell_count * size::<Cell>());
        LaneLayout { page: at, cells, cell_count, bytes, byte_count }
    }

    fn end(&self) -> u64 {
        pages(self.bytes + self.byte_count)
    }
}

const fn size<T>() -> u64 {
    size_of::<T>() as u64
}

const fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

impl Layout {
    /// The layout of a geometry whose values are in range; `None` if it would not fit a file.
    pub(crate) fn new(geometry: Geometry) -> Option<Self> {
        let Geometry { order_slots, lane_cells, lane_bytes, producers, workers, spill_bytes, .. } = geometry;
        // More words than cells: a producer with room in its lane finds room for its ticket.
        let ticket_words = (producers * lane_cells + SPARE_WORDS).next_power_of_two();
        let control = PAGE;
        let lane_entries = control + size::<Control>();
        let member_entries = lane_entries + (producers + 1) * size::<LaneEntry>();
        let order = pages(member_entries + workers * size::<MemberEntry>());
        let tickets = pages(order + order_slots * size::<Slot>());
        let bells = pages(tickets + HINT_BYTES + ticket_words * 8);
        let channel = bells + PAGE;
        let errors = pages(channel + size::<Padded<AtomicU64>>() + (producers + 1) * size::<Term>());
        let own_lane = pages(errors + (1 + ERROR_SLOTS) * size::<ErrorSlot>());
        let lanes = LaneLayout::new(own_lane, OWN_CELLS, OWN_BYTES).end();
        let lane_stride = LaneLayout::new(0, lane_cells, lane_bytes).end();
        let at_workers = producers.checked_mul(lane_stride)?.checked_add(lanes)?;
        let total = at_workers.checked_add(workers * size::<WorkerPage>())?;
        let spills = total.checked_next_multiple_of(SPILLS_ALIGN)?;
        let end = producers.checked_mul(spill_bytes)?.checked_add(spills)?;
        (end < 1 << 62).then_some(Layout {
            geometry,
            ticket_words,
            control,
            lane_entries,
            member_entries,
            order,
            tickets,
            bells,
            channel,
            errors,
            own_lane,
            lanes,
            lane_stride,
            workers: at_workers,
            total,
            spills,
        })
    }

    /// Where the area for spills of lane `lane` lies in the file; the sequencer's lane has none.
    pub(crate) fn spill_area(&self, lane: u16) -> Option<Range<u64>> {
        let bytes = self.geometry.spill_bytes;
        let before = u64::from(lane).checked_sub(1)?;
        let start = self.spills + before * bytes;
        (bytes > 0).then_some(start..start + bytes)
    }

    /// Whether a file of that length can be such a region: it ends with its sections, or behind the farthest page that a
    /// spill ever had.
    pub(crate) fn can_be_length(&self, bytes: u64) -> bool {
        let has_spilled = self.spills < bytes && bytes <= self.longest() && bytes.is_multiple_of(PAGE);
        bytes == self.total || has_spilled
    }

    /// The longest that the file can be: with spills at the very end.
    pub(crate) fn longest(&self) -> u64 {
        match self.geometry.spill_bytes {
            0 => self.total,
            bytes => self.spills + self.geometry.producers * bytes,
        }
    }

    /// Where lane `lane` lies; lane 0 is the sequencer's own.
    #[inline]
    pub(crate) fn lane(&self, lane: u16) -> LaneLayout {
        if lane == 0 {
            return LaneLayout::new(self.own_lane, OWN_CELLS, OWN_BYTES);
        }
        let at = self.lanes + (u64::from(lane) - 1) * self.lane_stride;
        LaneLayout::new(at, self.geometry.lane_cells, self.geometry.lane_bytes)
    }

    /// Where the page of worker `slot` lies.
    #[inline]
    pub(crate) fn worker(&self, slot: u16) -> u64 {
        self.workers + u64::from(slot) * size::<WorkerPage>()
    }

    /// The pages of a part.
    pub(crate) fn range(&self, part: Part) -> Range<u64> {
        match part {
            Part::Control => self.control..self.order,
            Part::Order => self.order..self.tickets,
            Part::Tickets => self.tickets..self.bells,
            Part::Bells => self.bells..self.channel,
            Part::Channel => self.channel..self.errors,
            Part::Errors => self.errors..self.own_lane,
            Part::Lane(lane) => self.lane(lane).page..self.lane(lane).end(),
            Part::Worker(slot) => self.worker(slot)..self.worker(slot + 1),
        }
    }

    /// What a producer reads, but for its own lane.
    pub(crate) fn read_by_producer(&self) -> [Range<u64>; 2] {
        [0..self.lanes, self.workers..self.total]
    }

    /// What a sequencer reads: no cell and no payload of a producer, unless it discards what nobody works on.
    pub(crate) fn read_by_sequencer(&self, discards: bool) -> impl Iterator<Item = Range<u64>> {
        let pages = (1..=self.geometry.producers as u16).map(move |lane| {
            let lane = self.lane(lane);
            lane.page..if discards { lane.end() } else { lane.cells }
        });
        pages.chain([0..self.lanes, self.workers..self.total])
    }

    /// The sections for people: name, place, and who writes them.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let section = |name, range: Range<u64>, writer| Section {
            name,
            offset: range.start,
            bytes: range.end - range.start,
            writer,
        };
        vec![
            section("header", 0..self.control, "creator"),
            section("control", self.range(Part::Control), "sequencer"),
            section("order", self.range(Part::Order), "sequencer"),
            section("tickets", self.range(Part::Tickets), "producers"),
            section("bells", self.range(Part::Bells), "all"),
            section("channel", self.range(Part::Channel), "controllers and workers"),
            section("errors", self.range(Part::Errors), "all"),
            section("own lane", self.range(Part::Lane(0)), "sequencer"),
            section("lanes", self.lanes..self.workers, "each its producer"),
            section("workers", self.workers..self.total, "each its worker"),
        ]
    }
}

/// A section of a region, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it is called.
    pub name: &'static str,
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// Who writes it.
    pub writer: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Geometry = Geometry {
        order_slots: 2,
        lane_cells: 2,
        lane_bytes: 128,
        producers: 3,
        workers: 2,
        ranks: 0,
        spill_bytes: 1 << 20,
    };

    #[test]
    fn sections_follow_each_other_on_pages() {
        let layout = Layout::new(SMALL).unwrap();
        let sections = layout.sections();
        for pair in sections.windows(2) {
            assert_eq!(pair[0].offset + pair[0].bytes, pair[1].offset);
            assert_eq!(pair[1].offset % PAGE, 0);
        }
        let last = sections.last().unwrap();
        assert_eq!(last.offset + last.bytes, layout.total);
    }

    #[test]
    fn lanes_and_workers_follow_each_other() {
        let layout = Layout::new(SMALL).unwrap();
        assert_eq!(layout.range(Part::Lane(1)).start, layout.lanes);
        assert_eq!(layout.range(Part::Lane(0)).end, layout.lanes);
        assert_eq!(layout.range(Part::Lane(1)).end, layout.range(Part::Lane(2)).start);
        assert_eq!(layout.range(Part::Lane(3)).end, layout.workers);
        assert_eq!(layout.range(Part::Worker(1)).end, layout.total);
        assert!(layout.spill_area(0).is_none());
        let areas = [1, 2, 3].map(|lane| layout.spill_area(lane).unwrap());
        assert!(areas[0].start >= layout.total && areas[0].start.is_multiple_of(SPILLS_ALIGN));
        assert!(areas.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!(areas[2].end, layout.longest());
        let without = Layout::new(Geometry { spill_bytes: 0, ..SMALL }).unwrap();
        assert_eq!((without.spill_area(1), without.longest()), (None, without.total));
        let lengths = [layout.total, layout.spills + PAGE, layout.longest()];
        assert!(lengths.iter().all(|&bytes| layout.can_be_length(bytes)));
        let others = [0, layout.total - 1, layout.total + 1, layout.spills + 1, layout.longest() + PAGE];
        assert!(others.iter().all(|&bytes| !layout.can_be_length(bytes)));
        assert!(!without.can_be_length(without.spills + PAGE));
    }
}
