//! What does a journal make of a disk? Where it does not sync: the same bytes, written plainly and in sequence, or copied
//! into a mapping, into files of the same size, reserved and synced at their ends as its segments are. Where it does: 64
//! producers that each wait until their command is durable, against one write and one sync for each command: plainly, and
//! by a journal with one such producer.
//!
//! `cargo bench --bench journal -- "256 B"` measures one size, `-- group` who waits. The directory is on the disk of `TMPDIR`.
//! Journal and plain take turns; of each the median of several is told.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use seriatim::journal::{Journal, JournalOptions, SyncPolicy, verify};
use seriatim::{Config, Producer, Region, Sequencer, SequencerConfig};

const SIZES: [(&str, usize); 6] = [
    ("32 B", 32),
    ("256 B", 256),
    ("1 KiB", 1 << 10),
    ("4 KiB", 4 << 10),
    ("16 KiB", 16 << 10),
    ("256 KiB", 256 << 10),
];
const GROUP: &str = "group";
const SEGMENT: u64 = 64 << 20;
const WAITING: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(600);

fn main() {
    // Without it this is a check: a little of each.
    let measured = std::env::args().any(|arg| arg == "--bench");
    let (bytes, times, rounds) = if measured { (384 << 20, 5, 1000) } else { (1 << 20, 1, 2) };
    println!(
        "{:>10}{:>14}{:>14}{:>8}{:>14}{:>8}",
        "off", "journal MB/s", "written MB/s", "ratio", "mapped MB/s", "ratio"
    );
    let chosen = std::env::args().find(|arg| arg == GROUP || SIZES.iter().any(|(name, _)| name == arg));
    for (name, size) in SIZES.into_iter().filter(|(name, _)| chosen.as_ref().is_none_or(|one| one == name)) {
        let mut all: Vec<[f64; 3]> = (0..times).map(|_| off(size, bytes)).collect();
        let [journal, plain, mapped] = [0, 1, 2].map(|which| median(&mut all, |m| m[which]));
        let [to_plain, to_mapped] = [1, 2].map(|which| median(&mut all, |m| m[0] / m[which]));
        println!("{name:>10}{journal:>14.0}{plain:>14.0}{to_plain:>8.2}{mapped:>14.0}{to_mapped:>8.2}");
    }
    if chosen.is_some_and(|one| one != GROUP) {
        return;
    }
    println!(
        "\n{:>10}{:>14}{:>18}{:>8}{:>16}{:>8}",
        "group", "commands/s", "a sync for each", "ratio", "one producer", "ratio"
    );
    for threads in [WAITING, 2] {
        let one =
            || [group(WAITING, threads, rounds), alone(if measured { 400 } else { 4 }), group(1, 1, rounds)];
        let mut all: Vec<_> = (0..times).map(|_| one()).collect();
        let [commands, syncs, single] = [0, 1, 2].map(|which| median(&mut all, |m| m[which].0));
        let [to_syncs, to_single] = [1, 2].map(|which| median(&mut all, |m| m[0].0 / m[which].0));
        let shared = median(&mut all, |m| m[0].1);
        let what = format!("{threads} threads");
        println!(
            "{what:>10}{commands:>14.0}{syncs:>18.0}{to_syncs:>8.1}{single:>16.0}{to_single:>8.1}   \
             {shared:.1} commands a sync"
        );
    }
}

fn median<T>(all: &mut [T], value: impl Fn(&T) -> f64) -> f64 {
    all.sort_by(|a, b| value(a).total_cmp(&value(b)));
    value(&all[all.len() / 2])
}

/// Megabytes of file a second, of a journal, of plain writing, and of copying into mappings.
fn off(size: usize, bytes: u64) -> [f64; 3] {
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().join("journal");
    let config = Config::new().lane_bytes(16 << 20);
    let region = Region::anonymous(&config).expect("a region");
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).expect("a sequencer");
    let options = JournalOptions::new().sync(SyncPolicy::Off).segment_bytes(SEGMENT);
    let mut journal = Journal::open(&region, &at, &options).expect("a journal");
    let mut producer = Producer::attach(&region, "p").expect("a lane");
    let count = (bytes / size as u64).max(1);
    let end = AtomicU64::new(u64::MAX);
    let started = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let payload = vec![7; size];
            // About 16 KiB in a ticket, as who submits many small ones does.
            let batch = vec![(0, &payload[..]); ((16 << 10) / size).clamp(1, 32).min(count as usize)];
            let mut last = 0;
            for _ in 0..count.div_ceil(batch.len() as u64) {
                last = producer.submit_batch(&batch).expect("an open order").end - 1;
            }
            // The sequencer's own commands come before it, and nothing behind.
            producer.wait_sequenced(last).expect("an open order");
            end.store(region.snapshot().next.get(), Ordering::Relaxed);
        });
        let is_over = |journal: &Journal| journal.next().get() >= end.load(Ordering::Relaxed);
        while !is_over(&journal) {
            if journal.poll().expect("a disk") == 0 {
                thread::yield_now();
            }
        }
    });
    journal.close().expect("a disk");
    let seconds = started.elapsed().as_secs_f64();
    let written: u64 = std::fs::read_dir(&at).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(verify(&at).expect("a journal").is_sound());
    std::fs::remove_dir_all(&at).unwrap();
    let buffer = vec![7; 1 << 20];
    let plain = plainly(dir.path(), written, |file, len| {
        in_pieces(len, buffer.len(), |at, piece| file.write_all_at(&buffer[..piece], at as u64).unwrap());
    });
    let mapped = plainly(dir.path(), written, |file, len| {
        // SAFETY: nobody else has the file.
        let mut to = unsafe { memmap2::MmapMut::map_mut(file) }.unwrap();
        in_pieces(len, buffer.len(), |at, piece| to[at..at + piece].copy_from_slice(&buffer[..piece]));
    });
    [seconds, plain, mapped].map(|seconds| written as f64 / seconds / 1e6)
}

