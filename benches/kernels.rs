//! Throughput of the kernels in cache: bytes of source per second, one core, for each instruction set; of the encoder and
//! the decoders of quantized weights and of blocks, in bytes of bfloat16; of the encoders of blocks, in bytes of float32;
//! and of the figures of a tensor, with the best.
//!
//! `cargo bench --bench kernels`

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::io::Write;
use tcast::{
    blocks::FORMATS,
    container::{Data, Elements, Form, Tensor},
    dtype::Dtype,
    io::map::MappedFile,
    kernel::{Isa, Kernel, OutOfRange, RoundMode, Rules, Storage},
    measure::distribution,
    progress::Silent,
    quant::{
        Arithmetic, CodeType, Decoder, EncodeOptions, EncodeTally, Encoder, Extremes, Parameters, Part, SCHEMES,
        ScaleChoice,
    },
};

/// Elements a run: source and result stay in the second-level cache.
const COUNT: usize = 1 << 16;

const PAIRS: &[(Dtype, Dtype)] = &[
    (Dtype::Float32, Dtype::Float8E4M3FN),
    (Dtype::Float32, Dtype::Bfloat16),
    (Dtype::Float32, Dtype::Float16),
    (Dtype::Float32, Dtype::Int8),
    (Dtype::Float32, Dtype::Float4E2M1),
    (Dtype::Bfloat16, Dtype::Float8E4M3FN),
    (Dtype::Bfloat16, Dtype::Float16),
    (Dtype::Float16, Dtype::Bfloat16),
    (Dtype::Float16, Dtype::Float32),
    (Dtype::Float8E4M3FN, Dtype::Bfloat16),
    (Dtype::Float64, Dtype::Float32),
    (Dtype::Int64, Dtype::Bfloat16),
];

fn kernels(criterion: &mut Criterion) {
    let rules = Rules {
        saturate: true,
        infinity_saturates_fnuz: false,
        round_mode: RoundMode::Up,
        out_of_range: OutOfRange::Wrap,
    };
    for &(source, target) in PAIRS {
        let mut group = criterion.benchmark_group(format!("{source}->{target}"));
        let (source, target) = (Storage::packed(source), Storage::packed(target));
        let kernel = Kernel::cast(source, target, &rules).expect("a numeric pair");
        let input = weights(source, COUNT);
        let mut output = vec![0; target.bytes(COUNT as u64).expect("a small size") as usize];
        group.throughput(Throughput::Bytes(input.len() as u64));
        for isa in Isa::available() {
            group.bench_function(format!("{isa:?}"), |bencher| {
                bencher.iter(|| kernel.run_on(isa, black_box(&input), black_box(&mut output), COUNT));
            });
        }
    }
}

/// Each scheme in its first layout, from bfloat16 and back; nvfp4 and int4 also with a search for scales.
fn quantized(criterion: &mut Criterion) {
    const SHAPE: [u64; 2] = [128, COUNT as u64 / 128];
    let input = weights(Storage::packed(Dtype::Bfloat16), COUNT);
    let extremes = Extremes::of(Dtype::Bfloat16, &input, 0);
    for scheme in SCHEMES {
        let stored = &scheme.layouts[0];
        let (layout, grid) = (stored.row, &stored.grid);
        let mut parts = Vec::new();
        for scale in [ScaleChoice::Amax, ScaleChoice::Mse] {
            if scale == ScaleChoice::Mse && !["nvfp4", "int4"].contains(&scheme.name) {
                continue;
            }
            let options = EncodeOptions { scale, ..EncodeOptions::default() };
            let encoder = Encoder::new(layout, grid, &SHAPE, Dtype::Bfloat16, options).expect("a usual shape");
            let mut bytes: Vec<Vec<u8>> =
                encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
            let mut group = criterion.benchmark_group(format!("quantize {} {scale:?}", scheme.name));
            group.throughput(Throughput::Bytes(input.len() as u64));
            for isa in Isa::available() {
                let mut outputs: Vec<&mut [u8]> = bytes.iter_mut().map(|bytes| &mut bytes[..]).collect();
                group.bench_function(format!("{isa:?}"), |bencher| {
                    bencher.iter(|| {
                        let mut tally = EncodeTally::default();
                        encoder.encode_on(isa, 0..SHAPE[0], black_box(&input), &extremes, &mut outputs, &mut tally);
                        tally
                    });
                });
            }
            parts = encoder.parts().iter().cloned().zip(bytes).collect();
        }
        let bits = if let CodeType::Int { bits, .. } = grid.codes { Some(bits) } else { None };
        let parameters =
            Parameters { shape: Some(SHAPE.to_vec()), group: Some(grid.group), bits, ..Parameters::default() };
        let list: Vec<Part> = parts
            .iter()
            .map(|(part, _)| Part { role: part.role, name: part.suffix, dtype: part.dtype, shape: &part.shape })
            .collect();
        let bytes: Vec<&[u8]> = parts.iter().map(|(_, bytes)| &bytes[..]).collect();
        let decoder =
            Decoder::new(layout, &parameters, &list, Dtype::Bfloat16, Arithmetic::Library).expect("what was encoded");
        let mut values = vec![0; input.len()];
        let mut group = criterion.benchmark_group(format!("dequantize {}", scheme.name));
        group.throughput(Throughput::Bytes(input.len() as u64));
        for isa in Isa::available() {
            group.bench_function(format!("{isa:?}"), |bencher| {
                bencher.iter(|| decoder.decode_on(isa, 0..SHAPE[0], black_box(&bytes), &mut values));
            });
        }
    }
}

