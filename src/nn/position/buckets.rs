//! T5's buckets (Raffel et al. 2020, §2.1): a learned number for each bucket of distances and head, added to the score. Buckets
//! grow with the distance; all distances from the furthest one on share the last, so there is no longest sequence.

/// How distances fall into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// PagedVectors of the learned table.
    pub count: usize,
    /// From here on all distances are in the last one.
    pub max_distance: usize,
    /// Whether half of the rows are for keys that come later, of which a causal stack has none: T5's rule for encoders,
    /// where only the masks were changed.
    pub bidirectional: bool,
}

impl Buckets {
    /// PagedVectors for keys that came before.
    fn used(self) -> usize {
        if self.bidirectional { self.count / 2 } else { self.count }
    }

    /// Whether there are exact buckets, and a range left for the growing ones.
    pub fn is_valid(self) -> bool {
        let exact = self.used() / 2;
        exact >= 1 && self.max_distance > exact
    }

    /// The bucket of a distance from a query back to a key: one each for the first half of them, then ever wider ones. Rounded
    /// as T5's code and those that follow it do, in f32.
    pub fn of(self, distance: usize) -> usize {
        let (used, exact) = (self.used(), self.used() / 2);
        if distance < exact {
            return distance;
        }
        let far = (distance as f32 / exact as f32).ln() / (self.max_distance as f64 / exact as f64).ln() as f32;
        (exact + (far * (used - exact) as f32) as usize).min(used - 1)
    }

    /// Each head's number for each distance up to the one from which on all are alike: from `bias`, (count, heads).
    pub fn tables(self, bias: &[f32]) -> Vec<Vec<f32>> {
        let heads = bias.len() / self.count;
        let number = |head: usize, distance: usize| bias[self.of(distance) * heads + head];
        (0..heads).map(|head| (0..=self.max_distance).map(|distance| number(head, distance)).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Buckets = Buckets { count: 32, max_distance: 128, bidirectional: false };

    /// Where each bucket begins.
    fn firsts(buckets: Buckets) -> Vec<usize> {
        let mut firsts: Vec<usize> = Vec::new();
        for distance in 0..1000 {
            let bucket = buckets.of(distance);
            assert!(bucket == firsts.len() || bucket + 1 == firsts.len(), "{distance}: {bucket}");
            if bucket == firsts.len() {
                firsts.push(distance);
            }
        }
        firsts
    }

    #[test]
    fn buckets_are_those_of_t5() {
        let exact = 0..16;
        let grown = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113];
        assert_eq!(firsts(USUAL), exact.chain(grown).collect::<Vec<_>>());
        let both = Buckets { bidirectional: true, ..USUAL };
        assert_eq!(firsts(both), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert_eq!(firsts(Buckets { count: 8, max_distance: 64, ..USUAL }), [0, 1, 2, 3, 4, 8, 16, 32]);
        assert_eq!(USUAL.of(usize::MAX / 2), 31);
    }

    #[test]
    fn tables_end_where_all_distances_are_alike() {
        let bias: Vec<f32> = (0..64).map(|number| number as f32).collect();
        let tables = USUAL.tables(&bias);
        assert_eq!((tables.len(), tables[1].len()), (2, 129));
        assert_eq!((tables[0][0], tables[1][0], tables[0][20], tables[1][128]), (0.0, 1.0, 34.0, 63.0));
    }

    #[test]
    fn other_sizes_are_sound_or_refused() {
        assert!(USUAL.is_valid() && Buckets { count: 2, ..USUAL }.is_valid());
        assert!(!Buckets { count: 1, ..USUAL }.is_valid());
        assert!(!Buckets { count: 2, bidirectional: true, ..USUAL }.is_valid());
        assert!(!Buckets { max_distance: 16, ..USUAL }.is_valid());
        // a wrong largest distance moves the first bucket that is shared
        assert_ne!(Buckets { max_distance: 64, ..USUAL }.of(60), USUAL.of(60));
    }
}
