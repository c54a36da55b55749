//! `weir health`: checks that a server is healthy, for orchestrators and scripts.

use crate::cli::model::runtime;
use weir_client::flags::{AddressArgs, TlsArgs};
use weir_kernels::error::{Error, Result};

/// Calls the health service of a server, by default at 127.0.0.1:50051. The exit code is 0 if the answer is SERVING.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    address: AddressArgs,
    /// Service to check: `weir.v1.Generation` for readiness; empty for liveness of the server.
    #[arg(long, value_name = "NAME", default_value = "")]
    service: String,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Runs the command. Fails if the server cannot be reached or does not answer SERVING.
pub fn run(args: Args) -> Result<()> {
    let Args { address, service, tls } = args;
    let (name, address) = address.or_default().map_err(Error::Setting)?;
    let server = tls.endpoint(name, address).map_err(Error::Setting)?;
    if runtime()?.block_on(async { server.connect().await?.is_serving(&service).await })? {
        return Ok(());
    }
    Err(Error::Remote { server: address.to_owned(), answer: "NOT_SERVING".into() })
}
