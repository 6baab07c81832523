//! Quantized weights whose parts contradict each other or their config: one error each, that names the parts.

use tcast::dtype::Dtype::{self, Bfloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Uint8};
use tcast::quant::{Arithmetic, Decoder, Group, Layout, Parameters, Part, Role, find, layouts};

type Stored<'a> = (Role, Dtype, &'a [u64]);

fn decoder(layout: &str, parameters: &Parameters, parts: &[Stored]) -> Result<Decoder, String> {
    let name = |role: Role| match role {
        Role::Codes => "w",
        Role::Scale => "w_scale",
        Role::GlobalScale => "w_global",
        Role::ZeroPoint => "w_zero",
        Role::GroupIndex => "w_g_idx",
        _ => "w_other",
    };
    let parts: Vec<Part> =
        parts.iter().map(|&(role, dtype, shape)| Part { role, name: name(role), dtype, shape }).collect();
    let made = Decoder::new(find(layout).unwrap(), parameters, &parts, Bfloat16, Arithmetic::Library);
    made.map_err(|error| error.to_string())
}

fn refused(layout: &str, parameters: &Parameters, parts: &[Stored], message: &str) {
    let error = decoder(layout, parameters, parts).err();
    assert_eq!(error.as_deref(), Some(format!("tensor 'w': {message}").as_str()));
}

fn group(group: Group) -> Parameters {
    Parameters { group: Some(group), ..Parameters::default() }
}

fn bits(bits: u32) -> Parameters {
    Parameters { bits: Some(bits), ..Parameters::default() }
}

const CODES: Role = Role::Codes;
const SCALE: Role = Role::Scale;

#[test]
fn a_missing_part_is_named() {
    refused(
        "hf-fp8",
        &Parameters::default(),
        &[(CODES, Float8E4M3FN, &[8, 8])],
        "it has no scales 'w_scale_inv', which the layout hf-fp8 needs",
    );
    let parts: &[Stored] = &[(CODES, Uint8, &[8, 8]), (SCALE, Float8E4M3FN, &[8, 1])];
    refused("ct-nvfp4", &Parameters::default(), parts, "it has no global scale, which the layout ct-nvfp4 needs");
    let parts: &[Stored] = &[(CODES, Int32, &[4, 8]), (SCALE, Float16, &[1, 8])];
    refused("gptq", &bits(4), parts, "it has no zero points, which the layout gptq needs");
    let codes = decoder("hf-fp8", &Parameters::default(), &[(SCALE, Float32, &[1, 1])]).err();
    assert_eq!(codes.as_deref(), Some("it has no codes, which the layout hf-fp8 needs"));
}

#[test]
fn a_part_that_is_there_twice_or_of_no_use_is_named() {
    let parts: &[Stored] = &[(CODES, Float8E4M3FN, &[8, 8]), (SCALE, Float32, &[1]), (SCALE, Float32, &[1])];
    refused("hf-fp8", &Parameters::default(), parts, "'w_scale' and 'w_scale' are both its scales");
    let parts: &[Stored] = &[(CODES, Float8E4M3FN, &[8, 8]), (SCALE, Float32, &[1]), (Role::ZeroPoint, Int8, &[1])];
    refused("hf-fp8", &Parameters::default(), parts, "it has zero points, which the layout hf-fp8 does not know");
    let parts: &[Stored] = &[(CODES, Float8E4M3FN, &[8, 8]), (SCALE, Float32, &[1]), (Role::GroupIndex, Int32, &[8])];
    refused("hf-fp8", &Parameters::default(), parts, "it has a group index, which the layout hf-fp8 does not know");
}

#[test]
fn a_part_of_the_wrong_dtype_is_named() {
    let parts: &[Stored] = &[(CODES, Float8E5M2, &[8, 8]), (SCALE, Float32, &[1])];
    refused(
        "hf-fp8",
        &Parameters::default(),
        parts,
        "'w' is float8e5m2, and the layout hf-fp8 stores its codes as float8e4m3fn",
    );
    let parts: &[Stored] = &[(CODES, Float8E4M3FN, &[8, 32]), (SCALE, Float32, &[8, 1])];
    let message = "'w_scale' is float32, and the layout ct-mxfp8 stores its scales as uint8 or float8e8m0";
    refused("ct-mxfp8", &Parameters::default(), parts, message);
}

