//! The chart renderer: line charts and histograms as SVG. Series differ in marker and dash as well as in colour, so that a grey
//! print is readable.
//!
//! [`picture`] draws a chart as a file.

use crate::format;
use std::fmt::Write;

const WIDTH: f64 = 520.0;
/// Height of a chart without its legend and note.
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;
/// Height of a line of the legend or note.
const LINE: f64 = 16.0;
/// Width of a character of a tick's label, rounded up.
const LETTER: f64 = 7.5;
/// Characters of a line of the legend, which is indented.
const LABEL_CHARS: usize = 66;
/// Characters of a line of the note.
const NOTE_CHARS: usize = 84;
/// Number of colours and marker shapes.
const COLOURS: usize = 7;
/// Number of dashes.
const DASHES: usize = 4;
/// Share of an axis that a label needs.
const LABEL_SHARE: f64 = 0.07;
/// Maximum labelled decades of a logarithmic axis.
const MAX_DECADES: usize = 8;
/// Maximum points of a series that have markers.
const MAX_MARKERS: usize = 40;

/// Styles of the charts on a light background: Okabe and Ito's colours without the lightest one, which colour-blind readers can
/// distinguish.
const STYLE: &str = "svg text{font:12px system-ui,sans-serif;fill:#1a1a1a}svg text.title{font-size:14px;font-weight:600}\
svg text.soft{fill:#555}line.grid{stroke:#ccc;stroke-width:.6}line.mark{stroke-width:1.2;stroke-dasharray:2 3}\
.s0,.s1,.s2,.s3,.s4,.s5,.s6{fill:none;stroke-width:1.8}.s0{stroke:#1a1a1a}.s1{stroke:#0072b2}.s2{stroke:#d55e00}.s3{stroke:#009e73}\
.s4{stroke:#a8488a}.s5{stroke:#3a8fc0}.s6{stroke:#b07a00}.d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 2}\
.d3{stroke-dasharray:10 3 2 3}.f0{fill:#1a1a1a}.f1{fill:#0072b2}.f2{fill:#d55e00}\
.f3{fill:#009e73}.f4{fill:#a8488a}.f5{fill:#3a8fc0}.f6{fill:#b07a00}";

/// Overrides of [`STYLE`] on a dark background.
const DARK_STYLE: &str = "svg text{fill:#e8e8e4}svg text.soft{fill:#aaa}line.grid{stroke:#444}.s0{stroke:#e8e8e4}\
.s1{stroke:#56b4e9}.s2{stroke:#f0884a}.s3{stroke:#3fcf9f}.s4{stroke:#e08fc4}.s5{stroke:#8cc8ee}.s6{stroke:#e6b03a}.f0{fill:#e8e8e4}\
.f1{fill:#56b4e9}.f2{fill:#f0884a}.f3{fill:#3fcf9f}.f4{fill:#e08fc4}.f5{fill:#8cc8ee}.f6{fill:#e6b03a}";

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear from 0.
    Linear,
    /// Logarithmic.
    Log,
    /// Logarithmic, with ticks at the measured values.
    Counts,
    /// Nanoseconds, logarithmic.
    LogTime,
}

/// Axis of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Label, with the unit.
    pub label: String,
    /// Scale.
    pub scale: Scale,
}

/// Line of a chart, or outline of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Label in the legend.
    pub label: String,
    /// Points (x, y), in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// True if points are the upper corners of steps instead of being joined.
    pub steps: bool,
    /// Number of the colour and the marker; they repeat.
    pub colour: usize,
    /// Number of the dash; they repeat.
    pub dash: usize,
}

/// Labelled vertical line.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Position on the x axis.
    pub x: f64,
    /// Label.
    pub label: String,
    /// Number of the colour.
    pub colour: usize,
}

/// Chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines.
    pub series: Vec<Series>,
    /// Vertical lines. A label that several have is drawn once.
    pub marks: Vec<Mark>,
    /// Meaning of the lines.
    pub note: String,
}

impl Axis {
    /// Builds an axis.
    pub fn new(label: &str, scale: Scale) -> Self {
        Self { label: label.into(), scale }
    }
}

impl Scale {
    fn is_log(self) -> bool {
        matches!(self, Self::Log | Self::Counts | Self::LogTime)
    }

    fn format(self, value: f64) -> String {
        match self {
            Self::LogTime => format::time(value),
            _ if value != 0.0 && !(1e-3..1e7).contains(&value) => format!("{value:.1e}").replace(".0e", "e"),
            _ if value.fract() == 0.0 => format!("{value:.0}"),
            _ => format::digits(value),
        }
    }
}

