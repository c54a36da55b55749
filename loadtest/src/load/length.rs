//! Distributions of text lengths.

use crate::error::{Error, Result};
use rand::{Rng, RngExt};
use rand_distr::{Distribution, Exp, LogNormal, Normal};
use std::{fmt, str::FromStr};

pub(crate) const MAX_LENGTH: u64 = 1 << 20;

/// Distribution of a length in characters. Draws beyond the bounds are clamped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    /// Always the same: `256`.
    Fixed(u64),
    /// Uniform from the first to the second: `64..512`.
    Uniform(u64, u64),
    /// `normal:MEAN:DEVIATION`.
    Normal(f64, f64),
    /// `lognormal:MEDIAN:SIGMA`; sigma is that of the logarithm.
    LogNormal(f64, f64),
    /// `exponential:MEAN`.
    Exponential(f64),
}

impl Length {
    /// Draws a length from 1 to `max`. Never fails for a parsed length.
    pub fn draw(&self, rng: &mut impl Rng, max: u64) -> Result<u64> {
        let wrong = |error: &dyn fmt::Display| Error::Internal(format!("{self}: {error}"));
        let drawn = match *self {
            Self::Fixed(length) => length as f64,
            Self::Uniform(from, to) => rng.random_range(from..=to) as f64,
            Self::Normal(mean, deviation) => Normal::new(mean, deviation).map_err(|e| wrong(&e))?.sample(rng),
            Self::LogNormal(median, sigma) => LogNormal::new(median.ln(), sigma).map_err(|e| wrong(&e))?.sample(rng),
            Self::Exponential(mean) => Exp::new(mean.recip()).map_err(|e| wrong(&e))?.sample(rng),
        };
        Ok((drawn.round().max(1.0) as u64).min(max.max(1)))
    }

    /// Returns the upper bound of the length, if the distribution has one.
    pub fn longest(&self) -> Option<u64> {
        match *self {
            Self::Fixed(length) | Self::Uniform(_, length) => Some(length),
            Self::Normal(..) | Self::LogNormal(..) | Self::Exponential(_) => None,
        }
    }
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let expected = || {
            format!(
                "expected N, FROM..TO, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA or exponential:MEAN, in characters \
                 from 1 to {MAX_LENGTH}, sigma at most 10"
            )
        };
        let integer = |text: &str| text.trim().parse().ok().filter(|length| (1..=MAX_LENGTH).contains(length));
        let number = |text: &str, min: f64, max: f64| {
            text.trim().parse::<f64>().ok().filter(|number| (min..=max).contains(number))
        };
        let max = MAX_LENGTH as f64;
        let read = || match text.split(':').collect::<Vec<_>>()[..] {
            ["normal", mean, deviation] => Some(Self::Normal(number(mean, 1.0, max)?, number(deviation, 0.0, max)?)),
            ["lognormal", median, sigma] => Some(Self::LogNormal(number(median, 1.0, max)?, number(sigma, 0.0, 10.0)?)),
            ["exponential", mean] => Some(Self::Exponential(number(mean, 1.0, max)?)),
            [plain] => match plain.split_once("..") {
                Some((from, to)) => {
                    let from = integer(from)?;
                    let to = integer(to)?;
                    (from <= to).then_some(Self::Uniform(from, to))
                }
                None => integer(plain).map(Self::Fixed),
            },
            _ => None,
        };
        read().ok_or_else(expected)
    }
}

impl fmt::Display for Length {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(out, "{length}"),
            Self::Uniform(from, to) => write!(out, "{from}..{to}"),
            Self::Normal(mean, deviation) => write!(out, "normal:{mean}:{deviation}"),
            Self::LogNormal(median, sigma) => write!(out, "lognormal:{median}:{sigma}"),
            Self::Exponential(mean) => write!(out, "exponential:{mean}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn mean(text: &str) -> f64 {
        let length = Length::from_str(text).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(length.to_string(), text);
        let drawn: Vec<_> = (0..20_000).map(|_| length.draw(&mut rng, 100_000).unwrap()).collect();
        assert!(drawn.iter().all(|length| (1..=100_000).contains(length)));
        drawn.iter().sum::<u64>() as f64 / drawn.len() as f64
    }

    #[test]
    fn distributions_have_their_means() {
        assert_eq!(mean("256"), 256.0);
        assert!((mean("64..512") / 288.0 - 1.0).abs() < 0.02);
        assert!((mean("normal:300:20") / 300.0 - 1.0).abs() < 0.02);
        // exp(sigma² / 2) times the median
        assert!((mean("lognormal:200:0.5") / (200.0 * 0.125f64.exp()) - 1.0).abs() < 0.02);
        assert!((mean("exponential:500") / 500.0 - 1.0).abs() < 0.03);
    }

    #[test]
    fn lengths_stay_within_their_bounds() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let wide = Length::from_str("normal:50:500").unwrap();
        let drawn: Vec<_> = (0..1000).map(|_| wide.draw(&mut rng, 80).unwrap()).collect();
        assert!(drawn.contains(&1) && drawn.contains(&80) && drawn.iter().all(|length| (1..=80).contains(length)));
    }

    #[test]
    fn invalid_lengths_are_rejected() {
        for wrong in
            ["", "0", "-3", "5..4", "0..4", "normal:5", "normal:0:1", "lognormal:5:11", "exponential:nan", "9e9", "x"]
        {
            let message = Length::from_str(wrong).unwrap_err();
            assert!(message.contains("FROM..TO"), "{wrong}: {message}");
        }
    }
}