#[test]
fn a_scale_of_the_wrong_shape_is_named_with_the_shape_it_needs() {
    let parts: &[Stored] = &[(CODES, Float8E4M3FN, &[130, 200]), (SCALE, Float32, &[1, 2])];
    let message =
        "'w_scale' has the shape [1, 2], but 'w', a weight of [130, 200] in groups of 128 x 128, needs [2, 2]";
    refused("hf-fp8", &group(Group::Block([128, 128])), parts, message);
    let message = "the config does not say which elements share a scale, and the shape [1, 2] of 'w_scale' does not show it \
                   for a weight of [130, 200]";
    refused("hf-fp8", &Parameters::default(), parts, message);
    // 96 x 128 would explain it, and be wrong.
    let parts: &[Stored] = &[(CODES, Float8E4M3FN, &[192, 384]), (SCALE, Float32, &[2, 3])];
    assert!(decoder("hf-fp8", &Parameters::default(), parts).is_ok());
    let parts: &[Stored] = &[(CODES, Float8E4M3FN, &[8, 8]), (SCALE, Float32, &[1, 8])];
    let message = "'w_scale' has the shape [1, 8], but 'w', a weight of [8, 8] in groups of 1 x 8, needs [8, 1]";
    refused("ct-fp8", &group(Group::Channel), parts, message);
    let parts: &[Stored] =
        &[(CODES, Uint8, &[8, 16]), (SCALE, Float8E4M3FN, &[8, 2]), (Role::GlobalScale, Float32, &[3])];
    refused(
        "ct-nvfp4",
        &Parameters::default(),
        parts,
        "'w_global' has the shape [3], but one global scale for the tensor needs [1]",
    );
}

#[test]
fn a_config_that_contradicts_the_layout_is_named() {
    let parts: &[Stored] = &[(CODES, Uint8, &[8, 16]), (SCALE, Uint8, &[8, 1])];
    let message = "the layout ct-mxfp4 has a scale for a group of 32, and the config for a group of 16";
    refused("ct-mxfp4", &group(Group::Neighbours(16)), parts, message);
    let parts: &[Stored] = &[(CODES, Float8E4M3FN, &[8, 8]), (SCALE, Float32, &[1])];
    refused("hf-fp8", &group(Group::Channel), parts, "the layout hf-fp8 has no scales for a row");
    refused("hf-fp8", &group(Group::Block([0, 128])), parts, "it has a scale for a group of 0 elements");
    let parts: &[Stored] = &[(CODES, Int32, &[8, 1]), (SCALE, Float16, &[8, 1])];
    refused("ct-pack", &Parameters::default(), parts, "the config does not say how many bits its codes have");
    refused("ct-pack", &bits(9), parts, "the layout ct-pack has no codes of 9 bits");
    refused("ct-pack", &bits(3), parts, "the shape of the weight is not known");
    let given = Parameters { shape: Some(vec![8, 12]), ..bits(3) };
    refused("ct-pack", &given, parts, "codes of the shape [8, 1] do not make rows of 12 codes of 3 bits");
    let given = Parameters { shape: Some(vec![9, 8]), ..bits(4) };
    refused("ct-pack", &given, parts, "'w' has the shape [8, 1], but a weight of [9, 8] needs [8, 8]");
    let rotated = Parameters { rotation: Some(256), ..Parameters::default() };
    let parts: &[Stored] = &[(CODES, Int8, &[8, 300]), (SCALE, Float32, &[8, 1])];
    refused("comfy-int8", &rotated, parts, "300 columns cannot be rotated in groups of 256");
}

