//! Which files of a folder are the model: names of shards without an index, indexes of other shards, modules with
//! weights of their own, and files that stay when a folder is replaced.

use crate::common::{Bench, shard, tree};
use std::fs;

const INDEX: &str = "model.safetensors.index.json";

/// A folder `in` with a shard of one tensor under each of these names. All tensors have other names.
fn folder(names: &[&str]) -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    for (name, tensor) in names.iter().zip(["a", "b", "c", "d"]) {
        bench.write(&format!("in/{name}"), &shard(&[(tensor, 1.5, 2)]));
    }
    bench
}

/// Moves files of the folder `in` out of it.
fn move_out(bench: &Bench, names: &[&str]) {
    for name in names {
        fs::rename(bench.path(&format!("in/{name}")), bench.path(name)).unwrap();
    }
}

#[test]
fn shards_without_an_index_are_complete_by_the_numbers_in_their_names() {
    for names in [
        &["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"][..],
        &["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"],
        &["model-00002-of-00002.safetensors"],
        &["x_1_of_2.safetensors"],
    ] {
        let bench = folder(names);
        for line in
            ["cast in --to f16 -o out", "quantize in --scheme fp8 -o out", "cast in --to f16 -o one.safetensors"]
        {
            bench.run(line).says(1, "", "safetensors");
        }
        let outcome = bench.run("inspect in");
        outcome.check_message("safetensors");
        assert!(outcome.stdout.contains("in: "), "{}", outcome.stdout);
        // A shard that is given by its name is converted alone.
        bench.run(&format!("cast in/{} --to f16 -o shard.safetensors -q", names[0])).expect(0, "", "");
        assert_eq!(bench.files(), ["in", "shard.safetensors"]);
    }
    for names in [
        &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        &["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"],
        &["part-one.safetensors", "part-two.safetensors"],
    ] {
        folder(names).run("cast in --to f16 -o out -q").expect(0, "", "");
    }
}

#[test]
fn shards_of_pytorch_without_an_index_are_complete_too() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    let file = crate::common::fixture("pytorch/state_dict.zip.pt");
    fs::copy(file, bench.path("in/pytorch_model-00002-of-00002.bin")).unwrap();
    bench.run("cast in --to f16 -o out").says(1, "", "pytorch_model-00001-of-00002.bin");
}

