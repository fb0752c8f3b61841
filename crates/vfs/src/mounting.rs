//! What is chosen for a mount, whichever interface makes it.

/// The users that may use a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The user who mounts.
    #[default]
    Owner,
    /// That user and root.
    OwnerAndRoot,
    /// Every user, as far as permissions allow.
    All,
}

/// Whether something is used that not every machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// Where it can be had.
    #[default]
    Auto,
    /// Always; it is an error where it cannot be had.
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
