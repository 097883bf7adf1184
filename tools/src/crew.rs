//! The parties of `run`, as threads or as child processes, and an ear on each of them.
//!
//! ```text
//!            stdin: one byte = go; end of file = the parent is gone
//!  parent  ───────────────────────────────────────────────────────▶  child
//!          ◀───────────────────────────────────────────────────────
//!            stdout: messages, one JSON object a line; end of file = the child is gone
//! ```
//!
//! A party that fails or dies is heard of at once, so that the run fails instead of waiting for it. Children
//! end with the parent, however it ends: the kernel kills them when it dies, and should a child have asked
//! for that too late, the end of its standard input says the same.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use seriatim::Region;
use seriatim::shared::Stamps;

use crate::Outcome;
use crate::child;
use crate::input::Lines;
use crate::output;
use crate::party::{self, Job, Link, Message, Part, Role, Stage};

/// How often a waiting parent looks at what nobody tells it of.
const TICK: Duration = Duration::from_millis(100);

/// Everything the parties share, as the parent holds it.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) job: Arc<Job>,
    pub(crate) region: Region,
    pub(crate) stamps: Arc<Stamps>,
    pub(crate) lines: Arc<Lines>,
}

/// All parties of one run. Dropping it kills the children that are still there.
pub(crate) struct Crew {
    shared: Shared,
    members: Vec<Member>,
    heard: Receiver<(usize, Heard)>,
    tell: Sender<(usize, Heard)>,
}

struct Member {
    part: Part,
    body: Body,
    said: VecDeque<Message>,
    /// It has said its last word: its end is no news.
    done: bool,
}

enum Body {
    Thread { go: Sender<()> },
    Process { child: Child, stdin: ChildStdin },
}

enum Heard {
    Said(Message),
    Ended,
}

impl Crew {
    pub(crate) fn new(shared: Shared) -> Crew {
        let (tell, heard) = mpsc::channel();
        Crew { shared, members: Vec::new(), heard, tell }
    }

    /// Starts one party and does not wait for it.
    pub(crate) fn start(&mut self, part: Part, as_process: bool) -> Result<()> {
        let ear = Ear { member: self.members.len(), tell: self.tell.clone() };
        let body = if as_process {
            start_process(&self.shared.job, &part, ear)
        } else {
            start_thread(self.shared.clone(), part.clone(), ear)
        };
        let body = body.with_context(|| format!("cannot start {}", part.name()))?;
        self.members.push(Member { part, body, said: VecDeque::new(), done: false });
        Ok(())
    }

    /// Waits for one message of every party of a role. `tick` is called now and then; an error of its ends
    /// the wait, as does a party that fails or ends.
    pub(crate) fn hear(&mut self, role: Role, mut tick: impl FnMut() -> Result<()>) -> Result<Vec<Message>> {
        while self.members.iter().any(|member| member.part.role == role && member.said.is_empty()) {
            match self.heard.recv_timeout(TICK) {
                Ok((member, heard)) => self.members[member].note(heard)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            }
            tick()?;
        }
        let of_role = self.members.iter_mut().filter(|member| member.part.role == role);
        Ok(of_role.filter_map(|member| member.said.pop_front()).collect())
    }

    /// Gives the word to go to all producers.
    pub(crate) fn go(&mut self) -> Result<()> {
        for member in self.members.iter_mut().filter(|member| member.part.role == Role::Producer) {
            let given = match &mut member.body {
                Body::Thread { go } => go.send(()).is_ok(),
                Body::Process { stdin, .. } => stdin.write_all(b"g").is_ok(),
            };
            if !given {
                return Err(member.obituary());
            }
        }
        Ok(())
    }

