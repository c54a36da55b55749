//! The service `Codec`: compresses and decompresses texts that arrive in parts.

use crate::{
    call::{Call, Reply},
    grpc::{
        convert::{self, nanoseconds},
        generation::{Buffered, JobService, Output, TaskResponse, buffered, reject, terms},
        request_parts::RequestParts,
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
use tonic::{Request, Response, Streaming, codegen::Bytes};
use weir_engine::{
    Event, Events, Job, Terms, clock,
    codec::{BlockStream, Code, CodeInput, Coded, Compressor, Decompressor, Totals},
    summary::{SummaryResult, TextPart},
};
use weir_kernels::error::{Error, Result};
use weir_models::usage::{Timing, Usage};
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

    fn summary(totals: Totals) -> v1::DecompressResponse {
        v1::DecompressResponse { event: Some(decompress_response::Event::Summary(summary(totals))) }
    }
}

impl JobService {
    async fn start_compress(
        &self,
        mut parts: RequestParts<v1::CompressRequest>,
        call: Call,
    ) -> Result<TaskResponse<v1::CompressResponse>> {
        let permit = self.gate.enter()?;
        let Some(compress_request::Part::Options(options)) = parts.next().await?.and_then(|first| first.part) else {
            return Err(no_options());
        };
        let codec =
            self.codec_call::<Compress>("Compress", options.model.as_deref(), parts, &call, options.priority)?;
        let engine = codec.engine();
        let options = convert::compress_options(&options, engine.card());
        // created here too, so that a call that cannot succeed fails before its response
        Compressor::new(engine.card(), options)?;
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call, stall, move |output| async move {
            codec.run(Compressor::new(engine.card(), options)?, output).await
        }))
    }

    async fn start_decompress(
        &self,
        mut parts: RequestParts<v1::DecompressRequest>,
        call: Call,
    ) -> Result<TaskResponse<v1::DecompressResponse>> {
        let permit = self.gate.enter()?;
        let Some(decompress_request::Part::Options(options)) = parts.next().await?.and_then(|first| first.part) else {
            return Err(no_options());
        };
        let codec =
            self.codec_call::<Decompress>("Decompress", options.model.as_deref(), parts, &call, options.priority)?;
        let engine = codec.engine();
        Decompressor::new(engine.card())?;
        let stall = engine.limits().stall;
        Ok(TaskResponse::spawn([permit, self.gate.enter()?], call, stall, move |output| async move {
            codec.run(Decompressor::new(engine.card())?, output).await
        }))
    }

    /// Finds the model for a call of this method. Fails if it summarizes.
    fn codec_call<M: Messages>(
        &self,
        method: &'static str,
        model: Option<&str>,
        parts: RequestParts<M::Request>,
        call: &Call,
        priority: Option<i32>,
    ) -> Result<CodecCall<M>> {
        let engine = self.engines.find_able("model", model, continues_text)?;
        takes_texts(method, &engine)?;
        Ok(CodecCall::new(parts, CodecEngine::new(engine, terms(call, priority), Arc::clone(&self.memory))))
    }
}

/// Rejects a model that summarizes.
fn takes_texts(call: &'static str, engine: &Lease) -> Result<()> {
    if continues_text(engine) {
        return Ok(());
    }
    let card = engine.card();
    let found = format!("a model that summarizes (use Summarize): {}", card.shape);
    Err(Error::WrongKind { call, model: card.name.clone(), wanted: "reads texts symbol by symbol", found })
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
    type CompressStream = Buffered<TaskResponse<v1::CompressResponse>>;
    type DecompressStream = Buffered<TaskResponse<v1::DecompressResponse>>;

    async fn compress(&self, request: Request<Streaming<v1::CompressRequest>>) -> Reply<Self::CompressStream> {
        let call = Call::of(&request);
        let response = self.start_compress(RequestParts::of(request), call.clone()).await;
        buffered(response.map_err(reject(&call))?, usize::from(self.late_headers)).await.map(Response::new)
    }

    async fn decompress(&self, request: Request<Streaming<v1::DecompressRequest>>) -> Reply<Self::DecompressStream> {
        let call = Call::of(&request);
        let response = self.start_decompress(RequestParts::of(request), call.clone()).await;
        buffered(response.map_err(reject(&call))?, usize::from(self.late_headers)).await.map(Response::new)
    }
}

// One call of the service `Codec`: reads the request, keeps several blocks in the engine, and sends their output in order.

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

// The blocks of one call of the service `Codec` that are in the engine.

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

