//! [`Carry`]: readers' bookmarks go along with a standby, so that they go on in its directory when it was promoted.
//!
//! ```text
//! source: NAME.mark ──▶ its index is durable here, with the same digest ──▶ own: NAME.mark, brought
//! ```
//!
//! **Each that lies beside the source goes along**, but the standby's own, which speaks of the source. Also those of the
//! source's other standbys: they follow the promoted one next, and need of it what they need of the source.
//!
//! **One that was brought says so.** It is what the source says, and goes when it is gone there. One that a reader has set
//! here itself stays as it is: two readers in two directories are two, whatever they are called. Only what becomes a
//! standby has its readers' looked at: those that the source has as well are the same, and from then on the source's count.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_ring::Seq;

use super::JournalError;
use super::bookmark::{self, BookmarkError, Marked};
use super::disk::Disk;
use super::error::ReplayError;
use super::kept;
use super::replay::Replay;
use super::standby::StandbyError;
use crate::Digest;
use crate::name::Name;
use crate::region::header::Uuid;

/// How often the source's bookmarks are looked at: each that has gone on takes two syncs.
const EVERY: Duration = Duration::from_secs(1);

/// A directory, on its disk.
type At<'a> = (&'a Arc<dyn Disk>, &'a Path);

/// What is known of the bookmarks that go along.
#[derive(Debug)]
pub(super) struct Carry {
    /// The name of the standby's own beside its source.
    own: Name,
    uuid: Uuid,
    /// The standby's journal, for the digests there.
    replay: Option<Replay>,
    /// When the source is looked at next.
    due: Option<Instant>,
    /// What was said of those that do not go along.
    said: BTreeSet<String>,
}

/// A bookmark that does not go along.
enum Left {
    /// Its index is not durable here yet.
    Early(String),
    Why(String),
}

impl Carry {
    pub(super) fn new(own: Name, uuid: Uuid) -> Carry {
        Carry { own, uuid, replay: None, due: None, said: BTreeSet::new() }
    }

    /// Brings along what is durable, if it is time to look. What is wrong is said once, and holds nobody up.
    pub(super) fn follow(&mut self, source: At<'_>, own: At<'_>, durable: Seq) {
        if self.due.is_none_or(|due| Instant::now() >= due) {
            self.due = Some(Instant::now() + EVERY);
            self.look(source, own, durable);
        }
    }

    /// As [`follow`](Self::follow), now.
    pub(super) fn look(&mut self, source: At<'_>, own: At<'_>, durable: Seq) {
        let why = |left| match left {
            Left::Early(_) => None,
            Left::Why(why) => Some(why),
        };
        let now: BTreeSet<String> = match self.bring_all(source, own, durable, true) {
            Ok(left) => left.into_iter().filter_map(why).collect(),
            Err(error) => BTreeSet::from([error.to_string()]),
        };
        for why in now.difference(&self.said) {
            tracing::warn!("{}: a bookmark does not go along: {why}", own.1.display());
        }
        self.said = now;
    }

    /// Brings all along, for good: why each does not that is left. Those that are gone there go here, if the source is `whole`:
    /// all that it has was taken.
    ///
    /// # Errors
    /// The source cannot be looked at, or the standby's own directory not be written.
    pub(super) fn finish(
        &mut self,
        source: At<'_>,
        own: At<'_>,
        durable: Seq,
        whole: bool,
    ) -> Result<Vec<String>, StandbyError> {
        let left = self.bring_all(source, own, durable, whole)?;
        // Also what was brought by one that died before its own sync.
        let synced = own.0.sync_dir(own.1);
        let path = own.1.to_path_buf();
        synced.map_err(|source| JournalError::Io { path, what: "sync directory", source })?;
        Ok(left.into_iter().map(|(Left::Early(why) | Left::Why(why))| why).collect())
    }

    fn bring_all(
        &mut self,
        source: At<'_>,
        own: At<'_>,
        durable: Seq,
        whole: bool,
    ) -> Result<Vec<Left>, StandbyError> {
        // Where this journal is not, nobody was forgotten: its disk may not be mounted. Looked at before its bookmarks are.
        let is_there = kept::identity(&**source.0, source.1).is_ok_and(|last| last.origin.uuid == self.uuid);
        let there = bookmark::list(&**source.0, source.1, self.uuid)?;
        let here = list_own(own, self.uuid)?;
        let (mut left, mut names, mut is_known) = (Vec::new(), Vec::new(), whole && is_there);
        for marked in there {
            match marked {
                Ok(marked) if marked.name == self.own => {}
                Ok(marked) => {
                    names.push(marked.name);
                    left.extend(self.bring(source.1, own, &here, marked, durable)?);
                }
                Err(error) => {
                    is_known = false;
                    left.push(Left::Why(error.to_string()));
                }
            }
        }
        // While one of them cannot be read it is not known which is gone.
        for marked in here.into_iter().filter(|marked| is_known && marked.is_brought()) {
            if !names.contains(&marked.name)
                && let Err(error) = bookmark::take_back(&**own.0, own.1, marked, self.uuid)
            {
                left.push(why(error)?);
            }
        }
        Ok(left)
    }

