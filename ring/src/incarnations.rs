//! Incarnations: which controller is heard, and since when, whoever dies or comes too late.
//!
//! ```text
//! controller   claim a number ─▶ say hello (a command of its own lane) ─▶ commands … look at `claimed` before each
//! everyone     a hello with a higher number than all before it: from here on its controller alone is heard
//! the ended    a worker that meets that hello writes its index into the term of the one before, once
//! ```
//!
//! A *controller* is a producer with [that role](crate::control::ProducerRole); its commands count only while it is
//! *current*. Everything hangs on the order, nothing on time, so there is nothing to agree on.
//!
//! # Invariants
//!
//! - **Numbers.** A number is claimed once, by one instruction, and never again: the claimed word only grows, and
//!   stays when all processes die.
//! - **Highest hello.** Whoever has walked the order up to an index knows who is [current](Current) there: the sender
//!   of the hello with the highest number so far. A hello with a lower number is *void*: its controller was superseded
//!   before it began. So two controllers whose hellos come in the other order than their numbers are decided by the
//!   numbers, at the index of the higher one.
//! - **With the digest.** Who is current goes with a position as the digest does: in each worker's cursor, in the
//!   anchor, and from there to a newcomer's start. So whoever starts anywhere knows it without having met the hello,
//!   and nothing that a hello says has to be kept for anybody. The word has the number and the lane; of a lane the
//!   owner is known at each index, and a lane that is handed over is nobody's who was current.
//! - **Lanes ascend.** The hellos of one lane have ascending numbers: its owner holds a lock, the next one under its
//!   name claims after it is gone. So what follows a void hello in its lane is never its current controller's.
//! - **Own term.** Each lane has a term, opened by its controller alone, when it claims, and ended once, by whoever
//!   walks over the hello that makes another one current: all of them write the same index, into a term only that is
//!   still the same one's, before their gates pass that index. It decides nothing about what is delivered. It is for a
//!   controller that asks what became of a command of its own ([`Incarnations::fate`]).
//!
//! # Who dies, and where
//!
//! A controller that dies before its claim has done nothing. One that dies between claim and hello has ended its
//! predecessor's sending (which is [told](Incarnations::newest) that there is a newer one) but not its commands: they
//! are heard until a hello comes, if need be that of the next number. There is nothing to clean up, and no number of
//! such deaths in a row gets in anybody's way. One that dies after the ticket of its hello is current, and silent.
//! One that stood still and goes on sees a newer number before its next command; one that stood still between this
//! look and its ticket submits a command that has its index and is heard by nobody.
//!
//! # Why a look at `claimed` proves that a command was heard
//!
//! A controller that finds its command in the order, and then its own number still the newest, knows that no newer
//! hello is before its command: the claim is before the hello's ticket in program order, which hands it over to the
//! sequencer (T1), which puts it into the order before the command, and hands that over with the command's place
//! (O1). If there is a newer number, its own term says where it ended; if the term is open and anybody has passed the
//! command (G1), there was no such hello before it.

use crate::pad::Padded;
use crate::seq::Seq;
use crate::sync::{AtomicU64, Ordering, fence};

/// Kinds from here on are Seriatim's own.
pub const RESERVED: u16 = 0xff00;
/// Kind of the command that opens an incarnation.
pub const HELLO: u16 = 0xff00;
/// Kind of the command that ends an incarnation's initialization.
pub const INITIALIZED: u16 = 0xff01;
/// Bytes of a hello's payload.
pub const HELLO_BYTES: u32 = 16;

/// Numbers beyond this were not counted up from 1.
pub const HIGHEST: u64 = (1 << 53) - 1;
const LANE_BITS: u32 = 10;
/// A term's word with this bit is a number, and the term is open; without, it is the index of its end, plus 1.
const OPEN: u64 = 1 << 63;

const _: () = assert!(crate::tickets::MAX_LANES <= 1 << LANE_BITS);

/// Who is current at a place in the order: number and lane in one word, which goes with the digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Current(u64);

impl Current {
    /// Nobody yet.
    pub const NOBODY: Current = Current(0);

    /// The incarnation of this number, whose controller has this lane.
    #[must_use]
    pub const fn new(number: u64, lane: u16) -> Current {
        Current(number << LANE_BITS | lane as u64)
    }

    /// What a cursor or the anchor has.
    #[must_use]
    pub const fn from_word(word: u64) -> Current {
        Current(word)
    }

    /// See [`from_word`](Self::from_word).
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The highest number that said hello so far, 0 if none has.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 >> LANE_BITS
    }

    /// The lane of its controller, unless that lane has another owner by now.
    #[must_use]
    pub const fn lane(self) -> Option<u16> {
        let lane = (self.0 & ((1 << LANE_BITS) - 1)) as u16;
        if lane == crate::event::OWN_LANE { None } else { Some(lane) }
    }

    /// Who is current after a hello of this number in a lane: its controller, or, if the number is not the highest
    /// so far, whoever was.
    #[must_use]
    pub const fn after(self, number: u64, lane: u16) -> Current {
        if number > self.number() { Current::new(number, lane) } else { self }
    }

    /// Its lane has another owner, who was never current.
    #[must_use]
    pub const fn without_lane(self) -> Current {
        Current::new(self.number(), crate::event::OWN_LANE)
    }
}

