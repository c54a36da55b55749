//! Reports of measurements: JSON, from which table and HTML are drawn.

mod chart;
mod charts;
mod conditions;
pub mod data;
mod figure_rows;
pub mod html;
pub mod table;
