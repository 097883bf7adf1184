//! A disk in memory that remembers all that was done to it, can fail at any call, and can say what may be on it if the
//! power fails at any moment.
//!
//! What the model takes for granted is what is promised to programs, and nothing more: data is there after a sync of its
//! file that succeeded, names after one of their directory. Everything else may be there or not, each write and each name
//! for itself, each sector of 512 bytes of a write for itself. After a sync that failed nothing that had been written before
//! it is sure any more, whatever later syncs say.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{DIR, Random};
use crate::journal::disk::{Disk, DiskFile, Guard, LockOf, Node, View, part};

pub(super) const SECTOR: u64 = 512;

/// A name: the number of the directory that has it, 0 for the journal's, and what it is called there.
type Name = (usize, String);

/// What a name stands for: a file or a directory, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    File(usize),
    Dir(usize),
}

/// What was done.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Create(Name, Named),
    /// In one directory.
    Rename(Name, String),
    Remove(Name),
    SyncDir(usize),
    Len(usize, u64),
    Write(usize, u64, Vec<u8>),
    Sync(usize),
    FailedSync(usize),
    /// Somebody was told that all before an index is durable.
    Acknowledge(u64),
    /// Somebody was told something else that stays.
    Told(String, u64),
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
    /// Directories below the journal's.
    dirs: usize,
    names: BTreeMap<Name, Named>,
    locked: HashSet<LockOf>,
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
    /// After how many more reads one fails.
    pub(super) fails_read: Option<u64>,
    /// The most that was asked for at once.
    pub(super) longest_read: usize,
}

/// The disk.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryDisk(Arc<Mutex<State>>);

