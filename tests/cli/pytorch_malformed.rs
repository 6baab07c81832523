//! Malformed and hostile checkpoints of PyTorch: each is refused with one error, in 100 MiB of memory and in time, or read
//! with the right values.

use crate::common::pickle::{
    Code, archive, call, checkpoint, dict, f32s, floats, global, int, ints, list, old_checkpoint, old_head, pickle,
    storage, text, tuple, view,
};
use crate::common::{Bench, fixture, zip};
use ::safetensors::SafeTensors;
use std::fs;

/// The most that a small file may take.
const MEBIBYTES: u32 = 100;

/// Checks that a cast and a listing refuse a file with this message.
#[track_caller]
fn refused(file: &[u8], message: &str) {
    let bench = Bench::new();
    bench.write("x.pt", file);
    let error = format!("tcast: error: x.pt: {message}\n");
    bench.run_within(MEBIBYTES, "cast x.pt -o out.safetensors").expect(1, "", &error);
    assert_eq!(bench.files(), ["x.pt"]);
    let outcome = bench.run_within(MEBIBYTES, "inspect x.pt --json");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(1), &*error));
}

/// Checks that the pickle of a value is refused with this message, in both forms.
#[track_caller]
fn refused_value(value: &[u8], message: &str) {
    let bytes = f32s(&[1.0, 2.0]);
    let has_storage = value.windows(8).any(|name| name == b"Storage\n");
    refused(&checkpoint(value, &[("0", &bytes)]), message);
    let storages = [("0", 2, &bytes[..])];
    refused(&old_checkpoint(value, &storages[..usize::from(has_storage)]), message);
}

/// Checks that a pickle without its end is refused with this message, and the position of the last opcode.
#[track_caller]
fn malformed(opcodes: &[u8], message: &str) {
    refused(&archive(opcodes, &[]), &format!("malformed pickle: {message}"));
}

/// Returns the tensors that a cast of a file writes, with their bytes, in the order of their names.
#[track_caller]
fn read(file: &[u8]) -> Vec<(String, Vec<u8>)> {
    let bench = Bench::new();
    bench.write("x.pt", file);
    bench.run_within(MEBIBYTES, "cast x.pt -o out.safetensors -q").expect(0, "", "");
    let file = bench.read("out.safetensors");
    let mut found: Vec<(String, Vec<u8>)> = SafeTensors::deserialize(&file)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, tensor)| (name, tensor.data().to_vec()))
        .collect();
    found.sort();
    found
}

/// Stores the top of the stack in the memo, and refers to it.
fn put(number: u8) -> Code {
    vec![b'q', number]
}

fn get(number: u8) -> Code {
    vec![b'h', number]
}

/// Repeats the value that `wrap` makes of the value before it, `depth` times, with a number for each.
fn doubled(first: Code, depth: u8, wrap: impl Fn(Code) -> Code) -> Code {
    let mut code = [first, put(0), b"0".to_vec()].concat();
    for level in 1..=depth {
        code.extend([wrap(get(level - 1)), put(level), b"0".to_vec()].concat());
    }
    [code, get(depth)].concat()
}

#[test]
fn files_that_are_made_to_hurt_have_their_messages() {
    for (name, message) in [
        ("memo_bomb", "malformed pickle: it has more than 1000000 nodes"),
        ("missing_storage", "tensor 'w': the file lacks its storage '0'"),
        ("outside", "tensor 'w': it extends beyond its storage of 64 bytes"),
        ("setitem_on_tensor", "malformed pickle: it sets entries of a value that is not a dict, at byte 13"),
        ("short_storage", "tensor 'w': its storage '0' has 20 bytes, and should have 16 elements of 4 bytes"),
        ("two_data_pkl", "malformed checkpoint of PyTorch: it has several data.pkl"),
        (
            "torchscript",
            "is a TorchScript archive, a program with its weights, which tcast does not read
  save the weights alone, with torch.save(model.state_dict(), ...)",
        ),
    ] {
        refused(&fs::read(fixture(&format!("bad/pytorch/{name}.pt"))).unwrap(), message);
    }
    assert_eq!(read(&fs::read(fixture("bad/pytorch/base.pt")).unwrap()).len(), 1);
    // Of 200,000 nested lists.
    let deep = [b"]".repeat(200_000), b"a".repeat(199_999)].concat();
    refused_value(&deep, "malformed pickle: it is nested more than 100 levels deep");
}

