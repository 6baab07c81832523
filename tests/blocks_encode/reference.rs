//! A slow reference implementation of the searches, one group after the other, written from the source of ggml without a
//! look at the encoders.

#![allow(clippy::similar_names, reason = "sums have the names of ggml")]

use half::f16;

/// An element of a block: its code, the scale, and the offset that is subtracted.
pub(crate) type Element = (u32, f64, Option<f64>);

/// Encodes a row of whole blocks.
pub(crate) fn encode(name: &str, row: &[f32], importance: Option<&[f32]>) -> Vec<Element> {
    let row_mean = sum(row.iter().map(|x| x * x)) / row.len() as f32;
    let block = if name.contains('K') { 256 } else { 32 };
    let mut elements = Vec::new();
    for (at, x) in row.chunks(block).enumerate() {
        let q = importance.map(|q| &q[at * block..][..block]);
        elements.extend(match name {
            "Q4_0" => legacy(x, q, row_mean, 8),
            "Q5_0" => legacy(x, q, row_mean, 16),
            "Q4_1" => legacy_with_offset(x, q, row_mean, 15),
            "Q5_1" => legacy_with_offset(x, q, row_mean, 31),
            "Q2_K" | "Q4_K" | "Q5_K" => with_offsets(name, x, q),
            "Q3_K" => q3_k(x, q),
            "Q6_K" => q6_k(x, q),
            _ => unreachable!(),
        });
    }
    elements
}

fn legacy(x: &[f32], q: Option<&[f32]>, row_mean: f32, n: i32) -> Vec<Element> {
    let q = q.expect("only searches have a reference");
    let (scale, codes) = make_qx(x, n, &weights(x, q, row_mean));
    codes.iter().map(|code| (*code as u32, half(scale), None)).collect()
}

fn legacy_with_offset(x: &[f32], q: Option<&[f32]>, row_mean: f32, n: i32) -> Vec<Element> {
    let q = q.expect("only searches have a reference");
    let (scale, min, codes) = make_qkx(x, &weights(x, q, row_mean), n, (-0.9, 0.05, 36), false, true);
    codes.iter().map(|code| (*code as u32, half(scale), Some(-half(-min)))).collect()
}

fn with_offsets(name: &str, x: &[f32], q: Option<&[f32]>) -> Vec<Element> {
    let (size, n, most, steps, times) = match name {
        "Q2_K" => (16, 3, 15, (-0.5, 0.1, 15), 1.0),
        "Q4_K" => (32, 15, 63, (-1.0, 0.1, 20), 2.0),
        _ => (32, 31, 63, (-0.5, 0.1, 15), 2.0),
    };
    let sigma = times * sum(x.iter().map(|x| x * x)) / 256.0;
    let (mut scales, mut mins, mut sums, mut codes) = (vec![], vec![], vec![], vec![]);
    for (at, x) in x.chunks(size).enumerate() {
        let (scale, min, found) = if let Some(q) = q {
            let w = weights(x, &q[at * size..][..size], sigma);
            sums.push(sum(w.iter().copied()));
            make_qkx(x, &w, n, (-0.9, 0.05, 36), false, true)
        } else if name == "Q2_K" {
            let w: Vec<f32> = x.iter().map(|x| x.abs()).collect();
            make_qkx(x, &w, n, steps, true, false)
        } else {
            let mean = (sum(x.iter().map(|x| x * x)) / 32.0).sqrt();
            let w: Vec<f32> = x.iter().map(|x| mean + x.abs()).collect();
            make_qkx(x, &w, n, steps, false, false)
        };
        scales.push(scale);
        mins.push(min);
        codes.extend(found);
    }
    let fit = |numbers: &[f32]| -> (f32, Vec<u8>) {
        if q.is_some() {
            return make_qp(numbers, most, &sums);
        }
        let highest = numbers.iter().fold(0.0, |a: f32, b| if *b > a { *b } else { a });
        let factor = if highest > 0.0 { most as f32 / highest } else { 0.0 };
        let codes = numbers.iter().map(|number| nearest(factor * number) as u8);
        (highest / most as f32, codes.map(|code| if most == 63 { code.min(63) } else { code }).collect())
    };
    let ((d, ls), (dmin, lm)) = (fit(&scales), fit(&mins));
    // No test has integers that exceed their bits.
    let mut elements = Vec::new();
    for (at, x) in x.iter().enumerate() {
        let group = at / size;
        let (scale, offset) = (half(d) as f32 * f32::from(ls[group]), half(dmin) as f32 * f32::from(lm[group]));
        let code = if scale == 0.0 { codes[at] } else { nearest((x + offset) / scale).clamp(0, n) };
        elements.push((code as u32, scale.into(), Some(offset.into())));
    }
    elements
}

