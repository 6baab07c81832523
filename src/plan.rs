//! What becomes what, and where it goes. Everything that headers tell is refused here: once a plan stands, only
//! reading and writing can fail, and elements that are damaged, or that the rules of the cast forbid.

use crate::container::{Container, Data, Elements, Input, Metadata, NewTensor, Reader, Seal, Tensor};
use crate::conversion::{self, Conversion};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result, shorten};
use crate::kernel::{Form, Kernel, Storage, TextExtent};
use crate::operator::Operator;
use crate::select::{Rename, Selection};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// One output file: its tensors, each with its source, and the bytes around them.
pub struct Plan {
    /// Headers and the like, with their offsets in the file, in order.
    pub literals: Vec<(u64, Vec<u8>)>,
    /// In the order of the input.
    pub tensors: Vec<PlannedTensor>,
    /// Length of the file in bytes.
    pub len: u64,
}

/// One tensor of the output.
pub struct PlannedTensor {
    /// Its name; empty in a format without names.
    pub name: String,
    /// Whether the elements will lie in column-major order.
    pub fortran_order: bool,
    /// What makes the result's elements of the source's.
    pub conversion: Conversion,
    /// Whether the operator is applied; otherwise the tensor is copied.
    pub is_converted: bool,
    /// Where the elements come from.
    pub source: Tensor,
    /// The result's bytes in the output file.
    pub target: Range<u64>,
    /// A checksum of the result that is to be written as well.
    pub seal: Option<Seal>,
}

impl PlannedTensor {
    /// The elements, as messages name them.
    #[must_use]
    pub fn elements(&self) -> conversion::Elements<'_> {
        elements(&self.source, self.fortran_order)
    }

    /// Whether a column-major source becomes row-major.
    #[must_use]
    pub fn is_transposed(&self) -> bool {
        self.source.fortran_order != self.fortran_order
    }

    /// The kernel and the source's place, where any part of the tensor can be converted alone.
    #[must_use]
    pub fn direct(&self) -> Option<(&Kernel, usize, &Range<usize>)> {
        match (&self.source.data, self.conversion.kernel()) {
            (Data::Mapped { file, range, .. }, Some(kernel)) if !self.is_transposed() => Some((kernel, *file, range)),
            _ => None,
        }
    }
}

/// How far a tensor is read, told in bytes of its file, whatever it is compressed to.
pub struct Share {
    bytes: u64,
    elements: u64,
    told: u64,
}

impl Share {
    /// Of nothing yet.
    #[must_use]
    pub fn new(tensor: &Tensor) -> Self {
        Self { bytes: tensor.data.stored_len(), elements: tensor.count.max(1), told: 0 }
    }

    /// The bytes that are new when so many elements are done.
    pub fn up_to(&mut self, elements: u64) -> u64 {
        let read = (u128::from(self.bytes) * u128::from(elements) / u128::from(self.elements)) as u64;
        read - std::mem::replace(&mut self.told, read)
    }
}

fn elements(tensor: &Tensor, fortran_order: bool) -> conversion::Elements<'_> {
    conversion::Elements { count: tensor.count, shape: &tensor.shape, fortran_order }
}

