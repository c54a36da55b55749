//! Poolings between an encoder's layers (Trainable Representation Pooling, §3 and appendix A).

use super::{NearTie, tensors::indices};
use candle_core::{DType, Device, Result as CandleResult, Tensor, bail};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Added to every score; also the score of zero vectors that fill up the input.
pub(super) const SCORE_EPSILON: f64 = 1e-5;
/// Base of the weights in successive halving.
const HALVING_BASE: f64 = 20.0;
/// Scores that differ by at most this differ by rounding alone: those of padding.
const TIE: f64 = 1e-12;
/// Scores that differ by less may come in the other order in f32, whose scores differ by up to 4e-6 from those in f64.
const NEAR: f64 = 1e-5;

/// `pooling` of a checkpoint.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum LayerPooling {
    None,
    SuccessiveHalving {
        lengths: BTreeMap<String, usize>,
        flip_right: bool,
        sort_back: bool,
        #[serde(default)]
        scorer: ScoreSource,
    },
    HardTopK {
        lengths: BTreeMap<String, usize>,
        sort_back: bool,
        #[serde(default)]
        scorer: ScoreSource,
    },
    Mean {
        lengths: BTreeMap<String, usize>,
    },
    Max {
        lengths: BTreeMap<String, usize>,
    },
    Funnel {
        lengths: BTreeMap<String, usize>,
    },
}

/// `scorer`: the source of the scores.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ScoreSource {
    #[default]
    Linear,
    Ffn,
    Embedding {
        dimension: usize,
    },
    Index {
        every: usize,
    },
    Attention,
    Random {
        seed: u64,
    },
}

/// Vectors with their scores.
pub(super) struct Scored {
    /// (n, D)
    pub(super) x: Tensor,
    /// (n)
    pub(super) scores: Vec<f64>,
    /// Input position of each vector's winner: (n)
    pub(super) winners: Vec<usize>,
}

/// Sorts the scores of all poolings of a document, and records how clear their order is.
pub(super) struct ScoreOrder<'a> {
    /// Near ties that change places.
    swapped: &'a [NearTie],
    /// Number of the current pooling.
    pub(super) pooling: usize,
    /// The smallest difference between neighbours that are no ties.
    pub(super) smallest_gap: f64,
    pub(super) near_ties: Vec<NearTie>,
}

impl<'a> ScoreOrder<'a> {
    pub(super) fn new(swapped: &'a [NearTie]) -> Self {
        Self { swapped, pooling: 0, smallest_gap: f64::INFINITY, near_ties: Vec::new() }
    }

    /// Returns the positions from the highest score to the lowest. Scores are f32 by definition; of equal scores the one at the
    /// earlier position comes first.
    fn sort(&mut self, round: usize, scores: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| (scores[b] as f32).total_cmp(&(scores[a] as f32)));
        for (rank, pair) in order.windows(2).enumerate() {
            let gap = (scores[pair[0]] - scores[pair[1]]).abs();
            if gap > TIE {
                self.smallest_gap = self.smallest_gap.min(gap);
                if gap < NEAR {
                    self.near_ties.push(NearTie { pooling: self.pooling, round, rank });
                }
            }
        }
        let own = |tie: &&NearTie| tie.pooling == self.pooling && tie.round == round && tie.rank + 1 < scores.len();
        self.swapped.iter().filter(own).for_each(|tie| order.swap(tie.rank, tie.rank + 1));
        order
    }
}

impl LayerPooling {
    /// Returns the vectors that are left after `layer`, if a pooling follows it.
    pub(super) fn length_after(&self, layer: usize) -> Option<usize> {
        match self {
            Self::None => None,
            Self::SuccessiveHalving { lengths, .. }
            | Self::HardTopK { lengths, .. }
            | Self::Mean { lengths }
            | Self::Max { lengths }
            | Self::Funnel { lengths } => lengths.get(&layer.to_string()).copied(),
        }
    }

    /// Returns the source of the scores, if there are any.
    pub(super) fn scorer(&self) -> Option<ScoreSource> {
        match self {
            Self::SuccessiveHalving { scorer, .. } | Self::HardTopK { scorer, .. } => Some(*scorer),
            _ => None,
        }
    }

