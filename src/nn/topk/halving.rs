//! Successive halving top-k (arXiv 2009.05169, §3 and appendix B), as the published code computes it.
//!
//! In each round vectors are sorted by score and the better half meets the other, the best the worst; of each pair one vector
//! and one score are left, means by weights w = softmax(20^v). The weights are the sharper the further apart the two scores are,
//! and depend on their level: 0.9 and 0.8 give 0.979 and 0.021, 0.2 and 0.1 give 0.616 and 0.384.

use super::pooler::{Input, NewVectors, Pooled, Pooler, by_score};
use crate::{error::Result, nn::paged_vectors::PagedVectors};

/// The published code's base of the weights.
const BASE: f64 = 20.0;
/// Added to every score, and the score of what fills up.
pub const EPSILON: f32 = 1e-5;

/// From `from` vectors to `to`, in rounds that halve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Halving {
    from: usize,
    to: usize,
    flip_right: bool,
    sort_back: bool,
}

impl Halving {
    /// `flip_right`: whether the best meets the worst, rather than the best of the worse half. `sort_back`: whether what is
    /// left goes back to the order in which the better one of each pair stood.
    ///
    /// # Errors
    /// The rule that the two lengths break.
    pub fn new(from: usize, to: usize, (flip_right, sort_back): (bool, bool)) -> Result<Self, String> {
        match to {
            0 => Err("at least 1".into()),
            _ if halves_down(from, to) => Ok(Self { from, to, flip_right, sort_back }),
            _ => Err(format!("{from} halved some times: every round takes an even number of vectors and leaves half")),
        }
    }

    /// Rounds that it takes.
    pub fn rounds(&self) -> u32 {
        (self.from / self.to).ilog2()
    }
}

/// Whether halving leads from one length to the other.
fn halves_down(mut from: usize, to: usize) -> bool {
    while from > to && from.is_multiple_of(2) {
        from /= 2;
    }
    from == to
}

/// One pair of a round: the better one, the other, and their weights.
#[derive(Debug, Clone, Copy)]
struct Pair {
    left: usize,
    right: usize,
    weights: [f32; 2],
    score: f32,
}

impl Pooler for Halving {
    fn pool(&self, input: &Input<'_>, mut scores: Vec<f32>, make: NewVectors<'_>) -> Result<Pooled> {
        let given = input.positions.len();
        scores.resize(self.from, EPSILON);
        let mut winners: Vec<usize> = (0..self.from).collect();
        let mut rows: Option<PagedVectors> = None;
        for _ in 0..self.rounds() {
            let pairs = self.pair(&scores);
            let next = match &rows {
                // what fills up is zero
                None => mix(&pairs, &|at| (at < given).then(|| input.at(at)), make)?,
                Some(rows) => mix(&pairs, &|at| Some(rows.row(at)), make)?,
            };
            rows = Some(next);
            scores = pairs.iter().map(|pair| pair.score).collect();
            winners = pairs.iter().map(|pair| winners[pair.left]).collect();
        }
        let rows = match rows {
            Some(rows) => rows,
            // no round: nothing but filling up
            None => {
                let all: Vec<Pair> = (0..self.from).map(|at| Pair::alone(at, scores[at])).collect();
                mix(&all, &|at| (at < given).then(|| input.at(at)), make)?
            }
        };
        Ok(Pooled { rows, scores, winners })
    }
}

impl Pair {
    fn alone(at: usize, score: f32) -> Self {
        Self { left: at, right: at, weights: [1.0, 0.0], score }
    }

    fn of(left: usize, right: usize, scores: &[f32]) -> Self {
        let values = [scores[left], scores[right]];
        let powers = values.map(|v| BASE.powf(f64::from(v)) as f32);
        // the softmax of two, by the larger
        let top = powers[0].max(powers[1]);
        let shares = powers.map(|power| f64::from(power - top).exp() as f32);
        let weights = shares.map(|share| share / (shares[0] + shares[1]));
        let score = weights[0] * values[0] + weights[1] * values[1];
        Self { left, right, weights, score }
    }
}

impl Halving {
    /// A round's pairs, in the order in which they go on.
    fn pair(&self, scores: &[f32]) -> Vec<Pair> {
        let order = by_score(scores);
        let (left, right) = order.split_at(order.len() / 2);
        let last = right.len().saturating_sub(1);
        let other = |rank: usize| if self.flip_right { right[last - rank] } else { right[rank] };
        let pairs = left.iter().enumerate().map(|(rank, &left)| Pair::of(left, other(rank), scores));
        let mut pairs: Vec<Pair> = pairs.collect();
        if self.sort_back {
            pairs.sort_by_key(|pair| pair.left);
        }
        pairs
    }
}

