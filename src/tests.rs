//! The library as a whole, in one process: every party through its public face, on real mapped files.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use seriatim_ring::digest;
use seriatim_ring::wake::FOR_WORK;

use crate::liveness::{Lock, Role};
use crate::region::layout::Part;
use crate::*;

mod agreement;
mod flood;
#[cfg(feature = "serde")]
mod incarnations;
mod parts;
mod poison;
mod spills;

/// A region and its sequencer, turned by hand.
struct Desk {
    region: Region,
    sequencer: Sequencer,
}

impl Desk {
    fn new(config: &Config) -> Desk {
        let region = Region::anonymous(config).unwrap();
        let sequencer = Sequencer::open(&region).unwrap();
        Desk { region, sequencer }
    }

    /// Runs an attach, which needs the sequencer's answer, on another thread while the sequencer turns.
    fn attach<T: Send>(&mut self, attach: impl FnOnce(&Region) -> T + Send) -> T {
        let region = self.region.clone();
        thread::scope(|scope| {
            let attaching = scope.spawn(move || attach(&region));
            while !attaching.is_finished() {
                self.sequencer.poll(16).unwrap();
                thread::yield_now();
            }
            attaching.join().unwrap()
        })
    }

    fn producer(&mut self, name: &str) -> Producer {
        self.attach(|region| Producer::attach(region, name)).unwrap()
    }

    fn worker(&mut self, name: &str) -> Worker {
        self.attach(|region| Worker::join(region, name)).unwrap()
    }

    /// Turns until nothing is left to order.
    fn turn(&mut self) {
        while self.sequencer.poll(16).unwrap().commands > 0 {}
    }
}

fn tiny() -> Config {
    // Attaching takes a place in the order: with fewer slots idle workers would keep newcomers out.
    Config::new().order_slots(8).lane_cells(2).lane_bytes(128).producers(2).workers(3)
}

/// Everything that a worker has to give, as payloads.
fn drain(worker: &mut Worker) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while let Some(event) = worker.poll().unwrap() {
        if let Event::Command(command) = event {
            payloads.push(command.payload.to_vec());
        }
    }
    payloads
}

fn bytes(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + salt * 13) as u8).collect()
}

