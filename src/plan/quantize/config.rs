//! The config that describes the result to engines.

use super::planner::{Planner, WeightCandidates};
use crate::container::checkpoint::MlxStacks;
use crate::error::Result;
use crate::quant::{EngineConfig, KeptModules, QuantizedGroup, Scheme, SchemeLayout, is_composite};
use crate::select::KeptReason;
use crate::select::experts::{bank_of, unsplit_bank};
use crate::select::heads::is_head;
use crate::select::policy::{module_of, shared_block};

impl Planner<'_, '_> {
    /// Lists the quantized groups, and the kept modules. `stacks` has the form of the stacks of experts in MLX.
    pub(super) fn config(
        &self,
        candidates: &WeightCandidates,
        stacks: Option<&'static MlxStacks>,
    ) -> Result<EngineConfig> {
        let mut groups: Vec<QuantizedGroup> = Vec::new();
        let mut kept = KeptModules { stacks, ..KeptModules::default() };
        for weight in &candidates.weights {
            let name = self.new_name(&weight.name);
            match &weight.decision {
                Ok(target) => {
                    let module = module_of(name).unwrap_or(name);
                    let SchemeLayout { row: layout, grid, .. } = target.layout;
                    let same = |group: &QuantizedGroup| group.layout == layout && group.grid == grid;
                    let at = groups.iter().position(same).unwrap_or_else(|| {
                        let (modules, unlike_linear) = (Vec::new(), Vec::new());
                        let has_input_scale = layout.global.is_global() && self.encoding().input_global_scale.is_some();
                        let preset = Scheme::preset(layout, grid, has_input_scale);
                        groups.push(QuantizedGroup { layout, grid, has_input_scale, preset, modules, unlike_linear });
                        groups.len() - 1
                    });
                    groups[at].modules.push(module);
                    if let Some(KeptReason::Head | KeptReason::Embedding) = self.reason(&weight.name, false) {
                        groups[at].unlike_linear.push(module);
                    }
                }
                Err(_) if weight.shape.len() == 2 => kept.modules.extend(module_of(name)),
                Err(_) => match unsplit_bank(name) {
                    Some(bank) => {
                        kept.modules.extend(module_of(name));
                        kept.banks.push(bank.into());
                    }
                    None => kept.banks.extend(bank_of(name).map(|(bank, _)| bank.into())),
                },
            }
        }
        let stored = kept.modules.iter().chain(groups.iter().flat_map(|group| &group.modules));
        let is_stored = |head: &&str| stored.clone().any(|module| is_head(&[head], module));
        let tied: Vec<&str> = self.facts.heads().iter().copied().filter(|head| !is_stored(head)).collect();
        let quantized = || groups.iter().flat_map(|group| &group.modules).filter_map(|module| shared_block(module));
        let blocks = kept.modules.iter().filter_map(|module| shared_block(module));
        kept.blocks = blocks.filter(|block| !quantized().any(|other| other == *block)).collect();
        let others: Vec<String> = kept.modules.iter().filter_map(|module| self.facts.other_name(module)).collect();
        kept.modules.extend(tied.into_iter().chain(others.iter().map(String::as_str)));
        kept.is_composite = self.model.config()?.is_some_and(is_composite);
        EngineConfig::new(&groups, &kept)
    }
}
