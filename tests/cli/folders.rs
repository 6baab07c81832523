//! Whole checkpoints: folders of shards with an index and side files, as their users convert them.

use super::dequantize::{bytes_of, shard as quantized_shard};
use crate::common::{Bench, fixture, long_work, npy_f32, safetensors, same, shard, tree};
use safetensors::SafeTensors;
use serde_json::Value;
use std::fs;
#[cfg(unix)]
use std::path::Path;

const LLAMA: &str = "llama-tiny-bf16";

fn json(file: &[u8]) -> Value {
    serde_json::from_slice(file).unwrap()
}

#[test]
fn remedies_for_parts_can_be_given_with_them() {
    let bench = Bench::with_checkpoint(LLAMA, "ck");
    bench.write("rep.json", b"{}");
    bench.run("cast ck --to f16 -o out --part 2/2 --report rep.json").says(4, "", "--report");
    bench.write("x.safetensors", &shard(&[("a", 1.0, 4)]));
    for (option, what) in [("--part 1/2", "written in parts"), ("--resume", "continued")] {
        let flag = option.split(' ').next().unwrap();
        let message = format!(
            "tcast: error: pp/x.safetensors: only folders of shards {} {what}, and the output is one file\n  \
             add --max-shard-size, which divides the output into shards, or leave {flag} out\n",
            if what == "continued" { "can be" } else { "are" },
        );
        bench.run(&format!("cast x.safetensors --to f16 {option} -o pp/")).expect(2, "", &message);
    }
    bench.run("cast x.safetensors --to f16 --part 1/1 -o pp/ --max-shard-size 1MB -q").expect(0, "", "");
}

#[test]
fn a_folder_becomes_a_folder_of_the_same_shards_and_side_files() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    for (name, content) in [("llama/tokenizer.json", &b"{}"[..]), ("llama/chat_template.jinja", b"{{ x }}")] {
        bench.write(name, content);
    }
    fs::create_dir(bench.path("llama/additional")).unwrap();
    fs::create_dir(bench.path("llama/.cache")).unwrap();
    bench.write("llama/additional/deep.jinja", b"");
    bench.write("llama/.cache/lock", b"");
    bench.write("llama/pytorch_model.bin", b"\x80\x02");
    let outcome = bench.run("cast llama --to f16");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    let warning =
        "tcast: warning: left out, because they hold other weights or are not regular files: pytorch_model.bin\n";
    let head = "cast 38 tensors to float16\nllama -> llama-float16, 3 shards\n1.66 MiB -> 1.66 MiB in ";
    assert!(outcome.stderr.starts_with(&format!("{warning}{head}")), "{}", outcome.stderr);
    outcome.check_message("mlp.down_proj.weight");

    let (before, after) = (tree(&bench.path("llama")), tree(&bench.path("llama-float16")));
    let kept = |name: &&String| !matches!(name.as_str(), "pytorch_model.bin" | ".cache/lock");
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().filter(kept).collect::<Vec<_>>());
    // As many bytes in as many shards: the index that transformers wrote, to the byte.
    for name in after.keys().filter(|name| !name.ends_with(".safetensors") && *name != "config.json") {
        assert!(before[name] == after[name], "{name}");
    }
    let config = String::from_utf8(before["config.json"].clone()).unwrap();
    let wanted = config.replace("\"dtype\": \"bfloat16\"", "\"dtype\": \"float16\"");
    assert_eq!(String::from_utf8(after["config.json"].clone()).unwrap(), wanted);
    for (name, content) in after.iter().filter(|(name, _)| name.ends_with(".safetensors")) {
        let (old, new) = (SafeTensors::deserialize(&before[name]).unwrap(), SafeTensors::deserialize(content).unwrap());
        assert_eq!(old.len(), new.len());
        for (tensor, view) in new.tensors() {
            assert_eq!(view.dtype(), safetensors::Dtype::F16);
            assert_eq!(view.shape(), old.tensor(&tensor).unwrap().shape());
        }
    }
}

#[test]
fn the_index_has_the_sizes_and_names_of_what_is_written() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/a.safetensors", &shard(&[("x", 1.0, 4), ("z", 2.0, 2)]));
    bench.write("in/b.safetensors", &shard(&[("y", 3.0, 6)]));
    let index = r#"{"metadata":{"total_size":"wrong","note":[1]},"weight_map":{"x":"a.safetensors","z":"a.safetensors",
        "y":"b.safetensors"}}"#;
    bench.write("in/model.safetensors.index.json", index.as_bytes());
    bench.run("cast in --to f16 -o out --rename y=new -q").expect(0, "", "");
    let wanted = "{\n  \"metadata\": {\n    \"note\": [\n      1\n    ],\n    \"total_parameters\": 12,\n    \
        \"total_size\": 24\n  },\n  \"weight_map\": {\n    \"new\": \"b.safetensors\",\n    \
        \"x\": \"a.safetensors\",\n    \"z\": \"a.safetensors\"\n  }\n}\n";
    assert_eq!(String::from_utf8(bench.read("out/model.safetensors.index.json")).unwrap(), wanted);
    // Shards without an index get one.
    fs::remove_file(bench.path("in/model.safetensors.index.json")).unwrap();
    bench.run("cast in --to f16 -o two -q").expect(0, "", "");
    let names = bench.path("two/model.safetensors.index.json");
    assert_eq!(json(&fs::read(names).unwrap())["weight_map"]["y"], "b.safetensors");
    // One shard has no need of it.
    fs::remove_file(bench.path("in/b.safetensors")).unwrap();
    bench.run("cast in --to f16 -o one -q").expect(0, "", "");
    assert_eq!(tree(&bench.path("one")).keys().collect::<Vec<_>>(), ["a.safetensors"]);
}

