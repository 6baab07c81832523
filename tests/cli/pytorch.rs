//! Checkpoints of PyTorch: what is read, which tensors are taken, and folders of them.

use crate::common::pickle::{
    call, checkpoint, dict, f32s, floats, global, instance, int, ints, list, old_checkpoint, row_major, storage, text,
    tuple, view,
};
use crate::common::{Bench, Outcome, fixture};
use ::safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;

/// The tensors of a .safetensors file: dtype, shape and bytes by name. `C128`, which the safetensors crate lacks, is read
/// as tcast writes it: pairs of float64.
fn tensors(file: &[u8]) -> BTreeMap<String, (String, Vec<u64>, Vec<u8>)> {
    let header = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let mut entries: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&file[8..header]).unwrap();
    entries.remove("__metadata__");
    let entry = |(name, entry): (String, serde_json::Value)| {
        let [start, end] = [0, 1].map(|at| header + entry["data_offsets"][at].as_u64().unwrap() as usize);
        let shape = entry["shape"].as_array().unwrap().iter().map(|length| length.as_u64().unwrap());
        let dtype = entry["dtype"].as_str().unwrap();
        let is_wide = dtype == "C128";
        let shape = shape.chain(is_wide.then_some(2)).collect();
        (name, (if is_wide { "F64" } else { dtype }.to_owned(), shape, file[start..end].to_vec()))
    };
    entries.into_iter().map(entry).collect()
}

fn names(file: &[u8]) -> Vec<String> {
    tensors(file).into_keys().collect()
}

/// The messages on standard error, without the summary.
#[track_caller]
fn messages(outcome: &Outcome, code: i32) -> Vec<&str> {
    assert_eq!((outcome.code, &*outcome.stdout), (Some(code), ""), "{}", outcome.stderr);
    outcome.stderr.lines().filter(|line| line.starts_with("tcast: ")).collect()
}

/// A dict of a float32 tensor of two elements for each name, with the bytes of their storages.
fn two_each(names: &[&str]) -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
    let keys: Vec<String> = (0..names.len()).map(|key| key.to_string()).collect();
    let entries: Vec<(&str, Vec<u8>)> = names.iter().zip(&keys).map(|(name, key)| (*name, floats(key, &[2]))).collect();
    let bytes = (0..names.len()).map(|at| f32s(&[at as f32, 0.5]));
    (dict(&entries), keys.iter().cloned().zip(bytes).collect())
}

fn of_two_each(names: &[&str]) -> Vec<u8> {
    let (value, storages) = two_each(names);
    let storages: Vec<(&str, &[u8])> = storages.iter().map(|(key, bytes)| (&**key, &**bytes)).collect();
    checkpoint(&value, &storages)
}

#[test]
fn files_of_torch_have_the_tensors_that_torch_finds_in_them() {
    let mut checked = 0;
    for entry in fs::read_dir(fixture("pytorch")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(source) = name.strip_suffix(".expected.safetensors") else { continue };
        let bench = Bench::with(&format!("pytorch/{source}"), "x.pt");
        bench.run("cast x.pt --root . -o out.safetensors -q").expect(0, "", "");
        let file = bench.read("out.safetensors");
        let (found, expected) = (tensors(&file), tensors(&fs::read(&path).unwrap()));
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{source}");
        for (name, (dtype, shape, bytes)) in &expected {
            let found = &found[name];
            assert!((dtype, shape) == (&found.0, &found.1) && *bytes == found.2, "{source}: {name}");
        }
        let (_, header) = SafeTensors::read_metadata(&file).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
        checked += 1;
    }
    assert_eq!(checked, 17);
}

