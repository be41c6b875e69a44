//! Syntax of RE2 expressions, as Go and Envoy accept them.
//!
//! Only tells whether an expression compiles; it is never matched here.

/// Longest repetition count, and longest product of nested ones.
const MAX_REPEAT: u32 = 1000;
/// Deepest nesting of groups.
const MAX_DEPTH: u32 = 1000;

/// Checks that `expression` is RE2 syntax.
///
/// # Errors
/// The reason, in words.
pub(crate) fn check(expression: &str) -> Result<(), String> {
    let mut parser = Parser {
        rest: expression,
        names: Vec::new(),
    };
    parser.alternation(0)?;
    match parser.rest.chars().next() {
        None => Ok(()),
        Some(_) => Err("unexpected \")\"".to_owned()),
    }
}

struct Parser<'a> {
    rest: &'a str,
    names: Vec<&'a str>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next();
        self.rest = chars.as_str();
        next
    }

    fn eat(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Reads alternatives up to `)` or the end; gives the largest repetition inside.
    fn alternation(&mut self, depth: u32) -> Result<u32, String> {
        if depth > MAX_DEPTH {
            return Err("groups are nested too deeply".to_owned());
        }
        let mut largest = 1;
        // The repetitions of the last element, and whether it is itself a repetition.
        let mut last: Option<(u32, bool)> = None;
        while let Some(c) = self.peek() {
            let inner = match c {
                ')' => break,
                '|' => {
                    self.next();
                    last = None;
                    continue;
                }
                '*' | '+' | '?' | '{' => {
                    let before = self.rest;
                    let Some(count) = self.repetition()? else {
                        // A brace that is no repetition is a plain character.
                        self.next();
                        last = Some((1, false));
                        continue;
                    };
                    let operator = &before[..before.len() - self.rest.len()];
                    let (inner, repeated) =
                        last.ok_or_else(|| format!("nothing before the repetition {operator:?}"))?;
                    if repeated {
                        return Err(format!(
                            "repetition {operator:?} follows another repetition"
                        ));
                    }
                    self.eat("?");
                    let product = inner.saturating_mul(count.max(1));
                    if product > MAX_REPEAT {
                        return Err(format!(
                            "repetition {operator:?} exceeds {MAX_REPEAT} in all"
                        ));
                    }
                    last = Some((product, true));
                    largest = largest.max(product);
                    continue;
                }
                '(' => {
                    self.next();
                    match self.group(depth)? {
                        Some(inner) => inner,
                        // Flags for what follows are no element.
                        None => continue,
                    }
                }
                '[' => {
                    self.next();
                    self.class()?;
                    1
                }
                '\\' => {
                    self.next();
                    if self.eat("Q") {
                        let end = self.rest.find("\\E");
                        let quoted = &self.rest[..end.unwrap_or(self.rest.len())];
                        self.rest = &self.rest[end.map_or(self.rest.len(), |end| end + 2)..];
                        if quoted.is_empty() {
                            continue;
                        }
                    } else if !matches!(self.peek(), Some('A' | 'z' | 'b' | 'B'))
                        || self.next().is_none()
                    {
                        self.escape()?;
                    }
                    1
                }
                _ => {
                    self.next();
                    1
                }
            };
            largest = largest.max(inner);
            last = Some((inner, false));
        }
        Ok(largest)
    }

    /// Reads `*`, `+`, `?` or `{n,m}`; gives the count, 1 for the unbounded ones, `None` when a
    /// brace starts no repetition.
    fn repetition(&mut self) -> Result<Option<u32>, String> {
        let before = self.rest;
        if self.eat("*") || self.eat("+") || self.eat("?") {
            return Ok(Some(1));
        }
        let Some((inside, rest)) = before[1..].split_once('}') else {
            return Ok(None);
        };
        let number = |text: &str| -> Option<u32> {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit())
                && !text.is_empty()
                && (text == "0" || !text.starts_with('0'));
            plain.then(|| text.parse().unwrap_or(u32::MAX))
        };
        let (low, high) = match inside.split_once(',') {
            None => match number(inside) {
                Some(count) => (count, Some(count)),
                None => return Ok(None),
            },
            Some((low, high)) => match (number(low), high.is_empty(), number(high)) {
                (Some(low), true, _) => (low, None),
                (Some(low), false, Some(high)) => (low, Some(high)),
                _ => return Ok(None),
            },
        };
        if low > MAX_REPEAT || high.is_some_and(|high| high > MAX_REPEAT || high < low) {
            return Err(format!(
                "repetition {{{inside}}} is not within 0 to {MAX_REPEAT}"
            ));
        }
        self.rest = rest;
        Ok(Some(high.unwrap_or(low)))
    }

    /// Reads a group after its parenthesis; `None` for flags alone.
    fn group(&mut self, depth: u32) -> Result<Option<u32>, String> {
        if self.eat("?P<") || (self.rest.starts_with("?<") && self.eat("?<")) {
            let (name, rest) = self
                .rest
                .split_once('>')
                .ok_or_else(|| "group name without \">\"".to_owned())?;
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(word) {
                return Err(format!("{name:?} is not a group name"));
            }
            if self.names.contains(&name) {
                return Err(format!("two groups have the name {name:?}"));
            }
            self.names.push(name);
            self.rest = rest;
        } else if self.eat("?") && !self.flags()? {
            return Ok(None);
        }
        let inner = self.alternation(depth + 1)?;
        if self.next() != Some(')') {
            return Err("missing \")\"".to_owned());
        }
        Ok(Some(inner))
    }

    /// Reads `flags:` or `flags)`; tells whether a group follows.
    fn flags(&mut self) -> Result<bool, String> {
        let (mut negative, mut any) = (false, false);
        loop {
            match self.next() {
                Some('i' | 'm' | 's' | 'U') => any = true,
                Some('-') if !negative => {
                    negative = true;
                    any = false;
                }
                Some(end @ (':' | ')')) if any || !negative => return Ok(end == ':'),
                _ => {
                    return Err(
                        "unknown group syntax after \"(?\" (lookaround is not supported)"
                            .to_owned(),
                    );
                }
            }
        }
    }

    /// Reads a class after its bracket.
    fn class(&mut self) -> Result<(), String> {
        self.eat("^");
        let mut first = true;
        loop {
            if self.rest.starts_with("[:")
                && let Some((name, rest)) = self.rest[2..].split_once(":]")
            {
                const NAMES: [&str; 14] = [
                    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower",
                    "print", "punct", "space", "upper", "word", "xdigit",
                ];
                if !NAMES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                    return Err(format!("unknown character class [:{name}:]"));
                }
                self.rest = rest;
                first = false;
                continue;
            }
            match self.peek() {
                None => return Err("missing \"]\"".to_owned()),
                Some(']') if !first => {
                    self.next();
                    return Ok(());
                }
                Some(_) => {}
            }
            first = false;
            let low = self.class_character()?;
            let mut ahead = self.rest.chars();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']') {
                let (Some(low), true) = (low, self.eat("-")) else {
                    continue;
                };
                let high = self.class_character()?;
                if high.is_none_or(|high| high < low) {
                    return Err("character range is out of order".to_owned());
                }
            }
        }
    }

    /// Reads one character of a class; `None` for a class such as `\d`.
    fn class_character(&mut self) -> Result<Option<u32>, String> {
        match self.next() {
            Some('\\') => self.escape(),
            Some(c) => Ok(Some(u32::from(c))),
            None => Err("missing \"]\"".to_owned()),
        }
    }

    /// Reads an escape after its backslash; `None` for a class such as `\d`.
    fn escape(&mut self) -> Result<Option<u32>, String> {
        let Some(c) = self.next() else {
            return Err("trailing backslash".to_owned());
        };
        match c {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => Ok(None),
            'p' | 'P' => self.unicode_class().map(|()| None),
            'a' => Ok(Some(7)),
            'f' => Ok(Some(12)),
            't' => Ok(Some(9)),
            'n' => Ok(Some(10)),
            'r' => Ok(Some(13)),
            'v' => Ok(Some(11)),
            'x' => self.hexadecimal().map(Some),
            '0'..='7' => {
                // One to seven need a second octal digit: alone they would refer to a group.
                let mut digits = String::from(c);
                while digits.len() < 3
                    && let Some(digit @ '0'..='7') = self.peek()
                {
                    digits.push(digit);
                    self.next();
                }
                if digits.len() == 1 && c != '0' {
                    return Err(format!("\\{c}: references to groups are not supported"));
                }
                Ok(u32::from_str_radix(&digits, 8).ok())
            }
            c if c.is_ascii_punctuation() || c == ' ' || c.is_ascii_control() => {
                Ok(Some(u32::from(c)))
            }
            c => Err(format!("unknown escape \\{c}")),
        }
    }

    fn hexadecimal(&mut self) -> Result<u32, String> {
        let invalid = || "\\x without hexadecimal number".to_owned();
        let digits = if self.eat("{") {
            let (digits, rest) = self.rest.split_once('}').ok_or_else(invalid)?;
            self.rest = rest;
            digits
        } else {
            let digits = self.rest.get(..2).ok_or_else(invalid)?;
            self.rest = &self.rest[2..];
            digits
        };
        let hexadecimal = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = hexadecimal
            .then(|| u32::from_str_radix(digits, 16).ok())
            .flatten();
        number
            .filter(|number| *number <= 0x0010_FFFF)
            .ok_or_else(invalid)
    }

    fn unicode_class(&mut self) -> Result<(), String> {
        let name = if self.eat("{") {
            let (name, rest) = self
                .rest
                .split_once('}')
                .ok_or_else(|| "\\p without \"}\"".to_owned())?;
            self.rest = rest;
            name.strip_prefix('^').unwrap_or(name)
        } else {
            let end = self.peek().map_or(0, char::len_utf8);
            let (name, rest) = self.rest.split_at(end);
            self.rest = rest;
            name
        };
        // One or two letters name a general category, longer names are scripts.
        let known = match name.as_bytes() {
            [b'C' | b'L' | b'M' | b'N' | b'P' | b'S' | b'Z'] => true,
            [first, second] => CATEGORIES.contains(&[*first, *second]),
            [first, .., _] => {
                first.is_ascii_uppercase()
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
            }
            _ => false,
        };
        if known {
            Ok(())
        } else {
            Err(format!("unknown unicode class {name:?}"))
        }
    }
}

