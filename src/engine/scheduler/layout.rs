//! A step, laid out: what each job is fed, by the rules of [`plan`].

use super::{Doing, Feed, Scheduler, Standing, plan};

impl<T> Scheduler<T> {
    /// Lays out a step of the rows, which were [`note`](Self::note)d: of at most `brief` symbols beside rows that decode.
    pub(in crate::engine) fn plan(&mut self, rows: &[Standing], brief: usize, feeds: &mut Vec<Feed>) {
        feeds.clear();
        self.prompts.clear();
        let mut decoding = 0;
        for (row, standing) in rows.iter().enumerate() {
            let Some(Some(slot)) = self.slots.get(standing.slot) else { continue };
            match standing.doing {
                Doing::Busy | Doing::Paused { .. } => {}
                Doing::Decoding(symbols) => {
                    decoding += symbols;
                    feeds.push(Feed { row, symbols });
                }
                Doing::Prefilling(left) => {
                    self.prompts.push(plan::Prompt { row, rank: slot.rank, turn: slot.turn, left, fed: 0 });
                }
                Doing::Encoding { blocks, block } => {
                    let left = blocks.saturating_mul(block);
                    self.prompts.push(plan::Prompt { row, rank: slot.rank, turn: slot.turn, left, fed: 0 });
                }
            }
        }
        let streams = rows.iter().any(|row| matches!(row.doing, Doing::Decoding(_) | Doing::Busy));
        let chunk = if streams { brief.clamp(1, self.rules.chunk) } else { self.rules.chunk };
        plan::share(chunk, decoding, &mut self.prompts, &mut self.turns);
        self.blocks.clear();
        for prompt in &self.prompts {
            let Some(standing) = rows.get(prompt.row) else { continue };
            let Some(Some(slot)) = self.slots.get_mut(standing.slot) else { continue };
            slot.turn = prompt.turn;
            if let Doing::Encoding { blocks, block } = standing.doing {
                let given = i64::try_from(prompt.fed).unwrap_or(i64::MAX);
                (slot.credit, self.account) = (slot.credit.saturating_add(given), self.account.saturating_add(given));
                let (row, rank, credit, left) = (prompt.row, slot.rank, slot.credit, blocks);
                self.blocks.push(plan::Blocks { row, rank, credit, block, left, run: 0 });
            } else if prompt.fed > 0 {
                feeds.push(Feed { row: prompt.row, symbols: prompt.fed });
            }
        }
        self.encode(rows, streams, feeds);
    }

    /// Lays out which blocks of documents run.
    fn encode(&mut self, rows: &[Standing], streams: bool, feeds: &mut Vec<Feed>) {
        if self.blocks.is_empty() {
            self.account = 0;
            return;
        }
        plan::encode(&mut self.account, streams, &mut self.blocks);
        for one in &self.blocks {
            if let Some(Some(slot)) = rows.get(one.row).and_then(|row| self.slots.get_mut(row.slot)) {
                slot.credit = one.credit;
            }
            if one.run > 0 {
                feeds.push(Feed { row: one.row, symbols: one.run });
            }
        }
    }
}
