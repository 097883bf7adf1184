//! What workers write down, and the check of it: dense indexes, per-producer order, nothing missing, nothing
//! twice, the same for all, and digests that follow from the payloads.
//!
//! A record is a row of words: `index │ what │ number │ per-producer index or slot │ payload digest │ chain digest
//! before it`, and for changes of the world four words of name.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use seriatim::{
    Event, MemberChange, Name, Producer, ProducerRole, Region, Sequenced, WaitError, Worker, payload_digest,
};
use seriatim_ring::control::NameWords;
use seriatim_ring::digest::{Folded, START, fold};
use seriatim_ring::event;
use seriatim_ring::lane::SPILLED;
use seriatim_ring::parts::{self, Address};
use seriatim_ring::spill::Record;

use super::Random;

/// Kinds from here on are not for users.
pub(crate) const KINDS: u64 = 0xff00;

/// The command that a producer submits as its `index`th.
pub(crate) fn payload(producer: usize, index: u64) -> (u16, Vec<u8>) {
    let mut random = Random((producer as u64) << 40 ^ index);
    let len = match random.below(32) {
        0 | 1 => 0,
        2..24 => random.below(48),
        24..30 => random.below(300),
        30 => random.below(1500),
        // Beside the lane, where that is small.
        _ => 2049 + random.below(10_000),
    };
    ((index % KINDS) as u16, (0..len).map(|_| random.next() as u8).collect())
}

/// The parts of a command, in a region of so many ranks, if it is divided: beginnings of its payload, which all get.
pub(crate) fn parts(payload: &[u8], ranks: u64) -> Option<Vec<&[u8]>> {
    let (len, ranks) = (payload.len(), ranks as usize);
    let is_split = ranks > 0 && len % 8 == 2 && (len <= 300 || len > 2048);
    is_split.then(|| (1..=ranks).map(|nth| &payload[..len * nth / (ranks + 1)]).collect())
}

/// What a command with parts has in its cell, by the format: its length, and the digest of its table.
fn divided(payload: &[u8], parts: &[&[u8]]) -> (u64, u64) {
    let mut extent = parts::Extent::of_table(parts.len());
    extent.add(payload.len());
    let span =
        |offset, bytes: &[u8]| parts::Span { offset, len: bytes.len() as u64, digest: payload_digest(bytes) };
    let mut table = parts::head(parts.len() as u16, span(0, payload)).to_vec();
    for (nth, part) in parts.iter().enumerate() {
        let span = span(extent.add(part.len()), part);
        table.extend(parts::entry(nth, span).1);
    }
    let bytes: Vec<u8> = table.iter().flat_map(|word| word.to_ne_bytes()).collect();
    (extent.bytes(), payload_digest(&bytes))
}

/// What a cell says of a payload of this length and digest, by the format: the same, or that it lies elsewhere.
fn in_cell(len: u64, digest: u64, in_lane: u64) -> (u32, u64) {
    if len <= in_lane {
        (len as u32, digest)
    } else {
        (SPILLED, Record { len, digest, start: 0 }.cell_digest())
    }
}

/// The address of who has a name of ours.
fn address(name: &NameWords, ranks: u64) -> Address {
    let name = text(name);
    let nth = name.strip_prefix('w').and_then(|nth| nth.parse::<u16>().ok());
    Address::of_worker(nth.filter(|&nth| u64::from(nth) < ranks))
}

// What a record is about.
const COMMAND: u64 = 0;
const JOINED: u64 = 1;
const LEFT: u64 = 2;
const ATTACHED: u64 = 3;
const FENCED: u64 = 4;
const OPENED: u64 = 5;
const CLOSED: u64 = 6;
/// A worker's first record: the index that is delivered to it first.
const FIRST: u64 = 7;
/// A worker's last record: its next index and its digest.
const LAST: u64 = 8;

const ROW: usize = 6;
const NAME: usize = 4;

fn has_name(what: u64) -> bool {
    (JOINED..=ATTACHED).contains(&what)
}

/// Writes a worker's records, each at once, so that a killed worker has written all that it passed.
pub(crate) struct Recorder {
    file: File,
    rank: Option<u16>,
    ranks: u64,
}

impl Recorder {
    pub(crate) fn new(file: File, worker: &Worker, ranks: u64) -> Recorder {
        let mut recorder = Recorder { file, rank: worker.rank(), ranks };
        recorder.write(&[worker.first().get(), FIRST, 0, 0, 0, 0]);
        recorder
    }

