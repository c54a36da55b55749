//! What is told of the server and of its models.

use super::{
    request::{DEFAULT_LEVEL, PRIORITY_LEVELS, VERSION, check_version},
    tensors::{INPUTS, Kind, OUTPUTS, TEXT_INPUT},
};
use crate::{
    engine::Phase,
    error::{Error, Result},
    metrics::{CountAndTime, RequestTotals},
    serve::registry::{
        engines::{Engines, Lease},
        health::Monitor,
    },
};
use weir_proto::inference::{
    InferStatistics, ModelConfig, ModelDynamicBatching, ModelInput, ModelMetadataResponse, ModelOutput, ModelParameter,
    ModelQueuePolicy, ModelStatistics, ModelTransactionPolicy, ServerMetadataResponse, StatisticDuration,
    model_metadata_response::TensorMetadata, repository_index_response::ModelIndex,
};

/// What models run on.
const PLATFORM: &str = "weir";
/// What this server can beyond the protocol's core, as Triton names it.
const EXTENSIONS: [&str; 4] = ["model_configuration", "parameters", "schedule_policy", "statistics"];
/// Why a model of documents is none of those that are asked here.
const DOCUMENTS: &str = "it summarizes documents, which weir.v1.Summarization takes";

/// The server.
pub(super) fn server() -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: PLATFORM.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        extensions: EXTENSIONS.map(Into::into).to_vec(),
    }
}

/// A model by its name and version.
///
/// # Errors
/// There is none.
pub(super) fn find(engines: &Engines, name: &str, version: &str) -> Result<Lease> {
    check_version(version)?;
    engines.find("name", Some(name))
}

/// A model that continues text, for that call.
///
/// # Errors
/// There is none of that name, or it is of another kind.
pub(super) fn generating(engines: &Engines, call: &'static str, (name, version): (&str, &str)) -> Result<Lease> {
    let engine = find(engines, name, version)?;
    if engine.document_limits().is_some() {
        let model = engine.card().name.clone();
        let found = "one that summarizes documents".into();
        return Err(Error::WrongKind { call, model, wanted: "goes on from a prompt", found });
    }
    Ok(engine)
}

/// Why a model takes no requests, if it does not.
pub(super) fn unready(engine: &Lease) -> Option<&'static str> {
    if engine.document_limits().is_some() {
        return Some(DOCUMENTS);
    }
    (engine.phase() == Phase::Broken).then_some("its worker has broken")
}

/// Its tensors.
pub(super) fn metadata(engine: &Lease) -> ModelMetadataResponse {
    let tensor = |&(name, kind): &(&str, Kind)| TensorMetadata {
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

/// Its tensors and manners.
pub(super) fn config(engine: &Lease) -> ModelConfig {
    let (card, limits) = (engine.card(), engine.limits());
    let input = |&(name, kind): &(&str, Kind)| ModelInput {
        name: name.into(),
        data_type: kind.configured().into(),
        dims: vec![1],
        optional: name != TEXT_INPUT,
    };
    let output = |&(name, kind): &(&str, Kind)| ModelOutput {
        name: name.into(),
        data_type: kind.configured().into(),
        dims: vec![1],
    };
    let parameters = [
        ("family", card.family.to_owned()),
        ("shape", card.shape.clone()),
        ("dtype", card.dtype.to_owned()),
        ("max_symbols", card.max_symbols.to_string()),
        ("token", if card.vocabulary.is_bytes() { "byte" } else { "character" }.to_owned()),
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
                max_queue_size: u32::try_from(limits.queue).unwrap_or(u32::MAX),
                ..Default::default()
            }),
        }),
        parameters: parameters.into(),
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
    }
}

/// What became of the requests to one model, or to all.
///
/// # Errors
/// There is none of that name.
pub(super) fn statistics(engines: &Engines, name: &str, version: &str) -> Result<Vec<ModelStatistics>> {
    let asked = if name.is_empty() { engines.all() } else { vec![find(engines, name, version)?] };
    let told = |engine: &Lease| {
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
    Ok(asked.iter().map(told).collect())
}

/// The models that are there.
pub(super) fn index(monitor: &Monitor, only_ready: bool) -> Vec<ModelIndex> {
    let server = monitor.ready().err();
    let told = monitor.engines().all().into_iter().map(|engine| {
        let reason = unready(&engine).map(str::to_owned).or_else(|| server.clone());
        let state = if reason.is_none() { "READY" } else { "UNAVAILABLE" };
        let (name, version) = (engine.card().name.clone(), VERSION.into());
        ModelIndex { name, version, state: state.into(), reason: reason.unwrap_or_default() }
    });
    told.filter(|one| !only_ready || one.reason.is_empty()).collect()
}