/// Each block format to bfloat16.
fn blocks(criterion: &mut Criterion) {
    let mut values = vec![0; 2 * COUNT];
    for format in FORMATS.iter().filter(|format| format.dtype.is_none()) {
        // Random bytes, of which all pairs are ordinary numbers as float16.
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            0x20 | (state >> 59) as u8
        };
        let input: Vec<u8> = (0..format.size(COUNT as u64).expect("whole blocks")).map(|_| byte()).collect();
        let mut group = criterion.benchmark_group(format!("decode {}", format.name));
        group.throughput(Throughput::Bytes(values.len() as u64));
        for isa in Isa::available() {
            group.bench_function(format!("{isa:?}"), |bencher| {
                bencher.iter(|| format.decode(isa, black_box(&input), None, Dtype::Bfloat16, &mut values));
            });
        }
    }
}

/// float32 to each block format, without and with an importance matrix.
fn encode_blocks(criterion: &mut Criterion) {
    const COLUMNS: usize = 4096;
    let mut state = 1_u64;
    let mut number = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let values: Vec<f32> = (0..1 << 16).map(|_| (0..12).map(|_| number()).sum::<f32>() - 6.0).collect();
    let importance: Vec<f32> = (0..COLUMNS).map(|_| number() + 0.01).collect();
    for format in FORMATS.iter().filter(|format| format.can_encode()) {
        let mut out = vec![0; format.size(values.len() as u64).expect("whole blocks") as usize];
        for (importance, with) in [(None, ""), (Some(&*importance), " with importance")] {
            if importance.is_some() && !format.uses_importance() {
                continue;
            }
            let mut group = criterion.benchmark_group(format!("encode {}{with}", format.name));
            group.throughput(Throughput::Bytes(4 * values.len() as u64));
            for isa in Isa::available() {
                group.bench_function(format!("{isa:?}"), |bencher| {
                    bencher.iter(|| format.encode(isa, black_box(&values), COLUMNS, importance, &mut out));
                });
            }
        }
    }
}

/// Of some more elements: what is done once for a tensor is not what is to be seen.
fn figures(criterion: &mut Criterion) {
    const COUNT: u64 = 1 << 24;
    for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16, Dtype::Float8E4M3FN, Dtype::Float64, Dtype::Int32] {
        let storage = Storage::packed(dtype);
        let some = weights(storage, COUNT as usize / 64);
        let mut file = tempfile::tempfile().expect("a temporary file");
        (0..64).for_each(|_| file.write_all(&some).expect("room for it"));
        let files = [MappedFile::of(&file).expect("a regular file")];
        let form = Form::Numbers(storage);
        let tensor = Tensor {
            name: "x".into(),
            shape: [COUNT].into(),
            count: COUNT,
            elements: Elements::Typed(form),
            fortran_order: false,
            data: Data::Mapped { file: 0, range: 0..64 * some.len(), checksum: None },
            stored: "".into(),
        };
        let mut group = criterion.benchmark_group(format!("figures of {dtype}"));
        group.throughput(Throughput::Bytes(64 * some.len() as u64));
        group
            .bench_function("1 thread", |bencher| bencher.iter(|| distribution::of(&tensor, form, &files, 1, &Silent)));
    }
}

/// Values spread as weights are: roughly normal, deviation 0.02, cast to the source type.
fn weights(source: Storage, count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let values: Vec<u8> =
        (0..count).flat_map(|_| ((0..12).map(|_| uniform()).sum::<f32>() * 0.02).to_le_bytes()).collect();
    let float32 = Storage::packed(Dtype::Float32);
    let rules = Rules {
        saturate: true,
        infinity_saturates_fnuz: false,
        round_mode: RoundMode::Up,
        out_of_range: OutOfRange::Wrap,
    };
    let kernel = Kernel::cast(float32, source, &rules).expect("a numeric pair");
    let mut bytes = vec![0; source.bytes(count as u64).expect("a small size") as usize];
    kernel.run(&values, &mut bytes, count).expect("packed elements are well formed");
    bytes
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(1)).warm_up_time(std::time::Duration::from_millis(300));
    targets = kernels, quantized, blocks, encode_blocks, figures
}
criterion_main!(benches);
