//! prost's codec, which refuses requests that would take too much memory.

use crate::decoded_size::{self, TooLarge};
use prost::{Message, Name, bytes::Buf};
use std::marker::PhantomData;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task,
};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// How the message of the status begins for a request that takes too much memory once decoded. A number of bytes, the limit, ends
/// it.
pub const TOO_LARGE_DECODED: &str = "the decoded message takes up to ";

/// How the message of the status begins for a request that has too many fields. Their limit follows.
pub const TOO_MANY_FIELDS: &str = "the message has too many fields; the limit is ";

/// Minimum bytes of a message that is decoded with `blocking`. Decoding this many takes about 30 microseconds.
const LONG_MESSAGE: usize = 64 << 10;

/// Encodes `T` and decodes `U`.
#[derive(Debug, Clone, Copy)]
pub struct BoundedCodec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U: Message + Name + Default + 'static> Codec for BoundedCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T: Message, U> Encoder for BoundedCodec<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(into).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<T, U: Message + Name + Default> Decoder for BoundedCodec<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic passes each message in one piece.
        decode_bounded(bytes).map(Some)
    }
}

/// Decodes a message, which `bytes` holds in one piece. Fails with OUT_OF_RANGE if it is a request that would take too much memory
/// or has too many fields, and with INTERNAL and prost's text if it is malformed. While it decodes a long
/// message, another thread runs the other tasks of this thread.
///
/// # Panics
/// For a long message in a task of a `LocalSet` of a multi-threaded runtime.
pub fn decode_bounded<U: Message + Name + Default>(bytes: &mut impl Buf) -> Result<U, Status> {
    match bytes.remaining() {
        0..LONG_MESSAGE => decode(bytes),
        _ => blocking(|| decode(bytes)),
    }
}

fn decode<U: Message + Name + Default>(bytes: &mut impl Buf) -> Result<U, Status> {
    decoded_size::check(&U::full_name(), bytes.chunk()).map_err(|too_large| {
        Status::out_of_range(match too_large {
            TooLarge::Bytes { bytes, limit } => {
                format!("{TOO_LARGE_DECODED}{bytes} bytes of memory; for its length the limit is {limit}")
            }
            TooLarge::Fields { limit } => format!("{TOO_MANY_FIELDS}{limit}"),
        })
    })?;
    U::decode(bytes).map_err(|error| Status::internal(error.to_string()))
}

/// Runs `work` on this thread. In a multi-threaded runtime, another thread takes over this thread's other tasks meanwhile. The number
/// of such threads has no limit here: weir's server limits the bytes of all messages that it holds, and `work` takes milliseconds.
///
/// # Panics
/// In a task of a `LocalSet` of a multi-threaded runtime.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => task::block_in_place(work),
        // A runtime with one thread has no other thread.
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, time::Duration};
    use tokio::runtime::Builder;

    #[test]
    fn other_tasks_of_the_only_thread_run_meanwhile() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (sender, receiver) = mpsc::sync_channel(1);
        let received = runtime.block_on(async {
            let waiting = task::spawn(async move {
                task::spawn(async move { sender.send(()).unwrap() });
                blocking(|| receiver.recv_timeout(Duration::from_secs(60)))
            });
            waiting.await.unwrap()
        });
        assert_eq!(received, Ok(()));
    }

    #[test]
    fn a_thread_that_runs_no_other_tasks_does_the_work() {
        assert_eq!(blocking(|| 1), 1);
        let runtime = Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(async { blocking(|| 2) }), 2);
    }
}
