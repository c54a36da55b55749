//! Monitoring and administration of the server.

use crate::config::{Checks, Operations};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Flags of operations.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Operations")]
pub(super) struct OperationsArgs {
    /// Address of the admin port, which serves metrics, health and version over plain HTTP without authentication: prefer a
    /// loopback address. Default: 127.0.0.1:9090 if no address is given for any port, and the server has neither keys nor TLS;
    /// otherwise no admin port.
    #[arg(long, value_name = "ADDRESS", env = "WEIR_ADMIN_LISTEN")]
    pub(super) admin_listen: Option<String>,
    /// Seconds that one step of a model may take before the server counts as hung and liveness fails.
    #[arg(long, value_name = "N", env = "WEIR_HANG_SECONDS", default_value = "60")]
    hang_seconds: String,
    /// File with the token (16 to 1024 visible ASCII characters) for the service weir.v1.Admin, which loads models from --models
    /// and unloads them. Default: no such service.
    #[arg(long, value_name = "FILE", env = "WEIR_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
    /// Maximum models in memory, draining ones included, when one is loaded at run time.
    #[arg(long, value_name = "N", env = "WEIR_MAX_MODELS", default_value = "16")]
    max_models: String,
    /// gRPC endpoint of an OTLP collector, such as http://127.0.0.1:4317, that receives spans of calls. Spans contain no text.
    #[arg(long, value_name = "URL", env = "WEIR_OTLP")]
    otlp: Option<String>,
    /// Sampling ratio, 0 to 1, of traces that begin at this server. The caller decides about traces that it began.
    #[arg(long, value_name = "PART", env = "WEIR_OTLP_PART", default_value = "1")]
    otlp_part: String,
}

impl OperationsArgs {
    /// Parses the settings. `models` is the folder that models can be loaded from at run time.
    pub(super) fn settings(
        &self,
        admin_listen: Option<SocketAddr>,
        models: Option<PathBuf>,
        checks: &mut Checks,
    ) -> Operations {
        let hang = checks.number("--hang-seconds", &self.hang_seconds, 1..=86_400) as u64;
        let otlp_part = self.otlp_part.parse().ok().filter(|part| (0.0..=1.0).contains(part));
        if otlp_part.is_none() {
            checks.reject("--otlp-part", &self.otlp_part, "a number from 0 to 1");
        }
        match &self.otlp {
            // The value may have a password, which must not be printed.
            Some(url) if url.contains('@') => {
                checks.reject("--otlp", "…@…", "a URL without a user and a password (weir sends none)");
            }
            Some(url) if !url.starts_with("http://") => {
                checks.reject("--otlp", url, "a URL such as http://127.0.0.1:4317");
            }
            _ => {}
        }
        Operations {
            admin_listen,
            hang: Duration::from_secs(hang),
            admin_token: self.admin_token_file.as_ref().and_then(|file| checks.token("--admin-token-file", file)),
            models,
            max_models: checks.number("--max-models", &self.max_models, 1..=1024),
            otlp: self.otlp.clone(),
            otlp_part: otlp_part.unwrap_or(1.0),
        }
    }
}
