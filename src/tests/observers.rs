//! Observers: each index is delivered whole or missed, once.

use super::*;

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
