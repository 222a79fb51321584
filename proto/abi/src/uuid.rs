//! The identity of a card: the 16 bytes that `cuDeviceGetUuid` returns.
//!
//! Ordinals change with `CUDA_VISIBLE_DEVICES`; the UUID does not. So everything in Apportion is keyed by the UUID.
//! Its text is what `nvidia-smi -L` prints: `GPU-` or `MIG-` and the usual five groups of hexadecimal digits. The two
//! kinds differ in the text only; the bytes identify either.

use core::fmt;
use core::str::FromStr;

/// The 16 bytes of a card's (or a MIG instance's) UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardUuid(pub [u8; 16]);

impl CardUuid {
    /// The two halves, as the account pages store them.
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        let whole = u128::from_ne_bytes(self.0);
        [whole as u64, (whole >> 64) as u64]
    }

    /// The inverse of [`CardUuid::to_words`].
    #[must_use]
    pub const fn from_words(words: [u64; 2]) -> Self {
        let whole = (words[0] as u128) | ((words[1] as u128) << 64);
        Self(whole.to_ne_bytes())
    }
}

impl fmt::Display for CardUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (place, byte) in self.0.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for CardUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a UUID of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseUuidError;

impl fmt::Display for ParseUuidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a GPU UUID (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, as nvidia-smi -L prints it)",
        )
    }
}

impl core::error::Error for ParseUuidError {}

impl FromStr for CardUuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        let hex = text
            .strip_prefix("GPU-")
            .or_else(|| text.strip_prefix("MIG-"))
            .ok_or(ParseUuidError)?;
        let mut bytes = [0_u8; 16];
        let mut digits = 0_usize;
        for (place, c) in hex.char_indices() {
            if matches!(place, 8 | 13 | 18 | 23) {
                if c != '-' {
                    return Err(ParseUuidError);
                }
                continue;
            }
            let value = c
                .to_digit(16)
                .and_then(|d| u8::try_from(d).ok())
                .ok_or(ParseUuidError)?;
            let byte = bytes.get_mut(digits / 2).ok_or(ParseUuidError)?;
            *byte = (*byte << 4) | value;
            digits += 1;
        }
        if digits == 32 {
            Ok(Self(bytes))
        } else {
            Err(ParseUuidError)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const TEXT: &str = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

    #[test]
    fn text_and_words_keep_the_identity() {
        let uuid: CardUuid = TEXT.parse().unwrap();
        assert_eq!(uuid.to_string(), TEXT);
        assert_eq!(CardUuid::from_words(uuid.to_words()), uuid);
        assert_eq!(TEXT.replace("GPU", "MIG").parse(), Ok(uuid));
    }

    #[test]
    fn refuses_text_that_is_no_uuid() {
        for text in [
            "",
            "GPU-",
            "0",
            "GPU-0a1b2c3d4e5f60718293a4b5c6d7e8f9",
            &TEXT[..39],
            "GPU-zz1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
        ] {
            assert_eq!(text.parse::<CardUuid>(), Err(ParseUuidError), "{text}");
        }
    }
}
