//! Files that are made to hurt a reader, too large to be kept: each ends in time, in little memory, with one error.

mod common;

#[cfg(target_os = "linux")]
use common::gguf::Gguf;
#[cfg(target_os = "linux")]
use common::onnx::{field, model};
use common::{Bench, check_hostile, npy, safetensors};
use std::io::Write;

/// Checks one file; `allowed` are the exit codes.
#[track_caller]
fn check(name: &str, bytes: &[u8], allowed: &[i32]) {
    let bench = Bench::new();
    bench.write(name, bytes);
    check_hostile(&bench.path(name), allowed, name);
}

/// A zip archive of one member, which is deflated; the sizes are what the caller says.
fn zip(name: &str, deflated: &[u8], crc32: u32, size: u32) -> Vec<u8> {
    let sizes = [deflated.len() as u32, size].map(u32::to_le_bytes).concat();
    let common = [&[20, 0, 0, 0, 8, 0, 0, 0, 0x21, 0], &crc32.to_le_bytes()[..], &sizes].concat();
    let lengths = [name.len() as u8, 0, 0, 0];
    let local = [b"PK\x03\x04", &common[..], &lengths, name.as_bytes(), deflated].concat();
    let central = [b"PK\x01\x02\x14\x00", &common[..], &lengths, &[0; 14], name.as_bytes()].concat();
    let place = [central.len() as u32, local.len() as u32].map(u32::to_le_bytes).concat();
    let end = [b"PK\x05\x06", &[0, 0, 0, 0, 1, 0, 1, 0][..], &place, &[0, 0]].concat();
    [local, central, end].concat()
}

fn deflate(parts: &[&[u8]], zeros: u64) -> (Vec<u8>, u32) {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    let mut sum = crc32fast::Hasher::new();
    let block = vec![0; 1 << 20];
    let blocks = std::iter::repeat_n(&block[..], (zeros >> 20) as usize);
    for part in parts.iter().copied().chain(blocks) {
        encoder.write_all(part).unwrap();
        sum.update(part);
    }
    (encoder.finish().unwrap(), sum.finalize())
}

#[test]
fn a_small_archive_that_unpacks_to_much_is_streamed_or_refused() {
    let size = 256 << 20;
    let header = npy("'<f4'", &format!("({},)", size / 4), &[]);
    let (deflated, sum) = deflate(&[&header], size);
    let whole = header.len() as u32 + size as u32;
    assert!(deflated.len() < 1 << 20);
    check("honest.npz", &zip("a.npy", &deflated, sum, whole), &[0]);
    check("wrong_sum.npz", &zip("a.npy", &deflated, sum ^ 1, whole), &[1]);
    check("short_size.npz", &zip("a.npy", &deflated, sum, whole - 4), &[1]);
    check("long_size.npz", &zip("a.npy", &deflated, sum, whole + 4), &[1]);
    let header = npy("'<f4'", "(3,)", &[]);
    let (deflated, sum) = deflate(&[&header], size);
    check("little_header.npz", &zip("a.npy", &deflated, sum, header.len() as u32 + size as u32), &[1]);
    // The directory says what the header says, and the member goes on.
    check("hidden.npz", &zip("a.npy", &deflated, sum, header.len() as u32 + 12), &[1]);
    // One text of 256 MiB, of which nothing is seen.
    let header = npy(&format!("'<U{}'", size / 4), "(1,)", &[]);
    let (deflated, sum) = deflate(&[&header], size);
    check("wide_text.npz", &zip("a.npy", &deflated, sum, header.len() as u32 + size as u32), &[1]);
}

#[test]
fn nesting_is_bounded() {
    let nested = |open: &str, close: &str, depth| open.repeat(depth) + &close.repeat(depth);
    check("objects.safetensors", &safetensors(&nested("{\"a\":", "}", 100_000), &[]), &[1]);
    let header = format!(
        "{{\"a\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":{}}}}}",
        nested("[", "]", 100_000)
    );
    check("unknown_field.safetensors", &safetensors(&header, &[0; 4]), &[1]);
    for (open, close) in [("[", "]"), ("(", ")"), ("-", "")] {
        let shape = nested(open, close, 9000);
        check("brackets.npy", &npy("'<f4'", &shape, &[0; 4]), &[1]);
        check("descr.npy", &npy(&shape, "(1,)", &[0; 4]), &[1]);
    }
    let fields: Vec<String> = (0..5000).map(|field| format!("('f{field}', '<f4')")).collect();
    let header = format!("{{'descr': [{}], 'fortran_order': False, 'shape': (1,), }}\n", fields.join(", "));
    let file =
        [b"\x93NUMPY\x02\x00", &(header.len() as u32).to_le_bytes()[..], header.as_bytes(), &vec![0; 20_000]].concat();
    check("fields.npy", &file, &[1]);
    // Groups have been out of use for longer than ONNX exists.
    check("groups.pb", &[0x9b, 0x06].repeat(50_000), &[1]);
}

