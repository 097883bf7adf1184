//! How much of a flood comes before the commands of others: from the moment in which a ticket is in, a worker gets at
//! most as many commands of each other lane before it as that lane has cells, whatever their producers do meanwhile.
//!
//! What counts is what the worker had received in that moment: its lane's cells are free again only when every worker
//! has passed them, so all of a lane that it has not received, queued or in the order, fits into the lane. And what
//! is queued later comes later.

use super::*;

const CELLS: u64 = 64;
const FLOODS: usize = 3;
/// The kind of the command that the floods must not hold up; theirs are their numbers.
const QUIET: u16 = 9;

/// Fills a lane up to `most` more commands, or until it is full; how many that were.
fn fill(flood: &mut Producer, kind: u16, batch: usize, most: u64) -> u64 {
    let commands = vec![(kind, &[0; 8][..]); batch];
    let mut count = 0;
    while count + batch as u64 <= most && flood.try_submit_batch(&commands).is_ok() {
        count += batch as u64;
    }
    while count < most && flood.try_submit(kind, &[0; 8]).is_ok() {
        count += 1;
    }
    count
}

/// Receives and counts what is there, up to the quiet producer's command; whether that was there.
fn drain_until_quiet(worker: &mut Worker, received: &mut [u64; FLOODS]) -> bool {
    while let Some(event) = worker.poll().unwrap() {
        match event {
            Event::Command(command) if command.kind == QUIET => return true,
            Event::Command(command) => received[usize::from(command.kind)] += 1,
            _ => {}
        }
    }
    false
}

#[test]
fn what_comes_before_a_queued_command_is_a_lane_of_each_flood_at_most() {
    for (slots, budget, batch) in
        [(1024, 1, 1), (1024, 256, 1), (1024, 1, 7), (1024, 64, 32), (8, 1, 1), (8, 64, 7)]
    {
        let config =
            Config::new().order_slots(slots).lane_cells(CELLS).producers(FLOODS as u64 + 1).workers(1);
        let mut desk = Desk::new(&config);
        let mut floods = ["a", "b", "c"].map(|name| desk.producer(name));
        let (mut quiet, mut worker) = (desk.producer("quiet"), desk.worker("w"));
        let (mut submitted, mut received) = ([0; FLOODS], [0; FLOODS]);
        for round in 0..100 {
            let most = CELLS - round % 3 * CELLS / 4;
            for (kind, flood) in floods.iter_mut().enumerate() {
                submitted[kind] += fill(flood, kind as u16, batch, most);
            }
            quiet.try_submit(QUIET, b"").unwrap();
            let (before, had) = (submitted, received);
            loop {
                // The floods go on as soon as there is room, the last one first: its tickets are around the quiet one.
                for (kind, flood) in floods.iter_mut().enumerate().rev() {
                    submitted[kind] += fill(flood, kind as u16, batch, CELLS);
                }
                desk.sequencer.poll(budget).unwrap();
                if drain_until_quiet(&mut worker, &mut received) {
                    break;
                }
            }
            let case = format!("{slots} slots, budget {budget}, batches of {batch}, round {round}");
            assert_eq!(received, before, "{case}: what was queued before comes before, and nothing else");
            let waited: [u64; FLOODS] = std::array::from_fn(|flood| received[flood] - had[flood]);
            assert!(waited.iter().all(|&count| count <= CELLS), "{case}: {waited:?}");
            // It is as much as that if nothing of it has been received.
            assert!(round > 0 || waited == [CELLS; FLOODS], "{case}: {waited:?}");
        }
    }
}

/// What a worker has received of each flood.
type Received = [AtomicU64; FLOODS];

fn read(counts: &[AtomicU64; FLOODS]) -> [u64; FLOODS] {
    counts.each_ref().map(|count| count.load(Ordering::SeqCst))
}

/// What the quiet producer saw after a submit: how far each flood had gone, and each worker with each flood.
struct Sight {
    begun: [u64; FLOODS],
    received: [[u64; FLOODS]; 2],
}

