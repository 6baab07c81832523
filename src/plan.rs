//! What becomes what, and where it goes. Everything that can be refused is refused here: once a plan stands,
//! only reading and writing can fail.

use crate::container::{Container, Contents, Elements, NewTensor, Tensor};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, Storage};
use crate::operator::cast::{self, Attributes};
use crate::select::Selection;
use std::ops::Range;

/// One output file: its first bytes, and its tensors, each with its source.
pub struct Plan {
    /// The first bytes of the file.
    pub header: Vec<u8>,
    /// In the order of the input.
    pub tensors: Vec<PlannedTensor>,
    /// Length of the file in bytes.
    pub len: u64,
}

/// One tensor of the output.
pub struct PlannedTensor {
    /// Its name; empty in a format without names.
    pub name: String,
    /// Lengths of the dimensions, the outermost first.
    pub shape: Vec<u64>,
    /// Number of elements.
    pub count: u64,
    /// Whether the elements lie in column-major order.
    pub fortran_order: bool,
    /// How the source's elements are stored.
    pub from: Storage,
    /// How the result's elements are stored.
    pub to: Storage,
    /// Whether values are converted; otherwise their bits are kept.
    pub is_cast: bool,
    /// What makes the result's bytes of the source's.
    pub kernel: Kernel,
    /// The source's bytes in the input file.
    pub source: Range<usize>,
    /// The result's bytes in the output file.
    pub target: Range<u64>,
}

/// Plans the cast of a file.
///
/// `from` says what untyped elements are; `name` is for the tensor of a format without names.
///
/// # Errors
/// When a pair of types cannot be cast, a tensor's type is not known, or the output cannot hold a result.
pub fn cast(
    contents: &Contents,
    container: &dyn Container,
    selection: &Selection,
    attributes: &Attributes,
    from: Option<Dtype>,
    name: Option<&str>,
) -> Result<Plan> {
    let alone = contents.tensors.len() == 1;
    if let Some(from) = from
        && !contents.tensors.iter().any(|tensor| reinterpreted(tensor, from).is_some())
    {
        let error = Error::new(format!("--from {from}: no tensor holds untyped elements of that width"));
        return Err(error.remedy("--from is for opaque bytes (numpy's V1, u1, safetensors' U8)"));
    }
    let mut planned = Vec::with_capacity(contents.tensors.len());
    for tensor in &contents.tensors {
        let in_tensor = |error: Error| error.in_tensor(&tensor.name);
        let name = name.unwrap_or(&tensor.name);
        let target = selection.target(name, known_dtype(tensor, from), alone);
        // What is left as it is keeps the type that it is stored as.
        let source = source_storage(tensor, from.filter(|_| target.is_some())).map_err(in_tensor)?;
        if let Some(target) = target {
            cast::check(source.dtype, target, attributes).map_err(in_tensor)?;
        }
        let new = NewTensor {
            name: name.to_owned(),
            dtype: target.unwrap_or(source.dtype),
            shape: tensor.shape.clone(),
            count: tensor.count,
            fortran_order: tensor.fortran_order,
        };
        planned.push((tensor, source, target, new));
    }
    let new: Vec<NewTensor> = planned.iter().map(|(.., new)| new.clone()).collect();
    let layout = container.lay_out(&new, contents.metadata.as_deref())?;
    let rules = attributes.rules();
    let tensors = planned.into_iter().zip(layout.places).map(|((tensor, from, target, new), (to, place))| {
        let kernel = if target.is_some() { Kernel::cast(from, to, &rules) } else { Kernel::copy(from, to) };
        let kernel = kernel
            .ok_or_else(|| Error::new(format!("{} cannot become {}", from.dtype, to.dtype)).in_tensor(&new.name))?;
        Ok(PlannedTensor {
            name: new.name,
            shape: new.shape,
            count: new.count,
            fortran_order: new.fortran_order,
            from,
            to,
            is_cast: target.is_some(),
            kernel,
            source: tensor.bytes.clone(),
            target: place,
        })
    });
    Ok(Plan { tensors: tensors.collect::<Result<_>>()?, header: layout.header, len: layout.len })
}

/// The type that decides whether a tensor is cast by default.
fn known_dtype(tensor: &Tensor, from: Option<Dtype>) -> Option<Dtype> {
    let reinterpreted = from.and_then(|from| reinterpreted(tensor, from));
    match (reinterpreted, tensor.elements) {
        (Some(storage), _) | (None, Elements::Typed(storage)) => Some(storage.dtype),
        (None, Elements::Untyped(_)) => None,
    }
}

/// How a tensor's bytes are to be read.
fn source_storage(tensor: &Tensor, from: Option<Dtype>) -> Result<Storage> {
    let reinterpreted = from.and_then(|from| reinterpreted(tensor, from));
    match (reinterpreted, tensor.elements, from) {
        (Some(storage), ..) | (None, Elements::Typed(storage), _) => Ok(storage),
        (None, Elements::Untyped(bytes), Some(from)) => {
            Err(Error::new(format!("--from {from} does not fit elements of {bytes} bytes")))
        }
        (None, Elements::Untyped(bytes), None) => {
            let candidates: Vec<&str> = Dtype::all().filter(|dtype| fits(*dtype, bytes)).map(Dtype::name).collect();
            let error = Error::new(format!("the file does not say what its {bytes}-byte elements are"));
            if candidates.is_empty() {
                return Err(error.remedy("tcast has no type of that width"));
            }
            Err(error.remedy(format!("say it with --from DTYPE: {}", candidates.join(", "))))
        }
    }
}

/// The storage of a tensor whose elements are opaque bytes or unsigned integers as wide as `from`'s.
fn reinterpreted(tensor: &Tensor, from: Dtype) -> Option<Storage> {
    match tensor.elements {
        Elements::Untyped(bytes) => fits(from, bytes).then(|| Storage::per_byte(from)),
        Elements::Typed(storage) => {
            let is_opaque = storage.dtype.class() == Class::Int { signed: false };
            let reinterpreted = Storage { dtype: from, ..storage };
            // Eight elements, because fewer packed ones can end inside a byte.
            (is_opaque && from.bits() != 0 && reinterpreted.bytes(8) == storage.bytes(8)).then_some(reinterpreted)
        }
    }
}

/// Whether an element of `dtype` takes `bytes` bytes where it has at least a byte of its own.
fn fits(dtype: Dtype, bytes: u32) -> bool {
    dtype.bits() != 0 && Storage::per_byte(dtype).bytes(1) == Some(bytes.into())
}
