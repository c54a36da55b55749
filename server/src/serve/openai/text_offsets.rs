//! Offsets of tokens in a text, in Unicode characters. Tokens may be single bytes of a character.

/// Computes the offset of each token of one text.
#[derive(Default)]
pub(super) struct TextOffsets {
    /// Number of complete characters, including U+FFFD for invalid bytes.
    characters: usize,
    /// Bytes of an unfinished character: at most three between calls.
    unfinished: Vec<u8>,
}

impl TextOffsets {
    /// Appends a token. Returns the offset of the character in which its first byte is: the bytes of a character share one offset.
    /// A token without bytes stands before the next one, and ends an unfinished character.
    pub(super) fn push(&mut self, token: &[u8]) -> usize {
        let Some((first, rest)) = token.split_first() else {
            self.characters += usize::from(!self.unfinished.is_empty());
            self.unfinished.clear();
            return self.characters;
        };
        self.push_byte(*first);
        // a complete character is already counted
        let offset = self.characters - usize::from(self.unfinished.is_empty());
        rest.iter().for_each(|byte| self.push_byte(*byte));
        offset
    }

    fn push_byte(&mut self, byte: u8) {
        self.unfinished.push(byte);
        loop {
            let (complete, invalid) = match std::str::from_utf8(&self.unfinished) {
                Ok(text) => (text.len(), None),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            let valid = self.unfinished.get(..complete).unwrap_or_default();
            // each character has one byte that does not continue another
            self.characters += valid.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            self.unfinished.drain(..complete + invalid.unwrap_or(0));
            if invalid.is_none() {
                return;
            }
            self.characters += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offsets(tokens: &[&[u8]]) -> Vec<usize> {
        let mut all = TextOffsets::default();
        tokens.iter().map(|token| all.push(token)).collect()
    }

    #[test]
    fn bytes_share_the_offset_of_their_character() {
        let bytes: Vec<&[u8]> = "a€é".as_bytes().chunks(1).collect();
        assert_eq!(offsets(&bytes), [0, 1, 1, 1, 2, 2]);
        // "a", U+FFFD for two bytes, "(", U+FFFD
        assert_eq!(offsets(&[b"a", b"\xe2", b"\x82", b"(", b"\xff", b"b"]), [0, 1, 1, 2, 3, 4]);
        // subwords: parts of "é", then of "€" with more text
        assert_eq!(offsets(&[b"ab", b" \xc3", b"\xa9 c", b"\xe2\x82", b"\xac"]), [0, 2, 3, 6, 6]);
        // a mark has no bytes
        assert_eq!(offsets(&[b"", b"a", b"\xe2", b"", b"b"]), [0, 0, 1, 2, 2]);
    }

    proptest! {
        #[test]
        fn offsets_are_places_in_the_decoded_text(bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 1_usize..4) {
            let text = String::from_utf8_lossy(&bytes);
            let tokens: Vec<&[u8]> = bytes.chunks(cut).collect();
            let offsets = offsets(&tokens);
            let places: Vec<usize> = (0..tokens.len())
                .map(|index| {
                    // the text up to and with the token's first byte; what follows may complete its last character
                    let read = String::from_utf8_lossy(&bytes[..=index * cut]).chars().count();
                    read - 1
                })
                .collect();
            prop_assert_eq!(&offsets, &places);
            prop_assert!(offsets.iter().all(|&offset| offset < text.chars().count()));
        }

        #[test]
        fn text_has_the_offsets_of_its_characters(text in any::<String>()) {
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            let expected: Vec<usize> =
                text.chars().enumerate().flat_map(|(index, one)| std::iter::repeat_n(index, one.len_utf8())).collect();
            prop_assert_eq!(offsets(&bytes), expected);
        }
    }
}
