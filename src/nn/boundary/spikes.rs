//! A boundary where the conditional entropy of a small companion model spikes (Dynamic Token Pooling, §3.1.3, eq. 6).
//!
//! H_t is the entropy of the companion's prediction after symbol t. A segment ends with t if H_t exceeds, strictly, each of
//! the k entropies before it, or as many as there are: position 0 is always a boundary.

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
