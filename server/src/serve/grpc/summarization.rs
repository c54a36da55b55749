//! The service `Summarization`: passes a document to the model's engine, which encodes it while it arrives, and answers with a
//! stream over the engine's events. A document that may be summarized in parts is received first.

use super::{
    convert, document_text,
    document_upload::{DocumentReceiver, DocumentWorkers},
    generation::{JobService, terms},
    request_parts::RequestParts,
    response_stream::{Buffered, JobEvents, ResponseStream, buffered, reject},
    summary_parts::PartedSummary,
    summary_stream::SummaryEncoder,
    task_response::TaskResponse,
};
use crate::{
    decode::{long_documents::LongDocuments, summary::Summarize},
    engine::{DocumentSource, Terms},
    error::{Error, Result},
    serve::{
        call::{Call, Reply},
        middleware::body_limits::Reservation,
        registry::{abilities::summarizes, drain::RequestPermit, engines::Lease},
    },
};
use std::sync::Arc;
use tokio_util::either::Either;
use tonic::{Request, Response, Streaming};
use weir_proto::v1::{self, summarization_server, summarize_request::Part};

/// The response of one job, or of the jobs of all parts.
pub(in crate::serve) type SummaryResponses =
    Either<ResponseStream<SummaryEncoder>, TaskResponse<v1::SummarizeResponse>>;

/// A checked request, and what its jobs need.
struct SummaryCall {
    parts: RequestParts<v1::SummarizeRequest>,
    permit: RequestPermit,
    engine: Lease,
    request: Summarize,
    terms: Terms,
    call: Call,
}

impl JobService {
    /// Starts a `Summarize`.
    pub(in crate::serve) async fn start_summary(
        &self,
        mut parts: RequestParts<v1::SummarizeRequest>,
        call: Call,
    ) -> Result<SummaryResponses> {
        let permit = self.gate.enter()?;
        let first = parts.next().await?;
        let Some(Part::Options(options)) = first.and_then(|first| first.part) else {
            return Err(Error::bad_option("options", "none", "options in the first part of the request"));
        };
        let engine = self.engines.find_able("model", options.model.as_deref(), summarizes)?;
        let request = convert::summary_options(&options, engine.card())?;
        let long_documents = convert::long_documents(&options)?;
        let terms = terms(&call, options.priority);
        let summary = SummaryCall { parts, permit, engine, request, terms, call };
        if long_documents == LongDocuments::Chunk {
            return self.start_parts(summary).map(Either::Right);
        }
        self.start_job(summary, options.document_id, long_documents == LongDocuments::Cut).await.map(Either::Left)
    }

    /// Starts one job for a document that is encoded while it arrives, or for the cached one of this id.
    async fn start_job(
        &self,
        summary: SummaryCall,
        document_id: Option<String>,
        cut: bool,
    ) -> Result<ResponseStream<SummaryEncoder>> {
        let SummaryCall { mut parts, permit, engine, request, terms, call } = summary;
        let (events, upload_task) = match document_id {
            Some(id) => {
                // Before the rest of the request is read, so that an unknown id is reported at once.
                let events = engine.summarize(&request, DocumentSource::Cached(id), terms)?;
                if parts.next().await?.is_some() {
                    return Err(Error::bad_option("chunk", "one", "no part after options with a document_id"));
                }
                (events, None)
            }
            None => {
                let (upload, incoming) = engine.upload();
                let events = engine.summarize(&request, DocumentSource::Uploading(incoming), terms)?;
                let receiver = DocumentReceiver::new(&engine, cut, upload, self.document_workers(&call));
                (events, Some(receiver.spawn(parts)))
            }
        };
        let end = engine.document_limits().map_or(0, |limits| limits.marks.end);
        let encoder = SummaryEncoder::new(engine.card(), end, &call.id, upload_task);
        Ok(ResponseStream::new(JobEvents::new(events, engine, permit, call.span.clone()), encoder, call))
    }

    /// Starts a task that receives the document and summarizes its parts. Options are checked before the document is read.
    fn start_parts(&self, summary: SummaryCall) -> Result<TaskResponse<v1::SummarizeResponse>> {
        let SummaryCall { parts, permit, engine, request, terms, call } = summary;
        let limits = engine.document_limits().ok_or_else(|| Error::Internal("a summarizer without limits".into()))?;
        request.plan(engine.card(), limits, engine.limits().rows)?;
        let stall = engine.limits().stall;
        let reserved = Reservation::new(Arc::clone(&self.memory), call.tenant());
        let workers = self.document_workers(&call);
        let permits = [permit, self.gate.enter()?];
        let summary = PartedSummary { engine, request, terms, workers, reserved, call: call.clone() };
        Ok(TaskResponse::spawn(permits, call, stall, move |output| async move {
            let text = document_text::receive(parts, &summary.reserved).await?;
            summary.run(text, &output).await
        }))
    }

    fn document_workers(&self, call: &Call) -> DocumentWorkers {
        DocumentWorkers { workers: self.workers.clone(), tenant: call.tenant() }
    }
}

#[tonic::async_trait]
impl summarization_server::Summarization for JobService {
    type SummarizeStream = Buffered<SummaryResponses>;

    async fn summarize(&self, request: Request<Streaming<v1::SummarizeRequest>>) -> Reply<Self::SummarizeStream> {
        let call = Call::of(&request);
        let started = self.start_summary(RequestParts::of(request), call.clone()).await;
        let responses = started.map_err(reject(&call))?;
        buffered(responses, self.first_messages::<SummaryEncoder>()).await.map(Response::new)
    }
}
