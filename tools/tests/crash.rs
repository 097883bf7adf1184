//! Death and standstill at every step: each crash point is run with a real process that is killed there, and with
//! one that is stopped there, while others are busy; then the stream is checked.
//!
//! ```text
//! cargo test -p seriatim-tools --features crash-points --test crash -- --nocapture
//! ```
//!
//! `SERIATIM_LONG=1` runs each point at more of its passes; `SERIATIM_CRASH_ONLY=lane.` only those that begin so.

mod common;
mod controllers;
mod engine;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use controllers::{Job, Process, Work};
use engine::{Engine, Random, Who, seed};
use nix::sys::signal::Signal;
use seriatim::shared::Stamps;
use seriatim::{Config, Region, Sequencer, SequencerConfig, SequencerError, Snapshot, inspect};

/// What the processes of a test do. Does nothing as a test.
#[test]
fn part() {
    engine::part::play();
    controllers::play();
}

/// Who meets a point, and what has to happen for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// A producer attaches and submits.
    Submit,
    /// The sequencer lets everybody in and orders what they submit.
    Serve,
    /// The sequencer, when a worker leaves.
    ServeLeaver,
    /// The sequencer, when the only worker died before a full ring and another one takes its place.
    ServeSuccessor,
    /// The sequencer, when it meets tickets that cannot be right.
    ServeWild,
    /// The sequencer, when it closes the order.
    Close,
    /// The second sequencer, when it takes over from one that died.
    TakeOver,
    /// A worker joins and receives.
    Work,
    /// A worker leaves.
    Leave,
    /// A region is made.
    Create,
    /// A controller opens an incarnation.
    Open,
    /// A worker meets a hello that ends another incarnation.
    Supersede,
}

/// Where a point is met.
fn scenes(point: &str) -> &'static [Scene] {
    use Scene::{
        Close, Create, Leave, Open, Serve, ServeLeaver, ServeSuccessor, ServeWild, Submit, Supersede,
        TakeOver, Work,
    };
    let (group, step) = point.split_once('.').expect("a point is of a group");
    match (group, step) {
        ("lane", _) => &[Submit, Serve],
        ("ticket", "in") => &[Submit, Close],
        ("ticket" | "submit", _) | ("attach", "resumed") => &[Submit],
        ("spill", "claimed" | "reserved" | "written" | "void") => &[Submit],
        ("spill", _) => &[Serve],
        ("attach", _) | ("party", "asked" | "told") => &[Submit, Work],
        ("snapshot", _) => &[Serve, Work],
        ("order" | "publish" | "settle" | "event", _) => &[Serve, Close],
        ("free" | "admit" | "owner", _) | ("announce", "joined") => &[Serve],
        ("drop", _) | ("announce", "left") => &[ServeLeaver],
        ("way", _) | ("announce", "former") => &[ServeSuccessor],
        ("reject" | "skip", _) => &[ServeWild],
        ("join", "cursor") | ("party", "begun") | ("poll" | "report", _) | ("wake", "woken") => &[Work],
        ("join", _) => &[Serve],
        ("party", "left") | ("leave", _) => &[Leave],
        ("close", _) => &[Close],
        ("takeover" | "sequence", _) => &[TakeOver],
        ("wake", _) => &[Submit, Serve],
        ("create", _) => &[Create],
        ("claim" | "open", _) => &[Open],
        ("term", _) => &[Supersede],
        _ => &[],
    }
}

/// Whether a point is passed with every command or run, and so can be met at a later pass as well.
fn is_frequent(point: &str) -> bool {
    let groups = [
        "lane.",
        "order.",
        "publish.",
        "settle.",
        "submit.",
        "spill.",
        "free.",
        "poll.next",
        "ticket.in",
        "report.",
    ];
    groups.iter().any(|group| point.starts_with(group))
}

/// One run: a point, the pass at which the process ends there, and how.
#[derive(Clone, Copy, Debug)]
struct Trial {
    point: &'static str,
    scene: Scene,
    pass: u64,
    stop: bool,
    seed: u64,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Trial { point, scene, pass, stop, seed } = self;
        let how = if *stop { "stopped" } else { "killed" };
        write!(f, "{how} at {point}:{pass} in {scene:?}, seed {seed}")
    }
}

