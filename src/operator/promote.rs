//! `OpenVINO` ConvertPromoteTypes-14: finds one type for tensors of several types.
//!
//! It follows the operator's specification, with two or more inputs, and extends it to the types that `OpenVINO` lacks:
//!
//! 1. equal types stay as they are;
//! 2. complex numbers rank above floats, floats above integers, integers above bool. The highest rank decides: the
//!    result is the narrowest type of that kind that holds all values of each such input ([`Dtype::holds`]), preferably
//!    the type of an input. Floats decide together with complex numbers;
//! 3. no integer type holds both uint64 and a signed type: `u64_target` is used;
//! 4. safe mode refuses a type that no input has, and a float with less than twice the bits of an integer input.
//!
//! All inputs are considered in one step, so their order does not matter.

use crate::dtype::{Class, Dtype};
use crate::error::{Advice, Error, Opt, Result};
use crate::text::shorten;

/// The properties of a tensor that the rules use.
#[derive(Clone, Copy, Debug)]
pub struct PromoteInput<'a> {
    /// Name of the tensor in messages.
    pub name: &'a str,
    /// Type of the elements.
    pub dtype: Dtype,
    /// True if the tensor has no dimensions.
    pub is_scalar: bool,
}

/// The attributes of the operator: `promote_unsafe`, `pytorch_scalar_promotion` and `u64_integer_promotion_target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
pub struct PromoteAttributes {
    /// Allow a type that loses values, or is wider
    ///
    /// Otherwise, tcast refuses a type that cannot hold all values of an input, or is wider than every input.
    #[cfg_attr(feature = "cli", arg(id = "unsafe", long))]
    pub is_unsafe: bool,

    /// Give scalars the type of the others, as in torch
    #[cfg_attr(feature = "cli", arg(long))]
    pub pytorch_scalar: bool,

    /// The type for uint64 with a signed integer, which --unsafe allows
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            requires = "unsafe",
            value_name = "DTYPE",
            default_value_t = PromoteAttributes::default().u64_target,
            hide_short_help = true
        )
    )]
    pub u64_target: Dtype,
}

impl Default for PromoteAttributes {
    fn default() -> Self {
        Self { is_unsafe: false, pytorch_scalar: false, u64_target: Dtype::Float32 }
    }
}

/// The rule that decided on a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromoteRule {
    /// All inputs have the same type.
    Equal,
    /// The other inputs are bool.
    Bool,
    /// The other inputs are integers or bool.
    IntFloat,
    /// Scalars of the same kind take the type of the other inputs.
    Scalar,
    /// The narrowest signed integer that holds the signed and unsigned inputs.
    UnsignedSigned,
    /// uint64 together with a signed integer.
    U64Target,
    /// The type of one input holds the types of the others.
    Wider,
    /// The narrowest float that holds the inputs and that no input has.
    Floats,
    /// The narrowest complex type whose parts hold the inputs.
    Complex,
}

impl PromoteRule {
    /// The name in JSON reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal types",
            Self::Bool => "bool gives way",
            Self::IntFloat => "integers give way to floats",
            Self::Scalar => "scalars give way",
            Self::UnsignedSigned => "signed integer that holds both signs",
            Self::U64Target => "target for uint64 with a signed integer",
            Self::Wider => "the wider type",
            Self::Floats => "narrowest float that holds all",
            Self::Complex => "complex by parts",
        }
    }
}

/// A common type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Type that every input is converted to.
    pub dtype: Dtype,
    /// Rule that decided.
    pub rule: PromoteRule,
}

/// Kinds of numbers in ascending rank; the highest kind decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NumberKind {
    Bool,
    Int,
    Float,
    Complex,
}

fn kind(dtype: Dtype) -> Option<NumberKind> {
    Some(match dtype.class() {
        Class::Bool => NumberKind::Bool,
        Class::Int { .. } => NumberKind::Int,
        Class::Float(_) | Class::Scale => NumberKind::Float,
        Class::Complex => NumberKind::Complex,
        Class::String => return None,
    })
}

