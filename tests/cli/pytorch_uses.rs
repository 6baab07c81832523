//! Uses of harmless names in checkpoints of PyTorch: the ones that do harm are named, and the ones that change values are
//! refused.

use crate::common::pickle::{
    Code, call, checkpoint, dict, f32s, floats, global, instance, int, ints, list, pickle, storage, text, tuple,
};
use crate::common::{Bench, zip};

/// A name on the list of harmless ones does harm in another use: what it is called with, built from, or put into decides.
#[test]
#[allow(clippy::too_many_lines, reason = "a table of uses")]
fn harmless_names_in_other_uses_are_named() {
    let none = || vec![b'N'];
    let build = |value: Code, state: Code| [value, state, b"b".to_vec()].concat();
    let namespace = || instance("argparse", "Namespace");
    let config = |class: &str| instance(&format!("omegaconf.{}", class.to_lowercase()), class);
    let interpolated = || build(instance("omegaconf.nodes", "AnyNode"), dict(&[("_val", text("${oc.coerce:x.y,1}"))]));
    let adam = || instance("torch.optim.adam", "Adam");
    let linear = || instance("torch.nn.modules.linear", "Linear");
    let kind = |code: &str| call(&global("numpy", "dtype"), &[text(code), vec![0x89], vec![0x88]]);
    let kind_state = |fields: Code, size: i64, flags: i64| {
        tuple(&[int(3), text("|"), none(), none(), fields, int(size), int(-1), int(flags)])
    };
    let array = || {
        let arguments = [global("numpy", "ndarray"), tuple(&[int(0)]), b"C\x01b".to_vec()];
        call(&global("numpy._core.multiarray", "_reconstruct"), &arguments)
    };
    let array_state = |kind: Code| tuple(&[int(1), tuple(&[int(1)]), kind, vec![0x89], b"C\x08ABCDEFGH".to_vec()]);
    let known_array = |code: &str, size: i64, flags: i64| {
        build(array(), array_state(build(kind(code), kind_state(none(), size, flags))))
    };
    let dict_config = "omegaconf.dictconfig.DictConfig";
    for (what, code, names) in [
        (
            "a class with arguments",
            call(&global("omegaconf.dictconfig", "DictConfig"), &[dict(&[])]),
            vec![dict_config],
        ),
        ("a class without arguments", call(&global("argparse", "Namespace"), &[]), vec!["argparse.Namespace"]),
        (
            "a class with arguments for __new__",
            [global("argparse", "Namespace"), tuple(&[none()]), vec![0x81]].concat(),
            vec!["argparse.Namespace"],
        ),
        (
            "named arguments",
            [global("argparse", "Namespace"), tuple(&[]), dict(&[]), vec![0x92]].concat(),
            vec!["argparse.Namespace"],
        ),
        (
            "an address",
            call(&global("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint"), &[text("ftp://x")]),
            vec!["pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint"],
        ),
        ("a set of configs", call(&global("builtins", "set"), &[list(&[config("DictConfig")])]), vec!["builtins.set"]),
        (
            "a key that is a config",
            [b"}".to_vec(), config("DictConfig"), none(), b"s".to_vec()].concat(),
            vec![dict_config],
        ),
        (
            "an element that is a config",
            [b"\x8f(".to_vec(), tuple(&[config("DictConfig")]), vec![0x90]].concat(),
            vec![dict_config],
        ),
        (
            "metadata that are a config",
            build(config("DictConfig"), dict(&[("_metadata", config("DictConfig"))])),
            vec![dict_config],
        ),
        (
            "metadata of configs",
            build(instance("omegaconf.base", "Metadata"), dict(&[("key_type", interpolated())])),
            vec!["omegaconf.base.Metadata"],
        ),
        (
            "parameters that are a config",
            build(linear(), dict(&[("_parameters", config("DictConfig"))])),
            vec!["torch.nn.modules.linear.Linear"],
        ),
        ("an optimizer of objects", build(adam(), dict(&[("state", namespace())])), vec!["torch.optim.adam.Adam"]),
        ("two states", build(build(namespace(), dict(&[])), dict(&[])), vec!["argparse.Namespace"]),
        ("a state that is no dict", build(namespace(), list(&[])), vec!["argparse.Namespace"]),
        (
            "the state of a result",
            build(call(&global("pathlib", "PosixPath"), &[text("x")]), dict(&[])),
            vec!["pathlib.PosixPath"],
        ),
        (
            "a tensor of an object",
            call(&global("torch._utils", "_rebuild_parameter"), &[namespace(), vec![0x88], none()]),
            vec!["torch._utils._rebuild_parameter"],
        ),
        ("a value that is called", call(&global("torch", "FloatStorage"), &[int(9)]), vec!["torch.FloatStorage"]),
        (
            "a text in another code",
            call(&global("_codecs", "encode"), &[text("x"), text("zip")]),
            vec!["_codecs.encode"],
        ),
        ("objects without their flags", known_array("O8", -1, 0), vec!["numpy.dtype"]),
        ("flags without objects", known_array("V8", 8, 63), vec!["numpy.dtype"]),
        ("another width", known_array("V8", 4096, 0), vec!["numpy.dtype"]),
        (
            "fields",
            build(array(), array_state(build(kind("V8"), kind_state(dict(&[("f", kind("O8"))]), 8, 0)))),
            vec!["numpy.dtype"],
        ),
        ("several types", build(kind("f4,object"), kind_state(none(), -1, 0)), vec!["numpy.dtype"]),
        (
            "a type that changes later",
            build(array(), array_state(kind("V8"))),
            vec!["numpy._core.multiarray._reconstruct"],
        ),
        (
            "an array that is built twice",
            build(known_array("f8", -1, 0), array_state(build(kind("f8"), kind_state(none(), -1, 0)))),
            vec!["numpy._core.multiarray._reconstruct"],
        ),
        // The uses of ordinary files.
        ("a namespace", build(namespace(), dict(&[("a", config("DictConfig"))])), vec![]),
        (
            "a config",
            build(
                config("DictConfig"),
                dict(&[
                    (
                        "_metadata",
                        build(
                            instance("omegaconf.base", "ContainerMetadata"),
                            dict(&[("key_type", global("typing", "Any"))]),
                        ),
                    ),
                    ("_content", dict(&[("k", interpolated())])),
                ]),
            ),
            vec![],
        ),
        ("a module", build(linear(), dict(&[("_modules", dict(&[("0", linear())]))])), vec![]),
        (
            "copyreg",
            build(
                call(
                    &global("copyreg", "_reconstructor"),
                    &[global("argparse", "Namespace"), global("builtins", "object"), none()],
                ),
                dict(&[]),
            ),
            vec![],
        ),
        ("a set", call(&global("builtins", "set"), &[list(&[int(1), tuple(&[text("a")])])]), vec![]),
        ("a default dict", call(&global("collections", "defaultdict"), &[global("builtins", "list")]), vec![]),
        ("arrays", list(&[known_array("f8", -1, 0), known_array("O8", -1, 63), known_array("U2", 8, 8)]), vec![]),
    ] {
        let bench = Bench::new();
        bench.write("x.pt", &checkpoint(&dict(&[("x", code)]), &[]));
        let outcome = bench.run("inspect x.pt --fail-on code -q");
        let error = match &names[..] {
            [] => String::new(),
            names => format!("tcast: error: x.pt: names code that is not known to be harmless: {}\n", names.join(", ")),
        };
        assert_eq!((outcome.code, outcome.stderr), (Some(if names.is_empty() { 0 } else { 3 }), error), "{what}");
    }
}

