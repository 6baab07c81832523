//! Values of tensors, and weights in memory.

use crate::common::{Bench, fixture, npy_data, npy_f32, safetensors, zip};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tcast::dtype::Dtype;
use tcast::error::{Error, ErrorKind};
use tcast::half::bf16;
use tcast::options::{CastOptions, DequantizeOptions, QuantizeOptions};
use tcast::progress::Progress;
use tcast::quant::SCHEMES;
use tcast::slice::{Element, Float8E4M3FN};
use tcast::{DiffOptions, EncodedWeight, Scheme, Settings, StoredPart, TensorFiles};

#[test]
fn values_are_those_of_the_file_in_any_range() {
    for name in ["weights_f32.npy", "big_endian_f32.npy", "fortran_f32.npy"] {
        let files = TensorFiles::open(fixture(name)).unwrap();
        let tensors = files.tensors();
        let [tensor] = &tensors.list()[..] else { panic!("{name} has one tensor") };
        let (own, count) = (&*tensor.name, tensor.shape.iter().product());
        let bench = Bench::new();
        let copied = bench.path("copied.safetensors");
        tcast::cast(fixture(name), &copied, &CastOptions::to(Dtype::Float32)).unwrap();
        let copied = TensorFiles::open(&copied).unwrap();
        let copied = copied.tensors();
        let wanted: Vec<f32> = copied.values(&copied.list()[0].name, 0..count).unwrap();
        let all: Vec<f32> = tensors.values(own, 0..count).unwrap();
        assert!(all.iter().map(|value| value.to_bits()).eq(wanted.iter().map(|value| value.to_bits())), "{name}");
        for range in [0..0, 3..count, 1..2, count - 1..count] {
            let part: Vec<f32> = tensors.values(own, range.clone()).unwrap();
            let wanted = &all[range.start as usize..range.end as usize];
            assert!(part.iter().map(|value| value.to_bits()).eq(wanted.iter().map(|value| value.to_bits())), "{name}");
        }
        let error = tensors.values::<f32>(own, 0..count + 1).unwrap_err();
        assert!(error.to_string().contains("elements"), "{error}");
    }
    let files = TensorFiles::open(fixture("weights_f32.npy")).unwrap();
    let file = std::fs::read(fixture("weights_f32.npy")).unwrap();
    let wanted: Vec<f32> = npy_data(&file).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(files.tensors().values::<f32>("weights_f32", 0..wanted.len() as u64).unwrap(), wanted);
}

#[test]
fn elements_of_four_bits_start_anywhere() {
    let bench = Bench::new();
    let header = r#"{"codes":{"dtype":"F4","shape":[2,5],"data_offsets":[0,5]}}"#;
    let input = bench.path("in.safetensors");
    std::fs::write(&input, safetensors(header, &[0x21, 0x43, 0x65, 0x87, 0xf0])).unwrap();
    let files = TensorFiles::open(&input).unwrap();
    let all: Vec<f32> = files.tensors().values("codes", 0..10).unwrap();
    assert_eq!(all, [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, 0.0, -6.0]);
    for start in 0..10 {
        let rest: Vec<f32> = files.tensors().values("codes", start..10).unwrap();
        assert_eq!(rest, all[start as usize..], "{start}");
    }
    let narrow: Vec<Float8E4M3FN> = files.tensors().values("codes", 1..2).unwrap();
    assert_eq!(narrow[0].to_bits(), 0x38);
    let missing = files.tensors().values::<f32>("code", 0..1).unwrap_err();
    assert!(missing.to_string().contains("there is no tensor 'code'"), "{missing}");
}

/// Models of every layout, and GGUF files, in any range: rows that are packed together, and parts of long rows.
#[test]
fn quantized_weights_are_read_as_dequantize_writes_them() {
    let folders = ["quantized", "mlx", "gguf", "checkpoints"].map(fixture);
    let inputs = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let mut layouts = Vec::new();
    for input in inputs.map(|entry| entry.unwrap().path()) {
        layouts.extend(compare_values(&input, |value: &f32| value.to_bits()));
        layouts.extend(compare_values(&input, |value: &bf16| value.to_bits().into()));
    }
    let count = layouts.len();
    layouts.sort_unstable();
    layouts.dedup();
    assert!(count > 200 && layouts.len() > 10, "{count} weights: {layouts:?}");
}

