//! `tcast diff`, as its users see it.

use crate::common::{Bench, fixture, npy, npy_data, npy_f32, safetensors};
use serde_json::{Value, json};
use std::fs;

fn json(bench: &Bench, line: &str, code: i32) -> Value {
    let outcome = bench.run(&format!("diff {line} --json"));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(code), ""), "{line}: {}", outcome.stdout);
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// A file of float32 tensors.
fn file_of(tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let (count, end) = (values.len(), data.len());
        entries.push(format!(r#""{name}":{{"dtype":"F32","shape":[{count}],"data_offsets":[{start},{end}]}}"#));
    }
    safetensors(&format!("{{{}}}", entries.join(",")), &data)
}

/// The .npy file of elements that already are bytes.
fn npy_of<const N: usize>(descr: &str, shape: &str, elements: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    npy(&format!("'{descr}'"), shape, &elements.into_iter().flatten().collect::<Vec<u8>>())
}

#[test]
fn equal_files_are_equal() {
    let bench = Bench::with("model.safetensors", "a.safetensors");
    fs::copy(bench.path("a.safetensors"), bench.path("b.safetensors")).unwrap();
    bench.write("x.npy", &npy_f32(&[f32::NAN, -0.0, 1.0]));
    bench.write("empty.npy", &npy_f32(&[]));
    bench.run("diff a.safetensors b.safetensors").expect(0, "12 tensors are equal\n", "");
    bench.run("diff a.safetensors b.safetensors -q").expect(0, "", "");
    bench.run("diff x.npy x.npy").expect(0, "1 tensor is equal\n", "");
    bench.run("diff empty.npy empty.npy").expect(0, "1 tensor is equal\n", "");
    bench.run("diff a.safetensors b.safetensors --include *norm*").expect(0, "2 tensors are equal\n", "");
    let report = json(&bench, "a.safetensors b.safetensors --include model.norm.weight", 0);
    let wanted = json!([{
        "name": "model.norm.weight", "status": "equal", "shape_a": [32], "shape_b": [32], "dtype_a": "float32",
        "dtype_b": "float32", "differing": 0, "first_difference": null, "figures": null,
    }]);
    assert_eq!(report["tensors"], wanted);
    assert_eq!((&report["schema"], &report["is_equal"], &report["tolerance"]), (&json!(1), &json!(true), &json!(null)));
    assert_eq!((&report["counts"]["equal"], &report["counts"]["values_differ"]), (&json!(1), &json!(0)));
}

#[test]
fn only_what_differs_is_listed() {
    let bench = Bench::new();
    let a: &[(&str, &[f32])] = &[("same", &[1.0]), ("w", &[1.0, 2.0, 4.0]), ("zero", &[0.0, 1.0]), ("s", &[1.0])];
    let b: &[(&str, &[f32])] = &[("w", &[1.0, 2.5, 3.0]), ("same", &[1.0]), ("zero", &[-0.0, 1.0]), ("s", &[1.0, 1.0])];
    bench.write("a.safetensors", &file_of(&[a, &[("old", &[7.0])]].concat()));
    bench.write("b.safetensors", &file_of(&[b, &[("new", &[7.0])]].concat()));
    bench.run("diff a.safetensors b.safetensors").expect(
        1,
        "  w     values differ  2 of 3, first at [1]: 2, 2.5; largest absolute error 1 at [2], relative 0.25, SQNR 12.25 dB\n  \
           zero  bits differ    1 of 2, first at [0]: 0 (00000000), -0 (80000000)\n  \
           s     shapes differ  float32 [1], float32 [2]\n  \
           old   only in A      float32 [1]\n  \
           new   only in B      float32 [1]\n\
         6 tensors: 1 equal, 3 differ (largest absolute error 1 in 'w'), 1 only in A, 1 only in B\n",
        "",
    );
    bench.run("diff a.safetensors b.safetensors -q").expect(1, "", "");
    let report = json(&bench, "a.safetensors b.safetensors", 1);
    let statuses = ["equal", "values_differ", "bits_differ", "shapes_differ", "only_in_a", "only_in_b"];
    for (at, status) in statuses.into_iter().enumerate() {
        assert_eq!((&report["tensors"][at]["status"], &report["counts"][status]), (&json!(status), &json!(1)));
    }
    let w = &report["tensors"][1];
    let first = json!({ "index": [1], "a": "2", "b": "2.5", "bits_a": "40000000", "bits_b": "40200000" });
    assert_eq!((&w["differing"], &w["first_difference"]), (&json!(2), &first));
    assert_eq!((&w["figures"]["max_abs_error"], &w["figures"]["max_abs_error_at"]), (&json!(1.0), &json!(2)));
    assert_eq!((&report["tensors"][4]["shape_b"], &report["tensors"][4]["dtype_b"]), (&json!(null), &json!(null)));
}

#[test]
fn a_relative_tolerance_grows_with_the_values_of_a() {
    let bench = Bench::new();
    bench.write("a.npy", &npy_f32(&[100.0, 0.0, f32::NAN, f32::INFINITY]));
    bench.write("b.npy", &npy_f32(&[101.0, 0.0, f32::NAN, f32::INFINITY]));
    bench.run("diff a.npy b.npy --rtol 0.01").expect(0, "1 tensor is equal within 0.01 of A\n", "");
    bench.run("diff b.npy a.npy --rtol 0.0099 --tolerance 1e-5").expect(
        1,
        "  b  values differ  1 of 4, first at [0]: 101, 100; largest absolute error 1 at [0], relative 0.00990099, SQNR 40.09 dB\n\
         1 tensor: 0 equal within 1e-5 + 0.0099 of A, 1 differs (largest absolute error 1 in 'b'), 0 only in A, 0 only in B\n",
        "",
    );
    let report = json(&bench, "a.npy b.npy --rtol 0.005 --tolerance 0.5", 0);
    assert_eq!((&report["rtol"], &report["tolerance"]), (&json!(0.005), &json!(0.5)));
    assert_eq!(report["tensors"][0]["status"], "within_tolerance");
    // Inf is not a number that others could be near to.
    bench.write("c.npy", &npy_f32(&[100.0, 0.0, f32::NAN, f32::MAX]));
    bench.run("diff a.npy c.npy --rtol 1 -q").expect(1, "", "");
    bench.run("diff c.npy a.npy --rtol 1 -q").expect(1, "", "");
}

#[test]
fn equal_values_of_other_types_are_within_a_tolerance_and_else_types_differ() {
    let bench = Bench::new();
    bench.write("a.npy", &npy_f32(&[1.0, 2.0]));
    bench.run("cast a.npy --to f16 -o h.npy -q").expect(0, "", "");
    bench.write("zero.npy", &npy_f32(&[1.0, 0.0]));
    bench.write("minus.npy", &npy_f32(&[1.0, -0.0]));
    bench.run("diff zero.npy minus.npy --tolerance 0").expect(0, "1 tensor is equal within 0\n", "");
    assert_eq!(json(&bench, "zero.npy minus.npy --rtol 0.1", 0)["tensors"][0]["status"], "within_tolerance");
    for tolerance in ["--tolerance 0", "--rtol 0", "--tolerance 1"] {
        assert_eq!(json(&bench, &format!("a.npy h.npy {tolerance}"), 0)["tensors"][0]["status"], "within_tolerance");
    }
    let report = json(&bench, "a.npy h.npy", 1);
    assert_eq!(
        (&report["tensors"][0]["status"], &report["tensors"][0]["differing"]),
        (&json!("types_differ"), &json!(0))
    );
    assert_eq!((&report["counts"]["types_differ"], &report["counts"]["bits_differ"]), (&json!(1), &json!(0)));
}

#[test]
fn a_tolerance_accepts_values_that_are_no_farther_apart() {
    let bench = Bench::new();
    bench.write("a.npy", &npy_f32(&[1.0, 0.0, f32::NAN, f32::INFINITY]));
    bench.write("b.npy", &npy_f32(&[1.25, -0.0, -f32::NAN, f32::INFINITY]));
    bench.write("c.npy", &npy_f32(&[1.0, 0.0, f32::NAN, f32::MAX]));
    bench.run("diff a.npy b.npy --tolerance 0.25").expect(0, "1 tensor is equal within 0.25\n", "");
    assert_eq!(json(&bench, "a.npy b.npy --tolerance 0.25", 0)["tensors"][0]["status"], "within_tolerance");
    bench.run("diff a.npy b.npy --tolerance 0.2").expect(
        1,
        "  a  values differ  1 of 4, first at [0]: 1, 1.25; largest absolute error 0.25 at [0], relative 0.25, SQNR 12.04 dB\n\
         1 tensor: 0 equal within 0.2, 1 differs (largest absolute error 0.25 in 'a'), 0 only in A, 0 only in B\n",
        "",
    );
    bench.run("diff a.npy c.npy --tolerance 1e300").expect(
        1,
        "  a  values differ  1 of 4, first at [3]: INF, 340282350000000000000000000000000000000\n\
         1 tensor: 0 equal within 1e300, 1 differs, 0 only in A, 0 only in B\n",
        "",
    );
    // Other bits are no difference of values; without a tolerance, they count.
    bench.write("d.npy", &npy_f32(&[1.0, -0.0, f32::NAN, f32::INFINITY]));
    bench.run("diff a.npy d.npy --tolerance 0").expect(0, "1 tensor is equal within 0\n", "");
    assert_eq!(bench.run("diff a.npy d.npy").code, Some(1));
    for wrong in ["-1", "NaN", "inf", "x"] {
        let outcome = bench.run(&format!("diff a.npy b.npy --tolerance {wrong}"));
        assert!(outcome.code == Some(2) && outcome.stdout.is_empty(), "{outcome:?}");
        outcome.check_message("1e-3");
    }
}

#[test]
fn values_of_different_types_are_compared_after_widening() {
    let bench = Bench::with("model.safetensors", "a.safetensors");
    // An .npz of float32 holds the bfloat16 values of the safetensors file.
    bench.run("cast a.safetensors --to f32 -o b.npz -q").expect(0, "", "");
    bench.run("diff a.safetensors b.npz --include *embed* --include *rope*").expect(
        1,
        "  model.embed_tokens.weight  values equal,  types differ: bfloat16, float32\n\
         2 tensors: 1 equal, 1 differs, 0 only in A, 0 only in B\n",
        "",
    );
    bench.run("diff a.safetensors b.npz --tolerance 0").expect(0, "12 tensors are equal within 0\n", "");
    bench.write("x.npy", &npy_f32(&[1.0, 0.1, -3.0]));
    bench.run("cast x.npy --to f16 -q -o half.pb").expect(0, "", "");
    bench.run("diff x.npy half.pb").expect(
        1,
        "  x  values differ  1 of 3, first at [1]: 0.1, 0.099975586; \
         largest absolute error 2.442e-5 at [1], relative 0.000244156, SQNR 102.25 dB (float32, float16)\n\
         1 tensor: 0 equal, 1 differs (largest absolute error 2.442e-5 in 'x'), 0 only in A, 0 only in B\n",
        "",
    );
    let shape = "(3,)";
    bench.write("bool.npy", &npy_of("|b1", shape, [[0], [1], [2]]));
    bench.write("u1.npy", &npy_of("|u1", shape, [[0], [1], [1]]));
    bench.run("diff bool.npy u1.npy --tolerance 0").expect(0, "1 tensor is equal within 0\n", "");
    bench.write("c.npy", &npy_of("<c8", shape, [[1.0_f32, 0.0], [0.1, 0.0], [-3.0, 0.5]].map(pair_bytes)));
    bench.run("diff x.npy c.npy").expect(
        1,
        "  x  values differ  1 of 3, first at [2]: -3, -3+0.5i; \
         largest absolute error 0.5 at [2], relative 0, SQNR 16.02 dB (float32, complex64)\n\
         1 tensor: 0 equal, 1 differs (largest absolute error 0.5 in 'x'), 0 only in A, 0 only in B\n",
        "",
    );
    assert_eq!(json(&bench, "x.npy c.npy", 1)["tensors"][0]["in_b"], "c");
    bench.run("cast x.npy --to string -q -o text.npy").expect(0, "", "");
    bench.run("diff x.npy text.npy").expect(
        1,
        "  x  types differ  float32, string\n1 tensor: 0 equal, 1 differs, 0 only in A, 0 only in B\n",
        "",
    );
}

fn pair_bytes([real, imaginary]: [f32; 2]) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&real.to_le_bytes());
    bytes[4..].copy_from_slice(&imaginary.to_le_bytes());
    bytes
}

