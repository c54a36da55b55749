//! Flags that all model commands share: the checkpoint, compute settings, and the text or symbols.

use super::{input_files::read_text_or_stdin, local_models, notes};
use crate::{
    decode::{
        contract::{BoundaryMode, BoundaryOptions, Model, Noise},
        speculation::Speculation,
    },
    error::{Error, Result},
    family::{
        checkpoint::CheckpointSource,
        load::{Settings, load_as},
        settings::DeviceChoice,
    },
    kernels::{Dtype, Isa},
};
use std::{
    fmt::Display,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// Checkpoint and compute settings.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    pub(super) load: LoadArgs,
}

/// The checkpoint of a command.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct CheckpointArgs {
    /// Checkpoint folder, or name of a model in the user's models folder. Default: the model that is embedded in the program.
    #[arg(long, value_name = "DIR|NAME", env = "WEIR_MODEL")]
    model: Option<PathBuf>,
}

/// An argument that names a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelArgument<'a> {
    /// Its flag, or the name of its value.
    pub(super) name: &'static str,
    pub(super) value: Option<&'a Path>,
}

impl CheckpointArgs {
    pub(super) fn argument(&self) -> ModelArgument<'_> {
        ModelArgument { name: "--model", value: self.model.as_deref() }
    }
}

impl ModelArgument<'_> {
    /// Finds the checkpoint; without a value, the embedded one. Fails if there is no model of that name.
    pub(super) fn source(self) -> Result<CheckpointSource> {
        let Some(value) = self.value else { return Ok(CheckpointSource::default()) };
        local_models::find(value).map_err(|why| Error::Setting(format!("{}: {why}", self.name)))
    }
}

/// How a checkpoint is loaded.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Loading the model")]
pub struct LoadArgs {
    /// Refuse a checkpoint whose card does not state the SHA-256 of its weights.
    #[arg(long, env = "WEIR_REQUIRE_SHA256", value_parser = clap::builder::BoolishValueParser::new())]
    require_sha256: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Compute settings.
#[derive(Debug, Clone, clap::Args)]
pub struct ComputeArgs {
    /// Number format of weights, keys and values: f32, bf16, int8, or int4 (weights in int4, keys and values in int8).
    #[arg(long, value_name = "TYPE", value_parser = dtype, default_value = "f32", env = "WEIR_DTYPE")]
    pub dtype: Dtype,
    /// Number of threads. Default: all cores.
    #[arg(long, value_name = "N", env = "WEIR_THREADS", value_parser = whole::<u16>(1..=1024),
        allow_negative_numbers = true)]
    pub threads: Option<u16>,
    /// Maximum symbols in one sequence. Default: four training windows, at least 8192; 2^24 if attention windows bound the
    /// memory of a sequence.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS", value_parser = whole::<u32>(1..=1 << 24),
        allow_negative_numbers = true)]
    pub max_symbols: Option<u32>,
    /// Device of Hugging Face models: cpu, cuda, cuda:N or metal. Other models run on the CPU.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Cpu, env = "WEIR_DEVICE")]
    pub device: DeviceChoice,
}

impl ModelArgs {
    /// Finds the checkpoint. Fails if there is no model of that name.
    pub(super) fn source(&self) -> Result<CheckpointSource> {
        self.checkpoint.argument().source()
    }

    /// Loads the model. Fails if the checkpoint cannot be read or is invalid.
    pub fn load(&self) -> Result<Arc<dyn Model>> {
        self.load.load(&self.source()?, None)
    }

    /// Loads the model with kernels of an instruction set, by default the widest that the processor has. Fails as
    /// [`load`](Self::load) does.
    pub(super) fn load_with(&self, isa: Option<Isa>) -> Result<Arc<dyn Model>> {
        self.load.load(&self.source()?, isa)
    }
}

impl LoadArgs {
    /// Loads a checkpoint with kernels of an instruction set, by default the widest that the processor has. Fails if the
    /// checkpoint cannot be read or is invalid.
    pub(super) fn load(&self, source: &CheckpointSource, isa: Option<Isa>) -> Result<Arc<dyn Model>> {
        let settings = self.compute.settings();
        let require_sha256 = self.require_sha256;
        load_as(source, &source.name(), &Settings { isa: isa.unwrap_or(settings.isa), require_sha256, ..settings })
    }
}

impl ComputeArgs {
    /// Converts the flags to load settings.
    pub fn settings(&self) -> Settings {
        let defaults = Settings::default();
        Settings {
            memory_bytes: usize::MAX,
            dtype: self.dtype,
            threads: self.threads.map_or(defaults.threads, usize::from),
            max_symbols: self.max_symbols.map(|count| count as usize),
            device: self.device,
            ..defaults
        }
    }
}

/// A text, given as an argument, as a file or as ids.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
pub struct TextArgs {
    /// Text.
    #[arg(long)]
    pub text: Option<String>,
    /// File with the text in UTF-8; - for standard input.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Symbol ids, separated by commas. `score` also accepts the end-of-text id at the end, and scores it.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub ids: Option<Vec<u32>>,
}

/// The flag that gives a text, if any does.
pub(super) struct TextSource<'a> {
    pub(super) ids: Option<&'a [u32]>,
    pub(super) file: Option<&'a Path>,
    pub(super) text: Option<&'a str>,
}