/// The flags of a lazy conjugate and a lazy negative, of which safetensors has nothing.
#[test]
fn conjugates_and_negatives_have_their_values() {
    for (name, stored, flipped) in [("conj", 0x80, [false, true]), ("neg", 0x80, [true, true])] {
        let bench = Bench::with(&format!("pytorch/{name}.zip.pt"), "x.pt");
        bench.run("cast x.pt -o out.safetensors -q").expect(0, "", "");
        let found = tensors(&bench.read("out.safetensors")).remove("x").unwrap().2;
        let file = bench.read("x.pt");
        let mut parts = found.as_chunks::<4>().0.to_vec();
        for (at, part) in parts.iter_mut().enumerate().filter(|(at, _)| flipped[at % 2]) {
            part[3] ^= stored;
            assert!(f32::from_le_bytes(*part).is_finite(), "{at}");
        }
        let stored = parts.concat();
        assert!(file.windows(stored.len()).any(|bytes| bytes == stored), "{name}");
    }
    // 1+2i and -3+0i, of which the conjugate of the negative is -1+2i and 3+0i; and the same with the high byte first.
    let flags = |flags: &[&str]| {
        let flags: Vec<(&str, Vec<u8>)> = flags.iter().map(|flag| (*flag, vec![0x88])).collect();
        let whole = storage("ComplexFloat", "0", 2);
        let ints = |number| crate::common::pickle::ints(&[number]);
        let arguments = [whole, int(0), ints(2), ints(1), vec![0x89], vec![b'N'], dict(&flags)];
        call(&global("torch._utils", "_rebuild_tensor_v2"), &arguments)
    };
    let value = dict(&[("both", flags(&["conj", "neg"])), ("conj", flags(&["conj"])), ("neg", flags(&["neg"]))]);
    let numbers = [1.0_f32, 2.0, -3.0, 0.0];
    let big: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
    let pickle = crate::common::pickle::pickle(&value);
    let members: [(&str, &[u8]); 3] = [("a/data.pkl", &pickle), ("a/byteorder", b"big"), ("a/data/0", &big)];
    for file in [checkpoint(&value, &[("0", &f32s(&numbers))]), crate::common::zip(&members, false)] {
        let bench = Bench::new();
        bench.write("x.pt", &file);
        bench.run("cast x.pt -o out.safetensors -q").expect(0, "", "");
        let found = tensors(&bench.read("out.safetensors"));
        let bytes = |name: &str| found[name].2.clone();
        assert_eq!(bytes("both"), f32s(&[-1.0, 2.0, 3.0, 0.0]));
        assert_eq!(bytes("conj"), f32s(&[1.0, -2.0, -3.0, -0.0]));
        assert_eq!(bytes("neg"), f32s(&[-1.0, -2.0, 3.0, -0.0]));
    }
}

#[test]
fn the_weights_of_a_training_checkpoint_are_taken_and_the_rest_is_named() {
    let bench = Bench::with("pytorch/training.zip.pt", "train.pt");
    let outcome = bench.run("cast train.pt -o out.safetensors");
    assert_eq!(
        messages(&outcome, 0),
        [
            "tcast: note: train.pt: tcast reads the tensors under 'model', and not optimizer (1.93 KiB); --root . reads all"
        ]
    );
    let weights = names(&bench.read("out.safetensors"));
    assert_eq!(weights.len(), 9);
    assert!(weights.contains(&"1.num_batches_tracked".to_owned()));
    // The same tensors, without a note.
    let outcome = bench.run("cast train.pt --root model -o chosen.safetensors");
    assert_eq!(messages(&outcome, 0), [""; 0]);
    assert!(bench.read("chosen.safetensors") == bench.read("out.safetensors"));
    bench.run("cast train.pt --root optimizer.state.0 -o state.safetensors -q").expect(0, "", "");
    assert_eq!(names(&bench.read("state.safetensors")), ["exp_avg", "exp_avg_sq", "step"]);
    bench.run("cast train.pt --root optimizer.state.0.step -o step.safetensors -q").expect(0, "", "");
    assert_eq!(names(&bench.read("step.safetensors")), ["step"]);
    bench.run("cast train.pt --root . -o all.safetensors -q").expect(0, "", "");
    assert_eq!(names(&bench.read("all.safetensors")).len(), 28);
    let error = "tcast: error: train.pt: has no tensors under 'mode'
  these have some: 'model', 'optimizer', or leave --root out
";
    bench.run("cast train.pt --root mode -o none.safetensors").expect(1, "", error);
    let error = error.replace("mode'\n", "optimizer.param_groups'\n");
    bench.run("cast train.pt --root optimizer.param_groups -o none.safetensors").expect(1, "", &error);
}

#[test]
fn a_root_belongs_to_checkpoints_of_pytorch() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    let error = "tcast: error: m.safetensors: is not a checkpoint of PyTorch, and only these have a root
  leave --root out
";
    for line in ["cast m.safetensors --to bf16 --root model", "inspect m.safetensors --root ."] {
        bench.run(line).expect(2, "", error);
    }
}

