//! The engine and the life cycle of its jobs over a toy model: events, their order, and release of all resources.

use crate::{
    engine::{
        harness::{
            JobOutput, MAX_SYMBOLS, alone, assert_idle, eventually, generate, read, read_timed, started, varied,
        },
        resume::models,
    },
    support::settings,
    toy_model::{
        BYTES, FAIL, NAN, PANIC, PANIC_AT_FINISH, PANIC_IN_MIDDLE, SAMPLED, Toy, VOCABULARY, logits_after, mix,
    },
    *,
};
use proptest::collection::vec;
use weir::{
    engine::{
        Event, Terms,
        observer::{EngineEvent, Observer},
    },
    error::Code,
    models::usage::Timing,
};
mod caching;
mod check;
mod constraint;
mod editing;
mod harness;
mod limits;
mod resume;
mod scheduling;
mod session;
