//! The position from which a text must be fed to rebuild a state, when earlier symbols were dropped.
//!
//! If every layer's window is bounded, a state depends on its last symbols only: the symbols of its windows, and of the
//! windows of what these attended to, layer by layer. A state that
//! [resumes](super::state::State::resume) at a [`ReplayStart`] equals, bit for bit, the state after the whole text.

/// Minimum distance between positions at which a text is cut.
const STRIDE: usize = 1024;

/// The position from which a state's text must be fed to rebuild the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayStart {
    /// The first symbol to feed; at least 1.
    pub symbol: usize,
    /// The shortest length at which the state equals the state after the whole text.
    pub valid_from: usize,
    /// The segments before `symbol`, in a model with segments.
    pub skipped: Option<SkippedSegments>,
}

/// Segments that a replay skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkippedSegments {
    /// Their number.
    pub count: usize,
    /// The first symbol of the first segment that is not skipped.
    pub next_start: usize,
    /// The last symbol of that segment. From here on a segment vector is available to the post stack.
    pub next_end: usize,
}

impl ReplayStart {
    /// The position before which the text may be dropped. One of few, so that equal texts are cut alike.
    pub fn cut_position(self) -> usize {
        let stride = self.valid_from.saturating_sub(self.symbol).next_power_of_two().max(STRIDE);
        self.symbol / stride * stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_positions_are_few_and_never_after_the_first_symbol_fed() {
        let cut = |symbol, valid_from| ReplayStart { symbol, valid_from, skipped: None }.cut_position();
        assert_eq!([cut(1, 40), cut(1023, 1100), cut(1024, 1100), cut(5000, 5100)], [0, 0, 1024, 4096]);
        // two thousand symbols are needed: the next power of two is the stride
        assert_eq!([cut(3000, 5001), cut(4096, 6100), cut(9000, 11_500)], [2048, 4096, 8192]);
    }
}
