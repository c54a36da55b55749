//! Charts of a comparison: gains with their intervals, and bits per character, on axes from 0.

use super::chart::{COLOURS, step};
use crate::comparison::{
    bootstrap::Gain,
    result::{ComparedModel, Gains, ModelComparison},
};
use maud::{Markup, html};

const WIDTH: f64 = 460.0;
/// Height of a row.
const ROW: f64 = 24.0;
/// Left end of the axis of gains.
const LEFT: f64 = 118.0;
/// Right end of an axis; figures stand to its right.
const RIGHT: f64 = 330.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 40.0;

type GainOf = fn(&Gains) -> Option<Gain>;

/// Gains of a comparison in the order in which they are drawn.
const GAINS: [(&str, GainOf); 6] = [
    ("whole answer", |gains| gains.total),
    ("first character", |gains| gains.time_to_first_char),
    ("per character", |gains| gains.char),
    ("encode document", |gains| gains.encode),
    ("per token", |gains| gains.decode_token),
    ("keystroke", |gains| gains.keystroke),
];

/// Linear axis from 0.
struct ZeroAxis {
    most: f64,
    left: f64,
}

impl ZeroAxis {
    /// Builds an axis on which `most` is near the right end. An axis of zeros goes to 1.
    fn new(most: f64, left: f64) -> Self {
        Self { most: if most > 0.0 { most * 1.04 } else { 1.0 }, left }
    }

    fn x(&self, value: f64) -> f64 {
        self.left + (value / self.most).clamp(0.0, 1.0) * (RIGHT - self.left)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let step = step(self.most / 4.0);
        let most = self.most;
        (0..).map(move |k| f64::from(k) * step).take_while(move |tick| *tick <= most)
    }

    /// Draws the ticks and the label below `bottom`.
    fn draw(&self, bottom: f64, label: &str) -> Markup {
        html! {
            @for tick in self.ticks() {
                line.grid x1=(self.x(tick)) x2=(self.x(tick)) y1=(TOP) y2=(bottom) {}
                text x=(self.x(tick)) y=(bottom + 14.0) text-anchor="middle" { (round(tick)) }
            }
            text x=((self.left + RIGHT) / 2.0) y=(bottom + 34.0) text-anchor="middle" { (label) }
        }
    }
}

/// Formats a tick without needless decimals.
fn round(tick: f64) -> String {
    let text = format!("{tick:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Draws the measured gains of all models but the baseline, with their intervals.
pub(super) fn gains(comparison: &ModelComparison) -> Markup {
    let of_model = |model: &ComparedModel| -> Vec<(&'static str, Gain)> {
        let gains = model.gains.as_ref();
        GAINS.iter().filter_map(|(name, gain)| Some((*name, gain(gains?)?))).collect()
    };
    let models: Vec<_> = comparison.models.iter().map(|model| (model, of_model(model))).collect();
    let all = || models.iter().flat_map(|(_, gains)| gains.iter().map(|(_, gain)| gain));
    let Some(most) = all().map(|gain| gain.high.unwrap_or(gain.ratio)).reduce(f64::max) else { return html! {} };
    let axis = ZeroAxis::new(most.max(1.0), LEFT);
    let has_names = comparison.models.len() > 2;
    let mut rows = Vec::new();
    let mut y = TOP;
    for (colour, (model, gains)) in models.iter().enumerate().filter(|(_, (_, gains))| !gains.is_empty()) {
        if has_names {
            rows.push(html! { text.name x="2" y=(y + 16.0) { (model.model) } });
            y += ROW;
        }
        for (name, gain) in gains {
            rows.push(interval(&axis, name, gain, y + ROW / 2.0, colour));
            y += ROW;
        }
    }
    let title = format!("Measured gain over {}", comparison.baseline);
    html! {
        figure {
            figcaption { strong { (title) } }
            svg.chart viewBox=(format!("0 0 {WIDTH} {}", y + BOTTOM)) role="img" aria-label=(title) {
                (axis.draw(y, "times as fast"))
                line.mark x1=(axis.x(1.0)) x2=(axis.x(1.0)) y1=(TOP) y2=(y) {}
                text.mark x=(axis.x(1.0)) y=(TOP - 5.0) text-anchor="middle" { "equally fast" }
                @for row in &rows { (row) }
            }
        }
    }
}

fn interval(axis: &ZeroAxis, name: &str, gain: &Gain, y: f64, colour: usize) -> Markup {
    let style = colour % COLOURS;
    let text = match gain.low.zip(gain.high) {
        Some((low, high)) => format!("{:.2}× ({low:.2} to {high:.2})", gain.ratio),
        None => format!("{:.2}×", gain.ratio),
    };
    html! {
        text x=(LEFT - 8.0) y=(y + 4.0) text-anchor="end" { (name) }
        @if let Some((low, high)) = gain.low.zip(gain.high) {
            line class=(format!("interval s{style}")) x1=(axis.x(low)) x2=(axis.x(high)) y1=(y) y2=(y) {}
        }
        circle class=(format!("f{style}")) cx=(axis.x(gain.ratio)) cy=(y) r="4.5" {}
        text x=(RIGHT + 8.0) y=(y + 4.0) { (text) }
    }
}

/// Draws the bits per character of all models that have them.
pub(super) fn bits(comparison: &ModelComparison) -> Markup {
    let models =
        || comparison.models.iter().enumerate().filter_map(|(index, model)| Some((index, model, model.bits_per_char?)));
    let Some(most) = models().map(|(_, _, bits)| bits).reduce(f64::max) else { return html! {} };
    let axis = ZeroAxis::new(most, 8.0);
    let first = models().map(|(_, _, bits)| bits).next().unwrap_or(most);
    let text = comparison.scored.as_deref().unwrap_or("a text that the report does not name");
    let bottom = TOP + 2.0 * ROW * models().count() as f64;
    html! {
        figure {
            figcaption { strong { "Bits per character: fewer is better" } }
            svg.chart viewBox=(format!("0 0 {WIDTH} {}", bottom + BOTTOM)) role="img" aria-label="Bits per character" {
                (axis.draw(bottom, "bits per character"))
                @for (row, (index, model, bits)) in models().enumerate() {
                    @let y = TOP + 2.0 * ROW * row as f64;
                    text.name x=(axis.left + 4.0) y=(y + 15.0) { (model.model) }
                    rect class=(format!("f{}", index % COLOURS)) x=(axis.left) y=(y + ROW - 3.0) width=(axis.x(bits) - axis.left) height="18" {}
                    text x=(axis.x(bits) + 6.0) y=(y + ROW + 10.0) {
                        (format!("{bits:.3}"))
                        @if row > 0 && first > 0.0 { (format!(" ({:+.1} %)", (bits / first - 1.0) * 100.0)) }
                    }
                }
            }
            p.note { "Scored by the server on " (text) ". The bits of a short text depend on the text as much as on the model." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_of_zeros_has_ticks() {
        let ticks = |most| ZeroAxis::new(most, LEFT).ticks().count();
        assert_eq!((ticks(0.0), ticks(0.02), ticks(2.0)), (3, 3, 3));
        assert_eq!(ZeroAxis::new(0.0, LEFT).x(0.0), LEFT);
    }
}
