//! From the events of a request to messages: reads the events, cuts characters into pieces, and ends with usage and timing.

use crate::{
    call::{Call, Reply},
    grpc::convert::{CharacterDetails, PieceSplit, ResponseFormat},
    middleware::{limits::Reservation, observe::caught},
    registry::{Lease, RequestPermit, draining_error},
    status::status,
    traces::CallSpan,
};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
    time::{sleep_until, timeout},
};
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Response, Status};
use tracing::{Instrument as _, Span};
use weir_engine::{DocumentEvent, Event, Events, options::EmittedSymbol};
use weir_kernels::error::{Code, Error, Result};
use weir_models::{
    contract::SymbolBoundary,
    text::{PlacedText, StreamDetokenizer, Vocabulary},
};
use weir_proto::v1;

// The engine emits characters in runs of any length. A request may fix where pieces end. The text of a piece never ends within a code
// point.

/// Maximum characters of a piece, unless the request asks for more. With alternatives, fewer: each counts like a character.
pub(super) const MAX_PIECE: usize = 256;

/// Maximum characters of a piece that waits for its segment to end: a segment may never end. With alternatives, fewer.
pub(super) const MAX_SEGMENT: usize = 4096;

/// Characters that wait for their piece to be complete.
pub(super) struct Pieces {
    waiting: VecDeque<EmittedSymbol>,
    /// The first `searched` characters end no segment.
    searched: usize,
    /// Characters of the prompt that are still to be sent.
    echo: usize,
    /// Characters of the prompt that were sent.
    prompt_sent: usize,
    echoed: Option<Arc<PlacedText>>,
    split: PieceSplit,
    details: CharacterDetails,
    detokenizer: StreamDetokenizer,
    /// True if generated symbols were sent before, and no others yet.
    continues: bool,
    vocabulary: Arc<Vocabulary>,
}

impl Pieces {
    pub(super) fn new(format: &ResponseFormat, vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            waiting: VecDeque::new(),
            searched: 0,
            echo: if format.echo { format.prompt_chars } else { 0 },
            prompt_sent: 0,
            echoed: format.echoed.clone(),
            split: format.split,
            details: format.details,
            detokenizer: StreamDetokenizer::new(Arc::clone(&vocabulary)).ending_whole(format.is_constrained),
            continues: false,
            vocabulary,
        }
    }

    /// Continues after generated symbols that were sent before.
    pub(super) fn skip(&mut self, symbols: &[u32]) {
        self.continues = !symbols.is_empty();
        for &symbol in symbols {
            self.detokenizer.push(symbol);
        }
    }

    /// Appends the next characters.
    pub(super) fn push(&mut self, characters: Vec<EmittedSymbol>) {
        self.continues &= characters.is_empty();
        self.waiting.extend(characters);
    }

    /// Ends the text before a stop string. If no symbol came before it, it began with the code point that was unfinished.
    pub(super) fn stop(&mut self) {
        if self.continues {
            self.detokenizer = self.detokenizer.restarted();
        }
    }

    /// Returns true if a piece should be sent before more characters are taken.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= self.max_chars()
    }

    /// Returns the next piece, if one is complete.
    pub(super) fn next(&mut self) -> Option<v1::Piece> {
        self.complete_len().map(|count| self.take(count))
    }

    /// Returns the next piece after the last character has arrived.
    pub(super) fn rest(&mut self) -> Option<v1::Piece> {
        if let Some(piece) = self.next() {
            return Some(piece);
        }
        let mut piece = self.take(self.waiting.len().min(self.max_chars()));
        if self.waiting.is_empty() && piece.ids.is_empty() {
            // An incomplete code point at the end. Ids have no such text, so it is a piece of its own next to them.
            piece.text.push_str(self.detokenizer.finish());
        }
        (!piece.text.is_empty() || !piece.characters.is_empty() || !piece.ids.is_empty()).then_some(piece)
    }

    /// Returns the maximum number of characters that wait for their piece.
    fn max_chars(&self) -> usize {
        let each = 1 + self.details.alternatives;
        match self.split {
            PieceSplit::Characters(min) => min.max(MAX_PIECE / each),
            PieceSplit::Segment => MAX_SEGMENT / each,
        }
    }

    /// Returns the number of characters of the next piece, if it is complete.
    fn complete_len(&mut self) -> Option<usize> {
        let waiting = self.waiting.len();
        let max = self.max_chars();
        let count = match self.split {
            PieceSplit::Characters(min) => (waiting >= min).then(|| waiting.min(max)),
            PieceSplit::Segment => {
                let cut = (self.searched..waiting.min(max)).find(|&last| {
                    let own = &self.waiting[last];
                    self.waiting.get(last + 1).map_or_else(|| ends_segment(own), |next| is_cut(own, next))
                });
                // the next symbol may begin a segment, so the last one is searched again
                self.searched = cut.unwrap_or(waiting.min(max).saturating_sub(1));
                cut.map(|last| last + 1).or((waiting >= max).then_some(max))
            }
        };
        // A piece never holds both prompt and generated text.
        match self.echo {
            0 => count,
            echo if waiting >= echo => Some(count.map_or(echo, |count| count.min(echo))),
            _ => count,
        }
    }

    /// Removes the first `count` characters as a piece.
    fn take(&mut self, count: usize) -> v1::Piece {
        let mut piece = v1::Piece { prompt: self.echo > 0, ..Default::default() };
        let echoed = self.echoed.as_ref().filter(|_| piece.prompt);
        if let Some(echoed) = echoed {
            piece.text.push_str(echoed.text_of(self.prompt_sent, self.prompt_sent + count));
        }
        self.echo = self.echo.saturating_sub(count);
        self.prompt_sent += count;
        self.searched = self.searched.saturating_sub(count);
        for symbol in self.waiting.drain(..count) {
            if echoed.is_none() {
                piece.text.push_str(self.detokenizer.push_symbol(symbol.symbol, symbol.cut));
            }
            if self.details.ids {
                piece.ids.push(symbol.symbol);
            }
            if self.details.listed {
                let details = if piece.prompt { character } else { generated_character };
                piece.characters.push(details(symbol, self.details.boundaries, &self.vocabulary));
            }
        }
        piece
    }
}

