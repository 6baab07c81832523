use super::super::{Q2_K, Q4_K};
use super::*;
use crate::quant::SCHEMES;

fn architecture(name: &str) -> &'static Architecture {
    Architecture::find(name).unwrap()
}

/// Returns the types that weights of one shape get in a scheme, joined.
fn types(model: &str, scheme: &str, names: &[&str]) -> String {
    let tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (*name, &[64, 512][..])).collect();
    let choices = architecture(model).choose(GgufScheme::find(scheme).unwrap(), &tensors).unwrap();
    choices.into_iter().map(|choice| choice.format().map_or("-", |format| format.name)).collect::<Vec<_>>().join(" ")
}

#[test]
fn mixes_choose_by_the_names_of_weights() {
    let names = [
        "blocks.0.self_attn.v.weight",
        "blocks.0.attn.qkv.weight",
        "blocks.0.ffn.2.weight",
        "blocks.0.ffn.0.weight",
        "blocks.1.self_attn.v.weight",
        "experts.0.w2.weight",
        "shared.w2.weight",
        "blocks.2.self_attn.v.weight",
        "blocks.3.attn1.to_v.weight",
        "blocks.4.attn1.to_v.weight",
    ];
    let cases = [
        ("q3_k_s", "Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K"),
        ("q3_k_m", "Q5_K Q4_K Q4_K Q3_K Q5_K Q4_K Q3_K Q4_K Q4_K Q4_K"),
        ("q3_k_l", "Q5_K Q4_K Q5_K Q3_K Q5_K Q5_K Q3_K Q5_K Q5_K Q5_K"),
        ("q4_k_s", "Q5_K Q4_K Q5_K Q4_K Q5_K Q5_K Q4_K Q5_K Q5_K Q4_K"),
        ("q4_k_m", "Q6_K Q5_K Q6_K Q4_K Q6_K Q6_K Q4_K Q6_K Q6_K Q6_K"),
        ("q5_k_s", "Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K"),
        ("q5_k_m", "Q6_K Q6_K Q6_K Q5_K Q6_K Q6_K Q5_K Q6_K Q6_K Q6_K"),
    ];
    for (scheme, expected) in cases {
        assert_eq!(types("wan", scheme, &names), expected, "{scheme}");
    }
}

#[test]
fn pure_schemes_have_no_exceptions() {
    for scheme in ["q2_k", "q4_0", "q5_0", "mxfp4"] {
        let found = types("flux", scheme, &["a.to_v.weight", "a.attn.qkv.weight", "a.ff.net.2.weight"]);
        assert_eq!(found, [&*scheme.to_uppercase(); 3].join(" "));
    }
}

#[test]
fn schemes_that_the_tools_refuse_are_refused() {
    let refused = |refusal| {
        let is_refused = |scheme: &&GgufScheme| DiffusionRefusal::of(scheme) == Some(refusal);
        let schemes = SCHEMES.iter().filter_map(|scheme| scheme.gguf.as_ref());
        schemes.filter(is_refused).map(|scheme| scheme.name).collect::<Vec<_>>()
    };
    assert_eq!(refused(DiffusionRefusal::IqType), ["iq4_nl", "iq4_xs"]);
    assert_eq!(refused(DiffusionRefusal::NeedsImportance), ["q2_k_s"]);
    let result = architecture("flux").choose(GgufScheme::find("iq4_xs").unwrap(), &[]);
    assert_eq!(result, Err(DiffusionRefusal::IqType));
}

#[test]
fn edges_vectors_and_convolutions_are_kept() {
    let kept = |model, name, shape: &[u64]| architecture(model).keeping_rule(name, shape);
    assert_eq!(kept("flux", "double_blocks.0.img_mod.lin.weight", &[64, 256]), None);
    assert_eq!(kept("flux", "double_blocks.0.img_mod.lin.bias", &[64, 256]), Some(KeptRule::NotAWeight));
    assert_eq!(kept("flux", "txt_in.weight", &[64, 256]), Some(KeptRule::Name("txt_in.")));
    assert_eq!(kept("sd1", "txt_in.weight", &[64, 256]), None);
    assert_eq!(kept("sd1", "out.2.weight", &[64, 256]), Some(KeptRule::Name("out.2.weight")));
    assert_eq!(kept("sd1", "output_blocks.out.2.weight", &[64, 256]), None);
    assert_eq!(kept("sd1", "a_norm.weight", &[64, 256]), Some(KeptRule::Name("_norm.weight")));
    for shape in [&[256][..], &[1, 256], &[4, 3, 256], &[4, 3, 3, 3], &[1, 1, 1, 64, 256]] {
        assert_eq!(kept("wan", "a.weight", shape), Some(KeptRule::Dimensions), "{shape:?}");
    }
    assert_eq!(kept("wan", "a.weight", &[1, 64, 256]), None);
}

