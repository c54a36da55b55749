//! The frames of the language server protocol: headers, an empty line, and a body of JSON.

use crate::error::{Error, Result, quoted};
use std::io::{BufRead, Read, Write, copy, sink};

/// Maximum bytes of a body. JSON may need six bytes for a byte of text.
pub(super) const MAX_BODY_BYTES: usize = 32 << 20;
/// Maximum bytes of a header's line.
const MAX_LINE_BYTES: u64 = 1024;
/// Bytes of a skipped body that are kept.
const START_BYTES: u64 = 1024;
/// Maximum headers of a frame.
const MAX_HEADERS: usize = 16;
/// The header that every frame has.
const LENGTH: &str = "content-length";

/// A frame that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Body(Vec<u8>),
    /// A body was too long, and skipped.
    TooLong {
        length: u64,
        /// Its first bytes, at most [`START_BYTES`].
        start: Vec<u8>,
    },
}

/// Reads a frame; `None` at the end of the input. Fails if the input ends within a frame or is no frame: the beginning of the next
/// one is then unknown.
pub(super) fn read(input: &mut impl BufRead) -> Result<Option<Frame>> {
    let mut length = None;
    for index in 0.. {
        let Some(line) = read_line(input)? else {
            return if index == 0 { Ok(None) } else { Err(cut()) };
        };
        if line.is_empty() {
            break;
        }
        let wrong = || unreadable(format!("expected a header such as Content-Length: 2, found {}", quoted(&line)));
        if index >= MAX_HEADERS {
            return Err(unreadable(format!("expected at most {MAX_HEADERS} headers, found more")));
        }
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        if name.eq_ignore_ascii_case(LENGTH) {
            length = Some(value.trim().parse::<u64>().map_err(|_| wrong())?);
        }
    }
    let length = length.ok_or_else(|| unreadable("expected the header Content-Length, found none".into()))?;
    if length > MAX_BODY_BYTES as u64 {
        let mut start = Vec::new();
        let kept = input.take(START_BYTES).read_to_end(&mut start).map_err(failed)? as u64;
        let skipped = copy(&mut input.take(length - kept), &mut sink()).map_err(failed)?;
        return if kept + skipped == length { Ok(Some(Frame::TooLong { length, start })) } else { Err(cut()) };
    }
    // grows with what arrives
    let mut body = Vec::new();
    let read = input.take(length).read_to_end(&mut body).map_err(failed)?;
    if read as u64 == length { Ok(Some(Frame::Body(body))) } else { Err(cut()) }
}

/// Writes a frame.
pub(super) fn write(output: &mut impl Write, body: &[u8]) -> std::io::Result<()> {
    write!(output, "Content-Length: {}\r\n\r\n", body.len())?;
    output.write_all(body)?;
    output.flush()
}

/// Reads a line without its end; `None` at the end of the input.
fn read_line(input: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = Vec::new();
    input.take(MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(failed)?;
    match line.strip_suffix(b"\n") {
        Some(line) => Ok(Some(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned())),
        None if line.is_empty() => Ok(None),
        None if line.len() as u64 == MAX_LINE_BYTES => {
            let found = quoted(&String::from_utf8_lossy(&line));
            Err(unreadable(format!("expected a header of less than {MAX_LINE_BYTES} bytes, found {found}")))
        }
        None => Err(cut()),
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("standard input")(error)
}

fn cut() -> Error {
    unreadable("expected a whole message, found the end of the input".into())
}

fn unreadable(why: String) -> Error {
    Error::Unreadable { field: None, why: format!("standard input: {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut input: &[u8]) -> (Vec<Frame>, Option<String>) {
        let mut frames = Vec::new();
        loop {
            match read(&mut input) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, None),
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }

    #[test]
    fn frames_are_read_as_they_are_written() {
        let mut written = Vec::new();
        for body in ["{}", "", "é"] {
            write(&mut written, body.as_bytes()).unwrap();
        }
        let more = b"content-type: x\ncontent-length:  2 \n\n[]";
        let body = |text: &str| Frame::Body(text.as_bytes().to_vec());
        assert_eq!(all(&[&written[..], more].concat()), (vec![body("{}"), body(""), body("é"), body("[]")], None));
    }

    #[test]
    fn a_body_that_is_too_long_is_skipped() {
        let length = MAX_BODY_BYTES + 1;
        let mut input = format!("Content-Length: {length}\r\n\r\n").into_bytes();
        input.resize(input.len() + length, b' ');
        write(&mut input, b"{}").unwrap();
        let too_long = Frame::TooLong { length: length as u64, start: vec![b' '; START_BYTES as usize] };
        assert_eq!(all(&input), (vec![too_long, Frame::Body(b"{}".to_vec())], None));
    }

    #[test]
    fn what_is_no_frame_is_an_error_that_shows_it() {
        for (input, expected) in [
            ("Content-Length: 3\r\n\r\n{}", "the end of the input"),
            ("Content-Length: 99999999999\r\n\r\n{}", "the end of the input"),
            ("Content-Length: 2\r\n", "the end of the input"),
            ("Content-Len", "the end of the input"),
            ("\r\n{}", "expected the header Content-Length"),
            ("GET / HTTP/1.1\r\n\r\n", "found \"GET / HTTP/1.1\""),
            ("Content-Length: -1\r\n\r\n", "found \"Content-Length: -1\""),
            (&"a: b\n".repeat(17), "at most 16 headers"),
            (&"a".repeat(2000), "less than 1024 bytes, found \"aaaa"),
        ] {
            let (frames, error) = all(input.as_bytes());
            let error = error.unwrap();
            assert!(frames.is_empty() && error.contains(expected), "{input:?}: {error}");
        }
    }
}
