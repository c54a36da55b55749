//! Calls of a server's services. [`Client::answered`] explains the errors of all but the admin service.

use crate::connection::{Client, TIMEOUT};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt, once, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use weir_kernels::error::{Error, Result};
use weir_proto::inference::{
    ServerMetadataRequest, ServerMetadataResponse, grpc_inference_service_client::GrpcInferenceServiceClient,
};
use weir_proto::v1::{
    CheckRequest, CheckResponse, CompressOptions, CompressRequest, CompressResponse, DecompressOptions,
    DecompressRequest, DecompressResponse, DocumentChunk, EditRequest, EditResponse, GenerateRequest, GenerateResponse,
    GetModelRequest, GetReportRequest, ListGenerationsRequest, ListModelsRequest, LoadModelRequest, LoadModelResponse,
    Model, ModelGeneration, ModelReport, ReportWindow, ResetReportRequest, ScoreRequest, ScoreResponse, SegmentRequest,
    SegmentResponse, SummarizeOptions, SummarizeRequest, SummarizeResponse, UnloadModelRequest,
    admin_client::AdminClient, codec_client::CodecClient, compress_request, decompress_request,
    editing_client::EditingClient, generation_client::GenerationClient, latency_client::LatencyClient,
    models_client::ModelsClient, summarization_client::SummarizationClient, summarize_request,
};

/// Maximum bytes of a message: the models' vocabularies, the segments of a long text, a summary, or a report with the histograms of
/// many models.
const MESSAGE_BYTES: usize = 64 << 20;

/// Models, reports and health.
impl Client {
    /// Lists all models of the server.
    pub async fn list_models(&self, timeout: Duration) -> Result<Vec<Model>, Status> {
        let request = self.request_within(ListModelsRequest {}, timeout);
        Ok(self.models().list_models(request).await?.into_inner().models)
    }

    /// Returns the description of a model. Without a name, describes the model that continues and scores texts if exactly
    /// one model can answer the call, otherwise `None`.
    pub async fn text_model(&self, name: Option<String>) -> Result<Option<Model>> {
        if name.is_some() {
            let request = self.request_within(GetModelRequest { name }, TIMEOUT);
            let model = self.models().get_model(request).await;
            return Ok(Some(self.answered(model).await?.into_inner()));
        }
        let models = self.list_models(TIMEOUT).await;
        Ok(only_text_model(self.answered(models).await?))
    }

    /// Returns the latency report of the model of that name, or of all models. The default window is the server's.
    pub async fn reports(
        &self,
        model: Option<String>,
        window: Option<ReportWindow>,
        timeout: Duration,
    ) -> Result<Vec<ModelReport>, Status> {
        let request = GetReportRequest { model, window: window.map(i32::from) };
        let mut client = LatencyClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES);
        Ok(client.get_report(self.request_within(request, timeout)).await?.into_inner().models)
    }

    /// Returns true if a service reports that it serves. `""` stands for the server as a whole. Fails if the server or
    /// service is unknown or does not answer in five seconds.
    pub async fn is_serving(&self, service: &str) -> Result<bool> {
        let request = self.request_within(HealthCheckRequest { service: service.to_owned() }, TIMEOUT);
        match HealthClient::new(self.channel()).check(request).await {
            Ok(answer) => Ok(answer.into_inner().status() == ServingStatus::Serving),
            Err(status) if status.code() == Code::NotFound => {
                Err(self.rejected(format!("the server has no service {service:?}")))
            }
            Err(status) => Err(self.failed(&status).await),
        }
    }

    fn models(&self) -> ModelsClient<Channel> {
        ModelsClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES)
    }
}

/// Returns the only model that continues texts, or `None` if there are none or several.
fn only_text_model(models: Vec<Model>) -> Option<Model> {
    // Models with limits of documents summarize them.
    let mut texts = models.into_iter().filter(|model| model.documents.is_none());
    let only = texts.next();
    if texts.next().is_some() { None } else { only }
}

/// The messages that a call returns, or the server's own status.
pub type StreamAnswer<M> = Result<Response<Streaming<M>>, Status>;

/// Calls whose status the caller reads itself. [`Client::request`] and [`Client::request_within`] prepare their requests.
impl Client {
    /// Starts a generation.
    pub async fn start_generate(&self, request: Request<GenerateRequest>) -> StreamAnswer<GenerateResponse> {
        self.generation().generate(request).await
    }

