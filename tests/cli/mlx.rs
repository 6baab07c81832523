//! Checkpoints of MLX through the program: decoded, compared, looked at and written. `tests/quant/goldens.rs` and
//! `tests/quant/encode.rs` check the bytes of every layout.

use crate::common::{Bench, fixture};
use crate::dequantize::shard;
use crate::quantize::{assert_same, bench_with, config, tensors};
use serde_json::{Value, json};
use std::fs;

/// A folder with a copy of the checkpoint that mlx-lm wrote, as `c`.
fn checkpoint() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("c")).unwrap();
    for entry in fs::read_dir(fixture("mlx/checkpoint")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), bench.path("c").join(entry.file_name())).unwrap();
    }
    bench
}

/// A stored tensor: its name, type and shape. Each byte is 0x38, which is a small number in all types.
type Tensor<'a> = (&'a str, &'a str, &'a [u64]);

/// A folder `q` of these tensors and a norm.
fn folder(tensors: &[Tensor], config: Option<&Value>) -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let width = |dtype: &str| match dtype {
        "U8" => 1,
        "F16" | "BF16" => 2,
        _ => 4,
    };
    let tensors = [tensors, &[("norm.weight", "BF16", &[8])]].concat();
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, dtype, shape)| {
            let count = shape.iter().try_fold(1_u64, |count, length| count.checked_mul(*length));
            vec![0x38; count.filter(|count| *count < 1 << 20).unwrap_or_default() as usize * width(dtype)]
        })
        .collect();
    let stored = tensors.iter().zip(&bytes).map(|((name, dtype, shape), bytes)| (*name, *dtype, *shape, &bytes[..]));
    bench.write("q/model.safetensors", &shard(&stored.collect::<Vec<_>>()));
    if let Some(config) = config {
        bench.write("q/config.json", config.to_string().as_bytes());
    }
    bench
}

/// A weight of 2 x 64 values in 4 bits, in groups of 64.
const WEIGHT: [Tensor; 3] =
    [("q.weight", "U32", &[2, 8]), ("q.scales", "BF16", &[2, 1]), ("q.biases", "BF16", &[2, 1])];

/// A config with these members in `quantization`, besides groups of 64 and 4 bits.
#[allow(clippy::needless_pass_by_value, reason = "each caller makes the value in place")]
fn with(members: Value) -> Value {
    let mut block = json!({ "group_size": 64, "bits": 4 });
    for (key, value) in members.as_object().unwrap() {
        block[key] = value.clone();
    }
    json!({ "quantization": block })
}

#[track_caller]
fn is_refused(bench: &Bench, line: &str, message: &str) {
    let before = bench.files();
    bench.run(line).says(1, "", message);
    assert_eq!(bench.files(), before);
}

#[test]
fn a_checkpoint_of_several_modes_and_widths_decodes_to_the_values_of_mlx() {
    let bench = checkpoint();
    bench.run("dequantize c -o d").says(0, "", "bfloat16");
    let (found, wanted) = (tensors(&bench.path("d")), tensors(&fixture("mlx/checkpoint-decoded")));
    let shared = found.iter().filter(|(name, _)| wanted.contains_key(*name));
    assert_same(&shared.map(|(name, tensor)| (name.clone(), tensor.clone())).collect(), &wanted);
    assert!(found.values().all(|(dtype, ..)| dtype == "BF16") && found.len() == 11);
    let mut config_of_input = config(&bench, "c");
    let members = config_of_input.as_object_mut().unwrap();
    for key in ["quantization", "quantization_config"] {
        assert!(members.remove(key).is_some());
    }
    assert_eq!(config(&bench, "d"), config_of_input);
    let file = bench.read("d/model.safetensors");
    assert!(String::from_utf8_lossy(&file[8..80]).contains(r#""__metadata__":{"format":"pt"}"#));
}

#[test]
fn a_checkpoint_is_equal_to_its_values_and_is_described() {
    let bench = checkpoint();
    bench.run("dequantize c -o d -q").expect(0, "", "");
    bench.run("diff c d").expect(0, "11 tensors are equal\n", "");
    let values = fixture("mlx/checkpoint-decoded/model.safetensors");
    let outcome = bench.run_args(&["diff", "c", values.to_str().unwrap(), "--include", "*{v,gate,up}_proj.weight"]);
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), "3 tensors are equal\n"), "{outcome:?}");
    let outcome = bench.run("inspect c");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    for row in [
        "  model.layers.0.self_attn.o_proj.weight          uint3, 1 x 128      [128, 128]  6.50 KiB  mlx-affine, 3.25 bits per weight\n",
        "  model.layers.0.self_attn.v_proj.weight          uint6, 1 x 32       [64, 128]   7.00 KiB  mlx-affine, 7.00 bits per weight\n",
        "  model.layers.0.mlp.gate_proj.weight             float4e2m1, 1 x 32  [32, 128]   2.12 KiB  mlx-mxfp4, 4.25 bits per weight\n",
        "  model.layers.0.mlp.up_proj.weight               float4e2m1, 1 x 16  [32, 128]   2.25 KiB  mlx-nvfp4, 4.50 bits per weight\n",
        "  format: mlx\n",
    ] {
        assert!(outcome.stdout.contains(row), "{}", outcome.stdout);
    }
}

