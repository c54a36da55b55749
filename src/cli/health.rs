//! `weir health`: checks that a server is healthy, for orchestrators and scripts.

use super::network::{ADDRESS, DEFAULT_ADDRESS, TlsArgs, runtime};
use crate::{
    error::{Error, Result},
    serve::client,
};

/// Calls a server's health service. The exit code is 0 if the answer is SERVING.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Server address: host:port or a URL.
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
    if runtime()?.block_on(client::is_serving(&tls.endpoint(ADDRESS, &address)?, &service))? {
        return Ok(());
    }
    Err(Error::Remote { server: address, answer: "NOT_SERVING".into() })
}
