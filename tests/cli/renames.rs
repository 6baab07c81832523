//! New names of weights in quantized checkpoints.

use super::quantize::{assert_same, bench_with, tensors};
use super::quantize_choices::expect_refused;
use crate::common::Bench;

const NAMES: &str = "--rename a.o_proj.weight=x.y.weight --rename lm_head.weight=c.d.weight";

fn plain() -> Bench {
    bench_with(
        &[("a.o_proj.weight", &[128, 128]), ("b.o_proj.weight", &[128, 128]), ("lm_head.weight", &[8, 128])],
        "{\"dtype\": \"bfloat16\"}",
    )
}

#[test]
fn parts_follow_their_weight_and_configs_list_the_new_names() {
    let bench = plain();
    for (scheme, layout) in [
        ("fp8-block", "huggingface"),
        ("mxfp8", "mxfp8"),
        ("int4", "compressed-tensors"),
        ("nvfp4", "compressed-tensors"),
        ("nvfp4", "modelopt"),
        ("fp8", "comfyui"),
    ] {
        let folder = |name: &str| format!("{layout}-{scheme}-{name}");
        let run = |line: &str, to: &str| {
            bench.run(&format!("{line} -q -o {}", folder(to))).expect(0, "", "");
        };
        run(&format!("quantize m --scheme {scheme} --layout {layout}"), "q");
        let q = folder("q");
        run(&format!("dequantize {q} {NAMES}"), "plain");
        let wanted = tensors(&bench.path(&folder("plain")));
        assert!(wanted.contains_key("x.y.weight") && wanted.contains_key("c.d.weight"), "{wanted:?}");
        for (line, to) in [
            (format!("dequantize {q} --exclude a.o_proj.weight {NAMES}"), "excluded"),
            (format!("dequantize {q} --include a.o_proj.weight {NAMES}"), "included"),
            (format!("cast {q} --to bf16 --exclude * {NAMES}"), "cast"),
        ] {
            run(&line, to);
            for file in ["config.json", "hf_quant_config.json"] {
                let text = std::fs::read_to_string(bench.path(&folder(to)).join(file)).unwrap_or_default();
                assert!(!text.contains("lm_head") && !text.contains("a.o_proj"), "{line}: {text}");
                let is_listed = text.contains("c.d") && (to != "included" || text.contains("x.y"));
                assert!(is_listed || !text.contains("quant"), "{line}: {text}");
            }
            run(&format!("dequantize {}", folder(to)), &format!("{to}-decoded"));
            assert_same(&tensors(&bench.path(&folder(&format!("{to}-decoded")))), &wanted);
        }
    }
    bench.run("quantize m --scheme nvfp4 -q -o q").expect(0, "", "");
    expect_refused(&bench, "cast q --to bf16 --exclude * --rename a.o_proj.weight=foo", 1, "a.o_proj.weight");
}

#[test]
fn a_part_can_have_a_new_name_of_its_own() {
    let bench = plain();
    bench.run("quantize m --scheme fp8 --layout comfyui -q -o q").expect(0, "", "");
    let names = "--rename a.o_proj.weight=x.weight --rename a.o_proj.weight_scale=x.scale_weight";
    bench.run(&format!("cast q --to bf16 --exclude * {names} -q -o out")).expect(0, "", "");
    let found = tensors(&bench.path("out"));
    let of_weight = found.keys().filter(|name| name.starts_with("x.")).collect::<Vec<_>>();
    assert_eq!(of_weight, ["x.comfy_quant", "x.scale_weight", "x.weight"]);
}

/// Readers would not find the scale of codes that stay.
#[test]
fn a_part_keeps_the_module_of_its_weight() {
    let bench = plain();
    bench.run("quantize m --scheme fp8 -q -o q").expect(0, "", "");
    for line in [
        "dequantize q --include b.*",
        "cast q --to bf16 --exclude *",
        "cast q --to bf16 --exclude * --rename a.o_proj.weight=x.weight",
    ] {
        expect_refused(
            &bench,
            &format!("{line} --rename a.o_proj.weight_scale=y.weight_scale"),
            1,
            "a.o_proj.weight_scale",
        );
    }
}
