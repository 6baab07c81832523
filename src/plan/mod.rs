//! What becomes what, and where it goes. Everything that headers tell is refused here: once a plan stands, only
//! reading and writing can fail, and elements that are damaged, or that the rules of the cast forbid.

mod source;

pub(crate) use source::check_from;
#[doc(hidden)] // for tests
pub use source::source_form;

use crate::container::{Container, Elements, Form, Input, Metadata, NewTensor, Seal, Tensor};
use crate::conversion::{self, Conversion};
use crate::dtype::Dtype;
use crate::error::{Error, Result, shorten};
use crate::io::map::MappedFile;
use crate::kernel::{Condition, Kernel};
use crate::operator::Operator;
use crate::read::{Mapped, Share, Stored};
use crate::scaled::Codes;
use crate::select::{Candidate, Kept, Rename, Selection};
use source::{known_dtype, opaque_form};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// What is to be done with the tensors of some files that belong together.
#[non_exhaustive]
pub struct Request<'a> {
    /// What is done to the tensors that are chosen.
    pub operator: Operator,
    /// Which those are, and what they become.
    pub selection: &'a Selection,
    /// What untyped elements are.
    pub from: Option<Dtype>,
    /// The format of the outputs.
    pub container: &'a dyn Container,
    /// The tensors that no cast may take for values.
    #[doc(hidden)] // for the program
    pub codes: Option<&'a Codes>,
    /// What the caller refuses: of each tensor the first element that meets it is found.
    pub fail_on: &'a [Condition],
}

impl<'a> Request<'a> {
    /// The operator on what is selected, and nothing besides.
    #[must_use]
    pub fn new(operator: Operator, selection: &'a Selection, container: &'a dyn Container) -> Self {
        Self { operator, selection, from: None, container, codes: None, fail_on: &[] }
    }
}

/// How tensors are spread over output files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// An output for each input.
    AsInputs,
    /// One output.
    One,
    /// So many bytes of tensors in each output, in the order of the inputs; a tensor of more has one for itself.
    UpTo(u64),
}

/// One output file: the steps that make its tensors, and the bytes around them.
pub struct Plan<'a> {
    /// Headers and the like, with their offsets in the file, in order.
    #[doc(hidden)] // for tests
    pub literals: Vec<(u64, Vec<u8>)>,
    /// In the order of the input.
    pub steps: Vec<Step<'a>>,
    /// Length of the file in bytes.
    pub len: u64,
    /// Whether the caller deflates the file when it is written.
    pub(crate) is_deflated: bool,
}

/// What becomes of one logical tensor: the stored tensors that are its parts, the tensors of the output that are made of
/// them, and how. A plain tensor is stored as one.
pub struct Step<'a> {
    /// Its parts. There is at least one.
    pub(crate) sources: Vec<Stored<'a>>,
    /// What is written. There is at least one.
    pub(crate) results: Vec<NewStored<'a>>,
    /// What makes the results' elements of the sources'.
    pub(crate) conversion: Conversion,
    /// Whether the operator is applied; otherwise the tensor is copied.
    pub is_converted: bool,
    /// Why it is copied, if it is.
    pub(crate) kept: Option<Kept>,
}

/// A tensor of the output, and where it goes.
pub(crate) struct NewStored<'a> {
    /// Its name; empty in a format without names.
    pub name: Cow<'a, str>,
    /// Whether the elements will lie in column-major order.
    pub fortran_order: bool,
    /// Its bytes in the output file.
    pub range: Range<u64>,
    /// A checksum of them that is to be written as well.
    pub seal: Option<Box<Seal>>,
}

impl Plan<'_> {
    /// Bytes that the file takes on the disk while it is written: what is deflated is there twice.
    #[must_use]
    pub(crate) fn room(&self) -> u64 {
        if self.is_deflated { self.len.saturating_mul(2) } else { self.len }
    }

    /// Bytes of all tensors, without what is around them.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.steps.iter().map(Step::bytes_out).sum()
    }

    /// Bytes that the tensors take in their files.
    #[must_use]
    pub fn source_bytes(&self) -> u64 {
        self.steps.iter().map(Step::bytes_in).sum()
    }

    /// Names of the tensors of the output.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().flat_map(|step| &step.results).map(|result| &*result.name)
    }

    /// Refuses what was read of files that somebody has written to meanwhile.
    ///
    /// # Errors
    /// When one that a tensor comes from is not what it was.
    pub fn check_unchanged(&self) -> Result<()> {
        let mut used: Vec<&[MappedFile]> = Vec::new();
        for source in self.steps.iter().flat_map(|step| &step.sources) {
            // Neighbours come from the same file most often.
            if !used.last().is_some_and(|last| std::ptr::eq(*last, source.files)) {
                used.push(source.files);
            }
        }
        used.sort_unstable_by_key(|files| files.as_ptr());
        used.dedup_by_key(|files| files.as_ptr());
        used.into_iter().flatten().try_for_each(MappedFile::check_unchanged)
    }
}

