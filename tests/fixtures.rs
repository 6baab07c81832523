//! Files by the libraries whose formats these are: each is read as what it is, or refused.

mod common;

use common::{Bench, fixture, npy_data};
use sha2::{Digest, Sha256};
use std::fs;
use tcast::container::{self, Elements};
use tcast::kernel::{Kernel, Storage};

fn table(path: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(fixture(path)).unwrap();
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The elements in order, little endian, one in a byte at the least, unsigned.
fn canonical(storage: Storage, bytes: &[u8], count: usize) -> Vec<u8> {
    let target = Storage::per_byte(storage.dtype);
    let mut elements = vec![0; target.bytes(count as u64).unwrap() as usize];
    Kernel::copy(storage, target).unwrap().run(bytes, &mut elements, count).unwrap();
    if storage.dtype.bits() < 8 {
        for byte in &mut elements {
            *byte &= (1 << storage.dtype.bits()) - 1;
        }
    }
    elements
}

#[test]
fn every_file_of_the_corpus_is_read_as_what_it_is() {
    let mut checked = 0;
    for row in table("corpus/EXPECT.tsv") {
        let [path, _, name, dtype, shape, order, _, count, digest, ..] = row.as_slice() else { panic!("{row:?}") };
        if dtype.is_empty() {
            let file = fixture("corpus").join(path);
            let (_, contents) = container::read(&file, &fs::read(&file).unwrap()).unwrap();
            assert!(contents.tensors.is_empty(), "{path}");
            continue;
        }
        let file = fixture("corpus").join(path);
        let bytes = fs::read(&file).unwrap();
        let (_, contents) = container::read(&file, &bytes).unwrap_or_else(|error| panic!("{error}"));
        // The names are JSON-escaped in the table where they would break its lines.
        let unescaped = serde_json::from_str(name).unwrap_or_else(|_| name.clone());
        let tensor = contents.tensors.iter().find(|tensor| tensor.name == *name || tensor.name == unescaped);
        let tensor = tensor.unwrap_or_else(|| panic!("{path}: no tensor {name}"));
        let expected_shape: Vec<u64> =
            if shape == "scalar" { vec![] } else { shape.split('x').map(|length| length.parse().unwrap()).collect() };
        assert_eq!(tensor.shape, expected_shape, "{path} {name}");
        assert_eq!(tensor.count.to_string(), *count, "{path} {name}");
        let Elements::Typed(storage) = tensor.elements else { continue }; // `<V1`: the file does not say
        assert_eq!(storage.dtype, dtype.parse().unwrap(), "{path} {name}");
        if order != "F" {
            let elements = canonical(storage, &bytes[tensor.bytes.clone()], tensor.count as usize);
            let found = hex(&Sha256::digest(&elements));
            assert_eq!(found, *digest, "{path} {name}");
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn every_malformed_file_is_refused_with_one_error_and_nothing_is_left() {
    let bench = Bench::new();
    let rows = table("bad/MANIFEST.tsv");
    assert!(rows.len() > 100);
    for row in rows {
        let file = fixture("bad").join(&row[0]);
        let outcome = bench.run_args(&["cast", file.to_str().unwrap(), "--to", "float32", "-o", "out.safetensors"]);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{}: {}", row[0], row[2]);
        assert!(outcome.stderr.starts_with("tcast: error: "), "{}: {}", row[0], outcome.stderr);
        assert_eq!(bench.files(), [""; 0], "{}", row[0]);
    }
}

#[test]
fn npy_headers_are_numpys_byte_for_byte() {
    let npy = container::by_extension("x.npy".as_ref()).unwrap();
    let mut checked = 0;
    for row in table("npy_headers.tsv") {
        let [dtype, fortran_order, shape, _, header] = row.as_slice() else { panic!("{row:?}") };
        let shape: Vec<u64> =
            if shape == "scalar" { vec![] } else { shape.split('x').map(|length| length.parse().unwrap()).collect() };
        let tensor = container::NewTensor {
            name: String::new(),
            dtype: dtype.parse().unwrap_or_else(|error| panic!("{error}")),
            count: 0, // the header does not depend on it, and some of these have more elements than disks
            shape,
            fortran_order: fortran_order == "true",
        };
        let layout = npy.lay_out(&[tensor], None).unwrap();
        let written = hex(&layout.header);
        assert_eq!(written, *header, "{row:?}");
        checked += 1;
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn casts_are_those_of_the_libraries_where_these_are_right() {
    let mut checked = 0;
    for (folder, flags) in [("casts", ""), ("casts/unsaturated", "--saturate=false")] {
        for entry in fs::read_dir(fixture(folder)).unwrap() {
            let expected = entry.unwrap().path();
            let file_name = expected.file_name().unwrap().to_str().unwrap().to_owned();
            let [name, dtype, "npy"] = file_name.split('.').collect::<Vec<_>>()[..] else { continue };
            if dtype == "in" {
                continue;
            }
            let bench = Bench::with(&format!("{folder}/{name}.in.npy"), "in.npy");
            bench.run(&format!("cast in.npy --to {dtype} {flags} -o out.npy -q")).expect(0, "", "");
            let (found, expected) = (bench.read("out.npy"), fs::read(&expected).unwrap());
            let different =
                npy_data(&found).iter().zip(npy_data(&expected)).position(|(found, expected)| found != expected);
            assert_eq!(different, None, "{folder}/{file_name}: the first byte of data that differs");
            assert!(found == expected, "{folder}/{file_name}: header or length");
            checked += 1;
        }
    }
    assert!(checked > 40, "{checked}");
}

#[test]
fn files_in_other_orders_hold_the_same_values() {
    for name in ["big_endian_f32.npy", "fortran_f32.npy"] {
        let bench = Bench::with(name, "x.npy");
        bench.run("cast x.npy --to float64 -o out.npy -q").expect(0, "", "");
        let bytes = bench.read("out.npy");
        let before = bench.read("x.npy");
        let read = |data: &[u8]| -> f32 {
            let bytes = *data.first_chunk().unwrap();
            if name.starts_with("big") { f32::from_be_bytes(bytes) } else { f32::from_le_bytes(bytes) }
        };
        let expected: Vec<f64> = npy_data(&before).chunks(4).map(|data| f64::from(read(data))).collect();
        let found: Vec<f64> =
            npy_data(&bytes).chunks(8).map(|data| f64::from_le_bytes(*data.first_chunk().unwrap())).collect();
        assert_eq!(found, expected, "{name}");
        let header = String::from_utf8_lossy(&bytes[..128]).into_owned();
        assert_eq!(header.contains("'fortran_order': True"), name.starts_with("fortran"), "{header}");
    }
    let bench = Bench::with("fortran_f32.npy", "x.npy");
    let outcome = bench.run("cast x.npy --to float64 -o out.safetensors");
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("is in Fortran order, and safetensors holds row-major tensors only"));
}

#[test]
fn an_independent_reader_agrees_with_what_is_written() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    bench.run("cast x.npy --to float64 -o out.npy -q").expect(0, "", "");
    let read = |name: &str| npyz::NpyFile::new(std::io::Cursor::new(bench.read(name))).unwrap();
    assert_eq!(read("out.npy").shape(), read("x.npy").shape());
    let values: Vec<f64> = read("x.npy").into_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
    assert_eq!(read("out.npy").into_vec::<f64>().unwrap(), values);
}