#[test]
fn values_that_refer_to_each_other_in_few_bytes_are_not_followed_for_long() {
    const NODES: &str = "malformed pickle: it has more than 1000000 nodes";
    const OFTEN: &str = "malformed pickle: it refers to its tensors more often than any checkpoint does";
    let twice = |value: Code| [value.clone(), value];
    refused_value(&doubled(list(&[]), 40, |inner| list(&twice(inner))), NODES);
    refused_value(&doubled(tuple(&[]), 40, |inner| tuple(&twice(inner))), NODES);
    refused_value(&doubled(dict(&[]), 40, |inner| dict(&[("a", inner.clone()), ("b", inner)])), NODES);
    let object =
        |inner: Code| [call(&global("argparse", "Namespace"), &twice(inner.clone())), inner, b"b".to_vec()].concat();
    refused_value(&doubled(list(&[]), 30, object), NODES);
    // Tensors take more memory than other values.
    refused_value(&doubled(floats("0", &[2]), 40, |inner| list(&twice(inner))), OFTEN);
    refused_value(&doubled(floats("0", &[2]), 40, |inner| dict(&[("a", inner.clone()), ("b", inner)])), OFTEN);
    let wide = |inner: Code| tuple(&vec![inner; 1000]);
    refused_value(&doubled(floats("0", &[2]), 3, wide), OFTEN);
    // So do tensors of many dimensions, unreadable tensors, and tensors with long names.
    let dimensions = view(storage("Float", "0", 2), 0, &[1; 64], &[1; 64]);
    refused_value(&doubled(dimensions, 3, wide), OFTEN);
    refused_value(&doubled(call(&global("torch._utils", "_rebuild_qtensor"), &[]), 3, wide), OFTEN);
    let name = "n".repeat(100_000);
    let long = |inner: Code| dict(&[(&*name, list(&vec![inner; 1000]))]);
    refused_value(&doubled(floats("0", &[2]), 1, long), OFTEN);
    // A long key that is met a thousand times; numbers, which are no nodes.
    let met = doubled(dict(&[(&*name, list(&[]))]), 1, wide);
    refused_value(&met, "malformed pickle: its keys have more than 67108864 bytes");
    let numbers = tuple(&vec![vec![b'N']; 100_000]);
    refused_value(
        &doubled(numbers, 2, |inner| list(&vec![inner; 100])),
        "malformed pickle: it has more than 100000000 values",
    );
}

#[test]
fn a_long_text_that_is_repeated_in_few_bytes_costs_nothing() {
    let long = [text(&"n".repeat(1_000_000)), put(0), b"0".to_vec()].concat();
    // As the name of code, and the key of a storage.
    let after_text = |value: Code| archive(&pickle(&[long.clone(), value].concat()), &[]);
    let what = "malformed pickle: the name of a class has more than 1000 bytes, at byte";
    let names = [get(0), get(0), vec![0x93]].concat().repeat(100_000);
    refused(&after_text(names), &format!("{what} 1000014"));
    let identifier = tuple(&[text("storage"), global("torch", "FloatStorage"), get(0), text("cpu"), int(1)]);
    let what = "malformed pickle: the key of a storage has more than 255 bytes, at byte";
    refused(&after_text([identifier, b"Q".to_vec()].concat()), &format!("{what} 1000059"));
    // Many names, each of a module and an attribute that are in the file once.
    let texts = (0..200_u8).map(|at| [text(&format!("m{at}")), put(at), b"0".to_vec()].concat());
    let pairs =
        (0..200_u8).flat_map(|module| (0..200).map(move |name| [get(module), get(name), vec![0x93, b'0']].concat()));
    let code: Code = texts.chain(pairs).flatten().collect();
    refused_value(&[code, vec![b'N']].concat(), "malformed pickle: it names more than 10000 classes and functions");
    // A shape of a million dimensions in a million tensors that are not read anyway.
    let shape = [ints(&vec![1; 100_000]), put(0), b"0".to_vec()].concat();
    let odd = [storage("QInt8", "0", 2), int(0), get(0), get(0), vec![0x89], vec![b'N']];
    let odd = call(&global("torch._utils", "_rebuild_tensor_v2"), &odd);
    let value = [shape, dict(&[("w", list(&[odd]))])].concat();
    refused_value(&value, "tensor 'w.0': its storage, offset, shape or strides are malformed");
    let flags: Vec<(String, Code)> = (0..100_000).map(|at| (at.to_string(), vec![0x88])).collect();
    let flags: Vec<(&str, Code)> = flags.iter().map(|(key, value)| (&**key, value.clone())).collect();
    let flagged = [storage("Float", "0", 2), int(0), ints(&[2]), ints(&[1]), vec![0x89], vec![b'N'], dict(&flags)];
    let flagged = call(&global("torch._utils", "_rebuild_tensor_v2"), &flagged);
    refused_value(&dict(&[("w", flagged)]), "tensor 'w': its storage, offset, shape or strides are malformed");
}

