//! A boundary every k symbols, at positions 0, k, 2k …: the first segment is one symbol long (official phase).

/// Every k symbols.
pub struct Fixed {
    /// k ≥ 1
    pub every: usize,
}

impl Fixed {
    /// Whether a segment ends at `position` of the stream.
    pub fn closes(&self, position: usize) -> bool {
        position.is_multiple_of(self.every)
    }

    /// The most segments that `symbols` can close, wherever in the stream they stand.
    pub fn segments(&self, symbols: usize) -> usize {
        symbols.div_ceil(self.every)
    }
}