    /// Brings one along, unless it is there; why not.
    fn bring(
        &mut self,
        source: &Path,
        own: At<'_>,
        here: &[Marked],
        marked: Marked,
        durable: Seq,
    ) -> Result<Option<Left>, StandbyError> {
        let (name, next, dir) = (marked.name, marked.next, own.1.display());
        let had = here.iter().find(|had| had.name == name).copied();
        if had == Some(marked.brought()) {
            return Ok(None);
        }
        if had.is_some_and(|had| !had.is_brought()) {
            let (name, source) = (name.as_str(), source.display());
            let why = format!("{name:?} in {source}; {dir} has one of that name that a reader set there");
            return Ok(Some(Left::Why(why)));
        }
        if next > durable {
            let why = format!("{marked} in {}; {dir} has what is before {durable}", source.display());
            return Ok(Some(Left::Early(why)));
        }
        let digest = match self.digest_at(own, next) {
            Ok(Some(digest)) => digest,
            Ok(None) => {
                let why = format!("{marked} in {}; {dir} no longer has that", source.display());
                return Ok(Some(Left::Why(why)));
            }
            Err(error @ ReplayError::Io { .. }) => return Err(JournalError::from(error).into()),
            // A stretch that is damaged here keeps neither the others nor a promotion.
            Err(error) => return Ok(Some(Left::Why(format!("{marked} in {}; {error}", source.display())))),
        };
        let brought =
            marked.is_of(source, digest).and_then(|()| bookmark::bring(own.0, own.1, had, marked, self.uuid));
        brought.err().map(why).transpose()
    }

    /// The digest of all before an index in the standby's journal, if that is there.
    fn digest_at(&mut self, own: At<'_>, seq: Seq) -> Result<Option<Digest>, ReplayError> {
        if let Some(replay) = self.replay.take()
            && let Ok(replay) = gone_on(replay, seq)
        {
            let digest = replay.digest();
            self.replay = Some(replay);
            return Ok(Some(digest));
        }
        // What was open may have been pruned meanwhile, or written anew.
        let replay = Replay::open_on(own.0.clone(), own.1, false)?;
        if seq < replay.first() || seq > replay.end() {
            return Ok(None);
        }
        let replay = self.replay.insert(replay.from(seq)?);
        Ok(Some(replay.digest()))
    }
}

/// A journal that is open, at an index that it may have got since.
fn gone_on(mut replay: Replay, seq: Seq) -> Result<Replay, ReplayError> {
    if replay.end() < seq {
        replay.refresh()?;
    }
    replay.from(seq)
}

/// Those of a directory that can be read.
fn list_own(own: At<'_>, uuid: Uuid) -> Result<Vec<Marked>, JournalError> {
    Ok(bookmark::list(&**own.0, own.1, uuid)?.into_iter().flatten().collect())
}

/// Why one does not go along, unless it is that the standby's own directory cannot be written.
fn why(error: BookmarkError) -> Result<Left, StandbyError> {
    match error {
        BookmarkError::Journal(error @ ReplayError::Io { .. }) => Err(JournalError::from(error).into()),
        error => Ok(Left::Why(error.to_string())),
    }
}

/// In a directory that becomes a standby's, those of its bookmarks that the source has as well are the source's from now on.
/// What they say stays until what the source says of them is durable there.
pub(super) fn hand_over(source: At<'_>, own: At<'_>, name: Name, uuid: Uuid) -> Result<(), StandbyError> {
    let there: Vec<_> = bookmark::list(&**source.0, source.1, uuid)?.into_iter().flatten().collect();
    for marked in list_own(own, uuid)? {
        let is_there = there.iter().any(|there| there.name == marked.name);
        if is_there && marked.name != name && !marked.is_brought() {
            // A reader that has it goes on with it, and one that cannot be handed over stays its reader's.
            if let Err(error) = bookmark::bring(own.0, own.1, Some(marked), marked, uuid) {
                why(error)?;
            }
        }
    }
    Ok(())
}