#[test]
fn the_bits_of_a_value_are_shown_with_its_scale_and_its_offset() {
    let bench = checkpoint();
    let rows = "0  000  0 * -0.10986328 + 0.43945312 = 0.43945312\n1  100  4 * -0.10986328 + 0.43945312 = 0\n";
    bench.run("bitcast c --bits --tensor model.layers.0.self_attn.o_proj.weight --range 0..2").expect(0, rows, "");
}

#[test]
fn exact_arithmetic_rounds_once() {
    // bfloat16 has neither 3 nor 7 times this scale.
    let words = (0..8).flat_map(|_| 0x7373_7373_u32.to_le_bytes()).collect::<Vec<u8>>();
    let scale = half::bf16::from_f32(0.1).to_le_bytes();
    let offset = half::bf16::from_f32(0.001).to_le_bytes();
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let parts = shard(&[
        ("q.weight", "U32", &[1, 8], &words),
        ("q.scales", "BF16", &[1, 1], &scale),
        ("q.biases", "BF16", &[1, 1], &offset),
    ]);
    bench.write("q/model.safetensors", &parts);
    bench.write("q/config.json", with(json!({})).to_string().as_bytes());
    let [scale, offset] = [scale, offset].map(|bytes| half::bf16::from_le_bytes(bytes).to_f64());
    let round = |value: f64| half::bf16::from_f64(value).to_f64();
    for (arithmetic, value) in [
        (
            "library",
            (|code, scale, offset, round| round(round(code * scale) + offset))
                as fn(_, _, _, &dyn Fn(f64) -> f64) -> f64,
        ),
        ("exact", |code, scale, offset, round| round(code * scale + offset)),
    ] {
        bench.run(&format!("dequantize q -o {arithmetic} --arithmetic {arithmetic} -q")).expect(0, "", "");
        let (_, shape, bytes) = &tensors(&bench.path(arithmetic))["q.weight"];
        assert_eq!(*shape, [1, 64]);
        for (at, bytes) in bytes.as_chunks().0.iter().enumerate() {
            let code = if at % 2 == 0 { 3.0 } else { 7.0 };
            assert_eq!(
                half::bf16::from_le_bytes(*bytes).to_f64().to_bits(),
                value(code, scale, offset, &round).to_bits()
            );
        }
    }
    let outcome = bench.run("diff library exact");
    assert!(outcome.code == Some(1) && outcome.stdout.contains("values differ  64 of 64"), "{outcome:?}");
}

