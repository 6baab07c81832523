//! Checkpoints that are quantized with scales already: their small numbers are codes, worth nothing without the scale
//! that lies beside them, and to cast them alone would make noise of the model without a word.

use crate::dtype::Dtype;
use crate::error::{Error, Kind};
use crate::text::{as_glob, shorten};
use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};

/// How tensors of codes and those of their scales are called behind a common stem.
struct NamePair {
    codes: &'static str,
    scales: &'static str,
    /// Whether the name of the codes alone tells what they are.
    is_telling: bool,
}

const fn scheme(codes: &'static str, scales: &'static str) -> NamePair {
    NamePair { codes, scales, is_telling: false }
}

/// By who writes them so.
const SCHEMES: &[NamePair] = &[
    scheme("", "_scale_inv"),                   // DeepSeek's float8 in blocks
    scheme("", "_scale"),                       // compressed-tensors, ModelOpt, llama 4
    scheme(".weight_scale", ".weight_scale_2"), // NVFP4: its scales have a scale
    scheme(".weight", ".scale"),                // DeepSeek's own files
    scheme(".weight", ".scale_weight"),         // ComfyUI
    scheme("._data", "._scale"),                // quanto
    scheme("", ".absmax"),                      // bitsandbytes, 4 bits
    scheme(".weight", ".SCB"),                  // bitsandbytes, 8 bits
    scheme("_blocks", "_scales"),               // MXFP4 of gpt-oss
    scheme("_scales", "_blocks"),               // its scales are codes too, of E8M0
    NamePair { codes: ".weight_packed", scales: ".weight_scale", is_telling: true }, // compressed-tensors, 4 bits
    NamePair { codes: ".qweight", scales: ".scales", is_telling: true }, // GPTQ, AWQ
    NamePair { codes: ".qzeros", scales: ".scales", is_telling: true },
];

/// The tensors of codes in a checkpoint, with what tells that they are.
#[derive(Debug, Default)]
pub struct ScaledCodes {
    codes: HashMap<String, Sign>,
    /// The tensors of their scales.
    scales: HashSet<String>,
}

/// What tells that a tensor holds codes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sign {
    /// A tensor of scales.
    Scales(String),
    /// Its own name.
    Name,
    /// The model's config, with the method that it names.
    Config(String),
}

/// Whether a tensor of this type can hold codes. Weights of wider floats beside a scale are values: the scale is that of
/// activations, or they were unpacked.
#[must_use]
pub(crate) fn can_be_codes(dtype: Option<Dtype>) -> bool {
    !dtype.is_some_and(|dtype| dtype.bits() > 8 && dtype.is_floating())
}

impl ScaledCodes {
    /// Finds them by their names and types. `beside` are the names of tensors in other files of the checkpoint,
    /// `quantization` is what its config says of the whole.
    #[must_use]
    pub fn find(tensors: &[(&str, Option<Dtype>)], beside: &[String], quantization: Option<&str>) -> Self {
        // Most checkpoints have no name that asks for it.
        let names: LazyCell<HashSet<&str>, _> =
            LazyCell::new(|| tensors.iter().map(|(name, _)| *name).chain(beside.iter().map(String::as_str)).collect());
        let mut found = Self::default();
        for &(name, dtype) in tensors {
            if !can_be_codes(dtype) {
                continue;
            }
            let mut sign = quantization.map(|method| Sign::Config(method.to_owned()));
            for scheme in SCHEMES {
                let Some(stem) = name.strip_suffix(scheme.codes) else { continue };
                let scales = format!("{stem}{}", scheme.scales);
                let has_scales = names.contains(scales.as_str());
                if has_scales {
                    found.scales.insert(scales.clone());
                    sign = Some(Sign::Scales(scales));
                } else if scheme.is_telling {
                    sign = Some(Sign::Name);
                }
            }
            found.codes.extend(sign.map(|sign| (name.to_owned(), sign)));
        }
        found.scales.retain(|name| !found.codes.contains_key(name));
        found
    }

    /// The error of a cast of a tensor of codes; `None` where it holds values.
    #[must_use]
    pub(crate) fn refusal(&self, name: &str) -> Option<Error> {
        let why = match self.codes.get(name)? {
            Sign::Scales(scales) => format!("holds codes whose scales are in '{}'", shorten(scales)),
            Sign::Name => "holds codes, as its name says".to_owned(),
            Sign::Config(method) => {
                format!("holds codes: the config says that the model is quantized ({})", shorten(method))
            }
        };
        let globs = self.globs().into_iter().collect();
        Some(Error::new(format!("{why}; a cast would take them for values")).of(Kind::Codes(globs)))
    }

    /// Whether a tensor holds the scales of others.
    #[must_use]
    pub(crate) fn is_scale(&self, name: &str) -> bool {
        self.scales.contains(name)
    }

