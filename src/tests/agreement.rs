//! Reports and barriers: a difference is found where it began, whoever is behind is named, and nobody waits for who need
//! not be waited for.

use super::*;

/// A small engine: what its state is after some commands follows from these alone.
#[derive(Clone, Default)]
pub(super) struct Engine {
    pub(super) state: u64,
    /// How many things it has given a number.
    numbered: u64,
}

/// What is wrong with an engine, at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    Skips(Seq),
    /// It gives one number too many away, which shows only in what is numbered later.
    Misnumbers(Seq),
}

impl Engine {
    pub(super) fn apply(&mut self, event: &Event<'_>, mistake: Option<Mistake>) {
        let Event::Command(command) = event else { return };
        if mistake == Some(Mistake::Skips(command.seq)) {
            return;
        }
        self.numbered += 1;
        let more = [command.kind.into(), self.numbered];
        self.state =
            more.iter().fold(self.state, |state, word| (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if mistake == Some(Mistake::Misnumbers(command.seq)) {
            self.numbered += 1;
        }
    }
}

/// Three workers on threads of their own apply so many commands and report each; the second makes a mistake.
fn three_engines(commands: u64, mistake: Option<Mistake>) -> (Region, Vec<Worker>) {
    let region = Region::anonymous(&Config::new().workers(3).producers(1)).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let workers = ["a", "b", "c"].map(|name| Worker::join(&region, name).unwrap());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let threads = workers.map(|mut worker| {
        thread::spawn(move || {
            let (mut engine, mut left) = (Engine::default(), commands);
            let mistake = mistake.filter(|_| worker.name() == "b");
            while left > 0 {
                let event = worker.recv().unwrap();
                left -= u64::from(matches!(event, Event::Command(_)));
                engine.apply(&event, mistake);
                let seq = event.seq();
                assert_eq!(worker.report(engine.state), Ok(seq));
            }
            worker
        })
    });
    for n in 0..commands {
        producer.submit(n as u16 % 7, b"do it").unwrap();
    }
    (region, threads.map(|thread| thread.join().unwrap()).into())
}

#[test]
fn a_difference_is_found_at_exactly_the_index_where_it_began() {
    let (region, workers) = three_engines(150, None);
    let last = Seq::new(workers[0].next().get() - 1);
    let found = region.agreement();
    assert_eq!((found.agreed, found.divergence.as_ref()), (Some(last), None));
    assert_eq!(found.to_string(), format!("agreed up to index {last}"));
    // What a number was wasted for shows when the next one is given.
    let cases = [(Mistake::Skips(Seq::new(90)), 90), (Mistake::Misnumbers(Seq::new(90)), 91)];
    for (mistake, at) in cases {
        let (region, workers) = three_engines(150, Some(mistake));
        let found = region.agreement();
        assert_eq!(found.agreed, Some(Seq::new(at - 1)), "{mistake:?}");
        let diverged = found.divergence.clone().unwrap();
        assert_eq!((diverged.seq, diverged.after), (Seq::new(at), Some(Seq::new(at - 1))), "{mistake:?}");
        assert_eq!(diverged.what, Difference::Fingerprint);
        let prints: Vec<_> = diverged.reports.iter().map(|r| (r.name.to_string(), r.fingerprint)).collect();
        assert!(prints[0].1 == prints[2].1 && prints[0].1 != prints[1].1, "{prints:?}");
        assert_eq!(prints.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(diverged.reports[1].number, workers[1].number());
        assert!(found.to_string().starts_with(&format!("DIVERGED at index {at} (the same at {})", at - 1)));
    }
}

#[test]
fn where_a_difference_began_so_long_ago_is_not_made_up() {
    let (region, workers) = three_engines(600, Some(Mistake::Skips(Seq::new(30))));
    let diverged = region.agreement().divergence.unwrap();
    // The lowest index that all three have among their last 255 reports.
    assert_eq!((diverged.seq, diverged.after), (Seq::new(workers[0].next().get() - 255), None));
    assert!(diverged.to_string().contains("nothing the same before it can be seen"), "{diverged}");
    assert_eq!(region.agreement().agreed, None);
}

/// One command, ordered and received by all.
fn one_more(desk: &mut Desk, producer: &mut Producer, workers: &mut [&mut Worker]) -> Seq {
    producer.try_submit(0, b"x").unwrap();
    desk.turn();
    for worker in workers.iter_mut() {
        while worker.poll().unwrap().is_some() {}
    }
    // What was passed is freed for the next one.
    desk.turn();
    Seq::new(workers[0].next().get() - 1)
}

#[test]
fn a_report_is_for_the_event_that_was_handed_out_last() {
    let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16));
    let mut worker = desk.worker("w");
    let first = worker.first();
    let error = worker.report(1).unwrap_err();
    assert_eq!(error, ReportError::NothingYet { first });
    assert!(error.to_string().contains(&first.to_string()), "{error}");
    let found = desk.region.agreement();
    assert_eq!((found.to_string().as_str(), found.silent().count()), ("nobody reports", 1));
    let mut producer = desk.producer("p");
    producer.try_submit(0, b"x").unwrap();
    producer.try_submit(0, b"x").unwrap();
    desk.turn();
    while let Some(seq) = worker.poll().unwrap().map(|event| event.seq()) {
        assert_eq!(worker.report(seq.get()), Ok(seq));
        let report = desk.region.map().worker_page(0).reports.recent().last().unwrap();
        assert_eq!(
            (report.index, report.digest),
            (seq.get(), worker.digest().0),
            "the digest is that after it"
        );
        assert_eq!((report.fingerprint, report.member), (seq.get(), worker.number()));
    }
    let last = Seq::new(worker.next().get() - 1);
    // Without another event it is for the same one, and the later counts.
    assert_eq!(worker.report(77), Ok(last));
    let reporter = desk.region.agreement().workers[0].clone();
    assert_eq!(reporter.reported, Some((first, last)));
    // A newcomer has had nothing while it folds what was before it.
    let mut late = desk.worker("late");
    assert!(late.next() < late.first(), "it has something to fold");
    assert!(matches!(late.report(1), Err(ReportError::NothingYet { .. })));
    while worker.poll().unwrap().is_some() {}
    assert_eq!(late.poll().unwrap().map(|event| event.seq()), Some(late.first()));
    assert_eq!(late.report(1), Ok(late.first()));
}

#[test]
fn who_reports_seldom_is_compared_where_it_does_and_who_never_does_is_named() {
    let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16).workers(4));
    let (mut often, mut seldom) = (desk.worker("often"), desk.worker("seldom"));
    let mut producer = desk.producer("p");
    let mut never = desk.worker("never");
    let mut common = Vec::new();
    for n in 0..20 {
        let seq = one_more(&mut desk, &mut producer, &mut [&mut often, &mut seldom, &mut never]);
        often.report(seq.get() * 3).unwrap();
        if n % 6 == 2 {
            seldom.report(seq.get() * 3).unwrap();
            common.push(seq);
        }
    }
    let found = desk.region.agreement();
    assert_eq!((found.agreed, &found.divergence), (common.last().copied(), &None));
    assert_eq!(found.silent().map(|worker| worker.name.as_str()).collect::<Vec<_>>(), ["never"]);
    // It differs somewhere after the last common report, and that is what is said.
    let seq = one_more(&mut desk, &mut producer, &mut [&mut often, &mut seldom, &mut never]);
    often.report(1).unwrap();
    seldom.report(2).unwrap();
    let diverged = desk.region.agreement().divergence.unwrap();
    assert_eq!((diverged.seq, diverged.after), (seq, common.last().copied()));
    assert_eq!(diverged.reports.len(), 2);
    // It takes that back: of two reports for one index the later counts.
    seldom.report(1).unwrap();
    let found = desk.region.agreement();
    assert_eq!((found.agreed, &found.divergence), (Some(seq), &None));
}

