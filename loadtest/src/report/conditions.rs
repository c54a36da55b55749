//! Under which conditions it was measured, on the page: server, models, workloads, and the settings in force.

use super::{data::Conditions, table::GOODPUT};
use crate::{
    client::models::{DocumentInfo, ModelInfo},
    load::workload::{SUMMARIZE, WorkloadInfo},
    units::{digits, time},
};
use maud::{Markup, html};

/// What stands where there is nothing to tell.
const NONE: &str = "–";

/// The whole section, without its heading.
pub(super) fn conditions(conditions: &Conditions) -> Markup {
    let Conditions { version, begun_unix_s, command, tester, note, seed, boundaries, timeout_ns, .. } = conditions;
    html! {
        dl {
            dt { "begun" } dd { (utc(*begun_unix_s)) }
            dt { "command" } dd { code { (command) } }
            dt { "server" } dd { (server(conditions)) }
            dt { "tester" } dd { "weir-loadtest " (version) ", " (tester) }
            @if let Some(note) = note { dt { "note" } dd { (note) } }
            dt { "seed" } dd { (seed) }
            dt { "time limit of a request" } dd { (time(*timeout_ns as f64)) }
            dt { "boundaries" } dd {
                @if *boundaries { "asked of the models whose gaps are split: their characters come one step later than without" } @else { "not asked for" }
            }
            @if conditions.cancel_share > 0.0 { dt { "given up by the client" } dd { (digits(conditions.cancel_share * 100.0)) " % of the requests" } }
            dt { "a good request" } dd { "ends well" @if let Some(objectives) = &conditions.objectives { ", with " (objectives) } }
            dt { "goodput" } dd { (GOODPUT) }
        }
        (turned("model, by the server's word", &conditions.models, |model| &model.name, &SAID))
        (turned("workload", &conditions.workloads, |workload| &workload.name, &ASKED))
        (settings(&conditions.workloads))
    }
}

/// Its address and, where it tells them, program and version.
pub(super) fn server(Conditions { server, software, .. }: &Conditions) -> String {
    match software {
        Some(software) => format!("{server}, {} {}", software.name, software.version),
        None => server.clone(),
    }
}

/// A row of a table: what it is, and how one column's is told.
type TableRow<T> = (&'static str, fn(&T) -> String);

const SAID: [TableRow<ModelInfo>; 17] = [
    ("family", |model| model.family.clone()),
    ("shape", |model| model.shape.clone()),
    ("parameters", |model| model.parameters.to_string()),
    ("pools", pools),
    ("dtype", |model| model.dtype.clone()),
    ("prompt and answer, at most", |model| match model.summarizes {
        true => NONE.into(),
        false => format!("{} characters", model.max_symbols),
    }),
    ("document, at most", |model| {
        let padded = |documents: &DocumentInfo| if documents.padded { ", to which all are padded" } else { "" };
        documents(model, |documents| format!("{} tokens{}", documents.max_tokens, padded(documents)))
    }),
    ("summary, at most", |model| documents(model, |documents| format!("{} tokens", documents.max_summary_tokens))),
    ("run at once, at most", |model| format!("{} requests", model.rows)),
    ("wait, at most", |model| format!("{} requests", model.queue)),
    ("a step's chunk", |model| format!("{} characters", model.chunk)),
    ("boundary wait", |model| format!("{} steps", model.boundary_wait)),
    ("step with prompts beside others, about", |model| time(model.step_ns as f64)),
    ("segment cache", |model| format!("{} bytes", model.cache_bytes)),
    ("calls on a connection, at most", |model| model.concurrent_streams.to_string()),
    ("beam size, length penalty, no_repeat_ngram, if not asked for", |model| {
        documents(model, |told| format!("{}, {}, {}", told.beam_size, told.length_penalty, told.no_repeat_ngram))
    }),
    ("sha256 of the weights", |model| model.sha256.chars().take(16).collect::<String>() + "…"),
];

fn documents(model: &ModelInfo, told: impl Fn(&DocumentInfo) -> String) -> String {
    model.documents.as_ref().map_or_else(|| NONE.into(), told)
}

fn pools(model: &ModelInfo) -> String {
    match &model.documents {
        Some(DocumentInfo { poolings: 0, .. }) => "no".into(),
        Some(DocumentInfo { poolings, .. }) => format!("its documents, {poolings} times"),
        // reports of earlier versions tell it of a model that reads documents by its shape alone
        None if model.summarizes => "by its shape".into(),
        None => if model.pooled { "yes" } else { "no" }.into(),
    }
}

const ASKED: [TableRow<WorkloadInfo>; 10] = [
    ("kind", |workload| workload.kind.clone()),
    ("model", |workload| workload.model.clone().unwrap_or_else(|| "the measured one".into())),
    ("weight", |workload| digits(workload.weight)),
    ("text", |workload| workload.text.clone()),
    ("prompt, or document (characters)", |workload| workload.prompt_chars.clone()),
    ("shared beginning (characters)", |workload| match workload.shared_prefix_chars {
        0 => NONE.into(),
        chars => chars.to_string(),
    }),
    ("different beginnings", |workload| match workload.prefixes {
        0 => NONE.into(),
        prefixes => prefixes.to_string(),
    }),
    ("answer (characters, if not said otherwise)", |workload| workload.output_chars.clone()),
    ("chunk (characters)", |workload| workload.chunk_chars.map_or(NONE.into(), |chars| chars.to_string())),
    ("temperature, or beam", |workload| temperature(workload)),
];

/// Of reports that tell no settings: what was sent.
fn temperature(workload: &WorkloadInfo) -> String {
    match (workload.kind == SUMMARIZE, workload.temperature, workload.beam) {
        _ if !workload.settings.is_empty() => NONE.into(),
        (true, _, beam) => beam.map_or("model's default beam".into(), |beam| format!("beam {beam}")),
        (false, warmth, _) => warmth.map_or("server's default temperature".into(), |warmth| warmth.to_string()),
    }
}

/// A table with a column for each of `all`, without the rows that say nothing of any; words wrap in it.
fn turned<T>(corner: &str, all: &[T], name: fn(&T) -> &String, rows: &[TableRow<T>]) -> Markup {
    let says = |(_, told): &&TableRow<T>| all.iter().any(|one| told(one) != NONE);
    html! {
        div.scroll { table.words {
            thead { tr { th { (corner) } @for one in all { th { (name(one)) } } } }
            tbody { @for (what, told) in rows.iter().filter(says) { tr { td { (what) } @for one in all { td { (told(one)) } } } } }
        } }
    }
}

/// The settings of generation that each workload's requests were made with.
fn settings(workloads: &[WorkloadInfo]) -> Markup {
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

/// A moment as people write it: the proleptic Gregorian calendar, by Hinnant's `civil_from_days`.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // counted from 1 March of the year 0, eras of 400 years
    let z = days + 719_468;
    let (era, day) = (z / 146_097, z % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month, carry) =
        (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 }, month >= 10);
    let year = year + era * 400 + u64::from(carry);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn moments_are_told_by_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59:59 UTC");
    }
}
