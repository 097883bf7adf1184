//! The guard against truncation: an access behind the end of a file that was shortened is no death by SIGBUS.
//!
//! What lies behind the end of a mapped file cannot be read or written: the kernel sends SIGBUS. Looking at the
//! length before each access would not help, for it can change in between. So there is a handler, for processes
//! that ask for one: an access that faults in a guarded mapping finds a page of zeroes there from then on, and
//! every handle of this process is told to look at its file before it goes on. All other faults are passed on to
//! whoever handled them before. Segments of a journal are read under the same guard: there it is also a disk that cannot
//! read a page.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use super::layout::PAGE;
use crate::fork;

/// Mappings that can be guarded at once.
const MAPPINGS: usize = 1024;

/// A guarded mapping. The handler looks at all entries at any time, so who changes one says so before and after.
struct Entry {
    /// Counts the changes. Modulo 4: free, being filled, in use; 3 is left out, and 4 is free again.
    turn: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    hit: AtomicBool,
}

/// What a turn is modulo 4.
const FREE: usize = 0;
const IN_USE: usize = 2;

impl Entry {
    const fn new() -> Entry {
        let (turn, start, end) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        Entry { turn, start, end, hit: AtomicBool::new(false) }
    }

    /// Takes it for the mapping of `len` bytes at `start`, if it is free.
    fn take(&self, start: usize, len: usize) -> bool {
        let turn = self.turn.load(Ordering::Relaxed);
        let taken = turn % 4 == FREE
            && self.turn.compare_exchange(turn, turn + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            // Release: pairs with the fence in `range`. Who reads a new bound finds at its second look that the
            // turn in which it began is over.
            fence(Ordering::Release);
            self.hit.store(false, Ordering::Relaxed);
            self.start.store(start, Ordering::Relaxed);
            self.end.store(start + len, Ordering::Relaxed);
            // Release: pairs with the first look in `range`, which then sees the bounds.
            self.turn.store(turn + IN_USE, Ordering::Release);
        }
        taken
    }

    /// Gives it back. Only who has taken it calls this.
    fn give_back(&self) {
        self.turn.store(self.turn.load(Ordering::Relaxed) + 4 - IN_USE, Ordering::Release);
    }

    /// Where its mapping lies, if it is in use. An entry that changes meanwhile counts as free: it is not that of an
    /// access that faults, for that goes through a mapping whose guard lives as long as it.
    fn range(&self, meanwhile: impl FnOnce()) -> Option<Range<usize>> {
        let turn = self.turn.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        meanwhile();
        let end = self.end.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (turn % 4 == IN_USE && self.turn.load(Ordering::Relaxed) == turn).then_some(start..end)
    }
}

static ENTRIES: [Entry; MAPPINGS] = [const { Entry::new() }; MAPPINGS];

/// Who handled SIGBUS before: its address and flags, stored before ours is installed.
static FORMER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static FORMER_FLAGS: AtomicUsize = AtomicUsize::new(0);

/// Whether the handler is installed, or the number of the error that kept it from that.
static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();

/// Guards a mapping until it is dropped, which is before the mapping is.
#[derive(Debug)]
pub(crate) struct Guard {
    entry: usize,
}

impl Guard {
    /// Guards the mapping of `len` bytes at `start`.
    pub(crate) fn new(start: *const u8, len: usize) -> io::Result<Guard> {
        fork::watch();
        if !fork::is_watched() {
            // The handles could not be told.
            return Err(io::ErrorKind::Unsupported.into());
        }
        INSTALLED
            .get_or_init(|| install().map_err(|e| e.raw_os_error().unwrap_or(libc::EINVAL)))
            .map_err(io::Error::from_raw_os_error)?;
        let take = |entry: &Entry| entry.take(start as usize, len);
        let entry = ENTRIES.iter().position(take).ok_or(io::ErrorKind::QuotaExceeded)?;
        Ok(Guard { entry })
    }

    /// Whether an access to the mapping has faulted.
    pub(crate) fn is_hit(&self) -> bool {
        ENTRIES[self.entry].hit.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        ENTRIES[self.entry].give_back();
    }
}

fn install() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid one: the default action, no flags, an empty mask.
    let mut former: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; `former` has room for what the call writes.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut former) } != 0 {
        return Err(io::Error::last_os_error());
    }
    FORMER.store(former.sa_sigaction, Ordering::Relaxed);
    FORMER_FLAGS.store(former.sa_flags as usize, Ordering::Release);
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_bus_error as *const () as usize;
    // On the thread's alternative stack if it has one, as Rust's own handlers are.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `ours` names a handler of the signature that SA_SIGINFO asks for; it is async-signal-safe, as it says.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The handler. It reads and writes atomics and makes system calls, and nothing else.
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid `siginfo_t` to a handler with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    // SAFETY: as above.
    let info_here = unsafe { &*info };
    // SAFETY: for SIGBUS it has the address.
    let at = unsafe { info_here.si_addr() } as usize;
    // Not what a failing memory module or a misaligned access raises.
    const NO_SUCH_ADDRESS: libc::c_int = 2;
    let hit = ENTRIES.iter().find(|entry| entry.range(|| ()).is_some_and(|range| range.contains(&at)));
    match hit.filter(|_| code == NO_SUCH_ADDRESS) {
        Some(entry) if put_zeroes(at) => {
            entry.hit.store(true, Ordering::Relaxed);
            fork::disturb();
        }
        _ => pass_on(signal, info, context),
    }
}

