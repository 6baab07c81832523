//! Exact decimals as text, and the random numbers that go with them.

/// `SplitMix64`: the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// All digits of a float; `places` behind the point must be enough for them.
pub(crate) fn exact(value: f64, places: usize) -> String {
    trimmed(format!("{value:.places$}"))
}

/// Without the zeros that end the fraction; no point without a fraction.
fn trimmed(text: String) -> String {
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A little more than `text`: by one at the `zeros + 1`st place behind its last.
pub(crate) fn above(text: &str, zeros: usize) -> String {
    format!("{}{}1", with_point(text), "0".repeat(zeros))
}

/// A little less than `text`, which is not zero: by one at the `zeros + 1`st place behind its last.
pub(crate) fn below(text: &str, zeros: usize) -> String {
    let mut digits = text.as_bytes().to_vec();
    for digit in digits.iter_mut().rev().filter(|digit| **digit != b'.') {
        *digit = if *digit == b'0' { b'9' } else { *digit - 1 };
        if *digit != b'9' {
            break;
        }
    }
    let text = String::from_utf8(digits).unwrap();
    format!("{}{}", with_point(&text), "9".repeat(zeros + 1))
}

fn with_point(text: &str) -> String {
    if text.contains('.') { text.to_owned() } else { format!("{text}.") }
}

/// Half the sum of two floats that are not negative, digit by digit, as at school.
pub(crate) fn midpoint(left: f64, right: f64) -> String {
    const PLACES: usize = 1076;
    const WIDTH: usize = 310 + 1 + PLACES;
    let [left, right] = [left, right].map(|value| format!("{value:0WIDTH$.PLACES$}").into_bytes());
    let point = WIDTH - PLACES - 1;
    let mut sum = vec![0; WIDTH];
    let mut carry = 0;
    for place in (0..WIDTH).rev().filter(|&place| place != point) {
        let digits = left[place] - b'0' + (right[place] - b'0') + carry;
        (sum[place], carry) = (digits % 10, digits / 10);
    }
    let mut text = String::new();
    let mut rest = 0;
    for (place, digit) in sum.into_iter().enumerate() {
        if place == point {
            text.push('.');
            continue;
        }
        let digits = rest * 10 + digit;
        text.push(char::from(b'0' + digits / 2));
        rest = digits % 2;
    }
    trimmed(text.trim_start_matches('0').to_owned())
}

/// How many digits a text has without the zeros at either end.
pub(crate) fn significant(text: &str) -> usize {
    text.replace(['.', '-'], "").trim_matches('0').len()
}
