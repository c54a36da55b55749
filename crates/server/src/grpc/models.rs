//! The service `Models`: describes the models that are served, and their limits.

use crate::call::{Call, Reply};
use crate::config::TransportConfig;
use crate::grpc::convert::{MAX_COALESCE, count, nanoseconds};
use crate::grpc::response::symbol_text;
use crate::middleware::limits::UNARY_BYTES;
use crate::registry::Engines;
use crate::status::status;
use prost::Message as _;
use tonic::{Request, Response};
use weir_engine::{Handle, PRIORITIES, options::OptionLimits};
use weir_kernels::error::Result;
use weir_models::{contract, text::Vocabulary};
use weir_proto::v1::{self, models_server};

/// Bytes that the description of a model takes without its symbols, at most.
const MODEL_BYTES: usize = 4 << 10;

pub(crate) struct ModelsService {
    pub(crate) engines: Engines,
    pub(crate) config: TransportConfig,
}

impl ModelsService {
    /// Describes all models. The symbols of vocabularies, of which there may be hundreds of thousands, can be left out; those that
    /// would make a message longer than clients read are.
    pub(crate) fn list(&self, with_symbols: bool) -> v1::ListModelsResponse {
        let mut left = if with_symbols { UNARY_BYTES } else { 0 };
        let models = self.engines.all().iter().map(|engine| self.describe_within(engine, &mut left)).collect();
        v1::ListModelsResponse { models }
    }

    /// Describes the model of that name, or the only one, as [`list`](Self::list) does.
    pub(crate) fn get(&self, name: Option<&str>, with_symbols: bool) -> Result<v1::Model> {
        let mut left = if with_symbols { UNARY_BYTES } else { 0 };
        self.engines.find("name", name).map(|engine| self.describe_within(&engine, &mut left))
    }

    /// Describes a model, with its symbols if they fit into the `left` bytes of the message, which this lowers.
    fn describe_within(&self, engine: &Handle, left: &mut usize) -> v1::Model {
        let mut model = self.describe(engine, *left > 0);
        if let Some(vocabulary) = &mut model.vocabulary
            && vocabulary.encoded_len() > left.saturating_sub(MODEL_BYTES)
        {
            vocabulary.symbols.clear();
        }
        *left = left.saturating_sub(model.encoded_len().max(MODEL_BYTES));
        model
    }

    fn describe(&self, engine: &Handle, with_symbols: bool) -> v1::Model {
        let card = engine.card();
        v1::Model {
            name: card.name.clone(),
            family: card.family.to_owned(),
            shape: card.shape.clone(),
            parameters: card.parameters as u64,
            vocabulary: Some(vocabulary(&card.vocabulary, with_symbols)),
            training_length: card.training_length as u64,
            pooled: card.pooled,
            boundary_threshold: card.boundary_threshold,
            boundary_modes: card.boundary_modes.iter().map(|mode| mode.name().to_owned()).collect(),
            dtype: card.dtype.to_owned(),
            sha256: card.sha256.clone(),
            limits: Some(self.limits(engine)),
            documents: engine.document_limits().map(documents),
            exactness: card.exactness.name().to_owned(),
            tolerance: card.exactness.tolerance(),
            scope: card.scope.clone(),
        }
    }

