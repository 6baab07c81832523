//! A reference implementation of the kernels: the same casts, each in the most obvious way, slowly.
//!
//! It shares no code and no table with `src`, only the names of types, rules and losses. A code is taken apart
//! into an exact number; the result is found by comparing exact numbers; what was lost is read off the two.
#![allow(dead_code, reason = "each test that includes this file uses a part of it")]

use std::cell::Cell;
use tcast::dtype::Dtype;
use tcast::kernel::{Counts, Loss, OutOfRange, RoundMode, Rules, Storage, SubByteLayout};

/// Every type that Cast converts, text aside.
pub(crate) const NUMERIC: [Dtype; 25] = [
    Dtype::Bool,
    Dtype::Int2,
    Dtype::Int4,
    Dtype::Int8,
    Dtype::Int16,
    Dtype::Int32,
    Dtype::Int64,
    Dtype::Uint2,
    Dtype::Uint4,
    Dtype::Uint8,
    Dtype::Uint16,
    Dtype::Uint32,
    Dtype::Uint64,
    Dtype::Float4E2M1,
    Dtype::Float6E2M3,
    Dtype::Float6E3M2,
    Dtype::Float8E4M3FN,
    Dtype::Float8E4M3FNUZ,
    Dtype::Float8E5M2,
    Dtype::Float8E5M2FNUZ,
    Dtype::Float8E8M0,
    Dtype::Float16,
    Dtype::Bfloat16,
    Dtype::Float32,
    Dtype::Float64,
];

/// Every type that casts start from: those, and what only `ml_dtypes` has.
pub(crate) fn sources() -> impl Iterator<Item = Dtype> {
    NUMERIC.into_iter().chain(ONLY_SOURCES)
}

/// Types that nothing is cast to.
pub(crate) const ONLY_SOURCES: [Dtype; 5] =
    [Dtype::Int1, Dtype::Uint1, Dtype::Float8E3M4, Dtype::Float8E4M3, Dtype::Float8E4M3B11FNUZ];

/// What the bits of a type mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Signed,
    Unsigned,
    Scale,
    Float(Format),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

impl Format {
    /// The exponent of the smallest number with all digits, whose exponent field is 1.
    pub(crate) fn smallest_normal(self) -> i32 {
        1 - self.bias
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    /// Top exponent: Inf, or NaN when the mantissa is not zero.
    InfinityAndNan,
    /// All ones below the sign: NaN. No Inf.
    AllOnesIsNan,
    /// The code of -0: NaN. No Inf.
    MinusZeroIsNan,
    /// Numbers only.
    Nothing,
}

/// Width in bits, and meaning.
pub(crate) fn kind(dtype: Dtype) -> (u32, Kind) {
    use Special::{AllOnesIsNan, InfinityAndNan, MinusZeroIsNan, Nothing};
    let float = |exponent_bits, mantissa_bits, bias, special| {
        (1 + exponent_bits + mantissa_bits, Kind::Float(Format { exponent_bits, mantissa_bits, bias, special }))
    };
    match dtype {
        Dtype::Bool => (8, Kind::Bool),
        Dtype::Int2 => (2, Kind::Signed),
        Dtype::Int4 => (4, Kind::Signed),
        Dtype::Int8 => (8, Kind::Signed),
        Dtype::Int16 => (16, Kind::Signed),
        Dtype::Int32 => (32, Kind::Signed),
        Dtype::Int64 => (64, Kind::Signed),
        Dtype::Uint2 => (2, Kind::Unsigned),
        Dtype::Uint4 => (4, Kind::Unsigned),
        Dtype::Uint8 => (8, Kind::Unsigned),
        Dtype::Uint16 => (16, Kind::Unsigned),
        Dtype::Uint32 => (32, Kind::Unsigned),
        Dtype::Uint64 => (64, Kind::Unsigned),
        Dtype::Float4E2M1 => float(2, 1, 1, Nothing),
        Dtype::Float6E2M3 => float(2, 3, 1, Nothing),
        Dtype::Float6E3M2 => float(3, 2, 3, Nothing),
        Dtype::Float8E4M3FN => float(4, 3, 7, AllOnesIsNan),
        Dtype::Float8E4M3FNUZ => float(4, 3, 8, MinusZeroIsNan),
        Dtype::Float8E5M2 => float(5, 2, 15, InfinityAndNan),
        Dtype::Float8E5M2FNUZ => float(5, 2, 16, MinusZeroIsNan),
        Dtype::Float8E8M0 => (8, Kind::Scale),
        Dtype::Float16 => float(5, 10, 15, InfinityAndNan),
        Dtype::Bfloat16 => float(8, 7, 127, InfinityAndNan),
        Dtype::Float32 => float(8, 23, 127, InfinityAndNan),
        Dtype::Float64 => float(11, 52, 1023, InfinityAndNan),
        Dtype::Int1 => (1, Kind::Signed),
        Dtype::Uint1 => (1, Kind::Unsigned),
        Dtype::Float8E3M4 => float(3, 4, 3, InfinityAndNan),
        Dtype::Float8E4M3 => float(4, 3, 7, InfinityAndNan),
        Dtype::Float8E4M3B11FNUZ => float(4, 3, 11, MinusZeroIsNan),
        _ => panic!("{dtype} is not a number, or a new one: give it a line here"),
    }
}

/// Width of a numeric type in bits.
pub(crate) fn bits(dtype: Dtype) -> u32 {
    kind(dtype).0
}

/// The lowest `bits` bits set; none of them below the sign of an int1.
pub(crate) fn mask(bits: u32) -> u64 {
    u64::MAX.checked_shr(64 - bits).unwrap_or(0)
}

/// An exact magnitude: `fraction * 2^(top - 63)` with the highest bit of `fraction` set, so that the order of
/// the fields is the order of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Magnitude {
    pub(crate) top: i32,
    pub(crate) fraction: u64,
}