#[test]
fn what_is_protected_stays_and_the_config_names_a_type_that_torch_computes_in() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let line = "cast llama --to e4m3 --protect --rule *v_proj*=f16 -o out --json -q";
    let report: Value = serde_json::from_str(&bench.run(line).stdout).unwrap();
    let tensors = report["tensors"].as_array().unwrap();
    assert_eq!((tensors.len(), report["files"].as_array().unwrap().len()), (38, 3));
    for tensor in tensors {
        let name = tensor["name"].as_str().unwrap();
        let wanted = match name {
            _ if name.contains("norm") || name.contains("embed") => "bfloat16",
            _ if name.contains("v_proj") => "float16",
            _ => "float8e4m3fn",
        };
        assert_eq!(tensor["to"], wanted, "{name}");
    }
    // float8 weights are most; of the types that torch computes in, bfloat16 is.
    assert!(bench.read("out/config.json") == bench.read("llama/config.json"));
}

#[test]
fn shards_are_merged_split_and_spread_anew() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to bf16 -o one.safetensors -q").expect(0, "", "");
    bench.run("cast one.safetensors --to bf16 --max-shard-size 500KB -o many -q").expect(0, "", "");
    bench.run("cast llama --to bf16 --max-shard-size 500KB -o spread -q").expect(0, "", "");
    let (many, mut spread) = (tree(&bench.path("many")), tree(&bench.path("spread")));
    assert!(spread.remove("config.json").is_some() && spread.remove("generation_config.json").is_some());
    same(&many, &spread);
    let index = json(&many["model.safetensors.index.json"]);
    assert_eq!(index["metadata"]["total_size"], 1_739_008);
    let shards: Vec<&String> = many.keys().filter(|name| name.ends_with(".safetensors")).collect();
    assert_eq!(*shards[1], format!("model-00002-of-{:05}.safetensors", shards.len()));
    let original = bench.read("one.safetensors");
    let original = SafeTensors::deserialize(&original).unwrap();
    for (name, place) in index["weight_map"].as_object().unwrap() {
        let file = &many[place.as_str().unwrap()];
        let view = SafeTensors::deserialize(file).unwrap().tensor(name).unwrap().data().to_vec();
        assert!(view == original.tensor(name).unwrap().data(), "{name}");
    }
    for shard in shards {
        let held: usize =
            SafeTensors::deserialize(&many[shard]).unwrap().iter().map(|(_, view)| view.data().len()).sum();
        assert!(held <= 500_000, "{shard}: {held}");
    }
    // A tensor of more than a shard may hold has one for itself; all in one need no index.
    bench.run("cast llama --to bf16 --max-shard-size 1B -o single -q").expect(0, "", "");
    assert_eq!(tree(&bench.path("single")).len(), 38 + 3);
    bench.run("cast llama --to bf16 --max-shard-size 1GiB -o whole -q").expect(0, "", "");
    let names: Vec<String> = tree(&bench.path("whole")).into_keys().collect();
    assert_eq!(names, ["config.json", "generation_config.json", "model.safetensors"]);
    bench.run("cast llama --to bf16 --max-shard-size 1GB -o x.safetensors").says(2, "", "limited");
    for size in ["0", "1.5GB", "GB", "-1", "99999999TB"] {
        assert_eq!(bench.run(&format!("cast llama --to bf16 --max-shard-size={size}")).code, Some(2), "{size}");
    }
}

#[cfg(unix)]
#[test]
fn shards_that_are_links_are_read_and_links_in_the_output_are_not_written_through() {
    let bench = Bench::with_checkpoint(LLAMA, "blobs");
    fs::create_dir(bench.path("snapshot")).unwrap();
    for name in tree(&bench.path("blobs")).keys() {
        std::os::unix::fs::symlink(Path::new("../blobs").join(name), bench.path("snapshot").join(name)).unwrap();
    }
    let before = tree(&bench.path("blobs"));
    bench.run("cast snapshot --to f16 -o out -q").expect(0, "", "");
    bench.run("cast blobs --to f16 -o plain -q").expect(0, "", "");
    same(&tree(&bench.path("out")), &tree(&bench.path("plain")));
    // As if the cache were the output.
    bench.run("cast out --to f32 -o snapshot --force -q").expect(0, "", "");
    same(&tree(&bench.path("blobs")), &before);
    assert!(!bench.path("snapshot/config.json").is_symlink());
    bench.run("cast out --to f32 -o wide -q").expect(0, "", "");
    same(&tree(&bench.path("snapshot")), &tree(&bench.path("wide")));
}

#[test]
fn an_existing_folder_is_replaced_as_a_checkpoint_and_nothing_else_in_it() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to f32 --max-shard-size 500KB -o out -q").expect(0, "", "");
    bench.write("out/notes.txt", b"mine");
    bench.run("cast llama --to f16 -o out").says(4, "", "--force");
    bench.run("cast llama --to f16 -o out --force -q").expect(0, "", "");
    bench.run("cast llama --to f16 -o fresh -q").expect(0, "", "");
    let mut out = tree(&bench.path("out"));
    assert_eq!(out.remove("notes.txt").as_deref(), Some(&b"mine"[..]));
    same(&out, &tree(&bench.path("fresh")));
    bench.run("cast llama --to f16 --max-shard-size 1GB -o whole -q").expect(0, "", "");
    bench.run("cast llama --to f16 -o whole --force -q").expect(0, "", "");
    same(&tree(&bench.path("whole")), &tree(&bench.path("fresh")));
    // Other weights would be taken for those of this model.
    bench.write("out/other.safetensors", &shard(&[("x", 1.0, 2)]));
    bench.run("cast llama --to f16 -o out --force -q").says(1, "", "checkpoint");
    assert!(!bench.path("out/.tcast").exists());
}

