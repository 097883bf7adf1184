//! Damage: random words of a region are overwritten, before or while it is in use, and everything that reads one is
//! tried on it; some files are shortened under those who use them. Success or an error; no panic, no signal, no hang,
//! no unbounded memory, no payload that is silently wrong.
//!
//! Seeds run in child processes, so that one that is killed or hangs can be named. `SERIATIM_SEEDS` sets how many
//! (default 5,000), `SERIATIM_SEED` the first one; a failure says which seed it was.

mod common;
mod damage;
mod engine;

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use damage::{End, Image, Trial, images};
use engine::{Random, seed};
use seriatim::shared::Stamps;
use seriatim::{Section, inspect};

const PART: &str = "SERIATIM_DAMAGE";
/// Children at a time: they wait, most of the time.
const CHILDREN: u64 = 4;
/// No seed takes this long unless it hangs.
const HANG: Duration = Duration::from_secs(60);
/// For answers that may never come.
const SOON: Duration = Duration::from_millis(15);
/// For every so many seeds the tool itself is run.
const TOOLS: u64 = 64;

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
         damage later; {} payloads were right; {} s",
        share * CHILDREN,
        sum(|o| o.refused),
        sum(|o| o.unsequenced),
        sum(|o| o.closed),
        sum(|o| o.later),
        sum(|o| o.right),
        started.elapsed().as_secs()
    );
    assert!(sum(|o| o.refused) > 0 && sum(|o| o.closed) > 0 && sum(|o| o.right) > 0);
}

/// How the seeds of a child ended.
#[derive(Debug, Default)]
struct Outcomes {
    refused: u64,
    unsequenced: u64,
    closed: u64,
    later: u64,
    right: u64,
}

// Words of the table that a child shares with the test.
const AT: usize = 0;
const REFUSED: usize = 1;
const UNSEQUENCED: usize = 2;
const CLOSED: usize = 3;
const LATER: usize = 4;
const RIGHT: usize = 5;

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
        right: table.get(RIGHT),
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
    let sections = inspect(folder.path().join("new")).unwrap().sections;
    let mut failed = 0;
    for seed in first..first + count {
        table.set(AT, seed);
        let before = panics.lock().unwrap().clone();
        let ended = catch_unwind(AssertUnwindSafe(|| try_one(seed, folder.path(), &images, &sections)));
        let after = panics.lock().unwrap();
        for panic in after.difference(&before) {
            eprintln!("seed {seed}: {panic}");
            failed += 1;
        }
        if let Ok((end, right)) = ended {
            let word = match end {
                End::Refused => REFUSED,
                End::Unsequenced => UNSEQUENCED,
                End::Closed => CLOSED,
                End::Later => LATER,
            };
            table.set(word, table.get(word) + 1);
            table.set(RIGHT, table.get(RIGHT) + right);
        }
    }
    if failed > 0 {
        std::process::exit(1);
    }
}

/// Damages an image, before or while it is in use, and tries everything on it.
fn try_one(seed: u64, folder: &Path, images: &[Image], sections: &[Section]) -> (End, u64) {
    let mut random = Random(seed);
    let targets = Targets::choose(&mut random, sections);
    // Who finds damaged lanes is to find something in them.
    let choice: Vec<&Image> = images.iter().filter(|image| image.holds || !targets.only_lanes).collect();
    let Image { bytes, known, .. } = choice[random.below(choice.len() as u64) as usize];
    let mut image = bytes.clone();
    let is_live = random.below(2) == 0;
    if !is_live {
        damage(&mut random, &mut image, &targets);
    }
    let path = folder.join("damaged");
    // Another file each time: the one before may be mapped yet.
    let _ = fs::remove_file(&path);
    fs::write(&path, &image).unwrap();
    if seed.is_multiple_of(TOOLS) {
        run_tools(&path);
    }
    let mut striker = Striker::new(&mut random, &path, image, is_live.then_some(&targets));
    let guard = striker.shortens;
    let beside = (is_live && !guard && !targets.only_lanes && random.below(4) == 0)
        .then(|| Beside::start(Random(random.next()), &path, sections));
    let mut trial = Trial {
        path: &path,
        known,
        // A shortened file has lost more than its lanes.
        only_lanes: targets.only_lanes && !guard,
        guard,
        soon: SOON,
        choose: &mut |limit| random.below(limit),
        strike: &mut || striker.strike(),
        right: 0,
    };
    let end = match trial.attach() {
        None => End::Refused,
        Some(region) => trial.serve(&region),
    };
    let right = trial.right;
    drop(beside);
    (end, right)
}

/// Runs the tool's commands that look at a region: each ends by itself, with one of its exit codes.
fn run_tools(path: &Path) {
    for command in ["inspect", "stat", "verify", "errors"] {
        for json in [&[][..], &["--json"]] {
            let mut tool = Command::new(env!("CARGO_BIN_EXE_seriatim"));
            let output = tool.arg(command).arg(path).args(json).output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            let holds = matches!(output.status.code(), Some(0..=2)) && !err.contains("panicked");
            assert!(holds, "{command}: {}: {err}", output.status);
        }
    }
}

