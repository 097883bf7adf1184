//! What stays behind: descriptors, mappings, the lane's room of one who dies with it, what a panic leaves half done,
//! and handles that are dropped in whatever order.
//!
//! What counts descriptors and mappings runs in a process of its own: this test program, told by the environment what
//! to do. `SERIATIM_LONG=1` does everything as often as it takes for the smallest of leaks to show.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{ANSWER, Ended, Over, PATIENCE, Running, attach, eventually, join, scratch, times};
use nix::sys::signal::Signal;
use seriatim::{
    AttachError, AttachOptions, Attached, Config, ErrorCode, Event, JoinOptions, Producer, Region, Sequencer,
    SequencerConfig, SequencerError, SequencerHandle, SubmitError, Worker, WorkerError, payload_digest,
};

const PART: &str = "SERIATIM_LEAKS_PART";

/// This program, to play a part.
fn playing(part: &str, path: &Path, times: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "part", "--nocapture"]).stdin(Stdio::null());
    command.env(PART, format!("{part} {times} {}", path.display()));
    command
}

/// What the processes of the tests do. Does nothing as a test.
#[test]
fn part() {
    let Ok(text) = std::env::var(PART) else { return };
    let [part, times, path] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("bad part {text:?}") };
    let (path, times) = (Path::new(path), times.parse().unwrap());
    match part {
        "claim" => claim_and_wait(path, times),
        "batch" => submit_batch(path),
        "view" => view_and_wait(path),
        "survive" => survive(path, times, false),
        "survive-locked" => survive(path, times, true),
        "claims" => survive_claims(times, false),
        "claims-locked" => survive_claims(times, true),
        "shorten" => shorten(path, times),
        "attach" => attach_and_detach(path, times),
        "fail" => fail_to_attach(path, times),
        "refused" => be_refused(path, times),
        other => panic!("no part {other:?}"),
    }
}

/// Runs a part to its end and shows what it found.
fn play(part: &str, path: &Path, times: u64) {
    show(Running::start(&mut playing(part, path, times)).end());
}

fn show(ended: Ended) {
    ended.out.lines().filter_map(|line| line.strip_prefix("found: ")).for_each(|line| println!("{line}"));
    ended.with(0);
}

fn spawn(region: &Region) -> SequencerHandle {
    Sequencer::spawn(region, SequencerConfig::new()).expect("nobody serves")
}

/// Waits for the line that a part prints when it is where it is to be killed.
fn await_ready(part: &mut Running) {
    // The test program says things of its own before.
    while part.line() != "ready" {
        assert!(part.has_output() || common::runs(part.pid()), "it ended too early");
    }
}

fn ready() -> ! {
    println!("\nready");
    loop {
        thread::park();
    }
}

fn kill(mut part: Running) {
    part.signal(Signal::SIGKILL);
    assert_eq!(part.end().code, None, "it was killed");
}

// ---- lane memory ------------------------------------------------------------------------------------------

/// Submits a number, claims a quarter of the lane, writes into it, and waits to be killed.
fn claim_and_wait(path: &Path, round: u64) {
    let region = Region::attach(path).unwrap();
    let mut producer = attach(&region, "victim");
    let expected = if round == 0 { Attached::New } else { Attached::Resumed { next: round } };
    assert_eq!(producer.attached(), expected, "of what it claimed nothing came, of what it submitted all");
    producer.submit_at(round, 0, &round.to_le_bytes()).unwrap();
    let quarter = region.geometry().lane_bytes as usize / 4;
    let mut claim = producer.claim(0, quarter).unwrap();
    claim[..quarter / 2].fill(0xee);
    ready();
}

/// Receives until the order is closed, counts what comes, and how much of it came of `victim`.
fn receive(mut worker: Worker, seen: &AtomicU64) -> u64 {
    let (mut victim, mut of_victim) = (None, 0u64);
    loop {
        match worker.recv().unwrap() {
            Event::ProducerAttached { number, name, .. } if name.as_str() == "victim" => {
                victim = Some(number)
            }
            Event::Command(command) => {
                seen.fetch_add(1, Ordering::Relaxed);
                if Some(command.producer) == victim {
                    assert_eq!(command.index, of_victim);
                    assert!(command.payload.chunks(8).all(|number| number == of_victim.to_le_bytes()));
                    of_victim += 1;
                }
            }
            Event::Closed { .. } => return of_victim,
            _ => {}
        }
    }
}