/// Finds the type that all inputs are converted to.
///
/// # Errors
/// The error names the first inputs that have no common type, or in safe mode no common type that keeps values and
/// width. The remedy gives an alternative that works.
pub fn promote(inputs: &[PromoteInput], attributes: &PromoteAttributes) -> Result<Decision> {
    let Some(first) = inputs.first() else { return Err(Error::usage("promote needs at least one input")) };
    if let Some(text) = inputs.iter().find(|input| input.dtype == Dtype::String) {
        let what = format!("cannot promote {}: only numeric and bool tensors have a common type", typed(text));
        return Err(Error::new(what).remedy("cast it to numbers first"));
    }
    if inputs.iter().all(|input| input.dtype == first.dtype) {
        return Ok(Decision { dtype: first.dtype, rule: PromoteRule::Equal });
    }
    if let Some(foreign) = inputs.iter().find(|input| input.dtype.onnx_number().is_none()) {
        let other = inputs.iter().find(|input| input.dtype != foreign.dtype).unwrap_or(first);
        let why = format!("{} is not one of ONNX's types, and has no common type with others", foreign.dtype);
        let remedy = format!("cast {} to one of ONNX's types first", shorten(foreign.name));
        return Err(refusal(foreign, other, &why).remedy(remedy));
    }
    let (scalars, deciding) = inputs.iter().partition(|input| attributes.pytorch_scalar && input.is_scalar);
    Promotion::new(inputs, attributes, scalars, deciding).decide()
}

/// Refuses types that are invalid for `u64_target`: text, E8M0 (it has no zero), and types that ONNX lacks.
///
/// # Errors
/// The error names the types that would work; it is a usage error.
pub fn check_u64_target(dtype: Dtype) -> Result<()> {
    let takes = |dtype: Dtype| dtype.onnx_number().is_some() && !matches!(dtype.class(), Class::String | Class::Scale);
    if takes(dtype) {
        return Ok(());
    }
    let names: Vec<&str> = Dtype::all().filter(|dtype| takes(*dtype)).map(Dtype::name).collect();
    Err(Error::usage(format!("uint64 with a signed integer cannot become {dtype}"))
        .with(Opt::U64_TARGET, format!("use one of: {}", names.join(", "))))
}

/// Returns the types that decide: the types of the highest kind; with complex types, the floats too.
fn deciding_types(inputs: &[&PromoteInput]) -> Vec<Dtype> {
    let lowest = inputs.iter().filter_map(|input| kind(input.dtype)).max().min(Some(NumberKind::Float));
    inputs.iter().map(|input| input.dtype).filter(|dtype| kind(*dtype) >= lowest).collect()
}

/// Returns the narrowest type that holds all of `dtypes`, which are of one kind or floats with complex numbers. Of
/// several, prefers a type in `dtypes`, then the first in the table, where float16 comes before bfloat16.
fn join(dtypes: &[Dtype]) -> Option<Dtype> {
    let kind_of_all = dtypes.iter().map(|dtype| kind(*dtype)).max()?;
    Dtype::all()
        .filter(|common| common.onnx_number().is_some() && kind(*common) == kind_of_all)
        .filter(|common| dtypes.iter().all(|dtype| common.holds(*dtype)))
        .min_by_key(|common| (common.bits(), !dtypes.contains(common)))
}

/// True if an integer becomes a float or a complex number.
fn is_integer_to_float(source: Dtype, target: Dtype) -> bool {
    kind(source) == Some(NumberKind::Int) && kind(target) >= Some(NumberKind::Float)
}

/// Formats type and name: `int64 (A)`.
fn typed(input: &PromoteInput) -> String {
    format!("{} ({})", input.dtype, shorten(input.name))
}

fn refusal(one: &PromoteInput, other: &PromoteInput, why: &str) -> Error {
    Error::new(format!("cannot promote {} and {}: {why}", typed(one), typed(other)))
}

