//! [`Region`]: the one mapped file and all that is in it.

pub(crate) mod file;
pub(crate) mod guard;
pub(crate) mod header;
pub(crate) mod inspect;
pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod placement;
pub(crate) mod snapshot;
pub(crate) mod spill;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use seriatim_ring::Seq;

use crate::assistance::Assistance;
use crate::config::{Config, DigestOf, HugePages};
use crate::crash_point;
use crate::error::{AttachError, CreateError, RemoveError};
use crate::liveness::{self, Lock, Role};
use crate::sys;
use crate::wait;
use file::FileState;
use header::{HEADER_BYTES, Identity, Uuid, VERSION};
use layout::{Geometry, Layout, PAGE, Part};
use map::Map;

/// How long a region that is just being left is waited for before it counts as in use.
const LINGER: Duration = Duration::from_secs(1);

/// A region that this process has opened.
///
/// Cloning it shares the mapping. The mapping is read-only but for the pages of the parties that were attached
/// through it. A region stays usable while its file has lost its name; it ends with the last process that has
/// it open.
///
/// ```
/// use seriatim::{Config, Region};
///
/// let region = Region::anonymous(&Config::new().producers(1).lane_bytes(4096))?;
/// assert_eq!(region.max_payload(), 2048);
/// let again = Region::attach(region.path())?;
/// assert_eq!(again.uuid(), region.uuid());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Region(Arc<Inner>);

/// Aligned so that the counter of its owners, which clones write, lies on another line than the mapping's place,
/// which every party reads for every command.
#[repr(align(128))]
#[derive(Debug)]
struct Inner {
    map: Map,
    path: PathBuf,
    identity: Identity,
    writable: bool,
    /// All of it is in the page tables.
    entered: OnceLock<()>,
    /// Whether who waits can announce that.
    announces: OnceLock<bool>,
    assistance: Assistance,
}

impl Region {
    /// Makes a region at `path`, completely or not at all, and opens it.
    ///
    /// The file gets all its pages at once and its name last, so nobody ever sees a part of it. tmpfs
    /// (`/dev/shm`) is the place for it; on a disk the kernel would write its pages back now and then.
    ///
    /// # Errors
    /// A value out of range, a name that exists, a file system without the room, memory that cannot be had as it was
    /// asked for (huge pages, NUMA nodes), or a system call that fails. Nothing is left then.
    pub fn create(path: impl AsRef<Path>, config: &Config) -> Result<Region, CreateError> {
        #[cfg(feature = "crash-points")]
        crate::crash::arm();
        let path = std::path::absolute(path.as_ref()).unwrap_or_else(|_| path.as_ref().into());
        let first = Seq::new(config.first_index);
        Self::check_new(&path, config)?;
        Self::prepare(&path, config, None, |map| map.control().start_at(first, 0))?.publish()
    }

    fn check_new(path: &Path, config: &Config) -> Result<(), CreateError> {
        config.layout().map_err(|source| CreateError::Config { path: path.into(), source })?;
        if path.symlink_metadata().is_ok() { Err(CreateError::Exists { path: path.into() }) } else { Ok(()) }
    }

