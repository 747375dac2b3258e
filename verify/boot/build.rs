//! Asks the reference what must come of every round, and tells the linker where the program lies.

#[path = "src/scene.rs"]
#[allow(dead_code)]
mod scene;

use scene::{BS, IDS, K, RANKS, ROUNDS, ROW, Scene, WEIGHTS};
use std::array::from_fn;
use std::{env, fs, path::Path};
use veriep_core::inputs::Inputs;
use veriep_core::reference::Cluster;
use veriep_core::shape::{Limits, Shape};
use veriep_core::units::{RankId, Token};

/// What is left of a rank's results of a round.
fn expected(shape: &Shape, round: usize) -> [u64; RANKS] {
    let x: [[u8; BS * ROW]; RANKS] = from_fn(|rank| scene::x(rank, round));
    let ids: [[i32; IDS]; RANKS] = from_fn(|rank| scene::ids(rank, round));
    let inputs: [Inputs<'_>; RANKS] = from_fn(|rank| Inputs {
        x: &x[rank],
        expert_ids: &ids[rank],
        expert_scales: &WEIGHTS,
        ..Inputs::default()
    });
    let cluster = Cluster { shape, ranks: &inputs, elastic_info: None, expert_map: None };
    from_fn(|rank| {
        let id = RankId(rank as u32);
        inputs[rank].check(shape, id).expect("inputs that the door lets in");
        let received = cluster.dispatch(id);
        let counts: Vec<u8> = received.ep_recv_counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        let x_out = cluster.combine(id, &mut |token: Token, k, row| {
            let expert = ids[rank][token.index() * K + k as usize];
            cluster.sent_row(id, token, expert as u32, row);
            scene::expert(expert as usize, row);
        });
        [&counts, &received.expand_x, &x_out]
            .into_iter()
            .fold(0, |so_far, bytes| scene::digest(so_far, bytes))
    })
}

fn main() {
    let golden = scene::all().map(|Scene { name, config, .. }| {
        let shape = Shape::new(&config, Limits::None).unwrap_or_else(|why| panic!("{name}: {why}"));
        from_fn::<_, ROUNDS, _>(|round| expected(&shape, round))
    });
    let out = env::var("OUT_DIR").expect("set by cargo");
    fs::write(Path::new(&out).join("golden.rs"), format!("{golden:?}")).expect("a folder to write to");

    let of_linker = |arguments: &[&str]| {
        arguments.iter().for_each(|argument| println!("cargo:rustc-link-arg-bins={argument}"));
    };
    let script = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("set by cargo")).join("link.ld");
    let script = format!("-T{}", script.display());
    match env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo").as_str() {
        // The linker is a C compiler there.
        "x86_64" => {
            of_linker(&["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"]);
            of_linker(&["-Wl,--defsym=BASE=0x100000", &script]);
        }
        "aarch64" => of_linker(&["--defsym=BASE=0x40080000", &script]),
        "riscv64" => of_linker(&["--defsym=BASE=0x80000000", &script]),
        _ => of_linker(&[
            "--no-entry",
            "--export=enter",
            "--export=stack_top",
            "--export=__stack_pointer",
            "--import-memory",
            "--shared-memory",
            "--max-memory=1610612736",
        ]),
    }
    println!("cargo:rerun-if-changed=link.ld");
    println!("cargo:rerun-if-changed=src/scene.rs");
    println!("cargo:rerun-if-changed=build.rs");
}
