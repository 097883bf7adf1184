//! Spills: what a sequencer frees is whole, and what it frees is written again only after everybody has read it.
#![cfg(loom)]

use loom::thread;
use seriatim_loom_tests::crash::{model_of_death, mortal};
use seriatim_loom_tests::{Traced, model};
use seriatim_ring::control::LaneEntry;
use seriatim_ring::lane::NoRoom;
use seriatim_ring::spill::{ALIGN, Spill, SpillWriter, Spills, freed};
use seriatim_ring::sync::Ordering;
use std::sync::Arc;

/// Room for two spills of a page.
const AREA: u64 = 2 * ALIGN;

struct Lane {
    spills: Spills<4>,
    entry: LaneEntry,
    /// What stands for the pages.
    pages: Traced,
}

impl Lane {
    fn new() -> (Arc<Lane>, SpillWriter) {
        let lane = Lane { spills: Spills::default(), entry: LaneEntry::new(), pages: Traced::new(2) };
        let writer = SpillWriter::resume(&lane.spills, &lane.entry);
        (Arc::new(lane), writer)
    }

    fn claim(&self, writer: &mut SpillWriter, cell: u64) -> Result<Spill, NoRoom> {
        writer.claim(&self.spills, &self.entry, AREA, cell, ALIGN)
    }

    /// Says that the cells before one are in the order and every gate has passed them.
    fn pass(&self, cell: u64) {
        self.entry.ordered.store(cell, Ordering::Relaxed);
        self.entry.released.store(cell, Ordering::Relaxed);
    }
}

/// Guards S1 (`claimed` / `claimed`): a spill that counts has its words.
///
/// Allowed: none yet, or the spill, whole. Forbidden: a part of it.
#[test]
fn a_spill_that_counts_is_whole() {
    model("spill/claimed", 5, &["none", "whole"], |outcomes| {
        let (lane, mut writer) = Lane::new();
        lane.claim(&mut writer, 6).unwrap();
        let producer = thread::spawn({
            let lane = Arc::clone(&lane);
            move || lane.claim(&mut writer, 7).unwrap()
        });
        let found: Vec<_> = lane.spills.outstanding(&lane.entry).unwrap().skip(1).collect();
        let whole = (7, Spill { number: 1, start: ALIGN, end: 2 * ALIGN });
        assert!(found.iter().all(|found| *found == whole), "{found:?}");
        outcomes.note(if found.is_empty() { "none" } else { "whole" });
        assert_eq!(producer.join().unwrap(), whole.1);
    });
}

/// Guards S2 (`freed` / `claim`): the pages of a spill are written again when everybody has read them, and the sequencer
/// has given them back.
///
/// Allowed: the producer finds no room yet, or writes where the first spill lay. Forbidden: it writes there while that is
/// read or given back.
#[test]
fn room_is_used_again_after_it_was_given_back() {
    model("spill/reuse", 5, &["full", "again"], |outcomes| {
        let (lane, mut writer) = Lane::new();
        for page in 0..2 {
            lane.claim(&mut writer, page).unwrap();
            lane.pages.write(page);
        }
        let sequencer = thread::spawn({
            let lane = Arc::clone(&lane);
            move || {
                // As the last worker, whose gate brings it here.
                lane.pages.read(0);
                lane.pass(1);
                let spill = lane.spills.to_free(&lane.entry, || false).unwrap();
                lane.pages.write(0);
                freed(&lane.entry, &spill);
                assert_eq!(lane.spills.to_free(&lane.entry, || false), None);
            }
        });
        match lane.claim(&mut writer, 2) {
            Ok(spill) => {
                assert_eq!(spill.range(AREA), 0..ALIGN);
                lane.pages.write(0);
                outcomes.note("again");
            }
            Err(why) => {
                assert_eq!(why, NoRoom::Full);
                outcomes.note("full");
            }
        }
        sequencer.join().unwrap();
    });
}

/// A producer dies before any store of a claim, while the sequencer looks; then a successor goes on.
///
/// Forbidden: that what is in the order is freed, that what never will be is not, or that the successor gets room that is
/// somebody's.
#[test]
fn a_producer_that_dies_in_a_claim_leaves_nothing_behind() {
    model_of_death("spill/death", 2, &["before", "claimed"], |step, outcomes| {
        let (lane, mut writer) = Lane::new();
        let kept = lane.claim(&mut writer, 0).unwrap();
        lane.entry.ordered.store(1, Ordering::Relaxed);
        let producer = thread::spawn({
            let lane = Arc::clone(&lane);
            move || mortal(step, || lane.claim(&mut writer, 1).unwrap()).is_none()
        });
        assert_eq!(lane.spills.to_free(&lane.entry, || false), None, "its gates have not passed");
        let died = producer.join().unwrap();
        let left = lane.spills.claimed() - kept.number - 1;
        outcomes.note(if left == 0 { "before" } else { "claimed" });
        let mut successor = SpillWriter::resume(&lane.spills, &lane.entry);
        assert_eq!(lane.spills.to_free(&lane.entry, || true), None, "what is in the order is kept");
        lane.pass(1);
        for _ in 0..=left {
            let spill = lane.spills.to_free(&lane.entry, || false).unwrap();
            freed(&lane.entry, &spill);
        }
        let its = lane.claim(&mut successor, 1).unwrap();
        assert_eq!((its.number, its.start), (1 + left, ALIGN * (1 + left)));
        assert_eq!(lane.spills.to_free(&lane.entry, || false), None, "it is being written");
        died
    });
}
