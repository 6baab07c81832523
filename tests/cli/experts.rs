//! Experts of a layer, stacked in one tensor or single, through the program.

use super::quantize::{assert_same, bench_with, config, tensors};
use crate::common::{Bench, Outcome};
use crate::dequantize::shard;
use serde_json::{Value, json};
use std::fs;

/// The names of the projections of an expert.
type Names = [&'static str; 3];

const PLAIN: (&str, Names) = ("mlp", ["gate_proj", "up_proj", "down_proj"]);
const SPARSE: (&str, Names) = ("block_sparse_moe", ["w1", "w3", "w2"]);
const FFN: (&str, Names) = ("ffn", ["w1", "w3", "w2"]);

/// A folder `m` of a kind of model with 11 experts in a layer, sorted by name as transformers writes it. `sizes` are the hidden
/// size, and the size of an expert.
fn moe(kind: &str, (module, names): (&str, Names), [hidden, inner]: [u64; 2]) -> Bench {
    let layer = format!("model.layers.0.{module}");
    let of = |expert: u64| {
        names.map(|name| {
            let shape = if name == names[2] { [hidden, inner] } else { [inner, hidden] };
            (format!("{layer}.experts.{expert}.{name}.weight"), shape)
        })
    };
    let others =
        [(format!("{layer}.gate.weight"), [11, hidden]), ("model.embed_tokens.weight".to_owned(), [32, hidden])];
    let mut all: Vec<(String, [u64; 2])> = (0..11).flat_map(of).chain(others).collect();
    all.sort();
    let stored: Vec<(&str, &[u64])> = all.iter().map(|(name, shape)| (&**name, &shape[..])).collect();
    let config =
        json!({ "model_type": kind, "hidden_size": hidden, "moe_intermediate_size": inner, "num_experts": 11 });
    bench_with(&stored, &config.to_string())
}

fn qwen() -> Bench {
    moe("qwen3_moe", PLAIN, [128, 256])
}

#[track_caller]
fn done(bench: &Bench, line: &str) {
    bench.run(&format!("{line} -q")).expect(0, "", "");
}

#[track_caller]
fn is_refused(outcome: &Outcome, message: &str) {
    let is_error = matches!(outcome.code, Some(1 | 2)) && outcome.stdout.is_empty();
    outcome.check_message(message);
    assert!(is_error, "{outcome:?}");
}

#[test]
fn stacks_hold_the_experts_in_order_and_the_way_back_gives_the_same_file() {
    let sparse = ["mixtral", "minimax_m2", "minimax_m3_vl"].map(|kind| (kind, SPARSE));
    for (kind, names) in [("qwen3_moe", PLAIN), ("deepseek_v4", FFN)].into_iter().chain(sparse) {
        let bench = moe(kind, names, [64, 48]);
        done(&bench, "cast m --experts stacked -o s");
        let (single, stacked) = (tensors(&bench.path("m")), tensors(&bench.path("s")));
        let layer = "model.layers.0.mlp";
        let found: Vec<(&str, &[usize])> = stacked.iter().map(|(name, tensor)| (&**name, &tensor.1[..])).collect();
        let wanted: [(&str, &[usize]); 4] = [
            ("model.embed_tokens.weight", &[32, 64]),
            (&format!("{layer}.experts.down_proj"), &[11, 64, 48]),
            (&format!("{layer}.experts.gate_up_proj"), &[11, 96, 64]),
            (&format!("{layer}.gate.weight"), &[11, 64]),
        ];
        assert_eq!(found, wanted);
        let (module, [gate, up, down]) = names;
        let of = |expert: usize, name: &str| {
            single[&format!("model.layers.0.{module}.experts.{expert}.{name}.weight")].2.clone()
        };
        let gates: Vec<u8> = (0..11).flat_map(|at| [of(at, gate), of(at, up)].concat()).collect();
        assert!(stacked[&format!("{layer}.experts.gate_up_proj")].2 == gates, "{kind}");
        let downs: Vec<u8> = (0..11).flat_map(|at| of(at, down)).collect();
        assert!(stacked[&format!("{layer}.experts.down_proj")].2 == downs, "{kind}");
        done(&bench, "cast m --rename *=* -o same"); // with tcast's header
        done(&bench, "cast s --experts single -o back");
        assert!(bench.read("back/model.safetensors") == bench.read("same/model.safetensors"), "{kind}");
        done(&bench, "cast back --experts stacked -o again");
        assert!(bench.read("again/model.safetensors") == bench.read("s/model.safetensors"), "{kind}");
        bench.run("diff s m --experts single").expect(0, "35 tensors are equal\n", "");
        assert_eq!(bench.run("diff s m -q").code, Some(1));
    }
}

#[test]
fn codes_and_scales_are_stacked_bit_for_bit() {
    let bench = moe("mixtral", SPARSE, [128, 256]);
    let quantize = "quantize m --scheme fp8-block --layout huggingface";
    done(&bench, &format!("{quantize} -o q"));
    done(&bench, "cast q --experts stacked -o s");
    let stacked = tensors(&bench.path("s"));
    let kept = |name: &str| (&*stacked[name].0, &stacked[name].1[..]);
    let layer = "model.layers.0.mlp";
    assert_eq!(kept(&format!("{layer}.experts.gate_up_proj")), ("F8_E4M3", &[11, 512, 128][..]));
    assert_eq!(kept(&format!("{layer}.experts.gate_up_proj_scale_inv")), ("F32", &[11, 4, 1][..]));
    assert_eq!(kept(&format!("{layer}.experts.down_proj_scale_inv")), ("F32", &[11, 1, 2][..]));
    let list = |folder: &str| config(&bench, folder)["quantization_config"]["modules_to_not_convert"].clone();
    assert_eq!(list("q"), json!(["lm_head", "model.embed_tokens", "model.layers.0.block_sparse_moe.gate"]));
    assert_eq!(list("s"), json!(["lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"]));
    done(&bench, "cast s --experts single -o back");
    assert_same(&tensors(&bench.path("back")), &tensors(&bench.path("q")));
    assert_eq!(config(&bench, "back"), config(&bench, "q"));
    // The same at once, also from stacks.
    done(&bench, &format!("{quantize} --experts stacked -o at-once"));
    assert_same(&tensors(&bench.path("at-once")), &stacked);
    done(&bench, "cast m --experts stacked -o plain");
    done(&bench, &format!("{} --experts single -o from", quantize.replace(" m ", " plain ")));
    assert_same(&tensors(&bench.path("from")), &tensors(&bench.path("q")));
    // Decoded, in either form.
    done(&bench, "dequantize q -o values");
    done(&bench, "cast values --experts stacked -o wanted");
    for (folder, form, wanted) in [("q", "stacked", "wanted"), ("s", "single", "values")] {
        done(&bench, &format!("dequantize {folder} --experts {form} -o {folder}-{form}"));
        assert_same(&tensors(&bench.path(&format!("{folder}-{form}"))), &tensors(&bench.path(wanted)));
    }
    // A stacked master against a release of single experts.
    let outcome = bench.run("diff plain q --experts single --tolerance 1 --json");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((report["counts"]["only_in_a"].as_u64(), report["counts"]["only_in_b"].as_u64()), (Some(0), Some(0)));
    assert_eq!(report["counts"]["shapes_differ"], 0);
    assert_eq!(report["tensors"].as_array().unwrap().len(), 35);
}

#[test]
fn the_module_of_a_bank_takes_the_place_of_its_experts_in_lists() {
    let shapes: Vec<(String, [u64; 2])> =
        ["experts.0.gate_proj", "experts.0.up_proj", "experts.0.down_proj", "gate", "down_proj"]
            .map(|name| (format!("model.layers.0.mlp.{name}.weight"), [128, 128]))
            .to_vec();
    let stored: Vec<(&str, &[u64])> = shapes.iter().map(|(name, shape)| (&**name, &shape[..])).collect();
    let bench = bench_with(&stored, r#"{"model_type": "qwen3_moe", "num_experts": 1}"#);
    done(&bench, "quantize m --scheme fp8-block --layout huggingface --exclude *.experts.* -o q");
    let list = |folder: &str| config(&bench, folder)["quantization_config"]["modules_to_not_convert"].clone();
    assert!(list("q").as_array().unwrap().contains(&json!("model.layers.0.mlp.experts.0.up_proj")), "{}", list("q"));
    done(&bench, "cast q --experts stacked --rename model.*=language.* -o s");
    assert_eq!(list("s"), json!(["lm_head", "language.layers.0.mlp.experts", "language.layers.0.mlp.gate"]),);
    assert!(tensors(&bench.path("s")).contains_key("language.layers.0.mlp.experts.gate_up_proj"));
}

#[test]
fn a_scale_for_rows_of_two_weights_and_other_layouts_are_refused() {
    let bench = moe("qwen3_moe", PLAIN, [128, 192]);
    fs::create_dir(bench.path("q")).unwrap();
    let (codes, scales) = (vec![0x38; 192 * 128], [0; 8]);
    let expert = |name: &str| format!("model.layers.0.mlp.experts.0.{name}.weight");
    let names = ["gate_proj", "up_proj"].map(expert);
    let scale_names = names.each_ref().map(|name| format!("{name}_scale_inv"));
    let stored = names.iter().zip(&scale_names).flat_map(|(name, scale)| {
        [(&**name, "F8_E4M3", &[192, 128][..], &codes[..]), (&**scale, "F32", &[2, 1], &scales)]
    });
    bench.write("q/model.safetensors", &shard(&stored.collect::<Vec<_>>()));
    let block = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    let of = json!({ "model_type": "qwen3_moe", "num_experts": 1, "quantization_config": block });
    bench.write("q/config.json", of.to_string().as_bytes());
    let expert = "tensor 'model.layers.0.mlp.experts.0.gate_proj.weight'";
    let remedy = "decode the model first, or leave its experts as they are";
    let cannot = "is a part of an expert that cannot be stacked";
    let rows = format!("{expert}: {cannot}: it has 192 rows, and a scale is for 128\n  {remedy}");
    is_refused(&bench.run("cast q --experts stacked -o o"), &format!("q: {rows}"));
    for (scheme, layout) in [("fp8", "compressed-tensors"), ("nvfp4", "modelopt"), ("mxfp4", "compressed-tensors")] {
        done(&bench, &format!("quantize m --scheme {scheme} --layout {layout} -o {scheme}"));
        for line in [
            format!("cast {scheme} --experts stacked -o o"),
            format!("quantize m --scheme {scheme} --layout {layout} --experts stacked -o o"),
        ] {
            bench.run(&line).says(1, "", "experts");
        }
        done(&bench, &format!("dequantize {scheme} --experts stacked -o {scheme}-values"));
        assert!(tensors(&bench.path(&format!("{scheme}-values"))).contains_key("model.layers.0.mlp.experts.down_proj"));
    }
    let files = bench.files();
    assert!(!files.contains(&"o".to_owned()), "{files:?}");
}

#[test]
fn a_stack_of_one_weight_may_have_partial_blocks() {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let codes: Vec<u8> = (0..192 * 128).map(|at| (at % 100) as u8).collect();
    let scales: Vec<u8> = [1.0_f32, 2.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let of = |expert: u64| format!("model.layers.0.mlp.experts.{expert}.down_proj.weight");
    let (names, scale_names) = ([of(0), of(1)], [of(0), of(1)].map(|name| format!("{name}_scale_inv")));
    let stored = names.iter().zip(&scale_names).flat_map(|(name, scale)| {
        [(&**name, "F8_E4M3", &[192, 128][..], &codes[..]), (&**scale, "F32", &[2, 1], &scales)]
    });
    bench.write("q/model.safetensors", &shard(&stored.collect::<Vec<_>>()));
    let block = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    let config = json!({ "model_type": "qwen3_moe", "num_experts": 2, "quantization_config": block });
    bench.write("q/config.json", config.to_string().as_bytes());
    done(&bench, "cast q --experts stacked -o s");
    assert_eq!(tensors(&bench.path("s"))["model.layers.0.mlp.experts.down_proj_scale_inv"].1, [2, 2, 1]);
    done(&bench, "cast s --experts single -o back");
    assert_same(&tensors(&bench.path("back")), &tensors(&bench.path("q")));
}

#[test]
fn what_has_no_other_form_is_refused() {
    let bench = qwen();
    done(&bench, "cast m --experts stacked -o s");
    let leave = "\n  leave --experts out";
    is_refused(&bench.run("cast m --experts single -o o"), "stacks");
    let none = "has no experts that are stored one by one";
    is_refused(&bench.run("cast s --experts stacked -o o"), &format!("s: {none}{leave}"));
    let files = format!("m: experts are stacked in .safetensors files only{leave}");
    is_refused(
        &bench.run("cast m/model.safetensors --experts stacked -o o.npz"),
        &files.replace("m:", "m/model.safetensors:"),
    );
    let text = fs::read_to_string(bench.path("m/config.json")).unwrap();
    let other = |kind: &str| {
        bench.write("m/config.json", text.replace("qwen3_moe", kind).as_bytes());
        bench.write("s/config.json", text.replace("qwen3_moe", kind).as_bytes());
    };
    other("mine");
    let unknown = "is a model of type 'mine', and tcast does not know how its experts are stacked and divided";
    is_refused(&bench.run("cast m --experts stacked -o o"), &format!("m: {unknown}"));
    is_refused(&bench.run("diff s m --experts single"), &format!("s: {unknown}"));
    other("llama4_text");
    let transposed = "files of 'llama4_text' store each expert transposed, and transformers has no other form of them";
    is_refused(&bench.run("cast s --experts single -o o"), &format!("s: {transposed}"));
    is_refused(&bench.run("cast m --experts stacked -o o"), &format!("m: {transposed}"));
    fs::remove_file(bench.path("s/config.json")).unwrap();
    let nothing =
        "s: has no config.json with a model_type, and tcast does not know how its experts are stacked and divided";
    is_refused(&bench.run("cast s --experts single -o o"), nothing);
    other("qwen3_moe");
    let mut swapped: Value = serde_json::from_str(&text).unwrap();
    (swapped["hidden_size"], swapped["moe_intermediate_size"]) = (json!(512), json!(64));
    let swapped = swapped.to_string();
    bench.write("s/config.json", swapped.as_bytes());
    bench.run("cast s --experts single -o o").says(1, "", "transposed");
    // An expert that is missing, and one of another type.
    let missing = format!(
        "m: tensor 'model.layers.0.mlp.experts.down_proj': is a stack of 11 experts, and \
         'model.layers.0.mlp.experts.3.down_proj.weight' is missing{leave}"
    );
    is_refused(&bench.run("cast m --drop *.experts.3.down_proj.* --experts stacked -o o"), &missing);
    bench.run("cast m --rule *.experts.3.down_proj.*=float32 --experts stacked -o o").says(1, "", "differs");
    assert_eq!(bench.files(), ["m", "s"]);
}

#[test]
fn a_correction_of_the_router_moves_into_its_module() {
    let layer = "model.layers.0";
    let [expert, correction, dense] = [
        "0.block_sparse_moe.experts.0.w2.weight",
        "0.block_sparse_moe.e_score_correction_bias",
        "1.mlp.down_proj.weight",
    ]
    .map(|name| format!("model.layers.{name}"));
    let bench = bench_with(
        &[(&*correction, &[1]), (&*expert, &[64, 48]), (&*dense, &[64, 48])],
        r#"{"model_type": "minimax_m3_vl", "text_config": {"num_local_experts": 1}}"#,
    );
    done(&bench, "cast m --experts stacked -o s");
    let names: Vec<String> = tensors(&bench.path("s")).into_keys().collect();
    let moved = [format!("{layer}.mlp.experts.down_proj"), format!("{layer}.mlp.gate.e_score_correction_bias"), dense];
    assert_eq!(names, moved);
    done(&bench, "cast s --experts single -o back");
    assert_same(&tensors(&bench.path("back")), &tensors(&bench.path("m")));
}

#[test]
fn a_bias_of_stacked_experts_is_refused() {
    let bench = bench_with(
        &[("a.mlp.experts.down_proj", &[2, 64, 48]), ("a.mlp.experts.down_proj_bias", &[2, 64])],
        r#"{"model_type": "qwen3_moe"}"#,
    );
    is_refused(&bench.run("cast m --experts single -o o"), "a.mlp.experts.down_proj_bias");
}

#[test]
fn other_options_see_single_experts() {
    let bench = qwen();
    done(&bench, "cast m --experts stacked -o s");
    // Casts of all experts, a choice, and what another model has.
    done(&bench, "cast s --experts single --to float16 --include *.experts.* -o half");
    done(&bench, "cast m --to float16 --include *.experts.* -o wanted");
    assert_same(&tensors(&bench.path("half")), &tensors(&bench.path("wanted")));
    done(&bench, "cast m --to float16 --experts stacked -o half-stacked");
    assert_eq!(tensors(&bench.path("half-stacked"))["model.layers.0.mlp.experts.gate_up_proj"].0, "F16");
    done(&bench, "cast s --experts single --only *.experts.3.* -o third");
    assert_eq!(tensors(&bench.path("third")).len(), 3);
    done(&bench, "cast m --drop *.experts.* -o without");
    done(&bench, "cast m --drop *.experts.3.* -o some");
    done(&bench, "cast some --experts stacked --add third -o all");
    assert_same(&tensors(&bench.path("all")), &tensors(&bench.path("s")));
}

#[test]
fn shards_are_stacked_in_parts_and_after_an_interruption() {
    let bench = qwen();
    done(&bench, "cast m --max-shard-size 300KB -o shards");
    done(&bench, "cast shards --experts stacked -o whole");
    let parts = [1, 2, 3].map(|part| format!("cast shards --experts stacked -o parts --part {part}/3"));
    for line in parts {
        done(&bench, &line);
    }
    done(&bench, "cast --finish parts");
    assert_same(&tensors(&bench.path("parts")), &tensors(&bench.path("whole")));
    assert_same(
        &tensors(&bench.path("whole")),
        &tensors(&{
            done(&bench, "cast m --experts stacked -o s");
            bench.path("s")
        }),
    );
    let index = |folder: &str| bench.read(&format!("{folder}/model.safetensors.index.json"));
    assert!(index("parts") == index("whole"));
    // Another form is another conversion.
    done(&bench, "cast shards --experts stacked -o resumed --part 1/3");
    let outcome = bench.run("cast shards --to float16 -o resumed --resume");
    assert!(outcome.code == Some(1) && outcome.stderr.contains("option"), "{outcome:?}");
    done(&bench, "cast shards --experts stacked -o resumed --resume");
    assert_same(&tensors(&bench.path("resumed")), &tensors(&bench.path("whole")));
    done(&bench, "cast whole --experts single --max-shard-size 300KB -o back");
    assert_same(&tensors(&bench.path("back")), &tensors(&bench.path("m")));
    let shown = bench.run("cast m --experts stacked -o o --dry-run --json");
    let report: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(report["options"]["experts"], "stacked", "{report}");
    assert_eq!(bench.files().iter().filter(|file| **file == "o").count(), 0);
}
