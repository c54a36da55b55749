//! Mean ROUGE scores over many documents with reference summaries, per source.

use super::served::Summarizer;
use crate::{
    cli::{
        document::Document,
        flag_names::{message, with_flag},
        input_files::unreadable,
        output,
        progress::Progress,
    },
    error::{Error, Result, printable},
    report::rouge::{RougeScores, rouge},
};
use serde::Deserialize;
use serde_json::json;
use std::{
    collections::BTreeMap,
    fmt::Write,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

/// The flag that names the file.
const FLAG: &str = "--table";
/// Maximum bytes of a line.
const MAX_LINE: u64 = 64 << 20;

/// Name of the group of documents without a source, if other documents have one.
const NO_SOURCE: &str = "(no source)";

/// One line of the file.
#[derive(Deserialize)]
struct Example {
    #[serde(default)]
    source: String,
    document: String,
    summary: String,
}

/// Sums over documents.
#[derive(Default)]
struct Sums {
    documents: usize,
    cut: usize,
    tokens: u64,
    summary_tokens: u64,
    total_ns: u64,
    rouge: RougeScores,
}

/// Summarizes every document of the file, and prints the means of each source and of all documents.
pub(super) fn run(summarizer: &Summarizer<'_>, file: &Path, as_json: bool) -> Result<()> {
    let mut sources: BTreeMap<String, Sums> = BTreeMap::new();
    let mut all = Sums::default();
    let examples = examples(file)?;
    let mut progress = Progress::measurements();
    let total = examples.len() as u64;
    for (done, (number, Example { source, document, summary: reference })) in examples.into_iter().enumerate() {
        let with_line = |error: Error| {
            let why = message(with_flag(error, "chunk.text", "document"));
            Error::Setting(format!("{FLAG}: {}: line {number}: {why}", file.display()))
        };
        let summary = summarizer.summarize(&Document::Text(document), &mut |_| Ok(())).map_err(with_line)?;
        let usage = summary.usage();
        let scores = rouge(&reference, summary.text());
        for sums in [sources.entry(printable(&source)).or_default(), &mut all] {
            sums.documents += 1;
            sums.cut += usize::from(usage.cut);
            sums.tokens += usage.document_tokens;
            sums.summary_tokens += usage.summary_tokens;
            sums.total_ns += summary.finished.timing.as_ref().map_or(0, |timing| timing.total_ns);
            sums.rouge += scores;
        }
        progress.update(done as u64 + 1, total);
    }
    drop(progress);
    // If no line names its source, only the line for all documents is printed.
    sources.retain(|source, sums| !source.is_empty() || sums.documents < all.documents);
    let name = |source: &'_ str| if source.is_empty() { NO_SOURCE } else { source }.to_owned();
    let mut rows: Vec<(String, &Sums)> = sources.iter().map(|(source, sums)| (name(source), sums)).collect();
    rows.push(("all".to_owned(), &all));
    if as_json {
        return output::json(&rows.iter().map(|(source, sums)| sums.json(source)).collect::<Vec<_>>().into());
    }
    output::write(&table(&rows))
}

/// Reads the lines that are not empty, with their line numbers.
fn examples(file: &Path) -> Result<Vec<(u64, Example)>> {
    let mut reader = BufReader::new(File::open(file).map_err(unreadable(FLAG, file))?);
    let mut examples = Vec::new();
    let mut number = 0;
    loop {
        let mut line = String::new();
        number += 1;
        let read = std::io::Read::take(&mut reader, MAX_LINE).read_line(&mut line).map_err(unreadable(FLAG, file))?;
        if read == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |expected: &str, found: String| Error::checkpoint(file, format!("line {number}"), expected, found);
        let object = "an object with `document`, `summary` and optionally `source`";
        if read as u64 == MAX_LINE && !line.ends_with('\n') {
            return Err(wrong(&format!("at most {MAX_LINE} bytes"), "more".into()));
        }
        // serde would accept a list as the fields in order.
        if line.trim_start().starts_with('[') {
            return Err(wrong(object, "a list".into()));
        }
        examples.push((number, serde_json::from_str(&line).map_err(|error| wrong(object, error.to_string()))?));
    }
    match examples.is_empty() {
        true => Err(Error::checkpoint(file, "line 1", "a document", "nothing")),
        false => Ok(examples),
    }
}

impl Sums {
    /// Mean over documents.
    fn mean(&self, sum: u64) -> f64 {
        sum as f64 / self.documents.max(1) as f64
    }

    fn mean_rouge(&self) -> RougeScores {
        self.rouge / self.documents.max(1) as f64
    }

    fn json(&self, source: &str) -> serde_json::Value {
        json!({
            "source": source,
            "documents": self.documents,
            "cut": self.cut,
            "document_tokens": self.mean(self.tokens),
            "summary_tokens": self.mean(self.summary_tokens),
            "ns": self.total_ns / self.documents.max(1) as u64,
            "rouge": self.mean_rouge(),
        })
    }
}

/// Formats a table of means: F1 in percent, tokens, seconds.
fn table(rows: &[(String, &Sums)]) -> String {
    let width = rows.iter().map(|(source, _)| source.chars().count()).max().unwrap_or(0).max("source".len());
    let mut table = format!(
        "{:width$}  documents   cut  ROUGE-1  ROUGE-2  ROUGE-L  document tokens  summary tokens  seconds\n",
        "source"
    );
    for (source, sums) in rows {
        let RougeScores { rouge1, rouge2, rouge_l } = sums.mean_rouge();
        let [rouge1, rouge2, rouge_l] = [rouge1, rouge2, rouge_l].map(|score| 100.0 * score.f1);
        let document_tokens = sums.mean(sums.tokens);
        let summary_tokens = sums.mean(sums.summary_tokens);
        let seconds = sums.total_ns as f64 / 1e9 / sums.documents.max(1) as f64;
        // Never fails: the writer is a `String`.
        let _ = writeln!(
            table,
            "{source:width$}  {:9}  {:4}  {rouge1:7.2}  {rouge2:7.2}  {rouge_l:7.2}  {document_tokens:15.1}  \
             {summary_tokens:14.1}  {seconds:7.2}",
            sums.documents, sums.cut
        );
    }
    table
}
