//! Controllers that follow each other, in every order of claims and hellos, with workers that come at any time.

use seriatim_ring::incarnations::{HELLO, Hello, RESERVED};

use super::*;
use crate::channel::{Channel, Event as Typed, Receiver, SendError, Sender, SequencedError};

type Strings = Channel<String>;

impl Desk {
    fn channel(&self) -> Strings {
        Channel::attach(&self.region)
    }

    fn open(&mut self, name: &str, nonce: u64) -> Sender<String> {
        let channel = self.channel();
        self.attach(move |_| channel.open(name, nonce)).unwrap()
    }

    fn receiver(&mut self, name: &str) -> Receiver<String> {
        let channel = self.channel();
        self.attach(move |_| channel.join(name)).unwrap()
    }

    /// Frees what all have passed.
    fn free(&mut self) {
        self.sequencer.sleep(Some(Instant::now()), || true);
        let snapshot = self.region.snapshot();
        let passed = snapshot.workers.iter().map(|worker| worker.next).min();
        assert_eq!(snapshot.anchor, passed.unwrap_or(snapshot.next));
    }

    /// One that has attached as a controller, and done no more.
    fn controller(&mut self, name: &str) -> Producer {
        let options = AttachOptions::new().role(ProducerRole::Controller);
        self.attach(|region| {
            region.make_writable("a controller", &[Part::Channel]).unwrap();
            Producer::attach_with(region, name, &options)
        })
        .unwrap()
    }
}

fn claim(controller: &Producer, region: &Region) -> u64 {
    region.map().incarnations().claim(controller.lane(), 0).unwrap()
}

fn say_hello(controller: &mut Producer, number: u64) {
    let hello: Vec<u8> =
        Hello { number, nonce: 0 }.encode().iter().flat_map(|word| word.to_le_bytes()).collect();
    controller.submit_reserved(HELLO, &hello, None).unwrap();
}

/// What a receiver has to give: `+n` for an incarnation, `ok` for its initialization, commands as they are.
fn all(receiver: &mut Receiver<String>) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(event) = receiver.poll().unwrap() {
        match event {
            Typed::Incarnation { number, .. } => all.push(format!("+{number}")),
            Typed::Initialized { .. } => all.push("ok".into()),
            Typed::Command(command) => all.push(command.decode().unwrap()),
            Typed::World(_) => {}
        }
    }
    all
}

fn raw(text: &str) -> Vec<u8> {
    [&[text.len() as u8], text.as_bytes()].concat()
}

fn small() -> Config {
    Config::new().order_slots(64).lane_cells(64).lane_bytes(4096).producers(4).workers(4)
}

#[test]
fn after_a_hello_nothing_of_an_older_incarnation_is_delivered() {
    let mut desk = Desk::new(&small());
    let (mut a, mut b) = (desk.receiver("a"), desk.receiver("b"));
    let mut old = desk.open("old", 7);
    old.send(&"x".into()).unwrap();
    old.initialization_complete().unwrap();
    old.send(&"y".into()).unwrap();
    let mut new = desk.open("new", 8);
    // As one that was stopped between its look and its ticket; a batch, which is walked as one run.
    old.blindly().submit_batch(&[(0, raw("late")), (0, raw("later"))]).unwrap();
    new.send(&"z".into()).unwrap();
    desk.turn();
    let expected = ["+1", "x", "ok", "y", "+2", "z"];
    assert_eq!(all(&mut a), expected);
    assert_eq!((a.incarnation(), a.worker().superseded()), (2, 2));
    assert_eq!(a.controller(), Some(new.producer().number()));
    // By another way through the same commands.
    let mut count = 0;
    while b.worker_mut().poll_batch(3, |_| count += 1).unwrap() > 0 {}
    assert_eq!((b.worker().superseded(), b.worker().next()), (2, a.worker().next()));
    assert_eq!(b.worker().digest(), a.worker().digest());
    let error = old.send(&"refused".into()).unwrap_err();
    let SendError::Superseded(superseded) = &error else { panic!("{error}") };
    assert_eq!((superseded.own, superseded.by.number, superseded.by.nonce), (1, 2, Some(8)));
    let told = "incarnation 1 is superseded by incarnation 2 (controller \"new\", nonce 8)";
    assert_eq!(error.to_string(), told);
    assert!(desk.region.verify().is_sound());
}

