//! The mapping and its typed views: the only file that talks to mmap and the only one that makes references
//! into a region.
//!
//! Invariants that the safety comments name:
//!
//! - **\[M1\]** The mapping is `layout.total` bytes long, page-aligned, and lives as long as the `Map`.
//! - **\[M2\]** Every offset comes from [`Layout`], which keeps sections inside `total` and aligned.
//! - **\[M3\]** What is seen through typed views is atomic words only: any bytes are valid, and other processes
//!   may write them at any time.
//!
//! A region is mapped read-only. A party makes the pages that it writes writable when it attaches, so a wild
//! store faults in the process that makes it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

use memmap2::{Advice, MmapOptions, MmapRaw};
use seriatim_ring::control::{Bells, Control, LaneEntry, LanePage, MemberEntry, WorkerPage};
use seriatim_ring::errors::{ErrorLog, ErrorSlot};
use seriatim_ring::incarnations::{Incarnations, Term};
use seriatim_ring::lane::{Cell, Lane};
use seriatim_ring::order::{Order, Slot};
use seriatim_ring::pad::Padded;
use seriatim_ring::sequencer::Shared;
use seriatim_ring::sync::{AtomicU32, AtomicU64};
use seriatim_ring::tickets::Tickets;

use super::Region;
use super::guard::Guard;
use super::layout::{ERROR_SLOTS, HINT_BYTES, Layout, Part};
use super::memory;
use crate::sys;

/// Types that consist of atomic words.
///
/// # Safety
/// Every bit pattern is a valid value, and all bytes lie in atomics (or padding that nobody reads).
unsafe trait Words {}

// SAFETY: atomics and padding only; see the definitions in `seriatim_ring`.
unsafe impl Words for Control {}
// SAFETY: as above.
unsafe impl Words for LaneEntry {}
// SAFETY: as above.
unsafe impl Words for MemberEntry {}
// SAFETY: as above.
unsafe impl Words for Slot {}
// SAFETY: as above.
unsafe impl Words for Bells {}
// SAFETY: as above.
unsafe impl Words for LanePage {}
// SAFETY: as above.
unsafe impl Words for Cell {}
// SAFETY: as above.
unsafe impl Words for WorkerPage {}
// SAFETY: as above.
unsafe impl Words for ErrorSlot {}
// SAFETY: as above.
unsafe impl Words for Term {}
// SAFETY: an atomic word.
unsafe impl Words for AtomicU64 {}
// SAFETY: an atomic word and padding that nobody reads.
unsafe impl Words for Padded<AtomicU64> {}

/// A region in memory.
#[derive(Debug)]
pub(crate) struct Map {
    /// Holds no locks: the living are probed through it.
    file: File,
    base: NonNull<u8>,
    layout: Layout,
    /// Where each lane lies, so that nobody computes it for a command.
    lanes: Box<[LaneParts]>,
    /// Dropped before the mapping.
    guard: OnceLock<Guard>,
    /// Keeps the mapping.
    raw: MmapRaw,
}

/// Where words lie in a mapping: for who has looked them up and cannot keep the borrow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordsAt {
    offset: usize,
    count: usize,
}

/// A lane's parts in the mapping.
#[derive(Debug)]
struct LaneParts {
    page: NonNull<LanePage>,
    cells: NonNull<[Cell]>,
    words: NonNull<[AtomicU64]>,
}

