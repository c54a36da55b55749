//! The service `Summarization`: a document is received, cut into tokens, and left with its model's engine, which encodes it while
//! it arrives; the answer is a stream over the engine's events.

use super::{
    convert,
    generation::terms,
    response_stream::{ResponseStream, Source, refused},
    summary_stream::Summarized,
};
use crate::{
    decode::summary::Summarize,
    engine::{DocumentSource, DocumentUpload, Events, IncomingDocument, Terms},
    error::{Code, Error, Result},
    serve::{
        call::Call,
        middleware::tonic_errors,
        registry::{
            drain::Gate,
            engines::{Engines, Lease},
        },
    },
    text::{LimitStatus, StreamTokenizer},
};
use std::sync::Arc;
use tokio::task::AbortHandle;
use tonic::{Request, Response, Status, Streaming};
use weir_proto::v1::{self, summarization_server, summarize_request::Part};

/// What the text of a document is called in messages.
const TEXT: &str = "chunk.text";

/// The service.
pub(in crate::serve) struct Summarization {
    engines: Engines,
    gate: Gate,
    /// Whether answers begin with their first news.
    late: bool,
}

/// A document that is being received; dropping this gives it up.
pub(in crate::serve) struct Receiving(AbortHandle);

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Summarization {
    /// Of these engines, behind this gate.
    pub(in crate::serve) fn new(engines: Engines, gate: Gate, late: bool) -> Self {
        Self { engines, gate, late }
    }

    async fn summarized(
        &self,
        mut parts: Streaming<v1::SummarizeRequest>,
        call: Call,
    ) -> Result<ResponseStream<Summarized>> {
        let pass = self.gate.enter()?;
        let first = parts.message().await.map_err(incomplete)?;
        let Some(Part::Options(options)) = first.and_then(|first| first.part) else {
            return Err(wrong("options", "nothing", "the first part of the request"));
        };
        let engine = self.engines.find("model", options.model.as_deref())?;
        let (request, terms) = (convert::summarize(&options, engine.card())?, terms(&call, options.priority));
        let encoder = Summarized::new(engine.card(), &call.id);
        let (events, receiving) = match options.document_id {
            Some(id) => {
                // first, so that what is wrong with the id is not held back until the request has come to its end
                let events = engine.summarize(&request, DocumentSource::Cached(id), terms)?;
                if parts.message().await.map_err(incomplete)?.is_some() {
                    return Err(wrong("chunk", "another part", "none behind options with a document_id"));
                }
                (events, None)
            }
            None => {
                let (upload, arriving) = engine.upload();
                let events = submit(&engine, &request, arriving, terms)?;
                let document = Document::of(&engine, options.cut.unwrap_or(false), upload);
                let task = tokio::spawn(document.receive(parts));
                (events, Some(Receiving(task.abort_handle())))
            }
        };
        let source = Source::new(events, engine, pass, call.span.clone());
        Ok(ResponseStream::new(source, encoder.with(receiving), call))
    }
}

fn submit(engine: &Lease, request: &Summarize, arriving: IncomingDocument, terms: Terms) -> Result<Events> {
    engine.summarize(request, DocumentSource::Uploading(arriving), terms)
}

/// A document on its way from the wire to the engine.
struct Document {
    reading: StreamTokenizer,
    upload: DocumentUpload,
    /// Whether one that is too long is cut.
    cut: bool,
    limit: usize,
    /// What is put behind it.
    end: u32,
}

impl Document {
    fn of(engine: &Lease, cut: bool, upload: DocumentUpload) -> Self {
        // the end mark is a token, too
        let (limit, end) =
            engine.document_limits().map_or((0, 0), |limits| (limits.tokens.saturating_sub(1), limits.marks.end));
        let reading = StreamTokenizer::new(Arc::clone(&engine.card().vocabulary), TEXT, limit).with_truncation(cut);
        Self { reading, upload, cut, limit, end }
    }

    /// Receives it to its end, or to the limit: what comes after that is not read.
    async fn receive(mut self, mut parts: Streaming<v1::SummarizeRequest>) {
        loop {
            let next = match parts.message().await {
                Ok(next) => next,
                Err(status) => return self.upload.fail(incomplete(status)),
            };
            let more = next.map(|next| next.part);
            let ended = more.is_none();
            match self.take(more.map(|part| part.ok_or(()))) {
                Ok(LimitStatus::Within) if !ended => {}
                Ok(room) => return self.close(room == LimitStatus::Exceeded),
                Err(error) => return self.upload.fail(error),
            }
        }
    }

    /// Takes a part; none is the end.
    fn take(&mut self, part: Option<Result<Part, ()>>) -> Result<LimitStatus> {
        let mut tokens = Vec::new();
        let room = match part {
            Some(Ok(Part::Chunk(chunk))) => self.reading.push(&chunk.text, &mut tokens)?,
            Some(Ok(Part::Options(_))) => return Err(wrong("options", "a second time", "the first part and no other")),
            Some(Err(())) => return Err(wrong("part", "nothing", "options or a chunk")),
            None => self.reading.finish(&mut tokens)?,
        };
        if room == LimitStatus::Exceeded && !self.cut {
            return Err(Error::LongerThan { field: TEXT, limit: self.limit, unit: "tokens", why: None });
        }
        let (ids, places): (Vec<u32>, Vec<_>) = tokens.iter().map(|token| (token.id, (token.start, token.end))).unzip();
        if !ids.is_empty() {
            self.upload.push(&ids, &places);
        }
        Ok(room)
    }

    fn close(self, cut: bool) {
        if self.upload.is_empty() {
            return self.upload.fail(wrong(TEXT, "no tokens", "text of at least one"));
        }
        let end = self.reading.bytes();
        self.upload.push(&[self.end], &[(end, end)]);
        self.upload.close(cut);
    }
}

fn wrong(field: &'static str, found: &str, bound: &str) -> Error {
    Error::BadOption { field, found: found.into(), bound: bound.into() }
}

/// A request that did not come whole, or cannot be read, by the status that ended it.
fn incomplete(status: Status) -> Error {
    if let Some(error) = tonic_errors::unreadable(&status) {
        return error;
    }
    let code = match status.code() {
        tonic::Code::OutOfRange => Code::OutOfRange,
        tonic::Code::ResourceExhausted => Code::ResourceExhausted,
        tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
        tonic::Code::Unavailable => Code::Unavailable,
        tonic::Code::InvalidArgument => Code::InvalidArgument,
        tonic::Code::Internal => Code::Internal,
        _ => Code::Cancelled,
    };
    Error::Incomplete { code, why: status.message().to_owned() }
}

#[tonic::async_trait]
impl summarization_server::Summarization for Summarization {
    type SummarizeStream = ResponseStream<Summarized>;

    async fn summarize(
        &self,
        request: Request<Streaming<v1::SummarizeRequest>>,
    ) -> Result<Response<Self::SummarizeStream>, Status> {
        let call = Call::of(&request);
        let answer = self.summarized(request.into_inner(), call.clone()).await.map_err(refused(&call))?;
        Ok(Response::new(if self.late { answer.with_characters().await? } else { answer }))
    }
}
