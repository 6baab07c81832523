//! The schemes that users choose for GGUF files.

use super::mixes::{self, Mix};
use super::{
    BF16, F16, F32, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0,
    TQ2_0,
};
use crate::blocks::BlockFormat;

/// A way to quantize a model to a GGUF file.
///
/// A scheme with the name of a type is pure: every weight that is quantized has this type, output and embeddings too, as
/// with `llama-quantize --pure`. This holds for diffusion models too, although the rules of `ComfyUI-GGUF` have exceptions
/// for `Q2_K`, `Q4_0` and `Q5_0`. Only a mix chooses by the role of a weight.
#[derive(Debug)]
pub struct GgufScheme {
    /// The name for users.
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
    /// Finds a scheme by its name, in upper or lower case, with or without `-` and `_`.
    pub fn find(name: &str) -> Option<&'static Self> {
        let letters = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
        let wanted = letters(name);
        GGUF_SCHEMES.iter().find(|scheme| letters(scheme.name) == wanted)
    }

    /// True if the type of a weight depends on its role.
    pub fn is_mix(&self) -> bool {
        self.mix.is_some()
    }

    /// True if llama-quantize refuses the scheme without an importance matrix.
    pub fn needs_importance(&self) -> bool {
        self.mix.is_some_and(|mix| mix.needs_importance)
    }
}

const fn pure(name: &'static str, file_type: Option<u32>, format: &'static BlockFormat) -> GgufScheme {
    GgufScheme { name, file_type, format, mix: None }
}

const fn mix(name: &'static str, file_type: u32, format: &'static BlockFormat, mix: &'static Mix) -> GgufScheme {
    GgufScheme { name, file_type: Some(file_type), format, mix: Some(mix) }
}

/// All schemes. The numbers are those of `llama_ftype` (llama.cpp, `include/llama.h`).
pub static GGUF_SCHEMES: &[GgufScheme] = &[
    pure("f32", Some(0), F32),
    pure("f16", Some(1), F16),
    pure("bf16", Some(32), BF16),
    pure("q4_0", Some(2), Q4_0),
    pure("q4_1", Some(3), Q4_1),
    pure("q5_0", Some(8), Q5_0),
    pure("q5_1", Some(9), Q5_1),
    pure("q8_0", Some(7), Q8_0),
    pure("q2_k", Some(10), Q2_K),
    pure("q3_k", Some(12), Q3_K),
    pure("q4_k", Some(15), Q4_K),
    pure("q5_k", Some(17), Q5_K),
    pure("q6_k", Some(18), Q6_K),
    pure("iq4_nl", Some(25), IQ4_NL),
    pure("iq4_xs", Some(30), IQ4_XS),
    pure("tq1_0", Some(36), TQ1_0),
    pure("tq2_0", Some(37), TQ2_0),
    pure("mxfp4", Some(38), MXFP4),
    pure("nvfp4", None, NVFP4),
    mix("q2_k_s", 21, Q2_K, &mixes::Q2_K_S),
    mix("q3_k_s", 11, Q3_K, &mixes::Q3_K_S),
    mix("q3_k_m", 12, Q3_K, &mixes::Q3_K_M),
    mix("q3_k_l", 13, Q3_K, &mixes::Q3_K_L),
    mix("q4_k_s", 14, Q4_K, &mixes::Q4_K_S),
    mix("q4_k_m", 15, Q4_K, &mixes::Q4_K_M),
    mix("q5_k_s", 16, Q5_K, &mixes::Q5_K_S),
    mix("q5_k_m", 17, Q5_K, &mixes::Q5_K_M),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_free_in_case_and_separators() {
        for name in ["q4_k_m", "Q4_K_M", "q4-k-m", "Q4KM"] {
            assert_eq!(GgufScheme::find(name).unwrap().name, "q4_k_m");
        }
        for scheme in GGUF_SCHEMES {
            assert_eq!(GgufScheme::find(scheme.name).unwrap().name, scheme.name);
        }
        assert!(GgufScheme::find("q4_k_l").is_none() && GgufScheme::find("").is_none());
    }

    #[test]
    fn a_name_begins_with_its_type_and_a_pure_scheme_has_no_other() {
        for scheme in GGUF_SCHEMES {
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
        let names: Vec<_> = GGUF_SCHEMES.iter().filter(|scheme| scheme.needs_importance()).collect();
        assert!(matches!(names[..], [GgufScheme { name: "q2_k_s", .. }]), "{names:?}");
    }
}