/// Plans what an operator makes of a file. `from` says what untyped elements are; `measured` is told of bytes of input
/// that had to be read for it, which is so of tensors that become text.
///
/// # Errors
/// When the operator lacks a pair of types, a tensor's type is not known, or the output cannot hold a result.
pub fn apply(
    operator: &Operator,
    input: &Input,
    container: &dyn Container,
    selection: &Selection,
    from: Option<Dtype>,
    measured: &dyn Fn(u64),
) -> Result<Plan> {
    let mut chosen = choose(operator, input, container, selection, from)?;
    measure_texts(input, &mut chosen, measured)?;
    let new: Vec<NewTensor> = chosen.iter().map(|chosen| chosen.new.clone()).collect();
    let layout = container.lay_out(&new, metadata(input, container).as_deref())?;
    let tensors = chosen.into_iter().zip(layout.places).map(|(Chosen { tensor, from, target, new }, place)| {
        let to = place.form;
        let conversion = match operator {
            Operator::Cast(attributes) if target.is_some() => Conversion::cast(from, to, &attributes.rules()),
            Operator::Promote(attributes) if target.is_some() => {
                let rules = attributes.rules();
                Conversion::to_complex(from, to, &rules).or_else(|| Conversion::cast(from, to, &rules))
            }
            _ => Conversion::copy(from, to),
        };
        let conversion = conversion
            .ok_or_else(|| Error::new(format!("{} cannot become {}", from.dtype(), to.dtype())).in_tensor(&new.name))?;
        Ok(PlannedTensor {
            name: new.name,
            fortran_order: new.fortran_order,
            conversion,
            is_converted: target.is_some(),
            source: tensor.clone(),
            target: place.range,
            seal: place.seal,
        })
    });
    Ok(Plan { tensors: tensors.collect::<Result<_>>()?, literals: layout.literals, len: layout.len })
}

/// A tensor of the input, and what is to become of it.
struct Chosen<'a> {
    tensor: &'a Tensor,
    from: Form,
    /// The type to convert to; `None` where the tensor is copied.
    target: Option<Dtype>,
    new: NewTensor,
}

/// Decides for every tensor what becomes of it, and refuses what cannot be.
fn choose<'a>(
    operator: &Operator,
    input: &'a Input,
    container: &dyn Container,
    selection: &Selection,
    from: Option<Dtype>,
) -> Result<Vec<Chosen<'a>>> {
    let tensors = &input.contents.tensors;
    check_from(tensors, from)?;
    let names = new_names(input, container, &selection.renames)?;
    let choose = |tensor: &'a Tensor, name| {
        let target = selection.target(input.name_of(tensor), known_dtype(tensor, from), tensors.len() == 1);
        // What is left as it is keeps the type that it is stored as, if it has one.
        let is_untyped = matches!(tensor.elements, Elements::Untyped(_));
        let source = source_form(tensor, from.filter(|_| target.is_some() || is_untyped))?;
        // A promotion leaves what has the type already, float8 too, which a cast would saturate.
        let is_there = matches!(operator, Operator::Promote(_)) && target == Some(source.dtype());
        let target = target.filter(|_| !is_there);
        if let Some(target) = target {
            operator.check(source.dtype(), target)?;
        }
        let dtype = target.unwrap_or(source.dtype());
        if container.stores(dtype).is_none() {
            return Err(container.refusal(dtype));
        }
        let (shape, count) = (tensor.shape.clone(), tensor.count);
        let fortran_order = tensor.fortran_order && container.facts().has_fortran_order;
        let new = NewTensor { name, dtype, shape, count, fortran_order, text: TextExtent::default() };
        Ok(Chosen { tensor, from: source, target, new })
    };
    let chosen = tensors.iter().zip(names).map(|(tensor, name)| (tensor, choose(tensor, name)));
    chosen.map(|(tensor, chosen)| chosen.map_err(|error| error.in_tensor(&tensor.name))).collect()
}

/// Finds out how long the texts are that will be written: no file can be laid out without.
fn measure_texts(input: &Input, chosen: &mut [Chosen], measured: &dyn Fn(u64)) -> Result<()> {
    for Chosen { tensor, from, new, .. } in chosen.iter_mut().filter(|chosen| chosen.new.dtype == Dtype::String) {
        let transposed = tensor.fortran_order != new.fortran_order;
        let mut share = Share::new(tensor);
        new.text = Reader::open(tensor, &input.files, transposed)
            .and_then(|reader| {
                let progress = &mut |elements| measured(share.up_to(elements));
                conversion::measure(*from, elements(tensor, new.fortran_order), reader, progress)
            })
            .map_err(|error| error.in_tensor(&tensor.name))?;
    }
    Ok(())
}

