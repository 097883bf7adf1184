//! Crash points: named places between two steps of the protocol. In a build for tests (feature `crash-points`) a
//! hook hears of each one that is passed, and may end the process there; in every other build they are nothing.
//!
//! The models need none: they stop a party before each of its stores.

/// A named place between two steps: `crash_point!("ticket.in")`.
#[cfg(all(feature = "crash-points", not(loom)))]
#[macro_export]
#[doc(hidden)]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::crash::pass($name)
    };
}

/// A named place between two steps; nothing in this build.
#[cfg(not(all(feature = "crash-points", not(loom))))]
#[macro_export]
#[doc(hidden)]
macro_rules! crash_point {
    ($name:literal) => {};
}

/// The points of this crate, in the order in which a command meets them.
#[cfg(feature = "crash-points")]
pub const POINTS: &[&str] = &[
    "lane.claimed",
    "lane.placed",
    "lane.filled",
    "ticket.in",
    "ticket.hint",
    "order.invalidated",
    "order.words",
    "order.committed",
    "publish.ordered",
    "settle.run",
    "settle.next",
    "settle.consumed",
    "snapshot.values",
    "snapshot.word",
    "report.word",
    "report.written",
    "pace.done",
    "pace.described",
    "pace.found",
    "poison.found",
    "poison.noted",
    "poison.stopped",
    "free.anchor",
    "free.released",
    "skip.settled",
    "event.written",
    "event.ordered",
    "reject.fenced",
    "close.closed",
    "announce.former",
    "announce.joined",
    "announce.left",
    "join.numbered",
    "join.described",
    "join.live",
    "join.first",
    "take-up.described",
    "take-up.gates",
    "drop.freed",
    "drop.gone",
    "admit.awaited",
    "admit.awaiting",
    "admit.decided",
    "owner.next",
    "owner.number",
    "owner.base",
    "owner.named",
    "spill.claimed",
    "spill.void",
    "way.kept",
    "way.free",
    "party.asked",
    "party.told",
    "party.begun",
    "party.left",
    "claim.nonce",
    "claim.numbered",
    "claim.entered",
    "term.ended",
    "takeover.found",
    "takeover.lane",
    "takeover.lanes",
    "takeover.own",
    "takeover.event",
    "takeover.members",
    "takeover.settled",
    "takeover.freed",
    "takeover.epoch",
    "takeover.void",
    "takeover.open",
];

#[cfg(all(feature = "crash-points", not(loom)))]
static HOOK: std::sync::OnceLock<fn(&'static str)> = std::sync::OnceLock::new();

/// Has `hook` called at every point from now on; the first one stays.
#[cfg(all(feature = "crash-points", not(loom)))]
pub fn set_hook(hook: fn(&'static str)) {
    HOOK.get_or_init(|| hook);
}

/// A point is passed.
#[cfg(all(feature = "crash-points", not(loom)))]
#[doc(hidden)]
#[inline]
pub fn pass(name: &'static str) {
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}