/// Commands of each producer before the victim meets its point, and more of them, as often as it takes.
const BEFORE: u64 = 60;
const MORE: u64 = 30;

impl Trial {
    fn crash(&self) -> String {
        let after = match (self.scene, self.point) {
            // What comes before the order is closed is met in other scenes.
            (Scene::Close, point) if point != "close.closing" => "close.closing>",
            // While it attaches, others wake it as well.
            (Scene::Work, "wake.woken") => "party.begun>",
            _ => "",
        };
        format!("{after}{}:{}{}", self.point, self.pass, if self.stop { ":stop" } else { "" })
    }

    fn victim(&self) -> Who {
        match self.scene {
            Scene::Submit => Who::Producer(2),
            Scene::Work | Scene::Leave => Who::Worker(2),
            _ => Who::Sequencer(0),
        }
    }

    /// Runs it; how many commands were checked.
    fn run(&self) -> u64 {
        if self.scene == Scene::Create {
            self.create();
            return 0;
        }
        if matches!(self.scene, Scene::Open | Scene::Supersede) {
            return self.supersede();
        }
        let mut engine = self.engine();
        let victim = self.victim();
        self.set_up(&mut engine);
        self.provoke(&mut engine);
        if self.stop {
            let has_stopped = |e: &mut Engine| e.is_stopped(victim);
            let goal = self.await_victim(&mut engine, "the victim stops", has_stopped);
            self.go_on_without(&mut engine, goal);
            engine.signal(victim, Signal::SIGCONT);
        } else {
            self.await_victim(&mut engine, "the victim is killed", |e| e.has_crashed(victim));
            engine.start(victim, None);
        }
        if self.scene == Scene::Leave {
            engine.ask_to_leave(2, false);
        }
        let goal = engine.goal() + if self.scene == Scene::Close { 0 } else { MORE };
        engine.set_goal(goal);
        engine.await_all("everything is submitted", |e| e.have_submitted(goal));
        let checked = engine.finish();
        assert_eq!(checked.commands, 3 * goal, "{self}");
        assert!(checked.compared > checked.commands && checked.joins > 0, "{self}: {checked:?}");
        checked.commands
    }

    fn engine(&self) -> Engine {
        if self.scene == Scene::ServeSuccessor || self.point == "wake.rung" {
            // Few enough slots that the ring is full before the lanes are: the sequencer sleeps for room, too.
            let config = Config::new().order_slots(4).lane_cells(16).lane_bytes(4096).producers(6);
            let config = config.workers(5).ranks(4);
            return Engine::with(self.to_string(), &config);
        }
        Engine::new(self.to_string())
    }

    /// Starts everybody, the victim with its fuse.
    fn set_up(&self, engine: &mut Engine) {
        let (victim, crash) = (self.victim(), self.crash());
        let fuse = |who| (who == victim && self.scene != Scene::TakeOver).then_some(crash.as_str());
        engine.set_goal(BEFORE);
        if self.point.starts_with("wake.") {
            engine.be_patient();
        }
        if self.scene == Scene::TakeOver {
            engine.start(victim, Some(&self.predecessor()));
        } else {
            engine.start(Who::Sequencer(0), fuse(Who::Sequencer(0)));
        }
        engine.start(Who::Worker(0), None);
        if let Who::Worker(_) = victim {
            // It is not the victim that gets what nobody else gets.
            engine.await_all("the first worker joins", |e| {
                e.region().snapshot().workers.iter().any(|worker| worker.party.attached)
            });
        }
        let workers = if self.scene == Scene::ServeSuccessor { 1 } else { 3 };
        (1..workers).for_each(|i| engine.start(Who::Worker(i), fuse(Who::Worker(i))));
        (0..3).for_each(|i| engine.start(Who::Producer(i), fuse(Who::Producer(i))));
        if self.scene == Scene::ServeWild {
            engine.start(Who::Idler, None);
        }
    }

    /// Where the sequencer dies that the victim succeeds: just after a commit word if that is what matters.
    fn predecessor(&self) -> String {
        let points = ["settle.next", "free.anchor", "free.released", "event.ordered", "order.words"];
        let mut random = Random(self.seed);
        match self.point {
            "takeover.lane" => "order.committed:5".into(),
            "takeover.event" => "event.ordered:2".into(),
            _ => format!("{}:{}", points[random.below(5) as usize], 1 + random.below(5)),
        }
    }

