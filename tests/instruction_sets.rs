//! `TCAST_ISA`: the instruction set that the whole program computes on, and the same files from each.

mod common;

use common::{Bench, Outcome};
use tcast::kernel::Isa;

/// Runs a command line with an instruction set in the environment.
fn run_on(bench: &Bench, isa: &str, line: &str) -> Outcome {
    let command = &mut bench.command();
    Outcome::of(&command.env("TCAST_ISA", isa).args(line.split_whitespace()).output().expect("the program starts"))
}

/// Numbers of every exponent and many mantissas, ties, zeros, infinities and NaN among them.
fn floats() -> Vec<u8> {
    (0..1 << 16)
        .map(|high: u32| high << 16 | (high.wrapping_mul(0x9e37_79b9) >> 16 & 0xf0ff))
        .flat_map(u32::to_le_bytes)
        .collect()
}

#[test]
fn every_instruction_set_writes_the_same_files_and_counts_the_same_losses() {
    let bench = Bench::with("all_dtypes.safetensors", "all.safetensors");
    bench.write("floats.npy", &common::npy("'<f4'", "(65536,)", &floats()));
    let targets =
        ["float16", "bfloat16", "e4m3", "e5m2fnuz", "float8e8m0", "float6e3m2", "float4e2m1", "int8", "uint32"];
    for target in targets.into_iter().chain(["int64", "float64", "bool", "int4"]) {
        for (input, extension) in [("floats.npy", "npy"), ("all.safetensors", "safetensors")] {
            let all = if extension == "npy" { "" } else { "--all --exclude *complex*" };
            let run = |isa: &str| {
                let output = format!("{isa}.{target}.{extension}");
                let outcome = run_on(
                    &bench,
                    isa,
                    &format!("cast {input} --to {target} {all} --no-sync -q -f --json -o {output}"),
                );
                assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{output}");
                let mut report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
                (bench.read(&output), report["tensors"].take())
            };
            let (file, tensors) = run("baseline");
            assert!(tensors.as_array().is_some_and(|tensors| !tensors.is_empty()));
            for isa in Isa::available() {
                let (other, counted) = run(isa.name());
                assert!(file == other, "{input} to {target} on {isa:?}");
                assert_eq!(tensors, counted, "{input} to {target} on {isa:?}");
            }
        }
    }
}

#[test]
fn an_instruction_set_that_the_machine_lacks_is_refused_with_those_that_it_has() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    let names: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
    let expected = format!(
        "tcast: error: TCAST_ISA: this machine has no instruction set 'AVX-1024'\n  set it to one of {}, or not at all\n",
        names.join(", ")
    );
    run_on(&bench, "AVX-1024", "cast m.safetensors --to f16").expect(2, "", &expected);
    run_on(&bench, "AVX-1024", "inspect m.safetensors").expect(2, "", &expected);
    assert_eq!(bench.files(), ["m.safetensors"]);
    // As good as not set, which is how shells unset a variable for one command.
    run_on(&bench, "", "cast m.safetensors --to f16 -q -o out.safetensors").expect(0, "", "");
}

#[test]
fn the_first_choice_of_an_instruction_set_holds() {
    assert!(Isa::Baseline.choose());
    assert_eq!(Isa::best().choose(), Isa::best() == Isa::Baseline);
    assert_eq!(Isa::chosen(), Isa::Baseline);
}
