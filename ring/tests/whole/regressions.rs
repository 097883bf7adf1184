//! Cases that went wrong once, each by its calls.

use crate::memory::{Memory, Origin, Size, Worker, name};
use crate::world::{Op, Steady, World};
use seriatim_ring::control::{LIVE, ProducerRole, Verdict};
use seriatim_ring::event::{Event, OWN_LANE};
use seriatim_ring::lane::LaneWriter;
use seriatim_ring::parts::Address;
use seriatim_ring::sequencer::Orderer;
use seriatim_ring::sync::Ordering;

const SIZE: Size = Size {
    order_slots: 4,
    tickets: 32,
    producers: 1,
    lane_cells: 4,
    lane_bytes: 256,
    own_cells: 2,
    workers: 1,
};

fn play(size: Size, origin: Origin, ops: &[Op]) {
    let memory = Memory::new(size, origin);
    let mut world = World::new(&memory, size, origin, Steady);
    for op in
        [Op::TakeOver, Op::Join(0), Op::House, Op::Reattach(0), Op::House, Op::Poll(0, 9), Op::Release(0)]
    {
        world.step(op);
    }
    ops.iter().for_each(|&op| world.step(op));
    world.settle();
    assert!(world.ordered() > 1);
}

/// A payload that would have wrapped left bytes out; the next one needed them and counted the free bytes from its
/// predecessor's start. Giving both back went behind that.
#[test]
fn giving_back_what_left_bytes_out_overwrites_nothing() {
    let origin = Origin { byte: (1 << 32) - 64, ..Origin::default() };
    let mut ops = vec![Op::Write(0, 128), Op::Write(0, 128), Op::Abandon(0)];
    ops.extend([Op::Write(0, 41), Op::Write(0, 65), Op::Commit(0), Op::Write(0, 65), Op::Commit(0)]);
    play(SIZE, origin, &ops);
}

/// The same, and the producer dies: what it had claimed was more than a ring beyond its first cell, and its
/// successor took the lane for damaged.
#[test]
fn a_successor_takes_up_a_lane_in_which_much_was_given_back() {
    let origin = Origin { byte: (1 << 32) - 64, ..Origin::default() };
    let ops = [Op::Write(0, 128), Op::Write(0, 128), Op::Abandon(0), Op::Write(0, 0), Op::Commit(0)];
    play(SIZE, origin, &[&ops[..], &[Op::Turn(1), Op::Reattach(0), Op::House, Op::Write(0, 128)]].concat());
}

/// The only worker dies in front of a full order ring: its slot was not free before it was said that it left, for
/// which there was no room before somebody read.
#[test]
fn a_full_order_without_workers_takes_a_new_worker_in() {
    let size = Size { order_slots: 2, ..SIZE };
    let ops = [
        Op::Write(0, 8),
        Op::Commit(0),
        Op::Turn(1),
        Op::Write(0, 8),
        Op::Commit(0),
        Op::Turn(1),
        Op::Kill(0),
    ];
    play(size, Origin::default(), &[&ops[..], &[Op::House, Op::Join(0), Op::House, Op::Poll(0, 9)]].concat());
}

/// A lane of the sequencer in which `crashes` events were begun and never came into the order.
fn begun_events(memory: &Memory, crashes: u64, event: &Event) {
    let own = memory.lane(OWN_LANE);
    let entry = &memory.lanes[usize::from(OWN_LANE)];
    for _ in 0..crashes {
        let word = |word: &seriatim_ring::sync::AtomicU64| word.load(Ordering::Relaxed);
        let mut writer = LaneWriter::resume(&own, word(&entry.released), word(&entry.ordered)).unwrap();
        let room = writer.reserve(&own, &entry.released, 56).unwrap();
        // It died before it wrote which event it was: the cell still has the kind of the one before.
        own.write(&room, &event.encode().1);
    }
}

/// Predecessors died while they wrote events: the bytes that these took are not free before the lane is, and the
/// end of the order is not said to be in when there is no room for it.
#[test]
fn events_that_never_came_take_room() {
    let size = Size { order_slots: 8, ..SIZE };
    let memory = Memory::new(size, Origin::default());
    let s = memory.shared();
    let mut orderer = Orderer::take_over(&s).unwrap();
    let mut worker = Worker::join(&memory, &mut orderer, 0);
    begun_events(&memory, 1, &Event::Opened { epoch: 2 });
    orderer = Orderer::take_over(&s).unwrap();
    // One cell is free, and no byte.
    assert_eq!(orderer.close(&s), None);
    assert_eq!(orderer.ticket(), 0, "a ticket consumed without a run");
    worker.drain();
    assert!(orderer.close(&s).is_some());
}

/// The cell of an event that is released is half overwritten by one that never came: it must not be applied as
/// something that never was.
#[test]
fn an_event_that_was_begun_over_another_is_not_applied() {
    let size = Size { order_slots: 8, workers: 2, ..SIZE };
    let memory = Memory::new(size, Origin::default());
    let s = memory.shared();
    let mut orderer = Orderer::take_over(&s).unwrap();
    let mut first = Worker::join(&memory, &mut orderer, 0);
    // Somebody joins and leaves: the last event of the lane is that it left.
    let mut second = Worker::join(&memory, &mut orderer, 1);
    first.drain();
    second.drain();
    second.leave();
    orderer.drop_gate(&s, 1);
    orderer.announce(&s);
    first.drain();
    orderer.free(&s);
    let number = memory.members[0].number.load(Ordering::Relaxed);
    // An event about the first worker is begun in the cell that says that the second one left.
    for _ in 0..2 {
        begun_events(&memory, 1, &Event::Joined { slot: 0, number, name: name(1), address: Address::ALL });
        memory.lanes[0].ordered.fetch_add(1, Ordering::Relaxed);
        memory.lanes[0].released.fetch_add(1, Ordering::Relaxed);
    }
    Orderer::take_over(&s).unwrap();
    assert_eq!(memory.members[0].state.load(Ordering::Relaxed), LIVE, "a living worker lost its gate");
}

/// A queue in which every word is taken has its end a queue further on.
#[test]
fn the_tail_of_a_full_queue_is_behind_it() {
    let memory = Memory::new(Size { lane_cells: 32, lane_bytes: 64, ..SIZE }, Origin::default());
    let s = memory.shared();
    let mut orderer = Orderer::take_over(&s).unwrap();
    let mut worker = Worker::join(&memory, &mut orderer, 0);
    assert_eq!(orderer.admit(&s, 1, 1, name(1), ProducerRole::Injector), Some(Verdict::Granted));
    worker.drain();
    let mut producer = crate::memory::Producer::attach(&memory, 1);
    for n in 0..32 {
        producer.try_submit(0, 8, n).unwrap();
    }
    assert_eq!(memory.queue().tail(0), 32);
}