#[test]
fn values_that_contain_themselves_and_deep_values_end() {
    const DEEP: &str = "malformed pickle: it is nested more than 100 levels deep";
    let own_list = [list(&[floats("0", &[2])]), put(0), get(0), b"a".to_vec()].concat();
    let own_dict = [dict(&[("0", floats("0", &[2]))]), put(0), text("k"), get(0), b"s".to_vec()].concat();
    let state = dict(&[("0", floats("0", &[2])), ("parent", get(0))]);
    let object = [call(&global("argparse", "Namespace"), &[]), put(0), state, b"b".to_vec()].concat();
    for value in [own_list, own_dict, object] {
        let bytes = f32s(&[1.0, 2.0]);
        assert_eq!(read(&checkpoint(&value, &[("0", &bytes)])), [("0".to_owned(), bytes)]);
    }
    // Its own key, which is nothing to visit.
    assert_eq!(read(&checkpoint(&[dict(&[]), put(0), get(0), vec![b'N', b's']].concat(), &[])), []);
    let nested = |open: &[u8], close: &[u8], depth: usize| {
        [&open.repeat(depth)[..], &floats("0", &[2]), &close.repeat(depth)].concat()
    };
    let namespace = global("argparse", "Namespace");
    let object = [&namespace[..], b"("].concat();
    for (open, close) in [
        (&b"]"[..], &b"a"[..]),
        (b"(", b"t"),
        (b"(", b"l"),
        (b"", b"\x85"),
        (b"}X\x01\0\0\0k", b"s"),
        (&object, b"tR"),
        (b"}q\x00X\x01\0\0\0k", b"s"),
    ] {
        refused_value(&nested(open, close, 100_000), DEEP);
        // An object is nested in its arguments.
        let depth = if open == object { 49 } else { 99 };
        let name = read(&checkpoint(&nested(open, close, depth), &[("0", &f32s(&[1.0, 2.0]))])).remove(0).0;
        assert_eq!(name.matches('.').count(), depth - 1, "{name}");
    }
    // A wrapper around a wrapper is no container, and a call in a call is one.
    let wrapper = global("torch._utils", "_rebuild_parameter");
    let file = checkpoint(&nested(&[&wrapper[..], b"("].concat(), b"tR", 10_000), &[("0", &f32s(&[1.0, 2.0]))]);
    assert_eq!(read(&file), [("tensor".to_owned(), f32s(&[1.0, 2.0]))]);
    let rebuild = global("torch._tensor", "_rebuild_from_type_v2");
    let class = global("torch.nn.parameter", "Parameter");
    let inner = tuple(&[storage("Float", "0", 2), int(0), ints(&[2]), ints(&[1])]);
    // Each tuple of arguments is (function, class, arguments, state).
    let calls = |depth: usize| {
        let first = [b"(", &global("torch._utils", "_rebuild_tensor_v2")[..], &class, &inner, b"Nt"].concat();
        let outer = [b"(", &rebuild[..], &class].concat().repeat(depth - 1);
        [&rebuild[..], &outer, &first, &b"Nt".repeat(depth - 1), b"R"].concat()
    };
    let bytes = f32s(&[1.0, 2.0]);
    assert_eq!(read(&checkpoint(&calls(5), &[("0", &bytes)])), [("tensor".to_owned(), bytes.clone())]);
    let error = |file: &[u8]| {
        let bench = Bench::new();
        bench.write("x.pt", file);
        bench.run_within(MEBIBYTES, "cast x.pt -o out.safetensors")
    };
    // A list of arguments that contains itself.
    let own = [
        list(&[]),
        put(0),
        b"(".to_vec(),
        rebuild.clone(),
        class.clone(),
        get(0),
        vec![b'N', b'e', b'0'],
        rebuild.clone(),
        get(0),
        b"R".to_vec(),
    ]
    .concat();
    for value in [own, calls(100_000)] {
        let outcome = error(&checkpoint(&value, &[("0", &bytes)]));
        assert_eq!(outcome.code, Some(1));
        outcome.check_message("rebuilt");
    }
}

