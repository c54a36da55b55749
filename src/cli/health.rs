//! `weir health`: whether a server serves, for whoever starts and stops it.

use super::{reach::TlsArgs, runtime};
use crate::{
    error::{Error, Result},
    serve::client,
};

/// Asks a server's health service. The exit code tells: 0 if it serves.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The server, as host:port or a URL.
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:50051")]
    address: String,
    /// The service to ask about: `weir.v1.Generation` tells whether requests should come; empty, whether the server lives.
    #[arg(long, value_name = "NAME", default_value = "")]
    service: String,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Runs the command.
///
/// # Errors
/// It does not serve, or is not there.
pub fn run(args: Args) -> Result<()> {
    let Args { address, service, tls } = args;
    if runtime()?.block_on(client::is_serving(&tls.reach(&address)?, &service))? {
        return Ok(());
    }
    Err(Error::Remote { server: address, answer: "NOT_SERVING".into() })
}
