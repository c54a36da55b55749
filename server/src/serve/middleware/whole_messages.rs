//! Collects the bytes of gRPC messages until each message is complete.
//!
//! tonic reserves memory for a message as soon as its header announces a length. A client could announce many long messages and
//! send none of them. So tonic receives a message only when all its bytes have arrived.

use super::compression::MessageScanner;
use tonic::codegen::Bytes;

/// The bytes of a body that the services have not received yet.
pub(in crate::serve) struct WholeMessages {
    scanner: MessageScanner,
    /// Maximum bytes of a message. A longer one is passed on at once, and tonic rejects it.
    max_message: usize,
    /// Complete messages, if there are any.
    whole: Bytes,
    /// The start of an incomplete message. It grows with the bytes that arrive.
    incomplete: Vec<u8>,
}

impl WholeMessages {
    /// Collects messages of at most `max_message` bytes.
    pub(in crate::serve) fn new(max_message: usize) -> Self {
        Self { scanner: MessageScanner::default(), max_message, whole: Bytes::new(), incomplete: Vec::new() }
    }

    /// Takes the next bytes of the body, after [`pop`](Self::pop) returned `None`. Returns the maximum size that any compressed
    /// message completed by them may decompress to, or 0 if they complete none.
    pub(in crate::serve) fn push(&mut self, mut bytes: Bytes) -> usize {
        let expanded = self.scanner.scan(&bytes);
        let is_too_long = self.scanner.announced_len().is_some_and(|length| length > self.max_message);
        let incomplete = if is_too_long { 0 } else { self.scanner.incomplete_bytes() };
        // The incomplete message may have begun in earlier bytes.
        let complete = (self.incomplete.len() + bytes.len()).saturating_sub(incomplete);
        if complete == 0 {
            self.incomplete.extend_from_slice(&bytes);
        } else if self.incomplete.is_empty() {
            let rest = bytes.split_off(complete);
            self.whole = bytes;
            self.incomplete.extend_from_slice(&rest);
        } else {
            let rest = bytes.split_off(complete - self.incomplete.len());
            self.incomplete.extend_from_slice(&bytes);
            self.whole = std::mem::replace(&mut self.incomplete, rest.to_vec()).into();
        }
        expanded
    }

    /// Returns the complete messages.
    pub(in crate::serve) fn pop(&mut self) -> Option<Bytes> {
        Some(std::mem::take(&mut self.whole)).filter(|whole| !whole.is_empty())
    }

    /// Returns the start of a message that will not be completed.
    pub(in crate::serve) fn take_rest(&mut self) -> Option<Bytes> {
        Some(std::mem::take(&mut self.incomplete)).filter(|rest| !rest.is_empty()).map(Bytes::from)
    }

    /// True if all bytes have been passed on.
    pub(in crate::serve) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.incomplete.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u32) -> Vec<u8> {
        [&[0][..], &length.to_be_bytes(), &vec![7; length as usize]].concat()
    }

    #[test]
    fn messages_pass_as_a_whole_however_they_are_split() {
        let sent = [message(9), message(0), message(300), message(1), message(40)].concat();
        let ends = [14, 19, 324, 330, 375];
        for size in 1..sent.len() {
            let mut messages = WholeMessages::new(1000);
            let mut received = Vec::new();
            for bytes in sent.chunks(size) {
                messages.push(Bytes::copy_from_slice(bytes));
                received.extend(messages.pop().unwrap_or_default());
                assert!(
                    received.is_empty() || ends.contains(&received.len()),
                    "{} in pieces of {size}",
                    received.len()
                );
            }
            assert_eq!(received, sent);
            assert!(messages.is_empty());
        }
    }

    #[test]
    fn an_announced_length_takes_no_memory() {
        let mut messages = WholeMessages::new(4 << 20);
        messages.push(Bytes::copy_from_slice(&message(4 << 20)[..9]));
        assert!(messages.pop().is_none() && !messages.is_empty());
        assert!(messages.incomplete.capacity() < 64);
        assert_eq!(messages.take_rest().unwrap().len(), 9);
    }

    #[test]
    fn a_message_that_is_too_long_passes_at_once() {
        let mut messages = WholeMessages::new(8);
        let sent = message(9);
        messages.push(Bytes::copy_from_slice(&sent[..3]));
        assert!(messages.pop().is_none());
        messages.push(Bytes::copy_from_slice(&sent[3..7]));
        assert_eq!(messages.pop().unwrap(), sent[..7]);
    }
}
