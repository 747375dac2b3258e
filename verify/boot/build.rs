//! Tells the linker where the program is in memory.

use std::env;
use std::path::Path;

fn main() {
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
    println!("cargo:rerun-if-changed=build.rs");
}
