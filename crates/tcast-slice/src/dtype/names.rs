//! Every accepted spelling of a dtype, and suggestions for unknown spellings.
//!
//! Accepted spellings: ONNX names and numbers (`FLOAT8E4M3FN`, `17`), numpy (`float32`, `f4`, `<i8`), torch
//! (`torch.float8_e4m3fn`, `half`), safetensors (`F8_E4M3`), `OpenVINO` (`f8e4m3`), `ml_dtypes`, and short ones
//! (`bf16`, `e4m3`), in any case, with or without `_` and `-`, and types of ONNX values (`tensor(float16)`).
//!
//! Conflicts between libraries: `i8` and `u4` count **bits**, as in safetensors, `OpenVINO` and ONNX; numpy's codes,
//! which count bytes, need their byte-order mark (`<i8` is int64). `f4` is numpy's float32. safetensors' `F4` and the
//! bare `f8` could mean several types each; they are refused, and the error lists the types. `i1` and `u1` are refused
//! too, because a byte can hold a value of either type. `float8_e4m3` is `ml_dtypes`' type with Inf, which ONNX lacks,
//! while `F8_E4M3`, `f8e4m3`, `fp8_e4m3` and `e4m3` mean float8e4m3fn, as in safetensors and `OpenVINO`.

use std::{fmt, str::FromStr};

use super::{Class, Dtype, DtypeRow, TABLE};

/// Spellings with more than one meaning, each with the types it could mean.
const AMBIGUOUS: &[(&str, &[Dtype])] = {
    use Dtype as D;
    const FLOAT8: &[D] = &[D::Float8E4M3FN, D::Float8E5M2, D::Float8E4M3FNUZ, D::Float8E5M2FNUZ, D::Float8E8M0];
    const FLOAT6: &[D] = &[D::Float6E2M3, D::Float6E3M2];
    &[
        ("fp8", FLOAT8),
        ("float8", FLOAT8),
        ("f8", &[D::Float8E4M3FN, D::Float8E5M2, D::Float64]),
        ("fp6", FLOAT6),
        ("float6", FLOAT6),
        ("f6", FLOAT6),
        ("int", &[D::Int8, D::Int16, D::Int32, D::Int64]),
        ("uint", &[D::Uint8, D::Uint16, D::Uint32, D::Uint64]),
        ("i1", &[D::Int1, D::Int8]),
        ("u1", &[D::Uint1, D::Uint8]),
        ("complex", &[D::Complex64, D::Complex128]),
    ]
};

/// A spelling that names no dtype, or more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDtype {
    spelling: String,
    candidates: Vec<Dtype>,
    is_ambiguous: bool,
}

#[doc(hidden)] // for messages of the program
impl UnknownDtype {
    /// True if the spelling has several meanings.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// Describes a spelling that resembles no dtype, with the dtypes that are possible; `None` for other spellings.
    #[must_use]
    pub fn among(&self, possible: &[Dtype]) -> Option<String> {
        self.candidates.is_empty().then(|| self.with_list(possible.iter().map(|dtype| dtype.name())))
    }

    fn with_list(&self, names: impl Iterator<Item = &'static str>) -> String {
        let names: Vec<&str> = names.collect();
        format!("unknown dtype '{}'; there are: {}", self.spelling.escape_debug(), names.join(", "))
    }

    /// The intended type, if exactly one candidate exists or exactly one is a single typing error away.
    #[must_use]
    pub fn only_candidate(&self) -> Option<Dtype> {
        let typed = plain(&self.spelling.to_lowercase());
        let is_near = |dtype: &&Dtype| !self.is_ambiguous && strsim::osa_distance(&typed, dtype.name()) == 1;
        let near: Vec<Dtype> = self.candidates.iter().filter(is_near).copied().collect();
        match (&self.candidates[..], &near[..]) {
            ([only], _) | (_, [only]) => Some(*only),
            _ => None,
        }
    }
}

impl fmt::Display for UnknownDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.candidates.iter().map(|dtype| dtype.name()).collect();
        let names = names.join(", ");
        match (self.is_ambiguous, names.is_empty()) {
            (true, _) => write!(f, "'{}' could be {names}; choose one", self.spelling.escape_debug()),
            (false, false) => write!(f, "unknown dtype '{}'; similar: {names}", self.spelling.escape_debug()),
            (false, true) => f.write_str(&self.with_list(onnx_rows().map(|row| row.name))),
        }
    }
}

