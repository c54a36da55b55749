//! Failures of a step: panics become errors, and every request that took part gets a copy of the error.

use crate::error::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Copies a step's error for one of the requests that took part.
pub(super) fn copy_error(error: &Error) -> Error {
    match error {
        &Error::OutOfPages { needed, limit } => Error::OutOfPages { needed, limit },
        Error::Internal(message) => Error::Internal(message.clone()),
        other => Error::Internal(other.to_string()),
    }
}

/// Runs `work` and turns a panic into an error, so that it ends the requests in `work` and nothing else.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let message = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        tracing::error!(message, "caught a panic");
        Err(Error::Internal("a panic in a step".into()))
    })
}
