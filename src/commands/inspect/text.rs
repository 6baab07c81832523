//! The text that `tcast inspect` prints.

use super::row::InspectedTensor;
use super::{Listing, metadata, pickle};
use crate::container::checkpoint;
use crate::error::Result;
use crate::lora::AdapterDescription;
use crate::measure::distribution::{self, Histogram};
use crate::report;
use crate::text::{columns, counted, first_few, path_text, shorten, size, stdout_columns, visible};
use std::fmt::Write as _;

impl Listing<'_> {
    pub(super) fn text(&self) -> String {
        let entries = self.entries();
        let mut text = self.head(&entries);
        if let Some(adapter) = &self.adapter {
            text += &adapter_text(adapter);
        }
        let parts = |entry: &InspectedTensor| if self.args.parts { entry.parts() } else { Vec::new() };
        let rows = entries.iter().flat_map(|entry| std::iter::once(entry.cells()).chain(parts(entry)));
        text += &table(&rows.collect::<Vec<_>>());
        for error in self.unreadable() {
            let _ = writeln!(text, "  {error}");
        }
        text += &self.problems_text();
        if entries.len() > 1 {
            let rows = Self::totals(&entries).into_iter().map(|((dtype, layout), [tensors, elements, bytes])| {
                let tensors = counted(tensors, "tensor");
                [dtype, tensors, counted(elements, "element"), size(bytes), layout.unwrap_or_default().to_owned()]
            });
            text += "totals\n";
            text += &table(&rows.collect::<Vec<_>>());
        }
        text += &self.gguf_metadata.as_ref().map(metadata::text).unwrap_or_default();
        for input in self.source().shards.iter().filter(|_| !self.is_filtered()) {
            let contents = &input.contents;
            for ignored in &contents.ignored {
                let _ = writeln!(text, "not an array: {}", shorten(ignored));
            }
            text += &contents.pickle.as_deref().map(pickle::text).unwrap_or_default();
            let metadata: Vec<_> = contents.metadata.iter().flatten().chain(&contents.lists).collect();
            if metadata.is_empty() {
                continue;
            }
            let of = if self.source().shards.len() > 1 {
                format!(" of {}", visible(&self.source().shard_name(input)))
            } else {
                String::new()
            };
            let _ = writeln!(text, "metadata{of}");
            for (key, value) in metadata {
                let _ = writeln!(text, "  {}: {}", shorten(key), shorten(value));
            }
        }
        if self.args.stats { text + &self.distributions(&entries) } else { text }
    }

    /// Lists the problems with quantized weights, one line each.
    fn problems_text(&self) -> String {
        /// Maximum number of lines.
        const FEW: usize = 20;
        let all = self.model.found.problems.len();
        if all == 0 {
            return String::new();
        }
        let lines = self.problems().take(FEW).map(|problem| format!("  {problem}\n"));
        let more = if all > FEW { format!("  ... and {} more\n", all - FEW) } else { String::new() };
        // If the folder cannot be read, there is nothing to say about it.
        let is_shard =
            self.source().folder.is_none() && checkpoint::beside(self.input).is_ok_and(|tensors| !tensors.is_empty());
        let others = if is_shard { ": the file is a shard, and missing parts may be in other shards" } else { "" };
        format!("problems of quantized weights{others}\n{}{more}", lines.collect::<String>())
    }

    fn distributions(&self, entries: &[InspectedTensor]) -> String {
        let mut text = String::new();
        for (entry, stats) in entries.iter().zip(&self.stats) {
            let target = entry.tensor.weight.map(|weight| entry.tensor.model.target_of(weight));
            let decoded = target.map_or_else(String::new, |target| format!(" decoded to {target}"));
            let _ = writeln!(text, "{}{}", shorten(entry.tensor.name()), decoded);
            let _ = match stats {
                Ok(Some(stats)) => writeln!(text, "{}", report::distribution::text(stats, entry.tensor.shape())),
                Err(error) => writeln!(text, "  {error}"),
                Ok(None) => writeln!(text, "  has no numeric values"),
            };
        }
        // Position ids and masks say nothing about the range of weights.
        let has_floats = entries.iter().any(InspectedTensor::is_float);
        let chosen = entries.iter().zip(&self.stats).filter(|(entry, _)| !has_floats || entry.is_float());
        let all: Histogram = chosen
            .filter_map(|(_, stats)| stats.as_ref().ok()?.as_ref())
            .flat_map(|stats| stats.exponents.iter())
            .collect();
        let width = stdout_columns().map_or(80, |width| width.clamp(60, 120));
        let picture = distribution::draw(&all, width, true);
        if !picture.is_empty() {
            let _ = writeln!(text, "\n{picture}\n");
        }
        text
    }

    fn head(&self, entries: &[InspectedTensor]) -> String {
        let path = path_text(self.input);
        let quantized = match entries.iter().filter(|entry| entry.layout().is_some()).count() {
            0 => String::new(),
            count => format!(" ({count} quantized)"),
        };
        let of = if self.is_filtered() { format!("{} of ", entries.len()) } else { String::new() };
        let tensors = of + &counted(self.all().count() as u64, "tensor") + &quantized;
        match &self.source().shards[..] {
            [input] if self.source().folder.is_none() || input.is_distributed() => {
                let facts = input.contents.pickle.as_ref().filter(|_| input.is_distributed());
                let format = facts.map_or(input.container.format_info().extension, |facts| facts.form);
                return format!("{path}: {format}, {tensors}, {}\n", size(input.len()));
            }
            _ => {}
        }
        let shards = &self.source().shards;
        let all = size(self.source().bytes());
        let index = match &self.source().index {
            Some(index) => format!(", index {}", visible(&index.name)),
            None if self.source().folder.is_some() => ", no index".to_owned(),
            None => String::new(),
        };
        let mut text = format!("{path}: {}{index}, {tensors}, {all}\n", counted(shards.len() as u64, "shard"));
        let rows = shards.iter().filter(|_| !self.is_filtered()).map(|input| {
            let tensors = counted(input.contents.tensors.len() as u64, "tensor");
            let name = visible(&self.source().shard_name(input));
            [name, tensors, String::new(), size(input.len()), String::new()]
        });
        text += &table(&rows.collect::<Vec<_>>());
        text
    }
}