// SAFETY: [M3] all access through `&Map` is by atomic words; raw pointers are handed to `payload`, which argues
// for itself.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file of `layout.total` bytes, read-only unless `writable`.
    pub(crate) fn new(file: File, layout: Layout, writable: bool) -> io::Result<Map> {
        let len = usize::try_from(layout.total).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        let mut options = MmapOptions::new();
        options.len(len);
        let raw = if writable { options.map_raw(&file)? } else { options.map_raw_read_only(&file)? };
        // The mapping of a non-empty file is never at address 0.
        let base =
            NonNull::new(raw.as_mut_ptr()).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let mut map = Map { file, base, layout, lanes: Box::default(), guard: OnceLock::new(), raw };
        map.lanes = (0..=layout.geometry.producers as u16).map(|lane| map.parts_of(lane)).collect();
        Ok(map)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How many ranks there are.
    #[inline]
    pub(crate) fn ranks(&self) -> u16 {
        // At most as many as there can be workers.
        self.layout.geometry.ranks as u16
    }

    /// How many bytes are mapped.
    pub(crate) fn bytes(&self) -> u64 {
        self.layout.total
    }

    /// Guards the mapping against a file that is shortened.
    pub(crate) fn guard(&self) -> io::Result<()> {
        /// One at a time: of two guards of one mapping one would be dropped again, which may be the one that was hit.
        static MAKING: Mutex<()> = Mutex::new(());
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if self.guard.get().is_none() {
            let _ = self.guard.set(Guard::new(self.raw.as_ptr(), self.raw.len())?);
        }
        Ok(())
    }

    /// Whether an access found a page gone.
    pub(crate) fn is_hit(&self) -> bool {
        self.guard.get().is_some_and(Guard::is_hit)
    }

    /// Touches every page for writing, so that none is missing later.
    pub(crate) fn populate(&self) -> io::Result<()> {
        // From Linux 5.14; before that the first use of a page takes a fault, and nothing else changes.
        match self.raw.advise(Advice::PopulateWrite) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }

    /// Enters a range into this process's page tables, so that no use of it takes a fault later; for writing where it
    /// can be written. Before Linux 5.14, or if memory for the tables is short, the first use takes the fault, and
    /// nothing else changes.
    pub(crate) fn enter(&self, range: Range<u64>, for_writing: bool) {
        debug_assert!(range.start <= range.end && range.end <= self.layout.total);
        let advice = if for_writing { Advice::PopulateWrite } else { Advice::PopulateRead };
        let _ = self.raw.advise_range(advice, range.start as usize, (range.end - range.start) as usize);
    }

    /// Has the pages of a range, those that are not there yet, taken from these NUMA nodes: whoever makes them, through
    /// whatever mapping of the file.
    pub(crate) fn take_pages_from(
        &self,
        range: Range<u64>,
        policy: libc::c_int,
        nodes: &[u32],
    ) -> io::Result<()> {
        sys::set_memory_policy(self.address(range.start), (range.end - range.start) as usize, policy, nodes)
    }

    /// Makes a range a mapping by itself in what the kernel tells of mappings. Nothing else changes, but how far a file
    /// on a disk is read ahead.
    pub(crate) fn set_apart(&self, range: Range<u64>) -> io::Result<()> {
        self.raw.advise_range(Advice::Random, range.start as usize, (range.end - range.start) as usize)
    }

    /// Where an offset lies in this process.
    pub(crate) fn address(&self, offset: u64) -> usize {
        self.pointer(offset).as_ptr() as usize
    }

    /// Asks for huge pages, for those that are not there yet.
    pub(crate) fn ask_for_huge_pages(&self) -> io::Result<()> {
        self.raw.advise(Advice::HugePage)
    }

    /// Has the kernel enter all pages into this process's page tables, reading none.
    pub(crate) fn enter_all(&self) -> io::Result<()> {
        self.raw.advise(Advice::PopulateRead)
    }

    /// Bytes of this mapping that lie in huge pages.
    pub(crate) fn huge_bytes(&self) -> io::Result<u64> {
        let start = self.raw.as_ptr() as usize;
        memory::huge_bytes(start..start + self.raw.len())
    }

    /// Locks this mapping in memory, and no other.
    pub(crate) fn lock(&self) -> io::Result<()> {
        self.raw.lock()
    }

    /// Makes the pages of a part writable in this mapping. Needs a descriptor that was opened for writing.
    pub(crate) fn make_writable(&self, part: Part) -> io::Result<()> {
        self.protect(self.layout.range(part), libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Makes the cells and bytes of a lane unreadable in this mapping: for tests that show who reads what.
    #[cfg(test)]
    pub(crate) fn make_contents_unreadable(&self, lane: u16) -> io::Result<()> {
        self.make_unreadable(self.layout.lane(lane).cells..self.layout.range(Part::Lane(lane)).end)
    }

    /// Makes whole pages unreadable in this mapping.
    #[cfg(test)]
    pub(crate) fn make_unreadable(&self, range: Range<u64>) -> io::Result<()> {
        self.protect(range, libc::PROT_NONE)
    }

    fn protect(&self, range: Range<u64>, protection: libc::c_int) -> io::Result<()> {
        let start = self.pointer(range.start).as_ptr().cast();
        let len = (range.end - range.start) as usize;
        // SAFETY: [M1, M2] the range is pages of this mapping. Taking rights away (in tests) can make an access
        // fault, which is not undefined behaviour of this call.
        if unsafe { libc::mprotect(start, len, protection) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    #[inline]
    fn pointer(&self, offset: u64) -> NonNull<u8> {
        debug_assert!(offset < self.layout.total);
        // SAFETY: [M1, M2] the offset lies inside the mapping.
        unsafe { self.base.add(offset as usize) }
    }

    #[inline]
    fn one<T: Words>(&self, offset: u64) -> &T {
        &self.many(offset, 1)[0]
    }

    #[inline]
    fn many<T: Words>(&self, offset: u64, count: u64) -> &[T] {
        debug_assert!(offset + count * size_of::<T>() as u64 <= self.layout.total);
        debug_assert!(offset.is_multiple_of(align_of::<T>() as u64));
        // SAFETY: [M1, M2] the slice lies inside the mapping, aligned; [M3] any bytes are valid and only atomic
        // words are shared; it borrows from `self`, which keeps the mapping.
        unsafe { NonNull::slice_from_raw_parts(self.pointer(offset).cast(), count as usize).as_ref() }
    }

    #[inline]
    pub(crate) fn control(&self) -> &Control {
        self.one(self.layout.control)
    }

    /// The sequencer's entries for the lanes; number 0 is its own lane.
    #[inline]
    pub(crate) fn lane_entries(&self) -> &[LaneEntry] {
        self.many(self.layout.lane_entries, self.layout.geometry.producers + 1)
    }

    #[inline]
    pub(crate) fn lane_entry(&self, lane: u16) -> &LaneEntry {
        &self.lane_entries()[usize::from(lane)]
    }

    #[inline]
    pub(crate) fn members(&self) -> &[MemberEntry] {
        self.many(self.layout.member_entries, self.layout.geometry.workers)
    }

    #[inline]
    pub(crate) fn order(&self) -> Order<'_> {
        Order::new(self.many(self.layout.order, self.layout.geometry.order_slots))
    }

    #[inline]
    pub(crate) fn tickets(&self) -> Tickets<'_> {
        let words = self.many(self.layout.tickets + HINT_BYTES, self.layout.ticket_words);
        Tickets::new(self.one(self.layout.tickets), words)
    }

    #[inline]
    pub(crate) fn bells(&self) -> &Bells {
        self.one(self.layout.bells)
    }

    /// The numbers of incarnations, and the lanes' terms.
    #[inline]
    pub(crate) fn incarnations(&self) -> Incarnations<'_> {
        let at = self.layout.channel;
        let terms = at + size_of::<Padded<AtomicU64>>() as u64;
        Incarnations::new(self.one(at), self.many(terms, self.layout.geometry.producers + 1))
    }

    pub(crate) fn error_log(&self) -> ErrorLog<'_> {
        let slots = self.layout.errors + size_of::<ErrorSlot>() as u64;
        ErrorLog::new(self.one(self.layout.errors), self.many(slots, ERROR_SLOTS))
    }

    #[inline]
    pub(crate) fn lane_page(&self, lane: u16) -> &LanePage {
        // SAFETY: [M1, M3] made from a reference into this mapping, which `self` keeps.
        unsafe { self.lanes[usize::from(lane)].page.as_ref() }
    }

    fn parts_of(&self, lane: u16) -> LaneParts {
        let at = self.layout.lane(lane);
        LaneParts {
            page: NonNull::from_ref(self.one(at.page)),
            cells: NonNull::from_ref(self.many(at.cells, at.cell_count)),
            words: NonNull::from_ref(self.many(at.bytes, at.byte_count / 8)),
        }
    }

    /// Lane `lane`, which exists: numbers from the region are checked against the geometry before.
    #[inline]
    pub(crate) fn lane(&self, lane: u16) -> Lane<'_> {
        let LaneParts { cells, words, .. } = &self.lanes[usize::from(lane)];
        // SAFETY: [M1, M3] made from a reference into this mapping, which `self` keeps.
        let cells = unsafe { cells.as_ref() };
        // SAFETY: [M1, M3] as above.
        let words = unsafe { words.as_ref() };
        Lane::new(&self.lane_page(lane).claimed, cells, words)
    }

    /// Where words of this mapping lie in it.
    #[inline(always)]
    pub(crate) fn place_of(&self, words: &[AtomicU64]) -> WordsAt {
        WordsAt { offset: words.as_ptr().addr().wrapping_sub(self.base.addr().get()), count: words.len() }
    }

    /// The words at a place.
    #[inline(always)]
    pub(crate) fn words(&self, WordsAt { offset, count }: WordsAt) -> &[AtomicU64] {
        let bytes = self.layout.total as usize;
        assert!(offset <= bytes && count <= (bytes - offset) / 8 && offset.is_multiple_of(8));
        self.many(offset as u64, count as u64)
    }

    #[inline]
    pub(crate) fn worker_pages(&self) -> &[WorkerPage] {
        self.many(self.layout.workers, self.layout.geometry.workers)
    }

    #[inline]
    pub(crate) fn worker_page(&self, slot: u16) -> &WorkerPage {
        self.one(self.layout.worker(slot))
    }

    /// Everything that a sequencer works on.
    #[inline]
    pub(crate) fn shared(&self) -> Shared<'_> {
        Shared {
            control: self.control(),
            lanes: self.lane_entries(),
            members: self.members(),
            workers: self.worker_pages(),
            order: self.order(),
            tickets: self.tickets(),
            own: self.lane(0),
            bells: self.bells(),
            lane_cells: self.layout.geometry.lane_cells,
        }
    }
}

