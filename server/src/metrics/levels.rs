//! Metrics of the levels of chunking. A model without several levels has no such series, so they begin with the first request that
//! has levels.

use super::{
    family::{Labels, SortedFamily},
    series::{FloatGauge, weir},
};
use crate::decode::usage::{MAX_LEVELS, Timing, Usage};
use prometheus_client::{metrics::counter::Counter, registry::Registry};

/// The metrics of all models' levels. Clones share their series.
#[derive(Debug, Clone, Default)]
pub(super) struct LevelFamilies {
    chunks: SortedFamily<Counter>,
    middle_steps: SortedFamily<Counter>,
    shortening: SortedFamily<FloatGauge>,
    /// Symbols of the requests that are counted. Not rendered.
    symbols: SortedFamily<Counter>,
}

impl LevelFamilies {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Self::default();
        let help = "Chunks of finished requests, by level of chunking: 1 is the outermost";
        registry.register(weir!("level_chunks"), help, families.chunks.clone());
        let help =
            "Runs of the layers inside a level, summed over finished requests; a shared run counts for each request";
        registry.register(weir!("level_middle_steps"), help, families.middle_steps.clone());
        let help = "Mean chunk length: in characters at level 1, and in chunks of the enclosing level at inner levels";
        registry.register(weir!("level_shortening_factor"), help, families.shortening.clone());
        families
    }

    /// Counts a finished request, if it has several levels.
    pub(super) fn count(&self, model: &str, usage: &Usage, timing: &Timing) {
        let levels = usage.by_level(timing);
        if levels.is_empty() {
            return;
        }
        let symbols = self.symbols.get_or_create(&labels(model, 0));
        symbols.inc_by((usage.prompt_chars + usage.generated_chars) as u64);
        let mut around = symbols.get();
        for (index, level) in levels.iter().enumerate() {
            let labels = labels(model, index + 1);
            let chunks = self.chunks.get_or_create(&labels);
            chunks.inc_by(level.chunks as u64);
            self.middle_steps.get_or_create(&labels).inc_by(level.middle_steps as u64);
            let own = chunks.get();
            self.shortening.get_or_create(&labels).set(around as f64 / own as f64);
            around = own;
        }
    }

    pub(super) fn remove(&self, model: &str) {
        for level in 0..=MAX_LEVELS {
            let labels = labels(model, level);
            self.chunks.remove(&labels);
            self.middle_steps.remove(&labels);
            self.shortening.remove(&labels);
            self.symbols.remove(&labels);
        }
    }
}

fn labels(model: &str, level: usize) -> Labels {
    vec![("model_name", model.to_owned()), ("level", level.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::usage::LevelCounts;
    use prometheus_client::encoding::text;

    #[test]
    fn levels_are_counted_for_models_that_have_several() {
        let mut registry = Registry::default();
        let families = LevelFamilies::register(&mut registry);
        let render = || {
            let mut out = String::new();
            text::encode(&mut out, &registry).unwrap();
            out
        };
        let counted = |prompt_chars, chunks: &[usize], steps: &[usize]| {
            let usage = Usage { prompt_chars, levels: LevelCounts::from(chunks), ..Usage::default() };
            families.count("m", &usage, &Timing { level_steps: LevelCounts::from(steps), ..Timing::default() });
            let text = render();
            let lines = text.lines().filter(|line| line.starts_with("weir_level_"));
            lines.map(|line| line.replace("model_name=\"m\",", "")).collect::<Vec<_>>()
        };
        assert_eq!(counted(9, &[3], &[3]), Vec::<String>::new());
        counted(20, &[8, 4], &[7, 4]);
        let expected = [
            "weir_level_chunks_total{level=\"1\"} 10",
            "weir_level_chunks_total{level=\"2\"} 5",
            "weir_level_middle_steps_total{level=\"1\"} 9",
            "weir_level_middle_steps_total{level=\"2\"} 5",
            "weir_level_shortening_factor{level=\"1\"} 2.5",
            "weir_level_shortening_factor{level=\"2\"} 2.0",
        ];
        assert_eq!(counted(5, &[2, 1], &[2, 1]), expected);
        families.remove("m");
        assert!(!render().contains("{model_name=\"m\""));
        assert_eq!(counted(6, &[3, 1], &[3, 1])[4], "weir_level_shortening_factor{level=\"1\"} 2.0");
    }
}
