//! What digests cover, and who checks what.

use seriatim_ring::digest;

use super::*;

#[test]
fn the_digest_of_a_worker_is_that_of_what_it_saw() {
    let mut desk = Desk::new(&Config::new().producers(2).workers(2));
    let mut worker = desk.worker("w");
    let (mut a, mut b) = (desk.producer("a"), desk.producer("b"));
    for n in 0..300 {
        a.submit(n as u16, &bytes(n, n)).unwrap();
        b.submit(n as u16, &bytes(n * 3, n)).unwrap();
    }
    desk.turn();
    let mut expected = None;
    while let Some(event) = worker.poll().unwrap() {
        let Event::Command(c) = event else {
            expected = None;
            continue;
        };
        if let Some(expected) = expected {
            assert_eq!(c.digest, Digest(expected));
        }
        let folded = digest::Folded {
            producer: c.producer,
            index: c.index,
            len: c.payload.len() as u32,
            kind: c.kind,
            address: c.address,
            payload: payload_digest(c.payload),
        };
        expected = Some(digest::fold(c.digest.0, folded));
    }
    assert_eq!(Some(worker.digest().0), expected);
}

/// What a worker and a checker see of two commands in a region with these digests: payloads, digests before each command
/// and at the end.
fn digests_of(what: DigestOf, contents: [&[u8]; 2]) -> (Region, Vec<u64>) {
    let mut desk = Desk::new(&tiny().lane_cells(8).lane_bytes(512).digest(what));
    let mut worker = desk.worker("w");
    let mut producer = desk.producer("p");
    while worker.poll().unwrap().is_some() {}
    producer.submit(1, contents[0]).unwrap();
    let mut claim = producer.claim(1, contents[1].len()).unwrap();
    claim.copy_from_slice(contents[1]);
    claim.commit().unwrap();
    desk.turn();
    let mut seen = Vec::new();
    let mut note = |event: Event<'_>| {
        if let Event::Command(command) = event {
            assert_eq!(command.payload, contents[seen.len()]);
            seen.push(command.digest.0);
        }
    };
    // One by one and as a batch take different ways.
    note(worker.poll().unwrap().unwrap());
    assert_eq!(worker.poll_batch(8, note).unwrap(), 1);
    seen.push(worker.digest().0);
    let found = desk.region.verify();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!(found.digest, Some(worker.digest()));
    (desk.region, seen)
}

#[test]
fn a_region_says_what_its_digests_cover_and_they_cover_that() {
    let long = [7; 100];
    let (one, other): ([&[u8]; 2], [&[u8]; 2]) = ([b"one", &long], [b"two", &[8; 100]]);
    for what in [DigestOf::Payload, DigestOf::Header, DigestOf::Off] {
        let ((region, a), (_, b)) = (digests_of(what, one), digests_of(what, other));
        let again = Region::attach(region.path()).unwrap();
        assert_eq!((region.digest_of(), again.digest_of()), (what, what));
        let moves = a.windows(2).all(|pair| pair[0] != pair[1]);
        // The command that is first has the same before it in both.
        let (tells_bytes, tells_length) =
            (a[1..] != b[1..], a[1..] != digests_of(what, [b"longer", &long]).1[1..]);
        let expected = match what {
            DigestOf::Payload => (true, true, true),
            DigestOf::Header => (true, false, true),
            DigestOf::Off => (false, false, false),
        };
        assert_eq!((moves, tells_bytes, tells_length), expected, "{what}: {a:?} {b:?}");
    }
}

#[test]
fn who_checks_payloads_needs_a_region_with_their_digests() {
    for what in [DigestOf::Header, DigestOf::Off] {
        let mut desk = Desk::new(&tiny().digest(what));
        let options = JoinOptions::new().check_payloads(true);
        let error = desk.attach(|region| Worker::join_with(region, "w", &options)).unwrap_err();
        assert!(matches!(error, AttachError::NoPayloadDigests { digest_of, .. } if digest_of == what));
        let text = error.to_string();
        assert!(text.contains(&format!("digest is {what}, expected payload")), "{text}");
    }
    let mut desk = Desk::new(&tiny());
    let options = JoinOptions::new().check_payloads(true);
    desk.attach(|region| Worker::join_with(region, "w", &options)).unwrap();
}

#[test]
fn without_digests_a_cell_that_has_one_is_wrong() {
    for what in [DigestOf::Header, DigestOf::Off] {
        let (region, _) = digests_of(what, [b"one", b"two"]);
        let mut desk = Desk { sequencer: Sequencer::open(&region).unwrap(), region };
        let mut worker = desk.worker("w");
        let mut producer = desk.producer("p");
        let index = producer.submit(0, b"three").unwrap();
        desk.turn();
        assert!(desk.region.verify().is_sound());
        // The word after the first of its cell.
        let layout = desk.region.map().layout().lane(1);
        let at = layout.cells + (index % layout.cell_count) * 64 + 8;
        std::os::unix::fs::FileExt::write_all_at(desk.region.file(), &[1], at).unwrap();
        let found = desk.region.verify();
        assert!(!found.is_sound() && format!("{found:?}").contains("payload digest is 0000000000000000"));
        drain(&mut worker);
    }
}

#[test]
fn where_nobody_works_and_nothing_is_digested_commands_are_dropped_all_the_same() {
    let config = tiny().without_workers(WithoutWorkers::Discard).digest(DigestOf::Off);
    let mut desk = Desk::new(&config);
    let mut producer = desk.producer("p");
    for n in 0..100 {
        while producer.try_submit(0, &[n]).is_err() {
            desk.turn();
        }
    }
    let worker = desk.worker("w");
    assert_eq!(Some(worker.digest()), desk.region.snapshot().anchor_digest);
}