/// A sequencer that closes the order when it is dropped, also by a test that fails.
struct Closing(Option<SequencerHandle>);

impl Drop for Closing {
    fn drop(&mut self) {
        let closed = self.0.take().map(SequencerHandle::close);
        if !thread::panicking() {
            assert!(closed.is_some_and(|closed| closed.unwrap().closed), "the order is left open");
        }
    }
}

/// A region that is busy: a sequencer, a worker and four producers that never pause.
fn while_busy(in_the_middle: impl FnOnce(&Region, &AtomicU64)) -> u64 {
    let folder = scratch();
    let config = Config::new().producers(5).workers(2).lane_cells(64).lane_bytes(16 << 10);
    let region = Region::create(folder.path().join("region"), &config).unwrap();
    let sequencer = spawn(&region);
    let (seen, end) = (&AtomicU64::new(0), &AtomicBool::new(false));
    let worker = join(&region, "w");
    thread::scope(|scope| {
        // Dropped before the sequencer is, which also a test that fails has close the order: else nobody would end.
        let sequencer = Closing(Some(sequencer));
        let receiving = scope.spawn(move || receive(worker, seen));
        let over = Over(end);
        let busy = [0, 1, 2, 3].map(|n| {
            let mut producer = attach(&region, &format!("busy-{n}"));
            scope.spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    producer.submit(0, b"of one who goes on").unwrap();
                }
            })
        });
        in_the_middle(&region, seen);
        drop(over);
        busy.into_iter().for_each(|producer| producer.join().unwrap());
        drop(sequencer);
        receiving.join().unwrap()
    })
}

#[test]
fn a_producer_that_is_killed_with_a_claim_holds_up_nobody_and_keeps_no_room() {
    play("claims", Path::new("-"), times(6, 200));
    play("claims-locked", Path::new("-"), times(6, 20));
}

/// Locks a region in memory, where that is asked for and allowed; whether it is.
fn lock_if(region: &Region, asked: bool) -> bool {
    let locked = if asked { region.lock_in_memory() } else { return false };
    if let Err(error) = &locked {
        println!("\nfound: not locked: {error}");
    }
    locked.is_ok()
}

/// Lives beside producers that die, one after the other, each with a claim.
fn survive_claims(rounds: u64, lock: bool) {
    let of_victim = while_busy(|region, seen| {
        let is_locked = lock_if(region, lock);
        let mut before = None;
        for round in 0..rounds {
            // What the first rounds take for good is not lost.
            if round == 2 {
                before = Some(Held::now());
            }
            let mut victim = Running::start(&mut playing("claim", region.path(), round));
            await_ready(&mut victim);
            // Alive and still, or dead: the others go on.
            for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
                victim.signal(signal);
                let goal = seen.load(Ordering::Relaxed) + 1000;
                eventually("the others go on", || seen.load(Ordering::Relaxed) > goal);
            }
            assert_eq!(victim.end().code, None, "it was killed");
        }
        before.unwrap().check(&Held::now(), is_locked);
        let mut next = attach(region, "victim");
        assert_eq!(next.attached(), Attached::Resumed { next: rounds });
        eventually("what it submitted is passed", || {
            let row = region.snapshot().producers.into_iter().find(|row| row.party.name == "victim").unwrap();
            row.released == rounds
        });
        // Half of the lane and one more cell: all its bytes are there, whatever was claimed.
        drop(next.try_claim(0, next.max_payload()).expect("all the room is back"));
    });
    assert_eq!(of_victim, rounds);
    println!("found: {rounds} producers killed with a claim");
}

/// Submits a batch of ten, and dies at its crash point.
fn submit_batch(path: &Path) {
    let region = Region::attach(path).unwrap();
    let mut producer = attach(&region, "victim");
    // Too long for a cell: it is the bytes of the lane that they are written into one by one.
    let payloads: Vec<_> = (0..10u64).map(|n| n.to_le_bytes().repeat(10)).collect();
    let batch: Vec<(u16, &[u8])> = payloads.iter().map(|payload| (0, &payload[..])).collect();
    producer.submit_batch(&batch).unwrap();
    panic!("it was to die");
}

