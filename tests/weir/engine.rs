//! The engine and the life of one job, over a toy model: what is told, in what order, and that everything is given back.

mod company;
mod ends;
mod gather;
mod limits;
mod memory;
mod observer;
mod resume;
mod session;
mod toy;