    /// Starts to score a text.
    pub async fn start_score(&self, request: Request<ScoreRequest>) -> StreamAnswer<ScoreResponse> {
        self.generation().score(request).await
    }

    /// Begins to edit a document.
    pub async fn start_edit(&self, requests: Request<ReceiverStream<EditRequest>>) -> StreamAnswer<EditResponse> {
        EditingClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES).edit(requests).await
    }

    /// Starts to summarize a document.
    pub async fn start_summarize<S>(&self, requests: Request<S>) -> StreamAnswer<SummarizeResponse>
    where
        S: Stream<Item = SummarizeRequest> + Send + 'static,
    {
        SummarizationClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES).summarize(requests).await
    }

    /// Returns the name and version of the server software.
    pub async fn server_metadata(&self, timeout: Duration) -> Result<ServerMetadataResponse, Status> {
        let request = self.request_within(ServerMetadataRequest {}, timeout);
        Ok(GrpcInferenceServiceClient::new(self.channel()).server_metadata(request).await?.into_inner())
    }
}

/// Texts: generation, scores, segments and editing.
impl Client {
    /// Starts a generation.
    pub async fn generate(&self, request: GenerateRequest) -> Result<MessageStream<GenerateResponse>> {
        self.stream(self.start_generate(self.request(request)).await).await
    }

    /// Starts to score a text.
    pub async fn score(&self, request: ScoreRequest) -> Result<MessageStream<ScoreResponse>> {
        self.stream(self.start_score(self.request(request)).await).await
    }

    /// Splits a text into segments.
    pub async fn segment(&self, request: SegmentRequest) -> Result<SegmentResponse> {
        let response = self.generation().segment(self.request(request)).await;
        Ok(self.answered(response).await?.into_inner())
    }

    /// Finds words of a text that are probably misspelt.
    pub async fn check(&self, request: CheckRequest) -> Result<CheckResponse> {
        let response = self.generation().check(self.request(request)).await;
        Ok(self.answered(response).await?.into_inner())
    }

    /// Begins to edit a document. Sends the requests, and returns the responses.
    pub async fn edit(&self, requests: mpsc::Receiver<EditRequest>) -> Result<MessageStream<EditResponse>> {
        self.stream(self.start_edit(self.request(ReceiverStream::new(requests))).await).await
    }

    fn generation(&self) -> GenerationClient<Channel> {
        GenerationClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES)
    }

    /// Returns the messages of a call's response.
    async fn stream<M>(&self, response: StreamAnswer<M>) -> Result<MessageStream<M>> {
        let messages = self.answered(response).await?.into_inner();
        Ok(MessageStream { client: self.clone(), messages, failure: None })
    }
}

/// The messages of a response.
pub struct MessageStream<M> {
    client: Client,
    messages: Streaming<M>,
    /// Receives the error of reading what the request sends; `None` once all of it has been read.
    failure: Option<oneshot::Receiver<Error>>,
}

impl<M> MessageStream<M> {
    /// Waits for the next message; `None` at the end. Fails with the server's error, or with the error of reading what the request sends.
    pub async fn next(&mut self) -> Result<Option<M>> {
        let message = loop {
            match &mut self.failure {
                None => break self.messages.message().await,
                // Polled first, so that the answer to a text's beginning is never taken for the answer to the whole text.
                Some(failure) => tokio::select! {
                    biased;
                    failed = failure => match failed {
                        Ok(error) => return Err(error),
                        // The reader has ended without an error.
                        Err(_) => self.failure = None,
                    },
                    message = self.messages.message() => break message,
                },
            }
        };
        self.client.answered(message).await
    }
}

/// A text or a document that is sent while it is read.
pub struct Upload<P> {
    /// The parts, in order. The upload ends when their sender is dropped.
    pub parts: mpsc::Receiver<P>,
    /// The reader's error, if reading fails. The reader sends it before it drops the sender of the parts.
    pub failure: oneshot::Receiver<Error>,
}