/// Returns true if the text is cut between two neighbouring symbols.
pub(super) fn is_cut(before: &EmittedSymbol, after: &EmittedSymbol) -> bool {
    ends_segment(before) || after.decision.is_some_and(SymbolBoundary::begins_segment)
}

/// Returns true if the text is cut after a symbol, whatever follows it.
pub(super) fn ends_segment(symbol: &EmittedSymbol) -> bool {
    symbol.decision.is_some_and(SymbolBoundary::ends_segment)
}

/// Returns the message for a symbol, with its boundary decision if `boundaries` is true.
pub(super) fn character(symbol: EmittedSymbol, boundaries: bool, vocabulary: &Vocabulary) -> v1::Character {
    let decision = symbol.decision.filter(|_| boundaries);
    let top = symbol.top.into_iter();
    v1::Character {
        text: symbol_text(symbol.symbol, vocabulary),
        logprob: symbol.logprob,
        boundary: decision.map(|decision| decision.boundary),
        boundary_probability: decision.and_then(|decision| decision.probability),
        boundary_entropy: decision.and_then(|decision| decision.entropy),
        nxt_logprob: decision.and_then(|decision| decision.end_logprob),
        chunk_depth: decision.map_or(0, |decision| decision.depth.into()),
        top: top.map(|(id, logprob)| alternative(id, logprob, vocabulary)).collect(),
        id: symbol.symbol,
        raw_bytes: vocabulary.raw_bytes(symbol.symbol),
        ends_text: false,
        constraint_mass: symbol.constraint_mass,
    }
}

/// Returns the message for a generated symbol. An end symbol has no text in a generated text.
pub(super) fn generated_character(symbol: EmittedSymbol, boundaries: bool, vocabulary: &Vocabulary) -> v1::Character {
    let mut sent = character(symbol, boundaries, vocabulary);
    sent.ends_text = vocabulary.ends_text(sent.id);
    if sent.ends_text {
        sent.text.clear();
    }
    sent.top.iter_mut().filter(|other| vocabulary.ends_text(other.id)).for_each(|other| other.text.clear());
    sent
}

