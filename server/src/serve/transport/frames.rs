//! HTTP/2 frames in the bytes that a client sends.

/// Length in bytes of a frame's header (RFC 9113, section 4.1).
const HEADER_BYTES: usize = 9;
/// The type of a frame with settings.
const SETTINGS: u8 = 4;
/// The flag of an acknowledgement.
const ACK: u8 = 1;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader(pub(super) [u8; HEADER_BYTES]);

impl FrameHeader {
    /// Returns the length of the frame's payload in bytes.
    fn payload(self) -> usize {
        let [a, b, c, ..] = self.0;
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    /// Returns true for a frame with settings, false for an acknowledgement of them.
    pub(super) fn changes_settings(self) -> bool {
        let [_, _, _, kind, flags, ..] = self.0;
        kind == SETTINGS && flags & ACK == 0
    }
}

/// A part of a frame.
pub(super) enum FramePart<'a> {
    Header(FrameHeader),
    /// Bytes of the payload, which may come in several parts.
    Payload(&'a [u8]),
}

/// Finds frames, however the bytes are split. The bytes start after HTTP/2's preface.
#[derive(Default)]
pub(super) struct FrameReader {
    /// The start of a header that has not arrived completely.
    header: [u8; HEADER_BYTES],
    /// Its length.
    length: usize,
    /// Bytes of the current frame's payload that have not arrived.
    payload_left: usize,
}

impl FrameReader {
    /// Reads the next bytes, and passes each header that they complete, and the bytes of payloads, to `each`.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut each: impl FnMut(FramePart<'_>)) {
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let (part, rest) = bytes.split_at(self.payload_left.min(bytes.len()));
                self.payload_left -= part.len();
                bytes = rest;
                each(FramePart::Payload(part));
                continue;
            }
            let count = (HEADER_BYTES - self.length).min(bytes.len());
            let (part, rest) = bytes.split_at(count);
            self.header[self.length..self.length + count].copy_from_slice(part);
            self.length += count;
            bytes = rest;
            if self.length == HEADER_BYTES {
                let header = FrameHeader(self.header);
                self.length = 0;
                self.payload_left = header.payload();
                each(FramePart::Header(header));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_however_the_bytes_are_split() {
        let frame = |length: u8, kind: u8, flags: u8| {
            [&[0, 0, length, kind, flags, 0, 0, 0, 1][..], &vec![4; length.into()]].concat()
        };
        let frames = [frame(6, 4, 0), frame(0, 4, 1), frame(30, 0, 1), frame(0, 4, 0), frame(2, 3, 0)];
        let all = frames.concat();
        for size in 1..=all.len() {
            let mut reader = FrameReader::default();
            let mut found = Vec::new();
            all.chunks(size).for_each(|bytes| {
                reader.read(bytes, |part| {
                    found.extend(if let FramePart::Header(header) = part { Some(header) } else { None })
                });
            });
            assert_eq!(found.iter().map(|header| header.payload()).collect::<Vec<_>>(), [6, 0, 30, 0, 2], "{size}");
            let changes: Vec<_> = found.iter().map(|header| header.changes_settings()).collect();
            assert_eq!(changes, [true, false, false, true, false], "{size}");
        }
    }
}
