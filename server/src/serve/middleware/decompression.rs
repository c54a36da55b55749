//! Decompresses the messages of requests on the tokenization workers, before tonic sees them.
//!
//! A few kilobytes can decompress to the largest message. tonic would do that on the threads that serve connections, where many
//! such messages would delay all other calls.

use super::compression::{ENCODING, HEADER};
use crate::{
    error::{Error, Result},
    serve::tokenization::{INLINE_BYTES, TokenizationWorkers},
};
use flate2::read::{GzDecoder, ZlibDecoder};
use std::{
    io::{ErrorKind, Read},
    sync::Arc,
};
use tonic::codegen::{Bytes, http::HeaderMap};

/// The encodings that the server reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Deflate,
}

/// Decompresses the messages of one call.
#[derive(Clone)]
pub(super) struct Decompressor {
    encoding: Encoding,
    /// Maximum bytes of a decompressed message.
    max_message: usize,
    workers: TokenizationWorkers,
    caller: Arc<str>,
}

impl Decompressor {
    /// Returns the decompressor of a call with these headers. `None` if its messages are not compressed, or in a way that the
    /// services refuse.
    pub(super) fn new(
        headers: &HeaderMap,
        max_message: usize,
        workers: &TokenizationWorkers,
        caller: Arc<str>,
    ) -> Option<Self> {
        let encoding = match headers.get(ENCODING)?.as_bytes() {
            b"gzip" => Encoding::Gzip,
            b"deflate" => Encoding::Deflate,
            _ => return None,
        };
        Some(Self { encoding, max_message, workers: workers.clone(), caller })
    }

    /// Decompresses a message, and puts a header before it as before one that was never compressed. A large one is decompressed on a
    /// worker. Fails with [`Error::Oversized`] if it exceeds the limit, and with [`Error::Unreadable`] if it is not in the
    /// encoding.
    pub(super) async fn decompress(self, message: Bytes) -> Result<Bytes> {
        let oversized = Error::Oversized { what: "the message", limit: self.max_message };
        if message.len() > self.max_message {
            return Err(oversized);
        }
        if let Some(short) = self.read(&message, self.max_message.min(INLINE_BYTES))? {
            return Ok(short);
        }
        if self.max_message <= INLINE_BYTES {
            return Err(oversized);
        }
        let Self { workers, caller, .. } = self.clone();
        let long = workers.run(&caller, self.max_message, move || self.read(&message, self.max_message));
        long.await.flatten()?.ok_or(oversized)
    }

    /// Decompresses a message. Returns `None` if that gives more than `limit` bytes.
    fn read(&self, compressed: &[u8], limit: usize) -> Result<Option<Bytes>> {
        let mut message = vec![0; HEADER];
        let most = limit as u64 + 1;
        let read = match self.encoding {
            Encoding::Gzip => GzDecoder::new(compressed).take(most).read_to_end(&mut message),
            Encoding::Deflate => ZlibDecoder::new(compressed).take(most).read_to_end(&mut message),
        };
        let length = read.map_err(unreadable)?;
        if length > limit {
            return Ok(None);
        }
        // The limit is below 2^32: the transport's settings say so.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        message[1..HEADER].copy_from_slice(&length.to_be_bytes());
        message.shrink_to_fit();
        Ok(Some(message.into()))
    }
}

fn unreadable(error: std::io::Error) -> Error {
    let why = match error.kind() {
        ErrorKind::UnexpectedEof => "the compressed message is incomplete".to_owned(),
        _ => format!("the message cannot be decompressed: {error}"),
    };
    Error::Unreadable { field: None, why }
}

/// Messages that are passed on together.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Messages {
    /// One compressed message, without its header.
    Compressed(Bytes),
    /// Any number of others.
    Plain(Bytes),
}

/// Takes the next messages out of complete ones.
pub(super) fn next_messages(messages: &mut Bytes) -> Option<Messages> {
    let mut plain = 0;
    while let Some(&[flag, a, b, c, d]) = messages.get(plain..).and_then(|rest| rest.first_chunk()) {
        let end = plain.saturating_add(HEADER).saturating_add(u32::from_be_bytes([a, b, c, d]) as usize);
        if flag == 1 && plain == 0 && end <= messages.len() {
            let message = messages.split_to(end).split_off(HEADER);
            return Some(Messages::Compressed(message));
        }
        if flag == 1 {
            break;
        }
        plain = end;
    }
    // The start of a message that is too long is passed on as it is.
    let end = if plain == 0 { messages.len() } else { plain.min(messages.len()) };
    (end > 0).then(|| Messages::Plain(messages.split_to(end)))
}

#[cfg(test)]
mod tests {
    use super::{Messages::*, *};

    fn message(compressed: u8, bytes: &'static [u8]) -> Vec<u8> {
        [&[compressed][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    fn split(mut messages: Bytes) -> Vec<Messages> {
        std::iter::from_fn(|| next_messages(&mut messages)).collect()
    }

    #[test]
    fn compressed_messages_are_taken_one_by_one() {
        let plain = [message(0, b"a"), message(0, b"")].concat();
        let all = [&plain[..], &message(1, b"b"), &message(1, b""), &message(0, b"c")].concat();
        let parts = [
            Plain(plain.into()),
            Compressed(Bytes::from_static(b"b")),
            Compressed(Bytes::new()),
            Plain(message(0, b"c").into()),
        ];
        assert_eq!(split(all.into()), parts);
        assert_eq!(split(Bytes::new()), []);
    }

    #[test]
    fn an_incomplete_message_is_passed_on_as_it_is() {
        for compressed in [0, 1] {
            let begun = message(compressed, b"too long")[..7].to_vec();
            assert_eq!(split(begun.clone().into()), [Plain(begun.into())]);
        }
    }
}
