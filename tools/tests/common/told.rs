//! Producers that write down what was acknowledged to them as durable, and die and come back: it is all there then, each
//! command once, in one history.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use seriatim::journal::{Audit, Record, Replay, verify};
use seriatim::{Attached, Event, Region, Sequenced};

use super::{PATIENCE, attach, length};

/// What a producer submits at one of its indexes: a line, if it is printed.
pub(crate) fn payload(name: &str, index: u64) -> Vec<u8> {
    // Some lie in the cell, some in the lane, some in neither.
    let len = match index % 40 {
        7 => 5_000 + index as usize % 3_000,
        n if n % 4 == 1 => 300,
        _ => 12,
    };
    let mut bytes = format!("{name} {index} ").into_bytes();
    bytes.resize(len.max(bytes.len()), b'a' + (index % 26) as u8);
    bytes
}

/// Submits what comes next of its commands, and writes down what was acknowledged as durable: one byte for each.
pub(crate) fn produce(region: &Region, name: &str, file: &Path) {
    let mut acknowledged = File::options().create(true).append(true).open(file).unwrap();
    let before = acknowledged.metadata().unwrap().len();
    let mut producer = attach(region, name);
    let next = producer.next_index();
    assert!(next >= before, "{name}: {before} commands were acknowledged, {next} are there");
    assert_eq!(producer.attached() == Attached::New, next == 0);
    // What is there and was not acknowledged before is now, if it stays.
    let mut known = before;
    loop {
        let index = producer.next_index();
        producer.submit_at(index, 1, &payload(name, index)).unwrap();
        if index % 8 == 7 {
            let Sequenced::At(seq) = producer.wait_sequenced(index).unwrap() else { panic!("open") };
            region.wait_durable(seq, Instant::now() + PATIENCE).unwrap();
            acknowledged.write_all(&vec![b'.'; (index + 1 - known) as usize]).unwrap();
            known = index + 1;
        }
    }
}

/// How much was acknowledged to one.
pub(crate) fn acknowledged(file: &Path) -> u64 {
    length(file)
}

/// That a journal is whole, has each command of these producers once, and all that was acknowledged to them, in files of a
/// folder that bear their names. Each record is shown to a further check.
pub(crate) fn is_all_there(
    dir: &str,
    producers: &[&str],
    folder: &Path,
    mut each: impl FnMut(&Record<'_>),
) -> Audit {
    let audit = verify(dir).unwrap();
    assert!(audit.is_sound(), "{audit:?}");
    let (mut replay, mut names, mut next) = (Replay::open(dir).unwrap(), HashMap::new(), HashMap::new());
    let mut epochs = Vec::new();
    while let Some(record) = replay.next().unwrap() {
        match record.event() {
            Some(Event::ProducerAttached { name, number, .. }) => {
                assert!(names.insert(number, name.to_string()).is_none(), "a number was given twice");
            }
            Some(Event::Opened { epoch, .. }) => epochs.push(epoch),
            _ => {}
        }
        if record.is_command() {
            let index = next.entry(record.producer).or_insert(0);
            assert_eq!(record.index, *index, "of producer {}", record.producer);
            *index += 1;
            assert_eq!(record.payload, payload(&names[&record.producer], record.index));
        }
        each(&record);
    }
    assert_eq!(names.len(), producers.len(), "who comes back has its number");
    assert!(epochs.windows(2).all(|two| two[0] < two[1]), "{epochs:?}");
    for (number, name) in names {
        let acknowledged = acknowledged(&folder.join(&name));
        assert!(next[&number] >= acknowledged, "{name}: {acknowledged} of {}", next[&number]);
    }
    println!("{} records, {} epochs", audit.records, epochs.len());
    audit
}
