//! The dtype table: one row per element type. No other part of the program lists the types.
//!
//! Canonical names are ONNX's, with `float32` and `float64` for ONNX's `float` and `double`. The types after the ONNX
//! types exist only in `ml_dtypes`: files can hold them, but nothing is cast to them. A new dtype is a row of the
//! table.

mod float_format;
mod names;
mod values;

#[doc(hidden)] // for conversions
pub use float_format::{FloatEdges, FloatFormat, Specials};
pub use names::UnknownDtype;

use std::fmt;

/// Kind of number that a dtype holds, and the interpretation of its bits.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// One byte, zero or not zero.
    Bool,
    /// Two's complement, or unsigned.
    Int {
        /// Two's complement when true.
        signed: bool,
    },
    /// A sign, an exponent and a mantissa.
    Float(FloatFormat),
    /// E8M0 of OCP MX 1.0: a biased power of two, no sign, no zero, one NaN.
    Scale,
    /// Two IEEE floats, real part first.
    Complex,
    /// Text; elements have no fixed width.
    String,
}

/// One row of the table.
struct DtypeRow {
    dtype: Dtype,
    name: &'static str,
    /// ONNX `TensorProto.DataType`: number and name, where ONNX has the type.
    onnx: Option<(u8, &'static str)>,
    bits: u32,
    class: Class,
    /// The name in a safetensors header, where that format has the type.
    safetensors: Option<&'static str>,
    /// numpy's type code without byte order, where numpy itself has the type.
    numpy: Option<&'static str>,
    /// The name in `ml_dtypes`: the field name that marks the type in a .npy file.
    ml_dtypes: Option<&'static str>,
    /// Further spellings, lower case, without `_` and `-`.
    aliases: &'static [&'static str],
}

const SIGNED: Class = Class::Int { signed: true };
const UNSIGNED: Class = Class::Int { signed: false };

const fn float(exponent_bits: u32, mantissa_bits: u32, bias: i32, specials: Specials) -> Class {
    Class::Float(FloatFormat { exponent_bits, mantissa_bits, bias, specials })
}

use Specials::{Finite, Fn, Fnuz, Ieee};

/// Generates [`Dtype`] and its table from one list, so that every variant has a row.
macro_rules! dtypes {
    ($($variant:ident { name: $name:literal, $($row:tt)* })*) => {
        /// An element type of a tensor.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Dtype {
            $(#[doc = $name] $variant,)*
        }

        static TABLE: &[DtypeRow] = &[$(DtypeRow { dtype: Dtype::$variant, name: $name, $($row)* },)*];
    };
}

