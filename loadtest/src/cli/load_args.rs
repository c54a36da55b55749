//! Options that all commands with loads share.

use super::{output::OutputArgs, run_length::RunLengthArgs, server::ServerArgs, workload::WorkloadArgs};

#[derive(Debug, Clone, clap::Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) workload: WorkloadArgs,
    #[command(flatten)]
    pub(super) length: RunLengthArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}
