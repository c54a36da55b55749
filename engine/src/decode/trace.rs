//! Encodes symbols together with their boundaries, for models that end their own segments with a mark.
//!
//! A prompt is fed as plain symbols: the model's predictor decides its boundaries. Generated text was cut by marks, which the
//! predictor may not agree with, so a replay feeds each such symbol with its boundary. A run of such [`item`]s is a *trace*.
//! During generation the mark comes after the symbol: the symbol is fed with an open boundary, and [`END`], fed alone, then
//! ends the segment. Models without marks accept plain symbols only.

/// Control item, fed alone: ends the open segment with the symbol fed last. Occupies no position.
pub const END: u32 = u32::MAX;
/// Control item, fed alone to an empty sequence: requests the logits before the first symbol. Occupies no position.
pub const BEGIN: u32 = u32::MAX - 1;

/// Flags of a symbol that ends no segment and of one that ends a segment: bits above all vocabulary ids.
const OPEN: u32 = 1 << 31;
const CLOSED: u32 = 1 << 30;

/// Encodes a symbol with its boundary.
pub fn item(symbol: u32, ends_segment: bool) -> u32 {
    symbol | if ends_segment { CLOSED } else { OPEN }
}

/// Returns the symbol of an item or of a plain symbol.
pub fn symbol(item: u32) -> u32 {
    item & !(OPEN | CLOSED)
}

/// Returns true if an item's symbol ends a segment; none for a plain symbol, whose boundary the predictor decides.
pub fn ends_segment(item: u32) -> Option<bool> {
    match (item & OPEN != 0, item & CLOSED != 0) {
        (false, false) => None,
        (_, closed) => Some(closed),
    }
}

/// Returns the number of sequence positions that a feed occupies.
pub fn positions(feed: &[u32]) -> usize {
    if is_control(feed) { 0 } else { feed.len() }
}

/// Returns true if a feed is [`END`] or [`BEGIN`].
pub fn is_control(feed: &[u32]) -> bool {
    matches!(feed, [END | BEGIN])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::vocabulary::MAX_SYMBOLS;

    #[test]
    fn items_encode_symbol_and_boundary() {
        for id in [0, 5, MAX_SYMBOLS as u32 + 4] {
            assert_eq!((symbol(id), ends_segment(id)), (id, None));
            for ends in [false, true] {
                let item = item(id, ends);
                assert_eq!((symbol(item), ends_segment(item)), (id, Some(ends)));
                assert!(item != END && item != BEGIN);
            }
        }
        assert_eq!((positions(&[END]), positions(&[BEGIN]), positions(&[3, 4])), (0, 0, 2));
    }
}
