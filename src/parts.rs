//! What a worker gets of a command, and the digests of what it reads: of one with parts, of the table, of the body and of
//! its own part alone.

use std::ops::Range;

use seriatim_ring::Seq;
use seriatim_ring::lane::Entry;
use seriatim_ring::parts::{BadTable, Span, Table, table_bytes};
use seriatim_ring::spill::Record;
use seriatim_ring::sync::{AtomicU64, Ordering};

use crate::fold::Corrupt;
use crate::payload::{self, payload_digest};

/// What of a payload somebody gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// What all get.
    pub(crate) body: Span,
    /// The part of a rank.
    pub(crate) part: Option<Span>,
}

impl View {
    /// All of it.
    #[inline]
    pub(crate) fn whole(payload: Span) -> View {
        View { body: payload, part: None }
    }
}

/// All of a payload that lies in its lane.
#[inline]
pub(crate) fn in_lane(entry: &Entry) -> Span {
    Span { offset: 0, len: entry.len.into(), digest: entry.digest }
}

/// All of one that does not.
pub(crate) fn spilled(record: &Record) -> Span {
    Span { offset: 0, len: record.len, digest: record.digest }
}

/// What the worker of a rank gets of a command with parts, or somebody without.
pub(crate) fn view(
    words: &[AtomicU64],
    payload: Span,
    ranks: u16,
    rank: Option<u16>,
) -> Result<View, BadTable> {
    // Relaxed: as the rest of the payload, these were ordered before us.
    let table = Table::read(|at| words[at].load(Ordering::Relaxed), payload.len, ranks)?;
    let part = rank.map(|rank| table.part(rank)).transpose()?;
    Ok(View { body: table.body(), part })
}

/// The same of a payload that lies elsewhere than in a region.
pub(crate) fn view_in(bytes: &[u8], payload: Span, ranks: u16, rank: Option<u16>) -> Result<View, BadTable> {
    let words = bytes.as_chunks::<8>().0;
    let table = Table::read(|at| u64::from_le_bytes(words[at]), payload.len, ranks)?;
    let part = rank.map(|rank| table.part(rank)).transpose()?;
    Ok(View { body: table.body(), part })
}

/// Whether table, body and part have the digests that their producer took.
pub(crate) fn check(words: &[AtomicU64], whole: Span, ranks: u16, view: View) -> Result<(), BadTable> {
    check_each(|range| payload::part(words, range), whole, ranks, view)
}

/// The same of a payload that lies elsewhere than in a region.
pub(crate) fn check_in(bytes: &[u8], whole: Span, ranks: u16, view: View) -> Result<(), BadTable> {
    check_each(|range| &bytes[range], whole, ranks, view)
}

fn check_each<'b>(
    bytes: impl Fn(Range<usize>) -> &'b [u8],
    whole: Span,
    ranks: u16,
    view: View,
) -> Result<(), BadTable> {
    same("digest of a table of parts", bytes(0..table_bytes(ranks.into())), whole.digest)?;
    same("digest of the body", bytes(view.body.range()), view.body.digest)?;
    let Some(part) = view.part else { return Ok(()) };
    same("digest of a part", bytes(part.range()), part.digest)
}

/// All of a copied payload with parts; its digests if there are any.
pub(crate) fn check_all(
    words: &[u64],
    bytes: &[u8],
    payload: Span,
    ranks: u16,
    has_digests: bool,
) -> Result<(), BadTable> {
    let of = |bytes: &[u8]| if has_digests { payload_digest(bytes) } else { 0 };
    let table = Table::read(|at| words[at], payload.len, ranks)?;
    let compare = |field, found, expected| {
        if found == expected { Ok(()) } else { Err(BadTable { field, found, expected }) }
    };
    let mut spans = Ok(());
    table.each(|rank, span| {
        let field = if rank.is_some() { "digest of a part" } else { "digest of the body" };
        if spans.is_ok() {
            spans = compare(field, of(&bytes[span.range()]), span.digest);
        }
    })?;
    spans?;
    compare("digest of a table of parts", of(&bytes[..table_bytes(ranks.into())]), payload.digest)
}

/// The body of a copied payload with parts.
pub(crate) fn body(words: &[u64], payload: Span, ranks: u16) -> Result<Span, BadTable> {
    Table::read(|at| words[at], payload.len, ranks).map(|table| table.body())
}

/// What a table says of a command at an index cannot be.
#[cold]
pub(crate) fn corrupt(seq: Seq, BadTable { field, found, expected }: BadTable) -> Corrupt {
    Corrupt { seq, field, found, expected }
}

fn same(field: &'static str, bytes: &[u8], expected: u64) -> Result<(), BadTable> {
    let found = payload_digest(bytes);
    if found == expected { Ok(()) } else { Err(BadTable { field, found, expected }) }
}
