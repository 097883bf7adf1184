//! The parts that the processes of an engine play.

use std::env;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use seriatim::shared::Stamps;
use seriatim::{
    AttachError, AttachOptions, Event, JoinOptions, Producer, Region, Sequencer, SequencerConfig, Worker,
    WorkerError,
};

use super::stream::{Recorder, Told, parts, payload};
use super::this_program;

// Words of the table that the processes share.
/// Not 0: no goal will follow.
pub(crate) const END: usize = 1;
/// Not 0: the sequencer closes the order.
pub(crate) const CLOSE: usize = 2;
/// Not 0: it has.
pub(crate) const CLOSED: usize = 3;
/// Not 0: workers go when they find the order closed.
pub(crate) const FINISH: usize = 4;
/// The epoch that serves.
pub(crate) const SERVING: usize = 5;
/// Microseconds between two submits.
pub(crate) const PACE: usize = 6;
/// Not 0: workers wait as long as it takes, and are not asked to leave.
pub(crate) const PATIENT: usize = 7;
/// Per producer: the index before which all submits have returned.
pub(crate) const ACKED: usize = 16;
/// Per worker: the next index.
pub(crate) const SEEN: usize = 32;
/// Per worker: not 0 to leave.
pub(crate) const LEAVE: usize = 48;
/// Per producer: the process that is attached.
pub(crate) const PRODUCER: usize = 64;
/// Per worker: the process that has joined.
pub(crate) const WORKER: usize = 80;
/// Per worker: the first index that is delivered to it.
pub(crate) const FIRST: usize = 112;
/// Per producer: it submits until it has as many commands.
pub(crate) const GOAL: usize = 96;
pub(crate) const WORDS: usize = 128;

const VARIABLE: &str = "SERIATIM_PART";
/// Turns a worker's digest into what it reports.
const MADE: u64 = 0x5eed_5eed_5eed_5eed;
/// For whoever waits for an answer: its sequencer may be stopped, or about to be started.
const ANSWER: Duration = Duration::from_secs(100);
const TICK: Duration = Duration::from_millis(1);

/// What a process is to do.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) role: String,
    pub(crate) index: usize,
    pub(crate) region: PathBuf,
    pub(crate) table: PathBuf,
    pub(crate) out: PathBuf,
}

impl Part {
    /// The command that plays it.
    pub(crate) fn command(&self) -> Command {
        let paths = [&self.region, &self.table, &self.out].map(|path| path.display().to_string());
        let mut command = this_program();
        command.env(VARIABLE, format!("{} {} {}", self.role, self.index, paths.join(" ")));
        command
    }

    fn from_environment() -> Option<Part> {
        let text = env::var(VARIABLE).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        let [role, index, region, table, out] = words[..] else { panic!("bad part {text:?}") };
        Some(Part {
            role: role.into(),
            index: index.parse().unwrap(),
            region: region.into(),
            table: table.into(),
            out: out.into(),
        })
    }
}

/// Plays the part that the environment names, if it names one.
pub(crate) fn play() {
    let Some(part) = Part::from_environment() else { return };
    let table = Stamps::open(&part.table).unwrap();
    let region = Region::attach(&part.region).unwrap();
    match part.role.as_str() {
        "sequencer" => sequence(&region, &table),
        "producer" => produce(&region, &table, &part),
        "idler" => idle(&region, &table),
        "worker" => work(&region, &table, &part),
        other => panic!("no part {other:?}"),
    }
}

/// Serves once nobody else does, until it is to close: while another one serves, it is a standby.
fn sequence(region: &Region, table: &Stamps) {
    let opened = Sequencer::wait_to_open(region, || table.get(FINISH) != 0).unwrap();
    let Some(sequencer) = opened else { return };
    let sequencer = sequencer.start(SequencerConfig::new().close_timeout(ANSWER)).unwrap();
    table.set(SERVING, region.snapshot().epoch);
    while table.get(CLOSE) == 0 {
        if sequencer.is_finished() {
            panic!("{:?}", sequencer.stop());
        }
        thread::sleep(TICK);
    }
    let stats = sequencer.close().unwrap();
    table.set(CLOSED, stats.closed.into());
}