#[test]
fn a_module_can_have_an_entry_of_its_own_or_none() {
    for (what, tensors, config, shape) in [
        ("no mode", WEIGHT.to_vec(), with(json!({})), "[2, 64]"),
        ("as the others", WEIGHT.to_vec(), with(json!({ "q": true })), "[2, 64]"),
        (
            "only the newer key",
            WEIGHT.to_vec(),
            json!({ "quantization_config": { "group_size": 64, "bits": 4, "mode": "affine" } }),
            "[2, 64]",
        ),
        (
            "an entry",
            vec![("q.weight", "U32", &[2, 12]), ("q.scales", "F16", &[2, 3]), ("q.biases", "F16", &[2, 3])],
            with(json!({ "q": { "group_size": 32, "bits": 4 } })),
            "[2, 96]",
        ),
        ("no entry, and 6 bits", vec![("q.weight", "U32", &[2, 12]), WEIGHT[1], WEIGHT[2]], with(json!({})), "[2, 64]"),
        (
            "no entry, and scales of MX",
            vec![("q.weight", "U32", &[2, 8]), ("q.scales", "U8", &[2, 2])],
            with(json!({ "mode": "affine" })),
            "[2, 64]",
        ),
        (
            "the config of the language model",
            WEIGHT.to_vec(),
            json!({ "text_config": { "quantization": { "group_size": 64, "bits": 4 } } }),
            "[2, 64]",
        ),
        ("an entry that is none", WEIGHT.to_vec(), with(json!({ "q": "x" })), "[2, 64]"),
        ("an entry of null", WEIGHT.to_vec(), with(json!({ "q": null })), "[2, 64]"),
    ] {
        let bench = folder(&tensors, Some(&config));
        bench.run("dequantize q -o o").says(0, "", shape);
        let written = String::from_utf8(bench.read("o/config.json")).unwrap();
        assert!(!written.contains("quantization"), "{what}: {written}");
    }
}

#[test]
fn a_module_that_is_not_quantized_has_no_scales() {
    let bench = folder(&WEIGHT, Some(&with(json!({ "q": false }))));
    let message = "q/model.safetensors: tensor 'q.weight': the config says with 'q' that it is not quantized, and \
                   'q.scales' that it is";
    is_refused(&bench, "dequantize q -o o", message);
    let plain = [WEIGHT.as_slice(), &[("k.weight", "BF16", &[2, 64])]].concat();
    let bench = folder(&plain, Some(&with(json!({ "k": false }))));
    let outcome = bench.run("dequantize q -o o");
    let is_decoded = outcome.stderr.starts_with("dequantize 1 tensor to bfloat16, copied 2\n");
    assert!(outcome.code == Some(0) && is_decoded, "{outcome:?}");
}

#[test]
fn without_a_config_the_shapes_show_all_modes_but_affine() {
    let modes: [(&str, &[u64], &[u64]); 3] =
        [("mlx-mxfp4", &[2, 8], &[2, 2]), ("mlx-mxfp8", &[2, 16], &[2, 2]), ("mlx-nvfp4", &[2, 8], &[2, 4])];
    for (layout, codes, scales) in modes {
        let bench = folder(&[("q.weight", "U32", codes), ("q.scales", "U8", scales)], None);
        bench.run("dequantize q -o o").says(0, "", layout);
        assert!(!bench.path("o/config.json").exists());
    }
    let reason = "it looks like a weight of MLX, mode affine, but there is no config.json with the details";
    is_refused(&folder(&WEIGHT, None), "dequantize q -o o", "q.weight");
    let outcome = folder(&WEIGHT, None).run("inspect q");
    let problem = format!("problems of quantized weights\n  tensor 'q.weight': {reason}\n");
    assert!(outcome.code == Some(0) && outcome.stdout.contains(&problem), "{outcome:?}");
    let odd = [("q.weight", "U32", &[2, 9][..]), ("q.scales", "U8", &[2, 2])];
    is_refused(&folder(&odd, None), "dequantize q -o o", "q.weight");
}

#[test]
fn a_cast_of_codes_is_refused_with_or_without_a_config() {
    for config in [Some(with(json!({}))), None] {
        let bench = folder(&WEIGHT, config.as_ref());
        let outcome = bench.run("cast q --to f32 -o o");
        outcome.says(1, "", "--force-codes");
        assert_eq!(
            outcome.stderr.contains("\n  tcast dequantize 'q' --to float32 -o 'o'\n"),
            config.is_some(),
            "{outcome:?}"
        );
        assert_eq!(bench.files(), ["q"]);
    }
}

