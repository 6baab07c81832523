//! The attributes of objects of torch, by name.

use super::super::types::TorchType;
use super::super::values::{PickleValue, PickleValues};
use crate::error::{Error, Result};
use crate::text::shorten;

/// Maximum number of attributes of an object. Those of torch have a dozen.
const MOST: usize = 64;
/// Maximum number of dimensions.
const MOST_DIMENSIONS: usize = 64;

/// The attributes of an object.
pub(super) struct Attributes<'v, 'a> {
    values: &'v PickleValues<'a>,
    dicts: [PickleValue; 2],
    class: String,
}

impl<'v, 'a> Attributes<'v, 'a> {
    /// Returns the attributes of an object: a dict, or a pair of a dict or nothing and the dict of its slots.
    ///
    /// # Errors
    /// When the value is no such object.
    pub(super) fn of(values: &'v PickleValues<'a>, value: PickleValue) -> Result<Self> {
        let PickleValue::Object(at) = value else {
            return Err(Error::new("malformed pickle: a value should be an object of torch"));
        };
        let object = &values.objects[at as usize];
        let class = object.class.map(|class| shorten(&values.full_name(class))).unwrap_or_default();
        Self::of_state(values, object.state, class)
    }

    /// Returns the attributes in a state.
    pub(super) fn of_state(values: &'v PickleValues<'a>, state: PickleValue, class: String) -> Result<Self> {
        let is_part = |part: &PickleValue| match part {
            PickleValue::None => true,
            PickleValue::Dict(dict) => values.dicts[*dict as usize].entries.len() <= MOST,
            _ => false,
        };
        let dicts = match state {
            PickleValue::Tuple(_) => values.sequence(state).and_then(|parts| parts.try_into().ok()),
            one => Some([one, PickleValue::None]),
        };
        let dicts = dicts.filter(|dicts: &[PickleValue; 2]| dicts.iter().all(is_part));
        let dicts =
            dicts.ok_or_else(|| Error::new(format!("malformed pickle: the attributes of {class} are no dict")))?;
        Ok(Self { values, dicts, class })
    }

    /// Returns an attribute that need not be there.
    pub(super) fn find(&self, name: &str) -> Option<PickleValue> {
        let dicts = self.dicts.iter().rev().filter_map(|dict| match dict {
            PickleValue::Dict(at) => Some(&self.values.dicts[*at as usize].entries),
            _ => None,
        });
        let mut entries = dicts.flat_map(|entries| entries.iter().rev());
        entries.find(|(key, _)| self.values.text(*key) == Some(name.as_bytes())).map(|(_, value)| *value)
    }

    /// Returns an attribute.
    pub(super) fn get(&self, name: &str) -> Result<PickleValue> {
        self.find(name).ok_or_else(|| Error::new(format!("malformed pickle: {} has no {name}", self.class)))
    }

    /// Returns an attribute that is text.
    pub(super) fn text(&self, name: &str) -> Result<&'a str> {
        let text = self.values.text(self.get(name)?).and_then(|text| std::str::from_utf8(text).ok());
        text.ok_or_else(|| self.wrong(name))
    }

    /// Returns an attribute that is a count.
    pub(super) fn number(&self, name: &str) -> Result<u64> {
        let number = self.values.integer(self.get(name)?).and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| self.wrong(name))
    }

    /// Returns an attribute that is a list of counts, such as a shape.
    pub(super) fn numbers(&self, name: &str) -> Result<Vec<u64>> {
        numbers(self.values, self.get(name)?).ok_or_else(|| self.wrong(name))
    }

    /// Returns the elements of an attribute.
    pub(super) fn elements(&self, name: &str) -> Result<&'v [PickleValue]> {
        self.values.sequence(self.get(name)?).ok_or_else(|| self.wrong(name))
    }

    pub(super) fn wrong(&self, name: &str) -> Error {
        Error::new(format!("malformed pickle: attribute '{name}' of {} is not what torch writes", self.class))
    }
}

/// Returns a list of counts: a shape, or offsets.
pub(super) fn numbers(values: &PickleValues, value: PickleValue) -> Option<Vec<u64>> {
    let numbers = values.sequence(value).filter(|numbers| numbers.len() <= MOST_DIMENSIONS)?;
    numbers.iter().map(|number| values.integer(*number)?.try_into().ok()).collect()
}

/// Returns the module and the name of the class of an object.
pub(super) fn class_of<'a>(values: &PickleValues<'a>, value: PickleValue) -> Option<(&'a [u8], &'a [u8])> {
    let PickleValue::Object(at) = value else { return None };
    values.objects[at as usize].class.map(|class| values.code(class))
}

/// True for an object of this class of torch.distributed, in any of its modules.
pub(super) fn is_a(values: &PickleValues, value: PickleValue, name: &str) -> bool {
    class_of(values, value)
        .is_some_and(|(module, class)| module.starts_with(b"torch.distributed.") && class == name.as_bytes())
}

/// Returns the type in the properties of a tensor: their state is a tuple that begins with the type and the layout.
pub(super) fn type_in_properties(values: &PickleValues, properties: PickleValue) -> Result<&'static TorchType> {
    let malformed = || Error::new("malformed pickle: the properties of a tensor are not what torch writes");
    let PickleValue::Object(at) = properties else { return Err(malformed()) };
    let state = values.sequence(values.objects[at as usize].state).filter(|state| (5..=6).contains(&state.len()));
    let (true, Some(&[dtype, layout, ..])) = (is_a(values, properties, "TensorProperties"), state) else {
        return Err(malformed());
    };
    if let PickleValue::Object(layout) = layout {
        let arguments = values.sequence(values.objects[layout as usize].arguments);
        let text = arguments.and_then(|arguments| values.text(*arguments.first()?)).unwrap_or_default();
        if text != b"torch.strided" {
            let text = shorten(&String::from_utf8_lossy(text));
            return Err(Error::new(format!("has the layout '{text}', which tcast does not read")));
        }
    }
    named_type(values, dtype)
}

/// Returns the type that a pickle names.
pub(super) fn named_type(values: &PickleValues, dtype: PickleValue) -> Result<&'static TorchType> {
    let PickleValue::Name(name) = dtype else { return Err(Error::new("malformed pickle: a tensor has no dtype")) };
    let (module, class) = values.code(name);
    TorchType::named(module, class)
        .ok_or_else(|| Error::new(format!("has the unsupported dtype {}", shorten(&values.full_name(name)))))
}