#[test]
fn integers_of_64_bits_are_not_rounded() {
    let bench = Bench::new();
    let large = 1_i64 << 53;
    bench.write("i.npy", &npy_of("<i8", "(2,)", [1, large + 1].map(i64::to_le_bytes)));
    bench.write("j.npy", &npy_of("<i8", "(2,)", [1, large].map(i64::to_le_bytes)));
    bench.write("f.npy", &npy_of("<f8", "(2,)", [1.0, large as f64].map(f64::to_le_bytes)));
    bench.write("u.npy", &npy_of("<u8", "(2,)", [1, (large + 1) as u64].map(u64::to_le_bytes)));
    for (b, both) in [("f", " (int64, float64)"), ("j", "")] {
        // The sums are those of integers too.
        bench.run(&format!("diff i.npy {b}.npy")).expect(
            1,
            &format!(
                "  i  values differ  1 of 2, first at [1]: 9007199254740993, 9007199254740992; \
                 largest absolute error 1 at [1], relative 1.110e-16, SQNR 319.09 dB{both}\n\
                 1 tensor: 0 equal, 1 differs (largest absolute error 1 in 'i'), 0 only in A, 0 only in B\n"
            ),
            "",
        );
        bench.run(&format!("diff i.npy {b}.npy --tolerance 1")).expect(0, "1 tensor is equal within 1\n", "");
    }
    bench.run("diff i.npy u.npy --tolerance 0").expect(0, "1 tensor is equal within 0\n", "");
    bench.run("diff j.npy f.npy --tolerance 0").expect(0, "1 tensor is equal within 0\n", "");
    bench.write("n.npy", &npy_of("<i8", "(2,)", [-1, 0].map(i64::to_le_bytes)));
    bench.write("m.npy", &npy_of("<u8", "(2,)", [u64::MAX, 0].map(u64::to_le_bytes)));
    let first = &json(&bench, "n.npy m.npy", 1)["tensors"][0]["first_difference"];
    assert_eq!((&first["a"], &first["b"]), (&json!("-1"), &json!("18446744073709551615")));
}

