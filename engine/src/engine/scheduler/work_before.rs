//! A lower bound of the work before a request, to find deadlines that cannot be met.

use super::{Demand, Scheduler};

impl<T> Scheduler<T> {
    /// Lowers the uncached symbols of a new request by those with which another request of its tenant may begin, too, and those of the
    /// requests that it goes before. The cache may hold them by the time the later one runs.
    pub(crate) fn discount(&mut self, demand: &mut Demand, priority: i32) {
        if demand.beginning.is_empty() {
            return;
        }
        let running = self.slots.iter().flatten().filter(|slot| slot.tenant == demand.tenant);
        let mut shared = running.map(|slot| demand.beginning.max_shared(&slot.beginning)).max().unwrap_or(0);
        let own_position = self.new_position(priority);
        for (position, other) in self.tenants.demands_of(&demand.tenant) {
            let both = demand.beginning.max_shared(&other.beginning);
            if position > own_position {
                other.leave_out(both);
            }
            shared = shared.max(both);
        }
        demand.leave_out(shared);
    }

    /// Returns a lower bound of the symbols that are fed before a new request is done, with its own. The requests that must
    /// end before it gets a row are at least the shortest ones of its tenant before it. Other tenants may lose rows to it.
    pub(crate) fn work_before(&self, demand: &Demand, priority: i32) -> usize {
        let position = self.new_position(priority);
        let waiting = self.tenants.before(&demand.tenant, position).map(|demand| demand.uncached.max(1));
        let own = self.slots.iter().flatten().filter(|slot| slot.tenant == demand.tenant);
        let running = own.map(|slot| slot.min_symbols);
        let mut before: Vec<usize> = waiting.chain(running).collect();
        before.sort_unstable();
        let ended = (before.len() + 1).saturating_sub(self.rules.rows);
        before[..ended].iter().sum::<usize>().saturating_add(demand.uncached.max(1))
    }
}