#[test]
#[cfg_attr(not(feature = "crash-points"), ignore = "needs the feature crash-points")]
fn of_a_batch_that_was_not_all_written_nothing_is_delivered() {
    for (point, delivered) in [("submit.payload:3", 0), ("submit.payload:10", 0), ("submit.queued:1", 10)] {
        let of_victim = while_busy(|region, seen| {
            let mut victim = playing("batch", region.path(), 0);
            let ended = Running::start(victim.env("SERIATIM_CRASH", point)).end();
            assert_eq!(ended.code, None, "it was killed: {ended:?}");
            let goal = seen.load(Ordering::Relaxed) + 1000;
            eventually("the others go on", || seen.load(Ordering::Relaxed) > goal);
            let expected = if delivered == 0 { Attached::New } else { Attached::Resumed { next: delivered } };
            assert_eq!(attach(region, "victim").attached(), expected);
        });
        assert_eq!(of_victim, delivered, "{point}");
    }
}

/// Joins, holds the view of a payload, and waits to be killed.
fn view_and_wait(path: &Path) {
    let region = Region::attach(path).unwrap();
    let mut worker = join(&region, "viewer");
    println!("\njoined");
    loop {
        if let Event::Command(command) = worker.recv().unwrap() {
            let digest = payload_digest(command.payload);
            println!("\nready {digest}");
            loop {
                thread::park();
            }
        }
    }
}

/// Serves, submits and works in a region whose other workers die, one after the other, each with a view.
fn survive(path: &Path, rounds: u64, lock: bool) {
    let config = Config::new().producers(1).workers(3).lane_cells(64).lane_bytes(16 << 10);
    let region = Region::create(path, &config).unwrap();
    let is_locked = lock_if(&region, lock);
    let sequencer = spawn(&region);
    let mut worker = join(&region, "w");
    let mut producer = attach(&region, "p");
    let whole = vec![0x5a; producer.max_payload()];
    let mut before = None;
    for round in 0..rounds {
        let mut viewer = Running::start(&mut playing("view", path, 0));
        while viewer.line() != "joined" {}
        producer.submit(1, &whole).unwrap();
        while !viewer.line().starts_with("ready") {}
        // A living worker's view, from before the death of the other until after.
        let digest = payload_digest(&whole);
        loop {
            if let Event::Command(command) = worker.recv().unwrap() {
                assert_eq!(payload_digest(command.payload), digest);
                kill(viewer);
                eventually("its gate falls", || {
                    region
                        .snapshot()
                        .workers
                        .iter()
                        .all(|row| !row.party.attached || row.party.name != "viewer")
                });
                assert_eq!(payload_digest(command.payload), digest, "round {round}");
                assert_eq!(command.payload, whole);
                break;
            }
        }
        while worker.poll().unwrap().is_some() {}
        // All that the lane has: its half, twice.
        for _ in 0..2 {
            producer.submit_deadline(0, &whole, Instant::now() + ANSWER).expect("all the room is back");
        }
        while producer.wait_sequenced(producer.next_index() - 1).is_err() {}
        while worker.poll().unwrap().is_some() {}
        // What the first rounds take for good is not lost.
        if round == 1 {
            before = Some(Held::now());
        }
    }
    before.unwrap().check(&Held::now(), is_locked);
    println!("found: {rounds} workers killed with a view");
    sequencer.stop().unwrap();
}

#[test]
fn a_worker_that_is_killed_with_a_view_keeps_no_room_and_spoils_nobody_elses() {
    let folder = scratch();
    play("survive", &folder.path().join("region"), times(6, 200));
    play("survive-locked", &folder.path().join("locked"), times(6, 20));
}

// ---- descriptors and mappings -----------------------------------------------------------------------------

/// What a process holds.
#[derive(Debug)]
struct Held {
    descriptors: usize,
    mappings: usize,
    virtual_kib: u64,
    locked_kib: u64,
}

impl Held {
    fn now() -> Held {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let kib = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        Held {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            mappings: fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
            virtual_kib: kib("VmSize:"),
            locked_kib: kib("VmLck:"),
        }
    }

