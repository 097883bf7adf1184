//! Any bytes as a region: inspected, attached, looked at, verified, observed, sequenced and, some of them, worked on.
//!
//! ```text
//! input   image, how │ patch, patch, …        image 255: all that follows is the file itself
//! patch   word (u16) │ what (u8) │ value (u64)
//! ```
//!
//! An image is a region that was left behind in some state; a patch overwrites one of its words, before the attach or
//! (half of the values of *what*) while it is in use. *How* says whether the header's digest is made right again, and
//! what follows the attach.
#![no_main]

#[path = "../../tools/tests/damage/mod.rs"]
mod damage;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use damage::{Image, Known, Trial, images};
use libfuzzer_sys::fuzz_target;
use seriatim::{Section, inspect, payload_digest};
use tempfile::TempDir;

/// Where files are in memory.
const MEMORY: &str = "/dev/shm";

/// Bytes of the header before its digest.
const HEADER: usize = 152;

/// The images, and where their sections begin.
struct Setting {
    images: Vec<Image>,
    sections: Vec<Section>,
    nothing: Known,
}

fn setting() -> &'static Setting {
    static SETTING: OnceLock<Setting> = OnceLock::new();
    SETTING.get_or_init(|| {
        // Gone when the images are made: what is static is never dropped.
        let folder = TempDir::with_prefix_in("seriatim-fuzz-", MEMORY).expect("a folder in memory");
        let images = images(folder.path());
        let sections = inspect(folder.path().join("new")).expect("a region").sections;
        Setting { images, sections, nothing: Known::default() }
    })
}

/// One word that is overwritten.
struct Patch {
    word: u64,
    what: u8,
    value: u64,
}

impl Patch {
    const BYTES: usize = 11;

    fn read(bytes: &[u8]) -> Patch {
        let (word, value) = (u16::from_le_bytes([bytes[0], bytes[1]]), &bytes[3..]);
        Patch {
            word: word.into(),
            what: bytes[2],
            value: u64::from_le_bytes(std::array::from_fn(|i| value[i])),
        }
    }

    fn is_live(&self) -> bool {
        self.what & 0x80 != 0
    }

    /// The offset in a file of so many words, and what comes there.
    fn apply(&self, words: u64, get: impl Fn(u64) -> u64) -> (u64, u64) {
        let at = self.word % words;
        let new = match self.what & 7 {
            0 | 1 => self.value,
            2 => get(at) ^ 1 << (self.value % 64),
            3 => get(at).wrapping_add(self.value % 64),
            4 => get(at).wrapping_sub(self.value % 64),
            5 => get(self.value % words),
            6 => self.value & 0xffff,
            _ => 0,
        };
        (at * 8, new)
    }
}

/// A file in memory without a name.
fn new_file(bytes: &[u8]) -> (File, PathBuf) {
    let file = tempfile::tempfile_in(MEMORY).expect("a file in memory");
    file.write_all_at(bytes, 0).expect("room in memory");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    (file, path)
}

fn word_at(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at * 8).expect("a word of the file");
    u64::from_le_bytes(bytes)
}

/// Whether all patches lie in the lanes.
fn only_lanes(patches: &[Patch], words: u64, sections: &[Section]) -> bool {
    let lanes = sections.iter().find(|section| section.name == "lanes").expect("lanes");
    let lanes = lanes.offset / 8..(lanes.offset + lanes.bytes) / 8;
    patches.iter().all(|patch| lanes.contains(&(patch.word % words)))
}

fn try_file(bytes: &[u8], patches: &[Patch], known: &Known, only_lanes: bool, how: u8) {
    let (file, path) = new_file(bytes);
    let words = bytes.len() as u64 / 8;
    let mut live = patches.iter().filter(|patch| patch.is_live());
    let mut seed = u64::from(how) << 32;
    let mut trial = Trial {
        path: &path,
        known,
        only_lanes,
        guard: false,
        soon: Duration::from_millis(1),
        choose: &mut |limit| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (seed >> 33) % limit
        },
        strike: &mut || {
            if let Some(patch) = live.next() {
                let (at, new) = patch.apply(words, |at| word_at(&file, at));
                file.write_all_at(&new.to_le_bytes(), at).expect("a word of the file");
            }
        },
        right: 0,
    };
    let Some(region) = trial.attach() else { return };
    // With threads it is much slower.
    let _ = if how & 0x3f == 0x3f { trial.serve(&region) } else { trial.sequence(&region) };
}

fuzz_target!(|input: &[u8]| {
    let [image, how, rest @ ..] = input else { return };
    let setting = setting();
    if *image == 255 {
        return try_file(rest, &[], &setting.nothing, false, *how);
    }
    let image = &setting.images[usize::from(*image) % setting.images.len()];
    let (mut bytes, words) = (image.bytes.clone(), image.bytes.len() as u64 / 8);
    let patches: Vec<Patch> = rest.chunks_exact(Patch::BYTES).map(Patch::read).collect();
    for patch in patches.iter().filter(|patch| !patch.is_live()) {
        let get = |at: u64| u64::from_le_bytes(std::array::from_fn(|i| bytes[at as usize * 8 + i]));
        let (at, new) = patch.apply(words, get);
        bytes[at as usize..][..8].copy_from_slice(&new.to_le_bytes());
    }
    if how & 0x40 != 0 {
        let digest = payload_digest(&bytes[..HEADER]);
        bytes[HEADER..][..8].copy_from_slice(&digest.to_le_bytes());
    }
    let only_lanes = only_lanes(&patches, words, &setting.sections);
    try_file(&bytes, &patches, &image.known, only_lanes, *how);
});
