//! The ring as a whole, against an oracle and under threads.
#![cfg(not(loom))]
#![expect(
    unreachable_pub,
    dead_code,
    reason = "the models use the same memory and the same world, and more of it"
)]

mod memory;
mod properties;
mod regressions;
mod stress;
mod world;
