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

/// Letters and digits behind 910B or 910_93 that tell variants of a chip.
const VARIANT_LEN_MAX: usize = 4;

/// Returns the product with this name or with this chip.
pub(super) fn product(word: &str) -> Option<&'static str> {
    let name = chip(word);
    let is_variant =
        |family: &str| name.strip_prefix(family).is_some_and(|rest| rest.len() <= VARIANT_LEN_MAX);
    let has_underscore = word.contains("_93");
    match name.as_str() {
        "a3" | "atlasa3" | "910c" => Some("a3"),
        "a2" | "atlasa2" => Some("a2"),
        _ if is_variant("910b") => Some("a2"),
        _ if has_underscore && is_variant("91093") => Some("a3"),
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
    let name = chip(word);
    let is_a5 = name == "a5" || name == "atlasa5" || name.starts_with("950");
    if parameter == "product" && is_a5 { ": operators of A5 are not here" } else { "" }
}

/// A name of a chip without its maker and punctuation.
fn chip(word: &str) -> String {
    let mut name = word.to_ascii_lowercase();
    name.retain(|letter| !matches!(letter, '_' | '-' | ' '));
    name.strip_prefix("ascend").map_or_else(|| name.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_their_products() {
        for a2 in ["a2", "A2", "910b", "910B3", "910B", "Ascend910B2C", "Ascend 910B4-1", "Atlas A2"] {
            assert_eq!(product(a2), Some("a2"), "{a2}");
        }
        for a3 in ["a3", "A3", "910_93", "910_9392", "Ascend910_9391", "910c", "Ascend910C", "Atlas A3"] {
            assert_eq!(product(a3), Some("a3"), "{a3}");
        }
        for neither in
            ["", "a1", "a5", "950", "Ascend950", "910", "910A", "Ascend910A", "91093", "310P", "910banana"]
        {
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
        for word in ["a5", "A5", "950", "Ascend950", "ascend950dt"] {
            assert_eq!(remark("product", word), ": operators of A5 are not here", "{word}");
            assert_eq!(remark("dtype", word), "");
        }
        assert_eq!(remark("product", "a4"), "");
    }
}
