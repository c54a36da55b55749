//! Windows: which positions before its own a position attends to.
//!
//! A stack asks its window for the first key of each row, and a cache asks it which keys no later row will need. So the keys
//! of a windowed stack flow in at one end and out at the other, a page at a time, and there are never more of them than a
//! window, a piece of symbols and some slack hold.

use crate::kernels::attention::POSITIONS;
use serde::Deserialize;

/// Which keys a position attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Window {
    /// All up to its own.
    Full,
    /// Blockwise causal attention (LeX, Sun et al. 2023, §3.3): positions come in blocks of half the length; each attends to
    /// its own block as far as its own position, and to the whole block before.
    Blockwise {
        /// Two blocks: the training length.
        length: usize,
    },
    /// The last so many, its own included.
    Sliding {
        /// How many.
        keys: usize,
    },
}

/// How many symbols a sequence can always take back, counted from the furthest that it has come. The keys that a window leaves behind stay until it has moved on by so
/// many, so that a rollback may cross a block's edge.
pub const ROLLBACK: usize = POSITIONS;
/// Positions that a windowed stack takes of a sequence at a time, since all of them hold keys until they have attended.
pub const CHUNK: usize = 512;
/// The longest window.
const MOST: usize = 1 << 24;

impl Window {
    /// Whether it can be.
    ///
    /// # Errors
    /// The key, what is expected there, and what was found.
    pub fn validate(self) -> Result<(), (&'static str, String, String)> {
        match self {
            Self::Blockwise { length } if !(2..=MOST).contains(&length) || !length.is_multiple_of(2) => {
                let expected = format!("an even number from 2 to {MOST}: blocks have half the length");
                Err(("blockwise.length", expected, length.to_string()))
            }
            Self::Sliding { keys } if !(1..=MOST).contains(&keys) => {
                Err(("sliding.keys", format!("1 to {MOST}"), keys.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// The first position that `position` attends to.
    pub fn first_key(self, position: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::Blockwise { length } => (position / (length / 2)).saturating_sub(1) * (length / 2),
            Self::Sliding { keys } => (position + 1).saturating_sub(keys),
        }
    }

    /// The first position that `position` depends on through so many layers, each of which attends like this.
    pub fn first_key_through(self, position: usize, layers: usize) -> usize {
        (0..layers).fold(position, |position, _| self.first_key(position))
    }

    /// The most keys that a position attends to, if there is a bound.
    pub fn max_keys(self) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Blockwise { length } => Some(length),
            Self::Sliding { keys } => Some(keys),
        }
    }

    /// Of `positions`, how many the last one attends to.
    pub fn keys(self, positions: usize) -> usize {
        positions - self.first_key(positions.saturating_sub(1))
    }

    /// The first position whose key is still needed when `next` is the next to come, or one up to [`ROLLBACK`] before it.
    pub fn first_kept(self, next: usize) -> usize {
        self.first_key(next.saturating_sub(ROLLBACK))
    }

    /// The shortest length that a sequence can be rolled back to, other than none, whose keys before `start` are gone.
    pub fn earliest_rollback(self, start: usize) -> usize {
        match self {
            _ if start == 0 => 0,
            // nothing ever goes
            Self::Full => 0,
            Self::Blockwise { length } => (start.div_ceil(length / 2) + 1) * (length / 2),
            Self::Sliding { keys } => start + keys - 1,
        }
    }

    /// How many of a sequence's positions a stack takes at a time.
    pub fn chunk(self) -> usize {
        self.max_keys().map_or(usize::MAX, |_| CHUNK)
    }

    /// The most positions that a cache holds of a sequence of `positions`.
    pub fn max_held(self, positions: usize) -> usize {
        // what was left behind goes in whole pages
        self.max_keys().map_or(positions, |reach| positions.min(reach + ROLLBACK + POSITIONS + CHUNK))
    }

    /// For people.
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

    /// By the definition: j is visible to i if j ≤ i and it lies in i's block or the one before; or among the last keys.
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
    fn keys_are_those_of_the_definition_and_none_is_forgotten_too_early() {
        let windows = [2, 6, 32, 64, 100].map(|length| Window::Blockwise { length });
        let others = [1, 5, 32, 33, 70].map(|keys| Window::Sliding { keys });
        for window in windows.into_iter().chain(others).chain([Window::Full]) {
            for i in 0..300 {
                let low = window.first_key(i);
                assert!((0..300).all(|j| sees(window, i, j) == (low..=i).contains(&j)), "{window:?} at {i}");
                assert!(window.max_keys().is_none_or(|reach| i - low < reach));
                assert_eq!(window.keys(i + 1), i + 1 - low);
                // whoever comes next, after a rollback too, finds its keys
                let kept = window.first_kept(i);
                assert!((i.saturating_sub(ROLLBACK)..i + 50).all(|next| window.first_key(next) >= kept));
                let earliest = window.earliest_rollback(kept);
                assert!(earliest + ROLLBACK <= i || earliest == 0, "{window:?}: {earliest} at {i}");
                assert!(window.first_key(earliest) >= kept || earliest == 0);
                assert!(earliest == 0 || window.first_key(earliest - 1) < kept);
                assert!(i + CHUNK - kept / POSITIONS * POSITIONS <= window.max_held(i + CHUNK), "{window:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_told() {
        for window in [Window::Blockwise { length: 7 }, Window::Blockwise { length: 0 }, Window::Sliding { keys: 0 }] {
            assert!(window.validate().is_err());
        }
        assert!(Window::Blockwise { length: 32 }.validate().is_ok() && Window::Full.validate().is_ok());
    }
}