/// Draws a chart as an SVG file for light and dark pages.
pub fn picture(chart: &Chart) -> String {
    let Drawing { body, height } = Drawing::new(chart);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\
         <style>{STYLE}.back{{fill:#fff}}@media(prefers-color-scheme:dark){{{DARK_STYLE}.back{{fill:#161616}}}}</style>\
         <rect class=\"back\" width=\"100%\" height=\"100%\"/>{body}</svg>\n"
    )
}

/// Makes a text safe in XML and HTML: escapes marks, and replaces characters that XML does not allow.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

struct ScaledAxis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Coordinate of `low`.
    from: f64,
    /// Coordinate of `high`.
    to: f64,
    ticks: Vec<f64>,
}

impl ScaledAxis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let drawn: Vec<_> = values.filter(|value| value.is_finite() && (*value > 0.0 || !scale.is_log())).collect();
        let min = drawn.iter().copied().reduce(f64::min).unwrap_or(1.0);
        let max = drawn.iter().copied().reduce(f64::max).unwrap_or(10.0);
        if scale.is_log() {
            let low = min.log10() - 0.04;
            let high = (max.log10() + 0.04).max(min.log10() + 0.3);
            return Self { scale, low, high, from, to, ticks: log_ticks(scale, drawn, low, high) };
        }
        let max = if max > 0.0 { max } else { 1.0 };
        let step = step(max / 4.0);
        let count = (max * 1.04 / step).floor() as u32;
        let ticks = (0..=count).map(|k| f64::from(k) * step).collect();
        Self { scale, low: 0.0, high: max * 1.04, from, to, ticks }
    }

    fn coordinate(&self, value: f64) -> f64 {
        let value = if self.scale.is_log() { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }
}

/// Rounds a step up to 1, 2 or 5 times a power of ten.
fn step(rough: f64) -> f64 {
    let size = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|k| k * size).find(|step| *step >= rough).unwrap_or(size)
}

/// Returns the ticks of a logarithmic axis: counts at the measured values that leave room for labels, others at round values.
fn log_ticks(scale: Scale, mut values: Vec<f64>, low: f64, high: f64) -> Vec<f64> {
    if scale != Scale::Counts || values.is_empty() {
        return decades(low, high);
    }
    values.sort_by(f64::total_cmp);
    values.dedup_by(|next, before| next.log10() - before.log10() < LABEL_SHARE * (high - low));
    values
}

/// Returns 1, 2 and 5 times every power of ten between two logarithms; only some powers if there are many, and more multiples if
/// there would be fewer than two ticks, because one label does not show a scale.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let decades = low.floor() as i32..=high.ceil() as i32;
    let every = decades.clone().count().div_ceil(MAX_DECADES);
    let multiples = |factors: &'static [f64]| -> Vec<f64> {
        let decades = decades.clone().step_by(every);
        let values = decades.flat_map(|decade| factors.iter().map(move |k| k * 10f64.powi(decade)));
        values.filter(|value| (low..=high).contains(&value.log10())).collect()
    };
    let usual = multiples(if high - low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] });
    if usual.len() > 1 { usual } else { multiples(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]) }
}

/// Splits a text into lines of at most `width` characters; a longer word gets a line for itself.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= width) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Elements of a chart, and the height that they take.
struct Drawing {
    body: String,
    height: f64,
}

impl Drawing {
    fn new(chart: &Chart) -> Self {
        let points = || chart.series.iter().flat_map(|series| &series.points);
        let xs = points().map(|(x, _)| *x).chain(chart.marks.iter().map(|mark| mark.x));
        let x = ScaledAxis::new(chart.x.scale, xs, LEFT, WIDTH - RIGHT);
        let y = ScaledAxis::new(chart.y.scale, points().map(|(_, y)| *y), HEIGHT - BOTTOM, TOP);
        let mut drawing = Self { body: String::new(), height: HEIGHT };
        drawing.text("title", WIDTH / 2.0, 20.0, "middle", &chart.title);
        drawing.grid(chart, &x, &y);
        for (index, mark) in chart.marks.iter().enumerate() {
            let is_new = chart.marks[..index].iter().all(|other| other.label != mark.label);
            drawing.mark(mark, if is_new { &mark.label } else { "" }, index, &x);
        }
        chart.series.iter().for_each(|series| drawing.series(series, &x, &y));
        chart.series.iter().for_each(|series| drawing.legend(series));
        if !chart.note.is_empty() {
            wrapped(&chart.note, NOTE_CHARS).iter().for_each(|line| drawing.line_below("soft", 8.0, line));
        }
        drawing.height += 8.0;
        drawing
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Never fails: the writer is a `String`.
        let _ = self.body.write_fmt(element);
    }

