//! Choices for a mount that are common to all interfaces.

/// The users that may use a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Only the user who mounts.
    #[default]
    Owner,
    /// The user who mounts, and root.
    OwnerAndRoot,
    /// Every user, as far as permissions allow.
    All,
}

/// Whether to use a feature that some machines lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// If it is available.
    #[default]
    Auto,
    /// Always; fail if it is not available.
    On,
    /// Never.
    Off,
}

impl std::str::FromStr for Choice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(()),
        }
    }
}