#[test]
fn who_died_or_left_or_was_replaced_is_no_longer_looked_at() {
    for dies in [true, false] {
        let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16));
        let (mut stays, mut goes) = (desk.worker("stays"), desk.worker("goes"));
        let mut producer = desk.producer("p");
        let seq = one_more(&mut desk, &mut producer, &mut [&mut stays, &mut goes]);
        stays.report(1).unwrap();
        goes.report(2).unwrap();
        assert_eq!(desk.region.agreement().divergence.unwrap().seq, seq);
        let slot = goes.slot();
        if dies {
            goes.fall()
        } else {
            goes.leave()
        }
        // Its successor is let in when its gate has dropped.
        let mut successor = desk.worker("goes");
        assert_eq!(successor.slot(), slot);
        let found = desk.region.agreement();
        assert_eq!((found.agreed, &found.divergence), (None, &None), "died: {dies}");
        assert_eq!(found.silent().map(|worker| worker.number).collect::<Vec<_>>(), [successor.number()]);
        let seq = one_more(&mut desk, &mut producer, &mut [&mut stays, &mut successor]);
        stays.report(5).unwrap();
        successor.report(5).unwrap();
        let found = desk.region.agreement();
        assert_eq!((found.agreed, &found.divergence), (Some(seq), &None), "died: {dies}");
    }
}

