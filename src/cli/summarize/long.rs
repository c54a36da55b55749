//! Summaries of long documents in parts, by the engine in this process.

use super::{
    input::{Document, InputDocument},
    process::ProcessSummarizer,
    summary::{DocumentPart, OnEvent, PartProgress, Summary, SummaryEvent, SummaryTimes},
    text_reader::TextReader,
};
use crate::{
    decode::long_documents::{FieldNames, LongDocument, MAX_BYTES},
    error::{Error, Result},
};

/// Names of the flags in errors.
const NAMES: FieldNames = FieldNames { text: "--file", long_documents: "--long-documents" };

/// Summarizes a document of up to [`MAX_BYTES`]. Fails as the summaries of its parts do, and as [`LongDocument`] does.
pub(super) fn summarize(
    summarizer: &ProcessSummarizer,
    document: &Document,
    on_event: &mut OnEvent<'_>,
) -> Result<Summary> {
    let mut document = LongDocument::new(read(document)?, NAMES);
    let mut parts: Vec<DocumentPart> = Vec::new();
    let mut times: Option<SummaryTimes> = None;
    loop {
        let part = document.next_part(summarizer.vocabulary(), summarizer.limits())?;
        let input = InputDocument {
            ids: part.ids.clone(),
            byte_ranges: part.byte_ranges.clone(),
            text: String::new(),
            cut: false,
        };
        if part.is_whole() {
            let summary = summarizer.run(&input, on_event)?;
            return Ok(whole(summary, parts, times));
        }
        let summary = summarizer.run(&input, &mut |_| Ok(()))?;
        let progress = PartProgress { round: part.round, part: part.number, read: part.end, bytes: part.round_bytes };
        on_event(SummaryEvent::Part(progress))?;
        document.push_summary(&part, summary.text())?;
        parts.push(DocumentPart {
            round: part.round,
            number: part.number,
            start: part.start,
            end: part.end,
            round_bytes: part.round_bytes,
            tokens: summary.document.tokens,
            summary_tokens: summary.summary_tokens,
            summary: summary.text().to_owned(),
            poolings: summary.poolings,
        });
        times = Some(times.map_or(summary.timing.clone(), |times| times.plus(&summary.timing)));
    }
}

/// Returns the summary of the last round with the parts before it. Tokens and times are sums, as a server reports them.
fn whole(last: Summary, parts: Vec<DocumentPart>, times: Option<SummaryTimes>) -> Summary {
    let mut summary = last;
    if let Some(part) = parts.iter().rfind(|part| part.round == 1) {
        summary.document.bytes = Some(part.end);
    }
    summary.document.tokens += parts.iter().map(|part| part.tokens).sum::<usize>();
    summary.summary_tokens += parts.iter().map(|part| part.summary_tokens).sum::<usize>();
    if let Some(times) = times {
        summary.timing = times.plus(&summary.timing);
    }
    Summary { parts, ..summary }
}

/// Reads a document up to [`MAX_BYTES`].
fn read(document: &Document) -> Result<String> {
    let mut portions = match document {
        Document::File(file) => TextReader::open(file)?,
        Document::Text(text) => TextReader::text(text),
        Document::Ids(_) => {
            return Err(Error::Setting(
                "--ids: expected no value next to --long-documents chunk, found one: give --file".into(),
            ));
        }
    };
    let mut text = String::new();
    while let Some(portion) = portions.next()? {
        text += &portion;
        if text.len() > MAX_BYTES {
            let unit = "bytes (--long-documents chunk)";
            return Err(Error::LongerThan { field: "--file", limit: MAX_BYTES, unit, why: None });
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_bounded() {
        let long = "a".repeat(MAX_BYTES + 1);
        let message = read(&Document::Text(long)).unwrap_err().to_string();
        assert!(message.contains(&MAX_BYTES.to_string()), "{message}");
        assert_eq!(read(&Document::Text("a\nb".into())).unwrap(), "a\nb");
        let message = read(&Document::Ids(vec![1])).unwrap_err().to_string();
        assert!(message.starts_with("--ids: expected no value next to --long-documents chunk"), "{message}");
    }
}