/// Compares the values of the weights that tcast decodes; returns the layout of each.
fn compare_values<E: Element + Default>(input: &Path, bits: fn(&E) -> u32) -> Vec<&'static str> {
    let Ok(files) = TensorFiles::open(input) else { return Vec::new() };
    let tensors = files.tensors();
    let weights: Vec<_> = tensors.list().into_iter().filter(|tensor| tensor.layout.is_some()).collect();
    let bench = Bench::new();
    let output = bench.path("decoded");
    let options = DequantizeOptions::to(E::DTYPE);
    if weights.is_empty() || tcast::dequantize(input, &output, &options).is_err() {
        return Vec::new();
    }
    let plain = TensorFiles::open(&output).unwrap();
    let plain = plain.tensors();
    let stored: BTreeSet<String> = plain.list().into_iter().map(|tensor| tensor.name).collect();
    let mut layouts = Vec::new();
    for weight in weights.iter().filter(|weight| stored.contains(&weight.name)) {
        let count: u64 = weight.shape.iter().product();
        let third = count / 3;
        for range in [0..count, third..count / 2, third..(third + 1).min(count), count..count] {
            let [found, wanted] =
                [&tensors, &plain].map(|tensors| tensors.values::<E>(&weight.name, range.clone()).unwrap());
            assert_eq!(found.len() as u64, range.end - range.start);
            let is_equal = found.iter().map(bits).eq(wanted.iter().map(bits));
            assert!(is_equal, "{} in {}: {range:?}", weight.name, input.display());
        }
        let error = tensors.values::<f64>(&weight.name, 0..1).unwrap_err();
        assert!(error.to_string().contains("not decoded to float64"), "{error}");
        layouts.extend(weight.layout);
    }
    layouts
}

