//! Any sequence of steps of producers, workers and sequencers, beside what must come out.

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Submit { who: usize, len: usize },
    Batch { who: usize, lens: Vec<usize> },
    Claim { who: usize, len: usize, commit: bool },
    Turn { budget: usize },
    Poll { who: usize, events: usize },
    Takeover,
    Rejoin { who: usize },
}

fn step(max: usize) -> impl Strategy<Value = Step> {
    let len = move || {
        prop_oneof![0..=max, prop::sample::select(vec![0, 1, 39, 40, 41, 63, 64, 65, max]), 0..60usize]
    };
    let who = 0..2usize;
    prop_oneof![
        8 => (who.clone(), len()).prop_map(|(who, len)| Step::Submit { who, len }),
        1 => (who.clone(), max + 1..9000).prop_map(|(who, len)| Step::Submit { who, len }),
        1 => (who.clone(), max + 1..9000, any::<bool>()).prop_map(|(who, len, commit)| Step::Claim { who, len, commit }),
        3 => (who.clone(), prop::collection::vec(len(), 0..4)).prop_map(|(who, lens)| Step::Batch { who, lens }),
        3 => (who.clone(), len(), any::<bool>()).prop_map(|(who, len, commit)| Step::Claim { who, len, commit }),
        6 => (1..4usize).prop_map(|budget| Step::Turn { budget }),
        8 => (who.clone(), 0..6usize).prop_map(|(who, events)| Step::Poll { who, events }),
        1 => Just(Step::Takeover),
        1 => who.prop_map(|who| Step::Rejoin { who }),
    ]
}

/// What must come out: per producer what was submitted, and the one order as the first worker to get there saw
/// it.
#[derive(Default)]
struct Oracle {
    submitted: [VecDeque<Vec<u8>>; 2],
    order: Vec<(u64, u64, Vec<u8>, Digest)>,
}

impl Oracle {
    fn sees(&mut self, first: u64, command: &Command<'_>) {
        let at = (command.seq.get() - first) as usize;
        let seen = (command.producer, command.index, command.payload.to_vec(), command.digest);
        if at >= self.order.len() {
            // Places between are the sequencer's own commands.
            self.order.resize(at, (0, 0, Vec::new(), Digest(0)));
            let who = command.producer as usize - 1;
            assert_eq!(self.submitted[who].pop_front().as_ref(), Some(&seen.2));
            self.order.push(seen);
        } else {
            assert_eq!(self.order[at], seen);
        }
    }
}

fn play(config: &Config, first: u64, steps: Vec<Step>) {
    let mut desk = Desk::new(&config.clone().first_index(first));
    // With two slots each newcomer needs the one before to be passed.
    let mut w0 = desk.worker("w0");
    let mut passed = |desk: &mut Desk| {
        while w0.poll().unwrap().is_some() {}
        desk.turn();
    };
    passed(&mut desk);
    let p0 = desk.producer("p0");
    passed(&mut desk);
    let p1 = desk.producer("p1");
    passed(&mut desk);
    let w1 = desk.worker("w1");
    let (mut producers, mut workers) = ([p0, p1], [w0, w1]);
    let mut oracle = Oracle::default();
    let mut names = 2;
    let accepted =
        |oracle: &mut Oracle, who: usize, payloads: &[Vec<u8>], result: Result<(), SubmitError>| match result
        {
            Ok(()) => oracle.submitted[who].extend(payloads.iter().cloned()),
            Err(SubmitError::Full(_) | SubmitError::BatchTooLarge { .. } | SubmitError::EmptyBatch) => {}
            Err(other) => panic!("{other}"),
        };
    let see = |oracle: &mut Oracle, worker: &mut Worker, events: usize| {
        let handle = |event: Event<'_>| {
            if let Event::Command(command) = event {
                oracle.sees(first, &command);
            }
        };
        worker.poll_batch(events, handle).unwrap()
    };
    // A look that finds nothing frees room, so only the second in a row is the end.
    let run_dry = |desk: &mut Desk, workers: &mut [Worker], oracle: &mut Oracle| {
        let mut idle = 0;
        while idle < 2 {
            desk.turn();
            let seen: usize = workers.iter_mut().map(|w| see(oracle, w, 64)).sum();
            idle = if seen == 0 { idle + 1 } else { 0 };
        }
    };
    for (salt, step) in steps.into_iter().enumerate() {
        match step {
            Step::Submit { who, len } => {
                let payload = bytes(len, salt);
                let result = producers[who].try_submit(1, &payload).map(drop);
                accepted(&mut oracle, who, &[payload], result);
            }
            Step::Batch { who, lens } => {
                let payloads: Vec<_> = lens.iter().map(|&len| bytes(len, salt + len)).collect();
                let commands: Vec<_> = payloads.iter().map(|p| (2, &p[..])).collect();
                let result = producers[who].try_submit_batch(&commands).map(drop);
                accepted(&mut oracle, who, &payloads, result);
            }
            Step::Claim { who, len, commit } => match producers[who].try_claim(3, len) {
                Ok(mut claim) => {
                    claim.copy_from_slice(&bytes(len, salt));
                    if commit {
                        claim.commit().unwrap();
                        oracle.submitted[who].push_back(bytes(len, salt));
                    }
                }
                Err(error) => assert!(matches!(error, SubmitError::Full(_)), "{error}"),
            },
            Step::Turn { budget } => drop(desk.sequencer.poll(budget).unwrap()),
            Step::Poll { who, events } => drop(see(&mut oracle, &mut workers[who], events)),
            Step::Takeover => {
                let Desk { region, sequencer } = desk;
                drop(sequencer);
                desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
            }
            Step::Rejoin { who } => {
                // Its place is taken by another name; it sees all that it is told from there on.
                names += 1;
                run_dry(&mut desk, &mut workers, &mut oracle);
                let name = format!("w{names}");
                let old = std::mem::replace(&mut workers[who], desk.worker(&name));
                old.leave();
            }
        }
    }
    // At the end everything that was accepted comes out, at both.
    run_dry(&mut desk, &mut workers, &mut oracle);
    assert!(oracle.submitted.iter().all(VecDeque::is_empty), "lost: {:?}", oracle.submitted);
    assert_eq!((workers[0].next(), workers[0].digest()), (workers[1].next(), workers[1].digest()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_keeps_the_promises(
        steps in prop::collection::vec(step(128), 1..120),
        slots in prop::sample::select(vec![2u64, 4, 64]),
        cells in prop::sample::select(vec![2u64, 4, 8]),
        first in prop::sample::select(vec![0u64, (1 << 32) - 20, (1 << 63) - 1000]),
    ) {
        let config = tiny().order_slots(slots).lane_cells(cells).lane_bytes(256);
        play(&config, first, steps);
    }
}
