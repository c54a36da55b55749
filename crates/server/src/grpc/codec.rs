//! The service `Codec`: compresses and decompresses texts that arrive in parts.

use crate::{
    call::{Call, Reply},
    grpc::{
        convert,
        generation::{JobService, terms},
        request_parts::RequestParts,
        response::{GrpcStream, Output, TaskResponse, reply},
    },
    middleware::limits::{BodyMemory, Reservation},
    registry::{Lease, continues_text},
};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{task::yield_now, time::sleep};
use tonic::{Request, Streaming, codegen::Bytes};
use weir_engine::{
    Event, Events, Job, Terms, clock,
    codec::{BlockStream, Code, CodeInput, Coded, CodingProgress, Compressor, Decompressor, Totals},
};
use weir_kernels::error::{Error, Result};
use weir_proto::v1::{
    self, codec_server, compress_request, compress_response, decompress_request, decompress_response,
};

/// The messages of `Compress`.
pub(crate) struct Compress;

/// The messages of `Decompress`.
pub(crate) struct Decompress;

impl Messages for Compress {
    type Request = v1::CompressRequest;
    type Response = v1::CompressResponse;

    fn bytes(request: v1::CompressRequest) -> Result<Vec<u8>> {
        match request.part {
            Some(compress_request::Part::Text(text)) => Ok(text),
            Some(compress_request::Part::Options(_)) => Err(second_options()),
            None => Err(Error::bad_option("part", "nothing", "options or text")),
        }
    }

    fn output(bytes: Vec<u8>) -> v1::CompressResponse {
        v1::CompressResponse { event: Some(compress_response::Event::Data(bytes)) }
    }

    fn progress(progress: v1::CodecProgress) -> v1::CompressResponse {
        v1::CompressResponse { event: Some(compress_response::Event::Progress(progress)) }
    }

    fn summary(totals: Totals) -> v1::CompressResponse {
        v1::CompressResponse { event: Some(compress_response::Event::Summary(summary(totals))) }
    }
}

impl Messages for Decompress {
    type Request = v1::DecompressRequest;
    type Response = v1::DecompressResponse;

    fn bytes(request: v1::DecompressRequest) -> Result<Vec<u8>> {
        match request.part {
            Some(decompress_request::Part::Data(data)) => Ok(data),
            Some(decompress_request::Part::Options(_)) => Err(second_options()),
            None => Err(Error::bad_option("part", "nothing", "options or data")),
        }
    }

    fn output(bytes: Vec<u8>) -> v1::DecompressResponse {
        v1::DecompressResponse { event: Some(decompress_response::Event::Text(bytes)) }
    }

    fn progress(progress: v1::CodecProgress) -> v1::DecompressResponse {
        v1::DecompressResponse { event: Some(decompress_response::Event::Progress(progress)) }
    }

    fn summary(totals: Totals) -> v1::DecompressResponse {
        v1::DecompressResponse { event: Some(decompress_response::Event::Summary(summary(totals))) }
    }
}

impl JobService {
    pub(crate) async fn start_compress(
        &self,
        mut parts: RequestParts<v1::CompressRequest>,
        call: Call,
    ) -> Result<TaskResponse<v1::CompressResponse>> {
        let permit = self.gate.enter()?;
        let Some(compress_request::Part::Options(options)) = parts.next().await?.and_then(|first| first.part) else {
            return Err(no_options());
        };
        let mut blocks = self.codec_blocks(options.model.as_deref(), &call, options.priority)?;
        blocks.reports_progress = options.progress();
        let engine = blocks.engine.clone();
        let options = convert::compress_options(&options, engine.card());
        // created here too, so that a call that cannot succeed fails before its response
        Compressor::new(engine.card(), options)?;
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call.deadline, stall, move |output| async move {
            run::<Compress>(parts, blocks, Compressor::new(engine.card(), options)?, output).await
        }))
    }

    pub(crate) async fn start_decompress(
        &self,
        mut parts: RequestParts<v1::DecompressRequest>,
        call: Call,
    ) -> Result<TaskResponse<v1::DecompressResponse>> {
        let permit = self.gate.enter()?;
        let Some(decompress_request::Part::Options(options)) = parts.next().await?.and_then(|first| first.part) else {
            return Err(no_options());
        };
        let mut blocks = self.codec_blocks(options.model.as_deref(), &call, options.priority)?;
        blocks.reports_progress = options.progress();
        let engine = blocks.engine.clone();
        Decompressor::new(engine.card())?;
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call.deadline, stall, move |output| async move {
            run::<Decompress>(parts, blocks, Decompressor::new(engine.card())?, output).await
        }))
    }

    /// Returns the blocks of a call, with the model's engine. Fails if the model summarizes.
    fn codec_blocks(&self, model: Option<&str>, call: &Call, priority: Option<i32>) -> Result<CodecBlocks> {
        let engine = self.engines.find_able("model", model, continues_text)?;
        if !continues_text(&engine) {
            let card = engine.card();
            return Err(Error::only_summarizes(&card.name, "reads texts symbol by symbol", &card.shape));
        }
        Ok(CodecBlocks::new(engine, terms(call, priority), Arc::clone(&self.memory)))
    }
}

