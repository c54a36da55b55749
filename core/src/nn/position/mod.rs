//! Position schemes: how attention takes the positions of queries and keys, or their distance, into account.
//!
//! A scheme acts in up to four steps. Before the first layer it may add to a stack's input ([`PositionScheme::embed`]). Before
//! attention it turns projections into queries and may change keys ([`PositionScheme::prepare`]). In attention it provides each
//! distance with a vector ([`PositionScheme::distances`]) or a number ([`PositionScheme::bias`]). Stored keys never change.
//!
//! To add a scheme: a file with its type, a variant of [`PositionKind`] and of [`PositionScheme`], and their arms.

pub mod absolute;
pub mod alibi;
pub mod buckets;
pub mod queries;
pub mod rotary;
pub mod transformer_xl;

use super::{ConfigError, Position, window::Window};
use crate::{
    error::Result,
    kernels::{
        Compute,
        attention::{Bias, DistanceTable, POSITIONS, PageLayout},
    },
};
use absolute::Absolute;
use queries::Queries;
use rotary::Rotary;
use serde::Deserialize;
use std::sync::Arc;
use transformer_xl::TransformerXl;

/// `position` of a checkpoint's architecture.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PositionKind {
    /// Relative distances with learned projections (Dai et al. 2019).
    TransformerXl,
    /// Keys and queries rotated by their position (Su et al. 2021).
    Rotary,
    /// Rotary positions with scores that decay with the distance (Sun et al. 2023).
    Xpos {
        /// B, the unit of distance in which scores decay.
        scale_base: f64,
    },
    /// Scores that decrease linearly with the distance (Press et al. 2022).
    Alibi,
    /// A learned number for each bucket of distances (Raffel et al. 2020).
    Buckets {
        /// Number of buckets.
        count: usize,
        /// Distances from this one on are in the last bucket.
        max_distance: usize,
    },
    /// Sines and cosines, added to the stack's input (Vaswani et al. 2017).
    Sinusoidal,
    /// A learned vector for each position, added to the stack's input.
    Learned {
        /// Number of vectors: the maximum length of a sequence.
        positions: usize,
    },
    /// No positions: only the causal window orders the keys.
    None,
}

/// Maximum buckets, and maximum `max_distance`.
const MAX_BUCKETS: usize = 1 << 20;
/// Maximum positions of a learned table.
const MAX_LEARNED: usize = 1 << 24;

impl PositionKind {
    /// Checks that it fits heads of `head_dim` numbers in a stack of width `dim` with `window`. The error names the key.
    pub fn validate(self, dim: usize, head_dim: usize, window: Window) -> Result<(), ConfigError> {
        match self {
            Self::TransformerXl | Self::Sinusoidal if !dim.is_multiple_of(2) => {
                Err(ConfigError::new("dim", "an even number (half sines, half cosines)", dim))
            }
            Self::Rotary | Self::Xpos { .. } if !head_dim.is_multiple_of(2) => {
                let expected = "an even number: this position scheme turns pairs of numbers";
                Err(ConfigError::new("head_dim", expected, head_dim))
            }
            Self::Xpos { scale_base } if !(1.0..=1e9).contains(&scale_base) => {
                Err(ConfigError::new("position.xpos.scale_base", "1 to 1e9", scale_base))
            }
            Self::Xpos { scale_base } => {
                // A query is rotated from the start of a block, which may lie before its window.
                let block = scale_base.ceil() as usize + POSITIONS;
                let limit = rotary::max_distance(head_dim, scale_base).saturating_sub(block);
                match window.max_keys() {
                    Some(keys) if keys > limit => {
                        let expected = format!(
                            "at most {limit} keys: with position.xpos.scale_base {scale_base} the scale of keys further off leaves f32's range"
                        );
                        Err(ConfigError::new("window", expected, keys))
                    }
                    _ => Ok(()),
                }
            }
            Self::Buckets { count, .. } if !(2..=MAX_BUCKETS).contains(&count) || !count.is_multiple_of(2) => {
                let expected = format!("an even number from 2 to {MAX_BUCKETS}");
                Err(ConfigError::new("position.buckets.count", expected, count))
            }
            Self::Buckets { count, max_distance } if !(count / 2 + 1..=MAX_BUCKETS).contains(&max_distance) => {
                let expected = format!("{} to {MAX_BUCKETS}: more than half the buckets", count / 2 + 1);
                Err(ConfigError::new("position.buckets.max_distance", expected, max_distance))
            }
            Self::Learned { positions } if !(1..=MAX_LEARNED).contains(&positions) => {
                Err(ConfigError::new("position.learned.positions", format!("1 to {MAX_LEARNED}"), positions))
            }
            _ => Ok(()),
        }
    }