    /// That nothing has been added since; the allocator may have grown a little.
    fn check(&self, now: &Held, is_locked: bool) {
        println!("found: before {self:?}, after {now:?}");
        assert_eq!(self.locked_kib > 0, is_locked, "locked or not");
        assert_eq!((now.descriptors, now.locked_kib), (self.descriptors, self.locked_kib));
        assert!(now.mappings <= self.mappings + 8, "mappings stay behind");
        assert!(now.virtual_kib <= self.virtual_kib + 512, "address space stays behind");
    }
}

#[test]
fn a_region_that_is_shortened_under_a_worker_makes_up_no_command() {
    let folder = scratch();
    (0..3).for_each(|how| play("shorten", &folder.path().join("region"), how));
}

/// Cuts a region off at each of its pages while a worker is in the midst of a run, or before one of the sequencer's own
/// commands: what it still gets is what was submitted.
fn shorten(path: &Path, how: u64) {
    const COMMANDS: u64 = 1000;
    let config = Config::new().producers(2).workers(1).lane_cells(2048).lane_bytes(4096);
    let (mut cuts, mut cut_short) = (0, 0);
    let pages = (0..config.region_bytes().unwrap()).step_by(4096);
    for (at, after) in pages.flat_map(|at| [(at, 100), (at, COMMANDS)]) {
        let region = Region::create(path, &config).unwrap();
        region.guard().unwrap();
        let sequencer = spawn(&region);
        let options = JoinOptions::new().timeout(common::ANSWER).release_every(u32::MAX);
        let mut worker = Worker::join_with(&region, "w", &options).unwrap();
        let mut producer = attach(&region, "p");
        let commands: Vec<(u16, [u8; 8])> = (0..COMMANDS).map(|n| (7, (n | 1 << 40).to_le_bytes())).collect();
        producer.submit_batch(&commands).unwrap();
        producer.wait_sequenced(COMMANDS - 1).unwrap();
        // One of the sequencer's own comes last.
        let other = attach(&region, "q");
        let mut next = 0;
        let mut take = |event: Event<'_>| {
            match event {
                Event::Command(command) => {
                    let (kind, payload) = commands[command.index as usize];
                    assert_eq!((command.index, command.kind, command.payload), (next, kind, &payload[..]));
                    next += 1;
                }
                Event::ProducerAttached { number, name, lane, .. } => {
                    let (is, is_now) = if next == 0 { ("p", (1, 1)) } else { ("q", (2, 2)) };
                    assert_eq!((name.as_str(), (number, lane)), (is, is_now));
                    next += u64::from(next > 0);
                }
                Event::Joined(change) => assert_eq!(change.name.as_str(), "w"),
                other => panic!("{other:?} was never in the order"),
            }
            next
        };
        let (mut got, mut is_cut) = (0, false);
        while got <= COMMANDS {
            if got == after && !is_cut {
                fs::File::options().write(true).open(path).unwrap().set_len(at).unwrap();
                is_cut = true;
            }
            let result = match how {
                0 => worker.recv().map(|event| got = take(event)),
                1 => worker.poll().map(|event| event.into_iter().for_each(|event| got = take(event))),
                _ => worker.poll_batch(1, |event| got = take(event)).map(drop),
            };
            if result.is_err() {
                cut_short += 1;
                break;
            }
        }
        cuts += 1;
        drop((worker, producer, other));
        // It may have met the end, too.
        let _ = sequencer.stop();
        fs::remove_file(path).unwrap();
    }
    println!("found: {cuts} cuts, {cut_short} of which the worker met");
    assert!(cut_short > 0 && cut_short < cuts);
}

fn attach_and_detach(path: &Path, rounds: u64) {
    let region = Region::create(path, &small()).unwrap();
    let _sequencer = spawn(&region);
    let once = || {
        let region = Region::attach(path).unwrap();
        let worker = join(&region, "w");
        let producer = attach(&region, "p");
        let observer = seriatim::Observer::attach(&region).unwrap();
        region.guard().unwrap();
        drop((worker, producer, observer));
    };
    (0..10).for_each(|_| once());
    let before = Held::now();
    (0..rounds).for_each(|_| once());
    before.check(&Held::now(), false);
    println!("found: {rounds} times attached and detached");
}

