//! One call of the service `Codec`: reads the request, keeps several blocks in the engine, and sends their output in order.

use super::{
    codec_engine::{CodecEngine, QUEUE_RETRY},
    codec_messages::Messages,
    codec_part::UnconvertedPart,
    request_parts::RequestParts,
    task_response::Output,
};
use crate::{
    decode::codec::BlockStream,
    error::{Error, Result},
    serve::registry::engines::Lease,
};
use tokio::time::sleep;

/// Maximum bytes of one message of the response.
const MESSAGE: usize = 1 << 16;

/// The request of a call, after its options.
pub(super) struct CodecCall<M: Messages> {
    parts: RequestParts<M::Request>,
    blocks: CodecEngine,
}

impl<M: Messages> CodecCall<M> {
    pub(super) fn new(parts: RequestParts<M::Request>, blocks: CodecEngine) -> Self {
        Self { parts, blocks }
    }

    pub(super) fn engine(&self) -> Lease {
        self.blocks.lease().clone()
    }

    /// Runs the call to its end. Reads a part only when the engine takes blocks.
    pub(super) async fn run(mut self, mut stream: impl BlockStream, output: Output<M::Response>) -> Result<()> {
        let stall = self.blocks.lease().limits().stall;
        let mut ended = false;
        let mut unconverted = UnconvertedPart::default();
        loop {
            let mut lacks_memory = false;
            self.blocks.submit_again()?;
            while self.blocks.takes_blocks() {
                if let Some(block) = stream.next_block()? {
                    // releases what was held for the block, which its submission reserves
                    self.blocks.hold_input(stream.input_bytes(0))?;
                    self.blocks.submit(block)?;
                    continue;
                }
                let is_held = self.blocks.hold_input(stream.input_bytes(unconverted.slice_len()))?;
                if unconverted.is_empty() {
                    break;
                }
                lacks_memory = !is_held;
                if lacks_memory {
                    break;
                }
                unconverted.convert_slice(&mut stream).await?;
                if unconverted.is_empty() {
                    self.parts.release();
                }
            }
            let reads = !ended && unconverted.is_empty() && self.blocks.takes_blocks();
            let is_running = self.blocks.is_running();
            let is_waiting = self.blocks.is_waiting() || lacks_memory;
            tokio::select! {
                biased;
                coded = self.blocks.finished(), if is_running => {
                    let mut out = Vec::new();
                    stream.accept(coded?, &mut out)?;
                    send_all::<M>(&output, &out).await?;
                }
                part = self.parts.next(), if reads => match part? {
                    Some(part) => {
                        unconverted = M::bytes(part)?.into();
                        if unconverted.is_empty() {
                            self.parts.release();
                        }
                    }
                    None => {
                        stream.finish()?;
                        ended = true;
                    }
                },
                () = sleep(QUEUE_RETRY), if is_waiting => {}
                () = sleep(stall), if reads && !is_running => {
                    return Err(Error::Deadline { stage: "while the request came in" });
                }
                else => break,
            }
        }
        let mut out = Vec::new();
        stream.end(&mut out)?;
        send_all::<M>(&output, &out).await?;
        let totals = stream.totals();
        tracing::debug!(chars = totals.symbols, compressed_bytes = totals.compressed_bytes, "coded");
        output.send(M::summary(totals)).await
    }
}

async fn send_all<M: Messages>(output: &Output<M::Response>, bytes: &[u8]) -> Result<()> {
    for piece in bytes.chunks(MESSAGE) {
        output.send(M::output(piece.to_vec())).await?;
    }
    Ok(())
}