#[test]
fn an_output_beside_the_input_may_go_through_a_parent() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let mut command = bench.command();
    let line = ["cast", ".", "--to", "f16", "-o", "../new", "-q"];
    let done = command.current_dir(bench.path("llama")).args(line).output().unwrap();
    assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stderr).as_ref()), (Some(0), ""));
    assert_eq!(bench.files(), ["llama", "new"]);
    bench.run("cast llama --to f16 -o dot/. -q").expect(0, "", "");
    bench.run("cast llama/model-00001-of-00003.safetensors --to f16 -o dots/. -q").expect(0, "", "");
    assert_eq!(bench.files(), ["dot", "dots", "llama", "new"]);
    if cfg!(unix) {
        // Windows finds the parent of a folder that does not exist.
        bench.run("cast llama --to f16 -o out --report out/../r.json").says(1, "", "out/");
    }
}

#[test]
fn an_output_in_the_input_is_refused() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let before = tree(&bench.path("llama"));
    for (out, what) in [("llama", "is the folder of the input"), ("llama/half", "is in the folder of the input")] {
        bench.run(&format!("cast llama --to f16 --force -o {out}")).says(1, "", what);
    }
    same(&tree(&bench.path("llama")), &before);
    // The folder one is in gets its output beside it.
    let mut command = bench.command();
    let done = command.current_dir(bench.path("llama")).args(["cast", ".", "--to", "f16", "-q"]).status().unwrap();
    assert!(done.success() && bench.path("llama-float16/config.json").exists());
}

#[test]
fn a_folder_in_doubt_is_listed_and_not_converted() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/a.safetensors", &shard(&[("x", 1.0, 2), ("extra", 1.0, 2)]));
    bench.write("in/b.safetensors", &shard(&[("y", 1.0, 2)]));
    let index =
        |map: &str| bench.write("in/model.safetensors.index.json", format!("{{\"weight_map\":{map}}}").as_bytes());
    index(r#"{"x":"a.safetensors","y":"a.safetensors"}"#);
    bench.run("cast in --to f16").says(1, "", "a.safetensors");
    // What the index does not know is kept and told.
    index(r#"{"x":"a.safetensors","y":"b.safetensors"}"#);
    bench.write("in/c.safetensors", &shard(&[("z", 1.0, 2)]));
    let outcome = bench.run("cast in --to f16 -o out");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.check_message("extra");
    assert_eq!(json(&bench.read("out/model.safetensors.index.json"))["weight_map"]["extra"], "a.safetensors");
    fs::remove_file(bench.path("in/model.safetensors.index.json")).unwrap();
    bench.write("in/c.safetensors", &shard(&[("x", 1.0, 2)]));
    bench.run("cast in --to f16 -o twice").says(1, "", "safetensors");
    index(r#"{"x":"model.bin"}"#);
    bench.write("in/model.bin", b"");
    bench.run("cast in --to f16 -o pickled").check_message("model.bin");
}

#[test]
fn an_index_that_leaves_out_a_shard_is_refused_and_another_file_is_left_out() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/model-00001-of-00002.safetensors", &shard(&[("x", 1.0, 2)]));
    bench.write("in/model-00002-of-00002.safetensors", &shard(&[("y", 1.0, 2)]));
    let index = r#"{"weight_map":{"x":"model-00001-of-00002.safetensors"}}"#;
    bench.write("in/model.safetensors.index.json", index.as_bytes());
    let short = "the index leaves out model-00002-of-00002.safetensors, which is numbered as one of its shards\n";
    for line in ["cast in --to f16 -o out", "quantize in --scheme fp8 -o out", "cast in --to f16 -o out -q"] {
        bench.run(line).says(1, "", "in/model.safetensors.index.json");
    }
    let outcome = bench.run("inspect in");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), &*format!("tcast: warning: {short}")));
    // The remedy converts both shards.
    fs::rename(bench.path("in/model.safetensors.index.json"), bench.path("model.safetensors.index.json")).unwrap();
    bench.run("cast in --to f16 -o both -q").expect(0, "", "");
    assert!(bench.path("both/model-00002-of-00002.safetensors").exists());
    // Files of an older checkpoint, and the same model in another format.
    fs::rename(bench.path("model.safetensors.index.json"), bench.path("in/model.safetensors.index.json")).unwrap();
    for other in ["model-00002-of-00003", "consolidated", "model.fp16-00002-of-00002"] {
        fs::rename(bench.path("in/model-00002-of-00002.safetensors"), bench.path(&format!("in/{other}.safetensors")))
            .unwrap();
        bench.run("cast in --to f16 -o out -f").says(0, "", "safetensors");
        fs::rename(bench.path(&format!("in/{other}.safetensors")), bench.path("in/model-00002-of-00002.safetensors"))
            .unwrap();
    }
}

