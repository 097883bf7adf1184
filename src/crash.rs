//! Crash points, for tests: `SERIATIM_CRASH=point:n` kills this process when it passes a point for the `n`th
//! time, `SERIATIM_CRASH=point:n:stop` stops it there; with `other>` before it, passes count once `other` has been
//! passed. Only in builds with the feature `crash-points`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use seriatim_ring::crash;

use crate::sys;

/// The points of this crate, beside those of [`seriatim_ring::crash`].
const POINTS: &[&str] = &[
    "create.reserved",
    "create.formatted",
    "create.header",
    "create.named",
    "sequence.locked",
    "sequence.named",
    "sequence.taken",
    "close.closing",
    "attach.locked",
    "attach.written",
    "attach.asked",
    "attach.granted",
    "attach.resumed",
    "open.said",
    "submit.payload",
    "spill.reserved",
    "spill.written",
    "spill.free",
    "spill.swept",
    "submit.queued",
    "submit.done",
    "join.cursor",
    "poll.next",
    "poll.released",
    "leave.released",
    "leave.told",
    "wake.rung",
    "wake.woken",
    "journal.reserved",
    "journal.header",
    "journal.complete",
    "journal.named",
    "journal.begun",
    "journal.prepared",
    "journal.part",
    "journal.written",
    "journal.synced",
    "journal.footer",
    "journal.cut",
    "journal.sealed",
    "journal.mending",
    "journal.mended",
    "journal.told",
    "journal.released",
    "standby.named",
    "standby.staged",
    "promote.taken",
    "promote.sealed",
    "promote.marked",
    "promote.fenced",
    "promote.done",
    "restore.sealed",
    "restore.filled",
    "restore.removed",
    "store.begun",
    "store.written",
    "store.files",
    "store.manifest",
    "store.complete",
    "store.named",
    "store.stored",
    "store.unnamed",
    "store.gone",
    "store.removed",
    "bookmark.written",
    "bookmark.synced",
    "bookmark.named",
    "bookmark.kept",
    "bookmark.removed",
    "bookmark.forgotten",
    "prune.snapshots",
    "prune.synced",
    "prune.removed",
    "prune.done",
    "catch-up.read",
    "catch-up.seated",
    "catch-up.met",
];

/// The names of all points.
#[must_use]
pub fn points() -> Vec<&'static str> {
    [crash::POINTS, POINTS].concat()
}

/// Where this process is to end.
#[derive(Debug)]
struct Fuse {
    /// The point before which nothing counts.
    after: String,
    is_lit: AtomicBool,
    point: String,
    /// Passes that are left.
    left: AtomicU64,
    signal: i32,
}

static FUSE: OnceLock<Option<Fuse>> = OnceLock::new();

/// Does what the environment says from now on; looked at once.
///
/// # Panics
/// It says something that cannot be.
pub(crate) fn arm() {
    let fuse = FUSE.get_or_init(|| std::env::var("SERIATIM_CRASH").ok().map(|text| parse(&text)));
    if fuse.is_some() {
        crash::set_hook(pass);
    }
}

fn parse(text: &str) -> Fuse {
    let (after, rest) = text.split_once('>').unwrap_or(("", text));
    let mut parts = rest.split(':');
    let point = parts.next().unwrap_or_default();
    let is_point = |name| points().contains(&name);
    assert!(is_point(point) && (after.is_empty() || is_point(after)), "SERIATIM_CRASH is {text:?}");
    let left: u64 = parts.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let signal = if parts.next() == Some("stop") { libc::SIGSTOP } else { libc::SIGKILL };
    let is_lit = AtomicBool::new(after.is_empty());
    Fuse { after: after.into(), is_lit, point: point.into(), left: AtomicU64::new(left), signal }
}

fn pass(point: &'static str) {
    let Some(Some(fuse)) = FUSE.get() else { return };
    // A point that no list has would never be tried.
    assert!(points().contains(&point), "crash point {point:?} is in no list");
    if fuse.after == point {
        fuse.is_lit.store(true, Ordering::Relaxed);
    } else if fuse.is_lit.load(Ordering::Relaxed)
        && fuse.point == point
        && fuse.left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        sys::raise(fuse.signal);
    }
}
