//! Pinning threads to CPUs, by the kernel's numbers.
//!
//! A pin is for one thread. New threads inherit the mask of the one that starts them, so what a pinned thread starts
//! would crowd its core: let such a thread begin with [`unpin`]. The library starts no thread from a pinned one.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::sys;
use crate::wait::Wait;

/// A thread could not be pinned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The process may not run there (by its affinity mask or its cpuset), or there is no such CPU.
    #[error("CPU {cpu} is not allowed: this thread may run on {allowed:?} ({limit})")]
    NotAllowed {
        /// The kernel's number of the CPU.
        cpu: usize,
        /// The CPUs that are allowed.
        allowed: Vec<usize>,
        /// What does not allow it.
        limit: Limit,
    },
    /// The kernel refused.
    #[error("the kernel refused to pin this thread to CPU {cpu}")]
    Refused {
        /// The kernel's number of the CPU.
        cpu: usize,
    },
}

/// What keeps a thread from a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// The machine has no such CPU, or it is offline.
    Machine,
    /// The cpuset of the thread's control group.
    Cpuset,
    /// The affinity mask, as `taskset` sets it: the cpuset, if there is one, allows it.
    Mask,
    /// The affinity mask or a cpuset, which cannot be told apart here.
    Unknown,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Machine => "there is no such CPU online",
            Limit::Cpuset => "by the cpuset of its control group",
            Limit::Mask => "by its affinity mask",
            Limit::Unknown => "by its affinity mask or cpuset",
        })
    }
}

/// What a sequencer's own thread is called.
pub(crate) const SEQUENCER_THREAD: &str = "seriatim-seq";

/// The mask that the first thread to be pinned had before.
static ORIGINAL: OnceLock<Vec<usize>> = OnceLock::new();

/// Which thread is pinned to which CPU, by thread id.
static PINNED: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// The CPUs that this thread may run on, by the kernel's numbers, ascending.
#[must_use]
pub fn allowed() -> Vec<usize> {
    sys::affinity().unwrap_or_default()
}

/// Pins the calling thread, and no other, to a CPU. Threads that it starts afterwards inherit the pin, unless they
/// call [`unpin`].
///
/// A warning is logged if another one is pinned to the same CPU, or to another one of the same core: a thread of this
/// process, or a sequencer's thread of any other.
///
/// # Errors
/// The CPU is not among the allowed ones, which are named.
pub fn pin(cpu: usize) -> Result<(), PinError> {
    let allowed = allowed();
    if !allowed.contains(&cpu) {
        return Err(PinError::NotAllowed { cpu, allowed, limit: limit(cpu) });
    }
    ORIGINAL.get_or_init(|| allowed);
    sys::set_affinity(&[cpu]).map_err(|_| PinError::Refused { cpu })?;
    let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    pinned.retain(|&thread, _| Path::new("/proc/self/task").join(thread.to_string()).exists());
    pinned.insert(sys::thread_id(), cpu);
    let others = pinned.iter().filter(|&(&thread, _)| thread != sys::thread_id()).map(|(_, &other)| other);
    if let Some(clash) = clash_in(Path::new(TOPOLOGY), cpu, others.chain(pinned_elsewhere())) {
        tracing::warn!("{clash}");
    }
    Ok(())
}

/// Gives the calling thread back the CPUs that the process had before its first [`pin`]: for threads that a pinned
/// one starts. Does nothing where nobody was pinned.
///
/// ```
/// use seriatim::affinity;
///
/// let all = affinity::allowed();
/// std::thread::spawn(move || {
///     affinity::pin(all[0]).unwrap();
///     let helper = std::thread::spawn(|| {
///         affinity::unpin().unwrap();
///         affinity::allowed()
///     });
///     assert_eq!(helper.join().unwrap(), all);
/// })
/// .join()
/// .unwrap();
/// ```
///
/// # Errors
/// The kernel's, if it refuses: all of these CPUs have been taken from the process since.
pub fn unpin() -> std::io::Result<()> {
    let Some(original) = ORIGINAL.get() else { return Ok(()) };
    sys::set_affinity(original)?;
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).remove(&sys::thread_id());
    Ok(())
}

