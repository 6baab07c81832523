//! Runs one job on values in memory, so that `benches/instructions.py` can count its instructions under an emulator.
//!
//! `instructions JOB COUNT`, where JOB is `none DTYPE DTYPE`, which only makes the values, `cast SOURCE TARGET`,
//! `decode SCHEME LAYOUT` or `encode SCHEME LAYOUT`

mod common;

use common::decoder;
use std::hint::black_box;
use tcast::{
    dtype::Dtype,
    kernel::{Kernel, Rules, Storage},
    quant::{EncodeOptions, EncodeTally, Encoder, Extremes, SCHEMES},
};

/// Values per row.
const COLUMNS: u64 = 4096;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [job, first, second, count, ..] = &words[..] else { panic!("a job, two names and a count") };
    let count: u64 = count.parse().expect("a number of values");
    match &job[..] {
        "none" => {
            black_box(weights(Storage::packed(dtype(first)), count));
        }
        "cast" => cast(dtype(first), dtype(second), count),
        _ => quantized(job, first, second, count),
    }
}

fn dtype(name: &str) -> Dtype {
    Dtype::all().find(|dtype| dtype.to_string() == name).expect("a dtype")
}

fn cast(source: Dtype, target: Dtype, count: u64) {
    let [source, target] = [source, target].map(Storage::packed);
    let kernel = Kernel::cast(source, target, &Rules::default()).expect("a numeric pair");
    let input = weights(source, count);
    let mut output = vec![0; target.bytes(count).expect("a small size") as usize];
    let counts = kernel.run(black_box(&input), &mut output, count as usize);
    black_box((counts.is_ok(), output));
}

/// Encodes values, and decodes the result if that is the job.
fn quantized(job: &str, scheme: &str, layout: &str, count: u64) {
    let scheme = SCHEMES.iter().find(|known| known.name == scheme).expect("a scheme");
    let stored = scheme.layouts.iter().find(|stored| stored.row.name == layout).expect("a layout of the scheme");
    let shape = [count / COLUMNS, COLUMNS];
    let input = weights(Storage::packed(Dtype::Bfloat16), count);
    let extremes = Extremes::of(Dtype::Bfloat16, &input, 0);
    let encoder = Encoder::new(stored.row, &stored.grid, &shape, Dtype::Bfloat16, EncodeOptions::default());
    let encoder = encoder.expect("a usual shape");
    let mut bytes: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
    let mut outputs: Vec<&mut [u8]> = bytes.iter_mut().map(|bytes| &mut bytes[..]).collect();
    let mut tally = EncodeTally::default();
    tally.skips_errors = true;
    encoder.encode(0..shape[0], black_box(&input), &extremes, &mut outputs, &mut tally);
    black_box(&tally);
    if job == "encode" {
        return;
    }
    let bytes: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
    let mut values = input;
    let decoder = decoder(stored, encoder.parts(), shape);
    black_box(decoder.decode(0..shape[0], &bytes, &mut values).is_ok());
}

/// Returns one row of weights, repeated: making values takes many more instructions than converting them.
fn weights(storage: Storage, count: u64) -> Vec<u8> {
    common::weights(storage, COLUMNS as usize).repeat((count / COLUMNS) as usize)
}