#[test]
fn many_of_anything_take_time_in_proportion() {
    let entry = |name: &str, at: u64| {
        format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[{at},{}]}}", at + 4)
    };
    let entries = |count: u64, name: &dyn Fn(u64) -> String, step: u64| -> String {
        let entries: Vec<String> = (0..count).map(|index| entry(&name(index), index * step)).collect();
        format!("{{{}}}", entries.join(","))
    };
    let data = vec![7; 80_000];
    check("tensors.safetensors", &safetensors(&entries(20_000, &|index| format!("t{index}"), 4), &data), &[0]);
    check("same_name.safetensors", &safetensors(&entries(20_000, &|_| "t".to_owned(), 4), &data), &[1]);
    check("same_bytes.safetensors", &safetensors(&entries(20_000, &|index| format!("t{index}"), 0), &data[..4]), &[1]);
    let shape = vec!["1"; 100_000].join(",");
    let header = format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{shape}],\"data_offsets\":[0,4]}}}}");
    check("dimensions.safetensors", &safetensors(&header, &[0; 4]), &[0, 1]);
    check("spaces.npy", &npy("'<f4'", &format!("(3,{})", " ".repeat(60_000)), &[0; 12]), &[0, 1]);
    let name = "n".repeat(1_000_000);
    let header = format!("{{\"{name}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}}}");
    check("name.safetensors", &safetensors(&header, &[0; 4]), &[0, 1]);
    let tail = b"\x10\x01\x4a\x04\0\0\0\0"; // FLOAT, raw_data
    check("dimensions.pb", &[[0x08, 0x01].repeat(10_000), tail.to_vec()].concat(), &[0, 1]);
    let (pair, doc) = ([0x82, 0x01, 0], [0x62, 1, b'd']);
    let head = [0x08, 0x01];
    check("docs.pb", &[&head[..], &pair.repeat(60_000), &doc.repeat(1_000_000), tail].concat(), &[0, 1]);
}

#[test]
fn what_is_short_in_a_file_and_long_in_memory_is_bounded() {
    // Numbers of two bytes in a header of a MiB, which is compressed to a KiB.
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}\n", "0,".repeat(520_000));
    let file = [b"\x93NUMPY\x02\x00", &(header.len() as u32).to_le_bytes()[..], header.as_bytes()].concat();
    assert!(header.len() < 1 << 20);
    let (deflated, sum) = deflate(&[&file], 0);
    let bench = Bench::new();
    bench.write("shape.npz", &zip("a.npy", &deflated, sum, file.len() as u32));
    let outcome = bench.run("cast shape.npz --to float16");
    outcome.expect(1, "", "tcast: error: shape.npz: tensor 'a': malformed header: more than 16384 values\n");
    // The name of a type with a million zeros in it, which every member would keep.
    let header = |code: &str| {
        let header = format!("{{'descr': {code}, 'fortran_order': False, 'shape': (0,), }}\n");
        [b"\x93NUMPY\x02\x00", &(header.len() as u32).to_le_bytes()[..], header.as_bytes()].concat()
    };
    let zeros = "0".repeat(1_000_000);
    for code in [format!("'|V{zeros}1'"), format!("'<U{zeros}1'"), format!("[('int4', '|V{zeros}1')]")] {
        check("code.npy", &header(&code), &[1]);
    }
    // Pairs that say nothing, of external data and of metadata.
    check("external.pb", &[0x6a, 0].repeat(5_000_000), &[1]);
    check("metadata.pb", &[0x82, 0x01, 0].repeat(5_000_000), &[1]);
}

