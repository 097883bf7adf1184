//! The sequencer's own commands: changes of the world, in the order like everything else.
//!
//! They lie in lane 0, without tickets, each in 56 bytes of the byte ring:
//! `slot or lane (and a producer's role, or a worker's rank) │ number │ base or epoch │ name (4 words)`, and of
//! `Poisoned` `slots, what │ index │ index after which, plus 1 │ numbers (2) │ what both said (2)`. The kind of the cell
//! says which event it is.

use crate::control::{NameWords, ProducerRole};
use crate::digest::{Folded, START, fold};
use crate::pace::Finding;
use crate::parts::Address;
use crate::reports::Report;

/// The sequencer's lane.
pub const OWN_LANE: u16 = 0;
/// Cells of the sequencer's lane.
pub const OWN_CELLS: u64 = 64;
/// Bytes of the sequencer's lane: a cache line for each of its cells.
pub const OWN_BYTES: u64 = OWN_CELLS * 64;
/// Words of an event.
pub const WORDS: usize = 7;
/// Bytes of an event.
pub const BYTES: u32 = WORDS as u32 * 8;

/// A change of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker gates from here on.
    Joined {
        /// Its slot.
        slot: u16,
        /// Its number.
        number: u64,
        /// Its name.
        name: NameWords,
        /// What reaches it alone, if it has a rank.
        address: Address,
    },
    /// A worker no longer gates.
    Left {
        /// Its slot.
        slot: u16,
        /// Its number.
        number: u64,
        /// Its name.
        name: NameWords,
        /// What reached it alone, if it had a rank.
        address: Address,
    },
    /// A lane has a new owner.
    Attached {
        /// The lane.
        lane: u16,
        /// Number of the producer.
        number: u64,
        /// The first cell that is its own.
        base: u64,
        /// Its name.
        name: NameWords,
        /// What it is for.
        role: ProducerRole,
    },
    /// A lane queued a ticket that cannot be right and is no longer heard.
    Fenced {
        /// The lane.
        lane: u16,
        /// Number of its producer.
        number: u64,
        /// Cells that the ticket named.
        count: u64,
    },
    /// Another sequencer has taken over, or reopened the order.
    Opened {
        /// Its epoch.
        epoch: u64,
    },
    /// Nothing comes after this in this epoch.
    Closed {
        /// The epoch.
        epoch: u64,
    },
    /// Two workers differ, and nothing ever comes after this.
    Poisoned {
        /// The index at which they began to.
        index: u64,
        /// The last one before it at which they did not, if it is known.
        after: Option<u64>,
        /// Whether their digests differ; if not, their fingerprints do.
        of_digests: bool,
        /// Their slots; first that of the one who found it.
        slots: [u16; 2],
        /// Their numbers.
        numbers: [u64; 2],
        /// Their digests or fingerprints.
        said: [u64; 2],
    },
}

impl Event {
    /// That two workers differ, as one of them found.
    #[must_use]
    pub fn of_finding(finding: &Finding) -> Event {
        let (Finding { after, mine, other }, of_digests) = (*finding, finding.is_of_digests());
        let said = |report: &Report| if of_digests { report.digest } else { report.fingerprint };
        Event::Poisoned {
            index: finding.index(),
            after,
            of_digests,
            slots: [mine.0, other.0],
            numbers: [mine.1.member, other.1.member],
            said: [said(&mine.1), said(&other.1)],
        }
    }

