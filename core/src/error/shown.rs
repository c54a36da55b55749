//! Texts of clients and files as messages show them.

/// Makes a text safe to print: replaces each control character, and each character not allowed in XML, with U+FFFD. Names come
/// from folders and files, so they may contain either.
pub fn printable(text: &str) -> String {
    let harmful = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if harmful(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Maximum bytes of a client's text that [`quoted`] repeats.
pub const QUOTED_BYTES: usize = 64;

/// Quotes a client's text for an error message, truncated to [`QUOTED_BYTES`].
pub fn quoted(text: &str) -> String {
    format!("{:?}", clip(text, QUOTED_BYTES))
}

/// Truncates a text to at most `limit` bytes: messages quote input, which may be megabytes.
pub fn clip(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let (beginning, _) = text.split_at(end);
    format!("{beginning}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_one_by_one() {
        assert_eq!(printable("a name: größe <&> 模型"), "a name: größe <&> 模型");
        assert_eq!(printable("\0\t\n\u{1b}[2J\u{7f}\u{9b}\u{fffe}\u{ffff}x"), "���\u{fffd}[2J����x");
    }
}