fn alternative(id: u32, logprob: f32, vocabulary: &Vocabulary) -> v1::Alternative {
    v1::Alternative { text: symbol_text(id, vocabulary), logprob, id, raw_bytes: vocabulary.raw_bytes(id) }
}

/// Returns the text of a single symbol, or an escape for a byte that is no text by itself.
pub(super) fn symbol_text(id: u32, vocabulary: &Vocabulary) -> String {
    match vocabulary.byte_of(id) {
        Some(byte) if !byte.is_ascii() => format!("\\x{byte:02x}"),
        _ => vocabulary.decode(&[id]),
    }
}

// A response reads its job's events itself, without a task between engine and connection. While a client does not read, its response
// is not polled and takes no events, so the row pauses. A client that disconnects drops both, which frees the row.

/// The events of one job, ended early if the server shuts down.
pub(super) struct JobEvents {
    events: Events,
    /// The engine that runs the job. The lease keeps it loaded until the response is over.
    engine: Lease,
    /// The memory of the job's symbols, until the response is over.
    _reserved: Option<Reservation>,
    /// The span of the call, if it is traced.
    span: Option<CallSpan>,
    permit: RequestPermit,
    /// Completes once the server shuts down.
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl JobEvents {
    /// The events of a job that holds this permit, and the memory of its symbols.
    pub(super) fn new(
        events: Events,
        engine: Lease,
        permit: RequestPermit,
        span: Option<CallSpan>,
        reserved: Option<Reservation>,
    ) -> Self {
        let ended = Box::pin(permit.ending().clone().cancelled_owned());
        Self { events, engine, _reserved: reserved, span, permit, ended }
    }

    /// Polls for the next event, or the error that ends the job. After the end there is only an error.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event>> {
        let broken = || Err(Error::Internal("the engine dropped a job without a final event".into()));
        let event = match self.events.poll_recv(cx) {
            Poll::Pending => return self.ended.as_mut().poll(cx).map(|()| Err(draining_error())),
            // The shutdown also ends a job that always has an event ready.
            Poll::Ready(_) if self.permit.ending().is_cancelled() => return Poll::Ready(Err(draining_error())),
            Poll::Ready(event) => event.unwrap_or_else(broken),
        };
        let done = match &event {
            Ok(Event::Finished { usage, timing, .. }) => Some((usage, timing)),
            Ok(Event::Document(DocumentEvent::Summarized(summary))) => Some((&summary.usage, &summary.timing)),
            _ => None,
        };
        if let (Some((usage, timing)), Some(span)) = (done, &self.span) {
            span.record_job(&self.engine.card().name, usage, timing);
        }
        Poll::Ready(event)
    }

    /// Waits for the next event, as [`poll`](Self::poll) does.
    pub(super) async fn next(&mut self) -> Result<Event> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }
}

/// Turns the events of one kind of call into response messages.
pub(crate) trait MessageEncoder: Unpin + Send {
    /// The message type of the response.
    type Message: Unpin + Send;

    /// Number of messages before the first text.
    const LEADING: usize;

    /// Takes the next event.
    fn push(&mut self, event: Event);

    /// Signals the encoder that no event follows, because the job finished or failed. It then releases the text that it held back.
    fn close(&mut self);

    /// Returns the next message, if one is complete.
    fn next(&mut self) -> Option<Self::Message>;

    /// Returns true if a message should be sent before the encoder takes more events.
    fn is_full(&self) -> bool;
}

/// The response to one call.
pub(crate) struct ResponseStream<E: MessageEncoder> {
    /// `None` after the last event.
    events: Option<JobEvents>,
    encoder: E,
    /// The error that ended the job, until it is sent.
    failure: Option<Error>,
    span: Span,
}

impl<E: MessageEncoder> ResponseStream<E> {
    /// The response for a job's events.
    pub(super) fn new(events: JobEvents, encoder: E) -> Self {
        Self { events: Some(events), encoder, failure: None, span: Span::current() }
    }