/// As JSON values, each tensor of a report would take kilobytes, and so would each name in the metadata of an index.
#[cfg(target_os = "linux")]
#[test]
fn reports_and_indexes_take_memory_in_proportion_to_their_text() {
    let bench = Bench::new();
    let tensor = |at: u32| format!("\"t{at}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let header = format!("{{{}}}", (0..100_000).map(tensor).collect::<Vec<_>>().join(","));
    bench.write("many.safetensors", &safetensors(&header, &[]));
    let outcome = bench.run_within(512, "cast many.safetensors --to f16 -o out.safetensors -q --json --hash");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    assert_eq!(outcome.stdout.matches("\"sha256_out\"").count(), 100_000);
    let members: Vec<String> = (0..200_000).map(|at| format!("\"m{at}\":[{{}}]")).collect();
    let index = format!("{{\"metadata\":{{{}}},\"weight_map\":{{\"t0\":\"many.safetensors\"}}}}", members.join(","));
    bench.write("model.safetensors.index.json", index.as_bytes());
    let error = "tcast: error: ./model.safetensors.index.json: the index has metadata of 2888891 bytes; at most 1048576 are read\n  \
                 download the index again, or, to convert all .safetensors files, move the index out of the folder: \
                 mv -n './model.safetensors.index.json' './..'\n";
    bench.run_within(512, "inspect .").expect(1, "", error);
}

/// Of a config, several copies are held.
#[test]
fn a_config_that_is_longer_than_any_is_refused_before_it_is_read() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/model.safetensors", &safetensors("{}", &[]));
    std::fs::File::create(bench.path("m/config.json")).unwrap().set_len(1 << 40).unwrap();
    let error = "tcast: error: m/config.json: has 1099511627776 bytes; at most 33554432 are read\n  \
                 download it again: the config of a model has a few MiB at most\n";
    bench.run("cast m --to f16 -o out").expect(1, "", error);
}

/// A listing is printed row by row, and the names of shards are not held for each tensor again.
#[cfg(target_os = "linux")]
#[test]
fn a_listing_and_an_index_of_short_entries_take_a_few_times_their_length() {
    let bench = Bench::new();
    let tensor = |at: u32| format!("\"t{at}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let header = format!("{{{}}}", (0..200_000).map(tensor).collect::<Vec<_>>().join(","));
    bench.write("many.safetensors", &safetensors(&header, &[]));
    let outcome = bench.run_within(256, "inspect many.safetensors --json");
    let listing: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    assert_eq!(listing["tensors"].as_array().unwrap().len(), 200_000);
    let entries: Vec<String> = (0..1_000_000).map(|at| format!("\"{at:x}\":\"a\"")).collect();
    let index = format!("{{\"weight_map\":{{{}}}}}", entries.join(","));
    bench.write("model.safetensors.index.json", index.as_bytes());
    let error = "tcast: error: ./model.safetensors.index.json: names the shard 'a', which is no .safetensors file\n  \
                 download the folder in the safetensors format\n";
    bench.run_within(256, "inspect .").expect(1, "", error);
}

/// The zeros of the names and texts take no space on the disk. The address space has room for the file, and 256 MiB.
#[cfg(target_os = "linux")]
#[test]
fn names_and_texts_of_a_gibibyte_are_refused_before_they_are_copied() {
    const LONG: usize = 1 << 30;
    let varint = |mut number: usize| {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        [bytes, vec![number as u8]].concat()
    };
    // The start of a field whose other bytes are zeros.
    let long = |number: u8, start: &[u8]| [&[number << 3 | 2][..], &varint(start.len() + LONG), start].concat();
    let element: &[u8] = &[0x08, 1, 0x10, 1, 0x4a, 4, 0, 0, 0, 0]; // dims, FLOAT, raw_data
    let tensor = [element, &long(8, b"")].concat();
    let value = [&field(1, b"k")[..], &long(2, b"")].concat();
    let pair = [element, &[0x82, 0x01], &varint(value.len() + LONG), &value].concat();
    let opset = [&[0x08, 8][..], &field(8, &[0x10, 16])].concat();
    let gguf = |counts: [u64; 2], rest: &[u8]| {
        let counts = counts.map(u64::to_le_bytes).concat();
        [&b"GGUF\x03\0\0\0"[..], &counts, rest, &(LONG as u64).to_le_bytes()].concat()
    };
    let texts = "names and metadata take more than 32 MiB, the most that tcast reads";
    for (name, head, error) in [
        ("key.gguf", gguf([0, 1], b""), "the name of a key has 1073741824 bytes; at most 65535 are read"),
        ("tensor.gguf", gguf([1, 0], b""), "the name of a tensor has 1073741824 bytes; at most 65535 are read"),
        ("name.pb", tensor.clone(), "its name has 1073741824 bytes; at most 1048576 are read"),
        ("doc.pb", [element, &long(12, b"")].concat(), texts),
        ("pair.pb", pair, texts),
        (
            "name.onnx",
            [&opset[..], &long(7, &long(5, &tensor))].concat(),
            "the name of a value has 1073741824 bytes; at most 1048576 are read",
        ),
        ("doc.onnx", [&model(&[])[..], &long(6, b"")].concat(), texts),
        ("producer.onnx", [&model(&[])[..], &long(2, b"")].concat(), texts),
    ] {
        let bench = Bench::new();
        bench.write(name, &head);
        let file = std::fs::File::options().write(true).open(bench.path(name)).unwrap();
        // Behind the text, a GGUF still needs the other bytes of its key or tensor.
        let more = if name.ends_with("gguf") { 64 } else { 0 };
        file.set_len((head.len() + LONG + more) as u64).unwrap();
        for command in ["inspect", "cast --to f16 -o out.npz"] {
            let outcome = bench.run_within((LONG >> 20) as u32 + 256, &format!("{command} {name}"));
            outcome.expect(1, "", &format!("tcast: error: {name}: {error}\n"));
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_kept_texts_of_a_header_are_bounded_and_those_of_a_list_are_not_kept() {
    let bench = Bench::new();
    let long = "t".repeat(1 << 20);
    let all = (0..80).fold(Gguf::of("llama"), |file, at| file.text(&format!("key.{at}"), &long));
    bench.write("texts.gguf", &all.floats("w", &[1], [1.0]).bytes());
    let error = "tcast: error: texts.gguf: key 'key.31': the names and texts of the header take more than 32 MiB, the most that tcast reads\n";
    bench.run_within(390, "inspect texts.gguf").expect(1, "", error);
    let token = "t".repeat(1000);
    let list = Gguf::of("llama").texts("tokenizer.ggml.tokens", &vec![&*token; 80_000]);
    bench.write("list.gguf", &list.floats("w", &[1], [1.0]).bytes());
    let outcome = bench.run_within(390, "inspect list.gguf");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    assert!(outcome.stdout.contains("80000 texts"), "{outcome:?}");
}

/// Configs name modules, and each module has as many enclosing modules as its name has dots.
#[cfg(target_os = "linux")]
#[test]
fn a_name_of_many_parts_takes_time_in_proportion_to_its_length() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("m")).unwrap();
    let name = "a.".repeat(1 << 20);
    let header = format!("{{\"{name}q.weight\":{{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}}}");
    bench.write("m/model.safetensors", &safetensors(&header, &[0; 16]));
    let block = r#"{"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}"#;
    bench.write("m/config.json", format!("{{\"quantization_config\": {block}}}").as_bytes());
    let outcome = bench.run_within(256, "inspect m");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    std::fs::create_dir(bench.path("plain")).unwrap();
    std::fs::copy(bench.path("m/model.safetensors"), bench.path("plain/model.safetensors")).unwrap();
    bench.run_within(256, "quantize plain --scheme fp8 -o out -q").expect(0, "", "");
}

/// The lengths that are not zero multiply to more than 64 bits hold: no library reads what would be written.
#[test]
fn an_empty_tensor_of_too_long_dimensions_is_refused() {
    let long = (1_u64 << 63) - 1;
    let header = format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{long},7,0],\"data_offsets\":[0,0]}}}}");
    check("empty.safetensors", &safetensors(&header, &[]), &[1]);
    check("empty.npy", &npy("'<f4'", &format!("({long}, 7, 0)"), &[]), &[1]);
    let dimension = [&[0x08][..], &[0xff; 8], &[0x7f]].concat();
    check("empty.pb", &[&dimension[..], &[0x08, 7, 0x08, 0, 0x10, 1, 0x4a, 0]].concat(), &[1]);
    check("empty_and_short.npy", &npy("'<f4'", "(7, 0, 7)", &[]), &[0]);
}