/// The CPUs of sequencers' threads that are pinned in other processes. A process all of whose threads have one CPU
/// was limited to it, which is no pin.
fn pinned_elsewhere() -> Vec<usize> {
    let numbered = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        entries
            .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit()))
            .collect()
    };
    let this = Path::new("/proc").join(std::process::id().to_string());
    let mut cpus = Vec::new();
    for process in numbered(Path::new("/proc")).into_iter().filter(|process| *process != this) {
        let threads = numbered(&process.join("task"));
        let is_ours = |thread: &&PathBuf| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == SEQUENCER_THREAD)
        };
        let Some(ours) = threads.iter().find(is_ours).and_then(|thread| only_cpu(thread)) else { continue };
        if threads.iter().any(|thread| only_cpu(thread).is_none()) {
            cpus.push(ours);
        }
    }
    cpus
}

/// The CPU of a thread that has only one.
fn only_cpu(thread: &Path) -> Option<usize> {
    let status = fs::read_to_string(thread.join("status")).ok()?;
    let list = parse(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?);
    if let [cpu] = list[..] { Some(cpu) } else { None }
}

/// Whether two CPUs are one, or siblings that share a core.
#[must_use]
pub fn share_a_core(one: usize, other: usize) -> bool {
    share_a_core_in(Path::new(TOPOLOGY), one, other)
}

/// Where the kernel tells of its CPUs.
const TOPOLOGY: &str = "/sys/devices/system/cpu";

fn share_a_core_in(topology: &Path, one: usize, other: usize) -> bool {
    let siblings = topology.join(format!("cpu{one}/topology/thread_siblings_list"));
    one == other || fs::read_to_string(siblings).is_ok_and(|list| parse(&list).contains(&other))
}

/// The first of others' pins that a pin to `cpu` clashes with.
fn clash_in(topology: &Path, cpu: usize, others: impl IntoIterator<Item = usize>) -> Option<Clash> {
    let other = others.into_iter().find(|&other| share_a_core_in(topology, cpu, other))?;
    Some(Clash(cpu, other))
}

/// Parties of this process that spin.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// Counts as a party that spins for as long as it is there.
#[derive(Debug)]
pub(crate) struct Spinning(());

impl Spinning {
    /// For a party that waits like this. Says so if it is the first that has no CPU for itself.
    pub(crate) fn of(wait: Wait) -> Option<Spinning> {
        if wait != Wait::Spin {
            return None;
        }
        // Relaxed: a count, and nothing that it would hand over.
        let parties = SPINNING.fetch_add(1, Ordering::Relaxed) + 1;
        let is_new = Crowd::of(parties - 1).is_none();
        if let Some(crowd) = Crowd::of(parties).filter(|_| is_new) {
            tracing::warn!("{crowd}");
        }
        Some(Spinning(()))
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        SPINNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is said of parties that spin and have no CPU each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Crowd {
    /// Parties that spin.
    pub parties: usize,
    /// CPUs that this process may use.
    pub cpus: usize,
}

impl Crowd {
    /// Whether so many parties are too many to spin: they have no CPU each, or it is the only one there is, so that
    /// nobody whom they wait for could run beside them.
    ///
    /// ```
    /// use seriatim::affinity::{Crowd, allowed};
    ///
    /// assert_eq!(Crowd::of(0), None);
    /// assert!(Crowd::of(allowed().len() + 1).is_some());
    /// ```
    #[must_use]
    pub fn of(parties: usize) -> Option<Crowd> {
        let cpus = ORIGINAL.get().map_or_else(|| allowed().len(), Vec::len);
        Crowd { parties, cpus }.if_crowded()
    }

    fn if_crowded(self) -> Option<Crowd> {
        let Crowd { parties, cpus } = self;
        // No CPU at all is what the kernel did not tell.
        (cpus > 0 && (parties > cpus || (parties == 1 && cpus == 1))).then_some(self)
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crowd { parties, cpus } = self;
        match (parties, cpus) {
            (1, _) => write!(
                f,
                "a party spins on the only CPU that this process may use: whoever else is to run there waits until its \
                 time is up; park or yield"
            ),
            _ => write!(
                f,
                "{parties} parties spin, and this process may use {cpus} CPUs: they wait for each other until their \
                 time is up; park or yield"
            ),
        }
    }
}

/// What is said of two pins to one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clash(pub usize, pub usize);

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Clash(one, other) = self;
        if one == other {
            write!(f, "two threads are pinned to CPU {one}: they take turns there")
        } else {
            write!(
                f,
                "threads are pinned to CPUs {one} and {other}, which are one core: they slow each other down"
            )
        }
    }
}