#[test]
fn numbers_that_no_tensor_has_are_refused() {
    const ARGUMENTS: &str = "tensor 'w': its storage, offset, shape or strides are malformed";
    const MOST: i64 = i64::MAX;
    const OUTSIDE: &str = "tensor 'w': it extends beyond its storage of 8 bytes";
    let tensor = |offset: i64, shape: &[i64], strides: &[i64]| {
        dict(&[("w", view(storage("Float", "0", 2), offset, shape, strides))])
    };
    for (offset, shape, strides, message) in [
        (-1, &[2][..], &[1][..], ARGUMENTS),
        (0, &[-2], &[1], ARGUMENTS),
        (0, &[2], &[-1], ARGUMENTS),
        (MOST, &[2], &[1], OUTSIDE),
        (1, &[2], &[1], OUTSIDE),
        (2, &[], &[], OUTSIDE),
        (0, &[2], &[MOST], OUTSIDE),
        (0, &[2, 2], &[MOST, MOST], OUTSIDE),
        (0, &[2, 2], &[1], "tensor 'w': its shape [2, 2] does not have a stride for each dimension"),
        (0, &[1; 65], &[1; 65], ARGUMENTS),
        (0, &[3], &[1], OUTSIDE),
        (0, &[MOST, 2], &[0, 0], "tensor 'w': its shape [9223372036854775807, 2] is too large"),
        (0, &[MOST, 3, 0], &[0, 0, 0], "tensor 'w': its shape [9223372036854775807, 3, 0] is too large"),
        (0, &[1 << 56], &[0], "tensor 'w': its shape [72057594037927936] is too large"),
    ] {
        refused_value(&tensor(offset, shape, strides), message);
    }
    for (length, bytes) in [(33, 132_i64), (1 << 50, 1 << 52)] {
        let (code, stderr) = outcome(&checkpoint(&tensor(0, &[length], &[0]), &[("0", &f32s(&[1.0, 2.0]))]));
        let what = format!("to {bytes} bytes; at most 16 times as many are read");
        let error = format!("tcast: error: x.pt: tensor 'w': repeats the 8 bytes of its storage, {what}\n");
        assert_eq!((code, stderr), (Some(1), error));
    }
    // Values of other kinds in the place of numbers.
    let whole = storage("Float", "0", 2);
    for (offset, shape) in [
        (text("0"), ints(&[2])),
        (vec![b'N'], ints(&[2])),
        (vec![0x88], ints(&[2])),
        (int(0), int(2)),
        (int(0), text("22")),
        (int(0), tuple(&[text("2")])),
        (int(0), tuple(&[[b"\x8a\x09".to_vec(), vec![1; 9]].concat()])),
        (whole.clone(), ints(&[2])),
    ] {
        let arguments = [whole.clone(), offset, shape, ints(&[1])];
        let function = global("torch._utils", "_rebuild_tensor_v2");
        refused_value(&dict(&[("w", call(&function, &arguments))]), ARGUMENTS);
    }
    for arguments in [&[][..], &[whole], &[int(1), int(0), ints(&[2]), ints(&[1])]] {
        let function = global("torch._utils", "_rebuild_tensor_v2");
        refused_value(&dict(&[("w", call(&function, arguments))]), ARGUMENTS);
    }
    // Shapes without elements are no problem, and neither is the stride of one row.
    let bytes = f32s(&[1.0, 2.0]);
    for (offset, shape, strides) in [
        (0, &[0, 1 << 40][..], &[1 << 40, 1][..]),
        (MOST, &[0], &[MOST]),
        (0, &[1 << 62, 0], &[0, MOST]),
        (0, &[0; 64], &[0; 64]),
    ] {
        let file = checkpoint(&tensor(offset, shape, strides), &[("0", &bytes)]);
        assert_eq!(read(&file), [("w".to_owned(), vec![])]);
    }
    let file = checkpoint(&tensor(0, &[1, 2, 1], &[MOST, 1, MOST]), &[("0", &bytes)]);
    assert_eq!(read(&file), [("w".to_owned(), bytes.clone())]);
    let file = checkpoint(&tensor(1, &[32], &[0]), &[("0", &bytes)]);
    assert_eq!(read(&file), [("w".to_owned(), f32s(&[2.0; 32]))]);
    // Pairs of elements double the last dimension; a flag of a type without a sign; no elements with a flag.
    let untyped = [
        tuple(&[text("storage"), global("torch.storage", "UntypedStorage"), text("0"), text("cpu"), int(8)]),
        b"Q".to_vec(),
    ]
    .concat();
    let typed = |dtype: &str, shape: &[i64], flags: &[(&str, Code)]| {
        let strides = vec![1; shape.len()];
        let arguments = [
            untyped.clone(),
            int(0),
            ints(shape),
            ints(&strides),
            vec![0x89],
            vec![b'N'],
            global("torch", dtype),
            dict(flags),
        ];
        dict(&[("w", call(&global("torch._utils", "_rebuild_tensor_v3"), &arguments))])
    };
    let pairs = checkpoint(&typed("float4_e2m1fn_x2", &[0, MOST], &[]), &[("0", &bytes)]);
    assert_eq!(read(&pairs), [("w".to_owned(), vec![])]);
    for dtype in ["float4_e2m1fn_x2", "float8_e8m0fnu", "float8_e4m3fnuz", "uint8", "bool"] {
        let found = outcome(&checkpoint(&typed(dtype, &[1], &[("neg", vec![0x88])]), &[("0", &bytes)]));
        assert!(found.1.contains("tensor 'w': is the negative of a tensor of "), "{}", found.1);
    }
    let empty = typed("complex64", &[0, 3], &[("conj", vec![0x88])]);
    assert_eq!(read(&checkpoint(&empty, &[("0", &bytes)])), [("w".to_owned(), vec![])]);
}

/// Returns the exit code and the standard error of a cast.
fn outcome(file: &[u8]) -> (Option<i32>, String) {
    let bench = Bench::new();
    bench.write("x.pt", file);
    let outcome = bench.run_within(MEBIBYTES, "cast x.pt -o out.safetensors -q");
    (outcome.code, outcome.stderr)
}

