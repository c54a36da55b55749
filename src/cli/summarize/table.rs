//! Many documents with their summaries: how well each source's are matched.

use super::{Document, Writer};
use crate::{
    cli::{output, progress::Progress},
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

/// Bytes of a line: more is a mistake.
const LINE: u64 = 64 << 20;

/// What the documents are called that have no source, where others have one.
const NAMELESS: &str = "(no source)";

/// A line of the file.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    source: String,
    document: String,
    summary: String,
}

/// What is added up.
#[derive(Default)]
struct Figures {
    documents: usize,
    cut: usize,
    tokens: usize,
    written: usize,
    total_ns: u64,
    rouge: RougeScores,
}

/// Summarizes every document of the file, and tells the figures of each source and of all.
pub(super) fn run(writer: &Writer, file: &Path, (cut, as_json): (bool, bool)) -> Result<()> {
    let mut sources: BTreeMap<String, Figures> = BTreeMap::new();
    let mut all = Figures::default();
    let lines = lines(file)?;
    let (mut progress, total) = (Progress::measurements(), lines.len() as u64);
    for (done, (number, Line { source, document, summary: reference })) in lines.into_iter().enumerate() {
        let named = |error: Error| Error::Setting(format!("{}: line {number}: {error}", file.display()));
        let document = Document::of_text(&document, &*writer.model, &writer.limits, cut).map_err(named)?;
        let (encoded, summary) = writer.write(&document, &mut |_| Ok(()))?;
        let found = rouge(&reference, &writer.text(&summary));
        for figures in [sources.entry(printable(&source)).or_default(), &mut all] {
            figures.documents += 1;
            figures.cut += usize::from(encoded.cut);
            figures.tokens += encoded.tokens;
            figures.written += summary.usage.generated_chars;
            figures.total_ns += summary.timing.total_ns;
            figures.rouge += found;
        }
        progress.tell(done as u64 + 1, total);
    }
    drop(progress);
    // where no line names its source, all are told, and once
    sources.retain(|source, figures| !source.is_empty() || figures.documents < all.documents);
    fn name(source: &str) -> &str {
        if source.is_empty() { NAMELESS } else { source }
    }
    let rows: Vec<(&str, &Figures)> =
        sources.iter().map(|(source, figures)| (name(source), figures)).chain([("all", &all)]).collect();
    if as_json {
        return output::json(&rows.iter().map(|(source, figures)| figures.json(source)).collect::<Vec<_>>().into());
    }
    output::write(&told(&rows))
}

/// The lines with something in them, by their numbers.
fn lines(file: &Path) -> Result<Vec<(u64, Line)>> {
    let mut reader = BufReader::new(File::open(file).map_err(Error::io(file))?);
    let (mut lines, mut number) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        number += 1;
        let read = std::io::Read::take(&mut reader, LINE).read_line(&mut line).map_err(Error::io(file))?;
        if read == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |expected: &str, found: String| Error::checkpoint(file, format!("line {number}"), expected, found);
        let object = "an object with `document`, `summary` and perhaps `source`";
        if read as u64 == LINE && !line.ends_with('\n') {
            return Err(wrong(&format!("at most {LINE} bytes"), "more".into()));
        }
        // a list would be taken as fields in their order
        if line.trim_start().starts_with('[') {
            return Err(wrong(object, "a list".into()));
        }
        lines.push((number, serde_json::from_str(&line).map_err(|error| wrong(object, error.to_string()))?));
    }
    match lines.is_empty() {
        true => Err(Error::checkpoint(file, "line 1", "a document", "nothing")),
        false => Ok(lines),
    }
}

impl Figures {
    fn mean(&self) -> (RougeScores, f64, f64) {
        let count = self.documents.max(1) as f64;
        (self.rouge / count, self.tokens as f64 / count, self.written as f64 / count)
    }

    fn json(&self, source: &str) -> serde_json::Value {
        let (rouge, document_tokens, summary_tokens) = self.mean();
        json!({
            "source": source,
            "documents": self.documents,
            "cut": self.cut,
            "document_tokens": document_tokens,
            "summary_tokens": summary_tokens,
            "ns": self.total_ns / self.documents.max(1) as u64,
            "rouge": rouge,
        })
    }
}

/// A table for people: means of F in per cent, of tokens, of seconds.
fn told(rows: &[(&str, &Figures)]) -> String {
    let width = rows.iter().map(|(source, _)| source.chars().count()).max().unwrap_or(0).max("source".len());
    let mut table = format!(
        "{:width$}  documents   cut  ROUGE-1  ROUGE-2  ROUGE-L  document tokens  summary tokens  seconds\n",
        "source"
    );
    for (source, figures) in rows {
        let (RougeScores { rouge1, rouge2, rouge_l }, tokens, written) = figures.mean();
        let [one, two, longest] = [rouge1, rouge2, rouge_l].map(|part| 100.0 * part.f1);
        let seconds = figures.total_ns as f64 / 1e9 / figures.documents.max(1) as f64;
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "{source:width$}  {:9}  {:4}  {one:7.2}  {two:7.2}  {longest:7.2}  {tokens:15.1}  {written:14.1}  {seconds:7.2}",
            figures.documents, figures.cut
        );
    }
    table
}
