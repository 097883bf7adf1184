//! [`Journal`]: a reader that gates, and whose handler is the disk.
//!
//! ```text
//!  lanes ──▶ fold ──▶ staged: heads and small payloads copied, longer ones left where they are
//!                        │ one write for all that is there, straight from the lanes
//!                        ▼
//!                     written ──── sync, by policy ────▶ durable
//!                        │                                  │
//!  off, every(time): its gate                        group: its gate;  all but off: the cursor in the region
//! ```
//!
//! **Nothing between the lanes and the disk.** A queue to a writer thread of its own would hold references into lanes that
//! this gate keeps anyway: the lanes are that queue. What comes while the disk is busy waits in them, and goes with the
//! next write: that is what makes one sync serve all who wait.
//!
//! **Its gate** stands, with `group`, where the disk stands: what a sync that failed may have dropped is in the lanes yet,
//! and is written again from there. With `every(time)` it stands where the writes stand, or a second of commands would have
//! to fit the lanes; what is written and not synced is then read back from the file when a sync has failed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;
use seriatim_ring::control::{JournalWords, KEPT_JOURNAL, NO_JOURNAL, PASSING_JOURNAL, UNKNOWN_SINCE};
use seriatim_ring::event::{Event as Own, OWN_LANE};
use seriatim_ring::gate::Past;
use seriatim_ring::pace;
use seriatim_ring::sequencer::start_of;
use seriatim_ring::spill::Record;
use seriatim_ring::sync::Ordering;
use seriatim_ring::wake::{FOR_ROOM, FOR_WORK, made_true};

use super::JournalError;
use super::batch::{COPIED, Lent, Payload};
use super::disk::{Disk, Local};
use super::format::{HEARD_HELLO, Head, Origin, Point, Spilled, VOID};
use super::kept;
use super::retention::{Pruner, Retention, prune_some};
use super::seat::OnJournalPage;
use super::segment::Cut;
use super::world::World;
use super::writer::{Shelf, Writer};
use crate::attach::{Seat, take_seat};
use crate::crash_point;
use crate::error::AttachError;
use crate::error_log::ErrorCode;
use crate::fold::{Fold, Met, Said};
use crate::fork::{self, Alarm};
use crate::liveness::Role;
use crate::name::Name;
use crate::payload;
use crate::poison::OnDivergence;
use crate::policy::WorkerPolicy;
use crate::region::Region;
use crate::region::file::Vigil;
use crate::region::layout::Part;
use crate::region::map::{Map, WordMap};
use crate::region::snapshot::State;
use crate::region::spill;
use crate::sys;
use crate::wait::{self, Idle, Wait};

/// When what is written is made to stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncPolicy {
    /// Never, but when a segment is sealed: the system writes it when it likes. Nothing is acknowledged as durable.
    Off,
    /// When so much time has passed since the last one.
    Every(Duration),
    /// With each write: one sync for all that has come by then.
    #[default]
    Group,
}

const GROUP_CODE: u64 = 1;

impl SyncPolicy {
    pub(super) fn code(self) -> u64 {
        match self {
            SyncPolicy::Off => 0,
            SyncPolicy::Group => GROUP_CODE,
            SyncPolicy::Every(time) => u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(GROUP_CODE + 1),
        }
    }

    pub(super) fn of_code(code: u64) -> SyncPolicy {
        match code {
            0 => SyncPolicy::Off,
            GROUP_CODE => SyncPolicy::Group,
            ns => SyncPolicy::Every(Duration::from_nanos(ns)),
        }
    }
}

/// What becomes of the order when its journal dies or cannot write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// It waits: the journal's gate stays, also when its process has ended, until a journal of that name takes it up or
    /// [who orders gives it up](crate::SequencerConfig::without_journal).
    #[default]
    Hold,
    /// It goes on without, which is said in the region's error log.
    GoOn,
}

/// How a journal is written.
#[derive(Clone, Debug)]
#[must_use]
pub struct JournalOptions {
    name: String,
    segment_bytes: u64,
    sync: SyncPolicy,
    on_failure: OnFailure,
    retention: Option<Retention>,
    timeout: Duration,
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions {
            name: "journal".into(),
            segment_bytes: 64 << 20,
            sync: SyncPolicy::default(),
            on_failure: OnFailure::default(),
            retention: None,
            timeout: Duration::from_secs(1),
        }
    }
}

