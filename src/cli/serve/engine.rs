//! Limits of each model's engine.

use super::transport::MAX_COUNT;
use crate::{
    config::Checks,
    decode::{boundary_wait::MAX_BOUNDARY_WAIT, speculation::Speculation},
    engine::Limits,
};
use std::time::Duration;

/// Maximum symbols per step. A running step cannot be interrupted, so it must be short compared with any limit in seconds.
const MAX_CHUNK: usize = 4096;
/// Default size of a model's segment cache, at most a quarter of its key-value memory. More would let a client with one address
/// take hundreds of megabytes.
const CACHE_BYTES: usize = 128 << 20;

/// Flags of the engine.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Scheduling and memory")]
pub(super) struct EngineArgs {
    /// Maximum running requests per model.
    #[arg(long, value_name = "N", env = "WEIR_ROWS", default_value_t = Limits::default().rows.to_string())]
    rows: String,
    /// Maximum queued requests per model.
    #[arg(long, value_name = "N", env = "WEIR_QUEUE", default_value_t = Limits::default().queue.to_string())]
    queue: String,
    /// Maximum symbols in the prompts of all queued requests of a model.
    #[arg(long, value_name = "N", env = "WEIR_QUEUED_SYMBOLS", default_value_t = Limits::default().queued_symbols.to_string())]
    queued_symbols: String,
    /// Maximum symbols that one request may feed to its model in total: its text, the context that its windows repeat, and what
    /// it generates.
    #[arg(long, value_name = "N", env = "WEIR_MAX_REQUEST_WORK", default_value_t = Limits::default().request_work.to_string())]
    max_request_work: String,
    /// Seconds that a request may run, from its first row to its end; 0: no limit.
    #[arg(long, value_name = "N", env = "WEIR_MAX_REQUEST_SECONDS", default_value_t = Limits::default().request_time.as_secs().to_string())]
    max_request_seconds: String,
    /// Maximum prompt symbols per step, 1 to 4096. Running streams and the end of draining wait for a step to finish.
    #[arg(long, value_name = "N", env = "WEIR_CHUNK", default_value_t = Limits::default().chunk.to_string())]
    chunk: String,
    /// Target duration of a step that processes prompts while other requests generate. The step takes as many prompt symbols as
    /// fit, between 16 and --chunk. 0: no target.
    #[arg(long, value_name = "N", env = "WEIR_STEP_MILLISECONDS", default_value_t = Limits::default().step.as_millis().to_string())]
    step_milliseconds: String,
    /// Maximum steps that a row waits after its segment closed, to share the segment step with other rows.
    #[arg(long, value_name = "N", env = "WEIR_BOUNDARY_WAIT", default_value_t = Limits::default().boundary_wait.to_string())]
    boundary_wait: String,
    /// Guess characters that are checked in one step: `auto` as far as that is expected to save time, `off`, or the most characters
    /// to guess at a time, 1 to 16. The generated text does not depend on it. A request may override it.
    #[arg(long, value_name = "auto|off|N", env = "WEIR_SPECULATE", default_value_t = Limits::default().speculation.to_string())]
    speculate: String,
    /// Maximum events that wait for a slow client before its row pauses.
    #[arg(long, value_name = "N", env = "WEIR_EVENTS", default_value_t = Limits::default().events.to_string())]
    events: String,
    /// Seconds that a client may read nothing, while events are ready, before its request ends; at least 1.
    #[arg(long, value_name = "N", env = "WEIR_STALL_SECONDS", default_value_t = Limits::default().stall.as_secs().to_string())]
    stall_seconds: String,
    /// Part of each model's key-value memory for the segment cache, which later requests with the same prefix reuse; 0 disables
    /// it. Default: 128 MiB, or a quarter if that is less.
    #[arg(long, value_name = "SIZE", env = "WEIR_CACHE_MEMORY")]
    cache_memory: Option<String>,
    /// Memory for the document cache of each summarization model; 0 disables it. Default: a quarter of its key-value memory.
    #[arg(long, value_name = "SIZE", env = "WEIR_DOCUMENT_MEMORY")]
    document_memory: Option<String>,
    /// Seconds that an unused document stays in the document cache; at least 1.
    #[arg(long, value_name = "N", env = "WEIR_DOCUMENT_SECONDS", default_value_t = Limits::default().document_keep.as_secs().to_string())]
    document_seconds: String,
    /// Time budget for timing each model's steps at load, which reports need to estimate the gain of pooling; 0 disables it.
    /// Steps are never timed while requests run.
    #[arg(long, value_name = "N", env = "WEIR_CALIBRATION_MILLISECONDS", default_value_t = Limits::default().calibration.as_millis().to_string())]
    calibration_milliseconds: String,
}

impl EngineArgs {
    /// Parses the limits, for models with `memory` bytes of key-value memory.
    pub(super) fn limits(&self, memory: usize, checks: &mut Checks) -> Limits {
        let cache = self.cache_memory.as_ref();
        let documents = self.document_memory.as_ref();
        let keep = checks.number("--document-seconds", &self.document_seconds, 1..=86_400 * 30);
        let step = checks.number("--step-milliseconds", &self.step_milliseconds, 0..=60_000);
        let calibration = checks.number("--calibration-milliseconds", &self.calibration_milliseconds, 0..=600_000);
        let request_time = checks.number("--max-request-seconds", &self.max_request_seconds, 0..=86_400 * 365);
        Limits {
            rows: checks.number("--rows", &self.rows, 1..=4096),
            queue: checks.number("--queue", &self.queue, 1..=MAX_COUNT),
            queued_symbols: checks.number("--queued-symbols", &self.queued_symbols, 1..=1 << 40),
            request_work: checks.number("--max-request-work", &self.max_request_work, 1..=1 << 40),
            request_time: Duration::from_secs(request_time as u64),
            chunk: checks.number("--chunk", &self.chunk, 1..=MAX_CHUNK),
            boundary_wait: checks.number("--boundary-wait", &self.boundary_wait, 0..=MAX_BOUNDARY_WAIT),
            speculation: speculation(&self.speculate, checks),
            stall: Duration::from_secs(checks.number("--stall-seconds", &self.stall_seconds, 1..=86_400) as u64),
            step: Duration::from_millis(step as u64),
            events: checks.number("--events", &self.events, 16..=1 << 16),
            cache_bytes: cache
                .map_or(CACHE_BYTES.min(memory / 4), |size| checks.bytes("--cache-memory", size, 0..=memory)),
            document_bytes: documents.map_or(memory / 4, |size| checks.bytes("--document-memory", size, 0..=memory)),
            document_keep: Duration::from_secs(keep as u64),
            calibration: Duration::from_millis(calibration as u64),
        }
    }
}

fn speculation(value: &str, checks: &mut Checks) -> Speculation {
    Speculation::parse(value).unwrap_or_else(|| {
        checks.reject("--speculate", value, Speculation::EXPECTED);
        Speculation::Off
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        engine: EngineArgs,
    }

    #[test]
    fn the_segment_cache_is_small_by_default() {
        let cache_bytes = |args: &[&str], memory| {
            let flags = Flags::try_parse_from([&["weir"], args].concat()).unwrap();
            let mut checks = Checks::default();
            let limits = flags.engine.limits(memory, &mut checks);
            checks.finish().unwrap();
            limits.cache_bytes
        };
        assert_eq!(cache_bytes(&[], 2 << 30), 128 << 20);
        assert_eq!(cache_bytes(&[], 64 << 20), 16 << 20);
        assert_eq!(cache_bytes(&["--cache-memory", "1GiB"], 2 << 30), 1 << 30);
    }
}