/// Adds the option that allows a conversion, which safe mode refuses.
fn lossy(error: Error, conversion: &str) -> Error {
    error.with(Opt::UNSAFE, format!("use {{}} to convert {conversion}"))
}

/// Inputs of several types, all of them ONNX types and none of them text.
struct Promotion<'a> {
    inputs: &'a [PromoteInput<'a>],
    attributes: &'a PromoteAttributes,
    /// Inputs that take the type of the others.
    scalars: Vec<&'a PromoteInput<'a>>,
    /// Inputs that are not in `scalars`.
    deciding: Vec<&'a PromoteInput<'a>>,
    /// Types of `deciding` that have the highest kind; see [`deciding_types`].
    dtypes: Vec<Dtype>,
}

impl<'a> Promotion<'a> {
    /// Scalars decide together with the other inputs if there are no others, or if the others are of lower kinds.
    fn new(
        inputs: &'a [PromoteInput<'a>],
        attributes: &'a PromoteAttributes,
        mut scalars: Vec<&'a PromoteInput<'a>>,
        mut deciding: Vec<&'a PromoteInput<'a>>,
    ) -> Self {
        let highest = |inputs: &[&PromoteInput]| inputs.iter().map(|input| kind(input.dtype)).max();
        if highest(&scalars) > highest(&deciding) {
            scalars.clear();
            deciding = inputs.iter().collect();
        }
        let dtypes = deciding_types(&deciding);
        Self { inputs, attributes, scalars, deciding, dtypes }
    }

    fn decide(&self) -> Result<Decision> {
        let is_safe = !self.attributes.is_unsafe;
        let Some(dtype) = join(&self.dtypes) else {
            // Only uint64 with a signed integer has no common type.
            let (dtype, rule) = (self.attributes.u64_target, PromoteRule::U64Target);
            return if is_safe { Err(self.no_integer()) } else { Ok(Decision { dtype, rule }) };
        };
        if is_safe && !self.dtypes.contains(&dtype) {
            return Err(self.widens(dtype));
        }
        if dtype.class() == Class::Scale
            && let Some(input) = self.inputs.iter().find(|input| kind(input.dtype) < Some(NumberKind::Float))
        {
            return Err(self.no_zero(input, dtype));
        }
        for input in self.inputs.iter().filter(|_| is_safe) {
            if is_integer_to_float(input.dtype, dtype) {
                if dtype.part().bits() < 2 * input.dtype.bits() {
                    return Err(self.integer_to_float(input, dtype));
                }
            } else if input.dtype != Dtype::Bool && !dtype.holds(input.dtype) {
                return Err(self.scalar(input, dtype));
            }
        }
        Ok(Decision { dtype, rule: self.rule(dtype) })
    }

    fn rule(&self, dtype: Dtype) -> PromoteRule {
        let others = || self.inputs.iter().map(|input| input.dtype).filter(|other| *other != dtype);
        let gives_way = |other: Dtype| other == Dtype::Bool || is_integer_to_float(other, dtype);
        let is_signed = |other: &Dtype| other.class() == Class::Int { signed: true };
        if self.scalars.iter().any(|scalar| scalar.dtype != dtype && !gives_way(scalar.dtype)) {
            PromoteRule::Scalar
        } else if others().all(|other| other == Dtype::Bool) {
            PromoteRule::Bool
        } else if kind(dtype) == Some(NumberKind::Complex) {
            PromoteRule::Complex
        } else if others().all(gives_way) {
            PromoteRule::IntFloat
        } else if kind(dtype) == Some(NumberKind::Int)
            && !self.dtypes.iter().all(|other| is_signed(other) == is_signed(&dtype))
        {
            PromoteRule::UnsignedSigned
        } else if self.dtypes.contains(&dtype) {
            PromoteRule::Wider
        } else {
            PromoteRule::Floats
        }
    }

    /// Returns the first deciding input whose type passes a test; there always is one.
    fn first(&self, test: impl Fn(Dtype) -> bool) -> &PromoteInput<'a> {
        self.deciding.iter().find(|input| test(input.dtype)).unwrap_or(&self.deciding[0])
    }

    fn both(&self) -> &'static str {
        if self.inputs.len() == 2 { "both" } else { "all" }
    }

    fn no_integer(&self) -> Error {
        let one = self.first(|dtype| dtype == Dtype::Uint64);
        let other = self.first(|dtype| dtype.class() == Class::Int { signed: true });
        let target = self.attributes.u64_target;
        let precision = match target.class() {
            Class::Float(format) => format!(" ({} bits of precision)", format.mantissa_bits + 1),
            _ => String::new(),
        };
        let conversion = format!("{} to {target}{precision}", self.both());
        let error = lossy(refusal(one, other, "no integer type holds both"), &conversion);
        let options = vec![(Opt::UNSAFE, "".into()), (Opt::U64_TARGET, "TYPE".into())];
        error.advise(Advice::With { options, say: "use {} to choose the type".into() })
    }

    /// Refuses the first two inputs whose common type no input has. They exist, because otherwise one input would hold
    /// all.
    fn widens(&self, dtype: Dtype) -> Error {
        let inputs: Vec<_> = self.deciding.iter().filter(|input| self.dtypes.contains(&input.dtype)).collect();
        let pairs =
            inputs.iter().enumerate().flat_map(|(at, one)| inputs[at + 1..].iter().map(move |other| (one, other)));
        let joins = pairs.filter_map(|(one, other)| Some((one, other, join(&[one.dtype, other.dtype])?)));
        let mut widening = joins.filter(|(.., common)| !self.dtypes.contains(common));
        let (one, other, common) = widening.next().unwrap_or((&inputs[0], &inputs[0], dtype));
        let why = format!("the smallest type that holds both is {common}, wider than both");
        lossy(refusal(one, other, &why), &format!("{} to {dtype}", self.both()))
    }

    fn no_zero(&self, input: &PromoteInput, dtype: Dtype) -> Error {
        let scale = self.first(|other| other == dtype);
        let why = format!("{dtype} has no zero and no negative values");
        refusal(input, scale, &why).remedy(format!("cast {} to bfloat16 first", shorten(scale.name)))
    }

    fn integer_to_float(&self, input: &PromoteInput, dtype: Dtype) -> Error {
        let float = self.first(|other| other == dtype);
        let needs = if dtype.class() == Class::Complex { "its parts need" } else { "a float needs" };
        let (source, bits) = (input.dtype, input.dtype.bits());
        let why = format!("the common type {dtype} may not hold every {source} ({needs} 2 x {bits} bits)");
        // The suggested float holds all integer inputs, so that one cast is enough.
        let integers = self.inputs.iter().map(|input| input.dtype).filter(|source| is_integer_to_float(*source, dtype));
        let widest = integers.map(Dtype::bits).max().unwrap_or(bits);
        let floats =
            Dtype::all().filter(|float| kind(*float) == Some(NumberKind::Float) && float.onnx_number().is_some());
        let fitting =
            floats.filter(|float| float.bits() >= 2 * widest && float.holds(dtype)).min_by_key(|it| it.bits());
        let cast = match fitting {
            Some(fitting) => format!("cast {} to {fitting} first", shorten(float.name)),
            None => "cast one input first".to_owned(),
        };
        lossy(refusal(input, float, &why), &format!("to {dtype} anyway")).remedy(cast)
    }

    fn scalar(&self, scalar: &PromoteInput, dtype: Dtype) -> Error {
        let (name, source) = (shorten(scalar.name), scalar.dtype);
        let decider = shorten(self.first(|other| other == dtype).name);
        let what = format!(
            "cannot promote the scalar {name} ({source}) to {dtype}, the type of {decider}: \
             {dtype} does not hold every {source}"
        );
        let plain = promote(self.inputs, &PromoteAttributes { pytorch_scalar: false, ..*self.attributes });
        let error = lossy(Error::new(what), "it anyway");
        if plain.is_ok() { error.without(Opt::PYTORCH_SCALAR) } else { error }
    }
}
