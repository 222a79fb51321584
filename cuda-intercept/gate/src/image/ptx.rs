//! PTX: finds the variables that it declares, without parsing the rest.
//!
//! A variable is a statement with `.global` or `.const` as a separate word, a type, and a name with or without
//! brackets: `.visible .global .align 4 .b8 table[256][4] = {1, 2};`. Loads and stores have the state space inside a
//! longer word (`ld.global.u32`), and parameters name `.param` before what they point to. An array without a length
//! has as many elements as its initializer. An `.extern` variable lies in another image.

use super::{ImageFootprint, padded};

/// Reads PTX, up to a zero byte or the end.
#[must_use]
pub fn text(text: &[u8]) -> ImageFootprint {
    let length = text.iter().position(|byte| *byte == 0);
    let text = length.and_then(|length| text.get(..length)).unwrap_or(text);
    let mut image = ImageFootprint {
        code: padded(text.len() as u64),
        ..ImageFootprint::default()
    };
    let mut statements = PtxStatements(text).peekable();
    while let Some(statement) = statements.next() {
        if let Some(variable) = PtxVariable::declared(statement) {
            // The elements stand between the braces of an initializer, which this parser treats as the end of the
            // statement.
            let given = statements.peek().copied().unwrap_or_default();
            let bytes = variable.bytes(given);
            image.variables = image.variables.saturating_add(padded(bytes));
        }
    }
    image
}

/// A declaration: the size of an element, and the number of elements unless the initializer decides it.
struct PtxVariable {
    element: u64,
    count: Option<u64>,
}

impl PtxVariable {
    fn declared(statement: &[u8]) -> Option<Self> {
        let (mut is_variable, mut element, mut vector) = (false, None, 1);
        for word in words(statement) {
            match word {
                b".param" | b".extern" => return None,
                b".global" | b".const" => is_variable = true,
                b".v2" => vector = 2,
                b".v4" => vector = 4,
                b".v8" => vector = 8,
                _ => element = element.or(element_bytes(word)),
            }
        }
        let element = element.filter(|_| is_variable)?;
        Some(Self {
            element: element.saturating_mul(vector),
            count: dimensions(statement),
        })
    }

    fn bytes(&self, given: &[u8]) -> u64 {
        let count = self.count.unwrap_or_else(|| {
            (given.iter().filter(|byte| **byte == b',').count() as u64).saturating_add(1)
        });
        self.element.saturating_mul(count)
    }
}

/// The product of the dimensions in brackets before an initializer; `None` if a bracket is empty.
fn dimensions(statement: &[u8]) -> Option<u64> {
    let head = statement.split(|byte| *byte == b'=').next()?;
    let mut product = 1_u64;
    for dimension in head.split(|byte| *byte == b'[').skip(1) {
        let inside = dimension.split(|byte| *byte == b']').next()?;
        product = product.saturating_mul(number(inside.trim_ascii())?);
    }
    Some(product)
}

/// `12`, `0x1F`, `017` or `0b11`, with or without a trailing `U`. Anything else counts as too large.
fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_suffix(b"U").unwrap_or(digits);
    if digits.is_empty() {
        return None;
    }
    let (digits, base) = match digits {
        [b'0', b'x' | b'X', rest @ ..] => (rest, 16),
        [b'0', b'b' | b'B', rest @ ..] => (rest, 2),
        [b'0', rest @ ..] => (rest, 8),
        all => (all, 10),
    };
    let parsed = digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(base)?;
        number
            .checked_mul(u64::from(base))?
            .checked_add(u64::from(digit))
    });
    Some(parsed.unwrap_or(u64::MAX))
}

/// `.b8`, `.f16x2` and the like. Textures and samplers are words that the driver fills in.
fn element_bytes(word: &[u8]) -> Option<u64> {
    match word {
        b".texref" | b".surfref" | b".samplerref" => return Some(64),
        b".bf16" => return Some(2),
        b".f16x2" | b".bf16x2" => return Some(4),
        _ => {}
    }
    match word.strip_prefix(b".")? {
        [b'b' | b'u' | b's' | b'f', bits @ ..] => match bits {
            b"8" => Some(1),
            b"16" => Some(2),
            b"32" => Some(4),
            b"64" => Some(8),
            b"128" => Some(16),
            _ => None,
        },
        _ => None,
    }
}

fn words(statement: &[u8]) -> impl Iterator<Item = &[u8]> {
    statement
        .split(|byte: &u8| byte.is_ascii_whitespace() || b"[]=,()".contains(byte))
        .filter(|word| !word.is_empty())
}

/// The text between semicolons and braces, without leading comments.
struct PtxStatements<'a>(&'a [u8]);

impl<'a> Iterator for PtxStatements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            self.0 = self.0.trim_ascii_start();
            self.0 = match self.0 {
                [] => return None,
                [b'/', b'/', rest @ ..] => after(rest, b"\n"),
                [b'/', b'*', rest @ ..] => after(rest, b"*/"),
                _ => break,
            };
        }
        let end = self
            .0
            .iter()
            .position(|byte| b";{}".contains(byte))
            .unwrap_or(self.0.len());
        let (statement, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..).unwrap_or_default();
        Some(statement)
    }
}

/// The text after a mark.
fn after<'a>(text: &'a [u8], mark: &[u8]) -> &'a [u8] {
    let at = text.windows(mark.len()).position(|found| found == mark);
    let rest = at.and_then(|at| text.get(at.saturating_add(mark.len())..));
    rest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(ptx: &str) -> u64 {
        text(ptx.as_bytes()).variables
    }

    #[test]
    fn a_variable_takes_its_elements() {
        for (declaration, bytes) in [
            (".global .u32 x;", 256),
            (".visible .global .align 4 .b8 t[1073741824];", 1 << 30),
            (".global .align 8 .f64 t[0x100][3] = {1.0, 2.0};", 6144),
            (".const .align 4 .v4 .f32 c[100U];", 1792),
            (".global .b64 pointers[] = {a, b, c};", 256),
            (".weak .global .b8 s[] = {1};\n.global .b8 t[300];", 768),
            (".global .attribute(.managed) .b32 m[1024];", 4096),
            ("// .global .b8 x[4096];\n/* .global .b8 y[4096]; */", 0),
            (".global .b8 strange[oops];", u64::MAX),
        ] {
            assert_eq!(variables(declaration), bytes, "{declaration}");
        }
    }

    #[test]
    fn what_uses_a_variable_declares_none() {
        let kernel = ".version 8.0 .target sm_90 .address_size 64
            .extern .global .b8 elsewhere[4096];
            .visible .entry k(.param .u64 .ptr .global .align 4 k_param_0)
            { .reg .b32 %r<4>; .shared .b8 tile[4096];
              ld.global.u32 %r1, [%rd1]; st.global.v4.f32 [%rd2], {%f1, %f2}; ret; }";
        assert_eq!(variables(kernel), 0);
    }

    #[test]
    fn code_is_no_longer_than_its_text() {
        let image = text(b".version 8.0\0 and what follows");
        assert_eq!((image.code, image.variables), (256, 0));
    }
}
