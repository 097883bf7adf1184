//! Where a journal sits: on a worker's pages, of which it says more.

use std::ops::RangeInclusive;

use seriatim_ring::control::{Answer, Party, UNKNOWN_SINCE};
use seriatim_ring::parts::Address;
use seriatim_ring::sync::Ordering;

use crate::attach::{Kind, OnWorkerPage};
use crate::error::AttachError;
use crate::liveness::Role;
use crate::name::Name;
use crate::region::Region;

/// Journals sit on worker pages, and take up what another one of their name left.
pub(super) struct OnJournalPage;

impl Kind for OnJournalPage {
    const WHAT: &'static str = "journal";
    const TAKES_UP: bool = true;

    fn indexes(region: &Region) -> RangeInclusive<u16> {
        OnWorkerPage::indexes(region)
    }

    fn role(index: u16) -> Role {
        OnWorkerPage::role(index)
    }

    fn generation_role(index: u16, generation: u64) -> Option<Role> {
        OnWorkerPage::generation_role(index, generation)
    }

    fn party(region: &Region, index: u16) -> &Party {
        OnWorkerPage::party(region, index)
    }

    fn answer(region: &Region, index: u16) -> &Answer {
        OnWorkerPage::answer(region, index)
    }

    fn owner(region: &Region, index: u16) -> Option<Name> {
        OnWorkerPage::owner(region, index)
    }

    /// Whether its gate is to stay when it dies, as the page has it.
    type Wish = u64;

    fn wish(region: &Region, index: u16, role: u64) {
        let is_taken_up = Self::is_kept(region, index);
        OnWorkerPage::party(region, index).address.store(Address::ALL.code().into(), Ordering::Relaxed);
        let words = &region.map().worker_page(index).journal;
        if !is_taken_up {
            words.durable.store(0, Ordering::Relaxed);
            words.written.store(0, Ordering::Relaxed);
            words.since.store(UNKNOWN_SINCE, Ordering::Relaxed);
        }
        // Relaxed: the request hands it over (J1). What is kept stays so all the while.
        words.role.store(role, Ordering::Relaxed);
    }

    fn is_kept(region: &Region, index: u16) -> bool {
        OnWorkerPage::is_kept(region, index)
    }

    fn refused(region: &Region, name: Name, index: u16, _: u64) -> AttachError {
        OnWorkerPage::refused(region, name, index, Address::ALL)
    }
}