fn small() -> Config {
    Config::new().producers(1).workers(1).lane_cells(64).lane_bytes(4096)
}

/// Each way in which attaching fails; where there is a region, by its path.
fn fail_to_attach(path: &Path, rounds: u64) {
    let region = Region::create(path, &small()).unwrap();
    let near = |name: &str| path.with_file_name(name);
    let (absent, short, other, folder) = (near("absent"), near("short"), near("other"), near("folder"));
    let bytes = fs::read(path).unwrap();
    fs::write(&short, &bytes[..bytes.len() - 1]).unwrap();
    fs::write(&other, &bytes).unwrap();
    fs::File::options().write(true).open(&other).unwrap().write_all_at(&99u32.to_le_bytes(), 8).unwrap();
    fs::create_dir(&folder).unwrap();
    let none = Region::create(near("unserved"), &small()).unwrap();
    let _sequencer = spawn(&region);
    let (_worker, _producer) = (join(&region, "w"), attach(&region, "p"));
    let join_at_once = JoinOptions::new().timeout(Duration::ZERO);
    let attach_at_once = AttachOptions::new().timeout(Duration::ZERO);
    // A lock that is held is tried for a fifth of a second: each time would be long.
    let once = |round: u64| {
        assert!(matches!(Region::attach(&absent), Err(AttachError::NotFound { .. })));
        assert!(matches!(Region::attach(&short), Err(AttachError::Length { .. })));
        assert!(matches!(Region::attach(&other), Err(AttachError::Header { .. })));
        assert!(matches!(Region::attach(&folder), Err(AttachError::NotAFile { .. })));
        let again = Region::attach(path).unwrap();
        let full = Worker::join_with(&again, "other", &join_at_once);
        assert!(matches!(full, Err(AttachError::Full { .. })), "{full:?}");
        let full = Producer::attach_with(&again, "other", &attach_at_once);
        assert!(matches!(full, Err(AttachError::Full { .. })), "{full:?}");
        let taken = Worker::join_with(&again, "w", &join_at_once);
        assert!(matches!(taken, Err(AttachError::NameTaken { .. })), "{taken:?}");
        let taken = Producer::attach_with(&again, "p", &attach_at_once);
        assert!(matches!(taken, Err(AttachError::NameTaken { .. })), "{taken:?}");
        if round.is_multiple_of(20) {
            assert!(matches!(Sequencer::open(&again), Err(SequencerError::Running { .. })));
        }
        let unserved = Worker::join_with(&none, "w", &join_at_once);
        assert!(matches!(unserved, Err(AttachError::NoSequencer { .. })), "{unserved:?}");
        let reader = Region::attach_read_only(path).unwrap();
        assert!(matches!(Worker::join(&reader, "x"), Err(AttachError::ReadOnly { .. })));
        assert!(Region::create(path, &small()).is_err());
        assert!(Region::create(near("huge"), &Config::new().lane_bytes(1 << 40).producers(900)).is_err());
        assert!(Region::remove(path).is_err());
    };
    (0..10).for_each(once);
    let before = Held::now();
    (0..rounds).for_each(once);
    before.check(&Held::now(), false);
    println!("found: {rounds} times failed to attach, in 14 ways each");
}

/// Attaching without the right to, as another user.
fn be_refused(path: &Path, rounds: u64) {
    let once = || assert!(matches!(Region::attach(path), Err(AttachError::Rights { .. })));
    (0..10).for_each(|_| once());
    let before = Held::now();
    (0..rounds).for_each(|_| once());
    before.check(&Held::now(), false);
    println!("found: {rounds} times refused");
}

#[test]
fn attaching_and_detaching_leaves_nothing_behind() {
    let folder = scratch();
    play("attach", &folder.path().join("region"), times(300, 10_000));
}

#[test]
fn attaching_in_vain_leaves_nothing_behind() {
    let folder = scratch();
    play("fail", &folder.path().join("region"), times(300, 10_000));
}

