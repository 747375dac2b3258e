//! `include/veriep.h` is made of the sources.

use cbindgen::{Builder, Config, Language};
use snapbox::Data;
use snapbox::data::DataFormat;
use std::path::Path;
use std::string::String;
use std::vec::Vec;
use std::{env, format};

const HEAD: &str = "\
/* VeriEP: dispatch and combine of Ascend A2/A3 as state machines. Made from the sources of veriep-capi; docs/embed/c.md says
 * how to begin. Everything lives in the caller's memory: nothing allocates, blocks, or has globals. Functions answer a code;
 * below 0 they have refused. */";

/// What a program was compiled with is as large as the library takes it for.
const TAIL: &str = "
#ifdef __cplusplus
#define VERIEP_ASSERT static_assert
#else
#define VERIEP_ASSERT _Static_assert
#endif
";

fn made() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sizes = [
        ("shape", size_of::<crate::types::veriep_shape>()),
        ("core", size_of::<crate::types::veriep_core>()),
        ("expert_map", size_of::<crate::types::veriep_expert_map>()),
        ("agent", size_of::<crate::types::veriep_agent>()),
        ("gates", size_of::<crate::types::veriep_gates>()),
        ("ticket", size_of::<crate::types::veriep_ticket>()),
        ("place", size_of::<crate::types::veriep_place>()),
        ("choices", size_of::<crate::types::veriep_choices>()),
        ("area", size_of::<crate::types::veriep_area>()),
        ("send", size_of::<crate::types::veriep_send>()),
        ("rows", size_of::<crate::types::veriep_rows>()),
        ("fingerprints", size_of::<crate::types::veriep_fingerprints>()),
        ("status", size_of::<crate::types::veriep_status>()),
        ("awaited", size_of::<crate::types::veriep_awaited>()),
    ];
    let assert =
        |(name, bytes)| format!("VERIEP_ASSERT(sizeof(veriep_{name}) == {bytes}, \"veriep_{name}\");\n");
    let asserts: Vec<_> = sizes.into_iter().map(assert).collect();
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        include_guard: Some("VERIEP_H".into()),
        header: Some(HEAD.into()),
        trailer: Some(format!("{TAIL}{}#undef VERIEP_ASSERT", asserts.concat())),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h"].map(Into::into).to_vec(),
        usize_is_size_t: true,
        line_length: 120,
        ..Config::default()
    };
    let files = ["codes", "types", "shape", "driver", "gates", "agent"];
    let builder = files.iter().fold(Builder::new().with_config(config), |builder, file| {
        builder.with_src(here.join(format!("src/{file}.rs")))
    });
    // Structures of which only functions with pointers speak.
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    let text = String::from_utf8(text).unwrap();
    // What Rust asks of a function that a pointer is given to, C knows.
    let mut lines = Vec::new();
    let mut skips = false;
    for line in text.lines() {
        skips = line.trim() == "* # Safety" || skips && line.trim() != "*/";
        if !skips {
            lines.push(line.trim_end());
        }
    }
    let text = lines.join("\n").replace("\n *\n */", "\n */");
    text + "\n"
}

/// `SNAPSHOTS=overwrite` writes it.
#[test]
fn the_header_is_what_the_sources_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/veriep.h");
    snapbox::assert_data_eq!(made(), Data::read_from(&path, Some(DataFormat::Text)).raw());
}
