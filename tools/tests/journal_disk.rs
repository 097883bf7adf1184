//! A journal on real file systems that fill up, can no longer be written to, or vanish.

mod common;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use serde_json::Value;
use seriatim::journal::Replay;
use seriatim::{Producer, Region};

const BYTES: usize = 500;
const COMMANDS: u64 = 4_000;

fn writing(region: &str, dir: &str, args: &[&str]) -> Running {
    let small = ["journal", region, dir, "--segment-bytes", "64K"];
    let mut running = Running::start(&mut seriatim(&[&small, args].concat()));
    let line = running.line();
    assert!(line.starts_with("writing "), "{line}");
    running
}

fn failing(region: &str) -> bool {
    stat(region)["journal"]["failing_s"].is_number()
}

fn command(n: u64) -> Vec<u8> {
    [&n.to_le_bytes()[..], &[n as u8; BYTES - 8]].concat()
}

/// Submits commands; how many were durable in the end, each waited for.
fn submit_all(region: &Region, name: &str, numbers: std::ops::Range<u64>) -> u64 {
    let mut producer = Producer::attach(region, name).unwrap();
    let mut last = 0;
    for n in numbers {
        last = producer.submit_deadline(0, &command(n), Instant::now() + PATIENCE).unwrap();
    }
    producer.wait_durable(last, Instant::now() + PATIENCE).unwrap();
    last + 1
}

/// All commands that a journal has, which are those from 0 on.
fn replayed(dir: &str) -> u64 {
    let (mut replay, mut count) = (Replay::open(dir).unwrap(), 0);
    while let Some(record) = replay.next().unwrap() {
        if record.is_command() {
            assert_eq!(record.payload, command(count));
            count += 1;
        }
    }
    count
}

#[test]
fn a_full_disk_holds_the_order_until_there_is_room() {
    let Some(disk) = Tmpfs::mount("size=1m") else { return };
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-bytes", "64K"]);
    let sequencer = sequence(&region);
    let dir = disk.path("orders");
    let journal = writing(&region, &dir, &[]);
    let attached = Region::attach(&region).unwrap();
    thread::scope(|scope| {
        let submitting = scope.spawn(|| submit_all(&attached, "p", 0..COMMANDS));
        eventually("the disk is full", || failing(&region));
        // What was acknowledged before is there, and nothing beyond is acknowledged.
        let durable = stat(&region)["journal"]["durable"].as_u64().unwrap();
        assert!(Replay::open(&dir).unwrap().end().get() >= durable);
        assert!(durable < COMMANDS && !submitting.is_finished());
        let errors = run(&["errors", &region]).with(0).out;
        assert!(errors.contains(&dir) && errors.contains("No space left on device"), "{errors}");
        disk.remount("size=16m");
        assert_eq!(submitting.join().unwrap(), COMMANDS);
    });
    eventually("it says that it writes again", || !failing(&region));
    journal.stop().with(0);
    assert_eq!(replayed(&dir), COMMANDS);
    run(&["journal", "verify", &dir]).with(0);
    sequencer.stop();
}

#[test]
fn a_full_disk_is_gone_on_without_where_that_was_asked_for() {
    let Some(disk) = Tmpfs::mount("size=1m") else { return };
    let folder = scratch();
    let region = create(&folder, "region", &["--lane-bytes", "64K"]);
    let sequencer = sequence(&region);
    let other = worker(&region, "other", &["--out", "/dev/null"]);
    await_join(&region, "other");
    let dir = disk.path("orders");
    let journal = writing(&region, &dir, &["--go-on"]);
    let attached = Region::attach(&region).unwrap();
    let mut producer = Producer::attach(&attached, "p").unwrap();
    for n in 0..COMMANDS {
        producer.submit_deadline(0, &command(n), Instant::now() + PATIENCE).unwrap();
    }
    let why = journal.end().with(2).err;
    assert!(why.contains(&dir) && why.contains("No space left on device"), "{why}");
    let errors = run(&["errors", &region]).with(0).out;
    assert!(errors.contains("goes on without its journal"), "{errors}");
    // What it had written by then is whole.
    let kept = replayed(&dir);
    assert!((1..COMMANDS).contains(&kept), "{kept}");
    sequencer.stop().with(0);
    other.end().with(0);
}

#[test]
fn a_file_system_that_is_read_only_is_named_and_waited_for() {
    let Some(disk) = Tmpfs::mount("size=16m") else { return };
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let dir = disk.path("orders");
    let first = writing(&region, &dir, &[]);
    let attached = Region::attach(&region).unwrap();
    submit_all(&attached, "p", 0..100);
    first.stop().with(0);
    disk.remount("ro");
    run(&["journal", &region, &dir]).with(2).saying(&[&dir, "Read-only file system"]);
    // It can be read all the same, and its gate has stayed.
    run(&["journal", "verify", &dir]).with(0);
    assert_eq!(stat(&region)["journal"]["alive"], Value::Bool(false));
    disk.remount("rw");
    let second = writing(&region, &dir, &[]);
    submit_all(&attached, "p", 100..200);
    second.stop().with(0);
    assert_eq!(replayed(&dir), 200);
    sequencer.stop();
}

#[test]
fn a_directory_that_vanishes_acknowledges_nothing_more() {
    let Some(disk) = Tmpfs::mount("size=16m") else { return };
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let sequencer = sequence(&region);
    let dir = disk.path("orders");
    let mut journal = writing(&region, &dir, &[]);
    let attached = Region::attach(&region).unwrap();
    submit_all(&attached, "p", 0..100);
    let durable = stat(&region)["journal"]["durable"].as_u64().unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let mut producer = Producer::attach(&attached, "q").unwrap();
    let index = producer.submit(0, b"is this kept?").unwrap();
    eventually("it cannot write", || failing(&region));
    let late = producer.wait_durable(index, Instant::now() + Duration::from_millis(300)).unwrap_err();
    assert!(late.to_string().contains("has not been able to write"), "{late}");
    // The one that says who attached may have been written before.
    assert!(stat(&region)["journal"]["durable"].as_u64().unwrap() <= durable + 1);
    let errors = run(&["errors", &region]).with(0).out;
    assert!(errors.contains(&dir) && errors.contains("No such file"), "{errors}");
    journal.signal(nix::sys::signal::Signal::SIGTERM);
    let why = journal.end().with(2).err;
    assert!(why.contains(&dir), "{why}");
    sequencer.stop();
}