#[test]
fn codes_that_cannot_be_decoded_are_not_read_as_values() {
    let bench = Bench::new();
    let folder = bench.path("model");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(fixture("checkpoints/llama-fp8")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let method = config.replace("\"quant_method\": \"fp8\"", "\"quant_method\": \"unheard-of\"");
    assert_ne!(method, config);
    std::fs::write(folder.join("config.json"), method).unwrap();
    let files = TensorFiles::open(&folder).unwrap();
    let error = files.tensors().values::<f32>("model.layers.0.mlp.down_proj.weight", 0..1).unwrap_err();
    assert!(error.to_string().contains("unheard-of"), "{error}");
}

#[test]
fn damage_is_found_when_all_elements_are_read() {
    let bench = Bench::new();
    let array = npy_f32(&[0.1; 1000]);
    for is_deflated in [false, true] {
        let mut archive = zip(&[("x.npy", &array)], is_deflated);
        let input = bench.path("in.npz");
        std::fs::write(&input, &archive).unwrap();
        let files = TensorFiles::open(&input).unwrap();
        assert_eq!(files.tensors().values::<f32>("x", 1..1000).unwrap(), [0.1; 999]);
        assert_eq!(files.tensors().values::<f32>("x", 0..1000).unwrap(), [0.1; 1000]);
        drop(files);
        // The checksum in the central directory, and in the header of the member.
        let sum = crc32fast::hash(&array).to_le_bytes();
        let places: Vec<usize> = (0..archive.len() - 3).filter(|at| archive[*at..*at + 4] == sum).collect();
        assert_eq!(places.len(), 2);
        for at in places {
            archive[at] ^= 1;
        }
        std::fs::write(&input, &archive).unwrap();
        let files = TensorFiles::open(&input).unwrap();
        let error = files.tensors().values::<f32>("x", 0..1000).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
    }
}

#[test]
fn a_weight_in_memory_has_the_bytes_of_a_quantized_file() {
    let bench = Bench::new();
    let values: Vec<bf16> =
        (0..128 * 256_i32).map(|at| bf16::from_f32(((at * 7919) % 1009 - 504) as f32 / 900.0)).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let input = bench.path("model");
    std::fs::create_dir(&input).unwrap();
    std::fs::write(input.join("config.json"), r#"{"model_type":"llama"}"#).unwrap();
    let header = r#"{"layers.0.up_proj.weight":{"dtype":"BF16","shape":[128,256],"data_offsets":[0,65536]}}"#;
    std::fs::write(input.join("model.safetensors"), safetensors(header, &bytes)).unwrap();
    let mut compared = 0;
    for scheme in SCHEMES.iter().filter(|scheme| !scheme.layouts.is_empty()) {
        let name = scheme.name;
        let weight = scheme.encode(&values, &[128, 256]).unwrap();
        let output = bench.path(name);
        tcast::quantize(&input, &output, &QuantizeOptions::scheme(name).unwrap()).unwrap();
        let written = std::fs::read(output.join("model.safetensors")).unwrap();
        let header = safetensors::SafeTensors::deserialize(&written).unwrap();
        assert_eq!(header.len(), weight.tensors().len(), "{name}");
        for tensor in weight.tensors() {
            let stored = header.tensor(&format!("layers.0.up_proj{}", tensor.suffix)).unwrap();
            assert_eq!(stored.data(), tensor.bytes, "{name}{}", tensor.suffix);
        }
        let decoded: Vec<bf16> = weight.decode().unwrap();
        let files = TensorFiles::open(&output).unwrap();
        let count = values.len() as u64;
        assert_eq!(decoded, files.tensors().values::<bf16>("layers.0.up_proj.weight", 0..count).unwrap(), "{name}");
        let config = std::fs::read_to_string(output.join("config.json")).unwrap();
        let again = from_file(&header, Some(&config)).unwrap();
        assert_eq!((again.layout(), again.shape()), (weight.layout(), weight.shape()), "{name}");
        assert_eq!(again.decode::<bf16>().unwrap(), decoded, "{name}");
        compared += 1;
    }
    assert!(compared > 10, "{compared}");
    let error = Scheme::find("fp8").unwrap().encode(&[1.0_f32, f32::NAN], &[1, 2]).unwrap_err();
    assert!(error.to_string().contains("NaN"), "{error}");
    let error = Scheme::find("fp8").unwrap().encode(&[1.0_f32], &[1, 2]).unwrap_err();
    assert!(error.to_string().contains("do not have the shape"), "{error}");
    assert_eq!(
        Scheme::find("fp8").unwrap().encode(&[1.0_f32, 2.0], &[1, 2]).unwrap().tensors()[0].dtype,
        Dtype::Float8E4M3FN
    );
}

/// Takes all tensors of a file for those of one weight.
fn from_file(file: &safetensors::SafeTensors, config: Option<&str>) -> Result<EncodedWeight, Error> {
    let tensors = file.tensors();
    let shapes: Vec<Vec<u64>> =
        tensors.iter().map(|(_, view)| view.shape().iter().map(|&length| length as u64).collect()).collect();
    let parts: Vec<StoredPart> = tensors
        .iter()
        .zip(&shapes)
        .map(|((name, view), shape)| {
            let dtype = match format!("{:?}", view.dtype()).as_str() {
                "F8_E4M3" => Dtype::Float8E4M3FN,
                "F8_E8M0" => Dtype::Float8E8M0,
                other => other.to_lowercase().replace("bf16", "bfloat16").parse().unwrap(),
            };
            StoredPart { name, dtype, shape, bytes: view.data() }
        })
        .collect();
    EncodedWeight::from_stored(&parts, config)
}

/// Takes the tensors of a weight, with a change of each.
fn changed<'w>(
    weight: &'w EncodedWeight,
    names: &'w [String],
    change: impl Fn(&mut StoredPart<'w>),
) -> Result<EncodedWeight, Error> {
    let parts = weight.tensors().iter().zip(names).map(|(tensor, name)| {
        let (dtype, shape, bytes) = (tensor.dtype, &tensor.shape[..], &tensor.bytes[..]);
        let mut part = StoredPart { name, dtype, shape, bytes };
        change(&mut part);
        part
    });
    let config = r#"{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"all": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group",
            "group_size": 128, "symmetric": true}}}}}"#;
    EncodedWeight::from_stored(&parts.collect::<Vec<_>>(), Some(config))
}

#[test]
fn tensors_that_are_no_weight_in_memory_are_refused() {
    let weight = Scheme::find("int4").unwrap().encode(&[0.5_f32; 256], &[2, 128]).unwrap();
    let names: Vec<String> = weight.tensors().iter().map(|tensor| format!("w{}", tensor.suffix)).collect();
    let whole = changed(&weight, &names, |_| ());
    assert!(whole.as_ref().is_ok_and(|whole| whole.shape() == [2, 128]), "{whole:?}");
    assert_eq!(whole.unwrap().decode::<f32>().unwrap(), weight.decode::<f32>().unwrap());
    let short = changed(&weight, &names, |part| part.bytes = &part.bytes[1..]).unwrap_err().to_string();
    assert!(short.contains("bytes, which are no") && short.starts_with("tensor 'w.weight_packed': "), "{short}");
    for huge in [&[u64::MAX, 2][..], &[0, 1 << 40, 1 << 40], &[u64::MAX]] {
        let refused = changed(&weight, &names, |part| (part.shape, part.bytes) = (huge, &[])).unwrap_err();
        assert!(refused.to_string().contains("0 bytes, which are no"), "{refused}");
    }
    let none = changed(&weight, &names, |part| part.name = "bias").unwrap_err();
    assert_eq!(none.to_string(), "the tensors are not those of one quantized weight");
    assert!(EncodedWeight::from_stored(&[], None).is_err() && EncodedWeight::from_stored(&[], Some("{")).is_err());
    // Whatever the types and shapes, the result is a weight or an error.
    for dtype in [Dtype::Uint8, Dtype::Float32, Dtype::Int32, Dtype::Float4E2M1, Dtype::Complex64] {
        for shape in [&[][..], &[0], &[1], &[2, 0, 4], &[8, 8], &[1, 1, 1, 1]] {
            let bytes = vec![0xa5; dtype.packed_bytes(shape.iter().product()).unwrap() as usize];
            for name in &names {
                let mixed = changed(&weight, &names, |part| {
                    if part.name == name {
                        (part.dtype, part.shape, part.bytes) = (dtype, shape, &bytes);
                    }
                });
                let _ = mixed.and_then(|weight| weight.decode::<f32>());
            }
            for ends in [[".weight", ".weight_scale"], [".qweight", ".scales"], ["_blocks", "_scales"]] {
                let ends = ends.map(|end| format!("w{end}"));
                let with = |name| StoredPart { name, dtype, shape, bytes: &bytes };
                let parts = [with(&*ends[0]), with(&*ends[1]), with("w.qzeros")];
                let _ = EncodedWeight::from_stored(&parts, None).and_then(|weight| weight.decode::<f32>());
            }
        }
    }
}

