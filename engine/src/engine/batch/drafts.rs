//! The part of a step that concerns drafts: which rows feed one, how far, and what a step with them costs.

use super::Batch;
use crate::{
    decode::speculation::DraftBudget,
    engine::{
        recovery::guarded,
        request::{Request, RequestKind},
        scheduler::{PromptLimits, RowActivity},
    },
};

impl Batch {
    /// Adds drafts to the planned feeds of rows that decode, as far as they pay and the step has room. The limits of prompts next to
    /// other rows are limits of drafts, too.
    pub(in crate::engine) fn plan_drafts(&mut self, limits: PromptLimits) {
        let Self { requests, statuses, feeds, inner, step_times, guess_rates, .. } = self;
        let decoding = |request: usize| match statuses.get(request).map(|status| status.activity) {
            Some(RowActivity::Decoding(rows)) => rows,
            _ => 0,
        };
        let symbols: usize = feeds.iter().map(|feed| feed.symbols).sum();
        let rows: usize = feeds.iter().map(|feed| decoding(feed.request)).sum();
        let searches = statuses.iter().any(|status| matches!(status.activity, RowActivity::Searching(_)));
        let limit = if searches { limits.searching.min(limits.decoding) } else { limits.decoding };
        let mut budget = DraftBudget {
            free: inner.limits.chunk.min(limit).saturating_sub(symbols),
            fixed: step_times.fixed(),
            symbols,
            expected: rows as f64,
            feeds_prompts: symbols > rows,
        };
        for feed in feeds.iter_mut().filter(|feed| decoding(feed.request) > 0) {
            if let Some(Request { kind: RequestKind::Text(text), outcome: None, .. }) = requests.get_mut(feed.request) {
                let session = &mut text.session;
                feed.symbols += guarded(|| Ok(session.draft(&mut budget, guess_rates))).unwrap_or_else(|_| {
                    session.drop_draft();
                    0
                });
            }
        }
    }

    /// Takes the drafts out of the planned feeds, if there are any.
    pub(in crate::engine) fn drop_drafts(&mut self) -> bool {
        let mut dropped = false;
        for feed in &mut self.feeds {
            if let Some(Request { kind: RequestKind::Text(text), .. }) = self.requests.get_mut(feed.request)
                && text.session.has_draft()
            {
                text.session.drop_draft();
                feed.symbols = 1;
                dropped = true;
            }
        }
        dropped
    }

    /// Cuts each draft before its first boundary. Runs after the symbol step. A request whose draft cannot be cut fails alone.
    pub(super) fn cut_drafts(&mut self) {
        for &index in &self.fed {
            let request = &mut self.requests[self.row_table.owners[index]];
            if request.outcome.is_none() && has_draft(request) {
                let row = &mut self.row_table.rows[index];
                if let Err(error) = guarded(|| row.cut_draft()) {
                    request.outcome = Some(Err(error));
                }
            }
        }
    }

    /// Returns true if all rows that the step feeds decode.
    pub(super) fn only_decodes(&self) -> bool {
        let row_decodes = |&row: &usize| !self.feeds_chunk(row);
        !self.fed.is_empty() && self.encode_feeds.is_empty() && self.fed.iter().all(row_decodes)
    }

    /// Returns true if the row is fed a chunk of a prompt.
    pub(super) fn feeds_chunk(&self, row: usize) -> bool {
        self.row_table.rows[row].feed.len() > 1 && !has_draft(&self.requests[self.row_table.owners[row]])
    }
}

/// Returns true if the request's present or next feed has a draft.
pub(super) fn has_draft(request: &Request) -> bool {
    matches!(&request.kind, RequestKind::Text(text) if text.session.has_draft())
}
