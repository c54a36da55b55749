//! Flags of `weir summarize`.

use crate::{
    cli::{document::Document, input_files::check_readable, model::count, model_source::ModelSourceArgs},
    decode::{long_documents::LongDocuments, options::Sampling, search_rules::EarlyStopping, summary::Summarize},
    error::{Error, Result},
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;

/// Summarizes a document, from a file, standard input, or as ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) document: DocumentArgs,
    #[command(flatten)]
    pub(super) generation: GenerationArgs,
    /// Summarize the beginning of a document that is longer than the model's limit, instead of rejecting it.
    #[arg(long, env = "WEIR_CUT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) cut: bool,
    /// What to do with a document that is longer than the model's limit: refuse it (the default), cut it as --cut does, or chunk it:
    /// summarize its parts, then their summaries, until one is left.
    #[arg(long, value_name = "MODE", env = "WEIR_LONG_DOCUMENTS", value_parser = long_documents(),
        conflicts_with_all = ["cut", "highlights", "ids", "logits"])]
    pub(super) long_documents: Option<LongDocuments>,
    /// Before the summary, print the document with the tokens that each pooling layer kept highlighted.
    #[arg(long, env = "WEIR_HIGHLIGHTS", value_parser = clap::builder::BoolishValueParser::new(), conflicts_with = "table")]
    pub(super) highlights: bool,
    /// File with a reference summary: also print ROUGE-1, ROUGE-2 and ROUGE-L.
    #[arg(long, value_name = "FILE", env = "WEIR_REFERENCE", conflicts_with = "table")]
    pub(super) reference: Option<PathBuf>,
    /// Feed --target-ids to the decoder and write the logits after each to this safetensors file. Generates no summary.
    #[arg(long, value_name = "FILE", env = "WEIR_LOGITS", requires = "target_ids", conflicts_with = "table")]
    pub(super) logits: Option<PathBuf>,
    /// Decoder input ids, separated by commas. The start-of-text id is added at the front if missing.
    #[arg(long, value_name = "IDS", value_delimiter = ',', requires = "logits")]
    pub(super) target_ids: Option<Vec<u32>>,
    /// Print JSON when the summary is complete.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) model: ModelSourceArgs,
}

impl Args {
    /// Returns how the command treats a document that is too long.
    pub(super) fn long_documents(&self) -> LongDocuments {
        let default = if self.cut { LongDocuments::Cut } else { LongDocuments::Refuse };
        self.long_documents.unwrap_or(default)
    }

    /// Returns true if the model reads the beginning of a document that is too long.
    pub(super) fn cuts(&self) -> bool {
        self.long_documents() == LongDocuments::Cut
    }
}

fn long_documents() -> impl TypedValueParser<Value = LongDocuments> {
    let names = PossibleValuesParser::new(LongDocuments::ALL.map(LongDocuments::name));
    names.map(|name| LongDocuments::parse(&name).unwrap_or_default())
}

/// Document to summarize.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct DocumentArgs {
    /// File with the document in UTF-8; - for standard input.
    #[arg(long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Encoder input ids, separated by commas, including the end-of-text id.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(super) ids: Option<Vec<u32>>,
    /// Summarize many documents: a file with one JSON object per line, with `document`, the reference `summary`, and optionally
    /// `source`. Prints one line of mean scores per source and one for all.
    #[arg(long, value_name = "FILE")]
    pub(super) table: Option<PathBuf>,
}