    /// Brings the victim to its point, if it does not come there by itself.
    fn provoke(&self, engine: &mut Engine) {
        let victim = self.victim();
        match self.scene {
            Scene::TakeOver => {
                engine.await_but(Some(victim), "the first sequencer is killed", |e| e.has_crashed(victim));
                engine.start(victim, Some(&self.crash()));
            }
            Scene::ServeLeaver | Scene::Leave => {
                let is_quiet = |e: &mut Engine| e.have_submitted(BEFORE) || e.is_stopped(victim);
                engine.await_but(Some(victim), "the sequencer has nothing to do", is_quiet);
                engine.ask_to_leave(2, true);
            }
            Scene::ServeSuccessor => self.replace_the_only_worker(engine),
            Scene::ServeWild => {
                engine.await_all("everybody is quiet", |e| {
                    e.have_submitted(BEFORE) && e.region().snapshot().producers.len() == 4
                });
                queue_bad_tickets(engine.region());
            }
            Scene::Close => {
                // Who comes later finds nobody who serves.
                engine.await_all("everything is submitted", |e| e.have_submitted(BEFORE) && e.is_complete());
                engine.ask_to_close();
            }
            _ => {}
        }
    }

    fn replace_the_only_worker(&self, engine: &mut Engine) {
        let only = Who::Worker(0);
        engine.await_all("everybody is at work", |e| e.seen(0) > 20 && e.have_submitted(1));
        engine.signal(only, Signal::SIGSTOP);
        // Before it stands, it could receive all that is to fill the ring.
        engine.await_all("it stands still", |e| e.is_stopped(only));
        engine.set_goal(BEFORE + MORE);
        engine.await_all("the ring is full behind it", |e| {
            // A sequencer that sleeps before tickets has no room for them: one that is slow has not taken them yet.
            let wait = |who| !matches!(who, Who::Worker(_));
            let snapshot = e.are_asleep(wait).then(|| e.region().snapshot());
            // Also all that it passed is freed already, so that its death gives no room.
            let is_freed = |s: &Snapshot| s.workers.first().is_some_and(|w| w.next == s.anchor);
            snapshot.is_some_and(|s| s.tickets_waiting > 0 && s.held_by.is_some() && is_freed(&s))
        });
        engine.kill(only);
        engine.start(only, None);
    }

    /// Waits for the victim to meet its point, with more commands as long as it does not; the goal then.
    fn await_victim(
        &self,
        engine: &mut Engine,
        what: &str,
        mut ended: impl FnMut(&mut Engine) -> bool,
    ) -> u64 {
        engine.await_but(Some(self.victim()), what, |e| {
            let goal = e.goal();
            let needs_more = matches!(self.scene, Scene::Submit | Scene::Serve | Scene::Work);
            // Only who sleeps is woken.
            let wait = |who| matches!(who, Who::Sequencer(_) | Who::Worker(_));
            let may_have_more = !self.point.starts_with("wake.") || e.are_asleep(wait);
            if needs_more && e.have_submitted(goal) && may_have_more {
                e.set_goal(goal + MORE);
            }
            ended(e)
        });
        engine.goal()
    }

    /// What the others do while the victim stands still.
    fn go_on_without(&self, engine: &mut Engine, goal: u64) {
        let victim = self.victim();
        if self.scene == Scene::Submit {
            // Nobody waits for a producer.
            let goal = goal + MORE;
            engine.set_goal(goal);
            engine.await_but(Some(victim), "the others submit everything", |e| {
                e.acked(0) == goal && e.acked(1) == goal
            });
            return;
        }
        if let Who::Sequencer(_) = victim {
            let second = Sequencer::open(engine.region());
            assert!(matches!(second, Err(SequencerError::Running { .. })), "{self}: {second:?}");
        }
        // Others may fill what room there is; how long they have for it decides nothing.
        let until = Instant::now() + Duration::from_millis(30);
        engine.await_but(Some(victim), "some time passes", |_| Instant::now() >= until);
        assert!(engine.is_stopped(victim), "{self}");
    }

