//! `tcast bitcast`, as its users see it.

use crate::common::{Bench, npy, npy_data, npy_f32, safetensors};

const PI: f32 = std::f32::consts::PI;

#[test]
fn bits_stay_as_they_are() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.5, -0.0, f32::from_bits(0x7f80_0001), PI]));
    let outcome = bench.run("bitcast x.npy --to uint32");
    outcome.says(0, "", "uint32");
    assert_eq!(outcome.stderr.lines().count(), 3);
    assert_eq!(npy_data(&bench.read("x.uint32.npy")), npy_data(&bench.read("x.npy")));
}

#[test]
fn every_pair_of_equal_width_goes_there_and_back() {
    let bench = Bench::new();
    let cases = [
        ("'|b1'", "bool", vec!["uint8", "int8", "float8e4m3fn", "float8e8m0"], vec![0, 1, 2, 0xff]),
        ("'<f2'", "float16", vec!["bfloat16", "int16", "uint16"], vec![0x01, 0x7c, 0xff, 0xff]),
        ("'<f8'", "float64", vec!["int64", "uint64", "complex64"], vec![1, 2, 3, 4, 5, 6, 0xf0, 0x7f]),
        ("'<c8'", "complex64", vec!["int64", "float64"], vec![1, 2, 3, 0x7f, 5, 6, 7, 8]),
        ("[('int4', '|i1')]", "int4", vec!["uint4", "float4e2m1"], vec![0xf8, 7, 0xff, 0]),
        ("[('uint2', '|u1')]", "uint2", vec!["int2"], vec![3, 1, 2, 0]),
        ("'<c16'", "complex128", vec!["complex128"], (0..16).collect()),
    ];
    for (descr, dtype, targets, data) in cases {
        let count = if data.len() == 4 { if dtype == "float16" { 2 } else { 4 } } else { 1 };
        bench.write("x.npy", &npy(descr, &format!("({count},)"), &data));
        for target in targets {
            bench.run(&format!("bitcast x.npy --to {target} -o y.npy -q -f")).expect(0, "", "");
            bench.run(&format!("bitcast y.npy --to {dtype} -o z.npy -q -f")).expect(0, "", "");
            assert_eq!(npy_data(&bench.read("z.npy")), data, "{dtype} as {target}");
        }
    }
}

#[test]
fn other_widths_are_refused_with_the_types_that_would_do() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.5]));
    bench.run("bitcast x.npy --to f16").says(1, "", "float32");
    for (target, message) in [("string", "does not take string"), ("float6e2m3", "does not take float6e2m3")] {
        bench.run(&format!("bitcast x.npy --to {target}")).says(1, "", message);
    }
    assert_eq!(bench.run("bitcast x.npy").code, Some(2));
    assert_eq!(bench.run("bitcast x.npy --hex --bits").code, Some(2));
    assert_eq!(bench.run("bitcast x.npy --hex -o y.npy").code, Some(2));
    assert_eq!(bench.run("bitcast x.npy --to int32 --range 1..2").code, Some(2));
    assert_eq!(bench.files(), ["x.npy"]);
}

#[test]
fn hex_shows_the_bits_of_each_element() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.5, -0.0, f32::INFINITY, PI, 1.0]));
    bench.run("bitcast x.npy --hex").expect(0, "0  3fc00000 80000000 7f800000 40490fdb\n4  3f800000\n", "");
    bench.run("bitcast x.npy --hex --range 3..").expect(0, "3  40490fdb 3f800000\n", "");
    bench.run("bitcast x.npy --hex --range ..1 --to int32").expect(0, "0  3fc00000\n", "");
    bench.run("bitcast x.npy --hex --range 2..2").expect(0, "", "");
    bench.run("bitcast x.npy --hex --range 2..9").says(1, "", "--range");
    assert_eq!(bench.run("bitcast x.npy --hex --range 2..1").code, Some(2));
    let outcome = bench.run("bitcast x.npy --hex --range 4..5 --json");
    let value: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(value["elements"], serde_json::json!([{ "index": 4, "bits": "3f800000" }]));
    assert_eq!((&value["dtype"], &value["range"]), (&"float32".into(), &serde_json::json!([4, 5])));
}

#[test]
fn bits_says_what_each_element_stands_for() {
    let bench = Bench::new();
    bench.write("x.npy", &npy("[('float8_e4m3fn', '|u1')]", "(2, 2)", &[0x3c, 0x81, 0x7f, 0x80]));
    bench.run("bitcast x.npy --bits").expect(
        0,
        "0  0 0111 100  1.5 = 3*2^-1  normal\n\
         1  1 0000 001  -0.001953125 = -1*2^-9  subnormal\n\
         2  0 1111 111  NaN  NaN\n\
         3  1 0000 000  -0  zero\n",
        "",
    );
    bench.run("bitcast x.npy --bits --to int8 --range 1..2").expect(0, "1  1 0000001  -127  integer\n", "");
}

#[test]
fn one_tensor_of_several_is_to_be_named() {
    let header =
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"I8","shape":[1],"data_offsets":[2,3]}}"#;
    let bench = Bench::new();
    bench.write("m.safetensors", &safetensors(header, &[1, 2, 0xff]));
    bench.run("bitcast m.safetensors --hex").says(2, "", "--tensor");
    bench.run("bitcast m.safetensors --hex --tensor b").expect(0, "0  ff\n", "");
    bench.run("bitcast m.safetensors --hex --tensor c").says(1, "", "tensor");
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    bench.run("bitcast llama --hex --tensor model.norm.wieght").says(1, "", "model.norm.wieght");
}

