//! Words shared between processes beside a region: for measuring tools.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use seriatim_ring::sync::Ordering;

use crate::region::map::WordMap;
use crate::sys;

/// A table of 64-bit words that processes share, for example of submit times: in memory without a name, so
/// nothing of it is left when the last process ends.
///
/// ```
/// use seriatim::shared::Stamps;
///
/// let stamps = Stamps::create(3)?;
/// let other = Stamps::open(&stamps.path())?;
/// stamps.set(2, 7);
/// assert_eq!((other.len(), other.get(2), other.get(0)), (3, 7, 0));
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
        sys::reserve(&file, (len.max(1) as u64).saturating_mul(8))?;
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