// The messages of the service `Codec`.

/// The messages of a method.
pub(crate) trait Messages: Send + 'static {
    /// The message type of the request.
    type Request: Send + 'static;
    /// The message type of the response.
    type Response: Unpin + Send + 'static;

    /// Returns the bytes of a part after the options. Fails for any other part.
    fn bytes(request: Self::Request) -> Result<Vec<u8>>;

    /// Creates a message with output.
    fn output(bytes: Vec<u8>) -> Self::Response;

    /// Creates the last message.
    fn summary(totals: Totals) -> Self::Response;
}

// A part of the input of the service `Codec`, which is converted in slices.

/// Bytes that are converted at a time.
const SLICE: usize = 16 << 10;

/// The bytes of a part that are not converted yet.
#[derive(Default)]
pub(super) struct UnconvertedPart(Bytes);

impl From<Vec<u8>> for UnconvertedPart {
    fn from(part: Vec<u8>) -> Self {
        Self(part.into())
    }
}

impl UnconvertedPart {
    /// True once the whole part is converted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes that [`convert_slice`](Self::convert_slice) converts next.
    pub(super) fn slice_len(&self) -> usize {
        self.0.len().min(SLICE)
    }

    /// Converts the next bytes, and lets other tasks of the thread run afterwards.
    pub(super) async fn convert_slice(&mut self, stream: &mut impl BlockStream) -> Result<()> {
        let slice = self.0.split_to(self.slice_len());
        let converted = stream.push(&slice);
        yield_now().await;
        converted
    }
}

// The usage and the timing of a document that is summarized in parts: sums over the jobs of its parts and of the last round.

/// Sums over the jobs of one call.
#[derive(Default)]
pub(super) struct PartTotals {
    /// Time from the call's arrival to the end of its upload.
    upload: Duration,
    /// Bytes of the document up to the end of its last part, if it has parts.
    document_bytes: Option<u64>,
    timing: v1::SummaryTiming,
    /// Decoder steps.
    steps: u64,
    job_usage: Usage,
    job_timing: Timing,
}

impl PartTotals {
    /// Begins with a document whose upload took this long.
    pub(super) fn new(upload: Duration) -> Self {
        Self { upload, ..Self::default() }
    }

    /// Adds a job.
    pub(super) fn add(&mut self, finished: &v1::SummaryFinished, result: &SummaryResult) {
        let SummaryResult { usage, timing: job_timing, .. } = result;
        self.job_usage.prompt_chars += usage.prompt_chars;
        self.job_usage.cached_chars += usage.cached_chars;
        self.job_usage.generated_chars += usage.generated_chars;
        self.job_timing.queue_ns += job_timing.queue_ns;
        self.job_timing.prefill_ns += job_timing.prefill_ns;
        self.job_timing.decode_ns += job_timing.decode_ns;
        self.job_timing.total_ns += job_timing.total_ns;
        self.job_timing.steps += job_timing.steps;
        self.steps += (usage.generated_chars as u64).saturating_sub(1);
        let Some(timing) = &finished.timing else { return };
        self.timing.queue_ns += timing.queue_ns;
        self.timing.encode_rest_ns += timing.encode_rest_ns;
        self.timing.blocks_at_end += timing.blocks_at_end;
        self.timing.blocks += timing.blocks;
        self.timing.memory_ns += timing.memory_ns;
        self.timing.encode_ns += timing.encode_ns;
        self.timing.decode_ns += timing.decode_ns;
        self.timing.layers.resize(timing.layers.len().max(self.timing.layers.len()), v1::EncoderLayer::default());
        for (sum, layer) in self.timing.layers.iter_mut().zip(&timing.layers) {
            sum.length += layer.length;
            sum.ns += layer.ns;
        }
    }

    /// Records where a part of the first round ends.
    pub(super) fn add_part(&mut self, part: &TextPart) {
        if part.round == 1 {
            self.document_bytes = Some(part.end);
        }
    }

    /// Returns the sums as the engine counts them.
    pub(super) fn of_jobs(&self) -> (&Usage, &Timing) {
        (&self.job_usage, &self.job_timing)
    }

