//! weir: an inference server for character- and byte-level language models that pool their own input.
//!
//! A boundary predictor splits the stream into segments while text is generated. The deep middle of the network runs once per
//! segment instead of once per character.
//!
//! # In a program of your own
//!
//! A program needs a checkpoint, the model that is loaded from it, and an engine that runs the model:
//!
//! ```
//! use weir::{
//!     decode::options::Generate,
//!     engine::{Event, Handle, Job, Limits},
//!     family::{checkpoint::CheckpointSource, load::{Settings, load_as}},
//!     text::StreamDetokenizer,
//! };
//!
//! let source = CheckpointSource::default(); // the embedded model
//! let model = load_as(&source, &source.name(), &Settings::default())?;
//! let mut request = Generate::from_text("the history of ", model.card())?;
//! request.stopping.max_chars = 20;
//!
//! let mut decoder = StreamDetokenizer::new(model.card().vocabulary.clone());
//! let engine = Handle::start(model, Limits::default())?;
//! let mut events = engine.submit(Job::Generate(request), None)?;
//! let mut text = String::new();
//! while let Some(event) = events.blocking_recv() {
//!     if let Event::Characters(characters) = event? {
//!         characters.iter().for_each(|character| text += decoder.push_symbol(character.symbol, character.cut));
//!     }
//! }
//! text += decoder.finish();
//! assert_eq!(text.len(), 20);
//! # Ok::<(), weir::error::Error>(())
//! ```
//!
//! Without default features, this crate is the engine with its model families. Further features add the other modules of the table
//! below: `candle`, `server`, `http` (with `server`) and `cli` (with `http`). `docs/embedding.md` describes them.
//!
//! # The path of a request
//!
//! A `Generate` call passes 16 main files, one for each stage. Each layer of the middleware has its own file next to
//! `middleware/mod`. These layers, value types, helpers and submodules such as `scheduler/tenants` or `decode/sampling` are not
//! counted. On the way in:
//!
//! 1. `serve/transport/connections`: accepts the connection.
//! 2. `serve/middleware/mod`: request id, metrics, tracing, authentication, body limits, deadline.
//! 3. `serve/grpc/generation`: handles the call.
//! 4. `serve/registry/engines`: finds the model's engine.
//! 5. `serve/grpc/convert`: turns text into symbols and fields into options.
//! 6. `engine/handle`: submits the request.
//! 7. `engine/state`: checks and queues it.
//! 8. `engine/worker`: the loop of the thread that owns the model.
//! 9. `engine/scheduler/mod`: selects the rows of the next step.
//! 10. `engine/batch`: runs one step of all rows.
//! 11. `decode/session`: the state of one request: prompt, sampling, stop conditions.
//! 12. `family/hourglass`: computes logits and boundaries.
//!
//! On the way back: `engine/request`, `serve/grpc/response_stream`, `serve/grpc/generate_stream`, `serve/grpc/pieces`.
//!
//! # Rooms, in reading order
//!
//! `error`, `sync`, `kernels` and `nn` are in the package `weir-core`; `text`, `decode`, `family` and `engine` in `weir-engine`;
//! `config`, `metrics` and `serve` in `weir-server`. This package exports all of them except `sync`, and adds the other modules.
//!
//! Every module may use [`error`]. `tests/weir/module_dependencies.rs` compares this table with its own, and fails on any other
//! dependency between modules, and on a ring of files inside a module.
//!
//! | module | contents | may use |
//! |---|---|---|
//! | [`error`] | the closed list of error codes | – |
//! | `sync` | locks, atomics and threads, which the concurrency tests replace | – |
//! | [`text`] | vocabularies, normalisers, tokenizers | – |
//! | [`kernels`] | matrix products, attention over pages, the thread pool; the only unsafe code | sync |
//! | [`nn`] | parts of models: attention, position schemes, boundaries, pooling | kernels |
//! | [`decode`] | the contract between models and engine; the state of one sequence | kernels, text |
//! | [`family`] | whole models, checkpoints, converters; Hugging Face models with the feature `candle` | decode, kernels, nn, text |
//! | [`engine`] | scheduler, batches and caches: many sequences on one model | decode, sync |
//! | [`metrics`] | every metric, declared once; feature `server` | decode, engine |
//! | [`verify`] | second implementations of the families, to check checkpoints; feature `candle` | decode, family, text |
//! | [`report`] | benchmarks, and the limits of the machine; feature `cli` | decode, kernels, text |
//! | [`serve`] | gRPC services, feature `server`; HTTP services, feature `http` | config, decode, engine, metrics, text |
//! | [`config`] | validated settings; feature `server` | engine, family |
//! | [`cli`] | one file per subcommand; feature `cli` | config, decode, engine, family, kernels, report, serve, text, verify |
//!
//! # What holds everywhere
//!
//! The numbers of a row depend neither on the other rows of the batch nor on how its symbols were split into steps, bit for bit:
//! see [`kernels`]. A closed segment is never computed again. Everything that grows has a limit.

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod report;
#[cfg(feature = "candle")]
pub mod verify;

pub use weir_core::{error, kernels, nn};
pub use weir_engine::{decode, engine, family, text};
#[cfg(feature = "server")]
pub use weir_server::{config, metrics, serve};
