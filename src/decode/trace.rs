//! What is fed, symbol by symbol, where a model ends its own segments with a mark.
//!
//! Text that is given has its boundaries from the model's predictor, and is fed as it is. Text that the model wrote was cut by
//! marks, which the predictor may not agree with; so that a state can be built again, each such symbol is fed with its
//! boundary. Such a run of [`item`]s is a *trace*. While text is being written the mark comes after the symbol: that has been
//! fed as ending nothing, and [`END`], fed alone, then ends the segment. Models without marks know plain symbols only.

/// Fed alone: the open segment ends with the symbol that was fed last. It takes no place in the sequence.
pub const END: u32 = u32::MAX;
/// Fed alone to a sequence that has seen nothing: asks for the logits before the first symbol. It takes no place either.
pub const BEGIN: u32 = u32::MAX - 1;

/// Of a symbol that ends no segment, and of one that ends one: bits that no vocabulary's ids reach.
const OPEN: u32 = 1 << 31;
const CLOSED: u32 = 1 << 30;

/// A symbol with its boundary.
pub fn item(symbol: u32, ends_segment: bool) -> u32 {
    symbol | if ends_segment { CLOSED } else { OPEN }
}

/// The symbol of an item, or of a plain symbol.
pub fn symbol(item: u32) -> u32 {
    item & !(OPEN | CLOSED)
}

/// Whether an item's symbol ends a segment; none if that is the predictor's to say.
pub fn ends_segment(item: u32) -> Option<bool> {
    match (item & OPEN != 0, item & CLOSED != 0) {
        (false, false) => None,
        (_, closed) => Some(closed),
    }
}

/// How many positions of a sequence a feed takes.
pub fn positions(feed: &[u32]) -> usize {
    if is_control(feed) { 0 } else { feed.len() }
}

/// Whether a feed is [`END`] or [`BEGIN`].
pub fn is_control(feed: &[u32]) -> bool {
    matches!(feed, [END | BEGIN])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::vocabulary::MAX_SYMBOLS;

    #[test]
    fn items_hold_symbol_and_boundary() {
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