#[test]
fn who_gets_again_what_was_not_released_reports_it_as_its_own() {
    let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16).workers(1));
    let by_hand = JoinOptions::new().release_by_hand(true);
    let mut first = desk.attach(|region| Worker::join_with(region, "w", &by_hand).unwrap());
    let mut producer = desk.producer("p");
    producer.try_submit(0, b"x").unwrap();
    desk.turn();
    while first.poll().unwrap().is_some() {}
    let reported = first.report(1).unwrap();
    first.fall();
    let mut second = desk.worker("w");
    assert!(second.first() <= reported, "it gets it again");
    assert_eq!(desk.region.agreement().workers[0].reported, None, "what its predecessor said is not its own");
    while second.poll().unwrap().is_some_and(|event| event.seq() < reported) {}
    assert_eq!(second.report(2), Ok(reported));
    let reporter = desk.region.agreement().workers[0].clone();
    assert_eq!((reporter.number, reporter.reported), (second.number(), Some((reported, reported))));
}

// ---- against a model -----------------------------------------------------------------------------------------

#[derive(Debug, Clone)]
enum Said {
    /// So many commands, of which each worker reports those whose number its stride divides.
    Commands { count: usize, strides: [usize; 3] },
    /// A worker is wrong from now on, or right again.
    Turns { who: usize },
    /// A worker goes and another one comes in its place.
    Rejoins { who: usize, dies: bool },
}

fn said() -> impl Strategy<Value = Said> {
    let strides =
        prop::array::uniform3(prop_oneof![3 => Just(1usize), 2 => 2..5usize, 1 => Just(usize::MAX)]);
    prop_oneof![
        6 => (1..40usize, strides.clone()).prop_map(|(count, strides)| Said::Commands { count, strides }),
        1 => (250..300usize, strides).prop_map(|(count, strides)| Said::Commands { count, strides }),
        3 => (0..3usize).prop_map(|who| Said::Turns { who }),
        1 => (0..3usize, any::<bool>()).prop_map(|(who, dies)| Said::Rejoins { who, dies }),
    ]
}

/// What a worker reported, as the model has it.
#[derive(Default)]
struct Spoken {
    is_wrong: bool,
    last: VecDeque<(u64, u64)>,
}