/// The words that may be damaged.
struct Targets {
    words: Range<u64>,
    only_lanes: bool,
}

impl Targets {
    /// Most seeds leave the lanes and the workers alone, where much of what lies there is of no consequence; some
    /// touch nothing but the lanes, and then what is delivered must be what was submitted there.
    fn choose(random: &mut Random, sections: &[Section]) -> Targets {
        let begin = |name| find(sections, name).offset / 8;
        let (header, control, lanes, workers) =
            (begin("header"), begin("control"), begin("lanes"), begin("workers"));
        let end = sections.last().map_or(0, |last| (last.offset + last.bytes) / 8);
        let only_lanes = random.below(4) == 0;
        let first = if random.below(12) == 0 { header } else { control };
        let words = match random.below(3) {
            _ if only_lanes => lanes..workers,
            0 => first..end,
            _ => first..lanes,
        };
        Targets { words, only_lanes }
    }

    fn any(&self, random: &mut Random) -> u64 {
        self.words.start + random.below(self.words.end - self.words.start)
    }
}

fn find<'a>(sections: &'a [Section], name: &str) -> &'a Section {
    sections.iter().find(|section| section.name == name).expect("a section of that name")
}

/// Damages a file between the steps of who uses it.
struct Striker<'a> {
    random: Random,
    file: File,
    image: Vec<u8>,
    targets: Option<&'a Targets>,
    left: u64,
    shortens: bool,
}

impl<'a> Striker<'a> {
    fn new(random: &mut Random, path: &Path, image: Vec<u8>, targets: Option<&'a Targets>) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let (left, shortens) = (1 + random.below(10), targets.is_some() && random.below(8) == 0);
        Striker { random: Random(random.next()), file, image, targets, left, shortens }
    }

    fn strike(&mut self) {
        let Some(targets) = self.targets else { return };
        if self.left == 0 || self.random.below(3) != 0 {
            return;
        }
        self.left -= 1;
        if self.shortens && self.random.below(3) == 0 {
            let len = self.image.len() as u64;
            self.file.set_len(self.random.below(len + 1)).unwrap();
            if self.random.below(2) == 0 {
                self.file.set_len(len).unwrap();
            }
            return;
        }
        damage_file(&mut self.random, &self.file, &mut self.image, targets);
    }
}

/// Overwrites a word of a file that is in use, unless that has become too short for it. `image` is what was read of
/// it last.
fn damage_file(random: &mut Random, file: &File, image: &mut [u8], targets: &Targets) {
    let _ = file.read_at(image, 0);
    let (at, new) = wrong_word(random, image, targets);
    if (at + 1) * 8 <= file.metadata().unwrap().len() {
        file.write_all_at(&new.to_le_bytes(), at * 8).unwrap();
    }
}

/// Damages all but the lanes from a thread of its own, while others work: who reads payloads here compares them when
/// they have been checked, and nobody is to change them in between.
struct Beside {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    fn start(mut random: Random, path: &Path, sections: &[Section]) -> Beside {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut image = fs::read(path).unwrap();
        let words = find(sections, "control").offset / 8..find(sections, "lanes").offset / 8;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let targets = Targets { words, only_lanes: false };
            for _ in 0..1 + random.below(20) {
                // So that they come all along, and not all before anybody has begun.
                thread::sleep(Duration::from_micros(random.below(500)));
                if seen.load(Ordering::Relaxed) {
                    break;
                }
                damage_file(&mut random, &file, &mut image, &targets);
            }
        });
        Beside { stop, thread: Some(thread) }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Overwrites all of a page.
fn flood(random: &mut Random, image: &mut [u8], targets: &Targets) {
    let page = targets.any(random) / 512;
    let small = random.below(2) == 0;
    for word in image[page as usize * 4096..][..4096].chunks_exact_mut(8) {
        let new = if small { random.below(1 << 40) } else { random.next() };
        word.copy_from_slice(&new.to_le_bytes());
    }
}

/// Overwrites a few aligned words, most of them where something is written there.
fn damage(random: &mut Random, image: &mut [u8], targets: &Targets) {
    if random.below(10) == 0 {
        return flood(random, image, targets);
    }
    for _ in 0..1 + random.below(10) {
        let (at, new) = wrong_word(random, image, targets);
        image[at as usize * 8..][..8].copy_from_slice(&new.to_le_bytes());
    }
}

/// A word, and what it is overwritten with.
fn wrong_word(random: &mut Random, image: &[u8], targets: &Targets) -> (u64, u64) {
    let get = |at: u64| {
        let at = at as usize * 8;
        u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
    };
    let mut at = targets.any(random);
    // A word of zeroes is passed over, most of the time.
    for _ in 0..50 {
        if get(at) != 0 || random.below(20) == 0 {
            break;
        }
        at = targets.any(random);
    }
    let old = get(at);
    let new = match random.below(8) {
        0 => random.next(),
        1 => old ^ 1 << random.below(64),
        2 => old.wrapping_add(1 + random.below(16)),
        3 => old.wrapping_sub(1 + random.below(16)),
        4 => 0,
        5 => u64::MAX >> random.below(64),
        6 => get(targets.any(random)),
        _ => random.below(1 << 20),
    };
    (at, new)
}
