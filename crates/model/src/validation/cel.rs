//! Syntax of CEL, the expression language of access log filters.
//!
//! Only tells whether an expression parses; names and types are not checked, as in the reference.

/// Deepest nesting of an expression.
const MAX_DEPTH: u32 = 250;

/// Words that cannot be names.
const RESERVED: [&str; 20] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
];

/// Checks that `expression` is CEL.
///
/// # Errors
/// The reason, in words.
pub(crate) fn check(expression: &str) -> Result<(), String> {
    let tokens = tokens(expression)?;
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
        depth: 0,
    };
    parser.expression()?;
    match parser.peek() {
        None => Ok(()),
        Some(token) => Err(format!("unexpected {}", token.text())),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    Literal(&'a str),
    Symbol(&'a str),
}

impl<'a> Token<'a> {
    const fn text(self) -> &'a str {
        match self {
            Self::Name(text) | Self::Literal(text) | Self::Symbol(text) => text,
        }
    }
}

fn tokens(expression: &str) -> Result<Vec<Token<'_>>, String> {
    let mut tokens = Vec::new();
    let mut rest = expression;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{c}']);
        if let Some(comment) = rest.strip_prefix("//") {
            rest = &comment[comment.find('\n').unwrap_or(comment.len())..];
            continue;
        }
        let Some(first) = rest.chars().next() else {
            return Ok(tokens);
        };
        let (token, length) = if let Some(length) = string(rest)? {
            (Token::Literal(&rest[..length]), length)
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let length = end.unwrap_or(rest.len());
            let word = &rest[..length];
            let literal = matches!(word, "true" | "false" | "null");
            (
                if literal {
                    Token::Literal(word)
                } else {
                    Token::Name(word)
                },
                length,
            )
        } else if first.is_ascii_digit()
            || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            let length = number(rest)?;
            (Token::Literal(&rest[..length]), length)
        } else {
            let double = rest
                .get(..2)
                .filter(|two| ["==", "!=", "<=", ">=", "&&", "||"].contains(two));
            let symbol = double.unwrap_or(&rest[..first.len_utf8()]);
            if symbol.len() == 1 && !"+-*/%!<>?:.,()[]{}".contains(symbol) || !symbol.is_ascii() {
                return Err(format!("unexpected character {first:?}"));
            }
            (Token::Symbol(symbol), symbol.len())
        };
        tokens.push(token);
        rest = &rest[length..];
    }
}

/// Measures a string or bytes literal at the start of `text`.
fn string(text: &str) -> Result<Option<usize>, String> {
    let Some(start) = text
        .bytes()
        .take(3)
        .position(|byte| matches!(byte, b'"' | b'\''))
    else {
        return Ok(None);
    };
    let raw = match text[..start].to_ascii_lowercase().as_str() {
        "" | "b" => false,
        "r" | "br" | "rb" => true,
        _ => return Ok(None),
    };
    let quoted = &text[start..];
    let triple = quoted.starts_with("\"\"\"") || quoted.starts_with("'''");
    let quote = &quoted[..if triple { 3 } else { 1 }];
    let mut at = quote.len();
    while let Some(c) = quoted[at..].chars().next() {
        if quoted[at..].starts_with(quote) {
            return Ok(Some(start + at + quote.len()));
        }
        if c == '\\' && !raw {
            at += 1 + escape(&quoted[at + 1..])?;
            continue;
        }
        if !triple && matches!(c, '\n' | '\r') {
            break;
        }
        at += c.len_utf8();
    }
    Err("a string without end".to_owned())
}

