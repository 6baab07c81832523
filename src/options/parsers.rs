//! Parsers of values on the command line.

use crate::quant::{Group, Rotation, SCHEMES, Scheme};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command};
use std::ffi::OsStr;

/// Returns the parser of the name of a scheme, in the spellings of [`Scheme::find`].
pub(crate) fn scheme() -> impl TypedValueParser<Value = &'static Scheme> {
    SchemeParser { takes_keep: false }.map(|scheme| scheme.expect("only keep is none"))
}

/// A scheme to choose for a weight; `None` for a weight that stays as it is stored.
pub(crate) type SchemeOrKeep = Option<&'static Scheme>;

/// Returns the parser of the name of a scheme, or `keep`.
pub(crate) fn scheme_or_keep() -> impl TypedValueParser<Value = SchemeOrKeep> {
    SchemeParser { takes_keep: true }
}

/// Parses a number of bits per weight.
pub(crate) fn bits(text: &str) -> Result<f64, String> {
    let bits = text.parse().ok().filter(|bits: &f64| (0.1..=64.0).contains(bits));
    bits.ok_or_else(|| "not a number of bits per weight, such as 5.0".to_owned())
}

#[derive(Clone)]
struct SchemeParser {
    takes_keep: bool,
}

impl TypedValueParser for SchemeParser {
    type Value = SchemeOrKeep;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Self::Value, clap::Error> {
        let found = value.to_str().and_then(Scheme::find);
        if found.is_some() || self.takes_keep && value == "keep" {
            return Ok(found);
        }
        let names = SCHEMES.iter().map(|scheme| scheme.name);
        Err(PossibleValuesParser::new(names).parse_ref(command, arg, value).expect_err("no scheme has the name"))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(SCHEMES.iter().map(|scheme| PossibleValue::new(scheme.name).help(scheme.summary))))
    }
}

/// Parses a layout in any case, and returns it as [`SCHEMES`] spells it.
pub(super) fn layout() -> impl TypedValueParser<Value = &'static str> {
    let layouts = || {
        let mut names: Vec<&str> = Vec::new();
        let in_model = |scheme: &'static Scheme| scheme.in_model.iter().map(|layout| layout.name);
        let of_scheme = |scheme: &'static Scheme| scheme.layout_names().chain(in_model(scheme));
        for layout in SCHEMES.iter().flat_map(of_scheme) {
            if !names.contains(&layout) {
                names.push(layout);
            }
        }
        names
    };
    let named = move |typed: &str| layouts().into_iter().find(|name| name.eq_ignore_ascii_case(typed));
    PossibleValuesParser::new(layouts()).map(move |typed| named(&typed).expect("it is a possible value"))
}

pub(super) fn group_size(text: &str) -> Result<Group, String> {
    if text.eq_ignore_ascii_case("channel") {
        return Ok(Group::Channel);
    }
    let size = text.parse().ok().filter(|size: &u64| (8..=65536).contains(size) && size.is_multiple_of(8));
    size.map(Group::Neighbours).ok_or_else(|| "not a multiple of 8 from 8 to 65536, and not channel".to_owned())
}

pub(super) fn accuracy_level(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|level| *level <= 4).ok_or_else(|| "not a number from 0 to 4".to_owned())
}

pub(super) fn rotation(text: &str) -> Result<Rotation, String> {
    match text {
        "none" => Ok(Rotation::Off),
        "16" | "64" | "256" | "1024" => Ok(Rotation::Columns(text.parse().unwrap_or_default())),
        _ => Err("not 16, 64, 256, 1024 or none".to_owned()),
    }
}

pub(super) fn scale(text: &str) -> Result<f32, String> {
    let is_usable = |scale: &f32| scale.is_normal() && *scale > 0.0 && (1.0 / scale).is_normal();
    text.parse().ok().filter(is_usable).ok_or_else(|| "not a positive float32".to_owned())
}

pub(super) fn decibels(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|decibels: &f64| !decibels.is_nan()).ok_or_else(|| "not a number of decibels".to_owned())
}

pub(super) fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "not a whole number, 0 or more".to_owned())
}