/// What keeps this thread from a CPU that is not in its mask.
fn limit(cpu: usize) -> Limit {
    let list = |path: &Path| fs::read_to_string(path).ok().map(|list| parse(&list));
    if list(Path::new("/sys/devices/system/cpu/online")).is_some_and(|online| !online.contains(&cpu)) {
        return Limit::Machine;
    }
    match cpuset_files().iter().find_map(|path| list(path)) {
        Some(cpuset) if cpuset.contains(&cpu) => Limit::Mask,
        Some(_) => Limit::Cpuset,
        None => Limit::Unknown,
    }
}

/// Where the CPUs of this process's control group may be listed: version 2, then version 1.
fn cpuset_files() -> Vec<PathBuf> {
    let Ok(group) = fs::read_to_string("/proc/self/cpuset") else { return Vec::new() };
    let group = group.trim().trim_start_matches('/');
    let files =
        [("", "cpuset.cpus.effective"), ("cpuset", "cpuset.effective_cpus"), ("cpuset", "cpuset.cpus")];
    files.map(|(mount, file)| Path::new("/sys/fs/cgroup").join(mount).join(group).join(file)).into()
}

/// CPU numbers as the kernel lists them: `0,2,4-7`.
fn parse(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_not_there_is_named_with_those_that_are() {
        for missing in [1000, 4096, usize::MAX] {
            let error = pin(missing).unwrap_err();
            let PinError::NotAllowed { cpu, allowed, limit: Limit::Machine } = &error else {
                panic!("{error}")
            };
            assert!(*cpu == missing && !allowed.is_empty());
            let text = error.to_string();
            assert!(text.contains(&missing.to_string()) && text.contains(&format!("{allowed:?}")), "{text}");
        }
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

    #[test]
    fn lists_are_those_of_the_kernel() {
        assert_eq!(parse("0,2,4-6\n"), [0, 2, 4, 5, 6]);
        assert_eq!(parse("3\n"), [3]);
        assert!(parse("\n").is_empty());
    }

    #[test]
    fn a_cpu_shares_its_core_with_itself_and_not_with_one_that_is_not_there() {
        assert!(share_a_core(0, 0) && share_a_core(9999, 9999));
        assert!(!share_a_core(0, 9999));
    }

    #[test]
    fn who_spins_without_a_cpu_for_itself_is_one_too_many() {
        let is_crowded = |parties, cpus| Crowd { parties, cpus }.if_crowded().is_some();
        assert!(is_crowded(1, 1) && is_crowded(2, 1) && is_crowded(3, 2));
        assert!(!is_crowded(0, 1) && !is_crowded(1, 2) && !is_crowded(2, 2) && !is_crowded(5, 0));
        let text = Crowd { parties: 7, cpus: 2 }.to_string();
        assert!(text.contains("7 parties spin") && text.contains("2 CPUs"), "{text}");
    }

    #[test]
    fn siblings_are_found_and_named() {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, siblings) in [(0, "0,4\n"), (4, "0,4\n"), (1, "1-2\n"), (2, "1-2\n")] {
            let topology = folder.path().join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("thread_siblings_list"), siblings).unwrap();
        }
        let clash = |cpu, others: &[usize]| clash_in(folder.path(), cpu, others.iter().copied());
        assert_eq!(clash(0, &[1, 2, 3]), None);
        assert_eq!(clash(0, &[2, 4]), Some(Clash(0, 4)));
        assert_eq!(clash(4, &[1, 0]), Some(Clash(4, 0)));
        assert_eq!(clash(2, &[4, 1]), Some(Clash(2, 1)));
        // Of a CPU of which nothing is told only itself is known.
        assert_eq!((clash(7, &[0, 4]), clash(7, &[7])), (None, Some(Clash(7, 7))));
        let text = Clash(0, 4).to_string();
        assert!(text.contains("CPUs 0 and 4") && text.contains("one core"), "{text}");
    }
}