/// The answer by its definition: what is agreed, and where they differ after what.
fn by_definition(spoken: &[Spoken]) -> (Option<u64>, Option<(u64, Option<u64>)>) {
    let at = |who: &Spoken, seq: u64| who.last.iter().find(|said| said.0 == seq).map(|said| said.1);
    let all: Vec<&Spoken> = spoken.iter().filter(|who| !who.last.is_empty()).collect();
    let mut indexes: Vec<u64> = all.iter().flat_map(|who| who.last.iter().map(|said| said.0)).collect();
    indexes.sort_unstable();
    let prints = |seq: u64| -> Vec<u64> { all.iter().filter_map(|who| at(who, seq)).collect() };
    let differ =
        indexes.iter().copied().find(|&seq| prints(seq).iter().any(|&print| print != prints(seq)[0]));
    let agreed = indexes.iter().rev().copied().find(|&seq| {
        all.len() > 1 && prints(seq).len() == all.len() && differ.is_none_or(|differ| seq < differ)
    });
    let after = |differ: u64| {
        let these: Vec<_> = all.iter().filter(|who| at(who, differ).is_some()).collect();
        let before = indexes.iter().rev().copied().filter(|&seq| seq < differ);
        before.into_iter().find(|&seq| these.iter().all(|who| at(who, seq).is_some()))
    };
    (agreed, differ.map(|differ| (differ, after(differ))))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_reported_is_compared_as_far_as_it_is_kept(steps in prop::collection::vec(said(), 1..16)) {
        let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16).workers(3));
        let mut producer = desk.producer("p");
        let mut workers: Vec<Worker> = ["a", "b", "c"].iter().map(|name| desk.worker(name)).collect();
        let mut spoken: Vec<Spoken> = (0..3).map(|_| Spoken::default()).collect();
        for step in steps {
            match step {
                Said::Commands { count, strides } => for n in 0..count {
                    let [a, b, c] = &mut workers[..] else { unreachable!() };
                    let seq = one_more(&mut desk, &mut producer, &mut [a, b, c]);
                    for (who, worker) in workers.iter_mut().enumerate() {
                        if n % strides[who] != 0 || strides[who] == usize::MAX {
                            continue;
                        }
                        let print = seq.get() * 2 + u64::from(spoken[who].is_wrong);
                        prop_assert_eq!(worker.report(print), Ok(seq));
                        spoken[who].last.push_back((seq.get(), print));
                        if spoken[who].last.len() > 255 {
                            spoken[who].last.pop_front();
                        }
                    }
                },
                Said::Turns { who } => spoken[who].is_wrong ^= true,
                Said::Rejoins { who, dies } => {
                    let name = workers[who].name().to_owned();
                    let old = workers.remove(who);
                    if dies { old.fall() } else { old.leave() }
                    workers.insert(who, desk.worker(&name));
                    spoken[who] = Spoken::default();
                }
            }
            let found = desk.region.agreement();
            let diverged = found.divergence.map(|at| (at.seq.get(), at.after.map(Seq::get)));
            prop_assert_eq!((found.agreed.map(Seq::get), diverged), by_definition(&spoken));
        }
    }
}

// ---- barriers ------------------------------------------------------------------------------------------------

/// One look.
fn look(region: &Region, seq: Seq) -> Result<(), ApplyError> {
    region.wait_applied(seq, Instant::now())
}

