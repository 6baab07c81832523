//! Every layout against a slow reference: codes and scales are drawn, stored bit by bit as the layout has them, and
//! decoded; what must come out is computed from the drawn numbers, one by one, in float64.
#![allow(clippy::float_cmp, reason = "equality is meant exactly")]

use half::{bf16, f16};
use std::sync::LazyLock;
use tcast::dtype::Dtype;
use tcast::kernel::Isa;
use tcast::quant::{Arithmetic, Combination, DecodeTally, Decoder, Group, Parameters, Part, Role, find, layouts};

use Dtype::{
    Bfloat16, Float4E2M1, Float6E2M3, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E8M0, Float16, Float32, Int8,
    Int32, Int64, Uint8, Uint32,
};

/// xorshift64*: the same numbers in every run.
pub(super) struct Random {
    pub(super) state: u64,
    /// Neither NaN nor very large or small scales are drawn: most of the decoder's work has a short way for these.
    pub(super) is_ordinary: bool,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end
    }
}

/// The number that a code of a small float is; all of them are exact in float64.
fn small_float(code: u32, exponent_bits: u32, mantissa_bits: u32, bias: i32) -> f64 {
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let magnitude =
        if exponent == 0 { mantissa * 2_f64.powi(1 - bias) } else { (1.0 + mantissa) * 2_f64.powi(exponent - bias) };
    if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -magnitude } else { magnitude }
}

pub(super) fn number(dtype: Dtype, bits: u32) -> f64 {
    match dtype {
        Float32 => f32::from_bits(bits).into(),
        Bfloat16 => bf16::from_bits(bits as u16).to_f64(),
        Float16 => f16::from_bits(bits as u16).to_f64(),
        Int8 => (bits as u8 as i8).into(),
        Float8E4M3FN if bits & 0x7f == 0x7f => f64::NAN,
        Float8E4M3FN => small_float(bits, 4, 3, 7),
        Float8E4M3FNUZ if bits == 0x80 => f64::NAN,
        Float8E4M3FNUZ => small_float(bits, 4, 3, 8),
        Float8E5M2 if bits & 0x7f > 0x7c => f64::NAN,
        Float8E5M2 if bits & 0x7f == 0x7c => small_float(bits & 0x80 | 0x3c, 5, 2, 15) * f64::INFINITY,
        Float8E5M2 => small_float(bits, 5, 2, 15),
        Float4E2M1 => small_float(bits, 2, 1, 1),
        Float6E2M3 => small_float(bits, 2, 3, 1),
        other => panic!("{other}"),
    }
}

/// Every finite float16 and bfloat16 that is not negative, in order.
static TABLES: LazyLock<[Vec<f64>; 2]> = LazyLock::new(|| {
    let below = |infinity: u16, number: fn(u16) -> f64| (0..infinity).map(number).collect();
    [below(0x7c00, |bits| f16::from_bits(bits).to_f64()), below(0x7f80, |bits| bf16::from_bits(bits).to_f64())]
});

/// A number rounded to a type, to nearest even.
pub(super) fn round(value: f64, dtype: Dtype) -> f64 {
    let table = match dtype {
        Float16 => &TABLES[0],
        Bfloat16 => &TABLES[1],
        _ => return f64::from(value as f32),
    };
    if !value.is_finite() {
        return value;
    }
    let magnitude = value.abs();
    let above = table.partition_point(|known| *known <= magnitude);
    let low = table[above - 1];
    // Beyond the last there would be one more, as far away as the last but one.
    let high = table.get(above).copied().unwrap_or(2.0 * low - table[table.len() - 2]);
    let is_up = magnitude - low > high - magnitude || (magnitude - low == high - magnitude && above % 2 == 0);
    let result = match (is_up, above == table.len()) {
        (true, true) => f64::INFINITY,
        (true, false) => high,
        (false, _) => low,
    };
    result.copysign(value)
}

fn bytes(value: f64, dtype: Dtype) -> Vec<u8> {
    match dtype {
        Float16 => (if value.is_nan() { f16::NAN } else { f16::from_f64(value) }).to_le_bytes().to_vec(),
        Bfloat16 => (if value.is_nan() { bf16::NAN } else { bf16::from_f64(value) }).to_le_bytes().to_vec(),
        _ => (if value.is_nan() { f32::NAN } else { value as f32 }).to_le_bytes().to_vec(),
    }
}

/// Sets bits of a stream whose first bit is the lowest of the first byte.
pub(super) fn put(stream: &mut [u8], bit: usize, width: usize, value: u32) {
    for at in 0..width {
        stream[(bit + at) / 8] |= ((value >> at & 1) as u8) << ((bit + at) % 8);
    }
}

struct Stored {
    role: Role,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// What a value is made of.
#[derive(Clone, Copy)]
struct Factors {
    code: f64,
    zero: f64,
    scale: f64,
    global: f64,
    offset: f64,
}

/// A weight as it is stored, and what it is made of.
struct Case {
    layout: &'static str,
    parameters: Parameters,
    parts: Vec<Stored>,
    /// Matrices, rows, columns.
    size: [usize; 3],
    factors: Vec<Factors>,
}

/// A weight before it is stored.
struct Draft {
    layout: &'static str,
    size: [usize; 3],
    /// Rows and columns of a group.
    block: [usize; 2],
    codes: Vec<u32>,
    /// Bits of the scale of each group, and of the zero point; row-major in each matrix.
    grid: [usize; 2],
    scales: Vec<u32>,
    scale_dtype: Dtype,
    zeros: Vec<u32>,
    global: f32,
}

impl Draft {
    /// With all codes of so many bits in every row that is long enough, and scales of all kinds.
    fn new(
        random: &mut Random,
        layout: &'static str,
        size: [usize; 3],
        block: [usize; 2],
        bits: u32,
        scale_dtype: Dtype,
    ) -> Self {
        let [matrices, rows, columns] = size;
        let grid = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
        let codes = (0..matrices * rows * columns)
            .map(|at| (at as u32).wrapping_mul(random.next() as u32 | 1))
            .collect::<Vec<_>>();
        let mask = (1_u32 << bits) - 1;
        let codes = codes
            .iter()
            .enumerate()
            .map(|(at, code)| if at % 2 == 0 { (at as u32 / 2) & mask } else { (code >> 7) & mask });
        // NaN codes of float8e4m3fn are not ordinary either.
        let is_ordinary = random.is_ordinary;
        let codes = codes.map(|code| if is_ordinary && code & 0x7f == 0x7f { code ^ 1 } else { code });
        let ordinary = |random: &mut Random| match scale_dtype {
            Float8E4M3FN => 0x08 + random.below(0x70) as u32,
            Float8E8M0 | Uint8 => 100 + random.below(50) as u32,
            Float16 => 0x0800 + random.below(0x5000) as u32,
            Bfloat16 => 0x3800 + random.below(0x0c00) as u32,
            _ => (0.02 * (1.0 + random.below(1 << 20) as f32 / 1e6)).to_bits(),
        };
        let special = |at: usize, random: &mut Random| match (scale_dtype.bits(), at) {
            _ if random.is_ordinary => ordinary(random),
            (8, _) => at as u32 & 0xff,
            (16, 0..12) => [0, 0x8000, 1, 0x8001, 0x7c00, 0x7f80, 0x7fc0, 0x7e00, 0x3c00, 0x3f80, 0x7bff, 0x7f7f][at],
            (16, _) => random.next() as u32 & 0xffff,
            (_, 0..9) => {
                [0, 1 << 31, 1, 0x7f80_0000, 0x7fc0_0000, 0xff80_0000, 0x7f7f_ffff, 0x0080_0000, 0x3f80_0000][at]
            }
            // Of the sizes that scales have, and of any.
            (_, at) if at % 3 == 0 => random.next() as u32,
            _ => ordinary(random),
        };
        let count = matrices * grid[0] * grid[1];
        let start = if count == 1 { random.below(24) } else { 0 };
        Self {
            layout,
            size,
            block,
            codes: codes.collect(),
            grid,
            scales: (0..count).map(|at| special(start + at, random)).collect(),
            scale_dtype,
            zeros: (0..count).map(|_| random.next() as u32 >> 5 & mask).collect(),
            global: 0.0,
        }
    }