#[test]
fn shapes_whose_products_overflow_are_refused() {
    const HUGE: u64 = 1 << 40;
    for (layout, shapes) in layouts().flat_map(|layout| {
        [
            &[HUGE, HUGE][..],
            &[HUGE, HUGE, 0],
            &[u64::MAX, 0],
            &[0, u64::MAX],
            &[u64::MAX],
            &[],
            &[1, 1, 1, u64::MAX, 16],
        ]
        .map(|shape| (layout, shape))
    }) {
        let parts: &[Stored] = &[
            (CODES, layout.codes.dtypes[0], shapes),
            (SCALE, layout.scale_dtypes[0], &[1]),
            (Role::GlobalScale, Float32, &[1]),
            (Role::CodeMap, Float32, &[16]),
        ];
        let given = Parameters { shape: Some(vec![HUGE, HUGE]), ..bits(4) };
        assert!(decoder(layout.name, &bits(4), parts).is_err(), "{} {shapes:?}", layout.name);
        assert!(decoder(layout.name, &given, parts).is_err(), "{} {shapes:?}", layout.name);
    }
}

#[test]
fn shapes_drawn_at_random_are_read_or_refused_without_a_panic() {
    const LENGTHS: [u64; 12] = [0, 1, 2, 3, 4, 8, 16, 31, 32, 64, 1 << 33, u64::MAX];
    const ROLES: [Role; 10] = [
        Role::Codes,
        Role::Scale,
        Role::GlobalScale,
        Role::ZeroPoint,
        Role::GroupIndex,
        Role::CodeMap,
        Role::NestedScale,
        Role::NestedMap,
        Role::Shape,
        Role::Activation,
    ];
    let state = std::cell::Cell::new(1_u64);
    let below = |end: usize| {
        state.set(state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        (state.get() >> 33) as usize % end
    };
    let mut read = 0;
    let all: Vec<&Layout> = layouts().collect();
    for at in 0..60_000 {
        let layout = all[at % all.len()];
        // Mostly few and small lengths, so that some of them fit.
        let small = if below(4) == 0 { LENGTHS.len() } else { 9 };
        let shape = || (0..below(4)).map(|_| LENGTHS[below(small)]).collect::<Vec<u64>>();
        let shapes: Vec<Vec<u64>> = ROLES.iter().map(|_| shape()).collect();
        let given = Some(shape()).filter(|shape| shape.len() > 1);
        let groups = [
            Group::Tensor,
            Group::Channel,
            Group::Block([LENGTHS[below(12)], LENGTHS[below(12)]]),
            Group::Neighbours(LENGTHS[below(12)]),
        ];
        let parts: Vec<Stored> = ROLES
            .iter()
            .zip(&shapes)
            .filter(|(role, _)| matches!(role, Role::Codes | Role::Scale) || below(4) == 0)
            .map(|(role, shape)| {
                let dtype = match role {
                    Role::Codes => layout.codes.dtypes[below(layout.codes.dtypes.len())],
                    Role::Scale => layout.scale_dtypes[below(layout.scale_dtypes.len())],
                    Role::ZeroPoint | Role::GroupIndex => Int32,
                    _ => Float32,
                };
                (*role, dtype, &shape[..])
            })
            .collect();
        let parameters = Parameters {
            shape: given,
            bits: Some(below(9) as u32),
            group: (below(2) == 0).then(|| groups[below(4)]),
            nested_group: Some(LENGTHS[below(12)]),
            rotation: (below(8) == 0).then(|| LENGTHS[below(12)]),
            ..Parameters::default()
        };
        let Ok(decoder) = decoder(layout.name, &parameters, &parts) else { continue };
        let lengths: Vec<u64> =
            parts.iter().map(|(_, dtype, shape)| dtype.packed_bytes(shape.iter().product()).unwrap()).collect();
        let length = decoder.rows() * decoder.row_bytes();
        if lengths.iter().chain([&length]).any(|length| *length > 1 << 20) {
            continue;
        }
        let bytes: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0x5a; *length as usize]).collect();
        let bytes: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
        let mut out = vec![0; length as usize];
        let _ = decoder.decode(0..decoder.rows(), &bytes, &mut out); // a group index may name no group
        let ranges = decoder.value_ranges(0..decoder.rows() * decoder.columns());
        assert!(ranges.iter().zip(&bytes).all(|(range, bytes)| range.end <= bytes.len() as u64));
        read += 1;
    }
    assert!(read > 300, "{read}");
}

