//! The service `Summarization`: passes a document to the model's engine, which encodes it while it arrives, and answers with a
//! stream over the engine's events.

use super::{
    convert,
    document_upload::{DocumentReceiver, DocumentWorkers, incomplete},
    generation::{JobService, terms},
    response_stream::{JobEvents, ResponseStream},
    summary_stream::SummaryEncoder,
};
use crate::{
    engine::DocumentSource,
    error::{Error, Result},
    serve::{
        call::{Call, Reply},
        registry::abilities::summarizes,
    },
};
use tonic::{Request, Streaming};
use weir_proto::v1::{self, summarization_server, summarize_request::Part};

impl JobService {
    async fn start_summary(
        &self,
        mut parts: Streaming<v1::SummarizeRequest>,
        call: Call,
    ) -> Result<ResponseStream<SummaryEncoder>> {
        let permit = self.gate.enter()?;
        let first = parts.message().await.map_err(incomplete)?;
        let Some(Part::Options(options)) = first.and_then(|first| first.part) else {
            return Err(Error::bad_option("options", "none", "options in the first part of the request"));
        };
        let engine = self.engines.find_able("model", options.model.as_deref(), summarizes)?;
        let request = convert::summary_options(&options, engine.card())?;
        let terms = terms(&call, options.priority);
        let (events, upload_task) = match options.document_id {
            Some(id) => {
                // Before the rest of the request is read, so that an unknown id is reported at once.
                let events = engine.summarize(&request, DocumentSource::Cached(id), terms)?;
                if parts.message().await.map_err(incomplete)?.is_some() {
                    return Err(Error::bad_option("chunk", "one", "no part after options with a document_id"));
                }
                (events, None)
            }
            None => {
                let (upload, incoming) = engine.upload();
                let events = engine.summarize(&request, DocumentSource::Uploading(incoming), terms)?;
                let workers = DocumentWorkers { workers: self.workers.clone(), tenant: call.tenant() };
                let receiver = DocumentReceiver::new(&engine, options.cut.unwrap_or(false), upload, workers);
                (events, Some(receiver.spawn(parts)))
            }
        };
        let end = engine.document_limits().map_or(0, |limits| limits.marks.end);
        let encoder = SummaryEncoder::new(engine.card(), end, &call.id, upload_task);
        Ok(ResponseStream::new(JobEvents::new(events, engine, permit, call.span.clone()), encoder, call))
    }
}

#[tonic::async_trait]
impl summarization_server::Summarization for JobService {
    type SummarizeStream = ResponseStream<SummaryEncoder>;

    async fn summarize(&self, request: Request<Streaming<v1::SummarizeRequest>>) -> Reply<Self::SummarizeStream> {
        let call = Call::of(&request);
        let stream = self.start_summary(request.into_inner(), call.clone()).await;
        self.respond(stream, &call).await
    }
}