#[test]
fn neither_byte_order_nor_order_of_elements_nor_packing_matters() {
    let bench = Bench::new();
    let rows: Vec<u16> = (0..35_000).map(|value| value ^ 0x155).collect();
    let columns: Vec<u16> = (0..250 * 140).map(|at| rows[at % 250 * 140 + at / 250]).collect();
    bench.write("rows.npy", &npy_of("<u2", "(250, 140)", rows.iter().map(|value| value.to_le_bytes())));
    bench.write("big.npy", &npy_of(">u2", "(250, 140)", rows.iter().map(|value| value.to_be_bytes())));
    let column_major = |values: &[u16], descr: &str, big: bool| {
        let bytes = values.iter().map(|value| if big { value.to_be_bytes() } else { value.to_le_bytes() });
        let file = npy_of(descr, "(250, 140)", bytes);
        let at = file.windows(5).position(|window| window == b"False").unwrap();
        [&file[..at], b"True ", &file[at + 5..]].concat()
    };
    bench.write("columns.npy", &column_major(&columns, "<u2", false));
    bench.write("big_columns.npy", &column_major(&columns, ">u2", true));
    let files = ["rows", "big", "columns", "big_columns"];
    for (a, b) in files.iter().flat_map(|a| files.iter().map(move |b| (a, b))) {
        bench.run(&format!("diff {a}.npy {b}.npy")).expect(0, "1 tensor is equal\n", "");
    }
    let mut wrong = columns.clone();
    wrong[17 * 250 + 3] ^= 1 << 15;
    bench.write("wrong.npy", &column_major(&wrong, ">u2", true));
    for a in files {
        let tensor = &json(&bench, &format!("{a}.npy wrong.npy"), 1)["tensors"][0];
        let found = (&tensor["differing"], &tensor["first_difference"]["index"]);
        assert_eq!(found, (&json!(1), &json!([3, 17])), "{a}");
        assert_eq!(tensor["figures"]["max_abs_error"], 32768.0, "{a}");
    }
    // int4, one in a byte as numpy has it, and packed as ONNX has it.
    fs::copy(fixture("int4_tagged.npy"), bench.path("int4.npy")).unwrap();
    bench.run("cast int4.npy --to int4 -q -o int4.pb").expect(0, "", "");
    bench.run("diff int4.npy int4.pb").expect(0, "1 tensor is equal\n", "");
}

