//! Compiles the `.proto` files with protox, so that building needs no protoc.

use prost::Message;
use std::{error::Error, fs, path::PathBuf};

const FILES: [&str; 7] = [
    "weir/v1/admin.proto",
    "weir/v1/codec.proto",
    "weir/v1/editing.proto",
    "weir/v1/generation.proto",
    "weir/v1/latency.proto",
    "weir/v1/models.proto",
    "weir/v1/summarization.proto",
];
/// The Open Inference Protocol.
const INFERENCE: [&str; 1] = ["inference/inference.proto"];

/// Messages that are also serialized as JSON: those of a latency report, and what describes an answer.
const SERIALIZED: [&str; 30] = [
    "ModelReport",
    "MeasuredTexts",
    "LevelUsage",
    "LatencyHistogram",
    "LatencyBar",
    "EstimatedGain",
    "Calibration",
    "CalibratedStep",
    "CacheEffect",
    "MeasuredSummaries",
    "EncoderLayerReport",
    "KeptShares",
    "TwinGain",
    "MedianGain",
    "Usage",
    "Timing",
    "Progress",
    "Span",
    "Hypothesis",
    "SummaryUsage",
    "SummaryTiming",
    "EncoderLayer",
    "DocumentApplied",
    "DocumentCompletions",
    "CompletionItem",
    "StaleRequest",
    "CodecProgress",
    "CodecSummary",
    "SummaryPart",
    "WordAlternative",
];

#[expect(clippy::disallowed_methods, reason = "Cargo passes build scripts the output folder in the environment")]
fn main() -> Result<(), Box<dyn Error>> {
    let into = PathBuf::from(std::env::var("OUT_DIR")?);
    for (name, files) in [("weir.bin", &FILES[..]), ("inference.bin", &INFERENCE)] {
        for file in files {
            println!("cargo::rerun-if-changed={file}");
        }
        let descriptors = protox::compile(files, ["."])?;
        // Reflection serves this file, comments and all.
        fs::write(into.join(name), descriptors.encode_to_vec())?;
        let mut config = prost_build::Config::new();
        // The codec finds a message's descriptor by its name.
        config.enable_type_names();
        let mut builder = tonic_prost_build::configure().codec_path("crate::codec::BoundedCodec");
        for message in SERIALIZED {
            builder = builder.type_attribute(message, "#[derive(serde::Serialize)]");
        }
        // Each program has its own form of the selected tokens.
        builder = builder.field_attribute("SummaryPart.selected", "#[serde(skip)]");
        builder.compile_fds_with_config(descriptors, config)?;
    }
    Ok(())
}
