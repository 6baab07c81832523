//! Codes and scales that are found again in decoded values.

use super::encode::recipe;
use super::goldens::{Golden, layout, read};
use super::{fixtures, goldens, report_other_goldens};
use std::path::Path;
use std::sync::Arc;
use tcast::dtype::Dtype;
use tcast::quant::{
    Arithmetic, Decoder, EncodeOptions, EncodeTally, Encoder, Extremes, Group, Layout, Parameters, Part, Recoverer,
    Role, RotationUse, SCHEMES, ScaleMatch, Scheme, SchemeLayout, TargetGrid, find,
};

/// The stored bytes of the parts of a weight, in the order of the encoder.
type Parts = Vec<Vec<u8>>;

/// A weight that was decoded.
struct Decoded {
    layout: &'static Layout,
    grid: TargetGrid,
    shape: Vec<u64>,
    target: Dtype,
    arithmetic: Arithmetic,
    values: Vec<u8>,
}

/// The parameters of a decoder for what an encoder writes.
fn parameters(plain: &Decoded) -> Parameters {
    Parameters {
        shape: Some(plain.shape.clone()),
        group: Some(plain.grid.group),
        bits: Some(plain.grid.codes.bits()),
        ..Parameters::default()
    }
}

fn decode(encoder: &Encoder, plain: &Decoded, parts: &Parts) -> Vec<u8> {
    let described: Vec<Part> = encoder
        .parts()
        .iter()
        .map(|part| Part { role: part.role, name: part.suffix, dtype: part.dtype, shape: &part.shape })
        .collect();
    let bytes: Vec<&[u8]> = parts.iter().map(|bytes| &bytes[..]).collect();
    let Decoded { layout, target, arithmetic, .. } = *plain;
    let decoder = match layout.name {
        "gptoss-mxfp4" => Decoder::of_rows(layout, &parameters(plain), &described),
        _ => Decoder::new(layout, &parameters(plain), &described, target, arithmetic),
    };
    values_of(&decoder.unwrap(), &bytes, target)
}

/// All values of a weight. Those that a decoder makes as float64 have few digits.
fn values_of(decoder: &Decoder, parts: &[&[u8]], target: Dtype) -> Vec<u8> {
    let mut values = vec![0; (decoder.rows() * decoder.row_bytes()) as usize];
    decoder.decode(0..decoder.rows(), parts, &mut values).unwrap();
    if decoder.target() == target {
        return values;
    }
    let narrow = |bytes: &[u8; 8]| {
        let value = f64::from_le_bytes(*bytes) as f32;
        match target {
            Dtype::Float32 => value.to_le_bytes().to_vec(),
            Dtype::Bfloat16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => half::f16::from_f32(value).to_le_bytes().to_vec(),
        }
    };
    values.as_chunks().0.iter().flat_map(narrow).collect()
}

/// Codes and scales that decode to the same values, if all groups have some.
fn recover(plain: &Decoded, origin: Dtype, scale: Option<Dtype>, top: f32) -> Option<Parts> {
    let grid = TargetGrid { scale: plain.grid.scale.or(scale), ..plain.grid };
    let encoder = Encoder::new(plain.layout, &grid, &plain.shape, plain.target, EncodeOptions::default()).unwrap();
    let encoder = Arc::new(encoder);
    let recoverer = Recoverer::new(Arc::clone(&encoder), origin, plain.arithmetic);
    let rows = 0..encoder.rows();
    let shared = recoverer.shared_scales(top).into_iter();
    let shared = { shared }.find(|shared| recoverer.check(rows.clone(), &plain.values, shared).is_ok())?;
    assert!(recoverer.may_fit(&plain.values));
    let mut parts: Parts = encoder.parts().iter().map(|part| vec![0xa5; part.byte_len() as usize]).collect();
    // In pieces.
    let step = encoder.row_alignment() as usize;
    for start in rows.clone().step_by(step) {
        let range = start..rows.end.min(start + step as u64);
        let places = parts.iter_mut().zip(encoder.part_ranges(range.clone()));
        let mut outputs: Vec<&mut [u8]> =
            places.map(|(part, range)| &mut part[range.start as usize..range.end as usize]).collect();
        let [first, end] = [range.start, range.end].map(|row| (row * encoder.row_bytes()) as usize);
        let mut tally = EncodeTally::default();
        recoverer.encode(range, &plain.values[first..end], &shared, &mut outputs, &mut tally).unwrap();
        assert!(tally.is_exact());
    }
    assert!(decode(&encoder, plain, &parts) == plain.values);
    Some(parts)
}

