//! The diffusion models that `ComfyUI-GGUF` converts (city96/ComfyUI-GGUF 795e4515), and Qwen-Image, which it only loads.

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
    /// Starts of names. A model that has a name with each start can be of this architecture, if the user says so.
    starts: &'static [&'static str],
    /// Sets of names in the layout of Diffusers, which is refused. Of all sets that a model has, the largest counts.
    of_diffusers: &'static [&'static [&'static str]],
    /// Parts of the names of tensors that are left out.
    pub(super) dropped: &'static [&'static str],
    /// Parts of the names of tensors that are F32 if they are not quantized.
    pub(super) float32: &'static [&'static str],
    /// Parts of the names of tensors that are not quantized.
    pub(super) kept_parts: &'static [&'static str],
    /// Names of tensors that are not quantized.
    pub(super) kept_names: &'static [&'static str],
    /// Ends of the names of tensors, and the number of dimensions that are written even if the first of them are 1.
    pub(super) least_dimensions: &'static [(&'static str, usize)],
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
    /// It has the tensors of this architecture, and another one was named.
    Other(&'static Architecture),
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
        let mut found = ARCHITECTURES.iter().filter(|architecture| architecture.is_identified_by(names));
        match (found.next(), Self::of_diffusers(names)) {
            // The names of Qwen-Image are those of Diffusers.
            (Some(own), _) if own.of_diffusers.is_empty() => Ok(own),
            (_, Some(architecture)) => Err(Undetected::Diffusers(architecture)),
            (Some(architecture), None) => Ok(architecture),
            (None, None) => Err(Undetected::Unknown),
        }
    }

    /// Checks that a model can be of this architecture, which the user names.
    ///
    /// # Errors
    /// When it has the tensors of another architecture or the layout of Diffusers, or key tensors are missing.
    pub fn check(&'static self, names: &HashSet<&str>) -> Result<(), Undetected> {
        let has_start = |start: &&str| names.iter().any(|name| name.starts_with(start));
        let is_possible = self.is_identified_by(names) || !self.starts.is_empty() && self.starts.iter().all(has_start);
        match Self::detect(names) {
            Err(Undetected::Diffusers(architecture)) => Err(Undetected::Diffusers(architecture)),
            _ if is_possible => Ok(()),
            Ok(other) => Err(Undetected::Other(other)),
            Err(why) => Err(why),
        }
    }

    /// Returns names that identify a model of this architecture.
    pub fn key_names(&self) -> &'static [&'static str] {
        self.sets[0]
    }

    fn is_identified_by(&self, names: &HashSet<&str>) -> bool {
        has_a_set(self.sets, names).is_some()
    }

    /// Returns the architecture of a model in the layout of Diffusers.
    fn of_diffusers(names: &HashSet<&str>) -> Option<&'static Self> {
        let found = ARCHITECTURES.iter().filter_map(|row| Some((has_a_set(row.of_diffusers, names)?, row)));
        found.reduce(|first, other| if other.0 > first.0 { other } else { first }).map(|(_, row)| row)
    }
}