    pub(crate) fn end(&mut self, worker: &Worker) {
        self.write(&[worker.next().get(), LAST, 0, 0, 0, worker.digest().0]);
    }

    fn write(&mut self, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.file.write_all(&bytes).expect("room for the records");
    }

    pub(crate) fn record(&mut self, event: &Event<'_>) {
        let seq = event.seq().get();
        let member = |what, change: &MemberChange| named(seq, what, change.number, change.slot, &change.name);
        let words = match event {
            Event::Command(c) => {
                let part =
                    parts(c.payload, self.ranks).zip(self.rank).map(|(parts, rank)| parts[usize::from(rank)]);
                assert_eq!(c.part, part, "{c:?}");
                let what = COMMAND | u64::from(c.kind) << 16 | (c.payload.len() as u64) << 32;
                vec![seq, what, c.producer, c.index, payload_digest(c.payload), c.digest.0]
            }
            Event::Joined(change) => member(JOINED, change),
            Event::Left(change) => member(LEFT, change),
            Event::ProducerAttached { number, name, lane, .. } => named(seq, ATTACHED, *number, *lane, name),
            Event::ProducerFenced { number, lane, .. } => {
                vec![seq, FENCED, *number, u64::from(*lane), 0, 0]
            }
            Event::Opened { epoch, .. } => vec![seq, OPENED, *epoch, 0, 0, 0],
            Event::Closed { epoch, .. } => vec![seq, CLOSED, *epoch, 0, 0, 0],
            other => panic!("what is {other:?}?"),
        };
        self.write(&words);
    }
}

fn named(seq: u64, what: u64, number: u64, slot: u16, name: &Name) -> Vec<u64> {
    let mut words = vec![seq, what, number, slot.into(), 0, 0];
    words.extend(name_words(name.as_str()));
    words
}

fn name_words(name: &str) -> NameWords {
    let mut bytes = [0; 32];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|j| bytes[8 * i + j])))
}

/// Writes down where a producer was told that its commands are: rows of `per-producer index │ index`.
pub(crate) struct Told {
    file: File,
    asked: u64,
}

impl Told {
    pub(crate) fn new(file: File) -> Told {
        Told { file, asked: 0 }
    }

    /// Asks, without waiting, for one of the commands that the producer submitted last, this one or an older one in
    /// turn.
    pub(crate) fn ask(&mut self, producer: &mut Producer) {
        self.asked += 1;
        let Some(index) = producer.next_index().checked_sub(1 + self.asked % 8) else { return };
        match producer.wait_sequenced_deadline(index, Instant::now()) {
            Ok(Sequenced::At(seq)) => {
                let words = [index, seq.get()];
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.file.write_all(&bytes).expect("room for the records");
            }
            // It has none yet, or the region does not know it any more.
            Ok(Sequenced::LongAgo) | Err(WaitError::Late { .. } | WaitError::Closed { .. }) => {}
            Err(error) => panic!("{}: {error}", producer.name()),
        }
    }
}

/// One record as it was read back.
type Row = Vec<u64>;

/// What one worker wrote between a join and its end.
struct Log {
    name: String,
    first: u64,
    rows: Vec<Row>,
    /// Its next index and its digest, if it lived to say so.
    last: Option<(u64, u64)>,
}

/// What was found right.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// Commands in the order.
    pub(crate) commands: u64,
    /// The same by producer.
    pub(crate) commands_of: HashMap<usize, u64>,
    /// Changes of the world.
    pub(crate) changes: u64,
    /// Records of all workers that were compared.
    pub(crate) compared: u64,
    /// Joins that were followed.
    pub(crate) joins: u64,
    /// Places that producers were told.
    pub(crate) told: u64,
}

/// Checks all that the workers of an engine wrote; what is wrong otherwise.
pub(crate) fn check(records: &Path, region: &Region) -> Result<Checked, String> {
    let logs = read_logs(records)?;
    let mut order: Vec<Option<Row>> = Vec::new();
    let mut checked = Checked { joins: logs.len() as u64, ..Checked::default() };
    for log in &logs {
        merge(log, &mut order)?;
        checked.compared += log.rows.len() as u64;
    }
    let digests = follow(&order, region, &mut checked)?;
    for log in &logs {
        if let Some((next, digest)) = log.last
            && digests[next as usize] != digest
        {
            return Err(format!(
                "{}: digest {digest:x} at {next}, not {:x}",
                log.name, digests[next as usize]
            ));
        }
    }
    checked.told = check_told(records, &order)?;
    Ok(checked)
}

