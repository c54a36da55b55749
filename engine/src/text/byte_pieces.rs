//! Bytes of the pieces of a byte-level tokenizer (GPT-2 and its successors).
//!
//! Such a tokenizer spells each byte as one printable character. Its decoder maps the characters of all pieces back and reads the
//! bytes as UTF-8. The bytes of a piece do not depend on other pieces, so a text can be decoded piece by piece.

use serde_json::Value;
use std::collections::HashSet;
use tokenizers::Tokenizer;

/// Bytes of all pieces.
pub(super) struct BytePieces {
    bytes: Vec<u8>,
    /// Offset after the last byte of each id's piece.
    ends: Vec<usize>,
}

impl BytePieces {
    /// Reads the pieces of a tokenizer whose `decoder` in the file is byte-level; `None` for other decoders. Special tokens have no
    /// bytes.
    pub(super) fn read(decoder: &Value, tokenizer: &Tokenizer, specials: &HashSet<u32>) -> Option<Self> {
        let decoders = decoder["decoders"].as_array();
        let only = match decoders.map(Vec::as_slice) {
            Some([only]) => only,
            Some(_) => return None,
            None => decoder,
        };
        if only["type"] != "ByteLevel" {
            return None;
        }
        let mut pieces: Vec<_> = tokenizer.get_vocab(true).into_iter().map(|(piece, id)| (id, piece)).collect();
        pieces.sort_unstable();
        let mut table = Self { bytes: Vec::new(), ends: Vec::new() };
        for (id, piece) in pieces {
            table.ends.resize(id as usize, table.bytes.len());
            if !specials.contains(&id) {
                let spelled: Option<Vec<u8>> = piece.chars().map(byte_of).collect();
                table.bytes.extend(spelled.unwrap_or_else(|| piece.into_bytes()));
            }
            table.ends.push(table.bytes.len());
        }
        Some(table)
    }

    /// Returns the bytes of a piece. A special token and an id without a piece have none.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = id.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(id).and_then(|&end| self.bytes.get(start..end)).unwrap_or_default()
    }
}

/// Returns the byte that a character spells: itself if it is printable, else one of the characters from U+0100 on, in order.
fn byte_of(character: char) -> Option<u8> {
    let is_printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(character);
    match code {
        0..=0xff if is_printable(code) => u8::try_from(code).ok(),
        0x100.. => {
            let other = (0..=0xff).filter(|&byte| !is_printable(byte)).nth(code as usize - 0x100)?;
            u8::try_from(other).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_one_character() {
        let spelled: HashSet<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        assert_eq!(spelled.len(), 256);
        assert_eq!(
            (byte_of('Ġ'), byte_of('Ċ'), byte_of('a'), byte_of('Ã')),
            (Some(b' '), Some(b'\n'), Some(b'a'), Some(0xc3))
        );
        assert_eq!((byte_of(' '), byte_of('語')), (None, None));
    }
}
