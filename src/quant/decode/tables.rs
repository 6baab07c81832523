//! Results computed once for all codes of a group, and looked up in registers: results of two bytes, on instruction
//! sets with such look-ups.

use super::lanes::Float32Lane;
use super::segment::{CodeFactors, CodeSegment, FetchedScales};
use crate::kernel::half::bfloat16_bits;
use crate::kernel::{Derivation, EXPONENT, Isa, Table, hidden_one};

/// 1 as bfloat16.
const ONE: u16 = 127 << 7;

/// The tables of a weight.
pub(super) struct Results {
    isa: Isa,
    kind: CodeBits,
    /// The numbers of the entries: those of all codes, or of the first 16 codes of float8e4m3fn.
    numbers: [f32; 16],
    /// Derives all bfloat16 products from the products of 1 and 1.5; `None` unless every magnitude is 0, 2^k or
    /// 1.5*2^k.
    multiples: Option<Derivation>,
    powers: ScalePowers,
    /// The numbers as bfloat16, if all of them are bfloat16 numbers.
    exact: Option<[Table; 1]>,
    /// The products of 1 and 1.5 for each group of a segment.
    products: Vec<[u16; 2]>,
    /// The products of all numbers: for each group of a segment, or for each fetched group of floats.
    tables: Vec<Table>,
    /// The fetch that the tables of floats belong to, and true if no scale of it is 0.
    fetch: u64,
    are_nonzero: bool,
}

/// The codes that tables are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeBits {
    /// Codes of at most 4 bits.
    Four,
    /// float8e4m3fn.
    Eight,
}

/// Numbers to add to the bits of bfloat16 numbers, to multiply them by scales that are powers of two.
#[derive(Default)]
struct ScalePowers {
    /// The number for each fetched scale.
    added: Vec<u16>,
    /// The fetch that they belong to, and true if all scales are such powers.
    fetch: u64,
    are_exact: bool,
}

impl Results {
    /// Smallest group size for which tables are faster.
    const LEAST: usize = 16;

    /// Smallest group size for which tables of floats are faster than additions to their exponents.
    const LEAST_FLOATS: usize = 64;

    /// Creates tables for the numbers of codes. `are_floats` is true if no number has a zero point.
    pub(super) fn new(isa: Isa, kind: CodeBits, number: impl Fn(usize) -> f32, are_floats: bool) -> Self {
        let numbers = std::array::from_fn(number);
        Self {
            isa,
            kind,
            numbers,
            multiples: if are_floats && kind == CodeBits::Four { multiples(&numbers) } else { None },
            powers: ScalePowers::default(),
            exact: are_exact(&numbers).then(|| {
                let entry = |at: usize| bfloat16_bits(numbers[at]).wrapping_sub(kind.less()[at]);
                [std::array::from_fn(entry)]
            }),
            products: Vec::new(),
            tables: Vec::new(),
            fetch: 0,
            are_nonzero: false,
        }
    }

    /// Writes products. Returns false if another method is faster.
    #[inline(always)]
    pub(super) fn write<const W: usize>(
        &mut self,
        segment: &CodeSegment,
        out: &mut [u8],
        product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
    ) -> bool {
        let CodeSegment { codes, size, skip, .. } = *segment;
        if W != 2 || size < Self::LEAST || size == Self::LEAST && skip != 0 {
            return false;
        }
        let out = out.as_chunks_mut().0;
        let first = if skip == 0 { 0 } else { (size - skip).min(codes.len()) };
        let (codes, out) = (codes.split_at(first), out.split_at_mut(first));
        let isa = self.isa;
        match self.kind {
            CodeBits::Four => {
                let (before, tables) = self.tables(segment, product).split_at(usize::from(first > 0));
                isa.look_up(codes.0, before, size, out.0);
                isa.look_up(codes.1, tables, size, out.1);
            }
            CodeBits::Eight => {
                let Some(tables) = self.fetched_tables(segment, product) else { return false };
                let (before, tables) = tables.split_at(usize::from(first > 0));
                isa.look_up_floats(codes.0, before, size, out.0);
                isa.look_up_floats(codes.1, tables, size, out.1);
            }
        }
        true
    }

