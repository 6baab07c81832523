//! The models in a folder, by the names of their shards: without an index, the names must describe exactly one.

use std::collections::{BTreeMap, BTreeSet};

/// Files that hold a whole model: loaders read the first one that exists, and no other shard of the folder.
const WHOLE: [&str; 6] =
    ["model", "diffusion_pytorch_model", "pytorch_model", "consolidated", "adapter_model", "adapters"];

/// Position in [`WHOLE`] before which a set of numbered shards comes: it is the usual form of a large model, and the
/// files from there on belong to other programs.
const RANK_OF_SET: usize = 3;

/// Name of a numbered shard: `model-00001-of-00003.safetensors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NumberedName<'a> {
    /// The text before the number.
    model: &'a str,
    number: u64,
    count: u64,
    /// The text from the number of shards on.
    end: &'a str,
}

impl<'a> NumberedName<'a> {
    pub(super) fn parse(file: &'a str) -> Option<Self> {
        let (start, end) = file.rsplit_once("-of-").or_else(|| file.rsplit_once("_of_"))?;
        let model = start.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let digits = end.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(end.len());
        Some(Self { model, number: start[model.len()..].parse().ok()?, count: end[..digits].parse().ok()?, end })
    }

    /// The parts that the names of all shards of a set have in common.
    pub(super) fn set(&self) -> (&'a str, &'a str) {
        (self.model, self.end)
    }
}

/// Files that form a model, or a part of one.
#[derive(Debug, Default)]
struct ModelFiles<'a> {
    files: Vec<&'a str>,
    /// Name of the first shard that is missing.
    missing: Option<String>,
}

/// A contradiction among the names of shards.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NameConflict<'a> {
    /// A numbered shard of a set is missing.
    Missing(String),
    /// The file holds a model without the others.
    Several { model: &'a str, others: Vec<&'a str> },
}

/// Returns the contradiction among the names of all shards of a folder without an index, if there is one.
pub(super) fn conflict(shards: &[String]) -> Option<NameConflict<'_>> {
    let mut models: BTreeMap<(usize, usize, &str, &str), ModelFiles> = BTreeMap::new();
    let mut numbers: BTreeMap<(&str, &str), BTreeSet<u64>> = BTreeMap::new();
    let mut has_whole = false;
    for file in shards {
        // The order of the keys is the order in which models are preferred, those without a variant first.
        let key = match (NumberedName::parse(file), rank(file)) {
            (Some(name), _) => {
                numbers.entry(name.set()).or_default().insert(name.number);
                (RANK_OF_SET, name.model.len() + name.end.len(), name.model, name.end)
            }
            (None, Some(rank)) => {
                has_whole = true;
                (rank, file.len(), file.as_str(), "")
            }
            (None, None) => (usize::MAX, 0, "", ""),
        };
        models.entry(key).or_default().files.push(file);
    }
    for ((.., start, end), model) in &mut models {
        model.missing = numbers.get(&(*start, *end)).and_then(|numbers| first_missing(model.files[0], numbers));
    }
    let is_free =
        |model: &ModelFiles| model.files.iter().all(|file| NumberedName::parse(file).is_none() && rank(file).is_none());
    // Files with other names belong to the model, unless one file is the whole model.
    let count = models.values().filter(|model| has_whole || !is_free(model)).count();
    if count < 2 {
        return models.into_values().find_map(|model| model.missing).map(NameConflict::Missing);
    }
    let preferred = models.values().find(|model| model.missing.is_none() && !is_free(model));
    let preferred = preferred.or(models.values().next()).map_or(&[][..], |model| &model.files[..]);
    let others = shards.iter().map(String::as_str).filter(|file| !preferred.contains(file)).collect();
    Some(NameConflict::Several { model: preferred.first()?, others })
}