fn q3_k(x: &[f32], q: Option<&[f32]>) -> Vec<Element> {
    let sigma = 2.0 * sum(x.iter().map(|x| x * x)) / 256.0;
    let (mut scales, mut sums, mut codes) = (vec![], vec![], vec![]);
    for (at, x) in x.chunks(16).enumerate() {
        let (scale, found) = if let Some(q) = q {
            let w = weights(x, &q[at * 16..][..16], sigma);
            sums.push(sum(w.iter().copied()));
            make_qx(x, 4, &w)
        } else {
            make_q3(x)
        };
        scales.push(scale);
        codes.extend(found);
    }
    let (d, integers) = if q.is_some() {
        let (d, integers) = make_qx(&scales, 32, &sums);
        (d, integers.iter().map(|integer| integer - 32).collect())
    } else {
        let (_, largest) = first_largest(&scales);
        if largest == 0.0 {
            (0.0, vec![-32; 16])
        } else {
            let factor = -32.0 / largest;
            let integers = scales.iter().map(|scale| i32::from(nearest(factor * scale) as i8).clamp(-32, 31));
            (1.0 / factor, integers.collect::<Vec<i32>>())
        }
    };
    let mut elements = Vec::new();
    for (at, x) in x.iter().enumerate() {
        let scale = half(d) as f32 * integers[at / 16] as f32;
        let code = if scale == 0.0 { codes[at] } else { nearest(x / scale).clamp(-4, 3) + 4 };
        elements.push((code as u32, scale.into(), None));
    }
    elements
}

fn q6_k(x: &[f32], q: Option<&[f32]>) -> Vec<Element> {
    let (mut scales, mut codes) = (vec![], vec![]);
    for (at, x) in x.chunks(16).enumerate() {
        let squares: Vec<f32> = x.iter().map(|x| x * x).collect();
        let (scale, found) = make_qx(x, 32, q.map_or(&squares, |q| &q[at * 16..][..16]));
        scales.push(scale);
        codes.extend(found);
    }
    let (magnitude, largest) = first_largest(&scales);
    if magnitude < 1e-15 {
        return vec![(0, 0.0, None); 256];
    }
    let factor = -128.0 / largest;
    let mut elements = Vec::new();
    for (at, x) in x.iter().enumerate() {
        let integer = nearest(factor * scales[at / 16]).min(127) as i8;
        let scale = half(1.0 / factor) as f32 * f32::from(integer);
        let code = if scale == 0.0 { codes[at] } else { nearest(x / scale).clamp(-32, 31) + 32 };
        elements.push((code as u32, scale.into(), None));
    }
    elements
}

fn weights(x: &[f32], q: &[f32], sigma: f32) -> Vec<f32> {
    x.iter().zip(q).map(|(x, q)| q * (sigma + x * x).sqrt()).collect()
}

