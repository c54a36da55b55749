//! `weir segment`: shows the segments of a text, cut by a server, which runs in this process unless `--server` names another.

use crate::cli::document::{TextArgs, TextInput};
use crate::cli::model::{BoundaryArgs, DescribedModel, ModelSourceArgs, ServedModel, own_limits, size};
use crate::cli::output::{self, ColorChoice};
use serde_json::{Value, json};
use weir_kernels::error::Result;
use weir_proto::v1::{Segment, SegmentRequest, SegmentResponse};

/// Runs the command. Fails if the checkpoint or the text is invalid, if the server rejects the call, or if stdout cannot be
/// written.
pub fn run(args: Args, color: ColorChoice) -> Result<()> {
    let text = args.text.read()?;
    let model = args.model.open()?.served(own_limits())?;
    let waiting = output::Waiting::for_text("reading", text.text.len());
    let response = call(&args, &model, &text).map_err(|error| text.with_flag(error))?;
    drop(waiting);
    if args.json {
        return output::json(&json(&response));
    }
    output::write(&shown(&response, color.is_on(&std::io::stdout())))
}

fn call(args: &Args, model: &ServedModel, text: &TextInput) -> Result<SegmentResponse> {
    let described = DescribedModel::new(model)?;
    let request = SegmentRequest {
        model: described.name(),
        text: text.text.clone(),
        ids: text.ids.clone(),
        boundary_mode: args.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
        boundary_threshold: args.boundaries.boundary_threshold,
        seed: Some(args.boundaries.seed),
        ..SegmentRequest::default()
    };
    let response = model.call(async |client| client.segment(request).await)?;
    let normalized_chars = response.usage.as_ref().map_or(0, |usage| size(usage.normalized_chars()));
    described.report_normalised(text.flag, &text.text, normalized_chars);
    Ok(response)
}

/// Shows where a text's segments end.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    boundaries: BoundaryArgs,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
    #[command(flatten)]
    model: ModelSourceArgs,
}

fn closed(response: &SegmentResponse) -> usize {
    response.segments.iter().filter(|segment| !segment.open).count()
}

/// Symbols per boundary, which ends a segment or begins a chunk. The symbols include a start mark.
fn factor(response: &SegmentResponse) -> Option<f64> {
    let usage = response.usage.unwrap_or_default();
    (usage.prompt_segments > 0).then(|| usage.prompt_chars as f64 / usage.prompt_segments as f64)
}

/// Formats the segments as JSON. Their offsets do not count a start mark.
fn json(response: &SegmentResponse) -> Value {
    let usage = response.usage.unwrap_or_default();
    let list = response.segments.iter().map(|segment| {
        let Segment { text, char_start, char_end, open, boundary_probability, boundary_entropy, .. } = segment;
        json!({
            "text": text,
            "start": char_start,
            "end": char_end,
            "closed": !open,
            "boundary_probability": boundary_probability,
            "boundary_entropy": boundary_entropy,
        })
    });
    let mut object = json!({
        "symbols": usage.prompt_chars,
        "normalized_chars": usage.normalized_chars(),
        "segments": list.collect::<Vec<_>>(),
        "closed": closed(response),
        "shortening_factor": factor(response),
    });
    if !response.boundary_levels.is_empty() {
        object["boundary_levels"] = response.boundary_levels.iter().map(|level| json!(level.boundaries)).collect();
    }
    object
}

/// Text with a bar after each closed segment and an ellipsis after an open one. A segment whose first symbol also begins a chunk of
/// deeper levels has a bar more before it for each. `color` alternates two terminal colours.
fn shown(response: &SegmentResponse, color: bool) -> String {
    let mut out = String::new();
    for (index, segment) in response.segments.iter().enumerate() {
        let text = segment.text.replace('\n', "⏎\n");
        let deeper = response.segments.get(index + 1).map_or(0, |next| next.chunk_depth.saturating_sub(1));
        let end = if segment.open { "…".into() } else { "│".repeat(1 + deeper.min(u8::MAX.into()) as usize) };
        match (color, index % 2) {
            (false, _) => out += &format!("{text}{end}"),
            (true, 0) => out += &format!("\x1b[36m{text}\x1b[2;39m{end}\x1b[0m"),
            (true, _) => out += &format!("\x1b[33m{text}\x1b[2;39m{end}\x1b[0m"),
        }
    }
    let symbols = response.usage.unwrap_or_default().prompt_chars;
    let factor = output::optional(factor(response));
    out += &format!("\n{symbols} symbols, {} closed segments, shortening factor {factor}\n", closed(response));
    out
}
