//! The table of a worker's rows. A step takes rows by index, side by side; a request owns none, one or several of them.

use crate::{
    decode::contract::{SequenceRow, State},
    engine::request::Request,
};

/// The rows of a batch and their owners. Each request lists the indices of its rows in its own order.
#[derive(Default)]
pub(super) struct RowTable {
    pub(super) rows: Vec<SequenceRow>,
    /// For each row: the index of its request.
    pub(super) owners: Vec<usize>,
}

impl RowTable {
    /// Adds a row to a request, after those that it has.
    pub(super) fn push(&mut self, state: Box<dyn State>, request: usize, requests: &mut [Request]) {
        requests[request].row_indices.push(self.rows.len());
        self.rows.push(SequenceRow::new(state));
        self.owners.push(request);
    }

    /// Removes a row. The last row moves to its index.
    fn remove(&mut self, row: usize, requests: &mut [Request]) -> SequenceRow {
        let last = self.rows.len() - 1;
        requests[self.owners[row]].row_indices.retain(|&index| index != row);
        let moved = &mut requests[self.owners[last]].row_indices;
        moved.iter_mut().filter(|index| **index == last).for_each(|index| *index = row);
        self.owners.swap_remove(row);
        self.rows.swap_remove(row)
    }

    /// Replaces a request's rows by those at positions `order` of its list. Forks repeated rows, drops those left out.
    pub(super) fn reorder(&mut self, request: usize, requests: &mut [Request], order: impl Iterator<Item = usize>) {
        let before = std::mem::take(&mut requests[request].row_indices);
        let mut used = vec![false; before.len()];
        for position in order {
            let Some(&row) = before.get(position) else { continue };
            if std::mem::replace(&mut used[position], true) {
                let state = self.rows[row].state.fork();
                self.push(state, request, requests);
            } else {
                requests[request].row_indices.push(row);
            }
        }
        let mut dropped: Vec<usize> =
            before.into_iter().zip(used).filter(|(_, used)| !used).map(|(row, _)| row).collect();
        // from the last: the row that moves to a freed index is then not one to be dropped
        dropped.sort_unstable();
        for row in dropped.into_iter().rev() {
            self.remove(row, requests);
        }
    }

    /// Removes a request with all its rows. The last request moves to its index.
    pub(super) fn remove_request(
        &mut self,
        request: usize,
        requests: &mut Vec<Request>,
    ) -> (Request, Vec<SequenceRow>) {
        let mut rows = Vec::with_capacity(requests[request].row_indices.len());
        while let Some(&row) = requests[request].row_indices.last() {
            rows.push(self.remove(row, requests));
        }
        let removed = requests.swap_remove(request);
        if let Some(moved) = requests.get(request) {
            moved.row_indices.iter().for_each(|&row| self.owners[row] = request);
        }
        (removed, rows)
    }
}