#[test]
fn one_dict_under_a_usual_key_is_unwrapped_and_two_are_not() {
    let bench = Bench::new();
    let (inner, storages) = two_each(&["a", "b"]);
    let storages: Vec<(&str, &[u8])> = storages.iter().map(|(key, bytes)| (&**key, &**bytes)).collect();
    let write = |entries: &[(&str, Vec<u8>)]| bench.write("x.pt", &checkpoint(&dict(entries), &storages));
    let keys = [
        "state_dict",
        "model",
        "module",
        "model_state_dict",
        "params",
        "params_ema",
        "net",
        "generator",
        "weights",
        "ema",
    ];
    for key in keys {
        write(&[("epoch", int(3)), (key, inner.clone())]);
        let outcome = bench.run("cast x.pt -o out.safetensors --force");
        let note = format!("tcast: note: x.pt: tcast reads the tensors under '{key}'; --root . reads all");
        assert_eq!(messages(&outcome, 0), [&*note]);
        assert_eq!(names(&bench.read("out.safetensors")), ["a", "b"]);
    }
    write(&[("params", inner.clone()), ("params_ema", inner.clone())]);
    let outcome = bench.run("cast x.pt -o out.safetensors --force");
    let note = "tcast: note: x.pt: tcast reads all tensors under params, params_ema; --root 'params' reads only some";
    assert_eq!(messages(&outcome, 0), [note]);
    assert_eq!(names(&bench.read("out.safetensors")), ["params.a", "params.b", "params_ema.a", "params_ema.b"]);
    // A list is no dict of weights, and neither is a tensor; and other keys have their own names.
    write(&[("model", list(&[floats("0", &[2])])), ("net", floats("1", &[2])), ("other", inner)]);
    let outcome = bench.run("cast x.pt -o out.safetensors --force");
    assert_eq!(messages(&outcome, 0), [""; 0]);
    assert_eq!(names(&bench.read("out.safetensors")), ["model.0", "net", "other.a", "other.b"]);
}

#[test]
fn a_cast_without_a_type_changes_only_the_container() {
    let bench = Bench::with("pytorch/state_dict.zip.pt", "m.pt");
    fs::copy(fixture("pytorch/state_dict.legacy.pt"), bench.path("old.bin")).unwrap();
    fs::copy(fixture("model.safetensors"), bench.path("s.safetensors")).unwrap();
    bench.run("cast m.pt -o m.safetensors -q").expect(0, "", "");
    bench.run("cast old.bin -o old.safetensors -q").expect(0, "", "");
    assert!(bench.read("m.safetensors") == bench.read("old.safetensors"));
    bench.run("cast m.pt -o m.npz -q").expect(0, "", "");
    bench.run("diff m.pt m.npz").expect(0, "9 tensors are equal\n", "");
    bench.run("diff old.bin m.safetensors").expect(0, "9 tensors are equal\n", "");
    bench.run("cast m.pt").expect(
        2,
        "",
        "tcast: error: --to <DTYPE> is missing: the type to convert to
  tcast cast m.pt -o m.2.safetensors
  tcast cast --help lists the types; to change only the format, name the output with -o
",
    );
    bench.run("cast s.safetensors -o copy.safetensors").expect(
        2,
        "",
        "tcast: error: s.safetensors: the output would be a copy: it has the format of the input, and no type is given
  add --to DTYPE, or name an output in another format
",
    );
    for extension in ["pt", "pth", "bin", "ckpt"] {
        let error = format!(
            "tcast: error: out.{extension}: tcast writes no format of this extension
  name an output that ends in .npz or .safetensors
"
        );
        bench.run(&format!("cast m.pt -o out.{extension}")).expect(1, "", &error);
        bench.run(&format!("cast m.pt --to bf16 -o out.{extension}")).expect(1, "", &error);
    }
    bench.run("cast m.pt old.bin --to bf16 -q").expect(0, "", "");
    assert!(bench.read("m.bfloat16.safetensors") == bench.read("old.bfloat16.safetensors"));
    assert_eq!(tensors(&bench.read("m.bfloat16.safetensors"))["2.bias"].0, "BF16");
}