dtypes! {
    Bool { name: "bool", onnx: Some((9, "BOOL")), bits: 8, class: Class::Bool, safetensors: Some("BOOL"), numpy: Some("b1"), ml_dtypes: None, aliases: &["boolean"] }
    Int2 { name: "int2", onnx: Some((26, "INT2")), bits: 2, class: SIGNED, safetensors: None, numpy: None, ml_dtypes: Some("int2"), aliases: &["i2"] }
    Int4 { name: "int4", onnx: Some((22, "INT4")), bits: 4, class: SIGNED, safetensors: None, numpy: None, ml_dtypes: Some("int4"), aliases: &["i4"] }
    Int8 { name: "int8", onnx: Some((3, "INT8")), bits: 8, class: SIGNED, safetensors: Some("I8"), numpy: Some("i1"), ml_dtypes: None, aliases: &["i8", "s8"] }
    Int16 { name: "int16", onnx: Some((5, "INT16")), bits: 16, class: SIGNED, safetensors: Some("I16"), numpy: Some("i2"), ml_dtypes: None, aliases: &["i16", "short", "s16"] }
    Int32 { name: "int32", onnx: Some((6, "INT32")), bits: 32, class: SIGNED, safetensors: Some("I32"), numpy: Some("i4"), ml_dtypes: None, aliases: &["i32", "torch.int", "s32"] }
    Int64 { name: "int64", onnx: Some((7, "INT64")), bits: 64, class: SIGNED, safetensors: Some("I64"), numpy: Some("i8"), ml_dtypes: None, aliases: &["i64", "long", "s64"] }
    Uint2 { name: "uint2", onnx: Some((25, "UINT2")), bits: 2, class: UNSIGNED, safetensors: None, numpy: None, ml_dtypes: Some("uint2"), aliases: &["u2"] }
    Uint4 { name: "uint4", onnx: Some((21, "UINT4")), bits: 4, class: UNSIGNED, safetensors: None, numpy: None, ml_dtypes: Some("uint4"), aliases: &["u4"] }
    Uint8 { name: "uint8", onnx: Some((2, "UINT8")), bits: 8, class: UNSIGNED, safetensors: Some("U8"), numpy: Some("u1"), ml_dtypes: None, aliases: &["u8", "byte"] }
    Uint16 { name: "uint16", onnx: Some((4, "UINT16")), bits: 16, class: UNSIGNED, safetensors: Some("U16"), numpy: Some("u2"), ml_dtypes: None, aliases: &["u16", "ushort"] }
    Uint32 { name: "uint32", onnx: Some((12, "UINT32")), bits: 32, class: UNSIGNED, safetensors: Some("U32"), numpy: Some("u4"), ml_dtypes: None, aliases: &["u32"] }
    Uint64 { name: "uint64", onnx: Some((13, "UINT64")), bits: 64, class: UNSIGNED, safetensors: Some("U64"), numpy: Some("u8"), ml_dtypes: None, aliases: &["u64", "ulong"] }
    Float4E2M1 { name: "float4e2m1", onnx: Some((23, "FLOAT4E2M1")), bits: 4, class: float(2, 1, 1, Finite), safetensors: Some("F4"), numpy: None, ml_dtypes: Some("float4_e2m1fn"), aliases: &["float4e2m1fn", "float4e2m1fnx2", "f4e2m1", "f4e2m1fn", "fp4e2m1", "fp4e2m1fn", "e2m1", "fp4", "float4"] }
    Float6E2M3 { name: "float6e2m3", onnx: Some((27, "FLOAT6E2M3")), bits: 6, class: float(2, 3, 1, Finite), safetensors: Some("F6_E2M3"), numpy: None, ml_dtypes: Some("float6_e2m3fn"), aliases: &["float6e2m3fn", "f6e2m3fn", "fp6e2m3", "fp6e2m3fn", "e2m3"] }
    Float6E3M2 { name: "float6e3m2", onnx: Some((28, "FLOAT6E3M2")), bits: 6, class: float(3, 2, 3, Finite), safetensors: Some("F6_E3M2"), numpy: None, ml_dtypes: Some("float6_e3m2fn"), aliases: &["float6e3m2fn", "f6e3m2fn", "fp6e3m2", "fp6e3m2fn", "e3m2"] }
    Float8E4M3FN { name: "float8e4m3fn", onnx: Some((17, "FLOAT8E4M3FN")), bits: 8, class: float(4, 3, 7, Fn), safetensors: Some("F8_E4M3"), numpy: None, ml_dtypes: Some("float8_e4m3fn"), aliases: &["f8e4m3", "f8e4m3fn", "fp8e4m3", "fp8e4m3fn", "e4m3", "e4m3fn"] }
    Float8E4M3FNUZ { name: "float8e4m3fnuz", onnx: Some((18, "FLOAT8E4M3FNUZ")), bits: 8, class: float(4, 3, 8, Fnuz), safetensors: Some("F8_E4M3FNUZ"), numpy: None, ml_dtypes: Some("float8_e4m3fnuz"), aliases: &["f8e4m3fnuz", "fp8e4m3fnuz", "e4m3fnuz"] }
    Float8E5M2 { name: "float8e5m2", onnx: Some((19, "FLOAT8E5M2")), bits: 8, class: float(5, 2, 15, Ieee), safetensors: Some("F8_E5M2"), numpy: None, ml_dtypes: Some("float8_e5m2"), aliases: &["f8e5m2", "fp8e5m2", "e5m2"] }
    Float8E5M2FNUZ { name: "float8e5m2fnuz", onnx: Some((20, "FLOAT8E5M2FNUZ")), bits: 8, class: float(5, 2, 16, Fnuz), safetensors: Some("F8_E5M2FNUZ"), numpy: None, ml_dtypes: Some("float8_e5m2fnuz"), aliases: &["f8e5m2fnuz", "fp8e5m2fnuz", "e5m2fnuz"] }
    Float8E8M0 { name: "float8e8m0", onnx: Some((24, "FLOAT8E8M0")), bits: 8, class: Class::Scale, safetensors: Some("F8_E8M0"), numpy: None, ml_dtypes: Some("float8_e8m0fnu"), aliases: &["float8e8m0fnu", "f8e8m0", "f8e8m0fnu", "fp8e8m0", "fp8e8m0fnu", "e8m0", "e8m0fnu"] }
    Float16 { name: "float16", onnx: Some((10, "FLOAT16")), bits: 16, class: Class::Float(FloatFormat::FLOAT16), safetensors: Some("F16"), numpy: Some("f2"), ml_dtypes: None, aliases: &["f16", "fp16", "half", "f2"] }
    Bfloat16 { name: "bfloat16", onnx: Some((16, "BFLOAT16")), bits: 16, class: float(8, 7, 127, Ieee), safetensors: Some("BF16"), numpy: None, ml_dtypes: Some("bfloat16"), aliases: &["bf16"] }
    Float32 { name: "float32", onnx: Some((1, "FLOAT")), bits: 32, class: float(8, 23, 127, Ieee), safetensors: Some("F32"), numpy: Some("f4"), ml_dtypes: None, aliases: &["f32", "fp32", "single", "f4"] }
    Float64 { name: "float64", onnx: Some((11, "DOUBLE")), bits: 64, class: float(11, 52, 1023, Ieee), safetensors: Some("F64"), numpy: Some("f8"), ml_dtypes: None, aliases: &["f64", "fp64"] }
    Complex64 { name: "complex64", onnx: Some((14, "COMPLEX64")), bits: 64, class: Class::Complex, safetensors: Some("C64"), numpy: Some("c8"), ml_dtypes: None, aliases: &["c64", "c8", "cfloat"] }
    Complex128 { name: "complex128", onnx: Some((15, "COMPLEX128")), bits: 128, class: Class::Complex, safetensors: None, numpy: Some("c16"), ml_dtypes: None, aliases: &["c128", "c16", "cdouble"] }
    String { name: "string", onnx: Some((8, "STRING")), bits: 0, class: Class::String, safetensors: None, numpy: None, ml_dtypes: None, aliases: &["str"] }
    Int1 { name: "int1", onnx: None, bits: 1, class: SIGNED, safetensors: None, numpy: None, ml_dtypes: Some("int1"), aliases: &[] }
    Uint1 { name: "uint1", onnx: None, bits: 1, class: UNSIGNED, safetensors: None, numpy: None, ml_dtypes: Some("uint1"), aliases: &[] }
    Float8E3M4 { name: "float8e3m4", onnx: None, bits: 8, class: float(3, 4, 3, Ieee), safetensors: None, numpy: None, ml_dtypes: Some("float8_e3m4"), aliases: &["f8e3m4", "fp8e3m4", "e3m4"] }
    Float8E4M3 { name: "float8e4m3", onnx: None, bits: 8, class: float(4, 3, 7, Ieee), safetensors: None, numpy: None, ml_dtypes: Some("float8_e4m3"), aliases: &[] }
    Float8E4M3B11FNUZ { name: "float8e4m3b11fnuz", onnx: None, bits: 8, class: float(4, 3, 11, Fnuz), safetensors: None, numpy: None, ml_dtypes: Some("float8_e4m3b11fnuz"), aliases: &["float8e4m3b11", "f8e4m3b11fnuz", "fp8e4m3b11fnuz", "e4m3b11fnuz"] }
}

