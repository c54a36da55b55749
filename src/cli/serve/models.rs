//! Which models are served, and what each may use.

use crate::{config::Checks, family::load, kernels::Dtype};
use std::path::{Path, PathBuf};

/// The flags of the models.
#[derive(Debug, clap::Args)]
pub(super) struct ModelsArgs {
    /// A folder whose subfolders are checkpoints; subfolders without a config.json are skipped. `models` if neither
    /// this nor --model is given.
    #[arg(long, value_name = "DIR", env = "WEIR_MODELS")]
    models: Option<PathBuf>,
    /// A checkpoint's folder, which gives the model its name, or NAME=DIR; may be given several times, or with commas in between.
    #[arg(long, value_name = "[NAME=]DIR", env = "WEIR_MODEL", value_delimiter = ',')]
    model: Vec<PathBuf>,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", env = "WEIR_THREADS")]
    threads: Option<String>,
    /// Numbers that weights, keys and values are stored in: f32, bf16 or int8.
    #[arg(long, value_name = "TYPE", env = "WEIR_DTYPE", default_value = "f32")]
    dtype: String,
    /// The most symbols of one sequence; if not given four training windows, but at least 8192, or 2^24 where windows bound what
    /// a sequence holds.
    #[arg(long, value_name = "N", env = "WEIR_MAX_SYMBOLS")]
    max_symbols: Option<String>,
    /// Key-value memory of each model.
    #[arg(long, value_name = "SIZE", env = "WEIR_KV_MEMORY", default_value = "2GiB")]
    kv_memory: String,
}

impl ModelsArgs {
    /// The folder of checkpoints, if there is one.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        self.models.clone().or_else(|| self.model.is_empty().then(|| PathBuf::from("models")))
    }

    /// The checkpoints' folders, and the names that they are served under.
    pub(super) fn checkpoints(&self, checks: &mut Checks) -> Vec<(String, PathBuf)> {
        let mut found = Vec::new();
        if let Some(folder) = &self.folder() {
            found = checks.checkpoints("--models", folder);
            if found.is_empty() && folder.is_dir() {
                checks.wrong("--models", &folder.display().to_string(), "no subfolder is a checkpoint");
            }
        }
        let mut found: Vec<_> = found.into_iter().map(|folder| (load::name_of(&folder), folder)).collect();
        for given in &self.model {
            let (name, folder) = named(given);
            checks.checkpoint("--model", &folder);
            found.push((name, folder));
        }
        found
    }

    /// What each model may use.
    pub(super) fn settings(&self, checks: &mut Checks) -> load::Settings {
        let mut settings = load::Settings::default();
        match Dtype::parse(&self.dtype) {
            Some(dtype) => settings.dtype = dtype,
            None => checks.wrong("--dtype", &self.dtype, "expected f32, bf16 or int8"),
        }
        if let Some(threads) = &self.threads {
            settings.threads = checks.number("--threads", threads, 1..=1024);
        }
        settings.max_symbols =
            self.max_symbols.as_ref().map(|count| checks.number("--max-symbols", count, 1..=load::MAX_SYMBOLS));
        settings.memory_bytes = checks.bytes("--kv-memory", &self.kv_memory, 1 << 20..=usize::MAX);
        settings
    }
}

/// A name and a folder, of `NAME=DIR`, or of a folder alone, which may have such a sign in it.
fn named(given: &Path) -> (String, PathBuf) {
    let pair = given.to_str().and_then(|text| text.split_once('='));
    match pair.filter(|(name, _)| !given.is_dir() && !name.is_empty() && !name.contains('/')) {
        Some((name, folder)) => (name.to_owned(), PathBuf::from(folder)),
        None => (load::name_of(given), given.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_may_be_given_a_name() {
        let of = |given: &str| named(Path::new(given));
        assert_eq!(of("english=/mnt/models"), ("english".into(), "/mnt/models".into()));
        assert_eq!(of("/mnt/english"), ("english".into(), "/mnt/english".into()));
        assert_eq!(of("/mnt/a=b"), ("a=b".into(), "/mnt/a=b".into()));
        assert_eq!(of("=x"), ("=x".into(), "=x".into()));
    }
}
