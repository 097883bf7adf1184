//! The system calls that nothing else wraps: futex, open-file-description locks, reserving pages, memfd.
//!
//! Each is one unsafe block with plain arguments; everything about a region's mappings is in `region/map.rs`.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use seriatim_ring::sync::AtomicU32;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The mark of a sleeper that every wake-up is for.
pub(crate) const ANY_MARK: u32 = libc::FUTEX_BITSET_MATCH_ANY as u32;

/// Sleeps while `word` is `seen`, under a `mark` (see [`futex_wake`]), for `timeout` at most; `false` if that time
/// passed, or if the word is no longer there. Any return is a reason to look again. Signals neither end nor lengthen it.
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, mark: u32, timeout: Duration) -> bool {
    let until = Duration::from_nanos(monotonic_ns()).saturating_add(timeout);
    let until = libc::timespec {
        tv_sec: until.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(until.subsec_nanos()),
    };
    loop {
        match wait_until(word, seen, mark, &until) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) => return !matches!(e.raw_os_error(), Some(libc::ETIMEDOUT | libc::EFAULT)),
            Ok(()) => return true,
        }
    }
}

fn wait_until(word: &AtomicU32, seen: u32, mark: u32, until: &libc::timespec) -> io::Result<()> {
    // Unlike FUTEX_WAIT this takes a time and no span. Not private: the word is shared between processes.
    const WAIT: libc::c_int = libc::FUTEX_WAIT_BITSET;
    let nothing = std::ptr::null::<u32>();
    // SAFETY: the word lives for the call and `until` is a valid timespec; the kernel only reads both.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), WAIT, seen, until, nothing, mark) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Wakes all who sleep on `word`, in any process.
pub(crate) fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the kernel uses the address of the word as a key and touches nothing.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Wakes at most `count` of those who sleep on `word` under one of these `marks`, in any process, who slept longest
/// first; how many.
pub(crate) fn futex_wake(word: &AtomicU32, count: u32, marks: u32) -> u32 {
    const WAKE: libc::c_int = libc::FUTEX_WAKE_BITSET;
    let (nothing, nobody) = (std::ptr::null::<libc::timespec>(), std::ptr::null::<u32>());
    // SAFETY: the kernel uses the address of the word as a key and touches nothing.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), WAKE, count, nothing, nobody, marks) };
    u32::try_from(woken).unwrap_or(0)
}

fn lock_of(byte: i64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        // The kernel wants 0 for open-file-description locks.
        l_pid: 0,
    }
}

/// Takes the lock of a byte for the open description behind `file`; `false` if another one has it.
pub(crate) fn try_lock(file: &File, byte: i64) -> io::Result<bool> {
    let lock = lock_of(byte);
    // SAFETY: `lock` is a valid flock for the call, which only reads it.
    let result = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) });
    match result {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether another open description than the one behind `file` has the lock of a byte.
pub(crate) fn is_locked(file: &File, byte: i64) -> io::Result<bool> {
    let mut lock = lock_of(byte);
    // SAFETY: `lock` is a valid flock for the call, which reads and writes it.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Opens the file behind a descriptor once more: the same file, whatever its path names now, with an open
/// description, and so with locks, of its own.
pub(crate) fn reopen(file: &File, writable: bool) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(writable).open(path)
}

/// A file without a name in a directory, where the file system can do that.
pub(crate) fn unnamed_file(dir: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(dir)
}

fn c_path(path: &OsStr) -> io::Result<CString> {
    CString::new(path.as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "path with a zero byte"))
}

