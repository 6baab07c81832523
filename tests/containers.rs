//! Any container becomes any other: every type is stored as docs/types.md says, and read back bit for bit.

mod common;

use common::{Bench, fixture};
use std::path::Path;
use tcast::container::{self, CONTAINERS, Elements, Form, NewMetadata, NewTensor, Reader, WrittenFiles, WrittenTensor};
use tcast::dtype::{Class, Dtype};
use tcast::kernel::{Kernel, Storage};

/// An ONNX tensor, by hand; field tags are numbers times 8 plus the kind.
fn onnx(dtype: Dtype, shape: &[u8], raw: &[u8]) -> Vec<u8> {
    let mut file: Vec<u8> = shape.iter().flat_map(|&length| [1 << 3, length]).collect();
    file.extend_from_slice(&[2 << 3, dtype.onnx_number().unwrap(), 8 << 3 | 2, 1, b'x', 9 << 3 | 2]);
    file.extend_from_slice(&[raw.len() as u8 | 0x80, (raw.len() >> 7) as u8]);
    file.extend_from_slice(raw);
    file
}

/// The elements of the only tensor of a file, packed.
fn elements(bench: &Bench, file: &str, dtype: Dtype) -> (Vec<u64>, Vec<u8>) {
    let input = container::open(&bench.path(file)).unwrap_or_else(|error| panic!("{error}"));
    let [tensor] = &input.contents.tensors[..] else { panic!("{file}: one tensor") };
    let Elements::Typed(Form::Numbers(storage)) = tensor.elements else { panic!("{file}: numbers") };
    assert_eq!(storage.dtype, dtype, "{file}");
    let mut reader = Reader::open_row_major(tensor, &input.files).unwrap();
    let mut bytes = vec![0; storage.bytes(tensor.count).unwrap() as usize];
    reader.fill(&mut bytes).unwrap();
    reader.finish().unwrap();
    let target = Storage::packed(dtype);
    let mut packed = vec![0; target.bytes(tensor.count).unwrap() as usize];
    Kernel::copy(storage, target).unwrap().run(&bytes, &mut packed, tensor.count as usize).unwrap();
    (tensor.shape.to_vec(), packed)
}

#[test]
fn every_type_goes_through_every_pair_of_containers() {
    let mut pairs = 0;
    for dtype in Dtype::all().filter(|dtype| dtype.onnx_number().is_some() && dtype.class() != Class::String) {
        // Odd lengths, so that packed elements end inside a byte.
        let shape = [3, 7];
        let wanted: Vec<u8> = (0..dtype.packed_bytes(21).unwrap()).map(|byte| (byte * 37 + 11) as u8).collect();
        let spare = dtype.packed_bytes(21).unwrap() * 8 - 21 * u64::from(dtype.bits());
        let mut wanted = wanted;
        *wanted.last_mut().unwrap() &= 0xff >> spare;
        if dtype == Dtype::Bool {
            for byte in &mut wanted {
                *byte &= 1;
            }
        }
        let bench = Bench::new();
        bench.write("in.pb", &onnx(dtype, &shape, &wanted));
        let written = CONTAINERS
            .iter()
            .map(|container| container.format_info())
            .filter(|format| format.writing == WrittenFiles::Any);
        let extensions: Vec<&str> = written.map(|format| format.extension).collect();
        for first in &extensions {
            bench.run(&format!("cast in.pb --to int8 --exclude * -o 1.{first} -q -f")).expect(0, "", "");
            for second in &extensions {
                bench.run(&format!("cast 1.{first} --to int8 --exclude * -o 2.{second} -q -f")).expect(0, "", "");
                let found = elements(&bench, &format!("2.{second}"), dtype);
                assert_eq!(found, (vec![3, 7], wanted.clone()), "{dtype} in .{first} in .{second}");
                pairs += 1;
            }
        }
    }
    assert!(pairs >= 27 * 16, "{pairs}");
}