/// The pairs' vectors; those that are not there are zero.
fn mix<'a>(pairs: &[Pair], row: &dyn Fn(usize) -> Option<&'a [f32]>, make: NewVectors<'_>) -> Result<PagedVectors> {
    let mut out = make();
    out.extend(pairs.len())?;
    let per_page = out.per_page();
    for (page, pairs) in pairs.chunks(per_page).enumerate() {
        let target = out.page_mut(page)?;
        let dim = target.len() / pairs.len();
        for (pair, target) in pairs.iter().zip(target.chunks_exact_mut(dim)) {
            target.fill(0.0);
            for (at, weight) in [pair.left, pair.right].into_iter().zip(pair.weights) {
                if let Some(row) = row(at) {
                    target.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x);
                }
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::pages::PagePool;
    use proptest::prelude::*;

    fn rows(numbers: &[f32], dim: usize) -> PagedVectors {
        let mut rows = PagedVectors::new(PagePool::new(1 << 24), dim, 5);
        rows.extend(numbers.len() / dim).unwrap();
        for page in 0..rows.pages() {
            let to = rows.page_mut(page).unwrap();
            let len = to.len();
            to.copy_from_slice(&numbers[page * 5 * dim..][..len]);
        }
        rows
    }

    /// By the definition, in f64, a list of (score, position, vector) at a time.
    fn naive(halving: &Halving, vectors: &[Vec<f64>], scores: &[f64]) -> Vec<(f64, usize, Vec<f64>)> {
        let mut all: Vec<(f64, usize, Vec<f64>)> = (0..halving.from)
            .map(|at| match vectors.get(at) {
                Some(vector) => (scores[at], at, vector.clone()),
                None => (f64::from(EPSILON), at, vec![0.0; vectors[0].len()]),
            })
            .collect();
        while all.len() > halving.to {
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by(|&a, &b| all[b].0.total_cmp(&all[a].0).then(a.cmp(&b)));
            let half = all.len() / 2;
            let mut next = Vec::new();
            for rank in 0..half {
                let other = if halving.flip_right { all.len() - 1 - rank } else { half + rank };
                let (l, r) = (&all[order[rank]], &all[order[other]]);
                let w = 1.0 / (1.0 + (20f64.powf(r.0) - 20f64.powf(l.0)).exp());
                let mixed = l.2.iter().zip(&r.2).map(|(a, b)| w * a + (1.0 - w) * b).collect();
                next.push((order[rank], (w * l.0 + (1.0 - w) * r.0, l.1, mixed)));
            }
            if halving.sort_back {
                next.sort_by_key(|entry| entry.0);
            }
            all = next.into_iter().map(|entry| entry.1).collect();
        }
        all
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            kept in 1usize..8, rounds in 0u32..5, missing in 0usize..4, flip: bool, sort: bool, seed: u64,
        ) {
            let from = kept << rounds;
            let (given, dim) = (from.saturating_sub(missing).max(1), 3);
            let halving = Halving::new(from, kept, (flip, sort)).unwrap();
            // scores a ten-thousandth apart at least, in an order of their own
            let scores: Vec<f32> = (0..given as u64).map(|at| ((at * 7919 + seed % 1000) % 8009) as f32 / 8009.0).collect();
            let numbers: Vec<f32> = (0..given * dim).map(|at| ((at * 31 + 7) % 17) as f32 - 8.0).collect();
            let source = rows(&numbers, dim);
            let positions: Vec<u32> = (0..given as u32).collect();
            let pool = PagePool::new(1 << 24);
            let make = || PagedVectors::new(pool.clone(), dim, 3);
            let pooled = halving.pool(&Input { rows: &source, positions: &positions }, scores.clone(), &make).unwrap();
            let vectors: Vec<Vec<f64>> = numbers.chunks(dim).map(|v| v.iter().map(|&x| f64::from(x)).collect()).collect();
            let wide: Vec<f64> = scores.iter().map(|&v| f64::from(v)).collect();
            let want = naive(&halving, &vectors, &wide);
            prop_assert_eq!(pooled.rows.len(), kept);
            for (at, (score, winner, vector)) in want.iter().enumerate() {
                prop_assert!((f64::from(pooled.scores[at]) - score).abs() < 1e-5);
                prop_assert_eq!(pooled.winners[at], *winner);
                for (got, want) in pooled.rows.row(at).iter().zip(vector) {
                    prop_assert!((f64::from(*got) - want).abs() < 1e-4, "{got} {want}");
                }
            }
        }
    }

    #[test]
    fn weights_are_those_of_the_published_code() {
        let weights = |left: f32, right: f32| Pair::of(0, 1, &[left, right]).weights;
        for ((left, right), want) in [((0.9, 0.8), 0.979), ((0.2, 0.1), 0.616)] {
            assert!((weights(left, right)[0] - want).abs() < 1e-3, "{:?}", weights(left, right));
        }
        assert!(1.0 - weights(1.0, 0.0)[0] < 1e-8);
    }

    #[test]
    fn equal_scores_are_met_in_order_of_place() {
        let halving = Halving::new(4, 2, (true, false)).unwrap();
        let pairs: Vec<_> = halving.pair(&[0.5; 4]).iter().map(|pair| (pair.left, pair.right)).collect();
        assert_eq!(pairs, [(0, 3), (1, 2)]);
    }

    #[test]
    fn lengths_that_do_not_halve_are_refused_with_the_rule() {
        for (from, to) in [(10, 3), (10, 2), (18, 4), (14, 3), (8, 16), (3, 2)] {
            assert!(Halving::new(from, to, (true, true)).unwrap_err().contains("halved"), "{from} {to}");
        }
        assert_eq!(Halving::new(8, 0, (true, true)).unwrap_err(), "at least 1");
        assert_eq!(Halving::new(12, 3, (true, true)).unwrap().rounds(), 2);
        assert_eq!(Halving::new(5, 5, (true, true)).unwrap().rounds(), 0);
    }

    #[test]
    fn without_memory_nothing_is_taken() {
        let source = rows(&[1.0; 16], 2);
        let (pool, positions) = (PagePool::new(16), [0, 1, 2, 3, 4, 5, 6, 7]);
        let make = || PagedVectors::new(pool.clone(), 2, 3);
        let halving = Halving::new(8, 4, (true, true)).unwrap();
        assert!(halving.pool(&Input { rows: &source, positions: &positions }, vec![0.5; 8], &make).is_err());
        assert_eq!(pool.in_use(), 0);
    }
}
