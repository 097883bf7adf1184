//! Who is alive: an open-file-description lock on a byte of the region file for each party.
//!
//! The kernel drops such a lock when the last descriptor of its open description is closed, however the process
//! ends; it keeps it while the process is merely stopped; it needs no clock and knows nothing of pids. So a
//! party is dead only when its lock is free. Each party has an open description of its own for its lock, never
//! mapped and never duplicated; all are probed through the region's, which never locks anything.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};

use crate::{fork, sys};

/// Who holds which byte. The bytes lie far behind the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sequencer,
    Lane(u16),
    Worker(u16),
    /// One who gates from a slot, by its generation: the slot's own lock may be its successor's already.
    Member {
        slot: u16,
        generation: u64,
    },
}

impl Role {
    fn byte(self) -> i64 {
        const BASE: i64 = 1 << 62;
        match self {
            Role::Sequencer => BASE,
            Role::Lane(lane) => BASE + 0x1_0000 + i64::from(lane),
            Role::Worker(slot) => BASE + 0x2_0000 + i64::from(slot),
            // No two of a slot are alive at once that are so many generations apart.
            Role::Member { slot, generation } => {
                BASE + (1 << 61) + (i64::from(slot) << 40) + (generation & ((1 << 40) - 1)) as i64
            }
        }
    }
}

/// The lock of a living party; dropping it is its death. In a forked child it is not there, and dropping it
/// does nothing.
#[derive(Debug)]
pub(crate) struct Lock {
    /// `None` only while it is dropped.
    file: Option<File>,
}

impl Lock {
    /// Takes the lock of a role; `None` if somebody has it. `region` is a descriptor of the region file.
    pub(crate) fn take(region: &File, role: Role) -> io::Result<Option<Lock>> {
        fork::watch();
        let file = sys::reopen(region, true)?;
        // Noted before it is locked: a child that is forked between the two must not keep the lock.
        fork::note(file.as_raw_fd());
        let lock = Lock { file: Some(file) };
        let taken = lock.file.as_ref().map_or(Ok(false), |file| sys::try_lock(file, role.byte()))?;
        Ok(taken.then_some(lock))
    }

    /// Takes the lock of another role as well, to fall together; whether nobody had it.
    pub(crate) fn take_also(&self, role: Role) -> io::Result<bool> {
        self.file.as_ref().map_or(Ok(false), |file| sys::try_lock(file, role.byte()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        if fork::is_child() {
            // Closed already, and the number may be another file's by now.
            let _ = file.into_raw_fd();
        } else {
            fork::forget(file.as_raw_fd());
        }
    }
}

#[cfg(test)]
impl Lock {
    /// The lock of nobody: put in the place of a real one, that one falls.
    pub(crate) fn fallen() -> Lock {
        Lock { file: Some(File::open("/dev/null").unwrap()) }
    }
}

/// Whether a role's party is alive. `region` is a descriptor that holds no locks.
pub(crate) fn is_alive(region: &File, role: Role) -> io::Result<bool> {
    sys::is_locked(region, role.byte())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_alone_and_falls_with_its_holder() {
        let file = sys::memory_file("locks").unwrap();
        let member = |slot, generation| Role::Member { slot, generation };
        let members = [member(0, 1), member(0, 2), member(1, 1), member(1023, u64::MAX >> 8)];
        let roles = [Role::Sequencer, Role::Lane(0), Role::Lane(1023), Role::Worker(0), Role::Worker(1023)];
        let roles: Vec<Role> = roles.into_iter().chain(members).collect();
        let held: Vec<_> = roles.iter().map(|&r| Lock::take(&file, r).unwrap().unwrap()).collect();
        for &role in &roles {
            assert!(is_alive(&file, role).unwrap());
            assert!(Lock::take(&file, role).unwrap().is_none());
        }
        drop(held);
        for &role in &roles {
            assert!(!is_alive(&file, role).unwrap());
        }
    }

    #[test]
    fn a_second_lock_falls_with_the_first() {
        let file = sys::memory_file("locks").unwrap();
        let lock = Lock::take(&file, Role::Worker(3)).unwrap().unwrap();
        let member = Role::Member { slot: 3, generation: 7 };
        assert!(lock.take_also(member).unwrap());
        assert!(is_alive(&file, member).unwrap());
        drop(lock);
        assert!(!is_alive(&file, member).unwrap() && !is_alive(&file, Role::Worker(3)).unwrap());
    }

    #[test]
    fn another_descriptor_of_the_file_takes_nothing_with_it() {
        let file = sys::memory_file("locks").unwrap();
        let lock = Lock::take(&file, Role::Worker(3)).unwrap();
        drop(sys::reopen(&file, true).unwrap());
        assert!(lock.is_some() && is_alive(&file, Role::Worker(3)).unwrap());
    }
}
