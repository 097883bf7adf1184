//! Submits, batches and claims: what is whole is submitted, of anything else nothing.

use super::*;

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

#[test]
fn a_batch_that_can_never_be_is_told_so_also_where_there_is_no_room() {
    let mut desk = Desk::new(&tiny().lane_cells(4).lane_bytes(256));
    let mut producer = desk.producer("p");
    while producer.try_submit(0, b"x").is_ok() {}
    let batch = [(0, vec![0; 1000]), (0, vec![1])];
    assert_eq!(producer.try_submit_batch(&batch), Err(SubmitError::TooLarge { len: 1000, max: 128 }));
    assert!(matches!(producer.try_submit_batch(&[(0, b"x"), (0, b"y")]), Err(SubmitError::Full(_))));
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
fn producers_can_be_sent_and_not_shared() {
    fn is_send<T: Send>() {}
    is_send::<Producer>();
    is_send::<Worker>();
    is_send::<Sequencer>();
    // `Producer: !Sync` is a compile-fail example at `Producer`.
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
