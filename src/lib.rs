//! weir: an inference server for character- and byte-level language models that pool their own input.
//!
//! A boundary predictor cuts the stream into segments while it is being generated; the deep middle of the network runs once
//! a segment instead of once a character.
//!
//! # The path of a request
//!
//! `serve/grpc/generation` (with `serve/grpc/convert`: text to symbols, fields to options) → `engine/handle` →
//! `engine/worker` (the loop and its scheduler) → `engine/batch` (one step of all rows) → `decode/session` (what a row is fed, what comes of it) →
//! `family/<one>/step`. Back through the sender inside the request: `engine/request/event_sender` → `serve/grpc/response_stream` → `serve/grpc/generate_stream`.
//! Everything else stands beside that path.
//!
//! # Rooms, in reading order
//!
//! | room | what | may use |
//! |---|---|---|
//! | [`error`] | the closed list of what can go wrong | – |
//! | [`text`] | symbols ↔ text | – |
//! | [`kernels`] | packed matrices, attention over pages, the thread pool; the only unsafe code | – |
//! | [`nn`] | parts of models | kernels |
//! | [`decode`] | the contract between models and engine; one sequence's life | text |
//! | [`family`] | whole models, checkpoints, converters | decode, nn, kernels, text |
//! | [`engine`] | many sequences on one device | decode |
//! | [`metrics`] | every metric, declared once | decode, engine |
//! | [`report`] | timings: what was measured, beside what the machine can do | decode, kernels, text |
//! | [`serve`] | the wire | config, engine, decode, metrics, text |
//! | [`config`] | what was asked for | engine, family |
//! | [`cli`] | one file a subcommand | all of the above but kernels and nn |
//!
//! `tests/weir/arrows.rs` fails on a use against the grain.
//!
//! # What holds everywhere
//!
//! A row's numbers depend neither on the rows beside it nor on how its symbols were cut into steps, bit for bit: see
//! [`kernels`]. A closed segment is never computed again. Everything that grows has a limit.

pub mod cli;
pub mod config;
pub mod decode;
pub mod engine;
pub mod error;
pub mod family;
pub mod kernels;
pub mod metrics;
pub mod nn;
pub mod report;
pub mod serve;
pub mod text;