impl JournalOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name under which it gates; default `journal`. Another one of that name takes up what it leaves.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// How many bytes of disk are reserved for a segment; default 64 MiB, at least 4 KiB.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// When what is written is synced; default [`SyncPolicy::Group`].
    pub fn sync(mut self, policy: SyncPolicy) -> Self {
        self.sync = policy;
        self
    }

    /// What becomes of the order when it dies or cannot write; default [`OnFailure::Hold`].
    pub fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// Which segments are pruned, a few at a time, each time one is full; default none. Snapshots are not removed: those
    /// beyond the ones that are kept hold no segment any more, and go with [`prune`](super::prune) or
    /// [`Snapshots::remove`](super::Snapshots::remove). What fails there is in the region's error log, and stops nothing.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = Some(retention);
        self
    }

    /// How long to wait for the sequencer's answer; default 1 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// A place in a region that gates.
#[derive(Debug)]
struct Gate {
    region: Region,
    seat: Seat,
    name: Name,
    /// Whether it leaves when it is dropped.
    leaves: bool,
}

impl Gate {
    fn words(&self) -> &JournalWords {
        &self.region.map().worker_page(self.seat.index).journal
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.leaves) && !fork::is_child() {
            let (map, bells) = (self.region.map(), self.region.map().bells());
            self.words().role.store(NO_JOURNAL, Ordering::Relaxed);
            map.worker_page(self.seat.index).party.leave(self.seat.generation, bells.requests_word());
            wait::wake_sequencer(bells, FOR_WORK);
            // There is nothing more for them to wait for.
            wait::wake_all(&bells.durable);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A command that was met and is not staged yet.
#[derive(Debug)]
struct Waiting {
    met: Met,
    /// What goes with the position behind it.
    past: Past,
    /// Its record and its payload, if that does not lie in its lane.
    opened: Option<(Record, Arc<WordMap>)>,
}

impl Waiting {
    /// Maps its payload, if that does not lie in its lane. Fails for lack of memory as well: then it is to be tried again.
    fn open(&mut self, map: &Map) -> Result<(), JournalError> {
        let Met { seq, lane, entry, .. } = &self.met;
        if entry.is_spilled() && self.opened.is_none() {
            let (record, words) = spill::open(map, *seq, *lane, entry)?;
            self.opened = Some((record, Arc::new(words)));
        }
        Ok(())
    }

    fn head(&self) -> Head {
        let met = &self.met;
        let flags = match met.said {
            Said::Void => VOID,
            Said::Hello(_) => HEARD_HELLO,
            _ => 0,
        };
        Head {
            seq: met.seq,
            flags,
            producer: met.owner.number,
            index: met.owner.index(&met.entry),
            shape: met.entry.shape(),
            payload: met.entry.digest,
            spilled: self
                .opened
                .as_ref()
                .map(|(Record { len, digest, .. }, _)| Spilled { len: *len, digest: *digest }),
        }
    }

    /// Its payload: long ones where they lie, short ones to be copied.
    fn payload<'m>(&self, map: &'m Map) -> Payload<'m> {
        if let Some((_, words)) = &self.opened {
            return Payload::Lent(Lent::Mapped(words.clone()));
        }
        let (words, len) = (map.lane(self.met.lane).payload(&self.met.entry), self.met.entry.len as usize);
        if len <= COPIED {
            Payload::Here(payload::read(words, len))
        } else {
            Payload::Lent(Lent::Words(map.place_of(words)))
        }
    }
}

