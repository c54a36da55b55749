//! The parts of a chart.

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x: String,
    pub(super) y: String,
    /// True if the y axis is logarithmic. The x axis always is, to base 2.
    pub(super) log_y: bool,
    /// Explanation of bars and hollow markers.
    pub(super) note: String,
    pub(super) lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub(super) label: String,
    pub(super) points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// 10th and 90th percentile.
    pub(super) bar: Option<(f64, f64)>,
    /// Best possible value.
    pub(super) limit: Option<f64>,
}
