//! Files by the libraries whose formats these are: each is read as what it is, or refused.

mod common;

use common::promises::record;
use common::{Bench, check_hostile, fixture, npy_data};
use sha2::{Digest, Sha256};
use std::fs;
use tcast::container::{self, Elements, Form, Reader, Tensor};
use tcast::dtype::Dtype;
use tcast::io::map::MappedFile;
use tcast::kernel::{Kernel, Storage, Texts};

fn table(path: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(fixture(path)).unwrap();
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The elements in row-major order: numbers little endian, one in a byte at the least, unsigned; texts each behind
/// a length of 8 bytes.
fn canonical(tensor: &Tensor, form: Form, files: &[MappedFile]) -> Vec<u8> {
    let mut reader = Reader::open_row_major(tensor, files).unwrap();
    let mut elements = Vec::new();
    match form {
        Form::Texts(form) => {
            let (mut texts, mut scratch) = (Texts::default(), Vec::new());
            for _ in 0..tensor.count {
                form.read(&mut |buffer| reader.fill(buffer), &mut scratch, &mut texts).unwrap();
            }
            for text in texts.iter() {
                elements.extend_from_slice(&(text.len() as u64).to_le_bytes());
                elements.extend_from_slice(text);
            }
        }
        Form::Numbers(storage) => {
            let mut bytes = vec![0; storage.bytes(tensor.count).unwrap() as usize];
            reader.fill(&mut bytes).unwrap();
            let target = Storage::per_byte(storage.dtype);
            elements.resize(target.bytes(tensor.count).unwrap() as usize, 0);
            Kernel::copy(storage, target).unwrap().run(&bytes, &mut elements, tensor.count as usize).unwrap();
            if storage.dtype.bits() < 8 {
                for byte in &mut elements {
                    *byte &= (1 << storage.dtype.bits()) - 1;
                }
            }
        }
    }
    reader.finish().unwrap();
    elements
}

#[test]
fn every_file_of_the_corpus_is_read_as_what_it_is() {
    let mut checked = 0;
    for row in table("corpus/EXPECT.tsv") {
        let [path, _, name, dtype, shape, _, _, count, digest, note] = row.as_slice() else { panic!("{row:?}") };
        let input = match container::open(&fixture("corpus").join(path)) {
            Ok(input) => input,
            Err(error) => {
                let is_refused = note.contains("may refuse, naming the method");
                assert!(is_refused && error.to_string().contains("is compressed with"), "{error}");
                continue;
            }
        };
        if dtype.is_empty() {
            assert!(input.contents.tensors.is_empty(), "{path}");
            continue;
        }
        // The names are JSON-escaped in the table where they would break its lines.
        let name = name.replace("\\n", "\n").replace("\\0", "\0");
        let tensor = input.contents.tensors.iter().find(|tensor| *tensor.name == *name);
        let tensor = tensor.unwrap_or_else(|| panic!("{path}: no tensor {name}"));
        let expected_shape: Vec<u64> =
            if shape == "scalar" { vec![] } else { shape.split('x').map(|length| length.parse().unwrap()).collect() };
        assert_eq!(*tensor.shape, expected_shape, "{path} {name}");
        assert_eq!(tensor.count.to_string(), *count, "{path} {name}");
        let dtype: Dtype = dtype.parse().unwrap_or_else(|error| panic!("{error}"));
        let form = match tensor.elements {
            Elements::Typed(form) => form,
            Elements::Opaque | Elements::Blocks(_) => panic!("{path} {name} is not supported"),
            Elements::Untyped(_) => Form::Numbers(Storage::per_byte(dtype)), // `<V1`: the file does not say
        };
        assert_eq!(form.dtype(), dtype, "{path} {name}");
        if !digest.is_empty() {
            let elements = canonical(tensor, form, &input.files);
            assert_eq!(hex(&Sha256::digest(&elements)), *digest, "{path} {name}");
            checked += 1;
        }
    }
    assert!(checked > 420, "{checked}");
}

#[test]
fn every_malformed_file_is_refused_with_one_error_and_nothing_is_left() {
    let rows = table("bad/MANIFEST.tsv");
    assert!(rows.len() > 280, "{}", rows.len());
    let mut tried = 0;
    for row in rows {
        let file = fixture("bad").join(&row[0]);
        let allowed: &[i32] = match row[1].as_str() {
            "ACCEPT" => &[0],
            "EITHER" => &[0, 1],
            _ => &[1],
        };
        check_hostile(&file, allowed, &row[0]);
        tried += 2;
    }
    record(
        "every_malformed_file_is_refused_with_one_error_and_nothing_is_left",
        &format!("{tried} casts of bad files"),
    );
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
            opaque: None,
            blocks: None,
            name: "".into(),
            dtype: dtype.parse().unwrap_or_else(|error| panic!("{error}")),
            count: 0, // the header does not depend on it, and some of these have more elements than disks
            shape: &shape,
            fortran_order: fortran_order == "true",
            text: None,
        };
        let layout = npy.lay_out(&vec![tensor], &container::NewMetadata::default(), 1).unwrap();
        let written = hex(&layout.literals[0].1);
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
}

#[test]
fn a_column_major_array_is_transposed_where_the_container_wants_it() {
    let bench = Bench::with("fortran_f32.npy", "x.npy");
    let columns: Vec<f32> =
        npy_data(&bench.read("x.npy")).chunks(4).map(|data| f32::from_le_bytes(*data.first_chunk().unwrap())).collect();
    let rows: Vec<f32> = (0..35).map(|index| columns[index / 7 + index % 7 * 5]).collect();
    for extension in ["npz", "safetensors", "pb"] {
        bench.run(&format!("cast x.npy --to float32 -o y.{extension} -q")).expect(0, "", "");
        bench.run(&format!("cast y.{extension} --to float32 -o z.npy -q -f")).expect(0, "", "");
        let file = bench.read("z.npy");
        let found: Vec<f32> =
            npy_data(&file).chunks(4).map(|data| f32::from_le_bytes(*data.first_chunk().unwrap())).collect();
        let is_fortran = extension == "npz";
        assert_eq!(found, if is_fortran { &columns[..] } else { &rows }, "{extension}");
        assert_eq!(String::from_utf8_lossy(&file[..128]).contains("'fortran_order': True"), is_fortran);
    }
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