#[test]
fn texts_are_compared_as_texts() {
    let bench = Bench::new();
    let texts = |texts: [&str; 3]| {
        let chars = |text: &str| {
            let mut element = [0; 16];
            for (char, place) in text.chars().zip(element.chunks_exact_mut(4)) {
                place.copy_from_slice(&u32::from(char).to_le_bytes());
            }
            element
        };
        npy_of("<U4", "(3,)", texts.map(chars))
    };
    bench.write("a.npy", &texts(["one", "zwei", ""]));
    bench.write("b.npy", &texts(["one", "dos", "3"]));
    bench.run("cast a.npy --to string -q -o a.pb").expect(0, "", "");
    bench.run("diff a.npy a.pb").expect(0, "1 tensor is equal\n", "");
    bench.run("diff a.pb b.npy").expect(
        1,
        "  a  values differ  2 of 3, first at [1]: \"zwei\", \"dos\"\n\
         1 tensor: 0 equal, 1 differs, 0 only in A, 0 only in B\n",
        "",
    );
}

#[test]
fn complex_numbers_are_compared_part_by_part() {
    let bench = Bench::new();
    let numbers = [[1.0, 2.0], [3.0, -0.0], [f32::NAN, 1.0]];
    bench.write("a.npy", &npy_of("<c8", "(3,)", numbers.map(pair_bytes)));
    bench.write("b.npy", &npy_of("<c8", "(3,)", [numbers[0], [3.0, 0.5], numbers[2]].map(pair_bytes)));
    bench.write("c.npy", &npy_of("<c8", "(3,)", [numbers[0], [3.0, 0.0], numbers[2]].map(pair_bytes)));
    bench.run("diff a.npy b.npy").expect(
        1,
        "  a  values differ  1 of 3, first at [1]: 3-0i, 3+0.5i; largest absolute error 0.5 at [1], relative 0, SQNR 17.78 dB\n\
         1 tensor: 0 equal, 1 differs (largest absolute error 0.5 in 'a'), 0 only in A, 0 only in B\n",
        "",
    );
    bench.run("diff a.npy c.npy").expect(
        1,
        "  a  bits differ  1 of 3, first at [1]: 3-0i (4040000080000000), 3+0i (4040000000000000)\n\
         1 tensor: 0 equal, 1 differs, 0 only in A, 0 only in B\n",
        "",
    );
}