/// Attaches; who had the name may be dying yet.
fn attach(region: &Region, name: &str) -> Producer {
    let until = Instant::now() + ANSWER;
    loop {
        match Producer::attach_with(region, name, &AttachOptions::new().timeout(ANSWER)) {
            Ok(producer) => return producer,
            Err(AttachError::NameTaken { .. }) if Instant::now() < until => thread::sleep(TICK),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// Submits numbered commands from where its predecessor ended, in all the ways there are.
fn produce(region: &Region, table: &Stamps, part: &Part) {
    let me = part.index;
    let mut producer = attach(region, &format!("p{me}"));
    let ranks = region.geometry().ranks;
    let mut told = Told::new(File::create(&part.out).unwrap());
    table.set(PRODUCER + me, std::process::id().into());
    loop {
        let next = producer.next_index();
        let goal = table.get(GOAL + me);
        if next >= goal {
            // What a predecessor submitted without living to say so.
            table.set(ACKED + me, next);
            if table.get(END) != 0 {
                return;
            }
            thread::sleep(TICK);
            continue;
        }
        let made = |i: u64| payload(me, next + i);
        match made(0).1.len() {
            // Those of a batch lie in the lane.
            len if len % 4 == 0 && len <= producer.max_payload() => {
                let most = (goal - next).min(1 + next % 5).min(producer.max_batch() as u64);
                let mut bytes = 0;
                let fits = |(_, payload): &(u16, Vec<u8>)| {
                    bytes += payload.len().next_multiple_of(64) as u64;
                    let fits = bytes <= producer.max_batch_bytes() && payload.len() <= producer.max_payload();
                    fits && parts(payload, ranks).is_none()
                };
                let batch: Vec<(u16, Vec<u8>)> = (0..most).map(made).take_while(fits).collect();
                let count = batch.len() as u64;
                let batch: Vec<(u16, &[u8])> =
                    batch.iter().map(|(k, bytes)| (*k, bytes.as_slice())).collect();
                assert_eq!(producer.submit_batch(&batch).unwrap(), next..next + count);
            }
            len if len % 4 == 1 => {
                let (kind, bytes) = made(0);
                if next.is_multiple_of(2) {
                    // One that it thinks better of.
                    drop(producer.try_claim(kind, bytes.len()));
                }
                let mut room = producer.claim(kind, bytes.len()).unwrap();
                room.copy_from_slice(&bytes);
                assert_eq!(room.commit().unwrap(), next);
            }
            _ => {
                let (kind, bytes) = made(0);
                match parts(&bytes, ranks) {
                    Some(parts) => producer.submit_parts_at(next, kind, &bytes, &parts).unwrap(),
                    None => producer.submit_at(next, kind, &bytes).unwrap(),
                }
            }
        }
        table.set(ACKED + me, producer.next_index());
        told.ask(&mut producer);
        let pace = table.get(PACE);
        if pace > 0 {
            thread::sleep(Duration::from_micros(pace));
        }
    }
}

fn idle(region: &Region, table: &Stamps) {
    let _producer = attach(region, "idler");
    while table.get(END) == 0 {
        thread::sleep(TICK);
    }
}

/// Writes down what it receives, each event before its gate passes it.
fn work(region: &Region, table: &Stamps, part: &Part) {
    let me = part.index;
    let mut worker = join(region, me);
    table.set(FIRST + me, worker.first().get());
    table.set(SEEN + me, worker.first().get());
    table.set(WORKER + me, std::process::id().into());
    let mut recorder = Recorder::new(File::create(&part.out).unwrap(), &worker, region.geometry().ranks);
    loop {
        // With a deadline it may never come to sleep where others use the processors up.
        let deadline = (table.get(PATIENT) == 0).then(|| Instant::now() + Duration::from_millis(5));
        let got = worker.recv_batch(64, deadline, |event: Event<'_>| {
            recorder.record(&event);
            table.set(SEEN + me, event.seq().get() + 1);
        });
        match got {
            Err(WorkerError::Closed) if table.get(FINISH) != 0 => break,
            Err(WorkerError::Closed) => thread::sleep(TICK),
            Ok(0) => {}
            // What it makes of the commands is that it writes them down; so do the others.
            Ok(_) => _ = worker.report(worker.digest().0 ^ MADE).unwrap(),
            Err(error) => panic!("{error}"),
        }
        if table.get(LEAVE + me) != 0 {
            break;
        }
    }
    recorder.end(&worker);
    worker.leave();
    // Its process stays until all is over, or it could be taken for one that died.
    while table.get(LEAVE + me) != 0 && table.get(FINISH) == 0 {
        thread::sleep(TICK);
    }
}

/// Joins, with a rank if there is one for it; who had name and rank may be dying yet.
fn join(region: &Region, me: usize) -> Worker {
    let until = Instant::now() + ANSWER;
    let (name, mut options) = (format!("w{me}"), JoinOptions::new().timeout(ANSWER));
    if (me as u64) < region.geometry().ranks {
        options = options.rank(me as u16);
    }
    loop {
        match Worker::join_with(region, &name, &options) {
            Ok(worker) => return worker,
            Err(AttachError::NameTaken { .. } | AttachError::RankTaken { .. }) if Instant::now() < until => {
                thread::sleep(TICK)
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
}
