//! Parties that have nothing to do cost next to nothing, and are woken when they have.

mod common;

use std::fs;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use nix::unistd::{SysconfVar, gettid, sysconf};
use seriatim::{Config, Event, Region, Sequencer, SequencerConfig};

const WORKERS: usize = 4;

/// Reached only when a wake-up is lost for good.
const NEVER: Duration = Duration::from_secs(60);

#[test]
fn a_parked_sequencer_and_four_workers_cost_no_cpu() {
    let folder = scratch();
    let region = create(&folder, "region", &[]);
    let mut parties = vec![sequence(&region)];
    for number in 0..WORKERS {
        let out = folder.path().join(number.to_string());
        parties.push(worker(&region, &format!("w{number}"), &["--out", out.to_str().unwrap()]));
    }
    let pids: Vec<u32> = parties.iter_mut().map(Running::pid).collect();
    idles("before any producer", &pids);
    run_with(&["submit", &region], b"before\n").with(0);
    let arrived = |text: &str| {
        let read = |number: usize| fs::read_to_string(folder.path().join(number.to_string())).unwrap();
        eventually("it arrives everywhere", || (0..WORKERS).all(|number| read(number) == text));
    };
    arrived("before\n");

    idles("after one left", &pids);
    run_with(&["submit", &region], b"after\n").with(0);
    arrived("before\nafter\n");
    parties.remove(0).stop().with(0);
    for worker in parties {
        worker.end().with(0);
    }
}

/// That parties cost next to nothing for a while. What stops a whole machine, or shares it, is counted as their time as
/// well, so that one while of a few will do: whoever does not sleep uses too much in each.
fn idles(when: &str, pids: &[u32]) {
    let time = Duration::from_secs(if long() { 10 } else { 2 });
    let next_to_nothing = |_| {
        let share = share_of_a_core(pids, time);
        println!("{when}: {:.2} % of one core, all {} together", share * 100.0, pids.len());
        share < 0.02
    };
    assert!((0..10).any(next_to_nothing), "{when}: never less than 2 % of one core while idle");
}

/// How much of a core processes use for a while.
fn share_of_a_core(pids: &[u32], time: Duration) -> f64 {
    let used = || pids.iter().map(|&pid| cpu_ticks(pid)).sum::<u64>();
    let (before, started) = (used(), Instant::now());
    thread::sleep(time);
    (used() - before) as f64 / ticks_per_second() / started.elapsed().as_secs_f64()
}

#[test]
fn waiting_by_yielding_or_spinning_costs_more_than_parking() {
    let folder = scratch();
    let ways = ["park", "yield", "spin"];
    let mut sequencers = ways.map(|wait| {
        let region = create(&folder, wait, &[]);
        let mut sequencer = Running::start(&mut seriatim(&["sequence", &region, "--wait", wait]));
        assert!(sequencer.line().starts_with("serving"));
        sequencer
    });
    let pids = sequencers.each_mut().map(|sequencer| sequencer.pid());
    let (before, started) = (pids.map(cpu_ticks), Instant::now());
    let mut used = [0; 3];
    // However little of the machine it gets: until the one that spins has used that much.
    let enough = times(20, 500);
    eventually("it uses processor time", || {
        used = std::array::from_fn(|way| cpu_ticks(pids[way]) - before[way]);
        used[2] >= enough
    });
    println!("idle sequencers that wait by {ways:?}: {used:?} ticks in {:?}", started.elapsed());
    assert!(used[0] * 5 <= enough, "one that is parked uses {used:?} ticks");
    // One that yields gets what nobody else wants, which may be next to nothing: but it never sleeps, which one that
    // is parked does ten times a second.
    for pid in &pids[1..] {
        let thread = sequencer_thread(*pid);
        let runs = || {
            thread::sleep(Duration::from_millis(10));
            fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap().contains("State:\tR")
        };
        eventually("it never sleeps", || (0..30).all(|_| runs()));
    }
    for sequencer in sequencers {
        sequencer.stop().with(0);
    }
}

fn ticks_per_second() -> f64 {
    sysconf(SysconfVar::CLK_TCK).unwrap().unwrap() as f64
}

#[test]
fn the_first_command_after_any_pause_arrives() {
    let region = Region::anonymous(&Config::new().producers(1).workers(WORKERS as u64)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::default()).unwrap();
    let (tell, told) = mpsc::channel();
    let (name, named) = mpsc::channel();
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let mut worker = join(&region, &format!("w{number}"));
            let (tell, name) = (tell.clone(), name.clone());
            thread::spawn(move || {
                name.send(gettid().as_raw()).unwrap();
                loop {
                    match worker.recv().unwrap() {
                        Event::Command(command) => tell.send(command.index).unwrap(),
                        Event::Closed { .. } => return,
                        _ => {}
                    }
                }
            })
        })
        .collect();
    let mut threads: Vec<i32> = named.iter().take(WORKERS).collect();
    threads.push(sequencer_thread(std::process::id()));

    let mut producer = attach(&region, "p");
    let mut random: u64 = 0x2545_f491_4f6c_dd1d;
    for round in 0..10_000 {
        // Of every length around those after which a waiter stops to spin, yields, and sleeps.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        pause(Duration::from_nanos(random % (1 << (10 + random % 12))));
        assert_eq!(producer.submit(0, &random.to_le_bytes()).unwrap(), round);
        arrives(&told, round, &threads);
    }
    sequencer.close().unwrap();
    for worker in workers {
        worker.join().unwrap();
    }
}

/// Exactly as long where that matters: the kernel makes the shortest sleep longer than the steps of a wait.
fn pause(time: Duration) {
    let started = Instant::now();
    if time > Duration::from_micros(200) {
        return thread::sleep(time);
    }
    while started.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Waits until every worker has said that it received a command.
///
/// No waiter sleeps for ever, so a wake-up that is lost shows as a delay only, and a delay can have other
/// reasons. But as long as none is lost, somebody runs or is about to run until the command is everywhere,
/// however busy the machine is. So if it is late, and everybody is found asleep without a break, a wake-up
/// was lost.
fn arrives(told: &Receiver<u64>, round: u64, threads: &[i32]) {
    let (started, mut arrived) = (Instant::now(), 0);
    while arrived < WORKERS {
        if let Ok(index) = told.recv_timeout(Duration::from_millis(40)) {
            assert_eq!(index, round);
            arrived += 1;
            continue;
        }
        assert!(started.elapsed() < NEVER, "command {round} does not arrive");
        let first = threads.iter().map(|&thread| asleep(thread)).collect::<Option<Vec<_>>>();
        thread::sleep(Duration::from_millis(20));
        let second = threads.iter().map(|&thread| asleep(thread)).collect::<Option<Vec<_>>>();
        arrived += told.try_iter().count();
        let unbroken = first.is_some() && first == second;
        assert!(
            arrived == WORKERS || !unbroken,
            "command {round} is not everywhere and nobody was woken for it"
        );
    }
}

/// If a thread of this process sleeps: how often it has come to sleep.
fn asleep(thread: i32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_string();
    field("State:").starts_with('S').then(|| field("voluntary_ctxt_switches:"))
}

fn sequencer_thread(pid: u32) -> i32 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|entry| entry.unwrap().path());
    let mut sequencer =
        threads.filter(|path| fs::read_to_string(path.join("comm")).unwrap() == "seriatim-seq\n");
    let path = sequencer.next().expect("the sequencer's thread goes by this name");
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}
