//! The diffusion models that `ComfyUI-GGUF` converts (city96/ComfyUI-GGUF 795e4515).

use std::collections::HashSet;

/// A kind of diffusion model: the tensors that identify it, and its exceptions from the rules.
///
/// `tools/convert.py` detects models and chooses the types of unquantized tensors. `tools/lcpp.patch`, which changes
/// llama-quantize, excludes tensors from quantization. Names are those without a prefix.
#[derive(Debug)]
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Sets of names. A model that has all names of a set is of this architecture.
    sets: &'static [&'static [&'static str]],
    /// The name that a model has in the layout of Diffusers, which is refused.
    of_diffusers: Option<&'static str>,
    /// Parts of the names of tensors that are left out.
    pub(super) dropped: &'static [&'static str],
    /// Parts of the names of tensors that are F32 if they are not quantized.
    pub(super) float32: &'static [&'static str],
    /// Parts of the names of tensors that are not quantized.
    pub(super) kept_parts: &'static [&'static str],
    /// Names of tensors that are not quantized.
    pub(super) kept_names: &'static [&'static str],
    /// Ends of the names of tensors whose three dimensions are written even if the first is 1.
    pub(super) three_dimensions: &'static [&'static str],
    /// True if rows that are no whole blocks of 256 are stored as rows of 256.
    pub(super) is_reshaped: bool,
    /// True if tensors can have five dimensions.
    pub has_five_dimensions: bool,
}

/// The reason why a model has no known architecture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Undetected {
    /// No row of the table describes it.
    Unknown,
    /// It has the tensors of Diffusers, which other programs join and rename for this architecture.
    Diffusers(&'static Architecture),
}

impl Architecture {
    /// Finds an architecture by its name in files.
    pub fn find(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|architecture| architecture.name == name)
    }

    /// The names of all architectures.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ARCHITECTURES.iter().map(|architecture| architecture.name)
    }

    /// Returns the first architecture whose tensors a model has.
    ///
    /// # Errors
    /// When there is none, or the model has the layout of Diffusers.
    pub fn detect(names: &HashSet<&str>) -> Result<&'static Self, Undetected> {
        let has = |name: &&str| names.contains(name);
        for architecture in ARCHITECTURES {
            if architecture.of_diffusers.as_ref().is_some_and(has) {
                return Err(Undetected::Diffusers(architecture));
            }
            if architecture.sets.iter().any(|set| set.iter().all(has)) {
                return Ok(architecture);
            }
        }
        Err(Undetected::Unknown)
    }
}

/// Two architectures are equal if they are the same row.
impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// An architecture without exceptions.
const PLAIN: Architecture = Architecture {
    name: "",
    sets: &[],
    of_diffusers: None,
    dropped: &[],
    float32: &[],
    kept_parts: &[],
    kept_names: &[],
    three_dimensions: &[],
    is_reshaped: false,
    has_five_dimensions: false,
};

/// Parts of names that Flux and `HunyuanVideo` share.
const KEPT_IN_FLUX: &[&str] = &["txt_in.", "img_in.", "time_in.", "vector_in.", "guidance_in.", "final_layer."];

/// The exceptions of Stable Diffusion 1 and XL.
const STABLE_DIFFUSION: Architecture = Architecture {
    kept_parts: &[
        "class_embedding.",
        "time_embedding.",
        "add_embedding.",
        "time_embed.",
        "label_emb.",
        "conv_in.",
        "conv_out.",
    ],
    kept_names: &["input_blocks.0.0.weight", "out.2.weight"],
    is_reshaped: true,
    ..PLAIN
};

