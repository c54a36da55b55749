//! `weir inspect`: checks a checkpoint as loading does, and prints its contents.

use crate::cli::model;
use crate::cli::output::{self, Progress};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use weir_kernels::Isa;
use weir_kernels::error::{Error, Result, printable};
use weir_models::checkpoint::{CheckpointSource, Config, Weights, hugging_face};
use weir_models::contract::Exactness;
use weir_models::family::TensorSpec;
use weir_models::load::{self, blueprint, entropy_models};
use weir_models::text::subwords::TOKENIZER_FILE;
use weir_models::text::{TokenMarks, Vocabulary};

/// Checks a checkpoint.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Checkpoint folder, or name of a model in the user's models folder. Default: the model that is embedded in the program.
    dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Checks the checkpoint and prints its contents. Fails at the first error in the checkpoint.
pub fn run(args: Args) -> Result<()> {
    let mut progress = Progress::bytes();
    let source = model::checkpoint("DIR", args.dir.as_deref())?;
    let contents = inspect(&source, &mut |done, total| progress.update(done, total))?;
    drop(progress);
    if args.json {
        return output::json(&contents.json());
    }
    let mut text = String::new();
    // Never fails: the writer is a `String`.
    let _ = contents.write(&mut text);
    output::write(&text)
}

struct Contents {
    /// The folder, or the name of the embedded checkpoint.
    path: PathBuf,
    config: Config,
    vocabulary: Arc<Vocabulary>,
    shape: String,
    exactness: Exactness,
    speculates: bool,
    architecture: Value,
    specs: Vec<TensorSpec>,
    /// Number format of each tensor in the file.
    dtypes: Vec<&'static str>,
    /// Size of each tensor in the file, with the scales of an I8 matrix.
    bytes: Vec<usize>,
    sha256: String,
    entropy_models: Vec<Contents>,
}

fn inspect(source: &CheckpointSource, progress: &mut dyn FnMut(u64, u64)) -> Result<Contents> {
    let config = load::config(source)?;
    let file = source.config_file();
    let blueprint = blueprint(&config, &file)?;
    let vocabulary = config.vocabulary(&file)?;
    let entropy_models = entropy_models(source, &config, &*blueprint)?;
    let entropy_models = entropy_models.iter().map(|source| inspect(source, progress)).collect::<Result<_>>()?;
    let specs = blueprint.tensors();
    source.check_tables(&specs)?;
    load::ngrams(source, &config)?;
    let (weights, sha256) = load::weights(source, &*blueprint, progress)?;
    let (dtypes, bytes) = specs.iter().map(|spec| stored(&weights, spec)).unzip();
    let architecture =
        serde_json::from_str(config.architecture()).map_err(|error| Error::Internal(error.to_string()))?;
    let shape = blueprint.shape();
    let exactness = blueprint.exactness();
    let speculates = blueprint.speculates();
    Ok(Contents {
        path: source.path(),
        config,
        vocabulary,
        shape,
        exactness,
        speculates,
        architecture,
        specs,
        dtypes,
        bytes,
        sha256,
        entropy_models,
    })
}

/// Number format and size of a tensor in the file.
fn stored(weights: &Weights, spec: &TensorSpec) -> (&'static str, usize) {
    if let Some(table) = weights.table(&spec.name) {
        return (table.dtype().name(), table.file_bytes());
    }
    let tensor = weights.get(&spec.name);
    tensor.map_or(("-", 0), |tensor| (tensor.dtype().name(), tensor.file_bytes()))
}

impl Contents {
    fn parameters(&self) -> usize {
        self.specs.iter().filter(|spec| spec.trained).map(|spec| spec.shape.iter().product::<usize>()).sum()
    }

    /// Returns the parameters of each part, by the first word of the tensors' names, if some stay in their file: the table's apart
    /// from the others'.
    fn parts(&self) -> Option<Vec<(&str, usize)>> {
        self.specs.iter().find(|spec| spec.stays_in_file)?;
        let mut parts: Vec<(&str, usize)> = Vec::new();
        for spec in self.specs.iter().filter(|spec| spec.trained) {
            let name = spec.name.split('.').next().unwrap_or_default();
            match parts.iter_mut().find(|(part, _)| *part == name) {
                Some((_, numbers)) => *numbers += spec.numbers(),
                None => parts.push((name, spec.numbers())),
            }
        }
        Some(parts)
    }

    fn boundaries(&self) -> &str {
        // an H-Net's stages have learned routers, and a Byte Latent Transformer has a patcher, which need no key
        let default = match &*self.config.family {
            "hnet" => "learned",
            "blt" => "entropies",
            _ => "none",
        };
        self.architecture.pointer("/boundaries/kind").and_then(Value::as_str).unwrap_or(default)
    }

