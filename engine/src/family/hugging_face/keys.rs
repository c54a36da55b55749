//! The keys of a Hugging Face `config.json`, with checks whose errors name file, key, expected and found value.

use crate::{
    error::{Error, Result},
    family::checkpoint::json,
};
use serde::{Deserialize, de::DeserializeOwned};
use std::{fmt::Display, path::Path};

/// Maximum layers, and maximum of any other dimension: far above any model, far below an overflow of a product.
const MAX_LAYERS: usize = 1024;
const MAX_DIM: usize = 1 << 22;
/// Maximum numbers in all tensors together: 64 GiB of f32.
const MAX_PARAMETERS: usize = 1 << 34;

/// The text of a `config.json`.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) text: &'a str,
    pub(super) file: &'a Path,
}

impl Keys<'_> {
    /// Parses the keys that an architecture reads; others are ignored. Fails if a key is missing or of the wrong type.
    pub(super) fn parse<T: DeserializeOwned>(self) -> Result<T> {
        json::parse(self.text.as_bytes(), self.file, "")
    }

    /// Returns the error for `key`.
    pub(super) fn fail<T>(self, key: impl Display, expected: impl Into<String>, found: impl Display) -> Result<T> {
        Err(Error::checkpoint(self.file, key.to_string(), expected.into(), found.to_string()))
    }

    /// Checks a number of layers. Fails if it is 0 or exceeds the limit.
    pub(super) fn layers(self, key: &str, layers: usize) -> Result<()> {
        if (1..=MAX_LAYERS).contains(&layers) { Ok(()) } else { self.fail(key, format!("1 to {MAX_LAYERS}"), layers) }
    }

    /// Checks dimensions. Fails at the first that is 0 or exceeds the limit.
    pub(super) fn dims<const N: usize>(self, dims: [(&str, usize); N]) -> Result<()> {
        match dims.into_iter().find(|(_, dim)| !(1..=MAX_DIM).contains(dim)) {
            Some((key, dim)) => self.fail(key, format!("1 to {MAX_DIM}"), dim),
            None => Ok(()),
        }
    }

    /// Checks that a number lies strictly between 0 and 1.
    pub(super) fn fraction(self, key: &str, value: f64) -> Result<()> {
        if value > 0.0 && value < 1.0 { Ok(()) } else { self.fail(key, "above 0, below 1", value) }
    }

    /// Checks that a number is positive and finite.
    pub(super) fn positive(self, key: &str, value: f64) -> Result<()> {
        if value > 0.0 && value.is_finite() { Ok(()) } else { self.fail(key, "above 0", value) }
    }

    /// Checks the numbers in all tensors together.
    pub(super) fn parameters(self, numbers: usize) -> Result<()> {
        let expected = || format!("at most {MAX_PARAMETERS} numbers in all tensors");
        if numbers <= MAX_PARAMETERS { Ok(()) } else { self.fail("the file", expected(), numbers) }
    }

    /// Checks that a key has the only value that the implementation computes.
    pub(super) fn only<T: PartialEq + Display>(self, key: &str, supported: T, found: T) -> Result<()> {
        if found == supported {
            Ok(())
        } else {
            self.fail(key, format!("{supported}, the only one that weir computes"), found)
        }
    }

    /// Fails if the checkpoint's weights are quantized.
    pub(super) fn unquantized(self) -> Result<()> {
        #[derive(Deserialize)]
        struct Quantization {
            quantization_config: Option<Method>,
        }
        #[derive(Deserialize)]
        struct Method {
            quant_method: Option<String>,
        }
        match self.parse::<Quantization>()?.quantization_config {
            Some(Method { quant_method }) => {
                let found = quant_method.unwrap_or_else(|| "a quantized layout".into());
                self.fail("quantization_config", "nothing: weights in f32, f16 or bf16", found)
            }
            None => Ok(()),
        }
    }
}
