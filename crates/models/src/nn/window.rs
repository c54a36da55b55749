//! Attention windows: which earlier positions a position attends to. The cache of a windowed stack never holds more than a
//! window, a chunk of new positions and some slack.

use crate::nn::{ConfigError, kv_cache::KvCache};
use serde::Deserialize;
use weir_kernels::attention::{POSITIONS, PageLayout};
use weir_kernels::error::Result;

/// Which keys a position attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Window {
    /// All positions up to its own.
    Full,
    /// Blockwise causal attention (LeX, Sun et al. 2023, §3.3): blocks of half the length. A position attends to its own block
    /// up to itself, and to the whole block before.
    Blockwise {
        /// Two blocks: the training length.
        length: usize,
    },
    /// The last `keys` positions, its own included.
    Sliding {
        /// Number of keys.
        keys: usize,
    },
}

/// Symbols that a rollback can always remove: keys stay until the window has moved this much further.
pub const ROLLBACK: usize = POSITIONS;

/// Positions of a sequence that a windowed stack takes at a time; all of them hold keys during the pass.
pub const CHUNK: usize = 512;

/// Maximum keys of a window.
pub const MAX_LENGTH: usize = 1 << 24;

impl Window {
    /// Checks the window's length. Fails if the length is out of bounds or does not halve.
    pub fn validate(self) -> Result<(), ConfigError> {
        match self {
            Self::Blockwise { length } if !(2..=MAX_LENGTH).contains(&length) || !length.is_multiple_of(2) => {
                let expected = format!("an even number from 2 to {MAX_LENGTH}: blocks have half the length");
                Err(ConfigError::new("blockwise.length", expected, length))
            }
            Self::Sliding { keys } if !(1..=MAX_LENGTH).contains(&keys) => {
                Err(ConfigError::new("sliding.keys", format!("1 to {MAX_LENGTH}"), keys))
            }
            _ => Ok(()),
        }
    }

