//! The methods of the Open Inference Protocol, and what it reports about models.

use crate::{
    call::{Call, Reply},
    calls::Calls,
    completion_request::Surface,
    grpc::generation::Incoming,
    metrics::{CountAndTime, RequestTotals},
    middleware::{
        deadlines::begin_by,
        limits::{CollectedLimits, RequestMemory, check_unary},
    },
    open_inference::{
        request::{DEFAULT_LEVEL, InferRequest, OutputOptions, PRIORITY_LEVELS, VERSION, check_version},
        response::{ResponseBuilder, for_client},
        tensors::{ElementType, INPUTS, OUTPUTS, TEXT_INPUT},
    },
    registry::{Engines, Lease, Monitor, continues_text, summarizes},
};
use prost::Message as _;
use std::sync::Arc;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};
use weir_engine::Phase;
use weir_kernels::error::{Error, Result};
use weir_models::contract::Card;
use weir_proto::{
    inference as oip,
    inference::{
        InferStatistics, ModelConfig, ModelDynamicBatching, ModelInput, ModelMetadataResponse, ModelOutput,
        ModelParameter, ModelQueuePolicy, ModelStatistics, ModelTransactionPolicy, ServerMetadataResponse,
        StatisticDuration, grpc_inference_service_server::GrpcInferenceService,
        model_metadata_response::TensorMetadata, repository_index_response::ModelIndex,
    },
    v1,
};

/// The platform and backend of all models.
const PLATFORM: &str = "weir";

/// Extensions of the protocol that this server supports, by Triton's names.
const EXTENSIONS: [&str; 4] = ["model_configuration", "parameters", "schedule_policy", "statistics"];

/// Why a model of documents takes no requests of this protocol.
const DOCUMENTS: &str = "it summarizes documents: use weir.v1.Summarization";

/// Returns the server's metadata.
pub(crate) fn server_metadata_response() -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: PLATFORM.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        extensions: EXTENSIONS.map(Into::into).to_vec(),
    }
}

/// Returns a model by its name and version. Fails if the name or version is unknown.
fn find(engines: &Engines, name: &str, version: &str) -> Result<Lease> {
    check_version(version)?;
    engines.find("name", Some(name))
}

/// Returns the model that a request names. Fails if no model has this name, or if it is empty and several models could
/// answer. An unknown model is reported before problems with the tensors, which depend on the model.
fn named(engines: &Engines, name: &str) -> Result<Lease> {
    engines.find_able("model_name", Some(name), continues_text)
}

/// Returns a model that continues text. Fails if it is unknown or summarizes documents.
fn find_generating(engines: &Engines, name: &str, version: &str) -> Result<Lease> {
    check_version(version)?;
    let engine = engines.find_able("name", Some(name), continues_text)?;
    if !continues_text(&engine) {
        let card = engine.card();
        return Err(Error::only_summarizes(&card.name, "continues a prompt", &card.shape));
    }
    Ok(engine)
}

/// Returns why a model takes no requests, or `None` if it does.
fn unready_reason(engine: &Lease) -> Option<&'static str> {
    if summarizes(engine) {
        return Some(DOCUMENTS);
    }
    (engine.phase() == Phase::Broken).then_some("its worker is broken")
}

/// Returns a model's tensors.
fn model_metadata_response(engine: &Lease) -> ModelMetadataResponse {
    let tensor = |&(name, kind): &(&str, ElementType)| TensorMetadata {
        name: name.into(),
        datatype: kind.name().into(),
        shape: vec![1],
    };
    ModelMetadataResponse {
        name: engine.card().name.clone(),
        versions: vec![VERSION.into()],
        platform: PLATFORM.into(),
        inputs: INPUTS.iter().map(tensor).collect(),
        outputs: OUTPUTS.iter().map(tensor).collect(),
    }
}

