//! Whom a command is for, and how the payload of one that has a part for each lies.
//!
//! A worker has a *rank* if it is one of those among whom commands can be divided: a number below the region's number of
//! ranks, which one live worker has at a time. A cell's first word has its command's [`Address`]; so the chain digest
//! covers it, and who is not addressed needs nothing else of the command.
//!
//! The payload of a command with parts:
//!
//! ```text
//! table   how many parts │ length of the body │ its digest │ for each part: offset (bits 0-31) and length │ its digest
//! body    at the next multiple of 64: what all get
//! parts   each at the next multiple of 64, in the order of the ranks: no two share a cache line
//! ```
//!
//! The cell has the digest of the table alone. The table has those of all else, so the order's digest covers every byte,
//! and a worker can check what it reads without reading the parts of others.
//!
//! What a table says is checked when it is read: each number is loaded once, and what is handed out lies inside the
//! payload.

/// What is not in the table begins at multiples of this, from the start of the payload.
pub const ALIGN: u64 = 64;
/// Words of a table before its parts.
const HEAD_WORDS: usize = 3;
/// Words of a table for each part.
const PART_WORDS: usize = 2;
/// The longest payload with parts: a table has 32 bits for where a part begins, and for its length.
pub const MAX_LEN: u64 = u32::MAX as u64;
/// The most ranks that a region can have.
pub const MAX_RANKS: u64 = 0xfffe;

/// Whom a command is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Address(u16);

impl Address {
    /// All workers; also what a worker without a rank is reached by.
    pub const ALL: Address = Address(0);
    /// All workers that have a rank, each with a part of its own.
    pub const PARTS: Address = Address(0xffff);

    /// The worker of a rank below [`MAX_RANKS`].
    #[inline]
    #[must_use]
    pub const fn rank(rank: u16) -> Address {
        Address(rank + 1)
    }

    /// What reaches a worker alone: the address of its rank, or nothing.
    #[inline]
    #[must_use]
    pub const fn of_worker(rank: Option<u16>) -> Address {
        match rank {
            Some(rank) => Address::rank(rank),
            None => Address::ALL,
        }
    }

    /// The rank of the only worker that it is for.
    #[inline]
    #[must_use]
    pub const fn as_rank(self) -> Option<u16> {
        match self.0 {
            0 | 0xffff => None,
            code => Some(code - 1),
        }
    }

    /// What a region has for it: 0 for all, a rank plus 1, 0xffff for parts.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }

    /// The address with this code.
    #[inline]
    #[must_use]
    pub const fn of_code(code: u16) -> Address {
        Address(code)
    }

    /// Whether there can be a command with this address in a region of so many ranks.
    #[inline]
    #[must_use]
    pub const fn is_within(self, ranks: u16) -> bool {
        match self.0 {
            0xffff => ranks > 0,
            code => code <= ranks,
        }
    }
}

/// Bytes of the table for so many parts.
#[inline]
#[must_use]
pub const fn table_bytes(parts: usize) -> usize {
    (HEAD_WORDS + PART_WORDS * parts) * 8
}

/// Where something lies in the payload, and what its digest is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// From the start of the payload.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    /// As its producer took it.
    pub digest: u64,
}

impl Span {
    /// The bytes in the payload that it is of.
    #[inline]
    #[must_use]
    pub fn range(self) -> core::ops::Range<usize> {
        self.offset as usize..self.offset as usize + self.len as usize
    }
}

/// Lays body and parts out, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    end: u64,
}

impl Extent {
    /// With nothing but the table for so many parts.
    #[inline]
    #[must_use]
    pub const fn of_table(parts: usize) -> Extent {
        Extent { end: (table_bytes(parts) as u64).next_multiple_of(ALIGN) }
    }

    /// Adds something of so many bytes: where it begins.
    #[inline]
    pub fn add(&mut self, len: usize) -> u64 {
        let offset = self.end.saturating_add(ALIGN - 1) & !(ALIGN - 1);
        self.end = offset.saturating_add(len as u64);
        offset
    }

    /// How many bytes the payload has so far.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.end
    }
}

/// The words of a table before its parts.
#[inline]
#[must_use]
pub fn head(parts: u16, body: Span) -> [u64; HEAD_WORDS] {
    [parts.into(), body.len, body.digest]
}

/// The words of a table for a part, and where they begin in it, in bytes; the part ends at most [`MAX_LEN`] bytes behind
/// the start of the payload.
#[inline]
#[must_use]
pub fn entry(part: usize, span: Span) -> (usize, [u64; PART_WORDS]) {
    debug_assert!(span.offset + span.len <= MAX_LEN);
    (table_bytes(part), [span.offset | span.len << 32, span.digest])
}

