//! The two ends of the broadcast: who makes up commands, and who checks them.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use seriatim::shared::Stamps;
use seriatim::{Command, Event, Seq};

use super::board::Board;
use super::{Fault, Job, LAST, Mode, Strategy};

/// Latencies above this are counted as this.
const LONGEST_NS: u64 = 120_000_000_000;

/// The command that a [`Fault`] strikes.
const FAULTY: u64 = 3;

/// Word `i` of every payload but for the first.
fn filler(i: usize) -> u64 {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The first word of a payload: which command it is.
fn tag(producer: usize, seq: u64) -> u64 {
    (producer as u64) << 48 | seq
}

/// The number in a tag.
fn seq_of(tag: u64) -> u64 {
    tag & ((1 << 48) - 1)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

// ---- waiting ----------------------------------------------------------------------------------------------

/// What a producer does until its next command is due.
struct Waiter {
    wait: Strategy,
    looks: u32,
}

impl Waiter {
    const PAUSES: u32 = 32;
    const YIELDS: u32 = 64;
    const SLEEP: Duration = Duration::from_micros(50);

    fn new(wait: Strategy) -> Waiter {
        Waiter { wait, looks: 0 }
    }

    fn reset(&mut self) {
        self.looks = 0;
    }

    fn step(&mut self) {
        self.looks = self.looks.saturating_add(1);
        let pauses = self.looks <= Self::PAUSES;
        match self.wait {
            Strategy::Spin => std::hint::spin_loop(),
            _ if pauses => std::hint::spin_loop(),
            Strategy::Block if self.looks > Self::PAUSES + Self::YIELDS => std::thread::sleep(Self::SLEEP),
            _ => std::thread::yield_now(),
        }
    }
}

// ---- producer ---------------------------------------------------------------------------------------------

/// One producer's commands, made up when they are due.
pub(super) struct Source<'a> {
    job: &'a Job,
    board: &'a Board,
    producer: usize,
    /// The next command's.
    seq: u64,
    finished: bool,
    /// A command each, its kind, and time and payload: as many as a batch has.
    frames: Vec<(u16, Vec<u8>)>,
    waiter: Waiter,
    /// Ping: how many commands all have received when it is this producer's turn.
    turn: u64,
    begun_ns: u64,
}

impl<'a> Source<'a> {
    pub(super) fn new(job: &'a Job, board: &'a Board, producer: usize) -> Source<'a> {
        let frame = || {
            let words = (0..job.size / 8).map(filler).flat_map(u64::to_le_bytes);
            ((producer as u16) << 1, std::iter::repeat_n(0, job.stamp()).chain(words).collect())
        };
        Source {
            job,
            board,
            producer,
            seq: 0,
            finished: false,
            frames: std::iter::repeat_with(frame).take(job.batch).collect(),
            waiter: Waiter::new(job.wait),
            turn: producer as u64,
            begun_ns: board.begun_ns().unwrap_or(0),
        }
    }

    /// The next commands, to be submitted at once, when they are due; none after the last.
    pub(super) fn next(&mut self) -> Option<&[(u16, Vec<u8>)]> {
        if self.finished {
            return None;
        }
        self.waiter.reset();
        let sent_ns = loop {
            if let Some(sent_ns) = self.due() {
                break sent_ns;
            }
            self.wait();
        };
        // Asked when its turn has come: whoever had the turn before may have ended, and then nobody comes after it.
        let ending = self.board.is_ending();
        if ending && self.job.fault == Some(Fault::Hang) && self.producer == 0 {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        self.finished = ending;
        let count = if ending { 1 } else { self.frames.len() };
        (0..count).for_each(|at| self.write(at, sent_ns));
        if ending {
            self.board.set_produced(self.producer, self.seq);
        }
        if ending {
            self.frames[0].0 |= LAST;
        }
        Some(&self.frames[..count])
    }

    /// The time that the next command is to carry, if it is due.
    fn due(&self) -> Option<u64> {
        match self.job.mode {
            Mode::Throughput => Some(0),
            Mode::Ping => (self.board.acked() == self.turn).then(Stamps::now),
            Mode::Paced(rate) => {
                let at = self.begun_ns + offset_ns(rate, self.job.producers, self.producer, self.seq);
                (Stamps::now() >= at).then_some(at)
            }
        }
    }

    fn wait(&mut self) {
        if self.job.mode == Mode::Ping && self.job.wait == Strategy::Block {
            let seen = self.board.acked();
            if seen != self.turn {
                self.board.await_ack(seen);
            }
        } else {
            self.waiter.step();
        }
    }

    /// Writes the next command.
    fn write(&mut self, at: usize, sent_ns: u64) {
        let (producer, seq) = (self.producer, self.seq);
        let faulty = seq == FAULTY && producer == 0;
        let skipped = u64::from(self.job.fault == Some(Fault::Gap) && producer == 0 && seq >= FAULTY);
        let (stamp, payload) = self.frames[at].1.split_at_mut(self.job.stamp());
        if self.job.is_latency() {
            stamp.copy_from_slice(&sent_ns.to_le_bytes());
        }
        payload[..8].copy_from_slice(&tag(producer, seq + skipped).to_le_bytes());
        if faulty && self.job.fault == Some(Fault::Payload) {
            // It stays wrong from here on, which is as good.
            payload[self.job.size - 1] ^= 1;
        }
        self.seq += 1;
        self.turn += self.job.producers as u64;
    }
}

/// When a producer's command number `seq` is due, from the beginning: each producer has its share of the rate, and they
/// begin at even distances.
fn offset_ns(rate: u64, producers: usize, producer: usize, seq: u64) -> u64 {
    let period = 1_000_000_000 * producers as u64 / rate;
    period * producer as u64 / producers as u64 + period * (seq + 1)
}

// ---- worker -----------------------------------------------------------------------------------------------

/// What one worker saw.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Receipt {
    pub(super) worker: usize,
    pub(super) count: u64,
    /// The order hash.
    pub(super) hash: u64,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    /// What came before the measured time.
    pub(super) warmup_count: u64,
    pub(super) start_ns: u64,
    pub(super) finish_ns: u64,
    /// Of commands that this worker was the last to receive: values and how often.
    pub(super) latencies: Vec<(u64, u64)>,
}