/// Returns the size of the largest set whose names a model has.
fn has_a_set(sets: &[&[&str]], names: &HashSet<&str>) -> Option<usize> {
    let has_all = |set: &&&[&str]| set.iter().all(|name| names.contains(name));
    sets.iter().filter(has_all).map(|set| set.len()).max()
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
    starts: &[],
    of_diffusers: &[],
    dropped: &[],
    float32: &[],
    kept_parts: &[],
    kept_names: &[],
    least_dimensions: &[],
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
        starts: &["double_blocks.0.img_attn.", "single_blocks.0."],
        of_diffusers: &[&["transformer_blocks.0.attn.norm_added_k.weight"]],
        kept_parts: KEPT_IN_FLUX,
        ..PLAIN
    },
    Architecture {
        name: "sd3",
        sets: &[&["joint_blocks.0.x_block.attn.qkv.weight"]],
        starts: &["joint_blocks.0.x_block.attn.", "joint_blocks.0.context_block."],
        of_diffusers: &[
            &["transformer_blocks.0.attn.add_q_proj.weight"],
            &["transformer_blocks.0.attn.add_q_proj.weight", "pos_embed.proj.weight"],
        ],
        kept_parts: &[
            "final_layer.",
            "time_text_embed.",
            "context_embedder.",
            "t_embedder.",
            "y_embedder.",
            "x_embedder.",
        ],
        kept_names: &["proj_out.weight", "pos_embed"],
        least_dimensions: &[("pos_embed", 3)],
        ..PLAIN
    },
    Architecture {
        name: "aura",
        sets: &[&["double_layers.3.modX.1.weight"]],
        starts: &["double_layers.0.", "single_layers.0."],
        of_diffusers: &[&["joint_transformer_blocks.3.ff_context.out_projection.weight"]],
        kept_parts: &["t_embedder.", "init_x_linear."],
        kept_names: &[
            "modF.1.weight",
            "cond_seq_linear.weight",
            "final_linear.weight",
            "positional_encoding",
            "register_tokens",
        ],
        least_dimensions: &[("positional_encoding", 3), ("register_tokens", 3)],
        ..PLAIN
    },
    Architecture {
        name: "hidream",
        sets: &[&["caption_projection.0.linear.weight", "double_stream_blocks.0.block.ff_i.shared_experts.w3.weight"]],
        starts: &["caption_projection.0.", "double_stream_blocks.0.block."],
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
        starts: &["blocks.0.mlp.layer1.", "blocks.0.adaln_modulation_"],
        of_diffusers: &[&["time_embed.t_embedder.linear_1.weight", "transformer_blocks.0.norm1.linear_1.weight"]],
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
        sets: &[
            &[
                "adaln_single.emb.timestep_embedder.linear_2.weight",
                "transformer_blocks.27.scale_shift_table",
                "caption_projection.linear_2.weight",
            ],
            // LTX-2 makes sound too. From 2.3 on, it has no caption projection.
            &["adaln_single.emb.timestep_embedder.linear_2.weight", "audio_adaln_single.linear.weight"],
        ],
        starts: &["adaln_single.linear.", "transformer_blocks.0.attn1."],
        of_diffusers: &[&[
            "time_embed.emb.timestep_embedder.linear_1.weight",
            "transformer_blocks.0.attn1.norm_q.weight",
        ]],
        float32: &["scale_shift_table", "learnable_registers"],
        kept_parts: &["adaln_single.", "caption_projection.", "patchify_proj.", "proj_out.", "scale_shift_table"],
        ..PLAIN
    },
    Architecture {
        name: "hyvid",
        sets: &[&[
            "double_blocks.0.img_attn_proj.weight",
            "txt_in.individual_token_refiner.blocks.1.self_attn_qkv.weight",
        ]],
        starts: &["double_blocks.0.img_attn", "txt_in.individual_token_refiner."],
        of_diffusers: &[&["transformer_blocks.0.attn.norm_added_k.weight", "context_embedder.proj_in.weight"]],
        kept_parts: KEPT_IN_FLUX,
        has_five_dimensions: true,
        ..PLAIN
    },
    Architecture {
        name: "wan",
        sets: &[&["blocks.0.self_attn.norm_q.weight", "text_embedding.2.weight", "head.modulation"]],
        starts: &["blocks.0.self_attn.", "text_embedding.", "head."],
        of_diffusers: &[
            &["blocks.0.attn1.to_q.weight"],
            &["blocks.0.attn1.norm_q.weight"],
            &["condition_embedder.text_embedder.linear_1.weight"],
        ],
        float32: &[".modulation", "padding_tokens"],
        kept_parts: &[
            "modulation.",
            "patch_embedding.",
            "text_embedding.",
            "time_projection.",
            "time_embedding.",
            "img_emb.",
            "head.",
        ],
        least_dimensions: &[
            (".modulation", 3),
            ("img_emb.emb_pos", 3),
            ("padding_tokens", 4),
            ("casual_audio_encoder.weights", 4),
        ],
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
        starts: &["input_blocks.0.0.", "label_emb.0.0."],
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
        starts: &["input_blocks.0.0.", "middle_block.", "output_blocks.0."],
        ..STABLE_DIFFUSION
    },
    Architecture {
        name: "lumina2",
        sets: &[&["cap_embedder.1.weight", "context_refiner.0.attention.qkv.weight"]],
        starts: &["cap_embedder.", "context_refiner.0.attention.qkv."],
        of_diffusers: &[
            &["time_caption_embed.caption_embedder.1.weight"],
            &["context_refiner.0.attention.to_q.weight"],
            &["context_refiner.0.attn.to_q.weight"],
        ],
        // Z-Image pads sequences with these tokens.
        float32: &["_pad_token"],
        kept_parts: &[
            "t_embedder.",
            "x_embedder.",
            "final_layer.",
            "cap_embedder.",
            "context_refiner.",
            "noise_refiner.",
        ],
        least_dimensions: &[("_pad_token", 2)],
        ..PLAIN
    },
    // ComfyUI-GGUF has no rules for its conversion: weights of all blocks are quantized, as in other architectures.
    Architecture {
        name: "qwen_image",
        sets: &[
            &["transformer_blocks.0.img_mod.1.weight"],
            &["txt_norm.weight", "transformer_blocks.0.attn.norm_added_k.weight"],
            &["txt_norm.weight", "transformer_blocks.0.attn.add_q_proj.weight"],
        ],
        starts: &["txt_norm.", "transformer_blocks.0."],
        kept_parts: &["img_in.", "txt_in.", "txt_norm.", "time_text_embed.", "norm_out.", "proj_out."],
        ..PLAIN
    },
];

#[cfg(test)]
mod tests;