/// What a producer works on for every command, looked up once.
#[derive(Debug)]
pub(crate) struct ProducerParts {
    lane: Lane<'static>,
    entry: &'static LaneEntry,
    tickets: Tickets<'static>,
    control: &'static Control,
    bells: &'static Bells,
    _region: Region,
}

impl ProducerParts {
    pub(crate) fn of(region: &Region, lane: u16) -> ProducerParts {
        let map = kept(region);
        ProducerParts {
            lane: map.lane(lane),
            entry: map.lane_entry(lane),
            tickets: map.tickets(),
            control: map.control(),
            bells: map.bells(),
            _region: region.clone(),
        }
    }

    #[inline(always)]
    pub(crate) fn lane(&self) -> &Lane<'_> {
        &self.lane
    }

    #[inline(always)]
    pub(crate) fn entry(&self) -> &LaneEntry {
        self.entry
    }

    #[inline(always)]
    pub(crate) fn tickets(&self) -> &Tickets<'_> {
        &self.tickets
    }

    #[inline(always)]
    pub(crate) fn control(&self) -> &Control {
        self.control
    }

    #[inline(always)]
    pub(crate) fn bells(&self) -> &Bells {
        self.bells
    }
}

/// What a sequencer works on, looked up once.
#[derive(Debug)]
pub(crate) struct SequencerParts {
    shared: Shared<'static>,
    _region: Region,
}

