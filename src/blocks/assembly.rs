//! Assembles a tensor of a model from the matrices that a file stores.

/// The order in which a tensor takes the rows of its one or two sources. A row is all of the last dimension, or an element
/// of it. Sources with more dimensions are several matrices, each of which is assembled separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// The rows of the only source, in their order.
    #[default]
    Stored,
    /// The rows of the only source, for this many attention heads: rows of the two halves of a head alternate in the
    /// source, and are one after the other in the tensor. Row `h * d + k * d / 2 + i` of the tensor, with heads of d rows,
    /// is row `h * d + 2 * i + k` of the source (llama.cpp's `permute`).
    Heads(u64),
    /// A row of the first source, then a row of the second, and so on.
    Alternating,
    /// All rows of a matrix of the first source, then all rows of the same matrix of the second.
    Concatenated,
    /// The rows of the only source. From row `start` on, they are blocks: for each of `groups` groups, the tensor has `each`
    /// blocks, one after the other, and the source has the first block of every group, then the second, and so on.
    Groups { start: u64, groups: u64, each: u64 },
    /// For each of `heads` heads, `key` rows of the queries, `key` rows of the keys, and `value` rows of the values from the
    /// first source, which has all queries, all keys, and all values; then `value` rows of the second source.
    Projections { heads: u64, key: u64, value: u64 },
}

/// The change of each value of an assembled tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueChange {
    #[default]
    None,
    /// 1 is subtracted in float32.
    LessOne,
    /// The natural logarithm of the value without its negative sign: the values of the source are `-exp(x)`.
    LogOfNegative,
}

/// Makes a tensor of its sources: first their rows are put in order, then each matrix is transposed, then each value is
/// changed. If the only source is transposed first, and the result too, then columns are put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    /// True if the matrices of the first source are transposed before the rows are put in order.
    pub first_is_transposed: bool,
    pub order: RowOrder,
    /// True if a row is a single element: the last dimension of each source is the number of rows, as in biases.
    pub rows_are_elements: bool,
    /// True if each assembled matrix is transposed.
    pub is_transposed: bool,
    pub change: ValueChange,
}

impl Assembly {
    /// Returns the rows and columns of a matrix that is made of matrices with these rows and columns; `None` if they do not
    /// fit together.
    pub(crate) fn size(&self, sources: &[[u64; 2]]) -> Option<[u64; 2]> {
        let turned = |[rows, columns]: [u64; 2], is_turned| if is_turned { [columns, rows] } else { [rows, columns] };
        let (first, others) = sources.split_first()?;
        let first = turned(*first, self.first_is_transposed);
        let assembled = match (self.order, others) {
            (RowOrder::Stored, []) => first,
            (RowOrder::Heads(heads), []) if heads > 0 && first[0].is_multiple_of(heads.checked_mul(2)?) => first,
            (RowOrder::Groups { start, groups, each }, [])
                if first[0].checked_sub(start)?.checked_rem(groups.checked_mul(each)?)? == 0 =>
            {
                first
            }
            (RowOrder::Projections { heads, key, value }, [second])
                if first[1] == second[1]
                    && second[0] == heads.checked_mul(value)?
                    && first[0] == heads.checked_mul(key.checked_mul(2)?.checked_add(value)?)? =>
            {
                [first[0].checked_add(second[0])?, first[1]]
            }
            (RowOrder::Alternating, [second]) if first == *second => [first[0].checked_mul(2)?, first[1]],
            (RowOrder::Concatenated, [second]) if first[1] == second[1] => [first[0].checked_add(second[0])?, first[1]],
            _ => return None,
        };
        Some(turned(assembled, self.is_transposed))
    }

    /// True if the columns of the only source are put in order.
    pub(crate) fn orders_columns(&self) -> bool {
        self.first_is_transposed && self.is_transposed
    }
}

#[cfg(test)]
impl Assembly {
    /// Assembles sources with these shapes and values one by one.
    pub(crate) fn assemble(&self, sources: &[(&[u64], Vec<i64>)]) -> Vec<i64> {
        let matrices = |at: usize, is_transposed: bool| -> Vec<Vec<Vec<i64>>> {
            let (shape, values) = &sources[at];
            let width = if self.rows_are_elements { 1 } else { *shape.last().unwrap() as usize };
            // A tensor of one dimension is a row.
            let height = if self.rows_are_elements { shape.last() } else { shape.iter().rev().nth(1) };
            let height = height.map_or(1, |height| *height as usize);
            let rows: Vec<Vec<i64>> = values.chunks(width).map(<[i64]>::to_vec).collect();
            let matrices = rows.chunks(height).map(<[Vec<i64>]>::to_vec);
            matrices.map(|matrix| if is_transposed { transpose(&matrix) } else { matrix }).collect()
        };
        let firsts = matrices(0, self.first_is_transposed);
        let seconds = if sources.len() > 1 { matrices(1, false) } else { vec![Vec::new(); firsts.len()] };
        let mut values = Vec::new();
        for (first, second) in firsts.iter().zip(&seconds) {
            let mut rows = match self.order {
                RowOrder::Stored => first.clone(),
                RowOrder::Concatenated => [first.clone(), second.clone()].concat(),
                RowOrder::Alternating => first.iter().zip(second).flat_map(|(a, b)| [a.clone(), b.clone()]).collect(),
                RowOrder::Heads(heads) => {
                    let size = first.len() / heads as usize;
                    let source = |row: usize| {
                        let (head, k, i) = (row / size, row % size / (size / 2), row % (size / 2));
                        head * size + 2 * i + k
                    };
                    (0..first.len()).map(|row| first[source(row)].clone()).collect()
                }
                RowOrder::Groups { start, groups, each } => {
                    let [start, groups, each] = [start, groups, each].map(|number| number as usize);
                    let size = (first.len() - start) / (groups * each);
                    let blocks = (0..groups).flat_map(|group| (0..each).map(move |at| at * groups + group));
                    let moved = blocks.flat_map(|block| &first[start + block * size..][..size]);
                    first[..start].iter().chain(moved).cloned().collect()
                }
                RowOrder::Projections { heads, key, value } => {
                    let [heads, key, value] = [heads, key, value].map(|number| number as usize);
                    let (keys, values) = first[heads * key..].split_at(heads * key);
                    let part = |rows: &[Vec<i64>], head: usize, size: usize| rows[head * size..][..size].to_vec();
                    let head = |head| {
                        [
                            part(first, head, key),
                            part(keys, head, key),
                            part(values, head, value),
                            part(second, head, value),
                        ]
                    };
                    (0..heads).flat_map(head).flatten().collect()
                }
            };
            if self.is_transposed {
                rows = transpose(&rows);
            }
            values
                .extend(rows.concat().into_iter().map(|value| value - i64::from(self.change == ValueChange::LessOne)));
        }
        values
    }
}

#[cfg(test)]
fn transpose(matrix: &[Vec<i64>]) -> Vec<Vec<i64>> {
    (0..matrix[0].len()).map(|column| matrix.iter().map(|row| row[column]).collect()).collect()
}