    fn group(&self, matrix: usize, row: usize, column: usize) -> usize {
        (matrix * self.grid[0] + row / self.block[0]) * self.grid[1] + column / self.block[1]
    }

    fn each(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let [matrices, rows, columns] = self.size;
        (0..matrices * rows * columns).map(move |at| [at / columns / rows, at / columns % rows, at % columns])
    }

    fn scale(&self) -> Stored {
        let width = self.scale_dtype.bits() as usize / 8;
        let bytes = self.scales.iter().flat_map(|bits| bits.to_le_bytes()[..width].to_vec()).collect();
        Stored { role: Role::Scale, dtype: self.scale_dtype, shape: self.shape(self.grid), bytes }
    }

    fn shape(&self, [rows, columns]: [usize; 2]) -> Vec<usize> {
        if self.size[0] == 1 { vec![rows, columns] } else { vec![self.size[0], rows, columns] }
    }

    /// Rows of codes, each filled up to whole words of so many bytes.
    fn rows(&self, dtype: Dtype, bits: usize, word: usize, high_first: bool) -> Stored {
        let [matrices, rows, columns] = self.size;
        let stride = (columns * bits).div_ceil(8 * word) * word;
        let mut stream = vec![0; matrices * rows * stride];
        for ([matrix, row, column], code) in self.each().zip(&self.codes) {
            let column = if high_first { column ^ 1 } else { column };
            put(&mut stream, 8 * (matrix * rows + row) * stride + column * bits, bits, *code);
        }
        let elements = 8 * stride / dtype.bits() as usize;
        Stored { role: Role::Codes, dtype, shape: self.shape([rows, elements]), bytes: stream }
    }

    /// The case, with codes and scales that mean what these functions say.
    fn case(
        self,
        parts: Vec<Stored>,
        code: impl Fn(u32) -> f64,
        scale: impl Fn(u32) -> f64,
        zero: impl Fn(u32) -> f64,
    ) -> Case {
        let factors = self.each().zip(&self.codes).map(|([matrix, row, column], bits)| {
            let group = self.group(matrix, row, column);
            let zero = zero(self.zeros[group]);
            let scale = scale(self.scales[group]);
            Factors { code: code(*bits), zero, scale, global: self.global.into(), offset: 0.0 }
        });
        let [rows, columns] = self.block.map(|side| side as u64);
        let parameters = Parameters { group: Some(Group::Block([rows, columns])), ..Parameters::default() };
        Case { layout: self.layout, parameters, parts, size: self.size, factors: factors.collect() }
    }
}

/// 2^(byte - 127), and what the first and the last byte are.
fn exponent(byte: u32, first: f64, last: f64) -> f64 {
    match byte {
        0 => first,
        255 => last,
        _ => 2_f64.powi(byte as i32 - 127),
    }
}

const TINY: f64 = 5.877_471_754_111_438e-39; // 2^-127
const INFINITY: f64 = f64::INFINITY;

fn plain(dtype: Dtype) -> impl Fn(u32) -> f64 + Copy {
    move |bits| number(dtype, bits)
}

fn none(_: u32) -> f64 {
    0.0
}

fn global(value: f32) -> Stored {
    Stored { role: Role::GlobalScale, dtype: Float32, shape: vec![], bytes: value.to_le_bytes().to_vec() }
}

fn floats_of_8_bits(random: &mut Random, cases: &mut Vec<Case>) {
    let e4m3 = plain(Float8E4M3FN);
    for scale_dtype in [Float32, Bfloat16, Float16] {
        for (layout, size, block) in [
            ("hf-fp8", [1, 130, 300], [128, 128]),
            ("hf-fp8", [2, 33, 1100], [16, 48]),
            ("ct-fp8", [1, 40, 1100], [16, 200]),
            ("modelopt-fp8", [1, 64, 256], [4, 32]),
        ] {
            let draft = Draft::new(random, layout, size, block, 8, scale_dtype);
            let parts = vec![draft.rows(Float8E4M3FN, 8, 1, false), draft.scale()];
            cases.push(draft.case(parts, e4m3, plain(scale_dtype), none));
        }
        for (layout, rows, group, kind) in [
            ("ct-fp8", 400, 0, Group::Channel),
            ("modelopt-fp8", 400, 0, Group::Channel),
            ("quanto", 400, 0, Group::Channel),
            ("torchao-fp8", 400, 0, Group::Channel),
            ("quark-fp8", 400, 0, Group::Channel),
            ("ct-fp8", 9, 64, Group::Neighbours(64)),
        ] {
            let block = [1, if group == 0 { 256 } else { group }];
            let draft = Draft::new(random, layout, [1, rows, 256], block, 8, scale_dtype);
            let parts = vec![draft.rows(Float8E4M3FN, 8, 1, false), draft.scale()];
            let case = draft.case(parts, e4m3, plain(scale_dtype), none);
            cases.push(Case { parameters: Parameters { group: Some(kind), ..Parameters::default() }, ..case });
        }
        for layout in
            ["hf-fp8", "ct-fp8", "modelopt-fp8", "comfy-fp8", "comfy-scaled-fp8", "quanto", "torchao-fp8", "quark-fp8"]
        {
            for dtype in [Float8E4M3FN, Float8E5M2, Float8E4M3FNUZ] {
                if !find(layout).unwrap().codes.dtypes.contains(&dtype) {
                    continue;
                }
                for shape in [vec![], vec![1]] {
                    let draft = Draft::new(random, layout, [1, 3, 256], [3, 256], 8, scale_dtype);
                    let parts = vec![draft.rows(dtype, 8, 1, false), Stored { shape, ..draft.scale() }];
                    let case = draft.case(parts, plain(dtype), plain(scale_dtype), none);
                    cases.push(Case {
                        parameters: Parameters { group: Some(Group::Tensor), ..Parameters::default() },
                        ..case
                    });
                }
            }
        }
    }
    for (scale_dtype, last) in [(Float8E8M0, f64::NAN), (Uint8, INFINITY)] {
        let draft = Draft::new(random, "hf-fp8", [1, 256, 256], [16, 16], 8, scale_dtype);
        let parts = vec![draft.rows(Float8E4M3FN, 8, 1, false), draft.scale()];
        cases.push(draft.case(parts, e4m3, |byte| exponent(byte, TINY, last), none));
        let draft = Draft::new(random, "hf-fp4", [1, 32, 256], [1, 32], 4, scale_dtype);
        let parts = vec![draft.rows(Int8, 4, 1, false), draft.scale()];
        let mut case = draft.case(parts, plain(Float4E2M1), |byte| exponent(byte, TINY, last), none);
        case.parameters.group = Some(Group::Neighbours(32));
        cases.push(case);
        for layout in ["ct-mxfp8", "modelopt-mxfp8"] {
            let draft = Draft::new(random, layout, [2, 9, 1088], [1, 32], 8, scale_dtype);
            let parts = vec![draft.rows(Float8E4M3FN, 8, 1, false), draft.scale()];
            cases.push(draft.case(parts, e4m3, |byte| exponent(byte, TINY, INFINITY), none));
        }
        for layout in ["ct-mxfp4", "modelopt-mxfp4", "quark-mxfp4"] {
            let draft = Draft::new(random, layout, [2, 9, 1088], [1, 32], 4, scale_dtype);
            let parts =
                vec![draft.rows(if scale_dtype == Uint8 { Uint8 } else { Float4E2M1 }, 4, 1, false), draft.scale()];
            cases.push(draft.case(parts, plain(Float4E2M1), |byte| exponent(byte, TINY, INFINITY), none));
        }
        let draft = Draft::new(random, "ct-mxfp6", [1, 18, 1088], [1, 32], 6, scale_dtype);
        let parts = vec![draft.rows(Uint8, 6, 1, false), draft.scale()];
        cases.push(draft.case(parts, plain(Float6E2M3), |byte| exponent(byte, TINY, INFINITY), none));
        // As many rows and columns as the padding asks for.
        let draft = Draft::new(random, "comfy-mxfp8", [1, 160, 1088], [1, 32], 8, scale_dtype);
        let parts = vec![draft.rows(Float8E4M3FN, 8, 1, false), swizzled(&draft)];
        cases.push(draft.case(parts, e4m3, |byte| exponent(byte, 0.0, INFINITY), none));
    }
}

/// Scales in tiles, filled up with zeros: the axes of comfy-kitchen's reshape, one after the other.
fn swizzled(draft: &Draft) -> Stored {
    let [rows, columns] = draft.grid;
    let [below, beside] = [rows.div_ceil(128), columns.div_ceil(4)];
    let mut bytes = vec![0; 512 * below * beside];
    for (at, scale) in draft.scales.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let (tile, quarter, line) = (row / 128, row % 128 / 32, row % 32);
        bytes[(((tile * beside + column / 4) * 32 + line) * 4 + quarter) * 4 + column % 4] = *scale as u8;
    }
    Stored { role: Role::Scale, dtype: draft.scale_dtype, shape: vec![128 * below, 4 * beside], bytes }
}

