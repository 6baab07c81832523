//! Results computed once for all codes of a group, and looked up in registers: results of two bytes, on instruction
//! sets with such look-ups.

use super::segment::{CodeFactors, FetchedScales, SegmentGroups, factors};
use crate::kernel::{Derivation, Isa, Magnitudes, Table};

/// 1 as bfloat16.
const ONE: u16 = 127 << 7;

/// The tables of a weight.
pub(super) enum Results {
    /// No tables.
    None,
    /// For codes of at most 4 bits.
    Short(Box<ShortResults>),
    /// For float8e4m3fn.
    Long(Box<LongResults>),
}

/// The products of all 16 codes, for each group of a segment.
pub(super) struct ShortResults {
    isa: Isa,
    /// The numbers that the codes represent.
    numbers: [f32; 16],
    /// Derives all bfloat16 products from the products of 1 and 1.5; `None` unless every magnitude is 0, 2^k or
    /// 1.5*2^k.
    multiples: Option<Derivation>,
    powers: ScalePowers,
    /// The numbers as bfloat16, if all of them are bfloat16 numbers.
    exact: Option<[Table; 1]>,
    /// For each group of a segment, the products of 1 and 1.5, and of all numbers.
    products: Vec<[[u8; 2]; 2]>,
    tables: Vec<Table>,
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

/// The products of the magnitudes, for each fetched group.
pub(super) struct LongResults {
    isa: Isa,
    numbers: [f32; 128],
    powers: ScalePowers,
    /// The numbers as bfloat16.
    exact: [Magnitudes; 1],
    /// Empty if groups are small, or too many are side by side.
    tables: Vec<Magnitudes>,
    /// The fetch that they belong to.
    fetch: u64,
}

impl Results {
    /// Smallest group size for which tables of 16 products are faster.
    const LEAST: usize = 16;

    /// Writes products. Returns false if another method is faster.
    #[inline(always)]
    pub(super) fn write<const W: usize>(
        &mut self,
        codes: &[u8],
        groups: &SegmentGroups,
        out: &mut [u8],
        product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
    ) -> bool {
        let SegmentGroups { size, skip, .. } = *groups;
        let out = out.as_chunks_mut().0;
        let first = if skip == 0 { 0 } else { (size - skip).min(codes.len()) };
        let (codes, out) = (codes.split_at(first), out.split_at_mut(first));
        match self {
            Self::Short(short) if W == 2 && (size > Self::LEAST || (size == Self::LEAST && skip == 0)) => {
                let isa = short.isa;
                let (before, tables) = short.tables(groups, product).split_at(usize::from(first > 0));
                isa.look_up(codes.0, before, size, out.0);
                isa.look_up(codes.1, tables, size, out.1);
                true
            }
            Self::Long(long) if W == 2 && !long.tables.is_empty() => {
                let (isa, Some(fetched)) = (long.isa, groups.fetched) else { return false };
                let (before, tables) = long.tables(&fetched, product).split_at(usize::from(first > 0));
                isa.look_up_magnitudes(codes.0, before, size, out.0);
                isa.look_up_magnitudes(codes.1, tables, size, out.1);
                true
            }
            _ => false,
        }
    }

    /// Writes bfloat16 products by adding exponents, if all scales are powers of two. Returns false otherwise, or if
    /// another method is faster.
    #[inline(always)]
    pub(super) fn add_exponents(&mut self, codes: &[u8], groups: &SegmentGroups, out: &mut [u8]) -> bool {
        let Some(fetched) = groups.fetched else { return false };
        let out = out.as_chunks_mut().0;
        match self {
            Self::Short(short) if groups.size == 1 && groups.zeros.is_empty() => {
                let Some(exact) = short.exact.as_ref().filter(|_| short.powers.fetch(&fetched)) else { return false };
                short.isa.look_up(codes, exact, codes.len(), out);
                short.powers.multiply(&fetched, groups, out);
            }
            Self::Long(long) if long.tables.is_empty() => {
                if !long.powers.fetch(&fetched) {
                    return false;
                }
                long.isa.look_up_magnitudes(codes, &long.exact, codes.len(), out);
                long.powers.multiply(&fetched, groups, out);
            }
            _ => return false,
        }
        true
    }
}

impl ShortResults {
    /// Creates tables for the numbers of codes, and segments of `columns` values.
    pub(super) fn new(isa: Isa, number: impl Fn(usize) -> f32, are_floats: bool, columns: usize) -> Self {
        let numbers = std::array::from_fn(number);
        let most = (columns / Results::LEAST + 2).next_multiple_of(16);
        Self {
            isa,
            numbers,
            multiples: if are_floats { multiples(&numbers) } else { None },
            powers: ScalePowers::default(),
            exact: are_exact(&numbers).then(|| [numbers.map(upper_half)]),
            products: vec![[[0; 2]; 2]; most],
            tables: vec![Table::default(); most],
        }
    }