    pub(crate) fn encoder(&self) -> &E {
        &self.encoder
    }

    /// Takes events while they are ready and the encoder is not full, then returns the next message.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<E::Message>>> {
        while !self.encoder.is_full() {
            let Some(events) = &mut self.events else { break };
            match events.poll(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(event)) => {
                    // Only the last event is logged, and entering the span takes as long as pushing characters.
                    if is_last(&event) {
                        let encoder = &mut self.encoder;
                        self.span.in_scope(|| encoder.push(event));
                        self.end();
                    } else {
                        self.encoder.push(event);
                    }
                }
                Poll::Ready(Err(error)) => {
                    log_failure(&self.span, &error);
                    self.failure = Some(error);
                    self.end();
                }
            }
        }
        match self.encoder.next() {
            Some(message) => Poll::Ready(Some(Ok(message))),
            None if self.events.is_some() => Poll::Pending,
            None => Poll::Ready(self.failure.take().map(Err)),
        }
    }

    fn end(&mut self) {
        self.encoder.close();
        self.events = None;
    }
}

impl<E: MessageEncoder> Stream for ResponseStream<E> {
    type Item = Result<E::Message>;

    /// Catches panics, which the middleware does not see once the response has begun.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        caught(|| self.advance(cx)).unwrap_or_else(|error| {
            log_failure(&self.span, &error);
            self.events = None;
            Poll::Ready(Some(Err(error)))
        })
    }
}

/// A response as gRPC sends it.
pub(crate) type GrpcStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Answers a gRPC call once the first `count` messages of its response are there. A call that fails before them then fails, instead
/// of a response that has begun.
pub(super) async fn reply<T, S>(call: &Call, response: Result<S>, count: usize) -> Reply<GrpcStream<T>>
where
    T: Send + 'static,
    S: Stream<Item = Result<T>> + Unpin + Send + 'static,
{
    let id = Arc::clone(&call.id);
    let messages = response.map_err(reject(call))?;
    let mut messages = messages.map(move |message| message.map_err(|error| status(&error, &id)));
    let mut first = Vec::new();
    while first.len() < count
        && let Some(message) = messages.next().await.transpose()?
    {
        first.push(Ok(message));
    }
    Ok(Response::new(Box::pin(tokio_stream::iter(first).chain(messages))))
}

impl<E: MessageEncoder> Drop for ResponseStream<E> {
    fn drop(&mut self) {
        if self.events.is_some() {
            tracing::debug!(parent: &self.span, "the response was dropped before its end");
        }
    }
}

/// Returns true if no event follows this one.
pub(super) fn is_last(event: &Event) -> bool {
    matches!(event, Event::Finished { .. } | Event::Document(DocumentEvent::Summarized(_)))
}

/// Logs a failure: an internal one as an error with its text, any other with only its code, like every end of a request at level
/// `debug`.
fn log_failure(span: &Span, error: &Error) {
    match error.code() {
        Code::Internal => tracing::error!(parent: span, %error, "failed"),
        code => tracing::debug!(parent: span, ?code, "ended early"),
    }
}

/// Logs the error that rejects or ends a call, in the current span.
pub(crate) fn log_rejection(error: &Error) {
    log_failure(&Span::current(), error);
}

/// Returns a function that logs the error that rejects a call, and converts it to a status.
pub(super) fn reject(call: &Call) -> impl FnOnce(Error) -> Status {
    |error| {
        log_rejection(&error);
        status(&error, &call.id)
    }
}

/// Messages that wait for the client, at most.
const MESSAGES: usize = 4;

/// Where a call sends its messages.
pub(super) struct Output<T> {
    sender: Sender<T>,
    /// How long a client may read nothing.
    stall: Duration,
}

impl<T> Output<T> {
    /// Sends a message. Waits while the client is behind; fails with [`Error::Stalled`] if it reads nothing for too long.
    pub(super) async fn send(&self, message: T) -> Result<()> {
        match timeout(self.stall, self.sender.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Error::Cancelled),
            Err(_) => Err(Error::Stalled { limit: self.stall }),
        }
    }
}