/// `make_qx_quants` with a kind of error that is not 0.
fn make_qx(x: &[f32], n: i32, w: &[f32]) -> (f32, Vec<i32>) {
    let (magnitude, largest) = first_largest(x);
    if magnitude < 1e-15 {
        return (0.0, vec![0; x.len()]);
    }
    let codes = |factor: f32| -> Vec<i32> { x.iter().map(|x| nearest(factor * x).clamp(-n, n - 1)).collect() };
    let sums = |codes: &[i32]| {
        let mut sums = [0.0_f32; 2];
        for ((x, w), code) in x.iter().zip(w).zip(codes) {
            let code = *code as f32;
            sums = [sums[0] + w * x * code, sums[1] + w * code * code];
        }
        sums
    };
    let mut best_codes = codes(-(n as f32) / largest);
    let [sum_lx, sum_l2] = sums(&best_codes);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for step in -9..=9 {
        if step != 0 {
            let tried = codes(-(n as f32 + 0.1 * step as f32) / largest);
            let [sum_lx, sum_l2] = sums(&tried);
            if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
                (scale, best_codes) = (sum_lx / sum_l2, tried);
                best = scale * sum_lx;
            }
        }
    }
    (scale, best_codes.iter().map(|code| code + n).collect())
}

/// `make_q3_quants` with four steps, which changes codes.
fn make_q3(x: &[f32]) -> (f32, Vec<i32>) {
    let (magnitude, largest) = first_largest(x);
    if magnitude < 1e-15 {
        return (0.0, vec![0; x.len()]);
    }
    let mut codes: Vec<i32> = x.iter().map(|x| nearest(-4.0 / largest * x).clamp(-4, 3)).collect();
    let [mut sum_lx, mut sum_l2] = [0.0_f32; 2];
    for (x, code) in x.iter().zip(&codes) {
        let (w, code) = (x * x, *code as f32);
        sum_lx += w * x * code;
        sum_l2 += w * code * code;
    }
    for _ in 0..5 {
        let mut changed = 0;
        for (x, code) in x.iter().zip(&mut codes) {
            let (w, old) = (x * x, *code as f32);
            let mut lx = sum_lx - w * x * old;
            if lx > 0.0 {
                let mut l2 = sum_l2 - w * old * old;
                let new = nearest(x * l2 / lx).clamp(-4, 3);
                if new != *code {
                    lx += w * x * new as f32;
                    l2 += w * new as f32 * new as f32;
                    if l2 > 0.0 && lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                        (*code, sum_lx, sum_l2) = (new, lx, l2);
                        changed += 1;
                    }
                }
            }
        }
        if changed == 0 {
            break;
        }
    }
    (if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }, codes.iter().map(|code| code + 4).collect())
}

/// `make_qkx2_quants`, or with an importance matrix `make_qkx3_quants`. Returns the scale, the negated minimum, and the
/// codes.
fn make_qkx(
    x: &[f32],
    w: &[f32],
    n: i32,
    (first, step, steps): (f32, f32, i32),
    is_absolute: bool,
    has_importance: bool,
) -> (f32, f32, Vec<i32>) {
    let (mut min, mut max) = (x[0], x[0]);
    let (mut sum_w, mut sum_x) = (w[0], w[0] * x[0]);
    for (x, w) in x.iter().zip(w).skip(1) {
        min = if *x < min { *x } else { min };
        max = if *x > max { *x } else { max };
        sum_w += w;
        sum_x += w * x;
    }
    min = if min > 0.0 { 0.0 } else { min };
    if if has_importance { max <= min } else { max == min } {
        return (0.0, -min, vec![0; x.len()]);
    }
    let error = |codes: &[i32], scale: f32, min: f32| {
        let errors = x.iter().zip(codes).map(|(x, code)| scale * *code as f32 + min - x);
        sum(errors.zip(w).map(|(error, w)| w * if is_absolute { error.abs() } else { error * error }))
    };
    let factor = n as f32 / (max - min);
    let mut scale = 1.0 / factor;
    let mut codes: Vec<i32> = x.iter().map(|x| nearest(factor * (x - min)).clamp(0, n)).collect();
    let mut best = error(&codes, scale, min);
    for at in 0..=steps {
        let factor = (first + step * at as f32 + n as f32) / (max - min);
        let tried: Vec<i32> = x
            .iter()
            .map(|x| {
                let number = factor * (x - min);
                if !has_importance {
                    nearest(number).clamp(0, n)
                } else if number > 0.0 {
                    nearest(number.min(n as f32))
                } else {
                    0
                }
            })
            .collect();
        let [mut sum_l, mut sum_l2, mut sum_xl] = [0.0_f32; 3];
        for ((x, w), code) in x.iter().zip(w).zip(&tried) {
            let code = *code as f32;
            sum_l += w * code;
            sum_l2 += w * code * code;
            sum_xl += w * code * x;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut new_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if new_min > 0.0 {
                (new_min, new_scale) = (0.0, sum_xl / sum_l2);
            }
            let new_error = error(&tried, new_scale, new_min);
            if new_error < best {
                (codes, best, scale, min) = (tried, new_error, new_scale, new_min);
            }
        }
    }
    (scale, -min, codes)
}