    /// A region that has no name yet, with what `fill` writes into it; with a new number, or this one.
    pub(crate) fn prepare(
        path: &Path,
        config: &Config,
        uuid: Option<Uuid>,
        fill: impl FnOnce(&Map),
    ) -> Result<NewRegion, CreateError> {
        let path = path.to_path_buf();
        let layout = config.layout().map_err(|source| CreateError::Config { path: path.clone(), source })?;
        let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("/"));
        let new = NewFile::in_dir(dir).map_err(|source| match dir.metadata() {
            Ok(directory) if is_refusal(&source) && directory.is_dir() => {
                let (owner, mode) = owner_and_mode(&directory);
                CreateError::Rights { path: path.clone(), owner, mode }
            }
            _ => io_error(&path, "create")(source),
        })?;
        let identity = format(&new.file, &path, config, layout, uuid, fill)?;
        Ok(NewRegion { new, path, identity, layout })
    }

    /// Makes a region without a name, sealed against truncation, and opens it. Other processes attach through
    /// [`path`](Self::path), which is `/proc/<pid>/fd/<n>` of this process, while it lives.
    ///
    /// # Errors
    /// A value out of range, or a system call that fails.
    pub fn anonymous(config: &Config) -> Result<Region, CreateError> {
        let first = Seq::new(config.first_index);
        Self::unnamed(config, None, |map| map.control().start_at(first, 0))
    }

    /// The same, as whoever fills it wants it to begin.
    pub(crate) fn unnamed(
        config: &Config,
        uuid: Option<Uuid>,
        fill: impl FnOnce(&Map),
    ) -> Result<Region, CreateError> {
        let path = PathBuf::from("anonymous region");
        let layout = config.layout().map_err(|source| CreateError::Config { path: path.clone(), source })?;
        let file = sys::memory_file("seriatim").map_err(io_error(&path, "create"))?;
        let identity = format(&file, &path, config, layout, uuid, fill)?;
        // Its length cannot grow with its spills: nobody sees it.
        if sys::may_have_length(layout.longest()) {
            file.set_len(layout.longest()).map_err(io_error(&path, "lengthen"))?;
        }
        sys::seal_length(&file).map_err(io_error(&path, "seal"))?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let path = PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        Self::open_new(file, path, identity, layout)
    }

    fn open_new(
        file: File,
        path: PathBuf,
        identity: Identity,
        layout: Layout,
    ) -> Result<Region, CreateError> {
        let map = Map::new(file, layout, false).map_err(io_error(&path, "map"))?;
        Ok(Region(Arc::new(Inner {
            map,
            path,
            identity,
            writable: true,
            entered: OnceLock::new(),
            announces: OnceLock::new(),
            assistance: Assistance::default(),
        })))
    }

    /// Opens a region, for writing if the file's rights allow it, else for reading.
    ///
    /// # Errors
    /// A file that is missing, may not be read, is no region, is of another version, damaged, truncated, or
    /// left from another boot of the machine. Nothing is written.
    pub fn attach(path: impl AsRef<Path>) -> Result<Region, AttachError> {
        Self::open(path.as_ref(), true)
    }

    /// Opens a region for reading only, whatever the rights: for looking at it.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_read_only(path: impl AsRef<Path>) -> Result<Region, AttachError> {
        Self::open(path.as_ref(), false)
    }

    fn open(path: &Path, for_writing: bool) -> Result<Region, AttachError> {
        let region = Self::open_any(path, for_writing)?;
        let path = region.path();
        let boot = Uuid(sys::kernel_uuid("boot_id").map_err(AttachError::io(path, "learn the boot id for"))?);
        let found = region.identity().boot_id;
        if found != boot {
            let (found, expected) = (found.to_string(), boot.to_string());
            return Err(AttachError::OtherBoot { path: path.into(), found, expected });
        }
        Ok(region)
    }

    /// As [`open`](Self::open), of whatever boot of the machine.
    pub(crate) fn open_any(path: &Path, for_writing: bool) -> Result<Region, AttachError> {
        #[cfg(feature = "crash-points")]
        crate::crash::arm();
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let (file, writable) = open_file(&path, for_writing)?;
        let header = read_header(&file).map_err(AttachError::io(&path, "read"))?;
        let (identity, layout) =
            Identity::decode(&header).map_err(|source| AttachError::Header { path: path.clone(), source })?;
        let found = file.metadata().map_err(AttachError::io(&path, "look at"))?.len();
        if !layout.can_be_length(found) {
            return Err(AttachError::Length { path, found, expected: layout.total });
        }
        let map = Map::new(file, layout, false).map_err(AttachError::io(&path, "map"))?;
        let (entered, announces, assistance) = (OnceLock::new(), OnceLock::new(), Assistance::default());
        Ok(Region(Arc::new(Inner { map, path, identity, writable, entered, announces, assistance })))
    }

    /// Removes the file of a region that nobody is attached to, also one of another boot of the machine; through a
    /// link the file, not the link. Parties that have let go or are being ended by the kernel are waited for, a second at
    /// most.
    ///
    /// # Errors
    /// As [`attach`](Self::attach), but never [`AttachError::OtherBoot`]; or parties are alive, who are then named; or
    /// the file may not be removed.
    pub fn remove(path: impl AsRef<Path>) -> Result<(), RemoveError> {
        let path = fs::canonicalize(path.as_ref()).unwrap_or_else(|_| path.as_ref().into());
        // Also one of another boot, which is of no other use any more.
        let region = Self::open_any(&path, true)?;
        let deadline = wait::after(LINGER);
        loop {
            match region.try_remove(path.clone()) {
                Err(RemoveError::InUse { .. }) if region.is_being_left() && !wait::is_over(deadline) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome => return outcome,
            }
        }
    }

    fn try_remove(&self, path: PathBuf) -> Result<(), RemoveError> {
        let region = self;
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| RemoveError::Io { path, source }
        };
        // Nobody can attach while the sequencer's place is taken. Without the right to write it cannot be had;
        // then a party that comes in this very moment finds itself on a file without a name.
        let alone = if region.is_writable() {
            Lock::take(region.file(), Role::Sequencer).map_err(failed(&path))?
        } else {
            None
        };
        let mut seen = region.snapshot();
        if alone.is_some() {
            seen.sequencer = None;
        }
        let mut parties = seen.living();
        // Who has the lock says only then who it is, and need not have it any more by now.
        if parties.is_empty() && alone.is_none() && region.is_writable() {
            parties.push("somebody who is about to serve or to remove it".into());
        }
        if !parties.is_empty() {
            return Err(RemoveError::InUse { path, parties });
        }
        if region.file_state() != FileState::Here {
            return Err(AttachError::NotFound { path }.into());
        }
        fs::remove_file(&path).map_err(|source| {
            let directory = path.parent().map(fs::metadata);
            match (region.file().metadata(), directory) {
                (Ok(file), Some(Ok(directory))) if is_refusal(&source) => {
                    let (owner, mode) = owner_and_mode(&file);
                    let (directory_owner, directory_mode) = owner_and_mode(&directory);
                    RemoveError::Rights { path: path.clone(), owner, mode, directory_owner, directory_mode }
                }
                _ => failed(&path)(source),
            }
        })
    }

    /// The path that it was opened by, absolute; of an anonymous region one that other processes can use.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The region's number, drawn at random when it was made.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.0.identity.uuid
    }

    /// What it is made of.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.0.identity.geometry
    }

    /// The index that its order began with.
    #[must_use]
    pub fn first_index(&self) -> u64 {
        self.0.identity.first_index
    }

    /// What its digests cover.
    #[must_use]
    pub fn digest_of(&self) -> DigestOf {
        self.0.identity.digest_of
    }

    /// All that its header says.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Whether parties can be attached through this handle.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }

    /// How many ranks it has.
    pub(crate) fn ranks(&self) -> u16 {
        self.map().ranks()
    }

    /// The longest payload in bytes that lies in a lane.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        seriatim_ring::lane::max_payload(self.geometry().lane_bytes) as usize
    }

    /// The longest payload of a command in bytes; what is longer than [`max_payload`](Self::max_payload) is
    /// [spilled](Config::spill_bytes).
    #[must_use]
    pub fn max_command(&self) -> u64 {
        self.geometry().max_command()
    }

    /// The highest index that a region has room to name.
    pub const MAX_INDEX: Seq = Seq::MAX;

    #[inline]
    pub(crate) fn map(&self) -> &Map {
        &self.0.map
    }

    /// Who of this process wants help.
    #[inline]
    pub(crate) fn assistance(&self) -> &Assistance {
        &self.0.assistance
    }

    pub(crate) fn file(&self) -> &File {
        self.map().file()
    }

    /// Whether the party in a role is alive. A probe that fails (it cannot, on a file that is open) counts as
    /// life: nobody is taken for dead on an error.
    pub(crate) fn is_alive(&self, role: Role) -> bool {
        liveness::is_alive(self.file(), role).unwrap_or(true)
    }

    /// Enters what a party writes and what it reads into this process's page tables, before it begins. Some tenths of a
    /// second for each GiB.
    pub(crate) fn enter(&self, written: &[Part], read: impl IntoIterator<Item = Range<u64>>) {
        let map = self.map();
        read.into_iter().for_each(|range| map.enter(range, false));
        written.iter().for_each(|&part| map.enter(map.layout().range(part), true));
    }

    /// Enters all of it for reading, once for all clones of this handle.
    pub(crate) fn enter_all(&self) {
        self.0.entered.get_or_init(|| drop(self.map().enter_all()));
    }

    /// Whether who only waits can say so here, and be woken: not through a handle that cannot be written by.
    pub(crate) fn can_announce(&self) -> bool {
        *self.0.announces.get_or_init(|| self.is_writable() && self.map().make_writable(Part::Bells).is_ok())
    }

    /// Makes parts writable for a party that is about to attach.
    pub(crate) fn make_writable(&self, what: &'static str, parts: &[Part]) -> Result<(), AttachError> {
        if !self.is_writable() {
            let file = self.file().metadata().map_err(AttachError::io(self.path(), "look at"))?;
            let (owner, mode) = owner_and_mode(&file);
            return Err(AttachError::ReadOnly { path: self.path().into(), what, owner, mode });
        }
        for &part in parts {
            self.map().make_writable(part).map_err(AttachError::io(self.path(), "make writable"))?;
        }
        Ok(())
    }
}

