//! Where segments ended: a list that forgets its beginning as windows move on, and still counts it.

/// Segments that a sequence has room to list from the start, so that no step of a usual one has to make room.
const ROOM: usize = 1024;

/// The position of each closed segment's last symbol, in order.
#[derive(Debug)]
pub struct Ends {
    /// Segments closed before the first listed one.
    forgotten: usize,
    listed: Vec<usize>,
}

impl Clone for Ends {
    fn clone(&self) -> Self {
        // with the same room as a new list, which a derived clone would not have
        let mut listed = Vec::with_capacity(self.listed.len().max(ROOM));
        listed.extend_from_slice(&self.listed);
        Self { forgotten: self.forgotten, listed }
    }
}

impl Ends {
    /// None yet.
    pub fn new() -> Self {
        Self { forgotten: 0, listed: Vec::with_capacity(ROOM) }
    }

    /// Segments closed.
    pub fn len(&self) -> usize {
        self.forgotten + self.listed.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes that a segment ends at a position, behind all others.
    pub fn push(&mut self, position: usize) {
        self.listed.push(position);
    }

    /// Segments that ended before a position which is not forgotten.
    pub fn before(&self, position: usize) -> usize {
        self.forgotten + self.listed.partition_point(|&end| end < position)
    }

    /// Where the last one ended.
    pub fn last(&self) -> Option<usize> {
        self.listed.last().copied()
    }

    /// Where segment `m` ended, unless that is forgotten.
    pub fn get(&self, m: usize) -> Option<usize> {
        self.listed.get(m.checked_sub(self.forgotten)?).copied()
    }

    /// Forgets that segments ended at `position` or later; all of them, if that is 0.
    pub fn truncate(&mut self, position: usize) {
        self.listed.truncate(self.listed.partition_point(|&end| end < position));
        if position == 0 {
            self.forgotten = 0;
        }
    }

    /// Forgets where segments ended before `position`, but for the last `most` of them; now and then, many at a time.
    pub fn forget_before(&mut self, position: usize, most: usize) {
        let old = self.listed.partition_point(|&end| end < position).saturating_sub(most);
        if old >= ROOM / 2 {
            self.listed.drain(..old);
            self.forgotten += old;
        }
    }

    /// Bytes that it occupies.
    pub fn own_bytes(&self) -> usize {
        self.listed.capacity() * size_of::<usize>()
    }
}

impl Default for Ends {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_still_counts() {
        let (mut short, mut whole) = (Ends::new(), Vec::new());
        for at in 0..5000 {
            let end = at * 3 + at % 2;
            short.push(end);
            whole.push(end);
            short.forget_before(end.saturating_sub(90), 4);
            assert_eq!(short.len(), whole.len());
            for position in [end, end + 1, end.saturating_sub(40)] {
                assert_eq!(short.before(position), whole.partition_point(|&end| end < position));
            }
            assert_eq!(short.get(at), Some(end));
        }
        assert!(short.listed.len() < ROOM);
        assert_eq!((short.get(4998), short.last()), (Some(whole[4998]), Some(whole[4999])));
        assert_eq!(short.get(0), None);
        short.truncate(whole[4990]);
        assert_eq!(short.len(), 4990);
        short.truncate(0);
        assert!(short.is_empty());
    }
}
