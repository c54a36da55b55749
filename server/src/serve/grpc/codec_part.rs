//! A part of the input of the service `Codec`, which is converted in slices.

use crate::{decode::codec::BlockStream, error::Result};
use tokio::task::yield_now;
use tonic::codegen::Bytes;

/// Bytes that are converted at a time.
const SLICE: usize = 16 << 10;

/// The bytes of a part that are not converted yet.
#[derive(Default)]
pub(super) struct UnconvertedPart(Bytes);

impl From<Vec<u8>> for UnconvertedPart {
    fn from(part: Vec<u8>) -> Self {
        Self(part.into())
    }
}

impl UnconvertedPart {
    /// True once the whole part is converted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of bytes that [`convert_slice`](Self::convert_slice) converts next.
    pub(super) fn slice_len(&self) -> usize {
        self.0.len().min(SLICE)
    }

    /// Converts the next bytes, and lets other tasks of the thread run afterwards.
    pub(super) async fn convert_slice(&mut self, stream: &mut impl BlockStream) -> Result<()> {
        let slice = self.0.split_to(self.slice_len());
        let converted = stream.push(&slice);
        yield_now().await;
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::codec::{Code, Coded, Totals};
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    /// A stream that records the length of each push, and how often another task had run by then.
    #[derive(Default)]
    struct Pushes {
        runs: Arc<AtomicUsize>,
        pushes: Vec<(usize, usize)>,
    }

    impl BlockStream for Pushes {
        fn push(&mut self, bytes: &[u8]) -> Result<()> {
            self.pushes.push((bytes.len(), self.runs.load(Relaxed)));
            Ok(())
        }

        fn finish(&mut self) -> Result<()> {
            Ok(())
        }

        fn input_bytes(&self, _: usize) -> usize {
            0
        }

        fn next_block(&mut self) -> Result<Option<Code>> {
            Ok(None)
        }

        fn accept(&mut self, _: Coded, _: &mut Vec<u8>) -> Result<()> {
            Ok(())
        }

        fn end(&mut self, _: &mut Vec<u8>) -> Result<()> {
            Ok(())
        }

        fn totals(&self) -> Totals {
            Totals::default()
        }
    }

    #[tokio::test]
    async fn other_tasks_run_between_slices() {
        let mut stream = Pushes::default();
        let runs = Arc::clone(&stream.runs);
        let other = tokio::spawn(async move {
            loop {
                runs.fetch_add(1, Relaxed);
                yield_now().await;
            }
        });
        let mut part = UnconvertedPart::from(vec![7; 1 << 20]);
        while !part.is_empty() {
            part.convert_slice(&mut stream).await.unwrap();
        }
        other.abort();
        let total: usize = stream.pushes.iter().map(|(length, _)| length).sum();
        assert_eq!(total, 1 << 20);
        assert!(stream.pushes.iter().all(|(length, _)| *length <= SLICE), "{:?}", stream.pushes);
        assert!(stream.pushes.windows(2).all(|pair| pair[0].1 < pair[1].1), "{:?}", stream.pushes);
    }
}
