//! Reads Python pickles and executes nothing.
//!
//! A pickle is a program for a small stack machine whose instructions can call any function of the reader's Python. This
//! machine has the stack and the memo, but no functions: a call becomes an inert [`Object::Call`] that records callable and
//! arguments, and the callable must be on an allow-list (`machine.rs`). Objects live in an arena
//! and refer to each other by index, so that neither depth nor cycles cost recursion.
//!
//! Everything is bounded: lengths by the rest of the input; objects, stack and work by fixed limits.

mod machine;
mod value;

pub use value::{Object, Pickle, PickleCall, PickleValue};

use machine::PickleMachine;

/// Maximum size of a pickle: a training checkpoint's, without its tensors, has some hundred kilobytes.
pub const MAX_BYTES: usize = 16 << 20;

/// Reason why a pickle was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: expected {expected}, found {found}")]
pub struct PickleError {
    /// Offset of the instruction in bytes.
    pub offset: usize,
    /// The expected item.
    pub expected: String,
    /// The actual item.
    pub found: String,
}

impl Pickle {
    /// Reads a pickle of protocol 2 to 5. Fails at an unknown instruction or name, at anything malformed, truncated or
    /// beyond a limit, and at bytes after the end.
    pub fn read(bytes: &[u8]) -> Result<Self, PickleError> {
        if bytes.len() > MAX_BYTES {
            let expected = format!("at most {MAX_BYTES} bytes");
            return Err(PickleError { offset: 0, expected, found: format!("{} bytes", bytes.len()) });
        }
        let mut machine = PickleMachine::new(bytes);
        match machine.run() {
            Ok(()) => Ok(machine.finish()),
            Err((expected, found)) => Err(PickleError { offset: machine.start, expected, found }),
        }
    }
}

#[cfg(test)]
mod tests;
