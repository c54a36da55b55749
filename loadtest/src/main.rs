//! The `weir-loadtest` command.
fn main() {}