#[test]
fn what_a_container_cannot_hold_is_refused_by_name_before_any_work() {
    let bench = Bench::new();
    let texts = common::npy("'<U2'", "(2,)", &[b'1', 0, 0, 0, 0, 0, 0, 0, b'2', 0, 0, 0, 0, 0, 0, 0]);
    bench.write("text.npy", &texts);
    bench.write("e3m4.npy", &common::npy("'float8_e3m4'", "(2,)", &[1, 2]));
    let mut refused = 0;
    for (file, dtype) in [("text.npy", Dtype::String), ("e3m4.npy", Dtype::Float8E3M4)] {
        for container in CONTAINERS.iter().filter(|container| container.format_info().writing == WrittenFiles::Any) {
            let out = format!("out.{}", container.format_info().extension);
            let outcome = bench.run(&format!("cast {file} --to int8 --exclude * -o {out} -q"));
            if container.stores(dtype).is_some() {
                outcome.expect(0, "", "");
                std::fs::remove_file(bench.path(&out)).unwrap();
            } else {
                assert_eq!(outcome.code, Some(1));
                let extension = container.format_info().extension;
                let wanted =
                    format!("tcast: error: {file}: .{extension} cannot hold {dtype}\n  name an output that ends in ");
                assert!(outcome.stderr.starts_with(&wanted), "{}", outcome.stderr);
                refused += 1;
            }
            assert_eq!(bench.files(), ["e3m4.npy", "text.npy"]);
        }
    }
    assert!(refused >= 2, "{refused}");
}

/// The header parser of the safetensors crate loses the order and accepts a name twice, so tcast has one of its own.
#[test]
fn safetensors_headers_are_read_as_the_safetensors_crate_reads_them() {
    for dtype in Dtype::all() {
        let Some(name) = dtype.safetensors_name() else { continue };
        let theirs: safetensors::Dtype = serde_json::from_value(name.into()).unwrap();
        assert_eq!((theirs.to_string(), theirs.bitsize()), (name.to_owned(), dtype.bits() as usize), "{dtype}");
    }
    let (mut read, mut refused) = (0, 0);
    let mut folders = vec![fixture("")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "safetensors") {
                continue;
            }
            let file = std::fs::read(&path).unwrap();
            let (Ok(theirs), ours) = (safetensors::SafeTensors::deserialize(&file), container::open(&path)) else {
                refused += 1;
                continue;
            };
            let Ok(ours) = ours else { continue };
            let mut theirs: Vec<_> = theirs.tensors();
            theirs.sort_by(|a, b| a.0.cmp(&b.0));
            let mut tensors: Vec<_> = ours.contents.tensors.iter().collect();
            tensors.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(tensors.len(), theirs.len(), "{}", path.display());
            for (ours_of, (name, view)) in tensors.into_iter().zip(theirs) {
                let shape: Vec<u64> = view.shape().iter().map(|length| *length as u64).collect();
                assert_eq!((&*ours_of.name, &*ours_of.shape), (&*name, &*shape), "{}", path.display());
                assert_eq!(*ours_of.stored, view.dtype().to_string(), "{}: {name}", path.display());
                let mut bytes = vec![0; view.data().len()];
                let mut reader = Reader::open(ours_of, &ours.files).unwrap();
                reader.fill(&mut bytes).unwrap();
                reader.finish().unwrap();
                assert!(bytes == view.data(), "{}: {name}", path.display());
            }
            read += 1;
        }
    }
    assert!(read > 10 && refused > 10, "{read} read, {refused} refused");
}

#[test]
fn each_wrong_part_of_a_finished_header_is_noticed() {
    let tensors = vec![NewTensor {
        name: "name".into(),
        dtype: Dtype::Float32,
        shape: &[3, 7],
        count: 21,
        fortran_order: false,
        text: None,
        opaque: None,
        blocks: None,
    }];
    let changes = [
        ("safetensors", "name", "nome"),
        ("safetensors", "F32", "I32"),
        ("safetensors", "[3,7]", "[7,3]"),
        ("safetensors", "[0,84]", "[4,84]"),
        ("safetensors", "{", "["),
        ("npy", "<f4", ">f4"),
        ("npy", "(3, 7)", "(7, 3)"),
        ("npy", "False", "True "),
        ("npy", "NUMPY", "NUMPI"),
    ];
    for (extension, old, new) in changes {
        let format = container::by_extension(Path::new("x").with_extension(extension).as_path()).unwrap();
        let layout = format.lay_out(&tensors, &NewMetadata::default(), 1).unwrap();
        let mut file = vec![0; layout.len as usize];
        for (offset, literal) in &layout.literals {
            file[*offset as usize..][..literal.len()].copy_from_slice(literal);
        }
        let check = |file: &[u8]| {
            let range = layout.len - 84..layout.len;
            let mut written =
                tensors.iter().map(|tensor| WrittenTensor { tensor: tensor.clone(), range: range.clone() });
            format.reread(file, &mut written)
        };
        check(&file).unwrap();
        let at = file.windows(old.len()).position(|bytes| bytes == old.as_bytes()).unwrap();
        file[at..at + new.len()].copy_from_slice(new.as_bytes());
        assert!(check(&file).is_err(), "{extension}: {old} -> {new}");
    }
}
