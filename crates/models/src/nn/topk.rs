//! Pooling of a document's vectors between two encoder layers (Trainable Representation Pooling, arXiv 2009.05169).
//!
//! A pooling takes n vectors and, if it selects by score, their scores, and returns k vectors. Scores, sorting and mixing
//! are f32 for every storage type: in bf16 thousands of scores would be equal. Equal scores are ordered by position, the
//! earlier first, so the output depends on the input alone.

use crate::nn::kv_cache::PagedVectors;
use weir_kernels::error::Result;

/// Kinds of pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolerKind {
    /// See [`Halving`].
    Halving {
        /// True if the best vector is paired with the worst.
        flip_right: bool,
        /// True if the remaining vectors return to the document's order.
        sort_back: bool,
    },
    /// See [`HardTopK`].
    HardTopK {
        /// True if the remaining vectors return to the document's order.
        sort_back: bool,
    },
    /// Means of windows: see [`WindowPooler`].
    Mean,
    /// Maxima of windows: see [`WindowPooler`].
    Max,
}

impl PoolerKind {
    /// Creates the pooling of this kind from `from` vectors to `to`. The error says what `to` must be, such as "a divisor of 12".
    pub fn pooler(self, from: usize, to: usize) -> Result<Box<dyn Pooler>, String> {
        let window = |largest| match to {
            1.. if from.is_multiple_of(to) => {
                Ok(Box::new(WindowPooler { size: from / to, count: to, largest }) as Box<dyn Pooler>)
            }
            _ => Err(format!("a divisor of {from}")),
        };
        match self {
            Self::Halving { flip_right, sort_back } => Ok(Box::new(Halving::new(from, to, flip_right, sort_back)?)),
            // `to` must divide `from` here too, so that shorter documents shrink by the same factor.
            Self::HardTopK { sort_back } => {
                window(false).map(|_| Box::new(HardTopK { kept: to, sort_back }) as Box<dyn Pooler>)
            }
            Self::Mean => window(false),
            Self::Max => window(true),
        }
    }

    /// Returns the kind that selects with the same scores but keeps vectors unchanged.
    #[must_use]
    pub fn hardened(self) -> Self {
        match self {
            Self::Halving { sort_back, .. } => Self::HardTopK { sort_back },
            other => other,
        }
    }
}

/// Output of a pooling.
pub struct PooledVectors {
    /// Pooled vectors, (k, dim).
    pub vectors: PagedVectors,
    /// Scores of the vectors, (k); empty if the pooling uses no scores.
    pub scores: Vec<f32>,
    /// Input position of each vector's winner in every round, (k); empty if the pooling uses no scores.
    pub winners: Vec<usize>,
}

/// Input of a pooling: n positions, some of which may share a vector.
pub struct PoolerInput<'a> {
    /// The distinct vectors.
    pub vectors: &'a PagedVectors,
    /// Index of each position's vector, (n).
    pub index: &'a [u32],
}

impl PoolerInput<'_> {
    /// Returns the vector at a position.
    pub fn vector(&self, position: usize) -> &[f32] {
        self.vectors.vector(self.index[position] as usize)
    }
}

/// Returns the positions from the highest score to the lowest. Among equal scores the earlier position comes first.
pub fn by_score(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

/// A function that creates an empty list for pooled vectors, with their width and page size.
pub type NewVectors<'a> = &'a dyn Fn() -> PagedVectors;

/// A pooling from n vectors to k.
pub trait Pooler {
    /// Pools `input`; `scores` has one number per position, or none if the pooling uses no scores. Fails if memory runs out.
    fn pool(&self, input: &PoolerInput<'_>, scores: Vec<f32>, new_vectors: NewVectors<'_>) -> Result<PooledVectors>;
}

// Poolings in one round: the k best vectors unchanged, and means or maxima of windows (arXiv 2009.05169, appendix A).

/// Hard top-k: keeps the `kept` vectors with the best scores unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HardTopK {
    /// k.
    pub kept: usize,
    /// True if the vectors keep the document's order, false if they come by falling score.
    pub sort_back: bool,
}

impl Pooler for HardTopK {
    fn pool(&self, input: &PoolerInput<'_>, scores: Vec<f32>, new_vectors: NewVectors<'_>) -> Result<PooledVectors> {
        let mut winners = by_score(&scores);
        winners.truncate(self.kept);
        if self.sort_back {
            winners.sort_unstable();
        }
        let mut vectors = new_vectors();
        // There are fewer than k if cutting to whole blocks dropped more than the pooling would.
        vectors.fill(winners.len(), |index, vector| vector.copy_from_slice(input.vector(winners[index])))?;
        Ok(PooledVectors { vectors, scores: winners.iter().map(|&winner| scores[winner]).collect(), winners })
    }
}

