//! The services of `weir.v1`: each converts requests to jobs, submits them to an engine, and streams the events back.

pub(crate) mod admin;
pub(crate) mod check;
pub(crate) mod codec;
pub(crate) mod convert;
pub(crate) mod editing;
pub(crate) mod generation;
pub(crate) mod health;
pub(crate) mod latency;
pub(crate) mod models;
pub(crate) mod request_parts;
pub(crate) mod response;
pub(crate) mod score;
pub(crate) mod summarization;