/// Returns a model's configuration.
fn model_config_of(engine: &Lease) -> ModelConfig {
    let card = engine.card();
    let input = |&(name, kind): &(&str, ElementType)| ModelInput {
        name: name.into(),
        data_type: kind.config_type().into(),
        dims: vec![1],
        optional: name != TEXT_INPUT,
    };
    let output = |&(name, kind): &(&str, ElementType)| ModelOutput {
        name: name.into(),
        data_type: kind.config_type().into(),
        dims: vec![1],
    };
    let token = match &card.vocabulary {
        vocabulary if vocabulary.is_bytes() => "byte",
        vocabulary if vocabulary.is_subword() => "piece",
        _ => "character",
    };
    let parameters = [
        ("family", card.family.to_owned()),
        ("shape", card.shape.clone()),
        ("dtype", card.dtype.to_owned()),
        ("max_symbols", card.max_symbols.to_string()),
        ("token", token.to_owned()),
    ];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), ModelParameter { string_value: value }));
    ModelConfig {
        name: card.name.clone(),
        platform: PLATFORM.into(),
        backend: PLATFORM.into(),
        max_batch_size: 0,
        input: INPUTS.iter().map(input).collect(),
        output: OUTPUTS.iter().map(output).collect(),
        dynamic_batching: Some(ModelDynamicBatching {
            priority_levels: PRIORITY_LEVELS,
            default_priority_level: DEFAULT_LEVEL,
            default_queue_policy: Some(ModelQueuePolicy {
                allow_timeout_override: true,
                max_queue_size: u32::try_from(engine.limits().queue).unwrap_or(u32::MAX),
                ..Default::default()
            }),
        }),
        parameters: parameters.into(),
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
    }
}

/// Returns the request statistics of one model, or of all if `name` is empty. Fails if the name or version is unknown.
fn statistics_of(engines: &Engines, name: &str, version: &str) -> Result<Vec<ModelStatistics>> {
    let selected = if name.is_empty() { engines.all() } else { vec![find(engines, name, version)?] };
    let statistics = |engine: &Lease| {
        let name = engine.card().name.clone();
        let RequestTotals { success, fail, queue, prefill, decode, steps, last } =
            engines.metrics().request_totals(&name);
        let times = |CountAndTime { count, ns }| Some(StatisticDuration { count, ns });
        ModelStatistics {
            name,
            version: VERSION.into(),
            last_inference: last,
            inference_count: success.count,
            execution_count: steps,
            inference_stats: Some(InferStatistics {
                success: times(success),
                fail: times(fail),
                queue: times(queue),
                compute_input: times(prefill),
                compute_infer: times(decode),
                compute_output: times(CountAndTime::default()),
            }),
        }
    };
    Ok(selected.iter().map(statistics).collect())
}

/// Lists the models in service.
fn ready_models(monitor: &Monitor, only_ready: bool) -> Vec<ModelIndex> {
    let server_reason = monitor.ready().err();
    let models = monitor.engines().all().into_iter().map(|engine| {
        let reason = unready_reason(&engine).map(str::to_owned).or_else(|| server_reason.clone());
        let state = if reason.is_none() { "READY" } else { "UNAVAILABLE" };
        let name = engine.card().name.clone();
        ModelIndex { name, version: VERSION.into(), state: state.into(), reason: reason.unwrap_or_default() }
    });
    models.filter(|model| !only_ready || model.reason.is_empty()).collect()
}

/// The service. `ModelInfer` generates in its own call, and each request of a stream becomes a call of `Generate`.
#[derive(Clone)]
pub(crate) struct InferenceService {
    pub(crate) calls: Calls,
    /// Watches the engines, and reports the health of the server.
    pub(crate) monitor: Monitor,
    /// Limits of responses that are not streamed.
    pub(crate) collected: CollectedLimits,
    /// Maximum concurrent requests of one stream.
    pub(crate) max_concurrent: usize,
}

