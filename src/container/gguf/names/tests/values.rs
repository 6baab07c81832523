//! Assemblies, applied to positions instead of values.

use super::{Assembly, FixtureModel, MappedSource, RowOrder, found, model};

/// The values that an assembly makes of its sources, one by one.
fn assemble(assembly: &Assembly, sources: &[(&[u64], Vec<i64>)]) -> Vec<i64> {
    let matrices = |at: usize, is_transposed: bool| -> Vec<Vec<Vec<i64>>> {
        let (shape, values) = &sources[at];
        let width = if assembly.rows_are_elements { 1 } else { *shape.last().unwrap() as usize };
        // A tensor of one dimension is a row.
        let height = if assembly.rows_are_elements { shape.last() } else { shape.iter().rev().nth(1) };
        let height = height.map_or(1, |height| *height as usize);
        let rows: Vec<Vec<i64>> = values.chunks(width).map(<[i64]>::to_vec).collect();
        let matrices = rows.chunks(height).map(<[Vec<i64>]>::to_vec);
        matrices.map(|matrix| if is_transposed { transpose(&matrix) } else { matrix }).collect()
    };
    let firsts = matrices(0, assembly.first_is_transposed);
    let seconds = if sources.len() > 1 { matrices(1, false) } else { vec![Vec::new(); firsts.len()] };
    let mut values = Vec::new();
    for (first, second) in firsts.iter().zip(&seconds) {
        let mut rows = match assembly.order {
            RowOrder::Stored => first.clone(),
            RowOrder::Concatenated => [first.clone(), second.clone()].concat(),
            RowOrder::Alternating => first.iter().zip(second).flat_map(|(a, b)| [a.clone(), b.clone()]).collect(),
            RowOrder::Heads(heads) => {
                let size = first.len() / heads as usize;
                let source = |row: usize| {
                    let (head, k, i) = (row / size, row % size / (size / 2), row % (size / 2));
                    head * size + 2 * i + k
                };
                (0..first.len()).map(|row| first[source(row)].clone()).collect()
            }
        };
        if assembly.is_transposed {
            rows = transpose(&rows);
        }
        values.extend(rows.concat().into_iter().map(|value| value - i64::from(assembly.is_less_one)));
    }
    values
}

fn transpose(matrix: &[Vec<i64>]) -> Vec<Vec<i64>> {
    (0..matrix[0].len()).map(|column| matrix.iter().map(|row| row[column]).collect()).collect()
}

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
    assert_eq!(assemble(assembly, &sources), (0..count).collect::<Vec<_>>(), "{name}");
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
