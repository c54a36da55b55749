//! T5's buckets (Raffel et al. 2020, §2.1): a learned number for each head and bucket of distances, added to the score. Buckets
//! grow with the distance. All distances from a maximum on share the last bucket, so sequences have no maximum length.

/// Mapping of distances to buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// Rows of the learned table.
    pub count: usize,
    /// Distances from this one on are in the last bucket.
    pub max_distance: usize,
    /// True if half of the rows are for later keys: T5's rule for encoders, kept by causal stacks that changed only the mask.
    pub bidirectional: bool,
}

impl Buckets {
    /// Returns the number of rows for earlier keys.
    fn used(self) -> usize {
        if self.bidirectional { self.count / 2 } else { self.count }
    }

    /// Returns true if there are exact buckets and a range of distances for the growing ones.
    pub fn is_valid(self) -> bool {
        let exact = self.used() / 2;
        exact >= 1 && self.max_distance > exact
    }

    /// Returns the bucket of a distance from a query back to a key. The first half of the buckets hold one distance each, the
    /// others grow. Rounds in f32 as T5's code does.
    pub fn bucket(self, distance: usize) -> usize {
        let used = self.used();
        let exact = used / 2;
        if distance < exact {
            return distance;
        }
        let far = (distance as f32 / exact as f32).ln() / (self.max_distance as f64 / exact as f64).ln() as f32;
        (exact + (far * (used - exact) as f32) as usize).min(used - 1)
    }

    /// Returns how many numbers the [`tables`](Self::tables) of `heads` heads hold; `usize::MAX` if that overflows.
    pub fn table_numbers(self, heads: usize) -> usize {
        self.max_distance.saturating_add(1).saturating_mul(heads)
    }

    /// Returns how many numbers the [`two_sided_tables`](Self::two_sided_tables) of `heads` heads hold; `usize::MAX` if that
    /// overflows.
    pub fn two_sided_table_numbers(self, heads: usize) -> usize {
        self.max_distance.saturating_mul(2).saturating_add(1).saturating_mul(heads)
    }

    /// Returns each head's number for each distance from −`max_distance` (earlier keys) to `max_distance` (later keys), from the
    /// learned `bias`, (count, heads). The buckets must be bidirectional.
    pub fn two_sided_tables(self, bias: &[f32]) -> Vec<Vec<f32>> {
        let heads = bias.len() / self.count;
        let number = |head: usize, bucket: usize| bias[bucket * heads + head];
        let table = |head: usize| {
            let earlier = (0..=self.max_distance).rev().map(|distance| number(head, self.bucket(distance)));
            let later = (1..=self.max_distance).map(|distance| number(head, self.used() + self.bucket(distance)));
            earlier.chain(later).collect()
        };
        (0..heads).map(table).collect()
    }

    /// Returns each head's number for each distance up to `max_distance`, from the learned `bias`: (count, heads).
    pub fn tables(self, bias: &[f32]) -> Vec<Vec<f32>> {
        let heads = bias.len() / self.count;
        let number = |head: usize, distance: usize| bias[self.bucket(distance) * heads + head];
        (0..heads).map(|head| (0..=self.max_distance).map(|distance| number(head, distance)).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Buckets = Buckets { count: 32, max_distance: 128, bidirectional: false };

    fn first_distances(buckets: Buckets) -> Vec<usize> {
        let mut firsts: Vec<usize> = Vec::new();
        for distance in 0..1000 {
            let bucket = buckets.bucket(distance);
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
        assert_eq!(first_distances(USUAL), exact.chain(grown).collect::<Vec<_>>());
        let both = Buckets { bidirectional: true, ..USUAL };
        assert_eq!(first_distances(both), [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert_eq!(first_distances(Buckets { count: 8, max_distance: 64, ..USUAL }), [0, 1, 2, 3, 4, 8, 16, 32]);
        assert_eq!(USUAL.bucket(usize::MAX / 2), 31);
    }

    #[test]
    fn tables_end_at_the_maximum_distance() {
        let bias: Vec<f32> = (0..64).map(|number| number as f32).collect();
        let tables = USUAL.tables(&bias);
        assert_eq!((tables.len(), tables[1].len()), (2, 129));
        assert_eq!(USUAL.table_numbers(2), tables.concat().len());
        assert_eq!((tables[0][0], tables[1][0], tables[0][20], tables[1][128]), (0.0, 1.0, 34.0, 63.0));
    }

    #[test]
    fn two_sided_tables_have_the_later_keys_last() {
        let bias: Vec<f32> = (0..64).map(|number| number as f32).collect();
        let tables = Buckets { bidirectional: true, ..USUAL }.two_sided_tables(&bias);
        assert_eq!((tables.len(), tables[0].len()), (2, 257));
        assert_eq!(USUAL.two_sided_table_numbers(2), tables.concat().len());
        assert_eq!(USUAL.two_sided_table_numbers(usize::MAX), usize::MAX);
        // The query's own position, the nearest keys on both sides, and the furthest.
        let head = &tables[1];
        assert_eq!([head[128], head[127], head[129], head[0], head[256]], [1.0, 3.0, 35.0, 31.0, 63.0]);
    }

    #[test]
    fn is_valid_rejects_sizes_without_exact_or_growing_buckets() {
        assert!(USUAL.is_valid() && Buckets { count: 2, ..USUAL }.is_valid());
        assert!(!Buckets { count: 1, ..USUAL }.is_valid());
        assert!(!Buckets { count: 2, bidirectional: true, ..USUAL }.is_valid());
        assert!(!Buckets { max_distance: 16, ..USUAL }.is_valid());
        // Another maximum distance moves the growing buckets.
        assert_ne!(Buckets { max_distance: 64, ..USUAL }.bucket(60), USUAL.bucket(60));
    }
}
