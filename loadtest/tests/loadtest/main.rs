//! The tester against servers whose delays are known.

mod commands;
mod honesty;
mod pairs;
mod report;
mod support;