#[test]
fn codes_with_scales_are_refused_unless_it_is_said_what_is_meant() {
    let bench = Bench::new();
    let codes = r#"{"l.0.q.weight":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]},
        "l.0.q.weight_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]},
        "l.0.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#;
    bench.write("m.safetensors", &safetensors(codes, &[0x38; 16]));
    bench.run("cast m.safetensors --to bf16").says(1, "", "--to");
    assert_eq!(bench.files(), ["m.safetensors"]);
    for flags in
        ["--exclude *q.weight", "--rule *q.weight=f16", "--force-codes", "--protect --exclude *.q.* -o p.safetensors"]
    {
        let outcome = bench.run(&format!("cast m.safetensors --to bf16 -f {flags}"));
        assert_eq!(outcome.code, Some(0), "{flags}: {outcome:?}");
        let warned = outcome.stderr.contains("a scale of codes is cast too, 'l.0.q.weight_scale_inv': ");
        assert_eq!(warned, flags == "--exclude *q.weight" || flags.starts_with("--rule"), "{flags}: {outcome:?}");
    }
    // Looking at bits and moving them is no cast of values.
    assert_eq!(bench.run("bitcast m.safetensors --to uint8 --include *q.weight").code, Some(0));
    // What a config says of the whole.
    fs::create_dir(bench.path("in")).unwrap();
    let plain = r#"{"w":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}}"#;
    bench.write("in/model.safetensors", &safetensors(plain, &[0x38; 4]));
    bench.write("in/config.json", br#"{"quantization_config":{"quant_method":"fp8"}}"#);
    bench.run("cast in --to bf16").says(1, "", "w_scale_inv");
    assert_eq!(bench.run("cast in --to bf16 --force-codes").code, Some(0));
}

/// A cast to a float leaves integers as they are, but would change the scales.
#[test]
fn scales_of_integer_codes_are_refused_unless_it_is_said_what_is_meant() {
    let bench = Bench::new();
    let codes = r#"{"l.0.q.weight":{"dtype":"I8","shape":[2,2],"data_offsets":[0,4]},
        "l.0.q.SCB":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
        "l.0.norm.weight":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}"#;
    bench.write("m.safetensors", &safetensors(codes, &[0x38; 16]));
    bench.run("cast m.safetensors --to bf16").says(1, "", "--to");
    // The scales have the type already, and the output would still be quantized.
    bench.run("cast m.safetensors --to f32 -o same.safetensors").says(1, "", "--to");
    bench.run("cast m.safetensors --to bf16 --exclude *.q.SCB -o out.safetensors -q").expect(0, "", "");
    assert_eq!(bytes_of(&bench.read("out.safetensors"), "l.0.q.SCB"), [0x38; 8]);
    for flags in ["--rule *SCB=bf16", "--force-codes", "--exclude l.0.q.weight"] {
        bench.run(&format!("cast m.safetensors --to bf16 {flags} -o out.safetensors -f -q")).expect(0, "", "");
        assert_eq!(bytes_of(&bench.read("out.safetensors"), "l.0.q.SCB").len(), 4, "{flags}");
    }
}

/// Without a config, tcast cannot decode such codes, but their names tell.
#[test]
fn scales_of_integer_codes_are_refused_without_a_config_too() {
    type Tensor = (&'static str, &'static str, &'static [u64], &'static [u8]);
    let bench = Bench::new();
    let quantized: &[(Tensor, Tensor, &str)] = &[
        (("q.qweight", "I32", &[2, 8], &[7; 64]), ("q.scales", "F32", &[1, 8], &[0x38; 32]), "*.scales"),
        (("q.weight", "I8", &[2, 2], &[7; 4]), ("q.weight_scale", "F32", &[2, 1], &[0x38; 8]), "*_scale"),
        (("q.weight_packed", "I32", &[2, 1], &[7; 8]), ("q.weight_scale", "F32", &[2, 1], &[0x38; 8]), "*_scale"),
        (("q.weight", "U8", &[64, 1], &[7; 64]), ("q.weight.absmax", "F32", &[2], &[0x38; 8]), "*.absmax"),
    ];
    for (codes, scale, glob) in quantized {
        bench.write("m.safetensors", &quantized_shard(&[*codes, *scale]));
        bench.run("cast m.safetensors --to f16").says(1, "", "scales");
        bench.run(&format!("cast m.safetensors --to f16 --exclude {glob} -o o.safetensors -f -q")).expect(0, "", "");
        assert_eq!(bytes_of(&bench.read("o.safetensors"), scale.0), scale.3);
    }
    // What only looks like scales.
    let plain: [Tensor; 3] =
        [("l.logit_scale", "F32", &[1], &[0; 4]), ("l.scale", "F32", &[2], &[0; 8]), ("ids", "I32", &[2], &[0; 8])];
    bench.write("m.safetensors", &quantized_shard(&plain));
    bench.run("cast m.safetensors --to f16 -o o.safetensors -f -q").expect(0, "", "");
}

/// bitsandbytes stores codes in the type `bnb_4bit_quant_storage`, often bfloat16 for FSDP.
#[test]
fn codes_of_bitsandbytes_that_are_stored_as_floats_are_no_values() {
    let bench = Bench::new();
    let state = br#"{"quant_type":"nf4","blocksize":64,"dtype":"bfloat16","shape":[8,64]}"#;
    let length = [state.len() as u64];
    let tensors: [(&str, &str, &[u64], &[u8]); 4] = [
        ("q.weight", "BF16", &[128, 1], &[0x38; 256]),
        ("q.weight.absmax", "F32", &[8], &[0x38; 32]),
        ("q.weight.quant_map", "F32", &[16], &[0x38; 64]),
        ("q.weight.quant_state.bitsandbytes__nf4", "U8", &length, state),
    ];
    bench.write("b.safetensors", &quantized_shard(&tensors));
    for to in ["f16", "bf16"] {
        bench.run(&format!("cast b.safetensors --to {to}")).says(1, "", "--to");
    }
}

