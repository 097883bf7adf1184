//! Commands with a part for each worker, and commands for one: who gets what, who reads what, and what is said of damage.

use std::os::unix::fs::FileExt;

use seriatim_ring::parts::table_bytes;

use super::*;
use crate::payload::counted;

impl Desk {
    pub(super) fn ranked(&mut self, name: &str, rank: u16) -> Worker {
        self.try_ranked(name, rank).unwrap()
    }

    fn try_ranked(&mut self, name: &str, rank: u16) -> Result<Worker, AttachError> {
        let options = JoinOptions::new().rank(rank);
        self.attach(move |region| Worker::join_with(region, name, &options))
    }
}

/// What a worker has to give: of each command its kind, its payload and its part.
fn got(worker: &mut Worker) -> Vec<(u16, Vec<u8>, Option<Vec<u8>>)> {
    let mut got = Vec::new();
    while let Some(event) = worker.poll().unwrap() {
        if let Event::Command(command) = event {
            got.push((command.kind, command.payload.to_vec(), command.part.map(<[u8]>::to_vec)));
        }
    }
    got
}

fn two_ranks() -> Config {
    let config = Config::new().order_slots(64).lane_cells(64).lane_bytes(4096).producers(2).workers(4);
    config.ranks(2).spill_bytes(0)
}

#[test]
fn each_gets_what_is_for_it_and_all_have_the_same_indexes_and_digests() {
    let mut desk = Desk::new(&two_ranks());
    let (mut first, mut second) = (desk.ranked("first", 0), desk.ranked("second", 1));
    let mut none = desk.worker("none");
    let mut observer = Observer::attach(&desk.region).unwrap();
    let mut producer = desk.producer("p");
    producer.submit(1, b"all").unwrap();
    producer.submit_to(0, 2, b"the first").unwrap();
    producer.submit_to(1, 3, &bytes(100, 3)).unwrap();
    producer.submit_parts(4, b"shared", &[&b"one"[..], b"two"]).unwrap();
    producer.submit_parts(5, b"", &[vec![], bytes(900, 5)]).unwrap();
    desk.turn();
    let all = (1, b"all".to_vec(), None);
    let shared = b"shared".to_vec();
    let of_first = (2, b"the first".to_vec(), None);
    let one = (4, shared.clone(), Some(b"one".to_vec()));
    assert_eq!(got(&mut first), [all.clone(), of_first, one, (5, vec![], Some(vec![]))]);
    let of_second = (3, bytes(100, 3), None);
    let two = (4, shared.clone(), Some(b"two".to_vec()));
    assert_eq!(got(&mut second), [all.clone(), of_second, two, (5, vec![], Some(bytes(900, 5)))]);
    assert_eq!(got(&mut none), [all]);
    assert_eq!([first.next(), second.next()], [none.next(); 2]);
    assert_eq!([first.digest(), second.digest()], [none.digest(); 2]);
    let mut seen = Vec::new();
    while let Some(observed) = observer.poll().unwrap() {
        if let Observed::Event(Event::Command(c)) = observed {
            seen.push((c.kind, c.address.as_rank(), c.address == Address::PARTS, c.payload.to_vec()));
        }
    }
    let expected = [
        (1, None, false, b"all".to_vec()),
        (2, Some(0), false, b"the first".to_vec()),
        (3, Some(1), false, bytes(100, 3)),
        (4, None, true, shared),
        (5, None, true, vec![]),
    ];
    assert_eq!(seen, expected);
    let found = desk.region.verify();
    assert!(found.is_sound(), "{found:?}");
}