/// The response to a call that runs in its own task. Dropping it ends the call, which frees the rows of its jobs within one step.
pub(crate) struct TaskResponse<T> {
    messages: Receiver<T>,
    /// Ends with the error that ended the call, which follows the messages. `None` once it is known.
    task: Option<JoinHandle<Result<()>>>,
    /// Held until the response is complete or dropped.
    _permit: RequestPermit,
}

impl<T: Send + 'static> TaskResponse<T> {
    /// Starts a task that runs the call until it ends, its deadline passes, or the server shuts down. `permits` are the task's and the
    /// response's. `stall` is how long the client may read nothing.
    pub(super) fn spawn<R: Future<Output = Result<()>> + Send>(
        permits: [RequestPermit; 2],
        deadline: Option<Instant>,
        stall: Duration,
        run: impl FnOnce(Output<T>) -> R + Send + 'static,
    ) -> Self {
        let (sender, messages) = mpsc::channel(MESSAGES);
        let output = Output { sender, stall };
        let [permit, response_permit] = permits;
        let span = Span::current();
        let task = async move {
            let passed = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            let result = tokio::select! {
                biased;
                result = run(output) => result,
                error = permit.ended() => Err(error),
                () = passed => Err(Error::Deadline { stage: "while decoding" }),
            };
            result.inspect_err(log_rejection)
        };
        let task = Some(tokio::spawn(task.instrument(span)));
        Self { messages, task, _permit: response_permit }
    }
}

impl<T> Unpin for TaskResponse<T> {}

impl<T> Stream for TaskResponse<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = ready!(self.messages.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        let Some(task) = &mut self.task else { return Poll::Ready(None) };
        let ended = ready!(Pin::new(task).poll(cx));
        self.task = None;
        let panicked = |_| Err(Error::Internal("a panic in a call".into()));
        Poll::Ready(ended.unwrap_or_else(panicked).err().map(Err))
    }
}

