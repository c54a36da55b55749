//! The limits of each model's engine.

use super::MANY;
use crate::{config::Checks, decode::gather::MAX_BOUNDARY_WAIT, engine::handle::Limits};

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
    /// Symbols of prompts that are processed in one step, 1 to 4096: a running stream, the end of draining and a second
    /// signal may all have to wait for one.
    #[arg(long, value_name = "N", env = "WEIR_CHUNK", default_value_t = Limits::default().chunk.to_string())]
    chunk: String,
    /// Steps that a request whose segment ended may wait for others, to share a step of the middle layers.
    #[arg(long, value_name = "N", env = "WEIR_BOUNDARY_WAIT", default_value_t = Limits::default().boundary_wait.to_string())]
    boundary_wait: String,
}

impl EngineArgs {
    /// As the engine wants them.
    pub(super) fn limits(&self, checks: &mut Checks) -> Limits {
        Limits {
            rows: checks.number("--rows", &self.rows, 1..=4096),
            queue: checks.number("--queue", &self.queue, 1..=MANY),
            chunk: checks.number("--chunk", &self.chunk, 1..=MOST_CHUNK),
            boundary_wait: checks.number("--boundary-wait", &self.boundary_wait, 0..=MAX_BOUNDARY_WAIT),
            ..Limits::default()
        }
    }
}
