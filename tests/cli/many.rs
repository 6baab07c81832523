//! Many small tensors, which are converted together if nobody asks about each.

use crate::common::{Bench, safetensors};

/// A file of tensors of so many bytes each, of these types in turn.
fn file(types: &[(&str, usize)], sizes: impl Iterator<Item = usize>, byte: impl Fn(usize) -> u8) -> Vec<u8> {
    let (mut entries, mut end) = (Vec::new(), 0);
    for (at, size) in sizes.enumerate() {
        let (dtype, bits) = types[at % types.len()];
        let (start, elements) = (end, size * 8 / bits);
        end += elements * bits / 8;
        entries.push(format!(r#""t.{at}":{{"dtype":"{dtype}","shape":[{elements}],"data_offsets":[{start},{end}]}}"#));
    }
    let data: Vec<u8> = (0..end).map(byte).collect();
    safetensors(&format!("{{{}}}", entries.join(",")), &data)
}

#[test]
fn small_tensors_become_the_same_whether_or_not_there_is_a_report_of_each() {
    let bench = Bench::new();
    let noise = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    let runs = [("F32", 32), ("F32", 32), ("F32", 32), ("BF16", 16), ("BF16", 16), ("I16", 16), ("F8_E4M3", 8)];
    bench.write("mixed.safetensors", &file(&runs, (0..3000).map(|at| at % 61 * 8), noise));
    bench.write("fp4.safetensors", &file(&[("F4", 4)], (0..3000).map(|at| at % 67), noise));
    bench.write("f32.safetensors", &file(&[("F32", 32)], (0..3000).map(|at| at % 67 * 16), noise));
    for input in ["mixed", "fp4", "f32"] {
        for to in ["f16", "e4m3", "e2m1", "int4 --all", "float64 --all", "int8 --all --out-of-range saturate", "bf16"] {
            let cast = |more: &str| {
                let line = format!("cast {input}.safetensors --to {to} -o out.safetensors --no-sync -f {more}");
                let outcome = bench.run(&line);
                assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""), "{}", outcome.stderr);
                bench.read("out.safetensors")
            };
            let with_report = cast("-j 2");
            assert!(cast("-q -j 1") == with_report && cast("-q -j 3") == with_report, "{input} {to}");
        }
    }
}

#[test]
fn a_tensor_that_cannot_be_converted_is_named_among_others_that_are_converted_with_it() {
    let bench = Bench::new();
    let number = |at: usize| if at / 4 == 1000 { 512.0_f32 } else { 1.0 };
    let byte = |at: usize| number(at).to_le_bytes()[at % 4];
    bench.write("m.safetensors", &file(&[("F32", 32)], (0..2000).map(|at| at % 3 * 4), byte)); // of 0 to 2 elements
    for more in ["", "-q", "-q -j 1"] {
        bench.run(&format!("cast m.safetensors --to int8 --out-of-range error -o out.safetensors {more}")).says(
            1,
            "",
            "--out-of-range",
        );
    }
    assert_eq!(bench.files(), ["m.safetensors"]);
}
