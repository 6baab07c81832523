//! Weights encoded as the libraries encode them, byte for byte: files that the libraries wrote, with the values that
//! they were given. `fixtures/README.md` says what is in them.

use super::{fixtures, goldens, mlx_fixtures, report_other_goldens};
use safetensors::SafeTensors;
use std::fs;
use std::path::Path;
use tcast::dtype::Dtype;
use tcast::kernel::Isa;
use tcast::quant::{
    Arithmetic, CodeType, EncodeOptions, EncodeTally, Encoder, Extremes, Group, Layout, TargetGrid, find,
};

use Dtype::{Bfloat16, Float4E2M1, Float6E2M3, Float8E4M3FN, Float8E5M2, Float8E8M0, Float16, Float32, Uint8};

/// How a golden was made: the row of the table, the grid, and whether its values are widened to float32 first.
pub(super) struct Recipe {
    pub(super) layout: &'static Layout,
    pub(super) grid: TargetGrid,
    pub(super) options: EncodeOptions,
    pub(super) is_widened: bool,
}

/// `None` for goldens that tcast does not write, because no layout of the table uses their rule.
pub(super) fn recipe(name: &str, options: &serde_json::Value) -> Option<Recipe> {
    let float = |dtype| CodeType::Float(dtype);
    let group = |size| Group::Neighbours(size);
    let block = || {
        let given = options["block"].as_array().map(|sides| [0, 1].map(|at| sides[at].as_u64().unwrap()));
        Group::Block(given.unwrap_or([128, 128]))
    };
    if options["rule"] == "kitchen" || options["divisor"] == "rounded" {
        return None;
    }
    let (layout, codes, group, scale) = match name {
        "ct-fp8-tensor" => ("ct-fp8", float(Float8E4M3FN), Group::Tensor, None),
        "ct-fp8-channel" => ("ct-fp8", float(Float8E4M3FN), Group::Channel, None),
        "ct-fp8-block" => ("ct-fp8", float(Float8E4M3FN), block(), None),
        "ct-int8-channel" | "ct-int-pack" => {
            let symmetric = options["symmetric"].as_bool().unwrap_or(true);
            let is_packed = name == "ct-int-pack";
            let bits = options["bits"].as_u64().unwrap_or(if is_packed { 4 } else { 8 }) as u32;
            let group = match &options["group"] {
                _ if !is_packed => Group::Channel,
                serde_json::Value::Null if options.get("group").is_some() => Group::Channel,
                size => group(size.as_u64().unwrap_or(128)),
            };
            (if is_packed { "ct-pack" } else { "ct-int8" }, CodeType::Int { bits, symmetric }, group, None)
        }
        "ct-nvfp4" | "modelopt-nvfp4" | "comfy-nvfp4" => (name, float(Float4E2M1), group(16), Some(Float8E4M3FN)),
        "ct-mxfp4" | "modelopt-mxfp4" | "gptoss-mxfp4" | "mlx-mxfp4" => {
            (name, float(Float4E2M1), group(32), Some(Uint8))
        }
        "ct-mxfp6" => (name, float(Float6E2M3), group(32), Some(Uint8)),
        "ct-mxfp8" | "modelopt-mxfp8" | "mlx-mxfp8" => (name, float(Float8E4M3FN), group(32), Some(Uint8)),
        "comfy-mxfp8" => (name, float(Float8E4M3FN), group(32), Some(Float8E8M0)),
        "hf-fp8-block" => {
            let scale = match options["scale"].as_str() {
                Some("ue8m0") => Float8E8M0,
                Some("bfloat16") => Bfloat16,
                _ => Float32,
            };
            ("hf-fp8", float(Float8E4M3FN), block(), Some(scale))
        }
        "modelopt-fp8" if options["axis"].is_u64() => (name, float(Float8E4M3FN), Group::Channel, Some(Float32)),
        "modelopt-fp8" => (name, float(Float8E4M3FN), Group::Tensor, Some(Float32)),
        "comfy-fp8" | "comfy-scaled-fp8" => {
            let codes = if options["type"] == "float8_e5m2" { Float8E5M2 } else { Float8E4M3FN };
            (name, float(codes), Group::Tensor, Some(Float32))
        }
        "mlx-affine" => {
            let number = |key: &str| options[key].as_u64().unwrap();
            (name, CodeType::Int { bits: number("bits") as u32, symmetric: false }, group(number("group")), None)
        }
        "mlx-nvfp4" => (name, float(Float4E2M1), group(16), Some(Uint8)),
        _ => panic!("{name}"),
    };
    Some(Recipe {
        layout: find(layout).unwrap(),
        grid: TargetGrid { codes, group, scale },
        options: EncodeOptions::default(),
        is_widened: options["arithmetic"] == "float32",
    })
}

fn dtype(name: safetensors::Dtype) -> Dtype {
    let name = format!("{name}");
    Dtype::all().find(|dtype| dtype.safetensors_name() == Some(&name)).unwrap()
}

/// Widens bfloat16 to float32.
fn widen(bytes: &[u8]) -> Vec<u8> {
    bytes.as_chunks::<2>().0.iter().flat_map(|bytes| [0, 0, bytes[0], bytes[1]]).collect()
}

