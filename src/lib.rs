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
//!     engine::{Event, Handle, Job, Limits, options::Generate},
//!     models::{checkpoint::CheckpointSource, load::{Settings, load_as}, text::StreamDetokenizer},
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
//! Without default features, this crate is the engine with its model families. Further features add the other parts: `candle`,
//! `server`, `http` (with `server`) and `cli` (with `http`). `docs/embedding.md` describes them.
//!
//! # Parts, in reading order
//!
//! Each package's `lib.rs` lists its files. A package uses only packages above it.
//!
//! | part | package | contents |
//! |---|---|---|
//! | [`kernels`] | `weir-kernels` | matrix products, attention over pages, the thread pool, errors; the only unsafe code |
//! | [`models`] | `weir-models` | texts, checkpoints, layers, one file for each model family |
//! | [`engine`] | `weir-engine` | scheduler, batches, caches and decoding: many sequences on one model |
//! | [`server`] | `weir-server` | gRPC and HTTP services, settings, metrics; feature `server` |
//! | [`verify`] | `weir` | second implementations of the families, to check checkpoints; feature `candle` |
//! | [`report`] | `weir` | benchmarks, and the limits of the machine; feature `cli` |
//! | [`cli`] | `weir` | one file for each subcommand; feature `cli` |
//!
//! `tests/weir/module_dependencies.rs` fails on any other dependency, and on a ring of files inside a part.
//!
//! # What holds everywhere
//!
//! The values of a row depend neither on the other rows of the batch nor on how its symbols were split into steps, bit for bit:
//! see [`kernels`]. A closed segment is never computed again. Everything that grows has a limit.

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod report;
#[cfg(feature = "candle")]
pub mod verify;

pub use weir_engine as engine;
pub use weir_kernels::{self as kernels, error};
pub use weir_models as models;
#[cfg(feature = "server")]
pub use weir_server as server;
