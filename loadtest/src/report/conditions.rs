//! Conditions of a measurement on the page: server, models, workloads, and the settings in force.

use super::{
    data::Conditions,
    figures::{GOODPUT, NONE, TOGETHER_NS},
};
use crate::{
    client::models::{DocumentInfo, ModelInfo},
    load::workload::{SUMMARIZE, WorkloadInfo},
    units::{digits, time},
};
use maud::{Markup, html};

/// Draws the section, without its heading. Measurements that were made under the same conditions share a list.
pub(super) fn conditions(all: &[&Conditions]) -> Markup {
    let mut groups: Vec<Vec<&Conditions>> = Vec::new();
    for conditions in all {
        match groups.iter_mut().find(|group| group.first().is_some_and(|first| is_same_set_up(first, conditions))) {
            Some(group) => group.push(conditions),
            None => groups.push(vec![conditions]),
        }
    }
    html! { @for group in &groups { (set_up(group)) } }
}

/// True if the measurements differ at most in their time, models, workloads, and in requested boundaries.
fn is_same_set_up(a: &Conditions, b: &Conditions) -> bool {
    let other = Conditions {
        begun_unix_s: a.begun_unix_s,
        boundaries: a.boundaries,
        models: a.models.clone(),
        workloads: a.workloads.clone(),
        ..b.clone()
    };
    *a == other
}

/// Returns the different items in order.
pub(super) fn distinct<'a, T: PartialEq>(items: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
    let mut all: Vec<&T> = Vec::new();
    for item in items {
        if !all.contains(&item) {
            all.push(item);
        }
    }
    all
}

fn set_up(group: &[&Conditions]) -> Markup {
    let Some(first) = group.first() else { return html! {} };
    let Conditions { version, command, tester, note, seed, timeout_ns, .. } = first;
    let begun = group.iter().map(|conditions| conditions.begun_unix_s).min().unwrap_or_default();
    let models = distinct(group.iter().flat_map(|conditions| &conditions.models));
    let workloads = distinct(group.iter().flat_map(|conditions| &conditions.workloads));
    let boundaries = match (group.iter().any(|it| it.boundaries), group.iter().all(|it| it.boundaries)) {
        (false, _) => "not requested",
        (true, true) => "requested from the models whose gaps are split; their characters come one step later",
        (true, false) => {
            "requested, where gaps are split, from the models whose gaps are; their characters then come one step later"
        }
    };
    html! {
        dl {
            dt { "begun" } dd { (utc(begun)) }
            dt { "command" } dd { code { (command) } }
            dt { "server" } dd { (server(first)) }
            dt { "tester" } dd { "weir-loadtest " (version) ", " (tester) }
            @if let Some(note) = note { dt { "note" } dd { (note) } }
            dt { "seed" } dd { (seed) }
            dt { "time limit of a request" } dd { (time(*timeout_ns as f64)) }
            dt { "boundaries" } dd { (boundaries) }
            @if first.cancel_share > 0.0 { dt { "cancelled by the client" } dd { (digits(first.cancel_share * 100.0)) " % of the requests" } }
            dt { "a good request" } dd { "succeeds" @if let Some(objectives) = &first.objectives { ", with " (objectives) } }
            dt { "goodput" } dd { (GOODPUT) }
            dt { "times of a request" } dd { "from its intended start, unless the row says otherwise" }
            dt { "gaps" } dd {
                "between messages. Messages that were read less than " (time(TOGETHER_NS)) " apart came together: their gaps say nothing "
                "about the server, and are not drawn"
            }
        }
        (columns("model, as the server describes it", &models, |model| &model.name, &MODEL_ROWS))
        (columns("workload", &workloads, |workload| &workload.name, &WORKLOAD_ROWS))
        (settings(&workloads))
    }
}

/// Returns the server's address with its software and version, if it reports them.
pub(super) fn server(Conditions { server, software, .. }: &Conditions) -> String {
    match software {
        Some(software) => format!("{server}, {} {}", software.name, software.version),
        None => server.clone(),
    }
}