    /// Patterns that match all codes: few, for models repeat the last parts of their names in every layer.
    fn globs(&self) -> BTreeSet<String> {
        // `l.3.q.weight` ends in `q.weight`, and `l.3.weight` in `l.*.weight`.
        let ending = |name: &String| {
            let parts: Vec<&str> = name.split('.').collect();
            let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
            let before = parts[..parts.len() - 1].iter().rposition(|part| !is_number(part)).unwrap_or(0);
            let star = |part: &&str| if is_number(part) { "*".to_owned() } else { as_glob(part) };
            let ending = parts[before..].iter().map(star).collect::<Vec<_>>().join(".");
            if before == 0 { ending } else { format!("*.{ending}") }
        };
        let endings: BTreeSet<String> = self.codes.keys().map(ending).collect();
        let weight = |ending: &String| {
            let name = ending.strip_prefix("*.")?.strip_suffix(".weight")?;
            (!name.contains(['*', ','])).then(|| name.to_owned())
        };
        let weights: Vec<String> = endings.iter().filter_map(weight).collect();
        let mut globs: BTreeSet<String> = endings.into_iter().filter(|ending| weight(ending).is_none()).collect();
        globs.extend(match &weights[..] {
            [] => None,
            [only] => Some(format!("*.{only}.weight")),
            several => Some(format!("*.{{{}}}.weight", several.join(","))),
        });
        globs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F8: Option<Dtype> = Some(Dtype::Float8E4M3FN);
    const F32: Option<Dtype> = Some(Dtype::Float32);
    const U8: Option<Dtype> = Some(Dtype::Uint8);

    fn found<'a>(tensors: &[(&'a str, Option<Dtype>)], quantization: Option<&str>) -> Vec<&'a str> {
        let codes = ScaledCodes::find(tensors, &[], quantization);
        tensors.iter().map(|(name, _)| *name).filter(|name| codes.refusal(name).is_some()).collect()
    }

    #[test]
    fn codes_are_known_by_the_scales_beside_them() {
        for (codes, dtype, scales) in [
            ("l.0.q.weight", F8, "l.0.q.weight_scale_inv"),
            ("l.0.q.weight", F8, "l.0.q.weight_scale"),
            ("l.0.q.weight", F8, "l.0.q.scale_weight"),
            ("l.0.q.weight", Some(Dtype::Int8), "l.0.q.SCB"),
            ("l.0.q.weight_packed", Some(Dtype::Int32), "l.0.q.weight_scale"),
            ("l.0.q.weight", F8, "l.0.q.scale"),
            ("l.0.q.weight", U8, "l.0.q.weight.absmax"),
            ("l.0.experts.gate_up_proj", F8, "l.0.experts.gate_up_proj_scale_inv"),
            ("l.0.q.weight._data", F8, "l.0.q.weight._scale"),
            ("l.0.q.qweight", Some(Dtype::Int32), "l.0.q.scales"),
        ] {
            assert_eq!(found(&[(codes, dtype), (scales, F32), ("norm.weight", F32)], None), [codes]);
            assert!(ScaledCodes::find(&[(codes, dtype), (scales, F32)], &[], None).is_scale(scales));
            // The scales may be in another shard.
            assert!(ScaledCodes::find(&[(codes, dtype)], &[scales.to_owned()], None).refusal(codes).is_some());
        }
        let blocks = [("m.gate_up_proj_blocks", U8), ("m.gate_up_proj_scales", U8), ("m.gate_up_proj_bias", F32)];
        assert_eq!(found(&blocks, None), ["m.gate_up_proj_blocks", "m.gate_up_proj_scales"]);
        let nvfp4 = [("q.weight", U8), ("q.weight_scale", F8), ("q.weight_scale_2", F32), ("q.input_scale", F32)];
        assert_eq!(found(&nvfp4, None), ["q.weight", "q.weight_scale"]);
    }

    #[test]
    fn values_are_not_taken_for_codes() {
        assert_eq!(found(&[("l.q.weight", F8), ("l.k.weight_scale", F32)], None), [""; 0]);
        assert_eq!(found(&[("l.q.weight", Some(Dtype::Bfloat16)), ("l.q.weight_scale", F32)], None), [""; 0]);
        assert_eq!(found(&[("l.q.weight", F32), ("l.k.weight", U8)], Some("fp8")), ["l.k.weight"]);
    }

    /// The patterns of an error that says that a tensor holds codes.
    fn globs(error: &Error) -> Vec<&str> {
        let Kind::Codes(globs) = error.kind() else { panic!("{error:?}") };
        globs.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_pattern_takes_every_character_of_a_name_as_it_is() {
        for (names, expected) in [
            (["it's; ls.w", "l.0.x*y.w"], ["*.x[*]y.w", "it's; ls.w"]),
            (["l.0.a,b.weight", "l.0.c.weight"], ["*.a,b.weight", "*.c.weight"]),
        ] {
            let scales = names.map(|name| format!("{name}_scale"));
            let tensors = names.iter().map(|name| (*name, F8)).chain(scales.iter().map(|name| (name.as_str(), F32)));
            let codes = ScaledCodes::find(&tensors.collect::<Vec<_>>(), &[], None);
            assert_eq!(globs(&codes.refusal(names[0]).unwrap()), expected);
        }
    }

    #[test]
    fn the_patterns_match_all_codes() {
        let names = ["l.0.q.weight", "l.1.q.weight", "l.0.k.weight", "m.3.weight", "head.weight"];
        let mut tensors: Vec<_> = names.iter().map(|name| (*name, F8)).collect();
        let scales = names.map(|name| format!("{name}_scale_inv"));
        tensors.extend(scales.iter().map(|name| (name.as_str(), F32)));
        let codes = ScaledCodes::find(&tensors, &[], None);
        let error = codes.refusal("l.0.q.weight").unwrap();
        let wanted = "holds codes whose scales are in 'l.0.q.weight_scale_inv'; a cast would take them for values";
        assert_eq!(error.to_string(), wanted);
        assert_eq!(globs(&error), ["*.{k,q}.weight", "head.weight", "m.*.weight"]);
        assert!(scales.iter().all(|scale| codes.is_scale(scale)));
    }
}
