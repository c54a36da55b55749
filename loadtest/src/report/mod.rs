//! What is told of a measurement: JSON, of which the table and the HTML are drawn.

mod chart;
mod charts;
mod conditions;
pub mod document;
pub mod html;
mod rows;
pub mod table;
