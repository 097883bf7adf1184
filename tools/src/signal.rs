//! SIGINT and SIGTERM as a request to stop: noticed between two steps, never in the middle of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// A signal that comes so much later than the first is a second wish, not an echo of the first: a signal to a
/// group of processes is often passed on by one of them as well.
const ECHO: Duration = Duration::from_millis(500);

/// Becomes true when the process is asked to end. A second signal, half a second later or more, ends it at once.
#[derive(Debug)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
    woken: Receiver<()>,
}

impl Stop {
    /// Takes SIGINT and SIGTERM over from their default, which is to end the process.
    pub(crate) fn install() -> Result<Stop> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register(signal, Arc::clone(&asked)).context("cannot catch signals")?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals")?;
        let (wake, woken) = mpsc::channel();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut first = None;
                for _ in signals.forever() {
                    if first.get_or_insert_with(Instant::now).elapsed() >= ECHO {
                        std::process::exit(2);
                    }
                    if wake.send(()).is_err() {
                        return;
                    }
                }
            })
            .context("cannot start the thread that waits for signals")?;
        Ok(Stop { asked, woken })
    }

    /// Whether a signal has asked for the end.
    pub(crate) fn asked(&self) -> bool {
        // Relaxed: a flag that nothing else is read through.
        self.asked.load(Ordering::Relaxed)
    }

    /// Sleeps for `time`, or less when a signal comes; says whether one has.
    pub(crate) fn asked_within(&self, time: Duration) -> bool {
        match self.woken.recv_timeout(time) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => self.asked(),
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }
}