#[test]
fn new_shards_are_named_after_the_only_file_of_a_folder() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/config.json", br#"{"_class_name": "FluxTransformer2DModel"}"#);
    let file = shard(&[("a", 1.0, 64), ("b", 2.0, 64)]);
    for (name, stem, index) in [
        ("diffusion_pytorch_model", "diffusion_pytorch_model", "diffusion_pytorch_model.safetensors.index.json"),
        ("model.fp16", "model.fp16", "model.safetensors.index.fp16.json"),
        ("model-00001-of-00001", "model", "model.safetensors.index.json"),
    ] {
        bench.write(&format!("in/{name}.safetensors"), &file);
        bench.run("cast in --to f16 --max-shard-size 200B -o out -f -q").expect(0, "", "");
        let names: Vec<String> = tree(&bench.path("out")).into_keys().filter(|name| name != "config.json").collect();
        let shards = ["00001", "00002"].map(|number| format!("{stem}-{number}-of-00002.safetensors"));
        assert_eq!(names, [&shards[0], &shards[1], index]);
        assert_eq!(bench.run("inspect out").code, Some(0));
        fs::remove_file(bench.path(&format!("in/{name}.safetensors"))).unwrap();
    }
}

#[test]
fn parts_in_any_order_make_what_one_run_makes() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to e5m2 --max-shard-size 200KB -o whole -q").expect(0, "", "");
    let cast = "cast llama --to e5m2 --max-shard-size 200KB -o parts";
    let finish = bench.run("cast --finish parts");
    finish.says(1, "", "no such file");
    for part in [2, 3] {
        bench.run(&format!("{cast} --part {part}/3")).says(0, "", "--finish");
    }
    // Nobody takes it for a checkpoint before it is one.
    assert_eq!(fs::read_dir(bench.path("parts")).unwrap().count(), 1);
    bench.run("inspect parts").says(1, "", "--max-shard-size");
    let outcome = bench.run("cast --finish parts");
    assert!(outcome.code == Some(1) && outcome.stderr.contains(" missing"), "{outcome:?}");
    bench.run("cast llama --to e4m3 --max-shard-size 200KB -o parts --part 1/3").says(1, "", "float8e5m2");
    // A part that is run again does nothing anew, and another division of the work does what is missing.
    bench.run(&format!("{cast} --part 3/3 -q")).expect(0, "", "");
    for part in 1..=5 {
        bench.run(&format!("{cast} --part {part}/5 -q -j1")).expect(0, "", "");
    }
    let report = json(bench.run("cast --finish parts --json -q").stdout.as_bytes());
    assert_eq!((&report["tensors_cast"], &report["dry_run"]), (&38.into(), &false.into()));
    let whole = json(bench.run("cast llama --to e5m2 --max-shard-size 200KB -o again --json -q").stdout.as_bytes());
    for field in ["counts", "tensors", "files", "options", "bytes_in", "bytes_out", "input"] {
        assert_eq!(report[field], whole[field], "{field}");
    }
    same(&tree(&bench.path("parts")), &tree(&bench.path("whole")));
    bench.run(&format!("{cast} --part 1/3")).says(0, "", "parts");
    bench.run("cast llama --to f16 -o idle --part 18446744073709551615/18446744073709551615").says(0, "", "tensor");
    for part in ["0/3", "4/3", "3", "1/0", "a/b"] {
        assert_eq!(bench.run(&format!("{cast} --part {part}")).code, Some(2), "{part}");
    }
}

#[test]
fn parts_are_of_about_the_same_size() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let line = "cast llama --to f16 --max-shard-size 100KB -o out -n --json -q";
    let bytes = |part: &str| json(bench.run(&format!("{line}{part}")).stdout.as_bytes())["bytes_out"].as_u64().unwrap();
    let parts = [bytes(" --part 1/3"), bytes(" --part 2/3"), bytes(" --part 3/3")];
    assert_eq!(parts.iter().sum::<u64>(), bytes(""));
    assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() < 100_000, "{parts:?}");
    assert!(!bench.path("out").exists());
}

#[cfg(unix)]
#[test]
fn parts_may_run_at_once() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to f16 --max-shard-size 50KB -o whole -q").expect(0, "", "");
    let run = |part: usize| {
        let part = format!("{part}/8");
        let args = ["cast", "llama", "--to", "f16", "--max-shard-size", "50KB", "-o", "out", "-q", "--part", &part];
        bench.command().args(args).spawn().unwrap()
    };
    let children: Vec<_> = (1..=8).map(run).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    bench.run("cast --finish out -q").expect(0, "", "");
    same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
}

#[cfg(unix)]
#[test]
fn a_resume_that_is_not_the_same_is_refused_with_the_difference() {
    let (bench, line) = long_work();
    bench.write("in/s10.safetensors", &shard(&[("w10", 100.0, 2)]));
    let line = line.replace("--to f16", "--to int8 --out-of-range error");
    bench.run(&format!("{line} --part 1/2")).expect(0, "", "");
    let refused = |line: &str, difference: &str| bench.run(line).says(1, "", difference);
    let resume = format!("{line} --resume");
    refused(&format!("{resume} --exclude w3"), "exclude");
    refused(&resume.replace("range error", "range wrap"), "out_of_range");
    refused(&format!("{resume} --rule w3=f32"), "rules");
    let s10 = bench.read("in/s10.safetensors");
    bench.write("in/s10.safetensors", &shard(&[("w10", 100.0, 4)]));
    refused(&resume, "bytes");
    bench.write("in/s10.safetensors", &shard(&[("v10", 100.0, 2)]));
    refused(&resume, "header");
    bench.write("in/s10.safetensors", &s10);
    bench.run(&resume).check_message("s10.safetensors");
    bench.write("in/s12.safetensors", &s10);
    fs::remove_file(bench.path("in/s10.safetensors")).unwrap();
    refused(&resume, "s11.safetensors");
    // Anew, all of it.
    bench.run(&format!("{} --force", line.replace("range error", "range wrap"))).expect(0, "", "");
    assert!(bench.path("out/s12.safetensors").exists() && !bench.path("out/.tcast").exists());
}

