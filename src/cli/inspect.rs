//! `weir inspect`: checks all that loading would check, and tells what is in a checkpoint.

use super::{output, progress::Progress};
use crate::{
    decode::options::check_length,
    error::{Error, Result, printable},
    family::{
        TensorSpec,
        checkpoint::{CONFIG_FILE, Config, Weights, read_weights_with_progress},
        decoder::resolution::{Resolution, measure},
        load::{Settings, blueprint, companions, load},
    },
    text::{Vocabulary, subwords::TOKENIZER_FILE},
};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Checks a checkpoint.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint's folder.
    dir: PathBuf,
    /// Also measure the attention resolution (LeX, §3.1) of a decoder on a text: a file in UTF-8, or the text itself. Told are the
    /// figure of the scores averaged over all layers by distance, the distances that were met, and each layer's own figure.
    #[arg(long, value_name = "TEXT", conflicts_with = "resolution_ids")]
    resolution: Option<String>,
    /// The same on symbols given by their ids, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    resolution_ids: Option<Vec<u32>>,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Checks the checkpoint and tells what is in it.
///
/// # Errors
/// The first thing wrong with it.
pub fn run(args: Args) -> Result<()> {
    let mut progress = Progress::bytes();
    let found = inspect(&args.dir, &mut |done, total| progress.tell(done, total))?;
    drop(progress);
    let resolution = resolution(&args)?;
    if args.json {
        let mut json = found.json();
        if let Some(found) = resolution {
            json["resolution"] = json!({ "all": found.all, "layers": found.layers, "distances": found.distances });
        }
        return output::json(&json);
    }
    let measured = resolution.map_or(String::new(), |found| {
        let layers: Vec<_> = found.layers.iter().map(|layer| format!("{layer:.4}")).collect();
        let (all, layers) = (found.all, layers.join(", "));
        format!("resolution       {all:.4} over {} distances; by layer {layers}\n", found.distances)
    });
    output::write(&(found.text()? + &measured))
}

/// The attention resolution, if it is asked for.
fn resolution(args: &Args) -> Result<Option<Resolution>> {
    let load = || load(&args.dir, &Settings { memory_bytes: usize::MAX, ..Settings::default() });
    let (model, symbols) = match (&args.resolution, &args.resolution_ids) {
        (None, None) => return Ok(None),
        (_, Some(ids)) => {
            let model = load()?;
            model.card().vocabulary.check_ids("--resolution-ids", ids)?;
            (model, ids.clone())
        }
        (Some(text), None) => {
            let model = load()?;
            let read = || std::fs::read_to_string(text).map_err(Error::io(text));
            let text = if Path::new(text).is_file() { read()? } else { text.clone() };
            let symbols = model.card().vocabulary.encode("--resolution", &text, usize::MAX)?;
            (model, symbols)
        }
    };
    check_length("--resolution", symbols.len(), model.card())?;
    measure(&*model, &symbols).map(Some)
}

/// What is in a checkpoint.
struct Found {
    dir: PathBuf,
    config: Config,
    vocabulary: Arc<Vocabulary>,
    shape: String,
    architecture: Value,
    specs: Vec<TensorSpec>,
    /// Of each tensor, its type in the file.
    dtypes: Vec<&'static str>,
    bytes: Vec<usize>,
    sha256: String,
    companions: Vec<Found>,
}