/// Pools windows of neighbours to their mean or maximum. The last window may be shorter; an empty window becomes zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowPooler {
    /// Vectors of a window.
    pub size: usize,
    /// Number of windows.
    pub count: usize,
    /// True for the maximum of each number, false for the mean.
    pub largest: bool,
}

impl Pooler for WindowPooler {
    fn pool(&self, input: &PoolerInput<'_>, _: Vec<f32>, new_vectors: NewVectors<'_>) -> Result<PooledVectors> {
        let mut vectors = new_vectors();
        let len = input.index.len();
        vectors.fill(self.count, |window, vector| {
            let start = (window * self.size).min(len);
            self.pool_window(input, start..(start + self.size).min(len), vector);
        })?;
        Ok(PooledVectors { vectors, scores: Vec::new(), winners: Vec::new() })
    }
}

impl WindowPooler {
    fn pool_window(&self, input: &PoolerInput<'_>, positions: std::ops::Range<usize>, target: &mut [f32]) {
        target.fill(0.0);
        let share = 1.0 / positions.len().max(1) as f32;
        for (index, position) in positions.enumerate() {
            for (target, x) in target.iter_mut().zip(input.vector(position)) {
                match self.largest {
                    true if index == 0 => *target = *x,
                    true => *target = target.max(*x),
                    false => *target += share * x,
                }
            }
        }
    }
}

// Successive halving top-k (arXiv 2009.05169, §3 and appendix B), as the published code computes it. Each round sorts the
// vectors by score and pairs the better half with the other. Each pair becomes one vector and one score: means weighted by w =
// softmax(20^v). 0.9 and 0.8 give 0.979 and 0.021, 0.2 and 0.1 give 0.616 and 0.384.

const BASE: f64 = 20.0;

/// Added to every score; also the score of zero vectors that pad the input.
pub const EPSILON: f32 = 1e-5;

/// Pools `from` vectors to `to` in rounds that halve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Halving {
    from: usize,
    to: usize,
    flip_right: bool,
    sort_back: bool,
}

impl Halving {
    /// Creates a pooling from `from` vectors to `to`. `flip_right` pairs the best vector with the worst, not with the best of
    /// the worse half; `sort_back` returns a round's vectors to the order of each pair's better vector.
    pub fn new(from: usize, to: usize, flip_right: bool, sort_back: bool) -> Result<Self, String> {
        match to {
            0 => Err("at least 1".into()),
            _ if halves_to(from, to) => Ok(Self { from, to, flip_right, sort_back }),
            _ => Err(format!("{from} halved some times: every round takes an even number of vectors and leaves half")),
        }
    }

    /// Returns the number of rounds.
    pub fn rounds(&self) -> u32 {
        (self.from / self.to).ilog2()
    }

    /// Returns a round's pairs, in the order of their results.
    fn pair(&self, scores: &[f32]) -> Vec<Pair> {
        let order = by_score(scores);
        let (left, right) = order.split_at(order.len() / 2);
        let last = right.len().saturating_sub(1);
        let partner = |rank: usize| if self.flip_right { right[last - rank] } else { right[rank] };
        let pairs = left.iter().enumerate().map(|(rank, &left)| Pair::new(left, partner(rank), scores));
        let mut pairs: Vec<Pair> = pairs.collect();
        if self.sort_back {
            pairs.sort_by_key(|pair| pair.left);
        }
        pairs
    }
}

/// Returns true if halving leads from one length to the other.
fn halves_to(mut from: usize, to: usize) -> bool {
    while from > to && from.is_multiple_of(2) {
        from /= 2;
    }
    from == to
}

/// One pair of a round: the positions of the better and the other vector, their weights, and the resulting score.
#[derive(Debug, Clone, Copy)]
struct Pair {
    left: usize,
    right: usize,
    weights: [f32; 2],
    score: f32,
}

impl Pair {
    fn single(position: usize, score: f32) -> Self {
        Self { left: position, right: position, weights: [1.0, 0.0], score }
    }

    fn new(left: usize, right: usize, scores: &[f32]) -> Self {
        let values = [scores[left], scores[right]];
        let powers = values.map(|v| BASE.powf(f64::from(v)) as f32);
        let max = powers[0].max(powers[1]);
        let shares = powers.map(|power| f64::from(power - max).exp() as f32);
        let weights = shares.map(|share| share / (shares[0] + shares[1]));
        let score = weights[0] * values[0] + weights[1] * values[1];
        Self { left, right, weights, score }
    }
}

