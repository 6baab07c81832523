//! The page of a report: inert whatever names the files hold, whole, and the same for the same report.

use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tcast::report::{ExponentSpread, FileReport, Report, page};

const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\"'&amp;\u{202e}\u{1b}[2J";

fn tensor(name: &str, more: &Value) -> Value {
    let mut tensor = json!({
        "name": name, "shape": [1000, 2000], "from": "float32", "to": "float8e4m3fn", "cast": true,
        "bytes_in": 8_000_000, "bytes_out": 2_000_000,
        "counts": { "saturated": 0, "infinite": 0, "nan": 0, "flushed": 7, "wrapped": 0, "inexact": 1_999_990 },
        "figures": {
            "compared": 2_000_000, "max_abs_error": 0.015_625, "max_abs_error_at": 123_456, "max_rel_error": 1.0,
            "max_rel_error_at": 5, "mean_error": -1e-9, "is_exact": false, "sqnr_db": 31.5, "cosine": 0.999_65,
        },
    });
    for (key, value) in more.as_object().unwrap() {
        tensor[key] = value.clone();
    }
    tensor
}

fn files() -> Vec<FileReport> {
    let exact = json!({
        "compared": 2_000_000, "max_abs_error": 0.0, "max_abs_error_at": 0, "max_rel_error": 0.0,
        "max_rel_error_at": null, "mean_error": 0.0, "is_exact": true, "sqnr_db": "Infinity", "cosine": 1.0,
    });
    let tensors = [
        tensor("model.layers.0.mlp.down_proj.weight", &json!({ "renamed_from": "old.<b>.weight" })),
        tensor(HOSTILE, &json!({})),
        tensor("exact", &json!({ "figures": exact, "counts": {} })),
        tensor("unknown", &json!({ "figures": null, "counts": null })),
        tensor("kept", &json!({ "to": "float32", "cast": false, "figures": null, "counts": {} })),
        tensor(
            "same",
            &json!({ "from": "float8e4m3fn", "cast": false, "kept": "already", "figures": null, "counts": {} }),
        ),
        tensor("", &json!({ "shape": [0] })),
    ];
    let file = |name: &str, tensors: &[Value]| json!({ "file": name, "bytes": 6_000_000, "tensors": tensors });
    let files = [file("a-00001-of-00002.safetensors", &tensors[..3]), file("<i>.safetensors", &tensors[3..])];
    files.map(|file| serde_json::from_value(file).unwrap()).into()
}

fn page_of(files: Vec<FileReport>, options: Value, time: Option<Duration>, spreads: &[ExponentSpread]) -> String {
    page_by("cast", files, options, time, spreads)
}

fn page_by(
    operator: &str,
    files: Vec<FileReport>,
    options: Value,
    time: Option<Duration>,
    spreads: &[ExponentSpread],
) -> String {
    let (input, output) = (Path::new("in/<script>alert(2)</script>"), Path::new("out/'a' & \"b\""));
    let mut report = Report::empty(operator, input, output);
    report.options = serde_json::from_value(options).unwrap();
    (report.bytes_in, report.files, report.time, report.is_published) = (48_000_000, files, time, true);
    page(&report, spreads)
}

fn spreads() -> [ExponentSpread; 3] {
    let spread = |name: &str| ExponentSpread {
        name: name.to_owned(),
        before: (-140..3).map(|exponent| (exponent, if exponent < -30 { 1 } else { 1 << 30 })).collect(),
        after: (-9..3).map(|exponent| (exponent, 1 << 31)).collect(),
    };
    let empty =
        ExponentSpread { name: "exact".to_owned(), before: [].into_iter().collect(), after: [].into_iter().collect() };
    [spread("model.layers.0.mlp.down_proj.weight"), spread(HOSTILE), empty]
}

fn whole() -> String {
    let options = json!({
        "to": "float8e4m3fn", "from": null, "include": [], "exclude": ["</dd><script>*"], "saturate": false,
        "round_mode": "up", "out_of_range": "wrap", "all": false,
    });
    page_of(files(), options, Some(Duration::from_millis(1500)), &spreads())
}