#[test]
fn every_size_arrives_and_one_more_is_refused_without_a_trace() {
    for lane_bytes in [128, 256, 4096] {
        let config =
            Config::new().order_slots(4).lane_cells(4).lane_bytes(lane_bytes).producers(1).workers(1);
        let config = config.spill_bytes(0);
        let mut desk = Desk::new(&config);
        let (mut producer, mut worker) = (desk.producer("p"), desk.worker("w"));
        let max = producer.max_payload();
        assert_eq!([max as u64, producer.max_command()], [config.max_payload(); 2]);
        for round in 0..5 {
            for len in (0..=max).rev().chain([0, 1, 39, 40, 41, 63, 64, 65].into_iter().filter(|&l| l <= max))
            {
                let index = loop {
                    // What was passed is freed in a turn once somebody wants the room.
                    match producer.try_submit(9, &bytes(len, round)) {
                        Err(SubmitError::Full(_)) => desk.turn(),
                        other => break other.unwrap(),
                    }
                };
                desk.turn();
                assert_eq!(drain(&mut worker), [bytes(len, round)]);
                for too_long in [max + 1, 2 * max, 2 * lane_bytes as usize, usize::MAX / 2, usize::MAX] {
                    let claimed = producer.try_claim(9, too_long).unwrap_err();
                    assert_eq!(claimed, SubmitError::TooLarge { len: too_long, max });
                }
                let error = producer.try_submit(9, &bytes(max + 1, 0)).unwrap_err().to_string();
                assert!(
                    error.contains(&max.to_string()) && error.contains(&(max + 1).to_string()),
                    "{error}"
                );
                assert_eq!(producer.next_index(), index + 1);
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Submit { who: usize, len: usize },
    Batch { who: usize, lens: Vec<usize> },
    Claim { who: usize, len: usize, commit: bool },
    Turn { budget: usize },
    Poll { who: usize, events: usize },
    Takeover,
    Rejoin { who: usize },
}

fn step(max: usize) -> impl Strategy<Value = Step> {
    let len = move || {
        prop_oneof![0..=max, prop::sample::select(vec![0, 1, 39, 40, 41, 63, 64, 65, max]), 0..60usize]
    };
    let who = 0..2usize;
    prop_oneof![
        8 => (who.clone(), len()).prop_map(|(who, len)| Step::Submit { who, len }),
        1 => (who.clone(), max + 1..9000).prop_map(|(who, len)| Step::Submit { who, len }),
        1 => (who.clone(), max + 1..9000, any::<bool>()).prop_map(|(who, len, commit)| Step::Claim { who, len, commit }),
        3 => (who.clone(), prop::collection::vec(len(), 0..4)).prop_map(|(who, lens)| Step::Batch { who, lens }),
        3 => (who.clone(), len(), any::<bool>()).prop_map(|(who, len, commit)| Step::Claim { who, len, commit }),
        6 => (1..4usize).prop_map(|budget| Step::Turn { budget }),
        8 => (who.clone(), 0..6usize).prop_map(|(who, events)| Step::Poll { who, events }),
        1 => Just(Step::Takeover),
        1 => who.prop_map(|who| Step::Rejoin { who }),
    ]
}

/// What must come out: per producer what was submitted, and the one order as the first worker to get there saw
/// it.
#[derive(Default)]
struct Oracle {
    submitted: [VecDeque<Vec<u8>>; 2],
    order: Vec<(u64, u64, Vec<u8>, Digest)>,
}

impl Oracle {
    fn sees(&mut self, first: u64, command: &Command<'_>) {
        let at = (command.seq.get() - first) as usize;
        let seen = (command.producer, command.index, command.payload.to_vec(), command.digest);
        if at >= self.order.len() {
            // Places between are the sequencer's own commands.
            self.order.resize(at, (0, 0, Vec::new(), Digest(0)));
            let who = command.producer as usize - 1;
            assert_eq!(self.submitted[who].pop_front().as_ref(), Some(&seen.2));
            self.order.push(seen);
        } else {
            assert_eq!(self.order[at], seen);
        }
    }
}

fn play(config: &Config, first: u64, steps: Vec<Step>) {
    let mut desk = Desk::new(&config.clone().first_index(first));
    // With two slots each newcomer needs the one before to be passed.
    let mut w0 = desk.worker("w0");
    let mut passed = |desk: &mut Desk| {
        while w0.poll().unwrap().is_some() {}
        desk.turn();
    };
    passed(&mut desk);
    let p0 = desk.producer("p0");
    passed(&mut desk);
    let p1 = desk.producer("p1");
    passed(&mut desk);
    let w1 = desk.worker("w1");
    let (mut producers, mut workers) = ([p0, p1], [w0, w1]);
    let mut oracle = Oracle::default();
    let mut names = 2;
    let accepted =
        |oracle: &mut Oracle, who: usize, payloads: &[Vec<u8>], result: Result<(), SubmitError>| match result
        {
            Ok(()) => oracle.submitted[who].extend(payloads.iter().cloned()),
            Err(SubmitError::Full(_) | SubmitError::BatchTooLarge { .. } | SubmitError::EmptyBatch) => {}
            Err(other) => panic!("{other}"),
        };
    let see = |oracle: &mut Oracle, worker: &mut Worker, events: usize| {
        let handle = |event: Event<'_>| {
            if let Event::Command(command) = event {
                oracle.sees(first, &command);
            }
        };
        worker.poll_batch(events, handle).unwrap()
    };
    // A look that finds nothing frees room, so only the second in a row is the end.
    let run_dry = |desk: &mut Desk, workers: &mut [Worker], oracle: &mut Oracle| {
        let mut idle = 0;
        while idle < 2 {
            desk.turn();
            let seen: usize = workers.iter_mut().map(|w| see(oracle, w, 64)).sum();
            idle = if seen == 0 { idle + 1 } else { 0 };
        }
    };
    for (salt, step) in steps.into_iter().enumerate() {
        match step {
            Step::Submit { who, len } => {
                let payload = bytes(len, salt);
                let result = producers[who].try_submit(1, &payload).map(drop);
                accepted(&mut oracle, who, &[payload], result);
            }
            Step::Batch { who, lens } => {
                let payloads: Vec<_> = lens.iter().map(|&len| bytes(len, salt + len)).collect();
                let commands: Vec<_> = payloads.iter().map(|p| (2, &p[..])).collect();
                let result = producers[who].try_submit_batch(&commands).map(drop);
                accepted(&mut oracle, who, &payloads, result);
            }
            Step::Claim { who, len, commit } => match producers[who].try_claim(3, len) {
                Ok(mut claim) => {
                    claim.copy_from_slice(&bytes(len, salt));
                    if commit {
                        claim.commit().unwrap();
                        oracle.submitted[who].push_back(bytes(len, salt));
                    }
                }
                Err(error) => assert!(matches!(error, SubmitError::Full(_)), "{error}"),
            },
            Step::Turn { budget } => drop(desk.sequencer.poll(budget).unwrap()),
            Step::Poll { who, events } => drop(see(&mut oracle, &mut workers[who], events)),
            Step::Takeover => {
                let Desk { region, sequencer } = desk;
                drop(sequencer);
                desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
            }
            Step::Rejoin { who } => {
                // Its place is taken by another name; it sees all that it is told from there on.
                names += 1;
                run_dry(&mut desk, &mut workers, &mut oracle);
                let name = format!("w{names}");
                let old = std::mem::replace(&mut workers[who], desk.worker(&name));
                old.leave();
            }
        }
    }
    // At the end everything that was accepted comes out, at both.
    run_dry(&mut desk, &mut workers, &mut oracle);
    assert!(oracle.submitted.iter().all(VecDeque::is_empty), "lost: {:?}", oracle.submitted);
    assert_eq!((workers[0].next(), workers[0].digest()), (workers[1].next(), workers[1].digest()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_keeps_the_promises(
        steps in prop::collection::vec(step(128), 1..120),
        slots in prop::sample::select(vec![2u64, 4, 64]),
        cells in prop::sample::select(vec![2u64, 4, 8]),
        first in prop::sample::select(vec![0u64, (1 << 32) - 20, (1 << 63) - 1000]),
    ) {
        let config = tiny().order_slots(slots).lane_cells(cells).lane_bytes(256);
        play(&config, first, steps);
    }
}

#[test]
fn the_digest_of_a_worker_is_that_of_what_it_saw() {
    let mut desk = Desk::new(&Config::new().producers(2).workers(2));
    let mut worker = desk.worker("w");
    let (mut a, mut b) = (desk.producer("a"), desk.producer("b"));
    for n in 0..300 {
        a.submit(n as u16, &bytes(n, n)).unwrap();
        b.submit(n as u16, &bytes(n * 3, n)).unwrap();
    }
    desk.turn();
    let mut expected = None;
    while let Some(event) = worker.poll().unwrap() {
        let Event::Command(c) = event else {
            expected = None;
            continue;
        };
        if let Some(expected) = expected {
            assert_eq!(c.digest, Digest(expected));
        }
        let folded = digest::Folded {
            producer: c.producer,
            index: c.index,
            len: c.payload.len() as u32,
            kind: c.kind,
            address: c.address,
            payload: payload_digest(c.payload),
        };
        expected = Some(digest::fold(c.digest.0, folded));
    }
    assert_eq!(Some(worker.digest().0), expected);
}

#[test]
fn the_sequencer_reads_no_cell_and_no_payload_of_a_producer() {
    let region = Region::anonymous(&Config::new().producers(2).workers(1)).unwrap();
    // A mapping of its own, in which the lanes cannot be read: a single read would be a SIGSEGV.
    let blind = Region::attach(region.path()).unwrap();
    let sequencer = Sequencer::open(&blind).unwrap();
    let mut desk = Desk { region, sequencer };
    let mut worker = desk.worker("w");
    let mut producers = [desk.producer("a"), desk.producer("b")];
    for lane in [1, 2] {
        blind.map().make_contents_unreadable(lane).unwrap();
    }
    let mut got = 0;
    for n in 0..20_000 {
        let payload = bytes(if n % 100 == 0 { 1 << 20 } else { n % 90 }, n);
        while let Err(error) = producers[n % 2].try_submit(0, &payload) {
            assert!(matches!(error, SubmitError::Full(_)), "{error}");
            desk.turn();
            got += drain(&mut worker).len();
        }
    }
    desk.turn();
    assert_eq!(got + drain(&mut worker).len(), 20_000);
}

#[test]
fn a_process_can_write_only_the_pages_of_its_parties() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let _creator = Region::create(&path, &Config::new().producers(2).workers(2)).unwrap();
    let _sequencer = Sequencer::spawn(&Region::attach(&path).unwrap(), SequencerConfig::new()).unwrap();
    let region = Region::attach(&path).unwrap();
    let base = region.map().control() as *const _ as u64 - region.map().layout().control;
    let _worker = Worker::join(&region, "w").unwrap();
    let writable = || -> Vec<std::ops::Range<u64>> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            let inside = (base..base + region.map().layout().total).contains(&hex(from));
            (inside && rest.starts_with("rw")).then(|| hex(from) - base..hex(to) - base)
        };
        maps.lines().filter_map(line).collect()
    };
    let range = |part| region.map().layout().range(part);
    let bells_and_channel = range(Part::Bells).start..range(Part::Channel).end;
    assert_eq!(writable(), [bells_and_channel, range(Part::Worker(0))]);
    let _producer = Producer::attach(&region, "p").unwrap();
    let from_tickets = range(Part::Tickets).start..range(Part::Channel).end;
    assert_eq!(writable(), [from_tickets, range(Part::Lane(1)), range(Part::Worker(0))]);
}

#[test]
fn a_newcomer_starts_at_its_own_joining_with_the_digest_of_all() {
    let mut desk = Desk::new(&Config::new().workers(3));
    let (mut producer, mut first) = (desk.producer("p"), desk.worker("first"));
    for n in 0..1000usize {
        producer.submit(0, &n.to_le_bytes()).unwrap();
    }
    desk.turn();
    // The first has had half of it when the second comes.
    first.poll_batch(500, |_| ()).unwrap();
    let mut second = desk.worker("second");
    for n in 0..10usize {
        producer.submit(0, &n.to_le_bytes()).unwrap();
    }
    desk.turn();
    let event = second.poll().unwrap().unwrap();
    assert!(matches!(event, Event::Joined(change) if change.name.as_str() == "second"), "{event:?}");
    assert_eq!(event.seq(), second.first());
    assert_eq!(drain(&mut second).len(), 10);
    assert_eq!(drain(&mut first).len(), 1010 - 500 + 2);
    assert_eq!((first.next(), first.digest()), (second.next(), second.digest()));
}

#[test]
fn leaving_frees_the_gate_at_once_and_all_learn_it_at_one_index() {
    let mut desk = Desk::new(&tiny());
    let (mut slow, mut a, mut b) = (desk.worker("slow"), desk.worker("a"), desk.worker("b"));
    let mut producer = desk.producer("p");
    for worker in [&mut slow, &mut a, &mut b] {
        drain(worker);
    }
    let mut submitted = 0;
    loop {
        match producer.try_submit(0, b"x") {
            Ok(_) => submitted += 1,
            Err(error) => {
                let SubmitError::Full(Full { by: HeldBy::Worker { name, lag, pid, .. } }) = error else {
                    panic!("{error}")
                };
                assert_eq!((name.as_str(), pid), ("slow", std::process::id()));
                assert!(lag > 0 && error.to_string().contains("slow"), "{error}");
                break;
            }
        }
        desk.turn();
        drain(&mut a);
        drain(&mut b);
    }
    assert!(submitted >= 2);
    slow.leave();
    desk.turn();
    producer.try_submit(0, b"y").unwrap();
    desk.turn();
    let left = |worker: &mut Worker| {
        let mut left = None;
        while let Some(event) = worker.poll().unwrap() {
            if let Event::Left(change) = event {
                left = Some(change);
            }
        }
        left.unwrap()
    };
    let (at_a, at_b) = (left(&mut a), left(&mut b));
    assert_eq!(at_a, at_b);
    assert_eq!(at_a.name.as_str(), "slow");
}

#[test]
fn what_nobody_works_on_is_held_for_the_first_to_come() {
    let mut desk = Desk::new(&tiny());
    let mut producer = desk.producer("p");
    let mut sent = Vec::new();
    loop {
        let payload = bytes(sent.len() + 1, 5);
        match producer.try_submit(0, &payload) {
            Ok(_) => sent.push(payload),
            Err(error) => {
                assert_eq!(error, SubmitError::Full(Full { by: HeldBy::NoWorker }));
                break;
            }
        }
        desk.turn();
    }
    let mut worker = desk.worker("w");
    let mut got = drain(&mut worker);
    desk.turn();
    got.extend(drain(&mut worker));
    assert_eq!(got, sent);
    // The next to come after it left gets what followed, and nothing twice.
    worker.leave();
    desk.turn();
    producer.try_submit(0, b"later").unwrap();
    desk.turn();
    let mut next = desk.worker("next");
    assert_eq!(drain(&mut next), [b"later"]);
}

#[test]
fn what_nobody_works_on_is_folded_and_dropped_where_that_is_asked_for() {
    let mut desk = Desk::new(&tiny().without_workers(WithoutWorkers::Discard));
    let mut producer = desk.producer("p");
    for n in 0..1000 {
        while producer.try_submit(0, &bytes(n % 64, n)).is_err() {
            desk.turn();
        }
    }
    desk.turn();
    let (mut a, mut b) = (desk.worker("a"), desk.worker("b"));
    assert!(drain(&mut a).is_empty());
    producer.try_submit(0, b"seen").unwrap();
    desk.turn();
    assert_eq!((drain(&mut a), drain(&mut b)), (vec![b"seen".to_vec()], vec![b"seen".to_vec()]));
    assert_eq!((a.next(), a.digest()), (b.next(), b.digest()));
}

#[test]
fn closing_delivers_what_was_submitted_then_the_end_and_refuses_the_rest() {
    let mut desk = Desk::new(&Config::new().workers(2));
    let (mut producer, mut worker) = (desk.producer("p"), desk.worker("w"));
    let last = (0..100usize).map(|n| producer.submit(0, &n.to_le_bytes()).unwrap()).last().unwrap();
    desk.sequencer.close();
    assert_eq!(producer.try_submit(0, b"late"), Err(SubmitError::Closed));
    assert_eq!(producer.submit(0, b"late"), Err(SubmitError::Closed));
    assert_eq!(producer.next_index(), last + 1);
    while !desk.sequencer.poll(16).unwrap().closed {}
    assert_eq!(desk.region.snapshot().state, State::Closed);
    let mut commands = 0;
    let end = loop {
        match worker.recv().unwrap() {
            Event::Command(_) => commands += 1,
            Event::Closed { seq, epoch: 1 } => break seq,
            other => assert!(matches!(other, Event::Joined(_) | Event::ProducerAttached { .. }), "{other:?}"),
        }
    };
    assert_eq!(commands, 100);
    assert_eq!(worker.recv(), Err(WorkerError::Closed));
    assert!(matches!(producer.wait_sequenced(last), Ok(Sequenced::At(at)) if at < end));

    // The next sequencer reopens it: the same parties go on.
    let Desk { region, sequencer } = desk;
    drop(sequencer);
    assert_eq!(region.snapshot().held_by, None, "nobody is needed any more");
    let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
    assert_eq!(producer.submit(0, b"again").unwrap(), last + 1);
    desk.turn();
    assert!(matches!(worker.recv().unwrap(), Event::Opened { epoch: 2, .. }));
    assert!(matches!(worker.recv().unwrap(), Event::Command(c) if c.payload == b"again"));
}

#[test]
fn a_batch_that_can_never_be_is_told_so_also_where_there_is_no_room() {
    let mut desk = Desk::new(&tiny().lane_cells(4).lane_bytes(256));
    let mut producer = desk.producer("p");
    while producer.try_submit(0, b"x").is_ok() {}
    let batch = [(0, vec![0; 1000]), (0, vec![1])];
    assert_eq!(producer.try_submit_batch(&batch), Err(SubmitError::TooLarge { len: 1000, max: 128 }));
    assert!(matches!(producer.try_submit_batch(&[(0, b"x"), (0, b"y")]), Err(SubmitError::Full(_))));
}

#[test]
fn a_sequencer_that_is_gone_is_not_taken_for_one_who_keeps_the_lock() {
    // While a child is being started it has the lock for a moment, too; who is named then must not seem to live.
    let desk = Desk::new(&Config::new());
    assert!(desk.region.sequencer_process().lives());
    let Desk { region, sequencer } = desk;
    drop(sequencer);
    assert!(!region.sequencer_process().lives());
    assert!(Sequencer::open(&region).is_ok());
}

#[test]
fn a_region_that_is_just_being_left_can_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let region = Region::create(&path, &Config::new()).unwrap();
    let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
    let (worker, stays) = (desk.worker("w"), desk.worker("stays"));
    worker.leave();
    // As a child has it that was just being started.
    let lock = Lock::take(desk.region.file(), Role::Worker(0)).unwrap();
    assert!(lock.is_some());
    drop(desk);
    assert!(matches!(Region::remove(&path), Err(RemoveError::InUse { .. })));
    drop(stays);
    let runs = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        drop(lock);
    });
    Region::remove(&path).unwrap();
    runs.join().unwrap();
}

#[test]
fn nothing_follows_the_end_until_a_successor_serves() {
    let mut desk = Desk::new(&Config::new());
    let (mut worker, other) = (desk.worker("w"), desk.worker("other"));
    desk.sequencer.close();
    while !desk.sequencer.poll(16).unwrap().closed {}
    // Whoever got the end leaves, while turns may go on: those of a thread that helps, say.
    other.leave();
    assert_eq!((desk.sequencer.poll(16).unwrap().commands, desk.sequencer.stats().closed), (0, true));
    desk.sequencer.sleep(None, || panic!("it has no reason to sleep"));
    let end = loop {
        if let Event::Closed { seq, .. } = worker.recv().unwrap() {
            break seq;
        }
    };
    assert_eq!(desk.region.snapshot().next, end.plus(1));
    assert_eq!(worker.recv(), Err(WorkerError::Closed));
    let Desk { region, sequencer } = desk;
    drop(sequencer);
    let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
    desk.turn();
    assert!(matches!(worker.recv().unwrap(), Event::Opened { epoch: 2, .. }));
    assert!(matches!(worker.recv().unwrap(), Event::Left(member) if member.name.as_str() == "other"));
}

