//! The reference gives the same outputs for dispatch and combine separately as for both together.

use std::borrow::Cow;
use veriep_case::case::Case;
use veriep_case::config::{Bs, Config};
use veriep_case::generate::{Options, generate};
use veriep_case::store::{Tensor, TensorFile};
use veriep_group::expected::Expected;

fn case(config: Config) -> Case {
    let bs = Bs::PerRank(vec![3, 1, 5]);
    let config = Config { ep_world_size: 3, moe_expert_num: 4, k: 2, h: 1024, bs, ..config };
    let config = Config { shared_expert_rank_num: 1, global_bs: 15, ..config };
    generate(config, Options::default(), "test").unwrap()
}

/// Rows as the stand-in experts return them, since their gain is 1: those received, unquantised.
fn returned(case: &Case) -> TensorFile {
    let dispatched = Expected::dispatched(case);
    let rows = dispatched.tensors().unwrap().into_iter().filter(|tensor| tensor.name.ends_with("expand_x"));
    TensorFile::of_tensors("returned", rows.collect()).unwrap()
}

#[test]
fn both_halves_are_the_whole() {
    let mut case = case(Config::default());
    case.expert_gain.fill(1.0);
    let (whole, combined) = (Expected::of(&case), Expected::combined(&case, &mut returned(&case)).unwrap());
    let (dispatched, whole) = (Expected::dispatched(&case), whole.tensors().unwrap());
    let halves: Vec<_> =
        dispatched.tensors().unwrap().into_iter().chain(combined.tensors().unwrap()).collect();
    assert_eq!(halves.len(), whole.len());
    for tensor in &whole {
        let half = halves.iter().find(|half| half.name == tensor.name).unwrap();
        assert_eq!((&half.data, &half.shape), (&tensor.data, &tensor.shape), "{}", tensor.name);
    }
}

#[test]
fn rows_that_do_not_fit_are_told() {
    let case = case(Config::default());
    let mut file = returned(&case);
    let rows = file.info("rank1.expand_x").unwrap().shape[0];
    let data = Cow::Owned(file.read("rank0.expand_x").unwrap());
    let info = file.info("rank0.expand_x").unwrap().clone();
    let one = Tensor { name: "rank0.expand_x".into(), shape: info.shape, dtype: info.dtype, data };
    let short = Tensor {
        name: "rank2.expand_x".into(),
        shape: vec![0, 1024],
        data: Cow::Borrowed(&[]),
        ..one.clone()
    };
    let mut file = TensorFile::of_tensors("returned", vec![one, short]).unwrap();
    let error = Expected::combined(&case, &mut file).unwrap_err().lines();
    assert_eq!(error[0], format!("returned: rank1.expand_x: missing: must be BF16 [{rows}, 1024]"));
    assert!(error[1].starts_with("returned: rank2.expand_x: BF16 [0, 1024]: must be BF16 ["), "{error:?}");
}
