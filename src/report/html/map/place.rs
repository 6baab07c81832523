//! The places of weights on the map, by their names.

use std::collections::{BTreeSet, HashMap, HashSet};

/// Maximum number of kinds in a stack; with more, all numbers in kinds become `*`.
const MOST_KINDS: usize = 48;
/// Maximum number of stacks. The weights of smaller ones are outside of the layers.
const MOST_STACKS: usize = 12;
/// Number of cells in a row of weights outside of the layers.
const ROW: usize = 32;

/// Layers with the same name, and their numbers.
pub(super) struct Stack {
    /// Name up to the number: `model.layers`.
    pub(super) name: String,
    pub(super) layers: Vec<u64>,
    /// Kinds of modules, and their weights in each layer.
    pub(super) kinds: Vec<(String, Vec<Vec<usize>>)>,
}

/// The places of all weights, which are given by their indices.
pub(super) struct MapLayout {
    pub(super) stacks: Vec<Stack>,
    /// Weights outside of the layers, by block; or by name, if the block has no other.
    pub(super) others: Vec<(String, Vec<usize>)>,
}

/// The place of a weight: `model.layers`, 3, `mlp.experts.*.down_proj`.
struct WeightPlace {
    weight: usize,
    stack: String,
    layer: u64,
    kind: Vec<String>,
}

impl MapLayout {
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let (mut stacks, mut others): (Vec<Vec<WeightPlace>>, Vec<(usize, &str)>) = Default::default();
        let mut known: HashMap<String, usize> = HashMap::new();
        for (weight, name) in names.enumerate() {
            let Some(place) = WeightPlace::of(weight, name) else {
                others.push((weight, name));
                continue;
            };
            let at = *known.entry(place.stack.clone()).or_insert(stacks.len());
            if at == stacks.len() {
                stacks.push(Vec::new());
            }
            stacks[at].push(place);
        }
        let mut sizes: Vec<usize> = stacks.iter().map(Vec::len).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let least = sizes.get(MOST_STACKS).map_or(0, |size| size + 1);
        let (large, small): (Vec<_>, Vec<_>) = stacks.into_iter().partition(|places| places.len() >= least);
        let blocks = others.iter().map(|(weight, name)| (*weight, block(name)));
        let small = small.iter().flatten().map(|place| (place.weight, place.stack.clone()));
        let mut rows = rows(blocks.chain(small));
        // A weight that is alone in its block has a row with its own name.
        let own: HashMap<usize, &str> = others.iter().copied().collect();
        for (block, weights) in &mut rows {
            if let [weight] = weights[..]
                && let Some(name) = own.get(&weight)
            {
                *block = parts(name).join(".");
            }
        }
        Self { stacks: large.into_iter().map(Stack::new).collect(), others: rows }
    }
}

impl WeightPlace {
    /// Finds the first number in a name that has a module behind it.
    fn of(weight: usize, name: &str) -> Option<Self> {
        let parts = parts(name);
        let can_be_layer = |at: usize, part: &str| at > 0 || part.contains('_') && !is_keras_model(part);
        let layer_at = |(at, part): (usize, &&str)| Some((at, layer(part)?)).filter(|_| can_be_layer(at, part));
        let (at, layer) = parts.iter().enumerate().find_map(layer_at).filter(|(at, _)| at + 1 < parts.len())?;
        let stem = parts[at].trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
        let stack = parts[..at].iter().copied().chain(Some(stem).filter(|stem| !stem.is_empty()));
        let kind = (at + 1..parts.len()).map(|at| {
            let is_expert = parts[at].contains("expert") || parts[at - 1].contains("expert");
            if is_expert { without_number(parts[at]) } else { parts[at].to_owned() }
        });
        Some(Self { weight, stack: stack.collect::<Vec<_>>().join("."), layer, kind: kind.collect() })
    }
}

/// Divides a name into modules, without the name of the parameter if that is `weight`.
fn parts(name: &str) -> Vec<&str> {
    let parts: Vec<&str> = name.split(['.', '/']).filter(|part| !part.is_empty()).collect();
    match &parts[..] {
        [modules @ .., "weight"] if !modules.is_empty() => modules.to_vec(),
        _ => parts,
    }
}

/// True if Keras gives this name to a whole model: `model_1`.
fn is_keras_model(part: &str) -> bool {
    let name = part.rsplit_once('_').map_or(part, |(name, _)| name);
    ["model", "functional", "sequential"].contains(&name)
}

/// Returns the number of a layer: `3`, or `layers_3` in Flax.
fn layer(part: &str) -> Option<u64> {
    let digits = part.rsplit_once('_').map_or(part, |(_, digits)| digits);
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Replaces a number: `expert_3` and `3` become `expert_*` and `*`.
fn without_number(part: &str) -> String {
    if layer(part).is_none() {
        return part.to_owned();
    }
    format!("{}*", part.trim_end_matches(|c: char| c.is_ascii_digit()))
}

/// Returns the module that contains a weight outside of the layers, or its own name at the top.
fn block(name: &str) -> String {
    let parts = parts(name);
    match &parts[..] {
        [modules @ .., _] if !modules.is_empty() => modules.join("."),
        _ => name.trim_end_matches(".weight").trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(),
    }
}

/// Groups weights by block.
fn rows(weights: impl Iterator<Item = (usize, String)>) -> Vec<(String, Vec<usize>)> {
    let mut rows: Vec<(String, Vec<usize>)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for (weight, block) in weights {
        let at = *known.entry(block.clone()).or_insert(rows.len());
        if at == rows.len() {
            rows.push((block, Vec::new()));
        }
        rows[at].1.push(weight);
    }
    let chunks = |(block, weights): (String, Vec<usize>)| {
        weights.chunks(ROW).map(|chunk| (block.clone(), chunk.to_vec())).collect::<Vec<_>>()
    };
    rows.into_iter().flat_map(chunks).collect()
}

impl Stack {
    fn new(mut places: Vec<WeightPlace>) -> Self {
        if places.iter().map(|place| &place.kind).collect::<HashSet<_>>().len() > MOST_KINDS {
            for part in places.iter_mut().flat_map(|place| &mut place.kind) {
                *part = without_number(part);
            }
        }
        let numbers: BTreeSet<u64> = places.iter().map(|place| place.layer).collect();
        let layers: Vec<u64> = numbers.into_iter().collect();
        let name = places[0].stack.clone();
        let mut kinds: Vec<(String, Vec<Vec<usize>>)> = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        for place in places {
            let kind = place.kind.join(".");
            let at = *known.entry(kind.clone()).or_insert(kinds.len());
            if at == kinds.len() {
                kinds.push((kind, vec![Vec::new(); layers.len()]));
            }
            let column = layers.partition_point(|layer| *layer < place.layer);
            kinds[at].1[column].push(place.weight);
        }
        kinds.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)));
        Self { name, layers, kinds }
    }
}