/// Measures an escape after its backslash.
fn escape(text: &str) -> Result<usize, String> {
    let invalid = || "unknown escape in a string".to_owned();
    let first = text.chars().next().ok_or_else(invalid)?;
    let (digits, valid): (usize, fn(&u8) -> bool) = match first {
        'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`' => return Ok(1),
        'x' | 'X' => (2, u8::is_ascii_hexdigit),
        'u' => (4, u8::is_ascii_hexdigit),
        'U' => (8, u8::is_ascii_hexdigit),
        '0'..='3' => (2, |byte| matches!(byte, b'0'..=b'7')),
        _ => return Err(invalid()),
    };
    let given = text.as_bytes().get(1..=digits).ok_or_else(invalid)?;
    if given.iter().all(valid) {
        Ok(digits + 1)
    } else {
        Err(invalid())
    }
}

/// Measures a number at the start of `text`.
fn number(text: &str) -> Result<usize, String> {
    let bytes = text.as_bytes();
    let digits = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    let mut at;
    if let Some(hexadecimal) = text.strip_prefix("0x") {
        let length = hexadecimal
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(hexadecimal.len());
        at = 2 + length;
        if length == 0 {
            return Err("0x without digits".to_owned());
        }
    } else {
        at = digits(0);
        let mut float = false;
        if bytes.get(at) == Some(&b'.') && bytes.get(at + 1).is_some_and(u8::is_ascii_digit) {
            at = digits(at + 1);
            float = true;
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
            let end = digits(at + 1 + sign);
            if end == at + 1 + sign {
                return Err("a number without exponent".to_owned());
            }
            return Ok(end);
        }
        if float {
            return Ok(at);
        }
    }
    if matches!(bytes.get(at), Some(b'u' | b'U')) {
        at += 1;
    }
    Ok(at)
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let found = self.peek() == Some(Token::Symbol(symbol));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str) -> Result<(), String> {
        if self.eat(symbol) {
            return Ok(());
        }
        match self.peek() {
            Some(token) => Err(format!("expected {symbol:?} before {}", token.text())),
            None => Err(format!("expected {symbol:?} at the end")),
        }
    }

    fn name(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                self.at += 1;
                Ok(name)
            }
            Some(token) => Err(format!("expected a name before {}", token.text())),
            None => Err("expected a name at the end".to_owned()),
        }
    }

    fn expression(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("the expression is nested too deeply".to_owned());
        }
        self.binary(0)?;
        if self.eat("?") {
            self.binary(0)?;
            self.expect(":")?;
            self.expression()?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads operands joined by operators of `level` and those that bind tighter.
    fn binary(&mut self, level: usize) -> Result<(), String> {
        const LEVELS: [&[&str]; 5] = [
            &["||"],
            &["&&"],
            &["<", "<=", ">", ">=", "==", "!=", "in"],
            &["+", "-"],
            &["*", "/", "%"],
        ];
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        self.binary(level + 1)?;
        while let Some(Token::Symbol(operator) | Token::Name(operator)) = self.peek()
            && operators.contains(&operator)
        {
            self.at += 1;
            self.binary(level + 1)?;
        }
        Ok(())
    }

    fn unary(&mut self) -> Result<(), String> {
        // The two do not mix: `!-x` is no expression.
        if self.eat("!") {
            while self.eat("!") {}
        } else {
            while self.eat("-") {}
        }
        self.primary()?;
        self.members()
    }

    fn members(&mut self) -> Result<(), String> {
        loop {
            if self.eat(".") {
                self.eat("?");
                let name = self.name()?;
                if self.eat("(") {
                    let start = self.at;
                    let count = self.list(")")?;
                    self.comprehension(name, start, count)?;
                }
            } else if self.eat("[") {
                self.eat("?");
                self.expression()?;
                self.expect("]")?;
            } else {
                return Ok(());
            }
        }
    }

    /// Checks the loop variable of the comprehension macros.
    fn comprehension(&self, name: &str, start: usize, count: usize) -> Result<(), String> {
        let arguments: &[usize] = match name {
            "all" | "exists" | "exists_one" | "filter" => &[2],
            "map" => &[2, 3],
            _ => return Ok(()),
        };
        let variable = matches!(self.tokens.get(start), Some(Token::Name(_)))
            && self.tokens.get(start + 1) == Some(&Token::Symbol(","));
        if arguments.contains(&count) && !variable {
            return Err(format!("the first argument of {name} must be a name"));
        }
        Ok(())
    }

    fn primary(&mut self) -> Result<(), String> {
        match self.peek() {
            Some(Token::Literal(_)) => {
                self.at += 1;
                Ok(())
            }
            Some(Token::Symbol("(")) => {
                self.at += 1;
                self.expression()?;
                self.expect(")")
            }
            Some(Token::Symbol("[")) => {
                self.at += 1;
                self.list("]").map(|_| ())
            }
            Some(Token::Symbol("{")) => {
                self.at += 1;
                self.entries(false)
            }
            Some(Token::Symbol(".") | Token::Name(_)) => self.reference(),
            Some(token) => Err(format!("unexpected {}", token.text())),
            None => Err("an operand is missing at the end".to_owned()),
        }
    }

    /// Reads a name, a call, or a message with its fields.
    fn reference(&mut self) -> Result<(), String> {
        self.eat(".");
        let name = self.name()?;
        if RESERVED.contains(&name) {
            return Err(format!("{name} is a reserved word"));
        }
        if self.eat("(") {
            let start = self.at;
            let count = self.list(")")?;
            if name == "has" && count == 1 {
                let end = self.at - 1;
                let select = end >= start + 3
                    && self.tokens[end - 2] == Token::Symbol(".")
                    && matches!(self.tokens[end - 1], Token::Name(_));
                if !select {
                    return Err("the argument of has must be a field".to_owned());
                }
            }
            return Ok(());
        }
        // A message is `a.b.C{...}`: look ahead over the dots for the brace.
        let mut ahead = self.at;
        while self.tokens.get(ahead) == Some(&Token::Symbol("."))
            && matches!(self.tokens.get(ahead + 1), Some(Token::Name(_)))
        {
            ahead += 2;
        }
        if self.tokens.get(ahead) == Some(&Token::Symbol("{")) {
            self.at = ahead + 1;
            return self.entries(true);
        }
        Ok(())
    }

    /// Reads expressions up to `end`, a trailing comma allowed in lists; gives their number.
    fn list(&mut self, end: &str) -> Result<usize, String> {
        let mut count = 0;
        while !self.eat(end) {
            if count > 0 {
                self.expect(",")?;
                if end == "]" && self.eat(end) {
                    break;
                }
            }
            self.expression()?;
            count += 1;
        }
        Ok(count)
    }

    fn entries(&mut self, fields: bool) -> Result<(), String> {
        let mut first = true;
        while !self.eat("}") {
            if !first {
                self.expect(",")?;
                if self.eat("}") {
                    break;
                }
            }
            first = false;
            if fields {
                self.name()?;
            } else {
                self.expression()?;
            }
            self.expect(":")?;
            self.expression()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn expressions() {
        for good in [
            "response.code >= 400",
            "response.code >= 400 && request.headers['x'] == \"y\" || !has(a.b)",
            "a ? b : c ? d : e",
            "[1, 2u, 3.5, 0x1F, -1, 1e3].exists(x, x > 1)",
            "{'a': 1, b: 2,}",
            "a.b.C{x: 1}",
            "'''a\nb''' + r'\\d' + b'x' + '\\n\\x41\\u00e9'",
            "connection.mtls // comment",
            "x in [1]",
            ".a.b(c)[0]",
            "!!a && --b > 1",
            "[1,]",
        ] {
            assert_eq!(super::check(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "a +",
            "a b",
            "(a",
            "a)",
            "a &&",
            "a & b",
            "a = b",
            "'x",
            "has(a)",
            "if",
            "a.",
            "[1",
            "{a}",
            "x.all(1, y)",
            "response.code >== 4",
            "f(a,)",
            "\"\\q\"",
            "0x",
            "a ? b",
            "@",
            "!-a",
        ] {
            assert!(super::check(bad).is_err(), "{bad}");
        }
    }
}