fn nvfp4(random: &mut Random, cases: &mut Vec<Case>) {
    let globals = [1.0, 3.0, 0.017, 2688.0 / 0.13, 1e-38, 1e38, 0.0, f32::INFINITY, f32::NAN, -1e-40];
    for value in globals {
        for layout in ["ct-nvfp4", "modelopt-nvfp4", "comfy-nvfp4"] {
            let mut draft = Draft::new(random, layout, [1, 16, 1088], [1, 16], 4, Float8E4M3FN);
            draft.global = value;
            let is_comfy = layout == "comfy-nvfp4";
            let scale = if is_comfy { swizzled(&draft) } else { draft.scale() };
            let parts = vec![draft.rows(Uint8, 4, 1, is_comfy), scale, global(value)];
            let has_negative_zero = layout != "modelopt-nvfp4";
            let code = |bits| if bits == 8 && !has_negative_zero { 0.0 } else { number(Float4E2M1, bits) };
            cases.push(draft.case(parts, code, plain(Float8E4M3FN), none));
        }
    }
    // A global scale for each expert.
    let draft = Draft::new(random, "modelopt-nvfp4", [3, 8, 64], [1, 16], 4, Float8E4M3FN);
    let globals = [0.5, 0.017, 3.0_f32];
    let bytes = globals.iter().flat_map(|value| value.to_le_bytes()).collect();
    let of_experts = Stored { role: Role::GlobalScale, dtype: Float32, shape: vec![3], bytes };
    let parts = vec![of_experts, draft.rows(Uint8, 4, 1, false), draft.scale()];
    let code = |bits| if bits == 8 { 0.0 } else { number(Float4E2M1, bits) };
    let mut case = draft.case(parts, code, plain(Float8E4M3FN), none);
    case.factors.iter_mut().enumerate().for_each(|(at, factors)| factors.global = globals[at / 512].into());
    cases.push(case);
}

fn gpt_oss(random: &mut Random, cases: &mut Vec<Case>) {
    let draft = Draft::new(random, "gptoss-mxfp4", [2, 96, 1100], [32, 1], 4, Uint8);
    let [matrices, rows, columns] = draft.size;
    let mut codes = vec![0; matrices * rows * columns / 2];
    for ([matrix, row, column], code) in draft.each().zip(&draft.codes) {
        put(&mut codes, 4 * ((matrix * columns + column) * rows + row), 4, *code);
    }
    let mut scales = vec![0; matrices * columns * rows / 32];
    for [matrix, row, column] in draft.each() {
        scales[(matrix * columns + column) * rows / 32 + row / 32] =
            draft.scales[draft.group(matrix, row, column)] as u8;
    }
    let parts = vec![
        Stored { role: Role::Codes, dtype: Uint8, shape: vec![matrices, columns, rows / 32, 16], bytes: codes },
        Stored { role: Role::Scale, dtype: Uint8, shape: vec![matrices, columns, rows / 32], bytes: scales },
    ];
    let scale = |byte| 2_f64.powi(byte as i32 - 127);
    cases.push(draft.case(parts, plain(Float4E2M1), scale, none));
    let draft = Draft::new(random, "gptoss-openai", [2, 70, 96], [1, 32], 4, Uint8);
    let codes = Stored { shape: vec![2, 70, 3, 16], ..draft.rows(Uint8, 4, 16, false) };
    let parts = vec![codes, draft.scale()];
    cases.push(draft.case(parts, plain(Float4E2M1), scale, none));
}

fn integers(random: &mut Random, cases: &mut Vec<Case>) {
    for scale_dtype in [Float32, Bfloat16, Float16] {
        for (layout, with_zeros) in [
            ("ct-int8", false),
            ("ct-int8", true),
            ("comfy-int8", false),
            ("quanto", false),
            ("gemma-int8", false),
            ("torchao-int8", false),
            ("torchao-int8", true),
            ("quark-int8", true),
        ] {
            if !find(layout).unwrap().scale_dtypes.contains(&scale_dtype) {
                continue;
            }
            // A row of one value is a group of one.
            let columns = if scale_dtype == Float16 && with_zeros { 1 } else { 256 };
            let draft = Draft::new(random, layout, [1, 70, columns], [1, columns], 8, scale_dtype);
            let mut parts = vec![draft.rows(Int8, 8, 1, false), draft.scale()];
            if with_zeros {
                let bytes = draft.zeros.iter().map(|zero| *zero as u8).collect();
                parts.push(Stored { role: Role::ZeroPoint, dtype: Int8, shape: vec![70, 1], bytes });
            }
            let zero = |bits| if with_zeros { number(Int8, bits) } else { 0.0 };
            let case = draft.case(parts, plain(Int8), plain(scale_dtype), zero);
            cases
                .push(Case { parameters: Parameters { group: Some(Group::Channel), ..Parameters::default() }, ..case });
        }
        for bits in 1..=8_u32 {
            for with_zeros in [false, true] {
                let (columns, group) = match bits {
                    4 => (1120, 32),
                    5 => (104, 1),
                    _ => (104, 26),
                };
                let draft = Draft::new(random, "ct-pack", [1, 37, columns], [1, group], bits, scale_dtype);
                let mut parts = vec![draft.rows(Int32, bits as usize, 4, false), draft.scale()];
                if with_zeros {
                    parts.push(packed_down(&draft, bits as usize));
                }
                let half = f64::from(1 << (bits - 1));
                let zero = |zero: u32| if with_zeros { zero.into() } else { half };
                let mut case = draft.case(parts, f64::from, plain(scale_dtype), zero);
                case.parameters = Parameters {
                    bits: Some(bits),
                    shape: Some(vec![37, columns as u64]),
                    group: Some(Group::Neighbours(group as u64)),
                    ..Parameters::default()
                };
                if bits == 4 {
                    cases.push(with_group_index(random, &case, columns / group, 0));
                }
                cases.push(case);
            }
        }
    }
    for (bits, group) in [(2, 256), (4, 32)] {
        let draft = Draft::new(random, "gemma-packed", [1, 70, 256], [1, group], bits, Float32);
        let parts = vec![draft.rows(Uint8, bits as usize, 1, false), draft.scale()];
        let half = f64::from(1 << (bits - 1));
        let mut case = draft.case(parts, f64::from, plain(Float32), |_| half);
        case.parameters =
            Parameters { bits: Some(bits), group: Some(Group::Neighbours(group as u64)), ..Parameters::default() };
        cases.push(case);
    }
    let draft = Draft::new(random, "bnb-int8", [1, 300, 256], [1, 256], 8, Float32);
    let parts = vec![draft.rows(Int8, 8, 1, false), Stored { shape: vec![300], ..draft.scale() }];
    let case = draft.case(parts, plain(Int8), plain(Float32), none);
    cases.push(Case { parameters: Parameters::default(), ..case });
}

