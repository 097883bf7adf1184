//! The rules that no compiler knows: one file names atomics, and every ordering says what it is for.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The files of `ring/src`, with their text up to the tests.
fn sources() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code = code.split("#[cfg(all(test, not(loom)))]").next().unwrap_or_default();
        (path.file_name().unwrap().to_string_lossy().into_owned(), code.to_owned())
    };
    files.filter(|path| path.extension().is_some_and(|e| e == "rs")).map(read).collect()
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// The labels in a text: what stands in brackets after `ORDERING`.
fn labels(text: &str) -> BTreeSet<String> {
    let found = text.split("ORDERING [").skip(1).filter_map(|rest| rest.split(']').next());
    found.map(str::to_owned).collect()
}

#[test]
fn only_the_facade_names_atomics() {
    // The hook of the crash points exists in builds for tests only, and may use what they have.
    let apart = ["sync.rs", "crash.rs"];
    for (file, text) in sources().into_iter().filter(|(file, _)| !apart.contains(&file.as_str())) {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !is_comment(line)) {
            let forbidden = ["sync::atomic", "loom::", "UnsafeCell", "std::", "alloc::"];
            for word in forbidden {
                assert!(!line.contains(word), "{file}:{}: {word} outside of sync.rs: {line}", at + 1);
            }
        }
    }
}

#[test]
fn every_ordering_says_what_it_is_for() {
    /// Lines above in which the comment begins.
    const ABOVE: usize = 7;
    let strong = ["Ordering::Acquire", "Ordering::Release", "Ordering::AcqRel", "Ordering::SeqCst"];
    for (file, text) in sources().into_iter().filter(|(file, _)| file != "sync.rs") {
        let lines: Vec<_> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| !is_comment(line)) {
            if strong.iter().any(|word| line.contains(word)) {
                let above = lines[at.saturating_sub(ABOVE)..at].join("\n");
                assert!(above.contains("// ORDERING ["), "{file}:{}: no ORDERING comment: {line}", at + 1);
            }
        }
    }
}

#[test]
fn every_pair_is_in_the_table_and_the_table_has_no_other() {
    let sources = sources();
    let table = &sources.iter().find(|(file, _)| file == "lib.rs").unwrap().1;
    let is_label = |word: &str| matches!(word.as_bytes(), [b'A'..=b'Z', b'0'..=b'9']);
    let rows = table.lines().filter_map(|line| line.strip_prefix("//! | ")?.split(" |").next());
    let rows: BTreeSet<_> = rows.filter(|word| is_label(word)).map(str::to_owned).collect();
    let used: BTreeSet<_> =
        sources.iter().filter(|(file, _)| file != "lib.rs").flat_map(|(_, text)| labels(text)).collect();
    assert_eq!(rows, used);
}
