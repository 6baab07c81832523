//! Results of trials: how loaders take small quantized models of each kind. They are the only source of notes about kinds of
//! models.
//!
//! The tests of `tests/interop` write the table and compare it with the loaders.

/// For each loader its name and version, its columns, and a row for each kind of model: `model_type`, how the file stores the
/// experts, and a letter for each column.
const TABLE: &str = include_str!("tried.txt");

/// Column of a scheme in a layout, by layout and scheme. A column also stands for schemes that a loader treats in the same way.
#[cfg(feature = "cli")]
const COLUMNS: &[(&str, &[&str], &str)] = &[
    ("compressed-tensors", &["fp8", "fp8-tensor"], "fp8"),
    ("compressed-tensors", &["int8"], "int8"),
    ("compressed-tensors", &["fp8-block", "mxfp8"], "ct-fp8-block"),
    ("compressed-tensors", &["int4", "int8a16", "int2", "int3", "int5", "int6", "int7", "mxfp4", "mxfp6"], "int4"),
    (
        "compressed-tensors",
        &["int4-asym", "int2-asym", "int3-asym", "int5-asym", "int6-asym", "int7-asym", "int8-asym"],
        "int4-asym",
    ),
    ("compressed-tensors", &["nvfp4"], "nvfp4"),
    ("huggingface", &["fp8-block", "fp8-block-ue8m0"], "fp8-block"),
    ("mxfp8", &["mxfp8"], "fp8-block"),
    ("mlx", &["affine2", "affine3", "affine4", "affine5", "affine6", "affine8"], "affine8"),
    ("mlx", &["mxfp4", "mxfp8", "nvfp4"], "mxfp8"),
];

/// Returns the column of a scheme in a layout; `None` if no loader of the table reads the layout.
#[cfg(feature = "cli")]
pub(crate) fn column(scheme: &str, layout: &str) -> Option<&'static str> {
    let row = COLUMNS.iter().find(|(own, schemes, _)| *own == layout && schemes.contains(&scheme));
    row.map(|(_, _, column)| *column)
}

/// Result of a trial.
#[cfg(feature = "cli")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrialResult {
    Right,
    /// The loader fails. `decodes` is true if it is right when it decodes all weights.
    Fails {
        decodes: bool,
    },
    /// The loader does not fail, and has other weights or other results.
    Wrong {
        decodes: bool,
    },
    Untried,
}

/// A loader with its version, and the models that it was tried with.
#[derive(Clone, Copy)]
pub(crate) struct Loader {
    /// Such as `mlx-lm 0.32.2`.
    pub(crate) name: &'static str,
    columns: &'static str,
    rows: &'static str,
}

/// The results of a kind of model.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words the results"))]
pub(crate) struct Trials {
    columns: &'static str,
    experts: &'static str,
    outcomes: &'static str,
}

impl Loader {
    fn all() -> impl Iterator<Item = Self> {
        TABLE.split("\nloader ").skip(1).filter_map(|text| {
            let (name, rest) = text.split_once('\n')?;
            let (columns, rows) = rest.strip_prefix("columns ")?.split_once('\n')?;
            Some(Self { name, columns, rows })
        })
    }

    pub(crate) fn transformers() -> Option<Self> {
        Self::all().find(|loader| loader.name.starts_with("transformers "))
    }

    /// Returns the loader of a column.
    #[cfg(feature = "cli")]
    pub(crate) fn of(column: &str) -> Option<Self> {
        Self::all().find(|loader| loader.columns.split(' ').any(|own| own == column))
    }

    /// Returns the results of a kind of model; a model with experts, if this one has any.
    pub(crate) fn trials(self, kind: &str, has_experts: bool) -> Option<Trials> {
        let of = |kind: &str| {
            self.rows.lines().find_map(|line| {
                let mut row = line.split(' ');
                let (name, experts, outcomes) = (row.next()?, row.next()?, row.next()?);
                (name == kind).then_some(Trials { columns: self.columns, experts, outcomes })
            })
        };
        let with = has_experts.then(|| of(&format!("{kind}+experts"))).flatten();
        with.or_else(|| of(kind).filter(|trials| !has_experts || trials.experts != "none"))
    }
}

impl Trials {
    /// True if the files of the kind store experts as banks that tcast divides.
    pub(crate) fn has_banks(self) -> bool {
        self.experts == "banks"
    }

    /// Returns the result in a column. `has_experts` is true if experts are quantized.
    #[cfg(feature = "cli")]
    pub(crate) fn outcome(self, column: &str, has_experts: bool) -> TrialResult {
        // Experts that are kept were tried in other columns. Without experts, loaders treat some schemes alike.
        let other = match column {
            "fp8" | "int8" | "ct-fp8-block" if self.experts != "none" && !has_experts => "banks",
            "int4" | "nvfp4" if self.experts != "none" && !has_experts => "int4-banks",
            "fp8-block" if self.experts != "none" && !has_experts => "fp8-block-banks",
            "int8" | "ct-fp8-block" if self.experts == "none" => "fp8",
            "nvfp4" if self.experts == "none" => "int4",
            column => column,
        };
        let place = self.columns.split(' ').position(|own| own == other);
        match place.and_then(|place| self.outcomes.as_bytes().get(place)) {
            Some(b'.') => TrialResult::Right,
            Some(b'e') => TrialResult::Fails { decodes: false },
            Some(b'E') => TrialResult::Fails { decodes: true },
            Some(b'x') => TrialResult::Wrong { decodes: false },
            Some(b'X') => TrialResult::Wrong { decodes: true },
            _ => TrialResult::Untried,
        }
    }
}

/// True if files of one of these kinds of models store experts as banks that tcast divides.
pub(crate) fn has_banks<'k>(mut kinds: impl Iterator<Item = &'k str>) -> bool {
    let trials = |kind| Loader::transformers()?.trials(kind, true);
    kinds.any(|kind| trials(kind).is_some_and(Trials::has_banks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_one_row_with_a_letter_for_each_column() {
        for loader in Loader::all() {
            let columns = loader.columns.split(' ').count();
            let mut kinds = Vec::new();
            for row in loader.rows.lines() {
                let [kind, experts, outcomes] = row.split(' ').collect::<Vec<_>>()[..] else { panic!("{row}") };
                assert!(["none", "single", "banks", "other"].contains(&experts), "{row}");
                assert!(
                    outcomes.len() == columns && outcomes.chars().all(|letter| ".eExX-?".contains(letter)),
                    "{row}"
                );
                kinds.push(kind);
            }
            assert!(kinds.is_sorted() && kinds.len() > 10, "{kinds:?}");
            kinds.dedup();
            assert_eq!(kinds.len(), loader.rows.lines().count());
        }
        assert_eq!(Loader::all().count(), 2);
    }

    #[test]
    fn a_dense_kind_says_nothing_about_experts() {
        let loader = Loader::transformers().unwrap();
        assert!(loader.trials("llama", false).is_some() && loader.trials("llama", true).is_none());
        assert!(!loader.trials("gemma4_text", false).unwrap().has_banks());
        assert!(loader.trials("gemma4_text", true).unwrap().has_banks());
        assert!(has_banks(["gemma4", "gemma4_text"].into_iter()) && !has_banks(["mixtral"].into_iter()));
    }
}
