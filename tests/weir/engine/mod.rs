//! The engine and the life cycle of its jobs over a toy model: events, their order, and release of all resources.

use crate::{
    engine::{
        resume::models,
        toy_model::{
            BYTES, FAIL, JobOutput, MAX_SYMBOLS, NAN, PANIC, PANIC_AT_FINISH, PANIC_IN_MIDDLE, Toy, VOCABULARY, alone,
            assert_idle, eventually, generate, mix, read, read_timed, varied,
        },
    },
    support::settings,
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
mod editing;
mod limits;
mod resume;
mod scheduling;
mod session;
mod toy_model;