/// Gives an unnamed file its name; fails if the name exists.
pub(crate) fn link_unnamed(file: &File, path: &Path) -> io::Result<()> {
    let from = c_path(OsStr::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?;
    let to = c_path(path.as_os_str())?;
    let (cwd, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths are valid C strings for the call.
    check(unsafe { libc::linkat(cwd, from.as_ptr(), cwd, to.as_ptr(), follow) }).map(drop)
}

/// Reserves every page of a range; a file that ends before gets the range's end for its length. What cannot be there is
/// not tried: it would take all there is from others, and in memory end whoever the kernel chooses.
pub(crate) fn reserve(file: &File, range: Range<u64>) -> io::Result<()> {
    if !may_have_length(range.end) {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    if most_bytes_free(file).is_some_and(|most| most < range.end - range.start) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    pieces(range).try_for_each(|piece| allocate(file, 0, piece))
}

/// Gives the pages of a range back: it reads as zeroes from now on. The file keeps its length.
pub(crate) fn give_back(file: &File, range: Range<u64>) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    pieces(range).try_for_each(|piece| allocate(file, mode, piece))
}

/// Bytes of a file that one system call makes or gives back: whoever else does so in that file waits for it, and before
/// Linux 6 each signal makes it begin anew.
const PIECE: u64 = 1 << 20;

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = range;
    (start..end).step_by(PIECE as usize).map(move |at| at..end.min(at + PIECE))
}

fn allocate(file: &File, mode: libc::c_int, range: Range<u64>) -> io::Result<()> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG));
    let (start, len) = (number(range.start)?, number(range.end - range.start)?);
    loop {
        // SAFETY: plain numbers.
        match check(unsafe { libc::fallocate(file.as_raw_fd(), mode, start, len) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(drop),
        }
    }
}

/// Writes some of several pieces of bytes at an offset of a file; how many. At least one piece, and if all are taken
/// together as many as a call takes.
pub(crate) fn write_at(file: &File, pieces: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
    let at = libc::off_t::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    let count = pieces.len().min(PIECES_AT_ONCE) as libc::c_int;
    // SAFETY: an `IoSlice` has the layout of an `iovec`, and there are at least `count` of them, whose bytes are only read.
    let written = unsafe { libc::pwritev(file.as_raw_fd(), pieces.as_ptr().cast(), count, at) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(written as usize) }
}

/// Has the system begin to put a range of a file on the disk, and waits for nothing that it need not; no sync, and nothing
/// where there is no such call.
pub(crate) fn write_back(file: &File, range: Range<u64>) -> io::Result<()> {
    let (at, len) = (range.start as libc::off64_t, (range.end - range.start) as libc::off64_t);
    // SAFETY: plain numbers.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, libc::SYNC_FILE_RANGE_WRITE) };
    match if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) } {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE)) => {
            Ok(())
        }
        other => other,
    }
}

/// Pieces that one call takes: the kernel's `UIO_MAXIOV`.
pub(crate) const PIECES_AT_ONCE: usize = 1024;

/// Maps a file to be read that nobody changes any more: a sealed segment of a journal.
pub(crate) fn map_unchanging(file: &File) -> io::Result<memmap2::Mmap> {
    // SAFETY: who writes a segment is done with it before it gets its footer, and after that nothing of this library
    // writes into it or cuts it; a new one of the same name is another file. Whoever else does is as one who writes into
    // the files of this program.
    let map = unsafe { memmap2::Mmap::map(file) }?;
    // A hint: read ahead.
    let _ = map.advise(memmap2::Advice::Sequential);
    Ok(map)
}

/// Whether this process may make a file so long: the kernel ends who tries and may not.
pub(crate) fn may_have_length(bytes: u64) -> bool {
    bytes <= limit(libc::RLIMIT_FSIZE)
}

/// Bytes that an unprivileged user can still get on the file system of `file`.
pub(crate) fn bytes_free(file: &File) -> io::Result<u64> {
    let stat = statistics(file)?;
    let free = (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize));
    Ok(free.into_iter().chain(memory_free_for(file)).min().unwrap_or(0))
}

/// Bytes that nobody can get more than on the file system of `file`, if it has an end at all.
pub(crate) fn most_bytes_free(file: &File) -> Option<u64> {
    let stat = statistics(file).ok().filter(|stat| stat.f_blocks > 0);
    let free = stat.map(|stat| stat.f_bfree.saturating_mul(stat.f_frsize));
    free.into_iter().chain(memory_free_for(file)).min()
}

/// Bytes of memory that can be had for more pages of a file that lies in memory: its file system may promise more.
fn memory_free_for(file: &File) -> Option<u64> {
    let kib = |line: &str| line.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    let said = is_on_tmpfs(file).then(|| std::fs::read_to_string("/proc/meminfo").ok()).flatten()?;
    let of = |name: &str| said.lines().find_map(|line| kib(line.strip_prefix(name)?));
    Some((of("MemAvailable:")? + of("SwapFree:").unwrap_or(0)) << 10)
}

