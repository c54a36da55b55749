//! Successive halving compared with the published code, including the cases in which that code fails.

use super::super::{golden::Golden, support::*};
use weir::{
    kernels::pages::PagePool,
    nn::{
        paged_vectors::PagedVectors,
        topk::{Halving, Pooler, PoolerInput},
    },
};

const TOLERANCE: f32 = 1e-5;

#[test]
fn every_case_equals_the_published_operator() {
    let folder = pyramidion_golden("topk_operator");
    let pool = PagePool::new(1 << 20);
    let golden = Golden::open(&folder);
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut rejected = 0;
    let mut compared = 0;
    for case in config["cases"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let flag = |key: &str| case[key].as_bool().unwrap();
        let id = number("id");
        let kept = number("pooled_len");
        let halving = Halving::new(number("input_len"), kept, flag("flip_right"), flag("sort_back"));
        if case["status"] != "ok" || number("returned_len") != kept {
            let rule = halving.unwrap_err();
            assert!(rule.contains("every round takes an even number of vectors"), "case {id}: {rule}");
            rejected += 1;
            continue;
        }
        let halving = halving.unwrap();
        assert_eq!(halving.rounds() as usize, number("depth"), "case {id}");
        let count = number("n_actual");
        let dim = golden.shape(&format!("{id}.E"))[2];
        for item in 0..golden.shape(&format!("{id}.E"))[0] {
            let row = |name: &str| golden.row(&format!("{id}.{name}"), item);
            let new_vectors = || PagedVectors::new(pool.clone(), dim, 5);
            let mut rows = new_vectors();
            rows.extend(count).unwrap();
            for page in 0..rows.pages() {
                let to = rows.page_mut(page).unwrap();
                let len = to.len();
                to.copy_from_slice(&row("E")[page * 5 * dim..][..len]);
            }
            let positions: Vec<u32> = (0..count as u32).collect();
            let input = PoolerInput { vectors: &rows, index: &positions };
            let pooled = halving.pool(&input, row("v")[..count].to_vec(), &new_vectors).unwrap();
            let vectors: Vec<f32> = (0..kept).flat_map(|index| pooled.vectors.vector(index).to_vec()).collect();
            assert!(difference(&vectors, row("out")) <= TOLERANCE, "case {id}: {}", difference(&vectors, row("out")));
            assert!(difference(&pooled.scores, row("scores_out")) <= TOLERANCE, "case {id}");
            compared += 1;
        }
    }
    assert!(rejected >= 2 && compared >= 30, "{rejected} {compared}");
}
