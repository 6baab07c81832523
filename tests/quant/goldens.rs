//! Quantized weights decoded as the libraries decode them, byte for byte: files that the libraries wrote, with their own
//! decodes. `fixtures/README.md` says what is in them.

use super::{fixtures, goldens, mlx_fixtures, report_other_goldens};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tcast::dtype::Dtype;
use tcast::kernel::Isa;
use tcast::quant::{Arithmetic, Decoder, Group, Parameters, Part, Role, find};

pub(super) struct Tensor {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Golden {
    pub(super) name: String,
    pub(super) layout: String,
    pub(super) options: serde_json::Value,
    pub(super) tensors: BTreeMap<String, Tensor>,
}

pub(super) fn read(path: &Path) -> Golden {
    let bytes = fs::read(path).unwrap();
    let (size, file) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = file.split_at(u64::from_le_bytes(*size) as usize);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let metadata = &header["__metadata__"];
    let tensor = |value: &serde_json::Value| {
        let numbers =
            |key: &str| value[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
        let name = value["dtype"].as_str().unwrap();
        let [start, end] = numbers("data_offsets")[..] else { panic!("two offsets") };
        Tensor {
            dtype: Dtype::all().find(|dtype| dtype.safetensors_name() == Some(name)).unwrap(),
            shape: numbers("shape"),
            bytes: data[start as usize..end as usize].to_vec(),
        }
    };
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    Golden {
        name: path.file_name().unwrap().to_str().unwrap().to_owned(),
        layout: metadata["layout"].as_str().unwrap().to_owned(),
        options: metadata["decode"].as_str().map_or_else(Default::default, |text| serde_json::from_str(text).unwrap()),
        tensors: tensors.map(|(name, value)| (name.clone(), tensor(value))).collect(),
    }
}

/// The golden's layout by our name, and what its config would say.
pub(super) fn layout(golden: &Golden) -> (&'static str, Parameters) {
    let shape_of = |name: &str| golden.tensors[&format!("encoded.{name}")].shape.clone();
    let given = |group| Parameters { group: Some(group), ..Parameters::default() };
    match golden.layout.as_str() {
        "ct-fp8-tensor" => ("ct-fp8", given(Group::Tensor)),
        "ct-fp8-channel" => ("ct-fp8", given(Group::Channel)),
        "ct-fp8-block" => ("ct-fp8", given(Group::Block([128, 128]))),
        "ct-int8-channel" => ("ct-int8", given(Group::Channel)),
        "ct-int-pack" => {
            let shape = golden.tensors["encoded.weight_shape"].bytes.as_chunks().0;
            let shape = shape.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
            let bits = golden.options["bits"].as_u64().map(|bits| bits as u32);
            ("ct-pack", Parameters { shape: Some(shape), bits, ..Parameters::default() })
        }
        // Without a block size, transformers takes it from the shapes.
        "hf-fp8-block" if golden.options["block"].is_null() => {
            let (weight, grid) = (shape_of("weight"), shape_of("weight_scale_inv"));
            let side = |at: usize| weight[weight.len() - at] / grid[grid.len() - at];
            ("hf-fp8", given(Group::Block([side(2), side(1)])))
        }
        "hf-fp8-block" => ("hf-fp8", Parameters::default()),
        "mlx-affine" => {
            let number = |key: &str| golden.options[key].as_u64().unwrap();
            (
                "mlx-affine",
                Parameters { bits: Some(number("bits") as u32), ..given(Group::Neighbours(number("group"))) },
            )
        }
        name => (find(name).unwrap().name, Parameters::default()),
    }
}

/// Bytes that differ; all NaNs are alike.
fn differing(ours: &[u8], theirs: &[u8], dtype: Dtype) -> usize {
    let is_nan = |bytes: &[u8]| match dtype {
        Dtype::Bfloat16 => u16::from_le_bytes(bytes.try_into().unwrap()) & 0x7fff > 0x7f80,
        Dtype::Float16 => u16::from_le_bytes(bytes.try_into().unwrap()) & 0x7fff > 0x7c00,
        _ => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
    };
    let width = dtype.bits() as usize / 8;
    let pairs = ours.chunks_exact(width).zip(theirs.chunks_exact(width));
    pairs.filter(|(ours, theirs)| ours != theirs && !(is_nan(ours) && is_nan(theirs))).count() * width
}

/// Compares a golden, and gives how many bytes there were.
fn check(golden: &Golden) -> usize {
    let (layout, parameters) = layout(golden);
    let layout = find(layout).unwrap();
    let encoded = golden.tensors.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("encoded.")?, tensor)));
    let role = |name: &str| {
        let names = layout.names.iter().flat_map(|names| names.iter());
        names.clone().find(|(_, suffix)| suffix.get(1..) == Some(name)).map(|(role, _)| *role)
    };
    let encoded: Vec<(Role, &str, &Tensor)> =
        encoded.filter_map(|(name, tensor)| Some((role(name)?, name, tensor))).collect();
    let parts: Vec<Part> = encoded
        .iter()
        .map(|&(role, name, tensor)| Part { role, name, dtype: tensor.dtype, shape: &tensor.shape })
        .collect();
    let bytes: Vec<&[u8]> = encoded.iter().map(|(_, _, tensor)| &tensor.bytes[..]).collect();
    let mut compared = 0;
    for (name, wanted) in &golden.tensors {
        let Some(name) = name.strip_prefix("decoded.").filter(|name| !name.contains('.')) else { continue };
        let target = name.parse().unwrap();
        let mut decoder = Decoder::new(layout, &parameters, &parts, target, Arithmetic::Library)
            .unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        assert_eq!(decoder.shape(), wanted.shape, "{}", golden.name);
        let mut whole = vec![0; wanted.bytes.len()];
        decoder.decode(0..decoder.rows(), &bytes, &mut whole).unwrap();
        let count = differing(&whole, &wanted.bytes, target);
        assert_eq!(count, 0, "{}: {name}: {count} of {} bytes differ", golden.name, whole.len());
        for isa in Isa::available() {
            // Ranges of many lengths, the first of which are 1, 2, 3 ...
            decoder = decoder.on(isa);
            let (mut start, mut length) = (0, 1);
            while start < decoder.rows() {
                let end = (start + length).min(decoder.rows());
                let place = start as usize * decoder.row_bytes() as usize..end as usize * decoder.row_bytes() as usize;
                let mut piece = vec![0xa5; place.len()];
                decoder.decode(start..end, &bytes, &mut piece).unwrap();
                assert_eq!(piece, whole[place], "{}: {name}, rows {start} to {end} with {isa:?}", golden.name);
                (start, length) = (end, length + 1);
            }
        }
        compared += whole.len();
    }
    check_explanations(golden, &parts, &bytes, &parameters);
    compared
}