fn no_options() -> Error {
    Error::bad_option("options", "none", "options in the first part of the request")
}

fn second_options() -> Error {
    Error::bad_option("options", "another message of options", "options in the first part only")
}

fn summary(totals: Totals) -> v1::CodecSummary {
    v1::CodecSummary {
        text_bytes: totals.text_bytes,
        chars: totals.symbols,
        compressed_bytes: totals.compressed_bytes,
        blocks: totals.blocks,
        bits_per_char: totals.bits_per_symbol(),
    }
}

#[tonic::async_trait]
impl codec_server::Codec for JobService {
    type CompressStream = GrpcStream<v1::CompressResponse>;
    type DecompressStream = GrpcStream<v1::DecompressResponse>;

    async fn compress(&self, request: Request<Streaming<v1::CompressRequest>>) -> Reply<Self::CompressStream> {
        let call = Call::of(&request);
        let response = self.start_compress(RequestParts::of(request), call.clone()).await;
        reply(&call, response, usize::from(self.late_headers)).await
    }

    async fn decompress(&self, request: Request<Streaming<v1::DecompressRequest>>) -> Reply<Self::DecompressStream> {
        let call = Call::of(&request);
        let response = self.start_decompress(RequestParts::of(request), call.clone()).await;
        reply(&call, response, usize::from(self.late_headers)).await
    }
}

/// Maximum bytes of one message of the response.
const MESSAGE_BYTES: usize = 1 << 16;

