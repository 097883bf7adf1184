//! Opening regions for the commands, guarded against a file that is shortened under them.

use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use seriatim::Region;
use seriatim::journal::{Replay, ReplayError};

/// Opens a region for a party, and locks it in memory if that is asked for.
pub(crate) fn to_attach(path: &Path, lock: bool) -> Result<Region> {
    for_use(Region::attach(path)?, lock)
}

/// Opens a region for a party once somebody serves it; waits for that, for so long: it may be being restored.
pub(crate) fn to_attach_within(path: &Path, lock: bool, time: Duration) -> Result<Region> {
    to_attach_before(path, lock, Instant::now() + time)
}

/// As [`to_attach_within`], and has a journal be in a directory as well, within the same time.
pub(crate) fn to_attach_beside(path: &Path, journal: &Path, lock: bool, time: Duration) -> Result<Region> {
    let until = Instant::now() + time;
    let region = to_attach_before(path, lock, until)?;
    loop {
        match Replay::open(journal) {
            Err(error) if !is_there(&error) && Instant::now() < until => thread::sleep(LOOK),
            Err(error) if !is_there(&error) => {
                let region = path.display();
                return Err(error)
                    .with_context(|| format!("there is a region {region}, but no journal beside it yet"));
            }
            // What else is the matter with it is for who reads it to say.
            _ => return Ok(region),
        }
    }
}

/// Whether there is a journal, such as it is.
fn is_there(error: &ReplayError) -> bool {
    match error {
        ReplayError::Empty { .. } => false,
        ReplayError::Io { source, .. } => source.kind() != ErrorKind::NotFound,
        _ => true,
    }
}

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(20);

fn to_attach_before(path: &Path, lock: bool, until: Instant) -> Result<Region> {
    loop {
        let is_late = Instant::now() >= until;
        match Region::attach(path) {
            // Let go again: one that is outdated is replaced when nobody has it.
            Ok(region) if !is_late && !is_served(&region) => drop(region),
            Err(_) if !is_late => {}
            region => return for_use(region?, lock),
        }
        thread::sleep(LOOK);
    }
}

fn is_served(region: &Region) -> bool {
    region.snapshot().sequencer.is_some_and(|party| party.alive)
}

/// Readies a region that is open for a party.
pub(crate) fn for_use(region: Region, lock: bool) -> Result<Region> {
    let region = guarded(region)?;
    if lock {
        region.lock_in_memory()?;
    }
    Ok(region)
}

/// Opens a region for looking at it.
pub(crate) fn to_look(path: &Path) -> Result<Region> {
    guarded(Region::attach_read_only(path)?)
}

/// What is read from a region that loses its end meanwhile is not to be believed: its reader asks
/// [`Region::check`] afterwards.
pub(crate) fn guarded(region: Region) -> Result<Region> {
    region.guard().context("cannot guard against a file that is shortened")?;
    Ok(region)
}
