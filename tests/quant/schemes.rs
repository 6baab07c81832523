//! Schemes that users choose, and the layouts that store them.

use tcast::quant::{SCHEMES, Scheme};

#[test]
fn every_scheme_names_layouts_that_can_be_written() {
    for scheme in SCHEMES {
        for stored in scheme.layouts {
            let layout = stored.row;
            assert!(layout.encoding.is_some(), "{} {}", scheme.name, stored.name);
            assert!(stored.grid.scale.is_none_or(|dtype| layout.scale_dtypes.contains(&dtype)), "{}", scheme.name);
            assert_eq!(scheme.in_layout(Some(stored.name)), Some(stored));
        }
        for name in scheme.aliases.iter().chain([&scheme.name]) {
            assert_eq!(Scheme::find(&name.to_lowercase()), Some(scheme));
        }
        assert_eq!(scheme.in_layout(None), scheme.layouts.first());
        assert_eq!(scheme.in_layout(Some("none")), None);
    }
    assert_eq!(Scheme::find("fp7"), None);
}

#[test]
fn few_schemes_have_a_search_or_partial_blocks() {
    let names = |has: fn(&&Scheme) -> bool| SCHEMES.iter().filter(has).map(|scheme| scheme.name);
    let integers = ["int2", "int3", "int4", "int5", "int6", "int7"];
    for name in names(|scheme| scheme.has_search()) {
        let base = name.strip_suffix("-asym").unwrap_or(name);
        assert!(integers.contains(&base) || ["nvfp4", "mxfp4"].contains(&name), "{name}");
    }
    assert_eq!(names(|scheme| scheme.has_search()).count(), 14);
    assert!(names(|scheme| scheme.has_partial_blocks("compressed-tensors")).eq(["fp8-block"]));
    assert_eq!(names(|scheme| scheme.has_partial_blocks("huggingface")).count(), 0);
}