    /// Writes bfloat16 products by adding exponents, if all scales are powers of two. Returns false otherwise, or if
    /// another method is faster.
    #[inline(always)]
    pub(super) fn add_exponents(&mut self, segment: &CodeSegment, out: &mut [u8]) -> bool {
        let (Some(fetched), Some(exact)) = (segment.fetched, &self.exact) else { return false };
        let is_short = segment.size < if self.kind == CodeBits::Eight { Self::LEAST_FLOATS } else { Self::LEAST };
        if !is_short || !segment.zeros.is_empty() || !self.powers.fetch(&fetched) {
            return false;
        }
        let (codes, out) = (segment.codes, out.as_chunks_mut().0);
        match self.kind {
            CodeBits::Four => self.isa.look_up(codes, exact, codes.len(), out),
            CodeBits::Eight => self.isa.look_up_floats(codes, exact, codes.len(), out),
        }
        self.powers.multiply(&fetched, segment, out);
        true
    }

    /// Returns the products of the groups of a segment.
    #[inline(always)]
    fn tables<const W: usize>(
        &mut self,
        segment: &CodeSegment,
        product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
    ) -> &[Table] {
        let count = segment.scales.len();
        if self.tables.len() < count {
            self.products.resize(count, Default::default());
            self.tables.resize(count, Table::default());
        }
        let tables = &mut self.tables[..count];
        if let Some(multiples) = &self.multiples
            && !has_zero(segment.scales)
        {
            for ([one, three], scale) in self.products.iter_mut().zip(segment.scales) {
                let scale = f32::from_le_bytes(*scale);
                (*one, *three) = (word(product(1.0, scale, 0.0)), word(product(1.5, scale, 0.0)));
            }
            self.isa.derive(&self.products[..count], multiples, tables);
        } else {
            let numbers = &self.numbers[..hidden_sixteen()];
            for (table, CodeFactors { scale, zero, offset }) in tables.iter_mut().zip(segment.factors(0.0)) {
                for (entry, number) in table.iter_mut().zip(numbers) {
                    *entry = word(product(number - zero, scale, offset));
                }
            }
        }
        tables
    }

    /// Returns the products of float8e4m3fn for the groups of a segment and for those that follow. `None` if a scale of
    /// the fetch is 0: the exponents of products are then not those of the codes.
    #[inline(always)]
    fn fetched_tables<const W: usize>(
        &mut self,
        segment: &CodeSegment,
        product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
    ) -> Option<&[Table]> {
        let fetched = segment.fetched?;
        if self.fetch != fetched.fetch {
            self.tables.resize(fetched.scales.len(), Table::default());
            let (numbers, less) = (&self.numbers[..hidden_sixteen()], self.kind.less());
            for (table, scale) in self.tables.iter_mut().zip(fetched.scales) {
                let scale = f32::from_le_bytes(*scale);
                for ((entry, number), less) in table.iter_mut().zip(numbers).zip(&less) {
                    *entry = word(product(*number, scale, 0.0)).wrapping_sub(*less);
                }
            }
            (self.fetch, self.are_nonzero) = (fetched.fetch, !has_zero(fetched.scales));
        }
        self.are_nonzero.then_some(&self.tables[fetched.first..])
    }
}

impl CodeBits {
    /// Returns the number that the code of an entry adds to it: the normal numbers of float8e4m3fn, from code 8 on, have
    /// an exponent field of 1.
    fn less(self) -> [u16; 16] {
        std::array::from_fn(|at| if self == Self::Eight && at >= 8 { EXPONENT } else { 0 })
    }
}

