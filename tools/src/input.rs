//! Commands out of a file: one a line, without its line end.
//!
//! An empty line is an empty command, a last line without a line end counts, and lines are bytes: nothing is
//! asked of their encoding.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The lines of an input that is read as a whole.
#[derive(Debug)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    lines: Vec<Range<usize>>,
}

impl Lines {
    /// Reads a file, or standard input for `-`.
    pub(crate) fn read(path: &Path) -> Result<Lines> {
        let mut bytes = Vec::new();
        open(path)?.read_to_end(&mut bytes).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Lines::new(bytes))
    }

    pub(crate) fn new(bytes: Vec<u8>) -> Lines {
        let mut lines = Vec::new();
        let mut start = 0;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            lines.push(start..start + text.len());
            start += line.len();
        }
        Lines { bytes, lines }
    }

    pub(crate) fn len(&self) -> u64 {
        self.lines.len() as u64
    }

    /// The line with this number, from 0, of the input repeated without end.
    pub(crate) fn repeated(&self, number: u64) -> &[u8] {
        &self.bytes[self.lines[(number % self.len()) as usize].clone()]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().map(|line| &self.bytes[line.clone()])
    }

    /// The whole input, line ends included.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads commands as they come, without waiting for the end of the input.
pub(crate) struct Stream {
    input: BufReader<Box<dyn Read>>,
    /// The same, to be asked whether there is something to read.
    fd: OwnedFd,
    /// The begin of a line whose end has not come.
    begun: Vec<u8>,
    /// There is no more: a terminal would have to be told a second time.
    ended: bool,
    read: u64,
}

impl Stream {
    /// Opens a file, or standard input for `-`.
    pub(crate) fn open(path: &Path) -> Result<Stream> {
        let (input, fd): (Box<dyn Read>, _) = if path == Path::new("-") {
            (Box::new(io::stdin().lock()), io::stdin().as_fd().try_clone_to_owned())
        } else {
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let fd = file.as_fd().try_clone_to_owned();
            (Box::new(file), fd)
        };
        let fd = fd.with_context(|| format!("cannot watch {}", path.display()))?;
        // Large enough that a batch of ordinary commands is in sight at once.
        let input = BufReader::with_capacity(1 << 18, input);
        Ok(Stream { input, fd, begun: Vec::new(), ended: false, read: 0 })
    }

    /// Whether asking for the next line waits for nobody, within a time: it is there, or none will ever be. It may come
    /// back sooner, when a part of a line came.
    pub(crate) fn stirs_within(&mut self, time: Duration) -> bool {
        if self.ended || self.in_sight() {
            return true;
        }
        let begun = self.input.buffer();
        self.begun.extend_from_slice(begun);
        self.input.consume(self.input.buffer().len());
        let mut ends = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        if poll(&mut ends, time) == Ok(0) {
            return false;
        }
        // What cannot be watched is read, and what cannot be read is asked for, which says why.
        self.ended = self.input.fill_buf().is_ok_and(<[u8]>::is_empty);
        self.ended || self.in_sight() || self.input.buffer().is_empty()
    }

    /// Whether the next line is here already, so that asking for it waits for nobody.
    pub(crate) fn in_sight(&self) -> bool {
        self.input.buffer().contains(&b'\n')
    }

    /// Waits for the next line; none at the end of the input.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = std::mem::take(&mut self.begun);
        if !self.ended {
            self.input.read_until(b'\n', &mut line)?;
        }
        if line.is_empty() {
            return Ok(None);
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        self.read += 1;
        Ok(Some(line))
    }

    /// How many lines have been read.
    pub(crate) fn lines_read(&self) -> u64 {
        self.read
    }
}

fn open(path: &Path) -> Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(Box::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &[u8]) -> Vec<Vec<u8>> {
        let lines = Lines::new(text.to_vec());
        assert_eq!(lines.len() as usize, lines.iter().count());
        lines.iter().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn nothing_has_no_line() {
        assert!(split(b"").is_empty());
    }

    #[test]
    fn an_empty_line_is_a_command() {
        assert_eq!(split(b"\n"), [b""]);
        assert_eq!(split(b"a\n\nb\n"), [&b"a"[..], b"", b"b"]);
    }

    #[test]
    fn a_last_line_without_line_end_counts() {
        assert_eq!(split(b"a\nb"), [b"a", b"b"]);
    }

    #[test]
    fn lines_are_bytes() {
        assert_eq!(split(b"\xff\r\n\0"), [&b"\xff\r"[..], b"\0"]);
    }

    #[test]
    fn a_repeated_input_starts_again() {
        let lines = Lines::new(b"a\nb\n".to_vec());
        assert_eq!((0..5).map(|i| lines.repeated(i)[0]).collect::<Vec<_>>(), b"ababa");
    }
}
