//! The algorithms of Seriatim, and nothing else.
#![cfg_attr(not(any(loom, test)), no_std)]
#![forbid(unsafe_code)]

#[cfg(loom)]
extern crate std;

pub mod control;
pub mod digest;
pub mod event;
pub mod gate;
pub mod lane;
pub mod order;
pub mod pad;
pub mod seq;
pub mod sequencer;
pub mod sync;
pub mod tickets;
pub mod wake;

pub use seq::Seq;
