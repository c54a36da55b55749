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
use tokio_stream::StreamExt;
use tonic::{Request, Streaming, codegen::Bytes};
use weir_engine::{
    Event, Events, Job, Terms, clock,
    codec::{BlockStream, Code, CodeInput, Coded, CodingProgress, Compressor, Decompressor, Totals},
};
use weir_kernels::error::{Error, Result};
use weir_models::contract::Card;
use weir_proto::{
    CodecEvent,
    v1::{self, codec_server, compress_request, decompress_request},
};

/// A part of a request.
pub(crate) enum CodecPart<O> {
    Options(O),
    Bytes(Vec<u8>),
}

/// A request message of `Compress` or `Decompress`.
pub(crate) trait CodecRequest: Send + 'static {
    type Options: Send + 'static;

    /// Names the allowed parts, for errors.
    const PARTS: &'static str;

    fn part(self) -> Option<CodecPart<Self::Options>>;

    /// Returns the model, the priority, and true if the client wants progress.
    fn terms(options: &Self::Options) -> (Option<&str>, Option<i32>, bool);

    fn stream<'a>(options: &Self::Options, card: &'a Card) -> Result<Box<dyn BlockStream + 'a>>;
}

impl CodecRequest for v1::CompressRequest {
    type Options = v1::CompressOptions;

    const PARTS: &'static str = "options or text";

    fn part(self) -> Option<CodecPart<v1::CompressOptions>> {
        self.part.map(|part| match part {
            compress_request::Part::Options(options) => CodecPart::Options(options),
            compress_request::Part::Text(text) => CodecPart::Bytes(text),
        })
    }

    fn terms(options: &v1::CompressOptions) -> (Option<&str>, Option<i32>, bool) {
        (options.model.as_deref(), options.priority, options.progress())
    }

    fn stream<'a>(options: &v1::CompressOptions, card: &'a Card) -> Result<Box<dyn BlockStream + 'a>> {
        Ok(Box::new(Compressor::new(card, convert::compress_options(options, card))?))
    }
}

impl CodecRequest for v1::DecompressRequest {
    type Options = v1::DecompressOptions;

    const PARTS: &'static str = "options or data";

    fn part(self) -> Option<CodecPart<v1::DecompressOptions>> {
        self.part.map(|part| match part {
            decompress_request::Part::Options(options) => CodecPart::Options(options),
            decompress_request::Part::Data(data) => CodecPart::Bytes(data),
        })
    }

    fn terms(options: &v1::DecompressOptions) -> (Option<&str>, Option<i32>, bool) {
        (options.model.as_deref(), options.priority, options.progress())
    }

    fn stream<'a>(_: &v1::DecompressOptions, card: &'a Card) -> Result<Box<dyn BlockStream + 'a>> {
        Ok(Box::new(Decompressor::new(card)?))
    }
}

impl JobService {
    /// Starts to compress or to decompress. Fails if the model summarizes.
    pub(crate) async fn start_code<R: CodecRequest>(
        &self,
        mut parts: RequestParts<R>,
        call: Call,
    ) -> Result<TaskResponse<CodecEvent>> {
        let permit = self.gate.enter()?;
        let Some(CodecPart::Options(options)) = parts.next().await?.and_then(R::part) else {
            return Err(no_options());
        };
        let (model, priority, reports_progress) = R::terms(&options);
        let engine = self.engines.find_able("model", model, continues_text)?;
        let card = engine.card();
        if !continues_text(&engine) {
            return Err(Error::only_summarizes(&card.name, "reads texts symbol by symbol", &card.shape));
        }
        // created here too, so that a call that cannot succeed fails before its response
        R::stream(&options, card)?;
        let mut blocks = CodecBlocks::new(engine.clone(), terms(&call, priority), Arc::clone(&self.memory));
        blocks.reports_progress = reports_progress;
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call.deadline, stall, move |output| async move {
            run(parts, blocks, &mut *R::stream(&options, engine.card())?, output).await
        }))
    }

    /// Answers a gRPC call.
    async fn code<R: CodecRequest, T: From<CodecEvent> + Send + 'static>(
        &self,
        request: Request<Streaming<R>>,
    ) -> Reply<GrpcStream<T>> {
        let call = Call::of(&request);
        let outputs = self.start_code(RequestParts::of(request), call.clone()).await;
        let messages = outputs.map(|outputs| outputs.map(|output| output.map(T::from)));
        reply(&call, messages, usize::from(self.late_headers)).await
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
        self.code(request).await
    }

    async fn decompress(&self, request: Request<Streaming<v1::DecompressRequest>>) -> Reply<Self::DecompressStream> {
        self.code(request).await
    }
}

/// Maximum bytes of one message of the response.
const MESSAGE_BYTES: usize = 1 << 16;

/// Runs the call to its end. Reads a part only when the engine takes blocks.
async fn run<R: CodecRequest>(
    mut parts: RequestParts<R>,
    mut blocks: CodecBlocks,
    stream: &mut dyn BlockStream,
    output: Output<CodecEvent>,
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
            unconverted.convert_slice(stream).await?;
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
                BlockEvent::Coding(progress) => output.send(CodecEvent::Progress(progress)).await?,
                BlockEvent::Coded(coded) => {
                    let mut out = Vec::new();
                    stream.accept(coded, &mut out)?;
                    send_all(&output, &out).await?;
                }
            },
            part = parts.next(), if reads => match part? {
                Some(part) => {
                    let bytes = match part.part() {
                        Some(CodecPart::Bytes(bytes)) => bytes,
                        Some(CodecPart::Options(_)) => return Err(second_options()),
                        None => return Err(Error::bad_option("part", "nothing", R::PARTS)),
                    };
                    unconverted = UnconvertedPart(bytes.into());
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
    send_all(&output, &out).await?;
    let totals = stream.totals();
    tracing::debug!(chars = totals.symbols, compressed_bytes = totals.compressed_bytes, "coded");
    output.send(CodecEvent::Summary(summary(totals))).await
}

async fn send_all(output: &Output<CodecEvent>, bytes: &[u8]) -> Result<()> {
    for piece in bytes.chunks(MESSAGE_BYTES) {
        output.send(CodecEvent::Output(piece.to_vec())).await?;
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
    async fn convert_slice(&mut self, stream: &mut dyn BlockStream) -> Result<()> {
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
