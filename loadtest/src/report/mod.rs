//! Reports of measurements: JSON, from which table and HTML are drawn.

mod chart;
mod charts;
mod conditions;
pub mod data;
mod figures;
pub mod html;
pub mod table;