/// Who is behind at one look, and where.
fn behind(region: &Region, seq: Seq) -> Vec<(String, u64)> {
    match look(region, seq) {
        Ok(()) => Vec::new(),
        Err(ApplyError::Late { behind, .. }) => {
            behind.iter().map(|who| (who.name.to_string(), who.next.get())).collect()
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn who_has_not_applied_an_index_is_named_with_its_place() {
    let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16));
    let (mut quick, mut slow) = (desk.worker("quick"), desk.worker("slow"));
    let mut producer = desk.producer("p");
    let region = desk.region.clone();
    let stands = one_more(&mut desk, &mut producer, &mut [&mut slow]).plus(1);
    let seq = one_more(&mut desk, &mut producer, &mut [&mut quick]);
    assert_eq!(behind(&region, seq), [("slow".to_owned(), stands.get())]);
    let error = look(&region, seq).unwrap_err();
    let pid = std::process::id();
    let expected = format!(
        "index {seq} is not applied by all: worker \"slow\" (slot {}, pid {pid}) stands at {stands}",
        slow.slot()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(behind(&region, Seq::new(stands.get() - 1)), [], "what is before was applied");
    // It has applied the last one only when it comes back.
    assert_eq!(slow.poll().unwrap().map(|event| event.seq()), Some(seq));
    assert_eq!(behind(&region, seq), [("slow".to_owned(), stands.get())]);
    assert!(slow.poll().unwrap().is_none());
    assert_eq!(look(&region, seq), Ok(()));
    assert_eq!(producer.wait_applied(seq, Instant::now()), Ok(()));
    // What is to come is not in the order, and nobody is blamed for it.
    let error = look(&region, seq.plus(1)).unwrap_err();
    assert!(matches!(&error, ApplyError::Late { behind, .. } if behind.is_empty()), "{error:?}");
    assert!(error.to_string().ends_with(&format!("the order ends at {}", seq.plus(1))), "{error}");
}

#[test]
fn an_index_is_not_waited_for_with_who_joined_after_it() {
    let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16));
    let mut old = desk.worker("old");
    let mut producer = desk.producer("p");
    let seq = one_more(&mut desk, &mut producer, &mut [&mut old]);
    producer.try_submit(0, b"y").unwrap();
    desk.turn();
    let new = desk.worker("new");
    assert!(new.next() <= seq.plus(1) && new.first() > seq.plus(1), "it is yet to fold, and gates there");
    assert_eq!(behind(&desk.region, seq.plus(1)), [("old".to_owned(), seq.get() + 1)]);
    while old.poll().unwrap().is_some() {}
    assert_eq!(look(&desk.region, seq.plus(1)), Ok(()));
    let first = new.first();
    assert_eq!(
        behind(&desk.region, first),
        [("new".to_owned(), new.next().get())],
        "from its first on it counts"
    );
}

#[test]
fn who_dies_while_it_is_waited_for_stops_counting_and_its_successor_counts_if_it_gets_it() {
    let region = Region::anonymous(&tiny().lane_cells(16).order_slots(16)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut lives = Worker::join(&region, "lives").unwrap();
    let dies = Worker::join(&region, "dies").unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let index = producer.submit(0, b"x").unwrap();
    let Sequenced::At(seq) = producer.wait_sequenced(index).unwrap() else { panic!("just now") };
    while lives.poll().unwrap().is_some() {}
    assert_eq!(behind(&region, seq), [("dies".to_owned(), dies.next().get())]);
    thread::scope(|scope| {
        let waits = scope.spawn(|| region.wait_applied(seq, Instant::now() + Duration::from_secs(300)));
        dies.fall();
        assert_eq!(waits.join().unwrap(), Ok(()));
    });
    sequencer.stop().unwrap();
}

#[test]
fn where_nobody_works_what_is_held_waits_for_who_comes() {
    let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16));
    let mut producer = desk.producer("p");
    producer.try_submit(0, b"x").unwrap();
    desk.turn();
    let (region, seq) = (desk.region.clone(), Seq::new(1));
    let error = look(&region, seq).unwrap_err();
    assert_eq!(error.to_string(), "index 1 is not applied by all: no worker");
    let mut worker = desk.worker("w");
    assert_eq!(behind(&region, seq), [("w".to_owned(), 0)]);
    // Its death leaves the index to the next one.
    worker.poll().unwrap();
    worker.fall();
    worker = desk.worker("next");
    assert_eq!(behind(&region, seq), [("next".to_owned(), 0)]);
    while worker.poll().unwrap().is_some() {}
    assert_eq!(look(&region, seq), Ok(()));
    worker.leave();
    desk.turn();
    assert!(region.snapshot().workers.is_empty());
    assert_eq!(look(&region, seq), Ok(()), "those who worked had passed it");
}

