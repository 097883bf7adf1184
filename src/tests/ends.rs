//! How an order ends: closed, reopened, or out of indexes.

use super::*;

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
