//! Other programs on the machine, which would be measured as if they were ours.

use std::time::{Duration, Instant};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Cores' worth of others' work from which on a measurement counts as disturbed.
pub(crate) const DISTURBED: f64 = 0.1;

/// The unit of /proc/stat, on every Linux that this runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time of this process and of its children that have ended, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let of = |usage: Usage| seconds(usage.user_time()) + seconds(usage.system_time());
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
        .into_iter()
        .filter_map(|who| getrusage(who).ok())
        .map(of)
        .sum()
}

/// Processor time that anything on this machine has used, and that its host has taken, since its boot.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&stat) / TICKS_PER_SECOND
}

fn busy_ticks(stat: &str) -> f64 {
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guests are in user already.
    [0, 1, 2, 5, 6, 7].into_iter().filter_map(|field| ticks.get(field)).sum()
}

/// Watches the machine for a time.
pub(crate) struct Watch {
    since: Instant,
    busy: f64,
}

impl Watch {
    pub(crate) fn start() -> Watch {
        Watch { since: Instant::now(), busy: busy_seconds() }
    }

    /// Cores that others used, when so much processor time was our own.
    pub(crate) fn foreign_cores(&self, own_seconds: f64) -> f64 {
        let foreign = busy_seconds() - self.busy - own_seconds;
        (foreign / self.since.elapsed().as_secs_f64()).max(0.0)
    }
}

/// Waits until others leave the machine alone, `patience` at most.
pub(crate) fn wait_for_quiet(patience: Duration) {
    let began = Instant::now();
    while began.elapsed() < patience {
        let watch = Watch::start();
        std::thread::sleep(Duration::from_millis(200));
        if watch.foreign_cores(0.0) < DISTURBED {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() {
        assert_eq!(busy_ticks("cpu  1 20 300 4000 50000 600000 7000000 80000000 0 0\ncpu0 1"), 87_600_321.0);
        assert_eq!(busy_ticks(""), 0.0);
    }

    #[test]
    fn our_own_time_counts() {
        let before = cpu_seconds();
        while cpu_seconds() - before < 0.01 {
            std::hint::black_box(busy_seconds());
        }
        assert!(busy_seconds() > 0.0);
    }
}
