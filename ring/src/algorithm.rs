//! Why it is correct, step by step. Documentation only.
//!
//! The models try every interleaving of small cases under loom's memory, which lets no load see a store that runs
//! after it (load buffering) and knows nothing of what a compiler does to a thread that is killed. What follows
//! stands on its own: on the C++ memory model as Rust has it, on coherence (the stores to one word have one
//! order, and nobody who has seen one sees an earlier one later), and on the kernel's word that a lock has fallen.
//! *Before* means happens-before, unless it says otherwise. Labels are those of the table in the
//! [crate's documentation](crate).
//!
//! # Two chains
//!
//! **There** (from a payload to its reader). A producer writes a cell and its payload, then swaps a ticket in (T1,
//! release). The sequencer sees the ticket (T1, acquire), then stores the run's words and its commit word (R1,
//! release). A reader that sees the commit word (R1, acquire) has the words of the run and, as happens-before is
//! transitive, cells and payloads of all its commands. A run is made of whole tickets, each of which the sequencer
//! has seen, so no cell of a run is unwritten.
//!
//! **And back** (from the last reading to the next writing). A worker reads cells, payloads and slots, then stores
//! its cursor (G1, release; the fence of G2 before it would do as well). The sequencer reads the cursor of every
//! live worker (G1, acquire: [`position`](crate::gate::Snapshot::position) of those that are further on,
//! [`load`](crate::gate::Snapshot::load) of the slowest), frees what lies before the smallest, and stores
//! `released` (L1, release). The producer that sees it (L1, acquire) writes after the readings of all workers,
//! and the sequencer rewrites a slot after them in its own program order. This direction is where load buffering
//! would hurt: a worker's load may not take its value from the write that its own cursor allowed. It cannot: the
//! load is before that write, and no load reads from a store that it happens before. This is **Gated**.
//!
//! A worker that has been let in and has not begun gates at its `start`, which the sequencer stored itself. When
//! the sequencer sees that it has begun (J3), the cursor that it reads is the worker's own or a later one, not
//! that of a predecessor in the page, by coherence. A start is the anchor of that moment, nothing behind the
//! anchor is ever freed twice, and the member is live before its answer is given (J2), so what a newcomer is told
//! to read is still there.
//!
//! # Tickets
//!
//! **Dense tickets.** By induction over positions. A producer swaps at a position only when it has seen the
//! position before it taken: that was its own last ticket; or a slot in which it met a newer turn, in which case
//! all positions before the one that the newer turn stands for are taken, by the induction; or the shared hint,
//! which is stored by who has just put the ticket before it in, and checked. It may be wrong about the present (a
//! relaxed load), never about what is taken: a taken position stays taken. The swap succeeds only on the word of
//! the turn before, so two producers never get one position.
//!
//! **Room before tickets.** A swap overwrites the ticket of the turn before; it must have been consumed. Let it be
//! at position *p*, in a queue of *n* words, and suppose that the sequencer has not read position *p - n*. Then it
//! has read none of *p - n .. p*, so none of their cells is in a run, so none is released: `released` of each lane
//! is stored only after the runs, in the sequencer's program order, and there is no other source from which a
//! producer could have the value (it loads with acquire before its swap, hence no value out of thin air). These
//! are *n* tickets of one cell at least, all outstanding, and the producer has room for another cell in its own
//! lane: more than *n* cells outstanding in all. But all lanes have at most *n* cells. (A close ticket names no
//! cells: the queue has a few spare words for those, and nobody queues a second one before the first is void.)
//!
//! **Close.** Who meets a close ticket that is not void queues nothing. A producer looks at the slot of each
//! position from where it begins up to the one that it takes, but for those below a hint or in turns that it
//! jumps, and these were taken by cell tickets: a hint is not stored by a close ticket, and nobody who would have
//! passed one stored a later hint. So no ticket lies behind a close ticket until a takeover declares it void (T2).
//!
//! # O1: one order
//!
//! **One moment.** A run's first index is the end of the run before it, in the one sequencer's own variable or, at
//! a takeover, read from the last run in the ring. Its number is one more, and its commit word is stored once. So
//! indexes are dense, and an index has one run, one lane and one cell for everybody who reads the run. A gating
//! reader reads run after run and walks the cells; it checks that each run begins where the one before ended
//! ([`Fault::Gap`](crate::order::Fault)) and finds no slot rewritten under it, since it gates. What it finds in
//! the cell is what the producer wrote, and it is still there (**Gated**).
//!
//! An observer gates nobody. It accepts a run only if the commit word is the same after it has copied the words,
//! with R2's fences between: if any copied word is from a later run, the observer's fence comes after the
//! publisher's, which comes after the invalidation, so the second look finds the old word gone. It accepts a cell
//! and a payload only if `Claimed` has not passed them, with L2's fences between: if any copied word is from a later
//! command, the claim that came before that word is seen. Positions do not go back: what a producer abandons is
//! claimed again from the same place, and a claim is never more than a ring ahead of what is released, so nothing
//! that is queued and unreleased is ever taken for gone.
//!
//! # O2: producer order
//!
//! A producer fills cells in the order of their numbers, and each ticket names the cells after those of its ticket
//! before, in program order. Positions of one producer grow. The sequencer consumes positions in order, counts a
//! lane's cells from `ordered`, which is the number of cells that its consumed tickets named, and joins tickets of
//! one lane only where they are adjacent. So the cells of a lane come into the order by their numbers, and the
//! per-producer index is the number minus the base.
//!
//! # O3: real-time order
//!
//! A submit contains its swap. If it returned before another one began, in whatever way the second caller may
//! know, then its swap is before the second's first load. Let the first be at position *p*. The second takes the
//! first position from its hint on that it finds free; at *p* it finds the ticket, or a later turn, by coherence.
//! If it begins at or before *p* it goes past *p*; it does not begin elsewhere but after *p*. Its position is
//! greater, positions are consumed in order, and indexes follow positions.
//!
//! # Exactly once, across takeovers
//!
//! A successor begins when the predecessor's lock has fallen: all of its stores are visible, and there are no
//! more. The predecessor died between two instructions, so of its stores those in program order before that are
//! there, and nothing else, as far as the *compiled* program keeps the order of the source. Where the source relies
//! on it a release store or fence stands (K1, and the release stores of the pairs): no compiler moves an earlier
//! store behind it.
//!
//! For a run, in this order: the slot's commit word is cleared; the words; **the commit word**; `ordered` of its
//! lane; `published`, with the consumed position last. When something is freed: `published`; the anchor; `released`
//! of each lane; only then is a slot cleared again. For an event: its commit word, then what it does to the control
//! page, before anything else is ordered or freed.
//!
//! 1. *The last run* is the largest commit word in its right slot. At most one slot is cleared, that of the run
//!    which would come next, and with two slots or more it is not the last one's. Words of a slot without its
//!    commit word are not read.
//! 2. *The next index* is its end. *The next ticket* is the one that it names, or the consumed position if that is
//!    further on, which it is only by tickets that were passed over without a run (of a lane that is fenced off, or
//!    void): passing them over again does no harm. So a ticket is in exactly one run, whether or not its run's
//!    predecessor got as far as to say so: a run without its commit word did not happen, and its tickets are still
//!    in the queue.
//! 3. *A lane's next cell* is the larger of `ordered` and the end of its last run in the ring. `ordered` lacks at
//!    most the last run.
//! 4. *What is freed* is what the anchor says. Lanes that were not told are told again: their runs are still in the
//!    ring, for a slot is cleared only after they were told. `released` never goes back, and neither does the
//!    anchor.
//! 5. *Events* whose cells are not released are applied again; applying twice is the same as once. Those whose
//!    cells are released had been applied before that, and their cells may be half overwritten by an event that
//!    never happened: they are not read.
//! 6. *Members* that are live and were never answered are let in anew; if the order says that they joined, it will
//!    say that they left. A worker that left, or died, and had to make way in a full ring, is kept beside its
//!    successor in the slot until the order has room to say so, and is said to have left once.
//! 7. *A producer* that attaches is answered when every ticket queued when it was seen to ask has been consumed. Its
//!    predecessor is dead, so no ticket follows. `ordered` is then where it goes on, and counts exactly the commands
//!    whose submit took effect.
//!
//! A takeover changes nothing that it would not find in the same way if it died at any of its own stores.
//!
//! # Reports, and who has passed an index
//!
//! A report's words are stored after a release fence (A2) that follows the count of all reports before it, and before
//! its own count (A1, release). Who reads a count (A1, acquire) has the words of all reports below it, or later ones in
//! the same slots. If any word that it copied is that of a later report *n*, its fence comes after the writer's, and
//! its second look finds a count of at least *n*: what lay in that slot is then *N* reports or more below the count,
//! and no longer kept. So what is taken is whole, and was said as one. A writer that dies leaves the count where it was;
//! its successor in the page, who holds the lock, reads that count or a later one of its own, and goes on from there, so
//! the count never comes back to a value while anybody may still compare with it (in 2^64 reports). Which member a
//! report is of is said by a word of its own, whole with the others.
//!
//! Who waits until an index is passed takes a slot for one that has to pass it as long as a live worker in it stands
//! before the index (G1, J3), unless the index is before that worker's first. That first is its own: who sees it live
//! sees its generation (J6), and the answer to that generation comes after its first (J2). A predecessor's answer is
//! not to that generation. So a worker that begins at the anchor counts as soon as it is live, and one that begins
//! behind the index as soon as it is known that it does.
//!
//! Slots are looked at one after another. If all who had the index before them die meanwhile, one who is let in then,
//! alone, may come into a slot that was looked at, and begin before the index; and another one, who comes beside that one
//! and begins behind it, into a slot that was not. Members get numbers before they are live: if the next number (J7,
//! acquire) includes that of the later one, the earlier one was found live in its slot; if not, it has moved by the time
//! the later one was found live (J6), and the look is void.
//!
//! # Workers that differ
//!
//! *Found where it begins.* Let *a* and *b* report different things for index *i*, and nothing different before it. Each
//! stores its report, passes the fence (D2), and looks for the other's. The two fences have an order, so whoever's is
//! second finds the other's report, if that is still kept: *b*'s is the second; *a* is given nothing that lies a window
//! or more ahead of where *b* is done, and *b* is done with nothing after *i* before it has looked. The window is half of
//! what is kept, and there is one report for an index, so it is kept. So one of them tells of *i* (D3), before it is
//! done with the next index; and of no higher one, for it tells once.
//!
//! *Bounded.* Who tells of *i* has not moved its cursor past *i* + 1 until it has told. The sequencer reads all gates and
//! then looks for what was told, before it moves the anchor: if the anchor goes past *i* + 1, the cursor that allowed it
//! (G1) brought with it what was told. From then on only the poison is ordered; and what lies between the anchor and the
//! next index are unreleased cells, as many as there are at most.
//!
//! *Once.* The poison is an event, noted in control after its commit word. A successor that finds it in the order notes
//! it (5. above): it is the last run, and nothing is freed between its commit word and its note. One that does not find
//! it finds what was told, which is never cleared, before it orders anything.
//!
//! *In step.* Who is given *i* + 1 has seen everybody who is live done with *i* (D1), so it has their reports for *i*, and
//! its own is the same; who told of a difference at *i* or before did so before it was done with *i*, or differs from
//! somebody's report for *i* that is found here as well.
//!
//! # No lost wake-ups
//!
//! A sleeper reads the bell's word, announces itself, passes a sequentially consistent fence, looks again, and waits
//! in the kernel while the word is what it read. A waker makes its event true, passes such a fence, and looks for an
//! announcement; if there is one it withdraws it, moves the word, and wakes all who wait, or has them woken (below).
//! (The kernel compares the word and enqueues the sleeper in one step, as far as wakers can tell.)
//!
//! 1. *Somebody sees somebody* (W1). The two fences have an order. If the sleeper's is first, the waker's load
//!    finds the announcement or something later in the order of stores to that word; if the waker's is first, the
//!    sleeper's second look finds the event. This holds for relaxed accesses around the fences, and for nothing
//!    weaker than the fences.
//!    A submit has no such fence (W3): its swap and its load of the announcement are sequentially consistent themselves.
//!    If the sleeper's second look does not find the ticket, its fence comes before the swap in the order of all that is
//!    sequentially consistent; the swap comes before the load; and a load that found nothing of an announcement that was
//!    stored before the fence would come before the fence: a circle. The models have a fence there, for loom has no such
//!    order of accesses; a processor pays nothing for it beside the swap.
//! 2. *Something later* is another announcement, or a withdrawal that overwrote this one. A withdrawal is followed
//!    by a move of the word and a wake by the same waker. If the sleeper read the word before that move, it does
//!    not sleep, or is woken. If it read it moved, then its announcement comes after the withdrawal (W2: the move
//!    is a release, the sleeper's read an acquire, and stores to one word that are ordered by happens-before are so
//!    ordered in its own order), and was not overwritten by it.
//! 3. So a sleeper whose event is true either does not wait, or is woken by the waker of that event or by one whose
//!    withdrawal came in between; then it looks again, and the argument begins anew.
//!
//! *Levels.* One bell has one level at a time; the sequencer is the only one that uses two. It lies down for work, or
//! for work and room: for room if a producer has announced itself or a ticket is in that has to wait for a gate.
//! After its own announcement it looks again for all that could have raised the level
//! ([`is_needed`](crate::sequencer::Orderer::is_needed)): a producer that announced itself after the sequencer chose
//! its level asks for sleepers after that announcement, with the same two fences, so one of the two sees the other.
//! It also looks for a ticket when it lies down for room: otherwise a ticket that came in between its last turn and
//! its announcement would be slept on.
//!
//! *Waking in line.* The sequencer, whose time is everybody's, wakes one of many sleepers, and each of them, before it
//! does anything else, two more of those who lay down before the last ring. These are finitely many, and none who has
//! looked since is among them, so the line ends. It breaks where one of them dies or is stopped before it has handed
//! on; therefore the sequencer itself goes on in each of its turns, with one at a time, until the kernel finds nobody
//! left. It neither sleeps nor ends before that; if it dies, its successor wakes all.
//!
//! *A waker that dies* between the withdrawal and the wake leaves sleepers with nobody to wake them: every wait has a
//! bound, and then the sleeper looks again. This is the only case that needs the bound.