#[test]
fn a_value_that_is_refused_leaves_nothing_that_no_resume_could_end() {
    let (bench, _) = long_work();
    bench.write("in/s10.safetensors", &shard(&[("w10", 1000.0, 2)]));
    let line = "cast in --to int8 --out-of-range error -o out -q";
    let refused = "tcast: error: in/s10.safetensors: tensor 'w10': element [0, 0]: 1000 is out of range for int8\n  \
                   choose --out-of-range saturate or --out-of-range wrap to convert such values\n";
    bench.run(line).says(1, "", "--out-of-range");
    assert!(!bench.path("out").exists());
    fs::create_dir(bench.path("out")).unwrap();
    bench.run(line).says(1, "", "--out-of-range");
    assert!(tree(&bench.path("out")).is_empty());
    // Other parts may be at work: theirs stays.
    let kept = "tcast: 10 of 12 shards are done and kept in out/.tcast: the same command continues it\n";
    bench.run(&format!("{line} --part 1/1")).expect(1, "", &format!("{kept}{refused}"));
}

#[test]
fn two_runs_do_not_work_on_one_folder_at_once() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to f16 -o out --part 1/3 -q").expect(0, "", "");
    let lock = fs::File::options().write(true).open(bench.path("out/.tcast/lock")).unwrap();
    lock.lock_shared().unwrap(); // as another part does
    bench.run("cast --finish out").says(1, "", "another");
    bench.run("cast llama --to f16 -o out --resume").says(1, "", "another");
    bench.run("cast llama --to f16 -o out --part 2/3 -q").expect(0, "", "");
    drop(lock);
    bench.run("cast llama --to f16 -o out --resume -q").expect(0, "", "");
    assert!(bench.path("out/model.safetensors.index.json").exists());
}

#[test]
fn arguments_without_an_effect_on_finish_are_refused() {
    let bench = Bench::new();
    let of_files = "--output=x --force --skip-existing --from=f16 --dry-run --report=r.json --hash \
                    --include=w --exclude=w --rename=a=b --allow-unmatched --external-data \
                    --max-shard-size=1GB --resume --part=1/2 x.npy";
    let of_casts = "--to=f16 --rule=w=f16 --all --protect --force-codes --stats --saturate=false --no-saturate \
                    --round-mode=up --out-of-range=wrap --opset=19 --min-elements=5 --raise-opset \
                    --fail-on=nan";
    let of_layouts = "--to=f16 --arithmetic=exact --keep-activation-scales --fail-on=nan";
    let of_schemes = "--scheme=fp8 --layout=modelopt --rule=w=fp8 --group-size=32 --arithmetic=exact --search=mse \
                      --partial-blocks --recover --only-exact --activations --input-global-scale=1 --min-sqnr=3 \
                      --fail-on=clipped --min-elements=5 --raise-opset";
    for (command, its) in [("cast", of_casts), ("dequantize", of_layouts), ("quantize", of_schemes)] {
        for argument in of_files.split_whitespace().chain(its.split_whitespace()) {
            let outcome = bench.run(&format!("{command} {argument} --finish out"));
            let is_refused = outcome.code == Some(2) && outcome.stderr.contains("cannot be used with");
            assert!(is_refused && outcome.stderr.contains("--finish"), "{command} {argument}: {outcome:?}");
        }
        bench.run(&format!("{command} --finish out --json -q --no-sync -j 2 --color never")).says(
            1,
            "",
            "no such file",
        );
    }
}

#[test]
fn flags_for_folders_are_refused_where_a_file_is_written() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    for flag in ["--part 1/2", "--resume"] {
        bench.run(&format!("cast x.npy --to f16 {flag}")).says(2, "", "folders");
    }
    assert_eq!(bench.run("cast x.npy --to f16 --resume --force").code, Some(2));
    assert_eq!(bench.run("cast").code, Some(2));
    bench.run("cast x.npy --to f16 --max-shard-size 1GB -q").expect(0, "", "");
    assert_eq!(tree(&bench.path("x-float16")).keys().collect::<Vec<_>>(), ["model.safetensors"]);
    bench.write("file", b"");
    let outcome = bench.run("cast x.npy --to f16 --max-shard-size 1GB -o file --force");
    let is_refused = outcome.code == Some(1) && outcome.stderr.contains("file: is a file, and the output is a folder");
    assert!(is_refused, "{outcome:?}");
}

#[test]
fn promote_and_bitcast_and_a_look_at_bits_take_folders() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let cast = "cast llama --to f32 --include model.norm.weight -o mixed -q";
    bench.run(cast).expect(0, "", "");
    let tensors = "--tensor model.norm.weight --tensor model.layers.0.input_layernorm.weight";
    bench.run(&format!("promote mixed {tensors} --dry-run")).expect(0, "float32\n", "");
    bench.run(&format!("promote mixed {tensors} -o common")).says(0, "", "float32");
    let shard = bench.read("common/model-00001-of-00003.safetensors");
    let norm =
        SafeTensors::deserialize(&shard).unwrap().tensor("model.layers.0.input_layernorm.weight").unwrap().dtype();
    assert_eq!(norm, safetensors::Dtype::F32);
    bench.run(&format!("promote mixed {tensors} -o common.safetensors -q")).expect(0, "", "");
    bench.run(&format!("promote mixed llama {tensors} -o both")).says(2, "", "promoted");
    bench.run("bitcast llama --to int16 -o bits -q").expect(0, "", "");
    bench.run("bitcast bits --to bf16 -o back -q").expect(0, "", "");
    same(&tree(&bench.path("back")), &tree(&fixture("checkpoints").join(LLAMA)));
    bench.run("bitcast llama --hex --tensor model.norm.weight --range 0..2").expect(0, "0  3f7d 3ef4\n", "");
    bench.run("bitcast llama --hex").says(2, "", "contains");
}

