//! prost's codec, which refuses requests that would take too much memory or have too many fields.
//!
//! An empty element of a repeated field has two bytes on the wire and hundreds in memory, so a limit on the encoded length does
//! not bound the memory. The bound here is computed from the encoded bytes and the API's descriptors, before anything is
//! allocated. It is an upper bound, apart from the allocator's own overhead for texts.

use crate::{FILE_DESCRIPTOR_SET, INFERENCE_DESCRIPTOR_SET};
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{Message, Name};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::LazyLock;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

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
    check(&U::full_name(), bytes.chunk()).map_err(|too_large| {
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

/// A message may take this many bytes in memory, and [`GROWTH`] bytes for each byte of its encoded form.
const BASE: usize = 1 << 20;
/// A list of one-byte integers of 64 bits needs 8, and twice as many while it grows.
const GROWTH: usize = 16;
/// Bytes of a text or list without its elements.
const HEADER: usize = 24;
/// Bytes of a map without its entries.
const MAP: usize = 48;
/// A list has room for up to twice its elements.
const SPARE: usize = 2;
/// A map has room for up to this many times its entries.
const MAP_SPARE: usize = 4;
/// Maximum fields of a message, nested messages' and unknown ones included. Each takes time to decode, also if it is empty.
/// The numbers of a packed list count like fields: one byte becomes eight.
const MAX_FIELDS: usize = 1 << 16;
/// Maximum depth of nested messages, as in prost.
const MAX_DEPTH: usize = 100;

/// The messages of the API that clients send.
static REQUESTS: LazyLock<Schema> = LazyLock::new(Schema::new);

/// A message that exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TooLarge {
    /// It takes more memory than its length allows.
    Bytes {
        /// Upper bound of the bytes that it takes.
        bytes: usize,
        /// Maximum bytes for a message of its length.
        limit: usize,
    },
    /// It has too many fields and numbers in lists.
    Fields {
        /// Maximum fields.
        limit: usize,
    },
}

/// Sums over the fields of a message.
struct Totals {
    bytes: usize,
    fields: usize,
}

impl Totals {
    /// Fails if there are now too many fields.
    fn add_fields(&mut self, count: usize) -> Result<(), TooLarge> {
        self.fields = self.fields.saturating_add(count);
        if self.fields > MAX_FIELDS { Err(TooLarge::Fields { limit: MAX_FIELDS }) } else { Ok(()) }
    }
}

/// Checks an encoded request of this full name. Messages that no client sends have no limit. Malformed messages pass: decoding
/// reports them, and ends at the first malformed byte.
fn check(name: &str, encoded: &[u8]) -> Result<(), TooLarge> {
    let Some(&index) = REQUESTS.requests.get(name) else { return Ok(()) };
    let limit = BASE.saturating_add(encoded.len().saturating_mul(GROWTH));
    let mut totals = Totals { bytes: REQUESTS.messages[index].size, fields: 0 };
    REQUESTS.add_fields(index, encoded, 0, &mut totals)?;
    let bytes = totals.bytes;
    if bytes > limit { Err(TooLarge::Bytes { bytes, limit }) } else { Ok(()) }
}

/// The messages of the API, by index.
#[derive(Default)]
struct Schema {
    messages: Vec<MessageShape>,
    /// The messages that clients send, by full name.
    requests: HashMap<String, usize>,
}

#[derive(Default)]
struct MessageShape {
    /// Bytes of the message without its texts, lists, maps and boxes.
    size: usize,
    fields: HashMap<u32, FieldShape>,
}

#[derive(Clone, Copy)]
enum FieldShape {
    /// Numbers, whose lists may be packed.
    Number {
        /// Bytes of each in memory.
        size: usize,
        /// Bytes of each in a packed list. `None` if they have variable lengths.
        packed: Option<usize>,
    },
    /// Text or bytes.
    Text { is_repeated: bool },
    /// A message, and how many times its size it takes.
    Message { index: usize, spare: usize },
}

impl Schema {
    fn new() -> Self {
        let sets = [FILE_DESCRIPTOR_SET, INFERENCE_DESCRIPTOR_SET];
        // A test decodes both, so neither is lost here.
        let files: Vec<_> =
            sets.into_iter().filter_map(|set| FileDescriptorSet::decode(set).ok()).flat_map(|set| set.file).collect();
        let mut descriptors = Vec::new();
        for file in &files {
            collect(&format!(".{}", file.package()), &file.message_type, &mut descriptors);
        }
        let indices: HashMap<_, _> =
            descriptors.iter().enumerate().map(|(at, (name, _))| (name.as_str(), at)).collect();
        let shape = |(_, descriptor): &(String, &DescriptorProto)| {
            let fields = descriptor.field.iter().filter_map(|field| {
                let index = indices.get(field.type_name()).copied();
                let shape = FieldShape::new(field, index, |index| descriptors[index].1)?;
                Some((u32::try_from(field.number()).ok()?, shape))
            });
            MessageShape {
                size: size(descriptor, &descriptors, &indices, &mut HashSet::new()),
                fields: fields.collect(),
            }
        };
        let messages = descriptors.iter().map(shape).collect();
        let methods = files.iter().flat_map(|file| &file.service).flat_map(|service| &service.method);
        let requests = methods.filter_map(|method| {
            let name = method.input_type();
            Some((name.trim_start_matches('.').to_owned(), *indices.get(name)?))
        });
        Self { requests: requests.collect(), messages }
    }

    /// Adds the fields in `encoded` to `totals`, up to the first malformed byte. Fails as soon as there are too many.
    fn add_fields(&self, index: usize, mut encoded: &[u8], depth: usize, totals: &mut Totals) -> Result<(), TooLarge> {
        while let Ok((number, wire_type)) = decode_key(&mut encoded) {
            totals.add_fields(1)?;
            let shape = self.messages[index].fields.get(&number);
            if wire_type != WireType::LengthDelimited {
                if let Some(FieldShape::Number { size, .. }) = shape {
                    totals.bytes = totals.bytes.saturating_add(size * SPARE);
                }
                if skip_field(wire_type, number, &mut encoded, DecodeContext::default()).is_err() {
                    break;
                }
                continue;
            }
            let Ok(length) = decode_varint(&mut encoded) else { break };
            let Some(content) = usize::try_from(length).ok().and_then(|length| encoded.get(..length)) else { break };
            encoded.advance(content.len());
            let more = match *shape.unwrap_or(&FieldShape::Text { is_repeated: false }) {
                FieldShape::Number { size, packed } => {
                    // The last byte of an integer of variable length is below 128.
                    let varints = || content.iter().filter(|&&byte| byte < 0x80).count();
                    let numbers = packed.map_or_else(varints, |bytes| content.len() / bytes);
                    totals.add_fields(numbers)?;
                    numbers * size * SPARE
                }
                FieldShape::Text { is_repeated } => content.len() + if is_repeated { HEADER * SPARE } else { 0 },
                FieldShape::Message { index, spare } => {
                    if depth < MAX_DEPTH {
                        self.add_fields(index, content, depth + 1, totals)?;
                    }
                    self.messages[index].size * spare
                }
            };
            totals.bytes = totals.bytes.saturating_add(more);
        }
        Ok(())
    }
}

impl FieldShape {
    fn new<'a>(
        field: &FieldDescriptorProto,
        message: Option<usize>,
        descriptor: impl Fn(usize) -> &'a DescriptorProto,
    ) -> Option<Self> {
        let is_repeated = field.label() == Label::Repeated;
        Some(match field.r#type() {
            Type::Message | Type::Group => {
                let index = message?;
                let is_map = descriptor(index).options.as_ref().is_some_and(|options| options.map_entry());
                let spare = if is_map { MAP_SPARE } else { SPARE };
                // A message outside of a list is part of its parent, or of a box that the parent's size does not include.
                Self::Message { index, spare: if is_repeated { spare } else { 1 } }
            }
            Type::String | Type::Bytes => Self::Text { is_repeated },
            // In an unpacked list each number has its own key.
            kind => Self::Number { size: number_size(kind), packed: packed_size(kind) },
        })
    }
}

