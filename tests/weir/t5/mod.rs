//! The T5 family: golden data, converted checkpoints, tokenizers, and documents in parts.

mod conversion;
mod golden;
mod in_place;
mod long_documents;
mod pickles;
mod precision;
mod search;
mod twin;

use super::{golden::Golden, pyramidion::single_document::with_document, support::*};
use serde_json::Value;
use std::{process::Command, sync::Arc};
use weir::{
    decode::{
        contract::{Model, Scratch, SequenceRow, Want, advance},
        document::{Document, DocumentEncoder},
    },
    kernels::Dtype,
};

/// Returns whether a command succeeded, with its output and its messages.
fn weir(args: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(args).env_clear().output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), out, err)
}

/// Returns the JSON that a command prints.
fn parsed(args: &[&str]) -> Value {
    let (ok, out, err) = weir(args);
    assert!(ok, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

fn encoder(model: &dyn Model) -> &dyn DocumentEncoder {
    model.document_encoder().expect("a model with a document encoder")
}

/// Encodes a document in one call.
fn encode(model: &dyn Model, tokens: &[u32], scratch: &mut Scratch) -> Arc<dyn Document> {
    let mut encoding = encoder(model).open();
    encoding.push(tokens).unwrap();
    encoding.close().unwrap();
    encoder(model).advance(&mut *encoding, usize::MAX, scratch).unwrap();
    encoding.document().expect("the document is complete")
}

/// Returns the logits after each symbol of a row that is fed in one chunk: `(symbols, V)`.
fn forced(model: &dyn Model, document: &dyn Document, symbols: &[u32], scratch: &mut Scratch) -> Vec<f32> {
    let mut rows = [SequenceRow::new(encoder(model).begin(document).unwrap())];
    rows[0].set(symbols, Want::All);
    advance(model, &mut rows, &[0], scratch).unwrap();
    rows[0].logits.clone()
}

/// A fixture with its golden data.
struct Case {
    name: &'static str,
    golden: Golden,
    /// `golden.json`
    about: serde_json::Value,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        T5_CASES.into_iter().map(|name| {
            let about = std::fs::read(t5_golden(name).join("golden.json")).unwrap();
            Self { name, golden: Golden::open(&t5_golden(name)), about: serde_json::from_slice(&about).unwrap() }
        })
    }

    /// Returns the names of the sources.
    fn sources(&self) -> Vec<String> {
        let sources = self.about["sources"].as_array().unwrap();
        sources.iter().map(|source| source["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Returns models for the conformance suite, with a document of their own.
pub(super) fn shapes() -> Vec<(String, Arc<dyn Model>)> {
    let all = Dtype::ALL.map(|dtype| ("t5_v10", dtype)).into_iter().chain(Dtype::ALL.map(|dtype| ("mrt5", dtype)));
    let document: Vec<u32> = (0..90).map(|index| 3 + index * 7 % 250).collect();
    all.chain([("longt5_tglobal", Dtype::F32)])
        .map(|(case, dtype)| (format!("{case}, {}", dtype.name()), with_document(t5_in(case, dtype), document.clone())))
        .collect()
}
