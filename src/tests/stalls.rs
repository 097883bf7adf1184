//! Who waits, who holds things up, and who is told so.

use super::*;

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
