//! Configs of checkpoints whose weights were decoded: what says that they are quantized goes, all else keeps its bytes.

use tcast::dtype::Dtype::{Bfloat16, Float16, Float32};
use tcast::quant::{Modules, comfy_metadata_of, config_of, default_target, hf_quant_config_of};

fn with<R>(decoded: &[&str], left: &[&str], run: impl FnOnce(&Modules) -> R) -> R {
    let [decoded, left] = [decoded, left].map(|names| names.iter().copied().collect());
    run(&Modules { decoded, left, ..Modules::default() })
}

fn all(config: &str) -> String {
    with(&["a.q"], &[], |modules| config_of(config, Some("fp8"), modules, Some(Bfloat16))).unwrap()
}

/// With `a.q` decoded, and `b.q` still quantized.
fn some(block: &str, method: &str) -> String {
    let config = format!("{{\"dtype\": \"bfloat16\", \"quantization_config\": {block}, \"x\": 1}}");
    let changed =
        with(&["a.q"], &["b.q"], |modules| config_of(&config, Some(method), modules, Some(Bfloat16))).unwrap();
    let start = "{\"dtype\": \"bfloat16\", \"quantization_config\": ";
    changed.strip_prefix(start).unwrap().strip_suffix(", \"x\": 1}").unwrap().to_owned()
}

#[test]
fn a_config_of_decoded_weights_says_nothing_of_quantization_and_keeps_the_rest() {
    for (config, wanted) in [
        (
            "{\n  \"b\": NaN,\n  \"quantization_config\": {\"x\": [-Infinity, {}]},\n  \"torch_dtype\": \"float16\",\n  \"a\": 1.0e0\n}\n",
            "{\n  \"b\": NaN,\n  \"torch_dtype\": \"bfloat16\",\n  \"a\": 1.0e0\n}\n",
        ),
        (
            "{\"quantization_config\":{},\"dtype\":\"float32\",\"text_config\":{\"z\":1,\"quantization_config\":{\"a\":\"}\"}}}",
            "{\"dtype\":\"bfloat16\",\"text_config\":{\"z\":1}}",
        ),
        ("{\"dtype\":\"bfloat16\",\"quantization_config\":{}}", "{\"dtype\":\"bfloat16\"}"),
        ("{\"quantization\\u005fconfig\": 1, \"quantization_config\": 2}", "{\"torch_dtype\": \"bfloat16\"}"),
        ("{\n  \"a\": 1,\n  \"compression_config\": {}\n}", "{\n  \"a\": 1,\n  \"torch_dtype\": \"bfloat16\"\n}"),
        (
            "{\"a\": {\"quantization_config\": 1}}",
            "{\"a\": {\"quantization_config\": 1}, \"torch_dtype\": \"bfloat16\"}",
        ),
        ("{\"dtype\":\"bfloat16\",\"expert_dtype\":\"fp4\",\"x\":1}", "{\"dtype\":\"bfloat16\",\"x\":1}"),
        ("{}", "{\"torch_dtype\": \"bfloat16\"}"),
        (
            "{\"text_config\": {\"dtype\": \"float16\", \"quantization_config\": {}}, \"x\": 1}",
            "{\"text_config\": {\"dtype\": \"bfloat16\"}, \"x\": 1}",
        ),
        (
            "{\"dtype\": \"bfloat16\", \"thinker_config\": {\"text_config\": {\"quantization_config\": {}, \"a\": {}}}}",
            "{\"dtype\": \"bfloat16\", \"thinker_config\": {\"text_config\": {\"a\": {}}}}",
        ),
    ] {
        assert_eq!(all(config), wanted);
    }
    let broken = with(&[], &[], |modules| config_of("[1]", None, modules, Some(Bfloat16)));
    assert_eq!(broken.unwrap_err().to_string(), "is not a JSON object");
}

