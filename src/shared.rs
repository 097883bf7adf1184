//! Words shared between processes beside a region: for measuring tools.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use seriatim_ring::sync::Ordering;

use crate::region::map::WordMap;
use crate::sys;

/// A table of 64-bit words that processes share, for example of submit times or counts: in memory without a name, so
/// nothing of it is left when the last process ends.
///
/// ```
/// use seriatim::shared::Stamps;
///
/// let stamps = Stamps::create(3)?;
/// let other = Stamps::open(&stamps.path())?;
/// stamps.set(2, 7);
/// assert_eq!((other.len(), other.get(2), other.get(0)), (3, 7, 0));
/// assert_eq!((stamps.add(1, 5), other.add(1, 5), stamps.seen(1)), (0, 5, 10));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Stamps {
    map: WordMap,
    file: File,
}

impl Stamps {
    /// A table of `len` words, all 0, in a sealed memory file.
    ///
    /// # Errors
    /// The system cannot give that much memory.
    pub fn create(len: usize) -> io::Result<Stamps> {
        let file = sys::memory_file("seriatim-stamps")?;
        sys::reserve(&file, 0..(len.max(1) as u64).saturating_mul(8))?;
        sys::seal_length(&file)?;
        Self::map(file)
    }

    /// Opens the table behind another process's [`path`](Self::path).
    ///
    /// # Errors
    /// The file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Stamps> {
        Self::map(File::options().read(true).write(true).open(path)?)
    }

    fn map(file: File) -> io::Result<Stamps> {
        Ok(Stamps { map: WordMap::new(&file)?, file })
    }

    /// Where other processes can open it while this one lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// How many words there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.words().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores a word. Relaxed: whoever reads it has been told by other means that it is there.
    ///
    /// # Panics
    /// `at` is not less than [`len`](Self::len).
    pub fn set(&self, at: usize, value: u64) {
        self.map.words()[at].store(value, Ordering::Relaxed);
    }

    /// Reads a word.
    ///
    /// # Panics
    /// `at` is not less than [`len`](Self::len).
    #[must_use]
    pub fn get(&self, at: usize) -> u64 {
        self.map.words()[at].load(Ordering::Relaxed)
    }

    /// Adds to a word, and returns what it was before. Whoever sees the sum by [`seen`](Self::seen) or by a later `add`
    /// also sees what was stored before it.
    ///
    /// # Panics
    /// `at` is not less than [`len`](Self::len).
    pub fn add(&self, at: usize, more: u64) -> u64 {
        // ORDERING: Release and Acquire, each with that of the other `add`s and `seen`: what the caller stored before.
        self.map.words()[at].fetch_add(more, Ordering::AcqRel)
    }

    /// Stores a word, for [`seen`](Self::seen): whoever sees it also sees what was stored before it.
    ///
    /// # Panics
    /// `at` is not less than [`len`](Self::len).
    pub fn tell(&self, at: usize, value: u64) {
        // ORDERING: Release; pairs with the Acquire in `seen` and `add`. What the caller stored before.
        self.map.words()[at].store(value, Ordering::Release);
    }

    /// Reads a word that was stored by [`tell`](Self::tell) or [`add`](Self::add).
    ///
    /// # Panics
    /// `at` is not less than [`len`](Self::len).
    #[must_use]
    pub fn seen(&self, at: usize) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `tell` and `add`.
        self.map.words()[at].load(Ordering::Acquire)
    }

    /// Sleeps while a word is `seen`, `timeout` at most, until somebody [wakes](Self::wake) it. Only the low 32 bits are
    /// compared; it may return early.
    ///
    /// # Panics
    /// `at` is not less than [`len`](Self::len).
    pub fn sleep(&self, at: usize, seen: u64, timeout: Duration) {
        sys::futex_wait(self.map.low_half(at), seen as u32, sys::ANY_MARK, timeout);
    }

    /// Wakes all who sleep on a word, in any process.
    ///
    /// # Panics
    /// `at` is not less than [`len`](Self::len).
    pub fn wake(&self, at: usize) {
        sys::futex_wake_all(self.map.low_half(at));
    }

    /// The monotonic clock in nanoseconds, the same for all processes.
    #[must_use]
    pub fn now() -> u64 {
        sys::monotonic_ns()
    }
}

/// Processor time that this thread has used, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    sys::thread_cpu_ns()
}