#[test]
fn two_models_in_a_folder_without_an_index_are_named_and_one_can_be_moved() {
    for (model, other) in [
        ("model.safetensors", "consolidated.safetensors"),
        ("model.safetensors", "model.fp16.safetensors"),
        ("model.safetensors", "model.bf16.safetensors"),
        ("model.safetensors", "extra.safetensors"),
        ("model.safetensors", "adapter_model.safetensors"),
        ("model.safetensors", "model-00001-of-00001.safetensors"),
        ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.fp16.safetensors"),
        ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.non_ema.safetensors"),
        ("model-00001-of-00001.safetensors", "consolidated.safetensors"),
        ("model-00001-of-00001.safetensors", "model.fp16-00001-of-00001.safetensors"),
        ("consolidated.safetensors", "model-00002-of-00002.safetensors"),
    ] {
        // Variants have the same tensors, other models have other names.
        for tensors in [["a", "a"], ["a", "b"]] {
            let bench = folder(&[]);
            for (name, tensor) in [model, other].iter().zip(tensors) {
                bench.write(&format!("in/{name}"), &shard(&[(tensor, 1.5, 2)]));
            }
            let message = format!(
                "tcast: error: in: {model} is a model without {other}, and no index names its shards\n  \
                 move the other model out of the folder: mv -n 'in/{other}' 'in/..'"
            );
            let file =
                if model.contains("-of-") { String::new() } else { format!(", or give the file in it: 'in/{model}'") };
            bench.run("cast in --to f16 -o out").expect(1, "", &format!("{message}{file}\n"));
            if !file.is_empty() {
                bench.run(&format!("cast in/{model} --to f16 -o out.safetensors -f -q")).expect(0, "", "");
            }
            move_out(&bench, &[other]);
            bench.run("cast in --to f16 -o out -q").expect(0, "", "");
            assert_eq!(tree(&bench.path("out")).into_keys().collect::<Vec<_>>(), [model]);
        }
    }
    let bench = folder(&["model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
    bench.run("cast in --to f16 -o out").says(1, "", "in/model-00001-of-00002.safetensors");
    // Folders of a pipeline have variants of the same names.
    let bench = folder(&["model.safetensors", "model.fp16.safetensors"]);
    for taken in ["", "in-", "in-2-"] {
        bench.write(&format!("{taken}model.fp16.safetensors"), b"mine");
    }
    bench.run("cast in --to f16 -o out").says(1, "", "in/model.fp16.safetensors");
    // A link of a cache would lead nowhere in another folder.
    #[cfg(unix)]
    {
        let bench = folder(&["model.safetensors"]);
        bench.write("blob", &shard(&[("a", 1.5, 2)]));
        std::os::unix::fs::symlink("../blob", bench.path("in/model.fp16.safetensors")).unwrap();
        bench.run("cast in --to f16 -o out").says(1, "", "in/model.fp16.safetensors");
    }
    // Without another model, the output of an earlier run is in the way.
    let bench = folder(&["model.safetensors", "model.float16.safetensors"]);
    bench.run("cast in --to f16 -o out").says(1, "", "in/model.float16.safetensors");
}

#[test]
fn an_index_of_other_shards_is_moved_if_the_shards_are_complete_without_it() {
    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let what = format!(
        "tcast: error: in/{INDEX}: names the shard 'model-00001-of-00002.safetensors', which is missing\n  download the \
         whole folder"
    );
    for names in [
        &["model.safetensors"][..],
        &["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"],
        &["part-one.safetensors", "part-two.safetensors"],
    ] {
        let bench = folder(names);
        bench.write(&format!("in/{INDEX}"), index.as_bytes());
        for input in ["in", &format!("in/{INDEX}")] {
            bench.run(&format!("cast {input} --to f16 -o out")).says(1, "", "in/");
        }
        move_out(&bench, &[INDEX]);
        bench.run("cast in --to f16 -o out -q").expect(0, "", "");
    }
    // Without the index, the folder would be refused too.
    for names in [
        &["model-00001-of-00003.safetensors"][..],
        &["model.safetensors", "consolidated.safetensors"],
        &["model-00002-of-00002.safetensors"],
        &["pytorch_model-00002-of-00002.bin"],
    ] {
        let bench = folder(names);
        bench.write(&format!("in/{INDEX}"), index.as_bytes());
        bench.run("cast in --to f16 -o out").expect(1, "", &format!("{what}\n"));
    }
    // The same for an index that leaves out a shard of its set.
    let bench = folder(&["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]);
    bench.write(&format!("in/{INDEX}"), br#"{"weight_map":{"a":"model-00001-of-00003.safetensors"}}"#);
    bench.run("cast in --to f16 -o out").says(1, "", "model-00002-of-00003.safetensors");
}

/// A folder `in` as sentence-transformers saves it: two modules with a tensor of the same name, a router with weights
/// in the format of PyTorch, and a module that engines read from another folder.
fn sentence_transformer() -> Bench {
    let bench = folder(&["model.safetensors"]);
    let modules = r#"[{"idx":0,"path":""},{"idx":1,"path":"1_Pooling"},{"idx":2,"path":"2_Dense"},
                      {"idx":3,"path":"3_Router"},{"idx":4,"path":"4_Dense"}]"#;
    bench.write("in/modules.json", modules.as_bytes());
    for inner in ["1_Pooling", "2_Dense", "3_Router", "3_Router/query_0_Dense", "4_Dense", "onnx"] {
        fs::create_dir(bench.path(&format!("in/{inner}"))).unwrap();
        bench.write(&format!("in/{inner}/config.json"), br#"{"dtype": "float32"}"#);
    }
    bench.write("in/3_Router/router_config.json", br#"{"types":{"query_0_Dense":"x"}}"#);
    for (path, value) in [
        ("2_Dense/model.safetensors", 1.5),
        ("3_Router/query_0_Dense/pytorch_model.bin", 1.5),
        ("4_Dense/model.safetensors", 2.5),
        ("onnx/model.safetensors", 1.5),
    ] {
        bench.write(&format!("in/{path}"), &shard(&[("linear.weight", value, 2)]));
    }
    bench
}

const LEFT_OUT: &str = "tcast: warning: left out, because they hold other weights or are not regular files: \
                        onnx/model.safetensors\n";

#[test]
fn modules_of_sentence_transformers_are_cast_with_the_model() {
    let bench = sentence_transformer();
    let outcome = bench.run("cast in --to f16 -o out --json");
    outcome.check_message("2_Dense");
    for file in ["2_Dense/model.safetensors", "4_Dense/model.safetensors"] {
        assert!(outcome.stdout.contains(&format!("\"{file}\"")), "{}", outcome.stdout);
        bench.run(&format!("cast in/{file} --to f16 -o alone.safetensors -f -q")).expect(0, "", "");
        assert!(bench.read(&format!("out/{file}")) == bench.read("alone.safetensors"), "{file}");
    }
    let out = tree(&bench.path("out"));
    let weights = "3_Router/query_0_Dense/pytorch_model.bin";
    assert_eq!(out[weights], bench.read(&format!("in/{weights}")));
    assert!(!out.contains_key("onnx/model.safetensors") && out.contains_key("onnx/config.json"));
    assert!(!out.contains_key(INDEX), "a module is no shard of the model");
    assert_eq!(out["2_Dense/config.json"], br#"{"dtype": "float16"}"#);
    assert_eq!(out["1_Pooling/config.json"], br#"{"dtype": "float32"}"#);
    // The same work is done, and is found complete; in parts it makes the same folder.
    let outcome = bench.run("cast in --to f16 -o out --resume");
    assert!(outcome.code == Some(0) && outcome.stderr.contains("complete"), "{outcome:?}");
    for part in 1..=3 {
        bench.run(&format!("cast in --to f16 -o parts -q --part {part}/3")).expect(0, "", "");
    }
    bench.run("cast --finish parts -q").expect(0, "", "");
    assert!(tree(&bench.path("parts")) == out);
    bench.run("cast in --to bf16 -o out -f -q").expect(0, "", "");
    assert_eq!(tree(&bench.path("out")).keys().collect::<Vec<_>>(), out.keys().collect::<Vec<_>>());
    // Patterns select tensors of modules too.
    bench.run("cast in --to f16 --exclude linear.* -o kept -q").expect(0, "", "");
    bench.run("diff kept/2_Dense/model.safetensors in/2_Dense/model.safetensors -q").expect(0, "", "");
    assert_eq!(bench.read("kept/2_Dense/config.json"), bench.read("in/2_Dense/config.json"));
    // Whatever is lost there counts.
    bench.write("in/4_Dense/model.safetensors", &shard(&[("linear.weight", 1e30, 2)]));
    bench.run("cast in --to f16 -o lossy --fail-on infinite").says(3, "", "infinite");
    assert!(!bench.path("lossy").exists());
}

#[test]
fn modules_of_sentence_transformers_are_copied_by_other_commands() {
    let bench = sentence_transformer();
    let notes = "tcast: note: copied as they are, as modules of their own: 2_Dense/model.safetensors, \
                 3_Router/query_0_Dense/pytorch_model.bin, 4_Dense/model.safetensors\n";
    let outcome = bench.run("bitcast in --to i32 -o out");
    let out = tree(&bench.path("out"));
    assert!(outcome.code == Some(0) && outcome.stderr.starts_with(&format!("{LEFT_OUT}{notes}")), "{outcome:?}");
    let file = "2_Dense/model.safetensors";
    assert_eq!(out[file], bench.read(&format!("in/{file}")));
    bench.add_checkpoint("llama-tiny-bf16", "m");
    fs::create_dir(bench.path("m/2_Dense")).unwrap();
    bench.write("m/modules.json", br#"[{"path":"2_Dense"}]"#);
    bench.write(&format!("m/{file}"), &out[file]);
    for line in ["quantize m --scheme fp8 -o q", "dequantize q -o plain"] {
        bench.run(line).says(0, "", "modules");
    }
    assert_eq!(bench.read(&format!("plain/{file}")), out[file]);
}

#[test]
fn a_module_of_several_files_is_copied_with_its_index() {
    let bench = sentence_transformer();
    bench.write("in/2_Dense/other.safetensors", &shard(&[("b", 1.5, 2)]));
    let index = br#"{"weight_map":{"linear.weight":"model.safetensors"}}"#;
    bench.write(&format!("in/4_Dense/{INDEX}"), index);
    let outcome = bench.run("cast in --to f16 -o out");
    outcome.says(0, "", "2_Dense");
    assert!(!outcome.stderr.contains("also cast"), "{outcome:?}");
    assert_eq!(bench.read(&format!("out/4_Dense/{INDEX}")), index);
}

#[test]
fn only_files_in_the_folder_are_modules() {
    let bench = sentence_transformer();
    // Paths that lead out of the folder name no modules, and neither does a file that is not JSON.
    for modules in [r#"[{"path":"../in/2_Dense"},{"path":"/2_Dense"},{"path":7},{}]"#, "no JSON", "{}"] {
        bench.write("in/modules.json", modules.as_bytes());
        bench.run("cast in --to f16 -o other -f -q").expect(0, "", "");
        assert!(!bench.path("other/2_Dense/model.safetensors").exists(), "{modules}");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        bench.write("in/modules.json", br#"[{"path":"2_Dense"},{"path":"5_Dense"}]"#);
        fs::create_dir(bench.path("away")).unwrap();
        bench.write("away/model.safetensors", &shard(&[("linear.weight", 1.5, 2)]));
        // A link to a folder is not followed.
        symlink(bench.path("away"), bench.path("in/5_Dense")).unwrap();
        bench.run("cast in --to f16 -o other -f -q").expect(0, "", "");
        assert!(bench.path("other/2_Dense/model.safetensors").exists() && !bench.path("other/5_Dense").exists());
        fs::remove_file(bench.path("in/2_Dense/model.safetensors")).unwrap();
        symlink(bench.path("away/model.safetensors"), bench.path("in/2_Dense/model.safetensors")).unwrap();
        let outcome = bench.run("cast in --to f16 -o linked");
        outcome.says(1, "", "2_Dense");
        assert!(outcome.stdout.is_empty() && !bench.path("linked").exists());
    }
}

#[test]
fn a_file_beside_the_index_of_a_variant_is_another_model() {
    let bench = folder(&["model.safetensors", "model.fp16-00001-of-00001.safetensors"]);
    let index = "model.safetensors.index.fp16.json";
    let map = br#"{"weight_map":{"b":"model.fp16-00001-of-00001.safetensors"}}"#;
    bench.write(&format!("in/{index}"), map);
    bench.run("cast in --to f16 -o out").says(1, "", "in/model.safetensors");
    bench.run("cast in/model.safetensors --to f16 -o one.safetensors -q").expect(0, "", "");
    bench.run(&format!("cast in/{index} --to f16 -o out -q")).expect(0, "", "");
    // An index of the file's own name is used, and so is that of a variant alone.
    fs::remove_file(bench.path("in/model.safetensors")).unwrap();
    bench.run("cast in --to f16 -o out -f -q").expect(0, "", "");
    assert!(tree(&bench.path("out")).contains_key(index));
}

#[test]
fn files_that_stay_in_a_replaced_folder_are_named() {
    let bench = folder(&["model.safetensors"]);
    bench.write("in/config.json", b"{}");
    bench.run("cast in --to f16 -o out -q").expect(0, "", "");
    for name in ["generation_config.json", "pytorch_model.bin"] {
        bench.write(&format!("out/{name}"), b"{}");
    }
    fs::create_dir(bench.path("out/extra")).unwrap();
    fs::create_dir(bench.path("out/.cache")).unwrap();
    bench.write("out/extra/merges.txt", b"");
    bench.write("out/.cache/lock", b"");
    for line in ["cast in --to bf16 -o out -f -n", "cast in --to bf16 -o out -f"] {
        bench.run(line).check_message("generation_config.json");
    }
    assert_eq!(bench.read("out/generation_config.json"), b"{}");
    // Nothing stays in a folder that holds only a checkpoint.
    bench.run("cast in --to f16 -o new -q").expect(0, "", "");
    let outcome = bench.run("cast in --to bf16 -o new -f");
    assert!(outcome.code == Some(0) && !outcome.stderr.contains("keeps files"), "{outcome:?}");
}

#[test]
fn shards_of_pytorch_go_with_the_index_that_names_them() {
    let bench = folder(&["model.safetensors"]);
    fs::create_dir(bench.path("out")).unwrap();
    for name in ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin"] {
        bench.write(&format!("out/{name}"), b"old");
    }
    let index = r#"{"weight_map":{"a":"pytorch_model-00001-of-00002.bin","b":"pytorch_model-00002-of-00002.bin",
                    "c":"../pytorch_model.bin","d":"notes.txt"}}"#;
    bench.write("out/pytorch_model.bin.index.json", index.as_bytes());
    bench.write("out/notes.txt", b"mine");
    bench.write("pytorch_model.bin", b"mine");
    bench.run("cast in --to f16 -o out -f").says(0, "", "pytorch_model.bin");
    let names: Vec<String> = tree(&bench.path("out")).into_keys().collect();
    assert_eq!(names, ["model.safetensors", "notes.txt", "pytorch_model.bin"]);
    assert_eq!(bench.read("pytorch_model.bin"), b"mine");
}
