//! What requests ask for.

use crate::{
    client::models::ModelInfo,
    error::{Error, Result},
    load::{
        length::Length,
        workload::{PromptSource, SUMMARIZE, WorkloadMix, WorkloadSpec},
    },
    measure::objective::Objectives,
    units,
};
use std::{path::PathBuf, str::FromStr, time::Duration};

#[derive(Debug, Clone, clap::Args)]
pub(super) struct WorkloadArgs {
    /// Text files that prompts, or documents, are from; if not given, 16 KB of bundled English.
    #[arg(long, value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    prompts: Vec<PathBuf>,
    /// Length of prompts in characters: N, FROM..TO, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA, exponential:MEAN; or
    /// `lines`: each line of the files is a prompt; or `documents`: each file is one, and of a file named `.jsonl` each line's
    /// `text`, `document` or `article`.
    #[arg(long, value_name = "LENGTH", default_value = "64..256", value_parser = prompts)]
    prompt_chars: PromptSource,
    /// Characters that each request generates, or tokens of each summary: a length as in --prompt-chars.
    #[arg(long, value_name = "LENGTH", default_value = "128")]
    output_chars: Length,
    /// Characters that all prompts have in common before their own.
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: u64,
    /// How many different such beginnings there are.
    #[arg(long, value_name = "N", default_value_t = 1)]
    prefixes: u64,
    /// Temperature of sampling; if not given, the server's default.
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Characters of each message in which a document is sent to be summarized.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    chunk_chars: u64,
    /// Hypotheses that a summary is searched with; if not given, the model's default.
    #[arg(long, value_name = "N")]
    pub(super) beam: Option<u32>,
    /// One workload of a mix, as key=value pairs with commas between them: name, kind (generate, summarize), model, weight, prompts,
    /// prompt-chars, output-chars, shared-prefix, prefixes, temperature, chunk-chars, beam. What is not given is as the flags say.
    /// May be given several times.
    #[arg(long = "workload", value_name = "SPEC")]
    workloads: Vec<String>,
    /// Seed of everything that is drawn: contents, lengths, arrivals, and the server's sampling.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// How long a request may take; the server is told.
    #[arg(long, value_name = "TIME", env = "WEIR_TIMEOUT", default_value = "60s", value_parser = units::duration)]
    pub(super) timeout: Duration,
    /// What a good request keeps, such as ttfc=200ms,gap_p99=50ms; of ttfc, total, char, gap_p50, gap_p95, gap_p99, gap_max.
    #[arg(long, value_name = "LIST")]
    objective: Option<Objectives>,
    /// Whether to ask where segments end: `ask` splits gaps into plain and boundary ones, and characters come one step later.
    /// If not given, `run`, `sweep` and `report` ask models that pool, `compare` asks none.
    #[arg(long, value_name = "WHETHER")]
    pub(super) boundaries: Option<Boundaries>,
    /// What the report says of machine and server, which a client cannot know.
    #[arg(long, value_name = "TEXT", env = "WEIR_NOTE")]
    pub(super) note: Option<String>,
}

/// Whether to ask where segments end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Boundaries {
    /// Ask.
    Ask,
    /// Do not ask.
    Leave,
}

fn prompts(text: &str) -> std::result::Result<PromptSource, String> {
    match text {
        "lines" => Ok(PromptSource::Lines),
        "documents" => Ok(PromptSource::Documents),
        length => length.parse().map(PromptSource::Parts),
    }
}

impl WorkloadArgs {
    /// The objectives.
    pub(super) fn objectives(&self) -> Objectives {
        self.objective.clone().unwrap_or_default()
    }

    /// The same for models of one kind alone: without workloads that say they are of the other, unless they say of which model.
    pub(super) fn only(&self, reads: bool) -> Result<Self> {
        let own = kind(reads);
        let mut workloads = Vec::new();
        for text in &self.workloads {
            let spec = spec(self.plain(own, 0, self.seed), text).map_err(|why| refused(text, why))?;
            if spec.kind == own || spec.model.is_some() {
                workloads.push(text.clone());
            }
        }
        Ok(Self { workloads, ..self.clone() })
    }

    /// The workloads, for models of which the smallest decides what is too long; of so large a share the client goes away.
    /// Workloads may name others of the `known`.
    pub(super) fn mix(&self, models: &[ModelInfo], known: &[ModelInfo], cancel: f64, seed: u64) -> Result<WorkloadMix> {
        if !(0.0..=1.0).contains(&cancel) {
            return Err(Error::option("--cancel-share", cancel, "from 0 to 1"));
        }
        let max_symbols = models.iter().map(|model| model.max_symbols).min().unwrap_or(0);
        // models that read documents are asked for nothing else
        let plain =
            self.plain(kind(!models.is_empty() && models.iter().all(|model| model.summarizes)), max_symbols, seed);
        let specs = if self.workloads.is_empty() {
            vec![plain]
        } else {
            let numbered = self.workloads.iter().enumerate();
            let read = |(number, text): (usize, &String)| {
                let plain = WorkloadSpec { name: format!("workload {}", number + 1), ..plain.clone() };
                spec(plain, text)
                    .and_then(|spec| of_model(spec, known))
                    .and_then(|spec| fits(spec, models, known))
                    .map_err(|why| refused(text, why))
            };
            numbered.map(read).collect::<Result<_>>()?
        };
        if self.prefixes > 1 && specs.iter().all(|spec| spec.shared_prefix == 0) {
            return Err(Error::option("--prefixes", self.prefixes, "given with --shared-prefix, the length of each"));
        }
        WorkloadMix::new(&specs, seed, cancel)
    }