/// Zero points as compressed-tensors packs them: down each column, in words.
fn packed_down(draft: &Draft, bits: usize) -> Stored {
    let [rows, columns] = draft.grid;
    let words = (rows * bits).div_ceil(32);
    let mut bytes = vec![0; 4 * words * columns];
    for (at, zero) in draft.zeros.iter().enumerate() {
        for bit in 0..bits {
            let place = at / columns * bits + bit;
            put(&mut bytes, 32 * (place / 32 * columns + at % columns) + place % 32, 1, zero >> bit & 1);
        }
    }
    Stored { role: Role::ZeroPoint, dtype: Int32, shape: vec![words, columns], bytes }
}

/// The same weight with its columns in groups of any order: each takes scale and zero point of a column of that group.
fn with_group_index(random: &mut Random, case: &Case, groups: usize, scale_part: usize) -> Case {
    let columns = case.size[2];
    let group = columns.div_ceil(groups);
    let index: Vec<usize> = (0..columns).map(|_| random.below(groups)).collect();
    let of = |at: usize| at / columns * columns + index[at % columns] * group;
    let factors = case.factors.iter().enumerate();
    let factors = factors.map(|(at, factors)| Factors { code: factors.code, ..case.factors[of(at)] }).collect();
    let is_wide = scale_part == 1;
    let bytes = index.iter().flat_map(|group| (*group as i64).to_le_bytes()[..if is_wide { 8 } else { 4 }].to_vec());
    let dtype = if is_wide { Int64 } else { Int32 };
    let parts = case.parts.iter().map(|part| Stored { bytes: part.bytes.clone(), shape: part.shape.clone(), ..*part });
    let index = Stored { role: Role::GroupIndex, dtype, shape: vec![columns], bytes: bytes.collect() };
    Case { parameters: case.parameters.clone(), parts: parts.chain([index]).collect(), factors, ..*case }
}

/// Code `i` of a word is that of column `AWQ_ORDER[i]`.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

fn transposed(random: &mut Random, cases: &mut Vec<Case>) {
    for (layout, bits, is_one_less) in [
        ("gptq", 2, true),
        ("gptq", 3, true),
        ("gptq", 4, true),
        ("gptq", 8, true),
        ("gptq", 3, false),
        ("gptq", 4, false),
        ("awq", 4, false),
        ("quark-uint4", 4, false),
    ] {
        let is_awq = matches!(layout, "awq" | "quark-uint4");
        for scale_dtype in [Float16, Bfloat16, Float32] {
            let columns = if scale_dtype == Float16 { 1120 } else { 96 };
            let draft = Draft::new(random, layout, [1, 96, columns], [1, 32], bits, scale_dtype);
            let (rows, groups, width) = (96, draft.grid[1], bits as usize);
            let words = (columns * width / 32, rows * width / 32);
            let mut codes = vec![0; 4 * words.0 * rows];
            let mut zeros = vec![0; 4 * groups * words.1];
            let mut scales = Vec::new();
            let awq =
                |column: usize| 8 * (column / 8) + AWQ_ORDER.iter().position(|order| *order == column % 8).unwrap();
            for ([_, row, column], code) in draft.each().zip(&draft.codes) {
                if is_awq {
                    put(&mut codes, 4 * (column * rows + awq(row)), 4, *code);
                } else {
                    for bit in 0..width {
                        let place = column * width + bit;
                        put(&mut codes, 32 * (place / 32 * rows + row) + place % 32, 1, code >> bit & 1);
                    }
                }
            }
            for group in 0..groups {
                for row in 0..rows {
                    let at = row * groups + group;
                    let place = if is_awq { awq(row) } else { row };
                    put(&mut zeros, 32 * words.1 * group + place * width, width, draft.zeros[at]);
                    scales.extend(&draft.scales[at].to_le_bytes()[..scale_dtype.bits() as usize / 8]);
                }
            }
            let shape = if is_awq { vec![columns, rows / 8] } else { vec![words.0, rows] };
            let parts = vec![
                Stored { role: Role::ZeroPoint, dtype: Int32, shape: vec![groups, words.1], bytes: zeros },
                Stored { role: Role::Codes, dtype: Int32, shape, bytes: codes },
                Stored { role: Role::Scale, dtype: scale_dtype, shape: vec![groups, rows], bytes: scales },
            ];
            let zero = |zero: u32| f64::from(if is_one_less { (zero + 1) % (1 << bits) } else { zero });
            let mut case = draft.case(parts, f64::from, plain(scale_dtype), zero);
            case.parameters = Parameters { bits: Some(bits), zeros_are_one_less: is_one_less, ..Parameters::default() };
            if layout == "gptq" {
                cases.push(with_group_index(random, &case, groups, 1));
                cases.push(with_group_index(random, &case, groups, 0));
            }
            cases.push(case);
        }
    }
}