/// What a hello says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The number that was claimed.
    pub number: u64,
    /// What the controller calls this incarnation.
    pub nonce: u64,
}

impl Hello {
    /// The words of its payload.
    #[must_use]
    pub const fn encode(self) -> [u64; 2] {
        [self.number, self.nonce]
    }

    /// The hello with these words.
    #[must_use]
    pub const fn decode(words: [u64; 2]) -> Hello {
        Hello { number: words[0], nonce: words[1] }
    }
}

/// One lane's term: the incarnation that its owner claimed last, and whether it has ended.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Term {
    word: AtomicU64,
    nonce: AtomicU64,
}

/// What became of a command of an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is delivered: no newer incarnation began before it.
    Heard,
    /// Nobody gets it: a newer one began before it.
    Void,
    /// Nobody has passed it yet, and a newer number is claimed.
    Open,
    /// The term is not this incarnation's: damaged, or there was another claim in its lane.
    NotOurs {
        /// What its word is.
        found: u64,
    },
}

/// The numbers and the terms, borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Incarnations<'a> {
    claimed: &'a AtomicU64,
    terms: &'a [Term],
}

impl<'a> Incarnations<'a> {
    /// Over the claimed word and the terms of all lanes, the sequencer's (which has none) included.
    #[must_use]
    pub fn new(claimed: &'a Padded<AtomicU64>, terms: &'a [Term]) -> Self {
        Incarnations { claimed, terms }
    }

    /// Sets the newest number of a region that nobody uses yet.
    pub fn start_at(&self, claimed: u64) {
        self.claimed.store(claimed, Ordering::Relaxed);
    }

    /// The newest number that is claimed, 0 if none is.
    #[inline]
    #[must_use]
    pub fn newest(&self) -> u64 {
        // Relaxed: what has to be seen is handed over by the order; see above.
        self.claimed.load(Ordering::Relaxed)
    }

    /// Claims the next number for the owner of a lane, and opens its term. Its hello is to follow.
    ///
    /// # Errors
    /// The newest number, if that was not counted.
    ///
    /// # Panics
    /// There is no such lane.
    pub fn claim(&self, lane: u16, nonce: u64) -> Result<u64, u64> {
        let term = &self.terms[usize::from(lane)];
        // Whoever walks over a hello ends no term but the one of its predecessor.
        term.word.store(0, Ordering::Relaxed);
        // ORDERING [I2]: pairs with the acquire fence in `claimant`: who reads the new nonce sees that the word is
        // no longer that of the one before.
        fence(Ordering::Release);
        term.nonce.store(nonce, Ordering::Relaxed);
        crash_point!("claim.nonce");
        let number = self.take_number()?;
        crash_point!("claim.numbered");
        // ORDERING [I1]: Release; pairs with the Acquire in `claimant`: who sees the number sees its nonce.
        term.word.store(OPEN | number, Ordering::Release);
        crash_point!("claim.entered");
        Ok(number)
    }

    fn take_number(&self) -> Result<u64, u64> {
        let mut newest = self.newest();
        loop {
            if newest >= HIGHEST {
                return Err(newest);
            }
            // Relaxed: what comes after the claim is handed over by the hello.
            let taken =
                self.claimed.compare_exchange(newest, newest + 1, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return Ok(newest + 1),
                Err(found) => newest = found,
            }
        }
    }

    /// A hello at index `at` made another one current than this: ends its term, if that is still open. Before the
    /// caller's gate passes that index.
    pub fn end(&self, former: Current, at: Seq) {
        let Some(term) = former.lane().and_then(|lane| self.terms.get(usize::from(lane))) else { return };
        // Relaxed: the gate hands it over (G1). It fails where somebody else was here, or the lane has a new claim.
        let _ = term.word.compare_exchange(
            OPEN | former.number(),
            at.get().wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        crash_point!("term.ended");
    }

    /// What became of the command at index `at` of incarnation `number` with this lane, which was seen in the order
    /// before; `passed` looks whether anybody's gate, or the anchor, has passed it.
    pub fn fate(&self, lane: u16, number: u64, at: Seq, passed: impl FnOnce() -> bool) -> Fate {
        if self.newest() == number {
            return Fate::Heard;
        }
        // Before the term: who has passed it has ended the term if there was a reason to.
        let passed = passed();
        match self.terms.get(usize::from(lane)).map_or(0, |term| term.word.load(Ordering::Relaxed)) {
            open if open == OPEN | number => {
                if passed {
                    Fate::Heard
                } else {
                    Fate::Open
                }
            }
            end if end & OPEN == 0 && end > 0 => {
                if at.get() < end - 1 {
                    Fate::Heard
                } else {
                    Fate::Void
                }
            }
            found => Fate::NotOurs { found },
        }
    }

    /// The lane and the nonce of who claimed this number, while that is to be found: its term is open.
    #[must_use]
    pub fn claimant(&self, number: u64) -> Option<(u16, u64)> {
        (0..).zip(self.terms).find_map(|(lane, term)| {
            // ORDERING [I1]: Acquire; pairs with the Release in `claim`.
            let word = term.word.load(Ordering::Acquire);
            if word != OPEN | number {
                return None;
            }
            let nonce = term.nonce.load(Ordering::Relaxed);
            // ORDERING [I2]: pairs with the release fence in `claim`.
            fence(Ordering::Acquire);
            let now = term.word.load(Ordering::Relaxed);
            // One that has ended meanwhile has the same nonce.
            (now == word || (now & OPEN == 0 && now > 0)).then_some((lane, nonce))
        })
    }

    /// The open terms' numbers and the others' ends, by lane, for whoever checks a region.
    pub fn terms(&self) -> impl Iterator<Item = (u16, TermState)> + use<'a> {
        (0..).zip(self.terms).map(|(lane, term)| {
            let word = term.word.load(Ordering::Relaxed);
            let state = match word {
                0 => TermState::None,
                open if open & OPEN != 0 => TermState::Open(open & !OPEN),
                end => TermState::Ended(Seq::new(end - 1)),
            };
            (lane, state)
        })
    }
}