    /// Returns the maximum length of a sequence with this scheme and `window`, and the reason; `None` if unlimited.
    pub fn max_length(self, head_dim: usize, window: Window) -> Option<(usize, &'static str)> {
        match self {
            Self::Xpos { scale_base } if window == Window::Full => {
                let why = "without a window, xpos's scale of keys further off leaves f32's range";
                Some((rotary::max_distance(head_dim, scale_base), why))
            }
            Self::Learned { positions } => Some((positions, "no more positions were learned")),
            _ => None,
        }
    }

    /// Returns the scheme's name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::TransformerXl => "transformer-xl",
            Self::Rotary => "rotary",
            Self::Xpos { .. } => "xpos",
            Self::Alibi => "alibi",
            Self::Buckets { .. } => "buckets",
            Self::Sinusoidal => "sinusoidal",
            Self::Learned { .. } => "learned",
            Self::None => "no positions",
        }
    }
}

/// A scheme with its weights, for the layers of one stack.
pub enum PositionScheme {
    /// See [`TransformerXl`].
    TransformerXl(TransformerXl),
    /// Rotary positions or xPos: see [`Rotary`].
    Rotary(Rotary),
    /// ALiBi: each head's slope.
    Alibi(Vec<f32>),
    /// T5: each head's number for each distance, see [`buckets::Buckets::tables`]. Stacks may share the tables.
    Buckets(Arc<[Vec<f32>]>),
    /// See [`Absolute`].
    Absolute(Absolute),
    /// No positions.
    None,
}

impl PositionScheme {
    /// Adds absolute positions, if the scheme has them, to a stack's input: (positions, dim).
    pub fn embed(&self, x: &mut [f32], positions: &[Position]) {
        if let Self::Absolute(scheme) = self {
            scheme.add(x, positions);
        }
    }

    /// Turns a layer's `qkv`, (positions, 3 · heads · head_dim), into queries; may change keys in place.
    pub fn prepare(
        &self,
        compute: &Compute,
        layout: &PageLayout,
        window: Window,
        positions: &[Position],
        qkv: &mut [f32],
        queries: &mut Queries,
    ) {
        match self {
            Self::TransformerXl(scheme) => scheme.prepare(layout, positions, qkv, queries),
            Self::Rotary(scheme) => {
                scheme.prepare(layout, positions, &|position| window.first_key(position), qkv, queries);
            }
            Self::Alibi(_) | Self::Buckets(_) | Self::Absolute(_) | Self::None => {
                queries.assign(positions, |_| 1);
                let inner = layout.heads * layout.head_dim;
                let content = queries.content.values_mut(positions.len() * inner);
                for (row, content) in qkv.chunks_exact(3 * inner).zip(content.chunks_exact_mut(inner)) {
                    content.copy_from_slice(&row[..inner]);
                }
            }
        }
        for buffer in [&mut queries.content, &mut queries.distance] {
            buffer.finish(compute, layout.dtype, layout.head_dim);
        }
    }

    /// Returns the positions of a block of keys, for which a query has a variant; `usize::MAX` for a single variant.
    pub fn block(&self) -> usize {
        match self {
            Self::Rotary(scheme) => scheme.block(),
            _ => usize::MAX,
        }
    }

    /// Returns a layer's vectors of the distances up to `furthest`, if the scheme has any. Fails if memory runs out.
    pub fn distances(&self, compute: &Compute, layer: usize, furthest: usize) -> Result<Option<&DistanceTable>> {
        match self {
            Self::TransformerXl(scheme) => scheme.distances(compute, layer, furthest).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the bias that a head adds to scores by distance.
    pub fn bias(&self, head: usize) -> Bias<'_> {
        match self {
            Self::Alibi(slopes) => Bias::Slope(slopes[head]),
            Self::Buckets(tables) => Bias::Table(&tables[head]),
            _ => Bias::None,
        }
    }

    /// Returns the bytes, shared by sequences, that all layers read next to keys and values for a query with `keys` keys.
    pub fn bytes_for(&self, layout: &PageLayout, keys: usize) -> usize {
        match self {
            Self::TransformerXl(_) => transformer_xl::bytes_for(layout, keys),
            Self::Buckets(tables) => {
                layout.layers * tables.iter().map(|table| 4 * table.len().min(keys)).sum::<usize>()
            }
            // The other schemes read one or two table rows a step.
            _ => 0,
        }
    }

    /// Returns the dot products of a query with each key: one for the content, and one for the distance if the scheme has it.
    pub fn products(&self) -> usize {
        match self {
            Self::TransformerXl(_) => 2,
            _ => 1,
        }
    }
}
