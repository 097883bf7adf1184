//! Who reads and writes which of a region's pages.

use super::*;

#[test]
fn the_sequencer_reads_no_cell_and_no_payload_of_a_producer() {
    let region = Region::anonymous(&Config::new().producers(2).workers(1)).unwrap();
    // A mapping of its own, in which the lanes cannot be read: a single read would be a SIGSEGV.
    let blind = Region::attach(region.path()).unwrap();
    let sequencer = Sequencer::open(&blind).unwrap();
    let mut desk = Desk { region, sequencer };
    let mut worker = desk.worker("w");
    let mut producers = [desk.producer("a"), desk.producer("b")];
    for lane in [1, 2] {
        blind.map().make_contents_unreadable(lane).unwrap();
    }
    let mut got = 0;
    for n in 0..20_000 {
        let payload = bytes(if n % 100 == 0 { 1 << 20 } else { n % 90 }, n);
        while let Err(error) = producers[n % 2].try_submit(0, &payload) {
            assert!(matches!(error, SubmitError::Full(_)), "{error}");
            desk.turn();
            got += drain(&mut worker).len();
        }
    }
    desk.turn();
    assert_eq!(got + drain(&mut worker).len(), 20_000);
}

#[test]
fn a_process_can_write_only_the_pages_of_its_parties() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let _creator = Region::create(&path, &Config::new().producers(2).workers(2)).unwrap();
    let _sequencer = Sequencer::spawn(&Region::attach(&path).unwrap(), SequencerConfig::new()).unwrap();
    let region = Region::attach(&path).unwrap();
    let base = region.map().control() as *const _ as u64 - region.map().layout().control;
    let _worker = Worker::join(&region, "w").unwrap();
    let writable = || -> Vec<std::ops::Range<u64>> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            let inside = (base..base + region.map().layout().total).contains(&hex(from));
            (inside && rest.starts_with("rw")).then(|| hex(from) - base..hex(to) - base)
        };
        maps.lines().filter_map(line).collect()
    };
    let range = |part| region.map().layout().range(part);
    let bells_and_channel = range(Part::Bells).start..range(Part::Channel).end;
    assert_eq!(writable(), [bells_and_channel, range(Part::Worker(0))]);
    let _producer = Producer::attach(&region, "p").unwrap();
    let from_tickets = range(Part::Tickets).start..range(Part::Channel).end;
    assert_eq!(writable(), [from_tickets, range(Part::Lane(1)), range(Part::Worker(0))]);
}

#[test]
fn a_region_that_was_shortened_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let file = |path: &std::path::Path, len: u64| {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
    };
    for (name, is_shortened) in [("shortened", true), ("damaged", false)] {
        let region = Region::create(dir.path().join(name), &tiny()).unwrap();
        let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
        let mut worker = desk.worker("w");
        let [mut first, mut second] = ["a", "b"].map(|name| desk.producer(name));
        // Round the queue of tickets, so that its words have turns that can be taken back.
        for n in 0..200usize {
            [&mut first, &mut second][n % 2].try_submit(0, b"x").unwrap();
            desk.turn();
            drain(&mut worker);
            desk.turn();
        }
        while second.try_submit(0, b"x").is_ok() {}
        let map = desk.region.map();
        if is_shortened {
            // The last page is a worker's: nobody here touches it.
            file(desk.region.path(), map.bytes() - 4096);
        }
        // As it would read where pages are gone.
        map.tickets().start_at(0);
        map.lane_entry(2).released.store(0, Ordering::Relaxed);
        let (tickets, room) = (first.try_submit(0, b"x"), second.try_submit(0, b"x"));
        if is_shortened {
            assert!(matches!(tickets, Err(SubmitError::Lost(RegionLost::Truncated { .. }))), "{tickets:?}");
            assert!(matches!(room, Err(SubmitError::Lost(RegionLost::Truncated { .. }))), "{room:?}");
        } else {
            assert!(matches!(tickets, Err(SubmitError::DamagedTickets { .. })), "{tickets:?}");
            assert!(matches!(room, Err(SubmitError::Damaged { .. })), "{room:?}");
        }
    }
}

#[test]
fn a_region_that_is_opened_read_only_can_be_watched_and_not_joined() {
    let region = Region::anonymous(&tiny()).unwrap();
    let _sequencer = Sequencer::spawn(&region, SequencerConfig::new()).unwrap();
    let looking = Region::attach_read_only(region.path()).unwrap();
    for error in [
        Worker::join(&looking, "w").unwrap_err(),
        Producer::attach(&looking, "p").unwrap_err(),
        match Sequencer::open(&looking).unwrap_err() {
            SequencerError::Attach(error) => error,
            other => panic!("{other}"),
        },
    ] {
        assert!(matches!(error, AttachError::ReadOnly { .. }), "{error}");
        assert!(error.to_string().contains("needs write access"), "{error}");
    }
    assert_eq!(looking.snapshot().epoch, 1);
    Observer::attach(&looking).unwrap();
}