#[test]
fn attaching_without_the_right_to_leaves_nothing_behind() {
    let folder = scratch();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("private");
    Region::create(&path, &small().mode(0o600)).unwrap();
    let as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let this = std::env::current_exe().unwrap();
    let can = Command::new("setpriv").args(as_nobody).arg("test").arg("-x").arg(&this).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this program cannot be run as another user");
        return;
    }
    let part = playing("refused", &path, times(300, 10_000));
    let mut command = Command::new("setpriv");
    command.args(as_nobody).arg(&this).args(part.get_args()).stdin(Stdio::null());
    command.envs(part.get_envs().filter_map(|(name, value)| Some((name, value?))));
    show(Running::start(&mut command).end());
}

// ---- the order in which handles are dropped ---------------------------------------------------------------

/// All orders of four things.
fn orders() -> Vec<[usize; 4]> {
    let all = (0..256).map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6]);
    all.filter(|order| (0..4).all(|thing| order.contains(&thing))).collect()
}

#[test]
fn handles_can_be_dropped_in_any_order_also_beside_one_who_waits() {
    assert_eq!(orders().len(), 24);
    for (order, waits) in orders().into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let folder = scratch();
        let path = folder.path().join("region");
        let region = Region::create(&path, &small().workers(2)).unwrap();
        let sequencer = spawn(&region);
        let mut producer = attach(&region, "p");
        let mut worker = join(&region, "w");
        let reader = waits.then(|| {
            let mut reader = join(&region, "reader");
            thread::spawn(move || {
                let mut commands = 0;
                loop {
                    match reader.recv().unwrap() {
                        Event::Command(_) => commands += 1,
                        Event::Closed { .. } => return commands,
                        _ => {}
                    }
                }
            })
        });
        producer.submit(0, b"one").unwrap();
        while !matches!(worker.recv().unwrap(), Event::Command(_)) {}
        let mut handles = (Some(sequencer), Some(producer), Some(worker), Some(region));
        for thing in order {
            match thing {
                0 => drop(handles.0.take()),
                1 => drop(handles.1.take()),
                2 => drop(handles.2.take()),
                _ => drop(handles.3.take()),
            }
        }
        let region = Region::attach(&path).unwrap();
        spawn(&region).close().unwrap();
        if let Some(reader) = reader {
            assert_eq!(reader.join().unwrap(), 1, "{order:?}");
        }
        Region::remove(&path).unwrap_or_else(|error| panic!("{order:?}: {error}"));
    }
    println!("24 orders, each without and with one who waits");
}

// ---- panics -----------------------------------------------------------------------------------------------

#[test]
fn a_claim_that_a_panic_drops_is_given_back_at_once() {
    const PANICS: u64 = 10_000;
    // With four cells the fifth that stayed behind would be seen.
    let region =
        Region::anonymous(&Config::new().producers(2).workers(1).lane_cells(4).lane_bytes(1024)).unwrap();
    let sequencer = spawn(&region);
    let mut worker = join(&region, "w");
    let (mut fragile, mut other) = (attach(&region, "fragile"), attach(&region, "other"));
    let working = thread::spawn(move || {
        let mut seen = [0u64; 2];
        loop {
            match worker.recv().unwrap() {
                Event::Command(command) => {
                    let of = usize::from(command.kind);
                    assert_eq!((command.index, command.payload), (seen[of], &seen[of].to_le_bytes()[..]));
                    seen[of] += 1;
                }
                Event::Closed { .. } => return seen,
                _ => {}
            }
        }
    });
    for n in 0..PANICS {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut claim = fragile.claim_deadline(0, 300, Instant::now() + PATIENCE).expect("there is room");
            claim.fill(0xee);
            // Without a message on standard error, ten thousand times.
            resume_unwind(Box::new("between claim and commit"));
        }));
        // The panic that was meant, not that there was no room.
        let panic = panicked.expect_err("it panicked");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"between claim and commit"), "after {n}");
        other.submit_at(n, 1, &n.to_le_bytes()).unwrap();
        if n % 10 == 0 {
            fragile.submit_at(n / 10, 0, &(n / 10).to_le_bytes()).unwrap();
        }
    }
    // Nobody reads meanwhile: all four cells are there, for the claims took none.
    sequencer.close().unwrap();
    assert_eq!(working.join().unwrap(), [PANICS / 10, PANICS]);
    println!("{PANICS} claims dropped by a panic");
}

