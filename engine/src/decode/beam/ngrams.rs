//! Bans tokens that would repeat an n-gram of a path.

use std::collections::HashMap;

/// The n-grams of one path.
#[derive(Debug, Clone)]
pub(super) struct Ngrams {
    /// Length n; 0 bans nothing.
    size: usize,
    /// The last n − 1 tokens; fewer at the beginning.
    latest: Vec<u32>,
    /// Tokens that followed each run of n − 1 tokens.
    followers: HashMap<Vec<u32>, Vec<u32>>,
}

impl Ngrams {
    /// Creates the n-grams of a path that begins with `start`.
    pub(super) fn new(size: usize, start: u32) -> Self {
        let mut ngrams = Self { size, latest: Vec::new(), followers: HashMap::new() };
        ngrams.push(start);
        ngrams
    }

    pub(super) fn push(&mut self, token: u32) {
        let Some(prefix_len) = self.size.checked_sub(1) else { return };
        if self.latest.len() == prefix_len {
            self.followers.entry(self.latest.clone()).or_default().push(token);
        }
        self.latest.push(token);
        let surplus = self.latest.len().saturating_sub(prefix_len);
        self.latest.drain(..surplus);
    }

    pub(super) fn banned(&self) -> &[u32] {
        let complete = self.size > 0 && self.latest.len() + 1 == self.size;
        complete.then(|| self.followers.get(&self.latest)).flatten().map(Vec::as_slice).unwrap_or_default()
    }
}
