//! PositionScheme schemes: how attention knows where a query and a key stand, or how far apart.
//!
//! A scheme meets a stack's rows in up to four positions: before the first layer it may add to them ([`PositionScheme::embed`]), before
//! attention it turns projections into queries and may change keys ([`PositionScheme::prepare`]), and in attention it gives each
//! distance a vector ([`PositionScheme::distances`]) or a number ([`PositionScheme::bias`]). Keys are stored as they leave `prepare` and
//! never changed again.
//!
//! To add one: a file with its type, a variant in each of the two tables here, and its arms below; stacks need no change.

pub mod absolute;
pub mod alibi;
pub mod buckets;
pub mod queries;
pub mod rotary;
pub mod transformer_xl;

use super::{Position, window::Window};
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
use transformer_xl::TransformerXl;

/// The names in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PositionKind {
    /// Relative distances with learned projections (Dai et al. 2019).
    TransformerXl,
    /// Keys and queries turned by their position (Su et al. 2021).
    Rotary,
    /// The same with scores that decay with the distance (Sun et al. 2023).
    Xpos {
        /// B: distances count in so many positions.
        scale_base: f64,
    },
    /// Scores that fall with the distance (Press et al. 2022).
    Alibi,
    /// A learned number for each bucket of distances (Raffel et al. 2020).
    Buckets {
        /// How many.
        count: usize,
        /// From here on all distances are in the last one.
        max_distance: usize,
    },
    /// Sines and cosines, added to the stack's input (Vaswani et al. 2017).
    Sinusoidal,
    /// A learned vector for each position, added to the stack's input.
    Learned {
        /// How many: no sequence can be longer.
        positions: usize,
    },
    /// None: only the causal window tells order.
    None,
}

/// The most buckets, or distances that they tell apart.
const MOST_BUCKETS: usize = 1 << 20;
/// The most positions of a learned table.
const MOST_LEARNED: usize = 1 << 24;

