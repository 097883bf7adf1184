//! The algorithms of Seriatim, and nothing else: no OS, no allocation, no unsafe code. All memory is borrowed; the
//! code that the models explore is the code that ships.
//!
//! ```text
//!  producer                            sequencer                               worker
//!  lane      reserve, write, fill      tickets   peek
//!  tickets   enqueue ── T1 ──────────▶ order     publish ── R1 ──────────────▶ order     peek, advance
//!                                      gate      slowest ◀── G1 ────────────── gate      store cursor
//!  lane      reserve ◀── L1 ────────── release lanes
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`lane`] | one producer's ring of cells and ring of bytes: reserve, write, commit or abandon, read |
//! | [`tickets`] | from many producers to one sequencer: the order in which lanes are drained |
//! | [`order`] | from the sequencer to all readers: runs, published by one word |
//! | [`gate`] | positions with their values, whole or not at all: cursors and the anchor |
//! | [`sequencer`] | a turn: order, settle, free; members, owners, the end; takeover |
//! | [`control`] | what parties tell each other outside the order; the hand-shake of attaching |
//! | [`event`] | the sequencer's own commands |
//! | [`parts`] | whom a command is for; the layout of a payload that has a part for each worker |
//! | [`spill`] | payloads that are too long for a lane, and when their room comes back |
//! | [`incarnations`] | which controller is heard, and since when |
//! | [`errors`] | what went wrong and how often, written by all |
//! | [`reports`] | what each worker says of itself at an index, the last few |
//! | [`pace`] | how far each worker is with its reports, and a difference that it found |
//! | [`digest`] | one history, one number |
//! | [`wake`] | announce, look again, sleep, wake |
//! | [`crash`] | places where a test lets a process die |
//! | [`seq`], [`pad`], [`sync`] | a place in the order; a value on lines of its own; the atomics |
//! | [`algorithm`] | why it is correct, step by step |
//!
//! # Invariants
//!
//! The proof in [`algorithm`] uses these by name; a change to the code keeps them, or changes the proof.
//!
//! - **One writer.** Each word but the tickets, those in `Bells`, those of the error log and those of
//!   [`incarnations`] has one party that stores it.
//! - **Dense tickets.** The ticket at a position goes in after the one at the position before it.
//! - **Room before tickets.** The queue has at least as many words as all lanes have cells, and who queues a
//!   ticket has room in its lane for what it names.
//! - **One moment.** A run's commands happen when its commit word is stored, and not otherwise.
//! - **Gated.** A slot, a cell or a byte is written again only after every gate has passed what was in it.
//! - **Store order.** Of what a successor relies on, the sequencer stores first what explains the rest: see K1.
//! - **Announce, then look.** Who sleeps looks once more after it announced itself; who makes something true
//!   asks for sleepers after that.
//!
//! # Ordering pairs
//!
//! Everything else is `Relaxed`. A model named here fails when either side is weakened (`loom-tests/mutants` does
//! that, one side at a time).
//!
//! | pair | store side | load side | what it hands over | guarding model |
//! | --- | --- | --- | --- | --- |
//! | T1 | swap in [`tickets::Enqueuer::enqueue`] | [`tickets::Tickets::peek`] | cells and payloads | `tickets/two`, `lane/hand-over` |
//! | T2 | `void_before` in [`sequencer::Orderer::take_over`] | who meets a close ticket in `enqueue` | what the takeover restored | `tickets/void` |
//! | R1 | commit word in [`order::Order::publish`] | [`order::Order::read`], [`order::Order::observe`] | the descriptor, and what T1 handed over | `order/worker`, `lane/hand-over` |
//! | R2 | fence after a slot's invalidation | fence before an observer's second look | that the old run is gone | `order/observer` |
//! | G1 | word in [`gate::Snapshot::store`] | [`gate::Snapshot::position`], [`gate::Snapshot::load`] | the values; that the owner has read what lies before | `gate/pair`, `gate/two`, `gate/one` |
//! | G2 | fence before the values | fence before the second look | that the set was no longer chosen | `gate/pair` |
//! | L1 | `released`, by the sequencer | [`lane::LaneWriter::reserve`] | that every worker has read what lies before | `lane/reuse`, `gate/one` |
//! | L2 | fence after a claim | fence in [`lane::Lane::still_there`] | that the room was claimed again | `order/observed cell`, `order/observed bytes` |
//! | W1 | fence in [`wake::made_true`] | fence in [`wake::Bell::announce`] | the event or the announcement, to at least one side | all of `wake` |
//! | W3 | swap in [`tickets::Enqueuer::enqueue`] and load in [`wake::Bell::is_announced_since_swap`] | fence in [`wake::Bell::announce`] | the ticket or the announcement, to at least one side | `wake/sequencer` (with a fence for the two) |
//! | W2 | word in [`wake::Bell::ring`] | [`wake::Bell::announce`] | that the old announcement was withdrawn | `wake/again` |
//! | J1 | [`control::Party::ask`] | [`control::Party::request`] | who asks | `join/ask` |
//! | J2 | [`control::Answer::give`] | [`control::Answer::get`] | what was granted | `join/answer` |
//! | J3 | [`control::Party::begin`] | [`control::Party::has_begun`] | a cursor of this generation | `join/begin` |
//! | J4 | [`control::Party::leave`] | [`control::Party::has_left`] | the last cursor | `join/leave` |
//! | J5 | the word that says "look at the pages" | [`control::Bells::requests`] | the request | `join/ask`, `join/leave` |
//! | J6 | `state` in [`sequencer::Orderer::join`] | [`sequencer::standing`] | the generation of who is live | `join/standing` |
//! | J7 | `next_member`, in [`sequencer::Orderer::join`] | [`sequencer::stand_all`] | who was let in before | `join/crowd` |
//! | O1 | `ordered`, by [`sequencer::Orderer::turn`] and by a takeover | [`sequencer::has_ordered`] | that the run is in the ring, or was | `order/cursors`, `order/restored` |
//! | P1 | `next` in [`sequencer::Orderer::settle`] | [`sequencer::published`] | that the runs are in the ring, or were | `order/cursors` |
//! | C1 | `state`, by [`sequencer::Orderer::close`] and by a takeover | [`control::Reign::state`] | the end in the order; the new epoch | `order/closed`, `order/reopened` |
//! | I1 | a term's word, in [`incarnations::Incarnations::claim`] | [`incarnations::Incarnations::claimant`] | the nonce | `incarnations/claimant` |
//! | I2 | fence after a term's word was taken back | fence before `claimant`'s second look | that the nonce is another one's | `incarnations/claimant` |
//! | E1 | `ready`, in [`errors::ErrorLog::record`] | [`errors::ErrorSlot::read`] | who and what | `errors/read` |
//! | A1 | `written` in [`reports::Reports::push`] | [`reports::Reports::recent`] | a report's words | `reports/whole` |
//! | A2 | fence before a report's words | fence before the second look | that the report before it is no longer kept | `reports/overwritten` |
//! | D1 | `done` in [`pace::Pace::finish`] | [`pace::Pace::done`] | the reports for all indexes before | `pace/done` |
//! | D2 | fence in [`pace::reported`] | the same, in another worker | one's report for an index, to at least one of two | `pace/both` |
//! | D3 | `found` in [`pace::Pace::tell`] | [`pace::Pace::found_at`] | what was found | `pace/found` |
//! | S1 | `claimed` in [`spill::SpillWriter::claim`] | [`spill::Spills::claimed`] | a slot's words | `spill/claimed` |
//! | S2 | [`spill::freed`] | [`spill::SpillWriter::claim`] | that every worker has read what lay there, and its pages are given back | `spill/reuse` |
//! | K1 | what a successor relies on | the successor | nothing between threads: the lock's fall hands over all stores; it keeps a compiler from moving earlier stores behind | `crash/*`, for the order as written |
//!
//! Three of them are doubled by fences that other pairs need at the same place, so that a model sees only all of them
//! missing: G2's fence stands before the word of G1 and before every release of a lane (L1), K1's fence after
//! an event stands before the state of C1, and R2's and K1's, of a `Joined`, before the next number of J7.
#![cfg_attr(not(any(loom, seriatim_trace, test, feature = "crash-points")), no_std)]
#![forbid(unsafe_code)]

#[cfg(any(loom, seriatim_trace, feature = "crash-points"))]
extern crate std;

// First, so that its macro is known to the rest.
#[macro_use]
pub mod crash;

pub mod algorithm;
pub mod control;
pub mod digest;
pub mod errors;
pub mod event;
pub mod gate;
pub mod incarnations;
pub mod lane;
pub mod order;
pub mod pace;
pub mod pad;
pub mod parts;
pub mod reports;
pub mod seq;
pub mod sequencer;
pub mod spill;
pub mod sync;
pub mod tickets;
pub mod wake;

pub use seq::Seq;
