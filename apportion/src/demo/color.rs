//! Colours, if the output is a terminal.
//!
//! As in other programs, `CLICOLOR_FORCE` enables them in a file too, and `NO_COLOR` disables them.

use std::env;
use std::io::{IsTerminal, stdout};

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ColorMode(pub(super) bool);

/// The role of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextRole {
    Title,
    /// The memory of the first program.
    First,
    /// The memory of the second program.
    Second,
    Aside,
    Refused,
    Good,
}

impl ColorMode {
    /// The mode for standard output.
    pub(super) fn of_output() -> Self {
        let is_set =
            |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
        let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let shows = stdout().is_terminal() && !is_dumb && !is_set("NO_COLOR");
        Self(is_set("CLICOLOR_FORCE") || shows)
    }

    /// The text in the colour of its role.
    pub(super) fn text(self, role: TextRole, text: &str) -> String {
        let code = match role {
            TextRole::Title => "1",
            TextRole::First => "92",
            TextRole::Second => "94",
            TextRole::Aside => "90",
            TextRole::Refused => "93",
            TextRole::Good => "1;92",
        };
        if self.0 && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_colour_is_left_alone() {
        assert_eq!(ColorMode(false).text(TextRole::Good, "x"), "x");
        assert_eq!(
            ColorMode(true).text(TextRole::Title, "x"),
            "\x1b[1mx\x1b[0m"
        );
    }
}
