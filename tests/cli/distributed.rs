//! Folders that the processes of a training wrote together: what is read, by which names, and what is refused.

use crate::common::{Bench, Outcome, fixture, safetensors};
use std::fs;

/// A bench with copies of these folders.
fn bench(folders: &[&str]) -> Bench {
    let bench = Bench::new();
    for folder in folders {
        bench.add_checkpoint(&format!("../pytorch/distributed/{folder}"), folder);
    }
    bench
}

/// Replaces bytes of a file by as many others, everywhere.
#[track_caller]
fn patch(bench: &Bench, file: &str, old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let mut bytes = bench.read(file);
    let places: Vec<usize> = (0..bytes.len() - old.len()).filter(|at| bytes[*at..].starts_with(old)).collect();
    assert!(!places.is_empty(), "{file} has no such bytes");
    for at in places {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
    bench.write(file, &bytes);
}

#[track_caller]
fn expect_message(outcome: &Outcome, code: i32, part: &str) {
    assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
    outcome.check_message(part);
}

#[test]
fn a_folder_of_torch_becomes_a_folder_of_hugging_face() {
    let bench = bench(&["dcp"]);
    fs::create_dir(bench.path("base")).unwrap();
    bench.write("base/config.json", b"{\"dtype\": \"float32\"}");
    bench.write("base/tokenizer.json", b"{}");
    let note = "tcast: note: dcp/.metadata: tcast reads the tensors under 'app.model', and not app.optim (12 B); --root . \
                reads all\n";
    let outcome = bench.run("cast dcp --to bf16 --config base -o out");
    expect_message(&outcome, 0, note);
    assert_eq!(fs::read_dir(bench.path("out")).unwrap().count(), 3);
    assert_eq!(bench.read("out/config.json"), b"{\"dtype\": \"bfloat16\"}");
    bench.run("cast dcp -o same -q").expect(0, "", "");
    bench.run("diff dcp same").expect(0, "2 tensors are equal\n", "");
    // Files of the checkpoint itself are not side files.
    assert_eq!(fs::read_dir(bench.path("same")).unwrap().count(), 1);
}

#[test]
fn all_tensors_have_the_values_that_torch_loads() {
    let bench = bench(&["dcp"]);
    let expected = fixture("pytorch/distributed/dcp.expected.safetensors");
    let outcome = bench.run_args(&["diff", "dcp", expected.to_str().unwrap(), "--root", "."]);
    outcome.expect(0, "3 tensors are equal\n", "");
}

#[test]
fn shards_of_a_given_size_come_with_an_index() {
    let bench = bench(&["dcp"]);
    bench.run("cast dcp -o out --max-shard-size 70B -q --root .").expect(0, "", "");
    let mut names: Vec<String> = fs::read_dir(bench.path("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let shards =
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"];
    assert_eq!(names, shards);
}

#[test]
fn keys_and_not_text_lead_to_a_root() {
    let bench = bench(&["dcp"]);
    let listed = |root: &str| {
        let outcome = bench.run(&format!("cast dcp --root {root} -o out.safetensors -q --force"));
        outcome.expect(0, "", "");
        let text = bench.run("inspect out.safetensors --json").stdout;
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let names =
            json["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let all = ["app.model.embed.weight", "app.model.buf", "app.optim.state.embed.weight.exp_avg"];
    assert_eq!(listed("."), all);
    assert_eq!(listed("app.optim.state"), ["embed.weight.exp_avg"]);
    assert_eq!(listed("app.model.buf"), ["buf"]);
    let message = "has no tensors under 'app.mod'\n  these have some: 'app', or leave --root out\n";
    expect_message(&bench.run("cast dcp --root app.mod -o out"), 1, message);
    // Without the paths of the planner, a name is flat, and nothing is taken off.
    patch(&bench, "dcp/.metadata", b"planner_data", b"planner_dxta");
    assert_eq!(listed("."), all);
    bench.run("cast dcp -o flat.safetensors -q").expect(0, "", "");
    let outcome = bench.run("inspect flat.safetensors --include app.model.buf");
    assert_eq!((outcome.code, outcome.stdout.contains("app.model.buf")), (Some(0), true));
}

#[test]
fn inspect_lists_shapes_of_whole_tensors_and_what_is_left_out() {
    let bench = bench(&["dcp"]);
    let outcome = bench.run("inspect dcp");
    let text = "dcp: dcp, 2 tensors, 7.62 KiB\n  embed.weight  float32  [5, 3]  60 B  float32, 2 chunks\n";
    assert!(outcome.stdout.starts_with(text), "{}", outcome.stdout);
    let roots = "pickle: dcp, protocol 4\nroot\n  app.model  2 tensors  68 B\n  app.optim  1 tensor   12 B  not read\n";
    assert!(outcome.stdout.contains(roots), "{}", outcome.stdout);
}

#[test]
fn contradictions_name_the_tensor_and_the_file() {
    for (file, old, new, message) in [
        (".metadata", &b"__1_0.distcp"[..], &b"../_0.distcp"[..], "which is not in the folder"),
        (".metadata", b"__1_0.distcp", b"__7_0.distcp", "is in __7_0.distcp, which is missing"),
        (".metadata", b"relative_path", b"relative_pxth", "has no relative_path"),
        ("__0_0.distcp", b"FloatStorage", b"FloatStoragX", "unknown class"),
        ("__0_0.distcp", b"archive/data/0", b"archive/data/1", "lacks its storage '0'"),
    ] {
        let bench = bench(&["dcp"]);
        patch(&bench, &format!("dcp/{file}"), old, new);
        let outcome = bench.run("cast dcp -o out");
        expect_message(&outcome, 1, message);
        assert!(outcome.stderr.contains("tensor '"), "{}", outcome.stderr);
        assert!(!bench.path("out").exists());
    }
    let bench = bench(&["dcp"]);
    fs::remove_file(bench.path("dcp/__1_0.distcp")).unwrap();
    expect_message(
        &bench.run("cast dcp -o out"),
        1,
        "__1_0.distcp, which is missing\n  copy or download the whole folder",
    );
}

#[test]
fn code_is_searched_in_every_pickle_of_the_folder() {
    let bench = bench(&["dcp", "code"]);
    let outcome = bench.run("inspect dcp --fail-on code -q");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    expect_message(&bench.run("inspect code --fail-on code -q"), 3, "posix.system");
    expect_message(&bench.run("cast code -o out"), 0, "posix.system");
    // A tensor of the optimizer, which is not read.
    patch(&bench, "dcp/__1_0.distcp", b"_rebuild_tensor_v2", b"_rebuild_tensor_vX");
    expect_message(&bench.run("inspect dcp --fail-on code -q"), 3, "torch._utils._rebuild_tensor_vX");
}

#[test]
fn other_folders_of_processes_are_refused_with_the_reason() {
    for (files, message) in [
        (&["__0_0.distcp", ".metadata", "common.pt", "metadata.json"][..], "is a checkpoint of Megatron (torch_dist)"),
        (
            &["__0_0.distcp", "__0.metadata"],
            "each process saved on its own (use_collectives=False), such as __0.metadata",
        ),
        (&["__0_0.distcp", ".metadata.tmp"], "without its .metadata: it was not saved completely"),
        (&["zero_pp_rank_0_mp_rank_00_model_states.pt"], "holds the partitions of DeepSpeed ZeRO-3"),
    ] {
        let bench = Bench::new();
        fs::create_dir(bench.path("in")).unwrap();
        for file in files {
            bench.write(&format!("in/{file}"), b"\x80\x04N.");
        }
        let outcome = bench.run("cast in -o out");
        expect_message(&outcome, 1, message);
        assert!(outcome.stderr.starts_with("tcast: error: in: "), "{}", outcome.stderr);
    }
}

/// The elements of a tensor of the output, which is float32.
fn floats(bench: &Bench, file: &str, name: &str) -> (Vec<u64>, Vec<f32>) {
    let file = bench.read(file);
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    let values = tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    (tensor.shape().iter().map(|len| *len as u64).collect(), values.collect())
}

#[test]
fn files_of_ranks_become_whole_tensors() {
    let bench = bench(&["mesh", "ranks"]);
    fs::create_dir(bench.path("mesh/huggingface")).unwrap();
    bench.write("mesh/huggingface/config.json", b"{}");
    bench.write("mesh/fsdp_config.json", b"{\"world_size\": 4}");
    bench.run("cast mesh -o out -q").expect(0, "", "");
    assert_eq!(fs::read_dir(bench.path("out")).unwrap().count(), 2);
    assert_eq!(bench.read("out/config.json"), b"{}");
    let wanted = |factor: f32| (vec![5, 7], (0..35).map(|at| at as f32 * factor).collect());
    assert_eq!(floats(&bench, "out/model.safetensors", "up.weight"), wanted(1.0));
    assert_eq!(floats(&bench, "out/model.safetensors", "down.weight"), wanted(2.0));
    let outcome = bench.run("inspect mesh");
    let text = "up.weight    float32  [5, 7]  140 B  float32, mesh 2x2 [S(0), S(1)]\n";
    assert!(outcome.stdout.contains(text), "{}", outcome.stdout);
    assert_eq!(bench.run("inspect mesh --fail-on code -q").code, Some(0));
    // Parts with equal bytes are parts, and a plain tensor is one of equal copies.
    bench.run("cast ranks -o whole -q").expect(0, "", "");
    assert_eq!(floats(&bench, "whole/model.safetensors", "ones"), (vec![4], vec![1.0; 4]));
    assert_eq!(floats(&bench, "whole/model.safetensors", "buf").0, [2]);
}

#[test]
fn a_weight_in_pieces_is_quantized_like_a_whole_one() {
    let bench = bench(&["mesh"]);
    bench.run("cast mesh -o whole -q").expect(0, "", "");
    for input in ["mesh", "whole"] {
        bench.run(&format!("quantize {input} --scheme int8 -o {input}-int8 -q")).expect(0, "", "");
    }
    assert_eq!(bench.read("mesh-int8/model.safetensors"), bench.read("whole-int8/model.safetensors"));
}

#[test]
fn ranks_that_differ_are_named_and_one_can_be_taken() {
    let bench = bench(&["differ"]);
    bench.run("cast differ -o out").says(1, "", "--take-rank");
    bench.run("cast differ -o out -q --take-rank 1").expect(0, "", "");
    assert_eq!(floats(&bench, "out/model.safetensors", "buf").1[..1], [0.5]);
    bench.run("diff differ out --take-rank 1").expect(0, "3 tensors are equal\n", "");
    bench.run("cast differ -o without -q --exclude buf").expect(0, "", "");
    bench.run("cast differ -o out2 --take-rank 2").says(2, "", "--take-rank");
    bench.run("cast out -o out3 --take-rank 0").says(2, "", "--take-rank");
}

#[test]
fn the_file_of_one_rank_leads_to_its_folder() {
    let bench = bench(&["mesh"]);
    bench.run("cast mesh/model_world_size_4_rank_1.pt -o out.safetensors").says(1, "", "up.weight");
}

#[test]
fn missing_and_foreign_ranks_are_named() {
    let first = "model_world_size_4_rank_0.pt";
    for (change, message) in [
        (
            &(|bench: &Bench| fs::remove_file(bench.path("mesh/model_world_size_4_rank_2.pt")).unwrap())
                as &dyn Fn(&Bench),
            "lacks the files of 1 of 4 ranks: 2\n  copy or download the whole folder",
        ),
        (
            &|bench| bench.write("mesh/model_world_size_2_rank_0.pt", b""),
            "has files of several trainings, of 2 and 4 ranks",
        ),
        (&|bench| bench.write("mesh/model_world_size_4_rank_4.pt", b""), "has a file of rank 4 of 4"),
        (
            &|bench| bench.write("mesh/fsdp_config.json", b"{\"world_size\": 8}"),
            "says that there are 8 ranks, and the files say 4",
        ),
        (
            &|bench| drop(fs::copy(bench.path("mesh/model_world_size_4_rank_1.pt"), bench.path("mesh").join(first))),
            "tensor 'up.weight': the file of rank 0 was written by rank 1",
        ),
        (&|bench| patch(bench, "mesh/model_world_size_4_rank_0.pt", b"_coordinate_on_dim", b"_coordinatX_on_dim"), ""),
        (
            &|bench| patch(bench, "mesh/model_world_size_4_rank_3.pt", b"Replicate\n", b"ReplicatX\n"),
            "is divided by the unknown placement ReplicatX",
        ),
        (
            &|bench| patch(bench, "mesh/model_world_size_4_rank_3.pt", b"FloatStorage", b"HalfStoragex"),
            "tensor 'up.weight'",
        ),
    ] {
        let bench = bench(&["mesh"]);
        change(&bench);
        let outcome = bench.run("cast mesh -o out");
        if message.is_empty() {
            assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        } else {
            expect_message(&outcome, 1, message);
        }
    }
}

#[test]
fn pieces_in_safetensors_files_are_joined() {
    let bench = bench(&["shards"]);
    bench.run("cast shards -o out -q").expect(0, "", "");
    bench.run("inspect out --fail-on parts -q").expect(0, &bench.run("inspect out -q").stdout, "");
    let outcome = bench.run("inspect shards");
    assert!(outcome.stdout.starts_with("shards: hf, "), "{}", outcome.stdout);
    let first = "shards/shard-00001-model-00001-of-00002.safetensors";
    bench.run(&format!("cast {first} -o out2")).says(1, "", "shards");
    fs::remove_file(bench.path(first)).unwrap();
    fs::remove_file(bench.path("shards/shard-00001-model-00002-of-00002.safetensors")).unwrap();
    expect_message(&bench.run("cast shards -o out2"), 1, "tcast: error: shards: lacks shards: 1 of 2");
}

/// A `.safetensors` file with a tensor of float32, some columns of a matrix whose elements are their numbers.
fn columns(metadata: &str, rows: u32, width: u32, columns: std::ops::Range<u32>) -> Vec<u8> {
    let count = columns.end - columns.start;
    let end = 4 * rows * count;
    let header =
        format!(r#"{{{metadata}"w": {{"dtype": "F32", "shape": [{rows}, {count}], "data_offsets": [0, {end}]}}}}"#);
    let elements = (0..rows).flat_map(|row| columns.clone().map(move |column| (row * width + column) as f32));
    safetensors(&header, &elements.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
}

#[test]
fn any_number_of_threads_joins_the_same_bytes() {
    let (bench, rows, width) = (Bench::new(), 1500, 701); // 4 MiB: several pieces of the output
    fs::create_dir(bench.path("in")).unwrap();
    for (number, columns_of) in [(1, 0..301), (2, 301..701)] {
        let saved = format!(
            r#""__metadata__": {{"DCP_SHARDING_INFO": "{{\"w\": {{\"saved_offsets\": [0, {}]}}}}"}}, "#,
            columns_of.start
        );
        let name = format!("in/shard-{number:05}-model-00001-of-00001.safetensors");
        bench.write(&name, &columns(&saved, rows, width, columns_of));
    }
    let mark = r#""__metadata__": {"format": "pt"}, "#;
    bench.write("whole.safetensors", &columns(mark, rows, width, 0..width));
    for dtype in ["f32", "bf16", "f64"] {
        bench.run(&format!("cast whole.safetensors --to {dtype} -o {dtype}.safetensors -q")).expect(0, "", "");
        let whole = bench.read(&format!("{dtype}.safetensors"));
        for threads in [1, 3] {
            let output = format!("{dtype}-{threads}");
            bench.run(&format!("cast in --to {dtype} -o {output} -q --threads {threads}")).expect(0, "", "");
            assert!(bench.read(&format!("{output}/model.safetensors")) == whole, "{dtype}, {threads} threads");
        }
    }
    bench.run("diff in whole.safetensors --threads 2").expect(0, "1 tensor is equal\n", "");
}

#[test]
fn only_the_one_call_of_getattr_is_harmless() {
    let bench = bench(&["ranks"]);
    let header = "torch.distributed._shard.sharded_tensor.api ShardedTensor";
    let call = |class: &str, attribute: &str| {
        let mut pickle = b"\x80\x02c__builtin__\ngetattr\n".to_vec();
        pickle.extend(format!("c{}\n", class.replace(' ', "\n")).as_bytes());
        pickle.extend([b'X', attribute.len() as u8, 0, 0, 0]);
        pickle.extend(attribute.as_bytes());
        pickle.extend(b"\x86R.");
        pickle
    };
    let harmful = call(header, "__class__");
    let two = [&harmful[..harmful.len() - 1], b"0", &call(header, "ProcessGroupState")[2..]].concat();
    for (pickle, code) in [
        (call(header, "ProcessGroupState"), 0),
        (call(header, "__init__"), 3),
        (call("os system", "ProcessGroupState"), 3),
        (two, 3),
    ] {
        bench.write("ranks/other.pkl", &pickle);
        let outcome = bench.run("inspect ranks --fail-on code -q");
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
    }
}