impl<'a> Step<'a> {
    /// Its name in the output; empty in a format without names.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.results[0].name
    }

    /// The stored tensor that holds its elements.
    #[must_use]
    pub fn source(&self) -> &'a Tensor {
        self.sources[0].tensor
    }

    /// What it is called in the input; where that says nothing, as in the output.
    #[must_use]
    pub(crate) fn source_name(&self) -> &str {
        if self.source().name.is_empty() { self.name() } else { &self.source().name }
    }

    /// The type of the elements, and the one that they get.
    #[must_use]
    pub fn dtypes(&self) -> (Dtype, Dtype) {
        (self.conversion.from.dtype(), self.conversion.to.dtype())
    }

    /// How the results are stored.
    #[must_use]
    #[doc(hidden)] // for tests
    pub fn form(&self) -> Form {
        self.conversion.to
    }

    /// Where the first result lies in the output file.
    #[must_use]
    #[doc(hidden)] // for tests
    pub fn target(&self) -> Range<u64> {
        self.results[0].range.clone()
    }

    /// Bytes that its parts take in their files.
    #[must_use]
    pub fn bytes_in(&self) -> u64 {
        self.sources.iter().map(Stored::stored_len).sum()
    }

    /// Bytes that its results take.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        self.results.iter().map(|result| result.range.end - result.range.start).sum()
    }

    /// An error of its elements, with the file that they are in.
    pub(crate) fn error(&self, error: Error) -> Error {
        self.sources[0].error(error.in_tensor(self.name()))
    }

    /// The kernel and the source's bytes, where any part of the tensor can be converted alone.
    #[must_use]
    pub(crate) fn direct(&self) -> Option<(&Kernel, Mapped<'a>)> {
        Some((self.conversion.kernel()?, self.sources[0].mapped()?))
    }
}

/// Plans what becomes of files that belong together; `measured` is told of bytes of input that had to be read for it,
/// which is so of tensors that become text.
///
/// # Errors
/// When the operator lacks a pair of types, a tensor's type is not known, an output cannot hold a result, or a cast would
/// take codes for values.
pub fn build<'a>(
    request: &Request,
    inputs: &'a [Input],
    spread: Spread,
    measured: &dyn Fn(u64),
) -> Result<Vec<Plan<'a>>> {
    let mut chosen = choose(request, inputs)?;
    measure_texts(&mut chosen, measured)?;
    let mut plans = Vec::new();
    let mut conversions = Conversions { operator: request.operator, known: Vec::new() };
    for (at, group) in groups(chosen, inputs.len(), spread).into_iter().enumerate() {
        let new: Vec<&NewTensor> = group.iter().map(|chosen| &chosen.new).collect();
        let mut sources: Vec<usize> = group.iter().map(|chosen| chosen.input).collect();
        sources.dedup();
        if spread == Spread::AsInputs {
            sources = vec![at]; // one without tensors too
        } else if sources.is_empty() {
            sources = (0..inputs.len()).collect(); // there are no tensors at all
        }
        let metadata = merge_metadata(sources.iter().map(|input| &inputs[*input]), request.container);
        let layout = request.container.lay_out(&new, metadata.as_deref())?;
        let mut steps = Vec::with_capacity(group.len());
        for (Chosen { source, from, target, new, .. }, place) in group.into_iter().zip(layout.places) {
            let to = place.form;
            let conversion = conversions.get(from, to, target.is_ok());
            let is_watched = target.is_ok() && !request.fail_on.is_empty();
            let conversion = conversion.map(|found| if is_watched { found.watch(request.fail_on) } else { found });
            let refused = || Error::new(format!("{} cannot become {}", from.dtype(), to.dtype())).in_tensor(&new.name);
            let conversion = conversion.ok_or_else(refused)?;
            let NewTensor { name, fortran_order, .. } = new;
            let result = NewStored { name, fortran_order, range: place.range, seal: place.seal };
            steps.push(Step {
                sources: vec![source],
                results: vec![result],
                conversion,
                is_converted: target.is_ok(),
                kept: target.err(),
            });
        }
        plans.push(Plan { steps, literals: layout.literals, len: layout.len, is_deflated: false });
    }
    Ok(plans)
}