fn statistics(file: &File) -> io::Result<libc::statvfs> {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `stat` has room for what the call writes.
    check(unsafe { libc::fstatvfs(file.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded and has filled it in.
    Ok(unsafe { stat.assume_init() })
}

/// An unnamed memory file that can be sealed.
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    let name = c_path(OsStr::new(name))?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a valid C string for the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: the descriptor is new and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Fixes the length of a memory file for good.
pub(crate) fn seal_length(file: &File) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain numbers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// Sets the group of a file.
pub(crate) fn set_group(file: &File, gid: u32) -> io::Result<()> {
    std::os::unix::fs::fchown(file, None, Some(gid))
}

/// Processor time that this thread has used, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The monotonic clock, in nanoseconds; the same for all processes of a time namespace.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` has room for what the call writes.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The kernel's number of this thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() as u32 }
}

/// The CPUs that this thread may run on, ascending.
pub(crate) fn affinity() -> io::Result<Vec<usize>> {
    let mask = affinity_of(0)?;
    Ok((0..CPU_WORDS * 64).filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1).collect())
}

/// The CPUs that a process or thread may run on, by the kernel's number of it (0 is this thread), as a mask.
pub(crate) fn affinity_of(thread: u32) -> io::Result<[u64; CPU_WORDS]> {
    let mut mask = [0_u64; CPU_WORDS];
    let size = size_of_val(&mask);
    // SAFETY: the mask has as many bytes as the call may write.
    let got = unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, size, mask.as_mut_ptr()) };
    check(got as libc::c_int)?;
    Ok(mask)
}

/// Lets this thread run on these CPUs only.
pub(crate) fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    let mut mask = [0_u64; CPU_WORDS];
    for &cpu in cpus {
        *mask.get_mut(cpu / 64).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? |= 1 << (cpu % 64);
    }
    // SAFETY: the mask has as many bytes as the call may read; 0 is this thread.
    let set = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&mask), mask.as_ptr()) };
    check(set as libc::c_int).map(drop)
}

/// Words of a mask of CPUs: for as many as any kernel is built for.
pub(crate) const CPU_WORDS: usize = 8192 / 64;

/// How many bytes this process may lock in memory.
pub(crate) fn lock_limit() -> u64 {
    limit(libc::RLIMIT_MEMLOCK)
}