/// Writes the order of a region into a directory, and gates: what it has not written stays in the region.
///
/// ```
/// use std::time::{Duration, Instant};
/// use seriatim::journal::{Journal, JournalOptions, Replay};
/// use seriatim::{Config, Producer, Region, Sequenced, Sequencer, SequencerConfig};
///
/// let dir = std::env::temp_dir().join(format!("journal-{}", std::process::id()));
/// let region = Region::anonymous(&Config::new())?;
/// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
/// let mut journal = Journal::open(&region, &dir, &JournalOptions::new())?;
/// let mut producer = Producer::attach(&region, "p")?;
/// let index = producer.submit(0, b"keep me")?;
/// let Sequenced::At(seq) = producer.wait_sequenced(index)? else { panic!("just now") };
/// while journal.poll()? > 0 {} // or `run` on a thread, or in a process of its own
/// region.wait_durable(seq, Instant::now() + Duration::from_secs(60))?;
/// journal.leave()?;
///
/// let mut replay = Replay::open(&dir)?.from(seq)?;
/// assert_eq!(replay.next()?.expect("it is there").payload, b"keep me");
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// When it is dropped, what it has written is in the directory as if its process had been killed, and with
/// [`OnFailure::Hold`] its gate stays. [`close`](Self::close) seals the segment first, [`leave`](Self::leave) also gives
/// the gate up.
#[derive(Debug)]
pub struct Journal {
    gate: Gate,
    alarm: Alarm,
    fold: Fold,
    writer: Writer,
    sync: SyncPolicy,
    on_failure: OnFailure,
    /// What is pruned, and what last went wrong with that.
    pruning: Option<(Pruner, String)>,
    waiting: Option<Waiting>,
    /// What goes with the position behind what is staged.
    staged_past: Past,
    released: Seq,
    /// As it was said last.
    durable: Seq,
    /// How many records each of the last two groups had, and how long the last sync took.
    groups: [usize; 2],
    sync_took: Duration,
    last_sync: Instant,
    cut: Option<Cut>,
    is_closed: bool,
    /// What it could not do, as it was said last.
    failing: Option<String>,
    vigil: Vigil,
}

impl Journal {
    /// Joins a region as its journal, and writes into a directory: from the region's anchor on if there is no journal
    /// yet, otherwise from where that ends. What a predecessor left there unsealed is sealed first, see
    /// [`cut`](Self::cut).
    ///
    /// # Errors
    /// Another journal has the directory, or it has the journal of another region or another history; what lies between
    /// its end and what the region still has is gone; it is damaged; the file system failed; or as for a worker that
    /// joins.
    pub fn open(
        region: &Region,
        dir: impl AsRef<Path>,
        options: &JournalOptions,
    ) -> Result<Journal, JournalError> {
        Self::open_on(Arc::new(Local), region, dir.as_ref(), options)
    }

