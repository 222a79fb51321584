//! Parses text by recursive descent; looser operators call tighter ones.

use serde_json::Value;

use super::{ArithmeticOperator, ComparisonOperator, ExpressionNode, PathStep};

type Parsed<T> = Result<T, String>;

/// Deeper nesting than anyone writes by hand.
const MAX_DEPTH: u32 = 64;

pub(super) fn expression(text: &str) -> Parsed<ExpressionNode> {
    let mut parser = ExpressionParser {
        rest: text,
        depth: 0,
    };
    let node = parser.pipe()?;
    match parser.rest.trim_start() {
        "" => Ok(node),
        rest => Err(format!("`{rest}` is not understood")),
    }
}

struct ExpressionParser<'a> {
    rest: &'a str,
    depth: u32,
}

const COMPARISONS: [(&str, ComparisonOperator); 6] = [
    ("==", ComparisonOperator::Equal),
    ("!=", ComparisonOperator::Unequal),
    ("<=", ComparisonOperator::LessOrEqual),
    (">=", ComparisonOperator::GreaterOrEqual),
    ("<", ComparisonOperator::Less),
    (">", ComparisonOperator::Greater),
];

impl<'a> ExpressionParser<'a> {
    fn pipe(&mut self) -> Parsed<ExpressionNode> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        let mut left = self.alternative()?;
        while self.takes("|") {
            left = ExpressionNode::Pipe(Box::new(left), Box::new(self.alternative()?));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn alternative(&mut self) -> Parsed<ExpressionNode> {
        let mut all = vec![self.or()?];
        while self.takes("//") {
            all.push(self.or()?);
        }
        let last = all.pop().ok_or("it is empty")?;
        // The last binds first: `a // (b // c)`.
        Ok(all.into_iter().rev().fold(last, |right, left| {
            ExpressionNode::Alternative(Box::new(left), Box::new(right))
        }))
    }

    fn or(&mut self) -> Parsed<ExpressionNode> {
        let mut left = self.and()?;
        while self.takes_word("or") {
            left = ExpressionNode::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Parsed<ExpressionNode> {
        let mut left = self.comparison()?;
        while self.takes_word("and") {
            left = ExpressionNode::And(Box::new(left), Box::new(self.comparison()?));
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Parsed<ExpressionNode> {
        let left = self.sum()?;
        for (sign, comparison) in COMPARISONS {
            if self.takes(sign) {
                let right = Box::new(self.sum()?);
                return Ok(ExpressionNode::Compare(Box::new(left), comparison, right));
            }
        }
        Ok(left)
    }

    fn sum(&mut self) -> Parsed<ExpressionNode> {
        let mut left = self.product()?;
        loop {
            let sign = match (self.takes("+"), self.takes("-")) {
                (true, false) => ArithmeticOperator::Plus,
                (false, true) => ArithmeticOperator::Minus,
                (false, false) => return Ok(left),
                (true, true) => return Err("`+-` is not understood".to_owned()),
            };
            left = ExpressionNode::Sum(Box::new(left), sign, Box::new(self.product()?));
        }
    }

    fn product(&mut self) -> Parsed<ExpressionNode> {
        let mut left = self.primary()?;
        while self.takes("*") {
            left = ExpressionNode::Sum(
                Box::new(left),
                ArithmeticOperator::Times,
                Box::new(self.primary()?),
            );
        }
        Ok(left)
    }

    fn primary(&mut self) -> Parsed<ExpressionNode> {
        if self.takes("(") {
            let inner = self.pipe()?;
            self.needs(")")?;
            return Ok(inner);
        }
        if self.takes("[") {
            return self.list();
        }
        match self.rest.chars().next() {
            Some('.') => self.path(),
            Some('"') => Ok(ExpressionNode::Literal(self.text()?.into())),
            Some('-' | '0'..='9') => self.number().map(ExpressionNode::Literal),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Parsed<ExpressionNode> {
        match self.name() {
            "true" => Ok(ExpressionNode::Literal(true.into())),
            "false" => Ok(ExpressionNode::Literal(false.into())),
            "null" => Ok(ExpressionNode::Literal(Value::Null)),
            "not" => Ok(ExpressionNode::Not),
            "length" => Ok(ExpressionNode::Length),
            "tostring" => Ok(ExpressionNode::ToString),
            "tonumber" => Ok(ExpressionNode::ToNumber),
            "add" => Ok(ExpressionNode::Add),
            "select" => self.argument().map(ExpressionNode::Select),
            "map" => self.argument().map(ExpressionNode::Map),
            "" => Err(format!("a value is missing before `{}`", self.rest)),
            other => Err(format!("`{other}` is not supported")),
        }
    }

    fn argument(&mut self) -> Parsed<Box<ExpressionNode>> {
        self.needs("(")?;
        let inner = self.pipe()?;
        self.needs(")")?;
        Ok(Box::new(inner))
    }

    fn list(&mut self) -> Parsed<ExpressionNode> {
        if self.takes("]") {
            return Ok(ExpressionNode::List(None));
        }
        let inner = self.pipe()?;
        self.needs("]")?;
        Ok(ExpressionNode::List(Some(Box::new(inner))))
    }

    fn path(&mut self) -> Parsed<ExpressionNode> {
        let mut steps = Vec::new();
        loop {
            if let Some(rest) = self.rest.strip_prefix('.') {
                self.rest = rest;
                if self.rest.starts_with('"') {
                    steps.push(PathStep::Field(self.text()?));
                } else {
                    match self.name() {
                        "" if steps.is_empty() => {}
                        "" if self.rest.starts_with('[') => {}
                        "" => return Err("a field is missing after `.`".to_owned()),
                        name => steps.push(PathStep::Field(name.to_owned())),
                    }
                }
            } else if let Some(rest) = self.rest.strip_prefix('[') {
                self.rest = rest;
                steps.push(self.bracket()?);
            } else {
                return Ok(ExpressionNode::Path(steps));
            }
        }
    }

    fn bracket(&mut self) -> Parsed<PathStep> {
        if self.takes("]") {
            return Ok(PathStep::Each);
        }
        let step = if self.rest.starts_with('"') {
            PathStep::Field(self.text()?)
        } else {
            let number = self.number()?;
            PathStep::Index(number.as_i64().ok_or("an index is a whole number")?)
        };
        self.needs("]")?;
        Ok(step)
    }

    fn number(&mut self) -> Parsed<Value> {
        let sign = if self.takes("-") { "-" } else { "" };
        let digits = self.take_while(|c| c.is_ascii_digit() || c == '.');
        let text = format!("{sign}{digits}");
        serde_json::from_str(&text).map_err(|_| format!("`{text}` is not a number"))
    }

    /// A quoted string, with the escapes of JSON.
    fn text(&mut self) -> Parsed<String> {
        let mut texts = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = texts.next().and_then(Result::ok);
        let text = text.ok_or("a text does not end")?;
        self.rest = &self.rest[texts.byte_offset()..];
        Ok(text)
    }

    fn name(&mut self) -> &'a str {
        self.take_while(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn takes(&mut self, sign: &str) -> bool {
        self.space();
        // No operator is a prefix of another but `<` and `>`, which are tried after their longer forms.
        match self.rest.strip_prefix(sign) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn takes_word(&mut self, word: &str) -> bool {
        self.space();
        let before = self.rest;
        if self.name() == word {
            return true;
        }
        self.rest = before;
        false
    }

    fn needs(&mut self, sign: &str) -> Parsed<()> {
        if self.takes(sign) {
            Ok(())
        } else {
            Err(format!("`{sign}` is missing before `{}`", self.rest))
        }
    }
}
