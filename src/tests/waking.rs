//! Waits that signals do not end, and wake-ups that nobody loses.

use seriatim_ring::wake::FOR_WORK;

use super::*;

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