    pub(super) fn open_on(
        disk: Arc<dyn Disk>,
        region: &Region,
        dir: &Path,
        options: &JournalOptions,
    ) -> Result<Journal, JournalError> {
        let name = Name::new(&options.name).map_err(AttachError::from)?;
        let origin = Origin::of(region.identity());
        let shelf = Shelf::open(disk.clone(), dir, Some(origin), LINGER.min(options.timeout))?;
        // Before anybody waits for it.
        let pruner = options.retention.map(|retention| Pruner::new(&disk, dir, retention));
        region.make_writable("a journal", &[Part::Bells, Part::Channel])?;
        region.enter_all();
        region.enter(&[Part::Channel], []);
        let holds = options.on_failure == OnFailure::Hold;
        let role = if holds { KEPT_JOURNAL } else { PASSING_JOURNAL };
        let was_kept = kept_under(region, name);
        let seat = take_seat::<OnJournalPage>(region, name, role, options.timeout)?;
        // Until it has all that it needs it has not become what others wait for, unless somebody was that before.
        let mut gate = Gate { region: region.clone(), seat, name, leaves: !was_kept };
        let map = region.map();
        region.enter(&[Part::Worker(gate.seat.index)], []);
        let before = Seq::new(gate.words().written.load(Ordering::Relaxed));
        if was_kept && shelf.ending.is_none() && before > origin.first_index {
            return Err(JournalError::Elsewhere { dir: dir.into(), before });
        }
        let (follower, past, first) = start_of(&map.members()[usize::from(gate.seat.index)]);
        let page = map.worker_page(gate.seat.index);
        page.cursor.store(follower.next(), past);
        WorkerPolicy::Gate.store(&page.policy);
        page.pace.begin_at(first.get());
        let released = follower.next();
        let mut fold = Fold::new(map, region.digest_of(), follower, past).noting_ends();
        let cut = shelf.ending.as_ref().and_then(|ending| ending.cut.clone());
        let at = match &shelf.ending {
            Some(ending) => go_to(&mut fold, map, dir, &ending.point)?,
            None => Point {
                next: fold.next(),
                digest: fold.digest(),
                incarnation: fold.current().number(),
                controller: fold.controller().unwrap_or(0),
            },
        };
        let mut world = match &shelf.ending {
            Some(ending) => ending.world.clone(),
            None => World::at(map, &fold)?,
        };
        world.seat(gate.seat.index, role, name);
        let writer = shelf.begin(at, world, origin, options.segment_bytes)?;
        let words = gate.words();
        let since = kept::first_index(&*disk, dir)?.get();
        // What its predecessor had, and was pruned since, was made durable all the same.
        let had = words.since.load(Ordering::Relaxed);
        let goes_on = was_kept && had != UNKNOWN_SINCE && at.next >= before;
        let since = Seq::new(if goes_on { since.min(had) } else { since });
        words.since.store(since.get(), Ordering::Relaxed);
        words.sync.store(options.sync.code(), Ordering::Relaxed);
        words.failing_ns.store(0, Ordering::Relaxed);
        crash_point!("join.cursor");
        page.party.begin(gate.seat.generation);
        gate.leaves = !holds;
        let mut journal = Journal {
            gate,
            alarm: Alarm::of_this_process(),
            staged_past: fold.past(),
            fold,
            writer,
            sync: options.sync,
            on_failure: options.on_failure,
            pruning: pruner.map(|pruner| (pruner, String::new())),
            waiting: None,
            released,
            durable: Seq::default(),
            groups: [0; 2],
            sync_took: Duration::ZERO,
            last_sync: Instant::now(),
            cut,
            is_closed: false,
            failing: None,
            vigil: Vigil::default(),
        };
        journal.tell();
        Ok(journal)
    }

    /// The name under which it gates.
    #[must_use]
    pub fn name(&self) -> &str {
        self.gate.name.as_str()
    }

    /// The index that is written next.
    #[must_use]
    pub fn next(&self) -> Seq {
        self.writer.written().next
    }

    /// The digest of all before [`next`](Self::next).
    #[cfg(test)]
    pub(super) fn written_digest(&self) -> u64 {
        self.writer.written().digest
    }

    /// All before this is on the disk, for good; with [`SyncPolicy::Off`] as of the last segment that was sealed.
    #[must_use]
    pub fn durable(&self) -> Seq {
        self.writer.durable().next
    }

