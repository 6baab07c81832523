//! The types of the tensors of GGUF files in a scheme.

use super::mixes::Mix;
use crate::blocks::BlockFormat;

/// A [`Scheme`](super::super::Scheme) in GGUF files: the type of each weight.
///
/// A scheme with the name of a type is pure: every weight that is quantized has this type, output and embeddings too, as
/// with `llama-quantize --pure`. This holds for diffusion models too, although the rules of `ComfyUI-GGUF` have exceptions
/// for `Q2_K`, `Q4_0` and `Q5_0`. Only a mix chooses by the role of a weight.
#[derive(Debug, PartialEq, Eq)]
pub struct GgufScheme {
    /// The name of the [`Scheme`](super::super::Scheme).
    pub name: &'static str,
    /// The value of `general.file_type`: llama.cpp's number for the type or the mix; `None` if llama-quantize makes no
    /// such files.
    ///
    /// A pure file gets the number that `llama-quantize --pure` writes. For `Q3_K`, `Q4_K` and `Q5_K` this is the number of
    /// the medium mix, because llama-quantize takes these names for it (`tools/quantize/quantize.cpp`). For `MXFP4` it is
    /// the number of `MXFP4_MOE`, the only one for this type.
    pub file_type: Option<u32>,
    /// The type of weights without an exception.
    pub format: &'static BlockFormat,
    /// The exceptions; `None` for a pure scheme.
    pub(super) mix: Option<&'static Mix>,
}

impl GgufScheme {
    /// True if the type of a weight depends on its role.
    pub fn is_mix(&self) -> bool {
        self.mix.is_some()
    }

    /// True if llama-quantize refuses the scheme without an importance matrix.
    pub fn needs_importance(&self) -> bool {
        self.mix.is_some_and(|mix| mix.needs_importance)
    }
}

/// Returns a scheme with one type for all weights.
pub(in crate::quant) const fn pure(
    name: &'static str,
    file_type: Option<u32>,
    format: &'static BlockFormat,
) -> GgufScheme {
    GgufScheme { name, file_type, format, mix: None }
}

/// Returns a scheme with other types for some weights.
pub(in crate::quant) const fn mix(
    name: &'static str,
    file_type: u32,
    format: &'static BlockFormat,
    mix: &'static Mix,
) -> GgufScheme {
    GgufScheme { name, file_type: Some(file_type), format, mix: Some(mix) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::SCHEMES;

    fn schemes() -> impl Iterator<Item = &'static GgufScheme> {
        SCHEMES.iter().filter_map(|scheme| scheme.gguf.as_ref())
    }

    #[test]
    fn a_name_begins_with_its_type_and_a_pure_scheme_has_no_other() {
        for scheme in schemes() {
            let rest = scheme.name.strip_prefix(&*scheme.format.name.to_lowercase());
            let rest = rest.unwrap_or_else(|| panic!("{} begins with another type", scheme.name));
            assert_eq!(rest.is_empty(), !scheme.is_mix(), "{}", scheme.name);
        }
    }

    #[test]
    fn a_pure_k_type_has_the_number_of_its_medium_mix() {
        let number = |name: &str| GgufScheme::find(name).unwrap().file_type;
        for name in ["q3_k", "q4_k", "q5_k"] {
            assert_eq!(number(name), number(&format!("{name}_m")), "{name}");
        }
        assert_eq!([number("q4_0"), number("nvfp4")], [Some(2), None]);
    }

    #[test]
    fn only_the_small_mix_of_two_bits_needs_an_importance_matrix() {
        let names: Vec<_> = schemes().filter(|scheme| scheme.needs_importance()).collect();
        assert!(matches!(names[..], [GgufScheme { name: "q2_k_s", .. }]), "{names:?}");
    }
}