/// Row of a table: its name, and its value for one column.
type TableRow<T> = (&'static str, fn(&T) -> String);

const MODEL_ROWS: [TableRow<ModelInfo>; 17] = [
    ("family", |model| model.family.clone()),
    ("shape", |model| model.shape.clone()),
    ("parameters", |model| model.parameters.to_string()),
    ("pools", pools),
    ("dtype", |model| model.dtype.clone()),
    ("maximum prompt and answer", |model| match model.summarizes {
        true => NONE.into(),
        false => format!("{} {}", model.max_symbols, model.unit_name()),
    }),
    ("maximum document", |model| {
        let padded = |documents: &DocumentInfo| if documents.padded { ", to which all are padded" } else { "" };
        documents(model, |documents| format!("{} tokens{}", documents.max_tokens, padded(documents)))
    }),
    ("maximum summary", |model| documents(model, |documents| format!("{} tokens", documents.max_summary_tokens))),
    ("maximum running", |model| format!("{} requests", model.rows)),
    ("maximum queued", |model| format!("{} requests", model.queue)),
    ("prefill chunk", |model| format!("{} {}", model.chunk, model.unit_name())),
    ("boundary wait", |model| format!("{} steps", model.boundary_wait)),
    ("target of a step that prefills", |model| time(model.step_ns as f64)),
    ("segment cache", |model| format!("{} bytes", model.cache_bytes)),
    ("maximum calls on a connection", |model| model.concurrent_streams.to_string()),
    ("default beam size, length penalty, no_repeat_ngram", |model| {
        let defaults = |it: &DocumentInfo| format!("{}, {}, {}", it.beam_size, it.length_penalty, it.no_repeat_ngram);
        documents(model, defaults)
    }),
    ("sha256 of the weights", |model| model.sha256.chars().take(16).collect::<String>() + "…"),
];

fn documents(model: &ModelInfo, describe: impl Fn(&DocumentInfo) -> String) -> String {
    model.documents.as_ref().map_or_else(|| NONE.into(), describe)
}

fn pools(model: &ModelInfo) -> String {
    match &model.documents {
        Some(DocumentInfo { poolings: 0, .. }) => "no".into(),
        Some(DocumentInfo { poolings, .. }) => format!("documents, {poolings} times"),
        // reports of earlier versions have only the shape of a model that summarizes
        None if model.summarizes => "see shape".into(),
        None => if model.pooled { "yes" } else { "no" }.into(),
    }
}

const WORKLOAD_ROWS: [TableRow<WorkloadInfo>; 10] = [
    ("kind", |workload| workload.kind.clone()),
    ("model", |workload| workload.model.clone().unwrap_or_else(|| "the measured one".into())),
    ("weight", |workload| digits(workload.weight)),
    ("text", |workload| workload.text.clone()),
    ("prompt, or document (characters)", |workload| workload.prompt_chars.clone()),
    ("common prefix (characters)", |workload| nonzero(workload.shared_prefix_chars)),
    ("different prefixes", |workload| nonzero(workload.prefixes)),
    ("answer (symbols unless stated)", |workload| workload.output_chars.clone()),
    ("chunk (characters)", |workload| workload.chunk_chars.map_or(NONE.into(), |chars| chars.to_string())),
    ("temperature, or beam", temperature),
];

fn nonzero(count: u64) -> String {
    if count > 0 { count.to_string() } else { NONE.into() }
}

/// Returns the settings that were sent, for reports without `settings`.
fn temperature(workload: &WorkloadInfo) -> String {
    match (workload.kind == SUMMARIZE, workload.temperature, workload.beam) {
        _ if !workload.settings.is_empty() => NONE.into(),
        (true, _, beam) => beam.map_or("model's default beam".into(), |beam| format!("beam {beam}")),
        (false, value, _) => value.map_or("server's default temperature".into(), |value| value.to_string()),
    }
}

/// Draws a table with a column for each item, without the rows that are empty for all of them; cells wrap.
fn columns<T>(corner: &str, items: &[&T], name: fn(&T) -> &String, rows: &[TableRow<T>]) -> Markup {
    let has_values = |(_, value): &&TableRow<T>| items.iter().any(|item| value(item) != NONE);
    html! {
        div.scroll { table.words {
            thead { tr { th { (corner) } @for item in items { th { (name(item)) } } } }
            tbody { @for (row, value) in rows.iter().filter(has_values) { tr { td { (row) } @for item in items { td { (value(item)) } } } } }
        } }
    }
}

fn settings(workloads: &[&WorkloadInfo]) -> Markup {
    let mut names: Vec<_> = workloads.iter().flat_map(|workload| workload.settings.keys()).collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        return html! {};
    }
    html! {
        div.scroll { table.words {
            thead { tr { th { "settings in force" } @for workload in workloads { th { (workload.name) } } } }
            tbody { @for name in names { tr {
                td { (name) }
                @for workload in workloads { td { (workload.settings.get(name).map_or(NONE, String::as_str)) } }
            } } }
        } }
    }
}

/// Formats a time in the proleptic Gregorian calendar, with Hinnant's `civil_from_days`.
pub(super) fn utc(seconds: u64) -> String {
    let days = seconds / 86_400;
    let second = seconds % 86_400;
    // counted from 1 March of the year 0 in eras of 400 years
    let z = days + 719_468;
    let era = z / 146_097;
    let day = z % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = year + era * 400 + u64::from(month >= 10);
    let month = if month < 10 { month + 3 } else { month - 9 };
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_follow_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59:59 UTC");
    }
}
