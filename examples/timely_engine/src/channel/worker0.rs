//! The channel that an engine builds from what Timely has: worker 0 orders, in a dataflow, for all.
//!
//! ```text
//!  producer ─ socket ─▶ its worker:  (producer, own index, command)
//!                         │ exchange to worker 0
//!                         ▼
//!                       worker 0:    each producer's in order of own index; (index, command)
//!                         │ a copy for each worker
//!                         ▼
//!                       every worker: in order of index
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Operator;
use timely::dataflow::operators::generic::operator::source;
use timely::dataflow::operators::vec::Broadcast;
use timely::scheduling::{Activator, SyncActivator};
use timely::worker::Worker;

use super::{CommandChannel, CommandSender, Heard};
use crate::command::Command;

/// How long a producer waits for room in a socket.
const PATIENCE: Duration = Duration::from_secs(10);

/// A command as its producer numbered it: producer, own index, command.
type Submitted = (u64, u64, Command);

/// A worker's end: the last operator's output.
pub(crate) struct Worker0 {
    delivered: Rc<RefCell<VecDeque<Command>>>,
    /// While this is there, the dataflow's source may send.
    open: Option<Rc<()>>,
    source: Activator,
}

impl Worker0 {
    /// Builds the dataflow, at every worker before anything else, and opens the door for producers.
    pub(crate) fn build(timely: &mut Worker, door: &Door) -> Worker0 {
        let (queue, submitted) = mpsc::channel::<Submitted>();
        let open = Rc::new(());
        let is_open = Rc::downgrade(&open);
        let delivered = Rc::new(RefCell::new(VecDeque::new()));
        let deliver = Rc::clone(&delivered);
        let mut address = None;
        timely.dataflow::<u64, _, _>(|scope: Scope<'_, u64>| {
            let at_worker =
                source::<_, CapacityContainerBuilder<Vec<Submitted>>, _, _>(scope, "Submit", |time, info| {
                    address = Some(info.address);
                    let mut time = Some(time);
                    move |output| {
                        if is_open.upgrade().is_none() {
                            time = None;
                        }
                        if let Some(time) = &time {
                            output.session(time).give_iterator(submitted.try_iter());
                        }
                    }
                });
            let ordered = at_worker.unary(Exchange::new(|_: &Submitted| 0), "Order", |_, _| {
                let (mut producers, mut index) = (HashMap::<u64, InOrder>::new(), 0_u64);
                move |input, output| {
                    input.for_each(|time, commands| {
                        let mut session = output.session(&time);
                        for (producer, own_index, command) in commands.drain(..) {
                            producers.entry(producer).or_default().put(own_index, command, |command| {
                                session.give((index, command));
                                index += 1;
                            });
                        }
                    });
                }
            });
            let everywhere = ordered.container::<Vec<(u64, Command)>>().broadcast();
            everywhere.sink(Pipeline, "Deliver", {
                let mut in_order = InOrder::default();
                move |(input, _)| {
                    input.for_each(|_, commands| {
                        let mut delivered = deliver.borrow_mut();
                        for (index, command) in commands.drain(..) {
                            in_order.put(index, command, |command| delivered.push_back(command));
                        }
                    });
                }
            });
        });
        let address = address.expect("the source was built");
        let wake = timely.sync_activator_for(address.to_vec());
        let fresh = door.0.set((queue, wake)).is_ok();
        assert!(fresh, "a worker has one end of the channel");
        Worker0 { delivered, open: Some(open), source: timely.activator_for(address) }
    }
}

impl CommandChannel for Worker0 {
    fn next(&mut self) -> Result<Option<Heard>> {
        Ok(self.delivered.borrow_mut().pop_front().map(Heard::Command))
    }

    fn step_or_park(&mut self, timely: &mut Worker) -> Result<()> {
        timely.step_or_park(None);
        Ok(())
    }
}

impl Drop for Worker0 {
    fn drop(&mut self) {
        self.open = None;
        self.source.activate();
    }
}

/// What has come too early waits for what is before it.
#[derive(Default)]
struct InOrder {
    next: u64,
    early: BTreeMap<u64, Command>,
}

impl InOrder {
    fn put(&mut self, index: u64, command: Command, mut give: impl FnMut(Command)) {
        self.early.insert(index, command);
        while let Some(command) = self.early.remove(&self.next) {
            self.next += 1;
            give(command);
        }
    }
}

/// Where producers' commands get to a worker; it is opened when the worker has built its dataflow.
#[derive(Clone, Default)]
pub(crate) struct Door(Arc<OnceLock<(mpsc::Sender<Submitted>, SyncActivator)>>);

/// Takes in producers that connect to a process, each for the worker that it asks for.
pub(crate) fn listen(path: &Path, doors: Vec<Door>) -> Result<()> {
    let listener = UnixListener::bind(path).with_context(|| path.display().to_string())?;
    std::thread::Builder::new().name("commands".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let doors = doors.clone();
            std::thread::spawn(move || {
                admit(stream, &doors).inspect_err(|error| eprintln!("a producer: {error:#}"))
            });
        }
    })?;
    Ok(())
}

/// Hands on what a producer sends until it hangs up.
fn admit(mut stream: UnixStream, doors: &[Door]) -> Result<()> {
    let [producer, door] = [read_u64(&mut stream)?, read_u64(&mut stream)?];
    let door = usize::try_from(door).ok().and_then(|door| doors.get(door)).context("no such worker")?;
    let (queue, wake) = door.0.get().context("the worker is not ready")?;
    for own_index in 0.. {
        let Some(command) = read_command(&mut stream)? else { return Ok(()) };
        // Who cannot be told has ended.
        if queue.send((producer, own_index, command)).is_err() || wake.activate().is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn read_u64(stream: &mut UnixStream) -> Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Length and command; `None` at the end.
fn read_command(stream: &mut UnixStream) -> Result<Option<Command>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(Some(postcard::from_bytes(&bytes)?))
}

/// A producer's end.
pub(crate) struct Producer(UnixStream);

impl Producer {
    /// Connects, under a number that no other producer has, to a worker of a process.
    pub(crate) fn connect(path: &Path, number: u64, door: u64) -> Result<Producer> {
        let mut stream = UnixStream::connect(path).with_context(|| path.display().to_string())?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&number.to_le_bytes())?;
        stream.write_all(&door.to_le_bytes())?;
        Ok(Producer(stream))
    }
}

impl CommandSender for Producer {
    fn send(&mut self, command: &Command) -> Result<()> {
        let mut frame = postcard::to_extend(command, vec![0; 4])?;
        let Ok(length) = u32::try_from(frame.len() - 4) else { bail!("a command of {} bytes", frame.len()) };
        frame[..4].copy_from_slice(&length.to_le_bytes());
        self.0.write_all(&frame).context("the process that takes commands")
    }
}