impl ScalePowers {
    /// Computes the numbers to add for a new fetch of scales. True if all scales are powers of two with which no
    /// product of a code below 2^9 reaches 2^128.
    #[inline(always)]
    fn fetch(&mut self, fetched: &FetchedScales) -> bool {
        if self.fetch != fetched.fetch {
            self.added.resize(fetched.scales.len(), 0);
            let mut all = true;
            for (power, scale) in self.added.iter_mut().zip(fetched.scales) {
                let bits = u32::from_le_bytes(*scale);
                all &= (bits & 0x007f_ffff == 0) & (bits.wrapping_sub(1 << 23) < (126 + 118) << 23);
                *power = ((bits >> 16) as u16).wrapping_sub(ONE);
            }
            (self.fetch, self.are_exact) = (fetched.fetch, all);
        }
        self.are_exact
    }

    /// Multiplies bfloat16 numbers by the scales of a segment: all results are normal or 0.
    #[inline(always)]
    fn multiply(&self, fetched: &FetchedScales, segment: &CodeSegment, numbers: &mut [[u8; 2]]) {
        let powers = &self.added[fetched.first..];
        match (segment.size, segment.skip) {
            (1, _) => {
                for (number, power) in numbers.iter_mut().zip(powers) {
                    *number = raise(*number, *power);
                }
            }
            (32, 0) => {
                let (whole, last) = numbers.as_chunks_mut::<32>();
                let (powers, last_power) = powers.split_at(whole.len());
                for (numbers, power) in whole.iter_mut().zip(powers) {
                    raise_all(numbers, *power);
                }
                raise_all(last, last_power.first().copied().unwrap_or_default());
            }
            (size, skip) => {
                let (first, rest) = numbers.split_at_mut((size - skip).min(numbers.len()));
                raise_all(first, powers[0]);
                for (numbers, power) in rest.chunks_mut(size).zip(&powers[1..]) {
                    raise_all(numbers, *power);
                }
            }
        }
    }
}

#[inline(always)]
fn raise_all(numbers: &mut [[u8; 2]], power: u16) {
    for number in numbers {
        *number = raise(*number, power);
    }
}

/// Adds to the exponent of a bfloat16 number, unless it is 0.
#[inline(always)]
fn raise(number: [u8; 2], power: u16) -> [u8; 2] {
    let number = u16::from_le_bytes(number);
    number.wrapping_add(if number & 0x7fff == 0 { 0 } else { power }).to_le_bytes()
}

/// Returns [`Results::multiples`], for scales other than 0 and normal products.
fn multiples(numbers: &[f32; 16]) -> Option<Derivation> {
    let is_multiple = |number: &f32| number.to_bits() & 0x003f_ffff == 0;
    let entry = |number: f32| {
        let bits = bfloat16_bits(number);
        let (sign, is_three) = (bits & 0x8000, bits & 0x40 != 0);
        // A sum of signs is their product.
        if bits == sign { (false, sign, 0x8000) } else { (is_three, (bits & !0x40).wrapping_sub(ONE), u16::MAX) }
    };
    numbers.iter().all(is_multiple).then(|| Derivation::new(numbers.map(entry)))
}

/// True if all numbers are bfloat16 numbers.
#[inline(always)]
fn are_exact(numbers: &[f32]) -> bool {
    let mut all = true;
    for number in numbers {
        all &= number.to_bits() & 0xffff == 0;
    }
    all
}

/// Returns 16, hidden from the compiler, which would otherwise compute the same entry of several tables in one vector,
/// and move each result to its table alone.
#[inline(always)]
fn hidden_sixteen() -> usize {
    16 * usize::from(hidden_one::<u8>())
}

/// Returns a result of two bytes.
#[inline(always)]
fn word<const W: usize>(result: [u8; W]) -> u16 {
    u16::from_le_bytes([result[0], result[1]])
}

#[inline(always)]
fn has_zero(scales: &Float32Lane) -> bool {
    let mut any = false;
    for scale in scales {
        any |= f32::from_le_bytes(*scale) == 0.0;
    }
    any
}