    /// Returns the products of the groups of a segment.
    #[inline(always)]
    fn tables<const W: usize>(
        &mut self,
        groups: &SegmentGroups,
        product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
    ) -> &[Table] {
        if let Some(multiples) = &self.multiples
            && !has_zero(groups)
        {
            for ([one, three], scale) in self.products.iter_mut().zip(groups.scales) {
                let scale = f32::from_le_bytes(*scale);
                one.copy_from_slice(&product(1.0, scale, 0.0));
                three.copy_from_slice(&product(1.5, scale, 0.0));
            }
            let padded = groups.scales.len().next_multiple_of(16);
            self.isa.derive(&self.products[..padded], multiples, &mut self.tables[..padded]);
            return &self.tables[..groups.scales.len()];
        }
        let (numbers, tables) = (self.numbers, &mut self.tables[..groups.scales.len()]);
        for (table, CodeFactors { scale, zero, offset }) in tables.iter_mut().zip(factors(groups, 0.0)) {
            for (entry, number) in table.iter_mut().zip(numbers) {
                entry.copy_from_slice(&product(number - zero, scale, offset));
            }
        }
        tables
    }
}

impl LongResults {
    /// Smallest group size for which tables are faster, and largest number of groups side by side whose tables fit into
    /// the second-level cache.
    const LEAST: u64 = 512;
    const MOST: u64 = 256;

    /// Creates tables for the numbers of codes, and groups of `group` values, `beside` of them side by side.
    pub(super) fn new(isa: Isa, number: impl Fn(usize) -> f32, group: u64, beside: u64) -> Self {
        let numbers = std::array::from_fn(number);
        let count = if group >= Self::LEAST && beside <= Self::MOST { beside as usize } else { 0 };
        let (powers, exact) = (ScalePowers::default(), [numbers.map(upper_half)]);
        Self { isa, numbers, powers, exact, tables: vec![[[0; 2]; 128]; count], fetch: 0 }
    }

    /// Returns the products of the groups of a segment, and of the groups that follow.
    #[inline(always)]
    fn tables<const W: usize>(
        &mut self,
        fetched: &FetchedScales,
        product: impl Fn(f32, f32, f32) -> [u8; W] + Copy,
    ) -> &[Magnitudes] {
        if self.fetch != fetched.fetch {
            for (table, scale) in self.tables.iter_mut().zip(fetched.scales) {
                for (entry, number) in table.iter_mut().zip(self.numbers) {
                    entry.copy_from_slice(&product(number, f32::from_le_bytes(*scale), 0.0));
                }
            }
            self.fetch = fetched.fetch;
        }
        &self.tables[fetched.first..]
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
    fn multiply(&self, fetched: &FetchedScales, groups: &SegmentGroups, numbers: &mut [[u8; 2]]) {
        let powers = &self.added[fetched.first..];
        match (groups.size, groups.skip) {
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

/// Returns [`ShortResults::multiples`], for scales other than 0 and normal products.
fn multiples(numbers: &[f32; 16]) -> Option<Derivation> {
    let is_multiple = |number: &f32| number.to_bits() & 0x003f_ffff == 0;
    let entry = |number: f32| {
        let bits = (number.to_bits() >> 16) as u16;
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

/// Returns the bytes of a bfloat16 number, or of a float32 number without its lower half.
#[inline(always)]
pub(super) fn upper_half(value: f32) -> [u8; 2] {
    ((value.to_bits() >> 16) as u16).to_le_bytes()
}

#[inline(always)]
fn has_zero(groups: &SegmentGroups) -> bool {
    let mut any = false;
    for scale in groups.scales {
        any |= f32::from_le_bytes(*scale) == 0.0;
    }
    any
}
