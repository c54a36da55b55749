//! The services of `weir.v1`: each converts requests to jobs, submits them to an engine, and streams the events back.

pub(super) mod codec;
mod codec_call;
mod codec_engine;
mod codec_messages;
mod codec_part;
mod convert;
mod document_text;
mod document_upload;
pub(super) mod editing;
pub(super) mod editing_limits;
pub(super) mod editing_messages;
mod editing_requests;
#[cfg(all(feature = "http", any(test, fuzzing)))]
pub(super) mod fuzzing;
pub(super) mod generate_stream;
pub(super) mod generation;
pub(super) mod latency;
pub(super) mod models;
mod part_totals;
mod pieces;
mod prompt;
pub(super) mod request_parts;
pub(super) mod response_stream;
mod resumed_text;
mod score_stream;
pub(super) mod segments;
pub(super) mod summarization;
mod summary_parts;
pub(super) mod summary_stream;
pub(super) mod task_response;
mod totals;
mod twin_gain;
