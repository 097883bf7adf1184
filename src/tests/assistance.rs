//! Turns that others make for the sequencer.

use super::*;

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
