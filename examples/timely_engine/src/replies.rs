//! A process' way back to the controller: JSON lines through one socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::Reply;
use crate::process::replies_in;

/// How long the controller may leave replies unread.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends replies; shared by all workers of a process.
#[derive(Clone)]
pub(crate) struct Replies(Arc<Mutex<UnixStream>>);

impl Replies {
    /// Connects to the controller, and ends this process when the controller does, which cannot tidy up then.
    pub(crate) fn connect(dir: &Path) -> Result<Replies> {
        let (path, dir) = (replies_in(dir), dir.to_owned());
        let stream =
            UnixStream::connect(&path).with_context(|| format!("the controller, {}", path.display()))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut other = stream.try_clone()?;
        std::thread::Builder::new().name("controller".into()).spawn(move || {
            // Nothing ever comes this way but the end.
            let ended = other.read(&mut [0]);
            eprintln!("the controller is gone ({ended:?})");
            // The last one to look finds nothing.
            let _ = std::fs::remove_dir_all(dir);
            std::process::exit(4);
        })?;
        Ok(Replies(Arc::new(Mutex::new(stream))))
    }

    /// Sends one. A controller that is not there for it is noticed elsewhere, see [`connect`](Self::connect).
    pub(crate) fn send(&self, reply: &Reply) {
        let line = serde_json::to_string(reply).expect("replies have no maps") + "\n";
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = stream.write_all(line.as_bytes()) {
            eprintln!("the controller does not take replies: {error}");
            std::process::exit(4);
        }
    }
}