/// Compares what producers were told with where workers found it; how many places that were.
fn check_told(records: &Path, order: &[Option<Row>]) -> Result<u64, String> {
    let mut names = HashMap::new();
    let mut places = HashMap::new();
    for row in order.iter().flatten() {
        match row[1] & 0xff {
            ATTACHED => drop(names.insert(row[2], text(&std::array::from_fn(|i| row[ROW + i])))),
            COMMAND => drop(places.insert((names[&row[2]].clone(), row[3]), row[0])),
            _ => {}
        }
    }
    let mut count = 0;
    for entry in fs::read_dir(records).expect("the records are there") {
        let entry = entry.expect("the records are there");
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some((me, _)) = file.strip_prefix("producer-").and_then(|rest| rest.split_once('-')) else {
            continue;
        };
        let bytes = fs::read(entry.path()).expect("a record can be read");
        // One that was killed may have left half a row.
        for row in bytes.chunks_exact(16) {
            let word = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes"));
            let (index, told) = (word(0), word(8));
            let found = places.get(&(format!("p{me}"), index));
            if found != Some(&told) {
                return Err(format!(
                    "p{me} #{index} was told to be at {told}, workers found it at {found:?}"
                ));
            }
            count += 1;
        }
    }
    Ok(count)
}

fn read_logs(records: &Path) -> Result<Vec<Log>, String> {
    let mut logs = Vec::new();
    for entry in fs::read_dir(records).expect("the records are there") {
        let entry = entry.expect("the records are there");
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("worker-") {
            logs.extend(read_log(name, &fs::read(entry.path()).expect("a record can be read"))?);
        }
    }
    Ok(logs)
}

/// `None` for a worker that ended before it wrote anything.
fn read_log(name: String, bytes: &[u8]) -> Result<Option<Log>, String> {
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes"))).collect();
    let mut log = Log { name, first: u64::MAX, rows: Vec::new(), last: None };
    let mut at = 0;
    while at + ROW <= words.len() {
        let what = words[at + 1] & 0xff;
        let len = ROW + if has_name(what) { NAME } else { 0 };
        let Some(row) = words.get(at..at + len) else { break };
        match what {
            FIRST => log.first = row[0],
            LAST => log.last = Some((row[0], row[5])),
            _ => log.rows.push(row.to_vec()),
        }
        at += len;
    }
    for (i, row) in log.rows.iter().enumerate() {
        let expected = log.first + i as u64;
        if row[0] != expected {
            return Err(format!("{}: index {} where {expected} had to come", log.name, row[0]));
        }
    }
    Ok((log.first != u64::MAX).then_some(log))
}

/// Puts a worker's records beside those of the others.
fn merge(log: &Log, order: &mut Vec<Option<Row>>) -> Result<(), String> {
    for row in &log.rows {
        let at = row[0] as usize;
        if order.len() <= at {
            order.resize(at + 1, None);
        }
        match &order[at] {
            Some(other) if other != row => {
                return Err(format!("{}: {row:?}, others had {other:?}", log.name));
            }
            Some(_) => {}
            slot => {
                debug_assert!(slot.is_none());
                order[at] = Some(row.clone());
            }
        }
    }
    Ok(())
}

/// Follows the order from its beginning and recomputes everything; the digest before each index.
fn follow(order: &[Option<Row>], region: &Region, checked: &mut Checked) -> Result<Vec<u64>, String> {
    let (ranks, in_lane) = (region.geometry().ranks, region.max_payload() as u64);
    let mut world = World { ranks, in_lane, ..World::default() };
    let mut digests = vec![START];
    let mut chain = START;
    for (seq, row) in order.iter().enumerate() {
        let Some(row) = row else { return Err(format!("nobody received index {seq}")) };
        let folded = if row[1] & 0xff == COMMAND {
            checked.commands += 1;
            world.command(row, chain)?
        } else {
            checked.changes += 1;
            world.change(row)?
        };
        chain = fold(chain, folded);
        digests.push(chain);
    }
    for (number, producer) in &world.producers {
        let commands = world.next_of[number];
        if let Some(me) = producer.strip_prefix('p').and_then(|me| me.parse().ok()) {
            checked.commands_of.insert(me, commands);
        }
    }
    Ok(digests)
}

