//! Times that can be compared between the processes of a machine.

use rustix::time::{ClockId, clock_gettime};

fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The monotonic clock, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    now(ClockId::Monotonic)
}

/// Processor time of this thread, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    now(ClockId::ThreadCPUTime)
}

/// Processor time of all threads of this process, in nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    now(ClockId::ProcessCPUTime)
}
