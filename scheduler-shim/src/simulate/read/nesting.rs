//! Measures how deep brackets are nested in YAML, without parsing it.
//!
//! The parser's time grows with the square of the depth, and it checks its own limit only when it has read
//! everything. So this goes over the text once, as the parser's scanner does: where a token begins, what it is, and
//! where it ends. Only brackets count. Blocks nest by indentation, which costs the parser nothing beyond the text.

/// The deepest nesting that is read: the limit of the parsers for YAML and JSON.
pub(super) const DEEPEST: usize = 128;

/// Whether brackets are nested deeper than [`DEEPEST`].
pub(super) fn is_too_deep(text: &str) -> bool {
    let mut scanner = YamlScanner::new(text.as_bytes());
    while scanner.depth <= DEEPEST {
        if !scanner.token() {
            return false;
        }
    }
    true
}

/// The position at which the parser's scanner would be.
struct YamlScanner<'a> {
    text: &'a [u8],
    at: usize,
    /// Where the line begins.
    line: usize,
    depth: usize,
    /// The column of the innermost block, which the content of `|` must be indented beyond; -1 outside all.
    block: isize,
    /// The column of the last token, where a block begins if a colon follows.
    key: isize,
}

impl<'a> YamlScanner<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self {
            text,
            at: 0,
            line: 0,
            depth: 0,
            block: -1,
            key: -1,
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn column(&self) -> isize {
        isize::try_from(self.at - self.line).unwrap_or(isize::MAX)
    }

    /// Whether the byte there is a blank or the end.
    fn is_blank(&self, ahead: usize) -> bool {
        self.peek(ahead)
            .is_none_or(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0))
    }

    /// Moves to the next byte, which may begin a line.
    fn step(&mut self) {
        if self.peek(0) == Some(b'\n') {
            self.line = self.at + 1;
        }
        self.at += 1;
    }

    fn skip_blanks(&mut self) {
        while self.at < self.text.len() && self.is_blank(0) {
            self.step();
        }
    }

    /// Whether a document begins or ends here.
    fn is_mark(&self) -> bool {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let is_mark = rest.starts_with(b"---") || rest.starts_with(b"...");
        is_mark && self.column() == 0 && self.is_blank(3)
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
    }

    /// Skips blanks, comments and one token. False at the end.
    fn token(&mut self) -> bool {
        self.skip_blanks();
        let Some(byte) = self.peek(0) else {
            return false;
        };
        let column = self.column();
        let is_flow = self.depth > 0;
        match byte {
            _ if self.is_mark() => {
                self.at += 3;
                (self.block, self.key) = (-1, -1);
            }
            b'#' => self.skip_line(),
            b'%' if column == 0 => self.skip_line(),
            b'[' | b'{' => {
                self.begin();
                self.depth += 1;
                self.at += 1;
            }
            b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                self.at += 1;
            }
            b',' => self.at += 1,
            b'-' | b'?' if !is_flow && self.is_blank(1) => {
                self.block = column;
                self.at += 1;
            }
            b':' if is_flow || self.is_blank(1) => {
                if !is_flow && self.key >= 0 {
                    self.block = self.key;
                }
                self.at += 1;
            }
            b'&' | b'*' | b'!' => {
                self.begin();
                while !(self.is_blank(0) || is_flow && self.is_bracket()) {
                    self.at += 1;
                }
            }
            b'|' | b'>' if !is_flow => self.scalar_block(),
            b'\'' | b'"' => {
                self.begin();
                self.quoted(byte);
            }
            _ => {
                self.begin();
                self.plain();
            }
        }
        true
    }

    /// Notes the start of a token that may be a key.
    fn begin(&mut self) {
        if self.depth == 0 {
            self.key = self.column();
        }
    }

    fn is_bracket(&self) -> bool {
        matches!(self.peek(0), Some(b',' | b'[' | b']' | b'{' | b'}'))
    }

    fn quoted(&mut self, quote: u8) {
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            if byte == quote && quote == b'\'' && self.peek(1) == Some(b'\'') {
                self.at += 1;
            } else if byte == quote {
                self.at += 1;
                return;
            } else if byte == b'\\' && quote == b'"' {
                self.at += 1;
            }
            self.step();
        }
    }

    /// Skips a scalar without quotes, which may go on in lines that are indented more than its block.
    fn plain(&mut self) {
        let is_flow = self.depth > 0;
        loop {
            if self.peek(0) == Some(b'#') || self.is_mark() {
                return;
            }
            while !self.is_blank(0) {
                let is_end = self.peek(0) == Some(b':') && self.is_blank(1);
                if is_end || is_flow && self.is_bracket() {
                    return;
                }
                self.at += 1;
            }
            self.skip_blanks();
            let is_outside = !is_flow && self.column() <= self.block;
            if is_outside || self.at >= self.text.len() {
                return;
            }
        }
    }

    /// Skips a scalar after `|` or `>`: the lines below that are indented more than its block.
    fn scalar_block(&mut self) {
        let mut indent = None;
        while let Some(byte) = self.peek(0).filter(|byte| !matches!(byte, b'\n' | b'#')) {
            if byte.is_ascii_digit() && indent.is_none() {
                indent =
                    Some(self.block.max(0) + isize::from(i8::try_from(byte - b'0').unwrap_or(0)));
            }
            self.at += 1;
        }
        self.skip_line();
        let mut least = (self.block + 1).max(1);
        while self.at < self.text.len() {
            self.step();
            let line = self.text.get(self.at..).unwrap_or_default();
            let spaces = line.iter().take_while(|byte| **byte == b' ').count();
            let column = isize::try_from(spaces).unwrap_or(isize::MAX);
            match line.get(spaces) {
                None | Some(b'\n' | b'\r') => least = least.max(column),
                Some(_) if column < *indent.get_or_insert(column.max(least)) => return,
                Some(_) => {}
            }
            self.skip_line();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(text: &str) -> usize {
        let mut scanner = YamlScanner::new(text.as_bytes());
        let mut deepest = 0;
        while scanner.token() {
            deepest = deepest.max(scanner.depth);
        }
        deepest
    }

    #[test]
    fn brackets_count_where_they_are_brackets() {
        for (text, expected) in [
            ("a: [b, {c: [d]}]", 3),
            ("a: [b]\nc: [d]", 1),
            ("- [[]]\n- - {}", 2),
            ("[ # ]]]\n[ # ]]]\n[", 3),
            ("[']', [\"]\\\"]\", [", 3),
            ("['it''s [[[', [", 2),
            ("a: it's [[[\nb: [", 1),
            ("a: b\n  [[[ 'goes on\nb: [", 1),
            ("a: |\n  [[[\n\n  '[\nb: ['[[']", 1),
            ("- a: >-  # [[\n    [[\n  b: {}", 1),
            ("a:\n  b: |2\n      [[\n    [[\n  c: {}", 1),
            ("--- |\n [[[\n--- [\n", 1),
            ("a: &x[y [b]\nc: !t [[]]", 2),
            ("%TAG [[\n--- {a: 1}", 1),
            ("'[[': a[[b\n? [[c]]\n: d", 2),
            ("[a\n 'b [c", 2),
            ("]]]]", 0),
        ] {
            assert_eq!(depth(text), expected, "{text}");
        }
    }

    #[test]
    fn the_bound_is_a_bound() {
        let nested = |depth: usize| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(!is_too_deep(&nested(DEEPEST)));
        assert!(is_too_deep(&nested(DEEPEST + 1)));
        assert!(is_too_deep(&"[{a: ".repeat(100_000)));
    }
}
