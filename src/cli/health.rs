//! `weir health`: checks that a server is healthy, for orchestrators and scripts.

use crate::cli::model::{ADDRESS, DEFAULT_ADDRESS, runtime};
use weir_client::flags::TlsArgs;
use weir_kernels::error::{Error, Result};

/// Calls a server's health service. The exit code is 0 if the answer is SERVING.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Server address: host:port, :port of this machine, or a URL; https:// for TLS.
    #[arg(value_name = ADDRESS, default_value = DEFAULT_ADDRESS)]
    address: String,
    /// Service to check: `weir.v1.Generation` for readiness; empty for liveness of the server.
    #[arg(long, value_name = "NAME", default_value = "")]
    service: String,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Runs the command. Fails if the server cannot be reached or does not answer SERVING.
pub fn run(args: Args) -> Result<()> {
    let Args { address, service, tls } = args;
    let server = tls.endpoint(ADDRESS, &address).map_err(Error::Setting)?;
    if runtime()?.block_on(async { server.connect().await?.is_serving(&service).await })? {
        return Ok(());
    }
    Err(Error::Remote { server: address, answer: "NOT_SERVING".into() })
}