/// Data of its own, without mapped files: as much for a hundred shards as for one of their size.
#[cfg(target_os = "linux")]
#[test]
fn a_hundred_shards_take_the_memory_of_one() {
    let bench = Bench::new();
    for (folder, shards) in [("one", 1), ("hundred", 100)] {
        fs::create_dir(bench.path(folder)).unwrap();
        for number in 0..shards {
            let content = shard(&[(&format!("w{number}"), 0.5, 100 / shards * (1 << 18))]);
            bench.write(&format!("{folder}/s{number:03}.safetensors"), &content);
        }
        let limited = "ulimit -d 24576 && exec \"$0\" cast \"$1\" --to f16 -j2 -q --no-sync";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", limited]).arg(assert_cmd::cargo::cargo_bin!("tcast")).arg(folder);
        let outcome = command.current_dir(bench.path("")).output().unwrap();
        assert!(outcome.status.success(), "{folder}: {outcome:?}");
    }
    let size = |folder: &str| tree(&bench.path(folder)).values().map(Vec::len).sum::<usize>();
    assert!(size("hundred-float16") > 50 << 20 && size("one-float16") > 50 << 20);
}

#[cfg(unix)]
#[test]
fn a_side_file_that_is_a_link_out_of_the_checkpoint_is_refused() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.write("secret", b"secret");
    for target in [bench.path("secret"), "../secret".into()] {
        std::os::unix::fs::symlink(target, bench.path("llama/tokenizer.json")).unwrap();
        bench.run("cast llama --to f16 -o out").says(1, "", "llama/tokenizer.json");
        assert_eq!(bench.files(), ["llama", "secret"]);
        fs::remove_file(bench.path("llama/tokenizer.json")).unwrap();
    }
    std::os::unix::fs::symlink("config.json", bench.path("llama/same.json")).unwrap();
    bench.run("cast llama --to f16 -o out -q").expect(0, "", "");
}

#[cfg(unix)]
#[test]
fn no_output_replaces_a_file_of_the_input() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to bf16 --max-shard-size 1GB -o one -q").expect(0, "", "");
    fs::create_dir(bench.path("links")).unwrap();
    for name in tree(&bench.path("llama")).keys() {
        std::os::unix::fs::symlink(Path::new("../llama").join(name), bench.path("links").join(name)).unwrap();
    }
    let before = (tree(&bench.path("llama")), tree(&bench.path("one")));
    for line in [
        "cast one/model.safetensors --to e4m3 --max-shard-size 5GB -o one --force",
        "cast llama/model-00001-of-00003.safetensors --to e4m3 --max-shard-size 100KB -o llama --force",
        "cast links --to f16 -o llama --force",
    ] {
        bench.run(line).says(1, "", "input");
    }
    same(&tree(&bench.path("llama")), &before.0);
    same(&tree(&bench.path("one")), &before.1);
}

/// Two jobs that should have been given the same options, and began at once.
#[cfg(unix)]
#[test]
fn of_parts_with_other_options_only_the_first_is_heard() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let options = [["f16", "300KB"], ["f32", "900KB"]];
    for [to, size] in options {
        bench.run(&format!("cast llama --to {to} --max-shard-size {size} -o {to} -q")).expect(0, "", "");
    }
    for _ in 0..10 {
        let start = |[to, size]: [&str; 2]| {
            let args = ["cast", "llama", "--to", to, "--max-shard-size", size, "-o", "out", "--part", "1/1"];
            bench.command().args(args).stderr(std::process::Stdio::null()).spawn().unwrap()
        };
        let codes = options.map(start).map(|mut child| child.wait().unwrap().code());
        let winner = if codes[0] == Some(0) { "f16" } else { "f32" };
        assert!(codes == [Some(0), Some(1)] || codes == [Some(1), Some(0)], "{codes:?}");
        bench.run("cast --finish out -q").expect(0, "", "");
        same(&tree(&bench.path("out")), &tree(&bench.path(winner)));
        fs::remove_dir_all(bench.path("out")).unwrap();
    }
}

#[test]
fn what_was_done_under_another_manifest_does_not_count() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to int16 --all -o out --part 1/3 -q").expect(0, "", "");
    fs::remove_file(bench.path("out/.tcast/manifest.json")).unwrap();
    bench.run("cast llama --to f16 -o out -q").expect(0, "", "");
    bench.run("cast llama --to f16 -o whole -q").expect(0, "", "");
    same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
}

#[cfg(unix)]
#[test]
fn odd_files_beside_the_shards_do_no_harm() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let odd = std::ffi::OsStr::from_bytes(b"llama/\xff.txt");
    fs::write(bench.path("").join(odd), b"").unwrap();
    std::os::unix::fs::symlink("nowhere", bench.path("llama/dangling.txt")).unwrap();
    for name in [".tcast-abc.tmp", "model.safetensors.index.json.bak", "line\nbreak.txt"] {
        bench.write(&format!("llama/{name}"), b"{}");
    }
    fs::remove_file(bench.path("llama/config.json")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(bench.path("llama/config.pipe")).status().unwrap().success());
    let outcome = bench.run("cast llama --to f16 -o out");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.check_message("dangling");
    let names: Vec<String> =
        tree(&bench.path("out")).into_keys().filter(|name| !name.ends_with(".safetensors")).collect();
    let wanted = [
        "generation_config.json",
        "line\nbreak.txt",
        "model.safetensors.index.json",
        "model.safetensors.index.json.bak",
    ];
    assert_eq!(names, wanted);
    // A name as long as a name can be.
    fs::create_dir(bench.path("long")).unwrap();
    let name = format!("{}.safetensors", "n".repeat(243));
    bench.write(&format!("long/{name}"), &shard(&[("x", 1.0, 2)]));
    bench.run("cast long --to f16 -q").expect(0, "", "");
    assert_eq!(tree(&bench.path("long-float16")).into_keys().collect::<Vec<_>>(), [name]);
}

