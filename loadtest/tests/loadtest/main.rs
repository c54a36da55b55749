//! The tester against servers whose delays are known.

mod honesty;
mod support;
