//! Rotary position embeddings, with the frequency scalings of transformers that do not depend on the text's length.
//!
//! transformers 5 writes `rope_parameters`; transformers 4 wrote `rope_theta` and `rope_scaling`, which wins if a file has both.

use super::keys::Keys;
use crate::error::Result;
use candle_core::{Device, Tensor};
use serde::Deserialize;
use std::f64::consts::TAU;

/// Keys of `config.json` about positions.
#[derive(Debug, Deserialize)]
pub(super) struct RotaryKeys {
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
}

#[derive(Debug, PartialEq, Default, Deserialize)]
struct Scaling {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
    /// The older name; some versions of transformers write both.
    r#type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

/// Frequency base of a checkpoint that states none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Angles by position.
#[derive(Debug, Clone)]
pub(super) struct Rotary {
    /// (head_dim / 2): angle of one position.
    inverse: Vec<f32>,
}

impl Rotary {
    /// Reads the frequencies of heads of `head_dim` numbers. Fails if the head is odd, or the scaling is not supported.
    pub(super) fn read(keys: Keys<'_>, head_dim: usize) -> Result<Self> {
        let RotaryKeys { rope_theta, rope_scaling, rope_parameters } = keys.parse()?;
        let (name, scaling) = match rope_scaling.filter(|scaling| *scaling != Scaling::default()) {
            Some(scaling) => ("rope_scaling", Some(scaling)),
            None => ("rope_parameters", rope_parameters),
        };
        if head_dim % 2 == 1 {
            return keys.fail("head_dim", "an even number", head_dim);
        }
        let theta = scaling.as_ref().and_then(|scaling| scaling.rope_theta).or(rope_theta).unwrap_or(DEFAULT_THETA);
        keys.positive("rope_theta", theta)?;
        let plain: Vec<f64> =
            (0..head_dim).step_by(2).map(|index| 1.0 / theta.powf(index as f64 / head_dim as f64)).collect();
        let Some(scaling) = scaling else { return Ok(Self::from(&plain)) };
        if let Some(part) = scaling.partial_rotary_factor.filter(|part| *part != 1.0) {
            return keys.fail(format!("{name}.partial_rotary_factor"), "1, the only one that weir computes", part);
        }
        let number = |key: &str, value: Option<f64>| match value {
            Some(value) if value > 0.0 && value.is_finite() => Ok(value),
            Some(value) => keys.fail(format!("{name}.{key}"), "above 0", value),
            None => keys.fail(format!("{name}.{key}"), "a number", "nothing"),
        };
        match scaling.rope_type.as_deref().or(scaling.r#type.as_deref()).unwrap_or("default") {
            "default" => Ok(Self::from(&plain)),
            "linear" => {
                let factor = number("factor", scaling.factor)?;
                let scaled: Vec<f64> = plain.iter().map(|frequency| frequency / factor).collect();
                Ok(Self::from(&scaled))
            }
            "llama3" => {
                let factor = number("factor", scaling.factor)?;
                let low = number("low_freq_factor", scaling.low_freq_factor)?;
                let high = number("high_freq_factor", scaling.high_freq_factor)?;
                let length = number("original_max_position_embeddings", scaling.original_max_position_embeddings)?;
                if high <= low {
                    return keys.fail(
                        format!("{name}.high_freq_factor"),
                        format!("above low_freq_factor, {low}"),
                        high,
                    );
                }
                let scaled = plain.iter().map(|&frequency| {
                    // the periods of `frequency` that fit into the original length
                    let periods = length * frequency / TAU;
                    let share = ((periods - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - share) * frequency / factor + share * frequency
                });
                Ok(Self::from(&scaled.collect::<Vec<_>>()))
            }
            other => keys.fail(format!("{name}.rope_type"), "one of default, linear, llama3", other),
        }
    }

    fn from(frequencies: &[f64]) -> Self {
        Self { inverse: frequencies.iter().map(|&frequency| frequency as f32).collect() }
    }

    /// Returns the angles of positions `start..start + len`. Fails if candle fails.
    pub(super) fn angles(&self, start: usize, len: usize, device: &Device) -> candle_core::Result<Angles> {
        let angles: Vec<f32> = (start..start + len)
            .flat_map(|position| self.inverse.iter().map(move |frequency| position as f32 * frequency))
            .collect();
        let angles = Tensor::from_vec(angles, (len, self.inverse.len()), device)?;
        Ok(Angles { cos: angles.cos()?, sin: angles.sin()? })
    }
}

/// Angles of a step's tokens.
pub(super) struct Angles {
    /// (len, head_dim / 2)
    cos: Tensor,
    /// (len, head_dim / 2)
    sin: Tensor,
}

impl Angles {
    /// Rotates `x` (heads, len, head_dim). Fails if candle fails.
    pub(super) fn rotate(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        candle_nn::rotary_emb::rope(&x.unsqueeze(0)?, &self.cos, &self.sin)?.squeeze(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn inverse(json: &str) -> Result<Vec<f32>> {
        Rotary::read(Keys { text: json, file: Path::new("config.json") }, 8).map(|rotary| rotary.inverse)
    }

    #[test]
    fn both_layouts_give_the_same_frequencies() {
        let new = r#"{"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}"#;
        let old = r#"{"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}"#;
        let scaled = inverse(new).unwrap();
        assert_eq!(scaled, inverse(old).unwrap());
        let both = old.replace(r#""type""#, r#""rope_type": "llama3", "type""#);
        assert_eq!(scaled, inverse(&both).unwrap());
        // high frequencies stay, low ones are divided, as in transformers' `_compute_llama3_parameters`
        let plain = inverse(r#"{"rope_theta": 500000.0}"#).unwrap();
        assert_eq!((scaled[0], scaled[3]), (plain[0], plain[3] / 8.0));
        assert!(plain[2] / 8.0 < scaled[2] && scaled[2] < plain[2], "{scaled:?}, {plain:?}");
        assert_eq!(inverse("{}").unwrap()[0], 1.0);
    }

    /// `convert_rope_params_to_dict` of transformers: `rope_scaling or self.rope_parameters`.
    #[test]
    fn rope_scaling_wins_over_rope_parameters() {
        let scaled = r#""rope_scaling": {"rope_type": "linear", "factor": 4.0}"#;
        let other = r#""rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}"#;
        let both = inverse(&format!("{{{scaled}, {other}}}")).unwrap();
        assert_eq!(both, inverse(&format!("{{{scaled}}}")).unwrap());
        let empty = inverse(&format!(r#"{{"rope_scaling": {{}}, {other}}}"#)).unwrap();
        assert_eq!(empty, inverse(&format!("{{{other}}}")).unwrap());
        assert_ne!(both, empty);
    }

    #[test]
    fn unsupported_scalings_are_named() {
        let message = |json: &str| inverse(json).unwrap_err().to_string();
        let yarn = message(r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}"#);
        assert_eq!(yarn, "config.json: rope_scaling.rope_type: expected one of default, linear, llama3, found yarn");
        let linear = message(r#"{"rope_parameters": {"rope_type": "linear"}}"#);
        assert_eq!(linear, "config.json: rope_parameters.factor: expected a number, found nothing");
    }
}
