//! Receives the whole text of a document, and counts the memory that it takes.

use super::{
    document_upload::{TEXT, chunk_text},
    request_parts::RequestParts,
};
use crate::{
    decode::long_documents::MAX_BYTES,
    error::{Error, Result},
    serve::middleware::body_limits::Reservation,
};
use weir_proto::v1;

/// Receives all chunks of a document. Each is checked against [`MAX_BYTES`] and counted in `reserved` before it is
/// appended, which then releases the memory of its message.
pub(super) async fn receive(mut parts: RequestParts<v1::SummarizeRequest>, reserved: &Reservation) -> Result<String> {
    let mut text = String::new();
    while let Some(message) = parts.next().await? {
        append(&mut text, &chunk_text(message.part)?, reserved)?;
        parts.release();
    }
    Ok(text)
}

/// Appends a chunk. Fails if the text would be too long, or if no memory is left for it.
fn append(text: &mut String, chunk: &str, reserved: &Reservation) -> Result<()> {
    let needed = text.len().saturating_add(chunk.len());
    if needed > MAX_BYTES {
        let unit = "bytes of a document that is summarized in parts";
        return Err(Error::LongerThan { field: TEXT, limit: MAX_BYTES, unit, why: None });
    }
    if needed > text.capacity() {
        let capacity = needed.max(text.capacity().saturating_mul(2)).min(MAX_BYTES);
        reserved.add_leaving_a_message(capacity.saturating_sub(text.capacity()))?;
        text.reserve_exact(capacity.saturating_sub(text.len()));
    }
    text.push_str(chunk);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::TransportConfig, serve::middleware::body_limits::BodyMemory};

    fn reserved(request_memory: usize) -> Reservation {
        let config = TransportConfig { request_memory, message_bytes: 1 << 10, ..TransportConfig::default() };
        Reservation::new(BodyMemory::new(&config), "a".into())
    }

    #[test]
    fn the_text_is_counted_before_it_is_kept() {
        let reserved = reserved(16 << 10);
        let mut text = String::new();
        let chunk = "a".repeat(1 << 10);
        for count in 1..=4_usize {
            append(&mut text, &chunk, &reserved).unwrap();
            assert_eq!((text.len(), text.capacity()), (count << 10, (count << 10).next_power_of_two()));
        }
        // A tenant has half of the memory, and the rest of it must hold the next message.
        let error = append(&mut text, &chunk, &reserved).unwrap_err();
        assert!(matches!(error, Error::QueueFull { .. } | Error::Oversized { .. }), "{error}");
        assert_eq!(text.len(), 4 << 10);
    }

    #[test]
    fn a_text_that_is_too_long_is_refused_before_memory_is_taken() {
        let reserved = reserved(MAX_BYTES * 4);
        let mut text = String::new();
        append(&mut text, &"a".repeat(MAX_BYTES - 1), &reserved).unwrap();
        append(&mut text, "b", &reserved).unwrap();
        let error = append(&mut text, "c", &reserved).unwrap_err().to_string();
        assert!(error.contains(&format!("at most {MAX_BYTES} bytes")), "{error}");
        assert!(text.capacity() <= MAX_BYTES);
    }
}