/// Summaries and compression.
impl Client {
    /// Starts to summarize a document.
    pub async fn summarize(
        &self,
        options: SummarizeOptions,
        document: Upload<DocumentChunk>,
    ) -> Result<MessageStream<SummarizeResponse>> {
        use summarize_request::Part;
        let Upload { parts, failure } = document;
        let first = once(SummarizeRequest { part: Some(Part::Options(options)) });
        let chunk = |chunk| SummarizeRequest { part: Some(Part::Chunk(chunk)) };
        let request = self.request(first.chain(ReceiverStream::new(parts).map(chunk)));
        let messages = self.stream(self.start_summarize(request).await).await?;
        Ok(MessageStream { failure: Some(failure), ..messages })
    }

    /// Starts to compress a text.
    pub async fn compress(
        &self,
        options: CompressOptions,
        text: Upload<Vec<u8>>,
    ) -> Result<MessageStream<CompressResponse>> {
        use compress_request::Part;
        let Upload { parts, failure } = text;
        let first = once(CompressRequest { part: Some(Part::Options(options)) });
        let text = |text| CompressRequest { part: Some(Part::Text(text)) };
        let request = self.request(first.chain(ReceiverStream::new(parts).map(text)));
        let messages = self.stream(self.codec().compress(request).await).await?;
        Ok(MessageStream { failure: Some(failure), ..messages })
    }

    /// Starts to decompress data.
    pub async fn decompress(
        &self,
        options: DecompressOptions,
        data: Upload<Vec<u8>>,
    ) -> Result<MessageStream<DecompressResponse>> {
        use decompress_request::Part;
        let Upload { parts, failure } = data;
        let first = once(DecompressRequest { part: Some(Part::Options(options)) });
        let data = |data| DecompressRequest { part: Some(Part::Data(data)) };
        let request = self.request(first.chain(ReceiverStream::new(parts).map(data)));
        let messages = self.stream(self.codec().decompress(request).await).await?;
        Ok(MessageStream { failure: Some(failure), ..messages })
    }

    fn codec(&self) -> CodecClient<Channel> {
        CodecClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES)
    }
}

/// The admin service, whose calls carry the admin token as their key.
impl Client {
    /// Loads a model. Returns the generation that serves now, and the number of the one that drains.
    pub async fn load_model(
        &self,
        path: Option<String>,
        name: Option<String>,
    ) -> Result<(ModelGeneration, Option<u64>)> {
        let answer = self.admin().load_model(self.request(LoadModelRequest { path, name })).await;
        let LoadModelResponse { generation, draining } = self.administered(answer).await?;
        Ok((generation.unwrap_or_default(), draining))
    }

    /// Unloads a model. Returns the number of the generation that drains.
    pub async fn unload_model(&self, name: String) -> Result<u64> {
        let answer = self.admin().unload_model(self.request(UnloadModelRequest { name })).await;
        Ok(self.administered(answer).await?.generation)
    }

    /// Lists all generations in memory.
    pub async fn list_generations(&self) -> Result<Vec<ModelGeneration>> {
        let answer = self.admin().list_generations(self.request(ListGenerationsRequest {})).await;
        Ok(self.administered(answer).await?.generations)
    }

    /// Resets the report of a model, or of all models. Returns their names.
    pub async fn reset_report(&self, model: Option<String>) -> Result<Vec<String>> {
        let answer = self.admin().reset_report(self.request(ResetReportRequest { model })).await;
        Ok(self.administered(answer).await?.models)
    }

    fn admin(&self) -> AdminClient<Channel> {
        AdminClient::new(self.channel())
    }

    async fn administered<T>(&self, answer: Result<Response<T>, Status>) -> Result<T> {
        match answer {
            Err(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
                let advice = "check --admin-token-file or WEIR_ADMIN_TOKEN";
                Err(self.rejected(format!("{}: {advice}", status.message())))
            }
            answer => self.answered(answer.map(Response::into_inner)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::v1::Documents;

    #[test]
    fn summarizers_do_not_continue_texts() {
        let model = |name: &str, summarizes: bool| Model {
            name: name.into(),
            documents: summarizes.then(Documents::default),
            ..Model::default()
        };
        let only = |models: &[Model]| only_text_model(models.to_vec()).map(|model| model.name);
        assert_eq!(only(&[model("s", true), model("a", false)]), Some("a".into()));
        assert_eq!(only(&[model("a", false), model("b", false)]), None);
        assert_eq!(only(&[model("s", true)]), None);
    }
}
