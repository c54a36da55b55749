//! The blocks of one call of the service `Codec` that are in the engine.

use crate::{
    decode::codec::{Code, CodeInput, Coded},
    engine::{Event, Events, Job, Terms, clock},
    error::{Error, Result},
    serve::{
        middleware::body_limits::{BodyMemory, Reservation},
        registry::engines::Lease,
    },
};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum blocks of one call in the engine.
const MAX_BLOCKS: usize = 16;
/// How long a block waits before it is submitted again to a queue that was full.
pub(super) const QUEUE_RETRY: Duration = Duration::from_millis(50);

/// Submits the blocks of a call, and returns their results in order.
pub(super) struct CodecEngine {
    engine: Lease,
    terms: Terms,
    memory: Arc<BodyMemory>,
    max_blocks: usize,
    /// The memory of the input that is in no block yet, and of the block that waits.
    input: InputMemory,
    /// Blocks in the engine, in order.
    running: VecDeque<RunningBlock>,
    /// The next block, if the queue or the memory of requests was full.
    waiting: Option<Code>,
    /// When the last block was submitted, or ended.
    progress_at: Instant,
}

/// A block in the engine.
struct RunningBlock {
    events: Events,
    coded: Option<Coded>,
    /// The memory of its symbols and data.
    _reserved: Reservation,
}

impl CodecEngine {
    /// Creates the blocks of a call. Their symbols and data count in `memory`.
    pub(super) fn new(engine: Lease, terms: Terms, memory: Arc<BodyMemory>) -> Self {
        let max_blocks = engine.limits().rows.min(MAX_BLOCKS);
        let input = InputMemory::new(Reservation::new(Arc::clone(&memory), Arc::clone(&terms.tenant)));
        let progress_at = clock::now();
        Self { engine, terms, memory, max_blocks, input, running: VecDeque::new(), waiting: None, progress_at }
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.engine
    }

    /// Returns true if another block may be submitted.
    pub(super) fn takes_blocks(&self) -> bool {
        self.waiting.is_none() && self.running.len() < self.max_blocks
    }

    /// Returns true if a block waits for the queue.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns true if blocks are in the engine.
    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Submits a block. The first block of a call fails with [`Error::QueueFull`] if the queue is full. A later one waits, but fails
    /// too after the stall limit without any progress.
    pub(super) fn submit(&mut self, block: Code) -> Result<()> {
        match self.try_submit(&block) {
            Err(Error::QueueFull { .. }) if self.may_wait() => {
                self.waiting = Some(block);
                Ok(())
            }
            submitted => submitted,
        }
    }

    /// Sets the memory reserved for input that is not yet in a block to `bytes`. Returns false if the call has to wait for it. Fails with
    /// [`Error::QueueFull`] where [`submit`](Self::submit) does.
    pub(super) fn hold_input(&mut self, bytes: usize) -> Result<bool> {
        match self.input.resize(bytes) {
            Err(Error::QueueFull { .. }) if self.may_wait() => Ok(false),
            resized => resized.map(|()| true),
        }
    }

    /// True if the call may wait for the queue or for memory: its first block was submitted, and it makes progress.
    fn may_wait(&self) -> bool {
        let has_time = self.is_running() || clock::since(self.progress_at) < self.engine.limits().stall;
        self.terms.continues && has_time
    }

    /// Submits the block that waits, if there is one.
    pub(super) fn submit_again(&mut self) -> Result<()> {
        self.waiting.take().map_or(Ok(()), |block| self.submit(block))
    }

    fn try_submit(&mut self, block: &Code) -> Result<()> {
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(&self.terms.tenant));
        reserved.add_leaving_a_message(block_bytes(block))?;
        let events = self.engine.submit(Job::Code(block.clone()), self.terms.clone())?;
        self.terms.continues = true;
        self.progress_at = clock::now();
        self.running.push_back(RunningBlock { events, coded: None, _reserved: reserved });
        Ok(())
    }

    /// Waits for the result of the first block. May be called again after it was dropped.
    pub(super) async fn finished(&mut self) -> Result<Coded> {
        let lost = || Error::Internal("the engine dropped a block without a final event".into());
        let block = self.running.front_mut().ok_or_else(lost)?;
        let coded = loop {
            match block.events.recv().await.ok_or_else(lost)?? {
                Event::Coded(coded) => block.coded = Some(coded),
                Event::Finished { .. } => break block.coded.take().ok_or_else(lost)?,
                Event::Started { .. } | Event::Characters(_) | Event::Document(_) | Event::Next(_) => {}
            }
        };
        self.running.pop_front();
        self.progress_at = clock::now();
        Ok(coded)
    }
}

/// The memory of a call's input.
struct InputMemory {
    reserved: Reservation,
    bytes: usize,
}

impl InputMemory {
    fn new(reserved: Reservation) -> Self {
        Self { reserved, bytes: 0 }
    }

    /// Reserves or releases memory, so that `bytes` are reserved. Fails if the limit of all memory or of the tenant is exceeded.
    fn resize(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.bytes {
            self.reserved.check_leaving_a_message(bytes)?;
            self.reserved.add_leaving_a_message(bytes - self.bytes)?;
        } else {
            self.reserved.release(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

/// Returns the bytes of a block's symbols and data.
fn block_bytes(block: &Code) -> usize {
    match &block.input {
        CodeInput::Compress(symbols) => size_of_val(symbols.as_slice()),
        CodeInput::Decompress { symbols, data } => symbols.saturating_mul(size_of::<u32>()).saturating_add(data.len()),
    }
}