#[test]
fn keys_and_names_are_what_they_are_or_refused() {
    let bytes = f32s(&[1.0, 2.0]);
    let tensor = || floats("0", &[2]);
    let entry = |key: Code| [b"}".to_vec(), key, tensor(), b"s".to_vec()].concat();
    let refusal = "the key of the tensor '?' is neither text nor a number";
    for key in [
        tuple(&[int(1), int(2)]),
        b"X\x02\0\0\0\xff\xfe".to_vec(),
        b"G\0\0\0\0\0\0\0\0".to_vec(),
        b"C\x01k".to_vec(),
        global("a", "b"),
    ] {
        refused_value(&entry(key.clone()), refusal);
        // A key that leads to no tensor does not matter.
        let value = [dict(&[("w", tensor())]), key, list(&[]), b"s".to_vec()].concat();
        assert_eq!(read(&checkpoint(&value, &[("0", &bytes)]))[0].0, "w");
    }
    // Keys that may be equal to others, whose tensors they would replace.
    let equal = "malformed pickle: a dict of tensors has keys that may be equal";
    let fraction = [b"G\x3f\xf0\0\0\0\0\0\0".to_vec(), vec![b'N', b's']].concat();
    refused_value(&[entry(int(1)), fraction].concat(), equal);
    let converted = call(&global("builtins", "str"), &[text("w")]);
    for key in [b"V\\u0077\n".to_vec(), b"V\xc3\xa9\n".to_vec(), converted] {
        refused_value(&[entry(text("w")), key, vec![b'N', b's']].concat(), equal);
    }
    // Keys that are.
    let twice = "malformed pickle: a dict has a key twice";
    refused_value(&[entry(text("w")), text("w"), vec![b'N', b's']].concat(), twice);
    refused_value(&[entry(int(1)), b"\x88Ns".to_vec()].concat(), twice);
    let pair = |value: Code| tuple(&[text("w"), value]);
    let pairs = list(&[pair(tensor()), pair(vec![b'N'])]);
    refused_value(&call(&global("collections", "OrderedDict"), &[pairs]), twice);
    for (key, name) in [
        (int(7), "7"),
        (text("7"), "7"),
        (text("-0"), "-0"),
        (text(""), "tensor"),
        (text("a.b"), "a.b"),
        (text("\u{e9}\u{1f600}"), "\u{e9}\u{1f600}"),
        (b"\x8a\x08\0\0\0\0\0\0\0\x80".to_vec(), "-9223372036854775808"),
        (b"I01\n".to_vec(), "True"),
        (b"L5L\n".to_vec(), "5"),
        (b"S'old'\n".to_vec(), "old"),
        (b"U\x01s".to_vec(), "s"),
    ] {
        assert_eq!(read(&checkpoint(&entry(key), &[("0", &bytes)]))[0].0, name);
    }
    let twice = |first: Code, second: Code| [b"}(".to_vec(), first, tensor(), second, tensor(), b"u".to_vec()].concat();
    refused_value(&twice(text("w"), text("w")), "malformed pickle: a dict has a key twice");
    refused_value(&twice(int(7), text("7")), "two tensors have the name '7'");
    let nested = dict(&[("a.b", tensor()), ("a", dict(&[("b", tensor())]))]);
    refused_value(&nested, "two tensors have the name 'a.b'");
    // Names are shown without what terminals take for commands.
    let file = checkpoint(&dict(&[("w\u{1b}[31m\n", floats("1", &[2]))]), &[("0", &bytes)]);
    refused(&file, "tensor 'w\\u{1b}[31m\\n': the file lacks its storage '1'");
    let file = checkpoint(&dict(&[("w", floats("\u{1b}[31m\n", &[2]))]), &[("0", &bytes)]);
    refused(&file, "tensor 'w': the file lacks its storage '\\u{1b}[31m\\n'");
}

#[test]
fn opcodes_without_their_operands_are_refused() {
    const EMPTY: &str = "it takes a value from an empty stack, at byte 2";
    for opcode in b".02\x85\x86\x87asbRQq\x94r\x81\x92\x93" {
        let code = [&b"\x80\x02"[..], &[*opcode], &[0; 8]].concat();
        malformed(&code, EMPTY);
        // Nothing below a mark counts.
        let code = [&b"\x80\x02NNNN("[..], &[*opcode], &[0; 8]].concat();
        // `0` pops the mark too.
        let popped = "it has the opcode 0x00, which no checkpoint has, at byte 8";
        malformed(&code, if *opcode == b'0' { popped } else { "it takes a value from an empty stack, at byte 7" });
    }
    for opcode in b"1tledu\x90\x91oi" {
        let line: &[u8] = if *opcode == b'i' { b"os\nsystem\n" } else { b"" };
        malformed(&[&b"\x80\x02N"[..], &[*opcode], line].concat(), "it has no mark, at byte 3");
    }
    malformed(b"\x80\x02(o", "a call has no class, at byte 3");
    malformed(b"\x80\x02", "it ends too early, at byte 2");
    malformed(b"", "it ends too early, at byte 0");
    for code in [
        &b"J\0\0\0"[..],
        b"K",
        b"M\0",
        b"G\0",
        b"X\x05\0\0\0abc",
        b"\x8c\x05abc",
        b"\x8d\x05\0\0\0\0\0\0\0abc",
        b"B\xff\xff\xff\xff",
        b"C\x02a",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x96\x01\0\0\0\0\0\0\0",
        b"I12",
        b"Sabc",
        b"cposix\nsystem",
        b"\x8a\x09\0",
        b"\x8b\xff\0\0\0",
        b"\x95\0\0",
        b"\x80",
        b"h",
        b"j\0",
        b"U\x05",
        b"T\xff\xff\xff\x7f",
    ] {
        malformed(code, "it ends too early, at byte 0");
    }
    malformed(b"\x80\x06N.", "it has the unknown protocol 6, at byte 0");
    malformed(b"\x80\xffN.", "it has the unknown protocol 255, at byte 0");
    malformed(b"\x8b\xff\xff\xff\xff", "an integer has a negative length, at byte 0");
    for opcode in [0x82, 0x83, 0x84, b'P', 0x97, 0x00, 0xff, b'x', b'\n'] {
        let message = format!("it has the opcode {opcode:#04x}, which no checkpoint has, at byte 1");
        malformed(&[b'N', opcode, 1, 0, 0, 0, 0], &message);
    }
    malformed(b"NNa", "it appends to a value that is not a list, at byte 2");
    malformed(b"}Na", "it appends to a value that is not a list, at byte 2");
    malformed(b"N(Ne", "it appends to a value that is not a list, at byte 3");
    malformed(b"NNNs", "it sets entries of a value that is not a dict, at byte 3");
    malformed(b"](NNu", "it sets entries of a value that is not a dict, at byte 4");
    malformed(b"}(Nu", "a key has no value, at byte 3");
    malformed(b"(Nd", "a key has no value, at byte 2");
    for code in [&b"NN"[..], b"]N", b")N", b"K\x01N", b"cos\nsystem\nN"] {
        let at = code.len();
        malformed(&[code, b"b"].concat(), &format!("it sets attributes of a value that has none, at byte {at}"));
    }
    malformed(b"NN\x93", "the name of a class is not text, at byte 2");
    malformed(b"NQ", "a persistent identifier is not that of a storage, at byte 1");
    malformed(b"X\x01\0\0\0aQ", "a persistent identifier is not that of a storage, at byte 6");
    let identifier = |count: Code, view: &[Code]| {
        let parts = [text("storage"), global("torch", "FloatStorage"), text("0"), text("cpu"), count];
        tuple(&[&parts[..], view].concat())
    };
    let code = identifier(text("2"), &[]);
    malformed(&[&code[..], b"Q"].concat(), &format!("a storage has no number of elements, at byte {}", code.len()));
    let code = identifier(int(-2), &[]);
    malformed(&[&code[..], b"Q"].concat(), &format!("a storage has no number of elements, at byte {}", code.len()));
    let code = identifier(int(2), &[ints(&[0, 1])]);
    let message = "a storage is a view of another one, as in files of PyTorch before 0.4";
    malformed(&[&code[..], b"Q"].concat(), &format!("{message}, at byte {}", code.len()));
    let code = [global("torch", "Size"), b")R".to_vec()].concat();
    malformed(&code, &format!("a call misses its arguments, at byte {}", code.len() - 1));
    let code = [global("torch._tensor", "_rebuild_from_type_v2"), b"(NNNtR".to_vec()].concat();
    malformed(&code, &format!("a tensor is rebuilt without its class, at byte {}", code.len() - 1));
    let class = global("collections", "OrderedDict");
    let default = global("collections", "defaultdict");
    let pairs = || list(&[tuple(&[text("w"), floats("0", &[2])])]);
    for (called, arguments) in
        [(&class, vec![list(&[int(1)])]), (&class, vec![pairs(), vec![b'N']]), (&default, vec![vec![b'N'], pairs()])]
    {
        let code = call(called, &arguments);
        let at = code.len() - 1;
        refused_value(
            &code,
            &format!("malformed pickle: a dict is made of other values than pairs, at byte {}", at + 2),
        );
    }
    let new = [&class[..], &tuple(&[pairs()]), &[0x81]].concat();
    refused_value(
        &new,
        &format!("malformed pickle: a dict is made of other values than pairs, at byte {}", new.len() + 1),
    );
}