/// Generation flags. The checkpoint's generation settings are the defaults.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct GenerationArgs {
    /// Beam size; 1 is greedy search.
    #[arg(long, value_name = "N", env = "WEIR_BEAM", value_parser = count(1..=64))]
    pub(super) beam: Option<usize>,
    /// Hypotheses to return, at most the beam size.
    #[arg(long, value_name = "N", env = "WEIR_HYPOTHESES", value_parser = count(1..=64))]
    pub(super) hypotheses: Option<usize>,
    /// Minimum tokens before the end-of-text token. In models of the T5 family the end-of-text token counts, too.
    #[arg(long, value_name = "N", env = "WEIR_MIN_LEN", visible_alias = "min-new-tokens")]
    pub(super) min_len: Option<usize>,
    /// Maximum tokens before the end-of-text token. In models of the T5 family the end-of-text token counts, too.
    #[arg(long, value_name = "N", env = "WEIR_MAX_LEN", visible_aliases = ["max-tokens", "max-new-tokens"])]
    pub(super) max_len: Option<usize>,
    /// A hypothesis' log-probability is divided by its length to this power.
    #[arg(long, value_name = "X", env = "WEIR_LENGTH_PENALTY", allow_negative_numbers = true)]
    pub(super) length_penalty: Option<f32>,
    /// Never repeat a run of N tokens; 0 allows all repeats.
    #[arg(long, value_name = "N", env = "WEIR_NO_REPEAT_NGRAM", visible_alias = "no-repeat-ngram-size")]
    pub(super) no_repeat_ngram: Option<usize>,
    /// When a beam search by the rules of transformers stops, once --beam hypotheses have finished. true: at once. false: when no
    /// unfinished hypothesis has a better score. never: when no unfinished hypothesis can reach a better score.
    #[arg(long, value_name = "WHEN", env = "WEIR_EARLY_STOPPING", value_parser = early_stopping)]
    pub(super) early_stopping: Option<EarlyStopping>,
    /// Penalty on tokens that the summary already contains, by the rules of transformers or in sampling; 1 is none.
    #[arg(long, value_name = "X", env = "WEIR_REPETITION_PENALTY")]
    pub(super) repetition_penalty: Option<f32>,
    /// Sample tokens at this temperature instead of beam search.
    #[arg(long, value_name = "T", env = "WEIR_TEMPERATURE")]
    pub(super) temperature: Option<f32>,
    /// Seed of the sampled tokens.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    pub(super) seed: u64,
    /// Keep the selected vectors unchanged in models trained with soft top-k, which mixes other vectors into them.
    #[arg(long, env = "WEIR_HARD_TOPK", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) hard_topk: bool,
}

impl GenerationArgs {
    /// Returns the options for an engine in this process.
    pub(super) fn request(&self) -> Summarize {
        let default = Sampling::default();
        let repetition_penalty = self.repetition_penalty.unwrap_or(default.repetition_penalty);
        let sampling = |temperature| Sampling { temperature, repetition_penalty, seed: self.seed, ..default.clone() };
        Summarize {
            beam: self.beam,
            length_penalty: self.length_penalty,
            min_tokens: self.min_len,
            max_tokens: self.max_len,
            no_repeat_ngram: self.no_repeat_ngram,
            early_stopping: self.early_stopping,
            repetition_penalty: self.repetition_penalty,
            sampling: self.temperature.map(sampling),
            hypotheses: self.hypotheses,
            hard: Some(self.hard_topk),
        }
    }
}

fn early_stopping(name: &str) -> std::result::Result<EarlyStopping, String> {
    let names = || EarlyStopping::ALL.map(EarlyStopping::name).join(", ");
    EarlyStopping::parse(name).ok_or_else(|| format!("expected one of {}", names()))
}

impl DocumentArgs {
    /// Fails if a file does not exist or cannot be opened.
    pub(super) fn check_files(&self) -> Result<()> {
        let files = [("--file", &self.file), ("--table", &self.table)];
        files.into_iter().try_for_each(|(flag, file)| file.as_ref().map_or(Ok(()), |file| check_readable(flag, file)))
    }

    /// Returns the document of the command. Fails if there is none.
    pub(super) fn document(&self) -> Result<Document> {
        match (&self.ids, &self.file) {
            (Some(ids), _) => Ok(Document::Ids(ids.clone())),
            (None, Some(file)) => Ok(Document::File(file.clone())),
            (None, None) => Err(Error::Setting("--file|--ids: expected a value next to --logits, found none".into())),
        }
    }
}
