//! Bars for what takes long: drawn where a person watches, gone when it is over, and nowhere else.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::mem;
use std::process::{Command, Stdio};
use std::thread;

use common::*;
use nix::pty::{OpenptyResult, Winsize, openpty};
use tempfile::TempDir;

/// What begins each line that the library of bars clears.
const ERASE: &str = "\x1b[2K";

/// Runs to its end with a terminal as its standard error; what it printed, and what the terminal got.
fn watched(mut command: Command, term: &str) -> (Ended, String) {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None).expect("a terminal");
    let child = command.env("TERM", term).stdout(Stdio::piped()).stderr(slave).spawn().expect("it starts");
    // Our end of what it prints on: the terminal ends when nobody has that any more.
    drop(command);
    let watcher = thread::spawn(move || {
        let mut seen = Vec::new();
        // And it ends with an error.
        let _ = File::from(master).read_to_end(&mut seen);
        String::from_utf8(seen).expect("text")
    });
    let ended = child.wait_with_output().expect("it ends").into();
    (ended, watcher.join().expect("the terminal ends"))
}

/// Whether something was drawn that says how many of what there are, and nothing of it is left.
#[track_caller]
fn drawn_and_cleared(seen: &str, what: &str) {
    assert!(seen.contains(&format!(" {what}, ")), "no bar of {what}: {seen:?}");
    let (_, left) = seen.rsplit_once(ERASE).unwrap_or_else(|| panic!("nothing is cleared: {seen:?}"));
    assert!(left.trim().is_empty(), "{left:?} is left of {seen:?}");
}

/// That nothing is drawn, and what is printed is what it was.
#[track_caller]
fn not_drawn((ended, seen): (Ended, String), told: &str) {
    assert_eq!((ended.with(0).out.as_str(), seen.as_str()), (told, ""));
}

/// On a pipe there is none, and none on a terminal that can only print, nor for a program.
#[test]
fn a_bar_is_drawn_for_who_watches_and_gone_when_it_is_over() {
    let disk = TempDir::new().unwrap();
    let file = |name: &str| path(&disk.path().join(name));
    let (dir, copy, input) = (file("journal"), file("copy"), file("input"));
    fs::write(&input, lines(5_000, 7)).unwrap();
    let run = ["run", &input, "--journal", &dir, "--segment-bytes", "1M"];
    let (ended, seen) = watched(seriatim(&run), "xterm");
    ended.with(0);
    drawn_and_cleared(&seen, "in order");
    let verify = ["journal", "verify", &dir];
    let replay = ["replay", &dir, "--out", &copy];
    for (args, what) in [(&verify[..], "segments"), (&replay[..], "indexes")] {
        let (ended, seen) = watched(seriatim(args), "xterm");
        drawn_and_cleared(&seen, what);
        let told = ended.with(0).out;
        not_drawn(watched(seriatim(args), "dumb"), &told);
        let mut piped = common::run(args);
        let seen = mem::take(&mut piped.err);
        not_drawn((piped, seen), &told);
    }
    let (ended, seen) = watched(seriatim(&["journal", "verify", &dir, "--json"]), "xterm");
    assert!(ended.with(0).json()["sound"] == true && seen.is_empty(), "{seen:?}");
    // What is printed says itself how far it is.
    not_drawn(watched(seriatim(&["replay", &dir]), "xterm"), &fs::read_to_string(&copy).unwrap());
}