    /// Pools (n, D) to (`from` / `factor`, D). Vectors that are missing to `from` are zero. Without a scorer there are no winners.
    pub(super) fn pool(
        &self,
        x: &Tensor,
        scores: Vec<f64>,
        from: usize,
        factor: usize,
        order: &mut ScoreOrder<'_>,
    ) -> CandleResult<Scored> {
        match *self {
            Self::SuccessiveHalving { flip_right, sort_back, .. } => {
                let missing = from - x.dim(0)?;
                let zeros = Tensor::zeros((missing, x.dim(1)?), DType::F64, &Device::Cpu)?;
                let mut scored = Scored {
                    x: if missing > 0 { Tensor::cat(&[x, &zeros], 0)? } else { x.clone() },
                    scores: scores.into_iter().chain(vec![SCORE_EPSILON; missing]).collect(),
                    winners: (0..from).collect(),
                };
                let mut round = 0;
                while scored.scores.len() > from / factor {
                    let order = order.sort(round, &scored.scores);
                    scored = halve(scored, &order, flip_right, sort_back)?;
                    round += 1;
                }
                Ok(scored)
            }
            Self::HardTopK { sort_back, .. } => {
                let mut winners = order.sort(0, &scores);
                winners.truncate(from / factor);
                if sort_back {
                    winners.sort_unstable();
                }
                let scores = winners.iter().map(|&winner| scores[winner]).collect();
                Ok(Scored { x: select(x, &winners)?, scores, winners })
            }
            Self::Mean { .. } | Self::Funnel { .. } => windows(x, from, factor, false),
            Self::Max { .. } => windows(x, from, factor, true),
            Self::None => bail!("no pooling"),
        }
    }
}

/// One round: pairs the better half of `order` with the other. Each pair becomes the mean weighted by softmax(20^v).
fn halve(scored: Scored, order: &[usize], flip_right: bool, sort_back: bool) -> CandleResult<Scored> {
    let Scored { x, scores, winners } = scored;
    let half = order.len() / 2;
    let partner = |rank: usize| if flip_right { order[order.len() - 1 - rank] } else { order[half + rank] };
    let mut pairs: Vec<(usize, usize)> = (0..half).map(|rank| (order[rank], partner(rank))).collect();
    if sort_back {
        pairs.sort_unstable();
    }
    let (left, right): (Vec<usize>, Vec<usize>) = pairs.into_iter().unzip();
    let weight = |(&left, &right): (&usize, &usize)| {
        1.0 / (1.0 + (HALVING_BASE.powf(scores[right]) - HALVING_BASE.powf(scores[left])).exp())
    };
    let weights: Vec<f64> = left.iter().zip(&right).map(weight).collect();
    let mixed_scores = left.iter().zip(&right).zip(&weights);
    let mixed_scores = mixed_scores.map(|((&left, &right), w)| w * scores[left] + (1.0 - w) * scores[right]).collect();
    let weights = Tensor::new(weights, &Device::Cpu)?.reshape((half, 1))?;
    let mixed_left = select(&x, &left)?.broadcast_mul(&weights)?; // (half, D)
    let mixed_right = select(&x, &right)?.broadcast_mul(&weights.affine(-1.0, 1.0)?)?;
    Ok(Scored {
        x: (mixed_left + mixed_right)?,
        scores: mixed_scores,
        winners: left.iter().map(|&left| winners[left]).collect(),
    })
}

/// Returns means or maxima of windows of `size`. The last one may be shorter; an empty one is zero.
fn windows(x: &Tensor, from: usize, size: usize, largest: bool) -> CandleResult<Scored> {
    let (len, dim) = x.dims2()?;
    let window = |index: usize| {
        let start = (index * size).min(len);
        let end = (start + size).min(len);
        match (end - start, largest) {
            (0, _) => Tensor::zeros((1, dim), DType::F64, &Device::Cpu),
            (count, true) => x.narrow(0, start, count)?.max_keepdim(0),
            (count, false) => x.narrow(0, start, count)?.mean_keepdim(0),
        }
    };
    let x = Tensor::cat(&(0..from / size).map(window).collect::<CandleResult<Vec<_>>>()?, 0)?;
    Ok(Scored { x, scores: Vec::new(), winners: Vec::new() })
}

fn select(x: &Tensor, positions: &[usize]) -> CandleResult<Tensor> {
    x.index_select(&indices(&positions.iter().map(|&position| position as u32).collect::<Vec<_>>())?, 0)
}