/// What a lane's term says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermState {
    /// Nobody claimed a number in this lane, or somebody is about to.
    None,
    /// The incarnation of this number has not ended, as far as anybody has walked.
    Open(u64),
    /// The lane's incarnation ended at this index.
    Ended(Seq),
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Term>() == 16);

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    struct Memory {
        claimed: Padded<AtomicU64>,
        terms: Vec<Term>,
    }

    fn memory() -> Memory {
        Memory { claimed: Padded(AtomicU64::new(0)), terms: (0..4).map(|_| Term::default()).collect() }
    }

    impl Memory {
        fn all(&self) -> Incarnations<'_> {
            Incarnations::new(&self.claimed, &self.terms)
        }
    }

    #[test]
    fn number_and_lane_share_a_word() {
        let current = Current::new(HIGHEST, 1000);
        assert_eq!((current.number(), current.lane()), (HIGHEST, Some(1000)));
        let left = current.without_lane();
        assert_eq!((left.number(), left.lane()), (HIGHEST, None));
        assert_eq!(Current::from_word(current.word()), current);
        assert_eq!((Current::NOBODY.number(), Current::NOBODY.lane()), (0, None));
        let hello = Hello { number: 7, nonce: u64::MAX };
        assert_eq!(Hello::decode(hello.encode()), hello);
    }

    #[test]
    fn numbers_ascend_and_their_claimants_are_known() {
        let memory = memory();
        let all = memory.all();
        assert_eq!(all.newest(), 0);
        for number in 1..=200 {
            let lane = 1 + (number % 3) as u16;
            assert_eq!(all.claim(lane, number * 10), Ok(number));
            assert_eq!((all.newest(), all.claimant(number)), (number, Some((lane, number * 10))));
        }
        assert_eq!(all.claimant(100), None, "its lane has another one");
    }

    #[test]
    fn a_number_that_was_not_counted_is_refused() {
        let memory = memory();
        for damaged in [HIGHEST, u64::MAX] {
            memory.claimed.store(damaged, Ordering::Relaxed);
            assert_eq!(memory.all().claim(1, 0), Err(damaged));
            assert_eq!(memory.all().newest(), damaged);
        }
    }

    #[test]
    fn a_term_ends_once_and_only_that_of_its_own_incarnation() {
        let memory = memory();
        let all = memory.all();
        let (first, second) = (all.claim(1, 0).unwrap(), all.claim(2, 0).unwrap());
        let asked = |at, passed| all.fate(1, first, Seq::new(at), || passed);
        // The newer one has said nothing yet, as far as anybody knows.
        assert_eq!((asked(5, false), asked(5, true)), (Fate::Open, Fate::Heard));
        all.end(Current::new(first, 1), Seq::new(7));
        all.end(Current::new(first, 1), Seq::new(9));
        assert_eq!((asked(6, false), asked(8, false)), (Fate::Heard, Fate::Void));
        assert_eq!(all.fate(2, second, Seq::new(9), || false), Fate::Heard, "it is the newest");
        // The same lane once more: what a slow worker says of the first one's end concerns nobody.
        let third = all.claim(1, 0).unwrap();
        all.end(Current::new(first, 1), Seq::new(7));
        assert_eq!(all.terms().nth(1), Some((1, TermState::Open(third))));
        assert!(matches!(asked(8, true), Fate::NotOurs { .. }));
        all.end(Current::NOBODY, Seq::new(1));
        all.end(Current::new(9, 900), Seq::new(1));
    }

    #[test]
    fn the_first_index_can_be_an_end() {
        let memory = memory();
        let all = memory.all();
        all.claim(1, 0).unwrap();
        all.claim(2, 0).unwrap();
        all.end(Current::new(1, 1), Seq::ZERO);
        assert_eq!(all.fate(1, 1, Seq::new(1), || false), Fate::Void);
    }
}
