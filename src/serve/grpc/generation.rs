//! The service `Generation`: converts a request to a job, submits it to the model's engine, and answers with a stream over the
//! engine's events. `summarization` implements the service `Summarization` for the same type.

use super::{
    convert,
    generate_stream::GenerateEncoder,
    response_stream::{JobEvents, MessageEncoder, ResponseStream, reject},
    score_stream::ScoreEncoder,
    segments::segments,
    totals,
};
use crate::{
    decode::options::must_pool,
    engine::{Event, Job, Terms},
    error::Result,
    serve::{
        call::{Call, Reply},
        registry::{drain::Gate, engines::Engines},
    },
    text::Vocabulary,
};
use std::sync::Arc;
use tonic::{Request, Response};
use weir_proto::v1::{self, generation_server};

/// Submits jobs to the engines while the gate is open.
#[derive(Clone)]
pub(crate) struct JobService {
    pub(crate) engines: Engines,
    pub(crate) gate: Gate,
    /// True if a response begins with its first progress or text, for proxies that retry elsewhere until then.
    pub(crate) late_headers: bool,
}

impl JobService {
    pub(super) async fn respond<E: MessageEncoder>(
        &self,
        stream: Result<ResponseStream<E>>,
        call: &Call,
    ) -> Reply<ResponseStream<E>> {
        stream.map_err(reject(call))?.buffered(self.late_headers).await.map(Response::new)
    }

    fn start_generate(&self, request: v1::GenerateRequest, call: Call) -> Result<ResponseStream<GenerateEncoder>> {
        let permit = self.gate.enter()?;
        let engine = self.engines.find("model", request.model.as_deref())?;
        let priority = request.priority;
        let (job, format) = convert::generate_job(request, engine.card())?;
        let encoder = GenerateEncoder::new(format, engine.card(), &call.id);
        let events = engine.submit(Job::Generate(job), terms(&call, priority))?;
        Ok(ResponseStream::new(JobEvents::new(events, engine, permit, call.span.clone()), encoder, call))
    }

    fn start_score(&self, request: v1::ScoreRequest, call: Call) -> Result<ResponseStream<ScoreEncoder>> {
        let permit = self.gate.enter()?;
        let engine = self.engines.find("model", request.model.as_deref())?;
        let (job, seed) = convert::score_job(&request, engine.card())?;
        let card = engine.card();
        let writes_segments = card.pooled && card.vocabulary.specials().is_some();
        let encoder = ScoreEncoder::new(seed, Arc::clone(&card.vocabulary), writes_segments);
        let events = engine.submit(Job::Score(job), terms(&call, request.priority))?;
        Ok(ResponseStream::new(JobEvents::new(events, engine, permit, call.span.clone()), encoder, call))
    }

    async fn segment_text(&self, request: v1::SegmentRequest, call: &Call) -> Result<v1::SegmentResponse> {
        let permit = self.gate.enter()?;
        let engine = self.engines.find("model", request.model.as_deref())?;
        must_pool("Segment", engine.card())?;
        let (job, seed) = convert::segment_job(&request, engine.card())?;
        let vocabulary = Arc::clone(&engine.card().vocabulary);
        let response = v1::SegmentResponse { text: vocabulary.decode(&job.symbols), seed, ..Default::default() };
        let events = engine.submit(Job::Score(job), terms(call, request.priority))?;
        collect_segments(JobEvents::new(events, engine, permit, call.span.clone()), response, &vocabulary).await
    }
}

/// Returns the conditions under which a call's job runs.
pub(super) fn terms(call: &Call, priority: Option<i32>) -> Terms {
    Terms { deadline: call.deadline, tenant: call.tenant(), priority: priority.unwrap_or_default() }
}

/// Completes `response` with the segments of a text. Keeps all of them: a text has at most `max_symbols` symbols.
async fn collect_segments(
    mut events: JobEvents,
    response: v1::SegmentResponse,
    vocabulary: &Vocabulary,
) -> Result<v1::SegmentResponse> {
    let mut characters = Vec::new();
    loop {
        match events.next().await? {
            Event::Started { .. } | Event::Document(_) => {}
            Event::Characters(more) => characters.extend(more),
            Event::Finished { usage, timing, .. } => {
                return Ok(v1::SegmentResponse {
                    segments: segments(&characters, vocabulary),
                    usage: Some(totals::usage(usage)),
                    timing: Some(totals::timing(timing)),
                    ..response
                });
            }
        }
    }
}

#[tonic::async_trait]
impl generation_server::Generation for JobService {
    type GenerateStream = ResponseStream<GenerateEncoder>;
    type ScoreStream = ResponseStream<ScoreEncoder>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Reply<Self::GenerateStream> {
        let call = Call::of(&request);
        let stream = self.start_generate(request.into_inner(), call.clone());
        self.respond(stream, &call).await
    }

    async fn score(&self, request: Request<v1::ScoreRequest>) -> Reply<Self::ScoreStream> {
        let call = Call::of(&request);
        let stream = self.start_score(request.into_inner(), call.clone());
        self.respond(stream, &call).await
    }

    async fn segment(&self, request: Request<v1::SegmentRequest>) -> Reply<v1::SegmentResponse> {
        let call = Call::of(&request);
        self.segment_text(request.into_inner(), &call).await.map(Response::new).map_err(reject(&call))
    }
}
