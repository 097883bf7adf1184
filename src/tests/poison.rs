//! Workers that differ are stopped: at one index, within the bound, in lockstep before anybody acts on what follows; and
//! nobody waits for who need not be waited for.

use super::agreement::{Engine, Mistake};
use super::*;

fn config(what: OnDivergence) -> Config {
    Config::new().on_divergence(what).workers(4).producers(2).lane_cells(64).order_slots(64)
}

/// What a worker on a thread of its own came to.
#[derive(Debug)]
struct Stopped {
    worker: Worker,
    /// The index that it acted on last.
    acted: Seq,
    /// How many commands it was given behind the index where workers began to differ.
    behind: u64,
    at: Seq,
    diverged: Seq,
}

/// Receives and reports until it is stopped. `steps` has, for each worker, what it has reported: in lockstep nobody is
/// given anything before all have reported what comes before it.
fn act(
    mut worker: Worker,
    me: usize,
    mistake: Option<Mistake>,
    steps: &[AtomicU64],
    in_step: bool,
) -> Stopped {
    let (mut engine, mut acted, mut given, mut met) = (Engine::default(), Seq::ZERO, Vec::new(), None);
    loop {
        let event = match worker.recv() {
            Ok(event) => event,
            Err(WorkerError::Poisoned { at, diverged }) => {
                assert_eq!(met, Some((at, diverged)));
                let behind = given.iter().filter(|&&seq| seq > diverged).count() as u64;
                return Stopped { worker, acted, behind, at, diverged };
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(met, None, "nothing comes after the poison");
        let seq = event.seq();
        if let Event::Poisoned { seq, diverged, .. } = event {
            met = Some((seq, diverged));
            continue;
        }
        for other in steps.iter().filter(|_| in_step) {
            let reported = other.load(Ordering::SeqCst);
            assert!(reported >= seq.get(), "given {seq} when one had reported what is before {reported}");
        }
        engine.apply(&event, mistake);
        acted = seq;
        given.push(seq);
        // Before the report itself, after which the others may go on.
        steps[me].store(seq.get() + 1, Ordering::SeqCst);
        worker.report(engine.state).unwrap();
    }
}

/// Three workers and two producers that submit as much as there is room for, until workers differ.
fn until_stopped(what: OnDivergence, mistake: Mistake) -> (Region, Vec<Stopped>, u64) {
    let region = Region::anonymous(&config(what)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let in_step = what == OnDivergence::Lockstep;
    let names = ["a", "b", "c"];
    let mut workers: Vec<_> = Vec::new();
    for name in names {
        workers.push(Worker::join(&region, name).unwrap());
    }
    // What lies before its first is nothing that one has to report.
    let steps: Vec<_> = workers.iter().map(|worker| AtomicU64::new(worker.first().get())).collect();
    let stopped: Vec<_> = thread::scope(|scope| {
        let (region, steps) = (&region, &steps);
        let working: Vec<_> = (0..)
            .zip(workers)
            .map(|(n, worker)| {
                let mistake = (n == 1).then_some(mistake);
                scope.spawn(move || act(worker, n, mistake, steps, in_step))
            })
            .collect();
        let submitting: Vec<_> = ["p", "q"]
            .map(|name| {
                scope.spawn(move || {
                    let mut producer = Producer::attach(region, name).unwrap();
                    let ended = (0_u64..).find_map(|n| producer.submit(n as u16 % 7, b"do it").err());
                    let last = producer.next_index() - 1;
                    (ended.unwrap(), producer.wait_sequenced(last).err())
                })
            })
            .into();
        let stopped: Vec<_> = working.into_iter().map(|thread| thread.join().unwrap()).collect();
        let (at, diverged) = (stopped[0].at, stopped[0].diverged);
        for producer in submitting {
            let (refused, late) = producer.join().unwrap();
            assert_eq!(refused, SubmitError::Poisoned { at, diverged });
            let is_told = |late| matches!(late, WaitError::Poisoned { at: a, diverged: d, .. } if (a, d) == (at, diverged));
            assert!(late.is_none_or(is_told), "{late:?}");
        }
        stopped
    });
    let ended = sequencer.stop().unwrap_err();
    assert!(
        matches!(&ended, SequencerError::Poisoned { poison, .. } if poison.at == stopped[0].at),
        "{ended}"
    );
    let bound = region.geometry().stops_within();
    (region, stopped, bound)
}

const MISTAKES: [(Mistake, u64); 2] =
    [(Mistake::Skips(Seq::new(200)), 200), (Mistake::Misnumbers(Seq::new(200)), 201)];

/// What everybody is told of it from then on.
fn check_told(region: &Region, at: Seq, began: u64) {
    let poison = region.poison().expect("it is poisoned");
    assert_eq!((poison.at, poison.diverged.seq), (at, Seq::new(began)));
    assert_eq!(poison.diverged.after, Some(Seq::new(began - 1)));
    assert_eq!(poison.diverged.what, Difference::Fingerprint);
    let names: Vec<_> = poison.diverged.reports.iter().map(|report| report.name.to_string()).collect();
    assert!(names.len() == 2 && names.contains(&"b".into()), "{names:?}");
    let text = poison.to_string();
    assert!(
        text.starts_with(&format!("POISONED at index {at}: workers differ since index {began}")),
        "{text}"
    );
    let errors = [
        Worker::join(region, "late").unwrap_err().to_string(),
        Producer::attach(region, "late").unwrap_err().to_string(),
        Sequencer::open(region).unwrap_err().to_string(),
    ];
    assert!(errors.iter().all(|error| error.contains(&text)), "{errors:?}");
    let snapshot = region.snapshot();
    assert_eq!((snapshot.state, snapshot.poison), (State::Poisoned, Some(poison)));
    assert_eq!((snapshot.awaited.len(), snapshot.held_by), (0, None));
    let records = region.errors().records;
    let record = records.iter().find(|record| record.code == ErrorCode::Poisoned).unwrap();
    assert!(record.what.contains(&began.to_string()) && record.detail == at.get(), "{record}");
    let soon = Instant::now() + Duration::from_secs(60);
    let never = region.wait_applied(at.plus(1), soon).unwrap_err();
    assert!(matches!(never, ApplyError::Poisoned { .. }), "{never}");
    // The order is as sound as any; that workers differ is a finding of the check of reports, as long as they are there.
    let verified = region.verify();
    let unsound: Vec<_> = verified.checks.iter().filter(|check| !check.problems.is_empty()).collect();
    assert!(unsound.iter().all(|check| check.name == "reports"), "{unsound:?}");
}

#[test]
fn workers_that_differ_are_stopped_at_one_index_within_the_bound() {
    for (mistake, began) in MISTAKES {
        let (region, stopped, bound) = until_stopped(OnDivergence::Poison, mistake);
        let at = stopped[0].at;
        assert_eq!(bound, 2 * 64 + 64);
        for mut one in stopped {
            assert_eq!((one.at, one.diverged), (at, Seq::new(began)), "{mistake:?}");
            assert!(at.since(one.diverged) <= bound + 1 && one.behind <= bound, "{one:?}");
            // All that lies before the poison, like the others.
            assert_eq!(one.acted.plus(1), at);
            let again = [
                one.worker.poll().unwrap_err(),
                one.worker.poll_batch(9, |_| ()).unwrap_err(),
                one.worker.recv_deadline(Instant::now()).unwrap_err(),
            ];
            assert!(again.iter().all(|again| *again == WorkerError::Poisoned { at, diverged: one.diverged }));
        }
        check_told(&region, at, began);
    }
}

#[test]
fn in_lockstep_nobody_acts_on_anything_behind_a_difference() {
    for (mistake, began) in MISTAKES {
        let (region, stopped, _) = until_stopped(OnDivergence::Lockstep, mistake);
        let at = stopped[0].at;
        for one in &stopped {
            assert_eq!((one.at, one.diverged), (at, Seq::new(began)), "{mistake:?}");
            assert_eq!((one.acted, one.behind), (Seq::new(began), 0), "{one:?}");
        }
        check_told(&region, at, began);
        // Passed by all, and given to none.
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(region.wait_applied(Seq::new(began), soon), Ok(()));
        let never = region.wait_applied(Seq::new(began + 1), soon);
        assert!(matches!(never, Err(ApplyError::Poisoned { at: a, .. }) if a == at), "{never:?}");
    }
}

#[test]
fn once_the_order_is_closed_the_dead_are_not_waited_for() {
    for what in [OnDivergence::Lockstep, OnDivergence::Poison] {
        let mut desk = Desk::new(&config(what).lane_cells(512));
        let (mut red, green) = (desk.worker("red"), desk.worker("green"));
        let mut producer = desk.producer("p");
        (0..300).for_each(|_| _ = producer.try_submit(0, b"").unwrap());
        desk.turn();
        desk.sequencer.close();
        while !desk.sequencer.poll(16).unwrap().closed {}
        let Desk { region, sequencer } = desk;
        drop(sequencer);
        green.fall();
        let mut given = 0;
        loop {
            let event = red.recv_deadline(Instant::now() + Duration::from_secs(60)).unwrap();
            match event.unwrap_or_else(|| panic!("{what:?}: it waits for the dead, {:?}", region.awaited())) {
                Event::Command(_) => given += 1,
                Event::Closed { .. } => break,
                _ => {}
            }
            red.report(7).unwrap();
        }
        assert_eq!(given, 300, "{what:?}");
    }
}

#[test]
fn where_differences_are_left_to_who_asks_nobody_is_stopped_and_nobody_waits() {
    let mut desk = Desk::new(&Config::new().workers(2).producers(1));
    let [mut fast, _slow] = ["fast", "slow"].map(|name| desk.worker(name));
    let mut producer = desk.producer("p");
    (0..500).for_each(|_| _ = producer.try_submit(0, b"").unwrap());
    desk.turn();
    let mut given = 0;
    while let Some(event) = fast.poll().unwrap() {
        given += u64::from(matches!(event, Event::Command(_)));
        fast.report(given).unwrap();
        fast.report(0).unwrap();
    }
    assert_eq!((given, desk.region.awaited().len(), desk.region.poison()), (500, 0, None));
}

/// Polls what there is, reporting each with the same fingerprint; how many.
fn step(worker: &mut Worker) -> usize {
    let mut given = 0;
    while worker.poll().unwrap().is_some() {
        worker.report(7).unwrap();
        given += 1;
    }
    given
}

/// Two workers that keep step, both at the end of what there is, and a producer.
fn two_in_step(what: OnDivergence) -> (Desk, Worker, Worker, Producer) {
    let mut desk = Desk::new(&config(what));
    let mut red = desk.worker("red");
    let mut green = desk.worker("green");
    let producer = desk.producer("p");
    while step(&mut red) + step(&mut green) > 0 {}
    assert_eq!(red.next(), green.next());
    (desk, red, green, producer)
}

fn names(behind: &[Behind]) -> Vec<String> {
    behind.iter().map(|one| one.name.to_string()).collect()
}

#[test]
fn in_lockstep_one_step_is_taken_at_a_time_and_who_is_awaited_is_named() {
    let (mut desk, mut red, mut green, mut producer) = two_in_step(OnDivergence::Lockstep);
    (0..5).for_each(|_| _ = producer.try_submit(0, b"").unwrap());
    desk.turn();
    let next = red.next();
    assert_eq!(desk.region.awaited(), []);
    for n in 0..4 {
        assert_eq!(step(&mut red), 1, "{n}");
        let awaited = desk.region.awaited();
        assert_eq!((names(&awaited), awaited[0].next), (vec!["green".into()], next.plus(n)));
        assert_eq!(red.recv_deadline(Instant::now()).unwrap(), None);
        assert_eq!(red.poll_batch(9, |_| ()), Ok(0));
        // What was said of an index stays so.
        assert_eq!(red.report(9), Err(ReportError::Again { seq: next.plus(n) }));
        let seq = green.poll().unwrap().expect("the same").seq();
        assert_eq!(step(&mut red), 0, "given it is not reported");
        let unreported = green.poll().unwrap_err();
        assert_eq!(unreported, WorkerError::Unreported { seq });
        assert_eq!(green.report(7), Ok(seq));
        assert_eq!(desk.region.awaited(), []);
    }
    assert_eq!(red.poll_batch(9, |_| ()), Ok(1), "never more than one");
    assert!(desk.region.agreement().divergence.is_none());
}

#[test]
fn in_lockstep_what_is_for_one_keeps_the_others_behind_it_and_nobody_for_ever() {
    let mut desk = Desk::new(&config(OnDivergence::Lockstep).ranks(2));
    let (mut red, mut green) = (desk.ranked("red", 0), desk.ranked("green", 1));
    let mut producer = desk.producer("p");
    while step(&mut red) + step(&mut green) > 0 {}
    (0..2).for_each(|_| _ = producer.try_submit_to(1, 0, b"for green").unwrap());
    producer.try_submit(0, b"for both").unwrap();
    producer.try_submit_to(0, 0, b"for red").unwrap();
    desk.turn();
    // What is for both comes after what is for green, which red has nothing to report of.
    assert_eq!(step(&mut red), 0);
    assert_eq!(names(&desk.region.awaited()), ["green"]);
    assert_eq!(step(&mut green), 2);
    assert_eq!(names(&desk.region.awaited()), ["red"]);
    assert_eq!((step(&mut red), step(&mut green)), (1, 1));
    assert_eq!((step(&mut red), step(&mut green)), (1, 0));
    assert_eq!((red.next(), red.digest()), (green.next(), green.digest()));
    assert_eq!(desk.region.poison(), None);
}

#[test]
fn in_lockstep_one_that_died_left_or_has_just_come_keeps_nobody() {
    for leaves in [true, false] {
        let (mut desk, mut red, green, mut producer) = two_in_step(OnDivergence::Lockstep);
        (0..4).for_each(|_| _ = producer.try_submit(0, b"").unwrap());
        desk.turn();
        assert_eq!(step(&mut red), 1);
        if leaves {
            green.leave()
        } else {
            green.fall()
        }
        desk.sequencer.put_off_look(Duration::ZERO);
        while desk.region.snapshot().workers.len() > 1 {
            desk.sequencer.poll(16).unwrap();
        }
        // The rest, and that the other one is gone.
        desk.turn();
        assert_eq!(step(&mut red), 4);
        let mut blue = desk.worker("blue");
        assert_eq!(step(&mut red), 1, "its joining, which only it has to report");
        assert_eq!(step(&mut blue), 1);
        producer.try_submit(0, b"").unwrap();
        desk.turn();
        while step(&mut red) + step(&mut blue) > 0 {}
        assert_eq!(red.next(), blue.next());
        // One that is being let in and does nothing is waited for from its first index on.
        let idle = desk.worker("idle");
        (0..2).for_each(|_| _ = producer.try_submit(0, b"").unwrap());
        desk.turn();
        assert_eq!(step(&mut red), 1);
        assert_eq!(step(&mut blue), 1);
        assert_eq!(step(&mut red), 0);
        assert_eq!(names(&desk.region.awaited()), ["idle"]);
        assert_eq!(red.next(), idle.first().plus(1));
    }
}

#[test]
fn in_lockstep_who_sleeps_is_woken_by_the_last_report() {
    const COMMANDS: u64 = 300;
    let before = wait::LOST.load(Ordering::Relaxed);
    let region = Region::anonymous(&config(OnDivergence::Lockstep)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let workers: Vec<_> = (0..4).map(|n| Worker::join(&region, &format!("w{n}")).unwrap()).collect();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let working: Vec<_> = workers
        .into_iter()
        .enumerate()
        .map(|(n, mut worker)| {
            thread::spawn(move || {
                let mut given = 0;
                while given < COMMANDS {
                    let event = worker.recv().unwrap();
                    given += u64::from(matches!(event, Event::Command(_)));
                    // One of them is so slow that the others lie down.
                    if given.is_multiple_of(4) && given / 4 % 4 == n as u64 {
                        (0..200).for_each(|_| thread::yield_now());
                    }
                    worker.report(given).unwrap();
                }
                worker
            })
        })
        .collect();
    (0..COMMANDS).for_each(|_| _ = producer.submit(0, b"").unwrap());
    let workers: Vec<_> = working.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(workers.iter().all(|worker| worker.next() == workers[0].next()));
    assert_eq!(wait::LOST.load(Ordering::Relaxed), before, "a wake-up was lost");
    assert!(sequencer.stop().is_ok());
}

#[test]
fn nobody_runs_so_far_ahead_that_a_report_is_lost_before_it_was_compared() {
    let config = config(OnDivergence::Poison).lane_cells(1024).order_slots(1024);
    for wrong in [false, true] {
        let mut desk = Desk::new(&config);
        let [mut fast, mut slow] = ["fast", "slow"].map(|name| desk.worker(name));
        let mut producer = desk.producer("p");
        (0..500).for_each(|_| _ = producer.try_submit(0, b"").unwrap());
        desk.turn();
        let first = slow.first();
        step(&mut fast);
        assert_eq!(fast.next(), first.plus(128));
        assert_eq!(names(&desk.region.awaited()), ["slow"]);
        // Who is slow and does not report is waited for as well, and it says how far it is.
        (0..3).for_each(|_| assert!(slow.poll().unwrap().is_some()));
        assert_eq!(step(&mut fast), 2);
        // The last that it can still have reported otherwise.
        slow.report(if wrong { 8 } else { 7 }).unwrap();
        let at = first.plus(2);
        assert_eq!(step(&mut fast), 1);
        if wrong {
            let found = desk.sequencer.poll(16).unwrap_err();
            assert!(matches!(found, SequencerError::Poisoned { poison, .. } if poison.diverged.seq == at));
            continue;
        }
        while step(&mut fast) + step(&mut slow) > 0 {}
        assert_eq!((fast.next(), slow.next()), (desk.sequencer.next(), desk.sequencer.next()));
        assert_eq!(desk.sequencer.poll(16).map(|turn| turn.commands).ok(), Some(0));
    }
}

#[test]
fn once_a_difference_is_found_nothing_is_ordered_but_the_poison() {
    for what in [OnDivergence::Poison, OnDivergence::Lockstep] {
        // The ring is full behind both, so that the poison has to wait for room.
        let small = config(what).lane_cells(8).order_slots(8);
        let mut desk = Desk::new(&small);
        let by_hand = JoinOptions::new().release_by_hand(true);
        let mut red = desk.worker("red");
        let mut green = desk.attach(|region| Worker::join_with(region, "green", &by_hand)).unwrap();
        let mut producers = ["p", "q"].map(|name| desk.producer(name));
        while step(&mut red) + step(&mut green) > 0 {}
        green.release();
        desk.turn();
        for _ in 0..8 {
            // Each a run of its own.
            producers.iter_mut().for_each(|producer| _ = producer.try_submit(0, b"x"));
            desk.turn();
        }
        let (end, began) = (desk.sequencer.next(), red.next());
        assert_eq!(end.since(began), 8, "as many runs as there are slots");
        let given = [&mut red, &mut green].map(|worker| worker.poll().unwrap().expect("the first").seq());
        assert_eq!(given, [began; 2]);
        red.report(1).unwrap();
        green.report(2).unwrap();
        let turn = desk.sequencer.poll(16).unwrap();
        assert_eq!((turn.commands, desk.sequencer.next()), (0, end), "there is room for nothing");
        assert!(matches!(turn.held, Some(HeldBy::Worker { .. })), "{turn:?}");
        // Both go on and free something: the poison gets it.
        let mut poisoned = None;
        for _ in 0..20 {
            for worker in [&mut red, &mut green] {
                match worker.poll() {
                    Ok(None | Some(Event::Poisoned { .. })) => continue,
                    Err(error) => assert!(matches!(error, WorkerError::Poisoned { .. }), "{error}"),
                    Ok(Some(event)) => {
                        assert!(what == OnDivergence::Poison, "given {event:?}");
                        worker.report(3).unwrap();
                        worker.release();
                    }
                }
            }
            poisoned = poisoned.or_else(|| desk.sequencer.poll(16).err());
        }
        let poison = desk.region.poison().expect("it is poisoned");
        assert_eq!((poison.at, poison.diverged.seq), (end, began), "{what}");
        assert!(poisoned.is_some());
        assert!(matches!(producers[0].try_submit(0, b""), Err(SubmitError::Poisoned { .. })));
    }
}

#[test]
fn what_a_worker_found_outlives_it_and_the_sequencer_and_poisons_once() {
    let (desk, mut red, mut green, mut producer) = two_in_step(OnDivergence::Poison);
    let Desk { region, mut sequencer } = desk;
    producer.try_submit(0, b"it").unwrap();
    while sequencer.poll(16).unwrap().commands > 0 {}
    let seq = red.poll().unwrap().expect("it").seq();
    assert_eq!(green.poll().unwrap().expect("it").seq(), seq);
    red.report(1).unwrap();
    // The sequencer dies before it hears of what the worker found, and so does the worker; and there is more to order.
    drop(sequencer);
    green.report(2).unwrap();
    green.fall();
    producer.try_submit(0, b"no more").unwrap();
    let mut sequencer = Sequencer::open(&region).unwrap();
    let end = sequencer.next();
    let ended = sequencer.poll(16).unwrap_err();
    assert!(matches!(&ended, SequencerError::Poisoned { poison, .. } if poison.at == end), "{ended}");
    // As often as it is asked, and its successors.
    assert_eq!(sequencer.poll(16).unwrap_err().to_string(), ended.to_string());
    drop(sequencer);
    assert_eq!(Sequencer::open(&region).unwrap_err().to_string(), ended.to_string());
    let standby = Sequencer::wait_to_open(&region, || false).unwrap_err();
    assert_eq!(standby.to_string(), ended.to_string());
    assert!(matches!(red.poll(), Ok(Some(Event::Poisoned { seq, .. })) if seq == end));
    assert!(
        matches!(red.poll(), Err(WorkerError::Poisoned { at, diverged }) if (at, diverged) == (end, seq))
    );
    assert_eq!(region.snapshot().epoch, 2);
    assert_eq!(region.snapshot().next, end.plus(1));
}

#[test]
fn of_two_who_differ_one_that_is_gone_is_compared_all_the_same() {
    let (mut desk, mut red, mut green, mut producer) = two_in_step(OnDivergence::Lockstep);
    (0..2).for_each(|_| _ = producer.try_submit(0, b"").unwrap());
    desk.turn();
    let seq = green.poll().unwrap().expect("the first").seq();
    green.report(8).unwrap();
    green.fall();
    desk.sequencer.put_off_look(Duration::ZERO);
    while desk.region.snapshot().workers.len() > 1 {
        desk.sequencer.poll(16).unwrap();
    }
    assert_eq!(step(&mut red), 1);
    desk.sequencer.poll(16).unwrap_err();
    assert_eq!(desk.region.poison().unwrap().diverged.seq, seq);
    assert!(matches!(red.poll(), Ok(Some(Event::Poisoned { .. }))));
}

#[test]
fn who_waits_in_an_event_loop_comes_to_the_poison_too() {
    let region = Region::anonymous(&config(OnDivergence::Lockstep)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let notifier = Notifier::spawn(&region).unwrap();
    let workers = ["red", "green"].map(|name| Worker::join(&region, name).unwrap());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let stopped = thread::scope(|scope| {
        let threads = workers.map(|mut worker| {
            let notifier = &notifier;
            scope.spawn(move || {
                let this = thread::current();
                let summons = notifier.summons(move || this.unpark());
                let mut given = 0;
                loop {
                    let one = |event: Event<'_>| given += u64::from(matches!(event, Event::Command(_)));
                    match worker.poll_batch(9, one) {
                        Ok(0) if summons.arm(&mut worker).unwrap() => {
                            thread::park_timeout(wait::LONGEST_SLEEP)
                        }
                        Ok(0) => {}
                        Ok(_) => {
                            let wrong = worker.name() == "green" && given > 20;
                            _ = worker.report(if wrong { 0 } else { given }).unwrap();
                        }
                        Err(WorkerError::Poisoned { at, .. }) => return (at, given),
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        });
        while producer.submit(0, b"").is_ok() {}
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(stopped[0], stopped[1]);
    assert_eq!(stopped[0].1, 21);
    assert!(sequencer.stop().is_err());
}