impl<T> Drop for TaskResponse<T> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_models::{
        contract::SymbolBoundary,
        text::{TextNormaliser, Vocabulary},
    };

    fn pieces(split: PieceSplit, prompt_chars: usize, listed: bool) -> Pieces {
        let details = CharacterDetails { listed, boundaries: listed, alternatives: 0, ids: false };
        let format = ResponseFormat {
            prompt_chars,
            prompt_text_chars: prompt_chars,
            normalized_chars: 0,
            echo: prompt_chars > 0,
            echoed: None,
            split,
            details,
            stop: Vec::new(),
            seed: 0,
            resumed_chars: 0,
            resumed_text_chars: 0,
            is_constrained: false,
        };
        Pieces::new(&format, Arc::new(Vocabulary::byte_level(TextNormaliser::None)))
    }

    fn bytes(text: &str) -> Vec<EmittedSymbol> {
        let decision = |byte| Some(SymbolBoundary { boundary: byte == b' ', ..SymbolBoundary::default() });
        let symbol = |byte: u8| EmittedSymbol { decision: decision(byte), ..EmittedSymbol::plain(byte.into()) };
        text.bytes().map(symbol).collect()
    }

    /// Returns the texts of all pieces when the text arrives in runs of `step` bytes and pieces are sent at once.
    fn sent(mut pieces: Pieces, text: &str, step: usize) -> Vec<String> {
        let mut all = Vec::new();
        for run in bytes(text).chunks(step) {
            pieces.push(run.to_vec());
            all.extend(std::iter::from_fn(|| pieces.next()));
        }
        all.extend(std::iter::from_fn(|| pieces.rest()));
        all.into_iter().map(|piece| piece.text).collect()
    }

    #[test]
    fn a_segment_without_end_is_sent_in_parts() {
        let text = ["a".repeat(2 * MAX_SEGMENT + 5), " b".into()].concat();
        for step in [1, 1000] {
            let mut pieces = pieces(PieceSplit::Segment, 0, false);
            let mut max_waiting = 0;
            let mut lengths = Vec::new();
            for run in bytes(&text).chunks(step) {
                assert!(!pieces.is_full());
                pieces.push(run.to_vec());
                lengths.extend(std::iter::from_fn(|| pieces.next()).map(|piece| piece.text.len()));
                max_waiting = max_waiting.max(pieces.waiting.len());
            }
            lengths.extend(std::iter::from_fn(|| pieces.rest()).map(|piece| piece.text.len()));
            assert_eq!(lengths, [MAX_SEGMENT, MAX_SEGMENT, 6, 1]);
            assert!(max_waiting < MAX_SEGMENT, "{max_waiting} characters waited");
        }
    }

    /// A piece never has both text of the prompt and generated text.
    #[test]
    fn text_is_split_as_requested() {
        for (split, prompt, text, step, expected) in [
            (PieceSplit::Characters(1), 0, "abcde", 2, &["ab", "cd", "e"][..]),
            (PieceSplit::Characters(3), 0, "abcdefg", 1, &["abc", "def", "g"]),
            (PieceSplit::Characters(3), 4, "abcdefg", 100, &["abcd", "efg"]),
            (PieceSplit::Characters(3), 4, "abcdefg", 1, &["abc", "d", "efg"]),
            (PieceSplit::Segment, 0, "ab c  de", 100, &["ab ", "c ", " ", "de"]),
            (PieceSplit::Segment, 0, "ab c  de", 1, &["ab ", "c ", " ", "de"]),
            (PieceSplit::Segment, 4, "a bcde f", 100, &["a ", "bc", "de ", "f"]),
        ] {
            assert_eq!(sent(pieces(split, prompt, false), text, step), expected, "{split:?} {prompt} {text} {step}");
        }
        assert_eq!(sent(pieces(PieceSplit::Characters(1), 0, false), &"a".repeat(300), 300)[0].len(), MAX_PIECE);
        let mut pieces = pieces(PieceSplit::Characters(1), 2, true);
        pieces.push(bytes("abc"));
        let kinds: Vec<_> = std::iter::from_fn(|| pieces.next()).map(|piece| (piece.prompt, piece.text)).collect();
        assert_eq!(kinds, [(true, "ab".into()), (false, "c".into())]);
    }

    #[test]
    fn an_incomplete_code_point_is_sent_at_the_end() {
        let mut pieces = pieces(PieceSplit::Characters(1), 0, true);
        pieces.push(bytes("é")[..1].to_vec());
        let piece = pieces.next().unwrap();
        assert_eq!((piece.text.as_str(), piece.characters[0].text.as_str()), ("", "\\xc3"));
        assert_eq!(piece.characters[0].raw_bytes, Some(vec![0xc3]));
        assert_eq!(pieces.rest().unwrap().text, "\u{fffd}");
        assert_eq!(pieces.rest(), None);
        pieces.detokenizer = pieces.detokenizer.ending_whole(true);
        pieces.push(bytes("aé")[..2].to_vec());
        let texts: Vec<String> = std::iter::from_fn(|| pieces.rest()).map(|piece| piece.text).collect();
        assert_eq!(texts.concat(), "a");
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_text(
            text in "[a é€ ]{0,40}", step in 1_usize..9, min in 1_usize..6, prompt in 0_usize..9, segments: bool,
        ) {
            let split = if segments { PieceSplit::Segment } else { PieceSplit::Characters(min) };
            prop_assert_eq!(sent(pieces(split, prompt, false), &text, step).concat(), text);
        }
    }

    #[test]
    fn an_end_symbol_has_text_only_in_prompts() {
        let vocabulary = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        let symbol = || EmittedSymbol { top: vec![(3, -1.0), (97, -2.0)], ..EmittedSymbol::plain(3) };
        let texts = |sent: v1::Character| {
            let top: Vec<String> = sent.top.into_iter().map(|other| other.text).collect();
            (sent.text, top, sent.ends_text)
        };
        let given = texts(character(symbol(), false, &vocabulary));
        assert_eq!(given, ("\u{3}".into(), vec!["\u{3}".into(), "a".into()], false));
        let generated = texts(generated_character(symbol(), false, &vocabulary));
        assert_eq!(generated, (String::new(), vec![String::new(), "a".into()], true));
    }
}