#[test]
fn elements_come_in_the_order_of_rows_from_any_container() {
    let bench = Bench::with("fortran_f32.npy", "x.npy");
    bench.run("cast x.npy --to float32 -o y.pb -q").expect(0, "", "");
    let rows = bench.run("bitcast y.pb --hex").stdout;
    assert_eq!(bench.run("bitcast x.npy --hex").stdout, rows);
    bench.run("cast x.npy --to int4 -o p.safetensors -q").expect(0, "", "");
    bench.run("cast p.safetensors --to int4 -o p.npy -q").expect(0, "", "");
    let packed = bench.run("bitcast p.safetensors --bits --range 7..20").stdout;
    assert_eq!(packed.lines().count(), 13);
    assert_eq!(bench.run("bitcast p.npy --bits --range 7..20").stdout, packed);
}

#[test]
fn a_long_packed_tensor_is_read_from_the_middle() {
    let bench = Bench::new();
    let values: Vec<u8> = (0..5000_u32).map(|index| (index % 63) as u8).collect();
    bench.write("x.npy", &npy("[('float6_e2m3fn', '|u1')]", "(5000,)", &values));
    bench.run("cast x.npy --to float6e2m3 -o p.pb -q").expect(0, "", "");
    let wanted = "3001  28 29 2a 2b 2c\n";
    assert_eq!(3001 % 63, 0x28);
    bench.run("bitcast p.pb --hex --range 3001..3006").expect(0, wanted, "");
}

#[cfg(target_pointer_width = "32")]
#[test]
fn a_file_longer_than_what_32_bits_can_map_is_refused() {
    let bench = Bench::new();
    // 4 GiB and a little more: cut to 32 bits, its length would be that of one element.
    let header = npy("'<f4'", "(1073741825,)", &[]);
    bench.write("huge.npy", &header);
    let file = std::fs::File::options().write(true).open(bench.path("huge.npy")).unwrap();
    file.set_len(header.len() as u64 + 4 * 1_073_741_825).unwrap();
    // The catalogue is of programs of 64 bits.
    let expected = "tcast: error: huge.npy: cannot read: its 4.00 GiB are more than a 32-bit program can map\n";
    bench.run("bitcast huge.npy --hex").expect(1, "", expected);
    bench.run("cast huge.npy --to f16").expect(1, "", expected);
    assert_eq!(bench.files(), ["huge.npy"]);
}

#[cfg(all(unix, target_pointer_width = "64"))]
#[test]
fn a_reader_that_has_seen_enough_is_no_failure_and_a_huge_file_answers_at_once() {
    let bench = Bench::new();
    let header = npy("'<f4'", "(2684354560,)", &[]);
    bench.write("huge.npy", &header);
    let file = std::fs::File::options().write(true).open(bench.path("huge.npy")).unwrap();
    file.set_len(header.len() as u64 + 4 * 2_684_354_560).unwrap();
    for kind in ["--hex", "--bits"] {
        let mut child =
            bench.command().args(["bitcast", "huge.npy", kind]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        assert!(line.starts_with("0  0"), "{line}");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    let outcome = bench.run("bitcast huge.npy --hex --range 2684354558..");
    outcome.expect(0, "2684354558  00000000 00000000\n", "");
    // Columns lie far apart, and are not read ahead.
    let text = String::from_utf8(npy("'<f4'", "(51200, 52428)", &[]).split_off(10)).unwrap();
    let text = text.replace("False", "True ");
    let length = (text.len() as u16).to_le_bytes();
    bench.write("columns.npy", &[b"\x93NUMPY\x01\x00", &length[..], text.as_bytes()].concat());
    let file = std::fs::File::options().write(true).open(bench.path("columns.npy")).unwrap();
    file.set_len(10 + text.len() as u64 + 4 * 51200 * 52428).unwrap();
    bench.run("bitcast columns.npy --hex --range 52428..52430").expect(0, "52428  00000000 00000000\n", "");
}

#[test]
fn what_has_no_bits_of_fixed_width_is_refused() {
    let bench = Bench::with("corpus/npy/str_U5.npy", "t.npy");
    bench.run("bitcast t.npy --hex").says(1, "", "text");
    let bench = Bench::with("untyped_e4m3fn.npy", "x.npy");
    bench.run("bitcast x.npy --bits").says(1, "", "--from");
    let typed = bench.run("bitcast x.npy --bits --from e4m3 --range 60..61").stdout;
    assert_eq!(typed, "60  0 0111 100  1.5 = 3*2^-1  normal\n");
    assert_eq!(bench.run("bitcast x.npy --bits --to e4m3 --range 60..61").stdout, typed);
}

/// As it is said and written, though the real part is the lower half of the bits in the file.
#[test]
fn the_digits_of_a_complex_number_are_those_of_its_real_part_then_of_its_imaginary_part() {
    let bench = Bench::new();
    let floats = [1.5_f32, -2.0].iter().flat_map(|part| part.to_le_bytes()).collect::<Vec<u8>>();
    bench.write("c.npy", &npy("'<c8'", "(1,)", &floats));
    bench.run("bitcast c.npy --hex").expect(0, "0  3fc00000c0000000\n", "");
}
