//! Schemes that users choose, and the layouts that store them.

use tcast::quant::{Group, SCHEMES, Scheme, TargetGrid};

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

/// The names are those of `PRESET_SCHEMES` in `quantization/quant_scheme.py` of compressed-tensors 0.20.1.
#[test]
fn schemes_that_are_presets_of_compressed_tensors_have_the_name_of_the_preset() {
    let stored = |scheme: &str| *Scheme::find(scheme).unwrap().in_layout(Some("compressed-tensors")).unwrap();
    let preset = |scheme: &str, has_input_scale| {
        let stored = stored(scheme);
        Scheme::preset(stored.row, stored.grid, has_input_scale)
    };
    for bits in 2..=7 {
        assert_eq!(preset(&format!("int{bits}"), false), Some(format!("W{bits}A16")));
        assert_eq!(preset(&format!("int{bits}-asym"), false), (bits == 4).then(|| "W4A16_ASYM".to_owned()));
    }
    let others = [
        ("int8a16", "W8A16"),
        ("int8", "W8A8"),
        ("fp8", "FP8_DYNAMIC"),
        ("fp8-block", "FP8_BLOCK"),
        ("nvfp4", "NVFP4A16"),
        ("mxfp4", "MXFP4A16"),
        ("mxfp6", "MXFP6A16"),
        ("mxfp8", "MXFP8"),
    ];
    for (scheme, name) in others {
        assert_eq!(preset(scheme, false).as_deref(), Some(name));
    }
    assert_eq!(preset("nvfp4", true).as_deref(), Some("NVFP4"));
    assert_eq!([preset("fp8-tensor", false), preset("int8-asym", false)], [None, None]);
    let stored = stored("int3");
    let grid = TargetGrid { group: Group::Neighbours(32), ..stored.grid };
    assert_eq!(Scheme::preset(stored.row, grid, false), None);
}
