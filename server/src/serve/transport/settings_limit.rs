//! A limit on how often a client changes the settings of its HTTP/2 connection.
//!
//! For each change, h2 visits all calls of the connection, so a frame of 15 bytes costs time for each of them. gRPC clients send one frame of
//! settings when they connect, and a few more when they adapt their windows.

use super::{
    adapted::{Adapted, StreamAdapter},
    frames::{FramePart, FrameReader},
};
use crate::engine::clock;
use std::{
    io::{Error, ErrorKind, Result},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Changes that a client may make at once.
const BURST: f64 = 100.0;
/// Changes a second after that.
const RATE: f64 = 10.0;

/// Ends a connection whose client changes its settings too often. The stream starts after HTTP/2's preface.
pub(super) struct SettingsLimit {
    frames: FrameReader,
    /// Changes that the client may still make.
    left: f64,
    counted_at: Instant,
}

impl SettingsLimit {
    /// Limits the changes that arrive on `stream`.
    pub(super) fn wrap<S>(stream: S) -> Adapted<S, Self> {
        let adapter = Self { frames: FrameReader::default(), left: BURST, counted_at: clock::now() };
        Adapted { stream, adapter }
    }

    /// Counts changes that arrive now. Fails if they are too many.
    fn count(&mut self, changes: usize) -> Result<()> {
        if changes == 0 {
            return Ok(());
        }
        let earned = clock::since(self.counted_at).as_secs_f64() * RATE;
        self.counted_at = clock::now();
        self.left = (self.left + earned).min(BURST) - changes as f64;
        match self.left < 0.0 {
            true => Err(Error::new(ErrorKind::InvalidData, "the client changes its settings too often")),
            false => Ok(()),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> StreamAdapter<S> for SettingsLimit {
    fn poll_read(&mut self, stream: &mut S, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(stream).poll_read(cx, into))?;
        let mut changes = 0;
        self.frames.read(&into.filled()[before..], |part| {
            changes += usize::from(matches!(part, FramePart::Header(header) if header.changes_settings()));
        });
        Poll::Ready(self.count(changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
        time::{Duration, sleep},
    };

    const CHANGE: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 1, 0];

    /// Sends `count` changes of settings, and reads them on the other side.
    async fn exchanged(ends: &mut (DuplexStream, Adapted<DuplexStream, SettingsLimit>), count: usize) -> Result<()> {
        for _ in 0..count {
            ends.0.write_all(&CHANGE).await?;
            ends.1.read_exact(&mut [0; CHANGE.len()]).await?;
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_limited_by_number_and_rate() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let mut ends = (client, SettingsLimit::wrap(server));
        exchanged(&mut ends, BURST as usize).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        exchanged(&mut ends, RATE as usize).await.unwrap();
        let error = exchanged(&mut ends, 1).await.unwrap_err();
        assert_eq!(error.to_string(), "the client changes its settings too often");
    }
}