/// Refuses what can be refused without laying anything out, which for texts would read them.
///
/// # Errors
/// As [`apply`].
pub(crate) fn check(request: &Request, inputs: &[Input]) -> Result<()> {
    choose(request, inputs).map(drop)
}

/// The conversions of a plan: one of each kind, shared by all of its tensors.
struct Conversions {
    operator: Operator,
    known: Vec<(bool, Conversion)>,
}

impl Conversions {
    /// `None` where there is none.
    fn get(&mut self, from: Form, to: Form, is_converted: bool) -> Option<Conversion> {
        let is_it = |known: &&(bool, Conversion)| known.0 == is_converted && known.1.from == from && known.1.to == to;
        if let Some((_, known)) = self.known.iter().find(is_it) {
            return Some(known.clone());
        }
        let conversion = match self.operator {
            Operator::Cast(attributes) if is_converted => Conversion::cast(from, to, attributes.rules()),
            Operator::Promote(attributes) if is_converted => {
                let rules = attributes.rules();
                Conversion::to_complex(from, to, rules).or_else(|| Conversion::cast(from, to, rules))
            }
            _ => Conversion::copy(from, to),
        }?;
        self.known.push((is_converted, conversion.clone()));
        Some(conversion)
    }
}

/// A tensor of the input, and what is to become of it.
struct Chosen<'a> {
    input: usize,
    source: Stored<'a>,
    from: Form,
    /// The type to convert to, or why the tensor is copied.
    target: Result<Dtype, Kept>,
    new: NewTensor<'a>,
}

/// Decides for every tensor what becomes of it, and refuses what cannot be.
fn choose<'a>(request: &Request, inputs: &'a [Input]) -> Result<Vec<Chosen<'a>>> {
    let Request { operator, selection, from, container, codes, .. } = *request;
    let all = || inputs.iter().enumerate().flat_map(|(at, input)| input.contents.tensors.iter().map(move |t| (at, t)));
    check_from(all().map(|(_, tensor)| tensor), from)?;
    let names = new_names(inputs, container, &selection.renames)?;
    let choose = |input: usize, tensor: &'a Tensor, new_name| {
        let (name, dtype) = (inputs[input].name_of(tensor), known_dtype(tensor, from));
        let is_alone = inputs[input].container.facts().holds_one;
        let target = selection.target(&Candidate { name, dtype, rank: tensor.shape.len(), is_alone });
        let (shape, count, files) = (&tensor.shape[..], tensor.count, &inputs[input].files[..]);
        if tensor.elements == Elements::Opaque {
            let formats = [&inputs[input].container.facts(), &container.facts()];
            let form = opaque_form(tensor, target.is_ok(), name, formats)?;
            let (dtype, opaque) = (form.dtype(), Some(&*tensor.stored));
            let new = NewTensor { name: new_name, dtype, shape, count, fortran_order: false, text: None, opaque };
            let source = Stored { files, tensor, elements: tensor.elements, is_transposed: false };
            return Ok(Chosen { input, source, from: form, target: Err(Kept::LeftOut), new });
        }
        // What is left as it is keeps the type that it is stored as, if it has one.
        let is_untyped = matches!(tensor.elements, Elements::Untyped(_));
        let form = source_form(tensor, from.filter(|_| target.is_ok() || is_untyped))?;
        if let Ok(target) = target
            && (target != form.dtype() || !matches!(operator, Operator::Promote(_)))
        {
            operator.check(form.dtype(), target)?;
        }
        let target = target.and_then(|target| {
            let is_there = target == form.dtype() && operator.keeps(target);
            if is_there { Err(Kept::Already) } else { Ok(target) }
        });
        if target.is_ok() {
            // A rule names the tensors that it means.
            let codes = codes.filter(|_| selection.rule(name).is_none());
            if let Some((message, remedy)) = codes.and_then(|codes| codes.refusal(name)) {
                return Err(Error::new(message).remedy(remedy));
            }
        }
        let dtype = target.unwrap_or(form.dtype());
        if container.stores(dtype).is_none() {
            return Err(container.refusal(dtype));
        }
        let fortran_order = tensor.fortran_order && container.facts().has_fortran_order;
        let new = NewTensor { name: new_name, dtype, shape, count, fortran_order, text: None, opaque: None };
        let is_transposed = tensor.fortran_order != fortran_order;
        let source = Stored { files, tensor, elements: Elements::Typed(form), is_transposed };
        Ok(Chosen { input, source, from: form, target, new })
    };
    let mut chosen = Vec::with_capacity(names.len());
    for ((input, tensor), name) in all().zip(names) {
        let in_place = |error: Error| error.in_tensor(&tensor.name).in_file(inputs[input].path());
        chosen.push(choose(input, tensor, name).map_err(in_place)?);
    }
    Ok(chosen)
}