#[test]
fn what_is_for_no_rank_or_has_other_parts_is_refused_without_a_trace() {
    let mut desk = Desk::new(&two_ranks());
    let mut producer = desk.producer("p");
    let one = [b"x"; 1];
    let cases = [
        (producer.submit_to(2, 0, b"x"), SubmitError::UnknownRank { rank: 2, ranks: 2 }),
        (producer.submit_to(u16::MAX, 0, b"x"), SubmitError::UnknownRank { rank: u16::MAX, ranks: 2 }),
        (producer.submit_to(0, 0xff00, b"x"), SubmitError::ReservedKind { kind: 0xff00 }),
        (producer.submit_parts(0, b"", &one), SubmitError::WrongParts { parts: 1, ranks: 2 }),
        (producer.try_submit_parts(0, b"", &[b"x"; 3]), SubmitError::WrongParts { parts: 3, ranks: 2 }),
        (producer.submit_parts::<&[u8]>(0, b"", &[]), SubmitError::WrongParts { parts: 0, ranks: 2 }),
        (producer.submit_parts(0xffff, b"", &[b"x"; 2]), SubmitError::ReservedKind { kind: 0xffff }),
        // Both parts begin at multiples of 64, behind 64 bytes of table.
        (
            producer.submit_parts(0, &[0; 1900], &[&[0; 1][..], &[0; 65]]),
            SubmitError::TooLarge { len: 64 + 1920 + 64 + 65, max: 2048 },
        ),
        (producer.submit_to_at(1, 0, 0, b"x").map(|()| 0), SubmitError::Gap { index: 1, next: 0 }),
        (producer.submit_parts_at(1, 0, b"", &one).map(|()| 0), SubmitError::Gap { index: 1, next: 0 }),
    ];
    for (found, expected) in cases {
        assert_eq!(found, Err(expected));
    }
    assert_eq!(producer.next_index(), 0);
    producer.submit_to_at(0, 1, 0, b"x").unwrap();
    producer.submit_parts_at(1, 0, b"", &[b"x"; 2]).unwrap();
    let again = producer.submit_parts_at(1, 0, b"", &[b"x"; 2]);
    assert_eq!(again, Err(SubmitError::Duplicate { index: 1, next: 2 }));

    let mut desk = Desk::new(&tiny());
    let mut producer = desk.producer("p");
    assert_eq!(producer.submit_to(0, 0, b""), Err(SubmitError::NoRanks));
    assert_eq!(producer.submit_parts::<&[u8]>(0, b"", &[]), Err(SubmitError::NoRanks));
    let error = desk.try_ranked("w", 0).unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("without ranks"), "{error}");
    let error = Desk::new(&two_ranks()).try_ranked("w", 2).unwrap_err().to_string();
    assert!(error.contains("no rank 2") && error.contains("0 to 1"), "{error}");
}

#[test]
fn what_finds_no_room_is_full_and_submits_nothing() {
    let mut desk = Desk::new(&two_ranks());
    let mut worker = desk.ranked("w", 1);
    let mut producer = desk.producer("p");
    let large = [bytes(700, 1), bytes(700, 2)];
    let fit = (0..).take_while(|_| producer.try_submit_parts(1, b"all", &large).is_ok()).count();
    assert_eq!(fit, 2);
    let soon = Instant::now() + Duration::from_millis(1);
    for error in [
        producer.try_submit_parts(1, b"all", &large).unwrap_err(),
        producer.submit_parts_deadline(1, b"all", &large, soon).unwrap_err(),
        producer.try_submit_to(1, 1, &bytes(2000, 0)).unwrap_err(),
        producer.submit_to_deadline(1, 1, &bytes(2000, 0), soon).unwrap_err(),
    ] {
        assert!(matches!(error, SubmitError::Full(_)), "{error}");
    }
    assert_eq!(producer.next_index(), 2);
    desk.turn();
    let mine = (1, b"all".to_vec(), Some(bytes(700, 2)));
    assert_eq!(got(&mut worker), [mine.clone(), mine]);
}

/// A part that is asked for its bytes more than once, and has others each time.
struct Fickle(AtomicU64);

impl AsRef<[u8]> for Fickle {
    fn as_ref(&self) -> &[u8] {
        &[7; 100][..self.0.fetch_add(1, Ordering::Relaxed) as usize * 10 % 100]
    }
}

#[test]
fn parts_that_change_while_they_are_copied_submit_nothing() {
    let mut desk = Desk::new(&two_ranks());
    let mut worker = desk.ranked("w", 0);
    let mut producer = desk.producer("p");
    for start in 0..10 {
        let parts = [0, start].map(|start| Fickle(AtomicU64::new(start)));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            producer.submit_parts(1, b"shared", &parts)
        }));
        assert!(caught.is_err());
    }
    producer.submit_parts(2, b"shared", &[b"a", b"b"]).unwrap();
    desk.turn();
    assert_eq!(got(&mut worker), [(2, b"shared".to_vec(), Some(b"a".to_vec()))]);
}