#[test]
fn a_group_that_does_not_exist_is_named_with_the_column() {
    let parts: &[Stored] = &[
        (CODES, Int32, &[4, 8]),
        (SCALE, Float16, &[2, 8]),
        (Role::ZeroPoint, Int32, &[2, 1]),
        (Role::GroupIndex, Int32, &[32]),
    ];
    let decoder = decoder("gptq", &bits(4), parts).unwrap();
    let index =
        |wrong: i32| (0..32).flat_map(|at| if at == 7 { wrong } else { at / 16 }.to_le_bytes()).collect::<Vec<u8>>();
    let mut out = vec![0; 8 * 32 * 2];
    let mut decode = |wrong: i32| {
        let parts: [&[u8]; 4] = [&[0; 128], &[0; 32], &[0; 8], &index(wrong)];
        decoder.decode(0..8, &parts, &mut out).map_err(|error| error.to_string())
    };
    assert!(decode(1).is_ok());
    for wrong in [2, -1, i32::MIN, i32::MAX] {
        let message = format!("the group index puts column 7 into group {wrong}, and there are 2");
        assert_eq!(decode(wrong).err(), Some(message));
    }
}

#[test]
fn the_bytes_that_rows_need_are_enough() {
    // Bytes outside of the ranges are others, and change nothing.
    let cases: [(&str, Parameters, &[Stored], u64); 6] = [
        (
            "hf-fp8",
            group(Group::Block([4, 8])),
            &[(CODES, Float8E4M3FN, &[2, 10, 20]), (SCALE, Float32, &[2, 3, 3])],
            20,
        ),
        ("ct-mxfp4", Parameters::default(), &[(CODES, Uint8, &[9, 32]), (SCALE, Uint8, &[9, 2])], 9),
        ("gptoss-mxfp4", Parameters::default(), &[(CODES, Uint8, &[2, 5, 1, 16]), (SCALE, Uint8, &[2, 5, 1])], 64),
        (
            "awq",
            bits(4),
            &[(CODES, Int32, &[32, 2]), (SCALE, Float16, &[2, 16]), (Role::ZeroPoint, Int32, &[2, 2])],
            16,
        ),
        (
            "bnb-4bit",
            Parameters { shape: Some(vec![7, 9]), ..group(Group::Neighbours(16)) },
            &[(CODES, Uint8, &[32, 1]), (SCALE, Float32, &[4]), (Role::CodeMap, Float32, &[16])],
            7,
        ),
        (
            "comfy-mxfp8",
            Parameters { shape: Some(vec![30, 33]), ..Parameters::default() },
            &[(CODES, Float8E4M3FN, &[32, 64]), (SCALE, Uint8, &[128, 4])],
            30,
        ),
    ];
    for (layout, parameters, parts, rows) in cases {
        let decoder = decoder(layout, &parameters, parts).unwrap();
        assert_eq!(decoder.rows(), rows, "{layout}");
        let bytes = |range: &std::ops::Range<u64>, length: u64| {
            (0..length).map(|at| if range.contains(&at) { (at * 5 % 61) as u8 } else { 0x7b }).collect::<Vec<u8>>()
        };
        let decode = |rows: std::ops::Range<u64>, ranges: &[std::ops::Range<u64>]| {
            let lengths = parts.iter().map(|(_, dtype, shape)| dtype.packed_bytes(shape.iter().product()).unwrap());
            let stored: Vec<Vec<u8>> = ranges.iter().zip(lengths).map(|(range, length)| bytes(range, length)).collect();
            let stored: Vec<&[u8]> = stored.iter().map(|bytes| &bytes[..]).collect();
            let mut out = vec![0; ((rows.end - rows.start) * decoder.row_bytes()) as usize];
            decoder.decode(rows, &stored, &mut out).unwrap();
            out
        };
        let everything = vec![0..u64::MAX; parts.len()];
        for start in 0..rows {
            for end in start + 1..=rows {
                let ranges = decoder.value_ranges(start * decoder.columns()..end * decoder.columns());
                assert_eq!(decode(start..end, &ranges), decode(start..end, &everything), "{layout} {start}..{end}");
            }
        }
    }
}