impl Pooler for Halving {
    fn pool(
        &self,
        input: &PoolerInput<'_>,
        mut scores: Vec<f32>,
        new_vectors: NewVectors<'_>,
    ) -> Result<PooledVectors> {
        // Positions from the input's length on are zero vectors.
        let at_input = |position: usize| (position < input.index.len()).then(|| input.vector(position));
        scores.resize(self.from, EPSILON);
        let mut winners: Vec<usize> = (0..self.from).collect();
        let mut vectors: Option<PagedVectors> = None;
        for _ in 0..self.rounds() {
            let pairs = self.pair(&scores);
            let next = match &vectors {
                None => mix(&pairs, &at_input, new_vectors)?,
                Some(vectors) => mix(&pairs, &|position| Some(vectors.vector(position)), new_vectors)?,
            };
            vectors = Some(next);
            scores = pairs.iter().map(|pair| pair.score).collect();
            winners = pairs.iter().map(|pair| winners[pair.left]).collect();
        }
        let vectors = match vectors {
            Some(vectors) => vectors,
            // Without a round the input is only padded.
            None => {
                let singles = scores.iter().enumerate().map(|(position, &score)| Pair::single(position, score));
                mix(&singles.collect::<Vec<_>>(), &at_input, new_vectors)?
            }
        };
        Ok(PooledVectors { vectors, scores, winners })
    }
}

