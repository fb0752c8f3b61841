//! [`Key`]: the secret that opens a volume.

use std::fmt;

use zeroize::Zeroizing;

use crate::{Error, Result};

/// A passphrase, or all bytes of a key file. Its memory is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// Most bytes of a key file, as in cryptsetup.
    pub const MAX: u64 = 8 << 20;

    /// A key of these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Secret bytes whose memory is wiped when they are dropped.
pub(crate) type Secret = Zeroizing<Vec<u8>>;

/// A secret of `len` zeros.
pub(crate) fn zeros(len: usize) -> Secret {
    Zeroizing::new(vec![0; len])
}

/// A secret of `len` random bytes.
///
/// # Errors
/// [`Error::Random`].
pub(crate) fn random(len: usize) -> Result<Secret> {
    let mut bytes = zeros(len);
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes)
}
