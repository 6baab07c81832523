//! Checkpoints of PyTorch, by hand: a value is the opcodes that put it on the stack of a pickle machine.

use super::zip;

/// The opcodes of a value, in protocol 2.
pub type Code = Vec<u8>;

pub const NONE: u8 = b'N';
/// Calls the function below the top with the arguments at the top.
pub const REDUCE: u8 = b'R';

pub fn text(text: &str) -> Code {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

pub fn int(number: i64) -> Code {
    match i32::try_from(number) {
        Ok(number) => [b"J", &number.to_le_bytes()[..]].concat(),
        Err(_) => [b"\x8a\x08", &number.to_le_bytes()[..]].concat(),
    }
}

/// The name of a class or function.
pub fn global(module: &str, name: &str) -> Code {
    format!("c{module}\n{name}\n").into_bytes()
}

pub fn tuple(values: &[Code]) -> Code {
    [b"(", &values.concat()[..], b"t"].concat()
}

pub fn ints(numbers: &[i64]) -> Code {
    tuple(&numbers.iter().map(|number| int(*number)).collect::<Vec<_>>())
}

pub fn list(values: &[Code]) -> Code {
    [b"](", &values.concat()[..], b"e"].concat()
}

pub fn dict(entries: &[(&str, Code)]) -> Code {
    let entries: Vec<Code> = entries.iter().map(|(key, value)| [text(key), value.clone()].concat()).collect();
    [b"}(", &entries.concat()[..], b"u"].concat()
}

pub fn call(function: &[u8], arguments: &[Code]) -> Code {
    [function, &tuple(arguments), &[REDUCE]].concat()
}

/// An instance of a class, without attributes.
pub fn instance(module: &str, class: &str) -> Code {
    [&global(module, class)[..], b")\x81"].concat()
}

/// A storage of a class such as `Float`.
pub fn storage(class: &str, key: &str, count: i64) -> Code {
    let class = global("torch", &format!("{class}Storage"));
    [tuple(&[text("storage"), class, text(key), text("cpu"), int(count)]), b"Q".to_vec()].concat()
}

/// The strides of a shape in row-major order.
pub fn row_major(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|at| shape[at + 1..].iter().product()).collect()
}

/// A view of a storage.
pub fn view(storage: Code, offset: i64, shape: &[i64], strides: &[i64]) -> Code {
    let hooks = call(&global("collections", "OrderedDict"), &[]);
    let arguments = [storage, int(offset), ints(shape), ints(strides), vec![0x89], hooks];
    call(&global("torch._utils", "_rebuild_tensor_v2"), &arguments)
}

/// A float32 tensor that fills a storage of its own.
pub fn floats(key: &str, shape: &[i64]) -> Code {
    view(storage("Float", key, shape.iter().product()), 0, shape, &row_major(shape))
}

/// A pickle of a value.
pub fn pickle(value: &[u8]) -> Vec<u8> {
    [b"\x80\x02", value, b"."].concat()
}

/// The bytes of float32 numbers.
pub fn f32s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A checkpoint: a pickle of the value, and the bytes of storages.
pub fn checkpoint(value: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    archive(&pickle(value), storages)
}

/// A checkpoint with this pickle.
pub fn archive(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let names: Vec<String> = storages.iter().map(|(key, _)| format!("archive/data/{key}")).collect();
    let storages = names.iter().zip(storages).map(|(name, (_, bytes))| (&**name, *bytes));
    let members: Vec<(&str, &[u8])> = std::iter::once(("archive/data.pkl", pickle)).chain(storages).collect();
    zip(&members, false)
}

/// The pickles at the start of a checkpoint in the older form: magic number, version, system.
pub fn old_head() -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    let system = dict(&[("protocol_version", int(1001)), ("little_endian", vec![0x88])]);
    [magic, &pickle(&int(1001))[..], &pickle(&system)].concat()
}

/// A checkpoint in the older form: the value, and storages with their number of elements.
pub fn old_checkpoint(value: &[u8], storages: &[(&str, i64, &[u8])]) -> Vec<u8> {
    let keys = list(&storages.iter().map(|(key, ..)| text(key)).collect::<Vec<_>>());
    let bytes = storages.iter().map(|(_, count, bytes)| [&count.to_le_bytes()[..], bytes].concat());
    [old_head(), pickle(value), pickle(&keys)].into_iter().chain(bytes).collect::<Vec<_>>().concat()
}
