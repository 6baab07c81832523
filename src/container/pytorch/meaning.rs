//! The classes and functions that have a meaning in a checkpoint, and those that do no harm to programs that call them.

/// Meaning of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallMeaning {
    /// Makes a dict, of pairs if there are some.
    Dict,
    /// Makes a tuple of the elements of another.
    Size,
    /// Rebuilds a tensor with the type of its storage.
    Tensor,
    /// Rebuilds a tensor with the type in its arguments.
    TypedTensor,
    /// Returns its first argument, a tensor.
    Wrapper,
    /// Calls a function, and makes the result an instance of a class.
    Subclass,
    /// Is a class of tensors without properties that matter here.
    TensorClass,
    /// Rebuilds a tensor that is not stored as plain elements.
    NotPlain,
    /// None.
    None,
}

/// Modules and names with a meaning. A `*` at the end of a name stands for any letters.
const MEANINGS: &[(&str, &str, CallMeaning)] = &[
    ("collections", "OrderedDict", CallMeaning::Dict),
    ("collections", "defaultdict", CallMeaning::Dict),
    ("builtins", "dict", CallMeaning::Dict),
    ("__builtin__", "dict", CallMeaning::Dict),
    ("torch", "Size", CallMeaning::Size),
    ("torch._utils", "_rebuild_tensor", CallMeaning::Tensor),
    ("torch._utils", "_rebuild_tensor_v2", CallMeaning::Tensor),
    ("torch._utils", "_rebuild_tensor_v3", CallMeaning::TypedTensor),
    ("torch._utils", "_rebuild_parameter", CallMeaning::Wrapper),
    ("torch._utils", "_rebuild_parameter_with_state", CallMeaning::Wrapper),
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor", CallMeaning::Wrapper),
    ("torch._utils", "_rebuild_*", CallMeaning::NotPlain),
    ("torch._tensor", "_rebuild_from_type_v2", CallMeaning::Subclass),
    ("torch.nn.parameter", "Parameter", CallMeaning::TensorClass),
    ("torch.nn.parameter", "Buffer", CallMeaning::TensorClass),
    ("torch._tensor", "Tensor", CallMeaning::TensorClass),
    ("torch", "Tensor", CallMeaning::TensorClass),
];

impl CallMeaning {
    /// Returns the meaning of a class or function.
    pub(super) fn of(module: &[u8], name: &[u8]) -> Self {
        let found = MEANINGS.iter().find(|(in_module, pattern, _)| is_match((in_module, pattern), (module, name)));
        found.map_or(Self::None, |(_, _, meaning)| *meaning)
    }
}

/// Modules and names that programs call without harm. A `*` stands for any letters, and as a whole name for classes, whose
/// names begin with a capital: their modules also have functions of other modules.
///
/// A list of what is allowed cannot be complete, and a list of what is forbidden cannot be either; only the first is safe.
const HARMLESS: &[(&str, &str)] = &[
    ("torch", "*Storage"),
    ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
    ("torch.cuda", "*Storage"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch", "Tensor"),
    ("torch", "Generator"),
    ("torch", "strided"),
    ("torch", "sparse_coo"),
    ("torch", "sparse_csr"),
    ("torch._utils", "_rebuild_*"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch._tensor", "Tensor"),
    ("torch.nn.parameter", "*"),
    ("torch.nn.modules.*", "*"),
    ("torch.optim.*", "*"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("collections", "deque"),
    ("collections", "Counter"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.dtypes", "*"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("_codecs", "encode"),
    ("argparse", "Namespace"),
    ("pathlib", "*Path"),
    ("pathlib._local", "*Path"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("copyreg", "_reconstructor"),
    ("copy_reg", "_reconstructor"),
    ("omegaconf.*", "*"),
    ("pytorch_lightning.callbacks.*", "*"),
    ("lightning.pytorch.callbacks.*", "*"),
    ("lightning_fabric.utilities.data", "AttributeDict"),
    ("pytorch_lightning.utilities.parsing", "AttributeDict"),
];

/// Python's own types. Its functions, such as `eval`, are in the same module.
const BUILTINS: &[&str] = &[
    "object",
    "set",
    "frozenset",
    "list",
    "tuple",
    "dict",
    "bytes",
    "bytearray",
    "complex",
    "int",
    "float",
    "bool",
    "str",
    "slice",
    "range",
    "unicode",
    "long",
];

/// True if other programs call a class or function without harm when they load the file.
pub(super) fn is_harmless(module: &[u8], name: &[u8]) -> bool {
    let is_type = || super::types::TorchType::named(module, name).is_some();
    let is_builtin = || BUILTINS.iter().any(|known| known.as_bytes() == name);
    match module {
        b"builtins" | b"__builtin__" => is_builtin(),
        b"torch" if is_type() => true,
        _ => HARMLESS
            .iter()
            .any(|(modules, names)| is_match((modules, names), (module, name)) && (*names != "*" || is_class(name))),
    }
}

/// True if a name is the name of a class by Python's conventions.
fn is_class(name: &[u8]) -> bool {
    name.iter().find(|byte| **byte != b'_').is_some_and(u8::is_ascii_uppercase)
}

/// True if a module and a name match two patterns. A name with a dot is an attribute of a class, which can be anything.
fn is_match((modules, names): (&str, &str), (module, name): (&[u8], &[u8])) -> bool {
    let matches = |pattern: &str, text: &[u8]| match pattern.split_once('*') {
        None => pattern.as_bytes() == text,
        Some((start, end)) => {
            text.len() >= start.len() + end.len()
                && text.starts_with(start.as_bytes())
                && text.ends_with(end.as_bytes())
        }
    };
    matches(names, name) && matches(modules, module) && !name.contains(&b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_run_code_are_not_harmless() {
        for (module, name) in [
            ("builtins", "eval"),
            ("__builtin__", "getattr"),
            ("posix", "system"),
            ("torch.storage", "_load_from_bytes"),
            ("torch", "load"),
            ("torch.hub", "load"),
            ("numpy.testing._private.utils", "runstring"),
            ("numpy", "load"),
            ("collections", "OrderedDict.__init__.__globals__"),
            ("torch.nn.modules", "Module"),
            ("pathlib", "os.system.Path"),
            ("torchX", "Size"),
            ("torch.nn.modules.module", "register_module_forward_hook"),
            ("omegaconf._utils", "_"),
        ] {
            assert!(!is_harmless(module.as_bytes(), name.as_bytes()), "{module}.{name}");
        }
        for (module, name) in [
            ("torch", "BFloat16Storage"),
            ("torch", "float8_e4m3fn"),
            ("torch.nn.modules.linear", "Linear"),
            ("pathlib", "PosixPath"),
            ("builtins", "set"),
        ] {
            assert!(is_harmless(module.as_bytes(), name.as_bytes()), "{module}.{name}");
        }
    }
}