fn bitsandbytes(cases: &mut Vec<Case>) {
    let mut random = Random { state: 1, is_ordinary: true };
    let map: Vec<f32> = (0..16).map(|at| (at as f32 - 7.3) / 8.1).collect();
    let floats = |role: Role, values: &[f32]| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Stored { role, dtype: Float32, shape: vec![values.len()], bytes }
    };
    for (nested, weight_dtype) in [(false, None), (true, Some(Bfloat16)), (true, Some(Float16)), (false, Some(Float32))]
    {
        let storage = if nested { Int8 } else { Uint8 };
        // 3 x 1101 codes: rows start within a byte.
        let (rows, columns, group) = (3, 1101_usize, 64);
        let count = rows * columns;
        let codes: Vec<u32> = (0..count).map(|_| random.below(16) as u32).collect();
        let mut stream = vec![0; count.div_ceil(2)];
        codes.iter().enumerate().for_each(|(at, code)| put(&mut stream, 4 * (at ^ 1), 4, *code));
        let groups = count.div_ceil(group);
        let mut parts = vec![
            floats(Role::CodeMap, &map),
            Stored { role: Role::Codes, dtype: storage, shape: vec![stream.len(), 1], bytes: stream },
        ];
        let offset = 0.031_f32;
        let scales: Vec<f32> = if nested {
            let absmax: Vec<u8> = (0..groups).map(|at| (at * 37) as u8).collect();
            let nested: Vec<f32> = (0..groups.div_ceil(16)).map(|at| 0.01 + at as f32 / 77.0).collect();
            let values: Vec<f32> = (0..256).map(|at| (at as f32 - 127.0) / 128.3).collect();
            let scale = |(at, code): (usize, &u8)| (values[usize::from(*code)] * nested[at / 16]) + offset;
            let scales = absmax.iter().enumerate().map(scale).collect();
            parts.extend([floats(Role::NestedScale, &nested), floats(Role::NestedMap, &values)]);
            parts.push(Stored { role: Role::Scale, dtype: Uint8, shape: vec![groups], bytes: absmax });
            scales
        } else {
            let scales: Vec<f32> = (0..groups).map(|_| random.below(1000) as f32 / 4096.0).collect();
            parts.push(floats(Role::Scale, &scales));
            scales
        };
        let factors = codes.iter().enumerate().map(|(at, code)| Factors {
            code: map[*code as usize].into(),
            zero: 0.0,
            scale: scales[at / group].into(),
            global: 0.0,
            offset: 0.0,
        });
        let parameters = Parameters {
            shape: Some(vec![rows as u64, columns as u64]),
            group: Some(Group::Neighbours(group as u64)),
            nested_group: Some(16),
            nested_offset: offset,
            weight_dtype,
            ..Parameters::default()
        };
        cases.push(Case {
            layout: "bnb-4bit",
            parameters,
            parts,
            size: [1, rows, columns],
            factors: factors.collect(),
        });
    }
}

/// Codes of any width are a stream of bits in each row.
fn mlx(random: &mut Random, cases: &mut Vec<Case>) {
    for scale_dtype in [Float32, Bfloat16, Float16] {
        for (bits, group, size) in [
            (2, 32, [1, 37, 160]),
            (3, 64, [1, 37, 1152]),
            (4, 64, [3, 8, 1152]),
            (5, 32, [1, 37, 96]),
            (6, 128, [1, 37, 1280]),
            (8, 32, [2, 9, 256]),
        ] {
            let draft = Draft::new(random, "mlx-affine", size, [1, group], bits, scale_dtype);
            // Some offsets are those of the scales, some are near a product, and some are much smaller.
            let number = plain(scale_dtype);
            let is_ordinary = random.is_ordinary;
            let offset = |(at, scale): (usize, &u32)| match at % 4 {
                0 if !is_ordinary => draft.scales[(7 * at + 5) % draft.scales.len()],
                1 => bits_of(round(-3.0 * number(*scale), scale_dtype), scale_dtype),
                2 => bits_of(round(number(*scale) / 4096.0, scale_dtype), scale_dtype),
                _ => bits_of(round(1.7 * number(*scale), scale_dtype), scale_dtype),
            };
            let offsets: Vec<u32> = draft.scales.iter().enumerate().map(offset).collect();
            let width = scale_dtype.bits() as usize / 8;
            let bytes = offsets.iter().flat_map(|bits| bits.to_le_bytes()[..width].to_vec()).collect();
            let stored = Stored { role: Role::Offset, dtype: scale_dtype, shape: draft.shape(draft.grid), bytes };
            let parts = vec![draft.rows(Uint32, bits as usize, 4, false), draft.scale(), stored];
            let mut case = draft.case(parts, f64::from, number, none);
            case.factors.iter_mut().enumerate().for_each(|(at, factors)| factors.offset = number(offsets[at / group]));
            let group = Some(Group::Neighbours(group as u64));
            case.parameters = Parameters { bits: Some(bits), group, ..Parameters::default() };
            cases.push(case);
        }
    }
    let (e2m1, e4m3) = (plain(Float4E2M1), plain(Float8E4M3FN));
    let power = |byte| exponent(byte, TINY, INFINITY);
    let draft = Draft::new(random, "mlx-mxfp4", [2, 9, 1088], [1, 32], 4, Uint8);
    let parts = vec![draft.rows(Uint32, 4, 4, false), draft.scale()];
    cases.push(draft.case(parts, e2m1, power, none));
    let draft = Draft::new(random, "mlx-mxfp8", [1, 18, 1088], [1, 32], 8, Uint8);
    let parts = vec![draft.rows(Uint32, 8, 4, false), draft.scale()];
    cases.push(draft.case(parts, e4m3, power, none));
    for value in [None, Some(2688.0), Some(0.37), Some(1e-36), Some(1e36), Some(0.0), Some(f32::NAN)] {
        let mut draft = Draft::new(random, "mlx-nvfp4", [1, 16, 1088], [1, 16], 4, Float8E4M3FN);
        draft.global = value.unwrap_or(2688.0);
        let mut parts = vec![draft.rows(Uint32, 4, 4, false), Stored { dtype: Uint8, ..draft.scale() }];
        parts.extend(value.map(global));
        cases.push(draft.case(parts, e2m1, e4m3, none));
    }
}

/// Integers of 4 bits with signs, integers that levels stand for, and centered codes with offsets.
fn comfy(random: &mut Random, cases: &mut Vec<Case>) {
    for scale_dtype in [Float32, Bfloat16, Float16] {
        let draft = Draft::new(random, "comfy-int4", [1, 70, 256], [1, 256], 4, scale_dtype);
        let parts = vec![draft.rows(Int8, 4, 1, false), Stored { shape: vec![70], ..draft.scale() }];
        let case = draft.case(parts, |code| f64::from((code as i32 ^ 8) - 8), plain(scale_dtype), none);
        cases.push(Case { parameters: Parameters { group: Some(Group::Channel), ..Parameters::default() }, ..case });
        let draft = Draft::new(random, "comfy-awq", [1, 24, 1280], [1, 64], 4, scale_dtype);
        // Far enough from each product that no sum is a tie in float64.
        let offset = |at: usize| bits_of(round(0.3 + at as f64 / 77.0, scale_dtype), scale_dtype);
        let width = scale_dtype.bits() as usize / 8;
        let transposed = |bits: &dyn Fn(usize) -> u32| {
            let places = (0..20).flat_map(|group| (0..24).map(move |row| row * 20 + group));
            places.flat_map(|at| bits(at).to_le_bytes()[..width].to_vec()).collect()
        };
        let part = |role, bytes| Stored { role, dtype: scale_dtype, shape: vec![20, 24], bytes };
        let parts = vec![
            draft.rows(Int8, 4, 1, false),
            part(Role::Scale, transposed(&|at| draft.scales[at])),
            part(Role::Offset, transposed(&offset)),
        ];
        let mut case = draft.case(parts, f64::from, plain(scale_dtype), |_| 8.0);
        for (at, factors) in case.factors.iter_mut().enumerate() {
            factors.offset = number(scale_dtype, offset(at / 64));
        }
        let group = Some(Group::Neighbours(64));
        case.parameters = Parameters { bits: Some(4), group, ..Parameters::default() };
        cases.push(case);
    }
    let levels: [f32; 16] = std::array::from_fn(|at| (at as f32 - 7.3) / 8.1);
    for (bits, scale_dtype, has_map, has_offsets) in [
        (4, Float8E4M3FN, true, false),
        (4, Float32, true, random.is_ordinary),
        (4, Float8E4M3FN, false, random.is_ordinary),
        (6, Float8E4M3FN, false, false),
        (6, Float32, false, random.is_ordinary),
    ] {
        let (rows, columns, group) = (20, 1120, 32);
        let draft = Draft::new(random, "comfy-w4a8", [1, rows, columns], [1, group], bits, scale_dtype);
        let stride = columns * bits as usize / 8;
        let mut stream = vec![0; rows * stride];
        for ([_, row, column], code) in draft.each().zip(&draft.codes) {
            put(&mut stream, 8 * row * stride + 4 * column, 4, code & 15);
            if bits == 6 {
                put(&mut stream, 8 * (row * stride + columns / 2) + 2 * column, 2, code >> 4);
            }
        }
        let of_row = |row: usize| (0.001 * (row as f32 + 1.0)).to_bits();
        let offset = |at: usize| (0.3 + at as f32 / 77.0).to_bits();
        let floats = |role, shape: Vec<usize>, bits: &dyn Fn(usize) -> u32| {
            let bytes = (0..shape.iter().product()).flat_map(|at| bits(at).to_le_bytes()).collect();
            Stored { role, dtype: Float32, shape, bytes }
        };
        let groups = columns / group;
        let mut parts = vec![
            Stored { role: Role::Codes, dtype: Int8, shape: vec![rows, stride], bytes: stream },
            draft.scale(),
            floats(Role::RowScale, vec![rows], &of_row),
        ];
        if has_map {
            parts.push(floats(Role::CodeMap, vec![16], &|at| levels[at].to_bits()));
        }
        if has_offsets {
            parts.push(floats(Role::Offset, vec![groups, rows], &|at| offset(at % rows * groups + at / rows)));
        }
        let number = plain(scale_dtype);
        let half = f64::from(1 << (bits - 1));
        let mut case = draft.case(parts, f64::from, number, none);
        for (at, factors) in case.factors.iter_mut().enumerate() {
            let level = if has_map { levels[factors.code as usize].into() } else { factors.code - half };
            let product = round(level * factors.scale, Float32).round_ties_even();
            let code = if product.is_nan() { product } else { product.clamp(-127.0, 127.0) };
            let offset = if has_offsets { f32::from_bits(offset(at / group)).into() } else { -0.0 };
            let scale = f32::from_bits(of_row(at / columns)).into();
            *factors = Factors { code, zero: 0.0, scale, global: 0.0, offset };
        }
        let group = Some(Group::Neighbours(group as u64));
        case.parameters = Parameters { bits: Some(bits), group, ..Parameters::default() };
        cases.push(case);
    }
}

