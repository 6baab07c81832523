//! `tcast cast` from one ONNX model to another: what changes, what stays, and what is refused.
#![cfg_attr(not(unix), allow(dead_code, unused_imports, reason = "some tests need a shell"))]

use crate::common::onnx::{field, initializer, model, node, node_with, number};
use crate::common::{Bench, Outcome, fixture, tree};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// The node that a cast inserts; both types by their ONNX numbers.
fn cast_node(from: &str, output: &str, to: u8) -> Vec<u8> {
    let attribute = [field(1, b"to"), number(3, to), vec![0xa0, 1, 2]].concat();
    let name = from.as_bytes();
    field(
        1,
        &[field(1, name), field(2, output.as_bytes()), field(3, name), field(4, b"Cast"), field(5, &attribute)]
            .concat(),
    )
}

/// A tensor of two elements, with an unknown field of a later version in it.
fn tensor(name: &str, data_type: u8, raw: &[u8]) -> Vec<u8> {
    [number(1, 2), number(2, data_type), field(8, name.as_bytes()), vec![0xa2, 0x7d, 2, 1, 2], field(9, raw)].concat()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What became of each tensor of a report, by its old name: the new type, or why it is kept.
fn fates(outcome: &Outcome) -> BTreeMap<String, String> {
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let fate = |tensor: &Value| {
        let name = text(&tensor["renamed_from"]).or(text(&tensor["name"])).unwrap();
        (name, text(&tensor["kept"]).or(text(&tensor["to"])).unwrap())
    };
    report["tensors"].as_array().unwrap().iter().map(fate).collect()
}

#[test]
fn an_initializer_is_stored_under_a_new_name_and_cast_back_before_all_nodes() {
    let bench = Bench::new();
    let unknown = vec![0xa2, 0x7d, 3, 7, 8, 9];
    let graph = |weight: &[u8], casts: &[u8]| {
        let add = node("Add", &["x", "w"], "y");
        [field(2, b"g"), field(5, weight), unknown.clone(), casts.to_vec(), add, unknown.clone()].concat()
    };
    bench.write("in.onnx", &model(&graph(&tensor("w", 1, &floats(&[1.0, -2.0])), &[])));
    bench.run("cast in.onnx --to float16 -o out.onnx -q --min-elements 0").expect(0, "", "");
    // The elements come last, whatever the order was.
    let narrow = tensor("w_float16", 10, &[0, 0x3c, 0, 0xc0]);
    assert_eq!(bench.read("out.onnx"), model(&graph(&narrow, &cast_node("w_float16", "w", 1))));
    // Once more, the names of before are not taken.
    bench.run("cast out.onnx --to float8e5m2 -o again.onnx -q --min-elements 0").says(1, "", "--raise-opset");
    bench.run("cast out.onnx --to float8e5m2 -o again.onnx -q --min-elements 0 --raise-opset").expect(0, "", "");
    let again = [tensor("w_float16_float8e5m2_1", 19, &[0x3c, 0xc0]), Vec::new()].concat();
    let casts = [cast_node("w_float16_float8e5m2_1", "w_float16", 10), cast_node("w_float16", "w", 1)].concat();
    let wanted = [&[0x08, 9][..], &field(7, &graph(&again, &casts)), &field(8, &[0x10, 19])].concat();
    assert_eq!(bench.read("again.onnx"), wanted);
}

#[test]
fn a_constant_gets_a_new_output_and_is_cast_back_behind_it() {
    let constant = |name: &str, tensor: &[u8]| {
        let attribute = [field(1, b"value"), field(5, tensor), vec![0xa0, 1, 4]].concat();
        field(1, &[field(2, name.as_bytes()), field(4, b"Constant"), field(5, &attribute)].concat())
    };
    let [add, last] = [node("Add", &["x", "c"], "y"), node("Add", &["y", "c"], "z")];
    let bench = Bench::new();
    bench.write(
        "in.onnx",
        &model(&[add.clone(), constant("c", &tensor("t", 1, &floats(&[0.5, 65504.0]))), last.clone()].concat()),
    );
    bench.run("cast in.onnx --to float16 -o out.onnx -q --min-elements 0").expect(0, "", "");
    let narrow = constant("c_float16", &tensor("t", 10, &[0, 0x38, 0xff, 0x7b]));
    assert_eq!(bench.read("out.onnx"), model(&[add.clone(), narrow, cast_node("c_float16", "c", 1), last].concat()));
}

#[test]
fn a_constant_does_not_become_float6_which_its_operator_lacks() {
    let bench = Bench::new();
    let values = floats(&[0.5, 3.0]);
    let graph = |weight: &[u8], cast: &[u8]| {
        let users = [node("Add", &["x", "c"], "y"), node("Tile", &["y", "p"], "z"), node("Add", &["z", "w"], "o")];
        [weight.to_vec(), cast.to_vec(), constant("c", &values), constant("p", &values), users.concat()].concat()
    };
    let of_opset_28 = |graph: &[u8]| [&number(1, 14)[..], &field(7, graph), &field(8, &number(2, 28))].concat();
    bench.write("in.onnx", &of_opset_28(&graph(&initializer("w", 1, &[2], &values), &[])));
    let outcome = bench.run("cast in.onnx --to float6e2m3 -o out.onnx --min-elements 0 --rule p=float6e2m3 -j 1");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.check_message("Constant");
    let narrow = initializer("w_float6e2m3", 27, &[2], &[0x04, 0x05]);
    assert_eq!(bench.read("out.onnx"), of_opset_28(&graph(&narrow, &cast_node("w_float6e2m3", "w", 1))));
}

#[test]
fn before_opset_6_the_type_of_a_cast_is_text() {
    let bench = Bench::new();
    let of_opset_5 = |graph: &[u8]| [&number(1, 3)[..], &field(7, graph), &field(8, &number(2, 5))].concat();
    let add = node("Add", &["x", "w"], "y");
    bench.write("in.onnx", &of_opset_5(&[field(5, &tensor("w", 1, &[0; 8])), add.clone()].concat()));
    bench.run("cast in.onnx --to float16 -o out.onnx -q --min-elements 0").expect(0, "", "");
    let attribute = [field(1, b"to"), field(4, b"FLOAT"), vec![0xa0, 1, 3]].concat();
    let name = b"w_float16";
    let cast =
        field(1, &[field(1, name), field(2, b"w"), field(3, name), field(4, b"Cast"), field(5, &attribute)].concat());
    let narrow = field(5, &tensor("w_float16", 10, &[0; 4]));
    assert_eq!(bench.read("out.onnx"), of_opset_5(&[narrow, cast, add].concat()));
    // An opset that is raised decides, not the one before.
    let of_opset = |opset, graph: &[u8]| [&number(1, 4)[..], &field(7, graph), &field(8, &number(2, opset))].concat();
    let transpose = node("Transpose", &["w"], "y");
    bench.write("in.onnx", &of_opset(5, &[field(5, &tensor("w", 1, &[0; 8])), transpose.clone()].concat()));
    bench.run("cast in.onnx --to bf16 -o out.onnx -q -f --min-elements 0 --raise-opset").expect(0, "", "");
    let narrow = field(5, &tensor("w_bfloat16", 16, &[0; 4]));
    let graph = [narrow, cast_node("w_bfloat16", "w", 1), transpose].concat();
    assert_eq!(bench.read("out.onnx"), of_opset(13, &graph));
}

#[test]
fn what_is_no_plain_weight_is_kept_and_named_with_the_reason() {
    let bench = Bench::new();
    let fates_of = |name: &str, flags: &str| {
        let path = fixture("onnx_models").join(name);
        fates(&bench.run(&format!("cast {} --to f16 -o out.onnx -f --json {flags}", path.display())))
    };
    let kept = |fates: &BTreeMap<String, String>, reason: &str| {
        let names = fates.iter().filter(|(_, fate)| *fate == reason).map(|(name, _)| name.clone());
        names.collect::<Vec<_>>().join(" ")
    };
    let roles = fates_of("keep_roles.onnx", "--min-elements 0");
    assert_eq!(kept(&roles, "scale"), "qs ys");
    assert_eq!(kept(&roles, "parameter"), "b g hi lo m rs v");
    assert_eq!(kept(&roles, "float16"), "w wo");
    assert_eq!(kept(&fates_of("init_is_input.onnx", "--min-elements 0"), "graph_input"), "w");
    assert_eq!(kept(&fates_of("training_info.onnx", "--min-elements 0"), "trained").split(' ').next(), Some("lr"));
    assert_eq!(kept(&fates_of("sparse_initializer.onnx", "--min-elements 0"), "sparse"), "w.values");
    assert_eq!(kept(&fates_of("constant_forms.onnx", "--min-elements 0"), "list").split(' ').count(), 2);
    let function = fates_of("function_tensors.onnx", "--min-elements 0");
    assert_eq!((&*kept(&function, "function"), &*kept(&function, "float16")), ("k local::Scale.delta", "w"));
    let shadow = fates_of("shadow_initializer.onnx", "--min-elements 0");
    assert_eq!((kept(&shadow, "shadowing").split(' ').count(), &*kept(&shadow, "float16")), (1, "w"));
    // A rule names its tensors, whatever their size, and may overrule that a bound should stay as it is.
    let small = fates_of("keep_roles.onnx", "--rule w=f16 --rule g=f16 --rule qs=f16");
    assert_eq!((&*kept(&small, "float16"), &*kept(&small, "small")), ("g w", "wo"));
    // The summary has them too.
    let path = fixture("onnx_models/keep_roles.onnx");
    bench.run(&format!("cast {} --to f16 -o out.onnx -f --min-elements 65", path.display())).says(
        0,
        "",
        "--min-elements",
    );
}

#[test]
fn an_option_or_a_rule_that_a_model_cannot_follow_is_named() {
    let bench = Bench::new();
    let [weight, input] = ["w", "i"].map(|name| field(5, &tensor(name, 1, &[0; 8])));
    let graph = [weight, input, node("Add", &["w", "i"], "y"), field(11, &field(1, b"i"))].concat();
    bench.write("in.onnx", &model(&graph));
    let outcome = bench.run("cast in.onnx --to f16 --min-elements 1 --rule i=f16 -o out.onnx");
    let note = "tcast: warning: the rule 'i' has no effect: the model keeps its tensors (graph inputs)\n";
    let summary = "cast 1 tensor to float16, copied 1: 1 graph input\n";
    assert!(outcome.stderr.starts_with(&format!("{note}{summary}")), "{}", outcome.stderr);
    let outcome = bench.run("cast in.onnx --to f16 --min-elements 1 --rule *=bf16 -o out.onnx -f");
    assert!(!outcome.stderr.contains("has no effect"), "{}", outcome.stderr);
    for option in ["--external-data", "--min-elements 1", "--raise-opset"] {
        bench.run(&format!("cast in.onnx --to f16 {option} -o out.npz")).says(2, "", "ONNX");
    }
    // The versions of a model mean nothing in other formats.
    let outcome = bench.run("cast in.onnx --to f16 -o out.npz");
    assert!(outcome.code == Some(0) && !outcome.stderr.contains("warning"), "{}", outcome.stderr);
}

#[test]
fn a_type_that_the_opset_lacks_is_refused_with_the_node_in_the_way() {
    let bench = Bench::new();
    let refused = |name: &str, to: &str, message: &str| {
        let path = fixture("onnx_models").join(name);
        let outcome =
            bench.run(&format!("cast {} --to {to} --min-elements 0 -o out.onnx --raise-opset", path.display()));
        outcome.says(1, "", message);
        assert!(bench.files().is_empty());
    };
    refused(
        "opset11_bf16.onnx",
        "bf16",
        "bfloat16 needs opset 13, and the model imports 11: node 'Softmax_1' (Softmax) means something else from opset 13 on\n  \
         float16 needs no later version; onnx.version_converter converts models to later opsets\n",
    );
    refused("opset17_fp8.onnx", "e4m3", "(ReduceMean) means something else from opset 18 on\n");
    refused(
        "no_default_opset.onnx",
        "f16",
        "the model imports no operators of the default domain, and Cast is one of them\n",
    );
    let message =
        "opset 19, and the model imports 17: its functions import opsets of their own, so tcast does not raise it\n";
    let inliner = "onnx.inliner.inline_local_functions puts the nodes of functions into the graph\n";
    let remedy = format!("  float16 needs no later version; {inliner}");
    refused("function_tensors.onnx", "e4m3", &format!("float8e4m3fn needs {message}{remedy}"));
    let model = fixture("onnx_models").join("function_tensors.onnx");
    let line = format!("quantize {} --scheme fp8 --min-elements 0 -o out.onnx --raise-opset", model.display());
    let outcome = bench.run(&line);
    assert!(outcome.code == Some(1) && outcome.stderr.ends_with(&format!("{message}  {inliner}")), "{outcome:?}");
}

#[test]
fn casts_to_types_without_infinity_mean_something_else_from_opset_24_on() {
    let bench = Bench::new();
    let weight = [node("Add", &["x", "w"], "a"), initializer("w", 1, &[2], &floats(&[1.0, 2.0]))].concat();
    let of_opset_21 = |graph: &[u8]| [&number(1, 10)[..], &field(7, graph), &field(8, &number(2, 21))].concat();
    let cast = |to: u8| [weight.clone(), node_with("Cast", &["a"], "y", &[("to", to)])].concat();
    let like = |to: u8| [weight.clone(), node("CastLike", &["a", "z"], "y"), initializer("z", to, &[1], &[0])].concat();
    let like_input = |to: u8, input: u8| {
        let of_type = field(2, &field(1, &number(1, to)));
        let input = field(input, &[field(1, b"z"), of_type].concat());
        [weight.clone(), node("CastLike", &["a", "z"], "y"), input].concat()
    };
    let unsaturated_like =
        [weight.clone(), node_with("CastLike", &["a", "z"], "y", &[("saturate", 0)]), initializer("z", 18, &[1], &[0])];
    let unsaturated = [weight.clone(), node_with("Cast", &["a"], "y", &[("to", 18), ("saturate", 0)])].concat();
    for (graph, changes) in [
        (cast(18), "node 'Cast_1' (Cast)"),
        (cast(20), "node 'Cast_1' (Cast)"),
        (like(18), "node 'CastLike_1' (CastLike)"),
        (like_input(20, 11), "node 'CastLike_1' (CastLike)"),
        (like_input(18, 13), "node 'CastLike_1' (CastLike)"),
        (like_input(17, 11), ""),
        (unsaturated, ""),
        (unsaturated_like.concat(), ""),
        (cast(17), ""),
        (like(17), ""),
    ] {
        bench.write("in.onnx", &of_opset_21(&graph));
        let command = "cast in.onnx --min-elements 0 --raise-opset -o out.onnx -f -q";
        let outcome = bench.run(&format!("{command} --to float8e8m0"));
        let message = format!("imports 21: {changes} means something else from opset 24 on\n");
        assert_eq!(outcome.code, Some(i32::from(!changes.is_empty())), "{outcome:?}");
        assert!(changes.is_empty() || outcome.stderr.contains(&message), "{}", outcome.stderr);
        bench.run(&format!("{command} --to float4e2m1")).expect(0, "", ""); // opset 23
    }
}

#[test]
fn a_version_is_raised_only_as_far_as_a_type_needs() {
    let bench = Bench::new();
    let graph = [node("Add", &["x", "w"], "y"), field(5, &tensor("w", 1, &[0; 8]))].concat();
    bench.write("in.onnx", &model(&graph));
    let outcome = bench.run("cast in.onnx --to e4m3 -o out.onnx --min-elements 0 --raise-opset");
    assert_eq!(outcome.code, Some(0));
    outcome.check_message("float8e4m3fn");
    // Nobody knows what an operator of somebody else means in another opset.
    let unheard = [node("Unheard", &["x", "w"], "y"), field(5, &tensor("w", 1, &[0; 8]))].concat();
    bench.write("unheard.onnx", &model(&unheard));
    bench.run("cast unheard.onnx --to e4m3 -o no.onnx --min-elements 0 --raise-opset").says(1, "", "Unheard_0");
    // In IR version 3, initializers are inputs and constants at once.
    bench.write("old.onnx", &[&number(1, 3)[..], &field(7, &graph), &field(8, &number(2, 19))].concat());
    bench.run("cast old.onnx --to e4m3 -o no.onnx --min-elements 0").says(1, "", "float8e4m3fn");
}

#[test]
fn elements_go_to_a_file_beside_the_model_and_both_appear_or_none() {
    let bench = Bench::new();
    for name in ["ext_shared_range.onnx", "ext.data"] {
        fs::copy(fixture("onnx_models").join(name), bench.path(name)).unwrap();
    }
    let weight = |name: &str| {
        let data: Vec<u8> = (0..1024_u32).flat_map(|index| (index as f32).to_le_bytes()).collect();
        field(5, &[vec![1 << 3, 0x80, 8], number(2, 1), field(8, name.as_bytes()), field(9, &data)].concat())
    };
    let small = field(5, &tensor("s", 1, &[0; 8]));
    bench.write("in.onnx", &model(&[weight("a"), small, weight("b"), node("Add", &["a", "b"], "y")].concat()));
    bench.run("cast in.onnx --to f16 -o out.onnx --external-data -q --hash --report r.json").expect(0, "", "");
    assert_eq!(bench.read("out.onnx.data").len(), 4096 + 2048);
    if cfg!(unix) {
        // Separators of other systems.
        bench.run(r"cast in.onnx --to f16 -o a\b:c.onnx --external-data -q").expect(0, "", "");
        bench.run(r"diff out.onnx a\b:c.onnx -q").expect(0, "", "");
        for name in [r"a\b:c.onnx", r"a\b:c.onnx.data"] {
            fs::remove_file(bench.path(name)).unwrap();
        }
    }
    let listed = bench.run("inspect out.onnx");
    let line = "  a_float16  float16  [1024]  2.00 KiB  FLOAT16 external_data\n";
    assert!(listed.stdout.contains(line) && listed.stdout.contains("s          float32"), "{}", listed.stdout);
    bench.run("diff --report r.json out.onnx").expect(0, "3 tensors are as the report says\n", "");
    // The second file exists: nothing is written.
    fs::remove_file(bench.path("out.onnx")).unwrap();
    let files = bench.files();
    bench.run("cast in.onnx --to f16 -o out.onnx --external-data").says(4, "", "--force");
    bench.run("cast in.onnx --to f16 -o out.onnx --external-data --skip-existing").says(1, "", "already");
    assert_eq!(bench.files(), files);
    // An input is never replaced, also if it is data of the input.
    fs::rename(bench.path("ext_shared_range.onnx"), bench.path("m.onnx")).unwrap();
    let before = bench.read("ext.data");
    let refused = bench.run("cast m.onnx --to f16 --min-elements 0 -o ext.data -f");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    // Without the flag, the elements come into the model.
    bench.run("cast m.onnx --to f16 --min-elements 0 -o inside.onnx -q").expect(0, "", "");
    assert!(bench.read("ext.data") == before && !bench.files().contains(&"inside.onnx.data".to_owned()));
    bench.run("cast m.onnx --to f16 -o - --external-data").expect(
        1,
        "",
        "tcast: error: m.onnx: the elements go to a file beside the model\n  name an output file, in UTF-8 and without '..'\n",
    );
}

/// An initializer with 1024 elements of a type, whose bytes begin at 64 in w.data.
fn in_data_file(name: &str, dtype: u8, len: &[u8]) -> Vec<u8> {
    let pair = |key: &[u8], value: &[u8]| field(13, &[field(1, key), field(2, value)].concat());
    let place = [pair(b"location", b"w.data"), pair(b"offset", b"64"), pair(b"length", len), number(14, 1)].concat();
    field(5, &[vec![1 << 3, 0x80, 8], number(2, dtype), field(8, name.as_bytes()), place].concat())
}

#[test]
fn tensors_that_share_elements_share_them_in_the_output() {
    let bench = Bench::new();
    let shared = |name: &str| in_data_file(name, 1, b"4096");
    bench.write("w.data", &vec![0; 4160]);
    bench.write("in.onnx", &model(&[shared("a"), shared("b"), node("Add", &["a", "b"], "y")].concat()));
    bench.run("cast in.onnx --to f16 -o out.onnx --external-data -q").expect(0, "", "");
    assert_eq!(bench.read("out.onnx.data").len(), 2048);
    bench.run("inspect out.onnx --stats -q").expect(0, &bench.run("inspect out.onnx --stats").stdout, "");
}

#[test]
fn codes_with_other_scales_do_not_share_their_values() {
    let bench = Bench::new();
    bench.write("w.data", &vec![1; 1088]);
    let scale = |name: &str, value: f32| initializer(name, 1, &[], &floats(&[value]));
    let graph = [
        [in_data_file("a", 3, b"1024"), in_data_file("b", 3, b"1024"), scale("s", 0.5), scale("t", 2.0)].concat(),
        [node("DequantizeLinear", &["a", "s"], "v"), node("DequantizeLinear", &["b", "t"], "w")].concat(),
        node("Add", &["v", "w"], "y"),
    ];
    bench.write("in.onnx", &model(&graph.concat()));
    for option in ["", "--external-data"] {
        bench.run(&format!("dequantize in.onnx -o out.onnx -q -f {option}")).expect(0, "", "");
        let values = |name: &str| bench.run(&format!("bitcast out.onnx --tensor {name} --hex --range 0..1")).stdout;
        assert_eq!([values("v"), values("w")], ["0  3f000000\n", "0  40000000\n"], "{option}");
    }
}

#[cfg(unix)]
#[test]
fn a_model_and_its_data_are_not_separated_by_a_link() {
    let bench = Bench::new();
    let weight = [vec![1 << 3, 32, 1 << 3, 32], number(2, 1), field(8, b"w"), field(9, &floats(&[0.5; 1024]))].concat();
    bench.write("in.onnx", &model(&[field(5, &weight), node("MatMul", &["x", "w"], "y")].concat()));
    bench.run("cast in.onnx --to f16 -o real.onnx -q").expect(0, "", "");
    fs::create_dir(bench.path("elsewhere")).unwrap();
    for (target, link) in [
        ("elsewhere/m.onnx", "far.onnx"),
        ("real.onnx", "near.onnx"),
        ("elsewhere", "folder"),
        ("new.onnx", "new_link.onnx"),
    ] {
        std::os::unix::fs::symlink(target, bench.path(link)).unwrap();
    }
    let files = bench.files();
    for command in ["cast in.onnx --to f16", "quantize in.onnx --scheme int8 --raise-opset"] {
        bench.run(&format!("{command} -o far.onnx --external-data -f")).says(1, "", "./elsewhere/m.onnx");
        assert_eq!(bench.files(), files);
        for output in ["near.onnx", "new_link.onnx", "folder/m.onnx"] {
            bench.run(&format!("{command} -o {output} --external-data -f -q")).expect(0, "", "");
            bench.run(&format!("diff in.onnx {output} -q --tolerance 0.01")).expect(0, "", "");
            std::fs::remove_file(bench.path(&format!("{output}.data"))).unwrap();
        }
        bench.run(&format!("{command} -o far.onnx -f -q")).expect(0, "", ""); // one file may be elsewhere
        std::fs::remove_file(bench.path("far.onnx")).unwrap();
        std::os::unix::fs::symlink("elsewhere/m.onnx", bench.path("far.onnx")).unwrap();
        std::fs::remove_file(bench.path("elsewhere/m.onnx")).unwrap();
        std::fs::remove_file(bench.path("new.onnx")).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn the_data_of_a_model_stay_in_its_folder_whatever_has_their_name() {
    use std::os::unix::fs::symlink;
    let bench = Bench::new();
    let weight = [vec![1 << 3, 32, 1 << 3, 32], number(2, 1), field(8, b"w"), field(9, &floats(&[0.5; 1024]))].concat();
    bench.write("in.onnx", &model(&[field(5, &weight), node("MatMul", &["x", "w"], "y")].concat()));
    fs::create_dir(bench.path("elsewhere")).unwrap();
    bench.write("elsewhere/mine", b"mine");
    bench.write("near", b"old");
    let data = bench.path("out.onnx.data");
    let line = "cast in.onnx --to f16 -o out.onnx --external-data -q";
    for target in ["elsewhere/mine", "elsewhere/new", "../new"] {
        symlink(target, &data).unwrap();
        for force in ["", " --force", " --skip-existing", " --dry-run"] {
            bench.run(&format!("{line}{force}")).says(1, "", "out.onnx.data");
        }
        fs::remove_file(&data).unwrap();
    }
    assert_eq!(tree(&bench.path("elsewhere")).into_keys().collect::<Vec<_>>(), ["mine"]);
    assert_eq!(bench.read("elsewhere/mine"), b"mine");
    // A hard link gives a file another name, and the new data take that name alone.
    fs::hard_link(bench.path("elsewhere/mine"), &data).unwrap();
    bench.run(&format!("{line} --force")).expect(0, "", "");
    assert_eq!(bench.read("elsewhere/mine"), b"mine");
    bench.run("diff in.onnx out.onnx -q --tolerance 0.01").expect(0, "", "");
    fs::remove_file(&data).unwrap();
    // As with the model, a link that stays in the folder leads to the file.
    symlink("near", &data).unwrap();
    bench.run(&format!("{line} --force")).expect(0, "", "");
    assert!(data.is_symlink() && bench.read("near").len() == 2048);
    bench.run("diff in.onnx out.onnx -q --tolerance 0.01").expect(0, "", "");
    fs::remove_file(&data).unwrap();
    fs::remove_file(bench.path("out.onnx")).unwrap();
    fs::create_dir(&data).unwrap();
    let refused = |message: &str| {
        bench.run(&format!("{line} --force")).says(1, "", message);
        assert!(!bench.path("out.onnx").exists());
    };
    refused("tcast: error: out.onnx.data: the output is a directory\n");
    fs::remove_dir(&data).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&data).status().unwrap().success());
    refused(
        "tcast: error: out.onnx.data: the elements of the model go to a file beside it, and it is not a file itself\n",
    );
}

#[test]
fn what_a_model_cannot_become_is_refused_before_any_work() {
    let bench = Bench::new();
    bench.write("in.onnx", &model(&[node("Add", &["x", "w"], "y"), field(5, &tensor("w", 1, &[0; 8]))].concat()));
    let refused = |arguments: &str, code: i32, message: &str| {
        bench.run(arguments).expect(code, "", &format!("tcast: error: in.onnx: {message}\n"));
    };
    refused(
        "bitcast in.onnx --to int32 -o out.onnx",
        1,
        "bitcast does not write ONNX models\n  \
         take its tensors out first: tcast cast 'in.onnx' --to float32 --exclude '*' -o FILE.safetensors",
    );
    refused(
        "cast in.onnx --to int8 -o out.onnx",
        1,
        "tensor 'w': tcast stores weights of ONNX models only as floats\n  choose a floating type; the quantize command writes integers",
    );
    refused(
        "cast in.onnx --to f16 -o out.onnx --rename w=v",
        2,
        "tensor 'w': cannot be renamed: the nodes of the model refer to it by its name\n  leave --rename out",
    );
    assert_eq!(bench.files(), ["in.onnx"]);
    // A wider type, and one as wide, would make the file larger and no value better.
    let fate = |to: &str| {
        fates(&bench.run(&format!("cast in.onnx --to {to} -o out.onnx -f --json --min-elements 0")))["w"].clone()
    };
    assert_eq!((&*fate("f64"), &*fate("f32")), ("not_narrower", "already"));
    bench.run("cast in.onnx --to f16 -n -q --min-elements 0 -o new.onnx").expect(
        0,
        "w_float16  [2]  float32 -> float16  8 B -> 4 B\n",
        "",
    );
    assert_eq!(bench.files(), ["in.onnx", "out.onnx"]);
}

#[test]
fn a_model_that_would_be_too_long_gets_a_second_file() {
    let bench = Bench::new();
    let pair = |key: &[u8], value: &[u8]| field(13, &[field(1, key), field(2, value)].concat());
    // 2^30 elements, in a file that takes no space.
    let file = fs::File::create(bench.path("w.data")).unwrap();
    if file.set_len(4 << 30).is_err() {
        return; // a file system without sparse files
    }
    drop(file); // Windows reads no file that somebody may write to
    let place = [pair(b"location", b"w.data"), number(14, 1)].concat();
    let dims = vec![1 << 3, 0x80, 0x80, 0x80, 0x80, 4];
    let weight = field(5, &[dims, number(2, 1), field(8, b"w"), place].concat());
    bench.write("in.onnx", &model(&[weight, node("Add", &["x", "w"], "y")].concat()));
    let outcome = bench.run("cast in.onnx --to f16 --dry-run");
    let row = "w_float16  [1073741824]  float32 -> float16  4.00 GiB -> 2.00 GiB\n";
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), row));
    outcome.check_message("GiB");
    let outcome = bench.run("cast in.onnx --to float8e8m0 --dry-run --raise-opset");
    assert!(outcome.code == Some(0) && !outcome.stderr.contains("second file"), "{}", outcome.stderr);
}