/// A model folder as transformers of 2022 wrote it.
fn old_folder(bench: &Bench) {
    fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/pytorch_model-00001-of-00002.bin", &of_two_each(&["a.weight", "a.bias"]));
    let (value, storages) = two_each(&["b.weight"]);
    bench.write("m/pytorch_model-00002-of-00002.bin", &old_checkpoint(&value, &[("0", 2, &storages[0].1)]));
    bench.write("m/config.json", b"{\"torch_dtype\": \"float32\"}");
    bench.write("m/training_args.bin", &checkpoint(&global("transformers.training_args", "TrainingArguments"), &[]));
    bench.write("m/tokenizer.json", b"{}");
}

const INDEX: &str = r#"{"metadata": {"total_size": 24}, "weight_map": {"a.weight": "pytorch_model-00001-of-00002.bin",
    "a.bias": "pytorch_model-00001-of-00002.bin", "b.weight": "pytorch_model-00002-of-00002.bin"}}"#;

#[test]
fn a_folder_of_bin_files_becomes_a_folder_of_safetensors_files() {
    let bench = Bench::new();
    old_folder(&bench);
    bench.write("m/pytorch_model.bin.index.json", INDEX.as_bytes());
    bench.run("cast m --to bf16 -o out -q").expect(0, "", "");
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut files: Vec<String> = fs::read_dir(bench.path("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["config.json", shards[0], shards[1], "model.safetensors.index.json", "tokenizer.json"]);
    let index: serde_json::Value = serde_json::from_slice(&bench.read("out/model.safetensors.index.json")).unwrap();
    assert_eq!(
        index["weight_map"],
        serde_json::json!({"a.bias": shards[0], "a.weight": shards[0], "b.weight": shards[1]})
    );
    assert_eq!(index["metadata"]["total_size"], 12);
    for (shard, expected) in shards.iter().zip([&["a.bias", "a.weight"][..], &["b.weight"]]) {
        let file = bench.read(&format!("out/{shard}"));
        assert_eq!(names(&file), expected);
        let (_, header) = SafeTensors::read_metadata(&file).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
        assert!(tensors(&file).values().all(|tensor| tensor.0 == "BF16"));
    }
    assert_eq!(bench.read("out/config.json"), b"{\"torch_dtype\": \"bfloat16\"}");
    // Only the format, with the same tensors; the index itself is an input too.
    bench.run("cast m/pytorch_model.bin.index.json -o same -q").expect(0, "", "");
    bench.run("diff m same").expect(0, "3 tensors are equal\n", "");
    assert_eq!(bench.read("same/config.json"), b"{\"torch_dtype\": \"float32\"}");
    // A folder that is written in one file.
    bench.run("cast m --max-shard-size 1GB -o one -q").expect(0, "", "");
    bench.run("diff m one").expect(0, "3 tensors are equal\n", "");
}

#[test]
fn a_folder_without_an_index_has_the_shards_of_its_names() {
    let bench = Bench::new();
    old_folder(&bench);
    bench.run("cast m -o out -q").expect(0, "", "");
    bench.run("diff m out").expect(0, "3 tensors are equal\n", "");
    fs::remove_file(bench.path("m/pytorch_model-00002-of-00002.bin")).unwrap();
    fs::rename(bench.path("m/pytorch_model-00001-of-00002.bin"), bench.path("m/pytorch_model.bin")).unwrap();
    bench.run("cast m -o single -q").expect(0, "", "");
    assert_eq!(names(&bench.read("single/model.safetensors")), ["a.bias", "a.weight"]);
}

#[test]
fn safetensors_files_come_before_bin_files_in_a_folder() {
    let bench = Bench::new();
    old_folder(&bench);
    bench.write("m/pytorch_model.bin.index.json", INDEX.as_bytes());
    fs::copy(fixture("model.safetensors"), bench.path("m/model.safetensors")).unwrap();
    let outcome = bench.run("cast m --to bf16 -o out");
    let warning = "tcast: warning: left out, because they hold other weights or are not regular files: \
                   pytorch_model-00001-of-00002.bin, pytorch_model-00002-of-00002.bin, \
                   pytorch_model.bin.index.json, training_args.bin";
    assert_eq!(messages(&outcome, 0), [warning]);
    assert_eq!(names(&bench.read("out/model.safetensors")), names(&bench.read("m/model.safetensors")));
}

#[test]
fn a_listing_has_the_root_and_the_names_of_code() {
    let bench = Bench::new();
    let namespace = instance("argparse", "Namespace");
    let (model, storages) = two_each(&["a", "b"]);
    let state = list(&[floats("0", &[2])]);
    let value = dict(&[("args", namespace), ("model", model), ("optimizer", state)]);
    let storages: Vec<(&str, &[u8])> = storages.iter().map(|(key, bytes)| (&**key, &**bytes)).collect();
    bench.write("x.pt", &checkpoint(&value, &storages));
    let listing = "x.pt: pt, 2 tensors, 847 B
  a  float32  [2]  8 B  float32
  b  float32  [2]  8 B  float32
totals
  float32  2 tensors  4 elements  16 B
pickle: zip, protocol 2
root
  model      2 tensors  16 B
  optimizer  1 tensor    8 B  not read
names of code
  argparse.Namespace
  collections.OrderedDict
  torch.FloatStorage
  torch._utils._rebuild_tensor_v2
";
    bench.run("inspect x.pt").expect(0, listing, "");
    bench.run("inspect x.pt --fail-on code").expect(0, listing, "");
    let outcome = bench.run("inspect x.pt --json");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    let json: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let pickle = serde_json::json!({"form": "zip", "protocol": 2, "root": "model", "roots": [
        {"key": "model", "tensors": 2, "bytes": 16}, {"key": "optimizer", "tensors": 1, "bytes": 8}]});
    assert_eq!(json["files"][0]["pickle"], pickle);
    let globals = serde_json::json!({"argparse.Namespace": 1, "collections.OrderedDict": 3, "torch.FloatStorage": 3,
        "torch._utils._rebuild_tensor_v2": 3});
    assert_eq!((&json["globals"], &json["suspicious"]), (&globals, &serde_json::json!([])));
    // Other formats have no such entries.
    fs::copy(fixture("model.safetensors"), bench.path("s.safetensors")).unwrap();
    let outcome = bench.run("inspect s.safetensors --json --fail-on code");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    assert!(!outcome.stdout.contains("globals") && !outcome.stdout.contains("pickle"));
}

#[test]
fn the_other_commands_read_them_too() {
    let bench = Bench::new();
    let value = dict(&[("w", floats("0", &[2])), ("n", view(storage("Long", "1", 2), 0, &[2], &[1]))]);
    let longs = [1_i64, -2].map(i64::to_le_bytes).concat();
    bench.write("x.pt", &checkpoint(&value, &[("0", &f32s(&[1.0, -0.5])), ("1", &longs)]));
    bench.run("bitcast x.pt --bits --tensor w").expect(
        0,
        "0  0 01111111 00000000000000000000000  1  normal\n1  1 01111110 00000000000000000000000  -0.5 = -1*2^-1  normal\n",
        "",
    );
    bench.run("bitcast x.pt --hex --tensor n").expect(0, "0  0000000000000001 fffffffffffffffe\n", "");
    bench.run("bitcast x.pt --to uint32 --include w -o bits.safetensors -q").expect(0, "", "");
    assert_eq!(tensors(&bench.read("bits.safetensors"))["w"].0, "U32");
    bench.run("dequantize x.pt").expect(
        1,
        "",
        "tcast: error: x.pt: holds no quantized weights
  tcast cast changes the type of plain weights, or tcast quantize quantizes them
",
    );
    bench.write("one.pt", &checkpoint(&dict(&[("w", floats("0", &[2]))]), &[("0", &f32s(&[1.0, -0.5]))]));
    bench.write(
        "half.pt",
        &checkpoint(&dict(&[("w", view(storage("Half", "0", 2), 0, &[2], &[1]))]), &[("0", &[0; 4])]),
    );
    bench.run("promote one.pt half.pt -o common -q").expect(0, "", "");
    assert_eq!(tensors(&bench.read("common/half.safetensors"))["w"].0, "F32");
    let outcome = bench.run("diff x.pt half.pt --include w");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(1), ""), "{}", outcome.stdout);
    bench.run("inspect one.pt --tensor w").expect(
        0,
        "one.pt: pt, 1 of 1 tensor, 392 B
  w  float32  [2]  8 B  float32
",
        "",
    );
}

