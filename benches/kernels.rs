//! Throughput of the kernels in cache: bytes of source per second, one core, for each instruction set; of the encoder and
//! the decoders of quantized weights and of blocks, in bytes of bfloat16; of the encoders of blocks, in bytes of float32;
//! and of the figures of a tensor, with the best.
//!
//! `cargo bench --bench kernels`

mod common;

use common::{decoder, random, weights};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::io::Write;
use tcast::{
    blocks::FORMATS,
    container::{Data, Elements, Form, Tensor},
    dtype::Dtype,
    io::map::MappedFile,
    kernel::{Isa, Kernel, Rules, Storage},
    measure::distribution,
    progress::Silent,
    quant::{EncodeOptions, EncodeTally, Encoder, Extremes, SCHEMES, ScaleChoice},
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
    for &(source, target) in PAIRS {
        let mut group = criterion.benchmark_group(format!("{source}->{target}"));
        let (source, target) = (Storage::packed(source), Storage::packed(target));
        let kernel = Kernel::cast(source, target, &Rules::default()).expect("a numeric pair");
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
        let (mut parts, mut bytes) = (Vec::new(), Vec::<Vec<u8>>::new());
        for scale in [ScaleChoice::Amax, ScaleChoice::Mse] {
            if scale == ScaleChoice::Mse && !["nvfp4", "int4"].contains(&scheme.name) {
                continue;
            }
            let options = EncodeOptions { scale, ..EncodeOptions::default() };
            let mut encoder =
                Encoder::new(stored.row, &stored.grid, &SHAPE, Dtype::Bfloat16, options).expect("a usual shape");
            parts = encoder.parts().to_vec();
            bytes = parts.iter().map(|part| vec![0; part.byte_len() as usize]).collect();
            let mut group = criterion.benchmark_group(format!("quantize {} {scale:?}", scheme.name));
            group.throughput(Throughput::Bytes(input.len() as u64));
            for isa in Isa::available() {
                let mut outputs: Vec<&mut [u8]> = bytes.iter_mut().map(|bytes| &mut bytes[..]).collect();
                encoder = encoder.on(isa);
                group.bench_function(format!("{isa:?}"), |bencher| {
                    bencher.iter(|| {
                        let mut tally = EncodeTally::default();
                        encoder.encode(0..SHAPE[0], black_box(&input), &extremes, &mut outputs, &mut tally);
                        tally
                    });
                });
            }
        }
        let bytes: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
        let mut decoder = decoder(stored, &parts, SHAPE);
        let mut values = vec![0; input.len()];
        let mut group = criterion.benchmark_group(format!("dequantize {}", scheme.name));
        group.throughput(Throughput::Bytes(input.len() as u64));
        for isa in Isa::available() {
            decoder = decoder.on(isa);
            group.bench_function(format!("{isa:?}"), |bencher| {
                bencher.iter(|| decoder.decode(0..SHAPE[0], black_box(&bytes), &mut values));
            });
        }
    }
}

/// Each block format to bfloat16.
fn blocks(criterion: &mut Criterion) {
    let mut values = vec![0; 2 * COUNT];
    for format in FORMATS.iter().filter(|format| format.dtype.is_none()) {
        // Random bytes, of which all pairs are ordinary numbers as float16.
        let mut random = random();
        let size = format.size(COUNT as u64).expect("whole blocks");
        let input: Vec<u8> = (0..size).map(|_| 0x20 | (random() * 32.0) as u8).collect();
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
    let mut random = random();
    let values: Vec<f32> = (0..1 << 16).map(|_| (0..12).map(|_| random()).sum::<f32>() - 6.0).collect();
    let importance: Vec<f32> = (0..COLUMNS).map(|_| random() + 0.01).collect();
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

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(1)).warm_up_time(std::time::Duration::from_millis(300));
    targets = kernels, quantized, blocks, encode_blocks, figures
}
criterion_main!(benches);
