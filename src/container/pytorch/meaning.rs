//! The classes and functions that have a meaning in a checkpoint.

/// Meaning of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallMeaning {
    /// Makes a dict, of pairs if there are some.
    Dict,
    /// Makes a list or tuple of the elements of another.
    Sequence,
    /// Rebuilds a tensor with the type of its storage.
    Tensor,
    /// Rebuilds a tensor with the type in its arguments.
    TypedTensor,
    /// Returns its first argument, a tensor.
    Wrapper,
    /// Returns its first argument, a tensor, in the type of the second.
    Converter,
    /// Calls a function, and makes the result an instance of a class.
    Subclass,
    /// Is a class of tensors without properties that matter here.
    TensorClass,
    /// Rebuilds a tensor that is not stored as plain elements.
    NotPlain,
    /// Rebuilds an array of numpy.
    Array,
    /// Makes the type of an array.
    ArrayType,
    /// None.
    None,
}

/// Modules and names with a meaning. A `*` at the end of a name stands for any letters.
const MEANINGS: &[(&str, &str, CallMeaning)] = &[
    ("collections", "OrderedDict", CallMeaning::Dict),
    ("collections", "defaultdict", CallMeaning::Dict),
    ("collections", "Counter", CallMeaning::Dict),
    ("builtins", "dict", CallMeaning::Dict),
    ("__builtin__", "dict", CallMeaning::Dict),
    ("torch", "Size", CallMeaning::Sequence),
    ("builtins", "list", CallMeaning::Sequence),
    ("builtins", "tuple", CallMeaning::Sequence),
    ("__builtin__", "list", CallMeaning::Sequence),
    ("__builtin__", "tuple", CallMeaning::Sequence),
    ("torch._utils", "_rebuild_tensor", CallMeaning::Tensor),
    ("torch._utils", "_rebuild_tensor_v2", CallMeaning::Tensor),
    ("torch._utils", "_rebuild_tensor_v3", CallMeaning::TypedTensor),
    ("torch._utils", "_rebuild_parameter", CallMeaning::Wrapper),
    ("torch._utils", "_rebuild_parameter_with_state", CallMeaning::Wrapper),
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor", CallMeaning::Converter),
    ("torch._utils", "_rebuild_*", CallMeaning::NotPlain),
    ("torch._tensor", "_rebuild_from_type_v2", CallMeaning::Subclass),
    ("numpy", "dtype", CallMeaning::ArrayType),
    ("numpy.core.multiarray", "_reconstruct", CallMeaning::Array),
    ("numpy._core.multiarray", "_reconstruct", CallMeaning::Array),
    ("numpy.core.numeric", "_frombuffer", CallMeaning::Array),
    ("numpy._core.numeric", "_frombuffer", CallMeaning::Array),
    ("torch.nn.parameter", "Parameter", CallMeaning::TensorClass),
    ("torch.nn.parameter", "Buffer", CallMeaning::TensorClass),
    ("torch._tensor", "Tensor", CallMeaning::TensorClass),
    ("torch", "Tensor", CallMeaning::TensorClass),
];

impl CallMeaning {
    /// Returns the meaning of a class or function.
    pub(super) fn of(module: &[u8], name: &[u8]) -> Self {
        let is_name = |known: &str| match known.strip_suffix('*') {
            None => known.as_bytes() == name,
            Some(start) => name.starts_with(start.as_bytes()),
        };
        let found = MEANINGS.iter().find(|(in_module, known, _)| in_module.as_bytes() == module && is_name(known));
        found.map_or(Self::None, |(_, _, meaning)| *meaning)
    }
}
