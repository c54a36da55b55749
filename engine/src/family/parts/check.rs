//! Checks of a checkpoint's `architecture` that several families make.

use super::specs::MAX_PARAMETERS;
use crate::error::{Error, Result};
use std::{fmt::Display, path::Path};

/// Maximum layers of a stack, and maximum of any other dimension: far above any model, far below an overflow of a product.
const MAX_LAYERS: usize = 1024;
const MAX_DIM: usize = 1 << 20;
/// Maximum numbers in a table of distances: 256 MiB of f32. The file holds only one number for each bucket, so
/// its size does not bound the table.
const MAX_TABLE: usize = 1 << 26;

/// Reports keys of `architecture` that are out of bounds.
#[derive(Clone, Copy)]
pub struct Check<'a> {
    /// The `config.json` to name in errors.
    pub file: &'a Path,
}

impl Check<'_> {
    /// Returns the error for `key`.
    pub fn fail(self, key: impl Display, expected: impl Into<String>, found: impl Display) -> Result<()> {
        Err(Error::checkpoint(self.file, format!("architecture.{key}"), expected.into(), found.to_string()))
    }

    /// Checks a stack's layers. Fails if the value is 0 or exceeds the limit.
    pub fn layers(self, key: impl Display, layers: usize) -> Result<()> {
        if (1..=MAX_LAYERS).contains(&layers) { Ok(()) } else { self.fail(key, format!("1 to {MAX_LAYERS}"), layers) }
    }

    /// Checks a dimension. Fails if the value is 0 or exceeds the limit.
    pub fn dim(self, key: impl Display, dim: usize) -> Result<()> {
        if (1..=MAX_DIM).contains(&dim) { Ok(()) } else { self.fail(key, format!("1 to {MAX_DIM}"), dim) }
    }

    /// Checks the numbers in a table that is computed for all heads, and all distances up to the value of `key`. Fails if they
    /// exceed the limit.
    pub fn distance_table(self, key: impl Display, numbers: usize) -> Result<()> {
        if numbers <= MAX_TABLE {
            return Ok(());
        }
        let expected = format!("a table of at most {MAX_TABLE} numbers, one for each of `heads` and each distance");
        self.fail(key, expected, numbers)
    }

    /// Checks a number that must lie strictly between 0 and 1.
    pub fn fraction(self, key: impl Display, value: f32) -> Result<()> {
        if value > 0.0 && value < 1.0 { Ok(()) } else { self.fail(key, "above 0, below 1", value) }
    }

    /// Checks an upper limit on the numbers in all tensors, `None` if it overflows; errors name `key`. Fails above
    /// [`MAX_PARAMETERS`].
    pub fn parameters(self, key: &str, count: Option<usize>) -> Result<()> {
        if count.is_some_and(|count| count <= MAX_PARAMETERS) {
            return Ok(());
        }
        let found = count.map_or("a product beyond 64 bits".into(), |count| count.to_string());
        self.fail(key, format!("at most {MAX_PARAMETERS} numbers in all tensors"), found)
    }
}