#[test]
fn one_that_dies_between_its_number_and_its_hello_is_in_nobodys_way() {
    let mut desk = Desk::new(&small());
    let mut receiver = desk.receiver("w");
    let mut first = desk.open("first", 0);
    first.send(&"heard".into()).unwrap();
    for round in 1..=200 {
        let dying = desk.controller("dying");
        assert_eq!(claim(&dying, &desk.region), 1 + round);
        drop(dying);
    }
    // It may send no more, but what it has sent counts until the next hello.
    assert!(matches!(first.send(&"no".into()), Err(SendError::Superseded(_))));
    first.blindly().submit(0, &raw("heard, too")).unwrap();
    let mut next = desk.open("next", 0);
    assert_eq!(next.number(), 202);
    next.send(&"go on".into()).unwrap();
    desk.turn();
    assert_eq!(all(&mut receiver), ["+1", "heard", "heard, too", "+202", "go on"]);
}

#[test]
fn of_hellos_in_the_other_order_than_their_numbers_the_higher_counts() {
    let mut desk = Desk::new(&small());
    let mut receiver = desk.receiver("w");
    let (mut low, mut high) = (desk.controller("low"), desk.controller("high"));
    let (first, second) = (claim(&low, &desk.region), claim(&high, &desk.region));
    high.submit(0, &raw("before its hello")).unwrap();
    say_hello(&mut high, second);
    low.submit(0, &raw("never")).unwrap();
    say_hello(&mut low, first);
    low.submit(0, &raw("never")).unwrap();
    high.submit(0, &raw("heard")).unwrap();
    desk.turn();
    assert_eq!(all(&mut receiver), ["+2", "heard"]);
    assert_eq!(receiver.worker().superseded(), 4);
    let mut newcomer = desk.receiver("newcomer");
    low.submit(0, &raw("never")).unwrap();
    high.submit(0, &raw("again")).unwrap();
    desk.turn();
    assert_eq!((all(&mut newcomer), newcomer.incarnation()), (vec!["again".to_owned()], 2));
}

#[test]
fn a_name_that_comes_back_is_a_new_incarnation_of_the_same_producer() {
    let mut desk = Desk::new(&small());
    let mut receiver = desk.receiver("w");
    let mut one = desk.open("controller", 1);
    one.send(&"one".into()).unwrap();
    let producer = one.producer().number();
    let mut other = desk.open("other", 2);
    one.blindly().submit(0, &raw("late")).unwrap();
    other.send(&"two".into()).unwrap();
    drop(one);
    let mut back = desk.open("controller", 3);
    assert_eq!((back.number(), back.producer().number()), (3, producer));
    assert!(matches!(back.producer().attached(), Attached::Resumed { next: 3 }));
    back.send(&"three".into()).unwrap();
    desk.turn();
    assert_eq!(all(&mut receiver), ["+1", "one", "+2", "two", "+3", "three"]);
    assert_eq!(receiver.controller(), Some(producer));
    // "late" has its place, but is none of this incarnation's.
    let earlier = back.wait_sequenced(2);
    assert_eq!(earlier, Err(SequencedError::Earlier { index: 2, first: 3 }));
}

#[test]
fn a_newcomer_at_the_anchor_hears_whom_the_others_hear() {
    let mut desk = Desk::new(&small());
    let mut first = desk.receiver("first");
    let mut old = desk.open("old", 0);
    let mut new = desk.open("new", 0);
    desk.turn();
    assert_eq!(all(&mut first), ["+1", "+2"]);
    // Both hellos are passed and freed: a newcomer does not meet them.
    desk.free();
    old.blindly().submit(0, &raw("late")).unwrap();
    new.send(&"soon".into()).unwrap();
    // In the order before the newcomer asks.
    desk.turn();
    let mut second = desk.receiver("second");
    old.blindly().submit(0, &raw("later")).unwrap();
    new.send(&"heard".into()).unwrap();
    desk.turn();
    assert!(second.worker().next() >= Seq::new(5), "it starts behind the hellos");
    assert_eq!(all(&mut second), ["heard"]);
    assert_eq!(second.worker().superseded(), 2);
    assert_eq!(all(&mut first), ["soon", "heard"]);
    assert_eq!(first.worker().digest(), second.worker().digest());
    // All die; who comes starts where they had got to, and a successor of the sequencer does not change that.
    for worker in [first, second] {
        drop(worker);
    }
    desk.turn();
    old.blindly().submit(0, &raw("never")).unwrap();
    new.send(&"held".into()).unwrap();
    desk.turn();
    let Desk { region, sequencer } = desk;
    drop(sequencer);
    let sequencer = Sequencer::open(&region).unwrap();
    let mut desk = Desk { region, sequencer };
    let mut third = desk.receiver("third");
    desk.turn();
    assert_eq!((all(&mut third), third.incarnation()), (vec!["held".to_owned()], 2));
    assert_eq!(desk.open("new again", 0).number(), 3);
    assert!(desk.region.verify().is_sound());
}