#[test]
fn one_long_text_does_not_make_all_of_them_long() {
    // Side by side in numpy's form, these would take 48 GB.
    let long = [&[0x32, 0xe0, 0xd4, 0x03][..], &vec![b'7'; 60_000]].concat();
    let texts = [[0x32, 0x01, b'1'].repeat(199_999), long].concat();
    let head = [0x08, 0xc0, 0x9a, 0x0c, 0x10, 0x08];
    check("texts.pb", &[&head[..], &texts].concat(), &[0, 1]);
}

#[test]
fn a_text_as_wide_as_the_file_could_make_it_takes_no_memory() {
    let size = 64_u64 << 20;
    for descr in [format!("'<U{}'", size / 4), format!("'|S{size}'")] {
        let header = npy(&descr, "(1,)", &[]);
        let (deflated, sum) = deflate(&[&header], size);
        let file = zip("a.npy", &deflated, sum, header.len() as u32 + size as u32);
        let bench = Bench::new();
        bench.write("wide.npz", &file);
        let outcome = bench.run("cast wide.npz --to string -o out.npz");
        assert!(outcome.stderr.contains("at most 16777216 are read and written"), "{outcome:?}");
    }
    check("dimensions.pb", &[0x08, 1].repeat(5_000_000), &[1]);
}