impl Dtype {
    /// Every dtype, in the order of the table.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.dtype)
    }

    fn row(self) -> &'static DtypeRow {
        &TABLE[self as usize]
    }

    /// The canonical name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The number in ONNX's `TensorProto.DataType`, if ONNX has the type: only then can anything be cast to it.
    #[must_use]
    pub fn onnx_number(self) -> Option<u8> {
        self.row().onnx.map(|(number, _)| number)
    }

    /// The name in ONNX's `TensorProto.DataType`; `None` for the types that ONNX lacks.
    #[must_use]
    pub fn onnx_name(self) -> Option<&'static str> {
        Some(self.row().onnx?.1)
    }

    /// Width of one element in bits; 0 for strings, which have none.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.row().bits
    }

    /// The name in a safetensors header, where that format has the type.
    #[must_use]
    pub fn safetensors_name(self) -> Option<&'static str> {
        self.row().safetensors
    }

    /// numpy's type code without byte order (`f4`), where numpy itself has the type.
    #[must_use]
    pub fn numpy_code(self) -> Option<&'static str> {
        self.row().numpy
    }

    /// The name in `ml_dtypes`, where numpy itself lacks the type.
    #[must_use]
    pub fn ml_dtypes_name(self) -> Option<&'static str> {
        self.row().ml_dtypes
    }

    /// True for types with a fraction: floats and E8M0, as in torch's `is_floating_point`.
    #[must_use]
    pub fn is_floating(self) -> bool {
        matches!(self.class(), Class::Float(_) | Class::Scale)
    }

    /// Size in bytes of `count` elements that are packed without gaps; the last byte is padded with zeros. `None` if
    /// the number does not fit in 64 bits.
    #[must_use]
    pub fn packed_bytes(self, count: u64) -> Option<u64> {
        Some(count.checked_mul(u64::from(self.bits()))?.div_ceil(8))
    }
}

#[doc(hidden)] // for conversions, and the rules of operators
impl Dtype {
    /// The kind of number, with its format.
    #[must_use]
    pub fn class(self) -> Class {
        self.row().class
    }

    /// True for the four float8 types that ONNX's `saturate` applies to.
    #[must_use]
    pub fn is_float8(self) -> bool {
        matches!(self.class(), Class::Float(_)) && self.bits() == 8 && self.onnx_number().is_some()
    }

    /// True for the types of plain weights and their scales: float32, bfloat16 and float16.
    #[must_use]
    pub fn is_weight(self) -> bool {
        matches!(self, Self::Float32 | Self::Bfloat16 | Self::Float16)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn onnx_numbers_are_1_to_28_each_once() {
        let mut numbers: Vec<u8> = Dtype::all().filter_map(Dtype::onnx_number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=28).collect::<Vec<u8>>());
    }

    #[test]
    fn a_float_is_as_wide_as_its_fields() {
        for row in TABLE {
            if let Class::Float(format) = row.class {
                assert_eq!(1 + format.exponent_bits + format.mantissa_bits, row.bits, "{}", row.name);
            }
        }
    }
}
