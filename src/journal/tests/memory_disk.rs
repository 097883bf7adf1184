//! A disk in memory that remembers all that was done to it, can fail at any call, and can say what may be on it if the
//! power fails at any moment.
//!
//! What the model takes for granted is what is promised to programs, and nothing more: data is there after a sync of its
//! file that succeeded, names after one of their directory. Everything else may be there or not, each write and each name
//! for itself, each sector of 512 bytes of a write for itself. After a sync that failed nothing that had been written before
//! it is sure any more, whatever later syncs say.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::Random;
use crate::journal::disk::{Disk, DiskFile, View, part};

pub(super) const SECTOR: u64 = 512;

/// What was done.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
    SyncDir,
    Len(usize, u64),
    Write(usize, u64, Vec<u8>),
    Sync(usize),
    FailedSync(usize),
    /// Somebody was told that all before an index is durable.
    Acknowledge(u64),
}

/// How calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// With an error, having done nothing, or of a write a part.
    Error(i32),
    /// A write does a part of what it was to do, and says so.
    Short,
}

/// Which calls fail: so many from one on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) from: u64,
    pub(super) count: u64,
    pub(super) how: Failure,
}

#[derive(Debug, Default)]
pub(super) struct State {
    files: Vec<Vec<u8>>,
    names: BTreeMap<String, usize>,
    is_locked: bool,
    pub(super) log: Vec<Op>,
    /// Calls that could fail.
    pub(super) calls: u64,
    pub(super) fault: Option<Fault>,
    /// The directory is gone; files that are open are still there.
    pub(super) is_gone: bool,
    /// After a sync that failed, what it was to keep is no longer in memory either.
    pub(super) drops_pages: bool,
    /// Files that were looked at, and bytes that were read of them.
    pub(super) views: u64,
    pub(super) bytes_read: u64,
    /// The most that was asked for at once.
    pub(super) longest_read: usize,
}

/// The disk.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryDisk(Arc<Mutex<State>>);

/// Unlocks when it is dropped.
#[derive(Debug)]
struct Locked(MemoryDisk);

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.state().is_locked = false;
    }
}

impl MemoryDisk {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A test that failed while it had it has said so.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A disk of the same content, of which nothing is remembered.
    pub(super) fn copy(&self) -> MemoryDisk {
        let state = self.state();
        let (files, names) = (state.files.clone(), state.names.clone());
        MemoryDisk(Arc::new(Mutex::new(State { files, names, ..State::default() })))
    }

    /// Operations that make its content, all of it synced.
    pub(super) fn as_log(&self) -> Vec<Op> {
        let state = self.state();
        let mut log: Vec<Op> =
            (0..state.files.len()).map(|file| Op::Create(format!("file {file}"), file)).collect();
        for (file, bytes) in state.files.iter().enumerate() {
            log.extend([
                Op::Write(file, 0, bytes.clone()),
                Op::Len(file, bytes.len() as u64),
                Op::Sync(file),
            ]);
        }
        log.extend((0..state.files.len()).map(|file| Op::Remove(format!("file {file}"))));
        log.extend(state.names.iter().map(|(name, &file)| Op::Create(name.clone(), file)));
        log.push(Op::SyncDir);
        log
    }

    pub(super) fn acknowledge(&self, index: u64) {
        self.state().log.push(Op::Acknowledge(index));
    }

    /// Files that were looked at, and bytes that were read of them.
    pub(super) fn reads(&self) -> (u64, u64) {
        let state = self.state();
        (state.views, state.bytes_read)
    }

    /// The names of all segments.
    pub(super) fn segments(&self) -> Vec<String> {
        self.state().names.keys().filter(|name| name.ends_with(".seg")).cloned().collect()
    }

    pub(super) fn len(&self, name: &str) -> u64 {
        let state = self.state();
        state.files[state.names[name]].len() as u64
    }

    pub(super) fn content(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.files[state.names[name]].clone()
    }

    pub(super) fn flip(&self, name: &str, bit: u64) {
        let mut state = self.state();
        let file = state.names[name];
        state.files[file][(bit / 8) as usize] ^= 1 << (bit % 8);
    }

    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let file = state.names[name];
        change(&mut state.files[file]);
    }

    pub(super) fn forget(&self, name: &str) {
        self.state().names.remove(name);
    }
}

impl State {
    /// One call: what is to become of it.
    fn call(&mut self) -> Option<Failure> {
        let call = self.calls;
        self.calls += 1;
        let fails = |fault: &Fault| call >= fault.from && call - fault.from < fault.count;
        self.fault.filter(fails).map(|fault| fault.how)
    }