impl Magnitude {
    pub(crate) const ZERO: Self = Self { top: i32::MIN, fraction: 0 };

    /// `mantissa * 2^exponent`.
    pub(crate) fn new(mantissa: u64, exponent: i32) -> Self {
        if mantissa == 0 {
            return Self::ZERO;
        }
        let zeros = mantissa.leading_zeros();
        Self { top: exponent + 63 - zeros as i32, fraction: mantissa << zeros }
    }

    /// Towards zero or, with `to_nearest`, to nearest even: the magnitude's integer. From 2^127 on only the low
    /// 64 bits are right: they are zeros.
    fn integer(self, to_nearest: bool) -> u128 {
        let (fraction, exponent) = (u128::from(self.fraction), i64::from(self.top) - 63);
        match exponent {
            64.. => 0,
            0.. => fraction << exponent,
            -65.. => {
                let whole = fraction >> -exponent;
                let twice_the_rest = (fraction - (whole << -exponent)) << 1;
                let one = 1 << -exponent;
                let is_up = twice_the_rest > one || (twice_the_rest == one && whole % 2 == 1);
                whole + u128::from(to_nearest && is_up)
            }
            _ => 0, // below a quarter
        }
    }
}

/// An exact value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) negative: bool,
    pub(crate) number: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Finite(Magnitude),
    Infinite,
    /// The mantissa from the top bit down; 0 from types of 8 bits and fewer.
    Nan(u64),
}

impl Value {
    pub(crate) fn is_nan(self) -> bool {
        matches!(self.number, Number::Nan(_))
    }

    fn is_zero(self) -> bool {
        self.number == Number::Finite(Magnitude::ZERO)
    }

    /// The same number; zeros have no sign here, and all NaNs are one.
    fn equals(self, other: Self) -> bool {
        let signless = (self.is_nan() && other.is_nan()) || (self.is_zero() && other.is_zero());
        signless || self == other
    }
}

/// The value of a code.
pub(crate) fn decode(dtype: Dtype, code: u64) -> Value {
    let (bits, kind) = kind(dtype);
    decode_as(bits, kind, code)
}

