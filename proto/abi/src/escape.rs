//! Escapes names for a terminal. Others choose the names of processes, files and objects, and may use them to control
//! the reader's terminal or to make one line look like two.

use core::fmt::{self, Write};

/// Prints a text with its control characters escaped. Characters that change the direction of text are escaped too,
/// because they would show the words of a line in another order.
#[derive(Clone, Copy, Debug)]
pub struct EscapedText<'a>(pub &'a str);

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if is_hidden(character) {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_the_rest_stays() {
        let plain = |text| EscapedText(text).to_string();
        assert_eq!(plain("\x1b[31mX\x07"), "\\u{1b}[31mX\\u{7}");
        assert_eq!(plain("a\nbind b"), "a\\nbind b");
        assert_eq!(plain("a\u{9b}b\u{202e}c"), "a\\u{9b}b\\u{202e}c");
        assert_eq!(plain("grün 'x' \\"), "grün 'x' \\");
    }
}