#[test]
fn numbers_of_values_and_long_numbers_are_bounded() {
    for code in [&b"Nr\xff\xff\xff\xff"[..], b"Np4294967295\n", b"Nr\x06\0\0\0"] {
        malformed(code, "a value has a number that is too large, at byte 1");
    }
    for code in [&b"Np-1\n"[..], b"Np99999999999999999999\n", b"Npx\n", b"Np\n", b"Ng-1\n", b"Ng 1\n"] {
        malformed(code, "a reference is not in plain digits, at byte 1");
    }
    for code in [&b"Nh\x00"[..], b"Nj\xff\xff\xff\xff", b"Ng4294967295\n", b"Nh\x01"] {
        malformed(code, "it refers to a value that it does not have, at byte 1");
    }
    for code in [&b"I1z\n"[..], b"I1.0\n", b"Iten\n", b"Lz\n"] {
        malformed(code, "a number has other characters than digits, at byte 0");
    }
    malformed(b"Ng1.0\n", "a number has other characters than digits, at byte 1");
    malformed(b"Sabc\n", "a text has no quotes, at byte 0");
    malformed(b"S'\n", "a text has no quotes, at byte 0");
    // Integers of megabytes are no numbers of tensors, and cost nothing.
    let long = [&b"\x8b\0\0\x40\0"[..], &vec![0x7f; 4 << 20]].concat();
    let line = [&b"L"[..], &vec![b'9'; 1 << 20], b"L\n"].concat();
    let bytes = f32s(&[1.0, 2.0]);
    for number in [long, line, [&b"I-"[..], &vec![b'1'; 1 << 20], b"\n"].concat()] {
        let value = dict(&[("n", number.clone()), ("w", floats("0", &[2]))]);
        assert_eq!(read(&checkpoint(&value, &[("0", &bytes)])), [("w".to_owned(), bytes.clone())]);
        let arguments = [storage("Float", "0", 2), number, ints(&[2]), ints(&[1])];
        let value = dict(&[("w", call(&global("torch._utils", "_rebuild_tensor_v2"), &arguments))]);
        refused_value(&value, "tensor 'w': its storage, offset, shape or strides are malformed");
    }
    // Values and marks that stay on the stack.
    malformed(&b"(".repeat(4_000_001), "it has too many marks, at byte 4000000");
    malformed(&b"N".repeat(4_000_001), "it has too many values on its stack, at byte 4000000");
}

