//! The service `Generation`: a request is let in, converted, and handed to its model's engine; the answer is a stream over
//! the engine's events.

use super::{
    convert,
    generate_stream::Generated,
    response_stream::{MessageEncoder, ResponseStream, Source, refused},
    score_stream::Scored,
    segments::segments,
    totals,
};
use crate::{
    decode::options::must_pool,
    engine::{Event, Job, Terms},
    error::Result,
    serve::{
        call::Call,
        registry::{drain::Gate, engines::Engines},
    },
    text::Vocabulary,
};
use std::sync::Arc;
use tonic::{Request, Response, Status};
use weir_proto::v1::{self, generation_server};

/// The service.
pub(in crate::serve) struct Generation {
    engines: Engines,
    gate: Gate,
    /// Whether answers begin with their first characters.
    late: bool,
}

impl Generation {
    /// Of these engines, behind this gate.
    pub(in crate::serve) fn new(engines: Engines, gate: Gate, late: bool) -> Self {
        Self { engines, gate, late }
    }

    /// An answer, as soon as it may begin.
    async fn begun<W: MessageEncoder>(
        &self,
        answer: Result<ResponseStream<W>>,
        call: &Call,
    ) -> Result<Response<ResponseStream<W>>, Status> {
        let answer = answer.map_err(refused(call))?;
        Ok(Response::new(if self.late { answer.with_characters().await? } else { answer }))
    }

    fn generated(&self, request: v1::GenerateRequest, call: Call) -> Result<ResponseStream<Generated>> {
        let pass = self.gate.enter()?;
        let engine = self.engines.find("model", request.model.as_deref())?;
        let priority = request.priority;
        let (job, plan) = convert::generate(request, engine.card())?;
        let encoder = Generated::new(plan, engine.card(), &call.id);
        let events = engine.submit(Job::Generate(job), terms(&call, priority))?;
        Ok(ResponseStream::new(Source::new(events, engine, pass, call.span.clone()), encoder, call))
    }

    fn scored(&self, request: v1::ScoreRequest, call: Call) -> Result<ResponseStream<Scored>> {
        let pass = self.gate.enter()?;
        let engine = self.engines.find("model", request.model.as_deref())?;
        let (job, seed) = convert::score(&request, engine.card())?;
        let card = engine.card();
        let segments = card.pooled && card.vocabulary.specials().is_some();
        let encoder = Scored::new(seed, Arc::clone(&card.vocabulary), segments);
        let events = engine.submit(Job::Score(job), terms(&call, request.priority))?;
        Ok(ResponseStream::new(Source::new(events, engine, pass, call.span.clone()), encoder, call))
    }

    async fn segmented(&self, request: v1::SegmentRequest, call: &Call) -> Result<v1::SegmentResponse> {
        let pass = self.gate.enter()?;
        let engine = self.engines.find("model", request.model.as_deref())?;
        must_pool("Segment", engine.card())?;
        let (job, seed) = convert::segment(&request, engine.card())?;
        let text = engine.card().vocabulary.decode(&job.symbols);
        let events = engine.submit(Job::Score(job), terms(call, request.priority))?;
        let vocabulary = Arc::clone(&engine.card().vocabulary);
        let empty = v1::SegmentResponse { text, seed, ..Default::default() };
        gather(Source::new(events, engine, pass, call.span.clone()), empty, &vocabulary).await
    }
}

/// Under which conditions a call's job runs.
pub(in crate::serve) fn terms(call: &Call, priority: Option<i32>) -> Terms {
    Terms { deadline: call.deadline, tenant: call.tenant(), priority: priority.unwrap_or_default() }
}

/// Waits for a text's boundaries. All are kept: as many as the model's longest sequence has symbols.
async fn gather(
    mut source: Source,
    empty: v1::SegmentResponse,
    vocabulary: &Vocabulary,
) -> Result<v1::SegmentResponse> {
    let mut characters = Vec::new();
    loop {
        match source.next().await? {
            Event::Started { .. } | Event::Document(_) => {}
            Event::Characters(more) => characters.extend(more),
            Event::Finished { usage, timing, .. } => {
                let segments = segments(&characters, vocabulary);
                let (usage, timing) = (Some(totals::usage(usage)), Some(totals::timing(timing)));
                return Ok(v1::SegmentResponse { segments, usage, timing, ..empty });
            }
        }
    }
}

#[tonic::async_trait]
impl generation_server::Generation for Generation {
    type GenerateStream = ResponseStream<Generated>;
    type ScoreStream = ResponseStream<Scored>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let call = Call::of(&request);
        let answer = self.generated(request.into_inner(), call.clone());
        self.begun(answer, &call).await
    }

    async fn score(&self, request: Request<v1::ScoreRequest>) -> Result<Response<Self::ScoreStream>, Status> {
        let call = Call::of(&request);
        let answer = self.scored(request.into_inner(), call.clone());
        self.begun(answer, &call).await
    }

    async fn segment(&self, request: Request<v1::SegmentRequest>) -> Result<Response<v1::SegmentResponse>, Status> {
        let call = Call::of(&request);
        self.segmented(request.into_inner(), &call).await.map(Response::new).map_err(refused(&call))
    }
}
