//! The client of weir's gRPC API, which the command line, the language server and the load tester share.
//!
//! In the order in which a command needs them:
//!
//! - [`flags`]: the flags for the API key and TLS, errors of command lines, and values from environment variables (feature
//!   `command-line`).
//! - [`address`]: the forms of a server's address.
//! - [`tls`]: the files of certificates and keys, and their checks, which the server's settings use too.
//! - [`connection`]: one connection, the key that its calls carry, and the errors of calls.
//! - [`calls`]: a method for each call.
//! - [`status`]: what the status of a call says.
//! - [`failed_connection`]: why a server cannot be reached, and what to do.

pub mod address;
pub mod calls;
pub mod connection;
pub mod failed_connection;
#[cfg(feature = "command-line")]
pub mod flags;
pub mod status;
pub mod tls;

pub use weir_kernels::error::quoted;
