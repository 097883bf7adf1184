//! What memory a region lies in: huge pages, and locks against being paged out. Both are asked for, neither is
//! promised by the kernel; so what holds is looked up in what it says itself, `/proc/PID/smaps`.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Region;
use super::layout::Layout;
use super::map::Map;
use crate::error::{CreateError, LockError, NoHugePages};
use crate::process::Process;
use crate::sys;

impl Region {
    /// Locks the mapping of this process in memory: no page of it is paged out while the process lives and has the
    /// region open. Locks nothing else, and nothing to come. For all clones of this handle.
    ///
    /// ```
    /// use seriatim::{Config, LockError, Region};
    ///
    /// let region = Region::anonymous(&Config::new().producers(1).lane_bytes(4096))?;
    /// match region.lock_in_memory() {
    ///     Err(LockError::Limit { wanted, limit, .. }) => println!("{limit} bytes may be locked, not {wanted}"),
    ///     other => other?,
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LockError::Limit`] if the process may not lock so much.
    pub fn lock_in_memory(&self) -> Result<(), LockError> {
        let path = self.path().to_path_buf();
        self.map().lock().map_err(|source| {
            let (wanted, limit) = (self.map().bytes(), sys::lock_limit());
            let locked = locked_bytes("self").unwrap_or(0);
            // The kernel has three numbers for it. Without a limit that is too low they mean something else.
            match source.raw_os_error() {
                Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) if locked.saturating_add(wanted) > limit => {
                    LockError::Limit { path, wanted, limit, locked }
                }
                _ => LockError::Io { path, source },
            }
        })
    }

    /// Whether a process has all that it maps of this region locked in memory; `None` if the kernel does not tell, or
    /// if the process does not map it.
    pub(crate) fn is_locked_by(&self, process: Process) -> Option<bool> {
        if !process.is_there() {
            return None;
        }
        let pid = process.pid.to_string();
        // Looking through all of the mappings takes the kernel a while: only if it may be.
        if locked_bytes(&pid)? == 0 {
            return Some(false);
        }
        let file = self.file().metadata().ok()?;
        let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
        let ours = format!(" {major:02x}:{minor:02x} {} ", file.ino());
        let mappings = mappings(&pid).ok()?;
        let mut ours = mappings.iter().filter(|mapping| mapping.title.contains(&ours)).peekable();
        ours.peek()?;
        Some(ours.all(|mapping| mapping.is_locked))
    }
}

/// Gives a new file its length and as many huge pages as can be had. Says nothing of what could not: what there is
/// no room for shows when the rest is reserved, and [`check_huge_pages`] looks at what has come of it.
pub(crate) fn take_huge_pages(file: &File, layout: Layout) -> io::Result<()> {
    if sys::is_on_tmpfs(file) {
        file.set_len(layout.total)?;
        let map = Map::new(file.try_clone()?, layout, true)?;
        let _ = map.ask_for_huge_pages().and_then(|()| map.populate());
    }
    Ok(())
}

/// Whether a new region has the huge pages that were asked for. If not, that is an error or a warning.
pub(crate) fn check_huge_pages(
    map: &Map,
    file: &File,
    path: &Path,
    required: bool,
) -> Result<(), CreateError> {
    let size = huge_page_size();
    let wanted = map.bytes() / size * size;
    let found = map.huge_bytes().map_err(|source| {
        let what = "look at the pages of";
        CreateError::Io { path: path.into(), what, source }
    })?;
    let why = if wanted == 0 {
        "the region is smaller than one"
    } else if found >= wanted {
        return Ok(());
    } else if sys::is_on_tmpfs(file) {
        "its tmpfs has to be mounted with huge=advise, within_size or always (for a region without a name \
         /sys/kernel/mm/transparent_hugepage/shmem_enabled decides), and memory be free in pieces of that size"
    } else {
        "its file system is no tmpfs"
    };
    let error = NoHugePages { path: path.into(), size, wanted, found, why };
    if required {
        return Err(error.into());
    }
    tracing::warn!("{error}; made with what there is");
    Ok(())
}

/// Maps a file to look at its pages: only if all are in memory already, for entering a page must not make it.
pub(super) fn whole(file: &File, layout: Layout) -> Option<Map> {
    let found = file.metadata().ok()?;
    let is_whole = layout.can_be_length(found.len()) && found.blocks() * 512 >= layout.total;
    (is_whole && sys::is_on_tmpfs(file))
        .then(|| Map::new(file.try_clone().ok()?, layout, false).ok())
        .flatten()
}

/// How many bytes of a file that is complete lie in huge pages; `None` if that cannot be told without changing it.
pub(crate) fn huge_bytes_of(file: &File, layout: Layout) -> Option<u64> {
    if !sys::is_on_tmpfs(file) {
        return (sys::page_size_of(file).ok()? == super::layout::PAGE).then_some(0);
    }
    let map = whole(file, layout)?;
    map.enter_all().ok()?;
    map.huge_bytes().ok()
}

/// Bytes of this process's mappings in a range of addresses that lie in huge pages.
pub(crate) fn huge_bytes(addresses: Range<usize>) -> io::Result<u64> {
    let inside = |mapping: &Mapping| addresses.start <= mapping.start && mapping.start < addresses.end;
    Ok(mappings("self")?.into_iter().filter(inside).map(|mapping| mapping.huge_bytes).sum())
}

fn huge_page_size() -> u64 {
    let size = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    size.ok().and_then(|size| size.trim().parse().ok()).unwrap_or(2 << 20)
}

/// How much a process has locked in memory.
fn locked_bytes(pid: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    kib(status.lines().find_map(|line| line.strip_prefix("VmLck:"))?)
}

/// A number of bytes that is written in KiB.
pub(super) fn kib(value: &str) -> Option<u64> {
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// A mapping of a process, as the kernel describes it.
#[derive(Debug, Default)]
struct Mapping {
    /// Addresses, rights, offset, device, inode and path.
    title: String,
    start: usize,
    huge_bytes: u64,
    is_locked: bool,
}

fn mappings(pid: &str) -> io::Result<Vec<Mapping>> {
    Ok(parse(&fs::read_to_string(format!("/proc/{pid}/smaps"))?))
}

fn parse(smaps: &str) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, mappings.last_mut()) {
            ("ShmemPmdMapped:" | "FilePmdMapped:", Some(last)) => last.huge_bytes += kib(rest).unwrap_or(0),
            ("VmFlags:", Some(last)) => last.is_locked = rest.split_whitespace().any(|flag| flag == "lo"),
            (word, _) if !word.ends_with(':') => {
                let start = word.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
                mappings.push(Mapping {
                    title: line.into(),
                    start: start.unwrap_or(0),
                    ..Mapping::default()
                });
            }
            _ => {}
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_mappings_is_understood() {
        let text = "\
7f0000200000-7f0000600000 r--s 00000000 00:1c 42                         /dev/shm/orders
Size:               4096 kB
ShmemPmdMapped:     2048 kB
VmFlags: rd sh mr mw me ms lo sd
7f0000600000-7f0000601000 rw-p 00000000 00:00 0
ShmemPmdMapped:        0 kB
VmFlags: rd wr mr mw me ac sd
";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].start, found[0].huge_bytes, found[0].is_locked),
            (0x7f00_0020_0000, 2 << 20, true)
        );
        assert!(found[0].title.contains(" 00:1c 42 "));
        assert!(found[1].huge_bytes == 0 && !found[1].is_locked);
    }
}
