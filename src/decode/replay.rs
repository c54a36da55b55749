//! Where a state can be built again from, when its text is kept no longer than that takes.
//!
//! Where every layer's window is bounded, a state depends on its last symbols only: those of its windows, and of the windows
//! of what these attended to, a layer at a time. Fed from an [`ReplayStart`] on, a state that is told of what it has passed over
//! ([`State::resume`](super::contract::State::resume)) comes to be, bit for bit, what it is after the whole text.

/// Symbols that a text is cut by, at least.
const STRIDE: usize = 1024;

/// From where on a state's text must be fed for the state to be what it is after all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayStart {
    /// The first symbol to feed; at least 1.
    pub symbol: usize,
    /// The shortest length at which the state is as if all had been fed. Shorter ones are on the way.
    pub valid_from: usize,
    /// What is to be known of the segments before, where there are any.
    pub skipped: Option<SkippedSegments>,
}

/// Segments that are passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkippedSegments {
    /// How many.
    pub count: usize,
    /// The first symbol of the first one that is not.
    pub next_start: usize,
    /// The last symbol of that one: from here on there is a segment's vector to go on with.
    pub next_end: usize,
}

impl ReplayStart {
    /// Where a text may be cut that is to be fed from here on: at one of few places, so that texts which are equal from there
    /// on are cut alike.
    pub fn cut_position(self) -> usize {
        let stride = self.valid_from.saturating_sub(self.symbol).next_power_of_two().max(STRIDE);
        self.symbol / stride * stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_few_and_never_take_away_what_is_fed() {
        let cut = |symbol, sound| ReplayStart { symbol, valid_from: sound, skipped: None }.cut_position();
        assert_eq!([cut(1, 40), cut(1023, 1100), cut(1024, 1100), cut(5000, 5100)], [0, 0, 1024, 4096]);
        // two thousand symbols are needed: the next power of two is the stride
        assert_eq!([cut(3000, 5001), cut(4096, 6100), cut(9000, 11_500)], [2048, 4096, 8192]);
    }
}
