//! Compares rows of several sequences, some of which share pages, with each row alone.

use super::{
    super::{Compute, ThreadPool, memory::Arena, pages::Page, testing::assert_fused_agree},
    runs::{RowSet, Runs, SPAN},
    tests::{pages, query_buffer, wave},
    *,
};
use proptest::{prelude::*, sample::select};
use std::{collections::BTreeSet, sync::Arc};

/// A sequence that shares its first pages with the first sequence, and the rows at its end.
#[derive(Debug, Clone)]
struct Fork {
    shared: usize,
    positions: usize,
    rows: usize,
    window: usize,
}

fn fork(most: usize) -> impl Strategy<Value = Fork> {
    (0..=most / POSITIONS, 1..=most, 1usize..=6, select(vec![1, 40, 200, usize::MAX]))
        .prop_map(|(shared, positions, rows, window)| Fork { shared, positions, rows: rows.min(positions), window })
}

/// Sequences of one layout, and queries for their last positions.
struct Forks {
    layout: PageLayout,
    pages: Vec<Vec<Page>>,
    forks: Vec<Fork>,
    /// Sequence and position of each row.
    rows: Vec<(usize, usize)>,
    block: usize,
    table: Option<DistanceTable>,
}

/// Maximum variants of a query.
const VARIANTS: usize = 40;

impl Forks {
    fn new(dtype: CacheDtype, head_dim: usize, forks: &[Fork]) -> Self {
        let layout = PageLayout { dtype, layers: 1, heads: 1, head_dim, output: 0 };
        let most = forks.iter().map(|fork| fork.positions).max().unwrap_or(1);
        let floats = |seed, count: usize| (0..count * head_dim).map(|i| wave(seed, i)).collect::<Vec<_>>();
        let mut all: Vec<Vec<Page>> = Vec::new();
        for (sequence, fork) in forks.iter().enumerate() {
            let mut own =
                pages(&layout, &floats(2 * sequence + 1, fork.positions), &floats(2 * sequence + 2, fork.positions));
            if let Some(first) = all.first() {
                // the shared pages are complete
                let shared = fork.shared.min(first.len() - 1).min(own.len() - 1);
                own[..shared].clone_from_slice(&first[..shared]);
            }
            all.push(own);
        }
        let table = DistanceTable::new(dtype, 1, head_dim, most, Arc::new(Arena::new(1)));
        table
            .cover(most, |range| range.flat_map(|d| (0..head_dim).map(move |i| wave(d % 97, d + i))).collect())
            .unwrap();
        let rows = forks
            .iter()
            .enumerate()
            .flat_map(|(sequence, fork)| (fork.positions - fork.rows..fork.positions).map(move |p| (sequence, p)))
            .take(ROW_TILE)
            .collect();
        Self { layout, pages: all, forks: forks.to_vec(), rows, block: usize::MAX, table: Some(table) }
    }

    /// Attends for all rows in one call, or for each row in a call of its own.
    fn attend(&self, isa: Isa, together: bool) -> Vec<f32> {
        let dim = self.layout.head_dim;
        let compute = Compute { isa, pool: Arc::new(ThreadPool::new(1)) };
        let numbers = |seed, count: usize| (0..count * dim).map(|i| wave(seed, i)).collect::<Vec<_>>();
        let contents = query_buffer(&compute, &self.layout, &numbers(50, self.rows.len() * VARIANTS));
        let distances = query_buffer(&compute, &self.layout, &numbers(51, self.rows.len()));
        let head = AttentionHead {
            block: self.block,
            distances: self.table.as_ref(),
            bias: Bias::Slope(0.01),
            ..AttentionHead::new(&self.layout, 0, 0)
        };
        let row = |(index, &(sequence, position)): (usize, &(usize, usize))| {
            let first_key = (position + 1).saturating_sub(self.forks[sequence].window);
            let count = position / self.block - first_key / self.block + 1;
            QueryRow {
                keys: KeyPages { pages: &self.pages[sequence], start: 0, recently_read: index % 2 == 0 },
                first_key,
                position,
                content: QueryVariants::new(&contents, index * VARIANTS, 1, count),
                distance: distances.get(index),
            }
        };
        let rows: Vec<_> = self.rows.iter().enumerate().map(row).collect();
        let mut out = vec![f32::NAN; rows.len() * dim];
        let mut outs: Vec<_> = out.chunks_exact_mut(dim).collect();
        if together {
            attend(isa, &head, &rows, &mut outs);
        } else {
            rows.iter().zip(&mut outs).for_each(|(row, out)| attend(isa, &head, &[*row], std::array::from_mut(out)));
        }
        out
    }

