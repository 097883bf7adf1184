//! Real-time order across processes: a command whose submit returned before another's began comes before it.
//!
//! ```text
//!   a ── submit ── tell ─▶ b ── submit ── tell ─▶ a ── submit ── …        two producers take turns, by pipes
//!   x, y                                                                  two more submit all the time
//! ```
//!
//! So in the order the commands of `a` and `b` have to alternate from first to last, whatever is between
//! them. Were lanes drained in turn instead of by tickets, `b`'s would overtake `a`'s as soon as the
//! sequencer had passed `a`'s lane. The children are this test program itself, told by the environment which
//! part they have.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;

use seriatim::{Config, Event, Producer, Region, Sequencer, SequencerConfig, Worker};

const PART: &str = "SERIATIM_ORDER_PART";
const REGION: &str = "SERIATIM_ORDER_REGION";
const ROUNDS: &str = "SERIATIM_ORDER_ROUNDS";

/// The kinds of commands: whose they are.
const A: u16 = 1;
const B: u16 = 2;
const BUSY: u16 = 3;

#[test]
fn a_command_submitted_after_another_returned_comes_after_it() {
    let rounds: u64 = 10_000;
    let region = Region::anonymous(&Config::new().producers(4).workers(1).lane_cells(256)).unwrap();
    let sequencer = Sequencer::spawn(&region, SequencerConfig::default()).unwrap();
    let mut worker = Worker::join(&region, "w").unwrap();
    let seen = thread::spawn(move || {
        let (mut turns, mut busy) = (Vec::new(), 0_u64);
        loop {
            match worker.recv().unwrap() {
                Event::Command(command) if command.kind == BUSY => busy += 1,
                Event::Command(command) => turns.push((command.kind, command.index)),
                Event::Closed { .. } => return (turns, busy),
                _ => {}
            }
        }
    });

    let start = |part: &str, ears: Stdio, mouth: Stdio| Part::start(part, &region, rounds, ears, mouth);
    let mut busy = ["x", "y"].map(|part| start(part, Stdio::piped(), Stdio::piped()));
    for part in &mut busy {
        assert!(words(part.0.stdout.take().unwrap()).next().is_some(), "a busy part ended");
    }
    let ((a_hears, b_says), (b_hears, a_says)) = (io::pipe().unwrap(), io::pipe().unwrap());
    let takers = [start("a", a_hears.into(), a_says.into()), start("b", b_hears.into(), b_says.into())];
    for mut part in takers {
        assert!(part.0.wait().unwrap().success());
    }
    drop(busy);
    sequencer.close().unwrap();

    let (turns, busy) = seen.join().unwrap();
    assert_eq!(turns.len() as u64, 2 * rounds);
    for (place, (round, kind)) in (0..rounds).flat_map(|round| [(round, A), (round, B)]).enumerate() {
        assert_eq!(turns[place], (kind, round), "turn {place} of {}", turns.len());
    }
    println!("{rounds} rounds in order, among {busy} other commands");
    assert!(busy > 0, "nobody else was busy");
}

/// A child that plays a part, killed when its test ends.
struct Part(Child);

impl Part {
    fn start(part: &str, region: &Region, rounds: u64, ears: Stdio, mouth: Stdio) -> Part {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "a_part_in_a_process_of_its_own", "--nocapture"]);
        child.env(PART, part).env(REGION, region.path()).env(ROUNDS, rounds.to_string());
        Part(child.stdin(ears).stdout(mouth).spawn().unwrap())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The words of ours that come through a pipe: the test harness writes there as well.
fn words(pipe: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(pipe).lines().map_while(Result::ok);
    lines.filter_map(|line| line.strip_prefix(PART).map(|word| word.trim().to_string()))
}

// ---- the children -----------------------------------------------------------------------------------------

/// Does nothing unless it is started by the test above.
#[test]
fn a_part_in_a_process_of_its_own() {
    let Ok(part) = env::var(PART) else { return };
    let region = Region::attach(env::var(REGION).unwrap()).unwrap();
    let rounds = env::var(ROUNDS).unwrap().parse().unwrap();
    let producer = Producer::attach(&region, &part).unwrap();
    match part.as_str() {
        "a" => take_turns(producer, A, rounds),
        "b" => take_turns(producer, B, rounds),
        _ => be_busy(producer),
    }
    // Not through the test harness, whose last words would find the other's end of the pipe closed.
    std::process::exit(0);
}

fn take_turns(mut producer: Producer, kind: u16, rounds: u64) {
    let mut heard = words(io::stdin());
    let mut hear = || assert!(heard.next().is_some(), "the other has ended");
    for round in 0..rounds {
        if kind == B {
            hear();
        }
        assert_eq!(producer.submit(kind, b"").unwrap(), round);
        say("your turn");
        if kind == A {
            hear();
        }
    }
}

/// Submits until standard input ends.
fn be_busy(mut producer: Producer) {
    thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    producer.submit(BUSY, b"").unwrap();
    say("busy");
    loop {
        producer.submit(BUSY, &[0; 48]).unwrap();
    }
}

fn say(word: &str) {
    let mut out = io::stdout();
    out.write_all(format!("\n{PART} {word}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}
