//! Self-contained HTML page of a report: it fetches nothing, runs no script, and prints well.

use super::{
    chapters::{Chapter, chapters},
    conditions::conditions,
    cover::cover,
    data::{Conditions, MeasurementReport},
    sections::sections,
};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// Draws the page of several reports: a first page with the results, a chapter for each group of models, and the conditions.
pub fn page(title: &str, reports: &[MeasurementReport]) -> String {
    let chapters = chapters(reports);
    let all: Vec<&Conditions> = reports.iter().map(|report| &report.conditions).collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (cover(title, &chapters))
                @for chapter in &chapters { (chapter_section(chapter)) }
                h2 id="conditions" { "Conditions" }
                (conditions(&all))
            }
        }
    };
    page.into_string()
}

fn chapter_section(chapter: &Chapter<'_>) -> Markup {
    html! {
        h2 id=(chapter.id) { (chapter.title()) }
        @for section in sections(chapter) {
            section id=(format!("{}-{}", chapter.id, section.anchor)) { ((section.draw)(chapter)) }
        }
    }
}
