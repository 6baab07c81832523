//! Quantized weights are found by names, dtypes, shapes and config, and whatever contradicts is an error.

use std::collections::BTreeMap;
use tcast::dtype::Dtype::{
    self, Bfloat16, Bool, Float4E2M1, Float8E4M3FN, Float8E5M2, Float8E8M0, Float16, Float32, Int8, Int32, Int64, Uint8,
};
use tcast::quant::{Group, Recognized, Role, Source, StoredTensor, recognize, survey};

#[derive(Clone, Debug)]
struct Stored {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Checkpoint {
    tensors: Vec<Stored>,
    config: Option<String>,
    hf_quant_config: Option<String>,
    metadata: Option<String>,
}

impl Checkpoint {
    fn new(tensors: &[(&str, Dtype, &[u64])]) -> Self {
        Self::default().and(tensors)
    }

    fn and(mut self, tensors: &[(&str, Dtype, &[u64])]) -> Self {
        self.tensors.extend(tensors.iter().map(|&(name, dtype, shape)| Stored {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            bytes: Vec::new(),
        }));
        self
    }

    fn with_bytes(mut self, name: &str, dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Self {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(Stored { name, dtype, shape, bytes: bytes.to_vec() });
        self
    }

    fn with_json(self, name: &str, json: &str) -> Self {
        self.with_bytes(name, Uint8, &[json.len() as u64], json.as_bytes())
    }

    fn with_shape(self, name: &str, shape: [u64; 2]) -> Self {
        let bytes = shape.map(u64::to_le_bytes).concat();
        self.with_bytes(name, Int64, &[2], &bytes)
    }

    /// With a config of this `quantization_config`.
    fn config(mut self, block: &str) -> Self {
        self.config = Some(format!(r#"{{"dtype": "bfloat16", "quantization_config": {block}}}"#));
        self
    }

    fn with<R>(&self, run: impl FnOnce(&Source) -> R) -> R {
        let tensors: Vec<StoredTensor> = self
            .tensors
            .iter()
            .map(|tensor| StoredTensor { name: &tensor.name, dtype: Some(tensor.dtype), shape: &tensor.shape })
            .collect();
        let metadata: Vec<&str> = self.metadata.iter().map(String::as_str).collect();
        run(&Source {
            tensors: &tensors,
            config: self.config.as_deref(),
            hf_quant_config: self.hf_quant_config.as_deref(),
            quantize_config: None,
            metadata: &metadata,
            read: &|index| Ok(self.tensors[index].bytes.clone()),
        })
    }

    fn survey(&self) -> Recognized {
        self.with(survey)
    }

    #[allow(dead_code, reason = "for tests of errors")]
    /// The first error, with its details.
    fn error(&self) -> String {
        match self.with(recognize) {
            Ok(found) => panic!("no error: {:?}", found.weights),
            Err(error) => error.to_string(),
        }
    }

    /// The only weight, and that all else fits.
    fn weight(&self) -> (String, &'static str, Vec<u64>, Option<Group>) {
        let found = self.with(recognize).unwrap_or_else(|error| panic!("{error}"));
        let [weight] = &found.weights[..] else { panic!("one weight, not {:?}", found.weights) };
        assert_eq!((found.plain, found.orphans), (vec![], vec![]));
        (weight.name.clone(), weight.layout.name, weight.shape.clone(), weight.parameters.group)
    }
}

/// compressed-tensors with one group.
fn ct(format: &str, weights: &str) -> String {
    format!(
        r#"{{"quant_method": "compressed-tensors", "format": "{format}", "ignore": ["lm_head"], "config_groups":
            {{"group_0": {{"targets": ["Linear"], "format": "{format}", "weights": {{{weights}}}}}}}}}"#
    )
}

const FP8: &str = r#"{"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}"#;
const GPTQ: &str = r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true}"#;
const AWQ: &str = r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true}"#;
const BNB: &str = r#"{"quant_method": "bitsandbytes", "load_in_4bit": true}"#;
const NF4: &str = r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 64], "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}"#;