    fn limits(&self, engine: &Handle) -> v1::Limits {
        let limits = engine.limits();
        v1::Limits {
            max_symbols: engine.card().max_symbols as u64,
            rows: count(limits.rows),
            queue: count(limits.queue),
            chunk: count(limits.chunk),
            boundary_wait: count(limits.boundary_wait),
            queued_symbols: limits.queued_symbols as u64,
            stall_ns: nanoseconds(limits.stall),
            cache_bytes: limits.cache_bytes as u64,
            highest_priority: *PRIORITIES.end(),
            lowest_priority: *PRIORITIES.start(),
            message_bytes: self.config.message_bytes as u64,
            concurrent_streams: self.config.concurrent_streams,
            stop_strings: count(OptionLimits::STOPS),
            stop_symbols: count(OptionLimits::STOP_SYMBOLS),
            top_logprobs: count(OptionLimits::TOP_LOGPROBS),
            logit_bias: count(OptionLimits::LOGIT_BIAS),
            coalesce_chars: count(MAX_COALESCE),
            document_bytes: limits.document_bytes as u64,
            document_keep_ns: nanoseconds(limits.document_keep),
            windowed_symbols: OptionLimits::WINDOWED_SYMBOLS as u64,
            header_bytes: self.config.header_bytes,
            pending_resets: count(self.config.pending_resets),
            error_resets: count(self.config.error_resets),
            connections: count(self.config.connections),
            handshake_ns: nanoseconds(self.config.handshake),
            request_memory_bytes: self.config.request_memory as u64,
            upload_ns: nanoseconds(self.config.upload),
            events: count(limits.events),
            step_ns: nanoseconds(limits.step),
            keepalive_interval_ns: self.config.keepalive_interval.map_or(0, nanoseconds),
            keepalive_timeout_ns: nanoseconds(self.config.keepalive_timeout),
            calls: count(self.config.calls),
            connections_per_address: count(self.config.connections_per_address),
            connection_idle_ns: self.config.connection_idle.map_or(0, nanoseconds),
            connection_age_ns: self.config.connection_age.map_or(0, nanoseconds),
            connection_age_grace_ns: nanoseconds(self.config.connection_age_grace),
            request_work: limits.request_work as u64,
            request_time_ns: nanoseconds(limits.request_time),
            response_bytes: self.config.response_bytes as u64,
            tokenization_workers: count(self.config.tokenization_workers),
        }
    }
}

fn documents(limits: &contract::DocumentLimits) -> v1::Documents {
    let contract::DocumentLimits { tokens, targets, padded, ref poolings, ref generation, .. } = *limits;
    let step = |step: &contract::PoolingStep| v1::PoolingStep {
        layer: count(step.layer),
        length_before: step.from as u64,
        length_after: step.to as u64,
    };
    let max_summary_tokens = targets.saturating_sub(1);
    v1::Documents {
        max_tokens: tokens.saturating_sub(1) as u64,
        max_summary_tokens: max_summary_tokens as u64,
        padded,
        poolings: poolings.iter().map(step).collect(),
        beam_size: count(generation.beam),
        length_penalty: generation.length_penalty,
        min_tokens: count(generation.min_tokens),
        max_summary_tokens_default: count(generation.max_tokens.min(max_summary_tokens)),
        no_repeat_ngram: count(generation.no_repeat_ngram),
        search_rules: generation.rules.name().to_owned(),
        early_stopping: generation.early_stopping.name().to_owned(),
        repetition_penalty: generation.repetition_penalty,
        prefix: generation.prefix.clone(),
    }
}

fn vocabulary(vocabulary: &Vocabulary, with_symbols: bool) -> v1::Vocabulary {
    let size = count(vocabulary.len());
    let symbols = if vocabulary.is_bytes() || !with_symbols { 0..0 } else { 0..size };
    v1::Vocabulary {
        size,
        symbols: symbols.map(|id| display_text(id, vocabulary)).collect(),
        bytes: vocabulary.is_bytes(),
        normaliser: vocabulary.normaliser().name().to_owned(),
        first_byte: vocabulary.byte_zero().unwrap_or_default(),
        pieces: vocabulary.is_subword(),
        marks: vocabulary.named_ids().into_iter().map(|(name, id)| (name.to_owned(), id)).collect(),
    }
}

/// Returns a symbol's text, or the spelling of a special symbol.
fn display_text(id: u32, vocabulary: &Vocabulary) -> String {
    vocabulary.display_name(id).map_or_else(|| symbol_text(id, vocabulary), str::to_owned)
}

#[tonic::async_trait]
impl models_server::Models for ModelsService {
    async fn list_models(&self, _: Request<v1::ListModelsRequest>) -> Reply<v1::ListModelsResponse> {
        Ok(Response::new(self.list(true)))
    }

    async fn get_model(&self, request: Request<v1::GetModelRequest>) -> Reply<v1::Model> {
        let model = self.get(request.get_ref().name.as_deref(), true);
        model.map(Response::new).map_err(|error| status(&error, &Call::of(&request).id))
    }
}
