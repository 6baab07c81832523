use super::*;

#[test]
fn every_set_of_names_identifies_its_architecture_and_needs_all_of_them() {
    for architecture in ARCHITECTURES {
        for set in architecture.sets {
            let mut names: HashSet<&str> = set.iter().copied().collect();
            assert_eq!(Architecture::detect(&names), Ok(architecture), "{set:?}");
            names.remove(set[0]);
            assert_ne!(Architecture::detect(&names), Ok(architecture), "{set:?}");
        }
    }
}

#[test]
fn the_first_architecture_counts() {
    let names = HashSet::from(["down_blocks.0.downsamplers.0.conv.weight", "label_emb.0.0.weight"]);
    assert_eq!(Architecture::detect(&names).unwrap().name, "sdxl");
    let names = HashSet::from(["down_blocks.0.downsamplers.0.conv.weight", "conv_in.weight"]);
    assert_eq!(Architecture::detect(&names).unwrap().name, "sd1");
}

#[test]
fn a_model_in_the_layout_of_diffusers_is_refused_even_if_it_has_other_tensors() {
    for architecture in ARCHITECTURES {
        for set in architecture.of_diffusers {
            let mut names: HashSet<&str> = set.iter().copied().collect();
            assert_eq!(Architecture::detect(&names), Err(Undetected::Diffusers(architecture)));
            names.extend(architecture.sets[0]);
            assert_eq!(Architecture::detect(&names), Err(Undetected::Diffusers(architecture)));
            for asked in ARCHITECTURES.iter().filter(|asked| asked.name != "qwen_image") {
                assert_eq!(asked.check(&names), Err(Undetected::Diffusers(architecture)));
            }
        }
    }
    assert_eq!(Architecture::detect(&HashSet::from(["model.embed_tokens.weight"])), Err(Undetected::Unknown));
}

#[test]
fn a_model_without_key_tensors_is_of_no_architecture_that_the_user_names() {
    let llama = HashSet::from(["embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "norm.weight"]);
    for asked in ARCHITECTURES {
        assert_eq!(asked.check(&llama), Err(Undetected::Unknown), "{}", asked.name);
        assert_eq!(asked.check(&asked.sets[0].iter().copied().collect()), Ok(()), "{}", asked.name);
        let starts: Vec<String> = asked.starts.iter().map(|start| format!("{start}weight")).collect();
        assert_eq!(asked.check(&starts.iter().map(String::as_str).collect()), Ok(()), "{}", asked.name);
    }
}
