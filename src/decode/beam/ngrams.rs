//! Which tokens would repeat a run of tokens that a path has already written.

use std::collections::HashMap;

/// The runs of one path.
#[derive(Debug, Clone)]
pub(super) struct Ngrams {
    /// Tokens of a run; 0: nothing is forbidden.
    size: usize,
    /// The latest tokens: as many as a run has but one, fewer at the beginning.
    latest: Vec<u32>,
    /// What has followed such tokens.
    followed: HashMap<Vec<u32>, Vec<u32>>,
}

impl Ngrams {
    /// Of a path that begins with this token.
    pub(super) fn new(size: usize, start: u32) -> Self {
        let mut own = Self { size, latest: Vec::new(), followed: HashMap::new() };
        own.push(start);
        own
    }

    /// Takes the path's next token.
    pub(super) fn push(&mut self, token: u32) {
        let Some(before) = self.size.checked_sub(1) else { return };
        if self.latest.len() == before {
            self.followed.entry(self.latest.clone()).or_default().push(token);
        }
        self.latest.push(token);
        let surplus = self.latest.len().saturating_sub(before);
        self.latest.drain(..surplus);
    }

    /// What may not follow.
    pub(super) fn banned(&self) -> &[u32] {
        let complete = self.size > 0 && self.latest.len() + 1 == self.size;
        complete.then(|| self.followed.get(&self.latest)).flatten().map(Vec::as_slice).unwrap_or_default()
    }
}
