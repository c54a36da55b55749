//! Segment ends: a list that drops its oldest entries as windows move on and still counts them.

use crate::family::parts::step::clone_with_capacity;

/// Initial capacity in segments, so that a usual sequence never reallocates during a step.
const CAPACITY: usize = 1024;

/// The position of each closed segment's last symbol, in order.
#[derive(Debug)]
pub struct SegmentEnds {
    /// Segments closed before the first listed one.
    dropped: usize,
    /// Start of the first listed segment.
    start: usize,
    listed: Vec<usize>,
    /// Length of the list at which the next entries are dropped.
    full: usize,
}

impl Clone for SegmentEnds {
    fn clone(&self) -> Self {
        Self { listed: clone_with_capacity(&self.listed, CAPACITY), ..*self }
    }
}

impl SegmentEnds {
    /// Returns a list of `dropped` segments, none of them listed; the open segment starts at position `start`.
    pub fn from_segment(dropped: usize, start: usize) -> Self {
        Self { dropped, start, listed: Vec::with_capacity(CAPACITY), full: CAPACITY / 2 }
    }

    /// Closed segments, dropped ones included.
    pub fn len(&self) -> usize {
        self.dropped + self.listed.len()
    }

    /// True if no segment has closed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a segment that ends at `position`, after all others.
    pub fn push(&mut self, position: usize) {
        self.listed.push(position);
    }

    /// Counts the segments that end before `position`, whose segment must not be dropped.
    pub fn count_before(&self, position: usize) -> usize {
        self.dropped + self.listed.partition_point(|&end| end < position)
    }

    /// First position of the open segment.
    pub fn open_start(&self) -> usize {
        self.listed.last().map_or(self.start, |end| end + 1)
    }

    /// First position of segment `m`, unless it is dropped.
    pub fn start(&self, m: usize) -> Option<usize> {
        match m.checked_sub(self.dropped)? {
            0 => Some(self.start),
            later => self.listed.get(later - 1).map(|end| end + 1),
        }
    }

    /// Last position of segment `m`, unless it is dropped.
    pub fn end(&self, m: usize) -> Option<usize> {
        self.listed.get(m.checked_sub(self.dropped)?).copied()
    }

    /// Removes the segments that end at `position` or later; all of them, dropped ones too, if that is 0.
    pub fn truncate(&mut self, position: usize) {
        self.listed.truncate(self.listed.partition_point(|&end| end < position));
        if position == 0 {
            self.dropped = 0;
            self.start = 0;
        }
    }

    /// True if it is time to drop entries, which happens for many at a time.
    pub fn is_full(&self) -> bool {
        self.listed.len() >= self.full
    }

    /// Drops the segments before `m`.
    pub fn drop_before(&mut self, m: usize) {
        let count = m.saturating_sub(self.dropped).min(self.listed.len());
        if let Some(last) = self.listed.drain(..count).next_back() {
            self.dropped += count;
            self.start = last + 1;
        }
        self.full = CAPACITY / 2 + self.listed.len();
    }

    /// Bytes of memory that the list occupies.
    pub fn own_bytes(&self) -> usize {
        self.listed.capacity() * size_of::<usize>()
    }
}

impl Default for SegmentEnds {
    fn default() -> Self {
        Self::from_segment(0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_segments_still_count() {
        let mut dropping = SegmentEnds::default();
        let mut complete = Vec::new();
        for m in 0..5000 {
            let end = m * 3 + m % 2;
            dropping.push(end);
            complete.push(end);
            if dropping.is_full() {
                dropping.drop_before(m.saturating_sub(30));
            }
            assert_eq!(dropping.len(), complete.len());
            for position in [end, end + 1, end.saturating_sub(40)] {
                assert_eq!(dropping.count_before(position), complete.partition_point(|&end| end < position));
            }
            assert_eq!(dropping.end(m), Some(end));
            assert_eq!((dropping.start(m + 1), dropping.open_start()), (Some(end + 1), end + 1));
        }
        assert!(dropping.listed.len() < CAPACITY);
        assert_eq!((dropping.end(4998), dropping.start(4999)), (Some(complete[4998]), Some(complete[4998] + 1)));
        assert_eq!((dropping.end(0), dropping.start(0)), (None, None));
        let first = dropping.dropped;
        assert_eq!(dropping.start(first), Some(complete[first - 1] + 1));
        assert_eq!(dropping.end(first), Some(complete[first]));
        dropping.truncate(complete[4990]);
        assert_eq!(dropping.len(), 4990);
        dropping.truncate(0);
        assert_eq!((dropping.len(), dropping.open_start()), (0, 0));
        let mut resumed = SegmentEnds::from_segment(7, 50);
        assert_eq!((resumed.len(), resumed.open_start()), (7, 50));
        assert_eq!((resumed.start(7), resumed.start(6)), (Some(50), None));
        resumed.push(60);
        assert_eq!((resumed.count_before(60), resumed.count_before(61), resumed.open_start()), (7, 8, 61));
    }
}