/// Finds out how long the texts are that will be written: no file can be laid out without.
fn measure_texts(chosen: &mut [Chosen], measured: &dyn Fn(u64)) -> Result<()> {
    for Chosen { source, from, new, .. } in chosen.iter_mut().filter(|chosen| chosen.new.dtype == Dtype::String) {
        let mut share = Share::new(source.stored_len(), source.tensor.count);
        let progress = &mut |elements| measured(share.up_to(elements));
        let extent = source.open().and_then(|reader| conversion::measure(*from, source.named(), reader, progress));
        new.text = Some(Box::new(extent.map_err(|error| source.error(error))?));
    }
    Ok(())
}

/// The tensors of each output file, in the order of the inputs.
fn groups(chosen: Vec<Chosen>, inputs: usize, spread: Spread) -> Vec<Vec<Chosen>> {
    let mut groups: Vec<Vec<Chosen>> = Vec::new();
    match spread {
        Spread::One => groups.push(chosen),
        Spread::AsInputs => {
            groups.resize_with(inputs, Vec::new);
            for tensor in chosen {
                groups[tensor.input].push(tensor);
            }
        }
        Spread::UpTo(limit) => {
            groups.push(Vec::new());
            let mut filled = 0_u64;
            for tensor in chosen {
                let bytes = tensor.new.dtype.packed_bytes(tensor.new.count).unwrap_or(u64::MAX);
                filled = filled.saturating_add(bytes);
                if filled > limit && groups.last().is_some_and(|group| !group.is_empty()) {
                    filled = bytes;
                    groups.push(Vec::new());
                }
                groups.last_mut().expect("there is one from the start").push(tensor);
            }
        }
    }
    groups
}

/// The tensors' names in the output.
fn new_names<'a>(inputs: &'a [Input], container: &dyn Container, renames: &[Rename]) -> Result<Vec<Cow<'a, str>>> {
    let all = || inputs.iter().flat_map(|input| input.contents.tensors.iter().map(move |tensor| (input, tensor)));
    // A nameless tensor of a format with names stays one where there is only it.
    let name = |(input, tensor): (&'a Input, &'a Tensor)| {
        let stays = input.container.facts().has_names && container.facts().holds_one;
        Cow::Borrowed(if stays { &*tensor.name } else { input.name_of(tensor) })
    };
    let mut names: Vec<Cow<str>> = all().map(name).collect();
    if renames.is_empty() {
        return Ok(names); // a container refuses two of a name
    }
    let places: HashMap<&str, usize> = all().map(|(input, tensor)| input.name_of(tensor)).zip(0..).collect();
    let mut done = HashSet::new();
    for Rename { old, new } in renames {
        let place = places.get(old.as_str());
        let &place = place.ok_or_else(|| Error::new(format!("--rename: there is no tensor '{}'", shorten(old))))?;
        if !done.insert(place) {
            return Err(Error::new("--rename names it twice").in_tensor(old));
        }
        names[place] = Cow::Owned(new.clone());
    }
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(&***name)) {
        Some(clash) => Err(Error::new("two tensors would have this name").in_tensor(clash)),
        None => Ok(names),
    }
}

/// The metadata of an output: those of all files that its tensors come from, where they differ those of the first.
fn merge_metadata<'a>(
    sources: impl Iterator<Item = &'a Input>,
    container: &dyn Container,
) -> Option<Vec<(String, String)>> {
    let mut merged: Option<Vec<(String, String)>> = None;
    for pairs in sources.filter_map(|input| metadata(input, container)) {
        let merged = merged.get_or_insert_default();
        let known: HashSet<String> = merged.iter().map(|(name, _)| name.clone()).collect();
        merged.extend(pairs.into_iter().filter(|(name, _)| !known.contains(name)));
    }
    merged
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