/// A limit of this process.
fn limit(which: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` has room for what the call writes. It cannot fail for a limit that exists.
    unsafe { libc::getrlimit(which, &raw mut limit) };
    limit.rlim_cur
}

/// Has pages of this process's memory that are not there yet taken from these NUMA nodes.
pub(crate) fn set_memory_policy(
    start: usize,
    len: usize,
    policy: libc::c_int,
    nodes: &[u32],
) -> io::Result<()> {
    let mut mask = [0_u64; NODE_WORDS];
    for &node in nodes {
        let word = mask.get_mut(node as usize / 64);
        *word.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? |= 1 << (node % 64);
    }
    // The kernel takes one bit less than it is told.
    let bits = NODE_WORDS * 64 + 1;
    // SAFETY: the mask lives for the call and has as many bits as the kernel reads; no other memory is touched.
    let done = unsafe { libc::syscall(libc::SYS_mbind, start, len, policy, mask.as_ptr(), bits, 0) };
    check(done as libc::c_int).map(drop)
}

/// Words of a mask of NUMA nodes: for as many as any kernel is built for.
const NODE_WORDS: usize = 1024 / 64;

/// Size of a page in bytes.
pub(crate) fn page_size() -> u64 {
    // SAFETY: plain number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// Size of the pages that a file is mapped by: of hugetlbfs its own, of all others the machine's.
pub(crate) fn page_size_of(file: &File) -> io::Result<u64> {
    let stat = file_system(file)?;
    Ok(if stat.f_type == libc::HUGETLBFS_MAGIC { stat.f_bsize as u64 } else { page_size() })
}

/// Whether a file lies in memory, on tmpfs.
pub(crate) fn is_on_tmpfs(file: &File) -> bool {
    file_system(file).is_ok_and(|stat| stat.f_type == libc::TMPFS_MAGIC)
}

fn file_system(file: &File) -> io::Result<libc::statfs> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `stat` has room for what the call writes.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded and has filled it in.
    Ok(unsafe { stat.assume_init() })
}

/// Whether `/proc` tells of the pid namespace in which this process is. Else its numbers are those of others: after
/// `unshare --pid` without a mount of its own, say.
pub(crate) fn sees_its_namespace() -> bool {
    let this = std::fs::read_link("/proc/self").ok();
    this.and_then(|this| this.to_str()?.parse().ok()) == Some(std::process::id())
}

/// The kernel's start time of a process, in its ticks since boot; `None` if there is no such process here.
pub(crate) fn start_time_of(pid: u32) -> Option<u64> {
    stat_field(pid, 22)
}

/// The CPU on which the first thread of a process ran last; `None` if there is no such process here.
pub(crate) fn last_cpu_of(pid: u32) -> Option<u64> {
    stat_field(pid, 39)
}

/// A number in what the kernel says of a process, by its place there as the kernel counts, from 1 on.
fn stat_field(pid: u32, place: usize) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the name, may hold spaces and brackets: count from its end.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(place - 3)?.parse().ok()
}

/// Whether a process is about to end: it has been killed, or is being taken apart; `None` if there is none.
pub(crate) fn is_ending(pid: u32) -> Option<bool> {
    /// The kernel's `PF_EXITING`.
    const EXITING: u64 = 4;
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    let is_killed = |mask: &str| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & KILLED != 0);
    if pending.into_iter().any(is_killed) {
        return Some(true);
    }
    // After the signals: it is dying from the one look to the other, or not at all yet.
    Some(stat_field(pid, 9)? & EXITING != 0)
}

/// A descriptor that stays that of the process that has this pid now.
pub(crate) fn open_process(pid: u32) -> io::Result<File> {
    // Close-on-exec without being asked.
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: the descriptor is new and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Kills the process behind a descriptor of [`open_process`].
pub(crate) fn kill_process(process: &File) -> io::Result<()> {
    let (fd, no_info) = (process.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: plain numbers, and no information, which is allowed.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, no_info, 0) };
    check(result as libc::c_int).map(drop)
}

/// Sleeps until the process behind a descriptor has ended, for `longest` at most; whether it has.
pub(crate) fn await_process(process: &File, longest: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = libc::c_int::try_from(longest.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `poll` is one valid entry for the call, which reads and writes it.
    Ok(check(unsafe { libc::poll(&raw mut poll, 1, ms) })? > 0)
}

/// Sixteen bytes that the kernel writes as a UUID: this boot's, or random ones.
pub(crate) fn kernel_uuid(which: &str) -> io::Result<u128> {
    let text = std::fs::read_to_string(format!("/proc/sys/kernel/random/{which}"))?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// A page of this process's memory that is full of zeroes in its forked children; its first word. `None` before
/// Linux 4.14.
pub(crate) fn word_wiped_on_fork() -> Option<&'static AtomicU64> {
    let len = page_size() as usize;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping that nobody else knows.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the whole mapping made above.
    check(unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) }).ok()?;
    // SAFETY: the page is zeroed, aligned, writable, and never unmapped.
    Some(unsafe { AtomicU64::from_ptr(page.cast()) })
}

/// Has `handler` run in every forked child; whether that could be arranged. The handler makes system calls only.
pub(crate) fn in_forked_children(handler: extern "C" fn()) -> bool {
    // SAFETY: the handler is a function of this program, and async-signal-safe as its contract says.
    unsafe { libc::pthread_atfork(None, None, Some(handler)) == 0 }
}

/// Closes a descriptor, whatever it is.
pub(crate) fn close(fd: i32) {
    // SAFETY: the caller owns the descriptor or, in a forked child, nobody uses it.
    unsafe { libc::close(fd) };
}

/// Sends this thread a signal: when the call returns, it has been acted upon.
#[cfg(feature = "crash-points")]
pub(crate) fn raise(signal: libc::c_int) {
    // SAFETY: plain number.
    unsafe { libc::raise(signal) };
}

/// Has a signal do nothing but interrupt the system call that the thread is in.
#[cfg(test)]
pub(crate) fn interrupt_by(signal: libc::c_int) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeroes are a valid value: no flags, so no SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: the handler does nothing.
    check(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }).unwrap();
}

/// Sends a signal to a thread of this process, by the kernel's number; whether it is there.
#[cfg(test)]
pub(crate) fn signal_thread(thread: libc::pid_t, signal: libc::c_int) -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal) == 0 }
}
