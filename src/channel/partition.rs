//! [`Partition`]: commands that can be divided among the workers.

/// A command that can split itself into what all workers have in common of it and a part for each, so that no worker has
/// to read, or decode, what is another's. The workers are those that have a [rank](crate::JoinOptions::rank), as many as
/// the region has [ranks](crate::Config::ranks). Each command says whether it does; the others go whole, to all.
///
/// ```
/// use seriatim::channel::{Channel, Event, Partition};
/// use seriatim::{Config, JoinOptions, Region, Sequencer, SequencerConfig};
///
/// #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// enum Plan {
///     Load { table: String, rows: Vec<u32> },
///     Drop { table: String },
/// }
///
/// impl Partition for Plan {
///     type Part = Vec<u32>; // the rows of one worker
///
///     fn partition(&self, workers: usize) -> Option<(Plan, Vec<Vec<u32>>)> {
///         let Plan::Load { table, rows } = self else { return None };
///         let mut parts = vec![Vec::new(); workers];
///         for &row in rows {
///             parts[row as usize % workers].push(row);
///         }
///         Some((Plan::Load { table: table.clone(), rows: Vec::new() }, parts))
///     }
/// }
///
/// let region = Region::anonymous(&Config::new().ranks(2))?;
/// let _sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;
/// let channel = Channel::<Plan>::attach(&region);
/// let mut receivers = [0, 1].map(|rank| {
///     channel.join_with(&format!("w{rank}"), &JoinOptions::new().rank(rank)).unwrap()
/// });
/// let mut sender = channel.open("controller", 1)?;
/// sender.send_parts(&Plan::Load { table: "t".into(), rows: vec![1, 2, 3] })?;
/// sender.send_parts(&Plan::Drop { table: "t".into() })?;
/// for (receiver, own) in receivers.iter_mut().zip([vec![2], vec![1, 3]]) {
///     let mut commands = Vec::new();
///     while commands.len() < 2 {
///         if let Event::Command(command) = receiver.recv()? {
///             commands.push((command.decode()?, command.decode_part()?));
///         }
///     }
///     let shared = Plan::Load { table: "t".into(), rows: vec![] };
///     assert_eq!(commands, [(shared, Some(own)), (Plan::Drop { table: "t".into() }, None)]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Partition: Sized {
    /// What one worker gets of a command, beside what all get. The channel has to have a [`Coding`](super::Coding) for it,
    /// too.
    type Part;

    /// Splits it among so many workers: what all get, and a part for each in the order of their ranks. `None` if it goes
    /// whole. Another number of parts than that of the workers is refused when it is sent.
    fn partition(&self, workers: usize) -> Option<(Self, Vec<Self::Part>)>;
}