#[test]
fn tied_tensors_are_written_under_each_of_their_names() {
    let bench = Bench::new();
    // The memo refers to the same tensor, and another view shares its storage.
    let tied = [floats("0", &[2, 2]), b"q\x07".to_vec()].concat();
    let value = dict(&[
        ("wte", tied),
        ("lm_head", b"h\x07".to_vec()),
        ("t", view(storage("Float", "0", 4), 0, &[2, 2], &[1, 2])),
    ]);
    bench.write("x.pt", &checkpoint(&value, &[("0", &f32s(&[1.0, 2.0, 3.0, 4.0]))]));
    bench.run("cast x.pt -o out.safetensors -q").expect(0, "", "");
    let found = tensors(&bench.read("out.safetensors"));
    assert_eq!(found["wte"], found["lm_head"]);
    assert_eq!(found["wte"].2, f32s(&[1.0, 2.0, 3.0, 4.0]));
    assert_eq!(found["t"].2, f32s(&[1.0, 3.0, 2.0, 4.0]));
}

#[test]
fn strided_weights_are_quantized_and_cast_to_the_bytes_of_their_copies() {
    /// A key tensor of flux, which makes the file a diffusion model.
    const WEIGHT: &str = "double_blocks.0.img_attn.proj.weight";
    let [rows, columns] = [128_i64, 256];
    let number = |row: i64, column: i64| ((row * 31 + column * 17) % 97) as f32 / 50.0 - 0.9;
    let by_rows: Vec<f32> = (0..rows * columns).map(|at| number(at / columns, at % columns)).collect();
    let by_columns: Vec<f32> = (0..rows * columns).map(|at| number(at % rows, at / rows)).collect();
    let whole = storage("Float", "0", rows * columns);
    let bench = Bench::new();
    let copy = dict(&[(WEIGHT, view(whole.clone(), 0, &[rows, columns], &row_major(&[rows, columns])))]);
    let strided = dict(&[(WEIGHT, view(whole, 0, &[rows, columns], &[1, rows]))]);
    bench.write("copy.pt", &checkpoint(&copy, &[("0", &f32s(&by_rows))]));
    bench.write("strided.pt", &checkpoint(&strided, &[("0", &f32s(&by_columns))]));
    bench.run("diff copy.pt strided.pt").expect(0, "1 tensor is equal\n", "");
    for scheme in ["fp8", "fp8-block", "int4", "mxfp8", "nvfp4", "int8"] {
        for source in ["copy", "strided"] {
            bench
                .run(&format!("quantize {source}.pt --scheme {scheme} -o {source}.{scheme}.safetensors -q"))
                .expect(0, "", "");
        }
        let name = |source: &str| format!("{source}.{scheme}.safetensors");
        assert!(bench.read(&name("copy")) == bench.read(&name("strided")), "{scheme}");
    }
    for options in ["--to bf16", "--to f16 -j1", "--to f8e4m3 --all"] {
        for source in ["copy", "strided"] {
            bench.run(&format!("cast {source}.pt {options} -o {source}.safetensors -q -f")).expect(0, "", "");
        }
        assert!(bench.read("copy.safetensors") == bench.read("strided.safetensors"), "{options}");
    }
    let to_gguf =
        |source: &str| format!("quantize {source} --layout gguf --scheme q8_0 --architecture flux -o out.gguf -q");
    bench.run(&to_gguf("copy.pt")).expect(0, "", "");
    let error = "tcast: error: strided.pt: tensor 'double_blocks.0.img_attn.proj.weight': GGUF files are made from .safetensors and .gguf files
  cast the input to .safetensors first
";
    bench.run(&(to_gguf("strided.pt") + " -f")).expect(1, "", error);
}

