//! Caches that are kept coherent: who has a copy of which line, and what an access does to that.
//!
//! A cache for each party, of sets of 16 lines. A line leaves when its place is taken, or when somebody else writes. That
//! is MESI: *modified* or *exclusive* is a line with an owner, *shared* one with holders and no owner, *invalid* the rest.
//! (Whether an owner's copy is dirty decides who writes it back, not who waits.) A holder that is left alone because others
//! had no more room does not know that.

/// Most parties.
pub(crate) const PARTIES: usize = 320;

/// What an access met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// The line was there, and if it was to be written, it was the party's own.
    Hit,
    /// It moved. To be read, it came from another cache or from memory; to be written, it came or was there, and so many
    /// other caches lost it.
    Moved {
        /// Copies that other caches lost.
        lost: u64,
    },
}

/// All caches.
pub(crate) struct Caches {
    holders: Vec<[u64; PARTIES / 64]>,
    /// Who may write the line without asking.
    owners: Vec<u16>,
    /// Of each party: the lines in its cache, set by set. What others have taken away since still has its place.
    places: Vec<Vec<[u32; WAYS]>>,
    sets: usize,
}

/// Lines of a set.
const WAYS: usize = 16;
/// A place without a line.
const EMPTY: u32 = u32::MAX;
/// A line that nobody owns.
const NOBODY: u16 = u16::MAX;

impl Caches {
    /// Empty caches of `room` lines each over a memory of so many.
    pub(crate) fn new(lines: usize, room: usize) -> Caches {
        let sets = (room / WAYS).max(1);
        let holders = vec![[0; PARTIES / 64]; lines];
        Caches { holders, owners: vec![NOBODY; lines], places: vec![Vec::new(); PARTIES], sets }
    }

    /// A party reads or writes a line.
    #[inline]
    pub(crate) fn access(&mut self, party: usize, line: usize, writes: bool) -> Met {
        let (holders, owner) = (&mut self.holders[line], &mut self.owners[line]);
        let (word, bit) = (party / 64, 1 << (party % 64));
        let has_it = holders[word] & bit != 0;
        if has_it && (!writes || *owner == party as u16) {
            return Met::Hit;
        }
        let copies: u64 = holders.iter().map(|word| u64::from(word.count_ones())).sum();
        let others = copies - u64::from(has_it);
        if writes {
            *holders = [0; PARTIES / 64];
        }
        holders[word] |= bit;
        *owner = if writes || others == 0 { party as u16 } else { NOBODY };
        if !has_it {
            self.make_room(party, line);
        }
        Met::Moved { lost: if writes { others } else { 0 } }
    }

    /// A line comes into a cache: where it was before, or in the place of another.
    fn make_room(&mut self, party: usize, line: usize) {
        let places = &mut self.places[party];
        if places.is_empty() {
            *places = vec![[EMPTY; WAYS]; self.sets];
        }
        let set = &mut places[line % self.sets];
        if set.contains(&(line as u32)) {
            return;
        }
        // The oldest goes first, the newest comes last.
        let oldest = set[0];
        set.rotate_left(1);
        set[WAYS - 1] = line as u32;
        if let Some(holders) = self.holders.get_mut(oldest as usize) {
            holders[party / 64] &= !(1 << (party % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVED: Met = Met::Moved { lost: 0 };

    #[test]
    fn a_line_that_is_handed_over_moves_there_and_back() {
        let mut caches = Caches::new(1, WAYS);
        assert_eq!(caches.access(0, 0, true), MOVED);
        assert_eq!(caches.access(0, 0, true), Met::Hit);
        for _ in 0..3 {
            assert_eq!(caches.access(1, 0, false), MOVED);
            assert_eq!(caches.access(1, 0, false), Met::Hit);
            assert_eq!(caches.access(0, 0, false), Met::Hit);
            assert_eq!(caches.access(0, 0, true), Met::Moved { lost: 1 });
            assert_eq!(caches.access(0, 0, true), Met::Hit);
        }
    }

    #[test]
    fn a_line_that_many_read_is_lost_by_all_of_them() {
        let mut caches = Caches::new(2, WAYS);
        caches.access(PARTIES - 1, 1, true);
        for reader in 0..200 {
            assert_eq!(caches.access(reader, 1, false), MOVED);
        }
        assert_eq!(caches.access(7, 1, true), Met::Moved { lost: 200 });
        assert_eq!(caches.access(8, 1, false), MOVED);
        assert_eq!(caches.access(8, 0, false), MOVED);
    }

    #[test]
    fn two_who_write_one_line_take_it_from_each_other_and_two_lines_are_left_alone() {
        let mut caches = Caches::new(3, WAYS);
        let mut moves = |lines: [usize; 2]| {
            (0..20).filter(|n| caches.access(n % 2, lines[n % 2], true) != Met::Hit).count()
        };
        assert_eq!(moves([0, 0]), 20);
        assert_eq!(moves([1, 2]), 2);
    }

    #[test]
    fn who_is_left_alone_asks_once() {
        let lines = 2 * WAYS;
        let mut caches = Caches::new(lines, WAYS);
        assert_eq!((caches.access(0, 0, true), caches.access(1, 0, false)), (MOVED, MOVED));
        // The other one's cache is full of other lines.
        (1..lines).for_each(|line| assert_eq!(caches.access(1, line, false), MOVED));
        assert_eq!((caches.access(0, 0, true), caches.access(0, 0, true)), (MOVED, Met::Hit));
    }

    #[test]
    fn what_does_not_fit_comes_again() {
        for (lines, comes_again) in [(4 * WAYS, false), (5 * WAYS, true)] {
            let mut caches = Caches::new(lines, 4 * WAYS);
            let pass = |caches: &mut Caches| {
                (0..lines).filter(|&line| caches.access(3, line, false) != Met::Hit).count()
            };
            assert_eq!(pass(&mut caches), lines);
            assert_eq!(pass(&mut caches) > 0, comes_again);
            // A line that comes and goes takes one place.
            for n in 0..99 {
                caches.access(3 + n % 2, 0, true);
            }
            assert_eq!(pass(&mut caches) > 1, comes_again);
        }
    }
}