    fn check(&self) {
        let all = Isa::all().into_iter().map(|isa| {
            let together = self.attend(isa, true);
            assert!(together.iter().all(|x| x.is_finite()));
            assert!(together == self.attend(isa, false), "sharing changes bits: {}", isa.name());
            (isa, together)
        });
        assert_fused_agree(&all.collect::<Vec<_>>());
    }
}

/// A NaN of one row stays in that row, also on tiles, and nothing of a call affects the next one on the same thread.
#[test]
fn a_nan_stays_in_its_row_and_in_its_call() {
    for dtype in CacheDtype::ALL {
        let forks = [Fork { shared: 0, positions: 70, rows: 6, window: usize::MAX }];
        let good = Forks::new(dtype, 64, &forks);
        let mut bad = Forks::new(dtype, 64, &forks);
        let infinite = vec![f32::INFINITY; 64];
        write(&bad.layout, bad.pages[0][67 / POSITIONS].bytes_mut().unwrap(), 0, 67 % POSITIONS, &infinite, &infinite);
        bad.rows.iter().for_each(|&(_, position)| assert!(position >= 64));
        for isa in Isa::all() {
            let expected = std::thread::scope(|scope| scope.spawn(|| good.attend(isa, true)).join().unwrap());
            let out = bad.attend(isa, true);
            for ((&(_, position), row), good) in bad.rows.iter().zip(out.chunks(64)).zip(expected.chunks(64)) {
                let name = isa.name();
                assert!(if position < 67 { row == good } else { row.iter().all(|x| x.is_nan()) }, "{name} {position}");
            }
            let narrow = Forks::new(CacheDtype::F32, 12, &forks);
            narrow.attend(isa, true);
            assert!(good.attend(isa, true) == expected, "{dtype:?} {}", isa.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn rows_that_share_pages_have_the_bits_of_rows_alone(
        dtype in select(&CacheDtype::ALL[..]), head_dim in select(vec![12, 16, 32, 48, 64, 80, 128, 192, 256]),
        forks in prop::collection::vec(fork(1200), 1..8), block in select(vec![32, 64, usize::MAX]), distances: bool,
    ) {
        let mut case = Forks::new(dtype, head_dim, &forks);
        case.block = block;
        if !distances {
            case.table = None;
        }
        case.check();
    }

    /// Every page of every row is in one run, and all rows of a run share its pages. Without windows, no two runs have the same
    /// page.
    #[test]
    fn runs_partition_the_pages_of_all_rows(mut forks in prop::collection::vec(fork(1500), 1..8), windows: bool) {
        if !windows {
            forks.iter_mut().for_each(|fork| fork.window = usize::MAX);
        }
        let case = Forks::new(CacheDtype::F32, 1, &forks);
        let rows: Vec<_> = case.rows.iter().map(|&(sequence, position)| QueryRow {
            keys: KeyPages { pages: &case.pages[sequence], start: 0, recently_read: false },
            first_key: (position + 1).saturating_sub(forks[sequence].window),
            position,
            ..QueryRow::default()
        }).collect();
        for first in (0..1500).step_by(SPAN) {
            let span = Span::new(&rows, first);
            let mut runs = Runs::default();
            span.split(&mut runs);
            let mut expected = BTreeSet::new();
            for row in span.active.iter() {
                expected.extend(span.pages(row).map(|page| (row, page)));
            }
            let mut found = BTreeSet::new();
            let mut pages = BTreeSet::new();
            for Run { rows, pages: run } in &runs.found {
                prop_assert!(*rows != RowSet::default());
                for page in run.clone() {
                    let ids: BTreeSet<_> = rows.iter().map(|row| span.bytes(row, page).as_ptr()).collect();
                    prop_assert_eq!(ids.len(), 1);
                    prop_assert!(pages.insert((page, ids.first().copied())) || windows, "two runs have the same page");
                    prop_assert!(rows.iter().all(|row| found.insert((row, page))), "two runs have the same page of a row");
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
