//! The region as a file and as memory: where its pages come from and who pays, whose it is, what it holds, and what
//! looking at it and being pinned beside it do not do.
//!
//! Some tests need what only root has, or a machine with memory to spare: where that is missing they say so and end.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::*;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, Uid};
use serde_json::Value;
use seriatim::{
    Config, ErrorCode, Event, Placement, Producer, Region, Sequencer, SequencerConfig, SubmitError, Worker,
    affinity,
};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// The tool through another command, as `setpriv` or `taskset` and their arguments.
fn through(by: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new(by[0]);
    command.args(&by[1..]).arg(env!("CARGO_BIN_EXE_seriatim")).args(args).stdin(Stdio::null());
    command
}

fn works(by: &[&str]) -> bool {
    let mut command = Command::new(by[0]);
    command.args(&by[1..]).arg("true").stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The number that stands behind a name in the kernel's list of a process.
fn kib_of(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    value.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

// ---- room -------------------------------------------------------------------------------------------------

#[test]
fn what_has_no_room_is_refused_with_both_sizes_and_gives_back_all_it_took() {
    let Some(small) = Tmpfs::mount("size=64m") else { return };
    let path = small.path("region");
    let before = small.used();
    let wanted = Config::new().producers(1).lane_bytes(256 * MIB).region_bytes().unwrap().to_string();
    for more in [&[][..], &["--huge-pages", "try"]] {
        let args = [&["create", &path, "--producers", "1", "--lane-bytes", "256M"], more].concat();
        let ended = run(&args).with(2);
        let last = ended.err.lines().last().unwrap();
        let free = (64 * MIB).to_string();
        assert!([&path, &wanted, &free].iter().all(|part| last.contains(part.as_str())), "{ended:?}");
        assert_eq!(small.used(), before, "something was left behind");
    }

    // What is made can be used to its last byte, on a file system that has no other page left.
    run(&["create", &path, "--producers", "1", "--lane-bytes", "16M"]).with(0);
    let fill = fs::File::create(small.path("fill")).unwrap();
    let left = 64 * MIB - small.used().0;
    assert!(
        Command::new("fallocate")
            .args(["-l", &left.to_string(), &small.path("fill")])
            .status()
            .unwrap()
            .success()
    );
    drop(fill);
    assert_eq!(small.used().0, 64 * MIB);
    let sequencer = sequence(&path);
    let reader = worker(&path, "w", &["--out", "/dev/null", "--json"]);
    let line = [vec![b'x'; (1 << 20) - 1], b"\n".to_vec()].concat();
    run_with(&["submit", &path], &line.repeat(40)).with(0);
    sequencer.stop().with(0);
    let report: serde_json::Value = serde_json::from_str(&reader.end().with(0).err).unwrap();
    assert_eq!(report["bytes"], 40 * (MIB - 1));
    run(&["remove", &path]).with(0);
}

#[test]
fn two_creators_for_whom_there_is_not_room_end_cleanly() {
    let Some(small) = Tmpfs::mount("size=64m") else { return };
    let before = small.used();
    let rounds = if long() { 50 } else { 8 };
    let mut made = 0;
    for round in 0..rounds {
        let paths = [small.path("one"), small.path("two")];
        let create = |path: &String| {
            Running::start(&mut seriatim(&["create", path, "--producers", "3", "--lane-bytes", "16M"]))
        };
        let ended = paths.each_ref().map(create).map(Running::end);
        let there = paths.iter().filter(|path| Path::new(path).exists()).count();
        let failed = ended.iter().filter(|ended| ended.code == Some(2) && ended.err.contains("no space"));
        let done = ended.iter().filter(|ended| ended.code == Some(0)).count();
        let failed = failed.count();
        assert!(failed >= 1 && failed + done == 2 && there == done, "round {round}: {ended:?}");
        made += done;
        for path in paths.iter().filter(|path| Path::new(path).exists()) {
            run(&["remove", path]).with(0);
        }
        assert_eq!(small.used(), before, "round {round}");
    }
    println!("{rounds} rounds of two creators: {made} made a region, {} had no room", 2 * rounds - made);
}

// ---- memory -----------------------------------------------------------------------------------------------

#[test]
fn huge_pages_that_cannot_be_had_are_an_error_or_an_announced_fall_back() {
    let Some(plain) = Tmpfs::mount("size=64m,huge=never") else { return };
    let (path, before) = (plain.path("region"), plain.used());
    let sizes = ["--producers", "1", "--lane-bytes", "16M"];
    let create = |path: &str, how: &str| run(&[&["create", path, "--huge-pages", how], &sizes[..]].concat());
    create(&path, "require").with(2).saying(&[&path, "no huge pages", "2097152", "0 had", "huge=advise"]);
    assert_eq!(plain.used(), before, "something was left behind");
    let ended = create(&path, "try").with(0);
    assert!(
        ended.err.contains("no huge pages") && ended.err.contains("made with what there is"),
        "{ended:?}"
    );
    let report = run(&["inspect", &path, "--json"]).with(0).json();
    assert_eq!((&report["page_bytes"], &report["huge_bytes"]), (&4096.into(), &0.into()));
    assert!(run(&["inspect", &path]).with(0).out.contains("in pages of 4096 bytes\n"));
    serves(&path);

    // Pages that have to be huge are too large to give each party its own.
    let folder = TempDir::new().unwrap();
    let mounted = Command::new("mount").args(["-t", "hugetlbfs", "none"]).arg(folder.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return println!("skipped: no hugetlbfs here");
    }
    let huge = folder.path().join("region").display().to_string();
    let refused = ["require", "try"].map(|how| create(&huge, how));
    let _ = Command::new("umount").arg(folder.path()).status();
    for ended in refused {
        ended.with(2).saying(&[&huge, "2097152", "4096"]);
    }
}

/// Whether the kernel gives huge pages to a file where nobody has to ask for them.
fn gives_huge_pages() -> bool {
    let Some(always) = Tmpfs::mount("size=64m,huge=always") else { return false };
    let filled =
        Command::new("fallocate").args(["-l", "32M", &always.path("file")]).status().unwrap().success();
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let huge = memory.lines().find_map(|line| line.strip_prefix("ShmemHugePages:"));
    let huge = huge.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    filled && huge.is_some_and(|kib| kib * 1024 >= 32 * MIB)
}

#[test]
fn huge_pages_that_can_be_had_are_shown() {
    let Some(huge) = Tmpfs::mount("size=64m,huge=advise") else { return };
    let path = huge.path("region");
    let args = ["create", &path, "--producers", "1", "--lane-bytes", "16M", "--huge-pages", "require"];
    if !gives_huge_pages() {
        return println!("skipped: this machine has no huge pages to give");
    }
    run(&args).with(0);
    let report = run(&["inspect", &path, "--json"]).with(0).json();
    let bytes = report["bytes"].as_u64().unwrap();
    assert_eq!(report["huge_bytes"], bytes / (2 * MIB) * (2 * MIB), "{report}");
    serves(&path);
    // Without having been asked for, they are not taken.
    let other = huge.path("other");
    run(&["create", &other, "--producers", "1", "--lane-bytes", "16M"]).with(0);
    assert_eq!(run(&["inspect", &other, "--json"]).with(0).json()["huge_bytes"], 0);
    // Where there is no room, that is what is said.
    let third = huge.path("third");
    let args = ["create", &third, "--producers", "1", "--lane-bytes", "32M", "--huge-pages", "require"];
    run(&args).with(2).saying(&["no space", &third]);
    assert!(!Path::new(&third).exists());
}

/// The first NUMA node that has memory, if this process may ask for nodes.
fn some_node() -> Option<u32> {
    let list = fs::read_to_string("/sys/devices/system/node/has_memory").ok();
    let node = list.and_then(|list| list.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    let config = node.map(|node| Config::new().placement(Placement::on(node)));
    let may = config.is_some_and(|config| Region::anonymous(&config).is_ok());
    if !may {
        println!("skipped: no NUMA nodes here, or nobody may ask for them");
    }
    node.filter(|_| may)
}

#[test]
fn memory_lies_on_the_node_that_was_asked_for_and_both_are_shown() {
    let Some(node) = some_node() else { return };
    let folder = scratch();
    let (n, bind) = (node.to_string(), format!("bind:{node}"));
    let made = |name: &str, args: &[&str]| {
        let path = create(&folder, name, &[&["--producers", "3", "--workers", "2"], args].concat());
        let report = run(&["inspect", &path, "--json"]).with(0).json();
        let rows = report["placement"].as_array().unwrap().clone();
        let lies = |row: &Value| {
            row["nodes"].as_array().unwrap().iter().map(|at| at["bytes"].as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!(rows.iter().map(lies).sum::<u64>(), report["bytes"].as_u64().unwrap(), "{report}");
        (path, rows)
    };
    let asked = |rows: &[Value]| -> Vec<(String, u64, u64, String)> {
        let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_string();
        let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
        let one = |row| (text(row, "part"), number(row, "first"), number(row, "last"), text(row, "asked"));
        rows.iter().map(one).collect()
    };
    let expected = |shared: &str, lanes: &str, workers: &str| {
        let row = |part: &str, first, last, asked: &str| (part.to_string(), first, last, asked.to_string());
        vec![row("shared", 0, 0, shared), row("lanes", 1, 3, lanes), row("workers", 0, 1, workers)]
    };

    let (path, rows) = made("default", &[]);
    assert_eq!(asked(&rows), expected("default", "default", "default"));
    serves(&path);
    let (path, rows) = made("on", &["--numa", &n]);
    assert_eq!(asked(&rows), expected(&bind, &bind, &bind));
    assert!(
        rows.iter().all(|row| row["nodes"].as_array().unwrap().len() == 1 && row["nodes"][0]["node"] == node)
    );
    let line = format!("on NUMA node {node}, asked for: {bind}\n");
    assert!(run(&["inspect", &path]).with(0).out.contains(&line));
    serves(&path);
    let (path, rows) = made("parts", &["--numa", "interleave", "--numa-lanes", &format!("{n},{n}")]);
    let interleave = asked(&rows)[0].3.clone();
    assert!(interleave.starts_with("interleave:"), "{interleave}");
    assert_eq!(asked(&rows), expected(&interleave, &bind, &interleave));
    let line = format!("lanes 1 to 3: on NUMA node {node}, asked for: {bind}\n");
    assert!(run(&["inspect", &path]).with(0).out.contains(&line));
    serves(&path);
    let (_, rows) = made("workers", &["--numa-workers", &n]);
    assert_eq!(asked(&rows), expected("default", "default", &bind));
}

#[test]
fn a_placement_that_cannot_be_had_is_refused_with_what_there_is_and_leaves_nothing() {
    let Some(node) = some_node() else { return };
    let folder = scratch();
    let path = folder.path().join("region").display().to_string();
    let create = |path: &str, args: &[&str]| run(&[&["create", path], args].concat()).with(2);
    let (n, on) = (node.to_string(), format!("on NUMA node {node}: "));
    for args in [["--numa", "1023"], ["--numa-lanes", &format!("{n},1023")], ["--numa-workers", "1023"]] {
        create(&path, &args).saying(&[&path, "no NUMA node 1023", &format!("the machine has {node}")]);
    }
    create(&path, &["--numa", "4294967295"]).saying(&["no NUMA node 4294967295"]);
    create(&path, &["--numa", &n, "--lane-bytes", "1024G"]).saying(&[
        &path,
        "no space",
        &on,
        "8796095959040 bytes",
    ]);
    for (args, said) in [(["--numa", "near"], "interleave"), (["--numa-lanes", "0,x"], "`x` is no number")] {
        let ended = create(&path, &args);
        assert!(ended.err.contains(said), "{ended:?}");
    }
    let args = ["--producers", "1", "--numa-lanes", &format!("{n},{n}")];
    create(&path, &args).saying(&["nodes of lanes is 2", "0 to 1"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was left behind");

    let disk = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let said = Command::new("stat").args(["-f", "-c", "%T"]).arg(disk.path()).output().unwrap().stdout;
    if said == b"tmpfs\n" {
        return println!("skipped: no disk here");
    }
    let path = disk.path().join("region").display().to_string();
    create(&path, &["--numa", &n]).saying(&[&path, "no tmpfs"]);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn a_kernel_that_forbids_placement_is_named_and_nothing_is_left() {
    let Some(node) = some_node() else { return };
    let folder = scratch();
    for errno in [libc::EPERM, libc::ENOSYS] {
        // What a thread forbids itself is forbidden to no other.
        let path = folder.path().join("region");
        let refused = thread::spawn(move || {
            forbid(libc::SYS_mbind, errno);
            let refused = Region::create(&path, &Config::new().placement(Placement::on(node))).unwrap_err();
            Region::create(&path, &Config::new()).expect("without one all works");
            fs::remove_file(&path).unwrap();
            refused.to_string()
        });
        let refused = refused.join().unwrap();
        let parts = ["cannot place", "mbind", "CAP_SYS_NICE", "without NUMA", "region"];
        assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was left behind");
    }
}

/// From here on the kernel answers one system call of this thread with this error.
fn forbid(call: i64, errno: i32) {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
    let machine =
        TargetArch::try_from(std::env::consts::ARCH).expect("a machine that can filter system calls");
    let calls = std::iter::once((call, Vec::new())).collect();
    let answer = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, answer, machine).unwrap();
    apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Passes some commands through a region.
fn serves(path: &str) {
    let sequencer = sequence(path);
    let reader = worker(path, "w", &[]);
    run_with(&["submit", path], b"one\ntwo\n").with(0);
    sequencer.stop().with(0);
    assert_eq!(reader.end().with(0).out, "one\ntwo\n");
}

#[test]
fn a_lock_beyond_the_limit_is_refused_with_need_and_limit_and_without_one_all_works() {
    let limited =
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", "--memlock=65536"];
    let limited = if Uid::effective().is_root() { &limited[..] } else { &limited[4..] };
    if !works(limited) {
        return println!("skipped: no setpriv and prlimit here");
    }
    let folder = scratch();
    open_to_all(&folder);
    let path = create(&folder, "region", &["--producers", "1", "--lane-bytes", "16M", "--mode", "666"]);
    let wanted = fs::metadata(&path).unwrap().len();
    assert!(wanted > 16 * MIB);
    for command in ["sequence", "worker", "submit"] {
        let ended: Ended = Running::start(&mut through(limited, &[command, &path, "--lock"])).end();
        ended.with(2).saying(&[&path, "RLIMIT_MEMLOCK", "65536", &wanted.to_string()]);
    }
    let mut sequencer = Running::start(&mut through(limited, &["sequence", &path]));
    assert!(sequencer.line().starts_with("serving "));
    let reader = Running::start(&mut through(limited, &["worker", &path, "--name", "w", "--count", "1"]));
    let mut submit = Running::start(through(limited, &["submit", &path]).stdin(Stdio::piped()));
    submit.feed(b"one\n");
    submit.end().with(0);
    assert_eq!(reader.end().with(0).out, "one\n");
    sequencer.stop().with(0);
}

#[test]
fn a_lock_holds_the_region_and_nothing_else_and_is_shown() {
    let folder = scratch();
    let path = create(&folder, "region", &["--producers", "1", "--lane-bytes", "1M"]);
    let bytes = fs::metadata(&path).unwrap().len();
    let mut locking = Running::start(&mut seriatim(&["sequence", &path, "--lock"]));
    if !locking.line().starts_with("serving ") {
        return println!("skipped: this user may not lock {bytes} bytes: {:?}", locking.end());
    }
    let mut plain = worker(&path, "plain", &[]);
    let mut locked = worker(&path, "locked", &["--lock"]);
    let row = |name: &str| {
        let rows = stat(&path)["workers"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["name"] == name).unwrap()
    };
    assert_eq!(stat(&path)["sequencer"]["locked"], true);
    assert_eq!((&row("plain")["locked"], &row("locked")["locked"]), (&false.into(), &true.into()));
    let text = run(&["stat", &path]).with(0).out;
    assert!(text.contains("locked in memory by: sequencer, locked\n"), "{text}");
    // To the byte: what they map afterwards, the stacks of their threads and all, is not locked.
    let sizes = [&mut locking, &mut locked, &mut plain].map(|party| kib_of(party.pid(), "VmLck:"));
    assert_eq!(sizes, [bytes, bytes, 0]);
    locking.stop().with(0);
    assert_eq!(stat(&path)["sequencer"]["locked"], serde_json::Value::Null);
}

/// A control group, gone with its guard.
struct Group(PathBuf);

impl Group {
    fn make(controller: &str, name: &str) -> Option<Group> {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("seriatim-{name}-{}", std::process::id());
        // Version 1 has a folder for each controller.
        let [one, two] = [root.join(controller).join(&name), root.join(&name)];
        let folder = if root.join(controller).is_dir() { one } else { two };
        if let Err(error) = fs::create_dir(&folder) {
            println!("skipped: cannot make a control group {}: {error}", folder.display());
            return None;
        }
        Some(Group(folder))
    }

    /// Writes or reads the first of these files that there is: names differ between the versions.
    fn set(&self, files: &[&str], value: &str) -> bool {
        let there = files.iter().map(|file| self.0.join(file)).find(|file| file.exists());
        there.is_some_and(|file| fs::write(file, value).is_ok())
    }

    fn get(&self, files: &[&str]) -> u64 {
        let mut there = files.iter().map(|file| self.0.join(file)).filter(|file| file.exists());
        fs::read_to_string(there.next().unwrap()).unwrap().trim().parse().unwrap()
    }

    /// The tool, started inside.
    fn inside(&self, args: &[&str]) -> Command {
        through(&["sh", "-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"", self.0.to_str().unwrap()], args)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn only_the_creator_pays_for_the_pages() {
    const LIMIT: u64 = 48 * MIB;
    let lane = if long() { 256 } else { 64 };
    let folder = scratch();
    let sizes = ["--producers", "1", "--lane-bytes", &format!("{lane}M")];
    let path = create(&folder, "region", &sizes);
    let file = fs::metadata(&path).unwrap();
    assert_eq!(file.blocks() * 512, file.len(), "du and ls differ");
    assert_eq!(run(&["inspect", &path, "--json"]).with(0).json()["resident_bytes"], file.len());

    let Some(group) = Group::make("memory", "pays") else { return };
    if !group.set(&["memory.limit_in_bytes", "memory.max"], &LIMIT.to_string()) {
        return println!("skipped: no limit can be set in {}", group.0.display());
    }
    let peak = || group.get(&["memory.max_usage_in_bytes", "memory.peak"]);
    let sequencer = sequence(&path);
    let reader =
        Running::start(&mut group.inside(&["worker", &path, "--name", "w", "--out", "/dev/null", "--json"]));
    let mut submit = Running::start(group.inside(&["submit", &path, "--json"]).stdin(Stdio::piped()));
    let line = [vec![b'x'; 65_535], b"\n".to_vec()].concat().repeat(16);
    for _ in 0..3 * lane {
        submit.feed(&line);
    }
    let report = submit.end().with(0).json();
    sequencer.stop().with(0);
    let received: serde_json::Value = serde_json::from_str(&reader.end().with(0).err).unwrap();
    assert_eq!(
        (&report["commands"], &received["commands"]),
        (&(3 * lane * 16).into(), &(3 * lane * 16).into())
    );
    let used = peak();
    println!("{lane} MiB filled three times by parties that were charged {used} bytes at most");
    assert!(used < LIMIT / 2, "{used} bytes were charged to those who did not make the region");

    // The same group does not suffice for who makes one.
    let other = folder.path().join("other").display().to_string();
    let ended = Running::start(&mut group.inside(&[&["create", &other], &sizes[..]].concat())).end();
    assert!(ended.code != Some(0) && !Path::new(&other).exists(), "{ended:?}");
}

// ---- coming to a region -----------------------------------------------------------------------------------

#[test]
fn a_file_that_is_not_ready_is_refused_at_every_length() {
    let folder = scratch();
    let region = create(&folder, "region", &["--producers", "1", "--lane-bytes", "4K", "--lane-cells", "64"]);
    let bytes = fs::read(&region).unwrap();
    let cut = folder.path().join("cut").display().to_string();
    let lengths = [0, 1, 8, 159, 160, 161, 4095, 4096, 4097, bytes.len() - 1];
    // With what was written so far, and sized before anything was written.
    for (length, is_zero) in lengths.iter().flat_map(|&length| [(length, false), (length, true)]) {
        fs::write(&cut, &bytes[..length]).unwrap();
        if is_zero {
            fs::write(&cut, vec![0; length]).unwrap();
        }
        for command in ["sequence", "submit", "worker", "tail", "stat", "errors", "remove"] {
            run(&[command, &cut]).with(2).saying(&[&cut]);
        }
        for command in ["inspect", "verify"] {
            // A header that is whole is shown, with what is wrong.
            let ended = run(&[command, &cut]);
            assert!(matches!(ended.code, Some(1 | 2)), "{command} of {length} bytes: {ended:?}");
        }
        assert_eq!(fs::metadata(&cut).unwrap().len(), length as u64);
    }
    fs::write(&cut, vec![0; bytes.len()]).unwrap();
    run(&["worker", &cut]).with(2).saying(&["not a Seriatim region"]);
}

#[test]
fn parties_that_start_with_their_region_come_in_or_say_what_is_missing() {
    const LINES: usize = 100;
    let rounds = if long() { 300 } else { 6 };
    let folder = scratch();
    let mut early = 0;
    for round in 0..rounds {
        let path = folder.path().join(format!("region-{round}")).display().to_string();
        // Tries again, as whoever starts with the region has to: an early party is told what is missing, in time.
        let come = |command: &str, name: &str, input: &str| {
            let mut tries = 0;
            loop {
                let ended = run_with(&[command, &path, "--name", name], input.as_bytes());
                if ended.code == Some(0) {
                    return (ended, tries);
                }
                let missing = ["not found", "has no sequencer"];
                assert!(missing.iter().any(|what| ended.err.contains(what)), "{ended:?}");
                ended.with(2).saying(&[&path]);
                tries += 1;
            }
        };
        let lines = |name: &str| (0..LINES).map(|at| format!("{name} {at}\n")).collect::<String>();
        let mut outs = thread::scope(|scope| {
            let come = &come;
            let readers = ["r0", "r1"].map(|name| scope.spawn(move || come("worker", name, "")));
            let writers = ["a", "b"].map(|name| scope.spawn(move || come("submit", name, &lines(name))));
            run(&["create", &path, "--lane-cells", "64", "--lane-bytes", "4K"]).with(0);
            let sequencer = sequence(&path);
            for writer in writers {
                early += writer.join().unwrap().1;
            }
            eventually("both workers are in", || {
                let rows = stat(&path)["workers"].as_array().unwrap().clone();
                rows.iter().filter(|row| row["attached"] == true).count() == 2
            });
            sequencer.stop().with(0);
            readers.map(|reader| {
                let (ended, tries) = reader.join().unwrap();
                early += tries;
                ended.out
            })
        });
        // The first to come has all of it, the other one from where it came.
        outs.sort_by_key(String::len);
        let [late, all] = outs;
        assert!(all.ends_with(&late), "round {round}");
        for name in ["a", "b"] {
            let got: String = all.split_inclusive('\n').filter(|line| line.starts_with(name)).collect();
            assert_eq!(got, lines(name), "round {round}");
        }
        assert_eq!(all.lines().count(), 2 * LINES);
        run(&["remove", &path]).with(0);
    }
    println!("{rounds} rounds of 4 parties, who came too early {early} times and said so");
}

// ---- whose it is ------------------------------------------------------------------------------------------

fn open_to_all(folder: &TempDir) {
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
}

/// The tool as an ordinary user, with no more than a second of processor time: who tries again and again needs more.
fn as_user(uid: u32, gid: u32, args: &[&str]) -> Command {
    let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={gid}"));
    through(&["prlimit", "--cpu=1:1", "setpriv", &uid, &gid, "--clear-groups"], args)
}

/// Whether this process can act for others, and they can run the tool.
fn can_be_others() -> bool {
    let can = Uid::effective().is_root()
        && as_user(65_534, 65_534, &["--version"]).output().is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: cannot run the tool as another user");
    }
    can
}

const ALICE: u32 = 64_001;
const BOB: u32 = 64_002;
const GROUP: u32 = 64_100;

#[test]
fn who_has_no_right_is_told_whose_it_is_and_what_is_lacking() {
    if !can_be_others() {
        return;
    }
    let folder = scratch();
    open_to_all(&folder);
    for (mode, reads) in [("600", false), ("644", true)] {
        let path = folder.path().join(mode).display().to_string();
        Running::start(&mut as_user(ALICE, ALICE, &["create", &path, "--mode", mode])).end().with(0);
        let mut sequencer = Running::start(&mut as_user(ALICE, ALICE, &["sequence", &path]));
        sequencer.line();
        sequencer.signal(Signal::SIGKILL);
        sequencer.end();
        let (owner, mode) = (format!("owner uid {ALICE}"), format!("mode 0{mode}"));
        for command in ["sequence", "worker", "submit", "remove"] {
            let (ended, cost) = Running::start(&mut as_user(BOB, BOB, &[command, &path])).end_with_cost();
            // Tried once, and not again and again.
            assert!(cost < Duration::from_millis(100), "{command} took {cost:?} of processor time");
            let lacking = match (command, reads) {
                (_, false) => "no right to read",
                ("remove", true) => "no right to remove",
                (_, true) => "needs write access",
            };
            ended.with(2).saying(&[&path, &owner, &mode, lacking]);
        }
        for command in ["stat", "inspect", "errors", "verify"] {
            let ended = Running::start(&mut as_user(BOB, BOB, &[command, &path])).end();
            assert_eq!(ended.code, Some(if reads { 0 } else { 2 }), "{ended:?}");
        }
        assert!(Path::new(&path).exists());
    }
    let folder = scratch();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("region").display().to_string();
    let ended = Running::start(&mut as_user(BOB, BOB, &["create", &path])).end();
    ended.with(2).saying(&[&path, "no right to make", "owner uid 0", "mode 0755"]);
}

#[test]
fn the_mode_is_exact_whatever_the_umask_and_a_group_shares_the_region() {
    if !can_be_others() {
        return;
    }
    let folder = scratch();
    open_to_all(&folder);
    let path = folder.path().join("region").display().to_string();
    let group = GROUP.to_string();
    let args = ["create", &path, "--mode", "0660", "--group", &group];
    let under = ["sh", "-c", "umask 077; exec \"$@\"", "sh"];
    let member = format!("--groups={GROUP}");
    let alice = ["setpriv", &format!("--reuid={ALICE}"), &format!("--regid={ALICE}"), &member];
    Running::start(&mut through(&[&under[..], &alice].concat(), &args)).end().with(0);
    let file = fs::metadata(&path).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o660, ALICE, GROUP));
    assert!(run(&["inspect", &path]).with(0).out.contains(&format!("mode 660, owner {ALICE}:{GROUP}")));

    // Each party another user; all they share is the group.
    let as_member = |uid: u32, args: &[&str]| {
        through(&["setpriv", &format!("--reuid={uid}"), &format!("--regid={GROUP}"), "--clear-groups"], args)
    };
    let mut sequencer = Running::start(&mut as_member(BOB, &["sequence", &path]));
    assert!(sequencer.line().starts_with("serving "));
    let reader = Running::start(&mut as_member(ALICE, &["worker", &path, "--name", "w", "--count", "2"]));
    let mut submit = Running::start(as_member(BOB + 1, &["submit", &path]).stdin(Stdio::piped()));
    submit.feed(b"one\ntwo\n");
    submit.end().with(0);
    assert_eq!(reader.end().with(0).out, "one\ntwo\n");
    sequencer.stop().with(0);
    Running::start(&mut as_user(BOB, BOB, &["inspect", &path]))
        .end()
        .with(2)
        .saying(&["no right", "mode 0660"]);
}

// ---- looking ----------------------------------------------------------------------------------------------

#[test]
fn looking_leaves_a_region_as_it_was() {
    let folder = scratch();
    open_to_all(&folder);
    let path = create(&folder, "region", &["--producers", "1", "--lane-bytes", "64K"]);
    let sequencer = sequence(&path);
    run_with(&["submit", &path], b"one\ntwo\n").with(0);
    sequencer.stop().with(0);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    let look = || {
        let file = fs::metadata(&path).unwrap();
        (fs::read(&path).unwrap(), file.modified().unwrap(), file.ctime_nsec(), file.blocks(), file.mode())
    };
    let before = look();
    let others = can_be_others();
    let as_other = |args: &[&str]| if others { as_user(BOB, BOB, args) } else { seriatim(args) };
    for _ in 0..if long() { 100 } else { 10 } {
        for command in ["inspect", "stat", "errors", "verify"] {
            Running::start(&mut as_other(&[command, &path])).end().with(0);
        }
    }
    if others || !Uid::effective().is_root() {
        for command in ["worker", "sequence", "submit"] {
            Running::start(&mut as_other(&[command, &path])).end().with(2).saying(&["needs write access"]);
        }
    }
    assert!(look() == before, "it was touched");

    let missing = folder.path().join("missing").display().to_string();
    for command in ["inspect", "stat", "errors", "verify", "tail", "worker", "submit", "sequence"] {
        run(&[command, &missing]).with(2).saying(&[&missing, "not found"]);
        assert!(!Path::new(&missing).exists());
    }
}

/// A line that says whether it is whole.
fn signed(producer: usize, number: u64) -> String {
    let text = format!("{producer} {number} {}", "x".repeat(number as usize % 150));
    format!("{text} {:016x}", sign(&text))
}

fn sign(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn is_whole(line: &str) -> bool {
    line.rsplit_once(' ').is_some_and(|(text, signature)| format!("{:016x}", sign(text)) == signature)
}

#[test]
fn looking_at_a_busy_region_shows_whole_records_and_holds_up_nobody() {
    let rounds = if long() { 1000 } else { 6 };
    let folder = scratch();
    let path = create(&folder, "region", &["--lane-cells", "256", "--lane-bytes", "64K"]);
    let sequencer = sequence(&path);
    let reader = worker(&path, "w", &["--out", "/dev/null", "--digest"]);
    let over = AtomicBool::new(false);
    let mut lines = 0;
    let mut moved = 0;
    thread::scope(|scope| {
        let (path, over) = (&path, &over);
        let end = Over(over);
        for producer in 0..8 {
            scope.spawn(move || {
                let mut submit = Running::start(seriatim(&["submit", path]).stdin(Stdio::piped()));
                for number in (0..).step_by(100) {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let chunk: String =
                        (number..number + 100).map(|at| signed(producer, at) + "\n").collect();
                    submit.feed(chunk.as_bytes());
                }
                submit.end().with(0);
            });
        }
        eventually("all submit", || {
            let rows = stat(path)["producers"].as_array().unwrap().clone();
            rows.len() == 8 && rows.iter().all(|row| row["next"].as_u64() > Some(0))
        });
        for _ in 0..rounds {
            let shown = run(&["tail", path, "--count", "50"]).with(0);
            assert!(shown.out.lines().count() == 50 && shown.out.lines().all(is_whole), "{shown:?}");
            lines += shown.out.lines().count();
            run(&["inspect", path]).with(0);
            run(&["stat", path]).with(0);
            // What moves too fast is no damage.
            match run(&["verify", path]) {
                Ended { code: Some(0), .. } => {}
                Ended { code: Some(2), err, .. } if err.contains("freed faster") => moved += 1,
                other => panic!("{other:?}"),
            }
        }
        drop(end);
    });
    println!(
        "{rounds} looks at 8 busy producers: {lines} whole lines; {moved} times it moved too fast to verify"
    );
    // Nobody gated but the worker, and nothing was left in the error log.
    assert!(run(&["errors", &path]).with(0).out.contains("no errors"));
    sequencer.stop().with(0);
    reader.end().with(0);
    run(&["verify", &path]).with(0);
}

// ---- capacities -------------------------------------------------------------------------------------------

#[test]
fn a_capacity_is_refused_by_its_value_or_is_what_the_region_holds() {
    let Some(small) = Tmpfs::mount("size=64m") else { return };
    let path = small.path("region");
    let values = ["0", "1", "3", "1000", "2147483648", "4294967296", "9223372036854775808"];
    for (option, value) in
        ["--slots", "--lane-cells", "--lane-bytes"].iter().flat_map(|o| values.map(|v| (o, v)))
    {
        let ended = run(&["create", &path, "--producers", "1", option, value]).with(2);
        // What a lane of 2 GiB lacks here is room; the file is a little larger than it.
        let named = ended.err.contains(&format!("is {value}, expected a power of two"))
            && ended.err.contains("next: ")
            || ended.err.contains(&format!("no space for {path:?}: {}", &value[..1]));
        assert!(named, "{option} {value}: {ended:?}");
    }
    for option in ["--producers", "--workers"] {
        for value in ["0", "4096", "2147483648", "9223372036854775808"] {
            run(&["create", &path, option, value]).with(2).saying(&[value, "expected 1 to"]);
        }
    }
    assert_eq!(small.used().1, 0);

    for capacity in [2, 4, 64, 1024] {
        let cells = Config::new().producers(1).lane_cells(capacity).lane_bytes(1 << 20);
        assert_eq!(holds(&cells, b"small"), capacity, "cells");
        let bytes = Config::new().producers(1).lane_cells(4096).lane_bytes(capacity * 64);
        if capacity * 64 >= 256 {
            assert_eq!(holds(&bytes, &[7; 64]), capacity, "lines of 64 bytes");
        }
    }
}

/// How many commands of a kind a region takes while nobody works.
fn holds(config: &Config, payload: &[u8]) -> u64 {
    let region = Region::anonymous(&config.clone().order_slots(4096)).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let mut taken = 0;
    loop {
        match producer.try_submit(0, payload) {
            Ok(_) => taken += 1,
            Err(SubmitError::Full(_)) => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_order_begins_where_it_is_told_and_ends_at_the_last_index() {
    const LINES: u64 = 10_000;
    const LAST: u64 = u64::MAX >> 1;
    let folder = scratch();
    let text: String = (0..LINES).map(|at| signed(0, at) + "\n").collect();
    let file = folder.path().join("lines").display().to_string();
    fs::write(&file, &text).unwrap();

    let path = create(&folder, "32 bits", &["--first-index", &((1_u64 << 32) - 10).to_string()]);
    let sequencer = sequence(&path);
    let out = |name: &str| folder.path().join(name).display().to_string();
    let readers = ["r0", "r1"].map(|name| worker(&path, name, &["--out", &out(name)]));
    run(&["submit", &path, &file]).with(0);
    assert!(stat(&path)["next"].as_u64().unwrap() > (1 << 32) + LINES - 10);
    sequencer.stop().with(0);
    for (reader, name) in readers.into_iter().zip(["r0", "r1"]) {
        reader.end().with(0);
        assert!(fs::read_to_string(out(name)).unwrap() == text);
    }
    run(&["verify", &path]).with(0);

    let path = create(&folder, "63 bits", &["--first-index", &(LAST - 9).to_string()]);
    let sequencer = sequence(&path);
    let got = folder.path().join("w").display().to_string();
    let reader = worker(&path, "w", &["--out", &got]);
    let submit = run(&["submit", &path, &file, "--batch", "1"]);
    assert!(submit.code == Some(1) && submit.err.contains("closed"), "{submit:?}");
    sequencer.end().with(2).saying(&["index exhausted", &LAST.to_string()]);
    assert_eq!(stat(&path)["state"], "exhausted");
    assert_eq!(stat(&path)["next"], LAST);
    run(&["sequence", &path]).with(2).saying(&["index exhausted", &LAST.to_string()]);
    // Nine indexes, of which a worker and a producer that came took one each.
    let lines: String = text.split_inclusive('\n').take(7).collect();
    eventually("the worker has the last one", || fs::read_to_string(&got).unwrap() == lines);
    reader.stop().with(0);

    let past = folder.path().join("64 bits").display().to_string();
    for first in [LAST + 1, u64::MAX - 9] {
        let ended = run(&["create", &past, "--first-index", &first.to_string()]);
        ended.with(2).saying(&["first index", &first.to_string(), &LAST.to_string()]);
    }
}

// ---- pinning ----------------------------------------------------------------------------------------------

/// The CPUs of each thread of a process, by name.
fn masks(pid: u32) -> Vec<(String, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter_map(|thread| {
        let status = fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
        let field =
            |name: &str| Some(status.lines().find_map(|line| line.strip_prefix(name))?.trim().to_string());
        Some((field("Name:")?, field("Cpus_allowed_list:")?))
    });
    threads.collect()
}

#[test]
fn a_cpu_that_is_not_allowed_is_named_with_those_that_are_and_by_what() {
    let cpus = affinity::allowed();
    let folder = scratch();
    let path = create(&folder, "region", &[]);
    for cpu in ["4096", "1000000", "18446744073709551615"] {
        run(&["sequence", &path, "--core", cpu]).with(2).saying(&[cpu, &format!("{cpus:?}"), "no such CPU"]);
    }
    let [mine, other, ..] = cpus[..] else { return println!("skipped: there is only one CPU") };
    let (mine, other) = (mine.to_string(), other.to_string());
    let parts = [&format!("CPU {other} is not allowed"), &format!("[{mine}]"), "by its affinity mask"];
    let args = ["sequence", &path, "--core", &other];
    if works(&["taskset", "-c", &mine]) {
        Running::start(&mut through(&["taskset", "-c", &mine], &args)).end().with(2).saying(&parts);
    } else {
        println!("skipped: no taskset here");
    }
    let Some(group) = Group::make("cpuset", "pins") else { return };
    if !(group.set(&["cpuset.cpus"], &mine) && group.set(&["cpuset.mems"], "0")) {
        return println!("skipped: CPUs cannot be set in {}", group.0.display());
    }
    let parts = [parts[0], parts[1], "by the cpuset"];
    Running::start(&mut group.inside(&args)).end().with(2).saying(&parts);
    run(&["verify", &path]).with(0);
}

#[test]
fn only_the_thread_of_the_sequencer_is_pinned() {
    let cpus = affinity::allowed();
    let [mine, _, ..] = cpus[..] else { return println!("skipped: there is only one CPU") };
    let folder = scratch();
    let path = create(&folder, "region", &[]);
    let mut sequencer = Running::start(&mut seriatim(&["sequence", &path, "--core", &mine.to_string()]));
    sequencer.line();
    let all = masks(std::process::id()).into_iter().map(|(_, mask)| mask).max_by_key(String::len).unwrap();
    let masks = masks(sequencer.pid());
    assert!(masks.len() >= 2, "{masks:?}");
    for (name, mask) in &masks {
        let want = if name == "seriatim-seq" { &mine.to_string() } else { &all };
        assert_eq!(mask, want, "{masks:?}");
    }
    assert!(masks.iter().any(|(name, _)| name == "seriatim-seq"), "{masks:?}");
    sequencer.stop().with(0);
}

#[test]
fn what_a_handler_starts_is_not_pinned() {
    let cpus = affinity::allowed();
    let [mine, ..] = cpus[..] else { unreachable!("this thread runs somewhere") };
    let region = Region::anonymous(&Config::new()).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new().core(mine)).unwrap();
    for pinned in [false, true] {
        let worker = Worker::join(&region, "w").unwrap();
        let working = thread::spawn(move || {
            if pinned {
                affinity::pin(mine).unwrap();
            }
            let mut seen = None;
            let mut worker = worker;
            while seen.is_none() {
                if let Event::Command(_) = worker.recv().unwrap() {
                    let helper = thread::spawn(move || {
                        // A thread begins with the mask of who starts it: the pinned one's gives it back.
                        if pinned {
                            assert_eq!(affinity::allowed(), [mine]);
                            affinity::unpin().unwrap();
                        }
                        affinity::allowed()
                    });
                    seen = Some(helper.join().unwrap());
                }
            }
            (seen.unwrap(), affinity::allowed())
        });
        Producer::attach(&region, "p").unwrap().submit(0, b"go").unwrap();
        let (helper, worker) = working.join().unwrap();
        assert_eq!(helper, cpus);
        assert_eq!(worker, if pinned { vec![mine] } else { cpus.clone() });
    }
    sequencer.close().unwrap();
}

#[test]
fn two_pins_to_one_core_are_warned_about() {
    let cpus = affinity::allowed();
    let [mine, ..] = cpus[..] else { unreachable!("this thread runs somewhere") };
    let mine = mine.to_string();
    let said = format!("two threads are pinned to CPU {mine}");
    let ended = run(&["run", "/dev/null", "--pin", &mine]).with(0);
    assert_eq!(ended.err.matches(&said).count(), 1, "{ended:?}");
    if cpus.len() < 2 {
        return println!("skipped: where there is one CPU, having it is no pin");
    }
    let folder = scratch();
    let start = |name: &str, more: &[&str]| {
        let path = create(&folder, name, &[]);
        let mut sequencer = Running::start(&mut seriatim(&[&["sequence", &path], more].concat()));
        assert!(sequencer.line().starts_with("serving "));
        sequencer
    };
    let first = start("first", &["--core", &mine]);
    let second = start("second", &["--core", &mine]);
    let ended = second.stop().with(0);
    assert_eq!(ended.err.matches(&said).count(), 1, "{ended:?}");
    let free = start("free", &[]);
    assert_eq!(free.stop().with(0).err, "");
    first.stop().with(0);
}

// ---- payloads ---------------------------------------------------------------------------------------------

/// Reads so many commands, and passes them.
fn read(worker: &mut Worker, count: usize, mut check: impl FnMut(usize, &[u8])) {
    let mut got = 0;
    while got < count {
        if let Event::Command(command) = worker.recv().unwrap() {
            check(got, command.payload);
            got += 1;
        }
    }
    // What was received last counts as passed when the next is asked for.
    while worker.poll().unwrap().is_some() {}
}

#[test]
fn nothing_is_left_of_what_is_refused() {
    let config = Config::new().producers(1).workers(1).lane_cells(4096).lane_bytes(1 << 20).order_slots(4096);
    let region = Region::anonymous(&config.spill_bytes(0)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    let max = producer.max_payload();
    assert_eq!((max, region.max_payload()), (1 << 19, 1 << 19));
    let fill = |producer: &mut Producer, len: usize| -> usize {
        let payload = vec![9; len];
        let taken = (0..).take_while(|_| producer.try_submit(1, &payload).is_ok()).count();
        for _ in 0..10_000 {
            assert!(matches!(producer.try_submit(1, &payload), Err(SubmitError::Full(_))));
        }
        assert!(matches!(producer.try_claim(1, len), Err(SubmitError::Full(_))));
        taken
    };
    let held = fill(&mut producer, 4096);
    assert_eq!(held, 256);
    for len in [max + 1, 2 << 20, usize::MAX] {
        let error = producer.try_claim(1, len).unwrap_err();
        assert_eq!(error, SubmitError::TooLarge { len, max });
        assert!(error.to_string().contains(&len.to_string()) && error.to_string().contains(&max.to_string()));
    }
    let mut worker = Worker::join(&region, "w").unwrap();
    read(&mut worker, held, |_, payload| assert_eq!(payload, [9; 4096]));
    // As much room as before, at the index that comes next.
    let next = producer.next_index();
    assert_eq!(next, held as u64);
    eventually("all of it is free again", || {
        let freed = &region.snapshot().producers[0];
        // Asking for room is what has it freed.
        drop(producer.try_claim(1, max));
        freed.released == next
    });
    assert_eq!(fill(&mut producer, 4096), held);
    read(&mut worker, held, |_, payload| assert_eq!(payload, [9; 4096]));

    // Nothing is a payload, too: a thousand of them between two that are something.
    for len in [[3].as_slice(), &[0; 1000], &[4]].concat() {
        producer.submit(2, &[5, 6, 7, 8][..len]).unwrap();
    }
    let lengths = |at| [3, 4][usize::from(at > 0)] * usize::from(at == 0 || at == 1001);
    read(&mut worker, 1002, |at, payload| assert_eq!(payload.len(), lengths(at)));
    for len in [0, 1, max - 1, max] {
        let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
        producer.submit(3, &payload).unwrap();
        read(&mut worker, 1, |_, got| assert!(got == payload));
    }
    assert_eq!(producer.next_index(), 2 * held as u64 + 1002 + 4);
    sequencer.close().unwrap();
}

#[test]
fn more_than_4_gib_are_as_good_as_less() {
    const LANE: u64 = 8 << 30;
    let max = u64::from(u32::MAX) - 1;
    assert_eq!(Config::new().lane_bytes(LANE).max_payload(), max);
    let folder = scratch();
    let path = folder.path().join("region").display().to_string();
    run(&["create", &path, "--lane-bytes", "2048G"]).with(2).saying(&["2199023255552", "to 1099511627776"]);
    if !long() {
        return println!("skipped: a region of 8 GiB is for SERIATIM_LONG=1");
    }
    let config =
        Config::new().producers(1).workers(2).lane_cells(16_384).lane_bytes(LANE).order_slots(16_384);
    let config = config.spill_bytes(0);
    if let Some(why) = lacks(folder.path(), LANE + (2 << 30)) {
        return println!("skipped: {why}");
    }
    let region = Region::create(&path, &config).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let mut producer = Producer::attach(&region, "p").unwrap();
    // All of it at once, while nobody works.
    let mut record = vec![0; 1 << 20];
    let mark = |record: &mut [u8], at: u64| {
        for (line, bytes) in record.chunks_mut(4096).enumerate() {
            bytes[..8].copy_from_slice(&(at << 20 | line as u64).to_le_bytes());
        }
    };
    let is_marked = |record: &[u8], at: u64| {
        let mut lines = record.chunks(4096).enumerate();
        record.len() == 1 << 20
            && lines.all(|(line, bytes)| bytes[..8] == (at << 20 | line as u64).to_le_bytes())
    };
    let mut held = 0;
    loop {
        mark(&mut record, held);
        match producer.try_submit(1, &record) {
            Ok(_) => held += 1,
            Err(SubmitError::Full(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(held, LANE >> 20);
    let mut worker = Worker::join(&region, "w").unwrap();
    let mut at = 0;
    while at < held {
        if let Event::Command(command) = worker.recv().unwrap() {
            assert!(is_marked(command.payload, at), "record {at}");
            at += 1;
        }
    }
    println!("{held} records of 1 MiB filled {LANE} bytes and came out whole");

    // One of 2 GiB, and the longest there is.
    for len in [1 << 31, max as usize] {
        let mut claim = producer.claim(2, len).unwrap();
        for at in [0, 1 << 30, len - 8] {
            claim[at..at + 8].copy_from_slice(&at.to_le_bytes());
        }
        claim.commit().unwrap();
        loop {
            if let Event::Command(command) = worker.recv().unwrap() {
                assert_eq!(command.payload.len(), len);
                for at in [0, 1 << 30, len - 8] {
                    assert_eq!(command.payload[at..at + 8], at.to_le_bytes());
                }
                break;
            }
        }
        println!("a payload of {len} bytes came out whole");
    }
    for len in [1 << 32, (1 << 32) + 1] {
        let error = producer.try_claim(2, len).unwrap_err();
        assert_eq!(error, SubmitError::TooLarge { len, max: max as usize });
    }
    sequencer.close().unwrap();
    // A worker that checks 4 GiB holds the others up for longer than a second.
    let errors = region.snapshot().errors.records;
    assert!(errors.iter().all(|error| error.code == ErrorCode::Stalled), "{errors:?}");
}

#[test]
fn stat_says_that_the_sequencer_is_helped_and_under_what_load() {
    let cpus = affinity::allowed();
    let [one, other, ..] = cpus[..] else { return println!("skipped: it takes two CPUs") };
    if !works(&["taskset", "-c", &one.to_string()]) {
        return println!("skipped: no taskset");
    }
    let folder = scratch();
    let path = create(&folder, "region", &[]);
    let region = Region::attach(&path).unwrap();
    let sequencer_on = |cpus: &[usize]| {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu).unwrap());
        thread::scope(|scope| {
            let spawn = || {
                // Its thread inherits it.
                sched_setaffinity(Pid::from_raw(0), &set).unwrap();
                Sequencer::spawn(&region, SequencerConfig::new()).unwrap()
            };
            scope.spawn(spawn).join().unwrap()
        })
    };
    let worker_on = |cpu: usize, name: &str| {
        let pinned = ["taskset", "-c", &cpu.to_string()];
        let worker = Running::start(&mut through(&pinned, &["worker", &path, "--name", name]));
        await_join(&path, name);
        worker
    };

    let sequencer = sequencer_on(&[one, other]);
    let here = join(&region, "here");
    assert_eq!(stat(&path)["helped"], serde_json::Value::Null);
    let there = worker_on(one, "there");
    eventually("it is helped", || stat(&path)["helped"]["parties"] == 2);
    let text = run(&["stat", &path]).with(0).out;
    let line = "the sequencer is helped by the workers of its process (2 CPUs allowed, 2 parties)\n";
    assert!(text.contains(line), "{text}");
    there.stop().with(0);
    eventually("it is alone", || stat(&path)["helped"].is_null());
    sequencer.stop().unwrap();

    // Who may not run where it runs does not count.
    let sequencer = sequencer_on(&[one]);
    let apart = worker_on(other, "apart");
    let near = worker_on(one, "near");
    eventually("it is helped", || stat(&path)["helped"]["parties"].as_u64() > Some(1));
    assert_eq!(stat(&path)["helped"]["parties"], 2);
    sequencer.stop().unwrap();
    assert!(stat(&path)["helped"].is_null());
    drop((here, apart, near));
}

#[test]
fn who_spins_where_others_are_to_run_is_warned() {
    let cpus = affinity::allowed();
    let one = cpus[0].to_string();
    if !works(&["taskset", "-c", &one]) {
        return println!("skipped: no taskset");
    }
    let folder = scratch();
    let path = create(&folder, "region", &[]);
    for (only, wait, is_warned) in
        [(true, "spin", true), (true, "yield", false), (false, "spin", cpus.len() == 1)]
    {
        let args = ["sequence", &path, "--wait", wait];
        let mut command = if only { through(&["taskset", "-c", &one], &args) } else { seriatim(&args) };
        let mut sequencer = Running::start(&mut command);
        assert!(sequencer.line().starts_with("serving "));
        let said = sequencer.stop().with(0).err;
        assert_eq!(said.contains("a party spins on the only CPU"), is_warned, "{only} {wait}: {said}");
        assert!(said.lines().count() <= 1, "{said}");
    }
    let file = folder.path().join("lines");
    fs::write(&file, "one\ntwo\n").unwrap();
    for (wait, is_warned) in [("spin", true), ("park", false)] {
        let args = ["run", file.to_str().unwrap(), "--producers", "1", "--workers", "1", "--wait", wait];
        let said = Running::start(&mut through(&["taskset", "-c", &one], &args)).end().with(0).err;
        assert_eq!(
            said.contains("3 parties spin, and this process may use 1 CPUs"),
            is_warned,
            "{wait}: {said}"
        );
    }
}
