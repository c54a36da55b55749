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

/// Returns true for the name of a field, such as `stopping.stop`, and false for that of a method or a command.
pub fn is_field_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || "_.".contains(c))
}

/// Returns the message about a call or an option that a model does not support.
pub(super) fn wrong_kind(call: &str, model: &str, wanted: &str, found: &str) -> String {
    if is_field_name(call) {
        return format!("{call}: expected a model that {wanted}, found {model:?}, {found}");
    }
    format!("model: expected one that {wanted} (for {call}), found {model:?}, {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_model_is_named_with_the_call_or_the_option() {
        let shown = |call| wrong_kind(call, "m", "pools", "a model that does not");
        assert_eq!(
            shown("Segment"),
            "model: expected one that pools (for Segment), found \"m\", a model that does not"
        );
        assert_eq!(shown("a.b_c"), "a.b_c: expected a model that pools, found \"m\", a model that does not");
    }

    #[test]
    fn control_characters_are_replaced_one_by_one() {
        assert_eq!(printable("a name: größe <&> 模型"), "a name: größe <&> 模型");
        assert_eq!(printable("\0\t\n\u{1b}[2J\u{7f}\u{9b}\u{fffe}\u{ffff}x"), "���\u{fffd}[2J����x");
    }
}
