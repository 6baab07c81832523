//! Plain numbers of GGUF files: losses of tensors whose rows change their order, and of decoded weights.

use super::gguf::tiny;
use crate::common::Bench;
use ::safetensors::SafeTensors;

const WEIGHT: &str = "model.layers.0.self_attn.q_proj.weight";

/// The tiny language model, in which a weight whose rows change their order begins with these numbers.
fn model(numbers: &[f32]) -> Bench {
    let bench = tiny();
    let mut file = bench.read("base/model.safetensors");
    let at = {
        let tensors = SafeTensors::deserialize(&file).unwrap();
        tensors.tensor(WEIGHT).unwrap().data().as_ptr().addr() - file.as_ptr().addr()
    };
    for (number, bytes) in numbers.iter().zip(file[at..].as_chunks_mut().0) {
        *bytes = ((number.to_bits() >> 16) as u16).to_le_bytes();
    }
    bench.write("base/model.safetensors", &file);
    bench
}

#[test]
fn losses_of_reordered_rows_are_counted_and_refused() {
    let bench = model(&[1e-9, 3.3e-8, 1e-9]);
    let outcome = bench.run("cast base --to f16 --metadata-from tiny.gguf -o o.gguf --fail-on flushed");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(3), ""));
    outcome.check_message("blk.0.attn_q.weight");
    assert!(!bench.path("o.gguf").exists());
    let outcome = bench.run("cast base --to f16 --metadata-from tiny.gguf -o o.gguf --stats");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    let row = outcome
        .stderr
        .lines()
        .find(|line| line.trim_start().starts_with("blk.0.attn_q.weight  ") && line.contains("dB"));
    assert!(row.is_some_and(|row| row.contains("1 at [0, 0]")), "{}", outcome.stderr);
    outcome.check_message("69952");
}

#[test]
fn reordered_rows_keep_infinities_and_nan() {
    let bench = model(&[f32::NAN, f32::INFINITY]);
    bench.run("cast base --metadata-from tiny.gguf -o o.gguf -q").expect(0, "", "");
    let patterns = "--include *_proj.weight";
    bench.run(&format!("diff o.gguf base --names huggingface {patterns}")).expect(0, "14 tensors are equal\n", "");
    let line = format!("quantize base --scheme q8_0 --metadata-from tiny.gguf -o q.gguf -q --exclude {WEIGHT}");
    bench.run(&line).expect(0, "", "");
    bench.run("cast base --to f16 --metadata-from tiny.gguf -o o.gguf -f --fail-on input-nan").says(
        3,
        "",
        "blk.0.attn_q.weight",
    );
}

#[test]
fn only_exact_refuses_plain_numbers_that_change() {
    let bench = tiny();
    let outcome = bench.run("quantize tiny.gguf --scheme f16 --only-exact -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(3), ""));
    outcome.check_message("3315");
    bench.run("quantize tiny.gguf --scheme f32 --only-exact -o o.gguf -q").expect(0, "", "");
    bench.run("quantize tiny.gguf --scheme f16 --min-sqnr 300 -o x.gguf").says(2, "", "--min-sqnr");
    bench.run("quantize base --scheme bf16 --only-exact --metadata-from tiny.gguf -o b.gguf -q").expect(0, "", "");
}

#[test]
fn tensors_of_another_type_are_not_reported_as_copied() {
    let bench = tiny();
    bench.run("cast base --metadata-from tiny.gguf -o o.gguf").says(0, "", "float32");
}
