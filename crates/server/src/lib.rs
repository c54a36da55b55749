//! The server of [weir](https://docs.rs/weir): gRPC and HTTP services over engines, from start to shutdown.
//!
//! Reading order:
//!
//! - [`run`]: puts the server together, and shuts it down
//! - [`config`]: validated settings
//! - `transport`: from the listener to a request: connections, TLS, HTTP/1 and HTTP/2
//! - `middleware`: the layers around every call, in the order in which a call meets them; `call`: what they know of it
//! - `registry`: the models that are served, their engines and health
//! - `calls`: the handlers that all surfaces share
//! - `grpc`: the services of `weir.v1`; `open_inference`: the Open Inference Protocol; `http`: OpenAI's API and the playground
//! - `completion_request`: requests in JSON, as requests of `weir.v1`
//! - `status`: errors as gRPC statuses; `tokenization`: converts large requests off the threads that serve connections
//! - [`metrics`]: every metric, declared once; `latency_windows`: the data of latency reports; `traces`: spans

mod call;
mod calls;
pub(crate) mod completion_request;
pub mod config;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grpc;
mod http;
mod latency_windows;
pub mod metrics;
mod middleware;
mod open_inference;
mod registry;
pub mod run;
mod status;
mod tokenization;
mod traces;
mod transport;

pub use crate::call::REQUEST_ID;
pub use crate::grpc::admin::{AdminConfig, MODEL_NAME, ModelLoader, is_model_name};
pub use crate::registry::{Engines, LaunchedEngine, Lease, Monitor};
pub use crate::status::{DOMAIN, WRONG_KIND_OF_MODEL, status};
pub use crate::traces::Traces;
pub use crate::transport::admin_port::serve_admin_port;
pub use crate::transport::connections::{Accepted, Duplex, Listener};
