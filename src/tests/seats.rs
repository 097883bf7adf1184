//! Names, lanes and locks: who has a place, and who gets it next.

use super::*;

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