#[test]
fn a_handler_that_panics_ends_its_worker_and_holds_up_nobody() {
    let folder = scratch();
    let config = Config::new().producers(1).workers(2).lane_cells(64);
    let region = Region::create(folder.path().join("region"), &config).unwrap();
    let sequencer = spawn(&region);
    let fragile = join(&region, "fragile");
    let mut other = join(&region, "other");
    let mut producer = attach(&region, "p");
    let running = thread::spawn(move || {
        fragile.run(|event| {
            if let Event::Command(command) = event
                && command.index == 100
            {
                resume_unwind(Box::new(format!("panic at {}", command.seq)));
            }
        })
    });
    let (mut place, mut left) = (None, None);
    let mut look = |other: &mut Worker| {
        while let Some(event) = other.poll().unwrap() {
            match event {
                Event::Command(command) if command.index == 100 => place = Some(command.seq),
                Event::Left(change) => left = Some(change.name.as_str().to_string()),
                _ => {}
            }
        }
        place.zip(left.clone())
    };
    for n in 0..1000u64 {
        // Many times what the lane holds: room comes when the gate falls, and no sooner. It is tried, for this thread
        // has a gate, too.
        while let Err(error) = producer.try_submit(0, &n.to_le_bytes()) {
            assert!(matches!(error, SubmitError::Full(_)), "{error}");
            look(&mut other);
        }
    }
    let panic = running.join().expect_err("the panic goes on to whoever joins");
    let text = panic.downcast_ref::<String>().unwrap();
    let errors = region.errors().records;
    let record = errors.iter().find(|record| record.code == ErrorCode::Panicked).expect("it is recorded");
    let mut found = None;
    eventually("all is seen", || {
        found = look(&mut other);
        found.is_some()
    });
    let (place, left) = found.unwrap();
    assert_eq!(text, &format!("panic at {place}"));
    // What panicked counts as received: the next index is what the error names.
    assert_eq!((record.who.as_str(), record.detail), ("fragile", place.get() + 1));
    assert!(record.what.contains(text), "{record}");
    assert_eq!(left, "fragile");
    // Who looks from outside finds the same.
    let path = region.path().to_str().unwrap();
    let told = common::run(&["errors", path, "--json"]).with(0).json()["errors"].clone();
    let told = told.as_array().unwrap().iter().find(|row| row["code"] == "panicked").expect("it is told");
    let next = place.get() + 1;
    assert_eq!((&told["who"], &told["detail"]), (&"fragile".into(), &next.into()), "{told}");
    assert!(told["what"].as_str().unwrap().contains(text), "{told}");
    let last = common::stat(path)["last_error"].clone();
    assert_eq!(last, format!("fragile: panicked: {text} ({next})"), "the last error");

    // It comes back as a newcomer: after all that was, at the index that says so.
    producer.wait_sequenced(999).unwrap();
    let mut again = join(&region, "fragile");
    assert!(again.first() > place);
    producer.submit(7, b"after").unwrap();
    let first = again.first();
    assert!(matches!(again.recv().unwrap(), Event::Joined(change) if change.seq == first));
    let Event::Command(command) = again.recv().unwrap() else { panic!("a command comes next") };
    assert_eq!((command.index, command.kind), (1000, 7));
    sequencer.stop().unwrap();
}

#[test]
fn what_a_handler_panicked_at_is_not_delivered_twice() {
    let region = Region::anonymous(&Config::new().producers(1).workers(1)).unwrap();
    let sequencer = spawn(&region);
    let mut worker = join(&region, "w");
    let mut producer = attach(&region, "p");
    for n in 0..100u64 {
        producer.submit(0, &n.to_le_bytes()).unwrap();
    }
    let mut seen = Vec::new();
    loop {
        // Each third delivery panics, in the midst of a batch.
        let batch = catch_unwind(AssertUnwindSafe(|| {
            worker.recv_batch(16, None, |event| {
                if let Event::Command(command) = event {
                    seen.push(command.index);
                    if command.index % 3 == 0 {
                        resume_unwind(Box::new(()));
                    }
                }
            })
        }));
        assert!(!matches!(batch, Ok(Err(WorkerError::Corrupt(_)))));
        if seen.last() == Some(&99) {
            break;
        }
    }
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    sequencer.stop().unwrap();
}
