//! Lists in the values of keys, as stored: the number of the type, the type of the elements, their count, and the elements.

use super::header::{LIST, STRING};

/// Returns the type, the count and the bytes of the elements; `None` if the value is no list.
fn parts(value: &[u8]) -> Option<(u32, u64, &[u8])> {
    let (kind, rest) = value.split_first_chunk()?;
    let (element, rest) = rest.split_first_chunk()?;
    let (count, elements) = rest.split_first_chunk()?;
    (u32::from_le_bytes(*kind) == LIST).then(|| (u32::from_le_bytes(*element), u64::from_le_bytes(*count), elements))
}

/// Returns the number of elements of a list.
pub(crate) fn list_length(value: &[u8]) -> Option<u64> {
    parts(value).map(|(_, count, _)| count)
}

/// Returns the first element of a list of uint32 or int32.
pub(crate) fn first_number(value: &[u8]) -> Option<u64> {
    let (kind, _, elements) = parts(value)?;
    let number = u32::from_le_bytes(*elements.first_chunk()?);
    matches!(kind, 4 | 5).then_some(number.into())
}

/// Returns a value that is uint32 or int32, or the first element of a list of them.
pub(crate) fn number_or_first(value: &[u8]) -> Option<u64> {
    let (kind, rest) = value.split_first_chunk()?;
    match u32::from_le_bytes(*kind) {
        4 | 5 => Some(u32::from_le_bytes(*rest.first_chunk()?).into()),
        _ => first_number(value),
    }
}

/// Returns the first element of a list of texts.
pub(crate) fn first_text(value: &[u8]) -> Option<&str> {
    let (kind, _, elements) = parts(value)?;
    let (length, rest) = elements.split_first_chunk()?;
    let text = rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    std::str::from_utf8(text).ok().filter(|_| kind == STRING)
}

#[cfg(test)]
mod tests {
    use super::super::GgufKey;
    use super::*;

    #[test]
    fn the_first_element_of_a_list_is_read() {
        let numbers = GgufKey::int32s("shape", &[7, 8]).value;
        assert_eq!((list_length(&numbers), first_number(&numbers), first_text(&numbers)), (Some(2), Some(7), None));
        let mut texts = [&LIST.to_le_bytes()[..], &STRING.to_le_bytes(), &1_u64.to_le_bytes()].concat();
        texts.extend([&2_u64.to_le_bytes()[..], b"ab"].concat());
        assert_eq!((list_length(&texts), first_number(&texts), first_text(&texts)), (Some(1), None, Some("ab")));
        for end in 0..texts.len() {
            assert_eq!(first_text(&texts[..end]), None);
        }
        assert_eq!(list_length(&GgufKey::uint32("count", 3).value), None);
        assert_eq!(number_or_first(&GgufKey::uint32("count", 3).value), Some(3));
        assert_eq!((number_or_first(&numbers), number_or_first(&texts)), (Some(7), None));
    }
}