/// Unlocks when it is dropped.
#[derive(Debug)]
struct Locked(MemoryDisk, LockOf);

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.state().locked.remove(&self.1);
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
        let (files, names, dirs) = (state.files.clone(), state.names.clone(), state.dirs);
        MemoryDisk(Arc::new(Mutex::new(State { files, names, dirs, ..State::default() })))
    }

    /// Operations that make its content, all of it synced.
    pub(super) fn as_log(&self) -> Vec<Op> {
        let state = self.state();
        let name = |file: usize| (0, format!("file {file}"));
        let mut log: Vec<Op> =
            (0..state.files.len()).map(|file| Op::Create(name(file), Named::File(file))).collect();
        for (file, bytes) in state.files.iter().enumerate() {
            log.extend([
                Op::Write(file, 0, bytes.clone()),
                Op::Len(file, bytes.len() as u64),
                Op::Sync(file),
            ]);
        }
        log.extend((0..state.files.len()).map(|file| Op::Remove(name(file))));
        log.extend(state.names.iter().map(|(name, &named)| Op::Create(name.clone(), named)));
        log.extend((0..=state.dirs).map(Op::SyncDir));
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

    /// Somebody is told that something stays.
    pub(super) fn tell(&self, what: &str, index: u64) {
        self.state().log.push(Op::Told(what.into(), index));
    }

    /// The names of all segments.
    pub(super) fn segments(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| name.ends_with(".seg")).collect()
    }

    /// The names in the journal's directory.
    pub(super) fn names(&self) -> Vec<String> {
        self.state().names.keys().filter(|(dir, _)| *dir == 0).map(|(_, name)| name.clone()).collect()
    }

    /// All files, by their paths from the journal's directory on.
    pub(super) fn paths(&self) -> Vec<String> {
        let below = |(path, node)| match node {
            Node::File(_) => Some(std::path::PathBuf::into_os_string(path).into_string().unwrap()),
            _ => None,
        };
        crate::journal::kept::walk(self, Path::new(DIR)).unwrap().into_iter().filter_map(below).collect()
    }

    pub(super) fn len(&self, name: &str) -> u64 {
        self.content(name).len() as u64
    }

    pub(super) fn content(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        let file = state.file(&Path::new(DIR).join(name)).unwrap();
        state.files[file].clone()
    }

    pub(super) fn flip(&self, name: &str, bit: u64) {
        self.change(name, |file| file[(bit / 8) as usize] ^= 1 << (bit % 8));
    }

    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let file = state.file(&Path::new(DIR).join(name)).unwrap();
        change(&mut state.files[file]);
    }

    pub(super) fn forget(&self, name: &str) {
        let mut state = self.state();
        let name = state.name(&Path::new(DIR).join(name)).unwrap();
        state.names.remove(&name);
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

    /// What is at a path.
    fn named(&self, path: &Path) -> io::Result<Named> {
        if path == Path::new(DIR) {
            return Ok(Named::Dir(0));
        }
        let name = self.name(path)?;
        self.names.get(&name).copied().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn file(&self, path: &Path) -> io::Result<usize> {
        match self.named(path)? {
            Named::File(file) => Ok(file),
            Named::Dir(_) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        }
    }

    fn dir(&self, path: &Path) -> io::Result<usize> {
        match self.named(path)? {
            Named::Dir(dir) => Ok(dir),
            Named::File(_) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }

    /// What a path names, whether there is something or not, in a directory that there is.
    fn name(&self, path: &Path) -> io::Result<Name> {
        let dir = self.dir(path.parent().unwrap())?;
        Ok((dir, path.file_name().unwrap().to_str().unwrap().into()))
    }

    fn is_empty(&self, dir: usize) -> bool {
        !self.names.keys().any(|(of, _)| *of == dir)
    }
}

impl Disk for MemoryDisk {
    fn make_dir(&self, _: &Path) -> io::Result<()> {
        self.state().path_call()
    }

    fn make_new_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.path_call()?;
        let name = state.name(path)?;
        if state.names.contains_key(&name) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        state.dirs += 1;
        let dir = Named::Dir(state.dirs);
        state.names.insert(name.clone(), dir);
        state.log.push(Op::Create(name, dir));
        Ok(())
    }

    fn lock_at(&self, _: &Path, which: LockOf) -> io::Result<Option<Guard>> {
        let is_free = self.state().locked.insert(which);
        Ok(if is_free { Some(Box::new(Locked(self.clone(), which))) } else { None })
    }

    fn is_locked_at(&self, _: &Path, which: LockOf) -> bool {
        self.state().locked.contains(&which)
    }

    fn node(&self, path: &Path) -> io::Result<Node> {
        let mut state = self.state();
        state.path_call()?;
        Ok(match state.named(path)? {
            Named::File(file) => Node::File(state.files[file].len() as u64),
            Named::Dir(_) => Node::Dir,
        })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let mut state = self.state();
        state.path_call()?;
        let dir = state.dir(path)?;
        Ok(state.names.keys().filter(|(of, _)| *of == dir).map(|(_, name)| OsString::from(name)).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        state.path_call()?;
        let name = state.name(path)?;
        let file = match state.names.get(&name) {
            Some(&Named::File(file)) => {
                state.files[file].clear();
                state.log.push(Op::Len(file, 0));
                file
            }
            Some(Named::Dir(_)) => return Err(io::Error::from_raw_os_error(libc::EISDIR)),
            None => {
                let file = state.files.len();
                state.files.push(Vec::new());
                state.names.insert(name.clone(), Named::File(file));
                state.log.push(Op::Create(name, Named::File(file)));
                file
            }
        };
        Ok(Box::new(MemoryFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.path_call()?;
        let named = state.named(from)?;
        let (from, to) = (state.name(from)?, state.name(to)?);
        assert_eq!(from.0, to.0, "in one directory");
        let is_in_the_way = match (named, state.names.get(&to)) {
            (Named::Dir(_), Some(&Named::Dir(there))) => !state.is_empty(there),
            (Named::File(_), Some(Named::Dir(_))) | (Named::Dir(_), Some(Named::File(_))) => true,
            _ => false,
        };
        if is_in_the_way {
            return Err(io::Error::from_raw_os_error(libc::ENOTEMPTY));
        }
        state.names.remove(&from);
        state.names.insert(to.clone(), named);
        state.log.push(Op::Rename(from, to.1));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.path_call()?;
        state.file(path)?;
        let name = state.name(path)?;
        state.names.remove(&name);
        state.log.push(Op::Remove(name));
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.path_call()?;
        let dir = state.dir(path)?;
        if !state.is_empty(dir) {
            return Err(io::Error::from_raw_os_error(libc::ENOTEMPTY));
        }
        let name = state.name(path)?;
        state.names.remove(&name);
        state.log.push(Op::Remove(name));
        Ok(())
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let file = {
            let state = self.state();
            if state.is_gone {
                return Err(io::Error::from_raw_os_error(libc::ENOENT));
            }
            state.file(path)?
        };
        MemoryFile { disk: self.clone(), file }.sync(true)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.path_call()?;
        let dir = state.dir(path)?;
        state.log.push(Op::SyncDir(dir));
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

    fn write_back(&self, _: Range<u64>) -> io::Result<()> {
        // What is lost of what is not synced is any part of it, whatever the system has begun with.
        self.disk.state().file_call()
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
        Ok(!state.is_gone && state.names.values().any(|&named| named == Named::File(self.file)))
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
        match state.fails_read {
            Some(0) => {
                state.fails_read = None;
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            left => state.fails_read = left.map(|left| left - 1),
        }
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
    let mut last_sync = BTreeMap::new();
    for (at, op) in log.iter().enumerate() {
        if let Op::SyncDir(dir) = op {
            last_sync.insert(*dir, at);
        }
    }
    let mut names = BTreeMap::new();
    let mut acknowledged = 0;
    let (mut files, mut dirs) = (0, 0);
    for (at, op) in log.iter().enumerate() {
        let dir = match op {
            Op::Create((dir, _), _) | Op::Rename((dir, _), _) | Op::Remove((dir, _)) => *dir,
            _ => 0,
        };
        let is_synced = last_sync.get(&dir).is_some_and(|&sync| at < sync);
        let keeps = is_synced
            || match choice {
                Choice::Nothing | Choice::WritesAlone => false,
                Choice::Everything | Choice::NamesAlone => true,
                Choice::Random(_) => random.below(2) == 0,
            };
        match op {
            Op::Create(_, Named::File(file)) => files = files.max(file + 1),
            Op::Create(_, Named::Dir(dir)) => dirs = dirs.max(*dir),
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
    (MemoryDisk(Arc::new(Mutex::new(State { files, names, dirs, ..State::default() }))), acknowledged)
}

/// What the operation at a place of the log makes of the names.
fn apply_name(names: &mut BTreeMap<Name, Named>, log: &[Op], at: usize) {
    match &log[at] {
        Op::Rename(from, to) => {
            // What it was then, also if its first name was lost.
            let mut then = BTreeMap::new();
            log[..at].iter().for_each(|before| apply_name_in_order(&mut then, before));
            names.remove(from);
            names.insert((from.0, to.clone()), then[from]);
        }
        op => apply_name_in_order(names, op),
    }
}

fn apply_name_in_order(names: &mut BTreeMap<Name, Named>, op: &Op) {
    match op {
        Op::Create(name, named) => {
            names.insert(name.clone(), *named);
        }
        Op::Remove(name) => {
            names.remove(name);
        }
        Op::Rename(from, to) => {
            let named = names.remove(from).expect("it has been made");
            names.insert((from.0, to.clone()), named);
        }
        _ => {}
    }
}