    /// Returns the last message of the call: that of the last job, with the parts and the sums. The job was submitted `submitted`
    /// after the call's arrival, which is `total` ago.
    pub(super) fn finish(
        self,
        last: v1::SummaryFinished,
        parts: Vec<v1::SummaryPart>,
        submitted: Duration,
        total: Duration,
    ) -> v1::SummaryFinished {
        let usage = last.usage.unwrap_or_default();
        let timing = last.timing.unwrap_or_default();
        v1::SummaryFinished {
            // An id of the last round's text is not one of the document.
            document_id: last.document_id.filter(|_| parts.is_empty()),
            usage: Some(v1::SummaryUsage {
                document_tokens: self.job_usage.prompt_chars as u64,
                cached_tokens: self.job_usage.cached_chars as u64,
                summary_tokens: self.job_usage.generated_chars as u64,
                document_bytes: self.document_bytes.or(usage.document_bytes),
                ..usage
            }),
            timing: Some(v1::SummaryTiming {
                upload_ns: nanoseconds(self.upload),
                time_to_first_token_ns: nanoseconds(submitted).saturating_add(timing.time_to_first_token_ns),
                decode_ns_per_token: self.timing.decode_ns.checked_div(self.steps),
                total_ns: nanoseconds(total),
                kept_share: timing.kept_share,
                cross_attention_bytes: timing.cross_attention_bytes,
                unpooled_cross_attention_bytes: timing.unpooled_cross_attention_bytes,
                ..self.timing
            }),
            parts,
            ..last
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };
    use weir_engine::{
        codec::{Code, Coded, Totals},
        options::FinishReason,
    };

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
        let mut part = UnconvertedPart::from(vec![7; 1 << 20]);
        while !part.is_empty() {
            part.convert_slice(&mut stream).await.unwrap();
        }
        other.abort();
        let total: usize = stream.pushes.iter().map(|(length, _)| length).sum();
        assert_eq!(total, 1 << 20);
        assert!(stream.pushes.iter().all(|(length, _)| *length <= SLICE), "{:?}", stream.pushes);
        assert!(stream.pushes.windows(2).all(|pair| pair[0].1 < pair[1].1), "{:?}", stream.pushes);
    }

    #[test]
    fn jobs_are_added() {
        let job = |tokens: usize, generated: usize| {
            let layers = vec![v1::EncoderLayer { length: tokens as u64, ns: 5 }; 2];
            let timing = v1::SummaryTiming {
                queue_ns: 1,
                decode_ns: 12,
                time_to_first_token_ns: 7,
                encode_ns: 11,
                kept_share: Some(tokens as f64 / 8.0),
                cross_attention_bytes: 13,
                unpooled_cross_attention_bytes: 17,
                layers,
                ..Default::default()
            };
            let usage = v1::SummaryUsage { document_tokens: tokens as u64, vectors: 3, ..Default::default() };
            let finished = v1::SummaryFinished {
                usage: Some(usage),
                timing: Some(timing),
                document_id: Some("id".into()),
                ..Default::default()
            };
            let result = SummaryResult {
                hypotheses: Vec::new(),
                document_id: None,
                reason: FinishReason::EndOfText,
                usage: Usage { prompt_chars: tokens, generated_chars: generated, ..Usage::default() },
                timing: Timing { queue_ns: 1, total_ns: 9, ..Timing::default() },
                waits: Default::default(),
            };
            (finished, result)
        };
        let mut totals = PartTotals::new(Duration::from_nanos(50));
        for (tokens, generated) in [(10, 3), (4, 2)] {
            let (finished, result) = job(tokens, generated);
            totals.add(&finished, &result);
        }
        totals.document_bytes = Some(9);
        assert_eq!((totals.of_jobs().0.prompt_chars, totals.of_jobs().1.total_ns), (14, 18));
        let parts = vec![v1::SummaryPart::default()];
        let last = totals.finish(job(4, 2).0, parts, Duration::from_nanos(100), Duration::from_nanos(200));
        let usage = last.usage.unwrap();
        assert_eq!((usage.document_tokens, usage.summary_tokens, usage.vectors), (14, 5, 3));
        assert_eq!((usage.document_bytes, last.document_id), (Some(9), None));
        let timing = last.timing.unwrap();
        assert_eq!((timing.queue_ns, timing.upload_ns, timing.decode_ns, timing.total_ns), (2, 50, 24, 200));
        assert_eq!((timing.time_to_first_token_ns, timing.decode_ns_per_token), (107, Some(8)));
        assert_eq!((timing.encode_ns, timing.kept_share), (22, Some(0.5)));
        assert_eq!((timing.cross_attention_bytes, timing.unpooled_cross_attention_bytes), (13, 17));
        assert_eq!(timing.layers, [v1::EncoderLayer { length: 14, ns: 10 }; 2]);
    }
}
