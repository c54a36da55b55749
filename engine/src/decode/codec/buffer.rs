//! The growth of the buffers that hold input without a complete block.

/// Maximum items by which a buffer grows at a time.
const STEP: usize = 1 << 14;

/// Returns the capacity of a buffer that has `capacity` and must hold `needed` items. It grows in few steps, but not beyond `most`
/// unless it must.
pub(super) fn grown(capacity: usize, needed: usize, most: usize) -> usize {
    if needed <= capacity {
        return capacity;
    }
    needed.max(most.min(capacity.saturating_add(capacity.min(STEP))))
}

#[cfg(test)]
mod tests {
    use super::grown;

    #[test]
    fn buffers_grow_in_few_steps_up_to_their_limit() {
        assert_eq!([grown(8, 8, 100), grown(8, 9, 100), grown(8, 40, 100)], [8, 16, 40]);
        assert_eq!([grown(8, 9, 10), grown(8, 9, 1), grown(1 << 16, (1 << 16) + 1, 1 << 20)], [10, 9, 5 << 14]);
    }
}