#[test]
fn in_ir_version_3_the_input_of_an_initializer_gets_its_new_name_and_type() {
    // ValueInfo {name, type: {tensor_type: {elem_type, shape: {}}}, doc_string}
    let input = |name: &str, elem_type: u8| {
        let tensor = [number(1, elem_type), field(2, &[])].concat();
        field(11, &[field(1, name.as_bytes()), field(2, &field(1, &tensor)), field(3, b"doc")].concat())
    };
    let of_ir_3 = |graph: &[u8]| [&number(1, 3)[..], &field(7, graph), &field(8, &number(2, 8))].concat();
    let add = node("Add", &["x", "w"], "y");
    let bench = Bench::new();
    let graph = [add.clone(), field(5, &tensor("w", 1, &[0; 8])), input("x", 1), input("w", 1)].concat();
    bench.write("in.onnx", &of_ir_3(&graph));
    bench.run("cast in.onnx --to f16 -o out.onnx -q --min-elements 0").expect(0, "", "");
    let narrow = field(5, &tensor("w_float16", 10, &[0; 4]));
    let wanted = [cast_node("w_float16", "w", 1), add, narrow, input("x", 1), input("w_float16", 10)].concat();
    assert_eq!(bench.read("out.onnx"), of_ir_3(&wanted));
}

