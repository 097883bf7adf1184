//! Workers that come, go, die, and what waits for them meanwhile.

use super::*;

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