    /// The kind of the cell and the words of its payload.
    #[must_use]
    pub fn encode(&self) -> (u16, [u64; WORDS]) {
        let words = |a: u64, b: u64, c: u64, n: NameWords| [a, b, c, n[0], n[1], n[2], n[3]];
        let none = NameWords::default();
        match *self {
            Event::Joined { slot, number, name, address } => {
                (1, words(u64::from(slot) | u64::from(address.code()) << 16, number, 0, name))
            }
            Event::Left { slot, number, name, address } => {
                (2, words(u64::from(slot) | u64::from(address.code()) << 16, number, 0, name))
            }
            Event::Attached { lane, number, base, name, role } => {
                (3, words(u64::from(lane) | role.code() << 16, number, base, name))
            }
            Event::Fenced { lane, number, count } => (4, words(lane.into(), number, count, none)),
            Event::Opened { epoch } => (5, words(0, 0, epoch, none)),
            Event::Closed { epoch } => (6, words(0, 0, epoch, none)),
            Event::Poisoned { index, after, of_digests, slots: [a, b], numbers, said } => {
                let what = u64::from(a) | u64::from(b) << 16 | u64::from(of_digests) << 32;
                let after = after.map_or(0, |after| after + 1);
                (7, words(what, index, after, [numbers[0], numbers[1], said[0], said[1]]))
            }
        }
    }

    /// The event in a cell of this kind with these words; `None` for a kind that this version does not know.
    #[must_use]
    pub fn decode(kind: u16, words: &[u64; WORDS]) -> Option<Event> {
        let [slot, number, third, n0, n1, n2, n3] = *words;
        let (slot, above, name) = (slot as u16, slot >> 16, [n0, n1, n2, n3]);
        Some(match kind {
            1 => Event::Joined { slot, number, name, address: Address::of_code(above as u16) },
            2 => Event::Left { slot, number, name, address: Address::of_code(above as u16) },
            3 => {
                Event::Attached { lane: slot, number, base: third, name, role: ProducerRole::of_code(above)? }
            }
            4 => Event::Fenced { lane: slot, number, count: third },
            5 => Event::Opened { epoch: third },
            6 => Event::Closed { epoch: third },
            7 => Event::Poisoned {
                index: number,
                after: third.checked_sub(1),
                of_digests: above >> 16 & 1 != 0,
                slots: [slot, above as u16],
                numbers: [n0, n1],
                said: [n2, n3],
            },
            _ => return None,
        })
    }
}

/// The payload digest of an event's words.
#[must_use]
pub fn digest(words: &[u64; WORDS]) -> u64 {
    let step = |h, (i, &w): (usize, &u64)| {
        let index = i as u64;
        fold(h, Folded { producer: 0, index, len: BYTES, kind: 0, address: Address::ALL, payload: w })
    };
    words.iter().enumerate().fold(START, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poisoned(after: Option<u64>, of_digests: bool) -> Event {
        let (slots, numbers, said) = ([1023, 7], [u64::MAX, 5], [1, u64::MAX]);
        Event::Poisoned { index: 77, after, of_digests, slots, numbers, said }
    }

    #[test]
    fn every_event_survives_its_encoding() {
        let name = [1, 2, 3, 4];
        let events = [
            Event::Joined { slot: 7, number: 8, name, address: Address::ALL },
            Event::Joined { slot: 7, number: 8, name, address: Address::rank(0) },
            Event::Left { slot: 7, number: 8, name, address: Address::rank(1022) },
            Event::Attached { lane: 9, number: 10, base: u64::MAX, name, role: ProducerRole::Injector },
            Event::Attached { lane: 1000, number: 10, base: 0, name, role: ProducerRole::Controller },
            Event::Fenced { lane: 9, number: 10, count: 11 },
            Event::Opened { epoch: 12 },
            Event::Closed { epoch: 13 },
            poisoned(None, true),
            poisoned(Some(0), false),
        ];
        for event in events {
            let (kind, words) = event.encode();
            assert_eq!(Event::decode(kind, &words), Some(event));
        }
        assert_eq!(Event::decode(0, &[0; WORDS]), None);
        assert_eq!(Event::decode(3, &[2 << 16, 0, 0, 0, 0, 0, 0]), None);
        assert_ne!(digest(&[0; WORDS]), digest(&[0, 0, 0, 1, 0, 0, 0]));
    }
}