/// Puts a page of zeroes, of this process alone, where an access to a guarded mapping faulted.
fn put_zeroes(at: usize) -> bool {
    let page = (at & !(PAGE as usize - 1)) as *mut libc::c_void;
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: the C library has a number of the last error for each thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; what was interrupted must find its own.
    let before = unsafe { *errno };
    // SAFETY: the page lies in a guarded mapping, which is in use by the access that faulted, so it is there. What
    // is seen through it is atomic words, or payload bytes that the shortened file has lost; both may change.
    let mapped = unsafe { libc::mmap(page, PAGE as usize, protection, flags, -1, 0) };
    // SAFETY: as above.
    unsafe { *errno = before };
    mapped == page
}

/// Leaves a fault that is not ours to whoever handled it before, or to the default, which ends the process.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Plain = extern "C" fn(libc::c_int);
    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    let flags = FORMER_FLAGS.load(Ordering::Acquire) as libc::c_int;
    let former = FORMER.load(Ordering::Relaxed);
    if former == libc::SIG_DFL || former == libc::SIG_IGN {
        // The access is tried again, faults again, and ends the process as it would have without us.
        // SAFETY: plain numbers.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    } else if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: it was installed with SA_SIGINFO, so it is a function of this signature.
        let handler: WithInfo = unsafe { std::mem::transmute(former) };
        handler(signal, info, context);
    } else {
        // SAFETY: it was installed without SA_SIGINFO, so it is a function of this signature.
        let handler: Plain = unsafe { std::mem::transmute(former) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use super::Entry;
    use crate::region::map::WordMap;
    use crate::{Config, Region, RegionLost};

    const PART: &str = "SERIATIM_GUARD_PART";

    #[test]
    fn an_entry_that_is_used_again_is_never_a_mix_of_two_mappings() {
        let entry = Entry::new();
        assert_eq!(entry.range(|| ()), None);
        assert!(entry.take(0x1000, 0x1000) && !entry.take(0x5000, 0x1000));
        assert_eq!(entry.range(|| ()), Some(0x1000..0x2000));
        let use_again = || {
            entry.give_back();
            assert!(entry.take(0x9000, 0x1000));
        };
        assert_eq!(entry.range(use_again), None);
        assert_eq!(entry.range(|| ()), Some(0x9000..0xa000));
        assert_eq!(entry.range(|| entry.give_back()), None);
        assert_eq!(entry.range(|| assert!(entry.take(0x1000, 0x1000))), None);
    }

    /// Runs a part of these tests in a process of its own, for it may end by a signal.
    fn run(part: &str) -> ExitStatus {
        let mut this = Command::new(std::env::current_exe().unwrap());
        this.args(["--exact", "region::guard::tests::part", "--nocapture"]).env(PART, part);
        this.output().unwrap().status
    }

    #[test]
    fn a_guarded_region_that_is_shortened_is_an_error() {
        assert!(run("ours").success());
    }

    #[test]
    fn what_is_not_ours_ends_the_process_as_before() {
        assert_eq!(run("theirs").signal(), Some(libc::SIGBUS));
    }

    #[test]
    fn what_is_not_ours_goes_to_who_handled_it_before() {
        assert_eq!(run("handled").code(), Some(42));
    }

    #[test]
    fn without_the_guard_the_process_ends() {
        assert_eq!(run("unguarded").signal(), Some(libc::SIGBUS));
    }

    extern "C" fn exit(_: libc::c_int) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(42) };
    }

    /// Does nothing unless it is started by the tests above.
    #[test]
    fn part() {
        let Ok(part) = std::env::var(PART) else { return };
        if part == "handled" {
            // SAFETY: the handler makes one system call.
            unsafe { libc::signal(libc::SIGBUS, exit as *const () as usize) };
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        let region = Region::create(&path, &Config::new()).unwrap();
        if part != "unguarded" {
            region.guard().unwrap();
            region.guard().unwrap();
        }
        let open = |path: &std::path::Path| {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(path).unwrap()
        };
        match part.as_str() {
            "ours" | "unguarded" => {
                open(&path).set_len(8192).unwrap();
                let seen = region.snapshot();
                assert!(seen.producers.is_empty());
                assert!(matches!(region.check(), Err(RegionLost::Truncated { found: 8192, .. })));
                // Long again, it is not what it was.
                open(&path).set_len(region.map().bytes()).unwrap();
                assert!(region.check().is_err());
                assert!(Region::attach(&path).unwrap().check().is_ok());
            }
            _ => {
                let other = open(&dir.path().join("other"));
                other.set_len(8192).unwrap();
                let words = WordMap::new(&other).unwrap();
                other.set_len(0).unwrap();
                words.words()[0].store(1, seriatim_ring::sync::Ordering::Relaxed);
            }
        }
    }
}
