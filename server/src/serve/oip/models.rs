//! Metadata, configuration, statistics and readiness of the server and its models.

use super::{
    request::{DEFAULT_LEVEL, PRIORITY_LEVELS, VERSION, check_version},
    tensors::{ElementType, INPUTS, OUTPUTS, TEXT_INPUT},
};
use crate::{
    engine::Phase,
    error::{Error, Result},
    metrics::{CountAndTime, RequestTotals},
    serve::registry::{
        abilities::{continues_text, summarizes},
        engines::{Engines, Lease},
        health::Monitor,
    },
};
use weir_proto::inference::{
    InferStatistics, ModelConfig, ModelDynamicBatching, ModelInput, ModelMetadataResponse, ModelOutput, ModelParameter,
    ModelQueuePolicy, ModelStatistics, ModelTransactionPolicy, ServerMetadataResponse, StatisticDuration,
    model_metadata_response::TensorMetadata, repository_index_response::ModelIndex,
};

/// The platform and backend of all models.
const PLATFORM: &str = "weir";
/// Extensions of the protocol that this server supports, by Triton's names.
const EXTENSIONS: [&str; 4] = ["model_configuration", "parameters", "schedule_policy", "statistics"];
/// Why a model of documents takes no requests of this protocol.
const DOCUMENTS: &str = "it summarizes documents: use weir.v1.Summarization";

/// Returns the server's metadata.
pub(in crate::serve) fn server() -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: PLATFORM.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        extensions: EXTENSIONS.map(Into::into).to_vec(),
    }
}

/// Returns a model by its name and version. Fails if the name or version is unknown.
pub(super) fn find(engines: &Engines, name: &str, version: &str) -> Result<Lease> {
    check_version(version)?;
    engines.find("name", Some(name))
}

/// Returns the number of symbols of the model that a request names. Fails if no model has this name, or if it is empty and several
/// models could answer. An unknown model is reported before problems with the tensors, which depend on the model.
pub(super) fn symbols_of(engines: &Engines, name: &str) -> Result<usize> {
    engines.find_able("model_name", Some(name), continues_text).map(|engine| engine.card().vocabulary.len())
}

/// Returns a model that continues text, for the method `call`. Fails if it is unknown or summarizes documents.
pub(super) fn find_generating(engines: &Engines, call: &'static str, name: &str, version: &str) -> Result<Lease> {
    check_version(version)?;
    let engine = engines.find_able("name", Some(name), continues_text)?;
    if !continues_text(&engine) {
        let model = engine.card().name.clone();
        let found = "a model that summarizes (use weir.v1.Summarization)".into();
        return Err(Error::WrongKind { call, model, wanted: "continues a prompt", found });
    }
    Ok(engine)
}

/// Returns why a model takes no requests, or `None` if it does.
pub(super) fn unready_reason(engine: &Lease) -> Option<&'static str> {
    if summarizes(engine) {
        return Some(DOCUMENTS);
    }
    (engine.phase() == Phase::Broken).then_some("its worker is broken")
}

/// Returns a model's tensors.
pub(super) fn metadata(engine: &Lease) -> ModelMetadataResponse {
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
pub(super) fn config(engine: &Lease) -> ModelConfig {
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
pub(super) fn statistics(engines: &Engines, name: &str, version: &str) -> Result<Vec<ModelStatistics>> {
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
pub(super) fn index(monitor: &Monitor, only_ready: bool) -> Vec<ModelIndex> {
    let server_reason = monitor.ready().err();
    let models = monitor.engines().all().into_iter().map(|engine| {
        let reason = unready_reason(&engine).map(str::to_owned).or_else(|| server_reason.clone());
        let state = if reason.is_none() { "READY" } else { "UNAVAILABLE" };
        let name = engine.card().name.clone();
        ModelIndex { name, version: VERSION.into(), state: state.into(), reason: reason.unwrap_or_default() }
    });
    models.filter(|model| !only_ready || model.reason.is_empty()).collect()
}