/// Each changes tensors, or what the file's values are, in ways that no checkpoint needs.
#[test]
fn values_are_refused_if_calls_may_have_changed_them() {
    let bytes = f32s(&[1.0, 2.0]);
    let none = || vec![b'N'];
    let tensor = || floats("0", &[2]);
    let put = |value: Code| [value, b"q\x01".to_vec()].concat();
    let after = |code: Code| [dict(&[("w", put(tensor()))]), code, b"0".to_vec()].concat();
    let linear = || instance("torch.nn.modules.linear", "Identity");
    let rebuild = |name: &str, arguments: &[Code]| call(&global("torch._utils", name), arguments);
    let data = || dict(&[("data", floats("1", &[2]))]);
    let typed = |function: &str, flags: Code, shape: Code| {
        let hooks = call(&global("collections", "OrderedDict"), &[]);
        rebuild(function, &[storage("Float", "0", 2), int(0), shape, ints(&[1]), vec![0x89], hooks, flags])
    };
    let called = "malformed pickle: it calls a value that is neither a class nor a function";
    let filled = "malformed pickle: it sets entries of an instance";
    let not_dict = "malformed pickle: it sets entries of a value that is not a dict";
    let view = "tensor 'w': its storage, offset, shape or strides are malformed";
    let unread = |name: &str| format!("tensor 'w': is a tensor of {name}, which tcast does not read");
    let subclass = |state: Code| {
        let arguments = tuple(&[storage("Float", "0", 2), int(0), ints(&[2]), ints(&[1]), vec![0x89], none()]);
        let function = global("torch._utils", "_rebuild_tensor_v2");
        call(
            &global("torch._tensor", "_rebuild_from_type_v2"),
            &[function, global("torch.nn.parameter", "Parameter"), arguments, state],
        )
    };
    for (value, message) in [
        (after([linear(), b"h\x01\x85R".to_vec()].concat()), called.to_owned()),
        (after([linear(), int(0), int(7), b"s".to_vec()].concat()), filled.to_owned()),
        (after([linear(), int(0), b"a".to_vec()].concat()), filled.to_owned()),
        (
            after(call(&global("builtins", "list"), &[instance("omegaconf.listconfig", "ListConfig")])),
            "malformed pickle: a list or tuple is made of other values".to_owned(),
        ),
        (
            after([global("torch.nn.parameter", "Parameter"), b"h\x01\x85RK\0K\x07s".to_vec()].concat()),
            not_dict.to_owned(),
        ),
        (
            after(
                [b"h\x01".to_vec(), tuple(&[storage("Float", "1", 2), int(0), ints(&[2]), ints(&[1])]), b"b".to_vec()]
                    .concat(),
            ),
            "malformed pickle: it sets the state of a tensor".to_owned(),
        ),
        (
            [call(&global("collections", "OrderedDict"), &[]), dict(&[("items", dict(&[]))]), b"b".to_vec()].concat(),
            "malformed pickle: it sets other attributes of a dict than its metadata".to_owned(),
        ),
        (
            dict(&[("w", call(&global("torch.nn.parameter", "Parameter"), &[tensor()]))]),
            unread("torch.nn.parameter.Parameter"),
        ),
        (
            dict(&[("w", rebuild("_rebuild_parameter_with_state", &[tensor(), vec![0x88], none(), data()]))]),
            unread("torch._utils._rebuild_parameter_with_state"),
        ),
        (
            dict(&[(
                "w",
                rebuild("_rebuild_parameter_with_state", &[tensor(), vec![0x88], none(), tuple(&[none(), data()])]),
            )]),
            unread("torch._utils._rebuild_parameter_with_state"),
        ),
        (dict(&[("w", subclass(data()))]), unread("torch._tensor._rebuild_from_type_v2")),
        (
            dict(&[(
                "w",
                rebuild("_rebuild_device_tensor_from_cpu_tensor", &[tensor(), global("torch", "float16"), text("cpu")]),
            )]),
            unread("torch._utils._rebuild_device_tensor_from_cpu_tensor"),
        ),
        (dict(&[("w", typed("_rebuild_tensor_v2", list(&[]), ints(&[2])))]), view.to_owned()),
        (
            dict(&[("w", typed("_rebuild_tensor_v2", call(&global("builtins", "bool"), &[]), ints(&[2])))]),
            view.to_owned(),
        ),
        (dict(&[("w", typed("_rebuild_tensor_v2", none(), list(&[int(2)])))]), view.to_owned()),
    ] {
        let bench = Bench::new();
        bench.write("x.pt", &checkpoint(&value, &[("0", &bytes), ("1", &bytes)]));
        let outcome = bench.run("cast x.pt --root . -o y.safetensors -q");
        let error = format!("tcast: error: x.pt: {message}");
        assert!(outcome.code == Some(1) && outcome.stderr.starts_with(&error), "{message}: {outcome:?}");
        assert!(!bench.path("y.safetensors").exists());
    }
    // What decides is the time of the call, and that a flag is there.
    let later = [dict(&[]), b"q\x01".to_vec()].concat();
    let set = [b"h\x01".to_vec(), text("neg"), vec![0x88, b's', b'0']].concat();
    let negative = f32s(&[-1.0, -2.0]);
    for (flags, more, expected) in [
        (later, set, &bytes),
        (dict(&[("neg", vec![0x89])]), vec![], &negative),
        (dict(&[("neg", int(1))]), vec![], &negative),
        (call(&global("builtins", "dict"), &[dict(&[("neg", vec![0x88])])]), vec![], &negative),
    ] {
        let bench = Bench::new();
        let value = [dict(&[("w", typed("_rebuild_tensor_v2", flags, ints(&[2])))]), more].concat();
        bench.write("x.pt", &checkpoint(&value, &[("0", &bytes)]));
        bench.run("cast x.pt -o y.safetensors -q").expect(0, "", "");
        assert!(bench.read("y.safetensors").ends_with(expected));
    }
}