fn owner_and_mode(file: &fs::Metadata) -> (u32, u32) {
    (file.uid(), file.permissions().mode() & 0o7777)
}

fn io_error(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> CreateError {
    move |source| CreateError::Io { path: path.into(), what, source }
}

/// A region that is complete and has no name yet.
pub(crate) struct NewRegion {
    new: NewFile,
    path: PathBuf,
    identity: Identity,
    layout: Layout,
}

impl NewRegion {
    /// Gives it its name, and opens it.
    pub(crate) fn publish(self) -> Result<Region, CreateError> {
        let NewRegion { new, path, identity, layout } = self;
        new.publish(&path).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => CreateError::Exists { path: path.clone() },
            _ => io_error(&path, "name")(e),
        })?;
        crash_point!("create.named");
        let file = new.file.try_clone().map_err(io_error(&path, "open"))?;
        Region::open_new(file, path, identity, layout)
    }
}

/// A file that becomes visible when it is complete: without a name where the file system can do that, else
/// under a name that is removed if the work is not finished.
struct NewFile {
    file: File,
    temporary: Option<PathBuf>,
}

impl NewFile {
    fn in_dir(dir: &Path) -> io::Result<Self> {
        match sys::unnamed_file(dir) {
            Ok(file) => Ok(NewFile { file, temporary: None }),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
                let name = format!(".seriatim-{}-{:x}", std::process::id(), sys::kernel_uuid("uuid")?);
                let path = dir.join(name);
                let file = File::options().read(true).write(true).create_new(true).open(&path)?;
                Ok(NewFile { file, temporary: Some(path) })
            }
            Err(e) => Err(e),
        }
    }

    fn publish(&self, path: &Path) -> io::Result<()> {
        match &self.temporary {
            None => sys::link_unnamed(&self.file, path),
            Some(temporary) => fs::hard_link(temporary, path),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // Best effort: the file is of no use to anybody.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Reserves the pages of a new file and writes what a region begins with.
fn format(
    file: &File,
    path: &Path,
    config: &Config,
    layout: Layout,
    uuid: Option<Uuid>,
    fill: impl FnOnce(&Map),
) -> Result<Identity, CreateError> {
    let found = sys::page_size_of(file).map_err(io_error(path, "ask for the page size of"))?;
    if found != PAGE {
        return Err(CreateError::PageSize { path: path.into(), found, expected: PAGE });
    }
    let free = sys::bytes_free(file).unwrap_or(0);
    placement::ask(file, path, layout, &config.placement)?;
    if config.huge_pages != HugePages::No {
        memory::take_huge_pages(file, layout).map_err(io_error(path, "size"))?;
    }
    sys::reserve(file, 0..layout.total).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EFBIG | libc::ENOMEM | libc::EDQUOT) => {
            CreateError::NoSpace { path: path.into(), wanted: layout.total, free }
        }
        _ => io_error(path, "reserve the pages of")(e),
    })?;
    crash_point!("create.reserved");
    let map =
        file.try_clone().and_then(|file| Map::new(file, layout, true)).map_err(io_error(path, "map"))?;
    if config.pretouch || config.huge_pages != HugePages::No {
        map.populate().map_err(io_error(path, "touch the pages of"))?;
    }
    if config.huge_pages != HugePages::No {
        memory::check_huge_pages(&map, file, path, config.huge_pages == HugePages::Require)?;
    }
    fill(&map);
    crash_point!("create.formatted");
    let draw = |which| sys::kernel_uuid(which).map(Uuid).map_err(io_error(path, "draw a number for"));
    let identity = Identity {
        version: VERSION,
        uuid: uuid.map_or_else(|| draw("uuid"), Ok)?,
        boot_id: draw("boot_id")?,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
        geometry: layout.geometry,
        without_workers: config.without_workers,
        digest_of: config.digest,
        on_divergence: config.on_divergence,
        first_index: config.first_index,
        file_bytes: layout.total,
    };
    file.write_all_at(&identity.encode(), 0).map_err(io_error(path, "write the header of"))?;
    crash_point!("create.header");
    if let Some(gid) = config.group {
        sys::set_group(file, gid).map_err(io_error(path, "set the group of"))?;
    }
    // After the group, for changing that takes bits away; not through the open call, which masks them.
    file.set_permissions(fs::Permissions::from_mode(config.mode))
        .map_err(io_error(path, "set the mode of"))?;
    Ok(identity)
}

