//! Other names of products and types: of the chips, and of torch.

use super::Config;

impl Config {
    /// Gives the product and the type the names that they have here.
    pub(super) fn name_as_known(&mut self) {
        if let Some(name) = product(&self.product) {
            name.clone_into(&mut self.product);
        }
        if let Some(name) = dtype(&self.dtype) {
            name.clone_into(&mut self.dtype);
        }
    }
}

/// Chips of A2, as their system reports them behind the maker's name.
const CHIPS_OF_A2: [&str; 7] = ["910b", "910b1", "910b2", "910b2c", "910b3", "910b4", "910b4-1"];
/// Chips of A3 have this name, alone or with two digits after it.
const CHIP_OF_A3: &str = "910_93";

/// Returns the product with this name or with this chip.
pub(super) fn product(word: &str) -> Option<&'static str> {
    let name = word.to_ascii_lowercase();
    let chip = chip(&name);
    let is_digits =
        |rest: &str| rest.is_empty() || rest.len() == 2 && rest.bytes().all(|c| c.is_ascii_digit());
    match name.as_str() {
        "a3" | "atlas a3" => Some("a3"),
        "a2" | "atlas a2" => Some("a2"),
        _ if CHIPS_OF_A2.contains(&chip) => Some("a2"),
        _ if chip == "910c" || chip.strip_prefix(CHIP_OF_A3).is_some_and(is_digits) => Some("a3"),
        _ => None,
    }
}

/// Returns the type with this name in torch.
fn dtype(word: &str) -> Option<&'static str> {
    let name = word.to_ascii_lowercase();
    match name.strip_prefix("torch.").unwrap_or(&name) {
        "bf16" | "bfloat16" => Some("bf16"),
        "f16" | "fp16" | "float16" | "half" => Some("f16"),
        _ => None,
    }
}

/// What to say of a word that means something elsewhere.
pub(super) fn remark(parameter: &str, word: &str) -> &'static str {
    let name = word.to_ascii_lowercase();
    let is_a5 = name == "a5" || name == "atlas a5" || chip(&name).starts_with("950");
    if parameter == "product" && is_a5 { ": operators of A5 are not here" } else { "" }
}

/// A name of a chip, in small letters, without its maker.
fn chip(name: &str) -> &str {
    name.strip_prefix("ascend").map_or(name, str::trim_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_their_products() {
        let a2 = ["a2", "A2", "910b", "910B1", "910B3", "910B", "Ascend910B2C", "Ascend 910B4-1", "Atlas A2"];
        for a2 in a2 {
            assert_eq!(product(a2), Some("a2"), "{a2}");
        }
        for a3 in ["a3", "A3", "910_93", "910_9392", "Ascend910_9391", "910c", "Ascend910C", "Atlas A3"] {
            assert_eq!(product(a3), Some("a3"), "{a3}");
        }
        for neither in [
            "",
            "a1",
            "a5",
            "950",
            "Ascend950",
            "910",
            "910A",
            "Ascend910A",
            "91093",
            "310P",
            "910banana",
            "910bfoo",
            "910B5",
            "910B3C",
            "910B22",
            "910B1x",
            "910B4-2",
            "910 B",
            "910_B",
            "910b ",
            "910_9",
            "910_931",
            "910_93x2",
            "910_93921",
            "9_1_093",
            "910cc",
            "910c1",
            "a2x",
            "a3-1",
            "Atlas A22",
        ] {
            assert_eq!(product(neither), None, "{neither}");
        }
    }

    #[test]
    fn types_have_the_names_of_torch() {
        for (word, name) in [
            ("bf16", "bf16"),
            ("bfloat16", "bf16"),
            ("torch.bfloat16", "bf16"),
            ("float16", "f16"),
            ("torch.half", "f16"),
            ("half", "f16"),
            ("FP16", "f16"),
        ] {
            assert_eq!(dtype(word), Some(name), "{word}");
        }
        for word in ["", "fp8", "int8", "f32", "float", "float32", "float8_e4m3fn", "bf", "torch"] {
            assert_eq!(dtype(word), None, "{word}");
        }
    }

    #[test]
    fn a_newer_product_is_said_to_be_none_of_these() {
        for word in ["a5", "A5", "950", "Ascend950", "ascend950dt", "Atlas A5"] {
            assert_eq!(remark("product", word), ": operators of A5 are not here", "{word}");
            assert_eq!(remark("dtype", word), "");
        }
        assert_eq!(remark("product", "a4"), "");
    }
}