/// A checkpoint of each layout, and what is found in it.
fn checkpoints() -> Vec<(Checkpoint, &'static str, &'static str, &'static [u64])> {
    let f8 = |scale: &str, dtype: Dtype, shape: &[u64]| {
        Checkpoint::new(&[("l.0.q.weight", Float8E4M3FN, &[256, 384]), (scale, dtype, shape)])
    };
    let nibbles = |scale: Dtype, columns: u64| {
        Checkpoint::new(&[("l.0.q.weight", Uint8, &[32, 48]), ("l.0.q.weight_scale", scale, &[32, columns])])
    };
    let packed = |dtype: Dtype, columns: u64, scale: Dtype, groups: u64| {
        Checkpoint::new(&[("l.0.q.weight_packed", dtype, &[32, columns]), ("l.0.q.weight_scale", scale, &[32, groups])])
    };
    let modelopt = |algo: &str| format!(r#"{{"quant_method": "modelopt", "quant_algo": "{algo}", "ignore": ["lm*"]}}"#);
    let (q, square): (&str, &[u64]) = ("l.0.q.weight", &[256, 384]);
    let mut comfy_file = Checkpoint::new(&[
        ("b.0.q.weight", Uint8, &[64, 24]),
        ("b.0.q.weight_scale", Float8E4M3FN, &[128, 4]),
        ("b.0.q.weight_scale_2", Float32, &[]),
    ]);
    comfy_file.metadata = Some(r#"{"format_version": "1.0", "layers": {"b.0.q": {"format": "nvfp4"}}}"#.to_owned());
    let mut hf_quant = f8("l.0.q.weight_scale", Float32, &[]).and(&[("l.0.q.input_scale", Float32, &[])]);
    hf_quant.hf_quant_config = Some(r#"{"producer": {}, "quantization": {"quant_algo": "FP8"}}"#.to_owned());
    vec![
        (f8("l.0.q.weight_scale_inv", Float32, &[2, 3]).config(FP8), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale_inv", Bfloat16, &[2, 3]), "hf-fp8", q, square),
        (f8("l.0.q.scale", Float8E8M0, &[2, 3]), "hf-fp8", q, square),
        (f8("l.0.q.qscale_weight", Float32, &[]).and(&[("l.0.q.qscale_act", Float32, &[])]), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale_inv", Float32, &[]).config(r#"{"quant_method": "fp8", "weight_block_size": null}"#), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale", Float32, &[1]).and(&[("l.0.q.input_scale", Float32, &[1])]).config(r#"{"quant_method": "fp8", "activation_scheme": "static"}"#), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale_inv", Uint8, &[256, 12]).config(r#"{"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}"#), "hf-fp8", q, square),
        (Checkpoint::new(&[("m.experts.up", Float8E4M3FN, &[4, 130, 136]), ("m.experts.up_scale_inv", Float32, &[4, 2, 2])]).config(FP8), "hf-fp8", "m.experts.up", &[4, 130, 136]),
        (Checkpoint::new(&[("e.w1.weight", Float4E2M1, &[96, 128]), ("e.w1.scale", Float8E8M0, &[96, 4])]), "hf-fp4", "e.w1.weight", &[96, 128]),
        (Checkpoint::new(&[("e.w1.weight", Int8, &[96, 64]), ("e.w1.scale", Float8E8M0, &[96, 4])]).config(r#"{"quant_method": "fp8", "expert_dtype": "fp4", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}"#), "hf-fp4", "e.w1.weight", &[96, 128]),
        (f8("l.0.q.weight_scale", Bfloat16, &[1]).config(&ct("float-quantized", r#""num_bits": 8, "type": "float", "strategy": "tensor""#)), "ct-fp8", q, square),
        (f8("l.0.q.weight_scale", Bfloat16, &[256, 1]).config(&ct("float-quantized", r#""num_bits": 8, "type": "float", "strategy": "channel""#)), "ct-fp8", q, square),
        (f8("l.0.q.weight_scale", Bfloat16, &[2, 3]).config(&ct("float-quantized", r#""num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]"#)), "ct-fp8", q, square),
        (Checkpoint::new(&[(q, Int8, &[32, 96]), ("l.0.q.weight_scale", Bfloat16, &[32, 1]), ("l.0.q.weight_zero_point", Int8, &[32, 1])]).config(&ct("int-quantized", r#""num_bits": 8, "type": "int", "strategy": "channel", "symmetric": false"#)), "ct-int8", q, &[32, 96]),
        (packed(Int32, 12, Bfloat16, 3).and(&[("l.0.q.weight_zero_point", Int32, &[4, 3])]).with_shape("l.0.q.weight_shape", [32, 96]).config(&ct("pack-quantized", r#""num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false"#)), "ct-pack", q, &[32, 96]),
        (packed(Int32, 12, Bfloat16, 3).and(&[("l.0.q.weight_g_idx", Int32, &[96])]).with_shape("l.0.q.weight_shape", [32, 96]).config(&ct("pack-quantized", r#""num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "actorder": "group""#)), "ct-pack", q, &[32, 96]),
        (packed(Uint8, 48, Float8E4M3FN, 6).and(&[("l.0.q.weight_global_scale", Float32, &[1]), ("l.0.q.input_global_scale", Float32, &[1])]).config(&ct("nvfp4-pack-quantized", r#""num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16"#)), "ct-nvfp4", q, &[32, 96]),
        (packed(Uint8, 48, Uint8, 3).config(&ct("mxfp4-pack-quantized", r#""num_bits": 4, "type": "float", "strategy": "group", "group_size": 32"#)), "ct-mxfp4", q, &[32, 96]),
        (packed(Uint8, 48, Uint8, 3), "ct-mxfp4", q, &[32, 96]),
        (packed(Uint8, 72, Uint8, 3), "ct-mxfp6", q, &[32, 96]),
        (f8("l.0.q.weight_scale", Uint8, &[256, 12]).config(&ct("mxfp8-quantized", r#""num_bits": 8, "type": "float", "strategy": "group", "group_size": 32"#)), "ct-mxfp8", q, square),
        (hf_quant, "modelopt-fp8", q, square),
        (f8("l.0.q.weight_scale", Float32, &[256]).config(&modelopt("FP8_PER_CHANNEL_PER_TOKEN")), "modelopt-fp8", q, square),
        (f8("l.0.q.weight_scale", Float32, &[2, 1, 3, 1]).config(&modelopt("FP8_PB_WO")), "modelopt-fp8", q, square),
        (nibbles(Float8E4M3FN, 6).and(&[("l.0.q.weight_scale_2", Float32, &[]), ("l.0.q.input_scale", Float32, &[])]).config(&modelopt("NVFP4")), "modelopt-nvfp4", q, &[32, 96]),
        (nibbles(Uint8, 3).config(&modelopt("mxfp4")), "modelopt-mxfp4", q, &[32, 96]),
        (f8("l.0.q.weight_scale", Uint8, &[256, 12]).config(&modelopt("MXFP8")), "modelopt-mxfp8", q, square),
        (nibbles(Float8E4M3FN, 6).and(&[("l.0.q.weight_scale_2", Float32, &[])]).config(r#"{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"l.0.q": {"quant_algo": "NVFP4", "group_size": 16}, "l.0.k": {"quant_algo": "FP8"}}}"#), "modelopt-nvfp4", q, &[32, 96]),
        (f8("l.0.q.weight_scale", Float32, &[]).with_json("l.0.q.comfy_quant", r#"{"format": "float8_e4m3fn"}"#), "comfy-fp8", q, square),
        (Checkpoint::new(&[(q, Int8, &[32, 256]), ("l.0.q.weight_scale", Float32, &[32, 1])]).with_json("l.0.q.comfy_quant", r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}"#), "comfy-int8", q, &[32, 256]),
        (comfy_file, "comfy-nvfp4", "b.0.q.weight", &[64, 48]),
        (Checkpoint::new(&[(q, Float8E4M3FN, &[64, 64]), ("l.0.q.weight_scale", Float8E8M0, &[128, 4])]).with_json("l.0.q.comfy_quant", r#"{"format": "mxfp8"}"#), "comfy-mxfp8", q, &[64, 64]),
        (f8("l.0.q.scale_weight", Float32, &[]).and(&[("l.0.q.scale_input", Float32, &[])]), "comfy-scaled-fp8", q, square),
        (Checkpoint::new(&[("m.up_blocks", Uint8, &[4, 64, 3, 16]), ("m.up_scales", Uint8, &[4, 64, 3])]).config(r#"{"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}"#), "gptoss-mxfp4", "m.up", &[4, 96, 64]),
        (Checkpoint::new(&[("l.0.q.qweight", Int32, &[12, 64]), ("l.0.q.scales", Float16, &[3, 64]), ("l.0.q.qzeros", Int32, &[3, 8]), ("l.0.q.g_idx", Int32, &[96])]).config(GPTQ), "gptq", q, &[64, 96]),
        (Checkpoint::new(&[("l.0.q.qweight", Int32, &[96, 8]), ("l.0.q.scales", Float16, &[3, 64]), ("l.0.q.qzeros", Int32, &[3, 8])]).config(AWQ), "awq", q, &[64, 96]),
        (Checkpoint::new(&[(q, Uint8, &[256, 1]), ("l.0.q.weight.absmax", Uint8, &[8]), ("l.0.q.weight.quant_map", Float32, &[16]), ("l.0.q.weight.nested_absmax", Float32, &[1]), ("l.0.q.weight.nested_quant_map", Float32, &[256])]).with_json("l.0.q.weight.quant_state.bitsandbytes__nf4", NF4).config(BNB), "bnb-4bit", q, &[8, 64]),
        (Checkpoint::new(&[(q, Int8, &[32, 96]), ("l.0.q.SCB", Float32, &[32])]).with_bytes("l.0.q.weight_format", Uint8, &[], &[0]), "bnb-int8", q, &[32, 96]),
        (Checkpoint::new(&[("l.0.q.weight._data", Int8, &[32, 96]), ("l.0.q.weight._scale", Float32, &[32, 1]), ("l.0.q.input_scale", Float32, &[])]), "quanto", q, &[32, 96]),
    ]
}

#[test]
fn a_weight_of_each_layout_is_found() {
    let mut seen = BTreeMap::<&str, usize>::new();
    for (checkpoint, layout, name, shape) in checkpoints() {
        let found = checkpoint.weight();
        assert_eq!((&*found.0, found.1, &*found.2), (name, layout, shape), "{checkpoint:?}");
        *seen.entry(layout).or_default() += 1;
    }
    let missing: Vec<&str> =
        tcast::quant::LAYOUTS.iter().map(|layout| layout.name).filter(|name| !seen.contains_key(name)).collect();
    assert_eq!(missing, [""; 0]);
}

/// What decides the values of a weight.
fn essence(checkpoint: &Checkpoint, found: &Recognized) -> BTreeMap<String, String> {
    let weights = found.weights.iter().map(|weight| {
        let parts = weight.parts.iter().filter(|(role, _)| *role != Role::Activation);
        // bitsandbytes reads int8 without it.
        let parts = parts.filter(|(role, _)| *role != Role::Description || weight.layout.name != "bnb-int8");
        let parts: Vec<_> = parts.map(|(role, index)| (role, &checkpoint.tensors[*index].name)).collect();
        // The same arithmetic.
        let layout = if weight.layout.name == "comfy-fp8" { "modelopt-fp8" } else { weight.layout.name };
        let parts: Vec<_> =
            parts.into_iter().filter(|part| layout != "modelopt-fp8" || *part.0 != Role::Description).collect();
        let (parameters, shape) = (&weight.parameters, &weight.shape);
        (weight.name.clone(), format!("{layout} {parameters:?} {shape:?} {parts:?}"))
    });
    weights.collect()
}

#[test]
fn no_weight_is_found_when_a_part_is_gone_or_of_another_dtype() {
    const DTYPES: [Dtype; 12] =
        [Bfloat16, Bool, Float4E2M1, Float8E4M3FN, Float8E5M2, Float8E8M0, Float16, Float32, Int8, Int32, Int64, Uint8];
    let mut count = 0;
    for (checkpoint, layout, ..) in checkpoints() {
        let whole = essence(&checkpoint, &checkpoint.survey());
        for index in 0..checkpoint.tensors.len() {
            let mut changed = vec![checkpoint.clone()];
            changed[0].tensors.remove(index);
            for dtype in DTYPES {
                let mut other = checkpoint.clone();
                other.tensors[index].dtype = dtype;
                changed.push(other);
            }
            for changed in changed {
                let found = changed.survey();
                for (name, essence) in essence(&changed, &found) {
                    assert_eq!(whole.get(&name), Some(&essence), "{layout}: {changed:#?}");
                }
                let of_weights: usize = found.weights.iter().map(|weight| weight.parts.len()).sum();
                let beside = found.activation_scales.iter().filter(|index| {
                    found.weights.iter().all(|weight| weight.parts.iter().all(|part| part.1 != **index))
                });
                let others = beside.count() + found.markers.len() + found.orphans.len() + found.plain.len();
                assert_eq!(of_weights + others, changed.tensors.len(), "every tensor once");
                count += 1;
            }
        }
    }
    assert!(count > 1000, "{count}");
}