/// Tags in their order: name, attributes, and whether it is an end tag. Script and style hold text up to their end.
fn tags(page: &str) -> Vec<(&str, &str, bool)> {
    let (mut rest, mut tags) = (page, Vec::new());
    while let Some(at) = rest.find('<') {
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        let (tag, is_end) = tag.strip_prefix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        tags.push((name, attributes, is_end));
        rest = &rest[end + 1..];
        if !is_end && ["script", "style"].contains(&name) {
            rest = &rest[rest.find(&format!("</{name}")).expect("script and style end")..];
        }
    }
    tags
}

#[test]
fn every_element_is_closed() {
    const VOID: [&str; 4] = ["!DOCTYPE", "meta", "input", "wbr"];
    let page = whole();
    let mut open = Vec::new();
    for (name, _, is_end) in tags(&page).into_iter().filter(|(name, ..)| !VOID.contains(name)) {
        if is_end {
            assert_eq!(open.pop(), Some(name));
        } else {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn names_and_paths_are_text_only() {
    let page = whole();
    let tags = tags(&page);
    let of = |wanted: &str| tags.iter().filter(|(name, _, is_end)| *name == wanted && !is_end).count();
    assert_eq!((of("script"), of("style"), of("img")), (1, 1, 0));
    for (name, attributes, _) in &tags {
        for attribute in attributes.split('"').step_by(2).flat_map(str::split_whitespace) {
            let attribute = attribute.trim_end_matches('=');
            assert!(!attribute.starts_with("on") && attribute != "src", "{name} {attributes}");
        }
        assert!(!attributes.contains("href=") || attributes.starts_with("href=\"#spread-"), "{name} {attributes}");
    }
    // Neither what turns the direction of text nor what a terminal obeys gets through.
    assert!(page.chars().all(|c| c == '\n' || !c.is_control()) && !page.contains('\u{202e}'));
    let script = page.rsplit_once("<script>").unwrap().1;
    let own = concat!(include_str!("../src/report/page.js"), include_str!("../src/report/html/map.js"));
    assert_eq!(script.trim_end(), format!("\n{own}</script>\n</body>\n</html>"));
}

#[test]
fn nothing_is_fetched() {
    let page = whole();
    for word in ["http://", "https://", "url(", "@import", "<link"] {
        assert!(!page.contains(word), "{word}");
    }
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
    assert!(page.contains(&format!(r#"<meta http-equiv="Content-Security-Policy" content="{policy}">"#)));
}

#[test]
fn every_tensor_has_a_row_as_wide_as_the_head() {
    let page = whole();
    let table = page.split("<table class=\"tensors\"").nth(1).unwrap().split("</table>").next().unwrap();
    let columns = table.matches("<th scope=\"col\"").count();
    let rows: Vec<&str> = table.lines().filter(|line| line.contains("<th scope=\"row\"")).collect();
    assert_eq!(rows.len(), 7);
    for row in &rows {
        assert_eq!(row.matches("<td").count() + 1, columns, "{row}");
    }
    assert!(
        rows[0].contains("31.50") && rows[0].contains(">[61, 1456]</td>") && rows[0].contains("float32 → float8e4m3fn")
    );
    assert!(rows[0].contains("old.<wbr>&lt;b&gt;.<wbr>weight") && rows[0].contains("0.00035%"), "{}", rows[0]);
    assert!(rows[1].contains("&lt;/<wbr>script&gt;&lt;img src=x"), "{}", rows[1]);
    assert!(rows[2].contains("<i>unnamed</i>"));
    // An element that the tensor does not have is at no position.
    assert!(rows[2].contains("[0]") && !rows[2].contains("123"), "{}", rows[2]);
    assert!(rows[3].contains(">exact</td>") && rows[3].contains(r#"data-key="Infinity" style="--share:1.000""#));
    assert_eq!(rows[4].matches("<td></td>").count(), 9, "{}", rows[4]);
    assert!(rows[5].contains("<tr data-place=\"4\" class=\"copied\">") && rows[5].contains("float32, copied"));
    assert!(rows[6].contains("already float8e4m3fn"));
}

#[test]
fn the_noisiest_tensor_comes_first_and_what_became_of_it_second() {
    let tensors = [("quiet", 40.0), ("noisy", 3.0), ("middle", 20.0)].map(|(name, sqnr)| {
        tensor(
            name,
            &json!({ "figures": { "is_exact": false, "sqnr_db": sqnr, "compared": 9, "max_abs_error": 1.0,
            "max_abs_error_at": 0, "max_rel_error": 1.0, "max_rel_error_at": 0, "mean_error": 0.0, "cosine": 1.0 } }),
        )
    });
    let losing = [("some", 7), ("none", 0), ("many", 70)]
        .map(|(name, flushed)| tensor(name, &json!({ "figures": null, "counts": { "flushed": flushed } })));
    for (tensors, expected) in [(tensors, ["noisy", "middle", "quiet"]), (losing, ["many", "some", "none"])] {
        let file = serde_json::from_value(json!({ "file": "a", "bytes": 1, "tensors": tensors })).unwrap();
        let page = page_of(vec![file], json!({}), None, &[]);
        let table = page.split("<table class=\"tensors\"").nth(1).unwrap();
        let at = expected.map(|name| table.find(&format!("<th scope=\"row\">{name}</th>")).unwrap());
        assert!(at.is_sorted(), "{at:?}");
    }
    let page = whole();
    let table = page.split("<table class=\"tensors\"").nth(1).unwrap();
    let heads: Vec<&str> = table.split("<th scope=\"col\"").skip(1).take(4).collect();
    assert!(heads[0].contains(">tensor<") && heads[1].contains(">became<"), "{heads:?}");
    assert!(heads[2].contains(r#"aria-sort="ascending">SQNR"#) && heads[3].contains(">lost<"), "{heads:?}");
}

#[test]
fn nan_and_inf_of_the_input_are_shown_with_their_tensor_and_position() {
    let page = whole();
    assert!(!page.contains("input NaN") && !page.contains("The input already had"));
    let counts = json!({ "input_nan": 2, "input_infinite": 0, "inexact": 1 });
    let of = |first: u64| {
        let tensor = tensor("w", &json!({ "counts": counts, "first_at": { "input_nan": first } }));
        let file = json!({ "file": "a", "bytes": 1, "tensors": [tensor] });
        page_of(vec![serde_json::from_value(file).unwrap()], json!({}), None, &[])
    };
    // A report that was read may name an element that there is not.
    assert!(!of(2_000_000).contains(">first at<") && !of(2_000_000).contains("[1000, 0]"));
    let page = of(3_001);
    assert!(page.contains("<p>The input already had 2 NaN.</p>"));
    assert!(page.contains(">input NaN<small>") && !page.contains("input Inf"));
    assert!(page.contains(r#"<td data-key="3001">[1, 1001]</td>"#) && page.matches(">first at<").count() == 1);
    assert!(page.contains(r#"title="2 of 2,000,000">0.00010%</td>"#));
}

#[test]
fn rounded_values_are_not_called_unchanged_where_rounding_is_not_counted() {
    let of = |options: Value| {
        let decoded = tensor("w", &json!({ "layout": "hf-fp8", "figures": null, "counts": {} }));
        let file = json!({ "file": "a", "bytes": 1, "tensors": [decoded] });
        page_by("dequantize", vec![serde_json::from_value(file).unwrap()], options, Some(Duration::from_secs(1)), &[])
    };
    let page = of(json!({ "fail_on": [] }));
    assert!(page.contains("<p>Every decoded value is finite.</p>") && !page.contains("unchanged"), "{page}");
    assert!(!page.contains(">rounded<"), "{page}");
    assert!(of(json!({ "fail_on": ["nan", "inexact"] })).contains(">rounded<"));
}

#[test]
fn what_a_page_is_about_is_its_main_landmark() {
    let page = whole();
    let (main, footer) = page.split_once("<main>").unwrap().1.split_once("</main>").unwrap();
    assert!(page.matches("<main").count() == 1 && footer.contains("<footer>"));
    assert_eq!(main.matches("<h2").count(), page.matches("<h2").count());
    assert!(main.contains("<table class=\"tensors\""));
}

/// Controls are made by the script: without it, nothing is there that does nothing. A browser with scripts reads the table
/// in `noscript` as text, and draws what is seen.
#[test]
fn without_its_script_a_page_lacks_no_tensor_and_has_no_idle_control() {
    let page = whole();
    assert!(page.contains("input.type = 'search'") && page.contains("addEventListener('beforeprint'"));
    let page = page.split("<script>").next().unwrap();
    assert!(!page.contains("type=\"search\"") && !page.contains("<button") && !page.contains(" hidden"));
    assert_eq!(page.matches("<th scope=\"row\">").count() - page.matches("<tr><th scope=\"row\">").count(), 7);
    let table = page.split("<noscript>").nth(1).unwrap().split("</noscript>").next().unwrap();
    assert!(table.starts_with("\n<table class=\"tensors\"") && table.ends_with("</table>\n"), "{table}");
    assert_eq!(table.matches("\n<tr data-place=\"").count(), 7);
}

/// The style writes the title of a column before its figure where a row is a card.
#[test]
fn every_figure_has_its_title_on_a_narrow_screen() {
    let page = whole();
    let table = page.split("<table class=\"tensors\"").nth(1).unwrap().split("</table>").next().unwrap();
    for (head, at) in table.split("<th scope=\"col\"").skip(1).zip(1..).skip(2) {
        let title = head.split('>').nth(1).unwrap().split('<').next().unwrap();
        assert!(table.split('>').next().unwrap().contains(&format!(";--t{at}:'{title}'")), "{title}");
        assert!(page.contains(&format!(".tensors td:nth-child({at})::before {{ content: var(--t{at}); }}")), "{title}");
    }
}

/// The shares of what was lost are parts of all values, so that they add up to 100 %.
#[test]
fn the_shares_of_what_was_lost_are_a_partition() {
    let counts = json!({ "saturated": 5, "nan": 10, "flushed": 60_000, "inexact": 1_900_015 });
    let of = |operator: &str, more: Value| {
        let tensors = [tensor("w", &json!({ "counts": counts })), tensor("none", &more)];
        let file = json!({ "file": "a", "bytes": 1, "tensors": tensors });
        let files = vec![serde_json::from_value(file).unwrap()];
        let page = page_by(operator, files, json!({}), Some(Duration::from_secs(1)), &[]);
        let list = page.split("<ul class=\"lost\">").nth(1).unwrap().split("</ul>").next().unwrap();
        let item = |item: &str| {
            let (what, count) = item.split_once("</b> ").unwrap().1.split_once(" <small>").unwrap();
            (what.to_owned(), count.split('<').next().unwrap().replace(',', "").parse().unwrap())
        };
        list.split("<li").skip(1).map(item).collect::<Vec<(String, u64)>>()
    };
    let owned =
        |parts: &[(&str, u64)]| parts.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect::<Vec<_>>();
    // The counts of the second tensor are not known, so its values are in no share.
    let parts = of("cast", json!({ "counts": null }));
    let lost = [("saturated", 5), ("became NaN", 10), ("flushed to zero", 60_000)];
    assert_eq!(parts, owned(&[&lost[..], &[("only rounded", 1_840_000), ("unchanged", 99_985)]].concat()));
    assert_eq!(parts.iter().map(|(_, count)| count).sum::<u64>(), 2_000_000);
    // In decoded weights, rounding is not counted.
    let parts = of("dequantize", json!({ "counts": {}, "layout": "hf-fp8" }));
    assert_eq!(parts, owned(&[&lost[..], &[("not lost, perhaps rounded", 3_939_985)]].concat()));
}

/// The error of codes is another thing than that of a cast: bars of both in one column would be compared.
#[test]
fn quantized_weights_have_a_table_of_their_own() {
    let weight = |name: &str, sqnr: f64| {
        let quantized = json!({ "scheme": "nvfp4", "layout": "ct-nvfp4", "parts": [], "exact": false, "bits_per_weight": 4.5,
            "max_abs_error": 0.5, "max_abs_error_at": 0, "clipped": 0, "underflowed_groups": 0, "is_exact": false, "sqnr_db": sqnr,
            "relative_squared_error": 0.01 });
        tensor(name, &json!({ "quantized": quantized, "figures": null }))
    };
    let tensors = [weight("w", 20.5), weight("v", 20.0), tensor("embedding", &json!({}))];
    let file = json!({ "file": "a", "bytes": 1, "tensors": tensors });
    let page = page_by("quantize", vec![serde_json::from_value(file).unwrap()], json!({}), None, &[]);
    let tables: Vec<&str> =
        page.split("<table class=\"tensors\"").skip(1).map(|rest| rest.split("</table>").next().unwrap()).collect();
    assert_eq!(tables.len(), 2);
    assert!(
        page.contains("<h2 id=\"weights\">Quantized weights</h2>")
            && page.contains("<h2 id=\"tensors\">Other tensors</h2>")
    );
    let heads = |table: &str| {
        table
            .split("<th scope=\"col\"")
            .skip(1)
            .map(|rest| rest.split('>').nth(1).unwrap().split('<').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let of_weights = ["tensor", "became", "SQNR", "bits", "largest error", "shape", "values", "before", "after"];
    assert_eq!(heads(tables[0]), of_weights);
    assert_eq!(heads(tables[1])[..4], ["tensor", "became", "SQNR", "lost"]);
    assert!(
        tables[0].contains("dB; bar: 14 to 20.50") && tables[0].contains(r#"style="--share:0.923">20.00"#),
        "{}",
        tables[0]
    );
    assert!(tables[1].contains("dB; bar: 25 to 31.50") && !tables[1].contains(">w</th>"), "{}", tables[1]);
}

/// Relative luminance of a color in hexadecimal digits, by WCAG 2.1.
fn luminance(color: &str) -> f64 {
    let digits: Vec<u32> = color.chars().map(|c| c.to_digit(16).unwrap()).collect();
    let parts: Vec<u32> = if digits.len() == 3 {
        digits.iter().map(|digit| digit * 17).collect()
    } else {
        digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
    };
    let linear = |part: u32| {
        let part = f64::from(part) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(parts[0]) + 0.7152 * linear(parts[1]) + 0.0722 * linear(parts[2])
}

/// WCAG 2.1, 1.4.11: what is drawn to be understood stands out from what is beside it by 3:1, in light and in dark.
#[test]
fn bars_stand_out_in_both_themes() {
    let style = include_str!("../src/report/page.css");
    let themes: Vec<&str> = style.split(":root {").skip(1).map(|rest| rest.split('}').next().unwrap()).collect();
    assert_eq!(themes.len(), 2);
    for theme in themes {
        let light = |name: &str| {
            let value = theme.split_once(&format!("--{name}: #")).unwrap_or_else(|| panic!("{name}")).1;
            luminance(value.split(';').next().unwrap())
        };
        for bar in ["signal", "signal-tint", "loss", "loss-tint", "old"] {
            // A row below the pointer is faint.
            for behind in ["card", "faint"] {
                let (bar_light, behind_light) = (light(bar), light(behind));
                let (high, low) = (bar_light.max(behind_light), bar_light.min(behind_light));
                let contrast = (high + 0.05) / (low + 0.05);
                assert!(contrast >= 3.0, "{bar} on {behind}: {contrast:.2}");
            }
        }
    }
}

/// Who sees no hues sees lightness: CIE L* rises in equal steps from the worst level to the best.
#[test]
fn levels_of_the_map_differ_in_lightness_and_are_the_same_in_the_dark() {
    let style = include_str!("../src/report/html/map.css");
    let color = |level: char| {
        let name = format!("--{level}: #");
        assert_eq!(style.matches(&name).count(), 1, "a level has one color, in light and in dark: {level}");
        style.split_once(&name).unwrap().1.split(';').next().unwrap()
    };
    let lights: Vec<f64> = ('a'..='p').map(|level| luminance(color(level))).collect();
    let lightness: Vec<f64> = lights.iter().map(|light| 116.0 * light.cbrt() - 16.0).collect();
    for pair in lightness.windows(2) {
        assert!((3.0..8.0).contains(&(pair[1] - pair[0])), "{lightness:?}");
    }
    // The worst level stands out from the cards of both themes, and figures can be read on every level.
    let contrast = |a: f64, b: f64| (a.max(b) + 0.05) / (a.min(b) + 0.05);
    assert!(["fff", "1a1e25"].iter().all(|card| contrast(lights[0], luminance(card)) >= 3.0));
    for (level, light) in ('a'..='p').zip(lights) {
        let text = if ['a', 'b'].contains(&level) { 1.0 } else { 0.0 };
        assert!(contrast(light, text) >= 4.5, "{level}");
    }
    assert!(style.contains(".map .few :is(.a, .b) { color: #fff; }"));
}

#[test]
fn the_map_has_a_cell_for_every_weight_that_was_converted() {
    let page = whole();
    let map = page.split("<section class=\"map\"").nth(1).unwrap().split("</section>").next().unwrap();
    let names: Vec<&str> = map.split("data-names=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    assert!(
        names.contains(&"model.layers.0.mlp.down_proj.weight") && names[1].starts_with("&lt;/script&gt;"),
        "{names:?}"
    );
    assert!(map.contains(
        r#"<tr><th scope="row">mlp.<wbr>down_proj</th><td class="i" data-v="ii31.50,ii2.66,ii0.01562,ii0.000350""#
    ));
    assert!(map.contains(">∞</td>") && map.contains(">–</td>"));
    // A figure does not make a map of values that did not change.
    let exact = json!({ "compared": 1, "max_abs_error": 0.0, "max_abs_error_at": 0, "max_rel_error": 0.0,
        "max_rel_error_at": 0, "mean_error": 0.0, "is_exact": true, "sqnr_db": "Infinity", "cosine": 1.0 });
    let file = json!({ "file": "f", "bytes": 1, "tensors": [tensor("t", &json!({ "figures": exact, "counts": {} }))] });
    let page = page_of(vec![serde_json::from_value(file).unwrap()], json!({}), None, &[]);
    assert!(!page.contains("<section class=\"map\""));
}

#[test]
fn only_options_that_were_given_are_shown() {
    let page = whole();
    let options = page.split("<dl class=\"options\">").nth(1).unwrap().split("</dl>").next().unwrap();
    let expected = "<div><dt>exclude</dt> <dd>&lt;/dd&gt;&lt;script&gt;*</dd></div>\
                    <div><dt>saturate</dt> <dd>false</dd></div><div><dt>to</dt> <dd>float8e4m3fn</dd></div>";
    assert_eq!(options, expected);
    for (operator, defaults) in [
        ("cast", json!({ "saturate": true, "all": false })),
        ("quantize", json!({ "arithmetic": "library", "search": "amax" })),
    ] {
        assert!(!page_by(operator, files(), defaults, None, &[]).contains("class=\"options\""), "{operator}");
    }
}

#[test]
fn kinds_of_loss_that_did_not_occur_are_not_shown() {
    let page = whole();
    assert!(page.contains("</b> flushed to zero <small>21</small>"), "three tensors of seven");
    assert!(!page.contains("</b> saturated") && !page.contains("</b> wrapped") && !page.contains(">wrapped<small>"));
}

#[test]
fn a_long_tail_of_exponents_takes_one_bar() {
    let page = whole();
    let bars = page.split("<div class=\"bars\"").nth(1).unwrap().split("</div>\n").next().unwrap();
    assert_eq!(bars.matches("<div title=").count(), 34, "{bars}");
    assert!(bars.contains(r#"title="2^-140 to 2^-31: "#), "{bars}");
    assert!(bars.contains(r#"title="2^-9: 1,073,741,824 before, 2,147,483,648 after""#), "{bars}");
    assert!(page.contains("There are no finite numbers but zero."));
}

/// Of 4096 numbers, all but two have exponents from -20 to -3.
#[test]
fn an_outlier_does_not_squeeze_the_others() {
    let common = (-20..=-3).map(|exponent| (exponent, 228)).collect::<Vec<_>>();
    let outliers = [(99, 1), (127, 1)];
    let before = common.iter().copied().chain(outliers).collect();
    let spread =
        ExponentSpread { name: "exact".to_owned(), before, after: common.into_iter().chain([(8, 2)]).collect() };
    let page = page_of(files(), json!({}), None, &[spread]);
    let bars = page.split("<div class=\"bars\"").nth(1).unwrap().split("</div>\n").next().unwrap();
    for exponent in -20..-3 {
        assert!(bars.contains(&format!(r#"title="2^{exponent}: 228 before, 228 after""#)), "{exponent}: {bars}");
    }
    // What is too large for the type has a bar of its own, and each kind is named, unabridged, below.
    assert!(bars.contains(r#"title="2^9 to 2^127: 2 before, 0 after""#), "{bars}");
    let kinds = page.split("<ul class=\"kinds\">").nth(1).unwrap().split("</ul>").next().unwrap();
    let names: Vec<&str> = kinds.split("<b>").skip(1).map(|rest| rest.split('<').next().unwrap()).collect();
    assert_eq!(names, ["zero", "subnormal", "normal", "beyond"]);
    let reach = page.split("<div class=\"reach\"").nth(1).unwrap().split("</div>").next().unwrap();
    assert!(reach.matches("\"></span>").count() == 4, "{reach}");
}

#[test]
fn nothing_at_all_is_a_page_too() {
    let page = page_of(Vec::new(), json!({}), None, &[]);
    assert!(page.contains("dry run") && page.contains("<h1>would cast no tensor</h1>"));
}

#[test]
fn equal_reports_make_equal_pages_and_the_static_part_is_small() {
    assert_eq!(whole(), whole());
    let page = page_of(Vec::new(), json!({}), None, &[]);
    assert!(page.len() < 32_000, "{}", page.len());
}

#[test]
fn what_is_left_of_the_deltas_of_adapters_is_on_the_page_and_its_map() {
    let merged = |name: &str, kept: f64, noise: Value| {
        let delta = json!({ "delta_norm": 0.0625, "kept": kept, "delta_snr": noise.as_f64().map(|_| 10.0), "full_snr": 3.0,
            "cosine": 0.5, "changed": 0.25, "delta_energy": 4.0, "noise_energy": noise, "measured": 100 });
        tensor(name, &json!({ "lora": delta, "figures": null }))
    };
    let tensors = [
        merged("layers.0.q.weight", 0.25, json!(0.4)),
        merged("layers.1.q.weight", 1.0, json!(null)),
        tensor("layers.0.k.weight", &json!({ "figures": null })),
    ];
    let file = json!({ "file": "f", "bytes": 1, "tensors": tensors });
    let page = page_of(vec![serde_json::from_value(file).unwrap()], json!({}), Some(Duration::from_secs(1)), &[]);
    // The weights of the mean are the energies of the deltas; the second one has no space.
    assert!(page.contains("<dt>Kept of the delta</dt><dd>0.62<small>delta SNR 10.0 dB</small>"), "{page}");
    let map = page.split("<section class=\"map\"").nth(1).unwrap().split("</section>").next().unwrap();
    for title in ["delta kept", "delta SNR"] {
        assert!(map.contains(&format!("&quot;title&quot;:&quot;{title}&quot;")), "{map}");
        assert!(page.contains(&format!(">{title}<small>")), "{page}");
    }
    assert!(map.contains(",ii0.25,ii10.00") && map.contains(",xx1.00,z"), "{map}");
    assert!(page.contains(r#"<td data-key="6.25">6.250</td>"#), "{page}");
    // Without adapters, there are no such figures.
    assert!(!whole().contains("Kept of the delta") && !whole().contains(">delta kept<small>"));
}