/// The general categories of Unicode with two letters.
const CATEGORIES: [[u8; 2]; 29] = [
    *b"Cc", *b"Cf", *b"Co", *b"Cs", *b"Ll", *b"Lm", *b"Lo", *b"Lt", *b"Lu", *b"Mc", *b"Me", *b"Mn",
    *b"Nd", *b"Nl", *b"No", *b"Pc", *b"Pd", *b"Pe", *b"Pf", *b"Pi", *b"Po", *b"Ps", *b"Sc", *b"Sk",
    *b"Sm", *b"So", *b"Zl", *b"Zp", *b"Zs",
];

#[cfg(test)]
mod tests {
    #[track_caller]
    fn check(good: &[&str], bad: &[&str]) {
        for expression in good {
            assert_eq!(super::check(expression), Ok(()), "{expression}");
        }
        for expression in bad {
            assert!(super::check(expression).is_err(), "{expression}");
        }
    }

    #[test]
    fn literals_and_repetitions() {
        check(
            &[
                "", "a", ".*", "a+?", "a{2}", "a{2,}", "a{2,3}?", "a{", "a{,2}", "{", "a|", "|",
                "^*", "x{1000}",
            ],
            &[
                "*",
                "+a",
                "a**",
                "a+*",
                "a{2}{3}",
                "|*",
                "x{1001}",
                "x{3,2}",
                "(x{100}){100}",
                "(*)",
            ],
        );
    }