#[test]
fn opaque_bytes_are_compared_with_their_like() {
    let bench = Bench::new();
    bench.write("a.npy", &npy_of("|V1", "(2, 2)", [[0x38], [0x7f], [0], [1]]));
    bench.write("b.npy", &npy_of("|V1", "(2, 2)", [[0x38], [0x7f], [0x80], [1]]));
    bench.write("f.npy", &npy_of("<f4", "(2, 2)", [1.0, f32::NAN, 0.0, 0.001953125].map(f32::to_le_bytes)));
    bench.run("diff a.npy a.npy").expect(0, "1 tensor is equal\n", "");
    bench.run("diff a.npy b.npy --tolerance 1").expect(
        1,
        "  a  values differ  1 of 4, first at [1, 0]: bytes 00, bytes 80\n\
         1 tensor: 0 equal within 1, 1 differs, 0 only in A, 0 only in B\n",
        "",
    );
    bench.run("diff a.npy b.npy --from e4m3").expect(
        1,
        "  a  bits differ  1 of 4, first at [1, 0]: 0 (00), -0 (80)\n\
         1 tensor: 0 equal, 1 differs, 0 only in A, 0 only in B\n",
        "",
    );
    bench.run("diff b.npy f.npy --from e4m3 --tolerance 0").expect(0, "1 tensor is equal within 0\n", "");
    let outcome = bench.run("diff a.npy f.npy");
    assert_eq!(
        (outcome.code, outcome.stdout.lines().last()),
        (Some(2), Some("1 tensor: 0 equal, 0 differ, 0 only in A, 0 only in B, 1 unreadable"))
    );
    outcome.check_message("--from");
}

