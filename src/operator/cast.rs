//! ONNX Cast: its versions, the pairs of types that each version accepts, and the effect of its attributes on the
//! kernels.

use crate::dtype::{Class, Dtype};
use crate::error::{Error, Kind, Opt, Result};
use crate::kernel::{OutOfRange, RoundMode, Rules};
use serde::{Serialize, Serializer};
use std::str::FromStr;

/// A version of Cast.
pub struct Version {
    /// The opset that introduced the version and gives it its name: Cast-19.
    pub since: u32,
    /// Types that the previous version lacks, for both input and output.
    pub added: &'static [Dtype],
}

/// Every version, the oldest first. Cast-6 only made `to` a number; `--to` always accepts names and numbers.
#[rustfmt::skip]
pub static VERSIONS: [Version; 10] = {
    use Dtype as D;
    [
        Version { since: 1, added: &[D::Bool, D::Int8, D::Int16, D::Int32, D::Int64, D::Uint8, D::Uint16, D::Uint32, D::Uint64, D::Float16, D::Float32, D::Float64] },
        Version { since: 6, added: &[] },
        Version { since: 9, added: &[D::String] },
        Version { since: 13, added: &[D::Bfloat16] },
        Version { since: 19, added: &[D::Float8E4M3FN, D::Float8E4M3FNUZ, D::Float8E5M2, D::Float8E5M2FNUZ] },
        Version { since: 21, added: &[D::Uint4, D::Int4] },
        Version { since: 23, added: &[D::Float4E2M1] },
        Version { since: 24, added: &[D::Float8E8M0] },
        Version { since: 25, added: &[D::Uint2, D::Int2] },
        Version { since: 28, added: &[D::Float6E2M3, D::Float6E3M2] },
    ]
};

/// The attributes other than `to`, each with the version that introduced it.
pub static ATTRIBUTES: [(&str, u32); 2] = [("saturate", 19), ("round_mode", 24)];

/// The version whose float8 table applies if no opset is chosen.
const DEFAULT_VERSION: u32 = 23;

/// A version of ONNX's set of operators, from 1 to [`Opset::NEWEST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Opset(u32);

impl Opset {
    /// The newest known opset.
    pub const NEWEST: u32 = 28;

    /// The number of the opset.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The version of Cast in the opset: the newest that is not newer than the opset.
    #[must_use]
    pub fn version(self) -> u32 {
        VERSIONS.iter().map(|version| version.since).take_while(|since| *since <= self.0).last().unwrap_or(1)
    }

    /// Refuses a type or attribute that a later version introduced, or that no version has.
    fn require(self, what: &str, first: Option<u32>) -> Result<()> {
        let (version, first) = match first {
            Some(first) if first <= self.0 => return Ok(()),
            Some(first) => (self.version(), first),
            None => return Err(Error::new(format!("no version of Cast has {what}")).without(Opt::OPSET)),
        };
        let error = Error::new(format!("Cast-{version} has no {what}: Cast-{first} is the first with it"));
        Err(error
            .with_value(Opt::OPSET, first.to_string(), format!("choose opset {first} or higher"))
            .without(Opt::OPSET))
    }
}

impl FromStr for Opset {
    type Err = Error;

    /// # Errors
    /// The error names the valid numbers.
    fn from_str(text: &str) -> Result<Self> {
        let number = text.parse().ok().filter(|number| (1..=Self::NEWEST).contains(number));
        let refused = || Error::new(format!("an opset is a number from 1 to {}, the newest known", Self::NEWEST));
        number.map(Self).ok_or_else(refused)
    }
}