/// Runs the call to its end. Reads a part only when the engine takes blocks.
async fn run<M: Messages>(
    mut parts: RequestParts<M::Request>,
    mut blocks: CodecBlocks,
    mut stream: impl BlockStream,
    output: Output<M::Response>,
) -> Result<()> {
    let stall = blocks.engine.limits().stall;
    let mut ended = false;
    let mut unconverted = UnconvertedPart::default();
    loop {
        let mut lacks_memory = false;
        blocks.submit_again()?;
        while blocks.takes_blocks() {
            if let Some(block) = stream.next_block()? {
                // releases what was held for the block, which its submission reserves
                blocks.hold_input(stream.input_bytes(0))?;
                blocks.submit(block)?;
                continue;
            }
            let is_held = blocks.hold_input(stream.input_bytes(unconverted.slice_len()))?;
            if unconverted.is_empty() {
                break;
            }
            lacks_memory = !is_held;
            if lacks_memory {
                break;
            }
            unconverted.convert_slice(&mut stream).await?;
            if unconverted.is_empty() {
                parts.release();
            }
        }
        let reads = !ended && unconverted.is_empty() && blocks.takes_blocks();
        let is_running = blocks.is_running();
        let is_waiting = blocks.is_waiting() || lacks_memory;
        tokio::select! {
            biased;
            advanced = blocks.advanced(), if is_running => match advanced? {
                BlockEvent::Coding(progress) => output.send(M::progress(progress)).await?,
                BlockEvent::Coded(coded) => {
                    let mut out = Vec::new();
                    stream.accept(coded, &mut out)?;
                    send_all::<M>(&output, &out).await?;
                }
            },
            part = parts.next(), if reads => match part? {
                Some(part) => {
                    unconverted = UnconvertedPart(M::bytes(part)?.into());
                    if unconverted.is_empty() {
                        parts.release();
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

async fn send_all<M: Messages>(output: &Output<M::Response>, bytes: &[u8]) -> Result<()> {
    for piece in bytes.chunks(MESSAGE_BYTES) {
        output.send(M::output(piece.to_vec())).await?;
    }
    Ok(())
}

/// Maximum blocks of one call in the engine.
const MAX_BLOCKS: usize = 16;

/// How long a call waits before it asks again for a place in the queue, or for memory.
pub(super) const QUEUE_RETRY: Duration = Duration::from_millis(50);

/// Submits the blocks of a call, and returns their results in order.
struct CodecBlocks {
    engine: Lease,
    terms: Terms,
    memory: Arc<BodyMemory>,
    max_blocks: usize,
    /// The memory of the input that is in no block yet, and of the block that waits.
    input: Reservation,
    /// Bytes of it.
    input_bytes: usize,
    /// Blocks in the engine, in order.
    running: VecDeque<RunningBlock>,
    /// Blocks that have ended.
    ended: u64,
    /// True if the client requested progress.
    reports_progress: bool,
    /// The next block, if the queue or the memory of requests was full.
    waiting: Option<Code>,
    /// Time at which the last block was submitted, or ended.
    progress_at: Instant,
}

/// An event of the first block of a call.
enum BlockEvent {
    Coding(v1::CodecProgress),
    Coded(Coded),
}

/// A block in the engine.
struct RunningBlock {
    events: Events,
    coded: Option<Coded>,
    /// The memory of its symbols and data.
    _reserved: Reservation,
}

impl CodecBlocks {
    /// Creates the blocks of a call. Their symbols and data count in `memory`.
    fn new(engine: Lease, terms: Terms, memory: Arc<BodyMemory>) -> Self {
        let max_blocks = engine.limits().rows.min(MAX_BLOCKS);
        let input = Reservation::new(Arc::clone(&memory), Arc::clone(&terms.tenant));
        Self {
            engine,
            terms,
            memory,
            max_blocks,
            input,
            input_bytes: 0,
            running: VecDeque::new(),
            ended: 0,
            reports_progress: false,
            waiting: None,
            progress_at: clock::now(),
        }
    }

    /// Returns true if another block may be submitted.
    fn takes_blocks(&self) -> bool {
        self.waiting.is_none() && self.running.len() < self.max_blocks
    }

    /// Returns true if a block waits for the queue.
    fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns true if blocks are in the engine.
    fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Submits a block. The first block of a call fails with [`Error::QueueFull`] if the queue is full. A later one waits, but fails
    /// too after the stall limit without any progress.
    fn submit(&mut self, block: Code) -> Result<()> {
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
    fn hold_input(&mut self, bytes: usize) -> Result<bool> {
        match self.resize_input(bytes) {
            Err(Error::QueueFull { .. }) if self.may_wait() => Ok(false),
            resized => resized.map(|()| true),
        }
    }

    fn resize_input(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.input_bytes {
            self.input.check_leaving_a_message(bytes)?;
            self.input.add_leaving_a_message(bytes - self.input_bytes)?;
        } else {
            self.input.release(self.input_bytes - bytes);
        }
        self.input_bytes = bytes;
        Ok(())
    }

    /// True if the call may wait for the queue or for memory: its first block was submitted, and it makes progress.
    fn may_wait(&self) -> bool {
        let has_time = self.is_running() || clock::since(self.progress_at) < self.engine.limits().stall;
        self.terms.continues && has_time
    }

    /// Submits the block that waits, if there is one.
    fn submit_again(&mut self) -> Result<()> {
        self.waiting.take().map_or(Ok(()), |block| self.submit(block))
    }

    fn try_submit(&mut self, block: &Code) -> Result<()> {
        let block = Code { progress: self.reports_progress, ..block.clone() };
        let reserved = Reservation::new(Arc::clone(&self.memory), Arc::clone(&self.terms.tenant));
        reserved.add_leaving_a_message(block_bytes(&block))?;
        let events = self.engine.submit(Job::Code(block), self.terms.clone())?;
        self.terms.continues = true;
        self.progress_at = clock::now();
        self.running.push_back(RunningBlock { events, coded: None, _reserved: reserved });
        Ok(())
    }

    /// Waits for the result of the first block, or for its progress if the client wants it. May be called again after it was dropped.
    async fn advanced(&mut self) -> Result<BlockEvent> {
        let lost = || Error::Internal("the engine dropped a block without a final event".into());
        let block = self.running.front_mut().ok_or_else(lost)?;
        let coded = loop {
            match block.events.recv().await.ok_or_else(lost)?? {
                Event::Coded(coded) => block.coded = Some(coded),
                Event::Coding(progress) => {
                    let CodingProgress { symbols, bits } = progress;
                    let progress = v1::CodecProgress { block: self.ended, chars: symbols as u64, bits };
                    return Ok(BlockEvent::Coding(progress));
                }
                Event::Finished { .. } => break block.coded.take().ok_or_else(lost)?,
                Event::Started { .. } | Event::Characters(_) | Event::Document(_) | Event::Next(_) => {}
            }
        };
        self.running.pop_front();
        self.ended += 1;
        self.progress_at = clock::now();
        Ok(BlockEvent::Coded(coded))
    }
}

/// Returns the bytes of a block's symbols and data.
fn block_bytes(block: &Code) -> usize {
    match &block.input {
        CodeInput::Compress(symbols) => size_of_val(symbols.as_slice()),
        CodeInput::Decompress { symbols, data } => symbols.saturating_mul(size_of::<u32>()).saturating_add(data.len()),
    }
}

/// The messages of a method.
pub(crate) trait Messages: Send + 'static {
    /// The message type of the request.
    type Request: Send + 'static;
    /// The message type of the response.
    type Response: Unpin + Send + 'static;

    /// Returns the bytes of a part after the options. Fails for any other part.
    fn bytes(request: Self::Request) -> Result<Vec<u8>>;

    fn output(bytes: Vec<u8>) -> Self::Response;

    fn progress(progress: v1::CodecProgress) -> Self::Response;

    /// Creates the last message.
    fn summary(totals: Totals) -> Self::Response;
}

/// Bytes that are converted at a time.
const SLICE_BYTES: usize = 16 << 10;

/// The bytes of a part that are not converted yet.
#[derive(Default)]
struct UnconvertedPart(Bytes);

impl UnconvertedPart {
    /// True once the whole part is converted.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes that [`convert_slice`](Self::convert_slice) converts next.
    fn slice_len(&self) -> usize {
        self.0.len().min(SLICE_BYTES)
    }

    /// Converts the next bytes, and lets other tasks of the thread run afterwards.
    async fn convert_slice(&mut self, stream: &mut impl BlockStream) -> Result<()> {
        let slice = self.0.split_to(self.slice_len());
        let converted = stream.push(&slice);
        yield_now().await;
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };
    use weir_engine::codec::{Code, Coded, Totals};

    /// A stream that records the length of each push, and how often another task had run by then.
    #[derive(Default)]
    struct Pushes {
        runs: Arc<AtomicUsize>,
        pushes: Vec<(usize, usize)>,
    }

    impl BlockStream for Pushes {
        fn push(&mut self, bytes: &[u8]) -> Result<()> {
            self.pushes.push((bytes.len(), self.runs.load(Relaxed)));
            Ok(())
        }

        fn finish(&mut self) -> Result<()> {
            Ok(())
        }

        fn input_bytes(&self, _: usize) -> usize {
            0
        }

        fn next_block(&mut self) -> Result<Option<Code>> {
            Ok(None)
        }

        fn accept(&mut self, _: Coded, _: &mut Vec<u8>) -> Result<()> {
            Ok(())
        }

        fn end(&mut self, _: &mut Vec<u8>) -> Result<()> {
            Ok(())
        }

        fn totals(&self) -> Totals {
            Totals::default()
        }
    }

    #[tokio::test]
    async fn other_tasks_run_between_slices() {
        let mut stream = Pushes::default();
        let runs = Arc::clone(&stream.runs);
        let other = tokio::spawn(async move {
            loop {
                runs.fetch_add(1, Relaxed);
                yield_now().await;
            }
        });
        let mut part = UnconvertedPart(vec![7; 1 << 20].into());
        while !part.is_empty() {
            part.convert_slice(&mut stream).await.unwrap();
        }
        other.abort();
        let total: usize = stream.pushes.iter().map(|(length, _)| length).sum();
        assert_eq!(total, 1 << 20);
        assert!(stream.pushes.iter().all(|(length, _)| *length <= SLICE_BYTES), "{:?}", stream.pushes);
        assert!(stream.pushes.windows(2).all(|pair| pair[0].1 < pair[1].1), "{:?}", stream.pushes);
    }
}