    #[test]
    fn groups() {
        check(
            &[
                "(a)", "(?:a)", "(?i)a", "(?i:a)", "(?-s:a)", "(?P<n>a)", "(?<n>a)", "()",
                "(?i-m)x",
            ],
            &[
                "(",
                ")",
                "(a",
                "a)",
                "(?=a)",
                "(?!a)",
                "(?<=a)",
                "(?P<n>a)(?P<n>b)",
                "(?P<>a)",
                "(?x)a",
                "(?P=n)",
            ],
        );
    }

    #[test]
    fn classes() {
        check(
            &[
                "[a-z]",
                "[^a]",
                "[]a]",
                "[-a]",
                "[a-]",
                "[[:alpha:]]",
                r"[\d-a]",
                r"[\]]",
                r"[\x00-\x7f]",
            ],
            &["[", "[a", "[]", "[z-a]", "[[:foo:]]", r"[\q]"],
        );
    }

    #[test]
    fn escapes() {
        check(
            &[
                r"\.",
                r"\d\w\S",
                r"\pL",
                r"\p{Greek}",
                r"\P{^Lu}",
                r"\x41",
                r"\x{10FFFF}",
                r"\Qa*b\E+",
                r"\z",
                r"\bA",
                r"\/",
                r"\012",
            ],
            &[
                r"\",
                r"\1",
                r"\k",
                r"\Z",
                r"\pX",
                r"\x4",
                r"\x{110000}",
                r"\C",
                r"\p{",
                r"\8",
            ],
        );
    }
}
