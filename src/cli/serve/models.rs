//! Models to serve, and their resources.

use crate::{
    cli::local_models,
    config::{Checks, ServedCheckpoint},
    error::quoted,
    family::{checkpoint::CheckpointSource, load},
    kernels::Dtype,
};
use std::path::{Path, PathBuf};

/// The folder of checkpoints that is served if no flag names a model.
const DEFAULT_FOLDER: &str = "models";

/// Flags of the models.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Models")]
pub(super) struct ModelsArgs {
    /// Folder whose subfolders are checkpoints; subfolders without a config.json are skipped. A checkpoint that cannot be loaded
    /// is logged, and the others are served. Default, unless a model is named: `models`, if it has checkpoints. If it has none, the
    /// server serves the model that is embedded in the program.
    #[arg(long, value_name = "DIR", env = "WEIR_MODELS")]
    models: Option<PathBuf>,
    /// Checkpoint folder, or name of a model in the user's models folder; NAME=DIR serves it under another name. If a
    /// checkpoint cannot be loaded, the server does not start. Repeat the flag or separate values with commas.
    #[arg(long, value_name = "[NAME=]DIR", env = "WEIR_MODEL", value_delimiter = ',')]
    model: Vec<PathBuf>,
    /// More checkpoints, each given as --model gives it.
    #[arg(value_name = "[NAME=]DIR")]
    checkpoints: Vec<PathBuf>,
    /// Refuse checkpoints whose cards do not state the SHA-256 of their weights. A stated digest is always compared.
    #[arg(long, value_name = "BOOL", env = "WEIR_REQUIRE_SHA256", default_value = "false", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    require_sha256: String,
    /// Serve each MrT5 a second time with its gate off, as NAME-unpooled, to measure the gain of the gate. The second copy needs
    /// its own memory.
    #[arg(long, value_name = "BOOL", env = "WEIR_UNPOOLED_TWINS", default_value = "false", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    unpooled_twins: String,
    /// Number of threads. Default: all cores.
    #[arg(long, value_name = "N", env = "WEIR_THREADS")]
    threads: Option<String>,
    /// Number format of weights, keys and values: f32, bf16, int8, or int4 (weights in int4, keys and values in int8).
    #[arg(long, value_name = "TYPE", env = "WEIR_DTYPE", default_value = "f32")]
    dtype: String,
    /// Maximum symbols in one sequence. Default: four training windows, at least 8192; 2^24 if attention windows bound the
    /// memory of a sequence.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS")]
    max_symbols: Option<String>,
    /// Device of Hugging Face models: cpu, cuda, cuda:N or metal. Other models run on the CPU.
    #[arg(long, value_name = "DEVICE", env = "WEIR_DEVICE", default_value = "cpu")]
    device: String,
    /// Key-value memory per model.
    #[arg(long, value_name = "SIZE", env = "WEIR_KV_MEMORY", default_value = "2GiB")]
    kv_memory: String,
}

impl ModelsArgs {
    /// Folder of checkpoints, if any.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        let default = || {
            let folder = PathBuf::from(DEFAULT_FOLDER);
            (self.named().next().is_none() && Checks::has_checkpoints(&folder)).then_some(folder)
        };
        self.models.clone().or_else(default)
    }

    /// The arguments that name a checkpoint.
    fn named(&self) -> impl Iterator<Item = &PathBuf> {
        self.model.iter().chain(&self.checkpoints)
    }

    /// The checkpoints to serve.
    pub(super) fn checkpoints(&self, checks: &mut Checks) -> Vec<ServedCheckpoint> {
        let mut folders = Vec::new();
        if let Some(folder) = &self.folder() {
            folders = checks.checkpoints("--models", folder);
            if folders.is_empty() && folder.is_dir() {
                let expected = "expected subfolders that are checkpoints, found none";
                checks.reject_with("--models", format!("{}: {expected}", folder.display()));
            }
        }
        let found = |folder: PathBuf| {
            let source = CheckpointSource::Folder(folder);
            ServedCheckpoint { name: source.name(), source, named: false }
        };
        let mut checkpoints: Vec<_> = folders.into_iter().map(found).collect();
        for argument in self.named() {
            let (name, folder) = name_and_folder(argument);
            if folder.as_os_str().is_empty() {
                checks.reject_with(
                    "--model",
                    format!("expected [NAME=]DIR, found {}", quoted(&argument.to_string_lossy())),
                );
                continue;
            }
            match local_models::find(&folder) {
                Ok(source) => {
                    source.folder().into_iter().for_each(|folder| checks.checkpoint("--model", folder));
                    let name = name.unwrap_or_else(|| source.name());
                    checkpoints.push(ServedCheckpoint { name, source, named: true });
                }
                Err(why) => checks.reject_with("--model", why),
            }
        }
        for (index, checkpoint) in checkpoints.iter().enumerate().filter(|(_, checkpoint)| checkpoint.named) {
            let name = &checkpoint.name;
            if checkpoints.iter().take(index).any(|other| other.name == *name) {
                let expected = "expected a different name for each model (NAME=DIR gives one)";
                checks.reject_with("--model", format!("{expected}, found {} twice", quoted(name)));
            }
        }
        if self.folder().is_none() && self.named().next().is_none() {
            let source = CheckpointSource::default();
            checkpoints.push(ServedCheckpoint { name: source.name(), source, named: true });
        }
        checkpoints
    }

    /// True if models are also served without their pooling.
    pub(super) fn unpooled_twins(&self, checks: &mut Checks) -> bool {
        checks.switch("--unpooled-twins", &self.unpooled_twins)
    }

    /// Load settings of each model.
    pub(super) fn settings(&self, checks: &mut Checks) -> load::Settings {
        let mut settings = load::Settings::default();
        match Dtype::parse(&self.dtype) {
            Some(dtype) => settings.dtype = dtype,
            None => checks.reject("--dtype", &self.dtype, format!("one of {}", Dtype::names())),
        }
        match self.device.parse() {
            Ok(device) => settings.device = device,
            Err(why) => checks.reject_with("--device", format!("{why}, found {}", quoted(&self.device))),
        }
        if let Some(threads) = &self.threads {
            settings.threads = checks.number("--threads", threads, 1..=1024);
        }
        settings.max_symbols =
            self.max_symbols.as_ref().map(|count| checks.number("--max-symbols", count, 1..=load::MAX_SYMBOLS));
        settings.require_sha256 = checks.switch("--require-sha256", &self.require_sha256);
        settings.memory_bytes = checks.bytes("--kv-memory", &self.kv_memory, 1 << 20..=usize::MAX);
        settings
    }
}

/// Splits `NAME=DIR`. A folder alone, whose path may contain `=`, has no name of its own.
fn name_and_folder(argument: &Path) -> (Option<String>, PathBuf) {
    let pair = argument.to_str().and_then(|text| text.split_once('='));
    match pair.filter(|(name, _)| !argument.is_dir() && !name.is_empty() && !name.contains('/')) {
        Some((name, folder)) => (Some(name.to_owned()), PathBuf::from(folder)),
        None => (None, argument.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_can_have_a_name() {
        let parse = |argument: &str| name_and_folder(Path::new(argument));
        assert_eq!(parse("english=/mnt/models"), (Some("english".into()), "/mnt/models".into()));
        for alone in ["/mnt/english", "/mnt/a=b", "=x"] {
            assert_eq!(parse(alone), (None, alone.into()));
        }
    }
}