/// A Constant node.
fn constant(name: &str, values: &[u8]) -> Vec<u8> {
    let attribute = [field(1, b"value"), field(5, &tensor("t", 1, values)), vec![0xa0, 1, 4]].concat();
    field(1, &[field(2, name.as_bytes()), field(4, b"Constant"), field(5, &attribute)].concat())
}

/// An If node with these branches.
fn choice(name: &str, branches: [Vec<u8>; 2]) -> Vec<u8> {
    let branch = |(name, graph): (&str, Vec<u8>)| field(5, &[field(1, name.as_bytes()), field(6, &graph)].concat());
    let branches = ["then_branch", "else_branch"].into_iter().zip(branches).flat_map(branch).collect();
    let name = if name.is_empty() { Vec::new() } else { field(3, name.as_bytes()) };
    field(1, &[field(1, b"b"), field(2, b"y"), name, field(4, b"If"), branches].concat())
}

#[test]
fn nodes_that_tcast_inserts_do_not_change_the_numbers_of_others() {
    let bench = Bench::new();
    let values = floats(&[1.0, 0.1]);
    let weights = ["u", "v", "w"].map(|name| initializer(name, 1, &[1, 2], &values)).concat();
    let branch = |op: &str| [constant("k", &values), node(op, &["k", "u"], "y")].concat();
    let users = [("u", "a"), ("v", "b"), ("v", "c"), ("w", "d")];
    let users = users.map(|(weight, output)| node("MatMul", &["x", weight], output)).concat();
    let graph = [weights, users, choice("", [branch("Add"), branch("Mul")])].concat();
    bench.write("in.onnx", &[&number(1, 9)[..], &field(7, &graph), &field(8, &number(2, 19))].concat());
    bench.run("cast in.onnx --to float16 -o half.onnx -q --min-elements 0").expect(0, "", "");
    // A node for each user of `v` and `w`.
    bench.run("quantize in.onnx --scheme int8 -o int8.onnx -q --min-elements 0").expect(0, "", "");
    bench.run("cast int8.onnx --to float16 -o both.onnx -q --min-elements 0").expect(0, "", "");
    for other in ["half", "int8", "both"] {
        let report: Value =
            serde_json::from_str(&bench.run(&format!("diff in.onnx {other}.onnx --json")).stdout).unwrap();
        let names = report["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, ["u", "v", "w", "If_4.then_branch/k", "If_4.else_branch/k"], "{other}: {report:#}");
    }
    // A Cast node with another name counts.
    let own = [cast_node("a", "b", 1), cast_node("w_float16", "c", 1)].concat();
    let own = [own, choice("", [constant("k", &values), constant("k", &values)])].concat();
    bench.write("own.onnx", &model(&own));
    let listed = bench.run("inspect own.onnx --json");
    assert!(listed.stdout.contains("\"If_1.then_branch/k\""), "{}", listed.stdout);
}

#[test]
fn a_tensor_keeps_its_path_when_another_one_of_its_name_is_stored_under_a_new_one() {
    let bench = Bench::new();
    let branch = |name: &str, values: &[f32]| {
        let weight = initializer(name, 1, &[values.len() as u8, 1], &floats(values));
        [weight, node("MatMul", &["x", name], "o")].concat()
    };
    bench.write("in.onnx", &model(&choice("if", [branch("k", &[0.1, 0.2]), branch("k", &[0.3])])));
    bench.run("cast in.onnx --to f16 --min-elements 2 -o half.onnx -q").expect(0, "", "");
    bench.run("quantize in.onnx --scheme int8 --min-elements 2 -o int8.onnx -q").expect(0, "", "");
    // An inner graph hides a value of the outer one.
    let outer = [initializer("w", 1, &[2, 1], &floats(&[0.1, 0.2])), node("MatMul", &["x", "w"], "z")].concat();
    let inner = choice("if", [branch("w", &[0.3, 0.4]), branch("v", &[0.5])]);
    bench.write("hides.onnx", &model(&[outer, inner].concat()));
    bench.run("cast hides.onnx --to f16 --min-elements 1 -o hides_half.onnx -q").expect(0, "", "");
    bench.run("quantize hides.onnx --scheme int8 --min-elements 1 -o hides_int8.onnx -q").expect(0, "", "");
    for (name, other, names) in [
        ("in", "half", &["if.then_branch/k", "if.else_branch/k"][..]),
        ("in", "int8", &["if.then_branch/k", "if.else_branch/k"]),
        ("hides", "hides_half", &["w", "if.then_branch/w", "v"]),
        ("hides", "hides_int8", &["w", "if.then_branch/w", "v"]),
    ] {
        let report = bench.run(&format!("diff {name}.onnx {other}.onnx --tolerance 0.01 --json"));
        let report: Value = serde_json::from_str(&report.stdout).unwrap();
        let rows = report["tensors"].as_array().unwrap().iter();
        let rows: Vec<_> = rows.map(|row| (row["name"].as_str().unwrap(), row["status"].as_str().unwrap())).collect();
        assert!(rows.iter().map(|(name, _)| *name).eq(names.iter().copied()), "{other}: {rows:?}");
        assert!(rows.iter().all(|(_, status)| ["equal", "within_tolerance"].contains(status)), "{other}: {rows:?}");
    }
    bench.run("dequantize hides_int8.onnx -o plain.safetensors -q").expect(0, "", "");
    bench.run("diff hides_int8.onnx plain.safetensors -q").expect(0, "", "");
}

#[test]
fn a_weight_behind_a_cast_node_is_compared_under_its_old_name() {
    let bench = Bench::new();
    let values = floats(&[1.0, 0.1]);
    let constant = |name: &str| constant(name, &values);
    let choice = choice("if", [constant("k"), constant("k")]);
    let weight = field(5, &tensor("w", 1, &values));
    let graph = [weight.clone(), constant("c"), node("Mul", &["w", "c"], "z"), choice].concat();
    bench.write("in.onnx", &model(&graph));
    bench.run("cast in.onnx --to float16 -o half.onnx -q --min-elements 0").expect(0, "", "");
    let row = |name: &str| {
        format!(
            "  {name:16}  values differ  1 of 2, first at [1]: 0.1, 0.099975586; largest absolute error 2.442e-5 at [1], \
             relative 0.000244156, SQNR 92.29 dB (float32, float16)\n"
        )
    };
    let names = ["w", "c", "if.then_branch/k", "if.else_branch/k"];
    let summary = "4 tensors: 0 equal, 4 differ (largest absolute error 2.442e-5 in 'w'), 0 only in A, 0 only in B\n";
    bench.run("diff in.onnx half.onnx").expect(1, &(names.map(row).concat() + summary), "");
    // Each cast adds a node, and the first name is at the end of them.
    bench.run("cast half.onnx --to float8e5m2 -o again.onnx -q --min-elements 0 --raise-opset").expect(0, "", "");
    for [a, b] in [["in", "again"], ["again", "half"], ["half", "in"]] {
        let report = bench.run(&format!("diff {a}.onnx {b}.onnx --json"));
        let report: Value = serde_json::from_str(&report.stdout).unwrap();
        assert_eq!(report["counts"]["values_differ"], 4, "{a}, {b}: {report:#}");
    }
    let report: Value = serde_json::from_str(&bench.run("diff in.onnx half.onnx --json").stdout).unwrap();
    let names = report["tensors"].as_array().unwrap().iter().map(|tensor| (&tensor["name"], &tensor["in_b"]));
    assert!(names.into_iter().any(|(name, in_b)| name == "w" && in_b == "w_float16"), "{report:#}");
    // A tensor that other nodes use as well has its own name only.
    let other = [weight, cast_node("w", "v", 10), constant("c"), node("Mul", &["w", "v"], "y")].concat();
    bench.write("used.onnx", &model(&other));
    bench.write("plain.onnx", &model(&[field(5, &tensor("v", 1, &values)), constant("c")].concat()));
    bench.run("diff used.onnx plain.onnx").expect(
        1,
        "  w  only in A  float32 [2]\n  v  only in B  float32 [2]\n3 tensors: 1 equal, 0 differ, 1 only in A, 1 only in B\n",
        "",
    );
}