/// Collects messages and those nested in them, with their full names.
fn collect<'a>(parent: &str, messages: &'a [DescriptorProto], into: &mut Vec<(String, &'a DescriptorProto)>) {
    for message in messages {
        let name = format!("{parent}.{}", message.name());
        collect(&name, &message.nested_type, into);
        into.push((name, message));
    }
}

/// Returns the bytes of a message in memory without its texts, lists, maps and boxes. Members of a oneof count as if all were set.
fn size(
    message: &DescriptorProto,
    all: &[(String, &DescriptorProto)],
    indices: &HashMap<&str, usize>,
    parents: &mut HashSet<String>,
) -> usize {
    let field_size = |field: &FieldDescriptorProto, parents: &mut HashSet<String>| {
        let nested = indices.get(field.type_name()).map(|&index| &all[index]);
        match (field.label(), nested) {
            (Label::Repeated, Some((_, nested)))
                if nested.options.as_ref().is_some_and(|options| options.map_entry()) =>
            {
                MAP
            }
            (Label::Repeated, _) => HEADER,
            // A message within itself is in a box.
            (_, Some((name, _))) if parents.contains(name) => 8,
            (_, Some((name, nested))) => {
                parents.insert(name.clone());
                let bytes = 8 + size(nested, all, indices, parents);
                parents.remove(name);
                bytes
            }
            _ if matches!(field.r#type(), Type::String | Type::Bytes) => HEADER,
            // A number and whether it is set.
            _ => 16,
        }
    };
    message.field.iter().map(|field| field_size(field, parents)).sum()
}

fn number_size(kind: Type) -> usize {
    match kind {
        Type::Double | Type::Int64 | Type::Uint64 | Type::Sint64 | Type::Fixed64 | Type::Sfixed64 => 8,
        Type::Bool => 1,
        _ => 4,
    }
}

/// Returns the bytes of a number in a packed list, or `None` if its length varies.
fn packed_size(kind: Type) -> Option<usize> {
    match kind {
        Type::Double | Type::Fixed64 | Type::Sfixed64 => Some(8),
        Type::Float | Type::Fixed32 | Type::Sfixed32 => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::model_infer_request::InferInputTensor;
    use crate::inference::{InferTensorContents, ModelInferRequest};
    use crate::v1::{GenerateRequest, Stopping};
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

    fn check_message<M: Message + Name>(message: &M) -> Result<(), TooLarge> {
        check(&M::full_name(), &message.encode_to_vec())
    }

    #[test]
    fn sizes_are_at_least_those_of_the_types() {
        let size = |name: &str| REQUESTS.messages[REQUESTS.requests[name]].size;
        assert!(size("inference.ModelInferRequest") >= size_of::<ModelInferRequest>());
        assert!(size("weir.v1.GenerateRequest") >= size_of::<GenerateRequest>());
    }

    #[test]
    fn empty_elements_are_counted() {
        let request = ModelInferRequest { inputs: vec![InferInputTensor::default(); 60_000], ..Default::default() };
        let error = check_message(&request).unwrap_err();
        let least = 60_000 * size_of::<InferInputTensor>();
        assert!(matches!(error, TooLarge::Bytes { bytes, .. } if bytes >= least), "{error:?}");
    }

    #[test]
    fn fields_have_a_limit_wherever_they_are() {
        let limit = Err(TooLarge::Fields { limit: MAX_FIELDS });
        let unknown = [0xf8, 0x07, 0];
        assert_eq!(check("weir.v1.ScoreRequest", &unknown.repeat(MAX_FIELDS)), Ok(()));
        assert_eq!(check("weir.v1.ScoreRequest", &unknown.repeat(MAX_FIELDS + 1)), limit);
        let stopping = Stopping { stop: vec![String::new(); MAX_FIELDS], ..Default::default() };
        let request = GenerateRequest { stopping: Some(stopping), ..Default::default() };
        assert_eq!(check_message(&request), limit);
    }

    #[test]
    fn numbers_of_packed_lists_count_like_fields() {
        let limit = Err(TooLarge::Fields { limit: MAX_FIELDS });
        let with_shape = |shape| {
            let inputs = vec![InferInputTensor { shape, ..Default::default() }];
            check_message(&ModelInferRequest { inputs, ..Default::default() })
        };
        let room = MAX_FIELDS - 2;
        for number in [0, 127, 128, i64::MAX, -1] {
            assert_eq!(with_shape(vec![number; room]), Ok(()), "{number}");
            assert_eq!(with_shape(vec![number; room + 1]), limit, "{number}");
        }
        let with_floats = |fp64_contents| {
            let contents = Some(InferTensorContents { fp64_contents, ..Default::default() });
            let inputs = vec![InferInputTensor { contents, ..Default::default() }];
            check_message(&ModelInferRequest { inputs, ..Default::default() })
        };
        assert_eq!(with_floats(vec![0.5; room - 1]), Ok(()));
        assert_eq!(with_floats(vec![0.5; room]), limit);
    }

    #[test]
    fn ordinary_requests_pass() {
        let request = GenerateRequest { prompt: "a".repeat(4 << 20), ..Default::default() };
        assert_eq!(check_message(&request), Ok(()));
        let inputs = vec![InferInputTensor { name: "text".into(), shape: vec![1; 8], ..Default::default() }; 64];
        assert_eq!(check_message(&ModelInferRequest { inputs, ..Default::default() }), Ok(()));
    }

    #[test]
    fn responses_and_malformed_messages_pass() {
        assert_eq!(check("weir.v1.GenerateResponse", &[10, 0].repeat(1 << 20)), Ok(()));
        assert_eq!(check("weir.v1.GenerateRequest", b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7fabc"), Ok(()));
        assert_eq!(check("weir.v1.GenerateRequest", &[0, 0, 7]), Ok(()));
    }
}