/// The attributes of a cast, as ONNX names them, and one choice that ONNX leaves open.
///
/// Attributes that are not given have their defaults; every version accepts them. They are serialized with their values in
/// effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct CastAttributes {
    /// Clamp to the range of a float8 [default: true]
    ///
    /// With false, values beyond the range become infinite or NaN.
    #[serde(serialize_with = "or_true")]
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "BOOL",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "true",
            value_parser = clap::builder::BoolishValueParser::new(),
            hide_possible_values = true
        )
    )]
    pub saturate: Option<bool>,

    /// Rounding to float8e8m0 [default: up]
    #[serde(serialize_with = "or_default")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "MODE", hide_short_help = true, hide_possible_values = true))]
    pub round_mode: Option<RoundMode>,

    /// Float beyond an integer: wrap, saturate, error
    ///
    /// Result for a float or a text that an integer type cannot hold, which ONNX leaves undefined [default: wrap]; an
    /// integer always keeps its low bits.
    #[serde(serialize_with = "or_default")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "POLICY", hide_possible_values = true))]
    pub out_of_range: Option<OutOfRange>,

    /// Cast by the rules of this opset, 1 to 28 [default: all types and attributes, by the rules of Cast-23]
    #[cfg_attr(feature = "cli", arg(long, value_name = "N", hide_short_help = true))]
    pub opset: Option<Opset>,
}

#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "serde passes the field")]
fn or_true<S: Serializer>(value: &Option<bool>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(value.unwrap_or(true))
}

#[allow(clippy::ref_option, reason = "serde passes the field")]
fn or_default<T: Copy + Default + Serialize, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.unwrap_or_default().serialize(serializer)
}

impl CastAttributes {
    /// The rules for the kernels.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let saturate = self.saturate.unwrap_or(true);
        let version = self.opset.map_or(DEFAULT_VERSION, Opset::version);
        Rules {
            saturate,
            // Cast-24 changed one row of the float8 table: Inf to a FNUZ type gives FLT_MAX, no longer NaN.
            infinity_saturates_fnuz: saturate && version >= 24,
            round_mode: self.round_mode.unwrap_or_default(),
            out_of_range: self.out_of_range.unwrap_or_default(),
        }
    }

    /// Refuses given attributes that the chosen version lacks.
    ///
    /// # Errors
    /// The error names the attribute and the first version that has it; it is a usage error.
    pub fn check(&self) -> Result<()> {
        let Some(opset) = self.opset else { return Ok(()) };
        let given = [self.saturate.is_some(), self.round_mode.is_some()]; // in the order of ATTRIBUTES
        for ((name, since), is_given) in ATTRIBUTES.iter().zip(given) {
            if is_given {
                opset.require(&format!("attribute {name}"), Some(*since)).map_err(|error| error.of(Kind::Usage))?;
            }
        }
        Ok(())
    }
}

/// Refuses pairs that Cast, or its chosen version, does not support.
///
/// # Errors
/// When one of the types is complex, the version lacks it, or the target is not an ONNX type.
pub fn check(source: Dtype, target: Dtype, attributes: &CastAttributes) -> Result<()> {
    if target.class() == Class::Complex {
        return Err(Error::new(format!("nothing can be cast to {target}: ONNX Cast has no complex types")));
    }
    if source.class() == Class::Complex {
        let error = Error::new(format!("{source} cannot be cast: ONNX Cast has no complex types"));
        return Err(error.unconvertible());
    }
    for dtype in [source, target] {
        if let Some(opset) = attributes.opset {
            let first = VERSIONS.iter().find(|version| version.added.contains(&dtype));
            opset.require(dtype.name(), first.map(|version| version.since))?;
        }
    }
    // A cast of a type to itself is a copy: this is how `--from` names a type in a new file.
    if target.onnx_number().is_none() && source != target {
        let error = Error::new(format!("ONNX Cast has no {target}"));
        return Err(match near(target) {
            Some(near) => error.with(Opt::TO, format!("choose {near}, the nearest type that it has")),
            None => error,
        });
    }
    Ok(())
}

/// The ONNX type most similar to one that ONNX lacks: the same kind, and the nearest width, exponent and specials.
fn near(dtype: Dtype) -> Option<Dtype> {
    let distance = |other: Dtype| {
        let width = dtype.bits().abs_diff(other.bits());
        match (dtype.class(), other.class()) {
            (Class::Int { signed }, Class::Int { signed: other }) if signed == other => Some((width, 0, false)),
            (Class::Float(format), Class::Float(other)) => {
                let exponents = format.exponent_bits.abs_diff(other.exponent_bits);
                Some((width, exponents, format.specials != other.specials))
            }
            _ => None,
        }
    };
    let others = Dtype::all().filter(|other| other.onnx_number().is_some());
    others.filter_map(|other| Some((distance(other)?, other))).min().map(|(_, other)| other)
}
