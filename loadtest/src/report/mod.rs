//! What is told of a measurement: JSON, of which the table and the HTML are drawn.

mod chart;
mod charts;
mod conditions;
pub mod data;
mod figure_rows;
pub mod html;
pub mod table;