/// What follows from the part of the order that was followed.
#[derive(Default)]
struct World {
    ranks: u64,
    /// The longest payload that lies in a lane.
    in_lane: u64,
    /// Names by number.
    producers: HashMap<u64, String>,
    /// Numbers of those who own a lane.
    owners: HashMap<u64, u64>,
    /// Commands so far, by number.
    next_of: HashMap<u64, u64>,
    /// Commands so far, by lane.
    cells: HashMap<u64, u64>,
    lanes: HashMap<u64, u64>,
    members: HashMap<u64, NameWords>,
    changes: u64,
    epoch: u64,
}

impl World {
    fn command(&mut self, row: &Row, chain: u64) -> Result<Folded, String> {
        let [seq, what, number, index, digest, before] = row[..] else { return Err("short record".into()) };
        let Some(name) = self.producers.get(&number) else {
            return Err(format!("index {seq}: nobody attached as producer {number}"));
        };
        let me: usize = name[1..].parse().map_err(|_| format!("index {seq}: a command of {name}"))?;
        let next = self.next_of.entry(number).or_default();
        if index != *next {
            return Err(format!("index {seq}: {name} #{index}, where #{next} had to come"));
        }
        *next += 1;
        *self.cells.entry(self.lanes[&number]).or_default() += 1;
        let (kind, bytes) = payload(me, index);
        let expected = (u64::from(kind), bytes.len() as u64, payload_digest(&bytes));
        let found = (what >> 16 & 0xffff, what >> 32, digest);
        if found != expected {
            return Err(format!("index {seq}: {name} #{index} is {found:?}, submitted was {expected:?}"));
        }
        if before != chain {
            return Err(format!("index {seq}: the digest of all before is {before:x}, not {chain:x}"));
        }
        let (address, (len, payload)) = match parts(&bytes, self.ranks) {
            Some(parts) => (Address::PARTS, divided(&bytes, &parts)),
            None => (Address::ALL, (bytes.len() as u64, digest)),
        };
        let (len, payload) = in_cell(len, payload, self.in_lane);
        Ok(Folded { producer: number, index, len, kind, address, payload })
    }

    /// A change of the world: one that makes sense where it stands.
    fn change(&mut self, row: &Row) -> Result<Folded, String> {
        let (seq, what, number, slot) = (row[0], row[1], row[2], row[3]);
        let name: NameWords = std::array::from_fn(|i| row.get(ROW + i).copied().unwrap_or(0));
        let wrong = |why: &str| Err(format!("index {seq}: {why}: {row:?}"));
        let event = match what {
            JOINED => {
                if self.members.insert(number, name).is_some() {
                    return wrong("joined twice");
                }
                event::Event::Joined { slot: slot as u16, number, name, address: address(&name, self.ranks) }
            }
            LEFT => {
                if self.members.remove(&number) != Some(name) {
                    return wrong("left without having joined");
                }
                event::Event::Left { slot: slot as u16, number, name, address: address(&name, self.ranks) }
            }
            ATTACHED => {
                let base = *self.cells.entry(slot).or_default();
                if self.producers.insert(number, text(&name)).is_some() {
                    return wrong("attached twice");
                }
                self.next_of.insert(number, 0);
                self.owners.insert(slot, number);
                self.lanes.insert(number, slot);
                // All producers of these tests are for themselves.
                let role = ProducerRole::Injector;
                event::Event::Attached { lane: slot as u16, number, base, name, role }
            }
            FENCED => {
                if self.owners.get(&slot) != Some(&number) {
                    return wrong("fenced, and is not the owner");
                }
                // The tests that fence a lane off do so with a ticket for no cells.
                event::Event::Fenced { lane: slot as u16, number, count: 0 }
            }
            OPENED => {
                if number <= self.epoch {
                    return wrong("an epoch that is not new");
                }
                self.epoch = number;
                event::Event::Opened { epoch: number }
            }
            CLOSED => event::Event::Closed { epoch: number },
            _ => return wrong("what is this"),
        };
        let (kind, words) = event.encode();
        let index = self.changes;
        self.changes += 1;
        let payload = event::digest(&words);
        Ok(Folded { producer: 0, index, len: event::BYTES, kind, address: Address::ALL, payload })
    }
}

fn text(name: &NameWords) -> String {
    let bytes: Vec<u8> =
        name.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
