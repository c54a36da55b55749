//! `weir segment`: shows the segments of a text, cut by a server, which runs in this process unless `--server` names another.

mod args;
mod show;

pub use args::Args;

use super::{
    color::ColorChoice,
    direct,
    flag_names::with_flag,
    model_source::{DescribedModel, ModelSource, ServedModel, own_limits},
    output,
    wire::size,
};
use crate::error::Result;
use weir_proto::v1::{SegmentRequest, SegmentResponse};

/// Runs the command. Fails if the checkpoint or the text is invalid, if the server rejects the call, or if stdout cannot be
/// written.
pub fn run(args: Args, color: ColorChoice) -> Result<()> {
    let source = args.model.open()?;
    let response = match (&source, &args.text.ids) {
        (ModelSource::Process(model), Some(ids)) => direct::segments(&**model, ids, args.boundaries.options())?,
        _ => {
            let response = call(&args, &source.served(own_limits())?);
            response.map_err(|error| with_flag(error, "text", args.text.flag()))?
        }
    };
    if args.json {
        return output::json(&show::json(&response));
    }
    output::write(&show::text(&response, color.is_on(&std::io::stdout())))
}

fn call(args: &Args, model: &ServedModel) -> Result<SegmentResponse> {
    let text = args.text.text()?;
    let described = DescribedModel::new(model)?;
    let request = SegmentRequest {
        model: described.name(),
        text: text.clone(),
        boundary_mode: args.boundaries.boundary_mode.map(|mode| mode.name().to_owned()),
        seed: Some(args.boundaries.seed),
        ..SegmentRequest::default()
    };
    let response = model.call(async |client| client.segment(request).await)?;
    let normalized_chars = response.usage.as_ref().map_or(0, |usage| size(usage.normalized_chars()));
    described.report_normalised(args.text.flag(), &text, normalized_chars);
    Ok(response)
}
