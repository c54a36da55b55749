//! Default address and runtime of the commands that call a running server.

use tokio::runtime::Runtime;
use weir_kernels::error::{Error, Result};

/// The name of an argument that is a server's address.
pub(super) const ADDRESS: &str = "ADDRESS";

/// The address of a server that `weir serve` starts without settings.
pub(super) const DEFAULT_ADDRESS: &str = "127.0.0.1:50051";

/// Starts the runtime that network calls run on.
pub(super) fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Error::Internal(format!("the network runtime cannot be started: {error}")))
}
