//! A line of bash up to the cursor, split into words.

/// Words of a line without their quotes, and the state of the last one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// Words of the line; the last one is being typed, and can be empty.
    pub(super) words: Vec<String>,
    /// Start of the part of the last word that bash replaces.
    part: usize,
    /// Quote that is open at the end.
    quote: Option<char>,
}

impl CommandLine {
    /// Splits a line; outside quotes, `breaks` end the part of a word that bash completes.
    pub(super) fn parse(line: &str, breaks: &str) -> Self {
        let mut found = Self { words: Vec::new(), part: 0, quote: None };
        let mut word: Option<String> = None;
        let mut letters = line.chars();
        while let Some(letter) = letters.next() {
            let is_blank = found.quote.is_none() && letter.is_whitespace();
            if is_blank {
                found.words.extend(word.take());
                found.part = 0;
                continue;
            }
            let typed = word.get_or_insert_default();
            match (found.quote, letter) {
                (None, '\'' | '"') => (found.quote, found.part) = (Some(letter), typed.len()),
                (Some(open), _) if open == letter => (found.quote, found.part) = (None, typed.len()),
                (None, '\\') => typed.extend(letters.next()),
                (Some('"'), '\\') => match letters.next() {
                    Some(next @ ('"' | '\\' | '$' | '`')) => typed.push(next),
                    next => typed.extend([letter].into_iter().chain(next)),
                },
                _ => {
                    typed.push(letter);
                    if found.quote.is_none() && breaks.contains(letter) {
                        found.part = typed.len();
                    }
                }
            }
        }
        found.words.push(word.unwrap_or_default());
        found
    }

    /// Returns the text that bash must insert to make this the last word, quoted like the rest. `None` if that is
    /// impossible.
    pub(super) fn insertion(&self, word: &str) -> Option<String> {
        let typed = self.words.last()?.get(..self.part)?;
        let part = word.strip_prefix(typed)?;
        let needs = |letter: char| match self.quote {
            Some('\'') => false,
            Some(_) => "\"\\$`".contains(letter),
            None => letter.is_ascii() && !letter.is_ascii_alphanumeric() && !"_-.,/:=@%+~".contains(letter),
        };
        if self.quote == Some('\'') && part.contains('\'') {
            return None;
        }
        Some(part.chars().flat_map(|letter| needs(letter).then_some('\\').into_iter().chain([letter])).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BREAKS: &str = " \t\n\"'><=;|&(:";

    fn words(line: &str) -> Vec<String> {
        CommandLine::parse(line, BREAKS).words
    }

    #[test]
    fn words_are_those_of_the_shell() {
        assert_eq!(words("tcast cast  x.npy"), ["tcast", "cast", "x.npy"]);
        assert_eq!(words("tcast cast "), ["tcast", "cast", ""]);
        assert_eq!(words(r"tcast cast my\ w.npy 'a b'\''c' "), ["tcast", "cast", "my w.npy", "a b'c", ""]);
        assert_eq!(words(r#"tcast "a \"b\" \c" '*no"#), ["tcast", r#"a "b" \c"#, "*no"]);
        assert_eq!(words("tcast '' x\\"), ["tcast", "", "x"]);
        assert_eq!(words(""), [""]);
    }

    #[test]
    fn bash_gets_the_part_behind_the_last_break() {
        let insertion = |line, word| CommandLine::parse(line, BREAKS).insertion(word);
        assert_eq!(insertion("tcast cast --to=fl", "--to=float16").as_deref(), Some("float16"));
        assert_eq!(insertion("tcast cast --rule *a*=b", "*a*=bfloat16").as_deref(), Some("bfloat16"));
        assert_eq!(insertion("tcast cast --rule '*a*=b", "*a*=bfloat16").as_deref(), Some("*a*=bfloat16"));
        assert_eq!(insertion("tcast cast --rule '*a*'=b", "*a*=bfloat16").as_deref(), Some("bfloat16"));
        assert_eq!(insertion("tcast cast m", "my w.npy").as_deref(), Some(r"my\ w.npy"));
        assert_eq!(insertion("tcast cast 'm", "my w.npy").as_deref(), Some("my w.npy"));
        assert_eq!(insertion("tcast cast \"m", "m$.npy").as_deref(), Some(r"m\$.npy"));
        assert_eq!(insertion("tcast cast 'm", "m'.npy"), None);
        assert_eq!(CommandLine::parse("tcast --to=f", "").insertion("--to=f16").as_deref(), Some("--to=f16"));
    }
}
