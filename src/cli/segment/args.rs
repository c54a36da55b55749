//! Flags of `weir segment`.

use crate::cli::{
    model::{BoundaryArgs, TextArgs},
    model_source::ModelSourceArgs,
};

/// Shows where a text's segments end.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) text: TextArgs,
    #[command(flatten)]
    pub(super) boundaries: BoundaryArgs,
    /// Print JSON.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) model: ModelSourceArgs,
}