fn largest(plain: &Decoded) -> f32 {
    Extremes::of(plain.target, &plain.values, 0).largest as f32
}

/// How many bytes of codes and of scales differ from those of the library; `None` if a golden has none to recover.
fn differing(golden: &Golden, encode: &serde_json::Value, target: Dtype, arithmetic: Arithmetic) -> Option<[usize; 2]> {
    let input = golden.tensors.get("input.weight")?;
    let recipe = recipe(&golden.layout, encode)?;
    let (name, parameters) = layout(golden);
    let suffix = |name: &str| {
        let names = find(recipe.layout.name).unwrap().names[0].iter();
        { names }.find(|(_, suffix)| suffix.trim_start_matches(['.', '_']) == name).map(|(role, _)| *role)
    };
    let stored_parts =
        golden.tensors.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("encoded.")?, tensor)));
    let stored_parts: Vec<_> = stored_parts.filter_map(|(name, tensor)| Some((suffix(name)?, name, tensor))).collect();
    let parts: Vec<Part> = stored_parts
        .iter()
        .map(|&(role, name, tensor)| Part { role, name, dtype: tensor.dtype, shape: &tensor.shape })
        .collect();
    let bytes: Vec<&[u8]> = stored_parts.iter().map(|(_, _, tensor)| &tensor.bytes[..]).collect();
    let parameters = Parameters { shape: Some(input.shape.clone()), ..parameters };
    let decoder = match name {
        "gptoss-mxfp4" => Decoder::of_rows(recipe.layout, &parameters, &parts).unwrap(),
        _ => Decoder::new(recipe.layout, &parameters, &parts, target, arithmetic).unwrap(),
    };
    let values = values_of(&decoder, &bytes, target);
    let plain =
        Decoded { layout: recipe.layout, grid: recipe.grid, shape: input.shape.clone(), target, arithmetic, values };
    let scale = stored_parts.iter().find(|(role, ..)| *role == Role::Scale).map(|(_, _, tensor)| tensor.dtype);
    let found = recover(&plain, input.dtype, scale, largest(&plain));
    let Some(found) = found else { return Some([usize::MAX; 2]) };
    let encoder = Encoder::new(
        recipe.layout,
        &TargetGrid { scale: recipe.grid.scale.or(scale), ..recipe.grid },
        &input.shape,
        target,
        EncodeOptions::default(),
    )
    .unwrap();
    let mut sums = [0; 2];
    for (part, found) in encoder.parts().iter().zip(&found) {
        let Some((.., wanted)) = stored_parts.iter().find(|(role, ..)| *role == part.role) else { continue };
        let count = found.iter().zip(&wanted.bytes).filter(|(found, wanted)| found != wanted).count();
        sums[usize::from(part.role != Role::Codes)] += count;
    }
    Some(sums)
}

/// Layouts whose scales follow from decoded bfloat16 values. For the others, several scales decode to the same values.
const UNAMBIGUOUS: &[&str] = &[
    "ct-fp8-tensor",
    "ct-fp8-channel",
    "ct-fp8-block",
    "ct-int8-channel",
    "ct-int-pack",
    "ct-nvfp4",
    "ct-mxfp4",
    "ct-mxfp6",
    "gptoss-mxfp4",
    "comfy-fp8",
    "comfy-scaled-fp8",
    "comfy-nvfp4",
];