fn decode_as(bits: u32, kind: Kind, code: u64) -> Value {
    let integer = |negative, magnitude| Value { negative, number: Number::Finite(Magnitude::new(magnitude, 0)) };
    match kind {
        Kind::Bool => integer(false, u64::from(code != 0)),
        Kind::Signed if code >> (bits - 1) == 1 => integer(true, (1 << (bits - 1)) - (code & mask(bits - 1))),
        Kind::Signed | Kind::Unsigned => integer(false, code),
        Kind::Scale if code == 0xff => Value { negative: false, number: Number::Nan(0) },
        Kind::Scale => Value { negative: false, number: Number::Finite(Magnitude::new(1, code as i32 - 127)) },
        Kind::Float(format) => format.decode(code, bits),
    }
}

impl Format {
    fn decode(self, code: u64, bits: u32) -> Value {
        let negative = code >> (bits - 1) == 1;
        let below_sign = code & mask(bits - 1);
        let mantissa = code & mask(self.mantissa_bits);
        let is_top = below_sign >> self.mantissa_bits == mask(self.exponent_bits);
        let number = match self.special {
            Special::InfinityAndNan if is_top && mantissa == 0 => Number::Infinite,
            Special::InfinityAndNan if is_top && bits > 8 => Number::Nan(mantissa << (64 - self.mantissa_bits)),
            Special::InfinityAndNan if is_top => Number::Nan(0),
            Special::AllOnesIsNan if below_sign == mask(bits - 1) => Number::Nan(0),
            Special::MinusZeroIsNan if negative && below_sign == 0 => Number::Nan(0),
            _ => {
                let (mantissa, exponent) = self.mantissa_and_exponent(below_sign);
                Number::Finite(Magnitude::new(mantissa, exponent))
            }
        };
        Value { negative, number }
    }

    /// What a code without sign would mean if every code were a number.
    fn mantissa_and_exponent(self, code: u64) -> (u64, i32) {
        let field = code >> self.mantissa_bits;
        let mantissa = code & mask(self.mantissa_bits);
        let unit = 1 - self.bias - self.mantissa_bits as i32;
        if field == 0 { (mantissa, unit) } else { (mantissa + (1 << self.mantissa_bits), unit + field as i32 - 1) }
    }

    /// Halfway between a code and the next.
    fn midpoint(self, code: u64) -> Magnitude {
        let (low, low_exponent) = self.mantissa_and_exponent(code);
        let (high, high_exponent) = self.mantissa_and_exponent(code + 1);
        Magnitude::new(low + (high << (high_exponent - low_exponent)), low_exponent - 1)
    }
}

/// The code of the largest finite number of a float type.
pub(crate) fn max_finite(dtype: Dtype) -> u64 {
    let is_finite = |code| matches!(decode(dtype, code).number, Number::Finite(_));
    count_leading(1 << (bits(dtype) - 1), is_finite) - 1
}