/// Places in so many bytes, always the same.
fn places(count: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bytes
    })
}

/// A .npy file of more elements than a piece has, 300 x 1000, none of them 0.
fn many() -> Vec<u8> {
    npy_of("<f4", "(300, 1000)", (0..300_000_u32).map(|at| (1.0 + at as f32 / 7.0).to_le_bytes()))
}

#[test]
fn a_wrong_byte_is_found_and_located_wherever_it_is() {
    let bench = Bench::new();
    let right = many();
    bench.write("x.npy", &right);
    for format in ["safetensors", "npz", "pb"] {
        bench.run(&format!("cast x.npy --to f32 -q -o x.{format}")).expect(0, "", "");
        bench.run(&format!("diff x.npy x.{format}")).expect(0, "1 tensor is equal\n", "");
    }
    let data = npy_data(&right);
    for format in ["npy", "safetensors", "npz", "pb"] {
        let right = bench.read(&format!("x.{format}"));
        let start = right.windows(64).position(|window| window == &data[..64]).unwrap();
        for place in places(12, data.len()) {
            let mut wrong = right.clone();
            wrong[start + place] ^= 1 << (place % 8);
            bench.write(&format!("wrong.{format}"), &wrong);
            let index = [place / 4000, place / 4 % 1000];
            if format == "npz" {
                // The checksum tells the same, and not where.
                let outcome = bench.run("diff x.npy wrong.npz");
                assert_eq!(outcome.code, Some(2), "{outcome:?}");
                outcome.check_message("checksum");
                continue;
            }
            let tensor = &json(&bench, &format!("x.{format} wrong.{format} --tolerance 0"), 1)["tensors"][0];
            assert_eq!((&tensor["differing"], &tensor["first_difference"]["index"]), (&json!(1), &json!(index)));
            let other = &json(&bench, &format!("x.npy wrong.{format}"), 1)["tensors"][0];
            assert_eq!(other["first_difference"], tensor["first_difference"]);
        }
    }
}

#[test]
fn a_wrong_byte_of_packed_or_compressed_elements_is_located() {
    let bench = Bench::with("corpus/npz/deflated.npz", "arrays.npz");
    // As it is, in a file that is not compressed.
    bench.run("cast arrays.npz --to f32 --exclude * -q -o a.safetensors").expect(0, "", "");
    let equal = bench.run("diff arrays.npz a.safetensors");
    assert_eq!((equal.code, equal.stderr.as_str()), (Some(0), ""), "{equal:?}");
    let mut wrong = bench.read("a.safetensors");
    *wrong.last_mut().unwrap() ^= 1;
    bench.write("wrong.safetensors", &wrong);
    let report = json(&bench, "arrays.npz wrong.safetensors", 1);
    let tensors = report["tensors"].as_array().unwrap();
    let differing: Vec<&Value> = tensors.iter().filter(|tensor| tensor["status"] != "equal").collect();
    let last: Vec<u64> = differing[0]["shape_a"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() - 1).collect();
    assert_eq!((differing.len(), &differing[0]["first_difference"]["index"]), (1, &json!(last)));
    let elements = 50_001_u64; // the last byte holds half of what fits in it
    bench.write("x.npy", &npy("'|u1'", &format!("({elements},)"), &vec![1; elements as usize]));
    bench.run("cast x.npy --to uint4 -q -o x.pb").expect(0, "", "");
    let right = bench.read("x.pb");
    let start = right.windows(64).position(|window| window == [0x11; 64]).unwrap();
    for place in places(12, elements as usize / 2) {
        let mut wrong = right.clone();
        wrong[start + place] ^= 1 << (place % 8);
        bench.write("wrong.pb", &wrong);
        let tensor = &json(&bench, "x.pb wrong.pb", 1)["tensors"][0];
        let index = 2 * place + usize::from(place % 8 > 3);
        assert_eq!((&tensor["differing"], &tensor["first_difference"]["index"]), (&json!(1), &json!([index])));
    }
    // Bits behind the last element are its own.
    let mut wrong = right.clone();
    wrong[start + elements as usize / 2] ^= 0x80;
    bench.write("wrong.pb", &wrong);
    let tensor = &json(&bench, "x.pb wrong.pb", 1)["tensors"][0];
    assert_eq!((&tensor["status"], &tensor["first_difference"]["index"]), (&json!("bits_differ"), &json!([50_000])));
}

