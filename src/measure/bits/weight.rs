//! Values of quantized weights: the code, and the computation of the value.

use super::render::{RenderStyle, colored, index};
use super::{BitField, hex, meaning, parts};
use crate::dtype::Dtype;
use crate::kernel::shortest;
use crate::quant::{CodeKind, Explanation};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Formats a row: the index, the bits of the code, and the product that gives the value: `(11 - 8) * 0.5 = 1.5`.
pub fn explanation_row(
    codes: CodeKind,
    target: Dtype,
    element_index: u64,
    explanation: &Explanation,
    style: &RenderStyle,
) -> String {
    let bits = fields(codes, explanation).into_iter();
    let bits: Vec<String> = bits.map(|(field, digits)| colored(field, &digits, style)).collect();
    let number = code(codes, explanation);
    let number = match explanation.zero_point {
        Some(zero) => format!("({number} - {})", float(zero.into())),
        None => number,
    };
    let global = match explanation.global_scale {
        Some((global, true)) => format!(" / {}", float(global.into())),
        Some((global, false)) => format!(" * {}", float(global.into())),
        None => String::new(),
    };
    let (scale, value) = (float(explanation.scale), meaning(target, explanation.value.into()).value);
    let offset = match explanation.offset {
        Some(offset) if offset.is_sign_negative() => format!(" + {}", float(-offset)),
        Some(offset) => format!(" - {}", float(offset)),
        None => String::new(),
    };
    format!("{}  {}  {number} * {scale}{global}{offset} = {value}", index(element_index, style), bits.join(" "))
}

/// Returns the contents of [`explanation_row`] as JSON.
pub fn explanation_json(codes: CodeKind, target: Dtype, index: u64, explanation: &Explanation) -> Value {
    let bits = fields(codes, explanation);
    let width: usize = bits.iter().map(|(_, digits)| digits.len()).sum();
    let mut value = json!({
        "index": index,
        "bits": format!("{:0digits$x}", explanation.code, digits = width.div_ceil(4)),
        "parts": BTreeMap::from_iter(bits),
        "code": code(codes, explanation),
        "scale": float(explanation.scale),
        "value": meaning(target, explanation.value.into()).value,
        "value_bits": hex(target, explanation.value.into()),
    });
    if let Some(zero) = explanation.zero_point {
        value["zero_point"] = json!(float(zero.into()));
    }
    if let Some(offset) = explanation.offset {
        value["offset"] = json!(float(offset));
    }
    if let Some((global, is_divisor)) = explanation.global_scale {
        value["global_scale"] = json!(float(global.into()));
        value["divides_by_global_scale"] = json!(is_divisor);
    }
    value
}

/// Returns the binary digits of a code by field.
fn fields(codes: CodeKind, &Explanation { code, code_bits, .. }: &Explanation) -> Vec<(BitField, String)> {
    match codes {
        CodeKind::Dtype(dtype) => parts(dtype, code.into()),
        _ => {
            vec![(BitField::Integer, format!("{code:0width$b}", width = code_bits as usize))]
        }
    }
}

/// Formats the number that a code represents.
fn code(codes: CodeKind, explanation: &Explanation) -> String {
    match codes {
        CodeKind::Dtype(dtype) => meaning(dtype, explanation.code.into()).value,
        _ => float(explanation.number.into()),
    }
}

/// Formats a float32, or a power of two beyond its range.
fn float(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".to_owned(),
        _ if number.is_infinite() => if number > 0.0 { "INF" } else { "-INF" }.to_owned(),
        _ if number.abs() <= f32::MAX.into() => shortest(number as f32),
        _ => shortest(number),
    }
}