/// Returns the pairs' weighted sums. `vector` returns the vector at a position, or `None` for zero.
fn mix<'a>(
    pairs: &[Pair],
    vector: &dyn Fn(usize) -> Option<&'a [f32]>,
    new_vectors: NewVectors<'_>,
) -> Result<PagedVectors> {
    let mut out = new_vectors();
    out.fill(pairs.len(), |index, target| {
        let pair = &pairs[index];
        target.fill(0.0);
        for (position, weight) in [pair.left, pair.right].into_iter().zip(pair.weights) {
            if let Some(vector) = vector(position) {
                target.iter_mut().zip(vector).for_each(|(sum, x)| *sum += weight * x);
            }
        }
    })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::kv_cache::PagedVectors;
    use proptest::prelude::*;
    use weir_kernels::pages::PagePool;

    const DIM: usize = 3;

    fn paged(numbers: &[f32], dim: usize) -> PagedVectors {
        let mut vectors = PagedVectors::new(PagePool::new(1 << 24), dim, 5);
        vectors.fill(numbers.len() / dim, |index, to| to.copy_from_slice(&numbers[index * dim..][..dim])).unwrap();
        vectors
    }

    /// A vector of the naive implementation: its score, the input position of its winner, and its numbers.
    #[derive(Clone)]
    struct Scored {
        score: f64,
        winner: usize,
        vector: Vec<f64>,
    }

    /// The naive implementation, in f64. Returns `None` if a round has unequal scores that f32 may order otherwise.
    fn naive(halving: &Halving, vectors: &[Vec<f64>], scores: &[f64]) -> Option<Vec<Scored>> {
        let mut all: Vec<Scored> = (0..halving.from)
            .map(|winner| match vectors.get(winner) {
                Some(vector) => Scored { score: scores[winner], winner, vector: vector.clone() },
                None => Scored { score: f64::from(EPSILON), winner, vector: vec![0.0; vectors[0].len()] },
            })
            .collect();
        while all.len() > halving.to {
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by(|&a, &b| all[b].score.total_cmp(&all[a].score).then(a.cmp(&b)));
            let mut gaps = order.windows(2).map(|pair| all[pair[0]].score - all[pair[1]].score);
            if gaps.any(|gap| gap > 0.0 && gap < 1e-5) {
                return None;
            }
            let half = all.len() / 2;
            let mut next = Vec::new();
            for rank in 0..half {
                let partner = if halving.flip_right { all.len() - 1 - rank } else { half + rank };
                let l = &all[order[rank]];
                let r = &all[order[partner]];
                let w = 1.0 / (1.0 + (20f64.powf(r.score) - 20f64.powf(l.score)).exp());
                let vector = l.vector.iter().zip(&r.vector).map(|(a, b)| w * a + (1.0 - w) * b).collect();
                let score = w * l.score + (1.0 - w) * r.score;
                next.push((order[rank], Scored { score, winner: l.winner, vector }));
            }
            if halving.sort_back {
                next.sort_by_key(|entry| entry.0);
            }
            all = next.into_iter().map(|entry| entry.1).collect();
        }
        Some(all)
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_implementation(
            kept in 1usize..8, rounds in 0u32..5, missing in 0usize..4, flip: bool, sort: bool, seed: u64,
        ) {
            let from = kept << rounds;
            let len = from.saturating_sub(missing).max(1);
            let halving = Halving::new(from, kept, flip, sort).unwrap();
            // Distinct scores, at least a ten-thousandth apart.
            let scores: Vec<f32> = (0..len as u64).map(|i| ((i * 7919 + seed % 1000) % 8009) as f32 / 8009.0).collect();
            let numbers: Vec<f32> = (0..len * DIM).map(|i| ((i * 31 + 7) % 17) as f32 - 8.0).collect();
            let source = paged(&numbers, DIM);
            let index: Vec<u32> = (0..len as u32).collect();
            let pool = PagePool::new(1 << 24);
            let new_vectors = || PagedVectors::new(pool.clone(), DIM, 3);
            let input = PoolerInput { vectors: &source, index: &index };
            let pooled = halving.pool(&input, scores.clone(), &new_vectors).unwrap();
            let vectors: Vec<Vec<f64>> = numbers.chunks(DIM).map(|v| v.iter().map(|&x| f64::from(x)).collect()).collect();
            let wide: Vec<f64> = scores.iter().map(|&v| f64::from(v)).collect();
            let Some(expected) = naive(&halving, &vectors, &wide) else {
                return Err(TestCaseError::reject("scores that f32 may order otherwise"));
            };
            prop_assert_eq!(pooled.vectors.len(), kept);
            for (i, Scored { score, winner, vector }) in expected.iter().enumerate() {
                prop_assert!((f64::from(pooled.scores[i]) - score).abs() < 1e-5);
                prop_assert_eq!(pooled.winners[i], *winner);
                for (actual, expected) in pooled.vectors.vector(i).iter().zip(vector) {
                    prop_assert!((f64::from(*actual) - expected).abs() < 1e-4, "{actual} {expected}");
                }
            }
        }
    }

    #[test]
    fn weights_are_those_of_the_published_code() {
        let weights = |left: f32, right: f32| Pair::new(0, 1, &[left, right]).weights;
        for (left, right, expected) in [(0.9, 0.8, 0.979), (0.2, 0.1, 0.616)] {
            assert!((weights(left, right)[0] - expected).abs() < 1e-3, "{:?}", weights(left, right));
        }
        assert!(1.0 - weights(1.0, 0.0)[0] < 1e-8);
    }

    #[test]
    fn equal_scores_pair_in_order_of_position() {
        let halving = Halving::new(4, 2, true, false).unwrap();
        let pairs: Vec<_> = halving.pair(&[0.5; 4]).iter().map(|pair| (pair.left, pair.right)).collect();
        assert_eq!(pairs, [(0, 3), (1, 2)]);
    }

    #[test]
    fn lengths_that_do_not_halve_are_rejected_with_the_rule() {
        for (from, to) in [(10, 3), (10, 2), (18, 4), (14, 3), (8, 16), (3, 2)] {
            assert!(Halving::new(from, to, true, true).unwrap_err().contains("halved"), "{from} {to}");
        }
        assert_eq!(Halving::new(8, 0, true, true).unwrap_err(), "at least 1");
        assert_eq!(Halving::new(12, 3, true, true).unwrap().rounds(), 2);
        assert_eq!(Halving::new(5, 5, true, true).unwrap().rounds(), 0);
    }

    #[test]
    fn failed_allocation_leaves_the_pool_empty() {
        let source = paged(&[1.0; 16], 2);
        let pool = PagePool::new(16);
        let new_vectors = || PagedVectors::new(pool.clone(), 2, 3);
        let halving = Halving::new(8, 4, true, true).unwrap();
        let input = PoolerInput { vectors: &source, index: &[0, 1, 2, 3, 4, 5, 6, 7] };
        assert!(halving.pool(&input, vec![0.5; 8], &new_vectors).is_err());
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn windows_agree_with_the_definition() {
        let pool = PagePool::new(1 << 20);
        let new_vectors = || PagedVectors::new(pool.clone(), 2, 2);
        let mut vectors = new_vectors();
        vectors
            .fill(5, |index, vector| vector.copy_from_slice(&[2.0 * index as f32, 2.0 * index as f32 + 1.0]))
            .unwrap();
        // Two positions share the third vector.
        let input = PoolerInput { vectors: &vectors, index: &[0, 1, 2, 2, 4] };
        let pool_all = |largest| {
            let pooler = WindowPooler { size: 2, count: 4, largest };
            let pooled = Pooler::pool(&pooler, &input, Vec::new(), &new_vectors).unwrap();
            (0..4).map(|index| pooled.vectors.vector(index).to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(pool_all(false), [[1.0, 2.0], [4.0, 5.0], [8.0, 9.0], [0.0, 0.0]]);
        assert_eq!(pool_all(true), [[2.0, 3.0], [4.0, 5.0], [8.0, 9.0], [0.0, 0.0]]);
    }
}
