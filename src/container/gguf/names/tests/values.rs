//! Assemblies, applied to positions instead of values.

use super::{FixtureModel, MappedSource, found, model};

/// Checks that a tensor has its positions as values, if the stored tensors were made of it: `stored` returns the position
/// for an element of a stored tensor, given by its name and indices.
fn check_values(model: &FixtureModel, name: &str, stored: &dyn Fn(&str, &[u64]) -> u64) {
    let mapped = model.map();
    let tensor = found(&mapped, name);
    let MappedSource::Assembled { tensors, assembly } = &tensor.source else { panic!("{name} is stored as it is") };
    let values = |index: &usize| {
        let (name, shape) = &model.tensors[*index];
        let count = shape.iter().product::<u64>();
        let indices = |position: u64| -> Vec<u64> {
            let mut rest = position;
            let mut indices: Vec<u64> = shape.iter().rev().map(|size| (rest % size, rest /= size).0).collect();
            indices.reverse();
            indices
        };
        (shape.as_slice(), (0..count).map(|position| stored(name, &indices(position)) as i64).collect())
    };
    let sources: Vec<_> = tensors.iter().map(values).collect();
    let count = tensor.shape.iter().product::<u64>() as i64;
    assert_eq!(assembly.assemble(&sources), (0..count).collect::<Vec<_>>(), "{name}");
}

#[test]
fn rows_of_llama_heads_return_to_their_places() {
    // GGUF = HF.reshape(h, 2, d / 2, in).swap(1, 2): row (h, i, k) of GGUF is row (h, k, i) of Hugging Face.
    let row = |stored: u64, size: u64| stored / size * size + stored % size % 2 * (size / 2) + stored % size / 2;
    for name in ["llama", "mistral", "mixtral", "granite", "granitemoe", "smollm3"] {
        let model = model(name).with("blk.0.attn_k.bias", &[16]).with("blk.1.attn_k.bias", &[16]);
        check_values(&model, "model.layers.0.self_attn.q_proj.weight", &|_, at| row(at[0], 8) * 32 + at[1]);
        check_values(&model, "model.layers.1.self_attn.k_proj.weight", &|_, at| row(at[0], 8) * 32 + at[1]);
        check_values(&model, "model.layers.1.self_attn.k_proj.bias", &|_, at| row(at[0], 8));
    }
}

#[test]
fn experts_of_gpt_oss_return_to_their_places() {
    let model = model("gpt_oss");
    let odd = |name: &str| u64::from(name.contains("_up_"));
    // gate_up_proj [4, 32, 96], whose even columns are the gate's.
    check_values(&model, "model.layers.1.mlp.experts.gate_up_proj", &|name, at| {
        (at[0] * 32 + at[2]) * 96 + 2 * at[1] + odd(name)
    });
    check_values(&model, "model.layers.1.mlp.experts.gate_up_proj_bias", &|name, at| {
        at[0] * 96 + 2 * at[1] + odd(name)
    });
    check_values(&model, "model.layers.0.mlp.experts.down_proj", &|_, at| (at[0] * 48 + at[2]) * 32 + at[1]);
}

#[test]
fn keys_and_values_of_deepseek_return_to_their_places() {
    // Other numbers than the fixture's, of which none are equal: 3 heads of 4 rows of keys and 6 rows of values, rank 5.
    let model =
        model("deepseek_v3").with("blk.0.attn_k_b.weight", &[3, 5, 4]).with("blk.0.attn_v_b.weight", &[3, 6, 5]);
    let name = "model.layers.0.self_attn.kv_b_proj.weight";
    check_values(&model, name, &|name, at| {
        let is_key = name.contains("attn_k_b");
        if is_key { (at[0] * 10 + at[2]) * 5 + at[1] } else { (at[0] * 10 + 4 + at[1]) * 5 + at[2] }
    });
    assert_eq!(found(&model.map(), name).shape, [30, 5]);
}

#[test]
fn experts_of_granite_return_to_their_places() {
    check_values(&model("granitemoe"), "model.layers.0.block_sparse_moe.input_linear.weight", &|name, at| {
        (at[0] * 96 + if name.contains("_up_") { 48 } else { 0 } + at[1]) * 32 + at[2]
    });
}

#[test]
fn norms_of_gemma_lose_one() {
    check_values(&model("gemma2"), "model.layers.0.post_feedforward_layernorm.weight", &|_, at| at[0] + 1);
}
