//! The page of a report: inert whatever names the files hold, whole, and the same for the same report.

use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tcast::report::{FileReport, Report, Spread, page};

const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\"'&amp;\u{202e}\u{1b}[2J";

fn tensor(name: &str, more: &Value) -> Value {
    let mut tensor = json!({
        "name": name, "shape": [1000, 2000], "from": "float32", "to": "float8e4m3fn", "cast": true,
        "bytes_in": 8_000_000, "bytes_out": 2_000_000,
        "counts": { "saturated": 0, "infinite": 0, "nan": 0, "flushed": 7, "wrapped": 0, "inexact": 1_999_990 },
        "figures": {
            "compared": 2_000_000, "max_abs_error": 0.015_625, "max_abs_error_at": 123_456, "max_rel_error": 1.0,
            "max_rel_error_at": 5, "mean_error": -1e-9, "sqnr_db": 31.5, "cosine": 0.999_65,
        },
    });
    for (key, value) in more.as_object().unwrap() {
        tensor[key] = value.clone();
    }
    tensor
}

fn files() -> Vec<FileReport<'static>> {
    let exact = json!({
        "compared": 2_000_000, "max_abs_error": 0.0, "max_abs_error_at": 0, "max_rel_error": 0.0,
        "max_rel_error_at": null, "mean_error": 0.0, "sqnr_db": null, "cosine": 1.0,
    });
    let tensors = [
        tensor("model.layers.0.mlp.down_proj.weight", &json!({ "renamed_from": "old.<b>.weight" })),
        tensor(HOSTILE, &json!({})),
        tensor("exact", &json!({ "figures": exact, "counts": {} })),
        tensor("unknown", &json!({ "figures": null, "counts": null })),
        tensor("kept", &json!({ "to": "float32", "cast": false, "figures": null, "counts": {} })),
        tensor("", &json!({ "shape": [0] })),
    ];
    let file = |name: &str, tensors: &[Value]| json!({ "file": name, "bytes": 6_000_000, "tensors": tensors });
    let files = [file("a-00001-of-00002.safetensors", &tensors[..3]), file("<i>.safetensors", &tensors[3..])];
    files.map(|file| serde_json::from_value(file).unwrap()).into()
}

fn page_of(files: Vec<FileReport>, options: Value, time: Option<Duration>, spreads: &[Spread]) -> String {
    let (input, output) = (Path::new("in/<script>alert(2)</script>"), Path::new("out/'a' & \"b\""));
    let report = Report { operator: "cast", input, output, options, bytes_in: 48_000_000, files, before: 0, time };
    page(&report, spreads)
}

fn spreads() -> [Spread; 3] {
    let spread = |name: &str| Spread {
        name: name.to_owned(),
        before: (-140..3).map(|exponent| (exponent, if exponent < -30 { 1 } else { 1 << 30 })).collect(),
        after: (-9..3).map(|exponent| (exponent, 1 << 31)).collect(),
    };
    let empty = Spread { name: "exact".to_owned(), before: [].into_iter().collect(), after: [].into_iter().collect() };
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
    assert_eq!(script.trim_end(), format!("\n{}</script>\n</body>\n</html>", include_str!("../src/report/page.js")));
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
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert_eq!(row.matches("<td").count() + 1, columns, "{row}");
    }
    assert!(
        rows[0].contains("31.50") && rows[0].contains(">123,456</td>") && rows[0].contains("float32 → float8e4m3fn")
    );
    assert!(rows[0].contains("old.<wbr>&lt;b&gt;.<wbr>weight") && rows[0].contains("0.00035%"), "{}", rows[0]);
    assert!(rows[1].contains("&lt;/<wbr>script&gt;&lt;img src=x"), "{}", rows[1]);
    assert!(rows[2].contains(">exact</td>") && rows[2].contains(r#"data-key="Infinity" style="--share:1.000""#));
    assert_eq!(rows[3].matches("<td>–</td>").count(), 9, "{}", rows[3]);
    assert!(rows[4].starts_with("<tr class=\"copied\">") && rows[4].contains("float32, copied"));
    assert!(rows[5].contains("<i>unnamed</i>"));
}

#[test]
fn only_options_that_were_given_are_shown() {
    let page = whole();
    let options = page.split("<dl class=\"options\">").nth(1).unwrap().split("</dl>").next().unwrap();
    let expected = "<div><dt>exclude</dt> <dd>&lt;/dd&gt;&lt;script&gt;*</dd></div>\
                    <div><dt>saturate</dt> <dd>false</dd></div><div><dt>to</dt> <dd>float8e4m3fn</dd></div>";
    assert_eq!(options, expected);
    assert!(!page_of(files(), json!({ "saturate": true, "all": false }), None, &[]).contains("class=\"options\""));
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

#[test]
fn nothing_at_all_is_a_page_too() {
    let page = page_of(Vec::new(), Value::Null, None, &[]);
    assert!(page.contains("dry run") && page.contains("cast no tensor"));
}

#[test]
fn equal_reports_make_equal_pages_and_the_static_part_is_small() {
    assert_eq!(whole(), whole());
    let page = page_of(Vec::new(), Value::Null, None, &[]);
    assert!(page.len() < 20_000, "{}", page.len());
}