/// How many of the codes `0..end` meet a condition that all up to some code meet, and none after it.
pub(crate) fn count_leading(end: u64, meets: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if meets(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// The nonnegative finite numbers of a float type of 16 bits or fewer, in the order of their codes.
pub(crate) fn numbers(dtype: Dtype) -> Vec<Magnitude> {
    let magnitude = |code| match decode(dtype, code).number {
        Number::Finite(magnitude) => magnitude,
        number => panic!("{dtype} {code:x} is {number:?}"),
    };
    (0..=max_finite(dtype)).map(magnitude).collect()
}

/// What lies halfway between those numbers; the last is halfway to the number that would follow the largest.
pub(crate) fn midpoints(dtype: Dtype) -> Vec<Magnitude> {
    let Kind::Float(format) = kind(dtype).1 else { panic!("{dtype} is no float") };
    (0..=max_finite(dtype)).map(|code| format.midpoint(code)).collect()
}

/// A result, and what was lost on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) code: u64,
    pub(crate) losses: Losses,
}

/// A set of [`Loss`]es, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Losses(u16);

impl Losses {
    pub(crate) const SETS: usize = 1 << 9;
    /// The bits behind those of [`Loss`]: what the source is.
    const INPUT_NAN: u32 = 7;
    const INPUT_INFINITE: u32 = 8;

    pub(crate) fn index(self) -> usize {
        self.0.into()
    }

    fn add_if(&mut self, condition: bool, loss: Loss) {
        self.0 |= u16::from(condition) << loss as u16;
    }

    /// The counts of `times` values that each lost this.
    pub(crate) fn counts(self, times: u64) -> Counts {
        let mut counts = Counts::default();
        for loss in Loss::ALL {
            counts[loss] = if self.0 >> loss as u8 & 1 == 1 { times } else { 0 };
        }
        counts.input_nan = if self.0 >> Self::INPUT_NAN & 1 == 1 { times } else { 0 };
        counts.input_infinite = if self.0 >> Self::INPUT_INFINITE & 1 == 1 { times } else { 0 };
        counts
    }
}

/// The counts of many results.
pub(crate) fn counts<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Counts {
    let mut times = [0; Losses::SETS];
    for outcome in outcomes {
        times[outcome.losses.index()] += 1;
    }
    let mut sum = Counts::default();
    for (losses, times) in times.into_iter().enumerate() {
        sum += Losses(losses as u16).counts(times);
    }
    sum
}

/// One cast.
pub(crate) struct Reference {
    source: (u32, Kind),
    target: (u32, Kind),
    rules: Rules,
    /// Whether the result is the source's bits.
    is_copy: bool,
    /// The value of every code of a target of 16 bits or fewer.
    results: Vec<Value>,
    max_finite: u64,
    midpoints: Vec<Magnitude>,
    /// Where the last number lay among the midpoints: the next is often near.
    place: Cell<usize>,
}

impl Reference {
    pub(crate) fn new(source: Dtype, target: Dtype, rules: Rules) -> Self {
        let (max_finite, midpoints) = match kind(target) {
            (..=16, Kind::Float(_)) => (max_finite(target), midpoints(target)),
            (_, Kind::Float(_)) => (max_finite(target), Vec::new()),
            _ => (0, Vec::new()),
        };
        let results = match bits(target) {
            bits @ ..=16 => (0..=mask(bits)).map(|code| decode(target, code)).collect(),
            _ => Vec::new(),
        };
        let obeys_table = bits(source) == 8 && matches!(kind(source).1, Kind::Float(_) | Kind::Bool);
        Self {
            source: kind(source),
            target: kind(target),
            rules,
            is_copy: source == target && !obeys_table,
            results,
            max_finite,
            midpoints,
            place: Cell::new(0),
        }
    }

    /// Casts one code.
    pub(crate) fn cast(&self, source: u64) -> Outcome {
        if self.is_copy {
            return Outcome { code: source, losses: Losses::default() };
        }
        let x = decode_as(self.source.0, self.source.1, source);
        let (code, is_beyond) = match self.target {
            (_, Kind::Bool) => (u64::from(!x.is_zero()), false),
            (bits, Kind::Signed) => self.to_integer(x, bits, -(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            (bits, Kind::Unsigned) => self.to_integer(x, bits, 0, (1 << bits) - 1),
            (_, Kind::Scale) => self.to_scale(x),
            (bits, Kind::Float(format)) => self.to_float(x, bits, format),
        };
        let is_bool = self.source.1 == Kind::Bool && self.target.1 == Kind::Bool;
        let y = match self.results.get(code as usize) {
            Some(&result) => result,
            None => decode_as(self.target.0, self.target.1, code),
        };
        let mut losses = self.losses(x, y, is_beyond);
        losses.add_if(is_bool && code != source, Loss::Inexact);
        Outcome { code, losses }
    }

    fn is_from_integer(&self) -> bool {
        matches!(self.source.1, Kind::Bool | Kind::Signed | Kind::Unsigned)
    }

    /// The definitions of [`Loss`], for the source x and the result y. `is_beyond`: x, once rounded, lies beyond
    /// the target's range; NaN lies beyond that of an integer.
    fn losses(&self, x: Value, y: Value, is_beyond: bool) -> Losses {
        let is_integer = matches!(self.target.1, Kind::Signed | Kind::Unsigned);
        let is_finite = |value: Value| matches!(value.number, Number::Finite(_));
        let saturates = if is_integer { self.clamps() } else { is_finite(y) };
        let mut losses = Losses::default();
        losses.add_if(is_beyond && saturates && !x.is_nan(), Loss::Saturated);
        losses.add_if(is_finite(x) && y.number == Number::Infinite, Loss::Infinite);
        losses.add_if(!x.is_nan() && y.is_nan(), Loss::Nan);
        let has_no_nan = self.target.1 != Kind::Bool && !y.is_nan();
        losses.add_if(x.is_nan() && has_no_nan && (saturates || !is_integer), Loss::NanLost);
        losses.add_if(!x.is_zero() && !x.is_nan() && y.is_zero() && !is_beyond, Loss::Flushed);
        losses.add_if(is_beyond && is_integer && !saturates, Loss::Wrapped);
        losses.add_if(!x.equals(y), Loss::Inexact);
        losses.0 |= u16::from(x.is_nan()) << Losses::INPUT_NAN;
        losses.0 |= u16::from(x.number == Number::Infinite) << Losses::INPUT_INFINITE;
        losses
    }

    /// Whether integers take the nearest end of their range: of floats only, ONNX defines integer to integer.
    fn clamps(&self) -> bool {
        self.rules.out_of_range == OutOfRange::Saturate && !self.is_from_integer()
    }

    fn to_integer(&self, x: Value, bits: u32, min: i128, max: i128) -> (u64, bool) {
        let end = (if x.negative { min } else { max }) as u64 & mask(bits);
        let magnitude = match x.number {
            Number::Finite(magnitude) => magnitude,
            Number::Infinite => return (if self.clamps() { end } else { 0 }, true),
            Number::Nan(_) => return (0, true),
        };
        let integer = magnitude.integer(bits < 8);
        let low = if x.negative { integer.wrapping_neg() } else { integer };
        let is_in_range = magnitude.top < 64 && {
            let integer = if x.negative { -(integer as i128) } else { integer as i128 };
            (min..=max).contains(&integer)
        };
        let code = if !is_in_range && self.clamps() { end } else { low as u64 & mask(bits) };
        (code, !is_in_range)
    }

    fn to_scale(&self, x: Value) -> (u64, bool) {
        const NAN: u64 = 0xff;
        let is_negative = x.negative && !x.is_zero();
        let magnitude = match x.number {
            Number::Nan(_) => return (NAN, false),
            _ if is_negative => return (NAN, false),
            Number::Infinite => return (if self.rules.saturate { 0xfe } else { NAN }, true),
            Number::Finite(magnitude) => magnitude,
        };
        if magnitude > Magnitude::new(1, 127) {
            return (if self.rules.saturate { 0xfe } else { NAN }, true);
        }
        if magnitude < Magnitude::new(1, -127) {
            return (if self.rules.saturate { 0x00 } else { NAN }, true);
        }
        let is_up = match self.rules.round_mode {
            RoundMode::Up => magnitude > Magnitude::new(1, magnitude.top),
            RoundMode::Down => false,
            RoundMode::Nearest => magnitude >= Magnitude::new(3, magnitude.top - 1),
        };
        ((magnitude.top + 127 + i32::from(is_up)) as u64, false)
    }

    fn to_float(&self, x: Value, bits: u32, format: Format) -> (u64, bool) {
        let sign = u64::from(x.negative) << (bits - 1);
        let nan = match (format.special, x.number) {
            // ONNX's node tests: NaN -> -0, -NaN -> +0.
            (Special::Nothing, _) => sign ^ (1 << (bits - 1)),
            (Special::MinusZeroIsNan, _) => 1 << (bits - 1),
            (Special::AllOnesIsNan, _) => sign | mask(bits - 1),
            (Special::InfinityAndNan, number) => {
                let payload = match number {
                    Number::Nan(payload) if bits > 8 => payload,
                    _ => 0,
                };
                let quiet = (payload | 1 << 63) >> (64 - format.mantissa_bits);
                sign | mask(format.exponent_bits) << format.mantissa_bits | quiet
            }
        };
        let max = sign | self.max_finite;
        let saturates = bits < 8 || (bits == 8 && self.rules.saturate);
        let beyond = match format.special {
            _ if saturates => max,
            Special::InfinityAndNan => max + 1,
            _ => nan,
        };
        match x.number {
            Number::Nan(_) => (nan, false),
            Number::Infinite if format.special == Special::MinusZeroIsNan && !self.rules.infinity_saturates_fnuz => {
                (nan, true)
            }
            Number::Infinite => (beyond, true),
            Number::Finite(magnitude) => {
                let code = if bits <= 16 { self.nearest(magnitude) } else { nearest_wide(magnitude, format) };
                let has_sign = code != 0 || format.special != Special::MinusZeroIsNan;
                if code > self.max_finite { (beyond, true) } else { (if has_sign { sign | code } else { 0 }, false) }
            }
        }
    }

    /// The code nearest to a magnitude, in a tie the even one: as many as midpoints lie below it. One more than
    /// the largest finite code stands for everything beyond.
    fn nearest(&self, magnitude: Magnitude) -> u64 {
        let midpoints = &self.midpoints;
        let is_place = |place: usize| {
            midpoints[..place].last().is_none_or(|below| *below < magnitude)
                && midpoints[place..].first().is_none_or(|above| magnitude <= *above)
        };
        let last = self.place.get();
        let near = [last, last + 1].into_iter().find(|&place| place <= midpoints.len() && is_place(place));
        let place = near.unwrap_or_else(|| midpoints.partition_point(|below| *below < magnitude));
        self.place.set(place);
        let is_tie = midpoints.get(place) == Some(&magnitude);
        (if is_tie { place.next_multiple_of(2) } else { place }) as u64
    }
}

/// As [`Reference::nearest`] for formats with too many numbers to list: an integer in units of the last place.
fn nearest_wide(magnitude: Magnitude, format: Format) -> u64 {
    if magnitude == Magnitude::ZERO {
        return 0;
    }
    let precision = format.mantissa_bits as i32; // without the hidden bit
    let binade = magnitude.top.max(1 - format.bias);
    let in_units = Magnitude { top: magnitude.top - binade + precision, ..magnitude };
    let units = in_units.integer(true) as u64;
    // A subnormal number is its units. In the first normal binade the hidden bit adds up to field 1, in every
    // further one to one more; so does a carry out of the mantissa.
    (((binade + format.bias - 1) as u64) << precision) + units
}

/// The codes as the bytes of a tensor.
pub(crate) fn to_bytes(codes: impl IntoIterator<Item = u64>, storage: Storage) -> Vec<u8> {
    let (bits, kind) = kind(storage.dtype);
    let codes = codes.into_iter();
    let mut bytes = Vec::with_capacity(codes.size_hint().0 * bits.div_ceil(8) as usize);
    if bits < 8 && storage.layout == SubByteLayout::Packed {
        // Bit k of element i is bit i * bits + k of the stream, the lowest bit of a byte first.
        for (index, code) in codes.enumerate() {
            for bit in 0..bits as usize {
                let place = index * bits as usize + bit;
                bytes.resize(place / 8 + 1, 0);
                bytes[place / 8] |= ((code >> bit & 1) as u8) << (place % 8);
            }
        }
        return bytes;
    }
    for code in codes {
        let is_negative = kind == Kind::Signed && code >> (bits - 1) == 1;
        let extended = if is_negative { code | !mask(bits) } else { code };
        let element = &extended.to_le_bytes()[..bits.div_ceil(8) as usize];
        if storage.big_endian { bytes.extend(element.iter().rev()) } else { bytes.extend(element) }
    }
    bytes
}

/// The bits of one element among the bytes of a little endian tensor, with all bits of its bytes if not packed.
pub(crate) fn element(bytes: &[u8], storage: Storage, index: usize) -> u64 {
    let bits = bits(storage.dtype) as usize;
    let bits = if storage.layout == SubByteLayout::PerByte { bits.max(8) } else { bits };
    (0..bits)
        .map(|bit| (index * bits + bit, bit))
        .fold(0, |code, (place, bit)| code | u64::from(bytes[place / 8] >> (place % 8) & 1) << bit)
}