    /// One call on a path.
    fn path_call(&mut self) -> io::Result<()> {
        if self.is_gone {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        self.file_call()
    }

    fn file_call(&mut self) -> io::Result<()> {
        match self.call() {
            Some(Failure::Error(code)) => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        self.names.get(&name(path)).copied().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().into()
}

impl Disk for MemoryDisk {
    fn make_dir(&self, _: &Path) -> io::Result<()> {
        self.state().path_call()
    }

    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn Debug + Send>>> {
        let was_locked = std::mem::replace(&mut self.state().is_locked, true);
        Ok(if was_locked { None } else { Some(Box::new(Locked(self.clone()))) })
    }

    fn is_locked(&self, _: &Path) -> bool {
        self.state().is_locked
    }

    fn list(&self, _: &Path) -> io::Result<Vec<OsString>> {
        let mut state = self.state();
        state.path_call()?;
        Ok(state.names.keys().map(OsString::from).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.path_call()?;
        let name = name(path);
        let file = match state.names.get(&name) {
            Some(&file) => {
                state.files[file].clear();
                state.log.push(Op::Len(file, 0));
                file
            }
            None => {
                let file = state.files.len();
                state.files.push(Vec::new());
                state.names.insert(name.clone(), file);
                state.log.push(Op::Create(name, file));
                file
            }
        };
        Ok(Box::new(MemoryFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.path_call()?;
        let file = state.file(from)?;
        state.names.remove(&name(from));
        state.names.insert(name(to), file);
        state.log.push(Op::Rename(name(from), name(to)));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.path_call()?;
        state.file(path)?;
        state.names.remove(&name(path));
        state.log.push(Op::Remove(name(path)));
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.path_call()?;
        state.log.push(Op::SyncDir);
        Ok(())
    }

    fn view(&self, path: &Path, _: bool) -> io::Result<Box<dyn View>> {
        let mut state = self.state();
        if state.is_gone {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let file = state.file(path)?;
        state.views += 1;
        let bytes = state.files[file].clone();
        Ok(Box::new(MemoryView { disk: self.clone(), bytes }))
    }
}

#[derive(Debug)]
struct MemoryFile {
    disk: MemoryDisk,
    file: usize,
}

impl DiskFile for MemoryFile {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn write_at(&self, pieces: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        let failure = state.call();
        let mut bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        if failure.is_some() {
            bytes.truncate(bytes.len() / 2);
        }
        let written = bytes.len();
        let file = &mut state.files[self.file];
        let end = at as usize + written;
        if file.len() < end {
            file.resize(end, 0);
        }
        file[at as usize..end].copy_from_slice(&bytes);
        state.log.push(Op::Write(self.file, at, bytes));
        match failure {
            Some(Failure::Error(code)) => Err(io::Error::from_raw_os_error(code)),
            Some(Failure::Short) if written == 0 => Err(io::ErrorKind::Interrupted.into()),
            _ => Ok(written),
        }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.file_call()?;
        state.files[self.file].resize(bytes as usize, 0);
        state.log.push(Op::Len(self.file, bytes));
        Ok(())
    }

    fn sync(&self, _: bool) -> io::Result<()> {
        let mut state = self.disk.state();
        let result = state.file_call();
        let op = if result.is_ok() { Op::Sync(self.file) } else { Op::FailedSync(self.file) };
        state.log.push(op);
        if result.is_err() && state.drops_pages {
            let kept = content(&state.log, self.file, |_| Kept::Lost);
            state.files[self.file] = kept;
        }
        result
    }

    fn is_named(&self) -> io::Result<bool> {
        let state = self.disk.state();
        Ok(!state.is_gone && state.names.values().any(|&file| file == self.file))
    }
}

#[derive(Debug)]
struct MemoryView {
    disk: MemoryDisk,
    bytes: Vec<u8>,
}

impl View for MemoryView {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn at(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let bytes = part(&self.bytes, offset, len);
        let mut state = self.disk.state();
        state.bytes_read += bytes.len() as u64;
        state.longest_read = state.longest_read.max(bytes.len());
        drop(state);
        Ok(bytes)
    }
}

/// What became of something that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Lost,
    Whole,
    /// Of a write, those sectors for which the bit of a hash is set.
    Torn(u64),
}

/// A file's content by what was done to it: what was synced, and of the rest what is kept.
fn content(log: &[Op], file: usize, mut keeps: impl FnMut(usize) -> Kept) -> Vec<u8> {
    let of_file = |op: &Op| match op {
        Op::Len(f, _) | Op::Write(f, ..) | Op::Sync(f) | Op::FailedSync(f) => *f == file,
        _ => false,
    };
    let ops: Vec<&Op> = log.iter().filter(|op| of_file(op)).collect();
    // From the end: whether a sync that succeeded comes before one that failed.
    let mut is_synced = vec![false; ops.len()];
    let mut synced = false;
    for (at, op) in ops.iter().enumerate().rev() {
        match op {
            Op::Sync(_) => synced = true,
            Op::FailedSync(_) => synced = false,
            _ => is_synced[at] = synced,
        }
    }
    let mut bytes = Vec::new();
    for (at, op) in ops.into_iter().enumerate() {
        let kept = if is_synced[at] { Kept::Whole } else { keeps(at) };
        match op {
            Op::Len(_, len) if kept != Kept::Lost => bytes.resize(*len as usize, 0),
            Op::Write(_, from, what) => apply(&mut bytes, *from, what, kept),
            _ => {}
        }
    }
    bytes
}

fn apply(bytes: &mut Vec<u8>, from: u64, what: &[u8], kept: Kept) {
    let is_kept = |at: u64| match kept {
        Kept::Lost => false,
        Kept::Whole => true,
        Kept::Torn(hash) => Random::new(hash ^ (at / SECTOR)).below(2) == 0,
    };
    let mut done = 0;
    while done < what.len() {
        let at = from + done as u64;
        let len = ((SECTOR - at % SECTOR) as usize).min(what.len() - done);
        if is_kept(at) {
            let end = at as usize + len;
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at as usize..end].copy_from_slice(&what[done..done + len]);
        }
        done += len;
    }
}

/// Which of what is not synced an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Nothing,
    Everything,
    /// Writes without the names, and names without the writes.
    WritesAlone,
    NamesAlone,
    Random(u64),
}

/// What may be on the disk if the power fails after what was done so far; and up to which index had been acknowledged.
pub(super) fn image(log: &[Op], choice: Choice) -> (MemoryDisk, u64) {
    let mut random = Random::new(if let Choice::Random(seed) = choice { seed } else { 0 });
    let last_dir_sync = log.iter().rposition(|op| matches!(op, Op::SyncDir));
    let mut names = BTreeMap::new();
    let mut acknowledged = 0;
    let mut files = 0;
    for (at, op) in log.iter().enumerate() {
        let is_synced = last_dir_sync.is_some_and(|sync| at < sync);
        let keeps = is_synced
            || match choice {
                Choice::Nothing | Choice::WritesAlone => false,
                Choice::Everything | Choice::NamesAlone => true,
                Choice::Random(_) => random.below(2) == 0,
            };
        match op {
            Op::Create(_, file) => files = files.max(file + 1),
            Op::Acknowledge(index) => acknowledged = *index,
            _ => {}
        }
        if keeps {
            apply_name(&mut names, log, at);
        }
    }
    let keeps = |_| match choice {
        Choice::Nothing | Choice::NamesAlone => Kept::Lost,
        Choice::Everything | Choice::WritesAlone => Kept::Whole,
        Choice::Random(_) => match random.below(4) {
            0 => Kept::Lost,
            1 => Kept::Whole,
            _ => Kept::Torn(random.next()),
        },
    };
    let mut keeps = keeps;
    let files = (0..files).map(|file| content(log, file, &mut keeps)).collect();
    (MemoryDisk(Arc::new(Mutex::new(State { files, names, ..State::default() }))), acknowledged)
}

/// What the operation at a place of the log makes of the names.
fn apply_name(names: &mut BTreeMap<String, usize>, log: &[Op], at: usize) {
    match &log[at] {
        Op::Create(name, file) => {
            names.insert(name.clone(), *file);
        }
        Op::Remove(name) => {
            names.remove(name);
        }
        Op::Rename(from, to) => {
            // Whose file it was then, also if its first name was lost.
            let mut then = BTreeMap::new();
            (0..at).for_each(|before| apply_name_in_order(&mut then, &log[before]));
            names.remove(from);
            names.insert(to.clone(), then[from]);
        }
        _ => {}
    }
}

fn apply_name_in_order(names: &mut BTreeMap<String, usize>, op: &Op) {
    match op {
        Op::Create(name, file) => {
            names.insert(name.clone(), *file);
        }
        Op::Remove(name) => {
            names.remove(name);
        }
        Op::Rename(from, to) => {
            let file = names.remove(from).expect("it has been made");
            names.insert(to.clone(), file);
        }
        _ => {}
    }
}