#[test]
fn the_sequencer_keeps_track_where_nobody_works_and_nothing_is_kept() {
    let mut desk = Desk::new(&small().without_workers(WithoutWorkers::Discard));
    let mut old = desk.open("old", 0);
    let before = old.send(&"before".into()).unwrap();
    let mut new = desk.open("new", 0);
    let after = old.blindly().submit(0, &raw("after")).unwrap();
    desk.turn();
    for n in 0..200 {
        let sent = new.send_deadline(&format!("dropped {n}"), Instant::now());
        assert!(sent.is_ok() || n > 0);
        desk.turn();
        desk.free();
    }
    // Long ago, and of two sides of a hello.
    assert!(matches!(old.wait_sequenced(before), Ok(_) | Err(SequencedError::LongAgo { .. })));
    assert!(matches!(
        old.wait_sequenced(after),
        Err(SequencedError::LongAgo { .. } | SequencedError::Superseded { .. })
    ));
    let mut receiver = desk.receiver("w");
    old.blindly().submit(0, &raw("never")).unwrap();
    new.send(&"heard".into()).unwrap();
    desk.turn();
    assert_eq!((all(&mut receiver), receiver.incarnation()), (vec!["heard".to_owned()], 2));
}

#[test]
fn what_became_of_a_command_is_known_when_somebody_has_passed_it() {
    let mut desk = Desk::new(&small());
    let mut receiver = desk.receiver("w");
    let mut old = desk.open("old", 0);
    let alone = old.send(&"alone".into()).unwrap();
    desk.turn();
    // Nobody has passed anything: that its number is the newest is enough.
    assert_eq!(old.wait_sequenced(alone).unwrap(), Sequenced::At(Seq::new(3)));
    let silent = desk.controller("silent");
    claim(&silent, &desk.region);
    let before = old.blindly().submit(0, &raw("before")).unwrap();
    desk.turn();
    let now = Instant::now();
    let undecided = old.wait_sequenced_deadline(before, now).unwrap_err();
    let told = undecided.to_string();
    assert!(matches!(undecided, SequencedError::Undecided { newest: 2, .. }), "{told}");
    assert!(told.contains("worker \"w\""), "{told}");
    assert_eq!(all(&mut receiver), ["+1", "alone", "before"]);
    assert!(old.wait_sequenced_deadline(before, now).is_ok());
    let _new = desk.open("new", 9);
    let after = old.blindly().submit(0, &raw("after")).unwrap();
    desk.turn();
    assert!(matches!(
        old.wait_sequenced_deadline(after, now),
        Err(SequencedError::Undecided { newest: 3, .. })
    ));
    assert_eq!(all(&mut receiver), ["+3"]);
    assert!(old.wait_sequenced(before).is_ok(), "it was before that hello");
    let error = old.wait_sequenced(after).unwrap_err();
    let told =
        "command 4 came too late: incarnation 1 is superseded by incarnation 3 (controller \"new\", nonce 9)";
    assert_eq!(error.to_string(), told.replace('4', &after.to_string()));
}

#[test]
fn a_lane_of_a_controller_that_gets_another_owner_is_not_current() {
    let mut desk = Desk::new(&small().producers(1));
    let mut receiver = desk.receiver("w");
    let mut first = desk.open("first", 0);
    first.send(&"one".into()).unwrap();
    desk.turn();
    assert_eq!(all(&mut receiver), ["+1", "one"]);
    desk.free();
    drop(first);
    let mut second = desk.controller("second");
    second.submit(0, &raw("without a hello")).unwrap();
    desk.turn();
    assert!(all(&mut receiver).is_empty());
    assert_eq!((receiver.incarnation(), receiver.controller()), (1, None));
    let number = claim(&second, &desk.region);
    say_hello(&mut second, number);
    desk.turn();
    assert_eq!(all(&mut receiver), ["+2"]);
    desk.free();
    drop(second);
    let injector = {
        let channel = desk.channel();
        desk.attach(move |_| channel.inject("injector")).unwrap()
    };
    injector.clone().try_send(&"heard".into()).unwrap();
    desk.turn();
    assert_eq!(all(&mut receiver), ["heard"]);
    assert!(desk.region.verify().is_sound());
}

