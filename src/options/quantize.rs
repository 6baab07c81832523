//! Options of `quantize`, and rules that choose a scheme by the name of a weight.

#[cfg(feature = "cli")]
use super::parsers;
use super::shared::{path_as_text, texts};
use super::{ContentOptions, Defect, GgufOptions, ModelOptions, ShardOptions, TensorOptions};
use crate::error::{Error, Result};
use crate::quant::{EncodeArithmetic, GGUF, Group, Rotation, SCHEMES, ScaleChoice, Scheme};
use crate::select::Pattern;
use crate::text::shorten;
use serde::{Serialize, Serializer};
use std::path::PathBuf;

/// Options of `quantize`: makes codes and scales of weights, and copies all other tensors.
#[allow(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// The scheme of all weights that no rule names. Without a scheme, the layout of a quantized model changes, and its
    /// values stay. With neither a scheme nor a layout, adapters are merged into a quantized model, which keeps both.
    // The command line also takes a list of schemes to choose from.
    #[cfg_attr(feature = "cli", arg(skip))]
    pub scheme: Option<&'static Scheme>,

    /// Storage format: modelopt, comfyui, gguf and others
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "LAYOUT",
            value_parser = parsers::layout(),
            hide_possible_values = true,
            ignore_case = true
        )
    )]
    pub layout: Option<&'static str>,

    /// Values that share a scale [default: 128]
    ///
    /// A multiple of 8, or channel for a whole row. For integers in words, from int2 to int8-asym; the groups of the other
    /// schemes have one size. In the layout matmulnbits a power of two from 16 on, and 32 by default; --block-size is the same.
    #[serde(serialize_with = "group_size")]
    #[cfg_attr(feature = "cli", arg(long, alias = "block-size", value_name = "N", value_parser = parsers::group_size))]
    pub group_size: Option<Group>,

    /// Columns that are rotated together [default: 256]
    ///
    /// 16, 64, 256, 1024 or none. For int8, int4, w4a8 and w6a8 of comfyui; only int8 can do without. A weight of int8 whose
    /// columns are not a multiple stays unrotated; other such weights are copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "N", value_parser = parsers::rotation, hide_short_help = true)
    )]
    pub rotation: Option<Rotation>,

    /// Rounding of scales and codes
    #[cfg_attr(feature = "cli", arg(long, value_enum, default_value_t, hide_short_help = true))]
    pub arithmetic: EncodeArithmetic,

    /// Choice of the scale of a group in nvfp4, mxfp4 and integers below 8 bits
    #[cfg_attr(feature = "cli", arg(long, value_enum, default_value_t, hide_short_help = true))]
    pub search: ScaleChoice,

    /// Also quantize weights whose last blocks are partial
    ///
    /// transformers and SGLang do not load such weights.
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true))]
    pub partial_blocks: bool,

    /// Find the codes and scales of decoded weights
    ///
    /// A weight gets its original codes and scales if these decode to the same bits; other weights are quantized as
    /// usual. tcast reads each recovered weight once more. The report lists them. For GGUF outputs, it finds all blocks of
    /// q8_0, q4_0, q5_0, iq4_nl, tq1_0, tq2_0, mxfp4 and nvfp4, and some of other types.
    #[cfg_attr(feature = "cli", arg(long, requires = "scheme"))]
    #[allow(clippy::doc_markdown, reason = "the help shows the text as it is")]
    pub recover: bool,

    /// Fail, and write nothing, if a value could change
    ///
    /// That includes all weights that would be quantized again. For a model that is quantized already, and for
    /// --recover. Without --scheme, it is always on.
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true))]
    pub only_exact: bool,

    /// Quantize the floats of a model that is quantized in a way that tcast does not decode
    ///
    /// Treats all tensors as plain values; for a model with a wrong config.json.
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true))]
    pub force_codes: bool,

    /// With nvfp4, the global scale of all activations: 2688 / their measured largest magnitude
    ///
    /// tcast stores it with each weight, and engines then quantize the activations to 4 bits too.
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "VALUE", value_parser = parsers::scale, hide_short_help = true)
    )]
    pub input_global_scale: Option<f32>,

    /// Another scheme, or keep, for some weights
    ///
    /// Repeatable; the first match wins, and takes precedence over --scheme and over what tcast copies by default.
    #[serde(rename = "rules", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB=SCHEME", help_heading = "Which weights"))]
    pub rule: Vec<SchemeRule>,

    /// Fail, and write nothing, if a weight has one of these; repeatable, or separated by commas
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "WHAT",
            value_delimiter = ',',
            value_parser = Defect::parser(Defect::OF_WEIGHTS),
            requires_if("lost", "lora"),
            help_heading = "Reports",
            hide_short_help = true
        )
    )]
    pub fail_on: Vec<Defect>,

    /// Fail, and write nothing, if a weight has a lower signal-to-noise ratio, in decibels
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "DB",
            value_parser = parsers::decibels,
            help_heading = "Reports",
            hide_short_help = true
        )
    )]
    pub min_sqnr: Option<f64>,

    /// Options for ONNX models.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub model: ModelOptions,

    /// ONNX models, matmulnbits: the arithmetic of the kernels that multiply
    ///
    /// From 0 to 4: not set, float32, float16, bfloat16, int8. The values of the weights do not depend on it. Other exporters write 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "LEVEL",
            value_parser = parsers::accuracy_level,
            hide_short_help = true,
            help_heading = "ONNX models"
        )
    )]
    pub accuracy_level: Option<u8>,

    /// ONNX models, matmulnbits: quantize the tables of Gather nodes too
    ///
    /// For int4 and int4-asym. The nodes become GatherBlockQuantized of ONNX Runtime. A table that other nodes use too is
    /// copied, such as an embedding that is also the output layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "cli", arg(long, hide_short_help = true, help_heading = "ONNX models"))]
    #[allow(clippy::doc_markdown, reason = "the help shows the text as it is")]
    pub include_embeddings: bool,

    /// Options for GGUF files that are made.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub gguf: GgufOptions,

    /// GGUF outputs: the importance of the columns of each weight, from llama-imatrix
    ///
    /// With it, all types but q8_0, mxfp4, nvfp4, tq1_0 and tq2_0 get codes that fit the important columns better.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "path_as_text")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "FILE", hide_short_help = true, help_heading = "GGUF models"))]
    #[allow(clippy::doc_markdown, reason = "the help shows the text as it is")]
    pub imatrix: Option<PathBuf>,

    /// Contents of the output.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub contents: ContentOptions,

    /// Sizes of shards.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten))]
    pub shards: ShardOptions,

    /// Choice of weights.
    #[serde(flatten)]
    #[cfg_attr(feature = "cli", command(flatten, next_help_heading = "Which weights"))]
    pub tensors: TensorOptions,
}