#[test]
fn between_threads_it_is_no_more_than_that_for_every_worker() {
    for assist in [false, true] {
        let config = Config::new().lane_cells(CELLS).producers(FLOODS as u64 + 1).workers(2);
        let region = Region::anonymous(&config).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new().assist(assist)).unwrap();
        let options = JoinOptions::new().release_every(1);
        let workers = ["v", "w"].map(|name| Worker::join_with(&region, name, &options).unwrap());
        let floods = ["a", "b", "c"].map(|name| Producer::attach(&region, name).unwrap());
        let mut quiet = Producer::attach(&region, "quiet").unwrap();

        let over = AtomicBool::new(false);
        let begun: [AtomicU64; FLOODS] = Default::default();
        let received: [Received; 2] = Default::default();
        thread::scope(|scope| {
            let flooding: Vec<_> = (0..)
                .zip(floods)
                .zip(&begun)
                .map(|((kind, flood), begun)| {
                    let over = &over;
                    scope.spawn(move || flood_until(over, flood, kind, begun))
                })
                .collect();
            let working: Vec<_> = workers
                .into_iter()
                .zip(&received)
                .map(|(worker, received)| {
                    let is_flooded = || over.load(Ordering::Relaxed) || is_full(&begun, received);
                    scope.spawn(move || counts_at_quiet(worker, received, is_flooded))
                })
                .collect();
            let sights: Vec<Sight> = (0..300)
                .map(|_| {
                    let index = quiet.submit(QUIET, b"").unwrap();
                    let sight = Sight { begun: read(&begun), received: received.each_ref().map(read) };
                    quiet.wait_sequenced(index).unwrap();
                    sight
                })
                .collect();
            over.store(true, Ordering::Relaxed);
            flooding.into_iter().for_each(|flood| flood.join().unwrap());
            sequencer.close().unwrap();
            for (worker, counts) in working.into_iter().enumerate().map(|(n, w)| (n, w.join().unwrap())) {
                check(&sights, &counts, worker);
            }
        });
    }
}

/// Submits as fast as there is room, and says before how far it goes.
fn flood_until(over: &AtomicBool, mut flood: Producer, kind: u16, begun: &AtomicU64) {
    let mut sizes = [1, 1, 1, 5, 1, 16].into_iter().cycle();
    while !over.load(Ordering::Relaxed) {
        let batch = vec![(kind, &[0; 8][..]); sizes.next().unwrap()];
        begun.fetch_add(batch.len() as u64, Ordering::SeqCst);
        flood.submit_batch(&batch).unwrap();
    }
}

/// Whether most of each flood's lane is taken. If the slowest worker waits, it gets there: what that has not released yet
/// is one command.
fn is_full(begun: &[AtomicU64; FLOODS], received: &Received) -> bool {
    read(begun).iter().zip(read(received)).all(|(begun, received)| *begun >= received + CELLS * 3 / 4)
}

/// Receives until the end, each event when all is flooded; for each of the quiet producer's commands, what came of each
/// flood before.
fn counts_at_quiet(
    mut worker: Worker,
    received: &Received,
    is_flooded: impl Fn() -> bool,
) -> Vec<[u64; FLOODS]> {
    let mut counts = Vec::new();
    loop {
        while !is_flooded() {
            thread::yield_now();
        }
        match worker.recv().unwrap() {
            Event::Command(command) if command.kind == QUIET => counts.push(read(received)),
            Event::Command(command) => {
                received[usize::from(command.kind)].fetch_add(1, Ordering::SeqCst);
            }
            Event::Closed { .. } => return counts,
            _ => {}
        }
    }
}

fn check(sights: &[Sight], counts: &[[u64; FLOODS]], worker: usize) {
    assert_eq!(sights.len(), counts.len());
    let mut most = 0;
    for (n, (sight, counts)) in sights.iter().zip(counts).enumerate() {
        for (flood, &count) in counts.iter().enumerate() {
            let (seen, begun) = (sight.received[worker][flood], sight.begun[flood]);
            let case = format!("worker {worker} got {count} of flood {flood} before command {n}");
            assert!(count <= seen + CELLS, "{case}, and had {seen} when that was queued");
            assert!(count <= begun, "{case}, and {begun} were begun then");
            most = most.max(count.saturating_sub(seen));
        }
    }
    println!("worker {worker}: at most {most} of a flood came before a command that was queued");
    assert!(most > 0, "there was no flood");
}
