//! Server that answers with placeholder text at scripted times, so that the tester's figures can be checked.

mod editing;
mod generation;
mod metadata;
mod server;
mod summaries;

pub use server::{Script, SentTimes, Stub};