/// Seconds for so many bytes, in files of a segment's size that `fill` fills.
fn plainly(dir: &Path, bytes: u64, fill: impl Fn(&File, u64)) -> f64 {
    let started = Instant::now();
    for segment in 0..bytes.div_ceil(SEGMENT) {
        let path = dir.join(segment.to_string());
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        let len = (bytes - segment * SEGMENT).min(SEGMENT);
        reserve(&file);
        fill(&file, len);
        file.set_len(len).unwrap();
        file.sync_all().unwrap();
    }
    started.elapsed().as_secs_f64()
}

fn in_pieces(len: u64, most: usize, mut each: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < len as usize {
        let piece = most.min(len as usize - at);
        each(at, piece);
        at += piece;
    }
}

/// Reserves a segment, as the journal does.
fn reserve(file: &File) {
    let len = SEGMENT as libc::off_t;
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) }, 0);
}

/// Commands a second that so many producers get durable, each waiting for its own before it submits the next, in so many
/// threads; and commands a sync.
fn group(producers: u64, threads: u64, rounds: u64) -> (f64, f64) {
    let dir = tempfile::tempdir().expect("a directory");
    let region = Region::anonymous(&Config::new().producers(producers)).expect("a region");
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).expect("a sequencer");
    let mut journal = Journal::open(&region, dir.path(), &JournalOptions::new()).expect("a journal");
    let (is_over, before) = (AtomicBool::new(false), journal.syncs());
    let mut seconds = 0.0;
    thread::scope(|scope| {
        let journal = &mut journal;
        let is_over = &is_over;
        scope.spawn(move || journal.run(|| is_over.load(Ordering::Relaxed)).expect("a disk"));
        // Who attaches takes room in the order, so there is a journal to pass it.
        let attach = |n| Producer::attach(&region, &format!("p{n}")).expect("a lane");
        let mut attached: Vec<_> = (0..producers).map(attach).collect();
        let each = (producers / threads) as usize;
        let shares: Vec<Vec<Producer>> =
            (0..threads).map(|_| attached.split_off(attached.len() - each)).collect();
        let started = Instant::now();
        let share = |producers: Vec<Producer>| scope.spawn(move || keep_going(producers, rounds));
        let waiting: Vec<_> = shares.into_iter().map(share).collect();
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        seconds = started.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
    });
    let commands = (producers * rounds) as f64;
    (commands / seconds, commands / (journal.syncs() - before).max(1) as f64)
}

/// Submits for each of these producers what comes next when what it submitted last is durable.
fn keep_going(mut producers: Vec<Producer>, rounds: u64) {
    let submit = |producer: &mut Producer| producer.submit(0, &[7; 32]).expect("an open order");
    let mut last: Vec<_> = producers.iter_mut().map(submit).collect();
    let (mut left, mut first) = ((rounds - 1) * producers.len() as u64, 0);
    while left > 0 {
        // Who waits longest, and then all whose turn it is.
        let until = Instant::now() + PATIENCE;
        producers[first].wait_durable(last[first], until).expect("a journal");
        while left > 0 && producers[first].find_durable(last[first]).expect("a journal").is_some() {
            last[first] = submit(&mut producers[first]);
            left -= 1;
            first = (first + 1) % producers.len();
        }
    }
    for (producer, index) in producers.iter_mut().zip(last) {
        producer.wait_durable(index, Instant::now() + PATIENCE).expect("a journal");
    }
}

/// Commands a second with a write and a sync for each, and one command a sync.
fn alone(count: u64) -> (f64, f64) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = File::create(dir.path().join("plain")).unwrap();
    reserve(&file);
    file.sync_all().unwrap();
    let started = Instant::now();
    for n in 0..count {
        file.write_all_at(&[7; 80], n * 80).unwrap();
        file.sync_data().unwrap();
    }
    (count as f64 / started.elapsed().as_secs_f64(), 1.0)
}