/// Describes an adapter in a line.
fn adapter_text(adapter: &Result<AdapterDescription>) -> String {
    let adapter = match adapter {
        Ok(adapter) => adapter,
        Err(error) => return format!("an adapter that cannot be merged: {error}\n"),
    };
    let range = |[least, most]: [f64; 2]| if least < most { format!("{least} to {most}") } else { least.to_string() };
    let mut text = format!("an adapter: {} ({})", adapter.method, adapter.dialect);
    for (what, found) in [("rank", adapter.rank), ("scale", adapter.scale)] {
        let _ = found.map_or(Ok(()), |found| write!(text, ", {what} {}", range(found)));
    }
    let _ = write!(text, ", {}", counted(adapter.modules as u64, "module"));
    let targets = adapter.targets.iter().map(|(name, count)| format!("{} ({count})", shorten(name)));
    let targets: Vec<String> = targets.collect();
    if !targets.is_empty() {
        let _ = write!(text, ": {}", first_few(&targets, 12));
    }
    if adapter.whole > 0 {
        let _ = write!(text, "; {}", counted(adapter.whole as u64, "whole weight"));
    }
    text += "\n";
    if let Some(merge) = &adapter.merge {
        text += &report::mapping([merge]);
        for name in &merge.unmatched {
            let _ = writeln!(text, "{} matches no weight", shorten(name));
        }
    }
    text
}

/// Aligns rows in columns; the fourth is a size.
fn table(rows: &[[String; 5]]) -> String {
    columns(rows, &[3], stdout_columns()).map(|line| line + "\n").collect()
}