    fn text(&mut self, class: &str, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escape(text);
        self.add(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// Adds a text below everything drawn so far.
    fn line_below(&mut self, class: &str, x: f64, text: &str) {
        self.height += LINE;
        self.text(class, x, self.height - 4.0, "start", text);
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"));
    }

    fn grid(&mut self, chart: &Chart, x: &ScaledAxis, y: &ScaledAxis) {
        for tick in &y.ticks {
            let at = y.coordinate(*tick);
            self.line("grid", (LEFT, at), (WIDTH - RIGHT, at));
            self.text("", LEFT - 6.0, at + 4.0, "end", &y.scale.format(*tick));
        }
        for tick in &x.ticks {
            let at = x.coordinate(*tick);
            self.line("grid", (at, TOP), (at, HEIGHT - BOTTOM));
            let label = x.scale.format(*tick);
            // the label of a tick near the edge stands left of it
            let middle = at.min(WIDTH - LETTER * label.chars().count() as f64 / 2.0);
            self.text("", middle, HEIGHT - BOTTOM + 16.0, "middle", &label);
        }
        self.text("", (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0, "middle", &chart.x.label);
        let middle = (HEIGHT - BOTTOM + TOP) / 2.0;
        let label = escape(&chart.y.label);
        self.add(format_args!(
            "<text transform=\"translate(12 {middle}) rotate(-90)\" text-anchor=\"middle\">{label}</text>"
        ));
    }

    /// Draws a vertical line; labels of several stand below each other, on the side with room.
    fn mark(&mut self, mark: &Mark, label: &str, index: usize, x: &ScaledAxis) {
        let at = x.coordinate(mark.x);
        let is_left = at < (LEFT + WIDTH) / 2.0;
        let (text, anchor) = if is_left { (at + 4.0, "start") } else { (at - 4.0, "end") };
        self.line(&format!("mark s{}", mark.colour % COLOURS), (at, TOP), (at, HEIGHT - BOTTOM));
        if !label.is_empty() {
            self.text("soft", text, TOP + 12.0 + 14.0 * index as f64, anchor, label);
        }
    }

    fn series(&mut self, series: &Series, x: &ScaledAxis, y: &ScaledAxis) {
        let Series { label, steps, .. } = series;
        let colour = series.colour % COLOURS;
        let class = format!("s{colour} d{}", series.dash % DASHES);
        let points: Vec<_> = series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
        let path = path(points.iter().map(|point| (x.coordinate(point.0), y.coordinate(point.1))), *steps);
        self.add(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        if *steps || points.len() > MAX_MARKERS {
            return;
        }
        for &(at, value) in points {
            let title = format!("{label}: {} at {}", y.scale.format(value), x.scale.format(at));
            self.marker(&format!("f{colour}"), colour, (x.coordinate(at), y.coordinate(value)), &title);
        }
    }

    /// Draws a marker around a coordinate; each colour has its own shape.
    fn marker(&mut self, class: &str, colour: usize, (x, y): (f64, f64), title: &str) {
        let shapes: [&[(f64, f64)]; COLOURS] = [
            &[(-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)],
            &[(0.0, -5.0), (4.5, 3.5), (-4.5, 3.5)],
            &[(0.0, -5.0), (4.5, 0.0), (0.0, 5.0), (-4.5, 0.0)],
            &[(0.0, 5.0), (4.5, -3.5), (-4.5, -3.5)],
            &[(-4.0, -1.5), (4.0, -1.5), (4.0, 1.5), (-4.0, 1.5)],
            &[(-1.5, -4.5), (1.5, -4.5), (1.5, 4.5), (-1.5, 4.5)],
            &[(-4.0, -2.0), (0.0, -4.5), (4.0, -2.0), (4.0, 2.0), (0.0, 4.5), (-4.0, 2.0)],
        ];
        let outline: Vec<_> = shapes[colour].iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        let title = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
        self.add(format_args!("<polygon class=\"{class}\" points=\"{}\">{title}</polygon>", outline.join(" ")));
    }

    fn legend(&mut self, series: &Series) {
        let colour = series.colour % COLOURS;
        let middle = self.height + LINE - 8.0;
        self.line(&format!("s{colour} d{}", series.dash % DASHES), (8.0, middle), (44.0, middle));
        if !series.steps {
            self.marker(&format!("f{colour}"), colour, (26.0, middle), "");
        }
        wrapped(&series.label, LABEL_CHARS).iter().for_each(|line| self.line_below("", 52.0, line));
    }
}

/// Returns the data of a path through coordinates: joined, or along steps.
fn path(points: impl Iterator<Item = (f64, f64)>, steps: bool) -> String {
    let mut path = String::new();
    for (x, y) in points {
        path += &match (path.is_empty(), steps) {
            (true, _) => format!("M{x:.1} {y:.1}"),
            (false, true) => format!("H{x:.1}V{y:.1}"),
            (false, false) => format!("L{x:.1} {y:.1}"),
        };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, scale: Scale) -> Chart {
        let series = vec![Series { label: "a <b>".into(), points, steps: false, colour: 8, dash: 5 }];
        let marks = vec![Mark { x: 2.0, label: "knee".into(), colour: 0 }];
        let x = Axis::new("rate (requests/s)", scale);
        Chart { title: "t".into(), x, y: Axis::new("time", Scale::LogTime), series, marks, note: "n".into() }
    }

    #[test]
    fn charts_of_anything_are_drawn_within_their_frame() {
        for scale in [Scale::Linear, Scale::Log, Scale::Counts, Scale::LogTime] {
            for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, 5e6), (1e9, f64::NAN)], vec![(3.0, 1e3), (5.0, 1e12)]] {
                let drawn = picture(&chart(points, scale));
                assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
                let coordinates = drawn.split("x1=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
                assert!(coordinates.map(|x| x.parse::<f64>().unwrap()).all(|x| (0.0..=WIDTH).contains(&x)));
            }
        }
    }

    #[test]
    fn labels_of_ticks_leave_room_for_the_axis_title() {
        // The title is 12 units from the edge and its letters are as high; a digit is 7 units wide.
        let room = LEFT - 6.0 - 18.0;
        for scale in [Scale::Linear, Scale::Log, Scale::LogTime] {
            for exponent in -2..8 {
                let most = 3.7 * 10f64.powi(exponent);
                for tick in ScaledAxis::new(scale, [0.3 * most, most].into_iter(), 0.0, 1.0).ticks {
                    let label = scale.format(tick);
                    assert!(label.chars().count() as f64 * 7.0 <= room, "{label} is too long for {room} units");
                }
            }
        }
    }

    #[test]
    fn labels_of_ticks_end_within_the_chart() {
        for exponent in 3..10 {
            let drawn =
                picture(&chart(vec![(10f64.powi(exponent - 2), 1e6), (10f64.powi(exponent), 1e6)], Scale::LogTime));
            let ticks = drawn.split("<text class=\"\" x=\"").skip(1);
            for tick in ticks.filter(|tick| tick.contains("text-anchor=\"middle\"")) {
                let middle: f64 = tick.split('"').next().unwrap().parse().unwrap();
                let label = tick.split_once('>').and_then(|(_, rest)| rest.split_once('<')).unwrap().0;
                let end = middle + LETTER * label.chars().count() as f64 / 2.0;
                assert!(end <= WIDTH + 0.05, "{label} ends at {end}");
            }
        }
    }

    #[test]
    fn a_label_of_several_marks_is_drawn_once() {
        let mut chart = chart(vec![(1.0, 1e6), (9.0, 1e6)], Scale::Linear);
        chart.marks.push(Mark { x: 5.0, label: "knee".into(), colour: 1 });
        assert_eq!(picture(&chart).matches(">knee<").count(), 1);
        assert_eq!(picture(&chart).matches("class=\"mark ").count(), 2);
    }

    #[test]
    fn axes_have_few_ticks_in_round_numbers() {
        let axis = ScaledAxis::new(Scale::Linear, [0.0, 73.0].into_iter(), 0.0, 1.0);
        assert_eq!(axis.ticks, [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(decades(0.0, 1.0), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(decades(3.0, 6.0), [1e3, 1e4, 1e5, 1e6]);
        for exponent in 0..1000 {
            let min = 10f64.powf(f64::from(exponent) / 250.0);
            let axis = ScaledAxis::new(Scale::LogTime, [min, min * 1.1].into_iter(), 0.0, 1.0);
            assert!(axis.ticks.len() > 1, "one label from {min}: {:?}", axis.ticks);
        }
        assert!(decades(-30.0, 30.0).len() <= MAX_DECADES);
    }

    #[test]
    fn labels_are_escaped_and_long_ones_wrapped() {
        let mut chart = chart(vec![(1.0, 1e6)], Scale::Log);
        let drawn = picture(&chart);
        assert!(drawn.contains(">a &lt;b&gt;</text>") && !drawn.contains("<b>"), "{drawn}");
        let height = Drawing::new(&chart).height;
        chart.series[0].label = ["word"; 20].join(" ");
        assert_eq!(Drawing::new(&chart).height, height + LINE);
        assert_eq!(escape("a\0\u{ffff}\"&"), "a\u{fffd}\u{fffd}&quot;&amp;");
        assert_eq!(wrapped("aa bb cccccc d", 5), ["aa bb", "cccccc", "d"]);
    }
}
