//! Pinning threads to CPUs, by the kernel's numbers.

use core_affinity::CoreId;

/// A thread could not be pinned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The process may not run there (by its affinity mask or its cpuset), or there is no such CPU.
    #[error("CPU {cpu} is not allowed: this thread may run on {allowed:?}")]
    NotAllowed {
        /// The kernel's number of the CPU.
        cpu: usize,
        /// The CPUs that are allowed.
        allowed: Vec<usize>,
    },
    /// The kernel refused.
    #[error("the kernel refused to pin this thread to CPU {cpu}")]
    Refused {
        /// The kernel's number of the CPU.
        cpu: usize,
    },
}

/// The CPUs that this thread may run on, by the kernel's numbers, ascending.
#[must_use]
pub fn allowed() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// Pins the calling thread, and no other, to a CPU.
///
/// Threads that it starts afterwards inherit the pin: start them before, or from another thread.
///
/// # Errors
/// The CPU is not among the allowed ones, which are named.
pub fn pin(cpu: usize) -> Result<(), PinError> {
    let allowed = allowed();
    if !allowed.contains(&cpu) {
        return Err(PinError::NotAllowed { cpu, allowed });
    }
    core_affinity::set_for_current(CoreId { id: cpu }).then_some(()).ok_or(PinError::Refused { cpu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_not_there_is_named_with_those_that_are() {
        let error = pin(4096).unwrap_err();
        let PinError::NotAllowed { cpu: 4096, allowed } = &error else { panic!("{error}") };
        assert!(!allowed.is_empty());
        assert!(error.to_string().contains("4096") && error.to_string().contains(&format!("{allowed:?}")));
    }

    #[test]
    fn only_the_pinned_thread_is_affected() {
        let before = allowed();
        std::thread::spawn(move || {
            pin(before[0]).unwrap();
            assert_eq!(allowed(), before[..1]);
        })
        .join()
        .unwrap();
        assert_eq!(allowed().len(), std::thread::available_parallelism().unwrap().get());
    }
}
