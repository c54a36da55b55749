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

/// The served part of the Open Inference Protocol, which other projects define.
pub mod inference {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]

    tonic::include_proto!("inference");
}

/// The encoded `FileDescriptorSet` of the whole API, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bin"));

/// The encoded `FileDescriptorSet` of the Open Inference Protocol.
pub const INFERENCE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inference.bin"));