/// A table that cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTable {
    /// Which field.
    pub field: &'static str,
    /// Its value.
    pub found: u64,
    /// What it had to be, or can be at most.
    pub expected: u64,
}

/// A table in a payload, whose words are loaded by `W`; each is loaded when it is asked for, and checked then.
#[derive(Clone, Copy, Debug)]
pub struct Table<W> {
    word: W,
    len: u64,
    parts: u16,
    body: Span,
}

impl<W: Fn(usize) -> u64> Table<W> {
    /// The table of a payload of `len` bytes, in a region of so many ranks; the words from the start of the payload on are
    /// loaded by `word`.
    ///
    /// # Errors
    /// It cannot be: which field, and why.
    #[inline]
    pub fn read(word: W, len: u64, ranks: u16) -> Result<Table<W>, BadTable> {
        let mut extent = Extent::of_table(ranks.into());
        let begin = extent.add(0);
        if len < begin {
            return Err(BadTable { field: "length of a payload with parts", found: len, expected: begin });
        }
        // What does not fit is not loaded: a table has as many words as there are ranks.
        let (parts, body_len, digest) = (word(0), word(1), word(2));
        if parts != u64::from(ranks) {
            return Err(BadTable { field: "number of parts", found: parts, expected: ranks.into() });
        }
        if body_len > len - begin {
            return Err(BadTable { field: "length of the body", found: body_len, expected: len - begin });
        }
        let body = Span { offset: begin, len: body_len, digest };
        Ok(Table { word, len, parts: ranks, body })
    }

    /// What all get.
    #[inline]
    #[must_use]
    pub fn body(&self) -> Span {
        self.body
    }

    /// What the worker of a rank gets, which is below the number of ranks.
    ///
    /// # Errors
    /// What the table says of it cannot be.
    #[inline]
    pub fn part(&self, rank: u16) -> Result<Span, BadTable> {
        debug_assert!(rank < self.parts);
        let at = table_bytes(rank.into()) / 8;
        let (place, digest) = ((self.word)(at), (self.word)(at + 1));
        let (offset, len) = (place & 0xffff_ffff, place >> 32);
        let first = (self.body.offset + self.body.len).next_multiple_of(ALIGN);
        let bad = |field, found, expected| Err(BadTable { field, found, expected });
        if offset < first {
            return bad("least offset of a part", offset, first);
        }
        if offset > self.len || !offset.is_multiple_of(ALIGN) {
            return bad("offset of a part", offset, self.len & !(ALIGN - 1));
        }
        if len > self.len - offset {
            return bad("length of a part", len, self.len - offset);
        }
        Ok(Span { offset, len, digest })
    }