    /// A controller, or a worker that is told of one, ends midway or stands still; another controller comes, and is heard.
    /// How many commands were.
    fn supersede(&self) -> u64 {
        let (folder, logs) = (common::scratch(), tempfile::TempDir::new().unwrap());
        let path = folder.path().join("region");
        let region = Region::create(&path, &Config::new()).expect("room for a region");
        let sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
        let crash = self.crash();
        let start = |out: &str, job: Job, crash| Process::start(&job, &path, logs.path().join(out), crash);
        let work = |name: &str, crash| start(name, Job::Work { name: name.into(), micros: 0 }, crash);
        let have_joined = |count| {
            common::eventually("all have joined", || controllers::inside(&region) == count);
        };
        let is_worker = self.scene == Scene::Supersede;
        let mut first = work("w0", None);
        have_joined(1);
        let mut victim = is_worker.then(|| work("w1", Some(&crash)));
        have_joined(1 + usize::from(is_worker));
        let send = |name: &str| {
            let mut sender = controllers::open(&region, name, 0);
            let incarnation = sender.number();
            for n in 0..5 {
                sender.send(&Work { incarnation, n }).expect("it is the newest");
            }
            incarnation
        };
        send("first");
        if is_worker {
            send("second");
        }
        let victim = victim.get_or_insert_with(|| {
            start("c", Job::Control { name: "victim".into(), nonce: 7, commands: 5 }, Some(&crash))
        });
        let mut last;
        if self.stop {
            common::eventually("the victim stops", || common::is_stopped(victim.child.id()));
            last = send("next");
            victim.signal(Signal::SIGCONT);
            // It may take its number only now.
            while !is_worker && !victim.has_ended() {
                last = send("last");
            }
        } else {
            common::eventually("the victim is killed", || victim.has_been_killed());
            last = send(if is_worker { "next" } else { "victim" });
        }
        sequencer.close().unwrap();
        if is_worker && self.stop {
            common::eventually("the victim ends", || victim.has_ended());
        }
        common::eventually("the worker ends", || first.has_ended());
        let checked = controllers::check(&logs, &first.out).unwrap_or_else(|wrong| panic!("{self}: {wrong}"));
        assert_eq!(checked.incarnations.last(), Some(&last), "{self}");
        assert_eq!(checked.commands.get(&last), Some(&5), "{self}");
        assert!(region.verify().is_sound(), "{self}");
        checked.commands.values().sum()
    }

    /// The creator ends midway: there is a whole region or none.
    fn create(&self) {
        let folder = common::scratch();
        let path = folder.path().join("region");
        let path_text = path.display().to_string();
        let mut command = common::seriatim(&["create", &path_text]);
        command.env("SERIATIM_CRASH", self.crash()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut creator = command.spawn().expect("the tool starts");
        let is_named = self.point == "create.named";
        if self.stop {
            common::eventually("the creator stops", || common::is_stopped(creator.id()));
            assert_eq!(path.exists(), is_named, "{self}");
            if !is_named {
                // Somebody else may have the name meanwhile; it then stays theirs.
                drop(Region::create(&path, &Config::new()).expect("nothing is in the way"));
            }
            let before = fs::read(&path).unwrap();
            let pid = nix::unistd::Pid::from_raw(creator.id() as i32);
            nix::sys::signal::kill(pid, Signal::SIGCONT).unwrap();
            assert_eq!(creator.wait().unwrap().code(), Some(if is_named { 0 } else { 2 }), "{self}");
            assert!(fs::read(&path).unwrap() == before, "{self}: a region was touched");
        } else {
            assert_eq!(creator.wait().unwrap().signal(), Some(Signal::SIGKILL as i32), "{self}");
            assert_eq!(path.exists(), is_named, "{self}");
        }
        if path.exists() {
            drop(Region::attach(&path).expect("the region is whole"));
        }
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, usize::from(path.exists()), "{self}: something is left behind");
    }
}