/// Writes codes in units of SDNQ: the first codes have the low bits of a byte each, and the bits of the others are
/// listed from the highest, by the byte and the bit that hold them.
fn units(codes: &[u32], bits: usize) -> Vec<u8> {
    let others: &[&[(usize, usize)]] = match bits {
        3 => &[
            &[(0, 5), (0, 4), (0, 3)],
            &[(1, 5), (1, 4), (1, 3)],
            &[(2, 5), (2, 4), (2, 3)],
            &[(2, 6), (0, 7), (0, 6)],
            &[(2, 7), (1, 7), (1, 6)],
        ],
        5 => &[
            &[(3, 6), (3, 5), (0, 7), (0, 6), (0, 5)],
            &[(4, 6), (4, 5), (1, 7), (1, 6), (1, 5)],
            &[(3, 7), (4, 7), (2, 7), (2, 6), (2, 5)],
        ],
        6 => &[&[(0, 7), (0, 6), (1, 7), (1, 6), (2, 7), (2, 6)]],
        7 => &[&[(0, 7), (1, 7), (2, 7), (3, 7), (4, 7), (5, 7), (6, 7)]],
        _ => &[],
    };
    if others.is_empty() {
        let mut bytes = vec![0; codes.len() * bits / 8];
        codes.iter().enumerate().for_each(|(at, code)| put(&mut bytes, at * bits, bits, *code));
        return bytes;
    }
    let low = if bits == 6 { 3 } else { bits }; // bytes of a unit
    let unit = |codes: &[u32]| {
        let mut bytes: Vec<u8> = codes[..low].iter().map(|code| *code as u8).collect();
        for (code, places) in codes[low..].iter().zip(others) {
            for (at, (byte, bit)) in places.iter().rev().enumerate() {
                bytes[*byte] |= ((code >> at & 1) as u8) << bit;
            }
        }
        bytes
    };
    codes.chunks_exact(low + others.len()).flat_map(unit).collect()
}

fn sdnq(random: &mut Random, cases: &mut Vec<Case>) {
    for scale_dtype in [Float32, Bfloat16, Float16] {
        for (layout, bits) in (2..=8).map(|bits| ("sdnq-int", bits)).chain((1..=8).map(|bits| ("sdnq-uint", bits))) {
            // Rows of 8 bits that are longer than a segment, and others that start within a unit.
            let (rows, columns, group) = match bits {
                8 => (5, 1120, 35),
                4 => (70, 256, 256),
                _ => (56, 99, 11),
            };
            let is_signed = layout == "sdnq-int";
            let layout = if (layout, bits) == ("sdnq-int", 8) { "sdnq-8bit" } else { layout };
            let draft = Draft::new(random, layout, [1, rows, columns], [1, group], bits, scale_dtype);
            let groups = columns / group;
            let bytes = units(&draft.codes, bits as usize);
            let unit = [1, 1, 3, 1, 5, 3, 7, 1][bits as usize - 1];
            let codes = match (bits, is_signed) {
                (8, true) => Stored { role: Role::Codes, dtype: Int8, shape: vec![rows, columns / 35, 35], bytes },
                (8, false) => Stored { role: Role::Codes, dtype: Uint8, shape: vec![rows, columns / 35, 35], bytes },
                // A byte in each int64.
                (1, _) => Stored {
                    role: Role::Codes,
                    dtype: Int64,
                    shape: vec![bytes.len()],
                    bytes: bytes.iter().flat_map(|byte| u64::from(*byte).to_le_bytes()).collect(),
                },
                (2 | 4, _) => Stored { role: Role::Codes, dtype: Uint8, shape: vec![bytes.len()], bytes },
                _ => Stored { role: Role::Codes, dtype: Uint8, shape: vec![bytes.len() / unit, unit], bytes },
            };
            let shape = if groups == 1 { vec![rows, 1] } else { vec![rows, groups, 1] };
            let mut parts = vec![codes, Stored { shape: shape.clone(), ..draft.scale() }];
            // Far enough from each product that no sum is a tie in float64.
            let offset = |at: usize| bits_of(round(0.3 + at as f64 / 77.0, scale_dtype), scale_dtype);
            if !is_signed {
                let width = scale_dtype.bits() as usize / 8;
                let bytes = (0..rows * groups).flat_map(|at| offset(at).to_le_bytes()[..width].to_vec()).collect();
                parts.push(Stored { role: Role::Offset, dtype: scale_dtype, shape, bytes });
            }
            let half = 1_i32 << (bits - 1);
            let code = |code: u32| {
                let number = code as i32;
                f64::from(match (is_signed, bits) {
                    (true, 8) => number as i8 as i32,
                    (true, _) => number - half,
                    (false, _) => number,
                })
            };
            let mut case = draft.case(parts, code, plain(scale_dtype), none);
            if !is_signed {
                for (at, factors) in case.factors.iter_mut().enumerate() {
                    factors.offset = number(scale_dtype, offset(at / group));
                }
            }
            case.parameters = Parameters { bits: Some(bits), ..Parameters::default() };
            cases.push(case);
        }
    }
}