    /// All that the workers get, each where it lies if the payload is as its producer laid it out: for who looks at the
    /// whole.
    ///
    /// # Errors
    /// The first that cannot be, or does not lie where it must.
    pub fn each(&self, mut see: impl FnMut(Option<u16>, Span)) -> Result<(), BadTable> {
        let mut extent = Extent::of_table(self.parts.into());
        extent.add(self.body.len as usize);
        see(None, self.body);
        for rank in 0..self.parts {
            let part = self.part(rank)?;
            let expected = extent.add(part.len as usize);
            if part.offset != expected {
                return Err(BadTable { field: "offset of a part", found: part.offset, expected });
            }
            see(Some(rank), part);
        }
        if extent.bytes() != self.len {
            let (found, expected) = (self.len, extent.bytes());
            return Err(BadTable { field: "length of a payload with parts", found, expected });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// The words of a table for these lengths, and the length of the payload.
    fn table(body: usize, parts: &[usize]) -> (Vec<u64>, u64) {
        let mut words = vec![0; table_bytes(parts.len()) / 8];
        let body_span = Span { offset: 0, len: body as u64, digest: 100 };
        words[..3].copy_from_slice(&head(parts.len() as u16, body_span));
        let mut extent = Extent::of_table(parts.len());
        extent.add(body);
        for (rank, &len) in parts.iter().enumerate() {
            let offset = extent.add(len);
            let span = Span { offset, len: len as u64, digest: 101 + rank as u64 };
            let (at, both) = entry(rank, span);
            words[at / 8..at / 8 + 2].copy_from_slice(&both);
        }
        (words, extent.bytes())
    }

    #[test]
    fn an_address_survives_its_code_and_knows_its_ranks() {
        for address in [Address::ALL, Address::PARTS, Address::rank(0), Address::rank(0xfffd)] {
            assert_eq!(Address::of_code(address.code()), address);
        }
        assert_eq!(Address::rank(7).as_rank(), Some(7));
        assert_eq!([Address::ALL, Address::PARTS].map(Address::as_rank), [None, None]);
        assert_eq!([None, Some(3)].map(Address::of_worker), [Address::ALL, Address::rank(3)]);
        let within = |ranks| {
            [Address::ALL, Address::rank(0), Address::rank(1), Address::PARTS].map(|a| a.is_within(ranks))
        };
        assert_eq!(within(0), [true, false, false, false]);
        assert_eq!(within(1), [true, true, false, true]);
        assert_eq!(within(2), [true; 4]);
    }

    #[test]
    fn what_is_laid_out_is_read_back() {
        for (body, parts) in
            [(0, &[0][..]), (1, &[64]), (64, &[0, 1, 63, 64, 65]), (1000, &[7; 64]), (65, &[0, 0, 0])]
        {
            let (words, len) = table(body, parts);
            let read = Table::read(|at| words[at], len, parts.len() as u16).unwrap();
            let mut seen = Vec::new();
            read.each(|rank, span| seen.push((rank, span.len as usize, span.digest, span.range()))).unwrap();
            assert_eq!((seen[0].0, seen[0].1, seen[0].2), (None, body, 100));
            for (rank, &part) in parts.iter().enumerate() {
                let (who, its, digest, _) = seen[1 + rank];
                assert_eq!((who, its, digest), (Some(rank as u16), part, 101 + rank as u64));
                assert_eq!(read.part(rank as u16).unwrap().range(), seen[1 + rank].3);
            }
            // Nothing lies in the table, and nothing on a line of something else.
            let mut end = table_bytes(parts.len());
            for (_, _, _, range) in &seen {
                assert!(range.start.is_multiple_of(64) && range.start >= end.next_multiple_of(64));
                end = range.end;
            }
            assert_eq!(end, len as usize);
        }
    }

    #[test]
    fn each_number_of_a_table_is_checked_before_it_is_used() {
        let (good, len) = table(100, &[10, 200, 30]);
        let first = (128 + 100_u64).next_multiple_of(64);
        let read = |at: usize, to: u64, len: u64, rank: u16| {
            let mut words = good.clone();
            words[at] = to;
            // A word that is not of the table is not loaded.
            let word = |at: usize| *words.get(at).expect("a word of the table");
            Table::read(word, len, 3).and_then(|table| table.part(rank)).unwrap_err()
        };
        let bad = |field, found, expected| BadTable { field, found, expected };
        let all = len;
        let cases = [
            (read(0, 2, len, 0), bad("number of parts", 2, 3)),
            (read(0, u64::MAX, len, 0), bad("number of parts", u64::MAX, 3)),
            (read(1, all - 127, len, 0), bad("length of the body", all - 127, all - 128)),
            (read(1, u64::MAX, len, 0), bad("length of the body", u64::MAX, all - 128)),
            (read(3, 0, len, 0), bad("least offset of a part", 0, first)),
            (read(3, first - 64, len, 0), bad("least offset of a part", first - 64, first)),
            (read(3, first + 1, len, 0), bad("offset of a part", first + 1, all & !63)),
            (read(5, 0xffff_ffc0, len, 1), bad("offset of a part", 0xffff_ffc0, all & !63)),
            (read(7, good[7] + (1 << 32), len, 2), bad("length of a part", 31, 30)),
            (
                read(7, u64::MAX << 32 | (good[7] & 0xffff_ffff), len, 2),
                bad("length of a part", 0xffff_ffff, 30),
            ),
            (read(0, 3, 127, 0), bad("length of a payload with parts", 127, 128)),
        ];
        for (found, expected) in cases {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn who_looks_at_the_whole_finds_what_lies_elsewhere() {
        let (good, len) = table(100, &[10, 200, 30]);
        let each = |words: &[u64], len| Table::read(|at| words[at], len, 3).and_then(|t| t.each(|_, _| ()));
        assert_eq!(each(&good, len), Ok(()));
        let mut swapped = good.clone();
        swapped.swap(3, 5);
        assert_eq!(each(&swapped, len).unwrap_err().field, "offset of a part");
        assert_eq!(each(&good, len + 1).unwrap_err().field, "length of a payload with parts");
    }

    #[test]
    fn a_layout_that_is_too_long_is_no_small_one() {
        let mut extent = Extent::of_table(1);
        for _ in 0..4 {
            extent.add(usize::MAX / 2);
        }
        assert!(extent.bytes() >= u64::MAX - 64, "{extent:?}");
    }
}
