//! The limits of each model's engine.

use super::MANY;
use crate::{config::Checks, decode::boundary_wait::MAX_BOUNDARY_WAIT, engine::Limits};
use std::time::Duration;

/// The most symbols of a step: nothing ends one that has begun, so that it must be short beside any limit in seconds.
const MOST_CHUNK: usize = 4096;

/// The flags of the engine.
#[derive(Debug, clap::Args)]
pub(super) struct EngineArgs {
    /// Requests of a model that run at once.
    #[arg(long, value_name = "N", env = "WEIR_ROWS", default_value_t = Limits::default().rows.to_string())]
    rows: String,
    /// Requests of a model that may wait.
    #[arg(long, value_name = "N", env = "WEIR_QUEUE", default_value_t = Limits::default().queue.to_string())]
    queue: String,
    /// Symbols of their prompts, together.
    #[arg(long, value_name = "N", env = "WEIR_QUEUED_SYMBOLS", default_value_t = Limits::default().queued_symbols.to_string())]
    queued_symbols: String,
    /// Symbols of prompts that are processed in one step, 1 to 4096: a running stream and the end of draining may have to
    /// wait for one.
    #[arg(long, value_name = "N", env = "WEIR_CHUNK", default_value_t = Limits::default().chunk.to_string())]
    chunk: String,
    /// How long a step with prompts may last, about, while others generate: as many symbols of prompts are processed in it as
    /// that allows, but 16 and never more than --chunk. 0: as long as it takes.
    #[arg(long, value_name = "N", env = "WEIR_STEP_MILLISECONDS", default_value_t = Limits::default().step.as_millis().to_string())]
    step_milliseconds: String,
    /// Steps that a request whose segment ended may wait for others, to share a step of the middle layers.
    #[arg(long, value_name = "N", env = "WEIR_BOUNDARY_WAIT", default_value_t = Limits::default().boundary_wait.to_string())]
    boundary_wait: String,
    /// Events of a request that may wait for its client before its row pauses.
    #[arg(long, value_name = "N", env = "WEIR_EVENTS", default_value_t = Limits::default().events.to_string())]
    events: String,
    /// How long a client may take nothing of what is ready for it before its request ends; at least 1.
    #[arg(long, value_name = "N", env = "WEIR_STALL_SECONDS", default_value_t = Limits::default().stall.as_secs().to_string())]
    stall_seconds: String,
    /// The part of each model's key-value memory in which texts are kept for later requests that begin alike; 0 keeps none.
    /// A quarter of it, if not given.
    #[arg(long, value_name = "SIZE", env = "WEIR_CACHE_MEMORY")]
    cache_memory: Option<String>,
    /// Memory in which each model that summarizes keeps encoded documents for later requests; 0 keeps none. A quarter of its
    /// key-value memory, if not given.
    #[arg(long, value_name = "SIZE", env = "WEIR_DOCUMENT_MEMORY")]
    document_memory: Option<String>,
    /// How long a document is kept that no request asks for; at least 1.
    #[arg(long, value_name = "N", env = "WEIR_DOCUMENT_SECONDS", default_value_t = Limits::default().document_keep.as_secs().to_string())]
    document_seconds: String,
    /// How long the steps of each model may be timed when it is loaded, so that reports can estimate what pooling gains; 0: they
    /// are not. Whatever it is, nothing is timed while requests run.
    #[arg(long, value_name = "N", env = "WEIR_CALIBRATION_MILLISECONDS", default_value_t = Limits::default().calibration.as_millis().to_string())]
    calibration_milliseconds: String,
}

impl EngineArgs {
    /// As the engine wants them, for models of so much key-value memory.
    pub(super) fn limits(&self, memory: usize, checks: &mut Checks) -> Limits {
        let (cache, documents) = (self.cache_memory.as_ref(), self.document_memory.as_ref());
        let keep = checks.number("--document-seconds", &self.document_seconds, 1..=86_400 * 30);
        Limits {
            rows: checks.number("--rows", &self.rows, 1..=4096),
            queue: checks.number("--queue", &self.queue, 1..=MANY),
            queued_symbols: checks.number("--queued-symbols", &self.queued_symbols, 1..=1 << 40),
            chunk: checks.number("--chunk", &self.chunk, 1..=MOST_CHUNK),
            boundary_wait: checks.number("--boundary-wait", &self.boundary_wait, 0..=MAX_BOUNDARY_WAIT),
            stall: Duration::from_secs(checks.number("--stall-seconds", &self.stall_seconds, 1..=86_400) as u64),
            step: Duration::from_millis(
                checks.number("--step-milliseconds", &self.step_milliseconds, 0..=60_000) as u64
            ),
            events: checks.number("--events", &self.events, 16..=1 << 16),
            cache_bytes: cache.map_or(memory / 4, |size| checks.bytes("--cache-memory", size, 0..=memory)),
            document_bytes: documents.map_or(memory / 4, |size| checks.bytes("--document-memory", size, 0..=memory)),
            document_keep: Duration::from_secs(keep as u64),
            calibration: Duration::from_millis(checks.number(
                "--calibration-milliseconds",
                &self.calibration_milliseconds,
                0..=600_000,
            ) as u64),
        }
    }
}