#[test]
fn a_name_keeps_its_role() {
    let mut desk = Desk::new(&small());
    drop(desk.open("controller", 0));
    drop(desk.producer("injector"));
    let told = desk.attach(|region| Producer::attach(region, "controller")).unwrap_err().to_string();
    assert!(told.contains("\"controller\" is a controller, and was to attach as an injector"), "{told}");
    let channel = desk.channel();
    let newest = desk.region.map().incarnations().newest();
    let told = desk.attach(move |_| channel.open("injector", 0)).unwrap_err().to_string();
    assert!(told.contains("\"injector\" is an injector, and was to attach as a controller"), "{told}");
    assert_eq!(desk.region.map().incarnations().newest(), newest, "no number for one who does not get in");
}

#[test]
fn reserved_kinds_are_refused_in_every_way_to_submit() {
    let mut desk = Desk::new(&small());
    let mut producer = desk.producer("p");
    let refused = Err(SubmitError::ReservedKind { kind: RESERVED });
    assert_eq!(producer.try_submit(RESERVED, b"x"), refused);
    assert_eq!(producer.submit(RESERVED, b"x"), refused);
    assert_eq!(producer.submit(RESERVED, &[0; 100]), refused);
    let refused = SubmitError::ReservedKind { kind: u16::MAX };
    assert_eq!(producer.submit_batch(&[(0, &b"x"[..]), (u16::MAX, b"x")]), Err(refused));
    assert_eq!(producer.submit_batch(&[(0, &[0; 100][..]), (u16::MAX, b"x")]), Err(refused));
    assert_eq!(producer.claim(u16::MAX, 1).unwrap_err(), refused);
    assert_eq!(refused.to_string(), "kind 0xffff is reserved, kinds below 0xff00 are allowed");
    assert_eq!(producer.next_index(), 0);
    producer.submit(RESERVED - 1, b"x").unwrap();
}

#[test]
fn a_worker_that_releases_by_hand_keeps_no_room_for_what_nobody_gets() {
    let mut desk = Desk::new(&small());
    let options = JoinOptions::new().release_by_hand(true);
    let mut worker = desk.attach(|region| Worker::join_with(region, "w", &options)).unwrap();
    let mut old = desk.open("old", 0);
    let _new = desk.open("new", 0);
    desk.turn();
    while worker.poll().unwrap().is_some() {}
    worker.release();
    let place = |desk: &Desk| desk.region.snapshot().workers[0].next;
    let released = place(&desk);
    old.blindly().submit_batch(&[(0, raw("late")), (0, raw("later"))]).unwrap();
    desk.turn();
    assert!(worker.poll().unwrap().is_none());
    assert_eq!(place(&desk), released.plus(2));
    let mut injector = desk.producer("p");
    injector.submit(0, b"to be kept").unwrap();
    desk.turn();
    while worker.poll().unwrap().is_some() {}
    old.blindly().submit(0, &raw("last")).unwrap();
    desk.turn();
    assert!(worker.poll().unwrap().is_none());
    assert_eq!(place(&desk), released.plus(2), "what was delivered is not released");
}

#[test]
fn a_stage_is_left_once_and_what_cannot_be_decoded_is_named() {
    let mut desk = Desk::new(&small());
    let mut receiver = desk.receiver("w");
    let mut sender = desk.open("c", 0);
    sender.initialization_complete().unwrap();
    let again = sender.initialization_complete().unwrap_err().to_string();
    assert!(again.contains("in its stage computation"), "{again}");
    sender.blindly().submit(3, &[200]).unwrap();
    desk.turn();
    let told = loop {
        if let Some(Typed::Command(command)) = receiver.poll().unwrap() {
            assert_eq!((command.kind(), command.raw().payload), (3, &[200][..]));
            break command.decode().unwrap_err().to_string();
        }
    };
    let number = sender.producer().number();
    assert!(
        told.starts_with(&format!("the command at index 4 (kind 3, producer {number}) cannot be decoded: ")),
        "{told}"
    );
}

#[test]
fn who_waits_for_room_hears_that_it_is_superseded() {
    let mut desk = Desk::new(&small().lane_cells(4));
    let _worker = desk.worker("w");
    let mut old = desk.open("old", 0);
    let full = loop {
        match old.try_send(&"fill".into()) {
            Ok(_) => desk.turn(),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, SendError::Submit(SubmitError::Full(_))), "{full}");
    let waiting = thread::spawn(move || old.send(&"one more".into()));
    let _new = desk.open("new", 0);
    assert!(matches!(waiting.join().unwrap(), Err(SendError::Superseded(_))));
}