/// `make_qp_quants`.
fn make_qp(x: &[f32], n: i32, w: &[f32]) -> (f32, Vec<u8>) {
    let max = x.iter().fold(0.0, |a: f32, b| if *b > a { *b } else { a });
    if max < 1e-15 {
        return (0.0, vec![0; x.len()]);
    }
    let error = |codes: &[i32], factor: f32| {
        let errors = x.iter().zip(codes).map(|(x, code)| x - 1.0 / factor * *code as f32);
        sum(errors.zip(w).map(|(error, w)| w * error * error))
    };
    let mut factor = n as f32 / max;
    let codes: Vec<i32> = x.iter().map(|x| (nearest(factor * x) as u8).into()).collect();
    let mut best = error(&codes, factor);
    for step in -4..=4 {
        if step != 0 {
            let tried = (0.1 * step as f32 + n as f32) / max;
            let codes: Vec<i32> = x.iter().map(|x| nearest(tried * x).min(n)).collect();
            let new_error = error(&codes, tried);
            if new_error < best {
                (best, factor) = (new_error, tried);
            }
        }
    }
    let [mut sum_lx, mut sum_l2] = [0.0_f32; 2];
    let mut codes = Vec::new();
    for (x, w) in x.iter().zip(w) {
        let code = nearest(factor * x).min(n);
        codes.push(code as u8);
        sum_lx += w * x * code as f32;
        sum_l2 += w * code as f32 * code as f32;
    }
    for _ in 0..5 {
        let mut changed = 0;
        for ((x, w), code) in x.iter().zip(w).zip(&mut codes) {
            let old = f32::from(*code);
            let (mut lx, mut l2) = (sum_lx - w * x * old, sum_l2 - w * old * old);
            if lx > 0.0 && l2 > 0.0 {
                let new = nearest(x * l2 / lx).min(n);
                if new != i32::from(*code) {
                    lx += w * x * new as f32;
                    l2 += w * new as f32 * new as f32;
                    if lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                        (*code, sum_lx, sum_l2) = (new as u8, lx, l2);
                        changed += 1;
                    }
                }
            }
        }
        if changed == 0 {
            break;
        }
    }
    (if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }, codes)
}

/// `nearest_int`.
fn nearest(x: f32) -> i32 {
    ((x + 12_582_912.0).to_bits() as i32 & 0x007f_ffff) - 0x0040_0000
}

fn first_largest(x: &[f32]) -> (f32, f32) {
    let mut found = (0.0, 0.0);
    for x in x {
        if x.abs() > found.0 {
            found = (x.abs(), *x);
        }
    }
    found
}

fn sum(numbers: impl Iterator<Item = f32>) -> f32 {
    numbers.fold(0.0, |a, b| a + b)
}

fn half(x: f32) -> f64 {
    f16::from_f32(x).into()
}