/// Every prefix of the pickle, and of the whole file.
#[test]
fn a_file_that_is_cut_short_anywhere_is_refused() {
    for name in ["ordered.zip.pt", "ordered.legacy.pt"] {
        let file = fs::read(fixture(&format!("pytorch/{name}"))).unwrap();
        for len in 0..file.len() {
            let bench = Bench::new();
            bench.write("x.pt", &file[..len]);
            let error = tcast::container::open(&bench.path("x.pt")).map(|_| ()).unwrap_err().to_string();
            assert!(!error.contains(char::is_control) && !error.is_empty(), "{name}, {len}: {error:?}");
        }
    }
    let file = fs::read(fixture("pytorch/parameters.zip.pt")).unwrap();
    let start = file.windows(2).position(|bytes| bytes == b"\x80\x02").unwrap();
    let end = file.windows(2).position(|bytes| bytes == b"u.").unwrap() + 2;
    let whole = &file[start..end];
    for len in 0..whole.len() {
        let bench = Bench::new();
        bench.write("x.pt", &archive(&whole[..len], &[]));
        let error = tcast::container::open(&bench.path("x.pt")).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("malformed pickle: it ends too early, at byte "), "{len}: {error}");
    }
}

#[test]
fn archives_that_torch_does_not_write_are_refused_or_read_as_they_are() {
    let bytes = f32s(&[1.0, -2.5]);
    let value = pickle(&dict(&[("w", floats("0", &[2]))]));
    let with = |members: &[(&str, &[u8])]| {
        let all: Vec<(&str, &[u8])> = [("a/data.pkl", &value[..])].iter().chain(members).copied().collect();
        zip(&all, false)
    };
    assert_eq!(read(&with(&[("a/data/0", &bytes)])), [("w".to_owned(), bytes.clone())]);
    assert_eq!(read(&with(&[("a/data/0", &bytes), ("a/byteorder", b"little\n")])), [("w".to_owned(), bytes.clone())]);
    let big = [1.0_f32, -2.5].map(f32::to_be_bytes).concat();
    assert_eq!(read(&with(&[("a/data/0", &big), ("a/byteorder", b"big")])), [("w".to_owned(), bytes.clone())]);
    refused(&with(&[("a/data/0", &bytes), ("a/byteorder", b"mid\x1b\n")]), "has the unknown byte order 'mid\\u{1b}'");
    refused(&with(&[("a/data/0", &bytes), ("a/data/0", &bytes)]), "two members are named 'a/data/0'");
    refused(&with(&[("b/data/0", &bytes)]), "tensor 'w': the file lacks its storage '0'");
    refused(&with(&[("b/data.pkl", &value)]), "malformed checkpoint of PyTorch: it has several data.pkl");
    refused(&with(&[("a/data.pkl", &value)]), "two members are named 'a/data.pkl'");
    let script = "is a TorchScript archive, a program with its weights, which tcast does not read
  save the weights alone, with torch.save(model.state_dict(), ...)";
    refused(&with(&[("a/constants.pkl", b"\x80\x02).")]), script);
    refused(&with(&[("a/code/__torch__.py", b"")]), script);
    refused(&zip(&[("a/.data/serialization_id", b"1")], false), "is a checkpoint of PyTorch without its data.pkl");
    let members = [("data.pkl", &value[..]), ("data/0", &bytes)];
    assert_eq!(read(&zip(&members, false)), [("w".to_owned(), bytes.clone())]);
    let compressed = "its member 'data.pkl' is compressed; torch.save stores members
  unpack it, and pack it again without compression: zip -0 -r";
    refused(&zip(&members, true), compressed);
    // An encrypted member, and a method that no program writes.
    let changed = |at: [usize; 2], byte: u8| {
        let mut file = zip(&members, false);
        let central = file.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
        (file[at[0]], file[central + at[1]]) = (byte, byte);
        file
    };
    refused(&changed([6, 8], 1), &compressed.replace("is compressed", "is encrypted"));
    refused(&changed([8, 10], 99), &compressed.replace("is compressed", "is compressed with method 99"));
    // A storage of two sizes, of two types of one width, of the right size in two types.
    let pair =
        |first: Code, second: Code| dict(&[("a", view(first, 0, &[2], &[1])), ("b", view(second, 0, &[2], &[1]))]);
    let two_sizes = "tensor 'b': its storage '0' has 8 bytes, and should have 4 elements of 4 bytes";
    refused_value(&pair(storage("Float", "0", 2), storage("Float", "0", 4)), two_sizes);
    let two_types = "malformed checkpoint of PyTorch: its storage '0' has two types";
    refused_value(&pair(storage("Float", "0", 2), storage("Int", "0", 2)), two_types);
    // Views of one storage overlap.
    let overlapping = [0, 1].map(|at| view(storage("Float", "0", 2), at, &[1], &[1]));
    let [first, second] = overlapping;
    let file = checkpoint(&dict(&[("all", floats("0", &[2])), ("first", first), ("second", second)]), &[("0", &bytes)]);
    let parts = [("all", &[1.0, -2.5][..]), ("first", &[1.0]), ("second", &[-2.5])];
    assert_eq!(read(&file), parts.map(|(name, values)| (name.to_owned(), f32s(values))));
    // Lengths and offsets of 64 bits in the directory.
    assert_eq!(read(&zip64("a/data.pkl", &value, "a/data/0", &bytes)), [("w".to_owned(), bytes.clone())]);
}

