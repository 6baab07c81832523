//! Mixes: the weights that get more bits than the others, in language models and in diffusion models.
//!
//! Sources: `llama_tensor_get_type_impl` (llama.cpp, `src/llama-quant.cpp`, ggml 0.26.0) and `img_tensor_get_type`
//! (`ComfyUI-GGUF` 795e4515, `tools/lcpp.patch`).

use super::{Q4_K, Q5_K, Q6_K};
use crate::blocks::BlockFormat;

/// The exceptions of a mix.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::quant) struct Mix {
    /// `attn_v`, `attn_qkv` and `attn_kv_b`.
    pub(super) value: Exceptions,
    /// `ffn_down`.
    pub(super) down: Exceptions,
    /// `ffn_down` of Falcon.
    pub(super) down_of_falcon: Exceptions,
    /// `attn_output`.
    pub(super) attention: Option<&'static BlockFormat>,
    /// `attn_output` of Falcon.
    pub(super) attention_of_falcon: Option<&'static BlockFormat>,
    /// `attn_output` of models with 8 experts.
    pub(super) attention_of_eight: Option<&'static BlockFormat>,
    /// True if weights of the default type need importance weights.
    pub(super) needs_importance: bool,
    /// The exceptions in diffusion models; `None` if the mix is not for them.
    pub(super) diffusion: Option<DiffusionMix>,
}

/// The exceptions of a mix in diffusion models.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DiffusionMix {
    /// Values of the attention.
    pub(super) value: Exceptions,
    /// Fused queries, keys and values.
    pub(super) fused: Option<&'static BlockFormat>,
    /// Last layers of feed-forward networks.
    pub(super) down: Option<&'static BlockFormat>,
}

/// Types of some weights of a role. The first condition that holds counts; if none holds, the default type stays.
pub(super) type Exceptions = &'static [(When, &'static BlockFormat)];

/// A condition for a weight, by its position among the weights of its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// One of the first weights, up to this number.
    First(u64),
    /// One of the first weights, up to one part of this many.
    FirstPart(u64),
    /// In the first or last eighth, or the third of each three in between (`use_more_bits` of llama.cpp).
    MoreBits,
    /// Four or more query heads share a key head.
    GroupedHeads,
}

/// The position of a weight among the weights of its role.
#[derive(Clone, Copy, Default)]
pub(super) struct RolePosition {
    pub(super) index: u64,
    /// Number of weights, or of layers.
    pub(super) count: u64,
    /// Number of query heads that share a key head.
    pub(super) heads_per_key: u64,
}

impl When {
    fn holds(self, RolePosition { index, count, heads_per_key }: RolePosition) -> bool {
        match self {
            Self::Always => true,
            Self::First(number) => index < number,
            Self::FirstPart(parts) => index < count / parts,
            Self::MoreBits => {
                let eighth = count / 8;
                index < eighth || index >= 7 * count / 8 || (index - eighth) % 3 == 2
            }
            Self::GroupedHeads => heads_per_key >= 4,
        }
    }
}

/// Returns the type of the first exception that holds.
pub(super) fn exception(exceptions: Exceptions, position: RolePosition) -> Option<&'static BlockFormat> {
    exceptions.iter().find(|(when, _)| when.holds(position)).map(|(_, format)| *format)
}

use When::{Always, First, FirstPart, GroupedHeads, MoreBits};

/// No exceptions.
const NONE: Mix = Mix {
    value: &[],
    down: &[],
    down_of_falcon: &[],
    attention: None,
    attention_of_falcon: None,
    attention_of_eight: None,
    needs_importance: false,
    diffusion: Some(DiffusionMix { value: &[], fused: None, down: None }),
};

pub(in crate::quant) static Q2_K_S: Mix = Mix {
    value: &[(GroupedHeads, Q4_K)],
    down: &[(FirstPart(8), Q4_K)],
    down_of_falcon: &[(FirstPart(8), Q4_K)],
    needs_importance: true,
    diffusion: None,
    ..NONE
};

pub(in crate::quant) static Q3_K_S: Mix = Mix { attention_of_eight: Some(Q5_K), ..NONE };

pub(in crate::quant) static Q3_K_M: Mix = Mix {
    value: &[(First(2), Q5_K), (Always, Q4_K)],
    down: &[(FirstPart(16), Q5_K), (Always, Q4_K)],
    down_of_falcon: &[(FirstPart(16), Q5_K), (MoreBits, Q4_K)],
    attention: Some(Q4_K),
    attention_of_eight: Some(Q5_K),
    diffusion: Some(DiffusionMix { value: &[(First(2), Q5_K), (Always, Q4_K)], fused: Some(Q4_K), down: Some(Q4_K) }),
    ..NONE
};

pub(in crate::quant) static Q3_K_L: Mix = Mix {
    value: &[(Always, Q5_K)],
    down: &[(Always, Q5_K)],
    down_of_falcon: &[(Always, Q4_K)],
    attention: Some(Q5_K),
    attention_of_falcon: Some(Q4_K),
    diffusion: Some(DiffusionMix { value: &[(Always, Q5_K)], fused: Some(Q4_K), down: Some(Q5_K) }),
    ..NONE
};

pub(in crate::quant) static Q4_K_S: Mix = Mix {
    value: &[(First(4), Q5_K)],
    down: &[(FirstPart(8), Q5_K)],
    attention_of_eight: Some(Q5_K),
    diffusion: Some(DiffusionMix { value: &[(First(4), Q5_K)], fused: None, down: Some(Q5_K) }),
    ..NONE
};

pub(in crate::quant) static Q4_K_M: Mix = Mix {
    value: &[(MoreBits, Q6_K)],
    down: &[(MoreBits, Q6_K)],
    down_of_falcon: &[(FirstPart(16), Q6_K), (MoreBits, Q5_K)],
    attention_of_eight: Some(Q5_K),
    diffusion: Some(DiffusionMix { value: &[(Always, Q6_K)], fused: Some(Q5_K), down: Some(Q6_K) }),
    ..NONE
};

pub(in crate::quant) static Q5_K_S: Mix = NONE;

pub(in crate::quant) static Q5_K_M: Mix = Mix {
    value: &[(MoreBits, Q6_K)],
    down: &[(MoreBits, Q6_K)],
    down_of_falcon: &[(MoreBits, Q6_K)],
    diffusion: Some(DiffusionMix { value: &[(Always, Q6_K)], fused: Some(Q6_K), down: Some(Q6_K) }),
    ..NONE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bits_go_to_the_ends_and_to_every_third_weight_between() {
        let holds = |index, count| MoreBits.holds(RolePosition { index, count, ..RolePosition::default() });
        let more: Vec<u64> = (0..32).filter(|index| holds(*index, 32)).collect();
        assert_eq!(more, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        let more: Vec<u64> = (0..6).filter(|index| holds(*index, 6)).collect();
        assert_eq!(more, [2, 5]);
    }
}