fn check(path: &Path) -> Option<(String, usize)> {
    let golden = read(path);
    let file = std::fs::read(path).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&file).unwrap();
    let metadata = metadata.metadata().as_ref().unwrap();
    let encode: serde_json::Value =
        metadata.get("encode").map_or_else(Default::default, |text| serde_json::from_str(text).unwrap());
    let is_fused = golden.tensors.contains_key("fused.0");
    // The scale of these is no bfloat16 number, or was not computed from one.
    let is_float32 = encode["arithmetic"] == "float32";
    let input = golden.tensors.get("input.weight")?;
    if is_fused || is_float32 || input.dtype != Dtype::Bfloat16 {
        return None;
    }
    let is_unambiguous =
        UNAMBIGUOUS.contains(&&*golden.layout) || golden.name.starts_with("hf-fp8-block") && encode["scale"].is_null();
    let mut values = 0;
    for target in [Dtype::Bfloat16, Dtype::Float32] {
        for arithmetic in [Arithmetic::Library, Arithmetic::Exact] {
            let [codes, scales] = differing(&golden, &encode, target, arithmetic)?;
            let most = if is_unambiguous { 0 } else { golden.tensors["input.weight"].bytes.len() / 2 / 5 };
            let place = format!("{} {target} {arithmetic:?}", golden.name);
            assert!(codes <= most && scales <= most, "{place}: {codes} bytes of codes, {scales} of scales differ");
            values += input.bytes.len() / 2;
        }
    }
    Some((golden.layout, values))
}

#[test]
fn what_the_libraries_wrote_is_found_in_the_decoded_values() {
    let layouts = goldens(&fixtures(), check);
    assert!(layouts.len() >= 8, "{layouts:?}");
}

/// `TCAST_GOLDENS=DIR cargo test --test quant recover:: -- --ignored --nocapture` checks the files of another folder.
#[test]
#[ignore = "needs a folder of goldens in TCAST_GOLDENS"]
fn it_is_found_in_other_goldens() {
    report_other_goldens(check);
}

/// Numbers near a normal distribution, with a zero here and there, as bfloat16, float16 or float32.
fn weights(dtype: Dtype, count: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let mut bytes = Vec::new();
    for at in 0..count {
        let sum: f32 = (0..6).map(|_| next() - 0.5).sum();
        let value = if at % 53 == 7 { 0.0 } else { sum * 0.04 };
        match dtype {
            Dtype::Float32 => bytes.extend(value.to_le_bytes()),
            Dtype::Bfloat16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
            _ => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
        }
    }
    bytes
}

/// All combinations of scheme and layout, with a shape that fits the groups.
fn combinations() -> impl Iterator<Item = (&'static str, &'static SchemeLayout, Vec<u64>)> {
    let of = |scheme: &'static Scheme| scheme.layouts.iter().map(|stored| (scheme.name, stored));
    // Rotated values are not recovered.
    let is_recovered = |(_, stored): &(&str, &SchemeLayout)| stored.row.rotation != RotationUse::Always;
    SCHEMES.iter().flat_map(of).filter(is_recovered).map(|(name, stored)| {
        let shape = match stored.grid.group {
            Group::Block([rows, _]) if rows > 1 => vec![256, 384],
            _ => vec![40, 384],
        };
        (name, stored, shape)
    })
}