#[test]
fn the_result_is_the_same_on_any_number_of_threads() {
    let bench = Bench::new();
    let right = many();
    let mut wrong = right.clone();
    for place in places(5000, right.len() - 128) {
        wrong[128 + place] ^= 1;
    }
    bench.write("a.npy", &right);
    bench.write("b.npy", &wrong);
    let one = json(&bench, "a.npy b.npy -j1", 1);
    assert!(one["tensors"][0]["differing"].as_u64().unwrap() > 4900, "{one}");
    for threads in [2, 3, 8] {
        assert_eq!(json(&bench, &format!("a.npy b.npy -j{threads}"), 1), one);
    }
    // Another file format gives the same figures.
    bench.run("cast b.npy --to f32 -q -o b.pb").expect(0, "", "");
    let figures = |report: &Value| report["tensors"][0]["figures"].clone();
    assert_eq!(figures(&json(&bench, "a.npy b.pb", 1)), figures(&one));
}

#[test]
fn folders_are_compared_whatever_their_shards() {
    let bench = Bench::new();
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    bench.run("cast llama --to bf16 -q -o one.safetensors").expect(0, "", "");
    bench.run("cast llama --to bf16 -q --max-shard-size 300KB -o many").expect(0, "", "");
    for other in ["llama", "one.safetensors", "many"] {
        bench.run(&format!("diff llama {other}")).expect(0, "38 tensors are equal\n", "");
    }
    let shard = fs::read_dir(bench.path("many")).unwrap().map(|entry| entry.unwrap().path());
    let shard = shard.filter(|path| path.to_string_lossy().ends_with(".safetensors")).min().unwrap();
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let outcome = bench.run("diff llama many");
    assert_eq!((outcome.code, outcome.stderr.as_str(), outcome.stdout.lines().count()), (Some(1), "", 2));
    assert!(outcome.stdout.contains("  values differ  1 of "), "{outcome:?}");
    assert!(outcome.stdout.contains("38 tensors: 37 equal, 1 differs (largest absolute error "), "{outcome:?}");
}

#[test]
fn trouble_is_no_difference() {
    let bench = Bench::with("model.safetensors", "a.safetensors");
    bench.write("x.npy", &npy_f32(&[1.0]));
    let half = bench.read("a.safetensors");
    bench.write("half.safetensors", &half[..half.len() / 2]);
    bench.run("diff x.npy none.npy").says(2, "", "directory");
    bench.run("diff x.npy x.npy --from f16").says(2, "", "--from");
    bench.run("diff a.safetensors a.safetensors --include nothing").says(2, "", "--include");
    let outcome = bench.run("diff a.safetensors half.safetensors");
    assert!(outcome.code == Some(2) && outcome.stdout.is_empty(), "{outcome:?}");
    outcome.check_message("safetensors");
    let outcome = bench.run("diff a.safetensors");
    assert!(outcome.code == Some(2) && outcome.stdout.is_empty(), "{outcome:?}");
    // A pattern that chooses nothing beside one that does is told.
    bench.run("diff a.safetensors a.safetensors --include *norm* --exclude none --allow-unmatched").says(
        0,
        "2 tensors are equal\n",
        "--exclude",
    );
}

