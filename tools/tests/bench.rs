//! `seriatim bench`: it measures what it says, every check is in force, and what goes wrong is told.
//!
//! The times are so short that the numbers mean nothing; that they are there, fit together and come from a run in which
//! all was checked is what counts.

mod common;

use std::collections::HashSet;
use std::fs;

use common::*;
use nix::sys::signal::Signal;
use serde_json::Value;

/// A measurement that takes no time worth speaking of.
const SHORT: [&str; 4] = ["--ms", "30", "--warmup-ms", "10"];

/// One round, unless more are asked for, and time for a machine that has much else to do.
fn bench(args: &[&str]) -> Ended {
    let unless_given = |option: &'static str, value: &'static str| match args.contains(&option) {
        true => vec![],
        false => vec![option, value],
    };
    let (rounds, limit) = (unless_given("--rounds", "1"), unless_given("--limit", "120"));
    run(&[&["bench"], &SHORT[..], &rounds, &limit, args].concat())
}

/// The records of a run that has to succeed.
fn records(args: &[&str]) -> Vec<Value> {
    let ended = bench(&[args, &["--json"]].concat()).with(0);
    assert_eq!(ended.err, "");
    lines_of(&ended.out)
}

fn lines_of(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn number(record: &Value, field: &str) -> f64 {
    record[field].as_f64().unwrap_or_else(|| panic!("no {field} in {record}"))
}

/// Checks all of a record that does not depend on the machine.
fn check(record: &Value) {
    const FIELDS: [&str; 23] = [
        "kind",
        "peer",
        "processes",
        "producers",
        "workers",
        "size",
        "wait",
        "touch",
        "rate",
        "slots",
        "warmup_ms",
        "duration_ms",
        "round",
        "ok",
        "error",
        "commands",
        "elapsed_s",
        "commands_per_s",
        "payload_gb_per_s",
        "cpu_s",
        "foreign_cores",
        "order_hash",
        "latency",
    ];
    let fields: HashSet<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, HashSet::from(FIELDS));
    assert_eq!((&record["ok"], &record["error"]), (&Value::Bool(true), &Value::Null), "{record}");
    let hash = record["order_hash"].as_str().unwrap();
    assert!(hash.len() == 16 && u64::from_str_radix(hash, 16).unwrap() != 0, "{record}");
    let (commands, seconds) = (number(record, "commands"), number(record, "elapsed_s"));
    // Each producer has a last command, and that is in the measured time.
    assert!(commands >= number(record, "producers"), "{record}");
    let rate = number(record, "commands_per_s");
    assert!((rate * seconds - commands).abs() <= 1e-6 * commands, "{record}");
    let payload = rate * number(record, "size") / 1e9;
    assert!((number(record, "payload_gb_per_s") - payload).abs() <= 1e-6 * payload, "{record}");
    assert!(number(record, "cpu_s") > 0.0 && number(record, "foreign_cores") >= 0.0, "{record}");
    if record["kind"] == "throughput" {
        assert_eq!(record["latency"], Value::Null);
        return;
    }
    let latency = &record["latency"];
    let fields: HashSet<&str> = latency.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, HashSet::from(["samples", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"]));
    assert!(number(latency, "samples") > 0.0, "{record}");
    let times = ["p50_ns", "p99_ns", "p999_ns", "max_ns"].map(|field| number(latency, field));
    assert!(times[0] > 0.0 && times.is_sorted(), "{record}");
}

#[test]
fn every_shape_size_and_kind_has_its_record_and_every_check_holds() {
    let (shapes, sizes) = ("1x1,3x2", "8,32,4096,65536");
    let records = records(&["--shapes", shapes, "--sizes", sizes, "--as", "threads,processes"]);
    records.iter().for_each(check);
    let mut expected = Vec::new();
    for (producers, workers) in [(1, 1), (3, 2)] {
        for (size, slots) in [(8, 4096), (32, 4096), (4096, 512), (65536, 32)] {
            for (peer, processes) in [("seriatim-threads", false), ("seriatim-procs", true)] {
                expected.push((producers, workers, size, slots, peer, processes));
            }
        }
    }
    let of = |record: &Value, field: &str| record[field].as_u64().unwrap();
    for (record, (producers, workers, size, slots, peer, processes)) in records.iter().zip(&expected) {
        let numbers = ["producers", "workers", "size", "slots"].map(|field| of(record, field));
        assert_eq!(numbers, [*producers, *workers, *size, *slots]);
        assert_eq!((record["peer"].as_str(), record["processes"].as_bool()), (Some(*peer), Some(*processes)));
        assert_eq!(["rate", "round"].map(|field| of(record, field)), [0, 0]);
        assert_eq!((of(record, "warmup_ms"), of(record, "duration_ms")), (10, 30));
        assert_eq!((&record["kind"], &record["wait"]), (&"throughput".into(), &"yield".into()));
    }
    assert_eq!(records.len(), expected.len());
}

#[test]
fn latency_is_measured_with_every_way_to_wait() {
    for mode in ["ping", "paced:2000"] {
        for wait in ["yield", "block"] {
            let args = ["--mode", mode, "--wait", wait, "--shapes", "2x3", "--sizes", "32"];
            let records = records(&[&args[..], &["--as", "threads,processes"]].concat());
            assert_eq!(records.len(), 2);
            for record in &records {
                check(record);
                assert_eq!(record["kind"], mode.split(':').next().unwrap());
                assert_eq!(record["rate"], if mode == "ping" { 0 } else { 2000 });
                assert_eq!(record["wait"], wait);
            }
        }
    }
}

#[test]
fn spinning_works_where_there_is_little_to_spin() {
    records(&["--wait", "spin", "--shapes", "1x1", "--sizes", "32"]).iter().for_each(check);
}

#[test]
fn the_untouched_the_small_and_the_variants_work_too() {
    let args = ["--shapes", "2x2", "--sizes", "256", "--untouched", "--slots", "4", "--batch", "1"];
    let records = records(&[&args[..], &["--digest", "payload,header,off", "--rounds", "2"]].concat());
    records.iter().for_each(check);
    let names =
        ["seriatim-procs-batch1", "seriatim-procs-batch1-digest-header", "seriatim-procs-batch1-digest-off"];
    let expected: Vec<(u64, &str)> =
        [0, 1].into_iter().flat_map(|round| names.map(|name| (round, name))).collect();
    // Rounds are outermost.
    let found: Vec<(u64, &str)> =
        records.iter().map(|r| (r["round"].as_u64().unwrap(), r["peer"].as_str().unwrap())).collect();
    assert_eq!(found, expected);
    assert!(records.iter().all(|record| record["touch"] == false && record["slots"] == 4));
}

#[test]
fn many_parts_meet_although_the_order_has_little_room() {
    let args = ["--shapes", "24x50", "--sizes", "32", "--slots", "16", "--wait", "block", "--as", "threads"];
    records(&args).iter().for_each(check);
}

#[test]
fn lines_are_appended_and_the_table_has_each_cell_once() {
    let folder = scratch();
    let out = folder.path().join("lines").display().to_string();
    fs::write(&out, "{\"kind\":\"before\"}\n").unwrap();
    let args = ["--shapes", "1x1", "--sizes", "32,64", "--rounds", "2", "--as", "threads", "--out", &out];
    let table = bench(&args).with(0).out;
    let lines = lines_of(&fs::read_to_string(&out).unwrap());
    assert_eq!((lines.len(), &lines[0]["kind"]), (5, &"before".into()));
    lines[1..].iter().for_each(check);
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("seriatim-threads ")).collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert!(rows.iter().all(|row| row.trim_end().ends_with("of 2")), "{table}");
    let ping = bench(&["--mode", "ping", "--shapes", "1x1", "--sizes", "32"]).with(0).out;
    assert!(ping.contains("P99.9") && ping.contains("of 1"), "{ping}");
}

// ---- what goes wrong --------------------------------------------------------------------------------------

/// The one record of a run in which something goes wrong, which the tool has told in a line that says `parts`.
fn failure(args: &[&str], parts: &[&str]) -> Value {
    let ended =
        bench(&[&["--shapes", "2x2", "--sizes", "64", "--json"], args].concat()).with(1).saying(parts);
    let records = lines_of(&ended.out);
    assert_eq!((records.len(), &records[0]["ok"]), (1, &Value::Bool(false)), "{records:?}");
    let error = records[0]["error"].as_str().unwrap();
    assert!(ended.err.contains(error), "{}", ended.err);
    records[0].clone()
}

#[test]
fn a_wrong_payload_is_noticed_by_who_reads_it() {
    for kind in ["threads", "processes"] {
        for digest in ["payload", "off"] {
            let args = ["--as", kind, "--digest", digest, "--fault", "payload"];
            failure(&args, &["2x2 64 B", "errors, the first: index", "is not what was written"]);
        }
        // Who reads the first word alone cannot know, but sees that.
        records(&["--shapes", "2x2", "--sizes", "64", "--as", kind, "--fault", "payload", "--untouched"]);
        let first_word = ["--untouched", "--sizes", "8", "--shapes", "2x2", "--as", kind];
        bench(&[&first_word[..], &["--fault", "payload"]].concat())
            .with(1)
            .saying(&["is not what was written"]);
    }
}

#[test]
fn a_number_that_is_left_out_is_noticed() {
    failure(&["--fault", "gap"], &["errors, the first: index", "seq: 4", "expected 3"]);
}

#[test]
fn a_part_that_dies_ends_the_measurement_and_is_named() {
    failure(&["--fault", "death"], &["w0 (pid ", "ended early with signal: 9"]);
    let args = ["--shapes", "1x1", "--sizes", "64", "--as", "threads", "--fault", "death"];
    let ended = bench(&args).with(1);
    assert!(ended.err.contains("seriatim: seriatim-threads 1x1 64 B: w0 (a thread) panicked"), "{ended:?}");
    assert!(ended.out.contains("failed") && ended.out.contains("0 of 1"), "{ended:?}");
}

#[test]
fn a_measurement_that_hangs_is_killed_with_all_its_parts() {
    for kind in ["threads", "processes"] {
        let record =
            failure(&["--as", kind, "--fault", "hang", "--limit", "1"], &["it hung, and was killed after"]);
        assert_eq!((&record["commands"], &record["latency"]), (&0.into(), &Value::Null));
    }
}

#[test]
fn nothing_of_it_outlives_it() {
    let mut bench =
        Running::start(&mut seriatim(&["bench", "--ms", "600000", "--shapes", "2x2", "--sizes", "32"]));
    let pid = bench.pid();
    let mut parts = Vec::new();
    eventually("all parts are there", || {
        parts = children(pid).into_iter().flat_map(|one| [vec![one], children(one)].concat()).collect();
        parts.len() == 1 + 5
    });
    bench.signal(Signal::SIGKILL);
    eventually("all parts are gone", || parts.iter().all(|&part| !runs(part)));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let cases: [(&[&str], &str); 16] = [
        (&["--sizes", "12"], "12 bytes are no payload"),
        (&["--sizes", "32,0"], "0 bytes are no payload"),
        (&["--sizes", "2G"], "1G is the most"),
        (&["--shapes", "2y4"], "`2y4` is no shape"),
        (&["--shapes", "0x4"], "0x4 is no shape"),
        (&["--shapes", "1x9999"], "1x9999 is no shape"),
        (&["--mode", "pong"], "`pong` is neither"),
        (&["--mode", "paced:0"], "0 a second is no rate"),
        (&["--wait", "never"], "`never` is neither"),
        (&["--slots", "100"], "100 are no slots"),
        (&["--rounds", "0"], "--rounds"),
        (&["--as", "fibres"], "fibres"),
        (&["--digest", "sha"], "\"sha\""),
        (&["--batch", "0"], "one command or more"),
        (&["--batch", "1025", "--sizes", "32"], "--batch 1025 is too large for 4096 slots: 1024 is the most"),
        (&["--batch", "2", "--mode", "ping"], "--batch 2 is for throughput"),
    ];
    for (args, what) in cases {
        let ended = bench(args).with(2);
        assert!(ended.err.contains(what) && ended.out.is_empty(), "no `{what}` in {ended:?}");
    }
    bench(&["--out", "/no/such/folder/lines"]).with(2).saying(&["/no/such/folder/lines"]);
}

#[test]
fn the_commands_for_its_children_are_not_for_others() {
    run(&["bench-one", "--parent", "1", "--job", "{}"]).with(2).saying(&["for `seriatim bench` itself"]);
    let part =
        ["bench-part", "--parent", "1", "--job", "{}", "--part", "{}", "--region", "x", "--board", "x"];
    run(&part).with(2).saying(&["for `seriatim bench` itself"]);
    assert!(!run(&["--help"]).with(0).out.contains("bench-"));
}