#[test]
fn parts_that_do_not_fit_each_other_are_refused() {
    let [weight, scales, biases] = WEIGHT;
    let wide: &[u64] = &[2, 1 << 40];
    for tensors in [
        vec![weight, scales, ("q.biases", "BF16", &[2, 2])],
        vec![weight, scales, ("q.biases", "F16", &[2, 1])],
        vec![weight, scales],
        vec![weight, biases],
        vec![("q.weight", "U32", &[8]), ("q.scales", "BF16", &[1]), ("q.biases", "BF16", &[1])],
        vec![weight, ("q.scales", "I32", &[2, 1]), ("q.biases", "I32", &[2, 1])],
        // The file is shorter than these shapes.
        vec![("q.weight", "U32", wide), scales, biases],
        vec![("q.weight", "U32", &[1 << 40, 1 << 40]), scales, biases],
    ] {
        let bench = folder(&tensors, Some(&with(json!({}))));
        is_refused(&bench, "dequantize q -o o", "tensor 'q.");
    }
}

#[test]
fn configs_that_do_not_describe_the_tensors_are_refused() {
    for (members, message) in [
        (json!({ "q": { "group_size": 32, "bits": 4 } }), "q.weight"),
        (json!({ "bits": "4" }), "number"),
        (json!({ "mode": 4 }), "mode"),
        (json!({ "mode": "novel" }), "novel"),
    ] {
        is_refused(&folder(&WEIGHT, Some(&with(members))), "dequantize q -o o", message);
    }
    for size in [0, -1, 48, 1_i64 << 62] {
        let message =
            format!("q/config.json: the config says group_size {size}, and MLX has groups of 32, 64 and 128 values");
        is_refused(&folder(&WEIGHT, Some(&with(json!({ "group_size": size })))), "dequantize q -o o", &message);
    }
    for bits in [0, 7, 33, 1_u64 << 40] {
        let of = |subject: &str| {
            format!(
                "q/config.json: the config says {subject}bits {bits}, and MLX has codes of 2, 3, 4, 5, 6 and 8 bits"
            )
        };
        is_refused(&folder(&WEIGHT, Some(&with(json!({ "bits": bits })))), "dequantize q -o o", &of(""));
        let entry = json!({ "q": { "group_size": 64, "bits": bits } });
        is_refused(&folder(&WEIGHT, Some(&with(entry))), "dequantize q -o o", &of("of 'q' "));
    }
    for (members, message) in
        [(json!({ "mode": "mxfp4", "bits": 8 }), "'mxfp4'"), (json!({ "mode": "nvfp4" }), "'nvfp4'")]
    {
        is_refused(&folder(&WEIGHT, Some(&with(members))), "dequantize q -o o", message);
    }
    let bench = folder(&WEIGHT, Some(&with(json!({ "mode": "mxfp4", "group_size": 32 }))));
    is_refused(&bench, "dequantize q -o o", "'mxfp4'");
    // A width that does not divide the tensors.
    let bench = folder(&WEIGHT, Some(&with(json!({ "q": { "group_size": 64, "bits": 3 } }))));
    is_refused(&bench, "dequantize q -o o", "'q.weight'");
    let both = json!({
        "quantization": { "group_size": 64, "bits": 4 },
        "quantization_config": { "group_size": 32, "bits": 4 },
    });
    is_refused(&folder(&WEIGHT, Some(&both)), "dequantize q -o o", "group_size");
}

/// The tensors of a stack of three experts below a module.
fn stack(prefix: &str) -> Vec<(String, &'static str, Vec<u64>)> {
    let parts = [("weight", "U32", 8), ("scales", "BF16", 1), ("biases", "BF16", 1)];
    let of = |projection: &'static str| {
        parts.map(|(part, dtype, columns)| (format!("{prefix}.{projection}.{part}"), dtype, vec![3, 2, columns]))
    };
    ["gate_proj", "up_proj", "down_proj"].into_iter().flat_map(of).collect()
}