/// Encodes the rows in ranges of these lengths, counted in units of the alignment.
fn encode(
    encoder: &Encoder,
    source: &[u8],
    extremes: &Extremes,
    lengths: impl IntoIterator<Item = u64>,
) -> (Vec<Vec<u8>>, EncodeTally) {
    let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0xa5; part.byte_len() as usize]).collect();
    let (mut start, mut tally) = (0, EncodeTally::default());
    for length in lengths {
        let end = (start + length * encoder.row_alignment()).min(encoder.rows());
        let ranges = encoder.part_ranges(start..end);
        let places = parts.iter_mut().zip(ranges);
        let mut outputs: Vec<&mut [u8]> =
            places.map(|(part, range)| &mut part[range.start as usize..range.end as usize]).collect();
        let place = (start * encoder.row_bytes()) as usize..(end * encoder.row_bytes()) as usize;
        let mut own = EncodeTally::default();
        encoder.encode(start..end, &source[place], extremes, &mut outputs, &mut own);
        tally += &own;
        start = end;
    }
    assert_eq!(start, encoder.rows());
    (parts, tally)
}

/// Compares the encoder's output with a golden, and returns how many bytes it compared.
fn check(path: &Path) -> Option<(String, usize)> {
    let bytes = fs::read(path).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = metadata.metadata().as_ref().unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let Ok(input) = tensors.tensor("input.weight") else { return None };
    if metadata.get("encodes").is_some_and(|encodes| encodes != "yes") {
        return None;
    }
    let options: serde_json::Value =
        metadata.get("encode").map_or_else(Default::default, |text| serde_json::from_str(text).unwrap());
    // `model_free_ptq` of llm-compressor keeps the sign of -0, and its `oneshot` does not; tcast writes codes like the latter.
    let keeps_negative_zero =
        matches!(&*metadata["layout"], "ct-fp8-tensor" | "ct-fp8-channel" | "ct-fp8-block" | "ct-mxfp8")
            && options["negative_zero"] != "plus";
    let Recipe { layout, grid, options, is_widened } = recipe(&metadata["layout"], &options)?;
    let (source, values) = match (dtype(input.dtype()), is_widened) {
        (Bfloat16, true) => (Float32, widen(input.data())),
        (Float16, true) => panic!("{name}"),
        (source, _) => (source, input.data().to_vec()),
    };
    let shape: Vec<u64> = input.shape().iter().map(|length| *length as u64).collect();
    let encoder = Encoder::new(layout, &grid, &shape, source, options).unwrap_or_else(|why| panic!("{name}: {why}"));
    let mut encoder = encoder.on(Isa::Baseline);
    let mut extremes = Extremes::of(source, &values, 0);
    for (_, other) in tensors.iter().filter(|(other, _)| other.starts_with("fused.")) {
        let data = if is_widened { widen(other.data()) } else { other.data().to_vec() };
        extremes.merge(&Extremes::of(source, &data, 0));
    }
    let (parts, tally) = encode(&encoder, &values, &extremes, [u64::MAX / 256]);
    let mut compared = 0;
    for (part, ours) in encoder.parts().iter().zip(&parts) {
        let Ok(theirs) = tensors.tensor(&format!("encoded.{}", part.suffix.trim_start_matches(['.', '_']))) else {
            assert!(part.suffix == ".comfy_quant", "{name}: {}", part.suffix);
            continue;
        };
        let shape: Vec<u64> = theirs.shape().iter().map(|length| *length as u64).collect();
        assert_eq!((part.dtype, &part.shape), (dtype(theirs.dtype()), &shape), "{name}: {}", part.suffix);
        let is_unsigned = |at: usize| keeps_negative_zero && (ours[at], theirs.data()[at]) == (0, 0x80);
        let is_other = |at: &usize| ours[*at] != theirs.data()[*at] && !is_unsigned(*at);
        let differing: Vec<usize> = (0..ours.len()).filter(is_other).collect();
        let first = differing.first().map(|at| (*at, ours[*at], theirs.data()[*at]));
        assert!(differing.is_empty(), "{name}: {}: {} bytes differ: {first:?}", part.suffix, differing.len());
        compared += ours.len();
    }
    let is_marker = |name: &str| name == "encoded.scaled_fp8";
    let theirs = tensors.names().into_iter().filter(|name| name.starts_with("encoded.") && !is_marker(name)).count();
    assert_eq!(theirs, parts.len() - usize::from(parts.len() > theirs), "{name}");
    for isa in Isa::available() {
        encoder = encoder.on(isa);
        let (again, sums) = encode(&encoder, &values, &extremes, 1..=64);
        assert!(again == parts && sums == tally, "{name} in ranges with {isa:?}: {sums:?}, not {tally:?}");
    }
    Some((metadata["layout"].clone(), compared))
}

#[test]
fn weights_encode_to_the_bytes_of_the_libraries() {
    let layouts = goldens(&fixtures(), check);
    assert!(layouts.len() >= 15, "{layouts:?}");
    let layouts = goldens(&mlx_fixtures(), check);
    assert_eq!(layouts.len(), 4, "{layouts:?}");
}

/// `TCAST_GOLDENS=DIR cargo test --test quant encode:: -- --ignored --nocapture` compares the files of another folder.
#[test]
#[ignore = "needs a folder of goldens in TCAST_GOLDENS"]
fn other_goldens_are_equal() {
    report_other_goldens(check);
}

/// Checks the default by itself, so that a change of it does not go unnoticed.
#[test]
fn arithmetic_is_that_of_the_library_by_default() {
    assert_eq!(EncodeOptions::default().arithmetic, Arithmetic::Library);
}
