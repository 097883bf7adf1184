//! What cannot be in a region: it costs who wrote it, and is refused at a takeover.

use super::*;

#[test]
fn a_ticket_that_cannot_be_right_costs_its_producer_the_lane_and_nobody_else_anything() {
    use seriatim_ring::sync::AtomicU64;
    use seriatim_ring::tickets::{Enqueuer, Ticket};
    let mut desk = Desk::new(&Config::new().producers(2).workers(1));
    let (mut wild, mut tame) = (desk.producer("wild"), desk.producer("tame"));
    let mut worker = desk.worker("w");
    wild.submit(0, b"before").unwrap();
    let mut forge = Enqueuer::new(0);
    let none = AtomicU64::new(0);
    for (lane, count) in [(1, 4000), (77, 1), (0, 1), (2, 0)] {
        forge.enqueue(&desk.region.map().tickets(), Ticket::Cells { lane, count }, &none).unwrap();
        desk.turn();
    }
    // The last forged one was in the name of the tame producer, which thus is not heard either until it
    // attaches again.
    drop(tame);
    tame = desk.producer("tame");
    wild.submit(0, b"not heard").unwrap();
    tame.submit(0, b"heard").unwrap();
    desk.turn();
    assert_eq!(wild.wait_sequenced(1), Err(WaitError::Fenced));
    let mut fenced = Vec::new();
    let mut heard = Vec::new();
    while let Some(event) = worker.poll().unwrap() {
        match event {
            Event::ProducerFenced { lane, .. } => fenced.push(lane),
            Event::Command(c) => heard.push(c.payload.to_vec()),
            _ => {}
        }
    }
    assert_eq!(fenced, [1, 2]);
    assert_eq!(heard, [&b"before"[..], b"heard"]);
    // Attached again, it is heard again.
    drop(wild);
    let mut wild = desk.producer("wild");
    wild.submit(0, b"tamed").unwrap();
    desk.turn();
    assert_eq!(drain(&mut worker), [b"tamed"]);
}

#[test]
fn numbers_that_nobody_can_have_counted_are_refused_at_a_takeover() {
    use seriatim_ring::sync::Ordering::Relaxed;
    for which in 0..3 {
        let Desk { region, sequencer } = well_used();
        drop(sequencer);
        let reign = &region.map().control().reign;
        let (word, name) = [
            (&reign.epoch, "epoch"),
            (&reign.next_producer, "next producer number"),
            (&reign.next_member, "next member number"),
        ][which];
        word.store(u64::MAX, Relaxed);
        let error = Sequencer::open(&region).unwrap_err();
        assert!(
            matches!(error, SequencerError::Damaged { field, found: u64::MAX, .. } if field == name),
            "{error}"
        );
    }
}

#[test]
fn an_event_with_a_number_that_nobody_can_have_is_refused_at_a_takeover() {
    use seriatim_ring::lane::Room;
    for kind in [1, 2, 3] {
        let mut desk = Desk::new(&tiny());
        let _worker = desk.worker("w");
        let _producer = desk.producer("p");
        let Desk { region, sequencer } = desk;
        drop(sequencer);
        let lane = region.map().lane(0);
        let entry = lane.read(0).unwrap();
        let room = Room { cell: 0, len: entry.len, place: entry.place };
        lane.write(&room, &[1, u64::MAX, 0, 1, 0, 0, 0]);
        seriatim_ring::lane::LaneWriter::resume(&lane, 0, 0).unwrap().fill(&lane, &room, kind, 0);
        let error = Sequencer::open(&region).unwrap_err();
        assert!(matches!(error, SequencerError::Damaged { found: u64::MAX, .. }), "{error}");
    }
}
