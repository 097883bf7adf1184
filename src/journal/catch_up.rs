//! [`CatchUp`]: a worker that comes late, from the journal over into the live order.
//!
//! ```text
//! journal   0 ─────────────────────────────▶ read, handed out, nobody waits ──▶ P ··▶ F
//! ring                                              all before F is let go      │ F ─────────▶ J ────▶
//!                                                                               └─ gate taken  its own Joined
//! ```
//!
//! The journal is read until little is left; only then the gate is taken. The sequencer answers with F, the anchor: from
//! there on the ring is kept for this worker. Reading stood at P.
//!
//! - P < F: the journal is read on to F. It has all of that, and no waiting is needed for it: its own gate was before or at
//!   F when the anchor got there, its gate moves when the records are in the file, and so whoever has been told of F finds
//!   them there. If it has not, it does not gate any more, and never will have: [`CatchUpError::Gap`].
//! - P ≥ F: the ring is folded from F to P, and nothing of it handed out.
//!
//! Either way two histories meet at one index, and their digests have to be the same one.
//!
//! **What is handed out begins at the meeting point, not at J.** What others see of the worker is that of any newcomer: it
//! begins at J.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use seriatim_ring::Seq;
use seriatim_ring::incarnations::{Hello, INITIALIZED};
use seriatim_ring::parts::{Address, Span};
use seriatim_ring::sequencer::{done_with, published};

use super::disk::{Disk, Local};
use super::error::ReplayError;
use super::replay::{Record, Replay};
use crate::attach::{OnWorkerPage, check_name};
use crate::error::AttachError;
use crate::event::{Command, Event};
use crate::fold::Corrupt;
use crate::name::Name;
use crate::parts::{self, View};
use crate::payload::payload_digest;
use crate::poison::OnDivergence;
use crate::region::Region;
use crate::region::file::Vigil;
use crate::region::header::Uuid;
use crate::worker::{JoinOptions, Worker, WorkerError};
use crate::{Digest, crash_point};

/// A worker cannot go over from the journal into the live order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatchUpError {
    /// The journal cannot be read, or does not have the index.
    #[error(transparent)]
    Journal(#[from] ReplayError),
    /// The worker is not let in.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// What the region has cannot be folded, or there is no region any more.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// What a record says cannot be, or its payload has another digest than its producer took, and that is
    /// [asked for](JoinOptions::check_payloads).
    #[error("{}: {corrupt}", dir.display())]
    Corrupt {
        /// The journal's directory.
        dir: PathBuf,
        /// What, and at which index.
        corrupt: Corrupt,
    },
    /// The directory has the journal of another region.
    #[error("{} has the journal of region {found}, this one is {expected}", dir.display())]
    OtherRegion {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: Uuid,
        /// Whose it had to be.
        expected: Uuid,
    },
    /// What lies between the journal's end and what the region still has is in neither. Waiting would not help: a journal
    /// does not go on behind a gap.
    #[error(
        "{} ends at index {end}, but the region no longer has what is before {start}: \
         that went by while no journal was there",
        dir.display()
    )]
    Gap {
        /// The journal's directory.
        dir: PathBuf,
        /// The index behind its last one.
        end: Seq,
        /// The first one that the region still has.
        start: Seq,
    },
    /// The journal has more than the region.
    #[error("{} has what is before index {end}, but the region's order ends at {next}", dir.display())]
    Ahead {
        /// The journal's directory.
        dir: PathBuf,
        /// The index behind the last one that was read.
        end: Seq,
        /// The next index of the region.
        next: Seq,
    },
    /// Journal and region have different histories, or the worker had [another one](CatchUp::expecting).
    #[error("{} has another history: at index {seq} its digest is {found}, expected {expected}", dir.display())]
    OtherHistory {
        /// The journal's directory.
        dir: PathBuf,
        /// The index.
        seq: Seq,
        /// The journal's digest, or where that is not there, the region's.
        found: Digest,
        /// That of the region, or that which the worker had.
        expected: Digest,
    },
}