impl SequencerParts {
    pub(crate) fn of(region: &Region) -> SequencerParts {
        SequencerParts { shared: kept(region).shared(), _region: region.clone() }
    }

    #[inline(always)]
    pub(crate) fn shared(&self) -> &Shared<'_> {
        &self.shared
    }
}

/// The map of a region that the caller keeps a clone of beside what it takes from here; that is handed out for no
/// longer than both are borrowed.
fn kept(region: &Region) -> &'static Map {
    let map = std::ptr::from_ref(region.map());
    // SAFETY: a clone of the region keeps the map where it is. The two callers, above, keep one.
    unsafe { &*map }
}

/// Part of a file that is nothing but shared words, mapped by itself.
#[derive(Debug)]
pub(crate) struct WordMap {
    /// Dropped before the mapping.
    guard: Option<Guard>,
    raw: MmapRaw,
    /// Where it ends in the file.
    end: u64,
}

impl WordMap {
    /// All of a file.
    pub(crate) fn new(file: &File) -> io::Result<WordMap> {
        let raw = MmapOptions::new().map_raw(file)?;
        Ok(WordMap { guard: None, end: raw.len() as u64, raw })
    }

    /// A range of a region's file behind its sections, which begins at a page; guarded if the region is.
    pub(crate) fn behind(map: &Map, range: Range<u64>, writable: bool) -> io::Result<WordMap> {
        // In whole words, the last of which may reach behind the range, in its last page.
        let len = (range.end - range.start).next_multiple_of(8);
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        let mut options = MmapOptions::new();
        options.offset(range.start).len(len);
        let raw =
            if writable { options.map_raw(&map.file)? } else { options.map_raw_read_only(&map.file)? };
        let guard = map.guard.get().map(|_| Guard::new(raw.as_ptr(), raw.len())).transpose()?;
        Ok(WordMap { guard, raw, end: range.end })
    }

    /// Where it ends in the file, if an access found a page gone.
    pub(crate) fn hit(&self) -> Option<u64> {
        self.guard.as_ref().filter(|guard| guard.is_hit()).map(|_| self.end)
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned and as long as it says, any bytes are valid words, all access is
        // atomic, and the slice borrows from what keeps the mapping.
        unsafe { std::slice::from_raw_parts(self.raw.as_ptr().cast(), self.raw.len() / 8) }
    }

    /// The less significant half of a word, for the kernel's 32-bit waits.
    pub(crate) fn low_half(&self, at: usize) -> &AtomicU32 {
        const { assert!(cfg!(target_endian = "little")) };
        let word = self.words()[at].as_ptr().cast::<AtomicU32>();
        // SAFETY: the word lies in the mapping, which outlives the borrow, its first half is aligned, and all access to
        // it is atomic; this one is handed to the kernel alone, which compares it.
        unsafe { &*word }
    }
}