impl PositionKind {
    /// Whether it can be, with heads of `head_dim` numbers in a stack of width `dim` and such a window.
    ///
    /// # Errors
    /// The key, what is expected there, and what was found.
    pub fn validate(self, dim: usize, head_dim: usize, window: Window) -> Result<(), (String, String, String)> {
        let wrong = |key: &str, expected: &str, found: String| Err((key.into(), expected.into(), found));
        match self {
            Self::TransformerXl | Self::Sinusoidal if !dim.is_multiple_of(2) => {
                wrong("dim", "an even number (half sines, half cosines)", dim.to_string())
            }
            Self::Rotary | Self::Xpos { .. } if !head_dim.is_multiple_of(2) => {
                wrong("head_dim", "an even number: this position scheme turns pairs of numbers", head_dim.to_string())
            }
            Self::Xpos { scale_base } if !(1.0..=1e9).contains(&scale_base) => {
                wrong("position.xpos.scale_base", "1 to 1e9", scale_base.to_string())
            }
            Self::Xpos { scale_base } => {
                // a query is turned from the start of a block, which lies before its window's
                let within = scale_base.ceil() as usize + POSITIONS;
                let longest = rotary::longest(head_dim, scale_base).saturating_sub(within);
                match window.max_keys() {
                    Some(reach) if reach > longest => {
                        let expected = format!(
                            "at most {longest} keys: with position.xpos.scale_base {scale_base} the scale of keys further off leaves f32's range"
                        );
                        Err(("window".into(), expected, reach.to_string()))
                    }
                    _ => Ok(()),
                }
            }
            Self::Buckets { count, .. } if !(2..=MOST_BUCKETS).contains(&count) || !count.is_multiple_of(2) => {
                let expected = format!("an even number from 2 to {MOST_BUCKETS}");
                Err(("position.buckets.count".into(), expected, count.to_string()))
            }
            Self::Buckets { count, max_distance } if !(count / 2 + 1..=MOST_BUCKETS).contains(&max_distance) => {
                let expected = format!("{} to {MOST_BUCKETS}: more than half the buckets", count / 2 + 1);
                Err(("position.buckets.max_distance".into(), expected, max_distance.to_string()))
            }
            Self::Learned { positions } if !(1..=MOST_LEARNED).contains(&positions) => {
                let expected = format!("1 to {MOST_LEARNED}");
                Err(("position.learned.positions".into(), expected, positions.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// The longest sequence that it and a window can hold, and why not a longer one; none if there is no such limit.
    pub fn longest(self, head_dim: usize, window: Window) -> Option<(usize, &'static str)> {
        match self {
            Self::Xpos { scale_base } if window == Window::Full => {
                let why = "without a window, xpos's scale of keys further off leaves f32's range";
                Some((rotary::longest(head_dim, scale_base), why))
            }
            Self::Learned { positions } => Some((positions, "no more positions were learned")),
            _ => None,
        }
    }

    /// For people.
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
    /// See [`Rotary`]; xPos too.
    Rotary(Rotary),
    /// ALiBi: each head's slope.
    Alibi(Vec<f32>),
    /// T5: each head's number for each distance, see [`buckets::Buckets::tables`].
    Buckets(Vec<Vec<f32>>),
    /// See [`Absolute`].
    Absolute(Absolute),
    /// None.
    None,
}

impl PositionScheme {
    /// Adds what there is of positions to a stack's input, (rows, dim).
    pub fn embed(&self, x: &mut [f32], positions: &[Position]) {
        if let Self::Absolute(scheme) = self {
            scheme.add(x, positions);
        }
    }

    /// Turns a layer's `qkv`, (rows, 3 · heads · head_dim), into the queries for `positions`; keys may be changed in position.
    pub fn prepare(
        &self,
        (compute, layout, window): (&Compute, &PageLayout, Window),
        positions: &[Position],
        qkv: &mut [f32],
        queries: &mut Queries,
    ) {
        match self {
            Self::TransformerXl(scheme) => {
                queries.number(positions, |_| 1);
                scheme.prepare(layout, positions, qkv, (&mut queries.content, &mut queries.distance));
            }
            Self::Rotary(scheme) => {
                scheme.prepare(layout, positions, &|position| window.first_key(position), qkv, queries)
            }
            Self::Alibi(_) | Self::Buckets(_) | Self::Absolute(_) | Self::None => {
                queries.number(positions, |_| 1);
                let inner = layout.heads * layout.head_dim;
                let content = queries.content.values_mut(positions.len() * inner);
                for (row, content) in qkv.chunks_exact(3 * inner).zip(content.chunks_exact_mut(inner)) {
                    content.copy_from_slice(&row[..inner]);
                }
            }
        }
        for probes in [&mut queries.content, &mut queries.distance] {
            probes.finish(compute, layout.dtype, layout.head_dim);
        }
    }

    /// Positions of a block of keys, for each of which a query has a form of its own; `usize::MAX` if it has one only.
    pub fn block(&self) -> usize {
        match self {
            Self::Rotary(scheme) => scheme.block(),
            _ => usize::MAX,
        }
    }

    /// The layer's distances, ready for those up to `furthest`.
    ///
    /// # Errors
    /// No memory for them.
    pub fn distances(&self, compute: &Compute, layer: usize, furthest: usize) -> Result<Option<&DistanceTable>> {
        match self {
            Self::TransformerXl(scheme) => scheme.distances(compute, layer, furthest).map(Some),
            _ => Ok(None),
        }
    }

    /// What a head's scores owe to their distances.
    pub fn bias(&self, head: usize) -> Bias<'_> {
        match self {
            Self::Alibi(slopes) => Bias::Slope(slopes[head]),
            Self::Buckets(tables) => Bias::Table(&tables[head]),
            _ => Bias::None,
        }
    }

    /// What all layers of a stack read, beside keys and values, for a query that attends to `keys` keys: bytes that
    /// sequences share.
    pub fn bytes_for(&self, layout: &PageLayout, keys: usize) -> usize {
        match self {
            Self::TransformerXl(_) => transformer_xl::bytes_for(layout, keys),
            Self::Buckets(tables) => {
                layout.layers * tables.iter().map(|table| 4 * table.len().min(keys)).sum::<usize>()
            }
            // a row or two, once a step
            _ => 0,
        }
    }

    /// Products of a query with each key: its content's, and its distance's where a scheme has one.
    pub fn products(&self) -> usize {
        match self {
            Self::TransformerXl(_) => 2,
            _ => 1,
        }
    }
}