#[cfg(unix)]
#[test]
fn what_is_in_the_way_is_told_before_anything_is_replaced() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    fs::create_dir(bench.path("llama/templates")).unwrap();
    bench.write("llama/templates/x.jinja", b"new");
    bench.run("cast llama --to f32 -o out -q").expect(0, "", "");
    fs::create_dir(bench.path("elsewhere")).unwrap();
    bench.write("elsewhere/x.jinja", b"mine");
    fs::remove_dir_all(bench.path("out/templates")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", bench.path("out/templates")).unwrap();
    let refused = |name: &str| {
        bench.run("cast llama --to f16 -o out --force").says(1, "", name);
        bench.run("cast llama --to f16 -o out --force -n -q").says(1, "", name);
    };
    refused("templates");
    assert_eq!(bench.read("elsewhere/x.jinja"), b"mine");
    fs::remove_file(bench.path("out/templates")).unwrap();
    fs::remove_file(bench.path("out/config.json")).unwrap();
    fs::create_dir(bench.path("out/config.json")).unwrap();
    refused("config.json");
    assert!(bench.path("out/model.safetensors.index.json").exists());
    fs::remove_dir(bench.path("out/config.json")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", bench.path("out/.tcast")).unwrap();
    bench.run("cast llama --to f16 -o out --force").says(1, "", ".tcast");
    assert_eq!(tree(&bench.path("elsewhere")).len(), 1);
}

#[test]
fn a_side_file_that_changed_is_no_resume() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to f16 -o out --part 1/2 -q").expect(0, "", "");
    bench.write("llama/tokenizer.json", b"{}");
    let refused = |file: &str| bench.run("cast llama --to f16 -o out --resume").says(1, "", file);
    refused("tokenizer.json");
    fs::remove_file(bench.path("llama/tokenizer.json")).unwrap();
    bench.write("llama/generation_config.json", b"{}");
    refused("generation_config.json");
}

#[test]
fn a_shard_alone_is_known_by_what_lies_beside_it() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    let codes = r#"{"q.weight":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}}"#;
    bench.write("in/a.safetensors", &safetensors(codes, &[0x38; 4]));
    bench.write("in/b.safetensors", &shard(&[("q.weight_scale_inv", 1.0, 1)]));
    assert_eq!(bench.run("cast in/a.safetensors --to bf16 -q").code, Some(0));
    let index = br#"{"weight_map":{"q.weight":"a.safetensors","q.weight_scale_inv":"b.safetensors"}}"#;
    bench.write("in/model.safetensors.index.json", index);
    bench.run("cast in/a.safetensors --to bf16 -o out.safetensors").says(1, "", "q.weight_scale_inv");
}

#[test]
fn the_folder_for_the_output_must_be_there() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    for part in ["", " --part 1/2"] {
        bench.run(&format!("cast llama --to f16 -o no/such{part}")).says(1, "", "mkdir");
    }
    bench.run("cast llama --to f16 -o part --part 1/2 -q").expect(0, "", "");
    for line in ["bitcast llama --to int16 -o part", "promote llama --tensor model.norm.weight -o part"] {
        bench.run(line).says(1, "", "--force");
    }
}

#[test]
fn a_folder_is_not_written_under_the_name_of_a_file() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    for out in ["x.bin", "x.pt", "x.pth", "x.CKPT", "x.h5", "x.msgpack", "x.zip", "x.tar"] {
        bench.run(&format!("cast llama --to f16 -o {out}")).says(1, "", "extension");
    }
    assert_eq!(bench.files(), ["llama"]);
    bench.run("cast llama --to f16 -o llama-3.1 -q").expect(0, "", "");
    bench.run("cast llama --to f16 -o folder.bin/ -q").expect(0, "", "");
    assert_eq!(bench.files(), ["folder.bin", "llama", "llama-3.1"]);
}

#[test]
fn a_folder_of_many_other_files_is_named_before_they_are_copied() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    fs::create_dir(bench.path("m/sub")).unwrap();
    for number in 0..1001 {
        bench.write(&format!("m/sub/{number}.txt"), b"12");
    }
    let outcome = bench.run("cast m --to f16 -o out --dry-run");
    let warning = " files besides its shards, ";
    let line = outcome.stderr.lines().find(|line| line.starts_with("tcast: warning: m holds 100")).unwrap_or_default();
    assert!(line.contains(warning) && line.ends_with(", which are copied"), "{outcome:?}");
    fs::remove_dir_all(bench.path("m/sub")).unwrap();
    let outcome = bench.run("cast m --to f16 -o out --dry-run");
    assert!(!outcome.stderr.contains(warning), "{outcome:?}");
}

#[test]
fn scales_are_not_counted_for_the_type_that_the_config_names() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme fp8 --layout modelopt -o q -q").expect(0, "", "");
    bench.run("cast q --only *.layers.0.* -o o -q").expect(0, "", "");
    let dtype = |model: &str| {
        let config: Value = serde_json::from_slice(&bench.read(&format!("{model}/config.json"))).unwrap();
        config["torch_dtype"].as_str().or(config["dtype"].as_str()).unwrap().to_owned()
    };
    assert_eq!([dtype("m"), dtype("q"), dtype("o")], ["bfloat16"; 3]);
}