#[test]
fn closing_frees_producers_that_wait() {
    let region = Region::anonymous(&tiny().order_slots(4)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let _idle = Worker::join(&region, "idle").unwrap();
    let producers = [Producer::attach(&region, "a").unwrap(), Producer::attach(&region, "b").unwrap()];
    let waiting = producers.map(|mut producer| {
        thread::spawn(move || {
            let first_error = (0..).find_map(|_| producer.submit(0, b"x").err());
            (first_error, producer.next_index())
        })
    });
    while region.snapshot().tickets_waiting == 0 {
        thread::yield_now();
    }
    // The worker never moves, so the end does not get into the order; the producers are let go all the same.
    let closing = thread::spawn({
        let config = SequencerConfig::new().close_timeout(Duration::from_millis(200));
        drop(sequencer);
        let sequencer = Sequencer::spawn(&region, config).unwrap();
        move || sequencer.close().unwrap()
    });
    for producer in waiting {
        assert_eq!(producer.join().unwrap().0, Some(SubmitError::Closed));
    }
    assert!(!closing.join().unwrap().closed);
}

#[test]
fn two_sequencers_and_two_of_a_name_are_refused_with_the_holder() {
    let region = Region::anonymous(&tiny()).unwrap();
    let first = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let pid = std::process::id().to_string();
    for again in [region.clone(), Region::attach(region.path()).unwrap()] {
        let error = Sequencer::open(&again).unwrap_err();
        assert!(
            matches!(error, SequencerError::Running { .. }) && error.to_string().contains(&pid),
            "{error}"
        );
    }
    let _worker = Worker::join(&region, "same").unwrap();
    let _producer = Producer::attach(&region, "same").unwrap();
    let error = Worker::join(&region, "same").unwrap_err();
    assert!(matches!(error, AttachError::NameTaken { what: "worker", .. }), "{error}");
    let error = Producer::attach(&region, "same").unwrap_err();
    assert!(matches!(error, AttachError::NameTaken { what: "producer", .. }), "{error}");
    assert!(error.to_string().contains(&pid), "{error}");
    first.stop().unwrap();
    Sequencer::open(&region).unwrap();
}

#[test]
fn names_raced_for_go_to_one() {
    let region = Region::anonymous(&Config::new().workers(8).producers(8)).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    for round in 0..50 {
        let name = format!("round-{round}");
        let parties: Vec<_> = (0..4)
            .map(|_| {
                let (region, name) = (region.clone(), name.clone());
                thread::spawn(move || (Worker::join(&region, &name), Producer::attach(&region, &name)))
            })
            .collect();
        let parties: Vec<_> = parties.into_iter().map(|p| p.join().unwrap()).collect();
        let joined = parties.iter().filter(|(worker, _)| worker.is_ok()).count();
        let attached = parties.iter().filter(|(_, producer)| producer.is_ok()).count();
        assert_eq!((joined, attached), (1, 1), "round {round}: {parties:#?}");
        for (worker, _) in parties {
            match worker {
                // It sees what happened, so that the next rounds find room.
                Ok(mut worker) => drop(drain(&mut worker)),
                Err(error) => assert!(matches!(error, AttachError::NameTaken { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn more_than_configured_are_refused_with_the_limit_and_the_holders() {
    let region = Region::anonymous(&tiny()).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let options = JoinOptions::new().timeout(Duration::from_millis(50));
    let workers: Vec<_> = (0..3).map(|n| Worker::join(&region, &format!("w{n}")).unwrap()).collect();
    let error = Worker::join_with(&region, "w3", &options).unwrap_err().to_string();
    assert!(error.contains("all 3 workers") && error.contains("w2"), "{error}");
    let options = AttachOptions::new().timeout(Duration::from_millis(50));
    let _producers: Vec<_> = (0..2).map(|n| Producer::attach(&region, &format!("p{n}")).unwrap()).collect();
    let error = Producer::attach_with(&region, "p2", &options).unwrap_err().to_string();
    assert!(error.contains("all 2 producers") && error.contains("p1"), "{error}");
    // A place that is left is taken by the next, many times over.
    drop(workers);
    for n in 0..200 {
        Worker::join(&region, &format!("guest-{n}")).unwrap();
    }
}

#[test]
fn a_producer_that_returns_goes_on_and_another_gets_the_lane_when_it_is_passed() {
    // Bytes for what a claim that dies takes, too.
    let mut desk = Desk::new(&tiny().producers(1).lane_bytes(512));
    let mut worker = desk.worker("w");
    let mut producer = desk.producer("p");
    assert_eq!(producer.attached(), Attached::New);
    producer.submit(0, &bytes(60, 1)).unwrap();
    // A claim that is never committed dies with it.
    let _left = producer.claim(0, 50).unwrap();
    drop(producer);
    let mut producer = desk.producer("p");
    assert_eq!(producer.attached(), Attached::Resumed { next: 1 });
    producer.submit(0, &bytes(61, 2)).unwrap();
    let number = producer.number();
    drop(producer);
    // Its commands are not passed yet: a new name has to wait.
    let options = AttachOptions::new().timeout(Duration::from_millis(50));
    let error = desk.attach(|region| Producer::attach_with(region, "q", &options)).unwrap_err();
    assert!(matches!(error, AttachError::TimedOut { held: HeldBy::Worker { .. }, .. }), "{error}");
    assert_eq!(drain(&mut worker), [bytes(60, 1), bytes(61, 2)]);
    let mut other = desk.producer("q");
    assert_eq!(other.attached(), Attached::New);
    assert!(other.number() > number);
    assert_eq!(other.submit(0, b"q").unwrap(), 0);
    desk.turn();
    assert_eq!(drain(&mut worker), [b"q"]);
}

#[test]
fn without_a_sequencer_all_say_so() {
    let region = Region::anonymous(&tiny()).unwrap();
    let options = AttachOptions::new().timeout(Duration::from_millis(20));
    let error = Producer::attach_with(&region, "p", &options).unwrap_err();
    assert!(matches!(error, AttachError::NoSequencer { state: State::Open, .. }), "{error}");
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let (mut producer, mut worker) =
        (Producer::attach(&region, "p").unwrap(), Worker::join(&region, "w").unwrap());
    sequencer.stop().unwrap();
    // What has room is taken, and waits.
    let last = (0..2).map(|n| producer.try_submit(0, &[n]).unwrap()).last().unwrap();
    let soon = || Instant::now() + Duration::from_millis(20);
    let full = SubmitError::Full(Full { by: HeldBy::NoSequencer });
    assert_eq!(producer.submit_deadline(0, b"x", soon()), Err(full));
    let late = producer.wait_sequenced_deadline(last, soon());
    assert_eq!(late, Err(WaitError::Late { index: last, by: HeldBy::NoSequencer }));
    let ahead = producer.wait_sequenced(last + 1);
    assert_eq!(ahead, Err(WaitError::NotSubmitted { index: last + 1, next: last + 1 }));
    let next = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    assert!(matches!(producer.wait_sequenced(last), Ok(Sequenced::At(_))));
    let mut got = 0;
    while got < 2 {
        got += usize::from(matches!(worker.recv().unwrap(), Event::Command(_)));
    }
    assert!(next.close().unwrap().closed);
    let late = Worker::join_with(&region, "late", &JoinOptions::new().timeout(Duration::from_millis(20)));
    assert!(matches!(late, Err(AttachError::NoSequencer { state: State::Closed, .. })), "{late:?}");
}

#[test]
fn a_ticket_that_cannot_be_right_costs_its_producer_the_lane_and_nobody_else_anything() {
    use seriatim_ring::sync::AtomicU64;
    use seriatim_ring::tickets::{Enqueuer, Ticket};
    let mut desk = Desk::new(&Config::new().producers(2).workers(1));
    let (mut wild, mut tame) = (desk.producer("wild"), desk.producer("tame"));
    let mut worker = desk.worker("w");
    wild.submit(0, b"before").unwrap();
    let mut forge = Enqueuer::new(0);
    let none = AtomicU64::new(0);
    for (lane, count) in [(1, 4000), (77, 1), (0, 1), (2, 0)] {
        forge.enqueue(&desk.region.map().tickets(), Ticket::Cells { lane, count }, &none).unwrap();
        desk.turn();
    }
    // The last forged one was in the name of the tame producer, which thus is not heard either until it
    // attaches again.
    drop(tame);
    tame = desk.producer("tame");
    wild.submit(0, b"not heard").unwrap();
    tame.submit(0, b"heard").unwrap();
    desk.turn();
    assert_eq!(wild.wait_sequenced(1), Err(WaitError::Fenced));
    let mut fenced = Vec::new();
    let mut heard = Vec::new();
    while let Some(event) = worker.poll().unwrap() {
        match event {
            Event::ProducerFenced { lane, .. } => fenced.push(lane),
            Event::Command(c) => heard.push(c.payload.to_vec()),
            _ => {}
        }
    }
    assert_eq!(fenced, [1, 2]);
    assert_eq!(heard, [&b"before"[..], b"heard"]);
    // Attached again, it is heard again.
    drop(wild);
    let mut wild = desk.producer("wild");
    wild.submit(0, b"tamed").unwrap();
    desk.turn();
    assert_eq!(drain(&mut worker), [b"tamed"]);
}

#[test]
fn the_last_index_is_an_error_and_not_a_wrap() {
    let mut desk = Desk::new(&Config::new().first_index(Seq::MAX.get() - 10));
    let (mut producer, mut worker) = (desk.producer("p"), desk.worker("w"));
    let error = loop {
        match producer.try_submit(0, b"x") {
            Ok(_) => {}
            Err(SubmitError::Closed) => unreachable!("the sequencer says so first"),
            Err(error) => panic!("{error}"),
        }
        if let Err(error) = desk.sequencer.poll(1) {
            break error;
        }
    };
    assert!(matches!(error, SequencerError::Exhausted { last } if last == Seq::MAX), "{error}");
    assert_eq!(producer.try_submit(0, b"x"), Err(SubmitError::Closed));
    assert_eq!(desk.region.snapshot().state, State::Exhausted);
    assert_eq!(drain(&mut worker).len(), 8);
    assert_eq!(worker.recv_deadline(Instant::now() + Duration::from_secs(60)), Err(WorkerError::Closed));
}

#[test]
fn the_last_index_ends_an_order_that_is_closing_too() {
    let mut desk = Desk::new(&Config::new().first_index(Seq::MAX.get() - 4));
    let mut producer = desk.producer("p");
    let submitted = (0..20).map(|_| producer.try_submit(0, b"x").unwrap()).last().unwrap();
    desk.sequencer.close();
    while desk.sequencer.poll(1).is_ok() {}
    assert_eq!(desk.region.snapshot().state, State::Exhausted);
    assert_eq!(producer.wait_sequenced(submitted), Err(WaitError::Closed { index: submitted }));
}

/// A payload that is not what it was when it was asked for the second time, or panics then.
struct Fickle(std::cell::Cell<u32>, Vec<&'static [u8]>);

impl AsRef<[u8]> for Fickle {
    fn as_ref(&self) -> &[u8] {
        let asked = self.0.replace(self.0.get() + 1) as usize;
        self.1.get(asked).expect("a payload that does not want to be read")
    }
}

#[test]
fn a_batch_whose_payloads_change_or_panic_leaves_nothing_half_done() {
    let mut desk = Desk::new(&tiny().lane_cells(8).lane_bytes(256));
    let (mut producer, mut worker) = (desk.producer("p"), desk.worker("w"));
    let fickle = |payloads| Fickle(0.into(), payloads);
    // Asked for when it could lie in its cell, and where one does not: for its length, for room, and to be copied.
    let (a, long, other): (&[&[u8]], [u8; 50], [u8; 200]) = (&[b"a", b"b", b"c", b"d"], [1; 50], [2; 200]);
    let [long, other]: [&'static [u8]; 2] = [Box::leak(Box::new(long)), Box::leak(Box::new(other))];
    let commands: [Vec<Vec<&'static [u8]>>; 5] = [
        vec![a.to_vec(), vec![]],
        vec![a.to_vec(), vec![long]],
        vec![a.to_vec(), vec![long; 3]],
        vec![a.to_vec(), vec![long, long, long, other]],
        vec![a.to_vec(), vec![long, long, long, b"y"], vec![long; 3]],
    ];
    let mut expected = Vec::new();
    for (n, payloads) in commands.into_iter().enumerate() {
        let batch: Vec<(u16, Fickle)> = payloads.into_iter().map(|each| (0, fickle(each))).collect();
        let tried =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| producer.try_submit_batch(&batch)));
        match (n, tried) {
            (0..3, tried) => assert!(tried.is_err(), "{n}"),
            (3, tried) => assert!(matches!(tried.unwrap(), Err(SubmitError::TooLarge { len: 200, .. }))),
            (_, tried) => {
                tried.unwrap().unwrap();
                expected.extend([b"d".to_vec(), b"y".to_vec(), long.to_vec()]);
            }
        }
        producer.try_submit(0, &[n as u8]).unwrap();
        expected.push(vec![n as u8]);
        desk.turn();
        assert_eq!(drain(&mut worker), std::mem::take(&mut expected), "{n}");
    }
}

#[test]
fn a_claim_that_is_not_committed_submits_nothing() {
    let mut desk = Desk::new(&tiny().lane_cells(4).lane_bytes(512));
    let (mut producer, mut worker) = (desk.producer("p"), desk.worker("w"));
    let mut expected = Vec::new();
    // Cells and bytes are those of earlier commands again, and longer than what is claimed.
    for n in 0..20u8 {
        let _left = producer.try_claim(9, if n % 2 == 0 { 50 } else { 8 }).unwrap();
        let payload = vec![n; if n % 3 == 0 { 200 } else { 30 }];
        let index = match n % 4 {
            0 => producer.try_submit_batch(&[(1, &payload)]).unwrap().start,
            1 => {
                let mut claim = producer.try_claim(1, payload.len()).unwrap();
                claim.copy_from_slice(&payload);
                claim.commit().unwrap()
            }
            _ => producer.try_submit(1, &payload).unwrap(),
        };
        assert_eq!(index, u64::from(n));
        while desk.sequencer.poll(16).unwrap().commands > 0 {}
        expected.push(payload);
        assert_eq!(drain(&mut worker), expected[usize::from(n)..]);
    }
}

#[test]
fn a_name_keeps_its_lane_while_there_are_lanes_that_never_had_one() {
    let region = Region::anonymous(&tiny().producers(3)).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "gone").unwrap();
    producer.submit(0, b"x").unwrap();
    while !matches!(worker.recv().unwrap(), Event::Command(_)) {}
    assert_eq!(worker.poll(), Ok(None), "all of its lane is released");
    drop(producer);
    // Others who ask for the lanes that are left hold these for a moment.
    let busy = [2, 3].map(|lane| Lock::take(region.file(), Role::Lane(lane)).unwrap().unwrap());
    // It looks once: whoever looks for long takes the lane of one that is gone.
    let soon = AttachOptions::new().timeout(Duration::ZERO);
    assert!(Producer::attach_with(&region, "new", &soon).is_err());
    drop(busy);
    let new = Producer::attach(&region, "new").unwrap();
    assert_eq!(Producer::attach(&region, "gone").unwrap().attached(), Attached::Resumed { next: 1 });
    drop(new);
}

#[test]
fn one_who_is_stopped_before_it_asks_keeps_nobody_out() {
    let region = Region::anonymous(&tiny().producers(2)).unwrap();
    let held = Lock::take(region.file(), Role::Lane(2)).unwrap().unwrap();
    let soon = AttachOptions::new().timeout(Duration::from_millis(50));
    // Nobody serves: that is the reason, for who waits for a lane as for who asks for one.
    let lane = Lock::take(region.file(), Role::Lane(1)).unwrap().unwrap();
    let error = Producer::attach_with(&region, "p", &soon).unwrap_err();
    assert!(matches!(error, AttachError::NoSequencer { .. }), "{error}");
    drop(lane);
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    drop(Producer::attach(&region, "gone").unwrap());
    // It has locked the last lane that never had an owner, and does not go on: after a moment another one will do.
    let patient = AttachOptions::new().timeout(Duration::from_secs(60));
    let new = Producer::attach_with(&region, "new", &patient).unwrap();
    assert_eq!(new.attached(), Attached::New);
    drop(held);
}

#[test]
fn a_lane_that_fills_up_is_nobody_who_waits() {
    let mut desk = Desk::new(&Config::new().lane_bytes(1 << 16));
    desk.sequencer.stall_after(Duration::ZERO);
    let (mut producer, _worker) = (desk.producer("p"), desk.worker("w"));
    let stalls = |desk: &Desk| {
        desk.region.errors().records.iter().filter(|record| record.code == ErrorCode::Stalled).count()
    };
    let look = |desk: &mut Desk| {
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until && stalls(desk) == 0 {
            desk.sequencer.poll(16).unwrap();
        }
        stalls(desk)
    };
    // More than half of the bytes: it is time to look at the gates, and there is room.
    for submits in [1, 5] {
        for _ in 0..submits {
            producer.try_submit(0, &[0; 8 << 10]).unwrap();
            desk.sequencer.poll(16).unwrap();
        }
        assert_eq!(look(&mut desk), 0, "{:?}", desk.region.errors());
    }
    while producer.try_submit(0, &[0; 8 << 10]).is_ok() {}
    assert_eq!(look(&mut desk), 1);
}

#[test]
fn who_releases_by_hand_leaves_the_rest_to_who_comes_next() {
    let region = Region::anonymous(&tiny().lane_cells(64).order_slots(64)).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let join = |name| Worker::join_with(&region, name, &JoinOptions::new().release_by_hand(true)).unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    for (name, left) in [("falls", true), ("leaves", false)] {
        let mut worker = join(name);
        for n in 0..20u8 {
            producer.submit(0, &[n]).unwrap();
        }
        let mut got = 0;
        while got < 20 {
            got += usize::from(matches!(worker.recv().unwrap(), Event::Command(_)));
            if got == 10 {
                // What was delivered last is done with, too.
                worker.release();
            }
        }
        assert_eq!(worker.poll(), Ok(None));
        if left {
            worker.fall()
        } else {
            worker.leave()
        }
        let mut next = join("next");
        let mut again = Vec::new();
        while again.last() != Some(&vec![19]) {
            again.extend(drain(&mut next));
        }
        assert_eq!(again, (10..20u8).map(|n| vec![n]).collect::<Vec<_>>(), "after one who {name}");
        next.release();
    }
}

/// Whether to run the long forms.
fn long() -> bool {
    std::env::var_os("SERIATIM_LONG").is_some_and(|value| value != "0")
}

/// Reached only by what never ends.
const NEVER: Duration = Duration::from_secs(60);

/// Tells threads that it is over when it is dropped, also by a test that fails: a scope waits for them.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What an observer got between two indexes, checked as it came.
#[derive(Default)]
struct Watched {
    commands: u64,
    changes: u64,
    missed: u64,
    gaps: u64,
}

/// Looks on with pauses that differ until `ended` and nothing is left: every index is delivered or missed, once.
fn watch(observer: &mut Observer, len: usize, ended: &AtomicBool) -> Watched {
    let (mut watched, mut expected, mut random) = (Watched::default(), observer.next(), 0x9e37_79b9_u64);
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match random >> 60 {
            0 => thread::sleep(Duration::from_micros(random >> 33 & 0x3ff)),
            1..4 => thread::yield_now(),
            _ => {}
        }
        let was_ended = ended.load(Ordering::Acquire);
        match observer.poll().unwrap() {
            Some(Observed::Event(event)) => {
                assert_eq!(event.seq(), expected);
                expected = expected.plus(1);
                if let Event::Command(c) = event {
                    assert_eq!(c.payload.len(), len);
                    assert!(c.payload.iter().all(|&b| b == c.payload[0]), "a mix at {}", c.seq);
                    watched.commands += 1;
                } else {
                    watched.changes += 1;
                }
            }
            Some(Observed::Missed { from, to }) => {
                assert!(from == expected && to > from, "{from} to {to}, expected {expected}");
                (watched.missed, watched.gaps) = (watched.missed + to.since(from), watched.gaps + 1);
                expected = to;
            }
            None if was_ended => return watched,
            None => thread::yield_now(),
        }
    }
}

#[test]
fn an_observer_delivers_or_names_everything_and_never_a_mix() {
    for (cells, lane_bytes, len) in [(4, 256, 64), (4, 256, 40), (4, 4 << 20, 1 << 20)] {
        let config =
            Config::new().order_slots(4).lane_cells(cells).lane_bytes(lane_bytes).producers(2).workers(1);
        let region = Region::anonymous(&config).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut worker = Worker::join(&region, "w").unwrap();
        let mut observer = Observer::attach(&Region::attach_read_only(region.path()).unwrap()).unwrap();
        let start = observer.next();
        let least = if len > 4096 { 20 } else { 5_000u64 };
        let until = Instant::now() + if long() { Duration::from_secs(60) } else { Duration::ZERO };
        let (done, sending) = (AtomicBool::new(false), AtomicU64::new(2));
        let (watched, received) = thread::scope(|scope| {
            for name in ["a", "b"] {
                let (region, sending) = (&region, &sending);
                scope.spawn(move || {
                    let mut producer = Producer::attach(region, name).unwrap();
                    let mut n = 0;
                    while n < least || Instant::now() < until {
                        let payload = vec![n as u8 ^ name.as_bytes()[0]; len];
                        producer.submit_deadline(0, &payload, Instant::now() + NEVER).unwrap();
                        n += 1;
                    }
                    producer.wait_sequenced_deadline(n - 1, Instant::now() + NEVER).unwrap();
                    sending.fetch_sub(1, Ordering::Release);
                });
            }
            let watching = scope.spawn(|| watch(&mut observer, len, &done));
            let done = Over(&done);
            // Who gates is never overtaken.
            let (mut got, mut next) = (0u64, worker.next());
            while sending.load(Ordering::Acquire) > 0 || worker.lag() > 0 {
                let soon = Instant::now() + Duration::from_millis(20);
                let Some(event) = worker.recv_deadline(soon).unwrap() else { continue };
                assert_eq!(event.seq(), next);
                next = next.plus(1);
                if let Event::Command(c) = event {
                    assert!(c.payload.len() == len && c.payload.iter().all(|&b| b == c.payload[0]));
                    got += 1;
                }
            }
            drop(done);
            (watching.join().unwrap(), got)
        });
        let Watched { commands, changes, missed, gaps } = watched;
        println!("{len} bytes: {received} received; observed {commands}, and {missed} missed in {gaps} gaps");
        assert_eq!(commands + changes + missed, region.snapshot().next.since(start));
        assert_eq!(missed, observer.missed());
        assert!(received >= 2 * least && commands <= received);
        sequencer.stop().unwrap();
    }
}

#[test]
fn an_observer_delivers_nothing_whose_room_is_claimed_again_and_half_written() {
    // What is short: cells, with the payloads in them; and bytes, with cells left.
    for (cells, lane_bytes, len) in [(4, 256, 40), (16, 256, 64)] {
        let mut desk = Desk::new(&tiny().lane_cells(cells).lane_bytes(lane_bytes));
        let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
        let mut observer = Observer::attach(&desk.region).unwrap();
        let first = observer.next();
        let payloads = [1, 2, 3, 4].map(|n| vec![n; len]);
        // Two runs of two.
        for two in payloads.chunks(2) {
            producer.try_submit_batch(&[(0, &two[0][..]), (0, &two[1][..])]).unwrap();
            desk.turn();
        }
        assert!(producer.try_claim(0, len).is_err(), "it is full");
        while producer.try_claim(0, len).is_err() {
            drain(&mut worker);
            desk.turn();
        }
        let mut claim = producer.try_claim(0, len).unwrap();
        claim[..len / 2].fill(9);
        let missed = Observed::Missed { from: first, to: first.plus(1) };
        assert_eq!(observer.poll().unwrap(), Some(missed), "{len} bytes");
        // The rest is whole, also that of the same run.
        for (seq, payload) in (first.get()..).zip(&payloads).skip(1) {
            let seen = observer.poll().unwrap();
            let Some(Observed::Event(Event::Command(whole))) = seen else { panic!("{len} bytes: {seen:?}") };
            assert_eq!((whole.seq, whole.payload), (Seq::new(seq), &payload[..]));
        }
        assert_eq!(observer.poll().unwrap(), None);
    }
}

#[test]
fn a_sequencer_that_looked_at_a_time_to_come_is_suspect() {
    use seriatim_ring::sync::Ordering::Relaxed;
    let mut desk = Desk::new(&Config::new());
    // It has something to do.
    desk.producer("p").try_submit(0, b"x").unwrap();
    let is_suspect = |looked_ns: u64| {
        desk.region.map().control().pulse.looked_ns.store(looked_ns, Relaxed);
        desk.region.snapshot().sequencer.unwrap().suspect
    };
    let (now, second) = (crate::sys::monotonic_ns(), 1_000_000_000);
    // The past is as long ago as it looks; by another clock, which is ahead, nothing is known.
    assert!(is_suspect(now - 2 * second) && is_suspect(now + 3600 * second));
    let soon = (0..100).find(|_| !is_suspect(crate::sys::monotonic_ns()));
    assert!(soon.is_some(), "that it has looked just now is never seen");
}

#[test]
fn an_observer_that_is_lapped_in_the_middle_of_a_run_goes_on_where_it_is_whole() {
    let mut desk = Desk::new(&tiny().lane_cells(8).lane_bytes(1024));
    let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
    let mut observer = Observer::attach(&desk.region).unwrap();
    let start = observer.next();
    let (mut delivered, mut missed) = (0, 0);
    // Of each batch of four one is looked at, then two more batches come: half a lane and a whole one on.
    for round in 0..100u8 {
        for part in 0..3 {
            let payload = [round.wrapping_mul(3).wrapping_add(part); 64];
            producer.try_submit_batch(&[(0, &payload[..]); 4]).unwrap();
            desk.turn();
            drain(&mut worker);
            desk.turn();
            match if part == 0 { observer.poll().unwrap() } else { None } {
                Some(Observed::Event(Event::Command(c))) => {
                    assert!(c.payload.iter().all(|byte| *byte == c.payload[0]));
                    delivered += 1;
                }
                Some(Observed::Missed { from, to }) => missed += to.since(from),
                _ => {}
            }
        }
    }
    while let Some(seen) = observer.poll().unwrap() {
        match seen {
            Observed::Event(_) => delivered += 1,
            Observed::Missed { from, to } => missed += to.since(from),
        }
    }
    assert_eq!(delivered + missed, desk.region.snapshot().next.since(start));
    assert!(delivered > 0 && missed > 0 && missed == observer.missed());
}

#[test]
fn room_comes_back_in_the_middle_of_a_batch() {
    /// Commands after which a worker says how far it is, by default.
    const RELEASED: u64 = 32;
    let mut desk = Desk::new(&Config::new().order_slots(256).lane_cells(64).producers(1).workers(1));
    let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
    drain(&mut worker);
    let Desk { sequencer, .. } = &mut desk;
    let mut fill = |sequencer: &mut Sequencer| {
        let mut submitted = 0;
        while producer.try_submit(0, b"x").is_ok() {
            submitted += 1;
        }
        while sequencer.poll(256).unwrap().commands > 0 {}
        submitted
    };
    assert_eq!(fill(sequencer), 64);
    let (mut handled, mut stall, mut longest, mut total) = (0, 0, 0, 64);
    while handled < 1000 {
        let got = worker.poll_batch(1000, |_| {
            // While this command is handled the others go on, as far as they can.
            let submitted = fill(sequencer);
            stall = if submitted > 0 { 0 } else { stall + 1 };
            (longest, total) = (longest.max(stall), total + submitted);
            handled += 1;
        });
        assert!(got.unwrap() > 0);
    }
    println!("{handled} handled, {total} submitted; at most {longest} handled without room for one more");
    assert!((RELEASED - 1..=RELEASED + 2).contains(&longest), "{longest}");
}

#[test]
fn one_command_alone_waits_for_no_batch() {
    let mut desk = Desk::new(&Config::new());
    let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
    drain(&mut worker);
    for n in 0..100u64 {
        producer.try_submit(0, &n.to_le_bytes()).unwrap();
        assert_eq!(desk.sequencer.poll(256).unwrap().commands, 1);
        assert!(matches!(worker.poll().unwrap(), Some(Event::Command(c)) if c.index == n));
    }
}

#[test]
fn a_claim_that_was_left_open_while_others_lapped_it_is_whole_at_its_commit() {
    for cells in [2, 4] {
        let mut desk = Desk::new(&tiny().order_slots(8).lane_cells(cells).lane_bytes(256));
        let options = JoinOptions::new().check_payloads(true);
        let mut worker = desk.attach(|region| Worker::join_with(region, "w", &options)).unwrap();
        let (mut a, mut b) = (desk.producer("a"), desk.producer("b"));
        let mut expected = Vec::new();
        for round in 0..50usize {
            let late = bytes(64, round);
            let mut claim = a.try_claim(0, late.len()).unwrap();
            claim[..32].copy_from_slice(&late[..32]);
            for n in 0..3 * cells as usize {
                let other = bytes(64, round * 1000 + n);
                b.try_submit(0, &other).unwrap();
                expected.push(other);
                desk.turn();
                assert_eq!(drain(&mut worker), expected.split_off(0));
                desk.turn();
            }
            claim[32..].copy_from_slice(&late[32..]);
            claim.commit().unwrap();
            expected.push(late);
            desk.turn();
            assert_eq!(drain(&mut worker), expected.split_off(0));
            desk.turn();
        }
        assert_eq!(desk.region.snapshot().producers[0].next, 50);
    }
}

#[test]
fn a_region_that_was_shortened_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let file = |path: &std::path::Path, len: u64| {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
    };
    for (name, is_shortened) in [("shortened", true), ("damaged", false)] {
        let region = Region::create(dir.path().join(name), &tiny()).unwrap();
        let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
        let mut worker = desk.worker("w");
        let [mut first, mut second] = ["a", "b"].map(|name| desk.producer(name));
        // Round the queue of tickets, so that its words have turns that can be taken back.
        for n in 0..200usize {
            [&mut first, &mut second][n % 2].try_submit(0, b"x").unwrap();
            desk.turn();
            drain(&mut worker);
            desk.turn();
        }
        while second.try_submit(0, b"x").is_ok() {}
        let map = desk.region.map();
        if is_shortened {
            // The last page is a worker's: nobody here touches it.
            file(desk.region.path(), map.bytes() - 4096);
        }
        // As it would read where pages are gone.
        map.tickets().start_at(0);
        map.lane_entry(2).released.store(0, Ordering::Relaxed);
        let (tickets, room) = (first.try_submit(0, b"x"), second.try_submit(0, b"x"));
        if is_shortened {
            assert!(matches!(tickets, Err(SubmitError::Lost(RegionLost::Truncated { .. }))), "{tickets:?}");
            assert!(matches!(room, Err(SubmitError::Lost(RegionLost::Truncated { .. }))), "{room:?}");
        } else {
            assert!(matches!(tickets, Err(SubmitError::DamagedTickets { .. })), "{tickets:?}");
            assert!(matches!(room, Err(SubmitError::Damaged { .. })), "{room:?}");
        }
    }
}

#[test]
fn who_finds_no_room_is_seen_with_who_keeps_it_until_there_is_some() {
    let mut desk = Desk::new(&tiny());
    let (mut worker, mut producer) = (desk.worker("w"), desk.producer("p"));
    let is_full = |desk: &Desk| desk.region.snapshot().producers[0].full_for.is_some();
    drain(&mut worker);
    while producer.try_submit(0, b"x").is_ok() {}
    // Also before anything of it is in the order; then the sequencer has yet to come to it.
    assert!(is_full(&desk));
    assert!(matches!(desk.region.snapshot().held_by, Some(HeldBy::Sequencer { .. })));
    desk.turn();
    assert!(is_full(&desk));
    let held = desk.region.snapshot().held_by;
    assert!(matches!(held, Some(HeldBy::Worker { lag: 2, .. })), "{held:?}");
    assert!(matches!(producer.try_submit(0, b"x"), Err(SubmitError::Full(Full { by })) if Some(by) == held));
    drain(&mut worker);
    desk.turn();
    // Nothing is outstanding: all the room is there.
    assert!(!is_full(&desk) && desk.region.snapshot().held_by.is_none());
    producer.try_submit(0, b"x").unwrap();
    desk.turn();
    assert!(!is_full(&desk) && desk.region.snapshot().held_by.is_none());
}

#[test]
fn the_longest_patience_with_a_worker_is_no_short_one() {
    let policy = |time| WorkerPolicy::KillAfter { lag: 3, time };
    let region = Region::anonymous(&Config::new()).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let longest = Duration::from_nanos(u64::MAX);
    let kept = [(Duration::MAX, longest), (longest * 2, longest), (Duration::ZERO, Duration::from_nanos(1))];
    for (n, (given, kept)) in kept.into_iter().enumerate() {
        let name = n.to_string();
        let options = JoinOptions::new().policy(policy(given));
        let _worker = Worker::join_with(&region, &name, &options).unwrap();
        let snapshot = region.snapshot();
        let row = snapshot.workers.iter().find(|row| row.party.name == name).unwrap();
        assert_eq!(row.policy, policy(kept));
    }
}

/// Sends SIGUSR1 a thousand times a second to each thread of this process that has one of these names.
fn storm(names: &[&str], over: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !over.load(Ordering::Relaxed) {
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if names.contains(&name.trim_end()) {
                let thread = task.file_name().to_str().unwrap().parse().unwrap();
                sent += u64::from(sys::signal_thread(thread, libc::SIGUSR1));
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    sent
}

#[test]
fn signals_neither_shorten_a_wait_nor_end_it_nor_make_anything_up() {
    sys::interrupt_by(libc::SIGUSR1);
    let over = AtomicBool::new(false);
    let check = |what: &str, deadline: Instant, started: Instant| {
        let (ended, took) = (Instant::now(), started.elapsed());
        println!("{what}: {took:?}");
        assert!(ended >= deadline, "{what} ended {:?} early", deadline - ended);
        assert!(took < NEVER, "{what} took {took:?}");
    };
    let wait_for_nothing = || {
        let time = Duration::from_millis(500);
        let started = Instant::now();
        assert!(!sys::futex_wait(&AtomicU32::new(7), 7, sys::ANY_MARK, time), "nobody woke it");
        check("sleep", started + time, started);
        let region = Region::anonymous(&tiny()).unwrap();
        let started = Instant::now();
        let options = AttachOptions::new().timeout(time);
        assert!(Producer::attach_with(&region, "p", &options).is_err());
        check("attach", started + time, started);
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut producer = Producer::attach(&region, "p").unwrap();
        let mut worker = Worker::join(&region, "w").unwrap();
        let mut observer = Observer::attach(&region).unwrap();
        while worker.recv_deadline(Instant::now() + Duration::from_millis(50)).unwrap().is_some() {}
        while observer.poll().unwrap().is_some() {}
        let at = Instant::now() + time;
        assert_eq!(worker.recv_deadline(at).unwrap(), None);
        check("recv", at, at - time);
        let at = Instant::now() + time;
        assert_eq!(observer.recv_deadline(at).unwrap(), None);
        check("observe", at, at - time);
        while producer.try_submit(0, b"x").is_ok() {}
        let at = Instant::now() + time;
        let full = producer.submit_deadline(0, b"x", at);
        check("submit", at, at - time);
        assert!(matches!(full, Err(SubmitError::Full(Full { by: HeldBy::Worker { .. } }))), "{full:?}");
        sequencer.stop().unwrap();
        let region = Region::anonymous(&tiny()).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut producer = Producer::attach(&region, "p").unwrap();
        sequencer.stop().unwrap();
        let index = producer.submit(0, b"x").unwrap();
        let at = Instant::now() + time;
        let late = producer.wait_sequenced_deadline(index, at);
        check("wait for a place", at, at - time);
        assert_eq!(late, Err(WaitError::Late { index, by: HeldBy::NoSequencer }));
    };
    let pass_commands = || {
        let config = Config::new().order_slots(8).lane_cells(4).lane_bytes(256).producers(1).workers(1);
        let region = Region::anonymous(&config).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut worker = Worker::join_with(&region, "w", &JoinOptions::new().check_payloads(true)).unwrap();
        let mut producer = Producer::attach(&region, "p").unwrap();
        let commands = if long() { 200_000 } else { 3_000u64 };
        thread::scope(|scope| {
            let submit = move || {
                for n in 0..commands {
                    let payload = bytes((n % 120) as usize, n as usize);
                    producer.submit_deadline(0, &payload, Instant::now() + NEVER).unwrap();
                    if n % 64 == 0 {
                        thread::sleep(Duration::from_micros(300));
                    }
                }
                producer
            };
            thread::Builder::new().name("stormed".into()).spawn_scoped(scope, submit).unwrap();
            let mut next = 0;
            while next < commands {
                let event = worker.recv_deadline(Instant::now() + NEVER).unwrap().expect("it comes");
                if let Event::Command(c) = event {
                    assert_eq!(
                        (c.index, c.payload),
                        (next, &bytes((next % 120) as usize, next as usize)[..])
                    );
                    next += 1;
                }
            }
            assert_eq!(worker.recv_deadline(Instant::now() + Duration::from_millis(50)).unwrap(), None);
        });
        sequencer.stop().unwrap();
    };
    let sent = thread::scope(|scope| {
        let storm = scope.spawn(|| storm(&["stormed", "seriatim-seq"], &over));
        let named = |name: &str| thread::Builder::new().name(name.into());
        let parts = [
            named("stormed").spawn_scoped(scope, wait_for_nothing).unwrap(),
            named("stormed").spawn_scoped(scope, pass_commands).unwrap(),
        ];
        let ended = parts.map(|part| part.join());
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(Result::unwrap);
        storm.join().unwrap()
    });
    println!("{sent} signals sent");
    assert!(sent > 100);
}

#[test]
fn no_wake_up_is_lost() {
    everybody_sleeps_and_wakes(SequencerConfig::new().assist(false));
}

#[test]
fn the_sequencer_goes_on_to_wake_those_whom_nobody_woke() {
    let mut desk = Desk::new(&tiny());
    let mut producer = desk.producer("p");
    let Desk { region, mut sequencer } = desk;
    let bell = &region.map().bells().workers;
    thread::scope(|scope| {
        let sleepers = [(); 4].map(|()| {
            let (tell, told) = mpsc::channel();
            let sleep = move || {
                wait::sleep_alone(bell, FOR_WORK, None, || {
                    tell.send(()).unwrap();
                    false
                })
            };
            let sleeper = scope.spawn(sleep);
            told.recv().unwrap();
            sleeper
        });
        producer.try_submit(0, b"news").unwrap();
        assert_eq!(sequencer.poll(1).unwrap().commands, 1);
        // There is no more news.
        for _ in 0..4 {
            sequencer.poll(1).unwrap();
        }
        assert!(
            sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()),
            "one slept to the end of its time"
        );
        drop(sequencer);
    });
}

#[test]
fn nor_where_all_make_turns_for_the_sequencer() {
    let stats = everybody_sleeps_and_wakes(SequencerConfig::new().assist(true));
    assert!((1..stats.turns).contains(&stats.assisted_turns), "{stats:?}");
}

/// Producers and workers that now and then come to rest, all at once.
fn everybody_sleeps_and_wakes(how: SequencerConfig) -> SequencerStats {
    let config = Config::new().order_slots(8).lane_cells(4).lane_bytes(256).producers(3).workers(3);
    let region = Region::anonymous(&config).unwrap();
    let sequencer = Sequencer::spawn(&region, how).unwrap();
    let workers: Vec<_> = (0..3)
        .map(|n| {
            let mut worker = Worker::join(&region, &format!("w{n}")).unwrap();
            thread::spawn(move || {
                let mut digests = 0;
                while let Ok(event) = worker.recv() {
                    if matches!(event, Event::Closed { .. }) {
                        break;
                    }
                    digests += 1;
                }
                (digests, worker.next(), worker.digest())
            })
        })
        .collect();
    let turns = AtomicU64::new(0);
    thread::scope(|scope| {
        for name in 0..3u64 {
            let (region, turns) = (&region, &turns);
            scope.spawn(move || {
                let mut producer = Producer::attach(region, &format!("p{name}")).unwrap();
                for n in 0..5_000u64 {
                    let index = producer.submit(0, &vec![1; (n % 120) as usize]).unwrap();
                    // Now and then everybody comes to rest, for as long as it takes to lie down.
                    if n % 64 == name {
                        producer.wait_sequenced(index).unwrap();
                        for _ in 0..turns.fetch_add(1, Ordering::Relaxed) % 200 {
                            thread::yield_now();
                        }
                    }
                }
            });
        }
    });
    let stats = sequencer.close().unwrap();
    assert!(stats.closed);
    let results: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    assert!(results.iter().all(|r| (r.1, r.2) == (results[0].1, results[0].2)));
    assert_eq!(wait::LOST.load(Ordering::Relaxed), 0);
    stats
}

#[test]
fn one_thread_alone_has_its_commands_ordered_by_its_own_polls() {
    let region = Region::anonymous(&tiny()).unwrap();
    let start = |assist| Sequencer::spawn(&region, SequencerConfig::new().assist(assist)).unwrap();
    let sequencer = start(true);
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut pass = |commands: u64| {
        let (mut submitted, mut received) = (0, 0);
        while received < commands {
            if submitted < commands && producer.try_submit(0, &submitted.to_le_bytes()).is_ok() {
                submitted += 1;
            }
            let count = |event: Event<'_>| received += u64::from(matches!(event, Event::Command(_)));
            worker.poll_batch(64, count).unwrap();
        }
    };
    pass(10_000);
    assert!(sequencer.stop().unwrap().assisted_turns > 0);
    // Another one comes, which nobody helps; then one that is helped again.
    let sequencer = start(false);
    pass(100);
    assert_eq!(sequencer.stop().unwrap().assisted_turns, 0);
    let sequencer = start(true);
    pass(10_000);
    assert!(sequencer.close().unwrap().assisted_turns > 0);
}

#[test]
fn a_producer_that_waits_makes_turns() {
    let region = Region::anonymous(&tiny().without_workers(WithoutWorkers::Discard)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new().assist(true)).unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    for n in 0..10_000_u64 {
        producer.submit(0, &n.to_le_bytes()).unwrap();
    }
    assert!(sequencer.close().unwrap().assisted_turns > 0);
}

/// A sequencer whose thread may run on these CPUs only.
fn spawn_on(cpus: &[usize], region: &Region, config: SequencerConfig) -> SequencerHandle {
    thread::scope(|scope| {
        let spawn = || {
            // Threads inherit it.
            sys::set_affinity(cpus).unwrap();
            Sequencer::spawn(region, config).unwrap()
        };
        scope.spawn(spawn).join().unwrap()
    })
}

/// Bytes that count how often they are asked for.
struct Asked<'a>(&'a std::cell::Cell<u32>);

impl AsRef<[u8]> for Asked<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.set(self.0.get() + 1);
        b"x"
    }
}

#[test]
fn a_batch_that_waits_for_room_is_asked_for_its_bytes_once() {
    let mut desk = Desk::new(&tiny());
    let mut producer = desk.producer("p");
    // Two cells, which nobody frees.
    producer.try_submit_batch(&[(0, b"x")]).unwrap();
    producer.try_submit_batch(&[(0, b"x")]).unwrap();
    let asked = std::cell::Cell::new(0);
    let soon = Instant::now() + Duration::from_millis(20);
    let full = producer.submit_batch_deadline(&[(0, Asked(&asked))], soon).unwrap_err();
    assert!(matches!(full, SubmitError::Full(_)), "{full}");
    assert_eq!(asked.get(), 1, "it waited for 20 ms, which takes many attempts");
    // Also what can never find room is still told at once.
    let never = Instant::now() + Duration::from_secs(600);
    let too_large = producer.submit_batch_deadline(&[(0, [0; 1000])], never);
    assert_eq!(too_large, Err(SubmitError::TooLarge { len: 1000, max: producer.max_payload() }));
}

#[test]
fn the_sequencer_is_helped_while_no_cpu_can_be_spared_for_it() {
    let cpus = affinity::allowed();
    for cpus in [&cpus[..1], &cpus[..cpus.len().min(3)]] {
        let region = Region::anonymous(&Config::new().workers(3)).unwrap();
        let sequencer = spawn_on(cpus, &region, SequencerConfig::new());
        let helped = || region.snapshot().helped.map(|load| (load.cpus as usize, load.parties as usize));
        let (mut word, relaxed) = (0, seriatim_ring::sync::Ordering::Relaxed);
        let mut leave = Vec::new();
        thread::scope(|scope| {
            for _ in cpus {
                assert_eq!(helped(), None);
                let (tell, told) = mpsc::channel::<()>();
                let joined = Worker::join(&region, &format!("w{}", leave.len())).unwrap();
                scope.spawn(move || {
                    let mut worker = joined;
                    while told.try_recv().is_err() {
                        worker.poll().unwrap();
                        thread::yield_now();
                    }
                });
                leave.push(tell);
            }
            while helped() != Some((cpus.len(), cpus.len())) {
                thread::yield_now();
            }
            word = region.map().control().pulse.helped.load(relaxed);
            leave.pop().unwrap().send(()).unwrap();
            while helped().is_some() {
                thread::yield_now();
            }
            leave.iter().for_each(|leave| leave.send(()).unwrap());
        });
        sequencer.stop().unwrap();
        // What one leaves who was helped until it died: it is not, and its successor is not, either.
        region.map().control().pulse.helped.store(word, relaxed);
        assert_eq!(helped(), None);
        let _successor = Sequencer::open(&region).unwrap();
        assert_eq!(helped(), None);
    }
}

#[test]
fn a_sequencer_with_a_cpu_of_its_own_is_not_helped() {
    let cpu = affinity::allowed()[0];
    let pass = |config: SequencerConfig| {
        let region = Region::anonymous(&Config::new()).unwrap();
        let sequencer = spawn_on(&[cpu], &region, config);
        let mut worker = Worker::join(&region, "w").unwrap();
        let mut producer = Producer::attach(&region, "p").unwrap();
        for _ in 0..1_000 {
            producer.submit(0, b"x").unwrap();
            while !matches!(worker.recv().unwrap(), Event::Command(_)) {}
        }
        sequencer.stop().unwrap().assisted_turns
    };
    assert_eq!(pass(SequencerConfig::new().core(cpu)), 0);
    assert!(pass(SequencerConfig::new()) > 0);
}

#[test]
fn a_sequencer_that_ends_in_the_hands_of_one_who_helps_says_why() {
    let region = Region::anonymous(&tiny().first_index(Seq::MAX.get() - 4)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new().assist(true)).unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut ended = false;
    while !ended {
        ended = producer.try_submit(0, b"x").is_err_and(|error| error == SubmitError::Closed);
        worker.poll().unwrap();
    }
    assert!(matches!(sequencer.stop(), Err(SequencerError::Exhausted { .. })));
    assert!(!region.is_alive(Role::Sequencer), "its lock falls with it");
}

#[test]
fn a_region_that_is_opened_read_only_can_be_watched_and_not_joined() {
    let region = Region::anonymous(&tiny()).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let looking = Region::attach_read_only(region.path()).unwrap();
    for error in [
        Worker::join(&looking, "w").unwrap_err(),
        Producer::attach(&looking, "p").unwrap_err(),
        match Sequencer::open(&looking).unwrap_err() {
            SequencerError::Attach(error) => error,
            other => panic!("{other}"),
        },
    ] {
        assert!(matches!(error, AttachError::ReadOnly { .. }), "{error}");
        assert!(error.to_string().contains("needs write access"), "{error}");
    }
    assert_eq!(looking.snapshot().epoch, 1);
    Observer::attach(&looking).unwrap();
}

/// How soon, in looks, for what a clock on the wall says is the machine's: the sequencer looks each 20 ms, and one that
/// sleeps once more before every sleep, of 100 ms at most.
#[test]
fn a_gate_of_the_dead_falls_at_the_first_look() {
    /// Turns between two looks at the clock, and the one that looks.
    const TURNS: usize = 64 + 1;
    let hour = Duration::from_secs(3600);
    let mut desk = Desk::new(&tiny());
    let gates = |region: &Region| region.snapshot().workers.iter().filter(|w| w.party.attached).count();
    // While it has turns to make, at the first turn that finds the time to have come.
    desk.worker("dead").fall();
    desk.turn();
    desk.sequencer.put_off_look(hour);
    for _ in 0..10 * TURNS {
        desk.sequencer.poll(16).unwrap();
    }
    assert_eq!(gates(&desk.region), 1, "between two looks nobody asks");
    desk.sequencer.put_off_look(Duration::ZERO);
    let turns = (1..).find(|_| {
        desk.sequencer.poll(16).unwrap();
        gates(&desk.region) == 0
    });
    assert!(turns <= Some(TURNS), "{turns:?} turns");
    // While it has none, at the look before it lies down again.
    desk.worker("dead").fall();
    desk.turn();
    desk.sequencer.put_off_look(Duration::ZERO);
    desk.sequencer.sleep(Some(Instant::now()), || true);
    assert_eq!(gates(&desk.region), 0, "it lay down and had not looked");
}

#[test]
fn a_dead_worker_gates_no_longer() {
    let region = Region::anonymous(&tiny()).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut alive = Worker::join(&region, "alive").unwrap();
    let dead = Worker::join(&region, "dead").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    dead.fall();
    let sent = 1000;
    let submitting = thread::spawn(move || {
        for _ in 0..sent {
            producer.submit(0, b"x").unwrap();
        }
    });
    let (mut got, mut left) = (0, None);
    while got < sent {
        match alive.recv().unwrap() {
            Event::Command(_) => got += 1,
            Event::Left(change) => left = Some(change.name),
            _ => {}
        }
    }
    submitting.join().unwrap();
    assert_eq!(left.map(|n| n.to_string()), Some("dead".into()));
}

#[test]
fn what_only_one_that_died_had_not_had_is_in_the_digest_of_who_joined_later_and_reaches_nobody() {
    let mut desk = Desk::new(&tiny().lane_cells(64).order_slots(64).workers(3));
    let (behind, mut producer) = (desk.worker("behind"), desk.producer("p"));
    let mut ahead = desk.worker("ahead");
    for n in 0..5u8 {
        producer.try_submit(0, &[n]).unwrap();
    }
    while desk.sequencer.poll(16).unwrap().commands > 0 {}
    let mut later = desk.worker("later");
    behind.fall();
    producer.try_submit(0, &[5]).unwrap();
    while desk.sequencer.poll(16).unwrap().commands > 0 {}
    assert_eq!(drain(&mut later), [[5]]);
    assert_eq!(drain(&mut ahead), (0..=5u8).map(|n| vec![n]).collect::<Vec<_>>());
    assert_eq!((later.next(), later.digest()), (ahead.next(), ahead.digest()));
}

#[test]
fn who_comes_after_all_others_died_gets_what_they_have_not_had() {
    // Also where a successor has the slot's lock and has not come further than that.
    for is_followed in [false, true] {
        let mut desk = Desk::new(&tiny());
        let mut worker = desk.worker("w");
        let mut producer = desk.producer("p");
        drain(&mut worker);
        producer.submit(0, b"held").unwrap();
        desk.turn();
        worker.fall();
        let follower = is_followed.then(|| Lock::take(desk.region.file(), Role::Worker(0)).unwrap().unwrap());
        // At once: before the sequencer looks who lives by itself.
        let mut next = desk.worker("next");
        assert!(drain(&mut next).contains(&b"held".to_vec()), "followed: {is_followed}");
        drop(follower);
    }
}

#[test]
fn a_lock_that_outlives_its_holder_is_waited_for() {
    // As in a process that is starting a child when its worker leaves: the child has the lock until it runs.
    let mut desk = Desk::new(&tiny());
    let (worker, producer) = (desk.worker("w"), desk.producer("p"));
    desk.turn();
    drop((worker, producer));
    let kept =
        [Role::Worker(0), Role::Lane(1)].map(|role| Lock::take(desk.region.file(), role).unwrap().unwrap());
    let (region, options) = (desk.region.clone(), AttachOptions::new().timeout(Duration::from_secs(60)));
    let begun = Arc::new(AtomicBool::new(false));
    let coming = thread::spawn({
        let begun = Arc::clone(&begun);
        move || {
            begun.store(true, Ordering::Relaxed);
            let worker =
                Worker::join_with(&region, "w", &JoinOptions::new().timeout(Duration::from_secs(60)));
            (worker.map(drop), Producer::attach_with(&region, "p", &options).map(drop))
        }
    });
    while !begun.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    // Long enough for it to try: it would be refused.
    let until = Instant::now() + Duration::from_millis(100);
    let mut kept = Some(kept);
    while !coming.is_finished() {
        desk.sequencer.poll(16).unwrap();
        kept = kept.filter(|_| Instant::now() < until);
        thread::yield_now();
    }
    let (worker, producer) = coming.join().unwrap();
    worker.unwrap();
    producer.unwrap();
}

#[test]
fn a_newcomer_is_not_taken_to_be_stuck() {
    let mut desk = Desk::new(&tiny());
    for name in ["a", "b"] {
        let worker = desk.worker(name);
        desk.attach(|region| Producer::attach(region, "p").unwrap().submit(0, b"x")).unwrap();
        let rows = desk.region.snapshot().workers;
        assert!(rows.iter().all(|row| row.stuck_for < Duration::from_secs(60)), "{rows:#?}");
        worker.leave();
    }
}

#[test]
fn producers_can_be_sent_and_not_shared() {
    fn is_send<T: Send>() {}
    is_send::<Producer>();
    is_send::<Worker>();
    is_send::<Sequencer>();
    // `Producer: !Sync` is a compile-fail example at `Producer`.
}

/// A child that ends with its standard input.
fn bystander() -> (std::process::Child, u64) {
    use std::process::{Command, Stdio};
    let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let started = crate::sys::start_time_of(child.id()).unwrap();
    (child, started)
}

#[test]
fn nobody_is_killed_for_a_pid_and_no_lock_is_taken_from_the_living() {
    let desk = Desk::new(&tiny());
    let reign = &desk.region.map().control().reign;
    let now = Duration::ZERO;

    let itself = Sequencer::evict(&desk.region, now).unwrap_err();
    assert!(
        matches!(itself, SequencerError::NotEvicted { source: NotKilled::Itself { .. }, .. }),
        "{itself}"
    );

    // The pid of the one that serves is that of another process by now.
    let (mut child, started) = bystander();
    let relaxed = seriatim_ring::sync::Ordering::Relaxed;
    reign.pid.store(child.id(), relaxed);
    let other = Sequencer::evict(&desk.region, now).unwrap_err();
    assert!(matches!(other, SequencerError::NotEvicted { source: NotKilled::Other { .. }, .. }), "{other}");
    assert!(child.try_wait().unwrap().is_none());

    // It is the one, is killed, and its lock does not fall (for it is ours).
    reign.started.store(started, relaxed);
    let held = Sequencer::evict(&desk.region, now).unwrap_err();
    assert!(matches!(held, SequencerError::NotEnded { .. }), "{held}");
    assert!(!child.wait().unwrap().success());
    assert!(matches!(Sequencer::open(&desk.region), Err(SequencerError::Running { .. })));
}

#[test]
fn a_standby_waits_for_the_lock_and_for_nothing_else() {
    let desk = Desk::new(&tiny());
    let mut asked = 0;
    let opened = Sequencer::wait_to_open(&desk.region, || {
        asked += 1;
        asked > 3
    });
    assert!(opened.unwrap().is_none() && asked > 3);
    assert_eq!(desk.sequencer.stats().epoch, 1);

    let Desk { region, sequencer } = desk;
    let (mut sequencer, mut looks) = (Some(sequencer), 0);
    let next = Sequencer::wait_to_open(&region, || {
        sequencer = None;
        looks += 1;
        false
    });
    assert_eq!(next.unwrap().unwrap().stats().epoch, 2);
    assert_eq!(looks, 1, "the first look after the lock fell takes over");
}

#[test]
fn a_sequencer_that_waits_for_room_for_its_own_commands_says_who_holds_it_and_sleeps() {
    // The sequencer's lane is full of comings and goings that `slow` has not passed; the order ring is not.
    let mut desk = Desk::new(&Config::new().workers(4));
    let _slow = desk.worker("slow");
    while desk.region.snapshot().held_by != Some(desk.region.held_by_worker()) {
        desk.worker("guest").leave();
        desk.turn();
    }
    desk.sequencer.close();
    let turn = desk.sequencer.poll(16).unwrap();
    assert!(
        !turn.closed && matches!(turn.held, Some(HeldBy::Worker { name, .. }) if name.as_str() == "slow")
    );
    assert!(desk.sequencer.would_sleep());
}

#[test]
fn the_longest_time_out_is_no_panic() {
    let region = Region::anonymous(&Config::new()).unwrap();
    let config = SequencerConfig::new().close_timeout(Duration::MAX);
    let sequencer = Sequencer::spawn(&region, config).unwrap();
    Producer::attach_with(&region, "p", &AttachOptions::new().timeout(Duration::MAX)).unwrap();
    Worker::join_with(&region, "w", &JoinOptions::new().timeout(Duration::MAX)).unwrap();
    assert!(sequencer.close().unwrap().closed);
}

#[test]
fn a_region_is_removed_through_a_link_and_not_the_link_instead_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("region"), dir.path().join("link"));
    let region = Region::create(&path, &tiny()).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let error = Region::remove(&link).unwrap_err();
    assert!(matches!(error, RemoveError::InUse { .. }) && error.to_string().contains("sequencer"), "{error}");
    let worker = Worker::join(&region, "w").unwrap();
    sequencer.stop().unwrap();
    let error = Region::remove(&link).unwrap_err();
    assert!(error.to_string().contains("worker \"w\""), "{error}");
    drop(worker);
    Region::remove(&link).unwrap();
    assert!(!path.exists() && link.symlink_metadata().is_ok());
    assert!(matches!(Region::remove(&link).unwrap_err(), RemoveError::Attach(AttachError::NotFound { .. })));
}

/// A region with more runs behind it than its ring holds.
fn well_used() -> Desk {
    let mut desk = Desk::new(&Config::new().order_slots(8).lane_cells(8).lane_bytes(512));
    use_well(&mut desk);
    desk
}

fn use_well(desk: &mut Desk) {
    let (mut producer, mut worker) = (desk.producer("p"), desk.worker("w"));
    for n in 0..20 {
        producer.submit(n, b"x").unwrap();
        desk.turn();
        drain(&mut worker);
        desk.sequencer.poll(1).unwrap();
    }
}

#[test]
fn an_observer_does_not_look_for_ever_for_a_run_that_is_not_there() {
    use seriatim_ring::sync::Ordering::Relaxed;
    let desk = well_used();
    let published = &desk.region.map().control().published;
    let runs = published.run.load(Relaxed);
    let mut early = Observer::attach(&desk.region).unwrap();
    for damaged in [1, runs - 9, runs + 1, u64::MAX] {
        published.run.store(damaged, Relaxed);
        let mut observer = Observer::attach(&desk.region).unwrap();
        let bounded = (0..100).take_while(|_| matches!(observer.poll(), Ok(Some(_)))).count();
        assert!(bounded < 100, "published run {damaged}");
        assert!(!matches!(early.poll(), Ok(Some(_))), "published run {damaged}");
    }
}

#[test]
fn an_observer_that_finds_the_cursor_a_ring_behind_goes_by_the_ring() {
    use seriatim_ring::sync::Ordering::Relaxed;
    let mut desk = Desk::new(&Config::new().order_slots(8).lane_cells(8).lane_bytes(512));
    let mut late = [0; 4].map(|_| Observer::attach(&desk.region).unwrap());
    use_well(&mut desk);
    let published = &desk.region.map().control().published;
    let (runs, next) = (published.run.load(Relaxed), desk.sequencer.next());
    // As it looks in the middle of a turn that has come round the ring: stopped there, it looks so for long.
    for (behind, late) in [0, 1, runs - 9].into_iter().zip(&mut late) {
        published.run.store(behind, Relaxed);
        assert_eq!(Observer::attach(&desk.region).unwrap().next(), next, "published run {behind}");
        let missed = Observed::Missed { from: Seq::ZERO, to: next };
        assert_eq!(late.poll(), Ok(Some(missed)));
        assert_eq!(late.poll(), Ok(None));
        assert_eq!(late.missed(), next.get());
    }
    // A ring that has no last run is damaged: here no slot holds a run that belongs there.
    let sections = inspect(desk.region.path()).unwrap().sections;
    let order = sections.iter().find(|section| section.name == "order").unwrap();
    let words = crate::shared::Stamps::open(desk.region.path()).unwrap();
    for word in 0..8 * 4 {
        words.set((order.offset / 8 + word) as usize, (1 << 40) + (word / 4 + 1) % 8 + 1);
    }
    let error = late[3].poll().unwrap_err();
    let ObserverError::Corrupt(error) = error else { panic!("{error}") };
    assert_eq!((error.field, error.found), ("published run", runs - 9));
}

#[test]
fn a_place_is_found_in_the_middle_of_a_turn_that_comes_round_the_ring() {
    let region = Region::anonymous(&tiny()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let (mut before, mut last) = (0, 0);
    for n in 0..3 * region.geometry().order_slots {
        last = producer.submit(0, b"x").unwrap();
        let place = producer.wait_sequenced(last).unwrap();
        assert!(matches!(place, Sequenced::At(_)), "{n}: {place:?}");
        while worker.poll().unwrap().is_some() {}
        if n == 0 {
            before = region.map().control().published.run.load(Ordering::Relaxed);
        }
    }
    sequencer.stop().unwrap();
    // As a producer finds it that looks before the turn has moved the cursor.
    region.map().control().published.run.store(before, Ordering::Relaxed);
    let place = producer.wait_sequenced(last).unwrap();
    assert!(matches!(place, Sequenced::At(_)), "{place:?}");
}

#[test]
fn numbers_that_nobody_can_have_counted_are_refused_at_a_takeover() {
    use seriatim_ring::sync::Ordering::Relaxed;
    for which in 0..3 {
        let Desk { region, sequencer } = well_used();
        drop(sequencer);
        let reign = &region.map().control().reign;
        let (word, name) = [
            (&reign.epoch, "epoch"),
            (&reign.next_producer, "next producer number"),
            (&reign.next_member, "next member number"),
        ][which];
        word.store(u64::MAX, Relaxed);
        let error = Sequencer::open(&region).unwrap_err();
        assert!(
            matches!(error, SequencerError::Damaged { field, found: u64::MAX, .. } if field == name),
            "{error}"
        );
    }
}

#[test]
fn an_event_with_a_number_that_nobody_can_have_is_refused_at_a_takeover() {
    use seriatim_ring::lane::Room;
    for kind in [1, 2, 3] {
        let mut desk = Desk::new(&tiny());
        let _worker = desk.worker("w");
        let _producer = desk.producer("p");
        let Desk { region, sequencer } = desk;
        drop(sequencer);
        let lane = region.map().lane(0);
        let entry = lane.read(0).unwrap();
        let room = Room { cell: 0, len: entry.len, place: entry.place };
        lane.write(&room, &[1, u64::MAX, 0, 1, 0, 0, 0]);
        seriatim_ring::lane::LaneWriter::resume(&lane, 0, 0).unwrap().fill(&lane, &room, kind, 0);
        let error = Sequencer::open(&region).unwrap_err();
        assert!(matches!(error, SequencerError::Damaged { found: u64::MAX, .. }), "{error}");
    }
}

/// What a worker and a checker see of two commands in a region with these digests: payloads, digests before each command
/// and at the end.
fn digests_of(what: DigestOf, contents: [&[u8]; 2]) -> (Region, Vec<u64>) {
    let mut desk = Desk::new(&tiny().lane_cells(8).lane_bytes(512).digest(what));
    let mut worker = desk.worker("w");
    let mut producer = desk.producer("p");
    while worker.poll().unwrap().is_some() {}
    producer.submit(1, contents[0]).unwrap();
    let mut claim = producer.claim(1, contents[1].len()).unwrap();
    claim.copy_from_slice(contents[1]);
    claim.commit().unwrap();
    desk.turn();
    let mut seen = Vec::new();
    let mut note = |event: Event<'_>| {
        if let Event::Command(command) = event {
            assert_eq!(command.payload, contents[seen.len()]);
            seen.push(command.digest.0);
        }
    };
    // One by one and as a batch take different ways.
    note(worker.poll().unwrap().unwrap());
    assert_eq!(worker.poll_batch(8, note).unwrap(), 1);
    seen.push(worker.digest().0);
    let found = desk.region.verify();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(found.digest, Some(worker.digest()));
    (desk.region, seen)
}

#[test]
fn a_region_says_what_its_digests_cover_and_they_cover_that() {
    let long = [7; 100];
    let (one, other): ([&[u8]; 2], [&[u8]; 2]) = ([b"one", &long], [b"two", &[8; 100]]);
    for what in [DigestOf::Payload, DigestOf::Header, DigestOf::Off] {
        let ((region, a), (_, b)) = (digests_of(what, one), digests_of(what, other));
        let again = Region::attach(region.path()).unwrap();
        assert_eq!((region.digest_of(), again.digest_of()), (what, what));
        let moves = a.windows(2).all(|pair| pair[0] != pair[1]);
        // The command that is first has the same before it in both.
        let (tells_bytes, tells_length) =
            (a[1..] != b[1..], a[1..] != digests_of(what, [b"longer", &long]).1[1..]);
        let expected = match what {
            DigestOf::Payload => (true, true, true),
            DigestOf::Header => (true, false, true),
            DigestOf::Off => (false, false, false),
        };
        assert_eq!((moves, tells_bytes, tells_length), expected, "{what}: {a:?} {b:?}");
    }
}

#[test]
fn who_checks_payloads_needs_a_region_with_their_digests() {
    for what in [DigestOf::Header, DigestOf::Off] {
        let mut desk = Desk::new(&tiny().digest(what));
        let options = JoinOptions::new().check_payloads(true);
        let error = desk.attach(|region| Worker::join_with(region, "w", &options)).unwrap_err();
        assert!(matches!(error, AttachError::NoPayloadDigests { digest_of, .. } if digest_of == what));
        let text = error.to_string();
        assert!(text.contains(&format!("digest is {what}, expected payload")), "{text}");
    }
    let mut desk = Desk::new(&tiny());
    let options = JoinOptions::new().check_payloads(true);
    desk.attach(|region| Worker::join_with(region, "w", &options)).unwrap();
}

#[test]
fn without_digests_a_cell_that_has_one_is_wrong() {
    for what in [DigestOf::Header, DigestOf::Off] {
        let (region, _) = digests_of(what, [b"one", b"two"]);
        let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
        let mut worker = desk.worker("w");
        let mut producer = desk.producer("p");
        let index = producer.submit(0, b"three").unwrap();
        desk.turn();
        assert!(desk.region.verify().is_sound());
        // The word after the first of its cell.
        let layout = desk.region.map().layout().lane(1);
        let at = layout.cells + (index % layout.cell_count) * 64 + 8;
        std::os::unix::fs::FileExt::write_all_at(desk.region.file(), &[1], at).unwrap();
        let found = desk.region.verify();
        assert!(!found.is_sound() && format!("{found:?}").contains("payload digest is 0000000000000000"));
        drain(&mut worker);
    }
}

#[test]
fn where_nobody_works_and_nothing_is_digested_commands_are_dropped_all_the_same() {
    let config = tiny().without_workers(WithoutWorkers::Discard).digest(DigestOf::Off);
    let mut desk = Desk::new(&config);
    let mut producer = desk.producer("p");
    for n in 0..100 {
        while producer.try_submit(0, &[n]).is_err() {
            desk.turn();
        }
    }
    let worker = desk.worker("w");
    assert_eq!(Some(worker.digest()), desk.region.snapshot().anchor_digest);
}
