//! Boundary sources without weights: every k symbols, after a separator, at entropy spikes.

/// Finds the id of a character in a vocabulary, if it is a symbol.
pub type IdOf<'a> = &'a dyn Fn(char) -> Option<u32>;

/// A boundary at stream positions 0, k, 2k …: the first segment is one symbol long (official phase).
pub struct Fixed {
    /// k ≥ 1
    pub every: usize,
}

impl Fixed {
    /// Returns true if a segment ends at `position` of the stream.
    pub fn closes(&self, position: usize) -> bool {
        position.is_multiple_of(self.every)
    }

    /// Returns the maximum segments that `symbols` symbols can close, at any position of the stream.
    pub fn segments(&self, symbols: usize) -> usize {
        symbols.div_ceil(self.every)
    }
}

/// A boundary after each separator, which belongs to the word before it. White space that is not listed is no boundary.
pub struct Whitespace {
    separators: Vec<u32>,
}

impl Whitespace {
    /// Creates a source that cuts after each character of `separators`; `None` if there are none or one is not in the
    /// vocabulary.
    pub fn new(separators: &str, id_of: IdOf<'_>) -> Option<Self> {
        let separators: Vec<u32> = separators.chars().map(id_of).collect::<Option<_>>()?;
        (!separators.is_empty()).then_some(Self { separators })
    }

    /// Returns true if a segment ends with `symbol`.
    pub fn closes(&self, symbol: u32) -> bool {
        self.separators.contains(&symbol)
    }
}

/// A boundary where the conditional entropy of a small companion model spikes (Dynamic Token Pooling, §3.1.3, eq. 6).
///
/// H_t is the entropy of the companion's prediction after symbol t. A segment ends with t if H_t exceeds, strictly, each of
/// the k entropies before it, or all of them if there are fewer. Position 0 is always a boundary.
pub struct Spikes {
    /// k ≥ 1
    pub window: usize,
}

impl Spikes {
    /// Returns true if a segment ends at `position`, given the entropies up to it.
    pub fn closes(&self, entropies: &[f64], position: usize) -> bool {
        let before = &entropies[position.saturating_sub(self.window)..position];
        before.iter().all(|&earlier| entropies[position] > earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_end_after_each_listed_separator() {
        let id_of = |character: char| " \nab".find(character).map(|index| index as u32);
        let closes = |separators: &str| {
            Whitespace::new(separators, &id_of).map(|source| (0..4).map(|id| source.closes(id)).collect::<Vec<_>>())
        };
        assert_eq!(closes(" "), Some(vec![true, false, false, false]));
        assert_eq!(closes(" \n"), Some(vec![true, true, false, false]));
        assert_eq!(closes(""), None);
        assert_eq!(closes(" x"), None);
    }

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