#[test]
fn tensors_that_are_not_plain_are_refused_by_name_or_left_out() {
    let inner = || storage("Float", "0", 2);
    let ints = |number| crate::common::pickle::ints(&[number]);
    let function = |name: &str| global("torch._utils", name);
    let plain = [inner(), int(0), ints(2), ints(1), vec![0x89], vec![b'N']];
    let subclass = [function("_rebuild_tensor_v2"), global("torchao.dtypes", "NF4Tensor"), tuple(&plain), dict(&[])];
    let meta = {
        let class = global("torch", "FloatStorage");
        let meta = [tuple(&[text("storage"), class, text("0"), text("meta"), int(2)]), b"Q".to_vec()].concat();
        view(meta, 0, &[2], &[1])
    };
    let typed = |dtype: &str| {
        let storage = [
            tuple(&[text("storage"), global("torch.storage", "UntypedStorage"), text("1"), text("cpu"), int(8)]),
            b"Q".to_vec(),
        ]
        .concat();
        let arguments = [storage, int(0), ints(2), ints(1), vec![0x89], vec![b'N'], global("torch", dtype)];
        call(&function("_rebuild_tensor_v3"), &arguments)
    };
    let negative = {
        let arguments = [
            inner(),
            int(0),
            ints(2),
            ints(1),
            vec![0x89],
            vec![b'N'],
            global("torch", "int32"),
            dict(&[("neg", vec![0x88])]),
        ];
        call(&function("_rebuild_tensor_v3"), &arguments)
    };
    for (value, what) in [
        (call(&function("_rebuild_sparse_tensor"), &[]), "is a sparse tensor, which tcast does not read"),
        (call(&function("_rebuild_nested_tensor"), &[]), "is a nested tensor, which tcast does not read"),
        (call(&function("_rebuild_qtensor"), &plain), "is a quantized tensor of torch, which tcast does not read"),
        (
            call(&function("_rebuild_device_tensor_from_numpy"), &[]),
            "is a tensor of torch._utils._rebuild_device_tensor_from_numpy, which tcast does not read",
        ),
        (
            call(&function("_rebuild_meta_tensor_no_storage"), &[]),
            "is on the device 'meta', so the file has no elements of it, which tcast does not read",
        ),
        (
            call(&global("torch._tensor", "_rebuild_from_type_v2"), &subclass),
            "is a tensor of torchao.dtypes.NF4Tensor, which tcast does not read",
        ),
        (meta, "is on the device 'meta', so the file has no elements of it"),
        (view(storage("QInt8", "1", 8), 0, &[2], &[1]), "has the unsupported dtype torch.qint8"),
        (view(storage("New", "1", 8), 0, &[2], &[1]), "its storage has the unknown class torch.NewStorage"),
        (typed("complex32"), "has the unsupported dtype torch.complex32: other formats have no pairs of float16"),
        (typed("float128"), "has the unsupported dtype torch.float128"),
        (negative, "is the negative of a tensor of int32, which tcast does not read"),
        (
            view(inner(), 0, &[17, 2], &[0, 1]),
            "repeats the 8 bytes of its storage, to 136 bytes; at most 16 times as many are read",
        ),
    ] {
        let bench = Bench::new();
        let value = dict(&[("plain", floats("0", &[2])), ("odd", value)]);
        bench.write("x.pt", &checkpoint(&value, &[("0", &f32s(&[1.0, 2.0])), ("1", &[0; 8])]));
        bench.run("cast x.pt -o out.safetensors").expect(1, "", &format!("tcast: error: x.pt: tensor 'odd': {what}\n"));
        let outcome = bench.run("cast x.pt -o out.safetensors --exclude odd");
        let warnings = messages(&outcome, 0);
        assert_eq!(warnings[0], "tcast: warning: tensor 'odd' cannot be read and is left out", "{what}");
        assert_eq!(
            warnings.len(),
            if ["NF4Tensor", "float128", "NewStorage"].iter().any(|name| what.contains(name)) { 2 } else { 1 },
            "{what}"
        );
        assert_eq!(names(&bench.read("out.safetensors")), ["plain"]);
        let outcome = bench.run("inspect x.pt");
        assert_eq!((outcome.code, outcome.stderr.is_empty()), (Some(0), warnings.len() == 1), "{what}");
        assert!(outcome.stdout.contains("  plain  float32  [2]  8 B  float32\n"), "{}", outcome.stdout);
        assert!(outcome.stdout.contains(what), "{}", outcome.stdout);
    }
}