impl std::error::Error for UnknownDtype {}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    /// # Errors
    /// [`UnknownDtype`] when the spelling is not accepted, or has several meanings.
    fn from_str(spelling: &str) -> Result<Self, UnknownDtype> {
        let refused =
            |candidates, is_ambiguous| UnknownDtype { spelling: spelling.to_owned(), candidates, is_ambiguous };
        let ambiguous = |candidates: &[Dtype]| refused(candidates.to_vec(), true);
        let unknown = |near| refused(near, false);
        // The only pair of exact names that differ only in case.
        if spelling == "F4" {
            return Err(ambiguous(&[Dtype::Float4E2M1, Dtype::Float32]));
        }
        let lower = spelling.trim().to_lowercase();
        // ONNX writes the type of a value so, in type constraints and in ONNX Runtime.
        let of_value = lower.strip_prefix("tensor(").and_then(|rest| rest.strip_suffix(')'));
        let lower = of_value.map_or(lower.clone(), str::to_owned);
        if let Some(code) = lower.strip_prefix(['<', '=', '|']) {
            let row = TABLE.iter().find(|row| row.numpy == Some(code));
            return row.map(|row| row.dtype).ok_or_else(|| unknown(Vec::new()));
        }
        if let Some(row) = TABLE.iter().find(|row| row.aliases.contains(&lower.as_str())) {
            return Ok(row.dtype); // `torch.int` keeps its prefix: `int` alone is ambiguous
        }
        let plain = plain(&lower);
        if let Some(row) = TABLE.iter().find(|row| row_spellings(row).any(|known| known == plain)) {
            return Ok(row.dtype);
        }
        if let Some((_, candidates)) = AMBIGUOUS.iter().find(|(known, _)| *known == plain) {
            return Err(ambiguous(candidates));
        }
        let is_number = plain.bytes().all(|byte| byte.is_ascii_digit());
        Err(unknown(if is_number { Vec::new() } else { near(&plain) }))
    }
}

impl Dtype {
    /// Common spellings: the canonical name first, then the names in ONNX, safetensors and `ml_dtypes`, and short
    /// names.
    pub fn spellings(self) -> impl Iterator<Item = &'static str> {
        let row = self.row();
        row_names(row).chain(row.aliases.iter().copied())
    }
}

/// Returns the names of a type: the canonical one, and the names in ONNX, safetensors and `ml_dtypes`.
fn row_names(row: &DtypeRow) -> impl Iterator<Item = &'static str> + use<> {
    let safetensors = row.safetensors.filter(|name| *name != "F4"); // which could mean another type here
    [Some(row.name), row.onnx.map(|(_, name)| name), safetensors, row.ml_dtypes].into_iter().flatten()
}

/// Removes a library's prefix, `_` and `-`.
fn plain(lower: &str) -> String {
    let name = lower.rsplit_once('.').map_or(lower, |(library, name)| {
        let known = ["torch", "np", "numpy", "jnp", "ml_dtypes", "mx", "onnx", "tensorproto", "onnx.tensorproto"];
        if known.contains(&library) { name } else { lower }
    });
    name.replace(['_', '-'], "")
}

/// Rows of the types to suggest: the possible targets of a cast.
fn onnx_rows() -> impl Iterator<Item = &'static DtypeRow> {
    TABLE.iter().filter(|row| row.onnx.is_some())
}

fn row_spellings(row: &DtypeRow) -> impl Iterator<Item = String> {
    let names = row_names(row).map(|name| plain(&name.to_lowercase()));
    names.chain(row.aliases.iter().map(|&alias| alias.to_owned())).chain(row.onnx.map(|(number, _)| number.to_string()))
}

/// Returns the types of the same kind with the nearest width, for names such as `fp9`.
fn near_width(plain: &str) -> Vec<Dtype> {
    let (kind, width) = plain.split_at(plain.find(|c: char| c.is_ascii_digit()).unwrap_or(plain.len()));
    let Ok(width) = width.parse::<u32>() else { return Vec::new() };
    let is_of_kind = |dtype: Dtype| match dtype.class() {
        Class::Float(_) => ["f", "fp", "float"].contains(&kind),
        Class::Int { signed: true } => ["i", "int"].contains(&kind),
        Class::Int { signed: false } => ["u", "uint"].contains(&kind),
        _ => false,
    };
    let distance = |dtype: Dtype| dtype.bits().abs_diff(width);
    let known: Vec<Dtype> = onnx_rows().map(|row| row.dtype).filter(|dtype| is_of_kind(*dtype)).collect();
    let least = known.iter().map(|dtype| distance(*dtype)).min();
    known.into_iter().filter(|dtype| Some(distance(*dtype)) == least).take(4).collect()
}

