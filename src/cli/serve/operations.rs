//! What the server offers to those who run it.

use crate::config::{Checks, Operations};
use std::{path::PathBuf, time::Duration};

/// The flags of operations.
#[derive(Debug, clap::Args)]
pub(super) struct OperationsArgs {
    /// Where metrics, health and version are told over plain HTTP: best a loopback address, for whoever reaches it may
    /// read them. Nowhere if not given.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_ADMIN_LISTEN")]
    admin_listen: Option<String>,
    /// How long one step of a model may take before the server counts as hanging, and is told to be dead.
    #[arg(long, value_name = "N", env = "WEIR_HANG_SECONDS", default_value = "60")]
    hang_seconds: String,
    /// A file with the token (16 to 1024 visible ASCII characters) that calls to the service weir.v1.Admin need, which
    /// loads models from --models and unloads them. There is no such service if not given.
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
    /// The most models in memory when one is loaded at run time, those that serve their last requests included.
    #[arg(long, value_name = "N", env = "WEIR_MAX_MODELS", default_value = "16")]
    max_models: String,
    /// A collector's gRPC endpoint for OTLP, such as http://127.0.0.1:4317: spans of calls are sent there, without any text.
    #[arg(long, value_name = "URL", env = "WEIR_OTLP")]
    otlp: Option<String>,
    /// The part of the traces that begin here that is sent, 0 to 1; a caller's own are sampled as the caller says.
    #[arg(long, value_name = "PART", env = "WEIR_OTLP_PART", default_value = "1")]
    otlp_part: String,
}

impl OperationsArgs {
    /// As the server wants them; models may be loaded from that folder.
    pub(super) fn settings(&self, models: Option<PathBuf>, checks: &mut Checks) -> Operations {
        let hang = checks.number("--hang-seconds", &self.hang_seconds, 1..=86_400) as u64;
        let otlp_part = checks.parsed("--otlp-part", &self.otlp_part).unwrap_or(1.0);
        if !(0.0..=1.0).contains(&otlp_part) {
            checks.wrong("--otlp-part", &self.otlp_part, "expected a number from 0 to 1");
        }
        if let Some(url) = self.otlp.as_ref().filter(|url| !url.starts_with("http://")) {
            checks.wrong("--otlp", url, "expected a URL such as http://127.0.0.1:4317");
        }
        Operations {
            admin_listen: self.admin_listen.as_ref().and_then(|given| checks.parsed("--admin-listen", given)),
            hang: Duration::from_secs(hang),
            admin_token: self.admin_token_file.as_ref().and_then(|file| checks.token("--admin-token-file", file)),
            models,
            max_models: checks.number("--max-models", &self.max_models, 1..=1024),
            otlp: self.otlp.clone(),
            otlp_part,
        }
    }
}