/// Rounds without coming nearer, after which a worker is as near as it gets.
const ROUNDS: u32 = 8;

/// A worker before it joins, that is handed what came before: [`Worker::join_from`], step by step. Whoever polls decides
/// when, and can stop in between.
///
/// It reads the journal in *rounds*: up to where that is, then up to where it has got meanwhile, and so on. Nobody waits for
/// it. When little is left, [`join`](Self::join) takes the gate.
///
/// ```no_run
/// use seriatim::journal::CatchUp;
/// use seriatim::{JoinOptions, Region, Seq};
///
/// let region = Region::attach("/dev/shm/orders")?;
/// let options = JoinOptions::new();
/// let mut history = CatchUp::open(&region, "late", "/var/lib/orders", Seq::ZERO, &options)?;
/// while !history.is_near() {
///     history.poll_batch(256, |event| println!("{event:?}"))?;
///     eprintln!("{} behind", history.lag()); // or stop here
/// }
/// let mut worker = history.join(|event| println!("{event:?}"))?;
/// println!("{:?}", worker.recv()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CatchUp {
    region: Region,
    name: Name,
    options: JoinOptions,
    dir: PathBuf,
    replay: Replay,
    reader: Reader,
    /// The first index that is handed out. The journal may not be there yet.
    from: Seq,
    /// The digest of all before that, if it is known.
    expected: Option<Digest>,
    superseded: u64,
    is_closed: bool,
    /// What it has met and cannot get past.
    stuck: Option<Corrupt>,
    /// The last look found nothing more.
    is_all: bool,
    /// How few were left at the end of a round, and how many rounds ended with no fewer.
    nearest: u64,
    rounds: u32,
    vigil: Vigil,
}

impl CatchUp {
    /// Opens a region's journal for a worker that is to join under a name, at an index: the first that is handed out. That
    /// can also be one that the journal does not have yet, and the order does: where a worker goes on that was ahead of it.
    ///
    /// # Errors
    /// The journal is not there, is that of another region, or does not have the index; the region went on
    /// [without](CatchUpError::Gap) it; or nobody could join with these options, or under this name.
    pub fn open(
        region: &Region,
        name: &str,
        dir: impl AsRef<Path>,
        from: Seq,
        options: &JoinOptions,
    ) -> Result<CatchUp, CatchUpError> {
        Self::open_on(Arc::new(Local), region, name, dir.as_ref(), from, options)
    }

    pub(super) fn open_on(
        disk: Arc<dyn Disk>,
        region: &Region,
        name: &str,
        dir: &Path,
        from: Seq,
        options: &JoinOptions,
    ) -> Result<CatchUp, CatchUpError> {
        let name = Name::new(name).map_err(AttachError::from)?;
        Worker::may_join(region, options)?;
        check_name::<OnWorkerPage>(region, name)?;
        let floor = floor(region);
        let replay = Replay::open_on(disk, dir, true)?;
        let (found, expected) = (replay.origin().uuid, region.uuid());
        if found != expected {
            return Err(CatchUpError::OtherRegion { dir: dir.into(), found, expected });
        }
        let (first, end) = (replay.first(), replay.end());
        if from > end && from > published(region.map().control()).0 {
            return Err(ReplayError::NotThere { dir: dir.into(), seq: from, first, end }.into());
        }
        let history = CatchUp {
            region: region.clone(),
            name,
            options: options.clone(),
            dir: dir.into(),
            replay: replay.from(from.min(end))?,
            reader: Reader::new(region, options),
            from,
            expected: None,
            superseded: 0,
            is_closed: false,
            stuck: None,
            is_all: false,
            nearest: u64::MAX,
            rounds: 0,
            vigil: Vigil::default(),
        };
        history.reaches(floor)?;
        Ok(history)
    }

