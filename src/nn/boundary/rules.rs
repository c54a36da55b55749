//! Boundary sources without weights: every k symbols, after one symbol, at spikes of an entropy.

/// Finds the id of a character in a vocabulary, if it is a symbol.
pub type IdOf<'a> = &'a dyn Fn(char) -> Option<u32>;

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

/// After one symbol.
pub struct Whitespace {
    symbol: u32,
}

impl Whitespace {
    /// After `symbol`, which must be one character of the vocabulary.
    pub fn new(symbol: &str, id_of: IdOf<'_>) -> Option<Self> {
        let mut characters = symbol.chars();
        let (first, None) = (characters.next()?, characters.next()) else { return None };
        id_of(first).map(|symbol| Self { symbol })
    }

    /// Whether a segment ends with `symbol`.
    pub fn closes(&self, symbol: u32) -> bool {
        symbol == self.symbol
    }
}

/// Spikes over a left window.
pub struct Spikes {
    /// k ≥ 1
    pub window: usize,
}

impl Spikes {
    /// Whether a segment ends at `position`, given the entropies up to it.
    pub fn closes(&self, entropies: &[f64], position: usize) -> bool {
        let before = &entropies[position.saturating_sub(self.window)..position];
        before.iter().all(|&earlier| entropies[position] > earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_exceeds_its_whole_window_strictly() {
        let entropies = [1.0, 1.0, 2.0, 3.0, 1.0, 2.5, 2.6, 0.1];
        let closes = |window| {
            let spikes = Spikes { window };
            (0..entropies.len()).map(|t| u8::from(spikes.closes(&entropies, t))).collect::<Vec<_>>()
        };
        assert_eq!(closes(1), [1, 0, 1, 1, 0, 1, 1, 0]);
        assert_eq!(closes(2), [1, 0, 1, 1, 0, 0, 1, 0]);
        assert_eq!(closes(9), [1, 0, 1, 1, 0, 0, 0, 0]);
    }
}