#[test]
fn a_rank_is_one_living_workers_and_goes_on_with_who_asks_for_it_again() {
    let mut desk = Desk::new(&two_ranks());
    let mut looks_on = desk.worker("none");
    let first = desk.ranked("first", 0);
    assert_eq!((first.rank(), looks_on.rank()), (Some(0), None));
    let error = desk.try_ranked("second", 0).unwrap_err();
    let pid = std::process::id();
    let AttachError::RankTaken { rank: 0, holder, pid: its, .. } = &error else { panic!("{error}") };
    assert_eq!((holder.as_str(), *its), ("first", pid));
    assert!(error.to_string().contains("rank 0 is that of worker \"first\""), "{error}");
    // It is in the region, not in the sequencer's memory.
    desk.sequencer = {
        drop(desk.sequencer);
        Sequencer::open(&desk.region).unwrap()
    };
    assert!(matches!(desk.try_ranked("second", 0), Err(AttachError::RankTaken { .. })));
    let ranks = |region: &Region| -> Vec<_> {
        region.snapshot().workers.iter().map(|w| (w.party.name.clone(), w.rank)).collect()
    };
    assert_eq!(ranks(&desk.region), [("none".to_string(), None), ("first".to_string(), Some(0))]);
    // One that died makes way at once, for its own name and for another.
    first.fall();
    let again = desk.ranked("first", 0);
    again.fall();
    let mut other = desk.ranked("other", 0);
    let mut producer = desk.producer("p");
    producer.submit_to(0, 1, b"whoever it is").unwrap();
    desk.turn();
    assert_eq!(got(&mut other).len(), 1);
    other.leave();
    // Who comes back under a name has the rank that it asks for, and no other.
    let last = desk.ranked("other", 1);
    desk.turn();
    let mut changes = Vec::new();
    while let Some(event) = looks_on.poll().unwrap() {
        match event {
            Event::Joined(c) => changes.push(('+', c.name.to_string(), c.rank)),
            Event::Left(c) => changes.push(('-', c.name.to_string(), c.rank)),
            _ => {}
        }
    }
    let change = |sign, name: &str, rank| (sign, name.to_string(), rank);
    let expected = [
        change('+', "none", None),
        change('+', "first", Some(0)),
        change('-', "first", Some(0)),
        change('+', "first", Some(0)),
        change('-', "first", Some(0)),
        change('+', "other", Some(0)),
        change('-', "other", Some(0)),
        change('+', "other", Some(1)),
    ];
    assert_eq!(changes, expected);
    assert_eq!(last.rank(), Some(1));
}

#[test]
fn the_rank_of_one_that_was_alone_is_said_when_there_is_room() {
    let mut desk = Desk::new(&tiny().ranks(2));
    let worker = desk.ranked("first", 1);
    let mut producer = desk.producer("p");
    // The order is full behind it.
    while producer.try_submit_to(1, 0, b"x").is_ok() {
        desk.turn();
    }
    worker.fall();
    let mut next = desk.ranked("first", 0);
    let (mut changes, mut commands) = (Vec::new(), 0);
    for _ in 0..8 {
        while let Some(event) = next.poll().unwrap() {
            match event {
                Event::Joined(c) => changes.push(('+', c.rank)),
                Event::Left(c) => changes.push(('-', c.rank)),
                Event::Command(_) => commands += 1,
                _ => {}
            }
        }
        desk.turn();
        desk.sequencer.put_off_look(Duration::ZERO);
    }
    assert_eq!(changes, [('+', Some(1)), ('-', Some(1)), ('+', Some(0))]);
    assert_eq!(commands, 0, "they were for another rank");
}

#[test]
fn a_rank_that_no_builder_asks_for_is_not_granted() {
    let mut desk = Desk::new(&two_ranks());
    for code in [3, 0xffff, 1 << 20, u64::MAX] {
        let error = desk.attach(|region| {
            region.make_writable("a worker", &[Part::Bells, Part::Worker(0)]).unwrap();
            let _lock = Lock::take(region.file(), Role::Worker(0)).unwrap().unwrap();
            let (map, slot) = (region.map(), 0);
            let party = &map.worker_page(slot).party;
            party.name.store(Name::new("wild").unwrap().words());
            party.address.store(code, Ordering::Relaxed);
            let generation = party.ask(map.bells().requests_word());
            let answer = &map.members()[0].answer;
            while answer.get(generation).is_none() {
                thread::yield_now();
            }
            answer.get(generation)
        });
        assert_eq!(error, Some(seriatim_ring::control::Verdict::RankTaken), "{code}");
    }
}