/// PyTorch swaps bytes by the type of the storage, and compares names of members as bytes.
#[test]
fn bytes_that_torch_takes_in_another_way_are_refused_or_found_in_its_way() {
    let big = [1.0_f32, 2.0].map(f32::to_be_bytes).concat();
    let hooks = call(&global("collections", "OrderedDict"), &[]);
    let arguments =
        [storage("Float", "0", 2), int(0), ints(&[1]), ints(&[1]), vec![0x89], hooks, global("torch", "int64")];
    let typed = call(&global("torch._utils", "_rebuild_tensor_v3"), &arguments);
    let members = |value: Code| {
        let code = pickle(&dict(&[("w", value)]));
        zip(&[("a/data.pkl", &code[..]), ("a/byteorder", b"big"), ("a/data/0", &big)], false)
    };
    let bench = Bench::new();
    bench.write("x.pt", &members(typed));
    bench.run("cast x.pt -o y.safetensors").says(1, "", "int64");
    bench.write("x.pt", &members(floats("0", &[2])));
    bench.run("cast x.pt -o y.safetensors -q").expect(0, "", "");
    assert!(bench.read("y.safetensors").ends_with(&f32s(&[1.0, 2.0])));
    // The bytes of this name are the key in UTF-8, whatever the archive says about them.
    let mut file = checkpoint(&dict(&[("w", floats("\u{e9}", &[2]))]), &[("\u{e9}", &f32s(&[3.0, 4.0]))]);
    let directory = file.windows(4).rposition(|bytes| bytes == b"PK\x01\x02").unwrap();
    file[directory + 9] &= !8;
    bench.write("x.pt", &file);
    bench.run("cast x.pt -f -o y.safetensors -q").expect(0, "", "");
    assert!(bench.read("y.safetensors").ends_with(&f32s(&[3.0, 4.0])));
}