/// Checks what one worker receives.
pub(super) struct Sink<'a> {
    job: &'a Job,
    board: &'a Board,
    worker: usize,
    /// The index that comes next in the order, where the sequencer's own commands have theirs, too.
    next: u64,
    count: u64,
    hash: u64,
    /// What comes next of each producer.
    next_seqs: Vec<u64>,
    lasts: usize,
    errors: u64,
    first_error: Option<String>,
    filler_sum: u64,
    warmup_count: u64,
    /// 0 until the measured time begins.
    start_ns: u64,
    finish_ns: u64,
    latencies: Histogram<u64>,
}

impl<'a> Sink<'a> {
    /// For a worker to whom `first` is the first index.
    pub(super) fn new(job: &'a Job, board: &'a Board, worker: usize, first: Seq) -> anyhow::Result<Sink<'a>> {
        Ok(Sink {
            job,
            board,
            worker,
            next: first.get(),
            count: 0,
            hash: 0,
            next_seqs: vec![0; job.producers],
            lasts: 0,
            errors: 0,
            first_error: None,
            filler_sum: (1..job.size / 8).map(filler).fold(0, u64::wrapping_add),
            warmup_count: 0,
            start_ns: 0,
            finish_ns: 0,
            latencies: Histogram::new_with_bounds(1, LONGEST_NS, 3)?,
        })
    }

    /// Whether the last command of the last producer has come.
    pub(super) fn is_done(&self) -> bool {
        self.lasts >= self.job.producers
    }

    #[inline(always)]
    pub(super) fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Command(command) => self.command(command),
            other => self.place(other.seq()),
        }
    }

    /// Checks that an index is the next one.
    #[inline]
    fn place(&mut self, seq: Seq) {
        let expected = std::mem::replace(&mut self.next, seq.get() + 1);
        if seq.get() != expected {
            self.error(|| format!("index {seq} came, {expected} was next"));
        }
    }

    #[inline(always)]
    fn command(&mut self, command: &Command<'_>) {
        self.place(command.seq);
        let Some((stamp, payload)) = command.payload.split_at_checked(self.job.stamp()) else {
            return self.error(|| format!("index {} has {} bytes", command.seq, command.payload.len()));
        };
        let producer = usize::from(command.kind >> 1);
        let Some(next) = self.next_seqs.get_mut(producer) else {
            return self.error(|| format!("index {} is of producer {producer}", command.seq));
        };
        let expected = *next;
        *next += 1;
        let (index, seq) = (command.index, seq_of(word(payload)));
        if seq != expected || index != expected {
            self.error(|| {
                format!("index {}: seq: {seq} as command {index}, expected {expected}", command.seq)
            });
        }
        let tag = tag(producer, expected);
        if payload.len() != self.job.size || !self.is_intact(payload, tag) {
            self.error(|| {
                format!("index {}: the payload of p{producer} is not what was written", command.seq)
            });
        }
        self.hash = (self.hash.rotate_left(5) ^ tag).wrapping_mul(0x517c_c1b7_2722_0a95);
        if self.start_ns == 0 && self.board.is_measuring() {
            self.start_ns = Stamps::now();
            self.warmup_count = self.count;
        }
        if self.job.is_latency() {
            self.record(word(stamp));
        }
        self.count += 1;
        if command.kind & LAST != 0 {
            self.lasts += 1;
            self.finish_ns = Stamps::now();
        }
    }

    #[inline]
    fn is_intact(&self, payload: &[u8], tag: u64) -> bool {
        if !self.job.touch {
            return word(payload) == tag;
        }
        let words = payload.as_chunks::<8>().0.iter();
        let sum = words.fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
        sum == self.filler_sum.wrapping_add(tag)
    }

    fn record(&mut self, sent_ns: u64) {
        if !self.board.received(self.count) {
            return;
        }
        let latency = Stamps::now().saturating_sub(sent_ns);
        if self.start_ns != 0 {
            self.latencies.saturating_record(latency.max(1));
        }
        self.board.ack();
    }

    /// Counts an error; the first is told in words.
    #[cold]
    fn error(&mut self, what: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(what);
    }

    pub(super) fn receipt(self) -> Receipt {
        let latencies = self.latencies.iter_recorded();
        Receipt {
            worker: self.worker,
            count: self.count,
            hash: self.hash,
            errors: self.errors,
            first_error: self.first_error,
            warmup_count: self.warmup_count,
            start_ns: self.start_ns,
            finish_ns: self.finish_ns,
            latencies: latencies.map(|at| (at.value_iterated_to(), at.count_at_value())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use seriatim::{Address, Digest};

    use super::super::tests::job;
    use super::*;

    /// Command and payload, as a worker gets them.
    #[derive(Clone)]
    struct Sent {
        index: u64,
        kind: u16,
        bytes: Vec<u8>,
    }

    /// Three commands of each of two producers in turn, changed by `change`, and what a worker says to them.
    fn receipt_after(job: &Job, change: impl Fn(&mut Vec<Sent>)) -> (Receipt, bool) {
        let board = Board::create(job).unwrap();
        let mut sources = [0, 1].map(|producer| Source::new(job, &board, producer));
        let mut sent = Vec::new();
        for index in 0..3 {
            if index == 2 {
                board.end();
            }
            for source in &mut sources {
                let (kind, bytes) = source.next().unwrap()[0].clone();
                sent.push(Sent { index, kind, bytes });
            }
        }
        assert!(sources.iter_mut().all(|source| source.next().is_none()), "the last was the last");
        assert_eq!(board.produced(), 6);
        change(&mut sent);
        let mut sink = Sink::new(job, &board, 0, Seq::new(7)).unwrap();
        for (seq, Sent { index, kind, bytes }) in (7..).zip(&sent) {
            let (index, kind, payload) = (*index, *kind, &bytes[..]);
            let command = Command {
                seq: Seq::new(seq),
                producer: 1,
                index,
                kind,
                payload,
                part: None,
                address: Address::ALL,
                digest: Digest(0),
            };
            sink.take(&Event::Command(command));
        }
        let is_done = sink.is_done();
        (sink.receipt(), is_done)
    }

    fn errors_after(change: impl Fn(&mut Vec<Sent>)) -> u64 {
        receipt_after(&job(), change).0.errors
    }

    #[test]
    fn what_arrives_as_it_was_sent_passes() {
        let (receipt, is_done) = receipt_after(&job(), |_| ());
        assert_eq!((receipt.errors, receipt.count, is_done), (0, 6, true), "{receipt:?}");
    }

    #[test]
    fn a_loss_a_repeat_and_a_swap_of_one_producer_are_errors() {
        assert!(errors_after(|sent| drop(sent.remove(0))) > 0);
        assert!(errors_after(|sent| sent.insert(1, sent[0].clone())) > 0);
        assert!(errors_after(|sent| sent.swap(0, 2)) > 0);
    }

    #[test]
    fn every_changed_bit_of_a_payload_is_an_error() {
        for bit in 0..64 * 8 {
            assert!(errors_after(|sent| sent[3].bytes[bit / 8] ^= 1 << (bit % 8)) > 0, "bit {bit}");
        }
    }

    #[test]
    fn untouched_only_the_first_word_counts() {
        let job = Job { touch: false, ..job() };
        let errors = |at: usize| receipt_after(&job, |sent| sent[3].bytes[at] ^= 1).0.errors;
        assert!(errors(0) > 0 && errors(7) > 0);
        assert_eq!(errors(8), 0);
    }

    #[test]
    fn another_length_number_or_producer_is_an_error() {
        assert!(errors_after(|sent| sent[2].bytes.truncate(56)) > 0);
        assert!(errors_after(|sent| sent[2].bytes.extend([0; 8])) > 0);
        assert!(errors_after(|sent| sent[2].bytes.truncate(7)) > 0);
        assert!(errors_after(|sent| sent[2].bytes[0] ^= 4) > 0);
        assert!(errors_after(|sent| sent[2].kind = 9 << 1) > 0);
        assert!(errors_after(|sent| sent[2].kind ^= 2) > 0);
        assert!(errors_after(|sent| sent[2].index = 9) > 0);
    }

    #[test]
    fn a_gap_in_the_order_is_an_error() {
        let job = job();
        let board = Board::create(&job).unwrap();
        let mut sink = Sink::new(&job, &board, 0, Seq::new(7)).unwrap();
        sink.take(&Event::Opened { seq: Seq::new(7), epoch: 1 });
        assert_eq!(sink.errors, 0);
        sink.take(&Event::Opened { seq: Seq::new(9), epoch: 1 });
        assert_eq!(sink.errors, 1);
    }

    #[test]
    fn the_order_hash_tells_orders_apart_and_is_that_of_the_definition() {
        let hash = |change: fn(&mut Vec<Sent>)| receipt_after(&job(), change).0.hash;
        assert_ne!(hash(|_| ()), hash(|sent| sent.swap(0, 1)));
        // p0 and p1 in turn, three of each, folded by hand.
        let tags = [0, 1 << 48, 1, 1 << 48 | 1, 2, 1 << 48 | 2_u64];
        let fold = |h: u64, tag: &u64| (h.rotate_left(5) ^ tag).wrapping_mul(0x517c_c1b7_2722_0a95);
        assert_eq!(hash(|_| ()), tags.iter().fold(0, fold));
    }

    #[test]
    fn a_command_is_laid_out_as_defined() {
        let job = job();
        let board = Board::create(&job).unwrap();
        let mut source = Source::new(&job, &board, 1);
        source.next();
        board.end();
        let (kind, frame) = source.next().unwrap()[0].clone();
        let words: Vec<u64> = frame.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        // Producer 1, the last; tag, fillers.
        assert_eq!(kind, 1 << 1 | 1);
        assert_eq!(words[..2], [1 << 48 | 1, 0x9e37_79b9_7f4a_7c15]);
        assert_eq!(words[7], 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(7));
        assert_eq!(frame.len(), 64);
        // Where latency is measured the time stands before that.
        let (job, before) = (Job { mode: Mode::Ping, ..job }, Stamps::now());
        let frame = Source::new(&job, &board, 0).next().unwrap()[0].1.clone();
        assert!((before..=Stamps::now()).contains(&word(&frame)));
        assert_eq!((word(&frame[8..]), word(&frame[16..]), frame.len()), (0, 0x9e37_79b9_7f4a_7c15, 8 + 64));
    }

    #[test]
    fn the_paced_share_the_rate_at_even_distances() {
        // 1000 a second by 4 producers: each has one every 4 ms, the next producer's comes 1 ms later.
        let at = |producer, seq| offset_ns(1000, 4, producer, seq);
        assert_eq!([at(0, 0), at(1, 0), at(3, 0), at(0, 1)], [4, 5, 7, 8].map(|ms| ms * 1_000_000));
    }
}