fn inspect(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Found> {
    let (config, file) = (Config::read(dir)?, dir.join(CONFIG_FILE));
    let (blueprint, vocabulary) = (blueprint(&config, &file)?, config.vocabulary(&file)?);
    let folders = companions(dir, &config, &*blueprint)?;
    let companions = folders.iter().map(|dir| inspect(dir, progress)).collect::<Result<_>>()?;
    let specs = blueprint.tensors();
    let (weights, sha256) = read_weights_with_progress(dir, &specs, progress)?;
    let (dtypes, bytes) = specs.iter().map(|spec| stored(&weights, spec)).unzip();
    let architecture =
        serde_json::from_str(config.architecture()).map_err(|error| Error::Internal(error.to_string()))?;
    let (dir, shape) = (dir.to_path_buf(), blueprint.shape());
    Ok(Found { dir, config, vocabulary, shape, architecture, specs, dtypes, bytes, sha256, companions })
}

fn stored(weights: &Weights, spec: &TensorSpec) -> (&'static str, usize) {
    let tensor = weights.get(&spec.name);
    tensor.map_or(("-", 0), |tensor| (tensor.dtype.name(), tensor.dtype.bytes() * tensor.numbers.len()))
}

impl Found {
    fn parameters(&self) -> usize {
        self.specs.iter().filter(|spec| spec.trained).map(|spec| spec.shape.iter().product::<usize>()).sum()
    }

    fn boundaries(&self) -> &str {
        self.architecture.pointer("/boundaries/kind").and_then(Value::as_str).unwrap_or("none")
    }

    /// Name, shape, type, bytes.
    fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], &str, usize)> {
        let stored = self.dtypes.iter().zip(&self.bytes);
        self.specs.iter().zip(stored).map(|(spec, (dtype, bytes))| (&*spec.name, &*spec.shape, *dtype, *bytes))
    }

    fn json(&self) -> Value {
        let mut vocabulary = match self.vocabulary.characters() {
            Some(characters) => json!({ "symbols": characters }),
            None if self.vocabulary.is_subword() => {
                json!({ "size": self.vocabulary.len(), "tokenizer": self.vocabulary.tokenizer().map(|_| TOKENIZER_FILE) })
            }
            None => json!({ "bytes": true }),
        };
        if let Some(specials) = self.vocabulary.specials() {
            vocabulary["first_byte"] = json!(self.vocabulary.byte_zero());
            vocabulary["specials"] = json!(specials);
        }
        let tensor = |(name, shape, dtype, bytes): (&str, &[usize], &str, usize)| json!({ "name": name, "shape": shape, "dtype": dtype, "bytes": bytes });
        json!({
            "path": self.dir,
            "family": self.config.family,
            "shape": self.shape,
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
            "companions": self.companions.iter().map(Self::json).collect::<Vec<_>>(),
            "tensors": self.tensors().map(tensor).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> Result<String> {
        let mut out = String::new();
        self.write(&mut out).map_err(|error| Error::Internal(error.to_string()))?;
        Ok(out)
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let lines = [
            ("checkpoint", printable(&self.dir.display().to_string())),
            ("family", self.config.family.clone()),
            ("shape", self.shape.clone()),
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
        let width = self.specs.iter().map(|spec| spec.name.len()).max().unwrap_or_default();
        for (name, shape, dtype, bytes) in self.tensors() {
            writeln!(out, "{name:<width$}  {dtype:<4}  {:>12}  {shape:?}", grouped(bytes))?;
        }
        for companion in &self.companions {
            writeln!(out)?;
            companion.write(out)?;
        }
        Ok(())
    }

    /// The vocabulary in one line.
    fn symbols(&self) -> String {
        const SHOWN: usize = 40;
        let count = self.vocabulary.len();
        match self.vocabulary.characters() {
            None if self.vocabulary.tokenizer().is_some() => format!("{count} subwords"),
            None if self.vocabulary.is_subword() => format!("{count} ids, without a tokenizer"),
            None if self.vocabulary.specials().is_some() => format!("{count} bytes and marks"),
            None => format!("{count} bytes"),
            Some(_) => {
                let shown = self.vocabulary.text_ids().take(SHOWN).collect::<Vec<_>>();
                let shown = self.vocabulary.decode(&shown);
                format!("{count} characters: {shown:?}{}", if count > SHOWN { "…" } else { "" })
            }
        }
    }
}

/// A number with its thousands set apart.
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
    use super::grouped;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1000, 41_010_715].map(grouped), ["0", "999", "1,000", "41,010,715"]);
    }
}