    /// Returns the instruction set that weir's kernels would use. None for Hugging Face models, which run on candle.
    fn isa(&self) -> Option<&'static str> {
        (self.config.family != hugging_face::FAMILY).then(|| Isa::detect().name())
    }

    /// Spec, number format and size of each tensor.
    fn tensors(&self) -> impl Iterator<Item = (&TensorSpec, &str, usize)> {
        let stored = self.dtypes.iter().zip(&self.bytes);
        self.specs.iter().zip(stored).map(|(spec, (dtype, bytes))| (spec, *dtype, *bytes))
    }

    fn json(&self) -> Value {
        let mut vocabulary = match self.vocabulary.characters() {
            Some(characters) => json!({ "symbols": characters }),
            None if self.vocabulary.is_subword() => {
                json!({ "size": self.vocabulary.len(), "tokenizer": self.vocabulary.tokenizer().map(|_| TOKENIZER_FILE) })
            }
            None if self.vocabulary.is_sparse() => {
                json!({ "bytes": true, "first_byte": self.vocabulary.byte_zero(), "size": self.vocabulary.len() })
            }
            None => json!({ "bytes": true }),
        };
        if let Some(specials) = self.vocabulary.specials() {
            vocabulary["first_byte"] = json!(self.vocabulary.byte_zero());
            vocabulary["specials"] = json!(specials);
        }
        if let Some(marks) = self.vocabulary.marks() {
            if let Some(first @ 1..) = self.vocabulary.byte_zero() {
                vocabulary["first_byte"] = json!(first);
            }
            vocabulary["start"] = json!(marks.start);
            vocabulary["end"] = json!(marks.end);
        }
        if let Some(end) = self.vocabulary.end_byte() {
            vocabulary["end"] = json!(end);
        }
        if let Some(TokenMarks { start, ends }) = self.vocabulary.token_marks() {
            vocabulary["start"] = json!(start);
            vocabulary["ends"] = json!(ends);
        }
        let tensors = self.tensors().map(
            |(spec, dtype, bytes)| json!({ "name": spec.name, "shape": spec.shape, "dtype": dtype, "bytes": bytes }),
        );
        let mut contents = json!({
            "path": self.path,
            "family": self.config.family,
            "shape": self.shape,
            "isa": self.isa(),
            "exactness": self.exactness.name(),
            "tolerance": self.exactness.tolerance(),
            "speculates": self.speculates,
            "architecture": self.architecture,
            "boundaries": self.boundaries(),
            "parameters": self.parameters(),
            "bytes": self.bytes.iter().sum::<usize>(),
            "vocabulary": vocabulary,
            "vocabulary_size": self.vocabulary.len(),
            "normaliser": self.vocabulary.normaliser().name(),
            "training_length": self.config.training_length,
            "generation": self.config.generation,
            "sha256": self.sha256,
            "companions": self.entropy_models.iter().map(Self::json).collect::<Vec<_>>(),
            "tensors": tensors.collect::<Vec<_>>(),
        });
        if let Some(parts) = self.parts() {
            contents["parts"] = parts.into_iter().map(|(part, numbers)| (part.to_owned(), json!(numbers))).collect();
        }
        contents
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let lines = [
            ("checkpoint", printable(&self.path.display().to_string())),
            ("family", self.config.family.clone()),
            ("shape", self.shape.clone()),
            ("exactness", self.exactness.to_string()),
            ("speculation", if self.speculates { "possible" } else { "not possible" }.to_owned()),
            ("boundaries", self.boundaries().to_owned()),
            ("parameters", grouped(self.parameters())),
            ("vocabulary", self.symbols()),
            ("normaliser", self.vocabulary.normaliser().name().to_owned()),
            ("training length", grouped(self.config.training_length)),
            ("weights", format!("{} bytes", grouped(self.bytes.iter().sum()))),
            ("sha256", self.sha256.clone()),
        ];
        for (name, value) in lines {
            writeln!(out, "{name:<16} {value}")?;
        }
        for (part, numbers) in self.parts().unwrap_or_default() {
            writeln!(out, "{:<16} {part} {}", "  of these", grouped(numbers))?;
        }
        if let Some(isa) = self.isa() {
            writeln!(out, "{:<16} {isa}", "instruction set")?;
        }
        let width = self.specs.iter().map(|spec| spec.name.len()).max().unwrap_or_default();
        for (TensorSpec { name, shape, .. }, dtype, bytes) in self.tensors() {
            writeln!(out, "{name:<width$}  {dtype:<4}  {:>12}  {shape:?}", grouped(bytes))?;
        }
        for entropy_model in &self.entropy_models {
            writeln!(out)?;
            entropy_model.write(out)?;
        }
        Ok(())
    }

    /// Describes the vocabulary in one line.
    fn symbols(&self) -> String {
        const SHOWN: usize = 40;
        let count = self.vocabulary.len();
        match self.vocabulary.characters() {
            None if self.vocabulary.tokenizer().is_some() => format!("{count} subwords"),
            None if self.vocabulary.is_subword() => format!("{count} ids, without a tokenizer"),
            None if self.vocabulary.specials().is_some() => format!("{count} bytes and marks"),
            None if self.vocabulary.is_sparse() => format!("{count} ids, 256 of them bytes"),
            None => match self.vocabulary.end_byte() {
                Some(end) => format!("{count} bytes; byte {end} ends a text"),
                None => format!("{count} bytes"),
            },
            Some(_) => {
                let shown = self.vocabulary.text_ids().take(SHOWN).collect::<Vec<_>>();
                let shown = self.vocabulary.decode(&shown);
                format!("{count} characters: {shown:?}{}", if count > SHOWN { "…" } else { "" })
            }
        }
    }
}

/// Formats a number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::cli::inspect::grouped;

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1000, 41_010_715].map(grouped), ["0", "999", "1,000", "41,010,715"]);
    }
}
