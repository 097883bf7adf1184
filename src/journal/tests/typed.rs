//! Commands of a type of one's own: a receiver that comes late is told what one was that was there from the start.

use std::time::Instant;

use tempfile::TempDir;

use super::*;
use crate::channel::{Channel, Event, Receiver, Sender};
use crate::journal::{Journal, JournalOptions};
use crate::{AttachOptions, Config, JoinOptions, Region, Sequencer, SequencerConfig};

const LONG: Duration = Duration::from_secs(60);

/// What is told at an index.
type Told = (Seq, String);

fn told(event: &Event<'_, String>) -> Told {
    let what = match event {
        Event::Command(command) => format!("{} {}", command.kind(), command.decode().unwrap()),
        other => format!("{other:?}"),
    };
    (event.seq(), what)
}

fn take(receiver: &mut Receiver<String>, into: &mut Vec<Told>) {
    while let Some(event) = receiver.poll().unwrap() {
        into.push(told(&event));
    }
}

/// From each index on: the incarnations, and nothing of a controller that was superseded; and it goes on as the other.
#[test]
fn a_late_receiver_is_told_what_one_from_the_start_was() {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("journal");
    // Lanes so small that what all have passed is soon gone.
    let config = Config::new().lane_cells(16).lane_bytes(8 << 10).order_slots(64).producers(4).workers(4);
    let region = Region::anonymous(&config).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let options = JournalOptions::new().segment_bytes(8 << 10).timeout(LONG);
    let mut journal = Journal::open(&region, &dir, &options).unwrap();
    let channel = Channel::<String>::attach(&region);
    let (attach, join) = (AttachOptions::new().timeout(LONG), JoinOptions::new().timeout(LONG));
    let mut early = channel.join_with("early", &join).unwrap();
    let mut had = Vec::new();
    let injector = channel.inject_with("own", &attach).unwrap();
    let mut old: Option<Sender<String>> = None;
    let mut round = |n: u64, each: &mut dyn FnMut()| {
        let mut current = channel.open_with(&format!("c{}", n % 2), n, &attach).unwrap();
        if let Some(mut old) = old.take() {
            // As one that was stopped between its look and its ticket.
            old.blindly().submit(0, b"\x04void").unwrap();
        }
        current.send(&format!("first of {n}")).unwrap();
        current.initialization_complete().unwrap();
        for m in 0..10 {
            injector.try_send(&format!("own {n}.{m}")).unwrap();
            let index = current.send(&"x".repeat((n * 97 % 700) as usize)).unwrap();
            current.wait_sequenced(index).unwrap();
            while journal.poll().unwrap() > 0 {}
            each();
        }
        old = Some(current);
    };
    (0..20).for_each(|n| round(n, &mut || take(&mut early, &mut had)));
    assert!(region.snapshot().anchor > Seq::new(200), "most of it is gone from the region");
    assert!(early.worker().superseded() >= 19);
    let first = early.worker().first();
    for (n, from) in (20..).zip([0, 1, 57, 200, had.len() as u64].map(|back| first.plus(back))) {
        let mut late = Vec::new();
        let mut receiver =
            channel.join_from("late", &join, &dir, from, |event| late.push(told(&event))).unwrap();
        round(n, &mut || {
            take(&mut early, &mut had);
            take(&mut receiver, &mut late);
        });
        let until = Instant::now() + LONG;
        while receiver.worker().next() < early.worker().next() {
            assert!(Instant::now() < until);
            take(&mut receiver, &mut late);
        }
        let expected: Vec<_> = had.iter().filter(|(seq, _)| *seq >= from).cloned().collect();
        let differs = late.iter().zip(&expected).find(|(late, expected)| late != expected);
        assert_eq!((differs, late.len()), (None, expected.len()), "from {from}");
        assert_eq!(receiver.incarnation(), early.incarnation());
        assert_eq!(receiver.controller(), early.controller());
    }
}