/// An archive of two members whose lengths and offsets are in zip64 fields.
fn zip64(first: &str, first_bytes: &[u8], second: &str, second_bytes: &[u8]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in [(first, first_bytes), (second, second_bytes)] {
        let (start, size) = (file.len() as u64, bytes.len() as u64);
        let sum = crc32fast::hash(bytes).to_le_bytes();
        let extra = [&[1, 0, 24, 0][..], &[size, size, start].map(u64::to_le_bytes).concat()].concat();
        let local = [&[1, 0, 16, 0][..], &[size, size].map(u64::to_le_bytes).concat()].concat();
        let common = |extra: &[u8]| {
            [&[45, 0, 0, 0, 0, 0, 0, 0, 0x21, 0][..], &sum, &[0xff; 8], &[name.len() as u8, 0, extra.len() as u8, 0]]
                .concat()
        };
        file.extend([b"PK\x03\x04", &common(&local)[..], name.as_bytes(), &local, bytes].concat());
        directory.extend(
            [b"PK\x01\x02\x2d\x00", &common(&extra)[..], &[0; 10], &[0xff; 4], name.as_bytes(), &extra].concat(),
        );
    }
    let (start, len) = (file.len() as u64, directory.len() as u64);
    let record = [2, 2, len, start].map(u64::to_le_bytes).concat();
    let end_64 = [b"PK\x06\x06", &44_u64.to_le_bytes()[..], &[45, 0, 45, 0], &[0; 8], &record].concat();
    let locator = [b"PK\x06\x07", &[0; 4][..], &(start + len).to_le_bytes(), &[1, 0, 0, 0]].concat();
    let end = [b"PK\x05\x06", &[0; 4][..], &[0xff; 12], &[0; 2]].concat();
    [file, directory, end_64, locator, end].concat()
}

#[test]
fn the_older_form_is_checked_like_the_archive() {
    let bytes = f32s(&[1.0, 2.0]);
    let value = dict(&[("w", floats("0", &[2]))]);
    let whole = old_checkpoint(&value, &[("0", 2, &bytes)]);
    assert_eq!(read(&whole), [("w".to_owned(), bytes.clone())]);
    // What follows the storages is not read.
    assert_eq!(read(&[&whole[..], b"more"].concat()), [("w".to_owned(), bytes.clone())]);
    let short = "the file is cut short in its storage '0'; was the download complete?";
    refused(&old_checkpoint(&value, &[("0", 2, &bytes[..7])]), short);
    refused(&old_checkpoint(&value, &[("0", i64::MAX, &bytes)]), short);
    refused(&old_checkpoint(&value, &[("0", -1, &bytes)]), short);
    refused(&whole[..whole.len() - 9], short);
    let size = |len: u32| format!("tensor 'w': its storage '0' has {len} bytes, and should have 2 elements of 4 bytes");
    refused(&old_checkpoint(&value, &[("0", 1, &bytes)]), &size(4));
    refused(&old_checkpoint(&value, &[("0", 0, &bytes)]), &size(0));
    refused(&old_checkpoint(&value, &[]), "tensor 'w': the file lacks its storage '0'");
    let without = "malformed checkpoint of PyTorch: it has a storage without a class";
    refused(&old_checkpoint(&value, &[("0", 2, &bytes), ("1", 2, &bytes)]), without);
    refused(
        &old_checkpoint(&value, &[("0", 2, &bytes), ("0", 2, &bytes)]),
        "malformed checkpoint of PyTorch: it has two storages '0'",
    );
    let keys = |keys: Code| [&old_head()[..], &pickle(&value), &pickle(&keys), &2_u64.to_le_bytes(), &bytes].concat();
    refused(&keys(list(&[int(0)])), without);
    refused(&keys(int(0)), "tensor 'w': the file lacks its storage '0'");
    let head = old_head();
    let version = "is a checkpoint of PyTorch in an unknown version of its older form";
    let other = [&head[..15], &pickle(&int(1002)), &whole[15 + pickle(&int(1001)).len()..]].concat();
    refused(&other, version);
    let frame = [&head[..2], &b"\x95\x0d\0\0\0\0\0\0\0"[..], &whole[2..]].concat();
    assert_eq!(read(&frame), [("w".to_owned(), bytes)]);
    let pickle_only = "is a Python pickle, and not one of torch.save; tcast does not read it
  load it where you trust it and save it again, with safetensors.torch.save_file or numpy.save";
    let mut magic = whole.clone();
    magic[7] ^= 1;
    refused(&magic, pickle_only);
    refused(&pickle(&value), pickle_only);
    for protocol in 3..6 {
        refused(&[&[0x80, protocol], &value[..], b"."].concat(), pickle_only);
    }
}

#[test]
fn files_of_other_kinds_with_the_extension_are_named() {
    refused(b"", "the file is empty");
    let mut tar = vec![0; 1024];
    tar[..3].copy_from_slice(b"sys");
    tar[257..262].copy_from_slice(b"ustar");
    refused(
        &tar,
        "is a tar archive, as PyTorch wrote them before 0.1.10, which tcast does not read
  if you trust its source, load it with PyTorch and save it again",
    );
    // Formats that tcast reads have their own name.
    let bench = Bench::new();
    let weights = [("model.safetensors", "x.bin"), ("gguf/tiny.gguf", "y.bin"), ("weights_f32.npy", "z.ckpt")];
    for (source, name) in weights {
        fs::copy(fixture(source), bench.path(name)).unwrap();
        assert_eq!(bench.run(&format!("inspect {name}")).code, Some(0), "{name}");
    }
    fs::copy(fixture("pytorch/ordered.zip.pt"), bench.path("o.npz")).unwrap();
    bench.run("inspect o.npz").says(1, "", "o.npz");
}