/// Returns what kinds are sorted by: attention first, then the other modules, then norms; within a module the order in
/// which data takes its way. Unknown ones keep their order.
fn rank(kind: &str) -> (usize, &str, usize) {
    const ATTENTION: [&str; 2] = ["attn", "attention"];
    const ORDER: [&str; 9] = ["qkv", "q_", "k_", "v_", "kv_", "o_", "gate", "up", "down"];
    let (module, own) = kind.rsplit_once('.').unwrap_or(("", kind));
    let group = match () {
        () if module.is_empty() && own.contains("norm") => 2,
        () if ATTENTION.iter().any(|word| kind.contains(word)) => 0,
        () => 1,
    };
    let own = own.trim_start_matches("attn_").trim_start_matches("ffn_");
    let place = ORDER.iter().position(|word| own.starts_with(word) || own == word.trim_end_matches('_'));
    (group, module, place.unwrap_or(ORDER.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of a map: stack, layers, kinds with the number of weights in each layer; then the others.
    fn drawn(names: &[&str]) -> Vec<String> {
        let layout = MapLayout::of(names.iter().copied());
        let mut lines = Vec::new();
        for stack in &layout.stacks {
            lines.push(format!("{} {:?}", stack.name, stack.layers));
            for (kind, cells) in &stack.kinds {
                lines.push(format!("  {kind} {:?}", cells.iter().map(Vec::len).collect::<Vec<_>>()));
            }
        }
        lines.extend(layout.others.iter().map(|(block, weights)| format!("{block}: {}", weights.len())));
        lines
    }

    #[test]
    fn kinds_go_down_in_the_order_of_a_layer() {
        let names = ["mlp.down_proj", "mlp.up_proj", "self_attn.o_proj", "self_attn.q_proj", "input_norm"];
        let names: Vec<String> =
            [10, 2].iter().flat_map(|layer| names.map(|name| format!("model.layers.{layer}.{name}.weight"))).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.extend(["lm_head.weight", "model.embed_tokens.weight", "blk.7.ffn_up.weight", "blk.7.attn_q.weight"]);
        let expected = [
            "model.layers [2, 10]",
            "  self_attn.q_proj [1, 1]",
            "  self_attn.o_proj [1, 1]",
            "  mlp.up_proj [1, 1]",
            "  mlp.down_proj [1, 1]",
            "  input_norm [1, 1]",
            "blk [7]",
            "  attn_q [1]",
            "  ffn_up [1]",
            "lm_head: 1",
            "model.embed_tokens: 1",
        ];
        assert_eq!(drawn(&names), expected);
    }

    #[test]
    fn experts_share_a_cell_and_other_numbers_do_not() {
        let names = [
            "layers.3.mlp.experts.0.up_proj.weight",
            "layers.3.mlp.experts.17.up_proj.weight",
            "layers.3.mlp.expert_5.wo.weight",
            "layers.3.mlp.0.weight",
            "layers.3.mlp.2.weight",
        ];
        let expected =
            ["layers [3]", "  mlp.0 [1]", "  mlp.2 [1]", "  mlp.expert_*.wo [1]", "  mlp.experts.*.up_proj [2]"];
        assert_eq!(drawn(&names), expected);
        let many: Vec<String> = (0..60).map(|at| format!("down_blocks.1.attentions.{at}.to_q.weight")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(drawn(&many), ["down_blocks [1]", "  attentions.*.to_q [60]"]);
    }

    #[test]
    fn names_without_a_layer_are_grouped_by_block() {
        let names =
            ["encoder.q.weight", "encoder.k.weight", "onnx::MatMul_12", "onnx::MatMul_7", "features.0.weight", ""];
        assert_eq!(drawn(&names), ["encoder: 2", "onnx::MatMul_: 2", "features.0: 1", ": 1"]);
        assert_eq!(drawn(&["encoder/layers_1/mlp/kernel"]), ["encoder.layers [1]", "  mlp.kernel [1]"]);
        assert_eq!(drawn(&["layers_1/mlp/kernel"]), ["layers [1]", "  mlp.kernel [1]"]);
        assert_eq!(
            drawn(&["model_1/dense/MatMul", "model_1/conv/Conv2D"]),
            ["model_1.dense.MatMul: 1", "model_1.conv.Conv2D: 1"]
        );
        let stacks: Vec<String> = (0..40).map(|at| format!("part{at}.0.fc.weight")).collect();
        let stacks: Vec<&str> = stacks.iter().map(String::as_str).collect();
        assert_eq!(drawn(&stacks).len(), 40, "none of them is larger than the others");
    }
}
