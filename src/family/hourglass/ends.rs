//! Where segments ended: a list that forgets its beginning as windows move on, and still counts it.

/// Segments that a sequence has room to list from the start, so that no step of a usual one has to make room.
const ROOM: usize = 1024;

/// The position of each closed segment's last symbol, in order.
#[derive(Debug)]
pub struct Ends {
    /// Segments closed before the first listed one, and where that one starts.
    forgotten: usize,
    start: usize,
    listed: Vec<usize>,
    /// How many are listed when it is time to forget some.
    full: usize,
}

impl Clone for Ends {
    fn clone(&self) -> Self {
        // with the same room as a new list, which a derived clone would not have
        let mut listed = Vec::with_capacity(self.listed.len().max(ROOM));
        listed.extend_from_slice(&self.listed);
        let Self { forgotten, start, full, .. } = *self;
        Self { forgotten, start, listed, full }
    }
}

impl Ends {
    /// None yet.
    pub fn new() -> Self {
        Self::from_segment(0, 0)
    }

    /// So many, all forgotten; the open segment starts at that position.
    pub fn from_segment(forgotten: usize, start: usize) -> Self {
        Self { forgotten, start, listed: Vec::with_capacity(ROOM), full: ROOM / 2 }
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

    /// Where the open segment starts.
    pub fn open(&self) -> usize {
        self.listed.last().map_or(self.start, |end| end + 1)
    }

    /// Where segment `m` starts, unless that is forgotten.
    pub fn start(&self, m: usize) -> Option<usize> {
        match m.checked_sub(self.forgotten)? {
            0 => Some(self.start),
            later => self.listed.get(later - 1).map(|end| end + 1),
        }
    }

    /// Where segment `m` ended, unless that is forgotten.
    pub fn get(&self, m: usize) -> Option<usize> {
        self.listed.get(m.checked_sub(self.forgotten)?).copied()
    }

    /// Forgets that segments ended at `position` or later; all of them, if that is 0.
    pub fn truncate(&mut self, position: usize) {
        self.listed.truncate(self.listed.partition_point(|&end| end < position));
        if position == 0 {
            (self.forgotten, self.start) = (0, 0);
        }
    }

    /// Whether it is time to forget some: they go many at a time.
    pub fn is_full(&self) -> bool {
        self.listed.len() >= self.full
    }

    /// Forgets the segments before `m`.
    pub fn forget_before(&mut self, m: usize) {
        let old = m.saturating_sub(self.forgotten).min(self.listed.len());
        if let Some(last) = self.listed.drain(..old).next_back() {
            (self.forgotten, self.start) = (self.forgotten + old, last + 1);
        }
        self.full = ROOM / 2 + self.listed.len();
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
            if short.is_full() {
                short.forget_before(at.saturating_sub(30));
            }
            assert_eq!(short.len(), whole.len());
            for position in [end, end + 1, end.saturating_sub(40)] {
                assert_eq!(short.before(position), whole.partition_point(|&end| end < position));
            }
            assert_eq!((short.get(at), short.start(at + 1), short.open()), (Some(end), Some(end + 1), end + 1));
        }
        assert!(short.listed.len() < ROOM);
        assert_eq!((short.get(4998), short.start(4999)), (Some(whole[4998]), Some(whole[4998] + 1)));
        assert_eq!((short.get(0), short.start(0)), (None, None));
        let first = short.forgotten;
        assert_eq!((short.start(first), short.get(first)), (Some(whole[first - 1] + 1), Some(whole[first])));
        short.truncate(whole[4990]);
        assert_eq!(short.len(), 4990);
        short.truncate(0);
        assert_eq!((short.len(), short.open()), (0, 0));
        let mut taken_up = Ends::from_segment(7, 50);
        assert_eq!((taken_up.len(), taken_up.open(), taken_up.start(7), taken_up.start(6)), (7, 50, Some(50), None));
        taken_up.push(60);
        assert_eq!((taken_up.before(60), taken_up.before(61), taken_up.open()), (7, 8, 61));
    }
}