/// Returns the types with a similar name or alias, the most similar first.
fn near(plain: &str) -> Vec<Dtype> {
    let of_width = near_width(plain);
    if !of_width.is_empty() {
        return of_width;
    }
    let mut scored: Vec<(f64, Dtype)> = onnx_rows()
        .map(|row| {
            let score = row_spellings(row).map(|known| strsim::jaro_winkler(plain, &known)).fold(0.0, f64::max);
            (score, row.dtype)
        })
        .filter(|(score, _)| *score > 0.8)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.truncate(4);
    scored.into_iter().map(|(_, dtype)| dtype).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_every_library_are_read() {
        let cases = [
            ("FLOAT8E4M3FN", Dtype::Float8E4M3FN),
            ("17", Dtype::Float8E4M3FN),
            ("torch.float8_e4m3fn", Dtype::Float8E4M3FN),
            ("F8_E4M3", Dtype::Float8E4M3FN),
            ("f8e4m3", Dtype::Float8E4M3FN),
            ("fp8_e4m3fn", Dtype::Float8E4M3FN),
            ("fp8_e4m3", Dtype::Float8E4M3FN),
            ("e4m3", Dtype::Float8E4M3FN),
            ("float8_e4m3", Dtype::Float8E4M3),
            ("ml_dtypes.float8_e4m3b11fnuz", Dtype::Float8E4M3B11FNUZ),
            ("e3m4", Dtype::Float8E3M4),
            ("int1", Dtype::Int1),
            ("float8_e8m0fnu", Dtype::Float8E8M0),
            ("float32", Dtype::Float32),
            ("f4", Dtype::Float32),
            ("<f4", Dtype::Float32),
            ("FLOAT", Dtype::Float32),
            ("torch.float", Dtype::Float32),
            ("DOUBLE", Dtype::Float64),
            ("half", Dtype::Float16),
            ("tensor(float16)", Dtype::Float16),
            ("tensor(float)", Dtype::Float32),
            ("tensor(double)", Dtype::Float64),
            ("BF16", Dtype::Bfloat16),
            ("I8", Dtype::Int8),
            ("i4", Dtype::Int4),
            ("<i4", Dtype::Int32),
            ("|u1", Dtype::Uint8),
            ("torch.int", Dtype::Int32),
            ("torch.long", Dtype::Int64),
            ("float4_e2m1fn_x2", Dtype::Float4E2M1),
            ("boolean", Dtype::Bool),
        ];
        for (spelling, dtype) in cases {
            assert_eq!(spelling.parse(), Ok(dtype), "{spelling}");
        }
    }

    #[test]
    fn every_name_of_the_table_is_read_in_any_case() {
        for row in TABLE {
            for name in row_spellings(row).chain([row.name.to_uppercase(), format!("torch.{}", row.name)]) {
                assert_eq!(name.parse(), Ok(row.dtype), "{name}");
            }
        }
    }

    #[test]
    fn spellings_that_are_offered_are_read() {
        for dtype in Dtype::all() {
            for spelling in dtype.spellings() {
                assert_eq!(spelling.parse(), Ok(dtype), "{spelling}");
            }
        }
        let spellings: Vec<&str> = Dtype::Float8E4M3FN.spellings().take(4).collect();
        assert_eq!(spellings, ["float8e4m3fn", "FLOAT8E4M3FN", "F8_E4M3", "float8_e4m3fn"]);
    }

    #[test]
    fn no_spelling_has_two_meanings() {
        let mut seen = std::collections::HashMap::new();
        for row in TABLE {
            for spelling in row_spellings(row) {
                let other = seen.insert(spelling.clone(), row.dtype);
                assert!(other.is_none_or(|other| other == row.dtype), "{spelling}: {other:?} and {}", row.name);
            }
        }
    }

    #[test]
    fn ambiguous_spellings_list_what_they_could_mean() {
        for spelling in ["fp8", "float8", "int", "F4", "f8", "uint", "i1", "u1"] {
            let error = spelling.parse::<Dtype>().unwrap_err();
            assert!(error.is_ambiguous && error.candidates.len() > 1, "{error}");
        }
    }

    #[test]
    fn unknown_spellings_list_near_names() {
        let error = "float8e4m4".parse::<Dtype>().unwrap_err().to_string();
        assert!(error.contains("similar: ") && error.contains("float8e4m3fn"), "{error}");
        let error = "99".parse::<Dtype>().unwrap_err().to_string();
        assert!(error.starts_with("unknown dtype '99'; there are: bool, "), "{error}");
        let error = "quux".parse::<Dtype>().unwrap_err().to_string();
        assert!(error.contains("there are: bool, int2"), "{error}");
    }
}
