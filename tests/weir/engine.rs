//! The engine and the life of one job, over a toy model: what is told, in what order, and that everything is given back.

mod caching;
mod company;
mod ends;
mod gather;
mod horizon;
mod jobs;
mod limits;
mod making_way;
mod memory;
mod observer;
mod order;
mod resume;
mod session;
mod slow;
mod summaries;
mod toy;
