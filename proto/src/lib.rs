//! weir's gRPC API, `weir.v1`: message types, clients and servers generated from the `.proto` files in this crate's folder.
//!
//! The `.proto` files are the documentation of the API; their comments are repeated on the generated types.

pub mod codec;

/// Version 1.
pub mod v1 {
    // Generated code documents what the .proto files document, which leaves out what tonic adds.
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]

    tonic::include_proto!("weir.v1");
}

/// An event in a response of `Compress` or `Decompress`.
#[derive(Debug)]
pub enum CodecEvent {
    /// Bytes of the compressed data, or of the text.
    Output(Vec<u8>),
    /// The progress, if the request asks for it.
    Progress(v1::CodecProgress),
    /// The sizes, at the end.
    Summary(v1::CodecSummary),
}

/// Implements conversions between a method's responses and events. `$output` is the variant of its output.
macro_rules! codec_events {
    ($response:ident, $module:ident, $output:ident) => {
        impl From<CodecEvent> for v1::$response {
            fn from(event: CodecEvent) -> Self {
                let event = match event {
                    CodecEvent::Output(bytes) => v1::$module::Event::$output(bytes),
                    CodecEvent::Progress(progress) => v1::$module::Event::Progress(progress),
                    CodecEvent::Summary(summary) => v1::$module::Event::Summary(summary),
                };
                Self { event: Some(event) }
            }
        }

        /// Returns `None` for a message without an event.
        impl From<v1::$response> for Option<CodecEvent> {
            fn from(response: v1::$response) -> Self {
                response.event.map(|event| match event {
                    v1::$module::Event::$output(bytes) => CodecEvent::Output(bytes),
                    v1::$module::Event::Progress(progress) => CodecEvent::Progress(progress),
                    v1::$module::Event::Summary(summary) => CodecEvent::Summary(summary),
                })
            }
        }
    };
}

codec_events!(CompressResponse, compress_response, Data);
codec_events!(DecompressResponse, decompress_response, Text);

/// The served part of the Open Inference Protocol, which other projects define.
pub mod inference {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]

    tonic::include_proto!("inference");
}

/// The encoded `FileDescriptorSet` of the whole API, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bin"));

/// The encoded `FileDescriptorSet` of the Open Inference Protocol.
pub const INFERENCE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inference.bin"));