#[test]
fn every_scheme_and_layout_is_recovered_from_what_it_decodes_to() {
    for (name, stored, shape) in combinations() {
        let (layout, grid) = (stored.row, stored.grid);
        for (dtype, arithmetic) in [
            (Dtype::Bfloat16, Arithmetic::Library),
            (Dtype::Bfloat16, Arithmetic::Exact),
            (Dtype::Float16, Arithmetic::Library),
            (Dtype::Float32, Arithmetic::Library),
        ] {
            let values = weights(dtype, shape.iter().product::<u64>() as usize);
            let encoder = Encoder::new(layout, &grid, &shape, dtype, EncodeOptions::default()).unwrap();
            let mut parts: Parts = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
            let mut outputs: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
            let (extremes, mut tally) = (Extremes::of(dtype, &values, 0), EncodeTally::default());
            encoder.encode(0..encoder.rows(), &values, &extremes, &mut outputs, &mut tally);
            let mut plain = Decoded { layout, grid, shape: shape.clone(), target: dtype, arithmetic, values };
            plain.values = decode(&encoder, &plain, &parts);
            let found = recover(&plain, dtype, None, largest(&plain));
            let place = format!("{name} {} {dtype} {arithmetic:?}", stored.name);
            match layout.name {
                // Its global scale is a float32 that the few digits of bfloat16 products do not determine.
                "ct-nvfp4" if dtype == Dtype::Float32 => assert_eq!(found, None, "{place}"),
                // The sign of zeros is lost, or two powers of two have codes for the same values.
                "modelopt-nvfp4" | "modelopt-mxfp4" | "mlx-mxfp4" => assert!(found.is_some(), "{place}"),
                _ if name == "mxfp8" => assert!(found.is_some(), "{place}"),
                // tcast does not look for offsets, nor for scales of E4M3 without a global scale.
                "mlx-affine" | "mlx-nvfp4" => assert!(found.is_none_or(|found| found == parts), "{place}"),
                _ => assert!(found == Some(parts), "{place}: {}", found.is_some()),
            }
        }
    }
}

#[test]
fn scales_of_float32_weights_are_found_up_to_the_range_that_decodes_to_the_same_values() {
    let stored = Scheme::find("fp8-block").unwrap().in_layout(Some("huggingface")).unwrap();
    let shape = vec![256, 384];
    let values = weights(Dtype::Float32, 256 * 384);
    let (layout, grid, options) = (stored.row, stored.grid, EncodeOptions::default());
    let encoder = Encoder::new(layout, &grid, &shape, Dtype::Float32, options).unwrap();
    let mut first: Parts = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
    let mut outputs: Vec<&mut [u8]> = first.iter_mut().map(|part| &mut part[..]).collect();
    let mut tally = EncodeTally::default();
    encoder.encode(0..256, &values, &Extremes::default(), &mut outputs, &mut tally);
    for arithmetic in [Arithmetic::Library, Arithmetic::Exact] {
        let mut plain =
            Decoded { layout, grid, shape: shape.clone(), target: Dtype::Bfloat16, arithmetic, values: Vec::new() };
        plain.values = decode(&encoder, &plain, &first);
        let encoder = Arc::new(Encoder::new(layout, &grid, &shape, Dtype::Bfloat16, options).unwrap());
        let recoverer = Recoverer::new(encoder, Dtype::Bfloat16, arithmetic);
        let shared = recoverer.shared_scales(0.0)[0];
        assert_eq!(recoverer.check(0..256, &plain.values, &shared), Ok(ScaleMatch::Equivalent));
        // `recover` compares the decoded values.
        let found = recover(&plain, Dtype::Bfloat16, None, 0.0).unwrap();
        assert!(found[0] == first[0], "the codes are the same");
        for (scale, wanted) in found[1].as_chunks().0.iter().zip(first[1].as_chunks().0) {
            let [scale, wanted] = [scale, wanted].map(|bytes| f32::from_le_bytes(*bytes));
            assert!((scale / wanted - 1.0).abs() < 1.0 / 256.0, "{scale} {wanted}");
        }
    }
}

#[test]
fn plain_weights_are_not_recovered() {
    for (name, stored, shape) in combinations() {
        for dtype in [Dtype::Bfloat16, Dtype::Float16, Dtype::Float32] {
            let values = weights(dtype, shape.iter().product::<u64>() as usize);
            let encoder = Encoder::new(stored.row, &stored.grid, &shape, dtype, EncodeOptions::default()).unwrap();
            let recoverer = Recoverer::new(Arc::new(encoder), dtype, Arithmetic::Library);
            let all = 0..recoverer.encoder().rows();
            let largest = Extremes::of(dtype, &values, 0).largest as f32;
            for shared in recoverer.shared_scales(largest) {
                let first = recoverer.check(all.clone(), &values, &shared).unwrap_err();
                // In the first row of groups.
                assert!(first < 128 * shape[1], "{name} {} {dtype}: {first}", stored.name);
            }
        }
    }
}
