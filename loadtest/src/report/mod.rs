//! Reports of measurements: JSON, from which table and HTML are drawn.

mod bars;
mod chapters;
mod chart;
mod charts;
mod conditions;
mod cover;
pub mod data;
mod edits;
mod figures;
pub mod html;
mod points;
mod sections;
pub mod table;
mod tables;
mod warnings;