#[test]
fn what_is_passed_over_keeps_no_room_of_one_who_releases_by_hand() {
    let mut desk = Desk::new(&two_ranks());
    let options = JoinOptions::new().rank(0).release_by_hand(true);
    let mut worker = desk.attach(|region| Worker::join_with(region, "w", &options)).unwrap();
    let mut producer = desk.producer("p");
    desk.turn();
    assert_eq!(got(&mut worker).len(), 0);
    worker.release();
    for n in 0..500 {
        while producer.try_submit_to(1, 0, &bytes(n, n)).is_err() {
            desk.turn();
            assert!(worker.poll().unwrap().is_none());
        }
    }
    producer.submit_to(0, 1, b"keep").unwrap();
    desk.turn();
    assert_eq!(got(&mut worker).len(), 1);
    let kept = desk.region.snapshot().workers[0].next;
    for _ in 0..10 {
        producer.submit_to(1, 0, b"pass").unwrap();
        desk.turn();
        assert_eq!(got(&mut worker).len(), 0);
    }
    assert_eq!(desk.region.snapshot().workers[0].next, kept);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 60 }))]

    /// In lanes that wrap all the time, whoever is addressed gets what was submitted, whole.
    #[test]
    fn every_size_of_parts_survives_the_wrap(
        ranks in 1..4u64,
        shift in 8..12u32,
        spills in any::<bool>(),
        commands in prop::collection::vec((0..4usize, 0..150usize, prop::collection::vec(0..150usize, 4)), 1..60),
    ) {
        let lane_bytes = 1 << shift;
        let config = Config::new().order_slots(8).lane_cells(4).lane_bytes(lane_bytes);
        let config = config.producers(1).workers(4).ranks(ranks).spill_bytes(if spills { 2 << 20 } else { 0 });
        let mut desk = Desk::new(&config);
        let mut workers: Vec<_> = (0..ranks as u16).map(|r| desk.ranked(&format!("w{r}"), r)).collect();
        let mut producer = desk.producer("p");
        let mut submitted = 0;
        let mut expected = vec![Vec::new(); ranks as usize];
        let mut seen = vec![Vec::new(); ranks as usize];
        for (n, (how, len, lens)) in commands.into_iter().enumerate() {
            let (shared, kind) = (bytes(len, n), n as u16);
            let parts: Vec<_> = (0..ranks as usize).map(|r| bytes(lens[r], n + r + 1)).collect();
            loop {
                let done = match how {
                    0 => producer.try_submit(kind, &shared),
                    1 => producer.try_submit_to(n as u16 % ranks as u16, kind, &shared),
                    _ => producer.try_submit_parts(kind, &shared, &parts),
                };
                match done {
                    Ok(_) => {}
                    Err(SubmitError::TooLarge { len, max }) => {
                        prop_assert!(!spills && len > max && max as u64 == (lane_bytes / 2).max(40));
                        break;
                    }
                    Err(SubmitError::Full(_)) => {
                        desk.turn();
                        for (seen, worker) in seen.iter_mut().zip(&mut workers) {
                            seen.extend(got(worker));
                        }
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                }
                submitted += 1;
                for (rank, expected) in expected.iter_mut().enumerate() {
                    match how {
                        0 => expected.push((kind, shared.clone(), None)),
                        1 if n % ranks as usize == rank => expected.push((kind, shared.clone(), None)),
                        1 => {}
                        _ => expected.push((kind, shared.clone(), Some(parts[rank].clone()))),
                    }
                }
                break;
            }
        }
        desk.turn();
        let found = desk.region.verify();
        prop_assert!(found.is_sound(), "{:?}", found);
        for (seen, worker) in seen.iter_mut().zip(&mut workers) {
            seen.extend(got(worker));
            prop_assert_eq!(worker.digest(), found.digest.unwrap());
        }
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(producer.next_index(), submitted);
    }
}