#[test]
fn a_report_made_earlier_is_checked_against_the_files() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    bench.run("cast llama --to e4m3 --protect -o out --hash --report r.json -q").expect(0, "", "");
    bench.run("diff --report r.json out").expect(0, "38 tensors are as the report says\n", "");
    // The same tensors in other shards are the same.
    bench.run("cast out --rule *=keep --max-shard-size 100KB -o spread -q").expect(0, "", "");
    bench.run("diff --report r.json spread -q").expect(0, "", "");
    let path = bench.path("out/model-00002-of-00003.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let outcome = bench.run("diff --report r.json out");
    let told = "has other bytes than were written\n38 tensors: 37 as the report says, 1 not\n";
    assert!(outcome.code == Some(1) && outcome.stdout.ends_with(told), "{outcome:?}");
    let report: serde_json::Value = serde_json::from_str(&bench.run("diff --report r.json out --json").stdout).unwrap();
    assert_eq!(report["is_equal"], false);
    let outcome = bench.run("diff --report r.json llama");
    assert!(outcome.code == Some(1) && outcome.stdout.contains("is bfloat16, and was written as float8e4m3fn"));
    bench.run("cast llama --to f16 -o half --report plain.json -q").expect(0, "", "");
    bench.run("diff --report plain.json half").says(2, "", "--hash");
    fs::copy(fixture("weights_f32.npy"), bench.path("x.npy")).unwrap();
    bench.run("cast x.npy --to bf16 -o y.npy --hash --report y.json -q").expect(0, "", "");
    bench.run("diff --report y.json y.npy").expect(0, "1 tensor is as the report says\n", "");
    bench.run("diff --report out/config.json half").says(2, "", "report");
    bench.run("cast x.npy half --to bf16 -o both --hash --report both.json -q").expect(0, "", "");
    bench.run("diff --report both.json both/x.npy").says(2, "", "comparison");
    bench.write("page.html", b"<!doctype html>");
    bench.run("diff --report page.html half").says(2, "", "--hash");
    assert_eq!(bench.run("diff half").code, Some(2));
    bench.run("diff --report r.json out --tolerance 0.1").says(2, "", "--report");
}

#[test]
fn a_comparison_is_written_as_a_page_or_as_the_json_that_is_printed() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    bench.run("quantize llama --scheme nvfp4 -o q -q").expect(0, "", "");
    let printed = bench.run("diff llama q --report diff.json --json");
    assert_eq!(printed.code, Some(1));
    assert_eq!(fs::read_to_string(bench.path("diff.json")).unwrap(), printed.stdout);
    let outcome = bench.run("diff llama q --report diff.html");
    assert!(outcome.code == Some(1) && outcome.stdout.contains("SQNR 20."), "{outcome:?}");
    let page = fs::read_to_string(bench.path("diff.html")).unwrap();
    let row = "<tr><th scope=\"row\">self_attn.<wbr>q_proj</th><td class=\"";
    assert!(page.contains("<caption>model.<wbr>layers</caption>") && page.contains(row), "{page}");
    assert_eq!(page.matches("<tr data-place=").count(), 38 + 1, "and the script names them");
    assert!(page.contains(">equal</td>") && page.contains(">bfloat16 → ct-nvfp4</td>"), "{page}");
    // Nothing is replaced without being asked, and nothing that is read.
    bench.run("diff llama q --report diff.html").says(2, "", "--force");
    assert_eq!(bench.run("diff llama q --report diff.html --force -q").code, Some(1));
    bench.run("diff llama q --report q/config.json --force").says(2, "", "input");
    bench.run("diff llama q --report diff.txt").says(2, "", "something");
    // Equal models have no map.
    bench.run("diff llama llama --report equal.html").expect(0, "38 tensors are equal\n", "");
    assert!(!fs::read_to_string(bench.path("equal.html")).unwrap().contains("<section class=\"map\""));
}

#[test]
fn a_page_lists_tensors_without_a_counterpart_or_with_another_shape() {
    let bench = Bench::new();
    for (name, head) in [
        (
            "a",
            r#"{"one":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"<i>":{"dtype":"U8","shape":[1,2],"data_offsets":[2,4]}}"#,
        ),
        (
            "b",
            r#"{"two":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"<i>":{"dtype":"U8","shape":[2,1],"data_offsets":[2,4]}}"#,
        ),
    ] {
        let bytes = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &[1, 2, 3, 4]].concat();
        bench.write(&format!("{name}.safetensors"), &bytes);
    }
    assert_eq!(bench.run("diff a.safetensors b.safetensors --report r.html").code, Some(1));
    let page = fs::read_to_string(bench.path("r.html")).unwrap();
    for cell in [">only in A</td>", ">only in B</td>", ">shapes differ</td>", ">[1, 2] → [2, 1]</td>", "&lt;i&gt;"] {
        assert!(page.contains(cell), "{cell}: {page}");
    }
    assert!(!page.contains("<i></th>") && !page.contains("<section class=\"map\""));
}