    /// Returns the first position that `position` attends to.
    pub fn first_key(self, position: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::Blockwise { length } => (position / (length / 2)).saturating_sub(1) * (length / 2),
            Self::Sliding { keys } => (position + 1).saturating_sub(keys),
        }
    }

    /// Returns the first position that `position` depends on through `layers` layers with this window.
    pub fn first_key_through(self, position: usize, layers: usize) -> usize {
        (0..layers).fold(position, |position, _| self.first_key(position))
    }

    /// Returns the maximum keys that a position attends to; `None` if unlimited.
    pub fn max_keys(self) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Blockwise { length } => Some(length),
            Self::Sliding { keys } => Some(keys),
        }
    }

    /// Returns how many keys a position attends to at least, and a cache holds; `None` if unlimited.
    pub fn min_keys(self) -> Option<usize> {
        match self {
            Self::Full => None,
            // the first position of a block: itself and the block before
            Self::Blockwise { length } => Some(length / 2 + 1),
            Self::Sliding { keys } => Some(keys),
        }
    }

    /// Returns how many keys the last of `positions` attends to.
    pub fn keys(self, positions: usize) -> usize {
        positions - self.first_key(positions.saturating_sub(1))
    }

    /// Returns the first position whose key is needed by position `next`, or by one up to [`ROLLBACK`] before it.
    pub fn first_kept(self, next: usize) -> usize {
        self.first_key(next.saturating_sub(ROLLBACK))
    }

    /// Returns the minimum nonzero length that a rollback can restore when the keys before `start` are freed.
    pub fn earliest_rollback(self, start: usize) -> usize {
        match self {
            _ if start == 0 => 0,
            // A full window never frees keys.
            Self::Full => 0,
            Self::Blockwise { length } => (start.div_ceil(length / 2) + 1) * (length / 2),
            Self::Sliding { keys } => start + keys - 1,
        }
    }

    /// Returns how many of a sequence's positions a stack takes at a time.
    pub fn chunk(self) -> usize {
        self.max_keys().map_or(usize::MAX, |_| CHUNK)
    }

    /// Returns the maximum positions that a cache holds of a sequence of `positions`; pages are freed whole.
    pub fn max_held(self, positions: usize) -> usize {
        self.max_keys().map_or(positions, |keys| positions.min(keys + ROLLBACK + POSITIONS + CHUNK))
    }

    /// Reserves `more` positions in a sequence's cache, after freeing the pages that no later position attends to.
    pub fn reserve(self, cache: &mut KvCache, more: usize) -> Result<()> {
        cache.free_before(self.first_kept(cache.len()));
        cache.reserve(more)
    }

    /// Returns the maximum bytes of pages in a cache of `positions` with that layout.
    pub fn bytes_for(self, layout: &PageLayout, positions: usize) -> usize {
        layout.bytes_for(self.max_held(positions))
    }

    /// Returns the maximum bytes of pages that extending a cache with that layout to `len` positions allocates.
    pub fn growth(self, layout: &PageLayout, cache: &KvCache, len: usize) -> usize {
        let copy = if cache.copies() { layout.page_bytes() } else { 0 };
        cache.growth(len).min(self.bytes_for(layout, len) + copy)
    }

    /// Returns a human-readable summary.
    pub fn describe(self) -> String {
        match self {
            Self::Full => "full window".into(),
            Self::Blockwise { length } => format!("blocks of {}", length / 2),
            Self::Sliding { keys } => format!("window of {keys}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: j is visible to i if j ≤ i and j lies in i's block or the one before, or among the last `keys`.
    fn sees(window: Window, i: usize, j: usize) -> bool {
        match window {
            Window::Full => j <= i,
            Window::Blockwise { length } => {
                let half = length / 2;
                j <= i && j / half + 1 >= i / half
            }
            Window::Sliding { keys } => j <= i && i - j < keys,
        }
    }

    #[test]
    fn keys_agree_with_the_definition_and_are_kept_long_enough() {
        let windows = [2, 6, 32, 64, 100].map(|length| Window::Blockwise { length });
        let others = [1, 5, 32, 33, 70].map(|keys| Window::Sliding { keys });
        for window in windows.into_iter().chain(others).chain([Window::Full]) {
            for i in 0..300 {
                let first = window.first_key(i);
                assert!((0..300).all(|j| sees(window, i, j) == (first..=i).contains(&j)), "{window:?} at {i}");
                assert!(window.max_keys().is_none_or(|keys| i - first < keys));
                assert!(window.min_keys().is_none_or(|keys| i + 1 - first >= keys.min(i + 1)), "{window:?} at {i}");
                assert_eq!(window.keys(i + 1), i + 1 - first);
                // The next position finds its keys, after a rollback too.
                let kept = window.first_kept(i);
                assert!((i.saturating_sub(ROLLBACK)..i + 50).all(|next| window.first_key(next) >= kept));
                let earliest = window.earliest_rollback(kept);
                assert!(earliest + ROLLBACK <= i || earliest == 0, "{window:?}: {earliest} at {i}");
                assert!(window.first_key(earliest) >= kept || earliest == 0);
                assert!(
                    earliest == 0 || window.min_keys().is_none_or(|keys| earliest + 1 - kept >= keys),
                    "{window:?}"
                );
                assert!(earliest == 0 || window.first_key(earliest - 1) < kept);
                assert!(i + CHUNK - kept / POSITIONS * POSITIONS <= window.max_held(i + CHUNK), "{window:?}");
            }
        }
    }

    #[test]
    fn validate_rejects_odd_and_zero_lengths() {
        for window in [Window::Blockwise { length: 7 }, Window::Blockwise { length: 0 }, Window::Sliding { keys: 0 }] {
            assert!(window.validate().is_err());
        }
        assert!(Window::Blockwise { length: 32 }.validate().is_ok() && Window::Full.validate().is_ok());
    }
}
