//! quanto of transformers (`int8`) or of optimum (`qint8`).

use super::base::{BASE, bytes};
use super::transformers::TRANSFORMERS;
use super::undecoded::undecoded;
use crate::dtype::Dtype::{self, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Int8};
use crate::error::{Error, Result};
use crate::quant::config::{CheckpointConfig, ConfigObject, Library, WeightDescription, named};
use crate::quant::layout::{Group, Layout, Precision, Role};
use crate::text::shorten;

pub(super) static LIBRARY: Library = Library { layouts: LAYOUTS, names: &["quanto"], read, ..TRANSFORMERS };

static LAYOUTS: &[Layout] = &[
    // optimum-quanto `tensor/qbytes.py`: weights of 8 bits; weights of 2 and 4 bits have another form.
    Layout {
        name: "quanto",
        library: "quanto, weights qint8 or qfloat8",
        names: &[&[
            (Role::Codes, ".weight._data"),
            (Role::Scale, ".weight._scale"),
            (Role::Activation, ".input_scale"),
            (Role::Activation, ".output_scale"),
        ]],
        codes: bytes(&[Int8, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2]),
        groups: &[Group::Tensor, Group::Channel],
        product_precision: Precision::Scale,
        ..BASE
    },
];

fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let mut wording = "the config says quant_method 'quanto'".to_owned();
    let mut codes = Vec::new();
    if let Some(weights) = block.text(&["weights"])? {
        wording = format!("{wording}, weights '{}'", shorten(weights));
        match weights.strip_prefix('q').unwrap_or(weights) {
            "float8" => codes.extend([Dtype::Float8E4M3FN, Dtype::Float8E4M3FNUZ, Dtype::Float8E5M2]),
            "int2" | "int4" => {
                return Err(undecoded("quanto", &format!("weights '{}'", shorten(weights))));
            }
            name => match name.parse() {
                Ok(dtype) => codes.push(dtype),
                Err(_) => return Err(Error::new(format!("{wording}, which tcast does not know"))),
            },
        }
    }
    config.add_others(WeightDescription { codes, ..WeightDescription::new(named(LAYOUTS, None), wording) });
    Ok(())
}
