//! Importance matrices: against the weights that llama-quantize gets, and against arithmetic.

#[path = "../common/gguf_reader.rs"]
mod gguf_reader;

use super::{fixture, numbers, path};
use safetensors::SafeTensors;
use std::fs;
use tcast::blocks::ImportanceMatrix;

#[test]
fn importance_matrices_have_the_weights_of_llama_quantize() {
    let check = |matrix: &ImportanceMatrix, name: &str| {
        let expected = fixture(&format!("{name}.weights"));
        let expected = SafeTensors::deserialize(&expected).unwrap();
        let mut names: Vec<&str> = expected.names().into_iter().collect();
        names.sort_unstable();
        assert!(matrix.names().eq(names.iter().copied()), "{name}");
        assert_eq!(matrix.names().count(), 3);
        for tensor in names {
            let weights = numbers(&expected, tensor).unwrap();
            assert_eq!(matrix.weights(tensor, weights.len() as u64, 1).unwrap(), Some(&*weights), "{name}: {tensor}");
        }
    };
    let file = fs::read(path("imatrix.gguf")).unwrap();
    let tensors: Vec<_> = gguf_reader::tensors_of_gguf(&file)
        .into_iter()
        .map(|(name, id, elements, data)| {
            assert_eq!(id, 0);
            (name, &data[..4 * elements as usize])
        })
        .collect();
    let tensors = || tensors.iter().map(|(name, data)| (&**name, Some(*data)));
    let matrix = ImportanceMatrix::from_tensors(tensors()).unwrap();
    check(&matrix, "imatrix.gguf");
    assert_eq!(matrix.weights("blk.9.attn_q.weight", 256, 1).unwrap(), None);
    assert_eq!(
        matrix.weights("blk.0.attn_q.weight", 256, 2).unwrap_err().to_string(),
        "tensor 'blk.0.attn_q.weight': the importance matrix has 256 weights for 2 x 256 columns"
    );
    let without_counts = tensors().filter(|(name, _)| *name != "blk.0.attn_q.weight.counts");
    assert_eq!(
        ImportanceMatrix::from_tensors(without_counts).unwrap_err().to_string(),
        "the importance matrix has no tensor 'blk.0.attn_q.weight.counts'"
    );
    let halves = tensors().map(|(name, data)| (name, data.filter(|_| name != "blk.0.attn_q.weight.in_sum2")));
    assert_eq!(
        ImportanceMatrix::from_tensors(halves).unwrap_err().to_string(),
        "tensor 'blk.0.attn_q.weight.in_sum2': importance matrices have the type F32"
    );

    let file = fs::read(path("imatrix.dat")).unwrap();
    check(&ImportanceMatrix::from_legacy(&file).unwrap(), "imatrix.dat");
    for end in [0, 3, 4, 20, 200, 2000] {
        let error = ImportanceMatrix::from_legacy(&file[..end]).unwrap_err();
        assert_eq!(error.to_string(), "the importance matrix ends early");
    }
    let negative: Vec<u8> = [1_i32, -5].iter().flat_map(|x| x.to_le_bytes()).collect();
    let error = ImportanceMatrix::from_legacy(&negative).unwrap_err();
    assert_eq!(error.to_string(), "the importance matrix contains a negative length");
    let error = ImportanceMatrix::from_legacy(&[0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "the importance matrix has no tensors");
}

#[test]
fn an_expert_without_inputs_has_weights_of_one() {
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (sums, counts) = (bytes(&[3.0, 6.0, 5.0, 7.0, f32::NAN, 8.0]), bytes(&[3.0, 0.0, 2.0]));
    let tensors = [("w.in_sum2", Some(&*sums)), ("w.counts", Some(&*counts)), ("other", None)];
    let matrix = ImportanceMatrix::from_tensors(tensors).unwrap();
    assert_eq!(
        matrix.weights("w", 2, 3).unwrap_err().to_string(),
        "tensor 'w': weight 4 of the importance matrix is NaN"
    );
    let tensors = [("w.in_sum2", Some(&sums[..16])), ("w.counts", Some(&counts[..8]))];
    let matrix = ImportanceMatrix::from_tensors(tensors).unwrap();
    assert_eq!(matrix.weights("w", 2, 2).unwrap(), Some(&[1.0, 2.0, 1.0, 1.0][..]));
    let tensors = [("w.in_sum2", Some(&sums[..16])), ("w.counts", Some(&*counts))];
    assert_eq!(
        ImportanceMatrix::from_tensors(tensors).unwrap_err().to_string(),
        "tensor 'w': 4 sums of squares do not belong to 3 counts"
    );
}