    /// The digest of all before the first index, as who goes on there had it: if that of the history is another one, nothing
    /// is handed out. It may be known at [`join`](Self::join) only, where the journal is not there yet.
    ///
    /// # Errors
    /// [`CatchUpError::OtherHistory`].
    pub fn expecting(mut self, digest: Digest) -> Result<CatchUp, CatchUpError> {
        self.expected = Some(digest);
        if self.replay.position() == self.from {
            self.is_expected(self.from, self.replay.digest())?;
        }
        Ok(self)
    }

    fn is_expected(&self, seq: Seq, found: Digest) -> Result<(), CatchUpError> {
        match self.expected {
            Some(expected) if seq == self.from && expected != found => {
                Err(CatchUpError::OtherHistory { dir: self.dir.clone(), seq, found, expected })
            }
            _ => Ok(()),
        }
    }

    /// The index that comes next: to go on from there later is to [open](Self::open) it from there.
    #[must_use]
    pub fn next(&self) -> Seq {
        self.replay.position().max(self.from)
    }

    /// The digest of all before the index that it has come to, which is [`next`](Self::next), unless the journal is not
    /// there yet.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.replay.digest()
    }

    /// The incarnation that is current there, 0 if there was none yet.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.replay.incarnation()
    }

    /// How many commands of superseded controllers it has passed over, as [`Worker::superseded`].
    #[must_use]
    pub fn superseded(&self) -> u64 {
        self.superseded
    }

    /// How many commands are published that it has not had yet.
    #[must_use]
    pub fn lag(&self) -> u64 {
        let next = self.next();
        published(self.region.map().control()).0.max(next).since(next)
    }

    /// Whether it is time to join. Asked between two rounds it says yes if
    ///
    /// - the region still has what comes next, and the journal no more beyond that than a quarter of what a producer can have
    ///   outstanding: the order waits for the journal as it would for this worker;
    /// - the journal had nothing more when it was looked at last;
    /// - eight rounds in a row ended with no less left than one before them: a worker that is no faster than the order comes
    ///   no nearer, and others will have to wait for it once it is in, as for any slow worker.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.is_between() && (self.is_all || self.rounds >= ROUNDS || self.is_in_ring())
    }

    /// Whether a round has ended.
    fn is_between(&self) -> bool {
        self.replay.position() >= self.replay.end().min(self.common())
    }

    /// What comes before this all workers have reported, where they keep step: one that reads the history is not to act on
    /// more than they. The journal does not wait for them.
    fn common(&self) -> Seq {
        if self.region.on_divergence() != OnDivergence::Lockstep {
            return Seq::MAX;
        }
        let map = self.region.map();
        let all = map.members().iter().zip(map.worker_pages());
        all.filter_map(|(member, page)| done_with(member, page)).min().unwrap_or(Seq::MAX)
    }

    fn is_in_ring(&self) -> bool {
        let (next, few) = (self.next(), (self.region.geometry().lane_cells / 4).max(1));
        let written = self.region.journal().map_or_else(|| next.plus(self.lag()), |journal| journal.written);
        next >= floor(&self.region) && written <= next.plus(few)
    }

    /// Goes on in the history by at most `limit` indexes, and hands out those that are events to this worker, as it would be
    /// handed them in the live order; by how many it went on. It never waits: 0 says that the journal has no more yet, or that
    /// workers keep step and others have not reported what comes before.
    ///
    /// # Errors
    /// The journal cannot be read, or the region went on [without](CatchUpError::Gap) it. What came before was handed out,
    /// and the next call meets the same again.
    pub fn poll_batch(
        &mut self,
        limit: usize,
        mut handle: impl FnMut(Event<'_>),
    ) -> Result<usize, CatchUpError> {
        if self.is_between() {
            self.look_on()?;
        }
        self.read(limit, self.common(), &mut handle)
    }

    /// Looks for what has been written since: another round.
    fn look_on(&mut self) -> Result<(), CatchUpError> {
        self.vigil.glance(&self.region).map_err(WorkerError::from)?;
        let lag = self.lag();
        self.rounds = if lag < self.nearest { 0 } else { self.rounds.saturating_add(1) };
        self.nearest = self.nearest.min(lag);
        // Before the journal is looked at: what is let go by then is written.
        let floor = floor(&self.region);
        self.is_all = !self.replay.refresh()?;
        self.reaches(floor)
    }

    /// That there is no gap between the journal, or where this begins, and what the region had.
    fn reaches(&self, floor: Seq) -> Result<(), CatchUpError> {
        let end = self.replay.end();
        if end.max(self.from) >= floor {
            return Ok(());
        }
        Err(CatchUpError::Gap { dir: self.dir.clone(), end, start: floor })
    }

    /// Reads on before an index, as far as the journal was when it was looked at.
    fn read(
        &mut self,
        limit: usize,
        to: Seq,
        handle: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, CatchUpError> {
        self.is_free()?;
        let mut done = 0;
        while done < limit && self.replay.position() < to {
            self.is_expected(self.replay.position(), self.replay.digest())?;
            let Some(record) = self.replay.next()? else { break };
            crash_point!("catch-up.read");
            done += 1;
            if record.seq < self.from {
                // It had this before.
                continue;
            }
            match self.reader.event(&record) {
                Ok(Some(event)) => {
                    note_end(&mut self.is_closed, &event);
                    handle(event);
                }
                Ok(None) => self.superseded += u64::from(record.is_void),
                Err(corrupt) => {
                    self.stuck = Some(corrupt);
                    self.is_free()?;
                }
            }
        }
        Ok(done)
    }

    /// Whether it has met nothing that cannot be.
    fn is_free(&self) -> Result<(), CatchUpError> {
        let corrupt = |corrupt| CatchUpError::Corrupt { dir: self.dir.clone(), corrupt };
        self.stuck.map_or(Ok(()), |stuck| Err(corrupt(stuck)))
    }

    /// Takes the gate, and hands out what of the history lies before what the region keeps from then on. What comes next
    /// is the worker's: its [`first`](Worker::first) is the index behind what was handed out, also where it got its gate
    /// later.
    ///
    /// To others it begins at its own `Joined`: nobody waits for it to pass or to report what comes before that. It may
    /// report it, and that is compared like any report. Where workers keep step it is given what comes before that when all
    /// others have reported it.
    ///
    /// # Errors
    /// [`CatchUpError::Attach`]: nothing was handed out by this, and it can be [opened](Self::open) again where it was.
    /// [`CatchUpError::OtherHistory`] and others: the worker has left again.
    pub fn join(mut self, mut handle: impl FnMut(Event<'_>)) -> Result<Worker, CatchUpError> {
        self.is_free()?;
        let mut worker = Worker::join_with(&self.region, self.name.as_str(), &self.options)?;
        crash_point!("catch-up.seated");
        let start = worker.next();
        while self.replay.position() < start {
            if self.read(usize::MAX, start, &mut handle)? == 0 && !self.replay.refresh()? {
                self.reaches(start)?;
                break;
            }
        }
        worker.knows(self.superseded, self.is_closed);
        // Where the journal does not reach so far there is nothing to compare, and nothing is needed of it.
        if self.replay.position() >= start {
            self.meet(&mut worker)?;
        }
        self.fold(&mut worker, self.from)?;
        self.is_expected(worker.next(), worker.digest())?;
        worker.begin_here();
        crash_point!("catch-up.met");
        Ok(worker)
    }

    /// Whether both histories are one.
    fn meet(&self, worker: &mut Worker) -> Result<(), CatchUpError> {
        self.fold(worker, self.replay.position())?;
        let (seq, found, expected) = (worker.next(), self.replay.digest(), worker.digest());
        if found == expected && self.replay.incarnation() == worker.incarnation() {
            return Ok(());
        }
        Err(CatchUpError::OtherHistory { dir: self.dir.clone(), seq, found, expected })
    }

    fn fold(&self, worker: &mut Worker, to: Seq) -> Result<(), CatchUpError> {
        if worker.fold_to(to)? {
            return Ok(());
        }
        Err(CatchUpError::Ahead { dir: self.dir.clone(), end: to, next: worker.next() })
    }
}

/// All before this may be gone from the region.
fn floor(region: &Region) -> Seq {
    region.map().control().anchor.position()
}

fn note_end(is_closed: &mut bool, event: &Event<'_>) {
    match event {
        Event::Closed { .. } => *is_closed = true,
        Event::Opened { .. } => *is_closed = false,
        _ => {}
    }
}

/// What records are to a worker.
#[derive(Clone, Copy, Debug)]
struct Reader {
    ranks: u16,
    rank: Option<u16>,
    checks: bool,
}

impl Reader {
    fn new(region: &Region, options: &JoinOptions) -> Reader {
        Reader { ranks: region.ranks(), rank: options.rank, checks: options.check_payloads }
    }

    /// What a worker is handed of a record; nothing of what is for others, or for nobody.
    fn event<'r>(&self, record: &Record<'r>) -> Result<Option<Event<'r>>, Corrupt> {
        if let Some(event) = record.event() {
            return Ok(Some(event));
        }
        if record.is_void || !self.is_reached(record)? {
            return Ok(None);
        }
        let view = self.open(record)?;
        let Record { seq, producer, .. } = *record;
        if record.is_hello {
            return Ok(Some(Event::of_hello(seq, producer, hello(record)?)));
        }
        if record.kind == INITIALIZED {
            return Ok(Some(Event::Initialized { seq, producer }));
        }
        Ok(Some(Event::Command(Command {
            seq,
            producer,
            index: record.index,
            kind: record.kind,
            payload: &record.payload[view.body.range()],
            part: view.part.map(|span| &record.payload[span.range()]),
            address: record.address,
            digest: record.digest,
        })))
    }

    /// Whether it is for this worker: for all, for its rank, or with a part for it.
    fn is_reached(&self, record: &Record<'_>) -> Result<bool, Corrupt> {
        let address = record.address;
        if !address.is_within(self.ranks) {
            let (found, expected) = (address.code().into(), self.ranks.into());
            return Err(Corrupt { seq: record.seq, field: "address", found, expected });
        }
        let is_ranked = self.rank.is_some();
        let is_own = address == Address::PARTS || address == Address::of_worker(self.rank);
        Ok(address == Address::ALL || (is_ranked && is_own))
    }

    /// What of a payload is for this worker, checked if that is asked for.
    fn open(&self, record: &Record<'_>) -> Result<View, Corrupt> {
        let Record { seq, payload, payload_digest: digest, .. } = *record;
        let whole = Span { offset: 0, len: payload.len() as u64, digest };
        if record.address == Address::PARTS {
            let corrupt = |bad| parts::corrupt(seq, bad);
            let view = parts::view_in(payload, whole, self.ranks, self.rank).map_err(corrupt)?;
            if self.checks {
                parts::check_in(payload, whole, self.ranks, view).map_err(corrupt)?;
            }
            return Ok(view);
        }
        if self.checks {
            let found = payload_digest(payload);
            if found != digest {
                return Err(Corrupt { seq, field: "payload digest", found, expected: digest });
            }
        }
        Ok(View::whole(whole))
    }
}

/// What a controller said when it became current.
fn hello(record: &Record<'_>) -> Result<Hello, Corrupt> {
    let (words, rest) = record.payload.as_chunks::<8>();
    match (words, rest) {
        (&[number, nonce], []) => Ok(Hello::decode([number, nonce].map(u64::from_le_bytes))),
        _ => {
            let (found, expected) = (record.payload.len() as u64, 16);
            Err(Corrupt { seq: record.seq, field: "length of a hello", found, expected })
        }
    }
}
