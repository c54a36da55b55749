//! What is told of a measurement: JSON, of which the table and the HTML are drawn.

//pub mod chart;
pub mod document;
//pub mod html;
//pub mod table;
