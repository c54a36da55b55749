//! One call of the service `Codec`: reads the request, keeps several blocks in the engine, and sends their output in order.

use super::{
    codec_messages::{Messages, Output},
    codec_part::UnconvertedPart,
    document_upload::incomplete,
};
use crate::{
    decode::codec::{BlockStream, Coded},
    engine::{Event, Events, Job, Terms},
    error::{Error, Result},
    serve::{middleware::body_limits::RequestMemory, registry::engines::Lease},
};
use std::collections::VecDeque;
use tonic::Streaming;

/// Maximum blocks of one call in the engine.
const MAX_BLOCKS: usize = 16;
/// Maximum bytes of one message of the response.
const MESSAGE: usize = 1 << 16;

/// The request of a call, after its options.
pub(super) struct CodecCall<M: Messages> {
    parts: Streaming<M::Request>,
    /// Releases the memory of each part that has been converted.
    memory: Option<RequestMemory>,
    engine: Lease,
    terms: Terms,
    /// Blocks in the engine, in order.
    running: VecDeque<RunningBlock>,
}

/// A block in the engine.
struct RunningBlock {
    events: Events,
    coded: Option<Coded>,
}

impl<M: Messages> CodecCall<M> {
    pub(super) fn new(
        parts: Streaming<M::Request>,
        memory: Option<RequestMemory>,
        engine: Lease,
        terms: Terms,
    ) -> Self {
        Self { parts, memory, engine, terms, running: VecDeque::new() }
    }

    pub(super) fn engine(&self) -> Lease {
        self.engine.clone()
    }

    /// Runs the call to its end. Reads a part only when fewer than [`MAX_BLOCKS`] blocks are in the engine.
    pub(super) async fn run(mut self, mut stream: impl BlockStream, output: Output<M>) -> Result<()> {
        let max_blocks = self.engine.limits().rows.min(MAX_BLOCKS);
        let stall = self.engine.limits().stall;
        let mut ended = false;
        let mut unconverted = UnconvertedPart::default();
        loop {
            while self.running.len() < max_blocks {
                if let Some(block) = stream.next_block()? {
                    let events = self.engine.submit(Job::Code(block), self.terms.clone())?;
                    self.running.push_back(RunningBlock { events, coded: None });
                    continue;
                }
                if unconverted.is_empty() {
                    break;
                }
                unconverted.convert_slice(&mut stream).await?;
                if unconverted.is_empty() {
                    self.release_memory();
                }
            }
            let reads = !ended && unconverted.is_empty() && self.running.len() < max_blocks;
            tokio::select! {
                biased;
                coded = finished(self.running.front_mut()), if !self.running.is_empty() => {
                    self.running.pop_front();
                    let mut out = Vec::new();
                    stream.accept(coded?, &mut out)?;
                    send_all(&output, &out).await?;
                }
                part = self.parts.message(), if reads => match part.map_err(incomplete)? {
                    Some(part) => {
                        unconverted = M::bytes(part)?.into();
                        if unconverted.is_empty() {
                            self.release_memory();
                        }
                    }
                    None => {
                        stream.finish()?;
                        ended = true;
                    }
                },
                () = tokio::time::sleep(stall), if reads && self.running.is_empty() => {
                    return Err(Error::Deadline { stage: "while the request came in" });
                }
                else => break,
            }
        }
        let mut out = Vec::new();
        stream.end(&mut out)?;
        send_all(&output, &out).await?;
        let totals = stream.totals();
        tracing::info!(chars = totals.symbols, compressed_bytes = totals.compressed_bytes, "coded");
        output.send(M::summary(totals)).await
    }

    fn release_memory(&self) {
        if let Some(memory) = &self.memory {
            memory.release();
        }
    }
}

async fn send_all<M: Messages>(output: &Output<M>, bytes: &[u8]) -> Result<()> {
    for piece in bytes.chunks(MESSAGE) {
        output.send(M::output(piece.to_vec())).await?;
    }
    Ok(())
}

/// Waits for the end of a block. May be called again after it was dropped.
async fn finished(block: Option<&mut RunningBlock>) -> Result<Coded> {
    let lost = || Error::Internal("the engine dropped a block without a final event".into());
    let RunningBlock { events, coded } = block.ok_or_else(lost)?;
    loop {
        match events.recv().await.ok_or_else(lost)?? {
            Event::Coded(block) => *coded = Some(block),
            Event::Finished { .. } => return coded.take().ok_or_else(lost),
            Event::Started { .. } | Event::Characters(_) | Event::Document(_) => {}
        }
    }
}