/// Serializes the size of groups as on the command line.
#[allow(clippy::ref_option, reason = "serde passes the field")]
fn group_size<S: Serializer>(group: &Option<Group>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    match group {
        Some(Group::Neighbours(size)) => serializer.serialize_u64(*size),
        Some(_) => serializer.serialize_str("channel"),
        None => serializer.serialize_none(),
    }
}

impl QuantizeOptions {
    /// Returns options that quantize weights with a scheme in its default layout. The scheme has a name such as `nvfp4`, or
    /// an alias of vLLM.
    ///
    /// # Errors
    /// When there is no such scheme; the error lists all.
    pub fn scheme(name: &str) -> Result<Self> {
        let scheme = Scheme::find(name).ok_or_else(|| {
            let names: Vec<&str> = SCHEMES.iter().map(|scheme| scheme.name).collect();
            Error::usage(format!("unknown scheme '{}': it is one of {}", shorten(name), names.join(", ")))
        })?;
        Ok(Self { scheme: Some(scheme), ..Self::default() })
    }

    /// Returns the schemes of the rules, and the scheme of all other weights.
    #[cfg(feature = "cli")]
    pub(crate) fn schemes(&self) -> impl Iterator<Item = &'static Scheme> {
        self.rule.iter().filter_map(|rule| rule.scheme).chain(self.scheme)
    }

    /// Returns the options for another scheme, without those that have no effect on it.
    #[cfg(feature = "cli")]
    pub(crate) fn for_scheme(&self, scheme: &'static Scheme) -> Self {
        let mut options = Self { scheme: Some(scheme), ..self.clone() };
        let has = |what: &dyn Fn(&Scheme) -> bool| options.schemes().any(what);
        let layout = options.layout_in_effect().unwrap_or_default();
        let has_groups = has(&Scheme::has_group_size);
        let has_rotation = has(&|scheme| scheme.has_rotation(layout));
        let has_search = has(&Scheme::has_search);
        let has_partial_blocks = has(&|scheme| scheme.has_partial_blocks(layout));
        let has_activations = has(&Scheme::has_activation_scale);
        options.group_size = options.group_size.filter(|_| has_groups);
        options.rotation = options.rotation.filter(|_| has_rotation);
        if options.arithmetic == EncodeArithmetic::Kitchen && !has_rotation {
            options.arithmetic = EncodeArithmetic::default();
        }
        options.search = if has_search { options.search } else { ScaleChoice::default() };
        options.partial_blocks &= has_partial_blocks;
        options.input_global_scale = options.input_global_scale.filter(|_| has_activations);
        if options.is_gguf() {
            (options.arithmetic, options.search) = (EncodeArithmetic::default(), ScaleChoice::default());
            (options.group_size, options.input_global_scale) = (None, None);
        } else {
            (options.gguf, options.imatrix) = (GgufOptions::default(), None);
        }
        options
    }

    /// True if no value of a quantized weight may change.
    pub(crate) fn keeps_values(&self) -> bool {
        self.only_exact || self.scheme.is_none()
    }

    /// True if the output is a GGUF file.
    pub(crate) fn is_gguf(&self) -> bool {
        self.layout_in_effect() == Some(GGUF.name)
    }

    /// Returns the chosen layout, or the default of the scheme; `None` if there is neither.
    pub(crate) fn layout_in_effect(&self) -> Option<&'static str> {
        self.layout.or_else(|| self.scheme.map(Scheme::default_layout))
    }
}

/// `GLOB=SCHEME` quantizes the weights that match to a scheme; `GLOB=keep` leaves them as they are.
#[derive(Clone, Debug)]
pub struct SchemeRule {
    pub(crate) pattern: Pattern,
    pub(crate) scheme: Option<&'static Scheme>,
}

impl std::str::FromStr for SchemeRule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (pattern, scheme) =
            text.rsplit_once('=').ok_or_else(|| Error::new("a rule is GLOB=SCHEME or GLOB=keep"))?;
        let scheme = match scheme {
            "keep" => None,
            name => {
                Some(Scheme::find(name).ok_or_else(|| Error::new(format!("there is no scheme '{}'", shorten(name))))?)
            }
        };
        Ok(Self { pattern: pattern.parse()?, scheme })
    }
}

#[doc(hidden)] // for records and messages
impl std::fmt::Display for SchemeRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.pattern, self.scheme.map_or("keep", |scheme| scheme.name))
    }
}