/// Queues a ticket for no cells of the idler's lane, and one of a lane that does not exist, as only a broken
/// process would. Nobody else submits meanwhile.
fn queue_bad_tickets(region: &Region) {
    /// The words begin this far into their section.
    const HINT_WORDS: u64 = 16;
    let producers = region.snapshot().producers;
    let idler = producers.iter().find(|p| p.party.name == "idler").expect("it is attached");
    let sections = inspect(region.path()).expect("the file can be read").sections;
    let section = sections.iter().find(|s| s.name == "tickets").expect("there are tickets");
    let words = (6 * 16u64 + 8).next_power_of_two();
    let first = (section.offset / 8 + HINT_WORDS) as usize;
    let table = Stamps::open(region.path()).expect("the file can be mapped");
    let turn = |slot: u64| table.get(first + slot as usize) >> 32;
    let tail = (0..words).find(|&slot| turn(slot) < turn(0).max(1)).unwrap_or(words);
    let this_turn = turn(0).max(1);
    for (n, lane) in [u64::from(idler.slot), 1000].into_iter().enumerate() {
        let at = tail + n as u64;
        let turn = if at < words { this_turn } else { this_turn + 1 };
        table.set(first + (at % words) as usize, turn << 32 | lane << 18);
    }
}

/// All runs, in the order of the list.
fn trials(seed: u64) -> Vec<Trial> {
    let only = std::env::var("SERIATIM_CRASH_ONLY").unwrap_or_default();
    let mut random = Random(seed);
    let mut trials = Vec::new();
    // Those are met where workers that differ are stopped: in `agreement.rs`; by a journal: in `journal_crash.rs`; by
    // who restores a region from one: in `restore.rs`; who joins from one: in `late_join.rs`; who follows one and takes its
    // place: in `standby.rs`; who keeps something beside one: in `kept.rs`.
    let beside = ["catch-up.", "standby.", "promote.", "store.", "bookmark.", "prune."];
    let elsewhere = [&["pace.", "poison.", "journal.", "take-up.", "restore."][..], &beside].concat();
    let is_elsewhere = |point: &str| elsewhere.iter().any(|group| point.starts_with(group));
    let points = seriatim::crash::points().into_iter().filter(|point| !is_elsewhere(point));
    for point in points.filter(|point| point.starts_with(&only)) {
        assert!(!scenes(point).is_empty(), "nothing leads to {point}");
        for &scene in scenes(point) {
            let is_frequent = is_frequent(point) && scene != Scene::Close;
            let passes: &[u64] = match (is_frequent, common::long()) {
                (false, _) => &[1],
                (true, false) => &[1, 2, 5],
                // Of the sequencer's own commands there are few.
                (true, true) if scene == Scene::Serve && point.starts_with("lane.") => &[1, 2, 3, 4, 5],
                (true, true) => &[1, 2, 3, 4, 5, 6, 7, 8],
            };
            let again = if common::long() { 10 } else { 1 };
            for (&pass, stop) in passes.iter().flat_map(|pass| [(pass, false), (pass, true)]) {
                let mut trial = || Trial { point, scene, pass, stop, seed: random.next() % 1_000_000 };
                trials.extend((0..again).map(|_| trial()));
            }
        }
    }
    trials
}

#[test]
fn whoever_ends_or_stands_still_at_any_step_costs_nobody_a_command() {
    let seed = seed();
    let trials = trials(seed);
    let (next, total) = (Mutex::new(trials.iter()), trials.len());
    let runs: Mutex<BTreeMap<&str, (u32, u32)>> = Mutex::new(BTreeMap::new());
    let commands = AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(trial) = { next.lock().unwrap().next() } {
                    commands.fetch_add(trial.run(), Ordering::Relaxed);
                    let mut runs = runs.lock().unwrap();
                    let (killed, stopped) = runs.entry(trial.point).or_default();
                    *(if trial.stop { stopped } else { killed }) += 1;
                }
            });
        }
    });
    let runs = runs.into_inner().unwrap();
    for (point, (killed, stopped)) in &runs {
        println!("{point:20} killed {killed}, stopped {stopped}");
        assert!(*killed > 0 && *stopped > 0, "{point} was not tried both ways");
    }
    let (points, commands, seconds) = (runs.len(), commands.into_inner(), started.elapsed().as_secs());
    println!("{points} points, {total} runs, {commands} commands checked, seed {seed}, {seconds} s");
}