/// What a worker stops at.
fn stops_at(worker: &mut Worker) -> String {
    loop {
        match worker.poll() {
            Ok(event) => assert!(event.is_some(), "it was not noticed"),
            Err(error) => return error.to_string(),
        }
    }
}

#[test]
fn damage_to_what_says_who_is_current_is_found() {
    let mut desk = Desk::new(&small());
    let mut worker = desk.worker("w");
    let mut controller = desk.controller("c");
    // A number that nobody claimed.
    say_hello(&mut controller, 5);
    desk.turn();
    let corrupt = stops_at(&mut worker);
    assert!(corrupt.contains("number of an incarnation is 5, expected 0"), "{corrupt}");

    let mut desk = Desk::new(&small());
    let mut worker = desk.worker("w");
    let mut controller = desk.controller("c");
    desk.turn();
    drain(&mut worker);
    desk.free();
    let entry = desk.region.map().lane_entry(1);
    entry.role.store(9, std::sync::atomic::Ordering::Relaxed);
    controller.submit_reserved(HELLO, b"short", None).unwrap();
    let mut late = desk.worker("late");
    let corrupt = stops_at(&mut late);
    assert!(corrupt.contains("role of a lane's owner is 9, expected 1"), "{corrupt}");
    let corrupt = stops_at(&mut worker);
    assert!(corrupt.contains("length of a hello is 5, expected 16"), "{corrupt}");
}