/// Opens a regular file; whether for writing.
fn open_file(path: &Path, for_writing: bool) -> Result<(File, bool), AttachError> {
    use std::os::unix::fs::OpenOptionsExt;
    // A pipe or device of that name must not make anybody wait.
    let open = |write| File::options().read(true).write(write).custom_flags(libc::O_NONBLOCK).open(path);
    let (file, writable) = match open(for_writing) {
        Ok(file) => (file, for_writing),
        Err(e) if for_writing && is_refusal(&e) => (open(false).map_err(|e| refused(path, e))?, false),
        Err(e) => return Err(refused(path, e)),
    };
    let kind = file.metadata().map_err(AttachError::io(path, "look at"))?.file_type();
    if kind.is_file() {
        return Ok((file, writable));
    }
    Err(AttachError::NotAFile { path: path.into(), found: kind_name(kind) })
}

fn kind_name(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

fn is_refusal(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY | libc::EISDIR))
}

fn refused(path: &Path, e: io::Error) -> AttachError {
    if e.kind() == io::ErrorKind::NotFound {
        return AttachError::NotFound { path: path.into() };
    }
    match path.metadata() {
        Ok(file) if is_refusal(&e) && !file.is_file() => {
            AttachError::NotAFile { path: path.into(), found: kind_name(file.file_type()) }
        }
        Ok(file) if is_refusal(&e) => {
            let (owner, mode) = owner_and_mode(&file);
            AttachError::Rights { path: path.into(), what: "read", owner, mode }
        }
        _ => AttachError::Io { path: path.into(), what: "open", source: e },
    }
}

/// The header's bytes, as many as there are.
fn read_header(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES];
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}
