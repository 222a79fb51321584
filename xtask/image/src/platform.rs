//! The platforms that Apportion is built for, with the names that others have for them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A machine that runs Linux and glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Platform {
    /// x86-64.
    Amd64,
    /// aarch64.
    Arm64,
}

impl Platform {
    /// All of them, in the order in which an image index lists them.
    pub const ALL: [Self; 2] = [Self::Amd64, Self::Arm64];
    /// The platform of this program.
    pub const HOST: Self = if cfg!(target_arch = "aarch64") {
        Self::Arm64
    } else {
        Self::Amd64
    };

    /// The name in container images, in Kubernetes and in Debian.
    #[must_use]
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's name.
    #[must_use]
    pub const fn triple(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// GNU's name, which Debian has in library folders and compilers.
    #[must_use]
    pub const fn gnu(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// The folder in which Debian's packages for cross compilers have the platform's C library.
    pub(crate) fn cross_libraries(self) -> PathBuf {
        PathBuf::from(format!("/usr/{}/lib", self.gnu()))
    }

    /// The place of a library on a machine of the platform.
    pub(crate) fn library(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/lib/{}", self.gnu())).join(name)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.architecture())
    }
}

impl FromStr for Platform {
    type Err = String;

    /// Takes Rust's name, and the one of container images.
    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|it| it.triple() == name || it.architecture() == name)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::triple);
                format!("expected one of {}", names.join(", "))
            })
    }
}