#[test]
fn verify_says_what_of_incarnations_does_not_hold() {
    let mut desk = Desk::new(&small());
    let mut receiver = desk.receiver("w");
    let _old = desk.open("old", 0);
    let _new = desk.open("new", 0);
    desk.turn();
    all(&mut receiver);
    let problems = |region: &Region| {
        let checks = region.verify().checks;
        checks.into_iter().flat_map(|check| check.problems).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(problems(&desk.region), "");
    let map = desk.region.map();
    let page = map.worker_page(0);
    let (at, [digest, current]) = page.cursor.load().unwrap();
    page.cursor.store(at, [digest, current + (1 << 10)]);
    assert!(problems(&desk.region).contains("has incarnation 3 current at index"));
    page.cursor.store(at, [digest, current]);
    assert_eq!(problems(&desk.region), "");
    // A number that nobody has claimed opens a term, and an end lies where the order does not go.
    let at = map.layout().channel;
    let file = desk.region.file();
    let word = |at: u64, value: u64| {
        use std::os::unix::fs::FileExt;
        let mut before = [0; 8];
        file.read_exact_at(&mut before, at).unwrap();
        file.write_all_at(&value.to_le_bytes(), at).unwrap();
        let found = problems(&desk.region);
        file.write_all_at(&before, at).unwrap();
        found
    };
    let found = word(at, 1);
    assert!(found.contains("the term of lane 2 is Open(2); 1 are claimed"), "{found}");
    let found = word(at, u64::MAX);
    assert!(found.contains("the newest incarnation is 18446744073709551615"), "{found}");
    let found = word(at + 128 + 16, 1 << 40);
    assert!(found.contains("the term of lane 1 is Ended(#1099511627775)"), "{found}");
    assert_eq!(problems(&desk.region), "");
}

/// Words, one for each worker; what has no comma goes whole.
impl crate::channel::Partition for String {
    type Part = String;

    fn partition(&self, workers: usize) -> Option<(String, Vec<String>)> {
        let words: Vec<String> = self.split(',').map(Into::into).collect();
        // Whoever does not count the workers is refused.
        assert!(workers > 0);
        (words.len() > 1).then(|| ("shared".into(), words))
    }
}

#[test]
fn what_a_superseded_controller_divides_or_sends_to_one_is_heard_by_nobody() {
    let mut desk = Desk::new(&small().ranks(2));
    let channel = desk.channel();
    let mut receivers = [0, 1].map(|rank| {
        let options = JoinOptions::new().rank(rank);
        desk.attach(|_| channel.join_with(&format!("w{rank}"), &options)).unwrap()
    });
    let mut old = desk.open("old", 1);
    old.send_to(1, &"old to one".into()).unwrap();
    old.send_parts(&"a,b".into()).unwrap();
    let mut new = desk.open("new", 2);
    let late = old.blindly();
    late.submit_to(1, 0, &raw("late")).unwrap();
    late.submit_parts(0, &raw("late"), &[raw("late"), raw("late")]).unwrap();
    let superseded = |result: Result<u64, SendError>| {
        assert!(matches!(result, Err(SendError::Superseded(_))), "{result:?}");
    };
    superseded(old.send_to(1, &"later".into()));
    superseded(old.send_parts(&"later,later".into()));
    superseded(old.send_parts(&"later, whole".into()));
    new.try_send_to(0, &"new to zero".into()).unwrap();
    new.try_send_parts(&"c,d".into()).unwrap();
    new.try_send_parts(&"whole".into()).unwrap();
    let soon = Instant::now() + Duration::from_secs(60);
    new.send_to_deadline(1, &"new to one".into(), soon).unwrap();
    new.send_parts_deadline(&"e,f".into(), soon).unwrap();
    desk.turn();
    for (receiver, expected) in receivers.iter_mut().zip([
        &["+1", "shared a", "+2", "new to zero", "shared c", "whole", "shared e"][..],
        &["+1", "old to one", "shared b", "+2", "shared d", "whole", "new to one", "shared f"],
    ]) {
        let mut all = Vec::new();
        while let Some(event) = receiver.poll().unwrap() {
            match event {
                Typed::Incarnation { number, .. } => all.push(format!("+{number}")),
                Typed::Command(command) => {
                    let part =
                        command.decode_part().unwrap().map_or(String::new(), |part| format!(" {part}"));
                    all.push(command.decode().unwrap() + &part);
                }
                _ => {}
            }
        }
        assert_eq!(all, expected);
        assert_eq!(receiver.worker().superseded(), 2);
    }
    assert!(desk.region.verify().is_sound());
    // A number of parts that is not that of the workers, and a rank that there is not.
    let wrong = new.send_parts(&"a,b,c".into()).unwrap_err();
    assert!(matches!(wrong, SendError::Submit(SubmitError::WrongParts { parts: 3, ranks: 2 })), "{wrong}");
    let wrong = new.send_to(2, &"x".into()).unwrap_err();
    assert!(matches!(wrong, SendError::Submit(SubmitError::UnknownRank { rank: 2, ranks: 2 })), "{wrong}");
}

#[test]
fn an_injector_divides_and_addresses_as_well() {
    let mut desk = Desk::new(&small().ranks(2));
    let channel = desk.channel();
    let options = JoinOptions::new().rank(1);
    let mut receiver = desk.attach(|_| channel.join_with("w", &options)).unwrap();
    let injector = desk.attach(|_| channel.inject("i")).unwrap();
    injector.try_send_to(0, &"for another".into()).unwrap();
    injector.try_send_to(1, &"for it".into()).unwrap();
    injector.try_send_parts(&"a,b".into()).unwrap();
    injector.try_send_parts(&"whole".into()).unwrap();
    desk.turn();
    let mut all = Vec::new();
    while let Some(event) = receiver.poll().unwrap() {
        if let Typed::Command(command) = event {
            all.push((command.decode().unwrap(), command.decode_part().unwrap()));
        }
    }
    let expected = [("for it", None), ("shared", Some("b")), ("whole", None)];
    assert_eq!(all, expected.map(|(shared, part)| (shared.to_string(), part.map(Into::into))));

    let mut desk = Desk::new(&small());
    let channel = desk.channel();
    let injector = desk.attach(|_| channel.inject("i")).unwrap();
    let mut sender = desk.open("c", 1);
    for error in [
        injector.try_send_parts(&"whole".into()).unwrap_err().to_string(),
        injector.try_send_to(0, &"x".into()).unwrap_err().to_string(),
        sender.send_parts(&"whole".into()).unwrap_err().to_string(),
        sender.send_to(0, &"x".into()).unwrap_err().to_string(),
    ] {
        assert_eq!(error, SubmitError::NoRanks.to_string());
    }
}

#[test]
fn a_hello_that_is_not_for_all_is_damage() {
    use std::os::unix::fs::FileExt;
    let mut desk = Desk::new(&small().ranks(2));
    let mut worker = desk.worker("w");
    let _sender = desk.open("c", 1);
    desk.turn();
    let at = desk.region.map().layout().lane(1).cells + 6;
    desk.region.file().write_all_at(&1_u16.to_le_bytes(), at).unwrap();
    let error = loop {
        match worker.poll() {
            Ok(event) => assert!(event.is_some(), "nobody noticed"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("address is 1, expected 0"), "{error}");
}
