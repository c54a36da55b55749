//! Whose rows are whose: all rows of a worker stand side by side, as a step takes them, and a job may have none, one, or several.
//! Each job knows the places of its own, in its own order.

use super::task::Task;
use crate::decode::contract::{SequenceRow, State};

/// The rows of a batch.
#[derive(Default)]
pub(super) struct Seats {
    pub(super) rows: Vec<SequenceRow>,
    /// The place of the job among the others, for each row.
    owners: Vec<usize>,
}

impl Seats {
    /// The job that a row is of.
    pub(super) fn owner(&self, row: usize) -> usize {
        self.owners[row]
    }

    /// Gives a job a row behind those that it has.
    pub(super) fn give(&mut self, state: Box<dyn State>, task: usize, tasks: &mut [Task]) {
        tasks[task].seats.push(self.rows.len());
        self.rows.push(SequenceRow::new(state));
        self.owners.push(task);
    }

    /// Takes a row from its job.
    pub(super) fn take(&mut self, row: usize, tasks: &mut [Task]) -> SequenceRow {
        let last = self.rows.len() - 1;
        tasks[self.owners[row]].seats.retain(|&seat| seat != row);
        // the last row takes the freed place
        let seats = &mut tasks[self.owners[last]].seats;
        seats.iter_mut().filter(|seat| **seat == last).for_each(|seat| *seat = row);
        self.owners.swap_remove(row);
        self.rows.swap_remove(row)
    }

    /// Gives a job's rows other places in its own order, each once or several times: one that stands there again is forked, one
    /// that does not stand there at all is dropped.
    pub(super) fn arrange(&mut self, task: usize, tasks: &mut [Task], order: impl Iterator<Item = usize>) {
        let before = std::mem::take(&mut tasks[task].seats);
        let mut used = vec![false; before.len()];
        for from in order {
            let Some(&seat) = before.get(from) else { continue };
            if std::mem::replace(&mut used[from], true) {
                let state = self.rows[seat].state.fork();
                self.give(state, task, tasks);
            } else {
                tasks[task].seats.push(seat);
            }
        }
        let mut dropped: Vec<usize> =
            before.into_iter().zip(used).filter(|(_, used)| !used).map(|(seat, _)| seat).collect();
        // from behind: what takes a freed place is not to be dropped
        dropped.sort_unstable();
        for seat in dropped.into_iter().rev() {
            self.take(seat, tasks);
        }
    }

    /// Takes a job from among the others, with all its rows.
    pub(super) fn leave(&mut self, task: usize, tasks: &mut Vec<Task>) -> (Task, Vec<SequenceRow>) {
        let mut rows = Vec::with_capacity(tasks[task].seats.len());
        while let Some(&seat) = tasks[task].seats.last() {
            rows.push(self.take(seat, tasks));
        }
        let left = tasks.swap_remove(task);
        if let Some(moved) = tasks.get(task) {
            moved.seats.iter().for_each(|&seat| self.owners[seat] = task);
        }
        (left, rows)
    }
}
