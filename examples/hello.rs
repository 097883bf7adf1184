//! One process: two producers, three workers, one order.
//!
//! Run it with `cargo run --example hello`.

use std::thread;

use seriatim::{Config, Event, Producer, Region, Sequencer, SequencerConfig, Worker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Memory without a name; `Region::create("/dev/shm/hello", …)` makes one that other programs find.
    let region = Region::anonymous(&Config::new().producers(2).workers(3))?;
    let sequencer = Sequencer::spawn(&region, SequencerConfig::new())?;

    let mut workers = Vec::new();
    for name in ["red", "green", "blue"] {
        let mut worker = Worker::join(&region, name)?;
        workers.push(thread::spawn(move || {
            let mut lines = Vec::new();
            loop {
                match worker.recv() {
                    Ok(Event::Command(c)) => {
                        let text = String::from_utf8_lossy(c.payload).into_owned();
                        lines.push(format!("{} from producer {}: {text}", c.seq, c.producer));
                    }
                    Ok(Event::Closed { .. }) | Err(_) => return (name, worker.digest(), lines),
                    // Somebody came: that has an index as well, the same for all.
                    Ok(_) => {}
                }
            }
        }));
    }

    thread::scope(|scope| {
        for name in ["left", "right"] {
            let region = &region;
            scope.spawn(move || {
                let mut producer = Producer::attach(region, name).expect("the sequencer answers");
                for n in 0..3 {
                    producer.submit(0, format!("{name} says {n}").as_bytes()).expect("the order is open");
                }
            });
        }
    });

    // The end comes after all that was submitted.
    sequencer.close()?;
    for worker in workers {
        let (name, digest, lines) = worker.join().expect("no panic");
        println!("{name}: digest {digest}");
        lines.iter().for_each(|line| println!("  {line}"));
    }
    Ok(())
}