    /// Waits for the children, all of which have said their last word.
    pub(crate) fn dismiss(mut self) -> Result<()> {
        for member in &mut self.members {
            if let Body::Process { child, .. } = &mut member.body {
                let status = child.wait().context("cannot wait for a child")?;
                ensure!(status.success(), "{} ended with {status} after its report", member.part.name());
            }
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Body::Process { child, .. } = &mut member.body {
                // Errors mean that it has ended: what we want.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Member {
    fn note(&mut self, heard: Heard) -> Result<()> {
        match heard {
            Heard::Said(Message::Failed(why)) => bail!("{}: {why}", self.part.name()),
            Heard::Said(message) => {
                self.done = !matches!(message, Message::Ready);
                self.said.push_back(message);
            }
            Heard::Ended if self.done => {}
            Heard::Ended => return Err(self.obituary()),
        }
        Ok(())
    }

    /// How a party ended that should not have.
    fn obituary(&mut self) -> anyhow::Error {
        let name = self.part.name();
        match &mut self.body {
            Body::Thread { .. } => anyhow!("{name} (a thread) panicked"),
            Body::Process { child, .. } => match child.wait() {
                Ok(status) => match status.signal() {
                    Some(signal) => anyhow!("{name} (pid {}) was killed by signal {signal}", child.id()),
                    None => anyhow!("{name} (pid {}) ended early with {status}", child.id()),
                },
                Err(error) => anyhow!("{name} (pid {}) ended early: {error}", child.id()),
            },
        }
    }
}

/// Where one party's messages go. Dropping it says that the party has ended, even by a panic.
struct Ear {
    member: usize,
    tell: Sender<(usize, Heard)>,
}

impl Ear {
    fn said(&self, message: Message) {
        // The crew is gone only when the run has failed already.
        let _ = self.tell.send((self.member, Heard::Said(message)));
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let _ = self.tell.send((self.member, Heard::Ended));
    }
}

// ---- threads ----------------------------------------------------------------------------------------------

fn start_thread(shared: Shared, part: Part, ear: Ear) -> Result<Body> {
    let (go, word) = mpsc::channel();
    thread::Builder::new().name(part.name()).spawn(move || {
        let ear = Arc::new(ear);
        let said = Arc::clone(&ear);
        let say = Box::new(move |message| {
            said.said(message);
            Ok(())
        });
        let stage = Stage {
            job: &shared.job,
            part: &part,
            region: &shared.region,
            stamps: &shared.stamps,
            lines: &shared.lines,
        };
        if let Err(error) = party::play(&stage, &mut Link { say, go: word }) {
            ear.said(Message::Failed(output::causes(&error)));
        }
    })?;
    Ok(Body::Thread { go })
}

// ---- processes: the parent's side -------------------------------------------------------------------------

/// To be called on the main thread: the kernel ties a child to the thread that started it.
fn start_process(job: &Job, part: &Part, ear: Ear) -> Result<Body> {
    let mut child = child::again("party")
        .args(["--job", &serde_json::to_string(job)?])
        .args(["--part", &serde_json::to_string(part)?])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdin = child.stdin.take().context("no pipe to it")?;
    let stdout = child.stdout.take().context("no pipe from it")?;
    thread::Builder::new().name(format!("ear of {}", part.name())).spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let message = line.map_err(anyhow::Error::from).and_then(|line| Ok(serde_json::from_str(&line)?));
            ear.said(message.unwrap_or_else(|error| Message::Failed(format!("not understood: {error}"))));
        }
    })?;
    Ok(Body::Process { child, stdin })
}

// ---- processes: the child's side --------------------------------------------------------------------------

#[derive(Debug, clap::Args)]
pub(crate) struct PartyArgs {
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    job: String,
    #[arg(long)]
    part: String,
}

impl PartyArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        child::tie_to(self.parent, "run")?;
        let go = listen()?;
        let say = Box::new(|message| {
            let mut out = io::stdout().lock();
            serde_json::to_writer(&mut out, &message)?;
            writeln!(out)?;
            Ok(out.flush()?)
        });
        let mut link = Link { say, go };
        match self.play(&mut link) {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => {
                // Said by the parent, in its own line.
                (link.say)(Message::Failed(output::causes(&error)))?;
                Ok(Outcome::Problem)
            }
        }
    }

    fn play(&self, link: &mut Link) -> Result<()> {
        let job: Job = serde_json::from_str(&self.job).context("bad job")?;
        let part: Part = serde_json::from_str(&self.part).context("bad part")?;
        let region = Region::attach(&job.region)?;
        let stamps = Stamps::open(&job.stamps).context("cannot open the submit times")?;
        let lines = match part.role {
            Role::Producer => Lines::read(&job.input)?,
            Role::Worker => Lines::new(Vec::new()), // It sees the input through the order alone.
        };
        party::play(&Stage { job: &job, part: &part, region: &region, stamps: &stamps, lines: &lines }, link)
    }
}

/// Hears the word to go on standard input, and ends this process when it ends.
fn listen() -> Result<Receiver<()>> {
    let (go, word) = mpsc::channel();
    thread::Builder::new().name("ear of the parent".into()).spawn(move || {
        for byte in io::stdin().lock().bytes() {
            if byte.is_err() || go.send(()).is_err() {
                break;
            }
        }
        std::process::exit(2);
    })?;
    Ok(word)
}
