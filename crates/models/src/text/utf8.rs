//! Code points of a text whose bytes are cut anywhere.

/// Returns the longest beginning of `text` that has at most `bytes` bytes.
pub(super) fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.split_at(end).0
}

/// Moves complete code points from `pending` to `text`. With `replaces`, U+FFFD stands for invalid bytes.
pub(super) fn take_complete(pending: &mut Vec<u8>, text: &mut String, replaces: bool) {
    loop {
        let (valid, invalid) = match std::str::from_utf8(pending) {
            Ok(text) => (text, None),
            Err(error) => {
                let (before, _) = pending.split_at(error.valid_up_to());
                (std::str::from_utf8(before).unwrap_or_default(), error.error_len())
            }
        };
        let mut done = valid.len();
        text.push_str(valid);
        if let Some(bytes) = invalid {
            text.extend(replaces.then_some(char::REPLACEMENT_CHARACTER));
            done += bytes;
        }
        pending.drain(..done);
        if invalid.is_none() {
            return;
        }
    }
}

/// Removes an unfinished code point. With `replaces`, U+FFFD stands for it.
pub(super) fn replace_unfinished(pending: &mut Vec<u8>, text: &mut String, replaces: bool) {
    if !pending.is_empty() {
        pending.clear();
        text.extend(replaces.then_some(char::REPLACEMENT_CHARACTER));
    }
}