impl InferenceService {
    /// Answers a request in one message, which is short enough for any client if the surface is gRPC's.
    pub(crate) async fn infer(
        &self,
        request: Incoming<oip::ModelInferRequest>,
        surface: Surface,
    ) -> Result<oip::ModelInferResponse> {
        let Incoming { message, call, memory } = request;
        let mut request = self.parse(&call.tenant(), message, memory, surface).await?;
        let names = std::mem::take(&mut request.names);
        // Its state would fill half of a thread's stack, which the futures around it copy.
        Box::pin(self.answer(call, request, surface)).await.map_err(|error| names.name(error))
    }

    async fn answer(&self, call: Call, request: InferRequest, surface: Surface) -> Result<oip::ModelInferResponse> {
        let tenant = call.tenant();
        let InferRequest { generate, mut output, deadline, .. } = request;
        if output.stream {
            return Err(Error::bad_option("stream", "true", "false (ModelStreamInfer streams)"));
        }
        if surface == Surface::Inference {
            let engine = self.monitor.engines().find_able("model_name", generate.model.as_deref(), continues_text)?;
            check_answer(&generate, &output, engine.card())?;
        }
        output.empty_final = false;
        let mut response = ResponseBuilder::new(output);
        let deadline = [call.deadline, deadline].into_iter().flatten().min();
        let started = self.calls.start_generate(Call { deadline, ..call }, generate);
        let mut generated = begin_by(deadline, started).await.flatten()?;
        let mut size = self.collected.begin(&tenant, "use ModelStreamInfer with the input stream");
        while let Some(message) = generated.next().await {
            message?.event.into_iter().for_each(|event| response.push(event));
            size.grow_to(response.memory_bytes())?;
        }
        let bytes = response.memory_bytes();
        let built = self.calls.jobs.workers.run(&tenant, bytes, move || {
            let _size = size;
            response.take_message()
        });
        built.await
    }

    /// Parses a request of this tenant, on a worker if it is long. Holds `memory` until then. Errors have the surface's names.
    pub(crate) async fn parse(
        &self,
        tenant: &Arc<str>,
        message: oip::ModelInferRequest,
        memory: Option<RequestMemory>,
        surface: Surface,
    ) -> Result<InferRequest> {
        let engine = named(self.monitor.engines(), &message.model_name)?;
        let parsed = self.calls.jobs.workers.run(tenant, message.encoded_len(), move || {
            let _memory = memory;
            InferRequest::parse(message, engine.card(), surface)
        });
        parsed.await.flatten()
    }

    /// Returns the tensors of a model.
    pub(crate) fn metadata(&self, name: &str, version: &str) -> Result<oip::ModelMetadataResponse> {
        let engine = find_generating(self.monitor.engines(), name, version);
        engine.map(|engine| model_metadata_response(&engine))
    }

    /// Returns true if a model takes requests.
    pub(crate) fn is_ready(&self, name: &str, version: &str) -> bool {
        let model = find(self.monitor.engines(), name, version);
        model.is_ok_and(|engine| unready_reason(&engine).is_none()) && self.monitor.ready().is_ok()
    }
}

/// Bytes of an alternative in the output `logprobs` without its text, at most: its id, log-probability and rank, and their names.
const ALTERNATIVE_BYTES: usize = 96;

/// Checks that the response to a request is not too long for clients of gRPC.
fn check_answer(generate: &v1::GenerateRequest, output: &OutputOptions, card: &Card) -> Result<()> {
    const WHY: &str = "so that the response has at most 4 MiB; ModelStreamInfer streams longer ones";
    let details = generate.details.unwrap_or_default();
    let echoed = if details.echo() && output.has("text_output") { generate.prompt.len() } else { 0 };
    check_unary("text_input", echoed, "bytes with exclude_input_in_output false", 0, 1, WHY)?;
    let symbol = card.vocabulary.longest_symbol();
    let text = if output.has("text_output") { symbol } else { 0 };
    let alternatives = usize::try_from(details.top_logprobs()).unwrap_or(usize::MAX).saturating_add(1);
    let logprobs = if output.has("logprobs") { alternatives.saturating_mul(ALTERNATIVE_BYTES + symbol) } else { 0 };
    let tokens = generate.stopping.as_ref().and_then(|stopping| stopping.max_chars).unwrap_or_default();
    let tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
    if tokens > card.max_symbols {
        // the model's lower limit refuses it later
        return Ok(());
    }
    check_unary("max_tokens", tokens, "tokens", echoed, text.saturating_add(logprobs), WHY)
}

