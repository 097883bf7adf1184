//! The same shapes, really run: each party on a thread of its own, which yields while it waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use seriatim::{
    AttachOptions, JoinOptions, Producer, Region, Sequencer, SequencerConfig, Wait, Worker, WorkerError,
};

use crate::count::Shape;
use crate::machine::sum;
use crate::region;

/// Commands that a worker takes at once at most.
const LIMIT: usize = 1024;

/// Commands a second that the slowest worker receives.
pub(crate) fn rate(shape: &Shape, time: Duration) -> Result<f64> {
    let region = Region::anonymous(&region(shape.producers, shape.workers))?;
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new().wait(Wait::Yield))?;
    let received: Vec<AtomicU64> = (0..shape.workers).map(|_| AtomicU64::new(0)).collect();
    let least = || received.iter().map(|count| count.load(Ordering::Relaxed)).min().unwrap_or(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (n, count) in received.iter().enumerate() {
            let worker = Worker::join_with(&region, &format!("w{n}"), &JoinOptions::new().wait(Wait::Yield))?;
            threads.push(scope.spawn(|| receive(worker, count)));
        }
        let mut submitting = Vec::new();
        for n in 0..shape.producers {
            let options = AttachOptions::new().wait(Wait::Yield);
            let producer = Producer::attach_with(&region, &format!("p{n}"), &options)?;
            submitting.push(scope.spawn(|| submit(producer, shape, &stop)));
        }
        std::thread::sleep(time / 4);
        let (before, begin) = (least(), Instant::now());
        std::thread::sleep(time);
        let rate = (least() - before) as f64 / begin.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        for thread in submitting {
            thread.join().ok().context("a producer without panics")??;
        }
        sequencer.close()?;
        for thread in threads {
            thread.join().ok().context("a worker without panics")??;
        }
        Ok(rate)
    })
}

fn submit(mut producer: Producer, shape: &Shape, stop: &AtomicBool) -> Result<()> {
    let bytes = vec![7; shape.payload];
    let commands = vec![(0, &bytes[..]); shape.batch];
    while !stop.load(Ordering::Relaxed) {
        producer.submit_batch(&commands)?;
    }
    Ok(())
}

fn receive(mut worker: Worker, count: &AtomicU64) -> Result<()> {
    let mut sums = 0_u64;
    loop {
        match worker.recv_batch(LIMIT, None, |event| sums = sums.wrapping_add(sum(event))) {
            Ok(done) => count.fetch_add(done as u64, Ordering::Relaxed),
            Err(WorkerError::Closed) => break,
            Err(error) => return Err(error.into()),
        };
    }
    std::hint::black_box(sums);
    Ok(())
}
