//! IDs of shares of devices: UUIDs, as the API server requires.
//!
//! They follow from the claim, its version and the place in its allocation, so that the same cluster gives the same
//! decision. The version makes the ID of a later allocation of the same claim another one.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Makes the IDs of one allocation.
#[derive(Debug)]
pub(super) struct ShareIds {
    /// The claim and its version.
    of: String,
    made: u64,
}

impl ShareIds {
    pub(super) fn of(claims: impl Iterator<Item = (String, String)>) -> Self {
        let names = claims.map(|(uid, version)| format!("{uid} {version}"));
        Self {
            of: names.collect::<Vec<_>>().join(" "),
            made: 0,
        }
    }

    /// The next ID: a UUID of version 8, whose bits are free to choose (RFC 9562).
    pub(super) fn next(&mut self) -> String {
        self.made += 1;
        let half = |side: u64| {
            let mut hasher = DefaultHasher::new();
            (side, &self.of, self.made).hash(&mut hasher);
            hasher.finish()
        };
        let (high, low) = (half(0), half(1));
        let version = 0x8000 | (high & 0x0fff);
        let variant = 0x8000 | ((low >> 48) & 0x3fff);
        format!(
            "{:08x}-{:04x}-{version:04x}-{variant:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            low & 0xffff_ffff_ffff
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_share_has_its_own_uuid_and_the_same_claim_gets_the_same() {
        let ids = |version: &str| {
            let claim = ("uid".to_owned(), version.to_owned());
            let mut ids = ShareIds::of([claim].into_iter());
            [ids.next(), ids.next()]
        };
        assert_eq!(ids("1"), ids("1"));
        assert_ne!(ids("1"), ids("2"));
        assert_ne!(ids("1")[0], ids("1")[1]);
        let lengths = ids("1")[0].split('-').map(str::len).collect::<Vec<_>>();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
    }
}
