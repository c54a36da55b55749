//! Where a state can be built again from, when its text is kept no longer than that takes.
//!
//! Where every layer's window is bounded, a state depends on its last symbols only: those of its windows, and of the windows
//! of what these attended to, a layer at a time. Fed from an [`Origin`] on, a state that is told of what it has passed over
//! ([`State::resume`](super::contract::State::resume)) comes to be, bit for bit, what it is after the whole text.

/// Symbols that a text is cut by, at least.
const STRIDE: usize = 1024;

/// From where on a state's text must be fed for the state to be what it is after all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The first symbol to feed; at least 1.
    pub symbol: usize,
    /// The shortest length at which the state is as if all had been fed. Shorter ones are on the way.
    pub sound: usize,
    /// What is to be known of the segments before, where there are any.
    pub passed: Option<Passed>,
}

/// Segments that are passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// How many.
    pub count: usize,
    /// The first symbol of the first one that is not.
    pub opens: usize,
    /// The last symbol of that one: from here on there is a segment's vector to go on with.
    pub closes: usize,
}

impl Origin {
    /// Where a text may be cut that is to be fed from here on: at one of few places, so that texts which are equal from there
    /// on are cut alike.
    pub fn cut(self) -> usize {
        let stride = self.sound.saturating_sub(self.symbol).next_power_of_two().max(STRIDE);
        self.symbol / stride * stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_few_and_never_take_away_what_is_fed() {
        let cut = |symbol, sound| Origin { symbol, sound, passed: None }.cut();
        assert_eq!([cut(1, 40), cut(1023, 1100), cut(1024, 1100), cut(5000, 5100)], [0, 0, 1024, 4096]);
        // two thousand symbols are needed: the next power of two is the stride
        assert_eq!([cut(3000, 5001), cut(4096, 6100), cut(9000, 11_500)], [2048, 4096, 8192]);
    }
}