/// Returns the position of the model in the order of preference, if a file holds a whole one; a variant is a part of its
/// name: `model.fp16.safetensors`.
fn rank(file: &str) -> Option<usize> {
    let stem = file.split('.').next().unwrap_or_default();
    let position = WHOLE.iter().position(|whole| whole.eq_ignore_ascii_case(stem))?;
    Some(if position < RANK_OF_SET { position } else { position + 1 })
}

/// Returns the name of the first shard that is missing in a set; sets begin with 0 or 1. `file` is one of the shards.
fn first_missing(file: &str, numbers: &BTreeSet<u64>) -> Option<String> {
    let NumberedName { model, count, end, .. } = NumberedName::parse(file)?;
    let first = u64::from(!numbers.contains(&0));
    let missing = (first..).zip(numbers).find(|(wanted, found)| wanted != *found).map(|(wanted, _)| wanted);
    let missing = missing.unwrap_or(first + numbers.len() as u64);
    let width = file.len() - model.len() - end.len() - "-of-".len();
    let between = &file[model.len() + width..file.len() - end.len()];
    (missing - first < count).then(|| format!("{model}{missing:0width$}{between}{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(shards: &[&str]) -> Option<String> {
        let shards: Vec<String> = shards.iter().map(|&shard| shard.to_owned()).collect();
        conflict(&shards).map(|conflict| match conflict {
            NameConflict::Missing(name) => format!("no {name}"),
            NameConflict::Several { model, others } => format!("{model}, not {}", others.join(" ")),
        })
    }

    #[test]
    fn one_model_has_no_conflict() {
        for shards in [
            &["model.safetensors"][..],
            &["a.safetensors", "b.safetensors"],
            &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            &["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"],
            &["model_1_of_2.safetensors", "model_2_of_2.safetensors", "extra.safetensors"],
            &["x-99999999999999999999999-of-2.safetensors"],
            &["-of-.safetensors", "1-of-x.safetensors"],
        ] {
            assert_eq!(found(shards), None, "{shards:?}");
        }
    }

    #[test]
    fn a_set_with_a_gap_or_without_its_ends_is_incomplete() {
        for (shards, missing) in [
            (&["m-00001-of-00003.bin", "m-00003-of-00003.bin"][..], "no m-00002-of-00003.bin"),
            (&["m-00002-of-00002.bin"], "no m-00001-of-00002.bin"),
            (&["m-00001-of-00002.bin"], "no m-00002-of-00002.bin"),
            (&["m-00000-of-00003.bin", "m-00001-of-00003.bin"], "no m-00002-of-00003.bin"),
            (&["m_1_of_18446744073709551615.bin"], "no m_2_of_18446744073709551615.bin"),
        ] {
            assert_eq!(found(shards).as_deref(), Some(missing), "{shards:?}");
        }
    }

    #[test]
    fn of_several_models_the_one_that_loaders_read_is_preferred() {
        for (shards, preferred) in [
            (&["consolidated.safetensors", "model.safetensors"][..], "model.safetensors, not consolidated.safetensors"),
            (
                &["0000100_adapters.safetensors", "adapters.safetensors"],
                "adapters.safetensors, not 0000100_adapters.safetensors",
            ),
            (&["a.safetensors", "model.safetensors"], "model.safetensors, not a.safetensors"),
            (
                &["diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.safetensors"],
                "diffusion_pytorch_model.safetensors, not diffusion_pytorch_model.fp16.safetensors",
            ),
            (
                &["consolidated.safetensors", "m-1-of-1.safetensors"],
                "m-1-of-1.safetensors, not consolidated.safetensors",
            ),
            (
                &["consolidated.safetensors", "m-1-of-2.safetensors"],
                "consolidated.safetensors, not m-1-of-2.safetensors",
            ),
            (
                &["m-1-of-1.safetensors", "m.fp16-1-of-1.safetensors"],
                "m-1-of-1.safetensors, not m.fp16-1-of-1.safetensors",
            ),
        ] {
            assert_eq!(found(shards).as_deref(), Some(preferred), "{shards:?}");
        }
    }
}
