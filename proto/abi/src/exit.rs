//! The exit codes of our programs, as in `sysexits.h` where that has one.

/// The command did what it was asked to do.
pub const DONE: u8 = 0;
/// Failed while running, or refused.
pub const FAILED: u8 = 1;
/// Bad usage or configuration.
pub const USAGE: u8 = 64;

/// The codes with what they mean, for the reference.
pub const CODES: [(u8, &str); 3] = [
    (DONE, "Done"),
    (
        FAILED,
        "Failed while running, or refused. One line on standard error says what failed and why, and ends with a hint",
    ),
    (
        USAGE,
        "Bad usage or configuration: an option, a variable or a value that cannot be right. Waiting does not help",
    ),
];
