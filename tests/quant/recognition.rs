//! Quantized weights are found by names, dtypes, shapes and config, and whatever contradicts is an error.

use std::collections::BTreeMap;
use std::io::Write;
use tcast::dtype::Dtype::{
    self, Bfloat16, Bool, Float4E2M1, Float8E4M3FN, Float8E5M2, Float8E8M0, Float16, Float32, Int8, Int32, Int64,
    Uint8, Uint32,
};
use tcast::quant::{CheckpointInfo, Group, Recognized, Role, StoredTensor, probe};

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
    /// torchao's metadata: names of tensors, and their descriptions.
    torchao: Vec<(&'static str, &'static str)>,
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

    /// With this member of the config, beside its `quantization_config`.
    fn and_config(mut self, member: &str) -> Self {
        self.config = self.config.map(|config| config.replacen('{', &format!("{{{member}, "), 1));
        self
    }

    /// With the description of `l.0.q.weight` in torchao's metadata.
    fn torchao(mut self, class: &str, parts: &str) -> Self {
        let entry = format!(r#"{{"_type": "{class}", "_data": {{}}, "_tensor_data_names": [{parts}]}}"#);
        self.torchao = vec![("l.0.q.weight", entry.leak()), ("norm.weight", r#"{"_type": "Tensor"}"#)];
        self
    }

    fn with<R>(&self, run: impl FnOnce(&CheckpointInfo) -> R) -> R {
        let tensors: Vec<StoredTensor> = self
            .tensors
            .iter()
            .map(|tensor| StoredTensor { name: &tensor.name, dtype: Some(tensor.dtype), shape: &tensor.shape })
            .collect();
        let mut metadata = self.torchao.clone();
        metadata.extend(self.metadata.iter().map(|text| (CheckpointInfo::METADATA, text.as_str())));
        let names = serde_json::json!(self.torchao.iter().map(|(name, _)| name).collect::<Vec<_>>()).to_string();
        if !self.torchao.is_empty() {
            metadata.push(("tensor_names", &names));
        }
        let configs = [("config.json", &self.config), ("hf_quant_config.json", &self.hf_quant_config)];
        let configs: Vec<_> = configs.iter().filter_map(|(file, text)| Some((*file, text.as_deref()?))).collect();
        run(&CheckpointInfo {
            tensors: &tensors,
            folder: std::path::Path::new(""),
            configs: &configs,
            metadata: &metadata,
            read: &|index| Ok(self.tensors[index].bytes.clone()),
        })
    }

    fn probe(&self) -> Recognized {
        self.with(probe)
    }

    fn recognize(&self) -> tcast::error::Result<Recognized> {
        self.probe().check()
    }

    /// The first error, with its details.
    fn error(&self) -> String {
        match self.recognize() {
            Ok(found) => panic!("no error: {:?}", found.weights),
            Err(error) => error.to_string(),
        }
    }

    /// The only weight, and that all else fits.
    fn weight(&self) -> (String, &'static str, Vec<u64>, Option<Group>) {
        let found = self.recognize().unwrap_or_else(|error| panic!("{error}"));
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

/// AMD Quark with one kind of weights.
fn quark(weight: &str) -> String {
    format!(r#"{{"quant_method": "quark", "exclude": ["lm_*"], "global_quant_config": {{"weight": {{{weight}}}}}}}"#)
}

const FP8: &str = r#"{"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}"#;
const GPTQ: &str = r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true}"#;
const AWQ: &str = r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true}"#;
const BNB: &str = r#"{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}"#;
const NF4: &str = r#"{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 64], "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}"#;

/// A checkpoint of each layout, and what is found in it.
#[allow(clippy::too_many_lines, reason = "a list")]
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
    let torchao = |dtype: Dtype, scales: &[u64]| {
        Checkpoint::new(&[("l.0.q._weight_qdata", dtype, &[32, 96]), ("l.0.q._weight_scale", Float32, scales)])
    };
    let ao =
        |class: &str| format!(r#"{{"quant_method": "torchao", "quant_type": {{"default": {{"_type": "{class}"}}}}}}"#);
    let mlx = |columns: u64, dtype: Dtype, groups: u64| {
        Checkpoint::new(&[("l.0.q.weight", Uint32, &[32, columns]), ("l.0.q.scales", dtype, &[32, groups])])
    };
    let modelopt = |algo: &str| format!(r#"{{"quant_method": "modelopt", "quant_algo": "{algo}", "ignore": ["lm*"]}}"#);
    let (q, square): (&str, &[u64]) = ("l.0.q.weight", &[256, 384]);
    let levels = |width: u64, scale: Dtype, groups: u64| {
        let scales: [(&str, Dtype, &[u64]); 3] = [
            ("l.0.q.weight", Int8, &[32, width]),
            ("l.0.q.weight_s_rel", scale, &[32, groups]),
            ("l.0.q.weight_s_channel", Float32, &[32]),
        ];
        Checkpoint::new(&scales)
    };
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
        // Words that libraries write, and that agree with the tensors; scales of ue8m0 may be stored as float32.
        (f8("l.0.q.weight_scale_inv", Float32, &[2, 3]).config(r#"{"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "float8_e4m3fn", "scale_fmt": "ue8m0"}"#), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale_inv", Bfloat16, &[2, 3]), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale_inv", Float32, &[256, 4]).config(r#"{"quant_method": "fp8", "weight_block_size": [1, 100]}"#), "hf-fp8", q, square),
        (f8("l.0.q.scale", Float8E8M0, &[2, 3]), "hf-fp8", q, square),
        (f8("l.0.q.qscale_weight", Float32, &[]).and(&[("l.0.q.qscale_act", Float32, &[])]), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale_inv", Float32, &[]).config(r#"{"quant_method": "fp8", "weight_block_size": null}"#), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale", Float32, &[1]).and(&[("l.0.q.input_scale", Float32, &[1])]).config(r#"{"quant_method": "fp8", "activation_scheme": "static"}"#), "hf-fp8", q, square),
        (f8("l.0.q.weight_scale_inv", Uint8, &[256, 12]).config(r#"{"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}"#), "hf-fp8", q, square),
        (Checkpoint::new(&[("m.experts.up", Float8E4M3FN, &[4, 130, 136]), ("m.experts.up_scale_inv", Float32, &[4, 2, 2])]).config(FP8), "hf-fp8", "m.experts.up", &[4, 130, 136]),
        (Checkpoint::new(&[("e.w1.weight", Float4E2M1, &[96, 128]), ("e.w1.scale", Float8E8M0, &[96, 4])]), "hf-fp4", "e.w1.weight", &[96, 128]),
        (Checkpoint::new(&[("e.w1.weight", Int8, &[96, 64]), ("e.w1.scale", Float8E8M0, &[96, 4])]).config(r#"{"quant_method": "fp8", "expert_dtype": "fp4", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}"#), "hf-fp4", "e.w1.weight", &[96, 128]),
        (Checkpoint::new(&[("e.w1.weight", Int8, &[96, 64]), ("e.w1.scale", Float8E8M0, &[96, 4])]).config(FP8).and_config(r#""expert_dtype": "fp4""#), "hf-fp4", "e.w1.weight", &[96, 128]),
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
        (nibbles(Float8E4M3FN, 6).and(&[("l.0.q.weight_scale_2", Float32, &[])]).config(r#"{"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16}}}}"#), "modelopt-nvfp4", q, &[32, 96]),
        (f8("l.0.q.weight_scale", Uint8, &[256, 12]).config(&modelopt("MXFP8")), "modelopt-mxfp8", q, square),
        (nibbles(Float8E4M3FN, 6).and(&[("l.0.q.weight_scale_2", Float32, &[])]).config(r#"{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"l.0.q": {"quant_algo": "NVFP4", "group_size": 16}, "l.0.k": {"quant_algo": "FP8"}}}"#), "modelopt-nvfp4", q, &[32, 96]),
        (f8("l.0.q.weight_scale", Float32, &[]).with_json("l.0.q.comfy_quant", r#"{"format": "float8_e4m3fn"}"#), "comfy-fp8", q, square),
        (Checkpoint::new(&[(q, Int8, &[32, 256]), ("l.0.q.weight_scale", Float32, &[32, 1])]).with_json("l.0.q.comfy_quant", r#"{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}"#), "comfy-int8", q, &[32, 256]),
        (Checkpoint::new(&[(q, Int8, &[32, 128]), ("l.0.q.weight_scale", Float32, &[32])]).with_json("l.0.q.comfy_quant", r#"{"format": "convrot_w4a4"}"#), "comfy-int4", q, &[32, 256]),
        (levels(128, Float8E4M3FN, 16).and(&[("l.0.q.weight_codebook", Float32, &[16])]).with_json("l.0.q.comfy_quant", r#"{"format": "asym_w4a8_int8"}"#), "comfy-w4a8", q, &[32, 256]),
        (levels(192, Uint8, 8).with_json("l.0.q.comfy_quant", r#"{"format": "asym_w4a8_int8", "group_size": 32, "convrot_groupsize": 64}"#), "comfy-w4a8", q, &[32, 256]),
        (Checkpoint::new(&[(q, Int8, &[32, 64]), ("l.0.q.weight_scale", Bfloat16, &[2, 32]), ("l.0.q.weight_zeros", Bfloat16, &[2, 32])]).with_json("l.0.q.comfy_quant", r#"{"format": "awq_w4a16", "group_size": 64}"#), "comfy-awq", q, &[32, 128]),
        (Checkpoint::new(&[(q, Int8, &[32, 64]), ("l.0.q.weight_scale", Bfloat16, &[2, 32]), ("l.0.q.weight_zero", Bfloat16, &[2, 32])]).with_json("l.0.q.comfy_quant", r#"{"format": "awq_w4a16"}"#), "comfy-awq", q, &[32, 128]),
        (Checkpoint::new(&[(q, Int8, &[32, 256]), ("l.0.q.weight_scale", Float32, &[32, 1])]).with_json("l.0.q.comfy_quant", r#"{"convrot": true, "per_row": true}"#), "comfy-int8", q, &[32, 256]),
        (comfy_file, "comfy-nvfp4", "b.0.q.weight", &[64, 48]),
        (Checkpoint::new(&[(q, Float8E4M3FN, &[64, 64]), ("l.0.q.weight_scale", Float8E8M0, &[128, 4])]).with_json("l.0.q.comfy_quant", r#"{"format": "mxfp8"}"#), "comfy-mxfp8", q, &[64, 64]),
        (f8("l.0.q.scale_weight", Float32, &[]).and(&[("l.0.q.scale_input", Float32, &[])]), "comfy-scaled-fp8", q, square),
        (Checkpoint::new(&[("m.up_blocks", Uint8, &[4, 64, 3, 16]), ("m.up_scales", Uint8, &[4, 64, 3])]).config(r#"{"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}"#), "gptoss-mxfp4", "m.up", &[4, 96, 64]),
        (Checkpoint::new(&[("m.up.blocks", Uint8, &[4, 64, 3, 16]), ("m.up.scales", Uint8, &[4, 64, 3])]), "gptoss-openai", "m.up", &[4, 64, 96]),
        (Checkpoint::new(&[("m.up.blocks", Uint8, &[4, 64, 3, 16]), ("m.up.scales", Uint8, &[4, 64, 3])]).config(r#"{"quant_method": "mxfp4"}"#), "gptoss-openai", "m.up", &[4, 64, 96]),
        (Checkpoint::new(&[("l.0.q.qweight", Int32, &[12, 64]), ("l.0.q.scales", Float16, &[3, 64]), ("l.0.q.qzeros", Int32, &[3, 8]), ("l.0.q.g_idx", Int32, &[96])]).config(GPTQ), "gptq", q, &[64, 96]),
        (Checkpoint::new(&[("l.0.q.qweight", Int32, &[96, 8]), ("l.0.q.scales", Float16, &[3, 64]), ("l.0.q.qzeros", Int32, &[3, 8])]).config(AWQ), "awq", q, &[64, 96]),
        (Checkpoint::new(&[(q, Uint8, &[256, 1]), ("l.0.q.weight.absmax", Uint8, &[8]), ("l.0.q.weight.quant_map", Float32, &[16]), ("l.0.q.weight.nested_absmax", Float32, &[1]), ("l.0.q.weight.nested_quant_map", Float32, &[256])]).with_json("l.0.q.weight.quant_state.bitsandbytes__nf4", NF4).config(BNB), "bnb-4bit", q, &[8, 64]),
        (Checkpoint::new(&[(q, Int8, &[32, 96]), ("l.0.q.SCB", Float32, &[32])]).with_bytes("l.0.q.weight_format", Uint8, &[], &[0]), "bnb-int8", q, &[32, 96]),
        (Checkpoint::new(&[("l.0.q.weight._data", Int8, &[32, 96]), ("l.0.q.weight._scale", Float32, &[32, 1]), ("l.0.q.input_scale", Float32, &[])]), "quanto", q, &[32, 96]),
        (Checkpoint::new(&[("l.0.q.weight._data", Int8, &[32, 96]), ("l.0.q.weight._scale", Float32, &[32, 1])]).config(r#"{"quant_method": "quanto", "weights": "int8"}"#), "quanto", q, &[32, 96]),
        (Checkpoint::new(&[(q, Uint8, &[32, 48]), ("l.0.q.weight_scale", Float32, &[32, 1]), ("l.0.q.input_activation_scale", Float32, &[])]).config(r#"{"quant_method": "gemma", "num_bits": 4}"#), "gemma-packed", q, &[32, 96]),
        (Checkpoint::new(&[("l.e.embedding_quantized", Uint8, &[32, 24]), ("l.e.embedding_scale", Float32, &[32, 3])]).config(r#"{"quant_method": "gemma", "num_bits": 4, "quantize_embeddings": true, "module_quant_configs": {"\\.[de]$": {"num_bits": 2}, "e": {"num_bits": 8}}}"#), "gemma-packed", "l.e.weight", &[32, 96]),
        (Checkpoint::new(&[(q, Int8, &[32, 96]), ("l.0.q.weight_scale", Float32, &[32, 1])]).config(r#"{"quant_method": "gemma", "num_bits": 8}"#), "gemma-int8", q, &[32, 96]),
        (Checkpoint::new(&[(q, Int8, &[32, 96]), ("l.0.q.scale", Float32, &[32, 1])]).config(r#"{"quant_method": "sdnq", "weights_dtype": "int8"}"#), "sdnq-8bit", q, &[32, 96]),
        (Checkpoint::new(&[(q, Uint8, &[384, 3]), ("l.0.q.scale", Bfloat16, &[32, 1])]).config(r#"{"quant_method": "sdnq", "weights_dtype": "int3"}"#), "sdnq-int", q, &[32, 96]),
        (Checkpoint::new(&[(q, Uint8, &[1536]), ("l.0.q.scale", Float32, &[32, 3, 1]), ("l.0.q.zero_point", Float32, &[32, 3, 1])]).config(r#"{"quant_method": "sdnq", "weights_dtype": "uint3", "modules_dtype_dict": {"minimum_4bit": ["q"], "uint8": ["l.0.q.weight"]}}"#), "sdnq-uint", q, &[32, 96]),
        (torchao(Int8, &[32, 1]).and(&[("l.0.q._weight_zero_point", Int8, &[32, 1])]), "torchao-int8", q, &[32, 96]),
        (torchao(Int8, &[32, 1]).config(&ao("Int8WeightOnlyConfig")).torchao("Int8Tensor", r#""qdata", "scale""#), "torchao-int8", q, &[32, 96]),
        (torchao(Int8, &[32, 3]).and(&[("l.0.q._weight_zero_point", Int8, &[32, 3])]).config(&ao("IntxWeightOnlyConfig")).torchao("IntxUnpackedToInt8Tensor", r#""qdata", "scale", "zero_point""#), "torchao-int8", q, &[32, 96]),
        (torchao(Float8E4M3FN, &[1, 1]), "torchao-fp8", q, &[32, 96]),
        (torchao(Float8E5M2, &[32, 1]).config(&ao("Float8WeightOnlyConfig")), "torchao-fp8", q, &[32, 96]),
        (Checkpoint::new(&[("m.experts._gate_up_proj_qdata", Float8E4M3FN, &[4, 32, 96]), ("m.experts._gate_up_proj_scale", Float32, &[4, 32, 1])]), "torchao-fp8", "m.experts.gate_up_proj", &[4, 32, 96]),
        (f8("l.0.q.weight_scale", Float32, &[]).and(&[("l.0.q.input_scale", Float32, &[]), ("l.0.q.output_scale", Float32, &[])]).config(&quark(r#""dtype": "fp8_e4m3", "qscheme": "per_tensor""#)), "quark-fp8", q, square),
        (f8("l.0.q.weight_scale", Bfloat16, &[256]).config(&quark(r#""dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 0"#)), "quark-fp8", q, square),
        (f8("l.0.q.weight_scale", Float32, &[2, 3]).config(&quark(r#""dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": [128, 128]"#)), "quark-fp8", q, square),
        (Checkpoint::new(&[(q, Int8, &[32, 96]), ("l.0.q.weight_scale", Float32, &[32]), ("l.0.q.weight_zero_point", Int8, &[32])]).config(&quark(r#""dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": true"#)), "quark-int8", q, &[32, 96]),
        (Checkpoint::new(&[(q, Int32, &[96, 4]), ("l.0.q.weight_scale", Float32, &[3, 32]), ("l.0.q.weight_zero_point", Int32, &[3, 4])]).config(&quark(r#""dtype": "uint4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32"#)), "quark-uint4", q, &[32, 96]),
        (nibbles(Uint8, 3).config(&quark(r#""dtype": "fp4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "scale_format": "e8m0""#)), "quark-mxfp4", q, &[32, 96]),
        (Checkpoint::new(&[(q, Int8, &[32, 96]), ("l.0.q.weight_scale", Bfloat16, &[32, 3])]).config(&ct("naive-quantized", r#""num_bits": 4, "type": "int", "strategy": "group", "group_size": 32"#)), "ct-int8", q, &[32, 96]),
        (mlx(18, Bfloat16, 3).and(&[("l.0.q.biases", Bfloat16, &[32, 3])]).config(r#"{"group_size": 64, "bits": 3}"#), "mlx-affine", q, &[32, 192]),
        (mlx(48, Float16, 6).and(&[("l.0.q.biases", Float16, &[32, 6])]).config(r#"{"group_size": 64, "bits": 4, "mode": "affine", "l.0.q": {"group_size": 32, "bits": 8}}"#), "mlx-affine", q, &[32, 192]),
        // Without an entry for the module, the shapes show the mode or the width.
        (mlx(36, Bfloat16, 3).and(&[("l.0.q.biases", Bfloat16, &[32, 3])]).config(r#"{"group_size": 64, "bits": 4, "mode": "affine"}"#), "mlx-affine", q, &[32, 192]),
        (mlx(24, Uint8, 6).config(r#"{"group_size": 64, "bits": 4, "mode": "affine"}"#), "mlx-mxfp4", q, &[32, 192]),
        (mlx(24, Uint8, 6), "mlx-mxfp4", q, &[32, 192]),
        (mlx(48, Uint8, 6), "mlx-mxfp8", q, &[32, 192]),
        (mlx(24, Uint8, 12), "mlx-nvfp4", q, &[32, 192]),
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
        tcast::quant::layouts().map(|layout| layout.name).filter(|name| !seen.contains_key(name)).collect();
    assert_eq!(missing, [""; 0]);
}

/// vLLM `gptq_utils.py`, `get_dynamic_override`, and `inc.py`, `get_layer_config`.
#[test]
fn the_first_pattern_of_the_file_decides_about_a_module() {
    let bits = |config: &str, bits: u64| {
        let words =
            [("qweight", vec![128 * bits / 32, 64]), ("qzeros", vec![4, 64 * bits / 32]), ("scales", vec![4, 64])];
        let mut tensors: Vec<(String, Dtype, Vec<u64>)> = Vec::new();
        for (part, shape) in words {
            let dtype = if part == "scales" { Float16 } else { Int32 };
            tensors.push((format!("l.0.mlp.down.{part}"), dtype, shape));
        }
        let tensors: Vec<_> = tensors.iter().map(|(name, dtype, shape)| (&**name, *dtype, &**shape)).collect();
        let found = Checkpoint::new(&tensors).config(config).recognize().unwrap_or_else(|error| panic!("{error}"));
        found.weights[0].parameters.bits
    };
    let gptq = |dynamic: &str| {
        format!(
            r#"{{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false, "dynamic": {{{dynamic}}}}}"#
        )
    };
    let [z, a] = [r#"".*mlp.*": {"bits": 8}"#, r#"".*down": {"bits": 2}"#];
    assert_eq!(bits(&gptq(&format!("{a}, {z}")), 2), Some(2));
    assert_eq!(bits(&gptq(&format!("{z}, {a}")), 8), Some(8));
    assert_eq!(bits(&gptq(r#""x": {"bits": 8}, "down": {"bits": 8}"#), 4), Some(4)); // anchored at the start
    let auto_round = |extra: &str| {
        format!(r#"{{"quant_method": "auto-round", "bits": 4, "group_size": 32, "extra_config": {{{extra}}}}}"#)
    };
    let [z, a] = [r#"".*down$": {"bits": 8}"#, r#""0\\.mlp": {"bits": 2}"#];
    assert_eq!(bits(&auto_round(&format!("{a}, {z}")), 2), Some(2));
    assert_eq!(bits(&auto_round(&format!("{z}, {a}")), 8), Some(8));
    assert_eq!(bits(&auto_round(&format!(r#"{z}, {a}, "l.0.mlp.down": {{"bits": 4}}"#)), 4), Some(4));
    assert_eq!(bits(&auto_round(r#""0.mlp": {"bits": 8}"#), 4), Some(4)); // a name
    let beside = auto_round(z).replacen('{', r#"{"dynamic": {}, "#, 1);
    assert_eq!(bits(&beside, 8), Some(8)); // another method's key
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

/// Quark's `get_layer_quant_config`.
#[test]
fn the_first_glob_of_quark_decides_and_a_module_without_weight_settings_is_kept() {
    let row = r#"{"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 0}}"#;
    let kept = r#"{"weight": null}"#;
    let config = |layers: &str| {
        let all = r#""global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}"#;
        format!(r#"{{"quant_method": "quark", {all}, "layer_quant_config": {{{layers}}}}}"#)
    };
    let group = |layers: &str, scales: &[u64]| {
        let tensors: [(&str, Dtype, &[u64]); 2] =
            [("l.0.q.weight", Float8E4M3FN, &[256, 384]), ("l.0.q.weight_scale", Float32, scales)];
        let found = Checkpoint::new(&tensors).config(&config(layers)).recognize();
        found.map(|found| found.weights[0].parameters.group).map_err(|error| error.to_string())
    };
    assert_eq!(group("", &[]), Ok(Some(Group::Tensor)));
    assert_eq!(group(&format!(r#""*.q": {row}, "*": {kept}"#), &[256]), Ok(Some(Group::Channel)));
    assert_eq!(group(&format!(r#""*.[!q]": {kept}"#), &[]), Ok(Some(Group::Tensor)));
    let error = group(&format!(r#""l.*": {kept}, "*.q": {row}"#), &[256]).unwrap_err();
    assert!(error.contains("that it is not quantized, and 'l.0.q.weight_scale' that it is"), "{error}");
}

#[test]
fn no_weight_is_found_when_a_part_is_gone_or_of_another_dtype() {
    const DTYPES: [Dtype; 12] =
        [Bfloat16, Bool, Float4E2M1, Float8E4M3FN, Float8E5M2, Float8E8M0, Float16, Float32, Int8, Int32, Int64, Uint8];
    let mut count = 0;
    for (checkpoint, layout, ..) in checkpoints() {
        let whole = essence(&checkpoint, &checkpoint.probe());
        for index in 0..checkpoint.tensors.len() {
            let mut changed = vec![checkpoint.clone()];
            changed[0].tensors.remove(index);
            for dtype in DTYPES {
                let mut other = checkpoint.clone();
                other.tensors[index].dtype = dtype;
                changed.push(other);
            }
            for changed in changed {
                let found = changed.probe();
                // As bytes, the same shape has twice as many codes, in groups of twice the length.
                let is_doubled = layout == "hf-fp4" && changed.tensors[0].dtype != checkpoint.tensors[0].dtype;
                // Levels without a table are evenly spaced.
                let is_even = changed.tensors.len() < checkpoint.tensors.len()
                    && checkpoint.tensors[index].name.ends_with(".weight_codebook");
                for (name, essence) in essence(&changed, &found).into_iter().filter(|_| !is_doubled && !is_even) {
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

#[test]
fn what_is_missing_or_contradicts_is_named() {
    let f8 = |scale: (&str, Dtype, &[u64])| Checkpoint::new(&[("q.weight", Float8E4M3FN, &[192, 384]), scale]);
    let alone = Checkpoint::new(&[("q.weight", Float8E4M3FN, &[192, 384])]);
    let block = "the config says quant_method 'fp8', weight_block_size [128, 128]";
    let scale = || f8(("q.weight_scale_inv", Float32, &[2, 3]));
    let int4 = Checkpoint::new(&[
        ("q.qweight", Int32, &[96, 8]),
        ("q.scales", Float16, &[3, 64]),
        ("q.qzeros", Int32, &[3, 8]),
    ]);
    for (checkpoint, message) in [
        (alone.clone().config(FP8), format!("tensor 'q.weight': holds codes, and their scales ('q.weight_scale_inv') are missing: {block}")),
        (
            Checkpoint::new(&[("q.weight_scale_inv", Float32, &[2, 3])]),
            "tensor 'q.weight_scale_inv': belongs to codes 'q.weight', which are missing".to_owned(),
        ),
        (
            Checkpoint::new(&[("q.weight", Bfloat16, &[192, 384]), ("q.weight_scale_inv", Float32, &[2, 3])]),
            "tensor 'q.weight_scale_inv': belongs to 'q.weight', which is bfloat16 and not codes that it fits".to_owned(),
        ),
        (
            scale().config(r#"{"quant_method": "fp8", "weight_block_size": [96, 128]}"#).and(&[]),
            String::new(), // as the shapes have it
        ),
        (
            scale().config(r#"{"quant_method": "fp8", "weight_block_size": [64, 128]}"#),
            "tensor 'q.weight': 'q.weight_scale_inv' has the shape [2, 3], but 'q.weight', a weight of [192, 384] in groups of \
             64 x 128, needs [3, 3]".to_owned(),
        ),
        (
            Checkpoint::new(&[("q.weight_scale", Bfloat16, &[32, 3])]).config(&ct("pack-quantized", r#""num_bits": 4, "group_size": 32"#)),
            "tensor 'q.weight_scale': belongs to codes 'q.weight_packed', which are missing".to_owned(),
        ),
        (
            f8(("q.weight_scale", Bfloat16, &[192, 1])).config(&ct("float-quantized", r#""num_bits": 8, "type": "float""#).replace("Linear", "re:.*up_proj")),
            "tensor 'q.weight': 'q.weight' and 'q.weight_scale' are called as in 20 layouts, and the config does not name its \
             module".to_owned(),
        ),
        (
            scale().config(r#"{"quant_method": "gguf"}"#),
            "config.json: the model is quantized with GGUF (blocks of llama.cpp in safetensors; convert the .gguf file with \
             llama.cpp's own tools), which tcast does not decode".to_owned(),
        ),
        (
            scale().config(r#"{"quant_method": "x\u001by"}"#),
            "config.json: the model is quantized with 'x\\u{1b}y', which tcast does not decode".to_owned(),
        ),
        (
            int4.clone().config(r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}"#),
            "config.json: its AWQ version is 'gemv', whose codes lie in another order than those of 'gemm', which tcast does \
             not decode".to_owned(),
        ),
        (
            int4,
            "tensor 'q.qweight': 'q.qweight' and 'q.scales' may be of GPTQ".to_owned(),
        ),
        (
            scale().config(&FP8.replace("lm_head", "q")),
            "tensor 'q.weight': the config says with 'q' that it is not quantized, and 'q.weight_scale_inv' that it is".to_owned(),
        ),
        (
            scale().config(AWQ),
            "tensor 'q.weight': 'q.weight' and 'q.weight_scale_inv' are called as in transformers".to_owned(),
        ),
        (
            scale().and(&[("q.weight_scale", Float32, &[1])]),
            "tensor 'q.weight': 'q.weight_scale_inv' and 'q.weight_scale' are both its scales".to_owned(),
        ),
        (
            Checkpoint::new(&[("q.weight", Int8, &[32, 64]), ("q.weight_scale", Bfloat16, &[2, 32])])
                .with_json("q.comfy_quant", r#"{"format": "awq_w4a16"}"#),
            "tensor 'q.weight': it has no offsets 'q.weight_zeros', which the layout comfy-awq needs".to_owned(),
        ),
    ] {
        if message.is_empty() {
            checkpoint.weight();
        } else {
            let error = checkpoint.error();
            assert!(error.starts_with(&message), "{error}\n{message}");
        }
    }
}

#[test]
fn lists_of_modules_that_are_not_quantized_are_heeded() {
    let found = Checkpoint::new(&[("lm_head.weight", Float8E4M3FN, &[8, 8]), ("x.norm.weight", Bfloat16, &[8])]);
    let found = found.config(FP8).probe();
    assert_eq!((found.plain, found.problems.len(), found.method.as_deref()), (vec![0, 1], 0, Some("fp8")));
}

#[test]
fn a_checkpoint_of_values_is_plain() {
    let values = Checkpoint::new(&[
        ("norm.scale", Float32, &[8]),
        ("x.layer_scale", Float32, &[8]),
        ("x.weight", Float8E4M3FN, &[8, 8]),
        ("x.input_scale", Float32, &[1]),
        ("ids", Uint8, &[8, 8]),
    ]);
    let found = values.probe();
    assert_eq!((found.plain.len(), found.problems.len(), found.weights.len()), (5, 0, 0));
}

#[test]
fn two_hundred_thousand_tensors_are_looked_through_at_once() {
    let names: Vec<String> = (0..100_000).map(|layer| format!("l.{layer}.q.weight")).collect();
    let scales: Vec<String> = names.iter().map(|name| format!("{name}_scale_inv")).collect();
    let mut tensors: Vec<(&str, Dtype, &[u64])> = Vec::new();
    tensors.extend(names.iter().map(|name| (&**name, Float8E4M3FN, &[128, 128][..])));
    tensors.extend(scales.iter().map(|name| (&**name, Float32, &[1, 1][..])));
    let listed: Vec<String> = (0..50_000).map(|number| format!("\"out.{number}\"")).collect();
    let config = FP8.replace("\"lm_head\"", &listed.join(","));
    assert_eq!(Checkpoint::new(&tensors).config(&config).probe().weights.len(), 100_000);
    // Without their scales, all of them are problems; not all are kept.
    let alone = Checkpoint::new(&tensors[..100_000]).config(&config).probe();
    assert_eq!((alone.orphans.len(), alone.problems.len()), (100_000, 1000));
}

/// A safetensors file without its metadata.
fn read(path: &std::path::Path) -> Vec<Stored> {
    let bytes = std::fs::read(path).unwrap();
    let (size, file) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = file.split_at(u64::from_le_bytes(*size) as usize);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let tensor = |(name, value): (&String, &serde_json::Value)| {
        let numbers = |key: &str| -> Vec<u64> { serde_json::from_value(value[key].clone()).unwrap() };
        let stored = value["dtype"].as_str();
        let [start, end] = numbers("data_offsets")[..] else { panic!("two offsets") };
        Stored {
            name: name.clone(),
            dtype: Dtype::all().find(|dtype| dtype.safetensors_name() == stored).unwrap(),
            shape: numbers("shape"),
            bytes: data[start as usize..end as usize].to_vec(),
        }
    };
    header.iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

/// Files that libraries wrote, by the layout in their names, with the config that goes with them.
fn goldens(folder: &std::path::Path) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::<String, usize>::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".safetensors") {
            continue;
        }
        let layout = name.split('.').next().unwrap();
        let mut checkpoint = Checkpoint { tensors: read(&path), ..Checkpoint::default() };
        checkpoint.tensors.retain(|tensor| tensor.name.starts_with("encoded."));
        let shape = |checkpoint: &Checkpoint, name: &str| {
            checkpoint.tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.shape.clone())
        };
        let float = |strategy: &str| ct("float-quantized", &format!(r#""num_bits": 8, "type": "float", {strategy}"#));
        let modelopt = |algo: &str| format!(r#"{{"quant_method": "modelopt", "quant_algo": "{algo}"}}"#);
        let comfy = |checkpoint: Checkpoint, format: &str| {
            checkpoint.with_json("encoded.comfy_quant", &format!(r#"{{"format": "{format}"}}"#))
        };
        let (checkpoint, wanted) = match layout {
            "ct-fp8-tensor" => (checkpoint.config(&float(r#""strategy": "tensor""#)), "ct-fp8"),
            "ct-fp8-channel" => (checkpoint.config(&float(r#""strategy": "channel""#)), "ct-fp8"),
            "ct-fp8-block" => {
                (checkpoint.config(&float(r#""strategy": "block", "block_structure": "128x128""#)), "ct-fp8")
            }
            "ct-int8-channel" => (
                checkpoint.config(&ct("int-quantized", r#""num_bits": 8, "type": "int", "strategy": "channel""#)),
                "ct-int8",
            ),
            "ct-int-pack" => {
                let bits = name.split(['.', '-']).find_map(|part| part.strip_prefix('w')?.parse::<u32>().ok()).unwrap();
                let group = name.split(['.', '-']).find_map(|part| part.strip_prefix('g')?.parse::<i32>().ok());
                let (group, symmetric) = (group.unwrap_or(-1), !name.contains("asym"));
                let weights = format!(
                    r#""num_bits": {bits}, "type": "int", "strategy": "group", "group_size": {group}, "symmetric": {symmetric}"#
                );
                (checkpoint.config(&ct("pack-quantized", &weights)), "ct-pack")
            }
            "hf-fp8-block" => {
                let [weight, grid] =
                    ["weight", "weight_scale_inv"].map(|name| shape(&checkpoint, &format!("encoded.{name}")).unwrap());
                let side = |at: usize| weight[weight.len() - at].div_ceil(grid[grid.len() - at]);
                let block = if name.contains("partial") { [128, 128] } else { [side(2), side(1)] };
                (checkpoint.config(&format!(r#"{{"quant_method": "fp8", "weight_block_size": {block:?}}}"#)), "hf-fp8")
            }
            "modelopt-fp8" if name.contains("channel") => {
                (checkpoint.config(&modelopt("FP8_PER_CHANNEL_PER_TOKEN")), "modelopt-fp8")
            }
            "comfy-fp8" if name.contains("e5m2") => (comfy(checkpoint, "float8_e5m2"), "comfy-fp8"),
            "comfy-fp8" => (comfy(checkpoint, "float8_e4m3fn"), "comfy-fp8"),
            "comfy-nvfp4" | "comfy-mxfp8" => (comfy(checkpoint, &layout[6..]), layout),
            "modelopt-mxfp8" => (checkpoint.config(&modelopt("MXFP8")), layout),
            "modelopt-nvfp4" => (checkpoint.config(&modelopt("NVFP4")), layout),
            "ct-mxfp8" => {
                let weights = r#""num_bits": 8, "type": "float", "strategy": "group", "group_size": 32"#;
                (checkpoint.config(&ct("mxfp8-quantized", weights)), layout)
            }
            // Without a stem, its names are those of OpenAI.
            "gptoss-mxfp4" => (checkpoint, "gptoss-openai"),
            _ => (checkpoint, layout),
        };
        let found = checkpoint.recognize().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.weights.len(), 1, "{name}");
        assert_eq!(found.weights[0].layout.name, wanted, "{name}");
        assert!(found.plain.is_empty(), "{name}");
        *seen.entry(wanted.to_owned()).or_default() += 1;
    }
    seen
}

#[test]
fn files_of_the_libraries_are_recognized() {
    let seen = goldens(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/quantized")));
    assert!(seen.len() >= 18, "{seen:?}");
}

/// `TCAST_GOLDENS=DIR cargo test --test quant recognition:: -- --ignored --nocapture` looks at the files of another folder.
#[test]
#[ignore = "needs a folder of goldens in TCAST_GOLDENS"]
fn other_files_are_recognized() {
    let seen = goldens(std::path::Path::new(&std::env::var_os("TCAST_GOLDENS").expect("TCAST_GOLDENS names a folder")));
    let files: usize = seen.values().sum();
    assert!(files > 0);
    std::io::stderr().write_all(format!("{files} files: {seen:?}\n").as_bytes()).unwrap();
}

/// `TCAST_CHECKPOINTS=DIR`: each folder of it, or what a `NAME.bf16` beside it holds.
#[test]
#[ignore = "needs a folder of checkpoints in TCAST_CHECKPOINTS"]
fn other_checkpoints_decode_to_what_lies_beside_them() {
    let folder = std::env::var_os("TCAST_CHECKPOINTS").expect("TCAST_CHECKPOINTS names a folder");
    let load = |path: &std::path::Path| {
        let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|end| end == "safetensors")).collect();
        files.sort();
        let config = std::fs::read_to_string(path.join("config.json")).ok();
        Checkpoint { tensors: files.iter().flat_map(|file| read(file)).collect(), config, ..Checkpoint::default() }
    };
    let mut shown = Vec::new();
    for path in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        let checkpoint = load(&path);
        let found = checkpoint.recognize().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let beside = std::path::PathBuf::from(format!("{}.bf16", path.display()));
        let mut compared = 0;
        if beside.exists() {
            let values: BTreeMap<String, Stored> =
                load(&beside).tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
            let plain = found.plain.iter().map(|index| &checkpoint.tensors[*index].name);
            let names: Vec<&String> = found.weights.iter().map(|weight| &weight.name).chain(plain).collect();
            assert_eq!(names.len(), values.len());
            assert!(names.iter().all(|name| values.contains_key(*name)));
            for weight in &found.weights {
                let parts = checkpoint.with(|source| {
                    let parts = weight.parts(source.tensors);
                    let decoder = tcast::quant::Decoder::new(
                        weight.layout,
                        &weight.parameters,
                        &parts,
                        Bfloat16,
                        tcast::quant::Arithmetic::Library,
                    );
                    let decoder = decoder.unwrap();
                    let bytes: Vec<&[u8]> =
                        weight.parts.iter().map(|(_, index)| &checkpoint.tensors[*index].bytes[..]).collect();
                    let mut out = vec![0; (decoder.rows() * decoder.row_bytes()) as usize];
                    decoder.decode(0..decoder.rows(), &bytes, &mut out).unwrap();
                    out
                });
                assert_eq!(parts, values[&weight.name].bytes, "{}", weight.name);
                assert_eq!(weight.shape, values[&weight.name].shape);
                compared += parts.len();
            }
        }
        shown.push(format!(
            "{}: {} weights, {} plain, {compared} bytes equal\n",
            path.display(),
            found.weights.len(),
            found.plain.len()
        ));
    }
    std::io::stderr().write_all(shown.concat().as_bytes()).unwrap();
}

#[test]
fn descriptions_that_say_the_same_in_other_words_do_not_contradict_each_other() {
    let of = |scale: &[(&str, Dtype, &[u64])], block: &str, other: &str| {
        let mut checkpoint = Checkpoint::new(&[("l.0.q.weight", Float8E4M3FN, &[256, 384])]).and(scale).config(block);
        checkpoint.hf_quant_config = Some(format!(r#"{{"quantization": {other}}}"#));
        checkpoint
    };
    let blocks = [("l.0.q.weight_scale_inv", Float32, &[2, 3][..])];
    let tensor = [("l.0.q.weight_scale", Float32, &[][..])];
    let modelopt = r#"{"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "group_size": null}"#;
    for checkpoint in [
        // TensorRT-LLM names the algorithm of DeepSeek's blocks like this.
        of(&blocks, FP8, r#"{"quant_algo": "FP8_BLOCK_SCALES", "kv_cache_quant_algo": null}"#),
        of(&tensor, modelopt, r#"{"quant_algo": "fp8", "group_size": 16, "exclude_modules": ["lm_head*", "l.0.q.x"]}"#),
        of(&blocks, FP8, "null").and_config(&format!(r#""text_config": {{"quantization_config": {FP8}}}"#)),
    ] {
        checkpoint.weight();
    }
    let contradicted = of(&tensor, modelopt, r#"{"quant_algo": "FP8", "exclude_modules": ["l.0.*"]}"#);
    assert!(contradicted.error().contains("hf_quant_config.json says with 'l.0.*' that it is not quantized"));
}

/// How the engine of a method reads the entry of a list of modules that are not quantized.
#[derive(Debug, PartialEq)]
enum Listed {
    Not,
    /// By some engines only: codes with scales are a weight, and others are values.
    Loosely,
    Firmly(String),
}

/// Looks for a module in the list of a config whose codes are float8.
fn listed(config: &str, scale: (&str, Dtype, &[u64]), entries: &[&str], module: &str) -> Listed {
    let config = config.replace("[]", &serde_json::to_string(entries).unwrap());
    let (weight, scale_name) = (format!("{module}.weight"), format!("{module}.{}", scale.0));
    let codes = Checkpoint::new(&[(&weight, Float8E4M3FN, &[8, 8])]).config(&config);
    match codes.clone().and(&[(&scale_name, scale.1, scale.2)]).recognize() {
        Err(error) => {
            let error = error.to_string();
            let entry =
                error.split_once("says with '").and_then(|(_, rest)| rest.split_once("' that it is not quantized"));
            Listed::Firmly(entry.unwrap_or_else(|| panic!("{error}")).0.to_owned())
        }
        Ok(_) if codes.probe().problems.is_empty() => Listed::Loosely,
        Ok(_) => Listed::Not,
    }
}

#[test]
fn lists_match_as_their_engines_do() {
    let firmly = |entry: &str| Listed::Firmly(entry.to_owned());
    let prefixed = ct("float-quantized", r#""num_bits": 8, "type": "float", "strategy": "channel""#)
        .replace(r#"["lm_head"]"#, "[]");
    let entries = ["lm_head", "re:.*mlp.gate$", "re:(?!x).*", "re:model"];
    for (module, wanted) in [
        ("lm_head", firmly("lm_head")),
        ("x.lm_head", Listed::Not),
        ("lm_head.x", Listed::Not),
        ("a.mlp.gate", firmly("re:.*mlp.gate$")),
        ("a.mlp.gate_proj", Listed::Not),
        ("model.x", firmly("re:model")), // re.match
        ("a.model.x", Listed::Not),
    ] {
        assert_eq!(listed(&prefixed, ("weight_scale", Bfloat16, &[8, 1]), &entries, module), wanted, "{module}");
    }
    let transformers = r#"{"quant_method": "fp8", "weight_block_size": [8, 8], "modules_to_not_convert": []}"#;
    let entries = ["lm_head", "model.layers.1", "model.layers.*.self_attn", "mlp.gate"];
    for (module, wanted) in [
        ("lm_head", firmly("lm_head")),
        ("model.layers.1.q", firmly("model.layers.1")),
        ("model.layers.10.q", Listed::Not),
        ("model.layers.10.self_attn.q", firmly("model.layers.*.self_attn")),
        ("x.0.mlp.gate", Listed::Loosely),
    ] {
        assert_eq!(listed(transformers, ("weight_scale_inv", Float32, &[1, 1]), &entries, module), wanted, "{module}");
    }
    let globs = r#"{"quant_method": "modelopt", "quant_algo": "FP8", "ignore": []}"#;
    let entries = ["lm_head", "*vision*", "model.layers.[0-3].x", "a.?", "[!ab]b"];
    for (module, wanted) in [
        ("lm_head", firmly("lm_head")),
        ("a.vision.b", firmly("*vision*")),
        ("model.layers.2.x", firmly("model.layers.[0-3].x")),
        ("model.layers.4.x", Listed::Not),
        ("a.b", firmly("a.?")),
        ("cb", firmly("[!ab]b")),
        ("lm_head.x", Listed::Loosely),
    ] {
        assert_eq!(listed(globs, ("weight_scale", Float32, &[]), &entries, module), wanted, "{module}");
    }
}