#[test]
fn modules_that_were_decoded_join_the_list_of_their_engine() {
    for (method, block, wanted) in [
        (
            "fp8",
            "{\"modules_to_not_convert\": [\n    \"lm_head\"\n  ]}",
            "{\"modules_to_not_convert\": [\n    \"lm_head\",\n    \"a.q\"\n  ]}",
        ),
        ("fp8", "{\"a\": 1, \"ignored_layers\": []}", "{\"a\": 1, \"ignored_layers\": [\"a.q\"]}"),
        ("mxfp4", "{\"a\": 1}", "{\"a\": 1, \"modules_to_not_convert\": [\"a.q\"]}"),
        ("awq", "{\"modules_to_not_convert\": null}", "{\"modules_to_not_convert\": [\"a.q\"]}"),
        ("compressed-tensors", "{\"ignore\":[\"re:.*x\"]}", "{\"ignore\":[\"re:.*x\", \"a.q\"]}"),
        ("bitsandbytes", "{\"a\": 1}", "{\"a\": 1, \"llm_int8_skip_modules\": [\"a.q\"]}"),
        (
            "modelopt",
            "{\"quantized_layers\": {\"a.q\": {}, \"b.q\": {}}, \"ignore\": [\"*x\"]}",
            "{\"quantized_layers\": {\"b.q\": {}}, \"ignore\": [\"*x\", \"a.q\"]}",
        ),
        ("gptq", "{\"bits\": 4}", "{\"bits\": 4, \"dynamic\": {\"-:^a\\\\.q$\": {}}}"),
        ("gptq", "{\"dynamic\": {\"+:a\": {}}}", "{\"dynamic\": {\"-:^a\\\\.q$\": {}, \"+:a\": {}}}"),
        ("auto-round", "{\"extra_config\": {}}", "{\"extra_config\": {\"a.q\": {\"bits\": 16}}}"),
    ] {
        assert_eq!(some(block, method), wanted, "{method}");
    }
    let unsaid =
        with(&["a"], &["b"], |modules| config_of("{\"quantization_config\": {}}", Some("x"), modules, Some(Bfloat16)));
    let message = "the quant_method 'x' cannot say which modules are not quantized; decode all weights";
    assert_eq!(unsaid.unwrap_err().to_string(), message);
}

#[test]
fn a_bank_of_experts_is_listed_as_one_module() {
    let config = "{\"dtype\": \"bfloat16\", \"quantization_config\": {}}";
    let of = |decoded: &[&str], left: &[&str]| {
        with(decoded, left, |modules| config_of(config, Some("mxfp4"), modules, Some(Bfloat16)))
            .map_err(|error| error.to_string())
    };
    let wanted = "{\"dtype\": \"bfloat16\", \"quantization_config\": {\"modules_to_not_convert\": [\"l.0.experts\"]}}";
    assert_eq!(of(&["l.0.experts.down_proj", "l.0.experts.up_proj"], &["l.1.experts.up_proj"]).as_deref(), Ok(wanted));
    let message = "a config cannot say that a part of 'l.0.experts' is quantized; decode all of it";
    assert_eq!(of(&["l.0.experts.down_proj"], &["l.0.experts.up_proj"]), Err(message.to_owned()));
}

#[test]
fn experts_that_are_stored_one_by_one_are_listed_by_the_names_that_engines_look_up() {
    let config = "{\"dtype\": \"bfloat16\", \"quantization_config\": {}}";
    let of = |method: &str, decoded: &[&str], left: &[&str]| {
        let changed = with(decoded, left, |modules| config_of(config, Some(method), modules, Some(Bfloat16))).unwrap();
        let (start, end) = (changed.find('[').unwrap(), changed.rfind(']').unwrap());
        changed[start..=end].to_owned()
    };
    let (one, two, other) = ("l.0.experts.0.w1", "l.0.experts.1.w1", "l.1.experts.0.w1");
    let wanted = "[\"l.0.experts\", \"l.0.experts.0.w1\", \"l.0.experts.1.w1\"]";
    assert_eq!(of("fp8", &[one, two], &[other]), wanted);
    assert_eq!(of("fp8", &[one], &[two]), "[\"l.0.experts.0.w1\"]");
    assert_eq!(of("compressed-tensors", &[one, two], &[other]), "[\"re:^l\\\\.0\\\\.experts\\\\..*\"]");
    assert_eq!(of("compressed-tensors", &[one], &[two]), "[\"l.0.experts.0.w1\"]");
}

#[test]
fn what_lies_beside_the_config_is_cleaned_too() {
    let text = "{\"quantization\": {\"exclude_modules\": [\"lm_head\"]}}";
    let of = |left: &[&str]| with(&["a.q"], left, |modules| hf_quant_config_of(text, modules)).unwrap();
    assert_eq!(of(&[]), None);
    assert_eq!(of(&["b"]).as_deref(), Some("{\"quantization\": {\"exclude_modules\": [\"lm_head\", \"a.q\"]}}"));
    let text = "{\"layers\": {\"a.q\": {\"format\": \"nvfp4\"}, \"b\": {}}}";
    let of = |left: &[&str]| with(&["a.q"], left, |modules| comfy_metadata_of(text, modules));
    assert_eq!(of(&[]), None);
    assert_eq!(of(&["b"]).as_deref(), Some("{\"layers\": {\"b\": {}}}"));
}

#[test]
fn weights_are_decoded_to_what_the_model_computes_in() {
    for (config, target) in [
        (None, Bfloat16),
        (Some("{\"dtype\": \"float16\"}"), Float16),
        (Some("{\"torch_dtype\": \"torch.float32\", \"x\": NaN}"), Float32),
        (Some("{\"text_config\": {\"dtype\": \"float16\"}}"), Float16),
        (Some("{\"dtype\": \"float8_e4m3fn\"}"), Bfloat16),
        (Some("{\"dtype\": \"auto\"}"), Bfloat16),
        (Some("not JSON"), Bfloat16),
    ] {
        assert_eq!(default_target(config), target, "{config:?}");
    }
}