/// The bits of a number of a type.
fn bits_of(value: f64, dtype: Dtype) -> u32 {
    let bytes = bytes(value, dtype);
    bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte))
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for is_ordinary in [false, true] {
        let mut random = Random { state: 0x9e37_79b9_7f4a_7c15, is_ordinary };
        floats_of_8_bits(&mut random, &mut cases);
        nvfp4(&mut random, &mut cases);
        gpt_oss(&mut random, &mut cases);
        integers(&mut random, &mut cases);
        transposed(&mut random, &mut cases);
        mlx(&mut random, &mut cases);
        comfy(&mut random, &mut cases);
        sdnq(&mut random, &mut cases);
    }
    bitsandbytes(&mut cases);
    cases
}

/// The value before it is rounded to the target, in the steps of each library: R(x) of the documents is `round(x, type)`.
fn library(case: &Case, factors: Factors, scale_dtype: Dtype, target: Dtype) -> f64 {
    let Factors { code, zero, scale, global, offset } = factors;
    let f32 = |value: f64| round(value, Float32);
    let to = |value: f64| round(value, target);
    match case.layout {
        "hf-fp8" | "hf-fp4" | "modelopt-mxfp4" | "modelopt-mxfp8" | "comfy-mxfp8" | "comfy-int8" | "comfy-int4"
        | "mlx-mxfp4" | "mlx-mxfp8" => f32(code * scale),
        "torchao-fp8" | "torchao-int8" | "quark-fp8" | "quark-int8" | "quark-uint4" => f32((code - zero) * scale),
        "ct-fp8" | "ct-int8" | "ct-pack" | "gptq" | "awq" | "quanto" | "sdnq-8bit" | "sdnq-int" => {
            round((code - zero) * scale, scale_dtype)
        }
        "sdnq-uint" => round(f32(add(code * scale, offset)), scale_dtype),
        "ct-nvfp4" => round(f32(code * f32(scale / global)), Bfloat16),
        "ct-mxfp4" | "ct-mxfp6" | "ct-mxfp8" => round(code * scale, Bfloat16),
        "modelopt-fp8" | "comfy-fp8" | "comfy-scaled-fp8" | "quark-mxfp4" => f32(code * to(scale)),
        "gemma-packed" | "gemma-int8" => f32((code - zero) * to(scale)),
        "modelopt-nvfp4" => f32(code * f32(scale * global)),
        "comfy-nvfp4" => f32(code * to(to(global) * to(scale))),
        "gptoss-mxfp4" | "gptoss-openai" => code * scale,
        "bnb-4bit" => round(f32(code * scale), case.parameters.weight_dtype.unwrap_or(Float32)),
        "bnb-int8" => f32(f32(code * scale) * f64::from(1.0_f32 / 127.0)),
        // To the scales' own type in that type, otherwise in float32.
        "comfy-awq" => {
            let promoted = if scale_dtype == target { target } else { Float32 };
            round(f32(round((code - zero) * scale, promoted)) + offset, promoted)
        }
        "comfy-w4a8" => f32(f32(code * scale) + offset),
        "mlx-affine" => round(f32(round(code * scale, scale_dtype) + offset), scale_dtype),
        "mlx-nvfp4" => f32(code * f32(scale * f32(global / 2688.0))),
        other => panic!("{other}"),
    }
}

/// The exact value. A quotient is rounded as float64, which is far enough from every tie.
fn exactly(case: &Case, factors: Factors) -> f64 {
    let Factors { code, zero, scale, global, offset } = factors;
    match case.layout {
        "ct-nvfp4" => code * scale / global,
        "mlx-nvfp4" => code * scale * global / 2688.0,
        "mlx-affine" | "comfy-awq" | "comfy-w4a8" | "sdnq-uint" => add((code - zero) * scale, offset),
        "modelopt-nvfp4" | "comfy-nvfp4" => code * scale * global,
        "bnb-int8" => code * scale / 127.0,
        _ => (code - zero) * scale,
    }
}

/// A sum that rounds to narrower types as the exact sum does: if float64 cannot hold it, the neighbour that is odd.
fn add(one: f64, other: f64) -> f64 {
    let sum = one + other;
    let (large, small) = if one.abs() < other.abs() { (other, one) } else { (one, other) };
    let error = small - (sum - large);
    if error == 0.0 || !error.is_finite() || sum.to_bits() % 2 == 1 {
        sum
    } else if error > 0.0 {
        sum.next_up()
    } else {
        sum.next_down()
    }
}

fn check(case: &Case, target: Dtype, arithmetic: Arithmetic) {
    let layout = find(case.layout).unwrap();
    let shapes: Vec<Vec<u64>> =
        case.parts.iter().map(|part| part.shape.iter().map(|length| *length as u64).collect()).collect();
    let names: Vec<String> = case.parts.iter().map(|part| format!("{:?}", part.role)).collect();
    let parts = case.parts.iter().zip(&shapes).zip(&names);
    let parts: Vec<Part> =
        parts.map(|((part, shape), name)| Part { role: part.role, name, dtype: part.dtype, shape }).collect();
    let what = format!("{} {:?} {target} {arithmetic:?}", case.layout, shapes);
    let mut decoder =
        Decoder::new(layout, &case.parameters, &parts, target, arithmetic).unwrap_or_else(|e| panic!("{what}: {e}"));
    let bytes_of: Vec<&[u8]> = case.parts.iter().map(|part| &part.bytes[..]).collect();
    assert_eq!(
        [decoder.rows(), decoder.columns()],
        [case.size[0] * case.size[1], case.size[2]].map(|n| n as u64),
        "{what}"
    );
    let mut out = vec![0; case.factors.len() * target.bits() as usize / 8];
    decoder = decoder.on(Isa::Baseline);
    let tally = decoder.decode(0..decoder.rows(), &bytes_of, &mut out).unwrap();
    for isa in Isa::available() {
        let mut again = vec![0xa5; out.len()];
        decoder = decoder.on(isa);
        let other = decoder.decode(0..decoder.rows(), &bytes_of, &mut again).unwrap();
        assert!(again == out && other == tally, "{what}: {isa:?}");
    }
    let scale_dtype = case.parts.iter().find(|part| part.role == Role::Scale).unwrap().dtype;
    let mut wanted = DecodeTally::default();
    let width = target.bits() as usize / 8;
    for (at, (factors, ours)) in case.factors.iter().zip(out.chunks_exact(width)).enumerate() {
        let value = match arithmetic {
            Arithmetic::Library => library(case, *factors, scale_dtype, target),
            Arithmetic::Exact => exactly(case, *factors),
        };
        let rounded = round(value, target);
        let is_nothing = factors.scale == 0.0
            || match layout.global {
                Combination::Multiplier | Combination::OverLargest => factors.global == 0.0,
                Combination::Divisor => factors.global.is_infinite(),
                _ => false,
            };
        wanted.flushed += if case.parts.iter().any(|part| part.role == Role::Offset) {
            u64::from(rounded == 0.0 && value != 0.0)
        } else {
            u64::from(rounded == 0.0 && factors.code != factors.zero && !is_nothing)
        };
        let value = rounded;
        let place = [at / case.size[2], at % case.size[2]];
        let Factors { code, zero, scale, global, offset } = factors;
        let made_of = format!("({code} - {zero}) * {scale} + {offset}, {global}");
        assert_eq!(ours, bytes(value, target), "{what}: {place:?}: {made_of}: {value}");
        if value.is_nan() {
            let is_nan = [code, scale, global, offset].into_iter().any(|factor| factor.is_nan());
            (if is_nan { &mut wanted.input_nan } else { &mut wanted.nan }).add(at as u64);
        } else if value.is_infinite() {
            let are_finite = [code, scale, global, offset].into_iter().all(|factor| factor.is_finite());
            (if are_finite { &mut wanted.infinite } else { &mut wanted.input_infinite }).add(at as u64);
        }
    }
    assert_eq!(tally, wanted, "{what}");
}