/// Compares what values are explained with to the exact product.
fn check_explanations(golden: &Golden, parts: &[Part], bytes: &[&[u8]], parameters: &Parameters) {
    let (name, _) = layout(golden);
    let decoder = Decoder::new(find(name).unwrap(), parameters, parts, Dtype::Float32, Arithmetic::Exact).unwrap();
    let is_nan = |bits: u32| f32::from_bits(bits).is_nan();
    for row in 0..decoder.rows() {
        let middle = decoder.columns() / 2;
        let mut values = decoder.explain(row, 0..middle, bytes).unwrap();
        values.extend(decoder.explain(row, middle..decoder.columns(), bytes).unwrap());
        let mut row_bytes = vec![0; decoder.row_bytes() as usize];
        decoder.decode(row..row + 1, bytes, &mut row_bytes).unwrap();
        assert_eq!(values.len() as u64, decoder.columns(), "{}", golden.name);
        for (column, (value, decoded)) in values.iter().zip(row_bytes.as_chunks().0).enumerate() {
            let number = f64::from(value.number) - f64::from(value.zero_point.unwrap_or_default());
            let product = number * value.scale;
            let product = match value.global_scale {
                None => product - value.offset.unwrap_or_default(),
                // Such a global scale is shown rounded.
                Some(_) if name == "mlx-nvfp4" => {
                    let global = &golden.tensors["encoded.global_scale"].bytes[..];
                    product * f64::from(f32::from_le_bytes(global.try_into().unwrap())) / 2688.0
                }
                Some((global, is_divisor)) => {
                    if is_divisor {
                        product / f64::from(global)
                    } else {
                        product * f64::from(global)
                    }
                }
            } as f32;
            let place = format!("{}: [{row}, {column}]: {value:?}", golden.name);
            assert_eq!(value.value, u32::from_le_bytes(*decoded), "{place}");
            assert!(value.code < 1 << value.code_bits, "{place}");
            let is_same = product.to_bits() == value.value || is_nan(product.to_bits()) && is_nan(value.value);
            assert!(is_same, "{place} makes {product}");
        }
    }
}

/// The layout of a file, and the bytes that were compared.
fn compare(path: &Path) -> (String, usize) {
    let golden = read(path);
    let bytes = check(&golden);
    (golden.layout, bytes)
}

#[test]
fn weights_decode_to_the_bytes_of_the_libraries() {
    let layouts = goldens(&fixtures(), |path| Some(compare(path)));
    assert!(layouts.len() >= 20, "{layouts:?}");
    let layouts = goldens(&mlx_fixtures(), |path| Some(compare(path)));
    assert_eq!(layouts.len(), 4, "{layouts:?}");
}

/// `TCAST_GOLDENS=DIR cargo test --test quant goldens:: -- --ignored --nocapture` compares the files of another folder.
#[test]
#[ignore = "needs a folder of goldens in TCAST_GOLDENS"]
fn other_goldens_are_equal() {
    report_other_goldens(|path| Some(compare(path)));
}