impl TextSource<'_> {
    /// Encodes the text, and reports what normalising changes; `None` if no flag gives one. Fails as [`TextArgs::symbols`] does.
    pub(super) fn symbols(&self, model: &dyn Model) -> Result<Option<Vec<u32>>> {
        let vocabulary = &model.card().vocabulary;
        let encode = |flag, text: &str| {
            let symbols = vocabulary.encode(flag, text, usize::MAX)?;
            notes::normalised(flag, text, vocabulary);
            Ok::<_, Error>(symbols)
        };
        let symbols = match (self.ids, self.file, self.text) {
            (Some(ids), ..) => vocabulary.check_text("--ids", ids).map(|()| ids.to_vec())?,
            (_, Some(file), _) => encode("--file", &read_text_or_stdin("--file", file)?)?,
            (.., Some(text)) => encode("--text", text)?,
            (None, None, None) => return Ok(None),
        };
        if symbols.is_empty() {
            let flag = if self.file.is_some() { "--file" } else { "--text" };
            return Err(Error::bad_option(flag, "\"\"", "at least one symbol"));
        }
        Ok(Some(symbols))
    }
}

impl TextArgs {
    /// Returns the flag that gives the text.
    pub(super) fn flag(&self) -> &'static str {
        match (&self.ids, &self.file) {
            (Some(_), _) => "--ids",
            (None, Some(_)) => "--file",
            (None, None) => "--text",
        }
    }

    /// Returns the text, for a server, which encodes it. Fails if the file cannot be read, or if ids are given instead of text.
    pub(super) fn text(&self) -> Result<String> {
        match (&self.file, &self.text) {
            (Some(file), _) => read_text_or_stdin("--file", file),
            (None, Some(text)) => Ok(text.clone()),
            (None, None) => {
                Err(Error::Setting("--ids: expected no value with a server, found one: give --text or --file".into()))
            }
        }
    }

    /// Encodes the text, and reports what normalising changes. Fails if the file cannot be read, a symbol is outside the vocabulary, or
    /// the text is empty.
    pub fn symbols(&self, model: &dyn Model) -> Result<Vec<u32>> {
        let source = TextSource { ids: self.ids.as_deref(), file: self.file.as_deref(), text: self.text.as_deref() };
        source.symbols(model).map(Option::unwrap_or_default)
    }

    /// Encodes the text; also returns true if `--ids` ended with the end-of-text id, which is then removed. Fails as
    /// [`symbols`](Self::symbols) does.
    pub fn symbols_and_end(&self, model: &dyn Model) -> Result<(Vec<u32>, bool)> {
        let vocabulary = &model.card().vocabulary;
        let end = vocabulary.specials().map(|specials| specials.end);
        match self.ids.as_deref() {
            Some([text @ .., last]) if Some(*last) == end => {
                vocabulary.check_text("--ids", text).map(|()| (text.to_vec(), true))
            }
            _ => self.symbols(model).map(|symbols| (symbols, false)),
        }
    }
}

/// Boundary mode, and the seed of all random draws.
#[derive(Debug, Clone, clap::Args)]
pub struct BoundaryArgs {
    /// How boundaries are decided: threshold or sampled for a learned predictor; nxt or predictor for latent segment models.
    /// Default: the first mode that the model lists.
    #[arg(long, value_name = "MODE", value_parser = mode, env = "WEIR_BOUNDARY_MODE")]
    pub boundary_mode: Option<BoundaryMode>,
    /// Seed of all random draws: symbols and, if sampled, boundaries.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    pub seed: u64,
}

impl BoundaryArgs {
    /// Converts the flags to the model's options.
    pub fn options(&self) -> BoundaryOptions {
        BoundaryOptions { mode: self.boundary_mode, noise: Noise::Seeded(self.seed), offset: 0 }
    }
}

/// Returns a parser of whole numbers within `bounds`.
pub(super) fn count(bounds: RangeInclusive<usize>) -> impl Fn(&str) -> std::result::Result<usize, String> + Clone {
    whole(bounds)
}

/// Returns a parser of whole numbers of any type within `bounds`.
pub(super) fn whole<T>(bounds: RangeInclusive<T>) -> impl Fn(&str) -> std::result::Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", bounds.start(), bounds.end()))
    }
}

pub(super) fn dtype(name: &str) -> std::result::Result<Dtype, String> {
    Dtype::parse(name).ok_or_else(|| format!("expected one of {}", Dtype::names()))
}

pub(super) fn speculation(text: &str) -> std::result::Result<Speculation, String> {
    Speculation::parse(text).ok_or_else(|| format!("expected {}", Speculation::EXPECTED))
}

pub(super) fn isa(name: &str) -> std::result::Result<Isa, String> {
    let names = || Isa::all().iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
    Isa::parse(name).ok_or_else(|| format!("expected one that this processor supports: {}", names()))
}

fn mode(name: &str) -> std::result::Result<BoundaryMode, String> {
    let names = || BoundaryMode::ALL.map(BoundaryMode::name).join(", ");
    BoundaryMode::parse(name).ok_or_else(|| format!("expected one of {}", names()))
}
