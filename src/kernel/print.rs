//! Numbers to text: the shortest decimal digits that read back to the same number, without exponent.

use super::{BLOCK, Kernel, Malformed, OutOfRange, RoundMode, Rules, Storage, Texts};
use crate::dtype::{Class, Dtype};
use std::fmt::Display;

/// The rules of a widening, which meets none of the cases that they decide.
const RULES: Rules =
    Rules { saturate: true, infinity_saturates_fnuz: true, round_mode: RoundMode::Up, out_of_range: OutOfRange::Wrap };

/// A conversion from numbers to their texts.
///
/// Floats are written as the shortest digits that read back to the same float32 (float64 where that is the
/// source: narrower ones are widened to float32, as `cast.md`, rule 8, has it), never with an exponent, and without
/// `.0`; then `-0`, `INF`, `-INF` and `NaN`, which shows no sign. Integers are decimal, bool is `1` or `0`.
pub struct Printer {
    source: Storage,
    widen: Kernel,
    /// What `widen` gives: Float32, Float64, Int64 or Uint64.
    wide: Dtype,
}

impl Printer {
    /// The printer of one type's numbers. `None` for complex and string.
    #[must_use]
    pub fn new(source: Storage) -> Option<Self> {
        let wide = match source.dtype.class() {
            Class::Bool | Class::Int { signed: false } => Dtype::Uint64,
            Class::Int { signed: true } => Dtype::Int64,
            Class::Float(_) if source.dtype == Dtype::Float64 => Dtype::Float64,
            Class::Float(_) | Class::Scale => Dtype::Float32,
            Class::Complex | Class::String => return None,
        };
        let widen = Kernel::cast(source, Storage::packed(wide), &RULES)?;
        Some(Self { source, widen, wide })
    }

    /// Appends the texts of `count` elements.
    ///
    /// # Errors
    /// [`Malformed`] as [`Kernel::run`]; some texts may have been appended then.
    ///
    /// # Panics
    /// When `input` is shorter than `count` elements take.
    pub fn print(&self, input: &[u8], count: usize, texts: &mut Texts) -> Result<(), Malformed> {
        let mut wide = [0; BLOCK * 8];
        for start in (0..count).step_by(BLOCK) {
            let end = count.min(start + BLOCK);
            let input = &input[self.source.offset(start)..self.source.offset(end)];
            let wide = &mut wide[..(end - start) * self.wide.bits() as usize / 8];
            self.widen.run(input, wide, end - start)?;
            match self.wide {
                Dtype::Float32 => each(wide, |bytes| {
                    let value = f32::from_le_bytes(bytes);
                    push_float(texts, value, value.into());
                }),
                Dtype::Float64 => each(wide, |bytes| {
                    let value = f64::from_le_bytes(bytes);
                    push_float(texts, value, value);
                }),
                Dtype::Int64 => each(wide, |bytes| texts.push_shown(i64::from_le_bytes(bytes))),
                _ => each(wide, |bytes| texts.push_shown(u64::from_le_bytes(bytes))),
            }
        }
        Ok(())
    }
}

fn each<const N: usize>(bytes: &[u8], print: impl FnMut([u8; N])) {
    bytes.as_chunks().0.iter().copied().for_each(print);
}

/// `shown` is `value` in the type whose digits count. Rust shows a finite float as the shortest digits that read
/// back, without exponent.
fn push_float(texts: &mut Texts, shown: impl Display, value: f64) {
    if value.is_finite() {
        texts.push_shown(shown);
    } else if value.is_nan() {
        texts.push(b"NaN");
    } else {
        texts.push(if value < 0.0 { b"-INF" } else { b"INF" });
    }
}
