//! Server that answers with scripted delays instead of text, so that the tester's figures can be checked.

mod generation;
mod metadata;
mod server;
mod summaries;

pub use server::{Script, SentTimes, Stub};