fn folder_of(tensors: &[(String, &'static str, Vec<u64>)], config: &Value) -> Bench {
    let tensors: Vec<Tensor> = tensors.iter().map(|(name, dtype, shape)| (&**name, *dtype, &**shape)).collect();
    folder(&tensors, Some(config))
}

/// A config of a model of this type.
fn of_type(kind: &str) -> Value {
    let mut config = with(json!({}));
    config["model_type"] = kind.into();
    config
}

#[test]
fn stacks_of_experts_are_divided_where_the_type_of_the_model_is_known() {
    for (kind, module, projections) in [
        ("qwen3_moe", "mlp", ["gate_proj", "up_proj", "down_proj"]),
        ("mixtral", "block_sparse_moe", ["w1", "w3", "w2"]),
    ] {
        let layer = format!("model.layers.0.{module}");
        let bench = folder_of(&stack(&format!("{layer}.switch_mlp")), &of_type(kind));
        bench.run("dequantize q -o o -q").expect(0, "", "");
        let of = |expert: usize| projections.map(|name| format!("{layer}.experts.{expert}.{name}.weight"));
        let mut wanted: Vec<String> = (0..3).flat_map(of).chain(["norm.weight".to_owned()]).collect();
        wanted.sort();
        let found = tensors(&bench.path("o"));
        assert!(found.keys().eq(&wanted), "{:?}", found.keys());
        assert!(found.values().all(|(_, shape, _)| *shape == [2, 64] || *shape == [8]));
        bench.run("diff q o").expect(0, "10 tensors are equal\n", "");
        // The names of the file.
        bench.run("dequantize q -o f --names file -q").expect(0, "", "");
        let found = tensors(&bench.path("f"));
        let (_, shape, _) = &found[&format!("{layer}.switch_mlp.up_proj.weight")];
        assert!(*shape == [3, 2, 64] && found.len() == 4, "{:?}", found.keys());
        bench.run("diff q f --names file").expect(0, "4 tensors are equal\n", "");
    }
}

#[test]
fn an_entry_of_a_stack_holds_for_all_of_its_experts() {
    let mut config = of_type("qwen3_moe");
    let name = "model.layers.0.mlp.switch_mlp";
    config["quantization"][format!("{name}.up_proj")] = json!({ "group_size": 32, "bits": 8 });
    let mut parts = stack(name);
    parts[3].2 = vec![3, 2, 16];
    for part in &mut parts[4..6] {
        part.2 = vec![3, 2, 2];
    }
    let bench = folder_of(&parts, &config);
    let outcome = bench.run("inspect q");
    let row = "  model.layers.0.mlp.experts.0.up_proj.weight    uint8, 1 x 32  [2, 64]";
    assert!(outcome.code == Some(0) && outcome.stdout.contains(row), "{outcome:?}");
    bench.run("dequantize q -o o -q").expect(0, "", "");
}

#[test]
fn stacks_without_a_name_on_hugging_face_are_refused() {
    let name = "model.layers.0.mlp.switch_mlp";
    let keep = "\n  keep the names of the file with --names file";
    for (kind, message) in [(Some("novel_moe"), "novel_moe"), (Some("kimi_k3"), "kimi_k3"), (None, "model_type")] {
        let config = kind.map_or_else(|| with(json!({})), of_type);
        let bench = folder_of(&stack(name), &config);
        bench.run("dequantize q -o o").says(1, "", message);
        assert_eq!(bench.files(), ["q"]);
        bench.run("dequantize q -o o --names file -q").expect(0, "", "");
    }
    let no_stack = format!("q: tensor '{name}.gate_proj.weight': is not a stack of experts{keep}");
    for shape in [vec![0, 2, 8], vec![1 << 40, 2, 0]] {
        let mut parts = stack(name);
        parts[0].2 = shape;
        is_refused(&folder_of(&parts, &of_type("qwen3_moe")), "dequantize q -o o", &no_stack);
    }
    let mut parts = stack(name);
    parts.push((format!("{name}.fc1.weight"), "BF16", vec![3, 2, 2]));
    let message =
        format!("q: tensor '{name}.fc1.weight': is a stack of experts for which Hugging Face has no name{keep}");
    is_refused(&folder_of(&parts, &of_type("qwen3_moe")), "dequantize q -o o", &message);
    let mut parts = stack(name);
    parts.push(("model.layers.0.self_attn.embed_q.weight".to_owned(), "BF16", vec![3, 2, 2]));
    let message = "q: tensor 'model.layers.0.self_attn.embed_q.weight': is made of other tensors by MLX, and Hugging Face \
                   has no name for it";
    is_refused(&folder_of(&parts, &of_type("deepseek_v3")), "dequantize q -o o", &format!("{message}{keep}"));
    // Fewer experts in one of the parts.
    let other = "has parts of another number of experts than the weight of its module";
    let mut parts = stack(name);
    parts[2].2 = vec![2, 2, 1];
    let message = format!("q: tensor '{name}.gate_proj.biases': {other}{keep}");
    is_refused(&folder_of(&parts, &of_type("qwen3_moe")), "dequantize q -o o", &message);
    let mut parts = stack(name);
    parts.push((format!("{name}.gate_proj.global_scale"), "F32", vec![2]));
    let message = format!("q: tensor '{name}.gate_proj.global_scale': {other}{keep}");
    is_refused(&folder_of(&parts, &of_type("qwen3_moe")), "dequantize q -o o", &message);
}

#[test]
fn a_model_is_quantized_as_mlx_lm_does() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    for (scheme, count, bits, group_size, mode) in [
        ("affine4", 25, 4, 64, "affine"),
        ("affine3 --group-size 128", 25, 3, 128, "affine"),
        ("affine8 --group-size 32", 29, 8, 32, "affine"),
        ("mxfp4", 29, 4, 32, "mxfp4"),
        ("mxfp8", 29, 8, 32, "mxfp8"),
        ("nvfp4", 29, 4, 16, "nvfp4"),
    ] {
        let outcome = bench.run(&format!("quantize m --layout mlx --scheme {scheme} -o o -f"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
        outcome.check_message("norms");
        // Weights whose rows are not a multiple of the groups stay as they are, with a note.
        assert_eq!(outcome.stderr.contains("; --group-size 32 fits them\n"), count == 25, "{}", outcome.stderr);
        let found = tensors(&bench.path("o"));
        let (dtype, shape, _) = &found["model.embed_tokens.weight"];
        assert_eq!((&**dtype, &shape[..]), ("U32", &[1024, 128 * bits / 32][..]));
        assert_eq!(found["model.norm.weight"].0, "BF16");
        assert_eq!(found.contains_key("model.embed_tokens.biases"), mode == "affine");
        let config = config(&bench, "o");
        let block = json!({ "bits": bits, "group_size": group_size, "mode": mode });
        assert_eq!((&config["quantization"], &config["quantization_config"]), (&block, &block));
        let metadata = bench.read("o/model-00001-of-00003.safetensors");
        assert!(String::from_utf8_lossy(&metadata[8..80]).contains(r#""format":"mlx""#));
        bench.run("dequantize o -o d -q -f").expect(0, "", "");
        bench.run("diff o d").expect(0, "38 tensors are equal\n", "");
    }
}

#[test]
fn a_head_is_quantized_and_modules_of_another_scheme_have_entries() {
    let tensors_of_model: [(&str, &[u64]); 6] = [
        ("lm_head.weight", &[64, 128]),
        ("model.embed_tokens.weight", &[64, 128]),
        ("model.layers.0.mlp.down_proj.weight", &[128, 128]),
        ("model.layers.0.mlp.up_proj.weight", &[128, 128]),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", &[16]),
        ("model.norm.weight", &[128]),
    ];
    let bench = bench_with(&tensors_of_model, r#"{"model_type": "llama", "torch_dtype": "bfloat16"}"#);
    bench.run("quantize m --layout mlx --scheme affine4 --rule *down_proj*=affine8 -o o -q").expect(0, "", "");
    let found = tensors(&bench.path("o"));
    assert!(found.contains_key("lm_head.scales") && !found.keys().any(|name| name.contains("inv_freq")));
    assert_eq!(found["model.layers.0.mlp.down_proj.weight"].1, [128, 32]);
    let entry = json!({ "bits": 8, "group_size": 64, "mode": "affine" });
    let block = json!({ "bits": 4, "group_size": 64, "mode": "affine", "model.layers.0.mlp.down_proj": entry });
    assert_eq!(config(&bench, "o")["quantization"], block);
}

#[test]
fn experts_are_stacked_and_divided_again() {
    let names: Vec<String> = (0..2)
        .flat_map(|expert| {
            ["down_proj", "gate_proj", "up_proj"]
                .map(|projection| format!("model.layers.0.mlp.experts.{expert}.{projection}.weight"))
        })
        .chain(["model.layers.0.mlp.gate.weight".to_owned(), "model.norm.weight".to_owned()])
        .collect();
    let shape = |name: &str| if name.contains("norm") { &[128][..] } else { &[64, 128] };
    let stored: Vec<(&str, &[u64])> = names.iter().map(|name| (&**name, shape(name))).collect();
    let bench = bench_with(&stored, r#"{"model_type": "qwen3_moe", "torch_dtype": "bfloat16"}"#);
    bench.run("quantize m --layout mlx --scheme affine4 -o o -q").expect(0, "", "");
    let found = tensors(&bench.path("o"));
    assert_eq!(found["model.layers.0.mlp.switch_mlp.up_proj.weight"].1, [2, 64, 16]);
    assert_eq!(found["model.layers.0.mlp.switch_mlp.up_proj.biases"].1, [2, 64, 2]);
    // mlx-lm gives the router of this model 8 bits.
    assert_eq!(found["model.layers.0.mlp.gate.weight"].1, [64, 32]);
    let entry = json!({ "bits": 8, "group_size": 64, "mode": "affine" });
    assert_eq!(config(&bench, "o")["quantization"]["model.layers.0.mlp.gate"], entry);
    bench.run("dequantize o -o d -q").expect(0, "", "");
    assert!(tensors(&bench.path("d")).keys().eq(tensors(&bench.path("m")).keys()));
    // Each expert has the bytes that it has alone.
    bench.run("quantize m --layout mlx --scheme affine4 --names file -o f -q").expect(0, "", "");
    let alone = tensors(&bench.path("f"));
    for part in ["weight", "scales", "biases"] {
        let stack = &found[&format!("model.layers.0.mlp.switch_mlp.gate_proj.{part}")].2;
        let of = |expert: usize| alone[&format!("model.layers.0.mlp.experts.{expert}.gate_proj.{part}")].2.clone();
        assert!(*stack == [of(0), of(1)].concat(), "{part}");
    }
}

#[test]
fn sizes_of_groups_that_mlx_lacks_are_refused() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    for (flags, message) in
        [("affine4 --group-size 16", "--group-size"), ("mxfp4 --group-size 64", "--group-size"), ("int4", "int4")]
    {
        bench.run(&format!("quantize m --layout mlx --scheme {flags} -o o")).says(2, "", message);
        assert_eq!(bench.files(), ["m"]);
    }
}

#[test]
fn a_part_of_a_checkpoint_is_decoded_and_the_config_says_which() {
    let bench = checkpoint();
    bench.run("dequantize c -o o --include *{q,k,v}_proj* -q").expect(0, "", "");
    let block = &config(&bench, "o")["quantization"];
    for module in ["q_proj", "k_proj", "v_proj"] {
        assert_eq!(block[format!("model.layers.0.self_attn.{module}")], json!(false));
    }
    assert_eq!(block["model.layers.0.self_attn.o_proj"]["bits"], json!(3));
    bench.run("diff c o").expect(0, "11 tensors are equal\n", "");
}