/// How many bytes command `n` has in all, for rank `rank` (`None`: for all), in the test below.
fn len_of(n: u64, rank: Option<u16>) -> usize {
    let random = (n << 16 | rank.map_or(0xffff, u64::from)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    match (random % 16, rank) {
        (0, _) => 0,
        (1..=8, _) => random as usize / 16 % 41,
        (9..=14, _) => random as usize / 16 % 120,
        _ => random as usize / 16 % 1500,
    }
}

fn byte_of(n: u64, rank: Option<u16>, at: usize) -> u8 {
    (n.wrapping_mul(31) + rank.map_or(7, |rank| u64::from(rank) * 13) + at as u64) as u8
}

fn content(n: u64, rank: Option<u16>) -> Vec<u8> {
    (0..len_of(n, rank)).map(|at| byte_of(n, rank, at)).collect()
}

fn is_content(bytes: &[u8], n: u64, rank: Option<u16>) -> bool {
    bytes.len() == len_of(n, rank) && bytes.iter().enumerate().all(|(at, &byte)| byte == byte_of(n, rank, at))
}

/// Whom command `n` is for: most have parts.
fn address(n: u64, ranks: u16) -> Address {
    match n % 8 {
        0 => Address::ALL,
        1 | 2 => Address::rank((n / 8 % u64::from(ranks)) as u16),
        _ => Address::PARTS,
    }
}

#[test]
fn sixty_four_workers_read_their_parts_and_what_all_share_and_nothing_else() {
    const RANKS: u16 = 64;
    const COMMANDS: u64 = 10_000;
    let config = Config::new().lane_bytes(1 << 20).producers(1).workers(64).ranks(RANKS.into());
    let region = Region::anonymous(&config).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let workers: Vec<_> = (0..RANKS)
        .map(|rank| {
            let options =
                JoinOptions::new().rank(rank).check_payloads(rank % 2 == 1).timeout(Duration::from_secs(60));
            Worker::join_with(&region, &format!("w{rank}"), &options).unwrap()
        })
        .collect();
    // By the command's own number, for all to compare.
    let indexes: Arc<Vec<AtomicU64>> = Arc::new((0..COMMANDS).map(|_| AtomicU64::new(0)).collect());
    let ends: Vec<_> = thread::scope(|scope| {
        let work = |mut worker: Worker| {
            let (rank, indexes) = (worker.rank().unwrap(), Arc::clone(&indexes));
            scope.spawn(move || {
                let before = counted::bytes();
                let mut of_commands = 0;
                loop {
                    match worker.recv().unwrap() {
                        Event::Command(command) => {
                            let (n, seq) = (command.index, command.seq.get());
                            of_commands += 1;
                            assert_eq!(command.address, address(n, RANKS));
                            assert!(is_content(command.payload, n, None), "{command:?}");
                            let is_split = command.address == Address::PARTS;
                            assert_eq!(command.part.is_some(), is_split);
                            assert!(command.part.is_none_or(|part| is_content(part, n, Some(rank))));
                            let found = indexes[n as usize].swap(seq, Ordering::Relaxed);
                            assert!(found == 0 || found == seq, "command {n} at {found} and {seq}");
                        }
                        Event::Closed { .. } => break,
                        _ => {}
                    }
                }
                (rank, of_commands, counted::bytes() - before, worker.next(), worker.digest())
            })
        };
        let threads: Vec<_> = workers.into_iter().map(work).collect();
        let mut producer = Producer::attach(&region, "p").unwrap();
        for n in 0..COMMANDS {
            let (shared, kind) = (content(n, None), n as u16 & 0xff);
            let done = match address(n, RANKS) {
                Address::ALL => producer.submit(kind, &shared),
                Address::PARTS => {
                    let parts: Vec<_> = (0..RANKS).map(|rank| content(n, Some(rank))).collect();
                    producer.submit_parts(kind, &shared, &parts)
                }
                address => producer.submit_to(address.as_rank().unwrap(), kind, &shared),
            };
            assert_eq!(done.unwrap(), n);
        }
        sequencer.close().unwrap();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for &(rank, commands, read, next, digest) in &ends {
        // What is for it, from what was submitted and not from what it was handed. One that checks digests reads all
        // of that twice, and the tables.
        let (mut lent, mut tables, mut count) = (0, 0, 0);
        for n in 0..COMMANDS {
            let its = match address(n, RANKS) {
                Address::ALL => len_of(n, None),
                Address::PARTS => len_of(n, None) + len_of(n, Some(rank)),
                other if other == Address::rank(rank) => len_of(n, None),
                _ => continue,
            };
            lent += its as u64;
            count += 1;
            tables += if address(n, RANKS) == Address::PARTS { table_bytes(RANKS.into()) as u64 } else { 0 };
        }
        let expected = if rank % 2 == 1 { 2 * lent + tables } else { lent };
        assert_eq!((read, commands), (expected, count), "rank {rank}");
        assert_eq!((next, digest), (ends[0].3, ends[0].4), "rank {rank}");
    }
    // Each command was seen by somebody, in the order of the submits.
    let indexes: Vec<_> = indexes.iter().map(|index| index.load(Ordering::Relaxed)).collect();
    assert!(indexes.is_sorted_by(|one, next| one + 1 == *next) && indexes[0] > 0);
}

#[test]
fn a_worker_touches_no_page_of_the_parts_of_others() {
    const PAGE: usize = 4096;
    let config = Config::new().lane_bytes(1 << 20).producers(1).workers(3).ranks(3);
    let mut desk = Desk::new(&config);
    // A mapping of its own, in which the others' parts cannot be read: a single read would be a SIGSEGV.
    let own = Region::attach(desk.region.path()).unwrap();
    let options = JoinOptions::new().rank(1).check_payloads(true);
    let mut worker = desk.attach(|_| Worker::join_with(&own, "w", &options)).unwrap();
    let mut producer = desk.producer("p");
    // Table and shared end with a page, and so do the parts: each begins with one.
    let parts = [4 * PAGE, 2 * PAGE, 3 * PAGE].map(|len| bytes(len, len));
    let shared = bytes(PAGE - 128, 1);
    producer.submit_parts(1, &shared, &parts).unwrap();
    desk.turn();
    let start = own.map().layout().lane(1).bytes;
    let page = |n: usize| start + (n * PAGE) as u64;
    own.map().make_unreadable(page(1)..page(5)).unwrap();
    own.map().make_unreadable(page(7)..page(10)).unwrap();
    assert_eq!(got(&mut worker), [(1, shared, Some(parts[1].clone()))]);
}

#[test]
fn damage_to_each_field_is_named_by_who_reads_it() {
    let mut desk = Desk::new(&two_ranks());
    let checks = JoinOptions::new().check_payloads(true);
    let mut workers: Vec<_> = [(0, true), (1, false)]
        .map(|(rank, check)| {
            let options = checks.clone().rank(rank).check_payloads(check);
            desk.attach(move |region| Worker::join_with(region, &format!("w{rank}"), &options)).unwrap()
        })
        .into();
    let mut producer = desk.producer("p");
    desk.turn();
    workers.iter_mut().for_each(|worker| assert!(got(worker).is_empty()));
    producer.submit_parts(1, b"shared", &[&b"one"[..], b"two"]).unwrap();
    desk.turn();
    let (region, layout) = (desk.region.clone(), *desk.region.map().layout());
    let (cell, table) = (layout.lane(1).cells, layout.lane(1).bytes);
    let word = |at: u64| {
        let mut bytes = [0; 8];
        region.file().read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    };
    let set = |at: u64, to: u64| region.file().write_all_at(&to.to_le_bytes(), at).unwrap();
    // Where, to what, who notices (the worker that checks, the other one), and how it is called.
    type Case = (u64, fn(u64) -> u64, [bool; 2], &'static str);
    let cases: [Case; 13] = [
        (cell, |head| head ^ 1 << 48, [true, true], "address is 65534, expected 2"),
        (
            cell,
            |head| head & !0xffff_ffff | 63,
            [true, true],
            "length of a payload with parts is 63, expected 64",
        ),
        (cell + 8, |digest| digest ^ 1, [true, false], "digest of a table of parts is"),
        (table, |count| count + 1, [true, true], "number of parts is 3, expected 2"),
        (table + 8, |_| u64::MAX, [true, true], "length of the body is 18446744073709551615, expected"),
        (table + 16, |digest| digest ^ 1, [true, false], "digest of the body is"),
        (table + 24, |place| place - 64, [true, false], "least offset of a part is 64, expected 128"),
        (table + 24, |place| place + 8, [true, false], "offset of a part is 136, expected 192"),
        (
            table + 40,
            |place| place | 0xff << 24,
            [true, true],
            "offset of a part is 4278190272, expected 192",
        ),
        (table + 40, |place| place + (1 << 32), [true, true], "length of a part is 4, expected 3"),
        (table + 48, |digest| digest ^ 1, [true, false], "digest of a part is"),
        (table + 64, |bytes| bytes ^ 1, [true, false], "digest of the body is"),
        (table + 128, |bytes| bytes ^ 1, [true, false], "digest of a part is"),
    ];
    for (at, to, notices, expected) in cases {
        let before = word(at);
        set(at, to(before));
        let said: Vec<String> =
            region.verify().checks.iter().flat_map(|check| check.problems.clone()).collect();
        assert!(said.iter().any(|text| text.contains(expected)), "{expected}: {said:?}");
        for (worker, notices) in workers.iter_mut().zip(notices) {
            if !notices {
                continue;
            }
            let (next, digest) = (worker.next(), worker.digest());
            let error = worker.poll().map(|event| format!("{event:?}")).unwrap_err().to_string();
            // The second part is nothing to the first worker, but the table is.
            let is_its = error.contains(expected) || error.contains("digest of a table of parts");
            assert!(is_its && error.contains(&format!("corrupt at index {next}")), "{expected}: {error}");
            assert_eq!((worker.next(), worker.digest()), (next, digest), "it stays where it is");
        }
        set(at, before);
    }
    // What is damaged of another's part is noticed by that one, and by who looks at all.
    let others = table + 192;
    set(others, word(others) ^ 1);
    assert!(!region.verify().is_sound());
    assert_eq!(got(&mut workers[0]), [(1, b"shared".to_vec(), Some(b"one".to_vec()))]);
    set(others, word(others) ^ 1);
    assert_eq!(got(&mut workers[1]), [(1, b"shared".to_vec(), Some(b"two".to_vec()))]);
    assert!(region.verify().is_sound());
}

#[test]
fn an_observer_names_a_damaged_address_or_table() {
    let mut desk = Desk::new(&two_ranks());
    let _worker = desk.ranked("w", 0);
    let mut producer = desk.producer("p");
    desk.turn();
    let layout = *desk.region.map().layout();
    for (at, bad, expected) in [
        (layout.lane(1).cells + 6, 3_u64, "address is 3, expected 2"),
        (layout.lane(1).bytes, 1, "number of parts is 1, expected 2"),
    ] {
        let mut observer = Observer::attach(&desk.region).unwrap();
        producer.submit_parts(1, b"", &[b"a", b"b"]).unwrap();
        desk.turn();
        desk.region.file().write_all_at(&(bad as u16).to_le_bytes(), at).unwrap();
        let error = observer.poll().map(|seen| format!("{seen:?}")).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let fixed = if bad == 3 { 0xffff } else { 2_u16 };
        desk.region.file().write_all_at(&fixed.to_le_bytes(), at).unwrap();
        // The next one lies elsewhere.
        if bad == 3 {
            desk = Desk::new(&two_ranks());
            let _ = desk.ranked("w", 0);
            producer = desk.producer("p");
            desk.turn();
        }
    }
}

#[test]
fn an_event_of_the_sequencer_that_is_not_for_all_is_damage() {
    let mut desk = Desk::new(&two_ranks());
    let mut worker = desk.ranked("w", 0);
    desk.turn();
    let at = desk.region.map().layout().lane(0).cells + 6;
    desk.region.file().write_all_at(&1_u16.to_le_bytes(), at).unwrap();
    let error = worker.poll().map(|event| format!("{event:?}")).unwrap_err().to_string();
    assert!(error.contains("address is 1, expected 0"), "{error}");
    let Desk { region, sequencer } = desk;
    drop(sequencer);
    let error = Sequencer::open(&region).map(drop).unwrap_err().to_string();
    assert!(error.contains("address") && error.contains('1'), "{error}");
}

#[test]
fn where_digests_cover_less_parts_are_divided_all_the_same() {
    for what in [DigestOf::Header, DigestOf::Off] {
        let mut desk = Desk::new(&two_ranks().digest(what));
        let mut worker = desk.ranked("w", 1);
        let mut producer = desk.producer("p");
        producer.submit_parts(1, b"shared", &[&b"one"[..], b"two"]).unwrap();
        desk.turn();
        assert!(desk.region.verify().is_sound());
        assert_eq!(got(&mut worker), [(1, b"shared".to_vec(), Some(b"two".to_vec()))]);
    }
}
