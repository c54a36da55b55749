//! Hugging Face folders of the T5 family, which need no conversion. They are read as `weir convert` reads them, without a copy on
//! disk.

use super::{Source, t5};
use crate::{
    error::Result,
    family::checkpoint::{
        CONFIG_FILE, Config, Weights,
        hugging_face::{GENERATION_FILE, explain_missing_key},
        links::check_inside,
    },
};
use std::path::Path;

/// A folder that is read without conversion.
pub(crate) struct InPlace<'a> {
    dir: &'a Path,
    /// Values of `model_type` that its reader takes.
    types: &'static [&'static str],
}

impl<'a> InPlace<'a> {
    /// Returns the folder if its `model_type` is one of the T5 family.
    pub(crate) fn find(dir: &'a Path) -> Option<Self> {
        let file = dir.join(CONFIG_FILE);
        // The reader of the configuration reports what is wrong with it.
        if !file.is_file() || check_inside(dir, &file).is_err() {
            return None;
        }
        let Ok(Some(kind)) = Source::of_folder(dir) else { return None };
        let types = match kind {
            Source::T5 => t5::T5_TYPES,
            Source::MrT5 => t5::MRT5_TYPES,
            _ => return None,
        };
        Some(Self { dir, types })
    }

    /// Reads the configuration, and only the headers of the weights. Fails as the conversion does, or if a file is a link out of
    /// the folder.
    pub(crate) fn config(&self) -> Result<Config> {
        for name in [CONFIG_FILE, GENERATION_FILE].into_iter().chain(t5::TOKENIZER_FILES) {
            let file = self.dir.join(name);
            if file.exists() {
                check_inside(self.dir, &file)?;
            }
        }
        t5::config_in_place(self.dir, self.types).map_err(|error| explain_missing_key(error, self.dir))
    }

    /// Reads the weights under weir's names, and reports bytes read and bytes to read to `progress`. Also returns the SHA-256 of
    /// their files. Fails as the conversion does.
    pub(crate) fn weights(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(Weights, String)> {
        t5::weights_in_place(self.dir, self.types, progress)
    }
}