#[test]
fn a_tensor_alone_and_tensors_in_objects_have_names() {
    let bench = Bench::with("pytorch/single_tensor.zip.pt", "x.pt");
    bench.run("cast x.pt -o x.safetensors -q").expect(0, "", "");
    assert_eq!(names(&bench.read("x.safetensors")), ["tensor"]);
    // A module, whose state is a dict; an OrderedDict of pairs; a Parameter; keys that are not texts.
    let tensor = || floats("0", &[2]);
    let state = dict(&[("_parameters", dict(&[("weight", tensor())]))]);
    let module = [call(&global("torch.nn.modules.linear", "Linear"), &[]), state, b"b".to_vec()].concat();
    let pairs = call(&global("collections", "OrderedDict"), &[list(&[tuple(&[text("p"), tensor()])])]);
    let parameter = call(&global("torch._utils", "_rebuild_parameter"), &[tensor(), vec![0x88], vec![b'N']]);
    let numbered =
        [b"}(".to_vec(), int(-1), tensor(), vec![0x88], tensor(), vec![b'N'], tensor(), b"u".to_vec()].concat();
    let value =
        dict(&[("m", module), ("o", pairs), ("q", parameter), ("n", numbered), ("s", tuple(&[int(1), tensor()]))]);
    bench.write("y.pt", &checkpoint(&value, &[("0", &f32s(&[1.0, 2.0]))]));
    bench.run("cast y.pt -o y.safetensors -q").expect(0, "", "");
    let expected = ["m._parameters.weight", "n.-1", "n.None", "n.True", "o.p", "q", "s.1"];
    assert_eq!(names(&bench.read("y.safetensors")), expected);
}

