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

/// Names of gRPC's status codes, by number.
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Serializes a report's window as its name.
mod window {
    use crate::v1::ReportWindow;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const PREFIX: &str = "REPORT_WINDOW_";

    pub(crate) fn serialize<S: Serializer>(window: &i32, to: S) -> Result<S::Ok, S::Error> {
        let name = ReportWindow::try_from(*window).unwrap_or_default().as_str_name();
        to.serialize_str(&name.trim_start_matches(PREFIX).to_lowercase())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
        let name = String::deserialize(from)?;
        let window = ReportWindow::from_str_name(&format!("{PREFIX}{}", name.to_uppercase()));
        window.map(i32::from).ok_or_else(|| D::Error::custom(format!("no window is called {name:?}")))
    }
}