#[test]
fn what_is_discarded_is_waited_for_with_nobody() {
    let mut desk = Desk::new(&tiny().without_workers(WithoutWorkers::Discard));
    let mut producer = desk.producer("p");
    for _ in 0..8 {
        producer.submit_deadline(0, b"x", Instant::now()).map(drop).unwrap_or_else(|_| desk.turn());
        desk.turn();
    }
    let next = desk.region.snapshot().anchor;
    assert!(next > Seq::ZERO);
    assert_eq!(look(&desk.region, Seq::ZERO), Ok(()));
}

#[test]
fn an_index_behind_the_end_is_not_waited_for() {
    let region = Region::anonymous(&tiny()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    sequencer.close().unwrap();
    let late = Instant::now() + Duration::from_secs(300);
    let next = region.snapshot().next;
    assert_eq!(region.wait_applied(next, late), Err(ApplyError::Closed { seq: next, next }));
    let end = Seq::new(next.get() - 1);
    assert_eq!(behind(&region, end), [("w".to_owned(), worker.next().get())]);
    while worker.poll().unwrap().is_some() {}
    assert_eq!(region.wait_applied(end, late), Ok(()));
}

#[test]
fn a_worker_that_waits_releases_what_it_had_and_does_not_wait_for_itself() {
    let mut desk = Desk::new(&tiny().lane_cells(16).order_slots(16));
    let mut worker = desk.worker("w");
    let by_hand = JoinOptions::new().release_by_hand(true);
    let mut hand = desk.attach(|region| Worker::join_with(region, "hand", &by_hand).unwrap());
    let mut producer = desk.producer("p");
    let late = || Instant::now() + Duration::from_secs(300);
    producer.try_submit(0, b"x").unwrap();
    desk.turn();
    let seq = Seq::new(desk.region.snapshot().next.get() - 1);
    // It has not received it, and would not while it waits.
    let released = worker.next();
    assert_eq!(worker.wait_applied(seq, late()), Err(ApplyError::Own { seq, released }));
    for worker in [&mut worker, &mut hand] {
        while worker.poll().unwrap().unwrap().seq() < seq {}
    }
    let held = Seq::new(match hand.wait_applied(seq, late()) {
        Err(ApplyError::Own { released, .. }) => released.get(),
        other => panic!("{other:?}"),
    });
    assert!(held <= seq);
    let error = worker.wait_applied(seq, Instant::now()).unwrap_err();
    assert_eq!(
        behind(&desk.region, seq),
        [("hand".to_owned(), held.get())],
        "its own gate is past it: {error}"
    );
    hand.release();
    assert_eq!(hand.wait_applied(seq, late()), Ok(()));
    assert_eq!(worker.wait_applied(seq, late()), Ok(()));
    // What was before it joined does not concern it.
    let mut new = desk.worker("new");
    for worker in [&mut worker, &mut hand] {
        while worker.poll().unwrap().is_some() {}
    }
    assert!(new.next() <= seq.plus(1));
    assert_eq!(new.wait_applied(seq, late()), Ok(()));
}

#[test]
fn all_can_wait_for_each_other_and_none_goes_on_before_all_have_come() {
    const WORKERS: usize = 3;
    let region = Region::anonymous(&Config::new().workers(WORKERS as u64)).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let workers: [Worker; WORKERS] = ["a", "b", "c"].map(|name| Worker::join(&region, name).unwrap());
    let mut producer = Producer::attach(&region, "p").unwrap();
    let (ready, rounds) = (AtomicU64::new(0), if long() { 2_000 } else { 100 });
    thread::scope(|scope| {
        let threads = workers.map(|mut worker| {
            let ready = &ready;
            scope.spawn(move || {
                for round in 0..rounds {
                    let seq = loop {
                        if let Event::Command(command) = worker.recv().unwrap() {
                            break command.seq;
                        }
                    };
                    ready.fetch_add(1, Ordering::Relaxed);
                    worker.wait_applied(seq, Instant::now() + Duration::from_secs(300)).unwrap();
                    let came = ready.load(Ordering::Relaxed);
                    assert!(came >= (round + 1) * WORKERS as u64, "round {round}: only {came} had come");
                }
            })
        });
        for _ in 0..rounds {
            producer.submit(0, b"x").unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