#[test]
fn every_layout_decodes_as_a_slow_reference_does() {
    let cases = cases();
    for layout in layouts() {
        assert!(cases.iter().any(|case| case.layout == layout.name), "{}", layout.name);
    }
    for case in &cases {
        for target in [Bfloat16, Float16, Float32] {
            for arithmetic in [Arithmetic::Library, Arithmetic::Exact] {
                check(case, target, arithmetic);
            }
        }
    }
}

/// Long rows are divided, short ones are not: either way the values are those of all rows at once.
#[test]
fn values_are_the_same_however_rows_are_divided() {
    let mut random = Random { state: 5, is_ordinary: true };
    for (layout, size, block, bits, scale_dtype) in [
        ("hf-fp8", [1, 2, 1_060_001], [128, 128], 8, Float32),
        ("ct-mxfp6", [1, 2, 1_060_000], [1, 32], 6, Uint8),
        ("hf-fp8", [2, 70, 300], [16, 48], 8, Bfloat16),
    ] {
        let draft = Draft::new(&mut random, layout, size, block, bits, scale_dtype);
        let dtype = if bits == 8 { Float8E4M3FN } else { Uint8 };
        let stored = [draft.rows(dtype, bits as usize, 1, false), draft.scale()];
        let shapes = stored.each_ref().map(|part| part.shape.iter().map(|length| *length as u64).collect::<Vec<_>>());
        let parts =
            [0, 1].map(|at| Part { role: stored[at].role, name: "w", dtype: stored[at].dtype, shape: &shapes[at] });
        let [rows, columns] = block.map(|side| side as u64);
        let given = if bits == 6 { None } else { Some(Group::Block([rows, columns])) };
        let parameters = Parameters { group: given, ..Parameters::default() };
        let decoder = Decoder::new(find(layout).unwrap(), &parameters, &parts, Float32, Arithmetic::Library).unwrap();
        let bytes = stored.each_ref().map(|part| &part.bytes[..]);
        let all = decoder.rows() * decoder.columns();
        let mut whole = vec![0; 4 * all as usize];
        let wanted = decoder.decode(0..decoder.rows(), &bytes, &mut whole).unwrap();
        for step in [1 << 18, 100_003] {
            let (mut start, mut tally, mut longest) = (0, DecodeTally::default(), 0);
            while start < all {
                let end = decoder.cut(start, start + step);
                assert!(start < end && end <= all);
                longest = longest.max(end - start);
                // Bytes outside of the ranges are others, and change nothing.
                let ranges = decoder.value_ranges(start..end);
                let needed = bytes.iter().zip(&ranges).map(|(bytes, range)| {
                    let mut needed = vec![0x5b; bytes.len()];
                    let range = range.start as usize..range.end as usize;
                    needed[range.clone()].copy_from_slice(&bytes[range]);
                    needed
                });
                let needed: Vec<Vec<u8>> = needed.collect();
                let needed: Vec<&[u8]> = needed.iter().map(|bytes| &bytes[..]).collect();
                let mut part = vec![0; 4 * (end - start) as usize];
                tally += decoder.decode_values(start..end, &needed, &mut part).unwrap();
                assert!(part == whole[4 * start as usize..4 * end as usize], "{layout} {start}..{end}");
                start = end;
            }
            assert_eq!(tally, wanted);
            assert!(longest <= step.max(1 << 16), "{layout}: {longest}");
        }
        for (start, end) in [(0, 1), (1_000_001.min(all - 1), 1_000_002.min(all)), (all - 1, all), (500, 21_000)] {
            let around = decoder.around(start..end);
            assert!(around.start <= start && end <= around.end && around.end <= all);
            let mut part = vec![0; 4 * (around.end - around.start) as usize];
            decoder.decode_values(around.clone(), &bytes, &mut part).unwrap();
            assert!(part == whole[4 * around.start as usize..4 * around.end as usize], "{layout} {around:?}");
        }
    }
}

#[test]
fn exact_quotients_are_the_nearest_values() {
    let is_divided = |case: &&Case| matches!(case.layout, "ct-nvfp4" | "bnb-int8");
    for case in cases().iter().filter(is_divided) {
        for factors in &case.factors {
            let divisor = if case.layout == "bnb-int8" { 127.0 } else { factors.global };
            let (dividend, value) = (factors.code * factors.scale, round(exactly(case, *factors), Float32));
            if !value.is_finite() || value == 0.0 || value.abs() > 1e38 || !divisor.is_normal() {
                continue;
            }
            // Products of float32 are exact in float64, and so are differences of such that are close to each other.
            let error = |value: f64| (value * divisor - dividend).abs();
            let near = f64::from((value as f32).next_up()).min(f64::MAX);
            assert!(error(value) <= error(near) && error(value) <= error(f64::from((value as f32).next_down())));
        }
    }
}

#[test]
fn a_rotated_weight_is_multiplied_with_the_matrix_of_its_rotation() {
    const H4: [[i32; 4]; 4] = [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]];
    let mut random = Random { state: 1, is_ordinary: true };
    for size in [4, 16, 64, 256, 1024_usize] {
        let (rows, columns) = (3, 2048);
        let codes: Vec<i8> = (0..rows * columns).map(|_| random.next() as i8).collect();
        let bytes: Vec<u8> = codes.iter().map(|code| *code as u8).collect();
        // Powers of two, so that all sums are exact in any order.
        let scales = [0.25_f32, 1.0, 0.0078125];
        let scale_bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let parts = [
            Part { role: Role::Codes, name: "w", dtype: Int8, shape: &[3, 2048] },
            Part { role: Role::Scale, name: "s", dtype: Float32, shape: &[3, 1] },
        ];
        let parameters = Parameters { rotation: Some(size as u64), ..Parameters::default() };
        // The sign of an element of the Kronecker power: the product over the base-4 digits of row and column.
        let sign = |mut row: usize, mut column: usize| {
            let mut sign = 1;
            for _ in 0..size.ilog(4) {
                sign *= H4[row % 4][column % 4];
                (row, column) = (row / 4, column / 4);
            }
            f64::from(sign)
        };
        for arithmetic in [Arithmetic::Library, Arithmetic::Exact] {
            for target in [Float32, Bfloat16] {
                let decoder =
                    Decoder::new(find("comfy-int8").unwrap(), &parameters, &parts, target, arithmetic).unwrap();
                let width = target.bits() as usize / 8;
                let mut out = vec![0; rows * columns * width];
                decoder.decode(0..3, &[&bytes, &scale_bytes], &mut out).unwrap();
                for (at, ours) in out.chunks_exact(width).enumerate().step_by(if size > 64 { 7 } else { 1 }) {
                    let (row, group, column) = (at / columns, at / size * size, at % size);
                    let sum: f64 = (0..size).map(|other| f64::from(codes[group + other]) * sign(other, column)).sum();
                    let value = sum * f64::from(scales[row]) / (size as f64).sqrt();
                    assert_eq!(ours, bytes_of(value, target), "{size} {target} {arithmetic:?} {at}");
                }
            }
        }
    }
}

fn bytes_of(value: f64, target: Dtype) -> Vec<u8> {
    bytes(round(value, target), target)
}
