//! The same as a header for C99, C++17, CUDA and AscendC, and a program that holds the header against the core.

use super::{Exported, LICENSE, Owned, PLACES, indices};
use core::fmt::Write as _;
use veriep_core::layout::affine::Dim;
use veriep_core::layout::field::FieldName;
use veriep_core::sync::event::{Event, events};
use veriep_core::units::RankId;

const PREAMBLE: &str = r"#if defined(__CCE_AICORE__) || defined(__DAV_C220_VEC__)
#define VERIEP_FN __aicore__ inline
#else
#include <stdint.h>
#if defined(__CUDACC__)
#define VERIEP_FN __host__ __device__ static inline
#elif defined(__cplusplus)
#define VERIEP_FN static inline constexpr
#else
#define VERIEP_FN static inline
#endif
#endif
";

/// As FNV-1a, with words of eight bytes.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

impl Owned {
    /// What it is called in C.
    fn name(&self, prefix: &str) -> String {
        let owner = if self.owner == "any" { String::new() } else { format!("_{}", self.owner) };
        format!("{prefix}_{}{owner}", self.map.named.name().replace(' ', "_"))
    }

    fn about(&self) -> String {
        let inside: Vec<_> = self.map.named.inside().iter().map(|named| named.name()).collect();
        if inside.is_empty() {
            format!("in {}", self.map.region.name())
        } else {
            format!("from the start of each of: {}", inside.join(", "))
        }
    }
}

/// A function of numbers that returns `sum`.
fn function<'n>(name: &str, of: impl Iterator<Item = &'n str>, sum: &str) -> String {
    let parameters: Vec<_> = of.map(|number| format!("uint32_t {number}")).collect();
    let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
    format!("VERIEP_FN uint64_t {name}({parameters}) {{ return {sum}; }}")
}

/// A function of the variables of a word.
fn word_function(name: &str, event: &Event) -> String {
    let variables = event.value.variables();
    let terms: String = event
        .value
        .shifts()
        .zip(variables)
        .map(|(shift, variable)| format!(" | (uint64_t){variable} << {shift}"))
        .collect();
    let constant = event.value.word([0; 3]);
    function(name, variables.iter().copied(), &format!("{constant:#x}ull{terms}"))
}

impl Exported {
    pub(super) fn header(&self, prefix: &str) -> String {
        let macros = prefix.to_uppercase();
        let mut lines = vec![
            format!("/* SPDX-License-Identifier: {LICENSE}"),
            " * Written by veriep export (veriep.plan/1). Anybody may use this file for anything.".to_owned(),
            format!(" * The {PLACES}. */"),
            format!("#ifndef {macros}_PLAN_H\n#define {macros}_PLAN_H\n{PREAMBLE}"),
        ];
        let constants = self.constants();
        let define = |name: &str, value: u64| format!("#define {macros}_{} {value}ull", name.to_uppercase());
        lines.extend(constants.iter().map(|&(name, value)| define(name, value)));
        lines.push(
            "\n/* Tiling data: what a kernel that is compiled once is told. */\ntypedef struct {".to_owned(),
        );
        lines.extend(constants.iter().map(|(name, _)| format!("    uint64_t {name};")));
        lines.push(format!("}} {prefix}_tiling;"));
        for owned in &self.maps {
            let map = &owned.map;
            let name = owned.name(prefix);
            lines.push(format!("\n/* {} {}: {} bytes. */", map.named.name(), owned.about(), map.bytes));
            for field in map.named.fields(&self.shape, self.choices.mode()) {
                let field_name = field.name.name().replace(' ', "_").to_uppercase();
                lines.push(format!("#define {}_{field_name}_AT {}ull", name.to_uppercase(), field.offset));
            }
            let term = |dim: &Dim| {
                let sign = if dim.stride < 0 { '-' } else { '+' };
                format!(" {sign} (uint64_t){} * {}ull", dim.index.name(), dim.stride.unsigned_abs())
            };
            let terms: String = map.dims().iter().map(term).collect();
            let indices = map.dims().iter().map(|dim| dim.index.name());
            lines.push(function(&name, indices, &format!("{}ull{terms}", map.base)));
        }
        lines.push("\n/* The words that tell of data. */".to_owned());
        for (name, event) in self.words(prefix) {
            lines.push(word_function(&name, &event));
        }
        lines.push("\n#endif\n".to_owned());
        lines.join("\n")
    }

    /// The words of events and what they are called in C.
    fn words(&self, prefix: &str) -> Vec<(String, Event)> {
        let name = |event: &Event| {
            let field = event.field.filter(|field| *field != FieldName::Word).map_or("", FieldName::name);
            [prefix, event.word.name(), field, "word"].join(" ").replace("  ", " ").replace(' ', "_")
        };
        events(&self.shape, self.choices.mode()).map(|event| (name(&event), event)).collect()
    }

    /// A program that ends with 0 if the header says what the core says.
    pub(super) fn check(&self, prefix: &str) -> String {
        let macros = prefix.to_uppercase();
        let mut text = format!(
            "/* SPDX-License-Identifier: {LICENSE} */\n#include \"{prefix}_plan.h\"\n#include <stdio.h>\n\n\
             int main(void)\n{{\n    int wrong = 0;\n    unsigned long long offsets = 0;\n"
        );
        for (name, value) in self.constants() {
            let name = format!("{macros}_{}", name.to_uppercase());
            let _ = writeln!(text, "    if ({name} != {value}ull) {{ wrong++; puts(\"{name} differs\"); }}");
        }
        for owned in &self.maps {
            let (hash, count) = self.offsets(owned);
            let name = owned.name(prefix);
            let dims = owned.map.dims();
            let loops = dims
                .iter()
                .enumerate()
                .map(|(n, dim)| format!("\n    for (uint32_t i{n} = 0; i{n} < {}; i{n}++)", dim.extent));
            let arguments: Vec<_> = (0..dims.len()).map(|n| format!("i{n}")).collect();
            let _ = writeln!(
                text,
                "    {{\n    uint64_t hash = {BASIS:#x}ull, count = 0;{}\n    {{ hash = (hash ^ {name}({})) * {PRIME:#x}ull; \
                 count++; }}\n    offsets += count;\n    if (hash != {hash:#x}ull || count != {count}ull) {{ wrong++; \
                 puts(\"{name} differs\"); }}\n    }}",
                loops.collect::<String>(),
                arguments.join(", ")
            );
        }
        for (name, event) in self.words(prefix) {
            let arguments: Vec<_> = (1..=event.value.variables().len()).map(|n| n.to_string()).collect();
            let (arguments, word) = (arguments.join(", "), event.value.word([1, 2, 3]));
            let _ = writeln!(
                text,
                "    if ({name}({arguments}) != {word:#x}ull) {{ wrong++; puts(\"{name} differs\"); }}"
            );
        }
        text.push_str(
            "    printf(\"%llu offsets, %d wrong\\n\", offsets, wrong);\n    return wrong != 0;\n}\n",
        );
        text
    }

    /// All offsets of a map in one number, by the core's own functions, and how many there are.
    fn offsets(&self, owned: &Owned) -> (u64, u64) {
        let (mode, rank) = (self.choices.mode(), RankId(owned.ranks.start));
        let map = owned.map.named.map(&self.shape, mode, rank);
        indices(&owned.map).fold((BASIS, 0), |(hash, count), indices| {
            let offset = map.map_or(u64::MAX, |map| map.offset(indices));
            ((hash ^ offset).wrapping_mul(PRIME), count + 1)
        })
    }
}