/// All architectures, in the order in which they are detected: XL before 1, which shares names with it.
pub(super) static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "flux",
        sets: &[&["double_blocks.0.img_attn.proj.weight"]],
        of_diffusers: Some("transformer_blocks.0.attn.norm_added_k.weight"),
        kept_parts: KEPT_IN_FLUX,
        ..PLAIN
    },
    Architecture {
        name: "sd3",
        sets: &[&["joint_blocks.0.x_block.attn.qkv.weight"]],
        of_diffusers: Some("transformer_blocks.0.attn.add_q_proj.weight"),
        kept_parts: &[
            "final_layer.",
            "time_text_embed.",
            "context_embedder.",
            "t_embedder.",
            "y_embedder.",
            "x_embedder.",
        ],
        kept_names: &["proj_out.weight", "pos_embed"],
        three_dimensions: &["pos_embed"],
        ..PLAIN
    },
    Architecture {
        name: "aura",
        sets: &[&["double_layers.3.modX.1.weight"]],
        of_diffusers: Some("joint_transformer_blocks.3.ff_context.out_projection.weight"),
        kept_parts: &["t_embedder.", "init_x_linear."],
        kept_names: &[
            "modF.1.weight",
            "cond_seq_linear.weight",
            "final_linear.weight",
            "positional_encoding",
            "register_tokens",
        ],
        three_dimensions: &["positional_encoding", "register_tokens"],
        ..PLAIN
    },
    Architecture {
        name: "hidream",
        sets: &[&["caption_projection.0.linear.weight", "double_stream_blocks.0.block.ff_i.shared_experts.w3.weight"]],
        float32: &[".ff_i.gate.weight", "img_emb.emb_pos"],
        kept_parts: &[
            "p_embedder.",
            "t_embedder.",
            "x_embedder.",
            "final_layer.",
            ".ff_i.gate.weight",
            "caption_projection.",
        ],
        ..PLAIN
    },
    Architecture {
        name: "cosmos",
        sets: &[&["blocks.0.mlp.layer1.weight", "blocks.0.adaln_modulation_cross_attn.1.weight"]],
        dropped: &["_extra_state", "accum_"],
        float32: &["pos_embedder"],
        kept_parts: &[
            "p_embedder.",
            "t_embedder.",
            "t_embedding_norm.",
            "x_embedder.",
            "pos_embedder.",
            "final_layer.",
        ],
        ..PLAIN
    },
    Architecture {
        name: "ltxv",
        sets: &[&[
            "adaln_single.emb.timestep_embedder.linear_2.weight",
            "transformer_blocks.27.scale_shift_table",
            "caption_projection.linear_2.weight",
        ]],
        float32: &["scale_shift_table"],
        kept_parts: &["adaln_single.", "caption_projection.", "patchify_proj.", "proj_out.", "scale_shift_table"],
        ..PLAIN
    },
    Architecture {
        name: "hyvid",
        sets: &[&[
            "double_blocks.0.img_attn_proj.weight",
            "txt_in.individual_token_refiner.blocks.1.self_attn_qkv.weight",
        ]],
        kept_parts: KEPT_IN_FLUX,
        has_five_dimensions: true,
        ..PLAIN
    },
    Architecture {
        name: "wan",
        sets: &[&["blocks.0.self_attn.norm_q.weight", "text_embedding.2.weight", "head.modulation"]],
        float32: &[".modulation"],
        kept_parts: &[
            "modulation.",
            "patch_embedding.",
            "text_embedding.",
            "time_projection.",
            "time_embedding.",
            "img_emb.",
            "head.",
        ],
        three_dimensions: &[".modulation", "img_emb.emb_pos"],
        has_five_dimensions: true,
        ..PLAIN
    },
    Architecture {
        name: "sdxl",
        sets: &[
            &["down_blocks.0.downsamplers.0.conv.weight", "add_embedding.linear_1.weight"],
            &[
                "input_blocks.3.0.op.weight",
                "input_blocks.6.0.op.weight",
                "output_blocks.2.2.conv.weight",
                "output_blocks.5.2.conv.weight",
            ],
            &["label_emb.0.0.weight"],
        ],
        ..STABLE_DIFFUSION
    },
    Architecture {
        name: "sd1",
        sets: &[
            &["down_blocks.0.downsamplers.0.conv.weight"],
            &[
                "input_blocks.3.0.op.weight",
                "input_blocks.6.0.op.weight",
                "input_blocks.9.0.op.weight",
                "output_blocks.2.1.conv.weight",
                "output_blocks.5.2.conv.weight",
                "output_blocks.8.2.conv.weight",
            ],
        ],
        ..STABLE_DIFFUSION
    },
    Architecture {
        name: "lumina2",
        sets: &[&["cap_embedder.1.weight", "context_refiner.0.attention.qkv.weight"]],
        kept_parts: &[
            "t_embedder.",
            "x_embedder.",
            "final_layer.",
            "cap_embedder.",
            "context_refiner.",
            "noise_refiner.",
        ],
        ..PLAIN
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_names_identifies_its_architecture_and_needs_all_of_them() {
        for architecture in ARCHITECTURES {
            for set in architecture.sets {
                let mut names: HashSet<&str> = set.iter().copied().collect();
                assert_eq!(Architecture::detect(&names), Ok(architecture), "{set:?}");
                names.remove(set[0]);
                assert_ne!(Architecture::detect(&names), Ok(architecture), "{set:?}");
            }
        }
    }

    #[test]
    fn the_first_architecture_counts() {
        let names = HashSet::from(["down_blocks.0.downsamplers.0.conv.weight", "label_emb.0.0.weight"]);
        assert_eq!(Architecture::detect(&names).unwrap().name, "sdxl");
        let names = HashSet::from(["down_blocks.0.downsamplers.0.conv.weight", "conv_in.weight"]);
        assert_eq!(Architecture::detect(&names).unwrap().name, "sd1");
    }

    #[test]
    fn a_model_in_the_layout_of_diffusers_is_refused_even_if_it_has_other_tensors() {
        for architecture in ARCHITECTURES {
            let Some(name) = architecture.of_diffusers else { continue };
            for names in [HashSet::from([name]), HashSet::from([name, architecture.sets[0][0]])] {
                assert_eq!(Architecture::detect(&names), Err(Undetected::Diffusers(architecture)));
            }
        }
        assert_eq!(Architecture::detect(&HashSet::from(["model.embed_tokens.weight"])), Err(Undetected::Unknown));
    }

    #[test]
    fn an_architecture_is_found_by_its_name() {
        assert_eq!(Architecture::find("wan").unwrap().name, "wan");
        assert!(Architecture::find("qwen_image").is_none(), "only the loader knows it");
    }
}
