//! Damage: random words of a region are overwritten, then everything that reads one is tried on it. Success or an
//! error; no panic, no signal, no hang, no unbounded memory.
//!
//! Seeds run in child processes, so that one that is killed or hangs can be named. `SERIATIM_SEEDS` sets how many
//! (default 5,000), `SERIATIM_SEED` the first one; a failure says which seed it was.

mod common;
mod engine;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use engine::{Random, seed};
use seriatim::shared::Stamps;
use seriatim::{
    AttachOptions, Config, JoinOptions, Observer, Producer, Region, Sequencer, SequencerConfig,
    SequencerError, WithoutWorkers, Worker, inspect,
};

const PART: &str = "SERIATIM_DAMAGE";
/// Children at a time.
const CHILDREN: u64 = 2;
/// No seed takes this long unless it hangs.
const HANG: Duration = Duration::from_secs(60);
/// For answers that may never come.
const SOON: Duration = Duration::from_millis(15);

#[test]
fn a_damaged_region_gives_an_error_or_works_and_nothing_else() {
    let seeds: u64 = env::var("SERIATIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000);
    // The same seeds each time, so that what passed goes on passing; others are for SERIATIM_SEED.
    let first = env::var("SERIATIM_SEED").map_or(1, |_| seed());
    let started = Instant::now();
    let share = seeds.div_ceil(CHILDREN);
    let outcomes: Vec<Outcomes> = thread::scope(|scope| {
        let children: Vec<_> =
            (0..CHILDREN).map(|i| scope.spawn(move || play(first + i * share, share))).collect();
        children.into_iter().map(|child| child.join().unwrap()).collect()
    });
    let sum = |of: fn(&Outcomes) -> u64| outcomes.iter().map(of).sum::<u64>();
    println!(
        "{} seeds from {first}: {} refused to attach, {} to sequence, {} served and closed, {} stuck or met \
         damage later; {} s",
        share * CHILDREN,
        sum(|o| o.refused),
        sum(|o| o.unsequenced),
        sum(|o| o.closed),
        sum(|o| o.later),
        started.elapsed().as_secs()
    );
    assert!(sum(|o| o.refused) > 0 && sum(|o| o.closed) > 0);
}

/// How the seeds of a child ended.
#[derive(Debug, Default)]
struct Outcomes {
    refused: u64,
    unsequenced: u64,
    closed: u64,
    later: u64,
}

// Words of the table that a child shares with the test.
const AT: usize = 0;
const REFUSED: usize = 1;
const UNSEQUENCED: usize = 2;
const CLOSED: usize = 3;
const LATER: usize = 4;

/// Runs seeds in a child and watches it.
fn play(first: u64, count: u64) -> Outcomes {
    let table = Stamps::create(8).unwrap();
    table.set(AT, first);
    // A number from the region that is taken for a size fails here instead of taking the machine down.
    let limited = "ulimit -v 4000000; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited]).arg(env::current_exe().unwrap());
    command.args(["--exact", "part", "--nocapture", "--test-threads", "1"]);
    command.env(PART, format!("{first} {count} {}", table.path().display()));
    command.env("RUST_BACKTRACE", "0").stdout(Stdio::null());
    let mut child = Guard(command.spawn().expect("the test program starts"));
    let mut seen = (first, Instant::now());
    loop {
        let now = table.get(AT);
        if let Some(status) = child.0.try_wait().unwrap() {
            assert!(status.success(), "seed {now}: {status}");
            break;
        }
        if now != seen.0 {
            seen = (now, Instant::now());
        }
        assert!(seen.1.elapsed() < HANG, "seed {now} hangs");
        thread::sleep(Duration::from_millis(5));
    }
    Outcomes {
        refused: table.get(REFUSED),
        unsequenced: table.get(UNSEQUENCED),
        closed: table.get(CLOSED),
        later: table.get(LATER),
    }
}

/// A child that ends with its test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a child does. Does nothing as a test.
#[test]
fn part() {
    let Ok(text) = env::var(PART) else { return };
    let words: Vec<&str> = text.split(' ').collect();
    let (first, count): (u64, u64) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let table = Stamps::open(Path::new(words[2])).unwrap();
    // The sequencer's thread panics by itself: what matters is that anything panics at all.
    let panics: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let noted = Arc::clone(&panics);
    std::panic::set_hook(Box::new(move |info| {
        noted.lock().unwrap().insert(info.to_string());
    }));
    let folder = common::scratch();
    let images = images(folder.path());
    let mut failed = 0;
    for seed in first..first + count {
        table.set(AT, seed);
        let before = panics.lock().unwrap().clone();
        let ended = catch_unwind(AssertUnwindSafe(|| try_one(seed, folder.path(), &images)));
        let after = panics.lock().unwrap();
        for panic in after.difference(&before) {
            eprintln!("seed {seed}: {panic}");
            failed += 1;
        }
        if let Ok(word) = ended {
            table.set(word, table.get(word) + 1);
        }
    }
    if failed > 0 {
        std::process::exit(1);
    }
}

fn config() -> Config {
    Config::new().order_slots(8).lane_cells(8).lane_bytes(512).producers(3).workers(3)
}

/// Regions as they are left: new, closed, with everybody killed in the middle of work.
fn images(folder: &Path) -> Vec<Vec<u8>> {
    let mut images = Vec::new();
    let path = folder.join("new");
    drop(Region::create(&path, &config()).unwrap());
    images.push(fs::read(&path).unwrap());
    let path = folder.join("discarding");
    let region = Region::create(&path, &config().without_workers(WithoutWorkers::Discard)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut producer = Producer::attach(&region, "p0").unwrap();
    for n in 0..40 {
        producer.submit(n, &[n as u8; 60]).unwrap();
    }
    images.push(fs::read(&path).unwrap());
    drop((producer, sequencer));
    for life in 0..4 {
        let path = folder.join(format!("life-{life}"));
        let region = Region::create(&path, &config()).unwrap();
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let mut w0 = Worker::join(&region, "w0").unwrap();
        let mut w1 = Worker::join(&region, "w1").unwrap();
        let mut p0 = Producer::attach(&region, "p0").unwrap();
        let mut p1 = Producer::attach(&region, "p1").unwrap();
        for n in 0..40 + life {
            let bytes = vec![n as u8; n * 37 % 250];
            p0.submit(1, &bytes).unwrap();
            p1.submit_batch(&[(2, &bytes[..bytes.len() / 2]), (3, b"x")]).unwrap();
            p1.wait_sequenced(p1.next_index() - 1).unwrap();
            let drain = |worker: &mut Worker| while worker.poll().unwrap().is_some() {};
            drain(&mut w0);
            if life != 2 || n < 39 {
                drain(&mut w1);
            }
            if n % 9 == 0 {
                images.push(fs::read(&path).unwrap());
            }
        }
        let mut room = p1.claim(4, 100).unwrap();
        room.fill(7);
        images.push(fs::read(&path).unwrap());
        drop(room);
        drop((w0, p0));
        if life == 1 {
            sequencer.stop().unwrap();
            p1.submit(5, b"nobody has ordered this").unwrap();
        } else {
            sequencer.close().unwrap();
        }
        images.push(fs::read(&path).unwrap());
    }
    images
}

/// Damages an image and tries everything on it; the word of the table to count it under.
fn try_one(seed: u64, folder: &Path, images: &[Vec<u8>]) -> usize {
    let mut random = Random(seed);
    let mut image = images[random.below(images.len() as u64) as usize].clone();
    damage(&mut random, &mut image);
    let path = folder.join("damaged");
    // Another file each time: the one before may be mapped yet.
    let _ = fs::remove_file(&path);
    fs::write(&path, &image).unwrap();
    let _ = inspect(&path);
    let Ok(region) = Region::attach(&path) else { return REFUSED };
    look(&region);
    let mut bystander = Observer::attach(&region).ok();
    let watch = |observer: &mut Option<Observer>| {
        for _ in 0..100 {
            if !matches!(observer.as_mut().map(Observer::poll), Some(Ok(Some(_)))) {
                break;
            }
        }
    };
    watch(&mut bystander);
    let config = SequencerConfig::new().close_timeout(SOON);
    let sequencer = match Sequencer::spawn(&region, config) {
        Ok(sequencer) => sequencer,
        Err(SequencerError::Panicked(text)) => panic!("the sequencer panicked: {text}"),
        Err(_) => return UNSEQUENCED,
    };
    use_it(&mut random, &region);
    watch(&mut bystander);
    look(&region);
    match sequencer.close() {
        Ok(stats) if stats.closed => CLOSED,
        _ => LATER,
    }
}

fn look(region: &Region) {
    let snapshot = region.snapshot();
    let _ = (snapshot.living(), format!("{snapshot:?}"));
}

/// Joins, attaches, submits, receives, each for a moment at most.
fn use_it(random: &mut Random, region: &Region) {
    let name = |random: &mut Random, kind: char| format!("{kind}{}", random.below(4));
    let worker = Worker::join_with(region, &name(random, 'w'), &JoinOptions::new().timeout(SOON));
    let mut worker = worker.ok();
    let producer = Producer::attach_with(region, &name(random, 'p'), &AttachOptions::new().timeout(SOON));
    let mut producer = producer.ok();
    let mut receive = || {
        for _ in 0..200 {
            if !matches!(worker.as_mut().map(Worker::poll), Some(Ok(Some(_)))) {
                break;
            }
        }
    };
    receive();
    if let Some(producer) = &mut producer {
        for n in 0..12 {
            let bytes = vec![n as u8; random.below(257) as usize];
            let _ = producer.try_submit(n, &bytes);
            let _ = producer.try_submit_batch(&[(n, &bytes[..bytes.len() / 3]), (n, b"y")]);
            receive();
        }
        let _ = producer.submit_deadline(9, b"z", Instant::now() + SOON);
        receive();
        if let Some(last) = producer.next_index().checked_sub(1) {
            let _ = producer.wait_sequenced_deadline(last, Instant::now() + SOON);
        }
    }
    receive();
}

/// Overwrites all of a page.
fn flood(random: &mut Random, image: &mut [u8]) {
    let page = 1 + random.below(image.len() as u64 / 4096 - 1);
    let small = random.below(2) == 0;
    for word in image[page as usize * 4096..][..4096].chunks_exact_mut(8) {
        let new = if small { random.below(1 << 40) } else { random.next() };
        word.copy_from_slice(&new.to_le_bytes());
    }
}

/// Overwrites a few aligned words, most of them where something is written there.
fn damage(random: &mut Random, image: &mut [u8]) {
    // Half of the seeds leave the lanes and the workers alone, where much of what lies there is of no consequence.
    let words = if random.below(2) == 0 { 10 * 4096 } else { image.len() as u64 } / 8;
    let first = if random.below(12) == 0 { 0 } else { 4096 / 8 };
    let get = |image: &[u8], at: u64| {
        let at = at as usize * 8;
        u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
    };
    if random.below(10) == 0 {
        return flood(random, image);
    }
    for _ in 0..1 + random.below(10) {
        let mut at = first + random.below(words - first);
        // A word of zeroes is passed over, most of the time.
        for _ in 0..50 {
            if get(image, at) != 0 || random.below(20) == 0 {
                break;
            }
            at = first + random.below(words - first);
        }
        let old = get(image, at);
        let new = match random.below(8) {
            0 => random.next(),
            1 => old ^ 1 << random.below(64),
            2 => old.wrapping_add(1 + random.below(16)),
            3 => old.wrapping_sub(1 + random.below(16)),
            4 => 0,
            5 => u64::MAX >> random.below(64),
            6 => get(image, first + random.below(words - first)),
            _ => random.below(1 << 20),
        };
        image[at as usize * 8..][..8].copy_from_slice(&new.to_le_bytes());
    }
}