    /// What the flags ask for.
    fn plain(&self, kind: &str, max_symbols: u64, seed: u64) -> WorkloadSpec {
        WorkloadSpec {
            name: kind.into(),
            kind: kind.into(),
            model: None,
            pools: false,
            weight: 1.0,
            files: self.prompts.clone(),
            prompts: self.prompt_chars,
            output: self.output_chars,
            shared_prefix: self.shared_prefix,
            prefixes: self.prefixes,
            temperature: self.temperature,
            chunk_chars: self.chunk_chars,
            beam: self.beam,
            max_symbols,
            seed,
        }
    }

    /// The text whose bits per character are told, and what it is.
    pub(super) fn scored(&self, chars: usize, models: &[ModelInfo]) -> Result<(String, String)> {
        let text = crate::load::text::PromptText::read(&self.prompts)?;
        let most = models.iter().map(|model| model.max_symbols).min().unwrap_or(0);
        let count = chars.min(text.len()).min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok((text.head(count), format!("the first {count} characters of {}", text.name)))
    }
}

/// The kind of workload for models of this kind.
fn kind(reads: bool) -> &'static str {
    if reads { SUMMARIZE } else { "generate" }
}

fn refused(text: &str, why: String) -> Error {
    Error::Setting(format!("--workload {text}: {why}"))
}

/// A workload with the limits of the model that it names, if it names one.
fn of_model(mut spec: WorkloadSpec, known: &[ModelInfo]) -> std::result::Result<WorkloadSpec, String> {
    let Some(name) = &spec.model else { return Ok(spec) };
    let Some(model) = known.iter().find(|model| model.name == *name) else {
        let names: Vec<_> = known.iter().map(|model| model.name.as_str()).collect();
        return Err(format!("model={name}: one of {}", names.join(", ")));
    };
    (spec.max_symbols, spec.pools) = (model.max_symbols, model.pooled);
    Ok(spec)
}

/// A workload that those it is for can do.
fn fits(spec: WorkloadSpec, models: &[ModelInfo], known: &[ModelInfo]) -> std::result::Result<WorkloadSpec, String> {
    let other = |model: &&ModelInfo| spec.kind == kind(!model.summarizes);
    let unfit = match &spec.model {
        Some(name) => known.iter().filter(|model| model.name == *name).find(other),
        None => models.iter().find(other),
    };
    match unfit {
        Some(ModelInfo { name, summarizes: true, .. }) => Err(format!("kind={}: {name} reads documents", spec.kind)),
        Some(ModelInfo { name, .. }) => Err(format!("kind={}: {name} does not read documents", spec.kind)),
        None => Ok(spec),
    }
}

/// A workload's own values over those of the flags.
fn spec(mut spec: WorkloadSpec, text: &str) -> std::result::Result<WorkloadSpec, String> {
    fn number<T: FromStr>(key: &str, value: &str) -> std::result::Result<T, String> {
        value.parse().map_err(|_| format!("{key}={value} is no number that it takes"))
    }
    let mut given = Vec::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} has no ="))?;
        let (key, value) = (key.trim(), value.trim());
        given.push(key);
        match key {
            "name" => spec.name = value.into(),
            "kind" => spec.kind = value.into(),
            "model" => spec.model = Some(value.into()),
            "chunk-chars" => spec.chunk_chars = number(key, value)?,
            "beam" => spec.beam = Some(number(key, value)?),
            "weight" => spec.weight = number(key, value)?,
            "prompts" => spec.files = vec![value.into()],
            "prompt-chars" => spec.prompts = prompts(value).map_err(|why| format!("{key}: {why}"))?,
            "output-chars" => spec.output = value.parse().map_err(|why| format!("{key}: {why}"))?,
            "shared-prefix" => spec.shared_prefix = number(key, value)?,
            "prefixes" => spec.prefixes = number(key, value)?,
            "temperature" => spec.temperature = Some(number(key, value)?),
            other => return Err(format!("{other:?} is no key of a workload")),
        }
    }
    if given.contains(&"prefixes") && spec.shared_prefix == 0 {
        return Err("prefixes is given with shared-prefix, the length of each".into());
    }
    if given.contains(&"beam") && spec.kind != SUMMARIZE {
        return Err("beam is of summaries: give it with kind=summarize".into());
    }
    Ok(spec)
}
