//! The element types of torch, and the classes of their storages.

use crate::dtype::Dtype;
use crate::kernel::{Storage, SubByteLayout};

/// An element type of torch.
#[derive(Debug)]
pub(super) struct TorchType {
    /// The name in messages, after the module `torch`.
    pub(super) name: &'static str,
    /// Another name, which torch has for types of C.
    alias: &'static str,
    /// The class of its storages, without the `Storage` at the end; empty if it has none.
    storage: &'static str,
    /// Size of an element in bytes.
    pub(super) width: u64,
    /// The type here, if there is one.
    pub(super) dtype: Option<Dtype>,
}

const fn row(
    name: &'static str,
    alias: &'static str,
    storage: &'static str,
    width: u64,
    dtype: Option<Dtype>,
) -> TorchType {
    TorchType { name, alias, storage, width, dtype }
}

/// The bytes of a storage without a type.
pub(super) static BYTES: TorchType = row("uint8", "", "Byte", 1, Some(Dtype::Uint8));
/// Two elements in each byte: a shape of torch counts the bytes.
const PAIRS: &str = "float4_e2m1fn_x2";

static TYPES: &[TorchType] = &[
    row("float32", "float", "Float", 4, Some(Dtype::Float32)),
    row("float64", "double", "Double", 8, Some(Dtype::Float64)),
    row("float16", "half", "Half", 2, Some(Dtype::Float16)),
    row("bfloat16", "", "BFloat16", 2, Some(Dtype::Bfloat16)),
    row("int64", "long", "Long", 8, Some(Dtype::Int64)),
    row("int32", "int", "Int", 4, Some(Dtype::Int32)),
    row("int16", "short", "Short", 2, Some(Dtype::Int16)),
    row("int8", "", "Char", 1, Some(Dtype::Int8)),
    row("uint8", "", "Byte", 1, Some(Dtype::Uint8)),
    row("bool", "", "Bool", 1, Some(Dtype::Bool)),
    row("uint16", "", "", 2, Some(Dtype::Uint16)),
    row("uint32", "", "", 4, Some(Dtype::Uint32)),
    row("uint64", "", "", 8, Some(Dtype::Uint64)),
    row("float8_e4m3fn", "", "", 1, Some(Dtype::Float8E4M3FN)),
    row("float8_e5m2", "", "", 1, Some(Dtype::Float8E5M2)),
    row("float8_e4m3fnuz", "", "", 1, Some(Dtype::Float8E4M3FNUZ)),
    row("float8_e5m2fnuz", "", "", 1, Some(Dtype::Float8E5M2FNUZ)),
    row("float8_e8m0fnu", "", "", 1, Some(Dtype::Float8E8M0)),
    row(PAIRS, "", "", 1, Some(Dtype::Float4E2M1)),
    row("complex64", "cfloat", "ComplexFloat", 8, Some(Dtype::Complex64)),
    row("complex128", "cdouble", "ComplexDouble", 16, Some(Dtype::Complex128)),
    row("complex32", "chalf", "", 4, None),
    row("bits8", "", "", 1, Some(Dtype::Uint8)),
    row("bits16", "", "", 2, Some(Dtype::Uint16)),
    row("qint8", "", "QInt8", 1, None),
    row("quint8", "", "QUInt8", 1, None),
    row("qint32", "", "QInt32", 4, None),
    row("quint4x2", "", "QUInt4x2", 1, None),
    row("quint2x4", "", "QUInt2x4", 1, None),
];

impl TorchType {
    /// Returns the type of this name.
    pub(super) fn named(module: &[u8], name: &[u8]) -> Option<&'static Self> {
        let is_name =
            |known: &&Self| known.name.as_bytes() == name || !known.alias.is_empty() && known.alias.as_bytes() == name;
        if module == b"torch" { TYPES.iter().find(is_name) } else { None }
    }

    /// Returns the type whose elements have this dtype, each in whole bytes.
    pub(super) fn of_dtype(dtype: Dtype) -> Option<&'static Self> {
        TYPES.iter().find(|known| known.dtype == Some(dtype) && known.elements() == 1)
    }

    /// Returns the type of the elements of a storage of this class, in the memory of any device.
    pub(super) fn of_storage(module: &[u8], class: &[u8]) -> Option<&'static Self> {
        let class = class.strip_suffix(b"Storage").filter(|class| !class.is_empty())?;
        match module {
            b"torch.storage" | b"torch" if class == b"Untyped" => Some(&BYTES),
            b"torch" | b"torch.cuda" => TYPES.iter().find(|known| known.storage.as_bytes() == class),
            _ => None,
        }
    }

    /// Describes a type that is not here.
    pub(super) fn refusal(&self) -> String {
        let why = if self.name == "complex32" { ": other formats have no pairs of float16" } else { "" };
        format!("has the unsupported dtype torch.{}{why}", self.name)
    }

    /// Number of elements in the bytes that torch counts as one element.
    pub(super) fn elements(&self) -> u64 {
        if self.name == PAIRS { 2 } else { 1 }
    }

    /// Returns the storage of its elements; `None` if there is no such type here.
    pub(super) fn form(&self, big_endian: bool) -> Option<Storage> {
        Some(Storage { dtype: self.dtype?, layout: SubByteLayout::Packed, big_endian })
    }
}
