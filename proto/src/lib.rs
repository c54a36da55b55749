//! weir's gRPC API, `weir.v1`: message types, clients and servers generated from the `.proto` files beside this crate.
//!
//! The `.proto` files are the documentation of the API; their comments are repeated on the generated types.

/// Version 1.
pub mod v1 {
    // Generated code documents what the .proto files document, which leaves out what tonic adds.
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]

    tonic::include_proto!("weir.v1");
}

/// The Open Inference Protocol, which is not ours: as much of it as is served.
pub mod inference {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::too_many_lines)]

    tonic::include_proto!("inference");
}

/// The encoded `FileDescriptorSet` of the whole API, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bin"));

/// The same of the Open Inference Protocol.
pub const INFERENCE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inference.bin"));