#[test]
fn distributions_are_those_that_the_program_prints() {
    let bench = Bench::new();
    let mut settings = Settings::default();
    let bytes = Bytes::default();
    settings.progress = &bytes;
    let mut kinds = BTreeSet::new();
    for model in
        ["checkpoints/llama-fp8", "gguf/alltypes.gguf", "model.safetensors", "fortran_f32.npy", "untyped_e4m3fn.npy"]
    {
        let printed =
            bench.command().args(["inspect", "--stats", "--json"]).arg(fixture(model)).output().unwrap().stdout;
        let printed: Value = serde_json::from_slice(&printed).unwrap();
        let files = TensorFiles::open(fixture(model)).unwrap();
        let tensors = files.tensors();
        for (tensor, row) in tensors.list().iter().zip(printed["tensors"].as_array().unwrap()) {
            assert_eq!(row["name"].as_str(), Some(&*tensor.name));
            let figures = tensors.distribution(&tensor.name, &settings).unwrap();
            kinds.insert((tensor.layout, figures.is_some()));
            let mut wanted = row["stats"].clone();
            for indices in ["first_nan_index", "first_infinite_index"] {
                wanted.as_object_mut().map(|stats| stats.remove(indices));
            }
            assert_eq!(serde_json::to_value(figures).unwrap(), wanted, "{model}: {}", tensor.name);
        }
    }
    assert!(kinds.contains(&(None, false)) && kinds.contains(&(Some("hf-fp8"), true)), "{kinds:?}");
    let [begun, read] = [&bytes.begun, &bytes.read].map(|count| count.load(Ordering::Relaxed));
    assert!(begun > 0 && read == begun, "{read} of {begun}");
}

/// Counts the bytes that were promised, and those that were read.
#[derive(Default)]
struct Bytes {
    begun: AtomicU64,
    read: AtomicU64,
}

impl Progress for Bytes {
    fn begin(&self, bytes: u64) {
        self.begun.fetch_add(bytes, Ordering::Relaxed);
    }
    fn advance(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn figures_and_comparisons_can_be_cancelled() {
    let stop = AtomicBool::new(true);
    let mut settings = Settings::default();
    settings.cancel = &stop;
    let [quantized, plain] = ["checkpoints/llama-fp8", "checkpoints/llama-tiny-bf16"].map(fixture);
    let files = TensorFiles::open(&quantized).unwrap();
    let tensors = files.tensors();
    for name in ["model.norm.weight", "model.layers.0.mlp.down_proj.weight"] {
        let error = tensors.distribution(name, &settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        assert!(tensors.distribution(name, &Settings::default()).unwrap().is_some());
    }
    let error = tensors.distribution("none", &settings).unwrap_err();
    assert!(error.to_string().ends_with("llama-fp8: there is no tensor 'none'"), "{error}");
    for other in [&quantized, &plain] {
        let error = settings.diff(&quantized, other, &DiffOptions::default()).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Cancelled, "cancelled"));
    }
    stop.store(false, Ordering::Relaxed);
    let bytes = Bytes::default();
    settings.progress = &bytes;
    assert!(settings.diff(&plain, &plain, &DiffOptions::default()).unwrap().is_equal);
    assert!(bytes.begun.load(Ordering::Relaxed) > 0);
    assert_eq!(bytes.begun.into_inner(), bytes.read.into_inner());
}