/// Returns a function that converts errors of this call to statuses.
fn status_of(call: &Call) -> impl Fn(Error) -> Status {
    |error| for_client(error, &call.id)
}

#[tonic::async_trait]
impl GrpcInferenceService for InferenceService {
    type ModelStreamInferStream = tokio_stream::Empty<Result<oip::ModelStreamInferResponse, Status>>;

    async fn server_live(&self, _: Request<oip::ServerLiveRequest>) -> Reply<oip::ServerLiveResponse> {
        Ok(Response::new(oip::ServerLiveResponse { live: self.monitor.alive().is_ok() }))
    }

    async fn server_ready(&self, _: Request<oip::ServerReadyRequest>) -> Reply<oip::ServerReadyResponse> {
        Ok(Response::new(oip::ServerReadyResponse { ready: self.monitor.ready().is_ok() }))
    }

    async fn server_metadata(&self, _: Request<oip::ServerMetadataRequest>) -> Reply<oip::ServerMetadataResponse> {
        Ok(Response::new(server_metadata_response()))
    }

    async fn model_ready(&self, request: Request<oip::ModelReadyRequest>) -> Reply<oip::ModelReadyResponse> {
        let oip::ModelReadyRequest { name, version } = request.get_ref();
        Ok(Response::new(oip::ModelReadyResponse { ready: self.is_ready(name, version) }))
    }

    async fn model_metadata(&self, request: Request<oip::ModelMetadataRequest>) -> Reply<oip::ModelMetadataResponse> {
        let oip::ModelMetadataRequest { name, version } = request.get_ref();
        self.metadata(name, version).map(Response::new).map_err(status_of(&Call::of(&request)))
    }

    async fn model_config(&self, request: Request<oip::ModelConfigRequest>) -> Reply<oip::ModelConfigResponse> {
        let oip::ModelConfigRequest { name, version } = request.get_ref();
        let engine = find_generating(self.monitor.engines(), name, version);
        let config = engine.map(|engine| Some(model_config_of(&engine))).map_err(status_of(&Call::of(&request)))?;
        Ok(Response::new(oip::ModelConfigResponse { config }))
    }

    async fn model_statistics(
        &self,
        request: Request<oip::ModelStatisticsRequest>,
    ) -> Reply<oip::ModelStatisticsResponse> {
        let oip::ModelStatisticsRequest { name, version } = request.get_ref();
        let statistics = statistics_of(self.monitor.engines(), name, version);
        let model_stats = statistics.map_err(status_of(&Call::of(&request)))?;
        Ok(Response::new(oip::ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<oip::RepositoryIndexRequest>,
    ) -> Reply<oip::RepositoryIndexResponse> {
        let models = ready_models(&self.monitor, request.get_ref().ready);
        Ok(Response::new(oip::RepositoryIndexResponse { models }))
    }

    async fn model_infer(&self, request: Request<oip::ModelInferRequest>) -> Reply<oip::ModelInferResponse> {
        let call = Call::of(&request);
        self.infer(Incoming::of(request), Surface::Inference).await.map(Response::new).map_err(status_of(&call))
    }

    /// Never called: `InferenceServer` handles this method with its own codec.
    async fn model_stream_infer(
        &self,
        _: Request<Streaming<oip::ModelInferRequest>>,
    ) -> Reply<Self::ModelStreamInferStream> {
        Err(Status::unimplemented("ModelStreamInfer is handled by its own codec"))
    }
}
