//! Asks the reference what must come of every round.

#[path = "src/scene.rs"]
#[allow(dead_code)]
mod scene;

use scene::{Domain, ELASTIC_INFO, MEMBERS, RANKS, ROUNDS, ROW, Scene, Tokens};
use std::array::from_fn;
use std::{env, fs, path::Path};
use veriep_core::inputs::Inputs;
use veriep_core::place::Tensor;
use veriep_core::reference::{Cluster, numerics};
use veriep_core::shape::{Limits, Shape};
use veriep_core::units::{RankId, Token};

/// The digest of each member's results.
fn expected(whole: &Shape, domain: &Domain, round: usize) -> [u64; MEMBERS] {
    let shape = &domain.shape;
    let tokens: [Tokens; MEMBERS] = from_fn(|member| Tokens::new(domain, member, round));
    let rank = |member| domain.physical(member).expect("a rank for each member");
    let mut ranks = [Inputs::default(); RANKS];
    for (member, tokens) in tokens.iter().enumerate() {
        let inputs = tokens.inputs(domain);
        inputs.check(shape, domain.ep(member)).expect("inputs that the door lets in");
        ranks[rank(member).index()] = inputs;
    }
    let elastic_info = domain.left.as_ref().map(|_| ELASTIC_INFO.as_slice());
    let cluster = Cluster { shape: whole, ranks: &ranks, elastic_info, expert_map: None };
    from_fn(|member| {
        let received = cluster.dispatch(rank(member));
        let received = [Tensor::EpRecvCounts, Tensor::ExpandX, Tensor::DynamicScales]
            .map(|tensor| received.bytes(tensor));
        let returned = combined(&cluster, domain, rank(member));
        received.iter().chain(&returned).fold(0, |so_far, bytes| scene::digest(so_far, bytes))
    })
}

/// What combine puts out on a rank.
fn combined(cluster: &Cluster<'_>, domain: &Domain, rank: RankId) -> Vec<Vec<u8>> {
    let shape = &domain.shape;
    let mut returned = |token: Token, k, row: &mut Vec<u8>| {
        let expert = cluster.id(rank, token, k) as u32;
        let scale = cluster.sent_row(rank, token, expert, row);
        let mut result = vec![0; ROW];
        scene::expert(expert, row, shape.row_format().scale.is_some().then_some(scale), &mut result);
        // TP peers hold the expert together, and their results are added.
        *row = if domain.has_tp() { numerics::add_rows(shape.dtype(), &result, &result) } else { result };
    };
    if !domain.is_normed() {
        return vec![cluster.combine(rank, &mut returned)];
    }
    let normed = cluster.combine_add_rms_norm(rank, &mut returned);
    let rstd: Vec<_> = normed.rstd.iter().map(|range| range.exact).collect();
    // Numbers of one size are 1 after the norm, whatever the order of the sum.
    let y = cluster.y(rank, &normed, &rstd);
    vec![normed.x_out, normed.x, y]
}

fn main() {
    let of_scene = |scene: &Scene| {
        let Scene { name, config, .. } = scene;
        let whole = Shape::new(config, Limits::None).unwrap_or_else(|why| panic!("{name}: {why}"));
        let domain = Domain::new(scene).unwrap_or_else(|| panic!("{name}: no survivors"));
        from_fn::<_, ROUNDS, _>(|round| expected(&whole, &domain, round))
    };
    let golden: Vec<_> = scene::protocols().iter().chain(&scene::layers()).map(of_scene).collect();
    let out = env::var("OUT_DIR").expect("set by cargo");
    fs::write(Path::new(&out).join("golden.rs"), format!("{golden:?}")).expect("a folder to write to");
    println!("cargo:rerun-if-changed=src/scene.rs");
    println!("cargo:rerun-if-changed=build.rs");
}
