//! Adapters that were merged, in words.

use super::summary::WARNING;
use super::{DeltaTotals, Report};
use crate::lora::{AdapterSummary, MappedModule, changed};
use crate::text::{counted, path_text, shorten};
use std::fmt::Write as _;

impl Report {
    /// Describes the adapters, as lines that each follow a line feed.
    pub(super) fn merged(&self) -> String {
        let mut text = String::new();
        if self.adapters.is_empty() {
            return text;
        }
        let verb = if self.time.is_none() { "would merge" } else { "merged" };
        let (adapters, weights) =
            (counted(self.adapters.len() as u64, "adapter"), changed(&self.adapters, false) as u64);
        let _ = write!(text, "\n{verb} {adapters} into {}", counted(weights, "weight"));
        let replaced = changed(&self.adapters, true);
        if replaced > 0 {
            let _ = write!(text, ", replaced {replaced}");
        }
        if let Some(rounding) = self.rounding() {
            let _ = write!(text, ", rounding {rounding}");
        }
        for adapter in &self.adapters {
            let _ = write!(text, "\n  {}", path_text(&adapter.path));
            if adapter.strength.to_bits() != 1.0_f64.to_bits() {
                let _ = write!(text, "={}", adapter.strength);
            }
            let _ = write!(text, ": {} ({})", adapter.method, adapter.dialect);
            let range =
                |[least, most]: [f64; 2]| if least < most { format!("{least} to {most}") } else { least.to_string() };
            if let Some(rank) = adapter.rank() {
                let _ = write!(text, ", rank {}", range(rank.map(|rank| rank as f64)));
            }
            if let Some(scale) = adapter.scale() {
                let _ = write!(text, ", scale {}", range(scale));
            }
            let _ = write!(text, ", {}", counted(changed([adapter], false) as u64, "weight"));
        }
        text + &self.survival()
    }

    /// Returns how values are rounded, unless to nearest.
    fn rounding(&self) -> Option<&str> {
        self.options.0.get("rounding")?.as_str()
    }

    /// Describes how much of the deltas is left in what was written.
    fn survival(&self) -> String {
        /// Below these figures, little of a fine-tune may be left.
        const LEAST: [f64; 2] = [0.9, 6.0];
        let Some(DeltaTotals { kept, delta_snr: snr }) = self.delta_totals() else { return String::new() };
        let mut text = format!("\n  kept {kept:.2} of the delta");
        if let Some(snr) = snr {
            let _ = write!(text, ", delta SNR {snr:.1} dB");
        }
        let measured = self.tensors().filter_map(|tensor| Some((tensor, tensor.delta.as_deref()?)));
        if let Some((least, figures)) = measured.min_by(|a, b| a.1.kept.total_cmp(&b.1.kept)) {
            let (name, share) = (shorten(&least.name), 100.0 * figures.delta_norm);
            let _ = write!(text, "; the least: {:.2}, {name} (|delta| is {share:.2} % of |weight|)", figures.kept);
        }
        if kept < LEAST[0] || snr.is_some_and(|snr| snr < LEAST[1]) {
            // Rounding at random adds noise: it helps only where rounding to nearest swallows the delta.
            let is_swallowed = kept < LEAST[0] && self.rounding().is_none();
            let random = if is_swallowed { ", and so does stochastic rounding" } else { "" };
            let _ = write!(
                text,
                "\n  {WARNING}little of the delta may be left{WARNING:#}: a wider type, a finer scheme or an \
                 unquantized model as the base keeps more{random}"
            );
        }
        text
    }
}

/// Lists what adapters change, a line for each module and weight.
pub(crate) fn mapping<'a>(adapters: impl IntoIterator<Item = &'a AdapterSummary>) -> String {
    let line = |module: &MappedModule| {
        let rank = module.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
        let what = module.scale.map_or_else(|| "replaces it".to_owned(), |scale| format!("{rank}scale {scale}"));
        format!("{} -> {}  {what}\n", shorten(&module.module), shorten(&module.weight))
    };
    adapters.into_iter().flat_map(|adapter| &adapter.mapping).map(line).collect()
}