/// Names of parameters, buffers and inner modules are the names of `state_dict()`.
#[test]
fn a_whole_module_has_the_names_of_its_state_dict() {
    let set = call(&global("__builtin__", "set"), &[list(&[text("tmp")])]);
    let module = |parameters: Vec<u8>, buffers: Vec<u8>, modules: Vec<u8>| {
        let state = dict(&[
            ("training", vec![0x88]),
            ("_parameters", parameters),
            ("_buffers", buffers),
            ("_non_persistent_buffers_set", set.clone()),
            ("_modules", modules),
            ("other", floats("3", &[2])),
        ]);
        [global("torch.nn.modules.linear", "Linear"), b")\x81".to_vec(), state, b"b".to_vec()].concat()
    };
    let inner = module(dict(&[("weight", floats("0", &[2])), ("bias", vec![b'N'])]), dict(&[]), dict(&[]));
    let outer =
        module(dict(&[]), dict(&[("mean", floats("1", &[2])), ("tmp", floats("2", &[2]))]), dict(&[("0", inner)]));
    let bytes = f32s(&[1.0, 2.0]);
    let storages = ["0", "1", "2", "3"].map(|key| (key, &bytes[..]));
    for (value, root) in [
        (outer.clone(), ""),
        (dict(&[("model", outer)]), "tcast: note: x.pt: tcast reads the tensors under 'model'; --root . reads all"),
    ] {
        let bench = Bench::new();
        bench.write("x.pt", &checkpoint(&value, &storages));
        let outcome = bench.run("cast x.pt -o out.safetensors");
        assert_eq!(messages(&outcome, 0).first().copied().unwrap_or_default(), root);
        assert_eq!(names(&bench.read("out.safetensors")), ["0.weight", "mean"]);
    }
}

#[test]
fn arrays_of_numpy_are_named() {
    let kind = call(&global("numpy", "dtype"), &[text("f4"), vec![0x89], vec![0x88]]);
    let none = || vec![b'N'];
    let kind_state = tuple(&[int(3), text("<"), none(), none(), none(), int(-1), int(-1), int(0)]);
    let kind = [kind, kind_state, b"b".to_vec()].concat();
    let arguments = [global("numpy", "ndarray"), ints(&[0]), b"C\x01b".to_vec()];
    let array = call(&global("numpy.core.multiarray", "_reconstruct"), &arguments);
    let state = tuple(&[int(1), ints(&[1]), kind, vec![0x89], b"C\x04\0\0\0\0".to_vec()]);
    let array = [array, state, b"b".to_vec()].concat();
    let bench = Bench::new();
    bench.write("x.pt", &checkpoint(&dict(&[("w", floats("0", &[2])), ("a", array)]), &[("0", &f32s(&[1.0, 2.0]))]));
    let outcome = bench.run("cast x.pt -o out.safetensors");
    assert_eq!(messages(&outcome, 0), ["tcast: warning: x.pt: 1 array of numpy left out: a"]);
    let listing = bench.run("inspect x.pt --fail-on code");
    assert_eq!((listing.code, &*listing.stderr), (Some(0), ""));
    assert!(listing.stdout.contains("array of numpy, not read: a\n"), "{}", listing.stdout);
}