    /// What was cut off the end of what a predecessor left.
    #[must_use]
    pub fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// How many syncs it has made.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.writer.syncs()
    }

    /// Segments that it wrote anew after an error.
    #[must_use]
    pub fn mended(&self) -> u64 {
        self.writer.mended()
    }

    /// Writes what is there, at most about a mebibyte, and syncs it if it is time; how many records were written. Waits for
    /// the disk alone; with [`SyncPolicy::Group`] also for those whom the last sync woke, half as long as that took at most.
    ///
    /// # Errors
    /// [`JournalError::Io`] and others: nothing is lost then, and the next call tries again. With
    /// [`OnFailure::Hold`] the order waits for that; with [`OnFailure::GoOn`] this journal has left.
    pub fn poll(&mut self) -> Result<u64, JournalError> {
        if self.alarm.is_raised() {
            self.check()?;
        }
        let before = self.writer.written().next;
        match self.write() {
            Ok(()) => self.succeed(),
            Err(error) => return Err(self.fail(error)),
        }
        Ok(self.writer.written().next.since(before))
    }

    fn check(&self) -> Result<(), JournalError> {
        if fork::is_child() { Err(JournalError::Forked) } else { Ok(self.gate.region.check_if_hit()?) }
    }

    fn write(&mut self) -> Result<(), JournalError> {
        if self.write_what_fits()? {
            self.writer.rotate()?;
            self.last_sync = Instant::now();
            self.tell();
            // Now there is room for what there was none for: who finds nothing written finds nothing to write.
            self.write_what_fits()?;
            self.prune();
        }
        if let SyncPolicy::Every(time) = self.sync
            && self.writer.durable() != self.writer.written()
            && self.last_sync.elapsed() >= time
        {
            self.sync()?;
        }
        Ok(())
    }

    /// Removes segments that do not have to be kept. What fails is said once as long as it is the same.
    fn prune(&mut self) {
        let Some((pruner, said)) = &mut self.pruning else { return };
        let (disk, dir) = self.writer.shelf();
        let error = prune_some(disk, dir, pruner).err().map(|error| format!("cannot prune: {error}"));
        let text = error.unwrap_or_default();
        if !text.is_empty() && *said != text {
            let (region, name) = (&self.gate.region, self.gate.name.as_str());
            region.record(ErrorCode::Journal, name, &text, self.writer.written().next.get());
            tracing::warn!("{:?}: {name}: {text}", region.path());
        }
        *said = text;
    }

    /// Whether the segment has no room for what comes next.
    fn write_what_fits(&mut self) -> Result<bool, JournalError> {
        let mut is_full = self.stage()?;
        let is_grouped = self.sync == SyncPolicy::Group;
        if is_grouped && !is_full {
            is_full = self.gather()?;
        }
        let staged = self.writer.staged();
        if staged > 0 {
            let began = Instant::now();
            self.commit(is_grouped)?;
            (self.groups, self.sync_took) = ([self.groups[1], staged], began.elapsed());
            self.tell();
            if !is_grouped {
                self.writer.push()?;
            }
        }
        Ok(is_full)
    }

    /// Writes what is staged; of a region that was cut while it was read, nothing.
    fn commit(&mut self, sync: bool) -> Result<(), JournalError> {
        let committed = self.writer.commit(Some(self.gate.region.map()), sync);
        // Whatever came of it, that is what is wrong then.
        self.gate.region.check_if_hit()?;
        committed
    }

    /// As if the last groups had been so large, and the last sync had taken so long.
    #[cfg(test)]
    pub(super) fn expect(&mut self, group: usize, sync_took: Duration) {
        (self.groups, self.sync_took) = ([group; 2], sync_took);
    }

    /// With `group`, gives those time whom the last sync woke, and who are about to submit what they do next: half as long as
    /// a sync takes, at most, until nearly as many have come as the last times. Without that two groups would take turns,
    /// a small one and a large one, and half of all syncs be for a few. Whether the segment is full now.
    fn gather(&mut self) -> Result<bool, JournalError> {
        let most = self.groups[0].max(self.groups[1]);
        let patience = (self.sync_took / 2).min(LONGEST_GATHERING);
        let (enough, until) = (most - most / 4, Instant::now() + patience);
        while (1..enough).contains(&self.writer.staged()) && self.writer.has_room() && Instant::now() < until
        {
            std::thread::yield_now();
            if self.stage()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// All that is written is on the disk after this.
    ///
    /// # Errors
    /// The file system failed; the next call tries again.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.writer.sync()?;
        self.last_sync = Instant::now();
        self.tell();
        Ok(())
    }

    /// Takes what is there; whether the segment has no room for what comes next.
    fn stage(&mut self) -> Result<bool, JournalError> {
        let Journal { gate, alarm, fold, writer, waiting, staged_past, is_closed, .. } = self;
        let map = gate.region.map();
        while writer.has_room() {
            if waiting.is_none() {
                // Nearly all of them.
                match stage_plain(fold, map, *alarm, writer) {
                    None => break,
                    Some(0) => {}
                    Some(_) => {
                        *staged_past = fold.past();
                        continue;
                    }
                }
                let met = match fold.step(map) {
                    Ok(Some(met)) => met,
                    Ok(None) => break,
                    Err(error) => return before(writer, error.into()),
                };
                if met.lane == OWN_LANE {
                    note_end(is_closed, &met);
                }
                *waiting = Some(Waiting { met, past: fold.past(), opened: None });
            }
            let Some(next) = waiting else { break };
            if let Err(error) = next.open(map) {
                return before(writer, error);
            }
            let head = next.head();
            if !writer.fits(&head) {
                return Ok(true);
            }
            writer.stage(&head, next.payload(map));
            *staged_past = next.past;
            *waiting = None;
        }
        Ok(false)
    }

    /// Says how far it is, and lets go what is kept.
    fn tell(&mut self) {
        let (written, durable) = (self.writer.written().next, self.writer.durable().next);
        let region = &self.gate.region;
        let (map, words) = (region.map(), self.gate.words());
        // Relaxed: these hand nothing over. What they speak of is not in memory.
        words.written.store(written.get(), Ordering::Relaxed);
        words.durable.store(durable.get(), Ordering::Relaxed);
        words.syncs.store(self.writer.syncs(), Ordering::Relaxed);
        crash_point!("journal.told");
        if durable > self.durable {
            self.durable = durable;
            made_true();
            wait::wake(&map.bells().durable, FOR_WORK);
        }
        if written > self.released && self.writer.staged_to() == self.writer.written() {
            self.released = written;
            let page = map.worker_page(self.gate.seat.index);
            page.cursor.store(written, self.staged_past);
            crash_point!("journal.released");
            wait::wake_sequencer(map.bells(), FOR_ROOM);
            if region.on_divergence() != OnDivergence::Report {
                // It reports nothing, and nobody is to wait for that.
                page.pace.finish(written.get());
                pace::reported();
                wait::wake(&map.bells().workers, FOR_WORK);
            }
        }
    }

    fn succeed(&mut self) {
        if self.failing.take().is_some() {
            self.gate.words().failing_ns.store(0, Ordering::Relaxed);
            let what = "writes again";
            self.gate.region.record(ErrorCode::Journal, self.name(), what, self.next().get());
        }
    }

    /// Says what is wrong, once as long as it is the same.
    fn fail(&mut self, error: JournalError) -> JournalError {
        if let JournalError::Lost(_) | JournalError::Forked = error {
            return error;
        }
        let (text, at) = (error.to_string(), self.next().get());
        if self.failing.as_ref() != Some(&text) {
            if self.failing.is_none() {
                self.gate.words().failing_ns.store(sys::monotonic_ns(), Ordering::Relaxed);
            }
            self.gate.region.record(ErrorCode::Journal, self.name(), &text, at);
            tracing::warn!("{:?}: {}: {text}", self.gate.region.path(), self.name());
            self.failing = Some(text);
        }
        if self.on_failure == OnFailure::GoOn && self.gate.leaves {
            let what = "the order goes on without its journal";
            self.gate.region.record(ErrorCode::Journal, self.name(), what, at);
            self.gate.leave();
        }
        error
    }

    /// Writes until `stop` says so, or the order is closed: what there is then is written. `stop` is asked at least each
    /// 100 ms. What fails is tried again as long as that makes sense. [`close`](Self::close) or [`leave`](Self::leave)
    /// comes next.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), with [`OnFailure::GoOn`] or where trying again does not help.
    pub fn run(&mut self, mut stop: impl FnMut() -> bool) -> Result<(), JournalError> {
        let mut idle = Idle::new(Wait::Park);
        loop {
            let is_asked = stop();
            match self.poll() {
                // What is there when it is asked is written.
                Ok(0) if is_asked || self.is_over() => return Ok(()),
                Ok(0) => {
                    if idle.step() {
                        self.rest()?;
                    }
                }
                Ok(_) => idle.reset(),
                Err(error) if is_asked || !self.is_tried_again(&error) => return Err(error),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    fn is_tried_again(&self, error: &JournalError) -> bool {
        let may_pass = matches!(
            error,
            JournalError::Io { .. } | JournalError::Unreadable(_) | JournalError::Unmapped(_)
        );
        may_pass && self.on_failure == OnFailure::Hold
    }

    /// Sleeps until there is something to write, or to sync, but not for long.
    fn rest(&mut self) -> Result<(), JournalError> {
        let Journal { gate, fold, vigil, last_sync, sync, writer, .. } = self;
        let (region, now) = (&gate.region, Instant::now());
        let due = match *sync {
            SyncPolicy::Every(time) if writer.durable() != writer.written() => *last_sync + time,
            _ => now + TICK,
        };
        let is_there = || fold.is_behind(region.map());
        if !wait::sleep(&region.map().bells().workers, FOR_WORK, Some(due.min(now + TICK)), is_there) {
            vigil.glance(region)?;
        }
        Ok(())
    }

    /// Whether there is nothing more to come.
    fn is_over(&mut self) -> bool {
        let region = &self.gate.region;
        let state = region.state();
        if matches!(state, State::Exhausted | State::Poisoned) {
            return !self.fold.is_behind(region.map());
        }
        let reopened = || state != State::Closed && region.is_alive(Role::Sequencer);
        self.is_closed && !reopened()
    }

    /// Writes out and seals. With [`OnFailure::Hold`] its gate stays, for the journal that comes next.
    ///
    /// # Errors
    /// The file system failed: the journal is then as one that was killed leaves it.
    pub fn close(mut self) -> Result<(), JournalError> {
        self.seal()
    }

    /// As [`close`](Self::close), and gives its gate up: the order goes on without.
    ///
    /// # Errors
    /// As [`close`](Self::close); its gate has the same fate as there.
    pub fn leave(mut self) -> Result<(), JournalError> {
        self.seal()?;
        self.gate.leaves = true;
        Ok(())
    }

    pub(super) fn seal(&mut self) -> Result<(), JournalError> {
        if fork::is_child() {
            return Err(JournalError::Forked);
        }
        if self.writer.staged_to() != self.writer.written() {
            self.commit(true)?;
        }
        // What was written of a region that is cut is not sealed.
        self.gate.region.check_if_hit()?;
        self.writer.seal()?;
        self.tell();
        Ok(())
    }
}

/// How long the lock of one who may be dying is waited for.
pub(super) const LINGER: Duration = Duration::from_millis(200);
/// How long it waits at most for those whom the last sync woke, however long that took.
const LONGEST_GATHERING: Duration = Duration::from_millis(2);
/// How long something that failed is left alone.
const RETRY: Duration = Duration::from_millis(50);
/// How long it sleeps at most.
const TICK: Duration = Duration::from_millis(100);

/// Whether a journal of that name has left its gate.
fn kept_under(region: &Region, name: Name) -> bool {
    use crate::attach::Kind;
    let mut slots = OnJournalPage::indexes(region);
    slots.any(|slot| OnJournalPage::owner(region, slot) == Some(name) && OnJournalPage::is_kept(region, slot))
}

/// Folds up to where a journal ends, which has to be the same history.
fn go_to(fold: &mut Fold, map: &Map, dir: &Path, end: &Point) -> Result<Point, JournalError> {
    if fold.next() > end.next {
        return Err(JournalError::Gap { dir: dir.into(), end: end.next, start: fold.next() });
    }
    while fold.next() < end.next && fold.step(map)?.is_some() {}
    let is_same = fold.next() == end.next && fold.digest() == end.digest;
    let other = || JournalError::OtherHistory {
        dir: dir.into(),
        seq: fold.next(),
        found: end.digest,
        expected: fold.digest(),
    };
    is_same.then_some(*end).ok_or_else(other)
}

/// Takes short commands of one producer, as far as they simply follow one another; how many, or `None` if nothing is
/// published. What else ends that is for a step to meet.
#[inline]
fn stage_plain(fold: &mut Fold, map: &Map, alarm: Alarm, writer: &mut Writer) -> Option<u32> {
    let most = writer.fit_surely();
    fold.walk_entries::<COPIED>(map, alarm, most, |entry, command| {
        let head = Head {
            seq: command.seq,
            flags: 0,
            producer: command.producer,
            index: command.index,
            shape: entry.shape(),
            payload: entry.digest,
            spilled: None,
        };
        writer.stage(&head, Payload::Here(command.payload));
    })
}

/// What came before something that is wrong does not wait: it is met again behind that.
#[cold]
fn before(writer: &Writer, error: JournalError) -> Result<bool, JournalError> {
    if writer.staged_to() == writer.written() { Err(error) } else { Ok(false) }
}

fn note_end(is_closed: &mut bool, met: &Met) {
    match met.own {
        Some(Own::Closed { .. }) => *is_closed = true,
        Some(Own::Opened { .. }) => *is_closed = false,
        _ => {}
    }
}
