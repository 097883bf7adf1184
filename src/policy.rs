//! [`WorkerPolicy`]: what a worker asks to have done with it, as its page says.

use std::time::Duration;

use seriatim_ring::control::Policy;
use seriatim_ring::sync::Ordering;

/// What is to be done with a worker that lives and holds the others up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerPolicy {
    /// Wait for it, as long as it takes.
    #[default]
    Gate,
    /// Kill its process when it is that far behind and has not moved for that long. Only when the process has
    /// ended does its gate fall, like that of any dead worker: its memory is taken from nobody who lives.
    KillAfter {
        /// How many commands it is behind at least.
        lag: u64,
        /// How long it has not moved; the sequencer looks each 20 to 100 ms. 584 years at most; no time at all is
        /// kept as a nanosecond.
        time: Duration,
    },
}

impl WorkerPolicy {
    pub(crate) fn store(self, policy: &Policy) {
        let (lag, time_ns) = match self {
            WorkerPolicy::Gate => (0, 0),
            // A time of 0 would mean never.
            WorkerPolicy::KillAfter { lag, time } => {
                (lag, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1))
            }
        };
        policy.lag.store(lag, Ordering::Relaxed);
        // Relaxed: that the worker has begun hands both over (J3).
        policy.time_ns.store(time_ns, Ordering::Relaxed);
    }

    /// What a worker's page says.
    pub(crate) fn load(policy: &Policy) -> WorkerPolicy {
        let (lag, time_ns) = (policy.lag.load(Ordering::Relaxed), policy.time_ns.load(Ordering::Relaxed));
        match time_ns {
            0 => WorkerPolicy::Gate,
            ns => WorkerPolicy::KillAfter { lag, time: Duration::from_nanos(ns) },
        }
    }
}
