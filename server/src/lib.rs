//! The server of [weir](https://docs.rs/weir): gRPC and HTTP services, their settings, and their metrics.
//!
//! `weir` exports these modules, and its documentation shows the path of a request.

pub mod config;
pub mod metrics;
#[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only the HTTP ports use some of its functions"))]
pub mod serve;

use weir_engine::{decode, engine, error, family, text};