#[test]
fn rows_that_do_not_fit_become_f16() {
    let tensors: [(&str, &[u64]); 1] = [("a.weight", &[64, 320])];
    let choices = architecture("flux").choose(GgufScheme::find("q4_k_s").unwrap(), &tensors).unwrap();
    assert_eq!(choices, [TypeChoice::Fallback { wanted: Q4_K, format: F16 }]);
    assert_eq!(fit(Q2_K, 512), TypeChoice::Wanted(Q2_K));
}

#[test]
fn small_tensors_are_f32_unless_they_were_float16() {
    let name = |name, shape: &[u64], source| architecture("wan").unquantized(name, shape, source).name;
    for (source, large, small) in [
        (Dtype::Float32, "F16", "F32"),
        (Dtype::Bfloat16, "BF16", "F32"),
        (Dtype::Float16, "F16", "F16"),
        (Dtype::Float8E4M3FN, "F16", "F16"),
    ] {
        assert_eq!(name("a.weight", &[33, 32], source), large);
        assert_eq!(name("a.weight", &[32, 32], source), small);
        assert_eq!(name("a.bias", &[4096], source), small);
        assert_eq!(name("head.modulation", &[1, 2, 5120], source), small);
        assert_eq!(name("patch_embedding.weight", &[5120, 16, 1, 2, 2], source), "F32");
    }
}

#[test]
fn convolutions_of_stable_diffusion_are_stored_in_rows_of_256() {
    let reshaped = |model, shape: &[u64]| architecture(model).reshaped(shape);
    assert_eq!(reshaped("sd1", &[320, 320, 3, 3]), Some([3600, 256]));
    assert_eq!(reshaped("sdxl", &[2, 256]), None);
    assert_eq!(reshaped("sdxl", &[512]), None);
    assert_eq!(reshaped("sdxl", &[16, 16]), None, "fewer than 512 elements");
    assert_eq!(reshaped("sdxl", &[32, 16]), Some([2, 256]));
    assert_eq!(reshaped("sdxl", &[33, 16]), None, "no whole rows");
    assert_eq!(reshaped("flux", &[320, 320, 3, 3]), None);
}

#[test]
fn a_leading_dimension_of_1_stays_where_models_need_it() {
    let shape = |model, name, shape| architecture(model).table_shape(name, shape);
    assert_eq!(shape("sd3", "pos_embed", &[1, 36864, 1536]), [1, 36864, 1536]);
    assert_eq!(shape("sd3", "pos_embed.weight", &[1, 36864, 1536]), [36864, 1536]);
    assert_eq!(shape("wan", "blocks.0.modulation", &[1, 6, 5120]), [1, 6, 5120]);
    assert_eq!(shape("flux", "blocks.0.modulation", &[1, 6, 5120]), [6, 5120]);
    assert_eq!(shape("wan", "patch_embedding.weight", &[1, 16, 1, 2, 2]), [1, 16, 1, 2, 2]);
}

#[test]
fn prefixes_are_removed_everywhere_and_other_tensors_are_left_out() {
    assert_eq!(prefix_of(&["vae.a", "model.diffusion_model.a", "model.b"]), Some("model.diffusion_model."));
    assert_eq!(prefix_of(&["vae.a", "model.b"]), Some("model."));
    assert_eq!(prefix_of(&["net.a", "net.b"]), Some("net."));
    assert_eq!(prefix_of(&["net.a", "b"]), None);
    assert_eq!(without_prefix("model.a.model.b", "model.").as_deref(), Some("a.b"));
    assert_eq!(without_prefix("vae.a", "model."), None);
}

#[test]
fn tensors_of_cosmos_that_no_program_reads_are_left_out() {
    let cosmos = architecture("cosmos");
    assert!(cosmos.drops("blocks.0.attn._extra_state") && cosmos.drops("accum_iteration") && !cosmos.drops("a.weight"));
    assert!(!architecture("wan").drops("accum_iteration"));
}

#[test]
fn names_of_other_layouts_are_refused() {
    assert_eq!(refused_part("first_stage_model.a.weight"), Some("first_stage_model."));
    assert_eq!(refused_part("single_blocks.0.weight"), None);
}

#[test]
fn a_tensor_with_five_dimensions_follows_its_bias_or_comes_last() {
    let five = &[8, 4, 1, 2, 2][..];
    let tensors = [
        ("lost.weight", five),
        ("patch_embedding.weight", five),
        ("a.weight", &[8, 8]),
        ("patch_embedding.bias", &[8]),
        ("z.weight", &[8, 8]),
    ];
    let names: Vec<&str> = file_order(&tensors).into_iter().map(|at| tensors[at].0).collect();
    assert_eq!(names, ["a.weight", "patch_embedding.bias", "patch_embedding.weight", "z.weight", "lost.weight"]);
}
