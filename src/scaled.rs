//! Checkpoints that are quantized with scales already: their small numbers are codes, worth nothing without the scale
//! that lies beside them, and to cast them alone would make noise of the model without a word.

use crate::dtype::Dtype;
use std::collections::{BTreeSet, HashMap, HashSet};

/// What a tensor of codes and that of its scales are called behind a common stem, and who writes them so. No scales:
/// the name alone tells.
const SCHEMES: &[(&str, Option<&str>)] = &[
    (".weight", Some(".weight_scale_inv")), // DeepSeek's float8 in blocks
    (".weight", Some(".weight_scale")),     // compressed-tensors, ModelOpt
    (".weight", Some(".scale_weight")),     // ComfyUI
    (".weight", Some(".weight.absmax")),    // bitsandbytes, 4 bits
    (".weight", Some(".SCB")),              // bitsandbytes, 8 bits
    (".weight_packed", None),               // compressed-tensors, 4 bits
    (".qweight", None),                     // GPTQ, AWQ
    (".qzeros", None),
    ("_blocks", Some("_scales")), // MXFP4 of gpt-oss
    ("_scales", Some("_blocks")), // their scales are codes too, of E8M0
];

/// The tensors of codes in a checkpoint, with what tells that they are.
#[derive(Debug, Default)]
pub struct Codes(HashMap<String, Sign>);

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

impl Codes {
    /// Finds them by their names and types; `quantization` is what the config says of the whole.
    #[must_use]
    pub fn find(tensors: &[(&str, Option<Dtype>)], quantization: Option<&str>) -> Self {
        let names: HashSet<&str> = tensors.iter().map(|(name, _)| *name).collect();
        let sign = |name: &str| {
            let found = SCHEMES.iter().find_map(|(codes, scales)| {
                let stem = name.strip_suffix(codes)?;
                let Some(scales) = scales else { return Some(Sign::Name) };
                let scales = format!("{stem}{scales}");
                names.contains(scales.as_str()).then_some(Sign::Scales(scales))
            });
            found.or_else(|| quantization.map(|method| Sign::Config(method.to_owned())))
        };
        // Weights of wider floats beside a scale are values: the scale is that of activations, or they were unpacked.
        let can_be = |dtype: Option<Dtype>| dtype.is_none_or(|dtype| dtype.bits() <= 8 || !dtype.is_floating());
        let codes = tensors.iter().filter(|(_, dtype)| can_be(*dtype));
        Self(codes.filter_map(|(name, _)| Some(((*name).to_owned(), sign(name)?))).collect())
    }

    /// What to say of a cast of a tensor of codes, and what to do instead; `None` where it holds values.
    #[must_use]
    pub fn refusal(&self, name: &str) -> Option<(String, String)> {
        let why = match self.0.get(name)? {
            Sign::Scales(scales) => format!("holds codes whose scales are in '{scales}'"),
            Sign::Name => "holds codes, as its name says".to_owned(),
            Sign::Config(method) => format!("holds codes: the config says that the model is quantized ({method})"),
        };
        let message = format!("{why}; a cast would take them for values");
        let globs = self.globs().iter().map(|glob| format!("--exclude '{glob}'")).collect::<Vec<_>>().join(" ");
        Some((message, format!("leave all codes as they are with {globs}, or cast them as numbers with --force-codes")))
    }

    /// The scales of all codes.
    #[must_use]
    pub fn scales(&self) -> HashSet<&str> {
        let scales =
            self.0.values().filter_map(|sign| if let Sign::Scales(name) = sign { Some(&**name) } else { None });
        scales.filter(|name| !self.0.contains_key(*name)).collect()
    }

    /// Patterns that match all codes: few, for models repeat the last parts of their names in every layer.
    fn globs(&self) -> BTreeSet<String> {
        const FEW: usize = 16;
        let endings: BTreeSet<String> = self
            .0
            .keys()
            .map(|name| {
                let mut parts = name.rsplit('.');
                let (last, before) = (parts.next().unwrap_or_default(), parts.next());
                before.map_or_else(|| name.clone(), |before| format!("{before}.{last}"))
            })
            .collect();
        let weights: Vec<&str> = endings.iter().filter_map(|ending| ending.strip_suffix(".weight")).collect();
        let mut globs: BTreeSet<String> =
            endings.iter().filter(|ending| !ending.ends_with(".weight")).map(|ending| format!("*{ending}")).collect();
        match weights[..] {
            [] => {}
            [only] => drop(globs.insert(format!("*{only}.weight"))),
            _ => drop(globs.insert(format!("*{{{}}}.weight", weights.join(",")))),
        }
        if globs.len() + weights.len() > FEW { BTreeSet::from(["GLOB".to_owned()]) } else { globs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F8: Option<Dtype> = Some(Dtype::Float8E4M3FN);
    const F32: Option<Dtype> = Some(Dtype::Float32);
    const U8: Option<Dtype> = Some(Dtype::Uint8);

    fn found<'a>(tensors: &[(&'a str, Option<Dtype>)], quantization: Option<&str>) -> Vec<&'a str> {
        let codes = Codes::find(tensors, quantization);
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
        ] {
            assert_eq!(found(&[(codes, dtype), (scales, F32), ("norm.weight", F32)], None), [codes]);
        }
        let blocks = [("m.gate_up_proj_blocks", U8), ("m.gate_up_proj_scales", U8), ("m.gate_up_proj_bias", F32)];
        assert_eq!(found(&blocks, None), ["m.gate_up_proj_blocks", "m.gate_up_proj_scales"]);
    }

    #[test]
    fn values_are_not_taken_for_codes() {
        assert_eq!(found(&[("l.q.weight", F8), ("l.k.weight_scale", F32)], None), [""; 0]);
        assert_eq!(found(&[("l.q.weight", Some(Dtype::Bfloat16)), ("l.q.weight_scale", F32)], None), [""; 0]);
        assert_eq!(found(&[("l.q.weight", F32), ("l.k.weight", U8)], Some("fp8")), ["l.k.weight"]);
    }

    #[test]
    fn the_way_out_names_all_codes() {
        let names = ["l.0.q.weight", "l.1.q.weight", "l.0.k.weight"];
        let mut tensors: Vec<_> = names.iter().map(|name| (*name, F8)).collect();
        let scales = names.map(|name| format!("{name}_scale_inv"));
        tensors.extend(scales.iter().map(|name| (name.as_str(), F32)));
        let codes = Codes::find(&tensors, None);
        let (message, remedy) = codes.refusal("l.0.q.weight").unwrap();
        let wanted = "holds codes whose scales are in 'l.0.q.weight_scale_inv'; a cast would take them for values";
        assert_eq!(message, wanted);
        assert!(remedy.contains("--exclude '*{k,q}.weight',"), "{remedy}");
        assert_eq!(codes.scales().len(), 3);
    }
}