/// The tensors' names in the output.
fn new_names(input: &Input, container: &dyn Container, renames: &[Rename]) -> Result<Vec<String>> {
    let tensors = &input.contents.tensors;
    // A nameless tensor of a format with names stays one where there is only it.
    let stays = input.container.facts().has_names && container.facts().holds_one;
    let mut names: Vec<String> = tensors
        .iter()
        .map(|tensor| if stays { tensor.name.clone() } else { input.name_of(tensor).to_owned() })
        .collect();
    let places: HashMap<&str, usize> = tensors.iter().map(|tensor| input.name_of(tensor)).zip(0..).collect();
    let mut done = HashSet::new();
    for Rename { old, new } in renames {
        let place = places.get(old.as_str());
        let &place = place.ok_or_else(|| Error::new(format!("--rename: there is no tensor '{}'", shorten(old))))?;
        if !done.insert(place) {
            return Err(Error::new("--rename names it twice").in_tensor(old));
        }
        names[place].clone_from(new);
    }
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(clash) if !renames.is_empty() => Err(Error::new("two tensors would have this name").in_tensor(clash)),
        _ => Ok(names),
    }
}

/// The metadata that goes into the output: the same, but for the mark of a format that it leaves or comes to.
fn metadata(input: &Input, container: &dyn Container) -> Option<Vec<(String, String)>> {
    let mut metadata = input.contents.metadata.clone()?;
    let (from, to) = (input.container.facts().metadata, container.facts().metadata);
    if from != to {
        if let Metadata::Marked(name, _) = from {
            metadata.retain(|(known, _)| known != name);
        }
        if let Metadata::Marked(name, value) = to
            && !metadata.iter().any(|(known, _)| known == name)
        {
            metadata.insert(0, (name.to_owned(), value.to_owned()));
        }
    }
    Some(metadata)
}

/// The type that decides whether a tensor is cast by default.
fn known_dtype(tensor: &Tensor, from: Option<Dtype>) -> Option<Dtype> {
    let reinterpreted = from.and_then(|from| reinterpreted(tensor, from));
    match (reinterpreted, tensor.elements) {
        (Some(storage), _) => Some(storage.dtype),
        (None, Elements::Typed(form)) => Some(form.dtype()),
        (None, Elements::Untyped(_)) => None,
    }
}

/// Refuses a `--from` that says nothing about any of these tensors.
///
/// # Errors
/// When there is one and it fits none of them.
pub fn check_from<'a>(tensors: impl IntoIterator<Item = &'a Tensor>, from: Option<Dtype>) -> Result<()> {
    match from {
        Some(from) if !tensors.into_iter().any(|tensor| reinterpreted(tensor, from).is_some()) => {
            let error = Error::new(format!("--from {from}: no tensor holds untyped elements of that width"));
            Err(error.remedy("--from is for opaque bytes (numpy's V1, u1, safetensors' U8)"))
        }
        _ => Ok(()),
    }
}

/// How a tensor's bytes are to be read; `from` says what untyped elements are.
///
/// # Errors
/// When the elements are untyped and `from` is missing or does not fit.
pub fn source_form(tensor: &Tensor, from: Option<Dtype>) -> Result<Form> {
    let reinterpreted = from.and_then(|from| reinterpreted(tensor, from));
    match (reinterpreted, tensor.elements, from) {
        (Some(storage), ..) => Ok(Form::Numbers(storage)),
        (None, Elements::Typed(form), _) => Ok(form),
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
        Elements::Typed(Form::Numbers(storage)) => {
            let is_opaque = storage.dtype.class() == Class::Int { signed: false };
            let reinterpreted = Storage { dtype: from, ..storage };
            // Eight elements, because fewer packed ones can end inside a byte.
            (is_opaque && from.bits() != 0 && reinterpreted.bytes(8) == storage.bytes(8)).then_some(reinterpreted)
        }
        Elements::Typed(Form::Texts(_)) => None,
    }
}

/// Whether an element of `dtype` takes `bytes` bytes where it has at least a byte of its own.
fn fits(dtype: Dtype, bytes: u32) -> bool {
    dtype.bits() != 0 && Storage::per_byte(dtype).bytes(1) == Some(bytes.into())
}
