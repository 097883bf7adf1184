//! Looking at a region file without opening it as one: also at damaged ones.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::header::{HEADER_BYTES, Identity, Uuid};
use super::layout::Layout;
use super::layout::Section;
use super::placement::{self, PartPlacement};
use super::{memory, open_file};
use crate::error::AttachError;
use crate::sys;

/// What a file says of itself, and what is wrong with it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The path, absolute.
    pub path: PathBuf,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// Bytes of it that are really there.
    pub resident_bytes: u64,
    /// Bytes of it that lie in huge pages; `None` if that cannot be told.
    pub huge_bytes: Option<u64>,
    /// On which NUMA nodes its parts lie, and what was asked for; `None` if that cannot be told.
    pub placement: Option<Vec<PartPlacement>>,
    /// Its permission bits.
    pub mode: u32,
    /// User id of its owner.
    pub owner: u32,
    /// Its group id.
    pub group: u32,
    /// What its header says; `None` if that cannot be read.
    pub identity: Option<Identity>,
    /// Its sections, if the geometry is known.
    pub sections: Vec<Section>,
    /// What is wrong; empty if nothing was found.
    pub problems: Vec<String>,
}

/// Looks at a region file by reading it: needs no sequencer, changes nothing, and says what is
/// wrong with a damaged file.
///
/// # Errors
/// The file cannot be read, or is of another kind or version than a region of this build.
pub fn inspect(path: impl AsRef<Path>) -> Result<Inspection, AttachError> {
    let path = std::path::absolute(path.as_ref()).unwrap_or_else(|_| path.as_ref().into());
    let (file, _) = open_file(&path, false)?;
    let metadata = file.metadata().map_err(AttachError::io(&path, "look at"))?;
    let mut inspection = Inspection {
        file_bytes: metadata.len(),
        resident_bytes: metadata.blocks() * 512,
        huge_bytes: None,
        placement: None,
        mode: metadata.permissions().mode() & 0o7777,
        owner: metadata.uid(),
        group: metadata.gid(),
        identity: None,
        sections: Vec::new(),
        problems: Vec::new(),
        path: path.clone(),
    };
    match Identity::decode(&super::read_header(&file).map_err(AttachError::io(&path, "read"))?) {
        Ok((identity, layout)) => {
            inspection.identity = Some(identity);
            inspection.sections = layout.sections();
            inspection.check(&layout);
            inspection.huge_bytes = memory::huge_bytes_of(&file, layout);
            inspection.placement = placement::of(&file, layout);
        }
        Err(damage) if damage.is_damage() => inspection.problems.push(damage.to_string()),
        Err(source) => return Err(AttachError::Header { path, source }),
    }
    if is_blank_after_header(&file) {
        inspection.problems.push("nothing but zeroes follows the header".into());
    }
    Ok(inspection)
}

impl Inspection {
    fn check(&mut self, layout: &Layout) {
        let (found, expected) = (self.file_bytes, layout.total);
        if !layout.can_be_length(found) {
            self.problems.push(format!("the file has {found} bytes, expected {expected}"));
        }
        if let (Some(identity), Ok(boot)) = (&self.identity, sys::kernel_uuid("boot_id"))
            && identity.boot_id != Uuid(boot)
        {
            let (made, now) = (identity.boot_id, Uuid(boot));
            self.problems.push(format!("made in boot {made} of the machine, this is boot {now}"));
        }
    }
}

/// Whether the control page holds nothing: a region has a first producer number there from its creation on.
fn is_blank_after_header(file: &File) -> bool {
    let mut page = vec![0; 4096];
    let got = file.read_at(&mut page, 4096).unwrap_or(0);
    const { assert!(HEADER_BYTES <= 4096) };
    got > 0 && page[..got].iter().all(|&byte| byte == 0)
}
